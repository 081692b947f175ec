/* dtrun.c - starts the ranks of a job, shows their output, ends them together, restarts them

       dtrun -n 4 ./train --epochs 5

   One process, one event loop, no threads (PR_SET_PDEATHSIG of a child refers to the thread that forked it). On each
   machine an agent starts ranks and watches them; one controller decides when all start, stop and restart. On one machine,
   and on node 0 of several, both are in this process and call each other. Otherwise they exchange frames, over TCP with
   the handshake of dt_net.h (--nnodes) or over the pipes of ssh (--hosts).

   CONTENTS
       >>options     the command line
       >>output      lines of ranks, for the terminal or for files
       >>children    processes that do not outlive this one
       >>links       frames between agent and controller
       >>agent       the ranks of this machine
       >>controller  starting, blaming, stopping, restarting
       >>joining     how the other machines connect: TCP and ssh
       >>elastic     ranks and machines that come and go
       >>control     --add and --remove
       >>main */
#ifndef DT_STATIC
#define DT_STATIC
#endif
#define DT_BASE_IMPLEMENTATION
#define DT_NET_IMPLEMENTATION
#include "../dt_net.h"

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

enum { NODES_MAX = 4096, RANKS_MAX = 4096, TAIL_LINES = 20, TAIL_BYTES = 400 };
enum { LINE_MOST = 1 << 20, QUEUE_MOST = 1 << 18, HELD_MOST = 16 << 20, FRAME_MOST = 4 << 20, CHUNK = 1 << 16 };
enum { KIND_NODE = 100 }; /* connection kind in the handshake: a dtrun, not a rank */

/* ==================================================================================================== >>options */
static struct {
    int         nproc, servers; /* ranks on this machine; how many of them, the last ones, are servers */
    int         nnodes, node_rank, master_port, max_restarts; /* max_restarts -1: not given */
    int         min, max;        /* ranks of an elastic job; 0: not given */
    bool        standalone, insecure, agent, tee, elastic;
    double      grace, join_timeout, wait; /* seconds; grace negative: the defaults */
    const char *master_addr, *hosts, *hosts_file, *log_dir, *bind, *token_file, *ssh, *dtrun, *run_id;
    const char *add, *remove; /* asks a dtrun that runs */
    const char *forward[64]; /* -x */
    int         nforward;
    char      **argv; /* the program and its arguments */
} opt;

static void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
static void fail(int status, const char *format, ...) /* exits; children, if there are any, die with this process */
{
    va_list ap;
    fputs("dtrun: ", stderr);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(status);
}
static const char usage[] =
    "dtrun [options] program [arguments]          runs ranks of a program together\n"
    "dtrun --add host[:N] | --remove host         asks an elastic job of this user to use a machine, or to leave it\n"
    "\n"
    "  -n, --nproc-per-node N   ranks on each machine (1); auto or cpu: one for each core\n"
    "  --servers N              on each machine N more ranks that are parameter servers (0)\n"
    "  --nnodes N               machines, with dtrun started on each of them (1)\n"
    "  --node-rank R            the number of this machine, from 0 (0)\n"
    "  --master-addr A          name or address of machine 0 (127.0.0.1)\n"
    "  --master-port P          its port (one machine: a free one; several: 29500)\n"
    "  --token-file F           the job's secret for several machines, mode 0600; machine 0 creates it if it is missing\n"
    "  --hosts a,b              start dtrun on these machines by ssh; rank 0 is on the first\n"
    "  --ssh COMMAND            the ssh command (DTRUN_SSH, else ssh -T -o BatchMode=yes)\n"
    "  --dtrun PATH             path of dtrun on the hosts (the path on this machine)\n"
    "  -x NAME[=VALUE]          an environment variable for the ranks, also on the hosts\n"
    "  --bind A                 several machines: listen at this address\n"
    "  --max-restarts N         restart all ranks after a failure, at most N times (0); elastic: replace at most N ranks\n"
    "  --min N, --max N         an elastic job: a rank that dies is replaced, and the others go on; ranks that it needs, and\n"
    "                           the most that it may have (1; the ranks of the start, with --hosts-file 1024)\n"
    "  --hosts-file F           elastic: machines, one on a line: host [ranks]; read again when it changes\n"
    "  --wait S                 elastic: seconds that fewer than --min ranks wait for others, before the job ends (600)\n"
    "  --grace S                seconds from SIGTERM to SIGKILL (5 after a failure, 30 after Ctrl-C and when ranks leave)\n"
    "  --join-timeout S         seconds to wait for the other machines (600)\n"
    "  --log-dir D              write the output of ranks to D/rankN.out and D/rankN.err\n"
    "  -t, --tee N              with --log-dir: show it on the terminal as well, unless N is 0\n"
    "  --standalone             one machine, a free port (the default)\n"
    "  --insecure               several machines without a token\n"
    "  --rdzv-id ID, --job ID   the job's name; with --add and --remove: the job that is meant\n"
    "  --no-python, --rdzv-backend, --start-method, --monitor-interval, --role   accepted, for torchrun's users\n"
    "  --help, --version\n"
    "  --                       ends the options\n"
    "\n"
    "Option names may have underscores. PET_NNODES, PET_NPROC_PER_NODE ... in the environment set defaults. Ranks find\n"
    "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and DT_RESTART in their environment, with\n"
    "--servers also DT_ROLE (worker or server), DT_WORKERS and DT_SERVERS. The exit status is that of the rank that failed\n"
    "first (128 + signal), 128 + signal after Ctrl-C and SIGTERM, and 2 for a wrong command line.\n";

typedef struct option {
    const char *name, *letter;
    int         kind; /* 'i' number, 's' seconds, 't' text, 'c' text of a command that has no variable, 'b' switch, 'n' ranks,
                         'N' machines, 'x' variable, 'E' host:port,
                         'B' a number that is a switch; ignored: '0' with a value, '-' without a value */
    void       *to;
    int         low, high;
} option;
static const option options[] = {
    { "nproc-per-node", "n", 'n', &opt.nproc, 1, RANKS_MAX },
    { "servers", NULL, 'i', &opt.servers, 0, RANKS_MAX - 1 },
    { "nnodes", NULL, 'N', &opt.nnodes, 1, NODES_MAX },
    { "node-rank", NULL, 'i', &opt.node_rank, 0, NODES_MAX - 1 },
    { "master-addr", NULL, 't', &opt.master_addr, 0, 0 },
    { "master-port", NULL, 'i', &opt.master_port, 0, 65535 },
    { "rdzv-endpoint", NULL, 'E', NULL, 0, 0 },
    { "max-restarts", NULL, 'i', &opt.max_restarts, 0, INT_MAX },
    { "min", NULL, 'i', &opt.min, 1, RANKS_MAX },
    { "max", NULL, 'i', &opt.max, 1, RANKS_MAX },
    { "wait", NULL, 's', &opt.wait, 0, 0 },
    { "hosts-file", NULL, 't', &opt.hosts_file, 0, 0 },
    { "add", NULL, 'c', &opt.add, 0, 0 },
    { "remove", NULL, 'c', &opt.remove, 0, 0 },
    { "standalone", NULL, 'b', &opt.standalone, 0, 0 },
    { "hosts", NULL, 't', &opt.hosts, 0, 0 },
    { "ssh", NULL, 't', &opt.ssh, 0, 0 },
    { "dtrun", NULL, 't', &opt.dtrun, 0, 0 },
    { "x", "x", 'x', NULL, 0, 0 },
    { "log-dir", NULL, 't', &opt.log_dir, 0, 0 },
    { "tee", "t", 'B', &opt.tee, 0, 0 },
    { "bind", NULL, 't', &opt.bind, 0, 0 },
    { "token-file", NULL, 't', &opt.token_file, 0, 0 },
    { "insecure", NULL, 'b', &opt.insecure, 0, 0 },
    { "grace", NULL, 's', &opt.grace, 0, 0 },
    { "join-timeout", NULL, 's', &opt.join_timeout, 0, 0 },
    { "rdzv-id", NULL, 't', &opt.run_id, 0, 0 },
    { "job", NULL, 't', &opt.run_id, 0, 0 },
    { "agent", NULL, 'b', &opt.agent, 0, 0 },
    { "no-python", NULL, '-', NULL, 0, 0 },
    { "rdzv-backend", NULL, '0', NULL, 0, 0 },
    { "start-method", NULL, '0', NULL, 0, 0 },
    { "monitor-interval", NULL, '0', NULL, 0, 0 },
    { "role", NULL, '0', NULL, 0, 0 },
};
enum { OPTIONS = sizeof options / sizeof *options };

static int cores(void) /* number of CPU cores that this process may use */
{
    unsigned long mask[128] = { 0 };
    long          len = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask), n = 0;
    for (long i = 0; i < len / (long)sizeof mask[0]; i++) n += __builtin_popcountl(mask[i]);
    if (n <= 0) n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (int)n;
}
static int number(const char *name, const char *s, int low, int high, const char *or_else)
{
    int64_t v = 0;
    bool    ok = *s != 0;
    for (const char *p = s; ok && *p; p++) {
        ok = *p >= '0' && *p <= '9' && v <= INT_MAX;
        if (ok) v = v * 10 + (*p - '0');
    }
    if (!ok || v < low || v > high)
        fail(2, "%s is '%.80s', expected a number from %d to %d%s", name, s, low, high, or_else);
    return (int)v;
}
static void option_set(const option *o, const char *name, const char *s)
{
    char  *end, *colon, *low;
    double v;
    switch (o->kind) {
    case 'b': *(bool *)o->to = true; break;
    case 'B': *(bool *)o->to = strcmp(s, "0") != 0; break;
    case 't':
    case 'c':
        if (!*s) fail(2, "%s is empty", name);
        *(const char **)o->to = s;
        break;
    case 'i': *(int *)o->to = number(name, s, o->low, o->high, ""); break;
    case 'n':
        if (strcmp(s, "auto") == 0 || strcmp(s, "cpu") == 0) *(int *)o->to = cores();
        else *(int *)o->to = number(name, s, o->low, o->high, ", auto or cpu");
        break;
    case 'N':
        colon = strchr(low = strdup(s), ':'); /* MIN:MAX, as in torchrun */
        if (colon) *colon = 0;
        *(int *)o->to = number(name, low, o->low, o->high, "");
        if (colon && number(name, colon + 1, o->low, o->high, "") != *(int *)o->to)
            fail(2, "%s is '%.80s': expected one number; for a job that grows and shrinks use --min, --max and --hosts-file", name,
                 s);
        free(low);
        break;
    case 's':
        v = strtod(s, &end);
        if (!*s || *end || !(v >= 0 && v <= 1e6)) fail(2, "%s is '%.80s', expected seconds from 0 to 1000000", name, s);
        *(double *)o->to = v;
        break;
    case 'x':
        if (opt.nforward == (int)(sizeof opt.forward / sizeof *opt.forward)) fail(2, "-x is given more than 64 times");
        if (!*s || *s == '=') fail(2, "%s is '%.80s', expected NAME or NAME=VALUE", name, s);
        opt.forward[opt.nforward++] = s;
        if (strchr(s, '=')) putenv(strdup(s));
        break;
    case 'E':
        opt.master_addr = strdup(s);
        colon = strrchr((char *)(uintptr_t)opt.master_addr, ':');
        if (colon && colon[1]) opt.master_port = number(name, colon + 1, 0, 65535, " behind the colon");
        if (colon) *colon = 0;
        break;
    case '0':
    case '-': break; /* ignored */
    default: fail(1, "internal error: option %s has kind %d", name, o->kind);
    }
}
static const char *name_of(const char *arg, char *buf, size_t nbytes) /* up to '=', with - for _ as in the table */
{
    size_t n = 0;
    for (; arg[n] && arg[n] != '=' && n + 1 < nbytes; n++) buf[n] = arg[n] == '_' ? '-' : arg[n];
    buf[n] = 0;
    return buf;
}
static void options_from_env(void) /* torchrun's PET_ names */
{
    for (int i = 0; i < OPTIONS; i++) {
        char name[48] = "PET_";
        for (size_t k = 0; options[i].name[k] && k < 40; k++) {
            char c = options[i].name[k];
            name[4 + k] = (char)(c == '-' ? '_' : c >= 'a' && c <= 'z' ? c - 32 : c);
            name[5 + k] = 0;
        }
        const char *s = getenv(name);
        if (!s || !*s || strchr("0-xEc", options[i].kind) || options[i].to == &opt.agent) continue;
        if (options[i].kind == 'b' && strcmp(s, "0") == 0) continue;
        option_set(&options[i], name, s);
    }
}
static void options_read(int argc, char **argv)
{
    char name[64], shown[72];
    int  i = 1;
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        const char *a = argv[i], *value = NULL;
        bool        is_long = a[1] == '-';
        if (strcmp(a, "--") == 0) {
            i++;
            break;
        }
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
        if (strcmp(a, "--version") == 0) {
            puts("dtrun " DT_VERSION);
            exit(0);
        }
        const option *o = NULL;
        if (is_long) {
            name_of(a + 2, name, sizeof name);
            value = strchr(a, '=');
            if (value) value++;
        } else {
            snprintf(name, sizeof name, "%c", a[1]);
            if (a[2]) value = a + 2 + (a[2] == '=');
        }
        for (int k = 0; k < OPTIONS && !o; k++)
            if (is_long ? strcmp(options[k].name, name) == 0 && strcmp(name, "x") != 0
                        : options[k].letter && strcmp(options[k].letter, name) == 0)
                o = &options[k];
        if (!o && (strcmp(a, "-m") == 0 || strcmp(a, "--module") == 0))
            fail(2, "%s runs a Python module, which dtrun does not; write: dtrun ... python3 -m NAME", a);
        if (!o) fail(2, "there is no option '%.80s'; dtrun --help lists the options", a);
        snprintf(shown, sizeof shown, "%s%s", is_long ? "--" : "-", name);
        if (o->kind == 'b' || o->kind == '-') {
            if (value) fail(2, "%s takes no value, found '%.80s'", shown, a);
        } else if (!value) {
            if (++i == argc) fail(2, "%s needs a value; dtrun --help lists the options", shown);
            value = argv[i];
        }
        option_set(o, shown, value);
    }
    opt.argv = argv + i;
}
static void elastic_check(void)
{
    const char *with = opt.hosts_file ? "--hosts-file" : opt.min ? "--min" : "--max";
    if (opt.min && opt.max && opt.min > opt.max) fail(2, "--min is %d and --max is %d, expected at most --max for --min", opt.min, opt.max);
    if (opt.hosts && opt.hosts_file) fail(2, "--hosts and --hosts-file: both name the machines, leave one of them out");
    if (opt.nnodes > 1 || opt.node_rank > 0)
        fail(2, "%s and --nnodes: machines that are started by hand cannot be replaced; use --hosts or --hosts-file with %s", with, with);
    if (opt.standalone && opt.hosts_file) fail(2, "--standalone and --hosts-file: standalone is one machine, leave one of them out");
    if (opt.servers) fail(2, "%s and --servers: ranks that only serve cannot be replaced, leave one of them out", with);
    if (!opt.min) opt.min = 1;
    if (opt.wait < 0) opt.wait = 600;
}
static void options_check(void)
{
    static const char *const alone = "leave one of them out";
    if (opt.add || opt.remove) {
        if (opt.add && opt.remove) fail(2, "--add and --remove: one at a time, %s", alone);
        if (opt.argv[0]) fail(2, "%s asks a job that runs already, and takes no program; found '%.80s'", opt.add ? "--add" : "--remove", opt.argv[0]);
        return;
    }
    if (!opt.argv[0]) fail(2, "no program to run, expected: dtrun [options] program [arguments]; see dtrun --help");
    if (opt.hosts && (opt.nnodes > 1 || opt.node_rank > 0))
        fail(2, "--hosts and %s: the hosts are the machines, %s", opt.nnodes > 1 ? "--nnodes" : "--node-rank", alone);
    if (opt.standalone && (opt.hosts || opt.nnodes > 1))
        fail(2, "--standalone and %s: standalone is one machine, %s", opt.hosts ? "--hosts" : "--nnodes", alone);
    if (opt.node_rank >= opt.nnodes)
        fail(2, "--node-rank is %d, expected 0 to %d (--nnodes is %d)", opt.node_rank, opt.nnodes - 1, opt.nnodes);
    if (opt.nnodes > 1 && !opt.master_addr)
        fail(2, "--nnodes is %d, but --master-addr is missing: the name or address of machine 0", opt.nnodes);
    if (opt.nnodes > 1 && !opt.token_file && !opt.insecure)
        fail(2,
             "%d machines need a secret that they share: use --token-file FILE on each (machine 0 creates it if it is "
             "missing; copy it, mode 0600, if the machines share no file system), or --hosts, or --insecure on a network "
             "that you trust",
             opt.nnodes);
    opt.elastic = opt.min || opt.max || opt.hosts_file;
    if (opt.elastic) elastic_check();
    else if (opt.wait >= 0) fail(2, "--wait is for elastic jobs, and this is none: set --min or --max too, or leave it out");
    if (opt.max_restarts < 0 && !opt.elastic) opt.max_restarts = 0;
    if (opt.servers > RANKS_MAX - opt.nproc)
        fail(2, "-n is %d and --servers is %d: that is %d ranks on this machine, expected at most %d", opt.nproc, opt.servers,
             opt.nproc + opt.servers, RANKS_MAX);
    opt.nproc += opt.servers; /* from here on: all ranks of this machine */
    if (opt.nnodes > 1 && opt.master_port == 0) opt.master_port = 29500;
    if (opt.tee && !opt.log_dir) opt.tee = false; /* the output goes to the terminal anyway */
}

/* ==================================================================================================== >>output */
typedef struct bytes {
    char  *p;
    size_t n, cap;
} bytes;
typedef struct sink { /* a destination of text; q: text that could not be written yet */
    int    fd;
    int    blocking; /* 0: writes do not block. Else the most bytes that do not block if poll reports POLLOUT */
    bool   socket, watched, gone, colour;
    bytes  q;
    size_t dropped; /* bytes of ranks that found the queue full */
} sink;
typedef struct rank_output { /* the output of a rank */
    bytes line[2];       /* the unfinished line of stdout and of stderr */
    bool  server;
    int   log[2];
    char  tail[TAIL_LINES][TAIL_BYTES];
    int   ntail; /* lines so far */
} rank_output;
/* Kinds of descriptors in epoll; an index distinguishes descriptors of one kind. */
enum {
    EV_SIGNAL = 1,
    EV_REPORT,
    EV_RANK_OUT,
    EV_RANK_END,
    EV_SINK,
    EV_LINK_IN,
    EV_LINK_OUT,
    EV_ACCEPT,
    EV_SHAKE,
    EV_SSH_ERR,
    EV_SSH_END,
    EV_CONTROL, /* somebody connects to the socket of --add and --remove; EV_ASKER: and says something */
    EV_ASKER
};

static sink      out_sink, err_sink;
static rank_output **outputs; /* by rank of the world */
static int       world, epoch;
static int       servers; /* how many ranks of the world are; 0: the job has no roles */
static int       ep = -1;
static bool      reading_paused; /* too much text is queued: the output of ranks is not read at the moment */
static bool      links_paused;   /* the same for the links over ssh, which carry output */
/* s: from SIGKILL to giving up a process; for a stdout that takes nothing. The tests shorten them. */
static double    kill_wait = 5, flush_wait = 2;
static int64_t   flush_until = INT64_MAX; /* ns: when the job is over: text that is not written by then is dropped */

static void *need(void *p)
{
    if (!p) fail(1, "out of memory");
    return p;
}
static void bytes_add(bytes *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->p = (char *)need(realloc(b->p, b->cap));
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}
static void bytes_drop(bytes *b, size_t n) /* from the front */
{
    b->n -= n;
    if (b->n) memmove(b->p, b->p + n, b->n);
}
static bool watch(int fd, int events, int kind, int i)
{
    struct epoll_event e;
    memset(&e, 0, sizeof e);
    e.events = (uint32_t)events;
    e.data.u64 = (uint64_t)kind << 32 | (uint32_t)i;
    return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) == 0;
}
static void unwatch(int fd)
{
    if (fd >= 0) epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL);
}
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Other processes share the file description of stdout and stderr, so it must not become non-blocking. Opening it again
   through /proc gives a description of our own. */
static void sink_open(sink *s, int fd)
{
    struct stat st;
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    char        path[32];
    s->fd = fd;
    s->colour = isatty(fd) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
    if (fstat(fd, &st) != 0) {
        s->gone = true;
        return;
    }
    s->socket = S_ISSOCK(st.st_mode);
    if (!S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode)) return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own >= 0) s->fd = own;
    /* No /proc, or a pipe or terminal of another user. A pipe that is writable takes PIPE_BUF bytes; a terminal becomes
       writable when it holds fewer than 256. */
    else s->blocking = S_ISFIFO(st.st_mode) ? PIPE_BUF : 256;
}
static ssize_t sink_write(const sink *s, const char *p, size_t n)
{
    struct pollfd f;
    if (s->socket) return send(s->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (!s->blocking) return write(s->fd, p, n);
    f.fd = s->fd;
    f.events = POLLOUT;
    f.revents = 0;
    if (poll(&f, 1, 0) <= 0 || !f.revents) return errno = EAGAIN, -1;
    return write(s->fd, p, n < (size_t)s->blocking ? n : (size_t)s->blocking);
}
static void sink_flush(sink *s)
{
    size_t done = 0;
    while (!s->gone && done < s->q.n) {
        ssize_t n = sink_write(s, s->q.p + done, s->q.n - done);
        if (n > 0) done += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && errno == EAGAIN) {
            if (!s->watched) s->watched = watch(s->fd, EPOLLOUT, EV_SINK, s == &err_sink);
            break;
        } else {
            s->gone = true;
            if (s == &out_sink)
                say("stdout is gone (%s): further output of the ranks there is lost; the job continues",
                    strerror(errno));
        }
    }
    if (s->gone) done = s->q.n;
    bytes_drop(&s->q, done);
    if (s->q.n == 0 && s->watched) {
        unwatch(s->fd);
        s->watched = false;
    }
}
static void say(const char *format, ...)
{
    char    text[2048];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    bytes_add(&err_sink.q, "dtrun: ", 7);
    bytes_add(&err_sink.q, text, strlen(text));
    bytes_add(&err_sink.q, "\n", 1);
    sink_flush(&err_sink);
}
static int log_dir = -1; /* the directory of --log-dir */
static int log_open(int rank, int stream)
{
    char        name[64], again[32] = "";
    const char *why = NULL;
    if (epoch) snprintf(again, sizeof again, ".restart%d", epoch);
    snprintf(name, sizeof name, "rank%d%s.%s", rank, again, stream ? "err" : "out");
    int fd = dt__file_create(log_dir, name, O_WRONLY | O_TRUNC, &why);
    if (fd < 0) say("cannot write '%.1000s/%s': %s; the output goes to the terminal", opt.log_dir, name, why);
    return fd;
}
static bool         is_server(int rank);
static rank_output *output_of(int rank)
{
    rank_output *s = outputs[rank];
    if (s) return s;
    s = outputs[rank] = (rank_output *)need(calloc(1, sizeof *s));
    s->server = is_server(rank);
    for (int i = 0; i < 2; i++) s->log[i] = opt.log_dir ? log_open(rank, i) : -1;
    return s;
}
static void output_free(int rank)
{
    rank_output *s = outputs && rank < world ? outputs[rank] : NULL;
    for (int k = 0; s && k < 2; k++) {
        free(s->line[k].p);
        dt__close(&s->log[k]);
    }
    if (!s) return;
    free(s);
    outputs[rank] = NULL;
}
static void outputs_reset(void)
{
    for (int i = 0; outputs && i < world; i++) output_free(i);
}
static void line_done(rank_output *s, int rank, int stream, const char *p, size_t n)
{
    static const int colours[6] = { 36, 32, 33, 35, 34, 31 };
    sink            *to = stream ? &err_sink : &out_sink;
    char            *t = s->tail[s->ntail++ % TAIL_LINES], prefix[48];
    size_t           k = n < TAIL_BYTES - 1 ? n : TAIL_BYTES - 1;
    for (size_t i = 0; i < k; i++) t[i] = (unsigned char)p[i] < 32 && p[i] != '\t' ? ' ' : p[i];
    t[k] = 0;
    if (s->log[stream] >= 0 && !opt.tee) return;
    if (to->q.n + n > HELD_MOST && !to->gone) { /* nobody reads, and the ranks of other machines are being ended */
        to->dropped += n + 1;
        return;
    }
    int         width = snprintf(NULL, 0, "%d", world - 1);
    const char *role = !servers ? "" : s->server ? " server" : " worker";
    if (to->colour) snprintf(prefix, sizeof prefix, "\033[%dm[%*d%s]\033[0m ", colours[rank % 6], width, rank, role);
    else snprintf(prefix, sizeof prefix, "[%*d%s] ", width, rank, role);
    bytes_add(&to->q, prefix, strlen(prefix));
    bytes_add(&to->q, p, n);
    bytes_add(&to->q, "\n", 1);
}
static void output_add(int rank, int stream, const char *p, size_t n)
{
    rank_output *s = output_of(rank);
    for (size_t done = 0; s->log[stream] >= 0 && done < n;) {
        ssize_t k = write(s->log[stream], p + done, n - done);
        if (k > 0) done += (size_t)k;
        else if (errno != EINTR) {
            say("cannot write the log of rank %d: %s; its output goes to the terminal from now on", rank, strerror(errno));
            dt__close(&s->log[stream]);
        }
    }
    while (n > 0) {
        const char *end = (const char *)memchr(p, '\n', n);
        size_t      k = end ? (size_t)(end - p) : n;
        bytes      *line = &s->line[stream];
        if (end && line->n == 0) line_done(s, rank, stream, p, k);
        else {
            bytes_add(line, p, k);
            if (end || line->n >= LINE_MOST) {
                line_done(s, rank, stream, line->p, line->n);
                line->n = 0;
            }
        }
        p += k + (end != NULL);
        n -= k + (end != NULL);
    }
    sink_flush(stream ? &err_sink : &out_sink);
}
static void output_end(int rank) /* shows a last line without newline */
{
    rank_output *s = outputs && rank < world ? outputs[rank] : NULL;
    for (int i = 0; s && i < 2; i++)
        if (s->line[i].n) {
            line_done(s, rank, i, s->line[i].p, s->line[i].n);
            s->line[i].n = 0;
            sink_flush(i ? &err_sink : &out_sink);
        }
}
/* The last lines as one text, each with a newline. */
static void tail_text(int rank, bytes *to)
{
    rank_output *s = outputs ? outputs[rank] : NULL;
    for (int i = !s ? 0 : s->ntail > TAIL_LINES ? s->ntail - TAIL_LINES : 0; s && i < s->ntail; i++) {
        bytes_add(to, s->tail[i % TAIL_LINES], strlen(s->tail[i % TAIL_LINES]));
        bytes_add(to, "\n", 1);
    }
}
/* The owner of a directory can put links and pipes where the logs will be, so it must be this user, or the system (/tmp with
   the sticky bit). A link to the directory may be of this user or of the system. The directory stays open: nobody can
   exchange it later. */
static void make_log_dir(void)
{
    char        path[4096];
    struct stat st, link_st;
    size_t      n = strlen(opt.log_dir);
    if (n >= sizeof path) fail(2, "--log-dir has %zu bytes, expected fewer than %zu", n, sizeof path);
    memcpy(path, opt.log_dir, n + 1);
    while (n > 1 && path[n - 1] == '/') path[--n] = 0; /* else lstat would follow a link */
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0777);
            *p = '/';
        }
    bool fresh = mkdir(path, 0775) == 0;
    if (!fresh && errno != EEXIST) fail(2, "--log-dir is '%.200s': %s", opt.log_dir, strerror(errno));
    if (lstat(path, &link_st) != 0 || (log_dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK)) < 0 ||
        fstat(log_dir, &st) != 0 || faccessat(log_dir, ".", W_OK | X_OK, AT_EACCESS) != 0)
        fail(2, "--log-dir is '%.200s': %s", opt.log_dir, strerror(errno));
    if (fresh) return; /* its owner may be another user on a file system that maps users */
    bool common = st.st_uid == 0 && (st.st_mode & S_ISVTX);
    if (S_ISLNK(link_st.st_mode) && link_st.st_uid != geteuid() && link_st.st_uid != 0)
        fail(2, "--log-dir is '%.200s': it is a symbolic link of another user (uid %u)", opt.log_dir, (unsigned)link_st.st_uid);
    if (st.st_uid != geteuid() && !common)
        fail(2, "--log-dir is '%.200s': it belongs to another user (uid %u); name a directory of your own, dtrun creates it",
             opt.log_dir, (unsigned)st.st_uid);
    if ((st.st_mode & 0002) && !(st.st_mode & S_ISVTX))
        fail(2, "--log-dir is '%.200s': every user may exchange files in it; chmod o-w it", opt.log_dir);
}

/* ==================================================================================================== >>children
   Each child leads a process group and gets SIGKILL when this process dies (PR_SET_PDEATHSIG); it checks that this process
   did not die before that call. Processes that a child starts are in its group. A guard process kills these groups when
   this process ends: it waits for that on a pipe, through which it also learns the groups.
   Ranks of an elastic job outlive the controller for the grace time, so that they can write a checkpoint: when it dies they
   get SIGTERM, and the guard kills what is left of their groups when they have ended or the time is over. */
enum { GUARD_NOW = 0 }; /* instead of a pid: no grace time */
static int      guard_fd = -1, death_signal = SIGKILL;
static double   guard_grace; /* s */
static char     control_path[200]; /* the socket of --add and --remove, which the guard unlinks, too; "": none */
static pid_t    self;
static sigset_t old_mask;
static void (*old_pipe)(int);
static struct rlimit old_files;
static int           null_fd = -1, signal_fd = -1;

static void guard_main(int fd)
{
    pid_t *list = NULL, pid;
    size_t n = 0, cap = 0, left = 0;
    for (;;) {
        ssize_t got = read(fd, &pid, sizeof pid);
        if (got < 0 && errno == EINTR) continue;
        if (got != (ssize_t)sizeof pid) break;
        if (pid == GUARD_NOW) guard_grace = 0;
        else if (pid < 0) {
            for (size_t i = 0; i < n; i++)
                if (list[i] == -pid) list[i--] = list[--n];
        } else {
            if (n == cap) {
                pid_t *more = (pid_t *)realloc(list, (cap = 2 * cap + 64) * sizeof *list);
                if (!more) break;
                list = more;
            }
            list[n++] = pid;
        }
    }
    if (control_path[0]) unlink(control_path);
    int64_t until = dt__comm_now() + dt__ns_of(guard_grace);
    while (n > 0 && dt__comm_now() < until) {
        left = 0;
        for (size_t i = 0; i < n; i++) { /* what a child that has ended leaves behind ends; its number may be used again */
            if (kill(list[i], 0) == 0) list[left++] = list[i];
            else kill(-list[i], SIGKILL);
        }
        n = left;
        if (n > 0) dt__comm_pause(5 * DT__NS_PER_MS);
    }
    for (size_t i = 0; i < n; i++) kill(-list[i], SIGKILL);
    _exit(0);
}
static void guard_start(void)
{
    int   pipe_fds[2];
    pid_t pid;
    if (syscall(SYS_pipe2, pipe_fds, O_CLOEXEC) != 0 || (pid = fork()) < 0)
        fail(1, "cannot start the guard process: %s", strerror(errno));
    if (pid == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        setpgid(0, 0);
        /* close all descriptors of the parent: a reader of its pipes must not wait for the guard */
        dup2(null_fd, 0);
        dup2(null_fd, 1);
        dup2(null_fd, 2);
        dup2(pipe_fds[0], 3);
        long most = sysconf(_SC_OPEN_MAX);
        if (syscall(436 /* close_range */, 4u, ~0u, 0u) != 0)
            for (int i = 4; i < (most > 0 && most < 65536 ? (int)most : 65536); i++) close(i);
        guard_main(3);
    }
    setpgid(pid, pid); /* parent and child both do this: so it is done before anyone can kill the old group */
    close(pipe_fds[0]);
    guard_fd = pipe_fds[1];
}
static void guard_add(pid_t pid)
{
    while (write(guard_fd, &pid, sizeof pid) < 0 && errno == EINTR) {}
}
/* Forks. Returns in the child, too (0), which then sets up its environment and calls child_exec. */
static pid_t child_start(int in, int out, int err)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) {
        if (pid > 0) setpgid(pid, pid); /* parent and child both do this, whichever runs first */
        return pid;
    }
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, death_signal);
    if (getppid() != self) _exit(126);
    guard_add(getpid());
    signal(SIGPIPE, old_pipe);
    sigprocmask(SIG_SETMASK, &old_mask, NULL);
    setrlimit(RLIMIT_NOFILE, &old_files);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    return 0;
}
static void child_exec(char *const *argv) __attribute__((noreturn));
static void child_exec(char *const *argv)
{
    execvp(argv[0], argv);
    int e = errno;
    dprintf(2, "dtrun: cannot run '%s': %s\n", argv[0], strerror(e));
    _exit(e == ENOENT ? 127 : 126);
}
static int child_watch(pid_t pid, int kind, int i) /* a pidfd, or -1: SIGCHLD is used instead */
{
    int fd = -1;
#ifdef SYS_pidfd_open
    fd = (int)syscall(SYS_pidfd_open, pid, 0);
#endif
    if (fd >= 0 && !watch(fd, EPOLLIN, kind, i)) dt__close(&fd);
    return fd;
}
/* Kills a child and its group, if they still run, and waits for the child: 1 s, since a process that waits for a device or
   a dead file system does not end. The guard process kills such a group again. */
static void child_reap(pid_t pid, int *fd)
{
    int     status;
    pid_t   got;
    int64_t until = dt__comm_now() + DT__NS_PER_S;
    kill(-pid, SIGKILL);
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 && dt__comm_now() < until) dt__comm_pause(DT__NS_PER_MS);
    if (got != 0) guard_add(-pid);
    unwatch(*fd);
    dt__close(fd);
}
static void pipe_open(int pipe_fds[2], bool mine_reads) /* a pipe; the end of this process is non-blocking */
{
    if (syscall(SYS_pipe2, pipe_fds, O_CLOEXEC) != 0) fail(1, "cannot create a pipe: %s", strerror(errno));
    fcntl(pipe_fds[mine_reads ? 0 : 1], F_SETFL, O_NONBLOCK);
}
/* 0: the program can be run; else the status that a shell would return. Scripts that execvp passes to a shell count. */
static int program_check(const char *name, char *why, size_t nbytes)
{
    char        path[4096];
    struct stat st;
    const char *dirs = strchr(name, '/') ? NULL : getenv("PATH");
    bool        found = false;
    if (!strchr(name, '/') && !dirs) dirs = "/bin:/usr/bin";
    for (const char *d = dirs ? dirs : ""; d;) {
        const char *end = strchr(d, ':');
        size_t      n = end ? (size_t)(end - d) : strlen(d);
        if (dirs) snprintf(path, sizeof path, "%.*s%s%.3000s", (int)(n < 1000 ? n : 1000), d, n ? "/" : "", name);
        else snprintf(path, sizeof path, "%.4000s", name);
        if (stat(path, &st) == 0) {
            found = true;
            if (S_ISREG(st.st_mode) && access(path, X_OK) == 0) return 0;
        }
        d = end ? end + 1 : NULL;
    }
    if (found) {
        snprintf(why, nbytes, "cannot run '%.500s': it is %s", name,
                 stat(name, &st) == 0 && S_ISDIR(st.st_mode) ? "a directory" : "not executable (chmod +x?)");
        return 126;
    }
    char here[600];
    snprintf(here, sizeof here, "; did you mean ./%.500s?", name);
    snprintf(why, nbytes, "cannot run '%.500s': %s%s", name, dirs ? "it is in no directory of PATH" : "no such file",
             dirs && access(name, X_OK) == 0 ? here : "");
    return 127;
}

/* ==================================================================================================== >>links */
enum {
    F_HELLO = 1, F_JOB, F_START, F_BOUND, F_FAILED, F_STOP, F_OUTPUT, F_EXITED, F_ASK, F_FINISH,
    F_SIGNAL, F_REPORT, F_PING,       /* elastic: a signal to one rank; what a rank reports; the same comes back */
    F_ABOUT, F_ADD, F_REMOVE, F_REPLY /* the socket of --add and --remove */
};
typedef struct link_ { /* connection between agent and controller; in and out may be one socket */
    int   in, out, id, kind; /* kind: of its events */
    bool  watched, gone;
    bytes rx, tx;
} link_;
typedef void (*frame_fn)(link_ *l, int kind, int rank, char *body, size_t n);

static void link_open(link_ *l, int in, int out, int kind, int id)
{
    free(l->rx.p);
    free(l->tx.p);
    memset(l, 0, sizeof *l);
    l->in = in;
    l->out = out;
    l->id = id;
    l->kind = kind;
    watch(in, EPOLLIN, kind, id);
}
static void link_close(link_ *l)
{
    unwatch(l->in);
    if (l->out != l->in) {
        unwatch(l->out);
        dt__close(&l->out);
    }
    dt__close(&l->in);
    l->out = -1;
    l->gone = true;
    l->watched = false;
    l->rx.n = l->tx.n = 0;
}
static void link_events(link_ *l, bool out) /* a socket is registered in epoll once, for both directions */
{
    struct epoll_event e;
    if (out == l->watched || l->gone) return;
    l->watched = out;
    if (l->in != l->out) {
        if (out) watch(l->out, EPOLLOUT, EV_LINK_OUT, l->id);
        else unwatch(l->out);
        return;
    }
    memset(&e, 0, sizeof e);
    e.events = out ? (uint32_t)EPOLLIN | (uint32_t)EPOLLOUT : (uint32_t)EPOLLIN;
    e.data.u64 = (uint64_t)l->kind << 32 | (uint32_t)l->id;
    epoll_ctl(ep, EPOLL_CTL_MOD, l->in, &e);
}
static void link_flush(link_ *l)
{
    size_t done = 0;
    while (!l->gone && done < l->tx.n) {
        ssize_t n = write(l->out, l->tx.p + done, l->tx.n - done);
        if (n > 0) done += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else break; /* full, or broken: then reading reports it */
    }
    bytes_drop(&l->tx, done);
    link_events(l, l->tx.n > 0);
}
static void link_send(link_ *l, int kind, int rank, const void *a, size_t na, const void *b, size_t nb)
{
    dt__chead h;
    if (l->gone) return;
    h.magic = DT__CFRAME_MAGIC;
    h.kind = (uint32_t)kind;
    h.nbytes = (uint32_t)(na + nb);
    h.rank = rank;
    bytes_add(&l->tx, &h, sizeof h);
    bytes_add(&l->tx, a, na);
    bytes_add(&l->tx, b, nb);
    link_flush(l);
}
static const char *link_frames(link_ *l, frame_fn fn) /* calls fn for each frame that has arrived; NULL, or what is wrong */
{
    dt__chead h;
    size_t    at = 0;
    while (!l->gone && l->rx.n - at >= sizeof h) {
        memcpy(&h, l->rx.p + at, sizeof h);
        if (h.magic != (uint32_t)DT__CFRAME_MAGIC) return "something other than dtrun answers there";
        if (h.nbytes > FRAME_MOST) return "a frame is too long";
        if (l->rx.n - at - sizeof h < h.nbytes) break;
        fn(l, (int)h.kind, h.rank, l->rx.p + at + sizeof h, h.nbytes);
        at += sizeof h + h.nbytes;
    }
    if (!l->gone) bytes_drop(&l->rx, at);
    return NULL;
}
/* Calls fn for each complete frame. Returns NULL, or why the link ended; "": the other side closed it. fn may close the
   link. */
static const char *link_read(link_ *l, frame_fn fn)
{
    char        buf[CHUNK];
    const char *why;
    for (int turns = 0; turns < 16 && !l->gone; turns++) {
        ssize_t got = read(l->in, buf, sizeof buf);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return NULL;
        if (got < 0) return strerror(errno);
        if (got == 0) return "";
        bytes_add(&l->rx, buf, (size_t)got);
        if ((why = link_frames(l, fn))) return why;
    }
    return NULL;
}
typedef struct hello {
    int32_t nproc, servers;
    char    version[16], host[64];
} hello;
typedef struct start { /* what an agent needs to start its ranks */
    int64_t epoch, max_restarts;
    int32_t world, first, node, nnodes;
    int32_t port; /* on node 0: the port to bind (0: any); on others: where rank 0 listens */
    int32_t servers, first_server; /* of all ranks; how many of them are on the machines before this one */
    int32_t count, room;           /* ranks to start here, numbered from first; ranks that this machine may have */
    int32_t min, max;              /* elastic: ranks; 0: the job is not elastic */
    double  wait, grace;           /* elastic: seconds */
    char    addr[256], run_id[64];
    char    join[DT__ELASTIC_ADDR]; /* elastic: where the group is that they join; "": they are the ranks of the start */
    char    bind[80];
} start;
typedef struct failed { /* the ranks cannot be started */
    int32_t status;
    char    text[1200];
} failed;
typedef struct exited { /* the last lines follow; pid 0: it could not be started, said tells why */
    int32_t how, value; /* 'x' and the exit status, 's' and the signal */
    int32_t stopped;    /* dtrun had sent it a signal */
    int32_t lost;       /* the rank that it reported as lost (DT_REPORT_FD), or -1 */
    int64_t pid, ns;    /* ns: how long it ran */
    char    said[DT__REPORT_TEXT];
} exited;

/* ==================================================================================================== >>agent */
typedef struct proc {
    pid_t   pid; /* elastic: 0 if the place is free */
    int     pidfd, out[2], rank;
    bool    ended, stopped;
    int64_t begun;
    int     lost;
    char    said[DT__REPORT_TEXT];
} proc;
static proc   *procs;
static int     nprocs, first_rank, running, report_fd = -1, tell_fd = -1; /* tell_fd: the other end, for ranks to come */
static uint8_t token[32];
static link_   up; /* link of an agent to its controller; unused in the controller */
static bool    is_agent, over;
static int     exit_status;
static int64_t deadline = INT64_MAX; /* ns: controller: of its state; when the job is over: for closing links and ranks */

static void controller_exited(int rank, const exited *e, const char *tail, size_t n);
static void elastic_report(const dt__elastic_report *r);

static void rank_read(int i, int k)
{
    char    buf[CHUNK];
    ssize_t n = read(procs[i].out[k], buf, sizeof buf);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
        unwatch(procs[i].out[k]);
        dt__close(&procs[i].out[k]);
    } else if (opt.agent) {
        uint8_t stream = (uint8_t)k;
        link_send(&up, F_OUTPUT, procs[i].rank, &stream, 1, buf, (size_t)n);
    } else output_add(procs[i].rank, k, buf, (size_t)n);
}
/* Reads what a rank that has ended left in its pipes. Processes that it started may have the pipes open and write on, so
   reading until a pipe is empty might never end: only the bytes that are in it now are read. */
static void rank_drain(int i)
{
    for (int k = 0; k < 2; k++) {
        int n = 0;
        if (procs[i].out[k] < 0 || ioctl(procs[i].out[k], FIONREAD, &n) != 0) continue;
        for (int64_t left = n; left > 0 && procs[i].out[k] >= 0; left -= CHUNK) rank_read(i, k);
    }
}
/* A report of the size of dt__elastic_report; false: it is invalid. */
static bool report_check(dt__elastic_report *r)
{
    r->address[sizeof r->address - 1] = r->text[sizeof r->text - 1] = 0;
    for (char *p = r->address; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 127) return false; /* it goes into variables */
    for (char *p = r->text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = ' ';
    return r->magic == (uint32_t)DT__ELASTIC_MAGIC && r->kind <= DT__EL_LEFT && r->member >= 0 && r->member <= INT_MAX && r->about >= -1 &&
           r->about <= INT_MAX && r->generation >= 0 && r->step >= -1 && r->members >= 0 && r->members <= RANKS_MAX && r->want >= 0 &&
           r->want <= RANKS_MAX;
}
static void reports_read(void)
{
    union {
        dt__report         plain;
        dt__elastic_report elastic;
        char               room[1024];
    } u;
    while (report_fd >= 0) {
        ssize_t n = recv(report_fd, &u, sizeof u, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return;
        if (opt.elastic) { /* plain reports name ranks by the numbers of the group, which are not those of dtrun */
            if (n != (ssize_t)sizeof u.elastic || !report_check(&u.elastic) || u.elastic.kind == 0) continue;
            if (is_agent) link_send(&up, F_REPORT, (int)u.elastic.member, &u.elastic, sizeof u.elastic, NULL, 0);
            else elastic_report(&u.elastic);
            continue;
        }
        dt__report r = u.plain;
        if (n != (ssize_t)sizeof r || r.magic != (uint32_t)DT__REPORT_MAGIC) continue;
        if (r.rank < first_rank || r.rank >= first_rank + nprocs) continue;
        proc *p = &procs[r.rank - first_rank];
        r.text[sizeof r.text - 1] = 0;
        if (p->said[0]) continue; /* only the first report of a rank names the cause */
        p->lost = r.lost;
        memcpy(p->said, r.text, sizeof p->said);
    }
}
static void proc_free(int i) /* ends what the rank has left behind */
{
    proc *p = &procs[i];
    child_reap(p->pid, &p->pidfd);
    rank_drain(i);
    for (int k = 0; k < 2; k++) {
        unwatch(p->out[k]);
        dt__close(&p->out[k]);
    }
    if (!opt.agent) output_end(p->rank);
}
static void exit_tell(int rank, const exited *e, const char *tail, size_t n)
{
    if (is_agent) link_send(&up, F_EXITED, rank, e, sizeof *e, tail, n);
    else controller_exited(rank, e, tail, n);
}
static void rank_ended(int i)
{
    proc     *p = &procs[i];
    siginfo_t si;
    exited    e;
    bytes     tail = { NULL, 0, 0 };
    memset(&si, 0, sizeof si);
    if (p->ended || p->pid <= 0) return;
    /* it stays a zombie until all ranks have ended, so that its pid and process group are not reused; elastic: until its group is
       killed below */
    if (waitid(P_PID, (id_t)p->pid, &si, WEXITED | WNOWAIT | WNOHANG) != 0 || si.si_pid == 0) return;
    p->ended = true;
    running--;
    reports_read();
    unwatch(p->pidfd);
    dt__close(&p->pidfd);
    rank_drain(i);
    memset(&e, 0, sizeof e);
    e.how = si.si_code == CLD_EXITED ? 'x' : 's';
    e.value = si.si_status;
    e.stopped = p->stopped;
    e.lost = p->lost;
    e.pid = p->pid;
    e.ns = dt__comm_now() - p->begun;
    memcpy(e.said, p->said, sizeof e.said);
    int rank = p->rank;
    if (!opt.agent) {
        output_end(rank);
        tail_text(rank, &tail);
    }
    if (opt.elastic) {
        proc_free(i);
        p->pid = 0;
    }
    exit_tell(rank, &e, tail.p, tail.n);
    free(tail.p);
}
static void agent_clean(void) /* all ranks have ended: kills the processes that they started */
{
    if (nprocs == 0) return;
    for (int i = 0; i < nprocs; i++)
        if (procs[i].pid > 0) proc_free(i);
    nprocs = 0;
    unwatch(report_fd);
    dt__close(&report_fd);
    dt__close(&tell_fd);
}
static void agent_signal(int sig, int rank) /* rank -1: to all */
{
    for (int i = 0; i < nprocs; i++) {
        if (procs[i].ended || (rank >= 0 && procs[i].rank != rank)) continue;
        if (sig == SIGTERM || sig == SIGINT || sig == SIGKILL) procs[i].stopped = true;
        kill(-procs[i].pid, sig);
        if (sig == SIGTERM || sig == SIGINT) kill(-procs[i].pid, SIGCONT); /* so that a stopped process handles the signal */
    }
}
/* The last opt.servers ranks of a machine are servers: so on one machine the workers have the ranks from 0 on. */
static bool is_server_here(int i) { return opt.servers > 0 && i >= opt.nproc - opt.servers; }
static void set_number(const char *name, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, v);
    setenv(name, text, 1);
}
static void role_env(const start *s, int i)
{
    bool server = is_server_here(i);
    int  workers_here = opt.nproc - opt.servers, first_worker = s->first - s->first_server;
    setenv("DT_ROLE", server ? "server" : "worker", 1);
    set_number("DT_SERVERS", s->servers);
    set_number("DT_WORKERS", s->world - s->servers);
    setenv("ROLE_NAME", server ? "server" : "worker", 1);
    set_number("ROLE_RANK", server ? s->first_server + i - workers_here : first_worker + i);
    set_number("ROLE_WORLD_SIZE", server ? s->servers : s->world - s->servers);
}
static void elastic_env(const start *s, int rank)
{
    char text[32];
    snprintf(text, sizeof text, "%d:%d", s->min, s->max);
    setenv("DT_ELASTIC", text, 1);
    set_number("DT_MEMBER", rank);
    snprintf(text, sizeof text, "%g", s->wait);
    setenv("DT_ELASTIC_WAIT", text, 1);
    if (s->join[0]) setenv("DT_ELASTIC_JOIN", s->join, 1);
}
static void rank_env(const start *s, int i, int rank, int port) /* i: its number on this machine */
{
    static const char *const drop[] = { "DT_ADDR", "DT_PORT", "DT_BIND", "DT_TOKEN_FILE", "DT_LISTEN_FD", "DT_REPORT_FD", "DT_ROLE", "DT_SERVERS",
                                        "DT_WORKERS", "DT_ELASTIC", "DT_MEMBER", "DT_ELASTIC_WAIT", "DT_ELASTIC_JOIN", "RANK", "WORLD_SIZE",
                                        "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE" };
    for (size_t k = 0; k < sizeof drop / sizeof *drop; k++) unsetenv(drop[k]);
    if (!s->join[0]) {
        set_number("RANK", rank);
        set_number("WORLD_SIZE", s->world);
        set_number("GROUP_RANK", s->node);
        set_number("GROUP_WORLD_SIZE", s->nnodes);
        set_number("ROLE_RANK", rank);
        set_number("ROLE_WORLD_SIZE", s->world);
    }
    set_number("LOCAL_RANK", i);
    set_number("LOCAL_WORLD_SIZE", s->join[0] ? s->room : s->count);
    setenv("ROLE_NAME", "default", 1);
    if (s->servers) role_env(s, i);
    if (s->max) elastic_env(s, rank);
    setenv("MASTER_ADDR", s->addr, 1);
    set_number("MASTER_PORT", port);
    set_number("DT_RESTART", s->epoch);
    set_number("TORCHELASTIC_RESTART_COUNT", s->epoch);
    set_number("TORCHELASTIC_MAX_RESTARTS", s->max_restarts);
    setenv("TORCHELASTIC_RUN_ID", s->run_id, 1);
    if (opt.bind) setenv("DT_BIND", opt.bind, 1);
    else if (s->bind[0]) setenv("DT_BIND", s->bind, 1);
    if (opt.insecure) setenv("DT_INSECURE", "1", 1);
    int share = s->room > s->count ? s->room : s->count, threads = cores() / share > 0 ? cores() / share : 1;
    if (!getenv("OMP_NUM_THREADS")) set_number("OMP_NUM_THREADS", threads);
    if (!getenv("DT_NUM_THREADS")) set_number("DT_NUM_THREADS", threads);
}
/* The socket of rank 0; negative: failed, see why. It is created again for each start: while nobody listens, dialing fails
   at once. */
static int rendezvous_open(const start *s, int *port, char *why, size_t nbytes)
{
    dt__addr    a[DT__ADDRS];
    char        text[80];
    const char *reason = "", *name = opt.bind ? opt.bind : s->addr;
    int         n = 1, fd = -1;
    int64_t     until = dt__comm_now() + 2 * DT__NS_PER_S;
    if (s->nnodes == 1 && !s->bind[0]) dt__addr_loopback(&a[0], s->port);
    else if ((n = dt__addr_find(name, s->port, a, &reason)) == 0) {
        snprintf(why, nbytes, "the address of machine 0 is '%.200s': %s", name, reason);
        return -1;
    }
    for (;;) {
        for (int i = 0; i < n && fd < 0; i++) fd = dt__listen(&a[i]);
        if (fd >= 0 || errno != EADDRINUSE || s->port == 0 || s->epoch == 0 || dt__comm_now() > until) break;
        dt__comm_pause(10 * DT__NS_PER_MS); /* the ranks of the previous start may still be closing it */
    }
    int e = errno;
    a[0].n = sizeof a[0].u;
    if (fd >= 0 && getsockname(fd, &a[0].u.any, &a[0].n) == 0) {
        *port = dt__addr_port(&a[0]);
        return fd;
    }
    dt__close(&fd);
    snprintf(why, nbytes, "cannot listen at %s: %s%s", dt__addr_text(&a[0], text, sizeof text), strerror(e),
             e == EADDRINUSE      ? "; omit --master-port to use a free port"
             : e == EADDRNOTAVAIL ? "; set --bind to an address of this machine"
                                  : "");
    return -1;
}
static int token_file(void) /* a file in memory, not a pipe: several programs of a script may read it */
{
    int fd = (int)syscall(SYS_memfd_create, "dt-token", 1u /* close-on-exec */);
    if (fd < 0 || write(fd, token, 32) != 32) fail(1, "cannot write the token to a memory file: %s", strerror(errno));
    return fd;
}
/* False (errno): there is no process for it, or no pipe. */
static bool rank_start(const start *s, int i, int rank, int port, int listen_fd, int token_fd)
{
    proc *p = &procs[i];
    int   pipe_fds[2][2];
    memset(p, 0, sizeof *p);
    p->lost = p->pidfd = -1;
    p->rank = rank;
    for (int k = 0; k < 2; k++) {
        pipe_open(pipe_fds[k], true);
        p->out[k] = pipe_fds[k][0];
    }
    bool input = rank == 0 && !opt.agent && !isatty(0) && fcntl(0, F_GETFD) >= 0;
    p->begun = dt__comm_now();
    p->pid = child_start(input ? 0 : null_fd, pipe_fds[0][1], pipe_fds[1][1]);
    if (p->pid == 0) {
        if (s->max) signal(SIGPIPE, SIG_IGN); /* it may write when dtrun is gone, and must come to its checkpoint */
        rank_env(s, i, rank, port);
        set_number("DT_TOKEN_FD", token_fd);
        set_number("DT_REPORT_FD", tell_fd);
        fcntl(token_fd, F_SETFD, 0);
        fcntl(tell_fd, F_SETFD, 0);
        if (listen_fd >= 0) {
            set_number("DT_LISTEN_FD", listen_fd);
            fcntl(listen_fd, F_SETFD, 0);
        }
        child_exec(opt.argv);
    }
    if (p->pid < 0) {
        int e = errno;
        for (int k = 0; k < 2; k++) {
            close(pipe_fds[k][1]);
            dt__close(&p->out[k]);
        }
        p->pid = 0;
        p->ended = true;
        errno = e;
        return false;
    }
    for (int k = 0; k < 2; k++) {
        close(pipe_fds[k][1]);
        if (!reading_paused) watch(p->out[k], EPOLLIN, EV_RANK_OUT, 2 * i + k);
    }
    p->pidfd = child_watch(p->pid, EV_RANK_END, i);
    running++;
    return true;
}
static void world_set(int n) /* n ranks */
{
    outputs = (rank_output **)need(realloc(outputs, (size_t)n * sizeof *outputs));
    for (int i = world; i < n; i++) outputs[i] = NULL;
    world = n;
}
static int proc_place(void) /* a free one; procs has room for one more */
{
    for (int i = 0; i < nprocs; i++)
        if (procs[i].pid == 0) return i;
    return nprocs;
}
static void tell_open(void)
{
    int tell[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, tell) != 0)
        fail(1, "cannot create a socket pair: %s", strerror(errno));
    report_fd = tell[0];
    tell_fd = tell[1];
    watch(report_fd, EPOLLIN, EV_REPORT, 0);
}
static int ranks_check(const start *s, int live, char *why, size_t nbytes) /* 0, or an exit status and why */
{
    int  status = program_check(opt.argv[0], why, nbytes);
    char what[64];
    if (status) return status;
    snprintf(what, sizeof what, "a job of %d ranks on this machine", live + s->count);
    if (dt__fds_ensure("cannot start the ranks", what, 3 * (live + s->count) + 16) >= 0) return 0; /* two pipes and a pidfd for each */
    snprintf(why, nbytes, "%s", dt__said.text);
    return 1;
}
/* Starts the ranks of this machine. 0 and the port of rank 0; else an exit status, and why. */
static int agent_start(const start *s, int *port, char *why, size_t nbytes)
{
    int status = ranks_check(s, 0, why, nbytes), listen_fd = -1;
    *port = s->port;
    if (status) return status;
    if (s->first == 0 && (listen_fd = rendezvous_open(s, port, why, nbytes)) < 0) return 1;
    epoch = (int)s->epoch;
    outputs_reset();
    servers = s->servers;
    if (world != s->world) world_set(s->world);
    procs = (proc *)need(realloc(procs, (size_t)s->count * sizeof *procs));
    first_rank = s->first;
    tell_open();
    int token_fd = token_file();
    for (nprocs = 0; nprocs < s->count; nprocs++)
        if (!rank_start(s, nprocs, s->first + nprocs, *port, nprocs == 0 ? listen_fd : -1, token_fd))
            fail(1, "cannot start rank %d: %s", s->first + nprocs, strerror(errno));
    dt__close(&tell_fd);
    close(token_fd);
    dt__close(&listen_fd);
    return 0;
}
/* The same for ranks of an elastic job, which come and go: beside those that run. A rank that cannot be started has ended: its
   end says why. Returns false if rank 0 has no port. */
static bool agent_add(const start *s, int *port)
{
    char   why[1200];
    exited e;
    int    listen_fd = -1, done = 0, status = ranks_check(s, running, why, sizeof why);
    *port = s->port;
    if (!s->join[0]) { /* the ranks of the start */
        if (running == 0) agent_clean();
        epoch = (int)s->epoch;
    }
    if (!status && s->first == 0 && !s->join[0] && (listen_fd = rendezvous_open(s, port, why, sizeof why)) < 0) status = 1;
    opt.elastic = true;
    if (!opt.agent && world < s->first + s->count) world_set(s->first + s->count);
    if (report_fd < 0) tell_open();
    int token_fd = token_file();
    for (; done < s->count && !status; done++) {
        int i = proc_place();
        if (i == nprocs) procs = (proc *)need(realloc(procs, (size_t)(nprocs + 1) * sizeof *procs));
        if (rank_start(s, i, s->first + done, *port, done == 0 ? listen_fd : -1, token_fd)) nprocs += i == nprocs;
        else {
            snprintf(why, sizeof why, "cannot start rank %d: %s", s->first + done, strerror(errno));
            status = 1;
            break;
        }
    }
    close(token_fd);
    bool bound = listen_fd >= 0;
    dt__close(&listen_fd);
    memset(&e, 0, sizeof e);
    e.how = 'x';
    e.value = status;
    e.lost = -1;
    snprintf(e.said, sizeof e.said, "%.479s", why);
    for (; done < s->count; done++) exit_tell(s->first + done, &e, NULL, 0);
    return bound;
}

/* ---- an agent whose controller is on another machine */
static void agent_lost(const char *why)
{
    bool was_over = over;
    over = true;
    deadline = dt__comm_now() + dt__ns_of(opt.elastic ? opt.grace : kill_wait);
    link_close(&up);
    if (!was_over) {
        say("machine 0's dtrun is gone (%s): the ranks here %s", *why ? why : "it closed the connection",
            opt.elastic ? "finish their step and end" : "are ended");
        exit_status = 1;
    }
    if (opt.elastic) { /* they notice that nobody reads their reports */
        unwatch(report_fd);
        dt__close(&report_fd);
        dt__close(&tell_fd);
    } else agent_signal(SIGKILL, -1);
}
/* The first frame of machine 0 over ssh: the token, then strings: address to listen at, directory, variables, arguments. */
typedef struct job {
    uint8_t token[32];
    int32_t nproc, servers, nenv, argc, insecure;
} job;
static bool job_check(const char *body, size_t n, job *j) /* n bytes behind the head: 2 + nenv + argc strings, no more */
{
    size_t strings = 0;
    if (n < sizeof *j || body[n - 1] != 0) return false;
    memcpy(j, body, sizeof *j);
    for (size_t i = sizeof *j; i < n; i++) strings += body[i] == 0;
    return j->nproc >= 1 && j->nproc <= RANKS_MAX && j->servers >= 0 && j->servers < j->nproc && j->nenv >= 0 && j->argc >= 1 && j->nenv <= FRAME_MOST &&
           j->argc <= FRAME_MOST && strings == 2 + (size_t)j->nenv + (size_t)j->argc;
}
static bool job_read(char *body, size_t n)
{
    job    j;
    size_t at = sizeof j;
    if (!job_check(body, n, &j)) return false;
    size_t strings = 2 + (size_t)j.nenv + (size_t)j.argc;
    char *text = (char *)need(malloc(n)); /* never freed: argv points into it */
    memcpy(text, body, n);
    memcpy(token, j.token, 32);
    opt.nproc = j.nproc;
    opt.servers = j.servers;
    opt.insecure = j.insecure != 0;
    opt.argv = (char **)need(calloc((size_t)j.argc + 1, sizeof *opt.argv));
    for (size_t i = 0; i < strings; i++) {
        char *s = text + at;
        at += strlen(s) + 1;
        if (i == 0) opt.bind = *s ? s : NULL;
        else if (i == 1) {
            if (chdir(s) != 0) {
                failed f;
                memset(&f, 0, sizeof f);
                f.status = 1;
                snprintf(f.text, sizeof f.text, "cannot change the directory to '%.500s': %s", s, strerror(errno));
                link_send(&up, F_FAILED, 0, &f, sizeof f, NULL, 0);
            }
        } else if (i < 2 + (size_t)j.nenv) {
            if (strchr(s, '=')) putenv(s);
        } else opt.argv[i - 2 - (size_t)j.nenv] = s;
    }
    return true;
}
static bool start_check(start *s)
{
    s->addr[sizeof s->addr - 1] = s->run_id[sizeof s->run_id - 1] = s->join[sizeof s->join - 1] = s->bind[sizeof s->bind - 1] = 0;
    if (s->epoch < 0 || s->epoch > INT_MAX || s->first < 0 || s->count < 1 || s->count > RANKS_MAX) return false;
    if (s->max)
        return s->min >= 1 && s->max >= s->min && s->max <= RANKS_MAX && s->room >= 1 && s->room <= RANKS_MAX && s->servers == 0 &&
               s->first <= INT_MAX - s->count && (s->join[0] || (running == 0 && s->world >= s->first + s->count)) && s->wait >= 0 &&
               s->wait <= 1e6 && s->grace >= 0 && s->grace <= 1e6;
    return running == 0 && s->count == opt.nproc && s->world >= 1 && s->first <= s->world - s->count && !s->join[0] && s->servers >= 0 &&
           s->servers < s->world && s->first_server >= 0 && s->first_server <= s->first && s->first_server <= s->servers - opt.servers;
}
static void agent_frame(link_ *l, int kind, int rank, char *body, size_t n)
{
    start   s;
    failed  f;
    int32_t v;
    if (kind == F_JOB && opt.agent && !opt.argv) {
        if (!job_read(body, n)) agent_lost("it sent an invalid job frame");
    } else if (kind == F_START && n == sizeof s && opt.argv) {
        memcpy(&s, body, sizeof s);
        if (!start_check(&s)) {
            agent_lost("it sent an invalid start frame");
            return;
        }
        int port;
        if (s.max) {
            opt.elastic = true;
            opt.grace = s.grace;
            if (!agent_add(&s, &port)) return;
        } else {
            agent_clean();
            memset(&f, 0, sizeof f);
            if ((f.status = agent_start(&s, &port, f.text, sizeof f.text)) != 0) {
                link_send(l, F_FAILED, 0, &f, sizeof f, NULL, 0);
                return;
            }
        }
        v = port;
        if (s.first == 0) link_send(l, F_BOUND, 0, &v, sizeof v, NULL, 0);
    } else if (kind == F_PING && n == 0) {
        link_send(l, F_PING, 0, NULL, 0, NULL, 0);
    } else if (kind == F_SIGNAL && n == sizeof v && opt.elastic) {
        memcpy(&v, body, sizeof v);
        if (v > 0 && v < 65 && rank >= 0) agent_signal(v, rank);
    } else if (kind == F_STOP && n == sizeof v) {
        memcpy(&v, body, sizeof v);
        if (v > 0 && v < 65) agent_signal(v, -1);
    } else if (kind == F_FINISH && n == sizeof v) {
        memcpy(&v, body, sizeof v);
        exit_status = v;
        over = true;
        deadline = dt__comm_now() + dt__ns_of(kill_wait);
        agent_signal(SIGKILL, -1);
        link_close(l);
    } else agent_lost("it sent an unexpected frame");
}

/* ==================================================================================================== >>controller */
enum {
    GATHERING = 0, /* waits for the agents of all machines */
    RUNNING,
    SETTLING,      /* a rank has failed: waits 1 s for the rank that failed first to be seen */
    STOPPING,      /* the ranks got a signal and have until the deadline to end */
    KILLING        /* the ranks got SIGKILL; a machine that has not reported their end by the deadline is given up */
};
typedef struct node {
    bool    mine; /* this process is its agent */
    bool    joined, lost;
    int     nproc, servers, first, alive, asked; /* asked: number of signals that the user sent to its dtrun */
    link_   link;
    char    host[80];
    pid_t   ssh; /* 0: not started by ssh, or ssh has ended */
    int     ssh_fd, err_fd;
    int64_t until; /* ns: when ssh must have ended; 0: no deadline */
    bytes   err;
    /* of an elastic job */
    bool    removed, refused, quiet, added; /* added: by --add, and has not been there yet; removed: it is no machine of the job, or leaves it; quiet: its failures are known */
    int     room, ended;             /* ranks that it may have; how many have ended with status 0, and are not replaced */
    int     asker;                   /* who waits for its answer; -1: nobody */
    int64_t not_before, retry_at;    /* ns: of the next rank there; of the next ssh, 0: none */
    int64_t pinged, heard;           /* ns: when its dtrun was asked to answer; when it last said anything */
    bool    awaited;                 /* it has not answered yet */
    double  retry_wait;              /* s */
} node;
typedef struct ending {
    bool   ended;
    int    order; /* the ranks ended in this order, from 1 */
    exited e;
    char  *tail;
} ending;
static node   *nodes;
static int     nnodes, state, norder, blamed = -1, user_signal, asked_here;
static ending *ends; /* by rank */
static start   plan;
static bool    fatal; /* a restart would not help */
static int     fatal_status;

static void finish(int status);
static void elastic_exited(int rank, const exited *e, const char *tail, size_t n);
static void elastic_look(void);
static void elastic_over(void);
static void elastic_node_lost(int i, const char *why);

static bool        bad_end(const exited *e) { return e->how != 'x' || e->value != 0; }
static int         end_status(const exited *e) { return e->how == 'x' ? e->value : 128 + e->value; }
static const char *signal_name(int sig)
{
    static const struct {
        int         sig;
        const char *name;
    } names[] = { { SIGHUP, "SIGHUP" },   { SIGINT, "SIGINT" },   { SIGQUIT, "SIGQUIT" }, { SIGILL, "SIGILL" },
                  { SIGTRAP, "SIGTRAP" }, { SIGABRT, "SIGABRT" }, { SIGBUS, "SIGBUS" },   { SIGFPE, "SIGFPE" },
                  { SIGKILL, "SIGKILL" }, { SIGUSR1, "SIGUSR1" }, { SIGSEGV, "SIGSEGV" }, { SIGUSR2, "SIGUSR2" },
                  { SIGPIPE, "SIGPIPE" }, { SIGALRM, "SIGALRM" }, { SIGTERM, "SIGTERM" }, { SIGXCPU, "SIGXCPU" },
                  { SIGSYS, "SIGSYS" } };
    static char text[24];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].sig == sig) return names[i].name;
    snprintf(text, sizeof text, "signal %d", sig);
    return text;
}
static const char *end_text(const exited *e, char *buf, size_t nbytes)
{
    if (e->how == 'x') snprintf(buf, nbytes, "exit code %d", e->value);
    else
        snprintf(buf, nbytes, "killed by %s%s", signal_name(e->value),
                 e->value == SIGKILL && !e->stopped ? ", which dtrun did not send (out of memory?)" : "");
    return buf;
}
static void signal_all(int sig)
{
    int32_t v = sig;
    for (int i = 0; i < nnodes; i++) {
        if (nodes[i].mine) agent_signal(sig, -1);
        else link_send(&nodes[i].link, F_STOP, 0, &v, sizeof v, NULL, 0);
    }
}
static void stop(int sig, double grace)
{
    if (state >= STOPPING) return;
    state = STOPPING;
    deadline = dt__comm_now() + dt__ns_of(opt.grace >= 0 ? opt.grace : grace);
    signal_all(sig);
}
static void kill_all(void)
{
    if (state != KILLING) deadline = dt__comm_now() + dt__ns_of(kill_wait);
    state = KILLING;
    signal_all(SIGKILL);
}
/* Finds the rank that failed first: the first one that ended with an error, unless it reported that it had lost another
   rank, and that one ended with an error, too. The end of that rank may arrive later: it is waited for 1 s. */
static void find_first_failure(bool now)
{
    int r = -1;
    for (int i = 0; i < world; i++)
        if (ends[i].ended && bad_end(&ends[i].e) && (r < 0 || ends[i].order < ends[r].order)) r = i;
    if (r < 0 || blamed >= 0) return;
    int first = r;
    for (int hops = 0; hops < world; hops++) {
        int lost = ends[r].e.lost;
        if (lost < 0 || lost >= world || lost == r || lost == first) break; /* the first one's end is what the others saw */
        if (!ends[lost].ended && !now) {
            if (state != SETTLING) deadline = dt__comm_now() + DT__NS_PER_S;
            state = SETTLING;
            return;
        }
        if (!ends[lost].ended || !bad_end(&ends[lost].e)) break;
        r = lost;
    }
    blamed = r;
    stop(SIGTERM, 5);
}
static void controller_exited(int rank, const exited *e, const char *tail, size_t n)
{
    if (opt.elastic) {
        elastic_exited(rank, e, tail, n);
        return;
    }
    ending *d = &ends[rank];
    if (d->ended) return;
    d->ended = true;
    d->order = ++norder;
    d->e = *e;
    d->e.said[sizeof d->e.said - 1] = 0;
    d->tail = (char *)need(calloc(n + 1, 1));
    if (n) memcpy(d->tail, tail, n);
    for (int i = 0; i < nnodes; i++)
        if (rank >= nodes[i].first && rank < nodes[i].first + nodes[i].nproc && nodes[i].alive > 0) nodes[i].alive--;
    if (bad_end(e) && state < STOPPING) find_first_failure(false);
    else if (state == SETTLING) find_first_failure(false);
}
static void give_up(int status) /* after an error that a restart would not help; the message is already printed */
{
    if (fatal) return;
    fatal = true;
    fatal_status = status;
    if (state == GATHERING) finish(status);
    else stop(SIGTERM, 5);
}
static const char *where_text(int rank, char *buf, size_t nbytes)
{
    for (int i = 0; i < nnodes; i++)
        if (nnodes > 1 && rank >= nodes[i].first && rank < nodes[i].first + nodes[i].nproc) {
            snprintf(buf, nbytes, ", machine %d (%s)", i, nodes[i].host);
            return buf;
        }
    return "";
}
static bool is_server(int rank)
{
    if (is_agent) return is_server_here(rank - first_rank);
    for (int i = 0; servers && i < nnodes; i++)
        if (rank < nodes[i].first + nodes[i].nproc) return rank >= nodes[i].first + nodes[i].nproc - nodes[i].servers;
    return false;
}
static void blame_say(void)
{
    char    text[160], place[160];
    ending *d = &ends[blamed];
    bytes   tail = { NULL, 0, 0 };
    tail_text(blamed, &tail);
    bytes_add(&tail, "", 1);
    say("rank %d%s failed first: %s, after %.3g s (pid %" PRId64 "%s)", blamed,
        !servers ? "" : is_server(blamed) ? " (server)" : " (worker)", end_text(&d->e, text, sizeof text),
        dt__seconds_of(d->e.ns), d->e.pid, where_text(blamed, place, sizeof place));
    if (d->e.lost >= 0 && d->e.lost != blamed && d->e.lost < world)
        say("  it had lost rank %d, which %s: %s", d->e.lost,
            !ends[d->e.lost].ended || ends[d->e.lost].e.stopped ? "was still running" : "had ended", d->e.said);
    const char *p = d->tail[0] ? d->tail : tail.p;
    say("  its last lines:%s", *p ? "" : " none");
    for (const char *end; *p && (end = strchr(p, '\n')); p = end + 1) say("    | %.*s", (int)(end - p), p);
    free(tail.p);
    int told = 0;
    for (int i = 0; i < world; i++) {
        const exited *e = &ends[i].e;
        if (i == blamed || !ends[i].ended || !bad_end(e) || e->stopped) continue;
        if (told++ == 8) say("  and others");
        if (told > 8) continue;
        if (e->lost >= 0 && e->lost != i)
            say("  rank %d after it: %s; it had lost rank %d", i, end_text(e, text, sizeof text), e->lost);
        else say("  rank %d after it: %s", i, end_text(e, text, sizeof text));
    }
}
static void node_start(int i)
{
    failed f;
    int    port;
    plan.first = nodes[i].first;
    plan.first_server = 0;
    for (int k = 0; k < i; k++) plan.first_server += nodes[k].servers;
    plan.node = i;
    plan.count = plan.room = nodes[i].nproc;
    nodes[i].alive = nodes[i].nproc;
    if (!nodes[i].mine) {
        link_send(&nodes[i].link, F_START, 0, &plan, sizeof plan, NULL, 0);
        return;
    }
    f.status = agent_start(&plan, &port, f.text, sizeof f.text);
    if (f.status) {
        nodes[i].alive = 0;
        say("%s", f.text);
        give_up(f.status);
    } else if (i == 0) plan.port = port;
}
static void begin(void)
{
    int total = 0;
    plan.servers = 0;
    for (int i = 0; i < nnodes; i++) {
        nodes[i].first = total;
        if (nodes[i].nproc > DT__WORLD_MAX - total) {
            say("the machines together have more than %d ranks, the limit", DT__WORLD_MAX);
            give_up(2);
            return;
        }
        total += nodes[i].nproc;
        plan.servers += nodes[i].servers;
    }
    servers = plan.servers;
    for (int i = 0; ends && i < world; i++) free(ends[i].tail);
    free(ends);
    ends = (ending *)need(calloc((size_t)total, sizeof *ends));
    if (world != total) {
        outputs = (rank_output **)need(calloc((size_t)total, sizeof *outputs));
        world = total;
    }
    if (!nodes[0].mine) outputs_reset();
    plan.world = total;
    plan.epoch = epoch;
    plan.port = nodes[0].mine && nnodes > 1 ? 0 : opt.master_port; /* 0: dtrun itself listens at --master-port */
    state = RUNNING;
    blamed = -1;
    norder = 0;
    deadline = INT64_MAX;
    node_start(0);
    if (nodes[0].mine && !fatal)
        for (int i = 1; i < nnodes; i++) node_start(i);
}
static void all_ended(void)
{
    if (state == SETTLING) find_first_failure(true);
    if (nodes[0].mine) agent_clean();
    int status = blamed < 0 ? 0 : end_status(&ends[blamed].e);
    if (blamed >= 0) blame_say();
    if (user_signal) finish(128 + user_signal);
    else if (fatal) finish(blamed >= 0 ? status : fatal_status);
    else if (blamed < 0) finish(0);
    else {
        if (epoch < opt.max_restarts) {
            epoch++;
            say("restarting all ranks (restart %d of %d)", epoch, opt.max_restarts);
            begin();
        } else {
            if (opt.max_restarts) say("giving up after %d restart%s", opt.max_restarts, opt.max_restarts > 1 ? "s" : "");
            finish(status);
        }
    }
}
static void controller_look(void) /* called after each batch of events */
{
    if (over) return;
    if (opt.elastic) elastic_look();
    else if (state == GATHERING) {
        for (int i = 0; i < nnodes; i++)
            if (!nodes[i].joined) return;
        begin();
    }
    int alive = 0;
    for (int i = 0; i < nnodes; i++) alive += nodes[i].alive;
    if (alive > 0 || over || state == GATHERING) return;
    if (opt.elastic) elastic_over();
    else all_ended();
}
static void node_lost(int i, const char *why);
static void kill_failed(void) /* gives up the ranks that SIGKILL did not end */
{
    for (int i = 0; i < nnodes; i++) {
        if (nodes[i].alive == 0) continue;
        if (!nodes[i].mine) {
            node_lost(i, "its dtrun does not answer after SIGKILL: it is stopped, or the machine hangs; ranks may be left "
                         "there");
            continue;
        }
        for (int k = 0; k < nprocs; k++)
            if (!procs[k].ended)
                say("rank %d (pid %d) does not end after SIGKILL: it waits for a device or a file system, and is left behind",
                    first_rank + k, (int)procs[k].pid);
        nodes[i].alive = 0;
        give_up(1);
    }
}
static void controller_tick(void) /* the deadline has passed */
{
    deadline = INT64_MAX;
    if (state == GATHERING && opt.elastic) return;
    if (state == GATHERING) {
        for (int i = 0; i < nnodes; i++)
            if (!nodes[i].joined)
                say("machine %d %s%s%sdid not join within %g s", i, nodes[i].host[0] ? "(" : "", nodes[i].host,
                    nodes[i].host[0] ? ") " : "", opt.join_timeout);
        give_up(1);
    } else if (state == SETTLING) find_first_failure(true);
    else if (state == STOPPING) {
        say("killing the ranks that did not end");
        kill_all();
    } else if (state == KILLING) kill_failed();
}
/* A second signal on the same machine ends the ranks at once. Signals are counted by machine, since job managers send one
   to each. */
static void user_stop(int sig, int *asked)
{
    ++*asked;
    if (!user_signal) {
        user_signal = sig;
        if (state == GATHERING) finish(128 + sig);
        else {
            int    pass = sig == SIGINT ? SIGINT : SIGTERM;
            double grace = opt.grace >= 0 ? opt.grace : 30;
            say("%s: the ranks get %s and have %g s to end; a second signal ends them at once", signal_name(sig),
                signal_name(pass), grace);
            stop(pass, grace);
        }
    } else if (*asked > 1) kill_all();
}

/* ==================================================================================================== >>joining */
static bool member_is_on(int rank, int node_i);
static void elastic_node_joined(int i);
static void elastic_bound(int i);
/* ---- frames of the agents */
static void node_lost(int i, const char *why)
{
    node *n = &nodes[i];
    if (n->lost) return;
    n->lost = true;
    n->alive = 0;
    link_close(&n->link);
    if (n->ssh > 0) kill(-n->ssh, SIGKILL);
    if (over) return;
    if (opt.elastic) {
        elastic_node_lost(i, *why ? why : n->joined ? "its dtrun is gone" : "dtrun did not start there");
        return;
    }
    say("machine %d (%s): %s", i, n->host, *why ? why : n->joined ? "its dtrun is gone" : "dtrun did not start there");
    give_up(1);
}
static void node_frame(link_ *l, int kind, int rank, char *body, size_t nbytes)
{
    node   *n = &nodes[l->id];
    hello   h;
    exited  e;
    failed  f;
    int32_t v;
    bool    own = opt.elastic ? member_is_on(rank, l->id) : ends && rank >= n->first && rank < n->first + n->nproc;
    if (kind == F_HELLO && nbytes == sizeof h && !n->joined) {
        memcpy(&h, body, sizeof h);
        h.version[sizeof h.version - 1] = h.host[sizeof h.host - 1] = 0;
        if (!n->host[0]) snprintf(n->host, sizeof n->host, "%s", h.host);
        if (strcmp(h.version, DT_VERSION) != 0 || (!n->ssh && (h.nproc < 1 || h.nproc > RANKS_MAX || h.servers < 0 || h.servers >= h.nproc))) {
            char why[200];
            snprintf(why, sizeof why, "machine %d (%s) has dtrun %s, this machine has %s: install the same version on all", l->id, n->host,
                     h.version, DT_VERSION);
            if (opt.elastic) node_lost(l->id, strchr(why, ')') + 2);
            else {
                say("%s", why);
                give_up(1);
            }
            return;
        }
        n->nproc = n->ssh ? opt.nproc : h.nproc;
        n->servers = n->ssh ? opt.servers : h.servers;
        n->joined = true;
        if (opt.elastic) elastic_node_joined(l->id);
    } else if (kind == F_BOUND && nbytes == sizeof v && (opt.elastic || l->id == 0)) {
        memcpy(&v, body, sizeof v);
        plan.port = v;
        if (opt.elastic) elastic_bound(l->id);
        else if (state == RUNNING || state == SETTLING)
            for (int i = 1; i < nnodes; i++) node_start(i);
    } else if (kind == F_FAILED && nbytes == sizeof f) {
        memcpy(&f, body, sizeof f);
        f.text[sizeof f.text - 1] = 0;
        if (opt.elastic) {
            node_lost(l->id, f.text);
            return;
        }
        n->alive = 0;
        say("machine %d (%s): %s", l->id, n->host, f.text);
        give_up(f.status ? f.status : 1);
    } else if (kind == F_OUTPUT && nbytes >= 1 && own && (uint8_t)body[0] < 2) {
        output_add(rank, body[0], body + 1, nbytes - 1);
    } else if (kind == F_PING && nbytes == 0) {
        n->awaited = false;
    } else if (kind == F_REPORT && nbytes == sizeof(dt__elastic_report) && opt.elastic) {
        dt__elastic_report r;
        memcpy(&r, body, sizeof r);
        if (report_check(&r) && member_is_on((int)r.member, l->id)) elastic_report(&r);
    } else if (kind == F_EXITED && nbytes >= sizeof e && own) {
        memcpy(&e, body, sizeof e);
        output_end(rank);
        controller_exited(rank, &e, body + sizeof e, nbytes - sizeof e);
    } else if (kind == F_ASK && nbytes == sizeof v) {
        memcpy(&v, body, sizeof v);
        if (v > 0 && v < 65) user_stop(v, &n->asked);
    } else if (opt.elastic && (kind == F_OUTPUT || kind == F_EXITED || kind == F_BOUND)) { /* of a rank that has been given up */
    } else node_lost(l->id, "it sent an unexpected frame");
}

/* ---- over TCP: node 0 listens; the handshake rejects peers without the token

   Whoever reaches the port can open connections faster than a real agent answers. So there are many places, each for at most
   5 s; when all are taken, the oldest connection of the address that holds the most makes room. An agent loses its place only
   to a flood from its own address that fills all places before it answers, or from as many addresses as there are places;
   then it dials again. Addresses are counted by a keyed hash, IPv6 addresses by their network of 64 bits. */
enum { CLIENTS = 1024, SOURCES = 1024, ACCEPTS = 64 }; /* ACCEPTS: in one turn of the loop */
typedef struct client {
    int       fd, source;
    int64_t   until;
    dt__shake shake;
} client;
static client   *clients;
static int       nclients, open_clients, sources[SOURCES]; /* sources: open connections by hash of the address */
static uint64_t  source_key[2];
static int       accept_fd = -1;
static dt__world handshake_world; /* parameters of the handshake: the token, the number of this machine and of all machines */

static int source_of(const dt__addr *a)
{
    uint64_t h = source_key[0], v = 0;
    if (a->u.any.sa_family == AF_INET) v = a->u.v4.sin_addr.s_addr;
    else if (IN6_IS_ADDR_V4MAPPED(&a->u.v6.sin6_addr)) memcpy(&v, a->u.v6.sin6_addr.s6_addr + 12, 4);
    else memcpy(&v, &a->u.v6.sin6_addr, sizeof v);
    h = (h ^ v) * (source_key[1] | 1);
    h = (h ^ h >> 32) * (source_key[0] | 1);
    return (int)((h ^ h >> 29) % SOURCES);
}
static void client_close(client *g)
{
    if (g->fd < 0) return;
    unwatch(g->fd);
    dt__close(&g->fd);
    sources[g->source]--;
    open_clients--;
}
static void client_step(int i)
{
    client *g = &clients[i];
    if (g->fd < 0) return;
    for (;;) {
        int got = dt__shake_step(&g->shake, g->fd);
        if (got == DT__SHAKE_AGAIN) {
            struct epoll_event e;
            memset(&e, 0, sizeof e);
            e.events = (uint32_t)dt__shake_events(&g->shake); /* POLLIN is EPOLLIN */
            e.data.u64 = (uint64_t)EV_SHAKE << 32 | (uint32_t)i;
            epoll_ctl(ep, EPOLL_CTL_MOD, g->fd, &e);
            return;
        }
        if (got == DT__SHAKE_DECIDE) {
            const dt__hello_c *c = &g->shake.c;
            char               text[160] = "";
            if (c->kind != KIND_NODE) snprintf(text, sizeof text, "this is the port of dtrun, not of rank 0");
            else if (c->world != nnodes)
                snprintf(text, sizeof text, "--nnodes is %d here and %d there", nnodes, c->world);
            else if (c->rank < 1 || c->rank >= nnodes || nodes[c->rank].joined || nodes[c->rank].link.in >= 0)
                snprintf(text, sizeof text, "machine %d has already joined", c->rank);
            dt__shake_reply(&g->shake, text[0] ? DT_COMM_ERR_JOIN : 0, text);
            continue;
        }
        if (got != DT__SHAKE_DONE) {
            client_close(g);
            return;
        }
        int fd = g->fd, r = g->shake.c.rank;
        unwatch(fd);
        g->fd = -1;
        sources[g->source]--;
        open_clients--;
        if (nodes[r].link.in >= 0) { /* another connection of this machine finished first */
            close(fd);
            return;
        }
        dt__sock_tune(fd, 15);
        link_open(&nodes[r].link, fd, fd, EV_LINK_IN, r);
        return;
    }
}
static bool client_evict(void) /* false: there is no connection */
{
    int most = 0, oldest = -1;
    for (int i = 1; i < SOURCES; i++)
        if (sources[i] > sources[most]) most = i;
    for (int i = 0; i < nclients; i++)
        if (clients[i].fd >= 0 && clients[i].source == most && (oldest < 0 || clients[i].until < clients[oldest].until))
            oldest = i;
    if (oldest < 0) return false;
    client_step(oldest); /* its answer may be there already */
    client_close(&clients[oldest]);
    return true;
}
static void clients_accept(void)
{
    dt__addr a;
    for (int turns = 0; turns < ACCEPTS; turns++) {
        int place = 0, fd;
        a.n = sizeof a.u;
        fd = accept4(accept_fd, &a.u.any, &a.n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && client_evict()) continue;
        if (fd < 0) return;
        if (open_clients == nclients) client_evict();
        while (clients[place].fd >= 0) place++;
        client *g = &clients[place];
        g->fd = fd;
        g->source = source_of(&a);
        sources[g->source]++;
        open_clients++;
        g->until = dt__comm_now() + 5 * DT__NS_PER_S;
        if (!dt__shake_server(&g->shake, &handshake_world) || !watch(fd, EPOLLIN, EV_SHAKE, place)) client_close(g);
        else client_step(place);
    }
}
static void clients_begin(void) /* fewer places if there are few descriptors: two pipes and a pidfd for each rank, and others */
{
    struct rlimit files;
    int64_t       left = CLIENTS;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < (rlim_t)INT_MAX)
        left = (int64_t)files.rlim_cur - 3 * opt.nproc - 2 * nnodes - 64;
    nclients = left < 64 ? 64 : left > CLIENTS ? CLIENTS : (int)left;
    clients = (client *)need(calloc((size_t)nclients, sizeof *clients));
    for (int i = 0; i < nclients; i++) clients[i].fd = -1;
    if (!dt__comm_random(source_key, sizeof source_key)) fail(1, "getrandom failed");
}
static void token_make(const char *path) /* created atomically; an existing file is not changed */
{
    static const char digits[] = "0123456789abcdef";
    char              part[4200], hex[65];
    uint8_t           fresh[32];
    if (!dt__comm_random(fresh, 32)) fail(1, "getrandom failed");
    for (int i = 0; i < 64; i++) hex[i] = digits[(i % 2 ? fresh[i / 2] : fresh[i / 2] >> 4) & 15];
    hex[64] = '\n';
    snprintf(part, sizeof part, "%.4000s.%d.part", path, (int)getpid());
    unlink(part);
    int  fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, hex, 65) == 65 && fsync(fd) == 0;
    dt__close(&fd);
    if (ok && link(part, path) != 0 && errno != EEXIST) ok = false;
    int e = errno;
    unlink(part);
    if (!ok) fail(1, "cannot create --token-file '%.200s': %s", path, strerror(e));
}
static const char *lib_text(void) /* the message of dt_net.h without "dt_comm_init: ", which the user did not call */
{
    const char *p = strstr(dt__said.text, "dt_comm_init: ");
    return p ? p + 14 : dt__said.text;
}
static void token_get(void)
{
    int64_t until = dt__comm_now() + dt__ns_of(opt.join_timeout);
    if (opt.nnodes == 1 || (opt.insecure && !opt.token_file)) {
        if (opt.nnodes == 1 && !dt__comm_random(token, 32)) fail(1, "getrandom failed");
        return;
    }
    struct stat st;
    while (lstat(opt.token_file, &st) != 0 && errno == ENOENT) { /* a symbolic link is refused below, wherever it leads */
        if (opt.node_rank == 0) token_make(opt.token_file);
        else if (dt__comm_now() > until)
            fail(1, "--token-file '%.200s' does not exist, and machine 0 did not create it in time; copy it to this machine",
                 opt.token_file);
        else dt__comm_pause(20 * DT__NS_PER_MS); /* machine 0 creates it, if the machines share the file system */
    }
    if (dt__token_read_file(opt.token_file, "--token-file", token) < 0) fail(2, "%s", lib_text());
}
static void host_name(char *buf, size_t nbytes)
{
    if (gethostname(buf, nbytes) != 0) snprintf(buf, nbytes, "unknown");
    buf[nbytes - 1] = 0;
}
static void handshake_init(void)
{
    memset(&handshake_world, 0, sizeof handshake_world);
    memcpy(handshake_world.token, token, 32);
    handshake_world.rank = opt.node_rank;
    handshake_world.size = opt.nnodes;
    handshake_world.timeout = 15;
}
static int port_listen(void) /* the socket of node 0 for the dtruns of other machines */
{
    dt__addr    a[DT__ADDRS];
    char        text[80];
    const char *why = "", *name = opt.bind ? opt.bind : opt.master_addr;
    int         n = dt__addr_find(name, opt.master_port, a, &why), fd = -1;
    if (n == 0) fail(2, "%s is '%.200s': %s", opt.bind ? "--bind" : "--master-addr", name, why);
    for (int i = 0; i < n && fd < 0; i++) fd = dt__listen(&a[i]);
    if (fd < 0)
        fail(1, "machine 0 cannot listen at %s: %s%s", dt__addr_text(&a[0], text, sizeof text), strerror(errno),
             errno == EADDRNOTAVAIL ? "; is this machine 0? If so, set --bind to an address of it"
             : errno == EADDRINUSE  ? "; another job uses it: set another --master-port on all machines"
                                    : "");
    return fd;
}
static int port_dial(void)
{
    dt__addr    a[DT__ADDRS];
    char        text[400];
    const char *why = "", *p;
    int         n = dt__addr_find(opt.master_addr, opt.master_port, a, &why);
    if (n == 0) fail(2, "--master-addr is '%.200s': %s", opt.master_addr, why);
    int fd = dt__dial_until(&handshake_world, a, n, 0, KIND_NODE, 0, 0, dt__comm_now() + dt__ns_of(opt.join_timeout), NULL,
                            text, sizeof text);
    if (fd < 0) {
        p = strncmp(text, "rank 0 ", 7) == 0 ? text + 7 : text;
        fail(1, "cannot join machine 0 %s", p);
    }
    return fd;
}

/* ---- over ssh */
static void quote(bytes *to, const char *s) /* for the shell on the other machine */
{
    bytes_add(to, "'", 1);
    for (; *s; s++) {
        if (*s == '\'') bytes_add(to, "'\\''", 4);
        else bytes_add(to, s, 1);
    }
    bytes_add(to, "'", 1);
}
static void string_add(bytes *to, const char *s) { bytes_add(to, s, strlen(s) + 1); }
static void job_send(node *n)
{
    extern char            **environ;
    static const char *const mine[] = {
        "DT_TOKEN_", "DT_LISTEN_FD", "DT_REPORT_FD", "DT_RESTART", "DT_ADDR", "DT_PORT", "DT_ROLE", "DT_SERVERS", "DT_WORKERS",
        "DT_ELASTIC", "DT_MEMBER"
    };
    job   j;
    bytes text = { NULL, 0, 0 };
    char  dir[4096];
    memset(&j, 0, sizeof j);
    memcpy(j.token, token, 32);
    j.nproc = opt.nproc;
    j.servers = opt.servers;
    j.insecure = opt.insecure;
    string_add(&text, opt.bind ? opt.bind : "");
    string_add(&text, getcwd(dir, sizeof dir) ? dir : "/");
    for (char **e = environ; *e; e++) {
        bool send = strncmp(*e, "DT_", 3) == 0 || strncmp(*e, "OMP_", 4) == 0;
        for (size_t k = 0; k < sizeof mine / sizeof *mine; k++)
            send = send && strncmp(*e, mine[k], strlen(mine[k])) != 0;
        for (int k = 0; k < opt.nforward && !send; k++) {
            size_t len = strcspn(opt.forward[k], "=");
            send = strncmp(*e, opt.forward[k], len) == 0 && (*e)[len] == '=';
        }
        if (!send) continue;
        string_add(&text, *e);
        j.nenv++;
    }
    for (; opt.argv[j.argc]; j.argc++) string_add(&text, opt.argv[j.argc]);
    if (text.n > FRAME_MOST - sizeof j)
        fail(2, "arguments and environment have %zu bytes, expected at most %d", text.n, FRAME_MOST);
    link_send(&n->link, F_JOB, 0, &j, sizeof j, text.p, text.n);
    free(text.p);
}
static bool is_here(const char *host)
{
    char name[80];
    host_name(name, sizeof name);
    return strcmp(host, "localhost") == 0 || strcmp(host, name) == 0;
}
static void host_start(int i)
{
    node       *n = &nodes[i];
    int         in[2], out[2], err[2], words = 0;
    char        exe[4096] = "", *argv[40], *list = NULL;
    const char *command = opt.ssh ? opt.ssh : getenv("DTRUN_SSH");
    bytes       remote = { NULL, 0, 0 };
    if (opt.elastic && dt__fds_ensure("cannot start its dtrun", "a machine", 16) < 0) {
        node_lost(i, dt__said.text);
        return;
    }
    n->until = opt.elastic ? dt__comm_now() + dt__ns_of(opt.join_timeout) : 0;
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) snprintf(exe, sizeof exe, "dtrun");
    if (is_here(n->host)) {
        argv[words++] = exe;
        argv[words++] = (char *)(uintptr_t) "--agent";
    } else {
        char *save = NULL;
        list = strdup(command && *command ? command : "ssh -T -o BatchMode=yes -o ServerAliveInterval=5");
        for (char *p = strtok_r(list, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
            if (words == 32) fail(2, "--ssh has more than 32 words");
            argv[words++] = p;
        }
        if (words == 0) fail(2, "--ssh is '%.80s', expected a command", command ? command : "");
        bytes_add(&remote, "exec ", 5);
        quote(&remote, opt.dtrun ? opt.dtrun : exe);
        string_add(&remote, " --agent");
        argv[words++] = n->host;
        argv[words++] = remote.p;
    }
    argv[words] = NULL;
    pipe_open(in, false);
    pipe_open(out, true);
    pipe_open(err, true);
    n->ssh = child_start(in[0], out[1], err[1]);
    if (n->ssh == 0) child_exec(argv);
    if (n->ssh < 0 && !opt.elastic) fail(1, "cannot start '%s': %s", argv[0], strerror(errno));
    int status = errno;
    close(in[0]);
    close(out[1]);
    close(err[1]);
    free(remote.p);
    free(list);
    if (n->ssh < 0) {
        n->ssh = 0;
        close(err[0]);
        close(out[0]);
        close(in[1]);
        node_lost(i, strerror(status));
        return;
    }
    n->err_fd = err[0];
    watch(n->err_fd, EPOLLIN, EV_SSH_ERR, i);
    n->ssh_fd = child_watch(n->ssh, EV_SSH_END, i);
    link_open(&n->link, out[0], in[1], EV_LINK_IN, i);
    job_send(n);
}
static void ssh_said(int i) /* prints complete lines of the stderr of ssh; of endless text, a part for each event */
{
    node   *n = &nodes[i];
    char    buf[4096];
    ssize_t got = 1;
    for (int turns = 0; got > 0; turns++) {
        if (turns == 16) return;
        if ((got = read(n->err_fd, buf, sizeof buf)) <= 0) break;
        bytes_add(&n->err, buf, (size_t)got);
        char *end;
        while (n->err.n && ((end = (char *)memchr(n->err.p, '\n', n->err.n)) || n->err.n > 1000)) {
            size_t k = end ? (size_t)(end - n->err.p) : n->err.n;
            if (!n->quiet) say("%s: %.*s", n->host, (int)(k && n->err.p[k - 1] == '\r' ? k - 1 : k), n->err.p);
            bytes_drop(&n->err, k + (end != NULL));
        }
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n->err.n && !n->quiet) say("%s: %.*s", n->host, (int)n->err.n, n->err.p);
    n->err.n = 0;
    unwatch(n->err_fd);
    dt__close(&n->err_fd);
}
static void ssh_ended(int i)
{
    node     *n = &nodes[i];
    siginfo_t si;
    char      text[160];
    memset(&si, 0, sizeof si);
    if (n->ssh <= 0 || waitid(P_PID, (id_t)n->ssh, &si, WEXITED | WNOWAIT | WNOHANG) != 0 || si.si_pid == 0) return;
    if (!n->lost) { /* its last messages are printed first */
        link_read(&n->link, node_frame);
        if (n->err_fd >= 0) ssh_said(i);
        snprintf(text, sizeof text, "%s ended (%s %d)", n->joined ? "the connection" : "ssh",
                 si.si_code == CLD_EXITED ? "exit code" : "signal", si.si_status);
        node_lost(i, text);
    }
    child_reap(n->ssh, &n->ssh_fd);
    n->ssh = 0;
}
static bool host_good(const char *p) /* ssh gets it as a word */
{
    if (!*p || *p == '-' || strlen(p) > 79) return false;
    for (; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127 || strchr("'\"\\$`;&|<>(),#", *p)) return false;
    return true;
}
static bool hosts_parse(const char *text, char *why, size_t nbytes) /* fills nodes; false, and why */
{
    char *save = NULL, *list = (char *)need(strdup(text));
    int   room = 0;
    why[0] = 0;
    for (char *p = strtok_r(list, ",", &save); p && !why[0]; p = strtok_r(NULL, ",", &save)) {
        if (nnodes == NODES_MAX) snprintf(why, nbytes, "--hosts has more than %d names", NODES_MAX);
        else if (!host_good(p))
            snprintf(why, nbytes,
                     "--hosts has '%.80s', expected names or addresses with commas between them: a,b or me@a,me@b", p);
        if (why[0]) break;
        if (nnodes == room) nodes = (node *)need(realloc(nodes, (size_t)(room = 2 * room + 16) * sizeof *nodes));
        memset(&nodes[nnodes], 0, sizeof *nodes);
        snprintf(nodes[nnodes++].host, sizeof nodes->host, "%s", p);
    }
    if (nnodes == 0 && !why[0]) snprintf(why, nbytes, "--hosts is '%.80s', expected names with commas between them", text);
    free(list);
    return !why[0];
}
static void hosts_read(void)
{
    char why[300];
    if (!hosts_parse(opt.hosts, why, sizeof why)) fail(2, "%s", why);
    const char *at = strchr(nodes[0].host, '@');
    if (!opt.master_addr && !opt.elastic) { /* elastic: the machine of rank 0, which need not be the first */
        opt.master_addr = strdup(at ? at + 1 : nodes[0].host);
        for (int i = 1; i < nnodes && strcmp(opt.master_addr, "localhost") == 0; i++)
            if (!is_here(nodes[i].host))
                fail(2,
                     "--hosts begins with localhost, which is another machine when seen from %s: write the name of this "
                     "machine instead, or set --master-addr",
                     nodes[i].host);
    }
}

/* ==================================================================================================== >>elastic
   A job with --min, --max or --hosts-file. A rank has a number that no other rank gets during one start of the job (DT_MEMBER). The
   leader of the group of ranks reports its members, its address and how many more it takes; other ranks report only what they
   know of themselves. Reports may be lost; ends of processes are not. The controller

     gathers  until machines for --min ranks are there and no machine is undecided, START_WAIT at most
     starts   the ranks of the start, which meet as in any job. If one dies, and no report of the group comes within 3 s, all end
     heals    places that are free get new ranks, as many as the group takes; they join it at its address
     ends     when no rank is left. From the first rank on that is done with the training nobody is started

   After the death of a member no rank is started until the leader reports a newer generation of the group, because the address
   may be that of the dead. */
enum { QUICK_MOST = 5, RETRY_MOST = 20, HOSTS_BYTES = 1 << 20 };
#define START_WAIT   (30 * DT__NS_PER_S) /* for machines that have not answered, when there are enough */
#define NEWCOMER_NS  (60 * DT__NS_PER_S) /* a new rank counts as joined then: the report was lost */
#define SETTLE_NS    (3 * DT__NS_PER_S)  /* a rank of the start has died: a group that had met reports within this time, also on a busy machine */
#define HOLD_NS      (3 * DT__NS_PER_S)  /* a report that comes later than this after a death knows of it */
static double backoff_unit = 1, quick_time = 10, hosts_poll = 1, ping_every = 5, ping_wait = 30; /* s; the tests shorten them */
typedef struct member {
    int     id, node;
    bool    newcomer, in, asked, gone, done, retry, good; /* in: of the group; asked: to leave; gone: the group goes on without it */
    int64_t begun, kill_at, left_at; /* ns; kill_at: SIGKILL, 0: none; left_at: SIGKILL has not ended it by then */
    char    failed[DT__ELASTIC_TEXT], why[DT__ELASTIC_TEXT]; /* what it reported as its own failure; why the group gave it up */
} member;
typedef struct failure { /* an end with an error since the group last went on */
    int     id;
    exited  e;
    int64_t generation;
    char   *tail, failed[DT__ELASTIC_TEXT], host[80];
} failure;
static struct {
    member *m; /* that run, in the order of their starts */
    int     nm, room;
    failure *bad;
    int     nbad, bad_room;
    int     next;             /* the number of the next rank */
    bool    formed, done, closed; /* the group has met; a rank is done with the training; no more ranks are started */
    bool    begun, below;     /* ranks have been started; the group has given up because of --min */
    int64_t generation, step, hold, hold_until, short_said; /* hold: a newer generation is waited for; -1: none */
    int     leader; /* the member whose address it is */
    int     members, want;
    char    address[DT__ELASTIC_ADDR];
    int     quick, retries, healed, restarts; /* quick: new ranks that ended soon, in a row; healed: deaths so far */
    int64_t retry_at, gather_until, short_until, settle_until; /* settle: a rank of the start has died; 0: none */
    int     first_node, bound_node; /* machine of rank 0 */
} el;

static void asker_tell(int node_i, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void askers_tick(int64_t now);
static int64_t askers_next(int64_t until);
static void control_open(const uint8_t *random);
static void elastic_bound(int i);

static member *member_find(int64_t id)
{
    for (int i = 0; i < el.nm; i++)
        if (el.m[i].id == id) return &el.m[i];
    return NULL;
}
static bool member_is_on(int rank, int node_i)
{
    member *m = member_find(rank);
    return m && m->node == node_i;
}
static void member_signal(const member *m, int sig)
{
    int32_t v = sig;
    if (nodes[m->node].mine) {
        for (int i = 0; i < nprocs; i++) /* it may have ended already */
            if (sig == SIGKILL && procs[i].pid > 0 && procs[i].rank == m->id) {
                int id = m->id;
                rank_ended(i);
                if (!member_find(id)) return;
            }
        agent_signal(sig, m->id);
    } else link_send(&nodes[m->node].link, F_SIGNAL, m->id, &v, sizeof v, NULL, 0);
}
static int members_on(int node_i)
{
    int n = 0;
    for (int i = 0; i < el.nm; i++) n += el.m[i].node == node_i;
    return n;
}
static int members_in(void)
{
    int n = 0;
    for (int i = 0; i < el.nm; i++) n += el.m[i].in && !el.m[i].gone;
    return n;
}
static int places(void) /* ranks that the machines that are there may have */
{
    int64_t n = 0;
    for (int i = 0; i < nnodes; i++)
        if (nodes[i].joined && !nodes[i].lost && !nodes[i].removed && !nodes[i].refused) n += nodes[i].room;
    return n < RANKS_MAX ? (int)n : RANKS_MAX;
}
static double stop_grace(void) { return opt.grace >= 0 ? opt.grace : 30; }
static void   member_remove(member *m)
{
    node *n = &nodes[m->node];
    if (n->alive > 0) n->alive--;
    output_end(m->id);
    output_free(m->id);
    memmove(m, m + 1, (size_t)(el.m + el.nm - m - 1) * sizeof *m);
    el.nm--;
}
static void bad_clear(int64_t before) /* those that the group went on without; -1: all */
{
    int n = 0;
    for (int i = 0; i < el.nbad; i++) {
        if (before < 0 || el.bad[i].generation < before) free(el.bad[i].tail);
        else el.bad[n++] = el.bad[i];
    }
    el.nbad = n;
}
static void bad_add(const member *m, const exited *e, const char *tail, size_t n)
{
    if (el.nbad == el.bad_room) el.bad = (failure *)need(realloc(el.bad, (size_t)(el.bad_room = 2 * el.bad_room + 8) * sizeof *el.bad));
    failure *b = &el.bad[el.nbad++];
    memset(b, 0, sizeof *b);
    b->id = m->id;
    b->e = *e;
    b->generation = el.done ? INT64_MAX : el.generation;
    b->tail = (char *)need(calloc(n + 1, 1));
    if (n) memcpy(b->tail, tail, n);
    memcpy(b->failed, m->failed, sizeof b->failed);
    snprintf(b->host, sizeof b->host, "%s", nodes[m->node].host);
}
static void last_line(const char *tail, size_t n, char *buf, size_t nbytes) /* "; its last line: ..." */
{
    while (n > 0 && (tail[n - 1] == '\n' || tail[n - 1] == ' ')) n--;
    size_t begin = n;
    while (begin > 0 && tail[begin - 1] != '\n') begin--;
    buf[0] = 0;
    if (n > begin) snprintf(buf, nbytes, "; its last line: %.*s", (int)(n - begin), tail + begin);
}
static void elastic_open(int i) /* the user has changed something: new ranks may be tried again, on machine i too */
{
    el.closed = false;
    el.quick = el.retries = 0;
    if (i < 0) return;
    nodes[i].refused = nodes[i].quiet = false;
    nodes[i].not_before = 0;
}
/* A new rank that ended before it joined, or soon after: the next one there waits longer and longer. */
static void quick_end(member *m, const char *how)
{
    double wait = backoff_unit;
    for (int i = 0; i < el.nm; i++)
        if (el.m[i].newcomer && el.m[i].in && !el.m[i].good && dt__comm_now() - el.m[i].begun > dt__ns_of(quick_time)) {
            el.m[i].good = true;
            el.quick = 0;
        }
    for (int i = 0; i < el.quick && wait < 30 * backoff_unit; i++) wait *= 2;
    if (wait > 30 * backoff_unit) wait = 30 * backoff_unit;
    nodes[m->node].not_before = dt__comm_now() + dt__ns_of(wait);
    if (++el.quick < QUICK_MOST || el.closed) return;
    say("the last %d new ranks ended %s, rank %d with %s: no more are started; the group goes on with %d rank%s. dtrun --add, or a change of "
        "the hosts file, lifts this",
        el.quick, opt.max_restarts < 0 ? "soon" : "before they had joined", m->id, how, members_in() - m->in, members_in() - m->in == 1 ? "" : "s");
    el.closed = true;
}
static void elastic_exited(int rank, const exited *end, const char *tail, size_t n)
{
    exited  e = *end;
    char    how[700], last[TAIL_BYTES + 40], text[160];
    bytes   own = { NULL, 0, 0 };
    member *m = member_find(rank);
    if (!m) return;
    e.said[sizeof e.said - 1] = 0;
    node *at = &nodes[m->node];
    if (n == 0 && outputs && rank < world) {
        tail_text(rank, &own);
        tail = own.p;
        n = own.n;
    }
    bool is_bad = bad_end(&e) || m->failed[0], unasked = !m->asked && state == RUNNING;
    bool given_up = m->gone && e.how == 's' && e.value == SIGKILL && e.stopped;
    last_line(tail, n, last, sizeof last);
    snprintf(how, sizeof how, "%s", end_text(&e, text, sizeof text));
    if (state != RUNNING) {
    } else if (e.pid == 0) say("%s%s%s", nnodes > 1 ? at->host : "", nnodes > 1 ? ": " : "", e.said);
    else if (m->asked) say("rank %d on %s has left (%s)", rank, at->host, how);
    else if (given_up)
        say("the group has given up rank %d on %s%s%s: it is killed (pid %" PRId64 ")", rank, at->host, m->why[0] ? ": " : "", m->why, e.pid);
    else if (is_bad && !m->retry && el.formed)
        say("rank %d on %s died: %s, after %.3g s (pid %" PRId64 ")%s%s%s", rank, at->host, how, dt__seconds_of(e.ns), e.pid,
            m->failed[0] ? "; it said: " : "", m->failed, last);
    else if (!is_bad && !el.done && el.formed) say("rank %d on %s has ended with exit code 0, and is not replaced", rank, at->host);
    if (!is_bad && unasked) at->ended++;
    if (is_bad && !m->asked && !m->retry) {
        if (given_up || (el.formed && !m->in)) el.healed += state == RUNNING;
        else if (!e.stopped || state == RUNNING) bad_add(m, &e, tail, n);
        if (state == RUNNING && !el.formed) {
            if (e.pid == 0) stop(SIGTERM, 5);
            else if (!el.settle_until) el.settle_until = dt__comm_now() + SETTLE_NS;
        } else if (state == RUNNING && !el.done) {
            if (m->in && !m->gone) {
                el.hold = el.generation;
                el.hold_until = dt__comm_now() + HOLD_NS;
            }
            if (m->newcomer && !given_up && (!m->in || (opt.max_restarts < 0 && e.ns < dt__ns_of(quick_time)))) quick_end(m, how);
            if (opt.max_restarts >= 0 && el.healed + el.nbad + el.restarts > opt.max_restarts && !el.closed) {
                int left = members_in() - (m->in && !m->gone);
                say("no more ranks are started (--max-restarts %d); the group goes on with %d rank%s", opt.max_restarts, left, left == 1 ? "" : "s");
                el.closed = true;
            }
        }
    }
    free(own.p);
    member_remove(m);
}
/* ---- reports of ranks */
static void leave(member *m) /* asks it to leave; it has the grace time */
{
    if (m->asked) return;
    m->asked = true;
    if (m->id == el.leader) el.address[0] = 0; /* nobody is started until the next leader reports */
    m->kill_at = dt__comm_now() + dt__ns_of(stop_grace());
    member_signal(m, SIGTERM);
}
static void elastic_gone(const dt__elastic_report *r)
{
    member *m = member_find(r->about);
    if (!m || m->gone) return;
    m->gone = true;
    if (r->kind == DT__EL_LEFT || m->asked || m->done || !m->in) return;
    snprintf(m->why, sizeof m->why, "%s", r->text);
    m->kill_at = dt__comm_now() + DT__NS_PER_S / 10; /* the group sees a death before the kernel has ended the process */
}
static void elastic_state(const dt__elastic_report *r)
{
    if (r->generation < el.generation || (r->generation == el.generation && r->step < el.step)) return;
    if (!el.formed) {
        el.formed = true;
        for (int i = 0; i < el.nm; i++) el.m[i].in = el.m[i].in || !el.m[i].newcomer;
    }
    if (el.settle_until && state == RUNNING) { /* the group had met, or meets without them */
        for (int i = 0; i < el.nbad; i++) el.bad[i].generation = r->generation;
        el.hold = r->generation;
        el.hold_until = dt__comm_now() + HOLD_NS;
        el.settle_until = 0;
    } else if (r->generation > el.generation && !el.done && state == RUNNING) {
        int before = el.nbad;
        bad_clear(r->generation);
        el.healed += before - el.nbad;
    }
    if (el.hold >= 0 && (r->generation > el.hold || dt__comm_now() > el.hold_until)) el.hold = -1;
    el.generation = r->generation;
    el.step = r->step;
    el.members = r->members;
    el.want = r->want;
    member *from = member_find(r->member);
    if (!r->address[0] || !from || from->asked) return; /* who leaves does not lead for long */
    snprintf(el.address, sizeof el.address, "%s", r->address);
    el.leader = r->member;
}
static void elastic_report(const dt__elastic_report *r)
{
    member *m = member_find(r->member), *about = member_find(r->about);
    if (!m) return;
    switch (r->kind) {
    case DT__EL_SHORT:
        elastic_state(r);
        if (el.short_said == r->generation) break;
        el.short_said = r->generation;
        say("the group has %d rank%s, fewer than --min %d: it waits%s%s", r->members, r->members == 1 ? "" : "s", opt.min, r->text[0] ? ": " : "",
            r->text);
        break;
    case DT__EL_STATE: elastic_state(r); break;
    case DT__EL_JOINED:
        el.retries = 0;
        if (!about || about->in) break;
        about->in = true;
        if (opt.max_restarts >= 0) el.quick = 0;
        say("rank %d on %s has joined: %d ranks", about->id, nodes[about->node].host, members_in());
        break;
    case DT__EL_LEFT:
    case DT__EL_GONE: elastic_gone(r); break;
    case DT__EL_REFUSED:
        if (!about || nodes[about->node].refused) break;
        nodes[about->node].refused = true;
        say("the group refuses rank %d on %s: %s; no more ranks are started there. dtrun --add, or a change of the hosts file, lifts this",
            about->id, nodes[about->node].host, r->text);
        break;
    case DT__EL_RETRY:
        if (m->in || m->retry) break;
        m->retry = true;
        el.retry_at = dt__comm_now() + DT__NS_PER_S / 10;
        if (++el.retries < RETRY_MOST || el.closed) break;
        say("the group did not answer the last %d new ranks%s%s: no more are started", el.retries, r->text[0] ? ": " : "", r->text);
        el.closed = true;
        break;
    case DT__EL_DONE:
        m->done = true;
        if (!el.done) bad_clear(-1);
        el.done = true;
        break;
    case DT__EL_FAILED:
        snprintf(m->failed, sizeof m->failed, "%s", r->text[0] ? r->text : "(no text)");
        if (strncmp(r->text, "below the minimum", 17) == 0) el.below = true;
        break;
    default: break;
    }
}
/* ---- starting ranks */
static void member_add(int id, int node_i, bool newcomer)
{
    if (el.nm == el.room) el.m = (member *)need(realloc(el.m, (size_t)(el.room = 2 * el.room + 8) * sizeof *el.m));
    member *m = &el.m[el.nm++];
    memset(m, 0, sizeof *m);
    m->id = id;
    m->node = node_i;
    m->newcomer = newcomer;
    m->begun = dt__comm_now();
    nodes[node_i].alive++;
}
static void machine_start(int i, int first, int count) /* ranks on machine i */
{
    int port;
    for (int k = 0; k < count; k++) member_add(first + k, i, plan.join[0] != 0);
    plan.first = first;
    plan.count = count;
    plan.room = nodes[i].room > count ? nodes[i].room : count;
    if (plan.room > RANKS_MAX) plan.room = RANKS_MAX;
    if (world < first + count) world_set(first + count);
    if (!nodes[i].mine) link_send(&nodes[i].link, F_START, 0, &plan, sizeof plan, NULL, 0);
    else if (agent_add(&plan, &port)) {
        plan.port = port;
        elastic_bound(i);
    }
}
static const char *host_addr(const char *host) { return strchr(host, '@') ? strchr(host, '@') + 1 : host; }
static bool        host_local(const char *host) /* of this machine, as the group sees it */
{
    return is_here(host_addr(host)) || strncmp(host_addr(host), "127.", 4) == 0;
}
static bool loopback(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strncmp(addr, "[::1]", 5) == 0 || strcmp(addr, "::1") == 0 || strcmp(addr, "localhost") == 0;
}
static void elastic_start(void) /* the ranks of the start */
{
    bool local = true;
    int  machines = 0, total = 0, most = places();
    if (most > opt.max) {
        say("the machines have places for %d ranks, --max is %d: %d ranks are started", most, opt.max, opt.max);
        most = opt.max;
    }
    bad_clear(-1);
    el.formed = el.done = el.below = el.closed = false;
    el.begun = true;
    el.generation = el.step = el.hold = el.short_said = -1;
    el.leader = -1;
    el.settle_until = 0;
    el.members = el.want = 0;
    el.address[0] = 0;
    for (int i = 0; i < nnodes; i++) {
        node *n = &nodes[i];
        n->first = n->nproc = n->ended = 0;
        local = local && (n->mine || n->removed || host_local(n->host));
        if (!n->joined || n->lost || n->removed || n->refused || n->room == 0 || total == most) continue;
        if (total == 0) el.first_node = i;
        n->first = total;
        n->nproc = n->room < most - total ? n->room : most - total;
        total += n->nproc;
        machines++;
    }
    const node *first = &nodes[el.first_node];
    const char *addr = opt.master_addr                                                        ? opt.master_addr
                       : first->mine || (local && (!opt.hosts_file || loopback(first->host))) ? "127.0.0.1"
                                                                                              : host_addr(first->host);
    if (!local && strcmp(addr, "localhost") == 0) {
        say("rank 0 is on localhost, which is another machine when seen from the others: write the name of this machine instead, or set "
            "--master-addr");
        finish(2);
        return;
    }
    snprintf(plan.addr, sizeof plan.addr, "%.255s", addr);
    plan.bind[0] = 0;
    if (machines == 1 && !loopback(addr)) snprintf(plan.bind, sizeof plan.bind, "%.79s", addr);
    plan.join[0] = 0;
    plan.world = total;
    plan.nnodes = machines;
    plan.epoch = epoch;
    plan.port = opt.master_port;
    plan.node = 0;
    outputs_reset();
    el.next = total;
    state = RUNNING;
    deadline = INT64_MAX;
    machine_start(el.first_node, 0, nodes[el.first_node].nproc);
}
static void elastic_bound(int i) /* rank 0 can be reached: the other ranks of the start */
{
    if (i != el.first_node || el.formed || state != RUNNING || plan.join[0]) return;
    for (int k = 0; k < nnodes; k++) {
        if (k == i || nodes[k].nproc == 0 || nodes[k].lost) continue;
        plan.node++;
        plan.bind[0] = 0;
        machine_start(k, nodes[k].first, nodes[k].nproc);
        nodes[k].nproc = 0; /* once */
    }
}
static void elastic_fill(void) /* new ranks for free places */
{
    int64_t now = dt__comm_now();
    int     pending = 0;
    if (state != RUNNING || !el.formed || el.done || el.closed || !el.address[0] || el.hold >= 0 || now < el.retry_at) return;
    for (int i = 0; i < el.nm; i++) pending += !el.m[i].in && !el.m[i].gone && now - el.m[i].begun < NEWCOMER_NS;
    for (int i = 0; i < nnodes; i++) {
        node *n = &nodes[i];
        while (pending < el.want && el.nm < opt.max && n->joined && !n->lost && !n->removed && !n->refused && n->not_before <= now &&
               members_on(i) + n->ended < n->room && el.next < INT_MAX) {
            snprintf(plan.join, sizeof plan.join, "%s", el.address);
            plan.bind[0] = 0;
            machine_start(i, el.next++, 1);
            pending++;
        }
    }
}
static void nodes_trim(void) /* asks ranks to leave a machine that may have fewer; lets go of machines that have none */
{
    for (int i = 0; i < nnodes; i++) {
        node *n = &nodes[i];
        int   stay = 0;
        for (int k = 0; k < el.nm; k++) stay += el.m[k].node == i && !el.m[k].asked;
        for (int k = el.nm - 1; k >= 0 && stay > n->room && state == RUNNING && el.formed; k--) /* a start would wait for them */
            if (el.m[k].node == i && !el.m[k].asked) {
                leave(&el.m[k]);
                stay--;
            }
        if (!n->removed || n->alive > 0 || n->lost || n->mine) {
            if (n->removed && n->mine && n->alive == 0 && n->asker >= 0) asker_tell(i, 0, "%s: no rank is there any more", n->host);
            continue;
        }
        int32_t v = 0;
        link_send(&n->link, F_FINISH, 0, &v, sizeof v, NULL, 0);
        n->lost = true;
        n->retry_at = 0;
        n->until = dt__comm_now() + dt__ns_of(kill_wait);
        say("machine %s is removed", n->host);
        asker_tell(i, 0, "%s is removed: no rank is there any more", n->host);
    }
}
/* ---- machines */
static void elastic_node_joined(int i)
{
    node *n = &nodes[i];
    n->nproc = 0;
    n->quiet = n->added = false;
    n->retry_wait = 0;
    n->until = 0;
    if (el.begun && !n->removed) say("machine %s is there, with places for %d rank%s", n->host, n->room, n->room == 1 ? "" : "s");
    asker_tell(i, 0, "%s is there, with places for %d rank%s", n->host, n->room, n->room == 1 ? "" : "s");
}
static void elastic_node_lost(int i, const char *why)
{
    node  *n = &nodes[i];
    char   list[200] = "";
    size_t used = 0;
    int    ids = 0;
    exited e;
    memset(&e, 0, sizeof e);
    e.how = 'x';
    e.value = 1;
    e.lost = -1;
    for (int k = 0; k < el.nm; k++)
        if (el.m[k].node == i && used + 16 < sizeof list) used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", ids++ ? ", " : "", el.m[k].id);
    if (n->removed && ids == 0) say("machine %s is removed", n->host);
    else if (!n->quiet)
        say("machine %s %s: %s%s%s%s", n->host, n->joined ? "is lost" : "cannot be used", why, ids == 0 ? "" : ids == 1 ? "; rank " : "; ranks ", list,
            ids == 0   ? ""
            : ids == 1 ? " is gone with it"
                       : " are gone with it");
    for (int k = el.nm - 1; k >= 0; k--) {
        member *m = &el.m[k];
        if (m->node != i) continue;
        if (!m->asked && state == RUNNING) {
            if (!el.formed && !el.settle_until) el.settle_until = dt__comm_now() + SETTLE_NS;
            if (m->in && !m->gone) {
                el.hold = el.generation;
                el.hold_until = dt__comm_now() + HOLD_NS;
            }
            snprintf(e.said, sizeof e.said, "its machine is lost");
            bad_add(m, &e, "", 0);
        }
        member_remove(m);
    }
    n->alive = 0;
    n->joined = false;
    if (n->removed) asker_tell(i, 0, "%s is removed", n->host);
    else asker_tell(i, 1, "%s cannot be used: %s", n->host, why);
    if (n->removed || n->added) { /* whoever asked for it knows now */
        n->removed = true;
        n->room = 0;
        return;
    }
    n->retry_wait = n->retry_wait ? 2 * n->retry_wait : 5;
    if (n->retry_wait > 60) n->retry_wait = 60;
    n->retry_at = dt__comm_now() + dt__ns_of(n->retry_wait * backoff_unit);
    n->quiet = true;
}
static int node_find(const char *host) /* a machine of the job; -1 */
{
    for (int i = 0; i < nnodes; i++)
        if (!nodes[i].removed && (strcmp(nodes[i].host, host) == 0 || (nodes[i].mine && is_here(host)))) return i;
    return -1;
}
static int node_new(const char *host, int room) /* a machine more: its dtrun is started */
{
    int i = 0;
    while (i < nnodes && !(nodes[i].removed && nodes[i].link.gone && nodes[i].ssh == 0 && nodes[i].err_fd < 0 && !nodes[i].mine && members_on(i) == 0)) i++;
    if (i == NODES_MAX) return -1;
    if (i == nnodes) {
        nodes = (node *)need(realloc(nodes, (size_t)(nnodes + 1) * sizeof *nodes));
        nnodes++;
    } else {
        free(nodes[i].link.rx.p);
        free(nodes[i].link.tx.p);
        free(nodes[i].err.p);
    }
    node *n = &nodes[i];
    memset(n, 0, sizeof *n);
    n->link.in = n->link.out = n->ssh_fd = n->err_fd = -1;
    n->link.gone = true;
    n->asker = -1;
    n->room = room;
    snprintf(n->host, sizeof n->host, "%s", host);
    host_start(i);
    return i;
}
static void node_change(int i, int room) /* room 0: its ranks leave, and it goes */
{
    node *n = &nodes[i];
    n->room = room;
    n->removed = room == 0;
    n->ended = 0;
    if (!n->removed) elastic_open(i);
    if (n->removed && !n->joined && !n->mine) {
        if (n->ssh > 0) kill(-n->ssh, SIGKILL);
        if (n->lost || n->ssh <= 0) say("machine %s is removed", n->host);
        if (n->lost || n->ssh <= 0) asker_tell(i, 0, "%s is removed", n->host);
        n->retry_at = 0;
    } else if (!n->removed && n->lost) n->retry_at = dt__comm_now();
    nodes_trim();
}
static bool reachable(const char *host) /* by the ranks there: can they join this group? */
{
    const char *addr = el.address[0] ? el.address : plan.addr;
    return host_local(host) || !el.begun || !loopback(addr);
}

/* ---- the hosts file */
typedef struct host_line {
    char host[80];
    int  room, line;
} host_line;
static struct {
    host_line  *list; /* as it was last read */
    int         n;
    struct stat seen;
    bool        same, told, there; /* same: it did not change since the look before; told: what is wrong with it */
    int64_t     next;
} hosts;

/* Lines are "host [ranks]"; # begins a comment. NULL, and why, with line and column, if there is an error. The text need not end with a zero. */
#define HOSTS_COLUMN(k) (int)(word[k] - p + 1)
static host_line *host_lines(const char *text, size_t n, const char *name, int normal, int *count, char *why, size_t nbytes)
{
    host_line  *list = NULL;
    int         room = 0, line = 0, k = 0;
    const char *p = text, *last = text + n, *next;
    why[0] = 0;
    for (; p < last && !why[0]; p = next) {
        const char *end = (const char *)memchr(p, '\n', (size_t)(last - p)), *word[3];
        size_t      len[3] = { 0, 0, 0 };
        int         words = 0;
        if (!end) end = last;
        next = end < last ? end + 1 : last;
        line++;
        const char *stop_at = (const char *)memchr(p, '#', (size_t)(end - p));
        for (const char *q = p, *to = stop_at ? stop_at : end; q < to && words < 3;) {
            while (q < to && (*q == ' ' || *q == '\t' || *q == '\r')) q++;
            if (q == to) break;
            word[words] = q;
            while (q < to && *q != ' ' && *q != '\t' && *q != '\r') q++;
            len[words] = (size_t)(q - word[words]);
            words++;
        }
        if (words == 0) continue;
        if (k == room) list = (host_line *)need(realloc(list, (size_t)(room = 2 * room + 16) * sizeof *list));
        host_line *h = &list[k];
        memset(h, 0, sizeof *h);
        h->line = line;
        h->room = normal;
        if (len[0] < sizeof h->host) memcpy(h->host, word[0], len[0]);
        if (k == NODES_MAX) snprintf(why, nbytes, "%s, line %d: more than %d machines, expected at most that many", name, line, NODES_MAX);
        else if (memchr(word[0], 0, len[0]) || len[0] >= sizeof h->host || !host_good(h->host))
            snprintf(why, nbytes, "%s, line %d, column %d: '%.*s', expected a name or an address: host [ranks]", name, line,
                     HOSTS_COLUMN(0), (int)(len[0] < 80 ? len[0] : 80), word[0]);
        if (words > 1 && !why[0]) {
            h->room = 0;
            bool good = len[1] < 6;
            for (size_t i = 0; i < len[1] && good; i++) {
                good = word[1][i] >= '0' && word[1][i] <= '9';
                h->room = h->room * 10 + (word[1][i] - '0');
            }
            if (!good || h->room < 1 || h->room > RANKS_MAX)
                snprintf(why, nbytes, "%s, line %d, column %d: '%.*s', expected a number of ranks from 1 to %d: host [ranks]", name, line,
                         HOSTS_COLUMN(1), (int)(len[1] < 80 ? len[1] : 80), word[1], RANKS_MAX);
        }
        if (words > 2 && !why[0])
            snprintf(why, nbytes, "%s, line %d, column %d: '%.*s' is too much, expected: host [ranks]", name, line, HOSTS_COLUMN(2),
                     (int)(len[2] < 80 ? len[2] : 80), word[2]);
        for (int i = 0; i < k && !why[0]; i++)
            if (strcmp(list[i].host, h->host) == 0)
                snprintf(why, nbytes, "%s, line %d, column %d: '%s' is also on line %d, expected each machine once", name, line, HOSTS_COLUMN(0),
                         h->host, list[i].line);
        k++;
    }
    if (k == 0 && !why[0]) snprintf(why, nbytes, "%s names no machine, expected lines: host [ranks]", name);
    if (why[0]) {
        free(list);
        return NULL;
    }
    *count = k;
    return list;
}
static host_line *hosts_file_read(int *count, char *why, size_t nbytes)
{
    struct stat st;
    host_line  *list = NULL;
    char       *text;
    size_t      n = 0;
    int         fd = open(opt.hosts_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) snprintf(why, nbytes, "--hosts-file '%.200s': %s", opt.hosts_file, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size > HOSTS_BYTES)
        snprintf(why, nbytes, "--hosts-file '%.200s' %s", opt.hosts_file, S_ISREG(st.st_mode) ? "has more than 1 MiB" : "is not a regular file");
    else {
        text = (char *)need(malloc(HOSTS_BYTES));
        while (n < HOSTS_BYTES) {
            ssize_t got = read(fd, text + n, HOSTS_BYTES - n);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) break;
            n += (size_t)got;
        }
        list = host_lines(text, n, opt.hosts_file, opt.nproc, count, why, nbytes);
        free(text);
    }
    dt__close(&fd);
    return list;
}
static void hosts_file_begin(void) /* fills nodes */
{
    char why[600];
    if (stat(opt.hosts_file, &hosts.seen) == 0) hosts.there = hosts.same = true;
    if (!(hosts.list = hosts_file_read(&hosts.n, why, sizeof why))) fail(2, "%s", why);
    nnodes = hosts.n;
    nodes = (node *)need(calloc((size_t)nnodes, sizeof *nodes));
    for (int i = 0; i < nnodes; i++) {
        snprintf(nodes[i].host, sizeof nodes[i].host, "%s", hosts.list[i].host);
        nodes[i].room = hosts.list[i].room;
    }
}
static int hosts_room(const host_line *list, int n, const char *host)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].host, host) == 0) return list[i].room;
    return 0;
}
static void hosts_apply(host_line *list, int n) /* what differs from the list before: what --add and --remove did stays */
{
    for (int k = 0; k < n; k++) {
        int i = node_find(list[k].host), before = hosts_room(hosts.list, hosts.n, list[k].host);
        if (before == list[k].room) continue;
        if (!reachable(list[k].host))
            say("%s, line %d: %s cannot reach the group, which listens at %s: start dtrun with --master-addr", opt.hosts_file, list[k].line,
                list[k].host, el.address[0] ? el.address : plan.addr);
        else if (i >= 0) node_change(i, list[k].room);
        else if ((i = node_new(list[k].host, list[k].room)) >= 0) elastic_open(i);
    }
    for (int k = 0; k < hosts.n; k++) {
        int i = node_find(hosts.list[k].host);
        if (i < 0 || hosts_room(list, n, hosts.list[k].host)) continue;
        say("%s is no longer in %s: %d rank%s leave%s", hosts.list[k].host, opt.hosts_file, members_on(i), members_on(i) == 1 ? "" : "s",
            members_on(i) == 1 ? "s" : "");
        node_change(i, 0);
    }
    elastic_open(-1);
    free(hosts.list);
    hosts.list = list;
    hosts.n = n;
}
static void hosts_look(void) /* a file that changed is read when it did not change between two looks: it may be half written */
{
    struct stat st;
    char        why[600];
    int         n = 0;
    memset(&st, 0, sizeof st);
    bool there = stat(opt.hosts_file, &st) == 0;
    bool equal = there == hosts.there && st.st_mtim.tv_sec == hosts.seen.st_mtim.tv_sec && st.st_mtim.tv_nsec == hosts.seen.st_mtim.tv_nsec &&
                 st.st_size == hosts.seen.st_size && st.st_ino == hosts.seen.st_ino && st.st_dev == hosts.seen.st_dev;
    hosts.seen = st;
    hosts.there = there;
    if (!equal || hosts.same) {
        hosts.same = hosts.same && equal;
        return;
    }
    hosts.same = true;
    host_line *list = hosts_file_read(&n, why, sizeof why);
    if (list) hosts_apply(list, n);
    else say("%s; the job goes on with the machines it has", why);
}

/* ---- the clock */
static void elastic_gather(int64_t now)
{
    int undecided = 0, ready = places();
    for (int i = 0; i < nnodes; i++) undecided += !nodes[i].removed && !nodes[i].joined && !nodes[i].lost;
    int enough = ready < opt.max ? ready : opt.max;
    if (enough >= opt.min && (undecided == 0 || now >= el.gather_until)) elastic_start();
    else if (now >= el.short_until && (undecided == 0 || now >= el.gather_until)) {
        say("the machines that are there have places for %d rank%s, expected at least --min %d; waited %g s (--wait)", ready, ready == 1 ? "" : "s",
            opt.min, opt.wait);
        finish(1);
    }
}
static void elastic_look(void) /* after each batch of events */
{
    if (state == GATHERING) elastic_gather(dt__comm_now());
    if (over) return;
    if (state == RUNNING && el.formed && el.nm > 0) {
        bool none = true; /* only ranks that cannot join any more, or are being killed */
        for (int i = 0; i < el.nm; i++) none = none && (!el.m[i].in || (el.m[i].gone && !el.m[i].asked && el.m[i].kill_at + el.m[i].left_at > 0));
        if (none) kill_all();
    }
    nodes_trim();
    elastic_fill();
}
/* A dtrun that does not answer is stopped, or its machine hangs. While the output of ranks is not read, its answers are not, either. */
static void nodes_ping(int64_t now)
{
    for (int i = 0; i < nnodes; i++) {
        node *n = &nodes[i];
        if (n->mine || !n->joined || n->lost || links_paused) {
            n->awaited = false;
            n->pinged = now;
        } else if (n->awaited && now - n->pinged > dt__ns_of(ping_wait) && now - n->heard > dt__ns_of(ping_wait)) {
            node_lost(i, "its dtrun does not answer: it is stopped, or the machine hangs");
        } else if (!n->awaited && now - n->pinged > dt__ns_of(ping_every)) {
            n->awaited = true;
            n->pinged = now;
            link_send(&n->link, F_PING, 0, NULL, 0, NULL, 0);
        }
    }
}
static void elastic_tick(int64_t now)
{
    nodes_ping(now);
    if (el.settle_until && now >= el.settle_until && state == RUNNING) stop(SIGTERM, 5); /* the others would wait for it to join */
    for (int i = 0; i < el.nm; i++) {
        member *m = &el.m[i];
        if (m->kill_at && now >= m->kill_at && state == RUNNING) {
            m->kill_at = 0;
            m->left_at = now + dt__ns_of(kill_wait);
            if (m->asked) say("rank %d on %s did not leave within %g s, and is killed", m->id, nodes[m->node].host, stop_grace());
            member_signal(m, SIGKILL);
            return;
        }
        if (m->left_at && now >= m->left_at) {
            say("rank %d on %s does not end after SIGKILL: it waits for a device or a file system, and is left behind", m->id,
                nodes[m->node].host);
            member_remove(m);
            return;
        }
    }
    for (int i = 0; i < nnodes; i++)
        if (nodes[i].retry_at && now >= nodes[i].retry_at && nodes[i].ssh == 0 && nodes[i].err_fd < 0 && state <= RUNNING && !el.done) {
            nodes[i].retry_at = 0;
            nodes[i].lost = nodes[i].joined = false;
            nodes[i].err.n = 0;
            host_start(i);
        }
    if (opt.hosts_file && now >= hosts.next && state <= RUNNING && !el.done) {
        hosts.next = now + dt__ns_of(hosts_poll);
        hosts_look();
    }
    askers_tick(now);
}
static int64_t elastic_next(int64_t until) /* when something is to be done, until at most */
{
    int64_t now = dt__comm_now();
#define SOONER(t)                            \
    do {                                     \
        if ((t) && (t) < until) until = (t); \
    } while (0)
    for (int i = 0; i < el.nm; i++) {
        if (state == RUNNING) SOONER(el.m[i].kill_at);
        SOONER(el.m[i].left_at);
    }
    for (int i = 0; i < nnodes; i++) {
        if (nodes[i].joined && !nodes[i].mine && !nodes[i].lost && now + dt__ns_of(ping_every) < until) until = now + dt__ns_of(ping_every);
        if (nodes[i].ssh == 0 && nodes[i].err_fd < 0 && state <= RUNNING && !el.done) SOONER(nodes[i].retry_at);
        if (nodes[i].not_before > now) SOONER(nodes[i].not_before);
    }
    if (state == RUNNING) SOONER(el.settle_until);
    if (el.retry_at > now) SOONER(el.retry_at);
    if (state == GATHERING) {
        if (el.gather_until > now) SOONER(el.gather_until);
        if (el.short_until > now) SOONER(el.short_until);
    }
    if (opt.hosts_file && state <= RUNNING && !el.done) SOONER(hosts.next);
    return askers_next(until);
#undef SOONER
}
static void elastic_gather_again(void)
{
    state = GATHERING;
    el.begun = false;
    el.gather_until = dt__comm_now() + START_WAIT;
    if (el.gather_until > dt__comm_now() + dt__ns_of(opt.join_timeout)) el.gather_until = dt__comm_now() + dt__ns_of(opt.join_timeout);
    el.short_until = dt__comm_now() + dt__ns_of(opt.wait);
}
static void elastic_over(void) /* no rank is left */
{
    char       text[160];
    const failure *b = NULL;
    if (nodes[0].mine) {
        el.nm = 0; /* what does not end after SIGKILL has been told */
        agent_clean();
    }
    for (int i = 0; i < el.nbad && !b; i++)
        if (el.bad[i].failed[0]) b = &el.bad[i];
    if (!b && el.nbad) b = &el.bad[0];
    int status = !b ? 0 : el.below ? 75 : end_status(&b->e) ? end_status(&b->e) : 1;
    if (b && b->e.pid) {
        say("%srank %d on %s failed first: %s, after %.3g s (pid %" PRId64 ")%s%s",
            el.below     ? "the group has too few ranks: "
            : el.formed ? "no rank is left: "
                        : "the group has not met: ",
            b->id, b->host, end_text(&b->e, text, sizeof text), dt__seconds_of(b->e.ns), b->e.pid, b->failed[0] ? "; it said: " : "", b->failed);
        say("  its last lines:%s", *b->tail ? "" : " none");
        const char *p = b->tail;
        for (const char *end; *p && (end = strchr(p, '\n')); p = end + 1) say("    | %.*s", (int)(end - p), p);
    } else if (b && !b->e.pid && strcmp(b->e.said, "its machine is lost") == 0) say("no rank is left: the machine of rank %d is lost", b->id);
    if (user_signal) finish(128 + user_signal);
    else if (fatal) finish(b ? status : fatal_status);
    else if (!b) finish(0);
    else if (el.done || el.below || opt.max_restarts < 0 || el.restarts + el.healed >= opt.max_restarts) {
        if (opt.max_restarts > 0 && !el.below && !el.done) say("giving up: --max-restarts %d %s used up", opt.max_restarts, opt.max_restarts > 1 ? "are" : "is");
        finish(status);
    } else {
        el.restarts++;
        epoch++;
        say("restarting all ranks (restart %d of %d)", el.restarts, opt.max_restarts);
        elastic_gather_again();
        elastic_look();
    }
}
static void elastic_begin(const uint8_t *random)
{
    guard_grace = stop_grace();
    for (int i = 0; i < nnodes; i++)
        if (!nodes[i].mine) {
            guard_grace = stop_grace() + kill_wait; /* their dtruns end them before */
            break;
        }
    death_signal = 0;
    int64_t ranks = opt.hosts_file ? 1024 : 0; /* without --max */
    for (int i = 0; i < nnodes && !opt.hosts_file; i++) ranks += nodes[i].room;
    if (!opt.max) opt.max = ranks < opt.min ? opt.min : ranks > RANKS_MAX ? RANKS_MAX : (int)ranks;
    plan.min = opt.min;
    plan.max = opt.max;
    plan.wait = opt.wait;
    plan.grace = stop_grace();
    el.short_said = -1;
    hosts.next = dt__comm_now() + dt__ns_of(hosts_poll);
    elastic_gather_again();
    control_open(random);
}

/* ==================================================================================================== >>control
   The socket of --add and --remove: in a directory that only this user can enter; the kernel says whose process is at the other
   end. dtrun says what job it is (F_ABOUT), is asked once (F_ADD, F_REMOVE), and answers when the machine is there or gone. */
enum { ASKERS = 16, ASK_WAIT = 120 /* s */ };
typedef struct about {
    int64_t pid;
    int32_t ranks, max;
    char    version[16], run_id[64], program[200];
} about;
typedef struct reply {
    int32_t status;
    char    text[1200];
} reply;
static struct {
    link_   link;
    int64_t until; /* ns */
} askers[ASKERS];
static int control_fd = -1;

static const char *control_dir(char *buf, size_t nbytes)
{
    const char *dir = getenv("DTRUN_DIR");
    if (dir && *dir) snprintf(buf, nbytes, "%s", dir);
    else snprintf(buf, nbytes, "/tmp/dtrun-%u", (unsigned)geteuid());
    return buf;
}
static const char *control_dir_bad(const char *dir) /* NULL: it exists and is this user's alone */
{
    struct stat st;
    if (lstat(dir, &st) != 0) return strerror(errno);
    return !S_ISDIR(st.st_mode)           ? "it is not a directory"
           : st.st_uid != geteuid()       ? "it belongs to another user"
           : (st.st_mode & 077)           ? "other users may enter it, expected mode 0700"
           : strlen(dir) > sizeof control_path - 60 ? "its name is too long"
                                          : NULL;
}
static bool control_addr(dt__addr *a, const char *path)
{
    memset(a, 0, sizeof *a);
    a->u.un.sun_family = AF_UNIX;
    a->n = sizeof a->u.un;
    if (strlen(path) >= sizeof a->u.un.sun_path) return false;
    snprintf(a->u.un.sun_path, sizeof a->u.un.sun_path, "%s", path);
    return true;
}
static void control_open(const uint8_t *random) /* without it the job goes on */
{
    char        dir[200], path[300];
    const char *bad = NULL;
    dt__addr    a;
    control_dir(dir, sizeof dir);
    mkdir(dir, 0700);
    if (!(bad = control_dir_bad(dir))) {
        snprintf(path, sizeof path, "%s/%d-%02x%02x%02x%02x", dir, (int)self, random[0], random[1], random[2], random[3]);
        if (!control_addr(&a, path)) bad = "its name is too long";
        else if ((control_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0 ||
                 bind(control_fd, &a.u.any, a.n) != 0 || listen(control_fd, ASKERS) != 0) {
            bad = strerror(errno);
            dt__close(&control_fd);
        }
    }
    if (bad) say("--add and --remove cannot reach this job: '%s': %s (DTRUN_DIR names another directory)", dir, bad);
    else {
        snprintf(control_path, sizeof control_path, "%.199s", path);
        watch(control_fd, EPOLLIN, EV_CONTROL, 0);
    }
}
static bool same_user(int fd)
{
    struct ucred who;
    socklen_t    n = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && (who.uid == geteuid() || who.uid == 0);
}
static void asker_close(int k)
{
    link_close(&askers[k].link);
    for (int i = 0; i < nnodes; i++)
        if (nodes[i].asker == k) nodes[i].asker = -1;
}
static void control_accept(void)
{
    about a;
    int   fd = accept4(control_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), k = 0;
    if (fd < 0) return;
    while (k < ASKERS && askers[k].until) k++;
    if (k == ASKERS || !same_user(fd)) {
        close(fd);
        return;
    }
    link_open(&askers[k].link, fd, fd, EV_ASKER, k);
    askers[k].until = dt__comm_now() + 5 * DT__NS_PER_S;
    memset(&a, 0, sizeof a);
    a.pid = self;
    a.ranks = el.nm;
    a.max = opt.max;
    snprintf(a.version, sizeof a.version, "%s", DT_VERSION);
    snprintf(a.run_id, sizeof a.run_id, "%s", plan.run_id);
    snprintf(a.program, sizeof a.program, "%.199s", opt.argv[0]);
    link_send(&askers[k].link, F_ABOUT, 0, &a, sizeof a, NULL, 0);
}
static void asker_answer(int k, int status, const char *text)
{
    reply r;
    memset(&r, 0, sizeof r);
    r.status = status;
    snprintf(r.text, sizeof r.text, "%s", text);
    link_send(&askers[k].link, F_REPLY, 0, &r, sizeof r, NULL, 0);
    askers[k].until = dt__comm_now() + 5 * DT__NS_PER_S;
}
static void asker_tell(int node_i, int status, const char *format, ...) /* whoever waits for this machine */
{
    char    text[1200];
    va_list ap;
    int     k = nodes[node_i].asker;
    if (k < 0) return;
    nodes[node_i].asker = -1;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    asker_answer(k, status, text);
}
static void machines_text(char *buf, size_t nbytes)
{
    size_t used = 0;
    for (int i = 0; i < nnodes && used + 100 < nbytes; i++)
        if (!nodes[i].removed) used += (size_t)snprintf(buf + used, nbytes - used, "%s%s", used ? ", " : "", nodes[i].host);
}
static void ask_wait(int k, int node_i) /* the answer comes later */
{
    nodes[node_i].asker = k;
    askers[k].until = dt__comm_now() + (ASK_WAIT + 5) * DT__NS_PER_S;
}
static void control_add(int k, const char *host, int room)
{
    char text[600];
    int  i = node_find(host), before = i >= 0 ? nodes[i].room : 0, status = 0;
    if (i < 0 && !reachable(host)) {
        snprintf(text, sizeof text, "%s cannot reach the group, which listens at %s: start dtrun with --hosts-file or --master-addr", host,
                 el.address[0] ? el.address : plan.addr);
        status = 1;
    } else if (i < 0) {
        if ((i = node_new(host, room ? room : opt.nproc)) < 0) {
            snprintf(text, sizeof text, "the job has %d machines, the limit", NODES_MAX);
            status = 1;
        } else {
            nodes[i].added = true;
            say("%s is added, with places for %d rank%s (--add)", host, nodes[i].room, nodes[i].room == 1 ? "" : "s");
            elastic_open(i);
            if (!nodes[i].lost) ask_wait(k, i);
            else asker_answer(k, 1, "its dtrun cannot be started");
            return;
        }
    } else if (!nodes[i].joined && !nodes[i].mine) {
        node_change(i, room ? room : before);
        ask_wait(k, i);
        return;
    } else if (room == 0 || room == before) {
        elastic_open(i);
        snprintf(text, sizeof text, "%s is in the job already, with places for %d rank%s", host, before, before == 1 ? "" : "s");
    } else {
        node_change(i, room);
        snprintf(text, sizeof text, "%s has places for %d rank%s now, before %d", host, room, room == 1 ? "" : "s", before);
        say("%s (--add)", text);
    }
    asker_answer(k, status, text);
}
static void control_remove(int k, const char *host)
{
    char text[1200], list[900];
    int  i = node_find(host), others = 0;
    for (int m = 0; m < nnodes; m++) others += m != i && !nodes[m].removed;
    machines_text(list, sizeof list);
    if (i < 0) snprintf(text, sizeof text, "the job has no machine '%s'; its machines are %s", host, list);
    else if (others == 0) snprintf(text, sizeof text, "%s is the only machine of the job; to end the job, send its dtrun SIGTERM", host);
    else {
        say("%s is to be removed: %d rank%s leave%s (--remove)", host, members_on(i), members_on(i) == 1 ? "" : "s", members_on(i) == 1 ? "s" : "");
        ask_wait(k, i);
        node_change(i, 0);
        return;
    }
    asker_answer(k, 1, text);
}
static bool ask_check(int kind, int room, const char *body, size_t n) /* body: the name of a machine, with its zero */
{
    return (kind == F_ADD || kind == F_REMOVE) && n >= 2 && n <= 80 && body[n - 1] == 0 && strlen(body) == n - 1 && host_good(body) && room >= 0 &&
           room <= RANKS_MAX;
}
static void control_frame(link_ *l, int kind, int rank, char *body, size_t n)
{
    int k = l->id;
    if (!ask_check(kind, rank, body, n)) asker_close(k);
    else if (state > RUNNING || over || el.done) asker_answer(k, 1, "the job is ending");
    else if (kind == F_ADD) control_add(k, body, rank);
    else control_remove(k, body);
}
static void askers_tick(int64_t now)
{
    for (int k = 0; k < ASKERS; k++) {
        if (!askers[k].until || (now < askers[k].until && !askers[k].link.gone)) continue;
        if (!askers[k].link.gone) asker_close(k);
        askers[k].until = 0;
    }
}
static int64_t askers_next(int64_t until)
{
    for (int k = 0; k < ASKERS; k++)
        if (askers[k].until && askers[k].until < until) until = askers[k].until;
    return until;
}

/* ---- the one who asks */
static int job_dial(const char *path, about *a) /* a socket, or -1 */
{
    dt__addr  addr;
    dt__chead h;
    uint8_t  *body = NULL;
    int       fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool      good = fd >= 0 && control_addr(&addr, path);
    if (good && connect(fd, &addr.u.any, addr.n) != 0) {
        if (errno == ECONNREFUSED) unlink(path); /* its dtrun and the guard were killed */
        good = false;
    }
    good = good && same_user(fd) && dt__cframe_recv(fd, &h, &body, dt__comm_now() + 2 * DT__NS_PER_S) == 1 && h.kind == F_ABOUT &&
           h.nbytes == sizeof *a;
    if (good) {
        memcpy(a, body, sizeof *a);
        a->version[sizeof a->version - 1] = a->run_id[sizeof a->run_id - 1] = a->program[sizeof a->program - 1] = 0;
    } else dt__close(&fd);
    DT_COMM_FREE(body);
    return fd;
}
static int job_find(about *mine) /* the job that is meant */
{
    char           dir[200], path[500], pid[24], list[1600] = "";
    const char    *bad;
    about          a;
    int            found = -1, jobs = 0;
    size_t         used = 0;
    struct dirent *e;
    control_dir(dir, sizeof dir);
    DIR *d = opendir(dir);
    if (d && (bad = control_dir_bad(dir))) fail(1, "'%s' is unusable: %s", dir, bad);
    while (d && (e = readdir(d))) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        int fd = job_dial(path, &a);
        if (fd < 0) continue;
        snprintf(pid, sizeof pid, "%" PRId64, a.pid);
        if (used + 400 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "\n  --job %s   pid %" PRId64 ", %d rank%s of %s", a.run_id, a.pid, a.ranks,
                                     a.ranks == 1 ? "" : "s", a.program);
        if (opt.run_id && strcmp(opt.run_id, a.run_id) != 0 && strcmp(opt.run_id, pid) != 0) {
            close(fd);
            continue;
        }
        if (jobs++ == 0) {
            found = fd;
            *mine = a;
        } else close(fd);
    }
    if (d) closedir(d);
    if (jobs == 1) return found;
    if (jobs > 1) fail(1, "there are %d such jobs, say which one:%s", jobs, list);
    if (used) fail(1, "there is no elastic job '%s' of this user on this machine, but:%s", opt.run_id, list);
    fail(1, "no elastic job of this user runs on this machine (jobs with --min, --max or --hosts-file; looked in %s)", dir);
}
static int control_ask(void)
{
    about     a;
    reply     r;
    dt__chead h;
    uint8_t  *body = NULL;
    char      host[200], *colon;
    int       room = 0;
    snprintf(host, sizeof host, "%.199s", opt.add ? opt.add : opt.remove);
    if (opt.add && (colon = strrchr(host, ':')) && (strchr(host, ':') == colon || colon[-1] == ']')) {
        room = number("--add", colon + 1, 1, RANKS_MAX, " ranks behind the colon");
        *colon = 0;
    }
    size_t n = strlen(host);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        memmove(host, host + 1, n - 2);
        host[n - 2] = 0;
    }
    if (!host_good(host))
        fail(2, "%s is '%.80s', expected the name or address of a machine%s", opt.add ? "--add" : "--remove", opt.add ? opt.add : opt.remove,
             opt.add ? ": host or host:ranks" : "");
    int fd = job_find(&a);
    if (strcmp(a.version, DT_VERSION) != 0) fail(1, "the job runs with dtrun %s, this is %s: use the same", a.version, DT_VERSION);
    int64_t until = dt__comm_now() + ASK_WAIT * DT__NS_PER_S;
    if (dt__cframe_send(fd, opt.add ? F_ADD : F_REMOVE, room, host, strlen(host) + 1, until) != 1) fail(1, "the job has just ended");
    int got = dt__cframe_recv(fd, &h, &body, until);
    if (got == 0) fail(1, "no answer about %s within %d s; the job goes on trying, and its dtrun says more", host, ASK_WAIT);
    if (got != 1 || h.kind != F_REPLY || h.nbytes != sizeof r) fail(1, "the job has just ended");
    memcpy(&r, body, sizeof r);
    DT_COMM_FREE(body);
    r.text[sizeof r.text - 1] = 0;
    if (r.status) fail(r.status == 2 ? 2 : 1, "%s", r.text);
    printf("%s\n", r.text);
    return 0;
}

/* ==================================================================================================== >>main */
/* Back pressure: while too much text is queued, the pipes of the ranks are not read. Then the ranks block in write, as if
   they wrote to the terminal themselves. */
static void reading_set(bool on)
{
    if (reading_paused == !on) return;
    reading_paused = !on;
    for (int i = 0; i < nprocs; i++)
        for (int k = 0; k < 2; k++)
            if (procs[i].out[k] >= 0) {
                if (on) watch(procs[i].out[k], EPOLLIN, EV_RANK_OUT, 2 * i + k);
                else unwatch(procs[i].out[k]);
            }
}
/* The links of ssh carry output, but also the ends of ranks: those must be seen while the job is being stopped, so the links
   are read then, and output beyond HELD_MOST bytes is dropped. */
static void links_set(bool on)
{
    if (links_paused == !on) return;
    links_paused = !on;
    for (int i = 0; i < nnodes; i++) {
        if (nodes[i].ssh > 0 && !nodes[i].link.gone) {
            if (on) watch(nodes[i].link.in, EPOLLIN, EV_LINK_IN, i);
            else unwatch(nodes[i].link.in);
        }
        if (nodes[i].err_fd >= 0) {
            if (on) watch(nodes[i].err_fd, EPOLLIN, EV_SSH_ERR, i);
            else unwatch(nodes[i].err_fd);
        }
    }
}
/* A signal that was ignored at the start (nohup, a background job without job control) stays ignored. */
static void signals_begin(void)
{
    static const int list[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2, SIGCHLD };
    sigset_t         set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct sigaction sa;
        if (list[i] == SIGCHLD) signal(SIGCHLD, SIG_DFL);
        if (sigaction(list[i], NULL, &sa) == 0 && sa.sa_handler != SIG_IGN) sigaddset(&set, list[i]);
    }
    sigprocmask(SIG_BLOCK, &set, &old_mask);
    old_pipe = signal(SIGPIPE, SIG_IGN);
    signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_fd < 0 || !watch(signal_fd, EPOLLIN, EV_SIGNAL, 0)) fail(1, "cannot create a signalfd: %s", strerror(errno));
}
static void base_begin(void)
{
    struct rlimit files;
    while ((null_fd = open("/dev/null", O_RDWR)) >= 0 && null_fd < 3) {} /* 0 to 2 are open from here on */
    fcntl(null_fd, F_SETFD, FD_CLOEXEC);
    ep = epoll_create1(EPOLL_CLOEXEC);
    if (null_fd < 0 || ep < 0) fail(1, "cannot open /dev/null or epoll: %s", strerror(errno));
    self = getpid();
    getrlimit(RLIMIT_NOFILE, &old_files);
    files = old_files;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    sink_open(&out_sink, 1);
    sink_open(&err_sink, 2);
}
static void suspend(void) /* Ctrl-Z: stops and continues the ranks, which are not in the foreground process group */
{
    if (is_agent) agent_signal(SIGSTOP, -1);
    else signal_all(SIGSTOP);
    raise(SIGSTOP);
    if (is_agent) agent_signal(SIGCONT, -1);
    else signal_all(SIGCONT);
}
static void on_signal(void)
{
    struct signalfd_siginfo s;
    while (read(signal_fd, &s, sizeof s) == (ssize_t)sizeof s) {
        int     sig = (int)s.ssi_signo;
        int32_t v = sig;
        if (sig == SIGCHLD) {
            for (int i = 0; i < nprocs; i++)
                if (procs[i].pidfd < 0) rank_ended(i);
            for (int i = 0; i < nnodes; i++)
                if (nodes[i].ssh > 0 && nodes[i].ssh_fd < 0) ssh_ended(i);
        } else if (sig == SIGTSTP) suspend();
        else if (sig == SIGUSR1 || sig == SIGUSR2) {
            if (is_agent) agent_signal(sig, -1);
            else signal_all(sig);
        } else if (over) { /* what is left is to write the text */
            if (flush_until != INT64_MAX) exit(exit_status);
            flush_until = dt__comm_now() + dt__ns_of(flush_wait);
        } else if (asked_here > 1) { /* ranks die with it */
            guard_add(GUARD_NOW);
            exit(128 + sig);
        }
        else if (is_agent) {
            link_send(&up, F_ASK, 0, &v, sizeof v, NULL, 0);
            if (++asked_here > 1) agent_signal(SIGKILL, -1); /* as machine 0 will say, unless its dtrun is stopped */
        } else user_stop(sig, &asked_here);
    }
}
static void finish(int status)
{
    int32_t v = status;
    if (over) return;
    over = true;
    exit_status = status;
    deadline = dt__comm_now() + 2 * DT__NS_PER_S;
    if (user_signal) flush_until = dt__comm_now() + dt__ns_of(flush_wait);
    for (int i = 0; i < nnodes; i++)
        if (!nodes[i].mine) link_send(&nodes[i].link, F_FINISH, 0, &v, sizeof v, NULL, 0);
}
static bool all_done(void) /* everything is written and closed: exit */
{
    if (!over) return false;
    if (is_agent && running > 0 && dt__comm_now() < deadline) return false; /* then the guard process kills them again */
    if (is_agent) {
        deadline = INT64_MAX;
        if (asked_here && flush_until == INT64_MAX) flush_until = dt__comm_now() + dt__ns_of(flush_wait);
    }
    for (int i = 0; i < nnodes && dt__comm_now() >= deadline; i++) {
        if (nodes[i].ssh > 0) child_reap(nodes[i].ssh, &nodes[i].ssh_fd);
        nodes[i].ssh = 0;
        nodes[i].link.tx.n = 0;
        if (i == nnodes - 1) deadline = INT64_MAX;
    }
    for (int i = 0; i < nnodes; i++)
        if (nodes[i].ssh > 0 || (!nodes[i].link.gone && nodes[i].link.tx.n)) return false;
    sink_flush(&out_sink);
    if (out_sink.q.n && dt__comm_now() < flush_until) return false;
    if (out_sink.q.n + out_sink.dropped) {
        say("stdout takes no more text: %zu bytes of output are lost", out_sink.q.n + out_sink.dropped);
        out_sink.q.n = out_sink.dropped = 0;
    }
    sink_flush(&err_sink);
    return err_sink.q.n == 0 || dt__comm_now() >= flush_until;
}
static void on_event(const struct epoll_event *e)
{
    int         kind = (int)(e->data.u64 >> 32), i = (int)(uint32_t)e->data.u64;
    link_      *l = is_agent ? &up : kind == EV_LINK_IN || kind == EV_LINK_OUT ? &nodes[i].link : NULL;
    const char *why;
    switch (kind) {
    case EV_SIGNAL: on_signal(); break;
    case EV_REPORT: reports_read(); break;
    case EV_RANK_OUT:
        if (i / 2 < nprocs && procs[i / 2].out[i % 2] >= 0) rank_read(i / 2, i % 2);
        break;
    case EV_RANK_END:
        if (i < nprocs) rank_ended(i);
        break;
    case EV_SINK: sink_flush(i ? &err_sink : &out_sink); break;
    case EV_LINK_OUT:
    case EV_LINK_IN:
        if (l->gone || l->in < 0) break;
        link_flush(l);
        if (!is_agent && kind == EV_LINK_IN) nodes[i].heard = dt__comm_now();
        if (kind == EV_LINK_OUT || !(why = link_read(l, is_agent ? agent_frame : node_frame))) break;
        if (is_agent) agent_lost(why);
        else if (nodes[i].ssh > 0 && !*why) { /* the exit status of ssh says more */ link_close(l);
            nodes[i].until = dt__comm_now() + 2 * DT__NS_PER_S;
        } else node_lost(i, why);
        break;
    case EV_ACCEPT: clients_accept(); break;
    case EV_SHAKE: client_step(i); break;
    case EV_SSH_ERR:
        if (nodes[i].err_fd >= 0) ssh_said(i);
        break;
    case EV_SSH_END: ssh_ended(i); break;
    case EV_CONTROL: control_accept(); break;
    case EV_ASKER:
        if (!askers[i].link.gone && (why = link_read(&askers[i].link, control_frame))) asker_close(i);
        break;
    default: break;
    }
}
static void look_at_clock(void)
{
    int64_t now = dt__comm_now();
    if (!is_agent && !over && now >= deadline) controller_tick();
    for (int i = 0; i < nclients && open_clients > 0; i++)
        if (clients[i].fd >= 0 && now >= clients[i].until) client_close(&clients[i]);
    for (int i = 0; i < nnodes; i++)
        if (nodes[i].until && now >= nodes[i].until) {
            nodes[i].until = 0;
            node_lost(i, "");
            if (nodes[i].ssh > 0) kill(-nodes[i].ssh, SIGKILL);
        }
    if (opt.elastic && !is_agent && !over) elastic_tick(now);
}
static int time_to_wait(void) /* ms until the next deadline; -1: no deadline */
{
    int64_t until = over && flush_until < deadline ? flush_until : deadline;
    for (int i = 0; i < nclients && open_clients > 0; i++)
        if (clients[i].fd >= 0 && clients[i].until < until) until = clients[i].until;
    for (int i = 0; i < nnodes; i++)
        if (nodes[i].until && nodes[i].until < until) until = nodes[i].until;
    if (opt.elastic && !is_agent && !over) until = elastic_next(until);
    return until == INT64_MAX ? -1 : dt__poll_ms(until);
}
static int run(void)
{
    struct epoll_event ev[64];
    while (!all_done()) {
        int n = epoll_wait(ep, ev, 64, time_to_wait());
        /* epoll reports events in the order in which they happened, so ranks are seen to end in the right order, however
           late this process runs */
        for (int i = 0; i < n; i++) on_event(&ev[i]);
        look_at_clock();
        if (!is_agent) controller_look();
        else if (running == 0) agent_clean();
        bool full = out_sink.q.n > QUEUE_MOST || err_sink.q.n > QUEUE_MOST || up.tx.n > QUEUE_MOST;
        if (full ||
            (reading_paused && out_sink.q.n < QUEUE_MOST / 2 && err_sink.q.n < QUEUE_MOST / 2 && up.tx.n < QUEUE_MOST / 2))
            reading_set(!full);
        links_set(!(reading_paused && state < STOPPING && !over));
    }
    return exit_status;
}
static int run_agent(int in, int out) /* the controller is on another machine */
{
    hello h;
    is_agent = true;
    signals_begin();
    guard_start();
    link_open(&up, in, out, EV_LINK_IN, 0);
    memset(&h, 0, sizeof h);
    h.nproc = opt.nproc;
    h.servers = opt.servers;
    snprintf(h.version, sizeof h.version, "%s", DT_VERSION);
    host_name(h.host, sizeof h.host);
    link_send(&up, F_HELLO, 0, &h, sizeof h, NULL, 0);
    return run();
}
static int run_controller(void)
{
    uint8_t r[8];
    if (opt.hosts) hosts_read();
    else if (opt.hosts_file) hosts_file_begin();
    else {
        nnodes = opt.nnodes;
        nodes = (node *)need(calloc((size_t)nnodes, sizeof *nodes));
    }
    for (int i = 0; i < nnodes; i++) {
        nodes[i].link.in = nodes[i].link.out = nodes[i].ssh_fd = nodes[i].err_fd = -1;
        nodes[i].link.gone = true; /* until it joins */
        nodes[i].asker = -1;
        if (!nodes[i].room) nodes[i].room = opt.nproc;
    }
    if (!opt.hosts && !opt.hosts_file) {
        nodes[0].mine = nodes[0].joined = true;
        nodes[0].nproc = opt.nproc;
        nodes[0].servers = opt.servers;
        host_name(nodes[0].host, sizeof nodes[0].host);
        if (nnodes > 1) {
            clients_begin();
            accept_fd = port_listen();
            watch(accept_fd, EPOLLIN, EV_ACCEPT, 0);
        }
    }
    plan.nnodes = nnodes;
    plan.max_restarts = opt.max_restarts;
    const char *addr = nnodes == 1 || !opt.master_addr ? "127.0.0.1" : opt.master_addr;
    if (strlen(addr) >= sizeof plan.addr) fail(2, "--master-addr has %zu bytes, expected fewer than 256", strlen(addr));
    snprintf(plan.addr, sizeof plan.addr, "%s", addr);
    if (!dt__comm_random(r, sizeof r)) fail(1, "getrandom failed");
    if (opt.run_id) snprintf(plan.run_id, sizeof plan.run_id, "%s", opt.run_id);
    else
        for (int i = 0; i < 8; i++) snprintf(plan.run_id + 2 * i, sizeof plan.run_id - 2 * (size_t)i, "%02x", r[i]);
    signals_begin();
    if (opt.elastic) elastic_begin(r);
    guard_start();
    if (nnodes > 1 && !opt.elastic) deadline = dt__comm_now() + dt__ns_of(opt.join_timeout);
    if (opt.hosts || opt.hosts_file)
        for (int i = 0; i < nnodes; i++) host_start(i);
    controller_look();
    return run();
}
int main(int argc, char **argv)
{
    opt.nproc = opt.nnodes = 1;
    opt.grace = -1;
    opt.join_timeout = 600;
    opt.max_restarts = -1;
    opt.wait = -1;
    opt.token_file = getenv("DT_TOKEN_FILE");
    opt.bind = getenv("DT_BIND");
    if (opt.bind && !*opt.bind) opt.bind = NULL;
    opt.insecure = getenv("DT_INSECURE") && strcmp(getenv("DT_INSECURE"), "1") == 0;
    options_from_env();
    options_read(argc, argv);
    if (opt.agent) { /* started by another dtrun, which is connected to stdin and stdout */
        opt.argv = NULL;
        opt.log_dir = NULL;
        base_begin();
        int in = fcntl(0, F_DUPFD_CLOEXEC, 3), out = fcntl(1, F_DUPFD_CLOEXEC, 3);
        dup2(null_fd, 0);
        dup2(2, 1);
        if (in < 0 || out < 0 || fcntl(in, F_SETFL, O_NONBLOCK) != 0 ||
            fcntl(out, F_SETFL, fcntl(out, F_GETFL) | O_NONBLOCK) != 0)
            fail(1, "--agent is only for dtrun itself");
        return run_agent(in, out);
    }
    options_check();
    if (opt.add || opt.remove) return control_ask();
    if (opt.log_dir) make_log_dir();
    base_begin();
    token_get();
    handshake_init();
    if (opt.node_rank > 0) {
        int fd = port_dial(); /* signals have their default action here: there is no child yet */
        return run_agent(fd, fd);
    }
    return run_controller();
}
