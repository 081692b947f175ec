/* dt_base.h - v0.2.0 - what every header of dt stands on: errors, log, allocator, SHA-256 */
/*
DO THIS

    Nothing: the other headers include this one. It must lie beside them. It can be used by itself, too:

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_base.h"
    In every other file that uses it:           #include "dt_base.h"

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
    >>inside         what the other headers' implementations use of this one
    >>base           implementation from here: errors, log, memory
    >>text           text buffers, numbers, UTF-8
    >>environment    the variables of launchers
    >>sha            SHA-256 and HMAC

MACROS

    DT_IMPLEMENTATION   this file gets the implementation of every header of dt that it includes. Each header also has a
                        macro of its own (DT_BASE_IMPLEMENTATION here), so that each can be compiled by itself.
    DT_LINKED           DT_IMPLEMENTATION is ignored: the implementation is linked (dt.c, or a library made of it). So
                        one source compiles both ways.
    DT_STATIC           everything is static: for one file, or one copy per file
    DT_MALLOC, DT_FREE  the default allocator (both or neither): DT_MALLOC(nbytes), DT_FREE(ptr); dt_set_allocator
                        changes it at run time

    The environment: DT_LOG (error, warn, info, debug).

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
     defined(DT_MPI_IMPLEMENTATION) || defined(DT_DIST_IMPLEMENTATION) || defined(DT_CUDA_IMPLEMENTATION) ||         \
     defined(DT_NCCL_IMPLEMENTATION))
#define DT__WANT_INSIDE /* an implementation is asked for: the sections >>inside are declared */
#endif
#if defined(DT__WANT_INSIDE) && defined(_FEATURES_H) && !defined(__USE_MISC)
#error "dt: a libc header was included before dt's headers in strict mode; put '#define _GNU_SOURCE' first in this file, or include dt's headers first, or compile with -std=gnu99"
#endif
#if (defined(DT__WANT_INSIDE) || defined(DT_IMPLEMENTATION)) && !defined(_FEATURES_H) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* with DT_LINKED, too: the same source compiles both ways */
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
   DT_API: a public function. Option structs: every field zero means the default. C and C++20 callers write
   dt_call(x, .field = value); C++17 callers fill the struct and use dt_call_with(x, opts). */
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
#define DT__ONLY(T, ...) DT__LIT(T){ .dt__first = 0, __VA_ARGS__ } /* for a call that takes only options */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* An option that can be switched both ways: left out it is the default. */
typedef enum dt_switch { DT_DEFAULT = 0, DT_YES = 1, DT_NO = -1 } dt_switch;

/* ---------------------------------------------------------------------------------------------------- >>errors
   A call that fails returns NULL (or a negative status) and leaves one message on its thread. Until it is cleared
   every tensor call of the thread returns NULL. */
typedef enum dt_status {
    DT_OK          = 0,
    DT_ERR_ARG     = -1, /* a wrong argument: NULL, a dimension out of range, a bad option */
    DT_ERR_SHAPE   = -2, /* shapes that do not fit each other, or overflow */
    DT_ERR_DTYPE   = -3, /* a dtype the call does not take */
    DT_ERR_DEVICE  = -4, /* tensors on different devices, a missing backend entry, a device failure */
    DT_ERR_MEMORY  = -5, /* an allocation failed */
    DT_ERR_GRAD    = -6, /* backward where it cannot run */
    DT_ERR_STATE   = -7, /* a call at the wrong time: a released tensor, an unbalanced scope */
    DT_ERR_NUMERIC = -8, /* a loss that is not finite */
    DT_ERR_FILE    = -9, /* a file that cannot be read or written, or is damaged */
    DT_ERR_COMM    = -10 /* other ranks: one died, or does something else (dt_dist.h) */
} dt_status;

DT_API const char *dt_error(void);      /* the pending message, or NULL */
DT_API dt_status   dt_error_code(void); /* its code, or DT_OK */
DT_API void        dt_error_clear(void);
DT_API int         dt_check(const char *program); /* 0; with an error pending: prints it to stderr and returns 1 */
DT_API int         dt_fail(dt_status code, const char *format, ...) DT__PRINTF(2, 3); /* leaves a message; returns code */

/* What calls on communicators return (dt_net.h, dt_comm.h). They have messages of their own: dt_comm_error. */
typedef enum dt_comm_status {
    DT_COMM_OK           = 0,
    DT_COMM_ERR_ARG      = -1, /* a wrong argument on this rank */
    DT_COMM_ERR_PEER     = -2, /* a rank died or left */
    DT_COMM_ERR_TIMEOUT  = -3, /* no progress for too long: the message names who did not come */
    DT_COMM_ERR_MISMATCH = -4, /* ranks called different things: the message shows both */
    DT_COMM_ERR_NET      = -5, /* a socket or file descriptor failed */
    DT_COMM_ERR_JOIN     = -6, /* the world did not come together */
    DT_COMM_ERR_MEMORY   = -7,
    DT_COMM_ERR_STATE    = -8, /* a call at the wrong time */
    DT_COMM_ERR_ABORT    = -9  /* dt_comm_abort was called */
} dt_comm_status;

/* The log function is called by any thread, one thread at a time. */
enum { DT_LOG_OFF = 0, DT_LOG_ERROR = 1, DT_LOG_WARN = 2, DT_LOG_INFO = 3, DT_LOG_DEBUG = 4 };
typedef void (*dt_log_fn)(void *user, int level, const char *text);
DT_API void dt_set_log(dt_log_fn fn, void *user); /* NULL: back to DT_LOG=error|warn|info|debug on stderr */

/* ---------------------------------------------------------------------------------------------------- >>memory */
typedef struct dt_allocator {
    void *(*alloc)(void *user, size_t nbytes); /* at least 16-byte aligned, or NULL */
    void (*free)(void *user, void *ptr, size_t nbytes);
    void *user;
} dt_allocator;
/* Everything dt allocates comes from here, but for communicators (DT_COMM_MALLOC). Set it while nothing of dt is alive
   (DT_ERR_STATE otherwise). */
DT_API dt_status dt_set_allocator(const dt_allocator *a); /* NULL: DT_MALLOC and DT_FREE */
DT_API void     *dt_mem_alloc(size_t nbytes); /* through the allocator; NULL without a message */
DT_API void      dt_mem_free(void *ptr, size_t nbytes);

/* ---------------------------------------------------------------------------------------------------- >>dtypes */
typedef enum dt_dtype { DT_F32 = 0, DT_F16, DT_BF16, DT_I32, DT_I64, DT_U8, DT_DTYPE_COUNT } dt_dtype;
DT_API const char *dt_dtype_name(dt_dtype d);   /* "f32" ...; "?" for a bad one */
DT_API size_t      dt_dtype_nbytes(dt_dtype d); /* bytes of one element; 0 for a bad one */

#define DT_MAX_DIMS 8
typedef struct dt_shape {
    int     ndim;
    int64_t dim[DT_MAX_DIMS];
} dt_shape;
/* DT_SHAPE(2, 3): up to 8 dimensions. DT_SCALAR: none. */
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
#endif /* DT_BASE_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__BASE_INSIDE)
#define DT__BASE_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   A section >>inside declares what the implementations of other headers use of this one: types, and functions that are
   hidden from the program that links dt. It is no interface for programs and changes without notice.

   Each implementation defines one symbol, DT__PRESENT, and those that stand on it refer to it, DT__NEEDS. Its name is
   what the linker prints when an implementation is missing, is there twice, or is of another version. */
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
/* Around code that does no arithmetic on tensors' elements: gcc compiles it as with -Og, in less than half the time of
   -O2. DT__FAIR_BEGIN, around kernels that are only a fallback: as with -O1. The results are the same. */
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
#define DT__CLEAR(o) memset((void *)&(o), 0, sizeof(o)) /* option structs: C++ sees members with initialisers */
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
typedef struct dt__pending { /* of a thread */
    dt_status   code;
    char        message[1024];
    const char *bad_loss; /* a backward began at a value that was not finite: the op that made it; or NULL */
    double      bad_loss_value;
} dt__pending;
#ifdef DT_STATIC
static __thread dt__pending dt__err;
#else
extern __thread __attribute__((visibility("hidden"))) dt__pending dt__err;
#endif
DT__INSIDE void dt__log(int level, const char *text);
DT__INSIDE void dt__logf(int level, const char *format, ...) DT__PRINTF(2, 3);

/* ---- messages of calls on communicators that have none, or no communicator: this thread's last one */
typedef struct dt__saying {
    char text[768];
    int  why; /* the status that goes with it */
} dt__saying;
#ifdef DT_STATIC
static __thread dt__saying dt__said;
#else
extern __thread __attribute__((visibility("hidden"))) dt__saying dt__said;
#endif
DT__INSIDE int dt__comm_bad(int status, const char *format, ...) DT__PRINTF(2, 3); /* leaves it; returns status */

/* ---- memory. trim: called before the allocator changes, to give cached memory back. */
DT__INSIDE void *dt__alloc_zero(size_t nbytes); /* NULL without a message */
DT__INSIDE bool  dt__alloc_is_ours(void);       /* no allocator was set, and DT_MALLOC is malloc */
DT__INSIDE void  dt__alloc_counts(int64_t *allocs, size_t *bytes);
DT__INSIDE void  dt__alloc_on_change(void (*trim)(void));
/* Room for one more in an array of n: the array, moved if it had to grow; NULL: no memory, and nothing changed. */
DT__INSIDE void *dt__enlarge(void *at, int64_t n, int64_t *cap, size_t each);

/* ---- memory of worlds, communicators and plans: all of it from DT_COMM_MALLOC, which may not be malloc */
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

/* ---- element types: bytes of those of dt_dtype, and of number 6, f64 */
static const uint8_t dt__dtype_size[7] __attribute__((unused)) = { 4, 2, 2, 4, 8, 1, 8 };
static inline __attribute__((unused)) size_t dt__elem_nbytes(int dtype) /* 0: a wrong number */
{
    return dtype >= 0 && dtype < 7 ? dt__dtype_size[dtype] : 0;
}
/* The number of elements; -1 when a dimension is negative or the product (or its bytes) overflows. */
DT__INSIDE int64_t dt__count(const int64_t *shape, int ndim, size_t elem);

/* ---- time and counters. The trace of dt.h, once it runs, shows the values that counters report. */
DT__INSIDE uint64_t dt__nanoseconds(void); /* of CLOCK_MONOTONIC */
DT__INSIDE double   dt__seconds(void);     /* of the same */
DT__INSIDE void     dt__counter(const char *name, double value);
DT__INSIDE void     dt__counter_to(void (*show)(const char *name, double value));

/* ---- text */
typedef struct dt__text_out { /* a caller's buffer, filled like snprintf: len is what the whole text needs */
    char  *buf;
    size_t nbytes, len;
} dt__text_out;
DT__INSIDE void  dt__emit(dt__text_out *o, const char *s);
DT__INSIDE void  dt__emitf(dt__text_out *o, const char *format, ...) DT__PRINTF(2, 3); /* a line: up to 1023 characters */
typedef struct dt__text_buf { /* text that grows; failed: out of memory, and what was added after that is missing */
    char  *s; /* ends with a 0; NULL: nothing was added yet */
    size_t n, cap;
    bool   failed;
} dt__text_buf;
DT__INSIDE void  dt__text_add(dt__text_buf *b, const char *s, size_t n);
DT__INSIDE void  dt__text_put(dt__text_buf *b, const char *s);
DT__INSIDE void  dt__text_int(dt__text_buf *b, int64_t x);
DT__INSIDE void  dt__text_free(dt__text_buf *b);
DT__INSIDE char *dt__strdup(const char *s); /* from dt_mem_alloc, strlen(s) + 1 bytes; NULL without a message */
DT__INSIDE void  dt__free_text(char *s);    /* what dt__strdup gave; NULL is accepted */
/* For messages, in one of a few buffers of the thread that are used in turn: a name in quotes, cut, without control
   characters; a shape, "(2, 3)". */
DT__INSIDE const char *dt__show(const char *name);
DT__INSIDE const char *dt__shape_text(const int64_t *shape, int ndim);
DT__INSIDE char *dt__fix_point(char *buf); /* a number as printf writes it, with a point in every locale; returns buf */
DT__INSIDE char *dt__number(char *buf, size_t nbytes, double x, int digits); /* as C's %.*g, in every locale */
/* Bytes of the UTF-8 character at s, 1 to 4, of which n are there; 0: it is none (overlong, a surrogate, cut) */
DT__INSIDE size_t dt__utf8_len(const void *s, size_t n);

/* ---- the variables of launchers, in the order in which they are looked for */
enum { DT__LAUNCHERS = 5, DT__LAUNCHER_RANK = 0, DT__LAUNCHER_SIZE, DT__LAUNCHER_LOCAL_RANK, DT__LAUNCHER_LOCAL_SIZE };
DT__INSIDE const char *dt__launcher_name(int launcher, int what); /* NULL: this launcher has none for it */
DT__INSIDE int         dt__launcher(void); /* the one whose variables are set; -1: none */
DT__INSIDE int         dt__launcher_number(int what); /* of it, or of any if there is none; -1: not set, or no number */

/* ---- HMAC-SHA-256. No table or branch depends on a secret. */
typedef struct dt__hmac {
    dt_sha256 inner, outer;
} dt__hmac;
DT__INSIDE void dt__hmac_begin(dt__hmac *m, const void *key, size_t nbytes);
DT__INSIDE void dt__hmac_add(dt__hmac *m, const void *data, size_t nbytes);
DT__INSIDE void dt__hmac_end(dt__hmac *m, uint8_t out[32]);
DT__INSIDE bool dt__same_secret(const uint8_t *a, const uint8_t *b, size_t nbytes); /* takes as long wherever they differ */

#ifdef __cplusplus
}
#endif
#endif /* DT__BASE_INSIDE */

#if defined(DT_BASE_IMPLEMENTATION) && !defined(DT__BASE_IMPLEMENTED)
#define DT__BASE_IMPLEMENTED
#include <pthread.h>

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

/* ==================================================================================================== >>base
   Errors belong to their thread. The log and the allocator are the process's: log_lock guards the log function, and is
   held while it runs, so that it is called by one thread at a time. A log function that logs again (by calling dt and
   failing) is called again at once: it holds the lock already. */
#ifndef DT_STATIC
__thread dt__pending dt__err;
__thread dt__saying  dt__said;
#endif
static struct {
    dt_allocator a;
    int64_t      allocs; /* atomic, as are bytes */
    size_t       bytes;
    void (*trim)(void);
} dt__host;
static pthread_mutex_t dt__log_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int    dt__log_depth; /* this thread is in the log function */
static dt_log_fn       dt__log_to;
static void           *dt__log_user;

static const char *const dt__log_names[5] = { "off", "error", "warn", "info", "debug" };

static int dt__log_level(void)
{
    static int level = -1;
    int        l = __atomic_load_n(&level, __ATOMIC_RELAXED);
    if (l < 0) {
        const char *s = getenv("DT_LOG");
        l = s ? atoi(s) : 0;
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
    else if (level <= dt__log_level())
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
    if (e->code != DT_OK) return code; /* the first message is the one that matters */
    va_list ap;
    va_start(ap, format);
    vsnprintf(e->message, sizeof e->message, format, ap);
    va_end(ap);
    e->code = code;
    dt__log(DT_LOG_ERROR, e->message);
    return code;
}
DT_API const char *dt_error(void) { return dt__err.code == DT_OK ? NULL : dt__err.message; }
DT_API dt_status   dt_error_code(void) { return dt__err.code; }
DT_API void        dt_error_clear(void)
{
    dt__err.code = DT_OK;
    dt__err.message[0] = 0;
    dt__err.bad_loss = NULL;
}
DT_API int dt_check(const char *program)
{
    if (dt__err.code == DT_OK) return 0;
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
                                  "dt_set_allocator: %zu bytes of the present allocator are in use; free every tensor and "
                                  "end every step first",
                                  left);
    if (a && (!a->alloc || !a->free)) return (dt_status)dt_fail(DT_ERR_ARG,
                                                                "dt_set_allocator: alloc and free must both be set");
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
        n = n * (shape[i] > 0); /* 0 if any dimension is */
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
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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
   Launchers tell a process its rank in environment variables, each by names of its own. */
DT__INSIDE const char *dt__launcher_name(int launcher, int what)
{
    static const char *const name[DT__LAUNCHERS][4] = {
        { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" }, /* torchrun, dtrun */
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE" },
        { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" },
        { "PMIX_RANK", "SLURM_NTASKS", NULL, NULL },
        { "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL },
    };
    return name[launcher][what];
}
DT__INSIDE int dt__launcher(void)
{
    for (int i = 0; i < DT__LAUNCHERS; i++) /* SLURM_NTASKS alone is a shell in an allocation, not a rank */
        if (getenv(dt__launcher_name(i, DT__LAUNCHER_RANK)) || (i < 2 && getenv(dt__launcher_name(i, DT__LAUNCHER_SIZE))))
            return i;
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

/* A header that uses AVX2 intrinsics defines DT__WANT_AVX2 and includes this one again. gcc's immintrin.h takes a quarter
   of a second a file, nearly all of it for AVX-512 and AMX; the four parts that are used take a fifth of that. Including
   immintrin.h later still brings the rest. */
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
