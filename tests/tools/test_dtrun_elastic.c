/* test_dtrun_elastic.c: the launcher of elastic jobs: deaths and replacements, machines that come and go, the hosts file,
   --add and --remove, and that nothing outlives it.

   This program is the tests, dtrun (--as-dtrun, and --agent, as dtrun starts itself), and the ranks (--as-rank). These ranks form
   no communicator: they find each other in a file in memory and say to dtrun what a group of dt_elastic.h says.
   run: alone, long, asan-later */
#define _GNU_SOURCE
#define DT_STATIC
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include "ranks.h"
#include "temp_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
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
#include <linux/seccomp.h>

UTEST_STATE();

/* ==================================================================================================== ranks */
enum { R_NONE = 0, R_WAITS, R_IN, R_LEAVES, R_GONE, R_MOST = 200 };
typedef struct group_rank {
    int     id, pid, state;
    int64_t beat; /* ns */
} group_rank;
typedef struct group { /* in a file that all ranks have mapped; lock: flock */
    int        restart, n, below, met; /* met: the leader has reported */
    int64_t    generation, step;
    group_rank r[R_MOST];
} group;
static group      *g;
static int         g_fd, my_id, least, most, tell;
static group_rank *me;
static const char *g_dir;
static volatile sig_atomic_t asked_to_leave, asked_to_stop;

static void on_leave(int sig)
{
    if (sig == SIGTERM) asked_to_leave = 1;
    else asked_to_stop = 1;
}
static bool there(const char *name)
{
    char path[5000];
    snprintf(path, sizeof path, "%s/%s", g_dir, name);
    return access(path, F_OK) == 0;
}
static int members_now(void)
{
    int n = 0;
    for (int i = 0; i < g->n; i++) n += g->r[i].state == R_IN;
    return n;
}
static void report(int kind, int whom, const char *said)
{
    dt__elastic_report r;
    memset(&r, 0, sizeof r);
    r.magic = DT__ELASTIC_MAGIC;
    r.kind = (uint32_t)kind;
    r.member = my_id;
    r.about = whom;
    r.generation = g->generation;
    r.step = ++g->step;
    r.members = members_now();
    r.min = least;
    r.max = most;
    r.want = most - r.members;
    snprintf(r.address, sizeof r.address, "127.0.0.1:%d", 1000 + my_id);
    snprintf(r.text, sizeof r.text, "%s", said);
    for (int i = 0; i < 200 && send(tell, &r, sizeof r, MSG_NOSIGNAL | MSG_DONTWAIT) < 0; i++) {
        if (errno == EAGAIN && kind) {
            poll(NULL, 0, 1);
            continue;
        }
        if (errno == EAGAIN) return;
        snprintf(r.text, sizeof r.text, "checkpoint-%d", my_id); /* nobody hears: dtrun is gone */
        printf("a last word\n");
        fflush(stdout); /* must not end it */
        temp_put(g_dir, r.text, "", 0);
        exit(0);
    }
}
static bool fresh(const group_rank *r) { return dt_test_ns() - r->beat < (int64_t)(dt_test_slow() * 1e9); }
static bool lives(const group_rank *r)
{
    char  path[64], buf[300] = "";
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/stat", r->pid);
    if (!(f = fopen(path, "r"))) return false;
    size_t n = fread(buf, 1, sizeof buf - 1, f);
    fclose(f);
    buf[n] = 0;
    char *p = strrchr(buf, ')');
    return p && p[2] != 'Z' && p[2] != 'X';
}
static void lead(const char *how)
{
    if (there("fail")) return;
    static int64_t said_at, short_at;
    bool           change = false;
    for (int i = 0; i < g->n; i++) {
        group_rank *r = &g->r[i];
        bool        dead = r->state == R_IN && (!lives(r) || !fresh(r));
        if (dead || r->state == R_LEAVES) {
            bool left = r->state == R_LEAVES;
            r->state = R_GONE;
            g->generation++;
            change = true;
            if (!there("silent")) report(left ? DT__EL_LEFT : DT__EL_GONE, r->id, left ? "it left" : lives(r) ? "it did not answer" : "it died");
        } else if (r->state == R_WAITS && !lives(r)) r->state = R_GONE;
        else if (r->state == R_WAITS && strcmp(how, "refuse") == 0) report(DT__EL_REFUSED, r->id, "layer fc has 10 outputs, here 12");
        else if (r->state == R_WAITS && members_now() < most && !there("hold")) {
            r->state = R_IN;
            g->generation++;
            change = true;
            report(DT__EL_JOINED, r->id, "");
        }
    }
    if (change || dt_test_ns() - said_at > 50000000) {
        said_at = dt_test_ns();
        report(DT__EL_STATE, -1, "");
        g->met = 1;
    }
    if (g->below) return;
    if (members_now() >= least) short_at = 0;
    else {
        if (!short_at) short_at = dt_test_ns();
        report(DT__EL_SHORT, -1, "until it has waited enough");
        if (dt_test_ns() - short_at > (int64_t)(atof(getenv("DT_ELASTIC_WAIT")) * 1e9)) g->below = 1;
    }
}
static int group_join(const char *how)
{
    const char *join = getenv("DT_ELASTIC_JOIN");
    int64_t     limit = dt_test_ns() + (int64_t)(30 * dt_test_slow() * 1e9);
    if (join && strcmp(how, "crash") == 0) {
        dprintf(2, "I cannot even start\n");
        return 7;
    }
    if (join && strcmp(how, "retry") == 0) {
        report(DT__EL_RETRY, -1, "no answer");
        return 1;
    }
    flock(g_fd, LOCK_EX);
    if (g->restart != atoi(getenv("DT_RESTART"))) {
        memset(g, 0, sizeof *g);
        g->restart = atoi(getenv("DT_RESTART"));
    }
    me = &g->r[g->n];
    me->id = my_id;
    me->pid = (int)getpid();
    me->beat = dt_test_ns();
    me->state = join ? R_WAITS : R_IN;
    g->n++;
    for (int i = 0; join && i < g->n; i++)
        if (g->r[i].id == atoi(strchr(join, ':') + 1) - 1000 && !lives(&g->r[i])) exit(94); /* the address of the dead */
    flock(g_fd, LOCK_UN);
    if (!join)
        for (; g->n < atoi(getenv("WORLD_SIZE")) && dt_test_ns() < limit; poll(NULL, 0, 1))
            if (asked_to_leave) exit(0);
    if (join && (getenv("RANK") || getenv("WORLD_SIZE") || getenv("DT_LISTEN_FD"))) return 98;
    return 0;
}
/* It leads if all members before it in the table are gone or do not answer. */
static int rank_main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    char        path[5000];
    bool        told = false;
    g_dir = argv[0];
    if (!getenv("DT_MEMBER") || sscanf(getenv("DT_ELASTIC"), "%d:%d", &least, &most) != 2 || !getenv("DT_ELASTIC_WAIT")) return 97;
    my_id = atoi(getenv("DT_MEMBER"));
    tell = atoi(getenv("DT_REPORT_FD"));
    snprintf(path, sizeof path, "%s/group", g_dir);
    g_fd = open(path, O_RDWR | O_CLOEXEC);
    g = (group *)mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_SHARED, g_fd, 0);
    if (g == MAP_FAILED) return 96;
    if (strcmp(how, "stubborn") == 0) {
        signal(SIGTERM, SIG_IGN);
        dprintf(1, "ready %d %d\n", my_id, (int)getpid());
        for (;;) pause();
    }
    if (strcmp(how, "early") == 0 && my_id == 1 && atoi(getenv("DT_RESTART")) == 0) {
        dprintf(2, "bad luck\n");
        return 6;
    }
    signal(SIGTERM, on_leave);
    signal(SIGINT, on_leave);
    int status = group_join(how);
    if (status) return status;
    for (;; poll(NULL, 0, 3)) {
        flock(g_fd, LOCK_EX);
        if (me->state == R_GONE) return 95; /* the others went on without it */
        me->beat = dt_test_ns();
        bool leads = me->state == R_IN;
        for (group_rank *r = g->r; r < me && leads; r++) leads = !(r->state == R_IN && fresh(r) && lives(r));
        if (leads) lead(how);
        else report(0, -1, "");
        if (me->state == R_IN && g->met && !told) {
            told = true;
            dprintf(1, "ready %d %d\n", my_id, (int)getpid());
        }
        if (asked_to_leave && strcmp(how, "deaf") != 0) {
            me->state = me->state == R_IN ? R_LEAVES : R_GONE;
            dprintf(1, "left %d\n", my_id);
            flock(g_fd, LOCK_UN);
            return 0;
        }
        flock(g_fd, LOCK_UN);
        if (asked_to_stop) return dprintf(1, "saved %d\n", my_id), 0;
        if (g->below) {
            report(DT__EL_FAILED, -1, "below the minimum: waited enough");
            return 1;
        }
        if (told && strcmp(how, "soon") == 0 && getenv("DT_ELASTIC_JOIN")) return 8;
        if (told && there("fail")) {
            if (my_id == 1) {
                report(DT__EL_FAILED, -1, "the data are wrong");
                dprintf(2, "wrong data\n");
                return 9;
            }
            for (int i = 0; i < g->n; i++)
                while (g->r[i].id == 1 && lives(&g->r[i])) poll(NULL, 0, 1);
            return 3;
        }
        if (told && there("done")) {
            report(DT__EL_DONE, -1, "");
            return there("unsaved") && my_id == 1 ? 5 : 0;
        }
    }
}

/* ==================================================================================================== running it */
#include "dtrun_job.h"

/* A directory with the group's file and an ssh that runs commands here; nowhere.test and 127.0.0.66 are no machines. */
static char *group_dir(void)
{
    char *dir = temp_dir(), script[10000], control[4200];
    group *zero = (group *)calloc(1, sizeof *zero);
    temp_put(dir, "group", (const char *)zero, sizeof *zero);
    free(zero);
    snprintf(script, sizeof script,
             "#!/bin/sh\ncase $1 in nowhere.test|127.0.0.66) echo \"ssh: $1 is unknown\" >&2; exit 255; esac\n"
             "echo $$ > '%s/agent-'$1\nshift\nexec sh -c \"$1\"\n",
             dir);
    chmod(temp_put(dir, "ssh", script, strlen(script)), 0700);
    snprintf(control, sizeof control, "%s/control", dir);
    setenv("DTRUN_DIR", control, 1);
    return dir;
}
static void elastic_job(dtjob *j, const char *dir, const char *flags, const char *how)
{
    char args[12000];
    snprintf(args, sizeof args, "%s --ssh %s/ssh RANK %s %s", flags, dir, dir, how);
    job_start(j, args);
}
static int job_done(dtjob *j, const char *dir) /* the training is over; the exit status */
{
    temp_put(dir, "done", "", 0);
    return job_wait(j);
}
static int ask(dtjob *j, const char *args) /* another dtrun */
{
    return job_run(j, args);
}
/* A rank is not stopped while it holds the lock of the group. */
static bool strike(const dtjob *j, const char *dir, int rank, int sig)
{
    int pid = pid_of(j, rank), fd = sig == SIGSTOP ? open(temp_in(dir, "group"), O_RDWR | O_CLOEXEC) : -1;
    if (pid <= 0) return false;
    if (fd >= 0) flock(fd, LOCK_EX);
    bool good = kill(pid, sig) == 0 && (fd < 0 || state_becomes(pid, 'T'));
    dt__close(&fd);
    return good;
}
static int  agent_pid(const char *dir, const char *host)
{
    char  name[200], pid[32] = "";
    FILE *f;
    snprintf(name, sizeof name, "agent-%s", host);
    if (!(f = fopen(temp_in(dir, name), "r"))) return 0;
    size_t n = fread(pid, 1, sizeof pid - 1, f);
    pid[n] = 0;
    fclose(f);
    return atoi(pid);
}
static void put_text(const char *dir, const char *name, const char *what) { temp_put(dir, name, what, strlen(what)); }
#define JOB_UNTIL(j, stream, what, times)                                                                 \
    do {                                                                                                  \
        bool came = job_until(j, stream, what, times);                                                    \
        if (!came) printf("   no '%s': out: %s\n   err: %s\n", what, (j)->said[0].p, (j)->said[1].p);     \
        ASSERT_TRUE(came);                                                                                \
    } while (0)

/* ==================================================================================================== deaths */
UTEST(elastic, a_rank_that_dies_is_replaced_and_the_others_go_on)
{
    for (int victim = 0; victim < 3; victim++) { /* the leader, one in the middle, the last */
        char *dir = group_dir(), want[200], host[80];
        dtjob j;
        elastic_job(&j, dir, "-n 3 --min 1 --max 3", "");
        JOB_UNTIL(&j, 0, "ready", 3);
        ASSERT_TRUE(strike(&j, dir, victim, victim == 1 ? SIGABRT : SIGKILL));
        JOB_UNTIL(&j, 1, "has joined: 3 ranks", 1);
        ASSERT_TRUE(strike(&j, dir, victim == 1 ? 0 : 2 - victim, SIGKILL)); /* and another one */
        JOB_UNTIL(&j, 1, "rank 4 on", 1);
        JOB_UNTIL(&j, 1, "has joined: 3 ranks", 2);
        EXPECT_EQ(0, job_done(&j, dir));
        host_name(host, sizeof host);
        snprintf(want, sizeof want, "dtrun: rank %d on %s died: killed by %s", victim, host,
                 victim == 1 ? "SIGABRT" : "SIGKILL, which dtrun did not send");
        EXPECT_SAYS(&j, 1, want);
        EXPECT_EQ(2, count_of(&j.said[1], " died: "));
        EXPECT_EQ(2, count_of(&j.said[1], " has joined: "));
        EXPECT_EQ(0, count_of(&j.said[1], "given up"));
        EXPECT_EQ(5, count_of(&j.said[0], "ready"));
        EXPECT_GE(until_none_marked(1), 0);
        job_free(&j);
        temp_remove(dir);
    }
}
UTEST(elastic, a_death_line_has_the_last_words)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 2 --max 3 --max-restarts 1", "early");
    JOB_UNTIL(&j, 0, "ready", 2);
    EXPECT_SAYS(&j, 1, "the group has not met: rank 1 on");
    EXPECT_SAYS(&j, 1, "failed first: exit code 6");
    EXPECT_SAYS(&j, 1, "dtrun:     | bad luck");
    EXPECT_SAYS(&j, 1, "restarting all ranks (restart 1 of 1)");
    EXPECT_EQ(0, job_done(&j, dir));
    job_free(&j);
    /* without restarts that is its end; the others do not wait for it */
    elastic_job(&j, dir, "-n 3 --max 3", "early");
    EXPECT_EQ(6, job_wait(&j));
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
    temp_remove(dir);
}
UTEST(elastic, all_die_at_once)
{
    for (int restarts = 0; restarts < 2; restarts++) {
        char *dir = group_dir(), flags[100];
        dtjob j;
        snprintf(flags, sizeof flags, "-n 3 --min 2 --max-restarts %d", restarts);
        elastic_job(&j, dir, flags, "");
        JOB_UNTIL(&j, 0, "ready", 3);
        kill(j.pid, SIGSTOP);
        EXPECT_TRUE(state_becomes(j.pid, 'T'));
        for (int r = 0; r < 3; r++) ASSERT_TRUE(strike(&j, dir, r, SIGSTOP)); /* so that none of them can lead meanwhile */
        for (int r = 0; r < 3; r++) ASSERT_TRUE(strike(&j, dir, r, SIGKILL));
        int64_t begin = dt_test_ns();
        kill(j.pid, SIGCONT);
        if (restarts) {
            JOB_UNTIL(&j, 0, "ready", 6);
            EXPECT_LT((double)(dt_test_ns() - begin) * 1e-9, 15 * dt_test_slow());
            EXPECT_EQ(0, job_done(&j, dir));
            EXPECT_SAYS(&j, 1, "restarting all ranks (restart 1 of 1)");
        } else EXPECT_EQ(128 + SIGKILL, job_wait(&j));
        EXPECT_SAYS(&j, 1, "no rank is left: rank ");
        EXPECT_GE(until_none_marked(1), 0);
        job_free(&j);
        temp_remove(dir);
    }
}
UTEST(elastic, new_ranks_that_die_at_once_are_started_less_and_less_often_and_then_no_more)
{
    static const char *const how[] = { "crash", "soon" };
    for (int i = 0; i < 2; i++) {
        char *dir = group_dir();
        dtjob j;
        elastic_job(&j, dir, "-n 3 --min 1", how[i]);
        JOB_UNTIL(&j, 0, "ready", 3);
        int64_t begin = dt_test_ns();
        ASSERT_TRUE(strike(&j, dir, 2, SIGKILL));
        JOB_UNTIL(&j, 1, "no more are started; the group goes on with 2 ranks", 1);
        EXPECT_GE((double)(dt_test_ns() - begin) * 1e-9, 0.02 * (1 + 2 + 4 + 8)); /* the unit of waiting here is 0.02 s */
        poll(NULL, 0, 300);
        EXPECT_EQ(0, job_done(&j, dir));
        EXPECT_EQ(6, count_of(&j.said[1], " died: "));
        if (i == 0) EXPECT_SAYS(&j, 1, "exit code 7, after");
        if (i == 0) EXPECT_SAYS(&j, 1, "; its last line: I cannot even start\n");
        EXPECT_EQ(1, count_of(&j.said[1], "no more are started"));
        job_free(&j);
        temp_remove(dir);
    }
}
UTEST(elastic, replacements_are_counted_if_the_user_says)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 3 --min 1 --max-restarts 2", "");
    JOB_UNTIL(&j, 0, "ready", 3);
    for (int r = 0; r < 3; r++) {
        ASSERT_TRUE(strike(&j, dir, r, SIGKILL));
        if (r < 2) JOB_UNTIL(&j, 0, "ready", 4 + r);
        if (r < 2) JOB_UNTIL(&j, 1, "has joined", 1 + r);
    }
    JOB_UNTIL(&j, 1, "no more ranks are started (--max-restarts 2); the group goes on with 2 ranks", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_EQ(5, count_of(&j.said[0], "ready"));
    job_free(&j);
    temp_remove(dir);
}
UTEST(elastic, new_ranks_that_are_refused_or_not_answered)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 2 --max 2", "refuse");
    JOB_UNTIL(&j, 0, "ready", 2);
    ASSERT_TRUE(strike(&j, dir, 1, SIGKILL));
    JOB_UNTIL(&j, 1, "layer fc has 10 outputs, here 12; no more ranks are started there", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_EQ(1, count_of(&j.said[1], "the group refuses rank"));
    job_free(&j);
    temp_remove(dir);
    dir = group_dir();
    elastic_job(&j, dir, "-n 2 --max 2", "retry");
    JOB_UNTIL(&j, 0, "ready", 2);
    ASSERT_TRUE(strike(&j, dir, 1, SIGKILL));
    JOB_UNTIL(&j, 1, "the group did not answer the last 20 new ranks: no answer: no more are started", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_EQ(1, count_of(&j.said[1], " died: ")); /* what tries again did not fail */
    job_free(&j);
    temp_remove(dir);
}
UTEST(elastic, a_stopped_rank_that_is_given_up_is_killed_and_replaced)
{
    for (int victim = 0; victim < 2; victim++) {
        char *dir = group_dir(), want[100];
        dtjob j;
        elastic_job(&j, dir, "-n 3 --max 3", "");
        JOB_UNTIL(&j, 0, "ready", 3);
        int pid = pid_of(&j, victim);
        ASSERT_TRUE(strike(&j, dir, victim, SIGSTOP));
        JOB_UNTIL(&j, 1, "has joined: 3 ranks", 1);
        EXPECT_EQ(0, (int)state_of(pid));
        EXPECT_EQ(0, job_done(&j, dir));
        snprintf(want, sizeof want, "the group has given up rank %d on", victim);
        EXPECT_SAYS(&j, 1, want);
        EXPECT_SAYS(&j, 1, ": it did not answer: it is killed (pid");
        EXPECT_EQ(0, count_of(&j.said[1], " died: "));
        job_free(&j);
        temp_remove(dir);
    }
}
UTEST(elastic, deaths_that_no_report_tells_of)
{
    char *dir = group_dir();
    dtjob j;
    put_text(dir, "silent", "");
    elastic_job(&j, dir, "-n 3 --max 5", ""); /* the group would take more at any time: not at the address of the dead */
    JOB_UNTIL(&j, 0, "ready", 3);
    ASSERT_TRUE(strike(&j, dir, 0, SIGKILL));
    JOB_UNTIL(&j, 1, "has joined: 3 ranks", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_EQ(1, count_of(&j.said[1], " died: "));
    job_free(&j);
    temp_remove(dir);
}
UTEST(elastic, ranks_that_end_well_are_not_replaced)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 3 --max 3", "");
    JOB_UNTIL(&j, 0, "ready", 3);
    ASSERT_TRUE(strike(&j, dir, 1, SIGKILL)); /* this one is, and does not count at the end */
    JOB_UNTIL(&j, 0, "ready", 4);
    ASSERT_TRUE(strike(&j, dir, 2, SIGTERM)); /* this one ends well */
    JOB_UNTIL(&j, 1, "has ended with exit code 0, and is not replaced", 1);
    ASSERT_TRUE(strike(&j, dir, 3, SIGKILL));
    JOB_UNTIL(&j, 1, "has joined: 2 ranks", 1);
    JOB_UNTIL(&j, 0, "ready", 5);
    ASSERT_TRUE(strike(&j, dir, 0, SIGTERM));
    ASSERT_TRUE(strike(&j, dir, 4, SIGTERM));
    EXPECT_EQ(0, job_wait(&j));
    EXPECT_EQ(5, count_of(&j.said[0], "ready"));
    EXPECT_EQ(2, count_of(&j.said[1], " died: "));
    job_free(&j);
    temp_remove(dir);
}
UTEST(elastic, the_status_is_that_of_the_end)
{
    static const struct {
        const char *file, *says;
        int         status;
    } all[] = { { "fail", "no rank is left: rank 1 on", 9 }, { "unsaved", "rank 1 on", 5 } };
    for (int i = 0; i < 2; i++) { /* all fail, for a reason that one of them names; one fails when the training is done */
        char *dir = group_dir();
        dtjob j;
        elastic_job(&j, dir, "-n 3 --max 3 --max-restarts 0", "");
        JOB_UNTIL(&j, 0, "ready", 3);
        put_text(dir, all[i].file, "");
        EXPECT_EQ(all[i].status, i ? job_done(&j, dir) : job_wait(&j));
        EXPECT_SAYS(&j, 1, all[i].says);
        if (i == 0) EXPECT_SAYS(&j, 1, "exit code 9");
        if (i == 0) EXPECT_SAYS(&j, 1, "; it said: the data are wrong");
        job_free(&j);
        temp_remove(dir);
    }
}
UTEST(elastic, fewer_than_the_minimum)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 1 --min 2 --wait 0.2", ""); /* from the start */
    EXPECT_EQ(1, job_wait(&j));
    EXPECT_SAYS(&j, 1, "have places for 1 rank, expected at least --min 2; waited 0.2 s (--wait)");
    job_free(&j);
    elastic_job(&j, dir, "-n 3 --min 3 --wait 0.7", "crash"); /* later */
    JOB_UNTIL(&j, 0, "ready", 3);
    ASSERT_TRUE(strike(&j, dir, 0, SIGKILL));
    EXPECT_EQ(75, job_wait(&j));
    EXPECT_SAYS(&j, 1, "the group has 2 ranks, fewer than --min 3: it waits: until it has waited enough");
    EXPECT_EQ(1, count_of(&j.said[1], "it waits"));
    EXPECT_SAYS(&j, 1, "the group has too few ranks: rank");
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
    temp_remove(dir);
}
UTEST(elastic, more_than_the_most_are_not_started)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 5 --min 1 --max 2", "");
    JOB_UNTIL(&j, 0, "ready", 2);
    EXPECT_SAYS(&j, 1, "the machines have places for 5 ranks, --max is 2: 2 ranks are started");
    ASSERT_TRUE(strike(&j, dir, 0, SIGKILL));
    JOB_UNTIL(&j, 1, "has joined: 2 ranks", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_EQ(3, count_of(&j.said[0], "ready"));
    job_free(&j);
    temp_remove(dir);
}
UTEST(elastic, logs_have_the_number_of_the_rank)
{
    char *dir = group_dir(), flags[5000], log[200] = "";
    dtjob j;
    snprintf(flags, sizeof flags, "-n 2 --max 2 --max-restarts 1 --log-dir %s/log --tee 1", dir);
    elastic_job(&j, dir, flags, "");
    JOB_UNTIL(&j, 0, "ready", 2);
    ASSERT_TRUE(strike(&j, dir, 1, SIGKILL));
    JOB_UNTIL(&j, 0, "ready", 3);
    for (int i = 0; i < 3; i += 2) ASSERT_TRUE(strike(&j, dir, i, SIGSTOP));
    for (int i = 0; i < 3; i += 2) ASSERT_TRUE(strike(&j, dir, i, SIGKILL));
    EXPECT_EQ(128 + SIGKILL, job_wait(&j)); /* the one restart is used up */
    FILE *f = fopen(temp_in(dir, "log/rank2.out"), "r");
    ASSERT_TRUE(f != NULL);
    EXPECT_GT(fread(log, 1, sizeof log - 1, f), (size_t)0);
    fclose(f);
    EXPECT_TRUE(strncmp(log, "ready 2 ", 8) == 0);
    EXPECT_SAYS(&j, 1, "giving up: --max-restarts 1 is used up");
    job_free(&j);
    temp_remove(dir);
}

/* ==================================================================================================== its own end */
UTEST(elastic, ranks_finish_their_step_when_dtrun_is_killed)
{
    for (int i = 0; i < 3; i++) { /* alone; over ssh; ranks that go on all the same */
        static const char *const flags[] = { "-n 3 --max 3", "-n 2 --hosts 127.0.0.1,127.0.0.2 --min 2", "-n 3 --min 1 --grace 0.3" };
        char                    *dir = group_dir();
        int                      n = i == 1 ? 4 : 3;
        dtjob                    j;
        elastic_job(&j, dir, flags[i], i == 2 ? "stubborn" : "");
        JOB_UNTIL(&j, 0, "ready", n);
        kill(j.pid, SIGKILL);
        job_wait(&j);
        double t = until_none_marked(5);
        EXPECT_GE(t, 0);
        for (int r = 0; r < n; r++) {
            char name[40];
            snprintf(name, sizeof name, "checkpoint-%d", r);
            EXPECT_EQ(i == 2 ? -1 : 0, access(temp_in(dir, name), F_OK));
        }
        struct dirent *e;
        DIR           *d = opendir(temp_in(dir, "control")); /* the guard removes the socket */
        ASSERT_TRUE(d != NULL);
        while ((e = readdir(d))) EXPECT_TRUE(e->d_name[0] == '.');
        closedir(d);
        job_free(&j);
        temp_remove(dir);
    }
}
UTEST(elastic, ctrl_c_in_the_middle_of_a_replacement)
{
    for (int twice = 0; twice < 2; twice++) {
        char *dir = group_dir();
        dtjob j;
        elastic_job(&j, dir, "-n 3 --max 3", twice ? "stubborn" : "");
        JOB_UNTIL(&j, 0, "ready", 3);
        if (!twice) {
            put_text(dir, "hold", ""); /* the new rank waits */
            ASSERT_TRUE(strike(&j, dir, 0, SIGKILL));
            group *seen = (group *)malloc(sizeof *seen);
            int    fd = open(temp_in(dir, "group"), O_RDONLY), n = 0;
            for (int64_t limit = seconds_from_now(20); n < 4 && dt_test_ns() < limit; poll(NULL, 0, 2))
                if (pread(fd, seen, sizeof *seen, 0) == (ssize_t)sizeof *seen) n = seen->n;
            close(fd);
            free(seen);
            ASSERT_EQ(4, n);
        }
        kill(j.pid, SIGINT);
        JOB_UNTIL(&j, 1, "a second signal ends them at once", 1);
        if (twice) kill(j.pid, SIGINT);
        EXPECT_EQ(128 + SIGINT, job_wait(&j));
        if (!twice) EXPECT_EQ(3, count_of(&j.said[0], "saved"));
        EXPECT_EQ(0, count_of(&j.said[1], "rank 4"));
        EXPECT_GE(until_none_marked(1), 0);
        job_free(&j);
        temp_remove(dir);
    }
}
UTEST(elastic, it_heals_when_its_stdout_is_gone)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 3 --max 3", "");
    JOB_UNTIL(&j, 0, "ready", 3);
    dt__close(&j.fd[0]);
    ASSERT_TRUE(strike(&j, dir, 0, SIGKILL));
    JOB_UNTIL(&j, 1, "has joined: 3 ranks", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_SAYS(&j, 1, "stdout is gone");
    job_free(&j);
    temp_remove(dir);
}

/* ==================================================================================================== machines */
UTEST(machines, one_that_is_lost_takes_its_ranks_with_it)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 2 --hosts 127.0.0.1,127.0.0.2,127.0.0.3 --max 4", "");
    JOB_UNTIL(&j, 0, "ready", 4);
    kill(agent_pid(dir, "127.0.0.1"), SIGKILL); /* with the leader: the third has places, then the first is tried again */
    JOB_UNTIL(&j, 1, "has joined: 4 ranks", 1);
    EXPECT_SAYS(&j, 1, "machine 127.0.0.1 is lost: the connection ended (signal 9); ranks 0, 1 are gone with it");
    EXPECT_SAYS(&j, 1, "rank 5 on 127.0.0.3 has joined");
    JOB_UNTIL(&j, 1, "machine 127.0.0.1 is there, with places for 2 ranks", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_EQ(0, count_of(&j.said[1], " died: "));
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, all_are_lost_at_once)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 1 --hosts 127.0.0.1,127.0.0.2 --min 1 --max-restarts 1", "");
    JOB_UNTIL(&j, 0, "ready", 2);
    kill(j.pid, SIGSTOP);
    EXPECT_TRUE(state_becomes(j.pid, 'T'));
    kill(agent_pid(dir, "127.0.0.1"), SIGKILL);
    kill(agent_pid(dir, "127.0.0.2"), SIGKILL);
    kill(j.pid, SIGCONT);
    JOB_UNTIL(&j, 0, "ready", 4);
    EXPECT_SAYS(&j, 1, "restarting all ranks (restart 1 of 1)");
    EXPECT_EQ(0, job_done(&j, dir));
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, a_stopped_dtrun_is_given_up)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 1 --hosts 127.0.0.1,127.0.0.2 --min 1", "");
    JOB_UNTIL(&j, 0, "ready", 2);
    int pid = agent_pid(dir, "127.0.0.2");
    kill(pid, SIGSTOP);
    JOB_UNTIL(&j, 1, "machine 127.0.0.2 is lost: its dtrun does not answer", 1);
    JOB_UNTIL(&j, 1, "has joined: 2 ranks", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, one_that_is_not_there_at_the_start_does_not_keep_the_others)
{
    char *dir = group_dir();
    dtjob j;
    elastic_job(&j, dir, "-n 2 --hosts nowhere.test,127.0.0.2 --min 2", "");
    JOB_UNTIL(&j, 0, "ready", 2);
    EXPECT_SAYS(&j, 1, "nowhere.test: ssh: nowhere.test is unknown");
    EXPECT_SAYS(&j, 1, "machine nowhere.test cannot be used: ssh ended (exit code 255)");
    poll(NULL, 0, 400); /* it is tried again, without words */
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_EQ(1, count_of(&j.said[1], "nowhere.test is unknown"));
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, the_hosts_file_is_read_again)
{
    char *dir = group_dir(), flags[5000];
    dtjob j;
    put_text(dir, "hosts", "# two\n127.0.0.1 1\n\n\t127.0.0.2  1   # the second\r\n");
    snprintf(flags, sizeof flags, "-n 2 --hosts-file %s/hosts --max 8", dir);
    elastic_job(&j, dir, flags, "");
    JOB_UNTIL(&j, 0, "ready", 2);
    put_text(dir, "hosts", "127.0.0.1 1\n127.0.0.2 1\n127.0.0.3"); /* one more, with as many ranks as -n says */
    JOB_UNTIL(&j, 1, "on 127.0.0.3 has joined", 2);
    put_text(dir, "hosts", "127.0.0.1 1\n127.0.0.2 1 x\n"); /* what is wrong changes nothing */
    JOB_UNTIL(&j, 1, "/hosts, line 2, column 13: 'x' is too much, expected: host [ranks]; the job goes on with the machines it has", 1);
    put_text(dir, "hosts", "");
    JOB_UNTIL(&j, 1, "/hosts names no machine, expected lines: host [ranks]; the job goes on", 1);
    unlink(temp_in(dir, "hosts"));
    JOB_UNTIL(&j, 1, "/hosts': No such file or directory; the job goes on", 1);
    put_text(dir, "hosts.new", "127.0.0.1\n127.0.0.3 2\n"); /* replaced by another file: without the second, the first with one more */
    ASSERT_EQ(0, rename(temp_in(dir, "hosts.new"), temp_in(dir, "hosts")));
    JOB_UNTIL(&j, 0, "left 1", 1);
    JOB_UNTIL(&j, 1, "machine 127.0.0.2 is removed", 1);
    JOB_UNTIL(&j, 0, "ready 4", 1);
    put_text(dir, "hosts", "127.0.0.1 2\n127.0.0.3 1\n"); /* one less there: the last one leaves */
    JOB_UNTIL(&j, 0, "left 3", 1);
    put_text(dir, "hosts", "127.0.0.3 1\n"); /* without the leader's machine, and all of the start */
    JOB_UNTIL(&j, 1, "machine 127.0.0.1 is removed", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_EQ(4, count_of(&j.said[0], "left"));
    EXPECT_EQ(0, count_of(&j.said[1], " died: "));
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, a_rank_that_does_not_leave_is_killed_after_the_grace_time)
{
    char *dir = group_dir();
    dtjob j, a;
    elastic_job(&j, dir, "-n 1 --hosts 127.0.0.1,127.0.0.2 --grace 0.3 --max 2", "deaf");
    JOB_UNTIL(&j, 0, "ready", 2);
    EXPECT_EQ(0, ask(&a, "--remove 127.0.0.2"));
    EXPECT_SAYS(&a, 0, "127.0.0.2 is removed: no rank is there any more");
    job_free(&a);
    JOB_UNTIL(&j, 1, "rank 1 on 127.0.0.2 did not leave within 0.3 s, and is killed", 1);
    JOB_UNTIL(&j, 1, "rank 1 on 127.0.0.2 has left (killed by SIGKILL)", 1);
    EXPECT_EQ(0, job_done(&j, dir));
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, added_and_removed_by_another_dtrun)
{
    char *dir = group_dir();
    dtjob j, a;
    EXPECT_EQ(1, ask(&a, "--add 127.0.0.2"));
    EXPECT_SAYS(&a, 1, "no elastic job of this user runs on this machine");
    job_free(&a);
    elastic_job(&j, dir, "-n 1 --hosts 127.0.0.1 --max 8", "");
    JOB_UNTIL(&j, 0, "ready", 1);
    static const struct {
        const char *ask, *says;
        int         status;
    } all[] = { { "--add 127.0.0.2:2", "127.0.0.2 is there, with places for 2 ranks", 0 },
                { "--add 127.0.0.2", "127.0.0.2 is in the job already, with places for 2 ranks", 0 },
                { "--add 127.0.0.2:3", "127.0.0.2 has places for 3 ranks now, before 2", 0 },
                { "--add 127.0.0.66", "127.0.0.66 cannot be used: ssh ended (exit code 255)", 1 },
                { "--add far.test", "far.test cannot reach the group, which listens at 127.0.0.1:", 1 },
                { "--remove 127.0.0.9", "the job has no machine '127.0.0.9'; its machines are 127.0.0.1, 127.0.0.2", 1 },
                { "--add 127.0.0.2:0", "--add is '0', expected a number from 1 to 4096 ranks behind the colon", 2 },
                { "--add a;b", "--add is 'a;b', expected the name or address of a machine: host or host:ranks", 2 },
                { "--remove 127.0.0.1", "127.0.0.1 is removed: no rank is there any more", 0 }, /* with the leader */
                { "--remove 127.0.0.2", "127.0.0.2 is the only machine of the job", 1 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        EXPECT_EQ(all[i].status, ask(&a, all[i].ask));
        EXPECT_SAYS(&a, all[i].status != 0, all[i].says);
        job_free(&a);
        if (i == 2) JOB_UNTIL(&j, 1, "has joined: 4 ranks", 1);
    }
    EXPECT_EQ(0, job_done(&j, dir));
    EXPECT_SAYS(&j, 0, "left 0\n");
    EXPECT_EQ(0, count_of(&j.said[1], " died: "));
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, which_job_is_asked)
{
    char *dir = group_dir();
    dtjob j[2], a;
    for (int i = 0; i < 2; i++) {
        char own[4200];
        snprintf(own, sizeof own, "%s/%s", dir, i ? "two" : "one");
        mkdir(own, 0700);
        group *zero = (group *)calloc(1, sizeof *zero);
        temp_put(own, "group", (const char *)zero, sizeof *zero);
        free(zero);
        char args[10000];
        snprintf(args, sizeof args, "-n 1 --max 2 --job job%d --ssh %s/ssh RANK %s", i, dir, own);
        job_start(&j[i], args);
    }
    for (int i = 0; i < 2; i++) JOB_UNTIL(&j[i], 0, "ready", 1);
    EXPECT_EQ(1, ask(&a, "--add localhost:2"));
    EXPECT_SAYS(&a, 1, "there are 2 such jobs, say which one:");
    EXPECT_SAYS(&a, 1, "--job job1");
    job_free(&a);
    EXPECT_EQ(1, ask(&a, "--add localhost:2 --job other"));
    EXPECT_SAYS(&a, 1, "there is no elastic job 'other' of this user on this machine, but:");
    job_free(&a);
    EXPECT_EQ(0, ask(&a, "--add localhost:2 --job job1"));
    JOB_UNTIL(&j[1], 1, "has joined: 2 ranks", 1);
    job_free(&a);
    kill(j[0].pid, SIGSTOP); /* it does not answer: it is no job that could be meant */
    EXPECT_EQ(0, ask(&a, "--add localhost:1"));
    job_free(&a);
    kill(j[0].pid, SIGCONT);
    JOB_UNTIL(&j[1], 0, "left 1", 1);
    for (int i = 0; i < 2; i++) EXPECT_EQ(0, job_done(&j[i], temp_in(dir, i ? "two" : "one")));
    for (int i = 0; i < 2; i++) job_free(&j[i]);
    temp_remove(dir);
}
UTEST(machines, a_directory_of_others_is_not_used_for_the_socket)
{
    char *dir = group_dir();
    dtjob j;
    mkdir(temp_in(dir, "control"), 0700);
    chmod(temp_in(dir, "control"), 0777);
    elastic_job(&j, dir, "-n 1 --max 2", "");
    JOB_UNTIL(&j, 0, "ready", 1);
    EXPECT_SAYS(&j, 1, "--add and --remove cannot reach this job");
    EXPECT_SAYS(&j, 1, "other users may enter it, expected mode 0700");
    EXPECT_EQ(0, job_done(&j, dir));
    job_free(&j);
    temp_remove(dir);
}
/* ==================================================================================================== input */
UTEST(input, lines_of_a_hosts_file)
{
    static const struct {
        const char *text, *says; /* NULL: it is good */
        int         n, room;
    } all[] = { { "a", NULL, 1, 7 },
                { "a 3\nb 4096\r\n# c\n  me@d\t2 # e f\n\n", NULL, 3, 3 },
                { "a 1\nb:2\n", NULL, 2, 1 }, /* an IPv6 address may have colons */
                { "", "f names no machine, expected lines: host [ranks]", 0, 0 },
                { "# a\n", "f names no machine", 0, 0 },
                { "a\nb 0\n", "f, line 2, column 3: '0', expected a number of ranks from 1 to 4096: host [ranks]", 0, 0 },
                { "a 4097", "f, line 1, column 3: '4097', expected a number", 0, 0 },
                { "a 99999999999999999999", "f, line 1, column 3: '99999999999999999999', expected a number", 0, 0 },
                { "a -1", "f, line 1, column 3: '-1', expected a number", 0, 0 },
                { "a \t slots=4", "f, line 1, column 5: 'slots=4', expected a number", 0, 0 },
                { "a 4 5", "f, line 1, column 5: '5' is too much, expected: host [ranks]", 0, 0 },
                { "-oProxyCommand=x", "f, line 1, column 1: '-oProxyCommand=x', expected a name or an address", 0, 0 },
                { "a\n\nb\n a 2", "f, line 4, column 2: 'a' is also on line 1, expected each machine once", 0, 0 },
                { "a;b", "f, line 1, column 1: 'a;b', expected a name or an address", 0, 0 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char       why[600];
        int        n = 0;
        host_line *l = host_lines(all[i].text, strlen(all[i].text), "f", 7, &n, why, sizeof why);
        EXPECT_EQ(all[i].says == NULL, l != NULL);
        if (l) EXPECT_EQ(all[i].n, n);
        if (l) EXPECT_EQ(all[i].room, l[0].room);
        if (all[i].says) EXPECT_TRUE_MSG(strncmp(why, all[i].says, strlen(all[i].says)) == 0, why);
        free(l);
    }
}
UTEST(input, a_wrong_command_line_is_refused_with_a_sentence)
{
    static const struct {
        const char *args, *says;
    } all[] = { { "--min 3 --max 2 -n 1 RANK x", "--min is 3 and --max is 2, expected at most --max for --min" },
                { "--min 0 RANK x", "--min is '0', expected a number from 1 to 4096" },
                { "--max 5000 RANK x", "--max is '5000', expected a number from 1 to 4096" },
                { "--wait 3 RANK x", "--wait is for elastic jobs" },
                { "--min 2 --wait soon RANK x", "--wait is 'soon', expected seconds" },
                { "--hosts a --hosts-file b RANK x", "--hosts and --hosts-file: both name the machines" },
                { "--hosts-file /nowhere/hosts RANK x", "--hosts-file '/nowhere/hosts': No such file or directory" },
                { "--hosts-file / RANK x", "--hosts-file '/' is not a regular file" },
                { "--min 2 --nnodes 2 --master-addr a --insecure RANK x", "--min and --nnodes: machines that are started by hand" },
                { "--max 2 --servers 1 -n 2 RANK x", "--max and --servers: ranks that only serve cannot be replaced" },
                { "--add a --remove b", "--add and --remove: one at a time" },
                { "--add a RANK x", "--add asks a job that runs already, and takes no program" },
                { "--remove", "--remove needs a value" },
                { "--add=", "--add is empty" } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dtjob j;
        EXPECT_EQ(2, job_run(&j, all[i].args));
        EXPECT_SAYS(&j, 1, all[i].says);
        job_free(&j);
    }
}

/* ==================================================================================================== */
UTEST(zz, no_process_is_left) { EXPECT_GE(until_none_marked(1), 0); }

int main(int argc, char **argv)
{
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return 1;
    backoff_unit = 0.02;
    hosts_poll = 0.05;
    quick_time = 1;
    ping_every = 0.1;
    ping_wait = 1 * dt_test_slow();
    if (argc > 2 && strcmp(argv[1], "--as-rank") == 0) return rank_main(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "--agent") == 0) return dtrun_main(argc, argv);
    if (argc > 1 && strcmp(argv[1], "--as-dtrun") == 0) return dtrun_main(argc - 1, argv + 1);
    snprintf(mark, sizeof mark, "dtrun-elastic-%d-%lld", (int)getpid(), (long long)dt_test_ns());
    return utest_main(argc, (const char *const *)argv);
}
