/* The trace: its file is read back by a strict JSON reader, and the timeline in it must make sense. */
#include "dt_test.h"
#include "temp_files.h"

#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- files */
static char tmp[64];
static void tmp_make(void)
{
    strcpy(tmp, "/tmp/dt_trace.XXXXXX");
    if (!mkdtemp(tmp)) tmp[0] = 0;
}
static void tmp_remove(void)
{
    DIR *d = opendir(tmp);
    char path[512];
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", tmp, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(tmp);
}
static const char *in_tmp(const char *name)
{
    static char path[4][512];
    static int  turn;
    snprintf(path[turn = (turn + 1) % 4], sizeof path[0], "%s/%s", tmp, name);
    return path[turn];
}
static char *slurp(const char *path) /* free() it; NULL: not there */
{
    FILE  *f = fopen(path, "rb");
    size_t cap = 1 << 16, n = 0;
    char  *s = f ? (char *)malloc(cap) : NULL;
    while (s) {
        n += fread(s + n, 1, cap - n - 8, f);
        if (n < cap - 8) break;
        s = (char *)realloc(s, cap *= 2);
    }
    if (f) fclose(f);
    if (s) memset(s + n, 0, 8);
    return s;
}

/* ---- a strict reader of an array of flat events: {"key": value, "args": {"key": value}} */
typedef struct event {
    char   ph[4], name[256], out[64], in[64], label[256]; /* label: args.name */
    double ts, dur, pid, tid, n, value, bytes;
} event;
typedef struct reader {
    const char *at;
    event      *e;
    int         n, cap, bad;
} reader;

static void blank(reader *r)
{
    while (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r') r->at++;
}
static void expect(reader *r, char c)
{
    blank(r);
    if (*r->at == c) r->at++;
    else r->bad = 1;
}
static int hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        if (!strchr("0123456789abcdefABCDEF", s[i]) || !s[i]) return -1;
        v = 16 * v + (s[i] <= '9' ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    return v;
}
/* Bytes of one UTF-8 character, decoded and encoded anew: overlong and surrogate forms do not come back the same. */
static int utf8(const unsigned char *s)
{
    int      n = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf8 ? 4 : 0;
    unsigned c = n == 1 ? s[0] : n == 2 ? s[0] & 31u : n == 3 ? s[0] & 15u : s[0] & 7u;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 63u);
    }
    if (n == 2 && c < 0x80) return 0;
    if (n == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) return 0;
    if (n == 4 && (c < 0x10000 || c > 0x10ffff)) return 0;
    return n;
}
static void string(reader *r, char *to, size_t nbytes)
{
    size_t k = 0;
    expect(r, '"');
    while (!r->bad && *r->at != '"') {
        const unsigned char *s = (const unsigned char *)r->at;
        int                  n = utf8(s), c = 0;
        if (*s < 0x20 || n == 0) {
            r->bad = 1;
        } else if (*s == '\\') {
            const char *p = strchr("\"\"\\\\//b\bf\fn\nr\rt\t", r->at[1]);
            if (r->at[1] == 'u') {
                if ((c = hex4(r->at + 2)) < 0 || c >= 0x80) r->bad = 1; /* dt escapes only control characters so */
                r->at += 6;
            } else if (!r->at[1] || !p) {
                r->bad = 1;
            } else {
                c = p[1];
                r->at += 2;
            }
            if (k + 1 < nbytes) to[k++] = (char)c;
        } else {
            for (int i = 0; i < n; i++)
                if (k + 1 < nbytes) to[k++] = r->at[i];
            r->at += n;
        }
    }
    to[k] = 0;
    expect(r, '"');
}
static double number(reader *r)
{
    const char *s = r->at;
    if (*s == '-') s++;
    if (*s == '0') s++;
    else if (*s >= '1' && *s <= '9') while (*s >= '0' && *s <= '9') s++;
    else r->bad = 1;
    if (*s == '.') {
        if (s[1] < '0' || s[1] > '9') r->bad = 1;
        for (s++; *s >= '0' && *s <= '9';) s++;
    }
    if (*s == 'e' || *s == 'E') {
        s += s[1] == '+' || s[1] == '-' ? 2 : 1;
        if (*s < '0' || *s > '9') r->bad = 1;
        while (*s >= '0' && *s <= '9') s++;
    }
    double v = strtod(r->at, NULL);
    r->at = s;
    return v;
}
static void members(reader *r, event *e, int in_args)
{
    char key[64], text[256];
    expect(r, '{');
    blank(r);
    for (int first = 1; !r->bad && *r->at != '}'; first = 0) {
        if (!first) expect(r, ',');
        blank(r);
        string(r, key, sizeof key);
        expect(r, ':');
        blank(r);
        if (*r->at == '{') {
            if (in_args || strcmp(key, "args")) r->bad = 1;
            else members(r, e, 1);
        } else if (*r->at == '"') {
            string(r, text, sizeof text);
            if (!in_args && !strcmp(key, "ph")) snprintf(e->ph, sizeof e->ph, "%.3s", text);
            if (!in_args && !strcmp(key, "name")) strcpy(e->name, text);
            if (in_args && !strcmp(key, "name")) strcpy(e->label, text);
            if (in_args && !strcmp(key, "out")) snprintf(e->out, sizeof e->out, "%.63s", text);
            if (in_args && !strcmp(key, "in")) snprintf(e->in, sizeof e->in, "%.63s", text);
        } else {
            double v = number(r);
            if (!strcmp(key, "ts")) e->ts = v;
            if (!strcmp(key, "dur")) e->dur = v;
            if (!strcmp(key, "pid")) e->pid = v;
            if (!strcmp(key, "tid")) e->tid = v;
            if (!strcmp(key, "n")) e->n = v;
            if (!strcmp(key, "value")) e->value = v;
            if (!strcmp(key, "bytes")) e->bytes = v;
        }
        blank(r);
    }
    expect(r, '}');
}
static int parse(reader *r, const char *text) /* 0, or where it went wrong, as a position + 1 */
{
    memset(r, 0, sizeof *r);
    r->at = text ? text : "";
    expect(r, '[');
    blank(r);
    while (!r->bad && *r->at != ']') {
        if (r->n) expect(r, ',');
        if (r->n == r->cap) r->e = (event *)realloc(r->e, (size_t)(r->cap = 2 * r->cap + 64) * sizeof *r->e);
        memset(&r->e[r->n], 0, sizeof *r->e);
        members(r, &r->e[r->n], 0);
        r->n++;
        blank(r);
    }
    expect(r, ']');
    blank(r);
    if (*r->at) r->bad = 1;
    return r->bad ? (int)(r->at - (text ? text : r->at)) + 1 : 0;
}
static int read_trace(reader *r, const char *path)
{
    char *s = slurp(path);
    int   at = parse(r, s);
    if (at) printf("   bad JSON in %s at %d: %.60s\n", path, at, s ? s + at - 1 : "(no file)");
    free(s);
    return at;
}

/* ---- asking the events */
static double track(const reader *r, const char *label) /* the tid of a track, or -1 */
{
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->e[i].ph, "M") && !strcmp(r->e[i].name, "thread_name") && !strcmp(r->e[i].label, label))
            return r->e[i].tid;
    return -1;
}
static const event *find(const reader *r, double tid, const char *name, int nth)
{
    for (int i = 0; i < r->n; i++)
        if (r->e[i].ph[0] == 'X' && r->e[i].tid == tid && !strcmp(r->e[i].name, name) && nth-- == 0) return &r->e[i];
    return NULL;
}
static int count(const reader *r, double tid, const char *name) /* name NULL: any */
{
    int n = 0;
    for (int i = 0; i < r->n; i++)
        n += r->e[i].ph[0] == 'X' && r->e[i].tid == tid && (!name || !strcmp(r->e[i].name, name));
    return n;
}
/* times are exact to a nanosecond: compared as integers of it */
static int64_t begins(const event *e) { return (int64_t)floor(e->ts * 1000 + 0.5); }
static int64_t ends(const event *e) { return begins(e) + (int64_t)floor(e->dur * 1000 + 0.5); }
static int     inside(const event *a, const event *b) { return a && b && begins(a) >= begins(b) && ends(a) <= ends(b); }

static int by_tid_and_time(const void *x, const void *y)
{
    const event *a = (const event *)x, *b = (const event *)y;
    if (a->tid != b->tid) return a->tid < b->tid ? -1 : 1;
    return begins(a) < begins(b) ? -1 : begins(a) > begins(b);
}
/* How many spans of a track cut another one, or begin with it. Sorts the events. */
static int misnested(reader *r)
{
    int     bad = 0, depth = 0;
    int64_t end[100];
    qsort(r->e, (size_t)r->n, sizeof *r->e, by_tid_and_time);
    for (int i = 0, before = -1; i < r->n; i++) {
        const event *e = &r->e[i];
        if (e->ph[0] != 'X') continue;
        if (before < 0 || r->e[before].tid != e->tid) depth = 0;
        else if (begins(&r->e[before]) == begins(e)) bad++;
        while (depth > 0 && end[depth - 1] <= begins(e)) depth--;
        if (depth > 0 && ends(e) > end[depth - 1]) bad++;
        if (depth < 100) end[depth++] = ends(e);
        before = i;
    }
    return bad;
}

/* ---- work to trace */
static dt_tensor *w, *v;
static void       make_params(void)
{
    dt_set_num_threads(1); /* no pool: ThreadSanitizer lets the child of a process with threads make none */
    dt_manual_seed(1);
    w = dt_set_requires_grad(dt_normal(0, 0.3, DT_SHAPE(4, 1, 3, 3)));
    v = dt_set_requires_grad(dt_normal(0, 0.3, DT_SHAPE(2, 64)));
    dt_end();
}
static void free_params(void)
{
    dt_free(w);
    dt_free(v);
    dt_set_num_threads(0);
}
static void step(void)
{
    dt_tensor *x = dt_ones(DT_SHAPE(3, 1, 8, 8));
    dt_trace_push("net");
    dt_trace_push("conv");
    x = dt_relu(dt_op_conv2d(x, w, NULL, .pad = 1));
    dt_trace_pop();
    dt_trace_push("fc");
    x = dt_op_linear(dt_flatten(dt_maxpool2d(x, .kernel = 2)), v, NULL);
    dt_trace_pop();
    dt_trace_pop();
    dt_backward(dt_mean(dt_mul(x, x)));
    dt_add_to(w, dt_grad(w), -0.01);
    dt_zero_grad(w);
    dt_zero_grad(v);
    dt_end();
}

struct trace { int unused; };
UTEST_F_SETUP(trace)
{
    (void)utest_fixture;
    tmp_make();
    ASSERT_TRUE(tmp[0] != 0);
    make_params();
}
UTEST_F_TEARDOWN(trace)
{
    (void)utest_fixture, (void)utest_result;
    free_params();
    tmp_remove();
}

UTEST_F(trace, a_step_holds_its_phases_and_those_their_ops)
{
    (void)utest_fixture;
    reader r;
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    for (int i = 0; i < 3; i++) step();
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    EXPECT_EQ(0, misnested(&r));
    double ops = track(&r, "ops"), layers = track(&r, "layers"), steps = track(&r, "steps");
    EXPECT_TRUE(ops > 0 && layers > 0 && steps > 0 && ops != layers && layers != steps && ops != steps);
    EXPECT_EQ(3, count(&r, steps, "step"));
    for (int i = 0; i < 3; i++) {
        const event *s = find(&r, steps, "step", i), *f = find(&r, steps, "forward", i);
        const event *b = find(&r, steps, "backward", i), *u = find(&r, steps, "update", i);
        ASSERT_TRUE(s && f && b && u);
        EXPECT_EQ((double)i, s->n);
        EXPECT_TRUE(inside(f, s) && inside(b, s) && inside(u, s));
        EXPECT_TRUE(ends(f) <= begins(b) && ends(b) <= begins(u));
        EXPECT_TRUE(inside(find(&r, ops, "conv2d", i), f));
        EXPECT_TRUE(inside(find(&r, ops, "unary relu", i), f));
        EXPECT_TRUE(inside(find(&r, ops, "conv2d_bwd_weight", i), b));
        EXPECT_TRUE(inside(find(&r, ops, "conv2d_bwd_weight", i), find(&r, ops, "conv2d bwd", i)));
        EXPECT_TRUE(inside(find(&r, ops, "conv2d bwd", i), b));
        EXPECT_TRUE(inside(find(&r, layers, "net", i), f));
        EXPECT_TRUE(inside(find(&r, layers, "conv", i), find(&r, layers, "net", i)));
        EXPECT_TRUE(inside(find(&r, ops, "conv2d", i), find(&r, layers, "conv", i)));
        EXPECT_TRUE(inside(find(&r, ops, "pool2d", i), find(&r, layers, "fc", i)));
        EXPECT_EQ(1, ends(find(&r, layers, "conv", i)) <= begins(find(&r, layers, "fc", i)));
    }
    int outside = 0;
    for (int i = 0; i < r.n; i++) {
        int in = r.e[i].ph[0] != 'X';
        for (int k = 0; k < 3; k++) in |= inside(&r.e[i], find(&r, steps, "step", k));
        outside += !in;
        EXPECT_EQ((double)getpid(), r.e[i].pid);
    }
    EXPECT_EQ(0, outside);
    free(r.e);
}

UTEST_F(trace, ops_tell_their_shapes)
{
    (void)utest_fixture;
    reader r;
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    step();
    dt_sum(dt_cast(dt_expand(dt_ones(DT_SHAPE(1)), DT_SHAPE(100)), DT_F16));
    dt_end();
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    double       ops = track(&r, "ops");
    const event *e = find(&r, ops, "conv2d", 0);
    ASSERT_TRUE(e != NULL);
    EXPECT_STREQ("3x4x8x8 f32", e->out);
    EXPECT_STREQ("3x1x8x8 f32", e->in);
    EXPECT_EQ(4.0 * (3 * 4 * 64 + 3 * 64 + 4 * 9), e->bytes);
    e = find(&r, ops, "copy", count(&r, ops, "copy") - 1);
    ASSERT_TRUE(e != NULL);
    EXPECT_STREQ("100 f16", e->out);
    EXPECT_EQ(2.0 * 100 + 4, e->bytes); /* the broadcast element counts once */
    e = find(&r, ops, "reduce sum", 0);
    ASSERT_TRUE(e != NULL);
    EXPECT_STREQ("100 f16", e->in);
    EXPECT_EQ(1, count(&r, track(&r, "steps"), "step without backward"));
    free(r.e);
}

UTEST_F(trace, many_events_are_all_there_in_order)
{
    (void)utest_fixture;
    enum { N = 5000 }; /* ten chunks */
    reader r;
    char   name[32];
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "span %d", i);
        dt_trace_push(name);
        dt_trace_pop();
    }
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    int    k = 0, wrong = 0;
    double layers = track(&r, "layers");
    for (int i = 0; i < r.n; i++)
        if (r.e[i].ph[0] == 'X' && r.e[i].tid == layers) {
            snprintf(name, sizeof name, "span %d", k++);
            wrong += strcmp(name, r.e[i].name) != 0;
        }
    EXPECT_EQ(N, k);
    EXPECT_EQ(0, wrong);
    EXPECT_EQ(0, misnested(&r));
    free(r.e);
}

static void *traced_thread(void *arg)
{
    char name[32];
    dt_manual_seed(2);
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "%c%d", *(char *)arg, i);
        dt_trace_push(name);
        dt_mean(dt_exp(dt_ones(DT_SHAPE(4))));
        dt_trace_pop();
        if (i % 10 == 9) dt_end();
    }
    return NULL;
}
UTEST_F(trace, each_thread_has_tracks_of_its_own)
{
    (void)utest_fixture;
    reader    r;
    pthread_t t[3];
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    traced_thread((void *)"m");
    for (int i = 0; i < 3; i++) ASSERT_EQ(0, pthread_create(&t[i], NULL, traced_thread, (void *)&"abc"[i]));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    EXPECT_EQ(0, misnested(&r));
    static const char *const label[] = { "", "thread 2 ", "thread 3 ", "thread 4 " };
    int                      seen[256] = { 0 };
    for (int i = 0; i < 4; i++) {
        char steps[32], layers[32], ops[32];
        snprintf(steps, sizeof steps, "%ssteps", label[i]);
        snprintf(layers, sizeof layers, "%slayers", label[i]);
        snprintf(ops, sizeof ops, "%sops", label[i]);
        EXPECT_EQ(40, count(&r, track(&r, steps), "step without backward"));
        EXPECT_EQ(400, count(&r, track(&r, layers), NULL));
        EXPECT_EQ(400, count(&r, track(&r, ops), "unary exp"));
        for (int k = 0; k < r.n; k++) /* no thread's span is on another's track */
            if (r.e[k].ph[0] == 'X' && r.e[k].tid == track(&r, layers)) seen[(unsigned char)r.e[k].name[0]] |= 1 << i;
    }
    EXPECT_EQ(1, seen['m']);
    EXPECT_EQ(2 + 4 + 8, (seen['a'] | seen['b'] | seen['c']));
    EXPECT_EQ(2 + 4 + 8, seen['a'] + seen['b'] + seen['c']);
    free(r.e);
}

static int   go_on;
static void *busy_thread(void *arg)
{
    (void)arg;
    while (__atomic_load_n(&go_on, __ATOMIC_RELAXED)) {
        dt_trace_push("busy");
        dt_trace_counter("busy", 1);
        dt_exp(dt_ones(DT_SHAPE(4)));
        dt_trace_pop();
        dt_end();
    }
    return NULL;
}
UTEST_F(trace, it_stops_while_threads_go_on)
{
    (void)utest_fixture;
    reader    r;
    pthread_t t[2];
    int       rounds = dt_test_quick() ? 10 : 40;
    __atomic_store_n(&go_on, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) ASSERT_EQ(0, pthread_create(&t[i], NULL, busy_thread, NULL));
    for (int i = 0; i < rounds; i++) {
        ASSERT_OK(dt_trace_start(in_tmp("t.json")));
        for (int k = 0; k < 3; k++) step();
        ASSERT_OK(dt_trace_stop());
        ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
        EXPECT_EQ(0, misnested(&r));
        EXPECT_EQ(1, track(&r, "steps") > 0);
        free(r.e);
    }
    __atomic_store_n(&go_on, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
}

UTEST_F(trace, it_can_be_started_again)
{
    (void)utest_fixture;
    reader r;
    EXPECT_OK(dt_trace_stop()); /* none runs */
    EXPECT_FALSE(dt_trace_is_on());
    dt_trace_push("before");
    ASSERT_OK(dt_trace_start(in_tmp("a.json")));
    EXPECT_TRUE(dt_trace_is_on());
    EXPECT_ERROR(dt_trace_start(in_tmp("b.json")), "a.json is running");
    dt_trace_pop(); /* its push was before the trace */
    dt_trace_push("first");
    dt_trace_pop();
    dt_trace_push("open at the end");
    dt_ones(DT_SHAPE(2));
    ASSERT_OK(dt_trace_stop());
    EXPECT_FALSE(dt_trace_is_on());
    dt_trace_push("between");
    dt_trace_pop();
    ASSERT_OK(dt_trace_start(in_tmp("b.json")));
    dt_trace_pop(); /* of the first trace */
    dt_trace_push("second");
    dt_trace_pop();
    dt_end();
    ASSERT_OK(dt_trace_stop());

    ASSERT_EQ(0, read_trace(&r, in_tmp("a.json")));
    EXPECT_EQ(2, count(&r, track(&r, "layers"), NULL));
    EXPECT_TRUE(find(&r, track(&r, "layers"), "first", 0) && find(&r, track(&r, "layers"), "open at the end", 0));
    EXPECT_EQ(1, count(&r, track(&r, "ops"), "fill"));
    const event *s = find(&r, track(&r, "steps"), "step without backward", 0);
    EXPECT_TRUE(inside(find(&r, track(&r, "ops"), "fill", 0), s));
    free(r.e);
    ASSERT_EQ(0, read_trace(&r, in_tmp("b.json")));
    EXPECT_EQ(1, count(&r, track(&r, "layers"), NULL));
    EXPECT_TRUE(find(&r, track(&r, "layers"), "second", 0) != NULL);
    free(r.e);
}

static void *restart(void *arg)
{
    (void)arg;
    return dt_trace_stop() == DT_OK && dt_trace_start(in_tmp("b.json")) == DT_OK ? (void *)"ok" : NULL;
}
UTEST_F(trace, what_was_open_when_another_thread_stopped_it_is_forgotten)
{
    (void)utest_fixture;
    reader    r;
    pthread_t t;
    void     *ok = NULL;
    ASSERT_OK(dt_trace_start(in_tmp("a.json")));
    dt_trace_push("open");
    ASSERT_EQ(0, pthread_create(&t, NULL, restart, NULL));
    pthread_join(t, &ok);
    ASSERT_TRUE(ok != NULL);
    dt_trace_push("new");
    dt_trace_pop();
    dt_trace_pop(); /* of the one before */
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("a.json")));
    EXPECT_EQ(0, count(&r, track(&r, "layers"), NULL));
    free(r.e);
    ASSERT_EQ(0, read_trace(&r, in_tmp("b.json")));
    EXPECT_EQ(1, count(&r, track(&r, "layers"), NULL));
    free(r.e);
}

UTEST_F(trace, any_name_gives_valid_json)
{
    (void)utest_fixture;
    static const char *const name[] = { "quote \" backslash \\ slash /", "tab\tline\nbell\a\x1b\x1f\x7f",
                                        "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "",
                                        "bad \xff \xc3( \xe2\x82 \xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80",
                                        "cut \xe2\x82" };
    const char *const want[] = { name[0], name[1], name[2], name[3], "bad ? ?( ?? ??? ?? ????", "cut ??" };
    reader r;
    char   longest[200], accents[200];
    memset(longest, 'x', sizeof longest);
    longest[199] = 0;
    for (int i = 0; i < 198; i += 2) memcpy(accents + i, "\xc3\xa9", 2); /* 63 bytes end inside a character */
    accents[198] = 0;
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    for (int i = 0; i < 6; i++) {
        dt_trace_push(name[i]);
        dt_trace_pop();
        dt_trace_span(name[i], name[i], 1000, 2000);
        dt_trace_counter(name[i], i);
    }
    dt_trace_push(longest);
    dt_trace_pop();
    dt_trace_push(accents);
    dt_trace_pop();
    dt_trace_push(NULL);
    dt_trace_pop();
    dt_trace_span("accents", accents, 3000, 4000);
    dt_trace_span(NULL, NULL, 5, 4);
    dt_trace_counter(NULL, 1);
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    longest[63] = accents[62] = 0;
    for (int i = 0; i < 6; i++) {
        EXPECT_TRUE(find(&r, track(&r, "layers"), want[i], 0) != NULL);
        EXPECT_TRUE(find(&r, track(&r, want[i]), want[i], 0) != NULL);
    }
    EXPECT_TRUE(find(&r, track(&r, "layers"), longest, 0) != NULL);
    EXPECT_TRUE(find(&r, track(&r, "layers"), accents, 0) != NULL);
    EXPECT_TRUE(find(&r, track(&r, "accents"), accents, 0) != NULL);
    free(r.e);
}

UTEST_F(trace, spans_on_named_tracks_and_counters)
{
    (void)utest_fixture;
    reader   r;
    uint64_t a = dt_trace_now(), b = a + 1500;
    char     name[32];
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    dt_trace_span("ring", "allreduce", a, b);
    dt_trace_span("ring", "reduce \"it\"", b, b + 7);
    dt_trace_counter("loss", 0.125);
    dt_trace_counter("loss", -3e300);
    dt_trace_counter("loss", NAN);
    dt_trace_counter("loss", INFINITY);
    for (int i = 0; i < 80; i++) { /* more than there can be: the last ones share one */
        snprintf(name, sizeof name, "lane %d", i);
        dt_trace_span(name, name, a + (uint64_t)i, a + (uint64_t)i + 1);
    }
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    const event *e = find(&r, track(&r, "ring"), "allreduce", 0);
    ASSERT_TRUE(e != NULL);
    EXPECT_EQ((int64_t)a, begins(e));
    EXPECT_EQ((int64_t)b, ends(e));
    EXPECT_TRUE(find(&r, track(&r, "ring"), "reduce \"it\"", 0) != NULL);
    EXPECT_TRUE(find(&r, track(&r, "lane 40"), "lane 40", 0) != NULL);
    EXPECT_TRUE(track(&r, "lane 79") < 0);
    EXPECT_TRUE(find(&r, track(&r, "other tracks"), "lane 79", 0) != NULL);
    double value[2] = { 0, 0 };
    int    n = 0, marks = 0;
    for (int i = 0; i < r.n; i++) {
        if (r.e[i].ph[0] == 'C' && !strcmp(r.e[i].name, "loss") && n < 2) value[n++] = r.e[i].value;
        marks += r.e[i].ph[0] == 'i' && (!strcmp(r.e[i].name, "loss is nan") || !strcmp(r.e[i].name, "loss is inf"));
    }
    EXPECT_EQ(2, n);
    EXPECT_EQ(0.125, value[0]);
    EXPECT_EQ(-3e300, value[1]);
    EXPECT_EQ(2, marks);
    free(r.e);

    ASSERT_OK(dt_trace_start(in_tmp("u.json"))); /* tracks keep their names in the next trace */
    dt_trace_span("ring", "again", a, b);
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("u.json")));
    EXPECT_TRUE(find(&r, track(&r, "ring"), "again", 0) != NULL);
    free(r.e);
}

UTEST_F(trace, a_locale_with_a_comma_changes_nothing)
{
    (void)utest_fixture;
    static const char *const locales[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "ps_AF.utf8" };
    int                      i = 0;
    reader                   r;
    while (i < 5 && !setlocale(LC_NUMERIC, locales[i])) i++;
    if (i == 5) UTEST_SKIP("no locale with a decimal comma is installed");
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    dt_trace_counter("loss", 0.5);
    dt_trace_stop();
    setlocale(LC_NUMERIC, "C");
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    EXPECT_EQ(0.5, r.e[r.n - 1].value);
    free(r.e);
}

UTEST_F(trace, unbalanced_and_deep_spans_do_no_harm)
{
    (void)utest_fixture;
    reader r;
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    dt_trace_pop();
    dt_trace_pop();
    dt_trace_push("before");
    dt_trace_pop();
    for (int i = 0; i < 100; i++) dt_trace_push("deep");
    for (int i = 0; i < 120; i++) dt_trace_pop();
    dt_trace_push("after");
    dt_trace_pop();
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    EXPECT_EQ(64, count(&r, track(&r, "layers"), "deep"));
    EXPECT_EQ(1, count(&r, track(&r, "layers"), "before"));
    EXPECT_EQ(1, count(&r, track(&r, "layers"), "after"));
    EXPECT_EQ(0, misnested(&r));
    free(r.e);
}

UTEST_F(trace, a_path_that_cannot_be_written_is_an_error)
{
    (void)utest_fixture;
    char longest[3000];
    memset(longest, 'x', sizeof longest);
    longest[2999] = 0;
    EXPECT_ERROR(dt_trace_start(in_tmp("none/t.json")), "none/t.json: No such file");
    EXPECT_ERROR(dt_trace_start(tmp), "Is a directory");
    EXPECT_ERROR(dt_trace_start(NULL), "path");
    EXPECT_ERROR(dt_trace_start(""), "path");
    EXPECT_ERROR(dt_trace_start(longest), "too long");
    if (access("/dev/full", W_OK) == 0) EXPECT_ERROR(dt_trace_start("/dev/full"), "No space left");
    static const char *const says[TEMP_TRAPS] = { "symbolic link", "symbolic link", "pipe", "hard link", "another user" };
    for (int kind = 0; kind < TEMP_TRAPS; kind++) {
        if (!temp_trap(tmp, "t.json", kind)) continue;
        EXPECT_ERROR(dt_trace_start(in_tmp("t.json")), says[kind]);
        EXPECT_TRUE(temp_trap_end(tmp, "t.json"));
    }
    EXPECT_FALSE(dt_trace_is_on());
    step();
    dt_fail(DT_ERR_ARG, "an earlier one");
    EXPECT_EQ(DT_ERR_ARG, dt_trace_start(in_tmp("t.json")));
    dt_error_clear();
    EXPECT_FALSE(dt_trace_is_on());
    EXPECT_EQ(0, dt_check("test"));
}

DT_TEST_RANK(full_disk)
{
    struct rlimit limit = { 150000, 150000 };
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_OK(dt_trace_start(in_tmp("t.json")));
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 500; i++) step(); /* ten times what fits */
    EXPECT_EQ(0, dt_check("step"));       /* training goes on */
    EXPECT_FALSE(dt_trace_is_on());
    EXPECT_ERROR(dt_trace_stop(), "t.json: File too large");
}
UTEST_F(trace, a_full_disk_ends_the_trace_not_the_training)
{
    (void)utest_fixture;
    reader r;
    ASSERT_EQ(0, dt_test_ranks(1, 30, full_disk, NULL));
    char *s = slurp(in_tmp("t.json"));
    ASSERT_TRUE(s != NULL);
    ASSERT_TRUE(strlen(s) > 60000 && strlen(s) <= 150000);
    strcat(s, "]"); /* whole events */
    EXPECT_EQ(0, parse(&r, s));
    EXPECT_TRUE(count(&r, track(&r, "steps"), "step") > 0);
    free(r.e);
    free(s);
}

static int killed(int rank, void *arg)
{
    (void)rank, (void)arg;
    if (dt_trace_start(in_tmp("t.json"))) return 1;
    for (int i = 0; i < 300; i++) step();
    _exit(0);
}
UTEST_F(trace, a_killed_process_leaves_all_but_the_bracket)
{
    (void)utest_fixture;
    reader r;
    ASSERT_EQ(0, dt_test_ranks(1, 30, killed, NULL));
    char *s = slurp(in_tmp("t.json"));
    ASSERT_TRUE(s != NULL);
    EXPECT_NE(0, parse(&r, s));
    free(r.e);
    strcat(s, "]");
    EXPECT_EQ(0, parse(&r, s));
    EXPECT_TRUE(count(&r, track(&r, "steps"), "step") > 100);
    EXPECT_EQ(0, misnested(&r));
    free(r.e);
    free(s);
}

static int forked_silent(int rank, void *arg)
{
    (void)arg;
    char name[32];
    setenv("DT_TRACE", in_tmp("environment.json"), 1); /* not asked: the program decided */
    int bad = dt_trace_is_on();
    step();
    bad |= dt_trace_is_on();
    snprintf(name, sizeof name, "child%d.json", rank);
    bad |= dt_trace_start(in_tmp(name)) != DT_OK; /* it may have one of its own */
    step();
    return bad || dt_trace_stop() != DT_OK;
}
UTEST_F(trace, a_forked_child_does_not_write_into_its_parents_file)
{
    (void)utest_fixture;
    reader r;
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    step();
    EXPECT_EQ(0, dt_test_ranks(2, 30, forked_silent, NULL));
    step();
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    EXPECT_EQ(2, count(&r, track(&r, "steps"), "step"));
    for (int i = 0; i < r.n; i++) EXPECT_EQ((double)getpid(), r.e[i].pid);
    free(r.e);
    ASSERT_EQ(0, read_trace(&r, in_tmp("child1.json")));
    EXPECT_EQ(1, count(&r, track(&r, "steps"), "step"));
    free(r.e);
}

UTEST_F(trace, its_memory_is_made_once_and_given_back)
{
    (void)utest_fixture;
    step();
    dt_empty_cache();
    reader  r;
    size_t  bytes = dt_stats().host_bytes;
    int64_t allocs;
    ASSERT_OK(dt_trace_start(in_tmp("t.json")));
    for (int i = 0; i < 3; i++) step();
    EXPECT_TRUE(dt_stats().host_bytes > bytes + 65536);
    allocs = dt_stats().host_allocs;
    for (int i = 0; i < 100; i++) step(); /* several chunks */
    EXPECT_EQ(allocs, dt_stats().host_allocs);
    dt_empty_cache(); /* while it runs its chunk stays */
    step();
    ASSERT_OK(dt_trace_stop());
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    EXPECT_EQ(104, count(&r, track(&r, "steps"), "step"));
    EXPECT_TRUE(track(&r, "thread 2 steps") < 0);
    free(r.e);
    dt_empty_cache();
    EXPECT_EQ(bytes, dt_stats().host_bytes);
    allocs = dt_stats().host_allocs;
    dt_trace_push("off");
    dt_trace_counter("off", 1);
    dt_trace_span("off", "off", 1, 2);
    dt_trace_pop();
    EXPECT_EQ(allocs, dt_stats().host_allocs);
}

/* ---- DT_TRACE: programs of their own, this one with --child */
static int child_main(const char *what)
{
    make_params();
    step();
    if (!strcmp(what, "fork")) {
        pid_t pid = fork();
        step();
        if (pid == 0) exit(dt_check("child")); /* exit handlers run here too */
        int status = 1;
        if (waitpid(pid, &status, 0) != pid || status) return 1;
        FILE *f = fopen(in_tmp("pid"), "w");
        if (f) fprintf(f, "%d", (int)pid), fclose(f);
    }
    free_params();
    if (!strcmp(what, "quick_exit")) quick_exit(dt_check("child"));
    return dt_check("child"); /* the trace is neither started nor stopped by the program */
}
static int run_child(const char *what, const char *trace, const char *errors)
{
    char    self[1024] = "";
    int     status = -1;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    pid_t   pid = n > 0 ? fork() : -1;
    if (pid < 0) return 129;
    if (pid == 0) {
        setenv("DT_TRACE", trace, 1);
        setenv("DT_LOG", "error", 1);
        if (errors && !freopen(errors, "w", stderr)) _exit(126);
        execl(self, "test_trace", "--child", what, tmp, (char *)NULL);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
UTEST_F(trace, the_environment_starts_it_and_exit_closes_it)
{
    (void)utest_fixture;
    reader r;
    ASSERT_EQ(0, run_child("exit", in_tmp("t.json"), NULL));
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    EXPECT_EQ(1, count(&r, track(&r, "steps"), "step"));
    EXPECT_EQ(1, count(&r, track(&r, "ops"), "conv2d bwd"));
    free(r.e);
    ASSERT_TRUE(run_child("exit", in_tmp("p%p.json"), NULL) == 0);
    DIR *d = opendir(tmp);
    int  found = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        int pid = 0, end = 0;
        if (sscanf(e->d_name, "p%d.json%n", &pid, &end) != 1 || e->d_name[end] || !end) continue;
        ASSERT_EQ(0, read_trace(&r, in_tmp(e->d_name)));
        EXPECT_EQ((double)pid, r.e[0].pid);
        found++;
        free(r.e);
    }
    closedir(d);
    EXPECT_EQ(1, found);
}
UTEST_F(trace, ranks_have_files_of_their_own)
{
    (void)utest_fixture;
    reader r;
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "4", 1);
    int status = run_child("quick_exit", in_tmp("t.json"), NULL), other = run_child("exit", in_tmp("rank-%r.json"), NULL);
    setenv("WORLD_SIZE", "1", 1);
    int alone = run_child("exit", in_tmp("alone.json"), NULL);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    ASSERT_EQ(0, (status | other | alone));
    static const char *const name[] = { "t.rank3.json", "rank-3.json", "alone.json" };
    for (int i = 0; i < 3; i++) {
        ASSERT_EQ(0, read_trace(&r, in_tmp(name[i])));
        EXPECT_EQ(1, count(&r, track(&r, "steps"), "step"));
        free(r.e);
    }
}
UTEST_F(trace, processes_whose_rank_is_not_known_have_files_of_their_own)
{
    (void)utest_fixture;
    setenv("DMLC_ROLE", "worker", 1);
    int status = run_child("exit", in_tmp("t.json"), NULL) | run_child("exit", in_tmp("t.json"), NULL);
    unsetenv("DMLC_ROLE");
    ASSERT_EQ(0, status);
    DIR *d = opendir(tmp);
    int  found = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        int pid, end = 0;
        found += sscanf(e->d_name, "t.%d.json%n", &pid, &end) == 1 && end && !e->d_name[end];
    }
    closedir(d);
    EXPECT_EQ(2, found);
}
UTEST_F(trace, a_child_of_a_traced_program_has_a_file_of_its_own)
{
    (void)utest_fixture;
    reader r;
    char   name[64];
    int    pid = 0;
    ASSERT_EQ(0, run_child("fork", in_tmp("t.json"), NULL));
    FILE *f = fopen(in_tmp("pid"), "r");
    ASSERT_TRUE(f && fscanf(f, "%d", &pid) == 1);
    fclose(f);
    ASSERT_EQ(0, read_trace(&r, in_tmp("t.json")));
    EXPECT_EQ(2, count(&r, track(&r, "steps"), "step"));
    for (int i = 0; i < r.n; i++) EXPECT_NE((double)pid, r.e[i].pid);
    free(r.e);
    snprintf(name, sizeof name, "t.%d.json", pid);
    ASSERT_EQ(0, read_trace(&r, in_tmp(name)));
    EXPECT_EQ(1, count(&r, track(&r, "steps"), "step"));
    for (int i = 0; i < r.n; i++) EXPECT_EQ((double)pid, r.e[i].pid);
    free(r.e);
}
UTEST_F(trace, a_bad_path_in_the_environment_is_a_line_in_the_log)
{
    (void)utest_fixture;
    ASSERT_EQ(0, run_child("exit", in_tmp("none/t.json"), in_tmp("log")));
    char *s = slurp(in_tmp("log"));
    EXPECT_TRUE(s && strstr(s, "DT_TRACE: cannot write") && strstr(s, "none/t.json: No such file"));
    free(s);
}

UTEST_STATE();
int main(int argc, char *argv[])
{
    if (argc == 4 && !strcmp(argv[1], "--child")) {
        snprintf(tmp, sizeof tmp, "%s", argv[3]);
        return child_main(argv[2]);
    }
    return utest_main(argc, (const char *const *)argv);
}
