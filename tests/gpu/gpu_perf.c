/* gpu_perf.c - what every kernel of kernels/ costs: counted by the interpreter, or measured on a GPU

     gpu_perf --count TABLE.csv PTXAS.txt [SASS.txt]   `make gpu-perf`: counts on the emulated runtime (ptx_counts in
                                                       ptx.h), with the registers that ptxas reported
     gpu_perf --time PAPER.txt                         `make cuda-selftest`: speed beside what gpu_paper computes

   The calls are those of bench/kernel_rows.h. --count ends with 1 if a kernel is below a threshold and not in the table of
   exceptions, if an exception is not needed any more, or if a kernel has no row. --time on the emulated runtime runs the
   same program; its times mean nothing. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dt.h"
#include "dt_cuda.h"

#include "bench/kernel_rows.h"
#include "ptx.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---------------------------------------------------------------------------------------------- exceptions
   Dense kernels use at least 95 % of the sectors that their loads and stores touch, and shared memory without conflicts.
   Those that do not, and why. A name is the begin of a kernel's; row: the begin of the row's, or NULL for all. An exception
   that nothing needs is an error, too, unless it may be better. */
enum { SECTORS, WAYS };
static const double at_least = 0.95, at_most = 1.0;
static const struct exception {
    const char *kernel, *row;
    int         what;
    double      limit; /* part of the sectors used at least, or ways at most */
    const char *why;
    bool        better; /* it may be */
} exceptions[] = {
    { "attention::", NULL, WAYS, 1.13, "tiles are stored transposed (2 to 4 ways); reading them has none", false },
    { "attention::backward_keys", NULL, SECTORS, 0.82, "lse and delta: one value a row, read by itself", false },
    { "ce_backward_kernel<1, true>", NULL, SECTORS, 0.65, "rows of 50257 begin amid a sector; rows of 50304 do not", false },
    { "ce_backward_kernel<4, false>", NULL, SECTORS, 0.94, "rows of 1000 halves end amid a sector", false },
    { "ce_forward_kernel<1, true>", NULL, SECTORS, 0.65, "rows of 50257 begin amid a sector; rows of 50304 do not", false },
    { "ce_nll_", NULL, SECTORS, 0.26, "one value of each row: that of its class", false },
    { "ew_where_add_kernel", NULL, SECTORS, 0.76, "reads of each place only the operand that the condition takes", false },
    { "ix_columns_kernel", NULL, SECTORS, 0.20, "the places are those of an index", false },
    { "ix_gather_kernel", NULL, SECTORS, 0.34, "the places are those of an index", false },
    { "ix_joins_kernel", NULL, SECTORS, 0.25, "sums of sorted runs: a thread has 64 places, where rows have one value", false },
    { "ix_pass_kernel", NULL, SECTORS, 0.36, "sorts by a digit: the places are those of the digits", false },
    { "ix_pass_kernel", NULL, WAYS, 2.15, "counts digits: the places are those of the digits", false },
    { "ix_runs_kernel", NULL, SECTORS, 0.17, "sums of sorted runs: a thread has 64 places, where rows have one value", false },
    { "norm::bn_", NULL, SECTORS, 0.17, "with channels last a thread reads the tables of its channels one by one", true },
    { "norm::ln_finish", NULL, SECTORS, 0.60, "pairs of sums, of which each half is read by itself", true },
    { "norm::over_columns", NULL, SECTORS, 0.25, "pairs of sums of 4 or 8 columns are stored one by one", true },
    { "norm::over_columns", NULL, WAYS, 32, "a thread has the sums of 4 or 8 columns side by side, once a block", true },
    { "ord_add_bytes_kernel", NULL, SECTORS, 0.08, "bytes have no atomics: a thread has a column", false },
    { "ord_result_kernel", NULL, SECTORS, 0.66, "of pairs (key, place) only the place", false },
    { "ord_short_kernel", NULL, WAYS, 1.44, "steps of less than 8 pairs: each thread has two, a distance apart", false },
    { "ord_tiles_kernel", NULL, WAYS, 1.44, "steps of less than 8 pairs: each thread has two, a distance apart", false },
    { "ord_write_kernel", NULL, SECTORS, 0.31, "the places are those of an index", false },
    { "pool::backward", "max pooling backward", SECTORS, 0.70, "up to four windows, of a part of the threads each", false },
    { "pool::forward<", "max pooling 3x3/2", SECTORS, 0.53, "stride 2: a request takes every second value", false },
    { "pool::forward_wide", NULL, SECTORS, 0.84, "49 values do not fill sectors", false },
    { "rs_bwd_kernel", NULL, SECTORS, 0.53, "each value is in 4 x 4 of the result: every second one in a request", false },
    { "rs_kernel", NULL, SECTORS, 0.94, "32 results need 17 values", false },
};
enum { NEXCEPTIONS = sizeof exceptions / sizeof *exceptions };
static bool used[NEXCEPTIONS];

/* ---------------------------------------------------------------------------------------------- cards
   What a multiprocessor holds: CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per
   Compute Capability". Registers are given to a warp in pieces of 256, shared memory to a block in pieces of 128 bytes
   (256 below 8.0), and the system takes 1 KiB a block from 8.0 on: the occupancy calculator of Nsight Compute.
   Multiprocessors of a card: its data sheet. */
typedef struct card {
    const char *name;
    int         arch, processors, threads, blocks, registers, shared, unit, reserved;
} card;
static const card cards[] = {
    { "T4", 75, 40, 1024, 16, 65536, 64 << 10, 256, 0 },
    { "A100", 80, 108, 2048, 32, 65536, 164 << 10, 128, 1 << 10 },
    { "H100", 90, 132, 2048, 32, 65536, 228 << 10, 128, 1 << 10 },
};
enum { NCARDS = sizeof cards / sizeof *cards };
static int resident(const card *k, int threads, int registers, int64_t shared) /* blocks on a multiprocessor */
{
    int     warps = (threads + 31) / 32, n = k->blocks;
    int64_t all = (shared + k->reserved + k->unit - 1) / k->unit * k->unit;
    int     of_warp = (registers * 32 + 255) / 256 * 256;
    if (k->threads / 32 / warps < n) n = k->threads / 32 / warps;
    if (of_warp && k->registers / of_warp / warps < n) n = k->registers / of_warp / warps;
    if (all && k->shared / all < n) n = (int)(k->shared / all);
    return n;
}

/* ---------------------------------------------------------------------------------------------- what the tools said */
typedef struct known { /* of a kernel and an architecture */
    char name[400];
    int  arch, registers, total, loop; /* total, loop: instructions of SASS; 0: not known */
} known;
static known *all_known;
static int    nknown;
static known *known_of(const char *name, int arch, bool add)
{
    for (int i = 0; i < nknown; i++)
        if (all_known[i].arch == arch && !strcmp(all_known[i].name, name)) return &all_known[i];
    if (!add) return NULL;
    all_known = (known *)realloc(all_known, (size_t)(nknown + 1) * sizeof *all_known);
    if (!all_known) exit(1);
    known *k = &all_known[nknown++];
    memset(k, 0, sizeof *k);
    snprintf(k->name, sizeof k->name, "%s", name);
    k->arch = arch;
    return k;
}
static bool read_tools(const char *ptxas, const char *sass)
{
    char  line[1000], name[400];
    int   arch, a, b, block, local;
    FILE *f = fopen(ptxas, "r");
    if (!f) return false;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "sm_%d %d %d %d %d %399s", &arch, &a, &b, &block, &local, name) == 6)
            known_of(name, arch, true)->registers = a;
    fclose(f);
    if (!sass || !(f = fopen(sass, "r"))) return true;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "sm_%d %d %d %399s", &arch, &a, &b, name) == 4) {
            known *k = known_of(name, arch, true);
            k->total = a;
            k->loop = b;
        }
    fclose(f);
    return true;
}
extern char *__cxa_demangle(const char *name, char *out, size_t *n, int *status);
/* dtk::ew_fill_kernel<float>(...) -> ew_fill_kernel<float>; with bare: ew_fill_kernel */
static void short_name(const char *name, bool bare, char *out, size_t n)
{
    int   status = 0, depth = 0;
    char *full = __cxa_demangle(name, NULL, NULL, &status), *s = full && !status ? full : NULL;
    if (!s) {
        snprintf(out, n, "%s", name);
        return;
    }
    if (!strncmp(s, "void ", 5)) s += 5;
    char *from = s, *end = s;
    for (; *end; end++) {
        if (*end == '<') {
            if (bare && !depth) break;
            depth++;
        }
        if (*end == '>') depth--;
        if (!depth && *end == '(' && end > from && strncmp(end, "(anonymous", 10)) break;
    }
    *end = 0;
    if (!strncmp(from, "dtk::", 5)) from += 5;
    snprintf(out, n, "%s", from);
    for (char *p = out, *q; (q = strstr(p, "dtk::")) != NULL; p = q) memmove(q, q + 5, strlen(q + 5) + 1);
    free(full);
}

/* ---------------------------------------------------------------------------------------------- memory of a call */
typedef struct memory {
    void  *ptr[DT_MAX_OUT + DT_MAX_IN];
    size_t n[DT_MAX_OUT + DT_MAX_IN];
} memory;
static uint32_t half_of(float x, int dtype) /* truncated: any value will do */
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if (dtype == DT_BF16) return u >> 16;
    return (u >> 16 & 0x8000) | ((u >> 13 & 0x3ffff) - (112u << 10)); /* of values between 2^-14 and 65504 */
}
static void fill_host(char *at, const dt_view *v, size_t n)
{
    uint32_t rng = 12345;
    for (size_t i = 0; i < n; i++) {
        rng = rng * 1664525u + 1013904223u;
        int64_t whole = index_step ? (int64_t)i * index_step : (int64_t)(rng >> 8) % (index_limit ? index_limit : 2);
        float   x = 0.125f + (float)(rng >> 9) / 8388608.0f;
        switch (v->dtype) {
        case DT_F32: memcpy(at + 4 * i, &x, 4); break;
        case DT_F16:
        case DT_BF16: {
            uint16_t h = (uint16_t)half_of(x, v->dtype);
            memcpy(at + 2 * i, &h, 2);
            break;
        }
        case DT_I32: {
            int32_t w = (int32_t)whole;
            memcpy(at + 4 * i, &w, 4);
            break;
        }
        case DT_I64: memcpy(at + 8 * i, &whole, 8); break;
        default: at[i] = (char)(rng >> 24 & 1); break;
        }
    }
}
static bool memory_open(memory *m, dt_device *dev, void *stream, dt_call *c)
{
    const dt_backend *be = dt_device_backend(dev);
    memset(m, 0, sizeof *m);
    for (int i = 0; i < DT_MAX_OUT + DT_MAX_IN; i++) {
        dt_view *v = i < DT_MAX_OUT ? &c->out[i] : &c->in[i - DT_MAX_OUT];
        int64_t  n = 1;
        if (v->ndim < 0) continue;
        for (int d = 0; d < v->ndim; d++) n += (v->shape[d] - 1) * v->stride[d];
        m->n[i] = (size_t)n * (size_t)dt_dtype_nbytes((dt_dtype)v->dtype);
        m->ptr[i] = be->alloc(dev, m->n[i]);
        char *host = (char *)malloc(m->n[i]);
        if (!m->ptr[i] || !host) {
            free(host);
            return false;
        }
        fill_host(host, v, (size_t)n);
        int bad = be->upload(dev, stream, m->ptr[i], host, m->n[i]);
        free(host);
        if (bad) return false;
        v->data = m->ptr[i];
    }
    return true;
}
static void memory_close(memory *m, dt_device *dev)
{
    for (int i = 0; i < DT_MAX_OUT + DT_MAX_IN; i++)
        if (m->ptr[i]) dt_device_backend(dev)->free(dev, m->ptr[i], m->n[i]);
}
static int run(dt_device *dev, const dt_call *c)
{
    if (c->op == DT_K_COUNT) return dt__cuda_epilogue(dev, c->stream, &c->out[0], &c->in[0], 1, c->u.gemm.act);
    return dt_device_backend(dev)->kernel[c->op](dev, c);
}
static bool is_library(const kernel_row *k)
{
    return k->op == DT_K_gemm || k->op == DT_K_conv2d || k->op == DT_K_conv2d_bwd_data || k->op == DT_K_conv2d_bwd_weight;
}
static double elements(const kernel_row *k, const dt_call *c) { return numel(k->input < 0 ? &c->out[0] : &c->in[k->input]); }

/* ---------------------------------------------------------------------------------------------- counting */
typedef struct launch {
    char       name[400];
    unsigned   grid, block;
    size_t     shared;
    ptx_counts n;
} launch;
static launch *launches;
static int     nlaunches, claunches;
static void    count_launch(void *user, const char *kernel, const unsigned grid[3], const unsigned block[3], size_t shared,
                            const ptx_counts *n)
{
    (void)user;
    if (nlaunches == claunches) {
        claunches = claunches ? 2 * claunches : 64;
        launches = (launch *)realloc(launches, (size_t)claunches * sizeof *launches);
        if (!launches) exit(1);
    }
    launch *l = &launches[nlaunches++];
    snprintf(l->name, sizeof l->name, "%s", kernel);
    l->grid = grid[0] * grid[1] * grid[2];
    l->block = block[0] * block[1] * block[2];
    l->shared = shared;
    l->n = *n;
}
typedef void counting(void *user, const char *kernel, const unsigned grid[3], const unsigned block[3], size_t shared,
                      const ptx_counts *n);
static char **seen; /* names of kernels, without template arguments */
static int    nseen;
static void   see(const char *name)
{
    char bare[400];
    short_name(name, true, bare, sizeof bare);
    for (int i = 0; i < nseen; i++)
        if (!strcmp(seen[i], bare)) return;
    seen = (char **)realloc(seen, (size_t)(nseen + 1) * sizeof *seen);
    if (!seen || !(seen[nseen++] = strdup(bare))) exit(1);
}
static int below(const kernel_row *k, const char *dtype, const char *name, int what, double value)
{
    double limit = what == SECTORS ? at_least : at_most;
    if (what == SECTORS ? value >= limit : value <= limit) return 0;
    for (int i = 0; i < NEXCEPTIONS; i++) {
        const struct exception *e = &exceptions[i];
        if (e->what != what || strncmp(name, e->kernel, strlen(e->kernel))) continue;
        if (e->row && strncmp(k->name, e->row, strlen(e->row))) continue;
        if (what == SECTORS ? value < e->limit : value > e->limit) continue;
        used[i] = true;
        return 0;
    }
    printf("FAIL %s, %s: %s: %s %.3f, should be %s %.2f\n", k->name, dtype, name,
           what == SECTORS ? "of the sectors it uses" : "ways of shared memory:", value,
           what == SECTORS ? "at least" : "at most", limit);
    return 1;
}
static int print_launch(FILE *csv, const kernel_row *k, const char *dtype, double n, const launch *l, int *bad)
{
    const ptx_counts *c = &l->n;
    char              name[400], occupancy[NCARDS * 16] = "", waves[NCARDS * 16] = "", registers[NCARDS * 16] = "";
    char              sass[64] = "-";
    double            sectors = 0, least = 0, own = (double)(c->read + c->written);
    for (int i = 0; i < PTX_ATOMIC; i++) sectors += (double)c->sectors[i], least += (double)c->least[i];
    double moved = 32 * (sectors + (double)c->sectors[PTX_ATOMIC]);
    double efficiency = sectors > 0 ? least / sectors : 1, ways = c->phases ? (double)c->ways / (double)c->phases : 1;
    double active = c->issued ? (double)c->instructions / (32.0 * (double)c->issued) : 1;
    short_name(l->name, false, name, sizeof name);
    for (int i = 0; i < NCARDS; i++) {
        const known *q = known_of(l->name, cards[i].arch, false);
        const char  *bar = i ? "/" : "";
        char         s[48];
        if (!q) {
            snprintf(s, sizeof s, "%s-", bar);
            strcat(registers, s), strcat(occupancy, s), strcat(waves, s);
            continue;
        }
        int on = resident(&cards[i], (int)l->block, q->registers, (int64_t)l->shared);
        snprintf(s, sizeof s, "%s%d", bar, q->registers), strcat(registers, s);
        snprintf(s, sizeof s, "%s%d%%", bar, 100 * on * (int)l->block / cards[i].threads), strcat(occupancy, s);
        if (on) snprintf(s, sizeof s, "%s%.2f", bar, (double)l->grid / ((double)on * cards[i].processors)), strcat(waves, s);
        else strcat(waves, "/0");
        if (q->total && (cards[i].arch == 80 || sass[0] == '-')) snprintf(sass, sizeof sass, "%d/%d", q->loop, q->total);
    }
    printf("%-36.36s %-4s %-44.44s %9.0f %6.1f %5.2f %5d %7.2f %5.2f %6.1f %9s %11s %14s %s\n", k->name, dtype, name, n,
           100 * efficiency, ways, (int)c->worst, (double)c->instructions / n, own > 0 ? moved / own : 0, 100 * active,
           registers, occupancy, waves, sass);
    fprintf(csv, "\"%s\",%s,\"%s\",%.0f,%.4f,%.4f,%u,%.4f,%.4f,%.4f,%s,%s,%s,%s,%u,%u,%zu,%.0f,%.0f,%llu,%llu,%u,%u\n", k->name,
            dtype, name, n, efficiency, ways, c->worst, (double)c->instructions / n, own > 0 ? moved / own : 0, active,
            registers, occupancy, waves, sass, l->grid, l->block, l->shared, moved, own, (unsigned long long)c->instructions,
            (unsigned long long)c->local, c->waste_line, c->worst_line);
    *bad += below(k, dtype, name, SECTORS, efficiency) + below(k, dtype, name, WAYS, ways);
    return 1;
}
static int count_all(dt_device *dev, void *stream, const char *table)
{
    static const int   dtypes[] = { DT_F32, DT_BF16 };
    static const char *names[] = { "f32", "bf16" };
    void              *p = dlsym(RTLD_DEFAULT, "emu_costs");
    void (*costs)(counting *f, void *user) = NULL;
    int   n = 0, bad = 0;
    FILE *csv = fopen(table, "w");
    memcpy(&costs, &p, sizeof costs);
    if (!costs || !csv) {
        fprintf(stderr, "gpu_perf: %s\n", csv ? "it counts on the emulated runtime only" : "the table cannot be written");
        return 1;
    }
    rows_part = 256;
    printf("%-36s %-4s %-44s %9s %6s %5s %5s %7s %5s %6s %9s %11s %14s %s\n", "row", "type", "kernel", "elements", "sect %",
           "ways", "worst", "ins/el", "moved", "lanes%", "registers", "occupancy", "waves", "SASS loop/all");
    fprintf(csv, "row,type,kernel,elements,sectors_used,bank_ways,worst_ways,instructions_an_element,moved_over_own_bytes,"
                 "lanes,registers,occupancy,waves,sass_loop/all,blocks,threads,shared,bytes_moved,own_bytes,instructions,local,"
                 "ptx_line_of_most_waste,ptx_line_of_most_ways\n");
    for (int i = 0; i < NKERNEL_ROWS; i++) {
        const kernel_row *k = &kernel_rows[i];
        if (is_library(k)) continue;
        for (int t = 0; t < 2; t++) {
            dt_call c;
            memory  m;
            memset(&c, 0, sizeof c);
            index_limit = index_step = 0;
            c.op = k->op;
            k->make(&c, dtypes[t]);
            c.stream = stream;
            int status = !memory_open(&m, dev, stream, &c) || dt_device_backend(dev)->wait(dev, stream);
            nlaunches = 0;
            costs(count_launch, NULL);
            status = status || run(dev, &c) || dt_device_backend(dev)->wait(dev, stream);
            costs(NULL, NULL);
            memory_close(&m, dev);
            if (status || dt_error()) {
                printf("FAIL %s, %s: %s\n", k->name, names[t], dt_error() ? dt_error() : "no memory");
                dt_error_clear();
                bad++;
                continue;
            }
            for (int j = 0; j < nlaunches; j++) {
                see(launches[j].name);
                n += print_launch(csv, k, names[t], elements(k, &c), &launches[j], &bad);
            }
        }
    }
    fclose(csv);
    int before = nseen;
    for (int i = 0; i < nknown; i++) see(all_known[i].name);
    for (int i = before; i < nseen; i++)
        if (strcmp(seen[i], "probe_kernel")) {
            printf("FAIL the kernel %s has no row in bench/kernel_rows.h\n", seen[i]);
            bad++;
        }
    for (int i = 0; i < NEXCEPTIONS; i++)
        if (!used[i] && !exceptions[i].better) {
            printf("FAIL the exception for %s is not needed\n", exceptions[i].kernel);
            bad++;
        }
    printf("\nBelow the thresholds (%.0f %% of the sectors, %.1f ways), and why:\n", 100 * at_least, at_most);
    for (int i = 0; i < NEXCEPTIONS; i++)
        if (used[i])
            printf("    %-32s %-8s %s %5.2f  %s\n", exceptions[i].kernel, exceptions[i].what == SECTORS ? "sectors" : "ways",
                   exceptions[i].what == SECTORS ? ">=" : "<=", exceptions[i].limit, exceptions[i].why);
    printf("%d kernels of kernels/ in %d launches; the whole table: %s\n%d passed, %d failed, 0 skipped\n", before, n, table,
           n > bad ? n - bad : 0, bad);
    return bad != 0;
}

/* ---------------------------------------------------------------------------------------------- timing
   FLOPs of a multiprocessor in a cycle, f32 without and f16 with tensor cores (dense, sums in f32): CUDA C++ Programming Guide,
   "Arithmetic Instructions", and NVIDIA's white papers on Turing, Ampere, Ada, Hopper and Blackwell. */
static const struct {
    int arch, fma, tensor;
} peaks[] = { { 75, 128, 1024 }, { 80, 128, 2048 }, { 86, 256, 1024 }, { 89, 256, 1024 },
              { 90, 256, 4096 }, { 100, 256, 8192 }, { 120, 256, 1024 } };
typedef struct speed {
    double bandwidth, fma, tensor; /* bytes/s, FLOP/s; 0: not known */
} speed;
static int attribute(enum cudaDeviceAttr a)
{
    int v = 0;
    if (cudaDeviceGetAttribute(&v, a, 0) == cudaSuccess) return v;
    cudaGetLastError();
    return 0;
}
static speed speed_of_card(void)
{
    speed  s = { 0, 0, 0 };
    int    arch = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    double cycles = 1e3 * attribute(cudaDevAttrClockRate) * attribute(cudaDevAttrMultiProcessorCount);
    s.bandwidth = 2e3 * attribute(cudaDevAttrMemoryClockRate) * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (arch >= peaks[i].arch) s.fma = cycles * peaks[i].fma, s.tensor = cycles * peaks[i].tensor;
    return s;
}
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* The shortest mean time of a call in three rounds of at least 20 ms, or of one call each where time means nothing; < 0: it
   failed. */
static double time_of(dt_device *dev, const dt_call *c, bool emulated)
{
    const dt_backend *be = dt_device_backend(dev);
    double            best = -1;
    int               n = 1;
    for (int round = emulated ? 2 : 0; round < 3;) {
        if (be->wait(dev, c->stream)) return -1;
        double t = seconds();
        for (int i = 0; i < n; i++)
            if (run(dev, c)) return -1;
        if (be->wait(dev, c->stream)) return -1;
        t = seconds() - t;
        if (!emulated && t < 0.02 && n < 4096) { /* also warms up */
            n *= 4;
            best = -1;
            continue;
        }
        if (best < 0 || t / n < best) best = t / n;
        round++;
    }
    return best;
}
/* A line of the table of gpu_paper --rows: row, type, part, launches, bytes, FLOPs, unit, reached of memory, of
   arithmetic, with tabs between */
typedef struct paper_row {
    char   name[100], type[8], unit[8];
    int    part, launches;
    double bytes, flops, memory, arithmetic;
} paper_row;
static bool paper_of(const char *file, const char *name, const char *type, paper_row *out)
{
    char  line[400];
    bool  found = false;
    FILE *f = fopen(file, "r");
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "%99[^\t]\t%7[^\t]\t%d\t%d\t%lf\t%lf\t%7[^\t]\t%lf\t%lf", out->name, out->type, &out->part,
                       &out->launches, &out->bytes, &out->flops, out->unit, &out->memory, &out->arithmetic) == 9 &&
                !strcmp(out->name, name) && !strcmp(out->type, type);
    if (f) fclose(f);
    return found;
}
static int time_all(dt_device *dev, void *stream, const char *paper)
{
    static const int   dtypes[] = { DT_F32, DT_F16, DT_BF16 };
    static const char *names[] = { "f32", "f16", "bf16" };
    bool               emulated = dlsym(RTLD_DEFAULT, "emu_costs") != NULL;
    speed              s = speed_of_card();
    int                measured = 0, failed = 0, slower = 0;
    rows_part = emulated ? 1024 : 1;
    if (emulated) printf("The runtime is emulated: times mean nothing.\n");
    printf("card: %.0f GB/s, f32 %.1f TFLOP/s, halves on tensor cores %.0f TFLOP/s (from its clocks; 0: not known)\n",
           1e-9 * s.bandwidth, 1e-12 * s.fma, 1e-12 * s.tensor);
    printf("%-40s %-4s %10s %8s %8s %10s %7s\n", "row", "type", "us", "GB/s", "TFLOP/s", "computed", "ratio");
    for (int i = 0; i < NKERNEL_ROWS; i++)
        for (int t = 0; t < 3; t++) {
            const kernel_row *k = &kernel_rows[i];
            paper_row         p;
            dt_call           c;
            memory            m;
            memset(&c, 0, sizeof c);
            index_limit = index_step = 0;
            c.op = k->op;
            k->make(&c, dtypes[t]);
            c.stream = stream;
            if (!paper_of(paper, k->name, names[t], &p) || p.part != (int)rows_part) {
                printf("FAIL %s, %s: not in %s\n", k->name, names[t], paper);
                failed++;
                continue;
            }
            double best = memory_open(&m, dev, stream, &c) ? time_of(dev, &c, emulated) : -1;
            memory_close(&m, dev);
            if (best <= 0 || dt_error()) {
                printf("FAIL %s, %s: %s\n", k->name, names[t], dt_error() ? dt_error() : "not enough memory of the device");
                dt_error_clear();
                failed++;
                continue;
            }
            double peak = strcmp(p.unit, "tensor") ? s.fma : s.tensor;
            double by_bytes = s.bandwidth > 0 ? p.bytes / (s.bandwidth * p.memory) : 0;
            double by_flops = peak > 0 ? p.flops / (peak * p.arithmetic) : 0, computed = fmax(by_bytes, by_flops);
            double ratio = computed > 0 ? best / computed : 0;
            bool   differs = !emulated && ratio > 0 && (ratio > 1.5 || ratio < 0.67);
            printf("%-40.40s %-4s %10.1f %8.1f %8.3f %10.1f %7.2f%s\n", k->name, names[t], 1e6 * best, 1e-9 * p.bytes / best,
                   1e-12 * p.flops / best, 1e6 * computed, ratio, !differs ? "" : ratio > 1 ? " SLOWER" : " faster");
            measured++;
            slower += differs;
        }
    printf("%d rows differ from what was computed by more than half\n", slower);
    printf("%d passed, %d failed, 0 skipped\n", measured, failed);
    return failed != 0;
}

int main(int argc, char **argv)
{
    dt_device *dev = dt_cuda(0);
    if (!dev) {
        fprintf(stderr, "gpu_perf: %s\n", dt_error());
        return 1;
    }
    void *stream = dt_device_backend(dev)->stream_new ? dt_device_backend(dev)->stream_new(dev) : NULL;
    if (argc >= 4 && !strcmp(argv[1], "--count")) {
        if (!read_tools(argv[3], argc > 4 ? argv[4] : NULL)) {
            fprintf(stderr, "gpu_perf: %s cannot be read\n", argv[3]);
            return 1;
        }
        return count_all(dev, stream, argv[2]);
    }
    if (argc == 3 && !strcmp(argv[1], "--time")) return time_all(dev, stream, argv[2]);
    fprintf(stderr, "usage: gpu_perf --count TABLE.csv PTXAS.txt [SASS.txt] | --time PAPER.txt\n");
    return 1;
}
