/* Where the time of a step goes, kernel by kernel, relative to the peaks of this machine: make bench-roofline

       bench_roofline [--threads N] [--steps N] [--work train|infer] [--all] [MODEL ...]

   Each kernel of the CPU backend is timed while the networks of bench_train run. For each kernel and shape it prints:
   the share of the step, GFLOP/s and their percentage of the FMA peak, GB/s of the bytes it must move (each operand
   once), and "bound": the shortest time that the FMA peak and the bandwidth of the last-level cache allow, divided by
   the measured time. */
#define DT_IMPLEMENTATION
#include "nets.h"

#include "bench.h"

enum { MAX_ROWS = 512 };
typedef struct row {
    int     op;
    double  flops, bytes, seconds;
    int64_t calls;
    char    name[64];
} row;
static row       rows[MAX_ROWS];
static int       nrows, timing;
static dt_kernel inner[DT_K_COUNT];

static double numel(const dt_view *v)
{
    double n = 1;
    for (int i = 0; i < v->ndim; i++) n *= v->stride[i] ? (double)v->shape[i] : 1;
    return v->ndim < 0 ? 0 : n;
}
static double flops_of(const dt_call *c)
{
    const dt_view *o = &c->out[0], *a = &c->in[0], *b = &c->in[1];
    switch (c->op) {
    case DT_K_gemm: return 2 * numel(o) * (double)a->shape[a->ndim - 1];
    case DT_K_conv2d: return 2 * numel(o) * (double)(b->shape[1] * b->shape[2] * b->shape[3]);
    case DT_K_conv2d_bwd_data: return 2 * numel(a) * (double)(b->shape[1] * b->shape[2] * b->shape[3]);
    case DT_K_conv2d_bwd_weight: return 2 * numel(a) * (double)(o->shape[1] * o->shape[2] * o->shape[3]);
    case DT_K_attention: return 4 * numel(a) * (double)b->shape[2] * (c->u.attn.causal ? 0.5 : 1);
    case DT_K_attention_bwd: return 10 * numel(a) * (double)c->in[2].shape[2] * (c->u.attn.causal ? 0.5 : 1);
    /* bound by bandwidth: FLOPs are not counted */
    case DT_K_fill: case DT_K_copy: case DT_K_iota: case DT_K_unary: case DT_K_unary_bwd: case DT_K_binary:
    case DT_K_where: case DT_K_reduce: case DT_K_softmax: case DT_K_softmax_bwd: case DT_K_pool2d:
    case DT_K_pool2d_bwd: case DT_K_batch_norm: case DT_K_batch_norm_bwd: case DT_K_layer_norm:
    case DT_K_layer_norm_bwd: case DT_K_embedding: case DT_K_embedding_bwd: case DT_K_gather: case DT_K_gather_bwd:
    case DT_K_dropout: case DT_K_cross_entropy: case DT_K_cross_entropy_bwd: case DT_K_sgd: case DT_K_adam:
    case DT_K_rmsprop: case DT_K_adagrad: case DT_K_lamb: case DT_K_lamb_apply: case DT_K_norms: case DT_K_unscale:
        return 0;
    }
    fprintf(stderr, "bench_roofline: flops_of has no case for kernel %s\n", dt_kernel_name(c->op));
    exit(1);
}
static void describe(row *r, const dt_call *c)
{
    const dt_view *v = c->nout ? &c->out[0] : &c->in[0];
    int n = snprintf(r->name, sizeof r->name, "%s", dt_kernel_name(c->op));
    if (c->op == DT_K_unary || c->op == DT_K_unary_bwd) {
#define NAME_U(name, ...) #name,
        static const char *const fn[] = { DT_UNARY_FNS(NAME_U) };
        n += snprintf(r->name + n, sizeof r->name - (size_t)n, " %s", fn[c->u.ew.fn]);
    }
    if (c->op == DT_K_conv2d_bwd_weight) { /* show the shape of the image, not that of the weights */
        v = &c->in[1];
        n += snprintf(r->name + n, sizeof r->name - (size_t)n, " %lldx", (long long)c->out[0].shape[0]);
        n += snprintf(r->name + n, sizeof r->name - (size_t)n, "%lld", (long long)c->out[0].shape[2]);
    }
    for (int i = 0; i < v->ndim && n < (int)sizeof r->name; i++)
        n += snprintf(r->name + n, sizeof r->name - (size_t)n, "%c%lld", i ? 'x' : ' ', (long long)v->shape[i]);
    if (c->op == DT_K_gemm && n < (int)sizeof r->name)
        n += snprintf(r->name + n, sizeof r->name - (size_t)n, " k%lld%s%s", (long long)c->in[0].shape[c->in[0].ndim - 1],
                 c->in[0].stride[c->in[0].ndim - 1] == 1 ? " n" : " t", c->in[1].stride[c->in[1].ndim - 1] == 1 ? "n" : "t");
    if (c->op == DT_K_conv2d || c->op == DT_K_conv2d_bwd_data)
        n += snprintf(r->name + n, sizeof r->name - (size_t)n, " w%lldx%lldx%lld/%d", (long long)c->in[1].shape[0],
                      (long long)c->in[1].shape[1], (long long)c->in[1].shape[2], c->u.conv.stride[0]);
}
static int timed(dt_device *dev, const dt_call *c)
{
    double t = now();
    int    rc = inner[c->op](dev, c);
    t = now() - t;
    if (!timing) return rc;
    row r;
    memset(&r, 0, sizeof r);
    describe(&r, c);
    int i = 0;
    while (i < nrows && strcmp(rows[i].name, r.name)) i++;
    if (i == MAX_ROWS) return rc;
    if (i == nrows) {
        r.op = c->op;
        r.flops = flops_of(c);
        for (int k = 0; k < c->nout; k++)
            r.bytes += numel(&c->out[k]) * (double)dt_dtype_nbytes((dt_dtype)c->out[k].dtype) * (c->acc >> k & 1 ? 2 : 1);
        for (int k = 0; k < c->nin; k++) r.bytes += numel(&c->in[k]) * (double)dt_dtype_nbytes((dt_dtype)c->in[k].dtype);
        rows[nrows++] = r;
    }
    rows[i].seconds += t;
    rows[i].calls++;
    return rc;
}

/* bytes per second of z[i] = x[i] + y[i] over arrays of n elements */
static double bandwidth(int64_t n)
{
    dt_tensor *x = dt_keep(dt_ones(DT_SHAPE(n))), *y = dt_keep(dt_ones(DT_SHAPE(n)));
    double     r[9];
    dt_no_grad_begin();
    for (int k = 0; k < 9; k++) {
        double t = now();
        int    times = (int)(64000000 / n) + 1;
        for (int i = 0; i < times; i++) {
            dt_add(x, y);
            dt_end();
        }
        r[k] = 12.0 * (double)n * times / (now() - t);
    }
    dt_no_grad_end();
    dt_free(x);
    dt_free(y);
    return median(r, 9);
}
static int by_time(const void *a, const void *b)
{
    double x = ((const row *)a)->seconds, y = ((const row *)b)->seconds;
    return x > y ? -1 : x < y;
}
static void show(const work *w, int threads, int steps, int infer, int all, double peak, double cache)
{
    worker k;
    double kernels = 0, total, best = 0;
    begin(&k, w, infer);
    for (int i = 0; i < 3; i++) one_step(&k);
    nrows = 0;
    timing = 1;
    total = now();
    for (int i = 0; i < steps; i++) one_step(&k);
    total = now() - total;
    timing = 0;
    qsort(rows, (size_t)nrows, sizeof *rows, by_time);
    for (int i = 0; i < nrows; i++) kernels += rows[i].seconds;
    printf("\n%s-%s-%dt: %.3f ms a step, %.1f %% of it in kernels\n", w->name, infer ? "infer" : "train", threads,
           1e3 * total / steps, 100 * kernels / total);
    printf("%-56s %6s %9s %6s %9s %6s %7s %6s\n", "kernel", "calls", "ms/step", "%", "GFLOP/s", "%peak", "GB/s", "bound");
    for (int i = 0; i < nrows; i++) {
        const row *r = &rows[i];
        double     each = r->seconds / (double)r->calls, compute = r->flops / peak, move = r->bytes / cache;
        double     least = compute > move ? compute : move;
        best += least * (double)r->calls;
        if (!all && r->seconds < 0.005 * total) continue;
        printf("%-56s %6.1f %9.3f %6.1f %9.1f %6.0f %7.1f %6.2f\n", r->name, (double)r->calls / steps,
               1e3 * r->seconds / steps, 100 * r->seconds / total, r->flops / each / 1e9, 100 * r->flops / each / peak,
               r->bytes / each / 1e9, least / each);
    }
    printf("%-56s %6s %9.3f: the step at these peaks, which is %.2f of the measured one\n", "all", "",
           1e3 * best / steps, best / total);
    fflush(stdout);
    dt_free(k.x);
    dt_free(k.y);
    if (k.amp) dt_amp_free(k.amp);
    dt_optimizer_free(k.opt);
    dt_model_free(k.m);
    if (infer) dt_no_grad_end();
}

int main(int argc, char **argv)
{
    int    threads = 1, steps = 20, infer = 0, all = 0, named = 0;
    double r[9];
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--all")) all = 1;
        else if (i + 1 < argc && !strcmp(argv[i], "--threads")) threads = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--steps")) steps = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--work")) infer = !strcmp(argv[++i], "infer");
        else if (argv[i][0] == '-') return fprintf(stderr, "bench_roofline: unknown option %s\n", argv[i]), 2;
        else named = 1;
    }
    if (steps < 1) steps = 1;
    dt_set_num_threads(threads);
    dt_backend *cpu = (dt_backend *)(uintptr_t)dt_device_backend(dt_cpu()); /* the table is in writable memory */
    double cache = bandwidth(1 << 20), memory = bandwidth(1 << 24);
    for (int i = 0; i < 9; i++) r[i] = fma_round();
    double peak = median(r, 9) * 1e9 * dt_get_num_threads();
    printf("%d thread%s: FMA peak %.0f GFLOP/s, x + y in cache %.1f GB/s, in memory %.1f GB/s\n", dt_get_num_threads(),
           dt_get_num_threads() > 1 ? "s" : "", peak / 1e9, cache / 1e9, memory / 1e9);
    for (int i = 0; i < DT_K_COUNT; i++) {
        inner[i] = cpu->kernel[i];
        if (inner[i]) cpu->kernel[i] = timed;
    }
    for (int i = 0; i < NWORKS; i++) {
        int take = !named && strcmp(works[i].mode, "bf16");
        for (int k = 1; k < argc; k++)
            take |= !strcmp(argv[k], works[i].name) && strcmp(works[i].mode, "bf16");
        for (int k = 1; k < argc; k++) take |= !strcmp(argv[k], "bf16") && !strcmp(works[i].mode, "bf16");
        if (take) show(&works[i], threads, strstr(works[i].name, "resnet18") ? steps / 4 + 1 : steps, infer, all, peak, cache);
    }
    return dt_check("bench_roofline");
}
