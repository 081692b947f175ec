/* Progress: the line on a terminal and elsewhere, the table, the curve; plots.
   run: alone */
#include "dt_test.h"
#include "temp_files.h"

#include "dt_plot.h"

#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

/* ---- files */
static char tmp[64];
static void tmp_make(void)
{
    strcpy(tmp, "/tmp/dt_progress.XXXXXX");
    if (!mkdtemp(tmp)) tmp[0] = 0;
}
static int tmp_files(int remove) /* how many there are */
{
    DIR *d = opendir(tmp);
    char path[512];
    int  n = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", tmp, e->d_name);
        if (remove) unlink(path);
    }
    if (d) closedir(d);
    return n;
}
static const char *in_tmp(const char *name)
{
    static char path[4][512];
    static int  turn;
    snprintf(path[turn = (turn + 1) % 4], sizeof path[0], "%s/%s", tmp, name);
    return path[turn];
}
static char *drain(FILE *f) /* all of it, from its beginning; free() it */
{
    size_t cap = 1 << 16, n = 0;
    char  *s = (char *)malloc(cap);
    rewind(f);
    while (s) {
        n += fread(s + n, 1, cap - n - 1, f);
        if (n < cap - 1) break;
        s = (char *)realloc(s, cap *= 2);
    }
    if (s) s[n] = 0;
    return s;
}
static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *s = f ? drain(f) : NULL;
    if (f) fclose(f);
    return s;
}
static void put(const char *name, const char *text)
{
    FILE *f = fopen(in_tmp(name), "wb");
    if (f) fputs(text, f), fclose(f);
}
static int lines(const char *s)
{
    int n = 0;
    for (; s && *s; s++) n += *s == '\n';
    return n;
}
static const char *line(const char *s, int n) /* the n-th, up to its newline */
{
    static char buf[4][1024];
    static int  turn;
    char       *b = buf[turn = (turn + 1) % 4];
    for (; n > 0 && s; n--) s = strchr(s, '\n') ? strchr(s, '\n') + 1 : NULL;
    snprintf(b, sizeof buf[0], "%.*s", s ? (int)strcspn(s, "\n") : 0, s ? s : "");
    return b;
}
static int times(const char *s, const char *part) /* how often it is there */
{
    int n = 0;
    for (; s && (s = strstr(s, part)) != NULL; s += strlen(part)) n++;
    return n;
}

struct progress { int unused; };
UTEST_F_SETUP(progress)
{
    (void)utest_fixture;
    tmp_make();
    ASSERT_TRUE(tmp[0] != 0);
}
UTEST_F_TEARDOWN(progress)
{
    (void)utest_fixture, (void)utest_result;
    unsetenv("DT_PROGRESS");
    tmp_files(1);
    rmdir(tmp);
}

/* ==================================================================================================== plain lines */
UTEST_F(progress, a_file_gets_a_line_for_each_tenth_and_each_epoch)
{
    (void)utest_fixture;
    FILE        *f = tmpfile();
    dt_progress *p = dt_progress_new(.epochs = 2, .steps = 100, .file = f, .unit = "images", .every = 1e9);
    ASSERT_TRUE(p != NULL);
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < 100; i++) dt_progress_step(p, 0.5, .items = 32, .scale = 1024);
        dt_progress_note(p, "note %d", e);
        dt_progress_result(p, "accuracy", 0.9);
        dt_progress_result(p, "test loss", 0.25);
        dt_progress_epoch(p);
    }
    EXPECT_OK(dt_progress_free(p));
    char *s = drain(f);
    EXPECT_EQ(4 + 1 + 1 + 4 + 1 + 1, lines(s));
    EXPECT_EQ(0, times(s, "\r") + times(s, "\033"));
    EXPECT_EQ(0, strncmp("epoch 1/2  20/100  loss 0.5000  ", line(s, 0), 32));
    EXPECT_TRUE(strstr(line(s, 0), " images/s  ") && strstr(line(s, 0), " left  scale 1024"));
    EXPECT_STREQ("note 0", line(s, 4));
    EXPECT_EQ(0, strncmp("epoch 1/2  loss 0.5000  accuracy 0.9000  test loss 0.2500  0:", line(s, 5), 60));
    EXPECT_EQ(0, strncmp("epoch 2/2  20/100", line(s, 6), 17));
    EXPECT_EQ(0, strncmp("epoch 2/2  loss", line(s, 11), 15));
    EXPECT_EQ('\n', s[strlen(s) - 1]);
    free(s);
    fclose(f);
}

UTEST_F(progress, the_loss_shown_is_an_average)
{
    (void)utest_fixture;
    FILE        *f = tmpfile();
    dt_progress *p = dt_progress_new(.file = f, .every = 1e-9);
    dt_progress_step(p, 4);
    dt_progress_step(p, 2);
    dt_progress_step(p, NAN); /* shown as it is, and out of the average */
    dt_progress_step(p, -INFINITY);
    dt_progress_step(p, 2);
    dt_progress_step(p, 1e-5);
    dt_progress_free(p);
    char *s = drain(f);
    EXPECT_EQ(6, lines(s));
    EXPECT_EQ(0, strncmp("step 1  loss 4.0000  ", line(s, 0), 21));
    EXPECT_EQ(0, strncmp("step 2  loss 2.9744  ", line(s, 1), 21)); /* (0.95*4 + 2) / 1.95 */
    EXPECT_TRUE(strstr(line(s, 2), "loss nan") || strstr(line(s, 2), "loss -nan"));
    EXPECT_EQ(0, strncmp("step 4  loss -inf  ", line(s, 3), 19));
    EXPECT_EQ(0, strncmp("step 5  loss 2.6328  ", line(s, 4), 21)); /* (0.95*0.95*4 + 0.95*2 + 2) / 2.8525 */
    EXPECT_TRUE(strstr(line(s, 5), " steps/s") != NULL);
    EXPECT_TRUE(strstr(s, "left") == NULL && strstr(s, "epoch") == NULL);
    free(s);
    fclose(f);
}

UTEST_F(progress, epochs_that_nobody_ends_end_by_themselves)
{
    (void)utest_fixture;
    FILE        *f = tmpfile();
    dt_progress *p = dt_progress_new(.epochs = 3, .steps = 2, .file = f, .every = 1e9);
    for (int i = 0; i < 5; i++) dt_progress_step(p, 1);
    dt_progress_free(p);
    char *s = drain(f);
    EXPECT_EQ(1, times(s, "epoch 1/3  loss 1.0000"));
    EXPECT_EQ(1, times(s, "epoch 2/3  loss 1.0000"));
    EXPECT_EQ(1, times(s, "epoch 3/3  1/2"));
    free(s);
    fclose(f);
}

UTEST_F(progress, nothing_is_divided_by_zero_steps)
{
    (void)utest_fixture;
    FILE *f = tmpfile();
    for (int i = 0; i < 4; i++) {
        dt_progress *p = dt_progress_new(.epochs = i & 1, .steps = i >> 1, .file = f, .every = 1e-9,
                                         .svg = in_tmp("z.svg"), .csv = in_tmp("z.csv"));
        ASSERT_TRUE(p != NULL);
        dt_progress_epoch(p); /* without a step */
        dt_progress_result(p, NULL, 0);
        dt_progress_note(p, "nothing");
        if (i == 3) dt_progress_step(p, 0, .items = 0, .lr = 0);
        EXPECT_OK(dt_progress_free(p));
    }
    dt_progress *p = dt_progress_new(.file = f); /* nothing at all */
    EXPECT_OK(dt_progress_free(p));
    char *s = drain(f);
    EXPECT_TRUE(strstr(s, "-nan") == NULL && strstr(s, "inf") == NULL);
    free(s);
    fclose(f);
}

UTEST_F(progress, huge_values_are_shown_and_drawn)
{
    (void)utest_fixture;
    FILE        *f = tmpfile();
    dt_progress *p = dt_progress_new(.epochs = 2147483647, .steps = INT64_MAX / 4, .file = f, .every = 1e-9,
                                     .svg = in_tmp("h.svg"), .csv = in_tmp("h.csv"),
                                     .unit = "a very very long name of a unit");
    ASSERT_TRUE(p != NULL);
    static const double loss[] = { 1e308, -1e308, 1.7e308, 5e-324, 0, 1e300 };
    for (int i = 0; i < 6000; i++) dt_progress_step(p, loss[i % 6], .items = 1e300, .lr = 1e-300, .scale = 1e38);
    dt_progress_result(p, "huge", 1e308);
    dt_progress_result(p, "a name that is longer than any name of a result has a right to be, really", -1e308);
    dt_progress_epoch(p);
    EXPECT_OK(dt_progress_free(p));
    p = dt_progress_new(.epochs = 1, .steps = 1, .file = f, .every = 1e-9); /* more steps than were announced */
    for (int i = 0; i < 30; i++) dt_progress_step(p, 1e5);
    EXPECT_OK(dt_progress_free(p));
    char *s = drain(f);
    EXPECT_EQ(0, strncmp("epoch 1/2147483647  1/2305843009213693951  loss 1e+290  ", line(s, 0), 55));
    EXPECT_TRUE(strstr(line(s, 0), "277777:46:40 left  lr 1e-300  scale 1e+38") != NULL);
    EXPECT_TRUE(strstr(s, "loss 1e+05") != NULL);
    free(s);
    fclose(f);
}

UTEST_F(progress, quiet_and_null_are_accepted)
{
    (void)utest_fixture;
    FILE        *f = tmpfile();
    dt_progress *p = dt_progress_new(.file = f, .quiet = true, .csv = in_tmp("q.csv"), .every = 1e-9);
    dt_progress_step(p, 1);
    dt_progress_note(p, "unheard");
    dt_progress_epoch(p);
    dt_progress_step(p, 1);
    EXPECT_OK(dt_progress_free(p));
    char *s = drain(f), *csv = slurp(in_tmp("q.csv"));
    EXPECT_STREQ("", s);
    EXPECT_EQ(3, lines(csv));
    free(s);
    free(csv);
    fclose(f);
    dt_progress_step(NULL, 1);
    dt_progress_result(NULL, "x", 1);
    dt_progress_epoch(NULL);
    dt_progress_note(NULL, "x");
    EXPECT_OK(dt_progress_free(NULL));
    EXPECT_ERROR(dt_progress_new(.epochs = -1), ".epochs");
    EXPECT_ERROR(dt_progress_new(.steps = -1), ".steps");
    EXPECT_ERROR(dt_progress_new(.start_step = -1), ".start_step");
    EXPECT_ERROR(dt_progress_new(.every = NAN), ".every");
}

UTEST_F(progress, nothing_is_counted_while_an_error_is_pending)
{
    (void)utest_fixture;
    FILE        *f = tmpfile();
    dt_progress *p = dt_progress_new(.file = f, .csv = in_tmp("e.csv"), .every = 1e-9);
    dt_progress_step(p, 1);
    dt_fail(DT_ERR_SHAPE, "an earlier one");
    dt_progress_step(p, NAN); /* what dt_item gives now */
    dt_progress_result(p, "accuracy", NAN);
    dt_progress_epoch(p);
    EXPECT_TRUE(dt_progress_new(.file = f) == NULL);
    EXPECT_EQ(DT_ERR_SHAPE, dt_progress_free(p)); /* files are closed */
    EXPECT_STREQ("an earlier one", dt_error());
    dt_error_clear();
    char *s = drain(f), *csv = slurp(in_tmp("e.csv"));
    EXPECT_EQ(1, lines(s));
    EXPECT_EQ(2, lines(csv));
    free(s);
    free(csv);
    fclose(f);
}

UTEST_F(progress, the_trace_gets_the_loss)
{
    (void)utest_fixture;
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    dt_progress *p = dt_progress_new(.quiet = true);
    dt_progress_step(p, 0.75, .scale = 512);
    dt_progress_free(p);
    ASSERT_OK(dt_trace_stop());
    char *s = slurp(in_tmp("t.json"));
    EXPECT_EQ(1, times(s, "\"name\":\"loss\",\"args\":{\"value\":0.75}"));
    EXPECT_EQ(1, times(s, "\"name\":\"loss scale\",\"args\":{\"value\":512}"));
    free(s);
}

/* ==================================================================================================== terminals */
typedef struct terminal {
    int   master;
    FILE *file;
    char  seen[1 << 16];
    int   n;
} terminal;
static int terminal_open(terminal *t, int columns)
{
    struct winsize w = { 24, (unsigned short)columns, 0, 0 };
    struct termios raw;
    const char    *name;
    memset(t, 0, sizeof *t);
    t->master = posix_openpt(O_RDWR | O_NOCTTY);
    if (t->master < 0 || grantpt(t->master) || unlockpt(t->master) || !(name = ptsname(t->master))) return 1;
    int fd = open(name, O_RDWR | O_NOCTTY);
    if (fd < 0 || tcgetattr(fd, &raw)) return 1;
    cfmakeraw(&raw);
    tcsetattr(fd, TCSANOW, &raw);
    if (columns > 0) ioctl(fd, TIOCSWINSZ, &w);
    t->file = fdopen(fd, "w");
    return t->file == NULL;
}
static int terminal_read(terminal *t, int wait) /* what is there; with wait: until the other side is closed */
{
    for (;;) {
        struct pollfd p = { t->master, POLLIN, 0 };
        if (!wait && poll(&p, 1, 0) <= 0) return t->n;
        ssize_t k = read(t->master, t->seen + t->n, sizeof t->seen - 1 - (size_t)t->n);
        if (k <= 0) return t->n;
        t->n += (int)k;
    }
}
static void terminal_close(terminal *t)
{
    fclose(t->file);
    terminal_read(t, 1);
    close(t->master);
}
/* What stands on the screen at the end: '\r' goes back, letters overwrite. The widest that was ever written. */
static int screen(const terminal *t, char rows[][256], int *nrows)
{
    int row = 0, at = 0, widest = 0;
    memset(rows, 0, 40 * 256);
    for (int i = 0; i < t->n && row < 40; i++) {
        unsigned char c = (unsigned char)t->seen[i];
        if (c == '\n') row++, at = 0;
        else if (c == '\r') at = 0;
        else if (c < 0x20 || at >= 255) return 9999; /* an escape code, or no end */
        else if ((c & 0xc0) != 0x80) rows[row][at++] = (char)(c < 0x80 ? c : '?');
        if (at > widest) widest = at;
    }
    for (int i = 0; i <= row && i < 40; i++)
        for (size_t n = strlen(rows[i]); n > 0 && rows[i][n - 1] == ' ';) rows[i][--n] = 0;
    *nrows = row;
    return widest;
}
/* steps until n bars have been seen: tenths of a second, whatever the machine does */
static int step_until_drawn(terminal *t, dt_progress *p, int n)
{
    int i = 0, most = 100000000;
    for (; i < most && (terminal_read(t, 0), times(t->seen, "[") < n); i++)
        dt_progress_step(p, 0.25, .items = 10, .lr = 0.125, .scale = 65536);
    return i < most;
}

UTEST_F(progress, a_terminal_has_one_line_that_is_redrawn)
{
    (void)utest_fixture;
    setenv("DT_PROGRESS", "line", 1);
    static terminal t;
    static char     rows[40][256];
    int             nrows = 0;
    ASSERT_EQ(0, terminal_open(&t, 160));
    dt_progress *p = dt_progress_new(.epochs = 3, .steps = 100000000, .file = t.file, .unit = "images");
    ASSERT_TRUE(p != NULL);
    EXPECT_TRUE(step_until_drawn(&t, p, 2));
    EXPECT_EQ(0, times(t.seen, "\n"));
    EXPECT_EQ(1, times(t.seen, "\r"));
    dt_progress_note(p, "short");
    dt_progress_result(p, "accuracy", 0.5);
    dt_progress_epoch(p);
    EXPECT_TRUE(step_until_drawn(&t, p, 4)); /* the note drew it anew */
    EXPECT_OK(dt_progress_free(p));
    terminal_close(&t);
    EXPECT_LE(screen(&t, rows, &nrows), 159);
    ASSERT_EQ(3, nrows);
    EXPECT_EQ('\n', t.seen[t.n - 1]);
    EXPECT_STREQ("short", rows[0]); /* nothing of the longer line is left */
    EXPECT_EQ(0, strncmp("epoch 1/3  loss 0.2500  accuracy 0.5000  0:0", rows[1], 43));
    EXPECT_EQ(0, strncmp("epoch 2/3  [>                             ]  ", rows[2], 45));
    EXPECT_TRUE(strstr(rows[2], "/100000000  loss 0.2500  ") && strstr(rows[2], " images/s  "));
    EXPECT_TRUE(strstr(rows[2], " left  lr 0.125  scale 65536") != NULL);
}

UTEST_F(progress, the_bar_fills)
{
    (void)utest_fixture;
    setenv("DT_PROGRESS", "line", 1);
    static terminal t;
    static char     rows[40][256];
    int             nrows = 0;
    ASSERT_EQ(0, terminal_open(&t, 100));
    dt_progress *p = dt_progress_new(.epochs = 2, .steps = 8, .file = t.file);
    for (int i = 0; i < 8; i++) dt_progress_step(p, 1); /* the last of an epoch is always drawn */
    dt_progress_note(p, "a note goes above it");
    dt_progress_free(p);
    terminal_close(&t);
    screen(&t, rows, &nrows);
    EXPECT_EQ(2, nrows);
    EXPECT_STREQ("a note goes above it", rows[0]);
    EXPECT_EQ(0, strncmp("epoch 1/2  [==============================]  8/8  loss 1.0000  ", rows[1], 62));
}

UTEST_F(progress, no_line_is_wider_than_its_terminal)
{
    (void)utest_fixture;
    setenv("DT_PROGRESS", "line", 1);
    static const int width[] = { 200, 100, 80, 70, 60, 50, 40, 30, 20, 12, 8, 3, 2, 1 };
    for (size_t i = 0; i < sizeof width / sizeof width[0]; i++) {
        static terminal t;
        static char     rows[40][256];
        int             nrows = 0;
        ASSERT_EQ(0, terminal_open(&t, width[i]));
        dt_progress *p = dt_progress_new(.epochs = 12, .steps = 50, .file = t.file, .unit = "\xc3\xa9l\xc3\xa9ments");
        for (int k = 0; k < 50; k++) dt_progress_step(p, 0.5, .items = 1e6, .lr = 1e-4, .scale = 65536);
        dt_progress_free(p);
        terminal_close(&t);
        int widest = screen(&t, rows, &nrows);
        EXPECT_LE(widest, width[i] - 1);
        EXPECT_GE(widest, width[i] > 200 ? 100 : width[i] / 3);
        EXPECT_EQ(1, nrows);
        if (width[i] >= 12) EXPECT_TRUE(strstr(rows[0], "loss 0.5000") != NULL); /* what goes last */
        if (width[i] >= 60) EXPECT_TRUE(strstr(rows[0], "50/50") && strstr(rows[0], " left"));
        if (width[i] >= 100) EXPECT_TRUE(strstr(rows[0], "[===") && strstr(rows[0], "?l?ments/s  "));
    }
}

UTEST_F(progress, a_terminal_that_does_not_say_its_width_has_80_columns)
{
    (void)utest_fixture;
    setenv("DT_PROGRESS", "line", 1);
    static terminal t;
    static char     rows[40][256];
    int             nrows = 0;
    char           *columns = getenv("COLUMNS"), keep[32] = "";
    if (columns) snprintf(keep, sizeof keep, "%.31s", columns);
    for (int i = 0; i < 2; i++) {
        if (i) setenv("COLUMNS", "40", 1);
        else unsetenv("COLUMNS");
        ASSERT_EQ(0, terminal_open(&t, 0));
        dt_progress *p = dt_progress_new(.epochs = 2, .steps = 1, .file = t.file);
        dt_progress_step(p, 1, .items = 5);
        dt_progress_free(p);
        terminal_close(&t);
        int widest = screen(&t, rows, &nrows);
        EXPECT_LE(widest, i ? 39 : 79);
        EXPECT_GE(widest, i ? 20 : 60);
    }
    if (columns) setenv("COLUMNS", keep, 1);
    else unsetenv("COLUMNS");
}

UTEST_F(progress, a_dumb_terminal_gets_plain_lines)
{
    (void)utest_fixture;
    static terminal t;
    char           *term = getenv("TERM"), keep[64] = "";
    if (term) snprintf(keep, sizeof keep, "%.63s", term);
    setenv("TERM", "dumb", 1);
    ASSERT_EQ(0, terminal_open(&t, 80));
    dt_progress *p = dt_progress_new(.epochs = 1, .steps = 3, .file = t.file);
    for (int i = 0; i < 3; i++) dt_progress_step(p, 1);
    dt_progress_free(p);
    terminal_close(&t);
    EXPECT_EQ(0, times(t.seen, "\r"));
    EXPECT_EQ(3, times(t.seen, "\n")); /* tenths 3 and 6, and the end */
    if (term) setenv("TERM", keep, 1);
    else unsetenv("TERM");
}

/* ==================================================================================================== the live view */
/* What stands on the screen of a terminal that knows the cursor up, erase to the end of line and of screen, and colours. The row
   of the cursor, or -1: something else was written, or it left the screen or is not in column 0 at the end. */
static int live_screen(const terminal *t, char rows[][256], int *widest, int *colours)
{
    int row = 0, at = 0;
    memset(rows, 0, 40 * 256);
    *widest = *colours = 0;
    for (int i = 0; i < t->n; i++) {
        unsigned char c = (unsigned char)t->seen[i];
        if (row < 0 || row >= 40 || at >= 250) return -1;
        if (c == '\033') {
            int n = 0;
            if (t->seen[++i] != '[') return -1;
            for (i++; t->seen[i] >= '0' && t->seen[i] <= '9'; i++) n = 10 * n + t->seen[i] - '0';
            if (t->seen[i] == 'A') row -= n;
            else if (t->seen[i] == 'K') memset(rows[row] + at, 0, 256 - (size_t)at);
            else if (t->seen[i] == 'J') {
                memset(rows[row] + at, 0, 256 - (size_t)at);
                for (int k = row + 1; k < 40; k++) memset(rows[k], 0, 256);
            } else if (t->seen[i] == 'm') ++*colours;
            else return -1;
        } else if (c == '\n') row++, at = 0;
        else if (c == '\r') at = 0;
        else if ((c & 0xc0) != 0x80) rows[row][at++] = (char)(c < 0x80 ? c : '#');
        if (at > *widest) *widest = at;
    }
    return at == 0 ? row : -1;
}
static void live_run(terminal *t, int columns, int steps)
{
    unsetenv("DT_PROGRESS");
    setenv("TERM", "xterm", 1);
    if (terminal_open(t, columns)) return;
    dt_progress *p = dt_progress_new(.epochs = 2, .steps = steps, .file = t->file, .unit = "images");
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < steps; i++) dt_progress_step(p, 1.0 / (1 + i + e * steps), .items = 8);
        dt_progress_note(p, "a note of epoch %d", e);
        dt_progress_result(p, "accuracy", 0.5);
        dt_progress_epoch(p);
    }
    dt_progress_free(p);
    terminal_close(t);
}
UTEST_F(progress, the_live_view_leaves_its_lines_and_nothing_else)
{
    (void)utest_fixture;
    static terminal t;
    static char     rows[40][256];
    int             widest, colours;
    setenv("LC_ALL", "C", 1);
    setenv("NO_COLOR", "1", 1);
    live_run(&t, 100, 20);
    ASSERT_EQ(7, live_screen(&t, rows, &widest, &colours)); /* the cursor is below the last line */
    EXPECT_EQ(0, colours);
    EXPECT_STREQ("a note of epoch 0", rows[0]);
    EXPECT_EQ(0, strncmp("epoch 1/2  loss ", rows[1], 16));
    EXPECT_STREQ("a note of epoch 1", rows[2]);
    EXPECT_EQ(0, strncmp("epoch 2/2  loss ", rows[3], 16));
    EXPECT_TRUE(strstr(rows[3], "accuracy 0.5000") != NULL);
    EXPECT_EQ(0, strncmp("epoch 2/2  [===", rows[4], 15));
    EXPECT_EQ(0, strncmp("loss    @", rows[5], 9));
    EXPECT_TRUE(strstr(rows[5], ".  1.0000 to 0.0") != NULL);
    EXPECT_STREQ("data 0 %  compute 100 %", rows[6]);
    setenv("LC_ALL", "C.UTF-8", 1);
    live_run(&t, 100, 20);
    EXPECT_EQ(7, live_screen(&t, rows, &widest, &colours));
    EXPECT_EQ(0, colours);
    unsetenv("NO_COLOR");
    live_run(&t, 100, 20);
    EXPECT_EQ(7, live_screen(&t, rows, &widest, &colours));
    EXPECT_GT(colours, 0);
    EXPECT_TRUE(strstr(rows[6], "compute 100 %  ####") != NULL);
    unsetenv("LC_ALL");
}
UTEST_F(progress, the_live_view_is_never_wider_than_its_terminal)
{
    (void)utest_fixture;
    static const int width[] = { 200, 81, 60, 41, 40, 20, 10, 3, 1 };
    static terminal  t;
    static char      rows[40][256];
    int              widest, colours;
    for (size_t i = 0; i < sizeof width / sizeof *width; i++) {
        live_run(&t, width[i], 5);
        int end = live_screen(&t, rows, &widest, &colours), row = end;
        EXPECT_GT(end, 0);
        while (row > 0 && !strstr(rows[row - 1], "accuracy")) row--; /* lines above stay, and may wrap */
        EXPECT_GT(row, 0);
        EXPECT_LT(row, end);
        for (; row < end; row++) EXPECT_LE((int)strlen(rows[row]), width[i] > 1 ? width[i] - 1 : 1);
    }
}
UTEST_F(progress, the_live_view_follows_a_terminal_that_becomes_narrower)
{
    (void)utest_fixture;
    static terminal t;
    unsetenv("DT_PROGRESS");
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    ASSERT_EQ(0, terminal_open(&t, 120));
    dt_progress *p = dt_progress_new(.epochs = 1, .steps = 1000000, .file = t.file, .unit = "images");
    dt_progress_step(p, 1, .items = 8);
    dt_progress_note(p, "drawn");
    terminal_read(&t, 0);
    int            before = t.n;
    struct winsize w = { 24, 60, 0, 0 };
    ioctl(fileno(t.file), TIOCSWINSZ, &w);
    dt_progress_note(p, "drawn again");
    terminal_read(&t, 0);
    char *up = strstr(t.seen + before, "\r\033["); /* the cursor may be behind an echoed ^C */
    ASSERT_TRUE(up != NULL);
    EXPECT_EQ('3', up[3]); /* the first line takes two rows now, the last one one */
    dt_progress_free(p);
    terminal_close(&t);
    unsetenv("NO_COLOR");
}
UTEST_F(progress, dt_progress_chooses_what_is_shown)
{
    (void)utest_fixture;
    static const struct {
        const char *mode;
        int         lines;
        bool        escapes;
    } t[] = { { "off", 0, false }, { "plain", 1, false }, { "line", 1, false }, { "live", 2, true }, { "auto", 1, false }, { "", 1, false } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        FILE *f = tmpfile();
        setenv("DT_PROGRESS", t[i].mode, 1);
        dt_progress *p = dt_progress_new(.file = f);
        dt_progress_step(p, 1);
        dt_progress_free(p);
        char *s = drain(f);
        EXPECT_EQ(t[i].lines, lines(s));
        EXPECT_EQ(t[i].escapes, strchr(s, '\033') != NULL);
        free(s);
        fclose(f);
    }
}

/* ==================================================================================================== the table */
#define HEAD "step,epoch,loss,lr,scale,items_per_second,seconds,result,value"
static int fields(const char *row, char out[9][128]) /* how many there are */
{
    int n = 0, k = 0, quoted = 0;
    memset(out, 0, 9 * 128);
    for (; *row && n < 9; row++) {
        if (*row == '"' && quoted && row[1] == '"') out[n][k++] = *row++;
        else if (*row == '"') quoted = !quoted;
        else if (*row == ',' && !quoted) n++, k = 0;
        else if (k < 127) out[n][k++] = *row;
    }
    return n + 1;
}

UTEST_F(progress, the_table_has_a_line_for_each_step_and_result)
{
    (void)utest_fixture;
    char         col[9][128];
    dt_progress *p = dt_progress_new(.quiet = true, .epochs = 2, .steps = 2, .csv = in_tmp("t.csv"));
    ASSERT_TRUE(p != NULL);
    dt_progress_step(p, 2.5, .items = 8, .lr = 0.1, .scale = 65536);
    char *s = slurp(in_tmp("t.csv")); /* each line is there at once */
    EXPECT_EQ(2, lines(s));
    free(s);
    dt_progress_step(p, NAN, .items = 8);
    dt_progress_result(p, "test accuracy", 0.123456789);
    dt_progress_result(p, "a, \"b\"\nc", -INFINITY);
    dt_progress_epoch(p);
    dt_progress_step(p, 1e-30);
    EXPECT_OK(dt_progress_free(p));
    s = slurp(in_tmp("t.csv"));
    ASSERT_TRUE(s != NULL);
    EXPECT_EQ(6, lines(s));
    EXPECT_STREQ(HEAD, line(s, 0));
    static const char *const want[5][9] = {
        { "1", "1", "2.5", "0.1", "65536", "+", "+", "", "" },
        { "2", "1", "nan", "", "", "+", "+", "", "" },
        { "2", "1", "", "", "", "", "+", "test accuracy", "0.123456789" },
        { "2", "1", "", "", "", "", "+", "a, \"b\" c", "-inf" },
        { "3", "2", "1e-30", "", "", "+", "+", "", "" },
    };
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(9, fields(line(s, i + 1), col));
        for (int k = 0; k < 9; k++) {
            const char *got = col[k][0] == '-' && !strcmp(col[k], "-nan") ? "nan" : col[k];
            if (want[i][k][0] == '+') EXPECT_TRUE(atof(got) >= 0 && *got);
            else EXPECT_STREQ(want[i][k], got);
        }
    }
    free(s);
}

UTEST_F(progress, a_resumed_training_goes_on_in_its_table)
{
    (void)utest_fixture;
    char         col[9][128];
    dt_progress *p = dt_progress_new(.quiet = true, .csv = in_tmp("t.csv"), .epochs = 2, .steps = 5);
    for (int i = 0; i < 5; i++) dt_progress_step(p, 10 + i);
    dt_progress_result(p, "accuracy, \"test\"", 0.5);
    dt_progress_epoch(p);
    for (int i = 5; i < 8; i++) dt_progress_step(p, 10 + i);
    dt_progress_free(p);
    FILE *f = fopen(in_tmp("t.csv"), "a");
    ASSERT_TRUE(f != NULL);
    fputs("9,2,1", f); /* killed in the middle of a line */
    fclose(f);

    /* the checkpoint was made at step 6: what came after it is done again */
    p = dt_progress_new(.quiet = true, .csv = in_tmp("t.csv"), .svg = in_tmp("t.svg"), .epochs = 2, .steps = 5,
                        .start_step = 6);
    ASSERT_TRUE(p != NULL);
    for (int i = 6; i < 10; i++) dt_progress_step(p, 100 + i);
    EXPECT_OK(dt_progress_free(p));
    char *s = slurp(in_tmp("t.csv"));
    EXPECT_EQ(1 + 5 + 1 + 1 + 4, lines(s));
    EXPECT_EQ(1, times(s, "step,"));
    static const char *const step[] = { "1", "2", "3", "4", "5", "5", "6", "7", "8", "9", "10" };
    double                   before = -1;
    for (int i = 0; i < 11; i++) {
        fields(line(s, i + 1), col);
        EXPECT_STREQ(step[i], col[0]);
        EXPECT_STREQ(i < 6 ? "1" : "2", col[1]);
        if (i != 5) EXPECT_EQ(i < 5 ? 10.0 + i : i < 7 ? 9.0 + i : 99.0 + i, atof(col[2]));
        EXPECT_TRUE(atof(col[6]) >= before); /* time goes on */
        before = atof(col[6]);
    }
    free(s);
    s = slurp(in_tmp("t.svg")); /* the curve has what the table had */
    EXPECT_EQ(3, times(s, "<polyline")); /* raw, smooth, the result: nothing is broken */
    EXPECT_EQ(1, times(s, "accuracy, &quot;test&quot;</text>") - 1); /* legend and axis */
    EXPECT_EQ(1, times(s, "stroke-dasharray"));
    free(s);

    put("s.csv", HEAD "\n1,1,1,,,,1000.5,,\n");
    p = dt_progress_new(.quiet = true, .csv = in_tmp("s.csv"), .start_step = 1);
    dt_progress_step(p, 1);
    EXPECT_OK(dt_progress_free(p));
    s = slurp(in_tmp("s.csv"));
    fields(line(s, 2), col);
    EXPECT_TRUE(atof(col[6]) >= 1000.5); /* of the runs before, too */
    free(s);

    p = dt_progress_new(.quiet = true, .csv = in_tmp("new.csv"), .start_step = 3); /* none to go on in */
    dt_progress_step(p, 1);
    EXPECT_OK(dt_progress_free(p));
    s = slurp(in_tmp("new.csv"));
    EXPECT_STREQ(HEAD, line(s, 0));
    EXPECT_EQ(0, strncmp("4,1,1,", line(s, 1), 6));
    free(s);
    p = dt_progress_new(.quiet = true, .csv = in_tmp("new.csv")); /* from the beginning: a new one */
    EXPECT_OK(dt_progress_free(p));
    s = slurp(in_tmp("new.csv"));
    EXPECT_STREQ(HEAD "\n", s);
    free(s);
}

UTEST_F(progress, without_known_steps_the_table_says_the_epoch)
{
    (void)utest_fixture;
    FILE        *f = tmpfile();
    dt_progress *p = dt_progress_new(.quiet = true, .csv = in_tmp("t.csv"));
    for (int e = 0; e < 3; e++) {
        for (int i = 0; i < 4; i++) dt_progress_step(p, 1);
        dt_progress_result(p, "accuracy", 0.5);
        dt_progress_epoch(p);
    }
    dt_progress_free(p);
    p = dt_progress_new(.file = f, .csv = in_tmp("t.csv"), .start_step = 8, .every = 1e-9); /* two epochs are done */
    dt_progress_step(p, 1);
    dt_progress_free(p);
    char *s = drain(f), *csv = slurp(in_tmp("t.csv"));
    EXPECT_EQ(0, strncmp("epoch 3  step 9  ", s, 17));
    EXPECT_EQ(1 + 10 + 1, lines(csv));
    EXPECT_EQ(0, strncmp("9,3,1,", line(csv, 11), 6));
    free(s);
    free(csv);
    fclose(f);
}

UTEST_F(progress, a_file_that_is_no_table_is_refused_and_left_alone)
{
    (void)utest_fixture;
    static const char *const other[] = { "my notes\n", "my notes", HEAD " \n", "1,1,1,,,,0,,\n", HEAD "\nhello\n",
                                         HEAD "\n1,1,1,,,,0,,\n2,1,1,,,,0,,",  HEAD "\n-1,1,1,,,,0,,\n",
                                         HEAD "\n1,9e99,1,,,,0,,\n", HEAD "\n1,1,1,,,,0,\"open,\n",
                                         HEAD "\n1,1,,,,,0,x,0.5 and more\n2,1,1,,,,0,,\n" };
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        put("t.csv", other[i]);
        if (i == 5) continue; /* that one is fine: half a line at the end */
        EXPECT_ERROR(dt_progress_new(.quiet = true, .csv = in_tmp("t.csv"), .start_step = 5), "is not a line of a table of dt; use another file");
        char *s = slurp(in_tmp("t.csv"));
        EXPECT_STREQ(other[i], s);
        free(s);
    }
    char longest[3000] = HEAD "\n";
    memset(longest + strlen(longest), '1', 2500);
    put("t.csv", longest);
    EXPECT_ERROR(dt_progress_new(.quiet = true, .csv = in_tmp("t.csv"), .start_step = 5), "line 2 of");
    put("t.csv", other[5]);
    dt_progress *p = dt_progress_new(.quiet = true, .csv = in_tmp("t.csv"), .start_step = 5);
    ASSERT_TRUE(p != NULL);
    dt_progress_free(p);
    char *s = slurp(in_tmp("t.csv"));
    EXPECT_STREQ(HEAD "\n1,1,1,,,,0,,\n", s);
    free(s);
}

UTEST_F(progress, a_path_that_cannot_be_opened_is_an_error_at_the_start)
{
    (void)utest_fixture;
    char longest[3000];
    memset(longest, 'x', sizeof longest);
    longest[2999] = 0;
    EXPECT_ERROR(dt_progress_new(.csv = in_tmp("none/t.csv")), "none/t.csv: No such file");
    EXPECT_ERROR(dt_progress_new(.svg = in_tmp("none/t.svg")), "none/t.svg: No such file");
    EXPECT_ERROR(dt_progress_new(.csv = longest), ".csv is too long");
    EXPECT_ERROR(dt_progress_new(.svg = longest), ".svg is too long");
    EXPECT_ERROR(dt_progress_new(.csv = tmp, .start_step = 1), "Is a directory");
    if (access("/dev/full", W_OK) == 0) EXPECT_ERROR(dt_progress_new(.csv = "/dev/full"), "No space left");
    char temp[64];
    snprintf(temp, sizeof temp, "t.svg.%ld.tmp", (long)getpid());
    for (int kind = 0; kind < TEMP_TRAPS; kind++) {
        if (temp_trap(tmp, "t.csv", kind)) {
            EXPECT_ERROR(dt_progress_new(.csv = in_tmp("t.csv")), "cannot open");
            EXPECT_ERROR(dt_progress_new(.csv = in_tmp("t.csv"), .start_step = 1), kind == 1 ? "cannot" : "cannot open");
            EXPECT_TRUE(temp_trap_end(tmp, "t.csv"));
        }
        if (temp_trap(tmp, temp, kind)) { /* the temporary file beside the picture */
            EXPECT_ERROR(dt_progress_new(.svg = in_tmp("t.svg")), "cannot write");
            EXPECT_TRUE(temp_trap_end(tmp, temp));
        }
    }
    EXPECT_EQ(0, tmp_files(0));
}

static int  warnings;
static void count_warnings(void *user, int level, const char *text)
{
    warnings += level == DT_LOG_WARN && strstr(text, (const char *)user) != NULL;
}
DT_TEST_RANK(full_disk)
{
    struct rlimit limit = { 5000, 5000 };
    dt_progress  *p = dt_progress_new(.quiet = true, .csv = in_tmp("t.csv"));
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    dt_set_log(count_warnings, (void *)"t.csv: File too large");
    for (int i = 0; i < 1000; i++) dt_progress_step(p, 1);
    EXPECT_EQ(1, warnings);        /* at once, and once */
    EXPECT_EQ(0, dt_check("step")); /* the training goes on */
    EXPECT_ERROR(dt_progress_free(p), "t.csv: File too large");
}
UTEST_F(progress, a_full_disk_does_not_cost_the_training)
{
    (void)utest_fixture;
    EXPECT_EQ(0, dt_test_ranks(1, 30, full_disk, NULL));
}
UTEST_F(progress, a_curve_that_cannot_be_written_does_not_either)
{
    (void)utest_fixture;
    ASSERT_EQ(0, mkdir(in_tmp("d"), 0777));
    dt_progress *p = dt_progress_new(.quiet = true, .svg = in_tmp("d/t.svg"));
    ASSERT_TRUE(p != NULL);
    dt_progress_step(p, 1);
    ASSERT_EQ(0, unlink(in_tmp("d/t.svg")));
    ASSERT_EQ(0, rmdir(in_tmp("d")));
    warnings = 0;
    dt_set_log(count_warnings, (void *)"d/t.svg: No such file");
    dt_progress_epoch(p);
    dt_progress_epoch(p);
    dt_set_log(NULL, NULL);
    EXPECT_EQ(1, warnings);
    EXPECT_EQ(0, dt_check("epoch"));
    EXPECT_ERROR(dt_progress_free(p), "d/t.svg: No such file");
}

/* ==================================================================================================== the curve */
static int utf8(const unsigned char *s)
{
    int      n = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf8 ? 4 : 0;
    unsigned c = n == 1 ? s[0] : n == 2 ? s[0] & 31u : n == 3 ? s[0] & 15u : s[0] & 7u;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 63u);
    }
    if (n == 1 && c < 0x20 && c != '\t' && c != '\n' && c != '\r') return 0;
    if (n == 2 && c < 0x80) return 0;
    if (n == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000) || c >= 0xfffe)) return 0;
    if (n == 4 && (c < 0x10000 || c > 0x10ffff)) return 0;
    return n;
}
static const char *xml_text(const char *s, const char *stop) /* up to one of stop; NULL: not allowed */
{
    static const char *const entity[] = { "&amp;", "&lt;", "&gt;", "&quot;" };
    while (*s && !strchr(stop, *s)) {
        int n = utf8((const unsigned char *)s);
        if (*s == '<' || n == 0) return NULL;
        if (*s == '&') {
            int k = 0;
            while (k < 4 && strncmp(s, entity[k], strlen(entity[k]))) k++;
            if (k == 4) return NULL;
            n = (int)strlen(entity[k]);
        }
        s += n;
    }
    return s;
}
/* Well-formed as far as this needs: one root, balanced tags, quoted attributes without duplicates, allowed text. 0, or
   where it is not, as a position + 1. */
static int bad_xml(const char *text)
{
    char        open[20][32], key[16][32];
    int         depth = 0, roots = 0;
    const char *s = text;
    while (s && *s) {
        const char *at = s;
        if (*s != '<') {
            s = xml_text(s, "<");
            if (depth == 0 && s && strspn(at, " \n") < (size_t)(s - at)) s = NULL;
        } else if (s[1] == '/') {
            size_t n = strcspn(s + 2, ">");
            if (!depth-- || n != strlen(open[depth]) || strncmp(open[depth], s + 2, n)) return (int)(at - text) + 1;
            s += n + 3;
        } else {
            size_t n = strcspn(++s, " />\n");
            int    keys = 0;
            if (!n || n > 31 || depth == 20 || (depth == 0 && roots++)) return (int)(at - text) + 1;
            snprintf(open[depth], 32, "%.*s", (int)n, s);
            for (s += n; s && (*s == ' ' || *s == '\n');) {
                s += strspn(s, " \n");
                if (*s == '/' || *s == '>') break;
                n = strcspn(s, "=");
                if (!n || n > 31 || keys == 16 || s[n + 1] != '"') return (int)(at - text) + 1;
                snprintf(key[keys], 32, "%.*s", (int)n, s);
                for (int i = 0; i < keys; i++)
                    if (!strcmp(key[i], key[keys])) return (int)(at - text) + 1;
                keys++;
                s = xml_text(s + n + 2, "\"");
                if (s) s++;
            }
            if (s && *s == '/') s++;
            else depth++;
            if (s && *s++ != '>') s = NULL;
        }
        if (!s) return (int)(at - text) + 1;
    }
    return depth || roots != 1 ? (int)strlen(text) + 1 : 0;
}
typedef struct curve {
    char  *s;
    int    bad, polylines, points, outside;
    double top, bottom; /* least and greatest y of all points */
} curve;
static curve read_svg(const char *path, double width, double height)
{
    curve c;
    memset(&c, 0, sizeof c);
    c.s = slurp(path);
    c.bad = c.s ? bad_xml(c.s) : 1;
    if (c.bad) printf("   not XML at %d: %.60s\n", c.bad, c.s ? c.s + c.bad - 1 : "(no file)");
    c.polylines = times(c.s, "<polyline");
    c.top = 1e9;
    c.bottom = -1e9;
    for (const char *p = c.s; p && (p = strstr(p, " points=\"")) != NULL;) {
        for (p += 9; *p && *p != '"';) {
            char  *end;
            double x = strtod(p, &end), y = *end == ',' ? strtod(end + 1, &end) : -1;
            c.outside += !(x >= 0 && x <= width && y >= 0 && y <= height);
            c.points++;
            if (y < c.top) c.top = y;
            if (y > c.bottom) c.bottom = y;
            p = end + strspn(end, " \n");
        }
    }
    static const char *const key[] = { " x1=\"", " x2=\"", " x=\"", " cx=\"", " y1=\"", " y2=\"", " y=\"", " cy=\"" };
    for (int k = 0; k < 8; k++) /* lines, texts and dots lie in the picture too */
        for (const char *p = c.s; p && (p = strstr(p, key[k])) != NULL; p++) {
            double v = strtod(p + strlen(key[k]), NULL);
            c.outside += !(v >= 0 && v <= (k < 4 ? width : height));
        }
    return c;
}

UTEST_F(progress, the_curve_is_well_formed_svg)
{
    (void)utest_fixture;
    dt_progress *p = dt_progress_new(.quiet = true, .svg = in_tmp("t.svg"), .epochs = 3, .steps = 100,
                                     .title = "<nets> & \"curves\" \xff\x01 \xc3\xa9");
    ASSERT_TRUE(p != NULL);
    curve c = read_svg(in_tmp("t.svg"), 800, 450); /* before the first step */
    EXPECT_EQ(0, c.bad);
    EXPECT_EQ(0, c.polylines);
    free(c.s);
    for (int e = 0; e < 3; e++) {
        for (int i = 0; i < 100; i++) dt_progress_step(p, 2.0 / (1 + e * 100 + i) + 0.5);
        dt_progress_result(p, "accuracy", 0.5 + 0.1 * e);
        dt_progress_result(p, "recall", 0.4 + 0.1 * e);
        dt_progress_epoch(p);
        c = read_svg(in_tmp("t.svg"), 800, 450); /* whole after each epoch, nothing lies beside it */
        EXPECT_EQ(0, c.bad);
        EXPECT_EQ(4, c.polylines); /* raw, smooth, and a line for each result */
        EXPECT_EQ((e + 1) * 200 + 2 * (e + 1), c.points);
        EXPECT_EQ(0, c.outside);
        EXPECT_EQ(1, tmp_files(0));
        EXPECT_EQ(e + 1, times(c.s, "stroke-dasharray"));
        free(c.s);
    }
    EXPECT_OK(dt_progress_free(p));
    c = read_svg(in_tmp("t.svg"), 800, 450);
    EXPECT_EQ(0, c.bad);
    EXPECT_EQ(1, times(c.s, "&lt;nets&gt; &amp; &quot;curves&quot; ?? \xc3\xa9</text>"));
    EXPECT_EQ(1, times(c.s, ">loss</text>") - 1); /* the axis and the legend */
    EXPECT_EQ(1, times(c.s, ">accuracy, recall</text>"));
    EXPECT_EQ(1, times(c.s, ">step</text>"));
    EXPECT_EQ(1, times(c.s, ">300</text>")); /* 50, 100 ... */
    EXPECT_EQ(1, times(c.s, ">0.5</text>")); /* 0, 0.5 ... 2.5: linear */
    EXPECT_EQ(6, times(c.s, "<circle"));     /* the results */
    free(c.s);
}

UTEST_F(progress, a_resumed_curve_has_each_step_once)
{
    (void)utest_fixture;
    put("t.csv", HEAD "\n1,1,5,,,,0,,\n2,1,5,,,,0,,\n3,1,99,,,,0,,\n4,1,5,,,,0,,\n");
    dt_progress *p = dt_progress_new(.quiet = true, .csv = in_tmp("t.csv"), .svg = in_tmp("t.svg"), .start_step = 2);
    for (int i = 0; i < 3; i++) dt_progress_step(p, 4);
    EXPECT_OK(dt_progress_free(p));
    curve c = read_svg(in_tmp("t.svg"), 800, 450);
    EXPECT_EQ(2 * 5, c.points);
    EXPECT_EQ(0, times(c.s, ">100</text>")); /* the 99 was behind the checkpoint */
    free(c.s);
}

UTEST_F(progress, losses_that_are_not_finite_break_the_line_only)
{
    (void)utest_fixture;
    dt_progress *p = dt_progress_new(.quiet = true, .svg = in_tmp("t.svg"));
    for (int i = 0; i < 9; i++) dt_progress_step(p, i == 3 ? NAN : i == 6 ? INFINITY : 1 + i);
    dt_progress_result(p, "accuracy", NAN);
    EXPECT_OK(dt_progress_free(p));
    curve c = read_svg(in_tmp("t.svg"), 800, 450);
    EXPECT_EQ(0, c.bad);
    EXPECT_EQ(2 * 3, c.polylines); /* 1 2 3, 5 6, 8 9: raw and smooth */
    EXPECT_EQ(2 * 7, c.points);
    EXPECT_EQ(0, c.outside);
    EXPECT_EQ(2 * 2 + 1, times(c.s, "\xc3\x97</text>")); /* marked */
    EXPECT_EQ(0, times(c.s, "nan") + times(c.s, "inf"));
    free(c.s);
    p = dt_progress_new(.quiet = true, .svg = in_tmp("t.svg"));
    for (int i = 0; i < 3000; i++) dt_progress_step(p, i % 2 ? NAN : -INFINITY); /* nothing else */
    EXPECT_OK(dt_progress_free(p));
    c = read_svg(in_tmp("t.svg"), 800, 450);
    EXPECT_EQ(0, c.bad);
    EXPECT_EQ(0, c.polylines);
    free(c.s);
}

UTEST_F(progress, a_long_training_stays_small_and_keeps_its_spikes)
{
    (void)utest_fixture;
    size_t bytes = dt_stats().host_bytes;
    int    n = dt_test_quick() ? 20000 : 100000;
    for (int at = 0; at < 4; at++) { /* the spike is in the first or the second of two stretches that become one */
        dt_progress *p = dt_progress_new(.quiet = true, .svg = in_tmp("t.svg"), .log_loss = DT_NO);
        for (int i = 0; i < n; i++) dt_progress_step(p, i == at ? 100 : i == 7 - at ? 0 : 50);
        EXPECT_LT(dt_stats().host_bytes, bytes + 100000);
        EXPECT_OK(dt_progress_free(p));
        EXPECT_EQ(bytes, dt_stats().host_bytes);
        curve c = read_svg(in_tmp("t.svg"), 800, 450);
        EXPECT_EQ(0, c.bad);
        EXPECT_EQ(2, c.polylines);
        EXPECT_GE(c.points, 500);
        EXPECT_LE(c.points, 1500); /* raw at most 1000, smooth 500 */
        EXPECT_EQ(0, c.outside);
        EXPECT_NEAR(398, c.bottom, 0.11); /* 0 lies on the axis */
        EXPECT_LT(c.top, 80);
        EXPECT_EQ(1, times(c.s, ">100</text>"));
        free(c.s);
    }
}

UTEST_F(progress, a_loss_over_decades_gets_a_logarithmic_axis)
{
    (void)utest_fixture;
    static const dt_switch how[] = { DT_DEFAULT, DT_NO, DT_YES };
    for (int i = 0; i < 6; i++) {
        dt_progress *p = dt_progress_new(.quiet = true, .svg = in_tmp("t.svg"), .log_loss = how[i % 3]);
        double decades = i < 3 ? 4 : 1.5;
        for (int k = 0; k <= 30; k++) dt_progress_step(p, pow(10, -decades * k / 30));
        EXPECT_OK(dt_progress_free(p));
        curve c = read_svg(in_tmp("t.svg"), 800, 450);
        int   is_log = i % 3 == 2 || i == 0;
        EXPECT_EQ(0, c.bad);
        EXPECT_EQ(!is_log, times(c.s, ">0.8</text>"));
        EXPECT_EQ(is_log && i < 3, times(c.s, ">0.001</text>"));
        EXPECT_EQ(is_log && i >= 3, times(c.s, ">0.5</text>")); /* 1, 2, 5 within a decade */
        free(c.s);
    }
}

/* ==================================================================================================== plots */
UTEST_F(progress, a_plot_of_any_series)
{
    (void)utest_fixture;
    double    x[5] = { 1, 100, 10000, 1e6, 1e8 }, y[5] = { 5, 4, 3, 2, 1 }, z[5] = { 0, 1e9, 2e9, 1e10, 2e10 };
    dt_series series[2];
    dt_plot   plot;
    memset(series, 0, sizeof series);
    memset(&plot, 0, sizeof plot);
    series[0].name = "left";
    series[0].x = x;
    series[0].y = y;
    series[1].name = "right";
    series[1].x = x;
    series[1].y = z;
    series[0].n = series[1].n = 5;
    series[1].right = series[1].dots = true;
    plot.series = series;
    plot.nseries = 2;
    plot.log_x = true;
    plot.width = 640;
    plot.height = 320;
    plot.right_label = "bytes/s";
    ASSERT_OK(dt_svg_plot(in_tmp("p.svg"), &plot));
    curve c = read_svg(in_tmp("p.svg"), 640, 320);
    EXPECT_EQ(0, c.bad);
    EXPECT_EQ(2, c.polylines);
    EXPECT_EQ(10, c.points);
    EXPECT_EQ(0, c.outside);
    EXPECT_EQ(1, times(c.s, "width=\"640\" height=\"320\""));
    EXPECT_EQ(1, times(c.s, ">100k</text>"));
    EXPECT_EQ(1, times(c.s, ">20G</text>"));
    EXPECT_EQ(1, times(c.s, ">bytes/s</text>"));
    EXPECT_EQ(2, times(c.s, ">left</text>") + times(c.s, ">right</text>"));
    EXPECT_TRUE(strstr(c.s, "points=\"66,") && strstr(c.s, " 570,")); /* x from edge to edge */
    free(c.s);

    series[0].x = NULL; /* 0, 1, 2 ...; 0 has no logarithm and is left out */
    plot.nseries = 1;
    ASSERT_OK(dt_svg_plot(in_tmp("p.svg"), &plot));
    c = read_svg(in_tmp("p.svg"), 640, 320);
    EXPECT_EQ(4, c.points);
    free(c.s);
    EXPECT_EQ(1, tmp_files(0));
}

UTEST_F(progress, many_points_are_drawn_by_their_extremes)
{
    (void)utest_fixture;
    static double y[100001];
    for (int i = 0; i < 100001; i++) y[i] = i % 2 ? 1 : -1;
    y[77777] = 3;
    dt_series s;
    dt_plot   plot;
    memset(&s, 0, sizeof s);
    memset(&plot, 0, sizeof plot);
    s.y = y;
    s.n = 100001;
    plot.series = &s;
    plot.nseries = 1;
    ASSERT_OK(dt_svg_plot(in_tmp("p.svg"), &plot));
    curve c = read_svg(in_tmp("p.svg"), 800, 450);
    EXPECT_EQ(1, c.polylines);
    EXPECT_GE(c.points, 900);
    EXPECT_LE(c.points, 1000);
    /* the range -1..3, with 4 % of room, lies on 398..62: 3 at 74.4, -1 at 385.6 */
    EXPECT_NEAR(74.4, c.top, 0.2);
    EXPECT_NEAR(385.6, c.bottom, 0.2);
    EXPECT_TRUE(times(c.s, ",385.6") > 400 && times(c.s, ",230") > 400); /* both sides of the band: -1 and 1 */
    free(c.s);
}

UTEST_F(progress, odd_series_give_a_picture_too)
{
    (void)utest_fixture;
    static double many[5000];
    double        same[3] = { 7, 7, 7 }, zero[2] = { 0, 0 }, negative[3] = { -3, -2, -1 }, none[2] = { NAN, INFINITY };
    double        tiny[3] = { 1e-12, 2e-12, 5e-324 }, wide[3] = { 1e308, -1e308, 1 }, close_by[2] = { 1e6, 1e6 + 1e-6 };
    const double *y[] = { same, zero, negative, none, tiny, wide, close_by, many, NULL };
    int64_t       n[] = { 3, 2, 3, 2, 3, 3, 2, 5000, 0 };
    for (int i = 0; i < 5000; i++) many[i] = i % 7 ? sin(i) : NAN;
    for (int i = 0; i < 9; i++)
        for (int how = 0; how < 8; how++) {
            dt_series s;
            dt_plot   plot;
            double    mark[3] = { NAN, 1, -1e300 };
            memset(&s, 0, sizeof s);
            memset(&plot, 0, sizeof plot);
            s.y = y[i];
            s.x = how & 4 ? y[i] : NULL;
            s.n = n[i];
            s.dots = true;
            s.color = how * 1000 - 1;
            plot.series = &s;
            plot.nseries = 1;
            plot.log_x = how & 1;
            plot.log_y = how & 2 ? DT_YES : DT_DEFAULT;
            plot.mark = mark;
            plot.nmarks = 3;
            ASSERT_OK(dt_svg_plot(in_tmp("p.svg"), &plot));
            curve c = read_svg(in_tmp("p.svg"), 800, 450);
            EXPECT_EQ(0, c.bad);
            EXPECT_EQ(0, c.outside);
            EXPECT_EQ(0, times(c.s, "nan") + times(c.s, "inf"));
            EXPECT_LE(c.points, 1100);
            free(c.s);
        }
}

UTEST_F(progress, a_locale_with_a_comma_changes_nothing)
{
    (void)utest_fixture;
    static const char *const locales[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "ps_AF.utf8" };
    int                      i = 0;
    FILE                    *f = tmpfile();
    char                     col[9][128];
    while (i < 5 && !setlocale(LC_NUMERIC, locales[i])) i++;
    if (i == 5) UTEST_SKIP("no locale with a decimal comma is installed");
    for (int k = 0; k < 2; k++) { /* and the table is read again */
        dt_progress *p = dt_progress_new(.file = f, .csv = in_tmp("t.csv"), .svg = in_tmp("t.svg"), .start_step = 2 * k,
                                         .every = 1e-9);
        for (int n = 0; n < 2; n++) dt_progress_step(p, 0.75, .items = 1, .lr = 0.125);
        EXPECT_OK(dt_progress_free(p));
    }
    setlocale(LC_NUMERIC, "C");
    char *s = slurp(in_tmp("t.csv")), *out = drain(f);
    EXPECT_EQ(5, lines(s));
    for (int k = 1; k <= 4; k++) {
        EXPECT_EQ(9, fields(line(s, k), col));
        EXPECT_STREQ("0.75", col[2]);
        EXPECT_STREQ("0.125", col[3]);
    }
    EXPECT_EQ(4, times(out, "loss 0.7500"));
    curve c = read_svg(in_tmp("t.svg"), 800, 450);
    EXPECT_EQ(0, c.bad);
    EXPECT_EQ(0, c.outside);
    EXPECT_EQ(2 * 4, c.points);
    free(c.s);
    free(s);
    free(out);
    fclose(f);
}

UTEST_F(progress, a_long_legend_takes_several_rows)
{
    (void)utest_fixture;
    double    v[2] = { 1, 2 };
    dt_series e[12];
    dt_plot   p;
    memset((void *)e, 0, sizeof e);
    memset((void *)&p, 0, sizeof p);
    for (int k = 0; k < 12; k++) e[k].name = k == 11 ? "the last one" : "a name of some length", e[k].y = v, e[k].n = 2;
    p.series = e;
    p.nseries = 12;
    EXPECT_OK(dt_svg_plot(in_tmp("legend.svg"), &p));
    char *s = slurp(in_tmp("legend.svg")), *at = strstr(s, ">the last one");
    ASSERT_TRUE(at != NULL);
    while (*at != '\n') at--;
    double x = 0, y = 0;
    EXPECT_EQ(2, sscanf(at, "\n<text x=\"%lf\" y=\"%lf\"", &x, &y));
    EXPECT_TRUE(x > 60 && x + 80 < 800); /* inside of the picture */
    EXPECT_TRUE(y > 48 + 17);
    EXPECT_EQ(11, times(s, ">a name of some length</text>"));
    free(s);
}

UTEST_F(progress, a_wrong_plot_is_an_error)
{
    (void)utest_fixture;
    dt_series s;
    dt_plot   plot;
    memset(&s, 0, sizeof s);
    memset(&plot, 0, sizeof plot);
    EXPECT_ERROR(dt_svg_plot(NULL, &plot), "path");
    EXPECT_ERROR(dt_svg_plot(in_tmp("p.svg"), NULL), "NULL");
    EXPECT_ERROR(dt_svg_plot(in_tmp("none/p.svg"), &plot), "none/p.svg: No such file");
    plot.nseries = 1;
    EXPECT_ERROR(dt_svg_plot(in_tmp("p.svg"), &plot), "series are NULL");
    plot.series = &s;
    s.n = 3;
    EXPECT_ERROR(dt_svg_plot(in_tmp("p.svg"), &plot), "no y");
    s.n = -1;
    EXPECT_ERROR(dt_svg_plot(in_tmp("p.svg"), &plot), "no y");
    s.n = 0;
    plot.width = -5;
    EXPECT_ERROR(dt_svg_plot(in_tmp("p.svg"), &plot), "size");
    plot.width = 0;
    plot.nmarks = 2;
    EXPECT_ERROR(dt_svg_plot(in_tmp("p.svg"), &plot), "marks");
    plot.nmarks = 0;
    ASSERT_EQ(0, tmp_files(0));
    ASSERT_EQ(0, mkdir(in_tmp("p.svg"), 0777)); /* a directory cannot be renamed over */
    EXPECT_ERROR(dt_svg_plot(in_tmp("p.svg"), &plot), "cannot write");
    EXPECT_EQ(1, tmp_files(0));
    rmdir(in_tmp("p.svg"));
}

UTEST_MAIN()
