/* test_archive.c: safetensors files. What is written comes back; what other programs write opens; what is damaged or
   made to harm is refused with its reason; a write that fails leaves the old file.
   Contents: >>sum >>adopt >>round >>foreign >>refused >>damage >>fuzz >>writing >>paths >>memory
   run: asan-only */
#define DT_IO_IMPLEMENTATION /* to see private functions */
#include "dt_io.h"
#include "dt_nn.h"

#include "dt_test.h"
#include "fake_device.h"
#include "fault_files.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LLVMFuzzerTestOneInput fuzz_archive_input
#include "fuzz/fuzz_archive.c"
#undef LLVMFuzzerTestOneInput

#include <sched.h>
#include <sys/mount.h>

UTEST_MAIN()

/* An archive in memory, as the reader sees a mapped file; code and why tell. */
static dt_archive *parse(const void *p, size_t n)
{
    dt_archive *a = (dt_archive *)dt__alloc_zero(sizeof *a);
    if (!a) abort();
    dt__archive_parse(a, (const uint8_t *)p, n);
    return a;
}
/* N, the header and so many bytes of data 0, 1, 2 ...; freed by the caller */
static uint8_t *file_of(const char *header, size_t len, size_t data, size_t *nbytes)
{
    uint8_t *p = (uint8_t *)malloc(8 + len + data);
    uint64_t n = len;
    memcpy(p, &n, 8);
    memcpy(p + 8, header, len);
    for (size_t i = 0; i < data; i++) p[8 + len + i] = (uint8_t)i;
    *nbytes = 8 + len + data;
    return p;
}
static const char *golden(const char *name)
{
    static char path[1024];
    const char *slash = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*s/../golden/%s.safetensors", slash ? (int)(slash - __FILE__) : 1,
             slash ? __FILE__ : ".", name);
    return path;
}
static uint64_t fuzz_state;
static uint32_t draw(uint32_t below) /* xorshift64* */
{
    fuzz_state ^= fuzz_state >> 12;
    fuzz_state ^= fuzz_state << 25;
    fuzz_state ^= fuzz_state >> 27;
    return (uint32_t)((fuzz_state * 0x2545F4914F6CDD1Du) >> 33) % (below ? below : 1);
}

/* ==================================================================================================== >>sum */
UTEST(sum, known_answers)
{
    uint8_t zeros[32] = { 0 }, ones[32], up[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) up[i] = (uint8_t)i;
    EXPECT_EQ(0xe3069283u, dt__crc32c(0, "123456789", 9));
    EXPECT_EQ(0u, dt__crc32c(0, "", 0));
    EXPECT_EQ(0x8a9136aau, dt__crc32c(0, zeros, 32)); /* RFC 3720 */
    EXPECT_EQ(0x62a8ab43u, dt__crc32c(0, ones, 32));
    EXPECT_EQ(0x46dd794eu, dt__crc32c(0, up, 32));
}

UTEST(sum, instruction_and_tables_agree_at_every_length_alignment_and_cut)
{
    uint8_t buf[300];
    fuzz_state = 1;
    for (size_t i = 0; i < sizeof buf; i++) buf[i] = (uint8_t)draw(256);
    dt__crc32c(0, buf, 1); /* makes the tables */
    for (size_t from = 0; from < 8; from++)
        for (size_t n = 0; n + from <= sizeof buf; n++) {
            uint32_t c = 0xffffffffu;
            for (size_t i = 0; i < n; i++) { /* bit by bit */
                c ^= buf[from + i];
                for (int k = 0; k < 8; k++) c = (c >> 1) ^ (c & 1 ? 0x82f63b78u : 0);
            }
            ASSERT_EQ(~c, dt__crc32c(0, buf + from, n));
            ASSERT_EQ(~c, ~dt__crc_soft(0xffffffffu, buf + from, n));
            ASSERT_EQ(~c, dt__crc32c(dt__crc32c(0, buf + from, n / 3), buf + from + n / 3, n - n / 3));
        }
}

/* ==================================================================================================== >>adopt */
static void count_release(void *user) { ++*(int *)user; }

UTEST(adopt, memory_is_shared_and_released_with_the_last_view)
{
    float           data[6] = { 0, 1, 2, 3, 4, 5 };
    int             released = 0;
    dt_memory_stats before = dt_stats();
    dt_tensor      *t = dt_from_blob(data, DT_SHAPE(2, 3), .release = count_release, .user = &released);
    ASSERT_SHAPE(t, DT_SHAPE(2, 3));
    EXPECT_EQ(before.live_bytes, dt_stats().live_bytes);
    dt_tensor *row = dt_keep(dt_select(t, 0, 1));
    dt_fill(row, 9);
    EXPECT_EQ(9.0f, data[3]); /* the caller's memory itself */
    dt_free(t);
    dt_end();
    EXPECT_EQ(0, released);
    EXPECT_EQ(9.0, dt_item(dt_sum(dt_mul_scalar(dt_narrow(row, 0, 0, 1), 1.0))));
    dt_end();
    dt_free(row);
    EXPECT_EQ(1, released);
    dt_empty_cache();
    EXPECT_EQ(1, released);
}

UTEST(adopt, every_dtype_empty_and_unaligned)
{
    int64_t  words[4] = { 1, -2, 3, -4 };
    int      released = 0;
    int64_t  odd[8];
    uint8_t *bytes = (uint8_t *)odd + 1;
    EXPECT_OK(dt_from_blob(words, DT_SHAPE(4), .dtype = DT_I64));
    EXPECT_INTS(dt_from_blob(words, DT_SHAPE(2, 2), .dtype = DT_I64), words, 4);
    dt_tensor *none = dt_from_blob(NULL, DT_SHAPE(0, 3), .release = count_release, .user = &released);
    EXPECT_SHAPE(none, DT_SHAPE(0, 3));
    dt_end();
    EXPECT_EQ(1, released);
    memcpy(bytes, words, sizeof words); /* not aligned: a copy, the memory is given back at once */
    dt_tensor *copy = dt_from_blob(bytes, DT_SHAPE(4), .dtype = DT_I64, .release = count_release, .user = &released);
    EXPECT_EQ(2, released);
    memset(odd, 0, sizeof odd);
    EXPECT_INTS(copy, words, 4);
    dt_end();
    EXPECT_EQ(2, released);
}

UTEST(adopt, a_failure_leaves_the_memory_with_the_caller)
{
    float    x = 1;
    int      released = 0;
    dt_shape wild = DT_SHAPE(INT64_MAX, 8);
    EXPECT_ERROR(dt_from_blob(NULL, DT_SHAPE(3), .release = count_release, .user = &released), "dt_from_blob: data is NULL");
    EXPECT_ERROR(dt_from_blob(&x, wild, .release = count_release, .user = &released), "too large");
    EXPECT_ERROR(dt_from_blob(&x, DT_SHAPE(1), .dtype = (dt_dtype)99, .release = count_release, .user = &released),
                 "dtype");
    EXPECT_EQ(0, released);
}

typedef struct lent {
    fake_device *f;
    void        *p;
    int          given_back;
} lent;
static void give_back(void *user)
{
    lent *l = (lent *)user;
    memset(fake_real(l->f, l->p), 0xff, 64); /* its owner has other uses for it */
    l->f->table.free(l->f->dev, l->p, 64);
    l->given_back++;
}
UTEST(adopt, memory_of_a_device_waits_for_its_kernels)
{
    fake_device *f = fake_device_new(0);
    ASSERT_TRUE(f != NULL);
    float      x[4] = { 1, 2, 3, 4 }, twice[4] = { 2, 4, 6, 8 };
    lent       l = { f, f->table.alloc(f->dev, 64), 0 };
    dt_tensor *t = dt_from_blob(l.p, DT_SHAPE(4), .device = f->dev, .release = give_back, .user = &l);
    ASSERT_OK(t);
    EXPECT_OK(dt_copy_in(t, x, sizeof x));
    EXPECT_ERROR(dt_from_blob((char *)l.p + 1, DT_SHAPE(1), .device = f->dev), "not aligned");
    EXPECT_EQ(DT_ERR_STATE, (int)dt_device_free(f->dev)); /* it lives there */
    dt_error_clear();
    dt_tensor *y = dt_mul_scalar(t, 2); /* queued: reads the memory later */
    dt_free(t);
    EXPECT_EQ(1, l.given_back);
    EXPECT_CLOSE(y, twice, 4, 0, 0);
    dt_end();
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
}

/* ==================================================================================================== >>round */
static const char odd_name[] = "gr\303\274\303\237e \"q\" \\ / \n\t\001 \360\237\230\200";

UTEST(round, every_dtype_shape_and_name_comes_back)
{
    char                 *dir = temp_dir();
    const char           *path = temp_in(dir, "a.safetensors");
    static const dt_dtype all[] = { DT_U8, DT_F16, DT_I64, DT_F32, DT_BF16, DT_I32 };
    dt_archive           *w = dt_archive_new();
    dt_tensor            *t[8];
    for (int i = 0; i < 6; i++) {
        t[i] = dt_cast(dt_arange(1, 8 + i, 1), all[i]); /* odd counts: alignment is up to the order */
        EXPECT_OK(dt_archive_add(w, dt_dtype_name(all[i]), t[i]));
    }
    t[6] = dt_full(0.1, DT_SCALAR);
    t[7] = dt_zeros(DT_SHAPE(2, 0, 3));
    EXPECT_OK(dt_archive_add(w, odd_name, t[6]));
    EXPECT_OK(dt_archive_add(w, "", t[7]));
    EXPECT_OK(dt_archive_set_string(w, "k", "first"));
    EXPECT_OK(dt_archive_set_string(w, "note", odd_name));
    EXPECT_OK(dt_archive_set_string(w, "k", "last"));
    EXPECT_STREQ("last", dt_archive_get_string(w, "k"));
    EXPECT_EQ(8, (int)dt_archive_count(w));
    ASSERT_OK(dt_archive_write(w, path));
    dt_archive *a = dt_archive_open(path);
    ASSERT_OK(a);
    EXPECT_EQ(8, (int)dt_archive_count(a));
    for (int i = 0; i < 6; i++) EXPECT_SAME_BITS(dt_archive_get(a, dt_dtype_name(all[i])), t[i]);
    EXPECT_SAME_BITS(dt_archive_get(a, odd_name), t[6]);
    EXPECT_SAME_BITS(dt_archive_get(a, ""), t[7]);
    EXPECT_STREQ("last", dt_archive_get_string(a, "k"));
    EXPECT_STREQ(odd_name, dt_archive_get_string(a, "note"));
    EXPECT_STREQ("pt", dt_archive_get_string(a, "format"));
    EXPECT_STREQ("1", dt_archive_get_string(a, "dt.version"));
    EXPECT_TRUE(dt_archive_get_string(a, "absent") == NULL);
    EXPECT_EQ(-1, (int)dt_archive_find(a, "absent"));
    EXPECT_TRUE(dt_archive_name(a, 8) == NULL && dt_archive_name(a, -1) == NULL);
    for (int64_t i = 0; i < dt_archive_count(a); i++) {
        dt_archive_entry e;
        ASSERT_TRUE(dt_archive_info(a, i, &e));
        EXPECT_EQ(i, dt_archive_find(a, e.name));
        EXPECT_TRUE(e.known);
        uintptr_t at = (uintptr_t)a->base + a->data + a->item[i].begin;
        EXPECT_TRUE(at % dt_dtype_nbytes(e.dtype) == 0);
    }
    EXPECT_TRUE(a->data % 64 == 0);
    dt_archive_free(a);
    dt_archive_free(w);
    dt_end();
    temp_remove(dir);
}

UTEST(round, a_tensor_is_the_file_s_memory_and_outlives_the_archive)
{
    char       *dir = temp_dir();
    const char *path = temp_in(dir, "a.safetensors");
    size_t      n1, n2;
    dt_archive *w = dt_archive_new();
    EXPECT_OK(dt_archive_add(w, "x", dt_full(2, DT_SHAPE(1000))));
    ASSERT_OK(dt_archive_write(w, path));
    dt_archive_free(w);
    dt_end();
    char           *bytes = files_read(path, &n1);
    dt_memory_stats before = dt_stats();
    dt_archive     *a = dt_archive_open(path);
    dt_tensor      *x = dt_keep(dt_archive_get(a, "x"));
    ASSERT_OK(x);
    EXPECT_EQ(before.live_bytes, dt_stats().live_bytes); /* no copy */
    dt_archive_free(a);
    EXPECT_EQ(2000.0, dt_item(dt_sum(x)));
    dt_fill(x, 3); /* ours alone: the file stays */
    EXPECT_EQ(3000.0, dt_item(dt_sum(x)));
    char *now = files_read(path, &n2);
    EXPECT_TRUE(n1 == n2 && !memcmp(bytes, now, n1));
    dt_free(x);
    dt_end();
    free(bytes);
    free(now);
    temp_remove(dir);
}

UTEST(round, views_devices_and_layouts_are_written_row_major)
{
    char        *dir = temp_dir();
    const char  *path = temp_in(dir, "a.safetensors");
    fake_device *f = fake_device_new(0);
    dt_archive  *w = dt_archive_new();
    dt_tensor   *x = dt_reshape(dt_arange(0, 12, 1), DT_SHAPE(3, 4)), *xt = dt_transpose(x, 0, 1);
    dt_tensor   *on = dt_to(x, f->dev),
              *image = dt_op_conv2d(dt_ones(DT_SHAPE(1, 2, 4, 4)), dt_ones(DT_SHAPE(3, 2, 3, 3)), NULL);
    EXPECT_OK(dt_archive_add(w, "t", xt));
    EXPECT_OK(dt_archive_add(w, "device", dt_transpose(on, 0, 1)));
    EXPECT_OK(dt_archive_add(w, "image", image));
    EXPECT_OK(dt_archive_add(w, "narrow", dt_narrow(x, 0, 1, 2)));
    dt_end(); /* the archive holds what it was given */
    ASSERT_OK(dt_archive_write(w, path));
    dt_archive_free(w);
    dt_archive *a = dt_archive_open(path);
    x = dt_reshape(dt_arange(0, 12, 1), DT_SHAPE(3, 4));
    EXPECT_SAME_BITS(dt_archive_get(a, "t"), dt_contiguous(dt_transpose(x, 0, 1)));
    EXPECT_SAME_BITS(dt_archive_get(a, "device"), dt_contiguous(dt_transpose(x, 0, 1)));
    EXPECT_SAME_BITS(dt_archive_get(a, "image"), dt_full(18, DT_SHAPE(1, 3, 2, 2)));
    EXPECT_SAME_BITS(dt_archive_get(a, "narrow"), dt_contiguous(dt_narrow(x, 0, 1, 2)));
    dt_tensor *into = dt_zeros(DT_SHAPE(4, 3), .device = f->dev, .dtype = DT_F16);
    EXPECT_OK(dt_archive_read(a, "t", into));
    EXPECT_SAME_BITS(dt_to(into, dt_cpu()), dt_cast(dt_contiguous(dt_transpose(x, 0, 1)), DT_F16));
    EXPECT_ERROR(dt_archive_read(a, "t", dt_zeros(DT_SHAPE(3, 4))), "has shape (4, 3), the tensor has (3, 4)");
    EXPECT_ERROR(dt_archive_read(a, "t", dt_zeros(DT_SHAPE(1, 4, 3))), "has shape (4, 3), the tensor has (1, 4, 3)");
    EXPECT_ERROR(dt_archive_read(a, "u", into), "no tensor 'u'");
    dt_archive_free(a);
    dt_end();
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
    temp_remove(dir);
}

UTEST(round, mode_follows_the_umask_and_nothing_is_left_beside)
{
    char       *dir = temp_dir();
    dt_archive *w = dt_archive_new();
    struct stat st;
    mode_t      old = umask(027);
    EXPECT_OK(dt_archive_write(w, temp_in(dir, "a"))); /* without tensors is a file too */
    umask(old);
    ASSERT_EQ(0, stat(temp_in(dir, "a"), &st));
    EXPECT_EQ(0640, (int)(st.st_mode & 07777));
    EXPECT_EQ(1, files_count(dir));
    dt_archive *a = dt_archive_open(temp_in(dir, "a"));
    EXPECT_OK(a);
    EXPECT_EQ(0, (int)dt_archive_count(a));
    dt_archive_free(a);
    dt_archive_free(w);
    temp_remove(dir);
}

UTEST(round, bytes_and_keys_need_no_tensor)
{
    char             *dir = temp_dir();
    const char       *path = temp_in(dir, "bytes.safetensors");
    const int64_t     wide[3] = { 1, -2, INT64_C(1) << 40 };
    uint8_t           narrow[5] = { 5, 4, 3, 2, 1 };
    dt_archive       *w = dt_archive_new();
    dt_archive_entry  e;
    int64_t           at, got[3];
    EXPECT_OK(dt_archive_add_data(w, "narrow", DT_U8, DT_SHAPE(5), narrow));
    EXPECT_OK(dt_archive_add_data(w, "wide", DT_I64, DT_SHAPE(3, 1), wide));
    EXPECT_OK(dt_archive_add_data(w, "none", DT_F32, DT_SHAPE(0, 7), NULL));
    EXPECT_OK(dt_archive_set_string(w, "one", "1"));
    EXPECT_TRUE(dt_archive_info(w, 1, &e) && e.nbytes == sizeof wide && e.shape.dim[0] == 3);
    EXPECT_TRUE(dt_archive_data(w, 1) == NULL); /* it is being written */
    memset(narrow, 0, sizeof narrow);           /* copied when it was added */
    EXPECT_OK(dt_archive_write(w, path));
    dt_archive_free(w);

    dt_archive *r = dt_archive_open(path);
    ASSERT_TRUE(r != NULL);
    at = dt_archive_find(r, "wide");
    ASSERT_TRUE(dt_archive_data(r, at) != NULL);
    memcpy(got, dt_archive_data(r, at), sizeof got);
    EXPECT_TRUE(!memcmp(got, wide, sizeof wide));
    at = dt_archive_find(r, "narrow");
    EXPECT_TRUE(!memcmp(dt_archive_data(r, at), "\5\4\3\2\1", 5));
    EXPECT_TRUE(dt_archive_info(r, dt_archive_find(r, "none"), &e) && e.nbytes == 0);
    EXPECT_TRUE(!dt_archive_data(r, -1) && !dt_archive_data(r, 3) && !dt_archive_data(NULL, 0));
    int found = 0, keys = 0;
    for (const char *k; (k = dt_archive_key(r, keys)); keys++) {
        EXPECT_TRUE(dt_archive_get_string(r, k) != NULL);
        found += !strcmp(k, "one");
    }
    EXPECT_EQ(found, 1);
    EXPECT_EQ(keys, 4); /* and format, dt.version, dt.crc32c */
    EXPECT_TRUE(!dt_archive_key(r, -1) && !dt_archive_key(NULL, 0));
    dt_archive_free(r);
    temp_remove(dir);
}
UTEST(round, a_tensor_that_was_cast_since_it_was_added_is_an_error)
{
    char         *dir = temp_dir();
    const char   *path = temp_in(dir, "cast.safetensors");
    const dt_dtype to[2] = { DT_F16, DT_BF16 };
    dt_model_opts mo = DT__NO_OPTIONS;
    for (int i = 0; i < 2; i++) { /* to half the bytes; from f16 to bf16, which are as many */
        mo.dtype = i ? DT_F16 : DT_F32;
        dt_model   *m = dt_model_new_with(mo);
        dt_tensor  *p = dt_parameter(m, "w", DT_SHAPE(2, 3), .init = DT_INIT_CONST, .a = 1);
        dt_archive *w = dt_archive_new();
        EXPECT_OK(dt_archive_add(w, "w", p));
        EXPECT_OK(dt_model_cast(m, to[i]));
        EXPECT_ERROR(dt_archive_write(w, path), i ? "is bf16 (2, 3) now" : "'w' was f32 (2, 3) when it was added");
        EXPECT_EQ(access(path, F_OK), -1);
        dt_archive_free(w);
        dt_model_free(m);
        dt_end();
    }
    temp_remove(dir);
}
UTEST(round, mistakes_are_errors)
{
    dt_archive *w = dt_archive_new();
    dt_tensor  *x = dt_ones(DT_SHAPE(2));
    EXPECT_ERROR(dt_archive_add(w, NULL, x), "the name is NULL");
    EXPECT_ERROR(dt_archive_add(NULL, "x", x), "the archive is NULL");
    EXPECT_ERROR(dt_archive_add(w, "x", NULL), "the tensor is NULL");
    EXPECT_ERROR(dt_archive_add(w, "\xff", x), "not UTF-8");
    EXPECT_ERROR(dt_archive_add(w, "__metadata__", x), "__metadata__");
    EXPECT_ERROR(dt_archive_add_data(w, "d", DT_F32, DT_SHAPE(2), NULL), "data is NULL");
    EXPECT_ERROR(dt_archive_add_data(w, "d", (dt_dtype)77, DT_SHAPE(2), &w), "not a dtype");
    EXPECT_ERROR(dt_archive_set_string(w, "dt.crc32c", "0"), "by dt itself");
    EXPECT_ERROR(dt_archive_set_string(w, "k", NULL), "the value is NULL");
    EXPECT_ERROR(dt_archive_get(w, "x"), "being written");
    EXPECT_ERROR(dt_archive_open(NULL), "path is NULL");
    EXPECT_ERROR(dt_archive_write(w, NULL), "path is NULL");
    EXPECT_OK(dt_archive_add(w, "x", x));
    EXPECT_OK(dt_archive_add(w, "x", x));
    EXPECT_ERROR(dt_archive_write(w, "/nonexistent/x"), "tensor 'x' was added twice");
    dt_archive_free(w);
    dt_archive *a = dt_archive_open(golden("dtypes"));
    EXPECT_ERROR(dt_archive_add(a, "x", x), "opened to be read");
    EXPECT_ERROR(dt_archive_set_string(a, "x", "y"), "opened to be read");
    EXPECT_ERROR(dt_archive_write(a, "/nonexistent/x"), "opened to be read");
    dt_archive_free(a);
    dt_archive_free(NULL);
    EXPECT_EQ(0, (int)dt_archive_count(NULL));
    dt_end();
}

/* ==================================================================================================== >>foreign
   Files made by the safetensors package: tests/golden/make_safetensors.py */
UTEST(foreign, files_of_the_python_package_open)
{
    dt_archive *a = dt_archive_open(golden("dtypes"));
    ASSERT_OK(a);
    EXPECT_EQ(10, (int)dt_archive_count(a));
    static const uint32_t f32[6] = { 0x3fc00000, 0xc0100000, 0x7f61b1e6, 0x7f800000, 0x80000000, 0x00000001 };
    static const uint16_t f16[3] = { 0x3c00, 0xfbff, 0x0001 }, bf16[3] = { 0x3f80, 0xc040, 0x7e96 };
    int64_t               i64[2] = { INT64_MIN, INT64_MAX }, i32[2] = { INT32_MIN, INT32_MAX }, u8[3] = { 0, 1, 255 };
    int64_t               yes[3] = { 1, 0, 1 };
    EXPECT_SAME_BITS(dt_archive_get(a, "f32"), dt_from(f32, DT_SHAPE(2, 3)));
    EXPECT_SAME_BITS(dt_archive_get(a, "f16"), dt_from(f16, DT_SHAPE(3), .dtype = DT_F16));
    EXPECT_SAME_BITS(dt_archive_get(a, "bf16"), dt_from(bf16, DT_SHAPE(3), .dtype = DT_BF16));
    EXPECT_INTS(dt_archive_get(a, "i64"), i64, 2);
    EXPECT_INTS(dt_archive_get(a, "i32"), i32, 2);
    EXPECT_INTS(dt_archive_get(a, "u8"), u8, 3);
    EXPECT_INTS(dt_archive_get(a, "bool"), yes, 3);
    EXPECT_SHAPE(dt_archive_get(a, "scalar"), DT_SCALAR);
    EXPECT_EQ(42.0, dt_item(dt_archive_get(a, "scalar")));
    EXPECT_SHAPE(dt_archive_get(a, "empty"), DT_SHAPE(3, 0, 2));
    EXPECT_EQ(7.0,
              dt_item(dt_archive_get(a, "gr\303\274\303\237e.\344\275\240\345\245\275.\360\237\230\200 \"q\" \\ /")));
    EXPECT_STREQ("caf\303\251 \"quoted\"\n\ttab \360\237\232\200", dt_archive_get_string(a, "note"));
    EXPECT_STREQ("", dt_archive_get_string(a, "empty"));
    EXPECT_STREQ("pt", dt_archive_get_string(a, "format"));
    dt_archive_free(a);
    a = dt_archive_open(golden("nothing"));
    EXPECT_OK(a);
    EXPECT_EQ(0, (int)dt_archive_count(a));
    dt_archive_free(a);
    dt_end();
}

UTEST(foreign, dtypes_dt_lacks_are_converted_or_refused_when_asked_for)
{
    static const struct {
        const char *name, *stored;
        dt_dtype    becomes;
        int         n;
        double      v[3];
    } t[] = {
        { "f64", "F64", DT_F32, 2, { 1, 2 } },   { "i8", "I8", DT_I32, 3, { -1, 2, 3 } },  { "i16", "I16", DT_I32, 1, { -300 } },
        { "u16", "U16", DT_I32, 1, { 65535 } },  { "u32", "U32", DT_I64, 1, { 4294967295.0 } },
    };
    dt_archive_entry e;
    dt_archive      *a = dt_archive_open(golden("foreign"));
    ASSERT_OK(a);
    float want[6] = { 0, 1, 2, 3, 4, 5 };
    EXPECT_CLOSE(dt_archive_get(a, "weight"), want, 6, 0, 0);
    for (int i = 0; i < 5; i++) {
        EXPECT_TRUE(dt_archive_info(a, dt_archive_find(a, t[i].name), &e));
        EXPECT_STREQ(t[i].stored, e.stored);
        EXPECT_FALSE(e.known);
        dt_tensor *x = dt_archive_get(a, t[i].name);
        ASSERT_OK(x);
        EXPECT_EQ(t[i].becomes, dt_dtype_of(x));
        ASSERT_EQ((int64_t)t[i].n, dt_numel(x));
        for (int k = 0; k < t[i].n; k++) EXPECT_EQ(t[i].v[k], dt_test_element(dt_data_ptr(x), t[i].becomes, k));
    }
    dt_tensor *into = dt_zeros(DT_SHAPE(3), .dtype = DT_F16);
    EXPECT_OK(dt_archive_read(a, "i8", into));
    EXPECT_CLOSE(dt_cast(into, DT_F32), ((const float[]){ -1, 2, 3 }), 3, 0, 0);
    EXPECT_ERROR(dt_archive_get(a, "u64"), "which dt does not have");
    dt_archive_free(a);
    dt_end();
}

UTEST(foreign, data_that_is_not_aligned_is_copied)
{
    static const char h[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                            "\"w\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[1,17]}}";
    char             *dir = temp_dir();
    size_t            n;
    uint8_t          *p = file_of(h, strlen(h), 17, &n);
    int64_t           want[2];
    memcpy(want, p + n - 16, 16);
    ASSERT_EQ(0, files_write(temp_in(dir, "a"), p, n));
    dt_archive *a = dt_archive_open(temp_in(dir, "a"));
    ASSERT_OK(a);
    EXPECT_INTS(dt_archive_get(a, "w"), want, 2);
    dt_archive_free(a);
    dt_end();
    free(p);
    temp_remove(dir);
}

/* ==================================================================================================== >>refused */
typedef struct trick {
    const char *header;
    size_t      data;
    const char *message;
} trick;
#define T(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"
#define X8 "\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}"
static const trick tricks[] = {
    /* shapes */
    { "{" T("a", "F32", "4194305,4194305,211106198978564", "0", "16") "}", 16, "overflows" }, /* wraps to 4 elements */
    { "{" T("a", "F32", "4294967296,4294967296", "0", "0") "}", 0, "shape (4294967296, 4294967296) overflows" },
    { "{" T("a", "F32", "0,4294967296,4294967296", "0", "0") "}", 0, "(0, 4294967296, 4294967296) overflows" },
    { "{" T("a", "U8", "9223372036854775808", "0", "8") "}", 8, "dimension 0 is too large" },
    { "{" T("a", "U8", "18446744073709551616", "0", "8") "}", 8, "a number above 2^64-1" },
    { "{" T("a", "U8", "18446744073709551624", "0", "8") "}", 8, "a number above 2^64-1" },
    { "{" T("a", "U8", "1,1,1,1,1,1,1,1,1", "0", "1") "}", 1, "more than 8 dimensions" },
    { "{" T("a", "U8", "-1", "0", "1") "}", 1, "a whole number is expected" },
    { "{" T("a", "U8", "1.0", "0", "1") "}", 1, "a comma or the end of the list" },
    { "{" T("a", "U8", "1e0", "0", "1") "}", 1, "a comma or the end of the list" },
    { "{" T("a", "U8", "01", "0", "1") "}", 1, "a whole number is expected" },
    { "{" T("a", "U8", "1,", "0", "1") "}", 1, "a whole number is expected" },
    { "{" T("a", "U8", "\"1\"", "0", "1") "}", 1, "a whole number is expected" },
    { "{" T("a", "U8", "null", "0", "1") "}", 1, "a whole number is expected" },
    { "{" T("a", "U8", "[1]", "0", "1") "}", 1, "a whole number is expected" },
    { "{" T("a", "F4", "3", "0", "2") "}", 2, "F4 of shape (3) has 2 bytes, but" },
    /* offsets */
    { "{" T("a", "U8", "8", "8", "0") "}", 8, "before it begins" },
    { "{" T("a", "F32", "2", "0", "7") "}", 7, "has 8 bytes, but its data_offsets span 7" },
    { "{" T("a", "U8", "8", "0", "9") "}", 9, "has 8 bytes, but its data_offsets span 9" },
    { "{" T("a", "U8", "8", "0", "8") "}", 7, "ends at byte 8 of 7 bytes of data" },
    { "{" T("a", "U8", "8", "0", "8") "}", 9, "1 bytes after the last tensor" },
    { "{}", 1, "1 bytes after the last tensor" },
    { "{" T("a", "U8", "15", "18446744073709551600", "18446744073709551615") "}", 15,
      "ends at byte 18446744073709551615" },
    { "{" T("a", "U8", "0", "18446744073709551615", "18446744073709551615") "}", 0,
      "ends at byte 18446744073709551615" },
    { "{" T("a", "U8", "0", "0", "18446744073709551615") "}", 0, "span 18446744073709551615" },
    { "{" T("a", "U8", "8", "0", "8") "," T("b", "U8", "8", "0", "8") "}", 8, "inside 'a'" },
    { "{" T("a", "U8", "8", "0", "8") "," T("b", "U8", "8", "7", "15") "}", 15, "'b' begins at byte 7, inside 'a'" },
    { "{" T("a", "U8", "8", "0", "8") "," T("b", "U8", "0", "4", "4") "}", 8, "'b' begins at byte 4, inside 'a'" },
    { "{" T("a", "U8", "8", "1", "9") "}", 9, "a gap of 1 bytes in the data before tensor 'a'" },
    { "{" T("b", "U8", "4", "12", "16") "," T("a", "U8", "8", "0", "8") "}", 16,
      "a gap of 4 bytes in the data before tensor 'b'" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0]}}", 8, "data_offsets are two numbers" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8,8]}}", 8, "data_offsets are two numbers" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[-0,8]}}", 8, "a whole number is expected" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":\"0,8\"}}", 8, "'[' of data_offsets" },
    /* keys */
    { "{" X8 "," X8 "}", 8, "tensor 'x' occurs twice" },
    { "{" X8 "," T("\\u0078", "U8", "0", "8", "8") "}", 8, "tensor 'x' occurs twice" },
    { "{\"__metadata__\":{},\"__metadata__\":{}," X8 "}", 8, "__metadata__ occurs twice" },
    { "{\"__metadata__\":{\"k\":\"1\",\"l\":\"2\",\"k\":\"1\"}," X8 "}", 8, "__metadata__ 'k' occurs twice" },
    { "{\"a\":{\"shape\":[8],\"data_offsets\":[0,8]}}", 8, "tensor 'a' has no dtype" },
    { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,8]}}", 8, "tensor 'a' has no shape" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[8]}}", 8, "tensor 'a' has no data_offsets" },
    { "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8,
      "'a' has two keys dtype" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8],\"more\":1}}", 8, "'a' has a key 'more'" },
    { "{\"a\":{\"dtype\":\"U9\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, "dtype 'U9'" },
    { "{\"a\":{\"dtype\":8,\"shape\":[8],\"data_offsets\":[0,8]}}", 8, "a string is expected" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":8,\"data_offsets\":[0,8]}}", 8, "'[' of a shape" },
    { "{\"a\":[]}", 8, "'{' of a tensor is expected" },
    { "{\"a\":null}", 8, "'{' of a tensor is expected" },
    /* metadata */
    { "{\"__metadata__\":{\"k\":1}," X8 "}", 8, "__metadata__ 'k' is not a string" },
    { "{\"__metadata__\":{\"k\":null}," X8 "}", 8, "__metadata__ 'k' is not a string" },
    { "{\"__metadata__\":{\"k\":{}}," X8 "}", 8, "__metadata__ 'k' is not a string" },
    { "{\"__metadata__\":[]," X8 "}", 8, "'{' of __metadata__ is expected" },
    { "{\"__metadata__\":null," X8 "}", 8, "'{' of __metadata__ is expected" },
    { "{\"__metadata__\":{1:\"k\"}," X8 "}", 8, "a string is expected" },
    /* JSON */
    { "", 8, "does not begin with '{'" },
    { " {" X8 "}", 8, "does not begin with '{'" },
    { "[" X8 "]", 8, "does not begin with '{'" },
    { "{" X8, 8, "ends too early" },
    { "{\"x\"", 8, "ends too early" },
    { "{", 8, "ends too early" },
    { "{" X8 ",}", 8, "a string is expected" },
    { "{," X8 "}", 8, "a string is expected" },
    { "{" X8 " " T("y", "U8", "0", "8", "8") "}", 8, "a comma or the end of the list" },
    { "{\"x\" {}}", 8, "':' is expected" },
    { "{'x':{}}", 8, "a string is expected" },
    { "{x:{}}", 8, "a string is expected" },
    { "{" X8 "}}", 8, "text after the end of the JSON" },
    { "{" X8 "}\n", 8, "text after the end of the JSON" },
    { "{" X8 "} x", 8, "text after the end of the JSON" },
    { "{\"x", 8, "a string does not end" },
    { "{\"x\\", 8, "an escape that JSON does not have" },
    { "{\"\\x41\":{}}", 8, "an escape that JSON does not have" },
    { "{\"\\u12g4\":{}}", 8, "four hexadecimal digits" },
    { "{\"\\u12", 8, "four hexadecimal digits" },
    { "{\"\\u0000\":{}}", 8, "a NUL in a string" },
    { "{\"\\ud800\":{}}", 8, "first half of a surrogate pair" },
    { "{\"\\ud800\\n\":{}}", 8, "first half of a surrogate pair" },
    { "{\"\\ud800\\u0041\":{}}", 8, "first half of a surrogate pair" },
    { "{\"\\udc00\\ud800\":{}}", 8, "second half of a surrogate pair" },
    { "{\"a\001b\":{}}", 8, "a control character" },
    { "{\"a\nb\":{}}", 8, "a control character" },
    { "{\"\xff\":{}}", 8, "not UTF-8" },
    { "{\"\xc0\x80\":{}}", 8, "not UTF-8" },         /* overlong */
    { "{\"\xe0\x80\x80\":{}}", 8, "not UTF-8" },     /* overlong */
    { "{\"\xed\xa0\x80\":{}}", 8, "not UTF-8" },     /* a surrogate */
    { "{\"\xf4\x90\x80\x80\":{}}", 8, "not UTF-8" }, /* past the last */
    { "{\"\xf0\x9f\x98\":{}}", 8, "not UTF-8" },     /* cut */
    { "{\"\x80\":{}}", 8, "not UTF-8" },
    /* dt's own marks */
    { "{\"__metadata__\":{\"dt.version\":\"1\"}," X8 "}", 8, "dt.version without dt.crc32c" },
    { "{\"__metadata__\":{\"dt.crc32c\":\"00000000\"}," X8 "}", 8, "dt.crc32c without dt.version" },
    { "{\"__metadata__\":{\"dt.version\":\"2\",\"dt.crc32c\":\"00000000\"}," X8 "}", 8, "dt.version is '2'" },
    { "{\"__metadata__\":{\"dt.version\":\"1\",\"dt.crc32c\":\"00000000\"}," X8 "}", 8, "but it says 00000000" },
    { "{\"__metadata__\":{\"dt.version\":\"1\",\"dt.crc32c\":\"ABCDEF00\"}," X8 "}", 8, "not 8 digits" },
    { "{\"__metadata__\":{\"dt.version\":\"1\",\"dt.crc32c\":\"0\"}," X8 "}", 8, "not 8 digits" },
    { "{\"__metadata__\":{\"dt.version\":\"1\",\"dt.crc32c\":\"\"}," X8 "}", 8, "not 8 digits" },
    { "{\"__metadata__\":{\"dt.version\":\"1\",\"dt.crc32c\":\"\\u00300000000\"}," X8 "}", 8, "not 8 digits" },
};

UTEST(refused, the_known_tricks)
{
    for (size_t i = 0; i < sizeof tricks / sizeof tricks[0]; i++) {
        size_t      n;
        uint8_t    *p = file_of(tricks[i].header, strlen(tricks[i].header), tricks[i].data, &n);
        dt_archive *a = parse(p, n);
        char        text[1024];
        snprintf(text, sizeof text, "%s: \"%s\"", tricks[i].header, a->why);
        EXPECT_TRUE_MSG(a->code == DT_ERR_FILE && strstr(a->why, tricks[i].message), text);
        dt_archive_free(a);
        free(p);
    }
    EXPECT_TRUE(dt_error() == NULL); /* the reader of a resume must not leave a message */
}

UTEST(refused, what_only_looks_strange_is_accepted)
{
    static const trick fine[] = {
        { "{}", 0, "" },
        { "{} ", 0, "" },
        { "{\"__metadata__\":{}}", 0, "" },
        { "{ \"x\" :\t{ \"data_offsets\" : [ 0 , 8 ] ,\r\n\"shape\":[ 8 ],\"dtype\":\"U8\" } } ", 8, "x" },
        { "{" T("b", "U8", "8", "4", "12") "," T("a", "F32", "1", "0", "4") "," T("e", "F32", "0", "4", "4") "}", 12,
          "b" },
        { "{" T("a", "F32", "1,1,1,1,1,1,1,1", "0", "4") "}", 4, "a" },
        { "{" T("a", "U8", "0", "0", "0") "," T("b", "U8", "0", "0", "0") "," X8 "}", 8, "x" },
        { "{" T("a", "F6_E2M3", "4", "0", "3") "," T("f", "F4", "2", "3", "4") "}", 4, "f" },
        { "{" T("\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83D\\ude00", "U8", "8", "0", "8") "}", 8,
          "\"\\/\b\f\n\r\t\303\251\360\237\230\200" },
        { "{" T("../../etc/passwd", "U8", "8", "0", "8") "}", 8, "../../etc/passwd" },
        { "{\"__metadata__\":{\"dtype\":\"{[\",\"shape\":\"\"}," X8 "}", 8, "x" },
    };
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        size_t      n;
        uint8_t    *p = file_of(fine[i].header, strlen(fine[i].header), fine[i].data, &n);
        dt_archive *a = parse(p, n);
        EXPECT_TRUE_MSG(a->code == DT_OK, a->why);
        if (fine[i].message[0]) EXPECT_TRUE_MSG(dt_archive_find(a, fine[i].message) >= 0, fine[i].header);
        dt_archive_free(a);
        free(p);
    }
}

UTEST(refused, lengths_of_the_header)
{
    static const struct {
        uint64_t    n;
        const char *message;
    } cases[] = { { UINT64_MAX, "above the limit" },
                  { (uint64_t)1 << 63, "above the limit" },
                  { UINT64_MAX - 7, "above the limit" },
                  { 100000001, "above the limit" },
                  { 100000000, "does not fit a file" },
                  { 3, "does not fit a file" },
                  { 1, "ends too early" },
                  { 0, "does not begin with" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t *p = (uint8_t *)malloc(10);
        memcpy(p, &cases[i].n, 8);
        memcpy(p + 8, "{}", 2);
        dt_archive *a = parse(p, 10);
        EXPECT_TRUE_MSG(strstr(a->why, cases[i].message) != NULL, a->why);
        dt_archive_free(a);
        free(p);
    }
}

UTEST(refused, deep_nesting_needs_no_stack)
{
    static const char *const start[] = { "{\"a\":", "{\"a\":{\"shape\":", "{\"__metadata__\":{\"a\":",
                                         "{\"a\":{\"dtype\":" };
    for (int k = 0; k < 8; k++) {
        size_t len = 3000000, n;
        char  *h = (char *)malloc(len);
        memset(h, k < 4 ? '[' : '{', len);
        memcpy(h, start[k & 3], strlen(start[k & 3]));
        uint8_t    *p = file_of(h, len, 0, &n);
        dt_archive *a = parse(p, n);
        EXPECT_EQ(DT_ERR_FILE, (int)a->code);
        dt_archive_free(a);
        free(p);
        free(h);
    }
}

/* what the reader has in use and had at most */
typedef struct meter {
    size_t live, peak, limit;
} meter;
static void *meter_alloc(void *user, size_t n)
{
    meter *m = (meter *)user;
    if (m->limit && m->live + n > m->limit) return NULL;
    void *p = malloc(n);
    if (p) m->live += n;
    if (m->live > m->peak) m->peak = m->live;
    return p;
}
static void meter_free(void *user, void *p, size_t n)
{
    ((meter *)user)->live -= n;
    free(p);
}

UTEST(refused, headers_of_a_hundred_thousand_tensors_take_linear_time_and_memory)
{
    const int    count = 100000;
    meter        m = { 0, 0, 0 };
    dt_allocator alloc = { meter_alloc, meter_free, &m };
    dt_end();
    dt_empty_cache();
    ASSERT_OK(dt_set_allocator(&alloc));
    for (int kind = 0; kind < 4; kind++) { /* in order; backwards; all names share 200 bytes; one name twice */
        size_t at = 0, n, cap = (size_t)count * 320;
        char  *h = (char *)malloc(cap);
        h[at++] = '{';
        for (int i = 0; i < count; i++) {
            int id = kind == 1 ? count - 1 - i : kind == 3 && i == count - 1 ? 7 : i;
            at += (size_t)snprintf(h + at, cap - at, "%s\"", i ? "," : "");
            for (int k = 0; kind == 2 && k < 200; k++) h[at++] = 'n';
            at += (size_t)snprintf(h + at, cap - at, "%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                                   id, kind == 1 ? id : i, (kind == 1 ? id : i) + 1);
        }
        h[at++] = '}';
        uint8_t *p = file_of(h, at, (size_t)count, &n);
        m.peak = 0;
        int64_t     start = dt_test_ns();
        dt_archive *a = parse(p, n);
        double      seconds = (double)(dt_test_ns() - start) / 1e9;
        EXPECT_TRUE_MSG(kind == 3 ? strstr(a->why, "'7' occurs twice") != NULL : a->code == DT_OK, a->why);
        if (kind == 0) EXPECT_EQ(99999, (int)dt_archive_find(a, "99999"));
        EXPECT_LT(seconds, 5.0 * dt_test_slow()); /* comparing all names with all would take minutes */
        EXPECT_LT((double)m.peak, 5.0 * (double)at);
        dt_archive_free(a);
        free(p);
        free(h);
    }
    EXPECT_EQ(0u, (unsigned)m.live);
    EXPECT_OK(dt_set_allocator(NULL));
}

/* ==================================================================================================== >>damage */
/* About 4 KiB: weights, a state, strings. */
static uint8_t *small_archive(size_t *nbytes)
{
    char       *dir = temp_dir();
    dt_archive *w = dt_archive_new();
    dt_manual_seed(3);
    dt_archive_add(w, "fc1.weight", dt_uniform(-1, 1, DT_SHAPE(16, 24)));
    dt_archive_add(w, "fc1.bias", dt_uniform(-1, 1, DT_SHAPE(16)));
    dt_archive_add(w, "optimizer.0.fc1.weight.exp_avg", dt_uniform(-1, 1, DT_SHAPE(16, 24)));
    dt_archive_add(w, "half", dt_uniform(-1, 1, DT_SHAPE(245), .dtype = DT_F16));
    dt_archive_add(w, "count", dt_full(12, DT_SCALAR, .dtype = DT_I64));
    dt_archive_set_string(w, "dt.step", "123");
    dt_archive_set_string(w, "note", "a \"quoted\" text");
    dt_archive_write(w, temp_in(dir, "a"));
    dt_archive_free(w);
    dt_end();
    uint8_t *p = (uint8_t *)files_read(temp_in(dir, "a"), nbytes);
    temp_remove(dir);
    return p;
}

UTEST(damage, cut_at_every_byte)
{
    size_t   n;
    uint8_t *p = small_archive(&n);
    ASSERT_TRUE(p && n > 4096);
    for (size_t cut = 0; cut <= n; cut++) {
        uint8_t *part = (uint8_t *)malloc(cut ? cut : 1); /* its own block: a sanitizer sees a read past the end */
        memcpy(part, p, cut);
        dt_archive *a = parse(part, cut);
        char        text[600];
        snprintf(text, sizeof text, "the first %zu of %zu bytes: \"%s\"", cut, n, a->why);
        EXPECT_TRUE_MSG(cut == n ? a->code == DT_OK : a->code == DT_ERR_FILE && a->why[0], text);
        dt_archive_free(a);
        free(part);
        if (*utest_result) break;
    }
    free(p);
}

UTEST(damage, every_bit_flipped)
{
    size_t   n;
    uint8_t *p = small_archive(&n);
    int64_t  found = 0;
    ASSERT_TRUE(p && n > 4096);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        p[bit / 8] ^= (uint8_t)(1 << bit % 8);
        dt_archive *a = parse(p, n);
        char        text[600];
        snprintf(text, sizeof text, "bit %zu of byte %zu: \"%s\"", bit % 8, bit / 8, a->why);
        EXPECT_TRUE_MSG(a->code == DT_ERR_FILE && a->why[0], text);
        found += a->code == DT_ERR_FILE;
        dt_archive_free(a);
        p[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (*utest_result) break;
    }
    EXPECT_EQ((int64_t)(8 * n), found);
    printf("%lld flipped bits refused\n", (long long)found);
    free(p);
}

/* ==================================================================================================== >>fuzz
   Mutations of good headers, with N put right again so that most reach the depths. What is accepted must be usable. */
typedef struct seed {
    char  *header;
    size_t len, data;
} seed;
static const char *const words[] = {
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\\u",
    "\\ud83d\\ude00",
    "\\u0000",
    "0",
    "1",
    "8",
    "-1",
    "1.5",
    "1e9",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "2147483648",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"__metadata__\"",
    "\"F32\"",
    "\"U8\"",
    "\"F4\"",
    "null",
    "true",
    " ",
    "\n",
    "\xff",
    "\xc3",
    "{}",
    "[]",
    "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
    "\"dt.version\":\"1\"",
    "\"dt.crc32c\":\"00000000\"",
};
static size_t mutate(char *h, size_t len, size_t cap, const char *other, size_t other_len)
{
    size_t      at = draw((uint32_t)len + 1), n;
    const char *w;
    switch (draw(8)) {
    case 0: /* a bit */
        if (at < len) h[at] = (char)(h[at] ^ (1 << draw(8)));
        break;
    case 1: /* a byte */
        if (at < len) h[at] = (char)draw(256);
        break;
    case 2: /* a piece goes */
        n = draw((uint32_t)(len - at < 40 ? len - at : 40) + 1);
        memmove(h + at, h + at + n, len - at - n);
        len -= n;
        break;
    case 3: /* a piece is doubled */
        n = draw((uint32_t)(len - at < 80 ? len - at : 80) + 1);
        if (len + n > cap) break;
        memmove(h + at + n, h + at, len - at);
        len += n;
        break;
    case 4:
    case 5: /* a word is put in */
        w = words[draw((uint32_t)(sizeof words / sizeof words[0]))];
        n = strlen(w);
        if (len + n > cap) break;
        memmove(h + at + n, h + at, len - at);
        memcpy(h + at, w, n);
        len += n;
        break;
    case 6: /* a digit */
        while (at < len && (h[at] < '0' || h[at] > '9')) at++;
        if (at < len) h[at] = (char)('0' + draw(10));
        break;
    default: /* a piece of another */
        n = draw((uint32_t)(other_len < 60 ? other_len : 60) + 1);
        if (!n || len + n > cap) break;
        memmove(h + at + n, h + at, len - at);
        memcpy(h + at, other + draw((uint32_t)(other_len - n) + 1), n);
        len += n;
    }
    return len;
}
/* Touches all that an accepted archive offers. */
static void use_all(const dt_archive *a)
{
    for (int64_t i = 0; i < dt_archive_count(a); i++) {
        dt_archive_entry e;
        if (!dt_archive_info(a, i, &e) || dt_archive_find(a, e.name) != i) abort();
        dt_tensor *t = e.known ? dt_archive_get((dt_archive *)(uintptr_t)a, e.name) : NULL;
        if (e.known && (!t || dt_nbytes(t) != e.nbytes)) abort();
    }
    for (int64_t i = 0; i < a->nmetas; i++)
        if (!dt_archive_get_string(a, a->meta[i].key)) abort();
    dt_end();
}

UTEST(fuzz, mutated_headers_never_crash_and_never_take_much_memory)
{
    static const char *const texts[] = {
        "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"v \\u00e9\"}," T("a.weight", "F32", "2,2", "0",
                                                                       "16") "," T("b", "I64", "1", "16", "24") "} ",
        "{" T("x", "U8", "4", "0", "4") "," T("y", "BF16", "2", "4", "8") "," T("z", "F4", "3,2", "8", "11") "," T(
            "e", "F64", "0", "11", "11") "}",
        "{" T("\\\"q\\\"", "BOOL", "1", "0", "1") "," T("\360\237\230\200", "F16", "", "1", "3") "}",
    };
    seed     s[5];
    int      nseeds = 0;
    size_t   n, golden_len, own_len;
    uint8_t *own = small_archive(&own_len);
    char    *other = files_read(golden("dtypes"), &golden_len);
    ASSERT_TRUE(own && other);
    for (; nseeds < 3; nseeds++) {
        s[nseeds].header = (char *)(uintptr_t)texts[nseeds];
        s[nseeds].len = strlen(texts[nseeds]);
        s[nseeds].data = nseeds == 0 ? 24 : nseeds == 1 ? 11 : 3;
    }
    memcpy(&n, other, 8);
    s[nseeds].header = other + 8;
    s[nseeds].len = n;
    s[nseeds++].data = golden_len - n - 8;
    memcpy(&n, own, 8);
    s[nseeds].header = (char *)own + 8;
    s[nseeds].len = n;
    s[nseeds++].data = own_len - n - 8;

    meter        m = { 0, 0, 0 };
    dt_allocator alloc = { meter_alloc, meter_free, &m };
    dt_end();
    dt_empty_cache();
    ASSERT_OK(dt_set_allocator(&alloc));
    int64_t cases = dt_test_quick() ? 40000 : 250000, good = 0, refused = 0;
    char    h[4096];
    fuzz_state = 20240607;
    for (int64_t i = 0; i < cases; i++) {
        const seed *from = &s[draw((uint32_t)nseeds)], *with = &s[draw((uint32_t)nseeds)];
        size_t      len = from->len;
        memcpy(h, from->header, len);
        for (uint32_t k = 1 + draw(3); k; k--) len = mutate(h, len, sizeof h, with->header, with->len);
        uint8_t *p = file_of(h, len, from->data, &n);
        if (draw(20) == 0) p[draw(8)] = (uint8_t)draw(256); /* N itself */
        if (draw(20) == 0) n = draw((uint32_t)n + 1);       /* and cut */
        uint8_t *exact = (uint8_t *)malloc(n ? n : 1);
        memcpy(exact, p, n);
        size_t before = m.live;
        m.peak = before;
        dt_archive *a = parse(exact, n);
        ASSERT_TRUE(a->code == DT_OK || a->why[0]);
        ASSERT_LT((double)(m.peak - before), 6.0 * (double)n + 4096);
        if (a->code == DT_OK) use_all(a);
        good += a->code == DT_OK;
        refused += a->code == DT_ERR_FILE;
        dt_archive_free(a);
        free(exact);
        free(p);
    }
    dt_empty_cache();
    EXPECT_EQ(0u, (unsigned)m.live);
    EXPECT_OK(dt_set_allocator(NULL));
    EXPECT_GT(good, cases / 200); /* else the mutations say nothing about the depths */
    EXPECT_EQ(cases, good + refused);
    printf("%lld cases, %lld accepted\n", (long long)cases, (long long)good);
    free(own);
    free(other);
}

UTEST(fuzz, corpus) { EXPECT_GE(fuzz_corpus(fuzz_seeds(__FILE__, "archive"), fuzz_archive_input), 5); }

/* ==================================================================================================== >>writing */
static dt_archive *two_tensors(double value)
{
    dt_archive *w = dt_archive_new();
    dt_archive_add(w, "a", dt_full(value, DT_SHAPE(5)));
    dt_archive_add(w, "b", dt_full(value, DT_SHAPE(3), .dtype = DT_U8));
    return w;
}
static double value_in(const char *path) /* what is in both tensors; NaN: the file is not whole */
{
    dt_archive *a = dt_archive_open(path);
    double      x = dt_item(dt_narrow(dt_archive_get(a, "a"), 0, 0, 1));
    double      y = dt_item(dt_narrow(dt_archive_get(a, "b"), 0, 0, 1));
    dt_archive_free(a);
    dt_error_clear();
    dt_end();
    return x == y ? x : (double)NAN;
}

UTEST(writing, every_call_that_fails_leaves_the_old_file_or_the_whole_new_one)
{
    static const int errors[] = { ENOSPC, EIO, EACCES, EROFS, EDQUOT };
    char            *dir = temp_dir();
    const char      *path = temp_in(dir, "a.safetensors");
    dt_archive      *one = two_tensors(1), *two = two_tensors(2);
    int              failures = 0, n = 1;
    for (;; n++) {
        int e = errors[n % 5];
        ASSERT_OK(dt_archive_write(one, path));
        fault_arm(FAULT_ANY, n, FAULT_FAIL, e);
        dt_status st = dt_archive_write(two, path);
        fault_disarm();
        char text[1200];
        snprintf(text, sizeof text, "call %d fails with %s: %s", n, strerror(e), dt_error() ? dt_error() : "no error");
        if (st != DT_OK) {
            EXPECT_EQ_MSG(DT_ERR_FILE, (int)st, text);
            EXPECT_TRUE_MSG(strstr(dt_error(), "dt_archive_write") && strstr(dt_error(), dir) &&
                                strstr(dt_error(), strerror(e)),
                            text);
            EXPECT_TRUE_MSG(strchr(dt_error(), ';') != NULL, text); /* a remedy */
            int renamed = strstr(dt_error(), "written, but") != NULL;
            dt_error_clear();
            EXPECT_EQ_MSG(renamed ? 2.0 : 1.0, value_in(path), text);
            failures++;
        } else {
            EXPECT_EQ_MSG(2.0, value_in(path), text);
        }
        EXPECT_EQ_MSG(1, files_count(dir), text);
        EXPECT_FALSE_MSG(fault.retried, text);
        if (fault.calls < n || *utest_result) break;
    }
    EXPECT_EQ(n - 1 - 3, failures); /* a lock and two closes may fail */
    EXPECT_GT(n, 10);
    dt_archive_free(one);
    dt_archive_free(two);
    dt_end();
    temp_remove(dir);
}

UTEST(writing, a_full_disk_at_every_write)
{
    char       *dir = temp_dir();
    const char *path = temp_in(dir, "a.safetensors");
    dt_archive *one = two_tensors(1), *two = two_tensors(2);
    ASSERT_OK(dt_archive_write(one, path));
    for (int n = 1;; n++) { /* from there on, as a disk does */
        fault_arm(FAULT_WRITE | FAULT_PWRITE, n, FAULT_EVER, ENOSPC);
        dt_status st = dt_archive_write(two, path);
        fault_disarm();
        if (st == DT_OK) {
            EXPECT_GT(n, 4);
            break;
        }
        EXPECT_TRUE_MSG(strstr(dt_error(), "No space left on device; free space") != NULL, dt_error());
        dt_error_clear();
        EXPECT_EQ(1.0, value_in(path));
        EXPECT_EQ(1, files_count(dir));
    }
    EXPECT_EQ(2.0, value_in(path));
    dt_archive_free(one);
    dt_archive_free(two);
    dt_end();
    temp_remove(dir);
}

/* A tmpfs of 1 MiB in a namespace of its own; exits 2 where that is not allowed. */
static void full_disk_checks(int *utest_result, const char *dir)
{
    const char *path = temp_in(dir, "a");
    dt_archive *small = two_tensors(1), *large = dt_archive_new();
    EXPECT_OK(dt_archive_add(large, "x", dt_zeros(DT_SHAPE(600000))));
    EXPECT_OK(dt_archive_write(small, path));
    EXPECT_ERROR(dt_archive_write(large, path), "No space left on device");
    EXPECT_EQ(1.0, value_in(path));
    EXPECT_EQ(1, files_count(dir));
    EXPECT_OK(dt_archive_write(small, path)); /* what was half written has given its space back */
}
static int full_disk(void *arg)
{
    const char *dir = (const char *)arg;
    int         failed = 0;
    if ((unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) ||
        mount("none", "/", "none", MS_REC | MS_PRIVATE, "") || mount("none", dir, "tmpfs", 0, "size=1m"))
        return 42;
    full_disk_checks(&failed, dir);
    return failed;
}
UTEST(writing, a_disk_that_is_really_full)
{
    char *dir = temp_dir();
    int   got = files_child(full_disk, dir);
    temp_remove(dir);
    if (got == 42) UTEST_SKIP("no namespaces with mounts here");
    EXPECT_EQ(0, got);
}

UTEST(writing, short_and_interrupted_writes_make_the_same_file)
{
    char       *dir = temp_dir();
    dt_archive *w = two_tensors(5);
    size_t      n1, n2;
    ASSERT_OK(dt_archive_write(w, temp_in(dir, "a")));
    fault_arm(0, 0, 0, 0);
    fault.short_writes = 3;
    fault.interrupts = 1;
    EXPECT_OK(dt_archive_write(w, temp_in(dir, "b")));
    EXPECT_GT(fault.writes, 50);
    fault_disarm();
    char *a = files_read(temp_in(dir, "a"), &n1), *b = files_read(temp_in(dir, "b"), &n2);
    EXPECT_TRUE(n1 == n2 && !memcmp(a, b, n1));
    free(a);
    free(b);
    dt_archive_free(w);
    dt_end();
    temp_remove(dir);
}

UTEST(writing, a_failed_fsync_is_not_asked_again_and_the_next_write_is_a_new_file)
{
    char       *dir = temp_dir();
    const char *path = temp_in(dir, "a");
    dt_archive *w = two_tensors(6);
    fault_arm(FAULT_FSYNC, 1, FAULT_FAIL, EIO);
    EXPECT_ERROR(dt_archive_write(w, path), "fsync: Input/output error");
    EXPECT_EQ(1, (int)fault.fsyncs);
    EXPECT_EQ(0, files_count(dir));
    EXPECT_OK(dt_archive_write(w, path));
    EXPECT_EQ(3, (int)fault.fsyncs); /* the file, its directory */
    fault_disarm();
    EXPECT_EQ(6.0, value_in(path));
    dt_archive_free(w);
    dt_end();
    temp_remove(dir);
}

UTEST(writing, with_an_error_pending_nothing_is_written)
{
    char       *dir = temp_dir();
    dt_archive *w = two_tensors(1);
    dt_fail(DT_ERR_STATE, "the loss is NaN");
    EXPECT_EQ(DT_ERR_STATE, (int)dt_archive_write(w, temp_in(dir, "a")));
    EXPECT_STREQ("the loss is NaN", dt_error());
    dt_error_clear();
    EXPECT_EQ(0, files_count(dir));
    dt_archive_free(w);
    dt_end();
    temp_remove(dir);
}

UTEST(writing, a_device_that_fails_leaves_the_old_file)
{
    char        *dir = temp_dir();
    const char  *path = temp_in(dir, "a");
    fake_device *f = fake_device_new(0);
    dt_archive  *old = two_tensors(1), *w = two_tensors(2);
    ASSERT_OK(dt_archive_write(old, path));
    dt_tensor *x = dt_to(dt_ones(DT_SHAPE(8)), f->dev);
    EXPECT_OK(dt_archive_add(w, "c", dt_add_scalar(x, 1)));
    f->fail_kernel = 1;
    EXPECT_ERROR(dt_archive_write(w, path), "fake: unary failed");
    EXPECT_EQ(1.0, value_in(path));
    EXPECT_EQ(1, files_count(dir));
    dt_archive_free(old);
    dt_archive_free(w);
    dt_end();
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
    temp_remove(dir);
}

/* ==================================================================================================== >>paths */
UTEST(paths, what_is_not_a_file_is_refused_at_once)
{
    char       *dir = temp_dir();
    dt_archive *w = two_tensors(1);
    EXPECT_ERROR(dt_archive_open(dir), "is a directory");
    EXPECT_ERROR(dt_archive_open(temp_in(dir, "none")), "none: No such file or directory");
    ASSERT_EQ(0, mkfifo(temp_in(dir, "fifo"), 0600));
    EXPECT_ERROR(dt_archive_open(temp_in(dir, "fifo")), "not a regular file"); /* and does not wait for a writer */
    ASSERT_EQ(0, symlink("loop", temp_in(dir, "loop")));
    EXPECT_ERROR(dt_archive_open(temp_in(dir, "loop")), "symbolic links");
    EXPECT_ERROR(dt_archive_open("/dev/null"), "not a regular file");
    ASSERT_EQ(0, files_write(temp_in(dir, "empty"), "", 0));
    EXPECT_ERROR(dt_archive_open(temp_in(dir, "empty")), "0 bytes are too few");
    EXPECT_ERROR(dt_archive_write(w, dir), "not a regular file");
    EXPECT_ERROR(dt_archive_write(w, temp_in(dir, "fifo")), "not a regular file");
    EXPECT_ERROR(dt_archive_write(w, "/dev/null"), "not a regular file"); /* a rename would replace it */
    EXPECT_ERROR(dt_archive_write(w, temp_in(dir, "no/such")), "create its directory first");
    EXPECT_ERROR(dt_archive_write(w, temp_in(dir, "empty/below")), "Not a directory");
    char longer[300];
    memset(longer, 'n', sizeof longer);
    longer[299] = 0;
    EXPECT_ERROR(dt_archive_write(w, temp_in(dir, longer)), "File name too long");
    EXPECT_EQ(3, files_count(dir));
    dt_archive_free(w);
    dt_end();
    temp_remove(dir);
}

UTEST(paths, a_file_in_the_present_directory_and_a_link)
{
    char *dir = temp_dir(), here[4096];
    ASSERT_TRUE(getcwd(here, sizeof here) != NULL);
    ASSERT_EQ(0, chdir(dir));
    dt_archive *w = two_tensors(3);
    EXPECT_OK(dt_archive_write(w, "plain"));
    EXPECT_EQ(3.0, value_in("plain"));
    ASSERT_EQ(0, symlink("plain", "link"));
    EXPECT_EQ(3.0, value_in("link"));
    ASSERT_EQ(0, chdir(here));
    dt_archive_free(w);
    dt_end();
    temp_remove(dir);
}

static int not_allowed(void *arg)
{
    int         failed = 0, *utest_result = &failed;
    const char *dir = (const char *)arg;
    dt_archive *w = two_tensors(1);
    if (geteuid() == 0 && setresuid(65534, 65534, 65534)) return 42;
    EXPECT_ERROR(dt_archive_open(temp_in(dir, "secret")), "Permission denied");
    EXPECT_ERROR(dt_archive_write(w, temp_in(dir, "a")), "the directory must be writable");
    dt_archive_free(w);
    return failed;
}
UTEST(paths, without_permission)
{
    char *dir = temp_dir();
    ASSERT_EQ(0, files_write(temp_in(dir, "secret"), "12345678", 8));
    ASSERT_EQ(0, chmod(temp_in(dir, "secret"), 0));
    ASSERT_EQ(0, chmod(dir, 0555));
    int got = files_child(not_allowed, dir);
    chmod(dir, 0755);
    temp_remove(dir);
    if (got == 42) UTEST_SKIP("root that cannot become another user");
    EXPECT_EQ(0, got);
}

/* ==================================================================================================== >>memory */
static double write_and_read(const char *path) /* 4, or NaN with an error pending */
{
    dt_archive *w = dt_archive_new();
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        dt_archive_add(w, name, dt_transpose(dt_full(4, DT_SHAPE(2, 3)), 0, 1));
        dt_archive_set_string(w, name, "x");
    }
    float four = 4;
    dt_archive_add_data(w, "d", DT_F32, DT_SHAPE(1), &four);
    dt_archive_write(w, path);
    dt_archive_free(w);
    dt_archive *a = dt_archive_open(path);
    dt_tensor  *into = dt_zeros(DT_SHAPE(1), .dtype = DT_F16);
    dt_archive_read(a, "d", into);
    double x = dt_item(dt_narrow(dt_reshape(dt_archive_get(a, "t7"), DT_SHAPE(-1)), 0, 0, 1)), y = dt_item(into);
    dt_archive_free(a);
    dt_end();
    dt_empty_cache();
    return dt_error() || x != y ? (double)NAN : x;
}
UTEST(memory, every_failing_allocation_is_an_error_and_leaks_nothing)
{
    char        *dir = temp_dir();
    const char  *path = temp_in(dir, "a");
    dt_test_budget b;
    dt_end();
    dt_empty_cache();
    ASSERT_OK(dt_test_budget_set(&b, -1));
    EXPECT_TRUE(!isnan(write_and_read(path)));
    int64_t total = b.calls;
    for (int64_t n = 0; n < total; n++) {
        char text[1100];
        b.left = n;
        double x = write_and_read(path);
        b.left = -1;
        snprintf(text, sizeof text, "allocation %lld: %s", (long long)n, dt_error() ? dt_error() : "no error");
        EXPECT_TRUE_MSG(dt_error() ? dt_error_code() == DT_ERR_MEMORY && strstr(dt_error(), "memory") : x == 4.0, text);
        dt_error_clear();
        EXPECT_EQ_MSG(0u, (unsigned)b.live, text);
        EXPECT_TRUE_MSG(files_count(dir) <= 1, text);
        if (*utest_result) break;
    }
    EXPECT_OK(dt_set_allocator(NULL));
    printf("%lld allocations failed in turn\n", (long long)total);
    temp_remove(dir);
}
