/* dtplan.c - will it scale, and how should it be split?

       dtplan --model resnet50 --machines 4 --per-machine 8 --device v100 --intra nvlink2 --inter 10Gbit/s --batch 32
       dtplan --profile train.profile --cluster our.cluster --html > plan.html

   Predicts a step of training from a model and a cluster: computation and communication, which one is the bottleneck, memory of
   a device, the best layouts, and what would help. docs/planner.md says how. `dtplan --help` lists the options.
   Exit status: 0 answered; 1 a file cannot be read or written, --judge, --sweep: the target is missed, --scale: one took 10 s or
   longer; 2 an error in what was asked. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DT_IMPLEMENTATION
#include "dt_scale.h"
#include "dt_plot.h"
#include "calibrate.h"

static const char help[] =
    "dtplan: will it scale, and how should it be split?\n"
    "\n"
    "  dtplan --model NAME [--machines N] [--per-machine N] [--intra LINK] [--inter LINK] [--device NAME] [--batch N]\n"
    "  dtplan --profile FILE --cluster FILE\n"
    "\n"
    "What is trained:\n"
    "  --model NAME        a known model: dtplan --models lists them\n"
    "  --profile FILE      a profile of a trainer, written by DT_PROFILE=FILE\n"
    "  --batch N           samples of each data-parallel rank in a step (32, text 1, or the profile's)\n"
    "  --precision WORD    f32 (default), amp, o2\n"
    "  --optimizer WORD    sgd, momentum, adam (default)\n"
    "On what:\n"
    "  --cluster FILE      a description: docs/planner.md\n"
    "  --machines N        (1)\n"
    "  --per-machine N     devices of a machine (8)\n"
    "  --device NAME       a known device (v100): dtplan --devices lists devices and links\n"
    "  --flops SPEED       of a device of your own, such as 15TFLOP/s; with --memory SIZE\n"
    "  --memory SIZE       bytes of a device, such as 80GB\n"
    "  --intra LINK        inside a machine: a known link (nvlink2), or a rate such as 63GB/s, or rate,latency\n"
    "  --inter LINK        between machines (infiniband-100g): the same. The devices of a machine share it\n"
    "  --own-links         each device has an inter link of its own\n"
    "  --storage RATE      what a machine reads of its data set\n"
    "How it is split:\n"
    "  --layout LIST       such as data=4,pipe=2,tensor=2,zero=1,micro=8,schedule=1f1b,recompute=full (data parallel)\n"
    "  --servers N         a parameter server on N machines; --serving apart (default), beside, byteps\n"
    "  --algo NAME         of the allreduce: auto (default), ring, halving, two_level ...\n"
    "  --bucket SIZE       of gradients (25MiB, the first one 1MiB)\n"
    "  --no-overlap        communication after the backward\n"
    "  --compress PERCENT  bytes sent of each byte of gradient, such as 50%\n"
    "Answers (text without one of these):\n"
    "  --json              for programs\n"
    "  --html              one page\n"
    "  --svg               the picture: efficiency by machines, where T1 = T2\n"
    "  --trace             a timeline of one predicted step, for Perfetto or chrome://tracing\n"
    "Others:\n"
    "  --table             communication against computation of all known models\n"
    "  --judge             the planner beside published measurements\n"
    "  --scale [N]         every collective and every pipeline schedule on N ranks (4096), by the steps of their plans\n"
    "  --crossovers        the sizes at which the choice of an algorithm changes, drawn\n"
    "  --calibrate         this machine as a cluster, measured: for --cluster. A quarter of a minute, with nothing beside it\n"
    "  --models, --devices, --help, --version\n"
    "How large a batch? Runs your trainer over batch sizes, and draws items a second and epochs to a target (docs/planner.md):\n"
    "  dtplan --target VALUE [options] --sweep PROGRAM [its options]       text, or --json\n"
    "  --target VALUE      of the result in the trainer's table: 0.96, 96% or '<0.2'; --metric NAME if it has several results\n"
    "  --batches LIST      8,16,32,64,128,256; --out FILE: the picture (sweep.svg)\n"
    "  --lr X              also run it with --lr X x batch / --base-batch N (the first); --warmup N epochs\n"
    "  --lars-lr X         also with --lars --lr X x sqrt(batch / base batch)\n"
    "\n"
    "Exit status: 0 answered; 1 a file cannot be read or written, --judge, --sweep: the target is missed, --scale: one took 10 s or\n"
    "longer; 2 a wrong command line.\n";

static int  quit_status = 2; /* 1: a file cannot be read or written, or memory is exhausted */
static void quit(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void quit(const char *format, ...)
{
    va_list ap;
    fputs("dtplan: ", stderr);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(quit_status);
}
static void *room(size_t count, size_t each)
{
    void *p = calloc(count ? count : 1, each);
    if (!p) quit("out of memory");
    return p;
}

/* ---------------------------------------------------------------------------------------------------- what was asked */
enum { TEXT, JSON, HTML, SVG, TRACE, TABLE, JUDGE, SCALE, CROSSOVERS, MODELS, DEVICES, CALIBRATE, SWEEP };
typedef struct question {
    dt_scale_opts    o;
    dt_scale_cluster c;
    dt_scale_model  *m;
    const char      *model, *profile, *cluster;
    int              answer, ranks;
    bool             layout; /* one was asked for */
    const char     **given;  /* the options as they were given */
    bool             sweep_json;
    int              argc;   /* of --sweep: the trainer */
    char           **argv;
} question;
static const char *const names[] = { "--model",      "--profile",  "--batch",       "--precision", "--optimizer",
                                     "--cluster",    "--machines", "--per-machine", "--device",    "--flops",
                                     "--memory",     "--intra",    "--inter",       "--own-links", "--storage",
                                     "--layout",     "--servers",  "--serving",     "--algo",      "--bucket",
                                     "--no-overlap", "--compress", "--batches",     "--target",    "--metric",
                                     "--out",        "--lr",       "--lars-lr",     "--warmup",    "--base-batch",
                                     "--json",        "--html",      "--svg",
                                     "--trace",      "--table",    "--judge",       "--scale",     "--crossovers",
                                     "--models",     "--devices",  "--calibrate",   "--help",        "--version",   NULL };
enum {
    MODEL,
    PROFILE,
    BATCH,
    PRECISION,
    OPTIMIZER,
    CLUSTER,
    MACHINES,
    PER_MACHINE,
    DEVICE,
    FLOPS,
    MEMORY,
    INTRA,
    INTER,
    OWN_LINKS,
    STORAGE,
    LAYOUT,
    SERVERS,
    SERVING,
    ALGO,
    BUCKET,
    NO_OVERLAP,
    COMPRESS,
    BATCHES,
    TARGET,
    METRIC,
    OUT,
    LR,
    LARS_LR,
    WARMUP,
    BASE_BATCH,
    FIRST_ANSWER,
    HELP = FIRST_ANSWER + 11,
    VERSION
};
static const char       *option_name(int i) { return names[i]; }
static const char *const precisions[] = { "f32", "amp", "o2", NULL }, *const optimizers[] = { "sgd", "momentum", "adam", NULL },
                         *const servings[] = { "apart", "beside", "byteps", NULL },
                         *const recomputes[] = { "none", "selective", "full", NULL };
static const char *const       *these; /* the words that `word` looks at: for dt_scale_nearest */
static const char              *these_names(int i) { return these[i]; }
static int                      word(const char *what, const char *text, const char *const *list)
{
    char all[200] = "";
    for (int i = 0; list[i]; i++) {
        if (!strcmp(text, list[i])) return i;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", list[i]);
    }
    these = list;
    const char *near = dt_scale_nearest(text, these_names);
    quit("%s: unknown word '%.40s'; expected %s%s%s%s", what, text, all, near ? "; did you mean " : "", near ? near : "",
         near ? "?" : "");
}
static int whole(const char *what, const char *text, long most)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || end == text || *end || v < 1 || v > most)
        quit("%s: found '%.40s', expected a whole number from 1 to %ld", what, text, most);
    return (int)v;
}
static double quantity(const char *what, const char *text, dt_scale_unit unit)
{
    double x;
    if (dt_scale_quantity(text, strlen(text), unit, &x)) quit("%s: %s", what, dt_plan_error());
    if (!(x > 0)) quit("%s: found '%.40s', expected more than 0", what, text);
    return x;
}
static void link_of(const char *what, const char *text, dt_scale_link *l, double latency) /* a name, a rate, or rate,latency */
{
    char        rate[64];
    const char *comma = strchr(text, ',');
    if (*text < '0' || *text > '9') {
        if (dt_scale_link_find(text, l)) quit("%s: %s", what, dt_plan_error());
        return;
    }
    memset(l, 0, sizeof *l);
    snprintf(rate, sizeof rate, "%.*s", (int)(comma ? (comma - text < 63 ? comma - text : 63) : 63), text);
    l->rate = quantity(what, rate, DT_SCALE_RATE);
    l->latency = comma ? quantity(what, comma + 1, DT_SCALE_SECONDS) : latency;
}
static void layout_of(const char *text, dt_scale_layout *l)
{
    static const char *const key[] = { "data", "pipe", "tensor", "zero", "micro", "chunks", "schedule", "recompute", NULL };
    static const char       *kinds[DT_PIPE_KIND_COUNT + 1];
    char                     one[64];
    for (int i = 0; i < (int)DT_PIPE_KIND_COUNT; i++) kinds[i] = dt_pipe_kind_name((dt_pipe_kind)i);
    int *number[] = { &l->data, &l->pipe, &l->tensor, &l->zero, &l->micro, &l->chunks };
    while (*text) {
        size_t n = strcspn(text, ",");
        snprintf(one, sizeof one, "%.*s", (int)(n < 63 ? n : 63), text);
        char *is = strchr(one, '=');
        if (!is) quit("--layout: found '%.40s', expected NAME=VALUE, such as data=4,pipe=2", one);
        *is = 0;
        int k = word("--layout", one, key);
        if (k == 3 && !strcmp(is + 1, "0")) l->zero = 0;
        else if (k < 6) *number[k] = whole("--layout", is + 1, k == 3 ? 3 : 1 << 20);
        else if (k == 6) l->schedule = (dt_pipe_kind)word("--layout: schedule", is + 1, kinds);
        else l->recompute = word("--layout: recompute", is + 1, recomputes);
        text += n + (text[n] == ',');
    }
}
static char *file_text(const char *path, size_t *n)
{
    FILE  *f = fopen(path, "rb");
    size_t cap = 1 << 16;
    char  *text = (char *)room(cap, 1);
    quit_status = 1;
    if (!f) quit("%s: cannot open the file: %s", path, strerror(errno));
    *n = 0;
    for (size_t got; (got = fread(text + *n, 1, cap - *n, f)) > 0;) {
        *n += got;
        if (*n == cap && cap >= 1 << 25) quit("%s: the file has 32 MiB or more; expected a profile or a cluster", path);
        if (*n == cap && !(text = (char *)realloc(text, cap *= 2))) quit("out of memory");
    }
    if (ferror(f)) quit("%s: cannot read the file: %s", path, strerror(errno));
    fclose(f);
    quit_status = 2;
    return text;
}
static void ask(question *q, int argc, char **argv)
{
    static const bool has_value[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    const char       *device = NULL, **given = (const char **)room(FIRST_ANSWER, sizeof *given);
    memset(q, 0, sizeof *q);
    q->given = given;
    dt_scale_cluster_default(&q->c);
    q->ranks = 4096;
    for (int i = 1; i < argc; i++) {
        int k = 0;
        if (!strcmp(argv[i], "--sweep")) { /* the rest is the trainer's */
            if (q->answer > JSON) quit("--sweep: another answer was asked for already; it goes with --json only");
            q->sweep_json = q->answer == JSON;
            q->answer = SWEEP;
            q->argc = argc - i - 1, q->argv = argv + i + 1;
            break;
        }
        while (names[k] && strcmp(argv[i], names[k]) != 0) k++;
        if (!strcmp(argv[i], "-h")) k = HELP;
        if (!names[k]) {
            const char *near = dt_scale_nearest(argv[i], option_name);
            quit("unknown option '%.60s'%s%s%s; dtplan --help lists the options", argv[i], near ? "; did you mean " : "",
                 near ? near : "", near ? "?" : "");
        }
        if (k == HELP) exit(fputs(help, stdout) < 0);
        if (k == VERSION) exit(printf("dtplan %s\n", DT_VERSION) < 0);
        if (k >= FIRST_ANSWER) {
            if (q->answer) quit("%s: another answer was asked for already; ask for one at a time", argv[i]);
            q->answer = JSON + k - FIRST_ANSWER;
            if (q->answer == SCALE && i + 1 < argc && argv[i + 1][0] != '-') q->ranks = whole("--scale", argv[++i], 8192);
            continue;
        }
        if (given[k]) quit("%s: it is given twice; expected once", names[k]);
        if (has_value[k] && i + 1 == argc) quit("%s: its value is missing; dtplan --help shows it", names[k]);
        given[k] = has_value[k] ? argv[++i] : "";
    }
    if (given[CLUSTER])
        for (int k = MACHINES; k <= STORAGE; k++)
            if (given[k]) quit("%s: the cluster is described by %s already; change it there", names[k], given[CLUSTER]);
    if (given[MODEL] && given[PROFILE]) quit("--model and --profile: expected one of them");
    if (given[DEVICE] && given[FLOPS]) quit("--device and --flops: expected one of them");
    if (given[CLUSTER]) {
        size_t n;
        char  *text = file_text(given[CLUSTER], &n);
        if (dt_scale_cluster_parse(&q->c, given[CLUSTER], text, n)) quit("%s", dt_plan_error());
        free(text);
    }
    if (given[MACHINES]) q->c.machines = whole("--machines", given[MACHINES], 1 << 20);
    if (given[PER_MACHINE]) q->c.per_machine = whole("--per-machine", given[PER_MACHINE], 1 << 20);
    if ((device = given[DEVICE]) && dt_scale_device_find(device, &q->c.device)) quit("--device: %s", dt_plan_error());
    if (given[FLOPS]) {
        memset(&q->c.device, 0, sizeof q->c.device);
        snprintf(q->c.device.name, sizeof q->c.device.name, "device");
        q->c.device.speed = quantity("--flops", given[FLOPS], DT_SCALE_SPEED);
    }
    if (given[PROFILE] && !given[CLUSTER] && !device && !given[FLOPS]) { /* the profile is of an unknown device */
        memset(&q->c.device, 0, sizeof q->c.device);
        snprintf(q->c.device.name, sizeof q->c.device.name, "the profiled device");
        q->c.reduce = dt_costs_default().gamma;
    }
    if (given[MEMORY]) q->c.device.memory = quantity("--memory", given[MEMORY], DT_SCALE_BYTES);
    if (given[INTRA]) link_of("--intra", given[INTRA], &q->c.intra, 5.7e-6);
    if (given[INTER]) link_of("--inter", given[INTER], &q->c.inter, 30e-6);
    if (given[OWN_LINKS]) q->c.shared = false;
    if (given[STORAGE]) q->c.storage = quantity("--storage", given[STORAGE], DT_SCALE_RATE);
    if (given[BATCH]) q->o.batch = whole("--batch", given[BATCH], 1 << 30);
    if (given[PRECISION]) q->o.precision = word("--precision", given[PRECISION], precisions);
    if (given[OPTIMIZER]) {
        static const int states[] = { -1, 1, 2 };
        q->o.states = states[word("--optimizer", given[OPTIMIZER], optimizers)];
    }
    if (given[LAYOUT]) layout_of(given[LAYOUT], &q->o.layout);
    q->layout = given[LAYOUT] != NULL;
    if (given[SERVERS]) q->o.servers = whole("--servers", given[SERVERS], 1 << 20);
    if (given[SERVING]) q->o.serving = word("--serving", given[SERVING], servings);
    if (given[ALGO] && (q->o.algo = dt_algo_find(given[ALGO])) == DT_ALGO_COUNT) {
        static const char *list[DT_ALGO_COUNT + 1];
        for (int i = 0; i < (int)DT_ALGO_COUNT; i++) list[i] = dt_algo_name((dt_algo)i);
        word("--algo", given[ALGO], list);
    }
    if (given[BUCKET]) q->o.bucket = quantity("--bucket", given[BUCKET], DT_SCALE_BYTES);
    if (given[NO_OVERLAP]) q->o.overlap = DT_NO;
    if (given[COMPRESS]) {
        char  *end;
        double v = strtod(given[COMPRESS], &end);
        if (end == given[COMPRESS] || strcmp(end, "%") != 0 || !(v > 0) || v > 100)
            quit("--compress: found '%.40s', expected a part in percent, such as 50%%", given[COMPRESS]);
        q->o.compress = v / 100;
    }
    q->o.cluster = &q->c;
    for (int k = 0; k < FIRST_ANSWER; k++)
        if (given[k] && (q->answer == SWEEP) != (k >= BATCHES))
            quit("%s: %s", names[k], k >= BATCHES ? "it goes with --sweep only, and before it" : "it does not go with --sweep");
    if (q->answer > TRACE) return;
    if (given[PROFILE]) {
        size_t n;
        char  *text = file_text(given[PROFILE], &n);
        if (!(q->m = dt_scale_profile_parse(given[PROFILE], text, n))) quit("%s", dt_plan_error());
        free(text);
    } else if (!given[MODEL])
        quit("what should be trained? Give --model NAME or --profile FILE; dtplan --help lists all options");
    else if (!(q->m = dt_scale_model_new(given[MODEL]))) {
        const char *e = dt_plan_error(), *rest = strstr(e, ": ");
        quit("--model: %s", rest ? rest + 2 : e);
    }
    q->o.model = q->m;
    if (!(q->o.batch > 0) && q->m->tokens > 0 && !(q->m->batch > 0)) q->o.batch = 1;
}

/* ---------------------------------------------------------------------------------------------------- words for numbers */
static const char *shown(double x, dt_scale_unit unit)
{
    static char text[16][48];
    static int  at;
    return dt_scale_show(text[at = (at + 1) % 16], sizeof text[0], x, unit);
}
#define S(x) shown(x, DT_SCALE_SECONDS)
#define B(x) shown(x, DT_SCALE_BYTES)
#define R(x) shown(x, DT_SCALE_RATE)
static const char *layout_text(const dt_scale_layout *l)
{
    static char text[4][160];
    static int  at;
    char       *t = text[at = (at + 1) % 4];
    size_t      n = sizeof text[0];
    snprintf(t, n, "data %d", l->data);
    if (l->pipe > 1) snprintf(t + strlen(t), n - strlen(t), " x pipe %d", l->pipe);
    if (l->tensor > 1) snprintf(t + strlen(t), n - strlen(t), " x tensor %d", l->tensor);
    if (l->zero) snprintf(t + strlen(t), n - strlen(t), ", ZeRO-%d", l->zero);
    if (l->micro > 1) snprintf(t + strlen(t), n - strlen(t), ", %d micro-batches", l->micro);
    if (l->pipe > 1) snprintf(t + strlen(t), n - strlen(t), ", %s", dt_pipe_kind_name(l->schedule));
    if (l->recompute) snprintf(t + strlen(t), n - strlen(t), ", recompute %s", recomputes[l->recompute]);
    return t;
}
static dt_scale_prediction *predict(const dt_scale_opts *o)
{
    dt_scale_prediction *p = dt_scale_predict(o);
    if (!p) quit("%s", dt_plan_error());
    return p;
}
static const char *bottleneck(const dt_scale_prediction *p)
{
    if (p->input > 0.1 * p->step) return "input: storage or loader do not give data fast enough";
    if (p->bubble > p->exposed && p->bubble > 0.1 * p->step) return "the idle time of the pipeline";
    if (p->exposed > 0.1 * p->step) return p->t2 > p->t1 ? "communication: T2 is above T1" : "communication that nothing hides";
    return "computation: communication is hidden";
}

/* ---------------------------------------------------------------------------------------------------- findings */
typedef struct variant {
    const char          *what;
    dt_scale_prediction *p; /* NULL: not possible */
    char                 text[120];
} variant;
enum { MEMORIES = 6, CHANGES = 16, POINTS = 24, BEST = 5 };
typedef struct findings {
    dt_scale_prediction *p;
    variant              memory[MEMORIES], change[CHANGES];
    int                  nmemory, nchanges, nbest, linear;
    dt_scale_choice      best[BEST];
    int64_t              tried, fitting;
    struct {
        int    machines;
        double efficiency, t1, t2, step, rate;
    } point[POINTS];
    int    npoints;
    double crossing; /* machines at which T1 = T2; 0: none in the picture */
    char   why[400]; /* why the obvious layout is not the best */
} findings;
static void add_memory(findings *f, const question *q, const char *what, dt_scale_layout l)
{
    dt_scale_opts o = q->o;
    o.layout = l;
    o.servers = o.serving = 0;
    variant *v = &f->memory[f->nmemory];
    v->what = what;
    v->p = dt_scale_predict(&o);
    if (v->p) f->nmemory++;
}
static void memories(findings *f, const question *q)
{
    static const char *const zero[] = { "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3" };
    dt_scale_layout          l;
    memset(&l, 0, sizeof l);
    for (; l.zero < 4; l.zero++) add_memory(f, q, zero[l.zero], l);
    l.zero = 0;
    l.pipe = f->p->devices < 4 ? f->p->devices : 4;
    l.micro = q->o.batch >= 16 || !q->o.batch ? 0 : 1;
    if (l.pipe > 1 && f->p->devices % l.pipe == 0)
        add_memory(f, q, l.pipe == 4 ? "pipeline 4" : l.pipe == 3 ? "pipeline 3" : "pipeline 2", l);
    l.pipe = l.micro = 0;
    l.tensor = q->c.per_machine < 8 ? q->c.per_machine : 8;
    static char name[32];
    snprintf(name, sizeof name, "tensor %d", l.tensor);
    if (l.tensor > 1) add_memory(f, q, name, l);
}
static void add_change(findings *f, const char *what, const dt_scale_opts *o)
{
    variant *v = &f->change[f->nchanges];
    snprintf(v->text, sizeof v->text, "%s", what);
    v->what = v->text;
    v->p = dt_scale_predict(o);
    if (v->p && f->nchanges + 1 < CHANGES) f->nchanges++;
    else dt_scale_prediction_free(v->p);
}
static void changes(findings *f, const question *q)
{
    dt_scale_opts    o = q->o;
    dt_scale_cluster c = q->c;
    int              n = f->p->layout.data, machines = q->c.machines;
    char             text[120];
    bool             flat = f->p->layout.pipe == 1 && f->p->layout.tensor == 1 && f->p->layout.zero == 0;
    double           now = o.compress > 0 ? o.compress : 1;
    o.cluster = &c;
    if (n > 1) {
        o.compress = now / 2;
        add_change(f, "gradients in half the bytes (f16 on the wire)", &o);
        o.compress = 0.01 * n; /* pairs of 8 bytes, gathered from all ranks: 8 k (p - 1) bytes against 2 * 4 n (p - 1) / p */
        snprintf(text, sizeof text, "top-k of 1 %% by allgather: %.3g times the bytes", o.compress);
        add_change(f, text, &o);
        o.compress = n / 64.0;
        snprintf(text, sizeof text, "1-bit signs by allgather: %.3g times the bytes", o.compress);
        add_change(f, text, &o);
        o.compress = q->o.compress;
    }
    if (machines > 1 && q->c.per_machine > 1 && flat) {
        o.algo = DT_ALGO_TWO_LEVEL;
        add_change(f, "two levels: inside machines, then between them", &o);
        o.algo = DT_ALGO_RING;
        add_change(f, "one ring over all devices", &o);
        o.algo = q->o.algo;
    }
    if (machines > 1 && flat) {
        for (int k = 1; k <= machines; k = k * 2 < machines || k == machines ? k * 2 : machines) {
            if (k != 1 && k != machines && k != (machines + 1) / 2) continue;
            o.servers = k;
            snprintf(text, sizeof text, "a parameter server on %d machine%s of its own", k, k > 1 ? "s" : "");
            add_change(f, text, &o);
        }
        o.servers = (machines + 1) / 2;
        o.serving = DT_SCALE_BYTEPS;
        snprintf(text, sizeof text, "BytePS with %d machines without devices", o.servers);
        add_change(f, text, &o);
        o.servers = q->o.servers, o.serving = q->o.serving;
    }
    if (machines > 1) {
        c.inter.rate *= 2;
        add_change(f, "twice the rate between machines", &o);
        c.inter.rate *= 5;
        add_change(f, "ten times the rate between machines", &o);
        c.inter.rate = q->c.inter.rate;
    }
    if (q->c.per_machine > 1) {
        c.intra.rate *= 2;
        add_change(f, "twice the rate inside machines", &o);
        c.intra.rate = q->c.intra.rate;
    }
    o.batch = f->p->batch * 2;
    add_change(f, "twice the batch of each device", &o);
}
static void curve(findings *f, const question *q)
{
    dt_scale_opts    o = q->o;
    dt_scale_cluster c = q->c;
    double           before = 0;
    o.cluster = &c;
    o.layout.data = 0;
    int most = q->c.machines * 4 > 64 ? q->c.machines * 4 : 64;
    for (int n = 1; n <= most && f->npoints < POINTS; n *= 2) {
        c.machines = n;
        dt_scale_prediction *p = dt_scale_predict(&o);
        if (!p) continue; /* the layout has more devices */
        int i = f->npoints++;
        f->point[i].machines = n;
        f->point[i].efficiency = p->efficiency, f->point[i].t1 = p->t1, f->point[i].t2 = p->t2, f->point[i].step = p->step,
        f->point[i].rate = p->rate;
        double over = p->t1 > 0 ? p->t2 / p->t1 : 0;
        if (over >= 1 && !(f->crossing > 0))
            f->crossing = i && before > 0 && over > before ? n / 2.0 * pow(2, log(1 / before) / log(over / before)) : n;
        before = over;
        dt_scale_prediction_free(p);
    }
}
static void answer(findings *f, const question *q)
{
    memset(f, 0, sizeof *f);
    f->p = predict(&q->o);
    if (q->answer == TRACE) return;
    curve(f, q);
    if (q->answer == SVG) return;
    memories(f, q);
    changes(f, q);
    dt_scale_opts o = q->o;
    if (f->p->devices > 1) f->linear = dt_scale_linear_batch(&o);
    o.batch = f->p->batch / (f->p->layout.pipe * f->p->layout.tensor); /* dt_scale_search: of each device */
    memset(&o.layout, 0, sizeof o.layout);
    o.compress = 0, o.encode = 0;
    f->nbest = o.batch > 0 ? dt_scale_search(&o, f->best, BEST, &f->tried, &f->fitting) : 0;
    if (f->nbest < 0) f->nbest = 0;
    const variant *v = f->nmemory ? &f->memory[0] : NULL; /* DDP is the obvious layout */
    if (v && v->p && f->nbest) {
        const dt_scale_layout *l = &f->best[0].layout;
        if (!v->p->fits)
            snprintf(f->why, sizeof f->why, "DDP, the obvious layout, needs %s of memory; the device has %s",
                     B(v->p->memory.all), B(q->c.device.memory));
        else if (l->pipe == 1 && l->tensor == 1 && !l->zero)
            snprintf(f->why, sizeof f->why, "DDP, the obvious layout, is the best");
        else
            snprintf(f->why, sizeof f->why, "DDP, the obvious layout, takes %s: %s of communication is not hidden%s", S(v->p->step),
                     S(v->p->exposed), l->zero ? ", and each device updates all parameters" : "");
    }
}

/* ---------------------------------------------------------------------------------------------------- text */
static void write_text(FILE *f, const question *q, const findings *r)
{
    const dt_scale_prediction *p = r->p;
    const dt_scale_cluster    *c = &q->c;
    const char                *unit = q->m->unit;
    dt_scale_sums              sums = dt_scale_model_sums(q->m);
    fprintf(f, "%s: %.4g M parameters, %s a forward of one %s%s\n", q->m->name, (double)sums.params / 1e6,
            shown(sums.flops, DT_SCALE_FLOP), unit, q->m->batch > 0 ? ", from a profile" : "");
    fprintf(f, "%d x %s: %d machine%s with %d", p->devices, c->device.name, c->machines, c->machines > 1 ? "s" : "",
            c->per_machine);
    if (c->per_machine > 1)
        fprintf(f, ", inside %s%s", R(c->intra.rate),
                c->inside == DT_SCALE_RING     ? " in a ring"
                : c->inside == DT_SCALE_SWITCH ? " through one switch"
                                               : "");
    if (c->machines > 1)
        fprintf(f, ", between them %s%s", R(c->inter.rate),
                c->shared || c->per_machine == 1 ? " for each machine" : " for each device");
    fprintf(f, "\n%s, %g %ss a rank, %g in all, %s\n\n", layout_text(&p->layout), p->batch, unit, p->batch * p->layout.data,
            q->m->batch > 0 ? "as profiled" : precisions[q->o.precision]);
    fprintf(f, "step            %s: %.4g %ss a second", S(p->step), p->rate, unit);
    if (q->m->tokens) fprintf(f, " (%.4g tokens)", p->rate * q->m->tokens);
    fprintf(f, ", %.1f %% of linear\n", 100 * p->efficiency);
    fprintf(f, "T1 computation  %s = forward %s + backward %s + update %s\n", S(p->t1), S(p->forward), S(p->backward),
            S(p->update));
    fprintf(f, "T2 communication %s; max(T1, T2) = %s\n", S(p->t2), S(p->t1 > p->t2 ? p->t1 : p->t2));
    fprintf(f, "exposed         %s of communication", S(p->exposed));
    if (p->bubble > 0) fprintf(f, ", %s idle in the pipeline", S(p->bubble));
    if (p->input > 0) fprintf(f, ", %s waiting for data", S(p->input));
    fprintf(f, "\nbottleneck      %s\n", bottleneck(p));
    if (!p->fits)
        fprintf(f, "memory          it does not fit: a device needs %s and has %s\n", B(p->memory.all), B(c->device.memory));
    if (p->devices > 1) {
        if (r->linear > 0)
            fprintf(f, "linear from     %d %ss a rank on (at most 5 %% of the step is exposed communication)\n", r->linear,
                    unit);
        else fprintf(f, "linear          with no batch up to 65536\n");
    }
    if (q->m->sample_bytes > 0)
        fprintf(f, "data            %s from storage, %s for each machine (%s a%s %s)\n", R(p->data_rate),
                R(p->data_rate / c->machines), B(q->m->sample_bytes), *unit == 'i' ? "n" : "", unit);
    if (p->nbuckets)
        fprintf(f, "\nBuckets of gradients, in the order in which they become ready:\n%4s %10s %12s %12s %12s  %s\n", "",
                "bytes", "ready", "start", "end", "algorithm");
    for (int i = 0; i < p->nbuckets; i++) {
        const dt_scale_bucket *b = &p->bucket[i];
        if (p->nbuckets > 12 && i >= 6 && i < p->nbuckets - 5) {
            if (i == 6) fprintf(f, "   ... %d more\n", p->nbuckets - 11);
            continue;
        }
        fprintf(f, "%4d %10s %12s %12s %12s  %s\n", i, B(b->nbytes), S(b->ready), S(b->start), S(b->end),
                b->algo == DT_ALGO_NATIVE ? "parameter server" : dt_algo_name(b->algo));
    }
    fprintf(f, "\nMemory of a device%s%s:\n%-12s %10s %10s %10s %12s %10s %10s %10s\n",
            c->device.memory > 0 ? ", which has " : "", c->device.memory > 0 ? B(c->device.memory) : "", "", "parameters",
            "gradients", "optimizer", "activations", "workspace", "buckets", "all");
    for (int i = 0; i < r->nmemory; i++) {
        const dt_scale_memory *m = &r->memory[i].p->memory;
        fprintf(f, "%-12s %10s %10s %10s %12s %10s %10s %10s%s\n", r->memory[i].what, B(m->parameters), B(m->gradients),
                B(m->states), B(m->activations), B(m->workspace), B(m->buckets), B(m->all),
                r->memory[i].p->fits ? "" : "  too much");
    }
    if (p->devices > 1) {
        fprintf(f, "\nBest layouts for %g %ss a step: %lld tried, %lld fit\n", p->batch * p->layout.data, unit,
                (long long)r->tried, (long long)r->fitting);
        for (int i = 0; i < r->nbest; i++)
            fprintf(f, "%2d. %-62s %10s %8.1f %% of linear %10s\n", i + 1, layout_text(&r->best[i].layout), S(r->best[i].step),
                    100 * r->best[i].efficiency, B(r->best[i].memory.all));
        if (!r->nbest) fprintf(f, "    none fits: take more devices, more memory, or a smaller batch\n");
        if (r->why[0]) fprintf(f, "%s\n", r->why);
    }
    if (r->nchanges) fprintf(f, "\nWhat would help:\n");
    for (int i = 0; i < r->nchanges; i++) {
        const dt_scale_prediction *v = r->change[i].p;
        fprintf(f, "  %-50s step %10s, %6.1f %% of linear, %+6.1f %% %ss a second\n", r->change[i].what, S(v->step),
                100 * v->efficiency, 100 * (v->rate / p->rate - 1), unit);
    }
    fprintf(f, "\n%9s %9s %12s %12s %12s %10s\n", "machines", "devices", "T1", "T2", "step", "of linear");
    for (int i = 0; i < r->npoints; i++)
        fprintf(f, "%9d %9d %12s %12s %12s %8.1f %%\n", r->point[i].machines, r->point[i].machines * c->per_machine,
                S(r->point[i].t1), S(r->point[i].t2), S(r->point[i].step), 100 * r->point[i].efficiency);
    if (r->crossing > 0) fprintf(f, "T1 = T2 at about %.3g machines\n", r->crossing);
}

/* ---------------------------------------------------------------------------------------------------- JSON */
static void json_string(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        if (ch == '"' || ch == '\\') fprintf(f, "\\%c", ch);
        else if (ch < ' ') fprintf(f, "\\u%04x", ch);
        else fputc(ch, f);
    }
    fputc('"', f);
}
static void json_number(FILE *f, const char *name, double x, const char *after)
{
    fprintf(f, "\"%s\": %.9g%s", name, isfinite(x) ? x : 0, after);
}
static void json_memory(FILE *f, const dt_scale_memory *m)
{
    fprintf(f, "{ ");
    json_number(f, "parameters", m->parameters, ", ");
    json_number(f, "gradients", m->gradients, ", ");
    json_number(f, "optimizer", m->states, ", ");
    json_number(f, "activations", m->activations, ", ");
    json_number(f, "workspace", m->workspace, ", ");
    json_number(f, "buckets", m->buckets, ", ");
    json_number(f, "all", m->all, " }");
}
static void json_layout(FILE *f, const dt_scale_layout *l)
{
    fprintf(f,
            "{ \"data\": %d, \"pipe\": %d, \"tensor\": %d, \"zero\": %d, \"micro\": %d, \"schedule\": \"%s\", \"recompute\": "
            "\"%s\" }",
            l->data, l->pipe, l->tensor, l->zero, l->micro, dt_pipe_kind_name(l->schedule), recomputes[l->recompute]);
}
static void json_step(FILE *f, const dt_scale_prediction *p)
{
    json_number(f, "step", p->step, ", ");
    json_number(f, "rate", p->rate, ", ");
    json_number(f, "efficiency", p->efficiency, ", ");
    json_number(f, "t1", p->t1, ", ");
    json_number(f, "t2", p->t2, ", ");
    json_number(f, "forward", p->forward, ", ");
    json_number(f, "backward", p->backward, ", ");
    json_number(f, "update", p->update, ", ");
    json_number(f, "exposed", p->exposed, ", ");
    json_number(f, "bubble", p->bubble, ", ");
    json_number(f, "input", p->input, ", ");
    json_number(f, "data_rate", p->data_rate, "");
}
static void write_json(FILE *f, const question *q, const findings *r)
{
    const dt_scale_prediction *p = r->p;
    dt_scale_sums              sums = dt_scale_model_sums(q->m);
    fprintf(f, "{\n  \"model\": ");
    json_string(f, q->m->name);
    fprintf(f, ", \"unit\": ");
    json_string(f, q->m->unit);
    fprintf(f, ", \"parameters\": %lld, ", (long long)sums.params);
    json_number(f, "flop", sums.flops, ",\n  ");
    fprintf(f, "\"device\": ");
    json_string(f, q->c.device.name);
    fprintf(f, ", \"machines\": %d, \"per_machine\": %d, \"devices\": %d, \"batch\": %.9g, \"layout\": ", q->c.machines,
            q->c.per_machine, p->devices, p->batch);
    json_layout(f, &p->layout);
    fprintf(f, ",\n  ");
    json_step(f, p);
    fprintf(f, ", \"fits\": %s, \"linear_batch\": %d,\n  \"bottleneck\": ", p->fits ? "true" : "false", r->linear);
    json_string(f, bottleneck(p));
    fprintf(f, ",\n  \"buckets\": [");
    for (int i = 0; i < p->nbuckets; i++) {
        fprintf(f, "%s\n    { ", i ? "," : "");
        json_number(f, "bytes", p->bucket[i].nbytes, ", ");
        json_number(f, "ready", p->bucket[i].ready, ", ");
        json_number(f, "start", p->bucket[i].start, ", ");
        json_number(f, "end", p->bucket[i].end, ", ");
        fprintf(f, "\"algorithm\": \"%s\" }", p->bucket[i].algo == DT_ALGO_NATIVE ? "server" : dt_algo_name(p->bucket[i].algo));
    }
    fprintf(f, " ],\n  \"memory\": [");
    for (int i = 0; i < r->nmemory; i++) {
        fprintf(f, "%s\n    { \"layout\": ", i ? "," : "");
        json_string(f, r->memory[i].what);
        fprintf(f, ", \"fits\": %s, \"bytes\": ", r->memory[i].p->fits ? "true" : "false");
        json_memory(f, &r->memory[i].p->memory);
        fprintf(f, " }");
    }
    fprintf(f, " ],\n  \"tried\": %lld, \"fitting\": %lld, \"best\": [", (long long)r->tried, (long long)r->fitting);
    for (int i = 0; i < r->nbest; i++) {
        fprintf(f, "%s\n    { \"layout\": ", i ? "," : "");
        json_layout(f, &r->best[i].layout);
        fprintf(f, ", ");
        json_number(f, "step", r->best[i].step, ", ");
        json_number(f, "efficiency", r->best[i].efficiency, ", \"memory\": ");
        json_memory(f, &r->best[i].memory);
        fprintf(f, " }");
    }
    fprintf(f, " ],\n  \"why\": ");
    json_string(f, r->why);
    fprintf(f, ",\n  \"changes\": [");
    for (int i = 0; i < r->nchanges; i++) {
        fprintf(f, "%s\n    { \"what\": ", i ? "," : "");
        json_string(f, r->change[i].what);
        fprintf(f, ", ");
        json_step(f, r->change[i].p);
        fprintf(f, " }");
    }
    fprintf(f, " ],\n  \"machines_curve\": [");
    for (int i = 0; i < r->npoints; i++) {
        fprintf(f, "%s\n    { \"machines\": %d, ", i ? "," : "", r->point[i].machines);
        json_number(f, "t1", r->point[i].t1, ", ");
        json_number(f, "t2", r->point[i].t2, ", ");
        json_number(f, "step", r->point[i].step, ", ");
        json_number(f, "efficiency", r->point[i].efficiency, " }");
    }
    fprintf(f, " ],\n  ");
    json_number(f, "crossing", r->crossing, "\n}\n");
}

/* ---------------------------------------------------------------------------------------------------- pictures */
static void escaped(FILE *f, const char *s) /* for SVG and HTML */
{
    for (; *s; s++) {
        if (*s == '<') fputs("&lt;", f);
        else if (*s == '>') fputs("&gt;", f);
        else if (*s == '&') fputs("&amp;", f);
        else if (*s == '"') fputs("&quot;", f);
        else fputc(*s, f);
    }
}
static void write_svg(FILE *f, const question *q, const findings *r)
{
    const double W = 760, H = 420, left = 70, right = 20, top = 50, low = 60;
    double       first = 0, last = log2(r->npoints > 1 ? r->point[r->npoints - 1].machines : 2), high = 1;
    for (int i = 0; i < r->npoints; i++) high = r->point[i].efficiency > high ? r->point[i].efficiency : high;
    high = ceil(high * 5 - 1e-9) / 5;
#define X(m) (left + (log2(m) - first) / (last - first) * (W - left - right))
#define Y(e) (H - low - (e) / high * (H - low - top))
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n", W, H, W,
            H);
    fprintf(f, "<style>text{font:12px "
               "sans-serif;fill:#333}.grid{stroke:#ddd}.p{fill:none;stroke:#2468b4;stroke-width:2.5}.b{fill:none;stroke:#999;"
               "stroke-width:1.5;"
               "stroke-dasharray:6 4}.x{stroke:#c8321e;stroke-width:1.5;stroke-dasharray:3 3}</style>\n");
    fprintf(f,
            "<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n<text x=\"%.0f\" y=\"24\" "
            "style=\"font-size:15px;font-weight:bold\">",
            W, H, left);
    escaped(f, q->m->name);
    fprintf(f, ": efficiency by the number of machines with %d ", q->c.per_machine);
    escaped(f, q->c.device.name);
    fprintf(f, "</text>\n");
    for (int k = 0; k <= 5; k++) {
        double e = high * k / 5;
        fprintf(f,
                "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/><text x=\"%.1f\" y=\"%.1f\" "
                "text-anchor=\"end\">%.0f %%</text>\n",
                left, Y(e), W - right, Y(e), left - 8, Y(e) + 4, 100 * e);
    }
    for (int i = 0; i < r->npoints; i++)
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d</text>\n", X(r->point[i].machines), H - low + 20,
                r->point[i].machines);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">machines</text>\n", (left + W - right) / 2, H - 18);
    for (int k = 0; k < 2; k++) { /* the bound, the prediction */
        fprintf(f, "<polyline class=\"%s\" points=\"", k ? "p" : "b");
        for (int i = 0; i < r->npoints; i++) {
            double t = r->point[i].t1 > r->point[i].t2 ? r->point[i].t1 : r->point[i].t2;
            fprintf(f, "%.1f,%.1f ", X(r->point[i].machines), Y(k ? r->point[i].efficiency : t > 0 ? r->point[i].t1 / t : 1));
        }
        fprintf(f, "\"/>\n");
    }
    for (int i = 0; i < r->npoints; i++)
        fprintf(f,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"#2468b4\"><title>%d machines: %.1f %%, step %s, T1 %s, T2 "
                "%s</title></circle>\n",
                X(r->point[i].machines), Y(r->point[i].efficiency), r->point[i].machines == q->c.machines ? 6 : 3,
                r->point[i].machines, 100 * r->point[i].efficiency, S(r->point[i].step), S(r->point[i].t1), S(r->point[i].t2));
    if (r->crossing > 0)
        fprintf(
            f,
            "<line class=\"x\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/><text x=\"%.1f\" y=\"%.1f\">T1 = T2</text>\n",
            X(r->crossing), top, X(r->crossing), H - low,
            X(r->crossing) + 4 > W - 70 ? X(r->crossing) - 56 : X(r->crossing) + 4, top + 12);
    else
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">T2 is below T1 up to %d machines</text>\n", W - right,
                top - 8, r->npoints ? r->point[r->npoints - 1].machines : 1);
    fprintf(f,
            "<text x=\"%.1f\" y=\"%.1f\" fill=\"#2468b4\">predicted</text><text x=\"%.1f\" y=\"%.1f\">dashed: T1 / max(T1, "
            "T2)</text>\n</svg>\n",
            left + 10, H - low - 24, left + 10, H - low - 8);
#undef X
#undef Y
}
static void write_html(FILE *f, const question *q, const findings *r)
{
    char  *text = NULL;
    size_t n = 0;
    FILE  *t = open_memstream(&text, &n);
    if (!t) quit("out of memory");
    write_text(t, q, r);
    if (fclose(t)) quit("out of memory");
    fprintf(f, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>dtplan: ");
    escaped(f, q->m->name);
    fprintf(f,
            "</title><style>body{font:15px sans-serif;margin:2em "
            "auto;max-width:70em;color:#222}pre{background:#f5f5f5;padding:1em;overflow-x:auto}"
            "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3em "
            ".6em;text-align:right}td:first-child,th:first-child{text-align:left}</style></head>\n<body><h1>Will it scale? ");
    escaped(f, q->m->name);
    fprintf(f, "</h1>\n<p>%d devices: <b>%.4g %ss a second, %.1f %% of linear</b>. Bottleneck: ", r->p->devices, r->p->rate,
            q->m->unit, 100 * r->p->efficiency);
    escaped(f, bottleneck(r->p));
    fprintf(f, ".</p>\n");
    write_svg(f, q, r);
    fprintf(f, "<h2>Best layouts</h2>\n<table><tr><th>layout</th><th>step</th><th>of linear</th><th>memory</th></tr>\n");
    for (int i = 0; i < r->nbest; i++)
        fprintf(f, "<tr><td>%s</td><td>%s</td><td>%.1f %%</td><td>%s</td></tr>\n", layout_text(&r->best[i].layout),
                S(r->best[i].step), 100 * r->best[i].efficiency, B(r->best[i].memory.all));
    fprintf(f, "</table><p>");
    escaped(f, r->why);
    fprintf(
        f,
        "</p>\n<h2>What would help</h2>\n<table><tr><th>change</th><th>step</th><th>of linear</th><th>%ss a second</th></tr>\n",
        q->m->unit);
    for (int i = 0; i < r->nchanges; i++) {
        fprintf(f, "<tr><td>");
        escaped(f, r->change[i].what);
        fprintf(f, "</td><td>%s</td><td>%.1f %%</td><td>%+.1f %%</td></tr>\n", S(r->change[i].p->step),
                100 * r->change[i].p->efficiency, 100 * (r->change[i].p->rate / r->p->rate - 1));
    }
    fprintf(f, "</table>\n<h2>All of it</h2>\n<pre>");
    escaped(f, text);
    fprintf(f, "</pre></body></html>\n");
    free(text);
}
static void write_trace(FILE *f, const question *q, const findings *r)
{
    static const char *const   kinds[] = { "", "forward", "backward", "reduce", "gather", "update" };
    const dt_scale_prediction *p = r->p;
    int                        ranks = p->layout.pipe;
    fprintf(f, "[\n");
    for (int i = 0; i < ranks; i++)
        for (int k = 0; k < 2; k++)
            fprintf(f, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"predicted %s\"}},\n",
                    i, k, k ? "communication" : "computation");
    for (int i = 0; i < p->nevents; i++) {
        const dt_scale_event *e = &p->event[i];
        bool                  comm = e->kind == DT_SCALE_EVENT_REDUCE || e->kind == DT_SCALE_EVENT_GATHER;
        fprintf(f, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":", e->rank, comm,
                e->start * 1e6, (e->end - e->start) * 1e6, kinds[e->kind]);
        if (ranks > 1) {
            char name[64];
            snprintf(name, sizeof name, "%s %d", kinds[e->kind], e->micro);
            json_string(f, name);
        } else {
            char name[DT_SCALE_NAME + 16];
            snprintf(name, sizeof name, "%s%s%s", kinds[e->kind], e->layer >= 0 ? " " : "",
                     e->layer >= 0 ? q->m->layer[e->layer].name : "");
            json_string(f, name);
        }
        fprintf(f, "},\n");
    }
    fprintf(f, "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":0,\"dur\":%.3f,\"cat\":\"step\",\"name\":\"step\"}\n]\n",
            p->step * 1e6);
}

/* ---------------------------------------------------------------------------------------------------- the table */
static int by_ratio(const void *a, const void *b)
{
    double x = ((const double *)a)[1], y = ((const double *)b)[1];
    return x < y ? -1 : x > y;
}
static void write_table(FILE *f)
{
    double row[32][2];
    int    n = 0;
    for (; n < 32 && dt_scale_model_name(n); n++) {
        dt_scale_model *m = dt_scale_model_new(dt_scale_model_name(n));
        if (!m) quit("%s", dt_plan_error());
        dt_scale_sums s = dt_scale_model_sums(m);
        row[n][0] = n;
        row[n][1] = 4.0 * (double)s.params / (s.flops + s.flops_back) * 1e9;
        dt_scale_model_free(m);
    }
    qsort(row, (size_t)n, sizeof row[0], by_ratio);
    fprintf(f, "| model | parameters | forward of a sample | bytes of gradients for each GFLOP of training | against ResNet-50 |\n"
               "|---|---|---|---|---|\n");
    double resnet = 1;
    for (int i = 0; i < n; i++)
        if (!strcmp(dt_scale_model_name((int)row[i][0]), "resnet50")) resnet = row[i][1];
    for (int i = 0; i < n; i++) {
        dt_scale_model *m = dt_scale_model_new(dt_scale_model_name((int)row[i][0]));
        if (!m) quit("%s", dt_plan_error());
        dt_scale_sums s = dt_scale_model_sums(m);
        fprintf(f, "| %s | %.2f M | %s%s | %s | %.3g |\n", m->name, (double)s.params / 1e6, shown(s.flops, DT_SCALE_FLOP),
                m->tokens ? ", a sequence" : "", B(row[i][1]), row[i][1] / resnet);
        dt_scale_model_free(m);
    }
}
#include "dtplan_judge.h"
#include "dtplan_scale.h"
#include "dtplan_sweep.h"

int main(int argc, char **argv)
{
    question q;
    findings r;
    int      status = 0;
    ask(&q, argc, argv);
    switch (q.answer) {
    case MODELS:
        for (int i = 0; dt_scale_model_name(i); i++) puts(dt_scale_model_name(i));
        break;
    case DEVICES: write_devices(stdout); break;
    case TABLE: write_table(stdout); break;
    case JUDGE: status = write_judgement(stdout); break;
    case SCALE: status = write_scale(stdout, &q); break;
    case CROSSOVERS: write_crossovers(stdout, &q); break;
    case CALIBRATE: {
        calibration c;
        if (calibrate(&c, 0, stderr)) quit("--calibrate: it failed; what was printed before says why");
        if (c.others > 0.05)
            fprintf(stderr, "dtplan: other programs had %.0f %% of the cores meanwhile: the figures are theirs, too\n", 100 * c.others);
        calibrate_print(stdout, &c);
        break;
    }
    case SWEEP: {
        sweep s;
        memset(&s, 0, sizeof s);
        s.argc = q.argc, s.argv = q.argv;
        sweep_options(&s, q.given);
        status = write_sweep(stdout, &s, q.sweep_json);
        break;
    }
    default:
        answer(&r, &q);
        if (q.answer == TEXT) write_text(stdout, &q, &r);
        else if (q.answer == JSON) write_json(stdout, &q, &r);
        else if (q.answer == HTML) write_html(stdout, &q, &r);
        else if (q.answer == SVG) write_svg(stdout, &q, &r);
        else write_trace(stdout, &q, &r);
        dt_scale_prediction_free(r.p);
        for (int i = 0; i < r.nmemory; i++) dt_scale_prediction_free(r.memory[i].p);
        for (int i = 0; i < r.nchanges; i++) dt_scale_prediction_free(r.change[i].p);
        dt_scale_model_free(q.m);
    }
    quit_status = 1;
    free(q.given);
    if (fflush(stdout) || ferror(stdout)) quit("cannot write the answer: %s", strerror(errno));
    return status;
}
