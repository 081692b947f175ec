/* dt_plot.h - v0.2.0 - watching a run: progress line, CSV table, SVG plots */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_plot.h"
    In every other file that uses it:           #include "dt_plot.h"

    Put dt_base.h into the same directory. Link with -lm -lpthread.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_plot.h"

    int main(void)
    {
        dt_progress *p = dt_progress_new(.epochs = 2, .steps = 100, .unit = "images", .svg = "loss.svg");
        for (int step = 1; step <= 200; step++) {
            dt_progress_step(p, 3.0 / step, .items = 64);
            if (step % 100 == 0) {
                dt_progress_result(p, "accuracy", 1 - 1.0 / step);
                dt_progress_epoch(p);
            }
        }
        dt_progress_free(p);

        double    y[50];
        dt_series squares = { .name = "squares", .y = y, .n = 50 };
        dt_plot   plot = { .title = "Squares", .series = &squares, .nseries = 1 };
        for (int i = 0; i < 50; i++) y[i] = i * i;
        dt_svg_plot("squares.svg", &plot);
        return dt_check("watching");
    }

WHAT IT DOES NOT DO

    Plots have lines, dots and marks on one or two y axes: no bars, no surfaces, no window. A process shows one progress
    line. With several ranks, one rank shows it and the others set .quiet.

CONTENTS

    >>progress       the progress line, the CSV table, the loss curve
    >>plots          a plot as an SVG file
    >>text           implementation from here: numbers, XML, saving
    >>axes           ranges, ticks, labels
    >>svg            the plot
    >>history        the values that the loss curve shows
    >>table          the CSV table: writing it, and reading it when a run is resumed
    >>line           the progress line
    >>calls          the public functions of dt_progress

MACROS

    DT_IMPLEMENTATION, DT_PLOT_IMPLEMENTATION, DT_LINKED, DT_STATIC, DT_MALLOC and DT_FREE: as in dt_base.h.

    Environment variables: TERM ("dumb": plain lines), COLUMNS (used if the terminal does not report its width).

ERRORS

    As in dt_base.h: a call that fails returns NULL or a negative status and leaves a message in dt_error().

THREADS

    A dt_progress is used by one thread at a time. dt_svg_plot is thread-safe if each call writes another file.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_PLOT_IMPLEMENTATION)
#define DT_PLOT_IMPLEMENTATION
#endif
#include "dt_base.h"

#ifndef DT_PLOT_H_INCLUDED
#define DT_PLOT_H_INCLUDED

#include <stdio.h>

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_plot.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>progress
   Shows the progress of a training. On a terminal one line is redrawn, at most 10 times a second and never wider than the
   terminal:
       epoch 2/5  [=======>      ]  340/600  loss 0.1234  12345 images/s  0:03 left  scale 65536
   If the output is not a terminal, plain lines are printed. The loss shown is an exponential average over about 20 steps;
   a loss that is not finite is shown as it is. The rate is an average over about 3 s. The time between the last step of an
   epoch and dt_progress_epoch (evaluation) is not part of the rate. The time left is that of the whole run.

   If a file cannot be opened, dt_progress_new fails. If it cannot be written later (disk full), the training goes on: a
   warning is logged at once, and dt_progress_free returns the error. Every call accepts NULL. While an error is pending,
   steps, results and epochs are not counted. If dt.h's trace is on, the loss and the loss scale are curves in it. */
typedef struct dt_progress dt_progress; /* the display of a run */
typedef struct dt_progress_opts {
    int         dt__first DT_D;
    int         epochs DT_D;     /* 0: unknown */
    int64_t     steps DT_D;      /* per epoch; 0: unknown */
    const char *unit DT_D;       /* what .items counts: "images"; default "items" */
    FILE       *file DT_D;       /* default stderr */
    bool        quiet DT_D;      /* print nothing: for the other ranks */
    double      every DT_D;      /* plain lines: seconds between them; default 10. One more at each tenth of the run */
    const char *csv DT_D;        /* path of a table with a line for each step and each result */
    const char *svg DT_D;        /* path of the loss curve: written every 60 s, after each epoch and at the end */
    const char *title DT_D;      /* of the curve */
    dt_switch   log_loss DT_D;   /* logarithmic loss axis; default: if the loss spans more than two decades */
    int64_t     start_step DT_D; /* of a resumed run: steps done before. The table is continued after that step, and the
                                    curve includes the values of the table */
} dt_progress_opts;
typedef struct dt_progress_step_opts {
    int    dt__first DT_D;
    double items DT_D; /* number of samples, tokens ... in this step */
    double lr DT_D;    /* for the table */
    double scale DT_D; /* loss scale */
} dt_progress_step_opts;
DT_API dt_progress *dt_progress_new_with(dt_progress_opts o DT_OPT0(dt_progress_opts)); /* NULL on error */
/* Call it after each step. */
DT_API void         dt_progress_step_with(dt_progress *p, double loss,
                                          dt_progress_step_opts o DT_OPT0(dt_progress_step_opts));
/* A named result of the epoch, for example the accuracy: shown in the epoch's line, in the table, and in the curve with the
   axis on the right. */
DT_API void         dt_progress_result(dt_progress *p, const char *name, double value);
DT_API void         dt_progress_epoch(dt_progress *p); /* ends an epoch, after its results */
DT_API void         dt_progress_note(dt_progress *p, const char *format, ...) DT__PRINTF(2, 3); /* prints a line of text */
DT_API dt_status    dt_progress_free(dt_progress *p);
#ifdef DT__LIT
#define dt_progress_new(...) dt_progress_new_with(DT__ONLY(dt_progress_opts, __VA_ARGS__))
#define dt_progress_step(p, ...) \
    dt_progress_step_with(p, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_progress_step_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_progress_new dt_progress_new_with
#define dt_progress_step dt_progress_step_with
#endif

/* ---------------------------------------------------------------------------------------------------- >>plots
   A plot as an SVG file, written under a temporary name and then renamed. Set unused fields to 0. */
typedef struct dt_series {
    const char   *name DT_D;  /* in the legend; NULL: not in the legend */
    const double *x DT_D;     /* n values; NULL: 0, 1, 2 ... */
    const double *y DT_D;     /* n values; where one is not finite, the line has a gap and a mark */
    int64_t       n DT_D;     /* of more than 1000 points only minima and maxima of groups are drawn */
    bool          right DT_D; /* use the y axis on the right */
    bool          light DT_D; /* thin and pale: raw values behind a smoothed line */
    bool          dots DT_D;  /* a dot at each point */
    int           color DT_D; /* 1 to 8; default: the position of the series */
} dt_series;
typedef struct dt_plot {
    const char      *title DT_D, *x_label DT_D, *y_label DT_D, *right_label DT_D;
    const dt_series *series DT_D;
    int              nseries DT_D;
    const double    *mark DT_D; /* x positions of vertical lines, for example the ends of epochs */
    int64_t          nmarks DT_D;
    bool             log_x DT_D;
    dt_switch        log_y DT_D, log_right DT_D; /* default: logarithmic if all values are above 0 and span over two decades */
    int              width DT_D, height DT_D;    /* in pixels; default 800 x 450 */
} dt_plot;
DT_API dt_status dt_svg_plot(const char *path, const dt_plot *plot);

#ifdef __cplusplus
}
#endif
#endif /* DT_PLOT_H_INCLUDED */

#if defined(DT_PLOT_IMPLEMENTATION) && !defined(DT__PLOT_IMPLEMENTED)
#define DT__PLOT_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__BASE_IMPLEMENTED)
#error "dt_plot.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_PLOT_IMPLEMENTATION"
#endif

#include <fcntl.h>
#include <sys/ioctl.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(PLOT);
DT__NEEDS(PLOT, BASE);

DT__SLOW_BEGIN
/* ==================================================================================================== >>text
   Numbers in files are formatted by dt__number, not by printf: a locale with a decimal comma would break the table and
   the SVG. */
static void dt__text_g(dt__text_buf *b, double x, int digits)
{
    char buf[64];
    dt__text_put(b, dt__number(buf, sizeof buf, x, digits));
}
static void dt__text_xml(dt__text_buf *b, const char *text)
{
    const unsigned char *s = (const unsigned char *)(text ? text : "");
    for (int n; *s; s += n) {
        n = (int)dt__utf8_len(s, 4);
        if (n == 1 && *s == '&') dt__text_put(b, "&amp;");
        else if (n == 1 && *s == '<') dt__text_put(b, "&lt;");
        else if (n == 1 && *s == '>') dt__text_put(b, "&gt;");
        else if (n == 1 && *s == '"') dt__text_put(b, "&quot;");
        else if (n == 0 || *s < 0x20 || *s == 0x7f || (n == 3 && s[0] == 0xef && s[1] == 0xbf && s[2] >= 0xbe))
            dt__text_put(b, "?"); /* not allowed in XML */
        else dt__text_add(b, (const char *)s, (size_t)n);
        if (n == 0) n = 1;
    }
}

/* ==================================================================================================== >>axes
   Ranges, ticks and labels. */
typedef struct dt__plot_axis {
    double lo, hi;   /* range of the values, or of their decimal logarithms if log */
    bool   log;
    double from, to; /* positions of lo and hi, in pixels */
} dt__plot_axis;
#define DT__MAX_TICKS 24
typedef struct dt__tick {
    double at;    /* its value */
    bool   label; /* it has a label */
} dt__tick;

static double dt__clip(double v) { return v > 1e290 ? 1e290 : v < -1e290 ? -1e290 : v; } /* so that sums stay finite */
static bool   dt__axis_has(const dt__plot_axis *a, double v) { return isfinite(v) && (!a->log || v > 0); }
static double dt__axis_at(const dt__plot_axis *a, double v)
{
    double u = a->log ? log10(v) : dt__clip(v);
    return a->from + (u - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}
static double dt__nice(double x) /* the nearest 1, 2 or 5 times a power of 10 */
{
    double p = pow(10, floor(log10(x))), m = x / p;
    return (m < 1.5 ? 1 : m < 3.2 ? 2 : m < 7.1 ? 5 : 10) * p;
}
/* Sets the range of an axis from the range of its values; lo > hi: there are no values. */
static void dt__axis_set(dt__plot_axis *a, double lo, double hi, bool is_x)
{
    if (lo > hi) lo = a->log ? 1 : 0, hi = a->log ? 10 : 1;
    a->lo = a->log ? log10(lo) : dt__clip(lo);
    a->hi = a->log ? log10(hi) : dt__clip(hi);
    bool   one = !(a->hi - a->lo > 1e-9 * (fabs(a->hi) + fabs(a->lo))); /* all values are equal */
    double more = !one ? 0 : a->log ? 0.5 : a->lo != 0 ? 0.1 * fabs(a->lo) : 1;
    a->lo -= more;
    a->hi += more;
    if (is_x) return;
    double room = 0.04 * (a->hi - a->lo);
    bool   from_zero = !a->log && !one && lo >= 0 && lo <= 0.5 * hi; /* unless half of the axis would be empty */
    bool   to_zero = !a->log && !one && hi <= 0 && hi >= 0.5 * lo;
    a->lo = from_zero ? 0 : a->lo - room;
    a->hi = to_zero ? 0 : a->hi + room;
}
static int dt__axis_linear_ticks(const dt__plot_axis *a, dt__tick *t, int want)
{
    double step = dt__nice((a->hi - a->lo) / want), first = ceil(a->lo / step - 1e-9);
    int    n = 0;
    for (; n < DT__MAX_TICKS && (first + n) * step <= a->hi + 1e-9 * step; n++) {
        t[n].at = (first + n) * step;
        t[n].label = true;
    }
    return n;
}
static int dt__axis_ticks(const dt__plot_axis *a, dt__tick *t, int want)
{
    static const double part[] = { 1, 2, 5 };
    double              span = a->hi - a->lo;
    if (!a->log) return dt__axis_linear_ticks(a, t, want);
    int every = (int)ceil(span / 8), n = 0, d = (int)floor(a->lo);
    if (every < 1) every = 1;
    for (; d <= a->hi && n < DT__MAX_TICKS; d++)
        for (int k = 0; k < 3 && n < DT__MAX_TICKS; k++) {
            double u = d + log10(part[k]);
            if (u < a->lo - 1e-9 || u > a->hi + 1e-9 || (k ? span > 4 : d % every != 0)) continue;
            t[n].at = part[k] * pow(10, d);
            t[n++].label = k == 0 || span < 2;
        }
    return n;
}
/* The label of a tick: as many decimals as the step between ticks needs. The suffixes k, M, G, T are used if the largest
   tick (top) is 10000 or more; on a logarithmic axis from 1000. */
static void dt__tick_text(char *buf, size_t nbytes, double v, double step, double top, bool is_log)
{
    static const char suffix[] = " kMGT";
    int               k = 0;
    if (is_log) top = fabs(v);
    if (top >= 1e16) {
        dt__number(buf, nbytes, v, 3);
        return;
    }
    for (double limit = is_log ? 999.5 : 1e4; k < 4 && top >= limit; k++, limit = 999.5)
        v /= 1e3, step /= 1e3, top /= 1e3;
    int decimals = step > 0 && !is_log ? (int)ceil(-log10(step) - 1e-9) : 0;
    if (fabs(v) < 1e-9 * step) v = 0;
    dt__number(buf, nbytes, v, is_log || decimals > 6 ? 3 : 15);
    if (!is_log && decimals >= 0 && decimals <= 6) {
        snprintf(buf, nbytes, "%.*f", decimals, v);
        dt__fix_point(buf);
    }
    size_t n = strlen(buf);
    if (k && v != 0 && n + 2 < nbytes) buf[n] = suffix[k], buf[n + 1] = 0;
}

/* ==================================================================================================== >>svg
   Draws a plot. */
typedef struct dt__svg {
    const dt_plot *plot;
    dt__text_buf   out;
    dt__plot_axis  x, y, right;
    double         width, height;
    bool           has_right;
} dt__svg;
static const char *const dt__colors[] = { "#2461a8", "#d2601a", "#2d8a57", "#8d4ba5", "#b08a00", "#2f8f9d", "#b3384e",
                                          "#5f6773" };

static void dt__svg_num(dt__svg *s, double x) /* rounded to 0.1 pixels */
{
    dt__text_g(&s->out, fabs(x) < 0.05 ? 0 : floor(x * 10 + 0.5) / 10, 6);
}
static void dt__svg_line(dt__svg *s, double x0, double y0, double x1, double y1, const char *style)
{
    const char *const key[] = { "<line x1=\"", "\" y1=\"", "\" x2=\"", "\" y2=\"" };
    double            v[4];
    v[0] = x0, v[1] = y0, v[2] = x1, v[3] = y1;
    for (int i = 0; i < 4; i++) dt__text_put(&s->out, key[i]), dt__svg_num(s, v[i]);
    dt__text_put(&s->out, "\" ");
    dt__text_put(&s->out, style);
    dt__text_put(&s->out, "/>\n");
}
static void dt__svg_text(dt__svg *s, double x, double y, const char *style, const char *text)
{
    dt__text_put(&s->out, "<text x=\"");
    dt__svg_num(s, x);
    dt__text_put(&s->out, "\" y=\"");
    dt__svg_num(s, y);
    dt__text_put(&s->out, "\" ");
    dt__text_put(&s->out, style);
    dt__text_put(&s->out, ">");
    dt__text_xml(&s->out, text);
    dt__text_put(&s->out, "</text>\n");
}
static void dt__svg_rotated(dt__svg *s, double x, double y, int angle, const char *text) /* the label of a y axis */
{
    dt__text_put(&s->out, "<text text-anchor=\"middle\" transform=\"translate(");
    dt__svg_num(s, x);
    dt__text_put(&s->out, " ");
    dt__svg_num(s, y);
    dt__text_put(&s->out, angle > 0 ? ") rotate(90)\">" : ") rotate(-90)\">");
    dt__text_xml(&s->out, text);
    dt__text_put(&s->out, "</text>\n");
}
static double dt__series_x(const dt_series *e, int64_t i) { return e->x ? e->x[i] : (double)i; }

/* The range over all series of the values of one axis. positive: only of values above 0. */
enum { DT__AXIS_X, DT__AXIS_Y, DT__AXIS_RIGHT };
static void dt__svg_range(const dt_plot *p, int which, bool positive, double *lo, double *hi)
{
    *lo = INFINITY;
    *hi = -INFINITY;
    for (int k = 0; k < p->nseries; k++) {
        const dt_series *e = &p->series[k];
        if (which != DT__AXIS_X && e->right != (which == DT__AXIS_RIGHT)) continue;
        for (int64_t i = 0; i < e->n; i++) {
            double v = which == DT__AXIS_X ? dt__series_x(e, i) : e->y[i];
            if (!isfinite(v) || (positive && v <= 0)) continue;
            if (v < *lo) *lo = v;
            if (v > *hi) *hi = v;
        }
    }
}
static void dt__svg_axis(const dt_plot *p, dt__plot_axis *a, int which, dt_switch want, double from, double to)
{
    double lo, hi;
    dt__svg_range(p, which, false, &lo, &hi);
    a->log = want == DT_YES || (want == DT_DEFAULT && lo > 0 && hi > lo && hi / lo > 100);
    if (a->log && lo <= 0) dt__svg_range(p, which, true, &lo, &hi);
    a->from = from;
    a->to = to;
    dt__axis_set(a, lo, hi, which == DT__AXIS_X);
}
/* Ticks, their labels and the grid of one axis. */
static void dt__svg_ticks(dt__svg *s, const dt__plot_axis *a, int which)
{
    dt__tick t[DT__MAX_TICKS];
    char     text[64];
    int      n = dt__axis_ticks(a, t, which == DT__AXIS_X ? 8 : 6);
    double   step = n > 1 ? t[1].at - t[0].at : 0, top = n ? fmax(fabs(t[0].at), fabs(t[n - 1].at)) : 0;
    for (int i = 0; i < n; i++) {
        double at = dt__axis_at(a, t[i].at);
        if (which == DT__AXIS_X)
            dt__svg_line(s, at, s->y.to, at, s->y.from, t[i].label ? "stroke=\"#e4e6ea\"" : "stroke=\"#f1f2f4\"");
        if (which == DT__AXIS_Y)
            dt__svg_line(s, s->x.from, at, s->x.to, at, t[i].label ? "stroke=\"#e4e6ea\"" : "stroke=\"#f1f2f4\"");
        if (which == DT__AXIS_RIGHT) dt__svg_line(s, s->x.to, at, s->x.to + 4, at, "stroke=\"#5f6773\"");
        if (!t[i].label) continue;
        dt__tick_text(text, sizeof text, t[i].at, step, top, a->log);
        if (which == DT__AXIS_X) dt__svg_text(s, at, s->y.from + 17, "text-anchor=\"middle\"", text);
        if (which == DT__AXIS_Y) dt__svg_text(s, s->x.from - 7, at + 4, "text-anchor=\"end\"", text);
        if (which == DT__AXIS_RIGHT) dt__svg_text(s, s->x.to + 8, at + 4, "text-anchor=\"start\"", text);
    }
}
static void dt__svg_frame(dt__svg *s)
{
    const dt_plot *p = s->plot;
    double         middle = (s->x.from + s->x.to) / 2, center = (s->y.from + s->y.to) / 2;
    int64_t        every = p->nmarks / 40 + 1;
    dt__svg_ticks(s, &s->x, DT__AXIS_X);
    dt__svg_ticks(s, &s->y, DT__AXIS_Y);
    if (s->has_right) dt__svg_ticks(s, &s->right, DT__AXIS_RIGHT);
    for (int64_t i = every - 1; i < p->nmarks; i += every) {
        if (!dt__axis_has(&s->x, p->mark[i])) continue;
        double at = dt__axis_at(&s->x, p->mark[i]);
        if (at < s->x.from - 0.5 || at > s->x.to + 0.5) continue;
        dt__svg_line(s, at, s->y.to, at, s->y.from, "stroke=\"#9aa1ab\" stroke-dasharray=\"2 4\"");
    }
    dt__svg_line(s, s->x.from, s->y.from, s->x.to, s->y.from, "stroke=\"#5f6773\"");
    dt__svg_line(s, s->x.from, s->y.to, s->x.from, s->y.from, "stroke=\"#5f6773\"");
    if (s->has_right) dt__svg_line(s, s->x.to, s->y.to, s->x.to, s->y.from, "stroke=\"#5f6773\"");
    if (p->title) dt__svg_text(s, middle, 22, "text-anchor=\"middle\" font-size=\"15\" font-weight=\"bold\"", p->title);
    if (p->x_label) dt__svg_text(s, middle, s->height - 12, "text-anchor=\"middle\"", p->x_label);
    if (p->y_label) dt__svg_rotated(s, 18, center, -90, p->y_label);
    if (p->right_label && s->has_right) dt__svg_rotated(s, s->width - 16, center, 90, p->right_label);
}

/* Draws a series as polylines. A value that the axis cannot show ends a polyline and gets a mark at the top. */
typedef struct dt__pen {
    dt__svg        *s;
    const dt__plot_axis *y;
    const char     *color;
    bool            light, dots; /* as in dt_series */
    bool            down;        /* a polyline is open */
    int             crosses;     /* number of marks drawn */
    double          x0, y0;      /* first point of the polyline: if it stays alone it is drawn as a dot */
    int             points;      /* number of points of the polyline */
} dt__pen;
static void dt__pen_dot(dt__pen *n, double x, double y, double radius)
{
    dt__text_buf *o = &n->s->out;
    dt__text_put(o, "<circle cx=\"");
    dt__svg_num(n->s, x);
    dt__text_put(o, "\" cy=\"");
    dt__svg_num(n->s, y);
    dt__text_put(o, "\" r=\"");
    dt__text_g(o, radius, 3);
    dt__text_put(o, "\" fill=\"");
    dt__text_put(o, n->color);
    dt__text_put(o, "\"/>\n");
}
static void dt__pen_up(dt__pen *n)
{
    if (!n->down) return;
    n->down = false;
    dt__text_put(&n->s->out, "\"/>\n");
    if (n->points == 1 && !n->dots) dt__pen_dot(n, n->x0, n->y0, n->light ? 1.2 : 2);
}
static void dt__pen_to(dt__pen *n, double xv, double yv)
{
    dt__text_buf *o = &n->s->out;
    if (!dt__axis_has(&n->s->x, xv)) return;
    double x = dt__axis_at(&n->s->x, xv);
    if (!dt__axis_has(n->y, yv)) {
        dt__pen_up(n);
        if (n->crosses++ < 100)
            dt__svg_text(n->s, x, n->s->y.to + 4, "text-anchor=\"middle\" font-size=\"13\" fill=\"#c0232c\"",
                         "\xc3\x97");
        return;
    }
    double y = dt__axis_at(n->y, yv);
    if (!n->down) {
        dt__text_put(o, "<polyline fill=\"none\" stroke-linejoin=\"round\" stroke=\"");
        dt__text_put(o, n->color);
        dt__text_put(o, n->light ? "\" stroke-width=\"1\" opacity=\"0.32" : "\" stroke-width=\"1.8");
        dt__text_put(o, "\" points=\"");
        n->down = true;
        n->points = 0;
        n->x0 = x;
        n->y0 = y;
    }
    if (n->points++) dt__text_put(o, n->points % 8 == 1 ? "\n" : " ");
    dt__svg_num(n->s, x);
    dt__text_put(o, ",");
    dt__svg_num(n->s, y);
}
static void dt__svg_series(dt__svg *s, const dt_series *e, int color)
{
    dt__pen n;
    int64_t group = e->n > 1000 ? (e->n + 499) / 500 : 1; /* draw the minimum and the maximum of each group */
    memset(&n, 0, sizeof n);
    n.s = s;
    n.y = e->right ? &s->right : &s->y;
    n.color = dt__colors[color];
    n.light = e->light;
    n.dots = e->dots;
    for (int64_t i = 0; i < e->n; i += group) {
        int64_t end = i + group < e->n ? i + group : e->n, lo = -1, hi = -1, bad = -1;
        for (int64_t k = i; k < end; k++) {
            if (!dt__axis_has(n.y, e->y[k])) bad = k;
            else if (lo < 0) lo = hi = k;
            else if (e->y[k] < e->y[lo]) lo = k;
            else if (e->y[k] > e->y[hi]) hi = k;
        }
        int64_t a = lo < hi ? lo : hi, b = lo < hi ? hi : lo;
        if (a >= 0) dt__pen_to(&n, dt__series_x(e, a), e->y[a]);
        if (b > a) dt__pen_to(&n, dt__series_x(e, b), e->y[b]);
        if (bad >= 0) dt__pen_to(&n, dt__series_x(e, bad), NAN);
    }
    dt__pen_up(&n);
    for (int64_t i = 0; e->dots && i < e->n && e->n <= 200; i++)
        if (dt__axis_has(&s->x, dt__series_x(e, i)) && dt__axis_has(n.y, e->y[i]))
            dt__pen_dot(&n, dt__axis_at(&s->x, dt__series_x(e, i)), dt__axis_at(n.y, e->y[i]), 2.8);
}
static int dt__series_color(const dt_plot *p, int k) /* index in dt__colors */
{
    int c = p->series[k].color;
    return ((c > 0 ? c - 1 : k) % 8 + 8) % 8;
}
static int dt__text_columns(const char *s) /* characters, not bytes */
{
    int n = 0;
    for (; *s; s++) n += (*s & 0xc0) != 0x80;
    return n;
}
enum { DT__LEGEND_ROW = 17 }; /* pixels */
/* Draws the legend above the plot, in as many rows as it needs; returns their number. draw false: only counts them. */
static int dt__svg_legend(dt__svg *s, bool draw)
{
    double left = s->x.from + 4, x = left, y = 48;
    int    rows = 1;
    for (int k = 0; k < s->plot->nseries; k++) {
        const dt_series *e = &s->plot->series[k];
        if (!e->name) continue;
        double width = 23 + 6.6 * dt__text_columns(e->name); /* 6.6 pixels is about the width of a letter */
        if (x > left && x + width > s->x.to) x = left, rows++, y += (double)DT__LEGEND_ROW;
        if (draw) {
            dt__text_put(&s->out, "<rect width=\"18\" height=\"3\" x=\"");
            dt__svg_num(s, x);
            dt__text_put(&s->out, "\" y=\"");
            dt__svg_num(s, y - 5);
            dt__text_put(&s->out, "\" fill=\"");
            dt__text_put(&s->out, dt__colors[dt__series_color(s->plot, k)]);
            dt__text_put(&s->out, e->light ? "\" opacity=\"0.4\"/>\n" : "\"/>\n");
            dt__svg_text(s, x + 23, y, "text-anchor=\"start\"", e->name);
        }
        x += width + 18;
    }
    return rows;
}
static bool dt__svg_check(const dt_plot *p, const char **why)
{
    *why = NULL;
    if (!p || (p->nseries > 0 && !p->series) || p->nseries < 0)
        *why = "the plot or its series are NULL, or .nseries is negative";
    else if (p->nmarks < 0 || (p->nmarks > 0 && !p->mark)) *why = "its marks are NULL, or .nmarks is negative";
    else if (p->width < 0 || p->height < 0 || p->width > 100000 || p->height > 100000)
        *why = "its size is wrong: .width and .height must be 0 to 100000 pixels";
    for (int k = 0; !*why && k < p->nseries; k++)
        if (p->series[k].n < 0 || (p->series[k].n > 0 && !p->series[k].y)) *why = "a series has no y, or its .n is negative";
    return *why == NULL;
}
static int dt__svg_save(const char *path, const dt_plot *p) /* p was checked; returns 0 or an errno value */
{
    dt__svg s;
    int     any = 0;
    memset(&s, 0, sizeof s);
    s.plot = p;
    s.width = p->width ? p->width : 800;
    s.height = p->height ? p->height : 450;
    for (int k = 0; k < p->nseries; k++) {
        any |= p->series[k].n > 0;
        s.has_right |= p->series[k].right && p->series[k].n > 0;
    }
    dt__svg_axis(p, &s.x, DT__AXIS_X, p->log_x ? DT_YES : DT_NO, 66, s.width - (s.has_right ? 70 : 24));
    double top = 45 + (double)DT__LEGEND_ROW * dt__svg_legend(&s, false);
    dt__svg_axis(p, &s.y, DT__AXIS_Y, p->log_y, s.height - 52, top);
    dt__svg_axis(p, &s.right, DT__AXIS_RIGHT, p->log_right, s.height - 52, top);
    dt__text_put(&s.out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"");
    dt__svg_num(&s, s.width);
    dt__text_put(&s.out, "\" height=\"");
    dt__svg_num(&s, s.height);
    dt__text_put(&s.out, "\" viewBox=\"0 0 ");
    dt__svg_num(&s, s.width);
    dt__text_put(&s.out, " ");
    dt__svg_num(&s, s.height);
    dt__text_put(&s.out, "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#2b2f36\">\n"
                         "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
    dt__svg_frame(&s);
    for (int k = 0; k < p->nseries; k++) dt__svg_series(&s, &p->series[k], dt__series_color(p, k));
    dt__svg_legend(&s, true);
    if (!any)
        dt__svg_text(&s, (s.x.from + s.x.to) / 2, (s.y.from + s.y.to) / 2, "text-anchor=\"middle\"", "nothing yet");
    dt__text_put(&s.out, "</svg>\n");
    const char *why = NULL;
    int         e = dt__text_save(&s.out, path, &why);
    dt__text_free(&s.out);
    return e;
}
DT_API dt_status dt_svg_plot(const char *path, const dt_plot *plot)
{
    const char *why;
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!path || !*path)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_svg_plot: the path is %s; it needs the path of a file",
                                  path ? "empty" : "NULL");
    if (!dt__svg_check(plot, &why)) return (dt_status)dt_fail(DT_ERR_ARG, "dt_svg_plot: %s: %s", path, why);
    int e = dt__svg_save(path, plot);
    return e ? (dt_status)dt_fail(e == ENOMEM ? DT_ERR_MEMORY : DT_ERR_FILE, "dt_svg_plot: cannot write %s: %s", path,
                                  strerror(e)) : DT_OK;
}

/* ==================================================================================================== >>history
   The losses of a training in bins: each bin summarises 'stride' consecutive steps. When all bins are used, neighbours are
   merged in pairs and the stride doubles. */
#define DT__BINS 500 /* even; with two points per bin, below the limit up to which a plot draws every point */
typedef struct dt__bin {
    int64_t n, bad;        /* number of finite losses, and of others */
    int64_t first, last;   /* steps */
    int64_t lo_at, hi_at;  /* steps of the smallest and the largest loss */
    double  lo, hi, sum;   /* of the finite losses */
} dt__bin;
typedef struct dt__result {
    int     name; /* index in p->name */
    int64_t step;
    double  value;
} dt__result;
#define DT__RESULT_NAMES 8

struct dt_progress {
    dt_progress_opts o;
    char         csv_path[1024], svg_path[1024], title[128], unit[32];
    FILE        *csv;
    int          csv_error, svg_error; /* errno value of the first failure; 0: no failure */
    bool         tty;                  /* the output is a terminal */
    bool         open_line;            /* the cursor is in a line that has no newline yet */
    int          shown;                /* width of that line, in columns */
    int64_t      step, in_epoch, drawn_step;
    int          epoch; /* number of epochs that have ended */
    double       start, before; /* time at the start; duration of earlier runs; in seconds */
    double       last_step, last_line, last_svg; /* times, in seconds of the monotonic clock */
    int          tenth; /* tenths of the run done at the last plain line */
    double       loss, lr, scale;
    double       loss_sum, loss_weight, rate_items, rate_seconds;
    bool         has_items;
    dt__bin  bin[DT__BINS];
    int          nbins;
    int64_t      stride;
    char         name[DT__RESULT_NAMES][64];
    int          nnames;
    dt__result  *result;
    int64_t      nresults, result_cap;
    double      *mark; /* steps at which epochs ended */
    int64_t      nmarks, mark_cap;
    char         results[256]; /* of the current epoch, as text */
};

static void dt__history_add(dt_progress *p, int64_t step, double loss)
{
    dt__bin *s = p->nbins ? &p->bin[p->nbins - 1] : NULL;
    if (s && s->n + s->bad >= p->stride) s = NULL;
    if (!s && p->nbins == DT__BINS) {
        for (int i = 0; i < DT__BINS / 2; i++) {
            dt__bin a = p->bin[2 * i], b = p->bin[2 * i + 1];
            if (!a.n || (b.n && b.lo < a.lo)) a.lo = b.lo, a.lo_at = b.lo_at;
            if (!a.n || (b.n && b.hi > a.hi)) a.hi = b.hi, a.hi_at = b.hi_at;
            a.n += b.n;
            a.bad += b.bad;
            a.sum += b.sum;
            a.last = b.last;
            p->bin[i] = a;
        }
        p->nbins = DT__BINS / 2;
        p->stride *= 2;
    }
    if (!s) {
        s = &p->bin[p->nbins++];
        memset(s, 0, sizeof *s);
        s->first = step;
    }
    s->last = step;
    if (!isfinite(loss)) {
        s->bad++;
        return;
    }
    if (!s->n || loss < s->lo) s->lo = loss, s->lo_at = step;
    if (!s->n || loss > s->hi) s->hi = loss, s->hi_at = step;
    s->sum += dt__clip(loss);
    s->n++;
}
static void dt__history_result(dt_progress *p, const char *name, int64_t step, double value)
{
    char text[64];
    int  k = 0;
    snprintf(text, sizeof text, "%.63s", name);
    while (k < p->nnames && strcmp(p->name[k], text)) k++;
    if (k == DT__RESULT_NAMES) return; /* it is in the table; the curve has no more colours */
    if (k == p->nnames) strcpy(p->name[p->nnames++], text);
    dt__result *at = (dt__result *)dt__enlarge(p->result, p->nresults, &p->result_cap, sizeof *at);
    if (at) {
        p->result = at;
        p->result[p->nresults].name = k;
        p->result[p->nresults].step = step;
        p->result[p->nresults++].value = value;
    }
}
static void dt__history_mark(dt_progress *p, int64_t step)
{
    double *at = (double *)dt__enlarge(p->mark, p->nmarks, &p->mark_cap, sizeof *at);
    if (!at) return;
    p->mark = at;
    p->mark[p->nmarks++] = (double)step;
}

/* The raw losses and a smoothed line from the bins. x and y have room for 4 points per bin. */
static void dt__curve_loss(const dt_progress *p, dt_series *raw, dt_series *smooth, double *x, double *y)
{
    int64_t n = 0;
    int     around = p->nbins >= 10 ? p->nbins / 50 + 1 : 0;
    raw->x = x;
    raw->y = y;
    for (int i = 0; i < p->nbins; i++) {
        const dt__bin *s = &p->bin[i];
        bool               low_first = s->lo_at <= s->hi_at;
        if (s->n) x[n] = (double)(low_first ? s->lo_at : s->hi_at), y[n++] = low_first ? s->lo : s->hi;
        if (s->n && s->lo_at != s->hi_at)
            x[n] = (double)(low_first ? s->hi_at : s->lo_at), y[n++] = low_first ? s->hi : s->lo;
        if (s->bad) x[n] = (double)s->last, y[n++] = NAN;
    }
    raw->n = n;
    smooth->x = x += n;
    smooth->y = y += n;
    for (int i = 0; i < p->nbins; i++) {
        double sum = 0, count = 0;
        for (int k = i - around; k <= i + around; k++)
            if (k >= 0 && k < p->nbins && p->bin[k].n) {
                double w = (double)(around + 1 - abs(k - i)) * (double)p->bin[k].n;
                sum += w * (p->bin[k].sum / (double)p->bin[k].n);
                count += w;
            }
        if (!p->bin[i].n) sum = NAN; /* a gap */
        x[smooth->n] = 0.5 * ((double)p->bin[i].first + (double)p->bin[i].last);
        y[smooth->n++] = sum / count;
    }
}
static int dt__curve_save(dt_progress *p) /* returns 0 or an errno value */
{
    dt_series series[2 + DT__RESULT_NAMES];
    dt_plot   plot;
    char      label[160] = "";
    size_t    room = 4 * (size_t)DT__BINS + (size_t)p->nresults, at = 0;
    double   *mem = (double *)dt_mem_alloc(2 * room * sizeof *mem), *x = mem, *y = mem + room;
    if (!mem) return ENOMEM;
    DT__CLEAR(series);
    DT__CLEAR(plot);
    dt__curve_loss(p, &series[0], &series[1], x, y);
    at = (size_t)(series[0].n + series[1].n);
    series[0].light = true;
    series[0].color = series[1].color = 1;
    series[1].name = "loss";
    for (int k = 0; k < p->nnames; k++) {
        dt_series *e = &series[2 + k];
        e->x = x + at;
        e->y = y + at;
        e->name = p->name[k];
        e->right = e->dots = true;
        e->color = 2 + k;
        for (int64_t i = 0; i < p->nresults; i++)
            if (p->result[i].name == k) x[at] = (double)p->result[i].step, y[at++] = p->result[i].value, e->n++;
        size_t used = strlen(label);
        snprintf(label + used, sizeof label - used, "%s%s", k ? ", " : "", e->name);
    }
    plot.title = p->title[0] ? p->title : NULL;
    plot.x_label = "step";
    plot.y_label = "loss";
    plot.right_label = label;
    plot.series = series;
    plot.nseries = 2 + p->nnames;
    plot.mark = p->mark;
    plot.nmarks = p->nmarks;
    plot.log_y = p->o.log_loss;
    plot.log_right = DT_NO;
    int e = dt__svg_save(p->svg_path, &plot);
    dt_mem_free(mem, 2 * room * sizeof *mem);
    return e;
}
static void dt__progress_failed(int *kept, int e, const char *path)
{
    if (!e || *kept) return;
    *kept = e;
    dt__logf(DT_LOG_WARN, "dt_progress: cannot write %.900s: %s", path, strerror(e));
}
static void dt__progress_curve(dt_progress *p)
{
    if (!p->svg_path[0]) return;
    dt__progress_failed(&p->svg_error, dt__curve_save(p), p->svg_path);
    p->last_svg = dt__seconds();
}

/* ==================================================================================================== >>table
   One line for each step and for each result. It is flushed after each line, so that a table ends with at most one
   incomplete line if the program dies. */
#define DT__CSV_HEAD "step,epoch,loss,lr,scale,items_per_second,seconds,result,value\n"
static void dt__csv_number(dt__text_buf *b, double x, bool empty)
{
    dt__text_put(b, ",");
    if (!empty) dt__text_g(b, x, 9);
}
static void dt__csv_name(dt__text_buf *b, const char *name) /* quoted if necessary; a newline becomes a space */
{
    bool quote = strpbrk(name, ",\"\r\n") != NULL;
    dt__text_put(b, quote ? ",\"" : ",");
    for (; *name; name++) {
        if (*name == '"') dt__text_put(b, "\"");
        dt__text_add(b, *name == '\n' || *name == '\r' ? " " : name, 1);
    }
    if (quote) dt__text_put(b, "\"");
}
static double dt__progress_rate(const dt_progress *p)
{
    return p->rate_seconds > 0 ? p->rate_items / p->rate_seconds : 0;
}

/* Writes the line of the last step (name NULL) or of a result. */
static void dt__csv_line(dt_progress *p, const char *name, double value)
{
    dt__text_buf b;
    if (!p->csv || p->csv_error) return;
    memset(&b, 0, sizeof b);
    dt__text_int(&b, p->step);
    dt__text_put(&b, ",");
    dt__text_int(&b, p->epoch + 1);
    dt__csv_number(&b, p->loss, name != NULL);
    dt__csv_number(&b, p->lr, name || p->lr == 0);
    dt__csv_number(&b, p->scale, name || p->scale == 0);
    dt__csv_number(&b, dt__progress_rate(p), name || !p->has_items);
    dt__csv_number(&b, floor(1e3 * (p->before + dt__seconds() - p->start)) / 1e3, false);
    if (name) dt__csv_name(&b, name);
    dt__csv_number(&b, value, name == NULL);
    if (!name) dt__text_put(&b, ",");
    dt__text_put(&b, "\n");
    int e = b.failed ? ENOMEM : 0;
    errno = 0;
    if (!e && (fwrite(b.s, 1, b.n, p->csv) != b.n || fflush(p->csv))) e = errno ? errno : EIO;
    dt__progress_failed(&p->csv_error, e, p->csv_path);
    dt__text_free(&b);
}
/* Reads a number with a decimal point, whatever the locale, and advances *s. NaN, and *s unchanged: not a number. */
static double dt__read_number(const char **s)
{
    const char *t = *s;
    double      v = 0, sign = *t == '-' ? -1 : 1;
    int         digits = 0, scale = 0, e = 0, esign = 1;
    if (*t == '-' || *t == '+') t++;
    if (!strncmp(t, "inf", 3) || !strncmp(t, "nan", 3)) {
        *s = t + 3;
        return *t == 'i' ? sign * INFINITY : NAN;
    }
    for (bool point = false; (*t >= '0' && *t <= '9') || (*t == '.' && !point); t++) {
        if (*t == '.') point = true;
        else v = 10 * v + (*t - '0'), digits++, scale -= point;
    }
    if (!digits) return NAN;
    if (*t == 'e') {
        t++;
        if (*t == '-') esign = -1;
        if (*t == '-' || *t == '+') t++;
        for (; *t >= '0' && *t <= '9'; t++)
            if (e < 10000) e = 10 * e + (*t - '0');
    }
    *s = t;
    return sign * v * pow(10, esign * e + scale);
}
/* Adds one line of the table to the history. Returns false if it is not a line of a table of dt. */
static bool dt__csv_read(dt_progress *p, char *line, int64_t *step, double *seconds)
{
    double      v[7];
    bool        has[7];
    const char *s = line;
    for (int i = 0; i < 7; i++) {
        const char *at = s;
        v[i] = dt__read_number(&s);
        has[i] = s > at;
        if (*s++ != ',') return false;
    }
    if (!has[0] || !has[1] || !(v[0] >= 0 && v[0] < 9e15 && v[1] >= 1 && v[1] < 2e9)) return false;
    *step = (int64_t)v[0];
    if (*step > p->o.start_step) return true;
    *seconds = has[6] ? v[6] : *seconds;
    if (p->epoch + 1 < (int)v[1]) {
        dt__history_mark(p, *step - 1);
        p->epoch = (int)v[1] - 1;
        p->in_epoch = 0;
    }
    if (has[2]) dt__history_add(p, *step, v[2]);
    p->in_epoch = has[2] ? p->in_epoch + 1 : 0;
    char *name = line + (s - line), *to = name, *from = name; /* remove quotes in place */
    bool  quoted = *from == '"';
    for (from += quoted; *from && (quoted ? *from != '"' || from[1] == '"' : *from != ','); from++) {
        if (quoted && *from == '"') from++;
        *to++ = *from;
    }
    if (quoted && *from++ != '"') return false;
    if (*from++ != ',') return false;
    const char *rest = from;
    double      value = dt__read_number(&rest);
    *to = 0;
    if (rest > from) dt__history_result(p, name, *step, value);
    return *rest == '\n';
}
/* Continues an existing table: reads the lines up to start_step and removes later lines and an incomplete last line.
   Returns 0 or a negative status. */
static int dt__csv_resume(dt_progress *p)
{
    char    line[1024];
    int64_t keep = 0, step = 0, number = 1;
    bool    good = true;
    for (; good && fgets(line, sizeof line, p->csv); number++) {
        size_t n = strlen(line), head = strlen(DT__CSV_HEAD);
        if (number > 1 || n < head) good = !strncmp(line, DT__CSV_HEAD, n) || number > 1;
        else good = !strcmp(line, DT__CSV_HEAD);
        if (good && n && line[n - 1] != '\n') { /* an incomplete last line, or not a table */
            good = n + 1 < sizeof line && feof(p->csv);
            break;
        }
        if (good && number > 1) good = dt__csv_read(p, line, &step, &p->before);
        if (!good || step > p->o.start_step) break;
        keep += (int64_t)n;
    }
    if (!good)
        return dt_fail(DT_ERR_ARG, "dt_progress_new: line %" PRId64 " of %s is not a line of a table of dt; use another "
                       "file", number, p->csv_path);
    if (p->nresults && !p->in_epoch) { /* an epoch ends after its results */
        dt__history_mark(p, p->o.start_step);
        p->epoch++;
    }
    if (ferror(p->csv) || fseek(p->csv, (long)keep, SEEK_SET) || ftruncate(fileno(p->csv), (off_t)keep) ||
        (!keep && (fputs(DT__CSV_HEAD, p->csv) < 0 || fflush(p->csv))))
        return dt_fail(DT_ERR_FILE, "dt_progress_new: cannot continue %s: %s", p->csv_path, strerror(errno));
    return 0;
}
static int dt__csv_open(dt_progress *p)
{
    bool        again = p->o.start_step > 0 && access(p->csv_path, F_OK) == 0;
    const char *why = NULL;
    p->csv = dt__file_stream(p->csv_path, again ? O_RDWR : O_WRONLY | O_TRUNC, &why);
    if (!p->csv) return dt_fail(DT_ERR_FILE, "dt_progress_new: cannot open %s: %s", p->csv_path, why);
    if (again) return dt__csv_resume(p);
    errno = 0;
    if (fputs(DT__CSV_HEAD, p->csv) < 0 || fflush(p->csv))
        return dt_fail(DT_ERR_FILE, "dt_progress_new: cannot write %s: %s", p->csv_path, strerror(errno));
    return 0;
}

/* ==================================================================================================== >>line
   On a terminal the line is overwritten in place; otherwise plain lines are printed. */
static void dt__time_text(char *buf, size_t nbytes, double seconds)
{
    double  most = 1e9;
    int64_t s = (int64_t)(seconds > 0 ? (seconds < most ? seconds + 0.5 : most) : 0);
    if (s >= 3600)
        snprintf(buf, nbytes, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(buf, nbytes, "%d:%02d", (int)(s / 60), (int)(s % 60));
}
static void dt__value_text(char *buf, size_t nbytes, double x)
{
    double a = fabs(x);
    dt__number(buf, nbytes, x, 4);
    if (!isfinite(x) || (a != 0 && (a < 1e-3 || a >= 1e5))) return;
    snprintf(buf, nbytes, "%.4f", x);
    dt__fix_point(buf);
}
static void dt__rate_text(char *buf, size_t nbytes, double x)
{
    dt__number(buf, nbytes, x, 4);
    if (!(x < 1e9)) return;
    snprintf(buf, nbytes, x >= 100 ? "%.0f" : x >= 1 ? "%.1f" : "%.3f", x);
    dt__fix_point(buf);
}
static double dt__progress_loss(const dt_progress *p) /* the average that is shown */
{
    if (!isfinite(p->loss)) return p->loss;
    return p->loss_weight > 0 ? p->loss_sum / p->loss_weight : p->loss;
}
static double dt__progress_left(const dt_progress *p) /* seconds; -1: unknown */
{
    int64_t done = p->step - p->o.start_step;
    double  total = (double)p->o.epochs * (double)p->o.steps;
    if (p->o.epochs <= 0 || p->o.steps <= 0 || done <= 0 || total < (double)p->step) return -1;
    return (dt__seconds() - p->start) / (double)done * (total - (double)p->step);
}
static int dt__progress_tenth(const dt_progress *p) /* tenths of the run that are done: 0 to 10 */
{
    double total = (double)p->o.epochs * (double)p->o.steps;
    return total > 0 ? (int)fmin(10, 10 * (double)p->step / total) : 0;
}
/* The parts of a line, in order. If they do not fit, the least important ones are left out. */
enum { DT__PART_EPOCH, DT__PART_STEP, DT__PART_LOSS, DT__PART_RATE, DT__PART_LEFT, DT__PART_LR, DT__PART_SCALE,
       DT__PARTS };
typedef struct dt__plot_parts {
    char text[DT__PARTS][80];
} dt__plot_parts;
static void dt__progress_parts(const dt_progress *p, dt__plot_parts *l)
{
    char num[64];
    int  epoch = p->epoch + 1;
    memset(l, 0, sizeof *l);
    if (p->o.epochs > 1) snprintf(l->text[DT__PART_EPOCH], 80, "epoch %d/%d", epoch, p->o.epochs);
    else if (p->o.epochs == 0 && (p->o.steps || p->epoch)) snprintf(l->text[DT__PART_EPOCH], 80, "epoch %d", epoch);
    if (p->o.steps) snprintf(l->text[DT__PART_STEP], 80, "%" PRId64 "/%" PRId64, p->in_epoch, p->o.steps);
    else snprintf(l->text[DT__PART_STEP], 80, "step %" PRId64, p->step);
    if (p->step > p->o.start_step) {
        dt__value_text(num, sizeof num, dt__progress_loss(p));
        snprintf(l->text[DT__PART_LOSS], 80, "loss %s", num);
        dt__rate_text(num, sizeof num, dt__progress_rate(p));
        snprintf(l->text[DT__PART_RATE], 80, "%.40s %s/s", num, p->has_items ? p->unit : "steps");
    }
    if (dt__progress_left(p) >= 0) {
        dt__time_text(num, sizeof num, dt__progress_left(p));
        snprintf(l->text[DT__PART_LEFT], 80, "%s left", num);
    }
    if (p->lr != 0) snprintf(l->text[DT__PART_LR], 80, "lr %s", dt__number(num, sizeof num, p->lr, 4));
    if (p->scale != 0) snprintf(l->text[DT__PART_SCALE], 80, "scale %s", dt__number(num, sizeof num, p->scale, 9));
}
static int dt__parts_columns(const dt__plot_parts *l)
{
    int n = 0;
    for (int i = 0; i < DT__PARTS; i++)
        if (l->text[i][0]) n += (n ? 2 : 0) + dt__text_columns(l->text[i]);
    return n;
}
/* The text of the line, at most 'columns' wide, with a bar if there is room for it. */
static void dt__progress_text(const dt_progress *p, char *buf, size_t nbytes, int columns, bool bar)
{
    static const int least[] = { DT__PART_LR, DT__PART_SCALE, DT__PART_RATE, DT__PART_EPOCH, DT__PART_LEFT,
                                 DT__PART_STEP }; /* the least important first; the loss stays */
    dt__plot_parts        l;
    size_t           at = 0;
    dt__progress_parts(p, &l);
    for (int i = 0; i < 6 && dt__parts_columns(&l) > columns; i++) l.text[least[i]][0] = 0;
    int room = bar && p->o.steps ? columns - dt__parts_columns(&l) - 4 : 0, cells = room > 30 ? 30 : room;
    buf[0] = 0;
    for (int i = 0; i < DT__PARTS; i++) {
        if (i == DT__PART_STEP && cells >= 8) {
            int64_t done = p->in_epoch < p->o.steps ? p->in_epoch : p->o.steps;
            int     full = (int)((double)cells * (double)done / (double)p->o.steps);
            at += (size_t)snprintf(buf + at, nbytes - at, "%s[", at ? "  " : "");
            for (int k = 0; k < cells && at + 2 < nbytes; k++) buf[at++] = k < full ? '=' : k == full ? '>' : ' ';
            at += (size_t)snprintf(buf + at, nbytes - at, "]");
        }
        if (!l.text[i][0] || at + 84 > nbytes) continue;
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%s", at ? "  " : "", l.text[i]);
    }
    for (int n = dt__text_columns(buf); n > columns && at > 0; n--) { /* even the loss does not fit */
        do at--;
        while (at > 0 && (buf[at] & 0xc0) == 0x80);
        buf[at] = 0;
    }
}
static int dt__terminal_columns(FILE *f) /* minus 1: some terminals wrap when the last column is written */
{
    struct winsize w;
    memset(&w, 0, sizeof w);
    if (ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0) return w.ws_col - 1;
    const char *s = getenv("COLUMNS");
    int         n = s ? atoi(s) : 0;
    return n > 0 && n < 10000 ? n - 1 : 79;
}
/* Overwrites the current line. end: with a newline after it. */
static void dt__progress_overwrite(dt_progress *p, const char *text, bool end)
{
    int n = dt__text_columns(text), most = dt__terminal_columns(p->o.file);
    int blank = p->open_line ? (p->shown < most ? p->shown : most) - n : 0;
    fprintf(p->o.file, "%s%s%*s%s", p->open_line ? "\r" : "", text, blank > 0 ? blank : 0, "", end ? "\n" : "");
    fflush(p->o.file);
    p->open_line = !end;
    p->shown = end ? 0 : n;
}
static void dt__progress_draw(dt_progress *p, bool end)
{
    char text[1024];
    if (p->o.quiet) return;
    if (p->tty) {
        dt__progress_text(p, text, sizeof text, dt__terminal_columns(p->o.file), true);
        dt__progress_overwrite(p, text, end);
    } else {
        dt__progress_text(p, text, sizeof text, 1000, false);
        fprintf(p->o.file, "%s\n", text);
        fflush(p->o.file);
    }
    p->last_line = dt__seconds();
    p->drawn_step = p->step;
}

/* ==================================================================================================== >>calls */
#define DT__REDRAW_SECONDS 0.1 /* least time between two drawings of the line on a terminal */
#define DT__PLAIN_SECONDS 10   /* default time between plain lines */
#define DT__CURVE_SECONDS 60   /* time between writes of the loss curve */
#define DT__RATE_SECONDS 3     /* time constant of the average rate */
static bool dt__copy_path(char *to, size_t nbytes, const char *from, const char *what)
{
    if (from && strlen(from) + 40 >= nbytes) {
        dt_fail(DT_ERR_ARG, "dt_progress_new: %s is too long a path: %zu bytes, at most %zu", what, strlen(from),
                nbytes - 41);
        return false;
    }
    snprintf(to, nbytes, "%s", from ? from : "");
    return true;
}
DT_API dt_progress *dt_progress_new_with(dt_progress_opts o)
{
    if (dt__err.code != DT_OK) return NULL;
    if (o.epochs < 0 || o.steps < 0 || o.start_step < 0 || !(o.every >= 0)) {
        dt_fail(DT_ERR_ARG, "dt_progress_new: .epochs, .steps, .start_step and .every must not be negative");
        return NULL;
    }
    dt_progress *p = (dt_progress *)dt__alloc_zero(sizeof *p);
    if (!p) {
        dt_fail(DT_ERR_MEMORY, "dt_progress_new: out of memory");
        return NULL;
    }
    p->o = o;
    if (!p->o.file) p->o.file = stderr;
    if (p->o.every == 0) p->o.every = DT__PLAIN_SECONDS;
    const char *term = getenv("TERM");
    p->tty = fileno(p->o.file) >= 0 && isatty(fileno(p->o.file)) && !(term && !strcmp(term, "dumb"));
    snprintf(p->unit, sizeof p->unit, "%.31s", o.unit && *o.unit ? o.unit : "items");
    snprintf(p->title, sizeof p->title, "%.127s", o.title ? o.title : "");
    p->stride = 1;
    bool ok = dt__copy_path(p->csv_path, sizeof p->csv_path, o.csv, ".csv") &&
              dt__copy_path(p->svg_path, sizeof p->svg_path, o.svg, ".svg");
    if (ok && p->csv_path[0]) ok = dt__csv_open(p) == 0;
    if (ok && p->svg_path[0]) {
        int e = dt__curve_save(p); /* reports a missing directory now, not after an epoch */
        if (e) ok = dt_fail(DT_ERR_FILE, "dt_progress_new: cannot write %s: %s", p->svg_path, strerror(e)) == 0;
    }
    p->step = o.start_step;
    p->drawn_step = p->step;
    if (o.steps) {
        int64_t epoch = o.start_step / o.steps;
        p->epoch = epoch < INT_MAX ? (int)epoch : INT_MAX - 1;
        p->in_epoch = o.start_step % o.steps;
    }
    p->tenth = dt__progress_tenth(p);
    if (ok) {
        p->start = p->last_step = p->last_line = p->last_svg = dt__seconds();
        return p;
    }
    dt_progress_free(p);
    return NULL;
}
DT_API void dt_progress_step_with(dt_progress *p, double loss, dt_progress_step_opts o)
{
    if (!p || dt__err.code != DT_OK) return;
    double now = dt__seconds(), took = now - p->last_step;
    if (p->o.steps && p->in_epoch >= p->o.steps) dt_progress_epoch(p); /* the program did not call it */
    p->last_step = now;
    p->step++;
    p->in_epoch++;
    p->loss = loss;
    p->lr = o.lr;
    p->scale = o.scale;
    if (isfinite(loss)) {
        p->loss_sum = 0.95 * p->loss_sum + 0.05 * dt__clip(loss);
        p->loss_weight = 0.95 * p->loss_weight + 0.05;
    }
    if (o.items > 0 && isfinite(o.items)) p->has_items = true;
    double keep = exp(-took / DT__RATE_SECONDS);
    p->rate_items = keep * p->rate_items + (p->has_items ? (o.items > 0 && isfinite(o.items) ? o.items : 0) : 1);
    p->rate_seconds = keep * p->rate_seconds + took;
    dt__history_add(p, p->step, loss);
    dt__csv_line(p, NULL, 0);
    dt__counter("loss", loss);
    if (o.scale != 0) dt__counter("loss scale", o.scale);
    int tenth = dt__progress_tenth(p);
    if (p->tty ? now - p->last_line >= DT__REDRAW_SECONDS || p->in_epoch == p->o.steps
               : (now - p->last_line >= p->o.every || tenth > p->tenth) && p->in_epoch != p->o.steps) {
        dt__progress_draw(p, false);
        p->tenth = tenth;
    }
    if (now - p->last_svg >= DT__CURVE_SECONDS) dt__progress_curve(p);
}
DT_API void dt_progress_result(dt_progress *p, const char *name, double value)
{
    char num[64];
    if (!p || dt__err.code != DT_OK) return;
    if (!name) name = "result";
    dt__csv_line(p, name, value);
    dt__history_result(p, name, p->step, value);
    dt__value_text(num, sizeof num, value);
    size_t at = strlen(p->results);
    snprintf(p->results + at, sizeof p->results - at, "  %.60s %s", name, num);
}
DT_API void dt_progress_epoch(dt_progress *p)
{
    char text[1400], took[64], loss[64];
    if (!p || dt__err.code != DT_OK) return;
    dt__history_mark(p, p->step);
    dt__progress_curve(p);
    dt__time_text(took, sizeof took, dt__seconds() - p->start);
    dt__value_text(loss, sizeof loss, dt__progress_loss(p));
    size_t at = (size_t)snprintf(text, sizeof text, "epoch %d", p->epoch + 1);
    if (p->o.epochs) at += (size_t)snprintf(text + at, sizeof text - at, "/%d", p->o.epochs);
    if (p->step > p->o.start_step) at += (size_t)snprintf(text + at, sizeof text - at, "  loss %s", loss);
    snprintf(text + at, sizeof text - at, "%s  %s", p->results, took);
    if (!p->o.quiet && p->tty) dt__progress_overwrite(p, text, true);
    if (!p->o.quiet && !p->tty) fprintf(p->o.file, "%s\n", text), fflush(p->o.file);
    p->results[0] = 0;
    p->epoch++;
    p->in_epoch = 0;
    p->drawn_step = p->step;
    p->tenth = dt__progress_tenth(p);
    p->last_step = p->last_line = dt__seconds();
}
DT_API void dt_progress_note(dt_progress *p, const char *format, ...)
{
    char    text[1024];
    va_list ap;
    if (!p || p->o.quiet || !format) return;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    bool again = p->open_line;
    if (p->tty) dt__progress_overwrite(p, text, true);
    else fprintf(p->o.file, "%s\n", text), fflush(p->o.file);
    if (again) dt__progress_draw(p, false);
}
DT_API dt_status dt_progress_free(dt_progress *p)
{
    if (!p) return DT_OK;
    if (p->open_line || p->step > p->drawn_step) dt__progress_draw(p, true);
    if (p->start > 0) dt__progress_curve(p); /* not after a failed dt_progress_new */
    errno = 0;
    if (p->csv && fclose(p->csv)) dt__progress_failed(&p->csv_error, errno ? errno : EIO, p->csv_path);
    dt_status s = dt__err.code;
    if (p->csv_error)
        s = (dt_status)dt_fail(DT_ERR_FILE, "dt_progress: cannot write %s: %s; the lines after this failure are missing",
                               p->csv_path, strerror(p->csv_error));
    if (p->svg_error)
        s = (dt_status)dt_fail(DT_ERR_FILE, "dt_progress: cannot write %s: %s", p->svg_path, strerror(p->svg_error));
    dt_mem_free(p->result, (size_t)p->result_cap * sizeof *p->result);
    dt_mem_free(p->mark, (size_t)p->mark_cap * sizeof *p->mark);
    dt_mem_free(p, sizeof *p);
    return s;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_PLOT_IMPLEMENTATION */
