/* The mistakes of a first hour, and what dt says about each: what happened, where, and what to do.
   run: no-valgrind */
#define _GNU_SOURCE
#include "dt_test.h"
#include "temp_files.h"

#include "dt_data.h"
#include "dt_dist.h"
#include "dt_nn.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dt_tensor *fc(dt_model *m) { return dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4); }
/* The pending error has all parts, each after a '|'; clears it. */
static bool says(const char *parts)
{
    char        part[400];
    const char *text = dt_error();
    bool        good = text != NULL;
    for (const char *at = parts; *at && good; at += strcspn(at, "|"), at += *at == '|') {
        snprintf(part, sizeof part, "%.*s", (int)strcspn(at, "|"), at);
        if (strstr(text, part)) continue;
        printf("    found:    %s\n    expected: ... %s ...\n", text, part);
        good = false;
    }
    if (!text) printf("    no error, expected: %s\n", parts);
    dt_error_clear();
    dt_end();
    return good;
}

UTEST(mistake, a_wrong_shape_into_a_layer)
{
    dt_model *m = dt_model_new(.seed = 1);
    fc(m);
    dt_end();
    dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 5)), .out = 4);
    EXPECT_TRUE(says("dt_linear 'fc'|'fc.weight' is (4, 3)|this call needs (4, 5)|different names"));
    dt_conv2d(m, "conv", dt_ones(DT_SHAPE(2, 3)), .out = 4, .kernel = 3);
    EXPECT_TRUE(says("dt_conv2d 'conv'|x (2, 3)|needs x (n, c, h, w)"));
    dt_matmul(dt_ones(DT_SHAPE(2, 3)), dt_ones(DT_SHAPE(2, 3)));
    EXPECT_TRUE(says("dt_matmul|a (2, 3) and b (2, 3)|must equal"));
    dt_model_free(m);
}
UTEST(mistake, labels_out_of_range_or_of_another_number)
{
    int64_t label[3] = { 1, 10, 2 };
    dt_cross_entropy(dt_ones(DT_SHAPE(3, 10)), dt_from(label, DT_SHAPE(3), .dtype = DT_I64));
    EXPECT_TRUE(says("cross_entropy|target 10 at position 1|10 classes|must be in 0..9"));
    dt_cross_entropy(dt_ones(DT_SHAPE(2, 10)), dt_from(label, DT_SHAPE(3), .dtype = DT_I64));
    EXPECT_TRUE(says("logits (2, 10) and target (3) do not match|(n, classes, ...) and (n, ...)"));
}
UTEST(mistake, a_tensor_after_its_step)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_tensor    *loss = dt_mean(fc(m));
    dt_backward(loss);
    dt_step(opt);
    EXPECT_TRUE(isnan(dt_item(loss)));
    EXPECT_TRUE(says("already released|dt_keep()|dt_end() or dt_step()"));
    dt_backward(loss);
    EXPECT_TRUE(says("dt_backward|already released"));
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(mistake, a_name_used_twice)
{
    dt_model *m = dt_model_new(.seed = 1);
    fc(m);
    fc(m);
    EXPECT_TRUE(says("dt_linear 'fc'|used twice in one forward|another name|.shared = true"));
    dt_model_free(m);
}
UTEST(mistake, a_loss_that_is_not_a_number)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_backward(dt_mul_scalar(dt_mean(fc(m)), NAN));
    EXPECT_TRUE(dt_step(opt) == DT_ERR_NUMERIC);
    EXPECT_TRUE(says("the loss (of 'mul_scalar') was nan in step 1|'fc.|unchanged|smaller .lr"));
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(mistake, a_wrong_path)
{
    dt_mnist_open("/no/such", DT_TRAIN);
    EXPECT_TRUE(says("dt_mnist_open|/no/such/train-images-idx3-ubyte|No such file|pass the directory"));
    dt_model *m = dt_model_new(.seed = 1);
    dt_model_load(m, "/no/such.safetensors");
    EXPECT_TRUE(says("dt_model_load|/no/such.safetensors|No such file"));
    fc(m);
    dt_model_save(m, "/dev/null/model.safetensors");
    EXPECT_TRUE(says("dt_model_save|/dev/null/model.safetensors|Not a directory"));
    dt_model_free(m);
}
UTEST(mistake, an_optimiser_made_twice)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1), *again = dt_sgd(m, .lr = 0.1);
    dt_backward(dt_mean(fc(m)));
    EXPECT_OK(dt_step(opt));
    dt_backward(dt_mean(fc(m)));
    dt_step(again);
    EXPECT_TRUE(says("dt_sgd|no parameters to update|belong to an earlier optimiser|.params"));
    dt_optimizer_free(again);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(mistake, backward_twice)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *loss = dt_mean(fc(m));
    EXPECT_OK(dt_backward(loss));
    dt_backward(loss);
    EXPECT_TRUE(says("dt_backward|'mean' freed|.retain_graph = true"));
    dt_no_grad_begin();
    loss = dt_mean(fc(m));
    dt_no_grad_end();
    dt_backward(loss);
    EXPECT_TRUE(says("dt_backward|dt_no_grad|dt_set_requires_grad"));
    dt_model_free(m);
}

/* ---- dt_end */
static int  warnings;
static char warning[1024];
static void hear(void *user, int level, const char *text)
{
    (void)user;
    if (level != DT_LOG_WARN || !strstr(text, "dt_end()")) return;
    warnings++;
    snprintf(warning, sizeof warning, "%s", text);
}
static int item(void *user, int64_t i, void *x, void *y)
{
    (void)user, (void)y;
    *(float *)x = (float)i;
    return 0;
}
static void evaluate(int batches, bool ends, bool grad)
{
    dt_dataset *set = dt_source(.n = batches, .x_shape = DT_SHAPE(1), .get = item);
    dt_loader  *in = dt_loader_new(set, .batch = 1);
    warnings = 0;
    if (!grad) dt_no_grad_begin();
    for (int epoch = 0; epoch < 2; epoch++)
        for (dt_batch b; dt_loader_next(in, &b);) {
            dt_sum(b.x);
            if (ends) dt_end();
        }
    if (!grad) dt_no_grad_end();
    dt_loader_free(in);
    dt_dataset_free(set);
    dt_end();
}
UTEST(mistake, an_evaluation_that_never_ends_its_steps)
{
    dt_set_log(hear, NULL);
    evaluate(300, true, false);
    EXPECT_EQ(0, warnings);
    evaluate(40, false, false); /* so few do no harm */
    EXPECT_EQ(0, warnings);
    evaluate(300, false, false);
    EXPECT_EQ(1, warnings); /* once, although there were two epochs of it */
    EXPECT_TRUE(strstr(warning, "dt_loader_next: 100 batches without dt_end()") && strstr(warning, "MiB"));
    EXPECT_TRUE(strstr(warning, "dt_loader_next(in, &b); dt_end())") != NULL);
    evaluate(400, false, true); /* gradients are accumulated, perhaps */
    EXPECT_EQ(0, warnings);
    evaluate(1200, false, true);
    EXPECT_EQ(1, warnings);
    dt_set_log(NULL, NULL);
}

/* ---- ranks */
static int rank_main(void *arg) /* rank 0 has one batch more than rank 1 */
{
    char         *dir = (char *)arg;
    dt_comm      *c = dt_comm_init(.timeout = 60);
    int           rank = dt_comm_rank(c);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *ddp = dt_ddp_new(m, c);
    for (int i = 0; i < (rank ? 2 : 3) && !dt_error(); i++) {
        dt_backward(dt_mean(fc(m)));
        dt_step(opt);
    }
    dt_ddp_free(ddp);
    const char *e = dt_error() ? dt_error() : "";
    temp_put(dir, rank ? "1" : "0", e, strlen(e) + 1);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_comm_free(c);
    return 0;
}
UTEST(mistake, ranks_with_different_numbers_of_batches)
{
    char *dir = temp_dir(), text[2][2048];
    setenv("DT_LOG", "off", 1);
    EXPECT_EQ(0, dt_spawn(2, rank_main, dir));
    unsetenv("DT_LOG");
    for (int r = 0; r < 2; r++) {
        FILE  *f = fopen(temp_in(dir, r ? "1" : "0"), "rb");
        size_t n = f ? fread(text[r], 1, sizeof text[r] - 1, f) : 0;
        text[r][n] = 0;
        if (f) fclose(f);
        EXPECT_TRUE(strstr(text[r], ".drop_last") && strstr(text[r], "dt_ddp_more"));
    }
    EXPECT_TRUE(
        strstr(text[0], "rank 1 has ended its training (it has no more batches), but this rank (0) is in step 3") !=
        NULL);
    EXPECT_TRUE(strstr(text[1], "this rank (1) has ended its training after step 2, but other ranks continue") != NULL);
    temp_remove(dir);
}

/* ---- the implementation */
static bool link_says(const char *first, const char *second, const char *what)
{
    char *dir = temp_dir(), command[9000], out[8192];
    temp_put(dir, "a.c", first, strlen(first));
    temp_put(dir, "b.c", second, strlen(second));
    snprintf(command, sizeof command, "cc -O0 -I. '%s/a.c' '%s/b.c' -o '%s/x' -lm -lpthread 2>&1", dir, dir, dir);
    FILE  *p = popen(command, "r");
    size_t n = p ? fread(out, 1, sizeof out - 1, p) : 0;
    out[n] = 0;
    bool good = p && pclose(p) != 0 && strstr(out, what);
    if (!good) printf("    %s\n    expected: ... %s ...\n", out, what);
    temp_remove(dir);
    return good;
}
UTEST(mistake, no_implementation_or_two)
{
    static const char user[] = "#include \"dt_base.h\"\nint main(void) { return dt_check(\"x\"); }\n";
    static const char with[] =
        "#define DT_IMPLEMENTATION\n#include \"dt_base.h\"\nint main(void) { return dt_check(\"x\"); }\n";
    static const char more[] = "#define DT_IMPLEMENTATION\n#include \"dt_base.h\"\n";
    if (system("command -v cc >/dev/null")) UTEST_SKIP("there is no cc");
    EXPECT_TRUE(link_says(user, "extern int unused;\n", "dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c"));
    EXPECT_TRUE(link_says(with, more, "multiple definition"));
    EXPECT_TRUE(link_says(with, more, "link_dt_c__or_define_DT_BASE_IMPLEMENTATION__in_exactly_one_file"));
}

UTEST_MAIN()
