/* bench_conv: speed of the CPU backend's convolutions relative to the FMA peak, for the shapes of the conv net, ResNet-20
   and ResNet-18: forward, gradient of the data, gradient of the weights. Results are checked before they are timed.
     bench_conv [--threads N] [name] */
#define DT_CORE_IMPLEMENTATION
#include "dt.h"

#include "bench.h"

typedef struct shape {
    const char *name;
    int64_t     n, c, h, out;
    int         kernel, stride, pad;
} shape;
static const shape shapes[] = {
    { "convnet-1", 100, 1, 28, 16, 5, 1, 2 },      { "convnet-2", 100, 16, 14, 32, 5, 1, 2 },
    { "resnet20-stem", 128, 3, 32, 16, 3, 1, 1 },  { "resnet20-1", 128, 16, 32, 16, 3, 1, 1 },
    { "resnet20-2a", 128, 16, 32, 32, 3, 2, 1 },   { "resnet20-2", 128, 32, 16, 32, 3, 1, 1 },
    { "resnet20-2s", 128, 16, 32, 32, 1, 2, 0 },   { "resnet20-3", 128, 64, 8, 64, 3, 1, 1 },
    { "resnet18-1", 32, 64, 32, 64, 3, 1, 1 },     { "resnet18-2a", 32, 64, 32, 128, 3, 2, 1 },
    { "resnet18-2", 32, 128, 16, 128, 3, 1, 1 },   { "resnet18-3", 32, 256, 8, 256, 3, 1, 1 },
    { "resnet18-4", 32, 512, 4, 512, 3, 1, 1 },    { "resnet18-4s", 32, 256, 8, 512, 1, 2, 0 },
};

typedef struct problem {
    dt_tensor *x, *w, *y, *dy, *dx, *dw;
    dt_call    call[3];
} problem;
static void prepare(problem *p, const shape *s)
{
    int64_t o = (s->h + 2 * s->pad - s->kernel) / s->stride + 1;
    int64_t xs[4] = { s->n, s->c, s->h, s->h }, ys[4] = { s->n, s->out, o, o };
    int64_t ws[4] = { s->out, s->c, s->kernel, s->kernel };
    int     layout = dt__image_layout(dt_cpu(), DT_K_conv2d, DT_F32);
    p->x = dt__new("bench", dt_cpu(), DT_F32, xs, 4, layout);
    p->dx = dt__new("bench", dt_cpu(), DT_F32, xs, 4, layout);
    p->y = dt__new("bench", dt_cpu(), DT_F32, ys, 4, layout);
    p->dy = dt__new("bench", dt_cpu(), DT_F32, ys, 4, layout);
    p->w = dt__new("bench", dt_cpu(), DT_F32, ws, 4, DT_LAYOUT_PLAIN);
    p->dw = dt__new("bench", dt_cpu(), DT_F32, ws, 4, DT_LAYOUT_PLAIN);
    dt_copy(p->x, dt_normal(0, 1, dt_shape_of(p->x)));
    dt_copy(p->dy, dt_normal(0, 1, dt_shape_of(p->dy)));
    dt_copy(p->w, dt_normal(0, 1, dt_shape_of(p->w)));
    dt_end();
    static const int op[3] = { DT_K_conv2d, DT_K_conv2d_bwd_data, DT_K_conv2d_bwd_weight };
    dt_tensor       *out[3] = { p->y, p->dx, p->dw }, *a[3] = { p->x, p->dy, p->dy }, *b[3] = { p->w, p->w, p->x };
    for (int i = 0; i < 3; i++) {
        dt_call *c = &p->call[i];
        dt__call_begin(c, op[i]);
        for (int k = 0; k < 2; k++) {
            c->u.conv.stride[k] = s->stride;
            c->u.conv.pad[k] = s->pad;
            c->u.conv.dilation[k] = 1;
        }
        c->u.conv.groups = 1;
        dt__out(c, out[i]);
        if (i == 2) dt__out(c, NULL);
        dt__in(c, a[i]);
        dt__in(c, b[i]);
        if (i == 0) dt__in(c, NULL);
    }
}
static double timed(dt_call *c, double flops)
{
    double best = 0;
    dt__go(dt_cpu(), c);
    for (int r = 0; r < 7; r++) {
        int    n = 0;
        double t = now();
        do dt__go(dt_cpu(), c), n++;
        while (now() - t < 0.05);
        double rate = flops * n / (now() - t) * 1e-9;
        if (rate > best) best = rate;
    }
    return best;
}
/* Checks <dy, conv(x, w)> = <dx, x> = <dw, w>, so the three kernels agree with each other, and one y with a plain sum. */
static int wrong(problem *p, const shape *s)
{
    double dot[3] = { dt_item(dt_sum(dt_mul(p->y, p->dy))), dt_item(dt_sum(dt_mul(p->x, p->dx))),
                      dt_item(dt_sum(dt_mul(p->w, p->dw))) };
    double size = sqrt((double)p->y->numel * (double)(s->c * s->kernel * s->kernel)), sum = 0;
    for (int c = 0; c < s->c; c++)
        for (int i = 0; i < s->kernel; i++)
            for (int j = 0; j < s->kernel; j++) {
                int64_t h = i - s->pad + s->stride, w = j - s->pad + s->stride; /* output (0, 0, 1, 1) */
                if (h < 0 || w < 0 || h >= s->h || w >= s->h) continue;
                dt_tensor *xv = dt_select(dt_select(dt_select(dt_select(p->x, 0, 0), 0, c), 0, h), 0, w);
                dt_tensor *wv = dt_select(dt_select(dt_select(dt_select(p->w, 0, 0), 0, c), 0, i), 0, j);
                sum += dt_item(xv) * dt_item(wv);
            }
    double y = dt_item(dt_select(dt_select(dt_select(dt_select(p->y, 0, 0), 0, 0), 0, 1), 0, 1));
    dt_end();
    return !(fabs(dot[0] - dot[1]) < 1e-4 * size && fabs(dot[0] - dot[2]) < 1e-4 * size &&
             fabs(y - sum) < 1e-3 + 1e-4 * fabs(sum)) || dt_error();
}

int main(int argc, char **argv)
{
    int         only = argc > 2 && !strcmp(argv[1], "--threads") ? atoi(argv[2]) : 0;
    const char *name = argc % 2 == 0 ? argv[argc - 1] : NULL;
    double      rounds[21], top;
    for (int i = 0; i < 21; i++) rounds[i] = fma_round();
    top = median(rounds, 21);
    printf("FMA peak of one core: %.1f GFLOP/s\n", top);
    for (int threads = 1; threads <= 2; threads++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const shape *s = &shapes[i];
            problem      p;
            if ((only && only != threads) || (name && !strstr(s->name, name))) continue;
            dt_set_num_threads(threads);
            prepare(&p, s);
            double flops = 2.0 * (double)p.y->numel * (double)(s->c * s->kernel * s->kernel), rate[3];
            for (int k = 0; k < 3; k++) rate[k] = timed(&p.call[k], flops);
            if (wrong(&p, s)) {
                printf("conv-%s: WRONG %s\n", s->name, dt_error() ? dt_error() : "");
                return 1;
            }
            printf("conv-%s-%dt: forward %.0f GFLOP/s (%.0f %% of peak), data %.0f (%.0f %%), weights %.0f (%.0f %%)\n",
                   s->name, threads, rate[0], 100 * rate[0] / top / threads, rate[1], 100 * rate[1] / top / threads,
                   rate[2], 100 * rate[2] / top / threads);
            fflush(stdout);
            dt_tensor *all[6] = { p.x, p.w, p.y, p.dy, p.dx, p.dw };
            for (int k = 0; k < 6; k++) dt__unref(all[k]);
        }
    return dt_check("bench_conv");
}
