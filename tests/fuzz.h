/* fuzz.h - what the fuzzing targets share: an allocator that counts

   A target is a file with LLVMFuzzerTestOneInput. `make fuzz-NAME` builds it with clang's libFuzzer and runs it; the
   corpora under tests/corpus run in `make test` with any compiler.

       fuzz_begin();     counts from here on
       fuzz_end();       nothing is left; aborts otherwise */
#ifndef FUZZ_H_INCLUDED
#define FUZZ_H_INCLUDED

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../dt.h"

static size_t fuzz_live, fuzz_peak, fuzz_before;
static bool   fuzz_counts;
static void  *fuzz_alloc(void *user, size_t n)
{
    void *p = malloc(n);
    (void)user;
    if (p) fuzz_live += n;
    if (fuzz_live > fuzz_peak) fuzz_peak = fuzz_live;
    return p;
}
static void fuzz_free(void *user, void *p, size_t n)
{
    (void)user;
    fuzz_live -= n;
    free(p);
}
static void fuzz_begin(void)
{
    if (!fuzz_counts) {
        dt_allocator a = { fuzz_alloc, fuzz_free, NULL };
        if (dt_set_allocator(&a)) abort();
        fuzz_counts = true;
    }
    fuzz_peak = fuzz_before = fuzz_live;
}
static void fuzz_end(void)
{
    dt_trim();
    if (dt_error() || fuzz_live != fuzz_before) abort();
}

/* tests/corpus/name, beside the test's file */
static inline const char *fuzz_seeds(const char *file, const char *name)
{
    static char path[1024];
    const char *slash = strrchr(file, '/');
    snprintf(path, sizeof path, "%.*s/corpus/%s", slash ? (int)(slash - file) : 1, slash ? file : ".", name);
    return path;
}
/* Feeds every file of a directory to a target; the number of them. For plain tests. */
static inline int fuzz_corpus(const char *dir, int (*target)(const uint8_t *data, size_t n))
{
    DIR *d = opendir(dir);
    int  files = 0;
    if (!d) return 0;
    dt_end(); /* nothing may be left when the allocator changes */
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%.3000s/%.1000s", dir, e->d_name);
        FILE *f = fopen(path, "rb");
        if (!f || fseek(f, 0, SEEK_END)) abort();
        long n = ftell(f);
        rewind(f);
        uint8_t *p = (uint8_t *)malloc((size_t)n + !n); /* its own size: a byte more is seen */
        if (!p || fread(p, 1, (size_t)n, f) != (size_t)n) abort();
        fclose(f);
        target(p, (size_t)n);
        free(p);
        files++;
    }
    closedir(d);
    if (fuzz_counts) dt_set_allocator(NULL);
    fuzz_counts = false;
    return files;
}

#endif /* FUZZ_H_INCLUDED */
