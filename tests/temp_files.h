/* temp_files.h - files for tests that need no private functions of dt

       char *dir = temp_dir();  ...  temp_remove(dir);   a fresh directory; it and all in it goes
       temp_put(dir, "a/b.bin", data, n);                writes a file, and makes the folders it lies in; its path
       temp_in(dir, name)                                dir/name in one of a few buffers
       temp_trap(dir, name, kind)                        what another user could put at a name that he guessed: kind 0 to
                                                         TEMP_TRAPS - 1; false: this kind needs root
       temp_trap_end(dir, name)                          true: what the trap leads to is as it was; removes the trap
       temp_fds()                                        descriptors that are open
       temp_budget_end(&b)                               ends dt_test.h's budget; -1: something is still in use
   temp_budget_end needs dt_test.h before it. */
#ifndef TEMP_FILES_H_INCLUDED
#define TEMP_FILES_H_INCLUDED

#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <stdbool.h>

static DT_TEST_UNUSED char *temp_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    char       *path = (char *)malloc(4096);
    if (!path) abort();
    snprintf(path, 4096, "%s/dt_test.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(path)) abort();
    return path;
}
static int temp_remove_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
    (void)st, (void)kind, (void)f;
    return remove(path);
}
static DT_TEST_UNUSED void temp_remove(char *dir)
{
    if (dir) nftw(dir, temp_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(dir);
}
static DT_TEST_UNUSED const char *temp_in(const char *dir, const char *name)
{
    static char buf[8][4400];
    static int  turn;
    char       *b = buf[turn = (turn + 1) & 7];
    snprintf(b, sizeof buf[0], "%.4095s/%.300s", dir, name);
    return b;
}
static DT_TEST_UNUSED const char *temp_put(const char *dir, const char *name, const void *data, size_t n)
{
    const char *path = temp_in(dir, name);
    char        part[4400];
    for (const char *p = strchr(name, '/'); p; p = strchr(p + 1, '/')) {
        snprintf(part, sizeof part, "%.4000s/%.*s", dir, (int)(p - name), name);
        mkdir(part, 0700);
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) abort();
    return path;
}
static DT_TEST_UNUSED int temp_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int  n = 0;
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

#ifdef DT_TEST_H_INCLUDED
static DT_TEST_UNUSED int temp_budget_end(dt_test_budget *b)
{
    dt_empty_cache();
    return b->live ? -1 : (int)dt_set_allocator(NULL);
}
#endif

enum { TEMP_TRAPS = 5 };
static DT_TEST_UNUSED bool temp_trap(const char *dir, const char *name, int kind)
{
    char path[4200], victim[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(victim, sizeof victim, "%s/victim", dir);
    FILE *f = fopen(victim, "w");
    if (!f || fputs("dear to its owner", f) < 0 || fclose(f)) abort();
    if (kind == 4 && geteuid() != 0) return false;
    if (kind == 4 && !(f = fopen(path, "w"))) abort();
    int bad = kind == 0   ? symlink("victim", path)
              : kind == 1 ? symlink("nowhere", path)
              : kind == 2 ? mkfifo(path, 0666)
              : kind == 3 ? link(victim, path)
                          : (fputs("dear to its owner", f) < 0) | fclose(f) | chmod(path, 0666) | chown(path, 12345, 12345);
    if (bad) abort();
    return true;
}
static DT_TEST_UNUSED bool temp_trap_end(const char *dir, const char *name)
{
    char        path[4200], text[32] = "";
    struct stat st;
    bool        good = true;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (int i = 0; i < 2; i++) { /* the victim, and the trap itself if it is a file */
        if (i == 0) snprintf(path, sizeof path, "%s/victim", dir);
        else snprintf(path, sizeof path, "%s/%s", dir, name);
        if (lstat(path, &st) || (i == 1 && !S_ISREG(st.st_mode))) continue;
        FILE *f = fopen(path, "r");
        text[0] = 0;
        if (!f || !fgets(text, sizeof text, f)) text[0] = 0;
        if (f) fclose(f);
        good = good && strcmp(text, "dear to its owner") == 0;
    }
    unlink(path);
    snprintf(path, sizeof path, "%s/nowhere", dir);
    good = good && access(path, F_OK) != 0;
    snprintf(path, sizeof path, "%s/victim", dir);
    unlink(path);
    return good;
}
#endif /* TEMP_FILES_H_INCLUDED */
