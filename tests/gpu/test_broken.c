/* The broken kernels of broken.cu, compiled by nvcc: the checks find each, whatever the order of threads, and its
   repaired twin passes. The PTX: argv[1] or DT_BROKEN_PTX.
   run: own-rule */
#include "harness.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PTX_IMPLEMENTATION
#include "ptx.h"

enum { BLOCK = 128, BLOCKS = 3, N = 300, SEEDS = 10, AREAS = 4 };

static const struct broken {
    const char *name;
    int         n;     /* the int parameter */
    bool        fresh; /* y is fresh memory, else it holds zeros */
    unsigned    grid;
    const char *bad[2]; /* one of these is in the report */
} broken[] = {
    { "missing_barrier", 0, true, 1, { "race: ", "never written" } },
    { "tree", 0, true, 1, { "race: ", NULL } },
    { "reuse", 0, true, 1, { "race: ", NULL } },
    { "sum", 0, false, BLOCKS, { "race: ", NULL } },
    { "zero", 0, true, 1, { "race: ", "never written" } },
    { "past_end", N, true, BLOCKS, { "no allocation holds", NULL } },
    { "stencil", N, true, BLOCKS, { "no allocation holds", NULL } },
    { "shared_end", 1, true, 1, { "beyond the end of a shared variable", NULL } },
    { "divergent_barrier", 70, true, 1, { "reached by 70 of 128 threads", NULL } },
    { "early_return", 70, true, 1, { "reached by 70 of 128 threads", NULL } },
    { "uninitialised", 70, true, 1, { "never written", NULL } },
    { "fresh", 0, true, 1, { "never written", NULL } },
    { "partial_mask", 70, true, 1, { "waits forever", NULL } },
    { "gone_lanes", 70, false, 1, { "which takes no part", NULL } },
    { "missing_syncwarp", 0, true, 1, { "race: ", NULL } },
    { "vote_is_no_sync", 0, true, 1, { "race: ", "never written" } },
    { "misaligned", 0, true, 1, { "misaligned: 16 bytes", NULL } },
    { "last_block", 0, true, BLOCKS, { "race: ", NULL } },
    { "overlap", 0, true, BLOCKS, { "race: ", NULL } },
    { "in_place", N, false, BLOCKS, { "race: ", NULL } },
    { "halves", 0, true, 1, { "race: ", NULL } },
    { "endless", 0, true, 1, { "has not ended", "race: " } },
    { "zero_divisor", 0, true, 1, { "by zero", NULL } },
};
enum { BROKEN = sizeof broken / sizeof *broken };

static ptx_module *module;
static char        message[1200];

static struct area {
    uint64_t addr;
    size_t   nbytes;
    char    *host;
    uint8_t *shadow;
} area[AREAS]; /* y, x, count, part */

static bool area_find(void *user, uint64_t addr, ptx_block *out)
{
    (void)user;
    for (int i = 0; i < AREAS; i++)
        if (addr - area[i].addr < area[i].nbytes) {
            size_t off = (size_t)(addr - area[i].addr);
            out->host = area[i].host + off;
            out->shadow = area[i].shadow + off * PTX_SHADOW_BYTES;
            out->nbytes = area[i].nbytes - off;
            return true;
        }
    return false;
}
static int launch(const struct broken *b, const char *kind, uint64_t seed)
{
    static const size_t nbytes[AREAS] = { 0, 1024 * 4, 4, BLOCKS * 4 };
    char                name[80];
    snprintf(name, sizeof name, "%s_%s", b->name, kind);
    const ptx_kernel *k = ptx_find(module, name);
    if (!k) {
        snprintf(message, sizeof message, "there is no kernel %s", name);
        return -2;
    }
    for (int i = 0; i < AREAS; i++) {
        area[i].addr = UINT64_C(0x700000000000) + (uint64_t)i * 0x100000;
        /* y and x end where a kernel over n elements must end, if it has an n */
        area[i].nbytes = i == 0 || (i == 1 && b->n == N) ? (b->n == N ? N : BLOCKS * BLOCK) * 4 : nbytes[i];
        area[i].host = (char *)calloc(area[i].nbytes, 1);
        area[i].shadow = (uint8_t *)calloc(area[i].nbytes, PTX_SHADOW_BYTES);
        if (i == 1)
            for (size_t j = 0; j < area[i].nbytes / 4; j++) ((float *)(void *)area[i].host)[j] = (float)(j % 7);
        if (i == 1 || i == 2 || (i == 0 && !b->fresh)) ptx_shadow_written(area[i].shadow, area[i].nbytes);
    }
    void  *params[8];
    size_t offset[8], size[8], n = ptx_params(k, offset, size, 8);
    int    next = 0, number = b->n;
    for (size_t i = 0; i < n && i < 8; i++) params[i] = size[i] == 8 ? (void *)&area[next++].addr : (void *)&number;
    ptx_memory m = { NULL, area_find, NULL };
    ptx_launch l = { { b->grid, 1, 1 }, { BLOCK, 1, 1 }, 0, params, seed, &m, 2000000 };
    int        bad = ptx_run(k, &l, message, sizeof message);
    for (int i = 0; i < AREAS; i++) {
        free(area[i].host);
        free(area[i].shadow);
    }
    return bad;
}

struct broken_fixture {
    const struct broken *b;
};
UTEST_I_SETUP(broken_fixture)
{
    utest_fixture->b = &broken[utest_index];
    (void)utest_result;
}
UTEST_I_TEARDOWN(broken_fixture)
{
    (void)utest_fixture;
    (void)utest_index;
    (void)utest_result;
}
UTEST_I(broken_fixture, found, BROKEN)
{
    const struct broken *b = utest_fixture->b;
    ASSERT_TRUE_MSG(module != NULL, message);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        int bad = launch(b, "bad", seed);
        ASSERT_EQ_MSG(bad, -1, b->name);
        bool as_expected = strstr(message, b->bad[0]) || (b->bad[1] && strstr(message, b->bad[1]));
        EXPECT_TRUE_MSG(as_expected, message);
        EXPECT_TRUE_MSG(strstr(message, b->name) && strstr(message, "PTX line "), message);
        if (seed == 1) dt_test_say("%s\n", message);
        bad = launch(b, "good", seed);
        EXPECT_EQ_MSG(bad, 0, message);
    }
}
UTEST(broken, all_are_listed)
{
    ASSERT_TRUE_MSG(module != NULL, message);
    size_t kernels = 0;
    for (const ptx_kernel *k; (k = ptx_at(module, kernels)) != NULL; kernels++) {
        const char *name = ptx_name(k), *end = strrchr(name, '_');
        bool        listed = false;
        for (int i = 0; i < BROKEN && end; i++)
            listed |= strlen(broken[i].name) == (size_t)(end - name) &&
                      strncmp(broken[i].name, name, (size_t)(end - name)) == 0;
        EXPECT_TRUE_MSG(listed, name);
    }
    EXPECT_EQ(kernels, (size_t)(2 * BROKEN));
}

UTEST_STATE();
int main(int argc, const char *const argv[])
{
    const char *path = argc > 1 && argv[1][0] != '-' ? argv[1] : getenv("DT_BROKEN_PTX");
    if (argc > 1 && argv[1][0] != '-') argc--, argv++;
    if (!path) {
        printf("test_broken: the PTX of broken.cu is asked for: test_broken broken.ptx, or DT_BROKEN_PTX\n");
        return 1;
    }
    FILE *f = fopen(path, "rb");
    if (!f) {
        printf("test_broken: cannot read '%s': %s\n", path, strerror(errno));
        return 1;
    }
    fseek(f, 0, SEEK_END);
    long  n = ftell(f);
    char *text = (char *)malloc(n > 0 ? (size_t)n : 1);
    rewind(f);
    size_t got = fread(text, 1, n > 0 ? (size_t)n : 0, f);
    fclose(f);
    module = ptx_load(text, got, message, sizeof message);
    free(text);
    int status = utest_main(argc, argv);
    ptx_free(module);
    return status;
}
