/* test_net.c - two "machines" (lab.h), two ranks on each. Shared memory inside, TCP across, in one communicator.
   Where there can be none its tests are skipped.
   Contents: >>collectives >>bytes >>joining >>newcomers >>cable
   run: alone, long, machines, asan-later */
#define DT__WANT_INSIDE
#include "ranks.h"

#include "dt_comm.h"
#include "lab.h"
#include "teams.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

UTEST_MAIN()

#define LAB_RUN(l)                                                                                        \
    do {                                                                                                  \
        int rc_ = lab_run(l);                                                                             \
        if (rc_ == NOT_HERE) UTEST_SKIP("network namespaces with veth are not permitted, or ip is missing"); \
        EXPECT_EQ(rc_, 0);                                                                                \
    } while (0)

/* ==================================================================================================== >>collectives */
static float value(int rank, int i) { return (float)((rank * 5 + i * 3) % 11); }
static int   all_rank(lab *l, int rank)
{
    static float       x[40000], y[6 * 40000], z[6 * 40000];
    static const int   sizes[] = { 0, 1, 5, 1000, 40000 };
    dt_comm           *c = lab_join(l, rank);
    int                p = l->ranks, bad = 0;
    if (!c) return 1;
    bad += dt_comm_local_size(c) != p / 2 || dt_comm_local_rank(c) != rank % (p / 2) || dt_comm_host(c, 0) != 0 ||
           dt_comm_host(c, p - 1) != 1 || !c->inside || !c->across;
    for (int k = 0; k < 5; k++) {
        int n = sizes[k], root = k % p;
        for (int i = 0; i < n; i++) x[i] = value(rank, i);
        bad += dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM) != 0;
        for (int i = 0; i < n; i++) {
            float sum = 0;
            for (int r = 0; r < p; r++) sum += value(r, i);
            bad += x[i] != sum;
        }
        for (int i = 0; i < n; i++) x[i] = value(rank, i);
        bad += dt_comm_reduce(c, x, n, DT_COMM_F32, DT_COMM_MAX, root) != 0;
        for (int i = 0; i < n && rank == root; i++) {
            float most = 0;
            for (int r = 0; r < p; r++) most = value(r, i) > most ? value(r, i) : most;
            bad += x[i] != most;
        }
        for (int i = 0; i < n; i++) x[i] = rank == root ? value(7, i) : -1;
        bad += dt_comm_broadcast(c, x, n, DT_COMM_F32, root) != 0;
        for (int i = 0; i < n; i++) bad += x[i] != value(7, i);
        for (int i = 0; i < n; i++) x[i] = value(rank, i);
        bad += dt_comm_allgather(c, x, y, n, NULL, DT_COMM_F32) != 0;
        for (int i = 0; i < n * p; i++) bad += y[i] != value(i / n, i % n);
        memset(z, 0, sizeof z);
        bad += dt_comm_gather(c, x, z, n, NULL, DT_COMM_F32, root) != 0;
        for (int i = 0; i < n * p && rank == root; i++) bad += z[i] != value(i / n, i % n);
        bad += dt_comm_reduce_scatter(c, y, x, n, NULL, DT_COMM_F32, DT_COMM_SUM) != 0;
        for (int i = 0; i < n; i++) bad += x[i] != (float)p * value(rank, i);
        bad += dt_comm_scatter(c, y, x, n, NULL, DT_COMM_F32, root) != 0;
        for (int i = 0; i < n; i++) bad += x[i] != value(rank, i);
        for (int i = 0; i < n * p; i++) y[i] = value(rank + i / (n ? n : 1) * 3, i % (n ? n : 1));
        bad += dt_comm_alltoall(c, y, z, n, NULL, NULL, DT_COMM_F32) != 0;
        for (int i = 0; i < n * p; i++) bad += z[i] != value(i / n + rank * 3, i % n);
    }
    bad += dt_comm_barrier(c) != 0;
    if (bad) printf("    rank %d: %d wrong: %s\n", rank, bad, dt_comm_error(c) ? dt_comm_error(c) : "");
    return dt_comm_free(c) || bad;
}
UTEST(collectives, of_two_machines)
{
    lab l = lab_of(all_rank, 4);
    LAB_RUN(&l);
}
UTEST(collectives, of_two_machines_over_ipv6)
{
    lab l = lab_of(all_rank, 4);
    l.six = 1;
    LAB_RUN(&l);
}
UTEST(collectives, of_two_machines_with_three_ranks_each)
{
    lab l = lab_of(all_rank, 6);
    LAB_RUN(&l);
}

/* ==================================================================================================== >>bytes
   What crosses the cable in an allreduce, by the counters of the interface. */
enum { BIG = 2000000 }; /* elements */
static int bytes_rank(lab *l, int rank)
{
    float   *x = (float *)calloc(BIG, sizeof *x);
    dt_comm *c = lab_join(l, rank);
    if (!c || !x) return 1;
    for (int i = 0; i < BIG; i++) x[i] = (float)(rank + i % 5);
    int rc = dt_comm_allreduce(c, x, 1000, DT_COMM_F32, DT_COMM_SUM); /* connections are made */
    if (!rc) rc = dt_comm_barrier(c);
    int64_t before = cable_sent();
    if (!rc) rc = dt_comm_barrier(c);
    if (!rc) rc = dt_comm_allreduce(c, x, BIG, DT_COMM_F32, DT_COMM_SUM);
    if (!rc) rc = dt_comm_barrier(c);
    if (rank == 0) l->sent = cable_sent() - before;
    for (int i = 1000; i < BIG && !rc; i++) rc = x[i] == (float)(6 + 4 * (i % 5)) ? 0 : 1;
    free(x);
    return dt_comm_free(c) || rc;
}
/* What the first machine should send: the two-level algorithm sends each element across once in each direction and
   for each other machine, times (h-1)/h twice; the flat ring sends 2(p-1)/p of the vector over each of its edges, and
   one of them leaves each machine. */
UTEST(bytes, two_levels_send_only_their_share_across)
{
    static const char *const algo[] = { "two_level", "leader", "ring", NULL };
    double                   sent[4];
    for (int i = 0; i < 4; i++) {
        lab l = lab_of(bytes_rank, 4);
        l.algo = algo[i];
        LAB_RUN(&l);
        sent[i] = (double)l.sent / (BIG * 4.0);
        printf("    %-9s %.3f of the vector crosses\n", algo[i] ? algo[i] : "by cost", sent[i]);
    }
    /* headers of packets, acknowledgements, and what is sent again: some percent */
    EXPECT_NEAR(1.0, sent[0], 0.1);
    EXPECT_NEAR(1.0, sent[1], 0.1);
    EXPECT_NEAR(1.5, sent[2], 0.15);
    EXPECT_LT(sent[3], 1.1); /* by cost it is no ring */
}

/* ==================================================================================================== >>joining */
static int listens_rank(lab *l, int rank) /* at the address that routes to rank 0, and nowhere else */
{
    dt_comm *c = lab_join(l, rank);
    char     line[512], path[64], name[64], want[16];
    int      found = 0, bad = 0;
    if (!c) return 1;
    snprintf(want, sizeof want, "0%d004D0A:", rank >= l->ranks / 2 ? 2 : 1);
    for (int six = 0; six < 2; six++) {
        FILE *f = fopen(six ? "/proc/self/net/tcp6" : "/proc/self/net/tcp", "r");
        while (f && fgets(line, sizeof line, f)) {
            char          local[64];
            unsigned      state;
            unsigned long inode;
            if (sscanf(line, " %*d: %63s %*s %x %*s %*s %*s %*d %*d %lu", local, &state, &inode) != 3 || state != 10)
                continue;
            for (int fd = 0; fd < 64; fd++) { /* is it ours? */
                snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
                ssize_t n = readlink(path, name, sizeof name - 1);
                name[n > 0 ? n : 0] = 0;
                snprintf(path, sizeof path, "socket:[%lu]", inode);
                if (strcmp(name, path) != 0) continue;
                found++;
                if (strncmp(local, want, 9) != 0) bad = printf("    rank %d listens at %s\n", rank, local);
            }
        }
        if (f) fclose(f);
    }
    return dt_comm_free(c) || bad || found != 1;
}
UTEST(joining, ranks_listen_at_the_interface_that_routes_and_nowhere_else)
{
    lab l = lab_of(listens_rank, 4);
    LAB_RUN(&l);
}
static int sum_rank(lab *l, int rank)
{
    dt_comm *c = lab_join(l, rank);
    float    x = (float)rank;
    return !c || dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM) || x != 6 || dt_comm_free(c);
}
UTEST(joining, by_a_host_name)
{
    lab l = lab_of(sum_rank, 4);
    l.addr = "first.dt.test";
    l.hosts = true;
    LAB_RUN(&l);
}
static int token_rank(lab *l, int rank)
{
    if (dt_comm_init_with(lab_opts(l, rank)) || !strstr(dt_comm_error(NULL), "need a token"))
        return printf("    rank %d: %s\n", rank, dt_comm_error(NULL) ? dt_comm_error(NULL) : "was let in");
    if (l->sent) setenv("DT_INSECURE", "1", 1);
    else setenv("DT_TOKEN_FILE", l->addr + 10, 1); /* behind the address */
    return sum_rank(l, rank);
}
UTEST(joining, several_machines_need_a_token)
{
    char addr[64] = "10.77.0.1\0/tmp/dt_net_XXXXXX", bytes[32];
    int  fd = mkstemp(addr + 10);
    for (int i = 0; i < 32; i++) bytes[i] = (char)(i * 37);
    ASSERT_EQ(write(fd, bytes, 32), 32);
    close(fd);
    for (int i = 0; i < 2; i++) { /* DT_TOKEN_FILE, DT_INSECURE */
        lab l = lab_of(token_rank, 4);
        l.insecure = false;
        l.addr = addr;
        l.sent = i;
        int rc = lab_run(&l);
        if (rc == NOT_HERE) {
            unlink(addr + 10);
            UTEST_SKIP("network namespaces with veth are not permitted, or ip is missing");
        }
        EXPECT_EQ(rc, 0);
    }
    unlink(addr + 10);
}

/* A scheduler, three workers and two servers (DMLC_ROLE) on two machines, in whatever order they come. */
static int dmlc_rank(lab *l, int process)
{
    static const char *const role[6] = { "scheduler", "worker", "worker", "server", "worker", "server" };
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    setenv("DMLC_ROLE", role[process], 1);
    setenv("DMLC_NUM_WORKER", "3", 1);
    setenv("DMLC_NUM_SERVER", "2", 1);
    setenv("DMLC_PS_ROOT_URI", l->six ? "fd77::1" : "10.77.0.1", 1);
    setenv("DMLC_PS_ROOT_PORT", "29477", 1);
    dt_comm_opts o = lab_opts(l, 0);
    o.world = o.port = 0;
    o.addr = NULL;
    dt_comm *c = dt_comm_init_with(o);
    if (!c) return printf("    %s: %s\n", role[process], dt_comm_error(NULL)), 1;
    int     rank = dt_comm_rank(c), bad = dt_comm_size(c) != 6 || dt_comm_local_size(c) != 3 || (rank == 0) != (process == 0);
    uint8_t me[2] = { (uint8_t)role[process][0], (uint8_t)process }, all[6][2];
    bad += dt_comm_allgather(c, me, all, 2, NULL, DT_COMM_U8) != 0;
    for (int r = 1; r < 6 && !bad; r++)
        bad += all[r][0] != (r <= 3 ? 'w' : 's') || (all[r][1] < 3) != (dt_comm_host(c, r) == dt_comm_host(c, 0));
    if (bad) printf("    %s: rank %d, %d ranks here: %s\n", role[process], rank, dt_comm_local_size(c), dt_comm_error(c));
    return dt_comm_free(c) || bad;
}
UTEST(joining, roles_of_two_machines)
{
    for (int i = 0; i < 2; i++) {
        lab l = lab_of(dmlc_rank, 6);
        l.six = i;
        LAB_RUN(&l);
    }
}

/* ==================================================================================================== >>newcomers
   Ranks 0 and 1 are the start of a group, on the first machine; ranks 2 and 3 join it from the second. l->sent: by the
   invitation of a group of one, then rank 1 joins, too. */
static char *invitation; /* in memory that all processes share */
static dt_comm *newcomer_in(lab *l, int rank)
{
    dt_comm_opts o = lab_opts(l, rank);
    int          first = l->sent ? 1 : 2; /* who joins */
    dt_comm     *c;
    o.tolerant = true;
    o.room = 8;
    o.world = first;
    if (rank >= first) {
        flag_wait(l, 0, rank); /* in the order of their ranks */
        if (l->sent) o.addr = NULL, o.invitation = invitation;
        c = dt_comm_join_with(o);
    } else {
        if (l->sent) o.addr = NULL, o.port = 0;
        c = dt_comm_init_with(o);
        const char *at = !l->sent ? NULL : l->six ? "fd77::1" : "10.77.0.1";
        if (c && rank == 0 && dt_comm_accept(c, .bind = at, .invitation = invitation)) return NULL;
    }
    if (!c) printf("    rank %d: %s\n", rank, dt_comm_error(NULL));
    flag_add(l, 0);
    for (int r = rank < first ? first : rank + 1; c && r < l->ranks; r++)
        if (!team_event(c, DT_MEMBER_JOINED, r, NULL)) return NULL;
    return c;
}
static int newcomer_works(dt_comm *c, int rank, int first, int last) /* messages of all pairs of these ranks */
{
    int bad = 0;
    for (int a = first; a <= last; a++)
        for (int b = a + 1; b <= last; b++)
            if (rank == a || rank == b) bad += !team_exchange(c, rank, rank == a ? b : a, 300000);
    return bad;
}
static int newcomer_rank(lab *l, int rank)
{
    dt_comm *c = newcomer_in(l, rank), *now = NULL;
    int      bad = 0, sum = rank;
    if (!c) return 1;
    bad += dt_comm_rank(c) != rank || dt_comm_size(c) != 4;
    for (int r = 0; r < 4; r++) bad += dt_comm_host(c, r) != (r >= 2);
    bad += newcomer_works(c, rank, 0, 3);
    bad += dt_comm_shrink(c, &now) || !now->inside || !now->across;
    bad += dt_comm_allreduce(now, &sum, 1, DT_COMM_I32, DT_COMM_SUM) || sum != 6;
    if (bad) printf("    rank %d: %d wrong: %s\n", rank, bad, dt_comm_error(NULL) ? dt_comm_error(NULL) : "");
    dt_comm_free(now);
    flag_add(l, 1);
    flag_wait(l, 1, 4);
    return dt_comm_free(c) || bad;
}
static lab newcomers_lab(int (*fn)(lab *l, int rank), const char *token)
{
    lab l = lab_of(fn, 4);
    l.insecure = false;
    l.token = token;
    return l;
}
static bool newcomers_begin(char token[64])
{
    char bytes[32];
    snprintf(token, 64, "/tmp/dt_net_XXXXXX");
    int fd = mkstemp(token);
    for (int i = 0; i < 32; i++) bytes[i] = (char)(i * 41);
    invitation = (char *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool ok = invitation != MAP_FAILED && write(fd, bytes, 32) == 32;
    close(fd);
    return ok;
}
UTEST(newcomers, from_another_machine)
{
    char token[64];
    ASSERT_TRUE(newcomers_begin(token));
    for (int i = 0; i < 4; i++) {
        lab l = newcomers_lab(newcomer_rank, token);
        l.six = i % 2;
        l.sent = i / 2;
        int rc = lab_run(&l);
        if (rc == NOT_HERE) unlink(token);
        if (rc == NOT_HERE) UTEST_SKIP("network namespaces with veth are not permitted, or ip is missing");
        EXPECT_EQ(rc, 0);
    }
    unlink(token);
    munmap(invitation, 4096);
}
/* Nobody hears of the other machine any more. Both halves go on with messages; only the half with rank 0 may have
   collectives. */
static int cut_off_rank(lab *l, int rank)
{
    dt_comm      *c = newcomer_in(l, rank), *now = NULL;
    dt_comm_event e;
    int           bad = 0, seen = 0, first = rank / 2 * 2, sum = 1;
    if (!c) return 1;
    bad += newcomer_works(c, rank, 0, 3);
    flag_add(l, 1);
    flag_wait(l, 1, 4);
    if (rank == 0) {
        if (sh("%s", l->pull) != 0) return 1;
        l->when = dt_test_ns();
        flag_add(l, 2);
    }
    flag_wait(l, 2, 1);
    while (seen != (rank < 2 ? 12 : 3) && dt_comm_next_event(c, &e, .timeout = 20 * dt_test_slow()) == 1) {
        bad += e.kind != DT_MEMBER_DIED || e.rank / 2 == rank / 2;
        seen |= 1 << e.rank;
    }
    l->stats[rank] = 1e-9 * (double)(dt_test_ns() - l->when);
    bad += seen != (rank < 2 ? 12 : 3);
    bad += newcomer_works(c, rank, first, first + 1);
    int rc = dt_comm_shrink(c, &now);
    if (rank < 2) bad += rc || dt_comm_allreduce(now, &sum, 1, DT_COMM_I32, DT_COMM_SUM) || sum != 2;
    else bad += rc != DT_COMM_ERR_PEER || now;
    if (bad) printf("    rank %d: %d wrong, members %x: %d: %s\n", rank, bad, (unsigned)seen, rc,
                    dt_comm_error(NULL) ? dt_comm_error(NULL) : "");
    dt_comm_free(now);
    flag_add(l, 1);
    flag_wait(l, 1, 8);
    dt_comm_free(c);
    return bad != 0;
}
UTEST(newcomers, whose_cable_is_pulled)
{
    char token[64];
    ASSERT_TRUE(newcomers_begin(token));
    lab l = newcomers_lab(cut_off_rank, token);
    l.timeout = 2 * dt_test_slow();
    l.pull = "ip link set cable0 down";
    int rc = lab_run(&l);
    unlink(token);
    munmap(invitation, 4096);
    if (rc == NOT_HERE) UTEST_SKIP("network namespaces with veth are not permitted, or ip is missing");
    EXPECT_EQ(rc, 0);
    for (int r = 0; r < 4; r++) {
        printf("    rank %d knew after %.2f s\n", r, l.stats[r]);
        EXPECT_LT(l.stats[r], 10 * dt_test_slow());
    }
}

/* ==================================================================================================== >>cable
   It is pulled, or packets go nowhere: nobody says so. Both sides give up when the time is over. */
static int cable_rank(lab *l, int rank)
{
    static float x[30000];
    dt_comm     *c = lab_join(l, rank);
    int          rc = c ? dt_comm_barrier(c) : 1;
    flag_add(l, 0);
    for (int i = 0; !rc && i < 1000000; i++) {
        if (rank == 0 && i == 20) {
            flag_wait(l, 0, l->ranks);
            if (sh("%s", l->pull) != 0) return 1;
            l->when = dt_test_ns();
        }
        rc = dt_comm_allreduce(c, x, i % 2 ? 3 : 30000, DT_COMM_F32, DT_COMM_SUM);
    }
    double late = 1e-9 * (double)(dt_test_ns() - l->when);
    l->stats[rank] = late;
    if (rc != DT_COMM_ERR_TIMEOUT && rc != DT_COMM_ERR_PEER && rc != DT_COMM_ERR_NET)
        return printf("    rank %d: status %d after %.2f s: %s\n", rank, rc, late, c ? dt_comm_error(c) : "");
    if (rank % 2) printf("    rank %d after %.2f s: %s\n", rank, late, dt_comm_error(c));
    dt_comm_free(c);
    return 0;
}
/* the second way: what goes out and what comes in has an address that nobody has */
static const char *const lost = "ip link set cable0 address 02:00:00:00:00:98 && "
                                "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev cable0 nud permanent";
static int cold_rank(lab *l, int rank) /* pulled before any two ranks have exchanged a message */
{
    static float x[3000];
    dt_comm     *c = lab_join(l, rank);
    flag_add(l, 0);
    if (!c) return 1;
    flag_wait(l, 0, l->ranks);
    if (rank == 0) {
        if (sh("%s", l->pull) != 0) return 1;
        l->when = dt_test_ns();
        flag_add(l, 1);
    }
    flag_wait(l, 1, 1);
    int rc = dt_comm_allreduce(c, x, 3000, DT_COMM_F32, DT_COMM_SUM);
    l->stats[rank] = 1e-9 * (double)(dt_test_ns() - l->when);
    if (rc != DT_COMM_ERR_TIMEOUT && rc != DT_COMM_ERR_PEER && rc != DT_COMM_ERR_NET)
        return printf("    rank %d: status %d after %.2f s: %s\n", rank, rc, l->stats[rank], dt_comm_error(c));
    if (rank % 2) printf("    rank %d after %.2f s: %s\n", rank, l->stats[rank], dt_comm_error(c));
    dt_comm_free(c);
    return 0;
}
static void pulled(int *utest_result, int (*rank)(lab *l, int rank)) /* with and without shared memory, 4 and 2 ranks */
{
    for (int i = 0; i < 3; i++) {
        lab l = lab_of(rank, i == 2 ? 2 : 4);
        l.timeout = 1;
        l.tcp = i == 1;
        l.pull = i ? lost : "ip link set cable0 down";
        LAB_RUN(&l);
        for (int r = 0; r < l.ranks; r++) {
            EXPECT_LT(l.stats[r], l.timeout + dt_test_slow());
            EXPECT_GT(l.stats[r], 0);
        }
    }
}
UTEST(cable, that_is_pulled_before_the_first_contact) { pulled(utest_result, cold_rank); }
UTEST(cable, that_is_pulled_is_a_timeout_on_both_sides) { pulled(utest_result, cable_rank); }
