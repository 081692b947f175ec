/* example_data.h - what the examples share: options, and images (IDX files of MNIST and Fashion-MNIST, or data/digits)

       example_data d;
       if (example_load(&d, NULL)) return dt_check("demo");             the first of data/fashion, data/mnist, digits
       example_batch(&d.train, index, 100, x, y);                       x (100, 1, 28, 28), y (100)
       example_free(&d);

   Pixels are scaled to 0..1 and normalised by mean and standard deviation of the training set. Images of 8x8 become
   28x28: each pixel 3x3, and a border of 2. Include it after dt.h. */
#ifndef EXAMPLE_DATA_H_INCLUDED
#define EXAMPLE_DATA_H_INCLUDED

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXAMPLE_SIDE = 28, EXAMPLE_PIXELS = EXAMPLE_SIDE * EXAMPLE_SIDE, EXAMPLE_CLASSES = 10 };

typedef struct example_set {
    int64_t              n;
    int                  side;  /* of the images as stored: 8 or 28 */
    const unsigned char *pixel; /* n images */
    const unsigned char *label; /* n labels, all below EXAMPLE_CLASSES */
    const float         *value; /* of a pixel: 256 normalised ones */
} example_set;

typedef struct example_data {
    example_set    train, test;
    double         mean, std;  /* of the training pixels as nets see them, scaled to 0..1 */
    char           from[512];  /* the directory */
    float          value[256];
    unsigned char *mem[4];
} example_data;

/* The bytes of an IDX file of unsigned bytes with ndim (1..3) dimensions, or NULL after dt_fail; free() them. No length
   in the file is believed before it is compared with the size of the file. */
static inline unsigned char *example_idx(const char *path, int ndim, int64_t *dim)
{
    unsigned char  head[16] = { 0 }, *data = NULL;
    FILE          *f = fopen(path, "rb");
    size_t         want = (size_t)(4 + 4 * ndim), got = f ? fread(head, 1, want, f) : 0;
    uint64_t       n = 1;
    long           end = -1;
    if (!f) {
        dt_fail(DT_ERR_FILE, "example_idx: cannot open %s: %s", path, strerror(errno));
        return NULL;
    }
    for (int i = 0; i < ndim; i++) {
        const unsigned char *b = head + 4 + 4 * i;
        dim[i] = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | (int64_t)b[3];
        if (__builtin_mul_overflow(n, (uint64_t)dim[i], &n)) n = UINT64_MAX;
    }
    if (ferror(f))
        dt_fail(DT_ERR_FILE, "example_idx: cannot read %s: %s", path, strerror(errno));
    else if (got >= 2 && head[0] == 0x1f && head[1] == 0x8b)
        dt_fail(DT_ERR_ARG, "example_idx: %s is gzipped; unpack it with gzip -d", path);
    else if (got < want)
        dt_fail(DT_ERR_ARG, "example_idx: %s has %zu bytes, less than the %zu of its header", path, got, want);
    else if (head[0] || head[1] || head[2] != 8 || head[3] != ndim)
        dt_fail(DT_ERR_ARG, "example_idx: %s begins with %02x%02x%02x%02x, not with 000008%02x: not an IDX file of "
                "bytes with %d dimensions", path, head[0], head[1], head[2], head[3], ndim, ndim);
    else if (n == 0)
        dt_fail(DT_ERR_ARG, "example_idx: %s is empty: a dimension is 0", path);
    else if (fseek(f, 0, SEEK_END) || (end = ftell(f)) < 0 || fseek(f, (long)want, SEEK_SET))
        dt_fail(DT_ERR_FILE, "example_idx: cannot tell the size of %s: %s", path, strerror(errno));
    else if ((uint64_t)end - want != n)
        dt_fail(DT_ERR_ARG, "example_idx: %s holds %lld bytes of data, its header announces %llu", path,
                (long long)end - (long long)want, (unsigned long long)n);
    else if (!(data = (unsigned char *)malloc((size_t)n)))
        dt_fail(DT_ERR_MEMORY, "example_idx: out of memory for the %llu bytes of %s", (unsigned long long)n, path);
    else if (fread(data, 1, (size_t)n, f) != n) {
        dt_fail(DT_ERR_FILE, "example_idx: cannot read %s to its end", path);
        free(data);
        data = NULL;
    }
    fclose(f);
    return data;
}

/* Images and labels of one set, from dir/images and dir/labels. 0, or a negative status after dt_fail. */
static inline int example_open(example_set *s, unsigned char **mem, const char *dir, const char *images,
                               const char *labels)
{
    char    path[2][1024];
    int64_t shape[3], n;
    if (snprintf(path[0], sizeof path[0], "%s/%s", dir, images) >= (int)sizeof path[0] ||
        snprintf(path[1], sizeof path[1], "%s/%s", dir, labels) >= (int)sizeof path[1])
        return dt_fail(DT_ERR_ARG, "example_load: the name of the directory is too long");
    if (!(mem[0] = example_idx(path[0], 3, shape)) || !(mem[1] = example_idx(path[1], 1, &n))) return dt_error_code();
    if (n != shape[0])
        return dt_fail(DT_ERR_SHAPE, "example_load: %s has %lld images, %s has %lld labels", path[0],
                       (long long)shape[0], path[1], (long long)n);
    if (shape[1] != shape[2] || (shape[1] != EXAMPLE_SIDE && shape[1] != 8))
        return dt_fail(DT_ERR_SHAPE, "example_load: the images of %s are %lld x %lld; 28 x 28 and 8 x 8 are known",
                       path[0], (long long)shape[1], (long long)shape[2]);
    for (int64_t i = 0; i < n; i++)
        if (mem[1][i] >= EXAMPLE_CLASSES)
            return dt_fail(DT_ERR_ARG, "example_load: label %lld of %s is %d, above %d", (long long)i, path[1],
                           mem[1][i], EXAMPLE_CLASSES - 1);
    s->n = n;
    s->side = (int)shape[1];
    s->pixel = mem[0];
    s->label = mem[1];
    return 0;
}

/* The value of every pixel byte; top: the byte that is white. */
static inline void example_normalise(example_data *d, int top)
{
    int64_t count[256] = { 0 }, bytes = d->train.n * d->train.side * d->train.side;
    double  all = (double)(d->train.n * EXAMPLE_PIXELS), each = all / (double)bytes, sum = 0, squares = 0;
    if (d->train.side == 8) each = 9; /* 3x3; the border adds zeros */
    for (int64_t i = 0; i < bytes; i++) count[d->train.pixel[i]]++;
    for (int v = 0; v < 256; v++) {
        double x = (double)v / top;
        sum += each * (double)count[v] * x;
        squares += each * (double)count[v] * x * x;
    }
    double variance = squares / all - (sum / all) * (sum / all);
    d->mean = sum / all;
    d->std = variance > 0 ? sqrt(variance) : 1; /* a blank set stays as it is */
    for (int v = 0; v < 256; v++) d->value[v] = (float)(((double)v / top - d->mean) / d->std);
    d->train.value = d->test.value = d->value;
}

static inline void example_free(example_data *d)
{
    for (int i = 0; i < 4; i++) free(d->mem[i]);
    memset(d, 0, sizeof *d);
}

static inline bool example_has(const char *dir, const char *file)
{
    char  path[1024];
    FILE *f = snprintf(path, sizeof path, "%s/%s", dir, file) < (int)sizeof path ? fopen(path, "rb") : NULL;
    if (f) fclose(f);
    return f != NULL;
}

/* Every fifth image is for testing: writers follow each other in the file, so a cut would test on other hands than it
   trained on. Training images move together, the others to memory of their own. */
static inline int example_split(example_data *d, const char *dir)
{
    int64_t n = d->train.n, each = (int64_t)d->train.side * d->train.side, ntest = (n + 4) / 5, ntrain = 0;
    d->mem[2] = (unsigned char *)malloc((size_t)(ntest * each));
    d->mem[3] = (unsigned char *)malloc((size_t)ntest);
    if (!d->mem[2] || !d->mem[3]) return dt_fail(DT_ERR_MEMORY, "example_load: out of memory");
    for (int64_t i = 0; i < n; i++) {
        unsigned char *pixel = i % 5 ? d->mem[0] + ntrain * each : d->mem[2] + i / 5 * each;
        memmove(pixel, d->mem[0] + i * each, (size_t)each);
        *(i % 5 ? d->mem[1] + ntrain : d->mem[3] + i / 5) = d->mem[1][i];
        ntrain += i % 5 != 0;
    }
    d->test = d->train;
    d->test.pixel = d->mem[2];
    d->test.label = d->mem[3];
    d->test.n = ntest;
    d->train.n = ntrain;
    return ntrain ? 0 : dt_fail(DT_ERR_SHAPE, "example_load: %s holds too few images", dir);
}

/* MNIST's four files in dir (NULL: data/fashion or data/mnist); where there are none the digits, which is said in one
   line on stderr. Files that are there but wrong are an error. 0, or a negative status after dt_fail. */
static inline int example_load(example_data *d, const char *dir)
{
    const char *known[5], *found = NULL;
    known[0] = dir ? dir : "data/fashion", known[1] = dir ? dir : "../data/fashion";
    known[2] = dir ? dir : "data/mnist", known[3] = "data/digits", known[4] = "../data/digits";
    memset(d, 0, sizeof *d);
    if (dt_error()) return dt_error_code();
    int i = 0, full, rc;
    for (; i < 5 && !found; i++)
        if (example_has(known[i], i < 3 ? "train-images-idx3-ubyte" : "digits-images-idx3-ubyte")) found = known[i];
    full = i <= 3;
    if (!found)
        return dt_fail(DT_ERR_ARG, "example_load: neither %s/train-images-idx3-ubyte nor data/digits is here; run it "
                       "from the directory of the Makefile", known[0]);
    snprintf(d->from, sizeof d->from, "%s", found);
    if (full) {
        rc = example_open(&d->train, d->mem, found, "train-images-idx3-ubyte", "train-labels-idx1-ubyte");
        if (!rc) rc = example_open(&d->test, d->mem + 2, found, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte");
        if (!rc && d->train.side != d->test.side)
            rc = dt_fail(DT_ERR_SHAPE, "example_load: training and test images of %s differ in size", found);
    } else {
        rc = example_open(&d->train, d->mem, found, "digits-images-idx3-ubyte", "digits-labels-idx1-ubyte");
        if (!rc) rc = example_split(d, found);
        if (!rc && !(dir && example_has(dir, "digits-images-idx3-ubyte")))
            fprintf(stderr, "no train-images-idx3-ubyte in %s (make data gets them): taking the %lld digits of %s\n",
                    dir ? dir : "data/fashion", (long long)(d->train.n + d->test.n), found);
    }
    if (rc)
        example_free(d);
    else
        example_normalise(d, full ? 255 : 16);
    return rc;
}

/* Images and labels at n indices (each must be below s->n) into x (n, 1, 28, 28) and y (n); either may be NULL. */
static inline void example_batch(const example_set *s, const int64_t *index, int64_t n, float *x, int64_t *y)
{
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *p = s->pixel + index[i] * s->side * s->side;
        float               *to = x ? x + i * EXAMPLE_PIXELS : NULL;
        if (y) y[i] = s->label[index[i]];
        if (!to) continue;
        for (int k = 0; k < EXAMPLE_PIXELS; k++) {
            int r = k / EXAMPLE_SIDE - 2, c = k % EXAMPLE_SIDE - 2;
            if (s->side == EXAMPLE_SIDE)
                to[k] = s->value[p[k]];
            else
                to[k] = s->value[r >= 0 && c >= 0 && r < 24 && c < 24 ? p[r / 3 * 8 + c / 3] : 0];
        }
    }
}

/* The argument behind 'name' on the command line. */
static inline const char *example_option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    return otherwise;
}

#endif /* EXAMPLE_DATA_H_INCLUDED */
