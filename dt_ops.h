/* dt_ops.h - v0.2.0 - more ops: sorting, indexing, einsum, resizing, further losses, and a check of gradients */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_ops.h"
    In every other file that uses it:           #include "dt_ops.h"

    dt_base.h, dt.h and dt_cpu.h must be in the same directory. Link with -lm -lpthread. It may be included before or
    after dt_nn.h.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_ops.h"
    #include <stdio.h>

    static dt_tensor *energy(dt_tensor *const *in, int n, void *user)
    {
        (void)n, (void)user;
        return dt_sum(dt_mul(dt_sin(in[0]), dt_exp(in[0])));
    }

    int main(void)
    {
        dt_manual_seed(1);
        dt_tensor *x = dt_normal(0, 1, DT_SHAPE(3, 4)), *at, *top = dt_topk(x, 2, -1, .index = &at);
        dt_tensor *pair[2] = { x, x }, *gram = dt_einsum("ik,jk->ij", pair, 2);
        printf("%g %g %g\n", dt_item(dt_sum(top)), dt_item(dt_sum(dt_cast(at, DT_F32))), dt_item(dt_sum(gram)));
        dt_gradcheck(energy, NULL, &x, 1);
        dt_end();
        return dt_check("ops");
    }

WHAT IT DOES NOT DO

    No op in place, no boolean tensors (masks are u8, as comparisons return them), no indexing with a mask. Einsum has no
    ellipsis and no diagonals. Interpolation is of 4-d images, nearest or bilinear.

CONTENTS

    >>reducing       norms, any, all, running sums
    >>sorting        sort, argsort, topk, one_hot, bincount
    >>selecting      index_select, scatter, masked_fill, tril, triu, roll, flip, repeat
    >>drawing        linspace, multinomial, bernoulli
    >>einsum         products of several tensors by names of their dimensions
    >>resizing       interpolation, pixel shuffle
    >>more_losses    hinge, cosine, triplet, focal
    >>gradcheck      gradients of a function beside differences of its values
    >>helpers        implementation from here: numbers and ranges as tensors
    >>norms          norms, any, all, cumsum
    >>order          sort, topk, one_hot, bincount
    >>places         index_select, scatter, masks, moves
    >>chance         linspace, multinomial, bernoulli
    >>letters        einsum
    >>pixels         interpolation, pixel shuffle
    >>hinges         the losses
    >>differences    the check of gradients

MACROS

    DT_OPS_IMPLEMENTATION   compiles the implementation of this header alone

ERRORS, MEMORY, THREADS, NUMERICS

    As in dt.h. Names, defaults and gradients are PyTorch's. Most of these ops are compositions of ops of dt.h; those that
    are not (running sums, sorting, scattering, resizing) have kernels on every device. dt_bincount, dt_one_hot without
    a number of classes, and dt_multinomial wait for the device, because shapes or draws depend on values.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_OPS_IMPLEMENTATION)
#define DT_OPS_IMPLEMENTATION
#endif
#include "dt.h"

#ifndef DT_OPS_H_INCLUDED
#define DT_OPS_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_ops.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>reducing */
typedef struct dt_p_norm_opts {
    int      dt__first DT_D;
    double   p DT_D;       /* default 2; INFINITY and -INFINITY: the largest and smallest magnitude; DT_ZERO: how many are not 0 */
    uint32_t dims DT_D;    /* DT_DIM(i) | DT_DIM(j) ...; default: all dimensions */
    bool     keepdim DT_D;
} dt_p_norm_opts;
DT_API dt_tensor *dt_norm_with(dt_tensor *a, dt_p_norm_opts o DT_OPT0(dt_p_norm_opts)); /* sum(|a|^p)^(1/p) */
/* u8: 1 where any (all) of the elements are not 0; over no elements any is 0, all is 1 */
DT_API dt_tensor *dt_any_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
DT_API dt_tensor *dt_all_with(dt_tensor *a, dt_reduce_opts o DT_OPT0(dt_reduce_opts));
DT_API dt_tensor *dt_cumsum(dt_tensor *a, int dim); /* integers: in i64 */

/* ---------------------------------------------------------------------------------------------------- >>sorting
   Equal elements keep their order. NaN is larger than any number. Any dtype. */
typedef struct dt_sort_opts {
    int         dt__first DT_D;
    bool        descending DT_D; /* sort, argsort */
    bool        smallest DT_D;   /* topk: the smallest instead of the largest */
    dt_tensor **index DT_D;      /* receives the places of the results along dim, i64 */
} dt_sort_opts;
DT_API dt_tensor *dt_sort_with(dt_tensor *a, int dim, dt_sort_opts o DT_OPT0(dt_sort_opts));
DT_API dt_tensor *dt_argsort_with(dt_tensor *a, int dim, dt_sort_opts o DT_OPT0(dt_sort_opts));
DT_API dt_tensor *dt_topk_with(dt_tensor *a, int64_t k, int dim, dt_sort_opts o DT_OPT0(dt_sort_opts)); /* in order */
/* index i32 or i64 -> (..., classes) i64; classes = -1: the largest index + 1 */
DT_API dt_tensor *dt_one_hot(dt_tensor *index, int64_t classes);
typedef struct dt_bincount_opts {
    int        dt__first DT_D;
    dt_tensor *weights DT_D;   /* of index's shape, floats: sums of these instead of counts */
    int64_t    minlength DT_D; /* the result has at least so many elements */
} dt_bincount_opts;
DT_API dt_tensor *dt_bincount_with(dt_tensor *index, dt_bincount_opts o DT_OPT0(dt_bincount_opts)); /* index 1-d, integers */

/* ---------------------------------------------------------------------------------------------------- >>selecting
   index is i32 or i64. An index out of range is an error that names its value and position; on an asynchronous device at
   the next wait. */
DT_API dt_tensor *dt_index_select(dt_tensor *a, int dim, dt_tensor *index); /* index 1-d: the slices of a at these places */
/* a with a[index[p]] = src[p] along dim (of several sources the last counts), or += src[p]. As in torch.scatter, index may be
   smaller than src, and outside dim smaller than a. */
DT_API dt_tensor *dt_scatter(dt_tensor *a, int dim, dt_tensor *index, dt_tensor *src);
DT_API dt_tensor *dt_scatter_add(dt_tensor *a, int dim, dt_tensor *index, dt_tensor *src);
DT_API dt_tensor *dt_masked_fill(dt_tensor *a, dt_tensor *mask, double value); /* mask u8, i32 or i64, broadcasts to a */
/* The last two dimensions are a matrix: zero above (tril) or below (triu) its k-th diagonal; 0 is the main one, 1 the one
   above it. */
DT_API dt_tensor *dt_tril(dt_tensor *a, int64_t k);
DT_API dt_tensor *dt_triu(dt_tensor *a, int64_t k);
DT_API dt_tensor *dt_roll(dt_tensor *a, int64_t shift, int dim);  /* element i goes to place i + shift, around the end */
DT_API dt_tensor *dt_flip(dt_tensor *a, uint32_t dims);           /* DT_DIM(i) | DT_DIM(j) ... */
DT_API dt_tensor *dt_repeat(dt_tensor *a, dt_shape times);        /* torch.Tensor.repeat: a copy, tiled */

/* ---------------------------------------------------------------------------------------------------- >>drawing */
/* steps values from start to end, both included */
DT_API dt_tensor *dt_linspace_with(double start, double end, int64_t steps, dt_make_opts o DT_OPT0(dt_make_opts));
typedef struct dt_draw_opts {
    int     dt__first DT_D;
    bool    replacement DT_D; /* multinomial: a category may be drawn again */
    dt_rng *rng DT_D;         /* default: the thread's generator */
} dt_draw_opts;
/* n draws of categories with probabilities proportional to p, (categories) or (rows, categories) -> i64. With replacement
   and n > 1 the draws are those of PyTorch's CPU generator. */
DT_API dt_tensor *dt_multinomial_with(dt_tensor *p, int64_t n, dt_draw_opts o DT_OPT0(dt_draw_opts));
DT_API dt_tensor *dt_bernoulli_with(dt_tensor *p, dt_draw_opts o DT_OPT0(dt_draw_opts)); /* 1 with probability p, else 0; no gradient */

/* ---------------------------------------------------------------------------------------------------- >>einsum
   torch.einsum: each operand's dimensions have letters; dimensions of one letter are multiplied element by element, and summed
   if the result does not have the letter. "bij,bjk->bik" is a product of batches, "ij->ji" a transpose, "ij->" a sum. Without
   "->" the result has the letters that occur once, in the order of the alphabet. Operands are multiplied from left to
   right; each product is one dt_matmul. */
DT_API dt_tensor *dt_einsum(const char *equation, dt_tensor *const *in, int n);

/* ---------------------------------------------------------------------------------------------------- >>resizing */
typedef enum dt_resize_mode { DT_NEAREST = 0, DT_BILINEAR } dt_resize_mode; /* of dt_interpolate */
typedef struct dt_interpolate_opts {
    int            dt__first DT_D;
    int64_t        size DT_D, size_w DT_D;   /* of the result; size_w default: size */
    double         scale DT_D, scale_w DT_D; /* or factors of the size; scale_w default: scale */
    dt_resize_mode mode DT_D;
    bool           align_corners DT_D;       /* bilinear: the corner pixels' centres coincide */
} dt_interpolate_opts;
DT_API dt_tensor *dt_interpolate_with(dt_tensor *x, dt_interpolate_opts o DT_OPT0(dt_interpolate_opts)); /* x (n, c, h, w) */
DT_API dt_tensor *dt_pixel_shuffle(dt_tensor *x, int64_t r);   /* (..., c r^2, h, w) -> (..., c, h r, w r) */
DT_API dt_tensor *dt_pixel_unshuffle(dt_tensor *x, int64_t r); /* the inverse */

/* ---------------------------------------------------------------------------------------------------- >>more_losses */
typedef struct dt_margin_opts {
    int          dt__first DT_D;
    dt_reduction reduction DT_D;
    double       margin DT_D; /* default: 1 (hinge_embedding, multi_margin, triplet_margin), 0 (the others); DT_ZERO: 0 */
    double       p DT_D;      /* triplet_margin: the norm, default 2; multi_margin: 1 or 2, default 1 */
    double       eps DT_D;    /* triplet_margin: default 1e-6 */
    bool         swap DT_D;   /* triplet_margin: take the nearer of anchor and positive as the negative's partner */
} dt_margin_opts;
/* y holds 1 or -1 */
DT_API dt_tensor *dt_hinge_embedding_loss_with(dt_tensor *x, dt_tensor *y, dt_margin_opts o DT_OPT0(dt_margin_opts));
DT_API dt_tensor *dt_margin_ranking_loss_with(dt_tensor *x1, dt_tensor *x2, dt_tensor *y, dt_margin_opts o DT_OPT0(dt_margin_opts));
/* x (n, d) each, y (n) */
DT_API dt_tensor *dt_cosine_embedding_loss_with(dt_tensor *x1, dt_tensor *x2, dt_tensor *y, dt_margin_opts o DT_OPT0(dt_margin_opts));
/* the hinge over classes: x (n, classes), y (n) of indices */
DT_API dt_tensor *dt_multi_margin_loss_with(dt_tensor *x, dt_tensor *y, dt_margin_opts o DT_OPT0(dt_margin_opts));
DT_API dt_tensor *dt_triplet_margin_loss_with(dt_tensor *anchor, dt_tensor *positive, dt_tensor *negative,
                                              dt_margin_opts o DT_OPT0(dt_margin_opts));
DT_API dt_tensor *dt_cosine_similarity(dt_tensor *x1, dt_tensor *x2, int dim); /* norms are at least 1e-8 */
typedef struct dt_focal_opts {
    int          dt__first DT_D;
    dt_reduction reduction DT_D; /* the default is the mean; torchvision's is DT_NONE */
    double       alpha DT_D;     /* default 0.25; negative: no weighting; DT_ZERO */
    double       gamma DT_D;     /* default 2; DT_ZERO */
} dt_focal_opts;
/* torchvision.ops.sigmoid_focal_loss: x logits, y 0 or 1 in floats of the same shape */
DT_API dt_tensor *dt_sigmoid_focal_loss_with(dt_tensor *x, dt_tensor *y, dt_focal_opts o DT_OPT0(dt_focal_opts));

/* ---------------------------------------------------------------------------------------------------- >>gradcheck
   Compares the gradients of fn with differences of its values. The inputs are f32 tensors, not on the tape; fn is called with
   copies of them, several times, and must be deterministic and differentiable there.

   There is no f64 in dt, so a difference over one small step would say little. Instead: the result is reduced to one number in
   double (a fixed random weighting of its elements); each element of the inputs is moved by steps that are exact in f32; central
   differences over 5 steps, each half as long as the one before, are extrapolated to step 0 (Ridders' method), which also gives an
   estimate of their error, to which the rounding of f32 values is added. An element is wrong if gradient and difference are
   further apart than atol + rtol |difference| + 2 times that estimate. If for an element the estimate is larger than
   max(atol, rtol |difference|) times 50, nothing can be said about it, which is reported as an error, too: choose inputs
   of another size or a smoother point. Returns DT_OK, or DT_ERR_GRAD with a message that names input, element and both values. */
/* The function whose gradients are checked. */
typedef dt_tensor *(*dt_gradcheck_fn)(dt_tensor *const *in, int n, void *user);
typedef struct dt_gradcheck_opts {
    int      dt__first DT_D;
    double   step DT_D;       /* the longest step, relative to max(|x|, 1); default 1/32 */
    double   rtol DT_D, atol DT_D; /* default 1e-3, 1e-4 */
    int64_t  elements DT_D;   /* of each input, at most so many elements are checked, evenly spread; default 100 */
    uint64_t seed DT_D;       /* of the weights; default 0 */
} dt_gradcheck_opts;
/* compares gradients with differences of values */
DT_API dt_status dt_gradcheck_with(dt_gradcheck_fn fn, void *user, dt_tensor *const *in, int n,
                                   dt_gradcheck_opts o DT_OPT0(dt_gradcheck_opts));
#ifdef DT__LIT
#define dt_norm(...) dt_norm_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_p_norm_opts, __VA_ARGS__, ))
#define dt_any(...) dt_any_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_all(...) dt_all_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reduce_opts, __VA_ARGS__, ))
#define dt_sort(a, ...) dt_sort_with(a, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_sort_opts, __VA_ARGS__, ))
#define dt_argsort(a, ...) dt_argsort_with(a, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_sort_opts, __VA_ARGS__, ))
#define dt_topk(a, k, ...) dt_topk_with(a, k, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_sort_opts, __VA_ARGS__, ))
#define dt_bincount(...) dt_bincount_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_bincount_opts, __VA_ARGS__, ))
#define dt_linspace(start, end, ...) dt_linspace_with(start, end, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_multinomial(p, ...) dt_multinomial_with(p, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_draw_opts, __VA_ARGS__, ))
#define dt_bernoulli(...) dt_bernoulli_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_draw_opts, __VA_ARGS__, ))
#define dt_interpolate(...) dt_interpolate_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_interpolate_opts, __VA_ARGS__, ))
#define dt_hinge_embedding_loss(x, ...) \
    dt_hinge_embedding_loss_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_margin_opts, __VA_ARGS__, ))
#define dt_margin_ranking_loss(x1, x2, ...) \
    dt_margin_ranking_loss_with(x1, x2, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_margin_opts, __VA_ARGS__, ))
#define dt_cosine_embedding_loss(x1, x2, ...) \
    dt_cosine_embedding_loss_with(x1, x2, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_margin_opts, __VA_ARGS__, ))
#define dt_multi_margin_loss(x, ...) \
    dt_multi_margin_loss_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_margin_opts, __VA_ARGS__, ))
#define dt_triplet_margin_loss(a, p, ...) \
    dt_triplet_margin_loss_with(a, p, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_margin_opts, __VA_ARGS__, ))
#define dt_sigmoid_focal_loss(x, ...) \
    dt_sigmoid_focal_loss_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_focal_opts, __VA_ARGS__, ))
#define dt_gradcheck(fn, user, in, ...) \
    dt_gradcheck_with(fn, user, in, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_gradcheck_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_norm dt_norm_with
#define dt_any dt_any_with
#define dt_all dt_all_with
#define dt_sort dt_sort_with
#define dt_argsort dt_argsort_with
#define dt_topk dt_topk_with
#define dt_bincount dt_bincount_with
#define dt_linspace dt_linspace_with
#define dt_multinomial dt_multinomial_with
#define dt_bernoulli dt_bernoulli_with
#define dt_interpolate dt_interpolate_with
#define dt_hinge_embedding_loss dt_hinge_embedding_loss_with
#define dt_margin_ranking_loss dt_margin_ranking_loss_with
#define dt_cosine_embedding_loss dt_cosine_embedding_loss_with
#define dt_multi_margin_loss dt_multi_margin_loss_with
#define dt_triplet_margin_loss dt_triplet_margin_loss_with
#define dt_sigmoid_focal_loss dt_sigmoid_focal_loss_with
#define dt_gradcheck dt_gradcheck_with
#endif

#ifdef __cplusplus
}
#endif
#endif /* DT_OPS_H_INCLUDED */

#if defined(DT_OPS_IMPLEMENTATION) && !defined(DT__OPS_IMPLEMENTED)
#define DT__OPS_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__CORE_IMPLEMENTED)
#error "dt_ops.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_OPS_IMPLEMENTATION"
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(OPS);
DT__NEEDS(OPS, CORE);
DT__SLOW_BEGIN
/* ==================================================================================================== >>helpers */
static dt_make_opts dt__beside(const dt_tensor *a, int dtype) /* a new tensor on a's device */
{
    dt_make_opts o;
    DT__CLEAR(o);
    o.device = a->st->dev;
    o.dtype = (dt_dtype)dtype;
    return o;
}
static dt_shape dt__ops_shape1(int64_t n)
{
    dt_shape s;
    s.ndim = 1;
    s.dim[0] = n;
    return s;
}
static dt_tensor *dt__ops_scalar(const dt_tensor *like, double v) /* 0-d, of the same dtype and device */
{
    dt_shape s;
    s.ndim = 0;
    return dt_full_with(v, s, dt__beside(like, like->dtype));
}
static dt_tensor *dt__ops_range(const dt_tensor *like, double from, int64_t n, double step) /* i64, on like's device */
{
    return dt_arange_with(from, from + step * (double)n, step, dt__beside(like, DT_I64));
}
static dt_reduce_opts dt__over(int dim, bool keepdim)
{
    dt_reduce_opts o;
    DT__CLEAR(o);
    o.dims = DT_DIM(dim);
    o.keepdim = keepdim;
    return o;
}
static bool dt__same_sizes(const char *call, const char *what, const dt_tensor *a, const dt_tensor *b)
{
    dt_shape s = dt_shape_of(a);
    if (dt__same_shape(b, &s)) return true;
    dt_fail(DT_ERR_SHAPE, "%s: %s %s and %s must have the same shape", call, what, dt__text(a), dt__text(b));
    return false;
}

/* ==================================================================================================== >>norms */
/* The p-norm with p not 0, 1, 2 or infinite: saves a, the norm with its reduced dimensions; opts: dt_p_norm_opts. */
static dt_status dt__pnorm_forward(dt_fn_call *c)
{
    dt_p_norm_opts   o = *(const dt_p_norm_opts *)dt_fn_opts(c);
    dt_tensor     *a = dt_fn_in(c, 0);
    dt_reduce_opts r;
    DT__CLEAR(r);
    r.dims = o.dims;
    r.keepdim = true;
    dt_tensor *y = dt_pow_scalar(dt_sum_with(dt_pow_scalar(dt_abs(a), o.p), r), 1 / o.p);
    if (!y) return dt_error_code();
    dt_fn_save(c, 0, a);
    dt_fn_save(c, 1, y);
    dt_shape s;
    s.ndim = 0;
    for (int i = 0; i < a->ndim; i++) {
        uint32_t at = o.dims ? (o.dims >> i & 1) | (o.dims >> (16 + a->ndim - i) & 1) : 1;
        if (!at || o.keepdim) s.dim[s.ndim++] = y->shape[i];
    }
    dt_fn_out(c, 0, dt_reshape(y, s));
    return dt_error_code();
}
static dt_status dt__pnorm_backward(dt_fn_call *c) /* g sign(a) |a|^(p-1) y^(1-p); 0 where a or y is 0 */
{
    double     p = ((const dt_p_norm_opts *)dt_fn_opts(c))->p;
    dt_tensor *a = dt_fn_saved(c, 0), *y = dt_fn_saved(c, 1), *g = dt_reshape(dt_fn_grad(c, 0), dt_shape_of(y));
    dt_tensor *zero = dt__ops_scalar(a, 0);
    dt_tensor *t = dt_where(dt_eq(a, zero), zero, dt_pow_scalar(dt_abs(a), p - 1));
    dt_tensor *q = dt_where(dt_eq(y, zero), zero, dt_pow_scalar(y, 1 - p));
    dt_fn_give(c, 0, dt_mul(dt_mul(t, dt_sign(a)), dt_mul(g, q)));
    return dt_error_code();
}
DT_API dt_tensor *dt_norm_with(dt_tensor *a, dt_p_norm_opts o)
{
    static const dt_function pnorm = { "norm", dt__pnorm_forward, dt__pnorm_backward };
    const char    *call = "dt_norm";
    dt_reduce_opts r;
    DT__CLEAR(r);
    r.dims = o.dims;
    r.keepdim = o.keepdim;
    a = dt__in_f32(a);
    if (!dt__ok(call, "a", a) || !dt__want_float(call, a)) return NULL;
    double p = o.p == DT_ZERO ? 0 : o.p == 0 ? 2 : o.p;
    if (p != p) {
        dt_fail(DT_ERR_ARG, "%s: .p is NaN; it must be a number or infinite", call);
        return NULL;
    }
    if (p == 2) return dt__reduce(call, DT_R_NORM, a, r);
    if (p == 1) return dt_sum_with(dt_abs(a), r);
    if (isinf(p)) return p > 0 ? dt_amax_with(dt_abs(a), r) : dt_amin_with(dt_abs(a), r);
    if (p == 0) {
        dt_tensor *zero = dt__ops_scalar(a, 0);
        return dt_sum_with(dt_cast(dt_ne(a, zero), (dt_dtype)a->dtype), r);
    }
    o.p = p;
    return dt_function_apply(&pnorm, &a, 1, &o, sizeof o);
}
static dt_tensor *dt__truth(const char *call, dt_tensor *a, dt_reduce_opts o, bool all)
{
    if (!dt__ok(call, "a", a)) return NULL;
    dt_tensor *zero = dt__ops_scalar(a, 0), *is = zero ? dt_ne(a, zero) : NULL;
    if (!is) return NULL;
    if (is->numel) return dt__reduce(call, all ? DT_R_MIN : DT_R_MAX, is, o);
    dt_tensor *n = dt__reduce(call, DT_R_SUM, is, o); /* its shape; and where elements are missing, 0 */
    return n ? dt_full_with(all, dt_shape_of(n), dt__beside(a, DT_U8)) : NULL;
}
DT_API dt_tensor *dt_any_with(dt_tensor *a, dt_reduce_opts o) { return dt__truth("dt_any", a, o, false); }
DT_API dt_tensor *dt_all_with(dt_tensor *a, dt_reduce_opts o) { return dt__truth("dt_all", a, o, true); }

static dt_tensor *dt__scanned(const char *call, dt_tensor *x, int dtype, int dim, bool reverse) /* the caller owns it */
{
    int64_t    outer = 1, inner = 1;
    dt_tensor *d = dt__dense(call, x), *y = d ? dt__new(call, x->st->dev, dtype, x->shape, x->ndim, DT_LAYOUT_PLAIN) : NULL;
    int        rc = y ? 0 : DT_ERR_MEMORY;
    if (x->ndim) dt__split_dims(x, dim, &outer, &inner);
    if (!rc) rc = dt__scan_run(y, d, outer, x->ndim ? x->shape[dim] : 1, inner, DT_R_SUM, reverse, false);
    dt__unref(d);
    if (!rc) return y;
    dt__unref(y);
    return NULL;
}
static int dt__cumsum_bwd(dt__node *n, dt_tensor *g) /* the sums from the other end */
{
    dt_tensor *t = dt__scanned("backward", g, g->dtype, (int)n->i[0], true);
    int        rc = t ? dt__grad_put(n->in[0], t) : DT_ERR_MEMORY;
    dt__unref(t);
    return rc;
}
DT_API dt_tensor *dt_cumsum(dt_tensor *a, int dim)
{
    const char *call = "dt_cumsum";
    a = dt__in_f32(a);
    if (!dt__ok(call, "a", a) || !dt__dim_ok(call, &dim, a->ndim ? a->ndim : 1)) return NULL;
    dt_tensor *y = dt__scanned(call, a, dt__is_float(a->dtype) ? a->dtype : DT_I64, dim, false);
    dt__node  *n = y ? dt__record("cumsum", y, dt__cumsum_bwd, 1, &a) : NULL;
    if (n) n->i[0] = dim;
    return y ? dt__finish(y, dt__err.code) : NULL;
}

/* ==================================================================================================== >>order */
static dt_tensor *dt__ops_places(const char *call, dt_tensor *a, int dim, int64_t k, bool descending)
{
    int64_t    outer = 1, inner = 1, n = a->ndim ? a->shape[dim] : 1, shape[DT_MAX_DIMS];
    dt_tensor *d = dt__dense(call, a);
    memcpy(shape, a->shape, sizeof shape);
    if (a->ndim) shape[dim] = k;
    dt_tensor *y = d ? dt__new(call, a->st->dev, DT_I64, shape, a->ndim, DT_LAYOUT_PLAIN) : NULL;
    int        rc = y ? 0 : DT_ERR_MEMORY;
    if (a->ndim) dt__split_dims(a, dim, &outer, &inner);
    if (!rc && y->numel) {
        dt_call c;
        dt__call_begin(&c, DT_K_sort);
        dt__view_dense(dt__out(&c, y), 3, outer, k, inner);
        dt__view_dense(dt__in(&c, d), 3, outer, n, inner);
        c.u.sort.descending = descending;
        rc = dt__go(a->st->dev, &c);
    }
    dt__unref(d);
    return y ? dt__finish(y, rc) : NULL;
}
static dt_tensor *dt__ordered(const char *call, dt_tensor *a, int dim, int64_t k, bool descending, dt_tensor **index, bool values)
{
    if (index) *index = NULL;
    if (!dt__ok(call, "a", a) || !dt__dim_ok(call, &dim, a->ndim ? a->ndim : 1)) return NULL;
    int64_t n = a->ndim ? a->shape[dim] : 1;
    if (k < 0) k = n;
    if (k > n) {
        dt_fail(DT_ERR_ARG, "%s: k is %" PRId64 ", but dimension %d of %s has %" PRId64 " elements", call, k, dim, dt__text(a), n);
        return NULL;
    }
    dt_tensor *at = dt__ops_places(call, a, dim, k, descending);
    if (index) *index = at;
    if (!at || !values) return at;
    return a->ndim ? dt_gather(a, dim, at) : k ? dt_clone(a) : NULL;
}
DT_API dt_tensor *dt_sort_with(dt_tensor *a, int dim, dt_sort_opts o)
{
    return dt__ordered("dt_sort", a, dim, -1, o.descending, o.index, true);
}
DT_API dt_tensor *dt_argsort_with(dt_tensor *a, int dim, dt_sort_opts o)
{
    return dt__ordered("dt_argsort", a, dim, -1, o.descending, o.index, false);
}
DT_API dt_tensor *dt_topk_with(dt_tensor *a, int64_t k, int dim, dt_sort_opts o)
{
    if (k < 0 || (dt__ok("dt_topk", "a", a) && a->ndim == 0 && k != 1)) {
        if (dt_error_code() == DT_OK) dt_fail(DT_ERR_ARG, "dt_topk: k is %" PRId64 "; it must be at least 0, and 1 for a number", k);
        return NULL;
    }
    return dt__ordered("dt_topk", a, dim, k, !o.smallest, o.index, true);
}
static dt_tensor *dt__scattered(const char *call, dt_tensor *a, int dim, dt_tensor *index, dt_tensor *src, bool add);
/* The largest index; also checks that none is negative. -1 after an error; n is index's numel, not 0. */
static int64_t dt__largest(const char *call, dt_tensor *index)
{
    dt_reduce_opts all;
    DT__CLEAR(all);
    double least = dt_item(dt_amin_with(index, all));
    if (dt_error_code() == DT_OK && least < 0) {
        double at = dt_item(dt_argmin_with(index, all));
        dt_fail(DT_ERR_ARG, "%s: index %.0f at position %.0f is negative; indices begin at 0", call, least, at);
    }
    double most = dt_error_code() == DT_OK ? dt_item(dt_amax_with(index, all)) : -1;
    return dt_error_code() == DT_OK ? (int64_t)most : -1;
}
DT_API dt_tensor *dt_one_hot(dt_tensor *index, int64_t classes)
{
    const char *call = "dt_one_hot";
    if (!dt__ok(call, "index", index) || !dt__index_ok(call, index, index)) return NULL;
    if (index->ndim == DT_MAX_DIMS || classes < -1 || classes == 0 || (classes < 0 && !index->numel)) {
        dt_fail(DT_ERR_ARG, "%s: index %s with %" PRId64 " classes; index may have %d dimensions, and classes must be at least 1, or -1 if "
                "index has elements", call, dt__text(index), classes, DT_MAX_DIMS - 1);
        return NULL;
    }
    if (classes < 0) {
        classes = dt__largest(call, index) + 1;
        if (!classes) return NULL;
    }
    dt_shape s = dt_shape_of(index);
    s.dim[s.ndim++] = classes;
    dt_tensor *y = dt_zeros_with(s, dt__beside(index, DT_I64)), *at = y ? dt_unsqueeze(index, -1) : NULL;
    dt_tensor *one = at ? dt_ones_with(dt_shape_of(at), dt__beside(index, DT_I64)) : NULL;
    return one ? dt__scattered(call, y, s.ndim - 1, at, one, false) : NULL;
}
DT_API dt_tensor *dt_bincount_with(dt_tensor *index, dt_bincount_opts o)
{
    const char *call = "dt_bincount";
    if (!dt__ok(call, "index", index) || (o.weights && (!dt__ok(call, "weights", o.weights) || !dt__want_float(call, o.weights)))) return NULL;
    if (index->ndim != 1 || dt__is_float(index->dtype) || o.minlength < 0) {
        dt_fail(DT_ERR_ARG, "%s: index is %s and .minlength %" PRId64 "; index must be 1-d integers, minlength at least 0", call,
                dt__text(index), o.minlength);
        return NULL;
    }
    if (o.weights && !dt__same_sizes(call, "index and weights", index, o.weights)) return NULL;
    int64_t n = index->numel ? dt__largest(call, index) + 1 : 0;
    if (index->numel && !n) return NULL;
    if (n < o.minlength) n = o.minlength;
    int        dtype = o.weights ? o.weights->dtype : DT_I64;
    dt_tensor *y = dt_zeros_with(dt__ops_shape1(n), dt__beside(index, dtype));
    dt_tensor *src = o.weights ? o.weights : dt_ones_with(dt_shape_of(index), dt__beside(index, DT_I64));
    if (index->dtype == DT_U8) index = dt_cast(index, DT_I64);
    return y && src && index ? dt__scattered(call, y, 0, index, src, true) : NULL;
}

/* ==================================================================================================== >>places */
static int dt__index_select_run(int kernel, dt_tensor *out, dt_tensor *in, dt_tensor *index, const dt_tensor *whole, int dim)
{
    dt_call    c;
    int64_t    outer, inner;
    bool       forward = kernel == DT_K_embedding;
    dt__split_dims(whole, dim, &outer, &inner);
    dt__call_begin(&c, kernel);
    dt__view_dense(dt__out(&c, out), 3, outer, out->shape[dim], inner);
    if (forward) dt__in(&c, index);
    dt__view_dense(dt__in(&c, in), 3, outer, in->shape[dim], inner);
    if (!forward) dt__in(&c, index);
    return out->numel ? dt__go(out->st->dev, &c) : 0;
}
static int dt__index_select_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *x = n->in[0], *d = dt__dense("backward", g);
    dt_tensor *t = d ? dt__new("backward", x->st->dev, x->dtype, x->shape, x->ndim, DT_LAYOUT_PLAIN) : NULL;
    int        rc = t ? dt__index_select_run(DT_K_embedding_bwd, t, d, n->saved[0], t, (int)n->i[0]) : DT_ERR_MEMORY;
    if (!rc) rc = dt__grad_put(x, t);
    dt__unref(t);
    dt__unref(d);
    return rc;
}
DT_API dt_tensor *dt_index_select(dt_tensor *a, int dim, dt_tensor *index)
{
    const char *call = "dt_index_select";
    if (!dt__ok(call, "a", a) || !dt__index_ok(call, index, a) || !dt__dim_ok(call, &dim, a->ndim)) return NULL;
    if (index->ndim != 1) {
        dt_fail(DT_ERR_SHAPE, "%s: index is %s; it must be 1-d (dt_gather takes an index for each element)", call, dt__text(index));
        return NULL;
    }
    int64_t shape[DT_MAX_DIMS];
    memcpy(shape, a->shape, sizeof shape);
    shape[dim] = index->numel;
    dt_tensor *d = dt__dense(call, a), *id = d ? dt__dense(call, index) : NULL;
    dt_tensor *y = id ? dt__new(call, a->st->dev, a->dtype, shape, a->ndim, DT_LAYOUT_PLAIN) : NULL;
    int        rc = y ? dt__index_select_run(DT_K_embedding, y, d, id, d, dim) : DT_ERR_MEMORY;
    dt__node  *n = rc ? NULL : dt__record("index_select", y, dt__index_select_bwd, 1, &a);
    if (n) {
        dt__save(n, id);
        n->i[0] = dim;
    }
    dt__unref(d);
    dt__unref(id);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
/* y, index and src dense, of equal sizes outside dim. Floats are added by the gradient of gather. */
static int dt__scatter_run(dt_tensor *y, int dim, dt_tensor *index, dt_tensor *src, bool add)
{
    int64_t outer, inner;
    dt_call c;
    bool    sums = add && dt__is_float(y->dtype);
    dt__split_dims(y, dim, &outer, &inner);
    dt__call_begin(&c, sums ? DT_K_gather_bwd : DT_K_scatter);
    dt__view_dense(dt__out(&c, y), 3, outer, y->shape[dim], inner);
    if (!sums) dt__view_dense(dt__in(&c, index), 3, outer, index->shape[dim], inner);
    dt__view_dense(dt__in(&c, src), 3, outer, src->shape[dim], inner);
    if (sums) dt__view_dense(dt__in(&c, index), 3, outer, index->shape[dim], inner);
    if (sums) c.acc = 1;
    else c.u.scatter.add = add;
    return index->numel ? dt__go(y->st->dev, &c) : 0;
}
/* The same where y is larger than index outside dim: in a copy of that part of y, which goes back. */
static int dt__scatter_part(dt_tensor *y, int dim, dt_tensor *index, dt_tensor *src, bool add)
{
    dt_tensor *v = dt__alias(y), *id = v ? dt__dense("dt_scatter", index) : NULL, *sd = id ? dt__dense("dt_scatter", src) : NULL;
    bool       whole = true;
    if (sd) {
        v->numel = y->ndim ? 1 : y->numel;
        for (int i = 0; i < y->ndim; i++) {
            if (i != dim && index->shape[i] < v->shape[i]) {
                v->shape[i] = index->shape[i];
                whole = false;
            }
            v->numel *= v->shape[i];
        }
    }
    dt_tensor *t = !sd ? NULL : whole ? dt__ref(y) : dt__new("dt_scatter", y->st->dev, y->dtype, v->shape, v->ndim, DT_LAYOUT_PLAIN);
    int        rc = t ? 0 : DT_ERR_MEMORY;
    if (!rc && !whole) rc = dt__copy_to(t, v, 0);
    if (!rc) rc = dt__scatter_run(t, dim, id, sd, add);
    if (!rc && !whole) rc = dt__copy_to(v, t, 0);
    dt__unref(t);
    dt__unref(v);
    dt__unref(id);
    dt__unref(sd);
    return rc;
}
/* n->i: dim, add. saved: index */
static int dt__scatter_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *id = n->saved[0], *src = n->in[1];
    int        rc = 0, dim = (int)n->i[0];
    if (dt__needs_grad(n, 0) && n->i[1]) rc = dt__grad_put(n->in[0], g);
    if (dt__needs_grad(n, 0) && !n->i[1]) { /* 0 where a value was replaced */
        dt_tensor *t = dt__new("backward", g->st->dev, g->dtype, g->shape, g->ndim, DT_LAYOUT_PLAIN);
        dt_tensor *zero = t ? dt__new("backward", g->st->dev, g->dtype, id->shape, id->ndim, DT_LAYOUT_PLAIN) : NULL;
        rc = zero ? (dt__copy_to(t, g, 0) || dt__fill(zero, 0) || dt__scatter_part(t, dim, id, zero, false)) : (int)DT_ERR_MEMORY;
        if (!rc) rc = dt__grad_put(n->in[0], t);
        dt__unref(t);
        dt__unref(zero);
    }
    if (!rc && dt__needs_grad(n, 1)) {
        int64_t    from = dt__tls.step.n;
        dt_tensor *t = dt_gather(g, dim, id);
        int64_t    pads[2 * DT_MAX_DIMS];
        for (int i = 0; i < src->ndim; i++) {
            pads[2 * i] = 0;
            pads[2 * i + 1] = src->shape[src->ndim - 1 - i] - id->shape[src->ndim - 1 - i];
        }
        t = dt_pad(t, pads, 2 * src->ndim, 0); /* elements of src that index does not reach */
        rc = t ? dt__grad_put(src, t) : (int)dt_error_code();
        for (int64_t i = from; i < dt__tls.step.n; i++) {
            dt_tensor *x = (dt_tensor *)dt__tls.step.at[i];
            if (x) x->step = NULL;
            dt__unref(x);
        }
        dt__tls.step.n = from;
    }
    return rc;
}
static dt_tensor *dt__scattered(const char *call, dt_tensor *a, int dim, dt_tensor *index, dt_tensor *src, bool add)
{
    if (!dt__ok(call, "a", a) || !dt__ok(call, "src", src) || !dt__index_ok(call, index, a) || !dt__same_device(call, a, src) ||
        !dt__dim_ok(call, &dim, a->ndim)) return NULL;
    bool fits = a->ndim == index->ndim && a->ndim == src->ndim;
    for (int i = 0; fits && i < a->ndim; i++)
        fits = index->shape[i] <= src->shape[i] && (i == dim || index->shape[i] <= a->shape[i]);
    if (!fits) {
        dt_fail(DT_ERR_SHAPE, "%s: index %s must have as many dimensions as a %s and src %s, and none may be larger than that of src, or "
                "than that of a except dimension %d", call, dt__text(index), dt__text(a), dt__text(src), dim);
        return NULL;
    }
    if (a->dtype != src->dtype) {
        dt_fail(DT_ERR_DTYPE, "%s: a is %s and src %s; dt_cast() one of them", call, dt_dtype_name((dt_dtype)a->dtype),
                dt_dtype_name((dt_dtype)src->dtype));
        return NULL;
    }
    dt_tensor *y = dt__new(call, a->st->dev, a->dtype, a->shape, a->ndim, DT_LAYOUT_PLAIN), *s = src;
    for (int i = 0; i < a->ndim && y && s; i++)
        if (index->shape[i] < s->shape[i]) s = dt_narrow(dt_detach(s), i, 0, index->shape[i]);
    int        rc = y && s ? dt__copy_to(y, a, 0) : DT_ERR_MEMORY;
    if (!rc) rc = dt__scatter_part(y, dim, index, s, add);
    dt_tensor *in[2] = { a, src };
    dt__node  *n = rc ? NULL : dt__record(call + 3, y, dt__scatter_bwd, 2, in);
    if (n) {
        dt__save(n, index);
        n->i[0] = dim;
        n->i[1] = add;
    }
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
DT_API dt_tensor *dt_scatter(dt_tensor *a, int dim, dt_tensor *index, dt_tensor *src)
{
    return dt__scattered("dt_scatter", a, dim, index, src, false);
}
DT_API dt_tensor *dt_scatter_add(dt_tensor *a, int dim, dt_tensor *index, dt_tensor *src)
{
    return dt__scattered("dt_scatter_add", a, dim, index, src, true);
}
DT_API dt_tensor *dt_masked_fill(dt_tensor *a, dt_tensor *mask, double value)
{
    const char *call = "dt_masked_fill";
    if (!dt__ok(call, "a", a) || !dt__ok(call, "mask", mask) || !dt__same_device(call, a, mask)) return NULL;
    bool fits = mask->ndim <= a->ndim;
    for (int i = 1; fits && i <= mask->ndim; i++)
        fits = mask->shape[mask->ndim - i] == 1 || mask->shape[mask->ndim - i] == a->shape[a->ndim - i];
    if (!fits) {
        dt_fail(DT_ERR_SHAPE, "%s: mask %s does not broadcast to a %s", call, dt__text(mask), dt__text(a));
        return NULL;
    }
    if (!dt__is_float(a->dtype) && !(value == floor(value) && fabs(value) < 9e15)) {
        dt_fail(DT_ERR_DTYPE, "%s: %g is not an integer, but a is %s; dt_cast() it to f32 first", call, value, dt_dtype_name((dt_dtype)a->dtype));
        return NULL;
    }
    dt_tensor *v = dt__ops_scalar(a, value);
    return v ? dt_where(mask, v, a) : NULL;
}
static dt_tensor *dt__triangle(const char *call, dt_tensor *a, int64_t k, bool upper)
{
    if (!dt__ok(call, "a", a)) return NULL;
    if (a->ndim < 2) {
        dt_fail(DT_ERR_SHAPE, "%s: a is %s; it must have at least 2 dimensions", call, dt__text(a));
        return NULL;
    }
    int64_t rows = a->shape[a->ndim - 2], cols = a->shape[a->ndim - 1];
    if (k > cols) k = cols;
    if (k < -rows) k = -rows;
    dt_tensor *r = dt_unsqueeze(dt__ops_range(a, (double)k, rows, 1), 1), *c = dt__ops_range(a, 0, cols, 1);
    dt_tensor *keep = upper ? dt_ge(c, r) : dt_le(c, r), *zero = dt__ops_scalar(a, 0);
    return keep && zero ? dt_where(keep, a, zero) : NULL;
}
DT_API dt_tensor *dt_tril(dt_tensor *a, int64_t k) { return dt__triangle("dt_tril", a, k, false); }
DT_API dt_tensor *dt_triu(dt_tensor *a, int64_t k) { return dt__triangle("dt_triu", a, k, true); }
DT_API dt_tensor *dt_roll(dt_tensor *a, int64_t shift, int dim)
{
    if (!dt__ok("dt_roll", "a", a) || !dt__dim_ok("dt_roll", &dim, a->ndim)) return NULL;
    int64_t n = a->shape[dim];
    shift = n ? (shift % n + n) % n : 0;
    if (!shift) return dt_clone(a);
    dt_tensor *part[2] = { dt_narrow(a, dim, n - shift, shift), dt_narrow(a, dim, 0, n - shift) };
    return dt_cat(part, 2, dim);
}
DT_API dt_tensor *dt_flip(dt_tensor *a, uint32_t dims)
{
    if (!dt__ok("dt_flip", "a", a)) return NULL;
    if (!(dims & DT__DIMS) || (dims & ~(DT__DIMS | 0x01fe00ffu))) {
        dt_fail(DT_ERR_ARG, "dt_flip: dims = %d is not a set of dimensions; write DT_DIM(0), or DT_DIM(0) | DT_DIM(1) for two of them", (int)dims);
        return NULL;
    }
    dt_tensor *y = a;
    for (int b = 0; b < 31 && y; b++) {
        int d = b > 16 ? 16 - b : b;
        if (!(dims >> b & 1u)) continue;
        if (!dt__dim_ok("dt_flip", &d, a->ndim)) return NULL;
        if (b > 16 && (dims >> d & 1u)) continue; /* named twice */
        y = dt_index_select(y, d, dt__ops_range(a, (double)(a->shape[d] - 1), a->shape[d], -1));
    }
    return y == a ? dt_clone(a) : y;
}
DT_API dt_tensor *dt_repeat(dt_tensor *a, dt_shape times)
{
    const char *call = "dt_repeat";
    dt_shape    s;
    if (!dt__ok(call, "a", a)) return NULL;
    bool good = times.ndim >= a->ndim && times.ndim <= DT_MAX_DIMS;
    for (int i = 0; good && i < times.ndim; i++) good = times.dim[i] >= 0;
    if (!good) {
        dt_fail(DT_ERR_ARG, "%s: times has %d numbers for a %s; it must have at least one for each dimension, at most %d, and none "
                "below 0", call, times.ndim, dt__text(a), DT_MAX_DIMS);
        return NULL;
    }
    s.ndim = times.ndim;
    for (int i = 0; i < times.ndim; i++) s.dim[i] = i < times.ndim - a->ndim ? 1 : a->shape[i - (times.ndim - a->ndim)];
    dt_tensor *y = dt_reshape(a, s);
    for (int i = times.ndim - 1; i >= 0 && y; i--) { /* one dimension at a time: (before, 1, i, behind) expanded */
        dt_shape w;
        if (times.dim[i] == 1) continue;
        w.ndim = 4;
        w.dim[0] = w.dim[3] = 1;
        for (int k = 0; k < i; k++) w.dim[0] *= y->shape[k];
        for (int k = i + 1; k < times.ndim; k++) w.dim[3] *= y->shape[k];
        w.dim[1] = 1;
        w.dim[2] = y->shape[i];
        s.dim[i] *= times.dim[i];
        dt_tensor *v = dt_reshape(y, w);
        w.dim[1] = times.dim[i];
        y = v ? dt_reshape(dt_expand(v, w), s) : NULL;
    }
    return y && (y->st == a->st) ? dt_clone(y) : y;
}

/* ==================================================================================================== >>chance */
DT_API dt_tensor *dt_linspace_with(double start, double end, int64_t steps, dt_make_opts o)
{
    if (steps < 0) {
        dt_fail(DT_ERR_ARG, "dt_linspace: steps is %" PRId64 "; it must be at least 0", steps);
        return NULL;
    }
    dt_tensor *t = dt__make("dt_linspace", dt__ops_shape1(steps), o, o.dtype);
    dt_call    c;
    if (!t) return NULL;
    dt__call_begin(&c, DT_K_iota);
    dt__out(&c, t);
    c.u.ew.a = start;
    c.u.ew.b = steps > 1 ? (end - start) / (double)(steps - 1) : 0;
    return dt__finish(t, steps ? dt__go(t->st->dev, &c) : 0);
}
static double dt__ops_unit(dt_rng *r) /* PyTorch's uniform double in [0, 1) */
{
    return (double)(dt_rng_u64(r) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}
typedef struct dt__lot {
    double  key;
    int64_t at;
} dt__lot;
static int dt__by_lot(const void *a, const void *b)
{
    const dt__lot *x = (const dt__lot *)a, *y = (const dt__lot *)b;
    return x->key != y->key ? (x->key < y->key) - (x->key > y->key) : (x->at > y->at) - (x->at < y->at);
}
/* Draws of one row. work: categories lots. Without replacement: the n largest of p/e, e exponentially distributed. */
static bool dt__draw_row(const char *call, int64_t row, const float *p, int64_t many, int64_t n, bool again, dt_rng *r, dt__lot *work,
                         int64_t *out)
{
    float   sum = 0, *cum = (float *)work;
    int64_t positive = 0;
    for (int64_t j = 0; j < many; j++) {
        if (!(p[j] >= 0) || isinf(p[j])) {
            dt_fail(DT_ERR_ARG, "%s: probability %g of category %" PRId64 " in row %" PRId64 "; it must be finite and at least 0", call,
                    (double)p[j], j, row);
            return false;
        }
        positive += p[j] > 0;
        sum += p[j];
    }
    if (!(sum > 0) || isinf(sum) || (!again && positive < n)) {
        dt_fail(DT_ERR_ARG, "%s: row %" PRId64 " has %" PRId64 " categories with a probability above 0 and the sum %g; %" PRId64 " draws %s need "
                "%" PRId64 " and a finite sum", call, row, positive, (double)sum, n, again ? "with replacement" : "without replacement",
                again ? (int64_t)1 : n);
        return false;
    }
    if (again) {
        float s = 0;
        for (int64_t j = 0; j < many; j++) cum[j] = s += p[j];
        for (int64_t j = 0; j < many; j++) cum[j] /= s;
        cum[many - 1] = 1;
        for (int64_t k = 0; k < n; k++) {
            double  u = dt__ops_unit(r);
            int64_t lo = 0, hi = many;
            while (lo < hi) {
                int64_t mid = lo + (hi - lo) / 2;
                if ((double)cum[mid] < u) lo = mid + 1;
                else hi = mid;
            }
            while (lo + 1 < many && !(p[lo] > 0)) lo++; /* u = 0 falls on a first category of probability 0 */
            out[k] = lo;
        }
        return true;
    }
    for (int64_t j = 0; j < many; j++) {
        work[j].key = (double)p[j] / -log1p(-dt__ops_unit(r)); /* 0/0 cannot be: p = 0 comes last */
        work[j].at = j;
        if (!(p[j] > 0)) work[j].key = -1;
    }
    qsort(work, (size_t)many, sizeof *work, dt__by_lot);
    for (int64_t k = 0; k < n; k++) out[k] = work[k].at;
    return true;
}
DT_API dt_tensor *dt_multinomial_with(dt_tensor *p, int64_t n, dt_draw_opts o)
{
    const char *call = "dt_multinomial";
    if (!dt__ok(call, "p", p) || !dt__want_float(call, p)) return NULL;
    int64_t rows = p->ndim == 2 ? p->shape[0] : 1, many = p->ndim ? p->shape[p->ndim - 1] : 0;
    if (p->ndim < 1 || p->ndim > 2 || many < 1 || n < 1 || (!o.replacement && n > many)) {
        dt_fail(DT_ERR_ARG, "%s: %" PRId64 " draws from p %s; p must be (categories) or (rows, categories), and without .replacement at most as "
                "many categories can be drawn as there are", call, n, dt__text(p));
        return NULL;
    }
    dt_shape s = dt_shape_of(p);
    s.dim[s.ndim - 1] = n;
    dt_no_grad_begin();
    dt_tensor *f = dt_contiguous(dt_cast(p, DT_F32));
    dt_no_grad_end();
    size_t   pbytes = (size_t)(rows * many) * sizeof(float), obytes = (size_t)(rows * n) * sizeof(int64_t);
    size_t   wbytes = (size_t)many * sizeof(dt__lot);
    float   *v = (float *)dt_mem_alloc(pbytes + 8);
    int64_t *out = (int64_t *)dt_mem_alloc(obytes + 8);
    dt__lot *work = (dt__lot *)dt_mem_alloc(wbytes);
    dt_rng  *r = o.rng ? o.rng : dt_rng_default();
    bool     good = v && out && work;
    if (!good) dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    good = good && f && dt_copy_out(f, v, pbytes) == DT_OK;
    for (int64_t i = 0; i < rows && good; i++)
        good = dt__draw_row(call, i, v + i * many, many, n, o.replacement, r, work, out + i * n);
    dt_tensor *y = good ? dt_from_with(out, s, dt__beside(p, DT_I64)) : NULL;
    dt_mem_free(v, pbytes + 8);
    dt_mem_free(out, obytes + 8);
    dt_mem_free(work, wbytes);
    return y;
}
DT_API dt_tensor *dt_bernoulli_with(dt_tensor *p, dt_draw_opts o)
{
    const char    *call = "dt_bernoulli";
    dt_reduce_opts all;
    DT__CLEAR(all);
    if (!dt__ok(call, "p", p) || !dt__want_float(call, p)) return NULL;
    if (p->st->dev == dt_cpu() && p->numel) { /* elsewhere the check would make the host wait */
        double lo = dt_item(dt_amin_with(dt_detach(p), all)), hi = dt_item(dt_amax_with(dt_detach(p), all));
        if (!(lo >= 0 && hi <= 1)) {
            dt_fail(DT_ERR_ARG, "%s: p has values from %g to %g; probabilities are between 0 and 1", call, lo, hi);
            return NULL;
        }
    }
    dt_make_opts m = dt__beside(p, DT_F32);
    m.rng = o.rng;
    dt_tensor *u = dt_uniform_with(0, 1, dt_shape_of(p), m);
    return u ? dt_cast(dt_lt(u, p), (dt_dtype)p->dtype) : NULL;
}

/* ==================================================================================================== >>letters */
typedef struct dt__term { /* a tensor and the letters of its dimensions */
    dt_tensor *t;
    int        n;
    char       letter[DT_MAX_DIMS + 1];
} dt__term;
static int dt__letter_at(const dt__term *a, char l)
{
    const char *p = (const char *)memchr(a->letter, l, (size_t)a->n);
    return p ? (int)(p - a->letter) : -1;
}
static bool dt__term_sum(dt__term *a, const char *needed, const dt__term *other) /* sums dimensions that nothing needs any more */
{
    uint32_t dims = 0;
    int      n = 0;
    for (int i = 0; i < a->n; i++) {
        bool keep = strchr(needed, a->letter[i]) || (other && dt__letter_at(other, a->letter[i]) >= 0);
        if (keep) a->letter[n++] = a->letter[i];
        else dims |= DT_DIM(i);
    }
    a->n = n;
    dt_reduce_opts o;
    DT__CLEAR(o);
    o.dims = dims;
    if (dims) a->t = dt_sum_with(a->t, o);
    return a->t != NULL;
}
/* The dimensions of a as three groups, each one dimension: those of the letters in groups[0], [1], [2]. */
static dt_tensor *dt__term_fold(const dt__term *a, const char *const *groups, int64_t *size)
{
    dt_shape order, s;
    order.ndim = 0;
    s.ndim = 3;
    for (int k = 0; k < 3; k++) {
        s.dim[k] = 1;
        for (const char *l = groups[k]; *l; l++) {
            int i = dt__letter_at(a, *l);
            order.dim[order.ndim++] = i;
            s.dim[k] *= a->t->shape[i];
        }
        size[k] = s.dim[k];
    }
    dt_tensor *p = dt_permute(a->t, order);
    return p ? dt_reshape(p, s) : NULL;
}
static bool dt__term_product(dt__term *a, dt__term *b, const char *needed)
{
    char both[DT_MAX_DIMS + 1] = "", sum[DT_MAX_DIMS + 1] = "", left[DT_MAX_DIMS + 1] = "", right[DT_MAX_DIMS + 1] = "";
    if (!dt__term_sum(a, needed, b) || !dt__term_sum(b, needed, a)) return false;
    dt_shape s;
    s.ndim = 0;
    char   out[3 * DT_MAX_DIMS + 1];
    size_t nb = 0, ns = 0, nl = 0, nr = 0;
    for (int i = 0; i < a->n; i++) {
        char l = a->letter[i];
        int  j = dt__letter_at(b, l);
        if (j < 0) {
            left[nl++] = l;
            continue;
        }
        if (a->t->shape[i] != b->t->shape[j]) {
            dt_fail(DT_ERR_SHAPE, "dt_einsum: the letter %c has size %" PRId64 " in one operand and %" PRId64 " in another", l, a->t->shape[i],
                    b->t->shape[j]);
            return false;
        }
        if (strchr(needed, l)) both[nb++] = l;
        else sum[ns++] = l;
    }
    for (int j = 0; j < b->n; j++)
        if (dt__letter_at(a, b->letter[j]) < 0) right[nr++] = b->letter[j];
    snprintf(out, sizeof out, "%s%s%s", both, left, right);
    if (nb + nl + nr > DT_MAX_DIMS) {
        dt_fail(DT_ERR_SHAPE, "dt_einsum: a product has the dimensions %s; a tensor has at most %d", out, DT_MAX_DIMS);
        return false;
    }
    for (const char *l = out; *l; l++)
        s.dim[s.ndim++] = dt__letter_at(a, *l) >= 0 ? a->t->shape[dt__letter_at(a, *l)] : b->t->shape[dt__letter_at(b, *l)];
    const char *ga[3] = { both, left, sum }, *gb[3] = { both, sum, right };
    int64_t     size[3];
    dt_tensor  *x = dt__term_fold(a, ga, size), *y = x ? dt__term_fold(b, gb, size) : NULL, *z = y ? dt_matmul(x, y) : NULL;
    a->t = z ? dt_reshape(z, s) : NULL;
    a->n = s.ndim;
    memcpy(a->letter, out, (size_t)s.ndim);
    return a->t != NULL;
}
/* Reads the letters of one operand; returns what follows. */
static const char *dt__term_read(dt__term *a, const char *p, const char *equation, int k)
{
    for (a->n = 0; *p && *p != ',' && *p != '-'; p++) {
        if (*p == ' ') continue;
        bool letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z');
        if (!letter || dt__letter_at(a, *p) >= 0 || a->n == DT_MAX_DIMS) {
            dt_fail(DT_ERR_ARG, "dt_einsum: '%c' of operand %d in \"%s\": each dimension has a letter of its own, at most %d (no diagonals, "
                    "no ellipsis)", *p, k, equation, DT_MAX_DIMS);
            return NULL;
        }
        a->letter[a->n++] = *p;
    }
    return p;
}
DT_API dt_tensor *dt_einsum(const char *equation, dt_tensor *const *in, int n)
{
    enum { MOST = 16 };
    dt__term    term[MOST], out;
    char        needed[MOST * DT_MAX_DIMS + DT_MAX_DIMS + 1];
    const char *p = equation;
    if (dt__err.code != DT_OK) return NULL;
    if (!equation || !in || n < 1 || n > MOST) {
        dt_fail(DT_ERR_ARG, "dt_einsum: the equation or in is NULL, or %d operands; it takes 1 to %d", n, MOST);
        return NULL;
    }
    for (int k = 0; k < n; k++) {
        if (!dt__ok("dt_einsum", "an operand", in[k]) || !dt__same_device("dt_einsum", in[0], in[k])) return NULL;
        p = dt__term_read(&term[k], p, equation, k);
        if (!p) return NULL;
        term[k].t = in[k];
        if (term[k].n != in[k]->ndim || (k + 1 < n ? *p != ',' : *p == ',')) {
            dt_fail(DT_ERR_ARG, "dt_einsum: operand %d of %d in \"%s\" has %d letters, the tensor is %s", k, n, equation, term[k].n, dt__text(in[k]));
            return NULL;
        }
        if (*p == ',') p++;
    }
    out.n = 0;
    if (*p == '-') {
        if (p[1] != '>') {
            dt_fail(DT_ERR_ARG, "dt_einsum: '-' without '>' in \"%s\"", equation);
            return NULL;
        }
        p = dt__term_read(&out, p + 2, equation, n);
        if (!p) return NULL;
        if (*p) {
            dt_fail(DT_ERR_ARG, "dt_einsum: \"%s\" has \"%s\" behind the letters of the result", equation, p);
            return NULL;
        }
    } else { /* letters that occur once, in the order of the alphabet: A-Z before a-z */
        for (char l = 'A'; l <= 'z'; l++) {
            int seen = 0;
            for (int k = 0; k < n; k++) seen += dt__letter_at(&term[k], l) >= 0;
            if (seen != 1) continue;
            if (out.n == DT_MAX_DIMS) {
                dt_fail(DT_ERR_SHAPE, "dt_einsum: the result of \"%s\" has more than %d dimensions", equation, DT_MAX_DIMS);
                return NULL;
            }
            out.letter[out.n++] = l;
        }
    }
    for (int i = 0; i < out.n; i++) {
        bool found = false;
        for (int k = 0; k < n; k++) found = found || dt__letter_at(&term[k], out.letter[i]) >= 0;
        if (!found) {
            dt_fail(DT_ERR_ARG, "dt_einsum: the letter %c of the result in \"%s\" is in no operand", out.letter[i], equation);
            return NULL;
        }
    }
    for (int k = 1; k <= n; k++) { /* what the result and the operands to come need */
        size_t m = (size_t)out.n;
        memcpy(needed, out.letter, m);
        for (int j = k + 1; j < n; j++) {
            memcpy(needed + m, term[j].letter, (size_t)term[j].n);
            m += (size_t)term[j].n;
        }
        needed[m] = 0;
        if (k < n ? !dt__term_product(&term[0], &term[k], needed) : !dt__term_sum(&term[0], needed, NULL)) return NULL;
    }
    dt_shape order;
    order.ndim = out.n;
    for (int i = 0; i < out.n; i++) order.dim[i] = dt__letter_at(&term[0], out.letter[i]);
    return dt_permute(term[0].t, order);
}

/* ==================================================================================================== >>pixels */
static int dt__resize_run(int kernel, dt_tensor *out, const dt_tensor *in, const void *u)
{
    dt_call c;
    dt__call_begin(&c, kernel);
    memcpy(&c.u, u, sizeof c.u);
    dt__view_dense(dt__out(&c, out), 3, out->shape[0] * out->shape[1], out->shape[2], out->shape[3]);
    dt__view_dense(dt__in(&c, in), 3, in->shape[0] * in->shape[1], in->shape[2], in->shape[3]);
    return out->numel ? dt__go(out->st->dev, &c) : 0;
}
static int dt__resize_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *x = n->in[0], *d = dt__dense("backward", g);
    dt_tensor *t = d ? dt__new("backward", x->st->dev, x->dtype, x->shape, x->ndim, DT_LAYOUT_PLAIN) : NULL;
    int        rc = t ? dt__resize_run(DT_K_resize_bwd, t, d, n->u) : DT_ERR_MEMORY;
    if (!rc) rc = dt__grad_put(x, t);
    dt__unref(t);
    dt__unref(d);
    return rc;
}
DT_API dt_tensor *dt_interpolate_with(dt_tensor *x, dt_interpolate_opts o)
{
    const char *call = "dt_interpolate";
    int64_t     shape[DT_MAX_DIMS];
    dt_call     c;
    if (!dt__ok(call, "x", x) || !dt__want_float(call, x)) return NULL;
    if (x->ndim != 4 || (x->numel && (!x->shape[2] || !x->shape[3]))) {
        dt_fail(DT_ERR_SHAPE, "%s: x is %s; it must be (n, c, h, w)", call, dt__text(x));
        return NULL;
    }
    if ((o.mode != DT_NEAREST && o.mode != DT_BILINEAR) || (o.align_corners && o.mode == DT_NEAREST)) {
        dt_fail(DT_ERR_ARG, "%s: .mode is %d%s; it must be DT_NEAREST or DT_BILINEAR, and align_corners is for the latter", call, (int)o.mode,
                o.align_corners ? " with .align_corners" : "");
        return NULL;
    }
    double scale[2] = { o.scale, o.scale_w != 0 ? o.scale_w : o.scale };
    int64_t size[2] = { o.size, o.size_w ? o.size_w : o.size };
    bool    sized = o.size != 0, scaled = o.scale != 0;
    for (int i = 0; i < 2 && sized != scaled; i++) {
        if (scaled && scale[i] > 0 && (double)x->shape[2 + i] * scale[i] < 1e15) size[i] = (int64_t)floor((double)x->shape[2 + i] * scale[i]);
        if (size[i] < 1) sized = scaled;
    }
    if (sized == scaled) {
        dt_fail(DT_ERR_ARG, "%s: .size %" PRId64 " x %" PRId64 ", .scale %g x %g for x %s; set either size or scale, so that the result has at "
                "least 1 pixel", call, o.size, o.size_w, o.scale, o.scale_w, dt__text(x));
        return NULL;
    }
    dt__call_begin(&c, DT_K_resize);
    c.u.resize.linear = o.mode == DT_BILINEAR;
    c.u.resize.align = o.align_corners;
    memcpy(shape, x->shape, sizeof shape);
    for (int i = 0; i < 2; i++) {
        float in = (float)x->shape[2 + i], out = (float)size[i]; /* in f32, as PyTorch computes it */
        shape[2 + i] = size[i];
        c.u.resize.scale[i] = o.align_corners ? size[i] > 1 ? (double)((in - 1) / (out - 1)) : 0
                              : scaled        ? (double)(float)(1 / scale[i])
                                              : (double)(in / out);
    }
    dt_tensor *d = dt__dense(call, x), *y = d ? dt__new(call, x->st->dev, x->dtype, shape, 4, DT_LAYOUT_PLAIN) : NULL;
    int        rc = y ? dt__resize_run(DT_K_resize, y, d, &c.u) : DT_ERR_MEMORY;
    dt__node  *n = rc ? NULL : dt__record("interpolate", y, dt__resize_bwd, 1, &x);
    if (n) memcpy(n->u, &c.u, sizeof c.u);
    dt__unref(d);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
/* (b, c, r1, r2, h, w) <-> (b, c, h, r1, w, r2), b: the leading dimensions */
static dt_tensor *dt__shuffled(const char *call, dt_tensor *x, int64_t r, bool back)
{
    dt_shape s, order, end;
    if (!dt__ok(call, "x", x)) return NULL;
    int64_t c = x->ndim >= 3 ? x->shape[x->ndim - 3] : 0, h = x->ndim >= 3 ? x->shape[x->ndim - 2] : 0, w = x->ndim >= 3 ? x->shape[x->ndim - 1] : 0;
    bool    fits = x->ndim >= 3 && r >= 1 && r <= INT32_MAX && (back ? h % r == 0 && w % r == 0 : c % (r * r) == 0);
    if (!fits) {
        dt_fail(DT_ERR_SHAPE, "%s: x is %s and r is %" PRId64 "; x must be (..., c, h, w), and %s a multiple of %s", call, dt__text(x), r,
                back ? "h and w" : "c", back ? "r" : "r^2");
        return NULL;
    }
    s.ndim = order.ndim = 6;
    s.dim[0] = 1;
    end.ndim = x->ndim;
    for (int i = 0; i + 3 < x->ndim; i++) s.dim[0] *= end.dim[i] = x->shape[i];
    int64_t *e = end.dim + x->ndim - 3;
    e[0] = back ? c * r * r : c / (r * r);
    e[1] = back ? h / r : h * r;
    e[2] = back ? w / r : w * r;
    static const int8_t to[2][6] = { { 0, 1, 4, 2, 5, 3 }, { 0, 1, 3, 5, 2, 4 } };
    s.dim[1] = back ? c : e[0];
    s.dim[2] = back ? e[1] : r;
    s.dim[3] = r;
    s.dim[4] = back ? e[2] : h;
    s.dim[5] = back ? r : w;
    for (int i = 0; i < 6; i++) order.dim[i] = to[back][i];
    dt_tensor *v = dt_reshape(x, s), *p = v ? dt_permute(v, order) : NULL;
    return p ? dt_reshape(p, end) : NULL;
}
DT_API dt_tensor *dt_pixel_shuffle(dt_tensor *x, int64_t r) { return dt__shuffled("dt_pixel_shuffle", x, r, false); }
DT_API dt_tensor *dt_pixel_unshuffle(dt_tensor *x, int64_t r) { return dt__shuffled("dt_pixel_unshuffle", x, r, true); }

/* ==================================================================================================== >>hinges */
static double dt__given(double v, double otherwise) { return v == DT_ZERO ? 0 : v == 0 ? otherwise : v; }
/* Checks the operands and replaces them by f32 ones; *dtype: of the result */
static bool dt__loss_ok(const char *call, dt_tensor **x, int n, dt_reduction reduction, int *dtype)
{
    dt_loss_opts o;
    DT__CLEAR(o);
    o.reduction = reduction;
    for (int i = 0; i < n; i++) {
        x[i] = dt__in_loss(x[i]);
        if (!dt__ok(call, "an operand", x[i]) || !dt__want_float(call, x[i]) || !dt__same_device(call, x[0], x[i])) return false;
        if (i == 0) *dtype = x[0]->dtype;
        x[i] = dt_cast(x[i], DT_F32);
    }
    return dt__reduction_ok(call, o) && dt__err.code == DT_OK;
}
/* The losses below compute in f32; the result has the dtype of the first operand. */
static dt_tensor *dt__loss_done(dt_tensor *l, dt_reduction reduction, int dtype)
{
    l = dt__loss_reduced(l, reduction);
    return l ? dt_cast(l, (dt_dtype)dtype) : NULL;
}
/* a where y is 1, b where y is -1, 0 elsewhere */
static dt_tensor *dt__by_sign(dt_tensor *y, dt_tensor *a, dt_tensor *b)
{
    dt_tensor *zero = a ? dt__ops_scalar(a, 0) : NULL, *one = dt__ops_scalar(y, 1), *minus = y->dtype == DT_U8 ? NULL : dt__ops_scalar(y, -1);
    dt_tensor *t = b && one ? dt_where(dt_eq(y, one), a, zero) : NULL;
    return !t || !minus ? t : dt_add(t, dt_where(dt_eq(y, minus), b, zero));
}
DT_API dt_tensor *dt_hinge_embedding_loss_with(dt_tensor *x, dt_tensor *y, dt_margin_opts o)
{
    int         dtype = DT_F32;
    const char *call = "dt_hinge_embedding_loss";
    if (!dt__loss_ok(call, &x, 1, o.reduction, &dtype) || !dt__ok(call, "y", y) || !dt__same_sizes(call, "x and y", x, y)) return NULL;
    dt_tensor *one = dt__ops_scalar(y, 1), *zero = dt__ops_scalar(x, 0), *apart = dt_relu(dt_rsub_scalar(x, dt__given(o.margin, 1)));
    if (!one || !apart) return NULL;
    if (y->dtype == DT_U8) return dt__loss_done(dt_where(dt_eq(y, one), x, dt_add(x, apart)), o.reduction, dtype);
    dt_tensor *minus = dt__ops_scalar(y, -1); /* as PyTorch: a y that is neither counts as both */
    return dt__loss_done(dt_add(dt_where(dt_ne(y, one), apart, zero), dt_where(dt_ne(y, minus), x, zero)), o.reduction, dtype);
}
DT_API dt_tensor *dt_margin_ranking_loss_with(dt_tensor *x1, dt_tensor *x2, dt_tensor *y, dt_margin_opts o)
{
    int         dtype = DT_F32;
    const char *call = "dt_margin_ranking_loss";
    dt_tensor  *x[2] = { x1, x2 };
    if (!dt__loss_ok(call, x, 2, o.reduction, &dtype) || !dt__ok(call, "y", y)) return NULL;
    if (!dt__same_sizes(call, "x1 and x2", x[0], x[1]) || !dt__same_sizes(call, "x1 and y", x[0], y)) return NULL;
    dt_tensor *l = dt_add_scalar(dt_mul(dt_neg(dt_cast(y, (dt_dtype)x[0]->dtype)), dt_sub(x[0], x[1])), dt__given(o.margin, 0));
    return dt__loss_done(dt_relu(l), o.reduction, dtype);
}
DT_API dt_tensor *dt_cosine_similarity(dt_tensor *x1, dt_tensor *x2, int dim)
{
    int         dtype = DT_F32;
    const char *call = "dt_cosine_similarity";
    dt_tensor  *x[2] = { x1, x2 };
    if (!dt__loss_ok(call, x, 2, DT_MEAN, &dtype) || !dt__dim_ok(call, &dim, x[0]->ndim > x[1]->ndim ? x[0]->ndim : x[1]->ndim)) return NULL;
    dim -= x[0]->ndim > x[1]->ndim ? x[0]->ndim : x[1]->ndim;
    for (int i = 0; i < 2; i++) {
        if (-dim > x[i]->ndim) {
            dt_fail(DT_ERR_SHAPE, "%s: x1 %s and x2 %s must both have the dimension %d", call, dt__text(x[0]), dt__text(x[1]), dim);
            return NULL;
        }
        x[i] = dt_div(x[i], dt_maximum_scalar(dt__reduce(call, DT_R_NORM, x[i], dt__over(dim, true)), 1e-8));
        if (!x[i]) return NULL;
    }
    dt_tensor *y = dt_sum_with(dt_mul(x[0], x[1]), dt__over(dim, false));
    return y ? dt_cast(y, (dt_dtype)dtype) : NULL;
}
DT_API dt_tensor *dt_cosine_embedding_loss_with(dt_tensor *x1, dt_tensor *x2, dt_tensor *y, dt_margin_opts o)
{
    int         dtype = DT_F32;
    const char *call = "dt_cosine_embedding_loss";
    dt_tensor  *x[2] = { x1, x2 };
    if (!dt__loss_ok(call, x, 2, o.reduction, &dtype) || !dt__ok(call, "y", y) || !dt__same_sizes(call, "x1 and x2", x[0], x[1])) return NULL;
    if (x[0]->ndim < 1 || x[0]->ndim > 2 || y->ndim != x[0]->ndim - 1 || (y->ndim && y->shape[0] != x[0]->shape[0])) {
        dt_fail(DT_ERR_SHAPE, "%s: x1 %s and y %s do not match: they must be (n, d) and (n), or (d) and a number", call, dt__text(x[0]), dt__text(y));
        return NULL;
    }
    dt_reduce_opts r = dt__over(-1, false);
    dt_tensor     *m1 = dt_add_scalar(dt_sum_with(dt_mul(x[0], x[0]), r), 1e-12), *m2 = dt_add_scalar(dt_sum_with(dt_mul(x[1], x[1]), r), 1e-12);
    dt_tensor     *cosine = dt_div(dt_sum_with(dt_mul(x[0], x[1]), r), dt_sqrt(dt_mul(m1, m2)));
    dt_tensor     *l = cosine ? dt__by_sign(y, dt_rsub_scalar(cosine, 1), dt_relu(dt_sub_scalar(cosine, dt__given(o.margin, 0)))) : NULL;
    return dt__loss_done(l, o.reduction, dtype);
}
DT_API dt_tensor *dt_multi_margin_loss_with(dt_tensor *x, dt_tensor *y, dt_margin_opts o)
{
    int         dtype = DT_F32;
    const char *call = "dt_multi_margin_loss";
    double      p = o.p != 0 ? o.p : 1;
    if (!dt__loss_ok(call, &x, 1, o.reduction, &dtype) || !dt__index_ok(call, y, x)) return NULL;
    if (x->ndim != 2 || y->ndim != 1 || y->shape[0] != x->shape[0] || !x->shape[1] || (p != 1 && p != 2)) {
        dt_fail(DT_ERR_SHAPE, "%s: x %s, y %s, p %g; they must be (n, classes), (n), and 1 or 2", call, dt__text(x), dt__text(y), p);
        return NULL;
    }
    dt_tensor *at = dt_unsqueeze(y, 1), *own = dt_gather(x, 1, at);
    dt_tensor *m = own ? dt_relu(dt_add_scalar(dt_sub(x, own), dt__given(o.margin, 1))) : NULL;
    if (m && p == 2) m = dt_mul(m, m);
    dt_tensor *zero = m ? dt_zeros_with(dt_shape_of(at), dt__beside(m, m->dtype)) : NULL;
    m = zero ? dt_scatter(m, 1, at, zero) : NULL; /* not against itself */
    return m ? dt__loss_done(dt_div_scalar(dt_sum_with(m, dt__over(1, false)), (double)x->shape[1]), o.reduction, dtype) : NULL;
}
static dt_tensor *dt__distance(dt_tensor *a, dt_tensor *b, double p, double eps)
{
    dt_p_norm_opts n;
    DT__CLEAR(n);
    n.p = p;
    n.dims = DT_DIM(-1);
    return dt_norm_with(dt_add_scalar(dt_sub(a, b), eps), n);
}
DT_API dt_tensor *dt_triplet_margin_loss_with(dt_tensor *anchor, dt_tensor *positive, dt_tensor *negative, dt_margin_opts o)
{
    int         dtype = DT_F32;
    const char *call = "dt_triplet_margin_loss";
    dt_tensor  *x[3] = { anchor, positive, negative };
    double      p = o.p != 0 ? o.p : 2, eps = o.eps != 0 ? dt__given(o.eps, 0) : 1e-6;
    if (!dt__loss_ok(call, x, 3, o.reduction, &dtype)) return NULL;
    if (x[0]->ndim < 1 || !dt__same_sizes(call, "anchor and positive", x[0], x[1]) || !dt__same_sizes(call, "anchor and negative", x[0], x[2])) {
        if (dt_error_code() == DT_OK) dt_fail(DT_ERR_SHAPE, "%s: anchor is %s; it must have at least 1 dimension", call, dt__text(x[0]));
        return NULL;
    }
    dt_tensor *near_ = dt__distance(x[0], x[1], p, eps), *far_ = dt__distance(x[0], x[2], p, eps);
    if (o.swap && far_) far_ = dt_minimum(far_, dt__distance(x[1], x[2], p, eps));
    return dt__loss_done(dt_relu(dt_add_scalar(dt_sub(near_, far_), dt__given(o.margin, 1))), o.reduction, dtype);
}
DT_API dt_tensor *dt_sigmoid_focal_loss_with(dt_tensor *x, dt_tensor *y, dt_focal_opts o)
{
    int          dtype = DT_F32;
    const char  *call = "dt_sigmoid_focal_loss";
    dt_tensor   *t[2] = { x, y };
    double       alpha = dt__given(o.alpha, 0.25), gamma = dt__given(o.gamma, 2);
    dt_loss_opts none;
    DT__CLEAR(none);
    none.reduction = DT_NONE;
    if (!dt__loss_ok(call, t, 2, o.reduction, &dtype) || !dt__same_sizes(call, "x and y", t[0], t[1])) return NULL;
    dt_tensor *ce = dt_bce_with_logits_with(t[0], t[1], none), *p = dt_sigmoid(t[0]), *q = dt_rsub_scalar(t[1], 1);
    dt_tensor *wrong = dt_add(dt_mul(p, q), dt_mul(dt_rsub_scalar(p, 1), t[1])); /* 1 - p_t */
    dt_tensor *l = dt_mul(ce, gamma == 2 ? dt_mul(wrong, wrong) : dt_pow_scalar(wrong, gamma));
    if (alpha >= 0) l = dt_mul(l, dt_add(dt_mul_scalar(t[1], alpha), dt_mul_scalar(q, 1 - alpha)));
    return dt__loss_done(l, o.reduction, dtype);
}

/* ==================================================================================================== >>differences */
enum { DT__STEPS = 5 };
typedef struct dt__probe {
    dt_gradcheck_fn fn;
    void           *user;
    dt_tensor *const *in; /* copies of the inputs, which the probe moves */
    int             n;
    float          *weight, *value; /* of the elements of the result */
    int64_t         numel;
    double          size; /* sum of |weight * value|: what the rounding of values is relative to */
} dt__probe;
static double dt__probe_run(dt__probe *p) /* the weighted sum of the result, in double; the tape is off */
{
    double s = 0;
    dt_no_grad_begin();
    dt_tensor *y = p->fn(p->in, p->n, p->user), *f = y ? dt_cast(y, DT_F32) : NULL;
    dt_no_grad_end();
    if (!f || f->numel != p->numel) {
        if (dt__err.code == DT_OK) dt_fail(DT_ERR_GRAD, "dt_gradcheck: fn returned NULL, or a result of another size than before");
        return NAN;
    }
    if (dt_copy_out(f, p->value, (size_t)p->numel * sizeof(float)) != DT_OK) return NAN;
    p->size = 0;
    for (int64_t i = 0; i < p->numel; i++) {
        s += (double)p->weight[i] * (double)p->value[i];
        p->size += fabs((double)p->weight[i] * (double)p->value[i]);
    }
    return s;
}
/* The derivative by one element, and an estimate of its error (Ridders' extrapolation of central differences). */
static double dt__probe_slope(dt__probe *p, dt_tensor *x, float *host, int64_t at, double step, double *error)
{
    float  was = host[at];
    double table[DT__STEPS][DT__STEPS], noise[DT__STEPS] = { 0 }, best = NAN;
    *error = INFINITY;
    for (int k = 0; k < DT__STEPS && dt__err.code == DT_OK; k++, step /= 2) {
        double f[2], e[2];
        for (int side = 0; side < 2; side++) {
            host[at] = (float)((double)was + (side ? step : -step));
            e[side] = (double)host[at];
            dt_copy_in(x, host, (size_t)x->numel * sizeof(float));
            f[side] = dt__probe_run(p);
        }
        double h = e[1] - e[0], factor = 4;
        noise[k] = p->size * 0x1p-24 * 2 / h;
        table[0][k] = (f[1] - f[0]) / h;
        for (int j = 1; j <= k; j++, factor *= 4) {
            table[j][k] = (table[j - 1][k] * factor - table[j - 1][k - 1]) / (factor - 1);
            double a = fabs(table[j][k] - table[j - 1][k]), b = fabs(table[j][k] - table[j - 1][k - 1]), t = (a > b ? a : b) + noise[k];
            if (t < *error) {
                *error = t;
                best = table[j][k];
            }
        }
    }
    /* Of a smooth function each difference is nearer to the limit than the one before. Otherwise the agreement was chance. */
    double off = fabs(table[0][0] - best), most = off;
    bool   smooth = true;
    for (int k = 1; k < DT__STEPS && dt__err.code == DT_OK; k++) {
        double now = fabs(table[0][k] - best);
        smooth = smooth && now <= 0.6 * off + 4 * noise[k] + 2 * *error;
        off = now;
        if (now > most) most = now;
    }
    if (!smooth) *error = most;
    host[at] = was;
    dt_copy_in(x, host, (size_t)x->numel * sizeof(float));
    return best;
}
static dt_status dt__probe_input(dt__probe *p, int k, const float *grad, dt_gradcheck_opts o)
{
    dt_tensor *x = p->in[k];
    size_t     nbytes = (size_t)x->numel * sizeof(float);
    float     *host = (float *)dt_mem_alloc(nbytes + 4);
    int64_t    most = o.elements ? o.elements : 100, stride = x->numel > most ? (x->numel + most - 1) / most : 1;
    double     rtol = o.rtol != 0 ? o.rtol : 1e-3, atol = o.atol != 0 ? o.atol : 1e-4, step = o.step != 0 ? o.step : 1.0 / 32;
    if (!host) return (dt_status)dt_fail(DT_ERR_MEMORY, "dt_gradcheck: out of memory");
    dt_copy_out(x, host, nbytes);
    for (int64_t at = 0; at < x->numel && dt__err.code == DT_OK; at += stride) {
        double size = fabs((double)host[at]) > 1 ? fabs((double)host[at]) : 1, error;
        double got = (double)grad[at], want = dt__probe_slope(p, x, host, at, step * size, &error);
        double near_ = atol > rtol * fabs(want) ? atol : rtol * fabs(want);
        if (dt__err.code != DT_OK) break;
        if (!(error <= 50 * near_))
            dt_fail(DT_ERR_GRAD, "dt_gradcheck: element %" PRId64 " of input %d: nothing can be said: the differences give %.6g with an error of "
                    "%.2g (backward: %.6g); choose a smoother point, or other .step, .atol", at, k, want, error, got);
        else if (!(fabs(got - want) <= atol + rtol * fabs(want) + 2 * error))
            dt_fail(DT_ERR_GRAD, "dt_gradcheck: element %" PRId64 " of input %d: the gradient is %.9g, but differences of the values give %.9g "
                    "with an error of %.2g; correct the backward", at, k, got, want, error);
    }
    dt_mem_free(host, nbytes + 4);
    return dt__err.code;
}
DT_API dt_status dt_gradcheck_with(dt_gradcheck_fn fn, void *user, dt_tensor *const *in, int n, dt_gradcheck_opts o)
{
    enum { MOST = DT_FN_MAX_IN };
    const char *call = "dt_gradcheck";
    dt_tensor  *x[MOST];
    float      *grad[MOST];
    dt__probe   p;
    dt_rng      rng;
    memset(&p, 0, sizeof p);
    memset(x, 0, sizeof x);
    memset(grad, 0, sizeof grad);
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!fn || !in || n < 1 || n > MOST || o.elements < 0 || o.step < 0 || o.rtol < 0 || o.atol < 0)
        return (dt_status)dt_fail(DT_ERR_ARG, "%s: fn or in is NULL, %d inputs (1 to %d), or a negative option", call, n, MOST);
    for (int k = 0; k < n; k++) {
        if (!dt__ok(call, "an input", in[k])) return dt__err.code;
        if (in[k]->dtype != DT_F32)
            return (dt_status)dt_fail(DT_ERR_DTYPE, "%s: input %d is %s; it must be f32", call, k, dt__text(in[k]));
    }
    for (int k = 0; k < n; k++) { /* leaves of their own */
        dt_no_grad_begin();
        x[k] = dt_set_requires_grad(dt_detach(dt_clone(in[k])));
        dt_no_grad_end();
    }
    dt_tensor *y = dt__err.code == DT_OK ? fn(x, n, user) : NULL;
    if (!y && dt__err.code == DT_OK) dt_fail(DT_ERR_GRAD, "%s: fn returned NULL", call);
    p.fn = fn, p.user = user, p.in = x, p.n = n;
    p.numel = y ? y->numel : 0;
    p.weight = (float *)dt_mem_alloc((size_t)p.numel * sizeof(float) + 4);
    p.value = (float *)dt_mem_alloc((size_t)p.numel * sizeof(float) + 4);
    if ((!p.weight || !p.value) && dt__err.code == DT_OK) dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    if (dt__err.code == DT_OK) {
        dt_rng_seed(&rng, o.seed);
        for (int64_t i = 0; i < p.numel; i++) { /* in [1/2, 1] or [-1, -1/2], exact in every dtype */
            uint32_t u = dt_rng_u32(&rng);
            p.weight[i] = (float)(32 + (u & 31)) / 64 * (u >> 31 ? -1 : 1);
        }
        dt_make_opts     m = dt__beside(y, DT_F32);
        dt_backward_opts b;
        DT__CLEAR(b);
        b.grad = dt_cast(dt_from_with(p.weight, dt_shape_of(y), m), (dt_dtype)y->dtype);
        dt_backward_with(y, b);
    }
    for (int k = 0; k < n && dt__err.code == DT_OK; k++) {
        grad[k] = (float *)dt__alloc_zero((size_t)x[k]->numel * sizeof(float) + 4);
        if (!grad[k]) dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        else if (dt_grad(x[k])) dt_copy_out(dt_grad(x[k]), grad[k], (size_t)x[k]->numel * sizeof(float));
    }
    for (int k = 0; k < n && dt__err.code == DT_OK; k++) {
        x[k]->requires_grad = 0; /* the probe changes it in place */
        dt__probe_input(&p, k, grad[k], o);
    }
    for (int k = 0; k < n; k++) {
        if (x[k]) dt_mem_free(grad[k], (size_t)x[k]->numel * sizeof(float) + 4);
        dt_free(x[k]);
    }
    dt_mem_free(p.weight, (size_t)p.numel * sizeof(float) + 4);
    dt_mem_free(p.value, (size_t)p.numel * sizeof(float) + 4);
    return dt__err.code;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_OPS_IMPLEMENTATION */
