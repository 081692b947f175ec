/* test_examples.c: examples/mnist.c, resnet_cifar.c, gpt.c, lstm.c, messages.c, pipeline.c, elastic.c, two_devices.c, batch_sweep.c
   and finetune.c as they are, on their own and under each launcher. This program is also the one that is started:
   test_examples mnist|resnet|gpt|lstm|messages|pipeline|elastic|two_devices|batch_sweep|finetune ARGUMENTS
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_data.h"
#include "dt_dist.h"
#include "dt_pipe.h"
#include "golden/gpt2.h"
#include "launchers.h"
#include "temp_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DT_LINKED /* the implementation is the one that all tests share */
#define main mnist_main
#define trainer mnist_trainer
#define accuracy mnist_accuracy
#include "examples/mnist.c"
#undef DT_IMPLEMENTATION
#undef main
#undef trainer
#undef accuracy
#define main resnet_main
#define resnet cifar_resnet /* models.h has one, too */
#include "examples/resnet_cifar.c"
#undef DT_IMPLEMENTATION
#undef main
#undef resnet
#define main gpt_main
#include "examples/gpt.c"
#undef DT_IMPLEMENTATION
#undef main
#define main lstm_main
#define config lstm_config
#define state lstm_state
#define state_set lstm_state_set
#define net lstm_net
#define sample lstm_sample
#define number lstm_number
#define VOCAB lstm_VOCAB
#define MOST lstm_MOST
#include "examples/lstm.c"
#undef DT_IMPLEMENTATION
#undef main
#undef config
#undef state
#undef state_set
#undef net
#undef sample
#undef number
#undef VOCAB
#undef MOST
#define main messages_main
#define result messages_result
#include "examples/messages.c"
#undef main
#undef result
#define main pipeline_main
#include "examples/pipeline.c"
#undef DT_IMPLEMENTATION
#undef main
#define main elastic_main
#define net elastic_net
#define accuracy elastic_accuracy
#include "examples/elastic.c"
#undef DT_IMPLEMENTATION
#undef main
#undef net
#undef accuracy
#define main two_devices_main
#define accuracy two_devices_accuracy
#define alexnet two_devices_alexnet
#include "examples/two_devices.c"
#undef DT_IMPLEMENTATION
#undef main
#undef accuracy
#undef alexnet
#define main batch_sweep_main
#define net batch_sweep_net
#define accuracy batch_sweep_accuracy
#define train batch_sweep_train
#define draw batch_sweep_draw
#include "examples/batch_sweep.c"
#undef DT_IMPLEMENTATION
#undef main
#undef net
#undef accuracy
#undef train
#undef draw
#define main finetune_main
#define accuracy finetune_accuracy
#include "examples/finetune.c"
#undef DT_IMPLEMENTATION
#undef main
#undef accuracy

UTEST_STATE();
static char self[4096];
int         main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "mnist")) return mnist_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "resnet")) return resnet_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "gpt")) return gpt_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "lstm")) return lstm_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "messages")) return messages_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "pipeline")) return pipeline_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "elastic")) return elastic_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "two_devices")) return two_devices_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "batch_sweep")) return batch_sweep_main(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "finetune")) return finetune_main(argc - 1, argv + 1);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    launchers_forget();
    return utest_main(argc, (const char *const *)argv);
}

/* Runs "launcher this-program arguments"; what it says goes to out, stderr and all. True: it ended well. */
static bool run(const char *launcher, const char *arguments, char *out, size_t nbytes)
{
    char command[9000];
    snprintf(command, sizeof command, "timeout -k 5 %.0f %s '%s' %s 2>&1", 100 * dt_test_slow(), launcher, self,
             arguments);
    bool ok = false;
    for (int turn = 0; turn < 3; turn++) { /* torchrun names a port that it does not hold: another program may take it meanwhile */
        FILE  *f = popen(command, "r");
        size_t n = f ? fread(out, 1, nbytes - 1, f) : 0;
        out[n] = 0;
        ok = f && pclose(f) == 0;
        if (!strstr(out, "Address already in use")) break;
    }
    if (!ok) printf("    %s:\n%s\n", command, out);
    return ok;
}
static const char *const digits = "mnist --data data/digits --epochs 2 --batch 50 --workers 1";
/* The same line as with --nproc 2, from one rank alone: the same training, whoever started it. */
static bool same_result(const char *launcher)
{
    static char out[65536], want[256];
    char        alone[256];
    if (!*want) {
        snprintf(alone, sizeof alone, "%s --nproc 2", digits);
        if (!run("env", alone, out, sizeof out)) return false;
        const char *line = strstr(out, "test accuracy 9"); /* over 90 % */
        if (!line || !strstr(line, "after 30 steps of 2 processes on data/digits\n"))
            return printf("    %s\n", out) < 0;
        snprintf(want, sizeof want, "%.*s", (int)strcspn(line, "\n"), line);
    }
    if (!run(launcher, digits, out, sizeof out)) return false;
    const char *line = strstr(out, want);
    if (line && !strstr(line + 1, want)) return true;
    printf("    expected \"%s\" once, got:\n%s\n", want, out);
    return false;
}
UTEST(mnist, trains_alike_under_dtrun) { EXPECT_TRUE(same_result("build/tools/dtrun -n 2")); }
UTEST(mnist, trains_alike_under_mpirun)
{
    char command[256];
    if (!launchers_mpirun(2, command, sizeof command)) UTEST_SKIP("Open MPI's mpirun is not installed");
    EXPECT_TRUE(same_result(command));
}
UTEST(mnist, trains_alike_under_torchrun)
{
    char command[1024];
    if (!launchers_torchrun(2, command, sizeof command)) UTEST_SKIP("torchrun (PyTorch) is not installed");
    EXPECT_TRUE(same_result(command));
}
UTEST(resnet, compares_one_process_with_two)
{
    static char out[65536];
    EXPECT_TRUE(
        run("env", "resnet --data data/digits --depth 8 --epochs 1 --batch 64 --lr 0.05 --compare 2", out, sizeof out));
    const char *table = strstr(out, "\nprocesses                 1            2\n");
    ASSERT_TRUE(table != NULL);
    EXPECT_TRUE(strstr(table, "batch                    64          128\n") != NULL);
    EXPECT_TRUE(strstr(table, "learning rate          0.05          0.1\n") != NULL);
    EXPECT_TRUE(strstr(table, "an epoch ") && strstr(table, "times as fast") && strstr(table, "test accuracy "));
    EXPECT_FALSE(run("env", "resnet --data data/digits --compare 1", out, sizeof out));
    EXPECT_TRUE(strstr(out, "--compare takes 2 or more processes") != NULL);
}
UTEST(resnet, takes_the_recipe_for_large_batches_under_dtrun)
{
    static char out[65536];
    EXPECT_TRUE(run("build/tools/dtrun -n 2",
                    "resnet --data data/digits --depth 8 --epochs 1 --batch 64 --lr 1 "
                    "--scale-lr --warmup 0.5 --lars --sync-bn",
                    out, sizeof out));
    EXPECT_TRUE(strstr(out, "2 processes:") && strstr(out, "test accuracy") && strstr(out, "lr 2"));
}

UTEST(options, are_listed_and_others_refused_by_each_example)
{
    static const char *const names[] = { "mnist", "resnet", "gpt", "lstm", "messages", "pipeline", "elastic", "two_devices", "finetune" };
    static char              out[65536];
    char                     arguments[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(arguments, sizeof arguments, "%s --help", names[i]);
        EXPECT_TRUE(run("env", arguments, out, sizeof out));
        EXPECT_TRUE(strstr(out, names[i]) == out && strchr(out, ':'));
        snprintf(arguments, sizeof arguments, "%s --no-such-option", names[i]);
        EXPECT_FALSE(run("env", arguments, out, sizeof out));
        EXPECT_TRUE(strstr(out, "there is no option --no-such-option") != NULL);
    }
    EXPECT_FALSE(run("env", "mnist --epoch 3", out, sizeof out));
    EXPECT_TRUE(strstr(out, "did you mean --epochs?") != NULL);
}

/* Where there is no CUDA, --device cuda is one line, and the training that --device cpu is. */
static bool goes_to_the_cpu(const char *arguments, const char *result)
{
    static char       out[65536], on_cpu[65536];
    static const char line[] = "dt_cuda: this program was built without CUDA (DT_USE_CUDA); training on the CPU\n";
    char              on[256];
    snprintf(on, sizeof on, "%s --device cuda", arguments);
    if (!run("env", on, out, sizeof out) || !run("env", arguments, on_cpu, sizeof on_cpu)) return false;
    const char *said = strstr(out, line), *got = strstr(out, result), *want = strstr(on_cpu, result);
    if (said && !strstr(said + 1, "dt_cuda") && !strstr(on_cpu, "dt_cuda") && got && want &&
        !strncmp(got, want, strcspn(want, "\n")))
        return true;
    printf("    %s\n    %s\n", out, on_cpu);
    return false;
}
UTEST(device, cuda_is_the_cpu_where_there_is_none)
{
    EXPECT_TRUE(goes_to_the_cpu("mnist --data data/digits --steps 2 --batch 20 --workers 1", "test accuracy "));
    EXPECT_TRUE(goes_to_the_cpu("mnist --data data/digits --steps 2 --batch 20 --gpus 2", "test accuracy "));
    EXPECT_TRUE(goes_to_the_cpu("resnet --data data/digits --steps 2 --batch 20 --depth 8", "test accuracy "));
    EXPECT_TRUE(goes_to_the_cpu("gpt --text LICENSE --steps 2 --layers 1 --dim 16 --heads 2 --context 16 --sample 9",
                                "parameters, loss "));
}
UTEST(device, is_one_that_there_is)
{
    static char out[65536];
    EXPECT_FALSE(run("env", "mnist --data data/digits --steps 2 --device tpu", out, sizeof out));
    EXPECT_TRUE(strstr(out, "--device tpu, expected cpu, cuda or cuda:N") != NULL);
    EXPECT_FALSE(run("env", "gpt --text LICENSE --steps 2 --device cuda:", out, sizeof out));
    EXPECT_TRUE(strstr(out, "--device cuda:, expected cpu, cuda or cuda:N") != NULL);
}

static size_t bytes_of(const char *path, void *buf, size_t nbytes)
{
    FILE  *f = fopen(path, "rb");
    size_t n = f ? fread(buf, 1, nbytes, f) : 0;
    if (f) fclose(f);
    return n;
}
/* The same picture, whoever drew its rows: ranks 1 and up, ranks - 1 of them (0: any number). It is written to a folder. */
static bool same_picture(const char *launcher, const char *arguments, int ranks)
{
    static char    out[65536];
    static uint8_t first[WIDTH * HEIGHT + 64], got[sizeof first];
    char          *dir = temp_dir(), here[4096], command[9000];
    const char    *at = out;
    int            workers = 0, all = 0;
    if (!getcwd(here, sizeof here)) here[0] = 0;
    snprintf(command, sizeof command, launcher, dir, here);
    bool   ok = run(command, arguments, out, sizeof out);
    size_t n = bytes_of(temp_in(dir, "mandelbrot.pgm"), got, sizeof got);
    for (int k, rows; (at = strstr(at, "rank ")) != NULL; at++) /* other lines may name ranks, too */
        if (sscanf(at, "rank %d computed %d rows", &k, &rows) == 2) workers += k == workers + 1, all += rows;
    if (ok && !first[0]) memcpy(first, got, sizeof first);
    ok = ok && (!ranks || workers == ranks - 1) && all == HEIGHT && n == 15 + WIDTH * HEIGHT && !memcmp(first, got, sizeof first);
    if (!ok) printf("    %s: %d rows of %d ranks, %d bytes\n%s\n", command, all, workers, (int)n, out);
    temp_remove(dir);
    return ok;
}
UTEST(messages, draws_one_picture_with_any_number_of_ranks)
{
    EXPECT_TRUE(same_picture("env -C '%s'", "messages 2", 2));
    EXPECT_TRUE(same_picture("env -C '%s'", "messages 4", 4));
    EXPECT_TRUE(same_picture("env -C '%s' DT_COMM_TRANSPORT=tcp", "messages 3", 3));
    EXPECT_TRUE(same_picture("env -C '%s' '%s/build/tools/dtrun' -n 2", "messages", 2));
}
/* A farm that starts without workers: one joins and is killed, another joins and draws the rest. */
UTEST(messages, a_worker_is_killed_and_another_joins)
{
    EXPECT_TRUE(same_picture("env -C '%s' DT_LOG=off sh -c '\"$0\" messages 1 & farm=$!; while [ ! -s mandelbrot.join ]; do sleep 0.01; done; "
                             "\"$0\" messages join & one=$!; sleep 0.05; kill -9 $one; \"$0\" messages join && wait $farm'",
                             "messages", 0));
}
UTEST(messages, draws_it_under_mpirun)
{
    char command[256], there[300];
    if (!launchers_mpirun(2, command, sizeof command)) UTEST_SKIP("Open MPI's mpirun is not installed");
    snprintf(there, sizeof there, "env -C '%%s' %s", command);
    EXPECT_TRUE(same_picture(there, "messages", 2));
}
UTEST(messages, says_what_it_cannot_do)
{
    static char out[65536];
    EXPECT_FALSE(run("env", "messages 2 /nowhere/picture.pgm", out, sizeof out));
    EXPECT_TRUE(strstr(out, "/nowhere/picture.pgm: No such file") != NULL);
    EXPECT_FALSE(run("env -C /", "messages join", out, sizeof out));
    EXPECT_TRUE(strstr(out, "mandelbrot.join: No such file") != NULL);
}

/* The digits of "... loss X" after the second step: the same for all schedules and numbers of ranks. */
static bool trains_in_stages(const char *launcher, const char *options, const char *result)
{
    static char out[65536], want[64];
    char       *dir = temp_dir(), arguments[4096], svg[64] = "";
    snprintf(arguments, sizeof arguments, "pipeline --depth 8 --batch 16 --micro 4 --steps 2 %s --run '%s/run.svg' --planned '%s/planned.svg'",
             options, dir, dir);
    bool        ok = run(launcher, arguments, out, sizeof out);
    const char *line = strstr(out, "2/2  loss "), *table = strstr(out, "crosses the cut");
    if (ok && line && !want[0]) snprintf(want, sizeof want, "%.16s", line);
    ok = ok && line && table && !strncmp(line, want, strlen(want)) && strstr(out, result) && strstr(out, "<- slowest");
    ok = ok && bytes_of(temp_in(dir, "run.svg"), svg, 5) == 5 && !strcmp(svg, "<svg ");
    ok = ok && bytes_of(temp_in(dir, "planned.svg"), svg, 5) == 5 && !strcmp(svg, "<svg ");
    if (!ok) printf("    %s, expected '%s':\n%s\n", options, want, out);
    temp_remove(dir);
    return ok;
}
UTEST(pipeline, trains_alike_with_every_schedule)
{
    EXPECT_TRUE(trains_in_stages("env", "--ranks 2", "in 2 stages on 2 ranks, 1f1b, 4 micro-batches"));
    EXPECT_TRUE(trains_in_stages("env", "--ranks 4 --schedule gpipe --estimate", "in 4 stages on 4 ranks, gpipe"));
    EXPECT_TRUE(trains_in_stages("env", "--ranks 2 --schedule interleaved", "in 4 stages on 2 ranks, interleaved"));
    EXPECT_TRUE(trains_in_stages("build/tools/dtrun -n 2", "--schedule zb_h1", "in 2 stages on 2 ranks, zb_h1"));
}
UTEST(pipeline, says_what_it_cannot_do)
{
    static char out[65536];
    EXPECT_FALSE(run("env", "pipeline --schedule fast", out, sizeof out));
    EXPECT_TRUE(strstr(out, "--schedule must be 1f1b, gpipe, interleaved or zb_h1") != NULL);
}
/* The last line names the loss, to the last digit: two devices that copy give that of one. */
/* .slots: the same weights with any number of members */
UTEST(elastic, learns_alike_alone_and_under_dtrun)
{
    static char out[2][20000];
    const char *by[] = { "env", "build/tools/dtrun -n 2" }, *at[2];
    for (int i = 0; i < 2; i++) {
        ASSERT_TRUE(run(by[i], "elastic --epochs 4 --slots 2", out[i], sizeof out[i]));
        at[i] = strstr(out[i], "test accuracy ");
        ASSERT_TRUE_MSG(at[i] && strstr(out[i], "180 steps, 0 deaths"), out[i]);
    }
    EXPECT_TRUE(!strncmp(at[0], at[1], strlen("test accuracy 90.00 %")));
}
/* With .slots a step has as many images, whoever is there: the number of steps says that each image counted once an epoch. */
UTEST(elastic, mnist_goes_on_without_a_process_that_is_killed)
{
    static char out[65536];
    char        more[9000];
    const char *arguments = "mnist --data data/digits --epochs 4 --batch 25 --slots 3 --workers 1 --elastic";
    EXPECT_TRUE(run("env", arguments, out, sizeof out)); /* one process, nobody dies: 1437 images in steps of 75 */
    EXPECT_TRUE_MSG(strstr(out, "after 80 steps of 1 process on") != NULL, out);
    for (int leader = 0; leader < 2; leader++) {
        /* the killed one: a child of dtrun that runs this program. Once an epoch is over, they train. */
        snprintf(more, sizeof more,
                 "sh -c 'f=$(mktemp); build/tools/dtrun --min 1 --max 3 -n 3 \"$0\" \"$@\" >$f 2>&1 & job=$!; "
                 "while ! grep -q \"epoch 1\" $f && kill -0 $job; do sleep 0.01; done; "
                 "for p in $(cat /proc/$job/task/*/children); do grep -q test_examples /proc/$p/comm && one=%s; done; kill -9 $one; "
                 "wait $job; s=$?; cat $f; rm $f; exit $s'",
                 leader ? "${one:-$p}" : "$p");
        EXPECT_TRUE(run(more, arguments, out, sizeof out));
        EXPECT_TRUE_MSG(strstr(out, " died: ") != NULL, out);
        const char *first = strstr(out, "epoch 1/4  loss "), *line = strstr(out, "test accuracy 9"), *last = first;
        for (const char *next = first; next; next = strstr(next + 1, "/4  loss ")) last = next; /* the new leader counts from its first */
        EXPECT_TRUE_MSG(first && atof(strstr(last, "loss ") + 5) < atof(first + 16) / 4, out);
        EXPECT_TRUE_MSG(line && strstr(line, " % after 80 steps of "), out);
    }
}
UTEST(two_devices, train_as_one)
{
    static char one[65536], two[65536];
    for (int half = 0; half < 2; half++) {
        char        line[200];
        const char *more = half ? "--opt-level O2" : "";
        snprintf(line, sizeof line, "two_devices --devices cpu,cpu --steps 8 %s", more);
        EXPECT_TRUE(run("env", line, one, sizeof one));
        snprintf(line, sizeof line, "two_devices --steps 8 %s", more); /* cpu,cpu:1 */
        EXPECT_TRUE(run("env", line, two, sizeof two));
        char *a = strstr(one, "loss "), *b = strstr(two, "loss ");
        char *end = a ? strstr(a, " on cpu and cpu\n") : NULL;
        EXPECT_TRUE(end && b && !strncmp(a, b, (size_t)(end - a)) && strstr(b, " after 8 steps on cpu and cpu:1\n"));
        EXPECT_TRUE(strstr(two, "cpu:1: ") && !strstr(one, "cpu:1"));
    }
    EXPECT_FALSE(run("env", "two_devices --devices cpu,gpu", one, sizeof one));
    EXPECT_TRUE(strstr(one, "--devices: 'gpu', expected cpu, cpu:1 or cuda:N") != NULL);
}
/* Small batches reach 90 %; a rate that is far too large does not, and its curve has a gap. */
UTEST(batch_sweep, measures_and_draws)
{
    static char out[65536];
    char       *dir = temp_dir(), line[4500];
    snprintf(line, sizeof line, "batch_sweep --batches 16,64 --target 90 --epochs 10 --seeds 1 --svg %s/sweep.svg", dir);
    EXPECT_TRUE(run("env", line, out, sizeof out));
    EXPECT_TRUE(strstr(out, "\n    16 ") && strstr(out, "\n    64 ") && !strstr(out, "not reached"));
    EXPECT_TRUE(strstr(out, "the least time to 90 % of the test images: batch ") != NULL);
    FILE  *f = fopen(temp_in(dir, "sweep.svg"), "r");
    size_t n = f ? fread(out, 1, sizeof out - 1, f) : 0;
    if (f) fclose(f);
    out[n] = 0;
    EXPECT_TRUE(strstr(out, "images/s") && strstr(out, "epochs to the accuracy") && strstr(out, "LARS") && strstr(out, "</svg>"));
    snprintf(line, sizeof line, "batch_sweep --batches 64 --target 90 --epochs 1 --seeds 1 --lr 1000000 --lars 1000000 --svg %s/none.svg", dir);
    EXPECT_TRUE(run("env", line, out, sizeof out));
    EXPECT_TRUE(strstr(out, "not reached") && !strstr(out, "the least time"));
    temp_remove(dir);
    static const char *const bad[] = { "--batches 16,x", "--batches 0", "--batches 9999999", "--seeds 0", "--target 101", "--data nowhere" };
    for (int i = 0; i < 6; i++) {
        snprintf(line, sizeof line, "batch_sweep %s --svg /dev/null", bad[i]);
        EXPECT_FALSE(run("env", line, out, sizeof out));
    }
}
/* The loss of the sixth step, to two decimals: on a grid as on one rank. */
UTEST(gpt, on_a_grid_learns_as_on_one_rank)
{
    static char              one[65536], many[65536];
    static const char *const grids[][2] = { { "--pipe 2", "data 1 x pipe 2 x tensor 1" }, { "--pipe 2 --tensor 2 --data 1", "data 1 x pipe 2 x tensor 2" } };
    const char *arguments = "gpt --text LICENSE --steps 6 --layers 3 --dim 16 --heads 2 --context 16 --batch 4 --sample 1";
    EXPECT_TRUE(run("env", arguments, one, sizeof one));
    for (int i = 0; i < 2; i++) {
        char split[256];
        snprintf(split, sizeof split, "%s %s", arguments, grids[i][0]);
        EXPECT_TRUE(run("env", split, many, sizeof many));
        const char *a = strstr(one, "6/6  loss "), *b = strstr(many, "6/6  loss ");
        ASSERT_TRUE(a && b && strstr(many, grids[i][1]));
        EXPECT_EQ(0, strncmp(a, b, strlen("6/6  loss 5.12")));
    }
    char *two = many;
    EXPECT_FALSE(run("env", "gpt --text LICENSE --layers 1 --pipe 2", two, sizeof many));
    EXPECT_TRUE(strstr(two, "--pipe 2 needs as many --layers") != NULL);
}
static const char *const tiny_gpt2 = "--load tests/golden/gpt2.safetensors --tokenizer tests/golden/bpe.json --heads 2";
UTEST(gpt, continues_a_prompt_as_transformers_does)
{
    static char out[65536], fixed[65536];
    char        arguments[512];
    for (int i = 0; i < 2; i++) {
        snprintf(arguments, sizeof arguments, "gpt %s --prompt '%s' --sample 40 --steps 0 %s", tiny_gpt2, gpt2_prompt, i ? "--top-k 1" : "--temperature 0");
        EXPECT_TRUE(run("env", arguments, out, sizeof out));
        fixed[bpe_repair(out, strlen(out), fixed, sizeof fixed - 1)] = 0;
        EXPECT_TRUE_MSG(!strncmp(fixed, gpt2_text, strlen(gpt2_text)) && !strcmp(fixed + strlen(gpt2_text), "\n"), fixed);
    }
    /* more tokens than the context of 64 holds */
    snprintf(arguments, sizeof arguments, "gpt %s --prompt x --sample 150 --top-k 5 --temperature 0.8 --steps 0", tiny_gpt2);
    EXPECT_TRUE(run("env", arguments, out, sizeof out));
    EXPECT_TRUE(strlen(out) > 150);
}
UTEST(gpt, learns_more_and_saves)
{
    static char out[65536];
    char       *dir = temp_dir(), arguments[1024];
    double      first = 0, last = 0;
    snprintf(arguments, sizeof arguments, "gpt %s --text LICENSE --context 16 --batch 4 --steps 40 --sample 5 --save '%s/more.safetensors'", tiny_gpt2, dir);
    EXPECT_TRUE(run("env", arguments, out, sizeof out));
    const char *at = strstr(out, "  loss ");
    for (; at; at = strstr(at + 1, "  loss ")) {
        if (sscanf(at, "  loss %lf", &last) != 1) break;
        if (first == 0) first = last;
    }
    EXPECT_TRUE_MSG(first > last && last > 0, out);
    snprintf(arguments, sizeof arguments, "gpt --load '%s/more.safetensors' --tokenizer tests/golden/bpe.json --heads 2 --steps 0 --sample 5", dir);
    EXPECT_TRUE(run("env", arguments, out, sizeof out));
    temp_remove(dir);
}
UTEST(gpt, refuses_files_that_do_not_fit)
{
    static char out[65536];
    EXPECT_FALSE(run("env", "gpt --load tests/golden/foreign.safetensors --steps 0", out, sizeof out));
    EXPECT_TRUE(strstr(out, "it is not a GPT-2 with the names of HuggingFace") != NULL);
    EXPECT_FALSE(run("env", "gpt --load tests/golden/gpt2.safetensors --heads 2 --steps 0", out, sizeof out));
    EXPECT_TRUE(strstr(out, "tests/golden/tokenizer.json: this file cannot be opened") != NULL);
    EXPECT_FALSE(run("env", "gpt --load tests/golden/gpt2.safetensors --heads 3 --steps 0", out, sizeof out));
    EXPECT_TRUE(strstr(out, "--heads 3 must divide the columns") != NULL);
    EXPECT_FALSE(run("env", "gpt --load tests/golden/gpt2.safetensors --context 65 --steps 0", out, sizeof out));
    char arguments[512], *dir = temp_dir();
    /* a tensor is missing */
    dt_archive *all = dt_archive_open("tests/golden/gpt2.safetensors"), *less = dt_archive_new();
    for (int64_t i = 0; i < dt_archive_count(all); i++) {
        dt_archive_entry e;
        dt_archive_info(all, i, &e);
        if (!strstr(e.name, "h.1.ln_2.bias")) dt_archive_add_data(less, e.name, e.dtype, e.shape, dt_archive_data(all, i));
    }
    EXPECT_OK(dt_archive_write(less, temp_in(dir, "less.safetensors")));
    dt_archive_free(all), dt_archive_free(less);
    snprintf(arguments, sizeof arguments, "gpt --load '%s/less.safetensors' --heads 2 --steps 0", dir);
    EXPECT_FALSE(run("env", arguments, out, sizeof out));
    EXPECT_TRUE(strstr(out, "has 27 tensors, expected 12 for each of 2 layers and 4 more") != NULL);
    temp_remove(dir);
    snprintf(arguments, sizeof arguments, "gpt %s --text /dev/null --steps 1", tiny_gpt2);
    EXPECT_FALSE(run("env", arguments, out, sizeof out));
    EXPECT_TRUE(strstr(out, "/dev/null has 0 tokens, expected more than --context 64") != NULL);
    EXPECT_FALSE(run("env", "gpt --load tests/golden/gpt2.safetensors --pipe 2", out, sizeof out));
    EXPECT_TRUE(strstr(out, "--load is for one process") != NULL);
}
UTEST(finetune, goes_on_from_a_file_with_a_new_head)
{
    static char out[65536];
    char       *dir = temp_dir(), arguments[1024];
    double      before = 0, after = 0, first = 0, last = 0;
    snprintf(arguments, sizeof arguments, "finetune --make '%s/small.safetensors' --width 0.125 --side 32 --epochs 1", dir);
    EXPECT_TRUE(run("env", arguments, out, sizeof out));
    for (int freeze = 0; freeze < 2; freeze++) {
        snprintf(arguments, sizeof arguments, "finetune --load '%s/small.safetensors' --width 0.125 --side 32 --steps 25 %s", dir, freeze ? "--freeze --lr 0.05" : "");
        EXPECT_TRUE(run("env", arguments, out, sizeof out));
        const char *a = strstr(out, "test accuracy "), *b = a ? strstr(a + 1, "test accuracy ") : NULL;
        ASSERT_TRUE_MSG(b && strstr(out, "120 tensors of ") && strstr(out, "the layer 'fc' is new"), out);
        EXPECT_TRUE(sscanf(a, "test accuracy %lf", &before) == 1);
        EXPECT_TRUE(sscanf(b, "test accuracy %lf %% after 25 steps, loss %lf at the start, %lf", &after, &first, &last) == 3);
        EXPECT_TRUE_MSG(after > before + 10 && last < first, out);
        EXPECT_TRUE(strstr(out, freeze ? " parameters, 650 of them learn" : "177362 parameters, 177362 of them learn") != NULL);
    }
    snprintf(arguments, sizeof arguments, "finetune --load '%s/small.safetensors' --width 0.25 --side 32", dir);
    EXPECT_FALSE(run("env", arguments, out, sizeof out));
    EXPECT_TRUE(strstr(out, "'conv1.weight' has shape (8, 3, 7, 7), the tensor has (16, 3, 7, 7)") != NULL);
    snprintf(arguments, sizeof arguments, "finetune --load '%s/small.safetensors' --width 0.125 --side 32 --strip module.", dir);
    EXPECT_FALSE(run("env", arguments, out, sizeof out));
    EXPECT_TRUE(strstr(out, "has no tensor 'module.conv1.weight'") != NULL);
    temp_remove(dir);
}
UTEST(lstm, learns_and_writes)
{
    static char out[8192];
    for (int i = 0; i < 2; i++) {
        char arguments[200];
        snprintf(arguments, sizeof arguments, "lstm --text LICENSE --steps 40 --hidden 24 --layers 2 --batch 4 --chunk 8 --sample 30%s", i ? " --gru" : "");
        EXPECT_TRUE_MSG(run("env", arguments, out, sizeof out), out); /* it ends well only if the loss has fallen */
        EXPECT_TRUE(strstr(out, "at the start 5.") != NULL);
    }
    EXPECT_FALSE(run("env", "lstm --text LICENSE --batch 1000", out, sizeof out));
    EXPECT_TRUE(strstr(out, "it needs more than --batch times --chunk") != NULL);
    EXPECT_FALSE(run("env", "lstm --text none --steps 1", out, sizeof out));
}
