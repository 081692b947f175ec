/* dt.h - v0.2.0 - tensors, autograd and ops, on any device that fills the backend table */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt.h"
    In every other file that uses dt:           #include "dt.h"

    dt_base.h and dt_cpu.h must be in the same directory. Link with -lm -lpthread. No compiler flags are needed: SIMD
    kernels are chosen at run time.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt.h"
    #include <stdio.h>

    int main(void)
    {
        dt_manual_seed(1);
        dt_tensor *p[4] = {
            dt_set_requires_grad(dt_uniform(-1, 1, DT_SHAPE(16, 2))), dt_set_requires_grad(dt_zeros(DT_SHAPE(16))),
            dt_set_requires_grad(dt_uniform(-0.25, 0.25, DT_SHAPE(1, 16))), dt_set_requires_grad(dt_zeros(DT_SHAPE(1))),
        };
        dt_block all;
        dt_pack(&all, p, 4);

        double loss = 1;
        for (int step = 0; step < 400; step++) {
            dt_tensor *x = dt_uniform(-1, 1, DT_SHAPE(64, 2));
            dt_tensor *y = dt_mul(dt_narrow(x, 1, 0, 1), dt_narrow(x, 1, 1, 1));
            dt_tensor *h = dt_op_linear(x, p[0], p[1], .act = DT_ACT_TANH);
            dt_tensor *l = dt_mse_loss(dt_op_linear(h, p[2], p[3]), y);
            dt_backward(l);
            loss = dt_item(l);
            dt_add_to(all.value, all.grad, -0.3);
            dt_block_zero_grad(&all);
            dt_end();
        }
        printf("loss %.4f\n", loss);
        for (int i = 0; i < 4; i++) dt_free(p[i]);
        dt_block_free(&all);
        return dt_check("product") || !(loss < 0.02);
    }

WHAT IT DOES NOT DO

    No graph compiler: every call runs immediately (or is queued on the device's stream). No complex numbers, no f64, no
    sparse tensors, no negative strides, no double backward. In-place calls (dt_fill, dt_copy, dt_copy_in, dt_add_to)
    are not recorded on the tape. They fail if that would make a gradient wrong.

OPTIONS

    Options are designated initialisers after the arguments: dt_sum(x, .dims = DT_DIM(1), .keepdim = true). A field that
    is left out, or 0, has its default (where the default is not 0, DT_ZERO means 0). The order:
      C        any order
      C++20    the order in which the struct (dt_reduce_opts) declares the fields; all examples of dt use this order
      C++17    has no designated initialisers: declare the struct, set fields, and pass it as the last argument
               (dt_reduce_opts o; o.dims = DT_DIM(1); dt_sum(x, o)). Calls without options are the same in all languages.

CONTENTS

    >>memory         statistics
    >>tensors        creation, lifetime, properties, copies, views
    >>random         random number generators
    >>autograd       parameters, backward, hooks, blocks
    >>ops            the ops and their options
    >>devices        default device, synchronisation, CPU threads
    >>trace          a timeline of the run for Perfetto
    >>backend        the interface of a device: views, calls, the list of kernels
    >>inside         private declarations for the implementations of the other headers
    >>halves         ... f16 and bf16 to and from f32
    >>philox         ... the counter-based generator
    >>context        implementation from here: thread context, lists, scratch memory
    >>device         devices, their memory cache, streams
    >>handles        storages and tensor handles
    >>mersenne       MT19937 and the distributions
    >>tracing        the timeline: buffers of threads, the file
    >>dispatch       building a call and running it
    >>making         tensors from data, constants, random numbers
    >>asking         shapes, strides, sizes
    >>moving         copies to and from host memory, printing
    >>tape           recording, accumulation of gradients, backward, blocks
    >>views          reshape, permute, narrow, expand, copies
    >>elementwise    unary and binary functions, where
    >>reductions     sum, mean, max, min, argmax, argmin, var, std, prod, logsumexp
    >>matmul         matmul and linear
    >>softmax        softmax and log_softmax
    >>images         conv2d, pooling, batch norm
    >>norms          layer norm and rms norm
    >>indexing       embedding and gather
    >>joining        cat, stack, split, pad
    >>dropout        dropout
    >>losses         cross entropy, nll, mse, l1, smooth l1, bce
    >>attention      scaled dot-product attention

MACROS

    DT_IMPLEMENTATION   compiles the implementation in this file
    DT_STATIC           all functions are static: for a program of one file, or a separate copy in each file
    DT_MALLOC, DT_FREE  the default allocator (define both or neither): DT_MALLOC(nbytes), DT_FREE(ptr);
                        dt_set_allocator changes it at run time
    DT_USE_CBLAS        f32 matrix products call a CBLAS (needs the include path of cblas.h and e.g. -lopenblas)
    DT_NO_AVX2          omits the AVX2 kernels
    DT_NO_PORTABLE      omits the portable kernels: the CPU must support AVX2, FMA and F16C (dt_cpu.h)

    Environment variables: DT_NUM_THREADS (CPU threads), DT_CPU_ISA (portable, avx2, avx512), DT_LOG (error, warn, info, debug),
    DT_TRACE (the file that the timeline of the run is written to).

MEMORY

    A tensor made by any call belongs to the thread's current step. dt_end() frees all tensors of the step, and the tape.
    dt_keep() removes a tensor from the step; dt_free() frees a kept tensor. dt_set_requires_grad() also keeps its
    tensor. Views share memory, which is freed together with the last of them. Freed memory is cached by size for later
    tensors: after the first steps, a step does not call malloc. dt_empty_cache() frees the cache, dt_stats() returns the
    numbers.

ERRORS

    No call aborts, exits or prints, except dt_print and dt_check, which print. A call that fails returns NULL or a
    negative status and sets the message that dt_error() returns on the same thread. Until dt_error_clear(), every tensor
    call of that thread returns NULL, so a program can check once at the end of a block of calls. Every call accepts NULL
    for a tensor. dt_free, dt_end and the calls that return properties of a tensor also work with an error pending.

THREADS

    Each thread has its own step, tape, pending error, generator, default device and streams. Several threads may read a
    kept tensor at the same time; dt_nn.h has models for several threads (dt_model_reader). CPU kernels share one thread
    pool. A kernel that is called inside another kernel, or
    while another thread uses the pool, runs on its calling thread alone. The results are bit-identical for any number of
    threads.

DEVICES

    Every tensor is on a device. Only dt_to and dt_copy copy between devices; an op whose operands are on two devices fails.
    A device is a table of functions (dt_backend). dt_device_new(dt_device_backend(dt_cpu()), 1, NULL) makes a second device
    in the memory of the host, for a program for two devices on a machine without them. Device memory is read with
    dt_copy_out or dt_item, which wait for the device. A device may store images in a private layout between convolutions,
    pooling and batch norm; strides and views always show the row-major one.

NUMERICS

    f32, f16, bf16, i32, i64, u8. f16 and bf16 values are stored in 16 bits and computed in f32. Names, defaults,
    broadcasting, type promotion, subgradients and the treatment of NaN follow PyTorch. Random numbers are bit-identical
    to those of PyTorch's CPU generator. Dropout uses Philox: its mask depends only on the seed and the position. In
    dt_backward a gradient has the dtype of its tensor.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_CORE_IMPLEMENTATION)
#define DT_CORE_IMPLEMENTATION
#endif
#include "dt_base.h"

#ifndef DT_H_INCLUDED
#define DT_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>memory */
typedef struct dt_memory_stats {
    size_t  live_bytes;   /* memory of existing tensors */
    size_t  peak_bytes;   /* highest live_bytes since dt_stats_reset */
    size_t  cached_bytes; /* memory of freed tensors, cached for later ones */
    int64_t live_tensors; /* existing tensor handles */
    int64_t host_allocs;  /* calls of the allocator since the start, by all threads */
    size_t  host_bytes;   /* allocated from the allocator and not freed */
    int64_t fallbacks;    /* kernel calls that ran on the CPU because the device lacks the kernel (dt_device_allow_fallback) */
} dt_memory_stats;
DT_API dt_memory_stats dt_stats(void); /* of all devices together */
DT_API void            dt_stats_reset(void); /* sets peak_bytes to live_bytes, on all devices */
/* Frees all cached memory: the pools of this thread and the caches of all devices. */
DT_API void            dt_empty_cache(void);

/* ---------------------------------------------------------------------------------------------------- >>tensors */
typedef struct dt_tensor dt_tensor; /* opaque; see the chapter MEMORY */
typedef struct dt_device dt_device; /* the CPU, a GPU, or a device of the program */
typedef struct dt_rng    dt_rng; /* a random generator: PyTorch's Mersenne Twister */

typedef struct dt_make_opts {
    int        dt__first DT_D;
    dt_dtype   dtype DT_D;  /* default DT_F32 */
    dt_device *device DT_D; /* default dt_default_device() */
    dt_rng    *rng DT_D;    /* default: the thread's generator (dt_manual_seed) */
} dt_make_opts;

/* A tensor made by any call belongs to the thread's current step and exists until dt_end() (or dt_step). dt_keep removes
   it from the step; the program must then dt_free it. dt_set_requires_grad also keeps its tensor. dt_free of a tensor of
   the step frees it early. */
DT_API dt_tensor *dt_from_with(const void *data, dt_shape shape, dt_make_opts o DT_OPT0(dt_make_opts)); /* copies */
DT_API dt_tensor *dt_empty_with(dt_shape shape, dt_make_opts o DT_OPT0(dt_make_opts));
DT_API dt_tensor *dt_zeros_with(dt_shape shape, dt_make_opts o DT_OPT0(dt_make_opts));
DT_API dt_tensor *dt_ones_with(dt_shape shape, dt_make_opts o DT_OPT0(dt_make_opts));
DT_API dt_tensor *dt_full_with(double value, dt_shape shape, dt_make_opts o DT_OPT0(dt_make_opts));
DT_API dt_tensor *dt_arange_with(double start, double end, double step, dt_make_opts o DT_OPT0(dt_make_opts));
DT_API dt_tensor *dt_uniform_with(double lo, double hi, dt_shape shape, dt_make_opts o DT_OPT0(dt_make_opts));
DT_API dt_tensor *dt_normal_with(double mean, double std, dt_shape shape, dt_make_opts o DT_OPT0(dt_make_opts));
DT_API dt_tensor *dt_randperm_with(int64_t n, dt_make_opts o DT_OPT0(dt_make_opts)); /* dtype default DT_I64 */
#ifdef DT__LIT
#define dt_from(data, ...) dt_from_with(data, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_empty(...) dt_empty_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_zeros(...) dt_zeros_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_ones(...) dt_ones_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_full(value, ...) dt_full_with(value, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_arange(start, end, ...) \
    dt_arange_with(start, end, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_uniform(lo, hi, ...) \
    dt_uniform_with(lo, hi, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_normal(mean, std, ...) \
    dt_normal_with(mean, std, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_randperm(...) dt_randperm_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_from dt_from_with
#define dt_empty dt_empty_with
#define dt_zeros dt_zeros_with
#define dt_ones dt_ones_with
#define dt_full dt_full_with
#define dt_arange dt_arange_with
#define dt_uniform dt_uniform_with
#define dt_normal dt_normal_with
#define dt_randperm dt_randperm_with
#endif

/* Makes a tensor of existing memory (a mapped file, a shared segment, an array of the program) without a copy: dense,
   row-major. Changes of the tensor change this memory. release(user) is called once, when the last tensor that uses the
   memory is freed, by the thread that frees it. Data that is not aligned to its element size is copied and released
   immediately (CPU only). If the call fails, the caller still owns the data and release is not called. */
typedef struct dt_from_blob_opts {
    int        dt__first DT_D;
    dt_dtype   dtype DT_D;  /* default DT_F32 */
    dt_device *device DT_D; /* the device of this memory; default dt_cpu() */
    void (*release)(void *user) DT_D; /* default: no callback */
    void      *user DT_D;
} dt_from_blob_opts;
DT_API dt_tensor *dt_from_blob_with(void *data, dt_shape shape, dt_from_blob_opts o DT_OPT0(dt_from_blob_opts));
#ifdef DT__LIT
#define dt_from_blob(data, ...) dt_from_blob_with(data, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_from_blob_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_from_blob dt_from_blob_with
#endif

DT_API dt_tensor *dt_keep(dt_tensor *t); /* returns t */
DT_API void       dt_free(dt_tensor *t); /* gives back a tensor of dt_keep; NULL is accepted */
DT_API void       dt_end(void); /* ends the step: frees its tensors and its tape */

/* Properties. For a NULL tensor they return 0 (or an empty shape) without an error. */
DT_API dt_shape   dt_shape_of(const dt_tensor *t);
DT_API int        dt_ndim(const dt_tensor *t);
DT_API int64_t    dt_size(const dt_tensor *t, int i); /* negative i counts from the end */
DT_API int64_t    dt_stride(dt_tensor *t, int i);    /* in elements */
DT_API int64_t    dt_numel(const dt_tensor *t);
DT_API size_t     dt_nbytes(const dt_tensor *t);
DT_API dt_dtype   dt_dtype_of(const dt_tensor *t);
DT_API dt_device *dt_device_of(const dt_tensor *t);
DT_API bool       dt_is_contiguous(dt_tensor *t);
/* Address of the elements, contiguous, in the memory of its device; NULL after an error. Queued kernels may not have
   finished (on the CPU they have). The tape does not see a write to this address, as with the in-place calls. */
DT_API void      *dt_data_ptr(dt_tensor *t);
DT_API size_t     dt_to_string(dt_tensor *t, char *buf, size_t nbytes); /* as snprintf: returns the full length */
DT_API void       dt_print(dt_tensor *t);                               /* prints dt_to_string to stdout */

/* Copies. Reading waits for the device. Host memory is in row-major order, whatever the strides of the tensor. */
DT_API dt_status  dt_copy_out(dt_tensor *t, void *dst, size_t nbytes); /* nbytes must be dt_nbytes(t) */
DT_API dt_status  dt_copy_in(dt_tensor *t, const void *src, size_t nbytes);
DT_API dt_status  dt_copy(dt_tensor *dst, dt_tensor *src); /* in place; broadcasts, casts, copies between devices */
DT_API dt_status  dt_fill(dt_tensor *t, double value);     /* in place */
DT_API dt_status  dt_add_to(dt_tensor *dst, dt_tensor *src, double scale); /* in place: dst += scale*src */
DT_API double     dt_item(dt_tensor *t);                   /* the value of a one-element tensor; NaN on error */
DT_API dt_tensor *dt_cast(dt_tensor *t, dt_dtype d);       /* t itself if it already has that dtype */
/* Copies t to another device (NULL: the default one): t itself if it is already there. The gradient is copied back. The copy
   is queued like a kernel; the host waits only for a copy that goes through its memory (between backends, or if the backend
   has no peer copies). Work that is queued later on either device runs after the copy: on an asynchronous device, move a
   tensor before you queue the branch that does not need it. */
DT_API dt_tensor *dt_to(dt_tensor *t, dt_device *dev);
DT_API dt_tensor *dt_clone(dt_tensor *t);
DT_API dt_tensor *dt_contiguous(dt_tensor *t); /* t itself if it is already contiguous */

/* Views share the memory of their base. */
DT_API dt_tensor *dt_reshape(dt_tensor *t, dt_shape shape); /* one dimension may be -1; copies if a view is impossible */
DT_API dt_tensor *dt_flatten(dt_tensor *t);                 /* (n, ...) -> (n, rest); 2 dimensions or more */
DT_API dt_tensor *dt_permute(dt_tensor *t, dt_shape order);
DT_API dt_tensor *dt_transpose(dt_tensor *t, int a, int b);
DT_API dt_tensor *dt_narrow(dt_tensor *t, int dim, int64_t start, int64_t length);
DT_API dt_tensor *dt_select(dt_tensor *t, int dim, int64_t index);
DT_API dt_tensor *dt_expand(dt_tensor *t, dt_shape shape); /* -1 keeps a dimension */
DT_API dt_tensor *dt_squeeze(dt_tensor *t, int dim);
DT_API dt_tensor *dt_unsqueeze(dt_tensor *t, int dim);

/* ---------------------------------------------------------------------------------------------------- >>random
   MT19937, bit-identical to PyTorch's CPU generator for the same seed. */
struct dt_rng {
    uint32_t state[624];
    int32_t  next;            /* index of the next word; 624: refill the state first */
    int32_t  has_normal;      /* normal holds the second value of a pair (calls with n < 16) */
    double   normal;
    uint64_t seed;
    uint64_t philox_offset;   /* dropout: Philox counters used so far, 4 random numbers each */
};
DT_API void     dt_manual_seed(uint64_t seed); /* seeds the thread's generator; without this call its seed is 0 */
DT_API dt_rng  *dt_rng_default(void);   /* the thread's generator: copy the struct to save, assign it to restore */
/* If r is NULL, the thread's generator is used. */
DT_API void     dt_rng_seed(dt_rng *r, uint64_t seed);
DT_API uint32_t dt_rng_u32(dt_rng *r);
DT_API uint64_t dt_rng_u64(dt_rng *r);                            /* (first u32 << 32) | second u32 */
DT_API void     dt_rng_uniform(dt_rng *r, float *out, int64_t n, double lo, double hi);
DT_API void     dt_rng_normal(dt_rng *r, float *out, int64_t n, double mean, double std);
DT_API void     dt_rng_randperm(dt_rng *r, int64_t *out, int64_t n);
DT_API void     dt_philox(uint64_t seed, uint64_t counter, uint32_t out[4]); /* Philox4x32-10 */

/* ---------------------------------------------------------------------------------------------------- >>autograd */
DT_API dt_tensor *dt_set_requires_grad(dt_tensor *t); /* keeps t, makes it a leaf that receives a gradient; returns t */
DT_API bool       dt_requires_grad(const dt_tensor *t); /* does it, or what it was computed from, get a gradient? */
DT_API dt_tensor *dt_grad(dt_tensor *t);        /* the gradient; NULL without an error if it does not exist yet */
DT_API void       dt_retain_grad(dt_tensor *t); /* keeps the gradient of a tensor that is not a leaf */
DT_API void       dt_zero_grad(dt_tensor *t);   /* clears the gradient: the next backward overwrites it */
DT_API dt_tensor *dt_detach(dt_tensor *t); /* the same values; the backward ends here */
DT_API void       dt_no_grad_begin(void); /* calls may nest */
DT_API void       dt_no_grad_end(void); /* recording goes on */
DT_API bool       dt_is_grad_enabled(void); /* is the thread recording? */

/* Autocast: the ops of this thread choose the dtype in which they compute. Inputs of matmul, linear, conv2d and attention
   are cast to 'dtype' (a parameter is cast once per step and the result is cached). Inputs of pow, exp, log, expm1, log1p,
   tan, rsqrt, reciprocal, rdiv_scalar, softplus, gelu, softmax, sum, var, layer and rms norm and of the losses are cast to
   f32. All other ops use the dtypes of their inputs and promote to the widest. DT_AUTOCAST_LOSS: only the losses cast, to f32. The mixed precision of
   dt_nn.h sets this. */
typedef enum dt_autocast_mode { DT_AUTOCAST_OFF = 0, DT_AUTOCAST_OPS, DT_AUTOCAST_LOSS } dt_autocast_mode;
typedef struct dt_autocast {
    dt_autocast_mode mode;
    dt_dtype         dtype; /* DT_F16 or DT_BF16 */
} dt_autocast;
DT_API dt_autocast dt_autocast_set(dt_autocast a); /* returns the previous setting */
DT_API dt_autocast dt_autocast_get(void);

typedef struct dt_backward_opts {
    int        dt__first DT_D;
    dt_tensor *grad DT_D;  /* gradient of the root; default 1, which needs a root of one element */
    bool       retain_graph DT_D; /* keep the tape for another backward through the same tensors */
} dt_backward_opts;
/* adds gradients to all leaves that root was computed from */
DT_API dt_status dt_backward_with(dt_tensor *root, dt_backward_opts o DT_OPT0(dt_backward_opts));
#ifdef DT__LIT
#define dt_backward(...) dt_backward_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_backward_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_backward dt_backward_with
#endif

/* Callbacks of a backward, on the thread that runs it: begin; then, in backward order, ready(p) for each parameter as soon
   as this backward has finished its gradient; then end. In begin, dt_grad_pending(p) is true for each parameter that this
   backward will reach. */
typedef struct dt_grad_hooks {
    void (*begin)(void *user);
    void (*ready)(void *user, dt_tensor *param);
    void (*end)(void *user, dt_status status);
    void *user;
} dt_grad_hooks;
DT_API int  dt_grad_hooks_add(const dt_grad_hooks *h); /* for backwards of this thread; returns an id, or a negative status */
DT_API void dt_grad_hooks_remove(int id);
DT_API bool dt_grad_pending(const dt_tensor *param);
/* In a hook: the backward ends after the present op, without an error, because its result is not needed any more. Gradients
   that it has computed so far are incomplete: clear them (dt_zero_grad). Outside a backward it does nothing. */
DT_API void dt_backward_stop(void);

/* An op of the program: a forward of calls of this header and of own code, with an own backward. Both are called on the
   thread that uses the op. In forward the tape is off, and the tensors that it makes belong to the step, as always. The
   tensors that backward makes are freed when it returns (dt_keep keeps one). A callback returns DT_OK, or a status after
   dt_fail; a pending error counts as a failure, too. docs/extending.md has a worked example. */
typedef struct dt_fn_call dt_fn_call; /* one use of the op */
typedef struct dt_function {
    const char *name; /* in messages and in the trace */
    dt_status (*forward)(dt_fn_call *c);
    dt_status (*backward)(dt_fn_call *c); /* NULL: the op has no gradient */
} dt_function;
enum { DT_FN_MAX_IN = 16, DT_FN_MAX_OUT = 8, DT_FN_MAX_SAVED = 6 };
/* Runs the op. in[] may contain NULL. opts is copied (NULL: none). f must exist as long as the tape. out[] receives nout
   tensors of the step, or NULLs after an error. */
DT_API dt_status  dt_function_run(const dt_function *f, dt_tensor *const *in, int nin, const void *opts, size_t opts_nbytes,
                                  dt_tensor **out, int nout);
DT_API dt_tensor *dt_function_apply(const dt_function *f, dt_tensor *const *in, int nin, const void *opts,
                                    size_t opts_nbytes); /* of one output, which it returns */
/* In both callbacks. In backward an input is there for its shape and dtype: save it to use its values, which may have
   changed since. */
DT_API dt_tensor  *dt_fn_in(const dt_fn_call *c, int i);
DT_API const void *dt_fn_opts(const dt_fn_call *c);
/* In forward. A tensor that is changed in place after it was saved makes the backward fail. */
DT_API void        dt_fn_out(dt_fn_call *c, int i, dt_tensor *t);
DT_API void        dt_fn_save(dt_fn_call *c, int slot, dt_tensor *t);
/* In backward: the gradient of output i (NULL if no loss depends on it), whether input i needs one, and giving it: g has the
   shape of the input and any float dtype. */
DT_API dt_tensor  *dt_fn_saved(const dt_fn_call *c, int slot);
DT_API dt_tensor  *dt_fn_grad(const dt_fn_call *c, int i);
DT_API bool        dt_fn_needs_grad(const dt_fn_call *c, int i);
DT_API void        dt_fn_give(dt_fn_call *c, int i, dt_tensor *g);

/* Packs parameters into one block: the values and gradients of all n parameters become views into two contiguous tensors,
   in the given order. All must have the same dtype and device. The block does not own the parameters: free them first,
   then the block. Each parameter begins at a multiple of 64 bytes. The padding between parameters is zero in value and in
   grad, so an update of the whole block must map value 0 with gradient 0 to 0. Because of the padding, dt_numel(value)
   may be larger than the sum over the parameters. */
typedef struct dt_block {
    dt_tensor     *value;  /* 1-d */
    dt_tensor     *grad;   /* 1-d; complete after a backward: zero for parameters that it did not reach */
    const int64_t *offset; /* offset[i]: where parameter i begins in value and grad, in elements; owned by the block */
    int            n;
    void          *dt__group;
} dt_block;
DT_API dt_status dt_pack(dt_block *b, dt_tensor **params, int n);
DT_API void      dt_block_zero_grad(dt_block *b); /* dt_zero_grad of every parameter of the block */
DT_API void      dt_block_free(dt_block *b);

/* ---------------------------------------------------------------------------------------------------- >>ops
   Names, broadcasting, type promotion and gradients are those of PyTorch. Float ops take f32, f16 and bf16 and compute in
   f32. */
DT_API dt_tensor *dt_add(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_sub(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_mul(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_div(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_pow(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_maximum(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_minimum(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_eq(dt_tensor *a, dt_tensor *b); /* comparisons return u8, 0 or 1 */
DT_API dt_tensor *dt_ne(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_lt(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_le(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_gt(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_ge(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_add_scalar(dt_tensor *a, double s);
DT_API dt_tensor *dt_sub_scalar(dt_tensor *a, double s);
DT_API dt_tensor *dt_mul_scalar(dt_tensor *a, double s);
DT_API dt_tensor *dt_div_scalar(dt_tensor *a, double s);
DT_API dt_tensor *dt_rsub_scalar(dt_tensor *a, double s); /* s - a */
DT_API dt_tensor *dt_rdiv_scalar(dt_tensor *a, double s); /* s / a */
DT_API dt_tensor *dt_pow_scalar(dt_tensor *a, double s);
DT_API dt_tensor *dt_maximum_scalar(dt_tensor *a, double s);
DT_API dt_tensor *dt_minimum_scalar(dt_tensor *a, double s);
DT_API dt_tensor *dt_neg(dt_tensor *a);
DT_API dt_tensor *dt_abs(dt_tensor *a);
DT_API dt_tensor *dt_sqrt(dt_tensor *a);
DT_API dt_tensor *dt_exp(dt_tensor *a);
DT_API dt_tensor *dt_log(dt_tensor *a);
DT_API dt_tensor *dt_rsqrt(dt_tensor *a);      /* 1/sqrt(a) */
DT_API dt_tensor *dt_reciprocal(dt_tensor *a); /* 1/a */
DT_API dt_tensor *dt_log1p(dt_tensor *a);      /* log(1 + a) */
DT_API dt_tensor *dt_expm1(dt_tensor *a);      /* exp(a) - 1 */
DT_API dt_tensor *dt_sin(dt_tensor *a);
DT_API dt_tensor *dt_cos(dt_tensor *a);
DT_API dt_tensor *dt_tan(dt_tensor *a);
DT_API dt_tensor *dt_atan2(dt_tensor *y, dt_tensor *x); /* the angle of the point (x, y), between -pi and pi */
DT_API dt_tensor *dt_erf(dt_tensor *a);
/* sign, floor, ceil and round also take integers; their gradient is 0. round: halves to even. */
DT_API dt_tensor *dt_sign(dt_tensor *a);
DT_API dt_tensor *dt_floor(dt_tensor *a);
DT_API dt_tensor *dt_ceil(dt_tensor *a);
DT_API dt_tensor *dt_round(dt_tensor *a);
DT_API dt_tensor *dt_clamp(dt_tensor *a, double lo, double hi);
DT_API dt_tensor *dt_relu(dt_tensor *a);
DT_API dt_tensor *dt_leaky_relu(dt_tensor *a, double slope);
DT_API dt_tensor *dt_gelu(dt_tensor *a);      /* exact, with erf */
DT_API dt_tensor *dt_gelu_tanh(dt_tensor *a); /* tanh approximation */
DT_API dt_tensor *dt_elu(dt_tensor *a, double alpha); /* PyTorch's default alpha is 1 */
DT_API dt_tensor *dt_selu(dt_tensor *a);
/* weight: one element, or one for each channel (dimension 1 of a; dimension 0 if a is 1-d) */
DT_API dt_tensor *dt_prelu(dt_tensor *a, dt_tensor *weight);
DT_API dt_tensor *dt_hardswish(dt_tensor *a);
DT_API dt_tensor *dt_mish(dt_tensor *a);
DT_API dt_tensor *dt_logsigmoid(dt_tensor *a);
DT_API dt_tensor *dt_silu(dt_tensor *a);
DT_API dt_tensor *dt_sigmoid(dt_tensor *a);
DT_API dt_tensor *dt_tanh(dt_tensor *a);
DT_API dt_tensor *dt_softplus(dt_tensor *a, double beta); /* linear above beta*x = 20, as in PyTorch */
DT_API dt_tensor *dt_where(dt_tensor *cond, dt_tensor *a, dt_tensor *b); /* cond u8, i32 or i64 */

typedef struct dt_reduce_opts {
    int      dt__first DT_D;
    uint32_t dims DT_D;    /* DT_DIM(i) | DT_DIM(j) ...; default: all dimensions */
    bool     keepdim DT_D; /* the reduced dimensions stay, with size 1 */
    bool     biased DT_D;  /* dt_var, dt_std: divide by n, not by n-1 */
    int      correction DT_D; /* dt_var, dt_std: divide by n - correction; default 1; DT_ZERO as biased */
} dt_reduce_opts;
/* The bit of dimension i in dims; i may be negative: DT_DIM(0) | DT_DIM(-1). */
#define DT_DIM(i) (DT__DIMS | (uint32_t)1 << ((i) < 0 ? 16 - (i) : (i)))
#define DT__DIMS ((uint32_t)1 << 31) /* marks a set of dimensions: a plain number is refused */
DT_API dt_tensor *dt_sum_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
DT_API dt_tensor *dt_mean_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
/* amax, amin: equal maxima or minima share the gradient */
DT_API dt_tensor *dt_amax_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
DT_API dt_tensor *dt_amin_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
DT_API dt_tensor *dt_var_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
DT_API dt_tensor *dt_std_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
DT_API dt_tensor *dt_prod_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts)); /* integers: in i64, modulo 2^64 */
DT_API dt_tensor *dt_logsumexp_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts)); /* log(sum exp(a)) */
/* over one dimension or over all; returns i64 */
DT_API dt_tensor *dt_argmax_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
DT_API dt_tensor *dt_argmin_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
#ifdef DT__LIT
#define dt_sum(...) dt_sum_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_mean(...) dt_mean_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_amax(...) dt_amax_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_amin(...) dt_amin_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_var(...) dt_var_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_std(...) dt_std_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_prod(...) dt_prod_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_logsumexp(...) dt_logsumexp_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_argmax(...) dt_argmax_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_argmin(...) dt_argmin_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_sum dt_sum_with
#define dt_mean dt_mean_with
#define dt_amax dt_amax_with
#define dt_amin dt_amin_with
#define dt_var dt_var_with
#define dt_std dt_std_with
#define dt_prod dt_prod_with
#define dt_logsumexp dt_logsumexp_with
#define dt_argmax dt_argmax_with
#define dt_argmin dt_argmin_with
#endif

/* torch.matmul: 1-d, 2-d, batched, broadcast; transposes are views */
DT_API dt_tensor *dt_matmul(dt_tensor *a, dt_tensor *b);

/* Activations that can be fused into the op before them. */
typedef enum dt_act { DT_ACT_NONE = 0, DT_ACT_RELU, DT_ACT_SIGMOID, DT_ACT_TANH } dt_act;

typedef struct dt_op_linear_opts {
    int    dt__first DT_D;
    dt_act act DT_D;
} dt_op_linear_opts;
/* x (..., in), w (out, in), b (out) or NULL -> (..., out) */
DT_API dt_tensor *dt_op_linear_with(dt_tensor *x, dt_tensor *w, dt_tensor *b, dt_op_linear_opts o DT_OPT0(dt_op_linear_opts));

DT_API dt_tensor *dt_softmax(dt_tensor *a, int dim); /* exp(a) over its sum along dim */
DT_API dt_tensor *dt_log_softmax(dt_tensor *a, int dim); /* the logarithm of it, computed without overflow */

typedef struct dt_op_conv2d_opts {
    int    dt__first DT_D;
    int    stride DT_D, pad DT_D, dilation DT_D; /* defaults 1, 0, 1 */
    int    stride_w DT_D, pad_w DT_D, dilation_w DT_D; /* default: as for the height; pad_w = DT_ZERO: no padding */
    int    groups DT_D; /* default 1 */
    dt_act act DT_D;
} dt_op_conv2d_opts;
#define DT_ZERO (-0x7fff0000) /* the value zero for options where 0 selects the default */
/* x (n, c, h, w), w (out, c/groups, kh, kw), b (out) or NULL */
DT_API dt_tensor *dt_op_conv2d_with(dt_tensor *x, dt_tensor *w, dt_tensor *b,
                                    dt_op_conv2d_opts o DT_OPT0(dt_op_conv2d_opts));

typedef struct dt_op_conv_transpose2d_opts {
    int dt__first DT_D;
    int stride DT_D, pad DT_D, dilation DT_D; /* defaults 1, 0, 1 */
    int stride_w DT_D, pad_w DT_D, dilation_w DT_D; /* default: as for the height; pad_w = DT_ZERO: no padding */
    int output_pad DT_D, output_pad_w DT_D; /* rows and columns more at the end; 0 */
    int groups DT_D; /* default 1 */
} dt_op_conv_transpose2d_opts;
/* x (n, c, h, w), w (c, out/groups, kh, kw), b (out) or NULL */
DT_API dt_tensor *dt_op_conv_transpose2d_with(dt_tensor *x, dt_tensor *w, dt_tensor *b,
                                              dt_op_conv_transpose2d_opts o DT_OPT0(dt_op_conv_transpose2d_opts));

typedef struct dt_pool_opts {
    int  dt__first DT_D;
    int  kernel DT_D, stride DT_D, pad DT_D;       /* kernel required; stride default kernel; pad 0 */
    int  kernel_w DT_D, stride_w DT_D, pad_w DT_D; /* default: as for the height */
    bool ceil_mode DT_D;
    bool exclude_pad DT_D; /* average pooling: padding does not count in the divisor (count_include_pad = False) */
} dt_pool_opts;
/* x (n, c, h, w): the largest value of each window */
DT_API dt_tensor *dt_maxpool2d_with(dt_tensor *x, dt_pool_opts o DT_OPT0(dt_pool_opts));
DT_API dt_tensor *dt_avgpool2d_with(dt_tensor *x, dt_pool_opts o DT_OPT0(dt_pool_opts)); /* the mean of each window */
/* windows such that the result is (n, c, out_h, out_w) */
DT_API dt_tensor *dt_adaptive_avgpool2d(dt_tensor *x, int64_t out_h, int64_t out_w);

typedef struct dt_op_batch_norm_opts {
    int        dt__first DT_D;
    bool       eval DT_D;     /* use the running statistics; default: use those of the batch and update the running ones */
    double     eps DT_D;      /* default 1e-5; DT_ZERO: 0 */
    double     momentum DT_D; /* default 0.1: running = 0.9 running + 0.1 batch, with the unbiased variance; DT_ZERO: 0 */
    dt_act     act DT_D;      /* fused activation: DT_ACT_NONE or DT_ACT_RELU */
    dt_tensor *add DT_D;      /* fused residual: the result is act(norm(x) + add) */
} dt_op_batch_norm_opts;
/* x (n, c), (n, c, l), (n, c, h, w) or (n, c, d, h, w); weight, bias, running_mean, running_var (c), each may be NULL */
DT_API dt_tensor *dt_op_batch_norm_with(dt_tensor *x, dt_tensor *weight, dt_tensor *bias, dt_tensor *running_mean,
                                        dt_tensor *running_var, dt_op_batch_norm_opts o DT_OPT0(dt_op_batch_norm_opts));
typedef struct dt_op_norm_opts {
    int    dt__first DT_D;
    int    normalized_dims DT_D; /* how many of the last dimensions are normalised together; default 1 */
    double eps DT_D;   /* default 1e-5 (layer), 1.1920929e-7 (rms); DT_ZERO: 0 */
} dt_op_norm_opts;
DT_API dt_tensor *dt_op_layer_norm_with(dt_tensor *x, dt_tensor *weight, dt_tensor *bias,
                                        dt_op_norm_opts o DT_OPT0(dt_op_norm_opts));
DT_API dt_tensor *dt_op_rms_norm_with(dt_tensor *x, dt_tensor *weight, dt_op_norm_opts o DT_OPT0(dt_op_norm_opts));

DT_API dt_tensor *dt_op_embedding(dt_tensor *index, dt_tensor *weight); /* index i32 or i64, any shape; weight (v, d) */
DT_API dt_tensor *dt_gather(dt_tensor *a, int dim, dt_tensor *index);   /* torch.gather; index i32 or i64 */
DT_API dt_tensor *dt_cat(dt_tensor **t, int n, int dim); /* joins along a dimension that exists */
DT_API dt_tensor *dt_stack(dt_tensor **t, int n, int dim); /* joins along a new dimension */
/* Makes views of 'size' elements along dim (the last may be smaller); returns their number, or a negative status. */
DT_API int        dt_split(dt_tensor *a, int64_t size, int dim, dt_tensor **out, int max);
/* pads: before and after for the last dimension, then for the one before it ... (torch.nn.functional.pad, constant).
   Negative ones cut. */
DT_API dt_tensor *dt_pad(dt_tensor *a, const int64_t *pads, int npads, double value);

typedef struct dt_op_dropout_opts {
    int     dt__first DT_D;
    bool    eval DT_D; /* return x unchanged */
    dt_rng *rng DT_D;  /* default: the thread's generator */
} dt_op_dropout_opts;
/* zeroes each element with probability p, scales the others by 1 / (1 - p) */
DT_API dt_tensor *dt_op_dropout_with(dt_tensor *x, double p, dt_op_dropout_opts o DT_OPT0(dt_op_dropout_opts));

typedef enum dt_reduction { DT_MEAN = 0, DT_SUM, DT_NONE, DT_BATCHMEAN } dt_reduction; /* DT_BATCHMEAN: kl_div only */
typedef struct dt_loss_opts {
    int          dt__first DT_D;
    dt_reduction reduction DT_D;
    double       label_smoothing DT_D; /* cross entropy */
    int64_t      ignore_index DT_D;    /* cross entropy, nll: default -100; DT_ZERO for class 0 */
    dt_tensor   *weight DT_D;          /* cross entropy, nll: (classes) */
    double       beta DT_D;            /* smooth l1: default 1 */
    bool         log_target DT_D;      /* kl_div: y holds logarithms, too */
} dt_loss_opts;
/* logits (n, c) or (n, c, ...); target (n) or (n, ...), i64, i32 or u8. Cross entropy: or floats in the shape of logits, the
   probabilities of the classes. */
DT_API dt_tensor *dt_cross_entropy_with(dt_tensor *logits, dt_tensor *target, dt_loss_opts o DT_OPT0(dt_loss_opts));
DT_API dt_tensor *dt_nll_loss_with(dt_tensor *logp, dt_tensor *target, dt_loss_opts o DT_OPT0(dt_loss_opts));
DT_API dt_tensor *dt_mse_loss_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o DT_OPT0(dt_loss_opts));
DT_API dt_tensor *dt_l1_loss_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o DT_OPT0(dt_loss_opts));
DT_API dt_tensor *dt_smooth_l1_loss_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o DT_OPT0(dt_loss_opts));
DT_API dt_tensor *dt_bce_with_logits_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o DT_OPT0(dt_loss_opts));
/* y (log(y) - x), x holds log-probabilities. The mean is over all elements, as in PyTorch; DT_BATCHMEAN divides the sum by
   the size of dimension 0, which is the mathematical value. */
DT_API dt_tensor *dt_kl_div_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o DT_OPT0(dt_loss_opts));

typedef struct dt_attention_opts {
    int        dt__first DT_D;
    bool       causal DT_D;   /* query i sees the keys up to i + .offset */
    double     scale DT_D;    /* default 1/sqrt(d); DT_ZERO: 0 */
    int64_t    offset DT_D;   /* the position of query 0 among the keys, for .causal and .window: keys of a cache come before */
    int64_t    window DT_D;   /* with .causal: a query sees itself and the .window - 1 keys before it; default: all */
    dt_tensor *mask DT_D;     /* broadcasts to (b, h, t, s). u8: 0 hides the key; a float: is added to the scores (no gradient) */
    dt_tensor *lengths DT_D;  /* (b), i64: how many keys each sequence has; the others are hidden */
} dt_attention_opts;
/* q (b, h, t, d), k (b, hk, s, d), v (b, hk, s, dv) -> (b, h, t, dv); softmax(scale q k^T + mask) v; the t x s matrix is never
   stored. hk divides h: head i of q uses head i/(h/hk) of k and v (grouped queries, enable_gqa). A query that sees no key gives 0. */
DT_API dt_tensor *dt_attention_with(dt_tensor *q, dt_tensor *k, dt_tensor *v,
                                    dt_attention_opts o DT_OPT0(dt_attention_opts));
#ifdef DT__LIT
#define dt_op_linear(x, w, ...) \
    dt_op_linear_with(x, w, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_op_linear_opts, __VA_ARGS__, ))
#define dt_op_conv2d(x, w, ...) \
    dt_op_conv2d_with(x, w, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_op_conv2d_opts, __VA_ARGS__, ))
#define dt_op_conv_transpose2d(x, w, ...) \
    dt_op_conv_transpose2d_with(x, w, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_op_conv_transpose2d_opts, __VA_ARGS__, ))
#define dt_maxpool2d(...) dt_maxpool2d_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_pool_opts, __VA_ARGS__, ))
#define dt_avgpool2d(...) dt_avgpool2d_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_pool_opts, __VA_ARGS__, ))
#define dt_op_batch_norm(x, weight, bias, mean, ...) \
    dt_op_batch_norm_with(x, weight, bias, mean, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_op_batch_norm_opts, __VA_ARGS__, ))
#define dt_op_layer_norm(x, weight, ...) \
    dt_op_layer_norm_with(x, weight, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_op_norm_opts, __VA_ARGS__, ))
#define dt_op_rms_norm(x, ...) \
    dt_op_rms_norm_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_op_norm_opts, __VA_ARGS__, ))
#define dt_op_dropout(x, ...) dt_op_dropout_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_op_dropout_opts, __VA_ARGS__, ))
#define dt_cross_entropy(x, ...) \
    dt_cross_entropy_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loss_opts, __VA_ARGS__, ))
#define dt_nll_loss(x, ...) dt_nll_loss_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loss_opts, __VA_ARGS__, ))
#define dt_mse_loss(x, ...) dt_mse_loss_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loss_opts, __VA_ARGS__, ))
#define dt_l1_loss(x, ...) dt_l1_loss_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loss_opts, __VA_ARGS__, ))
#define dt_smooth_l1_loss(x, ...) \
    dt_smooth_l1_loss_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loss_opts, __VA_ARGS__, ))
#define dt_bce_with_logits(x, ...) \
    dt_bce_with_logits_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loss_opts, __VA_ARGS__, ))
#define dt_kl_div(x, ...) dt_kl_div_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loss_opts, __VA_ARGS__, ))
#define dt_attention(q, k, ...) \
    dt_attention_with(q, k, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_attention_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_op_linear dt_op_linear_with
#define dt_op_conv2d dt_op_conv2d_with
#define dt_op_conv_transpose2d dt_op_conv_transpose2d_with
#define dt_maxpool2d dt_maxpool2d_with
#define dt_avgpool2d dt_avgpool2d_with
#define dt_op_batch_norm dt_op_batch_norm_with
#define dt_op_layer_norm dt_op_layer_norm_with
#define dt_op_rms_norm dt_op_rms_norm_with
#define dt_op_dropout dt_op_dropout_with
#define dt_cross_entropy dt_cross_entropy_with
#define dt_nll_loss dt_nll_loss_with
#define dt_mse_loss dt_mse_loss_with
#define dt_l1_loss dt_l1_loss_with
#define dt_smooth_l1_loss dt_smooth_l1_loss_with
#define dt_bce_with_logits dt_bce_with_logits_with
#define dt_kl_div dt_kl_div_with
#define dt_attention dt_attention_with
#endif

/* ---------------------------------------------------------------------------------------------------- >>devices */
DT_API dt_device  *dt_cpu(void); /* the CPU; it always exists */
DT_API dt_device  *dt_default_device(void);          /* of the thread; initially dt_cpu() */
DT_API void        dt_set_default_device(dt_device *dev); /* NULL: dt_cpu() */
DT_API const char *dt_device_name(const dt_device *dev); /* "cpu", "cuda:0" ... */
/* The bytes of one device (NULL: the default one): live, peak and cached; the other numbers are 0. */
DT_API dt_memory_stats dt_device_stats(dt_device *dev);
/* Waits until the device has finished all queued work; NULL: the default device. */
DT_API dt_status   dt_synchronize(dt_device *dev);
/* Kernels that the device lacks run on the CPU; dt_stats counts them. */
DT_API void        dt_device_allow_fallback(dt_device *dev, bool yes);
DT_API void        dt_set_num_threads(int n);            /* CPU threads; 0: cores of the affinity mask / local ranks */
DT_API int         dt_get_num_threads(void);
DT_API const char *dt_cpu_isa(void);                 /* "avx512", "avx2", "portable": in use (DT_CPU_ISA selects one) */

/* ---------------------------------------------------------------------------------------------------- >>trace
   A timeline of the run for ui.perfetto.dev or chrome://tracing. The environment variable DT_TRACE=file.json (%p in the
   name is the process id, %r the rank) or dt_trace_start enables it. Ranks that a launcher or dt_spawn started write one
   file each, file.rank0.json ...; "jq -s add file.rank*.json" joins them. Ranks on one machine share a clock. Each thread
   that computes has three tracks: steps (from the first work to dt_end; inside them forward, backward, update), layers
   (dt_trace_push and pop), ops (every kernel call with shapes and bytes; in a backward, inside the span of its op). On an
   asynchronous device the span of an op is the time to queue it, not to run it. Without a trace the cost is one branch
   per kernel call.

   The file is a JSON array of events. It is complete after dt_trace_stop, exit() and quick_exit(). If the process is
   killed, the file lacks the closing bracket, which the viewers accept, and for each thread the last 250 ms or the last
   64 KiB. A forked child does not write to the file of its parent: with DT_TRACE=f.json it writes f.PID.json; after
   dt_trace_start it has no trace. */
DT_API dt_status dt_trace_start(const char *path); /* overwrites the file; fails while another trace runs */
/* Writes the events of all threads and closes the file. Works with an error pending. Without a trace it does nothing. */
DT_API dt_status dt_trace_stop(void);
DT_API bool      dt_trace_is_on(void);
/* A span on the layers track of the thread; spans nest. The name is copied (up to 63 bytes). */
DT_API void      dt_trace_push(const char *name);
DT_API void      dt_trace_pop(void);
/* A span on the track with this name, which is created if needed (names up to 63 bytes, at most 64 tracks). t0 and t1 are
   values of dt_trace_now. Spans of one track must nest or follow each other. */
DT_API void      dt_trace_span(const char *track, const char *name, uint64_t t0, uint64_t t1);
DT_API uint64_t  dt_trace_now(void);               /* ns, CLOCK_MONOTONIC; works without a trace */
DT_API void      dt_trace_counter(const char *name, double value); /* one point of a curve: loss, loss scale */

/* ---------------------------------------------------------------------------------------------------- >>backend
   The interface of a device. A kernel gets one dt_call: views by value (device addresses, never host pointers), scalars
   by value, a stream. It may run asynchronously, in stream order. Only the backend dereferences the address of a view. */
enum {
    DT_LAYOUT_PLAIN = 0, /* element (i0, i1, ..) at sum(i*stride) */
    DT_LAYOUT_NHWC  = 1  /* a 4-d image (n, c, h, w) stored as (n, h, w, c), dense; with matching strides in the view */
};
typedef struct dt_view {
    void   *data; /* address of element 0 */
    int32_t dtype, layout;
    int32_t ndim; /* -1: the operand is absent */
    int32_t dt__pad;
    int64_t shape[DT_MAX_DIMS];
    int64_t stride[DT_MAX_DIMS]; /* in elements; 0 where broadcast */
} dt_view;

/* Elementwise functions, one row each. The enums, the names, the gradients' needs and the tables and switches of every
   backend are generated from these two lists: a new function is a row here and one function in each backend (for unary
   rows a second one, the derivative), and nothing compiles until they are there. Columns:
     type       FLOATS; INTS: a backend has it for integers too; COMPARE: as INTS, and the result is u8
     gradient   NEEDS_...: what it is computed from: x, y, and for binary rows the result z; NO_GRAD: there is none
     cost       of an element: CHEAP: less than moving it through memory; SLOW: more; POWER: several times SLOW */
enum { DT_COST_CHEAP, DT_COST_SLOW, DT_COST_POWER };

/* unary: y = f(x; a, b). Two costs: of the function, of its derivative. */
#define DT_UNARY_FNS(X)                                                                                            \
    /* name       type    gradient cost   cost of the derivative */                                                \
    X(AFFINE,     INTS,   NEEDS_X, CHEAP, CHEAP, "a*x + b")                                                        \
    X(RECIP,      FLOATS, NEEDS_Y, SLOW,  CHEAP, "a/x")                                                            \
    X(POW,        FLOATS, NEEDS_X, POWER, POWER, "x^a")                                                            \
    X(ABS,        INTS,   NEEDS_X, CHEAP, CHEAP, "|x|")                                                            \
    X(SQRT,       FLOATS, NEEDS_Y, SLOW,  CHEAP, "sqrt(x)")                                                        \
    X(EXP,        FLOATS, NEEDS_Y, SLOW,  CHEAP, "exp(x)")                                                         \
    X(LOG,        FLOATS, NEEDS_X, SLOW,  CHEAP, "log(x)")                                                         \
    X(CLAMP,      INTS,   NEEDS_X, CHEAP, CHEAP, "min(max(x, a), b)")                                              \
    X(RELU,       FLOATS, NEEDS_Y, CHEAP, CHEAP, "max(x, 0)")                                                      \
    X(LEAKY_RELU, FLOATS, NEEDS_X, CHEAP, CHEAP, "x > 0 ? x : a*x")                                                \
    X(GELU,       FLOATS, NEEDS_X, SLOW,  SLOW,  "x/2 (1 + erf(x/sqrt 2))")                                        \
    X(GELU_TANH,  FLOATS, NEEDS_X, SLOW,  SLOW,  "x/2 (1 + tanh(sqrt(2/pi)(x + .044715 x^3)))")                    \
    X(SILU,       FLOATS, NEEDS_X, SLOW,  SLOW,  "x/(1 + exp(-x))")                                                \
    X(RSQRT,      FLOATS, NEEDS_Y, SLOW,  CHEAP, "1/sqrt(x)")                                                      \
    X(SIN,        FLOATS, NEEDS_X, POWER, POWER, "sin(x)")                                                         \
    X(COS,        FLOATS, NEEDS_X, POWER, POWER, "cos(x)")                                                         \
    X(TAN,        FLOATS, NEEDS_Y, POWER, CHEAP, "tan(x)")                                                         \
    X(ERF,        FLOATS, NEEDS_X, SLOW,  SLOW,  "erf(x)")                                                         \
    X(LOG1P,      FLOATS, NEEDS_X, SLOW,  SLOW,  "log(1 + x)")                                                     \
    X(EXPM1,      FLOATS, NEEDS_Y, SLOW,  CHEAP, "exp(x) - 1")                                                     \
    X(SIGN,       INTS,   NEEDS_Y, CHEAP, CHEAP, "-1, 0 or 1; 0 for NaN")                                          \
    X(FLOOR,      INTS,   NEEDS_Y, CHEAP, CHEAP, "the largest integer <= x")                                       \
    X(CEIL,       INTS,   NEEDS_Y, CHEAP, CHEAP, "the smallest integer >= x")                                      \
    X(ROUND,      INTS,   NEEDS_Y, CHEAP, CHEAP, "the nearest integer; halves to even")                            \
    X(ELU,        FLOATS, NEEDS_X, SLOW,  SLOW,  "x > 0 ? b*x : a*b*(exp(x) - 1)")                                 \
    X(HARDSWISH,  FLOATS, NEEDS_X, CHEAP, CHEAP, "x min(max(x + 3, 0), 6)/6")                                      \
    X(MISH,       FLOATS, NEEDS_X, SLOW,  SLOW,  "x tanh(log(1 + exp(x)))")                                        \
    X(LOGSIGMOID, FLOATS, NEEDS_X, SLOW,  SLOW,  "-log(1 + exp(-x))")                                              \
    X(SIGMOID,    FLOATS, NEEDS_Y, SLOW,  CHEAP, "1/(1 + exp(-x))")                                                \
    X(TANH,       FLOATS, NEEDS_Y, SLOW,  CHEAP, "tanh(x)")                                                        \
    X(SOFTPLUS,   FLOATS, NEEDS_X, SLOW,  SLOW,  "log(1 + exp(a*x))/a; x where a*x > 20")
/* binary: z = a * f(x, y; b). A row with a gradient has a function dt__bwd_NAME in section >>elementwise. The _DX and
   _DY rows are derivatives by x and y, for these functions. */
#define DT_BINARY_FNS(X)                                                                                           \
    /* name         type     gradient       cost */                                                                \
    X(ADD,          INTS,    NEEDS_NOTHING, CHEAP, "x + b*y")                                                      \
    X(MUL,          INTS,    NEEDS_XY,      CHEAP, "x*y")                                                          \
    X(DIV,          FLOATS,  NEEDS_XYZ,     CHEAP, "x/y")                                                          \
    X(POW,          FLOATS,  NEEDS_XY,      POWER, "x^y")                                                          \
    X(POW_DX,       FLOATS,  NO_GRAD,       POWER, "y x^(y-1); 0 where y = 0")                                     \
    X(POW_DY,       FLOATS,  NO_GRAD,       POWER, "x^y log x; 0 where x = 0 and y >= 0")                          \
    X(MAX,          INTS,    NEEDS_XY,      CHEAP, "max(x, y); NaN if one is NaN")                                 \
    X(MIN,          INTS,    NEEDS_XY,      CHEAP, "min(x, y); NaN if one is NaN")                                 \
    X(MAX_DX,       FLOATS,  NO_GRAD,       CHEAP, "x > y: 1, x = y: 1/2, x < y: 0, NaN: 1")                       \
    X(MIN_DX,       FLOATS,  NO_GRAD,       CHEAP, "x < y: 1, x = y: 1/2, x > y: 0, NaN: 1")                       \
    X(EQ,           COMPARE, NO_GRAD,       CHEAP, "x == y")                                                       \
    X(NE,           COMPARE, NO_GRAD,       CHEAP, "x != y")                                                       \
    X(LT,           COMPARE, NO_GRAD,       CHEAP, "x < y")                                                        \
    X(LE,           COMPARE, NO_GRAD,       CHEAP, "x <= y")                                                       \
    X(GT,           COMPARE, NO_GRAD,       CHEAP, "x > y")                                                        \
    X(GE,           COMPARE, NO_GRAD,       CHEAP, "x >= y")                                                       \
    X(ATAN2,        FLOATS,  NEEDS_XY,      SLOW,  "the angle of the point (y, x)")                                \
    X(ATAN2_DX,     FLOATS,  NO_GRAD,       CHEAP, "y/(x^2 + y^2); 0 at 0, 0")                                                \
    X(PRELU,        FLOATS,  NEEDS_XY,      CHEAP, "x > 0 ? x : x*y")                                              \
    X(PRELU_DX,     FLOATS,  NO_GRAD,       CHEAP, "x > 0 ? 1 : y")                                                \
    X(PRELU_DY,     FLOATS,  NO_GRAD,       CHEAP, "x > 0 ? 0 : x")                                                \
    X(KL_DIV,       FLOATS,  NEEDS_XY,      SLOW,  "y (log(y) - x); 0 where y = 0")                                \
    X(KL_DIV_DY,    FLOATS,  NO_GRAD,       SLOW,  "log(y) + 1 - x")                                               \
    X(MSE,          FLOATS,  NEEDS_XY,      CHEAP, "(x-y)^2")                                                      \
    X(MSE_DX,       FLOATS,  NO_GRAD,       CHEAP, "2(x-y)")                                                       \
    X(L1,           FLOATS,  NEEDS_XY,      CHEAP, "|x-y|")                                                        \
    X(L1_DX,        FLOATS,  NO_GRAD,       CHEAP, "sign(x-y)")                                                    \
    X(SMOOTH_L1,    FLOATS,  NEEDS_XY,      CHEAP, "|d| < b: d^2/2b, else |d| - b/2; d = x-y")                     \
    X(SMOOTH_L1_DX, FLOATS,  NO_GRAD,       CHEAP, "|d| < b: d/b, else sign(d)")                                   \
    X(BCE,          FLOATS,  NEEDS_XY,      SLOW,  "max(x,0) - x*y + log(1 + exp(-|x|))")                          \
    X(BCE_DX,       FLOATS,  NO_GRAD,       SLOW,  "sigmoid(x) - y")
/* NORM: sqrt(sum x^2); LSE: log(sum exp(x)) */
#define DT_REDUCE_FNS(X) X(SUM) X(MEAN) X(MAX) X(MIN) X(ARGMAX) X(VAR) X(ARGMIN) X(PROD) X(NORM) X(LSE)

#define DT__ENUM_U(n, ...) DT_U_##n,
#define DT__ENUM_B(n, ...) DT_B_##n,
#define DT__ENUM_R(n) DT_R_##n,
enum { DT_UNARY_FNS(DT__ENUM_U) DT_U_COUNT };
enum { DT_BINARY_FNS(DT__ENUM_B) DT_B_COUNT };
enum { DT_REDUCE_FNS(DT__ENUM_R) DT_R_COUNT };

/* The kernels of a backend. A row: name, outputs <- inputs; [x] may be absent. Operands:
     "any"     any strides, and any layout that the backend itself returns from image_layout()
     "image"   4-d, in the layout that image_layout() returns
     others    dense, DT_LAYOUT_PLAIN
   h: f32, f16 or bf16. Statistics are f32. Rows marked +: if bit i of acc is set, output i is added to, not overwritten. */
#define DT_KERNELS(X)                                                                                        \
    X(fill)            /* any: y := ew.a, any dtype                                                       */ \
    X(copy)            /* any: y <- x, equal shapes, x may broadcast; casts between all dtypes          + */ \
    X(iota)            /* y 1-d := ew.a + ew.b*i, any dtype                                               */ \
    X(unary)           /* any: y <- x; ew.fn, ew.a, ew.b; h; ints for AFFINE, ABS, CLAMP                + */ \
    X(unary_bwd)       /* any: dx <- dy, x or y (NEEDS_X or NEEDS_Y in DT_UNARY_FNS)                    + */ \
    X(binary)          /* any: z <- x, y (broadcast by stride 0; dtypes may differ); ew.fn, ew.a, ew.b;   */ \
                       /*      z h, or int when x and y are (ADD MUL MAX MIN and comparisons);          + */ \
                       /*      comparisons give u8                                                        */ \
    X(where)           /* any: z <- cond (u8, i32, i64), x, y; all dtypes                               + */ \
    X(reduce)          /* any: y <- x; y has x's ndim, 1 (stride any) in reduced dims; reduce.fn, .n:   + */ \
                       /*      SUM MEAN MAX MIN VAR PROD NORM LSE over h, SUM MAX MIN PROD over ints;     */ \
                       /*      ARGMAX, ARGMIN -> i64 (index in the row-major order of the reduced dims;   */ \
                       /*      first of ties, or first NaN)                                               */ \
    X(gemm)            /* c (.., m, n) <- a (.., m, k), b (.., k, n), [bias (n)]; h each; batch strides   */ \
                       /*      any, a and b have unit stride in one of the last two dims; c dense rows;   */ \
                       /*      c = gemm.act(gemm.alpha a b + bias)                                      + */ \
    X(softmax)         /* y <- x (outer, dim, inner) 3-d; softmax.log; h                                  */ \
    X(softmax_bwd)     /* dx <- dy, y                                                                   + */ \
    X(conv2d)          /* image: y <- x, w (plain), [bias]; conv.*; h                                     */ \
    X(conv2d_bwd_data) /* image: dx <- dy, w                                                            + */ \
    X(conv2d_bwd_weight) /* image: dw (plain), [db] <- dy, x                                            + */ \
    X(pool2d)          /* image: y, [index] <- x; pool.*; index (of y's shape, u8 or i32): position in    */ \
                       /*      the window, for max                                                        */ \
    X(pool2d_bwd)      /* image: dx <- dy, [index]                                                      + */ \
    X(batch_norm)      /* image: y, mean, rstd (f32), [running_mean, running_var: updated] <- x, [weight, */ \
                       /*      bias, running_mean, running_var, add]; norm.train .eps .momentum .act;     */ \
                       /*      without y: only the mean, and the biased variance in place of rstd;        */ \
                       /*      extended: with running statistics as inputs, images that are all plain     */ \
    X(batch_norm_bwd)  /* image: [dx, dweight, dbias, dadd] <- dy, x, [weight], mean, rstd, [y: relu],  + */ \
                       /*      [sums (2c) of dy and of dy xhat over norm.n values a channel: with train,  */ \
                       /*      dx uses these; if absent, the sums of this call's dy and x]                */ \
    X(layer_norm)      /* y, [mean], rstd <- x (rows, cols), [weight, bias]; norm.rms .eps; extended:     */ \
                       /*      norm.n > 0: a row has n channels, and weight (channels) and bias have one  */ \
                       /*      value for each; row r begins with channel r*n modulo channels              */ \
    X(layer_norm_bwd)  /* dx, [dweight, dbias] <- dy, x, [weight, mean], rstd                           + */ \
    X(embedding)       /* y ([outer,] n, d) <- index (n), weight ([outer,] v, d); all dtypes              */ \
    X(embedding_bwd)   /* dweight ([outer,] v, d) <- dy ([outer,] n, d), index; zeroes first unless acc + */ \
    X(gather)          /* y (outer, ny, inner) <- x (outer, nx, inner), index as y; all dtypes            */ \
    X(gather_bwd)      /* dx <- dy, index; zeroes first unless acc                                      + */ \
    X(scan)            /* y (outer, n, inner) <- x; scan.fn SUM or PROD of x[0..i], or x[i..n-1]:         */ \
                       /*      .reverse, without x[i]: .exclusive; h, or i64 <- ints                      */ \
    X(sort)            /* index (outer, k, inner) i64 <- x (outer, n, inner): places of the k smallest or */ \
                       /*      (sort.descending) largest along n, in order; equals by place; NaN is       */ \
                       /*      larger than any number; all dtypes                                         */ \
    X(scatter)         /* y (outer, ny, inner) in place <- index, src (outer, n, inner): y[index] := src, */ \
                       /*      the last one counts; with scatter.add += src (ints only)                   */ \
    X(resize)          /* y (n, oh, ow) <- x (n, h, w); resize.linear .align .scale; h                    */ \
    X(resize_bwd)      /* dx <- dy                                                                      + */ \
    X(dropout)         /* y <- x; dropout.p .seed .offset: element i kept if draw i%4 of counter          */ \
                       /*      offset + i/4 is >= p*2^32; scaled by 1/(1-p)                             + */ \
    X(cross_entropy)   /* loss (1, or n: reduction none), lse (2n), total (1) <- x (n, c), target (n),    */ \
                       /*      [weight (c)]; loss.*; loss.nll: x holds log-probabilities, lse unused. lse */ \
                       /*      holds the n maxima m of the rows, then the n log(sum exp(x - m)): as one   */ \
                       /*      number, large logits would lose the digits of the probabilities            */ \
    X(cross_entropy_bwd) /* dx <- dy (1 or n), x, target, lse, total, [weight]                          + */ \
    X(attention)       /* o (b,h,t,d), lse (b,h,t) <- q, k, v; unit stride in d, other strides any (of o  */ \
                       /*      too; lse dense); attn.causal .scale; h                                     */ \
    X(attention_bwd)   /* dq, dk, dv (strides as any of q, k, v) <- do, q, k, v, o, lse                 + */ \
                       /*      Both take [mask (b,h,t,s), any strides: u8: 0 hides the key; h: is added to the    */ \
                       /*      scores] and [lengths (b), i64: keys from there on are hidden] after these. k and v */ \
                       /*      may have fewer heads than q (a divisor); dk and dv have as many as q. causal: query */ \
                       /*      i sees keys up to i + offset; window > 0: no key before i + offset - window + 1    */ \
    X(rnn_cell)        /* h, [c, f32], [y], gates, [hn: GRU] <- gates, [recurrent: GRU], h, [c], [lengths (b),   */ \
                       /*      i64]: one time step of b rows, strides of rows any; cell.kind, .t. gates (b, g n): */ \
                       /*      the sums, without the recurrent part if that is an operand; the result, which may  */ \
                       /*      be in their place, is what the gradient needs. y is h, or 0 where t >= length;     */ \
                       /*      there h and c pass on                                                              */ \
    X(rnn_cell_bwd)    /* dgates, [drecurrent: GRU], [dh], [dc, f32] <- [dy], [dh], [dc], gates, [c: LSTM, hn:    */ \
                       /*      GRU], [c before: LSTM, h before: GRU], [lengths]; dh: what does not go through the */ \
                       /*      gates                                                                              */ \
    /* Optimisers: 1-d, f32 but for p, g, x and copy (h). p and the states change in place; copy := p rounded.    */ \
    /* gscale (1) multiplies every g first, opt.maximize negates it. segments (i64, nseg + 1): where each          */ \
    /* parameter begins, and the end; norms have one element for each segment.                                     */ \
    X(sgd)             /* p, [buf], [copy] <- g, [gscale], [wnorm, gnorm, segments]: d = g + wd*p;        */ \
                       /*      buf = first ? d : b1*buf + (1-b2)*d; p -= lr*(nesterov ? d + b1*buf : buf) */ \
                       /*      with segments (LARS): d *= trust*|w|/(|g| + wd*|w| + eps), gnorm before    */ \
                       /*      gscale; d *= 1 where a norm is 0                                           */ \
    X(adam)            /* p, m, v, [vmax: amsgrad], [copy] <- g, [gscale]; opt.decoupled: p *= 1 - lr*wd, */ \
                       /*      else g += wd*p; p -= lr/c1 * m/(sqrt(v/c2) + eps)                          */ \
    X(rmsprop)         /* p, sq, [gavg: centred], [buf: momentum b1], [copy] <- g, [gscale]; alpha is b2  */ \
    X(adagrad)         /* p, sum, [copy] <- g, [gscale]                                                   */ \
    X(lamb)            /* u, m, v <- p, g, [gscale]: u = (m/c1)/(sqrt(v/c2) + eps) + wd*p                 */ \
    X(lamb_apply)      /* p, [copy] <- u, [wnorm, unorm, segments]: p -= lr*|w|/|u|*u; ratio 1 where a    */ \
                       /*      norm is 0 or absent                                                        */ \
    X(lion)            /* p, m, [copy] <- g, [gscale]: p *= 1 - lr*wd; p -= lr*sign(b1*m + (1-b1)*g);     */ \
                       /*      m = b2*m + (1-b2)*g                                                        */ \
    X(norms)           /* y (nseg) <- x (n), [segments]: the L2 norm of each segment, or of all           */ \
    X(unscale)         /* [y (n)], flag (1) <- x (n): y = ew.a*x (y may be x); flag := 1 if some x is not  */ \
                       /*      finite, else unchanged                                                   + */

typedef enum dt_cell { DT_CELL_TANH = 0, DT_CELL_RELU, DT_CELL_LSTM, DT_CELL_GRU } dt_cell; /* recurrent layers: dt_layers.h */

#define DT__ENUM_K(n) DT_K_##n,
enum { DT_KERNELS(DT__ENUM_K) DT_K_COUNT };

#define DT_MAX_OUT 5 /* results of an op at most */
#define DT_MAX_IN 8 /* tensors that an op takes at most */
typedef struct dt_call {
    int32_t  op; /* DT_K_... */
    int32_t  nout, nin;
    uint32_t acc;
    void    *stream;
    union {
        struct { double a, b; int32_t fn; } ew;
        struct { int64_t n; int32_t fn; int32_t biased; } reduce; /* n: elements reduced into one */
        struct { double alpha; int32_t act; } gemm;
        struct { int32_t log; } softmax;
        struct { int32_t stride[2], pad[2], dilation[2], groups, act; } conv;
        struct { int32_t max, adaptive, include_pad, kernel[2], stride[2], pad[2]; } pool;
        struct { double eps, momentum; int64_t n; int32_t train, act, rms; } norm;
        struct { int32_t fn, reverse, exclusive; } scan;
        struct { int32_t descending; } sort;
        struct { int32_t add; } scatter;
        struct { double scale[2]; int32_t linear, align; } resize; /* scale: input pixels per output pixel */
        struct { uint64_t seed, offset; double p; } dropout;
        struct { double smoothing; int64_t ignore; int32_t reduction, nll; } loss;
        struct { double scale; int64_t offset, window; int32_t causal; } attn;
        struct { int64_t t; int32_t kind; } cell; /* kind: dt_cell */
        struct { double lr, wd, b1, b2, eps, c1, c2, trust; int32_t nesterov, first, maximize, decoupled; } opt;
    } u;
    dt_view out[DT_MAX_OUT];
    dt_view in[DT_MAX_IN];
} dt_call;

typedef int (*dt_kernel)(dt_device *dev, const dt_call *c); /* 0, or a dt_status after dt_fail() */

typedef struct dt_backend {
    const char *name;
    void *(*alloc)(dt_device *dev, size_t nbytes); /* 64-byte aligned; NULL without a message when out of memory */
    void (*free)(dt_device *dev, void *ptr, size_t nbytes);
    /* the host memory may be reused on return */
    int (*upload)(dt_device *dev, void *stream, void *dst, const void *host, size_t nbytes);
    /* waits for the stream, then copies */
    int (*download)(dt_device *dev, void *stream, void *host, const void *src, size_t nbytes);
    int (*wait)(dt_device *dev, void *stream);                  /* blocks the host; NULL stream: waits for all streams */
    /* work queued later on 'after' waits for the work that is now queued on 'before' */
    int (*order)(dt_device *dev, void *after, void *before);
    void *(*stream_new)(dt_device *dev);                        /* NULL entry: the device has one stream */
    void (*stream_free)(dt_device *dev, void *stream);
    int (*image_layout)(dt_device *dev, int kernel, int dtype); /* the layout of image operands; NULL entry: plain */
    /* Asynchronous copies, overlapped with kernels. Callers: any thread. NULL entries: not supported. host_alloc returns
       64-byte aligned host memory for such copies (NULL without setting an error). upload_later is asynchronous: the host
       memory must stay unchanged until the copy is done. mark records an event in a stream (and creates it if *mark is
       NULL). passed sets *yes if the stream has reached the event; with wait it blocks until then. */
    void *(*host_alloc)(dt_device *dev, size_t nbytes);
    void (*host_free)(dt_device *dev, void *ptr, size_t nbytes);
    void *(*copy_stream)(dt_device *dev); /* the stream for copies */
    /* queues the copy: host must stay unchanged until it is done */
    int (*upload_later)(dt_device *dev, void *stream, void *dst, const void *host, size_t nbytes);
    /* queues the copy to memory of host_alloc, which must not be used until it is done */
    int (*download_later)(dt_device *dev, void *stream, void *host, const void *src, size_t nbytes);
    int (*mark)(dt_device *dev, void *stream, void **mark); /* records a mark in the stream; creates it if *mark is NULL */
    int (*passed)(dt_device *dev, void *mark, bool wait, bool *yes); /* has the stream reached it? wait: waits for it */
    void (*mark_free)(dt_device *dev, void *mark);
    /* describes the memory of the device for the out-of-memory message; NULL entry: dt's own counts are shown */
    void (*memory_text)(dt_device *dev, char *text, size_t nbytes);
    /* whether a tensor of this device may use this memory (dt_from_blob); NULL entry: any memory */
    int (*adopts)(dt_device *dev, const void *ptr);
    dt_kernel kernel[DT_K_COUNT];
    /* Several devices of one backend in one program. NULL entries: not supported; copies go through host memory. */
    int (*count)(void);              /* number of devices */
    dt_device *(*device)(int index); /* NULL after dt_fail */
    /* Copies src on device 'from' to dst on device 'dev'. The copy runs after the work queued on both streams; work queued
       later on either stream runs after the copy. */
    int (*peer)(dt_device *dev, void *stream, void *dst, dt_device *from, void *from_stream, const void *src,
                size_t nbytes);
    /* Collectives over n devices. block[b * n + i] is the copy of block b on dev[i], 1-d and dense; stream[i] is a stream
       of dev[i]. broadcast: copies the block of the first device to the others. sum: adds the blocks of the others to the
       block of the first device, in the order of the devices. */
    void *(*group_new)(dt_device *const *dev, int n); /* NULL after dt_fail */
    void (*group_free)(void *group);
    int (*group_broadcast)(void *group, void *const *stream, const dt_view *block, int nblocks);
    int (*group_sum)(void *group, void *const *stream, const dt_view *block, int nblocks);
    /* 1: this kernel and its gradient also take what their line in DT_KERNELS calls extended; NULL entry: none does */
    int (*extended)(dt_device *dev, int kernel);
} dt_backend;

DT_API dt_device  *dt_device_new(const dt_backend *be, int index, void *impl); /* keeps the pointer be */
DT_API dt_status   dt_device_free(dt_device *dev);      /* fails while a tensor on it exists */
DT_API void       *dt_device_impl(const dt_device *dev); /* what the backend keeps for the device */
DT_API const dt_backend *dt_device_backend(const dt_device *dev); /* the table of its entries */
DT_API void       *dt_device_set_stream(dt_device *dev, void *stream); /* sets the thread's stream on dev; returns the previous */
DT_API const char *dt_kernel_name(int kernel); /* as in traces */
/* Scratch memory of the thread, 64-byte aligned, valid until its next dt_scratch; NULL after dt_fail. */
DT_API void       *dt_scratch(size_t nbytes);

#ifdef __cplusplus
}
#endif
#endif /* DT_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__CORE_INSIDE)
#define DT__CORE_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   Private declarations for the implementations of the other headers: thread context, tensors, devices, tape; functions
   that create and copy tensors, build calls and run them. Programs must not use them. */
#include <pthread.h>
#ifdef __cplusplus
extern "C" {
#endif
#define DT__LIVE 0x64744c76u
#define DT__DEAD 0x64746466u
#define DT__MAX_HOOKS 16
#define DT__GENERATION_BITS 36
#define DT__MAX_STREAMS 16

typedef struct dt__node    dt__node;
typedef struct dt__storage dt__storage;
typedef struct dt__lazy { /* memory that comes when it is used: parameters and gradients of which this rank has a part (dt_dist.h) */
    void (*touch)(struct dt__lazy *l); /* before each use: it sets ptr of the storage, or leaves a pending error */
} dt__lazy;
typedef struct dt__group   dt__group;
typedef struct dt__tbuf    dt__tbuf;

typedef struct dt__list { /* a growing array of pointers */
    void  **at;
    int64_t n, cap;
} dt__list;

#define DT__CASTS 256
typedef struct dt__cast { /* a parameter cast by autocast; valid while stamp and version are unchanged */
    const dt_tensor *from;
    dt_tensor       *to;
    uint64_t         stamp;
    uint32_t         version;
} dt__cast;

/* Callbacks for a forward that computes only a part of the model (dt_pipe.h); on the thread of the forward. */
typedef struct dt__split {
    void *user;
    /* t is an argument of a call that begins. It may change the memory of t, or fail */
    void (*use)(void *user, const char *call, dt_tensor *t);
    void (*made)(void *user, dt_tensor *t); /* a call has made t */
    void (*write)(void *user, const char *call, dt_tensor *t); /* a call changes t in place; or NULL */
} dt__split;
/* Callbacks of who measures the time of layers: dt_nn.h (DT_PROFILE) and dt_pipe.h. On the thread that computes; any but the
   first may be NULL. */
typedef struct dt__timing {
    void *user;
    void (*node)(void *user, int64_t i);        /* a backward comes to node i of the tape; -1: it has run all of them */
    void (*ready)(void *user, dt_tensor *param); /* the gradient of a parameter is complete */
    /* a loader has returned a batch: bytes of a sample in the data set; samples/s that all workers can make, 0: not known */
    void (*fed)(void *user, int64_t nbytes, double able);
    void (*gone)(void *user);                   /* the thread ends */
} dt__timing;

typedef struct dt__ctx {
    dt_device    *device; /* NULL: the CPU */
    const dt__split *split; /* NULL: none */
    const dt__timing *timing; /* NULL: nobody measures the layers */
    int           no_grad;
    int           in_backward;
    int           backward_part; /* DT__BACK_...: which gradients the running backward computes */
    int           stop_backward; /* of dt_backward_stop */
    uint32_t      backward_id;
    uint64_t      generation; /* incremented by each backward and dt_end; entries of cast with an older stamp are stale.
                                 The bits from DT__GENERATION_BITS on number the threads that use models */
    dt_autocast   autocast;
    dt__list      step; /* tensors that the step owns; NULL where one was kept or freed */
    dt__list      tape; /* nodes in the order of the forward */
    dt_tensor    *free_tensors; /* handles that the program never saw: free to be used again */
    struct dt__region *region;  /* where new handles come from, see >>handles */
    int           region_page, region_next; /* the open page, and the next handle in it */
    char         *dead_from, *dead_to;      /* pages of dead handles that go back to the system in one call */
    dt__node     *free_nodes;
    void         *scratch;
    size_t        scratch_nbytes;
    dt__tbuf     *trace;
    int           rng_ready;
    int           registered; /* dt__thread_end will run when this thread ends */
    int           nstreams;
    dt_grad_hooks hook[DT__MAX_HOOKS];
    int           hook_used[DT__MAX_HOOKS];
    struct {
        dt_device *dev;
        void      *stream;
    } stream[DT__MAX_STREAMS];
    dt__cast cast[DT__CASTS];
    dt_rng   rng;
} dt__ctx;

#ifdef DT_STATIC
static __thread dt__ctx dt__tls;
#else
extern __thread __attribute__((visibility("hidden"))) dt__ctx dt__tls;
#endif

#define DT__SIZE_CLASSES 400

struct dt__storage {
    dt_device   *dev;
    void        *ptr;
    size_t       nbytes; /* allocated: the size of its size class */
    int32_t      refs;
    uint32_t     version; /* incremented by each in-place change */
    void        *stream;  /* the stream it was allocated on */
    void        *other_stream; /* a second stream that used it. Sentinels: == this: no second stream; == dev: several */
    dt__storage *next;
    int          adopted; /* memory of dt_from_blob: not cached, not counted */
    void       (*release)(void *user);
    void        *user;
    dt__lazy    *lazy;    /* the memory comes when it is used; NULL: it is there */
};
struct dt_device {
    const dt_backend *be;
    void             *impl;
    int               index;
    int               fallback;
    char              name[40];
    pthread_mutex_t   lock; /* protects cache and spare */
    dt__storage      *cache[DT__SIZE_CLASSES];
    dt__storage      *spare;    /* unused structs without memory, from released dt_from_blob data */
    int64_t           storages; /* atomic: storages in use */
    size_t            live, peak, cached; /* atomic: bytes of this device */
    dt_device        *next;
};
struct dt_tensor {
    uint32_t     magic;
    int32_t      refs;
    dt__storage *st;
    int64_t      offset; /* of element 0, in elements */
    int32_t      dtype, layout, ndim;
    uint8_t      requires_grad, leaf, retain_grad;
    uint8_t      grad_state;    /* DT__GRAD_... */
    uint8_t      partial_state; /* DT__PARTIAL_... */
    uint8_t      partial_dim;
    uint8_t      given;       /* the program has the handle: its address is not used again soon */
    uint8_t      boundary;    /* a leaf that is not a parameter: the result of another rank's part of the model */
    int32_t      serial;      /* with a dt__split: the number of the tensor in its forward, from 1 on */
    int64_t      numel;
    int64_t      shape[DT_MAX_DIMS];
    int64_t      stride[DT_MAX_DIMS];
    dt__ctx     *step;      /* the step that owns it; NULL if kept or internal */
    int64_t      step_slot;
    dt__node    *node;      /* the tape node that computed it, or NULL */
    int          node_out;
    int          tape_ended; /* it had a node, which dt_end freed */
    dt_tensor   *grad;
    dt_tensor   *partial;   /* the gradient accumulated so far by the running backward, or NULL */
    int64_t      partial_from, partial_to; /* DT__PARTIAL_SLICES: the range written so far along partial_dim */
    int32_t      pending;   /* contributions that a leaf has not received yet */
    uint32_t     mark;
    dt__group   *group;
    int          group_slot;
    dt_tensor   *next;      /* in the pool of freed handles */
};
enum {                /* states of dt_tensor.grad, if it is not NULL */
    DT__GRAD_SET = 0,   /* holds a gradient */
    DT__GRAD_EMPTY,     /* allocated, but the next contribution overwrites it; dt_grad returns NULL */
    DT__GRAD_UNREACHED  /* no backward reached the tensor; zeroed, so that the gradient of its block is complete */
};
enum {                   /* states of dt_tensor.partial, if it is not NULL */
    DT__PARTIAL_OWNED = 0, /* complete and used by this tensor only: contributions can be added in place */
    DT__PARTIAL_SHARED,    /* complete, but another tensor uses the same memory: copy it before adding */
    DT__PARTIAL_SLICES     /* written only in [partial_from, partial_to) along partial_dim, uninitialised elsewhere */
};
typedef int (*dt__backward_fn)(dt__node *n, dt_tensor *g); /* g: the gradient of the node's output */

#define DT__NODE_IN 6
#define DT__NODE_SAVED 10
struct dt__node {
    const char     *name;
    dt__backward_fn backward;
    dt__ctx        *ctx;
    int             nin, nsaved;
    dt_tensor     **in; /* points to few, or to an allocated array (cat) */
    dt_tensor      *few[DT__NODE_IN];
    dt_tensor      *out; /* not a reference: the tensor clears it when it is freed */
    dt_tensor      *saved[DT__NODE_SAVED];
    uint32_t        version[DT__NODE_SAVED];
    int64_t         seq;
    dt_tensor      *kept; /* the gradient of its output, if only the gradients of its parameters are still to be computed */
    uint32_t        mark;
    int             done; /* a backward freed its saved tensors */
    int             fn;
    double          a, b;
    int64_t         i[DT_MAX_DIMS + 4];
    unsigned char   u[sizeof(((dt_call *)0)->u)]; /* the forward call's options */
    void           *user; /* dt__norm_sync of a batch norm over several ranks; dt_fn_call of a dt_function */
    void          (*drop)(dt__node *n); /* frees what user points to; or NULL */
    dt__node       *next;
};
struct dt__group { /* parameters packed into one block */
    int         n;
    dt_tensor **param; /* NULL where one was freed */
    int64_t    *offset;
    uint32_t    mark;
};
typedef struct dt__norm_sync { /* batch statistics over several ranks (dt_dist.h); all ranks call in the same order */
    void *user;
    /* Replaces mean and biased var (c) of n values per channel by those over all ranks, and updates the running ones
       (which may be NULL). Returns the number of values per channel over all ranks, or a negative status. */
    int64_t (*stats)(void *user, dt_tensor *mean, dt_tensor *var, int64_t n, dt_tensor *rm, dt_tensor *rv,
                     double momentum);
    int (*sums)(void *user, dt_tensor *sums); /* (2c): replaced by the sums over all ranks */
} dt__norm_sync;

/* ---- lists, devices */
DT__INSIDE int dt__push(dt__list *l, void *p); /* 0 or DT_ERR_MEMORY */
DT__INSIDE void dt__list_free(dt__list *l);
DT__INSIDE void dt__device_init(dt_device *d, const dt_backend *be, int index, void *impl);
DT__INSIDE void dt__device_trim(dt_device *d);
DT__INSIDE void *dt__stream(dt_device *dev);
/* ---- tensors. The caller owns the one reference of a tensor that these functions return: dt__give passes it to the
   step, dt__unref drops it. */
static inline __attribute__((unused)) int dt__is_float(int d) { return d <= DT_BF16; }
DT__INSIDE dt_tensor *dt__new(const char *call, dt_device *dev, int dtype, const int64_t *shape, int ndim, int layout);
DT__INSIDE dt_tensor *dt__new_like(const char *call, const dt_tensor *x, int dtype);
DT__INSIDE dt_tensor *dt__make(const char *call, dt_shape s, dt_make_opts o, int dtype);
DT__INSIDE dt_tensor *dt__adopt(const char *call, dt_device *dev, void *data, int dtype, const int64_t *shape, int ndim);
DT__INSIDE void dt__count_live(dt_device *d, size_t nbytes, bool more); /* dt_stats counts memory that no device allocates, too */
DT__INSIDE dt_tensor *dt__alias(dt_tensor *x); /* a second handle with the same shape and memory */
DT__INSIDE dt_tensor *dt__slice(dt_tensor *x, int dim, int64_t start, int64_t length);
DT__INSIDE dt_tensor *dt__ref(dt_tensor *t);
DT__INSIDE void dt__unref(dt_tensor *t);
DT__INSIDE dt_tensor *dt__give(dt_tensor *t);
DT__INSIDE bool dt__ok(const char *call, const char *arg, const dt_tensor *t);
DT__INSIDE const char *dt__text(const dt_tensor *t);
DT__INSIDE void dt__dense_strides(int64_t *stride, const int64_t *shape, int ndim);
DT__INSIDE bool dt__same_shape(const dt_tensor *t, const dt_shape *s);
DT__INSIDE double dt__element(const void *host, int dtype, int64_t i);
/* ---- building a call and running it; copies */
DT__INSIDE void dt__call_begin(dt_call *c, int op);
DT__INSIDE dt_view *dt__out(dt_call *c, const dt_tensor *t); /* NULL: absent */
DT__INSIDE dt_view *dt__in(dt_call *c, const dt_tensor *t);
DT__INSIDE void dt__view_of(dt_view *v, const dt_tensor *t);
DT__INSIDE int dt__go(dt_device *dev, dt_call *c);
DT__INSIDE int dt__copy_to(dt_tensor *y, const dt_tensor *x, int add);
DT__INSIDE int dt__fill(dt_tensor *t, double value);
DT__INSIDE dt_tensor *dt__dense(const char *call, dt_tensor *x);
DT__INSIDE int dt__make_plain(dt_tensor *t);
DT__INSIDE int dt__upload(dt_tensor *t, const void *host); /* t dense */
DT__INSIDE int dt__download(const dt_tensor *t, void *host); /* t dense */
/* Copies x to another device. The caller owns the result, which is dense and has x's layout if the backend is the same. */
DT__INSIDE dt_tensor *dt__cross(const char *call, dt_tensor *x, dt_device *dev);
/* Is the device's memory that of the host? */
static inline __attribute__((unused)) bool dt__is_host(const dt_device *dev) { return dev->be == dt_cpu()->be; }
/* ---- the tape */
/* A backward from n roots at once, with their gradients (NULL: 1, for a root of one element). DT__BACK_INPUTS leaves out the
   gradients of parameters; a DT__BACK_WEIGHTS later, without roots, computes those of the whole tape. With DT__BACK_FREE the
   program does not use the step's tensors any more: their values are freed while the backward runs, as soon as it and a later
   DT__BACK_WEIGHTS do not need them; it takes over the references in grad, and does not look at the roots' values. */
enum { DT__BACK_ALL = 0, DT__BACK_INPUTS, DT__BACK_WEIGHTS, DT__BACK_FREE = 4 };
DT__INSIDE int dt__backward(dt_tensor *const *root, dt_tensor *const *grad, int n, int part, bool retain);
/* A step of its own for a part of the model: exchanges the tensors and the tape of this thread with others. */
DT__INSIDE void dt__step_swap(dt__list *step, dt__list *tape);
DT__INSIDE void dt__step_end(void); /* dt_end without the end of a step in the trace */
/* The program does not use the step's tensors any more, only the backward does: frees the values on dev that no node of the
   tape has saved. The handles stay. */
DT__INSIDE int dt__step_trim(dt_device *dev);
/* A device without memory: its tensors have shapes and no values. */
DT__INSIDE dt_device *dt__ghost_device(void);
DT__INSIDE void *dt__ghost_alloc(dt_device *dev, size_t nbytes);
static inline __attribute__((unused)) bool dt__is_ghost(const dt_tensor *t) { return t->st->dev->be->alloc == dt__ghost_alloc; }
/* Ops of other headers begin with dt__ok for each tensor, and end with dt__finish. dt__in_half: autocast of an operand of a product. */
DT__INSIDE dt_tensor *dt__in_half(dt_tensor *x);
DT__INSIDE dt_tensor *dt__finish(dt_tensor *t, int rc);
DT__INSIDE bool dt__want_float(const char *call, const dt_tensor *x);
DT__INSIDE bool dt__same_device(const char *call, const dt_tensor *a, const dt_tensor *b);
DT__INSIDE void dt__save(dt__node *n, dt_tensor *t); /* up to DT__NODE_SAVED tensors for the backward */
DT__INSIDE bool dt__needs_grad(const dt__node *n, int k);
DT__INSIDE dt_tensor *dt__grad_begin(dt_tensor *x, int layout, uint32_t *acc); /* then the kernel, then dt__grad_end */
DT__INSIDE int dt__grad_end(dt_tensor *x, dt_tensor *t);
/* Ops of other headers: dt__record after the result was made; the backward passes gradients on with dt__grad_put. */
DT__INSIDE dt__node *dt__record(const char *name, dt_tensor *out, dt__backward_fn fn, int nin, dt_tensor *const *in);
DT__INSIDE void dt__save(dt__node *n, dt_tensor *t);
DT__INSIDE bool dt__needs_grad(const dt__node *n, int k);
/* checks of arguments: dt_fail() if false */
DT__INSIDE bool dt__want_float(const char *call, const dt_tensor *t);
DT__INSIDE bool dt__dim_ok(const char *call, int *dim, int ndim); /* a negative dim becomes one from the beginning */
DT__INSIDE bool dt__same_device(const char *call, const dt_tensor *a, const dt_tensor *b);
DT__INSIDE bool dt__index_ok(const char *call, const dt_tensor *index, const dt_tensor *x);
DT__INSIDE bool dt__reduction_ok(const char *call, dt_loss_opts o);
DT__INSIDE dt_tensor *dt__in_f32(dt_tensor *t);  /* autocast: for ops that need the range or precision of f32 */
DT__INSIDE dt_tensor *dt__in_loss(dt_tensor *t);
DT__INSIDE dt_tensor *dt__finish(dt_tensor *t, int rc); /* passes t to the step, or frees it if rc is an error */
DT__INSIDE void dt__view_dense(dt_view *v, int ndim, int64_t d0, int64_t d1, int64_t d2);
DT__INSIDE void dt__split_dims(const dt_tensor *x, int dim, int64_t *outer, int64_t *inner);
DT__INSIDE dt_tensor *dt__reduce(const char *call, int fn, dt_tensor *x, dt_reduce_opts o);
DT__INSIDE int dt__scan_run(dt_tensor *y, const dt_tensor *x, int64_t outer, int64_t n, int64_t inner, int fn, bool reverse,
                            bool exclusive);
DT__INSIDE dt_tensor *dt__loss_reduced(dt_tensor *l, dt_reduction reduction);
DT__INSIDE int dt__grad_put(dt_tensor *x, dt_tensor *g);
DT__INSIDE bool dt__is_exclusive(dt_tensor *t);
DT__INSIDE bool dt__write_ok(const char *call, dt_tensor *t);
DT__INSIDE int dt__pack(dt_block *b, dt_tensor **params, int n, dt_tensor *grad);
DT__INSIDE int64_t dt__pack_next(int64_t end, int dtype); /* offset of a parameter after one that ends at 'end' */
DT__INSIDE dt_tensor *dt__batch_norm(dt_tensor *x, dt_tensor *weight, dt_tensor *bias, dt_tensor *running_mean,
                                     dt_tensor *running_var, dt_op_batch_norm_opts o, dt__norm_sync *sync);
/* x (n, c, ...), c a multiple of groups, weight and bias (c); only for devices with dt__extended(DT_K_layer_norm) */
DT__INSIDE dt_tensor *dt__group_norm(dt_tensor *x, dt_tensor *weight, dt_tensor *bias, int64_t groups, double eps);
DT__INSIDE bool       dt__extended(dt_device *dev, int kernel);
/* ---- the trace */
enum { DT__TRACK_STEPS = 1, DT__TRACK_LAYERS = 2, DT__TRACK_OPS = 3, DT__TRACK_NAMED = 100000 };
DT__INSIDE int dt__trace_on(void);
DT__INSIDE void dt__trace_program(char *buf, size_t nbytes); /* the name of the program */
/* The path that DT_TRACE or DT_PROFILE means: %p is replaced by the process id, %r by the rank. Without them, .rankR (if there
   are several ranks) and .PID (in a forked child, or with DMLC_ROLE) are inserted before .json, or at the end, so that each
   process has its own file. */
DT__INSIDE void dt__trace_env_path(char *to, size_t nbytes, const char *from, bool child);
DT__INSIDE dt__tbuf *dt__trace_buf(void);
DT__INSIDE dt__tbuf *dt__trace_mine(void); /* as dt__trace_buf, but NULL if the thread has no events yet in this trace */
DT__INSIDE uint64_t dt__trace_time(dt__tbuf *b);
DT__INSIDE uint64_t dt__trace_touch(dt__tbuf *b);
DT__INSIDE void dt__trace_simple(dt__tbuf *b, int track, const char *name, const char *more, uint64_t t0, uint64_t t1);

/* ==================================================================================================== >>halves
   Scalar conversions between the 16-bit floats and f32: round to nearest, ties to even; NaN stays NaN (quiet). */
static inline __attribute__((unused)) float dt__bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline __attribute__((unused)) uint32_t dt__f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline __attribute__((unused)) float    dt__bf16_to_f32(uint16_t h) { return dt__bits_f32((uint32_t)h << 16); }
static inline __attribute__((unused)) uint16_t dt__f32_to_bf16(float f)
{
    uint32_t u = dt__f32_bits(f);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : r);
}
static inline __attribute__((unused)) float dt__f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu;
    if (exp == 31) return dt__bits_f32(sign | 0x7f800000u | (man << 13) | (man ? 0x400000u : 0u));
    if (exp) return dt__bits_f32(sign | ((exp + 112u) << 23) | (man << 13));
    float f = (float)man * 5.9604644775390625e-8f; /* 2^-24 */
    return sign ? -f : f;
}
static inline __attribute__((unused)) uint16_t dt__f32_to_f16(float f)
{
    uint32_t u = dt__f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (a < 0x38800000u) {                                   /* below 2^-14: the sum's rounding does the work */
        float t = dt__bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (dt__f32_bits(t) - 0x3f000000u));
    }
    uint32_t odd = (a >> 13) & 1u;
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + odd) >> 13));
}

/* ==================================================================================================== >>philox
   Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): four 32-bit words from a 64-bit key and a counter, without state. Our
   64-bit counter is the low half of Philox's 128-bit counter; the high half is 0. */
#define DT__PHILOX_M0 0xD2511F53u
#define DT__PHILOX_M1 0xCD9E8D57u
#define DT__PHILOX_W0 0x9E3779B9u
#define DT__PHILOX_W1 0xBB67AE85u

static inline __attribute__((unused)) void dt__philox_block(uint64_t seed, uint64_t counter, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)DT__PHILOX_M0 * c0, p1 = (uint64_t)DT__PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += DT__PHILOX_W0;
        k1 += DT__PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#ifdef __cplusplus
}
#endif
#endif /* DT__CORE_INSIDE */

#if defined(DT_CORE_IMPLEMENTATION) && !defined(DT__CORE_IMPLEMENTED)
#define DT__CORE_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__BASE_IMPLEMENTED)
#error "dt.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_CORE_IMPLEMENTATION"
#endif

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#if defined(__SANITIZE_ADDRESS__)
#define DT__HAS_LSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(leak_sanitizer)
#define DT__HAS_LSAN 1
#endif
#endif
#ifdef DT__HAS_LSAN /* handles point to memory of the allocator: the leak checker must look there */
#include <sanitizer/lsan_interface.h>
#define DT__ROOTS(p, nbytes) __lsan_register_root_region(p, nbytes)
#else
#define DT__ROOTS(p, nbytes) ((void)0)
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(CORE);
DT__NEEDS(CORE, BASE);

/* ==================================================================================================== >>context
   The thread-local context: step (tensors and tape), pools of freed handles and nodes, generator, scratch memory. No lock
   protects it, because only its own thread uses it. dt__thread_end frees it when the thread ends. */
#ifndef DT_STATIC
__thread dt__ctx dt__tls;
#endif

static struct { /* the counters are atomic */
    int64_t         tensors;
    int64_t         fallbacks;
    size_t          live, peak, cached; /* bytes on all devices */
    pthread_mutex_t lock;               /* protects devices */
    dt_device      *devices;
} dt__global = { 0, 0, 0, 0, 0, PTHREAD_MUTEX_INITIALIZER, NULL };

static void dt__trace_leave(dt__ctx *t, bool ends);
static void dt__region_close(dt__ctx *ctx);
static void dt__thread_end(void *unused)
{
    (void)unused;
    dt_end();
    dt__log_unread();
    if (dt__tls.timing && dt__tls.timing->gone) dt__tls.timing->gone(dt__tls.timing->user);
    dt__trace_leave(&dt__tls, true);
    dt__region_close(&dt__tls);
    dt_empty_cache();
}
static pthread_key_t dt__thread_key;
static void          dt__make_key(void) { pthread_key_create(&dt__thread_key, dt__thread_end); }
static size_t        dt__live_bytes(size_t *peak) /* for dt__meters */
{
    dt_memory_stats s = dt_stats();
    *peak = s.peak_bytes;
    return s.live_bytes;
}
static void          dt__register_thread(dt__ctx *t)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (t->registered) return;
    pthread_once(&once, dt__make_key);
    dt__alloc_on_change(dt_empty_cache);
    pthread_setspecific(dt__thread_key, t);
    dt__measured.memory = dt__live_bytes;
    t->registered = 1;
}

DT__INSIDE int dt__push(dt__list *l, void *p) /* 0 or DT_ERR_MEMORY */
{
    if (l->n == l->cap) {
        dt__register_thread(&dt__tls);
        int64_t cap = l->cap ? 2 * l->cap : 256;
        void  **at = (void **)dt_mem_alloc((size_t)cap * sizeof(void *));
        if (!at) return dt_fail(DT_ERR_MEMORY, "dt: out of memory for %" PRId64 " list entries", cap);
        if (l->n) memcpy(at, l->at, (size_t)l->n * sizeof(void *));
        dt_mem_free(l->at, (size_t)l->cap * sizeof(void *));
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = p;
    return 0;
}
DT__INSIDE void dt__list_free(dt__list *l)
{
    dt_mem_free(l->at, (size_t)l->cap * sizeof(void *));
    memset(l, 0, sizeof *l);
}

DT_API void *dt_scratch(size_t nbytes)
{
    dt__ctx *t = &dt__tls;
    if (nbytes > t->scratch_nbytes) {
        dt__register_thread(t);
        size_t want = nbytes + nbytes / 4 + 4096;
        void  *p = want > nbytes ? dt_mem_alloc(want) : NULL;
        if (!p) {
            dt_fail(DT_ERR_MEMORY, "dt: out of memory for %zu bytes of scratch memory", nbytes);
            return NULL;
        }
        dt_mem_free(t->scratch, t->scratch_nbytes ? t->scratch_nbytes + 64 : 0);
        t->scratch = p;
        t->scratch_nbytes = want - 64;
    }
    return (void *)(((uintptr_t)t->scratch + 63) & ~(uintptr_t)63);
}

/* ==================================================================================================== >>device
   Devices and their memory caches. Callers: any thread. dev->lock protects the cache lists of a device; dt__global.lock
   protects the list of devices and is taken first.

   A storage is allocated for one stream (s->stream). Other streams may use it, too; s->other_stream records that. When it
   is freed, dt__storage_join_streams makes s->stream wait for the other streams. Then it goes into the cache list of its
   size class (8 classes per power of two), where a later allocation for the same stream takes it. */
static int dt__size_class(size_t nbytes, size_t *rounded)
{
    if (nbytes <= 512) {
        int c = nbytes ? (int)((nbytes - 1) / 64) : 0;
        *rounded = (size_t)(c + 1) * 64;
        return c;
    }
    int    top = 63 - __builtin_clzll((unsigned long long)(nbytes - 1)); /* 2^top <= nbytes-1 < 2^(top+1), top >= 9 */
    size_t step = (size_t)1 << (top - 3);
    size_t sub = (nbytes - 1 - ((size_t)1 << top)) / step; /* 0..7 */
    *rounded = ((size_t)1 << top) + (sub + 1) * step;
    return 8 + (top - 9) * 8 + (int)sub;
}

DT__INSIDE void dt__device_init(dt_device *d, const dt_backend *be, int index, void *impl)
{
    memset(d, 0, sizeof *d);
    d->be = be;
    d->impl = impl;
    d->index = index;
    snprintf(d->name, sizeof d->name, index < 0 ? "%s" : "%s:%d", be->name, index);
    pthread_mutex_init(&d->lock, NULL);
    dt__alloc_on_change(dt_empty_cache);
    pthread_mutex_lock(&dt__global.lock);
    d->next = dt__global.devices;
    dt__global.devices = d;
    pthread_mutex_unlock(&dt__global.lock);
}
DT_API dt_device *dt_device_new(const dt_backend *be, int index, void *impl)
{
    if (!be || !be->name || !be->alloc || !be->free || !be->upload || !be->download || !be->wait) {
        dt_fail(DT_ERR_ARG, "dt_device_new: a backend needs name, alloc, free, upload, download and wait");
        return NULL;
    }
    dt_device *d = (dt_device *)dt_mem_alloc(sizeof *d);
    if (!d) {
        dt_fail(DT_ERR_MEMORY, "dt_device_new: out of memory");
        return NULL;
    }
    dt__device_init(d, be, index, impl);
    return d;
}
/* The bytes of tensors and of the cache: of a device, and of all. */
static void dt__count_one(size_t *live, size_t *peak, size_t nbytes)
{
    size_t now = __atomic_add_fetch(live, nbytes, __ATOMIC_RELAXED), most = __atomic_load_n(peak, __ATOMIC_RELAXED);
    while (now > most && !__atomic_compare_exchange_n(peak, &most, now, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
DT__INSIDE void dt__count_live(dt_device *d, size_t nbytes, bool more)
{
    if (more) {
        dt__count_one(&d->live, &d->peak, nbytes);
        dt__count_one(&dt__global.live, &dt__global.peak, nbytes);
    } else {
        __atomic_sub_fetch(&d->live, nbytes, __ATOMIC_RELAXED);
        __atomic_sub_fetch(&dt__global.live, nbytes, __ATOMIC_RELAXED);
    }
}
static void dt__count_cached(dt_device *d, size_t nbytes, bool more)
{
    __atomic_add_fetch(&d->cached, more ? nbytes : 0 - nbytes, __ATOMIC_RELAXED);
    __atomic_add_fetch(&dt__global.cached, more ? nbytes : 0 - nbytes, __ATOMIC_RELAXED);
}
DT__INSIDE void dt__device_trim(dt_device *d)
{
    pthread_mutex_lock(&d->lock);
    for (int c = 0; c < DT__SIZE_CLASSES; c++) {
        while (d->cache[c]) {
            dt__storage *s = d->cache[c];
            d->cache[c] = s->next;
            dt__count_cached(d, s->nbytes, false);
            d->be->free(d, s->ptr, s->nbytes);
            dt_mem_free(s, sizeof *s);
        }
    }
    while (d->spare) {
        dt__storage *s = d->spare;
        d->spare = s->next;
        dt_mem_free(s, sizeof *s);
    }
    pthread_mutex_unlock(&d->lock);
}
DT_API dt_status dt_device_free(dt_device *dev)
{
    if (!dev) return DT_OK;
    if (dev == dt_cpu())
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_device_free: dev is the CPU device, which cannot be freed");
    dt_synchronize(dev);
    dt__device_trim(dev);
    if (__atomic_load_n(&dev->storages, __ATOMIC_RELAXED))
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_device_free: %" PRId64 " tensors on %s still exist; free them first",
                                  __atomic_load_n(&dev->storages, __ATOMIC_RELAXED), dev->name);
    pthread_mutex_lock(&dt__global.lock);
    for (dt_device **p = &dt__global.devices; *p; p = &(*p)->next)
        if (*p == dev) {
            *p = dev->next;
            break;
        }
    pthread_mutex_unlock(&dt__global.lock);
    if (dt__tls.device == dev) dt__tls.device = NULL;
    pthread_mutex_destroy(&dev->lock);
    dt_mem_free(dev, sizeof *dev);
    return DT_OK;
}
DT_API void             *dt_device_impl(const dt_device *dev) { return dev ? dev->impl : NULL; }
DT_API const dt_backend *dt_device_backend(const dt_device *dev) { return dev ? dev->be : NULL; }
DT_API const char       *dt_device_name(const dt_device *dev) { return dev ? dev->name : "none"; }
DT_API dt_device        *dt_default_device(void) { return dt__tls.device ? dt__tls.device : dt_cpu(); }
DT_API void              dt_set_default_device(dt_device *dev) { dt__tls.device = dev; }
DT_API void              dt_device_allow_fallback(dt_device *dev, bool yes)
{
    if (dev) dev->fallback = yes;
}
DT_API dt_status dt_synchronize(dt_device *dev)
{
    if (!dev) dev = dt_default_device();
    return (dt_status)dev->be->wait(dev, NULL);
}
DT__INSIDE void *dt__stream(dt_device *dev)
{
    dt__ctx *t = &dt__tls;
    for (int i = 0; i < t->nstreams; i++)
        if (t->stream[i].dev == dev) return t->stream[i].stream;
    return NULL;
}
DT_API void *dt_device_set_stream(dt_device *dev, void *stream)
{
    dt__ctx *t = &dt__tls;
    if (!dev) return NULL;
    for (int i = 0; i < t->nstreams; i++)
        if (t->stream[i].dev == dev) {
            void *before = t->stream[i].stream;
            t->stream[i].stream = stream;
            return before;
        }
    if (t->nstreams == DT__MAX_STREAMS) {
        dt_fail(DT_ERR_ARG, "dt_device_set_stream: this thread has set streams on %d devices, which is the maximum",
                DT__MAX_STREAMS);
        return NULL;
    }
    t->stream[t->nstreams].dev = dev;
    t->stream[t->nstreams++].stream = stream;
    return NULL;
}
static const char *const dt__kernel_names[] = {
#define DT__NAME_K(n) #n,
    DT_KERNELS(DT__NAME_K)
};
DT_API const char *dt_kernel_name(int kernel)
{
    return kernel >= 0 && kernel < DT_K_COUNT ? dt__kernel_names[kernel] : "?";
}

/* ---- the device without memory. Kernels do nothing; what is read is zero. Callers: any thread. */
static pthread_once_t dt__ghost_once = PTHREAD_ONCE_INIT;
static dt_backend     dt__ghost_backend;
static dt_device      dt__ghost;
DT__INSIDE void *dt__ghost_alloc(dt_device *dev, size_t nbytes)
{
    static __attribute__((aligned(64))) char nothing[64];
    (void)dev, (void)nbytes;
    return nothing;
}
static void dt__ghost_free(dt_device *dev, void *ptr, size_t nbytes) { (void)dev, (void)ptr, (void)nbytes; }
static int  dt__ghost_upload(dt_device *dev, void *stream, void *dst, const void *host, size_t nbytes)
{
    (void)dev, (void)stream, (void)dst, (void)host, (void)nbytes;
    return 0;
}
static int dt__ghost_download(dt_device *dev, void *stream, void *host, const void *src, size_t nbytes)
{
    (void)dev, (void)stream, (void)src;
    if (nbytes) memset(host, 0, nbytes);
    return 0;
}
static int dt__ghost_wait(dt_device *dev, void *stream)
{
    (void)dev, (void)stream;
    return 0;
}
static int dt__ghost_kernel(dt_device *dev, const dt_call *c)
{
    (void)dev, (void)c;
    return 0;
}
static void dt__ghost_make(void)
{
    dt_backend *be = &dt__ghost_backend;
    be->name = "elsewhere"; /* on another rank */
    be->alloc = dt__ghost_alloc;
    be->free = dt__ghost_free;
    be->upload = dt__ghost_upload;
    be->download = dt__ghost_download;
    be->wait = dt__ghost_wait;
    for (int k = 0; k < DT_K_COUNT; k++) be->kernel[k] = dt__ghost_kernel;
    dt__device_init(&dt__ghost, be, -1, NULL);
}
DT__INSIDE dt_device *dt__ghost_device(void)
{
    pthread_once(&dt__ghost_once, dt__ghost_make);
    return &dt__ghost;
}

/* Records that the thread's current stream uses the storage. Its memory is there then, or an error is pending. */
static void dt__storage_use(dt__storage *s)
{
    if (__builtin_expect(s->lazy != NULL, 0)) s->lazy->touch(s->lazy);
    if (!s->dev->be->stream_new) return;
    void *stream = dt__stream(s->dev), *seen = __atomic_load_n(&s->other_stream, __ATOMIC_RELAXED);
    if (stream == s->stream || seen == stream) return;
    if (seen == (void *)s &&
        __atomic_compare_exchange_n(&s->other_stream, &seen, stream, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    if (seen != stream) __atomic_store_n(&s->other_stream, (void *)s->dev, __ATOMIC_RELAXED);
}
/* Makes the storage's own stream wait for the work of the other streams that used it. */
static void dt__storage_join_streams(dt__storage *s)
{
    const dt_backend *be = s->dev->be;
    if (s->other_stream == (void *)s) return;
    if (s->other_stream != (void *)s->dev && be->order) be->order(s->dev, s->stream, s->other_stream);
    else be->wait(s->dev, NULL);
    s->other_stream = (void *)s;
}
static void dt__out_of_memory(dt_device *dev, size_t nbytes)
{
    char text[512];
    text[0] = 0;
    if (dev->be->memory_text) dev->be->memory_text(dev, text, sizeof text);
    else
        snprintf(text, sizeof text, "live %zu, cached %zu", __atomic_load_n(&dev->live, __ATOMIC_RELAXED),
                 __atomic_load_n(&dev->cached, __ATOMIC_RELAXED));
    dt_fail(DT_ERR_MEMORY, "dt: out of memory: %zu bytes on %s (%s)", nbytes, dev->name, text);
}
static dt__storage *dt__storage_new(dt_device *dev, size_t nbytes)
{
    size_t rounded;
    if (nbytes > (size_t)1 << 56) {
        dt_fail(DT_ERR_MEMORY, "dt: cannot allocate a tensor of %zu bytes: the limit is 2^56", nbytes);
        return NULL;
    }
    if (dev->be->alloc == dt__ghost_alloc) nbytes = 0;
    int          c = dt__size_class(nbytes, &rounded);
    void        *stream = dt__stream(dev);
    dt__storage *s = NULL;
    pthread_mutex_lock(&dev->lock);
    dt__storage **p = &dev->cache[c];
    for (int tries = 0; *p && tries < 8; tries++, p = &(*p)->next)
        if ((*p)->stream == stream) {
            s = *p;
            *p = s->next;
            break;
        }
    if (s) __atomic_add_fetch(&dev->storages, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&dev->lock);
    if (s) {
        dt__count_cached(dev, rounded, false);
    } else {
        s = (dt__storage *)dt_mem_alloc(sizeof *s);
        void *ptr = s ? dev->be->alloc(dev, rounded) : NULL;
        if (s && !ptr) { /* free the cache and try again */
            dt__device_trim(dev);
            ptr = dev->be->alloc(dev, rounded);
        }
        if (!ptr) {
            dt_mem_free(s, sizeof *s);
            dt__out_of_memory(dev, nbytes);
            return NULL;
        }
        s->dev = dev;
        s->ptr = ptr;
        s->nbytes = rounded;
        __atomic_add_fetch(&dev->storages, 1, __ATOMIC_RELAXED);
    }
    s->refs = 1;
    s->version = 0;
    s->stream = stream;
    s->other_stream = (void *)s;
    s->next = NULL;
    s->adopted = 0;
    s->lazy = NULL;
    dt__count_live(dev, rounded, true);
    return s;
}
static void dt__storage_disown(dt__storage *s)
{
    void (*release)(void *) = s->release;
    void *user = s->user;
    if (release && s->dev != dt_cpu()) /* queued kernels may still use the memory */
        s->dev->be->wait(s->dev, s->other_stream == (void *)s ? s->stream : NULL);
    dt_device *dev = s->dev;
    __atomic_sub_fetch(&dev->storages, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&dev->lock);
    s->next = dev->spare;
    dev->spare = s;
    pthread_mutex_unlock(&dev->lock);
    if (release) release(user);
}
static void dt__storage_unref(dt__storage *s)
{
    if (!s || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL)) return;
    if (s->adopted) {
        dt__storage_disown(s);
        return;
    }
    dt_device *dev = s->dev;
    size_t     rounded;
    int        c = dt__size_class(s->nbytes, &rounded);
    dt__storage_join_streams(s);
    dt__count_live(dev, s->nbytes, false);
    dt__count_cached(dev, s->nbytes, true);
    pthread_mutex_lock(&dev->lock);
    s->next = dev->cache[c];
    dev->cache[c] = s;
    __atomic_sub_fetch(&dev->storages, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&dev->lock);
}

/* ==================================================================================================== >>handles
   A tensor is a handle: offset, shape and strides on a storage. The step, each tape node that uses the tensor and each
   dt_keep hold one reference. The strides of a private layout are in the struct, but only the backend sees them. */
DT__INSIDE const char *dt__text(const dt_tensor *t) { return dt__shape_text(t->shape, t->ndim); }

DT__INSIDE dt_tensor *dt__ref(dt_tensor *t)
{
    if (t) __atomic_add_fetch(&t->refs, 1, __ATOMIC_RELAXED);
    return t;
}

/* Memory of handles. A program may keep the pointer of a tensor that went with its step, and use it: that must be an
   error, not another tensor's values. So the address of a handle that the program has seen is not used again before
   DT__REGIONS_SPENT regions of later handles (3 million handles) have come and gone; until then the handle says that it
   is dead. This takes address space, not memory: pages that hold only dead handles go back to the system and read as
   zeros, which is not DT__LIVE either.
   A region is one mapping, aligned to its size: a page with its head, then pages of handles. A thread takes handles from
   its own region, page after page; any thread may retire one. live[p] counts the living handles of page p, plus one
   while the owner takes handles from it. open counts the pages that have not gone back, plus one while a thread owns
   the region; at 0 the region joins the queue of spent ones. The counts are atomic, dt__regions.lock protects the
   queue. */
#define DT__REGION_BYTES ((size_t)2 << 20)
#if defined(__x86_64__)
#define DT__REGION_PAGE ((size_t)4096)
#else
#define DT__REGION_PAGE ((size_t)65536) /* the largest page of a system */
#endif
#define DT__REGION_PAGES (DT__REGION_BYTES / DT__REGION_PAGE - 1)
#define DT__REGIONS_SPENT 512
typedef struct dt__region {
    struct dt__region *next; /* in the queue */
    int32_t            open;
    uint16_t           live[DT__REGION_PAGES];
} dt__region;
typedef char dt__region_fits[sizeof(dt__region) <= DT__REGION_PAGE ? 1 : -1];
static struct {
    pthread_mutex_t lock;
    dt__region     *oldest, *newest; /* spent regions */
    int             n;
} dt__regions = { PTHREAD_MUTEX_INITIALIZER, NULL, NULL, 0 };

static dt__region *dt__region_map(void) /* NULL: no address space */
{
    size_t n = DT__REGION_BYTES;
    char  *p = (char *)mmap(NULL, 2 * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == (char *)MAP_FAILED) return NULL;
    size_t before = (n - (uintptr_t)p % n) % n; /* only the aligned part stays */
    if (before) munmap(p, before);
    munmap(p + before + n, n - before);
    madvise(p + before, n, MADV_NOHUGEPAGE); /* a page at a time is used and given back */
    DT__ROOTS(p + before, n);
    return (dt__region *)(void *)(p + before);
}
static dt__region *dt__region_new(void)
{
    pthread_mutex_lock(&dt__regions.lock);
    dt__region *r = dt__regions.n >= DT__REGIONS_SPENT ? NULL : dt__region_map();
    if (!r && (r = dt__regions.oldest) != NULL) {
        dt__regions.oldest = r->next;
        if (!r->next) dt__regions.newest = NULL;
        dt__regions.n--;
        memset(r, 0, sizeof *r);
    }
    pthread_mutex_unlock(&dt__regions.lock);
    if (r) r->open = 1;
    return r;
}
static void dt__region_leave(dt__region *r, int pages)
{
    if (__atomic_sub_fetch(&r->open, pages, __ATOMIC_ACQ_REL)) return;
    r->next = NULL;
    pthread_mutex_lock(&dt__regions.lock);
    if (dt__regions.newest) dt__regions.newest->next = r;
    else dt__regions.oldest = r;
    dt__regions.newest = r;
    dt__regions.n++;
    pthread_mutex_unlock(&dt__regions.lock);
}
static dt__region *dt__region_of(const void *p) { return (dt__region *)((uintptr_t)p & ~(uintptr_t)(DT__REGION_BYTES - 1)); }

static void dt__dead_flush(dt__ctx *ctx)
{
    char  *from = ctx->dead_from;
    size_t n = (size_t)(ctx->dead_to - from);
    if (!from) return;
    ctx->dead_from = ctx->dead_to = NULL;
    madvise(from, n, MADV_DONTNEED);
    dt__region_leave(dt__region_of(from), (int)(n / DT__REGION_PAGE));
}
/* One user less of a page; heads of regions lie between the pages of two, so a run of pages is of one region. */
static void dt__page_leave(dt__ctx *ctx, dt__region *r, size_t page)
{
    enum { RUN = 32 };
    if (__atomic_sub_fetch(&r->live[page], 1, __ATOMIC_ACQ_REL)) return;
    char *p = (char *)r + (page + 1) * DT__REGION_PAGE;
    if (p != ctx->dead_to || p - ctx->dead_from >= (ptrdiff_t)(RUN * DT__REGION_PAGE)) {
        dt__dead_flush(ctx);
        ctx->dead_from = p;
    }
    ctx->dead_to = p + DT__REGION_PAGE;
}
static void dt__handle_retire(dt__ctx *ctx, dt_tensor *t)
{
    dt__region *r = dt__region_of(t);
    dt__page_leave(ctx, r, (size_t)((char *)t - (char *)r) / DT__REGION_PAGE - 1);
}
static void dt__region_close(dt__ctx *ctx)
{
    dt__region *r = ctx->region;
    if (!r) return;
    dt__page_leave(ctx, r, (size_t)ctx->region_page);
    ctx->region = NULL;
    dt__region_leave(r, 1);
}
/* Takes memory for the next pages in one call, which costs a fraction of a page fault for each. */
static void dt__region_ahead(dt__region *r, int page)
{
    enum { AHEAD = 16 };
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older ones refuse it, and each page is a fault */
#endif
    size_t n = DT__REGION_PAGES - (size_t)page < AHEAD ? DT__REGION_PAGES - (size_t)page : (size_t)AHEAD;
    if (page % AHEAD == 0) madvise((char *)r + (size_t)(page + 1) * DT__REGION_PAGE, n * DT__REGION_PAGE, MADV_POPULATE_WRITE);
}
static dt_tensor *dt__handle_fresh(dt__ctx *ctx)
{
    int full = (int)(DT__REGION_PAGE / sizeof(dt_tensor));
    if (ctx->region && ctx->region_next == full) {
        if (ctx->region_page + 1 == (int)DT__REGION_PAGES) {
            dt__region_close(ctx);
        } else {
            __atomic_add_fetch(&ctx->region->open, 1, __ATOMIC_RELAXED);
            dt__page_leave(ctx, ctx->region, (size_t)ctx->region_page);
            ctx->region->live[++ctx->region_page] = 1;
            ctx->region_next = 0;
            dt__region_ahead(ctx->region, ctx->region_page);
        }
    }
    if (!ctx->region) {
        if (!(ctx->region = dt__region_new())) return NULL;
        ctx->region->open = 2;
        ctx->region->live[0] = 1;
        ctx->region_page = ctx->region_next = 0;
        dt__region_ahead(ctx->region, 0);
    }
    __atomic_add_fetch(&ctx->region->live[ctx->region_page], 1, __ATOMIC_RELAXED);
    return (dt_tensor *)(void *)((char *)ctx->region + (size_t)(ctx->region_page + 1) * DT__REGION_PAGE) + ctx->region_next++;
}
static void dt__node_forget_out(dt__node *node, int out);
static void dt__group_forget(dt_tensor *t);

DT__INSIDE void dt__unref(dt_tensor *t)
{
    if (!t || __atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL)) return;
    dt__ctx *ctx = &dt__tls;
    if (t->node) dt__node_forget_out(t->node, t->node_out);
    if (t->group) dt__group_forget(t);
    dt_tensor *grad = t->grad, *partial = t->partial;
    dt__storage_unref(t->st);
    t->magic = DT__DEAD;
    t->st = NULL;
    t->grad = t->partial = NULL;
    if (t->given) {
        dt__handle_retire(ctx, t);
    } else {
        t->next = ctx->free_tensors;
        ctx->free_tensors = t;
    }
    __atomic_sub_fetch(&dt__global.tensors, 1, __ATOMIC_RELAXED);
    dt__unref(grad);
    dt__unref(partial);
}

DT__INSIDE void dt__dense_strides(int64_t *stride, const int64_t *shape, int ndim)
{
    int64_t s = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = s;
        s *= shape[i] > 0 ? shape[i] : 1;
    }
}
static void dt__layout_strides(int64_t *stride, const int64_t *shape, int ndim, int layout)
{
    dt__dense_strides(stride, shape, ndim);
    if (layout != DT_LAYOUT_NHWC) return;
    int64_t c = shape[1] > 0 ? shape[1] : 1, h = shape[2] > 0 ? shape[2] : 1, w = shape[3] > 0 ? shape[3] : 1;
    stride[1] = 1;
    stride[3] = c;
    stride[2] = w * c;
    stride[0] = h * w * c;
}
static bool dt__is_dense(const dt_tensor *t)
{
    if (t->layout != DT_LAYOUT_PLAIN) return false;
    int64_t s = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != s && t->numel) return false;
        s *= t->shape[i];
    }
    return true;
}
static dt_tensor *dt__handle_new(void)
{
    dt__ctx   *ctx = &dt__tls;
    dt_tensor *t = ctx->free_tensors;
    if (t) {
        ctx->free_tensors = t->next;
    } else {
        dt__register_thread(ctx);
        t = dt__handle_fresh(ctx);
        if (!t) {
            dt_fail(DT_ERR_MEMORY, "dt: out of memory for a tensor handle");
            return NULL;
        }
    }
    memset(t, 0, sizeof *t);
    t->magic = DT__LIVE;
    t->refs = 1;
    __atomic_add_fetch(&dt__global.tensors, 1, __ATOMIC_RELAXED);
    return t;
}
/* A new dense tensor in the given layout. The caller owns its one reference. */
DT__INSIDE dt_tensor *dt__new(const char *call, dt_device *dev, int dtype, const int64_t *shape, int ndim, int layout)
{
    int64_t n = dt__count(shape, ndim, dt__dtype_size[dtype]);
    if (n < 0) {
        dt_fail(DT_ERR_SHAPE, "%s: shape %s of %s has a negative dimension or is too large", call,
                dt__shape_text(shape, ndim), dt_dtype_name((dt_dtype)dtype));
        return NULL;
    }
    dt_tensor *t = dt__handle_new();
    if (!t) return NULL;
    t->dtype = dtype;
    t->ndim = ndim;
    t->layout = layout;
    t->numel = n;
    for (int i = 0; i < ndim; i++) t->shape[i] = shape[i];
    dt__layout_strides(t->stride, shape, ndim, layout);
    t->st = dt__storage_new(dev, (size_t)n * dt__dtype_size[dtype]);
    if (!t->st) {
        dt__unref(t);
        return NULL;
    }
    return t;
}
DT__INSIDE dt_tensor *dt__new_like(const char *call, const dt_tensor *x, int dtype)
{
    return dt__new(call, x->st->dev, dtype, x->shape, x->ndim, x->layout);
}
/* A new dense tensor of x's shape whose dimensions are stored in the order of x's strides; the last one stays last. */
static dt_tensor *dt__new_ordered(const char *call, const dt_tensor *x, int dtype)
{
    int64_t shape[DT_MAX_DIMS], stride[DT_MAX_DIMS];
    int     order[DT_MAX_DIMS] = { 0 };
    for (int i = 0; i < x->ndim; i++) {
        int j = i;
        for (; i + 1 < x->ndim && j > 0 && x->stride[order[j - 1]] < x->stride[i]; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    for (int i = 0; i < x->ndim; i++) shape[i] = x->shape[order[i]];
    dt_tensor *t = dt__new(call, x->st->dev, dtype, shape, x->ndim, DT_LAYOUT_PLAIN);
    if (!t) return NULL;
    memcpy(stride, t->stride, sizeof stride);
    for (int i = 0; i < x->ndim; i++) {
        t->shape[order[i]] = shape[i];
        t->stride[order[i]] = stride[i];
    }
    return t;
}
/* Passes the reference of a new tensor to the step. */
DT__INSIDE dt_tensor *dt__give(dt_tensor *t)
{
    dt__ctx *ctx = &dt__tls;
    if (!t) return NULL;
    if (dt__push(&ctx->step, t)) {
        dt__unref(t);
        return NULL;
    }
    t->step = ctx;
    t->step_slot = ctx->step.n - 1;
    t->given = 1;
    if (__builtin_expect(ctx->split != NULL, 0)) ctx->split->made(ctx->split->user, t);
    return t;
}
/* Checks an argument of a public call: no error is pending, t is not NULL and was not released. */
DT__INSIDE bool dt__ok(const char *call, const char *arg, const dt_tensor *t)
{
    if (dt__err.code != DT_OK) return false;
    if (!t) {
        dt_fail(DT_ERR_ARG, "%s: %s is NULL", call, arg);
        return false;
    }
    if (t->magic != DT__LIVE) {
        dt_fail(DT_ERR_STATE, "%s: %s was already released; dt_keep() a tensor that must outlive dt_end() or dt_step()",
                call, arg);
        return false;
    }
    if (__builtin_expect(dt__tls.split != NULL, 0)) {
        dt__tls.split->use(dt__tls.split->user, call, (dt_tensor *)(uintptr_t)t);
        return dt__err.code == DT_OK;
    }
    return true;
}
DT__INSIDE bool dt__same_device(const char *call, const dt_tensor *a, const dt_tensor *b)
{
    if (!b || a->st->dev == b->st->dev) return true;
    dt_fail(DT_ERR_DEVICE, "%s: tensors are on %s and %s; move one with dt_to()", call, a->st->dev->name,
            b->st->dev->name);
    return false;
}
DT__INSIDE bool dt__want_float(const char *call, const dt_tensor *t)
{
    if (dt__is_float(t->dtype)) return true;
    dt_fail(DT_ERR_DTYPE, "%s: takes f32, f16 or bf16, not %s; dt_cast() it first", call, dt_dtype_name((dt_dtype)t->dtype));
    return false;
}
DT__INSIDE bool dt__dim_ok(const char *call, int *dim, int ndim)
{
    int d = *dim < 0 ? *dim + ndim : *dim;
    if (d < 0 || d >= ndim) {
        dt_fail(DT_ERR_ARG, "%s: dimension %d is out of range for a tensor of %d dimensions", call, *dim, ndim);
        return false;
    }
    *dim = d;
    return true;
}

DT_API dt_tensor *dt_keep(dt_tensor *t)
{
    if (!dt__ok("dt_keep", "t", t)) return NULL;
    dt__ctx *ctx = &dt__tls;
    t->given = 1;
    if (t->step == ctx) {
        ctx->step.at[t->step_slot] = NULL;
        t->step = NULL;
    } else if (t->step) {
        dt_fail(DT_ERR_STATE, "dt_keep: the tensor belongs to another thread's step; keep it on that thread");
        return NULL;
    } else {
        dt__ref(t);
    }
    return t;
}
DT_API void dt_free(dt_tensor *t)
{
    if (!t) return;
    if (t->magic != DT__LIVE) {
        dt_fail(DT_ERR_STATE, "dt_free: the tensor was already released, by dt_free or at the end of its step");
        return;
    }
    dt__ctx *ctx = &dt__tls;
    if (t->step == ctx) {
        ctx->step.at[t->step_slot] = NULL;
        t->step = NULL;
    } else if (t->step) {
        dt_fail(DT_ERR_STATE, "dt_free: the tensor belongs to another thread's step; free it on that thread");
        return;
    }
    dt__unref(t);
}

DT_API dt_memory_stats dt_stats(void)
{
    dt_memory_stats s;
    s.live_bytes = __atomic_load_n(&dt__global.live, __ATOMIC_RELAXED);
    s.peak_bytes = __atomic_load_n(&dt__global.peak, __ATOMIC_RELAXED);
    s.cached_bytes = __atomic_load_n(&dt__global.cached, __ATOMIC_RELAXED);
    s.live_tensors = __atomic_load_n(&dt__global.tensors, __ATOMIC_RELAXED);
    dt__alloc_counts(&s.host_allocs, &s.host_bytes);
    s.fallbacks = __atomic_load_n(&dt__global.fallbacks, __ATOMIC_RELAXED);
    return s;
}
DT_API void dt_stats_reset(void)
{
    __atomic_store_n(&dt__global.peak, __atomic_load_n(&dt__global.live, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    dt_cpu(); /* it is in the list after its first use */
    pthread_mutex_lock(&dt__global.lock);
    for (dt_device *d = dt__global.devices; d; d = d->next)
        __atomic_store_n(&d->peak, __atomic_load_n(&d->live, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    pthread_mutex_unlock(&dt__global.lock);
}
DT_API dt_memory_stats dt_device_stats(dt_device *dev)
{
    dt_memory_stats s;
    if (!dev) dev = dt_default_device();
    memset(&s, 0, sizeof s);
    s.live_bytes = __atomic_load_n(&dev->live, __ATOMIC_RELAXED);
    s.peak_bytes = __atomic_load_n(&dev->peak, __ATOMIC_RELAXED);
    s.cached_bytes = __atomic_load_n(&dev->cached, __ATOMIC_RELAXED);
    return s;
}
static void dt__trim_nodes(dt__ctx *t);
DT_API void dt_empty_cache(void)
{
    dt__ctx *t = &dt__tls;
    while (t->free_tensors) {
        dt_tensor *x = t->free_tensors;
        t->free_tensors = x->next;
        dt__handle_retire(t, x);
    }
    dt__dead_flush(t);
    dt__trim_nodes(t);
    dt__trace_leave(t, false);
    if (t->step.n == 0) dt__list_free(&t->step);
    if (t->tape.n == 0) dt__list_free(&t->tape);
    dt_mem_free(t->scratch, t->scratch_nbytes ? t->scratch_nbytes + 64 : 0);
    t->scratch = NULL;
    t->scratch_nbytes = 0;
    pthread_mutex_lock(&dt__global.lock);
    for (dt_device *d = dt__global.devices; d; d = d->next) dt__device_trim(d);
    pthread_mutex_unlock(&dt__global.lock);
}
/* ==================================================================================================== >>mersenne
   MT19937 and the distributions of PyTorch, bit-identical (PyTorch 2.15, x86-64 with AVX2, float tensors):
   - uniform: 24 bits of one word, then one fused multiply-add; a value that rounded up to hi becomes lo.
   - normal, n >= 16: n uniforms first, then Box-Muller in place on groups of 16 (lanes j and j + 8 make a pair) in f32
     with Cephes' polynomials; if 16 does not divide n, the last 16 are drawn and computed again. Halves: see dt__draw.
   - normal, n < 16: Box-Muller in f64 on 53-bit uniforms; the second value of a pair is kept for the next call.
   - randperm: Fisher-Yates with one word per swap; for n >= 2^32/20, the "inside-out" variant with two words.
   Every fused multiply-add is written as fma, and no other product is an operand of a sum, so the bits do not depend on
   -ffp-contract. The f64 path uses log1p, sin and cos of libm, as PyTorch does. */
typedef uint32_t dt__rng_w4 __attribute__((vector_size(16)));
typedef uint32_t dt__rng_w4_at __attribute__((vector_size(16), aligned(4), may_alias));
#define DT__RNG_TWIST(u, v, far) ((far) ^ ((((u) & 0x80000000u) | ((v) & 0x7fffffffu)) >> 1) ^ ((0u - ((v) & 1u)) & 0x9908b0dfu))
static inline void dt__rng_twist(uint32_t *s, int far, int from, int to) /* four words at a time: none depends on another */
{
    int i = from;
    for (; i + 4 <= to; i += 4) {
        dt__rng_w4 u = *(const dt__rng_w4_at *)(s + i), v = *(const dt__rng_w4_at *)(s + i + 1);
        *(dt__rng_w4_at *)(s + i) = DT__RNG_TWIST(u, v, *(const dt__rng_w4_at *)(s + i + far));
    }
    for (; i < to; i++) s[i] = DT__RNG_TWIST(s[i], s[i + 1], s[i + far]);
}
static void dt__rng_refill(dt_rng *r)
{
    uint32_t *s = r->state;
    dt__rng_twist(s, 397, 0, 227);
    dt__rng_twist(s, -227, 227, 623);
    s[623] = DT__RNG_TWIST(s[623], s[0], s[396]);
    r->next = 0;
}
#undef DT__RNG_TWIST

static inline uint32_t dt__rng_temper(uint32_t y)
{
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static inline uint32_t dt__rng_next(dt_rng *r)
{
    if ((uint32_t)r->next >= 624u) dt__rng_refill(r);
    return dt__rng_temper(r->state[r->next++]);
}

static void dt__rng_words(dt_rng *r, uint32_t *out, int64_t n)
{
    while (n > 0) {
        if ((uint32_t)r->next >= 624u) dt__rng_refill(r);
        const uint32_t *s = r->state + r->next;
        int64_t         m = 624 - r->next < n ? 624 - r->next : n, i = 0;
        for (; i + 4 <= m; i += 4) {
            dt__rng_w4 y = *(const dt__rng_w4_at *)(s + i);
            y ^= y >> 11;
            y ^= (y << 7) & 0x9d2c5680u;
            y ^= (y << 15) & 0xefc60000u;
            *(dt__rng_w4_at *)(out + i) = y ^ (y >> 18);
        }
        for (; i < m; i++) out[i] = dt__rng_temper(s[i]);
        r->next += (int32_t)m;
        out += m;
        n -= m;
    }
}

static inline uint64_t dt__rng_next64(dt_rng *r)
{
    uint64_t hi = dt__rng_next(r);
    return hi << 32 | dt__rng_next(r);
}

DT_API void dt_rng_seed(dt_rng *r, uint64_t seed)
{
    if (!r) r = dt_rng_default();
    uint32_t x = (uint32_t)seed; /* MT19937 uses only the low 32 bits of the seed; Philox uses all 64 */
    for (uint32_t i = 0; i < 624; i++) {
        if (i > 0) x = 1812433253u * (x ^ (x >> 30)) + i;
        r->state[i] = x;
    }
    r->next = 624;
    r->has_normal = 0;
    r->normal = 0.0;
    r->seed = seed;
    r->philox_offset = 0;
}

DT_API uint32_t dt_rng_u32(dt_rng *r) { return dt__rng_next(r ? r : dt_rng_default()); }
DT_API uint64_t dt_rng_u64(dt_rng *r) { return dt__rng_next64(r ? r : dt_rng_default()); }
static bool     dt__rng_args(const char *call, dt_rng **r, const void *out, int64_t n)
{
    if (!*r) *r = dt_rng_default();
    if (out && n >= 0) return true;
    if (n != 0) dt_fail(DT_ERR_ARG, "%s: out is NULL or n is negative (n is %" PRId64 ")", call, n);
    return false;
}

/* Loops over eight floats, compiled with and without the FMA instruction (then each fma is a call of libm): the same bits.
   scale: out = [0, 1) with 24 bits of a word, * range + from; a value that rounds to 'to' is 'from'.
   box: Box-Muller in place on 16 floats. log x for normal x > 0: x = m 2^e with sqrt(1/2) <= m < sqrt(2), then a polynomial in
   m - 1. Sine and cosine of 0 <= x < 7: reduced by a multiple of pi/2 in three steps, then two polynomials. */
typedef float    dt__rng_f8 __attribute__((vector_size(32)));
typedef int32_t  dt__rng_i8 __attribute__((vector_size(32)));
typedef float    dt__rng_f8_at __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t  dt__rng_i8_at __attribute__((vector_size(32), aligned(4), may_alias));
#define DT__RNG_KERNELS(suffix, attr, FMA, SQRT)                                                                             \
    static attr void dt__rng_scale##suffix(float *out, const uint32_t *w, int64_t n, float range, float from, float to)      \
    {                                                                                                                        \
        dt__rng_f8 none = { 0 }, r = none + range, f = none + from;                                                          \
        int64_t    i = 0;                                                                                                    \
        for (; i + 8 <= n; i += 8) {                                                                                         \
            dt__rng_i8 v = *(const dt__rng_i8_at *)(w + i) & 0xffffff, same;                                                 \
            dt__rng_f8 x = __builtin_convertvector(v, dt__rng_f8) * 5.9604644775390625e-8f;                                  \
            FMA(x, x, r, f);                                                                                                 \
            same = (dt__rng_i8)(x == none + to);                                                                             \
            *(dt__rng_f8_at *)(out + i) = (dt__rng_f8_at)(((dt__rng_i8)f & same) | ((dt__rng_i8)x & ~same));                 \
        }                                                                                                                    \
        for (; i < n; i++) {                                                                                                 \
            float x = __builtin_fmaf((float)(int32_t)(w[i] & 0xffffffu) * 5.9604644775390625e-8f, range, from);              \
            out[i] = x == to ? from : x;                                                                                     \
        }                                                                                                                    \
    }                                                                                                                        \
    static attr void dt__rng_box##suffix(float *d, float mean, float std)                                                    \
    {                                                                                                                        \
        dt__rng_f8 none = { 0 }, u = 1.0f - *(const dt__rng_f8_at *)d, t = *(const dt__rng_f8_at *)(d + 8);                  \
        dt__rng_f8 m = (dt__rng_f8)(((dt__rng_i8)u & 0x007fffff) | 0x3f000000), y, z, e, k, c, s, x, a, b, r;                \
        dt__rng_i8 low = (dt__rng_i8)(m < none + 0.707106781186547524f), q, odd;                                             \
        e = __builtin_convertvector(((dt__rng_i8)u >> 23) - 126 + low, dt__rng_f8);                                          \
        m = (m - 1.0f) + (dt__rng_f8)((dt__rng_i8)m & low);                                                                  \
        z = m * m;                                                                                                           \
        y = none + 7.0376836292e-2f;                                                                                         \
        FMA(y, y, m, none + -1.1514610310e-1f);                                                                              \
        FMA(y, y, m, none + 1.1676998740e-1f);                                                                               \
        FMA(y, y, m, none + -1.2420140846e-1f);                                                                              \
        FMA(y, y, m, none + 1.4249322787e-1f);                                                                               \
        FMA(y, y, m, none + -1.6668057665e-1f);                                                                              \
        FMA(y, y, m, none + 2.0000714765e-1f);                                                                               \
        FMA(y, y, m, none + -2.4999993993e-1f);                                                                              \
        FMA(y, y, m, none + 3.3333331174e-1f);                                                                               \
        y = y * m;                                                                                                           \
        FMA(y, y, z, e * -2.12194440e-4f);                                                                                   \
        FMA(y, z, none + -0.5f, y);                                                                                          \
        FMA(y, e, none + 0.693359375f, m + y);                                                                               \
        y = y * -2.0f;                                                                                                       \
        SQRT(r, y);                                                                                                          \
        x = t * 6.283185307179586f;                                                                                          \
        q = (__builtin_convertvector(x * 1.27323954473516f, dt__rng_i8) + 1) & ~1; /* the octant, made even */               \
        k = __builtin_convertvector(q, dt__rng_f8);                                                                          \
        FMA(x, k, none + -0.78515625f, x);                                                                                   \
        FMA(x, k, none + -2.4187564849853515625e-4f, x);                                                                     \
        FMA(x, k, none + -3.77489497744594108e-8f, x);                                                                       \
        z = x * x;                                                                                                           \
        FMA(c, none + 2.443315711809948e-5f, z, none + -1.388731625493765e-3f);                                              \
        FMA(c, c, z, none + 4.166664568298827e-2f);                                                                          \
        FMA(c, c * z, z, z * -0.5f);                                                                                         \
        c = c + 1.0f;                                                                                                        \
        FMA(s, none + -1.9515295891e-4f, z, none + 8.3321608736e-3f);                                                        \
        FMA(s, s, z, none + -1.6666654611e-1f);                                                                              \
        FMA(s, s * z, x, x);                                                                                                 \
        odd = (dt__rng_i8)((q & 2) != 0);                                                                                    \
        a = (dt__rng_f8)((((dt__rng_i8)c & odd) | ((dt__rng_i8)s & ~odd)) ^ ((q & 4) << 29));                                \
        b = (dt__rng_f8)((((dt__rng_i8)s & odd) | ((dt__rng_i8)c & ~odd)) ^ ((~(q - 2) & 4) << 29));                         \
        FMA(x, r * b, none + std, none + mean);                                                                              \
        FMA(y, r * a, none + std, none + mean);                                                                              \
        *(dt__rng_f8_at *)d = (dt__rng_f8_at)x;                                                                              \
        *(dt__rng_f8_at *)(d + 8) = (dt__rng_f8_at)y;                                                                        \
    }
#define DT__RNG_FMA(to, a, b, c)                                                          \
    do {                                                                                  \
        dt__rng_f8 a_ = a, b_ = b, c_ = c;                                                \
        for (int i_ = 0; i_ < 8; i_++) c_[i_] = __builtin_fmaf(a_[i_], b_[i_], c_[i_]);   \
        to = c_;                                                                          \
    } while (0)
#define DT__RNG_SQRT(to, a)                                            \
    for (int i_ = 0; i_ < 8; i_++) to[i_] = __builtin_sqrtf(a[i_])
DT__RNG_KERNELS(, , DT__RNG_FMA, DT__RNG_SQRT)
#undef DT__RNG_FMA
#undef DT__RNG_SQRT
#if defined(__x86_64__) && !defined(__FMA__)
#define DT__RNG_FMA(to, a, b, c)                                                                              \
    do {                                                                                                      \
        dt__rng_f8 a_ = a, b_ = b, c_ = c;                                                                    \
        __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(c_) : "x"(a_), "x"(b_));                         \
        to = c_;                                                                                              \
    } while (0)
#define DT__RNG_SQRT(to, a) __asm__("vsqrtps {%1, %0|%0, %1}" : "=x"(to) : "x"(a))
DT__RNG_KERNELS(_fma, __attribute__((target("avx2,fma"))), DT__RNG_FMA, DT__RNG_SQRT)
#undef DT__RNG_FMA
#undef DT__RNG_SQRT
#endif
#undef DT__RNG_KERNELS
typedef struct dt__rng_code {
    void (*scale)(float *out, const uint32_t *w, int64_t n, float range, float from, float to);
    void (*box)(float *d, float mean, float std);
} dt__rng_code;
static dt__rng_code dt__rng_best(void)
{
    dt__rng_code f = { dt__rng_scale, dt__rng_box };
#if defined(__x86_64__) && !defined(__FMA__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) f.scale = dt__rng_scale_fma, f.box = dt__rng_box_fma;
#endif
    return f;
}
static void dt__rng_fill(const dt__rng_code *f, dt_rng *r, float *out, int64_t n, float range, float from, float to)
{
    uint32_t w[1024];
    for (int64_t i = 0, m; i < n; i += m) {
        m = n - i < 1024 ? n - i : 1024;
        dt__rng_words(r, w, m);
        f->scale(out + i, w, m, range, from, to);
    }
}

DT_API void dt_rng_uniform(dt_rng *r, float *out, int64_t n, double lo, double hi)
{
    if (!dt__rng_args("dt_rng_uniform", &r, out, n)) return;
    dt__rng_code f = dt__rng_best();
    dt__rng_fill(&f, r, out, n, (float)hi - (float)lo, (float)lo, (float)hi);
}

static double dt__rng_normal1(dt_rng *r) /* one standard normal in f64 */
{
    if (r->has_normal) {
        r->has_normal = 0;
        return r->normal;
    }
    double u = (double)(int64_t)(dt__rng_next64(r) & 0x1fffffffffffffu) * 1.1102230246251565e-16;
    double v = (double)(int64_t)(dt__rng_next64(r) & 0x1fffffffffffffu) * 1.1102230246251565e-16;
    double radius = sqrt(-2.0 * log1p(-v)), theta = 6.283185307179586 * u;
    r->normal = radius * sin(theta);
    r->has_normal = 1;
    return radius * cos(theta);
}

DT_API void dt_rng_normal(dt_rng *r, float *out, int64_t n, double mean, double std)
{
    if (!dt__rng_args("dt_rng_normal", &r, out, n)) return;
    if (n < 16) {
        for (int64_t i = 0; i < n; i++) out[i] = (float)__builtin_fma(dt__rng_normal1(r), std, mean);
        return;
    }
    dt__rng_code f = dt__rng_best();
    dt__rng_fill(&f, r, out, n, 1.0f, 0.0f, 1.0f);
    for (int64_t i = 0; i + 16 <= n; i += 16) f.box(out + i, (float)mean, (float)std);
    if (n % 16 != 0) {
        out += n - 16;
        dt__rng_fill(&f, r, out, 16, 1.0f, 0.0f, 1.0f);
        f.box(out, (float)mean, (float)std);
    }
}

DT_API void dt_rng_randperm(dt_rng *r, int64_t *out, int64_t n)
{
    if (!dt__rng_args("dt_rng_randperm", &r, out, n)) return;
    if (n >= INT64_C(4294967295) / 20) {
        for (int64_t i = 0; i < n; i++) {
            int64_t z = (int64_t)(dt__rng_next64(r) % (uint64_t)(i + 1));
            out[i] = i; /* z may be i */
            out[i] = out[z];
            out[z] = i;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) out[i] = i;
    for (int64_t i = 0; i < n - 1; i++) {
        int64_t z = i + (int64_t)(dt__rng_next(r) % (uint32_t)(n - i)), t = out[i];
        out[i] = out[z];
        out[z] = t;
    }
}

DT_API void dt_philox(uint64_t seed, uint64_t counter, uint32_t out[4])
{
    if (out) dt__philox_block(seed, counter, out);
}

DT__SLOW_BEGIN
/* ==================================================================================================== >>tracing
   Callers: every thread that computes. Each thread appends complete events, as text, to its own buffer (dt__tbuf), without
   lock or malloc. It takes dt__trace.lock and writes the buffer to the file when the buffer is full, and at dt_end if the
   last write is more than 250 ms ago. dt_trace_stop writes the buffers of all threads up to their published lengths
   (len, atomic). An event that is in progress then is lost: its buffer has the number of the old trace and is not
   written again. dt__trace.lock protects the file, the list of buffers and their numbers.

   dt__trace.on has three states: DT__TRACE_UNKNOWN (DT_TRACE was not read yet; the first call that asks reads it),
   DT__TRACE_OFF, DT__TRACE_ON.

   The file is a JSON array because viewers accept an array without the closing bracket. Every event begins with the comma
   that separates it from the previous one, so at any time the file plus a bracket is valid JSON. */
#define DT__TRACE_CHUNK 65536
#define DT__TRACE_ROOM 2048 /* maximum bytes of one event */
#define DT__TRACE_DEPTH 64
#define DT__TRACE_NAME 64
#define DT__TRACE_TRACKS 64

struct dt__tbuf { /* the trace buffer of a thread; times in ns of CLOCK_MONOTONIC */
    dt__tbuf *next;
    uint32_t  serial;
    int       id;       /* number of the thread in its trace, from 0 */
    size_t    len;      /* atomic: bytes of complete events in text */
    uint64_t  last;     /* the last value of dt__trace_time */
    uint64_t  written;  /* time of the last write to the file */
    uint64_t  step_t0, phase_t0; /* begin of the step and of its phase; 0: no event in it yet */
    int64_t   steps;
    int       updating; /* a backward ran in this step */
    int       depth;    /* nesting of dt_trace_push; spans deeper than DT__TRACE_DEPTH are counted, not recorded */
    struct {
        uint64_t t0;
        char     name[DT__TRACE_NAME];
    } open[DT__TRACE_DEPTH];
    char text[DT__TRACE_CHUNK];
};
enum { DT__TRACE_UNKNOWN = -1, DT__TRACE_OFF = 0, DT__TRACE_ON = 1 };
static struct {
    int             on;       /* atomic: DT__TRACE_... */
    uint32_t        serial;  /* atomic: incremented by each start and stop of a trace */
    pthread_mutex_t lock;     /* protects the members below, and next and serial of every buffer */
    int             fd;       /* -1 if no file is open */
    int             error;    /* errno of a failed write, or 0 */
    int             from_env; /* DT_TRACE started this trace */
    int             hooked;   /* the handlers of fork and exit are installed */
    int64_t         nbytes;   /* size of the file */
    int             threads;  /* threads that record into the running trace */
    dt__tbuf       *bufs;
    int             ntracks;
    char            track[DT__TRACE_TRACKS][DT__TRACE_NAME];
    char            path[1024];
    char            pid[24]; /* decimal */
} dt__trace = { DT__TRACE_UNKNOWN, 0, PTHREAD_MUTEX_INITIALIZER, -1, 0, 0, 0, 0, 0, NULL, 0, { { 0 } }, { 0 }, { 0 } };

DT__INSIDE int dt__trace_on(void) { return __builtin_expect(__atomic_load_n(&dt__trace.on, __ATOMIC_RELAXED), 0); }
static void       dt__trace_set(int on) { __atomic_store_n(&dt__trace.on, on, __ATOMIC_RELAXED); }
DT_API uint64_t   dt_trace_now(void) { return dt__nanoseconds(); }
/* Strictly increasing on each thread, so that a nested span never has the same begin as the enclosing one. */
DT__INSIDE uint64_t dt__trace_time(dt__tbuf *b)
{
    uint64_t t = dt_trace_now();
    return b->last = t > b->last ? t : b->last + 1;
}

/* ---- text: each function writes at p and returns the end; DT__TRACE_ROOM bytes hold the longest event */
static char *dt__tput(char *p, const char *s)
{
    while (*s) *p++ = *s++;
    return p;
}
static char *dt__tput_int(char *p, uint64_t v)
{
    char  digits[20];
    int   n = 0;
    do digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    while (n) *p++ = digits[--n];
    return p;
}
static char *dt__tput_us(char *p, uint64_t ns)
{
    unsigned f = (unsigned)(ns % 1000);
    p = dt__tput_int(p, ns / 1000);
    *p++ = '.';
    *p++ = (char)('0' + f / 100);
    *p++ = (char)('0' + f / 10 % 10);
    *p++ = (char)('0' + f % 10);
    return p;
}
/* At most DT__TRACE_NAME - 1 bytes of the name, cut between characters, escaped for JSON (at most 6 bytes per byte). */
static char *dt__tput_name(char *p, const char *name)
{
    const unsigned char *s = (const unsigned char *)(name ? name : "");
    for (int left = DT__TRACE_NAME - 1, n; *s && left > 0; s += n, left -= n) {
        n = (int)dt__utf8_len(s, 4);
        if (n > left) break;
        if (n == 0) {
            *p++ = '?';
            n = 1;
        } else if (*s == '"' || *s == '\\') {
            *p++ = '\\';
            *p++ = (char)*s;
        } else if (*s < 0x20 || *s == 0x7f) {
            p = dt__tput(p, "\\u00");
            *p++ = (char)('0' + *s / 16);
            *p++ = "0123456789abcdef"[*s % 16];
        } else {
            for (int i = 0; i < n; i++) *p++ = (char)s[i];
        }
    }
    return p;
}
static void dt__trace_copy_name(char *to, const char *name)
{
    size_t n = name ? strlen(name) : 0;
    if (n > DT__TRACE_NAME - 1)
        for (n = DT__TRACE_NAME - 1; n > 0 && (name[n] & 0xc0) == 0x80;) n--; /* between characters */
    if (n) memcpy(to, name, n);
    to[n] = 0;
}

/* ---- the file; the lock is held */
static void dt__trace_write(const char *text, size_t n)
{
    size_t done = 0;
    while (done < n && !dt__trace.error && dt__trace.fd >= 0) {
        ssize_t k = write(dt__trace.fd, text + done, n - done);
        if (k > 0) {
            done += (size_t)k;
        } else if (k == 0 || errno != EINTR) {
            dt__trace.error = k < 0 ? errno : EIO;
            dt__trace_set(DT__TRACE_OFF);
            if (ftruncate(dt__trace.fd, (off_t)dt__trace.nbytes)) { /* then the file ends with an incomplete event */
            }
        }
    }
    if (done == n) dt__trace.nbytes += (int64_t)n;
}
/* A metadata event. what: thread_name, thread_sort_index ...; its value is name, or number if name is NULL. */
static void dt__trace_meta(const char *what, uint64_t tid, const char *name, const char *more, uint64_t number)
{
    char text[DT__TRACE_ROOM], *p = dt__tput(text, dt__trace.nbytes ? ",\n" : "[\n");
    p = dt__tput(dt__tput(dt__tput(p, "{\"ph\":\"M\",\"pid\":"), dt__trace.pid), ",\"tid\":");
    p = dt__tput(dt__tput(dt__tput_int(p, tid), ",\"name\":\""), what);
    if (name)
        p = dt__tput(dt__tput_name(dt__tput_name(dt__tput(p, "\",\"args\":{\"name\":\""), name), more), "\"}}");
    else
        p = dt__tput(dt__tput_int(dt__tput(p, "\",\"args\":{\"sort_index\":"), number), "}}");
    dt__trace_write(text, (size_t)(p - text));
}
static void dt__trace_flush(dt__tbuf *b, uint64_t now)
{
    pthread_mutex_lock(&dt__trace.lock);
    if (b->serial == dt__trace.serial) dt__trace_write(b->text, b->len);
    __atomic_store_n(&b->len, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&dt__trace.lock);
    b->written = now;
}

/* ---- sessions */
DT__INSIDE void dt__trace_program(char *buf, size_t nbytes)
{
    int     fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, buf, nbytes - 1) : 0;
    if (fd >= 0) close(fd);
    while (n > 0 && buf[n - 1] == '\n') n--;
    buf[n > 0 ? n : 0] = 0;
    if (n <= 0) snprintf(buf, nbytes, "dt");
}
/* The rank of this process according to the environment; -1 if there is only one process. */
static int dt__trace_rank(void)
{
    int size = dt__launcher_number(DT__LAUNCHER_SIZE);
    return size > 1 ? dt__launcher_number(DT__LAUNCHER_RANK) : -1;
}
static void dt__trace_before_fork(void) { pthread_mutex_lock(&dt__trace.lock); }
static void dt__trace_in_parent(void) { pthread_mutex_unlock(&dt__trace.lock); }
static void dt__trace_in_child(void)
{
    if (dt__trace.fd >= 0) {
        close(dt__trace.fd);
        dt__trace.fd = -1;
        dt__trace_set(dt__trace.from_env ? DT__TRACE_UNKNOWN : DT__TRACE_OFF);
    }
    pthread_mutex_unlock(&dt__trace.lock);
}
#if !defined(__cplusplus) && !defined(__USE_ISOC11)
extern int at_quick_exit(void (*fn)(void));
#endif
static void dt__trace_at_exit(void);
static const char *dt__trace_open(const char *path) /* the lock is held; NULL, or why it failed */
{
    char        name[DT__TRACE_NAME], pid[24];
    const char *why = NULL;
    int         fd = dt__file_create(AT_FDCWD, path, O_WRONLY | O_TRUNC, &why);
    if (fd < 0) return why;
    if (!dt__trace.hooked) {
        pthread_atfork(dt__trace_before_fork, dt__trace_in_parent, dt__trace_in_child);
        atexit(dt__trace_at_exit);
        at_quick_exit(dt__trace_at_exit); /* ranks started by dt_spawn end with quick_exit */
        dt__counter_to(dt_trace_counter);
        dt__trace.hooked = 1;
    }
    dt__trace.fd = fd;
    dt__trace.error = dt__trace.threads = 0;
    dt__trace.nbytes = 0;
    snprintf(dt__trace.path, sizeof dt__trace.path, "%s", path);
    *dt__tput_int(pid, (uint64_t)getpid()) = 0;
    if (strcmp(pid, dt__trace.pid)) strcpy(dt__trace.pid, pid); /* if equal do not write: threads may be reading it */
    int rank = dt__trace_rank();
    dt__trace_program(name, sizeof name - 24);
    if (rank >= 0) snprintf(name + strlen(name), 24, " rank %d", rank);
    dt__trace_meta("process_name", 0, name, "", 0);
    for (int i = 0; i < dt__trace.ntracks; i++)
        dt__trace_meta("thread_name", (uint64_t)(DT__TRACK_NAMED + i), dt__trace.track[i], "", 0);
    __atomic_add_fetch(&dt__trace.serial, 1, __ATOMIC_RELAXED);
    if (dt__trace.error) {
        close(fd);
        dt__trace.fd = -1;
        return strerror(dt__trace.error);
    }
    dt__trace_set(DT__TRACE_ON);
    return NULL;
}
DT__INSIDE void dt__trace_env_path(char *to, size_t nbytes, const char *from, bool child)
{
    size_t n = strlen(from), at = 0, stem = n > 5 && !strcmp(from + n - 5, ".json") ? n - 5 : n;
    char   pid[24];
    int    rank = dt__trace_rank();
    bool   ranked = rank >= 0 && !strstr(from, "%r") && !strstr(from, "%p");
    *dt__tput_int(pid, (uint64_t)getpid()) = 0;
    if (dt__launcher() == DT__BY_DMLC) child = true; /* several processes, whose ranks are not known yet */
    for (size_t i = 0; i <= n && at + 64 < nbytes; i++) {
        if (ranked && i == stem) at += (size_t)snprintf(to + at, nbytes - at, ".rank%d", rank);
        if (child && i == stem) at += (size_t)snprintf(to + at, nbytes - at, ".%s", pid);
        if (from[i] == '%' && from[i + 1] == 'r') {
            at += (size_t)snprintf(to + at, nbytes - at, "%d", rank < 0 ? 0 : rank);
            i++;
        } else if (from[i] == '%' && from[i + 1] == 'p') {
            at += (size_t)snprintf(to + at, nbytes - at, "%s", pid);
            i++;
            child = false;
        } else {
            to[at++] = from[i];
        }
    }
    to[at < nbytes ? at : nbytes - 1] = 0;
}
static void dt__trace_ask_env(void)
{
    char        text[1200] = "", path[1024];
    const char *s = getenv("DT_TRACE");
    pthread_mutex_lock(&dt__trace.lock);
    if (dt__trace.on == DT__TRACE_UNKNOWN) {
        dt__trace_set(DT__TRACE_OFF);
        if (s && *s) {
            dt__trace_env_path(path, sizeof path, s, dt__trace.from_env);
            dt__trace.from_env = 1;
            const char *why = dt__trace_open(path);
            if (why)
                snprintf(text, sizeof text, "DT_TRACE: cannot write %.900s: %s; the program continues without a trace",
                         path, why);
        }
    }
    pthread_mutex_unlock(&dt__trace.lock);
    if (text[0]) dt__log(DT_LOG_ERROR, text);
}
DT_API dt_status dt_trace_start(const char *path)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!path || !*path)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_trace_start: path is NULL or empty; pass the path of the file to write");
    if (strlen(path) >= sizeof dt__trace.path)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_trace_start: the path is too long: %zu bytes, at most %zu", strlen(path),
                                  sizeof dt__trace.path - 1);
    char        other[400] = "";
    const char *why = NULL;
    pthread_mutex_lock(&dt__trace.lock);
    if (dt__trace.fd >= 0) {
        snprintf(other, sizeof other, "%.399s", dt__trace.path);
    } else {
        why = dt__trace_open(path);
        if (!why) dt__trace.from_env = 0;
    }
    pthread_mutex_unlock(&dt__trace.lock);
    if (other[0])
        return (dt_status)dt_fail(DT_ERR_STATE,
                                  "dt_trace_start: %.400s: a trace to %s is running; call dt_trace_stop() first", path,
                                  other);
    return why ? (dt_status)dt_fail(DT_ERR_FILE, "dt_trace_start: cannot write %s: %s", path, why) : DT_OK;
}
DT_API bool dt_trace_is_on(void)
{
    if (dt__trace_on() == DT__TRACE_UNKNOWN) dt__trace_ask_env();
    return dt__trace_on() == DT__TRACE_ON;
}

/* Registers the thread's buffer for the running trace; NULL without a trace or memory. */
static dt__tbuf *dt__trace_join(void)
{
    dt__tbuf *b = dt__tls.trace;
    char      label[32] = "", *p = label;
    if (!b) {
        dt__register_thread(&dt__tls);
        b = (dt__tbuf *)dt_mem_alloc(sizeof *b);
        if (!b) return NULL; /* out of memory: this event is missing in the trace; the next one tries again */
        memset(b, 0, offsetof(dt__tbuf, text));
    }
    pthread_mutex_lock(&dt__trace.lock);
    if (!dt__tls.trace) {
        b->next = dt__trace.bufs;
        dt__trace.bufs = b;
        dt__tls.trace = b;
    }
    bool joins = dt__trace.on == DT__TRACE_ON;
    if (joins) {
        b->serial = dt__trace.serial;
        b->id = dt__trace.threads++;
        __atomic_store_n(&b->len, 0, __ATOMIC_RELAXED);
        b->step_t0 = b->phase_t0 = 0;
        b->steps = 0;
        b->updating = b->depth = 0;
        if (b->id) *dt__tput(dt__tput_int(dt__tput(p, "thread "), (uint64_t)b->id + 1), " ") = 0;
        static const char *const names[] = { "steps", "layers", "ops" };
        for (int i = 0; i < 3; i++) {
            uint64_t tid = (uint64_t)(3 * b->id + 1 + i);
            dt__trace_meta("thread_name", tid, label, names[i], 0);
            dt__trace_meta("thread_sort_index", tid, NULL, NULL, tid);
        }
    }
    pthread_mutex_unlock(&dt__trace.lock);
    b->written = dt_trace_now();
    return joins ? b : NULL;
}
DT__INSIDE dt__tbuf *dt__trace_mine(void)
{
    dt__tbuf *b = dt__tls.trace;
    if (!b || dt__trace_on() != DT__TRACE_ON) return NULL;
    return b->serial == __atomic_load_n(&dt__trace.serial, __ATOMIC_RELAXED) ? b : NULL;
}
DT__INSIDE dt__tbuf *dt__trace_buf(void)
{
    dt__tbuf *b = dt__trace_mine();
    return b ? b : dt_trace_is_on() ? dt__trace_join() : NULL;
}
/* Frees the thread's buffer: when the thread ends, or in dt_empty_cache if no trace is running. */
static void dt__trace_leave(dt__ctx *t, bool ends)
{
    dt__tbuf *b = t->trace;
    if (!b || (!ends && dt__trace_on() == DT__TRACE_ON)) return;
    pthread_mutex_lock(&dt__trace.lock);
    if (b->serial == dt__trace.serial) dt__trace_write(b->text, b->len);
    for (dt__tbuf **p = &dt__trace.bufs; *p; p = &(*p)->next)
        if (*p == b) {
            *p = b->next;
            break;
        }
    pthread_mutex_unlock(&dt__trace.lock);
    t->trace = NULL;
    dt_mem_free(b, sizeof *b);
}

/* ---- events */
static char *dt__trace_begin(dt__tbuf *b, const char *kind, uint64_t tid, uint64_t t)
{
    if (sizeof b->text - b->len < DT__TRACE_ROOM) dt__trace_flush(b, t);
    char *p = dt__tput(dt__tput(b->text + b->len, ",\n{\"ph\":\""), kind);
    p = dt__tput(dt__tput(dt__tput(p, "\",\"pid\":"), dt__trace.pid), ",\"tid\":");
    return dt__tput_us(dt__tput(dt__tput_int(p, tid), ",\"ts\":"), t);
}
static char *dt__trace_span_begin(dt__tbuf *b, uint64_t tid, uint64_t t0, uint64_t t1)
{
    char *p = dt__trace_begin(b, "X", tid, t0);
    p = dt__tput_us(dt__tput(p, ",\"dur\":"), t1 > t0 ? t1 - t0 : 0);
    return dt__tput(p, ",\"name\":\"");
}
static void dt__trace_end(dt__tbuf *b, char *p)
{
    *p++ = '}';
    __atomic_store_n(&b->len, (size_t)(p - b->text), __ATOMIC_RELEASE);
}
DT__INSIDE void dt__trace_simple(dt__tbuf *b, int track, const char *name, const char *more, uint64_t t0, uint64_t t1)
{
    char *p = dt__trace_span_begin(b, (uint64_t)(3 * b->id + track), t0, t1);
    p = dt__tput(dt__tput_name(p, name), more);
    *p++ = '"';
    dt__trace_end(b, p);
}
/* The begin time of an event. The first event of a step also begins the step, 1 ns earlier. */
DT__INSIDE uint64_t dt__trace_touch(dt__tbuf *b)
{
    uint64_t t = dt__trace_time(b);
    if (!b->phase_t0) {
        b->phase_t0 = t;
        if (!b->step_t0) {
            b->step_t0 = t;
            b->phase_t0 = t = b->last = t + 1;
        }
    }
    return t;
}
static uint64_t dt__trace_mark(void) /* 0 without a trace */
{
    dt__tbuf *b = dt__trace_buf();
    return b ? dt__trace_touch(b) : 0;
}
static void dt__trace_close_phase(dt__tbuf *b, const char *name, uint64_t t1)
{
    if (b->phase_t0) dt__trace_simple(b, DT__TRACK_STEPS, name, "", b->phase_t0, t1);
    b->phase_t0 = 0;
}
static void dt__trace_step(void) /* dt_end */
{
    dt__tbuf *b = dt__trace_mine();
    if (!b || !b->step_t0) return;
    dt__trace_close_phase(b, b->updating ? "update" : "forward", dt__trace_time(b));
    uint64_t now = dt__trace_time(b);
    char    *p = dt__trace_span_begin(b, (uint64_t)(3 * b->id + DT__TRACK_STEPS), b->step_t0, now);
    p = dt__tput(p, b->updating ? "step\",\"args\":{\"n\":" : "step without backward\",\"args\":{\"n\":");
    p = dt__tput_int(p, (uint64_t)b->steps++);
    *p++ = '}';
    dt__trace_end(b, p);
    b->step_t0 = 0;
    b->updating = 0;
    if (now - b->written > (uint64_t)(250 * DT__NS_PER_MS)) dt__trace_flush(b, now);
}
static uint64_t dt__trace_backward_begin(void)
{
    dt__tbuf *b = dt__trace_buf();
    if (!b) return 0;
    dt__trace_touch(b);
    dt__trace_close_phase(b, "forward", dt__trace_time(b));
    return dt__trace_time(b);
}
static void dt__trace_backward_end(uint64_t t0)
{
    dt__tbuf *b = dt__trace_mine();
    if (!b || !b->step_t0) return; /* the backward began in another trace */
    dt__trace_simple(b, DT__TRACK_STEPS, "backward", "", t0, dt__trace_time(b));
    b->phase_t0 = 0;
    b->updating = 1;
}
static void dt__trace_node(const char *name, uint64_t t0)
{
    dt__tbuf *b = dt__trace_mine();
    if (b && b->step_t0) dt__trace_simple(b, DT__TRACK_OPS, name, " bwd", t0, dt__trace_time(b));
}
static char *dt__tput_view(char *p, const char *key, const dt_view *v)
{
    p = dt__tput(dt__tput(dt__tput(p, "\""), key), "\":\"");
    for (int i = 0; i < v->ndim; i++) {
        if (i) *p++ = 'x';
        p = dt__tput_int(p, (uint64_t)v->shape[i]);
    }
    p = dt__tput(p, v->ndim ? " " : "scalar ");
    return dt__tput(dt__tput(p, dt_dtype_name((dt_dtype)v->dtype)), "\",");
}
static uint64_t dt__view_bytes(const dt_view *v) /* bytes in memory: a broadcast element counts once */
{
    uint64_t n = v->ndim < 0 ? 0 : dt__dtype_size[v->dtype];
    for (int i = 0; i < v->ndim; i++) n *= v->stride[i] ? (uint64_t)v->shape[i] : 1;
    return n;
}
static const char *dt__trace_function(const dt_call *c) /* of an elementwise or reduction kernel; NULL for others */
{
#define DT__NAME_U(n, ...) #n,
#define DT__NAME_B(n, ...) #n,
#define DT__NAME_R(n) #n,
    static const char *const unary[] = { DT_UNARY_FNS(DT__NAME_U) };
    static const char *const binary[] = { DT_BINARY_FNS(DT__NAME_B) };
    static const char *const reduce[] = { DT_REDUCE_FNS(DT__NAME_R) };
    if (c->op == DT_K_unary || c->op == DT_K_unary_bwd) return unary[c->u.ew.fn];
    if (c->op == DT_K_binary) return binary[c->u.ew.fn];
    return c->op == DT_K_reduce ? reduce[c->u.reduce.fn] : NULL;
}
static void dt__trace_op(const dt_device *dev, const dt_call *c, uint64_t t0)
{
    dt__tbuf *b = dt__trace_mine();
    if (!b || !b->step_t0) return;
    char       *p = dt__trace_span_begin(b, (uint64_t)(3 * b->id + DT__TRACK_OPS), t0, dt__trace_time(b));
    const char *fn = dt__trace_function(c);
    uint64_t    bytes = 0;
    int         first = 0;
    p = dt__tput(p, dt_kernel_name(c->op));
    if (fn) *p++ = ' ';
    for (; fn && *fn; fn++) *p++ = (char)(*fn >= 'A' && *fn <= 'Z' ? *fn + 32 : *fn);
    p = dt__tput(p, "\",\"args\":{");
    while (first < c->nin && c->in[first].ndim < 0) first++;
    if (c->nout && c->out[0].ndim >= 0) p = dt__tput_view(p, "out", &c->out[0]);
    if (first < c->nin) p = dt__tput_view(p, "in", &c->in[first]);
    for (int i = 0; i < c->nout; i++) bytes += dt__view_bytes(&c->out[i]);
    for (int i = 0; i < c->nin; i++) bytes += dt__view_bytes(&c->in[i]);
    if (dev->index >= 0) p = dt__tput(dt__tput_name(dt__tput(p, "\"device\":\""), dev->name), "\",");
    p = dt__tput_int(dt__tput(p, "\"bytes\":"), bytes);
    *p++ = '}';
    dt__trace_end(b, p);
}

DT_API void dt_trace_push(const char *name)
{
    if (!dt__trace_on()) return;
    dt__tbuf *b = dt__trace_buf();
    if (!b) return;
    if (b->depth < DT__TRACE_DEPTH) {
        dt__trace_copy_name(b->open[b->depth].name, name);
        b->open[b->depth].t0 = dt__trace_touch(b);
    }
    b->depth++;
}
DT_API void dt_trace_pop(void)
{
    dt__tbuf *b = dt__trace_on() ? dt__trace_mine() : NULL;
    if (!b || b->depth == 0 || --b->depth >= DT__TRACE_DEPTH) return; /* pushed before the trace began, or not recorded */
    dt__trace_simple(b, DT__TRACK_LAYERS, b->open[b->depth].name, "", b->open[b->depth].t0, dt__trace_time(b));
}
static int dt__trace_find_track(const char *name, int from, int n)
{
    for (int i = from; i < n; i++)
        if (!strcmp(dt__trace.track[i], name)) return i;
    return -1;
}
static int dt__trace_track(const char *track) /* its index; tracks are never removed */
{
    char name[DT__TRACE_NAME];
    dt__trace_copy_name(name, track);
    int n = __atomic_load_n(&dt__trace.ntracks, __ATOMIC_ACQUIRE), i = dt__trace_find_track(name, 0, n);
    if (i >= 0) return i;
    pthread_mutex_lock(&dt__trace.lock);
    i = dt__trace_find_track(name, n, dt__trace.ntracks);
    if (i < 0 && dt__trace.ntracks < DT__TRACE_TRACKS) {
        i = dt__trace.ntracks;
        strcpy(dt__trace.track[i], i + 1 < DT__TRACE_TRACKS ? name : "other tracks");
        dt__trace_meta("thread_name", (uint64_t)(DT__TRACK_NAMED + i), dt__trace.track[i], "", 0);
        __atomic_store_n(&dt__trace.ntracks, i + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&dt__trace.lock);
    return i < 0 ? DT__TRACE_TRACKS - 1 : i;
}
DT_API void dt_trace_span(const char *track, const char *name, uint64_t t0, uint64_t t1)
{
    if (!dt__trace_on()) return;
    dt__tbuf *b = dt__trace_buf();
    if (!b) return;
    uint64_t tid = (uint64_t)(DT__TRACK_NAMED + dt__trace_track(track));
    char    *p = dt__tput_name(dt__trace_span_begin(b, tid, t0, t1), name);
    *p++ = '"';
    dt__trace_end(b, p);
}
DT_API void dt_trace_counter(const char *name, double value)
{
    char number[64];
    if (!dt__trace_on()) return;
    dt__tbuf *b = dt__trace_buf();
    if (!b) return;
    bool  ok = isfinite(value); /* JSON has no NaN or infinity: these become an instant event on the timeline */
    char *p = dt__trace_begin(b, ok ? "C" : "i", 0, dt__trace_time(b));
    p = dt__tput_name(dt__tput(p, ok ? ",\"name\":\"" : ",\"s\":\"p\",\"name\":\""), name);
    p = dt__tput(p, ok ? "\",\"args\":{\"value\":" : " is ");
    p = dt__tput(dt__tput(p, dt__number(number, sizeof number, value, 9)), ok ? "}" : "\"");
    dt__trace_end(b, p);
}
DT_API dt_status dt_trace_stop(void)
{
    dt__tbuf *mine = dt__trace_mine();
    while (mine && mine->depth > 0) dt_trace_pop(); /* end the open spans of this thread */
    if (mine && !dt__tls.in_backward) dt__trace_step();
    pthread_mutex_lock(&dt__trace.lock);
    char path[sizeof dt__trace.path];
    int  error = 0;
    if (dt__trace.fd >= 0) {
        dt__trace_set(DT__TRACE_OFF);
        for (dt__tbuf *b = dt__trace.bufs; b; b = b->next)
            if (b->serial == dt__trace.serial) dt__trace_write(b->text, __atomic_load_n(&b->len, __ATOMIC_ACQUIRE));
        dt__trace_write("\n]\n", 3);
        __atomic_add_fetch(&dt__trace.serial, 1, __ATOMIC_RELAXED);
        error = dt__trace.error;
        if (close(dt__trace.fd) && !error) error = errno;
        dt__trace.fd = -1;
    }
    strcpy(path, dt__trace.path);
    pthread_mutex_unlock(&dt__trace.lock);
    if (!error) return DT_OK;
    return (dt_status)dt_fail(DT_ERR_FILE, "dt_trace_stop: cannot write %s: %s; the end of the trace is missing", path,
                              strerror(error));
}
static void dt__trace_at_exit(void) { dt_trace_stop(); }
DT__SLOW_END

/* ==================================================================================================== >>dispatch
   Building a dt_call and giving it to the device. */
DT__INSIDE void dt__view_of(dt_view *v, const dt_tensor *t)
{
    dt__storage_use(t->st);
    v->data = (char *)t->st->ptr + t->offset * dt__dtype_size[t->dtype];
    v->dtype = t->dtype;
    v->layout = t->layout;
    v->ndim = t->ndim;
    v->dt__pad = 0;
    for (int i = 0; i < t->ndim; i++) {
        v->shape[i] = t->shape[i];
        v->stride[i] = t->stride[i];
    }
}
DT__INSIDE void dt__call_begin(dt_call *c, int op)
{
    c->op = op;
    c->nout = c->nin = 0;
    c->acc = 0;
    c->stream = NULL;
    memset(&c->u, 0, sizeof c->u);
}
DT__INSIDE dt_view *dt__out(dt_call *c, const dt_tensor *t) /* NULL: absent */
{
    dt_view *v = &c->out[c->nout++];
    if (t)
        dt__view_of(v, t);
    else
        v->ndim = -1;
    return v;
}
DT__INSIDE dt_view *dt__in(dt_call *c, const dt_tensor *t)
{
    dt_view *v = &c->in[c->nin++];
    if (t)
        dt__view_of(v, t);
    else
        v->ndim = -1;
    return v;
}
/* dt__view_pad inserts leading dimensions of size 1 up to ndim; dt__view_expand also broadcasts to a shape. */
static void dt__view_pad(dt_view *v, int ndim)
{
    int more = ndim - v->ndim;
    if (more <= 0) return;
    for (int i = v->ndim - 1; i >= 0; i--) {
        v->shape[i + more] = v->shape[i];
        v->stride[i + more] = v->stride[i];
    }
    for (int i = 0; i < more; i++) {
        v->shape[i] = 1;
        v->stride[i] = 0;
    }
    v->ndim = ndim;
    v->layout = DT_LAYOUT_PLAIN;
}
static void dt__view_expand(dt_view *v, const int64_t *shape, int ndim)
{
    dt__view_pad(v, ndim);
    for (int i = 0; i < ndim; i++)
        if (v->shape[i] != shape[i]) {
            v->shape[i] = shape[i];
            v->stride[i] = 0;
            v->layout = DT_LAYOUT_PLAIN;
        }
}

static size_t dt__view_span(const dt_view *v) /* bytes from the first element to the end of the last */
{
    int64_t n = 1;
    for (int i = 0; i < v->ndim; i++) {
        if (v->shape[i] == 0) return 0;
        n += (v->shape[i] - 1) * v->stride[i];
    }
    return (size_t)n * dt__dtype_size[v->dtype];
}
/* Runs a kernel that the device lacks on the CPU, on copies of the operands. */
static int dt__fallback(dt_device *dev, const dt_call *c)
{
    dt_call local = *c;
    void   *mem[DT_MAX_OUT + DT_MAX_IN] = { NULL };
    size_t  len[DT_MAX_OUT + DT_MAX_IN] = { 0 };
    int     n = c->nout + c->nin, rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        dt_view *v = i < c->nout ? &local.out[i] : &local.in[i - c->nout];
        if (v->ndim < 0 || !(len[i] = dt__view_span(v))) continue;
        mem[i] = dt_mem_alloc(len[i] + 64);
        if (!mem[i]) {
            rc = dt_fail(DT_ERR_MEMORY, "%s: out of memory: the fallback to the CPU needs %zu bytes to copy an operand",
                         dt_kernel_name(c->op), len[i]);
            break;
        }
        void *at = (void *)(((uintptr_t)mem[i] + 63) & ~(uintptr_t)63);
        rc = dev->be->download(dev, c->stream, at, v->data, len[i]);
        v->data = at;
    }
    local.stream = NULL;
    if (!rc) rc = dt_cpu()->be->kernel[c->op](dt_cpu(), &local);
    for (int i = 0; i < c->nout && !rc; i++)
        if (mem[i]) rc = dev->be->upload(dev, c->stream, c->out[i].data, local.out[i].data, len[i]);
    for (int i = 0; i < n; i++) dt_mem_free(mem[i], len[i] + 64);
    __atomic_add_fetch(&dt__global.fallbacks, 1, __ATOMIC_RELAXED);
    return rc;
}
DT__INSIDE int dt__go(dt_device *dev, dt_call *c)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    c->stream = dt__stream(dev);
    dt_kernel k = dev->be->kernel[c->op];
    uint64_t  t0 = dt__trace_on() ? dt__trace_mark() : 0;
    int       rc;
    if (k)
        rc = k(dev, c);
    else if (dev->fallback && dev != dt_cpu())
        rc = dt__fallback(dev, c);
    else
        return dt_fail(DT_ERR_DEVICE,
                       "%s: device %s has no kernel for this op; dt_device_allow_fallback(device, true) runs it on the CPU",
                       dt_kernel_name(c->op), dev->name);
    if (t0) dt__trace_op(dev, c, t0);
    if (rc) dt_fail((dt_status)rc, "%s: failed on %s with status %d", dt_kernel_name(c->op), dev->name, rc);
    return rc;
}

/* y = x, for any layouts and dtypes; x may broadcast. With add: y += x. */
DT__INSIDE int dt__copy_to(dt_tensor *y, const dt_tensor *x, int add)
{
    dt_call c;
    dt__call_begin(&c, DT_K_copy);
    dt__out(&c, y);
    dt__view_expand(dt__in(&c, x), y->shape, y->ndim);
    c.acc = add ? 1u : 0u;
    return y->numel ? dt__go(y->st->dev, &c) : 0;
}
DT__INSIDE int dt__fill(dt_tensor *t, double value)
{
    dt_call c;
    dt__call_begin(&c, DT_K_fill);
    dt__out(&c, t);
    c.u.ew.a = value;
    return t->numel ? dt__go(t->st->dev, &c) : 0;
}
/* x as a dense row-major tensor: x itself or a copy. The caller owns one reference in both cases. */
DT__INSIDE dt_tensor *dt__dense(const char *call, dt_tensor *x)
{
    if (dt__is_dense(x)) return dt__ref(x);
    dt_tensor *y = dt__new(call, x->st->dev, x->dtype, x->shape, x->ndim, DT_LAYOUT_PLAIN);
    if (y && dt__copy_to(y, x, 0)) {
        dt__unref(y);
        return NULL;
    }
    return y;
}
/* x (4-d) in the given layout: x itself or a copy. The caller owns one reference in both cases. */
static dt_tensor *dt__in_layout(const char *call, dt_tensor *x, int layout)
{
    if (layout == DT_LAYOUT_PLAIN) return dt__dense(call, x);
    if (x->layout == layout) return dt__ref(x);
    dt_tensor *y = dt__new(call, x->st->dev, x->dtype, x->shape, x->ndim, layout);
    if (y && dt__copy_to(y, x, 0)) {
        dt__unref(y);
        return NULL;
    }
    return y;
}
static int dt__image_layout(dt_device *dev, int kernel, int dtype)
{
    return dev->be->image_layout ? dev->be->image_layout(dev, kernel, dtype) : DT_LAYOUT_PLAIN;
}
DT__INSIDE bool dt__extended(dt_device *dev, int kernel) { return dev->be->extended && dev->be->extended(dev, kernel); }
/* Converts t itself to the plain layout, which views and visible strides need. The values are the same, so the version
   does not change. */
DT__INSIDE int dt__make_plain(dt_tensor *t)
{
    if (t->layout == DT_LAYOUT_PLAIN) return 0;
    dt_tensor *y = dt__dense("layout", t);
    if (!y) return DT_ERR_MEMORY;
    uint32_t     version = t->st->version;
    dt__storage *st = t->st;
    t->st = y->st;
    y->st = st;
    t->st->version = version;
    t->offset = 0;
    t->layout = DT_LAYOUT_PLAIN;
    memcpy(t->stride, y->stride, sizeof t->stride);
    dt__unref(y);
    return 0;
}

DT__SLOW_BEGIN
/* ==================================================================================================== >>making */
static bool dt__make_ok(const char *call, dt_shape s, int dtype)
{
    if (s.ndim < 0 || s.ndim > DT_MAX_DIMS) {
        dt_fail(DT_ERR_SHAPE, "%s: %d dimensions; a tensor has 0 to %d", call, s.ndim, DT_MAX_DIMS);
        return false;
    }
    if (dtype < 0 || dtype >= DT_DTYPE_COUNT) {
        dt_fail(DT_ERR_DTYPE, "%s: %d is not a dtype; pass DT_F32 ... DT_U8", call, dtype);
        return false;
    }
    return true;
}
DT__INSIDE dt_tensor *dt__make(const char *call, dt_shape s, dt_make_opts o, int dtype)
{
    if (dt__err.code != DT_OK || !dt__make_ok(call, s, dtype)) return NULL;
    return dt__new(call, o.device ? o.device : dt_default_device(), dtype, s.dim, s.ndim, DT_LAYOUT_PLAIN);
}
DT__INSIDE int dt__upload(dt_tensor *t, const void *host) /* t dense */
{
    size_t n = (size_t)t->numel * dt__dtype_size[t->dtype];
    if (!n) return 0;
    dt_device *dev = t->st->dev;
    dt__storage_use(t->st);
    if (t->st->lazy && dt__err.code != DT_OK) return dt__err.code;
    int rc = dev->be->upload(dev, dt__stream(dev), (char *)t->st->ptr + t->offset * dt__dtype_size[t->dtype], host, n);
    if (rc) dt_fail((dt_status)rc, "upload of %zu bytes to %s failed with status %d", n, dev->name, rc);
    return rc;
}
DT__INSIDE int dt__download(const dt_tensor *t, void *host) /* t dense */
{
    size_t n = (size_t)t->numel * dt__dtype_size[t->dtype];
    if (!n) return 0;
    dt_device *dev = t->st->dev;
    dt__storage_use(t->st);
    if (t->st->lazy && dt__err.code != DT_OK) return dt__err.code;
    int rc = dev->be->download(dev, dt__stream(dev), host, (char *)t->st->ptr + t->offset * dt__dtype_size[t->dtype],
                               n);
    if (rc) dt_fail((dt_status)rc, "download of %zu bytes from %s failed with status %d", n, dev->name, rc);
    return rc;
}
DT__INSIDE dt_tensor *dt__finish(dt_tensor *t, int rc) /* passes t to the step, or frees it if rc is an error */
{
    if (!rc) return dt__give(t);
    dt__unref(t);
    return NULL;
}
DT_API dt_tensor *dt_from_with(const void *data, dt_shape shape, dt_make_opts o)
{
    dt_tensor *t = dt__make("dt_from", shape, o, o.dtype);
    if (!t) return NULL;
    if (!data && t->numel) return dt__finish(t, dt_fail(DT_ERR_ARG, "dt_from: data is NULL for shape %s", dt__text(t)));
    return dt__finish(t, dt__upload(t, data));
}
/* A tensor on memory that dt does not own. The caller owns the result and sets st->release afterwards, so that a failure
   does not call it. */
DT__INSIDE dt_tensor *dt__adopt(const char *call, dt_device *dev, void *data, int dtype, const int64_t *shape, int ndim)
{
    int64_t n = dt__count(shape, ndim, dt__dtype_size[dtype]);
    if (n < 0) {
        dt_fail(DT_ERR_SHAPE, "%s: shape %s of %s has a negative dimension or is too large", call,
                dt__shape_text(shape, ndim), dt_dtype_name((dt_dtype)dtype));
        return NULL;
    }
    pthread_mutex_lock(&dev->lock);
    dt__storage *s = dev->spare;
    if (s) dev->spare = s->next;
    pthread_mutex_unlock(&dev->lock);
    if (!s) s = (dt__storage *)dt_mem_alloc(sizeof *s);
    dt_tensor *t = s ? dt__handle_new() : NULL;
    if (!t) {
        dt_mem_free(s, sizeof *s);
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for a storage", call);
        return NULL;
    }
    memset(s, 0, sizeof *s);
    s->dev = dev;
    s->ptr = data;
    s->nbytes = (size_t)n * dt__dtype_size[dtype];
    s->refs = 1;
    s->stream = dt__stream(dev);
    s->other_stream = (void *)s;
    s->adopted = 1;
    __atomic_add_fetch(&dev->storages, 1, __ATOMIC_RELAXED);
    t->st = s;
    t->dtype = dtype;
    t->ndim = ndim;
    t->layout = DT_LAYOUT_PLAIN;
    t->numel = n;
    for (int i = 0; i < ndim; i++) t->shape[i] = shape[i];
    dt__dense_strides(t->stride, shape, ndim);
    return t;
}
DT_API dt_tensor *dt_from_blob_with(void *data, dt_shape shape, dt_from_blob_opts o)
{
    dt_make_opts make;
    memset((void *)&make, 0, sizeof make);
    make.dtype = o.dtype;
    make.device = o.device ? o.device : dt_cpu();
    if (dt__err.code != DT_OK || !dt__make_ok("dt_from_blob", shape, o.dtype)) return NULL;
    int64_t n = dt__count(shape.dim, shape.ndim, dt__dtype_size[o.dtype]);
    if (!data && n > 0) {
        dt_fail(DT_ERR_ARG, "dt_from_blob: data is NULL for shape %s", dt__shape_text(shape.dim, shape.ndim));
        return NULL;
    }
    dt_tensor *t;
    if (n > 0 && (uintptr_t)data % dt__dtype_size[o.dtype]) {
        if (make.device != dt_cpu()) {
            dt_fail(DT_ERR_ARG, "dt_from_blob: the data on %s is not aligned to its element size, %d bytes; align it",
                    make.device->name, (int)dt__dtype_size[o.dtype]);
            return NULL;
        }
        t = dt_from_with(data, shape, make);
        if (t && o.release) o.release(o.user);
        return t;
    }
    if (n > 0 && make.device->be->adopts && make.device->be->adopts(make.device, data)) return NULL;
    t = dt__give(dt__adopt("dt_from_blob", make.device, data, o.dtype, shape.dim, shape.ndim));
    if (!t) return NULL;
    t->st->release = o.release;
    t->st->user = o.user;
    return t;
}
DT_API dt_tensor *dt_empty_with(dt_shape shape, dt_make_opts o)
{
    return dt__give(dt__make("dt_empty", shape, o, o.dtype));
}
static dt_tensor *dt__filled(const char *call, double value, dt_shape shape, dt_make_opts o)
{
    dt_tensor *t = dt__make(call, shape, o, o.dtype);
    return t ? dt__finish(t, dt__fill(t, value)) : NULL;
}
DT_API dt_tensor *dt_zeros_with(dt_shape shape, dt_make_opts o) { return dt__filled("dt_zeros", 0, shape, o); }
DT_API dt_tensor *dt_ones_with(dt_shape shape, dt_make_opts o) { return dt__filled("dt_ones", 1, shape, o); }
DT_API dt_tensor *dt_full_with(double value, dt_shape shape, dt_make_opts o)
{
    return dt__filled("dt_full", value, shape, o);
}
DT_API dt_tensor *dt_arange_with(double start, double end, double step, dt_make_opts o)
{
    double n = step != 0 ? ceil((end - start) / step) : -1;
    if (!(n >= 0 && n < 9e15)) {
        dt_fail(DT_ERR_ARG, "dt_arange: start %g, end %g and step %g do not make a range; step must lead from start to end "
                "in at most 9e15 elements", start, end, step);
        return NULL;
    }
    dt_shape s;
    s.ndim = 1;
    s.dim[0] = (int64_t)n;
    dt_tensor *t = dt__make("dt_arange", s, o, o.dtype);
    if (!t) return NULL;
    dt_call c;
    dt__call_begin(&c, DT_K_iota);
    dt__out(&c, t);
    c.u.ew.a = start;
    c.u.ew.b = step;
    return dt__finish(t, t->numel ? dt__go(t->st->dev, &c) : 0);
}

DT_API dt_rng *dt_rng_default(void)
{
    dt__ctx *t = &dt__tls;
    if (!t->rng_ready) {
        t->rng_ready = 1;
        dt_rng_seed(&t->rng, 0);
    }
    return &t->rng;
}
DT_API void dt_manual_seed(uint64_t seed) { dt_rng_seed(dt_rng_default(), seed); }

/* f32 numbers that are bit-equal to PyTorch's after rounding to dtype. Halves differ from f32 in two ways: a normal draw of n
   numbers takes n/16 * 16 and then 16 more for the last 16 (f32: n, then 16 more), and a uniform one that rounds to hi is lo. */
static void dt__draw(dt_rng *r, float *out, int64_t n, int normal, double a, double b, dt_dtype dtype)
{
    int64_t whole = n / 16 * 16;
    if (normal && dtype != DT_F32 && n > whole && whole > 0) {
        dt_rng_normal(r, out, whole, a, b);
        dt_rng_normal(r, out + n - 16, 16, a, b);
        return;
    }
    if (normal) {
        dt_rng_normal(r, out, n, a, b);
        return;
    }
    dt_rng_uniform(r, out, n, a, b);
    float hi = (float)b, near = fabsf(hi) * 0.01f + 1e-7f; /* farther away nothing rounds to hi */
    for (int64_t i = 0; dtype != DT_F32 && i < n; i++) {
        if (hi - out[i] > near) continue;
        if (dtype == DT_F16 ? dt__f32_to_f16(out[i]) == dt__f32_to_f16(hi) : dt__f32_to_bf16(out[i]) == dt__f32_to_bf16(hi))
            out[i] = (float)a;
    }
}
static dt_tensor *dt__random(const char *call, int normal, double a, double b, dt_shape shape, dt_make_opts o)
{
    if (!dt__is_float(o.dtype)) {
        dt_fail(DT_ERR_DTYPE, "%s: makes f32, f16 or bf16, not %s; dt_cast() the result", call, dt_dtype_name(o.dtype));
        return NULL;
    }
    if (normal ? !(b >= 0) : !(a <= b)) {
        dt_fail(DT_ERR_ARG, normal ? "%s: mean %g and std %g: std must be at least 0" : "%s: lo %g is above hi %g", call,
                a, b);
        return NULL;
    }
    dt_tensor *t = dt__make(call, shape, o, DT_F32);
    if (!t) return NULL;
    dt_rng *r = o.rng ? o.rng : dt_rng_default();
    size_t  nbytes = (size_t)t->numel * sizeof(float);
    float  *host = (float *)dt_mem_alloc(nbytes);
    if (!host) return dt__finish(t, dt_fail(DT_ERR_MEMORY, "%s: out of memory for %zu bytes", call, nbytes));
    dt__draw(r, host, t->numel, normal, a, b, o.dtype);
    int rc = dt__upload(t, host);
    dt_mem_free(host, nbytes);
    if (rc || o.dtype == DT_F32) return dt__finish(t, rc);
    dt_tensor *h = dt__new_like(call, t, o.dtype);
    rc = h ? dt__copy_to(h, t, 0) : DT_ERR_MEMORY;
    dt__unref(t);
    return h ? dt__finish(h, rc) : NULL;
}
DT_API dt_tensor *dt_uniform_with(double lo, double hi, dt_shape shape, dt_make_opts o)
{
    return dt__random("dt_uniform", 0, lo, hi, shape, o);
}
DT_API dt_tensor *dt_normal_with(double mean, double std, dt_shape shape, dt_make_opts o)
{
    return dt__random("dt_normal", 1, mean, std, shape, o);
}
DT_API dt_tensor *dt_randperm_with(int64_t n, dt_make_opts o)
{
    dt_shape s;
    s.ndim = 1;
    s.dim[0] = n;
    int dtype = o.dtype == DT_F32 ? DT_I64 : o.dtype;
    if (dtype != DT_I64) {
        dt_fail(DT_ERR_DTYPE, "dt_randperm: makes i64, not %s; dt_cast() the result", dt_dtype_name(o.dtype));
        return NULL;
    }
    dt_tensor *t = dt__make("dt_randperm", s, o, dtype);
    if (!t) return NULL;
    size_t   nbytes = (size_t)n * sizeof(int64_t);
    int64_t *host = (int64_t *)dt_mem_alloc(nbytes);
    if (!host) return dt__finish(t, dt_fail(DT_ERR_MEMORY, "dt_randperm: out of memory for %zu bytes", nbytes));
    dt_rng_randperm(o.rng ? o.rng : dt_rng_default(), host, n);
    int rc = dt__upload(t, host);
    dt_mem_free(host, nbytes);
    return dt__finish(t, rc);
}

/* ==================================================================================================== >>asking */
static bool dt__alive(const dt_tensor *t) { return t && t->magic == DT__LIVE; }
DT_API dt_shape dt_shape_of(const dt_tensor *t)
{
    dt_shape s;
    memset(&s, 0, sizeof s);
    if (!dt__alive(t)) return s;
    s.ndim = t->ndim;
    for (int i = 0; i < t->ndim; i++) s.dim[i] = t->shape[i];
    return s;
}
DT_API int     dt_ndim(const dt_tensor *t) { return dt__alive(t) ? t->ndim : 0; }
DT_API int64_t dt_size(const dt_tensor *t, int i)
{
    if (!dt__alive(t) || !dt__dim_ok("dt_size", &i, t->ndim)) return 0;
    return t->shape[i];
}
DT_API int64_t dt_stride(dt_tensor *t, int i)
{
    if (!dt__alive(t) || !dt__dim_ok("dt_stride", &i, t->ndim) || dt__make_plain(t)) return 0;
    return t->stride[i];
}
DT_API int64_t    dt_numel(const dt_tensor *t) { return dt__alive(t) ? t->numel : 0; }
DT_API size_t dt_nbytes(const dt_tensor *t)
{
    return dt__alive(t) ? (size_t)t->numel * dt__dtype_size[t->dtype] : 0;
}
DT_API dt_dtype   dt_dtype_of(const dt_tensor *t) { return dt__alive(t) ? (dt_dtype)t->dtype : DT_F32; }
DT_API dt_device *dt_device_of(const dt_tensor *t) { return dt__alive(t) ? t->st->dev : NULL; }
DT_API bool dt_is_contiguous(dt_tensor *t)
{
    return dt__alive(t) && (t->layout != DT_LAYOUT_PLAIN || dt__is_dense(t));
}

/* ==================================================================================================== >>moving */
static bool dt__nbytes_ok(const char *call, const dt_tensor *t, const void *host, size_t nbytes)
{
    size_t want = (size_t)t->numel * dt__dtype_size[t->dtype];
    if (nbytes == want && (host || !want)) return true;
    dt_fail(DT_ERR_ARG, host || !want ? "%s: nbytes is %zu, but the tensor, %s %s, has %zu bytes; pass dt_nbytes(t)"
            : "%s: the host pointer is NULL (nbytes is %zu; the tensor, %s %s, has %zu bytes)",
            call, nbytes, dt_dtype_name((dt_dtype)t->dtype), dt__text(t), want);
    return false;
}
DT_API void *dt_data_ptr(dt_tensor *t)
{
    const char *call = "dt_data_ptr";
    if (!dt__ok(call, "the tensor", t) || dt__make_plain(t)) return NULL;
    if (!dt__is_dense(t)) {
        dt_fail(DT_ERR_SHAPE, "%s: the tensor %s is not contiguous; pass the result of dt_contiguous()", call, dt__text(t));
        return NULL;
    }
    dt__storage_use(t->st);
    if (t->st->lazy && dt__err.code != DT_OK) return NULL;
    return (char *)t->st->ptr + t->offset * (int64_t)dt__dtype_size[t->dtype];
}
DT_API dt_status dt_copy_out(dt_tensor *t, void *dst, size_t nbytes)
{
    if (!dt__ok("dt_copy_out", "t", t)) return dt_error_code();
    if (!dt__nbytes_ok("dt_copy_out", t, dst, nbytes)) return DT_ERR_ARG;
    dt_tensor *d = dt__dense("dt_copy_out", t);
    if (d) dt__download(d, dst);
    dt__unref(d);
    return dt_error_code();
}
DT_API dt_status dt_copy_in(dt_tensor *t, const void *src, size_t nbytes)
{
    if (!dt__ok("dt_copy_in", "t", t)) return dt_error_code();
    if (!dt__nbytes_ok("dt_copy_in", t, src, nbytes) || !dt__write_ok("dt_copy_in", t)) return dt_error_code();
    if (dt__is_dense(t)) {
        dt__upload(t, src);
        return dt_error_code();
    }
    dt_tensor *d = dt__new("dt_copy_in", t->st->dev, t->dtype, t->shape, t->ndim, DT_LAYOUT_PLAIN);
    if (d && !dt__upload(d, src)) dt__copy_to(t, d, 0);
    dt__unref(d);
    return dt_error_code();
}
/* Copies the bytes of x to y, which is on another device and has the same layout. Host memory is one of the two sides, or
   the backend copies from device to device, or the bytes go through a buffer of the host. */
static int dt__cross_bytes(const char *call, dt_tensor *y, const dt_tensor *x)
{
    dt_device  *dev = y->st->dev, *from = x->st->dev;
    size_t      nbytes = (size_t)x->numel * dt__dtype_size[x->dtype];
    const char *src = (const char *)x->st->ptr + x->offset * dt__dtype_size[x->dtype];
    dt__storage_use(x->st);
    dt__storage_use(y->st);
    if (!nbytes) return 0;
    if (dt__is_host(from)) return dt__upload(y, src);
    if (dt__is_host(dev)) return dt__download(x, y->st->ptr);
    if (dev->be->peer && dev->be == from->be)
        return dev->be->peer(dev, dt__stream(dev), y->st->ptr, from, dt__stream(from), src, nbytes);
    void *host = dt_mem_alloc(nbytes);
    if (!host)
        return dt_fail(DT_ERR_MEMORY, "%s: out of memory for %zu bytes of host memory to copy from %s to %s", call, nbytes,
                       from->name, dev->name);
    int rc = dt__download(x, host) || dt__upload(y, host);
    dt_mem_free(host, nbytes);
    return rc ? dt_error_code() : 0;
}
DT__INSIDE dt_tensor *dt__cross(const char *call, dt_tensor *x, dt_device *dev)
{
    bool       same = x->layout != DT_LAYOUT_PLAIN && x->st->dev->be == dev->be; /* dev knows the layout, too */
    dt_tensor *d = same ? dt__ref(x) : dt__dense(call, x);
    dt_tensor *y = d ? dt__new(call, dev, d->dtype, d->shape, d->ndim, d->layout) : NULL;
    int        rc = y ? dt__cross_bytes(call, y, d) : DT_ERR_MEMORY;
    if (rc) {
        dt_fail((dt_status)rc, "%s: a copy from %s to %s failed with status %d", call, x->st->dev->name, dev->name, rc);
        dt__unref(y);
        y = NULL;
    }
    dt__unref(d);
    return y;
}
static bool dt__broadcasts_to(const int64_t *from, int nfrom, const int64_t *to, int nto)
{
    if (nfrom > nto) return false;
    for (int i = 0; i < nfrom; i++)
        if (from[i] != to[nto - nfrom + i] && from[i] != 1) return false;
    return true;
}
DT_API dt_status dt_copy(dt_tensor *dst, dt_tensor *src)
{
    if (!dt__ok("dt_copy", "dst", dst) || !dt__ok("dt_copy", "src", src)) return dt_error_code();
    if (!dt__broadcasts_to(src->shape, src->ndim, dst->shape, dst->ndim))
        return (dt_status)dt_fail(DT_ERR_SHAPE, "dt_copy: src %s does not broadcast to dst %s", dt__text(src),
                                  dt__text(dst));
    if (!dt__write_ok("dt_copy", dst)) return dt_error_code();
    if (src->st->dev == dst->st->dev) {
        if (src->st == dst->st) { /* src and dst may overlap: use a temporary */
            dt_tensor *tmp = dt__new_like("dt_copy", src, src->dtype);
            if (tmp && !dt__copy_to(tmp, src, 0)) dt__copy_to(dst, tmp, 0);
            dt__unref(tmp);
        } else {
            dt__copy_to(dst, src, 0);
        }
        return dt_error_code();
    }
    dt_tensor *here = dt__cross("dt_copy", src, dst->st->dev);
    if (here) dt__copy_to(dst, here, 0);
    dt__unref(here);
    return dt_error_code();
}
DT_API dt_status dt_fill(dt_tensor *t, double value)
{
    if (!dt__ok("dt_fill", "t", t) || !dt__write_ok("dt_fill", t)) return dt_error_code();
    dt__fill(t, value);
    return dt_error_code();
}
DT_API double dt_item(dt_tensor *t)
{
    union { float f; uint16_t h; int32_t i; int64_t l; uint8_t b; } v;
    if (!dt__ok("dt_item", "t", t)) {
        dt__log_unread(); /* the program is about to use NaN as if it were a value */
        return NAN;
    }
    if (t->numel != 1) {
        dt_fail(DT_ERR_SHAPE, "dt_item: %s has %" PRId64 " elements, expected 1; dt_select or reduce it first", dt__text(t),
                t->numel);
        return NAN;
    }
    if (dt__download(t, &v)) return NAN;
    switch (t->dtype) {
    case DT_F32: return v.f;
    case DT_F16: return dt__f16_to_f32(v.h);
    case DT_BF16: return dt__bf16_to_f32(v.h);
    case DT_I32: return v.i;
    case DT_I64: return (double)v.l;
    case DT_U8: return v.b;
    }
    dt_fail(DT_ERR_DTYPE, "dt_item: %d is not a dtype", t->dtype);
    return NAN;
}

/* ---- printing, in the format of numpy: 4 digits, aligned columns, "..." for the middle of large tensors */
typedef struct dt__text_style {
    int dtype, width, digits, exponent;
    int skip; /* print only the first and last elements of each dimension */
} dt__text_style;
DT__INSIDE double dt__element(const void *host, int dtype, int64_t i)
{
    switch (dtype) {
    case DT_F32: return ((const float *)host)[i];
    case DT_F16: return dt__f16_to_f32(((const uint16_t *)host)[i]);
    case DT_BF16: return dt__bf16_to_f32(((const uint16_t *)host)[i]);
    case DT_I32: return ((const int32_t *)host)[i];
    case DT_I64: return (double)((const int64_t *)host)[i];
    case DT_U8: return ((const uint8_t *)host)[i];
    }
    return NAN; /* not a dtype */
}
static int dt__element_text(char *buf, size_t cap, const dt__text_style *s, const void *host, int64_t i)
{
    if (s->dtype == DT_I64) return snprintf(buf, cap, "%*" PRId64, s->width, ((const int64_t *)host)[i]);
    double v = dt__element(host, s->dtype, i);
    if (!dt__is_float(s->dtype)) return snprintf(buf, cap, "%*.0f", s->width, v);
    if (isnan(v)) return snprintf(buf, cap, "%*s", s->width, "nan");
    if (isinf(v)) return snprintf(buf, cap, "%*s", s->width, v > 0 ? "inf" : "-inf");
    if (s->exponent) return snprintf(buf, cap, "%*.4e", s->width, v);
    if (s->digits == 0) return snprintf(buf, cap, "%*.0f.", s->width > 0 ? s->width - 1 : 0, v);
    return snprintf(buf, cap, "%*.*f", s->width, s->digits, v);
}
static dt__text_style dt__choose_style(const void *host, int dtype, int64_t n)
{
    dt__text_style s = { 0, 0, 0, 0, 0 };
    double         hi = 0, lo = INFINITY;
    s.dtype = dtype;
    s.skip = n > 1000;
    for (int64_t i = 0; dt__is_float(dtype) && i < n; i++) {
        double a = fabs(dt__element(host, dtype, i));
        if (!isfinite(a)) continue;
        if (a != floor(a)) s.digits = 4;
        if (a > hi) hi = a;
        if (a > 0 && a < lo) lo = a;
    }
    s.exponent = s.digits && (hi >= 1e8 || (hi > 0 && (lo < 1e-4 || hi / lo > 1e5)));
    char buf[400];
    int  width = 0;
    for (int64_t i = 0; i < n; i++) {
        if (s.skip && i == 2000) i = n > 4000 ? n - 2000 : i; /* the elements in the middle are not printed */
        int w = dt__element_text(buf, sizeof buf, &s, host, i);
        if (w > width) width = w;
    }
    s.width = width;
    return s;
}
static void dt__emit_tensor(dt__text_out *o, const dt__text_style *s, const void *host, const int64_t *shape, int ndim,
                            int64_t at, int64_t step, int depth)
{
    char buf[400];
    if (ndim == 0) {
        dt__element_text(buf, sizeof buf, s, host, at);
        dt__emit(o, buf);
        return;
    }
    dt__emit(o, "[");
    int64_t inner = shape[0] > 0 ? step / shape[0] : 0;
    for (int64_t i = 0; i < shape[0]; i++) {
        if (i) {
            dt__emit(o, ndim > 1 ? "\n" : " ");
            for (int k = 2; k < ndim; k++) dt__emit(o, "\n");
            for (int k = 0; ndim > 1 && k <= depth; k++) dt__emit(o, " ");
        }
        if (s->skip && shape[0] > 6 && i == 3) {
            dt__emit(o, "...");
            i = shape[0] - 4;
            continue;
        }
        dt__emit_tensor(o, s, host, shape + 1, ndim - 1, at + i * inner, inner, depth + 1);
    }
    dt__emit(o, "]");
}
DT_API size_t dt_to_string(dt_tensor *t, char *buf, size_t nbytes)
{
    if (buf && nbytes) buf[0] = 0;
    if (!t || !dt__ok("dt_to_string", "t", t)) return 0;
    size_t     size = (size_t)t->numel * dt__dtype_size[t->dtype];
    dt_tensor *d = dt__dense("dt_to_string", t);
    void      *host = d ? dt_mem_alloc(size) : NULL;
    if (d && !host) dt_fail(DT_ERR_MEMORY, "dt_to_string: out of memory for %zu bytes", size);
    dt__text_out o = { buf, buf ? nbytes : 0, 0 };
    if (host && !dt__download(d, host)) {
        dt__text_style s = dt__choose_style(host, t->dtype, t->numel);
        dt__emit_tensor(&o, &s, host, t->shape, t->ndim, 0, t->numel, 0);
    }
    dt_mem_free(host, size);
    dt__unref(d);
    return o.len;
}
DT_API void dt_print(dt_tensor *t)
{
    if (!t) return;
    size_t n = dt_to_string(t, NULL, 0);
    if (dt__err.code != DT_OK) return;
    char *buf = (char *)dt_mem_alloc(n + 1);
    if (!buf) {
        dt_fail(DT_ERR_MEMORY, "dt_print: out of memory for %zu bytes", n + 1);
        return;
    }
    dt_to_string(t, buf, n + 1);
    printf("%s\n", buf);
    dt_mem_free(buf, n + 1);
}
DT__SLOW_END

/* ==================================================================================================== >>tape
   The tape of a step: one node for each op whose result needs a gradient, in forward order, which is a topological order.
   It belongs to one thread, so it has no lock. A backward runs the nodes in reverse order, from the node of the root. A
   node holds its inputs, which receive gradients, and the tensors that its backward needs, with the version that each
   had. During a backward the gradient of a tensor that is not a leaf accumulates in its 'partial' (states:
   DT__PARTIAL_...); the gradient of a leaf accumulates in its 'grad'. */
static void dt__node_forget_out(dt__node *node, int out)
{
    (void)out;
    node->out = NULL;
}
static void dt__group_forget(dt_tensor *t) { t->group->param[t->group_slot] = NULL; }

static void dt__node_release(dt__node *n)
{
    for (int i = 0; i < n->nin; i++) dt__unref(n->in[i]);
    for (int i = 0; i < n->nsaved; i++) dt__unref(n->saved[i]);
    dt__unref(n->kept);
    n->kept = NULL;
    if (n->in != n->few) dt_mem_free(n->in, (size_t)n->nin * sizeof *n->in);
    n->in = n->few;
    n->nin = n->nsaved = 0;
    n->done = 1;
    if (n->drop) n->drop(n);
    n->drop = NULL;
}
static void dt__trim_nodes(dt__ctx *t)
{
    while (t->free_nodes) {
        dt__node *n = t->free_nodes;
        t->free_nodes = n->next;
        dt_mem_free(n, sizeof *n);
    }
}
DT_API void dt_end(void)
{
    dt__ctx *t = &dt__tls;
    if (t->in_backward) {
        dt_fail(DT_ERR_STATE, "dt_end: called inside a backward (from a hook); call it after dt_backward returns");
        return;
    }
    if (dt__trace_on()) dt__trace_step();
    dt__err.bad_loss = NULL;
    dt__step_end();
}
DT__INSIDE void dt__step_swap(dt__list *step, dt__list *tape)
{
    dt__ctx *t = &dt__tls;
    dt__list s = t->step, p = t->tape;
    t->step = *step;
    t->tape = *tape;
    *step = s;
    *tape = p;
    t->generation++; /* parameters that autocast has cast are on the other tape */
}
/* A tensor whose memory stands for none, and one that gets it instead of its own: only its shape can be used from then on. */
static dt_tensor *dt__nothing(dt_device *dev)
{
    int64_t one = 1;
    return dt__new("dt_backward", dev, DT_F32, &one, 1, DT_LAYOUT_PLAIN);
}
static void dt__forget_values(dt_tensor *t, const dt_tensor *none)
{
    dt__storage *old = t->st;
    t->st = none->st;
    t->offset = 0;
    __atomic_add_fetch(&t->st->refs, 1, __ATOMIC_RELAXED);
    dt__storage_unref(old);
}
static int dt__by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
    return (x > y) - (x < y);
}
DT__INSIDE int dt__step_trim(dt_device *dev)
{
    dt__ctx *t = &dt__tls;
    size_t   n = 0, most = (size_t)t->tape.n * DT__NODE_SAVED + 1;
    void   **kept = (void **)dt_scratch(most * sizeof *kept); /* storages that nodes have saved */
    dt_tensor *none = kept ? dt__nothing(dev) : NULL;
    for (int64_t i = 0; none && i < t->tape.n; i++) {
        const dt__node *k = (const dt__node *)t->tape.at[i];
        for (int s = 0; s < k->nsaved; s++)
            if (k->saved[s]) kept[n++] = k->saved[s]->st;
    }
    if (none) qsort(kept, n, sizeof *kept, dt__by_address);
    for (int64_t i = 0; none && i < t->step.n; i++) {
        dt_tensor *x = (dt_tensor *)t->step.at[i];
        void      *st = x ? x->st : NULL;
        if (st && x->st->dev == dev && !bsearch(&st, kept, n, sizeof *kept, dt__by_address)) dt__forget_values(x, none);
    }
    dt__unref(none);
    return dt__err.code;
}
DT__INSIDE void dt__step_end(void)
{
    dt__ctx *t = &dt__tls;
    t->generation++;
    for (int64_t i = 0; i < t->step.n; i++) {
        dt_tensor *x = (dt_tensor *)t->step.at[i];
        if (!x) continue;
        x->step = NULL;
        dt__unref(x);
    }
    t->step.n = 0;
    for (int64_t i = t->tape.n - 1; i >= 0; i--) {
        dt__node *n = (dt__node *)t->tape.at[i];
        if (n->out) {
            n->out->node = NULL;
            n->out->requires_grad = 0;
            n->out->tape_ended = 1;
        }
        dt__node_release(n);
        n->next = t->free_nodes;
        t->free_nodes = n;
    }
    t->tape.n = 0;
}

/* Records an op if its result needs a gradient. Returns NULL if it does not, or after a failure. in[] may contain NULL. */
DT__INSIDE dt__node *dt__record(const char *name, dt_tensor *out, dt__backward_fn fn, int nin, dt_tensor *const *in)
{
    dt__ctx *t = &dt__tls;
    int      needed = 0;
    if (t->no_grad || dt__err.code != DT_OK || !dt__is_float(out->dtype)) return NULL;
    for (int i = 0; i < nin; i++) {
        if (!in[i] || !in[i]->requires_grad) continue;
        needed = 1;
        if (in[i]->node && in[i]->node->ctx != t) {
            dt_fail(DT_ERR_GRAD, "%s: an input was computed on another thread's tape; dt_detach() it on that thread", name);
            return NULL;
        }
    }
    if (!needed) return NULL;
    dt__node *n = t->free_nodes;
    if (n)
        t->free_nodes = n->next;
    else
        n = (dt__node *)dt_mem_alloc(sizeof *n);
    dt_tensor **many = NULL;
    if (n && nin > DT__NODE_IN) many = (dt_tensor **)dt_mem_alloc((size_t)nin * sizeof *many);
    if (!n || (nin > DT__NODE_IN && !many) || dt__push(&t->tape, n)) {
        dt_mem_free(many, (size_t)nin * sizeof *many);
        dt_mem_free(n, sizeof *n);
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for the tape", name);
        return NULL;
    }
    memset(n, 0, sizeof *n);
    n->name = name;
    n->backward = fn;
    n->ctx = t;
    n->in = many ? many : n->few;
    n->nin = nin;
    for (int i = 0; i < nin; i++) n->in[i] = dt__ref(in[i]);
    n->out = out;
    n->seq = t->tape.n - 1;
    out->node = n;
    out->requires_grad = 1;
    return n;
}
DT__INSIDE void dt__save(dt__node *n, dt_tensor *t)
{
    n->version[n->nsaved] = t ? t->st->version : 0;
    n->saved[n->nsaved++] = dt__ref(t);
}
/* Checks that t may be changed in place, and increments its version. */
DT__INSIDE bool dt__write_ok(const char *call, dt_tensor *t)
{
    if (t->node && !dt__tls.no_grad) {
        dt_fail(DT_ERR_GRAD, "%s: the tensor %s was computed by '%s' on the tape, which does not record this change; "
                "dt_detach() it, or write between dt_no_grad_begin and dt_no_grad_end", call, dt__text(t), t->node->name);
        return false;
    }
    for (int i = 0; i < t->ndim; i++)
        if (t->stride[i] == 0 && t->shape[i] > 1) {
            dt_fail(DT_ERR_ARG, "%s: dimension %d of %s is expanded: its elements share memory; dt_clone() it first",
                    call, i,
                    dt__text(t));
            return false;
        }
    const dt__split *split = dt__tls.split;
    if (__builtin_expect(split != NULL, 0) && split->write) split->write(split->user, call, t);
    if (dt__err.code != DT_OK) return false;
    __atomic_add_fetch(&t->st->version, 1, __ATOMIC_RELAXED);
    return true;
}

/* ---- accumulation of gradients */
DT__INSIDE dt_tensor *dt__alias(dt_tensor *x)
{
    dt_tensor *t = dt__handle_new();
    if (!t) return NULL;
    t->st = x->st;
    __atomic_add_fetch(&t->st->refs, 1, __ATOMIC_RELAXED);
    t->offset = x->offset;
    t->dtype = x->dtype;
    t->layout = x->layout;
    t->ndim = x->ndim;
    t->numel = x->numel;
    memcpy(t->shape, x->shape, sizeof t->shape);
    memcpy(t->stride, x->stride, sizeof t->stride);
    return t;
}
/* A handle on x[start : start+length] along dim; the caller owns it. */
DT__INSIDE dt_tensor *dt__slice(dt_tensor *x, int dim, int64_t start, int64_t length)
{
    dt_tensor *v = dt__alias(x);
    if (!v) return NULL;
    v->layout = DT_LAYOUT_PLAIN;
    v->offset += start * x->stride[dim];
    v->numel = x->shape[dim] ? x->numel / x->shape[dim] * length : 0;
    v->shape[dim] = length;
    return v;
}
#define DT__ANY_LAYOUT (-1)
static int dt__partial_close(dt_tensor *x) /* completes a partial of slices: writes zeros where no slice has written */
{
    if (x->partial_state != DT__PARTIAL_SLICES) return 0;
    int64_t from[2] = { 0, x->partial_to }, n[2] = { x->partial_from, x->shape[x->partial_dim] - x->partial_to };
    int     rc = 0;
    x->partial_state = DT__PARTIAL_OWNED;
    for (int k = 0; k < 2 && !rc; k++) {
        if (!n[k]) continue;
        dt_tensor *rest = dt__slice(x->partial, x->partial_dim, from[k], n[k]);
        rc = rest ? dt__fill(rest, 0) : DT_ERR_MEMORY;
        dt__unref(rest);
    }
    return rc;
}
/* Whether no other handle uses the memory of t, and no two elements of t share memory. */
DT__INSIDE bool dt__is_exclusive(dt_tensor *t)
{
    bool only = __atomic_load_n(&t->refs, __ATOMIC_ACQUIRE) == 1 && __atomic_load_n(&t->st->refs, __ATOMIC_ACQUIRE) == 1;
    for (int i = 0; i < t->ndim; i++) only = only && (t->stride[i] != 0 || t->shape[i] <= 1);
    return only;
}
static int dt__partial_own(dt_tensor *x) /* brings the partial into the state DT__PARTIAL_OWNED */
{
    if (dt__partial_close(x)) return DT_ERR_MEMORY;
    if (x->partial_state == DT__PARTIAL_OWNED || dt__is_exclusive(x->partial)) {
        x->partial_state = DT__PARTIAL_OWNED;
        return 0;
    }
    dt_tensor *p = dt__new_like("backward", x->partial, x->dtype);
    if (!p || dt__copy_to(p, x->partial, 0)) {
        dt__unref(p);
        return DT_ERR_MEMORY;
    }
    dt__unref(x->partial);
    x->partial = p;
    x->partial_state = DT__PARTIAL_OWNED;
    return 0;
}
/* Returns a tensor, in the given layout, into which the caller writes the gradient of x. If *acc is 1, the caller must
   add to it instead of overwriting it. The caller must call dt__grad_end afterwards. */
DT__INSIDE dt_tensor *dt__grad_begin(dt_tensor *x, int layout, uint32_t *acc)
{
    *acc = 0;
    if (!x->node) { /* a leaf: its gradient is in the plain layout, and its memory must not change */
        if (!x->grad) {
            x->grad = dt__new("backward", x->st->dev, x->dtype, x->shape, x->ndim, DT_LAYOUT_PLAIN);
            x->grad_state = DT__GRAD_EMPTY;
        }
        if (!x->grad) return NULL;
        if (layout > DT_LAYOUT_PLAIN) return dt__new("backward", x->st->dev, x->dtype, x->shape, x->ndim, layout);
        *acc = x->grad_state == DT__GRAD_EMPTY ? 0u : 1u;
        x->grad_state = DT__GRAD_SET;
        return dt__ref(x->grad);
    }
    if (!x->partial) {
        x->partial = dt__new("backward", x->st->dev, x->dtype, x->shape, x->ndim, layout < 0 ? x->layout : layout);
        x->partial_state = DT__PARTIAL_OWNED;
        return dt__ref(x->partial);
    }
    bool fits = layout < 0 || (layout == DT_LAYOUT_PLAIN ? dt__is_dense(x->partial) : x->partial->layout == layout);
    if (!fits) return dt__new("backward", x->st->dev, x->dtype, x->shape, x->ndim, layout);
    if (dt__partial_own(x)) return NULL;
    *acc = 1;
    return dt__ref(x->partial);
}
/* Adds g, which has the shape of x, to the gradient of x. g may be a view of another tensor's gradient. */
DT__INSIDE int dt__grad_put(dt_tensor *x, dt_tensor *g)
{
    if (!g) return dt__err.code;
    if (!x->node) {
        uint32_t   acc;
        dt_tensor *t = dt__grad_begin(x, DT__ANY_LAYOUT, &acc);
        int        rc = t ? dt__copy_to(t, g, (int)acc) : DT_ERR_MEMORY;
        dt__unref(t);
        return rc;
    }
    if (x->partial) return dt__partial_own(x) || dt__copy_to(x->partial, g, 1);
    if (g->dtype == x->dtype) {
        x->partial = dt__ref(g);
        x->partial_state = DT__PARTIAL_SHARED;
        return 0;
    }
    x->partial = dt__new_like("backward", g, x->dtype);
    x->partial_state = DT__PARTIAL_OWNED;
    return x->partial ? dt__copy_to(x->partial, g, 0) : DT_ERR_MEMORY;
}
DT__INSIDE int dt__grad_end(dt_tensor *x, dt_tensor *t)
{
    int rc = 0;
    if (t && t != x->partial && t != x->grad) {
        rc = dt__grad_put(x, t);
        if (x->partial == t) x->partial_state = DT__PARTIAL_OWNED; /* the unref below drops the other reference */
    }
    dt__unref(t);
    return rc;
}
static bool dt__is_weight(const dt_tensor *x) { return !x->node && !x->boundary; }
DT__INSIDE bool dt__needs_grad(const dt__node *n, int k)
{
    const dt_tensor *x = n->in[k];
    int              part = dt__tls.backward_part;
    return x && x->requires_grad && (part == DT__BACK_ALL || (part == DT__BACK_WEIGHTS) == dt__is_weight(x));
}
static bool dt__has_weights(const dt__node *n)
{
    for (int k = 0; k < n->nin; k++)
        if (n->in[k] && n->in[k]->requires_grad && dt__is_weight(n->in[k])) return true;
    return false;
}

/* ---- backward */
static void dt__hooks_ready(dt__ctx *t, dt_tensor *p)
{
    if (__builtin_expect(t->timing != NULL, 0) && t->timing->ready) t->timing->ready(t->timing->user, p);
    for (int i = 0; i < DT__MAX_HOOKS; i++)
        if (t->hook_used[i] && t->hook[i].ready) t->hook[i].ready(t->hook[i].user, p);
}
/* Marks the nodes that are reachable from the roots, or those of DT__BACK_WEIGHTS, and counts how many contributions each
   leaf will receive. Returns the place of the last one, or -1 after dt_fail. */
static int64_t dt__mark_reachable(dt__ctx *t, dt_tensor *const *root, int nroots)
{
    uint32_t id = ++t->backward_id;
    int64_t  first = t->backward_part == DT__BACK_WEIGHTS ? t->tape.n - 1 : 0;
    if (!id) id = ++t->backward_id;
    t->generation++;
    for (int i = 0; i < nroots; i++) {
        if (!root[i]->node) continue;
        root[i]->node->mark = id;
        if (root[i]->node->seq > first) first = root[i]->node->seq;
    }
    for (int64_t s = first; s >= 0; s--) {
        dt__node *n = (dt__node *)t->tape.at[s];
        if (n->kept && t->backward_part == DT__BACK_WEIGHTS) n->mark = id;
        if (n->mark != id) continue;
        if (n->done) {
            dt_fail(DT_ERR_GRAD,
                    "dt_backward: an earlier backward through '%s' freed the tensors that it saved; pass "
                    ".retain_graph = true to the earlier one", n->name);
            return -1;
        }
        for (int k = 0; k < n->nin; k++) {
            dt_tensor *x = n->in[k];
            if (!dt__needs_grad(n, k)) continue;
            if (x->node) {
                x->node->mark = id;
            } else {
                if (x->mark != id) x->pending = 0;
                x->mark = id;
                x->pending++;
            }
        }
    }
    return first;
}
static int dt__backward_node(dt__ctx *t, dt__node *n)
{
    dt_tensor *out = n->out, *g = t->backward_part == DT__BACK_WEIGHTS ? n->kept : out ? out->partial : NULL;
    int        rc = g && g != n->kept ? dt__partial_close(out) : 0;
    if (rc) return rc;
    for (int i = 0; g && i < n->nsaved; i++)
        if (n->saved[i] && n->saved[i]->st->version != n->version[i])
            return dt_fail(DT_ERR_GRAD,
                           "dt_backward: a tensor %s that '%s' saved was changed in place afterwards; change a "
                           "dt_clone() of it instead", dt__text(n->saved[i]), n->name);
    if (g) {
        if (g == n->kept) n->kept = NULL;
        else out->partial = NULL;
        uint64_t t0 = dt__trace_on() ? dt__trace_mark() : 0;
        bool     any = t->backward_part == DT__BACK_ALL; /* ops with one input do not ask whether its gradient is needed */
        for (int k = 0; k < n->nin && !any; k++) any = dt__needs_grad(n, k);
        if (any) rc = n->backward(n, g);
        if (t0) dt__trace_node(n->name, t0);
        if (!rc && out && out->retain_grad && t->backward_part != DT__BACK_WEIGHTS) {
            if (!out->grad) {
                out->grad = dt__new_like("dt_retain_grad", g, g->dtype);
                out->grad_state = DT__GRAD_EMPTY;
            }
            rc = out->grad ? dt__copy_to(out->grad, g, out->grad_state != DT__GRAD_EMPTY) : DT_ERR_MEMORY;
            out->grad_state = DT__GRAD_SET;
        }
        if (!rc && t->backward_part == DT__BACK_INPUTS && dt__has_weights(n)) n->kept = g;
        else dt__unref(g);
    }
    for (int k = 0; k < n->nin && !rc; k++) {
        dt_tensor *x = n->in[k];
        if (dt__needs_grad(n, k) && !x->node && x->mark == t->backward_id && --x->pending == 0) dt__hooks_ready(t, x);
    }
    return rc;
}
/* The backward of node n is done, and so are those of all that use its output. Frees the values that only they needed: with
   DT__BACK_INPUTS not what n needs for the gradients of its weights. The handle of the output stays, with none's memory. */
static int dt__node_free_values(dt__ctx *t, dt__node *n, dt_tensor *none)
{
    dt_tensor *out = n->out;
    for (int i = 0; i < n->nsaved; i++) {
        dt_tensor *x = n->saved[i];
        if (n->kept && (!x || !x->node)) continue;
        n->saved[i] = n->kept ? dt__alias(x) : NULL; /* a handle of its own: that of its node gives its memory up */
        dt__unref(x);
        if (n->kept && !n->saved[i]) return dt__err.code;
    }
    if (!n->kept) n->nsaved = 0;
    if (out && out->step == t && out->node == n && out->st->dev == none->st->dev) dt__forget_values(out, none);
    return 0;
}
/* Sets the gradients of parameters that this backward did not reach to zero, so that the gradient of p's block is
   complete. */
static int dt__complete_groups(dt_tensor *p, uint32_t id)
{
    dt__group *group = p->group;
    int        rc = 0;
    if (!group || group->mark == id) return 0;
    group->mark = id;
    for (int i = 0; i < group->n && !rc; i++) {
        dt_tensor *q = group->param[i];
        if (!q || !q->grad || q->grad_state != DT__GRAD_EMPTY) continue;
        rc = dt__fill(q->grad, 0);
        q->grad_state = DT__GRAD_UNREACHED;
    }
    return rc;
}
static int dt__seed_root(dt_tensor *root, dt_tensor *grad)
{
    if (!grad) {
        if (root->numel != 1)
            return dt_fail(DT_ERR_GRAD,
                           "dt_backward: the root %s has %" PRId64 " elements; reduce it (dt_mean, dt_sum) or pass .grad",
                           dt__text(root), root->numel);
        dt_tensor *one = dt__new_like("dt_backward", root, root->dtype);
        int        rc = one ? dt__fill(one, 1) : DT_ERR_MEMORY;
        if (!rc) rc = dt__grad_put(root, one);
        dt__unref(one);
        return rc;
    }
    if (!dt__ok("dt_backward", "grad", grad) || !dt__same_device("dt_backward", root, grad)) return dt_error_code();
    bool same = grad->ndim == root->ndim;
    for (int i = 0; same && i < root->ndim; i++) same = grad->shape[i] == root->shape[i];
    if (!same)
        return dt_fail(DT_ERR_SHAPE, "dt_backward: .grad has the shape %s; it must have the shape of the root, %s",
                       dt__text(grad), dt__text(root));
    return dt__grad_put(root, grad);
}
/* Remembers a NaN or infinite loss until the step ends, so that an optimiser can refuse to step. Only for the CPU: on
   another device, reading the loss would make the host wait. */
static void dt__note_loss(const dt_tensor *root)
{
    if (root->numel != 1 || root->st->dev != dt_cpu() || dt__err.bad_loss) return;
    double v = dt__element((const char *)root->st->ptr + root->offset * dt__dtype_size[root->dtype], root->dtype, 0);
    if (isfinite(v)) return;
    dt__err.bad_loss = root->node->name;
    dt__err.bad_loss_value = v;
}
DT_API dt_status dt_backward_with(dt_tensor *root, dt_backward_opts o)
{
    dt__ctx *t = &dt__tls;
    if (!dt__ok("dt_backward", "root", root)) return dt_error_code();
    if (t->in_backward)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_backward: called inside a backward (from a hook); call it afterwards");
    if (!root->requires_grad)
        return (dt_status)dt_fail(DT_ERR_GRAD, root->tape_ended
                                  ? "dt_backward: dt_end freed the tape of the root %s; call dt_backward before dt_end"
                                  : "dt_backward: the root %s does not depend on a parameter, or was computed under dt_no_grad; compute "
                                    "it from a layer of a model, or from a tensor with dt_set_requires_grad",
                                  dt__text(root));
    if (!root->node) return (dt_status)dt__seed_root(root, o.grad); /* a leaf: its gradient is .grad, or 1 */
    if (root->node->ctx != t)
        return (dt_status)dt_fail(DT_ERR_GRAD, "dt_backward: the root %s belongs to another thread's tape; call "
                                  "dt_backward on that thread", dt__text(root));
    return (dt_status)dt__backward(&root, &o.grad, 1, DT__BACK_ALL, o.retain_graph);
}
DT__INSIDE int dt__backward(dt_tensor *const *root, dt_tensor *const *grad, int n, int part, bool retain)
{
    dt__ctx *t = &dt__tls;
    bool     frees = (part & DT__BACK_FREE) != 0;
    if (dt__err.code != DT_OK) {
        for (int i = 0; i < n && frees; i++) dt__unref(grad[i]);
        return dt__err.code;
    }
    uint64_t   t0 = dt__trace_on() ? dt__trace_backward_begin() : 0;
    dt_tensor *none = NULL;
    t->backward_part = part &= ~(int)DT__BACK_FREE;
    int64_t first = dt__mark_reachable(t, root, n);
    int     rc = first < 0 && dt__err.code != DT_OK ? dt__err.code : 0;
    for (int i = 0; i < n && !rc; i++) rc = dt__seed_root(root[i], grad[i]);
    for (int i = 0; i < n && frees; i++) dt__unref(grad[i]);
    if (frees && first >= 0 && first < t->tape.n && !rc) {
        dt_tensor *some = ((dt__node *)t->tape.at[first])->out;
        none = some ? dt__nothing(some->st->dev) : NULL;
        rc = dt__err.code;
    }
    if (rc) {
        for (int i = 0; i < n; i++) {
            dt__unref(root[i]->partial);
            root[i]->partial = NULL;
        }
        t->backward_part = DT__BACK_ALL;
        return rc;
    }
    for (int i = 0; i < n && !frees; i++)
        if (root[i]->node) dt__note_loss(root[i]);
    uint32_t id = t->backward_id;
    t->in_backward = 1;
    t->stop_backward = 0;
    t->no_grad++;
    dt__measured.back = dt__nanoseconds();
    for (int i = 0; i < DT__MAX_HOOKS; i++)
        if (t->hook_used[i] && t->hook[i].begin) t->hook[i].begin(t->hook[i].user);
    for (int64_t s = first; s >= 0 && s < t->tape.n && !rc && !t->stop_backward; s--) {
        dt__node *node = (dt__node *)t->tape.at[s];
        if (__builtin_expect(t->timing != NULL, 0)) t->timing->node(t->timing->user, s);
        if (node->mark != id) continue;
        rc = dt__backward_node(t, node);
        if (!rc && none) rc = dt__node_free_values(t, node, none);
        if (!rc && dt__err.code != DT_OK) rc = dt__err.code;
    }
    if (__builtin_expect(t->timing != NULL, 0)) t->timing->node(t->timing->user, -1);
    for (int64_t s = first; s >= 0 && s < t->tape.n; s--) { /* free remaining partials and, unless retained, the saved tensors */
        dt__node *node = (dt__node *)t->tape.at[s];
        if (node->mark != id) continue;
        if (node->out && node->out->partial) {
            dt__unref(node->out->partial);
            node->out->partial = NULL;
            node->out->partial_state = DT__PARTIAL_OWNED;
        }
        for (int k = 0; k < node->nin && !rc && !t->stop_backward; k++)
            if (dt__needs_grad(node, k) && !node->in[k]->node && node->in[k]->mark == id)
                rc = dt__complete_groups(node->in[k], id);
        if (!retain && !node->kept) dt__node_release(node);
    }
    dt__unref(none);
    t->no_grad--;
    t->in_backward = 0;
    t->backward_part = DT__BACK_ALL;
    for (int i = 0; i < DT__MAX_HOOKS; i++)
        if (t->hook_used[i] && t->hook[i].end) t->hook[i].end(t->hook[i].user, (dt_status)rc);
    dt__measured.backed = dt__nanoseconds();
    if (t0) dt__trace_backward_end(t0);
    return rc;
}

DT_API dt_tensor *dt_set_requires_grad(dt_tensor *t)
{
    if (!dt__ok("dt_set_requires_grad", "t", t) || !dt__want_float("dt_set_requires_grad", t)) return NULL;
    if (t->node) {
        dt_fail(DT_ERR_GRAD, "dt_set_requires_grad: %s was computed by '%s' on the tape; dt_detach() it first", dt__text(t),
                t->node->name);
        return NULL;
    }
    if (dt__make_plain(t) || !dt_keep(t)) return NULL;
    t->requires_grad = t->leaf = 1;
    return t;
}
DT_API bool       dt_requires_grad(const dt_tensor *t) { return dt__alive(t) && t->requires_grad; }
DT_API dt_tensor *dt_grad(dt_tensor *t)
{
    if (!dt__alive(t) || t->grad_state == DT__GRAD_EMPTY || !t->grad) return NULL;
    t->grad->given = 1;
    return t->grad;
}
DT_API void       dt_retain_grad(dt_tensor *t)
{
    if (t && dt__ok("dt_retain_grad", "t", t)) t->retain_grad = 1;
}
DT_API void dt_zero_grad(dt_tensor *t)
{
    if (dt__alive(t) && t->grad) t->grad_state = DT__GRAD_EMPTY;
}
DT_API void dt_no_grad_begin(void) { dt__tls.no_grad++; }
DT_API void dt_no_grad_end(void)
{
    if (dt__tls.no_grad > 0)
        dt__tls.no_grad--;
    else
        dt_fail(DT_ERR_STATE, "dt_no_grad_end: called without a matching dt_no_grad_begin");
}
DT_API bool dt_is_grad_enabled(void) { return dt__tls.no_grad == 0; }
DT_API int  dt_grad_hooks_add(const dt_grad_hooks *h)
{
    dt__ctx *t = &dt__tls;
    if (!h) return dt_fail(DT_ERR_ARG, "dt_grad_hooks_add: h is NULL");
    for (int i = 0; i < DT__MAX_HOOKS; i++)
        if (!t->hook_used[i]) {
            t->hook[i] = *h;
            t->hook_used[i] = 1;
            return i;
        }
    return dt_fail(DT_ERR_ARG, "dt_grad_hooks_add: this thread has %d sets of hooks, which is the maximum; remove one with "
                   "dt_grad_hooks_remove()", DT__MAX_HOOKS);
}
DT_API void dt_grad_hooks_remove(int id)
{
    if (id >= 0 && id < DT__MAX_HOOKS) dt__tls.hook_used[id] = 0;
}
DT_API void dt_backward_stop(void)
{
    if (dt__tls.in_backward) dt__tls.stop_backward = 1;
}
DT_API bool dt_grad_pending(const dt_tensor *param)
{
    return dt__tls.in_backward && dt__alive(param) && param->mark == dt__tls.backward_id && param->pending > 0;
}

/* ---- ops of the program (dt_function)
   With one output the op is one node of the tape. With several, its node has a hidden output, from which each output is
   computed by a node of its own: these collect the gradients, and the hidden one makes the op's node run after them. */
struct dt_fn_call {
    const dt_function *f;
    dt__node          *node; /* in a backward */
    dt_tensor *const  *in;
    int                nin, nout;
    dt_tensor         *out[DT_FN_MAX_OUT], *saved[DT_FN_MAX_SAVED];
    dt_tensor         *grad[DT_FN_MAX_OUT]; /* references, between the nodes of the outputs and that of the op */
    size_t             nbytes;
    void              *opts;
};
static bool dt__fn_slot(const dt_fn_call *c, const char *call, int i, int n)
{
    if (c && i >= 0 && i < n) return true;
    dt_fail(DT_ERR_ARG, "%s: %s has no number %d; it has %d of them", call, c ? c->f->name : "the op (NULL)", i, c ? n : 0);
    return false;
}
DT_API dt_tensor *dt_fn_in(const dt_fn_call *c, int i) { return dt__fn_slot(c, "dt_fn_in", i, c ? c->nin : 0) ? c->in[i] : NULL; }
DT_API const void *dt_fn_opts(const dt_fn_call *c) { return c ? c->opts : NULL; }
DT_API void        dt_fn_out(dt_fn_call *c, int i, dt_tensor *t)
{
    if (dt__fn_slot(c, "dt_fn_out", i, c ? c->nout : 0) && dt__ok(c->f->name, "an output", t)) c->out[i] = t;
}
DT_API void dt_fn_save(dt_fn_call *c, int slot, dt_tensor *t)
{
    if (dt__fn_slot(c, "dt_fn_save", slot, DT_FN_MAX_SAVED) && dt__ok(c->f->name, "a saved tensor", t)) c->saved[slot] = t;
}
DT_API dt_tensor *dt_fn_saved(const dt_fn_call *c, int slot)
{
    if (!dt__fn_slot(c, "dt_fn_saved", slot, DT_FN_MAX_SAVED)) return NULL;
    return c->node ? slot < c->node->nsaved ? c->node->saved[slot] : NULL : c->saved[slot];
}
DT_API dt_tensor *dt_fn_grad(const dt_fn_call *c, int i)
{
    return dt__fn_slot(c, "dt_fn_grad", i, c ? c->nout : 0) ? c->grad[i] : NULL;
}
DT_API bool dt_fn_needs_grad(const dt_fn_call *c, int i)
{
    if (!dt__fn_slot(c, "dt_fn_needs_grad", i, c ? c->nin : 0)) return false;
    return c->node ? dt__needs_grad(c->node, i) : c->in[i] && c->in[i]->requires_grad && !dt__tls.no_grad;
}
DT_API void dt_fn_give(dt_fn_call *c, int i, dt_tensor *g)
{
    if (!dt__fn_slot(c, "dt_fn_give", i, c ? c->nin : 0)) return;
    const char *call = c->f->name;
    dt_tensor  *x = c->in[i];
    if (!c->node) {
        dt_fail(DT_ERR_STATE, "dt_fn_give: called in the forward of %s; gradients are given in its backward", call);
        return;
    }
    if (!dt__ok(call, "a gradient", g) || !dt__needs_grad(c->node, i)) return;
    dt_shape s = dt_shape_of(x);
    if (!dt__same_shape(g, &s) || !dt__is_float(g->dtype) || g->st->dev != x->st->dev) {
        dt_fail(DT_ERR_SHAPE, "%s: the gradient of input %d is %s on %s; it must be a float tensor of the shape of the input, %s on %s",
                call, i, dt__text(g), g->st->dev->name, dt__text(x), x->st->dev->name);
        return;
    }
    dt__grad_put(x, g);
}
static void dt__fn_drop(dt__node *n)
{
    dt_fn_call *c = (dt_fn_call *)n->user;
    for (int i = 0; i < c->nout; i++) dt__unref(c->grad[i]);
    dt_mem_free(c, sizeof *c + c->nbytes);
}
static int dt__fn_bwd(dt__node *n, dt_tensor *g)
{
    dt__ctx    *t = &dt__tls;
    dt_fn_call *c = (dt_fn_call *)n->user;
    int64_t     first = t->step.n;
    if (c->nout == 1 && !c->grad[0]) c->grad[0] = dt__ref(g);
    c->node = n;
    c->in = n->in;
    int rc = c->f->backward(c);
    c->node = NULL;
    for (int i = 0; i < c->nout && t->backward_part != DT__BACK_INPUTS; i++) { /* DT__BACK_WEIGHTS will need them again */
        dt__unref(c->grad[i]);
        c->grad[i] = NULL;
    }
    for (int64_t i = first; i < t->step.n; i++) { /* what the callback made */
        dt_tensor *x = (dt_tensor *)t->step.at[i];
        if (!x) continue;
        x->step = NULL;
        dt__unref(x);
    }
    t->step.n = first;
    if (rc && dt__err.code == DT_OK) dt_fail((dt_status)rc, "%s: its backward returned %d without a message (dt_fail)", n->name, rc);
    return dt__err.code;
}
static int dt__fn_part_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor  *hidden = n->in[0];
    dt_fn_call *c = (dt_fn_call *)hidden->node->user;
    dt__unref(c->grad[n->i[0]]);
    c->grad[n->i[0]] = dt__ref(g);
    return hidden->partial ? 0 : dt__grad_put(hidden, hidden); /* a value of its own is not looked at */
}
/* Takes c over. */
static void dt__fn_record(dt_fn_call *c, dt_tensor *const *out)
{
    dt_tensor *hidden = NULL, *root = out[0];
    if (c->nout > 1) hidden = root = dt__new(c->f->name, out[0]->st->dev, DT_F32, NULL, 0, DT_LAYOUT_PLAIN);
    dt__node *n = root && c->f->backward ? dt__record(c->f->name, root, dt__fn_bwd, c->nin, c->in) : NULL;
    int       last = DT_FN_MAX_SAVED;
    while (last > 0 && !c->saved[last - 1]) last--;
    for (int i = 0; n && i < last; i++) dt__save(n, c->saved[i]);
    if (n) {
        n->user = c;
        n->drop = dt__fn_drop;
    }
    for (int i = 0; n && hidden && i < c->nout; i++) {
        dt__node *part = dt__record(c->f->name, out[i], dt__fn_part_bwd, 1, &hidden);
        if (part) part->i[0] = i;
    }
    dt__unref(hidden);
    if (!n) dt_mem_free(c, sizeof *c + c->nbytes);
}
DT_API dt_status dt_function_run(const dt_function *f, dt_tensor *const *in, int nin, const void *opts, size_t opts_nbytes,
                                 dt_tensor **out, int nout)
{
    const char *call = f && f->name ? f->name : "dt_function_run";
    for (int i = 0; out && i < nout && i < DT_FN_MAX_OUT; i++) out[i] = NULL;
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!f || !f->name || !f->forward || !out || (nin && !in) || nin < 0 || nin > DT_FN_MAX_IN || nout < 1 || nout > DT_FN_MAX_OUT)
        return (dt_status)dt_fail(DT_ERR_ARG, "%s: the function or its name, its forward, in or out is NULL, or %d inputs are not 0 to %d, or "
                                  "%d outputs are not 1 to %d", call, nin, DT_FN_MAX_IN, nout, DT_FN_MAX_OUT);
    for (int i = 0; i < nin; i++)
        if (in[i] && !dt__ok(call, "an input", in[i])) return dt_error_code();
    if (!opts) opts_nbytes = 0;
    dt_fn_call *c = (dt_fn_call *)dt__alloc_zero(sizeof *c + opts_nbytes);
    if (!c) return (dt_status)dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    c->f = f;
    c->in = in;
    c->nin = nin;
    c->nout = nout;
    c->nbytes = opts_nbytes;
    c->opts = opts_nbytes ? (void *)(c + 1) : NULL;
    if (opts_nbytes) memcpy(c->opts, opts, opts_nbytes);
    dt__tls.no_grad++;
    int rc = f->forward(c);
    for (int i = 0; i < nout && !rc && dt__err.code == DT_OK; i++) {
        dt_tensor *t = c->out[i];
        if (!t) {
            dt_fail(DT_ERR_STATE, "%s: its forward did not set output %d with dt_fn_out", call, i);
            break;
        }
        bool own = !t->node && !t->leaf && !t->requires_grad; /* an input, or a view of one by the same handle */
        for (int k = 0; k < nin; k++) own = own && t != in[k];
        for (int k = 0; k < i; k++) own = own && t != out[k];
        out[i] = own ? t : dt__give(dt__alias(t));
    }
    dt__tls.no_grad--;
    if (rc && dt__err.code == DT_OK) dt_fail((dt_status)rc, "%s: its forward returned %d without a message (dt_fail)", call, rc);
    if (dt__err.code == DT_OK) dt__fn_record(c, out);
    else dt_mem_free(c, sizeof *c + c->nbytes);
    for (int i = 0; i < nout && dt__err.code != DT_OK; i++) out[i] = NULL;
    return dt__err.code;
}
DT_API dt_tensor *dt_function_apply(const dt_function *f, dt_tensor *const *in, int nin, const void *opts, size_t opts_nbytes)
{
    dt_tensor *out = NULL;
    dt_function_run(f, in, nin, opts, opts_nbytes, &out, 1);
    return out;
}

/* ---- blocks
   In a block each parameter begins at a multiple of 64 bytes, measured in the dtype of the block. The other arrays of a
   block (f32 master weights, gradients, optimiser states) use the same offsets in elements, and their elements are not
   smaller, so parameters are aligned to 64 bytes in all of them. The memory of a block is aligned, too: see alloc of
   dt_backend. */
#ifndef DT__PACK_BYTES /* a test packs without padding and compares the results */
#define DT__PACK_BYTES 64
#endif
DT__INSIDE int64_t dt__pack_next(int64_t end, int dtype)
{
    int64_t size = (int64_t)dt__dtype_size[dtype], each = DT__PACK_BYTES > size ? DT__PACK_BYTES / size : 1;
    return (end + each - 1) / each * each;
}
static int dt__pack_check(dt_block *b, dt_tensor **params, int n, int64_t *total)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!b || !params || n < 1)
        return dt_fail(DT_ERR_ARG, "dt_pack: b or params is NULL, or n is %d; it needs a block and at least one parameter",
                       n);
    *total = 0;
    for (int i = 0; i < n; i++) {
        dt_tensor *p = params[i];
        if (!dt__ok("dt_pack", "a parameter", p)) return dt_error_code();
        if (!p->leaf)
            return dt_fail(DT_ERR_ARG, "dt_pack: parameter %d %s is not a parameter; call dt_set_requires_grad() first", i,
                           dt__text(p));
        if (p->group)
            return dt_fail(DT_ERR_ARG, "dt_pack: parameter %d %s is already in a block; dt_block_free() that one first", i,
                           dt__text(p));
        if (p->dtype != params[0]->dtype || p->st->dev != params[0]->st->dev)
            return dt_fail(DT_ERR_DTYPE,
                           "dt_pack: parameter %d is %s on %s, the first is %s on %s; pack them into separate blocks", i,
                           dt_dtype_name((dt_dtype)p->dtype), p->st->dev->name, dt_dtype_name((dt_dtype)params[0]->dtype),
                           params[0]->st->dev->name);
        *total = dt__pack_next(*total, p->dtype) + p->numel;
    }
    return 0;
}
/* The value of p moved to other memory and is unchanged: updates the versions that the tape saved, so that saved tensors
   that were valid stay valid, and stale ones stay stale. */
static void dt__tape_update_versions(const dt_tensor *p, uint32_t before)
{
    dt__ctx *t = &dt__tls;
    for (int64_t i = 0; i < t->tape.n; i++) {
        dt__node *n = (dt__node *)t->tape.at[i];
        for (int k = 0; k < n->nsaved; k++)
            if (n->saved[k] == p) n->version[k] = p->st->version - (n->version[k] == before ? 0u : 1u);
    }
}
/* Moves the value and the gradient of one parameter into the block, to offset 'at'. */
static int dt__pack_one(dt_block *b, dt_tensor *p, int64_t at)
{
    dt_tensor *v = dt__alias(b->value), *g = dt__alias(b->grad);
    int        rc = v && g ? 0 : DT_ERR_MEMORY;
    dt_tensor *w[2] = { v, g };
    for (int k = 0; k < 2 && !rc; k++) {
        w[k]->offset = at;
        w[k]->ndim = p->ndim;
        w[k]->numel = p->numel;
        memcpy(w[k]->shape, p->shape, sizeof p->shape);
        dt__dense_strides(w[k]->stride, w[k]->shape, w[k]->ndim);
    }
    if (!rc) rc = dt__copy_to(v, p, 0);
    if (!rc && p->grad && p->grad_state != DT__GRAD_EMPTY) rc = dt__copy_to(g, p->grad, 0);
    if (rc) {
        dt__unref(v);
        dt__unref(g);
        return rc;
    }
    dt__storage *old = p->st;
    p->st = v->st;
    v->st = old;
    p->offset = at;
    memcpy(p->stride, v->stride, sizeof p->stride);
    if (old->version != p->st->version) dt__tape_update_versions(p, old->version);
    dt__unref(v);
    if (!p->grad) p->grad_state = DT__GRAD_EMPTY;
    dt__unref(p->grad);
    p->grad = g;
    return 0;
}
/* grad: memory for the gradients, 1-d, with the right dtype and length; the block takes its reference, also after a
   failure. NULL: allocate it. */
DT__INSIDE int dt__pack(dt_block *b, dt_tensor **params, int n, dt_tensor *grad)
{
    int64_t total;
    if (b) memset(b, 0, sizeof *b);
    if (dt__pack_check(b, params, n, &total)) {
        dt__unref(grad);
        return dt_error_code();
    }
    dt_device *dev = params[0]->st->dev;
    dt__group *group = (dt__group *)dt__alloc_zero(sizeof *group);
    if (group) group->n = n;
    if (group) group->param = (dt_tensor **)dt__alloc_zero((size_t)n * sizeof *group->param);
    if (group) group->offset = (int64_t *)dt__alloc_zero((size_t)n * sizeof *group->offset);
    b->dt__group = group;
    if (group && group->param && group->offset) {
        b->n = n;
        b->offset = group->offset;
        b->value = dt__new("dt_pack", dev, params[0]->dtype, &total, 1, DT_LAYOUT_PLAIN);
        b->grad = grad ? grad : dt__new("dt_pack", dev, params[0]->dtype, &total, 1, DT_LAYOUT_PLAIN);
    } else {
        dt__unref(grad);
        dt_fail(DT_ERR_MEMORY, "dt_pack: out of memory");
    }
    int rc = b->value && b->grad ? dt__fill(b->grad, 0) : DT_ERR_MEMORY;
    if (!rc) rc = dt__fill(b->value, 0); /* the padding must be zero */
    for (int64_t i = 0, at = 0; i < n && !rc; i++) {
        at = dt__pack_next(at, params[i]->dtype);
        rc = dt__pack_one(b, params[i], at);
        if (rc) break;
        group->offset[i] = at;
        at += params[i]->numel;
        params[i]->group = group;
        params[i]->group_slot = (int)i;
        group->param[i] = params[i];
    }
    if (rc) dt_block_free(b);
    return rc;
}
DT_API dt_status dt_pack(dt_block *b, dt_tensor **params, int n) { return (dt_status)dt__pack(b, params, n, NULL); }
DT_API void dt_block_zero_grad(dt_block *b)
{
    dt__group *group = b ? (dt__group *)b->dt__group : NULL;
    for (int i = 0; group && i < group->n; i++)
        if (group->param[i]) group->param[i]->grad_state = DT__GRAD_EMPTY;
}
DT_API void dt_block_free(dt_block *b)
{
    if (!b) return;
    dt__group *group = (dt__group *)b->dt__group;
    for (int i = 0; group && group->param && i < group->n; i++)
        if (group->param[i]) group->param[i]->group = NULL;
    if (group) dt_mem_free(group->param, (size_t)group->n * sizeof *group->param);
    if (group) dt_mem_free(group->offset, (size_t)group->n * sizeof *group->offset);
    dt_mem_free(group, sizeof *group);
    dt__unref(b->value);
    dt__unref(b->grad);
    memset(b, 0, sizeof *b);
}

DT__SLOW_BEGIN
/* ==================================================================================================== >>views */
static dt_tensor *dt__reshaped(dt_tensor *g, const dt_tensor *like) /* g with the shape of like; the caller owns it */
{
    dt_tensor *d = dt__dense("backward", g);
    dt_tensor *v = d ? dt__alias(d) : NULL;
    dt__unref(d);
    if (!v) return NULL;
    v->ndim = like->ndim;
    memcpy(v->shape, like->shape, sizeof v->shape);
    dt__dense_strides(v->stride, v->shape, v->ndim);
    return v;
}
static int dt__put_owned(dt_tensor *x, dt_tensor *g) /* dt__grad_put, then drops the caller's reference to g */
{
    int rc = dt__grad_put(x, g);
    dt__unref(g);
    return rc;
}
static int dt__reshape_bwd(dt__node *n, dt_tensor *g) { return dt__put_owned(n->in[0], dt__reshaped(g, n->in[0])); }
static dt_tensor *dt__view_done(const char *name, dt_tensor *v, dt_tensor *x, dt__backward_fn fn)
{
    if (v) dt__record(name, v, fn, 1, &x);
    return v ? dt__finish(v, dt__err.code) : NULL;
}
/* Computes the strides of x viewed with another shape; false if this needs a copy. */
static bool dt__restride(const dt_tensor *x, const int64_t *shape, int ndim, int64_t *stride)
{
    int     j = ndim - 1;
    int64_t chunk = 1, base = x->ndim ? x->stride[x->ndim - 1] : 1;
    if (x->numel == 0) {
        dt__dense_strides(stride, shape, ndim);
        return true;
    }
    int64_t seen = 1;
    for (int i = x->ndim - 1; i >= 0; i--) {
        chunk *= x->shape[i];
        if (i > 0 && (x->shape[i - 1] == 1 || x->stride[i - 1] == chunk * base)) continue;
        while (j >= 0 && (seen < chunk || shape[j] == 1)) { /* dimensions i and up form one contiguous run of x */
            stride[j] = seen * base;
            seen *= shape[j--];
        }
        if (seen != chunk) return false;
        if (i > 0) {
            base = x->stride[i - 1];
            chunk = seen = 1;
        }
    }
    for (; j >= 0; j--) stride[j] = 1;
    return true;
}
static bool dt__infer_shape(const char *call, const dt_tensor *t, dt_shape *s)
{
    int64_t known = 1;
    int     open = -1;
    if (s->ndim < 0 || s->ndim > DT_MAX_DIMS) {
        dt_fail(DT_ERR_SHAPE, "%s: %d dimensions; a tensor has 0 to %d", call, s->ndim, DT_MAX_DIMS);
        return false;
    }
    for (int i = 0; i < s->ndim; i++) {
        if (s->dim[i] == -1 && open < 0) {
            open = i;
        } else if (s->dim[i] < 0 || __builtin_mul_overflow(known, s->dim[i], &known)) {
            dt_fail(DT_ERR_SHAPE, "%s: %s is not a shape (one dimension may be -1)", call, dt__shape_text(s->dim,
                    s->ndim));
            return false;
        }
    }
    if (open >= 0 && known > 0 && t->numel % known == 0) {
        s->dim[open] = t->numel / known;
        known = t->numel;
    } else if (open >= 0) {
        known = -1;
    }
    if (known == t->numel) return true;
    dt_fail(DT_ERR_SHAPE, "%s: %s has %" PRId64 " elements and cannot become %s", call, dt__text(t), t->numel,
            dt__shape_text(s->dim, s->ndim));
    return false;
}
static dt_tensor *dt__reshape(const char *call, dt_tensor *t, dt_shape s)
{
    int64_t stride[DT_MAX_DIMS];
    if (!dt__infer_shape(call, t, &s) || dt__make_plain(t)) return NULL;
    dt_tensor *v;
    if (dt__restride(t, s.dim, s.ndim, stride)) {
        v = dt__alias(t);
    } else {
        dt_tensor *d = dt__dense(call, t);
        v = d ? dt__alias(d) : NULL;
        dt__unref(d);
        dt__dense_strides(stride, s.dim, s.ndim);
    }
    if (!v) return NULL;
    v->ndim = s.ndim;
    memcpy(v->shape, s.dim, sizeof v->shape);
    memcpy(v->stride, stride, sizeof v->stride);
    return dt__view_done("reshape", v, t, dt__reshape_bwd);
}
DT_API dt_tensor *dt_reshape(dt_tensor *t, dt_shape shape)
{
    return dt__ok("dt_reshape", "t", t) ? dt__reshape("dt_reshape", t, shape) : NULL;
}
DT_API dt_tensor *dt_flatten(dt_tensor *t)
{
    dt_shape s;
    if (!dt__ok("dt_flatten", "t", t)) return NULL;
    if (t->ndim < 2) {
        dt_fail(DT_ERR_SHAPE, "dt_flatten: t is %s; it must be (n, ...), with 2 dimensions or more. dt_reshape makes one dimension of "
                "all, or adds one", dt__text(t));
        return NULL;
    }
    s.ndim = 2;
    s.dim[0] = t->shape[0];
    s.dim[1] = 1;
    for (int i = 1; i < t->ndim; i++) s.dim[1] *= t->shape[i];
    return dt__reshape("dt_flatten", t, s);
}
static void dt__permute(dt_tensor *v, const dt_tensor *x, const int64_t *order)
{
    for (int i = 0; i < x->ndim; i++) {
        v->shape[i] = x->shape[order[i]];
        v->stride[i] = x->stride[order[i]];
    }
    v->layout = DT_LAYOUT_PLAIN;
}
static int dt__permute_bwd(dt__node *n, dt_tensor *g)
{
    int64_t    back[DT_MAX_DIMS] = { 0 };
    dt_tensor *v = dt__alias(g);
    if (!v) return DT_ERR_MEMORY;
    for (int i = 0; i < g->ndim; i++) back[n->i[i]] = i;
    dt__permute(v, g, back);
    return dt__put_owned(n->in[0], v);
}
static dt_tensor *dt__permuted(const char *call, dt_tensor *t, dt_shape order)
{
    unsigned seen = 0;
    for (int i = 0; i < order.ndim && i < DT_MAX_DIMS; i++) {
        if (order.dim[i] < 0) order.dim[i] += t->ndim;
        if (order.dim[i] >= 0 && order.dim[i] < t->ndim) seen |= 1u << order.dim[i];
    }
    if (order.ndim != t->ndim || seen != (1u << t->ndim) - 1u) {
        dt_fail(DT_ERR_ARG, "%s: %s is not a permutation of the dimensions of %s", call,
                dt__shape_text(order.dim, order.ndim < 0 || order.ndim > DT_MAX_DIMS ? 0 : order.ndim), dt__text(t));
        return NULL;
    }
    if (dt__make_plain(t)) return NULL;
    dt_tensor *v = dt__alias(t);
    if (!v) return NULL;
    dt__permute(v, t, order.dim);
    dt__node *n = dt__record("permute", v, dt__permute_bwd, 1, &t);
    for (int i = 0; n && i < t->ndim; i++) n->i[i] = order.dim[i];
    return dt__finish(v, dt__err.code);
}
DT_API dt_tensor *dt_permute(dt_tensor *t, dt_shape order)
{
    return dt__ok("dt_permute", "t", t) ? dt__permuted("dt_permute", t, order) : NULL;
}
DT_API dt_tensor *dt_transpose(dt_tensor *t, int a, int b)
{
    dt_shape order;
    if (!dt__ok("dt_transpose", "t", t) || !dt__dim_ok("dt_transpose", &a, t->ndim) || !dt__dim_ok("dt_transpose", &b,
            t->ndim))
        return NULL;
    order.ndim = t->ndim;
    for (int i = 0; i < t->ndim; i++) order.dim[i] = i;
    order.dim[a] = b;
    order.dim[b] = a;
    return dt__permuted("dt_transpose", t, order);
}
static void dt__drop_dim(dt_tensor *v, int dim)
{
    for (int i = dim; i + 1 < v->ndim; i++) {
        v->shape[i] = v->shape[i + 1];
        v->stride[i] = v->stride[i + 1];
    }
    v->ndim--;
}
/* Extends the written range of x's partial by the slice [from, from+n), so that slices which cover x together are each
   written once, without zeroing the memory first. Returns false, without a change, if the partial is not in the state
   DT__PARTIAL_SLICES or the slice is not adjacent to its range. */
static bool dt__partial_extend(dt_tensor *x, int dim, int64_t from, int64_t n)
{
    int64_t to = from + n;
    if (!x->node || !n) return false;
    if (!x->partial) {
        x->partial = dt__new("backward", x->st->dev, x->dtype, x->shape, x->ndim, x->layout);
        x->partial_dim = (uint8_t)dim;
        x->partial_from = x->partial_to = from;
        x->partial_state = x->partial ? DT__PARTIAL_SLICES : DT__PARTIAL_OWNED;
    }
    if (x->partial_state != DT__PARTIAL_SLICES || x->partial_dim != dim) return false;
    if (to != x->partial_from && from != x->partial_to) return false;
    if (to == x->partial_from) x->partial_from = from;
    else x->partial_to = to;
    if (x->partial_from == 0 && x->partial_to == x->shape[dim]) x->partial_state = DT__PARTIAL_OWNED;
    return true;
}
/* narrow and select: the gradient is zero outside the slice. n->i: dim, start, length, whether dim was removed. */
static int dt__narrow_bwd(dt__node *n, dt_tensor *g)
{
    uint32_t   acc = 0;
    dt_tensor *x = n->in[0], *t;
    bool       fresh = dt__partial_extend(x, (int)n->i[0], n->i[1], n->i[2]);
    t = fresh ? dt__ref(x->partial) : dt__grad_begin(x, DT__ANY_LAYOUT, &acc);
    dt_tensor *s = t ? dt__slice(t, (int)n->i[0], n->i[1], n->i[2]) : NULL;
    int        rc = s ? 0 : DT_ERR_MEMORY;
    if (!rc && n->i[3]) dt__drop_dim(s, (int)n->i[0]);
    if (!rc && !acc && !fresh) rc = dt__fill(t, 0);
    if (!rc) rc = dt__copy_to(s, g, (int)acc);
    dt__unref(s);
    return dt__grad_end(x, t) || rc;
}
static dt_tensor *dt__narrow(const char *call, dt_tensor *t, int dim, int64_t start, int64_t length, int drop)
{
    if (!dt__dim_ok(call, &dim, t->ndim)) return NULL;
    int64_t have = t->shape[dim];
    if (start < 0) start += have;
    if (start < 0 || length < 0 || start > have || length > have - start) {
        if (drop)
            dt_fail(DT_ERR_ARG, "%s: index %" PRId64 " is out of range for dimension %d of %s", call, start, dim,
                    dt__text(t));
        else
            dt_fail(DT_ERR_ARG, "%s: start %" PRId64 " and length %" PRId64 " are out of range for dimension %d of %s",
                    call, start, length, dim, dt__text(t));
        return NULL;
    }
    if (dt__make_plain(t)) return NULL;
    dt_tensor *v = dt__slice(t, dim, start, length);
    if (!v) return NULL;
    if (drop) dt__drop_dim(v, dim);
    dt__node *n = dt__record(drop ? "select" : "narrow", v, dt__narrow_bwd, 1, &t);
    if (n) {
        n->i[0] = dim;
        n->i[1] = start;
        n->i[2] = length;
        n->i[3] = drop;
    }
    return dt__finish(v, dt__err.code);
}
DT_API dt_tensor *dt_narrow(dt_tensor *t, int dim, int64_t start, int64_t length)
{
    return dt__ok("dt_narrow", "t", t) ? dt__narrow("dt_narrow", t, dim, start, length, 0) : NULL;
}
DT_API dt_tensor *dt_select(dt_tensor *t, int dim, int64_t index)
{
    return dt__ok("dt_select", "t", t) ? dt__narrow("dt_select", t, dim, index, 1, 1) : NULL;
}
/* Adds g, summed over the dimensions in which x was broadcast to the shape of g, to the gradient of x. */
static int dt__put_reduced(dt_tensor *x, dt_tensor *g)
{
    bool same = x->ndim == g->ndim;
    for (int i = 0; same && i < x->ndim; i++) same = x->shape[i] == g->shape[i];
    if (same) return dt__grad_put(x, g);
    uint32_t   acc;
    dt_tensor *t = dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc);
    if (!t) return DT_ERR_MEMORY;
    dt_call c;
    dt__call_begin(&c, DT_K_reduce);
    dt__view_pad(dt__out(&c, t), g->ndim);
    dt__in(&c, g);
    c.acc = acc;
    c.u.reduce.fn = DT_R_SUM;
    c.u.reduce.n = x->numel ? g->numel / x->numel : 0;
    int rc = x->numel ? dt__go(g->st->dev, &c) : 0;
    return dt__grad_end(x, t) || rc;
}
static int dt__expand_bwd(dt__node *n, dt_tensor *g) { return dt__put_reduced(n->in[0], g); }
DT_API dt_tensor *dt_expand(dt_tensor *t, dt_shape shape)
{
    if (!dt__ok("dt_expand", "t", t)) return NULL;
    bool fits = shape.ndim >= t->ndim && shape.ndim <= DT_MAX_DIMS;
    for (int i = 0; fits && i < shape.ndim; i++) {
        int64_t have = i < shape.ndim - t->ndim ? 1 : t->shape[i - (shape.ndim - t->ndim)];
        if (shape.dim[i] == -1 && i >= shape.ndim - t->ndim) shape.dim[i] = have;
        fits = shape.dim[i] >= 0 && (shape.dim[i] == have || have == 1);
    }
    if (!fits || dt__count(shape.dim, shape.ndim, 1) < 0) {
        dt_fail(DT_ERR_SHAPE, "dt_expand: %s does not expand to %s: only dimensions of size 1 expand", dt__text(t),
                dt__shape_text(shape.dim, shape.ndim < 0 || shape.ndim > DT_MAX_DIMS ? 0 : shape.ndim));
        return NULL;
    }
    if (dt__make_plain(t)) return NULL;
    dt_tensor *v = dt__alias(t);
    if (!v) return NULL;
    int more = shape.ndim - t->ndim;
    for (int i = 0; i < shape.ndim; i++) {
        v->shape[i] = shape.dim[i];
        v->stride[i] = i < more || t->shape[i - more] != shape.dim[i] ? 0 : t->stride[i - more];
    }
    v->ndim = shape.ndim;
    v->numel = dt__count(shape.dim, shape.ndim, 1);
    return dt__view_done("expand", v, t, dt__expand_bwd);
}
DT_API dt_tensor *dt_squeeze(dt_tensor *t, int dim)
{
    if (!dt__ok("dt_squeeze", "t", t) || !dt__dim_ok("dt_squeeze", &dim, t->ndim) || dt__make_plain(t)) return NULL;
    dt_tensor *v = dt__alias(t);
    if (v && t->shape[dim] == 1) dt__drop_dim(v, dim);
    return dt__view_done("squeeze", v, t, dt__reshape_bwd);
}
DT_API dt_tensor *dt_unsqueeze(dt_tensor *t, int dim)
{
    if (!dt__ok("dt_unsqueeze", "t", t) || !dt__dim_ok("dt_unsqueeze", &dim, t->ndim + 1)) return NULL;
    if (t->ndim == DT_MAX_DIMS) {
        dt_fail(DT_ERR_SHAPE, "dt_unsqueeze: %s already has %d dimensions, which is the maximum", dt__text(t), DT_MAX_DIMS);
        return NULL;
    }
    if (dt__make_plain(t)) return NULL;
    dt_tensor *v = dt__alias(t);
    if (!v) return NULL;
    for (int i = t->ndim; i > dim; i--) {
        v->shape[i] = v->shape[i - 1];
        v->stride[i] = v->stride[i - 1];
    }
    v->shape[dim] = 1;
    v->stride[dim] = 0;
    v->ndim++;
    return dt__view_done("unsqueeze", v, t, dt__reshape_bwd);
}
/* ---- copies */
static int dt__copy_bwd(dt__node *n, dt_tensor *g) { return dt__grad_put(n->in[0], g); }
static dt_tensor *dt__copied(const char *call, const char *name, dt_tensor *t, int dtype, int layout)
{
    dt_tensor *y = dt__new(call, t->st->dev, dtype, t->shape, t->ndim, layout);
    if (!y) return NULL;
    if (dt__copy_to(y, t, 0)) return dt__finish(y, DT_ERR_DEVICE);
    return dt__view_done(name, y, t, dt__copy_bwd);
}
DT_API dt_tensor *dt_cast(dt_tensor *t, dt_dtype d)
{
    if (!dt__ok("dt_cast", "t", t)) return NULL;
    if ((unsigned)d >= DT_DTYPE_COUNT) {
        dt_fail(DT_ERR_DTYPE, "dt_cast: %d is not a dtype; pass DT_F32 ... DT_U8", (int)d);
        return NULL;
    }
    return t->dtype == (int)d ? t : dt__copied("dt_cast", "cast", t, d, t->layout);
}
/* ---- autocast: each op casts its inputs with one of these functions before it checks them */
DT_API dt_autocast dt_autocast_get(void) { return dt__tls.autocast; }
DT_API dt_autocast dt_autocast_set(dt_autocast a)
{
    dt_autocast old = dt__tls.autocast;
    if ((unsigned)a.mode > DT_AUTOCAST_LOSS || (a.mode == DT_AUTOCAST_OPS && a.dtype != DT_F16 && a.dtype != DT_BF16))
        dt_fail(DT_ERR_ARG, "dt_autocast_set: mode %d with dtype %s; DT_AUTOCAST_OPS takes DT_F16 or DT_BF16",
                (int)a.mode, dt_dtype_name(a.dtype));
    else
        dt__tls.autocast = a;
    return old;
}
static dt_tensor *dt__autocast_to(dt_tensor *t, int dtype)
{
    dt__ctx *ctx = &dt__tls;
    if (ctx->in_backward || !t || t->magic != DT__LIVE || !dt__is_float(t->dtype) || t->dtype == dtype) return t;
    if (!t->leaf) return dt_cast(t, (dt_dtype)dtype);
    dt__cast *c = &ctx->cast[((uintptr_t)t >> 6) % DT__CASTS];
    uint64_t  stamp = ctx->generation << 3 | (uint64_t)(ctx->no_grad != 0) << 2 | (uint64_t)dtype;
    if (c->from == t && c->stamp == stamp && c->version == t->st->version) return c->to;
    dt_tensor *y = dt_cast(t, (dt_dtype)dtype);
    if (!y) return NULL;
    c->from = t;
    c->to = y;
    c->stamp = stamp;
    c->version = t->st->version;
    return y;
}
DT__INSIDE dt_tensor *dt__in_half(dt_tensor *t) /* for ops that are faster in 16 bits */
{
    dt_autocast a = dt__tls.autocast;
    return a.mode == DT_AUTOCAST_OPS ? dt__autocast_to(t, a.dtype) : t;
}
DT__INSIDE dt_tensor *dt__in_f32(dt_tensor *t) /* for ops that need the range or precision of f32 */
{
    return dt__tls.autocast.mode == DT_AUTOCAST_OPS ? dt__autocast_to(t, DT_F32) : t;
}
DT__INSIDE dt_tensor *dt__in_loss(dt_tensor *t)
{
    return dt__tls.autocast.mode != DT_AUTOCAST_OFF ? dt__autocast_to(t, DT_F32) : t;
}

DT_API dt_tensor *dt_clone(dt_tensor *t)
{
    return dt__ok("dt_clone", "t", t) ? dt__copied("dt_clone", "clone", t, t->dtype, t->layout) : NULL;
}
DT_API dt_tensor *dt_contiguous(dt_tensor *t)
{
    if (!dt__ok("dt_contiguous", "t", t)) return NULL;
    return dt_is_contiguous(t) ? t : dt__copied("dt_contiguous", "contiguous", t, t->dtype, DT_LAYOUT_PLAIN);
}
static int dt__to_bwd(dt__node *n, dt_tensor *g)
{
    return dt__put_owned(n->in[0], dt__cross("backward", g, n->in[0]->st->dev));
}
DT_API dt_tensor *dt_to(dt_tensor *t, dt_device *dev)
{
    if (!dt__ok("dt_to", "t", t)) return NULL;
    if (!dev) dev = dt_default_device();
    if (t->st->dev == dev || dt__is_ghost(t)) return t; /* a ghost has no values to copy: it stays a ghost */
    return dt__view_done("to", dt__cross("dt_to", t, dev), t, dt__to_bwd);
}
DT_API dt_tensor *dt_detach(dt_tensor *t)
{
    if (!dt__ok("dt_detach", "t", t) || dt__make_plain(t)) return NULL;
    return dt__give(dt__alias(t));
}

/* ==================================================================================================== >>elementwise */
enum { DT__TYPE_FLOATS, DT__TYPE_INTS, DT__TYPE_COMPARE };
enum { /* tensors that a gradient needs, as a set of bits */
    DT__NO_GRAD = 0, DT__NEEDS_NOTHING = 0, DT__NEEDS_X = 1, DT__NEEDS_Y = 2, DT__NEEDS_Z = 4, DT__NEEDS_XY = 3,
    DT__NEEDS_XYZ = 7
};
static const struct { uint8_t type, needs; } dt__unary_rows[DT_U_COUNT] = {
#define DT__X(n, type, grad, cost, grad_cost, t) { DT__TYPE_##type, DT__##grad },
    DT_UNARY_FNS(DT__X)
#undef DT__X
};
static int dt__unary_bwd(dt__node *n, dt_tensor *g)
{
    uint32_t   acc;
    dt_tensor *x = n->in[0], *t = dt__grad_begin(x, DT__ANY_LAYOUT, &acc);
    dt_call    c;
    if (!t) return DT_ERR_MEMORY;
    dt__call_begin(&c, DT_K_unary_bwd);
    dt__out(&c, t);
    dt__in(&c, g);
    dt__in(&c, n->saved[0]);
    c.acc = acc;
    c.u.ew.fn = n->fn;
    c.u.ew.a = n->a;
    c.u.ew.b = n->b;
    int rc = x->numel ? dt__go(x->st->dev, &c) : 0;
    return dt__grad_end(x, t) || rc;
}
static int dt__unary_run(dt_tensor *y, int fn, double a, double b, const dt_tensor *x)
{
    dt_call c;
    dt__call_begin(&c, DT_K_unary);
    dt__out(&c, y);
    dt__in(&c, x);
    c.u.ew.fn = fn;
    c.u.ew.a = a;
    c.u.ew.b = b;
    return x->numel ? dt__go(x->st->dev, &c) : 0;
}
static dt_tensor *dt__unary(const char *call, int fn, dt_tensor *x, double a, double b)
{
    if (!dt__ok(call, "a", x)) return NULL;
    if (fn == DT_U_RELU && !dt__is_float(x->dtype)) fn = DT_U_CLAMP, a = 0, b = INFINITY;
    if (dt__unary_rows[fn].type == DT__TYPE_FLOATS && !dt__want_float(call, x)) return NULL;
    dt_tensor *y = dt__new_like(call, x, x->dtype);
    if (!y) return NULL;
    if (dt__unary_run(y, fn, a, b, x)) return dt__finish(y, DT_ERR_DEVICE);
    dt__node *n = dt__record(call + 3, y, dt__unary_bwd, 1, &x); /* the name without "dt_" */
    if (n) {
        dt__save(n, dt__unary_rows[fn].needs == DT__NEEDS_Y ? y : x);
        n->fn = fn;
        n->a = a;
        n->b = b;
    }
    return dt__finish(y, dt__err.code);
}
static bool dt__whole(const char *call, const dt_tensor *a, double s) /* the scalar of an integer tensor must be an integer */
{
    if (!dt__alive(a) || dt__is_float(a->dtype) || (s == floor(s) && fabs(s) < 9e15) || isinf(s)) return true;
    dt_fail(DT_ERR_DTYPE, "%s: %g is not an integer, but the tensor is %s; dt_cast() it to f32 first", call, s,
            dt_dtype_name((dt_dtype)a->dtype));
    return false;
}
static dt_tensor *dt__affine(const char *call, dt_tensor *x, double a, double b)
{
    return dt__whole(call, x, a) && dt__whole(call, x, b) ? dt__unary(call, DT_U_AFFINE, x, a, b) : NULL;
}
DT_API dt_tensor *dt_add_scalar(dt_tensor *a, double s) { return dt__affine("dt_add_scalar", a, 1, s); }
DT_API dt_tensor *dt_sub_scalar(dt_tensor *a, double s) { return dt__affine("dt_sub_scalar", a, 1, -s); }
DT_API dt_tensor *dt_mul_scalar(dt_tensor *a, double s) { return dt__affine("dt_mul_scalar", a, s, 0); }
DT_API dt_tensor *dt_div_scalar(dt_tensor *a, double s)
{
    return dt__ok("dt_div_scalar", "a", a) && dt__want_float("dt_div_scalar", a) ? dt__affine("dt_div_scalar", a,
            1 / s, 0) : NULL;
}
DT_API dt_tensor *dt_rsub_scalar(dt_tensor *a, double s) { return dt__affine("dt_rsub_scalar", a, -1, s); }
DT_API dt_tensor *dt_neg(dt_tensor *a) { return dt__affine("dt_neg", a, -1, 0); }
DT_API dt_tensor *dt_rdiv_scalar(dt_tensor *a, double s)
{
    return dt__unary("dt_rdiv_scalar", DT_U_RECIP, dt__in_f32(a), s, 0);
}
DT_API dt_tensor *dt_pow_scalar(dt_tensor *a, double s)
{
    return dt__unary("dt_pow_scalar", DT_U_POW, dt__in_f32(a), s, 0);
}
DT_API dt_tensor *dt_clamp(dt_tensor *a, double lo, double hi)
{
    if (lo != lo || hi != hi) return dt__affine("dt_clamp", a, 0, (double)NAN); /* all NaN, and no gradient */
    return dt__whole("dt_clamp", a, lo) && dt__whole("dt_clamp", a, hi) ? dt__unary("dt_clamp", DT_U_CLAMP, a, lo, hi)
            : NULL;
}
static dt_tensor *dt__scalar_like(const char *call, const dt_tensor *a, double s);
DT_API dt_tensor *dt_abs(dt_tensor *a) { return dt__unary("dt_abs", DT_U_ABS, a, 0, 0); }
DT_API dt_tensor *dt_sqrt(dt_tensor *a) { return dt__unary("dt_sqrt", DT_U_SQRT, a, 0, 0); }
DT_API dt_tensor *dt_exp(dt_tensor *a) { return dt__unary("dt_exp", DT_U_EXP, dt__in_f32(a), 0, 0); }
DT_API dt_tensor *dt_log(dt_tensor *a) { return dt__unary("dt_log", DT_U_LOG, dt__in_f32(a), 0, 0); }
DT_API dt_tensor *dt_rsqrt(dt_tensor *a) { return dt__unary("dt_rsqrt", DT_U_RSQRT, dt__in_f32(a), 0, 0); }
DT_API dt_tensor *dt_reciprocal(dt_tensor *a) { return dt__unary("dt_reciprocal", DT_U_RECIP, dt__in_f32(a), 1, 0); }
DT_API dt_tensor *dt_log1p(dt_tensor *a) { return dt__unary("dt_log1p", DT_U_LOG1P, dt__in_f32(a), 0, 0); }
DT_API dt_tensor *dt_expm1(dt_tensor *a) { return dt__unary("dt_expm1", DT_U_EXPM1, dt__in_f32(a), 0, 0); }
DT_API dt_tensor *dt_sin(dt_tensor *a) { return dt__unary("dt_sin", DT_U_SIN, a, 0, 0); }
DT_API dt_tensor *dt_cos(dt_tensor *a) { return dt__unary("dt_cos", DT_U_COS, a, 0, 0); }
DT_API dt_tensor *dt_tan(dt_tensor *a) { return dt__unary("dt_tan", DT_U_TAN, dt__in_f32(a), 0, 0); }
DT_API dt_tensor *dt_erf(dt_tensor *a) { return dt__unary("dt_erf", DT_U_ERF, a, 0, 0); }
DT_API dt_tensor *dt_sign(dt_tensor *a) { return dt__unary("dt_sign", DT_U_SIGN, a, 0, 0); }
DT_API dt_tensor *dt_floor(dt_tensor *a) { return dt__unary("dt_floor", DT_U_FLOOR, a, 0, 0); }
DT_API dt_tensor *dt_ceil(dt_tensor *a) { return dt__unary("dt_ceil", DT_U_CEIL, a, 0, 0); }
DT_API dt_tensor *dt_round(dt_tensor *a) { return dt__unary("dt_round", DT_U_ROUND, a, 0, 0); }
DT_API dt_tensor *dt_relu(dt_tensor *a) { return dt__unary("dt_relu", DT_U_RELU, a, 0, 0); }
DT_API dt_tensor *dt_leaky_relu(dt_tensor *a, double slope)
{
    return dt__unary("dt_leaky_relu", DT_U_LEAKY_RELU, a, slope, 0);
}
DT_API dt_tensor *dt_gelu(dt_tensor *a) { return dt__unary("dt_gelu", DT_U_GELU, dt__in_f32(a), 0, 0); }
DT_API dt_tensor *dt_gelu_tanh(dt_tensor *a) { return dt__unary("dt_gelu_tanh", DT_U_GELU_TANH, dt__in_f32(a), 0, 0); }
DT_API dt_tensor *dt_elu(dt_tensor *a, double alpha) { return dt__unary("dt_elu", DT_U_ELU, a, alpha, 1); }
DT_API dt_tensor *dt_selu(dt_tensor *a)
{
    return dt__unary("dt_selu", DT_U_ELU, a, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946);
}
DT_API dt_tensor *dt_hardswish(dt_tensor *a) { return dt__unary("dt_hardswish", DT_U_HARDSWISH, a, 0, 0); }
DT_API dt_tensor *dt_mish(dt_tensor *a) { return dt__unary("dt_mish", DT_U_MISH, a, 0, 0); }
DT_API dt_tensor *dt_logsigmoid(dt_tensor *a) { return dt__unary("dt_logsigmoid", DT_U_LOGSIGMOID, a, 0, 0); }
DT_API dt_tensor *dt_silu(dt_tensor *a) { return dt__unary("dt_silu", DT_U_SILU, a, 0, 0); }
DT_API dt_tensor *dt_sigmoid(dt_tensor *a) { return dt__unary("dt_sigmoid", DT_U_SIGMOID, a, 0, 0); }
DT_API dt_tensor *dt_tanh(dt_tensor *a) { return dt__unary("dt_tanh", DT_U_TANH, a, 0, 0); }
DT_API dt_tensor *dt_softplus(dt_tensor *a, double beta)
{
    if (!(beta > 0)) {
        dt_fail(DT_ERR_ARG, "dt_softplus: beta is %g; it must be above 0 (PyTorch's default is 1)", beta);
        return NULL;
    }
    return dt__unary("dt_softplus", DT_U_SOFTPLUS, dt__in_f32(a), beta, 0);
}

/* ---- two operands */
static bool dt__broadcast(const char *call, const dt_tensor *a, const dt_tensor *b, dt_shape *s)
{
    s->ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int i = 0; i < s->ndim; i++) {
        int     ia = i - (s->ndim - a->ndim), ib = i - (s->ndim - b->ndim);
        int64_t da = ia < 0 ? 1 : a->shape[ia], db = ib < 0 ? 1 : b->shape[ib];
        if (da != db && da != 1 && db != 1) {
            dt_fail(DT_ERR_SHAPE,
                    "%s: shapes %s and %s do not broadcast: %" PRId64 " against %" PRId64 " in dimension %d from the end",
                    call, dt__text(a), dt__text(b), da, db, s->ndim - 1 - i);
            return false;
        }
        s->dim[i] = da == 1 ? db : da;
    }
    return true;
}
/* Type promotion of PyTorch: float over integer, wider over narrower, f16 with bf16 gives f32. The dtype of a 0-d operand
   counts only if it is a float and the other operand is an integer. */
static int dt__promote(const dt_tensor *a, const dt_tensor *b)
{
    static const uint8_t rank[] = { 5, 3, 4, 1, 2, 0 }; /* f32 f16 bf16 i32 i64 u8 */
    int                  x = a->dtype, y = b->dtype;
    if (x == y) return x;
    if (dt__is_float(x) == dt__is_float(y)) {
        if (a->ndim == 0 && b->ndim > 0) return y;
        if (b->ndim == 0 && a->ndim > 0) return x;
        if (dt__is_float(x) && x != DT_F32 && y != DT_F32) return DT_F32;
    }
    return rank[x] > rank[y] ? x : y;
}
static int dt__binary_run(dt_tensor *z, int fn, double a, double b, const dt_tensor *x, const dt_tensor *y,
                          uint32_t acc)
{
    dt_call c;
    dt__call_begin(&c, DT_K_binary);
    dt__out(&c, z);
    dt__view_expand(dt__in(&c, x), z->shape, z->ndim);
    dt__view_expand(dt__in(&c, y), z->shape, z->ndim);
    c.acc = acc;
    c.u.ew.fn = fn;
    c.u.ew.a = a;
    c.u.ew.b = b;
    return z->numel ? dt__go(z->st->dev, &c) : 0;
}
/* Adds a * f(x, y), which has the shape of like, to the gradient of into, summed where into was broadcast. */
static int dt__binary_put(dt_tensor *into, const dt_tensor *like, int fn, double a, double b, dt_tensor *x,
                          dt_tensor *y)
{
    bool same = into->ndim == like->ndim;
    for (int i = 0; same && i < into->ndim; i++) same = into->shape[i] == like->shape[i];
    if (same) {
        uint32_t   acc;
        dt_tensor *t = dt__grad_begin(into, DT__ANY_LAYOUT, &acc);
        int        rc = t ? dt__binary_run(t, fn, a, b, x, y, acc) : DT_ERR_MEMORY;
        return dt__grad_end(into, t) || rc;
    }
    dt_tensor *t = dt__new_like("backward", like, DT_F32);
    int        rc = t ? dt__binary_run(t, fn, a, b, x, y, 0) : DT_ERR_MEMORY;
    if (!rc) rc = dt__put_reduced(into, t);
    dt__unref(t);
    return rc;
}
/* A temporary of a backward: a * f(x, y), in the shape of like. The caller owns it. */
static dt_tensor *dt__binary_tmp(const dt_tensor *like, int fn, double a, double b, const dt_tensor *x,
                                 const dt_tensor *y)
{
    dt_tensor *t = dt__new_like("backward", like, DT_F32);
    if (t && dt__binary_run(t, fn, a, b, x, y, 0)) {
        dt__unref(t);
        return NULL;
    }
    return t;
}
/* Adds scale * g * factor to the gradient of into, and drops the caller's reference to factor. */
static int dt__put_product(dt_tensor *into, dt_tensor *g, double scale, dt_tensor *factor)
{
    int rc = factor ? dt__binary_put(into, g, DT_B_MUL, scale, 0, g, factor) : DT_ERR_MEMORY;
    dt__unref(factor);
    return rc;
}
/* Gradients: dt__bwd_NAME for each row of DT_BINARY_FNS that has one. saved[] holds x, y and z where the row needs them. */
/* The gradient of input k, if it is wanted: a * g * f(x, y) */
static int dt__put_slope(dt__node *n, int k, dt_tensor *g, int fn, double a, const dt_tensor *x, const dt_tensor *y)
{
    return dt__needs_grad(n, k) ? dt__put_product(n->in[k], g, a, dt__binary_tmp(g, fn, 1, 0, x, y)) : 0;
}
static int dt__bwd_ADD(dt__node *n, dt_tensor *g)
{
    int rc = dt__needs_grad(n, 0) ? dt__put_reduced(n->in[0], g) : 0;
    if (rc || !dt__needs_grad(n, 1)) return rc;
    if (n->b == 1) return dt__put_reduced(n->in[1], g);
    dt_tensor *zero = dt__scalar_like("backward", g, 0);
    rc = zero ? dt__binary_put(n->in[1], g, DT_B_ADD, 1, n->b, zero, g) : DT_ERR_MEMORY;
    dt__unref(zero);
    return rc;
}
static int dt__bwd_MUL(dt__node *n, dt_tensor *g)
{
    int rc = dt__needs_grad(n, 0) ? dt__binary_put(n->in[0], g, DT_B_MUL, 1, 0, g, n->saved[1]) : 0;
    return rc || !dt__needs_grad(n, 1) ? rc : dt__binary_put(n->in[1], g, DT_B_MUL, 1, 0, g, n->saved[0]);
}
static int dt__bwd_DIV(dt__node *n, dt_tensor *g) /* by y: -(x/y)/y */
{
    int rc = dt__needs_grad(n, 0) ? dt__binary_put(n->in[0], g, DT_B_DIV, 1, 0, g, n->saved[1]) : 0;
    return rc ? rc : dt__put_slope(n, 1, g, DT_B_DIV, -1, n->saved[2], n->saved[1]);
}
static int dt__bwd_POW(dt__node *n, dt_tensor *g)
{
    int rc = dt__put_slope(n, 0, g, DT_B_POW_DX, 1, n->saved[0], n->saved[1]);
    return rc ? rc : dt__put_slope(n, 1, g, DT_B_POW_DY, 1, n->saved[0], n->saved[1]);
}
static int dt__bwd_MAX(dt__node *n, dt_tensor *g)
{
    int rc = dt__put_slope(n, 0, g, DT_B_MAX_DX, 1, n->saved[0], n->saved[1]);
    return rc ? rc : dt__put_slope(n, 1, g, DT_B_MAX_DX, 1, n->saved[1], n->saved[0]);
}
static int dt__bwd_MIN(dt__node *n, dt_tensor *g)
{
    int rc = dt__put_slope(n, 0, g, DT_B_MIN_DX, 1, n->saved[0], n->saved[1]);
    return rc ? rc : dt__put_slope(n, 1, g, DT_B_MIN_DX, 1, n->saved[1], n->saved[0]);
}
static int dt__bwd_ATAN2(dt__node *n, dt_tensor *g) /* the derivative by y is minus that by x with the operands swapped */
{
    int rc = dt__put_slope(n, 0, g, DT_B_ATAN2_DX, 1, n->saved[0], n->saved[1]);
    return rc ? rc : dt__put_slope(n, 1, g, DT_B_ATAN2_DX, -1, n->saved[1], n->saved[0]);
}
static int dt__bwd_PRELU(dt__node *n, dt_tensor *g)
{
    int rc = dt__put_slope(n, 0, g, DT_B_PRELU_DX, 1, n->saved[0], n->saved[1]);
    return rc ? rc : dt__put_slope(n, 1, g, DT_B_PRELU_DY, 1, n->saved[0], n->saved[1]);
}
static int dt__bwd_KL_DIV(dt__node *n, dt_tensor *g)
{
    int rc = dt__needs_grad(n, 0) ? dt__binary_put(n->in[0], g, DT_B_MUL, -1, 0, g, n->saved[1]) : 0;
    return rc ? rc : dt__put_slope(n, 1, g, DT_B_KL_DIV_DY, 1, n->saved[0], n->saved[1]);
}
static int dt__difference_bwd(dt__node *n, dt_tensor *g, int dx) /* f(x - y): the derivative by y is minus that by x */
{
    dt_tensor *d = dt__binary_tmp(g, dx, 1, n->b, n->saved[0], n->saved[1]);
    int        rc = 0;
    if (dt__needs_grad(n, 0)) rc = dt__put_product(n->in[0], g, 1, dt__ref(d));
    if (dt__needs_grad(n, 1) && !rc) rc = dt__put_product(n->in[1], g, -1, dt__ref(d));
    dt__unref(d);
    return rc;
}
static int dt__bwd_MSE(dt__node *n, dt_tensor *g) { return dt__difference_bwd(n, g, DT_B_MSE_DX); }
static int dt__bwd_L1(dt__node *n, dt_tensor *g) { return dt__difference_bwd(n, g, DT_B_L1_DX); }
static int dt__bwd_SMOOTH_L1(dt__node *n, dt_tensor *g) { return dt__difference_bwd(n, g, DT_B_SMOOTH_L1_DX); }
static int dt__bwd_BCE(dt__node *n, dt_tensor *g)
{
    int rc = dt__put_slope(n, 0, g, DT_B_BCE_DX, 1, n->saved[0], n->saved[1]);
    return rc || !dt__needs_grad(n, 1) ? rc : dt__binary_put(n->in[1], g, DT_B_MUL, -1, 0, g, n->saved[0]);
}
static const struct { uint8_t type, needs; dt__backward_fn backward; } dt__binary_rows[DT_B_COUNT] = {
#define DT__BWD_NO_GRAD(n) NULL
#define DT__BWD_NEEDS_NOTHING(n) dt__bwd_##n
#define DT__BWD_NEEDS_XY(n) dt__bwd_##n
#define DT__BWD_NEEDS_XYZ(n) dt__bwd_##n
#define DT__X(n, type, grad, cost, t) { DT__TYPE_##type, DT__##grad, DT__BWD_##grad(n) },
    DT_BINARY_FNS(DT__X)
#undef DT__X
};
DT__INSIDE bool dt__same_shape(const dt_tensor *t, const dt_shape *s)
{
    bool same = t->ndim == s->ndim;
    for (int i = 0; same && i < t->ndim; i++) same = t->shape[i] == s->dim[i];
    return same;
}
static dt_tensor *dt__binary(const char *call, int fn, dt_tensor *x, dt_tensor *y, double b)
{
    dt_shape s;
    if (!dt__ok(call, "a", x) || !dt__ok(call, "b", y) || !dt__same_device(call, x, y) || !dt__broadcast(call, x, y,
            &s)) return NULL;
    int  type = dt__binary_rows[fn].type, needs = dt__binary_rows[fn].needs, dtype = dt__promote(x, y);
    bool compares = type == DT__TYPE_COMPARE;
    if (!dt__is_float(dtype) && fn == DT_B_DIV) dtype = DT_F32;
    if (type == DT__TYPE_FLOATS && !dt__is_float(dtype)) {
        dt_fail(DT_ERR_DTYPE, "%s: operands are %s and %s; one of them must be a float: dt_cast() it first", call,
                dt_dtype_name((dt_dtype)x->dtype), dt_dtype_name((dt_dtype)y->dtype));
        return NULL;
    }
    /* the result has the private layout of an operand, if that operand has the shape of the result */
    int layout = x->layout && dt__same_shape(x, &s) ? x->layout : y->layout && dt__same_shape(y, &s) ? y->layout
            : DT_LAYOUT_PLAIN;
    dt_tensor *z = dt__new(call, x->st->dev, compares ? DT_U8 : dtype, s.dim, s.ndim, layout);
    if (!z) return NULL;
    if (dt__binary_run(z, fn, 1, b, x, y, 0)) return dt__finish(z, DT_ERR_DEVICE);
    dt_tensor *in[2] = { x, y };
    dt__node  *n = dt__binary_rows[fn].backward ? dt__record(call + 3, z, dt__binary_rows[fn].backward, 2, in) : NULL;
    if (n) {
        dt__save(n, needs & DT__NEEDS_X ? x : NULL);
        dt__save(n, needs & DT__NEEDS_Y ? y : NULL);
        dt__save(n, needs & DT__NEEDS_Z ? z : NULL);
        n->b = b;
    }
    return dt__finish(z, dt__err.code);
}
DT_API dt_tensor *dt_add(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_add", DT_B_ADD, a, b, 1); }
DT_API dt_tensor *dt_sub(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_sub", DT_B_ADD, a, b, -1); }
DT_API dt_tensor *dt_mul(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_mul", DT_B_MUL, a, b, 0); }
DT_API dt_tensor *dt_div(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_div", DT_B_DIV, a, b, 0); }
DT_API dt_tensor *dt_pow(dt_tensor *a, dt_tensor *b)
{
    return dt__binary("dt_pow", DT_B_POW, dt__in_f32(a), dt__in_f32(b), 0);
}
DT_API dt_tensor *dt_maximum(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_maximum", DT_B_MAX, a, b, 0); }
DT_API dt_tensor *dt_minimum(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_minimum", DT_B_MIN, a, b, 0); }
DT_API dt_tensor *dt_atan2(dt_tensor *y, dt_tensor *x) { return dt__binary("dt_atan2", DT_B_ATAN2, y, x, 0); }
DT_API dt_tensor *dt_prelu(dt_tensor *a, dt_tensor *weight)
{
    const char *call = "dt_prelu";
    if (!dt__ok(call, "a", a) || !dt__ok(call, "weight", weight)) return NULL;
    int64_t channels = a->ndim > 1 ? a->shape[1] : a->ndim == 1 ? a->shape[0] : 1;
    if (weight->numel != 1 && (weight->ndim != 1 || weight->numel != channels)) {
        dt_fail(DT_ERR_SHAPE, "%s: weight is %s; for a %s it must have 1 element or be (%" PRId64 "), one for each channel", call,
                dt__text(weight), dt__text(a), channels);
        return NULL;
    }
    dt_shape s;
    s.ndim = weight->numel == 1 ? 0 : a->ndim < 2 ? 1 : a->ndim - 1;
    for (int i = 0; i < s.ndim; i++) s.dim[i] = i == 0 ? channels : 1;
    weight = dt__reshape(call, weight, s);
    return weight ? dt__binary(call, DT_B_PRELU, a, weight, 0) : NULL;
}
DT_API dt_tensor *dt_eq(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_eq", DT_B_EQ, a, b, 0); }
DT_API dt_tensor *dt_ne(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_ne", DT_B_NE, a, b, 0); }
DT_API dt_tensor *dt_lt(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_lt", DT_B_LT, a, b, 0); }
DT_API dt_tensor *dt_le(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_le", DT_B_LE, a, b, 0); }
DT_API dt_tensor *dt_gt(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_gt", DT_B_GT, a, b, 0); }
DT_API dt_tensor *dt_ge(dt_tensor *a, dt_tensor *b) { return dt__binary("dt_ge", DT_B_GE, a, b, 0); }
static dt_tensor *dt__scalar_like(const char *call, const dt_tensor *a, double s) /* 0-d; the caller owns it */
{
    dt_tensor *t = dt__new(call, a->st->dev, a->dtype, NULL, 0, DT_LAYOUT_PLAIN);
    if (t && dt__fill(t, s)) {
        dt__unref(t);
        return NULL;
    }
    return t;
}
static dt_tensor *dt__with_scalar(const char *call, int fn, dt_tensor *a, double s)
{
    if (!dt__ok(call, "a", a) || !dt__whole(call, a, s)) return NULL;
    dt_tensor *t = dt__scalar_like(call, a, s);
    dt_tensor *z = t ? dt__binary(call, fn, a, t, 0) : NULL;
    dt__unref(t);
    return z;
}
DT_API dt_tensor *dt_maximum_scalar(dt_tensor *a, double s)
{
    return dt__with_scalar("dt_maximum_scalar", DT_B_MAX, a, s);
}
DT_API dt_tensor *dt_minimum_scalar(dt_tensor *a, double s)
{
    return dt__with_scalar("dt_minimum_scalar", DT_B_MIN, a, s);
}
DT_API dt_status  dt_add_to(dt_tensor *dst, dt_tensor *src, double scale)
{
    if (!dt__ok("dt_add_to", "dst", dst) || !dt__ok("dt_add_to", "src", src) || !dt__same_device("dt_add_to", dst, src))
        return dt_error_code();
    if (!dt__broadcasts_to(src->shape, src->ndim, dst->shape, dst->ndim))
        return (dt_status)dt_fail(DT_ERR_SHAPE, "dt_add_to: src %s does not broadcast to dst %s", dt__text(src),
                                  dt__text(dst));
    if (!dt__is_float(dst->dtype) && dt__is_float(src->dtype))
        return (dt_status)dt_fail(DT_ERR_DTYPE, "dt_add_to: dst is %s and src is %s; dt_cast() one of them",
                                  dt_dtype_name((dt_dtype)dst->dtype), dt_dtype_name((dt_dtype)src->dtype));
    if (!dt__whole("dt_add_to", dst, scale) || !dt__write_ok("dt_add_to", dst)) return dt_error_code();
    dt__binary_run(dst, DT_B_ADD, 1, scale, dst, src, 0);
    return dt_error_code();
}

static int dt__where_run(dt_tensor *z, const dt_tensor *cond, const dt_tensor *x, const dt_tensor *y)
{
    dt_call c;
    dt__call_begin(&c, DT_K_where);
    dt__out(&c, z);
    dt__view_expand(dt__in(&c, cond), z->shape, z->ndim);
    dt__view_expand(dt__in(&c, x), z->shape, z->ndim);
    dt__view_expand(dt__in(&c, y), z->shape, z->ndim);
    return z->numel ? dt__go(z->st->dev, &c) : 0;
}
static int dt__where_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *zero = dt__scalar_like("backward", g, 0);
    int        rc = zero ? 0 : DT_ERR_MEMORY;
    for (int k = 0; k < 2 && !rc; k++) {
        if (!dt__needs_grad(n, k)) continue;
        dt_tensor *t = dt__new_like("backward", g, g->dtype);
        rc = t ? dt__where_run(t, n->saved[0], k ? zero : g, k ? g : zero) : DT_ERR_MEMORY;
        if (!rc) rc = dt__put_reduced(n->in[k], t);
        dt__unref(t);
    }
    dt__unref(zero);
    return rc;
}
DT_API dt_tensor *dt_where(dt_tensor *cond, dt_tensor *a, dt_tensor *b)
{
    dt_shape s, all;
    if (!dt__ok("dt_where", "cond", cond) || !dt__ok("dt_where", "a", a) || !dt__ok("dt_where", "b", b)) return NULL;
    if (!dt__same_device("dt_where", cond, a) || !dt__same_device("dt_where", a, b)) return NULL;
    if (dt__is_float(cond->dtype)) {
        dt_fail(DT_ERR_DTYPE, "dt_where: cond is %s; it must be u8, i32 or i64 (comparisons return u8)",
                dt_dtype_name((dt_dtype)cond->dtype));
        return NULL;
    }
    if (!dt__broadcast("dt_where", a, b, &s)) return NULL;
    int       dtype = dt__promote(a, b);
    dt_tensor probe; /* dt__broadcast reads only its shape */
    memset(&probe, 0, sizeof probe);
    probe.ndim = s.ndim;
    memcpy(probe.shape, s.dim, sizeof probe.shape);
    if (!dt__broadcast("dt_where", cond, &probe, &all)) return NULL;
    dt_tensor *x = dt_cast(a, (dt_dtype)dtype), *y = dt_cast(b, (dt_dtype)dtype);
    dt_tensor *z = x && y ? dt__new("dt_where", a->st->dev, dtype, all.dim, all.ndim, DT_LAYOUT_PLAIN) : NULL;
    if (!z) return NULL;
    if (dt__where_run(z, cond, x, y)) return dt__finish(z, DT_ERR_DEVICE);
    dt_tensor *in[2] = { x, y };
    dt__node  *n = dt__record("where", z, dt__where_bwd, 2, in);
    if (n) dt__save(n, cond);
    return dt__finish(z, dt__err.code);
}

/* ==================================================================================================== >>reductions */
/* Gives the view of a dense operand another shape with the same number of elements. */
DT__INSIDE void dt__view_dense(dt_view *v, int ndim, int64_t d0, int64_t d1, int64_t d2)
{
    v->ndim = ndim;
    v->shape[0] = d0;
    v->shape[1] = d1;
    v->shape[2] = d2;
    dt__dense_strides(v->stride, v->shape, ndim);
}
static bool dt__reduce_dims(const char *call, const dt_tensor *x, uint32_t dims, bool *reduced)
{
    uint32_t seen = 0;
    for (int i = 0; i < DT_MAX_DIMS; i++) reduced[i] = dims == 0;
    if (dims && (!(dims & DT__DIMS) || (dims & ~(DT__DIMS | 0x01fe00ffu)))) {
        int i = (int)dims;
        dt_fail(DT_ERR_ARG, "%s: .dims = %d is not a set of dimensions; write .dims = DT_DIM(%d), or DT_DIM(0) | DT_DIM(1) "
                "for two of them", call, i, i >= -x->ndim && i < x->ndim ? i : 0);
        return false;
    }
    for (int b = 0; b < 31; b++) {
        if (!(dims >> b & 1u)) continue;
        int d = b > 16 ? 16 - b : b;
        if (!dt__dim_ok(call, &d, x->ndim)) return false;
        if (dims && seen >> d & 1u) {
            dt_fail(DT_ERR_ARG, "%s: .dims names dimension %d of %s twice, as %d and %d; name it once", call, d, dt__text(x), d,
                    d - x->ndim);
            return false;
        }
        seen |= 1u << d;
        reduced[d] = true;
    }
    return true;
}
static int dt__reduce_run(dt_tensor *y, const bool *reduced, int fn, int biased, const dt_tensor *x)
{
    /* y is dense, with or without the reduced dimensions; the kernel expects them with size 1 */
    dt_call  c;
    int64_t  n = 1;
    dt__call_begin(&c, DT_K_reduce);
    dt_view *v = dt__out(&c, y);
    v->layout = DT_LAYOUT_PLAIN;
    v->ndim = x->ndim;
    for (int i = 0; i < x->ndim; i++) {
        v->shape[i] = reduced[i] ? 1 : x->shape[i];
        if (reduced[i]) n *= x->shape[i];
    }
    dt__dense_strides(v->stride, v->shape, v->ndim);
    dt__in(&c, x);
    c.u.reduce.fn = fn;
    c.u.reduce.n = n;
    c.u.reduce.biased = biased;
    return y->numel ? dt__go(x->st->dev, &c) : 0;
}
/* A view of t (dense, of the reduced shape), broadcast to the shape of x; the caller owns it. */
static dt_tensor *dt__unreduce(dt_tensor *t, const dt_tensor *x, const int64_t *reduced)
{
    dt_tensor *d = dt__dense("backward", t), *v = d ? dt__alias(d) : NULL;
    dt__unref(d);
    if (!v) return NULL;
    int64_t s = 1;
    for (int i = x->ndim - 1; i >= 0; i--) {
        v->shape[i] = x->shape[i];
        v->stride[i] = reduced[i] ? 0 : s;
        if (!reduced[i]) s *= x->shape[i];
    }
    v->ndim = x->ndim;
    v->numel = x->numel;
    return v;
}
/* max, min: the elements that are equal to the extreme share the gradient evenly */
static int dt__extreme_bwd(dt__node *n, dt_tensor *ge)
{
    dt_tensor *x = n->in[0], *ye = dt__unreduce(n->saved[1], x, n->i);
    dt_tensor *is = ye ? dt__new_like("backward", n->saved[0], DT_F32) : NULL;
    dt_tensor *count = is ? dt__new("backward", x->st->dev, DT_F32, n->saved[1]->shape, n->saved[1]->ndim,
                                    DT_LAYOUT_PLAIN) : NULL;
    dt_tensor *mask = count ? dt__new_like("backward", n->saved[0], DT_U8) : NULL;
    bool       reduced[DT_MAX_DIMS];
    int        rc = mask ? 0 : DT_ERR_MEMORY;
    for (int i = 0; i < DT_MAX_DIMS; i++) reduced[i] = n->i[i] != 0;
    if (!rc) rc = dt__binary_run(mask, DT_B_EQ, 1, 0, n->saved[0], ye, 0);
    if (!rc) rc = dt__copy_to(is, mask, 0);
    if (!rc) rc = dt__reduce_run(count, reduced, DT_R_SUM, 0, is);
    dt_tensor *ce = rc ? NULL : dt__unreduce(count, x, n->i);
    if (!rc) rc = ce ? dt__binary_run(is, DT_B_DIV, 1, 0, is, ce, 0) : DT_ERR_MEMORY;
    if (!rc) rc = dt__binary_put(x, n->saved[0], DT_B_MUL, 1, 0, ge, is);
    dt__unref(ce);
    dt__unref(mask);
    dt__unref(count);
    dt__unref(is);
    dt__unref(ye);
    return rc;
}
/* var: dx = g * 2 (x - mean) / (n - 1) */
static int dt__var_bwd(dt__node *n, dt_tensor *ge)
{
    dt_tensor *x = n->saved[0], *mean = dt__new("backward", x->st->dev, DT_F32, n->out ? n->out->shape : NULL, n->out
                                                ? n->out->ndim : 0, DT_LAYOUT_PLAIN);
    bool       reduced[DT_MAX_DIMS];
    int64_t    count = 1;
    for (int i = 0; i < DT_MAX_DIMS; i++) reduced[i] = n->i[i] != 0;
    for (int i = 0; i < x->ndim; i++) count *= reduced[i] ? x->shape[i] : 1;
    int        rc = mean ? dt__reduce_run(mean, reduced, DT_R_MEAN, 0, x) : DT_ERR_MEMORY;
    dt_tensor *me = rc ? NULL : dt__unreduce(mean, x, n->i);
    dt_tensor *d = me ? dt__binary_tmp(x, DT_B_ADD, 1, -1, x, me) : NULL;
    if (!rc) rc = d ? dt__binary_put(n->in[0], x, DT_B_MUL, 2.0 / (double)(count - (n->b != 0 ? 0 : 1)), 0, ge, d)
            : DT_ERR_MEMORY;
    dt__unref(d);
    dt__unref(me);
    dt__unref(mean);
    return rc;
}
/* y (outer, n, inner) := sums or products of x from its beginning to each place, see scan in DT_KERNELS; both are dense */
DT__INSIDE int dt__scan_run(dt_tensor *y, const dt_tensor *x, int64_t outer, int64_t n, int64_t inner, int fn, bool reverse,
                            bool exclusive)
{
    dt_call c;
    dt__call_begin(&c, DT_K_scan);
    dt__view_dense(dt__out(&c, y), 3, outer, n, inner);
    dt__view_dense(dt__in(&c, x), 3, outer, n, inner);
    c.u.scan.fn = fn;
    c.u.scan.reverse = reverse;
    c.u.scan.exclusive = exclusive;
    return x->numel ? dt__go(x->st->dev, &c) : 0;
}
/* prod: dx = g * (product of the elements before) * (product of those behind), which is right where elements are 0, too */
static int dt__prod_bwd(dt__node *n, dt_tensor *ge)
{
    dt_tensor *x = n->saved[0], *p = dt__alias(x), *t[3] = { NULL, NULL, NULL };
    int64_t    order[DT_MAX_DIMS], back[DT_MAX_DIMS], many = 1;
    int        k = 0, rc = p ? 0 : DT_ERR_MEMORY;
    for (int i = 0; i < x->ndim; i++)
        if (!n->i[i]) order[k++] = i;
    for (int i = 0; i < x->ndim; i++)
        if (n->i[i]) many *= x->shape[order[k++] = i];
    for (int i = 0; i < x->ndim; i++) back[order[i]] = i;
    if (!rc) rc = dt__make_plain(x);
    if (!rc) {
        dt__unref(p);
        p = dt__alias(x);
    }
    if (p) dt__permute(p, x, order); /* the reduced dimensions last */
    for (int i = 0; i < 3 && !rc; i++) {
        t[i] = dt__new("backward", x->st->dev, DT_F32, p->shape, p->ndim, DT_LAYOUT_PLAIN);
        rc = !t[i]  ? (int)DT_ERR_MEMORY
             : i == 0 ? dt__copy_to(t[0], p, 0)
                      : dt__scan_run(t[i], t[0], many ? x->numel / many : 0, many, 1, DT_R_PROD, i == 2, true);
    }
    if (!rc) rc = dt__binary_run(t[0], DT_B_MUL, 1, 0, t[1], t[2], 0);
    dt_tensor *v = rc ? NULL : dt__alias(t[0]);
    if (v) dt__permute(v, t[0], back);
    if (!rc) rc = v ? dt__binary_put(n->in[0], n->in[0], DT_B_MUL, 1, 0, ge, v) : DT_ERR_MEMORY;
    dt__unref(v);
    for (int i = 0; i < 3; i++) dt__unref(t[i]);
    dt__unref(p);
    return rc;
}
static int dt__reduce_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *x = n->in[0], *ge = dt__unreduce(g, x, n->i);
    int        rc = 0;
    if (!ge) return DT_ERR_MEMORY;
    switch (n->fn) {
    case DT_R_SUM: rc = dt__grad_put(x, ge); break;
    case DT_R_MEAN: {
        dt_tensor *scale = dt__new("backward", x->st->dev, DT_F32, NULL, 0, DT_LAYOUT_PLAIN);
        rc = scale ? dt__fill(scale, n->a) : DT_ERR_MEMORY;
        if (!rc) rc = dt__binary_put(x, x, DT_B_MUL, 1, 0, ge, scale);
        dt__unref(scale);
        break;
    }
    case DT_R_VAR: rc = dt__var_bwd(n, ge); break;
    case DT_R_MAX:
    case DT_R_MIN: rc = dt__extreme_bwd(n, ge); break;
    case DT_R_PROD: rc = dt__prod_bwd(n, ge); break;
    case DT_R_NORM: { /* g x/y; 0 where the norm is 0 */
        dt_tensor *ye = dt__unreduce(n->saved[1], x, n->i);
        dt_tensor *q = ye ? dt__binary_tmp(x, DT_B_DIV, 1, 0, n->saved[0], ye) : NULL;
        dt_tensor *zero = q ? dt__scalar_like("backward", q, 0) : NULL, *is = zero ? dt__new_like("backward", x, DT_U8) : NULL, *t = is ? dt__new_like("backward", x, DT_F32) : NULL;
        rc = t ? dt__binary_run(is, DT_B_EQ, 1, 0, ye, zero, 0) : (int)DT_ERR_MEMORY;
        if (!rc) rc = dt__where_run(t, is, zero, q);
        dt__unref(ye);
        dt__unref(zero);
        dt__unref(q);
        dt__unref(is);
        rc = rc ? rc : dt__binary_put(x, x, DT_B_MUL, 1, 0, ge, t);
        dt__unref(t);
        break;
    }
    case DT_R_LSE: { /* g exp(x - y); where y is -inf all x are -inf, and the gradient is NaN, as in PyTorch */
        dt_tensor *ye = dt__unreduce(n->saved[1], x, n->i);
        dt_tensor *d = ye ? dt__binary_tmp(x, DT_B_ADD, 1, -1, n->saved[0], ye) : NULL;
        dt_tensor *e = d ? dt__new_like("backward", d, DT_F32) : NULL;
        rc = e ? dt__unary_run(e, DT_U_EXP, 0, 0, d) : DT_ERR_MEMORY;
        dt__unref(ye);
        dt__unref(d);
        rc = rc ? rc : dt__binary_put(x, x, DT_B_MUL, 1, 0, ge, e);
        dt__unref(e);
        break;
    }
    default: rc = dt_fail(DT_ERR_GRAD, "dt_backward: '%s' has no derivative", n->name); break;
    }
    dt__unref(ge);
    return rc;
}
static dt_tensor *dt__reduce_as(const char *call, int fn, dt_tensor *x, dt_reduce_opts o, int as);
DT__INSIDE dt_tensor *dt__reduce(const char *call, int fn, dt_tensor *x, dt_reduce_opts o)
{
    return dt__reduce_as(call, fn, x, o, -1);
}
static dt_tensor *dt__reduce_as(const char *call, int fn, dt_tensor *x, dt_reduce_opts o, int as)
{
    bool    reduced[DT_MAX_DIMS] = { false };
    int64_t shape[DT_MAX_DIMS] = { 0 }, n = 1;
    int     ndim = 0;
    if (!dt__ok(call, "a", x) || !dt__reduce_dims(call, x, o.dims, reduced)) return NULL;
    bool index = fn == DT_R_ARGMAX || fn == DT_R_ARGMIN, wide = fn == DT_R_SUM || fn == DT_R_PROD;
    bool ints = wide || fn == DT_R_MAX || fn == DT_R_MIN || index;
    if (!ints && !dt__want_float(call, x)) return NULL;
    for (int i = 0; i < x->ndim; i++) {
        if (reduced[i]) n *= x->shape[i];
        if (!reduced[i] || o.keepdim) shape[ndim++] = reduced[i] ? 1 : x->shape[i];
    }
    if (n == 0 && (fn == DT_R_MAX || fn == DT_R_MIN || index)) {
        dt_fail(DT_ERR_SHAPE, "%s: the reduced dimensions of %s have no elements; at least 1 is needed", call, dt__text(x));
        return NULL;
    }
    int dtype = as >= 0 ? as : index || (wide && !dt__is_float(x->dtype)) ? (int)DT_I64 : x->dtype;
    dt_tensor *y = dt__new(call, x->st->dev, dtype, shape, ndim, DT_LAYOUT_PLAIN);
    if (!y) return NULL;
    if (dt__reduce_run(y, reduced, fn, o.biased, x)) return dt__finish(y, DT_ERR_DEVICE);
    dt__node *node = index ? NULL : dt__record(call + 3, y, dt__reduce_bwd, 1, &x);
    if (node) {
        for (int i = 0; i < DT_MAX_DIMS; i++) node->i[i] = reduced[i];
        node->fn = fn;
        node->a = n ? 1.0 / (double)n : 0;
        node->b = o.biased;
        if (fn != DT_R_SUM && fn != DT_R_MEAN) dt__save(node, x);
        if (fn == DT_R_MAX || fn == DT_R_MIN || fn == DT_R_NORM || fn == DT_R_LSE) dt__save(node, y);
    }
    return dt__finish(y, dt__err.code);
}
DT_API dt_tensor *dt_sum_with(dt_tensor *a, dt_reduce_opts o) { return dt__reduce("dt_sum", DT_R_SUM, dt__in_f32(a), o); }
DT_API dt_tensor *dt_mean_with(dt_tensor *a, dt_reduce_opts o) { return dt__reduce("dt_mean", DT_R_MEAN, a, o); }
DT_API dt_tensor *dt_amax_with(dt_tensor *a, dt_reduce_opts o) { return dt__reduce("dt_amax", DT_R_MAX, a, o); }
DT_API dt_tensor *dt_amin_with(dt_tensor *a, dt_reduce_opts o) { return dt__reduce("dt_amin", DT_R_MIN, a, o); }
static dt_tensor *dt__variance(const char *call, dt_tensor *a, dt_reduce_opts o, int as)
{
    bool reduced[DT_MAX_DIMS];
    a = dt__in_f32(a);
    if (o.correction == DT_ZERO) o.biased = true;
    if (o.biased || o.correction == 0 || o.correction == 1) return dt__reduce_as(call, DT_R_VAR, a, o, as);
    if (o.correction < 0) {
        dt_fail(DT_ERR_ARG, "%s: .correction is %d; it must be at least 1, or DT_ZERO", call, o.correction);
        return NULL;
    }
    if (!dt__ok(call, "a", a) || !dt__reduce_dims(call, a, o.dims, reduced)) return NULL;
    double n = 1;
    for (int i = 0; i < a->ndim; i++)
        if (reduced[i]) n *= (double)a->shape[i];
    o.biased = true;
    a = dt__reduce_as(call, DT_R_VAR, a, o, as);
    return a ? dt_mul_scalar(a, n / (n > o.correction ? n - o.correction : 0)) : NULL;
}
DT_API dt_tensor *dt_var_with(dt_tensor *a, dt_reduce_opts o) { return dt__variance("dt_var", a, o, -1); }
DT_API dt_tensor *dt_std_with(dt_tensor *a, dt_reduce_opts o)
{
    a = dt__in_f32(a);
    dt_dtype   dtype = dt_dtype_of(a);
    dt_tensor *v = dt__variance("dt_std", a, o, DT_F32);
    if (!v || !v->requires_grad) return v ? dt_cast(dt_sqrt(v), dtype) : NULL;
    /* where the variance is 0 the gradient is 0, as in PyTorch, not 0 times the infinite one of the root */
    dt_tensor *zero = dt__give(dt__scalar_like("dt_std", v, 0)), *one = dt__give(dt__scalar_like("dt_std", v, 1));
    dt_tensor *nil = zero && one ? dt_eq(v, zero) : NULL;
    return nil ? dt_cast(dt_where(nil, v, dt_sqrt(dt_where(nil, one, v))), dtype) : NULL;
}
DT_API dt_tensor *dt_prod_with(dt_tensor *a, dt_reduce_opts o) { return dt__reduce("dt_prod", DT_R_PROD, dt__in_f32(a), o); }
DT_API dt_tensor *dt_logsumexp_with(dt_tensor *a, dt_reduce_opts o)
{
    return dt__reduce("dt_logsumexp", DT_R_LSE, dt__in_f32(a), o);
}
static dt_tensor *dt__arg(const char *call, int fn, dt_tensor *a, dt_reduce_opts o)
{
    uint32_t dims = o.dims & ~DT__DIMS;
    if ((o.dims & DT__DIMS) && (dims & (dims - 1))) {
        dt_fail(DT_ERR_ARG, "%s: .dims has several dimensions; set one, or leave it out to reduce over all", call);
        return NULL;
    }
    return dt__reduce(call, fn, a, o);
}
DT_API dt_tensor *dt_argmax_with(dt_tensor *a, dt_reduce_opts o) { return dt__arg("dt_argmax", DT_R_ARGMAX, a, o); }
DT_API dt_tensor *dt_argmin_with(dt_tensor *a, dt_reduce_opts o) { return dt__arg("dt_argmin", DT_R_ARGMIN, a, o); }

/* ==================================================================================================== >>matmul */
/* t with unit stride in one of the last two dimensions, as gemm requires: t itself or a copy. The caller owns it. */
static dt_tensor *dt__gemm_operand(dt_tensor *t)
{
    int64_t r = t->stride[t->ndim - 2], c = t->stride[t->ndim - 1];
    bool    thin = t->shape[t->ndim - 2] == 1 || t->shape[t->ndim - 1] == 1;
    if (t->layout == DT_LAYOUT_PLAIN && (r == 1 || c == 1 || thin)) return dt__ref(t);
    return dt__dense("dt_matmul", t);
}
static void dt__gemm_view(dt_view *v, const dt_tensor *t, int transposed, const dt_tensor *c)
{
    int p = t->ndim - 2, q = t->ndim - 1;
    if (v->stride[p] != 1 && v->stride[q] != 1) { /* one of the two has size 1, so any stride is right for it */
        if (v->shape[q] == 1)
            v->stride[q] = 1;
        else
            v->stride[p] = 1;
    }
    if (transposed) {
        int64_t s = v->shape[p], d = v->stride[p];
        v->shape[p] = v->shape[q];
        v->stride[p] = v->stride[q];
        v->shape[q] = s;
        v->stride[q] = d;
    }
    dt__view_pad(v, c->ndim);
    for (int i = 0; i < c->ndim - 2; i++)
        if (v->shape[i] != c->shape[i]) {
            v->shape[i] = c->shape[i];
            v->stride[i] = 0;
        }
}
/* c = act(a b + bias), or c += a b. ta, tb: transpose the last two dimensions of a or b. c is dense. */
static int dt__gemm(dt_tensor *c, dt_tensor *a, int ta, dt_tensor *b, int tb, dt_tensor *bias, int act, uint32_t acc)
{
    dt_tensor *pa = dt__gemm_operand(a), *pb = pa ? dt__gemm_operand(b) : NULL;
    dt_tensor *bd = pb && bias ? dt__dense("dt_op_linear", bias) : NULL;
    dt_call    k;
    int        rc = DT_ERR_MEMORY;
    if (pb && (bd || !bias)) {
        dt__call_begin(&k, DT_K_gemm);
        dt__out(&k, c);
        dt__gemm_view(dt__in(&k, pa), pa, ta, c);
        dt__gemm_view(dt__in(&k, pb), pb, tb, c);
        dt__in(&k, bd);
        k.acc = acc;
        k.u.gemm.alpha = 1;
        k.u.gemm.act = act;
        rc = c->numel ? dt__go(c->st->dev, &k) : 0;
    }
    dt__unref(pa);
    dt__unref(pb);
    dt__unref(bd);
    return rc;
}
/* t as a dense matrix: all dimensions but the last are rows. The caller owns it. */
static dt_tensor *dt__as_matrix(dt_tensor *t)
{
    dt_tensor *d = dt__dense("dt_matmul", t), *v = d ? dt__alias(d) : NULL;
    dt__unref(d);
    if (!v) return NULL;
    int64_t cols = t->shape[t->ndim - 1], rows = 1;
    for (int i = 0; i < t->ndim - 1; i++) rows *= t->shape[i];
    v->ndim = 2;
    v->shape[0] = rows;
    v->shape[1] = cols;
    dt__dense_strides(v->stride, v->shape, 2);
    return v;
}
/* Adds op(p) op(q) to the gradient of the factor x, which may have been broadcast over the batch dimensions. */
static int dt__matmul_put(dt_tensor *x, const dt_tensor *out, dt_tensor *p, int tp, dt_tensor *q, int tq)
{
    bool     same = x->ndim == out->ndim;
    uint32_t acc = 0;
    for (int i = 0; same && i < x->ndim - 2; i++) same = x->shape[i] == out->shape[i];
    if (same) {
        dt_tensor *t = dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc);
        int        rc = t ? dt__gemm(t, p, tp, q, tq, NULL, 0, acc) : DT_ERR_MEMORY;
        return dt__grad_end(x, t) || rc;
    }
    int64_t shape[DT_MAX_DIMS];
    for (int i = 0; i < out->ndim - 2; i++) shape[i] = out->shape[i];
    shape[out->ndim - 2] = x->shape[x->ndim - 2];
    shape[out->ndim - 1] = x->shape[x->ndim - 1];
    dt_tensor *t = dt__new("backward", x->st->dev, DT_F32, shape, out->ndim, DT_LAYOUT_PLAIN);
    int        rc = t ? dt__gemm(t, p, tp, q, tq, NULL, 0, 0) : DT_ERR_MEMORY;
    if (!rc) rc = dt__put_reduced(x, t);
    dt__unref(t);
    return rc;
}
static int dt__matmul_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *a = n->saved[0], *b = n->saved[1];
    int        rc = 0;
    if (b->ndim == 2) { /* the batch dimensions of a are rows of one matrix */
        dt_tensor *g2 = dt__as_matrix(g), *a2 = g2 ? dt__as_matrix(a) : NULL;
        rc = a2 ? 0 : DT_ERR_MEMORY;
        if (!rc && dt__needs_grad(n, 0)) {
            uint32_t   acc;
            dt_tensor *t = dt__grad_begin(n->in[0], DT_LAYOUT_PLAIN, &acc);
            dt_tensor *t2 = t ? dt__as_matrix(t) : NULL;
            rc = t2 ? dt__gemm(t2, g2, 0, b, 1, NULL, 0, acc) : DT_ERR_MEMORY;
            dt__unref(t2);
            rc = dt__grad_end(n->in[0], t) || rc;
        }
        if (!rc && dt__needs_grad(n, 1)) {
            uint32_t   acc;
            dt_tensor *t = dt__grad_begin(n->in[1], DT_LAYOUT_PLAIN, &acc);
            rc = t ? dt__gemm(t, a2, 1, g2, 0, NULL, 0, acc) : DT_ERR_MEMORY;
            rc = dt__grad_end(n->in[1], t) || rc;
        }
        dt__unref(g2);
        dt__unref(a2);
        return rc;
    }
    if (dt__needs_grad(n, 0)) rc = dt__matmul_put(n->in[0], g, g, 0, b, 1);
    if (dt__needs_grad(n, 1) && !rc) rc = dt__matmul_put(n->in[1], g, a, 1, g, 0);
    return rc;
}
static dt_tensor *dt__matmul(dt_tensor *a, dt_tensor *b)
{
    int64_t shape[DT_MAX_DIMS];
    int     ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    bool    fits = a->shape[a->ndim - 1] == b->shape[b->ndim - 2];
    for (int i = 0; i < ndim - 2 && fits; i++) {
        int     ia = i - (ndim - a->ndim), ib = i - (ndim - b->ndim);
        int64_t da = ia < 0 ? 1 : a->shape[ia], db = ib < 0 ? 1 : b->shape[ib];
        fits = da == db || da == 1 || db == 1;
        shape[i] = da == 1 ? db : da;
    }
    if (!fits) {
        dt_fail(DT_ERR_SHAPE,
                "dt_matmul: shapes a %s and b %s do not match: the last dimension of a must equal the second to last of "
                "b, and the batch dimensions must broadcast", dt__text(a), dt__text(b));
        return NULL;
    }
    shape[ndim - 2] = a->shape[a->ndim - 2];
    shape[ndim - 1] = b->shape[b->ndim - 1];
    dt_tensor *c = dt__new("dt_matmul", a->st->dev, dt__promote(a, b), shape, ndim, DT_LAYOUT_PLAIN);
    if (!c) return NULL;
    int rc;
    if (b->ndim == 2 && a->ndim > 2) {
        dt_tensor *a2 = dt__as_matrix(a), *c2 = a2 ? dt__as_matrix(c) : NULL;
        rc = c2 ? dt__gemm(c2, a2, 0, b, 0, NULL, 0, 0) : DT_ERR_MEMORY;
        dt__unref(a2);
        dt__unref(c2);
    } else {
        rc = dt__gemm(c, a, 0, b, 0, NULL, 0, 0);
    }
    if (rc) return dt__finish(c, rc);
    dt_tensor *in[2] = { a, b };
    dt__node  *n = dt__record("matmul", c, dt__matmul_bwd, 2, in);
    if (n) {
        dt__save(n, a);
        dt__save(n, b);
    }
    return dt__finish(c, dt__err.code);
}
DT_API dt_tensor *dt_matmul(dt_tensor *a, dt_tensor *b)
{
    a = dt__in_half(a);
    b = dt__in_half(b);
    if (!dt__ok("dt_matmul", "a", a) || !dt__ok("dt_matmul", "b", b) || !dt__same_device("dt_matmul", a,
            b)) return NULL;
    if (!dt__want_float("dt_matmul", a) || !dt__want_float("dt_matmul", b)) return NULL;
    if (a->ndim == 0 || b->ndim == 0) {
        dt_fail(DT_ERR_SHAPE, "dt_matmul: shapes a %s and b %s: both need at least 1 dimension; use dt_mul for a scalar",
                dt__text(a), dt__text(b));
        return NULL;
    }
    bool       va = a->ndim == 1, vb = b->ndim == 1;
    dt_tensor *x = va ? dt_unsqueeze(a, 0) : a, *y = vb ? dt_unsqueeze(b, 1) : b;
    dt_tensor *c = x && y ? dt__matmul(x, y) : NULL;
    if (c && vb) c = dt_squeeze(c, -1);
    if (c && va) c = dt_squeeze(c, vb ? -1 : -2);
    return c;
}

/* ---- fused activations */
static int dt__act_fn(int act) /* the elementwise function; -1 for an activation that has none */
{
    switch (act) {
    case DT_ACT_RELU: return DT_U_RELU;
    case DT_ACT_SIGMOID: return DT_U_SIGMOID;
    case DT_ACT_TANH: return DT_U_TANH;
    }
    return -1;
}
static bool dt__act_ok(const char *call, int act, bool only_relu)
{
    if (act == DT_ACT_NONE || act == DT_ACT_RELU || (!only_relu && (act == DT_ACT_SIGMOID ||
                                                                    act == DT_ACT_TANH))) return true;
    dt_fail(DT_ERR_ARG, "%s: activation %d cannot be fused into this op; apply it as a separate op", call, act);
    return false;
}
/* The gradient before the activation, computed from its result y. Without an activation it is g itself. The caller owns
   one reference in both cases. */
static dt_tensor *dt__act_bwd(int act, dt_tensor *g, dt_tensor *y)
{
    if (act == DT_ACT_NONE) return dt__ref(g);
    dt_tensor *t = dt__new_like("backward", y, g->dtype);
    if (!t) return NULL;
    dt_call c;
    dt__call_begin(&c, DT_K_unary_bwd);
    dt__out(&c, t);
    dt__in(&c, g);
    dt__in(&c, y);
    c.u.ew.fn = dt__act_fn(act);
    if (t->numel && dt__go(t->st->dev, &c)) {
        dt__unref(t);
        return NULL;
    }
    return t;
}
/* Adds g, summed over all dimensions but 'channel', to the gradient of x, which is 1-d. */
static int dt__put_channel_sum(dt_tensor *x, dt_tensor *g, int channel)
{
    uint32_t   acc;
    dt_tensor *t = dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc);
    if (!t) return DT_ERR_MEMORY;
    dt_call c;
    dt__call_begin(&c, DT_K_reduce);
    dt_view *v = dt__out(&c, t);
    dt__in(&c, g);
    v->ndim = g->ndim;
    for (int i = 0; i < g->ndim; i++) {
        v->shape[i] = i == channel ? g->shape[i] : 1;
        v->stride[i] = i == channel ? 1 : 0;
    }
    c.acc = acc;
    c.u.reduce.fn = DT_R_SUM;
    c.u.reduce.n = x->numel ? g->numel / x->numel : 0;
    int rc = x->numel ? dt__go(g->st->dev, &c) : 0;
    return dt__grad_end(x, t) || rc;
}
static bool dt__vector_ok(const char *call, const char *arg, const dt_tensor *x, const dt_tensor *v, int64_t n)
{
    if (!v) return dt__err.code == DT_OK;
    if (!dt__ok(call, arg, v) || !dt__same_device(call, x, v)) return false;
    if (v->ndim == 1 && v->shape[0] == n && dt__is_float(v->dtype)) return true;
    dt_fail(DT_ERR_SHAPE, "%s: %s is %s %s; it must be (%" PRId64 ") of a float dtype", call, arg,
            dt_dtype_name((dt_dtype)v->dtype), dt__text(v), n);
    return false;
}

static int dt__linear_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *x = n->saved[0], *w = n->saved[1];
    dt_tensor *ga = dt__act_bwd((int)n->i[0], g, n->saved[2]), *g2 = ga ? dt__as_matrix(ga) : NULL;
    int        rc = g2 ? 0 : DT_ERR_MEMORY;
    uint32_t   acc;
    if (!rc && dt__needs_grad(n, 0)) {
        dt_tensor *t = dt__grad_begin(n->in[0], DT_LAYOUT_PLAIN, &acc), *t2 = t ? dt__as_matrix(t) : NULL;
        rc = t2 ? dt__gemm(t2, g2, 0, w, 0, NULL, 0, acc) : DT_ERR_MEMORY;
        dt__unref(t2);
        rc = dt__grad_end(n->in[0], t) || rc;
    }
    if (!rc && dt__needs_grad(n, 1)) {
        dt_tensor *t = dt__grad_begin(n->in[1], DT_LAYOUT_PLAIN, &acc);
        rc = t ? dt__gemm(t, g2, 1, x, 0, NULL, 0, acc) : DT_ERR_MEMORY;
        rc = dt__grad_end(n->in[1], t) || rc;
    }
    if (!rc && dt__needs_grad(n, 2)) rc = dt__put_channel_sum(n->in[2], g2, 1);
    dt__unref(g2);
    dt__unref(ga);
    return rc;
}
DT_API dt_tensor *dt_op_linear_with(dt_tensor *x, dt_tensor *w, dt_tensor *b, dt_op_linear_opts o)
{
    const char *call = "dt_op_linear";
    x = dt__in_half(x);
    w = dt__in_half(w);
    b = dt__in_half(b);
    if (!dt__ok(call, "x", x) || !dt__ok(call, "w", w) || !dt__same_device(call, x, w) || !dt__act_ok(call, o.act,
            false)) return NULL;
    if (!dt__want_float(call, x) || !dt__want_float(call, w)) return NULL;
    if (x->ndim < 1 || w->ndim != 2 || x->shape[x->ndim - 1] != w->shape[1]) {
        dt_fail(DT_ERR_SHAPE, "%s: shapes x %s and w %s do not match: w must be (out, in) and x (..., in)", call,
                dt__text(x), dt__text(w));
        return NULL;
    }
    if (!dt__vector_ok(call, "b", x, b, w->shape[0])) return NULL;
    int64_t shape[DT_MAX_DIMS];
    for (int i = 0; i < x->ndim - 1; i++) shape[i] = x->shape[i];
    shape[x->ndim - 1] = w->shape[0];
    dt_tensor *y = dt__new(call, x->st->dev, dt__promote(x, w), shape, x->ndim, DT_LAYOUT_PLAIN);
    dt_tensor *x2 = y ? dt__as_matrix(x) : NULL, *y2 = x2 ? dt__as_matrix(y) : NULL;
    int        rc = y2 ? dt__gemm(y2, x2, 0, w, 1, b, o.act, 0) : DT_ERR_MEMORY;
    dt_tensor *in[3] = { x, w, b };
    dt__node  *n = rc ? NULL : dt__record("linear", y, dt__linear_bwd, 3, in);
    if (n) {
        dt__save(n, x2);
        dt__save(n, w);
        dt__save(n, o.act ? y : NULL);
        n->i[0] = o.act;
    }
    dt__unref(x2);
    dt__unref(y2);
    if (!y) return NULL;
    return dt__finish(y, rc ? rc : (int)dt__err.code);
}

/* ==================================================================================================== >>softmax */
DT__INSIDE void dt__split_dims(const dt_tensor *x, int dim, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int i = 0; i < dim; i++) *outer *= x->shape[i];
    for (int i = dim + 1; i < x->ndim; i++) *inner *= x->shape[i];
}
static int dt__softmax_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *x = n->in[0], *y = n->saved[0], *d = dt__dense("backward", g);
    uint32_t   acc = 0;
    dt_tensor *t = d ? dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc) : NULL;
    int        rc = t ? 0 : DT_ERR_MEMORY;
    if (!rc && x->numel) {
        int64_t outer, inner, dim = y->shape[n->i[0]];
        dt__split_dims(y, (int)n->i[0], &outer, &inner);
        dt_call c;
        dt__call_begin(&c, DT_K_softmax_bwd);
        dt__view_dense(dt__out(&c, t), 3, outer, dim, inner);
        dt__view_dense(dt__in(&c, d), 3, outer, dim, inner);
        dt__view_dense(dt__in(&c, y), 3, outer, dim, inner);
        c.acc = acc;
        c.u.softmax.log = n->fn;
        rc = dt__go(x->st->dev, &c);
    }
    dt__unref(d);
    return dt__grad_end(x, t) || rc;
}
static dt_tensor *dt__softmax(const char *call, dt_tensor *x, int dim, int log)
{
    if (!dt__ok(call, "a", x) || !dt__want_float(call, x)) return NULL;
    if (x->ndim == 0 && (dim == 0 || dim == -1)) { /* as in PyTorch, a scalar counts as one dimension of size 1 */
        dt_shape s;
        s.ndim = 1;
        s.dim[0] = 1;
        dt_tensor *v = dt_reshape(x, s), *y = v ? dt__softmax(call, v, 0, log) : NULL;
        s.ndim = 0;
        return y ? dt_reshape(y, s) : NULL;
    }
    if (!dt__dim_ok(call, &dim, x->ndim)) return NULL;
    dt_tensor *d = dt__dense(call, x), *y = d ? dt__new(call, x->st->dev, x->dtype, x->shape, x->ndim,
                                                        DT_LAYOUT_PLAIN) : NULL;
    int        rc = y ? 0 : DT_ERR_MEMORY;
    if (!rc && x->numel) {
        int64_t outer, inner;
        dt_call c;
        dt__split_dims(x, dim, &outer, &inner);
        dt__call_begin(&c, DT_K_softmax);
        dt__view_dense(dt__out(&c, y), 3, outer, x->shape[dim], inner);
        dt__view_dense(dt__in(&c, d), 3, outer, x->shape[dim], inner);
        c.u.softmax.log = log;
        rc = dt__go(x->st->dev, &c);
    }
    dt__unref(d);
    dt__node *n = rc ? NULL : dt__record(call + 3, y, dt__softmax_bwd, 1, &x);
    if (n) {
        dt__save(n, y);
        n->i[0] = dim;
        n->fn = log;
    }
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
DT_API dt_tensor *dt_softmax(dt_tensor *a, int dim) { return dt__softmax("dt_softmax", dt__in_f32(a), dim, 0); }
DT_API dt_tensor *dt_log_softmax(dt_tensor *a, int dim)
{
    return dt__softmax("dt_log_softmax", dt__in_f32(a), dim, 1);
}

/* ==================================================================================================== >>images
   Convolution, pooling and batch norm run in the image layout of the device. Operands in another layout are converted;
   results keep the layout, so a chain of these ops converts nothing. */
static bool dt__image_ok(const char *call, const dt_tensor *x)
{
    if (!dt__ok(call, "x", x) || !dt__want_float(call, x)) return false;
    if (x->ndim == 4) return true;
    dt_fail(DT_ERR_SHAPE, "%s: x is %s; it must be (n, c, h, w)", call, dt__text(x));
    return false;
}
static int dt__option_or(int value, int otherwise) { return value == DT_ZERO ? 0 : value ? value : otherwise; }
/* *x := the number that an option means: 0 is its default, DT_ZERO is 0. False after an error: below least, or not finite. */
static bool dt__number_or(const char *call, const char *option, double *x, double otherwise, double least)
{
    double v = *x == 0 ? otherwise : *x == DT_ZERO ? 0 : *x;
    *x = v;
    if (isfinite(v) && v >= least) return true;
    dt_fail(DT_ERR_ARG, "%s: %s is %g; it must be finite%s", call, option, v, least == 0 ? ", and 0 (DT_ZERO) or more" : "");
    return false;
}

/* given: stride, pad and dilation of the height, then of the width */
static void dt__conv_options(dt_call *c, const int *given, int groups)
{
    for (int i = 0; i < 2; i++) {
        c->u.conv.stride[i] = dt__option_or(given[3 * i], i ? c->u.conv.stride[0] : 1);
        c->u.conv.pad[i] = dt__option_or(given[3 * i + 1], i ? c->u.conv.pad[0] : 0);
        c->u.conv.dilation[i] = dt__option_or(given[3 * i + 2], i ? c->u.conv.dilation[0] : 1);
    }
    c->u.conv.groups = groups ? groups : 1;
}
static int dt__conv_bwd_data(dt__node *n, dt_tensor *g, int layout)
{
    uint32_t   acc;
    dt_tensor *x = n->in[0], *t = dt__grad_begin(x, layout, &acc);
    dt_call    c;
    if (!t) return DT_ERR_MEMORY;
    dt__call_begin(&c, DT_K_conv2d_bwd_data);
    memcpy(&c.u, n->u, sizeof c.u);
    dt__out(&c, t);
    dt__in(&c, g);
    dt__in(&c, n->saved[1]);
    c.acc = acc;
    int rc = x->numel ? dt__go(x->st->dev, &c) : 0;
    return dt__grad_end(x, t) || rc;
}
static int dt__conv_bwd_weight(dt__node *n, dt_tensor *g, int layout)
{
    uint32_t   acc = 0, acc_b = 0;
    dt_tensor *w = n->in[1], *b = dt__needs_grad(n, 2) ? n->in[2] : NULL;
    dt_tensor *x = dt__in_layout("backward", n->saved[0], layout); /* a view may have converted it to plain */
    dt_tensor *tw = x ? dt__grad_begin(w, DT_LAYOUT_PLAIN, &acc) : NULL;
    dt_tensor *tb = tw && b ? dt__grad_begin(b, DT_LAYOUT_PLAIN, &acc_b) : NULL;
    int        rc = tw && (tb || !b) ? 0 : DT_ERR_MEMORY;
    if (!rc && w->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_conv2d_bwd_weight);
        memcpy(&c.u, n->u, sizeof c.u);
        dt__out(&c, tw);
        dt__out(&c, tb);
        dt__in(&c, g);
        dt__in(&c, x);
        c.acc = acc | acc_b << 1;
        rc = dt__go(w->st->dev, &c);
    }
    dt__unref(x);
    rc = dt__grad_end(w, tw) || rc;
    if (b) rc = dt__grad_end(b, tb) || rc;
    return rc;
}
static int dt__conv_bwd(dt__node *n, dt_tensor *g)
{
    int        layout = dt__image_layout(g->st->dev, DT_K_conv2d, g->dtype);
    dt_tensor *ga = dt__act_bwd((int)n->i[0], g, n->saved[2]), *gi = ga ? dt__in_layout("backward", ga, layout) : NULL;
    int        rc = gi ? 0 : DT_ERR_MEMORY;
    dt__unref(ga);
    if (!rc && dt__needs_grad(n, 0)) rc = dt__conv_bwd_data(n, gi, layout);
    if (!rc && dt__needs_grad(n, 1))
        rc = dt__conv_bwd_weight(n, gi, layout);
    else if (!rc && dt__needs_grad(n, 2))
        rc = dt__put_channel_sum(n->in[2], gi, 1);
    dt__unref(gi);
    return rc;
}
static bool dt__conv_shape(const char *call, const dt_tensor *x, const dt_tensor *w, dt_call *c, int64_t *shape)
{
    int groups = c->u.conv.groups;
    if (w->ndim != 4 || groups < 1 || w->shape[1] * groups != x->shape[1] || w->shape[0] % groups) {
        dt_fail(DT_ERR_SHAPE, "%s: shapes x %s and w %s do not match with %d group(s): w must be (out, in/groups, kh, kw)",
                call, dt__text(x), dt__text(w), groups);
        return false;
    }
    shape[0] = x->shape[0];
    shape[1] = w->shape[0];
    for (int i = 0; i < 2; i++) {
        int64_t s = c->u.conv.stride[i], p = c->u.conv.pad[i], d = c->u.conv.dilation[i], k = w->shape[2 + i];
        if (s < 1 || p < 0 || d < 1 || k < 1) {
            dt_fail(DT_ERR_ARG, "%s: stride %d, pad %d, dilation %d, kernel %" PRId64 ": they must be at least 1, 0, 1, 1",
                    call, (int)s, (int)p, (int)d, k);
            return false;
        }
        int64_t room = x->shape[2 + i] + 2 * p - d * (k - 1) - 1;
        if (room < 0) {
            dt_fail(DT_ERR_SHAPE, "%s: the kernel of w %s is larger than the padded image of x %s; increase pad", call,
                    dt__text(w), dt__text(x));
            return false;
        }
        shape[2 + i] = room / s + 1;
    }
    return true;
}
DT_API dt_tensor *dt_op_conv2d_with(dt_tensor *x, dt_tensor *w, dt_tensor *b, dt_op_conv2d_opts o)
{
    const char *call = "dt_op_conv2d";
    int64_t     shape[4];
    dt_call     c;
    x = dt__in_half(x);
    w = dt__in_half(w);
    b = dt__in_half(b);
    if (!dt__image_ok(call, x) || !dt__ok(call, "w", w) || !dt__want_float(call, w) || !dt__same_device(call, x,
            w)) return NULL;
    if (!dt__act_ok(call, o.act, false)) return NULL;
    dt__call_begin(&c, DT_K_conv2d);
    int given[6] = { o.stride, o.pad, o.dilation, o.stride_w, o.pad_w, o.dilation_w };
    dt__conv_options(&c, given, o.groups);
    c.u.conv.act = o.act;
    if (!dt__conv_shape(call, x, w, &c, shape) || !dt__vector_ok(call, "b", x, b, w->shape[0])) return NULL;
    int        layout = dt__image_layout(x->st->dev, DT_K_conv2d, dt__promote(x, w));
    dt_tensor *xi = dt__in_layout(call, x, layout), *wd = xi ? dt__dense(call, w) : NULL;
    dt_tensor *bd = wd && b ? dt__dense(call, b) : NULL;
    dt_tensor *y = wd && (bd || !b) ? dt__new(call, x->st->dev, dt__promote(x, w), shape, 4, layout) : NULL;
    int        rc = y ? 0 : DT_ERR_MEMORY;
    if (!rc && y->numel) {
        dt__out(&c, y);
        dt__in(&c, xi);
        dt__in(&c, wd);
        dt__in(&c, bd);
        rc = dt__go(x->st->dev, &c);
    }
    dt_tensor *in[3] = { x, w, b };
    dt__node  *n = rc ? NULL : dt__record("conv2d", y, dt__conv_bwd, 3, in);
    if (n) {
        dt__save(n, xi);
        dt__save(n, wd);
        dt__save(n, o.act ? y : NULL);
        n->i[0] = o.act;
        memcpy(n->u, &c.u, sizeof c.u);
    }
    dt__unref(xi);
    dt__unref(wd);
    dt__unref(bd);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}

/* ---- transposed convolution: the gradient of a convolution by its image, with w (in, out/groups, kh, kw) as the weights of that
   convolution. Saved: x, w. */
static int dt__deconv_bwd(dt__node *n, dt_tensor *g)
{
    int        layout = dt__image_layout(g->st->dev, DT_K_conv2d, g->dtype);
    uint32_t   acc = 0;
    dt_tensor *gi = dt__in_layout("backward", g, layout), *x = gi ? dt__in_layout("backward", n->saved[0], layout) : NULL, *t = NULL;
    int        rc = x ? 0 : DT_ERR_MEMORY;
    dt_call    c;
    if (!rc && dt__needs_grad(n, 0)) {
        t = dt__new("backward", g->st->dev, n->in[0]->dtype, n->in[0]->shape, 4, layout); /* the kernel cannot add */
        dt__call_begin(&c, DT_K_conv2d);
        memcpy(&c.u, n->u, sizeof c.u);
        dt__out(&c, t);
        dt__in(&c, gi);
        dt__in(&c, n->saved[1]);
        rc = !t ? DT_ERR_MEMORY : t->numel ? dt__go(g->st->dev, &c) : 0;
        if (!rc) rc = dt__grad_put(n->in[0], t);
        dt__unref(t);
    }
    if (!rc && dt__needs_grad(n, 1)) {
        t = dt__grad_begin(n->in[1], DT_LAYOUT_PLAIN, &acc);
        dt__call_begin(&c, DT_K_conv2d_bwd_weight);
        memcpy(&c.u, n->u, sizeof c.u);
        dt__out(&c, t);
        dt__out(&c, NULL);
        dt__in(&c, x);
        dt__in(&c, gi);
        c.acc = acc;
        rc = !t ? DT_ERR_MEMORY : t->numel ? dt__go(g->st->dev, &c) : 0;
        rc = dt__grad_end(n->in[1], t) || rc;
    }
    if (!rc && dt__needs_grad(n, 2)) rc = dt__put_channel_sum(n->in[2], gi, 1);
    dt__unref(x);
    dt__unref(gi);
    return rc;
}
/* An .output_pad that is not smaller than the stride: no convolution has an image of this size. The whole image, cut, with zeros
   behind its end; then the bias. */
static dt_tensor *dt__deconv_cut(dt_tensor *x, dt_tensor *w, dt_tensor *b, dt_op_conv_transpose2d_opts o, const dt_call *c, const int64_t *shape)
{
    int64_t pads[4] = { 0, 0, 0, 0 };
    o.pad = o.output_pad = 0;
    o.pad_w = o.output_pad_w = DT_ZERO;
    dt_dtype   type = (dt_dtype)dt__promote(x, w); /* the sum is rounded once, at the end */
    dt_tensor *y = dt_op_conv_transpose2d_with(dt_cast(x, DT_F32), dt_cast(w, DT_F32), NULL, o);
    for (int i = 0; i < 2 && y; i++) {
        int64_t n = y->shape[2 + i] - c->u.conv.pad[i];
        if (n > shape[2 + i]) n = shape[2 + i];
        if (n < 0) n = 0;
        pads[1 + 2 * (1 - i)] = shape[2 + i] - n;
        y = dt_narrow(y, 2 + i, n ? c->u.conv.pad[i] : 0, n);
    }
    if (y && (pads[1] || pads[3])) y = dt_pad(y, pads, 4, 0);
    if (!y || !b) return y ? dt_cast(y, type) : NULL;
    dt_shape side;
    memset(&side, 0, sizeof side);
    side.ndim = 3;
    side.dim[0] = shape[1];
    side.dim[1] = side.dim[2] = 1;
    return dt_cast(dt_add(y, dt_reshape(dt_cast(b, DT_F32), side)), type);
}
DT_API dt_tensor *dt_op_conv_transpose2d_with(dt_tensor *x, dt_tensor *w, dt_tensor *b, dt_op_conv_transpose2d_opts o)
{
    const char *call = "dt_op_conv_transpose2d";
    int64_t     shape[4];
    dt_call     c;
    x = dt__in_half(x);
    w = dt__in_half(w);
    b = dt__in_half(b);
    if (!dt__image_ok(call, x) || !dt__ok(call, "w", w) || !dt__want_float(call, w) || !dt__same_device(call, x, w)) return NULL;
    dt__call_begin(&c, DT_K_conv2d_bwd_data);
    int given[6] = { o.stride, o.pad, o.dilation, o.stride_w, o.pad_w, o.dilation_w };
    dt__conv_options(&c, given, o.groups);
    int more[2] = { dt__option_or(o.output_pad, 0), 0 };
    more[1] = dt__option_or(o.output_pad_w, more[0]);
    if (w->ndim != 4 || w->shape[0] != x->shape[1] || c.u.conv.groups < 1 || x->shape[1] % c.u.conv.groups || w->shape[1] < 1) {
        dt_fail(DT_ERR_SHAPE, "%s: shapes x %s and w %s do not match with %d group(s): w must be (in, out/groups, kh, kw) and groups "
                "must divide in", call, dt__text(x), dt__text(w), c.u.conv.groups);
        return NULL;
    }
    shape[0] = x->shape[0];
    shape[1] = w->shape[1] * c.u.conv.groups;
    for (int i = 0; i < 2; i++) {
        int64_t s = c.u.conv.stride[i], p = c.u.conv.pad[i], d = c.u.conv.dilation[i], k = w->shape[2 + i], h = x->shape[2 + i];
        if (s < 1 || p < 0 || d < 1 || k < 1 || more[i] < 0 || (more[i] >= s && more[i] >= d)) {
            dt_fail(DT_ERR_ARG, "%s: stride %d, pad %d, dilation %d, kernel %" PRId64 ", output_pad %d: they must be at least 1, 0, 1, "
                    "1, 0, and output_pad smaller than stride or dilation", call, (int)s, (int)p, (int)d, k, more[i]);
            return NULL;
        }
        shape[2 + i] = (h - 1) * s - 2 * p + d * (k - 1) + more[i] + 1;
        if (h < 1 || shape[2 + i] < 1) {
            dt_fail(DT_ERR_SHAPE, "%s: x %s and w %s with stride %d, pad %d give an image of size %" PRId64 "; decrease pad", call,
                    dt__text(x), dt__text(w), (int)s, (int)p, shape[2 + i]);
            return NULL;
        }
    }
    if (!dt__vector_ok(call, "b", x, b, shape[1])) return NULL;
    if (more[0] >= c.u.conv.stride[0] || more[1] >= c.u.conv.stride[1]) return dt__deconv_cut(x, w, b, o, &c, shape);
    int        layout = dt__image_layout(x->st->dev, DT_K_conv2d, dt__promote(x, w));
    dt_tensor *xi = dt__in_layout(call, x, layout), *wd = xi ? dt__dense(call, w) : NULL;
    dt_tensor *y = wd ? dt__new(call, x->st->dev, dt__promote(x, w), shape, 4, layout) : NULL;
    int        rc = y ? 0 : DT_ERR_MEMORY;
    if (!rc && b && y->numel) { /* the kernel adds to the bias */
        dt_call start;
        dt__call_begin(&start, DT_K_copy);
        dt__out(&start, y);
        dt_view *v = dt__in(&start, b);
        v->stride[1] = b->stride[0];
        v->stride[0] = v->stride[2] = v->stride[3] = 0;
        memcpy(v->shape, shape, sizeof shape);
        v->ndim = 4;
        rc = dt__go(x->st->dev, &start);
    }
    if (!rc && y->numel) {
        dt__out(&c, y);
        dt__in(&c, xi);
        dt__in(&c, wd);
        c.acc = b != NULL;
        rc = dt__go(x->st->dev, &c);
    }
    dt_tensor *in[3] = { x, w, b };
    dt__node  *n = rc ? NULL : dt__record("conv_transpose2d", y, dt__deconv_bwd, 3, in);
    if (n) {
        dt__save(n, xi);
        dt__save(n, wd);
        memcpy(n->u, &c.u, sizeof c.u);
    }
    dt__unref(xi);
    dt__unref(wd);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}

/* ---- pooling */
static int dt__pool2d_bwd(dt__node *n, dt_tensor *g)
{
    int        layout = dt__image_layout(g->st->dev, DT_K_pool2d, g->dtype);
    uint32_t   acc = 0;
    dt_tensor *x = n->in[0], *gi = dt__in_layout("backward", g, layout), *t = gi ? dt__grad_begin(x, layout, &acc)
            : NULL;
    int        rc = t ? 0 : DT_ERR_MEMORY;
    if (!rc && x->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_pool2d_bwd);
        memcpy(&c.u, n->u, sizeof c.u);
        dt__out(&c, t);
        dt__in(&c, gi);
        dt__in(&c, n->nsaved ? n->saved[0] : NULL);
        c.acc = acc;
        rc = dt__go(x->st->dev, &c);
    }
    dt__unref(gi);
    return dt__grad_end(x, t) || rc;
}
static dt_tensor *dt__pool2d(const char *call, dt_tensor *x, dt_call *c, const int64_t *shape)
{
    int        layout = dt__image_layout(x->st->dev, DT_K_pool2d, x->dtype), max = c->u.pool.max;
    dt_tensor *xi = dt__in_layout(call, x, layout), *y = xi ? dt__new(call, x->st->dev, x->dtype, shape, 4, layout)
            : NULL;
    bool       small = (int64_t)c->u.pool.kernel[0] * c->u.pool.kernel[1] <= 256;
    dt_tensor *index = y && max ? dt__new(call, x->st->dev, small ? DT_U8 : DT_I32, shape, 4, layout) : NULL;
    int        rc = y && (index || !max) ? 0 : DT_ERR_MEMORY;
    if (!rc && y->numel) {
        dt__out(c, y);
        dt__out(c, index);
        dt__in(c, xi);
        rc = dt__go(x->st->dev, c);
    }
    dt__node *n = rc ? NULL : dt__record(call + 3, y, dt__pool2d_bwd, 1, &x);
    if (n) {
        if (max) dt__save(n, index);
        memcpy(n->u, &c->u, sizeof c->u);
    }
    dt__unref(xi);
    dt__unref(index);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
static dt_tensor *dt__pool_window(const char *call, dt_tensor *x, dt_pool_opts o, int max)
{
    int64_t shape[4];
    dt_call c;
    if (!dt__image_ok(call, x)) return NULL;
    dt__call_begin(&c, DT_K_pool2d);
    c.u.pool.max = max;
    c.u.pool.include_pad = !o.exclude_pad;
    c.u.pool.kernel[0] = o.kernel;
    c.u.pool.kernel[1] = dt__option_or(o.kernel_w, o.kernel);
    c.u.pool.stride[0] = dt__option_or(o.stride, o.kernel);
    c.u.pool.stride[1] = dt__option_or(o.stride_w, o.stride ? o.stride : c.u.pool.kernel[1]);
    c.u.pool.pad[0] = dt__option_or(o.pad, 0);
    c.u.pool.pad[1] = dt__option_or(o.pad_w, c.u.pool.pad[0]);
    shape[0] = x->shape[0];
    shape[1] = x->shape[1];
    for (int i = 0; i < 2; i++) {
        int64_t k = c.u.pool.kernel[i], s = c.u.pool.stride[i], p = c.u.pool.pad[i], h = x->shape[2 + i];
        if (k < 1 || s < 1 || p < 0 || p > k / 2 || h + 2 * p < k) {
            dt_fail(DT_ERR_ARG, "%s: kernel %d, stride %d, pad %d on %s: kernel and stride must be at least 1, pad at most "
                    "half the kernel, and the kernel must fit the padded image", call, (int)k, (int)s, (int)p, dt__text(x));
            return NULL;
        }
        int64_t room = h + 2 * p - k, n = (o.ceil_mode ? (room + s - 1) / s : room / s) + 1;
        if (o.ceil_mode && (n - 1) * s >= h + p) n--; /* the last window must begin inside the image or its left padding */
        shape[2 + i] = n;
    }
    return dt__pool2d(call, x, &c, shape);
}
DT_API dt_tensor *dt_maxpool2d_with(dt_tensor *x, dt_pool_opts o) { return dt__pool_window("dt_maxpool2d", x, o, 1); }
DT_API dt_tensor *dt_avgpool2d_with(dt_tensor *x, dt_pool_opts o) { return dt__pool_window("dt_avgpool2d", x, o, 0); }
DT_API dt_tensor *dt_adaptive_avgpool2d(dt_tensor *x, int64_t out_h, int64_t out_w)
{
    dt_call c;
    if (!dt__image_ok("dt_adaptive_avgpool2d", x)) return NULL;
    if (out_h < 1 || out_w < 1 || x->shape[2] < 1 || x->shape[3] < 1) {
        dt_fail(DT_ERR_ARG, "dt_adaptive_avgpool2d: from %s to %" PRId64 " x %" PRId64 ": all sizes must be at least 1",
                dt__text(x), out_h, out_w);
        return NULL;
    }
    int64_t shape[4] = { x->shape[0], x->shape[1], out_h, out_w };
    if (out_h == 1 && out_w == 1 && x->layout == DT_LAYOUT_PLAIN) { /* the mean of each image, without a change of layout */
        dt_reduce_opts o;
        DT__CLEAR(o);
        o.dims = DT_DIM(2) | DT_DIM(3);
        o.keepdim = true;
        return dt__reduce("dt_adaptive_avgpool2d", DT_R_MEAN, x, o);
    }
    dt__call_begin(&c, DT_K_pool2d);
    c.u.pool.adaptive = 1;
    return dt__pool2d("dt_adaptive_avgpool2d", x, &c, shape);
}

/* ---- batch norm. Saved tensors: x (in the image layout), weight, mean, rstd, y (with relu). n->user: the dt__norm_sync of
   training over several ranks, or NULL. n->i[0]: values per channel over all ranks; 0 without dt__norm_sync. */
/* Computes the sums (2c) of dy and of dy xhat on this rank, and from them dweight and dbias. *all: the sums over all
   ranks, if dx is needed; otherwise those of this rank. */
static int dt__batch_norm_sums(dt__node *n, dt_tensor *g, dt_tensor *x, dt_tensor *y, dt_tensor **t,
                               const uint32_t *acc, dt_tensor **all)
{
    dt__norm_sync *sync = (dt__norm_sync *)n->user;
    int64_t        ch = n->saved[2]->numel, two = 2 * ch;
    dt_tensor     *sums = dt__new("backward", g->st->dev, DT_F32, &two, 1, DT_LAYOUT_PLAIN);
    int            rc = sums ? dt__fill(sums, 0) : DT_ERR_MEMORY;
    dt_tensor     *of_dy = rc ? NULL : dt__slice(sums, 0, 0, ch), *of_xhat = rc ? NULL : dt__slice(sums, 0, ch, ch);
    if (!of_dy || !of_xhat) rc = DT_ERR_MEMORY;
    if (!rc && g->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_batch_norm_bwd);
        memcpy(&c.u, n->u, sizeof c.u);
        c.u.norm.train = 0;
        dt__out(&c, NULL);
        dt__out(&c, of_xhat);
        dt__out(&c, of_dy);
        dt__in(&c, g);
        dt__in(&c, x);
        for (int i = 1; i < 4; i++) dt__in(&c, n->saved[i]);
        dt__in(&c, y);
        rc = dt__go(g->st->dev, &c);
    }
    if (!rc && t[1]) rc = dt__copy_to(t[1], of_xhat, (int)acc[1]);
    if (!rc && t[2]) rc = dt__copy_to(t[2], of_dy, (int)acc[2]);
    dt__unref(of_dy);
    dt__unref(of_xhat);
    if (!rc && t[0] && !sync)
        rc = dt_fail(DT_ERR_STATE, "dt_backward: dt_ddp_free was called before the backward of a synchronised batch norm; "
                     "call it after the last backward");
    if (!rc && t[0]) rc = sync->sums(sync->user, sums);
    *all = rc ? NULL : sums;
    if (rc) dt__unref(sums);
    return rc;
}
static int dt__batch_norm_bwd(dt__node *n, dt_tensor *g)
{
    int        layout = n->i[1] ? (int)DT_LAYOUT_PLAIN : dt__image_layout(g->st->dev, DT_K_batch_norm, g->dtype);
    dt_tensor *gi = dt__in_layout("backward", g, layout), *t[4] = { NULL, NULL, NULL, NULL }; /* x, weight, bias, add */
    dt_tensor *x = gi ? dt__in_layout("backward", n->saved[0], layout) : NULL; /* a view may have converted it to plain */
    dt_tensor *y = x && n->saved[4] ? dt__in_layout("backward", n->saved[4], layout) : NULL;
    uint32_t   acc[4] = { 0, 0, 0, 0 };
    int        rc = x && (y || !n->saved[4]) ? 0 : DT_ERR_MEMORY, synced = n->i[0] > 0;
    dt_tensor *unwanted = NULL, *sums = NULL;
    for (int k = 0; k < 4 && !rc; k++)
        if (dt__needs_grad(n, k)) {
            t[k] = dt__grad_begin(n->in[k], k == 0 || k == 3 ? layout : DT_LAYOUT_PLAIN, &acc[k]);
            if (!t[k]) rc = DT_ERR_MEMORY;
        }
    if (!rc && synced) rc = dt__batch_norm_sums(n, gi, x, y, t, acc, &sums);
    if (!rc && !t[0]) { /* the kernel always computes dx */
        unwanted = dt__new_like("backward", n->saved[0], DT_F32);
        if (!unwanted) rc = DT_ERR_MEMORY;
    }
    if (!rc && g->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_batch_norm_bwd);
        memcpy(&c.u, n->u, sizeof c.u);
        if (synced) c.u.norm.train = t[0] != NULL;
        for (int k = 0; k < 4; k++) dt__out(&c, k == 0 && !t[0] ? unwanted : synced && (k == 1 || k == 2) ? NULL : t[k]);
        dt__in(&c, gi);
        dt__in(&c, x);
        for (int i = 1; i < 4; i++) dt__in(&c, n->saved[i]);
        dt__in(&c, y);
        dt__in(&c, sums);
        for (int k = 0; k < 4; k++) c.acc |= acc[k] << k;
        rc = dt__go(g->st->dev, &c);
    } else if (!synced) {
        for (int k = 1; k < 3 && !rc; k++)
            if (t[k] && !acc[k]) rc = dt__fill(t[k], 0);
    }
    for (int k = 0; k < 4; k++)
        if (t[k]) rc = dt__grad_end(n->in[k], t[k]) || rc;
    dt__unref(unwanted);
    dt__unref(sums);
    dt__unref(x);
    dt__unref(y);
    dt__unref(gi);
    return rc;
}
/* Computes mean and biased variance over all ranks. Returns the number of values per channel, or a negative status. */
static int64_t dt__batch_norm_stats(dt__norm_sync *sync, dt_tensor *x, dt_tensor *mean, dt_tensor *var, dt_tensor *rm,
                                    dt_tensor *rv, double momentum)
{
    dt_call c;
    int     rc = 0;
    if (x->numel) {
        dt__call_begin(&c, DT_K_batch_norm);
        c.u.norm.train = 1;
        dt__out(&c, NULL);
        dt__out(&c, mean);
        dt__out(&c, var);
        dt__in(&c, x);
        rc = dt__go(x->st->dev, &c);
    }
    return rc ? rc : sync->stats(sync->user, mean, var, x->shape[0] * x->shape[2] * x->shape[3], rm, rv, momentum);
}
/* Is x computed as it is, because a conversion to the layout of images would take longer than the kernel? */
static bool dt__batch_norm_plain(const dt_tensor *x, bool given)
{
    return given && x->layout == DT_LAYOUT_PLAIN && x->shape[2] * x->shape[3] >= 16 && dt__extended(x->st->dev, DT_K_batch_norm);
}
static dt_tensor *dt__batch_norm4(const char *call, dt_tensor *x, dt_tensor *weight, dt_tensor *bias, dt_tensor *rm,
                                  dt_tensor *rv, dt_op_batch_norm_opts o, dt__norm_sync *sync)
{
    int64_t    total = 0;
    bool       plain = dt__batch_norm_plain(x, o.eval && rm && rv && !sync);
    int        layout = plain ? (int)DT_LAYOUT_PLAIN : dt__image_layout(x->st->dev, DT_K_batch_norm, x->dtype);
    int64_t    channels = x->shape[1];
    dt_tensor *xi = dt__in_layout(call, x, layout), *add = xi && o.add ? dt__in_layout(call, o.add, layout) : NULL;
    dt_tensor *y = xi && (add || !o.add) ? dt__new_like(call, xi, x->dtype) : NULL;
    dt_tensor *mean = y ? dt__new(call, x->st->dev, DT_F32, &channels, 1, DT_LAYOUT_PLAIN) : NULL;
    dt_tensor *rstd = mean ? dt__new(call, x->st->dev, DT_F32, &channels, 1, DT_LAYOUT_PLAIN) : NULL;
    dt_tensor *var = rstd && sync ? dt__new(call, x->st->dev, DT_F32, &channels, 1, DT_LAYOUT_PLAIN) : NULL;
    int        rc = rstd && (var || !sync) ? 0 : DT_ERR_MEMORY;
    if (!rc && sync) total = dt__batch_norm_stats(sync, xi, mean, var, rm, rv, o.momentum);
    if (total < 0) rc = (int)total;
    /* with statistics over all ranks the kernel runs in eval mode: it takes the statistics as inputs */
    dt_tensor *given[4] = { weight, bias, sync ? mean : rm, sync ? var : rv }, *v[4] = { NULL, NULL, NULL, NULL };
    int        local = !o.eval && !sync;
    dt_call    c;
    for (int i = 0; i < 4 && !rc; i++) {
        v[i] = given[i] ? dt__dense(call, given[i]) : NULL;
        if (given[i] && !v[i]) rc = DT_ERR_MEMORY;
    }
    dt__call_begin(&c, DT_K_batch_norm);
    c.u.norm.eps = o.eps;
    c.u.norm.momentum = o.momentum;
    c.u.norm.train = local;
    c.u.norm.act = o.act;
    if (!rc && y->numel) {
        dt__out(&c, y);
        dt__out(&c, mean);
        dt__out(&c, rstd);
        dt__out(&c, local ? rm : NULL);
        dt__out(&c, local ? rv : NULL);
        dt__in(&c, xi);
        for (int i = 0; i < 4; i++) dt__in(&c, v[i]);
        dt__in(&c, add);
        rc = dt__go(x->st->dev, &c);
    }
    if (!rc && !o.eval && (y->numel || total)) {
        if (rm) __atomic_add_fetch(&rm->st->version, 1, __ATOMIC_RELAXED);
        if (rv) __atomic_add_fetch(&rv->st->version, 1, __ATOMIC_RELAXED);
    }
    c.u.norm.train = !o.eval;
    c.u.norm.n = total;
    dt_tensor *in[4] = { x, weight, bias, o.add };
    dt__node  *n = rc ? NULL : dt__record("batch_norm", y, dt__batch_norm_bwd, 4, in);
    if (n) {
        dt__save(n, xi);
        dt__save(n, v[0]);
        dt__save(n, mean);
        dt__save(n, rstd);
        dt__save(n, o.act ? y : NULL);
        memcpy(n->u, &c.u, sizeof c.u);
        n->i[0] = total;
        n->i[1] = plain;
        n->user = sync;
    }
    for (int i = 0; i < 4; i++) dt__unref(v[i]);
    dt__unref(xi);
    dt__unref(add);
    dt__unref(mean);
    dt__unref(rstd);
    dt__unref(var);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
/* sync: train with the statistics over all ranks; NULL: with those of this rank */
DT__INSIDE dt_tensor *dt__batch_norm(dt_tensor *x, dt_tensor *weight, dt_tensor *bias, dt_tensor *running_mean,
                                 dt_tensor *running_var, dt_op_batch_norm_opts o, dt__norm_sync *sync)
{
    const char *call = "dt_op_batch_norm";
    if (!dt__ok(call, "x", x) || !dt__want_float(call, x) || !dt__act_ok(call, o.act, true)) return NULL;
    if (x->ndim < 2 || x->ndim > 5) {
        dt_fail(DT_ERR_SHAPE, "%s: x is %s; it must be (n, c), (n, c, l), (n, c, h, w) or (n, c, d, h, w)", call, dt__text(x));
        return NULL;
    }
    int64_t ch = x->shape[1];
    if (!dt__vector_ok(call, "weight", x, weight, ch) || !dt__vector_ok(call, "bias", x, bias, ch) ||
        !dt__vector_ok(call, "running_mean", x, running_mean, ch) || !dt__vector_ok(call, "running_var", x,
                running_var, ch))
        return NULL;
    if (o.eval && (!running_mean || !running_var)) {
        dt_fail(DT_ERR_ARG, "%s: .eval needs running_mean and running_var, but one is NULL; without .eval the statistics "
                "of the batch are used", call);
        return NULL;
    }
    if (!o.eval && ((running_mean && !dt__is_dense(running_mean)) || (running_var && !dt__is_dense(running_var)))) {
        dt_fail(DT_ERR_ARG, "%s: running_mean or running_var is not contiguous; they are updated in place and must be",
                call);
        return NULL;
    }
    if (!dt__number_or(call, ".eps", &o.eps, 1e-5, 0) || !dt__number_or(call, ".momentum", &o.momentum, 0.1, 0)) return NULL;
    if (!o.eval && o.eps == 0) {
        dt_fail(DT_ERR_ARG, "%s: .eps is 0; training needs a positive one, since the variance of a batch may be 0", call);
        return NULL;
    }
    if (!o.eval && !sync && ch && x->numel / ch < 2 && x->numel) {
        dt_fail(DT_ERR_SHAPE, "%s: x %s has one value per channel; training needs at least 2 (or pass .eval)", call,
                dt__text(x));
        return NULL;
    }
    if (o.add) {
        if (!dt__ok(call, "add", o.add) || !dt__same_device(call, x, o.add) || !dt__want_float(call,
                o.add)) return NULL;
        dt_shape s = dt_shape_of(x);
        if (!dt__same_shape(o.add, &s)) {
            dt_fail(DT_ERR_SHAPE, "%s: add is %s; it must have x's shape %s", call, dt__text(o.add), dt__text(x));
            return NULL;
        }
    }
    if (x->ndim == 4) return dt__batch_norm4(call, x, weight, bias, running_mean, running_var, o, sync);
    dt_shape s = dt_shape_of(x), four = s;
    four.ndim = 4;
    for (int i = x->ndim; i < 4; i++) four.dim[i] = 1;
    if (x->ndim == 5) { /* d and h as one dimension */
        four.dim[2] = s.dim[2] * s.dim[3];
        four.dim[3] = s.dim[4];
    }
    dt_tensor *x4 = dt_reshape(x, four);
    if (o.add) o.add = dt_reshape(o.add, four);
    dt_tensor *y = x4 && dt__err.code == DT_OK
                       ? dt__batch_norm4(call, x4, weight, bias, running_mean, running_var, o, sync)
                       : NULL;
    return y ? dt_reshape(y, s) : NULL;
}
DT_API dt_tensor *dt_op_batch_norm_with(dt_tensor *x, dt_tensor *weight, dt_tensor *bias, dt_tensor *running_mean,
                                        dt_tensor *running_var, dt_op_batch_norm_opts o)
{
    return dt__batch_norm(x, weight, bias, running_mean, running_var, o, NULL);
}

/* ==================================================================================================== >>norms
   Layer norm and RMS norm. The normalised last dimensions form the columns of a matrix, the others its rows. Saved
   tensors: x, weight, mean, rstd. */
static int dt__layer_norm_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *d = dt__dense("backward", g), *t[3] = { NULL, NULL, NULL };
    uint32_t   acc[3] = { 0, 0, 0 };
    int        rc = d ? 0 : DT_ERR_MEMORY;
    dt_tensor *unwanted = NULL;
    for (int k = 0; k < 3 && !rc; k++)
        if (k < n->nin && dt__needs_grad(n, k)) {
            t[k] = dt__grad_begin(n->in[k], DT_LAYOUT_PLAIN, &acc[k]);
            if (!t[k]) rc = DT_ERR_MEMORY;
        }
    if (!rc && !t[0]) {
        unwanted = dt__new_like("backward", n->saved[0], DT_F32);
        if (!unwanted) rc = DT_ERR_MEMORY;
    }
    int64_t rows = n->i[0], cols = n->i[1];
    if (!rc && g->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_layer_norm_bwd);
        memcpy(&c.u, n->u, sizeof c.u);
        dt__view_dense(dt__out(&c, t[0] ? t[0] : unwanted), 2, rows, cols, 0);
        for (int k = 1; k < 3; k++) {
            dt_view *v = dt__out(&c, t[k]);
            if (t[k]) dt__view_dense(v, 1, t[k]->numel, 0, 0);
        }
        dt__view_dense(dt__in(&c, d), 2, rows, cols, 0);
        dt__view_dense(dt__in(&c, n->saved[0]), 2, rows, cols, 0);
        dt_view *w = dt__in(&c, n->saved[1]);
        if (n->saved[1]) dt__view_dense(w, 1, n->saved[1]->numel, 0, 0);
        dt__in(&c, n->saved[2]);
        dt__in(&c, n->saved[3]);
        for (int k = 0; k < 3; k++) c.acc |= acc[k] << k;
        rc = dt__go(g->st->dev, &c);
    } else {
        for (int k = 1; k < 3 && !rc; k++)
            if (t[k] && !acc[k]) rc = dt__fill(t[k], 0);
    }
    for (int k = 0; k < 3; k++)
        if (t[k]) rc = dt__grad_end(n->in[k], t[k]) || rc;
    dt__unref(unwanted);
    dt__unref(d);
    return rc;
}
static bool dt__norm_param_ok(const char *call, const char *arg, const dt_tensor *x, const dt_tensor *w, int dims)
{
    if (!w) return dt__err.code == DT_OK;
    if (!dt__ok(call, arg, w) || !dt__same_device(call, x, w) || !dt__want_float(call, w)) return false;
    bool fits = w->ndim == dims;
    for (int i = 0; fits && i < dims; i++) fits = w->shape[i] == x->shape[x->ndim - dims + i];
    if (fits) return true;
    dt_fail(DT_ERR_SHAPE, "%s: %s is %s; it must have the last %d dimension(s) of x %s", call, arg, dt__text(w), dims,
            dt__text(x));
    return false;
}
/* groups > 0: group norm over that many groups of channels of x (n, c, ...), with weight and bias (c) */
static dt_tensor *dt__layer_norm(const char *call, dt_tensor *x, dt_tensor *weight, dt_tensor *bias, dt_op_norm_opts o,
                                 int rms, int64_t groups)
{
    int dims = o.normalized_dims ? o.normalized_dims : 1;
    if (!dt__ok(call, "x", x) || !dt__want_float(call, x)) return NULL;
    if (!dt__number_or(call, ".eps", &o.eps, rms ? 1.1920928955078125e-7 : 1e-5, 0)) return NULL;
    if (dims < 1 || dims > x->ndim) {
        dt_fail(DT_ERR_ARG, "%s: normalized_dims is %d; for x %s it must be between 1 and %d", call, dims, dt__text(x),
                x->ndim);
        return NULL;
    }
    if (!groups && (!dt__norm_param_ok(call, "weight", x, weight, dims) || !dt__norm_param_ok(call, "bias", x, bias, dims)))
        return NULL;
    int64_t rows = 1, cols = 1;
    for (int i = 0; i < x->ndim; i++) *(i < x->ndim - dims ? &rows : &cols) *= x->shape[i];
    if (groups) {
        rows = x->shape[0] * groups;
        cols = rows ? x->numel / rows : 0;
    }
    dt_tensor *d = dt__dense(call, x), *y = d ? dt__new(call, x->st->dev, x->dtype, x->shape, x->ndim,
                                                        DT_LAYOUT_PLAIN) : NULL;
    dt_tensor *wd = y && weight ? dt__dense(call, weight) : NULL, *bd = y && bias ? dt__dense(call, bias) : NULL;
    dt_tensor *mean = y && !rms ? dt__new(call, x->st->dev, DT_F32, &rows, 1, DT_LAYOUT_PLAIN) : NULL;
    dt_tensor *rstd = y ? dt__new(call, x->st->dev, DT_F32, &rows, 1, DT_LAYOUT_PLAIN) : NULL;
    int        rc = dt__err.code;
    dt_call    c;
    dt__call_begin(&c, DT_K_layer_norm);
    c.u.norm.rms = rms;
    c.u.norm.eps = o.eps;
    c.u.norm.n = groups ? x->shape[1] / groups : 0;
    if (!rc && x->numel) {
        dt__view_dense(dt__out(&c, y), 2, rows, cols, 0);
        dt__out(&c, mean);
        dt__out(&c, rstd);
        dt__view_dense(dt__in(&c, d), 2, rows, cols, 0);
        dt_view *v = dt__in(&c, wd);
        if (wd) dt__view_dense(v, 1, wd->numel, 0, 0);
        v = dt__in(&c, bd);
        if (bd) dt__view_dense(v, 1, bd->numel, 0, 0);
        rc = dt__go(x->st->dev, &c);
    }
    dt_tensor *in[3] = { x, weight, bias };
    dt__node  *n = rc ? NULL : dt__record(groups ? "group_norm" : rms ? "rms_norm" : "layer_norm", y, dt__layer_norm_bwd, 3, in);
    if (n) {
        dt__save(n, d);
        dt__save(n, wd);
        dt__save(n, mean);
        dt__save(n, rstd);
        n->i[0] = rows;
        n->i[1] = cols;
        memcpy(n->u, &c.u, sizeof c.u);
    }
    dt__unref(d);
    dt__unref(wd);
    dt__unref(bd);
    dt__unref(mean);
    dt__unref(rstd);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
DT_API dt_tensor *dt_op_layer_norm_with(dt_tensor *x, dt_tensor *weight, dt_tensor *bias, dt_op_norm_opts o)
{
    return dt__layer_norm("dt_op_layer_norm", dt__in_f32(x), weight, bias, o, 0, 0);
}
DT__INSIDE dt_tensor *dt__group_norm(dt_tensor *x, dt_tensor *weight, dt_tensor *bias, int64_t groups, double eps)
{
    dt_op_norm_opts o;
    DT__CLEAR(o);
    o.eps = eps;
    return dt__layer_norm("dt_groupnorm", dt__in_f32(x), weight, bias, o, 0, groups);
}
DT_API dt_tensor *dt_op_rms_norm_with(dt_tensor *x, dt_tensor *weight, dt_op_norm_opts o)
{
    return dt__layer_norm("dt_op_rms_norm", dt__in_f32(x), weight, NULL, o, 1, 0);
}

/* ==================================================================================================== >>indexing */
DT__INSIDE bool dt__index_ok(const char *call, const dt_tensor *index, const dt_tensor *x)
{
    if (!dt__ok(call, "index", index) || !dt__same_device(call, index, x)) return false;
    if (index->dtype == DT_I64 || index->dtype == DT_I32) return true;
    dt_fail(DT_ERR_DTYPE, "%s: index is %s; it must be i64 or i32", call, dt_dtype_name((dt_dtype)index->dtype));
    return false;
}
static int dt__embedding_bwd(dt__node *n, dt_tensor *g)
{
    uint32_t   acc = 0;
    dt_tensor *w = n->in[0], *d = dt__dense("backward", g), *t = d ? dt__grad_begin(w, DT_LAYOUT_PLAIN, &acc) : NULL;
    int        rc = t ? 0 : DT_ERR_MEMORY;
    if (!rc && w->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_embedding_bwd);
        dt__out(&c, t);
        dt__view_dense(dt__in(&c, d), 2, n->saved[0]->numel, w->shape[1], 0);
        dt__view_dense(dt__in(&c, n->saved[0]), 1, n->saved[0]->numel, 0, 0);
        c.acc = acc;
        rc = dt__go(w->st->dev, &c);
    }
    dt__unref(d);
    return dt__grad_end(w, t) || rc;
}
DT_API dt_tensor *dt_op_embedding(dt_tensor *index, dt_tensor *weight)
{
    const char *call = "dt_op_embedding";
    if (!dt__ok(call, "weight", weight) || !dt__index_ok(call, index, weight)) return NULL;
    if (weight->ndim != 2 || index->ndim >= DT_MAX_DIMS) {
        dt_fail(DT_ERR_SHAPE,
                "%s: weight is %s and index is %s; weight must be 2-d, and index may have at most %d dimensions", call,
                dt__text(weight), dt__text(index), DT_MAX_DIMS - 1);
        return NULL;
    }
    int64_t shape[DT_MAX_DIMS];
    for (int i = 0; i < index->ndim; i++) shape[i] = index->shape[i];
    shape[index->ndim] = weight->shape[1];
    dt_tensor *id = dt__dense(call, index), *w = id ? dt__dense(call, weight) : NULL;
    dt_tensor *y = w ? dt__new(call, weight->st->dev, weight->dtype, shape, index->ndim + 1, DT_LAYOUT_PLAIN) : NULL;
    int        rc = y ? 0 : DT_ERR_MEMORY;
    if (!rc && y->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_embedding);
        dt__view_dense(dt__out(&c, y), 2, id->numel, w->shape[1], 0);
        dt__view_dense(dt__in(&c, id), 1, id->numel, 0, 0);
        dt__in(&c, w);
        rc = dt__go(w->st->dev, &c);
    }
    dt__node *n = rc ? NULL : dt__record("embedding", y, dt__embedding_bwd, 1, &weight);
    if (n) dt__save(n, id);
    dt__unref(id);
    dt__unref(w);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
/* gather: the kernel views x and index as (outer, n, inner), so their shapes must be equal outside dim. As in torch.gather
   the index may be smaller there; x is then narrowed first. */
static int dt__gather_bwd(dt__node *n, dt_tensor *g)
{
    uint32_t   acc = 0;
    dt_tensor *x = n->in[0], *id = n->saved[0], *d = dt__dense("backward", g);
    dt_tensor *t = d ? dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc) : NULL;
    int        rc = t ? 0 : DT_ERR_MEMORY;
    if (!rc && x->numel) {
        int64_t outer, inner;
        dt_call c;
        dt__split_dims(x, (int)n->i[0], &outer, &inner);
        dt__call_begin(&c, DT_K_gather_bwd);
        dt__view_dense(dt__out(&c, t), 3, outer, x->shape[n->i[0]], inner);
        dt__view_dense(dt__in(&c, d), 3, outer, id->shape[n->i[0]], inner);
        dt__view_dense(dt__in(&c, id), 3, outer, id->shape[n->i[0]], inner);
        c.acc = acc;
        rc = dt__go(x->st->dev, &c);
    }
    dt__unref(d);
    return dt__grad_end(x, t) || rc;
}
DT_API dt_tensor *dt_gather(dt_tensor *a, int dim, dt_tensor *index)
{
    const char *call = "dt_gather";
    if (!dt__ok(call, "a", a) || !dt__index_ok(call, index, a) || !dt__dim_ok(call, &dim, a->ndim)) return NULL;
    bool fits = a->ndim == index->ndim;
    for (int i = 0; fits && i < a->ndim; i++) fits = i == dim || index->shape[i] <= a->shape[i];
    if (!fits) {
        dt_fail(DT_ERR_SHAPE, "%s: index %s must have as many dimensions as a %s, and none may be larger except dimension %d",
                call, dt__text(index), dt__text(a), dim);
        return NULL;
    }
    dt_tensor *x = a;
    for (int i = 0; i < a->ndim && x; i++)
        if (i != dim && index->shape[i] < x->shape[i]) x = dt_narrow(x, i, 0, index->shape[i]);
    dt_tensor *d = x ? dt__dense(call, x) : NULL, *id = d ? dt__dense(call, index) : NULL;
    dt_tensor *y = id ? dt__new(call, a->st->dev, a->dtype, index->shape, index->ndim, DT_LAYOUT_PLAIN) : NULL;
    int        rc = y ? 0 : DT_ERR_MEMORY;
    if (!rc && y->numel) {
        int64_t outer, inner;
        dt_call c;
        dt__split_dims(x, dim, &outer, &inner);
        dt__call_begin(&c, DT_K_gather);
        dt__view_dense(dt__out(&c, y), 3, outer, index->shape[dim], inner);
        dt__view_dense(dt__in(&c, d), 3, outer, x->shape[dim], inner);
        dt__view_dense(dt__in(&c, id), 3, outer, index->shape[dim], inner);
        rc = dt__go(a->st->dev, &c);
    }
    dt__node *n = rc ? NULL : dt__record("gather", y, dt__gather_bwd, 1, &x);
    if (n) {
        dt__save(n, id);
        n->i[0] = dim;
    }
    dt__unref(d);
    dt__unref(id);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}

/* ==================================================================================================== >>joining */
static int dt__cat_bwd(dt__node *n, dt_tensor *g)
{
    int64_t at = 0;
    int     rc = 0, dim = (int)n->i[0];
    for (int k = 0; k < n->nin && !rc; k++) {
        int64_t len = n->in[k]->shape[dim];
        if (dt__needs_grad(n, k)) {
            dt_tensor *s = dt__slice(g, dim, at, len);
            rc = s ? dt__put_owned(n->in[k], s) : DT_ERR_MEMORY;
        }
        at += len;
    }
    return rc;
}
static bool dt__list_ok(const char *call, dt_tensor **t, int n)
{
    if (dt__err.code != DT_OK) return false;
    if (!t || n < 1) {
        dt_fail(DT_ERR_ARG, "%s: the list is NULL or empty; it needs at least one tensor", call);
        return false;
    }
    for (int i = 0; i < n; i++)
        if (!dt__ok(call, "a tensor of the list", t[i]) || !dt__same_device(call, t[0], t[i])) return false;
    return true;
}
DT_API dt_tensor *dt_cat(dt_tensor **t, int n, int dim)
{
    if (!dt__list_ok("dt_cat", t, n) || !dt__dim_ok("dt_cat", &dim, t[0]->ndim)) return NULL;
    int64_t shape[DT_MAX_DIMS], total = 0;
    int     dtype = t[0]->dtype;
    for (int i = 0; i < n; i++) {
        bool fits = t[i]->ndim == t[0]->ndim;
        for (int k = 0; fits && k < t[0]->ndim; k++) fits = k == dim || t[i]->shape[k] == t[0]->shape[k];
        if (!fits) {
            dt_fail(DT_ERR_SHAPE, "dt_cat: tensor %d is %s, the first is %s; they may differ in dimension %d only", i,
                    dt__text(t[i]), dt__text(t[0]), dim);
            return NULL;
        }
        if (t[i]->dtype != dtype) {
            dt_tensor probe = *t[i];
            probe.dtype = dtype;
            dtype = dt__promote(&probe, t[i]);
        }
        total += t[i]->shape[dim];
    }
    memcpy(shape, t[0]->shape, sizeof shape);
    shape[dim] = total;
    dt_tensor *y = dt__new("dt_cat", t[0]->st->dev, dtype, shape, t[0]->ndim, DT_LAYOUT_PLAIN);
    int        rc = y ? 0 : DT_ERR_MEMORY;
    int64_t    at = 0;
    for (int i = 0; i < n && !rc; i++) {
        dt_tensor *s = dt__slice(y, dim, at, t[i]->shape[dim]);
        rc = s ? dt__copy_to(s, t[i], 0) : DT_ERR_MEMORY;
        dt__unref(s);
        at += t[i]->shape[dim];
    }
    dt__node *node = rc ? NULL : dt__record("cat", y, dt__cat_bwd, n, t);
    if (node) node->i[0] = dim;
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
DT_API dt_tensor *dt_stack(dt_tensor **t, int n, int dim)
{
    if (!dt__list_ok("dt_stack", t, n) || !dt__dim_ok("dt_stack", &dim, t[0]->ndim + 1)) return NULL;
    dt_tensor **u = (dt_tensor **)dt_mem_alloc((size_t)n * sizeof *u);
    if (!u) {
        dt_fail(DT_ERR_MEMORY, "dt_stack: out of memory");
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        dt_shape s = dt_shape_of(t[0]);
        if (!dt__same_shape(t[i], &s))
            dt_fail(DT_ERR_SHAPE, "dt_stack: tensor %d is %s, the first is %s; all shapes must be equal", i, dt__text(t[i]),
                    dt__text(t[0]));
        u[i] = dt_unsqueeze(t[i], dim);
    }
    dt_tensor *y = dt_cat(u, n, dim);
    dt_mem_free(u, (size_t)n * sizeof *u);
    return y;
}
DT_API int dt_split(dt_tensor *a, int64_t size, int dim, dt_tensor **out, int max)
{
    if (!dt__ok("dt_split", "a", a) || !dt__dim_ok("dt_split", &dim, a->ndim)) return dt_error_code();
    if (size < 1 || !out) return dt_fail(DT_ERR_ARG,
                                         "dt_split: size is less than 1 or out is NULL (size is %" PRId64 ")", size);
    int64_t have = a->shape[dim], n = have ? (have + size - 1) / size : 1;
    if (n > max) return dt_fail(DT_ERR_ARG, "dt_split: %s makes %" PRId64 " parts, but out has room for %d (max)",
                                dt__text(a), n, max);
    for (int64_t i = 0; i < n; i++) {
        int64_t len = have - i * size < size ? have - i * size : size;
        out[i] = dt_narrow(a, dim, i * size, len);
    }
    return dt__err.code == DT_OK ? (int)n : (int)dt__err.code;
}
static int dt__pad_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *x = n->in[0], *s = dt__alias(g);
    if (!s) return DT_ERR_MEMORY;
    s->layout = DT_LAYOUT_PLAIN;
    s->numel = x->numel;
    for (int i = 0; i < x->ndim; i++) {
        s->offset += n->i[i] * s->stride[i];
        s->shape[i] = x->shape[i];
    }
    return dt__put_owned(x, s);
}
DT_API dt_tensor *dt_pad(dt_tensor *a, const int64_t *pads, int npads, double value)
{
    if (!dt__ok("dt_pad", "a", a)) return NULL;
    if (npads < 0 || npads % 2 || npads / 2 > a->ndim || (npads && !pads)) {
        dt_fail(DT_ERR_ARG, "dt_pad: %d pads for %s; expected an even number, 2 per dimension and at most %d", npads,
                dt__text(a), 2 * a->ndim);
        return NULL;
    }
    int64_t shape[DT_MAX_DIMS], before[DT_MAX_DIMS] = { 0 };
    memcpy(shape, a->shape, sizeof shape);
    for (int k = 0; k < npads / 2; k++) {
        int i = a->ndim - 1 - k;
        int64_t p = pads[2 * k], q = pads[2 * k + 1], cut = (p < 0 ? -(p + 1) + 1 : 0), end = (q < 0 ? -(q + 1) + 1 : 0);
        if (p > INT64_MAX / 4 || q > INT64_MAX / 4 || p < -INT64_MAX / 4 || q < -INT64_MAX / 4 || cut + end > shape[i]) {
            dt_fail(DT_ERR_ARG, "dt_pad: pads of dimension %d are %" PRId64 " and %" PRId64 ", its size is %" PRId64 "; negative pads "
                    "cut at most the whole dimension", i, p, q, shape[i]);
            return NULL;
        }
        if (cut || end) a = dt_narrow(a, i, cut, shape[i] - cut - end);
        if (!a) return NULL;
        before[i] = p > 0 ? p : 0;
        shape[i] += p + q;
    }
    dt_tensor *y = dt__new("dt_pad", a->st->dev, a->dtype, shape, a->ndim, DT_LAYOUT_PLAIN);
    dt_tensor *s = y ? dt__alias(y) : NULL;
    int        rc = s ? dt__fill(y, value) : DT_ERR_MEMORY;
    if (!rc) {
        s->numel = a->numel;
        for (int i = 0; i < a->ndim; i++) {
            s->offset += before[i] * s->stride[i];
            s->shape[i] = a->shape[i];
        }
        rc = dt__copy_to(s, a, 0);
    }
    dt__unref(s);
    dt__node *n = rc ? NULL : dt__record("pad", y, dt__pad_bwd, 1, &a);
    for (int i = 0; n && i < a->ndim; i++) n->i[i] = before[i];
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}

/* ==================================================================================================== >>dropout */
static int dt__dropout_run(dt_tensor *y, dt_tensor *x, const void *u, uint32_t acc)
{
    dt_call    c;
    dt_tensor *d = dt__dense("dt_op_dropout", x);
    if (!d) return DT_ERR_MEMORY;
    dt__call_begin(&c, DT_K_dropout);
    memcpy(&c.u, u, sizeof c.u);
    dt__out(&c, y);
    dt__in(&c, d);
    c.acc = acc;
    int rc = y->numel ? dt__go(y->st->dev, &c) : 0;
    dt__unref(d);
    return rc;
}
static int dt__dropout_bwd(dt__node *n, dt_tensor *g)
{
    uint32_t   acc;
    dt_tensor *x = n->in[0], *t = dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc);
    int        rc = t ? dt__dropout_run(t, g, n->u, acc) : DT_ERR_MEMORY;
    return dt__grad_end(x, t) || rc;
}
DT_API dt_tensor *dt_op_dropout_with(dt_tensor *x, double p, dt_op_dropout_opts o)
{
    if (!dt__ok("dt_op_dropout", "x", x) || !dt__want_float("dt_op_dropout", x)) return NULL;
    if (!(p >= 0 && p <= 1)) {
        dt_fail(DT_ERR_ARG, "dt_op_dropout: p is %g; it must be between 0 and 1", p);
        return NULL;
    }
    if (o.eval || p == 0) return x;
    dt_tensor *y = dt__new("dt_op_dropout", x->st->dev, x->dtype, x->shape, x->ndim, DT_LAYOUT_PLAIN);
    if (!y) return NULL;
    dt_rng *r = o.rng ? o.rng : dt_rng_default();
    dt_call c;
    dt__call_begin(&c, DT_K_dropout);
    c.u.dropout.p = p;
    c.u.dropout.seed = r->seed;
    c.u.dropout.offset = r->philox_offset;
    r->philox_offset += (uint64_t)(x->numel + 3) / 4;
    if (dt__dropout_run(y, x, &c.u, 0)) return dt__finish(y, DT_ERR_DEVICE);
    dt__node *n = dt__record("dropout", y, dt__dropout_bwd, 1, &x);
    if (n) memcpy(n->u, &c.u, sizeof c.u);
    return dt__finish(y, dt__err.code);
}

/* ==================================================================================================== >>losses */
DT__INSIDE bool dt__reduction_ok(const char *call, dt_loss_opts o)
{
    if (o.reduction == DT_MEAN || o.reduction == DT_SUM || o.reduction == DT_NONE) return true;
    dt_fail(DT_ERR_ARG, "%s: reduction is %d; it must be DT_MEAN, DT_SUM or DT_NONE", call, (int)o.reduction);
    return false;
}
/* Saved tensors: x (dense, classes last), target, lse, total, weight. n->i: rows, classes. */
static int dt__xent_bwd(dt__node *n, dt_tensor *g)
{
    uint32_t   acc = 0;
    dt_tensor *x = n->in[0], *d = dt__dense("backward", g), *t = d ? dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc) : NULL;
    int        rc = t ? 0 : DT_ERR_MEMORY;
    if (!rc && x->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_cross_entropy_bwd);
        memcpy(&c.u, n->u, sizeof c.u);
        dt__view_dense(dt__out(&c, t), 2, n->i[0], n->i[1], 0);
        dt__view_dense(dt__in(&c, d), 1, d->numel, 0, 0);
        dt__view_dense(dt__in(&c, n->saved[0]), 2, n->i[0], n->i[1], 0);
        dt__view_dense(dt__in(&c, n->saved[1]), 1, n->i[0], 0, 0);
        dt__in(&c, n->saved[2]);
        dt__in(&c, n->saved[3]);
        dt__in(&c, n->saved[4]);
        c.acc = acc;
        rc = dt__go(x->st->dev, &c);
    }
    dt__unref(d);
    return dt__grad_end(x, t) || rc;
}
/* x (n, c), target (n) */
static dt_tensor *dt__xent_rows(const char *call, dt_tensor *x, dt_tensor *target, dt_loss_opts o, int nll)
{
    int64_t    rows = x->shape[0], one = 1, two = 2 * rows;
    dt_tensor *d = dt__dense(call, x), *td = d ? dt__dense(call, target) : NULL;
    dt_tensor *loss = td ? dt__new(call, x->st->dev, x->dtype, &rows, o.reduction == DT_NONE ? 1 : 0, DT_LAYOUT_PLAIN)
            : NULL;
    dt_tensor *lse = loss ? dt__new(call, x->st->dev, DT_F32, &two, 1, DT_LAYOUT_PLAIN) : NULL;
    dt_tensor *total = lse ? dt__new(call, x->st->dev, DT_F32, &one, 1, DT_LAYOUT_PLAIN) : NULL;
    dt_tensor *w = total && o.weight ? dt__dense(call, o.weight) : NULL;
    int        rc = dt__err.code;
    dt_call    c;
    dt__call_begin(&c, DT_K_cross_entropy);
    c.u.loss.smoothing = o.label_smoothing;
    c.u.loss.ignore = o.ignore_index == DT_ZERO ? 0 : o.ignore_index ? o.ignore_index : -100;
    c.u.loss.reduction = o.reduction;
    c.u.loss.nll = nll;
    if (!rc && (rows || o.reduction != DT_NONE)) {
        dt__view_dense(dt__out(&c, loss), 1, loss->numel, 0, 0);
        dt__out(&c, lse);
        dt__out(&c, total);
        dt__in(&c, d);
        dt__in(&c, td);
        dt__in(&c, w);
        rc = dt__go(x->st->dev, &c);
    }
    dt__node *n = rc ? NULL : dt__record(call + 3, loss, dt__xent_bwd, 1, &x);
    if (n) {
        dt__save(n, d);
        dt__save(n, td);
        dt__save(n, lse);
        dt__save(n, total);
        dt__save(n, w);
        n->i[0] = rows;
        n->i[1] = x->shape[1];
        memcpy(n->u, &c.u, sizeof c.u);
    }
    dt__unref(d);
    dt__unref(td);
    dt__unref(lse);
    dt__unref(total);
    dt__unref(w);
    return loss ? dt__finish(loss, rc ? rc : (int)dt__err.code) : NULL;
}
/* target: probabilities of the classes, in the shape of x. The mean divides by the number of rows, as PyTorch does. */
static dt_tensor *dt__xent_soft(const char *call, dt_tensor *x, dt_tensor *target, dt_loss_opts o)
{
    dt_shape s = dt_shape_of(x), w;
    if (x->ndim < 1 || !dt__same_shape(target, &s) || !x->shape[x->ndim > 1]) {
        dt_fail(DT_ERR_SHAPE, "%s: shapes logits %s and target %s do not match: a target of floats holds probabilities and has "
                "the shape of logits, (n, classes, ...)", call, dt__text(x), dt__text(target));
        return NULL;
    }
    if (o.ignore_index) {
        dt_fail(DT_ERR_ARG, "%s: .ignore_index is set, but target is %s: probabilities; leave it out", call,
                dt_dtype_name((dt_dtype)target->dtype));
        return NULL;
    }
    int     dim = x->ndim > 1;
    int64_t classes = x->shape[dim];
    if (!dt__vector_ok(call, "weight", x, o.weight, classes)) return NULL;
    if (o.label_smoothing != 0)
        target = dt_add_scalar(dt_mul_scalar(target, 1 - o.label_smoothing), o.label_smoothing / (double)classes);
    dt_tensor *l = dt_mul(dt_cast(target, DT_F32), dt_log_softmax(dt_cast(x, DT_F32), dim));
    w.ndim = x->ndim - dim;
    for (int i = 0; i < w.ndim; i++) w.dim[i] = i == 0 ? classes : 1;
    if (o.weight && l) l = dt_mul(l, dt_reshape(o.weight, w));
    dt_reduce_opts over;
    DT__CLEAR(over);
    over.dims = DT_DIM(dim);
    l = dt__loss_reduced(l ? dt_neg(dt_sum_with(l, over)) : NULL, o.reduction);
    return l ? dt_cast(l, (dt_dtype)x->dtype) : NULL;
}
static dt_tensor *dt__xent(const char *call, dt_tensor *x, dt_tensor *target, dt_loss_opts o, int nll)
{
    x = dt__in_loss(x);
    if (!dt__ok(call, "logits", x) || !dt__ok(call, "target", target) || !dt__same_device(call, x, target)) return NULL;
    if (!dt__want_float(call, x) || !dt__reduction_ok(call, o)) return NULL;
    if (dt__is_float(target->dtype) && nll) {
        dt_fail(DT_ERR_DTYPE, "%s: target is %s; it must hold class indices in i64, i32 or u8", call,
                dt_dtype_name((dt_dtype)target->dtype));
        return NULL;
    }
    if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1)) {
        dt_fail(DT_ERR_ARG, "%s: label_smoothing is %g; it must be between 0 and 1", call, o.label_smoothing);
        return NULL;
    }
    if (dt__is_float(target->dtype)) return dt__xent_soft(call, x, target, o);
    bool fits = x->ndim >= 2 && target->ndim == x->ndim - 1 && target->shape[0] == x->shape[0] && x->shape[1] > 0;
    for (int i = 2; fits && i < x->ndim; i++) fits = target->shape[i - 1] == x->shape[i];
    if (!fits) {
        dt_fail(DT_ERR_SHAPE, "%s: shapes logits %s and target %s do not match: they must be (n, classes, ...) and (n, ...)",
                call, dt__text(x), dt__text(target));
        return NULL;
    }
    if (!dt__vector_ok(call, "weight", x, o.weight, x->shape[1])) return NULL;
    if (x->ndim == 2) return dt__xent_rows(call, x, target, o, nll);
    dt_shape order, rows, flat, back = dt_shape_of(target); /* permute the classes to the end; the rest becomes rows */
    order.ndim = x->ndim;
    order.dim[0] = 0;
    for (int i = 2; i < x->ndim; i++) order.dim[i - 1] = i;
    order.dim[x->ndim - 1] = 1;
    rows.ndim = 2;
    rows.dim[0] = target->numel;
    rows.dim[1] = x->shape[1];
    flat.ndim = 1;
    flat.dim[0] = target->numel;
    dt_tensor *xp = dt_permute(x, order), *x2 = xp ? dt_reshape(xp, rows) : NULL, *t1 = x2 ? dt_reshape(target, flat)
            : NULL;
    dt_tensor *loss = t1 ? dt__xent_rows(call, x2, t1, o, nll) : NULL;
    return loss && o.reduction == DT_NONE ? dt_reshape(loss, back) : loss;
}
DT_API dt_tensor *dt_cross_entropy_with(dt_tensor *logits, dt_tensor *target, dt_loss_opts o)
{
    return dt__xent("dt_cross_entropy", logits, target, o, 0);
}
DT_API dt_tensor *dt_nll_loss_with(dt_tensor *logp, dt_tensor *target, dt_loss_opts o)
{
    return dt__xent("dt_nll_loss", logp, target, o, 1);
}
DT__INSIDE dt_tensor *dt__loss_reduced(dt_tensor *l, dt_reduction reduction) /* of the losses of single elements */
{
    dt_reduce_opts all;
    DT__CLEAR(all);
    if (!l || reduction == DT_NONE) return l;
    return reduction == DT_MEAN ? dt_mean_with(l, all) : dt_sum_with(l, all);
}
static dt_tensor *dt__loss(const char *call, int fn, dt_tensor *x, dt_tensor *y, dt_loss_opts o)
{
    x = dt__in_loss(x);
    y = dt__in_loss(y);
    if (!dt__ok(call, "x", x) || !dt__ok(call, "y", y) || !dt__reduction_ok(call, o)) return NULL;
    double beta = o.beta != 0 ? o.beta : 1;
    if (!(beta > 0)) {
        dt_fail(DT_ERR_ARG, "%s: beta is %g; it must be above 0", call, o.beta);
        return NULL;
    }
    dt_shape s = dt_shape_of(x);
    if (!dt__same_shape(y, &s)) {
        dt_fail(DT_ERR_SHAPE, "%s: x %s and y %s must have the same shape; to broadcast, dt_expand() the smaller one first",
                call, dt__text(x), dt__text(y));
        return NULL;
    }
    return dt__loss_reduced(dt__binary(call, fn, x, y, beta), o.reduction);
}
DT_API dt_tensor *dt_mse_loss_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o)
{
    return dt__loss("dt_mse_loss", DT_B_MSE, x, y, o);
}
DT_API dt_tensor *dt_l1_loss_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o)
{
    return dt__loss("dt_l1_loss", DT_B_L1, x, y, o);
}
DT_API dt_tensor *dt_smooth_l1_loss_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o)
{
    return dt__loss("dt_smooth_l1_loss", DT_B_SMOOTH_L1, x, y, o);
}
DT_API dt_tensor *dt_bce_with_logits_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o)
{
    return dt__loss("dt_bce_with_logits", DT_B_BCE, x, y, o);
}
DT_API dt_tensor *dt_kl_div_with(dt_tensor *x, dt_tensor *y, dt_loss_opts o)
{
    const char  *call = "dt_kl_div";
    dt_reduction reduction = o.reduction;
    dt_shape     s = dt_shape_of(x);
    dt_tensor   *l;
    if (reduction == DT_BATCHMEAN) o.reduction = DT_SUM;
    if (o.log_target) {
        x = dt__in_loss(x);
        y = dt__in_loss(y);
        if (!dt__ok(call, "x", x) || !dt__ok(call, "y", y) || !dt__reduction_ok(call, o)) return NULL;
        if (!dt__same_shape(y, &s)) {
            dt_fail(DT_ERR_SHAPE, "%s: x %s and y %s must have the same shape", call, dt__text(x), dt__text(y));
            return NULL;
        }
        l = dt__loss_reduced(dt_mul(dt_exp(y), dt_sub(y, x)), o.reduction);
    } else {
        l = dt__loss(call, DT_B_KL_DIV, x, y, o);
    }
    if (!l || reduction != DT_BATCHMEAN) return l;
    return dt_div_scalar(l, s.ndim && s.dim[0] ? (double)s.dim[0] : 1);
}

/* ==================================================================================================== >>attention */
/* t with unit stride in the last dimension: t itself or a copy. The caller owns one reference in both cases. */
static dt_tensor *dt__unit_inner(const char *call, dt_tensor *t)
{
    if (t->layout == DT_LAYOUT_PLAIN && (t->stride[3] == 1 || t->shape[3] <= 1)) return dt__ref(t);
    return dt__dense(call, t);
}
/* The tensor for the gradient of input k. It has the dimension order of the input's strides, so that the gradients of
   heads that are views of one projection are views, too. A temporary is used if the input needs no gradient, or if an
   earlier input is the same tensor. */
static dt_tensor *dt__attention_grad(dt__node *n, int k, uint32_t *acc)
{
    dt_tensor *x = n->in[k];
    bool       apart = !dt__needs_grad(n, k);
    for (int j = 0; j < k; j++) apart = apart || n->in[j] == x;
    if (apart) return dt__new_ordered("backward", n->saved[k], DT_F32); /* the kernel always computes all three */
    if (!x->node || x->partial) return dt__grad_begin(x, DT_LAYOUT_PLAIN, acc);
    x->partial = dt__new_ordered("backward", n->saved[k], x->dtype);
    x->partial_state = DT__PARTIAL_OWNED;
    return dt__ref(x->partial);
}
/* The gradients of k and v of each head of q, added up over the heads that share them. */
static int dt__attention_grouped(dt_tensor *t, const dt_tensor *each, int acc)
{
    dt_call c;
    dt__call_begin(&c, DT_K_reduce);
    dt_view *y = dt__out(&c, t), *x = dt__in(&c, each);
    int64_t  rep = each->shape[1] / t->shape[1];
    for (int i = 4; i > 1; i--) { /* (b, h, s, d) to (b, hk, rep, s, d) */
        int from = i == 2 ? 1 : i - 1;
        x->shape[i] = i == 2 ? rep : each->shape[from];
        x->stride[i] = each->stride[from];
        y->shape[i] = i == 2 ? 1 : t->shape[from];
        y->stride[i] = i == 2 ? 0 : t->stride[from];
    }
    x->shape[1] = t->shape[1];
    x->stride[1] = rep * each->stride[1];
    x->ndim = y->ndim = 5;
    c.u.reduce.fn = DT_R_SUM;
    c.u.reduce.n = rep;
    c.acc = (uint32_t)acc;
    return t->numel ? dt__go(t->st->dev, &c) : 0;
}
static void dt__attention_masks(dt_call *c, const dt_tensor *q, const dt_tensor *k, const dt_tensor *mask, const dt_tensor *lengths)
{
    int64_t  shape[4] = { q->shape[0], q->shape[1], q->shape[2], k->shape[2] };
    dt_view *v = dt__in(c, mask);
    if (mask) dt__view_expand(v, shape, 4);
    dt__in(c, lengths);
}
static int dt__attention_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *d = dt__unit_inner("backward", g), *t[3] = { NULL, NULL, NULL }, *each[3] = { NULL, NULL, NULL };
    uint32_t   acc[3] = { 0, 0, 0 };
    int        rc = d ? 0 : DT_ERR_MEMORY;
    bool       grouped = n->saved[0]->shape[1] != n->saved[1]->shape[1];
    int64_t    whole[4] = { n->saved[1]->shape[0], n->saved[0]->shape[1], n->saved[1]->shape[2], n->saved[1]->shape[3] };
    for (int k = 0; k < 3 && !rc; k++) {
        t[k] = dt__attention_grad(n, k, &acc[k]);
        if (t[k] && grouped && k > 0) each[k] = dt__new("backward", g->st->dev, DT_F32, whole, 4, DT_LAYOUT_PLAIN);
        if (!t[k] || (grouped && k > 0 && !each[k])) rc = DT_ERR_MEMORY;
    }
    if (!rc && g->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_attention_bwd);
        memcpy(&c.u, n->u, sizeof c.u);
        for (int k = 0; k < 3; k++) dt__out(&c, each[k] ? each[k] : t[k]);
        dt__in(&c, d);
        for (int k = 0; k < 5; k++) dt__in(&c, n->saved[k]);
        dt__attention_masks(&c, n->saved[0], n->saved[1], n->saved[5], n->saved[6]);
        for (int k = 0; k < 3; k++) c.acc |= each[k] ? 0 : acc[k] << k;
        rc = dt__go(g->st->dev, &c);
        for (int k = 1; k < 3 && !rc; k++)
            if (each[k]) rc = dt__attention_grouped(t[k], each[k], (int)acc[k]);
    } else {
        for (int k = 0; k < 3 && !rc; k++)
            if (!acc[k]) rc = dt__fill(t[k], 0);
    }
    for (int k = 0; k < 3; k++) {
        dt__unref(each[k]);
        if (dt__needs_grad(n, k))
            rc = dt__grad_end(n->in[k], t[k]) || rc;
        else
            dt__unref(t[k]);
    }
    dt__unref(d);
    return rc;
}
static bool dt__attention_ok(const char *call, const dt_tensor *q, const dt_tensor *k, const dt_tensor *v, const dt_attention_opts *o)
{
    bool fits = q->ndim == 4 && k->ndim == 4 && v->ndim == 4;
    for (int i = 0; fits && i < 4; i++)
        fits = (i == 2 || i == 1 || q->shape[i] == k->shape[i]) && (i == 3 || k->shape[i] == v->shape[i]);
    if (!fits || !k->shape[1] != !q->shape[1] || (k->shape[1] && q->shape[1] % k->shape[1])) {
        dt_fail(DT_ERR_SHAPE, "%s: shapes q %s, k %s and v %s do not match: they must be (b, h, t, d), (b, hk, s, d) and "
                "(b, hk, s, dv), and hk must divide h", call, dt__text(q), dt__text(k), dt__text(v));
        return false;
    }
    if (o->window < 0 || (o->window && !o->causal) || o->offset < 0 || (o->offset && !o->causal) ||
        o->offset > INT32_MAX || o->window > INT32_MAX) {
        dt_fail(DT_ERR_ARG, "%s: .window is %" PRId64 ", .offset %" PRId64 ", .causal %s: window and offset must be 0 or more, "
                "and need .causal", call, o->window, o->offset, o->causal ? "true" : "false");
        return false;
    }
    const dt_tensor *m = o->mask, *l = o->lengths;
    if (m) {
        if (!dt__ok(call, ".mask", m) || !dt__same_device(call, q, m)) return false;
        bool    small = m->ndim <= 4 && (m->dtype == DT_U8 || dt__is_float(m->dtype));
        int64_t whole[4] = { q->shape[0], q->shape[1], q->shape[2], k->shape[2] };
        for (int i = 0; small && i < m->ndim; i++)
            small = m->shape[i] == 1 || m->shape[i] == whole[4 - m->ndim + i];
        if (!small) {
            dt_fail(DT_ERR_SHAPE, "%s: .mask is %s; it must be u8 or a float and broadcast to (%" PRId64 ", %" PRId64 ", %" PRId64
                    ", %" PRId64 ")", call, dt__text(m), whole[0], whole[1], whole[2], whole[3]);
            return false;
        }
        if (m->requires_grad && !dt__tls.no_grad) {
            dt_fail(DT_ERR_GRAD, "%s: .mask requires a gradient, which it does not get here; dt_detach() it, or write the attention "
                    "as dt_matmul, dt_add, dt_softmax and dt_matmul", call);
            return false;
        }
    }
    if (!l) return true;
    if (!dt__ok(call, ".lengths", l) || !dt__same_device(call, q, l)) return false;
    if (l->ndim == 1 && l->shape[0] == q->shape[0] && l->dtype == DT_I64) return true;
    dt_fail(DT_ERR_SHAPE, "%s: .lengths is %s; it must be i64 with one element for each of the %" PRId64 " sequences", call, dt__text(l),
            q->shape[0]);
    return false;
}
static dt_tensor *dt__attention_padded(dt_tensor *x, int64_t d) /* with zeros, to d columns */
{
    int64_t pads[2] = { 0, d - x->shape[3] };
    return pads[1] ? dt_pad(x, pads, 2, 0) : x;
}
DT_API dt_tensor *dt_attention_with(dt_tensor *q, dt_tensor *k, dt_tensor *v, dt_attention_opts o)
{
    const char *call = "dt_attention";
    q = dt__in_half(q);
    k = dt__in_half(k);
    v = dt__in_half(v);
    if (!dt__ok(call, "q", q) || !dt__ok(call, "k", k) || !dt__ok(call, "v", v)) return NULL;
    int64_t d = q->ndim > 0 ? q->shape[q->ndim - 1] : 1;
    if (!dt__number_or(call, ".scale", &o.scale, 1.0 / sqrt((double)(d > 0 ? d : 1)), -INFINITY)) return NULL;
    if (!dt__same_device(call, q, k) || !dt__same_device(call, q, v) || !dt__want_float(call, q) ||
        !dt__want_float(call, k) ||
        !dt__want_float(call, v) || !dt__attention_ok(call, q, k, v, &o))
        return NULL;
    if (q->shape[3] != v->shape[3]) { /* zeros change neither the scores nor the other columns of the result */
        int64_t dv = v->shape[3];
        if (dv > d) d = dv;
        if (o.scale == 0) o.scale = DT_ZERO;
        dt_tensor *y = dt_attention_with(dt__attention_padded(q, d), dt__attention_padded(k, d), dt__attention_padded(v, d), o);
        return y && dv < d ? dt_narrow(y, 3, 0, dv) : y;
    }
    dt_tensor *p[3] = { q, k, v };
    bool       ok = true;
    for (int i = 0; i < 3; i++) {
        p[i] = ok ? dt__unit_inner(call, p[i]) : NULL;
        ok = ok && p[i];
    }
    dt_tensor *y = ok ? dt__new_ordered(call, p[0], dt__promote(q, k)) : NULL;
    dt_tensor *lse = y ? dt__new(call, q->st->dev, DT_F32, q->shape, 3, DT_LAYOUT_PLAIN) : NULL;
    dt_tensor *mask = lse && o.mask ? dt__dense(call, o.mask) : NULL, *len = lse && o.lengths ? dt__dense(call, o.lengths) : NULL;
    int        rc = lse && !mask == !o.mask && !len == !o.lengths ? 0 : DT_ERR_MEMORY;
    dt_call    c;
    dt__call_begin(&c, DT_K_attention);
    c.u.attn.causal = o.causal;
    c.u.attn.scale = o.scale;
    c.u.attn.offset = o.offset;
    c.u.attn.window = o.window;
    if (!rc && y->numel) {
        dt__out(&c, y);
        dt__out(&c, lse);
        for (int i = 0; i < 3; i++) dt__in(&c, p[i]);
        dt__attention_masks(&c, q, k, mask, len);
        rc = dt__go(q->st->dev, &c);
    }
    dt_tensor *in[3] = { q, k, v };
    dt__node  *n = rc ? NULL : dt__record("attention", y, dt__attention_bwd, 3, in);
    if (n) {
        for (int i = 0; i < 3; i++) dt__save(n, p[i]);
        dt__save(n, y);
        dt__save(n, lse);
        dt__save(n, mask);
        dt__save(n, len);
        memcpy(n->u, &c.u, sizeof c.u);
    }
    for (int i = 0; i < 3; i++) dt__unref(p[i]);
    dt__unref(lse);
    dt__unref(mask);
    dt__unref(len);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_CORE_IMPLEMENTATION */

#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT__CPU_INCLUDED)
#define DT__CPU_INCLUDED /* dt_cpu.h includes this file again */
#include "dt_cpu.h"
#endif
