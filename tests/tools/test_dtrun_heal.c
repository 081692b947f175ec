/* test_dtrun_heal.c: trainings with dt_elastic.h under dtrun: ranks, machines and dtrun itself are killed.
   run: alone, long, asan-later */
#define _GNU_SOURCE
#include "dt_elastic.h"
#include "harness.h"
#include "temp_files.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

UTEST_STATE();

/* ==================================================================================================== the training */
static dt_elastic *elastic;
static void        on_term(int sig)
{
    (void)sig;
    dt_elastic_leave(elastic);
}
static dt_tensor *net(dt_model *m, dt_tensor *x) { return dt_linear(m, "b", dt_linear(m, "a", x, .out = 16, .act = DT_ACT_RELU), .out = 1); }
/* argv: a directory, epochs, ms of a step. With .slots the weights are those of a run without deaths, bit for bit. */
static int train(char **argv)
{
    static float x[96][4], y[96][1];
    for (int i = 0; i < 96; i++) y[i][0] = x[i][i % 4] = (float)(i * 37 % 96) / 96;
    int64_t        epochs = atoi(argv[1]);
    dt_dataset    *set = dt_arrays(x, 96, .x_shape = DT_SHAPE(4), .y = y, .y_dtype = DT_F32, .y_shape = DT_SHAPE(1));
    dt_loader     *in = dt_loader_new(set, .batch = 8, .shuffle = true);
    dt_model      *m = dt_model_new(.seed = 1);
    dt_optimizer  *opt = dt_sgd(m, .lr = 0.05f, .momentum = 0.9f);
    dt_checkpoint *save = dt_checkpoint_new(argv[0], .model = m);
    elastic = dt_elastic_new(m, opt, in, .checkpoint = save, .ddp = { .slots = 4 }, .comm = { .timeout = 5 });
    signal(SIGTERM, on_term);
    printf("ready %s %d\n", getenv("DT_MEMBER"), (int)getpid());
    fflush(stdout);
    while (dt_elastic_epoch(elastic) < epochs)
        for (dt_batch b; dt_elastic_next(elastic, &b);) {
            dt_backward(dt_mse_loss(net(m, b.x), b.y));
            if (dt_elastic_step(elastic)) poll(NULL, 0, atoi(argv[2]));
        }
    uint64_t hash = 0;
    if (dt_elastic_epoch(elastic) == epochs) {
        static float      value[256];
        dt_parameter_info p;
        for (int i = 0; i < dt_model_count(m); i++) {
            dt_model_get(m, i, &p);
            if (dt_nbytes(p.value) > sizeof value || dt_copy_out(p.value, value, dt_nbytes(p.value)) != DT_OK) return 2;
            for (size_t k = 0; k < dt_nbytes(p.value); k++) hash = hash * 1000003 + ((const uint8_t *)value)[k];
        }
        printf("steps %d, weights %016llx\n", (int)dt_elastic_steps(elastic), (unsigned long long)hash);
    }
    dt_elastic_free(elastic);
    dt_checkpoint_free(save);
    dt_optimizer_free(opt);
    dt_loader_free(in);
    dt_model_free(m);
    dt_dataset_free(set);
    return dt_check("train");
}

/* ==================================================================================================== running it */
static char self[4096];
typedef struct run {
    pid_t pid;
    char *dir;  /* log: what dtrun and the ranks say */
    char  text[1 << 18];
} run;
static bool tools(void) { return !access("build/tools/dtrun", X_OK); }
static void run_start(run *r, const char *flags, int epochs, int ms)
{
    char command[14000], path[4200];
    r->dir = temp_dir();
    snprintf(path, sizeof path, "#!/bin/sh\necho $$ > '%s/agent-'$1\nshift\nexec sh -c \"$1\"\n", r->dir);
    chmod(temp_put(r->dir, "ssh", path, strlen(path)), 0700);
    snprintf(path, sizeof path, "%s/control", r->dir);
    setenv("DTRUN_DIR", path, 1);
    snprintf(command, sizeof command, "exec build/tools/dtrun %s --ssh %s/ssh %s train %s/save %d %d > %s/log 2>&1 < /dev/null", flags, r->dir, self,
             r->dir, epochs, ms, r->dir);
    fflush(NULL);
    if ((r->pid = fork()) == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
}
static const char *run_log(run *r)
{
    FILE  *f = fopen(temp_in(r->dir, "log"), "r");
    size_t n = f ? fread(r->text, 1, sizeof r->text - 1, f) : 0;
    r->text[n] = 0;
    if (f) fclose(f);
    return r->text;
}
static int times(run *r, const char *what)
{
    int n = 0;
    for (const char *p = run_log(r); (p = strstr(p, what)); p++) n++;
    return n;
}
static bool until(run *r, const char *what, int n) /* the log has it so many times */
{
    int64_t limit = dt_test_ns() + (int64_t)(30e9 * dt_test_slow());
    while (times(r, what) < n) {
        if (dt_test_ns() > limit || waitpid(r->pid, NULL, WNOHANG | __WALL) > 0) {
            printf("   no '%s' %d times: %s\n", what, n, run_log(r));
            return false;
        }
        poll(NULL, 0, 5);
    }
    return true;
}
static int pid_of(run *r, int rank)
{
    char what[40];
    snprintf(what, sizeof what, "ready %d ", rank);
    const char *p = strstr(run_log(r), what);
    return p ? atoi(p + strlen(what)) : 0;
}
static int run_end(run *r) /* the exit status, or -1 */
{
    int     status = 0;
    int64_t limit = dt_test_ns() + (int64_t)(60e9 * dt_test_slow());
    while (waitpid(r->pid, &status, WNOHANG) == 0) {
        if (dt_test_ns() > limit) {
            printf("   it does not end: %s\n", run_log(r));
            kill(r->pid, SIGKILL);
            waitpid(r->pid, NULL, 0);
            return -1;
        }
        poll(NULL, 0, 5);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
static void weights(run *r, char out[40]) /* of all ranks that ended: "?" if they differ or there are none */
{
    const char *p = strstr(run_log(r), "steps ");
    snprintf(out, 40, "%.39s", p ? p : "?");
    if (strchr(out, '\n')) *strchr(out, '\n') = 0;
    for (; p; p = strstr(p + 1, "steps "))
        if (strncmp(p, out, strlen(out)) != 0 && strstr(p, "weights")) snprintf(out, 40, "?");
}
static void run_free(run *r)
{
    temp_remove(r->dir);
    free(r);
}
static run *run_new(void) { return (run *)calloc(1, sizeof(run)); }

/* ==================================================================================================== */
enum { EPOCHS = 40 };
static void calm(char out[40])
{
    run *r = run_new();
    run_start(r, "-n 1 --max 1", EPOCHS, 0);
    run_end(r);
    weights(r, out);
    run_free(r);
}
UTEST(heal, killed_ranks_are_replaced_and_the_weights_are_those_of_a_calm_run)
{
    char want[40], got[40];
    if (!tools()) UTEST_SKIP("build/tools/dtrun is not built");
    calm(want);
    EXPECT_TRUE(strncmp(want, "steps 120, ", 11) == 0);
    run *r = run_new();
    int  kills = dt_test_quick() ? 4 : 12, alive[3] = { 0, 1, 2 };
    run_start(r, "-n 3 --min 1 --max 3 --max-restarts 100", EPOCHS, 40);
    for (int k = 0; k < kills; k++) {
        int which = k % 3; /* the leader, or another one */
        ASSERT_TRUE(until(r, "ready ", 3 + k));
        ASSERT_TRUE(until(r, " has joined: 3 ranks", k));
        ASSERT_GT(pid_of(r, alive[which]), 0);
        kill(pid_of(r, alive[which]), SIGKILL);
        for (int i = which; i < 2; i++) alive[i] = alive[i + 1];
        alive[2] = 3 + k;
    }
    EXPECT_EQ(0, run_end(r));
    weights(r, got);
    EXPECT_STREQ(want, got);
    EXPECT_EQ(kills, times(r, " died: killed by SIGKILL"));
    if (strcmp(want, got) != 0) printf("%s\n", run_log(r));
    run_free(r);
}
UTEST(heal, a_lost_machine_is_replaced_by_another)
{
    char want[40], got[40], pid[20] = "";
    if (!tools()) UTEST_SKIP("build/tools/dtrun is not built");
    calm(want);
    run *r = run_new();
    run_start(r, "-n 1 --hosts 127.0.0.1,127.0.0.2,127.0.0.3 --max 2 --min 1", EPOCHS, 20);
    ASSERT_TRUE(until(r, "ready ", 2));
    poll(NULL, 0, 100); /* some steps */
    FILE *f = fopen(temp_in(r->dir, "agent-127.0.0.1"), "r");
    ASSERT_TRUE(f && fgets(pid, sizeof pid, f));
    fclose(f);
    kill(atoi(pid), SIGKILL);
    EXPECT_EQ(0, run_end(r));
    EXPECT_EQ(1, times(r, "machine 127.0.0.1 is lost"));
    EXPECT_EQ(1, times(r, "rank 2 on 127.0.0.3 has joined: 2 ranks"));
    weights(r, got);
    EXPECT_STREQ(want, got);
    run_free(r);
}
UTEST(heal, ranks_write_a_checkpoint_when_dtrun_is_killed)
{
    if (!tools()) UTEST_SKIP("build/tools/dtrun is not built");
    run *r = run_new();
    int  pid[2], alive = 2;
    run_start(r, "-n 2 --min 1", 100000, 5);
    ASSERT_TRUE(until(r, "ready ", 2));
    for (int i = 0; i < 2; i++) pid[i] = pid_of(r, i);
    poll(NULL, 0, 300);
    kill(r->pid, SIGKILL);
    run_end(r);
    int64_t limit = dt_test_ns() + (int64_t)(15e9 * dt_test_slow());
    for (; alive > 0 && dt_test_ns() < limit; poll(NULL, 0, 5)) {
        alive = 0;
        for (int i = 0; i < 2; i++) alive += kill(pid[i], 0) == 0;
    }
    EXPECT_EQ(0, alive);
    DIR           *d = opendir(temp_in(r->dir, "save"));
    struct dirent *e;
    int            files = 0;
    while (d && (e = readdir(d))) files += strstr(e->d_name, ".safetensors") != NULL;
    if (d) closedir(d);
    EXPECT_GE(files, 1);
    run_free(r);
}
int main(int argc, char **argv)
{
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return 1;
    if (argc == 5 && strcmp(argv[1], "train") == 0) return train(argv + 2);
    return utest_main(argc, (const char *const *)argv);
}
