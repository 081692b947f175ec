/* dt_io.h - v0.2.0 - safetensors files: reading, checking, writing */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_io.h"
    In every other file that uses it:           #include "dt_io.h"

    Put dt_base.h into the same directory. Link with -lm -lpthread.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_io.h"
    #include <stdio.h>
    #include <string.h>

    int main(void)
    {
        const float weight[6] = { 1, 2, 3, 4, 5, 6 };
        dt_archive *a = dt_archive_new();
        dt_archive_add_data(a, "weight", DT_F32, DT_SHAPE(2, 3), weight);
        dt_archive_set_string(a, "author", "me");
        dt_archive_write(a, "model.safetensors");
        dt_archive_free(a);

        a = dt_archive_open("model.safetensors");
        for (int64_t i = 0; i < dt_archive_count(a); i++) {
            dt_archive_entry e;
            float            first;
            dt_archive_info(a, i, &e);
            memcpy(&first, dt_archive_data(a, i), sizeof first);
            printf("%s: %s, %zu bytes, begins with %g\n", e.name, e.stored, e.nbytes, first);
        }
        dt_archive_free(a);
        return dt_check("archive");
    }

WHAT IT DOES NOT DO

    It does not know dt_tensor: dt_nn.h adds tensors to archives, gets them from archives, and saves trainings. It does
    not change a file in place and does not convert element types. Big-endian machines are not supported.

CONTENTS

    >>archives       opening, queries, writing
    >>inside         private types and functions that dt_nn.h uses
    >>checksum       implementation from here: CRC32C
    >>archive        the archive in memory, sorting
    >>json           parsing the header
    >>reading        checks, opening, queries
    >>files          system calls, temporary files, directories
    >>writing        writing the header and the data, renaming

MACROS

    DT_IMPLEMENTATION, DT_IO_IMPLEMENTATION, DT_LINKED, DT_STATIC, DT_MALLOC and DT_FREE: as in dt_base.h.

ERRORS

    As in dt_base.h: a call that fails returns NULL or a negative status and leaves a message in dt_error(). While an
    error is pending, calls that open, read or write do nothing. Every call accepts NULL.

MEMORY

    A file that is opened is mapped into memory, not copied. Names, strings and data that an archive returns stay valid
    until it is freed.

THREADS

    Several threads may query one opened archive at the same time. A new archive is used by one thread at a time.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_IO_IMPLEMENTATION)
#define DT_IO_IMPLEMENTATION
#endif
#include "dt_base.h"

#ifndef DT_IO_H_INCLUDED
#define DT_IO_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_io.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>archives
   Safetensors files hold named tensors and strings. dt reads the files of other programs, and they read dt's files.
   dt_archive_open maps the file and checks all of it: header, names, shapes, every offset, and the checksum in files
   written by dt. F32, F16, BF16, I32, I64 and U8 are dt's dtypes; BOOL is read as u8. Entries of other dtypes (F64, I8,
   U32, F8_E4M3 ...) are listed, and their bytes can be read; dt_archive_get of dt_nn.h converts F64, I8, I16, U16 and U32. */
typedef struct dt_archive dt_archive;
typedef struct dt_archive_entry {
    const char *name;   /* UTF-8; valid until the archive is freed */
    const char *stored; /* the dtype's name in the file: "F32", "BOOL" ... */
    bool        known;  /* dt has this dtype */
    dt_dtype    dtype;  /* if known */
    dt_shape    shape;
    size_t      nbytes; /* in the file */
} dt_archive_entry;
/* The file must not be truncated while it is open; replacing it by a rename is safe. */
DT_API dt_archive *dt_archive_open(const char *path);
DT_API void        dt_archive_free(dt_archive *a);
DT_API int64_t     dt_archive_count(const dt_archive *a);
DT_API const char *dt_archive_name(const dt_archive *a, int64_t i); /* in file order; NULL: i is out of range */
DT_API bool        dt_archive_info(const dt_archive *a, int64_t i, dt_archive_entry *out); /* false: i is out of range */
DT_API int64_t     dt_archive_find(const dt_archive *a, const char *name); /* index, or -1 without an error */
/* The bytes of entry i as stored in the file, of any dtype. The address may be unaligned: use memcpy. NULL: i is out of
   range, or the archive is a new one. */
DT_API const void *dt_archive_data(const dt_archive *a, int64_t i);
/* The metadata: key i, and the value of a key. NULL without an error: i is out of range, or the key does not exist. */
DT_API const char *dt_archive_key(const dt_archive *a, int64_t i);
DT_API const char *dt_archive_get_string(const dt_archive *a, const char *key);

/* Writing: create an archive, add entries and strings, write it. dt_archive_add_data copies the data. */
DT_API dt_archive *dt_archive_new(void);
DT_API dt_status   dt_archive_add_data(dt_archive *a, const char *name, dt_dtype dtype, dt_shape shape,
                                       const void *data);
DT_API dt_status   dt_archive_set_string(dt_archive *a, const char *key, const char *value); /* replaces an earlier value */
/* Atomic: writes a temporary file in the same directory, syncs it, renames it to path and syncs the directory. If the call
   fails, an existing file at path is unchanged. The mode is 0644 minus the umask. */
DT_API dt_status   dt_archive_write(dt_archive *a, const char *path);

#ifdef __cplusplus
}
#endif
#endif /* DT_IO_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__IO_INSIDE)
#define DT__IO_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   Private types and functions that dt_nn.h uses for archives of tensors and for the files of checkpoints. 'call' is the
   name of the public function, with which error messages begin. */
#ifdef __cplusplus
extern "C" {
#endif
typedef struct dt__out_file dt__out_file;
typedef struct dt__source { /* where the bytes of an entry come from when the archive is written */
    /* Passes all bytes to dt__out_bytes, in one or several calls. Returns 0, or a negative status after dt_fail. */
    int (*send)(dt__out_file *o, const char *call, const dt_archive_entry *e, void *object);
    void (*release)(void *object, size_t nbytes); /* called when the archive is freed */
    int (*range)(dt__out_file *o, const char *call, void *object, int64_t from,
                 int64_t n); /* elements; see dt__writers, or NULL */
} dt__source;
/* Ranks that write one file together. Entries with `source` are written in segments, each by its owner; the others by rank 0. The
   collective calls return 0, or a negative status after dt_fail. */
typedef struct dt__writers {
    int   rank;
    void *comm;
    int (*tell)(void *comm, const char *call, void *x, size_t nbytes, int root); /* all get root's bytes */
    int (*merge)(void *comm, const char *call, void *x, size_t nbytes); /* each byte is 0 on all ranks but one */
    int (*outcome)(void *comm, const char *call); /* the error of any rank becomes the error of all */
    void             *user;
    const dt__source *source;
    int64_t (*segment)(void *user, void *object, int64_t at,
                       int *owner); /* the owner of element `at`; returns where its segment ends */
} dt__writers;
typedef struct dt__why { /* why a file cannot be used */
    dt_status code;
    char      text[480];
} dt__why;
DT__INSIDE int         dt__out_bytes(dt__out_file *o, const void *data, size_t nbytes);
DT__INSIDE dt_archive *dt__archive_load(const char *path, dt__why *why); /* NULL: see *why; sets no error */
DT__INSIDE dt_archive *dt__archive_load_fd(int fd, dt__why *why); /* the same; closes fd */
/* Entry i will not be read soon: its memory goes back to the system. No tensor that views it has been written to. */
DT__INSIDE void dt__archive_forget(dt_archive *a, int64_t i);
DT__INSIDE int  dt__archive_write_shared(const char *call, dt_archive *a, const char *path, const dt__writers *w);
/* What one rank writes of a shared file, for others to keep: in memory, without a call to them. It is followed by nseg pairs of
   int64_t (offset in the data, bytes), the header of the file, and the bytes of the segments. Free it with dt_mem_free. */
typedef struct dt__parcel {
    int64_t nbytes;       /* of all of it */
    int64_t head, data;   /* bytes of the file's header and of its data */
    int64_t nseg, step;   /* step: the caller's */
} dt__parcel;
DT__INSIDE dt__parcel *dt__parcel_new(const char *call, dt_archive *a, const dt__writers *w, int fd); /* fd: an empty file to write in */
DT__INSIDE bool dt__parcel_ok(const dt__parcel *p, int64_t nbytes); /* one that came from elsewhere */
/* The file of all parcels: base has head + data bytes of parcel `first`, whose header it gets. dt__parcels_end adds the checksum. */
DT__INSIDE bool dt__parcel_put(const dt__parcel *p, const dt__parcel *first, uint8_t *base);
DT__INSIDE void dt__parcels_end(uint8_t *base, size_t nbytes);
DT__INSIDE int64_t     dt__archive_need(const char *call, const dt_archive *a, const char *name); /* -1 after dt_fail */
/* A reference to the mapped memory, which keeps it after the archive is freed. NULL: the archive is not a mapped file. */
DT__INSIDE void       *dt__archive_hold(dt_archive *a);
DT__INSIDE void        dt__archive_release(void *hold);
/* Takes ownership of object if it returns 0. finite: writing fails if the data holds a NaN or an infinity. */
DT__INSIDE int         dt__archive_put(const char *call, dt_archive *a, const char *name, dt_dtype dtype,
                                       dt_shape shape, bool finite, void *object, const dt__source *source);
/* The object of entry i; NULL: the archive was opened from a file, or the entry has another source. */
DT__INSIDE void       *dt__archive_object(const dt_archive *a, int64_t i, const dt__source *source);
DT__INSIDE void        dt__archive_set_object(dt_archive *a, int64_t i, void *object); /* of the same source */
DT__INSIDE int         dt__archive_set_string(const char *call, dt_archive *a, const char *key, const char *value);
DT__INSIDE int         dt__archive_write(const char *call, dt_archive *a, const char *path);
DT__INSIDE int         dt__archive_write_fd(const char *call, dt_archive *a, int fd); /* as it is: nothing is synced */

/* ---- files. Unless stated otherwise: returns 0, or a negative status after dt_fail. */
DT__INSIDE int  dt__file_probe(const char *call, const char *path); /* tests with a temporary file if it can be written */
DT__INSIDE int  dt__file_remove(const char *path);                  /* as unlink: 0, or -1 and errno */
DT__INSIDE int  dt__dir_make(const char *call, char *dir);          /* creates missing parents too, as mkdir -p */
/* Calls 'each' for each name in the directory until it returns nonzero. A missing directory counts as empty. */
DT__INSIDE int  dt__dir_each(const char *call, const char *dir, int (*each)(void *user, const char *name), void *user);
/* The id of the process that made a temporary file, from the part of its name after the final name; 0: not a temporary
   file. */
DT__INSIDE long dt__temp_owner(const char *tail);
/* Removes a temporary file unless process pid is alive or the file is locked. Returns true if it was removed. */
DT__INSIDE bool dt__temp_remove(const char *path, long pid);

#ifdef __cplusplus
}
#endif
#endif /* DT__IO_INSIDE */

#if defined(DT_IO_IMPLEMENTATION) && !defined(DT__IO_IMPLEMENTED)
#define DT__IO_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__BASE_IMPLEMENTED)
#error "dt_io.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_IO_IMPLEMENTATION"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dt_io.h: safetensors files are little-endian; big-endian machines are not supported"
#endif

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(IO);
DT__NEEDS(IO, BASE);

DT__SLOW_BEGIN
/* ==================================================================================================== >>checksum
   CRC32C (Castagnoli), reflected: by the SSE4.2 instruction if the CPU has it, otherwise by eight tables. */
static uint32_t       dt__crc_table[8][256];
static int            dt__crc_instruction;
static pthread_once_t dt__crc_once = PTHREAD_ONCE_INIT;
static void           dt__crc_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = (c >> 1) ^ (c & 1 ? 0x82f63b78u : 0);
        dt__crc_table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) {
            uint32_t c = dt__crc_table[t - 1][i];
            dt__crc_table[t][i] = (c >> 8) ^ dt__crc_table[0][c & 255];
        }
#if defined(__x86_64__)
    dt__crc_instruction = __builtin_cpu_supports("sse4.2") != 0;
#endif
}
static uint32_t dt__crc_soft(uint32_t crc, const uint8_t *p, size_t n)
{
    uint32_t(*t)[256] = dt__crc_table;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= crc;
        crc = t[7][lo & 255] ^ t[6][(lo >> 8) & 255] ^ t[5][(lo >> 16) & 255] ^ t[4][lo >> 24] ^ t[3][hi & 255] ^
              t[2][(hi >> 8) & 255] ^ t[1][(hi >> 16) & 255] ^ t[0][hi >> 24];
    }
    while (n--) crc = (crc >> 8) ^ t[0][(crc ^ *p++) & 255];
    return crc;
}
#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t dt__crc_hard(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t c = crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        c = _mm_crc32_u64(c, x);
    }
    crc = (uint32_t)c;
    while (n--) crc = _mm_crc32_u8(crc, *p++);
    return crc;
}
#endif
/* crc: the checksum of the bytes before these; 0 at the start */
static uint32_t dt__crc32c(uint32_t crc, const void *data, size_t n)
{
    const uint8_t *p = (const uint8_t *)data;
    pthread_once(&dt__crc_once, dt__crc_init);
#if defined(__x86_64__)
    if (dt__crc_instruction) return ~dt__crc_hard(~crc, p, n);
#endif
    return ~dt__crc_soft(~crc, p, n);
}

/* The checksum of bytes of which the first have the checksum a, and the n that follow have b: a times x^8n modulo the polynomial,
   plus b. A polynomial has its highest power in bit 0. */
static uint32_t dt__crc_times(uint32_t a, uint32_t b)
{
    uint32_t r = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) { /* powers of a, from x^0 on; b is multiplied by x each time */
        if (a & bit) r ^= b;
        b = (b >> 1) ^ (b & 1 ? 0x82f63b78u : 0);
    }
    return r;
}
static uint32_t dt__crc_join(uint32_t a, uint32_t b, uint64_t n)
{
    uint32_t power = 0x00800000u; /* x^8 */
    for (; n; n >>= 1) {
        if (n & 1) a = dt__crc_times(a, power);
        power = dt__crc_times(power, power);
    }
    return a ^ b;
}

/* ==================================================================================================== >>archive
   A safetensors file: 8 bytes N (little-endian), N bytes of JSON padded with spaces, then the data. The reader trusts
   nothing in the file. It parses the header in one pass without recursion and uses memory of a few times the header's
   size. It finds duplicates and overlaps by sorting, since a file could be made to collide in a hash table. It checks every
   product for overflow before using it as a size, and the checksum last. Files written by dt have the metadata
   "dt.crc32c": the CRC32C of the whole file, computed with '0' for each of its 8 digits. */
#define DT__HEADER_MAX 100000000
#define DT__ARCHIVE_VERSION "1"

typedef struct dt__stored_type {
    char name[16];
    int  bits;  /* of an element */
    int  dtype; /* dt's dtype for it; -1: dt has no such dtype */
} dt__stored_type;
static const dt__stored_type dt__stored_types[] = { /* dt's dtypes come first, in the order of dt_dtype */
    { "F32", 32, DT_F32 },    { "F16", 16, DT_F16 },    { "BF16", 16, DT_BF16 },     { "I32", 32, DT_I32 },
    { "I64", 64, DT_I64 },    { "U8", 8, DT_U8 },       { "BOOL", 8, DT_U8 },        { "F64", 64, -1 },
    { "I8", 8, -1 },          { "I16", 16, -1 },        { "U16", 16, -1 },           { "U32", 32, -1 },
    { "U64", 64, -1 },        { "F8_E4M3", 8, -1 },     { "F8_E5M2", 8, -1 },        { "F8_E8M0", 8, -1 },
    { "F8_E4M3FNUZ", 8, -1 }, { "F8_E5M2FNUZ", 8, -1 }, { "F4", 4, -1 },             { "F6_E2M3", 6, -1 },
    { "F6_E3M2", 6, -1 },     { "C64", 64, -1 },
};
typedef struct dt__item { /* a tensor of an archive */
    char             *name;
    uint32_t          len;
    uint8_t           kind, ndim;
    uint8_t           finite; /* writing: a NaN or an infinity is an error */
    int64_t           dim[DT_MAX_DIMS];
    uint64_t          begin, end; /* byte offsets in the data; writing: 0 and the number of bytes */
    void             *object;     /* writing: where the bytes come from */
    const dt__source *source;     /* writing: how to get the bytes of 'object' */
} dt__item;
typedef struct dt__meta {
    char    *key, *value;
    uint32_t len;     /* of the key */
    uint32_t at;      /* reading: file offset of the value's text */
} dt__meta;
typedef struct dt__map { /* a mapped file; the archive and each tensor that is a view of it hold a reference */
    void   *base;
    size_t  nbytes;
    int32_t refs;
} dt__map;
struct dt_archive {
    int            writing;
    dt__map       *map;
    const uint8_t *base;
    size_t         nbytes, data; /* size of the file; offset of its data */
    char          *text;         /* reading: all names, keys and values, each ends with a 0 */
    size_t         text_len, text_cap;
    dt__item      *item;
    int64_t        nitems, item_cap;
    dt__meta      *meta;
    int64_t        nmetas, meta_cap;
    uint32_t      *by_name, *by_key; /* reading: indices of items and metas in sorted order */
    dt_status      code;             /* reading: DT_OK, or the first error, whose text is 'why' */
    char           why[sizeof ((dt__why *)0)->text];
};

static int dt__bad(dt_archive *a, const char *format, ...) DT__PRINTF(2, 3);
static int dt__bad(dt_archive *a, const char *format, ...)
{
    va_list ap;
    if (a->code != DT_OK) return -1;
    va_start(ap, format);
    vsnprintf(a->why, sizeof a->why, format, ap);
    va_end(ap);
    a->code = DT_ERR_FILE;
    return -1;
}
static int dt__bad_memory(dt_archive *a, size_t nbytes)
{
    dt__bad(a, "out of memory for %zu bytes", nbytes);
    a->code = DT_ERR_MEMORY;
    return -1;
}
DT__INSIDE void *dt__archive_hold(dt_archive *a)
{
    if (a->map) __atomic_add_fetch(&a->map->refs, 1, __ATOMIC_RELAXED);
    return a->map;
}
DT__INSIDE void dt__archive_release(void *hold)
{
    dt__map *map = (dt__map *)hold;
    if (!map || __atomic_sub_fetch(&map->refs, 1, __ATOMIC_ACQ_REL)) return;
    munmap(map->base, map->nbytes);
    dt_mem_free(map, sizeof *map);
}
DT_API void dt_archive_free(dt_archive *a)
{
    if (!a) return;
    for (int64_t i = 0; a->writing && i < a->nitems; i++) {
        a->item[i].source->release(a->item[i].object, (size_t)a->item[i].end);
        dt_mem_free(a->item[i].name, a->item[i].len + 1u);
    }
    for (int64_t i = 0; a->writing && i < a->nmetas; i++) {
        dt_mem_free(a->meta[i].value, strlen(a->meta[i].value) + 1);
        dt_mem_free(a->meta[i].key, a->meta[i].len + 1u);
    }
    dt_mem_free(a->by_name, (size_t)a->nitems * sizeof *a->by_name);
    dt_mem_free(a->by_key, (size_t)a->nmetas * sizeof *a->by_key);
    dt_mem_free(a->item, (size_t)a->item_cap * sizeof *a->item);
    dt_mem_free(a->meta, (size_t)a->meta_cap * sizeof *a->meta);
    dt_mem_free(a->text, a->text_cap);
    dt__archive_release(a->map);
    dt_mem_free(a, sizeof *a);
}

/* ---- sorting: returns the indices 0 .. n-1 in sorted order, by a stable merge sort that is fast on sorted input */
typedef int (*dt__order_fn)(const void *ctx, uint32_t x, uint32_t y);
static void dt__merge(uint32_t *v, uint32_t *tmp, int64_t lo, int64_t mid, int64_t hi, dt__order_fn cmp,
                      const void *ctx)
{
    int64_t i = lo, k = mid, n = lo;
    if (mid >= hi || cmp(ctx, v[mid - 1], v[mid]) <= 0) return;
    while (i < mid || k < hi) tmp[n++] = k >= hi || (i < mid && cmp(ctx, v[i], v[k]) <= 0) ? v[i++] : v[k++];
    memcpy(v + lo, tmp + lo, (size_t)(hi - lo) * sizeof *v);
}
static uint32_t *dt__sorted(int64_t n, dt__order_fn cmp, const void *ctx) /* NULL: out of memory */
{
    size_t    nbytes = (size_t)n * sizeof(uint32_t);
    uint32_t *v = (uint32_t *)dt_mem_alloc(nbytes), *tmp = (uint32_t *)dt_mem_alloc(nbytes);
    for (int64_t i = 0; v && i < n; i++) v[i] = (uint32_t)i;
    for (int64_t w = 1; v && tmp && w < n; w *= 2)
        for (int64_t lo = 0; lo < n; lo += 2 * w)
            dt__merge(v, tmp, lo, lo + w < n ? lo + w : n, lo + 2 * w < n ? lo + 2 * w : n, cmp, ctx);
    if (!tmp) {
        dt_mem_free(v, nbytes);
        v = NULL;
    }
    dt_mem_free(tmp, nbytes);
    return v;
}
static int dt__text_order(const char *x, uint32_t nx, const char *y, uint32_t ny)
{
    int c = memcmp(x, y, nx < ny ? nx : ny);
    return c ? c : nx < ny ? -1 : nx > ny;
}
static int dt__name_order(const void *ctx, uint32_t x, uint32_t y)
{
    const dt__item *it = ((const dt_archive *)ctx)->item;
    return dt__text_order(it[x].name, it[x].len, it[y].name, it[y].len);
}
static int dt__key_order(const void *ctx, uint32_t x, uint32_t y)
{
    const dt__meta *m = ((const dt_archive *)ctx)->meta;
    return dt__text_order(m[x].key, m[x].len, m[y].key, m[y].len);
}
static int dt__offset_order(const void *ctx, uint32_t x, uint32_t y)
{
    const dt__item *a = &((const dt_archive *)ctx)->item[x], *b = &((const dt_archive *)ctx)->item[y];
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* ==================================================================================================== >>json
   Parsing the header. Strings are unescaped into a->text, which is as long as the header and therefore long enough. */
typedef struct dt__json {
    dt_archive    *a;
    const uint8_t *start, *p, *end;
} dt__json;
static int dt__json_bad(dt__json *j, const char *what)
{
    return dt__bad(j->a, "header, byte %zu: %s", (size_t)(j->p - j->start), what);
}
static void dt__json_space(dt__json *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r')) j->p++;
}
static int dt__json_mark(dt__json *j, char mark, const char *what)
{
    dt__json_space(j);
    if (j->p == j->end) return dt__json_bad(j, "the header ends too early");
    if (*j->p != (uint8_t)mark) return dt__json_bad(j, what);
    j->p++;
    return 0;
}
/* 1: another member or element begins; 0: the closing mark was read; -1: an error */
static int dt__json_more(dt__json *j, char close, int first)
{
    dt__json_space(j);
    if (j->p == j->end) return dt__json_bad(j, "the header ends too early");
    if (*j->p == (uint8_t)close) {
        j->p++;
        return 0;
    }
    if (first) return 1;
    return dt__json_mark(j, ',', "a comma or the end of the list is expected") ? -1 : 1;
}
static void dt__json_put(dt_archive *a, uint32_t c) /* as UTF-8, which is never longer than the escape */
{
    char *t = a->text + a->text_len;
    if (c < 0x80) {
        t[0] = (char)c;
        a->text_len += 1;
    } else if (c < 0x800) {
        t[0] = (char)(0xc0 | c >> 6);
        t[1] = (char)(0x80 | (c & 63));
        a->text_len += 2;
    } else if (c < 0x10000) {
        t[0] = (char)(0xe0 | c >> 12);
        t[1] = (char)(0x80 | (c >> 6 & 63));
        t[2] = (char)(0x80 | (c & 63));
        a->text_len += 3;
    } else {
        t[0] = (char)(0xf0 | c >> 18);
        t[1] = (char)(0x80 | (c >> 12 & 63));
        t[2] = (char)(0x80 | (c >> 6 & 63));
        t[3] = (char)(0x80 | (c & 63));
        a->text_len += 4;
    }
}
static int dt__json_hex4(dt__json *j, uint32_t *x)
{
    *x = 0;
    for (int i = 0; i < 4; i++) {
        int c = j->p < j->end ? *j->p : 0, low = c | 0x20;
        int v = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (v < 0) return dt__json_bad(j, "\\u needs four hexadecimal digits");
        *x = *x << 4 | (uint32_t)v;
        j->p++;
    }
    return 0;
}
static int dt__json_escape(dt__json *j) /* after the backslash */
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t          x, y;
    int               c = j->p < j->end ? *j->p : 0;
    const char       *at = c ? strchr(from, c) : NULL;
    if (at) {
        j->p++;
        dt__json_put(j->a, (uint32_t)to[at - from]);
        return 0;
    }
    if (c != 'u') return dt__json_bad(j, "an escape that JSON does not have");
    j->p++;
    if (dt__json_hex4(j, &x)) return -1;
    if (x == 0) return dt__json_bad(j, "a NUL in a string");
    if (x >= 0xdc00 && x < 0xe000) return dt__json_bad(j, "the second half of a surrogate pair without its first");
    if (x >= 0xd800 && x < 0xdc00) {
        if (j->end - j->p < 2 || j->p[0] != '\\' || j->p[1] != 'u')
            return dt__json_bad(j, "the first half of a surrogate pair without its second");
        j->p += 2;
        if (dt__json_hex4(j, &y)) return -1;
        if (y < 0xdc00 || y >= 0xe000)
            return dt__json_bad(j, "the first half of a surrogate pair without its second");
        x = 0x10000 + ((x - 0xd800) << 10) + (y - 0xdc00);
    }
    dt__json_put(j->a, x);
    return 0;
}
static int dt__json_string(dt__json *j, char **out, uint32_t *len)
{
    dt_archive *a = j->a;
    size_t      from = a->text_len;
    if (dt__json_mark(j, '"', "a string is expected")) return -1;
    while (j->p < j->end && *j->p != '"') {
        size_t n = dt__utf8_len(j->p, (size_t)(j->end - j->p));
        if (*j->p == '\\') {
            j->p++;
            if (dt__json_escape(j)) return -1;
            continue;
        }
        if (*j->p < 0x20) return dt__json_bad(j, "a control character in a string");
        if (!n) return dt__json_bad(j, "a string is not UTF-8");
        memcpy(a->text + a->text_len, j->p, n);
        a->text_len += n;
        j->p += n;
    }
    if (j->p == j->end) return dt__json_bad(j, "a string does not end");
    j->p++;
    *out = a->text + from;
    *len = (uint32_t)(a->text_len - from);
    a->text[a->text_len++] = 0;
    return 0;
}
static int dt__json_uint(dt__json *j, uint64_t *x)
{
    dt__json_space(j);
    const uint8_t *from = j->p;
    *x = 0;
    for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++)
        if (__builtin_mul_overflow(*x, (uint64_t)10, x) || __builtin_add_overflow(*x, (uint64_t)(*j->p - '0'), x))
            return dt__json_bad(j, "a number above 2^64-1");
    if (j->p == from || (*from == '0' && j->p - from > 1)) return dt__json_bad(j, "a whole number is expected");
    return 0;
}
static int dt__json_shape(dt__json *j, dt__item *it)
{
    int more, n = 0;
    if (dt__json_mark(j, '[', "'[' of a shape is expected")) return -1;
    while ((more = dt__json_more(j, ']', n == 0)) > 0) {
        uint64_t x;
        if (dt__json_uint(j, &x)) return -1;
        if (n == DT_MAX_DIMS)
            return dt__bad(j->a, "tensor %s has more than %d dimensions", dt__show(it->name), DT_MAX_DIMS);
        if (x > INT64_MAX) return dt__bad(j->a, "tensor %s: dimension %d is too large", dt__show(it->name), n);
        it->dim[n++] = (int64_t)x;
    }
    it->ndim = (uint8_t)n;
    return more;
}
static int dt__json_offsets(dt__json *j, dt__item *it)
{
    if (dt__json_mark(j, '[', "'[' of data_offsets is expected") || dt__json_uint(j, &it->begin) ||
        dt__json_mark(j, ',', "data_offsets are two numbers") || dt__json_uint(j, &it->end))
        return -1;
    return dt__json_mark(j, ']', "data_offsets are two numbers");
}
static int dt__json_kind(dt__json *j, dt__item *it)
{
    char    *s;
    uint32_t len, n = (uint32_t)(sizeof dt__stored_types / sizeof dt__stored_types[0]), k = 0;
    if (dt__json_string(j, &s, &len)) return -1;
    while (k < n && strcmp(dt__stored_types[k].name, s)) k++;
    if (k == n)
        return dt__bad(j->a, "tensor %s has dtype %s, which safetensors does not have", dt__show(it->name),
                       dt__show(s));
    it->kind = (uint8_t)k;
    return 0;
}
static int dt__json_tensor(dt__json *j, dt__item *it)
{
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    int                      more, seen = 0, k;
    if (dt__json_mark(j, '{', "'{' of a tensor is expected")) return -1;
    for (int first = 1; (more = dt__json_more(j, '}', first)) > 0; first = 0) {
        size_t   keep = j->a->text_len; /* keys and dtypes are not kept */
        char    *s;
        uint32_t len;
        if (dt__json_string(j, &s, &len)) return -1;
        for (k = 0; k < 3 && strcmp(keys[k], s); k++) {}
        if (k == 3)
            return dt__bad(j->a, "tensor %s has a key %s, which safetensors does not have", dt__show(it->name),
                           dt__show(s));
        if (seen & 1 << k) return dt__bad(j->a, "tensor %s has two keys %s", dt__show(it->name), keys[k]);
        seen |= 1 << k;
        if (dt__json_mark(j, ':', "':' is expected") ||
            (k == 0 ? dt__json_kind(j, it) : k == 1 ? dt__json_shape(j, it) : dt__json_offsets(j, it)))
            return -1;
        j->a->text_len = keep;
    }
    for (k = 0; !more && k < 3; k++)
        if (!(seen & 1 << k)) return dt__bad(j->a, "tensor %s has no %s", dt__show(it->name), keys[k]);
    return more;
}
static int dt__json_metadata(dt__json *j)
{
    dt_archive *a = j->a;
    int         more;
    if (dt__json_mark(j, '{', "'{' of __metadata__ is expected")) return -1;
    for (int first = 1; (more = dt__json_more(j, '}', first)) > 0; first = 0) {
        dt__meta *m = (dt__meta *)dt__enlarge(a->meta, a->nmetas, &a->meta_cap, sizeof *m);
        uint32_t  len;
        if (!m) return dt__bad_memory(a, 2 * (size_t)a->meta_cap * sizeof *m);
        a->meta = m;
        m += a->nmetas;
        if (dt__json_string(j, &m->key, &m->len) || dt__json_mark(j, ':', "':' is expected")) return -1;
        dt__json_space(j);
        if (j->p < j->end && *j->p != '"') return dt__bad(a, "__metadata__ %s is not a string", dt__show(m->key));
        m->at = (uint32_t)(j->p + 1 - a->base);
        if (dt__json_string(j, &m->value, &len)) return -1;
        a->nmetas++;
    }
    return more;
}
static int dt__json_header(dt__json *j)
{
    dt_archive *a = j->a;
    int         more, metas = 0;
    if (j->p == j->end || *j->p != '{') return dt__bad(a, "the header does not begin with '{': not a safetensors file");
    j->p++;
    for (int first = 1; (more = dt__json_more(j, '}', first)) > 0; first = 0) {
        char    *name;
        uint32_t len;
        if (dt__json_string(j, &name, &len) || dt__json_mark(j, ':', "':' is expected")) return -1;
        if (!strcmp(name, "__metadata__")) {
            if (metas++) return dt__bad(a, "__metadata__ occurs twice");
            if (dt__json_metadata(j)) return -1;
            continue;
        }
        if (a->nitems == a->item_cap) return dt__json_bad(j, "more tensors than the header has room for");
        dt__item *it = &a->item[a->nitems++];
        it->name = name;
        it->len = len;
        if (dt__json_tensor(j, it)) return -1;
    }
    while (!more && j->p < j->end && *j->p == ' ') j->p++;
    if (!more && j->p < j->end) return dt__json_bad(j, "there is text after the end of the JSON");
    return more;
}

/* ==================================================================================================== >>reading
   Checks the header against the file, then answers queries. */
static int dt__check_item(dt_archive *a, const dt__item *it)
{
    const dt__stored_type *k = &dt__stored_types[it->kind];
    int64_t         n = dt__count(it->dim, it->ndim, 8);
    uint64_t        data = a->nbytes - a->data, need = n < 0 ? 0 : (uint64_t)n * (uint64_t)k->bits;
    const char     *shape = dt__shape_text(it->dim, it->ndim);
    if (n < 0) return dt__bad(a, "tensor %s: shape %s overflows", dt__show(it->name), shape);
    if (it->end < it->begin)
        return dt__bad(a, "tensor %s ends at byte %" PRIu64 ", before it begins at %" PRIu64, dt__show(it->name),
                       it->end, it->begin);
    if (it->end - it->begin > UINT64_MAX / 8 || need != (it->end - it->begin) * 8)
        return dt__bad(a, "tensor %s: %s of shape %s has %" PRIu64 " bytes, but its data_offsets span %" PRIu64,
                       dt__show(it->name), k->name, shape, (need + 7) / 8, it->end - it->begin);
    if (it->end > data)
        return dt__bad(a, "tensor %s ends at byte %" PRIu64 " of %" PRIu64 " bytes of data: the file is truncated",
                       dt__show(it->name), it->end, data);
    return 0;
}
static int dt__check_offsets(dt_archive *a) /* each byte of the data belongs to exactly one tensor */
{
    size_t    nbytes = (size_t)a->nitems * sizeof(uint32_t);
    uint32_t *order = dt__sorted(a->nitems, dt__offset_order, a);
    uint64_t  at = 0;
    if (!order) return dt__bad_memory(a, 2 * nbytes);
    for (int64_t i = 0; i < a->nitems; i++) {
        const dt__item *it = &a->item[order[i]];
        if (it->begin < at)
            dt__bad(a, "tensor %s begins at byte %" PRIu64 ", inside %s, which ends at %" PRIu64, dt__show(it->name),
                    it->begin, dt__show(a->item[order[i - 1]].name), at);
        else if (it->begin > at)
            dt__bad(a, "a gap of %" PRIu64 " bytes in the data before tensor %s", it->begin - at, dt__show(it->name));
        if (a->code != DT_OK) break;
        at = it->end;
    }
    dt_mem_free(order, nbytes);
    if (a->code == DT_OK && at != a->nbytes - a->data)
        dt__bad(a, "%" PRIu64 " bytes after the last tensor", (uint64_t)(a->nbytes - a->data) - at);
    return a->code == DT_OK ? 0 : -1;
}
static int dt__check_names(dt_archive *a)
{
    a->by_name = dt__sorted(a->nitems, dt__name_order, a);
    a->by_key = dt__sorted(a->nmetas, dt__key_order, a);
    if (!a->by_name || !a->by_key) return dt__bad_memory(a, (size_t)(a->nitems + a->nmetas) * 8);
    for (int64_t i = 1; i < a->nitems; i++)
        if (!dt__name_order(a, a->by_name[i - 1], a->by_name[i]))
            return dt__bad(a, "tensor %s occurs twice", dt__show(a->item[a->by_name[i]].name));
    for (int64_t i = 1; i < a->nmetas; i++)
        if (!dt__key_order(a, a->by_key[i - 1], a->by_key[i]))
            return dt__bad(a, "__metadata__ %s occurs twice", dt__show(a->meta[a->by_key[i]].key));
    return 0;
}
static const dt__meta *dt__meta_find(const dt_archive *a, const char *key)
{
    uint32_t len = (uint32_t)strlen(key);
    int64_t  lo = 0, hi = a->by_key ? a->nmetas : 0;
    while (lo < hi) {
        const dt__meta *m = &a->meta[a->by_key[(lo + hi) / 2]];
        int             c = dt__text_order(key, len, m->key, m->len);
        if (!c) return m;
        if (c < 0) hi = (lo + hi) / 2;
        else lo = (lo + hi) / 2 + 1;
    }
    for (int64_t i = a->writing ? a->nmetas : 0; i-- > 0;) /* the last value that was set */
        if (!strcmp(a->meta[i].key, key)) return &a->meta[i];
    return NULL;
}
static void dt__forget(dt_archive *a, size_t from,
                       size_t to) /* whole pages of 64 KiB of the file, which were not written to */
{
    const size_t page = 65536;
    from = (from + page - 1) & ~(page - 1);
    to &= ~(page - 1);
    if (a->map && from < to) madvise((char *)a->map->base + from, to - from, MADV_DONTNEED);
}
DT__INSIDE void dt__archive_forget(dt_archive *a, int64_t i)
{
    if (i >= 0 && i < a->nitems && a->map) dt__forget(a, a->data + a->item[i].begin, a->data + a->item[i].end);
}
static int dt__check_sum(dt_archive *a)
{
    const dt__meta *version = dt__meta_find(a, "dt.version"), *sum = dt__meta_find(a, "dt.crc32c");
    if (!version && !sum) return 0; /* written by another program */
    if (!version) return dt__bad(a, "dt.crc32c without dt.version: the file is damaged");
    if (strcmp(version->value, DT__ARCHIVE_VERSION))
        return dt__bad(a, "dt.version is %s, this dt reads version " DT__ARCHIVE_VERSION, dt__show(version->value));
    if (!sum) return dt__bad(a, "dt.version without dt.crc32c: the file is damaged");
    if (strlen(sum->value) != 8 || strspn(sum->value, "0123456789abcdef") != 8 ||
        memcmp(a->base + sum->at, sum->value, 8)) /* no escapes: exactly 8 bytes are replaced by '0' below */
        return dt__bad(a, "dt.crc32c %s is not 8 digits: the file is damaged", dt__show(sum->value));
    char     text[16];
    uint32_t crc = dt__crc32c(0, a->base, sum->at);
    crc = dt__crc32c(crc, "00000000", 8);
    const size_t piece = (size_t)8 << 20; /* of a mapped file only so much is in memory at a time */
    for (size_t at = sum->at + 8, n; at < a->nbytes; at += n) {
        n = a->nbytes - at < piece ? a->nbytes - at : piece;
        crc = dt__crc32c(crc, a->base + at, n);
        if (a->map && at + n >= a->data) dt__forget(a, at > a->data ? at : a->data, at + n);
    }
    snprintf(text, sizeof text, "%08" PRIx32, crc);
    if (strcmp(text, sum->value))
        return dt__bad(a, "its checksum is %s, but it says %s: the file is damaged", text, sum->value);
    return 0;
}
/* Parses and checks a file in memory. The memory must stay valid while the archive is used. */
static int dt__archive_parse(dt_archive *a, const uint8_t *base, size_t nbytes)
{
    uint64_t n = 0;
    a->base = base;
    a->nbytes = nbytes;
    if (nbytes < 8) return dt__bad(a, "%zu bytes are too few for a safetensors file", nbytes);
    memcpy(&n, base, 8);
    static const struct { const char *magic, *what; } others[] = {
        { "PK\003\004", "a PyTorch archive (.pt); save the tensors with safetensors.torch.save_file(model.state_dict(), path)" },
        { "\200\002", "a Python pickle (.pt, .pkl); save the tensors with safetensors.torch.save_file(model.state_dict(), path)" },
        { "\211HDF", "an HDF5 file; save the tensors with safetensors" },
        { "\223NUMPY", "a NumPy file; open it with dt_npy_open (dt_data.h)" },
        { "GGUF", "a GGUF file; save the tensors with safetensors" }
    };
    for (size_t i = 0; i < DT__COUNT_OF(others); i++)
        if (n > DT__HEADER_MAX && !memcmp(base, others[i].magic, strlen(others[i].magic)))
            return dt__bad(a, "it is %s", others[i].what);
    if (n > DT__HEADER_MAX)
        return dt__bad(a, "a header of %" PRIu64 " bytes is above the limit of %d: not a safetensors file", n,
                       DT__HEADER_MAX);
    if (n > nbytes - 8)
        return dt__bad(a, "a header of %" PRIu64 " bytes does not fit a file of %zu bytes: it is truncated", n, nbytes);
    a->data = 8 + (size_t)n;
    int64_t braces = 0, most = (int64_t)n / 48 + 1; /* a tensor takes at least 48 bytes of JSON */
    for (uint64_t i = 0; i < n; i++) braces += base[8 + i] == '{';
    a->item_cap = braces < most ? braces : most;
    a->item = (dt__item *)dt__alloc_zero((size_t)a->item_cap * sizeof *a->item);
    a->text_cap = (size_t)n + 1;
    a->text = (char *)dt_mem_alloc(a->text_cap);
    if (!a->item || !a->text) return dt__bad_memory(a, (size_t)a->item_cap * sizeof *a->item + a->text_cap);
    dt__json j;
    j.a = a;
    j.start = j.p = base + 8;
    j.end = base + a->data;
    if (dt__json_header(&j) || dt__check_names(a)) return -1;
    for (int64_t i = 0; i < a->nitems; i++)
        if (dt__check_item(a, &a->item[i])) return -1;
    return dt__check_offsets(a) || dt__check_sum(a) ? -1 : 0;
}
static int dt__archive_map(dt_archive *a, int fd) /* closes fd */
{
    struct stat st;
    if (fd < 0) return dt__bad(a, "%s", strerror(errno));
    if (fstat(fd, &st)) dt__bad(a, "%s", strerror(errno));
    else if (!S_ISREG(st.st_mode)) dt__bad(a, S_ISDIR(st.st_mode) ? "is a directory" : "is not a regular file");
    else if (st.st_size < 8) dt__bad(a, "%d bytes are too few for a safetensors file", (int)st.st_size);
    else if (!(a->map = (dt__map *)dt__alloc_zero(sizeof *a->map))) dt__bad_memory(a, sizeof *a->map);
    else {
        a->map->refs = 1;
        a->map->nbytes = (size_t)st.st_size;
        a->map->base = mmap(NULL, a->map->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
        if (a->map->base == MAP_FAILED) {
            dt__bad(a, "mmap of %zu bytes: %s", a->map->nbytes, strerror(errno));
            dt_mem_free(a->map, sizeof *a->map);
            a->map = NULL;
        }
    }
    close(fd);
    return a->map ? dt__archive_parse(a, (const uint8_t *)a->map->base, a->map->nbytes) : -1;
}
DT__INSIDE dt_archive *dt__archive_load_fd(int fd, dt__why *why)
{
    dt_archive *a = (dt_archive *)dt__alloc_zero(sizeof *a);
    if (a && !dt__archive_map(a, fd)) return a;
    if (!a && fd >= 0) close(fd);
    why->code = a ? a->code : DT_ERR_MEMORY;
    snprintf(why->text, sizeof why->text, "%s", a ? a->why : "out of memory");
    dt_archive_free(a);
    return NULL;
}
DT__INSIDE dt_archive *dt__archive_load(const char *path, dt__why *why)
{
    return dt__archive_load_fd(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), why); /* a FIFO must not block */
}
DT_API dt_archive *dt_archive_open(const char *path)
{
    dt__why why;
    if (dt__err.code != DT_OK) return NULL;
    if (!path) {
        dt_fail(DT_ERR_ARG, "dt_archive_open: path is NULL");
        return NULL;
    }
    dt_archive *a = dt__archive_load(path, &why);
    if (!a) dt_fail(why.code, "dt_archive_open: %.400s: %s", path, why.text);
    return a;
}

/* ---- queries */
DT_API int64_t     dt_archive_count(const dt_archive *a) { return a ? a->nitems : 0; }
DT_API const char *dt_archive_name(const dt_archive *a, int64_t i)
{
    return a && i >= 0 && i < a->nitems ? a->item[i].name : NULL;
}
DT_API bool dt_archive_info(const dt_archive *a, int64_t i, dt_archive_entry *out)
{
    if (!a || !out || i < 0 || i >= a->nitems) return false;
    const dt__item *it = &a->item[i];
    const dt__stored_type *k = &dt__stored_types[it->kind];
    out->name = it->name;
    out->stored = k->name;
    out->known = k->dtype >= 0;
    out->dtype = (dt_dtype)(k->dtype < 0 ? 0 : k->dtype);
    memset(&out->shape, 0, sizeof out->shape);
    out->shape.ndim = it->ndim;
    memcpy(out->shape.dim, it->dim, sizeof it->dim);
    out->nbytes = (size_t)(it->end - it->begin);
    return true;
}
DT_API const void *dt_archive_data(const dt_archive *a, int64_t i)
{
    return a && !a->writing && i >= 0 && i < a->nitems ? a->base + a->data + a->item[i].begin : NULL;
}
DT__INSIDE void *dt__archive_object(const dt_archive *a, int64_t i, const dt__source *source)
{
    return a->writing && a->item[i].source == source ? a->item[i].object : NULL;
}
DT__INSIDE void dt__archive_set_object(dt_archive *a, int64_t i, void *object) { a->item[i].object = object; }
DT_API int64_t dt_archive_find(const dt_archive *a, const char *name)
{
    if (!a || !name) return -1;
    size_t  len = strlen(name);
    int64_t lo = 0, hi = a->by_name && len <= DT__HEADER_MAX ? a->nitems : 0;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        int     c = dt__text_order(name, (uint32_t)len, a->item[a->by_name[mid]].name, a->item[a->by_name[mid]].len);
        if (!c) return a->by_name[mid];
        if (c < 0) hi = mid;
        else lo = mid + 1;
    }
    for (int64_t i = 0; a->writing && i < a->nitems; i++)
        if (!strcmp(a->item[i].name, name)) return i;
    return -1;
}
DT_API const char *dt_archive_key(const dt_archive *a, int64_t i)
{
    return a && i >= 0 && i < a->nmetas ? a->meta[i].key : NULL;
}
DT_API const char *dt_archive_get_string(const dt_archive *a, const char *key)
{
    const dt__meta *m = a && key ? dt__meta_find(a, key) : NULL;
    return m ? m->value : NULL;
}
DT__INSIDE int64_t dt__archive_need(const char *call, const dt_archive *a, const char *name)
{
    if (dt__err.code != DT_OK) return -1;
    if (!a || !name) return dt_fail(DT_ERR_ARG, "%s: the %s is NULL", call, a ? "name" : "archive"), -1;
    if (a->writing)
        return dt_fail(DT_ERR_STATE, "%s: the archive is being written; open a file with dt_archive_open()", call), -1;
    int64_t i = dt_archive_find(a, name);
    if (i < 0)
        dt_fail(DT_ERR_ARG, "%s: no tensor %s among the archive's %" PRId64 " tensors; dt_archive_find() returns -1 "
                "instead of an error", call, dt__show(name), a->nitems);
    return i;
}

/* ==================================================================================================== >>files
   All system calls go through one table, so that a test can make any of them fail. Several threads may write archives at
   the same time. dt__temp_lock protects the interval between the creation and the locking of a temporary file: it is held
   while one is created and locked, and while a stale one is removed. Without it, a thread that removes stale files could
   lock and remove a file that another thread has created but not yet locked. */
static int dt__fs_open(const char *path, int flags, unsigned mode) { return open(path, flags, (mode_t)mode); }
static struct dt__files {
    int (*open)(const char *path, int flags, unsigned mode);
    int (*flock)(int fd, int how);
    ssize_t (*write)(int fd, const void *data, size_t nbytes);
    ssize_t (*pwrite)(int fd, const void *data, size_t nbytes, off_t at);
    int (*fsync)(int fd);
    int (*close)(int fd);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    DIR *(*opendir)(const char *path);
    struct dirent *(*readdir)(DIR *d);
    int (*closedir)(DIR *d);
} dt__fs = { dt__fs_open, flock,  write,  pwrite, fsync,   close,
             rename,      unlink, mkdir, opendir, readdir, closedir };
static pthread_mutex_t dt__temp_lock = PTHREAD_MUTEX_INITIALIZER;

static int dt__file_fail(const char *call, const char *path, const char *op)
{
    int         e = errno;
    const char *remedy = "";
    if (e == ENOSPC || e == EDQUOT) remedy = "; free space there";
    else if (e == EACCES || e == EPERM) remedy = "; the directory must be writable";
    else if (e == EROFS) remedy = "; choose a directory on a file system that is not read-only";
    else if (e == ENOENT || e == ENOTDIR) remedy = "; create its directory first";
    else if (e == EIO) remedy = "; the device may be failing: data that was not synced is lost";
    else if (e == EMFILE || e == ENFILE) remedy = "; close files, or raise the limit of open files";
    return dt_fail(DT_ERR_FILE, "%s: %.400s: %s: %s%s", call, path, op, strerror(e), remedy);
}
static int dt__write_all(int fd, const void *data, size_t n, int64_t at) /* at < 0: at the file position; 0, or -1 and errno */
{
    const char *p = (const char *)data;
    while (n) {
        size_t  some = n < (size_t)1 << 30 ? n : (size_t)1 << 30;
        ssize_t k = at < 0 ? dt__fs.write(fd, p, some) : dt__fs.pwrite(fd, p, some, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k == 0) errno = EIO;
        if (k <= 0) return -1;
        p += k;
        n -= (size_t)k;
        if (at >= 0) at += k;
    }
    return 0;
}
static int dt__sync_dir(const char *call, const char *path) /* syncs the directory that holds path */
{
    size_t len = strlen(path) + 2;
    char  *dir = (char *)dt_mem_alloc(len), *slash;
    if (!dir) return dt_fail(DT_ERR_MEMORY, "%s: out of memory for a path", call);
    memcpy(dir, path, len - 1);
    slash = strrchr(dir, '/');
    if (!slash) strcpy(dir, ".");
    else slash[slash == dir] = 0;
    int fd = dt__fs.open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), rc = 0;
    if (fd < 0) rc = dt__file_fail(call, dir, "written, but its directory cannot be opened to sync it");
    /* some file systems cannot fsync a directory */
    else if (dt__fs.fsync(fd) && errno != EINVAL && errno != ENOTSUP)
        rc = dt__file_fail(call, dir, "written, but fsync of its directory");
    if (fd >= 0) dt__fs.close(fd);
    dt_mem_free(dir, len);
    return rc;
}

/* ---- temporary files are named path.tmp-PID-COUNT and are locked while they are written */
struct dt__out_file {
    const char     *call, *path;
    char           *temp;
    size_t          temp_len;
    int             fd;
    uint32_t        crc;
    const dt__item *item; /* whose bytes are being written */
    size_t          sent; /* bytes of the item written so far */
    int64_t         at;   /* where in the file the next bytes go; -1: behind the others */
};
static void dt__temp_begin(dt__out_file *o, const char *call, const char *path)
{
    memset(o, 0, sizeof *o);
    o->call = call;
    o->path = path;
    o->fd = -1;
    o->at = -1;
}
static int dt__temp_open(dt__out_file *o)
{
    static int count;
    struct stat st;
    if (!stat(o->path, &st) && !S_ISREG(st.st_mode))
        return dt_fail(DT_ERR_FILE, "%s: %.400s exists and is not a regular file; choose another name", o->call, o->path);
    o->temp_len = strlen(o->path) + 48;
    o->temp = (char *)dt_mem_alloc(o->temp_len);
    if (!o->temp) return dt_fail(DT_ERR_MEMORY, "%s: out of memory for a path", o->call);
    pthread_mutex_lock(&dt__temp_lock);
    for (int tries = 0; o->fd < 0 && tries < 100; tries++) {
        snprintf(o->temp, o->temp_len, "%s.tmp-%ld-%d", o->path, (long)getpid(), ++count);
        o->fd = dt__fs.open(o->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (o->fd < 0 && errno != EEXIST && errno != EINTR) break;
    }
    int e = errno;
    if (o->fd >= 0) dt__fs.flock(o->fd, LOCK_EX | LOCK_NB); /* if it fails, the process id still protects it */
    pthread_mutex_unlock(&dt__temp_lock);
    errno = e;
    return o->fd < 0 ? dt__file_fail(o->call, o->temp, "open") : 0;
}
/* Removes the temporary file unless it was renamed. */
static void dt__temp_end(dt__out_file *o)
{
    if (o->temp && o->fd >= 0) dt__fs.unlink(o->temp);
    if (o->fd >= 0) dt__fs.close(o->fd);
    dt_mem_free(o->temp, o->temp_len);
}
DT__INSIDE int dt__file_probe(const char *call, const char *path)
{
    dt__out_file o;
    dt__temp_begin(&o, call, path);
    int rc = dt__temp_open(&o);
    dt__temp_end(&o);
    return rc;
}
DT__INSIDE long dt__temp_owner(const char *tail)
{
    long pid = 0;
    int  count, used = 0;
    return sscanf(tail, ".tmp-%ld-%d%n", &pid, &count, &used) == 2 && !tail[used] && pid > 0 ? pid : 0;
}
DT__INSIDE bool dt__temp_remove(const char *path, long pid)
{
    bool gone = false;
    pthread_mutex_lock(&dt__temp_lock);
    if (pid == (long)getpid() || (kill((pid_t)pid, 0) && errno == ESRCH)) {
        /* O_RDWR: on NFS an exclusive lock is a record lock, which needs a descriptor that may write */
        int fd = dt__fs.open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0);
        gone = fd >= 0 && !dt__fs.flock(fd, LOCK_EX | LOCK_NB) && !dt__fs.unlink(path);
        if (fd >= 0) dt__fs.close(fd);
    }
    pthread_mutex_unlock(&dt__temp_lock);
    return gone;
}

/* ---- directories */
DT__INSIDE int dt__file_remove(const char *path) { return dt__fs.unlink(path); }
DT__INSIDE int dt__dir_make(const char *call, char *dir)
{
    for (char *p = dir + 1;; p++) {
        char c = *p;
        if (c && c != '/') continue;
        *p = 0;
        if (!dt__fs.mkdir(dir, 0777)) dt__sync_dir(call, dir);
        else if (errno != EEXIST && (!c || errno != EROFS)) dt__file_fail(call, dir, "mkdir");
        *p = c;
        if (!c || dt__err.code != DT_OK) return dt__err.code;
    }
}
DT__INSIDE int dt__dir_each(const char *call, const char *dir, int (*each)(void *user, const char *name), void *user)
{
    DIR *d = dt__fs.opendir(dir);
    int  rc = 0;
    if (!d) return errno == ENOENT ? 0 : dt__file_fail(call, dir, "opendir");
    while (!rc) {
        errno = 0;
        struct dirent *e = dt__fs.readdir(d);
        if (!e && errno) rc = dt__file_fail(call, dir, "readdir");
        if (!e) break;
        rc = each(user, e->d_name);
    }
    dt__fs.closedir(d);
    return rc;
}

/* ==================================================================================================== >>writing
   Writes the header, then the bytes of each tensor, into a temporary file, and renames it at the end. */
static void dt__header_string(dt__text_buf *b, const char *s)
{
    char text[8];
    dt__text_put(b, "\"");
    for (; *s; s++) {
        unsigned c = (unsigned char)*s;
        if (c == '"' || c == '\\') snprintf(text, sizeof text, "\\%c", (int)c);
        else if (c < 0x20) snprintf(text, sizeof text, "\\u%04x", c);
        else text[0] = (char)c, text[1] = 0;
        dt__text_put(b, text);
    }
    dt__text_put(b, "\"");
}
static void dt__header_numbers(dt__text_buf *b, const int64_t *x, int n)
{
    for (int i = 0; i < n; i++) {
        if (i) dt__text_put(b, ",");
        dt__text_int(b, x[i]);
    }
}
static void dt__header_metadata(dt_archive *a, const uint32_t *keys, dt__text_buf *b, int64_t *crc_at)
{
    dt__text_put(b, "{\"__metadata__\":{");
    if (!dt__meta_find(a, "format")) dt__text_put(b, "\"format\":\"pt\",");
    dt__text_put(b, "\"dt.version\":\"" DT__ARCHIVE_VERSION "\",\"dt.crc32c\":\"");
    *crc_at = 8 + (int64_t)b->n;
    dt__text_put(b, "00000000\"");
    for (int64_t i = 0; i < a->nmetas; i++) {
        if (i + 1 < a->nmetas && !dt__key_order(a, keys[i], keys[i + 1])) continue; /* a later value replaces it */
        dt__text_put(b, ",");
        dt__header_string(b, a->meta[keys[i]].key);
        dt__text_put(b, ":");
        dt__header_string(b, a->meta[keys[i]].value);
    }
    dt__text_put(b, "}");
}
static void dt__header_tensors(dt_archive *a, const uint32_t *order, dt__text_buf *b)
{
    int64_t place[2] = { 0, 0 };
    for (int64_t i = 0; i < a->nitems; i++) {
        const dt__item *it = &a->item[order[i]];
        place[0] = place[1];
        place[1] += (int64_t)it->end;
        dt__text_put(b, ",");
        dt__header_string(b, it->name);
        dt__text_put(b, ":{\"dtype\":\"");
        dt__text_put(b, dt__stored_types[it->kind].name);
        dt__text_put(b, "\",\"shape\":[");
        dt__header_numbers(b, it->dim, it->ndim);
        dt__text_put(b, "],\"data_offsets\":[");
        dt__header_numbers(b, place, 2);
        dt__text_put(b, "]}");
    }
    dt__text_put(b, "}");
    while (!b->failed && (8 + b->n) % 64) dt__text_put(b, " ");
}
/* Wide elements first: then each tensor's offset is a multiple of its element size. */
static int dt__width_order(const void *ctx, uint32_t x, uint32_t y)
{
    const dt__item *it = ((const dt_archive *)ctx)->item;
    return dt__stored_types[it[y].kind].bits - dt__stored_types[it[x].kind].bits;
}
static int dt__archive_header(const char *call, dt_archive *a, const uint32_t *order, dt__text_buf *b, int64_t *crc_at)
{
    size_t    nbytes = (size_t)a->nitems * sizeof(uint32_t);
    uint32_t *names = dt__sorted(a->nitems, dt__name_order, a);
    uint32_t *keys = dt__sorted(a->nmetas, dt__key_order, a);
    int       rc = 0;
    for (int64_t i = 1; names && i < a->nitems; i++)
        if (!dt__name_order(a, names[i - 1], names[i])) {
            rc = dt_fail(DT_ERR_ARG, "%s: tensor %s was added twice; names must be unique", call,
                         dt__show(a->item[names[i]].name));
            break;
        }
    if (!rc && names && keys) {
        dt__header_metadata(a, keys, b, crc_at);
        dt__header_tensors(a, order, b);
    }
    if (!rc && (!names || !keys || b->failed)) rc = dt_fail(DT_ERR_MEMORY, "%s: out of memory for the header", call);
    if (!rc && b->n > DT__HEADER_MAX)
        rc = dt_fail(DT_ERR_ARG, "%s: the header would have %zu bytes; safetensors allows %d", call, b->n,
                     DT__HEADER_MAX);
    dt_mem_free(names, nbytes);
    dt_mem_free(keys, (size_t)a->nmetas * sizeof *keys);
    return rc;
}

/* ---- the file */
static int dt__put(dt__out_file *o, const void *data, size_t n)
{
    o->crc = dt__crc32c(o->crc, data, n);
    if (dt__write_all(o->fd, data, n, o->at)) return dt__file_fail(o->call, o->path, "write");
    if (o->at >= 0) o->at += (int64_t)n;
    return 0;
}
/* Index of the first of n elements that is not finite, or -1. */
static int64_t dt__not_finite(const void *data, int dtype, int64_t n)
{
    if (dtype > DT_BF16) return -1;
    uint32_t        bad = 0, top = dtype == DT_BF16 ? 0x7f80 : 0x7c00;
    const uint32_t *w = (const uint32_t *)data;
    const uint16_t *h = (const uint16_t *)data;
    if (dtype == DT_F32)
        for (int64_t i = 0; i < n; i++) bad |= (w[i] & 0x7f800000u) == 0x7f800000u;
    else
        for (int64_t i = 0; i < n; i++) bad |= (h[i] & top) == top;
    for (int64_t i = 0; bad && i < n; i++)
        if (dtype == DT_F32 ? (w[i] & 0x7f800000u) == 0x7f800000u : (h[i] & top) == top) return i;
    return -1;
}
DT__INSIDE int dt__out_bytes(dt__out_file *o, const void *data, size_t nbytes)
{
    const dt__item *it = o->item;
    const char     *p = (const char *)data;
    const size_t    each = dt__dtype_size[it->kind];
    const size_t    piece = (size_t)1 << 20; /* bytes; stay in the cache for the check, the checksum and the write */
    for (size_t at = 0; at < nbytes; at += piece) {
        size_t  n = nbytes - at < piece ? nbytes - at : piece;
        int64_t i = it->finite ? dt__not_finite(p + at, it->kind, (int64_t)(n / each)) : -1;
        if (i >= 0)
            return dt_fail(DT_ERR_STATE, "%s: element %" PRId64 " of %s is not finite; nothing was saved "
                           "(.allow_nonfinite = true saves it)", o->call, i + (int64_t)((o->sent + at) / each),
                           dt__show(it->name));
        if (dt__put(o, p + at, n)) return DT_ERR_FILE;
    }
    o->sent += nbytes;
    return 0;
}
static int dt__put_item(dt__out_file *o, const dt_archive *a, int64_t i)
{
    dt_archive_entry e;
    dt_archive_info(a, i, &e);
    o->item = &a->item[i];
    o->sent = 0;
    return o->item->source->send(o, o->call, &e, o->item->object);
}
static int dt__put_all(dt__out_file *o, dt_archive *a, const uint32_t *order) /* opens the file if it is not open */
{
    dt__text_buf b = { NULL, 0, 0, false };
    int64_t      crc_at = 0;
    int          rc = dt__archive_header(o->call, a, order, &b, &crc_at);
    uint64_t     n = b.n;
    char         text[16];
    if (!rc && o->fd < 0) rc = dt__temp_open(o);
    if (!rc) rc = dt__put(o, &n, 8);
    if (!rc) rc = dt__put(o, b.s, b.n);
    dt__text_free(&b);
    for (int64_t i = 0; !rc && i < a->nitems; i++) rc = dt__put_item(o, a, order[i]);
    if (rc) return rc;
    snprintf(text, sizeof text, "%08" PRIx32, o->crc);
    return dt__write_all(o->fd, text, 8, crc_at) ? dt__file_fail(o->call, o->path, "write") : 0;
}
static int dt__put_archive(dt__out_file *o, dt_archive *a, const uint32_t *order)
{
    int rc = dt__put_all(o, a, order);
    if (rc) return rc;
    /* After a failed fsync the kernel marks the pages as clean, and a second fsync would succeed without writing them: do
       not retry. */
    if (dt__fs.fsync(o->fd)) return dt__file_fail(o->call, o->path, "fsync");
    if (dt__fs.rename(o->temp, o->path)) return dt__file_fail(o->call, o->path, "rename");
    dt_mem_free(o->temp, o->temp_len);
    o->temp = NULL;
    return 0;
}
DT__INSIDE int dt__archive_write(const char *call, dt_archive *a, const char *path)
{
    dt__out_file o;
    uint32_t    *order = dt__sorted(a->nitems, dt__width_order, a);
    if (!order) return dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " tensors", call, a->nitems);
    dt__temp_begin(&o, call, path);
    int rc = dt__put_archive(&o, a, order);
    dt__temp_end(&o);
    dt_mem_free(order, (size_t)a->nitems * sizeof *order);
    return rc ? rc : dt__sync_dir(call, path);
}
DT__INSIDE int dt__archive_write_fd(const char *call, dt_archive *a, int fd)
{
    dt__out_file o;
    uint32_t    *order = dt__sorted(a->nitems, dt__width_order, a);
    if (!order) return dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " tensors", call, a->nitems);
    dt__temp_begin(&o, call, "memory");
    o.fd = fd;
    int rc = dt__put_all(&o, a, order);
    o.fd = -1;
    dt__temp_end(&o);
    dt_mem_free(order, (size_t)a->nitems * sizeof *order);
    return rc;
}
/* ---- a file that ranks write together: rank 0 makes the temporary file and its header, every rank writes its segments and syncs
   them, rank 0 adds the checksum, which is joined from those of the segments, and renames the file. Each part ends with an outcome,
   so that all ranks go on or all stop, and the file has its name only when all of it is on the disk. */
typedef struct dt__joint {
    const dt__writers *w;
    dt__out_file       o;
    uint32_t          *order, *crc; /* crc: of the header, then of each segment, 0 if it is another rank's */
    int64_t            ncrc;
    uint64_t           head; /* bytes before the data */
    int64_t            crc_at;
} dt__joint;
static int dt__joint_header(dt__joint *j, dt_archive *a)
{
    dt__text_buf b = { NULL, 0, 0, false };
    int          rc = dt__archive_header(j->o.call, a, j->order, &b, &j->crc_at);
    uint64_t     n = b.n;
    if (!rc) rc = dt__temp_open(&j->o);
    if (!rc) rc = dt__put(&j->o, &n, 8);
    if (!rc) rc = dt__put(&j->o, b.s, b.n);
    j->head = 8 + n;
    dt__text_free(&b);
    return rc;
}
/* Where the file is, to all ranks; all must have the same tensors in the same order. */
static int dt__joint_open(dt__joint *j, const dt_archive *a)
{
    const dt__writers *w = j->w;
    uint64_t           about[3], mine;
    uint32_t           sum = 0;
    for (int64_t i = 0; i < a->nitems; i++) {
        const dt__item *it = &a->item[j->order[i]];
        sum = dt__crc32c(dt__crc32c(sum, it->name, it->len), &it->end, sizeof it->end);
    }
    about[0] = j->head;
    about[1] = w->rank ? 0 : strlen(j->o.temp) + 1;
    about[2] = mine = (uint64_t)a->nitems << 32 | sum;
    if (w->tell(w->comm, j->o.call, about, sizeof about, 0)) return dt__err.code;
    j->head = about[0];
    if (w->rank && !(j->o.temp = (char *)dt_mem_alloc(j->o.temp_len = about[1])))
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for a path", j->o.call);
    if (about[2] != mine)
        dt_fail(DT_ERR_STATE,
                "%s: rank %d saves %" PRId64 " tensors, which differ from rank 0's; all ranks must add the same to a "
                "checkpoint, in the same order",
                j->o.call, w->rank, a->nitems);
    if (w->outcome(w->comm, j->o.call) || w->tell(w->comm, j->o.call, j->o.temp, about[1], 0)) return dt__err.code;
    if (w->rank && (j->o.fd = dt__fs.open(j->o.temp, O_WRONLY | O_CLOEXEC, 0)) < 0)
        return dt_fail(
            DT_ERR_FILE,
            "%s: %.300s, which rank 0 has made: %s; all ranks must see the same files: use a directory that they "
            "share",
            j->o.call, j->o.temp, strerror(errno));
    return 0;
}
/* All segments, in the order of the file. write: those of this rank are written; otherwise they are counted. */
static int dt__joint_segments(dt__joint *j, const dt_archive *a, bool write, uint64_t *joined)
{
    const dt__writers *w = j->w;
    int64_t            k = 1;
    uint64_t           at = j->head;
    int                rc = 0;
    if (joined) *joined = j->crc[0];
    for (int64_t i = 0; i < a->nitems && !rc; i++) {
        const dt__item *it = &a->item[j->order[i]];
        size_t          size = dt__dtype_size[it->kind];
        int64_t         n = (int64_t)(it->end / size), end;
        for (int64_t from = 0; from < n && !rc; from = end, k++) {
            int owner = 0;
            end = it->source == w->source ? w->segment(w->user, it->object, from, &owner) : n;
            if (end <= from || end > n)
                return dt_fail(DT_ERR_STATE, "%s: a segment without an owner; this is a bug in dt", j->o.call);
            if (joined) *joined = dt__crc_join((uint32_t)*joined, j->crc[k], (uint64_t)(end - from) * size);
            if (!write || owner != w->rank) continue;
            j->o.item = it;
            j->o.sent = (size_t)from * size;
            j->o.at = (int64_t)(at + (uint64_t)from * size);
            j->o.crc = 0;
            dt_archive_entry e;
            dt_archive_info(a, j->order[i], &e);
            rc = it->source == w->source ? it->source->range(&j->o, j->o.call, it->object, from, end - from)
                                         : it->source->send(&j->o, j->o.call, &e, it->object);
            j->crc[k] = j->o.crc;
        }
        at += it->end;
    }
    j->ncrc = k;
    return rc;
}
static int dt__joint_end(dt__joint *j, const dt_archive *a) /* rank 0 */
{
    uint64_t crc = 0;
    char     text[16];
    if (dt__joint_segments(j, a, false, &crc)) return dt__err.code;
    snprintf(text, sizeof text, "%08" PRIx32, (uint32_t)crc);
    if (dt__write_all(j->o.fd, text, 8, j->crc_at)) return dt__file_fail(j->o.call, j->o.path, "write");
    if (dt__fs.fsync(j->o.fd)) return dt__file_fail(j->o.call, j->o.path, "fsync");
    if (dt__fs.rename(j->o.temp, j->o.path)) return dt__file_fail(j->o.call, j->o.path, "rename");
    dt_mem_free(j->o.temp, j->o.temp_len);
    j->o.temp = NULL;
    return dt__sync_dir(j->o.call, j->o.path);
}
static int dt__joint_write(dt__joint *j, dt_archive *a)
{
    const dt__writers *w = j->w;
    const char        *call = j->o.call;
    if (dt__err.code == DT_OK && w->rank == 0) dt__joint_header(j, a);
    if (w->outcome(w->comm, call)) return dt__err.code;
    dt__joint_open(j, a);
    if (w->outcome(w->comm, call)) return dt__err.code;
    dt__joint_segments(j, a, false, NULL);
    size_t nbytes = (size_t)j->ncrc * sizeof *j->crc;
    j->crc = (uint32_t *)dt__alloc_zero(nbytes);
    if (!j->crc) dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " checksums", call, j->ncrc);
    else if (w->rank == 0) j->crc[0] = j->o.crc;
    if (dt__err.code == DT_OK && !dt__joint_segments(j, a, true, NULL) && dt__fs.fsync(j->o.fd))
        dt__file_fail(call, j->o.path, "fsync");
    if (!w->outcome(w->comm, call)) w->merge(w->comm, call, j->crc, nbytes);
    if (dt__err.code == DT_OK && w->rank == 0) dt__joint_end(j, a);
    w->outcome(w->comm, call);
    dt_mem_free(j->crc, nbytes);
    return dt__err.code;
}
DT__INSIDE int dt__archive_write_shared(const char *call, dt_archive *a, const char *path, const dt__writers *w)
{
    dt__joint j;
    memset((void *)&j, 0, sizeof j);
    j.w = w;
    dt__temp_begin(&j.o, call, path ? path : "");
    j.order = a ? dt__sorted(a->nitems, dt__width_order, a) : NULL;
    if (!j.order) dt_fail(DT_ERR_MEMORY, "%s: out of memory for the list of tensors", call);
    int rc = dt__joint_write(&j, a);
    if (w->rank) { /* the file is rank 0's */
        if (j.o.fd >= 0) dt__fs.close(j.o.fd);
        dt_mem_free(j.o.temp, j.o.temp_len);
    } else {
        dt__temp_end(&j.o);
    }
    if (j.order) dt_mem_free(j.order, (size_t)a->nitems * sizeof *j.order);
    return rc;
}
/* ---- parcels */
static int64_t *dt__parcel_pairs(const dt__parcel *p) { return (int64_t *)(uintptr_t)(p + 1); }
static uint8_t *dt__parcel_header(const dt__parcel *p) { return (uint8_t *)(dt__parcel_pairs(p) + 2 * p->nseg); }
static int dt__parcel_fill(dt__joint *j, dt_archive *a, int64_t *pair, int64_t *n, int64_t *bytes) /* pair NULL: counts only */
{
    const dt__writers *w = j->w;
    int64_t            at = 0;
    int                rc = 0;
    *n = *bytes = 0;
    for (int64_t i = 0; i < a->nitems && !rc; i++) {
        const dt__item  *it = &a->item[j->order[i]];
        int64_t          size = (int64_t)dt__dtype_size[it->kind], all = (int64_t)it->end / size, end;
        dt_archive_entry e;
        dt_archive_info(a, j->order[i], &e);
        for (int64_t from = 0; from < all && !rc; from = end) {
            int owner = 0;
            end = it->source == w->source ? w->segment(w->user, it->object, from, &owner) : all;
            if (end <= from || end > all) return dt_fail(DT_ERR_STATE, "%s: a segment without an owner; this is a bug in dt", j->o.call);
            if (owner != w->rank) continue;
            if (pair) {
                pair[2 * *n] = at + from * size;
                pair[2 * *n + 1] = (end - from) * size;
                j->o.item = it;
                j->o.sent = (size_t)(from * size);
                rc = it->source == w->source ? it->source->range(&j->o, j->o.call, it->object, from, end - from)
                                             : it->source->send(&j->o, j->o.call, &e, it->object);
            }
            *bytes += (end - from) * size;
            ++*n;
        }
        at += (int64_t)it->end;
    }
    j->head = (uint64_t)at; /* all data */
    return rc;
}
DT__INSIDE dt__parcel *dt__parcel_new(const char *call, dt_archive *a, const dt__writers *w, int fd)
{
    dt__text_buf b = { NULL, 0, 0, false };
    dt__joint    j;
    dt__parcel  *p = NULL;
    int64_t      n = 0, bytes = 0, crc_at = 0;
    memset((void *)&j, 0, sizeof j);
    j.w = w;
    dt__temp_begin(&j.o, call, "memory");
    j.o.fd = fd;
    j.order = dt__sorted(a->nitems, dt__width_order, a);
    int rc = j.order ? dt__archive_header(call, a, j.order, &b, &crc_at) : dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    if (!rc) rc = dt__parcel_fill(&j, a, NULL, &n, &bytes);
    size_t nbytes = sizeof *p + (size_t)n * 16 + 8 + b.n + (size_t)bytes;
    if (!rc && !(p = (dt__parcel *)dt__alloc_zero(nbytes))) rc = dt_fail(DT_ERR_MEMORY, "%s: out of memory for %zu bytes", call, nbytes);
    if (!rc) {
        uint64_t len = b.n;
        p->nbytes = (int64_t)nbytes;
        p->head = 8 + (int64_t)b.n;
        p->nseg = n;
        memcpy(dt__parcel_header(p), &len, 8);
        memcpy(dt__parcel_header(p) + 8, b.s, b.n);
        rc = dt__parcel_fill(&j, a, dt__parcel_pairs(p), &n, &bytes);
        p->data = (int64_t)j.head;
        for (int64_t at = 0, got; !rc && at < bytes; at += got)
            if ((got = pread(fd, dt__parcel_header(p) + p->head + at, (size_t)(bytes - at), (off_t)at)) <= 0)
                rc = dt_fail(DT_ERR_FILE, "%s: a file in memory cannot be read: %s", call, strerror(errno));
    }
    dt__text_free(&b);
    if (j.order) dt_mem_free(j.order, (size_t)a->nitems * sizeof *j.order);
    if (rc && p) dt_mem_free(p, nbytes);
    return rc ? NULL : p;
}
DT__INSIDE bool dt__parcel_ok(const dt__parcel *p, int64_t nbytes)
{
    if (nbytes < (int64_t)sizeof *p || p->nbytes != nbytes || p->nseg < 0 || p->nseg > nbytes / 16 || p->head < 8 || p->data < 0 ||
        p->head > nbytes || p->data > INT64_MAX / 2)
        return false;
    int64_t        left = nbytes - (int64_t)sizeof *p - 16 * p->nseg - p->head;
    const int64_t *pair = dt__parcel_pairs(p);
    for (int64_t i = 0; i < p->nseg && left >= 0; i++) {
        if (pair[2 * i] < 0 || pair[2 * i + 1] < 0 || pair[2 * i] > p->data || pair[2 * i + 1] > p->data - pair[2 * i]) return false;
        left -= pair[2 * i + 1];
    }
    return left == 0;
}
DT__INSIDE bool dt__parcel_put(const dt__parcel *p, const dt__parcel *first, uint8_t *base)
{
    const int64_t *pair = dt__parcel_pairs(p);
    const uint8_t *from = dt__parcel_header(p) + p->head;
    if (p->data != first->data) return false;
    if (p == first) memcpy(base, dt__parcel_header(p), (size_t)p->head);
    for (int64_t i = 0; i < p->nseg; i++) {
        memcpy(base + first->head + pair[2 * i], from, (size_t)pair[2 * i + 1]);
        from += pair[2 * i + 1];
    }
    return true;
}
DT__INSIDE void dt__parcels_end(uint8_t *base, size_t nbytes)
{
    static const char key[] = "\"dt.crc32c\":\"00000000\"";
    char              text[16];
    size_t            at = 8;
    while (at + sizeof key <= nbytes && memcmp(base + at, key, sizeof key - 1)) at++; /* it is near the begin of the header */
    snprintf(text, sizeof text, "%08" PRIx32, dt__crc32c(0, base, nbytes));
    if (at + sizeof key <= nbytes) memcpy(base + at + 13, text, 8);
}
DT_API dt_status dt_archive_write(dt_archive *a, const char *path)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!a || !path) return (dt_status)dt_fail(DT_ERR_ARG, "dt_archive_write: the %s is NULL", a ? "path" : "archive");
    if (!a->writing)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_archive_write: the archive was opened to be read; create one with "
                                  "dt_archive_new()");
    return (dt_status)dt__archive_write("dt_archive_write", a, path);
}

/* ---- adding entries and strings */
DT_API dt_archive *dt_archive_new(void)
{
    if (dt__err.code != DT_OK) return NULL;
    dt_archive *a = (dt_archive *)dt__alloc_zero(sizeof *a);
    if (a) a->writing = 1;
    else dt_fail(DT_ERR_MEMORY, "dt_archive_new: out of memory");
    return a;
}
static int dt__text_ok(const char *call, dt_archive *a, const char *what, const char *s)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!a || !s) return dt_fail(DT_ERR_ARG, "%s: the %s is NULL", call, a ? what : "archive");
    if (!a->writing)
        return dt_fail(DT_ERR_STATE, "%s: the archive was opened to be read; create one with dt_archive_new()", call);
    size_t n = strlen(s), at = 0, k;
    while (at < n && (k = dt__utf8_len((const uint8_t *)s + at, n - at))) at += k;
    if (at < n || n > DT__HEADER_MAX) return dt_fail(DT_ERR_ARG, "%s: the %s %s is not UTF-8", call, what, dt__show(s));
    return 0;
}
DT__INSIDE int dt__archive_put(const char *call, dt_archive *a, const char *name, dt_dtype dtype, dt_shape shape,
                               bool finite, void *object, const dt__source *source)
{
    if (dt__text_ok(call, a, "name", name)) return dt_error_code();
    if (!strcmp(name, "__metadata__"))
        return dt_fail(DT_ERR_ARG, "%s: the name __metadata__ is reserved; choose another", call);
    dt__item *it = a->nitems < INT32_MAX ? (dt__item *)dt__enlarge(a->item, a->nitems, &a->item_cap, sizeof *it) : NULL;
    char     *copy = it ? dt__strdup(name) : NULL;
    if (it) a->item = it;
    if (!copy) return dt_fail(DT_ERR_MEMORY, "%s: out of memory for a name", call);
    it += a->nitems++;
    memset(it, 0, sizeof *it);
    it->name = copy;
    it->len = (uint32_t)strlen(name);
    it->kind = (uint8_t)dtype;
    it->finite = finite;
    it->ndim = (uint8_t)shape.ndim;
    for (int i = 0; i < shape.ndim; i++) it->dim[i] = shape.dim[i];
    it->end = (uint64_t)dt__count(shape.dim, shape.ndim, 1) * dt__dtype_size[dtype];
    it->object = object;
    it->source = source;
    return 0;
}
/* The source of dt_archive_add_data: bytes that the archive owns. */
static int dt__bytes_send(dt__out_file *o, const char *call, const dt_archive_entry *e, void *object)
{
    (void)call;
    return dt__out_bytes(o, object, e->nbytes);
}
static const dt__source dt__bytes_source = { dt__bytes_send, dt_mem_free, NULL };
DT_API dt_status dt_archive_add_data(dt_archive *a, const char *name, dt_dtype dtype, dt_shape shape, const void *data)
{
    static const char call[] = "dt_archive_add_data";
    if (dt__err.code != DT_OK) return dt__err.code;
    if (shape.ndim < 0 || shape.ndim > DT_MAX_DIMS)
        return (dt_status)dt_fail(DT_ERR_SHAPE, "%s: %d dimensions; a tensor has 0 to %d", call, shape.ndim,
                                  DT_MAX_DIMS);
    if ((unsigned)dtype >= DT_DTYPE_COUNT) return (dt_status)dt_fail(DT_ERR_DTYPE, "%s: %d is not a dtype of dt_dtype", call,
                                                                     (int)dtype);
    int64_t n = dt__count(shape.dim, shape.ndim, dt__dtype_size[dtype]);
    if (n < 0)
        return (dt_status)dt_fail(DT_ERR_SHAPE, "%s: shape %s of %s has a negative dimension or is too large", call,
                                  dt__shape_text(shape.dim, shape.ndim), dt_dtype_name(dtype));
    if (!data && n) return (dt_status)dt_fail(DT_ERR_ARG, "%s: data is NULL for shape %s", call,
                                              dt__shape_text(shape.dim, shape.ndim));
    size_t nbytes = (size_t)n * dt__dtype_size[dtype];
    void  *copy = dt_mem_alloc(nbytes);
    if (!copy) return (dt_status)dt_fail(DT_ERR_MEMORY, "%s: out of memory for %zu bytes", call, nbytes);
    if (nbytes) memcpy(copy, data, nbytes);
    int rc = dt__archive_put(call, a, name, dtype, shape, false, copy, &dt__bytes_source);
    if (rc) dt_mem_free(copy, nbytes);
    return (dt_status)rc;
}
DT__INSIDE int dt__archive_set_string(const char *call, dt_archive *a, const char *key, const char *value)
{
    if (dt__text_ok(call, a, "key", key) || dt__text_ok(call, a, "value", value)) return dt_error_code();
    dt__meta *m = a->nmetas < INT32_MAX ? (dt__meta *)dt__enlarge(a->meta, a->nmetas, &a->meta_cap, sizeof *m) : NULL;
    if (m) a->meta = m;
    char *k = m ? dt__strdup(key) : NULL, *v = k ? dt__strdup(value) : NULL;
    if (!v) {
        dt_mem_free(k, strlen(key) + 1);
        return dt_fail(DT_ERR_MEMORY, "%s: out of memory for a string", call);
    }
    m += a->nmetas++;
    m->key = k;
    m->value = v;
    m->len = (uint32_t)strlen(key);
    m->at = 0;
    return 0;
}
DT_API dt_status dt_archive_set_string(dt_archive *a, const char *key, const char *value)
{
    if (key && (!strcmp(key, "dt.version") || !strcmp(key, "dt.crc32c")))
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_archive_set_string: %s is written by dt itself; choose another key", key);
    return (dt_status)dt__archive_set_string("dt_archive_set_string", a, key, value);
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_IO_IMPLEMENTATION */
