/* Compares one model that is cut into two stages with PyTorch's pipelines over gloo in one run: make bench-pipe

       bench_pipe [--rounds N] [--nets resnet20,gpt] [--parts rate,step,memory,virtual] [--python PATH] [--schedule NAME] [--cut N]
       bench_pipe --profile NET       seconds of each unit of the net, and the cuts that balance the stages

   rate      Two ranks with a thread each, 8 micro-batches, 1F1B. Beside: two processes of dt that do not communicate, each with the
             whole model and the same micro-batches. A pipeline of two stages is idle for one of nine parts of the time, so 8/9 of
             what the two reach together is the bound; target: 0.93 of it. Beside: torch.distributed.pipelining, Schedule1F1B.
             First the losses of five steps are compared: pipeline and whole model bit for bit, PyTorch's within rounding.
   step      The duration of dt_pipeline_backward beside dt_pipe_simulate with the times of the stages. Each rank measures its own
             stage, at the same time as the other rank, without messages. Target: 1.1 of the simulated one.
   memory    The peak of a rank above parameters, gradients, optimiser state and the batch, beside dt_pipe_memory: what the schedule
             holds, by the bytes of one micro-batch, which each rank measures on its own stage. Target: 1.1.
   virtual   Four ranks in virtual time, with equal times of forward and both parts of backward, and with measured ones:
             interleaved and ZB-H1 beside 1F1B. Target: not slower.

   The sides take turns; a ratio is the median of the rounds' ratios. */
#define DT__WANT_INSIDE
#include "dt_pipe.h"

#include <math.h>
#include <signal.h>

#include "sides.h"

enum { MICRO = 8, STAGES = 2, MOST_UNITS = 32, MOST_CUTS = 8, VIRTUAL_RANKS = 4 };

/* ---- the nets, as chains of units; a cut lies before a unit. bench/peer_pipe.py has the same. */
typedef struct flow { /* what goes from unit to unit */
    dt_tensor *t[2];
    int        n;
} flow;
typedef struct net {
    const char *name, *unit;
    int         nunits, cut; /* cut: the first unit of the second stage */
    dt_shape    x;
    int64_t     items;       /* of a batch */
    void (*run)(dt_model *m, int unit, flow *f, dt_tensor *y); /* the last unit makes the loss */
} net;

static void resnet20_unit(dt_model *m, int unit, flow *f, dt_tensor *y)
{
    dt_tensor *x = f->t[0];
    int        i = (unit - 1) / 3, out = 16 << i / 3, stride = i && i % 3 == 0 ? 2 : 1;
    f->n = 1;
    if (unit == 0) {
        x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 3, .pad = 1, .no_bias = true);
        f->t[0] = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
        return;
    }
    if (unit == 28) {
        x = dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = 10);
        f->t[0] = dt_cross_entropy(x, y);
        return;
    }
    dt_scope_begin(m, "layers.%d", i);
    if ((unit - 1) % 3 == 0) {
        f->t[1] = x;
        x = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
        f->t[0] = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
        f->n = 2;
    } else if ((unit - 1) % 3 == 1) {
        f->t[0] = dt_conv2d(m, "conv2", x, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
        f->n = 2;
    } else {
        dt_tensor *skip = f->t[1];
        if (stride != 1) {
            skip = dt_conv2d(m, "downsample.0", skip, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
            skip = dt_batchnorm2d(m, "downsample.1", skip);
        }
        f->t[0] = dt_batchnorm2d(m, "bn2", x, .act = DT_ACT_RELU, .add = skip);
    }
    dt_scope_end(m);
}
static dt_tensor *heads(dt_tensor *x, int64_t n)
{
    dt_shape s = dt_shape_of(x);
    return dt_transpose(dt_reshape(x, DT_SHAPE(s.dim[0], s.dim[1], n, s.dim[2] / n)), 1, 2);
}
static void gpt_unit(dt_model *m, int unit, flow *f, dt_tensor *y)
{
    enum { DIM = 256, VOCAB = 256, HEADS = 4 };
    dt_tensor *x = f->t[0], *a;
    f->n = 1;
    if (unit == 0) {
        int64_t t = dt_size(x, 1);
        a = dt_embedding(m, "wte", x, .num = VOCAB, .dim = DIM); /* parameters are made in PyTorch's order */
        f->t[0] = dt_add(a, dt_embedding(m, "wpe", dt_arange(0, (double)t, 1, .dtype = DT_I64), .num = t, .dim = DIM));
        return;
    }
    if (unit == 17) {
        x = dt_linear(m, "head", dt_layernorm(m, "ln_f", x), .out = VOCAB, .no_bias = true);
        f->t[0] = dt_cross_entropy(dt_reshape(x, DT_SHAPE(-1, VOCAB)), dt_reshape(y, DT_SHAPE(-1)));
        return;
    }
    dt_scope_begin(m, "h.%d", (unit - 1) / 4);
    switch ((unit - 1) % 4) {
    case 0:
        a = dt_linear(m, "attn.qkv", dt_layernorm(m, "ln_1", x), .out = 3 * DIM);
        a = dt_attention(heads(dt_narrow(a, 2, 0, DIM), HEADS), heads(dt_narrow(a, 2, DIM, DIM), HEADS),
                         heads(dt_narrow(a, 2, 2 * DIM, DIM), HEADS), .causal = true);
        f->t[0] = dt_reshape(dt_transpose(a, 1, 2), dt_shape_of(x));
        f->t[1] = x;
        f->n = 2;
        break;
    case 1: f->t[0] = dt_add(f->t[1], dt_linear(m, "attn.proj", x, .out = DIM)); break;
    case 2:
        f->t[0] = dt_gelu_tanh(dt_linear(m, "fc", dt_layernorm(m, "ln_2", x), .out = 4 * DIM));
        f->t[1] = x;
        f->n = 2;
        break;
    default: f->t[0] = dt_add(f->t[1], dt_linear(m, "proj", x, .out = DIM));
    }
    dt_scope_end(m);
}
static const net nets[] = {
    { "resnet20", "images/s", 29, 13, { 4, { 64, 3, 32, 32 } }, 64, resnet20_unit },
    { "gpt", "tokens/s", 18, 9, { 2, { 16, 128 } }, 16 * 128, gpt_unit },
};
enum { NETS = sizeof nets / sizeof *nets };

typedef struct job { /* of a rank */
    const net    *n;
    int           cut;
    dt_comm      *c;
    dt_model     *m;
    dt_optimizer *opt;
    dt_pipeline  *p;
    dt_tensor    *x, *y;
} job;
static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    const job *j = (const job *)user;
    flow       f;
    memset(&f, 0, sizeof f);
    f.t[0] = x;
    f.n = 1;
    for (int i = 0; i < j->n->nunits; i++) {
        if (i == j->cut) f.t[0] = dt_stage(m, "second", f.t[0]);
        j->n->run(m, i, &f, y);
    }
    return f.t[0];
}
static void job_begin(job *j, const net *n, int cut, dt_comm *c)
{
    dt_rng r;
    memset(j, 0, sizeof *j);
    j->n = n;
    j->cut = cut;
    j->c = c;
    dt_set_num_threads(1);
    dt_rng_seed(&r, 2);
    j->m = dt_model_new(.seed = 1);
    if (n->run == gpt_unit) {
        enum { ROWS = 16, LENGTH = 128 };
        static float   u[ROWS * (LENGTH + 1)];
        static int64_t in[ROWS * LENGTH], out[ROWS * LENGTH];
        j->opt = dt_adamw(j->m, .lr = 3e-4);
        dt_rng_uniform(&r, u, ROWS * (LENGTH + 1), 0, 1);
        for (int i = 0; i < ROWS * LENGTH; i++) {
            in[i] = (int64_t)(u[i / LENGTH * (LENGTH + 1) + i % LENGTH] * 256);
            out[i] = (int64_t)(u[i / LENGTH * (LENGTH + 1) + i % LENGTH + 1] * 256);
        }
        j->x = dt_keep(dt_from(in, n->x, .dtype = DT_I64));
        j->y = dt_keep(dt_from(out, n->x, .dtype = DT_I64));
    } else {
        int64_t label[64];
        for (int i = 0; i < 64; i++) label[i] = i % 10;
        j->opt = dt_sgd(j->m, .lr = 0.01, .momentum = 0.9);
        j->x = dt_keep(dt_normal(0, 1, n->x, .rng = &r));
        j->y = dt_keep(dt_from(label, DT_SHAPE(64), .dtype = DT_I64));
    }
}
static dt_tensor *part_of(dt_tensor *t, int micro)
{
    int64_t each = dt_size(t, 0) / MICRO;
    return dt_narrow(t, 0, micro * each, each);
}
static double job_backward(job *j)
{
    double loss = 0;
    if (j->p) dt_pipeline_backward(j->p, loss_of, j, j->x, j->y, &loss);
    for (int i = 0; i < MICRO && !j->p; i++) {
        dt_tensor *l = loss_of(j->m, part_of(j->x, i), part_of(j->y, i), j);
        loss += dt_item(l) / MICRO;
        dt_backward(l, .grad = dt_full(1.0 / MICRO, dt_shape_of(l)));
        dt_end(); /* frees the micro-batch */
    }
    return loss;
}
static double job_step(job *j)
{
    double loss = job_backward(j);
    dt_step(j->opt);
    return loss;
}

/* ---- one stage alone: no messages, no waiting */
typedef struct stage {
    const net *n;
    dt_model  *m;
    int        first, end; /* units */
    flow       in, out;    /* inputs; gradients of the outputs */
    dt_tensor *y;
} stage;
typedef struct stage_cost {
    double  forward, backward, input, weight; /* seconds; input + weight: the same backward in two parts */
    dt_pipe_bytes bytes; /* inputs and gradients at the cuts count */
} stage_cost;
static int64_t bytes_of(const flow *f)
{
    int64_t n = 0;
    for (int i = 0; i < f->n; i++) n += 4 * dt_numel(f->t[i]);
    return n;
}
static dt_tensor *stand_in(dt_tensor *t) /* as it would come from another rank: dense, without a history */
{
    dt_tensor *d = dt_keep(dt_zeros(dt_shape_of(t)));
    dt_copy(d, dt_detach(t));
    return d;
}
/* Stages first .. end - 1 of the net, cut before the units in cut[]. Runs the whole net once to know what crosses the cuts. */
static void stages_make(job *j, const int *cut, int nstages, stage *s)
{
    flow f;
    memset(&f, 0, sizeof f);
    f.t[0] = dt_keep(dt_contiguous(part_of(j->x, 0)));
    f.n = 1;
    dt_tensor *y = dt_keep(dt_contiguous(part_of(j->y, 0)));
    for (int k = 0; k < nstages; k++) {
        memset(&s[k], 0, sizeof s[k]);
        s[k].n = j->n;
        s[k].m = j->m;
        s[k].y = y;
        s[k].first = k ? cut[k - 1] : 0;
        s[k].end = k < nstages - 1 ? cut[k] : j->n->nunits;
        s[k].in = f;
        for (int i = 0; i < f.n && k; i++) s[k].in.t[i] = stand_in(f.t[i]), dt_set_requires_grad(s[k].in.t[i])->boundary = 1;
        for (int i = s[k].first; i < s[k].end; i++) j->n->run(j->m, i, &f, y);
        s[k].out = f;
        for (int i = 0; i < f.n; i++) s[k].out.t[i] = stand_in(f.t[i]);
    }
    dt_end();
}
static void stage_once(stage *s, bool parts, stage_cost *cost)
{
    flow    f = s->in;
    int64_t add = s->first ? bytes_of(&s->in) : 0, last = s->end < s->n->nunits ? bytes_of(&s->out) : 0;
    dt_pipe_bytes *b = &cost->bytes;
    dt_tensor     *grad[2];
    memset(cost, 0, sizeof *cost);
    for (int i = 0; i < f.n && s->first; i++) dt_zero_grad(f.t[i]);
    b->in = add;
    b->grad = last;
    int64_t before = (int64_t)dt_stats().live_bytes;
    dt_stats_reset();
    double t = now();
    for (int i = s->first; i < s->end; i++) s->n->run(s->m, i, &f, s->y);
    dt_tensor *sent[2];
    for (int i = 0; i < f.n; i++) sent[i] = dt__alias(f.t[i]);
    dt__step_trim(dt_cpu()); /* as the pipeline does */
    cost->forward = now() - t;
    b->forward = (int64_t)dt_stats().peak_bytes - before + add;
    b->sent = (int64_t)dt_stats().live_bytes;
    for (int i = 0; i < f.n; i++) dt__unref(sent[i]);
    b->kept = (int64_t)dt_stats().live_bytes - before + add;
    b->sent = last ? b->sent - (int64_t)dt_stats().live_bytes : 0;
    dt_stats_reset();
    for (int i = 0; i < f.n; i++) grad[i] = dt__ref(s->out.t[i]);
    t = now();
    dt__backward(f.t, grad, f.n, (parts ? DT__BACK_INPUTS : DT__BACK_ALL) | DT__BACK_FREE, false);
    double half = now();
    b->backward = b->input = (int64_t)dt_stats().peak_bytes - before + 2 * add + last;
    b->between = (int64_t)dt_stats().live_bytes - before + add;
    dt_stats_reset();
    if (parts) dt__backward(NULL, NULL, 0, DT__BACK_WEIGHTS | DT__BACK_FREE, false);
    b->weight = (int64_t)dt_stats().peak_bytes - before + add;
    cost->backward = now() - t;
    cost->input = half - t;
    cost->weight = cost->backward - cost->input;
    dt_end();
}
/* The medians of n times. */
static stage_cost stage_measure(stage *s, bool parts, int n)
{
    double     f[MAX_ROUNDS], b[MAX_ROUNDS], i[MAX_ROUNDS], w[MAX_ROUNDS];
    stage_cost c;
    memset(&c, 0, sizeof c);
    for (int k = 0; k < n; k++) {
        stage_once(s, parts, &c);
        f[k] = c.forward;
        b[k] = c.backward;
        i[k] = c.input;
        w[k] = c.weight;
    }
    c.forward = middle(f, n);
    c.backward = middle(b, n);
    c.input = middle(i, n);
    c.weight = middle(w, n);
    return c;
}

/* ---- dt's ranks; rank 0 follows the protocol of sides.h, with two more commands */
enum { BYTES = sizeof(dt_pipe_bytes) / sizeof(int64_t),
       MEASURES = 5 + STAGES * (1 + BYTES) }; /* forward, backward of each rank; step; peak of each rank; dt_pipe_bytes of each */
typedef struct serving {
    const net   *n;
    int          cut;
    bool         apart;
    dt_pipe_kind kind;
} serving;
static void measure_stages(job *j, stage *s, bool split, double *out)
{
    int rank = dt_comm_rank(j->c);
    memset(out, 0, MEASURES * sizeof *out);
    dt_comm_barrier(j->c);
    stage_cost k = stage_measure(&s[rank], false, 2 * MICRO);
    out[2 * rank] = k.forward;
    out[2 * rank + 1] = k.backward;
    if (split) k.bytes = stage_measure(&s[rank], true, 2).bytes;
    for (int i = 0; i < BYTES; i++) out[5 + STAGES + BYTES * rank + i] = (double)((const int64_t *)(const void *)&k.bytes)[i];
    double step[5];
    for (int i = 0; i < 5; i++) {
        dt_comm_barrier(j->c);
        int64_t before = (int64_t)dt_stats().live_bytes;
        dt_stats_reset();
        double t = now();
        job_backward(j);
        step[i] = now() - t;
        out[5 + rank] = (double)((int64_t)dt_stats().peak_bytes - before);
        dt_step(j->opt);
    }
    out[4] = middle(step, 5) / dt_comm_size(j->c);
    dt_comm_allreduce(j->c, out, MEASURES, DT_COMM_F64, DT_COMM_SUM);
}
static int serve(void *arg)
{
    const serving *v = (const serving *)arg;
    dt_comm       *c = dt_comm_init();
    int            rank = dt_comm_rank(c), world = dt_comm_size(c);
    job            j, alone;
    stage          s[STAGES];
    char           line[64];
    double         each = 0, out[MEASURES];
    job_begin(&j, v->n, v->cut, c);
    if (!v->apart) {
        j.p = dt_pipeline_new(j.m, c, .micro = MICRO, .schedule = v->kind);
        job_begin(&alone, v->n, v->cut, c);
        stages_make(&alone, &v->cut, STAGES, s);
    }
    if (rank == 0) printf("begin\n"), fflush(stdout);
    for (int i = 0; i < LOSSES; i++) {
        each = now();
        double loss = job_step(&j);
        each = now() - each;
        if (rank == 0) printf("loss %.17g\n", loss), fflush(stdout);
    }
    if (rank == 0) printf("ready\n"), fflush(stdout);
    for (;;) {
        int64_t n = 0;
        if (rank == 0 && fgets(line, sizeof line, stdin)) n = line[0] == 'm' ? -1 : (int64_t)(0.7 / each) + 2;
        dt_comm_broadcast(c, &n, 1, DT_COMM_I64, 0);
        if (n == 0 || dt_error()) break;
        if (n < 0) {
            measure_stages(&j, s, v->kind == DT_PIPE_ZB_H1, out);
            for (int i = 0; i < MEASURES && rank == 0; i++) printf("%.9g%s", out[i], i < MEASURES - 1 ? " " : "\n"), fflush(stdout);
            continue;
        }
        dt_comm_barrier(c);
        double t = now();
        for (int64_t i = 0; i < n; i++) job_step(&j);
        dt_comm_barrier(c);
        if (rank == 0) printf("rate %.9g\n", (double)(n * v->n->items * (v->apart ? world : 1)) / (now() - t)), fflush(stdout);
    }
    if (rank == 0) printf("memory 0\n");
    dt_pipeline_free(j.p);
    dt_comm_free(c);
    return dt_check("bench_pipe");
}

/* ---- the driver */
static int measured(side *s, double *out)
{
    char line[1024], *at = line;
    fputs("measure\n", s->in);
    fflush(s->in);
    if (!fgets(line, sizeof line, s->out)) return -1;
    for (int i = 0; i < MEASURES; i++) {
        char *end;
        out[i] = strtod(at, &end);
        if (end == at) return -1;
        at = end;
    }
    return 0;
}
static const char *above(double ratio, double most) { return ratio > most ? "  (above the target)" : ""; }
static int         compare(const net *n, int cut, const char *schedule, const char *parts, int rounds, const char *self, const char *python)
{
    enum { OURS, APART, TORCH, SIDES };
    static side s[SIDES];
    const char *who[SIDES] = { "dt's pipeline", "dt apart", "PyTorch" };
    char        at[16], micro[16];
    int         bad = 0, nsides = python ? SIDES : TORCH;
    snprintf(at, sizeof at, "%d", cut);
    snprintf(micro, sizeof micro, "%d", MICRO);
    memset(s, 0, sizeof s);
    for (int i = 0; i < nsides && !bad; i++) {
        char *ours[] = { (char *)self, (char *)(i == APART ? "--apart" : "--pipe"), (char *)n->name, at, (char *)schedule, NULL };
        char *theirs[] = { (char *)python, (char *)"bench/peer_pipe.py", (char *)n->name, at, micro, NULL };
        bad = start(&s[i], i == TORCH ? theirs : ours, 0);
        if (bad) fprintf(stderr, "bench_pipe: %s: %s did not start\n", n->name, who[i]);
    }
    for (int k = 0; k < LOSSES && !bad; k++) {
        double a = s[OURS].loss[k], b = s[APART].loss[k], t = python ? s[TORCH].loss[k] : a;
        if (a != b || !(fabs(a - t) <= 2e-4 * (1 + fabs(t)))) {
            fprintf(stderr, "bench_pipe: %s: step %d: pipeline %.17g, whole model %.17g, PyTorch %.9g: expected the same loss\n", n->name,
                    k, a, b, t);
            bad = 1;
        }
    }
    static double m[MAX_ROUNDS][MEASURES];
    double        sim[MAX_ROUNDS], real[MAX_ROUNDS], times[MAX_ROUNDS];
    for (int r = 0; r < rounds + 1 && !bad; r++) { /* the first round is a warm-up */
        struct timespec pause = { 0, 100 * NS_PER_MS };
        for (int i = 0; i < nsides && !bad && strstr(parts, "rate"); i++) {
            nanosleep(&pause, NULL);
            bad = turn(&s[(i + r) % nsides], r ? r - 1 : 0);
        }
        nanosleep(&pause, NULL);
        if (!bad && (strstr(parts, "step") || strstr(parts, "memory"))) bad = measured(&s[OURS], m[r ? r - 1 : 0]);
    }
    for (int i = 0; i < nsides; i++) finish(&s[i]);
    if (bad) return fprintf(stderr, "bench_pipe: %s: a side failed\n", n->name), 1;
    if (strstr(parts, "rate")) {
        double bound = MICRO / (double)(MICRO + STAGES - 1), part = ratio_of(&s[OURS], &s[APART], rounds) / bound;
        double whole = middle(s[APART].rate, rounds);
        printf("%s-pipe-2: dt %.0f %s, %d/%d of two processes apart %.0f %s, ratio %.3f%s; they reach %.0f together\n", n->name,
               middle(s[OURS].rate, rounds), n->unit, MICRO, MICRO + STAGES - 1, bound * whole, n->unit, part,
               part < 0.93 ? "  (below the target)" : "", whole);
        if (python)
            printf("%s-pipe-torch-2: dt %.0f %s, PyTorch pipelining+gloo %.0f %s, ratio %.2f\n", n->name, middle(s[OURS].rate, rounds),
                   n->unit, middle(s[TORCH].rate, rounds), n->unit, ratio_of(&s[OURS], &s[TORCH], rounds));
    }
    dt_pipe_schedule *plan = dt_pipe_schedule_new(.kind = dt_pipe_kind_find(schedule), .ranks = STAGES, .micro = MICRO);
    if (!plan) return fprintf(stderr, "bench_pipe: %s\n", dt_plan_error()), 1;
    if (strstr(parts, "step")) {
        double col[5][MAX_ROUNDS];
        for (int r = 0; r < rounds; r++) {
            double          f[STAGES] = { m[r][0], m[r][2] }, b[STAGES] = { m[r][1], m[r][3] };
            dt_pipe_timing *t = dt_pipe_simulate(plan, .forwards = f, .backward_inputs = b);
            if (!t) return fprintf(stderr, "bench_pipe: %s\n", dt_plan_error()), 1;
            sim[r] = t->seconds;
            real[r] = m[r][4];
            times[r] = real[r] / sim[r];
            for (int i = 0; i < 5; i++) col[i][r] = m[r][i];
            dt_pipe_timing_free(t);
        }
        double ratio = middle(times, rounds);
        printf("%s-pipe-stages: rank 0 forward %.2f ms, backward %.2f ms; rank 1 forward %.2f ms, backward %.2f ms\n", n->name,
               1e3 * middle(col[0], rounds), 1e3 * middle(col[1], rounds), 1e3 * middle(col[2], rounds), 1e3 * middle(col[3], rounds));
        printf("%s-pipe-step: forwards and backwards %.2f ms, simulated with the times of the stages %.2f ms, ratio %.3f%s\n", n->name,
               1e3 * middle(real, rounds), 1e3 * middle(sim, rounds), ratio, above(ratio, 1.1));
    }
    for (int k = 0; k < STAGES && strstr(parts, "memory"); k++) {
        dt_pipe_bytes b[STAGES];
        for (int i = 0; i < STAGES * BYTES; i++) ((int64_t *)(void *)b)[i] = (int64_t)m[0][5 + STAGES + i];
        double formula = (double)dt_pipe_memory(plan, k, b), peak = m[0][5 + k];
        printf("%s-pipe-memory: rank %d: peak %.2f MiB, formula %.2f MiB, ratio %.3f%s; a forward keeps %.2f MiB of a micro-batch, its "
               "backward has %.2f MiB\n", n->name, k, peak / 1048576, formula / 1048576, peak / formula, above(peak / formula, 1.1),
               (double)b[k].kept / 1048576, (double)b[k].backward / 1048576);
    }
    dt_pipe_schedule_free(plan);
    fflush(stdout);
    return 0;
}

/* ---- virtual time */
typedef struct unit_cost {
    double forward, input, weight;
} unit_cost;
static void profile(const net *n, unit_cost *u, int times) /* each unit as a stage of its own */
{
    static stage s[MOST_UNITS];
    int          cut[MOST_UNITS] = { 0 };
    job          j;
    job_begin(&j, n, -1, NULL);
    for (int i = 0; i + 1 < n->nunits; i++) cut[i] = i + 1;
    stages_make(&j, cut, n->nunits, s);
    static double v[3][MOST_UNITS][MAX_ROUNDS];
    for (int r = 0; r < times; r++)
        for (int i = 0; i < n->nunits; i++) {
            stage_cost c;
            stage_once(&s[i], true, &c);
            v[0][i][r] = c.forward;
            v[1][i][r] = c.input;
            v[2][i][r] = c.weight;
        }
    for (int i = 0; i < n->nunits; i++) {
        u[i].forward = middle(v[0][i], times);
        u[i].input = middle(v[1][i], times);
        u[i].weight = middle(v[2][i], times);
    }
}
static dt_pipe_partition *balanced(const net *n, const unit_cost *u, int ranks)
{
    dt_pipe_layer l[MOST_UNITS];
    memset((void *)l, 0, sizeof l);
    for (int i = 0; i < n->nunits; i++) {
        l[i].forward = u[i].forward;
        l[i].backward = u[i].input + u[i].weight;
    }
    return dt_pipe_partition_new(.layers = l, .nlayers = n->nunits, .ranks = ranks, .kind = DT_PIPE_1F1B, .micro = MICRO);
}
static int show_profile(const net *n)
{
    unit_cost u[MOST_UNITS];
    double    sum = 0;
    profile(n, u, 25);
    for (int i = 0; i < n->nunits; i++) {
        double all = u[i].forward + u[i].input + u[i].weight;
        sum += all;
        printf("%s unit %2d: forward %6.3f ms, inputs %6.3f ms, weights %6.3f ms, together %6.3f ms, up to here %7.3f ms\n", n->name, i,
               1e3 * u[i].forward, 1e3 * u[i].input, 1e3 * u[i].weight, 1e3 * all, 1e3 * sum);
    }
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        dt_pipe_partition *p = balanced(n, u, ranks);
        if (!p) break;
        printf("%s: %d stages begin at", n->name, ranks);
        for (int i = 0; i < p->nstages; i++) printf(" %d", p->stage[i].first);
        printf("; the slowest takes %.2f of the mean\n", p->seconds * ranks / sum);
        dt_pipe_partition_free(p);
    }
    return dt_check("bench_pipe");
}
static double virtual_time(dt_pipe_kind kind, int chunks, const double *f, const double *b, const double *w)
{
    dt_pipe_schedule *s = dt_pipe_schedule_new(.kind = kind, .ranks = VIRTUAL_RANKS, .chunks = chunks, .micro = MICRO);
    dt_pipe_timing   *t = s ? dt_pipe_simulate(s, .forwards = f, .backward_inputs = b, .backward_weights = w) : NULL;
    double            x = t ? t->seconds : INFINITY;
    if (!t) fprintf(stderr, "bench_pipe: %s\n", dt_plan_error());
    dt_pipe_timing_free(t);
    dt_pipe_schedule_free(s);
    return x;
}
static double virtual_cuts(const net *n, const unit_cost *u, dt_pipe_kind kind, int chunks, const int *cut)
{
    double f[MOST_CUTS] = { 0 }, b[MOST_CUTS] = { 0 }, w[MOST_CUTS] = { 0 };
    for (int i = 0, s = 0; i < n->nunits; i++) {
        while (s + 1 < VIRTUAL_RANKS * chunks && cut[s] <= i) s++;
        f[s] += u[i].forward;
        b[s] += u[i].input;
        w[s] += u[i].weight;
    }
    return virtual_time(kind, chunks, f, b, w);
}
/* From the cuts with the fastest slowest stage, moves single cuts as long as the schedule gets faster. */
static double virtual_best(const net *n, const unit_cost *u, dt_pipe_kind kind, int chunks)
{
    dt_pipe_partition *p = balanced(n, u, VIRTUAL_RANKS * chunks);
    int                cut[MOST_CUTS + 1], ncuts = VIRTUAL_RANKS * chunks - 1;
    if (!p) return fprintf(stderr, "bench_pipe: %s\n", dt_plan_error()), INFINITY;
    for (int i = 0; i < ncuts; i++) cut[i] = p->stage[i + 1].first;
    dt_pipe_partition_free(p);
    double best = virtual_cuts(n, u, kind, chunks, cut);
    for (bool better = isfinite(best); better;) {
        better = false;
        for (int k = 0; k < 2 * ncuts; k++) {
            int i = k / 2, to = cut[i] + (k % 2 ? 1 : -1), old = cut[i];
            if (to <= (i ? cut[i - 1] : 0) || to >= (i + 1 < ncuts ? cut[i + 1] : n->nunits)) continue;
            cut[i] = to;
            double x = virtual_cuts(n, u, kind, chunks, cut);
            if (x < best) best = x, better = true;
            else cut[i] = old;
        }
    }
    return best;
}
static int virtual_row(const char *name, const char *unit, double factor, double plain, double inter, double zero)
{
    if (!isfinite(plain) || !isfinite(inter) || !isfinite(zero)) return 1;
    printf("%s-pipe-virtual-4: 1f1b %.2f %s, interleaved %.2f %s, ratio %.3f%s; zb_h1 %.2f %s, ratio %.3f%s\n", name, factor * plain, unit,
           factor * inter, unit, inter / plain, above(inter / plain, 1), factor * zero, unit, zero / plain, above(zero / plain, 1));
    return 0;
}
static int virtual_equal(void)
{
    double one[MOST_CUTS], half[MOST_CUTS];
    for (int s = 0; s < MOST_CUTS; s++) one[s] = 1, half[s] = 0.5;
    return virtual_row("equal", "F", 1, virtual_time(DT_PIPE_1F1B, 1, one, one, one), virtual_time(DT_PIPE_INTERLEAVED, 2, half, half, half),
                       virtual_time(DT_PIPE_ZB_H1, 1, one, one, one));
}
static int virtual_net(const net *n)
{
    unit_cost u[MOST_UNITS];
    profile(n, u, 15);
    return virtual_row(n->name, "ms", 1e3, virtual_best(n, u, DT_PIPE_1F1B, 1), virtual_best(n, u, DT_PIPE_INTERLEAVED, 2),
                       virtual_best(n, u, DT_PIPE_ZB_H1, 1)) || dt_check("bench_pipe");
}

static const net *net_of(const char *name)
{
    for (int i = 0; i < NETS; i++)
        if (!strcmp(nets[i].name, name)) return &nets[i];
    fprintf(stderr, "bench_pipe: no net '%s'; there are resnet20 and gpt\n", name);
    return NULL;
}
int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 5 && (!strcmp(argv[1], "--pipe") || !strcmp(argv[1], "--apart"))) {
        serving v = { net_of(argv[2]), atoi(argv[3]), !strcmp(argv[1], "--apart"), dt_pipe_kind_find(argv[4]) };
        return v.n ? dt_spawn(STAGES, serve, &v) : 1;
    }
    if (argc == 3 && !strcmp(argv[1], "--profile")) return net_of(argv[2]) ? show_profile(net_of(argv[2])) : 1;
    const char *which = option(argc, argv, "--nets", "resnet20,gpt"), *parts = option(argc, argv, "--parts", "rate,step,memory,virtual");
    const char *python = option(argc, argv, "--python", "python3"), *schedule = option(argc, argv, "--schedule", "1f1b");
    int         rounds = atoi(option(argc, argv, "--rounds", "9")), cut = atoi(option(argc, argv, "--cut", "0")), failed = 0;
    if (rounds < 1 || rounds >= MAX_ROUNDS) rounds = 9;
    if (!strcmp(python, "none")) python = NULL;
    for (int i = 0; i < NETS; i++)
        if (strstr(which, nets[i].name) && (strstr(parts, "rate") || strstr(parts, "step") || strstr(parts, "memory")))
            failed |= compare(&nets[i], cut ? cut : nets[i].cut, schedule, parts, rounds, argv[0], python);
    if (strstr(parts, "virtual")) failed |= virtual_equal();
    for (int i = 0; i < NETS; i++)
        if (strstr(which, nets[i].name) && strstr(parts, "virtual")) failed |= virtual_net(&nets[i]);
    return failed;
}
