/* dt_plot.h - v0.2.0 - watching a run: live view, CSV table, SVG plots, report */
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

    Plots have lines, dots and marks on one or two y axes: no bars, no surfaces, no window. A process shows one progress. With
    several ranks, one rank shows it, with the figures of all ranks of its ddp, and the others set .quiet.

CONTENTS

    >>progress       the live view, the CSV table, the loss curve
    >>report         a page about the run: DT_REPORT
    >>plots          a plot as an SVG file
    >>text           implementation from here: numbers, XML, saving
    >>axes           ranges, ticks, labels
    >>svg            the plot
    >>history        the values that the loss curve shows
    >>table          the CSV table: writing it, and reading it when a run is resumed
    >>line           the progress line
    >>live           the lines below it on a terminal
    >>data           what the report knows, as JSON
    >>page           the report's HTML
    >>saving         when the report is written, and reports on one page
    >>calls          the public functions of dt_progress

MACROS

    DT_IMPLEMENTATION, DT_PLOT_IMPLEMENTATION, DT_LINKED, DT_STATIC, DT_MALLOC and DT_FREE: as in dt_base.h.

    Environment variables:
      DT_PROGRESS   live (default on a terminal), line (one line), plain (default elsewhere), off
      DT_REPORT     the path of a page about the run, run.html, or of its data, run.json: see >>report
      NO_COLOR      not empty: no colours
      TERM          dumb: plain lines
      COLUMNS       used if the terminal does not report its width

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
   Shows the progress of a training. On a terminal a few lines are redrawn, at most 10 times a second, never wider than the
   terminal:
       epoch 2/5  [=======>      ]  340/600  loss 0.1234  12345 images/s  0:03 left  scale 65536
       loss    @%#*+=-:. ..  2.31 to 0.1234
       rank 0  6172 images/s  data 1 %  compute 80 %  communication 17 %  waits 2 %
       rank 1  6173 images/s  data 1 %  compute 81 %  communication 18 %
   data: waiting for the loader. communication: waiting for collectives that the backward did not hide. waits: for slower
   ranks. The lines of other ranks need a ddp, and a dt_progress on each of them. Nothing is left on the terminal after Ctrl-C
   but these lines. DT_PROGRESS=line shows the first line only. If the output is not a terminal, plain lines are printed. The loss
   shown is an exponential average over about 20 steps; a loss that is not finite is shown as it is. The rate is an average over
   about 3 s. The time between the last step of an epoch and dt_progress_epoch (evaluation) is not part of the rate. The time
   left is that of the whole run.

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
    bool        quiet DT_D;      /* print nothing: for the other ranks. DT_PROGRESS=off does the same */
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

/* ---------------------------------------------------------------------------------------------------- >>report
   With DT_REPORT=run.html in the environment a program with a dt_progress writes one page about its run: loss, results, rate,
   memory, where the time of each rank went, a timeline of the last step with the communication of each bucket, slow ranks,
   staleness of a parameter server's pushes, the machine and the command line. It needs no other file and no network, and is
   readable on a phone. DT_REPORT=run.json writes its data alone. Rank 0 writes it. The file is written under a temporary name
   and renamed: at the start, then after 2 s or longer, at Ctrl-C and SIGTERM (unless the program handles them itself), and at
   the end. So what is there is complete even if the program is killed. In the path %p is replaced by the process id, for
   programs that start several trainings, and %r by the rank: then every rank writes its own. Losses are kept in at most 500 bins
   of equally many steps. If the path cannot be written, dt_progress_new fails. */
/* Reads reports (.html or .json) and writes one page that compares them: tools/dtreport. names: of the runs, or NULL for those
   of the files. An error if a file is not a report. */
DT_API dt_status dt_report_join(const char *out, const char *const *files, const char *const *names, int n);

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
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

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
    double  seconds;       /* at its last step */
    double  rate;          /* items (or steps) per second at its last step: an average over about 3 s */
    double  memory;        /* bytes of tensors, the most at the end of a step */
    double  lr, scale;     /* of its last step */
} dt__bin;
typedef struct dt__result {
    int     name; /* index in p->name */
    int64_t step;
    double  value;
} dt__result;
#define DT__RESULT_NAMES 8
enum { DT__LIVE_RANKS = 8, DT__LIVE_ROWS = DT__LIVE_RANKS + 3 };

struct dt_progress {
    dt_progress_opts o;
    char         csv_path[1024], svg_path[1024], title[128], unit[32];
    FILE        *csv;
    int          csv_error, svg_error; /* errno value of the first failure; 0: no failure */
    bool         tty;                  /* lines are redrawn: the output is a terminal */
    bool         live;                 /* several of them, and the cursor is below the last one */
    bool         colour, blocks;       /* the live view has colours; and block characters, in a UTF-8 locale */
    bool         open_line;            /* the cursor is in a line that has no newline yet */
    int          shown;                /* width of that line, in columns */
    int          rows, row[DT__LIVE_ROWS]; /* the lines of the live view that are on the screen, and their widths */
    char         report_path[1024];
    bool         json;                 /* the report is data alone */
    int          report_error;
    double       last_report;          /* time of its last write, */
    double       report_took;          /* which took so many seconds */
    const char  *state;                /* for the report: "running" ... */
    char         failed[1024];         /* the error with which it ended, or "" */
    dt__text_buf team;                 /* what the report says of the ranks, */
    bool         had_team;             /* whose ddp has ended */
    int64_t      wall;                 /* time at the start: s since 1970 */
    int64_t      items_seen;           /* dt__measured.items at the last step */
    double       own_items;            /* as rate_items, of this rank alone */
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
            a.rate = b.rate;
            a.seconds = b.seconds;
            a.memory = fmax(a.memory, b.memory);
            a.lr = b.lr;
            a.scale = b.scale;
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
static void dt__history_pace(dt_progress *p, double seconds) /* after dt__history_add */
{
    dt__bin *s = &p->bin[p->nbins - 1];
    size_t   peak = 0, live = dt__measured.memory ? dt__measured.memory(&peak) : 0;
    s->seconds = seconds;
    s->rate = p->rate_seconds > 0 ? p->rate_items / p->rate_seconds : NAN;
    s->memory = fmax(s->memory, (double)live);
    s->lr = p->lr;
    s->scale = p->scale;
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
static void dt__live_draw(dt_progress *p, const char *above);
static void dt__progress_draw(dt_progress *p, bool end)
{
    char text[1024];
    if (p->o.quiet) return;
    if (p->live) {
        dt__live_draw(p, NULL);
    } else if (p->tty) {
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

/* ==================================================================================================== >>live
   The live view is a block of lines that ends with a newline, so the cursor is always below it, in column 0: whatever ends the
   program leaves a clean terminal. To draw it anew the cursor goes up by the rows that the old block takes now (a terminal that
   became narrower has wrapped its lines), and one write has the escape codes and the new lines. */
static void dt__show_mode(dt_progress *p)
{
    static const char *const names[] = { "auto", "live", "line", "plain", "off" };
    enum { AUTO, LIVE, LINE, PLAIN, OFF };
    const char *term = getenv("TERM"), *want = getenv("DT_PROGRESS"), *no = getenv("NO_COLOR");
    const char *locale = getenv("LC_ALL");
    bool        terminal = fileno(p->o.file) >= 0 && isatty(fileno(p->o.file)) && !(term && !strcmp(term, "dumb"));
    int         mode = AUTO;
    if (want && *want) {
        for (mode = OFF; mode > AUTO && strcmp(want, names[mode]) != 0; mode--) {}
        if (mode == AUTO && strcmp(want, names[AUTO]) != 0)
            dt__logf(DT_LOG_WARN, "DT_PROGRESS is '%.40s'; expected live, line, plain, off or auto: using auto", want);
    }
    if (mode == OFF) p->o.quiet = true;
    p->tty = mode == AUTO ? terminal : mode == LIVE || mode == LINE;
    p->live = p->tty && mode != LINE;
    p->colour = p->live && !(no && *no);
    if (!locale || !*locale) locale = getenv("LC_CTYPE");
    if (!locale || !*locale) locale = getenv("LANG");
    p->blocks = locale && (strstr(locale, "UTF-8") || strstr(locale, "utf-8") || strstr(locale, "utf8"));
}
static int dt__terminal_rows(FILE *f)
{
    struct winsize w;
    memset(&w, 0, sizeof w);
    return ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_row > 0 ? w.ws_row : 24;
}
static void dt__live_put(dt_progress *p, dt__text_buf *b, const char *text, int columns) /* a line of the block, cut to fit */
{
    int at = 0, n = 0;
    for (; text[at]; at++) {
        if ((text[at] & 0xc0) == 0x80) continue;
        if (n == columns) break;
        n++;
    }
    dt__text_add(b, text, (size_t)at);
    dt__text_put(b, "\033[K\n");
    p->row[p->rows++] = n;
}
/* The mean losses of the bins, of which neighbours share a cell, as a line of at most `cells` characters. */
static void dt__sparkline(const dt_progress *p, char *buf, size_t nbytes, int cells)
{
    static const char *const block[] = { "\xe2\x96\x81", "\xe2\x96\x82", "\xe2\x96\x83", "\xe2\x96\x84",
                                         "\xe2\x96\x85", "\xe2\x96\x86", "\xe2\x96\x87", "\xe2\x96\x88" };
    static const char        ascii[] = ".:-=+*%@";
    double lo = INFINITY, hi = -INFINITY;
    int    n = p->nbins < cells ? p->nbins : cells;
    size_t at = 0;
    buf[0] = 0;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < n; i++) {
            double sum = 0, count = 0;
            for (int k = (int)((int64_t)i * p->nbins / n); k < (int)((int64_t)(i + 1) * p->nbins / n); k++)
                sum += p->bin[k].sum, count += (double)p->bin[k].n;
            double v = count > 0 ? sum / count : NAN;
            if (turn == 0) {
                if (v < lo) lo = v;
                if (v > hi) hi = v;
                continue;
            }
            int level = hi > lo ? (int)(7.99 * (v - lo) / (hi - lo)) : 0;
            if (at + 4 >= nbytes) return;
            if (!(count > 0)) at += (size_t)snprintf(buf + at, nbytes - at, "x");
            else if (p->blocks) at += (size_t)snprintf(buf + at, nbytes - at, "%s", block[level]);
            else at += (size_t)snprintf(buf + at, nbytes - at, "%c", ascii[level]);
        }
}
static void dt__live_rank(dt_progress *p, dt__text_buf *b, int rank, int world, const dt__pace *m, int columns)
{
    static const char *const names[] = { "data", "compute", "communication", "waits" };
    static const char *const colour[] = { "33", "32", "34", "31" };
    char   text[512], num[64];
    double part[4];
    size_t at = 0;
    if (world > 1) at = (size_t)snprintf(text, sizeof text, "rank %-2d ", rank);
    if (m->rate > 0) {
        dt__rate_text(num, sizeof num, (double)m->rate);
        at += (size_t)snprintf(text + at, sizeof text - at, "%.40s %s/s  ", num, p->unit);
    }
    text[at] = 0;
    part[0] = (double)m->data;
    part[2] = (double)m->exposed;
    part[3] = (double)m->waited;
    part[1] = fmax(0, (double)m->total - part[0] - part[2] - part[3]);
    double sum = part[0] + part[1] + part[2] + part[3];
    if (!(sum > 0)) snprintf(text + at, sizeof text - at, "nothing known yet");
    for (int i = 0; i < 4 && sum > 0; i++)
        if (i < 2 || (world > 1 && (i == 2 || part[3] > 0.005 * sum)))
            at += (size_t)snprintf(text + at, sizeof text - at, "%s %.0f %%  ", names[i], 100 * part[i] / sum);
    while (at > 0 && text[at - 1] == ' ') text[--at] = 0;
    int room = columns - dt__text_columns(text) - 4, cells = room > 30 ? 30 : room; /* a bar, if there is room */
    if (!p->colour || !p->blocks || cells < 8 || !(sum > 0)) {
        dt__live_put(p, b, text, columns);
        return;
    }
    dt__text_add(b, text, strlen(text));
    dt__text_put(b, "  ");
    double before = 0;
    for (int i = 0; i < 4; i++) {
        int from = (int)(cells * before / sum + 0.5), to = (int)(cells * (before += part[i]) / sum + 0.5);
        if (to <= from) continue;
        dt__text_put(b, "\033[");
        dt__text_put(b, colour[i]);
        dt__text_put(b, "m");
        for (int k = from; k < to; k++) dt__text_put(b, "\xe2\x96\x88");
    }
    dt__text_put(b, "\033[0m\033[K\n");
    p->row[p->rows++] = dt__text_columns(text) + 2 + cells;
}
static dt__pace dt__own_pace(void)
{
    dt__pace m;
    size_t   peak = 0;
    if (dt__measured.memory) dt__measured.memory(&peak);
    m.rate = (float)dt__measured.rate;
    m.memory = (float)((double)peak / 1048576);
    m.data = (float)(1e-9 * (double)dt__measured.data);
    m.exposed = (float)(1e-9 * (double)dt__measured.exposed);
    m.waited = (float)(1e-9 * (double)dt__measured.waited);
    m.total = (float)(1e-9 * (double)dt__measured.total);
    return m;
}
static int dt__team_size(void)
{
    dt__pace m;
    return dt__measured.team ? dt__measured.pace(dt__measured.team, -1, &m) : 1;
}
static dt__pace dt__team_pace(int rank, int world) /* this rank's own figures are newer than what it has sent */
{
    dt__pace m;
    int      own = world > 1 ? dt__launcher_number(DT__LAUNCHER_RANK) : 0;
    memset(&m, 0, sizeof m);
    if (world > 1) dt__measured.pace(dt__measured.team, rank, &m);
    return rank == own || world == 1 ? dt__own_pace() : m;
}
/* above: a line that stays above the block, or NULL */
static void dt__live_draw(dt_progress *p, const char *above)
{
    dt__text_buf b;
    char         text[1400], loss[2][64], line[600];
    int          columns = dt__terminal_columns(p->o.file), rows = dt__terminal_rows(p->o.file), up = 0;
    memset(&b, 0, sizeof b);
    for (int i = 0; i < p->rows; i++) up += p->row[i] > columns + 1 ? (p->row[i] + columns) / (columns + 1) : 1;
    if (up) {
        snprintf(text, sizeof text, "\r\033[%dA", up); /* the terminal may have echoed ^C into the line of the cursor */
        dt__text_put(&b, text);
    }
    p->rows = 0;
    if (above) {
        dt__text_put(&b, above); /* not part of the block, and not cut: it may wrap */
        dt__text_put(&b, "\033[K\n");
    }
    if (p->step > p->o.start_step || !above) {
        dt__progress_text(p, text, sizeof text, columns, true);
        dt__live_put(p, &b, text, columns);
        int world = dt__team_size(), most = rows - 5 < DT__LIVE_RANKS ? rows - 5 : DT__LIVE_RANKS;
        int shown = world < most ? world : most, cells = columns - 40;
        if (p->nbins > 1 && cells >= 8 && rows >= 5) {
            const dt__bin *first = &p->bin[0];
            dt__sparkline(p, line, sizeof line, cells < 60 ? cells : 60);
            dt__value_text(loss[0], sizeof loss[0], first->n ? first->sum / (double)first->n : (double)NAN);
            dt__value_text(loss[1], sizeof loss[1], dt__progress_loss(p));
            snprintf(text, sizeof text, "loss    %s  %s to %s", line, loss[0], loss[1]);
            dt__live_put(p, &b, text, columns);
        }
        for (int r = 0; r < shown && columns >= 40; r++) {
            dt__pace m = dt__team_pace(r, world);
            dt__live_rank(p, &b, r, world, &m, columns);
        }
        if (world > shown && shown > 0 && columns >= 40) {
            snprintf(text, sizeof text, "and %d more ranks", world - shown);
            dt__live_put(p, &b, text, columns);
        }
    }
    dt__text_put(&b, "\033[J");
    if (!b.failed) fwrite(b.s, 1, b.n, p->o.file), fflush(p->o.file);
    dt__text_free(&b);
    p->open_line = false;
}

/* ==================================================================================================== >>data
   The data of a report: one JSON object. Numbers that are not finite are null. */
static void dt__say(dt__text_buf *b, const char *name, double x)
{
    dt__text_put(b, name);
    dt__text_json_number(b, x);
}
static void dt__say_int(dt__text_buf *b, const char *name, int64_t x)
{
    dt__text_put(b, name);
    dt__text_int(b, x);
}
static void dt__say_text(dt__text_buf *b, const char *name, const char *text)
{
    dt__text_put(b, name);
    dt__text_json(b, text);
}
/* A file of /proc, or its line that begins with key; n bytes, without the newline. */
static void dt__read_proc(const char *path, const char *key, char *buf, size_t nbytes)
{
    FILE  *f = fopen(path, "r");
    char   line[1024];
    buf[0] = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key))) continue;
        const char *from = strchr(line, ':');
        from = from ? from + 1 : line;
        from += strspn(from, " \t");
        snprintf(buf, nbytes, "%.*s", (int)strcspn(from, "\n"), from);
        break;
    }
    if (f) fclose(f);
}
static void dt__say_machine(dt__text_buf *b)
{
    struct utsname u;
    char           text[512];
    memset(&u, 0, sizeof u);
    uname(&u);
    dt__say_text(b, ",\"machine\":{\"name\":", u.nodename);
    snprintf(text, sizeof text, "%.100s %.100s, %.60s", u.sysname, u.release, u.machine);
    dt__say_text(b, ",\"system\":", text);
    dt__read_proc("/proc/cpuinfo", "model name", text, sizeof text);
    dt__say_text(b, ",\"cpu\":", text);
    dt__say_int(b, ",\"cores\":", (int64_t)sysconf(_SC_NPROCESSORS_ONLN));
    dt__say(b, ",\"memory\":", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
#ifdef __VERSION__
    dt__say_text(b, ",\"compiler\":", __VERSION__);
#endif
    dt__text_put(b, "}");
}
static void dt__say_command(dt__text_buf *b) /* the program and its arguments */
{
    FILE  *f = fopen("/proc/self/cmdline", "r");
    char   text[8192], *at = text;
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *slash = strrchr(text, '/');
    dt__say_text(b, ",\"program\":", slash ? slash + 1 : text);
    dt__text_put(b, ",\"command\":[");
    for (; at < text + n; at += strlen(at) + 1) dt__say_text(b, at > text ? "," : "", at);
    dt__text_put(b, "]");
}
static void dt__say_bins(const dt_progress *p, dt__text_buf *b)
{
    static const char *const names[] = { "step", "seconds", "mean", "low", "high", "bad", "rate", "memory", "lr", "scale" };
    dt__text_put(b, ",\"bins\":{");
    for (int k = 0; k < 10; k++) {
        dt__text_put(b, k ? ",\"" : "\"");
        dt__text_put(b, names[k]);
        dt__text_put(b, "\":[");
        for (int i = 0; i < p->nbins; i++) {
            const dt__bin *s = &p->bin[i];
            double v = k == 1 ? s->seconds : k == 2 ? s->sum / (double)s->n : k == 3 ? s->lo : k == 4 ? s->hi : 0;
            if (k >= 2 && k <= 4 && !s->n) v = NAN;
            if (k == 6) v = s->rate;
            if (k >= 7) v = k == 7 ? s->memory : k == 8 ? s->lr : s->scale;
            if (k == 0 || k == 5) dt__say_int(b, i ? "," : "", k ? s->bad : s->last);
            else dt__say(b, i ? "," : "", v);
        }
        dt__text_put(b, "]");
    }
    dt__text_put(b, "}");
}
static void dt__say_span(dt__text_buf *b, const char *name, uint64_t from, uint64_t to, uint64_t since)
{
    if (!from || to < from || from < since) return;
    dt__say_text(b, b->s[b->n - 1] == '[' ? "{\"name\":" : ",{\"name\":", name);
    dt__say(b, ",\"from\":", 1e-6 * (double)(from - since));
    dt__say(b, ",\"to\":", 1e-6 * (double)(to - since));
    dt__text_put(b, "}");
}
static void dt__say_timeline(dt__text_buf *b, uint64_t *since) /* of the step whose backward ran last */
{
    const dt__meters *m = &dt__measured;
    uint64_t          near = (uint64_t)60 * (uint64_t)DT__NS_PER_S;
    *since = m->fetch && m->fetch < m->back ? m->fetch : m->back;
    if (m->update && m->update < *since && *since - m->updated < near && *since - m->update < near) *since = m->update;
    dt__text_put(b, ",\"timeline\":[");
    if (m->back && m->backed >= m->back) {
        dt__say_span(b, "update", m->update, m->updated, *since);
        if (m->fetch < m->back) dt__say_span(b, "data", m->fetch, m->fetched, *since);
        if (m->fetch < m->back) dt__say_span(b, "forward", m->fetched, m->back, *since);
        dt__say_span(b, "backward", m->back, m->backed, *since);
    }
    dt__text_put(b, "]");
}
static void dt__report_team(dt_progress *p, uint64_t since) /* into p->team */
{
    int world = dt__team_size(), most = world < 1024 ? world : 1024;
    int all = dt__measured.team ? world : dt__launcher_number(DT__LAUNCHER_SIZE); /* without a ddp only this one is known */
    p->team.n = 0;
    dt__say_int(&p->team, ",\"world\":", all > 1 ? all : 1);
    dt__text_put(&p->team, ",\"ranks\":[");
    for (int r = 0; r < most; r++) {
        dt__pace m = dt__team_pace(r, world);
        dt__say_int(&p->team, r ? ",{\"rank\":" : "{\"rank\":", r);
        dt__say(&p->team, ",\"rate\":", (double)m.rate);
        dt__say(&p->team, ",\"memory\":", 1048576 * (double)m.memory);
        dt__say(&p->team, ",\"data\":", (double)m.data);
        dt__say(&p->team, ",\"communication\":", (double)m.exposed);
        dt__say(&p->team, ",\"waits\":", (double)m.waited);
        dt__say(&p->team, ",\"total\":", (double)m.total);
        dt__text_put(&p->team, "}");
    }
    dt__text_put(&p->team, "]");
    if (dt__measured.team) dt__measured.tell(dt__measured.team, since, &p->team);
}
static void dt__report_team_ends(void *user)
{
    dt__text_buf b; /* the ddp is about to be freed */
    uint64_t     since;
    memset(&b, 0, sizeof b);
    dt__say_timeline(&b, &since);
    dt__text_free(&b);
    dt__report_team((dt_progress *)user, since);
    ((dt_progress *)user)->had_team = true;
}
static void dt__report_data(dt_progress *p, dt__text_buf *b)
{
    struct rusage use;
    uint64_t      since = 0;
    memset(&use, 0, sizeof use);
    getrusage(RUSAGE_SELF, &use);
    dt__text_put(b, "{\"dt_report\":1");
    dt__say_text(b, ",\"version\":", DT_VERSION);
    dt__say_text(b, ",\"title\":", p->title);
    dt__say_command(b);
    dt__say_text(b, ",\"state\":", p->state);
    dt__say_text(b, ",\"error\":", p->failed[0] ? p->failed : NULL);
    dt__say_int(b, ",\"started\":", p->wall);
    dt__say(b, ",\"seconds\":", dt__seconds() - p->start + p->before);
    dt__say_text(b, ",\"unit\":", p->has_items ? p->unit : "steps");
    dt__say_int(b, ",\"epochs\":", p->o.epochs);
    dt__say_int(b, ",\"epoch_steps\":", p->o.steps);
    dt__say_int(b, ",\"step\":", p->step);
    dt__say_int(b, ",\"bin_steps\":", p->stride);
    dt__say(b, ",\"loss\":", p->step > p->o.start_step ? dt__progress_loss(p) : (double)NAN);
    dt__say(b, ",\"rate\":", dt__progress_rate(p));
    dt__say_machine(b);
    dt__say_bins(p, b);
    dt__text_put(b, ",\"epoch_ends\":[");
    for (int64_t i = 0, every = p->nmarks / 500 + 1; i < p->nmarks; i += every)
        dt__say_int(b, i ? "," : "", (int64_t)p->mark[i]);
    dt__text_put(b, "],\"results\":[");
    for (int64_t i = 0, every = p->nresults / 4000 + 1, n = 0; i < p->nresults; i++) {
        if (i % every && i + p->nnames < p->nresults) continue; /* the last of each name stays */
        dt__say_text(b, n++ ? ",{\"name\":" : "{\"name\":", p->name[p->result[i].name]);
        dt__say_int(b, ",\"step\":", p->result[i].step);
        dt__say(b, ",\"value\":", p->result[i].value);
        dt__text_put(b, "}");
    }
    dt__say(b, "],\"resident\":", 1024 * (double)use.ru_maxrss);
    dt__say_timeline(b, &since);
    if (dt__measured.team || !p->had_team) dt__report_team(p, since); /* else it has ended, and this is kept */
    dt__text_add(b, p->team.s, p->team.n);
    int64_t pushes = dt__measured.dropped;
    for (int i = 0; i < DT__METER_STALE; i++) pushes += dt__measured.stale[i];
    if (pushes) {
        dt__say_int(b, ",\"dropped\":", dt__measured.dropped);
        dt__text_put(b, ",\"staleness\":[");
        for (int i = 0; i < DT__METER_STALE; i++) dt__say_int(b, i ? "," : "", dt__measured.stale[i]);
        dt__text_put(b, "]");
    }
    dt__text_put(b, "}");
}

/* ==================================================================================================== >>page
   The report's HTML: style, and a script that draws what is in the <script class="dt-run"> elements, one or several. Text from
   the data is put into the page as text, never as markup. An element of these arrays is a line. */
static const char *const dt__page_head[] = {
    "<meta name='viewport' content='width=device-width, initial-scale=1'>",
    "<meta name='color-scheme' content='light dark'>",
    "<style>",
    ":root { --back: #ffffff; --ink: #22262c; --soft: #667080; --line: #dfe3e8; --card: #f5f7f9;",
    "  --c0: #2461a8; --c1: #d2601a; --c2: #2d8a57; --c3: #8d4ba5; --c4: #a37f00; --c5: #2f8f9d; --c6: #b3384e; "
        "--c7: #5f6773; }",
    "@media (prefers-color-scheme: dark) { :root { --back: #15181c; --ink: #e4e7eb; --soft: #98a2b0; --line: "
        "#353b44; --card: #1e2329;",
    "  --c0: #6ea8ee; --c1: #f0904c; --c2: #5fc28b; --c3: #c78ee0; --c4: #d9b64a; --c5: #63c3d1; --c6: #ee7a8e; "
        "--c7: #a3acb8; } }",
    "* { box-sizing: border-box; }",
    "body { margin: 0 auto; padding: 1rem; max-width: 64rem; background: var(--back); color: var(--ink);",
    "  font: 15px/1.45 system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; overflow-wrap: anywhere; }",
    "h1 { font-size: 1.35rem; margin: .2rem 0; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }",
    "p { margin: .2rem 0; color: var(--soft); } .bad { color: var(--c6); font-weight: 600; }",
    ".cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; margin: .8rem "
        "0; }",
    ".card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .7rem; "
        "min-width: 0; }",
    ".card b { display: block; font-size: 1.15rem; } .card span { color: var(--soft); font-size: .85rem; }",
    ".wide { overflow-x: auto; max-width: 100%; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }",
    "th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }",
    "th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }",
    "table.about td, table.about th { text-align: left; white-space: normal; vertical-align: top; } table.about th { "
        "width: 8rem; }",
    "svg { display: block; width: 100%; } svg text { fill: var(--soft); font-size: 12px; } .key { display: flex; "
        "flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; }",
    ".key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .35rem; "
        "vertical-align: -.1rem; }",
    "details { margin: 1rem 0; } summary { cursor: pointer; font-weight: 600; }",
    "</style></head><body>",
    "<noscript><p>This page draws its figures with a script. The data are in it as JSON: look for dt-run in its "
        "source.</p></noscript>",
    "<main id='page'></main>",
};
static const char *const dt__page_script[] = {
    "'use strict';",
    "(function () {",
    "const runs = Array.from(document.querySelectorAll('script.dt-run')).map(function (s) {",
    "  const r = JSON.parse(s.textContent);",
    "  r.name = s.dataset.name || r.title || r.program || 'run';",
    "  return r;",
    "});",
    "const page = document.getElementById('page'), several = runs.length > 1, redraw = [];",
    "const colour = function (k) { return 'var(--c' + k % 8 + ')'; };",
    "const list = function (x) { return Array.isArray(x) ? x : []; };",
    "const isNum = function (x) { return typeof x === 'number' && isFinite(x); };",
    "const esc = function (x) { return String(x === undefined || x === null ? '' : x); };",
    "/* ---- elements */",
    "function el(parent, tag, text, cls) {",
    "  const e = document.createElement(tag);",
    "  if (text !== undefined && text !== null) e.textContent = text;",
    "  if (cls) e.className = cls;",
    "  parent.appendChild(e);",
    "  return e;",
    "}",
    "function svgEl(parent, tag, attrs, text) {",
    "  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);",
    "  for (const k in attrs) e.setAttribute(k, attrs[k]);",
    "  if (text !== undefined) e.textContent = text;",
    "  parent.appendChild(e);",
    "  return e;",
    "}",
    "function table(parent, head, rows, cls) {",
    "  const t = el(el(parent, 'div', null, 'wide'), 'table', null, cls);",
    "  if (head) { const tr = el(t, 'tr'); head.forEach(function (h) { el(tr, 'th', h); }); }",
    "  rows.forEach(function (r) {",
    "    const tr = el(t, 'tr');",
    "    r.forEach(function (c, i) { el(tr, cls === 'about' && i === 0 ? 'th' : 'td', c); });",
    "  });",
    "  return t;",
    "}",
    "function key(parent, names) {",
    "  const k = el(parent, 'div', null, 'key');",
    "  names.forEach(function (n) {",
    "    const s = el(k, 'span');",
    "    el(s, 'i').style.background = n[1];",
    "    s.appendChild(document.createTextNode(n[0]));",
    "  });",
    "}",
    "/* ---- numbers */",
    "function num(x, digits) {",
    "  if (!isNum(x)) return '-';",
    "  const a = Math.abs(x);",
    "  if (a !== 0 && (a < 1e-3 || a >= 1e15)) return x.toExponential(2);",
    "  if (a >= 1000) return Math.round(x).toLocaleString('en-US');",
    "  return String(+x.toPrecision(digits || 4));",
    "}",
    "function bytes(x) {",
    "  if (!isNum(x)) return '-';",
    "  const unit = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];",
    "  let k = 0;",
    "  while (x >= 1024 && k < 5) { x /= 1024; k++; }",
    "  return +x.toPrecision(3) + ' ' + unit[k];",
    "}",
    "function span(s) {",
    "  if (!isNum(s)) return '-';",
    "  if (s < 60) return +s.toPrecision(3) + ' s';",
    "  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;",
    "  return (h ? h + ' h ' : '') + m + ' min ' + Math.floor(s % 60) + ' s';",
    "}",
    "function short(x) {",
    "  if (x === 0) return '0';",
    "  const a = Math.abs(x), unit = ['', 'k', 'M', 'G', 'T'];",
    "  if (a < 1e-3 || a >= 1e15) return x.toExponential(0);",
    "  let k = 0;",
    "  while (Math.abs(x) >= 1000 && k < 4) { x /= 1000; k++; }",
    "  return +x.toPrecision(3) + unit[k];",
    "}",
    "/* ---- a plot of lines: series {name, x, y, color, lo, hi, dots} */",
    "function ticks(lo, hi, want) {",
    "  const raw = (hi - lo) / want, p = Math.pow(10, Math.floor(Math.log10(raw))), m = raw / p;",
    "  const step = (m < 1.5 ? 1 : m < 3.2 ? 2 : m < 7.1 ? 5 : 10) * p, t = [];",
    "  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + 1e-9 * step && t.length < 30; k++) t.push(k * "
        "step);",
    "  return t;",
    "}",
    "function plot(parent, o) {",
    "  const box = el(parent, 'div', null, 'plot');",
    "  if (o.series.length > 1) key(parent, o.series.map(function (s) { return [s.name, s.color]; }));",
    "  redraw.push(function () {",
    "    const W = Math.max(200, box.clientWidth), H = Math.min(320, Math.max(190, W * 0.42)), L = o.bytes ? 66 : "
        "52, R = 20, T = 10, B = 34;",
    "    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;",
    "    o.series.forEach(function (s) {",
    "      s.y.forEach(function (v, i) {",
    "        if (isNum(s.x[i])) { x0 = Math.min(x0, s.x[i]); x1 = Math.max(x1, s.x[i]); }",
    "        [v, s.lo ? s.lo[i] : v, s.hi ? s.hi[i] : v].forEach(function (u) {",
    "          if (isNum(u)) { y0 = Math.min(y0, u); y1 = Math.max(y1, u); }",
    "        });",
    "      });",
    "    });",
    "    const log = o.log && y0 > 0 && y1 / y0 > 100;",
    "    if (x0 > x1) { x0 = 0; x1 = 1; }",
    "    if (y0 > y1) { y0 = 0; y1 = 1; }",
    "    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }",
    "    const f = log ? Math.log10 : function (v) { return v; };",
    "    let a = f(y0), b = f(y1);",
    "    if (!log && y0 >= 0 && y0 <= 0.5 * y1) a = 0;",
    "    if (a === b) { a -= Math.abs(a) * 0.1 || 0.5; b += Math.abs(b) * 0.1 || 0.5; }",
    "    b += (b - a) * 0.04;",
    "    const X = function (v) { return +(L + (v - x0) / (x1 - x0) * (W - L - R)).toFixed(1); };",
    "    const Y = function (v) { return +(H - B - (f(v) - a) / (b - a) * (H - T - B)).toFixed(1); };",
    "    box.textContent = '';",
    "    const g = svgEl(box, 'svg', { viewBox: '0 0 ' + W + ' ' + H, height: H, role: 'img', 'aria-label': o.title "
        "});",
    "    const unit = o.bytes && b > 0 ? Math.pow(1024, Math.max(0, Math.floor(Math.log2(b) / 10))) : 1;",
    "    let yt = log ? [] : ticks(a / unit, b / unit, 5).map(function (v) { return v * unit; });",
    "    if (log) for (let e = Math.floor(a); e <= b; e++) [1, 2, 5].forEach(function (m) {",
    "      const v = m * Math.pow(10, e);",
    "      if (f(v) >= a && f(v) <= b && (m === 1 || b - a < 3)) yt.push(v);",
    "    });",
    "    yt.forEach(function (v) {",
    "      svgEl(g, 'line', { x1: L, x2: W - R, y1: Y(v), y2: Y(v), stroke: 'var(--line)' });",
    "      svgEl(g, 'text', { x: L - 6, y: Y(v) + 4, 'text-anchor': 'end' }, o.bytes ? bytes(v) : short(v));",
    "    });",
    "    ticks(x0, x1, W < 500 ? 4 : 8).forEach(function (v) {",
    "      svgEl(g, 'text', { x: X(v), y: H - B + 16, 'text-anchor': 'middle' }, short(v));",
    "    });",
    "    svgEl(g, 'text', { x: (L + W - R) / 2, y: H - 3, 'text-anchor': 'middle' }, o.xlabel || 'step');",
    "    const marks = list(o.marks), every = Math.ceil(marks.length / 40);",
    "    marks.forEach(function (v, i) {",
    "      if ((i + 1) % every === 0 && v >= x0 && v <= x1)",
    "        svgEl(g, 'line', { x1: X(v), x2: X(v), y1: T, y2: H - B, stroke: 'var(--line)', 'stroke-dasharray': '2 "
        "4' });",
    "    });",
    "    svgEl(g, 'line', { x1: L, x2: W - R, y1: H - B, y2: H - B, stroke: 'var(--soft)' });",
    "    o.series.forEach(function (s) {",
    "      const ok = function (i) { return isNum(s.y[i]) && isNum(s.x[i]) && (!log || s.y[i] > 0); };",
    "      if (s.lo) {",
    "        let up = '', down = '';",
    "        s.y.forEach(function (v, i) {",
    "          if (!ok(i) || !isNum(s.lo[i]) || !isNum(s.hi[i]) || (log && s.lo[i] <= 0)) return;",
    "          up += X(s.x[i]) + ',' + Y(s.hi[i]) + ' ';",
    "          down = X(s.x[i]) + ',' + Y(s.lo[i]) + ' ' + down;",
    "        });",
    "        if (up) svgEl(g, 'polygon', { points: up + down, fill: s.color, opacity: 0.18 });",
    "      }",
    "      let d = '', pen = false, n = 0;",
    "      s.y.forEach(function (v, i) {",
    "        if (!ok(i)) { pen = false; return; }",
    "        d += (pen ? 'L' : 'M') + X(s.x[i]) + ' ' + Y(v);",
    "        pen = true;",
    "        n++;",
    "      });",
    "      if (d) svgEl(g, 'path', { d: d, fill: 'none', stroke: s.color, 'stroke-width': 1.8, 'stroke-linejoin': "
        "'round' });",
    "      if (n < 60 && (s.dots || n < 3)) s.y.forEach(function (v, i) {",
    "        if (ok(i)) svgEl(g, 'circle', { cx: X(s.x[i]), cy: Y(v), r: 3, fill: s.color });",
    "      });",
    "      list(s.bad).forEach(function (k, i) {",
    "        if (k > 0) svgEl(g, 'text', { x: X(s.x[i]), y: T + 8, 'text-anchor': 'middle', style: "
        "'fill:var(--c6);font-weight:700' }, '\xc3" "\x97" "');",
    "      });",
    "    });",
    "    if (!o.series.some(function (s) { return s.y.some(isNum); }))",
    "      svgEl(g, 'text', { x: W / 2, y: H / 2, 'text-anchor': 'middle' }, 'nothing yet');",
    "  });",
    "}",
    "/* ---- rows of spans: rows [{name, spans: [{from, to, color, label}]}], from 0 to end */",
    "function lanes(parent, title, rows, end, unit) {",
    "  const box = el(parent, 'div', null, 'plot');",
    "  redraw.push(function () {",
    "    const W = Math.max(200, box.clientWidth), L = Math.min(130, W * 0.3), R = 22, h = 22, H = rows.length * h + "
        "30;",
    "    const X = function (v) { return L + v / (end || 1) * (W - L - R); };",
    "    box.textContent = '';",
    "    const g = svgEl(box, 'svg', { viewBox: '0 0 ' + W + ' ' + H, height: H, role: 'img', 'aria-label': title });",
    "    ticks(0, end || 1, W < 500 ? 4 : 8).forEach(function (v) {",
    "      svgEl(g, 'line', { x1: X(v), x2: X(v), y1: 0, y2: H - 26, stroke: 'var(--line)' });",
    "      svgEl(g, 'text', { x: X(v), y: H - 12, 'text-anchor': 'middle' }, short(v) + (unit || ''));",
    "    });",
    "    rows.forEach(function (r, i) {",
    "      svgEl(g, 'text', { x: L - 6, y: i * h + 15, 'text-anchor': 'end' }, r.name.length > L / 7 ? "
        "r.name.slice(0, L / 7 - 1) + '\xe2" "\x80" "\xa6" "' : r.name);",
    "      r.spans.forEach(function (s) {",
    "        const e = svgEl(g, 'rect', { x: X(s.from).toFixed(1), y: i * h + 3, width: Math.max(1, X(s.to) - "
        "X(s.from)).toFixed(1),",
    "          height: h - 6, rx: 2, fill: s.color });",
    "        svgEl(e, 'title', {}, s.label);",
    "      });",
    "    });",
    "  });",
    "}",
    "function section(title, text) {",
    "  const s = el(page, 'section');",
    "  el(s, 'h2', title);",
    "  if (text) el(s, 'p', text);",
    "  return s;",
    "}",
    "/* ---- what a run says */",
    "function lastResults(r) {",
    "  const last = {};",
    "  list(r.results).forEach(function (x) { last[x.name] = x.value; });",
    "  return last;",
    "}",
    "function state(r) {",
    "  if (r.state === 'running') return 'running when this was written, or killed';",
    "  return esc(r.state) + (r.error ? ': ' + r.error : '');",
    "}",
    "function shares(m) {",
    "  const c = Math.max(0, m.total - m.data - m.communication - m.waits);",
    "  return [['data', m.data, 'var(--c4)'], ['compute', c, 'var(--c2)'], ['communication', m.communication, "
        "'var(--c0)'],",
    "    ['waits for slower ranks', m.waits, 'var(--c6)']];",
    "}",
    "function percent(x, all) { return all > 0 ? (100 * x / all).toFixed(1) + ' %' : '-'; }",
    "function when(r) { return r.started ? new Date(r.started * 1000).toISOString().replace('T', ' ').slice(0, 16) + "
        "' UTC' : ''; }",
    "",
    "function curves() {",
    "  const names = [];",
    "  runs.forEach(function (r) { Object.keys(lastResults(r)).forEach(function (n) { if (names.indexOf(n) < 0) "
        "names.push(n); }); });",
    "  const line = function (field, more) {",
    "    return runs.map(function (r, k) {",
    "      const b = r.bins || {}, s = { name: r.name, x: list(b.step), color: colour(k) };",
    "      s.y = list(b[field]).map(function (v) { return v === 0 && (field === 'scale' || field === 'lr') ? null : "
        "v; });",
    "      if (more && !several) { s.lo = list(b.low); s.hi = list(b.high); }",
    "      if (more) s.bad = list(b.bad);",
    "      return s;",
    "    });",
    "  };",
    "  const some = function (field) { return runs.some(function (r) { return list((r.bins || "
        "{})[field]).some(function (v) { return v > 0; }); }); };",
    "  const bad = runs.reduce(function (n, r) { return n + list((r.bins || {}).bad).reduce(function (a, b) { return "
        "a + b; }, 0); }, 0);",
    "  let s = section('Loss', several ? 'Means of equally many steps.' : runs[0].bin_steps > 1 ?",
    "    'The mean of ' + num(runs[0].bin_steps) + ' steps, and the range of their losses.' : 'Of each step.');",
    "  if (bad) el(s, 'p', num(bad) + ' losses were not finite: marked \xc3" "\x97" "', 'bad');",
    "  plot(s, { title: 'loss', series: line('mean', true), marks: several ? [] : runs[0].epoch_ends, log: true });",
    "  if (names.length) {",
    "    s = section(names.length > 1 ? 'Results' : names[0]);",
    "    names.slice(0, 8).forEach(function (n, i) {",
    "      if (names.length > 1) el(s, 'p', n);",
    "      plot(s, { title: n, series: runs.map(function (r, k) {",
    "        const at = list(r.results).filter(function (x) { return x.name === n; });",
    "        return { name: r.name, x: at.map(function (p) { return p.step; }), y: at.map(function (p) { return "
        "p.value; }),",
    "          color: colour(several ? k : i + 1), dots: true };",
    "      }) });",
    "    });",
    "  }",
    "  s = section('Throughput', esc(runs[0].unit) + ' per second' + (runs[0].world > 1 ? ', all ranks together' : "
        "''));",
    "  plot(s, { title: 'throughput', series: line('rate') });",
    "  if (several) {",
    "    s = section('Loss over time');",
    "    plot(s, { title: 'loss over time', xlabel: 'seconds', log: true, series: runs.map(function (r, k) {",
    "      const b = r.bins || {};",
    "      return { name: r.name, x: list(b.seconds), y: list(b.mean), color: colour(k) };",
    "    }) });",
    "  }",
    "  if (some('memory')) {",
    "    s = section('Memory', 'Bytes of tensors at the end of steps, rank 0.');",
    "    plot(s, { title: 'memory', series: line('memory'), bytes: true });",
    "  }",
    "  const varies = function (field) {",
    "    const seen = new Set();",
    "    runs.forEach(function (r) { list((r.bins || {})[field]).forEach(function (v) { seen.add(v); }); });",
    "    return seen.size > 1;",
    "  };",
    "  if (varies('lr')) { s = section('Learning rate'); plot(s, { title: 'learning rate', series: line('lr') }); }",
    "  if (varies('scale')) { s = section('Loss scale'); plot(s, { title: 'loss scale', series: line('scale'), log: "
        "true }); }",
    "}",
    "function timeOfRanks(r, s) {",
    "  const ranks = list(r.ranks).filter(function (m) { return m.total > 0; });",
    "  if (!ranks.length) return;",
    "  const shown = ranks.slice(0, 64);",
    "  lanes(s, 'time of each rank', shown.map(function (m) {",
    "    let at = 0;",
    "    const all = shares(m).reduce(function (a, x) { return a + x[1]; }, 0);",
    "    return { name: 'rank ' + m.rank, spans: shares(m).map(function (x) {",
    "      const from = at;",
    "      at += 100 * x[1] / all;",
    "      return { from: from, to: at, color: x[2], label: x[0] + ' ' + percent(x[1], all) };",
    "    }).filter(function (x) { return x.to > x.from; }) };",
    "  }), 100, ' %');",
    "  key(s, shares(ranks[0]).map(function (x) { return [x[0], x[2]]; }));",
    "  table(s, ['rank', esc(r.unit) + '/s', 'data', 'compute', 'communication', 'waits', 'peak memory'], "
        "shown.map(function (m) {",
    "    return ['rank ' + m.rank, num(m.rate)].concat(shares(m).map(function (x) { return percent(x[1], m.total); "
        "}), [bytes(m.memory)]);",
    "  }));",
    "  if (ranks.length > shown.length) el(s, 'p', 'and ' + (ranks.length - shown.length) + ' more ranks');",
    "}",
    "function timeline(r, s) {",
    "  const t = list(r.timeline), walked = r.overlap ? r.overlap.walked : null;",
    "  if (!t.length) return;",
    "  const paint = { data: 'var(--c4)', update: 'var(--c3)', forward: 'var(--c5)', backward: 'var(--c2)', 'waits "
        "for other ranks': 'var(--c6)' };",
    "  const spans = [];",
    "  let end = 0;",
    "  t.forEach(function (x) {",
    "    if (x.name === 'backward' && isNum(walked) && walked > x.from && walked < x.to) {",
    "      spans.push({ name: 'backward', from: x.from, to: walked });",
    "      spans.push({ name: 'waits for other ranks', from: walked, to: x.to });",
    "    } else spans.push(x);",
    "    end = Math.max(end, x.to);",
    "  });",
    "  spans.forEach(function (x) { x.color = paint[x.name] || 'var(--c7)'; x.label = x.name + ': ' + num(x.to - "
        "x.from, 3) + ' ms'; });",
    "  const rows = [{ name: 'this rank', spans: spans }];",
    "  list(r.buckets).slice(0, 40).forEach(function (b, i) {",
    "    if (!isNum(b.from) || b.from < 0 || b.from > 10 * end) return;",
    "    end = Math.max(end, b.to);",
    "    rows.push({ name: 'bucket ' + i, spans: [{ from: b.from, to: b.to, color: 'var(--c0)',",
    "      label: 'bucket ' + i + ', ' + bytes(b.bytes) + ': ' + num(b.to - b.from, 3) + ' ms' }] });",
    "  });",
    "  lanes(s, 'timeline of a step', rows, end, ' ms');",
    "  const used = [];",
    "  spans.forEach(function (x) { if (used.indexOf(x.name) < 0) used.push(x.name); });",
    "  key(s, used.map(function (n) { return [n, paint[n] || 'var(--c7)']; }).concat(rows.length > 1 ? "
        "[['communication of a bucket', 'var(--c0)']] : []));",
    "}",
    "function details(r, k) {",
    "  let s;",
    "  if (several) {",
    "    const d = el(page, 'details');",
    "    el(d, 'summary', r.name);",
    "    s = d;",
    "    d.addEventListener('toggle', function () { redraw.forEach(function (f) { f(); }); });",
    "  }",
    "  const part = function (title, text) {",
    "    if (!several) return section(title, text);",
    "    el(s, 'h2', title);",
    "    if (text) el(s, 'p', text);",
    "    return s;",
    "  };",
    "  if (list(r.ranks).some(function (m) { return m.total > 0; })) timeOfRanks(r, part('Where the time went'));",
    "  if (list(r.timeline).length)",
    "    timeline(r, part('One step', 'The last one on rank 0' + (list(r.buckets).length ? ', with the communication "
        "of each bucket of gradients.' : '.')));",
    "  if (list(r.buckets).length) {",
    "    const b = part('Communication of each bucket', r.compress ? 'Sent as: ' + r.compress : null);",
    "    table(b, ['bucket', 'gradients', 'sent', 'time', 'hidden', 'parameters'], r.buckets.map(function (x, i) {",
    "      return [i, bytes(x.bytes), bytes(x.sent), num(x.ms, 3) + ' ms', percent(x.hidden, 1), esc(x.first) + "
        "(x.last !== x.first ? ' \xe2" "\x80" "\xa6" " ' + esc(x.last) : '')];",
    "    }));",
    "    if (r.overlap && r.overlap.communication > 0) {",
    "      const o = r.overlap;",
    "      el(b, 'p', 'All steps: communication took ' + span(o.communication) + '; rank 0 waited ' + "
        "span(o.exposed) +",
    "        ' for it and ' + span(o.waited) + ' for slower ranks.');",
    "    }",
    "  }",
    "  if (list(r.stragglers).length)",
    "    table(part('Slow ranks', 'Ranks that rank 0 waited for in collectives.'), ['rank', 'came last', 'waited', "
        "'longest'],",
    "      r.stragglers.map(function (x) { return ['rank ' + x.rank, num(x.last) + ' times', num(1e3 * x.waited, 3) "
        "+ ' ms', num(1e3 * x.longest, 3) + ' ms']; }));",
    "  if (list(r.staleness).length) {",
    "    const most = Math.max.apply(null, r.staleness) || 1;",
    "    const h = part('Staleness', 'Pushes by how many updates old their values were' + (r.dropped ? '; ' + "
        "num(r.dropped) + ' were dropped' : '') + '.');",
    "    lanes(h, 'staleness', r.staleness.map(function (n, i) {",
    "      return { name: i === r.staleness.length - 1 ? i + ' or more' : String(i), spans: n ? [{ from: 0, to: n, "
        "color: colour(0), label: num(n) }] : [] };",
    "    }).filter(function (x, i) { return i < 4 || x.spans.length; }), most, '');",
    "  }",
    "  const m = r.machine || {};",
    "  table(part('Machine and options'), null, [['program', esc(r.program)], ['command', list(r.command).join(' ')],",
    "    ['started', when(r)], ['state', state(r)], ['ranks', num(r.world)], ['machine', esc(m.name)], ['processor', "
        "esc(m.cpu) + ', ' + num(m.cores) + ' cores'],",
    "    ['memory', bytes(m.memory)], ['system', esc(m.system)], ['compiler', esc(m.compiler)], ['dt', "
        "esc(r.version)],",
    "    ['peak of rank 0', bytes(r.resident)]], 'about');",
    "}",
    "/* ---- the page */",
    "if (!runs.length) el(page, 'p', 'This page has no run.', 'bad');",
    "else if (several) {",
    "  el(page, 'h1', runs.length + ' runs');",
    "  const names = [];",
    "  runs.forEach(function (r) { Object.keys(lastResults(r)).forEach(function (n) { if (names.indexOf(n) < 0) "
        "names.push(n); }); });",
    "  table(page, ['run', 'state', 'steps', 'time', 'loss'].concat(names, ['per second', 'ranks', 'peak memory']), "
        "runs.map(function (r) {",
    "    const last = lastResults(r), m = list(r.ranks)[0] || {};",
    "    return [r.name, esc(r.state), num(r.step), span(r.seconds), num(r.loss)].concat(names.map(function (n) { "
        "return num(last[n]); }),",
    "      [num(r.rate) + ' ' + esc(r.unit), num(r.world), bytes(m.memory)]);",
    "  }));",
    "  curves();",
    "  runs.forEach(details);",
    "} else {",
    "  const r = runs[0], last = lastResults(r), m = list(r.ranks)[0] || {};",
    "  el(page, 'h1', r.title || r.program || 'a run');",
    "  el(page, 'p', when(r) + (r.machine ? ' on ' + esc(r.machine.name) : ''));",
    "  if (r.state !== 'finished') el(page, 'p', state(r), 'bad');",
    "  const cards = el(page, 'div', null, 'cards');",
    "  const card = function (v, t) { const c = el(cards, 'div', null, 'card'); el(c, 'b', v); el(c, 'span', t); };",
    "  card(num(r.step), 'steps' + (r.epochs && r.epoch_steps ? ' of ' + num(r.epochs * r.epoch_steps) : ''));",
    "  card(span(r.seconds), 'time');",
    "  card(num(r.loss), 'loss');",
    "  Object.keys(last).slice(0, 4).forEach(function (n) { card(num(last[n]), n); });",
    "  card(num(r.rate), esc(r.unit) + ' per second');",
    "  card(num(r.world), r.world === 1 ? 'rank' : 'ranks');",
    "  if (m.memory > 0) card(bytes(m.memory), 'peak memory of tensors');",
    "  curves();",
    "  details(r, 0);",
    "}",
    "function drawAll() { redraw.forEach(function (f) { f(); }); }",
    "drawAll();",
    "let width = window.innerWidth;",
    "window.addEventListener('resize', function () { if (window.innerWidth !== width) { width = window.innerWidth; "
        "drawAll(); } });",
    "document.documentElement.dataset.drawn = 'yes';",
    "})();",
};
static void dt__page_begin(dt__text_buf *b, const char *title)
{
    dt__text_put(b, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>");
    dt__text_xml(b, title);
    dt__text_put(b, "</title>\n");
    for (size_t i = 0; i < DT__COUNT_OF(dt__page_head); i++) dt__text_put(b, dt__page_head[i]), dt__text_put(b, "\n");
}
static void dt__page_run(dt__text_buf *b, const char *name, const char *json, size_t n)
{
    dt__text_put(b, "<script type=\"application/json\" class=\"dt-run\" data-name=\"");
    dt__text_xml(b, name);
    dt__text_put(b, "\">");
    dt__text_add(b, json, n);
    dt__text_put(b, "</script>\n");
}
static void dt__page_end(dt__text_buf *b)
{
    dt__text_put(b, "<script>\n");
    for (size_t i = 0; i < DT__COUNT_OF(dt__page_script); i++) dt__text_put(b, dt__page_script[i]), dt__text_put(b, "\n");
    dt__text_put(b, "</script></body></html>\n");
}

/* ==================================================================================================== >>saving
   Rank 0 writes. A signal that ends the program is noted by a handler and acted on by the next step, which writes the report
   and raises it again: nothing but an assignment runs in the handler, and a second one ends the program at once (SA_RESETHAND). */
#define DT__REPORT_SECONDS 2 /* least time between two writes of the report */
static volatile sig_atomic_t dt__report_signal;
static const int             dt__report_signals[3] = { SIGINT, SIGTERM, SIGHUP };
static void                  dt__report_on_signal(int sig)
{
    dt__report_signal = sig;
    dt__log_ends();
}
static void dt__report_catch(bool on)
{
    struct sigaction now, ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_handler = dt__report_on_signal;
    ours.sa_flags = (int)(SA_RESETHAND | SA_RESTART);
    for (int i = 0; i < 3; i++) {
        if (sigaction(dt__report_signals[i], NULL, &now)) continue;
        if (on && now.sa_handler == SIG_DFL) sigaction(dt__report_signals[i], &ours, NULL);
        if (!on && now.sa_handler == dt__report_on_signal) signal(dt__report_signals[i], SIG_DFL);
    }
}
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
static bool dt__report_path(dt_progress *p)
{
    const char *path = getenv("DT_REPORT");
    int         rank = dt__launcher_number(DT__LAUNCHER_RANK);
    size_t      n = 0;
    if (!path || !*path || (rank > 0 && !strstr(path, "%r")) || dt__measured.watcher) return true;
    if (!dt__copy_path(p->report_path, sizeof p->report_path, path, "DT_REPORT")) return false;
    for (; *path && n + 24 < sizeof p->report_path; path++) {
        bool number = *path == '%' && (path[1] == 'p' || path[1] == 'r');
        if (!number) p->report_path[n++] = *path;
        else n += (size_t)snprintf(p->report_path + n, 24, "%d", *++path == 'p' ? (int)getpid() : rank > 0 ? rank : 0);
    }
    p->report_path[n] = 0;
    p->json = n > 5 && !strcmp(p->report_path + n - 5, ".json");
    return true;
}
static int dt__report_write(dt_progress *p) /* returns 0 or an errno value */
{
    dt__text_buf data, page;
    const char  *why = NULL;
    double       begin = dt__seconds();
    memset(&data, 0, sizeof data);
    memset(&page, 0, sizeof page);
    dt__report_data(p, &data);
    if (p->json) {
        dt__text_put(&data, "\n");
    } else {
        dt__page_begin(&page, p->title[0] ? p->title : "a run of dt");
        dt__page_run(&page, p->title, data.s ? data.s : "", data.n);
        dt__page_end(&page);
    }
    page.failed = page.failed || data.failed;
    int e = page.failed ? ENOMEM : dt__text_save(p->json ? &data : &page, p->report_path, &why);
    dt__text_free(&data);
    dt__text_free(&page);
    p->last_report = dt__seconds();
    p->report_took = p->last_report - begin;
    return e;
}
static void dt__report_save(dt_progress *p)
{
    if (p->report_path[0]) dt__progress_failed(&p->report_error, dt__report_write(p), p->report_path);
}
static bool dt__report_begin(dt_progress *p)
{
    if (!p->report_path[0]) return true;
    int e = dt__report_write(p); /* reports a wrong path now, not at the end */
    if (e) {
        dt_fail(DT_ERR_FILE, "dt_progress_new: DT_REPORT: cannot write %s: %s", p->report_path, strerror(e));
        p->report_path[0] = 0;
        return false;
    }
    dt__measured.watcher = p;
    dt__measured.team_ends = dt__report_team_ends;
    dt__report_signal = 0;
    dt__report_catch(true);
    return true;
}
static void dt__report_raise(dt_progress *p)
{
    int sig = dt__report_signal;
    if (!p->report_path[0] || !sig) return;
    p->state = "interrupted";
    dt__report_save(p);
    dt__report_catch(false);
    signal(sig, SIG_DFL);
    raise(sig);
}
static void dt__report_tick(dt_progress *p, double now)
{
    if (!p->report_path[0]) return;
    if (dt__report_signal) dt__report_raise(p);
    if (now - p->last_report >= fmax(DT__REPORT_SECONDS, 50 * p->report_took)) dt__report_save(p);
}
static void dt__report_end(dt_progress *p)
{
    if (!p->report_path[0]) return;
    if (dt__measured.watcher == p) dt__measured.watcher = NULL;
    dt__report_raise(p);
    p->state = dt__err.code == DT_OK ? "finished" : "failed";
    if (dt__err.code != DT_OK) snprintf(p->failed, sizeof p->failed, "%s", dt__err.message);
    dt__report_save(p);
    dt__report_catch(false);
}

/* ---- reports on one page. JSON of files is copied token by token: what is not JSON is refused, and what could end a
   <script> is written as an escape. */
typedef struct dt__copier {
    const char  *s, *end;
    dt__text_buf out;
} dt__copier;
static void dt__copy_space(dt__copier *c)
{
    while (c->s < c->end && strchr(" \t\r\n", *c->s) && *c->s) c->s++;
}
static bool dt__copy_string(dt__copier *c)
{
    if (c->s == c->end || *c->s != '"') return false;
    dt__text_put(&c->out, "\"");
    for (c->s++; c->s < c->end && *c->s != '"';) {
        char   code[8];
        size_t n = dt__utf8_len(c->s, (size_t)(c->end - c->s));
        if (n == 0 || (unsigned char)*c->s < 0x20) return false;
        if (*c->s == '\\') {
            if (c->end - c->s < 2 || !strchr("\"\\/bfnrtu", c->s[1]) || !c->s[1]) return false;
            n = c->s[1] == 'u' ? 6 : 2;
            if ((size_t)(c->end - c->s) < n) return false;
            for (size_t i = 2; i < n; i++)
                if (!strchr("0123456789abcdefABCDEF", c->s[i]) || !c->s[i]) return false;
        }
        snprintf(code, sizeof code, "\\u%04x", (unsigned char)*c->s);
        if (strchr("<>&", *c->s)) dt__text_put(&c->out, code);
        else dt__text_add(&c->out, c->s, n);
        c->s += n;
    }
    dt__text_put(&c->out, "\"");
    return c->s < c->end && *c->s++ == '"';
}
static int dt__copy_digits(dt__copier *c) /* how many there are */
{
    const char *from = c->s;
    while (c->s < c->end && *c->s >= '0' && *c->s <= '9') c->s++;
    return (int)(c->s - from);
}
static bool dt__copy_value(dt__copier *c, int depth)
{
    static const char *const words[] = { "true", "false", "null" };
    dt__copy_space(c);
    if (c->s == c->end || depth > 16) return false;
    char open = *c->s, close = open == '{' ? '}' : ']';
    if (open == '"') return dt__copy_string(c);
    if (open == '{' || open == '[') {
        dt__text_add(&c->out, c->s++, 1);
        dt__copy_space(c);
        for (bool first = true; c->s < c->end && *c->s != close; first = false) {
            if (!first) {
                if (*c->s++ != ',') return false;
                dt__text_put(&c->out, ",");
                dt__copy_space(c);
            }
            if (open == '{') {
                if (!dt__copy_string(c)) return false;
                dt__copy_space(c);
                if (c->s == c->end || *c->s++ != ':') return false;
                dt__text_put(&c->out, ":");
            }
            if (!dt__copy_value(c, depth + 1)) return false;
            dt__copy_space(c);
        }
        if (c->s == c->end) return false;
        dt__text_add(&c->out, c->s++, 1);
        return true;
    }
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(c->end - c->s) < n || strncmp(c->s, words[i], n) != 0) continue;
        dt__text_put(&c->out, words[i]);
        c->s += n;
        return true;
    }
    const char *from = c->s;
    if (*c->s == '-') c->s++;
    bool zero = c->s < c->end && *c->s == '0';
    int  n = dt__copy_digits(c);
    if (!n || (zero && n > 1)) return false;
    if (c->s < c->end && *c->s == '.' && (c->s++, !dt__copy_digits(c))) return false;
    if (c->s < c->end && (*c->s == 'e' || *c->s == 'E')) {
        c->s++;
        if (c->s < c->end && (*c->s == '+' || *c->s == '-')) c->s++;
        if (!dt__copy_digits(c)) return false;
    }
    dt__text_add(&c->out, from, (size_t)(c->s - from));
    return true;
}
static char *dt__read_whole(const char *path, size_t *n, const char **why) /* free with dt_mem_free(s, *n + 1) */
{
    enum { MOST = 64 << 20 };
    struct stat st;
    FILE       *f = fopen(path, "rb");
    char       *s = NULL;
    *why = NULL;
    if (!f || fstat(fileno(f), &st)) *why = strerror(errno);
    else if (!S_ISREG(st.st_mode)) *why = "it is not a regular file";
    else if (st.st_size > MOST) *why = "it is larger than 64 MiB, so it is not a report";
    else if (!(s = (char *)dt_mem_alloc((size_t)st.st_size + 1))) *why = "out of memory";
    else if (fread(s, 1, (size_t)st.st_size, f) != (size_t)st.st_size) *why = "it could not be read whole";
    if (f && !*why) *n = (size_t)st.st_size, s[*n] = 0;
    else if (s) dt_mem_free(s, (size_t)st.st_size + 1), s = NULL;
    if (f) fclose(f);
    return s;
}
static const char *dt__report_add(dt__text_buf *page, const char *s, size_t n, const char *name) /* NULL, or what is wrong */
{
    static const char mark[] = "class=\"dt-run\"", head[] = "{\"dt_report\":1,";
    bool              html = n > 9 && strncmp(s, "<!doctype", 9) == 0;
    const char       *at = s, *end = s + n, *why = NULL;
    int               runs = 0;
    while (!why && (!html || ((at = strstr(at, mark)) != NULL && (at = strchr(at, '>')) != NULL && at++))) {
        const char *stop = html ? strstr(at, "</script>") : end;
        dt__copier  c;
        char        label[300];
        memset(&c, 0, sizeof c);
        c.s = at;
        c.end = stop ? stop : end;
        bool good = dt__copy_value(&c, 0);
        dt__copy_space(&c);
        if (!good || c.s != c.end) why = "it is not well-formed JSON";
        else if (c.out.failed) why = "out of memory";
        else if (strncmp(c.out.s, head, sizeof head - 1) != 0)
            why = "it does not begin with \"dt_report\": 1, as what DT_REPORT writes";
        snprintf(label, sizeof label, runs ? "%.250s (%d)" : "%.250s", name, runs + 1);
        if (!why) dt__page_run(page, label, c.out.s, c.out.n);
        dt__text_free(&c.out);
        runs++;
        if (!html) break;
        at = stop ? stop : end;
    }
    return why ? why : runs ? NULL : "it is a page without a report";
}
DT_API dt_status dt_report_join(const char *out, const char *const *files, const char *const *names, int n)
{
    dt__text_buf page;
    const char  *why = NULL;
    int          e = 0;
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!out || !*out || !files || n < 1)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_report_join: expected the path of a page and at least one report");
    memset(&page, 0, sizeof page);
    dt__page_begin(&page, n > 1 ? "runs of dt compared" : "a run of dt");
    for (int i = 0; i < n && dt__err.code == DT_OK; i++) {
        size_t      nbytes = 0;
        char       *s = dt__read_whole(files[i], &nbytes, &why);
        const char *slash = strrchr(files[i], '/'), *name = names && names[i] ? names[i] : slash ? slash + 1 : files[i];
        if (s) why = dt__report_add(&page, s, nbytes, name);
        if (why) dt_fail(DT_ERR_FILE, "dt_report_join: %s: %s", files[i], why);
        if (s) dt_mem_free(s, nbytes + 1);
    }
    dt__page_end(&page);
    if (dt__err.code == DT_OK) {
        e = page.failed ? ENOMEM : dt__text_save(&page, out, &why);
        if (e) dt_fail(e == ENOMEM ? DT_ERR_MEMORY : DT_ERR_FILE, "dt_report_join: cannot write %s: %s", out, strerror(e));
    }
    dt__text_free(&page);
    return dt__err.code;
}

/* ==================================================================================================== >>calls */
#define DT__REDRAW_SECONDS 0.1 /* least time between two drawings of the line on a terminal */
#define DT__PLAIN_SECONDS 10   /* default time between plain lines */
#define DT__CURVE_SECONDS 60   /* time between writes of the loss curve */
#define DT__RATE_SECONDS 3     /* time constant of the average rate */
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
    dt__show_mode(p);
    p->wall = (int64_t)time(NULL);
    p->state = "running";
    dt__measured.items = dt__measured.data = dt__measured.exposed = dt__measured.waited = dt__measured.total = 0;
    dt__measured.rate = 0;
    snprintf(p->unit, sizeof p->unit, "%.31s", o.unit && *o.unit ? o.unit : "items");
    snprintf(p->title, sizeof p->title, "%.127s", o.title ? o.title : "");
    p->stride = 1;
    bool ok = dt__copy_path(p->csv_path, sizeof p->csv_path, o.csv, ".csv") &&
              dt__copy_path(p->svg_path, sizeof p->svg_path, o.svg, ".svg") && dt__report_path(p);
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
        p->start = p->last_step = p->last_line = p->last_svg = p->last_report = dt__seconds();
        if (dt__report_begin(p)) return p;
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
    p->own_items = keep * p->own_items + (double)(dt__measured.items - p->items_seen);
    p->items_seen = dt__measured.items;
    dt__measured.rate = p->rate_seconds > 0 ? p->own_items / p->rate_seconds : 0;
    dt__measured.total += (int64_t)(1e9 * took);
    dt__history_add(p, p->step, loss);
    dt__history_pace(p, now - p->start + p->before);
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
    dt__report_tick(p, now);
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
static void dt__progress_say(dt_progress *p, const char *text) /* a line that stays */
{
    if (p->o.quiet) return;
    if (p->live) dt__live_draw(p, text);
    else if (p->tty) dt__progress_overwrite(p, text, true);
    else fprintf(p->o.file, "%s\n", text), fflush(p->o.file);
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
    dt__progress_say(p, text);
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
    dt__progress_say(p, text);
    if (again) dt__progress_draw(p, false);
}
DT_API dt_status dt_progress_free(dt_progress *p)
{
    if (!p) return DT_OK;
    if (p->open_line || p->step > p->drawn_step) dt__progress_draw(p, true);
    if (p->start > 0) dt__progress_curve(p); /* not after a failed dt_progress_new */
    if (p->start > 0) dt__report_end(p);
    errno = 0;
    if (p->csv && fclose(p->csv)) dt__progress_failed(&p->csv_error, errno ? errno : EIO, p->csv_path);
    dt_status s = dt__err.code;
    if (p->csv_error)
        s = (dt_status)dt_fail(DT_ERR_FILE, "dt_progress: cannot write %s: %s; the lines after this failure are missing",
                               p->csv_path, strerror(p->csv_error));
    if (p->svg_error)
        s = (dt_status)dt_fail(DT_ERR_FILE, "dt_progress: cannot write %s: %s", p->svg_path, strerror(p->svg_error));
    if (p->report_error)
        s = (dt_status)dt_fail(DT_ERR_FILE, "dt_progress: DT_REPORT: cannot write %s: %s", p->report_path,
                               strerror(p->report_error));
    dt__text_free(&p->team);
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
