/* emu.h: what the emulated CUDA libraries share. For tests only.

   emu_cudart.c  -> libcudart.so.13  devices, memory, streams, events, launches (by ptx.h), and everything below
   emu_cublas.c  -> libcublas.so.13  matrix products
   emu_cudnn.c   -> libcudnn.so.9    convolutions
   emu_nccl.c    -> libnccl.so.2     collectives between threads and processes of one machine

   A program built with nvcc's shared runtime (PTX in its fat binary, uncompressed) finds them through LD_LIBRARY_PATH:

     nvcc -cudart shared -Xfatbin --compress-mode=none -gencode arch=compute_80,code=compute_80 -c kernels.cu
     cc -O2 -fPIC -shared -isystem CUDA/include -Wl,-soname,libcudart.so.13 -Wl,--default-symver emu_cudart.c \
        -o libcudart.so.13 -lm -lpthread
     and the others alike, linked with -l:libcudart.so.13; libnccl.so.2 without --default-symver, as the real one

   What is not modelled is not defined: the program does not start, or the call fails. Nothing succeeds undone.

   THE MODEL. A stream is a queue of work. Queued work has run only where the program made sure of it:
     DT_EMU=lazy         (default) work runs when something waits for it, and nothing beside it does
     DT_EMU=random:SEED  at every call, some of the work that may run does, in a seeded order
     DT_EMU=eager        at once where nothing is waited for; to find out whether order is what a failure is about
   Work of one stream runs in order; otherwise only events, waits and the legacy default stream order it. Device memory
   is at addresses that the host cannot touch; fresh memory is NaN and marked as never written, freed memory is gone
   and its addresses do not come back. Copies from pageable memory are staged at the call, pinned memory is read when
   the copy runs, and pinned destinations are poisoned until then.

   A failed check is a line "emu: ..." on stderr, a sticky error of the device, and with DT_EMU_STRICT=1 exit status 97.

     DT_EMU_DEVICES=n    devices, 1 unless told; CUDA_VISIBLE_DEVICES picks of them; 0: no device
     DT_EMU_MEMORY=bytes of each device, 4 GiB unless told
     DT_EMU_CC=80        compute capability; unless told the highest that the program has PTX for, or 80
     DT_EMU_PEER=0       devices cannot reach each other's memory
     DT_EMU_HANG=s       a wait in which nothing anywhere makes progress for so long is a hang, 20 unless told
     DT_EMU_HARSH=SEED   what real libraries may do and a gentle emulation does not: cuDNN refuses, when it is to run it, an
                         algorithm that it named (which ones, the seed decides by shape), half of the seeds refuse all that
                         compute one direction in halves, and operands in halves that are not aligned to 16 bytes; a search
                         needs device memory for the workspaces; cuBLAS adds partial sums of halves as halves, unless that is disallowed
     DT_EMU_NCCL=...     a collective that hangs or fails, see emu_nccl.c
     DT_EMU_NCCL_ROOM=n  a device has room for the kernels of n collectives at a time, of all communicators; the next one starts when one
                         of them ends. With NCCL_LAUNCH_ORDER_IMPLICIT=1 they start in the order of the host's calls, else in any. Unlimited unless told
     DT_EMU_NCCL_VERSION the version that NCCL says it has; below 22600 it knows no NCCL_LAUNCH_ORDER_IMPLICIT
     DT_EMU_LOADING=1    a kernel is loaded when it is first used, and that waits for all work of the device, unless
                         CUDA_MODULE_LOADING=EAGER: the same for the first product and convolution of a device
     DT_EMU_REGS=file    lines "kernel registers" (of ptxas -v): launches that need more than there are fail
     DT_EMU_STRICT=1, DT_EMU_REPORT=1 (counts at exit), DT_EMU_VERBOSE=1 (why a call was refused)
     DT_EMU_LEAKS=1      memory, streams and events that are left at exit fail too */
#ifndef DT_EMU_H
#define DT_EMU_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EMU_API __attribute__((visibility("default")))
#define EMU_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define EMU_MAX_DEVICES 16
enum { EMU_POISON = 0xff }; /* NaN in every float format, -1 as an integer */

/* One lock for all. Work runs with it held; who waits for another thread lets go of it. */
EMU_API void emu_lock(void);
EMU_API void emu_unlock(void);
/* Lets other threads work until something happens or so many microseconds have passed. The lock is held. */
EMU_API void emu_pause(long microseconds);
EMU_API void     emu_wake(void);            /* something happened here */
EMU_API uint64_t emu_progress(void);        /* how much has */
EMU_API void     emu_wake_for_others(void); /* something happened in another process: who waits goes on waiting */

/* A failed check: the line, the count, and the sticky error of the device (-1: of none). Returns the error. */
EMU_API cudaError_t emu_fail(int device, cudaError_t sticky, const char *format, ...) EMU_PRINTF(3, 4);
EMU_API void        emu_note(const char *format, ...) EMU_PRINTF(1, 2); /* with DT_EMU_VERBOSE=1 */
EMU_API uint64_t    emu_random(void);                                   /* from the seed */
EMU_API uint64_t    emu_harsh(uint64_t what); /* a number of DT_EMU_HARSH's seed and of what; 0: it is not set */
EMU_API void        emu_loading(int device, const char *what); /* is used there for the first time: see DT_EMU_LOADING */
EMU_API double      emu_hang_seconds(void);
EMU_API double      emu_seconds(void);
EMU_API cudaError_t emu_usable(void); /* is there a driver, a device, no fork behind us; the sticky error */
EMU_API cudaError_t emu_sticky(int device);
EMU_API int         emu_device(void);              /* the thread's */
EMU_API int         emu_devices(void);
EMU_API int         emu_physical(int device);      /* its number before CUDA_VISIBLE_DEVICES */
EMU_API int         emu_capability(int device);    /* 80 */
EMU_API bool        emu_in_host_function(void);
/* LOADS: waits for the device because something is loaded (DT_EMU_LOADING). PAGEABLE, PINNED: copies between a device and such memory of the host; WAITS: for a stream or a device */
enum {
    EMU_GEMMS, EMU_CONVS, EMU_COLLECTIVES, EMU_OPERANDS, EMU_UNALIGNED, EMU_PAGEABLE, EMU_PINNED, EMU_WAITS,
    EMU_LOADS, EMU_COUNTS
};
EMU_API void        emu_count(int what);
EMU_API uint64_t    emu_counted(int what); /* for tests: dlsym(RTLD_DEFAULT, "emu_counted") */
/* From here on launches are counted (ptx_run_counted), and f is told of each that has run, with the lock held; NULL: no
   longer. shared: its bytes of shared memory. For programs: dlsym(RTLD_DEFAULT, "emu_costs"). */
struct ptx_counts;
typedef void emu_costs_fn(void *user, const char *kernel, const unsigned grid[3], const unsigned block[3], size_t shared,
                          const struct ptx_counts *n);
EMU_API void emu_costs(emu_costs_fn *f, void *user);
/* A matrix or tensor that cuBLAS or cuDNN got: one whose address is not a multiple of 16 bytes counts as unaligned, too.
   The real libraries take it, and compute slower. */
EMU_API void        emu_operand(const void *ptr, const char *who);

/* ---- memory. Device addresses; who names the caller in messages. */
enum { EMU_READ = 1, EMU_WRITE = 2 };
/* Where rows of nbytes, pitch bytes apart, really are, if the device may use them so; read rows must have been written,
   written rows count as written from here on. NULL after emu_fail. */
EMU_API void *emu_rows(int device, const void *ptr, int64_t rows, size_t nbytes, size_t pitch, int access,
                       const char *who);
EMU_API void *emu_bytes(int device, const void *ptr, size_t nbytes, int access, const char *who);
/* The same without regard to what has been written: known[i] = 1 where byte i has. For those who pass it on. */
EMU_API void *emu_bytes_known(int device, const void *ptr, size_t nbytes, unsigned char *known, const char *who);
EMU_API void  emu_set_known(int device, void *ptr, size_t nbytes, const unsigned char *known); /* NULL: all */
EMU_API void  emu_forget(int device, void *ptr, size_t nbytes); /* NaN, never written */
EMU_API bool  emu_is_device_pointer(const void *ptr);
EMU_API int   emu_pointer_device(const void *ptr); /* that it lives on; -1 for host memory */

/* ---- streams */
enum { EMU_DONE, EMU_BLOCKED };
typedef struct emu_work {
    int (*run)(struct emu_work *w);   /* EMU_DONE, or EMU_BLOCKED: waits for others, is called again */
    void (*drop)(struct emu_work *w); /* frees it; also of work that never runs */
    void (*kick)(struct emu_work *w); /* blocked: gets what it waits for to run (emu_advance); may be NULL */
    void (*hang)(struct emu_work *w); /* says what it waits for; afterwards run must not block. With kick. */
    const char *name;
    int         device; /* this and what follows: set by emu_queue */
    void       *stream;
    uint64_t    at; /* its number in the stream */
} emu_work;
/* Takes w over, also when it fails; it may have run on return. */
EMU_API cudaError_t emu_queue(cudaStream_t stream, emu_work *w);
EMU_API bool        emu_advance(void *stream, uint64_t at); /* without waiting; true: it has run */
EMU_API void        emu_wait(void *stream, uint64_t at);           /* until it has run, or hangs */
/* Is it one, and of which device? The default stream becomes that of the current device. */
EMU_API cudaError_t emu_stream_check(cudaStream_t *stream, int *device);

/* ---- handles of libraries: of the device that was the thread's when they were made, with a stream of that device */
typedef struct emu_handle { /* the first member of a library's own */
    uint32_t     magic;
    int          device;
    cudaStream_t stream;
} emu_handle;
static inline void *emu_handle_of(void *handle, uint32_t magic) /* NULL: this library did not make it */
{
    return handle && ((emu_handle *)handle)->magic == magic ? handle : NULL;
}
static inline void *emu_handle_new(size_t nbytes, uint32_t magic) /* NULL: there is no usable device */
{
    emu_lock();
    emu_handle *h = emu_usable() ? NULL : (emu_handle *)calloc(1, nbytes);
    if (h) {
        h->magic = magic;
        h->device = emu_device();
    }
    emu_unlock();
    return h;
}
/* Waits for the device: the library's own memory is freed. */
static inline void emu_handle_free(emu_handle *h)
{
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(h->device);
    cudaDeviceSynchronize();
    cudaSetDevice(before);
    h->magic = 0;
    free(h);
}
static inline bool emu_handle_set(emu_handle *h, cudaStream_t stream, const char *call) /* false: of another device */
{
    int device = -1;
    emu_lock();
    bool good = !stream || (!emu_stream_check(&stream, &device) && device == h->device);
    if (good) h->stream = stream;
    else emu_note("%s: a stream of device %d for a handle of device %d", call, device, h->device);
    emu_unlock();
    return good;
}

/* ---- formats of 16 bits */
static inline float emu_from_bits(uint32_t u)
{
    union { uint32_t u; float f; } b = {u};
    return b.f;
}
static inline uint32_t emu_bits(float f)
{
    union { float f; uint32_t u; } b = {f};
    return b.u;
}
static inline float emu_bf16_to_f32(uint16_t h) { return emu_from_bits((uint32_t)h << 16); }
static inline uint16_t emu_f32_to_bf16(float f)
{
    uint32_t u = emu_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
static inline float emu_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return emu_from_bits(sign | 0x7f800000u | m << 13);
    if (e) return emu_from_bits(sign | (e + 112) << 23 | m << 13);
    float f = (float)m * 0x1p-24f;
    return sign ? -f : f;
}
static inline uint16_t emu_f32_to_f16(float f)
{
    uint32_t u = emu_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return 0x7fff;
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and up */
    if (a >= 0x38800000u) {
        a += 0xfffu + (a >> 13 & 1);
        return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
    }
    float r = emu_from_bits(a) + 0.5f; /* the unit of 0.5 is 2^-24: rounded by the addition */
    return (uint16_t)(sign | (emu_bits(r) - 0x3f000000u));
}
/* 10 bits of fraction, ties to even */
static inline float emu_tf32(float f)
{
    uint32_t u = emu_bits(f);
    if ((u & 0x7f800000u) == 0x7f800000u) return f;
    return emu_from_bits((u + 0xfffu + (u >> 13 & 1)) & ~0x1fffu);
}

/* c (m x n, rows of ldc) += a (m x k, rows of lda) times b (k x n, rows of ldb), f32, all in host memory */
EMU_API void emu_sgemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                       float *c, int64_t ldc);

#endif /* DT_EMU_H */
