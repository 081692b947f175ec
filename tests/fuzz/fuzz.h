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
#include <unistd.h>

#include "fuzz_files.h"

#include "dt.h"

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
    dt_empty_cache();
    if (dt_error() || fuzz_live != fuzz_before) abort();
}

/* fuzz_feed, and dt's allocator afterwards as it was. For plain tests. */
static inline int fuzz_corpus(const char *dir, int (*target)(const uint8_t *data, size_t n))
{
    dt_end(); /* nothing may be left when the allocator changes */
    int files = fuzz_feed(dir, target);
    if (fuzz_counts) dt_set_allocator(NULL);
    fuzz_counts = false;
    return files;
}

#endif /* FUZZ_H_INCLUDED */
