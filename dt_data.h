/* dt_data.h - v0.1.0 - datasets, samplers (also distributed), augmentation, and a loader that fetches ahead */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_data.h"
    In every other file that uses it:           #include "dt_data.h"

    dt.h and dt_cpu.h must lie beside it. Link with -lm -lpthread. With dt_nn.h include both, in any order.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_data.h"
    #include <stdio.h>

    int main(void)
    {
        static uint8_t image[1000][64], label[1000];
        for (int i = 0; i < 1000; i++) {
            label[i] = (uint8_t)(i % 10);
            for (int k = 0; k < 64; k++) image[i][k] = (uint8_t)(i + k);
        }
        dt_dataset *set = dt_arrays(image, 1000, .x_dtype = DT_U8, .x_shape = DT_SHAPE(1, 8, 8), .y = label,
                                    .y_dtype = DT_U8, .classes = 10);
        dt_loader  *in = dt_loader_new(set, .batch = 100, .shuffle = true, .workers = 2, .flip = true);
        double      sum = 0;
        while (dt_loader_epoch(in) < 3)
            for (dt_batch b; dt_loader_next(in, &b); dt_end()) sum += dt_item(dt_mean(b.x));
        printf("%.3f\n", sum / 30);
        dt_loader_free(in);
        dt_dataset_free(set);
        return dt_check("loader");
    }

WHAT IT DOES NOT DO

    No JPEG and no PNG: PGM, PPM and arrays. No resizing of images. No downloads. No streams without a length: a set knows
    how many items it has.

CONTENTS

    >>datasets       files, arrays, callbacks; parts and joins of them
    >>samplers       which items, in which order, on which rank
    >>loaders        batches, fetched ahead and augmented
    >>digest         SHA-256
    >>sets           implementation from here: what a dataset is, reading runs of items
    >>elements       numbers as files store them
    >>files          opening, sizes, patterns, gzip
    >>idx            IDX: MNIST, Fashion-MNIST, EMNIST
    >>npy            NumPy's .npy
    >>records        records of one size: CIFAR-10, CIFAR-100, raw; tokens
    >>folders        PGM and PPM by class
    >>derived        subsets, splits, joins, mean and deviation
    >>sampler        samplers
    >>transform      from stored items to what a net sees
    >>loader         the loader
    >>sha            SHA-256

MACROS

    As in dt.h, and DT_USE_ZLIB: gzipped IDX files are read (link with -lz).

MEMORY

    Files are read through the page cache with pread, so that the ranks of a machine share it; only labels of IDX files and
    gzipped files are held. What a file's header announces is compared with the file's size before anything is
    allocated. A file that shrinks while it is in use is an error that names it, not a signal.

ERRORS, THREADS

    As in dt.h. Errors of a loader's threads are raised by dt_loader_next when their batch is due. A dataset does not
    change once it is made and may be used by several loaders and threads. A loader belongs to one thread at a time.

LICENCE

    MIT, see LICENSE.
*/
#ifndef DT_DATA_H_INCLUDED
#define DT_DATA_H_INCLUDED

#include "dt.h"

#define DT_DATA_VERSION "0.1.0"
#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 1 || DT_VERSION_PATCH != 0
#error "dt_data.h: dt.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>datasets
   A dataset is a number of items; an item is x and perhaps y, each of one dtype and shape for all items. Every call that
   makes one returns NULL after an error, and what it makes is freed with dt_dataset_free; sets made from sets hold
   what they need. Paths may be patterns (shard-*.bin): the files that match, sorted by name, are one set. */
typedef struct dt_dataset dt_dataset;
typedef enum dt_part { DT_TRAIN = 0, DT_TEST = 1 } dt_part;

/* Known sets, by their files' own names in dir. x is u8, y a class as i64.
   mnist (also Fashion-MNIST, KMNIST): train-images-idx3-ubyte ..., t10k-..., or with .gz; x (1, 28, 28), 10 classes
   emnist: emnist-SPLIT-train-images-idx3-ubyte ...; split "letters", "balanced", "digits", "mnist", "byclass", "bymerge";
           images lie on their side, as they are stored; letters count from 1
   cifar10: data_batch_1.bin ... data_batch_5.bin, test_batch.bin; x (3, 32, 32)
   cifar100: train.bin, test.bin; 100 fine or 20 coarse classes */
DT_API dt_dataset *dt_mnist_open(const char *dir, dt_part part);
DT_API dt_dataset *dt_emnist_open(const char *dir, const char *split, dt_part part);
DT_API dt_dataset *dt_cifar10_open(const char *dir, dt_part part);
DT_API dt_dataset *dt_cifar100_open(const char *dir, dt_part part, bool coarse);

/* IDX and .npy: the first dimension counts items. Stored dtypes become the nearest of dt's: i8, i16, u16 are i32; u32 is
   i64; f64 is f32; bool is u8; u64, complex, strings and objects are refused. .npy in Fortran order is refused. */
typedef struct dt_open_opts {
    int         dt__first DT_D;
    const char *labels DT_D;  /* the file or files of y: as many items, as many files */
    int64_t     classes DT_D; /* y is a whole number in 0..classes-1, and i64; default: y is what it is */
} dt_open_opts;
DT_API dt_dataset *dt_idx_open_with(const char *path, dt_open_opts o DT_OPT0(dt_open_opts));
DT_API dt_dataset *dt_npy_open_with(const char *path, dt_open_opts o DT_OPT0(dt_open_opts));

/* Records of one size, one after the other in one or more files. */
typedef struct dt_records_opts {
    int      dt__first DT_D;
    int64_t  nbytes DT_D;     /* of a record; default: to the end of x and y */
    int64_t  skip DT_D;       /* bytes before the first record of each file */
    int64_t  x_at DT_D;       /* where x lies in a record */
    dt_dtype x_dtype DT_D;    /* default f32 */
    dt_shape x_shape DT_D;
    bool     has_y DT_D;
    int64_t  y_at DT_D;
    dt_dtype y_dtype DT_D;
    dt_shape y_shape DT_D;
    int64_t  classes DT_D;    /* y is one whole number in 0..classes-1, and becomes i64 */
    bool     big_endian DT_D;
} dt_records_opts;
DT_API dt_dataset *dt_records_open_with(const char *path, dt_records_opts o DT_OPT0(dt_records_opts));

/* Token files of language models: little-endian numbers. Item i is x = length tokens from i*stride on, y = the same one
   later, both i64. No item spans two files. */
typedef struct dt_tokens_opts {
    int     dt__first DT_D;
    int64_t length DT_D;  /* required */
    int64_t stride DT_D;  /* default length: no token is learnt twice in an epoch */
    int     nbytes DT_D;  /* of a token: 1, 2 or 4; default 2 */
    int64_t skip DT_D;    /* bytes of a header */
    int64_t vocab DT_D;   /* tokens must be below; default: not checked */
} dt_tokens_opts;
DT_API dt_dataset *dt_tokens_open_with(const char *path, dt_tokens_opts o DT_OPT0(dt_tokens_opts));

/* A folder for each class (their names sorted), in it and in folders below it .pgm and .ppm files (binary, P5 or P6, up to
   255), all of one size: x u8 (1 or 3, h, w), y the class. Other files are left alone. */
DT_API dt_dataset *dt_folder_open(const char *dir);

/* Arrays of the program, which must stay: n items, one after the other. */
typedef struct dt_arrays_opts {
    int         dt__first DT_D;
    dt_dtype    x_dtype DT_D; /* default f32 */
    dt_shape    x_shape DT_D; /* of an item */
    const void *y DT_D;
    dt_dtype    y_dtype DT_D;
    dt_shape    y_shape DT_D;
    int64_t     classes DT_D;
} dt_arrays_opts;
DT_API dt_dataset *dt_arrays_with(const void *x, int64_t n, dt_arrays_opts o DT_OPT0(dt_arrays_opts));

/* Items from the program: get(user, i, x, y) fills x and y (y is NULL for a set without) and returns 0, or a negative
   status after dt_fail. It is called by several threads at once. */
typedef struct dt_source_opts {
    int      dt__first DT_D;
    int64_t  n DT_D;
    dt_dtype x_dtype DT_D;
    dt_shape x_shape DT_D;
    bool     has_y DT_D;
    dt_dtype y_dtype DT_D;
    dt_shape y_shape DT_D;
    int64_t  classes DT_D;
    int (*get)(void *user, int64_t i, void *x, void *y) DT_D;
    void (*free)(void *user) DT_D; /* called when the set goes; default: nobody is told */
    void    *user DT_D;
} dt_source_opts;
DT_API dt_dataset *dt_source_with(dt_source_opts o DT_OPT0(dt_source_opts));
#ifdef DT__LIT
#define dt_idx_open(...) dt_idx_open_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_open_opts, __VA_ARGS__, ))
#define dt_npy_open(...) dt_npy_open_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_open_opts, __VA_ARGS__, ))
#define dt_records_open(...) dt_records_open_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_records_opts, __VA_ARGS__, ))
#define dt_tokens_open(...) dt_tokens_open_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_tokens_opts, __VA_ARGS__, ))
#define dt_arrays(x, ...) dt_arrays_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_arrays_opts, __VA_ARGS__, ))
#define dt_source(...) dt_source_with(DT__ONLY(dt_source_opts, __VA_ARGS__))
#endif

typedef struct dt_item_info {
    dt_dtype x_dtype;
    dt_shape x_shape; /* of an item */
    bool     has_y;
    dt_dtype y_dtype;
    dt_shape y_shape;
    int64_t  classes; /* 0: not known */
} dt_item_info;
DT_API void         dt_dataset_free(dt_dataset *s);
DT_API int64_t      dt_dataset_size(const dt_dataset *s);
DT_API dt_item_info dt_dataset_item(const dt_dataset *s);
DT_API dt_status    dt_dataset_get(const dt_dataset *s, int64_t i, void *x, void *y); /* either may be NULL */
DT_API const char  *dt_dataset_class(const dt_dataset *s, int64_t k); /* its folder's name; NULL: it has none */
DT_API int64_t      dt_dataset_shards(const dt_dataset *s);           /* files (of x), joined sets count together; else 1 */
DT_API int64_t      dt_dataset_shard(const dt_dataset *s, int64_t k); /* the first item of shard k; of the last + 1: n */
/* where item i comes from, for messages: "data_batch_2.bin, byte 3073" */
DT_API const char  *dt_dataset_where(const dt_dataset *s, int64_t i, char *buf, size_t nbytes);

DT_API dt_dataset *dt_dataset_range(dt_dataset *s, int64_t from, int64_t n);
DT_API dt_dataset *dt_dataset_subset(dt_dataset *s, const int64_t *index, int64_t n); /* copies index */
DT_API dt_dataset *dt_dataset_concat(dt_dataset *const *sets, int n);
/* n parts at random, as PyTorch's random_split with a generator of that seed. part: numbers of items, or fractions that
   add up to 1. All or nothing. */
DT_API dt_status   dt_dataset_split(dt_dataset *s, const double *part, int n, uint64_t seed, dt_dataset **out);
/* Mean and standard deviation by channel (the first of three dimensions; else there is one) of x, u8 as 0..1. */
DT_API dt_status   dt_dataset_mean_std(const dt_dataset *s, double *mean, double *std, int channels);

/* ---------------------------------------------------------------------------------------------------- >>samplers
   A sampler says which items a rank takes, in which order. It is a pure function of its options, the epoch and the place
   at which the epoch is taken up again. The loader makes one from its own options; by itself it serves other loops.

   Shuffled: a permutation drawn from seed + epoch. Ranks take turns in it: rank r has places r, r + world, ... of the list,
   which is made divisible by repeating its beginning, or with .drop_last by cutting its end: PyTorch's
   DistributedSampler, index by index. With .no_pad nothing is repeated and nothing dropped, so that metrics count
   each item once; ranks may then differ by one item. With .contiguous a rank has a stretch of the set, cut between
   files where there are enough of them, shuffled in itself: each rank reads its own files. */
typedef struct dt_sampler dt_sampler;
typedef struct dt_sampler_opts {
    int            dt__first DT_D;
    bool           shuffle DT_D;
    uint64_t       seed DT_D;
    int            rank DT_D;
    int            world DT_D;       /* default 1 */
    bool           drop_last DT_D;
    bool           no_pad DT_D;
    bool           contiguous DT_D;
    const int64_t *shard DT_D;       /* contiguous: where files begin, nshards + 1 numbers, the last one n; copied */
    int64_t        nshards DT_D;
    const double  *weight DT_D;      /* n weights: items are drawn with replacement, PyTorch's WeightedRandomSampler; copied */
    int64_t        draws DT_D;       /* with weights: how many, all ranks together; default n */
} dt_sampler_opts;
DT_API dt_sampler *dt_sampler_new_with(int64_t n, dt_sampler_opts o DT_OPT0(dt_sampler_opts));
DT_API void        dt_sampler_free(dt_sampler *s);
#ifdef DT__LIT
#define dt_sampler_new(...) dt_sampler_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_sampler_opts, __VA_ARGS__, ))
#endif

/* The place of a training in its data: how far the epoch is, counted over all ranks. It holds for any world size: what
   is left is dealt out anew. Contiguous stretches remember the worlds that took part in the epoch. */
enum { DT_CURSOR_PAST = 5 };
typedef struct dt_cursor {
    int64_t seed, epoch;
    int64_t position;                 /* items taken in this epoch, by all ranks together */
    int64_t n;                        /* of the set; 0: not known */
    int64_t world;                    /* contiguous: the ranks that took them */
    int64_t npast;                    /* contiguous: world sizes before that in this epoch ... */
    int64_t past[2 * DT_CURSOR_PAST]; /* ... and what they took: world, position */
} dt_cursor;
/* Begin at a place (dt_sampler_new: at the beginning of epoch 0). The cursor's seed and n must be the sampler's. */
DT_API dt_status dt_sampler_seek(dt_sampler *s, const dt_cursor *at);
DT_API int64_t   dt_sampler_count(const dt_sampler *s);        /* items of this rank from there to the end of the epoch */
DT_API int64_t   dt_sampler_most(const dt_sampler *s);         /* the same of the rank that has most */
DT_API int64_t   dt_sampler_at(const dt_sampler *s, int64_t i); /* item i of them; -1: out of range */
/* Batch k of this rank: how many items, at most size; 0 behind the last. full: a short last batch is left out. */
DT_API int64_t   dt_sampler_batch(const dt_sampler *s, int64_t k, int64_t size, bool full, int64_t *out);
/* The cursor once each rank has taken 'taken' items of its own; at the end of the epoch that of the next one. */
DT_API dt_cursor dt_sampler_cursor(const dt_sampler *s, int64_t taken);

/* ---------------------------------------------------------------------------------------------------- >>loaders
   Threads read, convert and augment whole batches ahead of time; batches come in the order of the sampler, whatever the
   number of threads. u8 images become f32: v/255, then (v - mean)/std; classes become i64.

   Augmentation, for x of (c, h, w), in this order: a crop of the image's own size from the image with a border of .crop
   black pixels; a flip about the vertical axis for half of the items; normalisation; a square of .cutout pixels about
   a place of the image, as far as it is inside, set to 0; .transform. What is drawn depends on seed, epoch and item
   alone. */
typedef struct dt_loader dt_loader;
typedef struct dt_sample { /* what a transform is told */
    int64_t  item, epoch;
    uint64_t seed;         /* of the loader; dt_philox(seed, counter, out) draws */
    dt_dtype dtype;
    dt_shape shape;
} dt_sample;
typedef struct dt_loader_opts {
    int           dt__first DT_D;
    int64_t       batch DT_D;      /* default 1 */
    bool          shuffle DT_D;
    bool          drop_last DT_D;  /* leave a short last batch out; ranks: cut instead of repeat */
    uint64_t      seed DT_D;       /* of order and augmentation */
    int           rank DT_D;
    int           world DT_D;      /* default 1 */
    bool          no_pad DT_D;     /* evaluation: every item once */
    bool          contiguous DT_D; /* ranks read their own files */
    const double *weight DT_D;     /* one for each item: drawn with replacement */
    int64_t       draws DT_D;
    int           workers DT_D;    /* threads; default 0: the caller does it */
    int           prefetch DT_D;   /* batches ready or on their way; default 2 for each worker */
    double        mean[4] DT_D;    /* by channel; where std[1] is 0 the first ones serve all */
    double        std[4] DT_D;     /* default 1 */
    double        max_value DT_D;  /* of u8 images: what becomes 1; default 255 */
    bool          raw DT_D;        /* x stays as it is stored: no scaling, no normalisation */
    int           crop DT_D;
    bool          flip DT_D;
    int           cutout DT_D;
    int (*transform)(void *user, const dt_sample *s, void *x) DT_D; /* 0, or negative after dt_fail; by several threads */
    void         *user DT_D;
    dt_device    *device DT_D;     /* where batches go; default dt_cpu() */
    const dt_allocator *buffers DT_D; /* memory of batches: pinned, shared; default: the CPU's. Aligned to 64 bytes */
    bool          digest DT_D;     /* SHA-256 of every batch: two ranks that read the same data show the same */
} dt_loader_opts;
DT_API dt_loader *dt_loader_new_with(dt_dataset *set, dt_loader_opts o DT_OPT0(dt_loader_opts));
DT_API void       dt_loader_free(dt_loader *in); /* batches that are out stay valid */
#ifdef DT__LIT
#define dt_loader_new(...) dt_loader_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loader_opts, __VA_ARGS__, ))
#endif

typedef struct dt_batch {
    dt_tensor     *x, *y;    /* of the step; y NULL for a set without */
    int64_t        n;        /* items */
    int64_t        epoch, index; /* index: of the batch in this epoch's run */
    const int64_t *item;     /* their numbers in the set; valid until the next dt_loader_next */
    char           sha256[65]; /* with .digest: of x's bytes, then y's; else "" */
} dt_batch;
/* The next batch; false at the end of an epoch (once: the call after that begins the next one), and with an error
   pending. */
DT_API bool    dt_loader_next(dt_loader *in, dt_batch *b);
DT_API int64_t dt_loader_epoch(const dt_loader *in);   /* whose batch comes next: moves on with an epoch's last batch */
DT_API int64_t dt_loader_batches(const dt_loader *in); /* in a whole epoch */
/* The place behind the batch that was handed out last. It may be saved, and assigned to: a change counts at the next
   dt_loader_next. With dt_nn.h it goes into a checkpoint in one line, and a resume sets it:
       dt_loader_checkpoint(in, c);  */
DT_API dt_cursor *dt_loader_cursor(dt_loader *in);
DT_API dt_tensor *dt_loader_state(dt_loader *in); /* the same as a tensor (i64) of the loader's; NULL after an error */
#define dt_loader_checkpoint(in, c) dt_checkpoint_tensor((c), "data.cursor", dt_loader_state(in))

/* Where the time of the steps went. Seconds since dt_loader_new or the last dt_loader_reset. */
typedef struct dt_loader_stats {
    int64_t batches, items;
    double  wait;     /* the caller waited in dt_loader_next */
    double  elsewhere; /* the caller was elsewhere, between two calls: computing */
    double  busy;     /* threads' time spent making batches, all threads */
    double  needed;   /* items a second the caller would take if it never waited */
    double  able;     /* items a second that the loader can make: with all its threads busy */
    bool    behind;   /* it is the bottleneck: waiting is more than a tenth of the time */
} dt_loader_stats;
DT_API dt_loader_stats dt_loader_get_stats(const dt_loader *in);
DT_API void            dt_loader_reset(dt_loader *in);
/* The same as a line: "data 41 %, compute 59 %: the loader makes 7200 items/s, 17600 would be taken; ...". Seconds spent
   in communication are told by who knows them. Like snprintf. At the end of an epoch in which it was behind, the loader
   logs this line as a warning. */
DT_API size_t          dt_loader_report(const dt_loader *in, double communication, char *buf, size_t nbytes);

/* ---------------------------------------------------------------------------------------------------- >>digest */
typedef struct dt_sha256 {
    uint32_t h[8];
    uint64_t nbytes;
    uint8_t  block[64];
} dt_sha256;
DT_API void dt_sha256_begin(dt_sha256 *s);
DT_API void dt_sha256_add(dt_sha256 *s, const void *data, size_t nbytes);
DT_API void dt_sha256_end(dt_sha256 *s, uint8_t out[32]);

#ifdef __cplusplus
}
#endif
#endif /* DT_DATA_H_INCLUDED */

#if defined(DT_IMPLEMENTATION) && !defined(DT__DATA_H_IMPLEMENTED)
#define DT__DATA_H_IMPLEMENTED

#include <dirent.h>
#include <glob.h>
#include <sys/stat.h>
#ifdef DT_USE_ZLIB
#include <zlib.h>
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dt_data.h: files are read as they lie; big-endian machines are not supported"
#endif

/* ==================================================================================================== >>sets
   A set is a leaf (files, arrays, a callback) or made of others (a selection, a join). Items are read in runs: as many
   neighbours as lie together in one leaf. A set never changes, so threads need no lock. */
enum { DT__SET_FILES = 1, DT__SET_MEMORY, DT__SET_SOURCE, DT__SET_PICK, DT__SET_JOIN };
enum { DT__Y_NONE = 0, DT__Y_RECORD, DT__Y_FILES, DT__Y_FOLDER }; /* files: where y is */
enum { DT__KEEP_OPEN = 256, DT__RUN_BYTES = 1 << 20 };

typedef struct dt__elem { /* a number as it is stored */
    char    kind;         /* 'u', 'i', 'f' (with bf16: 'b') */
    uint8_t size, swap;
} dt__elem;
typedef struct dt__field { /* x or y of an item */
    dt_dtype dtype;
    dt_shape shape;
    int64_t  numel;
    size_t   nbytes;       /* as handed out */
    dt__elem elem;
    size_t   stored;       /* bytes in the file */
    bool     plain;        /* handed out as it is stored */
} dt__field;
typedef struct dt__file {
    char    *path;
    int      fd;           /* -1: opened for each read */
    int64_t  size;         /* when it was opened */
    int64_t  first, n;     /* its items */
    int64_t  base;         /* where they begin */
    uint8_t *held;         /* the whole file, unpacked, or NULL */
    int64_t  label;        /* folders */
} dt__file;
struct dt_dataset {
    int         kind, ykind;
    int32_t     refs;
    int64_t     n, classes;
    bool        has_y;
    dt__field   x, y;
    dt__file   *file, *yfile; /* yfile: of their own, for DT__Y_FILES */
    int64_t     nfiles, nyfiles;
    int64_t     step, ystep;  /* from one item to the next in a file */
    int64_t     x_at, y_at;   /* in a record */
    char      **name;         /* of classes */
    int64_t     nnames;
    const char *xmem, *ymem;  /* arrays */
    int (*get)(void *user, int64_t i, void *x, void *y);
    void (*release)(void *user);
    void       *user;
    dt_dataset **kid;         /* a selection has one */
    int64_t     nkids, from;  /* a selection without an index is a range */
    int64_t    *index, *first; /* first: of each kid in a join, and n */
};

typedef struct dt__mem { /* memory that grows */
    char  *p;
    size_t n;
} dt__mem;
typedef struct dt__run { /* items one after the other, as they are handed out */
    const char *x, *y;
    size_t      xstep, ystep;
} dt__run;

static void dt__mem_free(dt__mem *m)
{
    dt_dealloc(m->p, m->n);
    m->p = NULL;
    m->n = 0;
}
static char *dt__mem_want(const char *call, dt__mem *m, size_t n) /* what was in it is lost */
{
    if (n <= m->n) return m->p;
    dt__mem_free(m);
    m->p = (char *)dt_alloc(n);
    if (m->p) m->n = n;
    else dt_fail(DT_ERR_MEMORY, "%s: out of memory for %zu bytes", call, n);
    return m->p;
}
static char *dt__data_text(const char *s) /* a copy; NULL after dt_fail */
{
    size_t n = strlen(s) + 1;
    char  *p = (char *)dt_alloc(n);
    if (p) memcpy(p, s, n);
    else dt_fail(DT_ERR_MEMORY, "dt_data: out of memory for a name");
    return p;
}
static void dt__data_text_free(char *s)
{
    if (s) dt_dealloc(s, strlen(s) + 1);
}

/* A field as it is handed out: classes are i64. 0, or a status. elem.kind 0: stored as dtype. */
static int dt__field_set(const char *call, const char *what, dt__field *f, dt__elem e, dt_dtype dtype, dt_shape shape,
                         int64_t classes)
{
    static const char kinds[] = { 'f', 'f', 'b', 'i', 'i', 'u' };
    if ((unsigned)dtype >= DT_DTYPE_COUNT) return dt_fail(DT_ERR_ARG, "%s: the dtype of %s is none", call, what);
    if (shape.ndim < 0 || shape.ndim > DT_MAX_DIMS - 1)
        return dt_fail(DT_ERR_SHAPE, "%s: %s has %d dimensions; an item has 0 to %d", call, what, shape.ndim,
                       DT_MAX_DIMS - 1);
    if (!e.kind) {
        e.kind = kinds[dtype];
        e.size = (uint8_t)dt_dtype_nbytes(dtype);
    }
    f->elem = e;
    f->dtype = dtype;
    f->shape = shape;
    f->numel = dt__count(shape.dim, shape.ndim, 8);
    if (f->numel <= 0 || f->numel > INT64_C(1) << 40)
        return dt_fail(DT_ERR_SHAPE, "%s: an item's %s of shape %s is empty or too large", call, what,
                       dt__shape_text(shape.dim, shape.ndim));
    if (classes < 0) return dt_fail(DT_ERR_ARG, "%s: .classes is negative", call);
    if (classes) {
        if (f->numel != 1 || (e.kind != 'u' && e.kind != 'i'))
            return dt_fail(DT_ERR_ARG, "%s: .classes is set, but %s is not one whole number", call, what);
        f->dtype = DT_I64;
    }
    f->stored = (size_t)f->numel * e.size;
    f->nbytes = (size_t)f->numel * dt_dtype_nbytes(f->dtype);
    f->plain = !classes && !e.swap && e.kind == kinds[f->dtype] && e.size == dt_dtype_nbytes(f->dtype);
    return 0;
}
static dt_dataset *dt__set_new(const char *call, int kind)
{
    dt_dataset *s = (dt_dataset *)dt__alloc_zero(sizeof *s);
    if (!s) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    s->kind = kind;
    s->refs = 1;
    return s;
}
static void dt__files_free(dt__file *f, int64_t n)
{
    for (int64_t i = 0; f && i < n; i++) {
        if (f[i].fd >= 0) close(f[i].fd);
        dt__data_text_free(f[i].path);
        dt_dealloc(f[i].held, f[i].held ? (size_t)f[i].size : 0);
    }
    dt_dealloc(f, (size_t)n * sizeof *f);
}
static dt_dataset *dt__set_ref(dt_dataset *s)
{
    __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
    return s;
}
DT_API void dt_dataset_free(dt_dataset *s)
{
    if (!s || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL)) return;
    dt__files_free(s->file, s->nfiles);
    dt__files_free(s->yfile, s->nyfiles);
    for (int64_t i = 0; s->name && i < s->nnames; i++) dt__data_text_free(s->name[i]);
    dt_dealloc(s->name, (size_t)s->nnames * sizeof *s->name);
    for (int64_t i = 0; s->kid && i < s->nkids; i++) dt_dataset_free(s->kid[i]);
    dt_dealloc(s->kid, (size_t)s->nkids * sizeof *s->kid);
    dt_dealloc(s->index, (size_t)s->n * sizeof *s->index);
    dt_dealloc(s->first, (size_t)(s->nkids + 1) * sizeof *s->first);
    if (s->release) s->release(s->user);
    dt_dealloc(s, sizeof *s);
}
/* after making one: NULL and nothing left if an error came up on the way */
static dt_dataset *dt__set_done(dt_dataset *s)
{
    if (dt__tls.code == DT_OK) return s;
    dt_dataset_free(s);
    return NULL;
}

/* the file that has item i: f[k].first <= i < f[k].first + f[k].n */
static int64_t dt__file_of(const dt__file *f, int64_t n, int64_t i)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (f[mid].first <= i) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}
/* the leaf that has item *i of s, and its number there */
static const dt_dataset *dt__set_leaf(const dt_dataset *s, int64_t *i)
{
    for (;;) {
        if (s->kind == DT__SET_PICK) {
            *i = s->index ? s->index[*i] : s->from + *i;
            s = s->kid[0];
        } else if (s->kind == DT__SET_JOIN) {
            int64_t lo = 0, hi = s->nkids - 1;
            while (lo < hi) {
                int64_t mid = lo + (hi - lo + 1) / 2;
                if (s->first[mid] <= *i) lo = mid;
                else hi = mid - 1;
            }
            *i -= s->first[lo];
            s = s->kid[lo];
        } else {
            return s;
        }
    }
}

/* nbytes of the file at 'at'. What cannot be read, or is not there any more, is an error with file and place. */
static int dt__file_read(const char *call, const dt__file *f, int64_t at, void *dst, size_t nbytes)
{
    size_t got = 0;
    int    fd = f->fd, err = 0;
    if (f->held) {
        if (at < 0 || at > f->size || nbytes > (uint64_t)(f->size - at))
            return dt_fail(DT_ERR_FILE, "%s: %.300s ends at byte %" PRId64 ", %zu bytes at %" PRId64 " are wanted", call,
                           f->path, f->size, nbytes, at);
        memcpy(dst, f->held + at, nbytes);
        return 0;
    }
    if (fd < 0 && (fd = open(f->path, O_RDONLY | O_CLOEXEC)) < 0)
        return dt_fail(DT_ERR_FILE, "%s: cannot open %.300s: %s", call, f->path, strerror(errno));
    while (got < nbytes) {
        ssize_t k = pread(fd, (char *)dst + got, nbytes - got, (off_t)(at + (int64_t)got));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            err = k < 0 ? errno : 0;
            break;
        }
        got += (size_t)k;
    }
    if (fd != f->fd) close(fd);
    if (got == nbytes) return 0;
    if (err)
        return dt_fail(DT_ERR_FILE, "%s: %.300s, byte %" PRId64 ": %s", call, f->path, at + (int64_t)got, strerror(err));
    return dt_fail(DT_ERR_FILE, "%s: %.300s ends at byte %" PRId64 ", %zu bytes at %" PRId64 " are expected: it had %"
                   PRId64 " bytes when it was opened and was shortened since", call, f->path, at + (int64_t)got, nbytes,
                   at, f->size);
}

/* where item i of a leaf's x (or y) lies, for messages */
static const char *dt__place(const dt_dataset *s, int64_t i, bool y, char *buf, size_t nbytes)
{
    bool            own = y && s->ykind == DT__Y_FILES;
    const dt__file *f = own ? s->yfile : s->file;
    if (s->kind != DT__SET_FILES) {
        snprintf(buf, nbytes, "item %" PRId64, i);
        return buf;
    }
    f += dt__file_of(f, own ? s->nyfiles : s->nfiles, i);
    int64_t at = f->base + (i - f->first) * (own ? s->ystep : s->step) + (y ? s->y_at : s->x_at);
    snprintf(buf, nbytes, "%.300s, byte %" PRId64, f->path, at);
    return buf;
}

/* y of m items, stored one 'step' after the other, as handed out; classes are checked */
static int dt__convert(void *dst, dt_dtype dtype, const char *src, dt__elem e, int64_t n);
static int dt__labels(const char *call, const dt_dataset *s, int64_t i, int64_t m, const char *src, size_t step, char *dst)
{
    for (int64_t k = 0; k < m; k++) {
        dt__convert(dst + (size_t)k * s->y.nbytes, s->y.dtype, src + (size_t)k * step, s->y.elem, s->y.numel);
        int64_t v = 0;
        if (s->classes) memcpy(&v, dst + (size_t)k * 8, 8);
        if (s->classes && (v < 0 || v >= s->classes)) {
            char where[400];
            return dt_fail(DT_ERR_FILE, "%s: %s: label %" PRId64 ", expected 0 to %" PRId64, call,
                           dt__place(s, i + k, true, where, sizeof where), v, s->classes - 1);
        }
    }
    return 0;
}

/* A run of up to *m items of a leaf from i on; *m becomes how many. What has to be read or converted goes to mem. */
static int dt__run_files(const char *call, const dt_dataset *s, int64_t i, int64_t *m, bool want_y, dt__mem *mem,
                         dt__run *r)
{
    const dt__file *f = s->file + dt__file_of(s->file, s->nfiles, i), *yf = NULL;
    bool            in_record = want_y && s->ykind == DT__Y_RECORD;
    int64_t         lo = s->x_at, hi = s->x_at + (int64_t)s->x.stored, left = f->first + f->n - i, most;
    if (in_record && s->y_at < lo) lo = s->y_at;
    if (in_record && s->y_at + (int64_t)s->y.stored > hi) hi = s->y_at + (int64_t)s->y.stored;
    most = hi - lo >= DT__RUN_BYTES ? 1 : 1 + (DT__RUN_BYTES - (hi - lo)) / s->step;
    if (*m > most) *m = most;
    if (*m > left) *m = left;
    if (want_y && s->ykind == DT__Y_FILES) {
        yf = s->yfile + dt__file_of(s->yfile, s->nyfiles, i);
        if (*m > yf->first + yf->n - i) *m = yf->first + yf->n - i;
    }
    size_t span = (size_t)((*m - 1) * s->step + (hi - lo)), x_at = (span + 63) & ~(size_t)63;
    size_t xn = s->x.plain ? 0 : ((size_t)*m * s->x.nbytes + 63) & ~(size_t)63, yn = want_y ? (size_t)*m * s->y.nbytes : 0;
    size_t raw = yf ? (size_t)*m * (size_t)s->ystep : 0, y_at = x_at + xn, raw_at = (y_at + yn + 63) & ~(size_t)63;
    char  *p = dt__mem_want(call, mem, raw_at + raw);
    if (!p || dt__file_read(call, f, f->base + (i - f->first) * s->step + lo, p, span)) return dt_error_code();
    r->x = p + (s->x_at - lo);
    r->xstep = (size_t)s->step;
    if (!s->x.plain) {
        for (int64_t k = 0; k < *m; k++)
            dt__convert(p + x_at + (size_t)k * s->x.nbytes, s->x.dtype, r->x + k * s->step, s->x.elem, s->x.numel);
        r->x = p + x_at;
        r->xstep = s->x.nbytes;
    }
    if (!want_y) return 0;
    r->y = p + y_at;
    r->ystep = s->y.nbytes;
    if (s->ykind == DT__Y_FOLDER) {
        for (int64_t k = 0; k < *m; k++) {
            int64_t label = s->file[dt__file_of(s->file, s->nfiles, i + k)].label;
            memcpy(p + y_at + (size_t)k * 8, &label, 8);
        }
        return 0;
    }
    if (in_record)
        return dt__labels(call, s, i, *m, p + (s->y_at - lo), (size_t)s->step, p + y_at);
    if (dt__file_read(call, yf, yf->base + (i - yf->first) * s->ystep, p + raw_at, raw)) return dt_error_code();
    return dt__labels(call, s, i, *m, p + raw_at + s->y_at, (size_t)s->ystep, p + y_at);
}
static int dt__set_run(const char *call, const dt_dataset *s, int64_t i, int64_t *m, bool want_y, dt__mem *mem,
                       dt__run *r)
{
    memset(r, 0, sizeof *r);
    want_y = want_y && s->has_y;
    if (s->kind == DT__SET_FILES) return dt__run_files(call, s, i, m, want_y, mem, r);
    if (s->kind == DT__SET_SOURCE) {
        size_t y_at = (s->x.nbytes + 63) & ~(size_t)63;
        char  *p = dt__mem_want(call, mem, y_at + s->y.nbytes + s->y.stored);
        *m = 1;
        if (!p) return dt_error_code();
        char *raw = s->y.plain ? p + y_at : p + y_at + s->y.nbytes;
        int   rc = s->get(s->user, i, p, s->has_y ? raw : NULL);
        if (rc || dt__tls.code != DT_OK)
            return dt_fail(rc < 0 && rc >= DT_ERR_FILE ? (dt_status)rc : DT_ERR_STATE,
                           "%s: the callback failed at item %" PRId64 " with status %d", call, i, rc);
        r->x = p;
        r->xstep = s->x.nbytes;
        r->y = s->has_y ? p + y_at : NULL;
        r->ystep = s->y.nbytes;
        return s->has_y && !s->y.plain ? dt__labels(call, s, i, 1, raw, s->y.stored, p + y_at) : 0;
    }
    if (*m > s->n - i) *m = s->n - i;
    r->x = s->xmem + (size_t)i * s->x.nbytes;
    r->xstep = s->x.nbytes;
    if (!want_y) return 0;
    r->y = s->ymem + (size_t)i * s->y.stored;
    r->ystep = s->y.nbytes;
    if (s->y.plain) return 0;
    if (*m > DT__RUN_BYTES / 8) *m = DT__RUN_BYTES / 8;
    char *p = dt__mem_want(call, mem, (size_t)*m * s->y.nbytes);
    if (!p) return dt_error_code();
    int rc = dt__labels(call, s, i, *m, r->y, s->y.stored, p);
    r->y = p;
    return rc;
}

/* ---- asking */
DT_API int64_t      dt_dataset_size(const dt_dataset *s) { return s ? s->n : 0; }
DT_API dt_item_info dt_dataset_item(const dt_dataset *s)
{
    dt_item_info d;
    memset(&d, 0, sizeof d);
    if (!s) return d;
    d.x_dtype = s->x.dtype;
    d.x_shape = s->x.shape;
    d.has_y = s->has_y;
    d.classes = s->classes;
    if (s->has_y) {
        d.y_dtype = s->y.dtype;
        d.y_shape = s->y.shape;
    }
    return d;
}
static bool dt__set_ok(const char *call, const dt_dataset *s)
{
    if (dt__tls.code != DT_OK) return false;
    if (!s) dt_fail(DT_ERR_ARG, "%s: the dataset is NULL", call);
    return s != NULL;
}
static bool dt__item_ok(const char *call, const dt_dataset *s, int64_t i)
{
    if (!dt__set_ok(call, s)) return false;
    if (i < 0 || i >= s->n)
        dt_fail(DT_ERR_ARG, "%s: item %" PRId64 " is out of range; the set has %" PRId64, call, i, s->n);
    return i >= 0 && i < s->n;
}
DT_API dt_status dt_dataset_get(const dt_dataset *s, int64_t i, void *x, void *y)
{
    static const char call[] = "dt_dataset_get";
    if (!dt__item_ok(call, s, i)) return dt_error_code();
    if (y && !s->has_y) return (dt_status)dt_fail(DT_ERR_ARG, "%s: the set has no y", call);
    dt__mem           mem = { NULL, 0 };
    dt__run           r;
    int64_t           m = 1;
    const dt_dataset *leaf = dt__set_leaf(s, &i);
    if (!dt__set_run(call, leaf, i, &m, y != NULL, &mem, &r)) {
        if (x) memcpy(x, r.x, s->x.nbytes);
        if (y) memcpy(y, r.y, s->y.nbytes);
    }
    dt__mem_free(&mem);
    return dt_error_code();
}
DT_API const char *dt_dataset_class(const dt_dataset *s, int64_t k)
{
    while (s && s->nkids && !s->name) s = s->kid[0];
    return s && s->name && k >= 0 && k < s->nnames ? s->name[k] : NULL;
}
DT_API const char *dt_dataset_where(const dt_dataset *s, int64_t i, char *buf, size_t nbytes)
{
    if (!buf || !nbytes) return "";
    buf[0] = 0;
    if (!s || i < 0 || i >= s->n) return buf;
    s = dt__set_leaf(s, &i);
    return dt__place(s, i, false, buf, nbytes);
}
static bool dt__sharded(const dt_dataset *s) { return s->kind == DT__SET_FILES && s->ykind != DT__Y_FOLDER; }
DT_API int64_t dt_dataset_shards(const dt_dataset *s)
{
    int64_t n = 0;
    if (!s) return 0;
    if (s->kind != DT__SET_JOIN) return dt__sharded(s) ? s->nfiles : 1;
    for (int64_t i = 0; i < s->nkids; i++) n += dt_dataset_shards(s->kid[i]);
    return n;
}
DT_API int64_t dt_dataset_shard(const dt_dataset *s, int64_t k)
{
    int64_t n, at = 0;
    if (!s || k < 0) return -1;
    if (s->kind != DT__SET_JOIN) {
        n = dt_dataset_shards(s);
        return k > n ? -1 : k == n ? s->n : dt__sharded(s) ? s->file[k].first : 0;
    }
    for (int64_t i = 0; i < s->nkids; i++, k -= n, at += s->kid[i - 1]->n)
        if (k < (n = dt_dataset_shards(s->kid[i]))) return at + dt_dataset_shard(s->kid[i], k);
    return k ? -1 : s->n;
}

/* ---- arrays and callbacks */
DT_API dt_dataset *dt_arrays_with(const void *x, int64_t n, dt_arrays_opts o)
{
    static const char call[] = "dt_arrays";
    dt__elem          as_is = { 0, 0, 0 };
    if (dt__tls.code != DT_OK) return NULL;
    if (!x || n < 0) {
        dt_fail(DT_ERR_ARG, "%s: %s", call, x ? "n is negative" : "x is NULL");
        return NULL;
    }
    dt_dataset *s = dt__set_new(call, DT__SET_MEMORY);
    if (!s || dt__field_set(call, "x", &s->x, as_is, o.x_dtype, o.x_shape, 0) ||
        (o.y && dt__field_set(call, "y", &s->y, as_is, o.y_dtype, o.y_shape, o.classes)))
        return dt__set_done(s);
    if (o.classes && !o.y) dt_fail(DT_ERR_ARG, "%s: .classes without .y", call);
    s->n = n;
    s->classes = o.classes;
    s->xmem = (const char *)x;
    s->ymem = (const char *)o.y;
    s->has_y = o.y != NULL;
    return dt__set_done(s);
}
DT_API dt_dataset *dt_source_with(dt_source_opts o)
{
    static const char call[] = "dt_source";
    dt__elem          as_is = { 0, 0, 0 };
    if (dt__tls.code != DT_OK) return NULL;
    if (!o.get || o.n < 0) {
        dt_fail(DT_ERR_ARG, "%s: %s", call, o.get ? ".n is negative" : ".get is NULL");
        return NULL;
    }
    dt_dataset *s = dt__set_new(call, DT__SET_SOURCE);
    if (!s || dt__field_set(call, "x", &s->x, as_is, o.x_dtype, o.x_shape, 0) ||
        (o.has_y && dt__field_set(call, "y", &s->y, as_is, o.y_dtype, o.y_shape, o.classes)))
        return dt__set_done(s);
    if (o.classes && !o.has_y) {
        dt_fail(DT_ERR_ARG, "%s: .classes without .has_y", call);
        return dt__set_done(s);
    }
    s->n = o.n;
    s->classes = o.classes;
    s->has_y = o.has_y;
    s->get = o.get;
    s->user = o.user;
    s->release = o.free; /* from here on: after a failure user stays the caller's */
    return s;
}

/* ==================================================================================================== >>elements
   Numbers as files store them, and the dtype they become. */
static dt_dtype dt__elem_dtype(dt__elem e) /* DT_DTYPE_COUNT: none */
{
    if (e.kind == 'f') return e.size == 2 ? DT_F16 : e.size == 4 || e.size == 8 ? DT_F32 : DT_DTYPE_COUNT;
    if (e.kind == 'b') return DT_BF16;
    if (e.kind == 'u') return e.size == 1 ? DT_U8 : e.size == 2 ? DT_I32 : e.size == 4 ? DT_I64 : DT_DTYPE_COUNT;
    if (e.kind == 'i') return e.size <= 4 ? DT_I32 : e.size == 8 ? DT_I64 : DT_DTYPE_COUNT;
    return DT_DTYPE_COUNT;
}
static uint64_t dt__elem_bits(const char *p, dt__elem e)
{
    uint64_t v = 0;
    memcpy(&v, p, e.size);
    if (!e.swap) return v;
    return __builtin_bswap64(v) >> (64 - 8 * e.size);
}
static int64_t dt__elem_int(const char *p, dt__elem e)
{
    uint64_t v = dt__elem_bits(p, e);
    int      up = 64 - 8 * e.size;
    if (e.kind == 'i') return (int64_t)(v << up) >> up;
    return (int64_t)v;
}
static int dt__convert(void *dst, dt_dtype dtype, const char *src, dt__elem e, int64_t n)
{
    for (int64_t i = 0; i < n; i++, src += e.size) {
        if (e.kind == 'f' || e.kind == 'b') { /* swapped, or f64 to f32 */
            uint64_t bits = dt__elem_bits(src, e);
            double   d;
            float    f;
            memcpy(&d, &bits, 8);
            f = (float)d;
            if (e.size == 8) memcpy((float *)dst + i, &f, 4);
            else memcpy((char *)dst + i * e.size, &bits, e.size);
        } else {
            int64_t v = dt__elem_int(src, e);
            if (dtype == DT_I64) ((int64_t *)dst)[i] = v;
            else if (dtype == DT_I32) ((int32_t *)dst)[i] = (int32_t)v;
            else ((uint8_t *)dst)[i] = (uint8_t)v;
        }
    }
    return 0;
}

/* ==================================================================================================== >>files */
/* ==================================================================================================== >>idx */
/* ==================================================================================================== >>npy */
/* ==================================================================================================== >>records */
/* ==================================================================================================== >>folders */
/* ==================================================================================================== >>derived */
/* ==================================================================================================== >>sampler */
/* ==================================================================================================== >>transform */
/* ==================================================================================================== >>loader */
/* ==================================================================================================== >>sha */

#endif /* DT_IMPLEMENTATION */
