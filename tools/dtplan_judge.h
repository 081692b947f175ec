/* dtplan_judge.h - published measurements, and the planner beside them. Part of dtplan.c.

   Each row is calibrated on its smallest point alone: dt_scale_device.factor is set so that the prediction of this point is
   exact. The other points are predicted. What is compared is lost efficiency, 1 - measured / linear, where linear scaling keeps
   the rate of a device of the smallest point. Linear scaling itself predicts that nothing is lost.

   One constant has no source in a data sheet: the spread of a step's time between devices. For each row it is the value with
   the smallest median error over the other rows of data-parallel training, so no row is judged by a constant that it helped to
   choose.
   (The median, since some rows lose more by what the planner does not know than all others by the slowest device.) */
enum { POINTS_MOST = 10, ROWS_MOST = 24 };
typedef struct point {
    int         machines, per_machine;
    double      rate;  /* measured: samples a second; or seconds of a step if row.seconds */
    double      batch; /* of a data-parallel rank; 0: the row's */
    const char *layout; /* NULL: data parallel */
    int         servers;
    int         gpt;   /* row 11: which model */
} point;
typedef struct row {
    const char *number, *what, *source, *model, *device, *intra, *inter;
    bool        own_links, seconds, efficiency; /* efficiency: only that is published, in point.rate */
    double      batch;
    int         precision, serving;
    const char *miss; /* why it is missed, if it is */
    point       at[POINTS_MOST];
} row;
static const char tf[] = "TensorFlow benchmarks", gpipe[] = "torchgpipe", nv[] = "NVIDIA DeepLearningExamples",
                  megatron[] = "2205.05198, table 5";
#define P(machines, each, rate) { machines, each, rate, 0, NULL, 0, 0 }
#define PS(machines, each, rate, servers) { machines, each, rate, 0, NULL, servers, 0 }
#define L(machines, each, rate, batch, layout) { machines, each, rate, batch, layout, 0, 0 }
#define GPIPE(n, m) "pipe=" #n ",micro=" #m ",schedule=gpipe,recompute=full"
static const row rows[] = {
    { "1", "Inception-V3, 8 x K80 a machine, parameter server", tf, "inception-v3", "k80", "pcie3", "ethernet-10g", 0, 0,
      0, 64, DT_SCALE_F32, DT_SCALE_BESIDE, NULL,
      { P(1, 1, 29.7), P(1, 8, 229), PS(2, 8, 459, 2), PS(4, 8, 902, 4), PS(8, 8, 1783, 6) } },
    { "2", "ResNet-50, the same", tf, "resnet50", "k80", "pcie3", "ethernet-10g", 0, 0, 0, 64, DT_SCALE_F32, DT_SCALE_BESIDE,
      "10 % is lost inside one machine already, where the network between machines has no part",
      { P(1, 1, 52.4), P(1, 8, 378), PS(2, 8, 751, 2), PS(4, 8, 1388, 4), PS(8, 8, 2744, 8) } },
    { "3", "ResNet-152, the same, batch 32", tf, "resnet152", "k80", "pcie3", "ethernet-10g", 0, 0, 0, 32, DT_SCALE_F32,
      DT_SCALE_BESIDE, NULL,
      { P(1, 1, 19.4), P(1, 8, 146), PS(2, 8, 291, 2), PS(4, 8, 565, 4), PS(8, 8, 981, 4) } },
    { "4a", "ResNet-50, DGX-1 with P100", tf, "resnet50", "p100", "nvlink1", "infiniband-100g", 0, 0, 0, 64,
      DT_SCALE_F32, 0, NULL,
      { P(1, 1, 219), P(1, 2, 422), P(1, 4, 852), P(1, 8, 1734) } },
    { "4b", "VGG-16, the same", tf, "vgg16", "p100", "nvlink1", "infiniband-100g", 0, 0, 0, 64, DT_SCALE_F32, 0, NULL,
      { P(1, 1, 154), P(1, 2, 295), P(1, 4, 584), P(1, 8, 1081) } },
    { "5", "AlexNet, the same, batch 512", tf, "alexnet", "p100", "nvlink1", "infiniband-100g", 0, 0, 0, 512, DT_SCALE_F32, 0,
      "244 MB of gradients take 6 ms at the rate of NVLink; the measured loss is 58 ms of a step",
      { P(1, 1, 2987), P(1, 2, 5658), P(1, 4, 10509), P(1, 8, 17822) } },
    { "6a", "ResNet-50, V100, f32", nv, "resnet50", "v100", "nvlink2", "infiniband-100g", 0, 0, 0, 128, DT_SCALE_F32, 0, NULL,
      { P(1, 1, 367), P(1, 8, 2855) } },
    { "6b", "ResNet-50, V100, mixed", nv, "resnet50", "v100", "nvlink2", "infiniband-100g", 0, 0, 0, 256, DT_SCALE_AMP, 0,
      "communication takes 1 ms of 213 ms; the row does not say what else the 8 GPUs share, such as the CPUs that decode images",
      { P(1, 1, 1200), P(1, 8, 8322) } },
    { "7a", "ResNet-50, A100, TF32", nv, "resnet50", "a100-tf32", "nvlink3", "infiniband-200g", 0, 0, 0, 256,
      DT_SCALE_F32, 0, NULL,
      { P(1, 1, 938), P(1, 8, 7248) } },
    { "7b", "ResNet-50, A100, mixed", nv, "resnet50", "a100-40", "nvlink3", "infiniband-200g", 0, 0, 0, 256,
      DT_SCALE_AMP, 0, "as 6b",
      { P(1, 1, 2470), P(1, 8, 16621) } },
    { "8", "AmoebaNet-D, P40, GPipe", gpipe, NULL, "p40", "pcie3", "pcie3", 0, 0, 0, 0, DT_SCALE_F32, 0,
      "24 equal layers stand for AmoebaNet-D, whose stages are not equal: with 4 devices the slowest one sets the pace",
      { L(1, 2, 26.7, 96, GPIPE(2, 1)), L(1, 2, 41.1, 256, GPIPE(2, 4)), L(1, 2, 47.4, 1280, GPIPE(2, 32)),
        L(1, 4, 26.8, 160, GPIPE(4, 1)), L(1, 4, 44.5, 360, GPIPE(4, 4)), L(1, 4, 72.4, 1152, GPIPE(4, 32)),
        L(1, 8, 24.9, 196, GPIPE(8, 1)), L(1, 8, 70.1, 480, GPIPE(8, 4)), L(1, 8, 132.4, 1280, GPIPE(8, 32)) } },
    { "9", "ResNet-101, P40, GPipe", gpipe, "resnet101", "p40", "pcie3", "pcie3", 0, 0, 0, 0, DT_SCALE_F32, 0,
      "torchgpipe does not recompute the last micro-batch: with one device it recomputes one of two",
      { L(1, 1, 95.9, 118, NULL), L(1, 1, 81.8, 220, "micro=2,recompute=full"), L(1, 2, 135.5, 25000, GPIPE(2, 1667)),
        L(1, 4, 266.0, 5632, GPIPE(4, 256)), L(1, 8, 411.7, 5400, GPIPE(8, 150)) } },
    { "10", "U-Net, P40, GPipe", gpipe, NULL, "p40", "pcie3", "pcie3", 0, 0, 0, 0, DT_SCALE_F32, 0,
      "equal layers stand for U-Net, whose skip connections cross every cut",
      { L(1, 1, 28.5, 40, NULL), L(1, 1, 24.5, 80, "micro=2,recompute=full"), L(1, 2, 35.5, 512, GPIPE(2, 32)),
        L(1, 4, 67.0, 512, GPIPE(4, 16)), L(1, 8, 88.5, 640, GPIPE(8, 40)) } },
    { "11", "GPT 22B, 175B, 530B, 1T, A100, full and selective recomputation", megatron, NULL, "a100", "nvlink3",
      "infiniband-200g", 1, 1, 0, 0, DT_SCALE_AMP, 0,
      "larger models have larger products, which reach more of the peak",
      { L(1, 8, 1.42, 4, "tensor=8,recompute=full"), L(1, 8, 1.10, 4, "tensor=8,recompute=selective"),
        { 8, 8, 18.13, 64, "tensor=8,pipe=8,micro=64,chunks=3,schedule=interleaved,recompute=full", 0, 1 },
        { 8, 8, 13.75, 64, "tensor=8,pipe=8,micro=64,chunks=3,schedule=interleaved,recompute=selective", 0, 1 },
        { 35, 8, 49.05, 280, "tensor=8,pipe=35,micro=280,chunks=3,schedule=interleaved,recompute=full", 0, 2 },
        { 35, 8, 37.83, 280, "tensor=8,pipe=35,micro=280,chunks=3,schedule=interleaved,recompute=selective", 0, 2 },
        { 64, 8, 94.42, 512, "tensor=8,pipe=64,micro=512,recompute=full", 0, 3 },
        { 64, 8, 71.49, 512, "tensor=8,pipe=64,micro=512,recompute=selective", 0, 3 } } },
    { "12", "Llama-3 8B, H100, FSDP", "torchtitan", "llama3-8b", "h100", "nvlink4", "infiniband-400g", 1, 0, 0, 2,
      DT_SCALE_AMP, 0, NULL,
      { { 1, 8, 5762.0 * 8 / 8192, 0, "zero=3,recompute=selective", 0, 0 }, { 16, 8, 5605.0 * 128 / 8192, 0,
      "zero=3,recompute=selective", 0, 0 } } },
    { "13a", "Inception-V3, 128 x 4 Pascal, 25 Gbit/s", "Horovod", "inception-v3", "p100", "pcie3", "roce-25g", 0, 0, 1,
      64, DT_SCALE_F32, 0, NULL, { P(128, 4, 0.90) } },
    { "13b", "ResNet-101, the same", "Horovod", "resnet101", "p100", "pcie3", "roce-25g", 0, 0, 1, 64, DT_SCALE_F32, 0,
      NULL, { P(128, 4, 0.90) } },
    { "13c", "VGG-16, the same", "Horovod", "vgg16", "p100", "pcie3", "roce-25g", 0, 0, 1, 64, DT_SCALE_F32, 0,
      "the 411 MB of fc6 are ready first, and the planner hides them behind the whole backward", { P(128, 4, 0.68) } },
    { "14", "ResNet-50, 32 x 8 P100, 50 Gbit/s", "Goyal et al.", "resnet50", "p100", "nvlink1", "ethernet-50g", 0, 0, 1,
      32, DT_SCALE_F32, 0, NULL, { P(32, 8, 0.90) } },
};
#undef P
#undef PS
#undef L
enum { ROWS = sizeof rows / sizeof *rows };

static dt_scale_model *chain(int n) /* equal layers, of which nothing else is known */
{
    static char text[40000];
    size_t      at = (size_t)snprintf(text, sizeof text, "dt profile 1\nmodel layers\nbatch 1 image\nstep 3s\n");
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "layer l%d forward 1s backward 2s params 0B\n", i);
    snprintf(text + at, sizeof text - at, "end\n");
    dt_scale_model *m = dt_scale_profile_parse("layers", text, strlen(text));
    if (!m) quit("%s", dt_plan_error());
    return m;
}
static dt_scale_model *model_of(const row *r, const point *p)
{
    static const int gpt[4][3] = { { 6144, 48, 64 }, { 12288, 96, 96 }, { 20480, 105, 128 }, { 25600, 128, 160 } };
    dt_scale_model  *m = r->model ? dt_scale_model_new(r->model)
                         : !strcmp(r->number, "11")
                             ? dt_scale_gpt_new("gpt", gpt[p->gpt][0], gpt[p->gpt][1], gpt[p->gpt][2], 2048, 51200)
                             : chain(!strcmp(r->number, "8") ? 24 : 240);
    if (!m) quit("%s", dt_plan_error());
    return m;
}
/* Samples a second; work: operations of one sample */
static double predicted(const row *r, const point *p, double factor, double spread, double *work, double *efficiency)
{
    dt_scale_cluster c;
    dt_scale_opts    o;
    dt_scale_model  *m = model_of(r, p);
    memset(&o, 0, sizeof o);
    dt_scale_cluster_default(&c);
    if (dt_scale_device_find(r->device, &c.device) || dt_scale_link_find(r->intra, &c.intra) ||
        dt_scale_link_find(r->inter, &c.inter))
        quit("%s", dt_plan_error());
    c.machines = p->machines;
    c.per_machine = p->per_machine;
    c.shared = !r->own_links;
    c.device.factor = factor;
    c.device.memory = 0;
    c.spread = spread > 0 ? spread : -1;
    if (m->batch > 0) /* a chain of layers: as a profile it has its own seconds */
        for (int i = 0; i < m->nlayers; i++) m->layer[i].forward *= factor, m->layer[i].backward *= factor;
    o.model = m;
    o.cluster = &c;
    o.batch = p->batch > 0 ? p->batch : r->batch;
    o.precision = r->precision;
    o.states = !strcmp(r->number, "11") || !strcmp(r->number, "12") ? 2 : 1;
    o.servers = p->servers;
    o.serving = p->servers ? r->serving : 0;
    if (p->layout) layout_of(p->layout, &o.layout);
    dt_scale_prediction *q = predict(&o);
    double               rate = q->rate;
    if (efficiency) *efficiency = q->efficiency;
    if (work) *work = dt_scale_model_sums(m).flops;
    if (work && m->batch > 0) *work = 1;
    dt_scale_prediction_free(q);
    dt_scale_model_free(m);
    return rate;
}
static double calibrated(const row *r, double spread) /* the factor with which the smallest point is exact */
{
    double want = r->seconds ? (r->at[0].batch > 0 ? r->at[0].batch : r->batch) / r->at[0].rate : r->at[0].rate, lo = 1e-6,
           hi = 1e6;
    for (int i = 0; i < 100; i++) {
        double mid = sqrt(lo * hi);
        if (predicted(r, &r->at[0], mid, spread, NULL, NULL) > want) lo = mid;
        else hi = mid;
    }
    return lo;
}
typedef struct result {
    int    n;
    double rate[POINTS_MOST], lost[POINTS_MOST], lost_measured[POINTS_MOST];
} result;
static void judge(const row *r, double spread, result *out)
{
    double factor = calibrated(r, spread), each = 0, each_measured = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < POINTS_MOST && r->at[i].machines; i++, out->n++) {
        const point *p = &r->at[i];
        double       work, devices = (double)p->machines * p->per_machine;
        double       rate = predicted(r, p, factor, spread, &work, NULL);
        double       measured = r->seconds ? (p->batch > 0 ? p->batch : r->batch) / p->rate : p->rate;
        out->rate[i] = rate;
        if (i == 0) each = rate * work / devices, each_measured = measured * work / devices;
        out->lost[i] = 1 - rate * work / (devices * each);
        out->lost_measured[i] = 1 - measured * work / (devices * each_measured);
    }
}
static double error_of(const result *r, bool linear, int *n)
{
    double sum = 0;
    for (int i = 1; i < r->n; i++, ++*n) sum += fabs(r->lost_measured[i] - (linear ? 0 : r->lost[i]));
    return sum;
}
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static int write_judgement(FILE *f)
{
    enum { SPREADS = 13 };
    static result all[ROWS][SPREADS];
    double        total[3] = { 0 }, linear[3] = { 0 };
    int           n[3] = { 0 };
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < SPREADS && !rows[i].efficiency; k++) judge(&rows[i], 0.005 * k, &all[i][k]);
    fprintf(f, "| row | what | source | machines x devices | measured | predicted | lost, measured | lost, predicted | error | "
               "spread |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        int        best = 0;
        double     least = 1e9;
        for (int k = 0; k < SPREADS; k++) {
            double error[ROWS * POINTS_MOST];
            size_t m = 0;
            for (int j = 0; j < ROWS; j++)
                for (int x = 1; x < all[j][k].n; x++)
                    if (!rows[j].at[x].layout && strtol(rows[j].number, NULL, 10) != strtol(r->number, NULL, 10))
                        error[m++] = fabs(all[j][k].lost_measured[x] - all[j][k].lost[x]);
            qsort(error, m, sizeof *error, by_value);
            if (m && error[m / 2] < least) least = error[m / 2], best = k;
        }
        if (r->efficiency) {
            double e;
            predicted(r, &r->at[0], 1, 0.005 * best, NULL, &e);
            fprintf(f, "| %s | %s | %s | %d x %d | %.0f %% | %.0f %% | %.1f %% | %.1f %% | not scored | %.1f %% |\n", r->number,
                    r->what, r->source, r->at[0].machines, r->at[0].per_machine, 100 * r->at[0].rate, 100 * e,
                    100 * (1 - r->at[0].rate), 100 * (1 - e), 0.5 * best);
            continue;
        }
        const result *x = &all[i][best];
        int           kind = r->at[1].layout ? 1 : 0, count = 0;
        total[kind] += error_of(x, false, &count);
        linear[kind] += error_of(x, true, &n[kind]);
        for (int k = 0; k < x->n; k++) {
            const point *p = &r->at[k];
            double       rate = r->seconds ? (p->batch > 0 ? p->batch : r->batch) / x->rate[k] : x->rate[k];
            fprintf(f, "| %s | %s | %s | %d x %d%s%s | %.4g%s | %.4g | ", r->number, k ? "" : r->what, k ? "" : r->source,
                    p->machines, p->per_machine, p->layout ? ", " : "", p->layout ? p->layout : "", p->rate,
                    r->seconds ? " s" : "", rate);
            if (k)
                fprintf(f, "%.1f %% | %.1f %% | %.1f %% | %.1f %% |\n", 100 * x->lost_measured[k], 100 * x->lost[k],
                        100 * fabs(x->lost_measured[k] - x->lost[k]), 0.5 * best);
            else fprintf(f, "calibrated | | | |\n");
        }
    }
    total[2] = total[0] + total[1], linear[2] = linear[0] + linear[1], n[2] = n[0] + n[1];
    static const char *const what[] = { "data parallel (rows 1 to 7)", "pipelines, tensor parallel, FSDP (rows 8 to 12)",
                                        "all rows" };
    fprintf(
        f,
        "\n| mean error of lost efficiency | points | planner | linear scaling | planner / linear |\n|---|---|---|---|---|\n");
    for (int k = 0; k < 3; k++)
        fprintf(f, "| %s | %d | %.2f %% | %.2f %% | %.2f |\n", what[k], n[k], 100 * total[k] / n[k], 100 * linear[k] / n[k],
                total[k] / linear[k]);
    fprintf(f, "\nThe target is a planner / linear of at most 0.50: %s.\n\n",
            total[2] <= 0.5 * linear[2] ? "reached over all rows" : "missed");
    for (int i = 0; i < ROWS; i++)
        if (rows[i].miss) fprintf(f, "- Row %s: %s.\n", rows[i].number, rows[i].miss);
    return total[2] <= 0.5 * linear[2] ? 0 : 1;
}
