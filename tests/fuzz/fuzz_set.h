/* fuzz_set.h - what the fuzzing targets of dt_data.h share: files in memory, looking at a set. Include after fuzz.h and
   dt_data.h.

       const char *p = fuzz_file(0, d, n); the path of a file with these bytes; 0, 1: two of them at a time
       const char *p = fuzz_dir();         a directory of links to them: test.bin, test_batch.bin, two sets of images
       if (fuzz_fit(path, 0)) ...          the pending error said how long the file should be; now it is
       fuzz_set(s, most);                  s, or the pending error, holds what it must; frees s */
#ifndef FUZZ_SET_H_INCLUDED
#define FUZZ_SET_H_INCLUDED

#include <sys/mman.h>
#include <sys/stat.h>

static int         fuzz_fd[2] = { -1, -1 };
static char        fuzz_path[2][32], fuzz_root[64];
static const char *fuzz_file(int k, const uint8_t *data, size_t n)
{
    if (fuzz_fd[k] < 0) fuzz_fd[k] = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(fuzz_path[k], sizeof fuzz_path[k], "/proc/self/fd/%d", fuzz_fd[k]);
    if (fuzz_fd[k] < 0 || ftruncate(fuzz_fd[k], 0) || pwrite(fuzz_fd[k], data, n, 0) != (ssize_t)n) abort();
    return fuzz_path[k];
}
static const struct {
    const char *name;
    int         file; /* -1: a folder */
} fuzz_links[] = { { "one", -1 },           { "one/a", -1 },      { "one/a/x.pgm", 0 }, { "two", -1 },
                   { "two/a", -1 },         { "two/a/x.pgm", 0 }, { "two/b", -1 },      { "two/b/y.ppm", 1 },
                   { "test_batch.bin", 0 }, { "test.bin", 0 } };
enum { FUZZ_LINKS = sizeof fuzz_links / sizeof *fuzz_links };
static void fuzz_dir_remove(void)
{
    char path[128];
    for (int i = FUZZ_LINKS - 1; i >= 0; i--) {
        snprintf(path, sizeof path, "%s/%s", fuzz_root, fuzz_links[i].name);
        remove(path);
    }
    remove(fuzz_root);
}
static inline const char *fuzz_dir(void)
{
    char path[128];
    if (fuzz_root[0]) return fuzz_root;
    fuzz_file(0, NULL, 0);
    fuzz_file(1, NULL, 0);
    snprintf(fuzz_root, sizeof fuzz_root, "%s/dt_fuzz.XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(fuzz_root)) abort();
    atexit(fuzz_dir_remove);
    for (int i = 0; i < FUZZ_LINKS; i++) {
        int k = fuzz_links[i].file;
        snprintf(path, sizeof path, "%s/%s", fuzz_root, fuzz_links[i].name);
        if (k < 0 ? mkdir(path, 0700) : symlink(fuzz_path[k], path)) abort();
    }
    return fuzz_root;
}
/* Mutations seldom make a file as long as its header wants: the message tells, and clears the way behind that check. */
static inline int fuzz_fit(const char *path, int k)
{
    const char *e = dt_error(), *name = e ? strstr(e, path) : NULL, *at = name ? strstr(name, "expects ") : NULL;
    long long   n = at ? atoll(at + 8) : 0;
    if (n <= 0 || n > 1 << 13) return 0;
    dt_error_clear();
    return ftruncate(fuzz_fd[k], (off_t)n) == 0;
}
/* Reads the first, a middle and the last item. most: what opening may have allocated. */
static void fuzz_set(dt_dataset *s, size_t most)
{
    if (fuzz_peak - fuzz_before > most) abort();
    if (!s != (dt_error() != NULL)) abort();
    if (!s && (!dt_error()[0] || dt_error_code() == DT_ERR_MEMORY)) abort();
    dt_error_clear();
    int64_t n = dt_dataset_len(s);
    if (s && n <= 0) abort();
    for (int k = 0; s && k < 3; k++) {
        dt_item_info d = dt_dataset_item_info(s);
        size_t       xn = dt_dtype_nbytes(d.x_dtype), yn = d.has_y ? dt_dtype_nbytes(d.y_dtype) : 0;
        int64_t      i = k == 0 ? 0 : k == 1 ? n / 2 : n - 1, label;
        char         where[512];
        for (int j = 0; j < d.x_shape.ndim; j++) xn *= (size_t)d.x_shape.dim[j];
        for (int j = 0; j < d.y_shape.ndim; j++) yn *= (size_t)d.y_shape.dim[j];
        char *x = (char *)malloc(xn), *y = yn ? (char *)malloc(yn) : NULL; /* their own size: a byte more is seen */
        if (!x || (yn && !y)) abort();
        fuzz_peak = fuzz_live;
        size_t held = fuzz_live;
        if (dt_dataset_get(s, i, x, y) != DT_OK) {
            if (dt_error_code() != DT_ERR_FILE || !strstr(dt_error(), "expected")) abort();
            dt_error_clear();
        } else if (d.classes && d.has_y) {
            memcpy(&label, y, 8);
            if (yn != 8 || label < 0 || label >= d.classes) abort();
        }
        if (fuzz_peak - held > 3 * (xn + yn) + (1 << 20)) abort();
        if (!dt_dataset_where(s, i, where, sizeof where)[0]) abort();
        free(x);
        free(y);
    }
    dt_dataset_free(s);
}

#endif /* FUZZ_SET_H_INCLUDED */
