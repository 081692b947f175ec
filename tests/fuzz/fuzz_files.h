/* fuzz_files.h - the corpora of the fuzzing targets, for plain tests; no header of dt is needed

       fuzz_feed(fuzz_seeds(__FILE__, "idx"), fuzz_idx)        how many files of tests/corpus/idx it was given */
#ifndef FUZZ_FILES_H_INCLUDED
#define FUZZ_FILES_H_INCLUDED

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tests/corpus/name; file: __FILE__ of a test in tests/FOLDER */
static inline const char *fuzz_seeds(const char *file, const char *name)
{
    static char path[1024];
    const char *slash = strrchr(file, '/');
    snprintf(path, sizeof path, "%.*s/../corpus/%s", slash ? (int)(slash - file) : 1, slash ? file : ".", name);
    return path;
}
/* Feeds every file of a directory to a target; the number of them. */
static inline int fuzz_feed(const char *dir, int (*target)(const uint8_t *data, size_t n))
{
    DIR *d = opendir(dir);
    int  files = 0;
    if (!d) return 0;
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
    return files;
}

#endif /* FUZZ_FILES_H_INCLUDED */
