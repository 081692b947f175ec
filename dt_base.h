/* dt_base.h - v0.2.0 - what every header of dt stands on: errors, log, allocator, SHA-256 */
/*
DO THIS

    Nothing: the other headers include this one. It must be in the same directory. To use it by itself:

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_base.h"
    In every other file that uses it:           #include "dt_base.h"

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, no file of the program
    defines DT_IMPLEMENTATION before its include: define it in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_base.h"
    #include <stdio.h>

    int main(void)
    {
        dt_sha256 s;
        uint8_t   sum[32];
        dt_sha256_begin(&s);
        dt_sha256_add(&s, "abc", 3);
        dt_sha256_end(&s, sum);
        printf("%02x%02x...\n", sum[0], sum[1]);
        return sum[0] != 0xba || sum[1] != 0x78;
    }

WHAT IT DOES NOT DO

    It has no tensors, no threads and no sockets: those are in the headers above it.

CONTENTS

    >>language       linkage, option structs, switches
    >>errors         status, message, log
    >>memory         the allocator
    >>dtypes         element types, shapes
    >>digest         SHA-256
    >>inside         private declarations for the implementations of the other headers
    >>base           implementation from here: errors, log, memory
    >>text           text buffers, numbers, UTF-8
    >>environment    the environment variables of launchers
    >>files          files with names that others can guess
    >>sha            SHA-256 and HMAC

MACROS

    DT_IMPLEMENTATION   compiles the implementation of every header of dt that this file includes. Each header also has
                        its own macro (here DT_BASE_IMPLEMENTATION), so that it can be compiled separately.
    DT_LINKED           DT_IMPLEMENTATION is ignored: the program links the implementation (dt.c, or a library built
                        from it). The same source file then compiles in both ways.
    DT_STATIC           all functions are static: for a program of one file, or a separate copy in each file
    DT_MALLOC, DT_FREE  the default allocator (define both or neither): DT_MALLOC(nbytes), DT_FREE(ptr);
                        dt_set_allocator changes it at run time

    The environment: DT_LOG (off, error, warn, info, debug; default warn): what the default log function writes to stderr.
    An error that a call leaves is the program's to read; the default log function writes it only if DT_LOG is set, or if
    the program goes on without reading it (it frees its model, loader or communicator, its rank or thread ends, it
    asks for a value and gets NaN, or calls dt_loader_next again and again).

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_BASE_IMPLEMENTATION)
#define DT_BASE_IMPLEMENTATION
#endif
#if !defined(DT__WANT_INSIDE) &&                                                                                     \
    (defined(DT_BASE_IMPLEMENTATION) || defined(DT_CORE_IMPLEMENTATION) || defined(DT_CPU_IMPLEMENTATION) ||        \
     defined(DT_CPU_AVX2_IMPLEMENTATION) || defined(DT_IO_IMPLEMENTATION) || defined(DT_PLOT_IMPLEMENTATION) ||      \
     defined(DT_NN_IMPLEMENTATION) || defined(DT_DATA_IMPLEMENTATION) || defined(DT_PLAN_IMPLEMENTATION) ||          \
     defined(DT_NET_IMPLEMENTATION) || defined(DT_COMM_IMPLEMENTATION) || defined(DT_SIM_IMPLEMENTATION) ||          \
     defined(DT_PS_IMPLEMENTATION) || defined(DT_SERVE_IMPLEMENTATION) || defined(DT_SCALE_IMPLEMENTATION) ||          \
     defined(DT_MPI_IMPLEMENTATION) || defined(DT_DIST_IMPLEMENTATION) || defined(DT_CUDA_IMPLEMENTATION) ||         \
     defined(DT_PIPE_IMPLEMENTATION) || defined(DT_LAYERS_IMPLEMENTATION) || defined(DT_OPS_IMPLEMENTATION) ||        \
     defined(DT_ELASTIC_IMPLEMENTATION) ||                                                                           \
     defined(DT_NCCL_IMPLEMENTATION) || defined(DT_MSG_IMPLEMENTATION))
#define DT__WANT_INSIDE /* an implementation follows: declare the sections >>inside */
#endif
#if defined(DT__WANT_INSIDE) && defined(_FEATURES_H) && !defined(__USE_MISC)
#error "dt: a libc header was included before dt's headers in strict mode; put '#define _GNU_SOURCE' first in this file, or include dt's headers first, or compile with -std=gnu99"
#endif
#if (defined(DT__WANT_INSIDE) || defined(DT_IMPLEMENTATION)) && !defined(_FEATURES_H) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* also with DT_LINKED, so that the same source compiles in both ways */
#endif

#ifndef DT_BASE_H_INCLUDED
#define DT_BASE_H_INCLUDED

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_VERSION_MAJOR 0
#define DT_VERSION_MINOR 2
#define DT_VERSION_PATCH 0
#define DT_VERSION "0.2.0"

/* ---------------------------------------------------------------------------------------------------- >>language
   DT_API marks a public function. In an option struct the value 0 of a field means its default. C and C++20 programs
   write dt_call(x, .field = value); in C++20 the fields must be in the order of the struct. C++17 programs fill the struct
   and call dt_call(x, opts), which is dt_call_with(x, opts). */
#ifdef DT_STATIC
#define DT_API static __attribute__((unused))
#else
#define DT_API extern
#endif

#if defined(__GNUC__)
#define DT__PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DT__PRINTF(f, a)
#endif

#ifdef __cplusplus
#define DT_D {}
#define DT_OPT0(T) = T()
#else
#define DT_D
#define DT_OPT0(T)
#endif
#if !defined(__cplusplus)
#define DT__LIT(T) (T)
#elif __cplusplus >= 202002L
#define DT__LIT(T) T
#endif
#ifdef DT__LIT
#define DT__HEAD(a, ...) a
#define DT__OPTS(T, a, ...) DT__LIT(T){ .dt__first = 0, __VA_ARGS__ }
#define DT__OPTS_TEXT(T, a, ...) DT__LIT(T){ .dt__first = #__VA_ARGS__, __VA_ARGS__ } /* with the text of the options */
#define DT__ONLY(T, ...) DT__LIT(T){ .dt__first = 0, __VA_ARGS__ } /* for a call whose only argument is options */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A boolean option whose default may be yes or no; 0 selects the default. */
typedef enum dt_switch { DT_DEFAULT = 0, DT_YES = 1, DT_NO = -1 } dt_switch;

/* ---------------------------------------------------------------------------------------------------- >>errors
   A call that fails returns NULL or a negative status and stores one message for its thread. Until dt_error_clear,
   every tensor call of that thread returns NULL and the first message is kept. */
typedef enum dt_status {
    DT_OK          = 0,
    DT_ERR_ARG     = -1, /* invalid argument: NULL, a dimension out of range, a bad option */
    DT_ERR_SHAPE   = -2, /* shapes do not match, or the number of elements overflows */
    DT_ERR_DTYPE   = -3, /* the call does not support this dtype */
    DT_ERR_DEVICE  = -4, /* tensors on different devices, a missing backend entry, a device failure */
    DT_ERR_MEMORY  = -5, /* an allocation failed */
    DT_ERR_GRAD    = -6, /* backward cannot run from or through this tensor */
    DT_ERR_STATE   = -7, /* a call at the wrong time: a released tensor, an unbalanced scope */
    DT_ERR_NUMERIC = -8, /* a loss is NaN or infinite */
    DT_ERR_FILE    = -9, /* a file cannot be read or written, or is damaged */
    DT_ERR_COMM    = -10 /* communication failed: a rank died, or ranks called different functions (dt_dist.h) */
} dt_status;

DT_API const char *dt_error(void);      /* the pending message, or NULL */
DT_API dt_status   dt_error_code(void); /* its code, or DT_OK */
DT_API void        dt_error_clear(void); /* the thread has no error any more; calls work again */
DT_API int         dt_check(const char *program); /* 0 without an error; otherwise prints it to stderr, returns 1 */
DT_API int         dt_fail(dt_status code, const char *format, ...) DT__PRINTF(2, 3); /* sets the error; returns code */

/* Status of calls on communicators (dt_net.h, dt_comm.h). dt_comm_error returns their message, not dt_error. */
typedef enum dt_comm_status {
    DT_COMM_OK           = 0,
    DT_COMM_ERR_ARG      = -1, /* invalid argument on this rank */
    DT_COMM_ERR_PEER     = -2, /* a rank died or left */
    DT_COMM_ERR_TIMEOUT  = -3, /* no progress until the timeout: the message names the missing ranks */
    DT_COMM_ERR_MISMATCH = -4, /* ranks made different calls: the message shows both */
    DT_COMM_ERR_NET      = -5, /* a socket or file descriptor failed */
    DT_COMM_ERR_JOIN     = -6, /* the rendezvous failed: not all ranks joined the world */
    DT_COMM_ERR_MEMORY   = -7,
    DT_COMM_ERR_STATE    = -8, /* a call at the wrong time */
    DT_COMM_ERR_ABORT    = -9, /* dt_comm_abort was called */
    DT_COMM_ERR_CANCELLED = -10, /* of one message: dt_work_cancel was called */
    DT_COMM_ERR_REMOTE   = -11, /* of one dt_comm_call: the other rank refused it */
    DT_COMM_ERR_NONFINITE = -12 /* of dt_codec_encode: a value is NaN or infinite, or too large for the codec */
} dt_comm_status;

/* Any thread may call the log function, but only one thread at a time. It may ask a communicator for its status and history
   and abort it; it must not start or wait for operations. */
enum { DT_LOG_OFF = 0, DT_LOG_ERROR = 1, DT_LOG_WARN = 2, DT_LOG_INFO = 3, DT_LOG_DEBUG = 4 };
typedef void (*dt_log_fn)(void *user, int level, const char *text);
DT_API void dt_set_log(dt_log_fn fn, void *user); /* fn NULL: log to stderr, level from DT_LOG=off|error|warn|info|debug */

/* ---------------------------------------------------------------------------------------------------- >>memory */
typedef struct dt_allocator {
    void *(*alloc)(void *user, size_t nbytes); /* at least 16-byte aligned; NULL if out of memory */
    void (*free)(void *user, void *ptr, size_t nbytes);
    void *user;
} dt_allocator;
/* All memory of dt comes from this allocator, except for communicators (DT_COMM_MALLOC). It can only be changed while
   no object of dt exists (DT_ERR_STATE otherwise). */
DT_API dt_status dt_set_allocator(const dt_allocator *a); /* NULL: DT_MALLOC and DT_FREE */
DT_API void     *dt_mem_alloc(size_t nbytes); /* from the allocator; returns NULL without setting an error */
DT_API void      dt_mem_free(void *ptr, size_t nbytes);

/* ---------------------------------------------------------------------------------------------------- >>dtypes */
/* the types of elements */
typedef enum dt_dtype { DT_F32 = 0, DT_F16, DT_BF16, DT_I32, DT_I64, DT_U8, DT_DTYPE_COUNT } dt_dtype;
DT_API const char *dt_dtype_name(dt_dtype d);   /* "f32" ...; "?" for an invalid dtype */
DT_API size_t      dt_dtype_nbytes(dt_dtype d); /* bytes per element; 0 for an invalid dtype */

#define DT_MAX_DIMS 8 /* dimensions of a tensor at most */
typedef struct dt_shape { /* the dimensions of a tensor: DT_SHAPE(2, 3) */
    int     ndim;
    int64_t dim[DT_MAX_DIMS];
} dt_shape;
/* DT_SHAPE(2, 3): 1 to 8 dimensions. DT_SCALAR: 0 dimensions, one element. */
#define DT__NARG(...) DT__NARG_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define DT__NARG_(a, b, c, d, e, f, g, h, n, ...) n
#ifdef __cplusplus
#define DT_SHAPE(...) (dt_shape{ DT__NARG(__VA_ARGS__), { __VA_ARGS__ } })
#define DT_SCALAR (dt_shape{ 0, { 0 } })
#else
#define DT_SHAPE(...) ((dt_shape){ DT__NARG(__VA_ARGS__), { __VA_ARGS__ } })
#define DT_SCALAR ((dt_shape){ 0, { 0 } })
#endif

/* ---------------------------------------------------------------------------------------------------- >>digest */
typedef struct dt_sha256 { /* a SHA-256 that is being computed */
    uint32_t h[8];
    uint64_t nbytes;
    uint8_t  block[64];
} dt_sha256;
DT_API void dt_sha256_begin(dt_sha256 *s); /* of no bytes yet */
DT_API void dt_sha256_add(dt_sha256 *s, const void *data, size_t nbytes); /* more bytes */
DT_API void dt_sha256_end(dt_sha256 *s, uint8_t out[32]); /* the digest of all bytes */

/* "undefined reference" or "multiple definition" of this name by the linker: no file of the program, or more than one,
   has the implementation. Every file that includes dt refers to it. */
#ifndef DT_STATIC
extern const char dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c;
static const char *const dt__implementation __attribute__((used)) = &dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c;
#endif

#ifdef __cplusplus
}
#endif
#endif /* DT_BASE_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__BASE_INSIDE)
#define DT__BASE_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   A section >>inside declares the private types and functions that the implementations of other headers use. The
   functions have hidden visibility. Programs must not use them: they change without notice.

   DT__PRESENT defines one symbol per implementation. DT__NEEDS refers to the symbol of an implementation that another
   one depends on. If an implementation is missing, is defined twice or has another version, the linker prints the name
   of the symbol, which says what to do. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef DT_STATIC
#define DT__INSIDE static __attribute__((unused))
#define DT__PRESENT(header) typedef int dt__present_##header
#define DT__NEEDS(by, header) typedef int dt__##by##_needs_##header
#else
#define DT__INSIDE extern __attribute__((visibility("hidden")))
#define DT__SYMBOL(header) dt__v0_2_0__link_dt_c__or_define_DT_##header##_IMPLEMENTATION__in_exactly_one_file
#define DT__PRESENT(header)                                        \
    extern __attribute__((visibility("hidden"))) const char DT__SYMBOL(header); \
    __attribute__((used)) const char DT__SYMBOL(header) = 1
#define DT__NEEDS(by, header)                                      \
    extern __attribute__((visibility("hidden"))) const char DT__SYMBOL(header); \
    static const char *const dt__##by##_needs_##header __attribute__((used)) = &DT__SYMBOL(header)
#endif
/* DT__SLOW_BEGIN and DT__SLOW_END enclose code that does no arithmetic on tensor elements. gcc compiles it with -Og, in
   less than half the time of -O2. DT__FAIR_BEGIN and DT__FAIR_END enclose kernels that are only a fallback: -O1. The
   results are the same. */
#if defined(__OPTIMIZE__) && defined(__GNUC__) && !defined(__clang__)
#define DT__SLOW_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize (\"Og\")")
#define DT__SLOW_END _Pragma("GCC pop_options")
#define DT__FAIR_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize (\"O1\")")
#define DT__FAIR_END _Pragma("GCC pop_options")
#else
#define DT__SLOW_BEGIN
#define DT__SLOW_END
#define DT__FAIR_BEGIN
#define DT__FAIR_END
#endif
#define DT__CLEAR(o) memset((void *)&(o), 0, sizeof(o)) /* the cast avoids a C++ warning: option structs are not trivial */
#ifdef __cplusplus
#define DT__NO_OPTIONS {}
#else
#define DT__NO_OPTIONS { 0 }
#endif
#define DT__COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define DT__NS_PER_US ((int64_t)1000)
#define DT__NS_PER_MS ((int64_t)1000000)
#define DT__NS_PER_S ((int64_t)1000000000)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors and log */
typedef struct dt__pending { /* the pending error of a thread */
    dt_status   code;
    char        message[1024];
    bool        read;     /* by dt_error or dt_check */
    bool        logged;
    const char *bad_loss; /* the op whose NaN or infinite result was the root of the last backward, or NULL */
    double      bad_loss_value;
} dt__pending;
#ifdef DT_STATIC
static __thread dt__pending dt__err;
#else
extern __thread __attribute__((visibility("hidden"))) dt__pending dt__err;
#endif
DT__INSIDE void dt__log(int level, const char *text);
/* Logs the pending error of this thread, if the program has not read it and it was not logged before. Called where a
   program that never checks would go on unaware of it. */
DT__INSIDE void dt__log_unread(void);
DT__INSIDE void dt__logf(int level, const char *format, ...) DT__PRINTF(2, 3);
/* The process is about to end by a signal that a handler of dt has noted: the default log function says nothing any more, because
   what follows are the deaths of other ranks. Async-signal-safe. */
DT__INSIDE void dt__log_ends(void);

/* ---- this thread's last error of a call without a communicator that could store it (a failed dt_comm_init) */
typedef struct dt__saying {
    char text[768];
    int  why; /* its status */
} dt__saying;
#ifdef DT_STATIC
static __thread dt__saying dt__said;
#else
extern __thread __attribute__((visibility("hidden"))) dt__saying dt__said;
#endif
DT__INSIDE int dt__comm_bad(int status, const char *format, ...) DT__PRINTF(2, 3); /* sets dt__said; returns status */

/* ---- memory. trim is called before the allocator changes and frees cached memory. */
DT__INSIDE void *dt__alloc_zero(size_t nbytes); /* returns NULL without setting an error */
DT__INSIDE bool  dt__alloc_is_ours(void);       /* dt_set_allocator was not called, and DT_MALLOC is malloc */
DT__INSIDE void  dt__alloc_counts(int64_t *allocs, size_t *bytes);
DT__INSIDE void  dt__alloc_on_change(void (*trim)(void));
/* Makes room for one more element in an array of n. Returns the array, which may have moved; NULL if out of memory (the
   array is then unchanged). */
DT__INSIDE void *dt__enlarge(void *at, int64_t n, int64_t *cap, size_t each);

/* ---- memory of worlds, communicators and plans: always from DT_COMM_MALLOC, which a program may define */
#ifndef DT_COMM_MALLOC
#define DT_COMM_MALLOC(nbytes) malloc(nbytes)
#define DT_COMM_REALLOC(ptr, nbytes) realloc(ptr, nbytes)
#define DT_COMM_FREE(ptr) free(ptr)
#endif
static inline __attribute__((unused)) void *dt__comm_zeroed(size_t count, size_t nbytes)
{
    if (nbytes && count > SIZE_MAX / nbytes) return NULL;
    size_t n = count * nbytes;
    void  *p = DT_COMM_MALLOC(n ? n : 1);
    if (p) memset(p, 0, n);
    return p;
}

/* ---- element types: bytes per element of each dt_dtype, and at index 6 of f64, which only collectives have */
static const uint8_t dt__dtype_size[7] __attribute__((unused)) = { 4, 2, 2, 4, 8, 1, 8 };
static inline __attribute__((unused)) size_t dt__elem_nbytes(int dtype) /* 0 for an invalid dtype */
{
    return dtype >= 0 && dtype < 7 ? dt__dtype_size[dtype] : 0;
}
/* The number of elements; -1 if a dimension is negative, or if the number of elements or of bytes overflows. */
DT__INSIDE int64_t dt__count(const int64_t *shape, int ndim, size_t elem);

/* ---- time and counters. dt__counter passes a value to the trace of dt.h, once dt__counter_to has registered it. */
DT__INSIDE uint64_t dt__nanoseconds(void); /* CLOCK_MONOTONIC, ns */
DT__INSIDE double   dt__seconds(void);     /* CLOCK_MONOTONIC, s */
DT__INSIDE void     dt__counter(const char *name, double value);
DT__INSIDE void     dt__counter_to(void (*show)(const char *name, double value));

/* ---- text */
typedef struct dt__text_out { /* a caller's buffer, filled as by snprintf: len is the length of the whole text */
    char  *buf;
    size_t nbytes, len;
} dt__text_out;
DT__INSIDE void  dt__emit(dt__text_out *o, const char *s);
DT__INSIDE void  dt__emitf(dt__text_out *o, const char *format, ...) DT__PRINTF(2, 3); /* at most 1023 bytes per call */
typedef struct dt__text_buf { /* a growing text; failed: out of memory, text added after that is missing */
    char  *s; /* 0-terminated; NULL while empty */
    size_t n, cap;
    bool   failed;
} dt__text_buf;
DT__INSIDE void  dt__text_add(dt__text_buf *b, const char *s, size_t n);
DT__INSIDE void  dt__text_put(dt__text_buf *b, const char *s);
DT__INSIDE void  dt__text_int(dt__text_buf *b, int64_t x);
DT__INSIDE void  dt__text_free(dt__text_buf *b);
DT__INSIDE char *dt__strdup(const char *s); /* dt_mem_alloc(strlen(s) + 1); returns NULL without setting an error */
DT__INSIDE void  dt__free_text(char *s);    /* frees a string of dt__strdup, or NULL */
DT__INSIDE void  dt__text_json(dt__text_buf *b, const char *s);    /* a JSON string with its quotes, safe inside <script>; NULL: null */
DT__INSIDE void  dt__text_json_number(dt__text_buf *b, double x); /* 6 digits; null if it is not finite */
/* For messages: dt__show quotes a name, shortens it and replaces control characters; dt__shape_text writes "(2, 3)".
   The result is in a buffer of the thread and is valid until the same thread has made 8 (dt__show) or 4
   (dt__shape_text) more calls. */
DT__INSIDE const char *dt__show(const char *name);
DT__INSIDE const char *dt__shape_text(const int64_t *shape, int ndim);
DT__INSIDE char *dt__fix_point(char *buf); /* replaces the locale's decimal point in a number by '.'; returns buf */
DT__INSIDE char *dt__number(char *buf, size_t nbytes, double x, int digits); /* %.*g of the C locale, in any locale */
/* Bytes (1 to 4) of the UTF-8 character at s, where n bytes are readable; 0 if invalid (overlong, surrogate, cut off) */
DT__INSIDE size_t dt__utf8_len(const void *s, size_t n);

/* ---- meters: what a training on this thread measures anyway, for the live view and the report of dt_plot.h. Times in ns; those
   of the last step are of CLOCK_MONOTONIC, the others are sums since the thread began. Evaluation (dt_no_grad_begin) is left out. */
enum { DT__METER_STALE = 16 };
typedef struct dt__pace { /* of a rank: sums in seconds */
    float rate, memory; /* items per second; the most bytes of tensors, in MiB */
    float data, exposed, waited, total;
} dt__pace;
typedef struct dt__meters {
    int64_t  items, data, exposed, waited; /* dt_data.h, dt_dist.h */
    int64_t  total;                        /* dt_plot.h: time of all steps */
    double   rate;                         /* dt_plot.h */
    uint64_t fetch, fetched, back, backed, update, updated; /* of the last step: wait for data, backward, update */
    int64_t  stale[DT__METER_STALE], dropped; /* dt_ps.h: used pushes by staleness, dropped ones */
    size_t (*memory)(size_t *peak);           /* dt.h: bytes of tensors now, and the most; NULL: no tensors yet */
    void    *team;                            /* the ddp that this thread made last, or NULL */
    int      (*pace)(void *team, int rank, dt__pace *m); /* returns the number of ranks; m has zeros if nothing is known yet */
    void     (*tell)(void *team, uint64_t since, dt__text_buf *b); /* JSON members about buckets and slow ranks, each with a comma before it */
    void    *watcher;                  /* the dt_progress of this thread, or NULL */
    void     (*team_ends)(void *watcher); /* called before a ddp is freed, while the others still answer */
} dt__meters;
#ifdef DT_STATIC
static __thread __attribute__((unused)) dt__meters dt__measured;
#else
extern __thread __attribute__((visibility("hidden"))) dt__meters dt__measured;
#endif

/* ---- environment variables of launchers, in the order in which they are tried */
enum { DT__BY_RANK = 0, DT__BY_DMLC, DT__BY_OMPI, DT__BY_PMI, DT__BY_PMIX, DT__BY_SLURM, DT__LAUNCHERS };
enum { DT__LAUNCHER_RANK = 0, DT__LAUNCHER_SIZE, DT__LAUNCHER_LOCAL_RANK, DT__LAUNCHER_LOCAL_SIZE };
DT__INSIDE const char *dt__launcher_name(int launcher, int what); /* NULL: this launcher sets no such variable */
DT__INSIDE int         dt__launcher(void); /* the launcher whose variables are set; -1 if there is no launcher */
/* The value of a variable of that launcher (without one: of any launcher); -1 if it is not set or not a number. */
DT__INSIDE int         dt__launcher_number(int what);

/* ---- files. Opens a file for writing, whose name others can guess: in a directory that they may write to, they could put a
   link or a pipe there. A file that is missing is created. An existing one must be a regular file of this user without
   further hard links, or a device of the system such as /dev/null; symbolic links are not followed, and a pipe does not
   block. how: O_WRONLY or O_RDWR, and O_TRUNC; dir: AT_FDCWD, or the directory of path. Returns a descriptor; or -1, errno,
   and why in words. */
DT__INSIDE int dt__file_create(int dir, const char *path, int how, const char **why);
DT__INSIDE FILE *dt__file_stream(const char *path, int how, const char **why); /* the same as a stream; NULL, errno, and why */
/* Writes a temporary file beside path and renames it: nobody sees a part of the text. What has that name must be a regular
   file, or nothing. Returns 0; or an errno value, and why in words. */
DT__INSIDE int dt__text_save(const dt__text_buf *b, const char *path, const char **why);

/* ---- HMAC-SHA-256. No table index and no branch depends on a secret. */
typedef struct dt__hmac {
    dt_sha256 inner, outer;
} dt__hmac;
DT__INSIDE void dt__hmac_begin(dt__hmac *m, const void *key, size_t nbytes);
DT__INSIDE void dt__hmac_add(dt__hmac *m, const void *data, size_t nbytes);
DT__INSIDE void dt__hmac_end(dt__hmac *m, uint8_t out[32]);
DT__INSIDE bool dt__same_secret(const uint8_t *a, const uint8_t *b, size_t nbytes); /* in constant time */

#ifdef __cplusplus
}
#endif
#endif /* DT__BASE_INSIDE */

#if defined(DT_BASE_IMPLEMENTATION) && !defined(DT__BASE_IMPLEMENTED)
#define DT__BASE_IMPLEMENTED
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#if defined(DT_MALLOC) != defined(DT_FREE)
#error "dt_base.h: define both DT_MALLOC(nbytes) and DT_FREE(ptr), or neither"
#endif
#ifdef DT_MALLOC
#define DT__OWN_MALLOC 1
#else
#define DT__OWN_MALLOC 0
#define DT_MALLOC(nbytes) malloc(nbytes)
#define DT_FREE(ptr) free(ptr)
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(BASE);
#ifndef DT_STATIC
const char dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c = 1;
#endif

/* ==================================================================================================== >>base
   Callers: any thread. The pending error is thread-local. The log function and the allocator belong to the process.
   dt__log_lock protects dt__log_to and dt__log_user. It is held while the log function runs, so that only one thread at
   a time calls it. If the log function itself calls dt and that call logs, dt__log_depth shows that this thread already
   holds the lock, and the log function is called recursively. The counters in dt__host are atomic; its allocator has no
   lock, because it can only change while no object of dt exists. */
#ifndef DT_STATIC
__thread dt__pending dt__err;
__thread dt__saying  dt__said;
__thread dt__meters  dt__measured;
#endif
static struct {
    dt_allocator a;
    int64_t      allocs; /* atomic: calls of the allocator */
    size_t       bytes;  /* atomic: bytes in use */
    void (*trim)(void);
} dt__host;
static pthread_mutex_t dt__log_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int    dt__log_depth; /* > 0: this thread holds dt__log_lock and runs the log function */
static dt_log_fn       dt__log_to;
static void           *dt__log_user;

static const char *const dt__log_names[5] = { "off", "error", "warn", "info", "debug" };

static volatile sig_atomic_t dt__log_ended;
DT__INSIDE void dt__log_ends(void) { dt__log_ended = 1; }

static int dt__log_level(void)
{
    static int level = -1;
    int        l = __atomic_load_n(&level, __ATOMIC_RELAXED);
    if (l < 0) {
        const char *s = getenv("DT_LOG");
        l = s && *s >= '0' && *s <= '4' && !s[1] ? *s - '0' : DT_LOG_WARN;
        for (int i = 0; s && i < 5; i++)
            if (!strcmp(s, dt__log_names[i])) l = i;
        if (l < 0) l = 0;
        __atomic_store_n(&level, l, __ATOMIC_RELAXED);
    }
    return l;
}
DT__INSIDE void dt__log(int level, const char *text)
{
    if (!__atomic_load_n(&dt__log_to, __ATOMIC_RELAXED) && level > dt__log_level()) return;
    if (dt__log_depth++ == 0) pthread_mutex_lock(&dt__log_lock);
    if (dt__log_to) dt__log_to(dt__log_user, level, text);
    else if (level <= dt__log_level() && !dt__log_ended)
        fprintf(stderr, "dt[%d] %s: %s\n", (int)getpid(), dt__log_names[level < 1 || level > 4 ? 4 : level], text);
    if (--dt__log_depth == 0) pthread_mutex_unlock(&dt__log_lock);
}
DT__INSIDE void dt__logf(int level, const char *format, ...)
{
    char    text[1024];
    va_list ap;
    if (!__atomic_load_n(&dt__log_to, __ATOMIC_RELAXED) && level > dt__log_level()) return;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    dt__log(level, text);
}
DT_API void dt_set_log(dt_log_fn fn, void *user)
{
    if (dt__log_depth == 0) pthread_mutex_lock(&dt__log_lock);
    dt__log_user = user;
    __atomic_store_n(&dt__log_to, fn, __ATOMIC_RELAXED);
    if (dt__log_depth == 0) pthread_mutex_unlock(&dt__log_lock);
}

DT_API int dt_fail(dt_status code, const char *format, ...)
{
    dt__pending *e = &dt__err;
    if (e->code != DT_OK) return code; /* keep the first message: later errors follow from it */
    va_list ap;
    va_start(ap, format);
    vsnprintf(e->message, sizeof e->message, format, ap);
    va_end(ap);
    e->code = code;
    e->read = e->logged = false;
    if (__atomic_load_n(&dt__log_to, __ATOMIC_RELAXED) || getenv("DT_LOG")) { /* otherwise: when nobody has read it */
        e->logged = true;
        dt__log(DT_LOG_ERROR, e->message);
    }
    return code;
}
DT__INSIDE void dt__log_unread(void)
{
    dt__pending *e = &dt__err;
    if (e->code == DT_OK || e->read || e->logged) return;
    e->logged = true;
    dt__log(DT_LOG_ERROR, e->message);
}
DT_API const char *dt_error(void)
{
    dt__err.read = true;
    return dt__err.code == DT_OK ? NULL : dt__err.message;
}
DT_API dt_status   dt_error_code(void) { return dt__err.code; }
DT_API void        dt_error_clear(void)
{
    dt__err.code = DT_OK;
    dt__err.message[0] = 0; /* bad_loss stays: it is no error yet, and dt_step must still refuse */
}
DT_API int dt_check(const char *program)
{
    if (dt__err.code == DT_OK) return 0;
    dt__err.read = true;
    fprintf(stderr, "%s: %s\n", program ? program : "dt", dt__err.message);
    return 1;
}

DT__INSIDE int dt__comm_bad(int status, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(dt__said.text, sizeof dt__said.text, format, ap);
    va_end(ap);
    dt__said.why = status;
    return status;
}

/* ---- memory */
DT_API void *dt_mem_alloc(size_t nbytes)
{
    if (nbytes == 0) nbytes = 1;
    void *p = dt__host.a.alloc ? dt__host.a.alloc(dt__host.a.user, nbytes) : DT_MALLOC(nbytes);
    __atomic_add_fetch(&dt__host.allocs, 1, __ATOMIC_RELAXED);
    if (p) __atomic_add_fetch(&dt__host.bytes, nbytes, __ATOMIC_RELAXED);
    return p;
}
DT_API void dt_mem_free(void *ptr, size_t nbytes)
{
    if (!ptr) return;
    if (nbytes == 0) nbytes = 1;
    __atomic_sub_fetch(&dt__host.bytes, nbytes, __ATOMIC_RELAXED);
    if (dt__host.a.free)
        dt__host.a.free(dt__host.a.user, ptr, nbytes);
    else
        DT_FREE(ptr);
}
DT__INSIDE void *dt__alloc_zero(size_t nbytes)
{
    void *p = dt_mem_alloc(nbytes);
    if (p) memset(p, 0, nbytes);
    return p;
}
DT__INSIDE bool dt__alloc_is_ours(void) { return !DT__OWN_MALLOC && !dt__host.a.alloc; }
DT__INSIDE void dt__alloc_counts(int64_t *allocs, size_t *bytes)
{
    *allocs = __atomic_load_n(&dt__host.allocs, __ATOMIC_RELAXED);
    *bytes = __atomic_load_n(&dt__host.bytes, __ATOMIC_RELAXED);
}
DT__INSIDE void dt__alloc_on_change(void (*trim)(void)) { __atomic_store_n(&dt__host.trim, trim, __ATOMIC_RELEASE); }
DT_API dt_status dt_set_allocator(const dt_allocator *a)
{
    void (*trim)(void) = __atomic_load_n(&dt__host.trim, __ATOMIC_ACQUIRE);
    if (trim) trim();
    size_t left = __atomic_load_n(&dt__host.bytes, __ATOMIC_RELAXED);
    if (left)
        return (dt_status)dt_fail(DT_ERR_STATE,
                                  "dt_set_allocator: %zu bytes of the present allocator are in use, expected 0; free "
                                  "every tensor and end every step first",
                                  left);
    if (a && (!a->alloc || !a->free)) return (dt_status)dt_fail(DT_ERR_ARG,
                                                                "dt_set_allocator: alloc or free is NULL; set both");
    memset(&dt__host.a, 0, sizeof dt__host.a);
    if (a) dt__host.a = *a;
    return DT_OK;
}

DT__INSIDE void *dt__enlarge(void *at, int64_t n, int64_t *cap, size_t each)
{
    if (n < *cap) return at;
    int64_t more = *cap ? 2 * *cap : 16;
    void   *p = dt__alloc_zero((size_t)more * each);
    if (!p) return NULL;
    if (n) memcpy(p, at, (size_t)n * each);
    dt_mem_free(at, (size_t)*cap * each);
    *cap = more;
    return p;
}

/* ---- element types, shapes */
DT_API const char *dt_dtype_name(dt_dtype d)
{
    static const char *const name[DT_DTYPE_COUNT] = { "f32", "f16", "bf16", "i32", "i64", "u8" };
    return (unsigned)d < DT_DTYPE_COUNT ? name[d] : "?";
}
DT_API size_t dt_dtype_nbytes(dt_dtype d) { return (unsigned)d < DT_DTYPE_COUNT ? dt__dtype_size[d] : 0; }
DT__INSIDE int64_t dt__count(const int64_t *shape, int ndim, size_t elem)
{
    int64_t n = 1, full = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) return -1;
        if (__builtin_mul_overflow(full, shape[i] > 0 ? shape[i] : 1, &full)) return -1;
        n = n * (shape[i] > 0); /* 0 if any dimension is 0 */
    }
    int64_t bytes;
    if (__builtin_mul_overflow(full, (int64_t)(elem ? elem : 1), &bytes) || bytes > (INT64_MAX >> 4)) return -1;
    return n ? full : 0;
}

/* ---- time and counters */
static void (*dt__counter_show)(const char *name, double value); /* atomic */

DT__INSIDE uint64_t dt__nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * (uint64_t)DT__NS_PER_S + (uint64_t)t.tv_nsec;
}
DT__INSIDE double dt__seconds(void) { return 1e-9 * (double)dt__nanoseconds(); }
DT__INSIDE void   dt__counter(const char *name, double value)
{
    void (*show)(const char *, double) = __atomic_load_n(&dt__counter_show, __ATOMIC_ACQUIRE);
    if (show) show(name, value);
}
DT__INSIDE void dt__counter_to(void (*show)(const char *name, double value))
{
    __atomic_store_n(&dt__counter_show, show, __ATOMIC_RELEASE);
}

/* ==================================================================================================== >>text */
DT__INSIDE void dt__emit(dt__text_out *o, const char *s)
{
    for (; *s; s++, o->len++)
        if (o->len + 1 < o->nbytes) o->buf[o->len] = *s;
    if (o->nbytes) o->buf[o->len < o->nbytes ? o->len : o->nbytes - 1] = 0;
}
DT__INSIDE void dt__emitf(dt__text_out *o, const char *format, ...)
{
    char    line[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    dt__emit(o, line);
}
DT__INSIDE void dt__text_add(dt__text_buf *b, const char *s, size_t n)
{
    if (b->failed) return;
    if (b->cap - b->n <= n) {
        size_t cap = 2 * b->cap + n + 4096;
        char  *t = (char *)dt_mem_alloc(cap);
        if (!t) {
            b->failed = true;
            return;
        }
        if (b->n) memcpy(t, b->s, b->n);
        dt_mem_free(b->s, b->cap);
        b->s = t;
        b->cap = cap;
    }
    memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = 0;
}
DT__INSIDE void dt__text_put(dt__text_buf *b, const char *s) { dt__text_add(b, s, strlen(s)); }
DT__INSIDE void dt__text_int(dt__text_buf *b, int64_t x)
{
    char buf[24];
    snprintf(buf, sizeof buf, "%" PRId64, x);
    dt__text_put(b, buf);
}
DT__INSIDE void dt__text_json(dt__text_buf *b, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    char                 code[8];
    if (!s) {
        dt__text_put(b, "null");
        return;
    }
    dt__text_put(b, "\"");
    for (size_t n; *s; s += n) {
        n = dt__utf8_len(s, strnlen((const char *)s, 4));
        snprintf(code, sizeof code, "\\u%04x", *s);
        if (n == 0) dt__text_put(b, "?"), n = 1;
        else if (*s < 0x20 || *s == 0x7f || *s == '"' || *s == '\\' || *s == '<' || *s == '>' || *s == '&') dt__text_put(b, code);
        else if (n == 3 && s[0] == 0xe2 && s[1] == 0x80 && (s[2] == 0xa8 || s[2] == 0xa9)) dt__text_put(b, " "); /* line ends of scripts */
        else dt__text_add(b, (const char *)s, n);
    }
    dt__text_put(b, "\"");
}
DT__INSIDE void dt__text_json_number(dt__text_buf *b, double x)
{
    char buf[64];
    dt__text_put(b, isfinite(x) ? dt__number(buf, sizeof buf, x, 6) : "null");
}
DT__INSIDE void dt__text_free(dt__text_buf *b)
{
    dt_mem_free(b->s, b->cap);
    memset(b, 0, sizeof *b);
}
DT__INSIDE char *dt__strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char  *p = (char *)dt_mem_alloc(n);
    return p ? (char *)memcpy(p, s, n) : NULL;
}
DT__INSIDE void dt__free_text(char *s)
{
    if (s) dt_mem_free(s, strlen(s) + 1);
}
DT__INSIDE const char *dt__show(const char *name)
{
    static __thread char buf[8][96];
    static __thread int  turn;
    char                *b = buf[turn = (turn + 1) & 7];
    int                  n = 0;
    b[n++] = '\'';
    for (; *name && n < 80; name++) b[n++] = (unsigned char)*name < 0x20 || *name == 0x7f ? '?' : *name;
    snprintf(b + n, sizeof buf[0] - (size_t)n, *name ? "...'" : "'");
    return b;
}
DT__INSIDE const char *dt__shape_text(const int64_t *shape, int ndim)
{
    static __thread char buf[4][192];
    static __thread int  turn;
    char                *b = buf[turn = (turn + 1) & 3];
    size_t               at = 0;
    b[at++] = '(';
    for (int i = 0; i < ndim && at < 160; i++)
        at += (size_t)snprintf(b + at, 192 - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    snprintf(b + at, 192 - at, ")");
    return b;
}
DT__INSIDE char *dt__fix_point(char *buf)
{
    char *from = buf, *to = buf;
    while (*from) {
        if ((*from >= '0' && *from <= '9') || *from == '-' || *from == '+' || *from == 'e') {
            *to++ = *from++;
            continue;
        }
        *to++ = '.'; /* the locale's decimal point may be several bytes long */
        while (*from && (*from < '0' || *from > '9')) from++;
    }
    *to = 0;
    return buf;
}
DT__INSIDE char *dt__number(char *buf, size_t nbytes, double x, int digits)
{
    snprintf(buf, nbytes, "%.*g", digits, x);
    return isfinite(x) ? dt__fix_point(buf) : buf;
}
DT__INSIDE size_t dt__utf8_len(const void *text, size_t left)
{
    const unsigned char *s = (const unsigned char *)text;
    if (left == 0) return 0;
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f))) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))) return 0;
    return n;
}

/* ==================================================================================================== >>environment
   A launcher passes each process its rank in environment variables. Each launcher uses its own names. */
DT__INSIDE const char *dt__launcher_name(int launcher, int what)
{
    static const char *const name[DT__LAUNCHERS][4] = {
        { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" }, /* torchrun, dtrun */
        { "DMLC_ROLE", "DMLC_NUM_WORKER", NULL, NULL }, /* ps-lite, MXNet: the rank comes later, from the scheduler */
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE" },
        { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" },
        { "PMIX_RANK", "SLURM_NTASKS", NULL, NULL },
        { "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL },
    };
    return name[launcher][what];
}
DT__INSIDE int dt__launcher(void)
{
    for (int i = 0; i < DT__LAUNCHERS; i++) {
        if (getenv(dt__launcher_name(i, DT__LAUNCHER_RANK))) return i;
        /* SLURM_NTASKS without a rank: a shell in an allocation, not a rank */
        if (i <= DT__BY_OMPI && getenv(dt__launcher_name(i, DT__LAUNCHER_SIZE))) return i;
    }
    return -1;
}
DT__INSIDE int dt__launcher_number(int what)
{
    int launcher = dt__launcher();
    for (int i = 0; i < DT__LAUNCHERS; i++) {
        const char *name = launcher < 0 || i == launcher ? dt__launcher_name(i, what) : NULL;
        const char *s = name ? getenv(name) : NULL;
        char       *end;
        long        v = s ? strtol(s, &end, 10) : -1;
        if (s && end != s && !*end && v >= 0 && v <= INT_MAX) return (int)v;
    }
    return -1;
}

/* ==================================================================================================== >>files */
DT__INSIDE int dt__file_create(int dir, const char *path, int how, const char **why)
{
    int mode = how & O_ACCMODE, flags = O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, fd = -1;
    for (int tries = 0; fd < 0; tries++) {
        fd = openat(dir, path, mode | flags | O_CREAT | O_EXCL, 0666);
        if (fd >= 0) return fd;
        if (errno == EEXIST) fd = openat(dir, path, mode | flags | O_NONBLOCK, 0);
        if (fd < 0 && errno != EINTR && (errno != ENOENT || tries == 7)) { /* ENOENT: removed between the two calls */
            *why = errno == ELOOP   ? "it is a symbolic link; name the file itself"
                   : errno == ENXIO ? "it is a pipe or a socket, expected a regular file"
                                    : strerror(errno);
            return -1;
        }
    }
    struct stat st;
    *why = NULL;
    if (fstat(fd, &st)) *why = strerror(errno);
    else if (S_ISCHR(st.st_mode) && st.st_uid == 0) fcntl(fd, F_SETFL, mode); /* no O_NONBLOCK */
    else if (!S_ISREG(st.st_mode)) *why = "it is not a regular file";
    else if (st.st_uid != geteuid()) *why = "it belongs to another user; choose another name, or remove it";
    else if (st.st_nlink > 1) *why = "it has a second name (a hard link); choose another name, or remove it";
    else if ((how & O_TRUNC) && ftruncate(fd, 0)) *why = strerror(errno);
    if (!*why) return fd;
    close(fd);
    errno = EEXIST;
    return -1;
}
DT__INSIDE FILE *dt__file_stream(const char *path, int how, const char **why)
{
    int   fd = dt__file_create(AT_FDCWD, path, how, why);
    FILE *f = fd < 0 ? NULL : fdopen(fd, how & O_RDWR ? "r+b" : "wb");
    if (fd >= 0 && !f) {
        int e = errno;
        close(fd);
        *why = strerror(errno = e);
    }
    return f;
}
static int dt__text_saved(const dt__text_buf *b, const char *path, const char **why)
{
    char        temp[1200];
    struct stat st;
    if (b->failed) return ENOMEM;
    if (snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temp) return ENAMETOOLONG;
    if (!lstat(path, &st) && !S_ISREG(st.st_mode)) {
        *why = S_ISLNK(st.st_mode) ? "it is a symbolic link; name the file itself" : "it is not a regular file";
        return EEXIST;
    }
    FILE *f = dt__file_stream(temp, O_WRONLY | O_TRUNC, why);
    if (!f) return errno;
    int e = fwrite(b->s, 1, b->n, f) == b->n ? 0 : errno ? errno : EIO;
    if (fclose(f) && !e) e = errno ? errno : EIO;
    if (!e && rename(temp, path)) e = errno;
    if (e) unlink(temp);
    return e;
}
DT__INSIDE int dt__text_save(const dt__text_buf *b, const char *path, const char **why)
{
    *why = NULL;
    int e = dt__text_saved(b, path, why);
    if (e && !*why) *why = strerror(e);
    return e;
}

/* ==================================================================================================== >>sha
   SHA-256 (FIPS 180-4) and HMAC (RFC 2104). */
static const uint32_t dt__sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
static uint32_t dt__sha_turn(uint32_t x, int n) { return x >> n | x << (32 - n); }
static void     dt__sha_block(uint32_t *h, const uint8_t *p)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        memcpy(&w[i], p + 4 * i, 4);
        w[i] = __builtin_bswap32(w[i]);
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (dt__sha_turn(a, 7) ^ dt__sha_turn(a, 18) ^ a >> 3) + w[i - 7] +
               (dt__sha_turn(b, 17) ^ dt__sha_turn(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t t1 = v[7] + (dt__sha_turn(e, 6) ^ dt__sha_turn(e, 11) ^ dt__sha_turn(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + dt__sha_k[i] + w[i];
        uint32_t t2 = (dt__sha_turn(a, 2) ^ dt__sha_turn(a, 13) ^ dt__sha_turn(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        for (int k = 7; k > 0; k--) v[k] = v[k - 1];
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}
DT_API void dt_sha256_begin(dt_sha256 *s)
{
    static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    if (!s) return;
    memset(s, 0, sizeof *s);
    memcpy(s->h, start, sizeof start);
}
DT_API void dt_sha256_add(dt_sha256 *s, const void *data, size_t nbytes)
{
    const uint8_t *p = (const uint8_t *)data;
    if (!s || !p) return;
    size_t have = (size_t)(s->nbytes & 63);
    s->nbytes += nbytes;
    if (have && nbytes >= 64 - have) {
        memcpy(s->block + have, p, 64 - have);
        dt__sha_block(s->h, s->block);
        p += 64 - have;
        nbytes -= 64 - have;
        have = 0;
    }
    for (; !have && nbytes >= 64; p += 64, nbytes -= 64) dt__sha_block(s->h, p);
    memcpy(s->block + have, p, nbytes);
}
DT_API void dt_sha256_end(dt_sha256 *s, uint8_t out[32])
{
    static const uint8_t pad[64] = { 0x80 };
    if (!s || !out) return;
    uint64_t bits = __builtin_bswap64(s->nbytes * 8);
    dt_sha256_add(s, pad, 1 + (119 - (size_t)(s->nbytes & 63)) % 64);
    dt_sha256_add(s, &bits, 8);
    for (int i = 0; i < 8; i++) {
        uint32_t v = __builtin_bswap32(s->h[i]);
        memcpy(out + 4 * i, &v, 4);
    }
}
DT__INSIDE void dt__hmac_begin(dt__hmac *m, const void *key, size_t nbytes)
{
    uint8_t k[64], in[64], out[64];
    memset(k, 0, sizeof k);
    if (nbytes > 64) {
        dt_sha256_begin(&m->inner);
        dt_sha256_add(&m->inner, key, nbytes);
        dt_sha256_end(&m->inner, k);
    } else if (nbytes > 0) memcpy(k, key, nbytes);
    for (int i = 0; i < 64; i++) in[i] = k[i] ^ 0x36, out[i] = k[i] ^ 0x5c;
    dt_sha256_begin(&m->inner);
    dt_sha256_add(&m->inner, in, 64);
    dt_sha256_begin(&m->outer);
    dt_sha256_add(&m->outer, out, 64);
}
DT__INSIDE void dt__hmac_add(dt__hmac *m, const void *data, size_t nbytes)
{
    dt_sha256_add(&m->inner, data, nbytes);
}
DT__INSIDE void dt__hmac_end(dt__hmac *m, uint8_t out[32])
{
    dt_sha256_end(&m->inner, out);
    dt_sha256_add(&m->outer, out, 32);
    dt_sha256_end(&m->outer, out);
}
DT__INSIDE bool dt__same_secret(const uint8_t *a, const uint8_t *b, size_t nbytes)
{
    volatile uint8_t differ = 0;
    for (size_t i = 0; i < nbytes; i++) differ = (uint8_t)(differ | (a[i] ^ b[i]));
    return differ == 0;
}

#ifdef __cplusplus
}
#endif
#endif /* DT_BASE_IMPLEMENTATION */

/* A header that uses AVX2 intrinsics defines DT__WANT_AVX2 and includes this file again. gcc needs 0.25 s to compile
   immintrin.h, mostly for AVX-512 and AMX; the parts used here need a fifth of that. A program can still include
   immintrin.h later and gets the rest. */
#if defined(DT__WANT_AVX2) && !defined(DT__HAVE_AVX2) && defined(__x86_64__)
#define DT__HAVE_AVX2
#if defined(__GNUC__) && !defined(__clang__) && !defined(__INTEL_COMPILER) && !defined(__CUDACC__) && \
    !defined(_IMMINTRIN_H_INCLUDED) && __GNUC__ >= 9 && __GNUC__ <= 15
#include <smmintrin.h> /* up to SSE4.1 */
#define _IMMINTRIN_H_INCLUDED
#include <avxintrin.h>
#include <avx2intrin.h>
#include <fmaintrin.h>
#include <f16cintrin.h>
#undef _IMMINTRIN_H_INCLUDED
#else
#include <immintrin.h>
#endif
#endif
