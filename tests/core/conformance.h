/* conformance.h: every public op as one row of one table: how to build it, what it computes (in double, written the
   plain way), which inputs have gradients, over which shapes and dtypes it runs. Used by test_conformance.c, which
   checks each row against its reference, and by test_golden.c, which checks the same rows against PyTorch.

   Contents: >>dtypes >>inputs >>references >>builders >>rows >>coverage
   To add an op: a builder, a reference, a row, its name in CF_ROWS, and the kernels it needs in
   >>coverage. A kernel or function in the backend's lists that nothing here covers does not compile. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "dt_layers.h"
#include "dt_ops.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CF_MAX_IN 8

/* ---------------------------------------------------------------------------------------------------- >>dtypes
   Own conversions, so that a wrong one in dt cannot hide. */
enum {
    CF_F32 = 1 << DT_F32,
    CF_F16 = 1 << DT_F16,
    CF_BF16 = 1 << DT_BF16,
    CF_I32 = 1 << DT_I32,
    CF_I64 = 1 << DT_I64,
    CF_U8 = 1 << DT_U8,
    CF_FLOATS = CF_F32 | CF_F16 | CF_BF16,
    CF_INTS = CF_I32 | CF_I64 | CF_U8,
    CF_ALL = CF_FLOATS | CF_INTS
};

static int cf_is_float(dt_dtype d) { return d == DT_F32 || d == DT_F16 || d == DT_BF16; }

/* Half the distance from 1 to the next value: the relative error of one rounding. */
static double cf_eps(dt_dtype d) { return d == DT_F32 ? 0x1p-24 : d == DT_F16 ? 0x1p-11 : d == DT_BF16 ? 0x1p-8 : 0; }

/* x rounded to p bits (ties to even), subnormals below 2^emin, infinity from 2^(emax+1). */
static double cf_round_bits(double x, int p, int emin, int emax)
{
    if (!isfinite(x) || x == 0) return x;
    int e = ilogb(x);
    if (e < emin) e = emin;
    double q = ldexp(1.0, e - p + 1), r = nearbyint(x / q) * q;
    return fabs(r) >= ldexp(1.0, emax + 1) ? copysign(INFINITY, x) : r;
}

static double cf_round(dt_dtype d, double x)
{
    if (d == DT_F32) return (double)(float)x; /* the machine's conversion rounds to nearest even */
    if (d == DT_F16) return cf_round_bits(x, 11, -14, 15);
    if (d == DT_BF16) return cf_round_bits(x, 8, -126, 127);
    return trunc(x);
}

static void cf_encode(dt_dtype d, double x, void *dst)
{
    if (d == DT_F32) {
        float v = (float)x;
        memcpy(dst, &v, 4);
        return;
    }
    x = cf_round(d, x);
    float    f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    if (d == DT_BF16) {
        uint16_t h = (uint16_t)(u >> 16);
        memcpy(dst, &h, 2);
    } else if (d == DT_F16) {
        uint16_t sign = (uint16_t)(u >> 16 & 0x8000), h;
        double   a = fabs(x);
        if (isnan(x)) h = 0x7e00;
        else if (isinf(x)) h = (uint16_t)(sign | 0x7c00);
        else if (a < 0x1p-14) h = (uint16_t)(sign | (unsigned)(a * 0x1p24));
        else h = (uint16_t)(sign | (unsigned)((ilogb(a) + 15) << 10) | (unsigned)((a / ldexp(1, ilogb(a)) - 1) * 1024));
        memcpy(dst, &h, 2);
    } else if (d == DT_I32) {
        int32_t v = (int32_t)x;
        memcpy(dst, &v, 4);
    } else if (d == DT_I64) {
        int64_t v = (int64_t)x;
        memcpy(dst, &v, 8);
    } else {
        uint8_t v = (uint8_t)x;
        memcpy(dst, &v, 1);
    }
}

static double cf_decode(dt_dtype d, const void *src)
{
    uint32_t u = 0;
    uint16_t h = 0;
    float    f;
    int32_t  i32;
    int64_t  i64;
    switch (d) {
    case DT_F32: memcpy(&f, src, 4); return f;
    case DT_BF16:
        memcpy(&h, src, 2);
        u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
        return f;
    case DT_F16:
        memcpy(&h, src, 2);
        {
            int    e = h >> 10 & 31;
            double m = h & 1023, v = e == 31  ? (m > 0 ? (double)NAN : (double)INFINITY)
                                     : e == 0 ? m * 0x1p-24
                                              : ldexp(1 + m / 1024, e - 15);
            return h & 0x8000 ? -v : v;
        }
    case DT_I32: memcpy(&i32, src, 4); return i32;
    case DT_I64: memcpy(&i64, src, 8); return (double)i64;
    default: return *(const uint8_t *)src;
    }
}

/* ---------------------------------------------------------------------------------------------------- >>inputs */
typedef struct cf_arr { /* a dense array of doubles */
    int     ndim;       /* -1: absent */
    int64_t dim[DT_MAX_DIMS];
    int64_t n; /* elements */
    double *v;
    int64_t room;  /* elements v has room for */
    double  terms; /* outputs: how many terms one element sums, for the tolerance */
    int     is_int;
} cf_arr;

/* One thing to run. spec: the inputs, separated by blanks: sizes joined by x ("2x3"), s for a 0-dim tensor, - for an
   absent one; then a colon and letters. Dtype: f f32, h f16, b bf16, i i64, j i32, u u8 (default: the run's dtype).
   View: t last two dims swapped, n narrowed in the last dim, m narrowed in the first, e expanded in the first dim,
   p a (n, h, w, c) image seen as (n, c, h, w), k every second element of the last dim (select of a pair), l in the
   layout the device keeps images in (the result of a pooling with windows of one pixel). */
typedef struct cf_case {
    const char *spec;
    int64_t     i[10];
    double      d[4];
} cf_case;

typedef enum cf_gen {
    CF_UNIFORM = 0, /* in [lo, hi), away from the row's kinks */
    CF_DISTINCT,    /* no two equal, exact in every dtype (up to 257 elements) */
    CF_EVEN,        /* k/32: never nearer than 1/64 to ... */
    CF_ODD,         /* ... k/32 + 1/64 */
    CF_GRID,        /* -2, -1, 0, 1, 2: full of ties */
    CF_INDEX        /* 0 .. the case's i[9] - 1 */
} cf_gen;

typedef struct cf_ctx cf_ctx;
typedef dt_tensor *(*cf_build_fn)(dt_tensor **in, const cf_case *c);
typedef void (*cf_ref_fn)(const cf_ctx *x, cf_arr *out);

typedef struct cf_row {
    const char *name;
    cf_build_fn build;
    cf_ref_fn   ref;
    double (*f1)(double x, const cf_case *c);           /* of cf_ref_unary */
    double (*f2)(double x, double y, const cf_case *c); /* of cf_ref_binary */
    unsigned       dtypes;                              /* CF_... */
    unsigned       grad;                                /* bit i: input i has a gradient */
    cf_gen         gen[CF_MAX_IN];
    double         range[CF_MAX_IN][2]; /* CF_UNIFORM; both 0: -1 to 1 */
    int            nkink;               /* CF_UNIFORM: stay off kink[], and off the case's d[] */
    double         kink[2];
    int            kink_d;
    double         scale;     /* size of a summed term, for the tolerance; 0: 1 */
    int            out_dtype; /* 0: the run's; else 1 + dtype */
    const cf_case *cases;     /* until spec is NULL; the large ones come last */
} cf_row;

typedef struct cf_input {
    int      present;
    dt_dtype dtype;
    char     view; /* a letter of the spec, or 0 */
    dt_shape base_shape;
    int64_t  nbase;
    double  *base;  /* the values of the leaf, rounded to dtype ... */
    char    *bytes; /* ... and as dt gets them */
    int64_t *map;   /* element of the op's operand -> element of base */
} cf_input;

struct cf_ctx {
    const cf_row  *row;
    const cf_case *c;
    dt_dtype       dtype;
    int            nin;
    cf_input       input[CF_MAX_IN];
    cf_arr         in[CF_MAX_IN]; /* what the op sees */
};

static uint64_t cf_rand(uint64_t *s) /* splitmix64 */
{
    uint64_t z = (*s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static double cf_rand01(uint64_t *s) { return (double)(cf_rand(s) >> 11) * 0x1p-53; }

static int64_t cf_numel(const dt_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++) n *= s->dim[i];
    return n;
}

static void cf_out(cf_arr *a, int ndim, const int64_t *dim, double terms)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= a->dim[i] = dim[i];
    if (n > a->room || !a->v) {
        free(a->v);
        a->v = (double *)malloc((size_t)(n + 1) * sizeof(double));
        a->room = n;
    }
    a->ndim = ndim;
    a->n = n;
    a->terms = terms;
}

/* Parses one operand of a spec; returns what follows, or NULL at the end. */
static const char *cf_parse(const char *s, dt_dtype run, cf_input *in, cf_arr *a)
{
    while (*s == ' ') s++;
    if (!*s) return NULL;
    memset(in, 0, sizeof *in);
    memset(a, 0, sizeof *a);
    in->dtype = run;
    a->ndim = -1;
    if (*s == '-') return s + 1;
    in->present = 1;
    a->ndim = 0;
    if (*s == 's') s++;
    while (*s >= '0' && *s <= '9') {
        char *end;
        a->dim[a->ndim++] = strtoll(s, &end, 10);
        s = *end == 'x' ? end + 1 : end;
    }
    if (*s == ':')
        for (s++; *s && *s != ' '; s++) {
            const char *d = strchr("fhbjiu", *s);
            if (d) in->dtype = (dt_dtype)(d - "fhbjiu");
            else in->view = *s;
        }
    a->is_int = !cf_is_float(in->dtype);
    return s;
}

/* The leaf's shape under a view letter, and which of its elements each element of the operand is. */
static void cf_map(cf_input *in, const cf_arr *a)
{
    dt_shape *b = &in->base_shape;
    int       n = a->ndim, last = n - 1;
    int64_t   stride[DT_MAX_DIMS] = { 0 }, offset = 0, s = 1;
    b->ndim = n;
    for (int i = 0; i < n; i++) b->dim[i] = a->dim[i];
    if (in->view == 't') b->dim[last] = a->dim[last - 1], b->dim[last - 1] = a->dim[last];
    if (in->view == 'n') b->dim[last] += 3;
    if (in->view == 'm') b->dim[0] += 2;
    if (in->view == 'e') b->dim[0] = 1;
    if (in->view == 'p') b->dim[1] = a->dim[2], b->dim[2] = a->dim[3], b->dim[3] = a->dim[1];
    if (in->view == 'k') b->dim[b->ndim++] = 2;
    for (int i = b->ndim - 1; i >= 0; i--) stride[i] = s, s *= b->dim[i];
    if (in->view == 't') s = stride[last], stride[last] = stride[last - 1], stride[last - 1] = s;
    if (in->view == 'n') offset = 1;
    if (in->view == 'm') offset = stride[0];
    if (in->view == 'e') stride[0] = 0;
    if (in->view == 'p') s = stride[3], stride[3] = stride[2], stride[2] = stride[1], stride[1] = s;
    if (in->view == 'k') offset = 1;
    in->nbase = cf_numel(b);
    in->map = (int64_t *)malloc((size_t)(a->n + 1) * sizeof(int64_t));
    for (int64_t e = 0; e < a->n; e++) {
        int64_t rest = e, at = offset;
        for (int i = last; i >= 0; i--) at += rest % a->dim[i] * stride[i], rest /= a->dim[i];
        in->map[e] = at;
    }
}

static double cf_value(const cf_ctx *x, int which, int64_t e, const int *perm, uint64_t *seed)
{
    const cf_row *r = x->row;
    dt_dtype      d = x->input[which].dtype;
    cf_gen        gen = r->gen[which];
    if (gen == CF_INDEX) return (double)(int64_t)(cf_rand(seed) % (uint64_t)(x->c->i[9] > 0 ? x->c->i[9] : 1));
    if (!cf_is_float(d)) return (double)(int64_t)(cf_rand(seed) % 11) - (d == DT_U8 ? 0 : 5);
    if (gen == CF_DISTINCT && x->input[which].nbase <= 257) return (perm[e] - 128) / 64.0;
    if (gen == CF_EVEN || gen == CF_ODD)
        return ((double)(int64_t)(cf_rand(seed) % 128) - 64) / 32 + (gen == CF_ODD ? 1.0 / 64 : 0);
    if (gen == CF_GRID) return (double)(int64_t)(cf_rand(seed) % 5) - 2;
    double lo = r->range[which][0], hi = r->range[which][1];
    if (lo == 0 && hi == 0) lo = -1, hi = 1;
    for (;;) {
        double v = lo + (hi - lo) * cf_rand01(seed), near = 1;
        for (int k = 0; k < r->nkink; k++) near = fmin(near, fabs(v - r->kink[k]));
        for (int k = 0; k < r->kink_d; k++) near = fmin(near, fabs(v - x->c->d[k]));
        if (near > 0.03 * (hi - lo) / 4) return v;
    }
}

/* The operands' values from the leaves'. */
static void cf_gather_base(cf_ctx *x, int which)
{
    for (int64_t e = 0; e < x->in[which].n; e++) x->in[which].v[e] = x->input[which].base[x->input[which].map[e]];
}

/* After base is set. */
static void cf_input_ready(cf_ctx *x, int which)
{
    cf_input *in = &x->input[which];
    size_t    size = dt_dtype_nbytes(in->dtype);
    in->bytes = (char *)malloc((size_t)in->nbase * size + 1);
    for (int64_t e = 0; e < in->nbase; e++) cf_encode(in->dtype, in->base[e], in->bytes + (size_t)e * size);
    cf_gather_base(x, which);
}

static void cf_fill_input(cf_ctx *x, int which, uint64_t *seed)
{
    cf_input *in = &x->input[which];
    int       perm[257];
    for (int i = 0; i < 257; i++) perm[i] = i;
    for (int i = 256; i > 0; i--) {
        int j = (int)(cf_rand(seed) % (uint64_t)(i + 1)), t = perm[i];
        perm[i] = perm[j];
        perm[j] = t;
    }
    in->base = (double *)malloc((size_t)(in->nbase + 1) * sizeof(double));
    for (int64_t e = 0; e < in->nbase; e++) in->base[e] = cf_round(in->dtype, cf_value(x, which, e, perm, seed));
    cf_input_ready(x, which);
}

static void cf_ctx_init(cf_ctx *x, const cf_row *row, const cf_case *c, dt_dtype dtype)
{
    const char *s = c->spec;
    memset(x, 0, sizeof *x);
    x->row = row;
    x->c = c;
    x->dtype = dtype;
    for (; x->nin < CF_MAX_IN && (s = cf_parse(s, dtype, &x->input[x->nin], &x->in[x->nin])) != NULL; x->nin++) {
        cf_arr *a = &x->in[x->nin];
        if (a->ndim < 0) continue;
        cf_out(a, a->ndim, a->dim, 1);
        cf_map(&x->input[x->nin], a);
    }
    for (int i = x->nin; i < CF_MAX_IN; i++) x->in[i].ndim = -1;
}

/* Values that depend on the row, the case and the dtype only. */
static inline void cf_ctx_random(cf_ctx *x)
{
    uint64_t seed = 1469598103934665603u;
    for (const char *p = x->row->name; *p; p++) seed = (seed ^ (unsigned char)*p) * 1099511628211u;
    for (const char *p = x->c->spec; *p; p++) seed = (seed ^ (unsigned char)*p) * 1099511628211u;
    for (int i = 0; i < x->nin; i++)
        if (x->input[i].present) cf_fill_input(x, i, &seed);
}

static void cf_ctx_free(cf_ctx *x)
{
    for (int i = 0; i < CF_MAX_IN; i++) {
        free(x->in[i].v);
        free(x->input[i].base);
        free(x->input[i].bytes);
        free(x->input[i].map);
    }
}

static int cf_has_grad(const cf_ctx *x, int i)
{
    return x->input[i].present && (x->row->grad >> i & 1) && cf_is_float(x->input[i].dtype) && cf_is_float(x->dtype);
}

/* The operand i as a tensor: *leaf gets the tensor that holds the data. */
static dt_tensor *cf_tensor(const cf_ctx *x, int i, dt_tensor **leaf)
{
    const cf_input *in = &x->input[i];
    const cf_arr   *a = &x->in[i];
    int             n = a->ndim;
    dt_tensor      *t = dt_from(in->bytes, in->base_shape, .dtype = in->dtype);
    *leaf = cf_has_grad(x, i) ? dt_set_requires_grad(t) : t;
    t = *leaf;
    dt_shape sh = in->base_shape;
    switch (in->view) {
    case 't': return dt_transpose(t, -1, -2);
    case 'n': return dt_narrow(t, -1, 1, a->dim[n - 1]);
    case 'm': return dt_narrow(t, 0, 1, a->dim[0]);
    case 'e': sh.dim[0] = a->dim[0]; return dt_expand(t, sh);
    case 'p': return dt_permute(t, DT_SHAPE(0, 3, 1, 2));
    case 'k': return dt_select(t, -1, 1);
    case 'l': return cf_is_float(in->dtype) ? dt_avgpool2d(t, .kernel = 1) : t;
    default: return t;
    }
}

/* ---------------------------------------------------------------------------------------------------- >>references
   x->in[] -> out. Loops over output elements with the indices spelled out; speed is no aim. */
static void cf_unravel(int64_t e, int ndim, const int64_t *dim, int64_t *at)
{
    for (int i = ndim - 1; i >= 0; i--) at[i] = e % dim[i], e /= dim[i];
}

/* Element of a at the broadcast position 'at' of an ndim-dimensional output. */
static double cf_at(const cf_arr *a, int ndim, const int64_t *at)
{
    int64_t e = 0;
    for (int i = 0; i < a->ndim; i++) e = e * a->dim[i] + (a->dim[i] == 1 ? 0 : at[ndim - a->ndim + i]);
    return a->v[e];
}

static int cf_broadcast(const cf_ctx *x, int nin, int64_t *dim)
{
    int ndim = 0;
    for (int k = 0; k < nin; k++)
        if (x->in[k].ndim > ndim) ndim = x->in[k].ndim;
    for (int i = 0; i < ndim; i++) dim[i] = 1;
    for (int k = 0; k < nin; k++)
        for (int i = 0; i < x->in[k].ndim; i++)
            if (x->in[k].dim[i] != 1) dim[ndim - x->in[k].ndim + i] = x->in[k].dim[i];
    return ndim;
}

static void cf_ref_unary(const cf_ctx *x, cf_arr *out)
{
    cf_out(out, x->in[0].ndim, x->in[0].dim, 1);
    for (int64_t e = 0; e < out->n; e++) out->v[e] = x->row->f1(x->in[0].v[e], x->c);
}

static void cf_ref_binary(const cf_ctx *x, cf_arr *out)
{
    int64_t dim[DT_MAX_DIMS], at[DT_MAX_DIMS];
    int     ndim = cf_broadcast(x, 2, dim);
    cf_out(out, ndim, dim, 1);
    if (x->in[0].n == out->n && x->in[1].n == out->n) { /* the large cases: no index arithmetic */
        for (int64_t e = 0; e < out->n; e++) out->v[e] = x->row->f2(x->in[0].v[e], x->in[1].v[e], x->c);
        return;
    }
    for (int64_t e = 0; e < out->n; e++) {
        cf_unravel(e, ndim, dim, at);
        out->v[e] = x->row->f2(cf_at(&x->in[0], ndim, at), cf_at(&x->in[1], ndim, at), x->c);
    }
}

static void cf_ref_where(const cf_ctx *x, cf_arr *out)
{
    int64_t dim[DT_MAX_DIMS], at[DT_MAX_DIMS];
    int     ndim = cf_broadcast(x, 3, dim);
    cf_out(out, ndim, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        cf_unravel(e, ndim, dim, at);
        out->v[e] = cf_at(&x->in[cf_at(&x->in[0], ndim, at) != 0 ? 1 : 2], ndim, at);
    }
}

static void cf_ref_prelu(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0], *w = &x->in[1];
    int64_t       inner = 1, channels = a->ndim > 1 ? a->dim[1] : a->ndim ? a->dim[0] : 1;
    for (int i = 2; i < a->ndim; i++) inner *= a->dim[i];
    cf_out(out, a->ndim, a->dim, 1);
    for (int64_t e = 0; e < a->n; e++)
        out->v[e] = a->v[e] > 0 ? a->v[e] : a->v[e] * w->v[w->n == 1 ? 0 : e / inner % channels];
    out->terms = (double)(a->n / (w->n > 0 ? w->n : 1)) / (double)(a->n > 0 ? a->n : 1);
    if (out->terms < 1) out->terms = 1;
}

/* Reductions. i: mask of dims (0: all), keepdim, biased. */
static uint32_t cf_dims(const cf_case *c, int ndim)
{
    uint32_t mask = (uint32_t)c->i[0];
    return mask ? mask : ((uint32_t)1 << ndim) - 1;
}

typedef double (*cf_fold_fn)(const double *v, int64_t n, const cf_case *c);

static void cf_reduce(const cf_ctx *x, cf_arr *out, cf_fold_fn fold)
{
    const cf_arr *a = &x->in[0];
    uint32_t      mask = cf_dims(x->c, a->ndim);
    int64_t       kept[DT_MAX_DIMS], gone[DT_MAX_DIMS], shape[DT_MAX_DIMS], at[DT_MAX_DIMS], inner[DT_MAX_DIMS], n = 1;
    int           ndim = 0;
    for (int i = 0; i < a->ndim; i++) {
        int r = mask >> i & 1;
        kept[i] = r ? 1 : a->dim[i];
        gone[i] = r ? a->dim[i] : 1;
        n *= gone[i];
        if (!r || x->c->i[1]) shape[ndim++] = kept[i];
    }
    cf_out(out, ndim, shape, n > 0 ? (double)n : 1);
    double *v = (double *)malloc((size_t)(n + 1) * sizeof(double));
    for (int64_t e = 0; e < out->n; e++) {
        cf_unravel(e, a->ndim, kept, at);
        for (int64_t k = 0; k < n; k++) {
            int64_t index = 0;
            cf_unravel(k, a->ndim, gone, inner);
            for (int i = 0; i < a->ndim; i++) index = index * a->dim[i] + at[i] + inner[i];
            v[k] = a->v[index];
        }
        out->v[e] = fold(v, n, x->c);
    }
    free(v);
}

static double cf_fold_sum(const double *v, int64_t n, const cf_case *c)
{
    double s = 0;
    (void)c;
    for (int64_t i = 0; i < n; i++) s += v[i];
    return s;
}
static double cf_fold_mean(const double *v, int64_t n, const cf_case *c) { return cf_fold_sum(v, n, c) / (double)n; }
static double cf_fold_argmax(const double *v, int64_t n, const cf_case *c)
{
    int64_t at = 0;
    (void)c;
    for (int64_t i = 1; i < n; i++)
        if (v[i] > v[at]) at = i;
    return (double)at;
}
static double cf_fold_max(const double *v, int64_t n, const cf_case *c) { return v[(int64_t)cf_fold_argmax(v, n, c)]; }
static double cf_fold_min(const double *v, int64_t n, const cf_case *c)
{
    double m = v[0];
    (void)c;
    for (int64_t i = 1; i < n; i++) m = fmin(m, v[i]);
    return m;
}
static double cf_fold_var(const double *v, int64_t n, const cf_case *c)
{
    double mean = cf_fold_mean(v, n, c), s = 0;
    for (int64_t i = 0; i < n; i++) s += (v[i] - mean) * (v[i] - mean);
    return s / (double)(c->i[2] ? n : n - 1);
}
static void cf_ref_sum(const cf_ctx *x, cf_arr *o) { cf_reduce(x, o, cf_fold_sum); }
static void cf_ref_mean(const cf_ctx *x, cf_arr *o)
{
    cf_reduce(x, o, cf_fold_mean);
    o->terms = 1; /* n terms of 1/n */
}
static void cf_ref_max(const cf_ctx *x, cf_arr *o) { cf_reduce(x, o, cf_fold_max); }
static void cf_ref_min(const cf_ctx *x, cf_arr *o) { cf_reduce(x, o, cf_fold_min); }
static void cf_ref_var(const cf_ctx *x, cf_arr *o)
{
    cf_reduce(x, o, cf_fold_var);
    o->terms = 1;
}
static void cf_ref_argmax(const cf_ctx *x, cf_arr *o) { cf_reduce(x, o, cf_fold_argmax); }

static void cf_ref_matmul(const cf_ctx *x, cf_arr *out)
{
    cf_arr  a = x->in[0], b = x->in[1];
    int     va = a.ndim == 1, vb = b.ndim == 1, ndim;
    int64_t dim[DT_MAX_DIMS], at[DT_MAX_DIMS];
    if (va) a.ndim = 2, a.dim[1] = a.dim[0], a.dim[0] = 1;
    if (vb) b.ndim = 2, b.dim[1] = 1;
    ndim = a.ndim > b.ndim ? a.ndim : b.ndim;
    int64_t m = a.dim[a.ndim - 2], k = a.dim[a.ndim - 1], n = b.dim[b.ndim - 1], batch = 1;
    for (int i = 0; i < ndim - 2; i++) {
        int64_t da = i - (ndim - a.ndim) >= 0 ? a.dim[i - (ndim - a.ndim)] : 1;
        int64_t db = i - (ndim - b.ndim) >= 0 ? b.dim[i - (ndim - b.ndim)] : 1;
        batch *= dim[i] = da == 1 ? db : da;
    }
    int64_t shape[DT_MAX_DIMS];
    int     no = 0;
    for (int i = 0; i < ndim - 2; i++) shape[no++] = dim[i];
    if (!va) shape[no++] = m;
    if (!vb) shape[no++] = n;
    cf_out(out, no, shape, k > 0 ? (double)k : 1);
    for (int64_t s = 0; s < batch; s++) {
        int64_t oa = 0, ob = 0;
        cf_unravel(s, ndim - 2, dim, at);
        for (int i = 0; i < ndim - 2; i++) {
            int ia = i - (ndim - a.ndim), ib = i - (ndim - b.ndim);
            if (ia >= 0) oa = oa * a.dim[ia] + (a.dim[ia] == 1 ? 0 : at[i]);
            if (ib >= 0) ob = ob * b.dim[ib] + (b.dim[ib] == 1 ? 0 : at[i]);
        }
        for (int64_t e = 0; e < m * n; e++) out->v[s * m * n + e] = 0;
        for (int64_t i = 0; i < m; i++)
            for (int64_t p = 0; p < k; p++)
                for (int64_t j = 0; j < n; j++)
                    out->v[(s * m + i) * n + j] += a.v[(oa * m + i) * k + p] * b.v[(ob * k + p) * n + j];
    }
}

static double cf_act(double v, int64_t act)
{
    return act == DT_ACT_RELU      ? (v > 0 ? v : 0)
           : act == DT_ACT_SIGMOID ? 1 / (1 + exp(-v))
           : act == DT_ACT_TANH    ? tanh(v)
                                   : v;
}

/* i: act */
static void cf_ref_linear(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0], *w = &x->in[1], *b = &x->in[2];
    int64_t       dim[DT_MAX_DIMS], k = w->dim[1], n = w->dim[0];
    for (int i = 0; i < a->ndim; i++) dim[i] = a->dim[i];
    dim[a->ndim - 1] = n;
    cf_out(out, a->ndim, dim, (double)(k > 0 ? k : 1));
    for (int64_t e = 0; e < out->n; e++) {
        double s = b->ndim >= 0 ? b->v[e % n] : 0;
        for (int64_t p = 0; p < k; p++) s += a->v[e / n * k + p] * w->v[e % n * k + p];
        out->v[e] = cf_act(s, x->c->i[0]);
    }
}

/* i: dim (from the end: negative), log */
static void cf_softmax(const cf_ctx *x, cf_arr *out, int lg)
{
    const cf_arr *a = &x->in[0];
    int           d = (int)(x->c->i[0] < 0 ? x->c->i[0] + a->ndim : x->c->i[0]);
    int64_t       inner = 1, n = a->ndim ? a->dim[d] : 1;
    for (int i = d + 1; i < a->ndim; i++) inner *= a->dim[i];
    cf_out(out, a->ndim, a->dim, n > 0 ? (double)n : 1);
    for (int64_t r = 0; out->n > 0 && r < out->n / n; r++) {
        const double *v = a->v + r / inner * n * inner + r % inner;
        double       *y = out->v + (v - a->v), top = -INFINITY, sum = 0;
        for (int64_t k = 0; k < n; k++) top = fmax(top, v[k * inner]);
        for (int64_t k = 0; k < n; k++) sum += exp(v[k * inner] - top);
        for (int64_t k = 0; k < n; k++)
            y[k * inner] = lg ? v[k * inner] - top - log(sum) : exp(v[k * inner] - top) / sum;
    }
}
static void cf_ref_softmax(const cf_ctx *x, cf_arr *o) { cf_softmax(x, o, 0); }
static void cf_ref_log_softmax(const cf_ctx *x, cf_arr *o) { cf_softmax(x, o, 1); }

/* i: stride h w, pad h w, dilation h w, groups, act */
static void cf_ref_conv2d(const cf_ctx *x, cf_arr *out)
{
    const cf_arr  *a = &x->in[0], *w = &x->in[1], *b = &x->in[2];
    const int64_t *p = x->c->i;
    int64_t        N = a->dim[0], C = a->dim[1], H = a->dim[2], W = a->dim[3];
    int64_t        O = w->dim[0], cg = w->dim[1], kh = w->dim[2], kw = w->dim[3], og = O / p[6];
    int64_t oh = (H + 2 * p[2] - p[4] * (kh - 1) - 1) / p[0] + 1, ow = (W + 2 * p[3] - p[5] * (kw - 1) - 1) / p[1] + 1;
    int64_t dim[4] = { N, O, oh, ow };
    cf_out(out, 4, dim, (double)(cg * kh * kw));
    for (int64_t e = 0; e < out->n; e++) {
        int64_t at[4];
        cf_unravel(e, 4, dim, at);
        int64_t o = at[1], c0 = o / og * cg;
        double  s = b->ndim >= 0 ? b->v[o] : 0;
        for (int64_t c = 0; c < cg; c++)
            for (int64_t y = 0; y < kh; y++)
                for (int64_t z = 0; z < kw; z++) {
                    int64_t iy = at[2] * p[0] - p[2] + y * p[4], iz = at[3] * p[1] - p[3] + z * p[5];
                    if (iy < 0 || iy >= H || iz < 0 || iz >= W) continue;
                    s += a->v[((at[0] * C + c0 + c) * H + iy) * W + iz] * w->v[((o * cg + c) * kh + y) * kw + z];
                }
        out->v[e] = cf_act(s, p[7]);
    }
}

/* Outputs of a pooling. PyTorch's rule for ceil_mode: the last window starts inside the image or its left pad. */
static int64_t cf_pool_size(int64_t n, int64_t k, int64_t s, int64_t pad, int64_t ceil_mode)
{
    int64_t o = (n + 2 * pad - k + (ceil_mode ? s - 1 : 0)) / s + 1;
    return ceil_mode && (o - 1) * s >= n + pad ? o - 1 : o;
}

/* i: kernel h w, stride h w, pad h w, ceil_mode, exclude_pad */
static void cf_pool(const cf_ctx *x, cf_arr *out, int max)
{
    const cf_arr  *a = &x->in[0];
    const int64_t *p = x->c->i;
    int64_t        H = a->dim[2], W = a->dim[3];
    int64_t        dim[4] = { a->dim[0], a->dim[1], cf_pool_size(H, p[0], p[2], p[4], p[6]),
                              cf_pool_size(W, p[1], p[3], p[5], p[6]) };
    cf_out(out, 4, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        int64_t at[4];
        cf_unravel(e, 4, dim, at);
        int64_t y0 = at[2] * p[2] - p[4], z0 = at[3] * p[3] - p[5];
        int64_t y1 = y0 + p[0] < H + p[4] ? y0 + p[0] : H + p[4], z1 = z0 + p[1] < W + p[5] ? z0 + p[1] : W + p[5];
        int64_t all = (y1 - y0) * (z1 - z0), inside = 0;
        double  s = 0, top = -INFINITY;
        for (int64_t y = y0 > 0 ? y0 : 0; y < y1 && y < H; y++)
            for (int64_t z = z0 > 0 ? z0 : 0; z < z1 && z < W; z++) {
                double v = a->v[((at[0] * a->dim[1] + at[1]) * H + y) * W + z];
                s += v;
                top = fmax(top, v);
                inside++;
            }
        out->v[e] = max ? top : s / (double)(p[7] ? inside : all);
    }
}
static void cf_ref_maxpool2d(const cf_ctx *x, cf_arr *o) { cf_pool(x, o, 1); }
static void cf_ref_avgpool2d(const cf_ctx *x, cf_arr *o) { cf_pool(x, o, 0); }

/* i: out h w */
static void cf_ref_adaptive_avgpool2d(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int64_t       H = a->dim[2], W = a->dim[3], oh = x->c->i[0], ow = x->c->i[1];
    int64_t       dim[4] = { a->dim[0], a->dim[1], oh, ow };
    cf_out(out, 4, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        int64_t at[4];
        double  s = 0;
        cf_unravel(e, 4, dim, at);
        int64_t y0 = at[2] * H / oh, y1 = ((at[2] + 1) * H + oh - 1) / oh;
        int64_t z0 = at[3] * W / ow, z1 = ((at[3] + 1) * W + ow - 1) / ow;
        for (int64_t y = y0; y < y1; y++)
            for (int64_t z = z0; z < z1; z++) s += a->v[((at[0] * a->dim[1] + at[1]) * H + y) * W + z];
        out->v[e] = s / (double)((y1 - y0) * (z1 - z0));
    }
}

/* in: x, weight, bias, running mean, running var, add. i: train, act. d: eps, momentum */
static void cf_ref_batch_norm(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0], *w = &x->in[1], *b = &x->in[2], *rm = &x->in[3], *rv = &x->in[4], *add = &x->in[5];
    int64_t       C = a->dim[1], inner = 1;
    double        eps = x->c->d[0] > 0 ? x->c->d[0] : 1e-5;
    for (int i = 2; i < a->ndim; i++) inner *= a->dim[i];
    int64_t per = a->dim[0] * inner;
    cf_out(out, a->ndim, a->dim, x->c->i[0] ? (double)(per > 0 ? per : 1) : 1);
    for (int64_t c = 0; c < C; c++) {
        double mean = 0, var = 0;
        if (x->c->i[0]) {
            for (int64_t k = 0; k < per; k++) mean += a->v[(k / inner * C + c) * inner + k % inner];
            mean /= (double)per;
            for (int64_t k = 0; k < per; k++) var += pow(a->v[(k / inner * C + c) * inner + k % inner] - mean, 2);
            var /= (double)per;
        } else {
            mean = rm->v[c];
            var = rv->v[c];
        }
        for (int64_t k = 0; k < per; k++) {
            int64_t e = (k / inner * C + c) * inner + k % inner;
            double  v = (a->v[e] - mean) / sqrt(var + eps);
            if (w->ndim >= 0) v *= w->v[c];
            if (b->ndim >= 0) v += b->v[c];
            if (add->ndim >= 0) v += add->v[e];
            out->v[e] = cf_act(v, x->c->i[1]);
        }
    }
}

/* i: dims. d: eps */
static void cf_norm(const cf_ctx *x, cf_arr *out, int rms)
{
    const cf_arr *a = &x->in[0], *w = &x->in[1], *b = &x->in[2];
    int64_t       n = 1;
    int           dims = x->c->i[0] ? (int)x->c->i[0] : 1;
    double        eps = x->c->d[0] > 0 ? x->c->d[0] : rms ? 1.1920929e-7 : 1e-5;
    for (int i = a->ndim - dims; i < a->ndim; i++) n *= a->dim[i];
    cf_out(out, a->ndim, a->dim, (double)(n > 0 ? n : 1));
    for (int64_t r = 0; n > 0 && r < a->n / n; r++) {
        const double *v = a->v + r * n;
        double        mean = 0, s = 0;
        for (int64_t k = 0; !rms && k < n; k++) mean += v[k] / (double)n;
        for (int64_t k = 0; k < n; k++) s += (v[k] - mean) * (v[k] - mean) / (double)n;
        for (int64_t k = 0; k < n; k++) {
            double y = (v[k] - mean) / sqrt(s + eps);
            if (w->ndim >= 0) y *= w->v[k];
            if (!rms && b->ndim >= 0) y += b->v[k];
            out->v[r * n + k] = y;
        }
    }
}
static void cf_ref_layer_norm(const cf_ctx *x, cf_arr *o) { cf_norm(x, o, 0); }
static void cf_ref_rms_norm(const cf_ctx *x, cf_arr *o) { cf_norm(x, o, 1); }

/* in: index, weight */
static void cf_ref_embedding(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *ix = &x->in[0], *w = &x->in[1];
    int64_t       dim[DT_MAX_DIMS], d = w->dim[1];
    for (int i = 0; i < ix->ndim; i++) dim[i] = ix->dim[i];
    dim[ix->ndim] = d;
    cf_out(out, ix->ndim + 1, dim, 1);
    for (int64_t e = 0; e < out->n; e++) out->v[e] = w->v[(int64_t)ix->v[e / d] * d + e % d];
}

/* in: a, index. i: dim */
static void cf_ref_gather(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0], *ix = &x->in[1];
    int           d = (int)(x->c->i[0] < 0 ? x->c->i[0] + a->ndim : x->c->i[0]);
    cf_out(out, ix->ndim, ix->dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        int64_t at[DT_MAX_DIMS];
        cf_unravel(e, ix->ndim, ix->dim, at);
        at[d] = (int64_t)ix->v[e];
        int64_t from = 0;
        for (int i = 0; i < a->ndim; i++) from = from * a->dim[i] + at[i];
        out->v[e] = a->v[from];
    }
}

/* in: any number. i: dim */
static void cf_ref_cat(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int           d = (int)(x->c->i[0] < 0 ? x->c->i[0] + a->ndim : x->c->i[0]);
    int64_t       dim[DT_MAX_DIMS], inner = 1, at = 0;
    for (int i = 0; i < a->ndim; i++) dim[i] = a->dim[i];
    for (int k = 1; k < x->nin; k++) dim[d] += x->in[k].dim[d];
    for (int i = d + 1; i < a->ndim; i++) inner *= dim[i];
    cf_out(out, a->ndim, dim, 1);
    for (int k = 0; k < x->nin; k++) {
        int64_t run = x->in[k].dim[d] * inner;
        for (int64_t e = 0; e < x->in[k].n; e++)
            out->v[e / run * dim[d] * inner + at * inner + e % run] = x->in[k].v[e];
        at += x->in[k].dim[d];
    }
}
static void cf_ref_stack(const cf_ctx *x, cf_arr *out)
{
    cf_ctx  u = *x; /* cat of operands with a dimension of 1 put in */
    int     d = (int)(x->c->i[0] < 0 ? x->c->i[0] + x->in[0].ndim + 1 : x->c->i[0]);
    cf_case c = *x->c;
    for (int k = 0; k < u.nin; k++) {
        for (int i = u.in[k].ndim; i > d; i--) u.in[k].dim[i] = u.in[k].dim[i - 1];
        u.in[k].dim[d] = 1;
        u.in[k].ndim++;
    }
    c.i[0] = d;
    u.c = &c;
    cf_ref_cat(&u, out);
}

/* i: how many pads, pads. d: value */
static void cf_ref_pad(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int64_t       dim[DT_MAX_DIMS], before[DT_MAX_DIMS] = { 0 }, at[DT_MAX_DIMS];
    for (int i = 0; i < a->ndim; i++) dim[i] = a->dim[i];
    for (int k = 0; k < (int)x->c->i[0] / 2; k++) {
        int i = a->ndim - 1 - k;
        before[i] = x->c->i[1 + 2 * k];
        dim[i] += before[i] + x->c->i[2 + 2 * k];
    }
    cf_out(out, a->ndim, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        int64_t from = 0;
        int     in = 1;
        cf_unravel(e, a->ndim, dim, at);
        for (int i = 0; i < a->ndim; i++) {
            int64_t k = at[i] - before[i];
            if (k < 0 || k >= a->dim[i]) in = 0;
            from = from * a->dim[i] + k;
        }
        out->v[e] = in ? a->v[from] : x->c->d[0];
    }
}

/* in: logits (n, c, ...), target (n, ...), weight. i: reduction, ignore index given, its value. d: label smoothing */
static void cf_cross_entropy(const cf_ctx *x, cf_arr *out, int nll)
{
    const cf_arr *a = &x->in[0], *t = &x->in[1], *w = &x->in[2];
    int64_t       C = a->dim[1], inner = 1, rows, ignore = x->c->i[1] ? x->c->i[2] : -100;
    double        total = 0, sum = 0, sm = nll ? 0 : x->c->d[0];
    for (int i = 2; i < a->ndim; i++) inner *= a->dim[i];
    rows = a->dim[0] * inner;
    cf_out(out, x->c->i[0] == DT_NONE ? t->ndim : 0, t->dim, (double)(x->c->i[0] == DT_SUM ? rows + C : C));
    for (int64_t r = 0; r < rows; r++) {
        const double *v = a->v + r / inner * C * inner + r % inner;
        int64_t       y = (int64_t)t->v[r];
        double        top = -INFINITY, s = 0, lse = 0, loss = 0, smooth = 0;
        for (int64_t k = 0; k < C; k++) top = fmax(top, v[k * inner]);
        for (int64_t k = 0; k < C; k++) s += exp(v[k * inner] - top);
        if (!nll) lse = top + log(s);
        if (y != ignore) {
            for (int64_t k = 0; k < C; k++) smooth += (lse - v[k * inner]) * (w->ndim >= 0 ? w->v[k] : 1);
            loss = (1 - sm) * (lse - v[y * inner]) * (w->ndim >= 0 ? w->v[y] : 1) + sm * smooth / (double)C;
            total += w->ndim >= 0 ? w->v[y] : 1;
        }
        sum += loss;
        if (x->c->i[0] == DT_NONE) out->v[r] = loss;
    }
    if (x->c->i[0] != DT_NONE) out->v[0] = x->c->i[0] == DT_SUM ? sum : sum / total;
}
static void cf_ref_cross_entropy(const cf_ctx *x, cf_arr *o) { cf_cross_entropy(x, o, 0); }
static void cf_ref_nll_loss(const cf_ctx *x, cf_arr *o) { cf_cross_entropy(x, o, 1); }

/* i: reduction; the row's f2 is the loss of one element */
static void cf_ref_loss(const cf_ctx *x, cf_arr *out)
{
    cf_ref_binary(x, out);
    if (x->c->i[0] == DT_NONE) return;
    double  s = 0;
    int64_t n = out->n;
    for (int64_t e = 0; e < n; e++) s += out->v[e];
    cf_out(out, 0, NULL, x->c->i[0] == DT_MEAN ? 1 : (double)n);
    out->v[0] = x->c->i[0] == DT_SUM ? s : s / (double)(x->c->i[0] == DT_BATCHMEAN ? x->in[0].dim[0] : n);
}

/* i: causal, window, offset. d: scale. Inputs 3 and 4: mask, lengths */
static int cf_attention_sees(const cf_ctx *x, int64_t b, int64_t h, int64_t t, int64_t s, double *add)
{
    const cf_arr  *m = &x->in[3], *len = &x->in[4];
    const int64_t *i = x->c->i;
    int64_t        at = 0, where[4] = { b, h, t, s };
    if (i[0] && (s > t + i[2] || (i[1] && s <= t + i[2] - i[1]))) return 0;
    if (x->nin > 4 && len->ndim == 1 && s >= len->v[b]) return 0;
    *add = 0;
    if (x->nin <= 3 || m->ndim < 0) return 1;
    for (int k = 0; k < m->ndim; k++) at = at * m->dim[k] + (m->dim[k] > 1 ? where[4 - m->ndim + k] : 0);
    if (m->is_int) return m->v[at] != 0;
    *add = m->v[at];
    return 1;
}
static void cf_ref_attention(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *q = &x->in[0], *k = &x->in[1], *v = &x->in[2];
    int64_t       H = q->dim[1], heads = q->dim[0] * H, T = q->dim[2], S = k->dim[2], D = q->dim[3], E = v->dim[3];
    double        scale = x->c->d[0] > 0 ? x->c->d[0] : 1 / sqrt((double)D);
    double       *p = (double *)malloc((size_t)(S + 1) * sizeof(double));
    int64_t       dim[4] = { q->dim[0], H, T, E };
    cf_out(out, 4, dim, (double)(S > 0 ? S : 1));
    for (int64_t r = 0; r < heads * T; r++) {
        int64_t t = r % T, h = r / T % H, b = r / T / H, kv = b * k->dim[1] + h / (H / k->dim[1]);
        double  top = -INFINITY, sum = 0, add = 0;
        for (int64_t s = 0; s < S; s++) {
            p[s] = cf_attention_sees(x, b, h, t, s, &add) ? add : -INFINITY;
            for (int64_t d = 0; d < D; d++) p[s] += scale * q->v[r * D + d] * k->v[(kv * S + s) * D + d];
            top = fmax(top, p[s]);
        }
        for (int64_t s = 0; s < S; s++) sum += p[s] = p[s] == -INFINITY ? 0 : exp(p[s] - top);
        for (int64_t d = 0; d < E; d++) out->v[r * E + d] = 0;
        for (int64_t s = 0; s < S && sum > 0; s++)
            for (int64_t d = 0; d < E; d++) out->v[r * E + d] += p[s] / sum * v->v[(kv * S + s) * E + d];
    }
    free(p);
}

/* i: cell. Inputs: x, w_ih, w_hh, b_ih, b_hh, h, c, lengths. The result: y, the last h, and the last c of an LSTM, one after the other */
static double cf_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static const double *cf_optional(const cf_ctx *x, int i) { return i < x->nin && x->in[i].ndim >= 0 ? x->in[i].v : NULL; }
static void cf_ref_recurrent(const cf_ctx *x, cf_arr *out)
{
    int           kind = (int)x->c->i[0], g = kind == DT_CELL_LSTM ? 4 : kind == DT_CELL_GRU ? 3 : 1;
    int64_t       T = x->in[0].dim[0], B = x->in[0].dim[1], I = x->in[0].dim[2], N = x->in[2].dim[1];
    const double *bi = cf_optional(x, 3), *bh = cf_optional(x, 4), *h0 = cf_optional(x, 5), *c0 = cf_optional(x, 6), *len = cf_optional(x, 7);
    int64_t       n = T * B * N + B * N * (kind == DT_CELL_LSTM ? 2 : 1);
    double       *a = (double *)malloc((size_t)(2 * g * N) * sizeof *a), *r = a + g * N;
    cf_out(out, 1, &n, (double)(I + N));
    double *h = out->v + T * B * N, *c = kind == DT_CELL_LSTM ? h + B * N : NULL;
    for (int64_t i = 0; i < B * N; i++) {
        h[i] = h0 ? h0[i] : 0;
        if (c) c[i] = c0 ? c0[i] : 0;
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t b = 0; b < B; b++) {
            double *y = out->v + (t * B + b) * N, *hb = h + b * N;
            int     over = len && t >= len[b];
            for (int64_t i = 0; i < g * N; i++) {
                a[i] = bi ? bi[i] : 0;
                r[i] = bh ? bh[i] : 0;
                for (int64_t k = 0; k < I; k++) a[i] += x->in[1].v[i * I + k] * x->in[0].v[(t * B + b) * I + k];
                for (int64_t k = 0; k < N; k++) r[i] += x->in[2].v[i * N + k] * hb[k];
            }
            for (int64_t i = 0; i < N; i++) {
                y[i] = 0;
                if (over) continue;
                if (c) {
                    double *cb = c + b * N;
                    cb[i] = cf_sigmoid(a[N + i] + r[N + i]) * cb[i] + cf_sigmoid(a[i] + r[i]) * tanh(a[2 * N + i] + r[2 * N + i]);
                    y[i] = cf_sigmoid(a[3 * N + i] + r[3 * N + i]) * tanh(cb[i]);
                } else if (kind == DT_CELL_GRU) {
                    double z = cf_sigmoid(a[N + i] + r[N + i]), m = tanh(a[2 * N + i] + cf_sigmoid(a[i] + r[i]) * r[2 * N + i]);
                    y[i] = (1 - z) * m + z * hb[i];
                } else {
                    y[i] = kind == DT_CELL_TANH ? tanh(a[i] + r[i]) : fmax(0, a[i] + r[i]);
                }
            }
            if (!over) memcpy(hb, y, (size_t)N * sizeof *y);
        }
    free(a);
}
/* i: stride, pad, output_pad, dilation, groups. Inputs: x, w, b */
static void cf_ref_conv_transpose2d(const cf_ctx *x, cf_arr *out)
{
    const cf_arr  *X = &x->in[0], *W = &x->in[1];
    const int64_t *i = x->c->i, G = i[4] ? i[4] : 1, s = i[0] ? i[0] : 1, d = i[3] ? i[3] : 1, per_in = X->dim[1] / G, per = W->dim[1];
    const double  *b = cf_optional(x, 2);
    int64_t        dim[4] = { X->dim[0], per * G, 0, 0 };
    for (int k = 2; k < 4; k++) dim[k] = (X->dim[k] - 1) * s - 2 * i[1] + d * (W->dim[k] - 1) + i[2] + 1;
    cf_out(out, 4, dim, (double)(per_in * W->dim[2] * W->dim[3]));
    for (int64_t e = 0; e < out->n; e++) out->v[e] = b ? b[e / (dim[2] * dim[3]) % dim[1]] : 0;
    for (int64_t n = 0; n < X->dim[0]; n++)
        for (int64_t ci = 0; ci < X->dim[1]; ci++)
            for (int64_t co = 0; co < per; co++)
                for (int64_t p = 0; p < X->dim[2] * X->dim[3]; p++)
                    for (int64_t k = 0; k < W->dim[2] * W->dim[3]; k++) {
                        int64_t oh = p / X->dim[3] * s - i[1] + k / W->dim[3] * d, ow = p % X->dim[3] * s - i[1] + k % W->dim[3] * d;
                        if (oh < 0 || oh >= dim[2] || ow < 0 || ow >= dim[3]) continue;
                        out->v[((n * dim[1] + ci / per_in * per + co) * dim[2] + oh) * dim[3] + ow] +=
                            X->v[(n * X->dim[1] + ci) * X->dim[2] * X->dim[3] + p] * W->v[(ci * per + co) * W->dim[2] * W->dim[3] + k];
                    }
}

/* Views: the row's reference is an index formula. */
static void cf_ref_same(const cf_ctx *x, cf_arr *out)
{
    cf_out(out, x->in[0].ndim, x->in[0].dim, 1);
    memcpy(out->v, x->in[0].v, (size_t)out->n * sizeof(double));
}
/* i: ndim, dims */
static void cf_ref_reshape(const cf_ctx *x, cf_arr *out)
{
    int64_t dim[DT_MAX_DIMS], known = 1;
    for (int i = 0; i < (int)x->c->i[0]; i++) {
        dim[i] = x->c->i[1 + i];
        if (dim[i] >= 0) known *= dim[i];
    }
    for (int i = 0; i < (int)x->c->i[0]; i++)
        if (dim[i] < 0) dim[i] = x->in[0].n / known;
    cf_out(out, (int)x->c->i[0], dim, 1);
    memcpy(out->v, x->in[0].v, (size_t)out->n * sizeof(double));
}
static void cf_ref_permute(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int64_t       dim[DT_MAX_DIMS], at[DT_MAX_DIMS], src[DT_MAX_DIMS];
    for (int i = 0; i < a->ndim; i++) dim[i] = a->dim[x->c->i[i]];
    cf_out(out, a->ndim, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        int64_t from = 0;
        cf_unravel(e, a->ndim, dim, at);
        for (int i = 0; i < a->ndim; i++) src[x->c->i[i]] = at[i];
        for (int i = 0; i < a->ndim; i++) from = from * a->dim[i] + src[i];
        out->v[e] = a->v[from];
    }
}
static void cf_ref_transpose(const cf_ctx *x, cf_arr *out)
{
    cf_ctx  u = *x;
    cf_case c = *x->c;
    int     n = x->in[0].ndim, p = (int)x->c->i[0], q = (int)x->c->i[1];
    if (p < 0) p += n;
    if (q < 0) q += n;
    for (int i = 0; i < n; i++) c.i[i] = i == p ? q : i == q ? p : i;
    u.c = &c;
    cf_ref_permute(&u, out);
}
/* i: dim, start, length */
static void cf_ref_narrow(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int64_t       dim[DT_MAX_DIMS], at[DT_MAX_DIMS];
    int           d = (int)(x->c->i[0] < 0 ? x->c->i[0] + a->ndim : x->c->i[0]);
    for (int i = 0; i < a->ndim; i++) dim[i] = i == d ? x->c->i[2] : a->dim[i];
    cf_out(out, a->ndim, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        int64_t from = 0;
        cf_unravel(e, a->ndim, dim, at);
        for (int i = 0; i < a->ndim; i++) from = from * a->dim[i] + at[i] + (i == d ? x->c->i[1] : 0);
        out->v[e] = a->v[from];
    }
}
static void cf_drop_dim(cf_arr *a, int d)
{
    for (int i = d; i + 1 < a->ndim; i++) a->dim[i] = a->dim[i + 1];
    a->ndim--;
}
static void cf_ref_select(const cf_ctx *x, cf_arr *out)
{
    cf_ctx  u = *x;
    cf_case c = *x->c;
    c.i[2] = 1;
    u.c = &c;
    cf_ref_narrow(&u, out);
    cf_drop_dim(out, (int)(c.i[0] < 0 ? c.i[0] + x->in[0].ndim : c.i[0]));
}
/* i: ndim, dims */
static void cf_ref_expand(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int64_t       dim[DT_MAX_DIMS], at[DT_MAX_DIMS];
    int           n = (int)x->c->i[0];
    for (int i = 0; i < n; i++) dim[i] = x->c->i[1 + i] < 0 ? a->dim[i - (n - a->ndim)] : x->c->i[1 + i];
    cf_out(out, n, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        cf_unravel(e, n, dim, at);
        out->v[e] = cf_at(a, n, at);
    }
}
static void cf_ref_squeeze(const cf_ctx *x, cf_arr *out)
{
    int d = (int)(x->c->i[0] < 0 ? x->c->i[0] + x->in[0].ndim : x->c->i[0]);
    cf_ref_same(x, out);
    if (out->dim[d] == 1) cf_drop_dim(out, d);
}
static void cf_ref_unsqueeze(const cf_ctx *x, cf_arr *out)
{
    int d = (int)(x->c->i[0] < 0 ? x->c->i[0] + x->in[0].ndim + 1 : x->c->i[0]);
    cf_ref_same(x, out);
    for (int i = out->ndim++; i > d; i--) out->dim[i] = out->dim[i - 1];
    out->dim[d] = 1;
}
static void cf_ref_flatten(const cf_ctx *x, cf_arr *out)
{
    cf_ref_same(x, out);
    for (int i = 2; i < out->ndim; i++) out->dim[1] *= out->dim[i];
    out->ndim = 2;
}
/* i: size, dim. The pieces in reverse order, the k-th times k + 1, joined again. */
static void cf_ref_split(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int64_t       size = x->c->i[0], at[DT_MAX_DIMS], dim = a->dim[x->c->i[1]], n = (dim + size - 1) / size;
    cf_out(out, a->ndim, a->dim, 1);
    for (int64_t e = 0; e < a->n; e++) {
        cf_unravel(e, a->ndim, a->dim, at);
        int64_t piece = at[x->c->i[1]] / size, last = dim - (n - 1) * size, to = 0;
        at[x->c->i[1]] = at[x->c->i[1]] % size + (piece == n - 1 ? 0 : last + (n - 2 - piece) * size);
        for (int i = 0; i < a->ndim; i++) to = to * a->dim[i] + at[i];
        out->v[to] = a->v[e] * (double)(piece + 1);
    }
}
/* i: dtype */
static void cf_ref_cast(const cf_ctx *x, cf_arr *out)
{
    cf_ref_same(x, out);
    if (!cf_is_float((dt_dtype)x->c->i[0]))
        for (int64_t e = 0; e < out->n; e++) out->v[e] = trunc(out->v[e]);
}

/* ---- dt_ops.h. A place of a tensor as (outer, j, inner) about dimension d, which may count from the end. */
typedef struct cf_axis {
    int64_t outer, n, inner;
    int     d;
} cf_axis;
static cf_axis cf_axis_of(const cf_arr *a, int64_t dim)
{
    cf_axis x = { 1, 1, 1, (int)(dim < 0 ? dim + a->ndim : dim) };
    for (int i = 0; i < a->ndim; i++) *(i < x.d ? &x.outer : i == x.d ? &x.n : &x.inner) *= a->dim[i];
    return x;
}
static double cf_fold_std(const double *v, int64_t n, const cf_case *c) { return sqrt(cf_fold_var(v, n, c)); }
static double cf_fold_prod(const double *v, int64_t n, const cf_case *c)
{
    double p = 1;
    (void)c;
    for (int64_t i = 0; i < n; i++) p *= v[i];
    return p;
}
static double cf_fold_logsumexp(const double *v, int64_t n, const cf_case *c)
{
    double s = 0;
    (void)c;
    for (int64_t i = 0; i < n; i++) s += exp(v[i]);
    return log(s);
}
static double cf_fold_argmin(const double *v, int64_t n, const cf_case *c)
{
    int64_t at = 0;
    (void)c;
    for (int64_t i = 1; i < n; i++)
        if (v[i] < v[at]) at = i;
    return (double)at;
}
static double cf_fold_norm(const double *v, int64_t n, const cf_case *c)
{
    double s = 0, p = c->d[0], top = 0, least = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        s += p == DT_ZERO ? v[i] != 0 : pow(fabs(v[i]), p > 0 ? p : 2);
        top = fmax(top, fabs(v[i]));
        least = fmin(least, fabs(v[i]));
    }
    return isinf(p) ? p > 0 ? top : least : p == DT_ZERO ? s : pow(s, 1 / (p > 0 ? p : 2));
}
static double cf_fold_any(const double *v, int64_t n, const cf_case *c)
{
    double any = 0;
    (void)c;
    for (int64_t i = 0; i < n; i++) any = v[i] != 0 ? 1 : any;
    return any;
}
static double cf_fold_all(const double *v, int64_t n, const cf_case *c)
{
    double all = 1;
    (void)c;
    for (int64_t i = 0; i < n; i++) all = v[i] != 0 ? all : 0;
    return all;
}
#define CF_REF_FOLD(name, count)                           \
    static void cf_ref_##name(const cf_ctx *x, cf_arr *o) \
    {                                                      \
        cf_reduce(x, o, cf_fold_##name);                   \
        if (count) o->terms = count;                       \
    }
CF_REF_FOLD(std, 1)
CF_REF_FOLD(prod, 0)
CF_REF_FOLD(logsumexp, 0)
CF_REF_FOLD(argmin, 1)
CF_REF_FOLD(norm, 1)
CF_REF_FOLD(any, 1)
CF_REF_FOLD(all, 1)
static void cf_ref_cumsum(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    cf_axis       p = cf_axis_of(a, x->c->i[0]);
    cf_out(out, a->ndim, a->dim, (double)(p.n > 0 ? p.n : 1));
    for (int64_t e = 0; e < out->n; e++) {
        int64_t j = e / p.inner % p.n;
        out->v[e] = a->v[e] + (j ? out->v[e - p.inner] : 0);
    }
}
/* The places along an axis, smallest (largest) first; equals by place. */
static void cf_places(const cf_arr *a, cf_axis p, int64_t o, int64_t i, int down, int64_t *at)
{
    for (int64_t j = 0; j < p.n; j++) {
        double  v = a->v[(o * p.n + j) * p.inner + i];
        int64_t k = j;
        for (; k > 0; k--) {
            double w = a->v[(o * p.n + at[k - 1]) * p.inner + i];
            if (down ? w >= v : w <= v) break;
            at[k] = at[k - 1];
        }
        at[k] = j;
    }
}
/* i: dim, how many (0: all), descending, places instead of values */
static void cf_ref_sort(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    cf_axis       p = cf_axis_of(a, x->c->i[0]);
    int64_t       k = x->c->i[1] ? x->c->i[1] : p.n, dim[DT_MAX_DIMS], *at = (int64_t *)malloc((size_t)(p.n + 1) * sizeof *at);
    for (int i = 0; i < a->ndim; i++) dim[i] = i == p.d ? k : a->dim[i];
    cf_out(out, a->ndim, dim, 1);
    for (int64_t o = 0; o < p.outer && out->n; o++)
        for (int64_t i = 0; i < p.inner; i++) {
            cf_places(a, p, o, i, x->c->i[2] != 0, at);
            for (int64_t j = 0; j < k; j++)
                out->v[(o * k + j) * p.inner + i] = x->c->i[3] ? (double)at[j] : a->v[(o * p.n + at[j]) * p.inner + i];
        }
    free(at);
}
static void cf_ref_one_hot(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int64_t       dim[DT_MAX_DIMS], n = x->c->i[9];
    for (int i = 0; i < a->ndim; i++) dim[i] = a->dim[i];
    dim[a->ndim] = n;
    cf_out(out, a->ndim + 1, dim, 1);
    for (int64_t e = 0; e < out->n; e++) out->v[e] = a->v[e / n] == (double)(e % n);
}
static void cf_ref_bincount(const cf_ctx *x, cf_arr *out) /* i: length */
{
    const cf_arr *w = &x->in[1];
    cf_out(out, 1, &x->c->i[0], (double)(x->in[0].n > 0 ? x->in[0].n : 1));
    memset(out->v, 0, (size_t)out->n * sizeof(double));
    for (int64_t e = 0; e < x->in[0].n; e++) out->v[(int64_t)x->in[0].v[e]] += w->ndim >= 0 ? w->v[e] : 1;
}
static void cf_ref_index_select(const cf_ctx *x, cf_arr *out) /* i: dim */
{
    const cf_arr *a = &x->in[0];
    cf_axis       p = cf_axis_of(a, x->c->i[0]);
    int64_t       dim[DT_MAX_DIMS], n = x->in[1].n;
    for (int i = 0; i < a->ndim; i++) dim[i] = i == p.d ? n : a->dim[i];
    cf_out(out, a->ndim, dim, 1);
    for (int64_t e = 0; e < out->n; e++)
        out->v[e] = a->v[(e / p.inner / n * p.n + (int64_t)x->in[1].v[e / p.inner % n]) * p.inner + e % p.inner];
}
/* in: a, src, keys: their places in order are the index, so none occurs twice; i: dim */
static void cf_ref_scatter(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0], *s = &x->in[1], *key = &x->in[2];
    cf_axis       p = cf_axis_of(key, x->c->i[0]);
    int64_t       at[DT_MAX_DIMS], *place = (int64_t *)malloc((size_t)(p.n + 1) * sizeof *place);
    cf_out(out, a->ndim, a->dim, 1);
    memcpy(out->v, a->v, (size_t)a->n * sizeof(double));
    for (int64_t e = 0; e < key->n; e++) {
        int64_t to = 0, from = 0;
        cf_places(key, p, e / p.inner / p.n, e % p.inner, 0, place);
        cf_unravel(e, key->ndim, key->dim, at);
        for (int i = 0; i < a->ndim; i++) from = from * s->dim[i] + at[i];
        at[p.d] = place[at[p.d]];
        for (int i = 0; i < a->ndim; i++) to = to * a->dim[i] + at[i];
        out->v[to] = s->v[from];
    }
    free(place);
}
/* in: a, index, src; i: dim */
static void cf_ref_scatter_add(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0], *index = &x->in[1], *s = &x->in[2];
    int           d = cf_axis_of(a, x->c->i[0]).d;
    int64_t       at[DT_MAX_DIMS];
    cf_out(out, a->ndim, a->dim, index->n > 0 ? 4 : 1);
    memcpy(out->v, a->v, (size_t)a->n * sizeof(double));
    for (int64_t e = 0; e < index->n; e++) {
        int64_t to = 0, from = 0;
        cf_unravel(e, index->ndim, index->dim, at);
        for (int i = 0; i < a->ndim; i++) from = from * s->dim[i] + at[i];
        at[d] = (int64_t)index->v[e];
        for (int i = 0; i < a->ndim; i++) to = to * a->dim[i] + at[i];
        out->v[to] += s->v[from];
    }
}
static void cf_ref_masked_fill(const cf_ctx *x, cf_arr *out) /* d: value */
{
    const cf_arr *a = &x->in[0];
    int64_t       at[DT_MAX_DIMS];
    cf_out(out, a->ndim, a->dim, 1);
    for (int64_t e = 0; e < a->n; e++) {
        cf_unravel(e, a->ndim, a->dim, at);
        out->v[e] = cf_at(&x->in[1], a->ndim, at) != 0 ? x->c->d[0] : a->v[e];
    }
}
static void cf_triangle(const cf_ctx *x, cf_arr *out, int upper) /* i: diagonal */
{
    const cf_arr *a = &x->in[0];
    int64_t       rows = a->dim[a->ndim - 2], cols = a->dim[a->ndim - 1];
    cf_out(out, a->ndim, a->dim, 1);
    for (int64_t e = 0; e < a->n; e++) {
        int64_t k = e % cols - e / cols % rows;
        out->v[e] = (upper ? k >= x->c->i[0] : k <= x->c->i[0]) ? a->v[e] : 0;
    }
}
static void cf_ref_tril(const cf_ctx *x, cf_arr *o) { cf_triangle(x, o, 0); }
static void cf_ref_triu(const cf_ctx *x, cf_arr *o) { cf_triangle(x, o, 1); }
static void cf_ref_roll(const cf_ctx *x, cf_arr *out) /* i: shift, dim */
{
    const cf_arr *a = &x->in[0];
    cf_axis       p = cf_axis_of(a, x->c->i[1]);
    cf_out(out, a->ndim, a->dim, 1);
    for (int64_t e = 0; e < a->n; e++) {
        int64_t j = e / p.inner % p.n, to = ((j + x->c->i[0]) % p.n + p.n) % p.n;
        out->v[e + (to - j) * p.inner] = a->v[e];
    }
}
static void cf_ref_flip(const cf_ctx *x, cf_arr *out) /* i: mask of dims */
{
    const cf_arr *a = &x->in[0];
    int64_t       at[DT_MAX_DIMS];
    cf_out(out, a->ndim, a->dim, 1);
    for (int64_t e = 0; e < a->n; e++) {
        int64_t from = 0;
        cf_unravel(e, a->ndim, a->dim, at);
        for (int i = 0; i < a->ndim; i++) from = from * a->dim[i] + (x->c->i[0] >> i & 1 ? a->dim[i] - 1 - at[i] : at[i]);
        out->v[e] = a->v[from];
    }
}
static void cf_ref_repeat(const cf_ctx *x, cf_arr *out) /* i: ndim, times */
{
    const cf_arr *a = &x->in[0];
    int64_t       dim[DT_MAX_DIMS], at[DT_MAX_DIMS], n = x->c->i[0], more = n - a->ndim;
    for (int i = 0; i < n; i++) dim[i] = x->c->i[1 + i] * (i < more ? 1 : a->dim[i - more]);
    cf_out(out, (int)n, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        int64_t from = 0;
        cf_unravel(e, (int)n, dim, at);
        for (int i = 0; i < a->ndim; i++) from = from * a->dim[i] + at[i + more] % a->dim[i];
        out->v[e] = a->v[from];
    }
}
static const char *const cf_equations[] = { "ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij->", "i,j->ij", "bhqd,bhkd->bhqk", "ij,ij->i",
                                            "ij,jk,kl->il", "ijk,jk->i", "ab,cb", "ijk->k" };
static void cf_ref_einsum(const cf_ctx *x, cf_arr *out) /* i: equation */
{
    const char *eq = cf_equations[x->c->i[0]], *arrow = strstr(eq, "->"), *result = arrow ? arrow + 2 : "ac";
    int64_t     size[128] = { 0 }, at[128], dim[DT_MAX_DIMS], total = 1, terms = 1;
    char        all[32] = "";
    int         k = 0, d = 0, n = 0;
    for (const char *p = eq; *p && p != arrow; p++) {
        if (*p == ',') {
            k++, d = 0;
            continue;
        }
        if (!strchr(all, *p)) all[n++] = *p;
        size[(int)*p] = x->in[k].dim[d++];
    }
    for (int i = 0; i < n; i++) total *= size[(int)all[i]];
    for (int i = 0; result[i]; i++) dim[i] = size[(int)result[i]];
    for (int i = 0; i < n; i++) terms *= strchr(result, all[i]) ? 1 : size[(int)all[i]];
    cf_out(out, (int)strlen(result), dim, (double)(terms > 0 ? terms : 1));
    memset(out->v, 0, (size_t)out->n * sizeof(double));
    for (int64_t e = 0; e < total; e++) {
        int64_t rest = e, to = 0, from = 0;
        double  v = 1;
        for (int i = n - 1; i >= 0; i--) at[(int)all[i]] = rest % size[(int)all[i]], rest /= size[(int)all[i]];
        for (const char *p = result; *p; p++) to = to * size[(int)*p] + at[(int)*p];
        k = 0;
        for (const char *p = eq;; p++) {
            if (*p == ',' || !*p || p == arrow) {
                v *= x->in[k++].v[from];
                from = 0;
                if (*p != ',') break;
            } else {
                from = from * size[(int)*p] + at[(int)*p];
            }
        }
        out->v[to] += v;
    }
}
/* i: size h w, bilinear, align_corners; d: factors instead of sizes */
static void cf_ref_interpolate(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0];
    int64_t       dim[4] = { a->dim[0], a->dim[1], x->c->i[0], x->c->i[1] }, at[4];
    double        scale[2];
    for (int k = 0; k < 2; k++) {
        if (x->c->d[0] > 0) dim[2 + k] = (int64_t)floor((double)a->dim[2 + k] * x->c->d[k]);
        scale[k] = x->c->i[3]       ? dim[2 + k] > 1 ? (double)(a->dim[2 + k] - 1) / (double)(dim[2 + k] - 1) : 0
                   : x->c->d[0] > 0 ? 1 / x->c->d[k]
                                    : (double)a->dim[2 + k] / (double)dim[2 + k];
    }
    cf_out(out, 4, dim, 4);
    for (int64_t e = 0; e < out->n; e++) {
        int64_t lo[2], hi[2];
        double  part[2];
        cf_unravel(e, 4, dim, at);
        for (int k = 0; k < 2; k++) {
            double f = x->c->i[2] && !x->c->i[3] ? fmax(((double)at[2 + k] + 0.5) * scale[k] - 0.5, 0) : (double)at[2 + k] * scale[k];
            lo[k] = (int64_t)floor(f + 1e-6);
            if (lo[k] > a->dim[2 + k] - 1) lo[k] = a->dim[2 + k] - 1;
            hi[k] = lo[k] < a->dim[2 + k] - 1 ? lo[k] + 1 : lo[k];
            part[k] = x->c->i[2] ? fmin(fmax(f - (double)lo[k], 0), 1) : 0;
        }
        const double *p = a->v + (at[0] * a->dim[1] + at[1]) * a->dim[2] * a->dim[3];
        int64_t       w = a->dim[3];
        out->v[e] = (1 - part[0]) * ((1 - part[1]) * p[lo[0] * w + lo[1]] + part[1] * p[lo[0] * w + hi[1]]) +
                    part[0] * ((1 - part[1]) * p[hi[0] * w + lo[1]] + part[1] * p[hi[0] * w + hi[1]]);
    }
}
static void cf_ref_pixel_shuffle(const cf_ctx *x, cf_arr *out) /* i: r, the inverse */
{
    const cf_arr *a = &x->in[0];
    int64_t       r = x->c->i[0], back = x->c->i[1], C = a->dim[1], H = a->dim[2], W = a->dim[3], at[4];
    int64_t       dim[4] = { a->dim[0], back ? C * r * r : C / (r * r), back ? H / r : H * r, back ? W / r : W * r };
    cf_out(out, 4, dim, 1);
    for (int64_t e = 0; e < out->n; e++) {
        cf_unravel(e, 4, dim, at);
        int64_t c = back ? at[1] / (r * r) : at[1] * r * r + at[2] % r * r + at[3] % r;
        int64_t h = back ? at[2] * r + at[1] / r % r : at[2] / r, w = back ? at[3] * r + at[1] % r : at[3] / r;
        out->v[e] = a->v[((at[0] * C + c) * H + h) * W + w];
    }
}
static void cf_mean_of(const cf_ctx *x, cf_arr *out) /* out: the losses of all elements; i: reduction */
{
    double  s = 0;
    int64_t n = out->n;
    if (x->c->i[0] == DT_NONE) return;
    for (int64_t e = 0; e < n; e++) s += out->v[e];
    cf_out(out, 0, NULL, x->c->i[0] == DT_MEAN ? 1 : (double)n);
    out->v[0] = x->c->i[0] == DT_SUM ? s : s / (double)n;
}
/* The losses over pairs of rows: y is 1 where in[2] is 1, else -1 (the builder makes it of a 0 or 1). */
static double cf_dot(const double *a, const double *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}
static double cf_distance(const double *a, const double *b, int64_t n, double p)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += pow(fabs(a[i] - b[i] + 1e-6), p);
    return pow(s, 1 / p);
}
static void cf_ref_hinge_embedding(const cf_ctx *x, cf_arr *out)
{
    cf_out(out, x->in[0].ndim, x->in[0].dim, 1);
    for (int64_t e = 0; e < out->n; e++)
        out->v[e] = x->in[1].v[e] > 0 ? x->in[0].v[e] : fmax(0, x->c->d[0] - x->in[0].v[e]);
    cf_mean_of(x, out);
}
static void cf_ref_margin_ranking(const cf_ctx *x, cf_arr *out)
{
    cf_out(out, x->in[0].ndim, x->in[0].dim, 1);
    for (int64_t e = 0; e < out->n; e++)
        out->v[e] = fmax(0, (x->in[2].v[e] > 0 ? -1 : 1) * (x->in[0].v[e] - x->in[1].v[e]) + x->c->d[0]);
    cf_mean_of(x, out);
}
static void cf_ref_cosine_embedding(const cf_ctx *x, cf_arr *out)
{
    int64_t n = x->in[0].dim[0], d = x->in[0].dim[1];
    cf_out(out, 1, &n, 1);
    for (int64_t r = 0; r < n; r++) {
        const double *a = x->in[0].v + r * d, *b = x->in[1].v + r * d;
        double        c = cf_dot(a, b, d) / sqrt(cf_dot(a, a, d) * cf_dot(b, b, d));
        out->v[r] = x->in[2].v[r] > 0 ? 1 - c : fmax(0, c - x->c->d[0]);
    }
    cf_mean_of(x, out);
}
static void cf_ref_cosine_similarity(const cf_ctx *x, cf_arr *out) /* over the last dimension */
{
    int64_t n = x->in[0].dim[0], d = x->in[0].dim[1];
    cf_out(out, 1, &n, 1);
    for (int64_t r = 0; r < n; r++) {
        const double *a = x->in[0].v + r * d, *b = x->in[1].v + r * d;
        out->v[r] = cf_dot(a, b, d) / sqrt(cf_dot(a, a, d) * cf_dot(b, b, d));
    }
}
static void cf_ref_multi_margin(const cf_ctx *x, cf_arr *out) /* d: margin, p */
{
    int64_t n = x->in[0].dim[0], c = x->in[0].dim[1];
    cf_out(out, 1, &n, 1);
    for (int64_t r = 0; r < n; r++) {
        int64_t y = (int64_t)x->in[1].v[r];
        double  s = 0;
        for (int64_t k = 0; k < c; k++)
            if (k != y) s += pow(fmax(0, x->c->d[0] - x->in[0].v[r * c + y] + x->in[0].v[r * c + k]), x->c->d[1]);
        out->v[r] = s / (double)c;
    }
    cf_mean_of(x, out);
}
static void cf_ref_triplet(const cf_ctx *x, cf_arr *out) /* i: reduction, swap; d: margin, p */
{
    int64_t n = x->in[0].dim[0], d = x->in[0].dim[1];
    cf_out(out, 1, &n, 1);
    for (int64_t r = 0; r < n; r++) {
        const double *a = x->in[0].v + r * d, *b = x->in[1].v + r * d, *c = x->in[2].v + r * d;
        double        far = cf_distance(a, c, d, x->c->d[1]);
        if (x->c->i[1]) far = fmin(far, cf_distance(b, c, d, x->c->d[1]));
        out->v[r] = fmax(0, cf_distance(a, b, d, x->c->d[1]) - far + x->c->d[0]);
    }
    cf_mean_of(x, out);
}
static double cf_focal(double x, double y, double alpha, double gamma)
{
    double p = 1 / (1 + exp(-x)), ce = fmax(x, 0) - x * y + log1p(exp(-fabs(x))), wrong = p * (1 - y) + (1 - p) * y;
    return ce * pow(wrong, gamma) * (alpha >= 0 ? alpha * y + (1 - alpha) * (1 - y) : 1);
}
/* in: logits (n, c, ...), target of the same shape, weight; i: reduction; d: smoothing */
static void cf_ref_cross_entropy_soft(const cf_ctx *x, cf_arr *out)
{
    const cf_arr *a = &x->in[0], *w = &x->in[2];
    cf_axis       p = cf_axis_of(a, 1);
    int64_t       dim[DT_MAX_DIMS];
    for (int i = 0, k = 0; i < a->ndim; i++)
        if (i != 1) dim[k++] = a->dim[i];
    cf_out(out, a->ndim - 1, dim, (double)p.n);
    for (int64_t e = 0; e < out->n; e++) {
        const double *v = a->v + e / p.inner * p.n * p.inner + e % p.inner, *t = x->in[1].v + (v - a->v);
        double        sum = 0, l = 0;
        for (int64_t k = 0; k < p.n; k++) sum += exp(v[k * p.inner]);
        for (int64_t k = 0; k < p.n; k++)
            l -= (w->ndim >= 0 ? w->v[k] : 1) * (t[k * p.inner] * (1 - x->c->d[0]) + x->c->d[0] / (double)p.n) * (v[k * p.inner] - log(sum));
        out->v[e] = l;
    }
    cf_mean_of(x, out);
}

/* ---------------------------------------------------------------------------------------------------- >>builders */
#define CF_B(name, expr)                                            \
    static dt_tensor *cf_b_##name(dt_tensor **in, const cf_case *c) \
    {                                                               \
        (void)in;                                                   \
        (void)c;                                                    \
        return expr;                                                \
    }
/* A unary op: the call, and what it computes of x. */
#define CF_U(name, call, value)                           \
    CF_B(name, call)                                      \
    static double cf_f_##name(double x, const cf_case *c) \
    {                                                     \
        (void)c;                                          \
        return value;                                     \
    }
#define CF_V(name, call, value)                                     \
    CF_B(name, call)                                                \
    static double cf_f_##name(double x, double y, const cf_case *c) \
    {                                                               \
        (void)c;                                                    \
        return value;                                               \
    }

CF_U(neg, dt_neg(in[0]), -x)
CF_U(abs, dt_abs(in[0]), fabs(x))
CF_U(sqrt, dt_sqrt(in[0]), sqrt(x))
CF_U(exp, dt_exp(in[0]), exp(x))
CF_U(log, dt_log(in[0]), log(x))
CF_U(clamp, dt_clamp(in[0], c->d[0], c->d[1]), fmin(fmax(x, c->d[0]), c->d[1]))
CF_U(relu, dt_relu(in[0]), x > 0 ? x : 0)
CF_U(leaky_relu, dt_leaky_relu(in[0], c->d[0]), x > 0 ? x : c->d[0] * x)
CF_U(gelu, dt_gelu(in[0]), 0.5 * x * erfc(-x * 0.70710678118654752440))
CF_U(gelu_tanh, dt_gelu_tanh(in[0]), 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))))
CF_U(silu, dt_silu(in[0]), x / (1 + exp(-x)))
CF_U(rsqrt, dt_rsqrt(in[0]), 1 / sqrt(x))
CF_U(reciprocal, dt_reciprocal(in[0]), 1 / x)
CF_U(log1p, dt_log1p(in[0]), log1p(x))
CF_U(expm1, dt_expm1(in[0]), expm1(x))
CF_U(sin, dt_sin(in[0]), sin(x))
CF_U(cos, dt_cos(in[0]), cos(x))
CF_U(tan, dt_tan(in[0]), tan(x))
CF_U(erf, dt_erf(in[0]), erf(x))
CF_U(sign, dt_sign(in[0]), (x > 0) - (x < 0))
CF_U(floor, dt_floor(in[0]), floor(x))
CF_U(ceil, dt_ceil(in[0]), ceil(x))
CF_U(round, dt_round(in[0]), nearbyint(x))
CF_U(elu, dt_elu(in[0], c->d[0]), x > 0 ? x : c->d[0] * expm1(x))
CF_U(selu, dt_selu(in[0]), 1.0507009873554804934 * (x > 0 ? x : 1.6732632423543772848 * expm1(x)))
CF_U(hardswish, dt_hardswish(in[0]), x *fmin(fmax(x + 3, 0), 6) / 6)
CF_U(mish, dt_mish(in[0]), x *tanh(log1p(exp(x))))
CF_U(logsigmoid, dt_logsigmoid(in[0]), fmin(x, 0) - log1p(exp(-fabs(x))))
CF_U(sigmoid, dt_sigmoid(in[0]), 1 / (1 + exp(-x)))
CF_U(tanh, dt_tanh(in[0]), tanh(x))
CF_U(softplus, dt_softplus(in[0], c->d[0]), c->d[0] * x > 20 ? x : log1p(exp(c->d[0] * x)) / c->d[0])
CF_U(add_scalar, dt_add_scalar(in[0], c->d[0]), x + c->d[0])
CF_U(sub_scalar, dt_sub_scalar(in[0], c->d[0]), x - c->d[0])
CF_U(mul_scalar, dt_mul_scalar(in[0], c->d[0]), x * c->d[0])
CF_U(div_scalar, dt_div_scalar(in[0], c->d[0]), x / c->d[0])
CF_U(rsub_scalar, dt_rsub_scalar(in[0], c->d[0]), c->d[0] - x)
CF_U(rdiv_scalar, dt_rdiv_scalar(in[0], c->d[0]), c->d[0] / x)
CF_U(pow_scalar, dt_pow_scalar(in[0], c->d[0]), pow(x, c->d[0]))
CF_U(maximum_scalar, dt_maximum_scalar(in[0], c->d[0]), fmax(x, c->d[0]))
CF_U(minimum_scalar, dt_minimum_scalar(in[0], c->d[0]), fmin(x, c->d[0]))
CF_V(add, dt_add(in[0], in[1]), x + y)
CF_V(sub, dt_sub(in[0], in[1]), x - y)
CF_V(mul, dt_mul(in[0], in[1]), x *y)
CF_V(div, dt_div(in[0], in[1]), x / y)
CF_V(pow, dt_pow(in[0], in[1]), pow(x, y))
CF_V(atan2, dt_atan2(in[0], in[1]), atan2(x, y))
CF_B(prelu, dt_prelu(in[0], in[1]))
CF_V(maximum, dt_maximum(in[0], in[1]), fmax(x, y))
CF_V(minimum, dt_minimum(in[0], in[1]), fmin(x, y))
CF_V(eq, dt_eq(in[0], in[1]), x == y)
CF_V(ne, dt_ne(in[0], in[1]), x != y)
CF_V(lt, dt_lt(in[0], in[1]), x < y)
CF_V(le, dt_le(in[0], in[1]), x <= y)
CF_V(gt, dt_gt(in[0], in[1]), x > y)
CF_V(ge, dt_ge(in[0], in[1]), x >= y)
CF_V(mse_loss, dt_mse_loss(in[0], in[1], .reduction = (dt_reduction)c->i[0]), (x - y) * (x - y))
CF_V(l1_loss, dt_l1_loss(in[0], in[1], .reduction = (dt_reduction)c->i[0]), fabs(x - y))
static double cf_smooth_l1(double d, double beta) { return fabs(d) < beta ? d * d / (2 * beta) : fabs(d) - beta / 2; }
CF_V(smooth_l1_loss, dt_smooth_l1_loss(in[0], in[1], .reduction = (dt_reduction)c->i[0], .beta = c->d[0]),
     cf_smooth_l1(x - y, c->d[0] > 0 ? c->d[0] : 1))
CF_V(bce_with_logits, dt_bce_with_logits(in[0], in[1], .reduction = (dt_reduction)c->i[0]),
     fmax(x, 0) - x * y + log1p(exp(-fabs(x))))
CF_B(where, dt_where(in[0], in[1], in[2]))
CF_V(kl_div, dt_kl_div(in[0], in[1], .reduction = (dt_reduction)c->i[0], .log_target = c->d[0] > 0),
     c->d[0] > 0 ? exp(y) * (y - x) : y * (log(y) - x))

static dt_reduce_opts cf_reduce_opts(const dt_tensor *a, const cf_case *c)
{
    dt_reduce_opts o;
    memset(&o, 0, sizeof o);
    o.keepdim = c->i[1] != 0;
    o.biased = c->i[2] != 0;
    for (int i = 0; i < DT_MAX_DIMS; i++) /* i[3]: count from the end */
        if (c->i[0] >> i & 1) o.dims |= DT_DIM(c->i[3] ? i - dt_ndim(a) : i);
    return o;
}
CF_B(sum, dt_sum_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(mean, dt_mean_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(max, dt_amax_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(min, dt_amin_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(var, dt_var_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(argmax, dt_argmax_with(in[0], cf_reduce_opts(in[0], c)))

CF_B(matmul, dt_matmul(in[0], in[1]))
CF_B(linear, dt_op_linear(in[0], in[1], in[2], .act = (dt_act)c->i[0]))
CF_B(softmax, dt_softmax(in[0], (int)c->i[0]))
CF_B(log_softmax, dt_log_softmax(in[0], (int)c->i[0]))
CF_B(conv2d, dt_op_conv2d(in[0], in[1], in[2], .stride = (int)c->i[0], .stride_w = (int)c->i[1], .pad = (int)c->i[2],
                          .pad_w = c->i[3] ? (int)c->i[3] : DT_ZERO, .dilation = (int)c->i[4],
                          .dilation_w = (int)c->i[5], .groups = (int)c->i[6], .act = (dt_act)c->i[7]))

static dt_pool_opts cf_pool_opts(const cf_case *c)
{
    dt_pool_opts o;
    memset(&o, 0, sizeof o);
    o.kernel = (int)c->i[0], o.kernel_w = (int)c->i[1];
    o.stride = (int)c->i[2], o.stride_w = (int)c->i[3];
    o.pad = (int)c->i[4], o.pad_w = c->i[5] ? (int)c->i[5] : DT_ZERO;
    o.ceil_mode = c->i[6] != 0;
    o.exclude_pad = c->i[7] != 0;
    return o;
}
CF_B(maxpool2d, dt_maxpool2d_with(in[0], cf_pool_opts(c)))
CF_B(avgpool2d, dt_avgpool2d_with(in[0], cf_pool_opts(c)))
CF_B(adaptive_avgpool2d, dt_adaptive_avgpool2d(in[0], c->i[0], c->i[1]))
CF_B(batch_norm, dt_op_batch_norm(in[0], in[1], in[2], in[3], in[4], .eval = c->i[0] == 0, .eps = c->d[0],
                                  .momentum = c->d[1], .act = (dt_act)c->i[1], .add = in[5]))
CF_B(layer_norm, dt_op_layer_norm(in[0], in[1], in[2], .normalized_dims = (int)c->i[0], .eps = c->d[0]))
CF_B(rms_norm, dt_op_rms_norm(in[0], in[1], .normalized_dims = (int)c->i[0], .eps = c->d[0]))
CF_B(embedding, dt_op_embedding(in[0], in[1]))
CF_B(gather, dt_gather(in[0], (int)c->i[0], in[1]))
static int cf_count(dt_tensor **in)
{
    int n = 0;
    while (n < CF_MAX_IN && in[n]) n++;
    return n;
}
CF_B(cat, dt_cat(in, cf_count(in), (int)c->i[0]))
CF_B(stack, dt_stack(in, cf_count(in), (int)c->i[0]))
CF_B(pad, dt_pad(in[0], c->i + 1, (int)c->i[0], c->d[0]))
static dt_loss_opts cf_ce_opts(const cf_case *c, dt_tensor *weight)
{
    dt_loss_opts o;
    memset(&o, 0, sizeof o);
    o.reduction = (dt_reduction)c->i[0];
    o.label_smoothing = c->d[0];
    o.ignore_index = c->i[1] ? (c->i[2] ? c->i[2] : DT_ZERO) : 0;
    o.weight = weight;
    return o;
}
CF_B(cross_entropy, dt_cross_entropy_with(in[0], in[1], cf_ce_opts(c, in[2])))
CF_B(nll_loss, dt_nll_loss_with(in[0], in[1], cf_ce_opts(c, in[2])))
CF_B(attention, dt_attention(in[0], in[1], in[2], .causal = c->i[0] != 0, .scale = c->d[0], .offset = c->i[2], .window = c->i[1],
                             .mask = in[3], .lengths = in[4]))
static dt_tensor *cf_flat(dt_tensor *x) { return dt_reshape(x, DT_SHAPE(-1)); }
static dt_tensor *cf_b_recurrent(dt_tensor **in, const cf_case *c)
{
    int        lstm = c->i[0] == DT_CELL_LSTM;
    dt_tensor *h = NULL, *cell = NULL, *part[3];
    dt_tensor *y = dt_op_recurrent((dt_cell)c->i[0], in[0], in + 1, .no_bias = !in[3], .h = in[5], .c = in[6], .lengths = in[7], .h_out = &h,
                                   .c_out = lstm ? &cell : NULL);
    part[0] = cf_flat(y);
    part[1] = cf_flat(h);
    part[2] = lstm ? cf_flat(cell) : NULL;
    return dt_cat(part, lstm ? 3 : 2, 0);
}
CF_B(conv_transpose2d, dt_op_conv_transpose2d(in[0], in[1], in[2], .stride = (int)c->i[0], .pad = (int)c->i[1], .dilation = (int)c->i[3],
                                              .output_pad = (int)c->i[2], .groups = (int)c->i[4]))

static dt_shape cf_shape(const int64_t *i)
{
    dt_shape s;
    memset(&s, 0, sizeof s);
    s.ndim = (int)i[0];
    for (int k = 0; k < s.ndim; k++) s.dim[k] = i[1 + k];
    return s;
}
static dt_shape cf_order(const int64_t *i, int ndim)
{
    dt_shape s;
    memset(&s, 0, sizeof s);
    s.ndim = ndim;
    for (int k = 0; k < ndim; k++) s.dim[k] = i[k];
    return s;
}
CF_B(reshape, dt_reshape(in[0], cf_shape(c->i)))
CF_B(permute, dt_permute(in[0], cf_order(c->i, dt_ndim(in[0]))))
CF_B(transpose, dt_transpose(in[0], (int)c->i[0], (int)c->i[1]))
CF_B(narrow, dt_narrow(in[0], (int)c->i[0], c->i[1], c->i[2]))
CF_B(select, dt_select(in[0], (int)c->i[0], c->i[1]))
CF_B(expand, dt_expand(in[0], cf_shape(c->i)))
CF_B(squeeze, dt_squeeze(in[0], (int)c->i[0]))
CF_B(unsqueeze, dt_unsqueeze(in[0], (int)c->i[0]))
CF_B(flatten, dt_flatten(in[0]))
CF_B(clone, dt_clone(in[0]))
CF_B(contiguous, dt_contiguous(in[0]))
CF_B(cast, dt_cast(in[0], (dt_dtype)c->i[0]))
/* To a device of its own and back: the memory of this one is the host's, too, but the tensors are elsewhere. */
static dt_device *cf_elsewhere(void)
{
    static dt_device *dev;
    if (!dev) dev = dt_device_new(dt_device_backend(dt_cpu()), 1, NULL);
    return dev;
}
CF_B(to, dt_to(dt_to(in[0], cf_elsewhere()), dt_device_of(in[0])))
static dt_tensor *cf_b_split(dt_tensor **in, const cf_case *c)
{
    dt_tensor *piece[16], *back[16];
    int        n = dt_split(in[0], c->i[0], (int)c->i[1], piece, 16);
    for (int k = 0; k < n; k++) back[n - 1 - k] = dt_mul_scalar(piece[k], k + 1);
    return n < 0 ? NULL : dt_cat(back, n, (int)c->i[1]);
}
CF_B(std, dt_std_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(prod, dt_prod_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(logsumexp, dt_logsumexp_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(argmin, dt_argmin_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(any, dt_any_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(all, dt_all_with(in[0], cf_reduce_opts(in[0], c)))
CF_B(norm, dt_norm(in[0], .p = c->d[0], .dims = cf_reduce_opts(in[0], c).dims, .keepdim = c->i[1] != 0))
CF_B(cumsum, dt_cumsum(in[0], (int)c->i[0]))
CF_B(sort, dt_sort(in[0], (int)c->i[0], .descending = c->i[2] != 0))
CF_B(argsort, dt_argsort(in[0], (int)c->i[0], .descending = c->i[2] != 0))
CF_B(topk, dt_topk(in[0], c->i[1], (int)c->i[0], .smallest = c->i[2] == 0))
CF_B(topk_index, (dt_topk(in[0], c->i[1], (int)c->i[0], .smallest = c->i[2] == 0, .index = &in[1]), in[1]))
CF_B(one_hot, dt_one_hot(in[0], c->i[0]))
CF_B(bincount, dt_bincount(in[0], .weights = in[1], .minlength = c->i[0]))
CF_B(index_select, dt_index_select(in[0], (int)c->i[0], in[1]))
CF_B(scatter, dt_scatter(in[0], (int)c->i[0], dt_argsort(in[2], (int)c->i[0]), in[1]))
CF_B(scatter_add, dt_scatter_add(in[0], (int)c->i[0], in[1], in[2]))
CF_B(masked_fill, dt_masked_fill(in[0], in[1], c->d[0]))
CF_B(tril, dt_tril(in[0], c->i[0]))
CF_B(triu, dt_triu(in[0], c->i[0]))
CF_B(roll, dt_roll(in[0], c->i[0], (int)c->i[1]))
CF_B(flip, dt_flip(in[0], cf_reduce_opts(in[0], c).dims))
CF_B(repeat, dt_repeat(in[0], cf_shape(c->i)))
CF_B(einsum, dt_einsum(cf_equations[c->i[0]], in, cf_count(in)))
CF_B(interpolate, dt_interpolate(in[0], .size = c->i[0], .size_w = c->i[1], .scale = c->d[0], .scale_w = c->d[1],
                                 .mode = c->i[2] ? DT_BILINEAR : DT_NEAREST, .align_corners = c->i[3] != 0))
CF_B(pixel_shuffle, c->i[1] ? dt_pixel_unshuffle(in[0], c->i[0]) : dt_pixel_shuffle(in[0], c->i[0]))
/* 1 where t is above 0, else -1; of the dtype of like */
static dt_tensor *cf_signs(dt_tensor *t) { return dt_sub_scalar(dt_mul_scalar(dt_cast(dt_gt(t, dt_mul_scalar(t, 0)), DT_I32), 2), 1); }
#define CF_MARGIN(k) .reduction = (dt_reduction)c->i[0], .margin = c->d[k] != 0 ? c->d[k] : DT_ZERO
CF_B(hinge_embedding, dt_hinge_embedding_loss(in[0], cf_signs(in[1]), CF_MARGIN(0)))
CF_B(margin_ranking, dt_margin_ranking_loss(in[0], in[1], cf_signs(in[2]), CF_MARGIN(0)))
CF_B(cosine_embedding, dt_cosine_embedding_loss(in[0], in[1], cf_signs(in[2]), CF_MARGIN(0)))
CF_B(cosine_similarity, dt_cosine_similarity(in[0], in[1], 1))
CF_B(multi_margin, dt_multi_margin_loss(in[0], in[1], CF_MARGIN(0), .p = c->d[1]))
CF_B(triplet, dt_triplet_margin_loss(in[0], in[1], in[2], CF_MARGIN(0), .p = c->d[1], .swap = c->i[1] != 0))
CF_V(focal, dt_sigmoid_focal_loss(in[0], in[1], .reduction = (dt_reduction)c->i[0], .alpha = c->d[0], .gamma = c->d[1]),
     cf_focal(x, y, c->d[0] != 0 ? c->d[0] : 0.25, c->d[1] != 0 ? c->d[1] : 2))
CF_B(cross_entropy_soft, dt_cross_entropy(in[0], in[1], .reduction = (dt_reduction)c->i[0], .label_smoothing = c->d[0], .weight = in[2]))

/* ---------------------------------------------------------------------------------------------------- >>rows */
#define CF_CASES(...)          \
    (const cf_case[])          \
    {                          \
        __VA_ARGS__,           \
        {                      \
            NULL, { 0 }, { 0 } \
        }                      \
    }
#define CF_C(s, ...)              \
    {                             \
        s, { __VA_ARGS__ }, { 0 } \
    } /* with integers */
#define CF_D(s, ...)              \
    {                             \
        s, { 0 }, { __VA_ARGS__ } \
    } /* with doubles */
#define CF_S(s)         \
    {                   \
        s, { 0 }, { 0 } \
    } /* with neither */
#define CF_UNARY_ROW(n) .name = #n, .build = cf_b_##n, .ref = cf_ref_unary, .f1 = cf_f_##n, .grad = 1
#define CF_BINARY_ROW(n) .name = #n, .build = cf_b_##n, .ref = cf_ref_binary, .f2 = cf_f_##n
#define CF_ROW(n) .name = #n, .build = cf_b_##n, .ref = cf_ref_##n
#define CF_SHAPES_1                                                                                                  \
    CF_CASES(CF_S("s"), CF_S("1"), CF_S("7"), CF_S("0"), CF_S("3x0x2"), CF_S("2x3x5"), CF_S("5x7:t"), CF_S("5x9:n"), \
             CF_S("4x6:m"), CF_S("5x9:e"), CF_S("2x3x3x2:p"), CF_S("2x3x3x2:l"), CF_S("6x5:k"),                      \
             CF_S("1x1x1x1x1x1x2x3"), CF_S("33x129"), CF_S("263x521"), CF_S("300x401:t"))
#define CF_SHAPES_1D(...)                                                                                        \
    CF_CASES(CF_D("s", __VA_ARGS__), CF_D("7", __VA_ARGS__), CF_D("0", __VA_ARGS__), CF_D("2x3x5", __VA_ARGS__), \
             CF_D("5x7:t", __VA_ARGS__), CF_D("5x9:n", __VA_ARGS__), CF_D("5x9:e", __VA_ARGS__),                 \
             CF_D("33x129", __VA_ARGS__), CF_D("263x521", __VA_ARGS__))
#define CF_SHAPES_2                                                                                                  \
    CF_CASES(CF_S("s s"), CF_S("1 1"), CF_S("7 7"), CF_S("0 0"), CF_S("3x0 1x1"), CF_S("2x3 s"), CF_S("s 5"),        \
             CF_S("2x3x5 5"), CF_S("2x1x5 3x1"), CF_S("5 2x3x1"), CF_S("5x7:t 5x7"), CF_S("5x7:t 5x7:t"),            \
             CF_S("5x9:n 5x9:m"), CF_S("5x9:e 9"), CF_S("5x9:k 5x9:e"), CF_S("2x3x3x2:p 2x3x3x2"),                   \
             CF_S("2x3x3x2:l 2x3x3x2"), CF_S("2x3x3x2:l 2x3x3x2:l"), CF_S("3x1x1 2x3x3x2:l"), CF_S("33x129 33x129"), \
             CF_S("33x65 1x65"), CF_S("33x65 33x1"), CF_S("263x521 263x521"), CF_S("263x521 521"),                   \
             CF_S("263x521 263x1"), CF_S("300x401:t 300x401"))

static const cf_row cf_row_neg = { CF_UNARY_ROW(neg), .dtypes = CF_FLOATS | CF_I32 | CF_I64, .cases = CF_SHAPES_1 };
static const cf_row cf_row_abs = { CF_UNARY_ROW(abs), .dtypes = CF_ALL, .nkink = 1, .cases = CF_SHAPES_1 };
static const cf_row cf_row_sqrt = { CF_UNARY_ROW(sqrt), .dtypes = CF_FLOATS, .range = { { 0.2, 4 } },
                                    .cases = CF_SHAPES_1 };
static const cf_row cf_row_exp = { CF_UNARY_ROW(exp), .dtypes = CF_FLOATS, .range = { { -4, 3 } },
                                   .cases = CF_SHAPES_1 };
static const cf_row cf_row_log = { CF_UNARY_ROW(log), .dtypes = CF_FLOATS, .range = { { 0.2, 9 } },
                                   .cases = CF_SHAPES_1 };
static const cf_row cf_row_clamp = { CF_UNARY_ROW(clamp), .dtypes = CF_FLOATS | CF_I32 | CF_I64, .range = { { -4, 4 } },
                                     .kink_d = 2, .cases = CF_SHAPES_1D(-2, 1) };
static const cf_row cf_row_relu = { CF_UNARY_ROW(relu), .dtypes = CF_FLOATS, .nkink = 1, .cases = CF_SHAPES_1 };
static const cf_row cf_row_leaky_relu = { CF_UNARY_ROW(leaky_relu), .dtypes = CF_FLOATS, .nkink = 1,
                                          .cases = CF_SHAPES_1D(0.01) };
static const cf_row cf_row_gelu = { CF_UNARY_ROW(gelu), .dtypes = CF_FLOATS, .range = { { -5, 5 } }, .scale = 1,
                                    .cases = CF_SHAPES_1 };
static const cf_row cf_row_gelu_tanh = { CF_UNARY_ROW(gelu_tanh), .dtypes = CF_FLOATS, .range = { { -5, 5 } },
                                         .scale = 4, .cases = CF_SHAPES_1 };
static const cf_row cf_row_silu = { CF_UNARY_ROW(silu), .dtypes = CF_FLOATS, .range = { { -9, 9 } }, .scale = 2,
                                    .cases = CF_SHAPES_1 };
#define CF_SHAPES_FEW                                                                                                \
    CF_CASES(CF_S("s"), CF_S("7"), CF_S("0"), CF_S("5x7:t"), CF_S("5x9:n"), CF_S("5x9:e"), CF_S("2x3x3x2:l"), \
             CF_S("33x129"))
#define CF_FEW_ROW(n) CF_UNARY_ROW(n), .dtypes = CF_FLOATS, .cases = CF_SHAPES_FEW
static const cf_row cf_row_rsqrt = { CF_FEW_ROW(rsqrt), .range = { { 0.3, 4 } }, .scale = 2 };
static const cf_row cf_row_reciprocal = { CF_FEW_ROW(reciprocal), .range = { { 0.4, 2 } }, .scale = 2 };
static const cf_row cf_row_log1p = { CF_FEW_ROW(log1p), .range = { { -0.7, 5 } } };
static const cf_row cf_row_expm1 = { CF_FEW_ROW(expm1), .range = { { -4, 3 } } };
static const cf_row cf_row_sin = { CF_FEW_ROW(sin), .range = { { -10, 10 } } };
static const cf_row cf_row_cos = { CF_FEW_ROW(cos), .range = { { -10, 10 } } };
static const cf_row cf_row_tan = { CF_FEW_ROW(tan), .range = { { -1.2, 1.2 } }, .scale = 4 };
static const cf_row cf_row_erf = { CF_FEW_ROW(erf), .range = { { -3, 3 } }, .scale = 1.2 };
#define CF_STEP_ROW(n) CF_UNARY_ROW(n), .dtypes = CF_ALL, .cases = CF_SHAPES_FEW
static const cf_row cf_row_sign = { CF_STEP_ROW(sign), .nkink = 1 };
static const cf_row cf_row_floor = { CF_STEP_ROW(floor), .range = { { 1, 2 } }, .nkink = 2, .kink = { 1, 2 } };
static const cf_row cf_row_ceil = { CF_STEP_ROW(ceil), .range = { { -2, -1 } }, .nkink = 2, .kink = { -1, -2 } };
static const cf_row cf_row_round = { CF_STEP_ROW(round), .range = { { 1, 3 } }, .nkink = 2, .kink = { 1.5, 2.5 } };
static const cf_row cf_row_elu = { CF_UNARY_ROW(elu), .dtypes = CF_FLOATS, .range = { { -4, 4 } }, .nkink = 1, .scale = 2,
                                   .cases = CF_SHAPES_1D(1.5) };
static const cf_row cf_row_selu = { CF_FEW_ROW(selu), .range = { { -4, 4 } }, .nkink = 1, .scale = 2 };
static const cf_row cf_row_hardswish = { CF_FEW_ROW(hardswish), .range = { { -5, 5 } }, .nkink = 2, .kink = { -3, 3 }, .scale = 2 };
static const cf_row cf_row_mish = { CF_FEW_ROW(mish), .range = { { -9, 9 } }, .scale = 2 };
static const cf_row cf_row_logsigmoid = { CF_FEW_ROW(logsigmoid), .range = { { -9, 9 } }, .scale = 1 };
static const cf_row cf_row_sigmoid = { CF_UNARY_ROW(sigmoid), .dtypes = CF_FLOATS, .range = { { -9, 9 } },
                                       .cases = CF_SHAPES_1 };
static const cf_row cf_row_tanh = { CF_UNARY_ROW(tanh), .dtypes = CF_FLOATS, .range = { { -4, 4 } }, .scale = 1,
                                    .cases = CF_SHAPES_1 };
static const cf_row cf_row_softplus = { CF_UNARY_ROW(softplus), .dtypes = CF_FLOATS, .range = { { -9, 9 } }, .scale = 1,
                                        .cases = CF_CASES(CF_D("s", 1), CF_D("7", 2), CF_D("0", 1), CF_D("5x7:t", 3),
                                                          CF_D("5x9:n", 0.5), CF_D("33x129", 3), CF_D("263x521", 1)) };
#define CF_SCALAR_ROW(n, ...) CF_UNARY_ROW(n), .dtypes = CF_FLOATS, .cases = CF_SHAPES_1D(__VA_ARGS__)
static const cf_row cf_row_add_scalar = { CF_SCALAR_ROW(add_scalar, 1.5) };
static const cf_row cf_row_sub_scalar = { CF_SCALAR_ROW(sub_scalar, 0.75) };
static const cf_row cf_row_mul_scalar = { CF_SCALAR_ROW(mul_scalar, -2.5) };
static const cf_row cf_row_div_scalar = { CF_SCALAR_ROW(div_scalar, 3) };
static const cf_row cf_row_rsub_scalar = { CF_SCALAR_ROW(rsub_scalar, 0.3) };
static const cf_row cf_row_rdiv_scalar = { CF_SCALAR_ROW(rdiv_scalar, 0.7), .range = { { 0.3, 2 } } };
static const cf_row cf_row_maximum_scalar = { CF_SCALAR_ROW(maximum_scalar, 0.25), .kink_d = 1 };
static const cf_row cf_row_minimum_scalar = { CF_SCALAR_ROW(minimum_scalar, 0.25), .kink_d = 1 };
static const cf_row cf_row_pow_scalar = {
    CF_UNARY_ROW(pow_scalar), .dtypes = CF_FLOATS, .range = { { 0.2, 3 } },
    .cases = CF_CASES(CF_D("s", 2), CF_D("7", 3), CF_D("8", 0), CF_D("9", 1), CF_D("10", -1), CF_D("11", 0.5),
                      CF_D("12", -2.5), CF_D("0", 2), CF_D("5x7:t", 3.7), CF_D("5x9:n", 2), CF_D("263x521", 2.5))
};

static const cf_row cf_row_add = { CF_BINARY_ROW(add), .grad = 3, .dtypes = CF_ALL, .cases = CF_SHAPES_2 };
static const cf_row cf_row_sub = { CF_BINARY_ROW(sub), .grad = 3, .dtypes = CF_FLOATS | CF_I32 | CF_I64,
                                   .cases = CF_SHAPES_2 };
static const cf_row cf_row_mul = { CF_BINARY_ROW(mul), .grad = 3, .dtypes = CF_ALL, .cases = CF_SHAPES_2 };
static const cf_row cf_row_div = { CF_BINARY_ROW(div),  .grad = 3,
                                   .dtypes = CF_FLOATS, .range = { { -2, 2 }, { 0.5, 2 } },
                                   .scale = 4,          .cases = CF_SHAPES_2 };
static const cf_row cf_row_pow = { CF_BINARY_ROW(pow),  .grad = 3,
                                   .dtypes = CF_FLOATS, .range = { { 0.3, 2 }, { -2, 3 } },
                                   .scale = 2,          .cases = CF_SHAPES_2 };
static const cf_row cf_row_atan2 = { CF_BINARY_ROW(atan2), .grad = 3, .dtypes = CF_FLOATS, .range = { { -2, 2 }, { 0.4, 2 } },
                                     .scale = 4,
                                     .cases = CF_CASES(CF_S("s s"), CF_S("7 7"), CF_S("0 0"), CF_S("2x1x5 3x1"),
                                                       CF_S("5x7:t 5x7"), CF_S("5x9:n 5x9:m"), CF_S("5x9:e 9"),
                                                       CF_S("2x3x3x2:l 2x3x3x2"), CF_S("33x129 33x129")) };
static const cf_row cf_row_prelu = { CF_ROW(prelu), .grad = 3, .dtypes = CF_FLOATS, .range = { { -2, 2 }, { 0.1, 0.5 } }, .nkink = 1,
                                     .scale = 4,
                                     .cases = CF_CASES(CF_S("s 1"), CF_S("7 7"), CF_S("7 1"), CF_S("2x3 3"), CF_S("2x3 s"),
                                                       CF_S("0x3 3"), CF_S("2x3x4 3"), CF_S("5x7:t 7"), CF_S("5x9:n 9:k"),
                                                       CF_S("2x3x3x2:l 3"), CF_S("2x3x3x2:p 3"), CF_S("4x13x9 13")) };
static const cf_row cf_row_maximum = { CF_BINARY_ROW(maximum), .grad = 3, .dtypes = CF_ALL, .gen = { CF_EVEN, CF_ODD },
                                       .cases = CF_SHAPES_2 };
static const cf_row cf_row_minimum = { CF_BINARY_ROW(minimum), .grad = 3, .dtypes = CF_ALL, .gen = { CF_EVEN, CF_ODD },
                                       .cases = CF_SHAPES_2 };
/* operands of different dtypes: the result has PyTorch's */
static const cf_row cf_row_add_mixed = { .name = "add_mixed",
                                         .build = cf_b_add,
                                         .ref = cf_ref_binary,
                                         .f2 = cf_f_add,
                                         .grad = 3,
                                         .dtypes = CF_F32,
                                         .cases = CF_CASES(CF_S("3x5:f 3x5:h"), CF_S("3x5:b 5:f"), CF_S("3x5:h 3x5:b"),
                                                           CF_S("3x5:f 3x5:i"), CF_S("3x5:u 3x5:f"),
                                                           CF_S("33x129:b 33x129:f")) };
#define CF_COMPARE_ROW(n) CF_BINARY_ROW(n), .dtypes = CF_ALL, .gen = { CF_GRID, CF_GRID }, .out_dtype = 1 + DT_U8
#define CF_SHAPES_CMP                                                                                      \
    CF_CASES(CF_S("s s"), CF_S("7 7"), CF_S("0 0"), CF_S("2x3x5 5"), CF_S("2x1x5 3x1"), CF_S("5x7:t 5x7"), \
             CF_S("5x9:n 5x9:m"), CF_S("5x9:e 9"), CF_S("263x521 263x521"), CF_S("263x521 521"))
static const cf_row cf_row_eq = { CF_COMPARE_ROW(eq), .cases = CF_SHAPES_CMP };
static const cf_row cf_row_ne = { CF_COMPARE_ROW(ne), .cases = CF_SHAPES_CMP };
static const cf_row cf_row_lt = { CF_COMPARE_ROW(lt), .cases = CF_SHAPES_CMP };
static const cf_row cf_row_le = { CF_COMPARE_ROW(le), .cases = CF_SHAPES_CMP };
static const cf_row cf_row_gt = { CF_COMPARE_ROW(gt), .cases = CF_SHAPES_CMP };
static const cf_row cf_row_ge = { CF_COMPARE_ROW(ge), .cases = CF_SHAPES_CMP };

#define CF_LOSS_ROW(n) \
    .name = #n, .build = cf_b_##n, .ref = cf_ref_loss, .f2 = cf_f_##n, .dtypes = CF_FLOATS
#define CF_SHAPES_LOSS                                                                                    \
    CF_CASES(CF_S("7 7"), CF_C("7 7", DT_SUM), CF_C("7 7", DT_NONE), CF_S("3x5 3x5"), CF_S("s s"),        \
             CF_C("0 0", DT_SUM), CF_C("5x7:t 5x7", DT_NONE), CF_S("5x9:n 5x9:m"), CF_S("33x129 33x129"), \
             CF_S("263x521 263x521"), CF_C("263x521 263x521", DT_NONE))
static const cf_row cf_row_mse_loss = { CF_LOSS_ROW(mse_loss), .grad = 3, .cases = CF_SHAPES_LOSS };
static const cf_row cf_row_l1_loss = { CF_LOSS_ROW(l1_loss), .grad = 3, .gen = { CF_EVEN, CF_ODD },
                                       .cases = CF_SHAPES_LOSS };
static const cf_row cf_row_smooth_l1_loss = {
    CF_LOSS_ROW(smooth_l1_loss), .grad = 3, .gen = { CF_EVEN, CF_ODD },
    .cases = CF_CASES(CF_S("7 7"), { "7 7", { DT_SUM }, { 0.5 } }, { "3x5 3x5", { DT_NONE }, { 2 } },
                      { "5x7:t 5x7", { DT_NONE }, { 0.7 } }, CF_S("263x521 263x521"))
};
static const cf_row cf_row_bce_with_logits = { CF_LOSS_ROW(bce_with_logits), .grad = 1, .scale = 5,
                                               .range = { { -5, 5 }, { 0, 1 } }, .nkink = 1, .cases = CF_SHAPES_LOSS };
static const cf_row cf_row_kl_div = {
    CF_LOSS_ROW(kl_div), .grad = 3, .range = { { -4, 0 }, { 0.2, 1 } }, .scale = 5,
    .cases = CF_CASES(CF_S("7 7"), CF_C("7 7", DT_SUM), CF_C("7 7", DT_NONE), CF_C("3x5 3x5", DT_BATCHMEAN), CF_S("s s"),
                      CF_C("0 0", DT_SUM), CF_C("5x7:t 5x7", DT_NONE), { "5x9:n 5x9:m", { DT_MEAN }, { 1 } },
                      { "3x5 3x5", { DT_BATCHMEAN }, { 1 } }, CF_S("33x129 33x129"))
};
static const cf_row cf_row_where = { CF_ROW(where), .dtypes = CF_ALL, .grad = 6, .gen = { CF_INDEX },
                                     .cases = CF_CASES(
                                         { "7:u 7 7", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 0 } },
                                         { "2x3x5:i 5 3x1", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 0 } },
                                         { "5:j 3x5:t 3x5:n", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 3 }, { 0 } },
                                         { "3x2:u 2x3x3x2:l 2x3x3x2", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 0 } },
                                         { "0:u 0 s", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 0 } },
                                         { "263x521:u 263x521 521", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 0 } }) };

/* masks of dims: 1 first, 2 second, 4 third ...; then keepdim, biased, named from the end */
#define CF_REDUCE_CASES                                                                                                \
    CF_S("s"), CF_S("1"), CF_S("7"), CF_S("4x5"), CF_C("4x5", 1), CF_C("4x5", 2), CF_C("4x5", 2, 1), CF_C("2x3x5", 2), \
        CF_C("2x3x5", 5), CF_C("2x3x5", 5, 1, 0, 1), CF_C("2x3x5", 6, 0, 0, 1), CF_C("5x7:t", 1), CF_C("5x7:t", 2),    \
        CF_C("5x9:n", 2), CF_C("5x9:n", 1), CF_C("5x9:e", 1), CF_C("5x9:e", 2), CF_C("2x3x3x2:p", 13),                 \
        CF_C("2x3x3x2:l", 13), CF_C("2x3x3x2:l", 2), CF_C("2x3x2x3x2", 10), CF_C("1x9x1", 2), CF_C("9x1x3", 1),        \
        CF_C("2x127", 2), CF_C("127x2", 1)
#define CF_REDUCE_LARGE \
    CF_S("263x521"), CF_C("263x521", 1), CF_C("263x521", 2), CF_C("300x401:t", 2), CF_C("8x130x130", 5)
static const cf_row cf_row_sum = { CF_ROW(sum), .dtypes = CF_ALL, .grad = 1,
                                   .cases = CF_CASES(CF_REDUCE_CASES, CF_S("0"), CF_C("3x0", 1), CF_C("3x0", 2),
                                                     CF_REDUCE_LARGE) };
static const cf_row cf_row_mean = { CF_ROW(mean), .dtypes = CF_FLOATS, .grad = 1,
                                    .cases = CF_CASES(CF_REDUCE_CASES, CF_S("0"), CF_C("3x0", 1), CF_C("3x0", 2),
                                                      CF_REDUCE_LARGE) };
static const cf_row cf_row_max = { CF_ROW(max), .dtypes = CF_ALL, .grad = 1, .gen = { CF_DISTINCT },
                                   .cases = CF_CASES(CF_REDUCE_CASES, CF_C("3x0", 1), CF_REDUCE_LARGE) };
static const cf_row cf_row_min = { CF_ROW(min), .dtypes = CF_ALL, .grad = 1, .gen = { CF_DISTINCT },
                                   .cases = CF_CASES(CF_REDUCE_CASES, CF_C("3x0", 1), CF_REDUCE_LARGE) };
static const cf_row cf_row_var = {
    CF_ROW(var),
    .dtypes = CF_FLOATS,
    .grad = 1,
    .range = { { -2, 2 } },
    .scale = 4,
    .cases = CF_CASES(CF_S("7"), CF_C("7", 0, 0, 1), CF_S("4x5"), CF_C("4x5", 1), CF_C("4x5", 2), CF_C("4x5", 2, 1, 1),
                      CF_C("2x3x5", 2), CF_C("2x3x5", 5), CF_C("2x3x5", 5, 1, 1, 1), CF_C("5x7:t", 1),
                      CF_C("5x7:t", 2, 0, 1), CF_C("5x9:n", 2), CF_C("2x3x3x2:p", 13), CF_C("2x3x3x2:l", 13),
                      CF_C("2x3x2x3x2", 10), CF_C("3x129", 2), CF_C("129x3", 1), CF_C("3x0", 1), CF_REDUCE_LARGE)
};
static const cf_row cf_row_argmax = {
    CF_ROW(argmax), .dtypes = CF_FLOATS, .gen = { CF_GRID }, .out_dtype = 1 + DT_I64,
    .cases = CF_CASES(CF_S("s"), CF_S("1"), CF_S("7"), CF_S("4x5"), CF_C("4x5", 1), CF_C("4x5", 2), CF_C("4x5", 2, 1),
                      CF_C("2x3x5", 2, 0, 0, 1), CF_C("5x7:t", 1), CF_C("5x7:t", 2), CF_S("5x7:t"), CF_C("5x9:n", 2),
                      CF_C("2x3x3x2:p", 2), CF_C("2x3x3x2:l", 2), CF_S("2x3x3x2:l"), CF_C("3x129", 2), CF_C("129x3", 1),
                      CF_C("3x0", 1), CF_S("263x521"), CF_C("263x521", 1), CF_C("263x521", 2))
};
static const cf_row cf_row_matmul = {
    CF_ROW(matmul), .dtypes = CF_FLOATS, .grad = 3,
    .scale = 2, /* a term is a product of two values up to 2; long sums grow with it */
    .cases = CF_CASES(
        CF_S("3x4 4x5"), CF_S("1x1 1x1"), CF_S("7x13 13x9"), CF_S("7 7"), CF_S("5 5x3"), CF_S("3x5 5"), CF_S("4 2x4x3"),
        CF_S("2x3x4 4"), CF_S("3x0 0x4"), CF_S("0x3 3x4"), CF_S("3x4 4x0"), CF_S("0x2x3 0x3x2"), CF_S("3x4:t 4x5"),
        CF_S("3x4 4x5:t"), CF_S("3x4:t 4x5:t"), CF_S("5x9:n 9x4:n"), CF_S("5x9:m 9x4:m"), CF_S("5x9:k 9x4:k"),
        CF_S("5x9:e 9x4"), CF_S("2x3x4 2x4x5"), CF_S("2x3x4 4x5"), CF_S("3x4 2x4x5"), CF_S("2x1x3x4 3x4x5"),
        CF_S("2x3x4:t 2x4x5:t"), CF_S("2x3x4:e 2x4x5"), CF_S("2x3x4:n 2x4x5:m"), CF_S("2x2x3x3:p 2x2x3x4"),
        CF_S("2x2x3x3:l 2x2x3x4:l"), CF_S("1x200 200x1"), CF_S("17x33 33x65"), CF_S("70x300 300x50"),
        CF_S("130x257 257x131"), CF_S("130x257:t 257x131:t"), CF_S("6x40x70 6x70x50"), CF_S("3x1000 1000x2"),
        CF_S("600x37 37x45"), CF_S("601x37:t 37x45:t"), CF_S("150x40 40x310"), CF_S("151x40:t 40x311"),
        CF_S("20x700 700x47:t"))
};
static const cf_row cf_row_linear = {
    CF_ROW(linear), .dtypes = CF_FLOATS, .grad = 7,
    .cases =
        CF_CASES(CF_S("3x4 5x4 5"), CF_S("3x4 5x4 -"), CF_S("4 5x4 5"), CF_S("2x3x4 5x4 5"), CF_S("0x4 5x4 5"),
                 CF_C("3x4 5x4 5", DT_ACT_SIGMOID), CF_C("3x4 5x4 5", DT_ACT_TANH), CF_C("7x9 11x9 11", DT_ACT_RELU),
                 CF_C("7x9 11x9 -", DT_ACT_RELU), CF_S("5x7:t 3x7:t 3"), CF_S("5x9:n 4x9:m 4:k"), CF_S("3x4 5x4:f 5:f"),
                 CF_C("70x150 90x150 90", DT_ACT_RELU), CF_S("128x300 130x300 130"),
                 CF_C("13x40 50x40 50", DT_ACT_SIGMOID), CF_C("20x33 64x33 64", DT_ACT_RELU), CF_S("20x33 64x33 64"),
                 CF_C("30x64 99x64 -", DT_ACT_TANH), CF_S("24x64 100x64:f 100:f"), CF_S("21x700 77x700 77"))
};
#define CF_SOFTMAX_CASES                                                                                            \
    CF_C("7", 0), CF_C("1", 0), CF_C("s", 0), CF_C("4x5", 1), CF_C("4x5", 0), CF_C("2x3x5", 1), CF_C("2x3x5", -1),  \
        CF_C("2x3x5", -3), CF_C("0x5", 1), CF_C("3x0x2", 0), CF_C("5x7:t", 1), CF_C("5x7:t", 0), CF_C("5x9:n", -1), \
        CF_C("5x9:k", 0), CF_C("2x3x3x2:l", 1), CF_C("3x129", 1), CF_C("129x3", 0), CF_C("263x521", 1),             \
        CF_C("263x521", 0), CF_C("3x40001", 1)
static const cf_row cf_row_softmax = { CF_ROW(softmax), .dtypes = CF_FLOATS, .grad = 1, .range = { { -4, 4 } },
                                       .cases = CF_CASES(CF_SOFTMAX_CASES) };
static const cf_row cf_row_log_softmax = { CF_ROW(log_softmax), .dtypes = CF_FLOATS,
                                           .grad = 1,           .range = { { -4, 4 } },
                                           .scale = 4,          .cases = CF_CASES(CF_SOFTMAX_CASES) };
/* stride h w, pad h w, dilation h w, groups, act */
static const cf_row cf_row_conv2d = {
    CF_ROW(conv2d), .dtypes = CF_FLOATS, .grad = 7,
    .cases = CF_CASES(
        CF_C("2x3x7x5 4x3x3x3 4", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("2x3x7x5 4x3x3x3 -", 1, 1, 0, 0, 1, 1, 1, 0),
        CF_C("1x1x1x1 1x1x1x1 1", 1, 1, 0, 0, 1, 1, 1, 0), CF_C("0x3x5x5 4x3x3x3 4", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("2x3x8x8 5x3x3x3 5", 2, 2, 1, 1, 1, 1, 1, 0), CF_C("2x3x9x7 5x3x3x2 5", 2, 1, 0, 2, 1, 1, 1, 0),
        CF_C("1x2x9x9 3x2x3x3 -", 1, 1, 2, 2, 2, 2, 1, 0), CF_C("1x2x9x11 3x2x3x3 3", 2, 3, 1, 2, 2, 1, 1, 0),
        CF_C("2x4x6x6 6x2x3x3 6", 1, 1, 1, 1, 1, 1, 2, 0), CF_C("2x4x6x6 4x1x3x3 4", 1, 1, 1, 1, 1, 1, 4, 0),
        CF_C("2x4x6x6 8x1x3x3 -", 2, 2, 1, 1, 1, 1, 4, 0), CF_C("2x5x6x7 9x5x1x1 9", 1, 1, 0, 0, 1, 1, 1, 0),
        CF_C("2x5x6x7 9x5x1x1 -", 2, 2, 0, 0, 1, 1, 1, 0), CF_C("2x3x7x5 4x3x3x3 4", 1, 1, 1, 1, 1, 1, 1, DT_ACT_RELU),
        CF_C("2x3x7x5 4x3x3x3 -", 1, 1, 1, 1, 1, 1, 1, DT_ACT_RELU),
        CF_C("2x3x7x5:p 4x3x3x3 4", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("2x3x7x5:t 4x3x3x3:t 4", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("2x3x7x5:n 4x3x3x3:m 4:k", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("2x3x7x5:e 4x3x3x3 4", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("2x3x7x5:l 4x3x3x3:l 4", 1, 1, 1, 1, 1, 1, 1, DT_ACT_RELU),
        CF_C("2x3x5x5 4x3x5x5 4", 1, 1, 0, 0, 1, 1, 1, 0), CF_C("2x3x5x5 4x3x5x5 4", 1, 1, 2, 2, 1, 1, 1, DT_ACT_TANH),
        CF_C("2x8x6x6 16x8x3x3 16:f", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("3x16x9x9 17x16x3x3 17", 1, 1, 1, 1, 1, 1, 1, 0),
        /* 3x3 kernels of many channels: small images, other paddings; then blocks, chunks, splits and parts */
        CF_C("1x16x2x2 16x16x3x3 16", 1, 1, 1, 1, 1, 1, 1, DT_ACT_RELU),
        CF_C("1x16x1x1 16x16x3x3 16", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("2x17x1x1 16x17x3x3 16", 1, 1, 2, 2, 1, 1, 1, 0),
        CF_C("3x16x7x5 16x16x3x3 16", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("3x16x6x7 17x16x3x3 17", 1, 1, 0, 0, 1, 1, 1, 0),
        CF_C("3x17x5x6 24x17x3x3 24", 1, 1, 2, 2, 1, 1, 1, DT_ACT_RELU),
        CF_C("1x24x7x7 16x24x3x3 -", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("5x24x4x3 19x24x3x3 19", 1, 1, 0, 2, 1, 1, 1, 0),
        CF_C("2x16x3x8 32x16x3x3 32", 1, 1, 1, 0, 1, 1, 1, 0),
        CF_C("2x16x4x5 16x16x3x3 16", 1, 1, 1, 1, 1, 1, 1, DT_ACT_TANH),
        CF_C("1x16x5x4 16x16x3x3 16", 1, 1, 3, 4, 1, 1, 1, DT_ACT_SIGMOID),
        CF_C("2x16x4x6:p 17x16x3x3:t 17", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("2x16x6x4:l 16x16x3x3 16:f", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("1x16x2x37 16x16x3x3 -", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("3x40x5x7 16x40x3x3 16", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("1x64x7x7 40x64x3x3 40", 1, 1, 1, 1, 1, 1, 1, DT_ACT_RELU),
        CF_C("1x144x2x2 16x144x3x3 16", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("1x16x2x2 152x16x3x3 152", 1, 1, 1, 1, 1, 1, 1, 0), CF_C("1x144x3x3 8x144x3x3 8", 2, 2, 1, 1, 1, 1, 1, 0),
        CF_C("1x16x12x16 256x16x3x3 -", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("3x16x31x32 16x16x3x3 16", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("2x17x8x8 33x17x3x3 33", 2, 2, 1, 1, 1, 1, 1, 0), CF_C("2x3x28x28 6x3x5x5 6", 1, 1, 2, 2, 1, 1, 1, 0),
        CF_C("4x16x16x16 32x16x3x3 -", 1, 1, 1, 1, 1, 1, 1, 0),
        CF_C("4x16x16x16 32x8x3x3 32", 2, 2, 1, 1, 1, 1, 2, DT_ACT_RELU))
};
/* kernel h w, stride h w, pad h w, ceil_mode, exclude_pad */
#define CF_POOL_CASES                                                                         \
    CF_C("2x3x6x4", 2, 2, 2, 2, 0, 0, 0, 0), CF_C("2x3x7x5", 2, 2, 2, 2, 0, 0, 0, 0),         \
        CF_C("1x1x1x1", 1, 1, 1, 1, 0, 0, 0, 0), CF_C("0x3x6x4", 2, 2, 2, 2, 0, 0, 0, 0),     \
        CF_C("2x3x7x5", 3, 3, 2, 2, 1, 1, 0, 0), CF_C("2x3x7x5", 3, 3, 2, 2, 1, 1, 0, 1),     \
        CF_C("2x3x7x6", 3, 2, 1, 2, 1, 0, 0, 0), CF_C("1x2x7x8", 3, 3, 2, 2, 0, 0, 1, 0),     \
        CF_C("1x2x6x8", 3, 3, 2, 2, 1, 1, 1, 1), CF_C("1x2x6x8", 3, 3, 2, 2, 1, 1, 1, 0),     \
        CF_C("1x3x7x5:p", 3, 3, 2, 2, 1, 1, 0, 0), CF_C("1x3x7x5:l", 3, 3, 2, 2, 1, 1, 0, 0), \
        CF_C("1x3x5x7:t", 2, 3, 2, 2, 0, 1, 0, 0), CF_C("1x9x5x5", 5, 5, 5, 5, 0, 0, 0, 0),   \
        CF_C("4x17x33x65", 3, 3, 2, 2, 1, 1, 0, 0)
static const cf_row cf_row_maxpool2d = { CF_ROW(maxpool2d), .dtypes = CF_FLOATS, .grad = 1, .gen = { CF_DISTINCT },
                                         .cases = CF_CASES(CF_POOL_CASES) };
static const cf_row cf_row_avgpool2d = { CF_ROW(avgpool2d), .dtypes = CF_FLOATS, .grad = 1,
                                         .cases = CF_CASES(CF_POOL_CASES) };
static const cf_row cf_row_adaptive_avgpool2d = {
    CF_ROW(adaptive_avgpool2d), .dtypes = CF_FLOATS, .grad = 1,
    .cases = CF_CASES(CF_C("2x3x7x5", 1, 1), CF_C("2x3x7x5", 3, 2), CF_C("2x3x4x6", 2, 3), CF_C("1x1x1x1", 1, 1),
                      CF_C("0x3x4x4", 1, 1), CF_C("1x2x3x3", 5, 4), CF_C("2x3x7x5:p", 1, 1), CF_C("2x3x7x5:l", 3, 2),
                      CF_C("2x3x7x5:t", 2, 2), CF_C("4x17x33x65", 1, 1), CF_C("4x17x33x65", 7, 7))
};
/* train, act; eps */
static const cf_row cf_row_batch_norm = {
    CF_ROW(batch_norm),
    .dtypes = CF_FLOATS,
    .grad = 1 | 2 | 4 | 32,
    .scale = 2,
    .range = { { -2, 2 }, { 0.5, 1.5 }, { -1, 1 }, { -0.5, 0.5 }, { 0.5, 2 }, { -1, 1 } },
    .cases = CF_CASES(
        CF_C("4x3x3x2 3:f 3:f 3:f 3:f", 1), CF_C("4x3x3x2 3 3 3:f 3:f", 1), CF_C("4x3x3x2 - - - -", 1),
        CF_C("4x3x3x2 3:f - 3:f 3:f", 1), CF_C("7x5 5:f 5:f 5:f 5:f", 1), CF_C("3x4x5 4:f 4:f 4:f 4:f", 1),
        CF_C("4x3x3x2 3:f 3:f 3:f 3:f", 0), CF_C("4x3x3x2 - - 3:f 3:f", 0), CF_C("7x5 5:f 5:f 5:f 5:f", 0),
        CF_C("3x4x5 4 4 4:f 4:f", 0), CF_C("0x3x2x2 3:f 3:f 3:f 3:f", 0), CF_C("1x3x2x2 3:f 3:f 3:f 3:f", 1),
        CF_C("4x3x3x2 3:f 3:f 3:f 3:f", 1, DT_ACT_RELU), CF_C("4x3x3x2 3:f 3:f 3:f 3:f", 0, DT_ACT_RELU),
        CF_C("4x3x3x2 3:f 3:f 3:f 3:f 4x3x3x2", 1, DT_ACT_RELU), CF_C("4x3x3x2 3:f 3:f 3:f 3:f 4x3x3x2", 1),
        CF_C("4x3x3x2 3:f 3:f 3:f 3:f 4x3x3x2", 0, DT_ACT_RELU), CF_C("4x3x3x2 3:f 3:f 3:f 3:f 4x3x3x2", 0),
        CF_C("4x3x3x2:p 3:f 3:f 3:f 3:f 4x3x3x2:t", 1, DT_ACT_RELU),
        CF_C("4x3x3x2:l 3:f 3:f 3:f 3:f 4x3x3x2:l", 1, DT_ACT_RELU), CF_C("3x4x5 4:f 4:f 4:f 4:f", 1, DT_ACT_RELU),
        CF_C("3x4x5 4:f 4:f 4:f 4:f", 0, DT_ACT_RELU), CF_C("7x5 5:f 5:f 5:f 5:f 7x5", 1, DT_ACT_RELU),
        CF_C("7x5 5:f 5:f 5:f 5:f", 0, DT_ACT_RELU), CF_C("4x3x3x2 3:k 3:k 3:fk 3:fk", 0),
        { "4x3x5x5:n 3:f 3:f 3:f 3:f", { 1 }, { 0.1 } }, CF_C("3x17x9x7 17:f 17:f 17:f 17:f", 1, DT_ACT_RELU),
        CF_C("8x17x29x31 17:f 17:f 17:f 17:f", 1), CF_C("8x17x29x31 17:f 17:f 17:f 17:f 8x17x29x31", 1, DT_ACT_RELU),
        /* planes of 16, 4 and 1 elements to a vector; planes that are odd; channels to a vector; what remains */
        CF_C("3x5x8x8 5:f 5:f 5:f 5:f 3x5x8x8", 1, DT_ACT_RELU), CF_C("3x5x6x6 5:f 5:f 5:f 5:f 3x5x6x6", 1, DT_ACT_RELU),
        CF_C("3x5x6x6 5:f 5:f 5:f 5:f", 0), CF_C("8x5x7x7 5:f 5:f 5:f 5:f 8x5x7x7", 1, DT_ACT_RELU),
        CF_C("8x5x7x7 5:f 5:f 5:f 5:f", 0, DT_ACT_RELU), CF_C("3x16x3x5:l 16:f 16:f 16:f 16:f 3x16x3x5:l", 1, DT_ACT_RELU),
        CF_C("3x12x3x5:l 12:f 12:f 12:f 12:f", 1), CF_C("3x16x3x5:l 16:f 16:f 16:f 16:f", 0, DT_ACT_RELU))
};
static const cf_row cf_row_layer_norm = {
    CF_ROW(layer_norm),
    .dtypes = CF_FLOATS,
    .grad = 7,
    .range = { { -2, 2 }, { 0.5, 1.5 }, { -1, 1 } },
    .scale = 4,
    .cases = CF_CASES(CF_S("4x6 6 6"), CF_S("4x6 - -"), CF_S("4x6 6 -"), CF_S("7 7 7"), CF_S("2x3x5 5:f 5:f"),
                      CF_C("2x3x5 3x5 3x5", 2), CF_S("0x5 5 5"), CF_S("5x7:t 7 7"), CF_S("2x3x2x5:l 5 5"),
                      CF_S("5x9:n 9:k 9"), { "3x8 8 8", { 0 }, { 0.1 } }, CF_S("3x129 129 129"), CF_S("129x3 3 3"),
                      CF_S("263x521 521 521"))
};
static const cf_row cf_row_rms_norm = { CF_ROW(rms_norm),
                                        .dtypes = CF_FLOATS,
                                        .grad = 3,
                                        .range = { { -2, 2 }, { 0.5, 1.5 } },
                                        .scale = 2,
                                        .cases = CF_CASES(CF_S("4x6 6"), CF_S("4x6 -"), CF_S("7 7"), CF_S("2x3x5 5:f"),
                                                          CF_C("2x3x5 3x5", 2), CF_S("0x5 5"), CF_S("5x7:t 7"),
                                                          CF_S("5x9:n 9:k"), { "3x8 8", { 0 }, { 0.1 } },
                                                          CF_S("3x129 129"), CF_S("129x3 3"), CF_S("263x521 521")) };
#define CF_V9(n) \
    { 0, 0, 0, 0, 0, 0, 0, 0, 0, n }, { 0 }
static const cf_row cf_row_embedding = {
    CF_ROW(embedding), .dtypes = CF_FLOATS, .grad = 2, .gen = { CF_INDEX },
    .cases = CF_CASES({ "7:i 5x3", CF_V9(5) }, { "2x3:j 5x4", CF_V9(5) }, { "s:i 5x3", CF_V9(5) },
                      { "0:i 5x3", CF_V9(5) }, { "4x3:it 5x3:t", CF_V9(5) }, { "9:i 4x7:n", CF_V9(4) },
                      { "50:i 3x5", CF_V9(3) }, { "400:i 29x300", CF_V9(29) }, { "7000:i 50x17", CF_V9(50) })
};
static const cf_row cf_row_gather = {
    CF_ROW(gather), .dtypes = CF_ALL, .grad = 1, .gen = { CF_UNIFORM, CF_INDEX },
    .cases = CF_CASES({ "7 9:i", CF_V9(7) }, { "5x4 3x4:i", CF_V9(5) },
                      { "4x5 4x3:j", { 1, 0, 0, 0, 0, 0, 0, 0, 0, 5 }, { 0 } },
                      { "2x3x5 2x7x5:i", { 1, 0, 0, 0, 0, 0, 0, 0, 0, 3 }, { 0 } },
                      { "2x3x5 1x2x4:i", { -1, 0, 0, 0, 0, 0, 0, 0, 0, 5 }, { 0 } }, { "5x4 0x4:i", CF_V9(5) },
                      { "4x5:t 4x5:it", { 1, 0, 0, 0, 0, 0, 0, 0, 0, 5 }, { 0 } }, { "4x5:n 3x5:jm", CF_V9(4) },
                      { "200x600 200x510:i", { 1, 0, 0, 0, 0, 0, 0, 0, 0, 600 }, { 0 } })
};
static const cf_row cf_row_cat = { CF_ROW(cat), .dtypes = CF_ALL, .grad = 31,
                                   .cases = CF_CASES(CF_C("3 4", 0), CF_C("2x3 2x4 2x1", 1), CF_C("2x3 4x3", 0),
                                                     CF_C("2x3x2 2x1x2", -2), CF_C("2x0 2x3", 1),
                                                     CF_C("5x7:t 5x3:n", 1), CF_C("2x3:e 4x3:k", 0), CF_C("2x3", 0),
                                                     CF_C("263x300 263x221", 1), CF_C("2x3x3x2:p 2x5x3x2", 1),
                                                     CF_C("2x3x3x2:l 2x5x3x2:l", 1), CF_C("2x3x3x2:l 2x3x3x5", 3)) };
static const cf_row cf_row_stack = {
    CF_ROW(stack), .dtypes = CF_ALL, .grad = 31,
    .cases = CF_CASES(CF_C("3 3", 0), CF_C("2x3 2x3 2x3", 1), CF_C("2x3 2x3", -1), CF_C("s s", 0), CF_C("5x7:t 5x7", 2),
                      CF_C("2x3x3x2:l 2x3x3x2", 1), CF_C("0x3 0x3", 0), CF_C("300x200 300x200", 1))
};
static const cf_row cf_row_split = { CF_ROW(split), .dtypes = CF_FLOATS, .grad = 1,
                                     .cases = CF_CASES(CF_C("6", 2, 0), CF_C("7", 3, 0), CF_C("4x5", 2, 1),
                                                       CF_C("4x5", 3, 0), CF_C("5x7:t", 3, 1), CF_C("4x5", 5, 1),
                                                       CF_C("2x3x3x2:l", 2, 1), CF_C("263x521", 100, 1)) };
static const cf_row cf_row_pad = { CF_ROW(pad), .dtypes = CF_ALL, .grad = 1,
                                   .cases = CF_CASES(
                                       { "5", { 2, 1, 2 }, { 0 } }, { "3x4", { 4, 1, 0, 2, 1 }, { 2 } },
                                       { "2x3x4", { 2, 0, 3 }, { 1 } }, { "2x2x3x3", { 4, 1, 1, 1, 1 }, { 0 } },
                                       { "2x2x3x3:l", { 4, 1, 1, 1, 1 }, { 0 } }, { "5x7:t", { 4, 1, 2, 0, 1 }, { 3 } },
                                       { "0x3", { 4, 1, 1, 1, 1 }, { 1 } }, { "263x521", { 4, 2, 2, 1, 3 }, { 1 } }) };
/* reduction, ignore given, ignore; smoothing */
static const cf_row cf_row_cross_entropy = {
    CF_ROW(cross_entropy),
    .dtypes = CF_FLOATS,
    .grad = 1,
    .gen = { CF_UNIFORM, CF_INDEX },
    .scale = 4,
    .range = { { -4, 4 }, { 0, 0 }, { 0.2, 2 } },
#define CF_CE(s, red, ig, smooth, classes)                                                 \
    {                                                                                      \
        s, { red, (ig) >= 0, (ig) >= 0 ? (ig) : 0, 0, 0, 0, 0, 0, 0, classes }, { smooth } \
    }
    .cases = CF_CASES(CF_CE("7x5 7:i -", DT_MEAN, -1, 0, 5), CF_CE("7x5 7:j -", DT_SUM, -1, 0, 5),
                      CF_CE("7x5 7:u -", DT_NONE, -1, 0, 5), CF_CE("7x5 7:i -", DT_MEAN, 2, 0, 5),
                      CF_CE("9x5 9:i -", DT_MEAN, 0, 0.1, 5), CF_CE("9x5 9:i -", DT_NONE, 3, 0.1, 5),
                      CF_CE("9x5 9:i 5:f", DT_MEAN, -1, 0, 5), CF_CE("9x5 9:i 5:f", DT_MEAN, 1, 0.2, 5),
                      CF_CE("9x5 9:i 5:f", DT_SUM, 1, 0.2, 5), CF_CE("9x5 9:i 5:f", DT_NONE, 1, 0.2, 5),
                      CF_CE("2x5x3 2x3:i -", DT_MEAN, -1, 0, 5), CF_CE("2x5x2x3 2x2x3:i 5:f", DT_MEAN, 2, 0.1, 5),
                      CF_CE("2x5x2x3:l 2x2x3:i 5:k", DT_SUM, -1, 0.1, 5), CF_CE("2x5x3 2x3:i -", DT_NONE, -1, 0, 5),
                      CF_CE("1x1 1:i -", DT_MEAN, -1, 0, 1), CF_CE("5x7:t 5:i -", DT_MEAN, -1, 0, 7),
                      CF_CE("5x9:n 5:ik -", DT_SUM, -1, 0, 9), CF_CE("0x5 0:i -", DT_SUM, -1, 0, 5),
                      CF_CE("33x257 33:i -", DT_MEAN, -1, 0.1, 257), CF_CE("300x401 300:i -", DT_MEAN, -1, 0, 401),
                      CF_CE("3000x40 3000:i 40:f", DT_SUM, 7, 0.1, 40))
};
static const cf_row cf_row_nll_loss = {
    CF_ROW(nll_loss),
    .dtypes = CF_FLOATS,
    .grad = 1,
    .gen = { CF_UNIFORM, CF_INDEX },
    .scale = 4,
    .range = { { -4, 0 }, { 0, 0 }, { 0.2, 2 } },
    .cases = CF_CASES(CF_CE("7x5 7:i -", DT_MEAN, -1, 0, 5), CF_CE("7x5 7:j -", DT_SUM, -1, 0, 5),
                      CF_CE("7x5 7:u -", DT_NONE, -1, 0, 5), CF_CE("7x5 7:i -", DT_MEAN, 2, 0, 5),
                      CF_CE("9x5 9:i 5:f", DT_MEAN, 1, 0, 5), CF_CE("9x5 9:i 5:f", DT_NONE, 0, 0, 5),
                      CF_CE("2x5x3 2x3:i -", DT_MEAN, -1, 0, 5), CF_CE("5x7:t 5:i -", DT_MEAN, -1, 0, 7),
                      CF_CE("300x401 300:i -", DT_MEAN, -1, 0, 401))
};
static const cf_row cf_row_attention = {
    CF_ROW(attention),
    .dtypes = CF_FLOATS,
    .grad = 7,
    .range = { { -2, 2 }, { -2, 2 }, { -1, 1 } },
    .scale = 2,
    .cases = CF_CASES(CF_C("1x2x5x4 1x2x5x4 1x2x5x4", 0), CF_C("1x2x5x4 1x2x5x4 1x2x5x4", 1),
                      CF_C("2x1x3x4 2x1x7x4 2x1x7x4", 0), CF_C("1x1x1x1 1x1x1x1 1x1x1x1", 0),
                      CF_C("0x2x3x4 0x2x3x4 0x2x3x4", 0), { "1x2x3x5 1x2x3x5 1x2x3x5", { 1 }, { 0.3 } },
                      CF_C("1x2x4x3:t 1x2x4x3:t 1x2x4x3:t", 0), CF_C("1x2x4x6:n 1x2x4x6:n 1x2x4x6:n", 1),
                      CF_C("2x2x5x3:e 2x2x5x3 2x2x5x3:e", 0), CF_C("1x2x4x4:l 1x2x4x4:l 1x2x4x4:l", 1),
                      CF_C("2x3x17x8 2x3x17x8 2x3x17x8", 1), CF_C("1x2x70x33 1x2x70x33 1x2x70x33", 1),
                      CF_C("2x4x130x32 2x4x130x32 2x4x130x32", 1),
                      /* many pairs of short rows: by products on a GPU, in blocks, with an offset, with shared heads */
                      CF_C("1x1x520x8 1x1x520x8 1x1x520x8", 1),
                      CF_C("1x4x32x8 1x2x300x8 1x2x300x8", 1, 0, 268), CF_C("1x4x120x8 1x2x90x8 1x2x90x8", 0),
                      CF_C("1x3x100x16 1x3x100x16 1x3x100x16", 1), CF_C("2x2x96x8:t 2x2x96x8:t 2x2x96x8:t", 1),
                      CF_C("2x4x65x64 2x4x200x64 2x4x200x64", 0),
                      /* keys that no query sees, in blocks of their own: by heads and by blocks, whole panels or not */
                      CF_C("2x4x3x16 2x4x130x16 2x4x130x16", 1), CF_C("1x2x3x16 1x2x70x16 1x2x70x16", 1),
                      CF_C("2x4x70x9 2x4x150x9 2x4x150x9", 1),
                      /* masks, lengths (also of 0), windows, offsets, shared heads, another size of v */
                      CF_C("2x2x5x4 2x2x5x4 2x2x5x4 5x5:u", 0), CF_C("2x2x5x4 2x2x7x4 2x2x7x4 2x1x1x7:u", 0),
                      CF_C("2x2x5x4 2x2x7x4 2x2x7x4 1x2x5x7", 0), CF_C("2x2x5x4 2x2x5x4 2x2x5x4 - 2:i", 1),
                      CF_C("2x4x5x4 2x2x7x4 2x2x7x4 - 2:i", 0), CF_C("1x6x5x4 1x1x5x4 1x1x5x4", 1),
                      CF_C("1x2x5x4 1x2x5x4 1x2x5x7", 0), CF_C("1x2x5x6 1x2x5x6 1x2x5x3", 1), CF_C("1x2x7x4 1x2x7x4 1x2x7x4", 1, 3),
                      CF_C("1x2x3x4 1x2x9x4 1x2x9x4", 1, 4, 6), CF_C("1x2x1x4 1x2x9x4 1x2x9x4", 1, 0, 8),
                      CF_C("1x2x5x4 1x2x5x4 1x2x5x4", 1, 9), CF_C("1x2x130x16 1x2x130x16 1x2x130x16", 1, 20),
                      CF_C("2x8x70x16 2x4x200x16 2x4x200x16 70x200:u", 1, 65, 130),
                      CF_C("1x2x70x16 1x2x300x16 1x2x300x16", 1, 40, 10), CF_C("3x4x65x8 3x4x130x8 3x4x130x8 1x130 3:i", 0))
};
static const cf_row cf_row_recurrent = {
    CF_ROW(recurrent),
    .dtypes = CF_F32,
    .grad = 0x7f,
    .range = { { -2, 2 } },
    .scale = 2,
    .cases = CF_CASES(CF_C("3x2x4 5x4 5x5 5 5", DT_CELL_TANH), CF_C("3x2x4 5x4 5x5 5 5 1x2x5", DT_CELL_TANH),
                      CF_C("4x3x2 12x2 12x3 12 12", DT_CELL_LSTM), CF_C("4x3x2 12x2 12x3 - - 1x3x3 1x3x3", DT_CELL_LSTM),
                      CF_C("4x3x2 9x2 9x3 9 9", DT_CELL_GRU), CF_C("4x3x2 9x2 9x3 - - 1x3x3", DT_CELL_GRU),
                      CF_C("1x1x1 4x1 4x1 4 4", DT_CELL_LSTM), CF_C("1x1x3 6x3 6x2 6 6", DT_CELL_GRU),
                      CF_C("5x4x3 16x3 16x4 16 16 1x4x4 1x4x4 4:i", DT_CELL_LSTM), CF_C("5x4x3 12x3 12x4 12 12 1x4x4 - 4:i", DT_CELL_GRU),
                      CF_C("5x4x3 4x3 4x4 4 4 - - 4:i", DT_CELL_TANH), CF_C("2x13x9:t 76x9 76x19 76 76", DT_CELL_LSTM),
                      CF_C("3x14x8 57x8 57x19 57 57", DT_CELL_GRU))
};
static const cf_row cf_row_conv_transpose2d = {
    CF_ROW(conv_transpose2d),
    .dtypes = CF_FLOATS,
    .grad = 7,
    .range = { { -2, 2 } },
    .scale = 2,
    .cases = CF_CASES(CF_C("2x3x4x5 3x2x3x3 2", 1), CF_C("1x2x3x3 2x4x2x2 -", 2), CF_C("2x4x3x4 4x3x3x3 6", 2, 1, 1, 1, 2),
                      CF_C("1x2x4x4 2x2x3x3 2", 1, 1, 1, 2), CF_C("1x1x1x1 1x1x1x1 1", 1), CF_C("1x3x4x4:l 3x5x4x4 5", 2, 1, 0, 1),
                      CF_C("2x17x6x6 17x9x3x3 9", 2, 1, 1))
};

#define CF_VIEW_ROW(n) CF_ROW(n), .dtypes = CF_ALL, .grad = 1
static const cf_row cf_row_reshape = {
    CF_VIEW_ROW(reshape),
    .cases = CF_CASES(CF_C("2x6", 2, 3, 4), CF_C("2x6", 1, -1), CF_C("2x3x4", 2, -1, 4), CF_C("1x1", 0),
                      CF_C("s", 2, 1, 1), CF_C("0x3", 2, 3, 0), CF_C("4x6:t", 2, 6, 4), CF_C("4x6:n", 1, 24),
                      CF_C("2x3x3x2:l", 2, 6, 6), CF_C("263x521", 2, 521, 263))
};
static const cf_row cf_row_permute = {
    CF_VIEW_ROW(permute),
    .cases = CF_CASES(CF_C("2x3x4", 2, 0, 1), CF_C("2x3x4x5", 0, 2, 3, 1), CF_C("2x3", 0, 1), CF_C("0x3", 1, 0),
                      CF_C("s", 0), CF_C("2x3x5:t", 1, 2, 0), CF_C("2x3x3x2:l", 0, 2, 3, 1), CF_C("40x53x60", 2, 1, 0))
};
static const cf_row cf_row_transpose = { CF_VIEW_ROW(transpose),
                                         .cases = CF_CASES(CF_C("2x3", 0, 1), CF_C("2x3x4", -1, 0), CF_C("2x3x4", 1, 1),
                                                           CF_C("5x7:t", 0, 1), CF_C("263x521", 0, 1)) };
static const cf_row cf_row_narrow = { CF_VIEW_ROW(narrow),
                                      .cases =
                                          CF_CASES(CF_C("7", 0, 2, 3), CF_C("4x5", 1, 1, 3), CF_C("4x5", -2, 3, 1),
                                                   CF_C("4x5", 0, 4, 0), CF_C("5x7:t", 0, 1, 2), CF_C("2x3x5", 1, 0, 3),
                                                   CF_C("2x3x3x2:l", 1, 1, 2), CF_C("263x521", 1, 20, 440)) };
static const cf_row cf_row_select = { CF_VIEW_ROW(select),
                                      .cases =
                                          CF_CASES(CF_C("7", 0, 2), CF_C("4x5", 1, 3), CF_C("4x5", -2, 3),
                                                   CF_C("5x7:t", 0, 1), CF_C("2x3x5", 1, 0), CF_C("2x3x3x2:l", 1, 2)) };
static const cf_row cf_row_expand = {
    CF_VIEW_ROW(expand),
    .cases = CF_CASES(CF_C("1x3", 2, 4, 3), CF_C("3", 2, 4, 3), CF_C("2x1x3", 3, -1, 5, -1), CF_C("s", 2, 2, 3),
                      CF_C("1x3", 2, 0, 3), CF_C("1x5:n", 2, 3, 5), CF_C("1x521", 2, 263, 521))
};
static const cf_row cf_row_squeeze = { CF_VIEW_ROW(squeeze), .cases = CF_CASES(CF_C("2x1x3", 1), CF_C("1", 0),
                                                                               CF_C("2x3", 0), CF_C("3x2x1", -1)) };
static const cf_row cf_row_unsqueeze = { CF_VIEW_ROW(unsqueeze), .cases = CF_CASES(CF_C("2x3", 0), CF_C("2x3", -1),
                                                                                   CF_C("s", 0), CF_C("5x7:t", 1)) };
static const cf_row cf_row_flatten = { CF_VIEW_ROW(flatten),
                                       .cases = CF_CASES(CF_S("2x3x4"), CF_S("2x3x2x2:p"), CF_S("2x3x2x2:l"),
                                                         CF_S("3x4"), CF_S("0x3x2")) };
static const cf_row cf_row_clone = {
    .name = "clone", .build = cf_b_clone, .ref = cf_ref_same, .dtypes = CF_ALL, .grad = 1, .cases = CF_SHAPES_1
};
static const cf_row cf_row_contiguous = { .name = "contiguous",
                                          .build = cf_b_contiguous,
                                          .ref = cf_ref_same,
                                          .dtypes = CF_ALL,
                                          .grad = 1,
                                          .cases = CF_SHAPES_1 };
static const cf_row cf_row_to = {
    .name = "to", .build = cf_b_to, .ref = cf_ref_same, .dtypes = CF_ALL, .grad = 1, .cases = CF_SHAPES_1
};
static const cf_row cf_row_cast = { CF_ROW(cast), .dtypes = CF_ALL, .grad = 1, .range = { { 0, 40 } },
                                    .cases = CF_CASES(CF_C("3x5", DT_F32), CF_C("3x5", DT_F16), CF_C("3x5", DT_BF16),
                                                      CF_C("5x7:t", DT_F32), CF_C("5x7:n", DT_BF16),
                                                      CF_C("2x3x3x2:l", DT_F16), CF_C("0", DT_F16),
                                                      CF_C("263x521", DT_F16), CF_C("263x521", DT_F32)) };

/* ---- dt_ops.h, and the later reductions of dt.h */
static const cf_row cf_row_std = {
    CF_ROW(std), .dtypes = CF_FLOATS, .grad = 1, .range = { { -2, 2 } }, .scale = 4,
    .cases = CF_CASES(CF_S("7"), CF_C("4x5", 1), CF_C("4x5", 2, 1, 1), CF_C("2x3x5", 5), CF_C("5x7:t", 1), CF_C("5x9:n", 2),
                      CF_C("2x3x3x2:l", 13), CF_C("3x0", 1), CF_C("33x129", 2))
};
static const cf_row cf_row_prod = {
    CF_ROW(prod), .dtypes = CF_ALL, .grad = 1, .range = { { 0.6, 1.4 } }, .scale = 3,
    .cases = CF_CASES(CF_S("s"), CF_S("7"), CF_S("3x4"), CF_C("4x5", 1), CF_C("4x5", 2, 1), CF_C("2x3x5", 2), CF_C("2x3x3", 5),
                      CF_C("5x7:t", 1), CF_C("5x9:n", 2), CF_C("5x9:e", 1), CF_C("2x3x3x2:l", 2), CF_S("0"), CF_C("3x0", 2))
};
static const cf_row cf_row_logsumexp = {
    CF_ROW(logsumexp), .dtypes = CF_FLOATS, .grad = 1, .range = { { -4, 4 } }, .scale = 2,
    .cases = CF_CASES(CF_S("s"), CF_S("7"), CF_S("4x5"), CF_C("4x5", 1), CF_C("4x5", 2, 1), CF_C("2x3x5", 5), CF_C("5x7:t", 1),
                      CF_C("5x7:t", 2), CF_C("5x9:n", 2), CF_C("5x9:e", 1), CF_C("2x3x3x2:l", 13), CF_C("3x0", 1), CF_C("33x129", 1),
                      CF_C("33x129", 2), CF_S("263x521"))
};
static const cf_row cf_row_argmin = {
    CF_ROW(argmin), .dtypes = CF_ALL, .gen = { CF_GRID }, .out_dtype = 1 + DT_I64,
    .cases = CF_CASES(CF_S("s"), CF_S("7"), CF_S("4x5"), CF_C("4x5", 1), CF_C("4x5", 2, 1), CF_C("5x7:t", 1), CF_S("5x7:t"),
                      CF_C("2x3x3x2:l", 2), CF_C("3x129", 2), CF_C("129x3", 1), CF_C("3x0", 1), CF_C("33x129", 1), CF_S("263x521"))
};
#define CF_N(s, p, ...)             \
    {                               \
        s, { __VA_ARGS__ }, { p }   \
    }
static const cf_row cf_row_norm = {
    CF_ROW(norm), .dtypes = CF_FLOATS, .grad = 1, .gen = { CF_DISTINCT }, .scale = 3,
    .cases = CF_CASES(CF_N("s", 0, 0), CF_N("7", 0, 0), CF_N("4x5", 0, 1), CF_N("4x5", 0, 2, 1), CF_N("2x3x5", 0, 5), CF_N("5x7:t", 0, 1),
                      CF_N("5x9:n", 0, 2), CF_N("2x3x3x2:l", 0, 13), CF_N("0", 0, 0), CF_N("4x5", 1, 2), CF_N("4x5", 3, 2),
                      CF_N("4x5", 2.5, 1, 1), CF_N("5x7:t", 3, 0), CF_N("4x5", (double)INFINITY, 2), CF_N("33x129", 0, 1),
                      CF_N("33x129", 0, 2), CF_N("263x521", 0, 0))
};
#define CF_TRUTH_CASES                                                                                                               \
    CF_CASES(CF_S("s"), CF_S("7"), CF_C("4x5", 1), CF_C("4x5", 2, 1), CF_C("5x7:t", 1), CF_C("2x3x3x2:l", 13), CF_S("0"), CF_C("3x0", 2), \
             CF_C("33x129", 2))
static const cf_row cf_row_any = { CF_ROW(any), .dtypes = CF_ALL, .gen = { CF_GRID }, .out_dtype = 1 + DT_U8, .cases = CF_TRUTH_CASES };
static const cf_row cf_row_all = { CF_ROW(all), .dtypes = CF_ALL, .gen = { CF_GRID }, .out_dtype = 1 + DT_U8, .cases = CF_TRUTH_CASES };
static const cf_row cf_row_cumsum = {
    CF_ROW(cumsum), .dtypes = CF_ALL, .grad = 1,
    .cases = CF_CASES(CF_C("s", 0), CF_C("7", 0), CF_C("0", 0), CF_C("4x5", 1), CF_C("4x5", 0), CF_C("2x3x5", -2), CF_C("5x7:t", 1),
                      CF_C("5x9:n", 0), CF_C("5x9:e", 1), CF_C("2x3x3x2:l", 1), CF_C("3x0x2", 1), CF_C("3x700", 1), CF_C("40x300", 0),
                      CF_C("263x521", 1))
};
#define CF_SORT_CASES                                                                                                         \
    CF_C("s", 0), CF_C("7", 0), CF_C("0", 0), CF_C("4x5", 1), CF_C("4x5", 0, 0, 1), CF_C("2x3x5", -2), CF_C("5x7:t", 1, 0, 1), \
        CF_C("5x9:n", 0), CF_C("2x3x3x2:l", 1), CF_C("3x0x2", 1), CF_C("2x100", 1, 0, 1), CF_C("250", 0)
static const cf_row cf_row_sort = { CF_ROW(sort), .dtypes = CF_ALL, .grad = 1, .gen = { CF_DISTINCT }, .cases = CF_CASES(CF_SORT_CASES) };
#define CF_PLACES(s, ...)                   \
    {                                       \
        s, { __VA_ARGS__ }, { 0 }           \
    }
static const cf_row cf_row_argsort = {
    .name = "argsort", .build = cf_b_argsort, .ref = cf_ref_sort, .dtypes = CF_ALL, .gen = { CF_GRID }, .out_dtype = 1 + DT_I64,
    .cases = CF_CASES(CF_C("s", 0, 0, 0, 1), CF_C("7", 0, 0, 0, 1), CF_C("4x50", 1, 0, 1, 1), CF_C("40x5", 0, 0, 0, 1),
                      CF_C("5x7:t", 1, 0, 0, 1), CF_C("2x300", 1, 0, 0, 1), CF_C("2x300", 1, 0, 1, 1), CF_C("3000", 0, 0, 0, 1))
};
static const cf_row cf_row_topk = {
    .name = "topk", .build = cf_b_topk, .ref = cf_ref_sort, .dtypes = CF_ALL, .grad = 1, .gen = { CF_DISTINCT },
    .cases = CF_CASES(CF_C("7", 0, 3, 1), CF_C("7", 0, 7, 0), CF_C("4x50", 1, 5, 1), CF_C("60x4", 0, 9, 0), CF_C("5x7:t", 1, 2, 1),
                      CF_C("250", 0, 1, 1))
};
static const cf_row cf_row_topk_index = {
    .name = "topk_index", .build = cf_b_topk_index, .ref = cf_ref_sort, .dtypes = CF_ALL, .gen = { CF_GRID }, .out_dtype = 1 + DT_I64,
    .cases = CF_CASES(CF_C("7", 0, 3, 1, 1), CF_C("4x50", 1, 5, 1, 1), CF_C("60x4", 0, 9, 0, 1), CF_C("3000", 0, 40, 1, 1),
                      CF_C("3000", 0, 40, 0, 1))
};
#define CF_X(s, n, ...)                                               \
    {                                                                 \
        s, { __VA_ARGS__, 0, 0, 0, 0, 0, 0, 0, 0, n }, { 0 }          \
    } /* indices below n, one number */
static const cf_row cf_row_one_hot = {
    CF_ROW(one_hot), .dtypes = CF_F32, .gen = { CF_INDEX }, .out_dtype = 1 + DT_I64,
    .cases = CF_CASES(CF_X("7:i", 5, 5), CF_X("s:i", 5, 5), CF_X("2x3:j", 4, 4), CF_X("0:i", 3, 3), CF_X("5x7:it", 9, 9))
};
static const cf_row cf_row_bincount = {
    CF_ROW(bincount), .dtypes = CF_F32, .grad = 2, .gen = { CF_INDEX },
    .cases = CF_CASES(CF_X("7:i 7", 5, 8), CF_X("50:j 50", 4, 4), CF_X("0:i 0", 3, 3), CF_X("20:u 20:k", 9, 9))
};
static const cf_row cf_row_index_select = {
    CF_ROW(index_select), .dtypes = CF_ALL, .grad = 1, .gen = { CF_UNIFORM, CF_INDEX },
    .cases = CF_CASES(CF_X("5 7:i", 5, 0), CF_X("5x3 4:i", 5, 0), CF_X("5x3 4:j", 3, 1), CF_X("2x3x5 6:i", 3, 1), CF_X("2x3x5 6:i", 5, -1),
                      CF_X("5x7:t 3:i", 7, 1), CF_X("5x9:n 3:ik", 5, 0), CF_X("2x3x3x2:l 4:i", 3, 1), CF_X("0x3 2:i", 3, 1), CF_X("3x4 0:i", 3, 0),
                      CF_X("2x40x33 50:i", 40, 1))
};
static const cf_row cf_row_scatter = {
    CF_ROW(scatter), .dtypes = CF_ALL, .grad = 3, .gen = { CF_UNIFORM, CF_UNIFORM, CF_DISTINCT },
    .cases = CF_CASES(CF_C("7 7 7", 0), CF_C("9 5 5", 0), CF_C("4x5 4x3 4x3", 1), CF_C("4x5 4x5 3x2", 0), CF_C("2x4x3 2x4x3 1x3x2", 1),
                      CF_C("5x7:t 5x7 5x7:t", 1), CF_C("2x3x3x2:l 2x3x3x2:l 2x3x3x2", 1), CF_C("3x0 3x0 3x0", 0), CF_C("20x70 20x70 20x70", 0))
};
static const cf_row cf_row_scatter_add = {
    CF_ROW(scatter_add), .dtypes = CF_ALL, .grad = 5, .gen = { CF_UNIFORM, CF_INDEX, CF_UNIFORM },
    .cases = CF_CASES(CF_X("7 9:i 9", 7, 0), CF_X("4x5 4x3:i 4x3", 5, 1), CF_X("4x5 3x2:j 4x5", 4, 0), CF_X("2x4x3 1x3x2:i 2x4x3", 4, 1),
                      CF_X("5x7:t 5x9:i 5x9:n", 7, 1), CF_X("2x3x3x2:l 2x5x3x2:i 2x5x3x2", 3, 1), CF_X("3x4 0x4:i 3x4", 3, 0),
                      CF_X("20x70 30x70:i 30x70", 20, 0))
};
static const cf_row cf_row_masked_fill = {
    CF_ROW(masked_fill), .dtypes = CF_ALL, .grad = 1, .gen = { CF_UNIFORM, CF_INDEX },
    .cases = CF_CASES({ "7 7:u", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 3 } }, { "2x3x5 5:i", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 2 } },
                      { "2x3x5 3x1:j", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 2 } }, { "5x7:t 5x7:u", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 1 } },
                      { "2x3x3x2:l 3x2:u", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 4 } }, { "0 0:u", { 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 }, { 4 } })
};
#define CF_TRI_CASES                                                                                                              \
    CF_CASES(CF_C("4x5", 0), CF_C("4x5", 1), CF_C("5x4", -2), CF_C("2x3x3", 0), CF_C("5x7:t", 2), CF_C("2x3x3x2:l", 0), CF_C("0x3", 0), \
             CF_C("3x3", 9), CF_C("3x3", -9), CF_C("70x60", -3))
static const cf_row cf_row_tril = { CF_ROW(tril), .dtypes = CF_ALL, .grad = 1, .cases = CF_TRI_CASES };
static const cf_row cf_row_triu = { CF_ROW(triu), .dtypes = CF_ALL, .grad = 1, .cases = CF_TRI_CASES };
static const cf_row cf_row_roll = {
    CF_ROW(roll), .dtypes = CF_ALL, .grad = 1,
    .cases = CF_CASES(CF_C("7", 2, 0), CF_C("7", -9, 0), CF_C("4x5", 5, 1), CF_C("4x5", 1, -1), CF_C("5x7:t", 3, 0), CF_C("2x3x3x2:l", 1, 2),
                      CF_C("0x3", 2, 0))
};
static const cf_row cf_row_flip = {
    CF_ROW(flip), .dtypes = CF_ALL, .grad = 1,
    .cases = CF_CASES(CF_C("7", 1), CF_C("4x5", 1), CF_C("4x5", 2), CF_C("2x3x5", 5, 0, 0, 1), CF_C("5x7:t", 3), CF_C("2x3x3x2:l", 12),
                      CF_C("0x3", 1))
};
static const cf_row cf_row_repeat = {
    CF_ROW(repeat), .dtypes = CF_ALL, .grad = 1,
    .cases = CF_CASES(CF_C("3", 1, 2), CF_C("3", 2, 4, 2), CF_C("2x3", 2, 1, 3), CF_C("2x3", 3, 2, 3, 1), CF_C("5x7:t", 2, 2, 2), CF_C("s", 2, 2, 3),
                      CF_C("2x3x3x2:l", 4, 1, 2, 1, 2), CF_C("2x3", 2, 0, 1), CF_C("2x3", 2, 1, 1))
};
static const cf_row cf_row_einsum = {
    CF_ROW(einsum), .dtypes = CF_FLOATS, .grad = 7, .scale = 2,
    .cases = CF_CASES(CF_C("3x4 4x5", 0), CF_C("2x3x4 2x4x5", 1), CF_C("3x4", 2), CF_C("3x4", 3), CF_C("3 4", 4), CF_C("2x2x3x4 2x2x5x4", 5),
                      CF_C("3x4 3x4", 6), CF_C("3x4x2 4x2", 8), CF_C("3x4 5x4:t", 9), CF_C("2x3x4", 10),
                      CF_C("3x0 0x5", 0), CF_C("5x9:n 9x4:n", 0))
};
/* several products: the first is rounded to the dtype */
static const cf_row cf_row_einsum_chain = { .name = "einsum", .build = cf_b_einsum, .ref = cf_ref_einsum, .dtypes = CF_F32, .grad = 7,
                                            .scale = 2, .cases = CF_CASES(CF_C("3x4 4x2 2x5", 7)) };
#define CF_I(s, f, fw, ...)          \
    {                                \
        s, { __VA_ARGS__ }, { f, fw } \
    }
static const cf_row cf_row_interpolate = {
    CF_ROW(interpolate), .dtypes = CF_FLOATS, .grad = 1, .scale = 20, /* positions up to 33 are rounded to f32 */
    .cases = CF_CASES(CF_C("1x2x3x4", 6, 8), CF_C("1x2x5x7", 3, 2), CF_C("1x2x3x4", 6, 8, 1), CF_C("1x2x5x7", 3, 2, 1),
                      CF_C("1x2x3x4", 7, 5, 1, 1), CF_C("1x2x3x4", 1, 1, 1, 1), CF_C("1x2x1x1", 3, 3, 1), CF_I("1x1x3x4", 2, 3, 0, 0),
                      CF_I("1x1x4x6", 1.5, 2.5, 0, 0, 1), CF_C("0x2x3x4", 6, 8, 1), CF_C("2x3x4x5:p", 8, 7, 1), CF_C("2x3x4x5:l", 8, 7, 1),
                      CF_C("2x3x4x5:l", 3, 9), CF_C("2x3x20x33", 41, 30, 1), CF_C("2x3x20x33", 41, 30))
};
static const cf_row cf_row_pixel_shuffle = {
    CF_ROW(pixel_shuffle), .dtypes = CF_ALL, .grad = 1,
    .cases = CF_CASES(CF_C("1x4x2x3", 2), CF_C("2x9x2x2", 3), CF_C("2x2x4x6", 2, 1), CF_C("1x4x3x5:t", 2), CF_C("2x4x3x2:l", 2), CF_C("0x4x2x2", 2),
                      CF_C("1x3x2x2", 1))
};
#define CF_M(s, r, ...)            \
    {                              \
        s, { r }, { __VA_ARGS__ }  \
    }
static const cf_row cf_row_hinge_embedding = {
    CF_ROW(hinge_embedding), .dtypes = CF_FLOATS, .grad = 1, .range = { { -2, 2 } }, .kink_d = 1, .nkink = 1, .scale = 2,
    .cases = CF_CASES(CF_M("7 7", DT_MEAN, 1), CF_M("7 7", DT_SUM, 0.5), CF_M("3x5 3x5", DT_NONE, 1), CF_M("5x7:t 5x7", DT_MEAN, 1),
                      CF_M("2x3x3x2:l 2x3x3x2", DT_NONE, 1), CF_M("0 0", DT_SUM, 1))
};
static const cf_row cf_row_margin_ranking = {
    CF_ROW(margin_ranking), .dtypes = CF_FLOATS, .grad = 3, .gen = { CF_EVEN, CF_ODD }, .nkink = 1, .scale = 2,
    .cases = CF_CASES(CF_M("7 7 7", DT_MEAN, 0), CF_M("7 7 7", DT_SUM, 0.5), CF_M("3x5 3x5 3x5", DT_NONE, 0.5), CF_M("5x7:t 5x7 5x7", DT_MEAN, 0))
};
static const cf_row cf_row_cosine_embedding = {
    CF_ROW(cosine_embedding), .dtypes = CF_FLOATS, .grad = 3, .range = { { 0.2, 2 }, { 0.2, 2 }, { -1, 1 } }, .nkink = 1, .scale = 6,
    .cases = CF_CASES(CF_M("5x4 5x4 5", DT_MEAN, 0), CF_M("5x4 5x4 5", DT_SUM, 0.2), CF_M("5x7:t 5x7 5", DT_NONE, 0))
};
static const cf_row cf_row_cosine_similarity = {
    CF_ROW(cosine_similarity), .dtypes = CF_FLOATS, .grad = 3, .range = { { 0.2, 2 }, { 0.2, 2 } }, .scale = 6,
    .cases = CF_CASES(CF_S("5x4 5x4"), CF_S("5x7:t 5x7"), CF_S("0x3 0x3"), CF_S("33x129 33x129"))
};
#define CF_MM(s, r, classes, ...)                                     \
    {                                                                 \
        s, { r, 0, 0, 0, 0, 0, 0, 0, 0, classes }, { __VA_ARGS__ }    \
    }
static const cf_row cf_row_multi_margin = {
    CF_ROW(multi_margin), .dtypes = CF_FLOATS, .grad = 1, .gen = { CF_EVEN, CF_INDEX }, .scale = 6,
    .cases = CF_CASES(CF_MM("7x5 7:i", DT_MEAN, 5, 1.015625, 1), CF_MM("7x5 7:i", DT_NONE, 5, 0.515625, 2), CF_MM("5x7:t 5:j", DT_SUM, 7, 1.015625, 1))
};
static const cf_row cf_row_triplet = {
    CF_ROW(triplet), .dtypes = CF_FLOATS, .grad = 7, .range = { { 0, 1 }, { 2, 3 }, { -1, -0.2 } }, .scale = 6,
    .cases = CF_CASES(CF_M("5x4 5x4 5x4", DT_MEAN, 3, 2), CF_M("5x4 5x4 5x4", DT_NONE, 2, 3), CF_M("5x7:t 5x7 5x7", DT_SUM, 3, 2))
};
static const cf_row cf_row_focal = {
    .name = "focal", .build = cf_b_focal, .ref = cf_ref_loss, .f2 = cf_f_focal, .dtypes = CF_FLOATS, .grad = 1,
    .range = { { -4, 4 }, { 0, 1 } }, .nkink = 1, .scale = 8,
    .cases = CF_CASES(CF_M("7 7", DT_MEAN, 0), CF_M("7 7", DT_SUM, 0.5, 3), CF_M("3x5 3x5", DT_NONE, -1, 2), CF_M("5x7:t 5x7", DT_MEAN, 0),
                      CF_M("33x129 33x129", DT_MEAN, 0))
};
static const cf_row cf_row_cross_entropy_soft = {
    CF_ROW(cross_entropy_soft), .dtypes = CF_FLOATS, .grad = 3, .range = { { -3, 3 }, { 0, 1 }, { 0.2, 2 } }, .scale = 6,
    .cases = CF_CASES(CF_M("7x5 7x5 -", DT_MEAN, 0), CF_M("7x5 7x5 -", DT_SUM, 0.1), CF_M("7x5 7x5 5:f", DT_NONE, 0.2), CF_M("2x5x3 2x5x3 5:f", DT_MEAN, 0),
                      CF_M("2x5x3x2:l 2x5x3x2 -", DT_SUM, 0), CF_M("5x7:t 5x7 -", DT_MEAN, 0), CF_M("33x129 33x129 -", DT_MEAN, 0.1))
};

#define CF_ROWS_OPS(X)                                                                                                            \
    X(std) X(prod) X(logsumexp) X(argmin) X(norm) X(any) X(all) X(cumsum) X(sort) X(argsort) X(topk) X(topk_index) X(one_hot)     \
        X(bincount) X(index_select) X(scatter) X(scatter_add) X(masked_fill) X(tril) X(triu) X(roll) X(flip) X(repeat) X(einsum) X(einsum_chain) \
            X(interpolate) X(pixel_shuffle) X(hinge_embedding) X(margin_ranking) X(cosine_embedding) X(cosine_similarity)         \
                X(multi_margin) X(triplet) X(focal) X(cross_entropy_soft)
#define CF_ROWS_ELEMENTWISE(X) \
    X(rsqrt) X(reciprocal) X(log1p) X(expm1) X(sin) X(cos) X(tan) X(erf) X(sign) X(floor) \
    X(ceil) X(round) X(elu) X(selu) X(hardswish) X(mish) X(logsigmoid) X(atan2) X(prelu) X(kl_div)
#define CF_ROWS(X)                                                                                                     \
    X(neg)                                                                                                             \
    X(abs) X(sqrt) X(exp) X(log) X(clamp) X(relu) X(leaky_relu) X(gelu) X(gelu_tanh) X(silu) X(sigmoid) X(tanh)        \
        X(softplus) X(add_scalar) X(sub_scalar) X(mul_scalar) X(div_scalar) X(rsub_scalar) X(rdiv_scalar)              \
            X(pow_scalar) X(maximum_scalar) X(minimum_scalar) X(add) X(sub) X(mul) X(div) X(pow) X(maximum) X(minimum) \
                X(add_mixed) X(eq) X(ne) X(lt) X(le) X(gt) X(ge) X(where) X(sum) X(mean) X(max) X(min) X(var)          \
                    X(argmax) X(matmul) X(linear) X(softmax) X(log_softmax) X(conv2d) X(maxpool2d) X(avgpool2d)        \
                        X(adaptive_avgpool2d) X(batch_norm) X(layer_norm) X(rms_norm) X(embedding) X(gather) X(cat)    \
                            X(stack) X(split) X(pad) X(cross_entropy) X(nll_loss) X(mse_loss) X(l1_loss)               \
                                X(smooth_l1_loss) X(bce_with_logits) X(attention) X(recurrent) X(conv_transpose2d) X(reshape) X(permute) X(transpose)   \
                                    X(narrow) X(select) X(expand) X(squeeze) X(unsqueeze) X(flatten) X(clone)          \
                                        X(contiguous) X(to) X(cast) CF_ROWS_ELEMENTWISE(X) CF_ROWS_OPS(X)
#define CF_ROW_PTR(n) &cf_row_##n,
static const cf_row *const cf_rows[] = { CF_ROWS(CF_ROW_PTR) };
enum { CF_NROWS = sizeof cf_rows / sizeof cf_rows[0] };

/* ---------------------------------------------------------------------------------------------------- >>coverage
   What the backend's lists name must be named here, beside the row that calls it: a new entry without a line does not
   compile. That each is really called is checked when the suite runs (test_conformance.c, every_entry_is_called). */
#define CF_COVERS(kind, entry, row) enum { covered_##kind##_##entry = sizeof(cf_row_##row) }
CF_COVERS(kernel, unary, neg);
CF_COVERS(kernel, unary_bwd, relu);
CF_COVERS(kernel, binary, add);
CF_COVERS(kernel, where, where);
CF_COVERS(kernel, copy, contiguous);
CF_COVERS(kernel, reduce, sum);
CF_COVERS(kernel, gemm, matmul);
CF_COVERS(kernel, softmax, softmax);
CF_COVERS(kernel, softmax_bwd, softmax);
CF_COVERS(kernel, conv2d, conv2d);
CF_COVERS(kernel, conv2d_bwd_data, conv2d);
CF_COVERS(kernel, conv2d_bwd_weight, conv2d);
CF_COVERS(kernel, pool2d, maxpool2d);
CF_COVERS(kernel, pool2d_bwd, maxpool2d);
CF_COVERS(kernel, batch_norm, batch_norm);
CF_COVERS(kernel, batch_norm_bwd, batch_norm);
CF_COVERS(kernel, layer_norm, layer_norm);
CF_COVERS(kernel, layer_norm_bwd, layer_norm);
CF_COVERS(kernel, embedding, embedding);
CF_COVERS(kernel, embedding_bwd, embedding);
CF_COVERS(kernel, gather, gather);
CF_COVERS(kernel, gather_bwd, gather);
CF_COVERS(kernel, scan, cumsum);
CF_COVERS(kernel, sort, sort);
CF_COVERS(kernel, scatter, scatter);
CF_COVERS(kernel, resize, interpolate);
CF_COVERS(kernel, resize_bwd, interpolate);
CF_COVERS(kernel, cross_entropy, cross_entropy);
CF_COVERS(kernel, cross_entropy_bwd, cross_entropy);
CF_COVERS(kernel, attention, attention);
CF_COVERS(kernel, attention_bwd, attention);
CF_COVERS(kernel, rnn_cell, recurrent);
CF_COVERS(kernel, rnn_cell_bwd, recurrent);
/* not ops of the table: tests of their own in test_conformance.c */
extern void cf_test_making(int *);
extern void cf_test_dropout(int *);
extern void cf_test_optim(int *); /* conformance_optim.h */
enum {
    covered_kernel_fill = sizeof(&cf_test_making),
    covered_kernel_iota = sizeof(&cf_test_making),
    covered_kernel_dropout = sizeof(&cf_test_dropout),
    covered_kernel_sgd = sizeof(&cf_test_optim),
    covered_kernel_adam = sizeof(&cf_test_optim),
    covered_kernel_rmsprop = sizeof(&cf_test_optim),
    covered_kernel_adagrad = sizeof(&cf_test_optim),
    covered_kernel_lamb = sizeof(&cf_test_optim),
    covered_kernel_lion = sizeof(&cf_test_optim),
    covered_kernel_lamb_apply = sizeof(&cf_test_optim),
    covered_kernel_norms = sizeof(&cf_test_optim),
    covered_kernel_unscale = sizeof(&cf_test_optim)
};
CF_COVERS(unary, AFFINE, add_scalar);
CF_COVERS(unary, RECIP, rdiv_scalar);
CF_COVERS(unary, POW, pow_scalar);
CF_COVERS(unary, ABS, abs);
CF_COVERS(unary, SQRT, sqrt);
CF_COVERS(unary, EXP, exp);
CF_COVERS(unary, LOG, log);
CF_COVERS(unary, CLAMP, clamp);
CF_COVERS(unary, RELU, relu);
CF_COVERS(unary, LEAKY_RELU, leaky_relu);
CF_COVERS(unary, GELU, gelu);
CF_COVERS(unary, GELU_TANH, gelu_tanh);
CF_COVERS(unary, SILU, silu);
CF_COVERS(unary, RSQRT, rsqrt);
CF_COVERS(unary, SIN, sin);
CF_COVERS(unary, COS, cos);
CF_COVERS(unary, TAN, tan);
CF_COVERS(unary, ERF, erf);
CF_COVERS(unary, LOG1P, log1p);
CF_COVERS(unary, EXPM1, expm1);
CF_COVERS(unary, SIGN, sign);
CF_COVERS(unary, FLOOR, floor);
CF_COVERS(unary, CEIL, ceil);
CF_COVERS(unary, ROUND, round);
CF_COVERS(unary, ELU, elu);
CF_COVERS(unary, HARDSWISH, hardswish);
CF_COVERS(unary, MISH, mish);
CF_COVERS(unary, LOGSIGMOID, logsigmoid);
CF_COVERS(unary, SIGMOID, sigmoid);
CF_COVERS(unary, TANH, tanh);
CF_COVERS(unary, SOFTPLUS, softplus);
CF_COVERS(binary, ADD, add);
CF_COVERS(binary, MUL, mul);
CF_COVERS(binary, DIV, div);
CF_COVERS(binary, POW, pow);
CF_COVERS(binary, POW_DX, pow);
CF_COVERS(binary, POW_DY, pow);
CF_COVERS(binary, MAX, maximum);
CF_COVERS(binary, MIN, minimum);
CF_COVERS(binary, MAX_DX, maximum);
CF_COVERS(binary, MIN_DX, minimum);
CF_COVERS(binary, ATAN2, atan2);
CF_COVERS(binary, ATAN2_DX, atan2);
CF_COVERS(binary, PRELU, prelu);
CF_COVERS(binary, PRELU_DX, prelu);
CF_COVERS(binary, PRELU_DY, prelu);
CF_COVERS(binary, KL_DIV, kl_div);
CF_COVERS(binary, KL_DIV_DY, kl_div);
CF_COVERS(binary, EQ, eq);
CF_COVERS(binary, NE, ne);
CF_COVERS(binary, LT, lt);
CF_COVERS(binary, LE, le);
CF_COVERS(binary, GT, gt);
CF_COVERS(binary, GE, ge);
CF_COVERS(binary, MSE, mse_loss);
CF_COVERS(binary, MSE_DX, mse_loss);
CF_COVERS(binary, L1, l1_loss);
CF_COVERS(binary, L1_DX, l1_loss);
CF_COVERS(binary, SMOOTH_L1, smooth_l1_loss);
CF_COVERS(binary, SMOOTH_L1_DX, smooth_l1_loss);
CF_COVERS(binary, BCE, bce_with_logits);
CF_COVERS(binary, BCE_DX, bce_with_logits);
CF_COVERS(reduce, SUM, sum);
CF_COVERS(reduce, MEAN, mean);
CF_COVERS(reduce, MAX, max);
CF_COVERS(reduce, MIN, min);
CF_COVERS(reduce, ARGMAX, argmax);
CF_COVERS(reduce, VAR, var);
CF_COVERS(reduce, ARGMIN, argmin);
CF_COVERS(reduce, PROD, prod);
CF_COVERS(reduce, NORM, norm);
CF_COVERS(reduce, LSE, logsumexp);
#define CF_NEED_KERNEL(n) covered_kernel_##n,
#define CF_NEED_UNARY(n, ...) covered_unary_##n,
#define CF_NEED_BINARY(n, ...) covered_binary_##n,
#define CF_NEED_REDUCE(n) covered_reduce_##n,
static const size_t cf_covered[] = { DT_KERNELS(CF_NEED_KERNEL) DT_UNARY_FNS(CF_NEED_UNARY)
                                         DT_BINARY_FNS(CF_NEED_BINARY) DT_REDUCE_FNS(CF_NEED_REDUCE) };

#endif /* CONFORMANCE_H */
