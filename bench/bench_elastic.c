/* Measures how long training stands still when a rank is killed: make bench-elastic

       bench_elastic [--kills N] [--seconds N] [--parts shm,tcp,growth,restart,torch] [--every N] [--log FILE]
                     [--python PATH, or "" for none]

   Four ranks of one thread train an MLP (64-256-256-10, batch 32, SGD). A random one gets SIGKILL at a random moment of a step.
   The time is that from just before kill() to the moment at which the last rank has committed the first step that is new: the one behind
   the last step that a rank other than the victim had committed before. The median of calm steps is subtracted.
   shm, tcp: dt_elastic; this program is the launcher, the survivors count, and the victim is replaced. restart: the same net with DDP
   and a checkpoint every --every steps (10), all ranks started again by dtrun --max-restarts; all four count, and steps since the checkpoint
   are made again first. torch: the same with PyTorch's DDP over gloo, torch.save and torchrun. restart has --kills / 5 kills, torch --kills / 50.
   growth: one member that is never killed sees --kills / 2 deaths; what it holds in the second quarter of them beside the last quarter.
   --seconds: for all parts together; a part whose time is over ends with fewer kills. --log: each result is appended to this
   file, and those that are in it already count, too: so 1,000 kills can be made in several runs.
   Wrong outcomes: a step with other weights than another rank has, or than it had before a restart (PyTorch: beyond 1e-6; its buckets differ in the first steps); a step that was committed before and is
   committed again (elastic); a step that nobody committed (restart, torch); members that end with an error; jobs that stand still for
   20 s (restart and torch: 90 s). */
#define DT__WANT_INSIDE
#include "../dt_elastic.h"

#include "bench.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEATS = 4, HASHES = 65536, BATCH = 32, IN = 64, WIDTH = 256, OUT = 10, ITEMS = 8192 };
/* What the ranks write down: peer_elastic.py has the same layout of 64-bit words. */
typedef struct board {
    int64_t pid[SEATS], steps[SEATS], generation[SEATS] /* in which it has made a new step */,
        first[SEATS] /* ns: that step */, last[SEATS], wrong[SEATS], size[SEATS], bytes[SEATS] /* of malloc */;
    int64_t  stop, victim /* the last one, or -1 */, started /* ns: the last rank, after a restart */, again /* steps made again */;
    uint64_t hash[HASHES];
    int64_t  hash_of[HASHES]; /* the step, and elastic: the generation */
} board;
static board  *at;
static char    self[4096];
static const char *log_path; /* --log, or "" */
static const char *every;    /* --every */
static int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "a", x, .out = WIDTH, .act = DT_ACT_RELU);
    x = dt_linear(m, "b", x, .out = WIDTH, .act = DT_ACT_RELU);
    return dt_linear(m, "c", x, .out = OUT);
}
static dt_dataset *data(void)
{
    static float   x[ITEMS * IN];
    static uint8_t y[ITEMS];
    uint32_t       r[4];
    for (int i = 0; i < ITEMS * IN / 4; i++) {
        dt_philox(9, (uint64_t)i, r);
        for (int k = 0; k < 4; k++) x[4 * i + k] = (float)r[k] / 4294967296.0f - 0.5f;
        y[i * 4 / IN] = (uint8_t)(r[0] % OUT);
    }
    return dt_arrays(x, ITEMS, .x_shape = DT_SHAPE(IN), .y = y, .y_dtype = DT_U8, .classes = OUT);
}
/* A seat has committed a step. known: steps up to this one were made before (0 with elastic: none is made again). */
static void committed(int seat, int64_t step, int64_t generation, int64_t known, int size, dt_model *m)
{
    int64_t  t = clock_ns(), key = known < 0 ? step * 65536 + generation % 65536 + 1 : step;
    float    x[256];
    uint64_t h = 1469598103934665603u;
    if (dt_copy_out(dt_model_find(m, "a.bias"), x, sizeof x) ==
        DT_OK) /* a few weights: the time of a step is measured */
        for (size_t k = 0; k < sizeof x / 4; k++) h = (h ^ ((const uint32_t *)(const void *)x)[k]) * 1099511628211u;
    int64_t i = step % HASHES;
    if (__atomic_load_n(&at->hash_of[i], __ATOMIC_ACQUIRE) == key) at->wrong[seat] += at->hash[i] != h;
    else {
        at->hash[i] = h;
        __atomic_store_n(&at->hash_of[i], key, __ATOMIC_RELEASE);
    }
    if (known < 0 && step <= at->steps[seat]) at->wrong[seat]++;
    at->last[seat] = t;
    at->size[seat] = size;
    if (at->generation[seat] != generation && step > known) {
        at->first[seat] = t;
        at->bytes[seat] = (int64_t)(mallinfo2().uordblks + mallinfo2().hblkhd);
        __atomic_store_n(&at->generation[seat], generation, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&at->steps[seat], step, __ATOMIC_RELEASE);
}
static int member(int seat, int rank, const char *join, int port, int listen_fd, const char *transport)
{
    dt_set_num_threads(1);
    dt_dataset     *set = data();
    dt_loader      *in = dt_loader_new(set, .batch = BATCH, .shuffle = true);
    dt_model       *m = dt_model_new(.seed = 1);
    dt_optimizer   *opt = dt_sgd(m, .lr = 0.01, .momentum = 0.9);
    dt_elastic_opts o;
    memset(&o, 0, sizeof o);
    o.min = 1;
    o.max = SEATS;
    o.comm.transport = transport;
    if (rank >= 0) {
        o.comm.rank = o.comm.local_rank = rank;
        o.comm.world = o.comm.local_world = SEATS;
        o.comm.addr = "127.0.0.1";
        o.comm.port = port;
        o.comm.listen_fd = listen_fd;
    } else o.join = join;
    dt_elastic *e = dt_elastic_new_with(m, opt, in, o);
    while (dt_elastic_epoch(e) < 1000000 && !at->stop)
        for (dt_batch b; dt_elastic_next(e, &b);) {
            dt_backward(dt_cross_entropy(net(m, b.x), b.y));
            if (dt_elastic_step(e))
                committed(seat, dt_elastic_steps(e), dt_elastic_get_stats(e).generation, -1, dt_elastic_size(e), m);
        }
    _exit(strstr(dt_error() ? dt_error() : "", "join") ? 75 : 1);
}
/* a rank under dtrun: DDP with a checkpoint after so many steps */
static int restarted(const char *dir, int64_t interval)
{
    int64_t known = 0;
    for (int i = 0; i < SEATS; i++) /* now the ranks of before are gone, and the first step needs all of the new ones */
        if (i != at->victim && at->steps[i] > known) known = at->steps[i];
    dt_set_num_threads(1);
    dt_comm       *c = dt_comm_init();
    int            rank = dt_comm_rank(c);
    dt_dataset    *set = data();
    dt_loader     *in = dt_loader_new(set, .batch = BATCH, .shuffle = true, .rank = rank, .world = dt_comm_size(c));
    dt_model      *m = dt_model_new(.seed = 1);
    dt_optimizer  *opt = dt_sgd(m, .lr = 0.01, .momentum = 0.9);
    dt_ddp        *d = dt_ddp_new(m, c);
    dt_checkpoint *k = dt_checkpoint_new(dir, .model = m, .optimizer = opt, .every_steps = interval);
    int64_t        epoch = 0, step = 0, generation = 1 + atoi(getenv("DT_RESTART") ? getenv("DT_RESTART") : "0");
    dt_loader_checkpoint(in, k);
    dt_checkpoint_resume(k, &epoch, &step);
    at->pid[rank] = getpid();
    at->started = clock_ns();
    at->again = known - step;
    while (dt_error_code() == DT_OK && !at->stop)
        for (dt_batch b; dt_loader_next(in, &b) && !at->stop;) {
            dt_backward(dt_cross_entropy(net(m, b.x), b.y));
            dt_step(opt);
            if (dt_error_code() != DT_OK) break;
            committed(rank, ++step, generation, known, SEATS, m);
            dt_checkpoint_tick(k, dt_loader_epoch(in), step);
        }
    (void)d;
    _exit(dt_error_code() != DT_OK);
}

/* ---- the launcher */
static int      tell[2], listener;
static char     address[DT__ELASTIC_ADDR];
static int64_t  newest; /* generation of address */
static uint64_t chance = 12345;
static uint32_t any(uint32_t n)
{
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(chance >> 33) % n;
}
static void reports(void)
{
    dt__elastic_report r;
    while (recv(tell[0], &r, sizeof r, MSG_DONTWAIT) == (ssize_t)sizeof r) {
        if (r.magic != DT__ELASTIC_MAGIC || r.kind != DT__EL_STATE || r.generation < newest) continue;
        newest = r.generation;
        memcpy(address, r.address, sizeof address);
    }
}
static void seat_start(int seat, int rank, int port, const char *transport)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        member(seat, rank, address, port, rank == 0 ? listener : 0, transport);
    }
    at->pid[seat] = pid;
    if (rank == 0) close(listener);
}
static int port_open(void)
{
    struct sockaddr_in a;
    socklen_t          n = sizeof a;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 64) ||
        getsockname(listener, (struct sockaddr *)&a, &n))
        exit(1);
    return ntohs(a.sin_port);
}
static int count_dir(int64_t pid, const char *what)
{
    char path[64];
    int  n = 0;
    snprintf(path, sizeof path, "/proc/%lld/%s", (long long)pid, what);
    DIR *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
static int rss_kib(int64_t pid)
{
    char path[64];
    long pages = 0, all = 0;
    snprintf(path, sizeof path, "/proc/%lld/statm", (long long)pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return (int)(pages * (sysconf(_SC_PAGESIZE) / 1024));
}
static bool settled(int64_t steps_since) /* all four commit steps together */
{
    for (int i = 0; i < SEATS; i++)
        if (at->size[i] != SEATS || at->generation[i] != at->generation[0] || at->steps[i] < steps_since) return false;
    return true;
}
/* With --log the results are written there, and what is there counts. */
static double spread(const char *name, double *v, int n, int wrong) /* returns the median, or 0 */
{
    double mid = 0;
    enum { LOG_MOST = 100000 };
    char    line[128];
    size_t  len = strlen(name);
    double *all = (double *)calloc(LOG_MOST, sizeof *all);
    FILE   *f = *log_path ? fopen(log_path, "a+") : NULL;
    if (f && all) {
        for (int i = 0; i < n; i++) fprintf(f, "%s: %.6f\n", name, v[i]);
        for (int i = 0; i < wrong; i++) fprintf(f, "%s: wrong\n", name);
        rewind(f);
        for (n = wrong = 0; n < LOG_MOST && fgets(line, sizeof line, f);) {
            if (strncmp(line, name, len) || line[len] != ':') continue;
            if (strstr(line + len, "wrong")) wrong++;
            else all[n++] = atof(line + len + 1);
        }
        v = all;
    }
    if (f) fclose(f);
    if (n < 1) printf("%s: no result, wrong outcomes %d\n", name, wrong);
    else {
        qsort(v, (size_t)n, sizeof *v, by_value);
        mid = v[n / 2];
        printf("%s: %d kills, p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, worst %.1f ms, wrong outcomes %d\n", name, n,
               1e3 * v[n / 2], 1e3 * v[n * 9 / 10], 1e3 * v[n * 99 / 100], 1e3 * v[n - 1], wrong);
    }
    free(all);
    return mid;
}
/* From a kill at t0 in generation g to the first step of a later one on all seats but one (-1: all). 0: it stood still. */
static double stood(int64_t t0, int64_t g, int but, int seconds)
{
    for (int64_t end = t0 + (int64_t)seconds * NS_PER_S; clock_ns() < end; usleep(200)) {
        int64_t t = 0;
        bool    all = true;
        for (int i = 0; i < SEATS; i++) {
            if (i == but) continue;
            if (__atomic_load_n(&at->generation[i], __ATOMIC_ACQUIRE) <= g) all = false;
            else if (at->first[i] > t) t = at->first[i];
        }
        reports();
        if (all) return 1e-9 * (double)(t - t0);
    }
    return 0;
}
static double calm_step(void) /* median over 50 steps */
{
    double  v[50];
    int64_t before = at->steps[0];
    int64_t t = at->last[0];
    for (int i = 0; i < 50;) {
        int64_t s = __atomic_load_n(&at->steps[0], __ATOMIC_ACQUIRE);
        if (s == before) {
            usleep(20);
            continue;
        }
        int64_t u = at->last[0];
        v[i++] = 1e-9 * (double)(u - t) / (double)(s - before);
        before = s;
        t = u;
    }
    return median(v, 50);
}
static bool wait_settled(int64_t after, const char *transport)
{
    for (int64_t end = clock_ns() + 20ll * NS_PER_S; clock_ns() < end; usleep(200)) {
        int status;
        reports();
        for (int i = 0; i < SEATS; i++) /* a newcomer that found no group */
            if (at->pid[i] > 0 && waitpid((pid_t)at->pid[i], &status, WNOHANG) == at->pid[i])
                seat_start(i, -1, 0, transport);
        if (settled(after)) return true;
    }
    return false;
}
/* spare: a member that is not killed, whose growth is printed; -1: none */
static double elastic(const char *transport, int kills, double seconds, int spare)
{
    double end = now() + seconds;
    double *v = (double *)calloc((size_t)kills + 1, sizeof *v), joined = 0;
    int     n = 0, wrong = 0, port = port_open();
    double *held[4] = { NULL };
    for (int k = 0; k < 4; k++) held[k] = (double *)calloc((size_t)kills + 1, sizeof(double));
    char name[32];
    memset(at, 0, sizeof *at);
    at->victim = -1;
    reports(); /* of the job before */
    newest = 0;
    for (int i = 0; i < SEATS; i++) seat_start(i, i, port, transport);
    if (!wait_settled(50, transport)) {
        printf("%s: the job did not start\n", transport);
        return 0;
    }
    double calm = calm_step();
    while (n < kills && now() < end) {
        int     victim = (int)any(SEATS), status;
        if (victim == spare) continue;
        int64_t g = at->generation[victim];
        usleep(any((uint32_t)(2e6 * calm) + 1000));
        int64_t t0 = clock_ns();
        kill((pid_t)at->pid[victim], SIGKILL);
        double took = stood(t0, g, victim, 20);
        waitpid((pid_t)at->pid[victim], &status, 0);
        if (took <= 0) {
            wrong++;
            break;
        }
        v[n++] = took - calm;
        int64_t steps = at->steps[(victim + 1) % SEATS];
        at->size[victim] = 0;
        double t1 = now();
        seat_start(victim, -1, 0, transport);
        if (!wait_settled(steps + 3, transport)) {
            wrong++;
            break;
        }
        joined += now() - t1;
        if (spare < 0) continue;
        held[0][n - 1] = count_dir(at->pid[spare], "fd");
        held[1][n - 1] = count_dir(at->pid[spare], "task");
        held[2][n - 1] = (double)at->bytes[spare] / 1024;
        held[3][n - 1] = rss_kib(at->pid[spare]);
    }
    for (int i = 0; i < SEATS; i++) wrong += (int)at->wrong[i];
    snprintf(name, sizeof name, "elastic %s", transport);
    double mid = 0;
    if (spare < 0) mid = spread(name, v, n, wrong);
    else {
        static const char *const what[] = { "descriptors", "threads", "KiB of malloc", "KiB resident" };
        printf("growth over %s: wrong outcomes %d; medians of deaths %d to %d, and of %d to %d:\n", transport, wrong, n / 4, n / 2 - 1, 3 * n / 4, n - 1);
        for (int k = 0; k < 4 && n >= 8; k++) {
            double a = median(held[k] + n / 4, n / 4);
            printf("    %.0f and %.0f %s\n", a, median(held[k] + 3 * n / 4, n / 4), what[k]);
        }
    }
    if (spare < 0)
        printf("    calm step %.2f ms, from the start of a replacement to its third step %.0f ms (mean)\n", 1e3 * calm,
               n ? 1e3 * joined / n : 0.0);
    fflush(stdout);
    at->stop = 1;
    for (int i = 0; i < SEATS; i++) {
        kill((pid_t)at->pid[i], SIGKILL);
        waitpid((pid_t)at->pid[i], NULL, 0);
    }
    for (int k = 0; k < 4; k++) free(held[k]);
    free(v);
    return mid;
}
static double restarts(const char *name, char *const *argv, int kills, double seconds)
{
    double  limit = now() + seconds;
    double *v = (double *)calloc((size_t)kills + 1, sizeof *v);
    int     n = 0, wrong = 0, status;
    memset(at, 0, sizeof *at);
    at->victim = -1;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = open("/dev/null", O_WRONLY);
        dup2(fd, 1);
        if (!getenv("BENCH_SAY")) dup2(fd, 2);
        execvp(argv[0], argv);
        _exit(127);
    }
    double calm = 0, fresh = 0, again = 0;
    bool   ended = false;
    while (n < kills && (n < 1 || now() < limit)) {
        int64_t end = clock_ns() + 90ll * NS_PER_S;
        bool    on = false;
        while (clock_ns() < end && !on && !ended) {
            on = true;
            for (int i = 0; i < SEATS; i++) on = on && at->generation[i] == n + 1;
            on = on && clock_ns() - at->first[0] > NS_PER_S / 5; /* some steps */
            ended = waitpid(pid, &status, WNOHANG) == pid;
            usleep(500);
        }
        if (!on) {
            printf("    %s\n", ended ? "it has ended" : "it stands still");
            wrong++;
            break;
        }
        if (!calm) calm = calm_step();
        usleep(any((uint32_t)(20e6 * calm) + 1000));
        int     victim = (int)any(SEATS);
        int64_t g = at->generation[victim], t0 = clock_ns();
        at->victim = victim;
        kill((pid_t)at->pid[victim], SIGKILL);
        double took = stood(t0, g, -1, 90);
        if (took <= 0) {
            printf("    no new step in 90 s\n");
            wrong++;
            break;
        }
        v[n++] = took - calm;
        fresh += 1e-9 * (double)(at->started - t0);
        again += (double)at->again;
    }
    at->stop = 1;
    for (int i = 0; i < 200 && !ended; i++) {
        ended = waitpid(pid, &status, WNOHANG) == pid;
        usleep(50000);
    }
    int64_t most = 0;
    for (int i = 0; i < SEATS; i++) {
        wrong += (int)at->wrong[i];
        if (at->steps[i] > most) most = at->steps[i];
    }
    for (int64_t k = most > HASHES ? most - HASHES + 1 : 1; k <= most; k++) wrong += at->hash_of[k % HASHES] != k;
    double mid = spread(name, v, n, wrong);
    printf("    calm step %.2f ms (with a checkpoint every %s steps); in the mean %.0f ms until all ranks have started, %.1f steps made again; %lld steps in all\n",
           1e3 * calm, every, n ? 1e3 * fresh / n : 0.0, n ? again / n : 0.0, (long long)most);
    fflush(stdout);
    if (!ended) {
        kill(pid, SIGKILL);
        for (int i = 0; i < SEATS; i++)
            if (at->pid[i] > 0) kill((pid_t)at->pid[i], SIGKILL); /* torchrun leaves them */
        waitpid(pid, NULL, 0);
    }
    free(v);
    return mid;
}
static board *board_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(board))) return NULL;
    void *p = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : (board *)p;
}
int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "--rank")) {
        at = board_open(argv[2]);
        return at ? restarted(argv[3], atoi(argv[4])) : 1;
    }
    int         kills = atoi(option(argc, argv, "--kills", "1000"));
    double      seconds = atof(option(argc, argv, "--seconds", "100000")), parts_of = 0;
    const char *parts = option(argc, argv, "--parts", "shm,tcp,growth,restart,torch"),
               *python = option(argc, argv, "--python", "");
    static const char *const part[] = { "shm", "tcp", "growth", "restart", "torch" };
    double                   time_of[] = { 5, 5, 2, 3, 8 }; /* shares of --seconds */
    log_path = option(argc, argv, "--log", "");
    every = option(argc, argv, "--every", "10");
    for (int i = 0; i < 5; i++) parts_of += strstr(parts, part[i]) && (i < 4 || *python) ? time_of[i] : 0;
    for (int i = 0; i < 5; i++) time_of[i] *= seconds / (parts_of > 0 ? parts_of : 1);
    double  mid[3] = { 0, 0, 0 }, peer = 0;
    char    dir[64] = "/tmp/bench_elastic-XXXXXX", path[128], ckpt[128], text[32], count[16];
    uint8_t token[32] = { 1 };
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("DT_LOG", "off", 0);
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len <= 0 || !mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/board", dir);
    snprintf(ckpt, sizeof ckpt, "%s/ckpt", dir);
    if (!(at = board_open(path))) return 1;
    if (strstr(parts, "shm") || strstr(parts, "tcp") || strstr(parts, "growth")) {
        int fd = memfd_create("token", 0);
        if (write(fd, token, 32) != 32 || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, tell)) return 1;
        snprintf(text, sizeof text, "%d", fd);
        setenv("DT_TOKEN_FD", text, 1);
        snprintf(text, sizeof text, "%d", tell[1]);
        setenv("DT_REPORT_FD", text, 1);
        if (strstr(parts, "shm")) mid[0] = elastic("shm", kills, time_of[0], -1);
        if (strstr(parts, "tcp")) mid[1] = elastic("tcp", kills, time_of[1], -1);
        if (strstr(parts, "growth")) elastic("shm", kills / 2, time_of[2] / 2, 2), elastic("tcp", kills / 2, time_of[2] / 2, 2);
        unsetenv("DT_TOKEN_FD");
        unsetenv("DT_REPORT_FD");
    }
    int few = kills / 5 > 0 ? kills / 5 : 1;
    snprintf(count, sizeof count, "%d", few + 2);
    if (strstr(parts, "restart")) {
        char *const a[] = { (char *)"build/tools/dtrun",
                            (char *)"-n",
                            (char *)"4",
                            (char *)"--max-restarts",
                            count,
                            self,
                            (char *)"--rank",
                            path,
                            ckpt,
                            (char *)(uintptr_t)every,
                            NULL };
        mid[2] = restarts("restart from a checkpoint, dtrun", a, few, time_of[3]);
    }
    if (strstr(parts, "torch") && *python) {
        char limit[32];
        setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", 1); /* else gloo finds the addresses of before the restart */
        few = kills / 50 > 0 ? kills / 50 : 1;
        snprintf(limit, sizeof limit, "--max-restarts=%d", few + 2);
        char *const a[] = { (char *)(uintptr_t)python,
                            (char *)"-m",
                            (char *)"torch.distributed.run",
                            (char *)"--standalone",
                            (char *)"--nproc-per-node=4",
                            limit,
                            (char *)"bench/peer_elastic.py",
                            path,
                            ckpt,
                            (char *)(uintptr_t)every,
                            NULL };
        peer = restarts("PyTorch, torchrun", a, few, time_of[4]);
    }
    static const char *const line[] = { "elastic-shm", "elastic-tcp", "elastic-restart" };
    for (int i = 0; i < 3; i++) /* medians; the ratio says how many times as fast dt goes on */
        if (mid[i] > 0 && peer > 0)
            printf("%s: dt %.1f ms, torchrun %.1f ms, ratio %.1f\n", line[i], 1e3 * mid[i], 1e3 * peer, peer / mid[i]);
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0;
}
