/* test_scale.c: the planner's models against published counts, predictions computed by hand, laws that hold for every cluster,
   the search against trying everything, memory, units, and what is refused
   run: -O1 */
#include "dt_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long test_allocs = -1; /* so many succeed; negative: all */
static bool alloc_fails(void) { return test_allocs == 0 || (test_allocs > 0 && test_allocs-- == 0); }
#define DT_COMM_MALLOC(n) (alloc_fails() ? NULL : malloc(n))
#define DT_COMM_REALLOC(p, n) (alloc_fails() ? NULL : realloc(p, n))
#define DT_COMM_FREE(p) free(p)
#define DT_PLAN_IMPLEMENTATION
#define DT_SCALE_IMPLEMENTATION
#include "dt_scale.h"

UTEST_MAIN()

static bool said(const char *what)
{
    const char *e = dt_plan_error();
    if (e && strstr(e, what)) return true;
    printf("    found: %s\n    expected: ... %s ...\n", e ? e : "(no error)", what);
    return false;
}
static dt_scale_opts opts(void)
{
    dt_scale_opts o;
    memset((void *)&o, 0, sizeof o);
    return o;
}

/* ---- models */
static const struct {
    const char *name;
    double      params, flop; /* published */
    const char *source;
} published[] = {
    { "alexnet", 61100840, 2 * 0.714e9, "torchvision" },
    { "alexnet-2gpu", 60965224, 2 * 0.724e9, "the Caffe model that follows the paper" },
    { "vgg16", 138357544, 2 * 15.47e9, "torchvision" },
    { "inception-v3", 23834568, 2 * 5.713e9, "torchvision without the second classifier" },
    { "resnet18", 11689512, 2 * 1.814e9, "torchvision" },
    { "resnet50", 25557032, 2 * 4.089e9, "torchvision" },
    { "resnet101", 44549160, 2 * 7.801e9, "torchvision" },
    { "resnet152", 60192808, 2 * 11.514e9, "torchvision" },
    /* operations of a forward: 24 s h^2 l (1 + s/6h) + 2 s h V, Narayanan et al., 2104.04473 */
    { "gpt2", 124439808, 24.0 * 1024 * 768 * 768 * 12 * (1 + 1024 / 4608.0) + 2.0 * 1024 * 768 * 50257, "transformers" },
    { "gpt2-xl", 1557611200, 24.0 * 1024 * 1600 * 1600 * 48 * (1 + 1024 / 9600.0) + 2.0 * 1024 * 1600 * 50257, "transformers" },
    /* two for each parameter that multiplies, and 4 s^2 h for the scores of each layer */
    { "llama3-8b", 8030261248, 2.0 * 8192 * (8030261248.0 - 128256 * 4096.0) + 4.0 * 8192 * 8192 * 4096 * 32, "transformers" },
    { "bert-large", 335141888, 24.0 * 512 * 1024 * 1024 * 24 * (1 + 512 / 6144.0) + 2.0 * 512 * 1024 * 30522, "transformers" },
};
UTEST(scale, counts_of_models_are_those_published_within_1_percent)
{
    int n = 0;
    for (; dt_scale_model_name(n); n++) {
        dt_scale_model *m = dt_scale_model_new(dt_scale_model_name(n));
        ASSERT_TRUE(m != NULL);
        ASSERT_STREQ(published[n].name, m->name);
        dt_scale_sums s = dt_scale_model_sums(m);
        EXPECT_NEAR(1, (double)s.params / published[n].params, 1e-9);
        EXPECT_NEAR(1, s.flops / published[n].flop, 0.01);
        EXPECT_TRUE(s.flops_back > 1.8 * s.flops && s.flops_back <= 2 * s.flops);
        dt_scale_model_free(m);
    }
    EXPECT_EQ((int)(sizeof published / sizeof *published), n);
}
UTEST(scale, activations_of_a_gpt_are_those_of_the_published_formula)
{
    double          s = 2048, h = 6144, a = 64; /* 34 s b h + 5 a s^2 b bytes for each layer, 2205.05198 */
    dt_scale_model *m = dt_scale_gpt_new("22B", 6144, 48, 64, 2048, 51200);
    double          layer = 0, again = 0;
    ASSERT_TRUE(m != NULL);
    for (int i = 1; i <= 2; i++) layer += 2 * m->layer[i].held, again += 2 * m->layer[i].held_again;
    EXPECT_NEAR(1, layer / (34 * s * h + 5 * a * s * s), 1e-9);
    EXPECT_NEAR(1, again / (34 * s * h), 1e-9);
    EXPECT_NEAR(22e9, (double)dt_scale_model_sums(m).params, 0.5e9);
    dt_scale_model_free(m);
}
UTEST(scale, an_unknown_model_names_the_nearest)
{
    EXPECT_TRUE(dt_scale_model_new("resnet5O") == NULL && said("did you mean resnet50?"));
    EXPECT_TRUE(dt_scale_model_new("llama") == NULL && said("did you mean llama3-8b?"));
    EXPECT_TRUE(dt_scale_model_new("zzzzzzzzz") == NULL && said("known are alexnet") &&
                !strstr(dt_plan_error(), "did you mean"));
    EXPECT_TRUE(dt_scale_model_new(NULL) == NULL && said("(NULL)"));
    EXPECT_TRUE(dt_scale_gpt_new("x", 100, 2, 3, 8, 8) == NULL && said("heads that divide width"));
    dt_scale_device d;
    dt_scale_link   l;
    EXPECT_TRUE(dt_scale_device_find("v10", &d) < 0 && said("did you mean v100?"));
    EXPECT_TRUE(dt_scale_link_find("nvlnk2", &l) < 0 && said("did you mean nvlink2?"));
}

/* ---- units */
UTEST(scale, quantities_have_a_unit)
{
    static const struct {
        const char   *text;
        dt_scale_unit unit;
        double        x; /* -1: refused */
    } t[] = { { "1.25GB/s", DT_SCALE_RATE, 1.25e9 },
              { "10Gbit/s", DT_SCALE_RATE, 1.25e9 },
              { "80GB", DT_SCALE_BYTES, 80e9 },
              { "16MiB", DT_SCALE_BYTES, 16777216 },
              { "30us", DT_SCALE_SECONDS, 30e-6 },
              { "0s", DT_SCALE_SECONDS, 0 },
              { "15T", DT_SCALE_SPEED, 15e12 },
              { "15TFLOP/s", DT_SCALE_SPEED, 15e12 },
              { "4.1GFLOP", DT_SCALE_FLOP, 4.1e9 },
              { "999999999999999999B", DT_SCALE_BYTES, 1e18 },
              { "80", DT_SCALE_BYTES, -1 },
              { "", DT_SCALE_BYTES, -1 },
              { "GB", DT_SCALE_BYTES, -1 },
              { "-1GB", DT_SCALE_BYTES, -1 },
              { "1e9B", DT_SCALE_BYTES, -1 },
              { "1.GB", DT_SCALE_BYTES, -1 },
              { "10Gb/s", DT_SCALE_RATE, -1 },
              { "10GBps", DT_SCALE_RATE, -1 },
              { "10GB", DT_SCALE_RATE, -1 },
              { "1GB/s ", DT_SCALE_RATE, -1 },
              { "1000000000000000000B", DT_SCALE_BYTES, -1 },
              { "infGB", DT_SCALE_BYTES, -1 },
              { "15", DT_SCALE_SPEED, -1 },
              { "5m", DT_SCALE_SECONDS, -1 } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        double x = -1;
        int    status = dt_scale_quantity(t[i].text, strlen(t[i].text), t[i].unit, &x);
        if ((status == 0) != (t[i].x >= 0) || (status == 0 && fabs(x - t[i].x) > 1e-9 * t[i].x))
            printf("    '%s'\n", t[i].text);
        EXPECT_EQ(t[i].x >= 0, status == 0);
        if (!status) EXPECT_TRUE(fabs(x - t[i].x) <= 1e-9 * t[i].x);
        else EXPECT_TRUE(said("expected"));
    }
    EXPECT_TRUE(dt_scale_quantity("1B", 2, DT_SCALE_UNIT_COUNT, NULL) < 0 && said("dt_scale_unit"));
}
UTEST(scale, a_shown_quantity_is_read_again)
{
    for (int u = 0; u < (int)DT_SCALE_UNIT_COUNT; u++)
        for (double x = 1e-9; x < 1e18; x *= 7.3) {
            char   text[64];
            double y = -1;
            dt_scale_show(text, sizeof text, x, (dt_scale_unit)u);
            EXPECT_EQ(0, dt_scale_quantity(text, strlen(text), (dt_scale_unit)u, &y));
            if (x >= (u == DT_SCALE_SECONDS ? 1e-9 : 1)) EXPECT_NEAR(1, y / x, 0.006);
        }
}

/* ---- clusters */
static const char good[] =
    "dt cluster 1\n# ours\ndevice mine speed 10TFLOP/s memory 16GB bandwidth 900GB/s\nmachines 4\ndevices 8\n"
    "intra nvlink2\ninter mine rate 10Gbit/s latency 20us\nshared\ninside ring\nswitch rate 40Gbit/s\n"
    "trunk rate 2GB/s machines 2\nstorage rate 1GB/s\nreduce rate 8GB/s\ntogether 93%\nbusy 80%\nspread 2%\nend\n";
UTEST(scale, a_cluster_is_read)
{
    dt_scale_cluster c;
    ASSERT_EQ(0, dt_scale_cluster_parse(&c, "c", good, strlen(good)));
    EXPECT_TRUE(c.machines == 4 && c.per_machine == 8 && c.shared && c.inside == DT_SCALE_RING && c.per_switch == 2);
    EXPECT_NEAR(1e13, c.device.speed, 1);
    EXPECT_NEAR(150e9, c.intra.rate, 1);
    EXPECT_NEAR(1.25e9, c.inter.rate, 1);
    EXPECT_NEAR(20e-6, c.inter.latency, 1e-12);
    EXPECT_NEAR(5e9, c.fabric, 1);
    EXPECT_NEAR(2e9, c.trunk, 1);
    EXPECT_NEAR(1 / 8e9, c.reduce, 1e-15);
    EXPECT_TRUE(fabs(c.together - 0.93) < 1e-12 && fabs(c.busy - 0.8) < 1e-12 && fabs(c.spread - 0.02) < 1e-12);
}
UTEST(scale, a_wrong_cluster_is_refused_with_line_and_column)
{
    static const struct {
        const char *text, *what;
    } t[] = {
        { "", "line 1, column 1: found 'the end of the line', expected 'dt cluster 1'" },
        { "dt profile 1\n", "line 1, column 4: found 'profile', expected 'dt cluster 1'" },
        { "dt cluster 1 x\n", "line 1, column 14: found 'x', expected the end of the line" },
        { "dt cluster 1\n\n  machnes 4\n", "line 3, column 3: found 'machnes'" },
        { "dt cluster 1\nmachnes 4\n", "did you mean machines?" },
        { "dt cluster 1\nmachines 4x\n", "line 2, column 10: found '4x', expected a whole number" },
        { "dt cluster 1\nmachines 0\n", "a whole number from 1" },
        { "dt cluster 1\nmachines 99999999999999999999\n", "a whole number from 1" },
        { "dt cluster 1\nmachines\n", "line 2, column 9: found 'the end of the line'" },
        { "dt cluster 1\nmachines 4\nmachines 4\n", "line 3, column 1: found 'machines', expected machines once" },
        { "dt cluster 1\ndevice v10\n", "line 2, column 8: found 'v10', expected a known device (did you mean v100?)" },
        { "dt cluster 1\ndevice mine memory 3GB\n", "line 2, column 8: found 'mine'" },
        { "dt cluster 1\ndevice mine speed 3GB\n", "line 2, column 19: found '3GB', expected operations a second" },
        { "dt cluster 1\nintra x rate 3GB latency 3us\n", "line 2, column 14: found '3GB', expected bytes or bits a second" },
        { "dt cluster 1\nintra x rate 12 latency 3us\n", "a number without a unit" },
        { "dt cluster 1\nintra x rate 1GB/s\n", "'rate 1.25GB/s latency 20us'" },
        { "dt cluster 1\nintra x rate 1GB/s rate 1GB/s\n", "expected rate once" },
        { "dt cluster 1\nintra x rate 0GB/s latency 1us\n", "at least 1B/s" },
        { "dt cluster 1\ninside rnig\n", "line 2, column 8: found 'rnig', expected full, ring, switch; did you mean ring?" },
        { "dt cluster 1\ntrunk rate 3GB/s\n", "expected rate and machines" },
        { "dt cluster 1\nbusy 0.8\n", "a part in percent" },
        { "dt cluster 1\nbusy 180%\n", "a part in percent" },
        { "dt cluster 1\ndevice v100\nmachines 1\nend\n", "no line 'devices'" },
        { "dt cluster 1\ndevice v100\nmachines 1\ndevices 2\nend\n", "no line 'intra'" },
        { "dt cluster 1\ndevice v100\nmachines 2\ndevices 1\nend\n", "no line 'inter'" },
        { "dt cluster 1\ndevice v100\nmachines 1\ndevices 1\n", "expected a line 'end'" },
        { "dt cluster 1\ndevice v100\nmachines 1\ndevices 1\nend\nend\n",
          "line 6, column 1: found 'end', expected no more lines" },
        { "dt cluster 1\ndevice v100\nmachines 1048576\ndevices 1048576\nintra pcie3\ninter pcie3\nend\n",
          "at most 1048576 devices" }
    };
    dt_scale_cluster c;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int status = dt_scale_cluster_parse(&c, "file", t[i].text, strlen(t[i].text));
        EXPECT_TRUE(status < 0 && said(t[i].what));
    }
}

/* ---- profiles */
static const char two_layers[] = "dt profile 1\nmodel two\nbatch 10 image\nstep 62ms\nforward 20ms\nbackward 40ms\nupdate 2ms\n"
                                 "layer a forward 10ms backward 20ms params 4MB ready 40ms out 40kB held 80kB\n"
                                 "layer b forward 10ms backward 20ms params 8MB ready 20ms out 4kB held 8kB\nend\n";
static dt_scale_model *profile(const char *text)
{
    dt_scale_model *m = dt_scale_profile_parse("p", text, strlen(text));
    if (!m) printf("    %s\n", dt_plan_error());
    return m;
}
UTEST(scale, a_profile_is_read_and_written)
{
    static char     text[4000], again[4000];
    dt_scale_model *m = profile(two_layers), *k;
    ASSERT_TRUE(m != NULL);
    EXPECT_EQ(2, m->nlayers);
    EXPECT_EQ(INT64_C(2000000), m->layer[1].params);
    EXPECT_NEAR(0.02, m->layer[1].ready, 1e-12);
    EXPECT_NEAR(1000, m->layer[0].out, 1e-9);
    EXPECT_EQ(dt_scale_profile_text(m, NULL, 0), dt_scale_profile_text(m, text, sizeof text));
    k = profile(text);
    ASSERT_TRUE(k != NULL);
    dt_scale_profile_text(k, again, sizeof again);
    EXPECT_STREQ(text, again);
    EXPECT_NEAR(0.02, k->layer[1].ready, 1e-12);
    EXPECT_NEAR(0.04, k->layer[0].ready, 1e-12);
    dt_scale_model_free(k);
    dt_scale_model_free(m);
}
UTEST(scale, a_wrong_profile_is_refused_with_line_and_column)
{
    static const struct {
        const char *text, *what;
    } t[] = { { "dt profile 2\n", "line 1, column 12: found '2', expected 'dt profile 1'" },
              { "dt profile 1\nbatch 10\n", "line 2, column 9: found 'the end of the line', expected a name" },
              { "dt profile 1\nstep 12\n", "line 2, column 6: found '12', expected a time" },
              { "dt profile 1\nlayr a\n", "did you mean layer?" },
              { "dt profile 1\nlayer a forward 1ms\n", "expected backward and its value" },
              { "dt profile 1\nlayer a forward 1ms backward 1ms params 4B\n", "expected ready and a time" },
              { "dt profile 1\nlayer a forward 1ms forward 1ms\n",
                "line 2, column 21: found 'forward', expected forward once" },
              { "dt profile 1\nbatch 1 x\nstep 1s\nend\n", "no line 'layer'" },
              { "dt profile 1\nbatch 1 x\nlayer a forward 1s backward 1s params 0B\nend\n", "no line 'step'" },
              { "dt profile 1\nparameter 0B\nbatch 1 x\nstep 1s\nlayer a forward 1s backward 1s params 0B\nend\n",
                "less than a byte" } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dt_scale_model *m = dt_scale_profile_parse("file", t[i].text, strlen(t[i].text));
        EXPECT_TRUE(!m && said(t[i].what));
        dt_scale_model_free(m);
    }
}

/* ---- a step, by hand. One machine, alpha 1 ms, 1 GB/s, no time to reduce. */
static dt_scale_cluster by_hand(int devices)
{
    dt_scale_cluster c;
    memset(&c, 0, sizeof c);
    c.machines = 1;
    c.per_machine = devices;
    c.intra.rate = 1e9;
    c.intra.latency = 1e-3;
    return c;
}
static dt_scale_prediction *predicted(const dt_scale_opts *o)
{
    dt_scale_prediction *p = dt_scale_predict(o);
    if (!p) printf("    %s\n", dt_plan_error());
    return p;
}
static double step_of(const dt_scale_opts *o)
{
    dt_scale_prediction *p = predicted(o);
    double               s = p ? p->step : -1;
    dt_scale_prediction_free(p);
    return s;
}
UTEST(scale, a_step_of_two_layers_is_what_the_hand_computes)
{
    dt_scale_cluster c = by_hand(2);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(two_layers);
    o.model = m;
    o.cluster = &c;
    o.algo = DT_ALGO_RING;
    dt_scale_prediction *p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    /* A ring of 2 has 2 rounds of half the bytes: 2 (1 ms + 4 MB / 1 GB/s) = 10 ms for b, 6 ms for a. b is ready at 20 + 20 ms
       and hidden behind a's backward; a is ready at the end, 60 ms. Then the update. */
    EXPECT_EQ(2, p->nbuckets);
    EXPECT_NEAR(0.040, p->bucket[0].start, 1e-9);
    EXPECT_NEAR(0.050, p->bucket[0].end, 1e-9);
    EXPECT_NEAR(0.060, p->bucket[1].ready, 1e-9);
    EXPECT_NEAR(0.066, p->bucket[1].end, 1e-9);
    EXPECT_NEAR(0.062, p->t1, 1e-9);
    EXPECT_NEAR(0.016, p->t2, 1e-9);
    EXPECT_NEAR(0.006, p->exposed, 1e-9);
    EXPECT_NEAR(0.068, p->step, 1e-9);
    EXPECT_NEAR(20 / 0.068, p->rate, 1e-6);
    EXPECT_NEAR(0.062 / 0.068, p->efficiency, 1e-9);
    dt_scale_prediction_free(p);
    o.overlap = DT_NO; /* both after the backward */
    p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR(0.078, p->step, 1e-9);
    dt_scale_prediction_free(p);
    o.overlap = DT_DEFAULT;
    c.busy = 1; /* the device itself copies: nothing is hidden */
    p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR(0.078, p->step, 1e-9);
    dt_scale_prediction_free(p);
    c.busy = 0.5; /* 10 ms of b's allreduce leave 5 ms of a's backward undone */
    p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR(0.073, p->step, 1e-9);
    dt_scale_prediction_free(p);
    c.busy = 0;
    c.together = 0.5; /* two processes have half the speed each */
    p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR(2 * 0.062 + 0.006, p->step, 1e-9);
    dt_scale_prediction_free(p);
    dt_scale_model_free(m);
}
UTEST(scale, with_sharded_states_a_device_updates_its_part)
{
    dt_scale_cluster c = by_hand(4);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(two_layers);
    o.model = m;
    o.cluster = &c;
    for (o.layout.zero = 0; o.layout.zero < 4; o.layout.zero++) {
        dt_scale_prediction *p = predicted(&o);
        ASSERT_TRUE(p != NULL);
        EXPECT_NEAR(o.layout.zero ? 0.0005 : 0.002, p->update, 1e-9);
        dt_scale_prediction_free(p);
    }
    dt_scale_model_free(m);
}
/* More steps of the two layers, by hand: forwards of 10 ms, backwards of 20 ms, 4 MB and 8 MB, an update of 2 ms */
UTEST(scale, servers_gathers_and_divided_layers_take_what_the_hand_computes)
{
    dt_scale_cluster c = by_hand(2);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(two_layers);
    ASSERT_TRUE(m != NULL);
    o.model = m;
    o.cluster = &c;
    o.algo = DT_ALGO_RING;
    o.compress = 0.5; /* a's 2 MB take 2 (1 ms + 1 MB / 1 GB/s) = 4 ms */
    EXPECT_NEAR(0.066, step_of(&o), 1e-9);
    o.compress = 0;
    /* ZeRO-3: gathers of 3 ms and 5 ms. a's delays its forward, 3 to 13; b's is hidden. In the backward the last two layers of the
       forward are still there. The reduce_scatter of a, 3 ms, is not hidden. */
    o.layout.zero = 3;
    dt_scale_prediction *p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR(0.003 + 0.060 + 0.003 + 0.001, p->step, 1e-9);
    double second = 0;
    for (int i = 0; i < p->nevents; i++) {
        const dt_scale_event *e = &p->event[i];
        if (e->kind == DT_SCALE_EVENT_GATHER && e->layer == 1 && e->start > second) second = e->start;
    }
    EXPECT_NEAR(0.003, second, 1e-9);
    dt_scale_prediction_free(p);
    o.layout.zero = 0;
    /* Tensor parallel: half of each layer, and 40 MB to add up, 42 ms, in each forward and each backward */
    o.layout.tensor = 2;
    for (int i = 0; i < 2; i++) m->layer[i].parts = 2, m->layer[i].sync = 1e6;
    EXPECT_NEAR(2 * (0.005 + 0.042) + 2 * (0.010 + 0.042) + 0.001, step_of(&o), 1e-9);
    for (int i = 0; i < 2; i++) m->layer[i].parts = 0;
    o.layout.tensor = 0;
    /* Two servers beside two workers, each on a machine: a push is half of the bytes and 1 ms. b's is hidden, a's ends at
       63 ms; then both pull 6 MB. */
    c.machines = 2;
    c.per_machine = 1;
    c.inter = c.intra;
    o.servers = 2;
    o.serving = DT_SCALE_BESIDE;
    /* a is not cut: its server has 4/3 of the half. Each server makes half of the update. */
    EXPECT_NEAR(0.060 + 0.001 + 0.002 * 4 / 3 + 0.001 + 0.006 * 4 / 3 + 0.001, step_of(&o), 1e-9);
    dt_scale_model_free(m);
}
static const char four_layers[] =
    "dt profile 1\nbatch 10 image\nstep 124ms\nforward 40ms\nbackward 80ms\nupdate 4ms\n"
    "layer a forward 10ms backward 20ms params 2MB held 30MB ready 80ms\nlayer b forward 10ms backward 20ms params 2MB held 30MB ready 60ms\n"
    "layer c forward 10ms backward 20ms params 2MB held 30MB ready 40ms\nlayer d forward 10ms backward 20ms params 2MB held 30MB ready "
    "20ms\nend\n";
UTEST(scale, zero_3_gathers_again_only_what_has_gone)
{
    dt_scale_cluster c = by_hand(2);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(four_layers);
    ASSERT_TRUE(m != NULL);
    o.model = m;
    o.cluster = &c;
    o.layout.zero = 3;
    dt_scale_prediction *p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    int of[4] = { 0 };
    for (int i = 0; i < p->nevents; i++)
        if (p->event[i].kind == DT_SCALE_EVENT_GATHER) of[p->event[i].layer]++;
    /* a: the first layer needs no gradient of its input; c and d: the last two of the forward are still there */
    EXPECT_TRUE(of[0] == 1 && of[1] == 2 && of[2] == 1 && of[3] == 1);
    EXPECT_EQ(4, p->nbuckets); /* a bucket for each layer */
    dt_scale_prediction_free(p);
    dt_scale_model_free(m);
}
UTEST(scale, buckets_are_closed_before_they_are_too_large)
{
    dt_scale_cluster c = by_hand(2);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(four_layers);
    ASSERT_TRUE(m != NULL);
    o.model = m;
    o.cluster = &c;
    o.bucket = 4.5e6;
    dt_scale_prediction *p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    ASSERT_EQ(2, p->nbuckets);
    EXPECT_TRUE(p->bucket[0].nbytes == 4e6 && p->bucket[1].nbytes == 4e6);
    EXPECT_NEAR(0.040 + 0.040, p->bucket[0].ready, 1e-9); /* when c is ready, not b, which would be too much */
    dt_scale_prediction_free(p);
    dt_scale_model_free(m);
}
UTEST(scale, what_devices_of_a_machine_share)
{
    dt_scale_cluster c = by_hand(2);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(four_layers);
    ASSERT_TRUE(m != NULL);
    o.model = m;
    o.cluster = &c;
    double before = step_of(&o);
    /* moved: 7.5 x 120 MB kept + 8 MB x (2 + 1 + 2 x 2): 956 MB, 47.8 ms of the 124 ms at 20 GB/s, and twice as long together */
    c.stream = 20e9;
    c.crowded = 0.5;
    double after = step_of(&o);
    EXPECT_NEAR(before + 0.0478, after, 2e-4);
    c.per_machine = 1;
    c.machines = 2;
    c.inter = c.intra;
    EXPECT_NEAR(before, step_of(&o), 3e-3); /* machines of their own */
    c.sharing = 2;
    EXPECT_NEAR(after, step_of(&o), 3e-3);
    c = by_hand(2);
    /* A pipeline whose second stage has a tenth of the work: the first one is slowed by a tenth of what two busy ranks lose */
    for (int i = 0; i < 4; i++) m->layer[i].forward *= i < 3 ? 1.2 : 0.4, m->layer[i].backward *= i < 3 ? 1.2 : 0.4;
    o.layout.pipe = 2;
    o.layout.micro = 1;
    o.layout.data = 1;
    before = step_of(&o);
    c.together = 0.5;
    after = step_of(&o);
    EXPECT_TRUE(after > 1.3 * before && after < 1.9 * before);
    dt_scale_model_free(m);
}
UTEST(scale, a_burst_of_a_link_is_free)
{
    dt_scale_cluster c = by_hand(2);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(two_layers);
    ASSERT_TRUE(m != NULL);
    o.model = m;
    o.cluster = &c;
    o.algo = DT_ALGO_RING;
    o.overlap = DT_NO;
    double before = step_of(&o);
    c.intra.burst = 1e6; /* at 1 GB/s */
    EXPECT_NEAR(before - 0.001, step_of(&o), 1e-9);
    dt_scale_model_free(m);
}
UTEST(scale, switches_and_the_slowest_device)
{
    dt_scale_cluster c = by_hand(1);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(two_layers);
    ASSERT_TRUE(m != NULL);
    o.model = m;
    o.cluster = &c;
    o.algo = DT_ALGO_RING;
    c.machines = 4;
    c.inter.rate = 1e9;
    static const struct {
        double fabric, trunk, t2; /* a ring of 4 sends 6/4 of 12 MB */
    } t[] = { { 0, 0, 0.018 }, { 1e9, 0, 0.072 }, { 0, 0.5e9, 0.036 }, { 1e12, 1e12, 0.018 } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        c.fabric = t[i].fabric;
        c.trunk = t[i].trunk;
        c.per_switch = 2;
        dt_scale_prediction *p = predicted(&o);
        ASSERT_TRUE(p != NULL);
        EXPECT_NEAR(t[i].t2, p->t2, 1e-9);
        dt_scale_prediction_free(p);
    }
    c.fabric = c.trunk = 0;
    c.inter.rate = 1e15;
    c.spread = 0.1; /* the mean of the largest of n normal values */
    static const double largest[] = { 0, 0, 0.5642, 0, 1.0294, 0, 0, 0, 1.4236 };
    for (c.machines = 2; c.machines <= 8; c.machines *= 2)
        EXPECT_NEAR(1 + 0.1 * largest[c.machines], step_of(&o) / 0.062, 0.004);
    dt_scale_model_free(m);
}
UTEST(scale, one_device_takes_the_profiles_step_and_waits_for_its_loader)
{
    dt_scale_cluster c = by_hand(1);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(two_layers);
    o.model = m;
    o.cluster = &c;
    dt_scale_prediction *p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR(0.062, p->step, 1e-9);
    EXPECT_NEAR(1, p->efficiency, 1e-9);
    m->step = 0.065; /* 3 ms are in no part */
    EXPECT_NEAR(0.065, step_of(&o), 1e-9);
    m->step = 0.062;
    EXPECT_EQ(0, p->nbuckets);
    dt_scale_prediction_free(p);
    m->load = 0.1; /* of a batch */
    p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR(0.1, p->step, 1e-9);
    EXPECT_NEAR(0.038, p->input, 1e-9);
    dt_scale_prediction_free(p);
    m->load = 0;
    m->sample_bytes = 1e6;
    c.storage = 1e8; /* 10 MB a step */
    o.batch = 20;
    p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR(0.2, p->step, 1e-9);
    EXPECT_NEAR(1e8, p->data_rate, 1);
    dt_scale_prediction_free(p);
    dt_scale_model_free(m);
}
UTEST(scale, a_pipeline_has_the_bubble_of_its_formula)
{
    char   text[2000];
    size_t n = (size_t)snprintf(text, sizeof text, "dt profile 1\nbatch 8 image\nstep 24s\n");
    for (int i = 0; i < 8; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "layer l%d forward 1s backward 2s params 0B\n", i);
    snprintf(text + n, sizeof text - n, "end\n");
    dt_scale_cluster c = by_hand(4);
    dt_scale_opts    o = opts();
    dt_scale_model  *m = profile(text);
    c.intra.latency = 0;
    o.model = m;
    o.cluster = &c;
    o.layout.pipe = 4;
    o.layout.micro = 8;
    dt_scale_prediction *p = predicted(&o); /* a stage has 2 layers: 0.25 s and 0.5 s for a micro-batch of 1 */
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR((8 + 3) * 0.75, p->step, 1e-9);
    EXPECT_NEAR(3 * 0.75, p->bubble, 1e-9);
    EXPECT_NEAR(8 / 11.0, p->efficiency, 1e-9);
    EXPECT_EQ(4 * 8 * 2, p->nevents);
    dt_scale_prediction_free(p);
    o.layout.recompute = DT_SCALE_FULL_AGAIN;
    p = predicted(&o);
    ASSERT_TRUE(p != NULL);
    EXPECT_NEAR((8 + 3) * 1.0, p->step, 1e-9);
    dt_scale_prediction_free(p);
    dt_scale_model_free(m);
}
UTEST(scale, parameter_servers_have_their_published_optimum)
{
    for (int n = 2; n < 40; n++) {
        EXPECT_NEAR(2.0 * (n - 1) / n, dt_scale_byteps_seconds(n, 0, 1e9, 1e9), 1e-9); /* the ring */
        EXPECT_NEAR(1, dt_scale_byteps_seconds(n, n, 1e9, 1e9), 1e-9);
        EXPECT_NEAR(2.0 * (n - 1) / n, 2 * dt_scale_server_seconds(n, n, true, 1e9, 1e9), 1e-9);
        EXPECT_NEAR(n, dt_scale_server_seconds(n, 1, false, 1e9, 1e9), 1e-9);
        for (int k = 1; k <= n; k++) EXPECT_LE(dt_scale_byteps_seconds(n, k, 1, 1), dt_scale_byteps_seconds(n, k - 1, 1, 1));
    }
    EXPECT_NEAR(0, dt_scale_server_seconds(1, 1, true, 1e9, 1e9), 0);
}
UTEST(scale, a_switch_that_all_traffic_shares_is_slower_than_links_of_pairs)
{
    dt_scale_cluster c;
    dt_scale_opts    o = opts();
    double           step[3];
    dt_scale_cluster_default(&c);
    dt_scale_model *m = dt_scale_model_new("vgg16");
    o.model = m;
    o.cluster = &c;
    o.overlap = DT_NO;
    c.intra.rate = 2e9;
    for (c.inside = 0; c.inside < 3; c.inside++) {
        dt_scale_prediction *p = predicted(&o);
        ASSERT_TRUE(p != NULL);
        step[c.inside] = p->t2;
        dt_scale_prediction_free(p);
    }
    EXPECT_NEAR(8, step[DT_SCALE_SWITCH] / step[DT_SCALE_FULL], 0.2);
    EXPECT_LE(step[DT_SCALE_FULL], step[DT_SCALE_RING]);
    EXPECT_LT(step[DT_SCALE_RING], step[DT_SCALE_SWITCH]);
    dt_scale_model_free(m);
    m = dt_scale_profile_parse("p", two_layers,
                               strlen(two_layers)); /* small buckets: doubling is faster than a ring, if it can be */
    ASSERT_TRUE(m != NULL);
    m->layer[0].params = m->layer[1].params = 100;
    o.model = m;
    for (c.inside = 0; c.inside < 2; c.inside++) {
        dt_scale_prediction *p = predicted(&o);
        ASSERT_TRUE(p != NULL);
        EXPECT_EQ(c.inside == DT_SCALE_RING, p->bucket[0].algo == DT_ALGO_RING);
        dt_scale_prediction_free(p);
    }
    dt_scale_model_free(m);
}

/* ---- laws. Random clusters and layouts from a seed. */
static uint64_t seed = 1;
static int      any(int n) { return (int)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33) % n; }
static void     any_question(dt_scale_opts *o, dt_scale_cluster *c)
{
    static const char *const device[] = { "v100", "a100", "p100" };
    *o = opts();
    dt_scale_cluster_default(c);
    dt_scale_device_find(device[any(3)], &c->device);
    c->machines = 1 << any(4);
    c->per_machine = 1 << any(4);
    c->intra.rate = 1e9 * (1 + any(100));
    c->inter.rate = 1e8 * (1 + any(100));
    c->inter.latency = 1e-6 * any(100);
    c->shared = any(2);
    c->busy = any(2) ? 0.1 * any(10) : 0;
    c->storage = any(4) ? 0 : 1e8 * (1 + any(20));
    o->cluster = c;
    o->batch = 1 << any(7);
    o->precision = any(3);
    int devices = c->machines * c->per_machine;
    o->layout.zero = any(4);
    if (any(2) && devices >= 4) o->layout.pipe = 2, o->layout.zero = 0, o->layout.micro = o->batch >= 4 ? 4 : 1;
    o->layout.recompute = any(3);
    if (!o->layout.zero && !o->layout.pipe && any(2)) o->servers = 1 + any(c->machines), o->serving = any(3);
}
UTEST(scale, laws_hold_for_any_cluster)
{
    static const char *const name[] = { "resnet50", "alexnet", "gpt2", "vgg16" };
    int                      n = getenv("DT_TEST_QUICK") ? 60 : 300;
    for (int i = 0; i < n; i++) {
        dt_scale_opts    o;
        dt_scale_cluster c;
        dt_scale_model  *m = dt_scale_model_new(name[any(4)]);
        any_question(&o, &c);
        o.model = m;
        dt_scale_prediction *p = predicted(&o);
        ASSERT_TRUE(p != NULL);
        double s = p->step;
        EXPECT_TRUE(p->step >= p->t1 * (1 - 1e-9) && p->exposed >= -1e-12 && p->bubble >= -1e-12 && p->rate > 0);
        EXPECT_TRUE(o.layout.pipe > 1 || p->exposed <= p->t2 + 1e-9);
        EXPECT_NEAR(1, (p->forward + p->backward + p->update + p->exposed + p->bubble + p->input) / p->step,
                    1e-6); /* the parts are the whole */
        for (int k = 0; k < p->nbuckets; k++)
            EXPECT_TRUE(p->bucket[k].ready <= p->bucket[k].start && p->bucket[k].start < p->bucket[k].end);
        dt_scale_prediction_free(p);
        c.inter.rate *= 2; /* a faster link is never slower */
        double faster = step_of(&o);
        EXPECT_LE(faster, s * (1 + 1e-9));
        c.intra.rate *= 2;
        EXPECT_LE(step_of(&o), faster * (1 + 1e-9));
        c.shared = false; /* nor are links of its own for each device */
        EXPECT_LE(step_of(&o), faster * (1 + 1e-9));
        c.inter.latency /= 2;
        c.device.speed *= 2, c.device.half_speed *= 2;
        EXPECT_LE(step_of(&o), faster * (1 + 1e-9));
        any_question(&o, &c);
        o.model = m;
        o.overlap = DT_NO; /* overlap never slows down */
        o.layout.zero = 0;
        s = step_of(&o);
        o.overlap = DT_YES;
        EXPECT_LE(step_of(&o), s * (1 + 1e-9));
        dt_scale_model_free(m);
    }
}
UTEST(scale, sharding_and_recomputation_save_memory)
{
    dt_scale_cluster c;
    dt_scale_opts    o = opts();
    dt_scale_cluster_default(&c);
    c.machines = 4;
    dt_scale_model *m = dt_scale_model_new("gpt2-xl");
    o.model = m;
    o.cluster = &c;
    o.precision = DT_SCALE_AMP;
    o.batch = 4;
    double before = 1e30, P = (double)dt_scale_model_sums(m).params;
    for (int z = 0; z < 4; z++) { /* 16 P, 4 P + 12 P/N, 2 P + 14 P/N, 16 P/N of the paper of ZeRO */
        o.layout.zero = z;
        dt_scale_prediction *p = predicted(&o);
        ASSERT_TRUE(p != NULL);
        double whole[] = { 16, 4 + 12 / 32.0, 2 + 14 / 32.0, 16 / 32.0 };
        EXPECT_NEAR(whole[z] * P, p->memory.parameters + p->memory.gradients + p->memory.states, 1e-6 * P);
        EXPECT_LT(p->memory.all, before);
        before = p->memory.all;
        dt_scale_prediction_free(p);
    }
    before = 1e30;
    for (o.layout.recompute = 0; o.layout.recompute < 3; o.layout.recompute++) {
        dt_scale_prediction *p = predicted(&o);
        ASSERT_TRUE(p != NULL);
        EXPECT_LT(p->memory.activations, before);
        before = p->memory.activations;
        dt_scale_prediction_free(p);
    }
    dt_scale_model_free(m);
}

/* ---- the search */
static int64_t brute(const dt_scale_opts *o, dt_scale_choice *best,
                     int n) /* every layout by dt_scale_predict, sorted by insertion */
{
    int     devices = o->cluster->machines * o->cluster->per_machine, found = 0;
    double  all = o->batch * devices;
    int64_t fitting = 0;
    for (int tensor = 1; tensor <= devices; tensor++)
        for (int pipe = 1; pipe * tensor <= devices; pipe++)
            for (int zero = 0; zero < 4; zero++)
                for (int micro = 1; micro <= all; micro *= 2)
                    for (int kind = 0; kind < (pipe > 1 ? (int)DT_PIPE_KIND_COUNT : 1); kind++)
                        for (int again = 0; again < 3; again++) {
                            dt_scale_opts q = *o;
                            if (devices % (tensor * pipe)) continue;
                            q.layout.data = devices / (tensor * pipe);
                            q.layout.pipe = pipe, q.layout.tensor = tensor, q.layout.zero = zero, q.layout.micro = micro;
                            q.layout.schedule = (dt_pipe_kind)kind, q.layout.recompute = again;
                            q.batch = all / q.layout.data;
                            if (zero && q.layout.data == 1) continue;
                            if (pipe > 1 && micro > 64 * pipe) continue;
                            double rest = q.batch / micro;
                            if (rest < 1 || rest != floor(rest)) continue;
                            dt_scale_prediction *p = dt_scale_predict(&q);
                            dt_scale_choice      x;
                            if (!p) continue;
                            memset(&x, 0, sizeof x);
                            x.layout = p->layout, x.step = p->step, x.memory = p->memory;
                            fitting += p->fits;
                            if (p->fits) again = 3; /* dt_scale_search leaves out what recomputes without need */
                            int at = p->fits ? found < n ? found++ : n : -1;
                            if (at == n) at = x.step < best[n - 1].step * (1 - 1e-9) ? n - 1 : -1;
                            for (; at > 0 && best[at - 1].step > x.step * (1 + 1e-9); at--) best[at] = best[at - 1];
                            if (at >= 0) best[at] = x;
                            dt_scale_prediction_free(p);
                        }
    return fitting;
}
UTEST(scale, the_search_finds_what_trying_everything_finds)
{
    static const struct {
        const char *model;
        int         machines, each, precision;
        double      batch, memory;
    } t[] = { { "gpt2", 1, 4, DT_SCALE_AMP, 4, 0 },         { "gpt2", 2, 4, DT_SCALE_F32, 2, 6e9 },
              { "gpt2-xl", 1, 8, DT_SCALE_AMP, 2, 16e9 },   { "resnet50", 2, 2, DT_SCALE_F32, 32, 2e9 },
              { "bert-large", 1, 8, DT_SCALE_AMP, 1, 3e9 }, { "alexnet", 4, 1, DT_SCALE_F32, 64, 0 } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dt_scale_cluster c;
        dt_scale_opts    o = opts();
        dt_scale_choice  best[5], all[5];
        int64_t          tried, fitting;
        dt_scale_cluster_default(&c);
        c.machines = t[i].machines;
        c.per_machine = t[i].each;
        c.device.memory = t[i].memory;
        dt_scale_model *m = dt_scale_model_new(t[i].model);
        o.model = m;
        o.cluster = &c;
        o.batch = t[i].batch;
        o.precision = t[i].precision;
        int     n = dt_scale_search(&o, best, 5, &tried, &fitting);
        int64_t fit = brute(&o, all, 5);
        ASSERT_EQ(5, n);
        EXPECT_TRUE(fitting > 0 && fitting <= fit && tried >= fitting);
        for (int k = 0; k < n; k++) {
            EXPECT_NEAR(1, best[k].step / all[k].step, 1e-6);
            EXPECT_TRUE(!(t[i].memory > 0) || best[k].memory.all <= t[i].memory);
        }
        if (t[i].memory > 0) { /* more memory never makes fewer layouts, or a slower best one */
            dt_scale_choice more[5];
            int64_t         fitting_more;
            c.device.memory *= 2;
            ASSERT_EQ(5, dt_scale_search(&o, more, 5, NULL, NULL));
            fitting_more = brute(&o, all, 5);
            EXPECT_GE(fitting_more, fit);
            EXPECT_LE(more[0].step, best[0].step * (1 + 1e-9));
        }
        dt_scale_model_free(m);
    }
}
UTEST(scale, nothing_fits_into_too_little_memory)
{
    dt_scale_cluster c;
    dt_scale_opts    o = opts();
    dt_scale_choice  best[5];
    dt_scale_cluster_default(&c);
    c.device.memory = 1e6;
    dt_scale_model *m = dt_scale_model_new("llama3-8b");
    o.model = m;
    o.cluster = &c;
    o.batch = 1;
    EXPECT_EQ(0, dt_scale_search(&o, best, 5, NULL, NULL));
    EXPECT_TRUE(dt_scale_search(&o, best, 0, NULL, NULL) < 0 && said("room for n choices"));
    EXPECT_TRUE(dt_scale_search(NULL, best, 5, NULL, NULL) < 0);
    dt_scale_model_free(m);
}
UTEST(scale, the_linear_batch_is_the_smallest_that_hides_communication)
{
    dt_scale_cluster c;
    dt_scale_opts    o = opts();
    dt_scale_cluster_default(&c);
    c.machines = 4;
    c.inter.rate = 1.25e9;
    dt_scale_model *m = dt_scale_model_new("resnet50");
    o.model = m;
    o.cluster = &c;
    int n = dt_scale_linear_batch(&o);
    ASSERT_TRUE(n > 1);
    for (int k = -1; k <= 0; k++) {
        o.batch = n + k;
        dt_scale_prediction *p = predicted(&o);
        ASSERT_TRUE(p != NULL);
        EXPECT_EQ(k == 0, p->exposed <= 0.05 * p->step);
        dt_scale_prediction_free(p);
    }
    c.inter.rate = 1e6;
    EXPECT_EQ(0, dt_scale_linear_batch(&o));
    dt_scale_model_free(m);
}

/* ---- what is refused */
UTEST(scale, wrong_questions_are_refused)
{
    dt_scale_cluster c;
    dt_scale_opts    o = opts();
    dt_scale_model  *m = dt_scale_model_new("gpt2"), none;
    memset(&none, 0, sizeof none);
    dt_scale_cluster_default(&c);
#define REFUSED(set, what)                                   \
    do {                                                     \
        dt_scale_cluster_default(&c);                        \
        o = opts();                                          \
        o.model = m;                                         \
        o.cluster = &c;                                      \
        set;                                                 \
        dt_scale_prediction *refused = dt_scale_predict(&o); \
        EXPECT_TRUE(!refused && said(what));                 \
        dt_scale_prediction_free(refused);                   \
    } while (0)
    EXPECT_TRUE(!dt_scale_predict(NULL) && said("options are NULL"));
    REFUSED(o.model = NULL, "the model is NULL");
    REFUSED(o.model = &none, "has no layers");
    REFUSED(o.cluster = NULL, "cluster is NULL");
    REFUSED(c.machines = 0, "1 to 1048576 devices");
    REFUSED((c.machines = 1 << 20, c.per_machine = 1 << 20), "1 to 1048576 devices");
    REFUSED(c.device.speed = 0, "speed of 0");
    REFUSED(c.intra.rate = 0, "inside machines has a rate of 0");
    REFUSED((c.machines = 2, c.inter.rate = 0), "between machines has a rate of 0");
    REFUSED(o.layout.data = 3, "data x pipe x tensor is not the number of devices");
    REFUSED(o.layout.pipe = 3, "data x pipe x tensor is not the number of devices");
    REFUSED(o.layout.zero = 4, "zero 0 to 3");
    REFUSED(o.layout.pipe = -1, "positive parts");
    REFUSED((o.layout.tensor = 8, o.batch = 8), "12 parts, and tensor is 8");
    REFUSED((o.layout.micro = 64), "less than one sample");
    REFUSED((o.layout.pipe = 4, o.layout.schedule = DT_PIPE_INTERLEAVED, o.layout.micro = 6), "multiple of its ranks");
    REFUSED((c.per_machine = 32, o.layout.pipe = 32, o.batch = 128), "only 14 blocks");
    REFUSED((o.servers = 1, o.layout.zero = 1), "data parallel only");
    REFUSED((o.servers = 3, o.serving = DT_SCALE_BESIDE), "as many servers beside workers as machines");
    dt_scale_model *whole = profile(two_layers);
    REFUSED((o.model = whole, o.layout.tensor = 2), "no layer of this model can be divided");
    dt_scale_model_free(whole);
#undef REFUSED
    dt_scale_model_free(m);
    dt_scale_model_free(NULL);
    dt_scale_prediction_free(NULL);
}
UTEST(scale, no_memory_is_an_error_everywhere)
{
    dt_scale_cluster c;
    dt_scale_cluster_default(&c);
    c.machines = 2;
    int done = 0;
    for (long n = 0; n < 400 && !done; n++) {
        dt_scale_opts o = opts();
        test_allocs = n;
        dt_scale_model *m = dt_scale_model_new("resnet18"),
                       *k = m ? dt_scale_profile_parse("p", two_layers, strlen(two_layers)) : NULL;
        dt_scale_prediction *p = NULL, *q = NULL;
        o.model = m;
        o.cluster = &c;
        if (k) p = dt_scale_predict(&o);
        o.layout.pipe = 4;
        if (p) q = dt_scale_predict(&o);
        test_allocs = -1;
        done = q != NULL;
        if (!done) EXPECT_TRUE(said("memory"));
        dt_scale_prediction_free(p);
        dt_scale_prediction_free(q);
        dt_scale_model_free(m);
        dt_scale_model_free(k);
    }
    EXPECT_TRUE(done);
}
