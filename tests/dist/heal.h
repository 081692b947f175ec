/* heal.h - a job of processes that train with dt_elastic.h, that are killed, and that others join; after dt_elastic.h
       heal_new()                     its options and what its members write down, in shared memory
       heal_start(j, number, rank)    starts a member: one of the start, or (rank -1) one that joins
       heal_wait(j, seconds)          until all members have ended; how many had an error
       heal_check(j)                  each sample once an epoch, the same weights after each step; prints what is wrong */
#ifndef HEAL_H
#define HEAL_H
#include "ranks.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAL_ITEMS = 50,
    HEAL_IN = 6,
    HEAL_OUT = 3,
    HEAL_BATCH = 3,
    HEAL_STEPS = 512,
    HEAL_TRIES = 32,
    HEAL_RANKS = 8,
    HEAL_ALL = 64,
    HEAL_DEATHS = 256
};
enum { HEAL_RETRY = 75 }; /* the exit status of a newcomer that found no group */
enum {
    HEAL_CALM = 0,
    HEAL_BEFORE,
    HEAL_BACKWARD,
    HEAL_AFTER,
    HEAL_TIMER,
    HEAL_MESSAGE,
    HEAL_JOINING,
    HEAL_LIFE
};                         /* when the victim dies (or is stopped) */
enum { /* odd_in */
    HEAL_MODEL = 0,
    HEAL_VERSION,
    HEAL_LENGTH,
    HEAL_SEED,
    HEAL_BATCHES,
    HEAL_SLOTS,
    HEAL_SHARD,
    HEAL_OPTIMIZERS,
    HEAL_OPTIMIZER,
    HEAL_STEP,
    HEAL_POSITION
};
typedef struct heal_try {  /* a step that a group began */
    int32_t n[HEAL_RANKS]; /* batches of each rank */
    int16_t item[HEAL_RANKS][4 * HEAL_BATCH];
    int32_t items[HEAL_RANKS];
} heal_try;
typedef struct heal_plan { /* of one member */
    int     how, signal, with; /* with: this member is killed just before; 0: none */
    int64_t step,
        us; /* at which step; HEAL_TIMER: so long after its first step. HEAL_MESSAGE: before so many messages (heal_sends) from
                         that step on, HEAL_JOINING: from the start of a newcomer on, or of this one if it is one. HEAL_LIFE: after
                         so many steps of its own in a full group */
} heal_plan;
typedef struct heal_use { /* what a process holds; bytes: of malloc */
    int64_t descriptors, threads, mappings, bytes;
} heal_use;
typedef struct heal {
    /* options */
    int    world, min, max, epochs, slots, shard, amp, norm, adam, seconds_of_step; /* the last one: ms of a step */
    double timeout, wait;
    const char *transport, *dir;
    char        trace[4200]; /* of rank 0 of the start; "": none */
    int         drop;        /* .drop_last: not each sample is used */
    int         batch;       /* of each member; 0: HEAL_BATCH */
    int         every;       /* with dir: a checkpoint after so many steps; they may go back to it */
    int         bare;        /* it has neither the loader nor the scheduler */
    int         replace;     /* so many members that died are replaced */
    int         next;        /* the number of the next one */
    int         watch;       /* members from this one on note what they hold after each death (used), and nothing else; 0: none */
    int         lies;        /* odd may be member 0, too */
    int         odd, odd_in; /* the member with this number differs from the others in this; 0: none */
    heal_plan   plan[HEAL_ALL];
    /* results */
    int      listen_fd, port, report[2];
    int      said_gone, said_joined, said_refused, said_short, said_done, said_failed; /* reports of this kind */
    char     address[80];
    int64_t  generation;        /* that of address */
    int64_t  newest;            /* committed steps */
    int64_t  mine[HEAL_ALL];    /* the generation in which each member was last */
    int32_t  group[HEAL_STEPS]; /* the generation that committed the step + 1 */
    int32_t  epoch[HEAL_STEPS];
    uint64_t hash[HEAL_STEPS][HEAL_TRIES];
    int64_t  done[HEAL_ALL]; /* the last step that each member has committed, + 1 */
    heal_try tried[HEAL_STEPS][HEAL_TRIES];
    int      ends; /* of epochs, that the last member to finish saw */
    char     heard[300]; /* the last warning that they go on */
    int64_t  back; /* the step to which they went back, or 0 */
    int32_t  bad, ended[HEAL_ALL], size_at_end, joined, retries;
    int64_t  committed_ns[HEAL_STEPS]; /* when the last member committed it */
    char     said[HEAL_ALL][600];
    uint64_t last; /* hash of the final weights */
    int      pid[HEAL_ALL];
    int      deaths[HEAL_RANKS];             /* that each watching member has seen */
    heal_use used[HEAL_RANKS][HEAL_DEATHS]; /* by deaths: the least in the steps of a full group */
} heal;

#ifdef DT__ON_SEND
static int64_t heal_left = -1; /* atomic: messages until it dies */
static DT_TEST_UNUSED void heal_sends(void)
{
    if (__atomic_load_n(&heal_left, __ATOMIC_RELAXED) >= 0 && __atomic_sub_fetch(&heal_left, 1, __ATOMIC_RELAXED) < 0)
        kill(getpid(), SIGKILL);
}
#else
static DT_TEST_UNUSED int64_t heal_left;
#endif
static int heal_lie = -1; /* what this member says wrongly to the others: HEAL_VERSION, HEAL_STEP or HEAL_POSITION */
static DT_TEST_UNUSED void heal_words(int64_t *w, int version, int step, int position)
{
    if (heal_lie == HEAL_VERSION) w[version] += 1000;
    if (heal_lie == HEAL_STEP) w[step] -= 2;
    if (heal_lie == HEAL_POSITION) w[position]++;
}
static DT_TEST_UNUSED int64_t heal_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static DT_TEST_UNUSED heal *heal_new(int world)
{
    heal              *j = (heal *)mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sockaddr_in a;
    socklen_t          n = sizeof a;
    uint8_t            token[32] = { 7 };
    char               text[16];
    if (j == MAP_FAILED) exit(1);
    j->world = j->next = world;
    j->min = 1;
    j->max = 8;
    j->epochs = 3;
    j->timeout = 10;
    j->wait = 20;
    j->transport = "auto";
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    j->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = (int)syscall(SYS_memfd_create, "token", 0);
    if (bind(j->listen_fd, (struct sockaddr *)&a, sizeof a) || listen(j->listen_fd, 64) ||
        getsockname(j->listen_fd, (struct sockaddr *)&a, &n) || write(fd, token, 32) != 32)
        exit(1);
    j->port = ntohs(a.sin_port);
    snprintf(text, sizeof text, "%d", fd);
    setenv("DT_TOKEN_FD", text, 1);
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, j->report)) exit(1);
    snprintf(text, sizeof text, "%d", j->report[1]);
    setenv("DT_REPORT_FD", text, 1);
    return j;
}
static DT_TEST_UNUSED void heal_free(heal *j)
{
    close(atoi(getenv("DT_TOKEN_FD")));
    unsetenv("DT_TOKEN_FD");
    unsetenv("DT_REPORT_FD");
    for (int i = 0; i < 2; i++) close(j->report[i]);
    munmap(j, sizeof *j);
}
static DT_TEST_UNUSED dt_tensor *heal_net(const heal *j, dt_model *m, dt_tensor *x, bool odd)
{
    x = dt_linear(m, "a", x, .out = odd ? 20 : 16, .act = DT_ACT_RELU);
    if (j->norm) x = dt_batchnorm1d(m, "bn", x);
    x = dt_linear(m, "b", x, .out = 8, .act = DT_ACT_RELU);
    return dt_linear(m, "c", x, .out = HEAL_OUT);
}
static DT_TEST_UNUSED uint64_t heal_hash(dt_model *m)
{
    static float      x[4096];
    dt_parameter_info p;
    uint64_t          h = UINT64_C(1469598103934665603);
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_model_get(m, i, &p);
        if (dt_copy_out(p.value, x, dt_nbytes(p.value)) != DT_OK) return 0;
        for (size_t k = 0; k < dt_nbytes(p.value); k++) h = (h ^ ((const uint8_t *)x)[k]) * UINT64_C(1099511628211);
    }
    return h | 1;
}
static DT_TEST_UNUSED void heal_wrong(heal *j, int number, int64_t step, const char *what)
{
    printf("   member %d, step %d: %s\n", number, (int)step, what);
    fflush(stdout);
    __atomic_add_fetch(&j->bad, 1, __ATOMIC_SEQ_CST);
}
static DT_TEST_UNUSED void heal_die(const heal *j, int number, int how, int64_t step)
{
    const heal_plan *p = &j->plan[number];
    if (how == HEAL_BEFORE && __atomic_load_n(&heal_left, __ATOMIC_RELAXED) < 0 &&
        ((p->how == HEAL_MESSAGE && p->step == step) ||
         (p->how == HEAL_JOINING && j->next > j->world && number < j->world)))
        __atomic_store_n(&heal_left, p->us, __ATOMIC_RELAXED);
    if (p->how != how || p->step != step) return;
    if (p->with) kill(j->pid[p->with], SIGKILL);
    kill(getpid(), p->signal ? p->signal : SIGKILL);
}
static DT_TEST_UNUSED void heal_note(heal *j, int number, dt_elastic *e, const dt_batch *b, int64_t step,
                                     int generation)
{
    int rank = dt_elastic_rank(e);
    if (step >= HEAL_STEPS) {
        heal_wrong(j, number, step, "too many steps");
        exit(1);
    }
    heal_try *t = &j->tried[step][generation % HEAL_TRIES];
    if (step < j->done[number]) j->back = step;
    if (j->every) j->done[number] = step;
    j->epoch[step] = (int32_t)dt_elastic_epoch(e);
    for (int i = 0; i < b->n && t->items[rank] < 4 * HEAL_BATCH; i++)
        t->item[rank][t->items[rank]++] = (int16_t)b->item[i];
    t->n[rank]++;
}
/* The group has committed so many steps. A member that has no samples in the last step of an epoch commits it in dt_elastic_next. */
static DT_TEST_UNUSED void heal_steps(heal *j, int64_t steps)
{
    int64_t newest = __atomic_load_n(&j->newest, __ATOMIC_SEQ_CST);
    while (newest < steps &&
           !__atomic_compare_exchange_n(&j->newest, &newest, steps, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}
static DT_TEST_UNUSED void heal_committed(heal *j, int number, dt_elastic *e, dt_model *m, int64_t step,
                                          int generation)
{
    uint64_t zero = 0, h = j->shard == 3 ? 1 : heal_hash(m);
    int32_t  before = __atomic_load_n(&j->group[step], __ATOMIC_SEQ_CST);
    (void)e;
    if (j->done[number] > step) heal_wrong(j, number, step, "it committed this step before");
    j->done[number] = step + 1;
    /* a step that only a member had committed which then died is made again by a later group */
    while (before < generation + 1 && !__atomic_compare_exchange_n(&j->group[step], &before, generation + 1, false,
                                                                   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    if (!__atomic_compare_exchange_n(&j->hash[step][generation % HEAL_TRIES], &zero, h, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST) &&
        zero != h)
        heal_wrong(j, number, step, "other weights than another member");
    int64_t now = heal_ns();
    if (j->committed_ns[step] < now) j->committed_ns[step] = now;
    heal_steps(j, step + 1);
}
static DT_TEST_UNUSED int64_t heal_count(const char *path) /* entries of a folder, or lines of a file */
{
    char    line[600];
    int64_t n = 0;
    DIR    *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    FILE *f = d ? NULL : fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) n++;
    if (f) fclose(f);
    return n;
}
static DT_TEST_UNUSED void heal_watch(heal *j, int number, dt_elastic *e)
{
    static int64_t   generation;
    dt_elastic_stats s = dt_elastic_get_stats(e);
    if (dt_elastic_size(e) != j->world || s.deaths >= HEAL_DEATHS) return;
    struct mallinfo2 m = mallinfo2();
    heal_use         u, *least = &j->used[number][s.deaths];
    u.descriptors = heal_count("/proc/self/fd");
    u.threads = heal_count("/proc/self/task");
    u.mappings = heal_count("/proc/self/maps");
    u.bytes = (int64_t)(m.uordblks + m.hblkhd);
    for (int i = 0; i < 4; i++)
        if (s.generation != generation || (&u.descriptors)[i] < (&least->descriptors)[i])
            (&least->descriptors)[i] = (&u.descriptors)[i];
    generation = s.generation;
    __atomic_store_n(&j->deaths[number], (int)s.deaths, __ATOMIC_SEQ_CST);
}
static DT_TEST_UNUSED void heal_hears(void *user, int level, const char *text)
{
    heal *j = (heal *)user;
    if (level == DT_LOG_WARN && strstr(text, "go on from")) snprintf(j->heard, sizeof j->heard, "%s", text);
}
static DT_TEST_UNUSED int heal_member(heal *j, int number, int rank)
{
    static float   x[HEAL_ITEMS][HEAL_IN];
    static uint8_t y[HEAL_ITEMS];
    uint32_t       r[4];
    if (number == 0 && j->trace[0]) dt_trace_start(j->trace);
    for (int i = 0; i < HEAL_ITEMS * HEAL_IN; i++) {
        dt_philox(9, (uint64_t)i, r);
        x[i / HEAL_IN][i % HEAL_IN] = (float)r[0] / 4294967296.0f - 0.5f;
        y[i / HEAL_IN] = (uint8_t)(r[1] % HEAL_OUT);
    }
    int         odd = (number || j->lies) && j->odd == number ? j->odd_in : -1;
    dt_dataset *set =
        dt_arrays(x, HEAL_ITEMS - (odd == HEAL_LENGTH), .x_shape = DT_SHAPE(HEAL_IN), .y = y, .y_dtype = DT_U8, .classes = HEAL_OUT);
    dt_loader *in =
        dt_loader_new(set, .batch = (j->batch ? j->batch : HEAL_BATCH) + (odd == HEAL_BATCHES), .shuffle = true,
                      .seed = 5 + (uint64_t)(odd == HEAL_SEED), .drop_last = j->norm || j->drop);
    dt_model       *m = dt_model_new(.seed = 3 + (uint64_t)(j->slots || j->drop ? 0 : number));
    dt_optimizer   *more = odd == HEAL_OPTIMIZERS ? dt_sgd(m, .params = "c.*", .lr = 0.1) : NULL;
    dt_optimizer   *opt = j->adam != (odd == HEAL_OPTIMIZER) ? dt_adam(m, .lr = 0.01) : dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_scheduler   *sched = dt_cosine_annealing_lr(opt, .t_max = 100);
    dt_amp         *amp = j->amp ? dt_amp_new(m, .level = j->amp == 2 ? "O2" : "O1") : NULL;
    dt_checkpoint  *k = j->dir ? dt_checkpoint_new(j->dir, .model = m, .optimizer = opt, .scheduler = j->bare ? NULL : sched, .every_steps = j->every) : NULL;
    dt_elastic_opts o;
    bool            begun = false;
    if (k && !j->bare) dt_loader_checkpoint(in, k);
    if (j->every) dt_set_log(heal_hears, j);
    int             size = 0, generation = 0, ends = 0, lived = 0;
    memset(&o, 0, sizeof o);
    o.min = j->min;
    o.max = j->max;
    o.room = 512;
    o.wait = j->wait;
    o.scheduler = sched;
    o.checkpoint = k;
    o.ddp.slots = odd == HEAL_SLOTS ? 8 : j->slots;
    o.ddp.shard = odd == HEAL_SHARD ? 1 : j->shard;
    o.comm.timeout = j->timeout;
    o.comm.transport = j->transport;
    heal_lie = odd;
    char at[80];
    if (rank >= 0) {
        o.comm.rank = rank;
        o.comm.world = o.comm.local_world = j->world;
        o.comm.local_rank = rank;
        o.comm.addr = "127.0.0.1";
        o.comm.port = j->port;
        o.comm.listen_fd = rank ? 0 : j->listen_fd;
    } else {
        memcpy(at, j->address, sizeof at);
        o.join = at;
    }
    dt_elastic *e = dt_elastic_new_with(m, opt, in, o);
    if (j->plan[number].how == HEAL_JOINING && rank < 0)
        __atomic_store_n(&heal_left, j->plan[number].us, __ATOMIC_RELAXED);
    for (; dt_elastic_epoch(e) < j->epochs; ends++)
        for (dt_batch b; dt_elastic_next(e, &b);) {
            int64_t step = dt_elastic_steps(e);
            bool    in_group = dt_elastic_ddp(e) != NULL;
            heal_steps(j, step);
            generation = (int)dt_elastic_get_stats(e).generation;
            size = dt_elastic_size(e);
            if (in_group && !begun && j->plan[number].how == HEAL_TIMER)
                dt_test_signal_in(j->plan[number].us, j->plan[number].signal ? j->plan[number].signal : SIGKILL);
            if (in_group) {
                if (!j->watch) heal_note(j, number, e, &b, step, generation);
                j->mine[number] = generation;
                if (rank < 0 && in_group && !begun) __atomic_add_fetch(&j->joined, 1, __ATOMIC_SEQ_CST);
                if (j->seconds_of_step) usleep((useconds_t)j->seconds_of_step * 1000);
                heal_die(j, number, HEAL_BEFORE, step);
                begun = true;
            }
            dt_tensor *loss = dt_cross_entropy(heal_net(j, m, b.x, odd == HEAL_MODEL), b.y);
            if (in_group) heal_die(j, number, HEAL_BACKWARD, step);
            if (amp) dt_amp_backward(amp, loss);
            else dt_backward(loss);
            if (!dt_elastic_step(e)) continue;
            if (j->watch) {
                if (number >= j->watch) heal_watch(j, number, e);
                lived += dt_elastic_size(e) == j->world;
                heal_die(j, number, HEAL_LIFE, lived);
                continue;
            }
            heal_committed(j, number, e, m, step, generation);
            heal_die(j, number, HEAL_AFTER, step);
            if (k) dt_checkpoint_tick(k, dt_elastic_epoch(e), dt_elastic_steps(e));
        }
    heal_steps(j, dt_elastic_steps(e));
    if (dt_error()) snprintf(j->said[number], sizeof j->said[number], "%s", dt_error());
    else {
        uint64_t none = 0, h = heal_hash(m);
        if (!__atomic_compare_exchange_n(&j->last, &none, h, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && none != h)
            heal_wrong(j, number, j->newest, "it ends with other weights than another member");
        j->size_at_end = size;
        j->ends = ends;
    }
    int failed = !dt_error()                                                                   ? 0
                 : strstr(dt_error(), "cannot join") || strstr(dt_error(), "joined the group") ? HEAL_RETRY
                                                                                               : 1;
    if (failed == HEAL_RETRY && j->newest >= HEAL_STEPS) failed = 0;
    dt_error_clear();
    dt_elastic_free(e);
    dt_checkpoint_free(k);
    dt_amp_free(amp);
    dt_scheduler_free(sched);
    dt_optimizer_free(more);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_dataset_free(set);
    if (number == 0 && j->trace[0]) dt_trace_stop();
    __atomic_store_n(&j->ended[number], failed ? 2 : 1, __ATOMIC_SEQ_CST);
    return failed;
}
static DT_TEST_UNUSED void heal_start(heal *j, int number, int rank)
{
    pid_t parent = getpid();
    fflush(stdout);
    pid_t pid = fork();
    if (pid) {
        j->pid[number] = pid;
        if (rank == 0) close(j->listen_fd); /* it is the leader's: when that dies, nobody listens there */
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    char text[16];
    close(j->report[0]);
    snprintf(text, sizeof text, "%d", number);
    setenv("DT_MEMBER", text, 1);
    int status = heal_member(j, number, rank);
    fflush(stdout);
    _exit(status);
}
static DT_TEST_UNUSED void heal_reports(heal *j) /* as a launcher does */
{
    dt__elastic_report r;
    while (recv(j->report[0], &r, sizeof r, 0) == (ssize_t)sizeof r) {
        if (r.magic != DT__ELASTIC_MAGIC) continue;
        j->said_gone += r.kind == DT__EL_GONE;
        j->said_joined += r.kind == DT__EL_JOINED;
        j->said_refused += r.kind == DT__EL_REFUSED;
        j->said_short += r.kind == DT__EL_SHORT;
        j->said_done += r.kind == DT__EL_DONE;
        j->said_failed += r.kind == DT__EL_FAILED;
        if (r.kind != DT__EL_STATE || r.generation <= j->generation) continue;
        memcpy(j->address, r.address, sizeof j->address);
        j->generation = r.generation;
    }
}
/* Until all members have ended, or the time is over: those that are left are killed. How many ended with an error of their
   own; killed ones do not count, unless they were killed here. */
static DT_TEST_UNUSED int heal_wait(heal *j, double seconds)
{
    int64_t end = heal_ns() + (int64_t)(seconds * 1e9);
    int     failed = 0, due = 0;
    int64_t after = 0;
    for (bool any = true; any;) {
        any = false;
        heal_reports(j);
        for (int i = HEAL_ALL - 1; i >= 0; i--) {
            int status = 0;
            if (j->pid[i] <= 0) continue;
            if (waitpid(j->pid[i], &status, WNOHANG) == j->pid[i]) {
                j->pid[i] = 0;
                bool retry = WIFEXITED(status) && WEXITSTATUS(status) == HEAL_RETRY,
                     killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
                failed += WIFEXITED(status) ? WEXITSTATUS(status) != 0 && !retry : !killed;
                j->retries += retry;
                bool over = false; /* somebody has finished: the group takes nobody any more */
                for (int k = 0; k < HEAL_ALL; k++) over = over || j->ended[k] == 1;
                if (!over && (retry || (killed && j->replace-- > 0))) {
                    due++;
                    if (after < j->mine[i]) after = j->mine[i];
                }
                if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
                    heal_wrong(j, i, -1, strsignal(WTERMSIG(status)));
                continue;
            }
            any = true;
            if (heal_ns() < end) continue;
            heal_wrong(j, i, j->newest, "it did not end in time");
            kill(j->pid[i], SIGKILL);
        }
        if (any && due && j->generation > after && j->next < HEAL_ALL && heal_ns() < end) { /* the group has gone on */
            heal_start(j, j->next++, -1);
            due--;
        }
        if (any) usleep(500);
    }
    return failed;
}
/* The try that counts: the last group that began the step has committed it. */
static DT_TEST_UNUSED const heal_try *heal_made(const heal *j, int64_t step)
{
    int last = 0;
    for (int g = 0; g < HEAL_TRIES; g++)
        for (int r = 0; r < HEAL_RANKS; r++)
            if (j->tried[step][g].items[r]) last = g;
    return &j->tried[step][last];
}
static DT_TEST_UNUSED int heal_check(heal *j)
{
    int64_t step = 0;
    for (int epoch = 0; epoch < j->epochs; epoch++) {
        int used[HEAL_ITEMS] = { 0 };
        for (; step < j->newest && j->epoch[step] == epoch; step++) {
            const heal_try *t = heal_made(j, step);
            for (int r = 0; r < HEAL_RANKS; r++)
                for (int i = 0; i < t->items[r]; i++) used[t->item[r][i]]++;
        }
        for (int i = 0, said = 0; i < HEAL_ITEMS && !j->slots && j->shard != 3 && said < 3; i++)
            if (used[i] != 1 && !((j->norm || j->drop) && !used[i])) {
                said++;
                char text[80];
                snprintf(text, sizeof text, "epoch %d used sample %d %d times", epoch, i, used[i]);
                heal_wrong(j, -1, step, text);
            }
    }
    for (int i = 0; i < HEAL_ALL; i++)
        if (j->said[i][0] && (j->bad || getenv("DT_HEAL_SAY"))) printf("   member %d says: %s\n", i, j->said[i]);
    if (step != j->newest) heal_wrong(j, -1, step, "a step of another epoch");
    for (int64_t k = step > 3 ? step - 3 : 0; j->bad && k < step + 4 && k < HEAL_STEPS; k++)
        printf("   step %d: committed by generation %d, epoch %d\n", (int)k, j->group[k] - 1, j->epoch[k]);
    for (int i = 0; j->bad && i < j->next; i++)
        printf("   member %d: has committed %d steps, last in generation %d, ended %d\n", i, (int)j->done[i],
               (int)j->mine[i], j->ended[i]);
    if (j->bad) printf("   newest step %d, last reported generation %d\n", (int)j->newest, (int)j->generation);
    return j->bad;
}
#endif
