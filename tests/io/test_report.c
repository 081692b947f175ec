/* The report of a run (DT_REPORT): what is in it, when it is written, and several on one page.
   run: asan-later */
#include "dt_test.h"
#include "temp_files.h"

#include "dt_data.h"
#include "dt_dist.h"
#include "dt_plot.h"
#include "dt_ps.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char       *text; /* the last report that was read */
static const char *read_file(const char *path)
{
    FILE  *f = fopen(path, "rb");
    size_t cap = 1 << 20, n = 0;
    free(text);
    text = (char *)calloc(1, cap);
    if (f && text) n = fread(text, 1, cap - 1, f);
    if (f) fclose(f);
    return f && text && n ? text : "";
}
static int times(const char *s, const char *part)
{
    int n = 0;
    for (; (s = strstr(s, part)) != NULL; s += strlen(part)) n++;
    return n;
}
static bool well_formed(const char *path) /* dt_report_join reads every byte of it */
{
    char page[600];
    snprintf(page, sizeof page, "%s.page", path);
    bool good = dt_report_join(page, &path, NULL, 1) == DT_OK;
    if (!good) printf("    %s\n", dt_error());
    dt_error_clear();
    remove(page);
    return good;
}
static void put(const char *path, const char *what)
{
    FILE *f = fopen(path, "wb");
    if (f) fputs(what, f), fclose(f);
}
/* A run of n steps with a report; the report, or "" */
static const char *run(const char *path, int64_t n, double bad_every)
{
    setenv("DT_REPORT", path, 1);
    dt_progress *p =
        dt_progress_new(.epochs = 1, .steps = n, .quiet = true, .unit = "images", .title = "a <b> & \"c\" </script>");
    unsetenv("DT_REPORT");
    for (int64_t i = 1; i <= n; i++)
        dt_progress_step(p, bad_every > 0 && i % (int64_t)bad_every == 0 ? NAN : 1.0 / (double)i, .items = 2,
                         .lr = 0.1);
    if (n) dt_progress_result(p, "<script>alert('x')</script> & \"y\" \xff", 0.5);
    return dt_progress_free(p) == DT_OK ? read_file(path) : "";
}

UTEST(report, names_and_losses_of_all_kinds_are_data_and_never_markup)
{
    char       *dir = temp_dir();
    const char *path = temp_in(dir, "run.html"), *s = run(path, 20, 7);
    EXPECT_EQ(1, times(s, "class=\"dt-run\""));
    EXPECT_EQ(2, times(s, "</script>")); /* of the data, and of the script */
    EXPECT_TRUE(strstr(s, "alert('x')\\u003c/script\\u003e \\u0026 \\u0022y\\u0022 ?") != NULL);
    EXPECT_TRUE(strstr(s, "<title>a &lt;b&gt; &amp; &quot;c&quot; &lt;/script&gt;</title>") != NULL);
    EXPECT_TRUE(strstr(s, "\"bad\":[0,0,0,0,0,0,1,") != NULL);
    EXPECT_TRUE(strstr(s, "\"mean\":[1,0.5,0.333333,0.25,0.2,0.166667,null,") != NULL);
    EXPECT_TRUE(strstr(s, "\"state\":\"finished\"") && !strstr(s, "nan") && !strstr(s, ":inf"));
    EXPECT_TRUE(well_formed(path));
    EXPECT_TRUE(strstr(s, "http://") == strstr(s, "http://www.w3.org/2000/svg") &&
                !strstr(s, "https://")); /* needs no network */
    temp_remove(dir);
}
UTEST(report, of_no_step_of_one_and_of_a_million)
{
    static const int64_t n[] = { 0, 1, 1000000 };
    char                *dir = temp_dir(), want[64];
    for (int i = 0; i < 3; i++) {
        const char *path = temp_in(dir, "run.json"), *s = run(path, n[i], 0);
        snprintf(want, sizeof want, "\"step\":%lld,", (long long)n[i]);
        EXPECT_TRUE(strstr(s, want) != NULL);
        EXPECT_TRUE(well_formed(path));
        EXPECT_LT(strlen(s), 100000u);
        EXPECT_TRUE(strncmp(s, "{\"dt_report\":1,", 15) == 0);
    }
    EXPECT_TRUE(strstr(text, "\"bin_steps\":2048") != NULL); /* 500 bins at most */
    temp_remove(dir);
}
UTEST(report, a_path_that_cannot_be_written_is_an_error_at_once)
{
    setenv("DT_REPORT", "/nonexistent/run.html", 1);
    EXPECT_ERROR(dt_progress_new(.quiet = true), "DT_REPORT: cannot write /nonexistent/run.html");
    unsetenv("DT_REPORT");
}
UTEST(report, is_written_by_rank_0_alone)
{
    char *dir = temp_dir();
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    EXPECT_STREQ("", run(temp_in(dir, "run.json"), 3, 0));
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    temp_remove(dir);
}
/* A training that does not end by itself; how: the signal that it gets after a step, from itself. */
static int ended_by(const char *path, int how, bool own_handler)
{
    pid_t pid = fork();
    int   status = 0;
    if (pid == 0) {
        setenv("DT_REPORT", path, 1);
        if (own_handler) signal(SIGINT, SIG_IGN);
        dt_progress *p = dt_progress_new(.quiet = true);
        dt_progress_step(p, 1);
        raise(how);
        dt_progress_step(p, 2);
        _exit(dt_progress_free(p) == DT_OK ? 7 : 8);
    }
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}
UTEST(report, is_there_when_a_signal_ends_the_run)
{
    char       *dir = temp_dir();
    const char *path = temp_in(dir, "run.html");
    EXPECT_EQ(SIGINT, ended_by(path, SIGINT, false));
    EXPECT_TRUE(strstr(read_file(path), "\"state\":\"interrupted\"") && strstr(text, "\"step\":2,"));
    EXPECT_EQ(SIGTERM, ended_by(path, SIGTERM, false));
    EXPECT_TRUE(strstr(read_file(path), "\"state\":\"interrupted\"") != NULL);
    EXPECT_TRUE(well_formed(path));
    EXPECT_EQ(SIGKILL, ended_by(path, SIGKILL, false)); /* what was written last */
    EXPECT_TRUE(strstr(read_file(path), "\"state\":\"running\"") != NULL);
    EXPECT_TRUE(well_formed(path));
    EXPECT_EQ(-7, ended_by(path, SIGINT, true)); /* the program's own disposition stays */
    EXPECT_TRUE(strstr(read_file(path), "\"state\":\"finished\"") != NULL);
    temp_remove(dir);
}
UTEST(report, says_why_a_run_failed)
{
    char *dir = temp_dir();
    setenv("DT_REPORT", temp_in(dir, "run.json"), 1);
    dt_progress *p = dt_progress_new(.quiet = true);
    unsetenv("DT_REPORT");
    dt_progress_step(p, 1);
    dt_fail(DT_ERR_FILE, "the disk \"sda\" is on fire");
    dt_progress_free(p);
    dt_error_clear();
    EXPECT_TRUE(strstr(read_file(temp_in(dir, "run.json")),
                       "\"state\":\"failed\",\"error\":\"the disk \\u0022sda\\u0022 is on fire\"") != NULL);
    temp_remove(dir);
}

/* ---- ranks */
static int item(void *user, int64_t i, void *x, void *y)
{
    (void)user, (void)y;
    for (int k = 0; k < 4; k++) ((float *)x)[k] = (float)(i + k);
    return 0;
}
static int rank_main(void *arg)
{
    dt_comm      *c = dt_comm_init(.timeout = 60);
    int           rank = dt_comm_rank(c);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 1e-5);
    dt_ddp       *ddp = dt_ddp_new(m, c);
    dt_dataset   *set = dt_source(.n = 64, .x_shape = DT_SHAPE(4), .get = item);
    dt_loader    *in = dt_loader_new(set, .batch = 4, .rank = rank, .world = dt_comm_size(c));
    dt_progress  *p = dt_progress_new(.quiet = true, .unit = "items");
    int           steps = 0;
    for (dt_batch b; dt_loader_next(in, &b); steps++) {
        dt_tensor *loss = dt_mean(dt_linear(m, "fc", b.x, .out = 3));
        dt_backward(loss);
        dt_progress_step(p, dt_item(loss), .items = 8);
        dt_step(opt);
    }
    if (arg) dt_ddp_free(ddp), ddp = NULL; /* before the report is written for the last time */
    dt_progress_free(p);
    dt_ddp_free(ddp);
    dt_loader_free(in);
    dt_dataset_free(set);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_comm_free(c);
    return dt_check("rank") || steps != 8;
}
UTEST(report, has_the_figures_of_all_ranks)
{
    char *dir = temp_dir();
    for (int first = 0; first < 2; first++) {
        setenv("DT_REPORT", temp_in(dir, "ranks.json"), 1);
        EXPECT_EQ(0, dt_spawn(2, rank_main, first ? dir : NULL));
        unsetenv("DT_REPORT");
        const char *s = read_file(temp_in(dir, "ranks.json"));
        EXPECT_TRUE(strstr(s, "\"world\":2,\"ranks\":[{\"rank\":0,\"rate\":") != NULL);
        const char *other = strstr(s, ",{\"rank\":1,\"rate\":");
        EXPECT_TRUE(other && other[18] >= '1' && other[18] <= '9'); /* it has said how fast it is */
        EXPECT_TRUE(strstr(s, "\"buckets\":[{\"bytes\":60,\"sent\":") &&
                    strstr(s, "\"first\":\"fc.bias\",\"last\":\"fc.weight\""));
        EXPECT_TRUE(strstr(s, "{\"name\":\"forward\",") && strstr(s, "{\"name\":\"backward\",") &&
                    strstr(s, "{\"name\":\"data\","));
        EXPECT_TRUE(well_formed(temp_in(dir, "ranks.json")));
    }
    temp_remove(dir);
}

static int pushes(void *arg)
{
    dt_comm     *c = dt_comm_init(.timeout = 60);
    dt_ps       *ps = dt_ps_new(c, .mode = DT_PS_ASYNC);
    float        w[4] = { 0 }, g[4] = { 1, 2, 3, 4 };
    dt_progress *p = dt_progress_new(.quiet = true);
    (void)arg;
    int bad = dt_ps_init(ps, 0, w, 4, DT_COMM_F32, .rule = DT_PS_SUM);
    for (int i = 0; i < 10 && !bad; i++) {
        bad = dt_ps_push_pull(ps, 0, g, w, 4, DT_COMM_F32);
        dt_progress_step(p, w[0]);
    }
    dt_progress_free(p);
    bad |= dt_ps_free(ps) != 0;
    return dt_comm_free(c) || bad;
}
UTEST(report, counts_pushes_by_staleness_and_each_rank_may_write_its_own)
{
    char *dir = temp_dir(), name[16];
    setenv("DT_REPORT", temp_in(dir, "ps%r.json"), 1);
    EXPECT_EQ(0, dt_spawn(2, pushes, NULL));
    unsetenv("DT_REPORT");
    for (int r = 0; r < 2; r++) {
        int n[16], all = 0;
        snprintf(name, sizeof name, "ps%d.json", r);
        const char *at = strstr(read_file(temp_in(dir, name)), "\"dropped\":0,\"staleness\":[");
        ASSERT_TRUE(at != NULL);
        at = strchr(at, '[');
        for (int i = 0; i < 16; i++) n[i] = (int)strtol(at + 1, (char **)&at, 10), all += n[i];
        EXPECT_EQ(10, all);
        EXPECT_TRUE(well_formed(temp_in(dir, name)));
    }
    temp_remove(dir);
}

/* ---- several on one page */
UTEST(join, puts_pages_and_data_on_one_page)
{
    char       *dir = temp_dir();
    const char *file[3], *name[3] = { NULL, "<second> & \"x\"", NULL };
    file[0] = temp_in(dir, "a.html");
    run(file[0], 5, 0);
    file[1] = temp_in(dir, "b.json");
    run(file[1], 6, 0);
    EXPECT_OK(dt_report_join(temp_in(dir, "two.html"), file, name, 2));
    file[2] = temp_in(dir, "two.html");
    EXPECT_OK(dt_report_join(temp_in(dir, "all.html"), file, name, 3));
    const char *s = read_file(temp_in(dir, "all.html"));
    EXPECT_EQ(4, times(s, "class=\"dt-run\""));
    EXPECT_EQ(1, times(s, "data-name=\"a.html\""));
    EXPECT_EQ(1, times(s, "data-name=\"&lt;second&gt; &amp; &quot;x&quot;\""));
    EXPECT_EQ(1, times(s, "data-name=\"two.html (2)\""));
    temp_remove(dir);
}
UTEST(join, refuses_what_is_no_report)
{
    static const char *const bad[] = { "",
                                       "{",
                                       "[]",
                                       "{}",
                                       "nul",
                                       "{\"dt_report\":1,",
                                       "{\"dt_report\":1}",
                                       "{\"dt_report\":2,\"a\":1}",
                                       "{\"dt_report\":1,\"a\":\"\n\"}",
                                       "{\"dt_report\":1,\"a\":\"\xff\"}",
                                       "{\"dt_report\":1,\"a\":\"\\x\"}",
                                       "{\"dt_report\":1,\"a\":1}x",
                                       "{\"dt_report\":1,\"a\":[1,]}",
                                       "{\"dt_report\":1,\"a\":--}",
                                       "{\"dt_report\":1,\"a\":1.2.3}",
                                       "{\"dt_report\":1,\"a\":01}",
                                       "{\"dt_report\":1,\"a\":1e}",
                                       "{\"dt_report\":1,\"a\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}",
                                       "<!doctype html><p>",
                                       "<!doctype html><i class=\"dt-run\">{\"dt_report\":1,",
                                       "step,epoch\n1,1\n" };
    char                    *dir = temp_dir();
    const char *file = temp_in(dir, "bad.json"), *none = temp_in(dir, "none.json"), *out = temp_in(dir, "out.html"),
               *folder = dir;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(file, bad[i]);
        EXPECT_ERROR(dt_report_join(out, &file, NULL, 1), "bad.json: it ");
        EXPECT_TRUE(access(out, F_OK) != 0);
    }
    EXPECT_ERROR(dt_report_join(out, &none, NULL, 1), "No such file");
    EXPECT_ERROR(dt_report_join(out, &folder, NULL, 1), "not a regular file");
    EXPECT_ERROR(dt_report_join(NULL, &file, NULL, 1), "the path of a page");
    put(file,
        "{\"dt_report\":1,\"a\":\"</script><script>alert(1)</script>\",\"b\":[true,false,null,-1.5e3,\"\\u0041\"]}");
    EXPECT_OK(dt_report_join(out, &file, NULL, 1));
    EXPECT_TRUE(strstr(read_file(out), "\"\\u003c/script\\u003e\\u003cscript\\u003ealert(1)") &&
                strstr(text, "[true,false,null,-1.5e3,\"\\u0041\"]"));
    temp_remove(dir);
}

UTEST_MAIN()
