/* dtplan_sweep.h - how large a batch? Runs the user's trainer over batch sizes. Part of dtplan.c.

   The trainer is any program that takes --batch N and --csv FILE, and writes a table there: a line of names, then lines of values,
   separated by commas. Of the columns these are used: epoch, items_per_second, result, value. A line with a result (such as
   "test accuracy") and its value ends an epoch, whose number is in the column epoch, from 1 on; the other lines may have
   items_per_second. dt_progress of dt_plot.h writes such a table, so every example with --csv is such a trainer.
   It ends by itself (--epochs among its own options). A run that fails, or ends early, has not reached the target.

   Recipes: the trainer as it is; if its --help names --lr: the rate x batch / base batch, with --warmup if it is named, too; if --help also names
   --lars: LARS, the rate of --lars-lr x sqrt(batch / base batch), with the same warm-up. */
enum { SWEEP_BATCHES = 16, SWEEP_RECIPES = 3 };
typedef struct sweep {
    int         argc;
    char      **argv; /* the trainer and its options */
    double      batch[SWEEP_BATCHES], target, lr, lars, warmup, base;
    int         n;
    bool        below; /* the result must be at most the target */
    const char *metric, *svg;
} sweep;
typedef struct sweep_run {
    double rate, epochs, seconds; /* items a second; to the target, NaN: not reached; to the end of the epochs, epochs x items / rate */
    double items;                 /* of an epoch */
    int    status;
} sweep_run;
static const char *const sweep_recipes[SWEEP_RECIPES] = { "as it is", "rate x batch", "LARS" };

static void sweep_options(sweep *s, const char *const *given)
{
    const char *list = given[BATCHES] ? given[BATCHES] : "8,16,32,64,128,256", *target = given[TARGET];
    char       *end;
    for (const char *at = list; *at; s->n++) {
        long v = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || v < 1 || v > 1 << 24)
            quit("--batches: found '%.40s', expected whole numbers from 1 to %d, such as 16,64,256", at, 1 << 24);
        if (s->n == SWEEP_BATCHES) quit("--batches: expected at most %d of them", SWEEP_BATCHES);
        s->batch[s->n] = (double)v;
        if (s->n && s->batch[s->n] <= s->batch[s->n - 1]) quit("--batches: expected larger ones after smaller ones, found %ld", v);
        at = *end ? end + 1 : end;
    }
    if (!s->n) quit("--batches: expected at least one");
    if (!target) quit("--sweep: when is the training done? Give --target, such as --target 96%% or --target '<0.2'");
    s->below = *target == '<';
    s->target = strtod(target + s->below, &end);
    if (end == target + s->below || (*end && strcmp(end, "%") != 0) || !isfinite(s->target))
        quit("--target: found '%.40s', expected a value of the result such as 0.96, 96%% or '<0.2'", target);
    if (*end) s->target /= 100;
    s->metric = given[METRIC];
    s->svg = given[OUT] ? given[OUT] : "sweep.svg";
    const int          keys[] = { LR, LARS_LR, WARMUP, BASE_BATCH };
    double            *to[] = { &s->lr, &s->lars, &s->warmup, &s->base };
    for (int i = 0; i < 4; i++) {
        if (!given[keys[i]]) continue;
        *to[i] = strtod(given[keys[i]], &end);
        if (end == given[keys[i]] || *end || !(*to[i] > 0) || !isfinite(*to[i]))
            quit("%s: found '%.40s', expected a number above 0", names[keys[i]], given[keys[i]]);
    }
    if (!(s->base > 0)) s->base = s->batch[0];
    if (s->argc < 1) quit("--sweep: the trainer is missing; expected dtplan --target 96%% --sweep ./train [its options]");
    for (int i = 1; i < s->argc; i++)
        if (!strcmp(s->argv[i], "--batch") || !strcmp(s->argv[i], "--csv"))
            quit("--sweep: %s is among the options of the trainer, but the sweep sets it itself", s->argv[i]);
}
/* Runs the trainer; its output goes to the file log. Its exit status, or 128 and more. */
static int sweep_start(const sweep *s, char **more, const char *log)
{
    char **argv = (char **)room((size_t)s->argc + 16, sizeof *argv);
    int    n = 0, status = 0;
    for (; n < s->argc; n++) argv[n] = s->argv[n];
    for (int i = 0; more[i]; i++) argv[n++] = more[i];
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) quit("--sweep: cannot start a process: %s", strerror(errno));
    if (!pid) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600), in = open("/dev/null", O_RDONLY);
        if (fd >= 0) dup2(fd, 1), dup2(fd, 2);
        if (in >= 0) dup2(in, 0);
        execvp(argv[0], argv);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    free(argv);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
/* Column `name` of a line; false: it has none, or it is empty */
static bool sweep_cell(const char *line, int column, char *out, size_t nbytes)
{
    for (int i = 0; i < column; i++) {
        bool quoted = false;
        for (; *line && (quoted || *line != ','); line++) quoted ^= *line == '"';
        if (!*line++) return false;
    }
    size_t n = 0;
    bool   quoted = false;
    for (; *line && *line != '\n' && (quoted || *line != ','); line++) {
        quoted ^= *line == '"';
        if (*line != '"' && n + 1 < nbytes) out[n++] = *line;
    }
    out[n] = 0;
    return n > 0;
}
static void sweep_read(const sweep *s, const char *csv, double batch, sweep_run *r)
{
    static const char *const need[] = { "epoch", "items_per_second", "result", "value", "step" };
    char                     line[4096], cell[256], name[256];
    int                      column[5] = { -1, -1, -1, -1, -1 };
    double                  *rate = (double *)room(1 << 16, sizeof *rate);
    int                      n = 0, lines = 0;
    FILE                    *f = fopen(csv, "r");
    r->epochs = NAN;
    if (!f || !fgets(line, sizeof line, f))
        quit("--sweep: %s wrote no table for batch %.0f; expected a program that takes --batch N and --csv FILE (docs/planner.md)",
             s->argv[0], batch);
    for (int i = 0; sweep_cell(line, i, cell, sizeof cell) && i < 64; i++)
        for (int k = 0; k < 5; k++)
            if (!strcmp(cell, need[k])) column[k] = i;
    for (int k = 0; k < 4; k++)
        if (column[k] < 0) quit("--sweep: the table of %s has no column %s; expected epoch, items_per_second, result and value", s->argv[0], need[k]);
    while (fgets(line, sizeof line, f) && !(r->epochs > 0)) {
        lines++;
        if (sweep_cell(line, column[1], cell, sizeof cell) && n < 1 << 16) rate[n++] = atof(cell);
        if (!sweep_cell(line, column[2], name, sizeof name) || (s->metric && strcmp(name, s->metric) != 0)) continue;
        if (!sweep_cell(line, column[3], cell, sizeof cell)) continue;
        double value = atof(cell);
        if (s->below ? value > s->target : value < s->target) continue;
        if (sweep_cell(line, column[0], cell, sizeof cell)) r->epochs = atof(cell);
        if (column[4] >= 0 && sweep_cell(line, column[4], cell, sizeof cell) && r->epochs > 0)
            r->items = atof(cell) * batch / r->epochs;
    }
    fclose(f);
    qsort(rate, (size_t)n, sizeof *rate, by_value);
    r->rate = n ? rate[n / 2] : 0;
    r->seconds = r->rate > 0 ? r->epochs * r->items / r->rate : NAN;
    if (!lines) r->rate = 0;
    free(rate);
}
static bool sweep_names(const char *help_text, const char *option)
{
    const char *p = strstr(help_text, option);
    size_t      n = strlen(option);
    for (; p; p = strstr(p + 1, option))
        if (!strchr("abcdefghijklmnopqrstuvwxyz-", p[n] ? p[n] : ' ')) return true;
    return false;
}
static int write_sweep(FILE *f, sweep *s, bool as_json)
{
    static double batch[SWEEP_BATCHES], rate[SWEEP_BATCHES], epochs[SWEEP_RECIPES][SWEEP_BATCHES];
    sweep_run     run[SWEEP_RECIPES][SWEEP_BATCHES];
    char          dir[] = "/tmp/dtplan.XXXXXX", csv[64], log[64], text[4][40], *none[] = { NULL }, *ask[] = { text[0], NULL };
    bool          on[SWEEP_RECIPES] = { true, false, false };
    double        least = INFINITY, best = 0;
    int           status = 0;
    size_t        n;
    if (!mkdtemp(dir)) quit("--sweep: cannot make a directory in /tmp: %s", strerror(errno));
    snprintf(csv, sizeof csv, "%s/csv", dir);
    snprintf(log, sizeof log, "%s/log", dir);
    (void)none;
    snprintf(text[0], sizeof text[0], "--help");
    sweep only = *s;
    only.argc = 1;
    if ((status = sweep_start(&only, ask, log)) == 127) quit("--sweep: cannot run %s", s->argv[0]);
    char *about = status ? NULL : file_text(log, &n);
    bool  warm = about && sweep_names(about, "--warmup") && s->warmup > 0;
    on[1] = about && sweep_names(about, "--lr") && s->lr > 0;
    on[2] = about && sweep_names(about, "--lr") && sweep_names(about, "--lars") && s->lars > 0;
    free(about);
    if (!as_json)
        fprintf(f, "%s: %s, %s%s\n", s->argv[0], on[1] ? "as it is, and with the rate x batch" : "as it is (no --lr of the trainer, or none given here)",
                on[2] ? "with LARS, " : "", warm ? "with warm-up" : "without warm-up");
    for (int i = 0; i < s->n; i++) {
        batch[i] = s->batch[i];
        rate[i] = NAN;
        for (int k = 0; k < SWEEP_RECIPES; k++) {
            sweep_run *r = &run[k][i];
            memset(r, 0, sizeof *r);
            r->epochs = epochs[k][i] = NAN;
            if (!on[k]) continue;
            double up = s->batch[i] / s->base;
            char  *more[12], lars[] = "--lars", lr[] = "--lr", warmup[] = "--warmup", b[] = "--batch", c[] = "--csv";
            int    m = 0;
            snprintf(text[1], sizeof text[1], "%.0f", s->batch[i]);
            snprintf(text[2], sizeof text[2], "%.9g", k == 2 ? s->lars * sqrt(up) : s->lr * up);
            snprintf(text[3], sizeof text[3], "%.9g", s->warmup);
            more[m++] = b, more[m++] = text[1], more[m++] = c, more[m++] = csv;
            if (k) more[m++] = lr, more[m++] = text[2];
            if (k && warm) more[m++] = warmup, more[m++] = text[3];
            if (k == 2) more[m++] = lars;
            more[m] = NULL;
            unlink(csv);
            r->status = sweep_start(s, more, log);
            if (r->status && access(csv, F_OK)) {
                char *said = file_text(log, &n), *end;
                if ((end = strchr(said, '\n'))) *end = 0;
                quit("--sweep: %s failed with batch %.0f: %.300s", s->argv[0], s->batch[i], said);
            }
            sweep_read(s, csv, s->batch[i], r);
            epochs[k][i] = r->epochs;
            if (!(rate[i] >= r->rate)) rate[i] = r->rate;
            if (r->seconds < least) least = r->seconds, best = s->batch[i];
            if (as_json) continue;
            fprintf(f, "batch %.0f, %s: %.0f a second", s->batch[i], sweep_recipes[k], r->rate);
            if (r->epochs > 0) fprintf(f, ", %g epochs to the target, %.3g s\n", r->epochs, r->seconds);
            else fprintf(f, ", the target was not reached%s\n", r->status ? ": the trainer failed" : "");
            fflush(f);
        }
    }
    unlink(csv), unlink(log), rmdir(dir);
    if (as_json) {
        fprintf(f, "{ \"target\": %.9g, \"best\": %.0f, \"runs\": [", s->target, least < INFINITY ? best : 0);
        bool first = true;
        for (int i = 0; i < s->n; i++)
            for (int k = 0; k < SWEEP_RECIPES; k++) {
                if (!on[k]) continue;
                fprintf(f, "%s\n  { \"batch\": %.0f, \"recipe\": ", first ? "" : ",", s->batch[i]);
                json_string(f, sweep_recipes[k]);
                fprintf(f, ", ");
                json_number(f, "rate", run[k][i].rate, ", ");
                fprintf(f, "\"reached\": %s, ", run[k][i].epochs > 0 ? "true" : "false");
                json_number(f, "epochs", run[k][i].epochs, ", ");
                json_number(f, "seconds", run[k][i].seconds, " }");
                first = false;
            }
        fprintf(f, " ] }\n");
    } else if (least < INFINITY)
        fprintf(f, "the least time to the target: batch %.0f, %.3g s\n", best, least);
    else fprintf(f, "no batch reached the target\n");
    dt_series series[1 + SWEEP_RECIPES];
    dt_plot   p;
    int       m = 1;
    memset(series, 0, sizeof series);
    memset(&p, 0, sizeof p);
    series[0].name = "items a second";
    series[0].x = batch, series[0].y = rate, series[0].n = s->n, series[0].dots = true;
    for (int k = 0; k < SWEEP_RECIPES; k++) {
        if (!on[k]) continue;
        series[m].name = sweep_recipes[k];
        series[m].x = batch, series[m].y = epochs[k], series[m].n = s->n;
        series[m].right = series[m].dots = true;
        m++;
    }
    p.title = "system efficiency rises, training efficiency falls; line: the least time to the target";
    p.x_label = "batch", p.y_label = "items a second", p.right_label = "epochs to the target";
    p.series = series, p.nseries = m;
    p.mark = &best, p.nmarks = least < INFINITY;
    p.log_x = true;
    if (dt_svg_plot(s->svg, &p)) quit("--sweep: cannot write the picture: %s", dt_error());
    if (!as_json) fprintf(f, "the picture: %s\n", s->svg);
    return least < INFINITY ? 0 : 1;
}
