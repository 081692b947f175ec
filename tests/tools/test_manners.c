/* The tools as Unix programs: --help, --version, exit codes, where they write, colours, completion; and every example's options.
   run: asan-later */
#define _GNU_SOURCE
#include "dt_test.h"

#include "dt_base.h"
#include "temp_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char out[1 << 18];
static int  run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int  run(const char *format, ...) /* the exit status of a shell command; what it wrote is in out */
{
    char    command[8192];
    va_list ap;
    va_start(ap, format);
    vsnprintf(command, sizeof command, format, ap);
    va_end(ap);
    FILE  *p = popen(command, "r");
    size_t n = p ? fread(out, 1, sizeof out - 1, p) : 0;
    out[n] = 0;
    int status = p ? pclose(p) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static bool says(const char *what)
{
    if (strstr(out, what)) return true;
    printf("    found: %.600s\n    expected: ... %s ...\n", out, what);
    return false;
}
static const char *const tools[] = { "dtrun", "dtverify", "dtplan", "dtreport" };
enum { TOOLS = 4 };
static bool built(void)
{
    for (int i = 0; i < TOOLS; i++)
        if (access(temp_in("build/tools", tools[i]), X_OK)) return false;
    return true;
}

UTEST(tools, answer_help_and_version_on_stdout)
{
    if (!built()) UTEST_SKIP("build/tools is not built");
    char want[64];
    for (int i = 0; i < TOOLS; i++) {
        EXPECT_EQ(0, run("build/tools/%s --help 2>/dev/null", tools[i]));
        EXPECT_TRUE(says(tools[i]) && says("--version") && says("--help") && says("xit status"));
        for (const char *l = out; *l; l += strcspn(l, "\n"), l += *l == '\n') EXPECT_LE(strcspn(l, "\n"), 128u);
        EXPECT_EQ(0, run("build/tools/%s --help 2>&1 >/dev/null", tools[i]));
        EXPECT_STREQ("", out);
        EXPECT_EQ(0, run("build/tools/%s --version", tools[i]));
        snprintf(want, sizeof want, "%s %s\n", tools[i], DT_VERSION);
        EXPECT_STREQ(want, out);
    }
}
UTEST(tools, refuse_what_they_do_not_know_with_status_2)
{
    if (!built()) UTEST_SKIP("build/tools is not built");
    for (int i = 0; i < TOOLS; i++) {
        EXPECT_EQ(2, run("build/tools/%s --no-such-option x 2>&1 >/dev/null", tools[i]));
        EXPECT_TRUE(says("--no-such-option") && says("--help"));
        EXPECT_TRUE(strncmp(out, tools[i], strlen(tools[i])) == 0 && out[strlen(tools[i])] == ':');
        EXPECT_EQ(2, run("build/tools/%s 2>&1 >/dev/null", tools[i])); /* nothing was asked */
        EXPECT_EQ(2, run("build/tools/%s --no-such-option 2>/dev/null", tools[i]));
        EXPECT_STREQ("", out);
    }
}
UTEST(tools, fail_with_status_1_and_are_silent_if_all_is_well)
{
    if (!built()) UTEST_SKIP("build/tools is not built");
    char *dir = temp_dir();
    EXPECT_EQ(1, run("build/tools/dtreport /nonexistent.json -o %s/x.html 2>&1", dir));
    EXPECT_TRUE(says("dtreport: ") && says("/nonexistent.json") && says("No such file"));
    EXPECT_EQ(1, run("build/tools/dtplan --profile /nonexistent 2>&1"));
    EXPECT_TRUE(says("cannot open the file"));
    EXPECT_EQ(1, run("build/tools/dtverify --workers 1 /nonexistent/program 2>&1"));
    EXPECT_EQ(0, run("build/tools/dtrun -n 2 true 2>&1"));
    EXPECT_STREQ("", out);
    EXPECT_EQ(1, run("build/tools/dtrun -n 2 false 2>&1"));
    EXPECT_TRUE(says("dtrun: "));
    EXPECT_EQ(0,
              run("cd %s && DT_REPORT=a.json DT_PROGRESS=off '%s/build/demo/mnist' --data '%s/data/digits' --steps 1 "
                  "--epochs 1 >/dev/null 2>&1; '%s/build/tools/dtreport' a.json -o b.html 2>&1 && ls b.html",
                  dir, getenv("PWD"), getenv("PWD"), getenv("PWD")));
    EXPECT_STREQ("b.html\n", out);
    temp_remove(dir);
}
UTEST(tools, have_no_colours_but_on_a_terminal)
{
    if (!built()) UTEST_SKIP("build/tools is not built");
    if (run("command -v script >/dev/null")) UTEST_SKIP("script(1), which gives a terminal, is not installed");
    EXPECT_EQ(0, run("build/tools/dtrun -n 2 echo hello 2>&1"));
    EXPECT_TRUE(says("hello") && !strchr(out, '\033'));
    EXPECT_EQ(0, run("TERM=xterm script -qec 'build/tools/dtrun -n 2 echo hello' /dev/null"));
    EXPECT_TRUE(says("hello") && strchr(out, '\033'));
    EXPECT_EQ(0, run("NO_COLOR=1 TERM=xterm script -qec 'build/tools/dtrun -n 2 echo hello' /dev/null"));
    EXPECT_TRUE(says("hello") && !strchr(out, '\033'));
}

/* What bash offers for a command line that ends in the word that is completed */
static bool offers(const char *words, const char *what)
{
    char before[256] = "", line[1024], *space;
    snprintf(line, sizeof line, "%s", words);
    const char *last = (space = strrchr(line, ' ')) ? space + 1 : line;
    if (space) {
        snprintf(before, sizeof before, "%.*s", (int)(space - line), line);
        char *b = strrchr(before, ' ');
        if (b) memmove(before, b + 1, strlen(b));
    }
    run("bash -c '. tools/completion.bash; COMP_WORDS=(%s \"%s\"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
        "_dt_complete build/tools/%.*s \"%s\" \"%s\"; printf \"%%s\\n\" \"${COMPREPLY[@]}\"' 2>&1",
        space ? (*space = 0, line) : "", last, (int)strcspn(words, " "), words, last, before);
    char found[300];
    snprintf(found, sizeof found, "\n%s\n", what);
    memmove(out + 1, out, strlen(out) + 1);
    out[0] = '\n';
    return strstr(out, found) != NULL;
}
UTEST(tools, are_completed_by_bash)
{
    if (!built()) UTEST_SKIP("build/tools is not built");
    if (run("command -v bash >/dev/null")) UTEST_SKIP("bash is not installed");
    EXPECT_TRUE(offers("dtrun --nproc", "--nproc-per-node"));
    EXPECT_TRUE(offers("dtrun --max-r", "--max-restarts") && !strstr(out, "--min"));
    EXPECT_TRUE(offers("dtverify --tol", "--tolerance"));
    EXPECT_TRUE(offers("dtreport --out", "--output"));
    EXPECT_TRUE(offers("dtplan --model resnet5", "resnet50"));
    EXPECT_TRUE(offers("dtplan --device a10", "a100") && !strstr(out, "device"));
    EXPECT_TRUE(offers("dtplan --precision a", "amp"));
    EXPECT_TRUE(offers("dtrun -n 4 CHANGE", "CHANGELOG.md"));
    EXPECT_TRUE(offers("dtrun -n 4 program --m", "") && !strstr(out, "--max")); /* the program's options are its own */
    EXPECT_EQ(0, run("bash -c '. tools/completion.bash; complete -p dtrun dtverify dtplan dtreport'"));
}

/* ---- every example: --help lists options, a wrong one is refused, whatever examples there are */
UTEST(examples, all_have_help_and_refuse_unknown_options)
{
    EXPECT_EQ(0, run("ls examples/*.c | sed 's|examples/||; s|[.]c$||'"));
    static char names[8192];
    int         n = 0, missing = 0;
    snprintf(names, sizeof names, "%.8000s", out);
    for (char *name = strtok(names, "\n"); name; name = strtok(NULL, "\n")) {
        char path[300];
        snprintf(path, sizeof path, "build/examples/%.200s", name);
        if (access(path, X_OK)) {
            missing++;
            continue;
        }
        n++;
        EXPECT_EQ(0, run("timeout 20 %s --help 2>/dev/null </dev/null", path));
        EXPECT_TRUE(says(name) && strlen(out) > 60);
        EXPECT_EQ(2, run("timeout 20 %s --no-such-option 2>&1 >/dev/null </dev/null", path));
        EXPECT_TRUE(says("--no-such-option") && says("--help"));
    }
    if (!n) UTEST_SKIP("build/examples is not built");
    if (missing) printf("    %d examples are not built\n", missing);
}

UTEST_MAIN()
