/* test_data_files.c: the files dt_data.h opens. What is in them comes out; what is damaged, of another kind, or made to
   harm is refused, and the message names file, place, what was found and what was expected.
   Contents: >>idx >>mnist >>npy >>records >>tokens >>folders >>kinds >>memory */
#include "dt_test.h"

#include "dt_data.h"
#include "temp_files.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

UTEST_MAIN()

typedef struct bytes { /* a file in the making */
    uint8_t p[8192];
    size_t  n;
} bytes;
static void put(bytes *b, const void *p, size_t n)
{
    memcpy(b->p + b->n, p, n);
    b->n += n;
}
static bytes idx(int type, int ndim, const int *dim, const void *data, size_t n)
{
    bytes   b = { { 0 }, 0 };
    uint8_t head[4] = { 0, 0, (uint8_t)type, (uint8_t)ndim };
    put(&b, head, 4);
    for (int i = 0; i < ndim; i++) {
        uint8_t d[4] = { (uint8_t)(dim[i] >> 24), (uint8_t)(dim[i] >> 16), (uint8_t)(dim[i] >> 8), (uint8_t)dim[i] };
        put(&b, d, 4);
    }
    put(&b, data, n);
    return b;
}
static bytes npy(int version, const char *header, size_t data)
{
    bytes   b = { { 0 }, 0 };
    size_t  n = strlen(header);
    uint8_t head[12] = { 0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)version, 0, (uint8_t)n, (uint8_t)(n >> 8), 0, 0 };
    put(&b, head, version == 1 ? 10 : 12);
    put(&b, header, n);
    for (size_t i = 0; i < data; i++) b.p[b.n++] = (uint8_t)i;
    return b;
}
/* x of item i as numbers */
static int items(const dt_dataset *s, int64_t i, double *out, int64_t *label)
{
    char         x[4096], y[4096];
    dt_item_info d = dt_dataset_item_info(s);
    int64_t      n = 1;
    if (dt_dataset_get(s, i, x, d.has_y ? y : NULL) != DT_OK) return -1;
    for (int k = 0; k < d.x_shape.ndim; k++) n *= d.x_shape.dim[k];
    for (int64_t k = 0; k < n; k++) out[k] = dt_test_element(x, d.x_dtype, k);
    if (label) memcpy(label, y, 8);
    return (int)n;
}
static int same_shape(dt_shape a, dt_shape b)
{
    int same = a.ndim == b.ndim;
    for (int i = 0; same && i < a.ndim; i++) same = a.dim[i] == b.dim[i];
    return same;
}
/* The file of these bytes is refused with a message that names it; or, where it may be, is a set of its size. */
typedef dt_dataset *(*opener)(const char *path);
static dt_dataset *open_idx(const char *path) { return dt_idx_open(path); }
static dt_dataset *open_npy(const char *path) { return dt_npy_open(path); }
static int         refused(opener open, const char *dir, const void *p, size_t n, int may_open)
{
    const char *path = temp_put(dir, "damaged", p, n);
    dt_dataset *s = open(path);
    int         bad = 0;
    if (s) {
        dt_item_info d = dt_dataset_item_info(s);
        int64_t      each = 1;
        char         x[65536];
        for (int i = 0; i < d.x_shape.ndim; i++) each *= d.x_shape.dim[i];
        bad = !may_open || dt_error() || dt_dataset_len(s) < 1 || dt_dataset_len(s) * each > (int64_t)n ||
              (each < 4096 && dt_dataset_get(s, dt_dataset_len(s) - 1, x, NULL) != DT_OK);
    } else {
        bad = !dt_error() || dt_error_code() != DT_ERR_FILE || !strstr(dt_error(), "damaged");
    }
    if (bad) printf("   %zu bytes: %s, %s\n", n, s ? "opened" : "refused", dt_error() ? dt_error() : "no message");
    dt_dataset_free(s);
    dt_error_clear();
    return !bad;
}

/* ==================================================================================================== >>idx */
UTEST(idx, every_type)
{
    char *dir = temp_dir();
    static const struct {
        int      type;
        uint8_t  data[16];
        int      size;
        dt_dtype dtype;
        double   a, b;
    } t[] = {
        { 0x08, { 1, 254 }, 1, DT_U8, 1, 254 },
        { 0x09, { 1, 254 }, 1, DT_I32, 1, -2 },
        { 0x0b, { 1, 0x2c, 0xff, 0xfe }, 2, DT_I32, 300, -2 },
        { 0x0c, { 0, 0, 1, 0x2c, 0xff, 0xff, 0x63, 0xc0 }, 4, DT_I32, 300, -40000 },
        { 0x0d, { 0x3f, 0, 0, 0, 0xc0, 0, 0, 0 }, 4, DT_F32, 0.5, -2 },
        { 0x0e, { 0x3f, 0xe0, 0, 0, 0, 0, 0, 0, 0xc0 }, 8, DT_F32, 0.5, -2 },
    };
    for (size_t k = 0; k < sizeof t / sizeof *t; k++) {
        int         dim[2] = { 2, 1 };
        bytes       b = idx(t[k].type, 2, dim, t[k].data, 2 * (size_t)t[k].size);
        dt_dataset *s = dt_idx_open(temp_put(dir, "x", b.p, b.n));
        double      v;
        ASSERT_OK(s);
        EXPECT_EQ(2, (int)dt_dataset_len(s));
        EXPECT_EQ((int)t[k].dtype, (int)dt_dataset_item_info(s).x_dtype);
        EXPECT_TRUE(same_shape(DT_SHAPE(1), dt_dataset_item_info(s).x_shape));
        EXPECT_FALSE(dt_dataset_item_info(s).has_y);
        EXPECT_EQ(1, items(s, 0, &v, NULL));
        EXPECT_EQ(t[k].a, v);
        EXPECT_EQ(1, items(s, 1, &v, NULL));
        EXPECT_EQ(t[k].b, v);
        dt_dataset_free(s);
    }
    temp_remove(dir);
}

UTEST(idx, with_a_channel_images_can_be_cropped)
{
    char       *dir = temp_dir();
    int         dim[3] = { 2, 3, 4 }, two[2] = { 2, 12 };
    uint8_t     data[24];
    double      v[12];
    for (int i = 0; i < 24; i++) data[i] = (uint8_t)i;
    bytes       b = idx(0x08, 3, dim, data, 24), flat = idx(0x08, 2, two, data, 24);
    const char *path = temp_put(dir, "x", b.p, b.n);
    dt_dataset *s = dt_idx_open(path, .channel = true);
    ASSERT_OK(s);
    EXPECT_TRUE(same_shape(DT_SHAPE(1, 3, 4), dt_dataset_item_info(s).x_shape));
    EXPECT_EQ(12, items(s, 1, v, NULL));
    EXPECT_EQ(12.0, v[0]);
    dt_loader *in = dt_loader_new(s, .batch = 2, .crop = 1);
    dt_batch   batch;
    ASSERT_TRUE(dt_loader_next(in, &batch));
    EXPECT_TRUE(same_shape(DT_SHAPE(2, 1, 3, 4), dt_shape_of(batch.x)));
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
    dt_empty_cache();
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "y", flat.p, flat.n), .channel = true), "holds shape (2, 12); .channel is for images");
    temp_remove(dir);
}
UTEST(idx, shards_are_one_set_in_the_order_of_their_names)
{
    char *dir = temp_dir();
    for (int k = 3; k >= 1; k--) { /* k items of the value 10*k + i in part-k */
        uint8_t data[6];
        char    name[32];
        int     dim[2] = { k, 2 };
        for (int i = 0; i < 2 * k; i++) data[i] = (uint8_t)(10 * k + i);
        bytes b = idx(8, 2, dim, data, 2 * (size_t)k);
        snprintf(name, sizeof name, "part-%d.idx", k);
        temp_put(dir, name, b.p, b.n);
        if (k == 2) temp_put(dir, "star*", b.p, b.n);
        if (k == 1) temp_put(dir, "starlet", b.p, b.n);
    }
    static const char *const patterns[] = { "part-*.idx", "part-?.idx", "part-[1-3].idx" };
    for (int k = 0; k < 3; k++) {
        dt_dataset *s = dt_idx_open(temp_in(dir, patterns[k]));
        double      v[2];
        char        where[600];
        ASSERT_OK(s);
        ASSERT_EQ(6, (int)dt_dataset_len(s));
        EXPECT_EQ(3, (int)dt_dataset_shards(s));
        EXPECT_EQ(1, (int)dt_dataset_shard(s, 1));
        EXPECT_EQ(3, (int)dt_dataset_shard(s, 2));
        EXPECT_EQ(6, (int)dt_dataset_shard(s, 3));
        static const int want[] = { 10, 20, 22, 30, 32, 34 };
        for (int i = 0; i < 6; i++) {
            EXPECT_EQ(2, items(s, i, v, NULL));
            EXPECT_EQ(want[i], (int)v[0]);
            EXPECT_EQ(want[i] + 1, (int)v[1]);
        }
        dt_dataset_where(s, 4, where, sizeof where);
        EXPECT_TRUE(strstr(where, "part-3.idx, byte 14") != NULL);
        dt_dataset_free(s);
    }
    dt_dataset *s = dt_idx_open(temp_in(dir, "star*")); /* that file itself */
    EXPECT_EQ(2, (int)dt_dataset_len(s));
    dt_dataset_free(s);
    EXPECT_ERROR(dt_idx_open(temp_in(dir, "none-*")), "none-*");
    EXPECT_ERROR(dt_idx_open(temp_in(dir, "none-*")), "no file matches");
    EXPECT_ERROR(dt_idx_open(temp_in(dir, "none")), "No such file");
    EXPECT_ERROR(dt_idx_open((const char *)NULL), "NULL");
    int   dim[2] = { 1, 3 };
    bytes b = idx(8, 2, dim, "abc", 3);
    temp_put(dir, "part-4.idx", b.p, b.n);
    EXPECT_ERROR(dt_idx_open(temp_in(dir, "part-*")), "part-1.idx have shape (2), of");
    EXPECT_ERROR(dt_idx_open(temp_in(dir, "part-*")), "part-4.idx (3)");
    dim[1] = 2;
    b = idx(9, 2, dim, "ab", 2);
    temp_put(dir, "part-4.idx", b.p, b.n);
    EXPECT_ERROR(dt_idx_open(temp_in(dir, "part-*")), "part-1.idx holds u8,");
    EXPECT_ERROR(dt_idx_open(temp_in(dir, "part-*")), "part-4.idx holds i8;");
    temp_remove(dir);
}

UTEST(idx, labels_are_checked_when_they_are_opened)
{
    char *dir = temp_dir();
    int   dim[2] = { 3, 2 }, two = 2, three = 3;
    bytes x = idx(8, 2, dim, "abcdef", 6), y = idx(8, 1, &three, "\0\1\2", 3),
          wide = idx(12, 2, dim, "\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0\6", 24);
    const char *xp = temp_put(dir, "x", x.p, x.n), *yp = temp_put(dir, "y", y.p, y.n);
    int         before = temp_fds();
    dt_dataset *s = dt_idx_open(xp, .labels = yp, .classes = 3);
    int64_t     label = -1;
    int32_t     narrow[2];
    double      v[2];
    uint8_t     raw = 9;
    ASSERT_OK(s);
    EXPECT_EQ(before + 1, temp_fds()); /* labels are held in memory */
    EXPECT_EQ(3, (int)dt_dataset_item_info(s).classes);
    EXPECT_EQ((int)DT_I64, (int)dt_dataset_item_info(s).y_dtype);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(2, items(s, i, v, &label));
        EXPECT_EQ(i, (int)label);
    }
    dt_dataset_free(s);
    s = dt_idx_open(xp, .labels = yp); /* as it is */
    ASSERT_OK(s);
    EXPECT_EQ((int)DT_U8, (int)dt_dataset_item_info(s).y_dtype);
    EXPECT_OK(dt_dataset_get(s, 2, NULL, &raw));
    EXPECT_EQ(2, raw);
    dt_dataset_free(s);
    s = dt_idx_open(xp, .labels = temp_put(dir, "wide", wide.p, wide.n));
    ASSERT_OK(s);
    EXPECT_OK(dt_dataset_get(s, 1, NULL, narrow));
    EXPECT_EQ(4, narrow[1]);
    dt_dataset_free(s);
    EXPECT_ERROR(dt_idx_open(xp, .labels = yp, .classes = 2), "y, byte 10: label 2, expected 0 to 1");
    EXPECT_ERROR(dt_idx_open(xp, .labels = temp_in(dir, "wide"), .classes = 9), "not one integer");
    EXPECT_ERROR(dt_idx_open(xp, .classes = 2), ".classes without .labels");
    EXPECT_ERROR(dt_idx_open(xp, .labels = yp, .classes = -2), ".classes is -2, expected 0");
    y = idx(8, 1, &two, "\0\1", 2);
    temp_put(dir, "y", y.p, y.n);
    EXPECT_ERROR(dt_idx_open(xp, .labels = yp, .classes = 2), "x has 3 items, its labels");
    EXPECT_ERROR(dt_idx_open(xp, .labels = yp, .classes = 2), "y are 2");
    EXPECT_ERROR(dt_idx_open(xp, .labels = temp_in(dir, "[yw]*")), "expected as many");
    y = idx(9, 1, &three, "\0\377\1", 3); /* -1 */
    temp_put(dir, "y", y.p, y.n);
    EXPECT_ERROR(dt_idx_open(xp, .labels = yp, .classes = 2), "y, byte 9: label -1, expected 0 to 1");
    temp_remove(dir);
}

UTEST(idx, damage)
{
    char *dir = temp_dir();
    int   dim[3] = { 3, 2, 2 };
    bytes b = idx(0x0b, 3, dim, "abcdefghijklmnopqrstuvwx", 24), c;
    for (size_t n = 0; n < b.n; n++) ASSERT_TRUE(refused(open_idx, dir, b.p, n, 0));
    for (size_t k = 0; k < 16 * 8; k++) {
        c = b;
        c.p[k / 8] ^= (uint8_t)(1 << k % 8);
        ASSERT_TRUE(refused(open_idx, dir, c.p, c.n, 1));
    }
    const char *path = temp_put(dir, "damaged", b.p, b.n - 1);
    EXPECT_ERROR(dt_idx_open(path), "truncated: it has 39 bytes");
    EXPECT_ERROR(dt_idx_open(path), "shape (3, 2, 2) of big-endian i16) expects 40");
    temp_put(dir, "damaged", b.p, b.n + 1);
    EXPECT_ERROR(dt_idx_open(path), "too long: it has 41 bytes");
    temp_put(dir, "damaged", b.p, 14);
    EXPECT_ERROR(dt_idx_open(path), "it has 14 bytes, an IDX header expects 16");
    temp_put(dir, "damaged", "hello world", 11);
    EXPECT_ERROR(dt_idx_open(path), "begins with 68 65 6c 6c, expected 00 00");
    b.p[2] = 0x0a;
    temp_put(dir, "damaged", b.p, b.n);
    EXPECT_ERROR(dt_idx_open(path), "byte 2: type 0a, expected 08");
    int dims[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 }, huge[8] = { -1, -1, -1, -1, -1, -1, -1, -1 };
    c = idx(8, 9, dims, "a", 1);
    temp_put(dir, "damaged", c.p, c.n);
    EXPECT_ERROR(dt_idx_open(path), "byte 3: 9 dimensions, expected 1 to 8");
    c = idx(14, 8, huge, "a", 1);
    temp_put(dir, "damaged", c.p, c.n);
    EXPECT_ERROR(dt_idx_open(path), "more than a file can hold; the file has 37 bytes");
    dims[0] = 0;
    c = idx(8, 2, dims, "", 0);
    temp_put(dir, "damaged", c.p, c.n);
    EXPECT_ERROR(dt_idx_open(path), "no items: its header says shape (0, 1)");
    temp_put(dir, "damaged", "\x1f\x8b\x08\0\0\0\0\0\0\3", 10);
    EXPECT_ERROR(dt_idx_open(path), "gzipped: unpack it with gzip -d, or build with -DDT_USE_ZLIB and link with -lz");
    temp_remove(dir);
}

/* ==================================================================================================== >>mnist */
UTEST(mnist, images_get_a_channel_and_labels_their_classes)
{
    char  *dir = temp_dir();
    int    dim[3] = { 2, 3, 2 }, two = 2;
    bytes  x = idx(8, 3, dim, "abcdefghijkl", 12), y = idx(8, 1, &two, "\11\0", 2), high = idx(8, 1, &two, "\12\32", 2);
    double v[6];
    int64_t label;
    temp_put(dir, "train-images-idx3-ubyte", x.p, x.n);
    temp_put(dir, "train-labels-idx1-ubyte", y.p, y.n);
    dt_dataset *s = dt_mnist_open(dir, DT_TRAIN);
    ASSERT_OK(s);
    EXPECT_TRUE(same_shape(DT_SHAPE(1, 3, 2), dt_dataset_item_info(s).x_shape));
    EXPECT_EQ(10, (int)dt_dataset_item_info(s).classes);
    EXPECT_EQ(6, items(s, 1, v, &label));
    EXPECT_EQ('g', (int)v[0]);
    EXPECT_EQ(0, (int)label);
    EXPECT_EQ(6, items(s, 0, v, &label));
    EXPECT_EQ(9, (int)label);
    dt_dataset_free(s);
    EXPECT_ERROR(dt_mnist_open(dir, DT_TEST), "t10k-images-idx3-ubyte (nor with .gz): No such file");
    EXPECT_ERROR(dt_mnist_open(NULL, DT_TEST), "NULL");
    EXPECT_ERROR(dt_mnist_open(dir, (dt_part)7), "part is 7");
    temp_put(dir, "train-labels-idx1-ubyte", high.p, high.n);
    EXPECT_ERROR(dt_mnist_open(dir, DT_TRAIN), "train-labels-idx1-ubyte, byte 8: label 10, expected 0 to 9");
    temp_put(dir, "train-images-idx3-ubyte", y.p, y.n);
    EXPECT_ERROR(dt_mnist_open(dir, DT_TRAIN), "u8 of shape (2), expected images");
    temp_put(dir, "t10k-images-idx3-ubyte.gz", "\x1f\x8b", 2);
    temp_put(dir, "t10k-labels-idx1-ubyte", y.p, y.n);
    EXPECT_ERROR(dt_mnist_open(dir, DT_TEST), "t10k-images-idx3-ubyte.gz is gzipped");

    static const struct {
        const char *split;
        int         classes;
    } e[] = { { "letters", 27 }, { "balanced", 47 }, { "digits", 10 },
              { "mnist", 10 },   { "byclass", 62 },  { "bymerge", 47 } };
    for (int k = 0; k < 6; k++) {
        char name[100];
        snprintf(name, sizeof name, "emnist-%s-test-images-idx3-ubyte", e[k].split);
        temp_put(dir, name, x.p, x.n);
        snprintf(name, sizeof name, "emnist-%s-test-labels-idx1-ubyte", e[k].split);
        temp_put(dir, name, y.p, y.n);
        s = dt_emnist_open(dir, e[k].split, DT_TEST);
        ASSERT_OK(s);
        EXPECT_EQ(e[k].classes, (int)dt_dataset_item_info(s).classes);
        dt_dataset_free(s);
    }
    temp_put(dir, "emnist-letters-test-labels-idx1-ubyte", high.p, high.n); /* 26: z */
    s = dt_emnist_open(dir, "letters", DT_TEST);
    EXPECT_OK(s);
    dt_dataset_free(s);
    EXPECT_ERROR(dt_emnist_open(dir, "letters", DT_TRAIN), "emnist-letters-train-images-idx3-ubyte");
    EXPECT_ERROR(dt_emnist_open(dir, "latin", DT_TRAIN), "'latin', expected letters, balanced, digits, mnist, byclass");
    EXPECT_ERROR(dt_emnist_open(dir, NULL, DT_TRAIN), "expected letters");
    temp_remove(dir);
}

/* ==================================================================================================== >>npy */
static const char *numpy(const char *name)
{
    static char path[1024];
    const char *slash = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*s/../corpus/npy/numpy-%s.npy", slash ? (int)(slash - __FILE__) : 1,
             slash ? __FILE__ : ".", name);
    return path;
}
UTEST(npy, what_numpy_writes)
{
    static const struct {
        const char *name;
        dt_dtype    dtype;
        int         wraps; /* 0: -5 is -5 */
    } t[] = { { "order-b1", DT_U8, 1 },         { "order-u1", DT_U8, 256 },       { "order-i1", DT_I32, 0 },
              { "order-little-i2", DT_I32, 0 }, { "order-big-i2", DT_I32, 0 },    { "order-little-u2", DT_I32, 65536 },
              { "order-little-i4", DT_I32, 0 }, { "order-big-i4", DT_I32, 0 },    { "order-little-u4", DT_I64, -1 },
              { "order-little-i8", DT_I64, 0 }, { "order-big-i8", DT_I64, 0 },    { "order-little-f2", DT_F16, 0 },
              { "order-big-f2", DT_F16, 0 },    { "order-little-f4", DT_F32, 0 }, { "order-big-f4", DT_F32, 0 },
              { "order-little-f8", DT_F32, 0 }, { "order-big-f8", DT_F32, 0 },    { "version-2", DT_F32, 0 } };
    for (size_t k = 0; k < sizeof t / sizeof *t; k++) {
        dt_dataset *s = dt_npy_open(numpy(t[k].name));
        double      v[6];
        ASSERT_OK(s);
        EXPECT_EQ(4, (int)dt_dataset_len(s));
        EXPECT_EQ((int)t[k].dtype, (int)dt_dataset_item_info(s).x_dtype);
        EXPECT_TRUE(same_shape(DT_SHAPE(2, 3), dt_dataset_item_info(s).x_shape));
        for (int i = 0; i < 4; i++) {
            ASSERT_EQ(6, items(s, i, v, NULL));
            for (int j = 0; j < 6; j++) {
                double want = 6 * i + j - 5, wrap = t[k].wraps == -1 ? 4294967296.0 : t[k].wraps;
                if (t[k].wraps == 1) want = want != 0;
                else if (want < 0) want += wrap;
                EXPECT_EQ_MSG(want, v[j], t[k].name);
            }
        }
        dt_dataset_free(s);
    }
    dt_dataset *s = dt_npy_open(numpy("one-dimension"));
    ASSERT_OK(s);
    EXPECT_EQ(5, (int)dt_dataset_len(s));
    EXPECT_EQ(0, dt_dataset_item_info(s).x_shape.ndim);
    dt_dataset_free(s);
    EXPECT_ERROR(dt_npy_open(numpy("object")),
                 "dtype '|O': objects are pickled Python, which is never loaded; save an array of numbers");
    EXPECT_ERROR(dt_npy_open(numpy("structured")), "structured dtype");
    EXPECT_ERROR(dt_npy_open(numpy("version-3")), "structured dtype");
    EXPECT_ERROR(dt_npy_open(numpy("fortran")), "np.ascontiguousarray");
    EXPECT_ERROR(dt_npy_open(numpy("number")), "shape ()");
    EXPECT_ERROR(dt_npy_open(numpy("no-items")), "no items: its header says shape (0, 3)");
    EXPECT_ERROR(dt_npy_open(numpy("complex")), "'<c8': complex");
    EXPECT_ERROR(dt_npy_open(numpy("u64")), "'<u8': 64-bit unsigned integers are not supported; save the array as int64");
    EXPECT_ERROR(dt_npy_open(numpy("string")), "'<U2': strings");
    EXPECT_ERROR(dt_npy_open(numpy("bytes")), "'|S2': strings");
    EXPECT_ERROR(dt_npy_open(numpy("void")), "'|V2': raw bytes");
    EXPECT_ERROR(dt_npy_open(numpy("date")), "'<M8[D]': dates");
}

UTEST(npy, headers)
{
    char *dir = temp_dir();
    static const struct {
        const char *text;
        size_t      data;
        const char *why; /* NULL: it opens, with two items */
    } t[] = {
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", 24, NULL },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", 24, NULL },
        { "{\"shape\":(2,),\"descr\":\"=i2\",\"fortran_order\":True}", 4, NULL },
        { " { 'shape' : ( 2L , 1L , ) , 'fortran_order' : False , 'descr' : '>u1' , } ", 2, NULL },
        { "{'descr': 'u1', 'fortran_order': False, 'shape': (2,)}", 2, NULL },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 23, "truncated: it has 92 bytes" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 25, "too long: it has 94 bytes" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2), }", 8, "one dimension is (3,)" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", 8,
          "byte 61: '-' in the header, expected a dim" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (02,), }", 8, "expected a dimension below 2^63" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551618,), }", 8, "below 2^63" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,), }", 8, "below 2^63" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,), }", 8,
          "more than a file can hold" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4611686018427387905), }", 8, "more than a file" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387905), }", 8, "no items" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4, "more than 8 dimensions" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3], }", 24, "expected the shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3), }", 24, "'3' in the header, expected ',' or ')'" },
        { "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3), }", 24, "expected True or False" },
        { "{'descr': '<f4', 'fortran_order': False}", 24, "lacks 'shape'" },
        { "{'descr': '<f4', 'shape': (2, 3)}", 24, "lacks 'fortran_order'" },
        { "{}", 24, "lacks 'descr'" },
        { "{'descr': '<f4', 'descr': '<f4', 'shape': (2, 3)}", 24, "each once" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'extra': 1}", 24, "each once" },
        { "{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3), }", 24, "expected ',' or '}'" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } x", 24, "nothing after the '}'" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), ", 24, "the end in the header" },
        { "{'descr': '<f4", 24, "the end of a string" },
        { "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (2, 3), }", 24, "expected the dtype" },
        { "{'descr': '|i2', 'fortran_order': False, 'shape': (2, 3), }", 12, "dtype '|i2'" },
        { "{'descr': '<f16', 'fortran_order': False, 'shape': (2,), }", 32, "another size than 2, 4 or 8" },
        { "{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }", 4, "raw bytes (as bfloat16" },
        { "{'descr': '', 'fortran_order': False, 'shape': (2,), }", 4, "dtype ''" },
        { "", 24, "expected '{'" },
        { "import os", 24, "'i' in the header, expected '{'" },
    };
    for (size_t k = 0; k < sizeof t / sizeof *t; k++)
        for (int version = 1; version <= 3; version++) {
            bytes       b = npy(version, t[k].text, t[k].data);
            const char *path = temp_put(dir, "x.npy", b.p, b.n);
            dt_dataset *s = dt_npy_open(path);
            const char *e = dt_error();
            const char *part = version == 1 ? t[k].why : "x.npy"; /* places and sizes are those of version 1 */
            int         ok = t[k].why ? !s && e && strstr(e, part) : s && dt_dataset_len(s) == 2;
            EXPECT_TRUE_MSG(ok, e ? e : t[k].text);
            dt_dataset_free(s);
            dt_error_clear();
        }
    temp_put(dir, "x.npy", "\x93NUMPY\4\0\2\0{}", 12);
    EXPECT_ERROR(dt_npy_open(temp_in(dir, "x.npy")), "byte 6: version 4.0, expected 1.0, 2.0 or 3.0");
    temp_put(dir, "x.npy", "\x93NUMPY\2\0\377\377\377\377", 12);
    EXPECT_ERROR(dt_npy_open(temp_in(dir, "x.npy")), "a header of 4294967295 bytes, expected at most 65536");
    temp_put(dir, "x.npy", "\x93NUMPY\1\0\100\0{}", 12);
    EXPECT_ERROR(dt_npy_open(temp_in(dir, "x.npy")), "truncated: it has 12 bytes, its header expects 74");
    temp_put(dir, "x.npy", "PK\3\4 and so on", 13);
    EXPECT_ERROR(dt_npy_open(temp_in(dir, "x.npy")), "begins with 50 4b 03 04, expected 93 'NUMPY'");
    temp_remove(dir);
}

UTEST(npy, damage)
{
    char *dir = temp_dir();
    bytes b = npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", 24), c;
    for (size_t n = 0; n < b.n; n++) ASSERT_TRUE(refused(open_npy, dir, b.p, n, 0));
    ASSERT_TRUE(refused(open_npy, dir, b.p, b.n + 1, 0));
    for (size_t k = 0; k < (b.n - 24) * 8; k++) {
        c = b;
        c.p[k / 8] ^= (uint8_t)(1 << k % 8);
        ASSERT_TRUE(refused(open_npy, dir, c.p, c.n, 1));
    }
    temp_remove(dir);
}

UTEST(npy, labels_and_shards)
{
    char *dir = temp_dir();
    bytes a = npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1)}", 8);
    bytes l = npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", 2);
    for (int k = 0; k < 3; k++) {
        char name[32];
        l.p[l.n - 2] = (uint8_t)(2 * k);
        l.p[l.n - 1] = (uint8_t)(2 * k + 1);
        snprintf(name, sizeof name, "x%d.npy", k);
        temp_put(dir, name, a.p, a.n);
        name[0] = 'y';
        temp_put(dir, name, l.p, l.n);
    }
    dt_dataset *s = dt_npy_open(temp_in(dir, "x*.npy"), .labels = temp_in(dir, "y?.npy"), .classes = 6);
    double      v;
    int64_t     label;
    ASSERT_OK(s);
    ASSERT_EQ(6, (int)dt_dataset_len(s));
    for (int i = 0; i < 6; i++) {
        EXPECT_EQ(1, items(s, i, &v, &label));
        EXPECT_EQ(i, (int)label);
    }
    dt_dataset_free(s);
    s = dt_npy_open(temp_in(dir, "x*.npy"), .labels = temp_in(dir, "y?.npy"), .classes = 5);
    ASSERT_OK(s); /* these labels stay in their file */
    EXPECT_EQ(1, items(s, 4, &v, &label));
    EXPECT_ERROR(dt_dataset_get(s, 5, NULL, &label), "y2.npy, byte 66: label 5, expected 0 to 4");
    dt_dataset_free(s);
    l = npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", 1);
    temp_put(dir, "y1.npy", l.p, l.n);
    EXPECT_ERROR(dt_npy_open(temp_in(dir, "x*.npy"), .labels = temp_in(dir, "y?.npy")),
                 "x1.npy has 2 items, its labels");
    temp_remove(dir);
}

/* ==================================================================================================== >>records */
UTEST(records, where_x_and_y_lie)
{
    char   *dir = temp_dir();
    bytes   b = { { 0 }, 0 };
    double  v[3];
    int64_t label;
    put(&b, "HEAD", 4);
    for (int i = 0; i < 3; i++) { /* y u8, a gap, x three i32, a gap */
        uint8_t r[16] = { (uint8_t)i, 0xee, 1, 0, 0, (uint8_t)i, 2, 0, 0, (uint8_t)i, 3, 0, 0, (uint8_t)i, 0xee, 0xee };
        put(&b, r, 16);
    }
    const char *path = temp_put(dir, "r.bin", b.p, b.n);
    for (int big = 0; big < 2; big++) {
        dt_dataset *s =
            dt_records_open(path, .nbytes = 16, .skip = 4, .x_at = 2, .x_dtype = DT_I32, .x_shape = DT_SHAPE(3),
                            .has_y = true, .y_dtype = DT_U8, .classes = 3, .big_endian = big != 0);
        ASSERT_OK(s);
        ASSERT_EQ(3, (int)dt_dataset_len(s));
        for (int i = 0; i < 3; i++) {
            EXPECT_EQ(3, items(s, i, v, &label));
            EXPECT_EQ(i, (int)label);
            for (int k = 0; k < 3; k++) EXPECT_EQ(big ? (k + 1) * 16777216 + i : i * 16777216 + k + 1, (int)v[k]);
        }
        dt_dataset_free(s);
    }
    dt_dataset *s = dt_records_open(path, .x_dtype = DT_U8, .x_shape = DT_SHAPE(13)); /* to the end of x */
    ASSERT_OK(s);
    EXPECT_EQ(4, (int)dt_dataset_len(s));
    dt_dataset_free(s);
    s = dt_records_open(path, .nbytes = 16, .skip = 4, .x_dtype = DT_U8, .has_y = true, .y_dtype = DT_U8, .classes = 2);
    ASSERT_OK(s);
    EXPECT_ERROR(dt_dataset_get(s, 2, NULL, &label), "r.bin, byte 36: label 2, expected 0 to 1");
    dt_dataset_free(s);
    EXPECT_ERROR(dt_records_open(path, .x_dtype = DT_U8, .x_shape = DT_SHAPE(7)),
                 "52 bytes: expected a multiple of the 7 of a record; 3 are left over after 7 records");
    EXPECT_ERROR(dt_records_open(path, .x_dtype = DT_U8, .skip = 52), "no records after the 52 to skip");
    EXPECT_ERROR(dt_records_open(path, .nbytes = 11, .x_shape = DT_SHAPE(3)), ".nbytes is 11, but x and y need 12");
    EXPECT_ERROR(dt_records_open(path, .x_at = -1), "negative");
    EXPECT_ERROR(dt_records_open(path, .x_at = INT64_MAX), "too large");
    EXPECT_ERROR(dt_records_open(path, .has_y = true, .y_at = INT64_MAX), "too large");
    EXPECT_ERROR(dt_records_open(path, .skip = INT64_MIN), "negative");
    EXPECT_ERROR(dt_records_open(path, .x_shape = DT_SHAPE(INT64_MAX, 2)), "too large");
    EXPECT_ERROR(dt_records_open(path, .x_shape = DT_SHAPE(0)), "empty");
    EXPECT_ERROR(dt_records_open(path, .classes = 3), ".classes without .has_y");
    EXPECT_ERROR(dt_records_open(path, .has_y = true, .classes = 3), "not one integer");
    temp_remove(dir);
}

UTEST(records, cifar)
{
    char          *dir = temp_dir();
    static uint8_t r[2 * 3074];
    static uint8_t x[3072];
    int64_t        label;
    for (int k = 1; k <= 5; k++) { /* k records */
        static uint8_t all[5 * 3073];
        char           name[32];
        for (int i = 0; i < k; i++) memset(all + i * 3073, 10 * k + i, 3073), all[i * 3073] = (uint8_t)(k + i);
        snprintf(name, sizeof name, "data_batch_%d.bin", k);
        if (k == 3) EXPECT_ERROR(dt_cifar10_open(dir, DT_TRAIN), "data_batch_3.bin: No such file");
        temp_put(dir, name, all, (size_t)k * 3073);
    }
    dt_dataset *s = dt_cifar10_open(dir, DT_TRAIN);
    ASSERT_OK(s);
    EXPECT_EQ(15, (int)dt_dataset_len(s));
    EXPECT_EQ(5, (int)dt_dataset_shards(s));
    EXPECT_TRUE(same_shape(DT_SHAPE(3, 32, 32), dt_dataset_item_info(s).x_shape));
    EXPECT_OK(dt_dataset_get(s, 4, x, &label)); /* the second of the third file */
    EXPECT_EQ(31, x[0]);
    EXPECT_EQ(31, x[3071]);
    EXPECT_EQ(4, (int)label);
    dt_dataset_free(s);
    memset(r, 10, sizeof r);
    temp_put(dir, "test_batch.bin", r, 3073);
    s = dt_cifar10_open(dir, DT_TEST);
    ASSERT_OK(s);
    EXPECT_ERROR(dt_dataset_get(s, 0, x, &label), "test_batch.bin, byte 0: label 10, expected 0 to 9");
    EXPECT_OK(dt_dataset_get(s, 0, x, NULL));
    dt_dataset_free(s);
    temp_put(dir, "test_batch.bin", r, 3074);
    EXPECT_ERROR(dt_cifar10_open(dir, DT_TEST), "3074 bytes: expected a multiple of the 3073");
    r[3074] = 19, r[3075] = 99;
    temp_put(dir, "train.bin", r, 2 * 3074);
    for (int coarse = 0; coarse < 2; coarse++) {
        s = dt_cifar100_open(dir, DT_TRAIN, coarse);
        ASSERT_OK(s);
        EXPECT_EQ(2, (int)dt_dataset_len(s));
        EXPECT_EQ(coarse ? 20 : 100, (int)dt_dataset_item_info(s).classes);
        EXPECT_OK(dt_dataset_get(s, 1, x, &label));
        EXPECT_EQ(coarse ? 19 : 99, (int)label);
        EXPECT_EQ(10, x[0]);
        dt_dataset_free(s);
    }
    EXPECT_ERROR(dt_cifar100_open(dir, DT_TEST, false), "test.bin: No such file");
    temp_remove(dir);
}

/* ==================================================================================================== >>tokens */
UTEST(tokens, windows)
{
    char   *dir = temp_dir();
    uint8_t u[24] = { 'h', 'd' }, w[44];
    for (int i = 0; i < 11; i++) {
        u[2 + 2 * i] = (uint8_t)i;
        u[3 + 2 * i] = 1;
        memset(w + 4 * i, i, 4);
    }
    const char *path = temp_put(dir, "t2.bin", u, 24), *path4 = temp_put(dir, "t4.bin", w, 44);
    static const struct {
        int length, stride, items;
    } t[] = { { 3, 0, 3 }, { 5, 0, 2 }, { 10, 0, 1 }, { 3, 1, 8 }, { 4, 2, 4 }, { 2, 5, 2 } };
    for (size_t k = 0; k < sizeof t / sizeof *t; k++) {
        dt_dataset *s = dt_tokens_open(path, .length = t[k].length, .stride = t[k].stride, .skip = 2);
        int64_t     x[10], y[10];
        ASSERT_OK(s);
        EXPECT_EQ(t[k].items, (int)dt_dataset_len(s));
        EXPECT_TRUE(dt_dataset_item_info(s).has_y && dt_dataset_item_info(s).y_dtype == DT_I64);
        for (int i = 0; i < t[k].items; i++) {
            EXPECT_OK(dt_dataset_get(s, i, x, y));
            for (int j = 0; j < t[k].length; j++) {
                EXPECT_EQ(256 + i * (t[k].stride ? t[k].stride : t[k].length) + j, (int)x[j]);
                EXPECT_EQ(x[j] + 1, y[j]);
            }
        }
        dt_dataset_free(s);
    }
    int64_t     x[10], y[10];
    dt_dataset *s = dt_tokens_open(path4, .length = 2, .nbytes = 4);
    ASSERT_OK(s);
    EXPECT_OK(dt_dataset_get(s, 2, x, y));
    EXPECT_EQ(0x05050505, (int)y[0]);
    dt_dataset_free(s);
    s = dt_tokens_open(path4, .length = 10, .nbytes = 1);
    ASSERT_OK(s);
    EXPECT_EQ(4, (int)dt_dataset_len(s));
    dt_dataset_free(s);
    s = dt_tokens_open(temp_in(dir, "t?.bin"), .length = 4, .nbytes = 2); /* no window over both */
    ASSERT_OK(s);
    EXPECT_EQ(2 + 5, (int)dt_dataset_len(s));
    EXPECT_OK(dt_dataset_get(s, 2, x, y));
    EXPECT_EQ(0, (int)x[0]);
    dt_dataset_free(s);
    s = dt_tokens_open(path, .length = 3, .skip = 2, .vocab = 256 + 6);
    ASSERT_OK(s);
    EXPECT_OK(dt_dataset_get(s, 1, x, NULL));
    EXPECT_ERROR(dt_dataset_get(s, 1, x, y), "t2.bin, byte 14: token 262, expected 0 to 261"); /* the last y */
    EXPECT_ERROR(dt_dataset_get(s, 2, x, NULL), "t2.bin, byte 14: token 262, expected 0 to 261");
    dt_dataset_free(s);
    EXPECT_ERROR(dt_tokens_open(path, .length = 12), "t2.bin has 12 tokens, an item needs 13");
    EXPECT_ERROR(dt_tokens_open(path, .length = 2, .skip = 1),
                 "23 bytes after the 1 to skip, expected a multiple of the 2");
    EXPECT_ERROR(dt_tokens_open(path, .length = 2, .skip = 100), "has 0 tokens");
    EXPECT_ERROR(dt_tokens_open(path, .stride = 2), ".length is 0");
    EXPECT_ERROR(dt_tokens_open(path, .length = 2, .stride = -1), ".stride -1");
    EXPECT_ERROR(dt_tokens_open(path, .length = 2, .nbytes = 3), "is 3, expected 1, 2 or 4");
    EXPECT_ERROR(dt_tokens_open(path, .length = 2, .nbytes = 258), "is 258, expected 1, 2 or 4");
    EXPECT_ERROR(dt_tokens_open(path, .length = INT64_MAX), "length");
    EXPECT_ERROR(dt_tokens_open(path, .length = INT64_C(1) << 45), "too large");
    EXPECT_ERROR(dt_tokens_open(path, .length = 2, .vocab = -1), "negative");
    temp_remove(dir);
}

/* ==================================================================================================== >>folders */
UTEST(folders, colours_become_planes)
{
    char       *dir = temp_dir(), got[13] = { 0 };
    dt_dataset *s;
    temp_put(dir, "a/x.ppm", "P6 2 2 255 RGBrgbXYZxyz", 23);
    temp_put(dir, "b/x.ppm", "P6 2 2 255 111222333444", 23);
    s = dt_folder_open(dir);
    ASSERT_OK(s);
    EXPECT_TRUE(same_shape(DT_SHAPE(3, 2, 2), dt_dataset_item_info(s).x_shape));
    EXPECT_OK(dt_dataset_get(s, 0, got, NULL));
    EXPECT_STREQ("RrXxGgYyBbZz", got);
    EXPECT_OK(dt_dataset_get(s, 1, got, NULL));
    EXPECT_STREQ("123412341234", got);
    dt_dataset_free(s);
    temp_remove(dir);
}
UTEST(folders, classes_are_sorted_folders)
{
    char *dir = temp_dir();
    temp_put(dir, "set/dog/b.pgm", "P5 2 1 255 cd", 13);
    temp_put(dir, "set/dog/a.PGM", "P5\n# made by hand\n2 1\n255\nab", 28);
    temp_put(dir, "set/dog/deep/er/c.Pgm", "P5\r2\t1#x\n255#y\nef", 17);
    temp_put(dir, "set/dog/notes.txt", "x", 1);
    temp_put(dir, "set/dog/.hidden.pgm", "x", 1);
    temp_put(dir, "set/dog/.git/x.pgm", "x", 1);
    temp_put(dir, "set/Cat/z.ppm", "P5 2 1 255\ngh", 13);
    temp_put(dir, "set/readme.pgm", "not in a class", 14);
    temp_put(dir, "set/.hidden/x.pgm", "x", 1);
    temp_put(dir, "elsewhere/e.pgm", "P5 2 1 255 ij", 13);
    ASSERT_EQ(0, symlink("../elsewhere", temp_in(dir, "set/eel")));                /* a class may be a link */
    ASSERT_EQ(0, symlink("../../elsewhere/e.pgm", temp_in(dir, "set/dog/d.pgm"))); /* so may a file */
    ASSERT_EQ(0, symlink("../../elsewhere", temp_in(dir, "set/dog/more")));        /* a folder in a class: left alone */
    ASSERT_EQ(0, symlink("..", temp_in(dir, "set/dog/up")));
    dt_dataset *s = dt_folder_open(temp_in(dir, "set"));
    ASSERT_OK(s);
    ASSERT_EQ(6, (int)dt_dataset_len(s));
    EXPECT_EQ(3, (int)dt_dataset_item_info(s).classes);
    EXPECT_STREQ("Cat", dt_dataset_class(s, 0));
    EXPECT_STREQ("dog", dt_dataset_class(s, 1));
    EXPECT_STREQ("eel", dt_dataset_class(s, 2));
    EXPECT_TRUE(dt_dataset_class(s, 3) == NULL);
    EXPECT_TRUE(same_shape(DT_SHAPE(1, 1, 2), dt_dataset_item_info(s).x_shape));
    static const int label[] = { 0, 1, 1, 1, 1, 2 };
    char             got[13] = { 0 };
    for (int i = 0; i < 6; i++) {
        int64_t y = -1;
        EXPECT_OK(dt_dataset_get(s, i, got + 2 * i, &y));
        EXPECT_EQ(label[i], (int)y);
    }
    EXPECT_STREQ("ghabcdijefij", got); /* d.pgm is a link to e.pgm */
    dt_dataset_free(s);
    ASSERT_EQ(0, symlink("nowhere", temp_in(dir, "set/dog/gone.ppm")));
    EXPECT_ERROR(dt_folder_open(temp_in(dir, "set")), "dog/gone.ppm: it is a symbolic link to a file that does not exist");
    remove(temp_in(dir, "set/dog/gone.ppm"));
    ASSERT_EQ(0, mkfifo(temp_in(dir, "set/dog/pipe.ppm"), 0600));
    EXPECT_ERROR(dt_folder_open(temp_in(dir, "set")), "dog/pipe.ppm is a fifo, expected a regular file");
    remove(temp_in(dir, "set/dog/pipe.ppm"));
    temp_put(dir, "set/empty/x.txt", "x", 1);
    EXPECT_ERROR(dt_folder_open(temp_in(dir, "set")), "set/empty holds no .pgm and no .ppm file");
    temp_put(dir, "set/empty/x.pgm", "P6 2 1 255 abcdef", 17);
    EXPECT_ERROR(dt_folder_open(temp_in(dir, "set")), "set/Cat/z.ppm has shape (1, 1, 2),");
    EXPECT_ERROR(dt_folder_open(temp_in(dir, "set")), "set/empty/x.pgm has (3, 1, 2)");
    EXPECT_ERROR(dt_folder_open(temp_in(dir, "elsewhere")), "has no folders");
    EXPECT_ERROR(dt_folder_open(temp_in(dir, "none")), "No such file");
    EXPECT_ERROR(dt_folder_open(NULL), "NULL");
    char deep[200] = "deep/a";
    for (int i = 0; i < 33; i++) strcat(deep, "/b");
    strcat(deep, "/x.pgm");
    temp_put(dir, deep, "P5 2 1 255 ij", 13);
    EXPECT_ERROR(dt_folder_open(temp_in(dir, "deep")), "more than 32 folders deep");
    temp_remove(dir);
}

UTEST(folders, headers)
{
    char *dir = temp_dir();
    static const struct {
        const char *text, *why; /* NULL: it opens */
    } t[] = {
        { "P5 2 1 255 ab", NULL },
        { "P5\v2\f1\r255\tab", NULL },
        { "P5#a\n2#b\n#c\n 1 #d\n255#e\nab", NULL },
        { "P5 002 1 255 ab", NULL },
        { "P5 2 1 255 a", "truncated: it has 12 bytes, its header (2 x 1, P5) expects 13" },
        { "P5 2 1 255 abc", "too long: it has 14 bytes, its header (2 x 1, P5) expects 13; a file must hold one image only" },
        { "P6 2 1 255 ab", "expects 17" },
        { "P5 2 1 255", "no end of its header" },
        { "P52 1 255 ab", "byte 2: expected white space" },
        { "P5 2x1 255 ab", "byte 2: expected the width, 1 to 65535, and white space" },
        { "P5 0 1 255 ab", "expected the width" },
        { "P5 2 65536 255 ab", "byte 5: expected the height, 1 to 65535" },
        { "P5 -2 1 255 ab", "expected the width" },
        { "P5 99999999999999999999 1 255 ab", "expected the width" },
        { "P5 65535 65535 255 ab", "its header (65535 x 65535, P5) expects 4294836244" },
        { "P5 2 1 0 ab", "expected the maxval" },
        { "P5 2 1 127 ab", "maxval is 127, expected 255; convert it" },
        { "P5 2 1 65535 ab", "maxval is 65535, expected 255, one byte a sample" },
        { "P1 2 1 ab", "is P1 (a bitmap), expected P5 or P6" },
        { "P2 2 1 255 1 2", "is P2 (as text)" },
        { "P3 2 1 255 1 2", "is P3 (as text)" },
        { "P4 2 1 ab", "is P4 (a bitmap)" },
        { "P7\nWIDTH 2\n", "is P7 (PAM)" },
        { "P8 2 1 255 ab", "begins with 50 38, expected P5 or P6" },
        { "\x89PNG", "begins with 89 50" },
        { "P", "begins with 50 00" },
        { "P5", "byte 2" },
    };
    for (size_t k = 0; k < sizeof t / sizeof *t; k++) {
        temp_put(dir, "a/x.pgm", t[k].text, strlen(t[k].text));
        dt_dataset *s = dt_folder_open(dir);
        char        x[2] = { 0, 0 };
        const char *e = dt_error();
        int ok = t[k].why ? !s && e && strstr(e, t[k].why) && strstr(e, "a/x.pgm") : s && dt_dataset_len(s) == 1;
        if (!t[k].why) ok = ok && !dt_dataset_get(s, 0, x, NULL) && !memcmp(x, "ab", 2);
        EXPECT_TRUE_MSG(ok, e ? e : t[k].text);
        dt_dataset_free(s);
        dt_error_clear();
    }
    static const char whole[] = "P6 #c\n2 2\n255\nabcdefghijkl";
    for (size_t n = 0; n < sizeof whole; n++) { /* every prefix; the last has a 0 more */
        temp_put(dir, "a/x.pgm", whole, n);
        if (n != sizeof whole - 1) EXPECT_ERROR(dt_folder_open(dir), "a/x.pgm");
    }
    for (size_t k = 0; k < 14 * 8; k++) { /* every bit of the header */
        char c[sizeof whole];
        memcpy(c, whole, sizeof whole);
        c[k / 8] = (char)(c[k / 8] ^ 1 << k % 8);
        temp_put(dir, "a/x.pgm", c, sizeof whole - 1);
        dt_dataset *s = dt_folder_open(dir);
        char        x[64];
        dt_shape    shape = dt_dataset_item_info(s).x_shape;
        if (s) EXPECT_TRUE(shape.dim[0] * shape.dim[1] * shape.dim[2] <= 12 && !dt_dataset_get(s, 0, x, NULL));
        else EXPECT_TRUE(dt_error_code() == DT_ERR_FILE && strstr(dt_error(), "a/x.pgm"));
        dt_dataset_free(s);
        dt_error_clear();
    }
    temp_remove(dir);
}

/* ==================================================================================================== >>kinds */
UTEST(kinds, only_regular_files_and_never_a_wait)
{
    char *dir = temp_dir();
    int   before = temp_fds();
    mkdir(temp_in(dir, "folder"), 0700);
    ASSERT_EQ(0, mkfifo(temp_in(dir, "pipe"), 0600));
    ASSERT_EQ(0, symlink("nowhere", temp_in(dir, "dangling")));
    ASSERT_EQ(0, symlink("loop", temp_in(dir, "loop")));
    temp_put(dir, "empty", "", 0);
    static const struct {
        const char *name, *why;
    } t[] = { { "folder", "folder is a directory, expected a regular file" },
              { "pipe", "pipe is a fifo, expected a regular file" },
              { "dangling", "dangling: it is a symbolic link to a file that does not exist" },
              { "dangl*", "dangling: it is a symbolic link to a file that does not exist" },
              { "loop", "Too many levels" },
              { "empty", "empty is empty: it has 0 bytes" },
              { "empty/x", "Not a directory" },
              { "../../dev/zero", "zero is a device, expected a regular file" } };
    for (size_t k = 0; k < sizeof t / sizeof *t; k++) {
        const char *path = k == 7 ? "/dev/zero" : temp_in(dir, t[k].name);
        EXPECT_ERROR(dt_idx_open(path), t[k].why);
        EXPECT_ERROR(dt_npy_open(path), t[k].why);
        EXPECT_ERROR(dt_records_open(path), t[k].why);
        EXPECT_ERROR(dt_tokens_open(path, .length = 1), t[k].why);
    }
    EXPECT_EQ(before, temp_fds());
    temp_remove(dir);
}

UTEST(kinds, unreadable)
{
    if (!geteuid()) UTEST_SKIP("root may read every file");
    char *dir = temp_dir();
    temp_put(dir, "secret", "x", 1);
    chmod(temp_in(dir, "secret"), 0);
    EXPECT_ERROR(dt_records_open(temp_in(dir, "secret")), "secret: Permission denied");
    temp_remove(dir);
}

UTEST(kinds, a_file_that_shrinks_is_an_error_not_a_signal)
{
    char *dir = temp_dir();
    char  data[100000], x[1000];
    memset(data, 7, sizeof data);
    const char *path = temp_put(dir, "r", data, sizeof data);
    dt_dataset *s = dt_records_open(path, .x_dtype = DT_U8, .x_shape = DT_SHAPE(1000));
    ASSERT_OK(s);
    EXPECT_OK(dt_dataset_get(s, 99, x, NULL));
    ASSERT_EQ(0, truncate(path, 5500));
    EXPECT_OK(dt_dataset_get(s, 4, x, NULL));
    EXPECT_ERROR(dt_dataset_get(s, 5, x, NULL),
                 "/r ends at byte 5500, 1000 bytes at 5000 are expected: it had 100000 bytes");
    EXPECT_ERROR(dt_dataset_get(s, 99, x, NULL), "/r ends at byte 5500, 1000 bytes at 99000");
    ASSERT_EQ(0, truncate(path, 100000));
    EXPECT_OK(dt_dataset_get(s, 99, x, NULL));
    remove(path); /* it is open */
    EXPECT_OK(dt_dataset_get(s, 50, x, NULL));
    dt_dataset_free(s);
    temp_remove(dir);
}

UTEST(kinds, many_files_are_opened_for_each_read)
{
    char *dir = temp_dir();
    int   before = temp_fds();
    for (int i = 0; i < 300; i++) {
        uint8_t one[9] = { 0, 0, 8, 1, 0, 0, 0, 1, (uint8_t)i };
        char    name[32];
        snprintf(name, sizeof name, "part-%03d", i);
        temp_put(dir, name, one, sizeof one);
    }
    const char *all = temp_in(dir, "part-*"), *some = temp_in(dir, "part-0*");
    dt_dataset *s = NULL;
    uint8_t     x;
    for (int k = 0; k < 2; k++) {
        s = k ? dt_idx_open(some) : dt_records_open(some, .x_dtype = DT_U8, .skip = 8);
        EXPECT_EQ(before + 100, temp_fds());
        dt_dataset_free(s);
        s = k ? dt_records_open(all, .x_dtype = DT_U8, .skip = 8) : dt_idx_open(all);
        ASSERT_OK(s);
        EXPECT_EQ(300, (int)dt_dataset_shards(s));
        EXPECT_EQ(before, temp_fds());
        for (int i = 0; i < 300; i++) {
            EXPECT_OK(dt_dataset_get(s, i, &x, NULL));
            EXPECT_EQ((uint8_t)i, x);
        }
        EXPECT_EQ(before, temp_fds());
        if (!k) dt_dataset_free(s);
    }
    ASSERT_EQ(0, truncate(temp_in(dir, "part-007"), 3));
    EXPECT_ERROR(dt_dataset_get(s, 7, &x, NULL), "part-007 ends at byte 3, 1 bytes at 8");
    remove(temp_in(dir, "part-008"));
    EXPECT_ERROR(dt_dataset_get(s, 8, &x, NULL), "part-008: No such file");
    ASSERT_EQ(0, mkfifo(temp_in(dir, "part-008"), 0600));
    EXPECT_ERROR(dt_dataset_get(s, 8, &x, NULL), "part-008"); /* and does not wait */
    EXPECT_EQ(before, temp_fds());
    dt_dataset_free(s);
    temp_remove(dir);
}

/* ==================================================================================================== >>memory */
static void make_all(const char *dir)
{
    int   dim[3] = { 2, 2, 2 }, two = 2;
    bytes x = idx(8, 3, dim, "abcdefgh", 8), y = idx(8, 1, &two, "\1\2", 2);
    bytes n = npy(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1), }", 16);
    temp_put(dir, "x1.idx", x.p, x.n);
    temp_put(dir, "x2.idx", x.p, x.n);
    temp_put(dir, "y1.idx", y.p, y.n);
    temp_put(dir, "y2.idx", y.p, y.n);
    temp_put(dir, "x.npy", n.p, n.n);
    temp_put(dir, "train-images-idx3-ubyte", x.p, x.n);
    temp_put(dir, "train-labels-idx1-ubyte", y.p, y.n);
    temp_put(dir, "set/a/x.pgm", "P5 2 1 255 ab", 13);
    temp_put(dir, "set/b/y.pgm", "P5 2 1 255 ab", 13);
}
static int open_all(const char *dir) /* how many could be opened and read */
{
    int         opened = 0, turn;
    dt_dataset *s = NULL;
    for (turn = 0; turn < 6 && !dt_error(); turn++) {
        char    x[64], y[64];
        int64_t i;
        if (turn == 0) s = dt_idx_open(temp_in(dir, "x?.idx"), .labels = temp_in(dir, "y?.idx"), .classes = 3);
        if (turn == 1) s = dt_npy_open(temp_in(dir, "x.npy"), .labels = temp_in(dir, "x.npy"));
        if (turn == 2) s = dt_mnist_open(dir, DT_TRAIN);
        if (turn == 3) s = dt_records_open(temp_in(dir, "x?.idx"), .x_dtype = DT_U8);
        if (turn == 4) s = dt_tokens_open(temp_in(dir, "x?.idx"), .length = 2);
        if (turn == 5) s = dt_folder_open(temp_in(dir, "set"));
        i = dt_dataset_len(s) - 1;
        opened += s && dt_dataset_get(s, i, x, dt_dataset_item_info(s).has_y ? y : NULL) == DT_OK;
        dt_dataset_free(s);
    }
    return opened;
}
UTEST(memory, every_failing_allocation_is_an_error_and_leaks_nothing)
{
    char        *dir = temp_dir();
    dt_test_budget c;
    int          before = temp_fds();
    int64_t      total;
    make_all(dir);
    ASSERT_EQ(0, dt_test_budget_set(&c, -1));
    EXPECT_EQ(6, open_all(dir));
    total = c.calls;
    EXPECT_EQ(0, temp_budget_end(&c));
    for (int64_t n = 0; n < total; n++) {
        char text[1100];
        ASSERT_EQ(0, dt_test_budget_set(&c, n));
        int opened = open_all(dir);
        snprintf(text, sizeof text, "allocation %lld: %s", (long long)n, dt_error() ? dt_error() : "no error");
        EXPECT_TRUE_MSG(opened < 6 && dt_error() && dt_error_code() == DT_ERR_MEMORY && strstr(dt_error(), "memory"),
                        text);
        dt_error_clear();
        EXPECT_EQ_MSG(0, temp_budget_end(&c), text);
        EXPECT_EQ_MSG(before, temp_fds(), text);
        if (*utest_result) break;
    }
    printf("%lld allocations failed in turn\n", (long long)total);
    temp_remove(dir);
}

UTEST(memory, a_header_is_not_believed)
{
    char        *dir = temp_dir();
    dt_test_budget c;
    bytes        b = npy(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296,)}      ", 0);
    int          huge[2] = { 0x7fffffff, 16 };
    EXPECT_EQ(80u, (unsigned)b.n);
    temp_put(dir, "x.npy", b.p, b.n);
    ASSERT_EQ(0, dt_test_budget_set(&c, -1));
    EXPECT_ERROR(dt_npy_open(temp_in(dir, "x.npy")),
                 "truncated: it has 80 bytes, its header (shape (4294967296) of f64) expects 34359738448");
    EXPECT_LT((unsigned)c.peak, 4096u);
    b = idx(8, 2, huge, "a", 1);
    temp_put(dir, "x.idx", b.p, b.n);
    EXPECT_ERROR(dt_idx_open(temp_in(dir, "x.idx")), "expects 34359738364");
    EXPECT_LT((unsigned)c.peak, 4096u);
    static uint8_t labels[3000008] = { 0, 0, 8, 1, 0, 0x2d, 0xc6, 0xc0 }; /* three million */
    temp_put(dir, "y.idx", labels, sizeof labels);
    c.peak = c.live;
    dt_dataset *s = dt_idx_open(temp_in(dir, "y.idx"), .labels = temp_in(dir, "y.idx"), .classes = 3);
    EXPECT_OK(s);
    EXPECT_LT((unsigned)c.peak, (unsigned)sizeof labels + (1u << 20));
    dt_dataset_free(s);
    EXPECT_EQ(0, temp_budget_end(&c));
    temp_remove(dir);
}
