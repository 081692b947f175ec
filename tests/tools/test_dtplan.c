/* test_dtplan.c: the command: its answers as text, JSON, HTML, SVG and timeline, exit codes, what it refuses
   run: asan-later */
#include "dt_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

UTEST_MAIN()

static char out[1 << 20];
static int  run(const char *options) /* the exit status; what it wrote, errors too, in out */
{
    char command[4000];
    snprintf(command, sizeof command, "build/tools/dtplan %s 2>&1", options);
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
/* A value of JSON at p; its end, or NULL if it is none */
static const char *blank(const char *p)
{
    while (*p == ' ' || *p == '\n') p++;
    return p;
}
static const char *json(const char *p, int depth)
{
    p = blank(p);
    if (depth > 20) return NULL;
    if (*p == '{' || *p == '[') {
        char end = *p == '{' ? '}' : ']', kind = *p;
        for (p = blank(p + 1); *p != end; p = blank(p + 1)) {
            if (kind == '{') {
                if (*p != '"' || !(p = json(p, depth + 1))) return NULL;
                p = blank(p);
                if (*p++ != ':') return NULL;
            }
            if (!(p = json(p, depth + 1))) return NULL;
            p = blank(p);
            if (*p == end) break;
            if (*p != ',' || *blank(p + 1) == end) return NULL;
        }
        return p + 1;
    }
    if (*p == '"') {
        for (p++; *p && *p != '"'; p++)
            if ((unsigned char)*p < ' ' || (*p == '\\' && !*++p)) return NULL;
        return *p ? p + 1 : NULL;
    }
    if (!strncmp(p, "true", 4)) return p + 4;
    if (!strncmp(p, "false", 5)) return p + 5;
    char *end;
    strtod(p, &end);
    return end > p && strncmp(p, "nan", 3) != 0 && strncmp(p, "inf", 3) != 0 ? end : NULL;
}
static bool is_json(void)
{
    const char *end = json(out, 0);
    if (end && !*blank(end)) return true;
    printf("    no JSON: %.300s\n", end ? end : out);
    return false;
}
static double number(const char *name) /* the first value of this name in the JSON */
{
    char        key[64];
    const char *p;
    snprintf(key, sizeof key, "\"%s\": ", name);
    p = strstr(out, key);
    return p ? atof(p + strlen(key)) : -1;
}
#define ASK "--model resnet50 --machines 4 --per-machine 8 --intra 63GB/s --inter 1.25GB/s --batch 32 --device a100 "
UTEST(dtplan, answers_in_words)
{
    EXPECT_EQ(0, run(ASK));
    EXPECT_TRUE(says("32 x a100") && says("T1 computation") && says("T2 communication") && says("bottleneck") &&
                says("Buckets of gradients"));
    EXPECT_TRUE(says("ZeRO-3") && says("Best layouts for 1024 images") && says(" 5. ") && says("What would help") &&
                says("BytePS") && says("of linear"));
}
UTEST(dtplan, a_device_of_ones_own)
{
    EXPECT_EQ(
        0,
        run("--model vgg16 --machines 2 --per-machine 2 --flops 15T --memory 80GB --intra 10GB/s,3us --inter 10Gbit/s --json"));
    EXPECT_TRUE(is_json());
    EXPECT_TRUE(number("parameters") == 138357544 && number("devices") == 4 && number("step") > 0);
}
UTEST(dtplan, json_is_json_and_has_what_the_text_has)
{
    EXPECT_EQ(0, run(ASK "--json"));
    EXPECT_TRUE(is_json());
    double step = number("step"), parts = number("forward") + number("backward") + number("update") + number("exposed") +
                                          number("bubble") + number("input");
    EXPECT_NEAR(1, parts / step, 1e-6);
    EXPECT_TRUE(number("efficiency") > 0.1 && number("efficiency") < 1 && says("\"best\"") && says("\"changes\"") &&
                says("\"machines_curve\""));
    EXPECT_EQ(0, run(ASK "--json --layout pipe=2,micro=4,schedule=gpipe,recompute=full"));
    EXPECT_TRUE(is_json() && number("bubble") > 0 && says("\"pipe\": 2") && says("\"gpipe\""));
}
UTEST(dtplan, pictures_pages_and_timelines)
{
    EXPECT_EQ(0, run(ASK "--svg"));
    EXPECT_TRUE(!strncmp(out, "<svg ", 5) && says("T1 = T2") && says("</svg>"));
    EXPECT_EQ(0, run(ASK "--html"));
    EXPECT_TRUE(!strncmp(out, "<!doctype html>", 15) && says("<svg ") && says("Best layouts") && says("</html>") &&
                !strstr(out, "src=") && !strstr(out, "href="));
    EXPECT_EQ(0, run(ASK "--trace"));
    EXPECT_TRUE(is_json() && says("\"ph\":\"X\"") && says("forward conv1") && says("reduce "));
    EXPECT_EQ(0, run(ASK "--trace --layout pipe=4,micro=8"));
    EXPECT_TRUE(is_json() && says("backward 7"));
    EXPECT_EQ(0, run("--crossovers --machines 4 --per-machine 4"));
    EXPECT_TRUE(!strncmp(out, "<svg ", 5) && says(">halving<") && says("</svg>"));
}
UTEST(dtplan, the_table_has_alexnet_last_and_inception_first_of_the_images)
{
    EXPECT_EQ(0, run("--table"));
    const char *inception = strstr(out, "| inception-v3 |"), *resnet = strstr(out, "| resnet50 |"),
               *vgg = strstr(out, "| vgg16 |"), *alex = strstr(out, "| alexnet |");
    EXPECT_TRUE(inception && resnet && vgg && alex && inception < resnet && resnet < vgg && vgg < alex);
}
UTEST(dtplan, is_judged_by_published_rows)
{
    EXPECT_EQ(0, run("--judge")); /* 1: the target is missed */
    static const char *const lines[] = { "| data parallel (", "| pipelines, tensor", "| all rows |" };
    for (int i = 0; i < 3; i++) {
        const char *line = strstr(out, lines[i]), *end = line ? strchr(line, '\n') : NULL;
        ASSERT_TRUE(end != NULL);
        while (end[-1] == '|' || end[-1] == ' ') end--;
        while (end[-1] != ' ') end--;
        EXPECT_TRUE(atof(end) > 0.05 && atof(end) < 1); /* better than linear scaling */
    }
    for (int i = 1; i <= 14; i++) {
        char row[8];
        snprintf(row, sizeof row, "\n| %d", i);
        EXPECT_TRUE(says(row));
    }
}
static bool in_file(const char *path) /* every line of out */
{
    static char text[1 << 20];
    FILE       *f = fopen(path, "rb");
    size_t      n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    bool        all = n > 0;
    text[n] = 0;
    if (f) fclose(f);
    for (char *line = out, *end; all && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        all = strstr(text, line) != NULL;
        if (!all) printf("    not in %s: %s\n", path, line);
    }
    return all;
}
UTEST(dtplan, the_documents_show_what_it_says)
{
    EXPECT_EQ(0, run("--table"));
    EXPECT_TRUE(in_file("README.md") && (run("--table"), in_file("docs/planner.md")));
    EXPECT_EQ(0, run("--judge"));
    EXPECT_TRUE(in_file("docs/planner.md"));
}
UTEST(dtplan, every_collective_and_schedule_at_a_few_hundred_ranks)
{
    EXPECT_EQ(0, run("--scale 256"));
    EXPECT_TRUE(says("| allreduce | ring |") && says("| alltoall | bruck |") && says("| zb_h1 |") &&
                says("| interleaved | 256 |"));
}
UTEST(dtplan, reads_files)
{
    char path[64] = "/tmp/dt_plan.XXXXXX", options[200];
    int  fd = mkstemp(path);
    ASSERT_TRUE(fd >= 0);
    dprintf(fd, "dt cluster 1\ndevice k80\nmachines 2\ndevices 4\nintra pcie3\ninter ethernet-10g\nshared\nend\n");
    snprintf(options, sizeof options, "--model alexnet --cluster %s --json", path);
    EXPECT_EQ(0, run(options));
    EXPECT_TRUE(is_json() && number("devices") == 8);
    snprintf(options, sizeof options, "--model alexnet --cluster %s --machines 3", path);
    EXPECT_EQ(2, run(options));
    EXPECT_TRUE(says("--machines: the cluster is described by"));
    ASSERT_EQ(0, ftruncate(fd, 0));
    lseek(fd, 0, SEEK_SET);
    dprintf(fd, "dt profile 1\nbatch 8 image\nstep 3s\nlayer a forward 1s backward 2s params 4MB ready 2s\nend\n");
    snprintf(options, sizeof options, "--profile %s --machines 2 --per-machine 1 --json", path);
    EXPECT_EQ(0, run(options));
    EXPECT_TRUE(is_json() && number("parameters") == 1e6);
    EXPECT_TRUE(says("the profiled device") && !strstr(out, "v100"));
    ASSERT_EQ(0, ftruncate(fd, 30));
    EXPECT_EQ(2, run(options));
    EXPECT_TRUE(says("line 3, column") && says("expected"));
    close(fd);
    unlink(path);
    EXPECT_EQ(1, run(options));
    EXPECT_TRUE(says("cannot open the file"));
}
/* A trainer of the sweep: its accuracy rises with the steps, less so with large batches and the rate as it is */
static const char trainer[] =
    "#!/bin/sh\n"
    "[ \"$1\" = --help ] && { echo 'train [options]'; echo '  --batch N --csv FILE --lr X --warmup N --lars'; exit 0; }\n"
    "lr=0.1; csv=; batch=1; lars=0\n"
    "while [ $# -gt 0 ]; do case $1 in --lr) lr=$2; shift;; --csv) csv=$2; shift;; --batch) batch=$2; shift;; --lars) lars=1;; esac; shift; done\n"
    "[ \"$batch\" = 64 ] && [ \"$lars\" = 0 ] && { echo 'out of memory'; exit 1; }\n"
    "awk -v b=$batch -v lr=$lr 'BEGIN { print \"step,epoch,loss,lr,scale,items_per_second,seconds,result,value\";\n"
    "  for (e = 1; e <= 9; e++) { s += 640 / b; printf \"%d,%d,1,,,%d,1,,\\n%d,%d,,,,,1,\\\"test, accuracy\\\",%g\\n\", s, e, 100 * b, s, e, "
    "1 - 1 / (1 + e * lr * 160 / b) } }' > $csv\n";
UTEST(dtplan, sweeps_over_batch_sizes_of_any_trainer)
{
    char dir[] = "/tmp/dt_sweep.XXXXXX", path[100], command[600];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/train", dir);
    FILE *f = fopen(path, "w");
    ASSERT_TRUE(f && fputs(trainer, f) >= 0 && !fclose(f) && !chmod(path, 0700));
    /* As it is: 1 - 1 / (1 + 16 e / b) >= 0.75: e >= 3 b / 16, so 2 epochs of 640 items with a batch of 8 at 800 a second, 3 with 16 */
    snprintf(command, sizeof command,
             "--target 75%% --metric 'test, accuracy' --batches 8,16,32 --out %s/x.svg --lr 0.1 --warmup 1 --json --sweep %s --epochs 9", dir, path);
    EXPECT_EQ(0, run(command));
    EXPECT_TRUE(is_json() && number("rate") == 800 && number("epochs") == 2 && number("best") == 32 && !strstr(out, "LARS"));
    EXPECT_NEAR(2 * 640 / 800.0, number("seconds"), 1e-6);
    EXPECT_TRUE(says("\"batch\": 32, \"recipe\": \"rate x batch\", \"rate\": 3200, \"reached\": true, \"epochs\": 2,"));
    char svg[200];
    snprintf(svg, sizeof svg, "%s/x.svg", dir);
    EXPECT_EQ(0, access(svg, R_OK));
    /* LARS with a fifth recipe; a batch that is never reached; a program that fails without a table */
    snprintf(command, sizeof command, "--target 0.75 --batches 8,512 --out %s --lars-lr 0.2 --sweep %s", svg, path);
    EXPECT_EQ(0, run(command));
    EXPECT_TRUE(says("with LARS, without warm-up") && says("batch 512, as it is: 51200 a second, the target was not reached") &&
                says("batch 8, LARS: 800 a second, 1 epochs"));
    snprintf(command, sizeof command, "--target 0.75 --batches 64 --out %s --sweep %s", svg, path);
    EXPECT_EQ(2, run(command));
    EXPECT_TRUE(says("failed with batch 64: out of memory"));
    snprintf(command, sizeof command, "--target 0.9999 --batches 512 --out %s --sweep %s", svg, path);
    EXPECT_EQ(1, run(command));
    EXPECT_TRUE(says("no batch reached the target"));
    EXPECT_EQ(2, run("--target 1 --sweep true"));
    EXPECT_TRUE(says("wrote no table"));
    unlink(svg), unlink(path), rmdir(dir);
}
UTEST(dtplan, refuses_what_it_does_not_know)
{
    static const struct {
        const char *options, *what;
    } t[] = { { "", "what should be trained?" },
              { "--modl resnet50", "did you mean --model?" },
              { "--model resnet5O", "did you mean resnet50?" },
              { "--model", "its value is missing" },
              { "--model alexnet --model vgg16", "given twice" },
              { "--model alexnet --device v10", "did you mean v100?" },
              { "--model alexnet --inter 10", "a number without a unit" },
              { "--model alexnet --inter 10GBps", "an unknown unit" },
              { "--model alexnet --inter 0GB/s", "expected more than 0" },
              { "--model alexnet --memory 80", "a number without a unit" },
              { "--model alexnet --machines 0", "a whole number from 1" },
              { "--model alexnet --machines 4x", "a whole number from 1" },
              { "--model alexnet --layout data=3", "data x pipe x tensor is not the number of devices" },
              { "--model alexnet --layout dta=3", "did you mean data?" },
              { "--model alexnet --layout pipe", "NAME=VALUE" },
              { "--model alexnet --layout schedule=1f2b", "did you mean 1f1b?" },
              { "--model alexnet --precision f33", "did you mean f32?" },
              { "--model alexnet --algo rnig", "did you mean ring?" },
              { "--model alexnet --compress 50", "a part in percent" },
              { "--model alexnet --json --html", "another answer" },
              { "--model alexnet --profile x", "expected one of them" },
              { "--model alexnet --inter 10Gb/s", "an unknown unit" },
              { "--model alexnet --inter 10Gbps", "an unknown unit" },
              { "--model gpt2 --machines 1 --per-machine 8 --layout tensor=5", "data x pipe x tensor is not the number of devices" },
              { "--sweep ./train", "Give --target" },
              { "--target 1 --sweep", "the trainer is missing" },
              { "--target x --sweep ./train", "found 'x'" },
              { "--target 1 --batches 8,4 --sweep ./train", "larger ones after smaller ones" },
              { "--target 1 --batches 8,,4 --sweep ./train", "whole numbers from 1" },
              { "--target 1 --lr 0 --sweep ./train", "a number above 0" },
              { "--target 1 --sweep ./train --batch 3", "the sweep sets it itself" },
              { "--target 1 --sweep /no/such/trainer", "cannot run /no/such/trainer" },
              { "--target 1 --svg --sweep ./train", "goes with --json only" },
              { "--target 1 --model alexnet --sweep ./train", "--model: it does not go with --sweep" },
              { "--model alexnet --target 1", "it goes with --sweep only" },
              { "--model alexnet --device v100 --flops 3T", "expected one of them" } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        EXPECT_EQ(2, run(t[i].options));
        EXPECT_TRUE(says(t[i].what) && !strncmp(out, "dtplan: ", 8));
    }
    EXPECT_EQ(0, run("--help"));
    EXPECT_TRUE(says("--cluster FILE"));
    EXPECT_EQ(0, run("--version"));
    EXPECT_TRUE(says("dtplan 0."));
    EXPECT_EQ(0, run("--models"));
    EXPECT_TRUE(says("llama3-8b"));
    EXPECT_EQ(0, run("--devices"));
    EXPECT_TRUE(says("ethernet-10g"));
    EXPECT_EQ(1, run("--models > /dev/full"));
}
