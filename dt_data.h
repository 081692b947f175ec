/* dt_data.h - v0.2.0 - datasets, samplers (also distributed), augmentation, and a loader that fetches ahead */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_data.h"
    In every other file that uses it:           #include "dt_data.h"

    dt_base.h, dt.h and dt_cpu.h must be in the same directory. Link with -lm -lpthread. It may be included before or
    after dt_nn.h.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

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

    No JPEG and no PNG: images come from PGM, PPM, IDX, CIFAR and .npy files, or from arrays. No resizing of images. No
    downloads. No streams of unknown length: a dataset knows how many items it has.

CONTENTS

    >>datasets       files, arrays, callbacks; subsets and concatenations of them
    >>samplers       which items, in which order, on which rank
    >>loaders        batches, prefetched and augmented
    >>inside         what dt_elastic.h uses of this header
    >>sets           implementation from here: what a dataset is, reading runs of items
    >>elements       conversion of stored numbers to dtypes
    >>files          opening, sizes, patterns, headers
    >>idx            IDX: MNIST, Fashion-MNIST, EMNIST
    >>npy            NumPy's .npy
    >>records        records of one size: CIFAR-10, CIFAR-100, raw; tokens
    >>folders        PGM and PPM, a folder for each class
    >>derived        subsets, splits, concatenations, mean and standard deviation
    >>sampler        samplers
    >>transform      from a stored item to the input of the network
    >>loader         the loader and its worker threads

MACROS

    As in dt.h, and DT_USE_ZLIB: read gzipped IDX files (link with -lz).

MEMORY

    Files are read with pread, so all ranks of a machine share one copy in the page cache. Only labels of IDX files and
    unpacked gzip files are kept in memory. The size that a header announces is compared with the file's size before
    anything is allocated. A file that is truncated while it is in use is an error that names the file, not a SIGBUS.

ERRORS, THREADS

    As in dt.h. dt_loader_next reports the error of a worker thread when the batch of that worker is due. A dataset is
    immutable, and several loaders and threads may use it at once. A loader may be used by one thread at a time.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_DATA_IMPLEMENTATION)
#define DT_DATA_IMPLEMENTATION
#endif
#include "dt.h"

#ifndef DT_DATA_H_INCLUDED
#define DT_DATA_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_data.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>datasets
   A dataset is a sequence of items. An item is x and optionally y; all items have the same dtypes and shapes. Every
   call that makes a dataset returns NULL after an error; dt_dataset_free frees it. A dataset made from others holds
   references to them, so they may be freed first. A path may be a pattern (shard-*.bin): all files that match, sorted
   by name, form one dataset. */
typedef struct dt_dataset dt_dataset;
typedef enum dt_part { DT_TRAIN = 0, DT_TEST = 1 } dt_part;

/* Well-known datasets, by the original names of their files in dir. x is u8, y the class as i64.
   mnist (also Fashion-MNIST, KMNIST): train-images-idx3-ubyte ..., t10k-..., or with .gz; x (1, 28, 28), 10 classes
   emnist: emnist-SPLIT-train-images-idx3-ubyte ...; split "letters", "balanced", "digits", "mnist", "byclass",
           "bymerge"; images are transposed, as the files store them; the labels of "letters" start at 1
   cifar10: data_batch_1.bin ... data_batch_5.bin, test_batch.bin; x (3, 32, 32)
   cifar100: train.bin, test.bin; 100 fine or 20 coarse classes */
DT_API dt_dataset *dt_mnist_open(const char *dir, dt_part part);
DT_API dt_dataset *dt_emnist_open(const char *dir, const char *split, dt_part part);
DT_API dt_dataset *dt_cifar10_open(const char *dir, dt_part part);
DT_API dt_dataset *dt_cifar100_open(const char *dir, dt_part part, bool coarse);

/* IDX and .npy: the first dimension counts items. Stored dtypes become the nearest dtype of dt: i8, i16 and u16 become
   i32, u32 becomes i64, f64 becomes f32, bool becomes u8. Files of u64, complex numbers, strings or objects are an
   error, and so is .npy in Fortran order. */
typedef struct dt_open_opts {
    int         dt__first DT_D;
    const char *labels DT_D;  /* the file or pattern of y: as many files as x has, with as many items each */
    int64_t     classes DT_D; /* y is an integer in 0..classes-1 and becomes i64; default: y is not checked */
    bool        channel DT_D; /* x is (n, h, w): an item becomes an image of one channel, (1, h, w), as the loader's .crop wants it */
} dt_open_opts;
DT_API dt_dataset *dt_idx_open_with(const char *path, dt_open_opts o DT_OPT0(dt_open_opts));
DT_API dt_dataset *dt_npy_open_with(const char *path, dt_open_opts o DT_OPT0(dt_open_opts));

/* Records of one size, stored contiguously in one or more files. */
typedef struct dt_records_opts {
    int      dt__first DT_D;
    int64_t  nbytes DT_D;     /* of a record; default: up to the end of x and y */
    int64_t  skip DT_D;       /* bytes before the first record of each file */
    int64_t  x_at DT_D;       /* byte offset of x in a record */
    dt_dtype x_dtype DT_D;    /* default f32 */
    dt_shape x_shape DT_D;
    bool     has_y DT_D;
    int64_t  y_at DT_D;
    dt_dtype y_dtype DT_D;
    dt_shape y_shape DT_D;
    int64_t  classes DT_D;    /* y is one integer in 0..classes-1 and becomes i64 */
    bool     big_endian DT_D;
} dt_records_opts;
DT_API dt_dataset *dt_records_open_with(const char *path, dt_records_opts o DT_OPT0(dt_records_opts));

/* Token files of language models: little-endian unsigned integers. x of item i is the .length tokens that start at
   token i*stride; y is the .length tokens that start one token later. Both are i64. No item spans two files. */
typedef struct dt_tokens_opts {
    int     dt__first DT_D;
    int64_t length DT_D;  /* required */
    int64_t stride DT_D;  /* default length: windows do not overlap */
    int     nbytes DT_D;  /* of a token: 1, 2 or 4; default 2 */
    int64_t skip DT_D;    /* bytes of the header of each file */
    int64_t vocab DT_D;   /* a token that is not below this is an error; default: not checked */
} dt_tokens_opts;
DT_API dt_dataset *dt_tokens_open_with(const char *path, dt_tokens_opts o DT_OPT0(dt_tokens_opts));

/* One folder for each class, sorted by name. It and its subfolders hold .pgm and .ppm files (binary, P5 or P6, maxval
   255), all of one size: x is u8 (1 or 3, h, w), y the class. Other files are ignored. */
DT_API dt_dataset *dt_folder_open(const char *dir);

/* Arrays of the program: n contiguous items. They are not copied and must outlive the dataset. */
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

/* Items from a callback: get(user, i, x, y) fills x and y (y is NULL if .has_y is false) and returns 0, or a negative
   status after dt_fail. It must be thread-safe: several threads call it at once. */
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
    void (*free)(void *user) DT_D; /* called when the dataset is freed; default: not called */
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
#else /* C++17: options as a struct, or none */
#define dt_idx_open dt_idx_open_with
#define dt_npy_open dt_npy_open_with
#define dt_records_open dt_records_open_with
#define dt_tokens_open dt_tokens_open_with
#define dt_arrays dt_arrays_with
#define dt_source dt_source_with
#endif

typedef struct dt_item_info {
    dt_dtype x_dtype;
    dt_shape x_shape; /* of an item */
    bool     has_y;
    dt_dtype y_dtype;
    dt_shape y_shape;
    int64_t  classes; /* 0: unknown */
} dt_item_info;
DT_API void         dt_dataset_free(dt_dataset *s); /* after its loaders and the sets made from it; NULL is accepted */
DT_API int64_t      dt_dataset_len(const dt_dataset *s); /* number of items */
DT_API dt_item_info dt_dataset_item_info(const dt_dataset *s); /* shape and dtype of an item */
DT_API dt_status    dt_dataset_get(const dt_dataset *s, int64_t i, void *x, void *y); /* either may be NULL */
DT_API const char  *dt_dataset_class(const dt_dataset *s, int64_t k); /* name of its folder; NULL if it has no name */
DT_API int64_t      dt_dataset_shards(const dt_dataset *s); /* files of x, of all datasets of a concatenation; otherwise 1 */
DT_API int64_t      dt_dataset_shard(const dt_dataset *s, int64_t k); /* first item of shard k; of the last + 1: n */
/* file and offset of item i, for messages: "data_batch_2.bin, byte 3073" */
DT_API const char  *dt_dataset_where(const dt_dataset *s, int64_t i, char *buf, size_t nbytes);

DT_API dt_dataset *dt_dataset_range(dt_dataset *s, int64_t from, int64_t n); /* n items, the first is from */
DT_API dt_dataset *dt_dataset_subset(dt_dataset *s, const int64_t *index, int64_t n); /* copies index */
DT_API dt_dataset *dt_dataset_concat(dt_dataset *const *sets, int n); /* the items of the first, then of the second ... */
/* n random parts, the same items as PyTorch's random_split with a generator of that seed. part: numbers of items that
   add up to the length, or fractions that add up to 1. After an error no part exists. */
DT_API dt_status   dt_dataset_split(dt_dataset *s, const double *part, int n, uint64_t seed, dt_dataset **out);
/* Mean and standard deviation of x for each channel (the first of three dimensions; other shapes have one channel); u8
   values are divided by 255. */
DT_API dt_status   dt_dataset_mean_std(const dt_dataset *s, double *mean, double *std, int channels);

/* ---------------------------------------------------------------------------------------------------- >>samplers
   A sampler determines which items a rank takes, and in which order. Its result depends only on its options, the epoch
   and the position at which the epoch resumes. The loader makes one from its own options; other loops may use one
   directly.

   .shuffle: a permutation drawn from seed + epoch. Rank r takes the entries r, r + world, ... of the list. The length
   of the list is made divisible by world: its beginning is repeated or, with .drop_last, its end is cut. The result is
   the same as that of PyTorch's DistributedSampler, index by index. With .no_pad no item is repeated and none dropped,
   so that metrics count each item once; the ranks' numbers of items may then differ by one. With .contiguous a rank has
   one contiguous chunk of the dataset, shuffled within itself. Chunks end at file boundaries if there are at least as
   many files as ranks, so that each rank reads its own files. */
typedef struct dt_sampler dt_sampler; /* an order of items */
typedef struct dt_sampler_opts {
    int            dt__first DT_D;
    bool           shuffle DT_D;
    uint64_t       seed DT_D;
    int            rank DT_D;
    int            world DT_D;       /* default 1 */
    bool           drop_last DT_D;
    bool           no_pad DT_D;
    bool           contiguous DT_D;
    const int64_t *shard DT_D;       /* contiguous: first item of each file, nshards + 1 numbers, the last is n; copied */
    int64_t        nshards DT_D;
    const double  *weight DT_D;      /* n weights: draw with replacement (WeightedRandomSampler); copied */
    int64_t        draws DT_D;       /* with .weight: items of an epoch, all ranks together; default n */
} dt_sampler_opts;
DT_API dt_sampler *dt_sampler_new_with(int64_t n, dt_sampler_opts o DT_OPT0(dt_sampler_opts)); /* of n items; NULL on error */
DT_API void        dt_sampler_free(dt_sampler *s); /* NULL is accepted */
#ifdef DT__LIT
#define dt_sampler_new(...) dt_sampler_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_sampler_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_sampler_new dt_sampler_new_with
#endif

/* The position of a training run in its data: the items of the epoch that all ranks together have taken. It is valid
   for any world size: the items that are left are distributed again. With .contiguous it also records the world sizes
   that took part in the epoch. */
enum { DT_CURSOR_PAST = 5 };
typedef struct dt_cursor {
    int64_t seed, epoch;
    int64_t position;                 /* items taken in this epoch, by all ranks together */
    int64_t n;                        /* items of the dataset; 0: unknown */
    int64_t world;                    /* contiguous: number of ranks that took them */
    int64_t npast;                    /* contiguous: number of earlier world sizes in this epoch ... */
    int64_t past[2 * DT_CURSOR_PAST]; /* ... and for each: world, position it reached */
} dt_cursor;
/* Moves to a position (dt_sampler_new: the beginning of epoch 0). The cursor's seed and n must match the sampler's. */
DT_API dt_status dt_sampler_seek(dt_sampler *s, const dt_cursor *at);
DT_API int64_t   dt_sampler_count(const dt_sampler *s); /* items of this rank from there to the end of the epoch */
DT_API int64_t   dt_sampler_most(const dt_sampler *s);  /* the largest dt_sampler_count of any rank */
DT_API int64_t   dt_sampler_at(const dt_sampler *s, int64_t i); /* item i of this rank; -1: out of range */
/* Writes the items of this rank's batch k, at most size, to out and returns their number; 0 after the last batch. full:
   a last batch of fewer than size items is omitted. out may be NULL. */
DT_API int64_t   dt_sampler_batch(const dt_sampler *s, int64_t k, int64_t size, bool full, int64_t *out);
/* The cursor after each rank has taken 'taken' of its items; if that ends the epoch, the beginning of the next one. */
DT_API dt_cursor dt_sampler_cursor(const dt_sampler *s, int64_t taken);

/* ---------------------------------------------------------------------------------------------------- >>loaders
   Worker threads read, convert and augment whole batches ahead of time. Batches arrive in the sampler's order, whatever
   the number of workers. u8 images become f32: v/255, then (v - mean)/std; classes become i64.

   Augmentation for x of shape (c, h, w), in this order: a random crop of the image's own size from the image padded by
   .crop black pixels on each side; a horizontal flip of half of the items; normalisation; .cutout: a square of that
   many pixels, centred at a random pixel and clipped to the image, is set to 0; .transform. The random numbers depend
   only on seed, epoch and item. */
typedef struct dt_loader dt_loader; /* makes batches */
typedef struct dt_sample { /* argument of .transform */
    int64_t  item, epoch;
    uint64_t seed;         /* of the loader; dt_philox(seed, counter, out) draws */
    dt_dtype dtype;
    dt_shape shape;
} dt_sample;
typedef struct dt_loader_opts {
    int           dt__first DT_D;
    int64_t       batch DT_D;      /* default 1 */
    bool          shuffle DT_D;
    bool          drop_last DT_D;  /* omit a short last batch; several ranks: drop items instead of repeating some */
    uint64_t      seed DT_D;       /* of order and augmentation */
    int           rank DT_D;
    int           world DT_D;      /* default 1 */
    bool          no_pad DT_D;     /* evaluation: every item exactly once */
    bool          contiguous DT_D; /* each rank reads its own files */
    const double *weight DT_D;     /* one for each item: draw with replacement */
    int64_t       draws DT_D;      /* with .weight: items of an epoch, all ranks together; default: as many as there are */
    int           workers DT_D;    /* threads; default 0: dt_loader_next makes the batch itself */
    int           prefetch DT_D;   /* batches that are ready or being made; default 2 for each worker */
    double        mean[4] DT_D;    /* for each channel. If std[1] == 0, mean[0] and std[0] apply to every channel */
    double        std[4] DT_D;     /* default 1 */
    double        max_value DT_D;  /* the u8 value that becomes 1.0; default 255 */
    bool          raw DT_D;        /* x keeps its stored dtype: no scaling, no normalisation */
    int           crop DT_D;       /* pixels */
    bool          flip DT_D;
    int           cutout DT_D;     /* pixels */
    /* Changes x in place; returns 0, or a negative status after dt_fail. Several threads call it at once. */
    int (*transform)(void *user, const dt_sample *s, void *x) DT_D;
    void         *user DT_D;
    /* The device of the batches; default dt_cpu(). A device that copies asynchronously (dt_cuda) receives the next
       batch while the current step computes. */
    dt_device    *device DT_D;
    /* Allocator of the host memory in which batches are made; it must align to 64 bytes. Default: pinned memory for a
       device that copies asynchronously, otherwise memory of the CPU device. */
    const dt_allocator *buffers DT_D;
    bool          digest DT_D;     /* compute the SHA-256 of every batch, to compare the data of two runs or ranks */
} dt_loader_opts;
DT_API dt_loader *dt_loader_new_with(dt_dataset *set, dt_loader_opts o DT_OPT0(dt_loader_opts));
DT_API void       dt_loader_free(dt_loader *in); /* batches that were returned stay valid */
#ifdef DT__LIT
#define dt_loader_new(...) dt_loader_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loader_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_loader_new dt_loader_new_with
#endif

typedef struct dt_batch {
    dt_tensor     *x, *y;    /* tensors of this step; y is NULL if the dataset has no y */
    int64_t        n;        /* number of items */
    int64_t        epoch, index; /* index: number of the batch since the loader began or resumed the epoch */
    const int64_t *item;     /* their indices in the dataset; valid until the next dt_loader_next */
    char           sha256[65]; /* with .digest: hex SHA-256 of the bytes of x followed by those of y; otherwise "" */
} dt_batch;
/* Gets the next batch. Returns false once at the end of each epoch (the next call begins the next epoch), and while an
   error is pending. */
DT_API bool    dt_loader_next(dt_loader *in, dt_batch *b);
/* Gets batch `number` of an endless sequence of epochs: 0, 1 ... dt_loader_batches - 1 are those of epoch 0. For trainers that
   are told which batch to compute (dt_ps_next_batch of dt_dist.h). The loader has one rank. Numbers that are not consecutive
   throw prefetched batches away: then .workers = 0 or .prefetch = 1 saves work. */
DT_API bool    dt_loader_get(dt_loader *in, int64_t number, dt_batch *b);
DT_API dt_dataset *dt_loader_dataset(const dt_loader *in); /* NULL if in is NULL */
/* The epoch of the next batch; it grows when the last batch of an epoch is returned. INT64_MAX if in is NULL or an error
   is pending, so that a loop over epochs ends. */
DT_API int64_t dt_loader_epoch(const dt_loader *in);
DT_API int64_t dt_loader_batches(const dt_loader *in); /* of a whole epoch */
/* The position after the batch that was returned last. The program may save it, and assign to it: the next
   dt_loader_next starts from the new value. With dt_nn.h one line saves it in every checkpoint and restores it on
   resume:
       dt_loader_checkpoint(in, c);  */
DT_API dt_cursor *dt_loader_cursor(dt_loader *in);
DT_API dt_tensor *dt_loader_state(dt_loader *in); /* the cursor as an i64 tensor of the loader; NULL after an error */
#define dt_loader_checkpoint(in, c) dt_checkpoint_add_tensor((c), "data.cursor", dt_loader_state(in))

/* Where the time of the steps went, in seconds since dt_loader_new or the last dt_loader_reset_stats. */
typedef struct dt_loader_stats {
    int64_t batches, items;
    double  wait;      /* seconds in which dt_loader_next waited for data */
    double  elsewhere; /* seconds between two batches of an epoch, in which the caller computed; includes waiting in
                          dt_loader_next for a device that has not finished its earlier work */
    double  busy;      /* seconds that workers spent making batches, summed over all workers */
    double  needed;    /* items per second that the caller would take if it never waited */
    double  able;      /* items per second that the loader makes if all its workers are busy */
    bool    behind;    /* more than a tenth of the time is waiting for data */
} dt_loader_stats;
DT_API dt_loader_stats dt_loader_get_stats(const dt_loader *in);
DT_API void            dt_loader_reset_stats(dt_loader *in);
/* The same as one line: "data 41 %, compute 59 %: the trainer would take 17600 items/s, the loader makes 7200 with 1
   worker; ...". communication: seconds of the compute time that the caller spent in communication, or 0. Works like
   snprintf. At the end of an epoch of at least 1 s in which the loader was behind, it logs this line as a warning. */
DT_API size_t          dt_loader_report(const dt_loader *in, double communication, char *buf, size_t nbytes);

#ifdef __cplusplus
}
#endif
#endif /* DT_DATA_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__DATA_INSIDE)
#define DT__DATA_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside */
#ifdef __cplusplus
extern "C" {
#endif
typedef struct dt__share { /* what is left of an epoch for all ranks together */
    int64_t steps; /* a step: a batch of each rank */
    int64_t items; /* each of them once, if the loader has neither padding nor .drop_last */
    int64_t batch; /* items of a rank's batch, but of the last one */
} dt__share;
/* From `at` on the loader gives the batches of `own` ranks, from `rank` on, of `world`: in each step one batch of each, in their
   order. exact: no item is repeated to make the ranks equal; it needs own == 1. Returns 0, or a negative status after dt_fail. */
DT__INSIDE int dt__loader_split(dt_loader *in, int rank, int own, int world, bool exact, const dt_cursor *at, dt__share *out);
DT__INSIDE const dt_loader_opts *dt__loader_options(const dt_loader *in);
#ifdef __cplusplus
}
#endif
#endif /* DT__DATA_INSIDE */

#if defined(DT_DATA_IMPLEMENTATION) && !defined(DT__DATA_IMPLEMENTED)
#define DT__DATA_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__CORE_IMPLEMENTED)
#error "dt_data.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_DATA_IMPLEMENTATION"
#endif

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#ifdef DT_USE_ZLIB
#include <zlib.h>
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dt_data.h: big-endian machines are not supported; compile for a little-endian one"
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(DATA);
DT__NEEDS(DATA, CORE);

DT__SLOW_BEGIN
/* ==================================================================================================== >>sets
   A dataset is a leaf (files, arrays, a callback) or an inner node (a subset or a concatenation of others). Items are
   read in runs: a run is a number of consecutive items of one leaf. Any thread may read; a dataset is immutable apart
   from its reference count, which is atomic, so there is no lock. */
enum { DT__SET_FILES = 1, DT__SET_MEMORY, DT__SET_SOURCE, DT__SET_SUBSET, DT__SET_CONCAT };
enum { DT__Y_NONE = 0, DT__Y_RECORD, DT__Y_FILES, DT__Y_FOLDER }; /* where a dataset of files stores y */
enum {
    DT__KEEP_OPEN = 256,    /* with more files than this, each read opens and closes its file */
    DT__RUN_BYTES = 1 << 20 /* limit of a run, unless one item is larger */
};

typedef struct dt__elem { /* how a file stores a number */
    char    kind;         /* 'u' unsigned, 'i' signed, 'f' floating point, 'b' bf16 */
    uint8_t size, swap;   /* bytes; swap: 1 if stored big-endian */
} dt__elem;
typedef struct dt__field { /* x or y of an item */
    dt_dtype dtype;
    dt_shape shape;
    int64_t  numel;
    size_t   nbytes;       /* after conversion to dtype */
    dt__elem elem;
    size_t   stored;       /* bytes in the file */
    bool     plain;        /* needs no conversion */
    bool     by_pixel;     /* stored as bytes of (h, w, c), converted to (c, h, w) */
} dt__field;
typedef struct dt__file {
    char    *path;
    int      fd;           /* -1 if there is no descriptor: each read opens the file */
    int64_t  size;         /* in bytes when it was opened; of an unpacked gzip file: after unpacking */
    int64_t  first, n;     /* index of its first item, number of its items */
    int64_t  base;         /* offset of its first item in bytes */
    uint8_t *held;         /* contents of the whole file, unpacked; NULL if it is read from the disk */
    int64_t  label;        /* folders: the class of this image */
} dt__file;
struct dt_dataset {
    int         kind, ykind;
    int32_t     refs;
    int64_t     n, classes;
    int64_t     vocab;        /* every token must be below this; 0: not checked */
    bool        has_y;
    dt__field   x, y;
    dt__file   *file, *yfile; /* yfile: files of y, for DT__Y_FILES */
    int64_t     nfiles, nyfiles;
    int64_t     step, ystep;  /* bytes from one item to the next in a file */
    int64_t     x_at, y_at;   /* byte offsets in a record */
    char      **name;         /* of the classes; NULL if they have no names */
    int64_t     nnames;
    const char *xmem, *ymem;  /* DT__SET_MEMORY */
    int (*get)(void *user, int64_t i, void *x, void *y);
    void (*release)(void *user);
    void       *user;
    dt_dataset **child;          /* a subset has one */
    int64_t     nchildren, from; /* from: first item of a subset whose index is NULL (a range) */
    int64_t    *index, *first;   /* first: first item of each child of a concatenation, then n */
};

typedef struct dt__mem { /* a scratch buffer that grows on demand */
    char  *p;
    size_t n;
} dt__mem;
typedef struct dt__items { /* a run of converted items; item k starts at x + k * xstep and y + k * ystep */
    const char *x, *y;
    size_t      xstep, ystep;
} dt__items;

static void dt__mem_free(dt__mem *m)
{
    dt_mem_free(m->p, m->n);
    m->p = NULL;
    m->n = 0;
}
static char *dt__mem_want(const char *call, dt__mem *m, size_t n) /* does not keep the old contents */
{
    if (n <= m->n) return m->p;
    dt__mem_free(m);
    m->p = (char *)dt_mem_alloc(n);
    if (m->p) m->n = n;
    else dt_fail(DT_ERR_MEMORY, "%s: out of memory for %zu bytes", call, n);
    return m->p;
}
static char *dt__data_strdup(const char *s) /* a copy; NULL after dt_fail */
{
    char *p = dt__strdup(s);
    if (!p) dt_fail(DT_ERR_MEMORY, "dt_data: out of memory for a file name");
    return p;
}

/* Fills in f. If classes > 0, its dtype becomes i64. If e.kind == 0, the file stores dtype itself. Returns 0 or a
   status. */
static int dt__field_set(const char *call, const char *what, dt__field *f, dt__elem e, dt_dtype dtype, dt_shape shape,
                         int64_t classes)
{
    static const char kinds[] = { 'f', 'f', 'b', 'i', 'i', 'u' };
    if ((unsigned)dtype >= DT_DTYPE_COUNT)
        return dt_fail(DT_ERR_ARG, "%s: the dtype of %s is %d, expected one of dt_dtype, 0 to %d", call, what, (int)dtype,
                       DT_DTYPE_COUNT - 1);
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
        return dt_fail(DT_ERR_SHAPE, "%s: an item's %s of shape %s is empty or too large; expected 1 to 2^40 elements",
                       call, what, dt__shape_text(shape.dim, shape.ndim));
    if (classes < 0)
        return dt_fail(DT_ERR_ARG, "%s: .classes is %" PRId64 ", expected 0 (not classes) or more", call, classes);
    if (classes) {
        if (f->numel != 1 || (e.kind != 'u' && e.kind != 'i'))
            return dt_fail(DT_ERR_ARG, "%s: .classes is set, but %s is not one integer", call, what);
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
        dt__free_text(f[i].path);
        dt_mem_free(f[i].held, f[i].held ? (size_t)f[i].size : 0);
    }
    dt_mem_free(f, (size_t)n * sizeof *f);
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
    for (int64_t i = 0; s->name && i < s->nnames; i++) dt__free_text(s->name[i]);
    dt_mem_free(s->name, (size_t)s->nnames * sizeof *s->name);
    for (int64_t i = 0; s->child && i < s->nchildren; i++) dt_dataset_free(s->child[i]);
    dt_mem_free(s->child, (size_t)s->nchildren * sizeof *s->child);
    dt_mem_free(s->index, (size_t)s->n * sizeof *s->index);
    dt_mem_free(s->first, (size_t)(s->nchildren + 1) * sizeof *s->first);
    if (s->release) s->release(s->user);
    dt_mem_free(s, sizeof *s);
}
/* The last step of every constructor: returns s, or frees it and returns NULL if an error is pending. */
static dt_dataset *dt__set_done(dt_dataset *s)
{
    if (dt__err.code == DT_OK) return s;
    dt_dataset_free(s);
    return NULL;
}

/* Index k of the file that holds item i: f[k].first <= i < f[k].first + f[k].n */
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
/* The leaf that holds item *i of s; *i becomes the item's index in the leaf. */
static const dt_dataset *dt__set_leaf(const dt_dataset *s, int64_t *i)
{
    for (;;) {
        if (s->kind == DT__SET_SUBSET) {
            *i = s->index ? s->index[*i] : s->from + *i;
            s = s->child[0];
        } else if (s->kind == DT__SET_CONCAT) {
            int64_t lo = 0, hi = s->nchildren - 1;
            while (lo < hi) {
                int64_t mid = lo + (hi - lo + 1) / 2;
                if (s->first[mid] <= *i) lo = mid;
                else hi = mid - 1;
            }
            *i -= s->first[lo];
            s = s->child[lo];
        } else {
            return s;
        }
    }
}

/* Reads nbytes at offset 'at' of the file. An error names the file and the offset. */
static int dt__file_read(const char *call, const dt__file *f, int64_t at, void *dst, size_t nbytes)
{
    size_t got = 0;
    int    fd = f->fd, err = 0;
    if (f->held) {
        if (at < 0 || at > f->size || nbytes > (uint64_t)(f->size - at))
            return dt_fail(DT_ERR_FILE, "%s: %.300s ends at byte %" PRId64 ", %zu bytes at %" PRId64 " are expected",
                           call, f->path, f->size, nbytes, at);
        memcpy(dst, f->held + at, nbytes);
        return 0;
    }
    /* O_NONBLOCK: open must not block if the file was replaced by a FIFO */
    if (fd < 0 && (fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0)
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
    struct stat st;
    int64_t     end = got < nbytes && !fstat(fd, &st) ? (int64_t)st.st_size : at + (int64_t)got;
    if (fd != f->fd) close(fd);
    if (got == nbytes) return 0;
    if (err)
        return dt_fail(DT_ERR_FILE, "%s: cannot read %.300s, byte %" PRId64 ": %s", call, f->path, at + (int64_t)got,
                       strerror(err));
    return dt_fail(DT_ERR_FILE, "%s: %.300s ends at byte %" PRId64 ", %zu bytes at %" PRId64 " are expected: it had %"
                   PRId64 " bytes when it was opened and was truncated since; restore it and run again", call, f->path,
                   end, nbytes, at, f->size);
}

/* For messages: the file and offset of x (or y) of item i of a leaf */
static const char *dt__location(const dt_dataset *s, int64_t i, bool y, char *buf, size_t nbytes)
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

/* Converts y of m items, stored 'step' bytes apart, and checks that classes are in range. */
static int dt__convert(void *dst, dt_dtype dtype, const char *src, dt__elem e, int64_t n);
static int dt__labels(const char *call, const dt_dataset *s, int64_t i, int64_t m, const char *src, size_t step,
                      char *dst)
{
    for (int64_t k = 0; k < m; k++) {
        dt__convert(dst + (size_t)k * s->y.nbytes, s->y.dtype, src + (size_t)k * step, s->y.elem, s->y.numel);
        int64_t v = 0;
        if (s->classes) memcpy(&v, dst + (size_t)k * 8, 8);
        if (s->classes && (v < 0 || v >= s->classes)) {
            char where[400];
            return dt_fail(DT_ERR_FILE, "%s: %s: label %" PRId64 ", expected 0 to %" PRId64, call,
                           dt__location(s, i + k, true, where, sizeof where), v, s->classes - 1);
        }
    }
    return 0;
}

/* Checks the converted tokens of m items: their x, or their y */
static int dt__tokens_ok(const char *call, const dt_dataset *s, int64_t i, int64_t m, bool y, const char *src)
{
    const dt__field *f = y ? &s->y : &s->x;
    for (int64_t k = 0, v; s->vocab && k < m * f->numel; k++) {
        memcpy(&v, src + k * 8, 8);
        if (v >= 0 && v < s->vocab) continue;
        const dt__file *file = s->file + dt__file_of(s->file, s->nfiles, i);
        int64_t at = file->base + (i + k / f->numel - file->first) * s->step + (y ? s->y_at : s->x_at) +
                     k % f->numel * f->elem.size;
        return dt_fail(DT_ERR_FILE, "%s: %.300s, byte %" PRId64 ": token %" PRId64 ", expected 0 to %" PRId64, call,
                       file->path, at, v, s->vocab - 1);
    }
    return 0;
}

/* Bytes of (h, w, c), n in all, become (c, h, w). */
static void dt__deinterleave(char *to, const char *from, int64_t c, int64_t n)
{
    for (int64_t k = 0; k < c; k++)
        for (int64_t i = k; i < n; i += c) *to++ = from[i];
}
/* Reads a run of up to *m items of a leaf, starting at item i; *m becomes the number of items read. mem holds everything
   that had to be read or converted. */
static int dt__run_files(const char *call, const dt_dataset *s, int64_t i, int64_t *m, bool want_y, dt__mem *mem,
                         dt__items *r)
{
    const dt__file *f = s->file + dt__file_of(s->file, s->nfiles, i), *yf = NULL;
    bool            in_record = want_y && s->ykind == DT__Y_RECORD;
    int64_t         lo = s->x_at, hi = s->x_at + (int64_t)s->x.stored, left = f->first + f->n - i, most;
    if (in_record && s->y_at < lo) lo = s->y_at;
    if (in_record && s->y_at + (int64_t)s->y.stored > hi) hi = s->y_at + (int64_t)s->y.stored;
    most = hi - lo >= DT__RUN_BYTES ? 1 : 1 + (DT__RUN_BYTES - (hi - lo)) / s->step;
    if (!s->x.plain && most > 1 + DT__RUN_BYTES / (int64_t)s->x.nbytes) most = 1 + DT__RUN_BYTES / (int64_t)s->x.nbytes;
    if (want_y && most > 1 + DT__RUN_BYTES / (int64_t)s->y.nbytes) most = 1 + DT__RUN_BYTES / (int64_t)s->y.nbytes;
    if (*m > most) *m = most;
    if (*m > left) *m = left;
    if (want_y && s->ykind == DT__Y_FILES) {
        yf = s->yfile + dt__file_of(s->yfile, s->nyfiles, i);
        if (*m > yf->first + yf->n - i) *m = yf->first + yf->n - i;
    }
    size_t span = (size_t)((*m - 1) * s->step + (hi - lo)), x_at = (span + 63) & ~(size_t)63;
    size_t xn = s->x.plain ? 0 : ((size_t)*m * s->x.nbytes + 63) & ~(size_t)63,
           yn = want_y ? (size_t)*m * s->y.nbytes : 0;
    size_t raw = yf ? (size_t)*m * (size_t)s->ystep : 0, y_at = x_at + xn, raw_at = (y_at + yn + 63) & ~(size_t)63;
    char  *p = dt__mem_want(call, mem, raw_at + raw);
    if (!p || dt__file_read(call, f, f->base + (i - f->first) * s->step + lo, p, span)) return dt_error_code();
    r->x = p + (s->x_at - lo);
    r->xstep = (size_t)s->step;
    if (!s->x.plain) {
        for (int64_t k = 0; k < *m; k++) {
            char *to = p + x_at + (size_t)k * s->x.nbytes;
            if (s->x.by_pixel) dt__deinterleave(to, r->x + k * s->step, s->x.shape.dim[0], s->x.numel);
            else dt__convert(to, s->x.dtype, r->x + k * s->step, s->x.elem, s->x.numel);
        }
        r->x = p + x_at;
        r->xstep = s->x.nbytes;
    }
    if (s->vocab && dt__tokens_ok(call, s, i, *m, false, r->x)) return dt_error_code();
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
    if (in_record) {
        int rc = dt__labels(call, s, i, *m, p + (s->y_at - lo), (size_t)s->step, p + y_at);
        return rc || !s->vocab ? rc : dt__tokens_ok(call, s, i, *m, true, p + y_at);
    }
    if (dt__file_read(call, yf, yf->base + (i - yf->first) * s->ystep, p + raw_at, raw)) return dt_error_code();
    return dt__labels(call, s, i, *m, p + raw_at + s->y_at, (size_t)s->ystep, p + y_at);
}
static int dt__set_run(const char *call, const dt_dataset *s, int64_t i, int64_t *m, bool want_y, dt__mem *mem,
                       dt__items *r)
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
        if (rc || dt__err.code != DT_OK)
            return dt_fail(rc < 0 && rc >= DT_ERR_FILE ? (dt_status)rc : DT_ERR_STATE,
                           "%s: the callback .get failed at item %" PRId64 " with status %d, expected 0", call, i, rc);
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

/* ---- queries */
DT_API int64_t      dt_dataset_len(const dt_dataset *s) { return s ? s->n : 0; }
DT_API dt_item_info dt_dataset_item_info(const dt_dataset *s)
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
    if (dt__err.code != DT_OK) return false;
    if (!s) dt_fail(DT_ERR_ARG, "%s: the dataset is NULL", call);
    return s != NULL;
}
static bool dt__item_ok(const char *call, const dt_dataset *s, int64_t i)
{
    if (!dt__set_ok(call, s)) return false;
    if (i < 0 || i >= s->n)
        dt_fail(DT_ERR_ARG, "%s: item %" PRId64 " is out of range; the dataset has %" PRId64, call, i, s->n);
    return i >= 0 && i < s->n;
}
DT_API dt_status dt_dataset_get(const dt_dataset *s, int64_t i, void *x, void *y)
{
    static const char call[] = "dt_dataset_get";
    if (!dt__item_ok(call, s, i)) return dt_error_code();
    if (y && !s->has_y) return (dt_status)dt_fail(DT_ERR_ARG, "%s: y is not NULL, but the dataset has no y", call);
    dt__mem           mem = { NULL, 0 };
    dt__items         r;
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
    while (s && s->nchildren && !s->name) s = s->child[0];
    return s && s->name && k >= 0 && k < s->nnames ? s->name[k] : NULL;
}
DT_API const char *dt_dataset_where(const dt_dataset *s, int64_t i, char *buf, size_t nbytes)
{
    if (!buf || !nbytes) return "";
    buf[0] = 0;
    if (!s || i < 0 || i >= s->n) return buf;
    s = dt__set_leaf(s, &i);
    return dt__location(s, i, false, buf, nbytes);
}
static bool dt__sharded(const dt_dataset *s) { return s->kind == DT__SET_FILES && s->ykind != DT__Y_FOLDER; }
DT_API int64_t dt_dataset_shards(const dt_dataset *s)
{
    int64_t n = 0;
    if (!s) return 0;
    if (s->kind != DT__SET_CONCAT) return dt__sharded(s) ? s->nfiles : 1;
    for (int64_t i = 0; i < s->nchildren; i++) n += dt_dataset_shards(s->child[i]);
    return n;
}
DT_API int64_t dt_dataset_shard(const dt_dataset *s, int64_t k)
{
    int64_t n, at = 0;
    if (!s || k < 0) return -1;
    if (s->kind != DT__SET_CONCAT) {
        n = dt_dataset_shards(s);
        return k > n ? -1 : k == n ? s->n : dt__sharded(s) ? s->file[k].first : 0;
    }
    for (int64_t i = 0; i < s->nchildren; i++, k -= n, at += s->child[i - 1]->n)
        if (k < (n = dt_dataset_shards(s->child[i]))) return at + dt_dataset_shard(s->child[i], k);
    return k ? -1 : s->n;
}

/* ---- arrays and callbacks */
DT_API dt_dataset *dt_arrays_with(const void *x, int64_t n, dt_arrays_opts o)
{
    static const char call[] = "dt_arrays";
    dt__elem          as_is = { 0, 0, 0 };
    if (dt__err.code != DT_OK) return NULL;
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
    if (dt__err.code != DT_OK) return NULL;
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
    s->release = o.free; /* set last: if the call fails, the caller still owns user */
    return s;
}

/* ==================================================================================================== >>elements
   How files store numbers, and the dtypes they are converted to. */
static dt_dtype dt__elem_dtype(dt__elem e) /* DT_DTYPE_COUNT if dt has no dtype for it */
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
        if (e.kind == 'f' || e.kind == 'b') { /* only the bytes are swapped, or f64 becomes f32 */
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

/* ==================================================================================================== >>files
   From a path or pattern to a table of open files. Only regular files are opened, and open never blocks. A format of
   arrays with a header (IDX, .npy) is one dt__head_fn, which the format's public function passes to dt__arrays_find. */
typedef struct dt__head { /* contents of the header of a file that holds an array */
    dt__elem elem;
    int      ndim;
    int64_t  dim[DT_MAX_DIMS];
    int64_t  base; /* offset of the first element in bytes */
} dt__head;
typedef int (*dt__head_fn)(const char *call, dt__file *f, dt__head *h); /* 0, or a status after dt_fail */

static dt__file *dt__files_new(const char *call, int64_t n)
{
    dt__file *f = (dt__file *)dt__alloc_zero((size_t)n * sizeof *f);
    for (int64_t i = 0; f && i < n; i++) f[i].fd = -1;
    if (!f) dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " files", call, n);
    return f;
}
static char *dt__path(const char *dir, const char *name, const char *more) /* dir/namemore; NULL after dt_fail */
{
    size_t a = strlen(dir), b = strlen(name), c = strlen(more), slash = a && dir[a - 1] != '/';
    char  *p = (char *)dt_mem_alloc(a + slash + b + c + 1);
    if (!p) {
        dt_fail(DT_ERR_MEMORY, "dt_data: out of memory for a file name");
        return NULL;
    }
    memcpy(p, dir, a);
    if (slash) p[a] = '/';
    memcpy(p + a + slash, name, b);
    memcpy(p + a + slash + b, more, c + 1);
    return p;
}
static int dt__by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The files that a path or pattern names, not yet opened. If a file has exactly that name, path is not a pattern. */
static int dt__files_find(const char *call, const char *path, dt__file **out, int64_t *n)
{
    struct stat st;
    glob_t      g;
    int         rc = 0;
    if (!path) return dt_fail(DT_ERR_ARG, "%s: the path is NULL", call);
    if (!strpbrk(path, "*?[") || !lstat(path, &st)) {
        if ((*out = dt__files_new(call, 1))) {
            *n = 1;
            (*out)->path = dt__data_strdup(path);
        }
        return dt_error_code();
    }
    memset(&g, 0, sizeof g);
    rc = glob(path, GLOB_ERR | GLOB_NOSORT, NULL, &g); /* sorted below: glob's order depends on the locale */
    if (rc == GLOB_NOMATCH || (!rc && !g.gl_pathc)) dt_fail(DT_ERR_FILE, "%s: no file matches %.300s", call, path);
    else if (rc == GLOB_NOSPACE) dt_fail(DT_ERR_MEMORY, "%s: out of memory for the files of %.300s", call, path);
    else if (rc) dt_fail(DT_ERR_FILE, "%s: a directory of %.300s cannot be read: %s", call, path, strerror(errno));
    else if ((*out = dt__files_new(call, (int64_t)g.gl_pathc))) {
        *n = (int64_t)g.gl_pathc;
        qsort(g.gl_pathv, g.gl_pathc, sizeof *g.gl_pathv, dt__by_name);
        for (int64_t i = 0; i < *n && ((*out)[i].path = dt__data_strdup(g.gl_pathv[i])); i++) {}
    }
    globfree(&g);
    return dt_error_code();
}
static void dt__file_close(dt__file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}
static int dt__file_open(const char *call, dt__file *f)
{
    struct stat st;
    const char *what = NULL;
    if (stat(f->path, &st)) {
        int err = errno;
        if (err == ENOENT && !lstat(f->path, &st))
            return dt_fail(DT_ERR_FILE, "%s: cannot open %.300s: it is a symbolic link to a file that does not exist",
                           call, f->path);
        return dt_fail(DT_ERR_FILE, "%s: cannot open %.300s: %s", call, f->path, strerror(err));
    }
    if (S_ISREG(st.st_mode)) { /* fstat again: the path may name another file by now */
        if ((f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) < 0 || fstat(f->fd, &st))
            return dt_fail(DT_ERR_FILE, "%s: cannot open %.300s: %s", call, f->path, strerror(errno));
    }
    if (S_ISDIR(st.st_mode)) what = "a directory";
    else if (S_ISFIFO(st.st_mode)) what = "a fifo";
    else if (S_ISSOCK(st.st_mode)) what = "a socket";
    else if (!S_ISREG(st.st_mode)) what = "a device";
    if (what) return dt_fail(DT_ERR_FILE, "%s: %.300s is %s, expected a regular file", call, f->path, what);
    if (st.st_size <= 0) return dt_fail(DT_ERR_FILE, "%s: %.300s is empty: it has 0 bytes", call, f->path);
    f->size = (int64_t)st.st_size;
    return 0;
}
/* Reads the whole file into memory and closes it. */
static int dt__file_hold(const char *call, dt__file *f)
{
    if (f->held) return 0;
    uint8_t *p = (uint8_t *)dt_mem_alloc((size_t)f->size);
    if (!p)
        return dt_fail(DT_ERR_MEMORY, "%s: out of memory for the %" PRId64 " bytes of %.300s", call, f->size, f->path);
    if (dt__file_read(call, f, 0, p, (size_t)f->size)) {
        dt_mem_free(p, (size_t)f->size);
        return dt_error_code();
    }
    f->held = p;
    dt__file_close(f);
    return 0;
}
/* Appends the n items of a file, which start at offset base, to the dataset. */
static int dt__file_place(const char *call, dt__file *f, int64_t *total, int64_t n, int64_t base, bool keep)
{
    f->first = *total;
    f->n = n;
    f->base = base;
    if (!keep) dt__file_close(f);
    if (__builtin_add_overflow(*total, n, total))
        return dt_fail(DT_ERR_FILE, "%s: with %.300s the dataset has more than 2^63 items; open fewer files", call,
                       f->path);
    return 0;
}

static const char *dt__elem_text(dt__elem e, char *buf, size_t nbytes) /* "u8", "big-endian i16" */
{
    snprintf(buf, nbytes, "%s%c%d", e.swap ? "big-endian " : "", e.kind == 'b' ? 'f' : e.kind, 8 * e.size);
    return buf;
}
/* Size in bytes of a file with this header; -1: more than 2^63 */
static int64_t dt__head_bytes(const dt__head *h)
{
    int64_t n = h->elem.size;
    for (int i = 0; i < h->ndim; i++)
        if (__builtin_mul_overflow(n, h->dim[i], &n)) return -1;
    return __builtin_add_overflow(n, h->base, &n) ? -1 : n;
}
/* The size of the file must be exactly what its header announces. */
static int dt__head_fits(const char *call, const dt__file *f, const dt__head *h)
{
    int64_t     want = dt__head_bytes(h);
    char        kind[32];
    const char *shape = dt__shape_text(h->dim, h->ndim);
    dt__elem_text(h->elem, kind, sizeof kind);
    for (int i = 0; i < h->ndim; i++)
        if (!h->dim[i])
            return dt_fail(DT_ERR_FILE, "%s: %.300s has no items: its header says shape %s", call, f->path, shape);
    if (want < 0)
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s: its header asks for shape %s of %s, more than a file can hold; the file "
                       "has %" PRId64 " bytes",
                       call, f->path, shape, kind, f->size);
    if (f->size < want)
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s is truncated: it has %" PRId64 " bytes, its header (shape %s of %s) "
                       "expects %" PRId64,
                       call, f->path, f->size, shape, kind, want);
    if (f->size > want)
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s is too long: it has %" PRId64 " bytes, its header (shape %s of %s) "
                       "expects %" PRId64,
                       call, f->path, f->size, shape, kind, want);
    return 0;
}
/* Opens n files and reads their headers; all must have the same dtype and item shape. h: header of the first file. */
static int dt__shards(const char *call, dt__file *f, int64_t n, dt__head_fn head, bool hold, dt__head *h,
                      int64_t *total)
{
    *total = 0;
    for (int64_t i = 0; i < n; i++) {
        dt__head one;
        memset(&one, 0, sizeof one);
        if (dt__file_open(call, f + i) || head(call, f + i, &one)) return dt_error_code();
        if (i == 0) *h = one;
        char a[32], b[32];
        if (memcmp(&one.elem, &h->elem, sizeof one.elem))
            return dt_fail(DT_ERR_FILE, "%s: %.300s holds %s, %.300s holds %s; files of a dataset must have one dtype", call,
                           f[0].path, dt__elem_text(h->elem, a, sizeof a), f[i].path,
                           dt__elem_text(one.elem, b, sizeof b));
        if (one.ndim != h->ndim || memcmp(one.dim + 1, h->dim + 1, (size_t)(one.ndim - 1) * sizeof *one.dim))
            return dt_fail(DT_ERR_FILE,
                           "%s: items of %.300s have shape %s, of %.300s %s; files of a dataset must have one item shape", call,
                           f[0].path, dt__shape_text(h->dim + 1, h->ndim - 1), f[i].path,
                           dt__shape_text(one.dim + 1, one.ndim - 1));
        if (hold && dt__file_hold(call, f + i)) return dt_error_code();
        if (dt__file_place(call, f + i, total, one.dim[0], one.base, n <= DT__KEEP_OPEN)) return dt_error_code();
    }
    return 0;
}
/* File i of y must have as many items as file i of x. */
static int dt__pairs_ok(const char *call, const dt_dataset *s)
{
    for (int64_t i = 0; i < s->nfiles; i++)
        if (s->file[i].n != s->yfile[i].n)
            return dt_fail(DT_ERR_FILE, "%s: %.300s has %" PRId64 " items, its labels %.300s are %" PRId64, call,
                           s->file[i].path, s->file[i].n, s->yfile[i].path, s->yfile[i].n);
    return 0;
}
/* Checks all labels of files that are held in memory. */
static int dt__labels_ok(const char *call, const dt_dataset *s)
{
    int64_t out[512];
    for (int64_t k = 0; k < s->nyfiles; k++) {
        const dt__file *f = s->yfile + k;
        for (int64_t i = 0, m; i < f->n; i += m) {
            m = f->n - i < 512 ? f->n - i : 512;
            if (dt__labels(call, s, f->first + i, m, (const char *)f->held + f->base + i * s->ystep, (size_t)s->ystep,
                           (char *)out))
                return dt_error_code();
        }
    }
    return 0;
}
/* The field that a header describes; image: (h, w) becomes (1, h, w) */
static int dt__head_field(const char *call, const char *what, dt__field *f, const dt__head *h, bool image,
                          int64_t classes)
{
    dt_shape shape;
    memset(&shape, 0, sizeof shape);
    if (image) shape.dim[shape.ndim++] = 1;
    for (int i = 1; i < h->ndim; i++) shape.dim[shape.ndim++] = h->dim[i];
    return dt__field_set(call, what, f, h->elem, dt__elem_dtype(h->elem), shape, classes);
}
/* Opens the files of s->file and s->yfile. hold: labels are read into memory and checked now, not at each read. */
static dt_dataset *dt__arrays_open(const char *call, dt_dataset *s, dt__head_fn head, bool hold, bool image, bool channel,
                                   int64_t classes)
{
    dt__head h;
    int64_t  n;
    if (dt__err.code == DT_OK && classes && !s->nyfiles) dt_fail(DT_ERR_ARG, "%s: .classes without .labels", call);
    if (dt__err.code != DT_OK || dt__shards(call, s->file, s->nfiles, head, false, &h, &s->n)) return dt__set_done(s);
    if (image && (h.ndim != 3 || h.elem.kind != 'u' || h.elem.size != 1)) {
        char kind[32];
        dt_fail(DT_ERR_FILE, "%s: %.300s holds %s of shape %s, expected images: u8 of shape (n, h, w)", call,
                s->file[0].path, dt__elem_text(h.elem, kind, sizeof kind), dt__shape_text(h.dim, h.ndim));
        return dt__set_done(s);
    }
    if (channel && h.ndim != 3) {
        dt_fail(DT_ERR_FILE, "%s: %.300s holds shape %s; .channel is for images of shape (n, h, w)", call, s->file[0].path,
                dt__shape_text(h.dim, h.ndim));
        return dt__set_done(s);
    }
    if (dt__head_field(call, "x", &s->x, &h, image || channel, 0)) return dt__set_done(s);
    s->step = (int64_t)s->x.stored;
    if (!s->nyfiles) return s;
    s->has_y = true;
    s->ykind = DT__Y_FILES;
    s->classes = classes;
    if (s->nfiles != s->nyfiles)
        dt_fail(DT_ERR_FILE,
                "%s: %" PRId64 " files (%.300s ...) have %" PRId64 " files of labels (%.300s ...); expected as many: one "
                "file of labels for each",
                call, s->nfiles, s->file[0].path, s->nyfiles, s->yfile[0].path);
    if (dt__err.code != DT_OK || dt__shards(call, s->yfile, s->nyfiles, head, hold, &h, &n) || dt__pairs_ok(call, s) ||
        dt__head_field(call, "y", &s->y, &h, false, classes))
        return dt__set_done(s);
    s->ystep = (int64_t)s->y.stored;
    if (hold && classes) dt__labels_ok(call, s);
    return dt__set_done(s);
}
static dt_dataset *dt__arrays_find(const char *call, const char *path, dt_open_opts o, dt__head_fn head, bool hold)
{
    if (dt__err.code != DT_OK) return NULL;
    dt_dataset *s = dt__set_new(call, DT__SET_FILES);
    if (!s || dt__files_find(call, path, &s->file, &s->nfiles)) return dt__set_done(s);
    if (o.labels && dt__files_find(call, o.labels, &s->yfile, &s->nyfiles)) return dt__set_done(s);
    return dt__arrays_open(call, s, head, hold, false, o.channel, o.classes);
}

/* ==================================================================================================== >>idx
   A file is two zero bytes, a type, the number of dimensions, the dimensions as 32-bit numbers, the data. All numbers
   are big-endian. */
enum { DT__IDX_TYPES = 6 };
typedef struct dt__idx_type {
    uint8_t  code; /* byte 2 of the file */
    dt__elem elem;
} dt__idx_type;
static const dt__idx_type dt__idx_types[DT__IDX_TYPES] = { { 0x08, { 'u', 1, 0 } }, { 0x09, { 'i', 1, 0 } },
                                                           { 0x0b, { 'i', 2, 1 } }, { 0x0c, { 'i', 4, 1 } },
                                                           { 0x0d, { 'f', 4, 1 } }, { 0x0e, { 'f', 8, 1 } } };
/* Parses the header in the first 'have' bytes. Returns 0, 1 if it needs more bytes, or a negative status. */
static int dt__idx_parse(const char *call, const char *path, const uint8_t *p, int64_t have, dt__head *h)
{
    int k = 0;
    if (have < 4) return 1;
    if (p[0] || p[1])
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s begins with %02x %02x %02x %02x, expected 00 00, a type and the number of "
                       "dimensions: it is not an IDX file",
                       call, path, p[0], p[1], p[2], p[3]);
    while (k < DT__IDX_TYPES && dt__idx_types[k].code != p[2]) k++;
    if (k == DT__IDX_TYPES)
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s, byte 2: type %02x, expected 08 (u8), 09 (i8), 0b (i16), 0c (i32), "
                       "0d (f32) or 0e (f64)",
                       call, path, p[2]);
    if (p[3] < 1 || p[3] > DT_MAX_DIMS)
        return dt_fail(DT_ERR_FILE, "%s: %.300s, byte 3: %d dimensions, expected 1 to %d", call, path, p[3],
                       DT_MAX_DIMS);
    h->elem = dt__idx_types[k].elem;
    h->ndim = p[3];
    h->base = 4 + 4 * h->ndim;
    if (have < h->base) return 1;
    for (k = 0; k < h->ndim; k++) {
        const uint8_t *d = p + 4 + 4 * k;
        h->dim[k] = (int64_t)d[0] << 24 | (int64_t)d[1] << 16 | (int64_t)d[2] << 8 | (int64_t)d[3];
    }
    return 0;
}
#ifdef DT_USE_ZLIB
static voidpf dt__z_alloc(voidpf user, uInt n, uInt each) /* the block's size is stored in the 64 bytes before it */
{
    size_t bytes = (size_t)n * each + 64;
    char  *p = (char *)dt_mem_alloc(bytes);
    (void)user;
    if (!p) return Z_NULL;
    memcpy(p, &bytes, sizeof bytes);
    return p + 64;
}
static void dt__z_free(voidpf user, voidpf p)
{
    size_t bytes;
    (void)user;
    if (!p) return;
    memcpy(&bytes, (char *)p - 64, sizeof bytes);
    dt_mem_free((char *)p - 64, bytes);
}
typedef struct dt__gz { /* a gzipped IDX file while it is unpacked */
    uint8_t  head[4 + 4 * DT_MAX_DIMS];
    uint8_t *buf;             /* NULL until the header is complete */
    int64_t  have, cap, want; /* bytes unpacked, size of buf, size according to the header; -1 until it is complete */
} dt__gz;
/* inflate has written n more bytes: parse the header once it is complete, and enlarge the buffer if it is full. */
static int dt__gz_take(const char *call, const dt__file *f, dt__gz *g, int64_t n)
{
    dt__head h;
    g->have += n;
    if (g->want < 0) {
        memset(&h, 0, sizeof h);
        int rc = dt__idx_parse(call, f->path, g->head, g->have, &h);
        if (rc) return rc < 0 ? rc : 0;
        /* deflate expands a byte to at most 1032 bytes */
        if ((g->want = dt__head_bytes(&h)) < 0 || g->want / 1032 > f->size)
            return dt_fail(DT_ERR_FILE,
                           "%s: %.300s: its header asks for shape %s; the %" PRId64 " bytes of gzip cannot "
                           "hold that",
                           call, f->path, dt__shape_text(h.dim, h.ndim), f->size);
    }
    if (g->have > g->want)
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s is too long: it unpacks to more than the %" PRId64 " bytes its header "
                       "expects",
                       call, f->path, g->want);
    if ((!g->buf || g->have == g->cap) && g->cap < g->want) {
        int64_t cap = g->cap ? 2 * g->cap : 1 << 16;
        if (cap > g->want) cap = g->want;
        uint8_t *more = (uint8_t *)dt_mem_alloc((size_t)cap);
        if (!more)
            return dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " bytes of %.300s", call, cap, f->path);
        memcpy(more, g->buf ? g->buf : g->head, (size_t)g->have);
        dt_mem_free(g->buf, (size_t)g->cap);
        g->buf = more;
        g->cap = cap;
    }
    return 0;
}
/* A gzip file is one or more members, then perhaps zero bytes. */
enum { DT__GZ_MEMBER = 0, DT__GZ_ENDED, DT__GZ_PADDING }; /* inside a member; after one; in the zero bytes */
static int dt__gz_run(const char *call, const dt__file *f, z_stream *z, dt__gz *g)
{
    uint8_t in[1 << 14], over;
    int64_t at = 0;
    int     state = DT__GZ_MEMBER;
    for (;;) {
        if (!z->avail_in && at < f->size) {
            size_t n = f->size - at < (int64_t)sizeof in ? (size_t)(f->size - at) : sizeof in;
            if (dt__file_read(call, f, at, in, n)) return dt_error_code();
            at += (int64_t)n;
            z->next_in = in;
            z->avail_in = (uInt)n;
        }
        if (state != DT__GZ_MEMBER && !z->avail_in) break;
        if (state != DT__GZ_MEMBER) {
            if (*z->next_in == 0) state = DT__GZ_PADDING;
            if (*z->next_in != (state == DT__GZ_PADDING ? 0 : 0x1f))
                return dt_fail(DT_ERR_FILE, "%s: %.300s, byte %" PRId64 ": %02x after the end of the gzip stream",
                               call, f->path, at - z->avail_in, *z->next_in);
            if (state == DT__GZ_PADDING) {
                z->next_in++, z->avail_in--;
                continue;
            }
            inflateReset(z);
            state = DT__GZ_MEMBER;
        }
        uInt room = g->want < 0 ? (uInt)(sizeof g->head - (size_t)g->have) : 1;
        if (g->want > g->have) room = g->cap - g->have < 1 << 30 ? (uInt)(g->cap - g->have) : 1u << 30;
        z->next_out = g->want < 0 ? g->head + g->have : g->want > g->have ? g->buf + g->have : &over;
        z->avail_out = room;
        int rc = inflate(z, Z_NO_FLUSH);
        if (rc == Z_MEM_ERROR) return dt_fail(DT_ERR_MEMORY, "%s: out of memory to unpack %.300s", call, f->path);
        if (rc == Z_BUF_ERROR)
            return dt_fail(DT_ERR_FILE,
                           "%s: %.300s is truncated: its gzip stream breaks off after %" PRId64 " bytes, which "
                           "unpack to %" PRId64 "; copy the file again",
                           call, f->path, f->size, g->have);
        if (rc != Z_OK && rc != Z_STREAM_END)
            return dt_fail(DT_ERR_FILE, "%s: %.300s, byte %" PRId64 ": the gzip stream is damaged (%s)", call, f->path,
                           at - z->avail_in, z->msg ? z->msg : "no reason given");
        if (dt__gz_take(call, f, g, (int64_t)(room - z->avail_out))) return dt_error_code();
        state = rc == Z_STREAM_END ? DT__GZ_ENDED : DT__GZ_MEMBER;
    }
    if (g->want < 0 || g->have < g->want)
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s is truncated: it unpacks to %" PRId64 " bytes, its header expects %s%" PRId64, call,
                       f->path, g->have, g->want < 0 ? "at least " : "", g->want < 0 ? 8 : g->want);
    return 0;
}
#endif
/* Unpacks a gzipped file into memory. The header gives the final size, but the buffer grows only as bytes are unpacked,
   so a forged header cannot exhaust memory. */
static int dt__idx_unpack(const char *call, dt__file *f)
{
#ifdef DT_USE_ZLIB
    z_stream z;
    dt__gz   g;
    memset(&z, 0, sizeof z);
    memset(&g, 0, sizeof g);
    g.want = -1;
    z.zalloc = dt__z_alloc;
    z.zfree = dt__z_free;
    if (inflateInit2(&z, 15 + 16) != Z_OK)
        return dt_fail(DT_ERR_MEMORY, "%s: out of memory to unpack %.300s", call, f->path);
    int rc = dt__gz_run(call, f, &z, &g);
    inflateEnd(&z);
    if (rc) {
        dt_mem_free(g.buf, (size_t)g.cap);
        return dt_error_code();
    }
    f->held = g.buf; /* all of it is used: cap == want */
    f->size = g.want;
    dt__file_close(f);
    return 0;
#else
    return dt_fail(DT_ERR_FILE,
                   "%s: %.300s is gzipped: unpack it with gzip -d, or build with -DDT_USE_ZLIB and link with "
                   "-lz",
                   call, f->path);
#endif
}
static int dt__idx_head(const char *call, dt__file *f, dt__head *h)
{
    uint8_t p[4 + 4 * DT_MAX_DIMS] = { 0 };
    size_t  len = strlen(f->path), have = f->size < (int64_t)sizeof p ? (size_t)f->size : sizeof p;
    if (dt__file_read(call, f, 0, p, have)) return dt_error_code();
    if ((len > 3 && !strcmp(f->path + len - 3, ".gz")) || (p[0] == 0x1f && p[1] == 0x8b)) {
        if (dt__idx_unpack(call, f)) return dt_error_code();
        have = f->size < (int64_t)sizeof p ? (size_t)f->size : sizeof p;
        memcpy(p, f->held, have);
    }
    int rc = dt__idx_parse(call, f->path, p, (int64_t)have, h);
    if (rc < 0) return rc;
    if (rc)
        return dt_fail(DT_ERR_FILE, "%s: %.300s is truncated: it has %" PRId64 " bytes, an IDX header expects %" PRId64,
                       call, f->path, f->size, have < 4 ? 8 : h->base);
    return dt__head_fits(call, f, h);
}
DT_API dt_dataset *dt_idx_open_with(const char *path, dt_open_opts o)
{
    return dt__arrays_find("dt_idx_open", path, o, dt__idx_head, true);
}

/* One file, dir/NAME or dir/NAME.gz; the name is not a pattern. */
static int dt__idx_file(const char *call, const char *dir, const char *name, dt__file **out, int64_t *n)
{
    struct stat st;
    if (!(*out = dt__files_new(call, 1))) return dt_error_code();
    *n = 1;
    char *plain = dt__path(dir, name, ""), *gz = plain ? dt__path(dir, name, ".gz") : NULL;
    if (gz && !lstat(plain, &st)) {
        (*out)->path = plain;
        plain = NULL;
    } else if (gz && !lstat(gz, &st)) {
        (*out)->path = gz;
        gz = NULL;
    } else if (gz) {
        dt_fail(DT_ERR_FILE, "%s: cannot open %.300s (nor with .gz): %s; pass the directory that has it", call, plain,
                strerror(errno));
    }
    dt__free_text(plain);
    dt__free_text(gz);
    return dt_error_code();
}
static dt_dataset *dt__mnist_open(const char *call, const char *dir, const char *prefix, const char *part,
                                  int64_t classes)
{
    char        name[100];
    dt_dataset *s = dt__set_new(call, DT__SET_FILES);
    if (!s) return NULL;
    snprintf(name, sizeof name, "%s%s-images-idx3-ubyte", prefix, part);
    if (dt__idx_file(call, dir, name, &s->file, &s->nfiles)) return dt__set_done(s);
    snprintf(name, sizeof name, "%s%s-labels-idx1-ubyte", prefix, part);
    if (dt__idx_file(call, dir, name, &s->yfile, &s->nyfiles)) return dt__set_done(s);
    return dt__arrays_open(call, s, dt__idx_head, true, true, false, classes);
}
/* Checks the directory and part of a well-known dataset. */
static bool dt__dir_ok(const char *call, const char *dir, dt_part part)
{
    if (dt__err.code != DT_OK) return false;
    if (!dir) dt_fail(DT_ERR_ARG, "%s: the directory is NULL", call);
    else if (part != DT_TRAIN && part != DT_TEST)
        dt_fail(DT_ERR_ARG, "%s: part is %d, expected DT_TRAIN or DT_TEST", call, (int)part);
    return dt__err.code == DT_OK;
}
DT_API dt_dataset *dt_mnist_open(const char *dir, dt_part part)
{
    static const char call[] = "dt_mnist_open";
    return dt__dir_ok(call, dir, part) ? dt__mnist_open(call, dir, "", part == DT_TRAIN ? "train" : "t10k", 10)
                                         : NULL;
}
enum { DT__EMNIST_SPLITS = 6 };
typedef struct dt__emnist_split {
    char name[12];
    int  classes;
} dt__emnist_split;
static const dt__emnist_split dt__emnist_splits[DT__EMNIST_SPLITS] = { { "letters", 27 }, { "balanced", 47 },
                                                                       { "digits", 10 },  { "mnist", 10 },
                                                                       { "byclass", 62 }, { "bymerge", 47 } };
DT_API dt_dataset *dt_emnist_open(const char *dir, const char *split, dt_part part)
{
    static const char call[] = "dt_emnist_open";
    char              prefix[32];
    int               k = 0;
    if (!dt__dir_ok(call, dir, part)) return NULL;
    while (k < DT__EMNIST_SPLITS && (!split || strcmp(split, dt__emnist_splits[k].name))) k++;
    if (k == DT__EMNIST_SPLITS) {
        dt_fail(DT_ERR_ARG, "%s: split '%.100s', expected letters, balanced, digits, mnist, byclass or bymerge", call,
                split ? split : "NULL");
        return NULL;
    }
    snprintf(prefix, sizeof prefix, "emnist-%s-", dt__emnist_splits[k].name);
    return dt__mnist_open(call, dir, prefix, part == DT_TRAIN ? "train" : "test", dt__emnist_splits[k].classes);
}

/* ==================================================================================================== >>npy
   A file is the magic bytes, a version, the length of the header, the header (a Python dictionary literal), the data. */
enum { DT__NPY_HEADER = 1 << 16 }; /* bytes; longer headers are refused */
typedef struct dt__npy {           /* parser of a header */
    const char *call, *path;
    const char *text, *p, *end;
    int64_t     at; /* offset of text in the file */
} dt__npy;

/* Fails with the character at r->p and what was expected there. */
static int dt__npy_bad(const dt__npy *r, const char *expected)
{
    char found[8] = "the end";
    if (r->p < r->end) snprintf(found, sizeof found, *r->p >= 32 && *r->p < 127 ? "'%c'" : "\\x%02x", (uint8_t)*r->p);
    return dt_fail(DT_ERR_FILE, "%s: %.300s, byte %" PRId64 ": %s in the header, expected %s", r->call, r->path,
                   r->at + (r->p - r->text), found, expected);
}
static void dt__npy_space(dt__npy *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r')) r->p++;
}
static bool dt__npy_is(dt__npy *r, char c) /* skips spaces; if c follows, skips it and returns true */
{
    dt__npy_space(r);
    if (r->p == r->end || *r->p != c) return false;
    r->p++;
    return true;
}
static int dt__npy_string(dt__npy *r, char *out, size_t nbytes, const char *expected)
{
    char   quote = dt__npy_is(r, '\'') ? '\'' : '"';
    size_t n = 0;
    if (quote == '"' && !dt__npy_is(r, '"')) return dt__npy_bad(r, expected);
    for (; r->p < r->end && *r->p != quote; r->p++) {
        if (*r->p < 32 || *r->p == '\\' || n + 1 >= nbytes) return dt__npy_bad(r, expected);
        out[n++] = *r->p;
    }
    out[n] = 0;
    return r->p < r->end ? (r->p++, 0) : dt__npy_bad(r, "the end of a string");
}
static int dt__npy_shape(dt__npy *r, dt__head *h)
{
    if (!dt__npy_is(r, '(')) return dt__npy_bad(r, "the shape, as (2, 3)");
    while (!dt__npy_is(r, ')')) { /* this also skips spaces */
        int64_t     v = 0;
        const char *from = r->p;
        for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
            if ((r->p > from && *from == '0') || __builtin_mul_overflow(v, 10, &v) ||
                __builtin_add_overflow(v, *r->p - '0', &v))
                return dt__npy_bad(r, "a dimension below 2^63");
        if (r->p == from) return dt__npy_bad(r, "a dimension or ')'");
        if (r->p < r->end && *r->p == 'L') r->p++; /* suffix that Python 2 wrote */
        if (h->ndim == DT_MAX_DIMS)
            return dt_fail(DT_ERR_FILE, "%s: %.300s has more than %d dimensions; reshape the array to fewer", r->call,
                           r->path, DT_MAX_DIMS);
        h->dim[h->ndim++] = v;
        if (dt__npy_is(r, ',')) continue;
        if (r->p == r->end || *r->p != ')') return dt__npy_bad(r, "',' or ')'");
        if (h->ndim == 1) return dt__npy_bad(r, "',': a shape of one dimension is (3,)");
    }
    return 0;
}
/* The dtype, such as '<f4': byte order, kind, number of bytes */
static int dt__npy_descr(dt__npy *r, dt__head *h)
{
    static const char ok[][3] = { "b1", "u1", "i1", "u2", "i2", "u4", "i4", "i8", "f2", "f4", "f8" };
    char              d[64];
    const char       *why = "it is not supported; save the array as float32 or int64";
    if (dt__npy_is(r, '[') || dt__npy_is(r, '('))
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s, byte %" PRId64 ": a structured dtype, expected numbers of one type; save "
                       "each field as its own array",
                       r->call, r->path, r->at + (r->p - 1 - r->text));
    if (dt__npy_string(r, d, sizeof d, "the dtype, as '<f4'")) return dt_error_code();
    const char *t = d + (d[0] && strchr("|<>=", d[0]));
    for (size_t k = 0; k < sizeof ok / sizeof *ok; k++)
        if (!strcmp(t, ok[k]) && (d[0] != '|' || t[1] == '1')) {
            h->elem.kind = t[0] == 'b' ? 'u' : t[0];
            h->elem.size = (uint8_t)(t[1] - '0');
            h->elem.swap = d[0] == '>' && t[1] != '1';
            return 0;
        }
    if (t[0] == 'O') why = "objects are pickled Python, which is never loaded; save an array of numbers";
    else if (!strcmp(t, "u8")) why = "64-bit unsigned integers are not supported; save the array as int64";
    else if (t[0] == 'c') why = "complex numbers are not supported; save .real and .imag as two arrays";
    else if (t[0] == 'S' || t[0] == 'U' || t[0] == 'a') why = "strings are not supported; save an array of numbers";
    else if (t[0] == 'V')
        why = "raw bytes (as bfloat16 is written, too) are not supported; save the array as float32 or uint8";
    else if (t[0] == 'M' || t[0] == 'm') why = "dates and times are not supported; save the array as int64";
    else if (t[0] == 'f') why = "floating point of another size than 2, 4 or 8 bytes; save the array as float32";
    return dt_fail(DT_ERR_FILE, "%s: %.300s: dtype '%s': %s", r->call, r->path, d, why);
}
static int dt__npy_parse(dt__npy *r, dt__head *h)
{
    static const char *const keys[] = { "descr", "fortran_order", "shape" };
    unsigned                 seen = 0;
    bool                     fortran = false;
    if (!dt__npy_is(r, '{')) return dt__npy_bad(r, "'{'");
    while (!dt__npy_is(r, '}')) {
        char        key[16];
        const char *from = r->p;
        int         k = 0;
        if (dt__npy_string(r, key, sizeof key, "'descr', 'fortran_order', 'shape' or '}'")) return dt_error_code();
        while (k < 3 && strcmp(key, keys[k])) k++;
        if (k == 3 || (seen >> k & 1)) {
            r->p = from;
            return dt__npy_bad(r, "'descr', 'fortran_order' and 'shape', each once");
        }
        seen |= 1u << k;
        if (!dt__npy_is(r, ':')) return dt__npy_bad(r, "':'");
        if (k == 0 && dt__npy_descr(r, h)) return dt_error_code();
        if (k == 1) {
            dt__npy_space(r);
            fortran = r->end - r->p >= 4 && !memcmp(r->p, "True", 4);
            if (!fortran && (r->end - r->p < 5 || memcmp(r->p, "False", 5))) return dt__npy_bad(r, "True or False");
            r->p += fortran ? 4 : 5;
        }
        if (k == 2 && dt__npy_shape(r, h)) return dt_error_code();
        if (dt__npy_is(r, ',')) continue;
        if (!dt__npy_is(r, '}')) return dt__npy_bad(r, "',' or '}'");
        break;
    }
    dt__npy_space(r);
    if (r->p < r->end) return dt__npy_bad(r, "nothing after the '}'");
    if (seen != 7)
        return dt_fail(DT_ERR_FILE, "%s: %.300s: its header lacks '%s'", r->call, r->path,
                       keys[seen & 1 ? seen & 2 ? 2 : 1 : 0]);
    if (!h->ndim)
        return dt_fail(DT_ERR_FILE, "%s: %.300s has shape (): one number, expected a first dimension that counts items; "
                       "save an array",
                       r->call, r->path);
    if (fortran && h->ndim > 1)
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s is in Fortran order, expected C order, in which items are contiguous; save "
                       "np.ascontiguousarray of it",
                       r->call, r->path);
    return 0;
}
static int dt__npy_head(const char *call, dt__file *f, dt__head *h)
{
    uint8_t b[12] = { 0 };
    int64_t lead = f->size < 12 ? f->size : 12;
    if (dt__file_read(call, f, 0, b, (size_t)lead)) return dt_error_code();
    if (memcmp(b, "\x93NUMPY", lead < 6 ? (size_t)lead : 6))
        return dt_fail(DT_ERR_FILE,
                       "%s: %.300s begins with %02x %02x %02x %02x, expected 93 'NUMPY': it is not a .npy file%s", call,
                       f->path, b[0], b[1], b[2], b[3],
                       b[0] == 0x1f && b[1] == 0x8b ? " but gzipped; unpack it with gzip -d"
                       : b[0] == 'P' && b[1] == 'K' ? " but .npz or another zip; unpack it"
                                                    : "");
    if (lead < 12)
        return dt_fail(DT_ERR_FILE, "%s: %.300s is truncated: it has %" PRId64 " bytes, a .npy file more than 12", call,
                       f->path, f->size);
    if (b[6] < 1 || b[6] > 3 || b[7])
        return dt_fail(DT_ERR_FILE, "%s: %.300s, byte 6: version %d.%d, expected 1.0, 2.0 or 3.0", call, f->path, b[6],
                       b[7]);
    lead = b[6] == 1 ? 10 : 12;
    int64_t n = (int64_t)b[8] | (int64_t)b[9] << 8;
    if (b[6] > 1) n |= (int64_t)b[10] << 16 | (int64_t)b[11] << 24;
    if (n > DT__NPY_HEADER)
        return dt_fail(DT_ERR_FILE, "%s: %.300s, byte 8: a header of %" PRId64 " bytes, expected at most %d", call,
                       f->path, n, (int)DT__NPY_HEADER);
    if (n > f->size - lead)
        return dt_fail(DT_ERR_FILE, "%s: %.300s is truncated: it has %" PRId64 " bytes, its header expects %" PRId64,
                       call, f->path, f->size, lead + n);
    char *text = (char *)dt_mem_alloc((size_t)n);
    if (!text) return dt_fail(DT_ERR_MEMORY, "%s: out of memory for the header of %.300s", call, f->path);
    dt__npy r = { call, f->path, text, text, text + n, lead };
    h->base = lead + n;
    if (!dt__file_read(call, f, lead, text, (size_t)n)) dt__npy_parse(&r, h);
    dt_mem_free(text, (size_t)n);
    return dt__err.code != DT_OK ? (int)dt_error_code() : dt__head_fits(call, f, h);
}
DT_API dt_dataset *dt_npy_open_with(const char *path, dt_open_opts o)
{
    return dt__arrays_find("dt_npy_open", path, o, dt__npy_head, false);
}

/* ==================================================================================================== >>records */
static const int64_t dt__max_offset = INT64_C(1) << 50; /* larger than any file; sums of a few do not overflow */

/* Opens files of records; the fields and offsets of x and y are set already. */
static dt_dataset *dt__records_open(const char *call, dt_dataset *s, int64_t skip)
{
    if (dt__err.code != DT_OK) return dt__set_done(s);
    for (int64_t i = 0; i < s->nfiles; i++) {
        dt__file *f = s->file + i;
        if (dt__file_open(call, f)) break;
        int64_t rest = f->size - skip;
        if (rest <= 0)
            dt_fail(DT_ERR_FILE, "%s: %.300s has %" PRId64 " bytes: no records after the %" PRId64 " to skip", call,
                    f->path, f->size, skip);
        else if (rest % s->step)
            dt_fail(DT_ERR_FILE,
                    "%s: %.300s has %" PRId64 " bytes%s: expected a multiple of the %" PRId64 " of a record; %" PRId64
                    " are left over after %" PRId64 " records",
                    call, f->path, rest, skip ? " of records" : "", s->step, rest % s->step, rest / s->step);
        if (dt__err.code != DT_OK || dt__file_place(call, f, &s->n, rest / s->step, skip, s->nfiles <= DT__KEEP_OPEN))
            break;
    }
    return dt__set_done(s);
}
static void dt__swap_field(dt__field *f) /* stored big-endian */
{
    if (f->elem.size == 1) return;
    f->elem.swap = 1;
    f->plain = false;
}
DT_API dt_dataset *dt_records_open_with(const char *path, dt_records_opts o)
{
    static const char call[] = "dt_records_open";
    dt__elem          as_is = { 0, 0, 0 };
    if (dt__err.code != DT_OK) return NULL;
    dt_dataset *s = dt__set_new(call, DT__SET_FILES);
    if (!s || dt__field_set(call, "x", &s->x, as_is, o.x_dtype, o.x_shape, 0) ||
        (o.has_y && dt__field_set(call, "y", &s->y, as_is, o.y_dtype, o.y_shape, o.classes)))
        return dt__set_done(s);
    int64_t end = o.x_at > dt__max_offset || o.y_at > dt__max_offset ? -1 : o.x_at + (int64_t)s->x.stored;
    if (end >= 0 && o.has_y && o.y_at + (int64_t)s->y.stored > end) end = o.y_at + (int64_t)s->y.stored;
    if (o.classes && !o.has_y) dt_fail(DT_ERR_ARG, "%s: .classes without .has_y", call);
    if (o.x_at < 0 || o.y_at < 0 || o.skip < 0 || o.nbytes < 0 || end < 0 || o.skip > dt__max_offset ||
        o.nbytes > dt__max_offset)
        dt_fail(DT_ERR_ARG, "%s: .x_at, .y_at, .skip or .nbytes is negative or too large; expected 0 to 2^50", call);
    else if (o.nbytes && o.nbytes < end)
        dt_fail(DT_ERR_ARG, "%s: .nbytes is %" PRId64 ", but x and y need %" PRId64, call, o.nbytes, end);
    if (dt__err.code != DT_OK || dt__files_find(call, path, &s->file, &s->nfiles)) return dt__set_done(s);
    if (o.big_endian) dt__swap_field(&s->x);
    if (o.big_endian && o.has_y) dt__swap_field(&s->y);
    s->has_y = o.has_y;
    s->ykind = o.has_y ? DT__Y_RECORD : DT__Y_NONE;
    s->classes = o.classes;
    s->x_at = o.x_at;
    s->y_at = o.y_at;
    s->step = o.nbytes ? o.nbytes : end;
    return dt__records_open(call, s, o.skip);
}

/* Opens dir/NAME.bin, or dir/NAME1.bin ... dir/NAMEn.bin if n > 1. A record is 'labels' bytes of labels, of which the
   one at y_at is y, and an image. */
static dt_dataset *dt__cifar_open(const char *call, const char *dir, const char *name, int n, int labels, int y_at,
                                  int64_t classes)
{
    dt__elem    u8 = { 'u', 1, 0 };
    dt_shape    image, one;
    dt_dataset *s = dt__set_new(call, DT__SET_FILES);
    if (!s || !(s->file = dt__files_new(call, n))) return dt__set_done(s);
    s->nfiles = n;
    for (int i = 0; i < n; i++) {
        char file[32];
        snprintf(file, sizeof file, n > 1 ? "%s%d" : "%s", name, i + 1);
        if (!(s->file[i].path = dt__path(dir, file, ".bin"))) return dt__set_done(s);
    }
    memset(&image, 0, sizeof image);
    memset(&one, 0, sizeof one);
    image.ndim = 3;
    image.dim[0] = 3;
    image.dim[1] = image.dim[2] = 32;
    if (dt__field_set(call, "x", &s->x, u8, DT_U8, image, 0) ||
        dt__field_set(call, "y", &s->y, u8, DT_U8, one, classes))
        return dt__set_done(s);
    s->has_y = true;
    s->ykind = DT__Y_RECORD;
    s->classes = classes;
    s->x_at = labels;
    s->y_at = y_at;
    s->step = labels + 3072;
    return dt__records_open(call, s, 0);
}
DT_API dt_dataset *dt_cifar10_open(const char *dir, dt_part part)
{
    static const char call[] = "dt_cifar10_open";
    if (!dt__dir_ok(call, dir, part)) return NULL;
    return part == DT_TRAIN ? dt__cifar_open(call, dir, "data_batch_", 5, 1, 0, 10)
                            : dt__cifar_open(call, dir, "test_batch", 1, 1, 0, 10);
}
DT_API dt_dataset *dt_cifar100_open(const char *dir, dt_part part, bool coarse)
{
    static const char call[] = "dt_cifar100_open";
    if (!dt__dir_ok(call, dir, part)) return NULL;
    return dt__cifar_open(call, dir, part == DT_TRAIN ? "train" : "test", 1, 2, coarse ? 0 : 1, coarse ? 20 : 100);
}

/* Windows over tokens are records that overlap: y starts one token after x. */
DT_API dt_dataset *dt_tokens_open_with(const char *path, dt_tokens_opts o)
{
    static const char call[] = "dt_tokens_open";
    dt_shape          shape;
    dt__elem          e = { 'u', 2, 0 };
    if (dt__err.code != DT_OK) return NULL;
    if (!o.stride) o.stride = o.length;
    if (o.nbytes) e.size = (uint8_t)o.nbytes;
    if (o.length <= 0 || o.length > dt__max_offset || o.stride < 0 || o.stride > dt__max_offset)
        dt_fail(DT_ERR_ARG, "%s: .length is %" PRId64 " and .stride %" PRId64 ", expected 1 to 2^50", call, o.length,
                o.stride);
    else if (o.nbytes && o.nbytes != 1 && o.nbytes != 2 && o.nbytes != 4)
        dt_fail(DT_ERR_ARG, "%s: .nbytes of a token is %d, expected 1, 2 or 4", call, o.nbytes);
    else if (o.skip < 0 || o.vocab < 0 || o.skip > dt__max_offset)
        dt_fail(DT_ERR_ARG, "%s: .skip or .vocab is negative or too large; expected .skip of 0 to 2^50 bytes", call);
    memset(&shape, 0, sizeof shape);
    shape.ndim = 1;
    shape.dim[0] = o.length;
    dt_dataset *s = dt__err.code == DT_OK ? dt__set_new(call, DT__SET_FILES) : NULL;
    if (!s || dt__field_set(call, "x", &s->x, e, DT_I64, shape, 0) || dt__files_find(call, path, &s->file, &s->nfiles))
        return dt__set_done(s);
    s->y = s->x;
    s->has_y = true;
    s->ykind = DT__Y_RECORD;
    s->vocab = o.vocab;
    s->y_at = e.size;
    s->step = o.stride * e.size;
    for (int64_t i = 0; i < s->nfiles; i++) {
        dt__file *f = s->file + i;
        if (dt__file_open(call, f)) break;
        int64_t rest = f->size > o.skip ? f->size - o.skip : 0, n = rest / e.size;
        if (rest % e.size)
            dt_fail(DT_ERR_FILE,
                    "%s: %.300s has %" PRId64 " bytes after the %" PRId64 " to skip, expected a multiple of the "
                    "%d of a token",
                    call, f->path, rest, o.skip, e.size);
        else if (n <= o.length)
            dt_fail(DT_ERR_FILE, "%s: %.300s has %" PRId64 " tokens, an item needs %" PRId64 " (.length and one more)",
                    call, f->path, n, o.length + 1);
        if (dt__err.code != DT_OK ||
            dt__file_place(call, f, &s->n, (n - o.length - 1) / o.stride + 1, o.skip, s->nfiles <= DT__KEEP_OPEN))
            break;
    }
    return dt__set_done(s);
}

/* ==================================================================================================== >>folders
   A folder is a class. The names of all images are collected and sorted first, then the headers are read. */
enum {
    DT__FOLDER_DEPTH = 32, /* deeper folders are an error */
    DT__PNM_HEADER = 4096  /* bytes; longer headers are an error */
};
typedef struct dt__names {
    char  **p;
    int64_t n, cap;
} dt__names;

/* Takes ownership of name, which may be NULL after dt_fail. */
static int dt__names_add(const char *call, dt__names *l, char *name)
{
    char **p = name ? (char **)dt__enlarge(l->p, l->n, &l->cap, sizeof *p) : NULL;
    if (name && !p) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " names", call, l->n + 1);
        dt__free_text(name);
        return DT_ERR_MEMORY;
    }
    if (p) l->p = p;
    if (name) l->p[l->n++] = name;
    return dt_error_code();
}
static void dt__names_free(dt__names *l)
{
    for (int64_t i = 0; i < l->n; i++) dt__free_text(l->p[i]);
    dt_mem_free(l->p, (size_t)l->cap * sizeof *l->p);
    memset(l, 0, sizeof *l);
}
static void dt__names_sort(dt__names *l, int64_t from)
{
    if (l->n > from) qsort(l->p + from, (size_t)(l->n - from), sizeof *l->p, dt__by_name);
}
static bool dt__pnm_name(const char *name)
{
    size_t n = strlen(name);
    char   c[5] = { 0 };
    for (int i = 0; n > 4 && i < 4; i++) {
        c[i] = name[n - 4 + (size_t)i];
        if (c[i] >= 'A' && c[i] <= 'Z') c[i] = (char)(c[i] - 'A' + 'a');
    }
    return !strcmp(c, ".pgm") || !strcmp(c, ".ppm");
}
/* depth 0: the names of the folders in dir. Otherwise: the paths of the images in dir and its subfolders; symbolic links
   to folders are not followed. */
static int dt__folder_list(const char *call, const char *dir, int depth, dt__names *out)
{
    DIR *d = depth > DT__FOLDER_DEPTH ? NULL : opendir(dir);
    if (depth > DT__FOLDER_DEPTH)
        return dt_fail(DT_ERR_FILE, "%s: %.300s is more than %d folders deep", call, dir, (int)DT__FOLDER_DEPTH);
    if (!d) return dt_fail(DT_ERR_FILE, "%s: cannot read the folder %.300s: %s", call, dir, strerror(errno));
    while (dt__err.code == DT_OK) {
        struct stat st;
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e && errno) dt_fail(DT_ERR_FILE, "%s: cannot read the folder %.300s: %s", call, dir, strerror(errno));
        if (!e) break;
        if (e->d_name[0] == '.') continue;
        char *path = dt__path(dir, e->d_name, "");
        if (!path) break;
        bool image = dt__pnm_name(e->d_name), link = false, gone = lstat(path, &st) != 0;
        int  err = errno;
        if (!gone && S_ISLNK(st.st_mode)) {
            link = true;
            gone = stat(path, &st) != 0;
            err = errno;
        }
        if (gone && (image || !depth || !link))
            dt_fail(DT_ERR_FILE, "%s: cannot open %.300s: %s", call, path,
                    link && err == ENOENT ? "it is a symbolic link to a file that does not exist" : strerror(err));
        else if (!gone && !depth && S_ISDIR(st.st_mode)) dt__names_add(call, out, dt__data_strdup(e->d_name));
        else if (!gone && depth && S_ISDIR(st.st_mode) && !link) dt__folder_list(call, path, depth + 1, out);
        else if (!gone && depth && !S_ISDIR(st.st_mode) && image) {
            dt__names_add(call, out, path);
            path = NULL;
        }
        dt__free_text(path);
    }
    closedir(d);
    return dt_error_code();
}

typedef struct dt__pnm {
    char p[DT__PNM_HEADER];
    int  n, at;
} dt__pnm;
/* The next character, or -1 at the end. A comment counts as the end of its line. */
static int dt__pnm_char(dt__pnm *r)
{
    if (r->at < r->n && r->p[r->at] == '#')
        while (r->at < r->n && r->p[r->at] != '\n' && r->p[r->at] != '\r') r->at++;
    return r->at < r->n ? (uint8_t)r->p[r->at++] : -1;
}
static bool dt__pnm_space(int c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
/* Parses white space, a number and one white-space character. Returns -1 if they are not there or the number has more
   than 5 digits; r->at is then the offset of the error. */
static int dt__pnm_number(dt__pnm *r)
{
    int c, v = 0, digits = 0;
    do c = dt__pnm_char(r);
    while (dt__pnm_space(c));
    for (; c >= '0' && c <= '9' && v < 10000; c = dt__pnm_char(r), digits++) v = 10 * v + (c - '0');
    return digits && dt__pnm_space(c) ? v : -1;
}
static int dt__pnm_head(const char *call, dt__file *f, dt_shape *shape)
{
    static const char *const what[] = { "width", "height", "maxval" };
    dt__pnm                  r;
    int                      v[3];
    r.n = f->size < (int64_t)sizeof r.p ? (int)f->size : (int)sizeof r.p;
    r.at = 2;
    if (dt__file_read(call, f, 0, r.p, (size_t)r.n)) return dt_error_code();
    if (r.n < 2 || r.p[0] != 'P' || r.p[1] < '1' || r.p[1] > '7')
        return dt_fail(DT_ERR_FILE, "%s: %.300s begins with %02x %02x, expected P5 or P6: it is not a PGM or PPM file",
                       call, f->path, (uint8_t)r.p[0], r.n > 1 ? (uint8_t)r.p[1] : 0);
    if (r.p[1] != '5' && r.p[1] != '6')
        return dt_fail(DT_ERR_FILE, "%s: %.300s is P%c (%s), expected P5 or P6, binary PGM or PPM; convert it", call,
                       f->path, r.p[1],
                       r.p[1] == '7'                    ? "PAM"
                       : r.p[1] == '1' || r.p[1] == '4' ? "a bitmap"
                                                        : "as text");
    if (r.n < 3 || (!dt__pnm_space((uint8_t)r.p[2]) && r.p[2] != '#'))
        return dt_fail(DT_ERR_FILE, "%s: %.300s, byte 2: expected white space after P%c", call, f->path, r.p[1]);
    for (int i = 0; i < 3; i++) {
        int from = r.at;
        if ((v[i] = dt__pnm_number(&r)) < 1 || v[i] > 65535) {
            if (r.at == r.n)
                return dt_fail(DT_ERR_FILE,
                               "%s: %.300s has no end of its header in the first %d bytes of %" PRId64
                               "; expected the %s",
                               call, f->path, r.n, f->size, what[i]);
            return dt_fail(DT_ERR_FILE, "%s: %.300s, byte %d: expected the %s, 1 to %d, and white space", call, f->path,
                           from, what[i], i == 2 ? 255 : 65535);
        }
    }
    if (v[2] != 255)
        return dt_fail(DT_ERR_FILE, "%s: %.300s: maxval is %d, expected 255%s; convert it (pamdepth 255)", call,
                       f->path, v[2], v[2] > 255 ? ", one byte a sample" : "");
    memset(shape, 0, sizeof *shape);
    shape->ndim = 3;
    shape->dim[0] = r.p[1] == '5' ? 1 : 3;
    shape->dim[1] = v[1];
    shape->dim[2] = v[0];
    f->base = r.at;
    int64_t want = r.at + shape->dim[0] * v[0] * v[1];
    if (f->size == want) return 0;
    return dt_fail(DT_ERR_FILE,
                   "%s: %.300s is %s: it has %" PRId64 " bytes, its header (%d x %d, P%c) expects %" PRId64 "%s", call,
                   f->path, f->size < want ? "truncated" : "too long", f->size, v[0], v[1], r.p[1], want,
                   f->size < want ? "" : "; a file must hold one image only");
}
/* Finds all images and their classes: fills the table of files, not yet opened, and the names of the classes. */
static int dt__folder_files(const char *call, const char *dir, dt_dataset *s, dt__names *found)
{
    dt__names classes = { NULL, 0, 0 };
    int64_t  *first = NULL;
    dt__folder_list(call, dir, 0, &classes);
    dt__names_sort(&classes, 0);
    if (dt__err.code == DT_OK && !classes.n)
        dt_fail(DT_ERR_FILE, "%s: the directory %.300s has no folders, expected one for each class", call, dir);
    if (dt__err.code == DT_OK && !(first = (int64_t *)dt_mem_alloc((size_t)classes.n * sizeof *first)))
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " classes", call, classes.n);
    for (int64_t k = 0; dt__err.code == DT_OK && k < classes.n; k++) {
        char *path = dt__path(dir, classes.p[k], "");
        first[k] = found->n;
        if (path && !dt__folder_list(call, path, 1, found) && found->n == first[k])
            dt_fail(DT_ERR_FILE, "%s: the folder %.300s holds no .pgm and no .ppm file", call, path);
        dt__names_sort(found, first[k]);
        dt__free_text(path);
    }
    if (dt__err.code == DT_OK && (s->name = (char **)dt__alloc_zero((size_t)classes.n * sizeof *s->name)))
        s->nnames = classes.n;
    else dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " classes", call, classes.n);
    if (dt__err.code == DT_OK && (s->file = dt__files_new(call, found->n))) {
        s->nfiles = found->n;
        for (int64_t k = 0, i = 0; k < classes.n; k++) {
            s->name[k] = classes.p[k];
            for (; i < (k + 1 < classes.n ? first[k + 1] : found->n); i++) {
                s->file[i].path = found->p[i];
                s->file[i].label = k;
            }
        }
        dt_mem_free(first, (size_t)classes.n * sizeof *first);
        first = NULL;
        classes.n = found->n = 0; /* the dataset owns the strings now */
    }
    dt_mem_free(first, (size_t)classes.n * sizeof *first);
    dt__names_free(&classes);
    dt__names_free(found);
    return dt_error_code();
}
DT_API dt_dataset *dt_folder_open(const char *dir)
{
    static const char call[] = "dt_folder_open";
    dt__names         found = { NULL, 0, 0 };
    dt__elem          u8 = { 'u', 1, 0 }, i64 = { 'i', 8, 0 };
    dt_shape          shape, one;
    if (dt__err.code != DT_OK) return NULL;
    if (!dir) {
        dt_fail(DT_ERR_ARG, "%s: the directory is NULL", call);
        return NULL;
    }
    dt_dataset *s = dt__set_new(call, DT__SET_FILES);
    if (!s || dt__folder_files(call, dir, s, &found)) return dt__set_done(s);
    memset(&one, 0, sizeof one);
    for (int64_t i = 0; i < s->nfiles; i++) {
        dt__file *f = s->file + i;
        if (dt__file_open(call, f) || dt__pnm_head(call, f, &shape) ||
            dt__file_place(call, f, &s->n, 1, f->base, s->nfiles <= DT__KEEP_OPEN))
            break;
        if (i == 0) {
            s->classes = s->nnames;
            if (dt__field_set(call, "x", &s->x, u8, DT_U8, shape, 0) ||
                dt__field_set(call, "y", &s->y, i64, DT_I64, one, s->classes))
                break;
            s->x.by_pixel = shape.dim[0] > 1;
            s->x.plain = !s->x.by_pixel;
        } else if (memcmp(shape.dim, s->x.shape.dim, 3 * sizeof *shape.dim)) {
            dt_fail(DT_ERR_FILE, "%s: %.300s has shape %s, %.300s has %s; expected images of one size and format", call,
                    s->file[0].path, dt__shape_text(s->x.shape.dim, 3), f->path, dt__shape_text(shape.dim, 3));
            break;
        }
    }
    s->step = (int64_t)s->x.stored;
    s->has_y = true;
    s->ykind = DT__Y_FOLDER;
    return dt__set_done(s);
}

/* ==================================================================================================== >>derived
   Datasets made of other datasets. They hold a reference to each child and read no files themselves. */
static dt_dataset *dt__set_of(const char *call, int kind, dt_dataset *const *child, int64_t nchildren, int64_t n)
{
    dt_dataset *s = dt__set_new(call, kind);
    if (!s) return NULL;
    s->child = (dt_dataset **)dt_mem_alloc((size_t)nchildren * sizeof *s->child);
    if (!s->child) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " sets", call, nchildren);
        return dt__set_done(s);
    }
    s->nchildren = nchildren;
    for (int64_t i = 0; i < nchildren; i++) s->child[i] = dt__set_ref(child[i]);
    s->n = n;
    s->x = child[0]->x;
    s->y = child[0]->y;
    s->has_y = child[0]->has_y;
    s->classes = child[0]->classes;
    return s;
}
DT_API dt_dataset *dt_dataset_range(dt_dataset *s, int64_t from, int64_t n)
{
    static const char call[] = "dt_dataset_range";
    if (!dt__set_ok(call, s)) return NULL;
    if (from < 0 || n < 0 || from > s->n || n > s->n - from) {
        dt_fail(DT_ERR_ARG, "%s: %" PRId64 " items from %" PRId64 " on are out of range; the dataset has %" PRId64, call,
                n, from, s->n);
        return NULL;
    }
    dt_dataset *d = dt__set_of(call, DT__SET_SUBSET, &s, 1, n);
    if (d) d->from = from;
    return d;
}
static dt_dataset *dt__set_subset(const char *call, dt_dataset *s, const int64_t *index, int64_t n)
{
    dt_dataset *d = dt__set_of(call, DT__SET_SUBSET, &s, 1, n);
    if (!d) return NULL;
    if ((uint64_t)n <= SIZE_MAX / 16) d->index = (int64_t *)dt_mem_alloc((size_t)n * sizeof *index);
    if (d->index && n) memcpy(d->index, index, (size_t)n * sizeof *index);
    if (!d->index) dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " indices", call, n);
    return dt__set_done(d);
}
DT_API dt_dataset *dt_dataset_subset(dt_dataset *s, const int64_t *index, int64_t n)
{
    static const char call[] = "dt_dataset_subset";
    if (!dt__set_ok(call, s)) return NULL;
    if (n < 0 || (n && !index)) {
        dt_fail(DT_ERR_ARG, n < 0 ? "%s: n is %" PRId64 : "%s: index is NULL, n is %" PRId64, call, n);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= s->n) {
            dt_fail(DT_ERR_ARG, "%s: index[%" PRId64 "] is %" PRId64 ", expected 0 to %" PRId64, call, i, index[i],
                    s->n - 1);
            return NULL;
        }
    return dt__set_subset(call, s, index, n);
}

static bool dt__field_same(const char *call, int k, const char *what, const dt__field *a, const dt__field *b)
{
    if (a->dtype == b->dtype && a->shape.ndim == b->shape.ndim &&
        !memcmp(a->shape.dim, b->shape.dim, (size_t)a->shape.ndim * sizeof *a->shape.dim))
        return true;
    dt_fail(DT_ERR_SHAPE, "%s: %s of set %d is %s %s, of set 0 %s %s; they must be the same", call, what, k,
            dt_dtype_name(b->dtype), dt__shape_text(b->shape.dim, b->shape.ndim), dt_dtype_name(a->dtype),
            dt__shape_text(a->shape.dim, a->shape.ndim));
    return false;
}
DT_API dt_dataset *dt_dataset_concat(dt_dataset *const *sets, int n)
{
    static const char call[] = "dt_dataset_concat";
    int64_t           total = 0;
    if (dt__err.code != DT_OK) return NULL;
    if (!sets || n < 1) {
        dt_fail(DT_ERR_ARG, sets ? "%s: %d sets, expected one or more" : "%s: sets is NULL, n is %d", call, n);
        return NULL;
    }
    for (int k = 0; k < n; k++) {
        const dt_dataset *a = sets[0], *b = sets[k];
        if (!b) dt_fail(DT_ERR_ARG, "%s: set %d is NULL", call, k);
        else if (!dt__field_same(call, k, "x", &a->x, &b->x)) return NULL;
        else if (a->has_y != b->has_y)
            dt_fail(DT_ERR_ARG, "%s: set %d has %s y, set 0 has %s; both must have y or neither", call, k,
                    b->has_y ? "a" : "no", a->has_y ? "one" : "no y");
        else if (a->has_y && !dt__field_same(call, k, "y", &a->y, &b->y)) return NULL;
        else if (a->classes != b->classes)
            dt_fail(DT_ERR_ARG, "%s: set %d has %" PRId64 " classes, set 0 has %" PRId64, call, k, b->classes,
                    a->classes);
        else if (b->n > INT64_MAX - total)
            dt_fail(DT_ERR_ARG, "%s: with set %d there are more than 2^63 items; concatenate fewer", call, k);
        else total += b->n;
        if (dt__err.code != DT_OK) return NULL;
    }
    dt_dataset *d = dt__set_of(call, DT__SET_CONCAT, sets, n, total);
    if (!d) return NULL;
    d->first = (int64_t *)dt_mem_alloc(((size_t)n + 1) * sizeof *d->first);
    if (!d->first) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for %d sets", call, n);
        return dt__set_done(d);
    }
    d->first[0] = 0;
    for (int k = 0; k < n; k++) d->first[k + 1] = d->first[k] + sets[k]->n;
    return d;
}

/* The number of items of each part. part: integers that add up to n, or fractions. As in PyTorch, fractions of n are
   rounded down, and the items that are left over go to the parts round-robin. */
static int dt__share_counts(const char *call, const double *part, int nparts, int64_t n, int64_t *count)
{
    double  sum = 0;
    int64_t total = 0, left;
    bool    whole = true, unit = true;
    for (int i = 0; i < nparts; i++) {
        if (!(part[i] >= 0) || isinf(part[i]))
            return dt_fail(DT_ERR_ARG, "%s: part[%d] is %g, expected a finite number, 0 or more", call, i, part[i]);
        sum += part[i];
        unit = unit && part[i] <= 1;
        whole = whole && part[i] < 9e15 && part[i] == floor(part[i]) && (int64_t)part[i] <= n - total;
        if (whole) total += count[i] = (int64_t)part[i];
    }
    if (whole && total == n) return 0;
    if (!unit || fabs(sum - 1) > 1e-6)
        return dt_fail(DT_ERR_ARG, "%s: the parts add up to %.10g, expected %" PRId64 " whole items or fractions that "
                       "add up to 1", call, sum, n);
    left = n;
    for (int i = 0; i < nparts; i++) {
        count[i] = (int64_t)floor((double)n * part[i]);
        if (count[i] > left)
            return dt_fail(DT_ERR_ARG, "%s: the fractions add up to %.10g, too much for %" PRId64 " items; expected 1",
                           call, sum, n);
        left -= count[i];
    }
    for (int i = 0; i < nparts; i++) count[i] += left / nparts + (i < left % nparts);
    return 0;
}
DT_API dt_status dt_dataset_split(dt_dataset *s, const double *part, int n, uint64_t seed, dt_dataset **out)
{
    static const char call[] = "dt_dataset_split";
    if (!dt__set_ok(call, s)) return dt_error_code();
    if (!part || !out || n < 1)
        return (dt_status)dt_fail(DT_ERR_ARG, "%s: %s", call,
                                  !part ? "part is NULL" : !out ? "out is NULL" : "there are no parts");
    if ((uint64_t)s->n > SIZE_MAX / 16 - (uint64_t)n)
        return (dt_status)dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " indices", call, s->n);
    size_t   nbytes = ((size_t)s->n + (size_t)n) * sizeof(int64_t);
    int64_t *count = (int64_t *)dt_mem_alloc(nbytes), *perm = count ? count + n : NULL;
    dt_rng   r;
    if (!count) return (dt_status)dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " indices", call, s->n);
    if (!dt__share_counts(call, part, n, s->n, count)) {
        dt_rng_seed(&r, seed);
        dt_rng_randperm(&r, perm, s->n);
        for (int i = 0; i < n; perm += count[i++]) {
            out[i] = dt__set_subset(call, s, perm, count[i]);
            if (out[i]) continue;
            while (i-- > 0) {
                dt_dataset_free(out[i]);
                out[i] = NULL;
            }
            break;
        }
    }
    dt_mem_free(count, nbytes);
    return dt_error_code();
}

/* ---- mean and standard deviation */
typedef struct dt__moments { /* of one channel */
    uint64_t sum, squares;   /* u8: exact sums of the values and their squares */
    double   first, d1, d2;  /* other dtypes: the first value; sums of the differences from it and of their squares */
} dt__moments;
static double dt__as_double(const char *p, dt_dtype d) /* p may be unaligned */
{
    float    f;
    uint16_t h;
    int32_t  i;
    int64_t  l;
    switch (d) {
    case DT_F32: memcpy(&f, p, sizeof f); return f;
    case DT_F16: memcpy(&h, p, sizeof h); return dt__f16_to_f32(h);
    case DT_BF16: memcpy(&h, p, sizeof h); return dt__bf16_to_f32(h);
    case DT_I32: memcpy(&i, p, sizeof i); return i;
    case DT_I64: memcpy(&l, p, sizeof l); return (double)l;
    case DT_U8: return (double)(uint8_t)*p;
    case DT_DTYPE_COUNT: break; /* dt__field_set refuses it */
    }
    return (double)NAN;
}
static void dt__moments_add(dt__moments *m, const char *p, dt_dtype dtype, int64_t n, bool begin)
{
    if (dtype == DT_U8) {
        uint64_t sum = 0, squares = 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t v = (uint8_t)p[i];
            sum += v;
            squares += v * v;
        }
        m->sum += sum;
        m->squares += squares;
        return;
    }
    size_t size = dt_dtype_nbytes(dtype);
    double first, d1 = m->d1, d2 = m->d2;
    if (begin) m->first = dt__as_double(p, dtype);
    first = m->first;
    for (int64_t i = 0; i < n; i++) {
        double d = dt__as_double(p + (size_t)i * size, dtype) - first;
        d1 += d;
        d2 += d * d;
    }
    m->d1 = d1;
    m->d2 = d2;
}
/* The variance is computed from differences to a value near the mean, which avoids cancellation. */
static void dt__moments_end(const dt__moments *m, dt_dtype dtype, int64_t n, double *mean, double *deviation)
{
    double from = m->first, d1 = m->d1, d2 = m->d2, unit = 1;
    if (dtype == DT_U8) {
        uint64_t pixels = (uint64_t)n, near = (m->sum + pixels / 2) / pixels;
        d1 = (double)(int64_t)(m->sum - near * pixels);
        d2 = (double)(m->squares - 2 * near * m->sum + near * near * pixels);
        from = (double)near;
        unit = 255;
    }
    double off = d1 / (double)n, variance = d2 / (double)n - off * off;
    if (mean) *mean = (from + off) / unit;
    if (deviation) *deviation = variance > 0 ? sqrt(variance) / unit : isnan(variance) ? variance : 0;
}
/* The number of items, at most 'most', that start at item i of s and are consecutive in one leaf; *at: index of the
   first one in the leaf */
static int64_t dt__set_adjacent(const dt_dataset *s, int64_t i, int64_t most, const dt_dataset **leaf,
                                  int64_t *at)
{
    int64_t m = 1, k;
    *at = i;
    *leaf = dt__set_leaf(s, at);
    if (most > s->n - i) most = s->n - i;
    for (; m < most; m++) {
        k = i + m;
        if (dt__set_leaf(s, &k) != *leaf || k != *at + m) break;
    }
    return m;
}
DT_API dt_status dt_dataset_mean_std(const dt_dataset *s, double *mean, double *std, int channels)
{
    static const char call[] = "dt_dataset_mean_std";
    if (!dt__set_ok(call, s)) return dt_error_code();
    int64_t want = s->x.shape.ndim == 3 ? s->x.shape.dim[0] : 1, plane = s->x.numel / want, most, m, at;
    if (channels < 1 || channels != want)
        return (dt_status)dt_fail(DT_ERR_ARG, "%s: %d channels are requested; x of shape %s has %" PRId64, call,
                                  channels, dt__shape_text(s->x.shape.dim, s->x.shape.ndim), want);
    if (s->n == 0) return (dt_status)dt_fail(DT_ERR_ARG, "%s: the dataset has no items, expected one or more", call);
    dt__moments *sums = (dt__moments *)dt__alloc_zero((size_t)channels * sizeof *sums);
    if (!sums) return (dt_status)dt_fail(DT_ERR_MEMORY, "%s: out of memory for %d channels", call, channels);
    size_t            step = (size_t)plane * dt_dtype_nbytes(s->x.dtype);
    const dt_dataset *leaf;
    dt__mem           mem = { NULL, 0 };
    dt__items         r;
    most = s->x.nbytes >= (size_t)DT__RUN_BYTES ? 1 : (int64_t)((size_t)DT__RUN_BYTES / s->x.nbytes);
    for (int64_t i = 0; i < s->n; i += m) {
        m = dt__set_adjacent(s, i, most, &leaf, &at);
        if (dt__set_run(call, leaf, at, &m, false, &mem, &r)) break;
        for (int64_t k = 0; k < m; k++)
            for (int c = 0; c < channels; c++)
                dt__moments_add(&sums[c], r.x + (size_t)k * r.xstep + (size_t)c * step, s->x.dtype, plane, i + k == 0);
    }
    dt__mem_free(&mem);
    for (int c = 0; c < channels && dt__err.code == DT_OK; c++)
        dt__moments_end(&sums[c], s->x.dtype, s->n * plane, mean ? mean + c : NULL, std ? std + c : NULL);
    dt_mem_free(sums, (size_t)channels * sizeof *sums);
    return dt_error_code();
}

/* ==================================================================================================== >>sampler
   The order of an epoch is one list of items, which every rank computes in full.
   Strided (the default): a position is an index of the list. From it rank r takes the entries position + r,
   position + r + world, ...; past the end the list wraps around. The position alone is enough to resume with another
   world size.
   Contiguous: the list is cut into one chunk for each rank. Chunk r is shuffled by a generator seeded with the first
   word of dt_philox(seed + epoch, r). To resume with another world size, the items already taken are removed from the
   chunks, and the remaining list is cut again, at any item. So a position consists of the world sizes of the epoch and
   how far each of them got; each is called a stage.
   seed + epoch is computed modulo 2^64. */
struct dt_sampler {
    int64_t   n, len;            /* items of the dataset; length of the list: n, or the draws with weights */
    uint64_t  seed;
    int64_t   rank, world;
    bool      shuffle, drop_last, no_pad, contiguous;
    int64_t  *list, *shard, nshards;
    double   *weight;            /* n cumulative sums, scaled to end at 1; for a single draw the weights themselves */
    dt_cursor at;                /* strided: the position. contiguous: the position at which this stage began */
    int64_t   count, most;
    int64_t   listed;            /* strided: the epoch of the list, or -1 */
    int64_t   left;              /* contiguous: items of the list that were left when this stage began */
    int64_t   begun, from, own;  /* items each rank has taken since; start and length of this rank's chunk */
};

/* ---- chunks */
typedef struct dt__chunks { /* n items, cut into one chunk for each of world ranks */
    int64_t n, world;
    bool    files;       /* cut at file boundaries only */
} dt__chunks;
static dt__chunks dt__chunks_of(const dt_sampler *s, int64_t n, int64_t world, bool first)
{
    dt__chunks c;
    c.n = n;
    c.world = world;
    c.files = first && s->nshards >= world;
    return c;
}
/* The end of chunk r. *k: the first file of chunk r; becomes the first file of the next. Each rank has at least one
   file. */
static int64_t dt__chunks_end(const dt_sampler *s, const dt__chunks *c, int64_t r, int64_t *k)
{
    int64_t want = c->n / c->world * (r + 1) + c->n % c->world * (r + 1) / c->world;
    if (!c->files || r + 1 == c->world) return want;
    int64_t least = *k + 1, lo = least, hi = s->nshards - (c->world - r - 1);
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (s->shard[mid] < want) lo = mid + 1;
        else hi = mid;
    }
    if (lo > least && want - s->shard[lo - 1] <= s->shard[lo] - want) lo--;
    *k = lo;
    return s->shard[lo];
}
/* The number of items taken in total after each rank has taken t. Also the lengths of the shortest and the longest
   chunk. */
static int64_t dt__chunks_gone(const dt_sampler *s, const dt__chunks *c, int64_t t, int64_t *shortest,
                              int64_t *longest)
{
    int64_t gone = 0, k = 0, at = 0;
    *shortest = *longest = c->n / c->world;
    if (!c->files) {
        *longest += c->n % c->world != 0;
        return t <= *shortest ? t * c->world : c->n;
    }
    for (int64_t r = 0; r < c->world; r++) {
        int64_t end = dt__chunks_end(s, c, r, &k), len = end - at;
        if (len < *shortest) *shortest = len;
        if (len > *longest) *longest = len;
        gone += t < len ? t : len;
        at = end;
    }
    return gone;
}
/* The inverse: how many items each rank has taken if 'gone' are taken in total; -1 if no number gives that total. */
static int64_t dt__chunks_taken(const dt_sampler *s, const dt__chunks *c, int64_t gone)
{
    int64_t lo = 0, hi, shortest;
    dt__chunks_gone(s, c, 0, &shortest, &hi);
    while (lo < hi) {
        int64_t unused, mid = lo + (hi - lo) / 2;
        if (dt__chunks_gone(s, c, mid, &shortest, &unused) < gone) lo = mid + 1;
        else hi = mid;
    }
    return dt__chunks_gone(s, c, lo, &shortest, &hi) == gone ? lo : -1;
}
/* Removes the t > 0 items that each rank has taken from the list. Returns the number of items that are left. */
static int64_t dt__chunks_remove(dt_sampler *s, const dt__chunks *c, int64_t t)
{
    int64_t to = 0, at = 0, k = 0, shortest, longest;
    dt__chunks_gone(s, c, t, &shortest, &longest);
    for (int64_t r = 0; t < longest && r < c->world; r++) { /* t < longest implies: not more ranks than items */
        int64_t end = dt__chunks_end(s, c, r, &k);
        if (end - at > t) {
            memmove(s->list + to, s->list + at + t, (size_t)(end - at - t) * sizeof *s->list);
            to += end - at - t;
        }
        at = end;
    }
    return to;
}
static void dt__chunks_shuffle(dt_sampler *s, const dt__chunks *c, uint64_t seed)
{
    int64_t at = 0, k = 0, shortest, longest;
    dt__chunks_gone(s, c, 0, &shortest, &longest);
    for (int64_t r = 0; longest > 1 && r < c->world; r++) {
        int64_t  end = dt__chunks_end(s, c, r, &k);
        uint32_t word[4];
        dt_rng   g;
        dt_philox(seed, (uint64_t)r, word);
        if (end - at > 1) {
            dt_rng_seed(&g, word[0]);
            dt_rng_randperm(&g, s->list + at, end - at);
            for (int64_t i = at; i < end; i++) s->list[i] += at;
        }
        at = end;
    }
}

/* ---- the list of an epoch */
/* Same draws as torch.multinomial of doubles: a uniform number of 53 bits is searched in the cumulative sums. A single
   draw instead takes the item with the largest weight divided by an exponential random number. */
static void dt__sampler_draw(const dt_sampler *s, dt_rng *g)
{
    double best = -1;
    for (int64_t i = 0; s->len == 1 && i < s->n; i++) {
        double u = (double)(int64_t)(dt_rng_u64(g) & 0x1fffffffffffffu) * 0x1p-53, v = s->weight[i] / -log1p(-u);
        if (v > best) s->list[0] = i;
        if (v > best) best = v;
    }
    for (int64_t i = 0; s->len > 1 && i < s->len; i++) {
        double  u = (double)(int64_t)(dt_rng_u64(g) & 0x1fffffffffffffu) * 0x1p-53;
        int64_t lo = 0, hi = s->n;
        while (lo < hi) {
            int64_t mid = lo + (hi - lo) / 2;
            if (s->weight[mid] < u) lo = mid + 1;
            else hi = mid;
        }
        s->list[i] = lo;
    }
}
/* Computes the list of an epoch. c: contiguous: the chunks of the first stage; NULL if strided */
static void dt__sampler_list(dt_sampler *s, int64_t epoch, const dt__chunks *c)
{
    uint64_t seed = s->seed + (uint64_t)epoch;
    dt_rng   g;
    if (s->weight || (s->shuffle && !c)) dt_rng_seed(&g, seed);
    if (s->weight) {
        dt__sampler_draw(s, &g);
    } else if (s->shuffle && !c) {
        dt_rng_randperm(&g, s->list, s->len);
    } else {
        for (int64_t i = 0; i < s->len; i++) s->list[i] = i;
        if (s->shuffle) dt__chunks_shuffle(s, c, seed);
    }
}

/* ---- positions */
static int dt__seek_strided(const char *call, dt_sampler *s, const dt_cursor *at)
{
    int64_t left = s->len - at->position;
    if (at->position && (at->world || at->npast))
        return dt_fail(DT_ERR_ARG, "%s: the cursor is of a .contiguous sampler (of %" PRId64 " ranks), this sampler is "
                       "not .contiguous", call, at->world);
    s->at = *at;
    s->most = left / s->world + (!s->drop_last && left % s->world);
    s->count = s->no_pad ? left / s->world + (s->rank < left % s->world) : s->most;
    if (s->listed != at->epoch) dt__sampler_list(s, at->epoch, NULL);
    s->listed = at->epoch;
    return 0;
}
/* Stage k of a cursor: a world size and the position it reached. The last stage is in .world and .position. */
static void dt__cursor_stage(const dt_cursor *at, int64_t k, int64_t *world, int64_t *position)
{
    *world = k < at->npast ? at->past[2 * k] : at->world;
    *position = k < at->npast ? at->past[2 * k + 1] : at->position;
}
static int dt__seek_chunks(const char *call, dt_sampler *s, const dt_cursor *at)
{
    int64_t stages = at->position ? at->npast + 1 : 0, from = 0, world, to, begun = 0, took[DT_CURSOR_PAST + 1];
    dt__chunks c = dt__chunks_of(s, s->n, s->world, true);
    if (at->npast < 0 || at->npast > DT_CURSOR_PAST || (at->npast && !at->position))
        return dt_fail(DT_ERR_ARG, "%s: the cursor's npast is %" PRId64 " at position %" PRId64 ", expected 0 to %d "
                       "earlier world sizes, and 0 at position 0", call, at->npast, at->position, DT_CURSOR_PAST);
    if (at->position && !at->world)
        return dt_fail(DT_ERR_ARG, "%s: the cursor (position %" PRId64 ") is not of a .contiguous sampler: its world size "
                       "is 0", call, at->position);
    for (int64_t k = 0; k < stages; k++, from = to) {
        dt__cursor_stage(at, k, &world, &to);
        if (world < 1 || world > INT_MAX)
            return dt_fail(DT_ERR_ARG, "%s: the cursor has a world of %" PRId64 " ranks, expected 1 to %d", call, world,
                           INT_MAX);
        if (to <= from || to > s->n)
            return dt_fail(DT_ERR_ARG, "%s: the cursor's %" PRId64 " ranks got from position %" PRId64 " to %" PRId64
                           "; expected a larger position, at most %" PRId64, call, world, from, to, s->n);
        dt__chunks d = dt__chunks_of(s, s->n - from, world, k == 0);
        took[k] = dt__chunks_taken(s, &d, to - from);
        if (took[k] < 0)
            return dt_fail(DT_ERR_ARG, "%s: the cursor's %" PRId64 " ranks cannot have taken %" PRId64 " of %" PRId64
                           " items: the dataset or its files have changed since the cursor was saved", call, world,
                           to - from, d.n);
        if (k == 0) c = d;
    }
    if (stages > DT_CURSOR_PAST && at->world != s->world)
        return dt_fail(DT_ERR_STATE, "%s: the world size changes more than %d times in epoch %" PRId64 "; end it with %"
                       PRId64 " ranks, or begin with the next epoch", call, DT_CURSOR_PAST, at->epoch, at->world);
    s->at = *at;
    dt__sampler_list(s, at->epoch, &c);
    for (int64_t k = 0; k < stages; k++) {
        dt__cursor_stage(at, k, &world, &to);
        if (k == at->npast && world == s->world) { /* same world size: the last stage continues */
            begun = took[k];
            s->at.position = k ? at->past[2 * k - 1] : 0;
            break;
        }
        int64_t left = dt__chunks_remove(s, &c, took[k]);
        s->at.past[2 * k] = world;
        s->at.past[2 * k + 1] = to;
        s->at.npast = k + 1;
        world = s->world;
        if (k < at->npast) dt__cursor_stage(at, k + 1, &world, &to);
        c = dt__chunks_of(s, left, world, false);
    }
    int64_t k = 0, shortest, longest, end = 0;
    for (int64_t r = c.files || !s->rank ? 0 : s->rank - 1; r <= s->rank; r++) {
        s->from = end;
        end = dt__chunks_end(s, &c, r, &k);
    }
    s->own = end - s->from;
    s->left = c.n;
    s->begun = begun;
    dt__chunks_gone(s, &c, 0, &shortest, &longest);
    s->most = (s->drop_last ? shortest : longest) - begun;
    if (s->most < 0) s->most = 0;
    s->count = !s->no_pad ? s->most : s->own > begun ? s->own - begun : 0;
    return 0;
}
DT_API dt_status dt_sampler_seek(dt_sampler *s, const dt_cursor *at)
{
    static const char call[] = "dt_sampler_seek";
    if (dt__err.code != DT_OK) return dt_error_code();
    if (!s || !at) return (dt_status)dt_fail(DT_ERR_ARG, "%s: the %s is NULL", call, s ? "cursor" : "sampler");
    if ((uint64_t)at->seed != s->seed)
        return (dt_status)dt_fail(DT_ERR_ARG, "%s: the cursor's seed is %" PRIu64 ", the sampler's %" PRIu64, call,
                                  (uint64_t)at->seed, s->seed);
    if (at->n && at->n != s->n)
        return (dt_status)dt_fail(DT_ERR_ARG, "%s: the cursor is one of %" PRId64 " items, the sampler has %" PRId64,
                                  call, at->n, s->n);
    if (at->epoch < 0 || at->epoch == INT64_MAX)
        return (dt_status)dt_fail(DT_ERR_ARG, "%s: the cursor's epoch is %" PRId64 ", expected 0 to 2^63 - 2", call,
                                  at->epoch);
    if (at->position < 0 || at->position > s->len)
        return (dt_status)dt_fail(DT_ERR_ARG, "%s: the cursor's position is %" PRId64 ", expected 0 to %" PRId64, call,
                                  at->position, s->len);
    if (s->contiguous) dt__seek_chunks(call, s, at);
    else dt__seek_strided(call, s, at);
    return dt_error_code();
}
DT_API int64_t dt_sampler_count(const dt_sampler *s) { return s ? s->count : 0; }
DT_API int64_t dt_sampler_most(const dt_sampler *s) { return s ? s->most : 0; }
static int64_t dt__sampler_item(const dt_sampler *s, int64_t rank, int64_t i) /* strided: of any rank */
{
    return s->list[(s->at.position + rank + i * s->world) % s->len];
}
DT_API int64_t dt_sampler_at(const dt_sampler *s, int64_t i)
{
    if (!s || i < 0 || i >= s->count) return -1;
    if (!s->contiguous) return dt__sampler_item(s, s->rank, i);
    /* padding: a rank whose chunk is empty repeats the beginning of the items that are left */
    return s->own ? s->list[s->from + (s->begun + i) % s->own] : s->list[(s->begun + i) % s->left];
}
DT_API int64_t dt_sampler_batch(const dt_sampler *s, int64_t k, int64_t size, bool full, int64_t *out)
{
    if (!s) return 0;
    if (k < 0 || size < 1) {
        dt_fail(DT_ERR_ARG, "dt_sampler_batch: batch %" PRId64 " of %" PRId64 " items; expected a batch of 0 or more and "
                "1 item or more", k, size);
        return 0;
    }
    if (k > s->count / size) return 0;
    int64_t n = s->count - k * size;
    if (n > size) n = size;
    if (full && n < size) return 0;
    for (int64_t i = 0; out && i < n; i++) out[i] = dt_sampler_at(s, k * size + i);
    return n;
}
DT_API dt_cursor dt_sampler_cursor(const dt_sampler *s, int64_t taken)
{
    dt_cursor c;
    memset(&c, 0, sizeof c);
    if (!s) return c;
    if (taken < 0) {
        dt_fail(DT_ERR_ARG, "dt_sampler_cursor: %" PRId64 " items are taken, expected 0 or more", taken);
        taken = 0;
    }
    c.seed = (int64_t)s->seed;
    c.n = s->n;
    c.epoch = s->at.epoch + (taken >= s->most);
    if (taken >= s->most) return c;
    c.position = s->at.position;
    if (!s->contiguous) {
        c.position += taken * s->world;
        return c;
    }
    c.npast = s->at.npast;
    memcpy(c.past, s->at.past, (size_t)c.npast * 2 * sizeof *c.past);
    if (s->begun + taken) {
        int64_t shortest, longest;
        dt__chunks d = dt__chunks_of(s, s->left, s->world, c.npast == 0);
        c.position += dt__chunks_gone(s, &d, s->begun + taken, &shortest, &longest);
        c.world = s->world;
    } else if (c.npast) { /* this stage has taken no items: the cursor is the end of the stage before it */
        c.npast--;
        c.world = c.past[2 * c.npast];
        c.past[2 * c.npast] = c.past[2 * c.npast + 1] = 0;
    }
    return c;
}

/* ---- construction */
static int dt__sampler_check(const char *call, int64_t n, const dt_sampler_opts *o)
{
    int64_t world = o->world ? o->world : 1;
    if (n < 0) return dt_fail(DT_ERR_ARG, "%s: n is %" PRId64 ", expected 0 or more", call, n);
    if (world < 1) return dt_fail(DT_ERR_ARG, "%s: .world is %d, expected 1 or more", call, o->world);
    if (o->rank < 0 || o->rank >= world)
        return dt_fail(DT_ERR_ARG, "%s: .rank is %d, expected 0 to %" PRId64, call, o->rank, world - 1);
    if (o->no_pad && o->drop_last)
        return dt_fail(DT_ERR_ARG, "%s: .no_pad keeps every item and .drop_last drops some; choose one", call);
    if (o->weight && o->contiguous)
        return dt_fail(DT_ERR_ARG, "%s: .weight draws from the whole dataset, .contiguous from a part; choose one", call);
    if (o->draws < 0 || (o->draws && !o->weight))
        return dt_fail(DT_ERR_ARG, "%s: .draws is %" PRId64 "%s", call, o->draws,
                       o->draws < 0 ? ", expected 1 or more" : ", but there is no .weight");
    if (o->nshards < 0 || (o->nshards && !o->shard))
        return dt_fail(DT_ERR_ARG, "%s: .nshards is %" PRId64 "%s", call, o->nshards,
                       o->shard ? "" : ", but .shard is NULL");
    if (o->nshards && o->shard[0] != 0)
        return dt_fail(DT_ERR_ARG, "%s: .shard[0] is %" PRId64 ", expected 0", call, o->shard[0]);
    for (int64_t k = 1; k <= o->nshards; k++)
        if (o->shard[k] < o->shard[k - 1] || o->shard[k] > n || (k == o->nshards && o->shard[k] != n))
            return dt_fail(DT_ERR_ARG, "%s: .shard[%" PRId64 "] is %" PRId64 ", expected %s%" PRId64, call, k,
                           o->shard[k], k == o->nshards ? "n, " : "rising numbers up to ", n);
    return 0;
}
static int dt__sampler_weights(const char *call, dt_sampler *s, const double *w)
{
    double sum = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (!(w[i] >= 0) || isinf(w[i]))
            return dt_fail(DT_ERR_ARG, "%s: .weight[%" PRId64 "] is %g, expected a finite number of 0 or more", call, i,
                           w[i]);
        sum += w[i];
        s->weight[i] = s->len == 1 ? w[i] : sum;
    }
    if (s->n && (sum == 0 || isinf(sum)))
        return dt_fail(DT_ERR_ARG, "%s: the %" PRId64 " weights add up to %g, expected a finite number above 0", call,
                       s->n, sum);
    for (int64_t i = 0; s->len != 1 && i < s->n; i++) s->weight[i] /= sum;
    return 0;
}
DT_API dt_sampler *dt_sampler_new_with(int64_t n, dt_sampler_opts o)
{
    static const char call[] = "dt_sampler_new";
    const uint64_t    limit = SIZE_MAX / 16;
    if (dt__err.code != DT_OK || dt__sampler_check(call, n, &o)) return NULL;
    dt_sampler *s = (dt_sampler *)dt__alloc_zero(sizeof *s);
    if (!s) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    s->n = n;
    s->len = o.weight && o.draws && n ? o.draws : n;
    s->seed = o.seed;
    s->listed = -1;
    s->rank = o.rank;
    s->world = o.world ? o.world : 1;
    s->shuffle = o.shuffle;
    s->drop_last = o.drop_last;
    s->no_pad = o.no_pad;
    s->contiguous = o.contiguous;
    s->nshards = o.contiguous ? o.nshards : 0;
    bool ok = (uint64_t)s->len <= limit && (uint64_t)n <= limit && (uint64_t)s->nshards < limit;
    if (ok) s->list = (int64_t *)dt_mem_alloc((size_t)s->len * sizeof *s->list);
    ok = ok && s->list;
    if (ok && o.weight) ok = (s->weight = (double *)dt_mem_alloc((size_t)n * sizeof *s->weight)) != NULL;
    if (ok && s->nshards) ok = (s->shard = (int64_t *)dt_mem_alloc((size_t)(s->nshards + 1) * sizeof *s->shard)) != NULL;
    if (!ok) dt_fail(DT_ERR_MEMORY, "%s: out of memory for a list of %" PRId64 " items", call, s->len);
    if (ok && s->shard) memcpy(s->shard, o.shard, (size_t)(s->nshards + 1) * sizeof *s->shard);
    if (ok && s->weight) ok = !dt__sampler_weights(call, s, o.weight);
    dt_cursor at;
    memset(&at, 0, sizeof at);
    at.seed = (int64_t)o.seed;
    if (ok) ok = !dt_sampler_seek(s, &at);
    if (ok) return s;
    dt_sampler_free(s);
    return NULL;
}
DT_API void dt_sampler_free(dt_sampler *s)
{
    if (!s) return;
    dt_mem_free(s->list, (size_t)s->len * sizeof *s->list);
    dt_mem_free(s->weight, (size_t)s->n * sizeof *s->weight);
    dt_mem_free(s->shard, (size_t)(s->nshards + 1) * sizeof *s->shard);
    dt_mem_free(s, sizeof *s);
}
DT__SLOW_END

/* ==================================================================================================== >>transform
   From a stored item to the input of the network. u8 values are looked up in a table for each channel, which holds
   bit for bit what PyTorch's ToTensor and Normalize compute. AVX2 code computes eight values at a time instead; it is
   used only if it gives the table's bits for all 256 values, which dt__tf_try checks. */
#if defined(__x86_64__) && !defined(DT_NO_AVX2)
#define DT__WANT_AVX2
#include "dt_base.h"
#define DT__TF_AVX2 1
#else
#define DT__TF_AVX2 0
#endif
enum { DT__TF_COPY = 0, DT__TF_BYTES, DT__TF_FLOATS }; /* unchanged; u8 to f32; f32 normalised */
typedef struct dt__tf {
    int       how;
    int       crop, cutout;
    bool      flip, moves;        /* moves: crop or flip is set */
    bool      fast;               /* use the AVX2 code */
    int64_t   c, h, w;            /* c and h are 1 if x is not an image */
    dt__field in;
    dt_dtype  dtype;              /* of the result */
    size_t    nbytes;             /* of the result */
    float    *table;              /* c x 256 */
    float     top, rtop;          /* the value that becomes 1.0, and its reciprocal */
    float    *mean, *std, *rstd;  /* c each; rstd: reciprocals of std */
    int (*fn)(void *user, const dt_sample *s, void *x);
    void     *user;
} dt__tf;

static void dt__tf_free(dt__tf *t)
{
    dt_mem_free(t->table, t->table ? (size_t)t->c * 256 * sizeof *t->table : 0);
    dt_mem_free(t->mean, t->mean ? (size_t)t->c * sizeof *t->mean : 0);
    dt_mem_free(t->std, t->std ? (size_t)t->c * sizeof *t->std : 0);
    dt_mem_free(t->rstd, t->rstd ? (size_t)t->c * sizeof *t->rstd : 0);
    memset(t, 0, sizeof *t);
}
#if DT__TF_AVX2
/* x / d, from the reciprocal r of d: a product, corrected by its remainder */
__attribute__((target("avx2,fma"))) static inline __m256 dt__tf_quotient(__m256 x, __m256 d, __m256 r)
{
    __m256 q = _mm256_mul_ps(x, r);
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(q, d, x), r, q);
}
__attribute__((target("avx2,fma"))) static void dt__tf_avx2(const dt__tf *t, int64_t c, float *dst, const uint8_t *src,
                                                             int64_t n, bool back) /* n is a multiple of 8 */
{
    __m256  top = _mm256_set1_ps(t->top), rtop = _mm256_set1_ps(t->rtop), mean = _mm256_set1_ps(t->mean[c]);
    __m256  std = _mm256_set1_ps(t->std[c]), rstd = _mm256_set1_ps(t->rstd[c]);
    __m256i turn = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(src + i))));
        v = dt__tf_quotient(_mm256_sub_ps(dt__tf_quotient(v, top, rtop), mean), std, rstd);
        if (back) _mm256_storeu_ps(dst - i - 7, _mm256_permutevar8x32_ps(v, turn));
        else _mm256_storeu_ps(dst + i, v);
    }
}
#endif
static bool dt__tf_try(const dt__tf *t) /* does the AVX2 code give the same bits as the table? */
{
#if DT__TF_AVX2
    uint8_t byte[256];
    float   got[256];
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
    for (int i = 0; i < 256; i++) byte[i] = (uint8_t)i;
    for (int64_t c = 0; c < t->c; c++) {
        dt__tf_avx2(t, c, got, byte, 256, false);
        if (memcmp(got, t->table + c * 256, sizeof got)) return false;
    }
    return true;
#else
    (void)t;
    return false;
#endif
}
/* Converts n bytes. back: in reverse order, to dst[0], dst[-1], ... */
static void dt__tf_bytes(const dt__tf *t, int64_t c, float *dst, const uint8_t *src, int64_t n, bool back)
{
    const float *table = t->table + c * 256;
    int64_t      i = 0;
#if DT__TF_AVX2
    if (t->fast && n >= 8) dt__tf_avx2(t, c, dst, src, i = n & ~(int64_t)7, back);
#endif
    if (back) {
        for (; i < n; i++) dst[-i] = table[src[i]];
        return;
    }
    for (; i + 8 <= n; i += 8) {
        uint64_t v;
        memcpy(&v, src + i, 8);
        dst[i] = table[v & 255];
        dst[i + 1] = table[v >> 8 & 255];
        dst[i + 2] = table[v >> 16 & 255];
        dst[i + 3] = table[v >> 24 & 255];
        dst[i + 4] = table[v >> 32 & 255];
        dst[i + 5] = table[v >> 40 & 255];
        dst[i + 6] = table[v >> 48 & 255];
        dst[i + 7] = table[v >> 56];
    }
    for (; i < n; i++) dst[i] = table[src[i]];
}
static int dt__tf_check(const char *call, const dt_dataset *s, const dt_loader_opts *o, int64_t channels, bool normal)
{
    bool image = s->x.shape.ndim == 3, moves = o->crop || o->flip || o->cutout;
    if (o->crop < 0 || o->crop > 4096 || o->cutout < 0 || o->cutout > 65536)
        return dt_fail(DT_ERR_ARG, "%s: .crop is %d, .cutout is %d; expected .crop of 0 to 4096 and .cutout of 0 to 65536 "
                       "pixels", call, o->crop, o->cutout);
    if (moves && (!image || (s->x.dtype != DT_U8 && s->x.dtype != DT_F32)))
        return dt_fail(DT_ERR_ARG,
                       "%s: .crop, .flip and .cutout take images (c, h, w) of u8 or f32; an item is %s of %s", call,
                       dt__shape_text(s->x.shape.dim, s->x.shape.ndim), dt_dtype_name(s->x.dtype));
    if (!normal) return 0;
    if (o->raw)
        return dt_fail(DT_ERR_ARG, "%s: .mean, .std and .max_value normalise x, .raw forbids it; choose one", call);
    if (s->x.dtype != DT_U8 && s->x.dtype != DT_F32)
        return dt_fail(DT_ERR_ARG, "%s: .mean and .std take items of u8 or f32, not %s", call,
                       dt_dtype_name(s->x.dtype));
    if (channels > 4 && o->std[1] != 0)
        return dt_fail(DT_ERR_ARG, "%s: .mean and .std are for up to 4 channels, the items have %" PRId64
                       "; set only .mean[0] and .std[0]", call, channels);
    for (int i = 0; i < 4; i++)
        if (!(o->std[i] >= 0 && o->std[i] < INFINITY) || !isfinite(o->mean[i]))
            return dt_fail(DT_ERR_ARG, "%s: channel %d: mean %g, std %g; expected finite numbers, std 0 or more", call, i,
                           o->mean[i], o->std[i]);
    if (!(o->max_value >= 0 && o->max_value < INFINITY))
        return dt_fail(DT_ERR_ARG, "%s: .max_value is %g, expected a finite number, 0 (default) or more", call,
                       o->max_value);
    return 0;
}
static int dt__tf_init(const char *call, dt__tf *t, const dt_dataset *s, const dt_loader_opts *o)
{
    const int64_t *dim = s->x.shape.dim;
    bool           image = s->x.shape.ndim == 3, normal = o->max_value != 0;
    for (int i = 0; i < 4; i++) normal = normal || o->mean[i] != 0 || o->std[i] != 0;
    memset(t, 0, sizeof *t);
    t->in = s->x;
    t->c = image ? dim[0] : 1;
    t->h = image ? dim[1] : 1;
    t->w = image ? dim[2] : s->x.numel;
    t->crop = o->crop;
    t->flip = o->flip;
    t->moves = o->crop || o->flip;
    t->cutout = o->cutout;
    t->fn = o->transform;
    t->user = o->user;
    t->dtype = s->x.dtype;
    if (dt__tf_check(call, s, o, t->c, normal)) return dt_error_code();
    if (s->x.dtype == DT_U8 && !o->raw) t->how = DT__TF_BYTES, t->dtype = DT_F32;
    if (s->x.dtype == DT_F32 && normal) t->how = DT__TF_FLOATS;
    t->nbytes = (size_t)s->x.numel * dt_dtype_nbytes(t->dtype);
    if (t->how == DT__TF_COPY) return 0;
    t->mean = (float *)dt_mem_alloc((size_t)t->c * sizeof *t->mean);
    t->std = (float *)dt_mem_alloc((size_t)t->c * sizeof *t->std);
    t->rstd = (float *)dt_mem_alloc((size_t)t->c * sizeof *t->rstd);
    t->table = t->how == DT__TF_BYTES ? (float *)dt_mem_alloc((size_t)t->c * 256 * sizeof *t->table) : NULL;
    if (!t->mean || !t->std || !t->rstd || (t->how == DT__TF_BYTES && !t->table))
        return dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    float top = o->max_value != 0 ? (float)o->max_value : 255.0f;
    t->top = top;
    t->rtop = 1.0f / top;
    for (int64_t c = 0; c < t->c; c++) {
        int64_t from = o->std[1] != 0 ? c : 0;
        t->mean[c] = (float)o->mean[from];
        t->std[c] = o->std[from] != 0 ? (float)o->std[from] : 1.0f;
        t->rstd[c] = 1.0f / t->std[c];
        for (int v = 0; t->table && v < 256; v++) t->table[c * 256 + v] = ((float)v / top - t->mean[c]) / t->std[c];
    }
    t->fast = t->table && dt__tf_try(t);
    return 0;
}
/* A row of w pixels: pixel j is src[j + ox], or black if j + ox is outside 0..w-1. src NULL: a black row. flip: the row
   is reversed. */
static void dt__tf_row(const dt__tf *t, int64_t c, char *to, const char *src, int64_t ox, bool flip)
{
    int64_t w = t->w, from = ox < 0 ? -ox : 0, end = ox > 0 ? w - ox : w;
    if (!src || from > w || end < from) from = end = w; /* the whole row is black */
    if (t->how == DT__TF_COPY && t->dtype == DT_U8) {
        uint8_t *d = (uint8_t *)to, *s = (uint8_t *)(uintptr_t)src;
        memset(d, 0, (size_t)w);
        for (int64_t j = from; j < end; j++) d[flip ? w - 1 - j : j] = s[j + ox];
        return;
    }
    float *d = (float *)(void *)to, black = 0;
    if (t->how == DT__TF_BYTES) black = t->table[c * 256];
    if (t->how == DT__TF_FLOATS) black = (0 - t->mean[c]) / t->std[c];
    int64_t lead = flip ? w - end : from, tail = flip ? w - from : end; /* pixels 0..lead-1 and tail..w-1 are black */
    for (int64_t j = 0; j < lead; j++) d[j] = black;
    for (int64_t j = tail; j < w; j++) d[j] = black;
    if (from == end) {
        for (int64_t j = 0; j < w; j++) d[j] = black;
    } else if (t->how == DT__TF_BYTES) {
        const uint8_t *s = (const uint8_t *)src + from + ox;
        dt__tf_bytes(t, c, flip ? d + tail - 1 : d + from, s, end - from, flip);
    } else {
        const float *s = (const float *)(const void *)src + ox;
        bool         plain = t->how == DT__TF_COPY;
        for (int64_t j = from; j < end; j++)
            d[flip ? w - 1 - j : j] = plain ? s[j] : (s[j] - t->mean[c]) / t->std[c];
    }
}
static int64_t dt__tf_below(uint32_t draw, int64_t n) { return (int64_t)(((uint64_t)draw * (uint64_t)n) >> 32); }
/* The key of the generator for an epoch; hashed, so that adjacent seeds and epochs give independent numbers */
static uint64_t dt__tf_key(uint64_t seed, int64_t epoch)
{
    uint64_t x = seed + UINT64_C(0x9e3779b97f4a7c15) * ((uint64_t)epoch + 1);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
static void dt__tf_cutout(const dt__tf *t, char *to, const uint32_t *draw)
{
    size_t  size = dt_dtype_nbytes(t->dtype);
    int64_t y = dt__tf_below(draw[0], t->h), x = dt__tf_below(draw[1], t->w), reach = t->cutout / 2;
    int64_t y0 = y < reach ? 0 : y - reach, x0 = x < reach ? 0 : x - reach, y1 = y - reach + t->cutout,
            x1 = x - reach + t->cutout;
    if (y1 > t->h) y1 = t->h;
    if (x1 > t->w) x1 = t->w;
    for (int64_t c = 0; c < t->c; c++)
        for (int64_t r = y0; r < y1; r++)
            memset(to + (size_t)((c * t->h + r) * t->w + x0) * size, 0, (size_t)(x1 - x0) * size);
}
static int dt__tf_item(const dt__tf *t, uint64_t seed, int64_t epoch, int64_t item, const char *src, char *to)
{
    uint32_t draw[8] = { 0 };
    int64_t  plane = t->h * t->w;
    if (t->moves || t->cutout) {
        uint64_t key = dt__tf_key(seed, epoch);
        dt_philox(key, 2 * (uint64_t)item, draw);
        if (t->cutout) dt_philox(key, 2 * (uint64_t)item + 1, draw + 4);
    }
    if (t->moves) {
        int64_t oy = t->crop ? dt__tf_below(draw[0], 2 * t->crop + 1) - t->crop : 0;
        int64_t ox = t->crop ? dt__tf_below(draw[1], 2 * t->crop + 1) - t->crop : 0;
        bool    flip = t->flip && draw[2] >> 31;
        size_t  in = dt_dtype_nbytes(t->in.dtype), out = dt_dtype_nbytes(t->dtype);
        for (int64_t c = 0; c < t->c; c++)
            for (int64_t y = 0; y < t->h; y++) {
                bool inside = y + oy >= 0 && y + oy < t->h;
                dt__tf_row(t, c, to + (size_t)(c * plane + y * t->w) * out,
                           inside ? src + (size_t)(c * plane + (y + oy) * t->w) * in : NULL, ox, flip);
            }
    } else if (t->how == DT__TF_COPY) {
        memcpy(to, src, t->nbytes);
    } else {
        for (int64_t c = 0; c < t->c; c++) {
            float *d = (float *)(void *)to + c * plane;
            if (t->how == DT__TF_BYTES) {
                dt__tf_bytes(t, c, d, (const uint8_t *)src + c * plane, plane, false);
            } else {
                const float *s = (const float *)(const void *)src + c * plane;
                float        mean = t->mean[c], std = t->std[c];
                for (int64_t i = 0; i < plane; i++) d[i] = (s[i] - mean) / std;
            }
        }
    }
    if (t->cutout) dt__tf_cutout(t, to, draw + 4);
    if (!t->fn) return 0;
    dt_sample d;
    memset(&d, 0, sizeof d);
    d.item = item;
    d.epoch = epoch;
    d.seed = seed;
    d.dtype = t->dtype;
    d.shape = t->in.shape;
    int rc = t->fn(t->user, &d, to);
    if (rc || dt__err.code != DT_OK)
        return dt_fail(rc < 0 && rc >= DT_ERR_FILE ? (dt_status)rc : DT_ERR_STATE,
                       "dt_loader_next: the callback .transform failed at item %" PRId64 " with status %d, expected 0",
                       item, rc);
    return 0;
}

/* ==================================================================================================== >>loader
   Threads. The caller is the one thread that uses the loader: it runs every dt_loader_ function. Worker threads run
   dt__worker_main until dt_loader_free: each claims the number of the next batch, in order, while fewer than 'prefetch'
   batches are in progress or ready, fills a buffer without holding a lock, and puts it into ring slot k % prefetch. The
   caller takes batch k from that slot. With .workers = 0 the caller fills the buffer itself.

   Locks.
       loader.lock   protects ring, next, handed, nbatches, active and quit. Condition 'work' wakes workers (a slot became
                     free, a new epoch, quit), 'ready' wakes the caller (a batch was finished).
       pool.lock     protects the lists of buffers and their number.
   A thread that needs both takes loader.lock first. The counters busy and made and the reference counts are atomic. All
   other fields of the loader belong to the caller; it changes those that workers read (epoch, sampler) only while no
   batch is in progress.

   States of a batch buffer:
       free          in the pool's free list. Its copy to the device may still run (busy): it is filled again only
                     after the mark, an event recorded after the copy, has passed
       filling       owned by the worker that claimed the batch
       ready         in its ring slot
       uploaded      (asynchronous device) taken from the ring early; its copy to the device is queued
       returned      (other devices) tensors of the program use its memory; the last one to be freed puts it back into
                     the pool. A program that keeps batches therefore gets new buffers and never blocks the loader

   A device that copies asynchronously: when a batch is returned, the copy of the next one is queued in the copy stream.
   Its destination tensors come from the allocation cache of the compute stream, so the copy is ordered after the work
   queued there, and the step that uses the batch is ordered after the copy. */
#include <signal.h>

typedef struct dt__buf_pool dt__buf_pool;
typedef struct dt__batch_buf {
    dt__buf_pool *pool;
    char         *x, *y;
    int64_t      *item;
    int64_t       n;
    int32_t       out;        /* number of tensors that use its memory */
    dt_tensor    *to[2];      /* x and y on the device if their copies are queued, otherwise NULL */
    void         *mark;       /* event recorded after the copies */
    bool          busy;       /* the mark may not have passed yet */
    uint64_t      blocked[2]; /* begin and end (ns) of the wait for the mark before it was filled; 0, 0: no wait */
    dt_status     code;       /* the error of its batch, or DT_OK */
    char          message[1024];
    char          sha256[65];
    struct dt__batch_buf *next, *also; /* links of the free list and of the list of all buffers */
} dt__batch_buf;
enum { DT__SLOT_EMPTY = 0, DT__SLOT_READY, DT__SLOT_NO_MEMORY };
typedef struct dt__ring_slot {
    int            state; /* DT__SLOT_NO_MEMORY: the worker could not get a buffer for this batch */
    dt__batch_buf *buf;   /* if DT__SLOT_READY, otherwise NULL */
} dt__ring_slot;
struct dt__buf_pool {          /* freed when the loader and all returned batches are freed */
    pthread_mutex_t lock;
    int32_t         refs;      /* one for the loader, one for each returned buffer */
    dt__batch_buf  *free, *all;
    dt_allocator    a;
    bool            own;       /* do not use a, but pinned memory of dev or memory of the CPU device */
    dt_device      *dev;       /* the asynchronous device; NULL: batches are returned in the buffers' own memory */
    const dt_backend *be;      /* of dev */
    bool            forked;    /* dev belongs to the parent process and must not be used */
    int             made, enough; /* buffers made; below 'enough' a new one is made rather than wait for a copy */
    size_t          xbytes, ybytes;
    int64_t         batch;
};
typedef struct dt__worker_state {
    dt_loader *in;
    int        number;
    dt__mem    mem;
} dt__worker_state;
typedef struct dt__shared_cursor { /* a tensor from dt_loader_state may outlive the loader */
    dt_cursor c;
    int32_t   refs;
} dt__shared_cursor;
struct dt_loader {
    dt_dataset     *set;
    dt_sampler     *sampler;
    dt_loader_opts  o;
    int64_t         own;       /* its batches are those of so many ranks, in turn: dt__loader_split; usually 1 */
    dt__tf          tf;
    dt__buf_pool   *pool;
    dt__shared_cursor *shared; /* the cursor that the program sees */
    dt_cursor       seen;      /* its value after the last call: a difference means that the program changed it */
    dt_tensor      *state;
    int64_t         epoch, nbatches, whole; /* from the cursor to the end of the epoch; whole: batches of a whole epoch */
    int64_t         handed;    /* batches returned since then */
    bool            begun;     /* the sampler is at the cursor and workers may claim batches */
    bool            end_due;   /* the last batch of an epoch was returned, its end (false) not yet; independent of begun */
    dt__batch_buf  *uploaded;  /* the next batch if it was taken from the ring early, otherwise NULL */
    int64_t        *item;
    dt__mem         mem;
    pid_t           pid;
    uint64_t        left;      /* time (ns) at which dt_loader_next last returned; 0: not inside an epoch */
    uint64_t        wait, elsewhere, busy, warned_wait, warned_elsewhere; /* ns */
    int64_t         step_n, grown; /* tensors of the step at the last batch; by how many batches in a row they have grown */
    bool            said_grows;
    uint64_t        blocked;   /* ns of the current call spent waiting for the device; not counted as wait for data */
    int64_t         batches, items, made;
    int64_t         last_n, timed; /* items of the last batch; items whose step is part of 'elsewhere' */
    pthread_mutex_t lock;      /* see above for what it protects */
    pthread_cond_t  work, ready;
    pthread_t      *thread;
    dt__worker_state *worker;
    int             nthreads, active; /* active: workers that are filling a buffer */
    bool            quit;
    int64_t         next;      /* the batch that a worker claims next */
    dt__ring_slot  *ring;
};

/* ---- batch buffers */
static char *dt__buf_pool_alloc(dt__buf_pool *d, size_t n)
{
    if (!n) return NULL;
    if (!d->own) return (char *)d->a.alloc(d->a.user, n);
    return (char *)(d->dev ? d->be->host_alloc(d->dev, n) : dt_device_backend(dt_cpu())->alloc(dt_cpu(), n));
}
static void dt__buf_pool_dealloc(dt__buf_pool *d, char *p, size_t n)
{
    if (!p) return;
    if (!d->own) d->a.free(d->a.user, p, n);
    else if (!d->dev) dt_device_backend(dt_cpu())->free(dt_cpu(), p, n);
    else if (!d->forked) d->be->host_free(d->dev, p, n);
}
static void dt__buf_free(dt__batch_buf *s)
{
    bool yes;
    if (!s) return;
    if (s->mark && !s->pool->forked) {
        if (s->busy) (void)s->pool->be->passed(s->pool->dev, s->mark, true, &yes);
        s->pool->be->mark_free(s->pool->dev, s->mark);
    }
    dt__buf_pool_dealloc(s->pool, s->x, s->pool->xbytes);
    dt__buf_pool_dealloc(s->pool, s->y, s->pool->ybytes);
    dt_mem_free(s->item, (size_t)s->pool->batch * sizeof *s->item);
    dt_mem_free(s, sizeof *s);
}
static void dt__buf_pool_unref(dt__buf_pool *d)
{
    if (!d || __atomic_sub_fetch(&d->refs, 1, __ATOMIC_ACQ_REL)) return;
    while (d->all) { /* after a fork this includes buffers that workers of the parent were filling */
        dt__batch_buf *s = d->all;
        d->all = s->also;
        dt__buf_free(s);
    }
    pthread_mutex_destroy(&d->lock);
    dt_mem_free(d, sizeof *d);
}
static void dt__buf_no_memory(const dt__buf_pool *d)
{
    bool pinned = d->dev && d->own;
    dt_fail(DT_ERR_MEMORY, "dt_loader_next: out of %smemory for a batch of %zu bytes%s", pinned ? "pinned " : "",
            d->xbytes + d->ybytes, pinned ? "; set a smaller .prefetch, or another allocator in .buffers" : "");
}
/* A free buffer, on an asynchronous device the one that has been free for longest. NULL if there is no free buffer, or if
   the copy of that one still runs and a new buffer may be made instead. */
static dt__batch_buf *dt__buf_reuse(dt__buf_pool *d)
{
    pthread_mutex_lock(&d->lock);
    dt__batch_buf **at = &d->free, *s;
    while (d->dev && *at && (*at)->next) at = &(*at)->next;
    s = *at;
    if (s && s->busy && d->made < d->enough) {
        bool yes = false;
        if (d->be->passed(d->dev, s->mark, false, &yes) == 0 && !yes) s = NULL;
        else s->busy = !yes;
    }
    if (s) *at = s->next;
    pthread_mutex_unlock(&d->lock);
    return s;
}
/* Waits until the buffer's copy to the device has ended. After an error of the device it stays busy, and the error is
   reported with its next batch. */
static dt__batch_buf *dt__buf_wait_copied(dt__batch_buf *s)
{
    bool yes = false;
    s->blocked[0] = s->blocked[1] = 0;
    if (!s->busy) return s;
    s->blocked[0] = dt_trace_now();
    (void)s->pool->be->passed(s->pool->dev, s->mark, true, &yes);
    s->blocked[1] = dt_trace_now();
    s->busy = !yes;
    return s;
}
static dt__batch_buf *dt__buf_get(dt__buf_pool *d) /* NULL after dt_fail */
{
    dt__batch_buf *s = dt__buf_reuse(d);
    if (s) return dt__buf_wait_copied(s);
    s = (dt__batch_buf *)dt__alloc_zero(sizeof *s);
    if (s) {
        s->pool = d;
        s->x = dt__buf_pool_alloc(d, d->xbytes);
        s->y = dt__buf_pool_alloc(d, d->ybytes);
        s->item = (int64_t *)dt_mem_alloc((size_t)d->batch * sizeof *s->item);
    }
    if (s && s->x && s->item && (s->y || !d->ybytes)) {
        pthread_mutex_lock(&d->lock);
        s->also = d->all;
        d->all = s;
        d->made++;
        pthread_mutex_unlock(&d->lock);
        return s;
    }
    dt__buf_no_memory(d);
    dt__buf_free(s);
    return NULL;
}
static void dt__buf_put(dt__batch_buf *s)
{
    dt__buf_pool *d = s->pool;
    pthread_mutex_lock(&d->lock);
    s->next = d->free;
    d->free = s;
    pthread_mutex_unlock(&d->lock);
}
static void dt__buf_release(void *user) /* a tensor that used the buffer's memory was freed */
{
    dt__batch_buf  *s = (dt__batch_buf *)user;
    dt__buf_pool *d = s->pool;
    if (__atomic_sub_fetch(&s->out, 1, __ATOMIC_ACQ_REL)) return;
    dt__buf_put(s);
    dt__buf_pool_unref(d);
}

/* ---- one batch */
static int dt__batch_run(dt_loader *in, dt__batch_buf *s, int64_t at, dt__mem *mem, int64_t *took)
{
    int64_t           i = s->item[at], m = 1, k = i;
    const dt_dataset *leaf = dt__set_leaf(in->set, &k);
    dt__items           r;
    for (; at + m < s->n; m++) { /* consecutive items of one leaf are read together */
        int64_t           next = s->item[at + m];
        const dt_dataset *other = dt__set_leaf(in->set, &next);
        if (other != leaf || next != k + m) break;
    }
    if (dt__set_run("dt_loader_next", leaf, k, &m, in->set->has_y, mem, &r)) return dt_error_code();
    for (int64_t q = 0; q < m; q++) {
        if (dt__tf_item(&in->tf, in->o.seed, in->epoch, s->item[at + q], r.x + (size_t)q * r.xstep,
                        s->x + (size_t)(at + q) * in->tf.nbytes))
            return dt_error_code();
        if (in->set->has_y)
            memcpy(s->y + (size_t)(at + q) * in->set->y.nbytes, r.y + (size_t)q * r.ystep, in->set->y.nbytes);
    }
    *took = m;
    return 0;
}
/* Shuffled items of an array are far apart in memory: prefetch one while those before it are converted. */
static void dt__prefetch_item(const dt_dataset *s, int64_t i)
{
    s = dt__set_leaf(s, &i);
    if (s->kind != DT__SET_MEMORY) return;
    const char *p = s->xmem + (size_t)i * s->x.nbytes;
    for (size_t at = 0; at < s->x.nbytes && at < 8192; at += 64) __builtin_prefetch(p + at);
}
static void dt__batch_fill(dt_loader *in, dt__batch_buf *s, int64_t k, dt__mem *mem)
{
    uint64_t t0 = dt_trace_now();
    int64_t  took = 0;
    s->code = DT_OK;
    s->sha256[0] = 0;
    s->n = dt_sampler_batch(in->sampler, k / in->own, in->o.batch, in->o.drop_last, s->item);
    int64_t other = in->sampler->rank + k % in->own; /* one rank of several: dt__loader_split */
    for (int64_t i = 0; k % in->own && i < s->n; i++) s->item[i] = dt__sampler_item(in->sampler, other, k / in->own * in->o.batch + i);
    for (int64_t at = 0; at < s->n && dt__err.code == DT_OK; at += took) {
        if (at + 2 < s->n) dt__prefetch_item(in->set, s->item[at + 2]);
        if (dt__batch_run(in, s, at, mem, &took)) break;
    }
    if (in->o.digest && dt__err.code == DT_OK) {
        dt_sha256 h;
        uint8_t   sum[32];
        dt_sha256_begin(&h);
        dt_sha256_add(&h, s->x, (size_t)s->n * in->tf.nbytes);
        if (in->set->has_y) dt_sha256_add(&h, s->y, (size_t)s->n * in->set->y.nbytes);
        dt_sha256_end(&h, sum);
        for (int i = 0; i < 32; i++) snprintf(s->sha256 + 2 * i, 3, "%02x", sum[i]);
    }
    if (dt__err.code != DT_OK) {
        s->code = dt__err.code;
        memcpy(s->message, dt__err.message, sizeof s->message);
    }
    __atomic_add_fetch(&in->busy, dt_trace_now() - t0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&in->made, s->n, __ATOMIC_RELAXED);
}
static void *dt__worker_main(void *arg)
{
    dt__worker_state *self = (dt__worker_state *)arg;
    dt_loader        *in = self->in;
    char              track[32], name[32];
    snprintf(track, sizeof track, "loader %d", self->number);
    pthread_mutex_lock(&in->lock);
    for (;;) {
        while (!in->quit && (in->next >= in->nbatches || in->next - in->handed >= in->o.prefetch))
            pthread_cond_wait(&in->work, &in->lock);
        if (in->quit) break;
        int64_t k = in->next++;
        in->active++;
        pthread_mutex_unlock(&in->lock);
        uint64_t  t0 = dt_trace_now();
        dt__batch_buf *s = dt__buf_get(in->pool);
        if (s) dt__batch_fill(in, s, k, &self->mem);
        snprintf(name, sizeof name, "batch %" PRId64, k);
        if (dt_trace_is_on()) dt_trace_span(track, name, t0, dt_trace_now());
        dt_error_clear(); /* dt_loader_next reports it */
        pthread_mutex_lock(&in->lock);
        in->active--;
        in->ring[k % in->o.prefetch].buf = s;
        in->ring[k % in->o.prefetch].state = s ? DT__SLOT_READY : DT__SLOT_NO_MEMORY;
        pthread_cond_signal(&in->ready);
    }
    pthread_mutex_unlock(&in->lock);
    return NULL;
}

/* ---- the caller's side: starting, taking and returning batches */
static dt__batch_buf *dt__ring_take(dt__ring_slot *b) /* empties a slot; the caller holds lock */
{
    dt__batch_buf *s = b->buf;
    b->buf = NULL;
    b->state = DT__SLOT_EMPTY;
    return s;
}
static void dt__buf_discard_upload(dt__batch_buf *s)
{
    dt__buf_pool *d = s->pool;
    /* their memory returns to the compute stream's cache: order later work of that stream after the copy */
    if (s->to[0]) (void)d->be->order(d->dev, dt__stream(d->dev), d->be->copy_stream(d->dev));
    for (int i = 0; i < 2; i++) dt__unref(s->to[i]);
    s->to[0] = s->to[1] = NULL;
}
static void dt__loader_stop(dt_loader *in) /* waits for the workers and empties the ring */
{
    if (in->uploaded) {
        dt__buf_discard_upload(in->uploaded);
        dt__buf_put(in->uploaded);
        in->uploaded = NULL;
    }
    if (!in->nthreads) return;
    pthread_mutex_lock(&in->lock);
    in->next = in->nbatches;
    while (in->active) pthread_cond_wait(&in->ready, &in->lock);
    for (int i = 0; i < in->o.prefetch; i++) {
        dt__batch_buf *s = dt__ring_take(&in->ring[i]);
        if (s) dt__buf_put(s);
    }
    pthread_mutex_unlock(&in->lock);
}
static int dt__loader_begin(dt_loader *in) /* starts the workers at the cursor */
{
    dt__loader_stop(in);
    in->begun = false;
    if (dt_sampler_seek(in->sampler, &in->shared->c)) return dt_error_code();
    int64_t n = dt_sampler_count(in->sampler);
    pthread_mutex_lock(&in->lock);
    in->nbatches = in->own * (in->o.drop_last ? n / in->o.batch : (n + in->o.batch - 1) / in->o.batch);
    in->epoch = in->shared->c.epoch;
    in->handed = in->next = 0;
    in->begun = true;
    if (in->nthreads) pthread_cond_broadcast(&in->work);
    pthread_mutex_unlock(&in->lock);
    in->seen = in->shared->c;
    return 0;
}
static dt__batch_buf *dt__loader_take(dt_loader *in) /* waits for the next batch; NULL after dt_fail */
{
    dt__batch_buf *s;
    uint64_t  t0 = dt_trace_now();
    if (!in->nthreads) {
        s = dt__buf_get(in->pool);
        if (s) {
            if (s->blocked[1]) in->blocked = s->blocked[1] - s->blocked[0];
            dt__batch_fill(in, s, in->handed, &in->mem);
            in->handed++;
        }
        return s;
    }
    pthread_mutex_lock(&in->lock);
    dt__ring_slot *slot = &in->ring[in->handed % in->o.prefetch];
    while (!in->uploaded && slot->state == DT__SLOT_EMPTY) pthread_cond_wait(&in->ready, &in->lock);
    s = in->uploaded ? in->uploaded : dt__ring_take(slot);
    in->uploaded = NULL;
    in->handed++;
    pthread_cond_signal(&in->work);
    pthread_mutex_unlock(&in->lock);
    if (!s) dt__buf_no_memory(in->pool);
    /* the part of our wait in which the worker itself waited for the device */
    else if (s->blocked[1] > t0) in->blocked = s->blocked[1] - (s->blocked[0] > t0 ? s->blocked[0] : t0);
    return s;
}
static dt_shape dt__loader_shape(const dt__batch_buf *s, const dt__field *f)
{
    dt_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.ndim = f->shape.ndim + 1;
    shape.dim[0] = s->n;
    for (int i = 0; i < f->shape.ndim; i++) shape.dim[i + 1] = f->shape.dim[i];
    return shape;
}
static dt_tensor *dt__loader_tensor(dt_loader *in, dt__batch_buf *s, char *p, const dt__field *f, dt_dtype dtype)
{
    dt_shape      shape = dt__loader_shape(s, f);
    dt_from_blob_opts o;
    DT__CLEAR(o);
    o.dtype = dtype;
    o.release = dt__buf_release;
    o.user = s;
    __atomic_add_fetch(&s->out, 1, __ATOMIC_RELAXED);
    dt_tensor *t = dt_from_blob_with(p, shape, o);
    if (!t) dt__buf_release(s);
    return t && in->o.device && in->o.device != dt_cpu() ? dt_to(t, in->o.device) : t;
}
static int dt__buf_copy_failed(const dt__buf_pool *d, int rc)
{
    return dt_fail((dt_status)rc, "dt_loader_next: the copy of a batch to %s failed with status %d",
                   dt_device_name(d->dev), rc);
}
/* Queues the copies of a filled buffer to the device, unless they are queued already. */
static int dt__buf_upload(dt_loader *in, dt__batch_buf *s)
{
    dt__buf_pool        *d = in->pool;
    const dt__field  *field[2] = { &in->set->x, &in->set->y };
    const int         dtype[2] = { (int)in->tf.dtype, (int)in->set->y.dtype };
    const char *const from[2] = { s->x, s->y };
    const size_t      each[2] = { in->tf.nbytes, in->set->y.nbytes };
    int               n = in->set->has_y ? 2 : 1, rc = 0;
    if (s->to[0]) return 0;
    void *copy = d->be->copy_stream(d->dev);
    for (int i = 0; i < n && !rc; i++) {
        dt_shape shape = dt__loader_shape(s, field[i]);
        s->to[i] = dt__new("dt_loader_next", d->dev, dtype[i], shape.dim, shape.ndim, DT_LAYOUT_PLAIN);
        if (!s->to[i]) rc = DT_ERR_MEMORY;
    }
    if (!rc) rc = d->be->order(d->dev, copy, dt__stream(d->dev));
    for (int i = 0; i < n && !rc; i++)
        rc = d->be->upload_later(d->dev, copy, s->to[i]->st->ptr, from[i], (size_t)s->n * each[i]);
    if (!rc) rc = d->be->mark(d->dev, copy, &s->mark);
    s->busy = !rc;
    if (!rc) return 0;
    (void)d->be->wait(d->dev, copy); /* a copy that was queued may still read the buffer */
    dt__buf_discard_upload(s);
    return dt__buf_copy_failed(d, rc);
}
/* Queues the copy of the next batch if it is ready. An error is ignored here: the copy is tried again when the batch is
   due, and an error is reported then. */
static void dt__loader_upload_next(dt_loader *in)
{
    if (!in->pool->dev || !in->nthreads || in->handed >= in->nbatches) return;
    pthread_mutex_lock(&in->lock);
    dt__ring_slot *slot = &in->ring[in->handed % in->o.prefetch];
    if (slot->state == DT__SLOT_READY) in->uploaded = dt__ring_take(slot);
    pthread_mutex_unlock(&in->lock);
    if (in->uploaded && in->uploaded->code == DT_OK && dt__buf_upload(in, in->uploaded)) dt_error_clear();
}
/* Returns a batch on an asynchronous device: work that is queued from now on is ordered after its copy. */
static void dt__loader_give_on_device(dt_loader *in, dt__batch_buf *s, dt_batch *b)
{
    dt__buf_pool *d = in->pool;
    int        rc = dt__buf_upload(in, s);
    if (!rc) rc = d->be->order(d->dev, dt__stream(d->dev), d->be->copy_stream(d->dev));
    if (!rc) {
        b->x = dt__give(s->to[0]);
        b->y = dt__give(s->to[1]);
        s->to[0] = s->to[1] = NULL;
    } else {
        dt__buf_copy_failed(d, rc);
        dt__buf_discard_upload(s);
    }
    dt__buf_put(s);
}
static void dt__loader_give_on_host(dt_loader *in, dt__batch_buf *s, dt_batch *b)
{
    __atomic_add_fetch(&in->pool->refs, 1, __ATOMIC_RELAXED);
    s->out = 1; /* our own use, until both tensors are made */
    b->x = dt__loader_tensor(in, s, s->x, &in->set->x, in->tf.dtype);
    b->y = in->set->has_y && b->x ? dt__loader_tensor(in, s, s->y, &in->set->y, in->set->y.dtype) : NULL;
    dt__buf_release(s);
}
static bool dt__loader_deliver(dt_loader *in, dt__batch_buf *s, dt_batch *b)
{
    if (s->code != DT_OK) {
        dt_fail(s->code, "%s", s->message);
        dt__buf_put(s);
        return false;
    }
    memcpy(in->item, s->item, (size_t)s->n * sizeof *in->item);
    memcpy(b->sha256, s->sha256, sizeof b->sha256);
    b->n = s->n;
    b->item = in->item;
    b->epoch = in->epoch;
    b->index = in->handed - 1;
    if (in->pool->dev) dt__loader_give_on_device(in, s, b);
    else dt__loader_give_on_host(in, s, b);
    in->batches++;
    in->items += b->n;
    in->last_n = b->n;
    return b->x && (b->y || !in->set->has_y);
}
static dt_cursor dt__next_epoch(const dt_loader *in)
{
    dt_cursor c;
    memset(&c, 0, sizeof c);
    c.seed = (int64_t)in->o.seed;
    c.epoch = in->epoch + 1;
    c.n = in->set->n;
    return c;
}
static void dt__loader_warn(dt_loader *in)
{
    char     line[400];
    uint64_t wait = in->wait - in->warned_wait, elsewhere = in->elsewhere - in->warned_elsewhere;
    in->warned_wait = in->wait;
    in->warned_elsewhere = in->elsewhere;
    if (wait + elsewhere < (uint64_t)DT__NS_PER_S || wait < (wait + elsewhere) / 10) return;
    int n = snprintf(line, sizeof line, "dt_loader: epoch %" PRId64 ": ", in->epoch);
    dt_loader_report(in, 0, line + n, sizeof line - (size_t)n);
    dt__log(DT_LOG_WARN, line);
}
static void dt__loader_fed(const dt_loader *in) /* for who measures the steps of this thread */
{
    const dt__timing *w = dt__tls.timing;
    size_t            nbytes = in->set->x.nbytes + (in->set->has_y ? in->set->y.nbytes : 0);
    if (w->fed) w->fed(w->user, (int64_t)nbytes, dt_loader_get_stats(in).able);
}
/* Each batch of a loop that never ends its steps finds more tensors of the step than the one before: says so, once. */
static void dt__loader_grows(dt_loader *in)
{
    int64_t n = dt__tls.step.n, most = dt_is_grad_enabled() ? 1000 : 100; /* gradients may be accumulated over many batches */
    in->grown = n > in->step_n ? in->grown + 1 : 0;
    in->step_n = n;
    if (in->grown != most || in->said_grows) return;
    in->said_grows = true;
    dt__logf(DT_LOG_WARN,
             "dt_loader_next: %" PRId64 " batches without dt_end() or dt_step(): %" PRId64 " tensors of theirs take %.1f MiB, and each "
             "batch adds more; end each pass of an evaluation: for (dt_batch b; dt_loader_next(in, &b); dt_end())",
             in->grown, n, (double)dt_stats().live_bytes / 1048576);
}
DT_API bool dt_loader_next(dt_loader *in, dt_batch *b)
{
    uint64_t t0 = dt_trace_now();
    if (b) memset(b, 0, sizeof *b);
    if (dt__err.code != DT_OK) {
        enum { MANY = 1000 }; /* a loop that waits for data that will not come */
        static __thread int calls;
        if (++calls >= MANY) dt__log_unread(), calls = 0;
        return false;
    }
    if (!in || !b) {
        dt_fail(DT_ERR_ARG, "dt_loader_next: the %s is NULL", in ? "batch" : "loader");
        return false;
    }
    if (in->pid != getpid()) {
        dt_fail(DT_ERR_STATE,
                "dt_loader_next: the loader was made before a fork and its threads do not exist in this process; "
                "call dt_loader_new after the fork");
        return false;
    }
    dt__loader_grows(in);
    if (in->left) in->elsewhere += t0 - in->left, in->timed += in->last_n;
    in->last_n = 0;
    in->left = t0;
    in->blocked = 0;
    bool moved = memcmp(&in->shared->c, &in->seen, sizeof in->seen) != 0;
    if (in->end_due && !moved) {
        in->end_due = false;
        return false;
    }
    in->end_due = false;
    if ((moved || !in->begun) && dt__loader_begin(in)) return false;
    bool ok = false;
    if (in->handed < in->nbatches) {
        dt__batch_buf *s = dt__loader_take(in);
        uint64_t  t = dt_trace_now();
        ok = s && dt__loader_deliver(in, s, b);
        if (ok) dt__loader_upload_next(in);
        if (in->pool->dev) in->blocked += dt_trace_now() - t; /* queueing takes long only if the device's queue is full */
    }
    uint64_t t1 = dt_trace_now();
    in->wait += t1 - t0 - in->blocked;
    in->elsewhere += in->blocked;
    in->left = in->handed >= in->nbatches && in->nbatches > 1 ? 0 : t1; /* time between epochs is not a step */
    if (ok && dt_is_grad_enabled()) {
        dt__measured.items += b->n;
        dt__measured.data += (int64_t)(t1 - t0 - in->blocked);
        dt__measured.fetch = t0;
        dt__measured.fetched = t1;
    }
    if (dt_trace_is_on() && ok) dt_trace_span("data", "wait for data", t0, t1);
    if (__builtin_expect(dt__tls.timing != NULL, 0) && ok) dt__loader_fed(in);
    bool last = in->handed >= in->nbatches;
    in->shared->c = last ? dt__next_epoch(in) : dt_sampler_cursor(in->sampler, in->handed / in->own * in->o.batch);
    in->seen = in->shared->c;
    if (last) {
        dt__loader_warn(in);
        in->end_due = ok;
        if (dt__err.code == DT_OK) dt__loader_begin(in); /* prefetch the first batches of the next epoch */
        else in->begun = false;
    }
    return ok;
}
DT_API bool dt_loader_get(dt_loader *in, int64_t number, dt_batch *b)
{
    if (b) memset(b, 0, sizeof *b);
    if (dt__err.code != DT_OK) return false;
    int64_t per = dt_loader_batches(in);
    if (!in || !b || number < 0 || per < 1 || in->o.world > 1) {
        dt_fail(DT_ERR_ARG, "dt_loader_get: batch %" PRId64 " of a loader with %" PRId64 " batches an epoch%s; expected a number of "
                "0 or more, and a loader of one rank (without .rank and .world)", number, per,
                !in ? " (it is NULL)" : !b ? " (b is NULL)" : "");
        return false;
    }
    dt_cursor c = in->shared->c;
    c.epoch = number / per;
    c.position = number % per * in->o.batch;
    c.npast = 0;
    in->shared->c = c;
    in->end_due = false; /* the end of an epoch is not a pause here */
    if (!dt_loader_next(in, b)) {
        dt_fail(DT_ERR_STATE, "dt_loader_get: batch %" PRId64 " does not exist", number); /* no effect if an error is pending */
        return false;
    }
    b->index = number % per;
    return true;
}

/* ---- construction and queries */
static int dt__loader_check(const char *call, const dt_dataset *set, const dt_loader_opts *o)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!set) return dt_fail(DT_ERR_ARG, "%s: the dataset is NULL", call);
    if (o->batch < 0 || o->workers < 0 || o->workers > 1024 || o->prefetch < 0 || o->prefetch > 65536)
        return dt_fail(DT_ERR_ARG, "%s: .batch %" PRId64 ", .workers %d, .prefetch %d: one is out of range; expected "
                       ".batch of 0 or more, .workers of 0 to 1024, .prefetch of 0 to 65536", call, o->batch, o->workers,
                       o->prefetch);
    if (o->buffers && (!o->buffers->alloc || !o->buffers->free))
        return dt_fail(DT_ERR_ARG, "%s: .buffers needs alloc and free; one of them is NULL", call);
    return 0;
}
static dt_sampler *dt__loader_sampler(const char *call, const dt_dataset *set, const dt_loader_opts *o)
{
    dt_sampler_opts so;
    int64_t         n = dt_dataset_shards(set);
    DT__CLEAR(so);
    so.shuffle = o->shuffle;
    so.seed = o->seed;
    so.rank = o->rank;
    so.world = o->world;
    so.drop_last = o->drop_last;
    so.no_pad = o->no_pad;
    so.contiguous = o->contiguous;
    so.weight = o->weight;
    so.draws = o->draws;
    int64_t *shard = o->contiguous ? (int64_t *)dt_mem_alloc((size_t)(n + 1) * sizeof *shard) : NULL;
    if (o->contiguous && !shard) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    for (int64_t i = 0; shard && i <= n; i++) shard[i] = dt_dataset_shard(set, i);
    so.shard = shard;
    so.nshards = shard ? n : 0;
    dt_sampler *s = dt_sampler_new_with(set->n, so);
    dt_mem_free(shard, shard ? (size_t)(n + 1) * sizeof *shard : 0);
    return s;
}
static void dt__buf_pool_choose(dt__buf_pool *d, const dt_loader_opts *o)
{
    const dt_backend *be = o->device && o->device != dt_cpu() ? dt_device_backend(o->device) : NULL;
    d->own = !o->buffers;
    if (o->buffers) d->a = *o->buffers;
    if (!be || !be->order || !be->host_alloc || !be->host_free || !be->copy_stream || !be->upload_later || !be->mark ||
        !be->passed || !be->mark_free)
        return;
    d->dev = o->device;
    d->be = be;
    d->enough = o->prefetch + 3; /* prefetched, one being returned, two being copied to the device */
}
static int dt__loader_memory(const char *call, dt_loader *in)
{
    size_t item;
    in->shared = (dt__shared_cursor *)dt__alloc_zero(sizeof *in->shared);
    in->pool = (dt__buf_pool *)dt__alloc_zero(sizeof *in->pool);
    if (in->shared) in->shared->refs = 1;
    if (in->pool) in->pool->refs = 1;
    if (in->pool) pthread_mutex_init(&in->pool->lock, NULL);
    if (!in->shared || !in->pool) return dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    dt__buf_pool_choose(in->pool, &in->o);
    in->pool->batch = in->o.batch;
    item = in->tf.nbytes > in->set->y.nbytes ? in->tf.nbytes : in->set->y.nbytes;
    if (item < 8) item = 8;
    if (in->o.batch > (int64_t)(((size_t)1 << 46) / item))
        return dt_fail(DT_ERR_ARG, "%s: a batch of %" PRId64 " items of %zu bytes is too large; expected at most 2^46 "
                       "bytes", call, in->o.batch, item);
    in->pool->xbytes = (size_t)in->o.batch * in->tf.nbytes;
    in->pool->ybytes = in->set->has_y ? (size_t)in->o.batch * in->set->y.nbytes : 0;
    in->item = (int64_t *)dt_mem_alloc((size_t)in->o.batch * sizeof *in->item);
    in->ring = (dt__ring_slot *)dt__alloc_zero((size_t)in->o.prefetch * sizeof *in->ring);
    in->thread = (pthread_t *)dt__alloc_zero((size_t)in->o.workers * sizeof *in->thread);
    in->worker = (dt__worker_state *)dt__alloc_zero((size_t)in->o.workers * sizeof *in->worker);
    return in->item && in->ring && in->thread && in->worker ? 0 : dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
}
static int dt__loader_threads(const char *call, dt_loader *in)
{
    sigset_t all, before;
    int      rc = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* workers block all signals: the program's threads handle them */
    for (int i = 0; i < in->o.workers && !rc; i++) {
        in->worker[i].in = in;
        in->worker[i].number = i;
        rc = pthread_create(&in->thread[i], NULL, dt__worker_main, &in->worker[i]);
        if (!rc) in->nthreads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? dt_fail(DT_ERR_STATE, "%s: cannot start worker %d of %d: %s", call, in->nthreads, in->o.workers,
                        strerror(rc))
              : 0;
}
DT_API dt_loader *dt_loader_new_with(dt_dataset *set, dt_loader_opts o)
{
    static const char call[] = "dt_loader_new";
    if (!o.batch) o.batch = 1;
    if (!o.world) o.world = 1;
    if (dt__loader_check(call, set, &o)) return NULL;
    if (!o.prefetch) o.prefetch = o.workers ? 2 * o.workers : 1;
    dt_loader *in = (dt_loader *)dt__alloc_zero(sizeof *in);
    if (!in) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    in->set = dt__set_ref(set);
    in->o = o;
    in->own = 1;
    in->pid = getpid();
    pthread_mutex_init(&in->lock, NULL);
    pthread_cond_init(&in->work, NULL);
    pthread_cond_init(&in->ready, NULL);
    if (!dt__tf_init(call, &in->tf, set, &o) && (in->sampler = dt__loader_sampler(call, set, &o)) &&
        !dt__loader_memory(call, in)) {
        in->shared->c.seed = (int64_t)o.seed;
        in->shared->c.n = set->n;
        in->seen = in->shared->c;
        int64_t n = dt_sampler_count(in->sampler);
        in->whole = o.drop_last ? n / o.batch : (n + o.batch - 1) / o.batch;
        if (!in->whole && set->n)
            dt__log(DT_LOG_WARN, "dt_loader_new: the dataset has fewer items than .batch: with .drop_last its epochs are "
                                 "empty");
        if (!dt__loader_threads(call, in) && !dt__loader_begin(in)) return in;
    }
    dt_loader_free(in);
    return NULL;
}
DT__INSIDE int dt__loader_split(dt_loader *in, int rank, int own, int world, bool exact, const dt_cursor *at, dt__share *out)
{
    dt__loader_stop(in);
    dt_sampler *s = in->sampler;
    s->rank = rank;
    s->world = world;
    s->no_pad = exact;
    in->own = own;
    in->o.rank = rank;
    in->o.world = world;
    in->o.no_pad = exact;
    in->shared->c = *at;
    in->end_due = false;
    if (dt__loader_begin(in)) return dt_error_code();
    out->batch = in->o.batch;
    out->items = s->len - at->position;
    out->steps = in->o.drop_last ? s->most / in->o.batch : (s->most + in->o.batch - 1) / in->o.batch;
    return 0;
}
DT__INSIDE const dt_loader_opts *dt__loader_options(const dt_loader *in) { return &in->o; }
static void dt__shared_cursor_unref(void *user)
{
    dt__shared_cursor *p = (dt__shared_cursor *)user;
    if (p && !__atomic_sub_fetch(&p->refs, 1, __ATOMIC_ACQ_REL)) dt_mem_free(p, sizeof *p);
}
DT_API void dt_loader_free(dt_loader *in)
{
    dt__log_unread();
    if (!in) return;
    if (in->pid == getpid()) { /* after a fork the workers do not exist here, and they may have held the locks */
        pthread_mutex_lock(&in->lock);
        in->quit = true;
        pthread_cond_broadcast(&in->work);
        pthread_mutex_unlock(&in->lock);
        for (int i = 0; i < in->nthreads; i++) pthread_join(in->thread[i], NULL);
        for (int i = 0; in->ring && i < in->o.prefetch; i++)
            if (in->ring[i].buf) dt__buf_put(in->ring[i].buf);
        if (in->uploaded) dt__buf_discard_upload(in->uploaded);
        pthread_mutex_destroy(&in->lock);
        pthread_cond_destroy(&in->work);
        pthread_cond_destroy(&in->ready);
    } else if (in->pool) in->pool->forked = true;
    dt_free(in->state);
    dt__shared_cursor_unref(in->shared);
    dt__buf_pool_unref(in->pool);
    dt__tf_free(&in->tf);
    dt_sampler_free(in->sampler);
    dt__mem_free(&in->mem);
    dt_mem_free(in->item, in->item ? (size_t)in->o.batch * sizeof *in->item : 0);
    dt_mem_free(in->ring, in->ring ? (size_t)in->o.prefetch * sizeof *in->ring : 0);
    for (int i = 0; in->worker && i < in->o.workers; i++) dt__mem_free(&in->worker[i].mem);
    dt_mem_free(in->worker, in->worker ? (size_t)in->o.workers * sizeof *in->worker : 0);
    dt_mem_free(in->thread, in->thread ? (size_t)in->o.workers * sizeof *in->thread : 0);
    dt_dataset_free(in->set);
    dt_mem_free(in, sizeof *in);
}
DT_API dt_dataset *dt_loader_dataset(const dt_loader *in) { return in ? in->set : NULL; }
DT_API int64_t    dt_loader_epoch(const dt_loader *in)
{
    return in && dt__err.code == DT_OK ? in->shared->c.epoch : INT64_MAX;
}
DT_API int64_t    dt_loader_batches(const dt_loader *in) { return in ? in->whole : 0; }
DT_API dt_cursor *dt_loader_cursor(dt_loader *in) { return in ? &in->shared->c : NULL; }
DT_API dt_tensor *dt_loader_state(dt_loader *in)
{
    dt_from_blob_opts o;
    dt_shape      shape;
    if (dt__err.code != DT_OK) return NULL;
    if (!in) {
        dt_fail(DT_ERR_ARG, "dt_loader_state: the loader is NULL");
        return NULL;
    }
    if (in->state) return in->state;
    DT__CLEAR(o);
    memset(&shape, 0, sizeof shape);
    o.dtype = DT_I64;
    o.release = dt__shared_cursor_unref;
    o.user = in->shared;
    shape.ndim = 1;
    shape.dim[0] = (int64_t)(sizeof(dt_cursor) / 8);
    __atomic_add_fetch(&in->shared->refs, 1, __ATOMIC_RELAXED);
    dt_tensor *t = dt_from_blob_with(&in->shared->c, shape, o);
    if (!t) dt__shared_cursor_unref(in->shared);
    in->state = dt_keep(t);
    return in->state;
}

/* ---- where the time went */
DT_API dt_loader_stats dt_loader_get_stats(const dt_loader *in)
{
    dt_loader_stats s;
    memset(&s, 0, sizeof s);
    if (!in) return s;
    uint64_t busy = __atomic_load_n(&in->busy, __ATOMIC_RELAXED);
    int64_t  made = __atomic_load_n(&in->made, __ATOMIC_RELAXED);
    s.batches = in->batches;
    s.items = in->items;
    s.wait = (double)in->wait / (double)DT__NS_PER_S;
    s.elsewhere = (double)in->elsewhere / (double)DT__NS_PER_S;
    s.busy = (double)busy / (double)DT__NS_PER_S;
    if (s.elsewhere > 0) s.needed = (double)in->timed / s.elsewhere;
    if (busy) s.able = (double)made / s.busy * (in->nthreads > 1 ? in->nthreads : 1);
    s.behind = s.items > 0 && s.wait > 0.1 * (s.wait + s.elsewhere);
    return s;
}
DT_API void dt_loader_reset_stats(dt_loader *in)
{
    if (!in) return;
    in->wait = in->elsewhere = in->warned_wait = in->warned_elsewhere = in->left = 0;
    in->batches = in->items = in->timed = in->last_n = 0;
    __atomic_store_n(&in->busy, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&in->made, 0, __ATOMIC_RELAXED);
}
DT_API size_t dt_loader_report(const dt_loader *in, double communication, char *buf, size_t nbytes)
{
    dt_loader_stats s = dt_loader_get_stats(in);
    double          all = s.wait + s.elsewhere, each = in && in->nthreads ? s.able / in->nthreads : s.able;
    char            talk[64] = "", more[160] = "";
    if (nbytes && buf) buf[0] = 0;
    if (!in || all <= 0) return 0;
    if (!(communication >= 0)) communication = 0;
    if (communication > s.elsewhere) communication = s.elsewhere;
    double computing = s.elsewhere - communication;
    if (communication > 0) snprintf(talk, sizeof talk, ", communication %.0f %%", 100 * communication / all);
    double workers = each > 0 ? ceil(s.needed / each) : 0;
    if (s.behind && s.able >= s.needed)
        snprintf(more, sizeof more, "; the trainer still waits: workers lack CPU time, or .prefetch is too small");
    else if (s.behind && workers <= 256)
        snprintf(more, sizeof more, "; the data are the bottleneck: %.0f workers would keep up", workers);
    else if (s.behind)
        snprintf(more, sizeof more, "; the data are the bottleneck");
    int n = snprintf(buf, nbytes,
                     "data %.0f %%, compute %.0f %%%s: the trainer would take %.0f items/s, the loader makes "
                     "%.0f with %d worker%s%s",
                     100 * s.wait / all, 100 * computing / all, talk, s.needed, s.able, in->nthreads,
                     in->nthreads == 1 ? "" : "s", more);
    return n > 0 ? (size_t)n : 0;
}

#ifdef __cplusplus
}
#endif
#endif /* DT_DATA_IMPLEMENTATION */
