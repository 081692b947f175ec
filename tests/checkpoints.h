/* checkpoints.h - are two checkpoints the same, and how much memory does a call need?

       same_files(a, b, what, sizeof what)     the newest checkpoints of two directories have the same tensors, by name, kind, shape
                                               and bits, and the same words; else `what` says what differs
       peak_begin()  status_kib("VmHWM:")      the peak of this process from here on; false: not known
   Include it after dt_nn.h. */
#ifndef DT_TEST_CHECKPOINTS_H_INCLUDED
#define DT_TEST_CHECKPOINTS_H_INCLUDED

#include "harness.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static DT_TEST_UNUSED bool same_files(const char *a, const char *b, char *what, size_t n)
{
    char        pa[300], pb[300];
    dt_archive *x = dt_checkpoint_latest(a, NULL, pa, sizeof pa) ? dt_archive_open(pa) : NULL;
    dt_archive *y = dt_checkpoint_latest(b, NULL, pb, sizeof pb) ? dt_archive_open(pb) : NULL;
    bool        same = x && y && dt_archive_count(x) == dt_archive_count(y) && dt_archive_count(x) > 20;
    snprintf(what, n, "%s and %s: %s", a, b, same ? "" : "count");
    for (int64_t i = 0; same && i < dt_archive_count(x); i++) {
        dt_archive_entry e, f;
        int64_t          j = dt_archive_find(y, dt_archive_name(x, i));
        dt_archive_info(x, i, &e);
        same = j >= 0 && dt_archive_info(y, j, &f) && e.dtype == f.dtype && e.nbytes == f.nbytes &&
               !memcmp(&e.shape, &f.shape, sizeof e.shape) &&
               !memcmp(dt_archive_data(x, i), dt_archive_data(y, j), e.nbytes);
        if (!same) snprintf(what, n, "%s and %s: %s", a, b, dt_archive_name(x, i));
    }
    for (int64_t i = 0; same && dt_archive_key(x, i); i++) {
        const char *key = dt_archive_key(x, i), *s = dt_archive_get_string(y, key);
        if (!strcmp(key, "dt.crc32c")) continue;
        same = s && !strcmp(s, dt_archive_get_string(x, key));
        if (!same) snprintf(what, n, "%s and %s: %s", a, b, key);
    }
    dt_archive_free(x);
    dt_archive_free(y);
    return same;
}

static DT_TEST_UNUSED int64_t status_kib(const char *key) /* of /proc/self/status */
{
    char    line[200];
    int64_t kib = -1;
    FILE   *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) kib = atoll(line + strlen(key) + 1);
    if (f) fclose(f);
    return kib;
}
static DT_TEST_UNUSED bool peak_begin(void) /* VmHWM begins at what is in memory now */
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    bool  ok = f && fputs("5", f) >= 0;
    if (f && fclose(f)) ok = false;
    return ok;
}

#endif /* DT_TEST_CHECKPOINTS_H_INCLUDED */
