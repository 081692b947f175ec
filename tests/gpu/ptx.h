/* ptx.h - an interpreter of PTX that checks what kernels do: for tests

   Loads the PTX text that nvcc made, decodes it once and executes kernels on the CPU, thread by thread, in seeded
   random order. Reported with kernel, PTX line, thread and address: accesses outside of an allocation or misaligned,
   reads of what was never written, data races within a launch (shared and global memory), barriers that not all
   threads of the block reach, shuffles and votes whose mask is not met, integer divisions by zero, launches that
   never end. What is not modelled is an error of ptx_load: unknown opcodes, modifiers and syntax never pass silently.

       #define PTX_IMPLEMENTATION
       #include "ptx.h"      // in one C file; link with -lm -lpthread

   The rules of order: two accesses of different threads to a byte, one of them a write, must have a barrier of the
   block between them, or a bar.warp.sync whose mask holds both; shuffles and votes do not order memory. Threads of
   different blocks are ordered by fence - atomic - atomic - fence only. Atomics (and volatile, relaxed, acquire and
   release accesses) may meet atomics. Several plain writes of the same value to a byte are let pass and counted.
   Blocks run one after another; launches of one process too (a lock).
   ptx_run_counted counts what a launch would cost a GPU: see ptx_counts.
   Approximate instructions are computed in full precision. f16 and bf16 arithmetic rounds once an instruction. */
#ifndef PTX_H_INCLUDED
#define PTX_H_INCLUDED

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ptx_module ptx_module;
typedef struct ptx_kernel ptx_kernel;

/* ---- memory: how the owner of device memory shows it */
enum { PTX_SHADOW_BYTES = 8 }; /* of shadow for a byte of memory; 8-byte aligned, all zero is fresh */

typedef struct ptx_block {
    char    *host;   /* the byte at addr */
    uint8_t *shadow; /* its cell, the others follow; or NULL: no race and initialisation checks */
    size_t   nbytes; /* valid from addr on */
} ptx_block;

typedef struct ptx_memory {
    void *user;
    /* the live allocation that holds addr: its bytes from addr on; false: none. Must not change during a launch */
    bool (*find)(void *user, uint64_t addr, ptx_block *out);
    /* may be NULL: calls f for all shadows there are; called once in about a thousand million accesses, when the
       numbers that cells hold are used up */
    void (*each)(void *user, void (*f)(uint8_t *shadow, size_t nbytes));
} ptx_memory;

void ptx_shadow_fresh(uint8_t *shadow, size_t nbytes);   /* never written */
void ptx_shadow_written(uint8_t *shadow, size_t nbytes); /* by the host or a copy */
/* dst is as written as src is */
void   ptx_shadow_copy(uint8_t *dst, const uint8_t *src, size_t nbytes);
size_t ptx_shadow_unwritten(const uint8_t *shadow, size_t nbytes); /* the first byte never written; nbytes: none */

/* ---- modules */
ptx_module *ptx_load(const char *text, size_t n, char *err, size_t nerr); /* NULL and a message: line, what, where */
void        ptx_free(ptx_module *m);
const ptx_kernel *ptx_find(const ptx_module *m, const char *name); /* NULL: no such entry */
const char       *ptx_name(const ptx_kernel *k);
const ptx_kernel *ptx_at(const ptx_module *m, size_t i); /* the i-th entry; NULL: there are fewer */
/* the number of parameters; offset and size of the first 'most' of them; both arrays may be NULL */
size_t ptx_params(const ptx_kernel *k, size_t *offset, size_t *nbytes, int most);
size_t ptx_shared(const ptx_kernel *k); /* bytes of static shared memory */
/* Variables of the module (.global and .const). They lie at addresses of their own, which find need not know but every
   kernel may use. */
bool ptx_symbol(ptx_module *m, const char *name, uint64_t *addr, size_t *nbytes);
bool ptx_symbol_block(uint64_t addr, ptx_block *out); /* of any loaded module, for copies by the host */

/* ---- launches */
typedef struct ptx_launch {
    unsigned          grid[3], block[3];
    size_t            shared; /* bytes of dynamic shared memory */
    void            **params; /* as for cudaLaunchKernel: one pointer a parameter */
    uint64_t          seed;
    const ptx_memory *memory;
    int64_t           max_steps; /* of all threads together, then the launch has failed; 0: 2e10 */
} ptx_launch;
/* 0, or -1 and a report: kernel, PTX line, thread, address, what */
int ptx_run(const ptx_kernel *k, const ptx_launch *l, char *err, size_t nerr);

/* ---- what a launch costs. Threads are executed one by one, so what a warp does together has to be said: of its lanes
   those that are deepest in calls and, of these, at the smallest address of the code go on, up to their next branch,
   call, barrier or warp operation; lanes at the same address are one group. (So lanes that parted meet again where the
   code of both ways ends, and a lane that leaves a loop waits for the others: compilers put the join behind both ways.)
   An instruction that a group executes once is one warp instruction, and a load or store in it is one request. Lanes
   that its predicate excludes take no part. The order of warps is of no meaning: caches are not modelled.

   A request of global memory touches sectors: aligned 32 bytes. It could do with as few as its distinct bytes fill.
   Shared memory has 32 banks of 4 bytes. A request of 4 bytes a lane or fewer is one phase, of 8 bytes two (lanes 0-15,
   16-31), of 16 bytes four (of 8 lanes). A phase takes as many ways as the most distinct words that it wants of one bank;
   a word that several lanes read is sent to all of them; atomics of one word take a way for each lane. */
enum { PTX_LOAD, PTX_STORE, PTX_ATOMIC, PTX_KINDS };
typedef struct ptx_counts {
    uint64_t instructions, issued; /* of threads; of warps: their quotient is the lanes that take part, 32 at most */
    uint64_t requests[PTX_KINDS], sectors[PTX_KINDS], least[PTX_KINDS]; /* of global memory; least: sectors would do */
    uint64_t read, written; /* distinct bytes of global memory; atomics are both */
    uint64_t shared, phases, ways; /* requests of shared memory, phases that had a lane, and the ways they took */
    uint64_t local;                /* requests of local memory */
    uint32_t worst;                /* the most ways of a phase */
    uint32_t worst_line, waste_line; /* lines of the PTX: of most ways beyond one, of most sectors beyond least; 0: none */
} ptx_counts;
/* As ptx_run; *out is what this launch cost. Checks are the same, the order of threads is not random. */
int ptx_run_counted(const ptx_kernel *k, const ptx_launch *l, ptx_counts *out, char *err, size_t nerr);

/* ---- counters of the process */
typedef struct ptx_counters {
    uint64_t launches, blocks, threads, instructions, same_writes;
    uint64_t opcodes, opcodes_run; /* distinct opcodes with all their modifiers: loaded, executed */
} ptx_counters;
void ptx_count(ptx_counters *out);
/* Calls f for each opcode that was loaded, in alphabetical order: how many instructions have it, how often they ran. */
void ptx_coverage(void (*f)(void *user, const char *opcode, uint64_t loaded, uint64_t executed), void *user);

#ifdef __cplusplus
}
#endif
#endif /* PTX_H_INCLUDED */

/* ================================================================================================= >>implementation */
#if defined(PTX_IMPLEMENTATION) && !defined(PTX_IMPLEMENTATION_DONE)
#define PTX_IMPLEMENTATION_DONE

#include <ctype.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 ptx__u128;
__extension__ typedef __int128          ptx__s128;

#define PTX__LIKELY(x) __builtin_expect(!!(x), 1)

/* Windows of the generic address space. Device memory of the owner lies below all of them. */
#define PTX__SHARED (UINT64_C(0x51) << 56)
#define PTX__LOCAL (UINT64_C(0x52) << 56)
#define PTX__PARAM (UINT64_C(0x53) << 56)
#define PTX__MODULE (UINT64_C(0x54) << 56)
#define PTX__TAG(a) ((a) >> 56 << 56)

/* ---------------------------------------------------------------------------------------------------- >>types */
enum {
    PTX__NONE,
    PTX__B8,
    PTX__B16,
    PTX__B32,
    PTX__B64,
    PTX__U8,
    PTX__U16,
    PTX__U32,
    PTX__U64,
    PTX__S8,
    PTX__S16,
    PTX__S32,
    PTX__S64,
    PTX__F16,
    PTX__F16X2,
    PTX__BF16,
    PTX__BF16X2,
    PTX__F32,
    PTX__F64,
    PTX__PRED,
    PTX__TF32,
    PTX__TYPES
};
static const char *const ptx__type_name[PTX__TYPES] = { "",      "b8",   "b16",    "b32", "b64", "u8",   "u16",
                                                        "u32",   "u64",  "s8",     "s16", "s32", "s64",  "f16",
                                                        "f16x2", "bf16", "bf16x2", "f32", "f64", "pred", "tf32" };
static const uint8_t ptx__type_bytes[PTX__TYPES] = { 0, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 2, 4, 4, 8, 1, 4 };

static bool     ptx__is_signed(int t) { return t >= PTX__S8 && t <= PTX__S64; }
static bool     ptx__is_int(int t) { return t >= PTX__B8 && t <= PTX__S64; }
static bool     ptx__is_float(int t) { return (t >= PTX__F16 && t <= PTX__F64) || t == PTX__TF32; }
static uint64_t ptx__mask(int bytes) { return bytes >= 8 ? ~UINT64_C(0) : (UINT64_C(1) << 8 * bytes) - 1; }
static int64_t  ptx__sext(uint64_t v, int bytes) { return (int64_t)(v << (64 - 8 * bytes)) >> (64 - 8 * bytes); }

static inline float ptx__f(uint64_t v)
{
    uint32_t u = (uint32_t)v;
    float    x;
    memcpy(&x, &u, 4);
    return x;
}
static inline uint64_t ptx__fb(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline double ptx__d(uint64_t v)
{
    double x;
    memcpy(&x, &v, 8);
    return x;
}
static inline uint64_t ptx__db(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

/* ---------------------------------------------------------------------------------------------------- >>floats
   Everything narrower than f64 is computed as a double rounded to odd, then rounded once to its format: the last bit of
   the double says that something was cut off, so the second rounding sees what the first lost. */
enum {
    PTX__RN = 0,
    PTX__RZ = 1,
    PTX__RM = 2,
    PTX__RP = 3,
    PTX__RNA = 4,
    PTX__RMODE = 7,
    PTX__FTZ = 8,
    PTX__SAT = 16,
    PTX__NAN = 32,
    PTX__RELU = 64,
    PTX__XORSIGN = 128
};

static double ptx__sticky(double s, double err) /* s plus a part err below its last bit, to odd */
{
    uint64_t b = ptx__db(s);
    if (err == 0 || b & 1 || !isfinite(s)) return s;
    if (s == 0) return s;
    return ptx__d((err > 0) == (s > 0) ? b | 1 : b - 1);
}
static double ptx__odd_add(double a, double b)
{
    double s = a + b, bb = s - a;
    if (!isfinite(s)) return s;
    return ptx__sticky(s, (a - (s - bb)) + (b - bb));
}
static double ptx__odd_div(double a, double b)
{
    double q = a / b;
    if (!isfinite(q) || q == 0 || !isfinite(b)) return q;
    double rest = -fma(q, b, -a); /* a - q*b */
    return ptx__sticky(q, b > 0 ? rest : -rest);
}
static double ptx__odd_sqrt(double a)
{
    double q = sqrt(a);
    if (!isfinite(q) || q == 0) return q;
    return ptx__sticky(q, -fma(q, q, -a));
}

/* x in a format of 'mant' stored bits, exponents emin..emax: its bits without the sign, at the right. Overflow as the
   mode says. */
static uint32_t ptx__narrow(double x, int mant, int emin, int emax, int mode)
{
    uint64_t b = ptx__db(x);
    uint32_t neg = (uint32_t)(b >> 63), inf = (uint32_t)(emax - emin + 2) << mant;
    int      e = (int)(b >> 52 & 2047) - 1023;
    uint64_t m = b & ((UINT64_C(1) << 52) - 1);
    if (e == 1024) return inf;
    if (e == -1023 && m == 0) return 0;
    if (e == -1023) e = -1022; /* a subnormal double: below everything but f64 */
    else m |= UINT64_C(1) << 52;
    int cut = 52 - mant; /* bits that go */
    if (e < emin) cut += emin - e;
    uint64_t kept = cut > 63 ? 0 : m >> cut;
    uint64_t rest = cut > 63 ? (m ? 1 : 0) : m & ((UINT64_C(1) << cut) - 1);
    uint64_t half = cut > 63 ? 2 : UINT64_C(1) << (cut - 1);
    bool     up = false;
    switch (mode) {
    case PTX__RN: up = rest > half || (rest == half && (kept & 1)); break;
    case PTX__RNA: up = rest >= half; break;
    case PTX__RM: up = neg && rest; break;
    case PTX__RP: up = !neg && rest; break;
    default: break;
    }
    kept += up;
    uint64_t bits = e < emin ? kept : kept + ((uint64_t)(e - emin) << mant);
    if (bits >= inf) {
        bool away = mode == PTX__RN || mode == PTX__RNA || (mode == PTX__RM && neg) || (mode == PTX__RP && !neg);
        return away ? inf : inf - 1;
    }
    return (uint32_t)bits;
}
static uint64_t ptx__pack(int type, double x, int mode)
{
    uint64_t s = ptx__db(x) >> 63;
    switch (type) {
    case PTX__F16: return isnan(x) ? 0x7fff : ptx__narrow(x, 10, -14, 15, mode) | s << 15;
    case PTX__BF16: return isnan(x) ? 0x7fff : ptx__narrow(x, 7, -126, 127, mode) | s << 15;
    case PTX__F32:
        if (isnan(x)) return 0x7fffffff;
        return mode == PTX__RN ? ptx__fb((float)x) : ptx__narrow(x, 23, -126, 127, mode) | s << 31;
    case PTX__TF32: return isnan(x) ? 0x7fffffff : (uint64_t)ptx__narrow(x, 10, -126, 127, mode) << 13 | s << 31;
    default: return ptx__db(x);
    }
}
static double ptx__unpack(int type, uint64_t v)
{
    switch (type) {
    case PTX__F16: {
        int    e = (int)(v >> 10 & 31);
        double m = (double)(v & 1023), x;
        if (e == 31) x = m != 0 ? (double)NAN : (double)INFINITY;
        else x = e ? ldexp(m + 1024, e - 25) : ldexp(m, -24);
        return v >> 15 & 1 ? -x : x;
    }
    case PTX__BF16: return ptx__f(v << 16 & 0xffffffffu);
    case PTX__F32:
    case PTX__TF32: return ptx__f(v);
    default: return ptx__d(v);
    }
}

enum {
    PTX__ADD,
    PTX__SUB,
    PTX__MUL,
    PTX__FMA,
    PTX__DIV,
    PTX__MIN,
    PTX__MAX,
    PTX__ABS,
    PTX__NEG,
    PTX__SQRT,
    PTX__RCP,
    PTX__RSQRT,
    PTX__EX2,
    PTX__LG2,
    PTX__SIN,
    PTX__COS,
    PTX__TANH,
    PTX__COPYSIGN
};

static double ptx__minmax(bool max, int flags, double a, double b)
{
    double sign = 1;
    if (flags & PTX__XORSIGN) {
        sign = (ptx__db(a) ^ ptx__db(b)) >> 63 ? -1 : 1;
        a = fabs(a);
        b = fabs(b);
    }
    if (isnan(a) || isnan(b)) {
        if (flags & PTX__NAN || (isnan(a) && isnan(b))) return (double)NAN;
        return copysign(1, sign) * (isnan(a) ? b : a);
    }
    bool   less = a < b || (a == b && signbit(a) && !signbit(b));
    double x = less != max ? a : b;
    return sign < 0 ? -x : x;
}
static double ptx__flush(double x) { return fabs(x) < 0x1p-126 ? copysign(0, x) : x; }

static __attribute__((noinline)) double ptx__f64_round(int kind, int mode, double a, double b, double c)
{
    static const int way[4] = { FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD };
    volatile double  va = a, vb = b, vc = c, x = 0;
    fesetround(way[mode & 3]);
    switch (kind) {
    case PTX__ADD: x = va + vb; break;
    case PTX__SUB: x = va - vb; break;
    case PTX__MUL: x = va * vb; break;
    case PTX__FMA: x = fma(va, vb, vc); break;
    case PTX__DIV: x = va / vb; break;
    case PTX__SQRT: x = sqrt(va); break;
    default: x = 1 / va; break;
    }
    fesetround(FE_TONEAREST);
    return x;
}

/* Any arithmetic of floats but f64, without haste: operands and result as bits. */
static uint64_t ptx__fop1(int kind, int type, int flags, uint64_t ab, uint64_t bb, uint64_t cb)
{
    if (kind == PTX__NEG || kind == PTX__ABS) {
        uint64_t sign = UINT64_C(1) << (8 * ptx__type_bytes[type] - 1), v = kind == PTX__NEG ? ab ^ sign : ab & ~sign;
        if (flags & PTX__FTZ && type == PTX__F32) v = ptx__fb((float)ptx__flush(ptx__f(v)));
        return v;
    }
    double a = ptx__unpack(type, ab), b = ptx__unpack(type, bb), c = ptx__unpack(type, cb), x = 0;
    bool   ftz = flags & PTX__FTZ && type == PTX__F32;
    if (ftz) a = ptx__flush(a), b = ptx__flush(b), c = ptx__flush(c);
    switch (kind) {
    case PTX__ADD: x = ptx__odd_add(a, b); break;
    case PTX__SUB: x = ptx__odd_add(a, -b); break;
    case PTX__MUL: x = a * b; break;
    case PTX__FMA: x = ptx__odd_add(a * b, c); break;
    case PTX__DIV: x = ptx__odd_div(a, b); break;
    case PTX__MIN:
    case PTX__MAX: x = ptx__minmax(kind == PTX__MAX, flags, a, b); break;
    case PTX__SQRT: x = ptx__odd_sqrt(a); break;
    case PTX__RCP: x = ptx__odd_div(1, a); break;
    case PTX__RSQRT: x = 1 / sqrt(a); break;
    case PTX__EX2: x = exp2(a); break;
    case PTX__LG2: x = log2(a); break;
    case PTX__SIN: x = sin(a); break;
    case PTX__COS: x = cos(a); break;
    case PTX__TANH: x = tanh(a); break;
    default: x = copysign(b, a); break; /* copysign.f32 d, a, b: the sign of a on b */
    }
    int mode = flags & PTX__RMODE;
    if ((mode == PTX__RM) && x == 0 && (kind == PTX__ADD || kind == PTX__SUB || kind == PTX__FMA)) {
        /* an exact zero of unlike signs is -0 when rounding down */
        double p = kind == PTX__FMA ? a * b : a, q = kind == PTX__FMA ? c : kind == PTX__SUB ? -b : b;
        if (signbit(p) != signbit(q) || signbit(p)) x = -0.0;
    }
    if (flags & PTX__SAT) x = x > 0 ? (x < 1 ? x : 1) : 0;
    if (flags & PTX__RELU) x = isnan(x) ? x : x > 0 ? x : 0;
    uint64_t r = ptx__pack(type, x, mode);
    if (ftz) r = ptx__fb((float)ptx__flush(ptx__f(r)));
    return r;
}
static uint64_t ptx__fop(int kind, int type, int flags, uint64_t a, uint64_t b, uint64_t c)
{
    int one = type == PTX__F16X2 ? PTX__F16 : PTX__BF16;
    if (type == PTX__F64) {
        double x = ptx__d(a), y = ptx__d(b), z = ptx__d(c), v;
        switch (kind) {
        case PTX__MIN:
        case PTX__MAX: v = ptx__minmax(kind == PTX__MAX, flags, x, y); break;
        case PTX__ABS: return a & ~(UINT64_C(1) << 63);
        case PTX__NEG: return a ^ UINT64_C(1) << 63;
        case PTX__RSQRT: v = 1 / sqrt(x); break;
        case PTX__COPYSIGN: v = copysign(y, x); break;
        default: v = ptx__f64_round(kind, flags & PTX__RMODE, x, y, z); break;
        }
        if (flags & PTX__SAT) v = v > 0 ? (v < 1 ? v : 1) : 0;
        return ptx__db(v);
    }
    if (type != PTX__F16X2 && type != PTX__BF16X2) return ptx__fop1(kind, type, flags, a, b, c);
    return ptx__fop1(kind, one, flags, a & 0xffff, b & 0xffff, c & 0xffff) |
           ptx__fop1(kind, one, flags, a >> 16, b >> 16, c >> 16) << 16;
}

/* How a compares with b. */
enum {
    PTX__EQ,
    PTX__NE,
    PTX__LT,
    PTX__LE,
    PTX__GT,
    PTX__GE,
    PTX__EQU,
    PTX__NEU,
    PTX__LTU,
    PTX__LEU,
    PTX__GTU,
    PTX__GEU,
    PTX__NUM,
    PTX__ISNAN,
    PTX__CMPS
};
static const char *const ptx__cmp_name[PTX__CMPS] = { "eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                                      "neu", "ltu", "leu", "gtu", "geu", "num", "nan" };
static bool              ptx__compare(int cmp, int type, int flags, uint64_t ab, uint64_t bb)
{
    if (ptx__is_float(type)) {
        double a = ptx__unpack(type, ab), b = ptx__unpack(type, bb);
        if (flags & PTX__FTZ && type == PTX__F32) a = ptx__flush(a), b = ptx__flush(b);
        bool un = isnan(a) || isnan(b);
        switch (cmp) {
        case PTX__EQ: return a == b;
        case PTX__NE: return !un && a != b;
        case PTX__LT: return a < b;
        case PTX__LE: return a <= b;
        case PTX__GT: return a > b;
        case PTX__GE: return a >= b;
        case PTX__EQU: return un || a == b;
        case PTX__NEU: return a != b;
        case PTX__LTU: return !(a >= b);
        case PTX__LEU: return !(a > b);
        case PTX__GTU: return !(a <= b);
        case PTX__GEU: return !(a < b);
        case PTX__NUM: return !un;
        default: return un;
        }
    }
    int n = ptx__type_bytes[type];
    if (ptx__is_signed(type)) {
        int64_t a = ptx__sext(ab, n), b = ptx__sext(bb, n);
        switch (cmp) {
        case PTX__EQ: return a == b;
        case PTX__NE: return a != b;
        case PTX__LT: return a < b;
        case PTX__LE: return a <= b;
        case PTX__GT: return a > b;
        default: return a >= b;
        }
    }
    uint64_t a = ab & ptx__mask(n), b = bb & ptx__mask(n);
    switch (cmp) {
    case PTX__EQ: return a == b;
    case PTX__NE: return a != b;
    case PTX__LT: return a < b;
    case PTX__LE: return a <= b;
    case PTX__GT: return a > b;
    default: return a >= b;
    }
}

/* cvt. 'irnd' holds the rounding to an integer (PTX__RN..) or -1. */
static uint64_t ptx__cvt(int to, int from, int flags, int irnd, uint64_t v)
{
    int  n = ptx__type_bytes[from], m = ptx__type_bytes[to], mode = flags & PTX__RMODE;
    bool sgn = ptx__is_signed(from);
    if (!ptx__is_float(from)) {
        uint64_t u = sgn ? (uint64_t)ptx__sext(v, n) : v & ptx__mask(n);
        bool     neg = sgn && (int64_t)u < 0;
        if (!ptx__is_float(to)) {
            if (flags & PTX__SAT) {
                if (ptx__is_signed(to)) {
                    int64_t hi = (int64_t)(ptx__mask(m) >> 1), lo = -hi - 1;
                    if (neg) u = (int64_t)u < lo ? (uint64_t)lo : u;
                    else u = u > (uint64_t)hi ? (uint64_t)hi : u;
                } else {
                    u = neg ? 0 : u > ptx__mask(m) ? ptx__mask(m) : u;
                }
            }
            return ptx__is_signed(to) ? (uint64_t)ptx__sext(u, m) : u & ptx__mask(m);
        }
        if (to == PTX__F32 && mode == PTX__RN) return ptx__fb(neg ? (float)(int64_t)u : (float)u);
        uint64_t mag = neg ? 0 - u : u;
        if (to == PTX__F64) {
            static const int  way[4] = { FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD };
            volatile uint64_t in = u;
            volatile double   x;
            fesetround(way[mode & 3]);
            if (neg) x = (double)(int64_t)in;
            else x = (double)in;
            fesetround(FE_TONEAREST);
            return ptx__db(x);
        }
        if (mag >> 53) mag = (mag >> 11 | ((mag & 2047) != 0)) << 11;
        return ptx__pack(to, neg ? -(double)mag : (double)mag, mode);
    }
    double x = ptx__unpack(from, v);
    if (flags & PTX__FTZ && from == PTX__F32) x = ptx__flush(x);
    if (irnd >= 0 && isfinite(x)) {
        switch (irnd) {
        case PTX__RN: x = nearbyint(x); break;
        case PTX__RZ: x = trunc(x); break;
        case PTX__RM: x = floor(x); break;
        default: x = ceil(x); break;
        }
    }
    if (!ptx__is_float(to)) {
        if (isnan(x)) return from == PTX__F64 || m == 8 ? UINT64_C(1) << (8 * m - 1) : 0;
        if (ptx__is_signed(to)) {
            double  top = ldexp(1, 8 * m - 1);
            int64_t hi = (int64_t)(ptx__mask(m) >> 1);
            return x >= top ? (uint64_t)hi : x < -top ? (uint64_t)(-hi - 1) : (uint64_t)(int64_t)x;
        }
        return x <= 0 ? 0 : x >= ldexp(1, 8 * m) ? ptx__mask(m) : (uint64_t)x;
    }
    if (flags & PTX__SAT) x = x > 0 ? (x < 1 ? x : 1) : 0;
    if (flags & PTX__RELU) x = isnan(x) ? x : x > 0 ? x : 0;
    uint64_t r = ptx__pack(to, x, mode);
    if (flags & PTX__FTZ && to == PTX__F32) r = ptx__fb((float)ptx__flush(ptx__f(r)));
    return r;
}

/* ---------------------------------------------------------------------------------------------------- >>instructions
   The simple ones, each with what it does. D is the destination register, A B C the operands; registers hold 64 bits,
   zero beyond the width of their type. */
#define PTX__U(x) ((uint32_t)(x))
#define PTX__I(x) ((int32_t)(x))
#define PTX__L(x) ((int64_t)(x))
#define PTX__H(x) ((uint16_t)(x))
#define PTX__HI(x) ((int16_t)(x))
#define PTX__SHIFT(n, most) (PTX__U(n) > (most) ? (most) : PTX__U(n))

/* clang-format off */
#define PTX__CMP_OPS(X, t, ca, cb)                                                                                     \
    X(eq_##t, D = (ca) == (cb)) X(ne_##t, D = (ca) != (cb)) X(lt_##t, D = (ca) < (cb)) X(le_##t, D = (ca) <= (cb))     \
    X(gt_##t, D = (ca) > (cb)) X(ge_##t, D = (ca) >= (cb))
#define PTX__UCMP_OPS(X, t, ca, cb)                                                                                    \
    X(lt_##t, D = (ca) < (cb)) X(le_##t, D = (ca) <= (cb)) X(gt_##t, D = (ca) > (cb)) X(ge_##t, D = (ca) >= (cb))
#define PTX__FCMP_OPS(X, t, f)                                                                                         \
    X(eq_##t, D = f(A) == f(B)) X(ne_##t, D = f(A) < f(B) || f(A) > f(B)) X(lt_##t, D = f(A) < f(B))                   \
    X(le_##t, D = f(A) <= f(B)) X(gt_##t, D = f(A) > f(B)) X(ge_##t, D = f(A) >= f(B))                                 \
    X(equ_##t, D = !(f(A) < f(B) || f(A) > f(B))) X(neu_##t, D = f(A) != f(B)) X(ltu_##t, D = !(f(A) >= f(B)))         \
    X(leu_##t, D = !(f(A) > f(B))) X(gtu_##t, D = !(f(A) <= f(B))) X(geu_##t, D = !(f(A) < f(B)))                      \
    X(num_##t, D = f(A) == f(A) && f(B) == f(B)) X(nan_##t, D = f(A) != f(A) || f(B) != f(B))

#define PTX__SIMPLE(X)                                                                                                 \
    X(mov, D = A) X(mov16, D = PTX__H(A)) X(mov32, D = PTX__U(A))                                                      \
    X(add16, D = PTX__H(A + B)) X(add32, D = PTX__U(A + B)) X(add64, D = A + B)                                        \
    X(sub16, D = PTX__H(A - B)) X(sub32, D = PTX__U(A - B)) X(sub64, D = A - B)                                        \
    X(mul16, D = PTX__H(A * B)) X(mul32, D = PTX__U(A * B)) X(mul64, D = A * B)                                        \
    X(mad16, D = PTX__H(A * B + C)) X(mad32, D = PTX__U(A * B + C)) X(mad64, D = A * B + C)                            \
    X(mulhi_u16, D = PTX__H(PTX__U(A) * PTX__U(B) >> 16))                                                              \
    X(mulhi_s16, D = PTX__H((PTX__HI(A) * PTX__HI(B)) >> 16))                                                          \
    X(mulhi_u32, D = (uint64_t)PTX__U(A) * PTX__U(B) >> 32)                                                            \
    X(mulhi_s32, D = PTX__U(((int64_t)PTX__I(A) * PTX__I(B)) >> 32))                                                   \
    X(mulhi_u64, D = (uint64_t)((ptx__u128)A * B >> 64))                                                               \
    X(mulhi_s64, D = (uint64_t)(((ptx__s128)PTX__L(A) * PTX__L(B)) >> 64))                                             \
    X(mulw_u16, D = PTX__U(PTX__H(A)) * PTX__H(B)) X(mulw_s16, D = PTX__U(PTX__HI(A) * PTX__HI(B)))                    \
    X(mulw_u32, D = (uint64_t)PTX__U(A) * PTX__U(B))                                                                   \
    X(mulw_s32, D = (uint64_t)((int64_t)PTX__I(A) * PTX__I(B)))                                                        \
    X(abs_s16, D = PTX__H(PTX__HI(A) < 0 ? 0 - A : A)) X(abs_s32, D = PTX__U(PTX__I(A) < 0 ? 0 - A : A))               \
    X(abs_s64, D = PTX__L(A) < 0 ? 0 - A : A)                                                                          \
    X(neg16, D = PTX__H(0 - A)) X(neg32, D = PTX__U(0 - A)) X(neg64, D = 0 - A)                                        \
    X(min_u16, D = PTX__H(A) < PTX__H(B) ? PTX__H(A) : PTX__H(B))                                                      \
    X(max_u16, D = PTX__H(A) > PTX__H(B) ? PTX__H(A) : PTX__H(B))                                                      \
    X(min_s16, D = PTX__HI(A) < PTX__HI(B) ? PTX__H(A) : PTX__H(B))                                                    \
    X(max_s16, D = PTX__HI(A) > PTX__HI(B) ? PTX__H(A) : PTX__H(B))                                                    \
    X(min_u32, D = PTX__U(A) < PTX__U(B) ? PTX__U(A) : PTX__U(B))                                                      \
    X(max_u32, D = PTX__U(A) > PTX__U(B) ? PTX__U(A) : PTX__U(B))                                                      \
    X(min_s32, D = PTX__I(A) < PTX__I(B) ? PTX__U(A) : PTX__U(B))                                                      \
    X(max_s32, D = PTX__I(A) > PTX__I(B) ? PTX__U(A) : PTX__U(B))                                                      \
    X(min_u64, D = A < B ? A : B) X(max_u64, D = A > B ? A : B)                                                        \
    X(min_s64, D = PTX__L(A) < PTX__L(B) ? A : B) X(max_s64, D = PTX__L(A) > PTX__L(B) ? A : B)                        \
    X(and, D = A & B) X(or, D = A | B) X(xor, D = A ^ B) X(andn, D = ~A & B & 1)                                       \
    X(not1, D = !A) X(not16, D = PTX__H(~A)) X(not32, D = PTX__U(~A)) X(not64, D = ~A)                                 \
    X(cnot16, D = !PTX__H(A)) X(cnot32, D = !PTX__U(A)) X(cnot64, D = !A)                                              \
    X(shl16, D = PTX__U(B) > 15 ? 0 : PTX__H(A << PTX__U(B))) X(shl32, D = PTX__U(B) > 31 ? 0 : PTX__U(A) << B)        \
    X(shl64, D = PTX__U(B) > 63 ? 0 : A << PTX__U(B))                                                                  \
    X(shr_u16, D = PTX__U(B) > 15 ? 0 : PTX__H(A) >> PTX__U(B)) X(shr_u32, D = PTX__U(B) > 31 ? 0 : PTX__U(A) >> B)    \
    X(shr_u64, D = PTX__U(B) > 63 ? 0 : A >> PTX__U(B)) X(shr_s16, D = PTX__H(PTX__HI(A) >> PTX__SHIFT(B, 15)))        \
    X(shr_s32, D = PTX__U(PTX__I(A) >> PTX__SHIFT(B, 31))) X(shr_s64, D = (uint64_t)(PTX__L(A) >> PTX__SHIFT(B, 63)))  \
    X(shf_l_wrap, D = PTX__U((((B & 0xffffffffu) << 32 | PTX__U(A)) << (C & 31)) >> 32))                               \
    X(shf_r_wrap, D = PTX__U(((B & 0xffffffffu) << 32 | PTX__U(A)) >> (C & 31)))                                       \
    X(shf_l_clamp, D = PTX__U((((B & 0xffffffffu) << 32 | PTX__U(A)) << PTX__SHIFT(C, 32)) >> 32))                     \
    X(shf_r_clamp, D = PTX__U(((B & 0xffffffffu) << 32 | PTX__U(A)) >> PTX__SHIFT(C, 32)))                             \
    X(popc32, D = (uint64_t)__builtin_popcount(PTX__U(A))) X(popc64, D = (uint64_t)__builtin_popcountll(A))            \
    X(clz32, D = PTX__U(A) ? (uint64_t)__builtin_clz(PTX__U(A)) : 32)                                                  \
    X(clz64, D = A ? (uint64_t)__builtin_clzll(A) : 64)                                                                \
    X(brev32, D = ptx__brev(A) >> 32) X(brev64, D = ptx__brev(A))                                                      \
    X(bfe_u32, D = ptx__bfe(A, B, C, 32, false)) X(bfe_s32, D = ptx__bfe(A, B, C, 32, true))                           \
    X(bfe_u64, D = ptx__bfe(A, B, C, 64, false)) X(bfe_s64, D = ptx__bfe(A, B, C, 64, true))                           \
    X(bfind, D = ptx__bfind(A, (int)I->x)) X(prmt, D = ptx__prmt(A, B, C, (int)I->x))                                  \
    X(lop3, D = ptx__lop3(A, B, C, I->x)) X(sad32, D = PTX__U(C + (PTX__U(A) > PTX__U(B) ? A - B : B - A)))            \
    X(sads32, D = PTX__U(C + (PTX__I(A) > PTX__I(B) ? A - B : B - A)))                                                 \
    X(selp, D = C ? A : B) X(slct_s32, D = PTX__I(C) >= 0 ? A : B) X(slct_f32, D = ptx__f(C) >= 0 ? A : B)             \
    PTX__CMP_OPS(X, s32, PTX__I(A), PTX__I(B)) PTX__UCMP_OPS(X, u32, PTX__U(A), PTX__U(B))                             \
    PTX__CMP_OPS(X, s64, PTX__L(A), PTX__L(B)) PTX__UCMP_OPS(X, u64, A, B)                                             \
    PTX__FCMP_OPS(X, f32, ptx__f) PTX__FCMP_OPS(X, f64, ptx__d)                                                        \
    X(cmp, D = ptx__compare((int)(I->x & 15), (int)(I->x >> 4 & 31), (int)(I->x >> 9), A, B))                          \
    X(testp, D = ptx__testp((int)I->x, A))                                                                             \
    X(add_f32, D = ptx__fb(ptx__f(A) + ptx__f(B))) X(sub_f32, D = ptx__fb(ptx__f(A) - ptx__f(B)))                      \
    X(mul_f32, D = ptx__fb(ptx__f(A) * ptx__f(B))) X(div_f32, D = ptx__fb(ptx__f(A) / ptx__f(B)))                      \
    X(fma_f32, D = ptx__fb(fmaf(ptx__f(A), ptx__f(B), ptx__f(C)))) X(sqrt_f32, D = ptx__fb(sqrtf(ptx__f(A))))          \
    X(neg_f32, D = PTX__U(A) ^ 0x80000000u) X(abs_f32, D = PTX__U(A) & 0x7fffffffu)                                    \
    X(ex2_f32, D = ptx__fb(exp2f(ptx__f(A)))) X(lg2_f32, D = ptx__fb(log2f(ptx__f(A))))                                \
    X(rcp_f32, D = ptx__fb(1 / ptx__f(A)))                                                                             \
    X(add_f64, D = ptx__db(ptx__d(A) + ptx__d(B))) X(sub_f64, D = ptx__db(ptx__d(A) - ptx__d(B)))                      \
    X(mul_f64, D = ptx__db(ptx__d(A) * ptx__d(B))) X(div_f64, D = ptx__db(ptx__d(A) / ptx__d(B)))                      \
    X(fma_f64, D = ptx__db(fma(ptx__d(A), ptx__d(B), ptx__d(C))))                                                      \
    X(fop, D = ptx__fop((int)(I->x & 255), (int)(I->x >> 8 & 255), (int)(I->x >> 16), A, B, C))                        \
    X(cvt_s64_s32, D = (uint64_t)(int64_t)PTX__I(A)) X(cvt_f64_f32, D = ptx__db(ptx__f(A)))                            \
    X(cvt_f32_f64, D = ptx__fb((float)ptx__d(A))) X(cvt_f32_s32, D = ptx__fb((float)PTX__I(A)))                        \
    X(cvt_f32_u32, D = ptx__fb((float)PTX__U(A))) X(cvt_f32_s64, D = ptx__fb((float)PTX__L(A)))                        \
    X(cvt_f32_bf16, D = A << 16 & 0xffffffffu) X(cvt_f32_f16, D = ptx__half_float(A))                                  \
    X(cvt_bf16_f32, D = ptx__bf16_of(A)) X(cvt, D = ptx__cvt_packed(I->x, A))                                          \
    X(cvt2, D = ptx__cvt_packed(I->x, B) | ptx__cvt_packed(I->x, A) << 16)                                             \
    X(set, D = ptx__set(I->x, A, B) ? (uint64_t)(uint32_t)I->y : 0)                                                    \
    X(set2, D = (ptx__set(I->x, A & 0xffff, B & 0xffff) ? (uint64_t)(uint32_t)I->y & 0xffff : 0) |                     \
                (ptx__set(I->x, A >> 16, B >> 16) ? (uint64_t)(uint32_t)I->y & 0xffff0000u : 0))                       \
    X(pack2_16, D = PTX__H(A) | PTX__U(B << 16)) X(pack2_32, D = PTX__U(A) | B << 32)                            \
    X(shr_imm, D = A >> I->y & ptx__mask((int)I->x)) X(shl_or, D = A | (B & 0xffff) << I->y)                           \
    X(add_imm, D = A + (uint64_t)I->imm) X(space, D = PTX__TAG(A) == (uint64_t)I->imm)                                 \
    X(bfi, D = ptx__bfi(A, B, C, r[I->x], I->y))                                                                       \
    X(space_none, D = (A >> 56 < 0x51 || A >> 56 == 0x54))

/* Those that need more than registers. */
#define PTX__OTHER(X)                                                                                                  \
    X(div) X(carry) X(skip) X(bra) X(bra_if) X(bra_not) X(brx) X(call) X(ret) X(exit) X(trap) X(nop) X(pause) X(clock) \
    X(ld_param) X(ld_global_1) X(ld_global_2) X(ld_global_4) X(ld_global_8) X(ld_shared_1) X(ld_shared_2)              \
    X(ld_shared_4) X(ld_shared_8) X(ld) X(st_global_1) X(st_global_2) X(st_global_4) X(st_global_8) X(st_shared_1)     \
    X(st_shared_2) X(st_shared_4) X(st_shared_8) X(st) X(atom) X(bar) X(warp) X(fence) X(async) X(async_wait)          \
    X(bra_if_step) X(bra_not_step) X(join) /* in place of others while costs are counted: they end a straight run */

/* clang-format on */
enum {
#define PTX__ENUM(name, ...) PTX__OP_##name,
#define PTX__ENUM1(name) PTX__OP_##name,
    PTX__SIMPLE(PTX__ENUM) PTX__OTHER(PTX__ENUM1) PTX__OPS
};

static uint64_t ptx__brev(uint64_t v)
{
    v = (v >> 1 & UINT64_C(0x5555555555555555)) | (v & UINT64_C(0x5555555555555555)) << 1;
    v = (v >> 2 & UINT64_C(0x3333333333333333)) | (v & UINT64_C(0x3333333333333333)) << 2;
    v = (v >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)) | (v & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4;
    return __builtin_bswap64(v);
}
static uint64_t ptx__bfe(uint64_t a, uint64_t pos, uint64_t len, int bits, bool sgn)
{
    unsigned p = pos & 255, n = len & 255, msb = (unsigned)bits - 1;
    uint64_t sign = 0, d = 0;
    if (bits == 32) a = (uint32_t)a;
    if (sgn && n) sign = a >> (p + n - 1 < msb ? p + n - 1 : msb) & 1;
    for (unsigned i = 0; i <= msb; i++) d |= (i < n && p + i <= msb ? a >> (p + i) & 1 : sign) << i;
    return d;
}
static uint64_t ptx__bfi(uint64_t f, uint64_t b, uint64_t pos, uint64_t len, int bits)
{
    unsigned p = pos & 255, n = len & 255;
    for (unsigned i = 0; i < n && p + i < (unsigned)bits; i++)
        b = (b & ~(UINT64_C(1) << (p + i))) | (f >> i & 1) << (p + i);
    return bits == 32 ? (uint32_t)b : b;
}
static uint64_t ptx__bfind(uint64_t a, int how) /* how: bits, 1 signed, 2 shiftamt */
{
    int bits = how & 64 ? 64 : 32;
    if (bits == 32) a = how & 1 ? (uint64_t)(int64_t)(int32_t)a : (uint32_t)a;
    if (how & 1 && (int64_t)a < 0) a = ~a;
    if (bits == 32) a = (uint32_t)a;
    if (!a) return 0xffffffffu;
    int top = 63 - __builtin_clzll(a);
    return (uint64_t)(how & 2 ? bits - 1 - top : top);
}
static uint64_t ptx__prmt(uint64_t a, uint64_t b, uint64_t c, int mode)
{
    uint64_t v = (uint32_t)a | b << 32;
    uint32_t d = 0, sel = (uint32_t)c;
    for (unsigned i = 0; i < 4; i++) {
        unsigned s = sel & 3, pick, sign = 0;
        switch (mode) {
        case 0: pick = sel >> 4 * i & 7, sign = sel >> (4 * i + 3) & 1; break;
        case 1: pick = s + i; break;                  /* f4e */
        case 2: pick = (s + 8 - i) & 7; break;        /* b4e */
        case 3: pick = s; break;                      /* rc8 */
        case 4: pick = i > s ? i : s; break;          /* ecl */
        case 5: pick = i < s ? i : s; break;          /* ecr */
        default: pick = (s & 1) * 2 + (i & 1); break; /* rc16 */
        }
        uint32_t byte = (uint32_t)(v >> 8 * pick) & 255;
        if (sign) byte = byte & 128 ? 255 : 0;
        d |= byte << 8 * i;
    }
    return d;
}
static uint64_t ptx__lop3(uint64_t a, uint64_t b, uint64_t c, uint32_t lut)
{
    uint64_t d = 0;
    for (unsigned i = 0; i < 8; i++)
        if (lut >> i & 1) d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return (uint32_t)d;
}
static bool ptx__testp(int how, uint64_t v) /* how: 16 f64, kind */
{
    int c = how & 16 ? fpclassify(ptx__d(v)) : fpclassify(ptx__f(v));
    switch (how & 15) {
    case 0: return c != FP_NAN && c != FP_INFINITE;
    case 1: return c == FP_INFINITE;
    case 2: return c != FP_NAN;
    case 3: return c == FP_NAN;
    case 4: return c == FP_NORMAL;
    default: return c == FP_SUBNORMAL;
    }
}
static inline uint64_t ptx__half_float(uint64_t h)
{
    uint32_t e = h >> 10 & 31, m = h & 1023, s = (uint32_t)(h & 0x8000) << 16;
    if (e - 1 < 30) return s | (e + 112) << 23 | m << 13;
    if (e == 31) return m ? 0x7fffffffu : s | 0x7f800000u;
    return ptx__fb((float)m * 0x1p-24f) | s;
}
static inline uint64_t ptx__bf16_of(uint64_t f)
{
    uint32_t u = (uint32_t)f;
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
/* bits of x: to 5, from 5, flags 8, irnd + 1 3, width of the register in bytes 4 */
static uint64_t ptx__cvt_packed(uint32_t x, uint64_t v)
{
    uint64_t d = ptx__cvt((int)(x & 31), (int)(x >> 5 & 31), (int)(x >> 10 & 255), (int)(x >> 18 & 7) - 1, v);
    return d & ptx__mask((int)(x >> 21));
}
static bool ptx__set(uint32_t x, uint64_t a, uint64_t b)
{
    return ptx__compare((int)(x & 15), (int)(x >> 4 & 31), (int)(x >> 9), a, b);
}

/* ---------------------------------------------------------------------------------------------------- >>module */
typedef struct ptx__insn {
    union {
        const void *go; /* the label in ptx__exec; before that the PTX__OP_ */
        uintptr_t   op;
    };
    uint32_t d, a, b, c; /* registers */
    union {
        struct {
            uint32_t x;
            int32_t  y;
        };
        int64_t                 imm;
        const struct ptx__insn *to;
    };
} ptx__insn;

enum { PTX__SP_GENERIC, PTX__SP_GLOBAL, PTX__SP_SHARED, PTX__SP_LOCAL, PTX__SP_PARAM, PTX__SP_FRAME, PTX__SP_CONST };
/* READ and WRITE plain; A...: atomic */
enum { PTX__READ, PTX__WRITE, PTX__NCREAD, PTX__AREAD, PTX__AWRITE, PTX__RMW };

typedef struct ptx__access { /* of ld, st, atom, cp.async: instruction's x */
    uint8_t  space, nbytes, n, kind, sext, regbytes, type, op, release, acquire;
    uint32_t list; /* the registers of a vector */
} ptx__access;

enum {
    PTX__AT_ADD,
    PTX__AT_MIN,
    PTX__AT_MAX,
    PTX__AT_AND,
    PTX__AT_OR,
    PTX__AT_XOR,
    PTX__AT_EXCH,
    PTX__AT_CAS,
    PTX__AT_INC,
    PTX__AT_DEC
};
enum { /* rendezvous of a warp */
       PTX__W_SYNC,
       PTX__W_SHFL,
       PTX__W_ALL,
       PTX__W_ANY,
       PTX__W_UNI,
       PTX__W_BALLOT,
       PTX__W_MATCH_ANY,
       PTX__W_MATCH_ALL,
       PTX__W_REDUX,
       PTX__W_ACTIVE,
       PTX__W_ELECT
};
enum { PTX__SH_UP, PTX__SH_DOWN, PTX__SH_BFLY, PTX__SH_IDX };
typedef struct ptx__meet {             /* of warp operations and barriers: instruction's x */
    uint8_t  kind, mode, type;         /* of a barrier: kind 0 sync, 1 popc, 2 and, 3 or; mode: has a thread count */
    uint32_t dst, pred, a, b, c, mask; /* registers; no register: PTX__NOREG */
} ptx__meet;
#define PTX__NOREG 0xffffffffu
#define PTX__CONST 0x80000000u /* while decoding: an index into the constants */

typedef struct ptx__var {
    char     *name;
    size_t    nbytes, align;
    int       space; /* PTX__SP_GLOBAL, _CONST, _SHARED */
    bool      is_extern;
    uint64_t  addr; /* global, const */
    char     *data;
    uint64_t *shadow; /* global */
    int64_t   common; /* shared: its offset in every kernel, or -1 */
} ptx__var;

typedef struct ptx__special {
    uint32_t reg, id;
} ptx__special;

typedef struct ptx__formal {
    char  *name;
    size_t offset, nbytes, align;
    int    reg; /* .func with .reg parameters is not modelled; kept for the message */
} ptx__formal;

struct ptx_kernel { /* an entry or a function */
    const ptx_module *module;
    char             *name;
    bool              is_entry, has_body, has_fence, has_barrier;
    int               line;
    size_t            body, body_end; /* in the text */
    ptx__formal      *formal;         /* results first */
    size_t            nformal, nresult, param_bytes;
    size_t            nregs, nall; /* registers; with the constants after them */
    uint64_t         *constant;
    size_t            nconstant;
    ptx__special     *special;
    size_t            nspecial;
    size_t            first, ninsn;              /* in the module's code */
    size_t            shared_bytes, frame_bytes; /* static shared; local variables and .param of calls */
    size_t            dyn_align;
    size_t            shared_alloc;        /* with gaps between the variables, to find strays */
    size_t (*gap)[2], ngap, cgap;          /* begin and end of each gap */
    size_t   deep_regs, deep_bytes, depth; /* with the deepest calls */
    uint32_t maxntid[3], reqntid[3];
    int      visiting;
};

typedef struct ptx__calling {
    const ptx_kernel *f;
    uint32_t          nmove, move; /* in the module's moves: {from in the caller's frame, to in the callee's, nbytes} */
    uint32_t          nback, back;
} ptx__calling;

typedef struct ptx__move {
    uint32_t from, to, nbytes;
} ptx__move;

struct ptx_module {
    char              *text; /* comments blanked out */
    char              *source;
    size_t             ntext;
    size_t            *line_at;
    size_t             nlines;
    ptx_kernel       **fn;
    size_t             nfn;
    ptx__var         **var;
    size_t             nvar;
    ptx__insn         *code;
    uint32_t          *line;   /* of each instruction */
    uint32_t          *opcode; /* index in the process's table of opcodes; PTX__NOREG: part of the instruction before */
    size_t             ncode, ccode;
    ptx__access       *access;
    size_t             naccess, caccess;
    ptx__meet         *meet;
    size_t             nmeet, cmeet;
    uint32_t          *list;
    size_t             nlist, clist;
    ptx__calling      *calling;
    size_t             ncalling, ccalling;
    ptx__move         *move;
    size_t             nmove, cmove;
    size_t             common_bytes; /* shared memory that functions use */
    uint64_t           base, nbytes; /* of the variables */
    struct ptx_module *next;
    int64_t *runs; /* straight runs that begin here, less those that ended before: sums to how often each ran */
    bool     stepping;        /* the code is that of ptx_run_counted: without short cuts for loads and stores */
    const void **plain_go;    /* of each instruction, the place without counting; NULL: was never counted */
    const void **step_go;     /* and with it */
    uint32_t    *before;      /* how many instructions of the text stand before each; with plain_go */
};

static struct {
    pthread_mutex_t lock;
    ptx_module     *modules;
    uint64_t        next_base;
    uint32_t        next_id;
    ptx_counters    count;
    struct ptx__opcode {
        char    *name;
        uint64_t loaded, run;
    } * opcode;
    size_t nopcode;
} ptx__all = { PTHREAD_MUTEX_INITIALIZER, NULL, PTX__MODULE + 4096, 2, { 0, 0, 0, 0, 0, 0, 0 }, NULL, 0 };

static void *ptx__more(void *p, size_t n)
{
    void *q = realloc(p, n ? n : 1);
    if (!q) {
        fprintf(stderr, "ptx: out of memory (%zu bytes)\n", n);
        abort();
    }
    return q;
}
static void *ptx__zeroed(size_t n)
{
    void *p = ptx__more(NULL, n);
    memset(p, 0, n ? n : 1);
    return p;
}
static char *ptx__copy(const char *s, size_t n)
{
    char *p = (char *)ptx__more(NULL, n + 1);
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}
/* Room for one more in an array of n of 'cap'. */
#define PTX__ROOM(array, n, cap)                                   \
    do {                                                           \
        if ((n) == (cap)) {                                        \
            (cap) = (cap) ? 2 * (cap) : 64;                        \
            (array) = ptx__more((array), (cap) * sizeof *(array)); \
        }                                                          \
    } while (0)

/* ---------------------------------------------------------------------------------------------------- >>parser */
enum { PTX__SYM_REG, PTX__SYM_RANGE, PTX__SYM_SHARED, PTX__SYM_LOCAL, PTX__SYM_FRAME, PTX__SYM_PARAM };
typedef struct ptx__sym {
    const char *name;
    size_t      nname;
    int         kind, type;
    uint32_t    first, count; /* registers */
    size_t      offset, nbytes;
    uint32_t    next, bucket; /* chain of the hash table; PTX__NOREG ends it */
} ptx__sym;

enum { PTX__O_REG, PTX__O_IMM, PTX__O_F32, PTX__O_F64, PTX__O_MEM, PTX__O_VEC, PTX__O_SINK, PTX__O_NAME };
typedef struct ptx__opnd {
    int               kind;
    bool              negated;     /* !%p */
    uint32_t          reg, second; /* second: of d|p, else PTX__NOREG */
    int               type;        /* of the register */
    uint64_t          imm;
    int64_t           off;
    int               space; /* what a name's address counts from; -1 none */
    const char       *name;
    size_t            nname;
    int               n; /* of a vector */
    struct ptx__opnd *part;
} ptx__opnd;

enum { PTX__MAXOP = 10, PTX__MAXMOD = 16, PTX__BUCKETS = 1024 };
typedef struct ptx__parser {
    ptx_module *m;
    ptx_kernel *f;
    const char *s;
    size_t      at, end;
    jmp_buf     out;
    char       *err;
    size_t      nerr;
    /* of the function */
    ptx__sym *sym;
    size_t    nsym, csym;
    uint32_t  bucket[PTX__BUCKETS];
    uint8_t  *reg_type;
    size_t    nreg, creg;
    uint64_t *constant;
    size_t    nconstant, cconstant;
    size_t    cspecial;
    struct ptx__placed { /* shared variables of the module that the function uses */
        ptx__var *var;
        size_t    offset;
    } * placed;
    size_t nplaced, cplaced;
    struct ptx__label {
        const char *name;
        size_t      nname, at, line;
        uint32_t   *targets; /* .branchtargets */
        size_t      ntargets;
    } * label;
    size_t nlabel, clabel;
    struct ptx__jump {                /* to be resolved */
        size_t      insn, line, list; /* list: of brx */
        const char *name;
        size_t      nname;
        bool        is_list;
    } * jump;
    size_t njump, cjump;
    size_t scope[64];
    int    nscope;
    /* of the instruction */
    size_t      insn_line;
    char        opcode[128];
    char        modtext[128];
    const char *mod[PTX__MAXMOD];
    int         nmod;
    ptx__opnd   op[PTX__MAXOP];
    int         nop;
    ptx__opnd   pool[64];
    int         npool;
    uint32_t    opcode_id;
    bool        counted; /* the next instruction emitted carries the opcode */
} ptx__parser;

static size_t ptx__line_of(const ptx_module *m, size_t at)
{
    size_t lo = 0, hi = m->nlines;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (m->line_at[mid] <= at) lo = mid;
        else hi = mid;
    }
    return lo + 1;
}
static void ptx__source_line(const ptx_module *m, size_t line, char *out, size_t n)
{
    size_t a = m->line_at[line - 1], b = line < m->nlines ? m->line_at[line] : m->ntext, k = 0;
    while (a < b && isspace((unsigned char)m->source[a])) a++;
    for (; a < b && m->source[a] != '\n' && k + 1 < n; a++) out[k++] = m->source[a] == '\t' ? ' ' : m->source[a];
    while (k > 0 && isspace((unsigned char)out[k - 1])) k--;
    out[k] = 0;
}

static _Noreturn __attribute__((format(printf, 3, 4))) void ptx__fail_at(ptx__parser *p, size_t line, const char *fmt,
                                                                         ...)
{
    char    what[400], text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    ptx__source_line(p->m, line, text, sizeof text);
    if (p->err && p->nerr)
        snprintf(p->err, p->nerr, "PTX line %zu: %s: `%s`%s%s", line, what, text, p->f ? " in " : "",
                 p->f ? p->f->name : "");
    longjmp(p->out, 1);
}
#define ptx__fail(p, ...) \
    ptx__fail_at(p, ptx__line_of((p)->m, (p)->at < (p)->m->ntext ? (p)->at : (p)->m->ntext - 1), __VA_ARGS__)
#define ptx__bad(p, ...) ptx__fail_at(p, (p)->insn_line, __VA_ARGS__)

static void ptx__space(ptx__parser *p)
{
    while (p->at < p->end && isspace((unsigned char)p->s[p->at])) p->at++;
}
static char ptx__peek(ptx__parser *p)
{
    ptx__space(p);
    return p->at < p->end ? p->s[p->at] : 0;
}
static bool ptx__accept(ptx__parser *p, char c)
{
    if (ptx__peek(p) != c) return false;
    p->at++;
    return true;
}
static void ptx__expect(ptx__parser *p, char c)
{
    if (!ptx__accept(p, c)) ptx__fail(p, "'%c' expected", c);
}
static bool ptx__is_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }
/* a name; n = 0: there is none */
static const char *ptx__word(ptx__parser *p, size_t *n)
{
    ptx__space(p);
    size_t a = p->at;
    while (p->at < p->end && ptx__is_word(p->s[p->at])) p->at++;
    *n = p->at - a;
    return p->s + a;
}
static bool ptx__is(const char *s, size_t n, const char *word) { return n == strlen(word) && memcmp(s, word, n) == 0; }
/* a directive or modifier after its dot */
static const char *ptx__dotted(ptx__parser *p, size_t *n)
{
    ptx__expect(p, '.');
    size_t a = p->at;
    while (p->at < p->end && (isalnum((unsigned char)p->s[p->at]) || p->s[p->at] == '_' || p->s[p->at] == ':')) p->at++;
    *n = p->at - a;
    return p->s + a;
}
static int ptx__type_of(const char *s, size_t n)
{
    for (int t = 1; t < PTX__TYPES; t++)
        if (ptx__is(s, n, ptx__type_name[t])) return t;
    return PTX__NONE;
}

/* A number: 12, 0x1f, 0b1, 017, 12U, 1.5, 0f3f800000, 0d..., -3. Returns the kind. */
static int ptx__number(ptx__parser *p, uint64_t *v)
{
    bool neg = false;
    while (ptx__peek(p) == '-' || ptx__peek(p) == '+') neg ^= p->s[p->at++] == '-';
    ptx__space(p);
    const char *s = p->s + p->at;
    size_t      left = p->end - p->at;
    if (left == 0 || !isdigit((unsigned char)s[0])) ptx__fail(p, "a number expected");
    if (left > 2 && s[0] == '0' && strchr("fFdD", s[1]) && isxdigit((unsigned char)s[2])) {
        int    n = s[1] == 'f' || s[1] == 'F' ? 8 : 16;
        size_t k = 2;
        *v = 0;
        for (; k < left && isxdigit((unsigned char)s[k]) && (int)k < n + 2; k++)
            *v = *v << 4 |
                 (uint64_t)(isdigit((unsigned char)s[k]) ? s[k] - '0' : tolower((unsigned char)s[k]) - 'a' + 10);
        if ((int)k != n + 2 || (k < left && ptx__is_word(s[k]))) ptx__fail(p, "a bad floating-point constant");
        if (neg) *v ^= UINT64_C(1) << (4 * n - 1);
        p->at += k;
        return n == 8 ? PTX__O_F32 : PTX__O_F64;
    }
    size_t k = 0;
    while (k < left && isdigit((unsigned char)s[k])) k++;
    if (k < left && (s[k] == '.' || ((s[k] == 'e' || s[k] == 'E') && s[0] != '0'))) {
        char  *stop;
        double x = strtod(s, &stop);
        p->at += (size_t)(stop - s);
        *v = ptx__db(neg ? -x : x);
        return PTX__O_F64;
    }
    int base = 10;
    k = 0;
    if (s[0] == '0' && left > 1 && (s[1] == 'x' || s[1] == 'X')) base = 16, k = 2;
    else if (s[0] == '0' && left > 1 && (s[1] == 'b' || s[1] == 'B')) base = 2, k = 2;
    else if (s[0] == '0' && left > 1 && isdigit((unsigned char)s[1])) base = 8, k = 1;
    uint64_t x = 0;
    size_t   begin = k;
    for (; k < left; k++) {
        int c = tolower((unsigned char)s[k]), digit = isdigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
        if (digit >= base) break;
        x = x * (uint64_t)base + (uint64_t)digit;
    }
    if (k == begin) ptx__fail(p, "a bad number");
    if (k < left && (s[k] == 'U' || s[k] == 'u')) k++;
    if (k < left && ptx__is_word(s[k])) ptx__fail(p, "a bad number");
    p->at += k;
    *v = neg ? 0 - x : x;
    return PTX__O_IMM;
}

/* ---- names */
static uint32_t ptx__hash(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h % PTX__BUCKETS;
}
static ptx__sym *ptx__declare(ptx__parser *p, const char *name, size_t nname, int kind)
{
    PTX__ROOM(p->sym, p->nsym, p->csym);
    ptx__sym *y = &p->sym[p->nsym];
    memset(y, 0, sizeof *y);
    y->name = name;
    y->nname = nname;
    y->kind = kind;
    y->bucket = ptx__hash(name, nname);
    y->next = p->bucket[y->bucket];
    p->bucket[y->bucket] = (uint32_t)p->nsym++;
    return y;
}
static ptx__sym *ptx__lookup(ptx__parser *p, const char *name, size_t n, uint32_t *reg)
{
    uint32_t best = PTX__NOREG;
    for (uint32_t i = p->bucket[ptx__hash(name, n)]; i != PTX__NOREG && best == PTX__NOREG; i = p->sym[i].next)
        if (p->sym[i].kind != PTX__SYM_RANGE && p->sym[i].nname == n && memcmp(p->sym[i].name, name, n) == 0) best = i;
    if (best != PTX__NOREG) *reg = p->sym[best].first;
    size_t k = n;
    while (k > 0 && isdigit((unsigned char)name[k - 1]) && n - k < 9) k--;
    if (k < n && (name[k] != '0' || k + 1 == n)) {
        uint32_t number = 0;
        for (size_t i = k; i < n; i++) number = number * 10 + (uint32_t)(name[i] - '0');
        for (uint32_t i = p->bucket[ptx__hash(name, k)]; i != PTX__NOREG; i = p->sym[i].next) {
            ptx__sym *y = &p->sym[i];
            if (y->kind != PTX__SYM_RANGE || y->nname != k || memcmp(y->name, name, k) != 0 || number >= y->count)
                continue;
            if (best == PTX__NOREG || i > best) best = i, *reg = y->first + number;
            break;
        }
    }
    return best == PTX__NOREG ? NULL : &p->sym[best];
}
static uint32_t ptx__new_reg(ptx__parser *p, int type)
{
    PTX__ROOM(p->reg_type, p->nreg, p->creg);
    p->reg_type[p->nreg] = (uint8_t)type;
    return (uint32_t)p->nreg++;
}
static uint32_t ptx__const_reg(ptx__parser *p, uint64_t v)
{
    for (size_t i = 0; i < p->nconstant; i++)
        if (p->constant[i] == v) return PTX__CONST | (uint32_t)i;
    PTX__ROOM(p->constant, p->nconstant, p->cconstant);
    p->constant[p->nconstant] = v;
    return PTX__CONST | (uint32_t)p->nconstant++;
}
enum {
    PTX__S_TID,
    PTX__S_NTID = 3,
    PTX__S_CTAID = 6,
    PTX__S_NCTAID = 9,
    PTX__S_LANE = 12,
    PTX__S_WARP,
    PTX__S_NWARP,
    PTX__S_SM,
    PTX__S_NSM,
    PTX__S_GRID,
    PTX__S_EQ,
    PTX__S_LE,
    PTX__S_LT,
    PTX__S_GE,
    PTX__S_GT,
    PTX__S_DYN_BYTES,
    PTX__S_ALL_BYTES,
    PTX__S_FRAME,
    PTX__S_DYN,
    PTX__S_CLOCK,
    PTX__S_CLOCK_HI
};
static uint32_t ptx__special_reg(ptx__parser *p, uint32_t id)
{
    ptx_kernel *f = p->f;
    for (size_t i = 0; i < f->nspecial; i++)
        if (f->special[i].id == id) return f->special[i].reg;
    PTX__ROOM(f->special, f->nspecial, p->cspecial);
    uint32_t reg = ptx__new_reg(p, PTX__B64);
    f->special[f->nspecial].id = id;
    f->special[f->nspecial++].reg = reg;
    return reg;
}
static int ptx__special_id(const char *s, size_t n)
{
    static const struct {
        const char *name;
        int         id;
    } one[] = { { "%laneid", PTX__S_LANE },
                { "%warpid", PTX__S_WARP },
                { "%nwarpid", PTX__S_NWARP },
                { "%smid", PTX__S_SM },
                { "%nsmid", PTX__S_NSM },
                { "%gridid", PTX__S_GRID },
                { "%lanemask_eq", PTX__S_EQ },
                { "%lanemask_le", PTX__S_LE },
                { "%lanemask_lt", PTX__S_LT },
                { "%lanemask_ge", PTX__S_GE },
                { "%lanemask_gt", PTX__S_GT },
                { "%dynamic_smem_size", PTX__S_DYN_BYTES },
                { "%total_smem_size", PTX__S_ALL_BYTES },
                { "%clock", PTX__S_CLOCK },
                { "%clock64", PTX__S_CLOCK },
                { "%globaltimer", PTX__S_CLOCK },
                { "%globaltimer_lo", PTX__S_CLOCK },
                { "%clock_hi", PTX__S_CLOCK_HI },
                { "%globaltimer_hi", PTX__S_CLOCK_HI },
                { "%tid", PTX__S_TID },
                { "%ntid", PTX__S_NTID },
                { "%ctaid", PTX__S_CTAID },
                { "%nctaid", PTX__S_NCTAID } };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (ptx__is(s, n, one[i].name)) return one[i].id;
    return -1;
}
static ptx__var *ptx__find_var(const ptx_module *m, const char *s, size_t n)
{
    for (size_t i = 0; i < m->nvar; i++)
        if (ptx__is(s, n, m->var[i]->name)) return m->var[i];
    return NULL;
}
static ptx_kernel *ptx__find_fn(const ptx_module *m, const char *s, size_t n)
{
    for (size_t i = 0; i < m->nfn; i++)
        if (ptx__is(s, n, m->fn[i]->name)) return m->fn[i];
    return NULL;
}
static size_t ptx__up(size_t n, size_t align) { return (n + align - 1) / align * align; }

static void ptx__gap(ptx_kernel *f, size_t from, size_t to)
{
    if (from == to) return;
    PTX__ROOM(f->gap, f->ngap, f->cgap);
    f->gap[f->ngap][0] = from;
    f->gap[f->ngap++][1] = to;
}
/* A place for a static shared variable, with a gap after it. */
static size_t ptx__place_shared(ptx_kernel *f, size_t nbytes, size_t align)
{
    size_t at = ptx__up(f->shared_alloc, align), end = at + nbytes, next = ptx__up(end, 16) + 16;
    ptx__gap(f, f->shared_alloc, at);
    ptx__gap(f, end, next);
    f->shared_alloc = next;
    f->shared_bytes = ptx__up(f->shared_bytes, align) + nbytes;
    return at;
}

/* ---- operands */
static void ptx__address_of(ptx__parser *p, const char *s, size_t n, ptx__opnd *o)
{
    uint32_t  reg = 0;
    ptx__sym *y = ptx__lookup(p, s, n, &reg);
    o->reg = PTX__NOREG;
    if (y) {
        switch (y->kind) {
        case PTX__SYM_REG:
        case PTX__SYM_RANGE:
            o->reg = reg;
            o->type = y->type;
            o->space = -1;
            return;
        case PTX__SYM_SHARED: o->imm = y->offset, o->space = PTX__SP_SHARED; break;
        case PTX__SYM_LOCAL: o->imm = y->offset, o->space = PTX__SP_LOCAL; break;
        case PTX__SYM_FRAME: o->imm = y->offset, o->space = PTX__SP_FRAME; break;
        default: o->imm = y->offset, o->space = PTX__SP_PARAM; break;
        }
        if (o->space == PTX__SP_LOCAL || o->space == PTX__SP_FRAME) o->reg = ptx__special_reg(p, PTX__S_FRAME);
        return;
    }
    ptx__var *v = ptx__find_var(p->m, s, n);
    if (!v) return; /* a label or a function */
    o->space = v->space;
    if (v->space != PTX__SP_SHARED) {
        if (v->is_extern) ptx__bad(p, "the variable %s is not in this module", v->name);
        o->imm = v->addr;
    } else if (v->is_extern) { /* dynamic */
        if (v->align > p->f->dyn_align) p->f->dyn_align = v->align;
        o->reg = ptx__special_reg(p, PTX__S_DYN);
    } else if (v->common >= 0) {
        o->imm = (uint64_t)v->common;
    } else if (!p->f->is_entry) { /* the same place in all kernels of the module, below their own */
        p->m->common_bytes = ptx__up(p->m->common_bytes, v->align < 16 ? 16 : v->align);
        v->common = (int64_t)p->m->common_bytes;
        p->m->common_bytes += ptx__up(v->nbytes, 16);
        o->imm = (uint64_t)v->common;
    } else {
        size_t i = 0;
        while (i < p->nplaced && p->placed[i].var != v) i++;
        if (i == p->nplaced) {
            PTX__ROOM(p->placed, p->nplaced, p->cplaced);
            p->placed[p->nplaced].var = v;
            p->placed[p->nplaced++].offset = ptx__place_shared(p->f, v->nbytes, v->align);
        }
        o->imm = p->placed[i].offset;
    }
}

static ptx__opnd ptx__operand(ptx__parser *p);
static void      ptx__plus(ptx__parser *p, ptx__opnd *o) /* name+4, name-4 */
{
    for (;;) {
        char c = ptx__peek(p);
        if (c != '+' && c != '-') return;
        uint64_t v;
        if (c == '+') p->at++;
        if (ptx__number(p, &v) != PTX__O_IMM) ptx__fail(p, "a whole number expected");
        o->off += (int64_t)v;
    }
}
static ptx__opnd ptx__operand(ptx__parser *p)
{
    ptx__opnd o;
    memset(&o, 0, sizeof o);
    o.second = PTX__NOREG;
    o.space = -1;
    char c = ptx__peek(p);
    if (c == '[') {
        p->at++;
        ptx__opnd in = ptx__operand(p);
        if (in.kind == PTX__O_IMM) {
            o.reg = PTX__NOREG, o.imm = in.imm;
        } else if (in.kind == PTX__O_REG || (in.kind == PTX__O_NAME && in.space >= 0)) {
            o = in;
        } else {
            ptx__fail(p, "an address expected");
        }
        ptx__plus(p, &o);
        if (ptx__peek(p) == ',') ptx__fail(p, "this form of address is not modelled");
        ptx__expect(p, ']');
        o.kind = PTX__O_MEM;
        if (o.off < INT32_MIN || o.off > INT32_MAX) ptx__fail(p, "the offset is too large");
        return o;
    }
    if (c == '{') {
        p->at++;
        o.kind = PTX__O_VEC;
        o.part = &p->pool[p->npool];
        p->npool += 8;
        if (p->npool > 64) ptx__fail(p, "too many vectors");
        do {
            if (o.n == 8) ptx__fail(p, "a vector of more than 8");
            o.part[o.n++] = ptx__operand(p);
        } while (ptx__accept(p, ','));
        ptx__expect(p, '}');
        return o;
    }
    if (c == '!') {
        p->at++;
        o = ptx__operand(p);
        if (o.kind != PTX__O_REG || o.type != PTX__PRED) ptx__fail(p, "a predicate expected after '!'");
        o.negated = !o.negated;
        return o;
    }
    if (isdigit((unsigned char)c) || c == '-' || c == '+') {
        o.kind = ptx__number(p, &o.imm);
        return o;
    }
    size_t      n;
    const char *s = ptx__word(p, &n);
    if (n == 0) ptx__fail(p, "an operand expected");
    if (ptx__is(s, n, "_")) {
        o.kind = PTX__O_SINK;
    } else if (ptx__is(s, n, "WARP_SZ")) {
        o.kind = PTX__O_IMM;
        o.imm = 32;
    } else if (ptx__special_id(s, n) >= 0) {
        int id = ptx__special_id(s, n);
        o.kind = PTX__O_REG;
        o.type = PTX__B32;
        if (id < PTX__S_LANE) {
            size_t      k;
            const char *d = ptx__dotted(p, &k);
            if (k != 1 || d[0] < 'x' || d[0] > 'z') ptx__fail(p, "the component of a special register expected");
            id += d[0] - 'x';
        }
        if (id == PTX__S_CLOCK || id == PTX__S_CLOCK_HI) o.space = -2 - (id == PTX__S_CLOCK_HI);
        else o.reg = ptx__special_reg(p, (uint32_t)id);
    } else {
        o.name = s;
        o.nname = n;
        ptx__address_of(p, s, n, &o);
        o.kind = o.space == -1 && o.reg != PTX__NOREG ? PTX__O_REG : PTX__O_NAME;
        if (o.kind == PTX__O_NAME && s[0] == '%') ptx__fail(p, "unknown register %.*s", (int)n, s);
        if (o.kind == PTX__O_NAME && o.space >= 0) ptx__plus(p, &o);
        if (o.kind == PTX__O_REG) {
            o.type = p->reg_type[o.reg];
            if (ptx__accept(p, '|')) {
                ptx__opnd q = ptx__operand(p);
                if (q.kind == PTX__O_SINK) q.reg = ptx__new_reg(p, PTX__PRED);
                else if (q.kind != PTX__O_REG) ptx__fail(p, "a predicate expected after '|'");
                o.second = q.reg;
            }
        }
    }
    if (o.kind == PTX__O_SINK && ptx__accept(p, '|')) {
        ptx__opnd q = ptx__operand(p);
        if (q.kind != PTX__O_REG) ptx__fail(p, "a predicate expected after '|'");
        o.second = q.reg;
    }
    return o;
}

/* ---- emitting */
static ptx__insn *ptx__emit(ptx__parser *p, unsigned op, uint32_t d, uint32_t a, uint32_t b, uint32_t c)
{
    ptx_module *m = p->m;
    if (m->ncode == m->ccode) {
        m->ccode = m->ccode ? 2 * m->ccode : 1024;
        m->code = (ptx__insn *)ptx__more(m->code, m->ccode * sizeof *m->code);
        m->line = (uint32_t *)ptx__more(m->line, m->ccode * sizeof *m->line);
        m->opcode = (uint32_t *)ptx__more(m->opcode, m->ccode * sizeof *m->opcode);
    }
    ptx__insn *i = &m->code[m->ncode];
    memset(i, 0, sizeof *i);
    i->op = op;
    i->d = d;
    i->a = a;
    i->b = b;
    i->c = c;
    m->line[m->ncode] = (uint32_t)p->insn_line;
    m->opcode[m->ncode++] = p->counted ? p->opcode_id : PTX__NOREG;
    p->counted = false;
    return i;
}
static uint32_t ptx__opcode_id(const char *name) /* with the lock held */
{
    for (size_t i = 0; i < ptx__all.nopcode; i++)
        if (strcmp(ptx__all.opcode[i].name, name) == 0) return (uint32_t)i;
    ptx__all.opcode = ptx__more(ptx__all.opcode, (ptx__all.nopcode + 1) * sizeof *ptx__all.opcode);
    ptx__all.opcode[ptx__all.nopcode].name = ptx__copy(name, strlen(name));
    ptx__all.opcode[ptx__all.nopcode].loaded = 0;
    ptx__all.opcode[ptx__all.nopcode].run = 0;
    return (uint32_t)ptx__all.nopcode++;
}

/* ---- modifiers: each is taken once, what is left is not modelled */
static bool ptx__take(ptx__parser *p, const char *name)
{
    for (int i = 0; i < p->nmod; i++)
        if (p->mod[i] && strcmp(p->mod[i], name) == 0) {
            p->mod[i] = NULL;
            return true;
        }
    return false;
}
static int ptx__take_one(ptx__parser *p, const char *const *names, int n) /* -1: none of them */
{
    for (int i = 0; i < n; i++)
        if (ptx__take(p, names[i])) return i;
    return -1;
}
static int ptx__take_type(ptx__parser *p) /* the first type among the modifiers */
{
    for (int i = 0; i < p->nmod; i++) {
        int t = p->mod[i] ? ptx__type_of(p->mod[i], strlen(p->mod[i])) : PTX__NONE;
        if (t) {
            p->mod[i] = NULL;
            return t;
        }
    }
    ptx__bad(p, "%s without a type", p->opcode);
}
static void ptx__done(ptx__parser *p, int least, int most)
{
    for (int i = 0; i < p->nmod; i++)
        if (p->mod[i]) ptx__bad(p, "the modifier .%s of %s is not modelled", p->mod[i], p->opcode);
    if (p->nop < least || p->nop > most) ptx__bad(p, "%s with %d operands", p->opcode, p->nop);
}
static _Noreturn void ptx__no_type(ptx__parser *p, int t)
{
    ptx__bad(p, "%s for .%s is not modelled", p->opcode, ptx__type_name[t]);
}

static uint32_t ptx__value(ptx__parser *p, const ptx__opnd *o, int type)
{
    int n = ptx__type_bytes[type];
    switch (o->kind) {
    case PTX__O_REG:
        if (o->space <= -2) ptx__bad(p, "clocks are modelled with mov alone");
        if (o->negated) {
            uint32_t   t = ptx__new_reg(p, PTX__PRED);
            ptx__insn *i = ptx__emit(p, PTX__OP_not1, t, o->reg, 0, 0);
            /* the opcode counts for the instruction that follows */
            p->m->opcode[i - p->m->code] = PTX__NOREG;
            p->counted = true;
            return t;
        }
        return o->reg;
    case PTX__O_IMM:
        if (type == PTX__F32) return ptx__const_reg(p, ptx__fb((float)(int64_t)o->imm));
        if (type == PTX__F64) return ptx__const_reg(p, ptx__db((double)(int64_t)o->imm));
        if (type == PTX__PRED) return ptx__const_reg(p, o->imm != 0);
        return ptx__const_reg(p, o->imm & ptx__mask(n));
    case PTX__O_F32:
        if (n != 4) ptx__bad(p, "a 32-bit float constant for .%s", ptx__type_name[type]);
        return ptx__const_reg(p, o->imm);
    case PTX__O_F64:
        if (type == PTX__F32) return ptx__const_reg(p, ptx__fb((float)ptx__d(o->imm)));
        if (n != 8) ptx__bad(p, "a 64-bit float constant for .%s", ptx__type_name[type]);
        return ptx__const_reg(p, o->imm);
    case PTX__O_NAME:
        if (o->space < 0) ptx__bad(p, "unknown name %.*s", (int)o->nname, o->name);
        if (o->reg == PTX__NOREG) return ptx__const_reg(p, o->imm + (uint64_t)o->off);
        else {
            uint32_t   t = ptx__new_reg(p, PTX__B64);
            ptx__insn *i = ptx__emit(p, PTX__OP_add_imm, t, o->reg, 0, 0);
            i->imm = (int64_t)o->imm + o->off;
            p->m->opcode[i - p->m->code] = PTX__NOREG;
            p->counted = true;
            return t;
        }
    default: ptx__bad(p, "a register or a constant expected");
    }
}
static uint32_t ptx__src(ptx__parser *p, int i, int type) { return ptx__value(p, &p->op[i], type); }
static uint32_t ptx__target(ptx__parser *p, const ptx__opnd *o)
{
    if (o->kind == PTX__O_SINK) return ptx__new_reg(p, PTX__B64);
    if (o->kind != PTX__O_REG || o->negated) ptx__bad(p, "the destination is no register");
    return o->reg;
}
static uint32_t ptx__dst(ptx__parser *p)
{
    if (p->op[0].second != PTX__NOREG) ptx__bad(p, "%s with two destinations", p->opcode);
    return ptx__target(p, &p->op[0]);
}
static uint32_t ptx__list_of(ptx__parser *p, const uint32_t *regs, int n)
{
    ptx_module *m = p->m;
    uint32_t    at = (uint32_t)m->nlist;
    for (int i = 0; i < n; i++) {
        PTX__ROOM(m->list, m->nlist, m->clist);
        m->list[m->nlist++] = regs[i];
    }
    return at;
}

/* ---------------------------------------------------------------------------------------------------- >>decoder */
static const char *const ptx__rounds[4] = { "rn", "rz", "rm", "rp" };
static const char *const ptx__irounds[4] = { "rni", "rzi", "rmi", "rpi" };
static int               ptx__width_op(int t, int op16, int op32, int op64)
{
    return ptx__type_bytes[t] == 2 ? op16 : ptx__type_bytes[t] == 4 ? op32 : op64;
}

static void ptx__three(ptx__parser *p, int op, int t) /* d, a, b of one type */
{
    ptx__done(p, 3, 3);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, t), b = ptx__src(p, 2, t);
    ptx__emit(p, (unsigned)op, d, a, b, 0);
}
static void ptx__two(ptx__parser *p, int op, int t)
{
    ptx__done(p, 2, 2);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, t);
    ptx__emit(p, (unsigned)op, d, a, 0, 0);
}
static int ptx__float_flags(ptx__parser *p)
{
    int f = 0, r = ptx__take_one(p, ptx__rounds, 4);
    if (r > 0) f |= r;
    if (ptx__take(p, "ftz")) f |= PTX__FTZ;
    if (ptx__take(p, "sat")) f |= PTX__SAT;
    return f;
}
static void ptx__float_op(ptx__parser *p, int kind, int t, int nsrc, int flags)
{
    ptx__done(p, nsrc + 1, nsrc + 1);
    uint32_t d = ptx__dst(p), s[3] = { 0, 0, 0 };
    for (int i = 0; i < nsrc; i++) s[i] = ptx__src(p, i + 1, t);
    static const struct {
        uint8_t kind, type;
        short   op;
    } quick[] = { { PTX__ADD, PTX__F32, PTX__OP_add_f32 }, { PTX__SUB, PTX__F32, PTX__OP_sub_f32 },
                  { PTX__MUL, PTX__F32, PTX__OP_mul_f32 }, { PTX__DIV, PTX__F32, PTX__OP_div_f32 },
                  { PTX__FMA, PTX__F32, PTX__OP_fma_f32 }, { PTX__SQRT, PTX__F32, PTX__OP_sqrt_f32 },
                  { PTX__NEG, PTX__F32, PTX__OP_neg_f32 }, { PTX__ABS, PTX__F32, PTX__OP_abs_f32 },
                  { PTX__EX2, PTX__F32, PTX__OP_ex2_f32 }, { PTX__LG2, PTX__F32, PTX__OP_lg2_f32 },
                  { PTX__RCP, PTX__F32, PTX__OP_rcp_f32 }, { PTX__ADD, PTX__F64, PTX__OP_add_f64 },
                  { PTX__SUB, PTX__F64, PTX__OP_sub_f64 }, { PTX__MUL, PTX__F64, PTX__OP_mul_f64 },
                  { PTX__DIV, PTX__F64, PTX__OP_div_f64 }, { PTX__FMA, PTX__F64, PTX__OP_fma_f64 } };
    for (size_t i = 0; flags == 0 && i < sizeof quick / sizeof *quick; i++)
        if (quick[i].kind == kind && quick[i].type == t) {
            ptx__emit(p, (unsigned)quick[i].op, d, s[0], s[1], s[2]);
            return;
        }
    ptx__emit(p, PTX__OP_fop, d, s[0], s[1], s[2])->x = (uint32_t)(kind | t << 8 | flags << 16);
}
static bool ptx__any_float(int t) { return t >= PTX__F16 && t <= PTX__F64; }

/* add, sub and mad with carry: c holds the third operand, x says what: 1 uses the carry, 2 sets it, 4 subtracts,
   8 multiplies (low half), 16 high half, 32 64 bits, 64 signed */
static void ptx__carried(ptx__parser *p, bool use, bool sub, bool mad)
{
    bool set = ptx__take(p, "cc"), hi = mad && ptx__take(p, "hi");
    if (mad && !hi && !ptx__take(p, "lo")) ptx__bad(p, "%s without .lo or .hi", p->opcode);
    int t = ptx__take_type(p);
    if (!ptx__is_int(t) || ptx__type_bytes[t] < 4) ptx__no_type(p, t);
    ptx__done(p, mad ? 4 : 3, mad ? 4 : 3);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, t), b = ptx__src(p, 2, t), c = mad ? ptx__src(p, 3, t) : 0;
    ptx__emit(p, PTX__OP_carry, d, a, b, c)->x = (uint32_t)(use | set << 1 | sub << 2 | mad << 3 | hi << 4 |
                                                            (ptx__type_bytes[t] == 8) << 5 | ptx__is_signed(t) << 6);
}

static void ptx__do_addsub(ptx__parser *p, bool sub)
{
    for (int i = 0; i < p->nmod; i++)
        if (p->mod[i] && strcmp(p->mod[i], "cc") == 0) {
            ptx__carried(p, false, sub, false);
            return;
        }
    int flags = ptx__float_flags(p), t = ptx__take_type(p);
    if (ptx__any_float(t)) {
        ptx__float_op(p, sub ? PTX__SUB : PTX__ADD, t, 2, flags);
        return;
    }
    if (flags || !ptx__is_int(t) || ptx__type_bytes[t] < 2) ptx__no_type(p, t);
    ptx__three(p,
               sub ? ptx__width_op(t, PTX__OP_sub16, PTX__OP_sub32, PTX__OP_sub64)
                   : ptx__width_op(t, PTX__OP_add16, PTX__OP_add32, PTX__OP_add64),
               t);
}
static int ptx__mul_op(ptx__parser *p, int t, bool wide, bool hi)
{
    bool s = ptx__is_signed(t);
    int  n = ptx__type_bytes[t];
    if (!ptx__is_int(t) || n < 2 || (wide && n > 4)) ptx__no_type(p, t);
    if (wide) return n == 2 ? (s ? PTX__OP_mulw_s16 : PTX__OP_mulw_u16) : s ? PTX__OP_mulw_s32 : PTX__OP_mulw_u32;
    if (hi)
        return n == 2   ? (s ? PTX__OP_mulhi_s16 : PTX__OP_mulhi_u16)
               : n == 4 ? (s ? PTX__OP_mulhi_s32 : PTX__OP_mulhi_u32)
               : s      ? PTX__OP_mulhi_s64
                        : PTX__OP_mulhi_u64;
    return ptx__width_op(t, PTX__OP_mul16, PTX__OP_mul32, PTX__OP_mul64);
}
static void ptx__do_mul(ptx__parser *p, bool mad)
{
    bool cc = false;
    for (int i = 0; mad && i < p->nmod; i++) cc |= p->mod[i] && strcmp(p->mod[i], "cc") == 0;
    if (cc) {
        ptx__carried(p, false, false, true);
        return;
    }
    bool wide = ptx__take(p, "wide"), hi = ptx__take(p, "hi"), lo = ptx__take(p, "lo");
    int  flags = ptx__float_flags(p), t = ptx__take_type(p);
    if (ptx__any_float(t)) {
        if (wide || hi || lo) ptx__no_type(p, t);
        ptx__float_op(p, mad ? PTX__FMA : PTX__MUL, t, mad ? 3 : 2, flags);
        return;
    }
    if (wide + hi + lo != 1) ptx__bad(p, "%s without .lo, .hi or .wide", p->opcode);
    if (flags) ptx__no_type(p, t);
    int op = ptx__mul_op(p, t, wide, hi);
    if (!mad) {
        ptx__three(p, op, t);
        return;
    }
    int wt = wide ? t + 1 : t; /* the type of twice the width follows */
    ptx__done(p, 4, 4);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, t), b = ptx__src(p, 2, t), c = ptx__src(p, 3, wt);
    if (lo) {
        ptx__emit(p, (unsigned)ptx__width_op(t, PTX__OP_mad16, PTX__OP_mad32, PTX__OP_mad64), d, a, b, c);
        return;
    }
    uint32_t part = ptx__new_reg(p, wt);
    ptx__emit(p, (unsigned)op, part, a, b, 0);
    ptx__emit(p, (unsigned)ptx__width_op(wt, PTX__OP_add16, PTX__OP_add32, PTX__OP_add64), d, part, c, 0);
}
static void ptx__do_div(ptx__parser *p, bool rem)
{
    bool approx = ptx__take(p, "approx") || ptx__take(p, "full");
    int  flags = ptx__float_flags(p), t = ptx__take_type(p);
    if (t == PTX__F32 || t == PTX__F64) {
        if (rem || (approx && t == PTX__F64)) ptx__no_type(p, t);
        ptx__float_op(p, PTX__DIV, t, 2, flags);
        return;
    }
    if (flags || approx || !ptx__is_int(t) || ptx__type_bytes[t] < 2) ptx__no_type(p, t);
    ptx__done(p, 3, 3);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, t), b = ptx__src(p, 2, t);
    ptx__emit(p, PTX__OP_div, d, a, b, 0)->x = (uint32_t)(rem | ptx__is_signed(t) << 1 | ptx__type_bytes[t] << 2);
}
static void ptx__do_minmax(ptx__parser *p, bool max)
{
    int flags = ptx__float_flags(p);
    if (ptx__take(p, "NaN")) flags |= PTX__NAN;
    if (ptx__take(p, "xorsign")) {
        if (!ptx__take(p, "abs")) ptx__bad(p, "%s: .xorsign without .abs", p->opcode);
        flags |= PTX__XORSIGN;
    }
    int t = ptx__take_type(p);
    if (ptx__any_float(t)) {
        ptx__float_op(p, max ? PTX__MAX : PTX__MIN, t, 2, flags);
        return;
    }
    int s = ptx__is_signed(t), n = ptx__type_bytes[t];
    if (flags || !ptx__is_int(t) || t <= PTX__B64 || n < 2) ptx__no_type(p, t);
    static const short op[2][2][3] = { { { PTX__OP_min_u16, PTX__OP_min_u32, PTX__OP_min_u64 },
                                         { PTX__OP_min_s16, PTX__OP_min_s32, PTX__OP_min_s64 } },
                                       { { PTX__OP_max_u16, PTX__OP_max_u32, PTX__OP_max_u64 },
                                         { PTX__OP_max_s16, PTX__OP_max_s32, PTX__OP_max_s64 } } };
    ptx__three(p, op[max][s][n == 2 ? 0 : n == 4 ? 1 : 2], t);
}
static void ptx__do_absneg(ptx__parser *p, bool neg)
{
    int flags = ptx__float_flags(p), t = ptx__take_type(p);
    if (ptx__any_float(t)) {
        ptx__float_op(p, neg ? PTX__NEG : PTX__ABS, t, 1, flags);
        return;
    }
    if (flags || !ptx__is_signed(t) || t == PTX__S8) ptx__no_type(p, t);
    ptx__two(p,
             neg ? ptx__width_op(t, PTX__OP_neg16, PTX__OP_neg32, PTX__OP_neg64)
                 : ptx__width_op(t, PTX__OP_abs_s16, PTX__OP_abs_s32, PTX__OP_abs_s64),
             t);
}
static void ptx__do_fma(ptx__parser *p)
{
    int flags = ptx__float_flags(p);
    if (ptx__take(p, "relu")) flags |= PTX__RELU;
    int t = ptx__take_type(p);
    if (!ptx__any_float(t)) ptx__no_type(p, t);
    ptx__float_op(p, PTX__FMA, t, 3, flags);
}
static void ptx__do_function(ptx__parser *p, int kind) /* of one float */
{
    bool approx = ptx__take(p, "approx");
    int  flags = ptx__float_flags(p), t = ptx__take_type(p);
    bool narrow = t == PTX__F16 || t == PTX__F16X2 || t == PTX__BF16 || t == PTX__BF16X2;
    bool good = t == PTX__F32 || (narrow && (kind == PTX__EX2 || kind == PTX__TANH)) ||
                (t == PTX__F64 && (kind == PTX__RCP || kind == PTX__SQRT || kind == PTX__RSQRT));
    if (!good || (flags & PTX__RMODE && approx)) ptx__no_type(p, t);
    ptx__float_op(p, kind, t, 1, flags);
}
static void ptx__do_logic(ptx__parser *p, int op)
{
    int t = ptx__take_type(p);
    if (t != PTX__PRED && (t < PTX__B16 || t > PTX__B64)) ptx__no_type(p, t);
    ptx__three(p, op, t);
}
static void ptx__do_not(ptx__parser *p, bool cnot)
{
    int t = ptx__take_type(p);
    if ((t != PTX__PRED || cnot) && (t < PTX__B16 || t > PTX__B64)) ptx__no_type(p, t);
    if (t == PTX__PRED) ptx__two(p, PTX__OP_not1, t);
    else if (cnot) ptx__two(p, ptx__width_op(t, PTX__OP_cnot16, PTX__OP_cnot32, PTX__OP_cnot64), t);
    else ptx__two(p, ptx__width_op(t, PTX__OP_not16, PTX__OP_not32, PTX__OP_not64), t);
}
static void ptx__do_shift(ptx__parser *p, bool left)
{
    int t = ptx__take_type(p);
    if (!ptx__is_int(t) || ptx__type_bytes[t] < 2) ptx__no_type(p, t);
    int op = left                ? ptx__width_op(t, PTX__OP_shl16, PTX__OP_shl32, PTX__OP_shl64)
             : ptx__is_signed(t) ? ptx__width_op(t, PTX__OP_shr_s16, PTX__OP_shr_s32, PTX__OP_shr_s64)
                                 : ptx__width_op(t, PTX__OP_shr_u16, PTX__OP_shr_u32, PTX__OP_shr_u64);
    ptx__done(p, 3, 3);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, t), b = ptx__src(p, 2, PTX__U32);
    ptx__emit(p, (unsigned)op, d, a, b, 0);
}
static void ptx__four(ptx__parser *p, int op, int ta, int tb, int tc)
{
    ptx__done(p, 4, 4);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, ta), b = ptx__src(p, 2, tb), c = ptx__src(p, 3, tc);
    ptx__emit(p, (unsigned)op, d, a, b, c);
}
static void ptx__do_shf(ptx__parser *p)
{
    bool left = ptx__take(p, "l"), right = ptx__take(p, "r"), wrap = ptx__take(p, "wrap"),
         clamp = ptx__take(p, "clamp");
    int t = ptx__take_type(p);
    if (t != PTX__B32 || left == right || wrap == clamp) ptx__no_type(p, t);
    ptx__four(p,
              left   ? (wrap ? PTX__OP_shf_l_wrap : PTX__OP_shf_l_clamp)
              : wrap ? PTX__OP_shf_r_wrap
                     : PTX__OP_shf_r_clamp,
              t, t, PTX__U32);
}
static void ptx__do_bits(ptx__parser *p, int op32, int op64) /* popc clz brev */
{
    int t = ptx__take_type(p);
    if (t != PTX__B32 && t != PTX__B64) ptx__no_type(p, t);
    ptx__two(p, t == PTX__B32 ? op32 : op64, t);
}
static void ptx__do_bfe(ptx__parser *p)
{
    int t = ptx__take_type(p);
    int op = t == PTX__U32   ? PTX__OP_bfe_u32
             : t == PTX__S32 ? PTX__OP_bfe_s32
             : t == PTX__U64 ? PTX__OP_bfe_u64
             : t == PTX__S64 ? PTX__OP_bfe_s64
                             : -1;
    if (op < 0) ptx__no_type(p, t);
    ptx__four(p, op, t, PTX__U32, PTX__U32);
}
static void ptx__do_bfi(ptx__parser *p)
{
    int t = ptx__take_type(p);
    if (t != PTX__B32 && t != PTX__B64) ptx__no_type(p, t);
    ptx__done(p, 5, 5);
    uint32_t   d = ptx__dst(p), a = ptx__src(p, 1, t), b = ptx__src(p, 2, t), c = ptx__src(p, 3, PTX__U32);
    uint32_t   n = ptx__src(p, 4, PTX__U32);
    ptx__insn *i = ptx__emit(p, PTX__OP_bfi, d, a, b, c);
    i->x = n;
    i->y = t == PTX__B32 ? 32 : 64;
}
static void ptx__do_bfind(ptx__parser *p)
{
    bool amount = ptx__take(p, "shiftamt");
    int  t = ptx__take_type(p);
    if (!ptx__is_int(t) || t < PTX__U32 || ptx__type_bytes[t] < 4) ptx__no_type(p, t);
    ptx__two(p, PTX__OP_bfind, t);
    p->m->code[p->m->ncode - 1].x = (uint32_t)(ptx__is_signed(t) | amount << 1 | (ptx__type_bytes[t] == 8 ? 64 : 0));
}
static void ptx__do_prmt(ptx__parser *p)
{
    static const char *const mode[6] = { "f4e", "b4e", "rc8", "ecl", "ecr", "rc16" };
    int                      how = ptx__take_one(p, mode, 6) + 1, t = ptx__take_type(p);
    if (t != PTX__B32) ptx__no_type(p, t);
    ptx__four(p, PTX__OP_prmt, t, t, t);
    p->m->code[p->m->ncode - 1].x = (uint32_t)how;
}
static void ptx__do_lop3(ptx__parser *p)
{
    int t = ptx__take_type(p);
    if (t != PTX__B32) ptx__no_type(p, t);
    if (p->nop != 5 || p->op[4].kind != PTX__O_IMM) ptx__bad(p, "lop3 needs its table as a constant");
    uint32_t lut = (uint32_t)p->op[4].imm;
    p->nop = 4;
    ptx__four(p, PTX__OP_lop3, t, t, t);
    p->m->code[p->m->ncode - 1].x = lut & 255;
}
static void ptx__do_sad(ptx__parser *p)
{
    int t = ptx__take_type(p);
    if (t != PTX__U32 && t != PTX__S32) ptx__no_type(p, t);
    ptx__four(p, t == PTX__U32 ? PTX__OP_sad32 : PTX__OP_sads32, t, t, t);
}
static void ptx__do_selp(ptx__parser *p)
{
    int t = ptx__take_type(p);
    if (t == PTX__PRED || ptx__type_bytes[t] < 2) ptx__no_type(p, t);
    ptx__four(p, PTX__OP_selp, t, t, PTX__PRED);
}
static void ptx__do_slct(ptx__parser *p)
{
    if (ptx__take(p, "ftz")) { /* of the f32 that selects: a subnormal is zero, and zero selects as it does */
    }
    int t = ptx__take_type(p), by = ptx__take_type(p);
    if (by != PTX__S32 && by != PTX__F32) ptx__no_type(p, by);
    ptx__four(p, by == PTX__S32 ? PTX__OP_slct_s32 : PTX__OP_slct_f32, t, t, by);
}
static int ptx__take_cmp(ptx__parser *p)
{
    int                      c = ptx__take_one(p, ptx__cmp_name, PTX__CMPS);
    static const char *const plain[4] = { "lo", "ls", "hi", "hs" };
    static const int         same[4] = { PTX__LT, PTX__LE, PTX__GT, PTX__GE };
    if (c < 0) {
        int k = ptx__take_one(p, plain, 4);
        if (k >= 0) c = same[k];
    }
    if (c < 0) ptx__bad(p, "%s without a comparison", p->opcode);
    return c;
}
static void ptx__check_cmp(ptx__parser *p, int c, int t)
{
    if (t == PTX__PRED || t == PTX__TF32 || ptx__type_bytes[t] < 2 || (ptx__is_int(t) && c >= PTX__EQU) ||
        (t <= PTX__B64 && c > PTX__NE))
        ptx__no_type(p, t);
}
static int ptx__cmp_op(int c, int t)
{
    static const short s32[6] = { PTX__OP_eq_s32, PTX__OP_ne_s32, PTX__OP_lt_s32,
                                  PTX__OP_le_s32, PTX__OP_gt_s32, PTX__OP_ge_s32 };
    static const short u32[6] = { PTX__OP_eq_s32, PTX__OP_ne_s32, PTX__OP_lt_u32,
                                  PTX__OP_le_u32, PTX__OP_gt_u32, PTX__OP_ge_u32 };
    static const short s64[6] = { PTX__OP_eq_s64, PTX__OP_ne_s64, PTX__OP_lt_s64,
                                  PTX__OP_le_s64, PTX__OP_gt_s64, PTX__OP_ge_s64 };
    static const short u64[6] = { PTX__OP_eq_s64, PTX__OP_ne_s64, PTX__OP_lt_u64,
                                  PTX__OP_le_u64, PTX__OP_gt_u64, PTX__OP_ge_u64 };
    switch (t) {
    case PTX__S32: return s32[c];
    case PTX__U32:
    case PTX__B32: return u32[c];
    case PTX__S64: return s64[c];
    case PTX__U64:
    case PTX__B64: return u64[c];
    case PTX__F32: return PTX__OP_eq_f32 + c;
    case PTX__F64: return PTX__OP_eq_f64 + c;
    default: return PTX__OP_cmp;
    }
}
static void ptx__do_setp(ptx__parser *p)
{
    static const char *const bools[3] = { "and", "or", "xor" };
    int c = ptx__take_cmp(p), join = ptx__take_one(p, bools, 3), ftz = ptx__take(p, "ftz") ? PTX__FTZ : 0;
    int t = ptx__take_type(p);
    ptx__check_cmp(p, c, t);
    if (t == PTX__F16X2 || t == PTX__BF16X2) {
        int one = t == PTX__F16X2 ? PTX__F16 : PTX__BF16;
        if (join >= 0 || p->op[0].second == PTX__NOREG)
            ptx__bad(p, "this form of setp.%s is not modelled", ptx__type_name[t]);
        ptx__done(p, 3, 3);
        uint32_t lo = ptx__target(p, &p->op[0]), hi = p->op[0].second, a = ptx__src(p, 1, t), b = ptx__src(p, 2, t);
        uint32_t ha = ptx__new_reg(p, PTX__B16), hb = ptx__new_reg(p, PTX__B16), la = ptx__new_reg(p, PTX__B16),
                 lb = ptx__new_reg(p, PTX__B16);
        uint32_t from[4] = { a, b, a, b }, to[4] = { ha, hb, la, lb };
        for (int i = 0; i < 4; i++) {
            ptx__insn *in = ptx__emit(p, PTX__OP_shr_imm, to[i], from[i], 0, 0);
            in->x = 2;
            in->y = i < 2 ? 16 : 0;
        }
        ptx__emit(p, PTX__OP_cmp, lo, la, lb, 0)->x = (uint32_t)(c | one << 4);
        ptx__emit(p, PTX__OP_cmp, hi, ha, hb, 0)->x = (uint32_t)(c | one << 4);
        return;
    }
    ptx__done(p, join < 0 ? 3 : 4, join < 0 ? 3 : 4);
    uint32_t d = ptx__target(p, &p->op[0]), q = p->op[0].second, a = ptx__src(p, 1, t), b = ptx__src(p, 2, t);
    uint32_t with = join < 0 ? 0 : ptx__src(p, 3, PTX__PRED),
             raw = join < 0 && q == PTX__NOREG ? d : ptx__new_reg(p, PTX__PRED);
    int        op = ftz ? PTX__OP_cmp : ptx__cmp_op(c, t);
    ptx__insn *i = ptx__emit(p, (unsigned)op, raw, a, b, 0);
    if (op == PTX__OP_cmp) i->x = (uint32_t)(c | t << 4 | ftz << 9);
    if (raw == d) return;
    static const short joins[3] = { PTX__OP_and, PTX__OP_or, PTX__OP_xor };
    /* the source may be a destination too */
    uint32_t r1 = ptx__new_reg(p, PTX__PRED), n = ptx__new_reg(p, PTX__PRED), r2 = ptx__new_reg(p, PTX__PRED);
    ptx__emit(p, PTX__OP_not1, n, raw, 0, 0);
    if (join < 0) {
        ptx__emit(p, PTX__OP_mov, d, raw, 0, 0);
        ptx__emit(p, PTX__OP_mov, q, n, 0, 0);
        return;
    }
    ptx__emit(p, (unsigned)joins[join], r1, raw, with, 0);
    ptx__emit(p, (unsigned)joins[join], r2, n, with, 0);
    ptx__emit(p, PTX__OP_mov, d, r1, 0, 0);
    if (q != PTX__NOREG) ptx__emit(p, PTX__OP_mov, q, r2, 0, 0);
}
static void ptx__do_set(ptx__parser *p)
{
    int c = ptx__take_cmp(p), ftz = ptx__take(p, "ftz") ? PTX__FTZ : 0, to = ptx__take_type(p), t = ptx__take_type(p);
    ptx__check_cmp(p, c, t);
    uint32_t yes;
    switch (to) {
    case PTX__U32:
    case PTX__S32: yes = 0xffffffffu; break;
    case PTX__U16:
    case PTX__S16: yes = 0xffffu; break;
    case PTX__F32: yes = 0x3f800000u; break;
    case PTX__F16: yes = 0x3c00; break;
    case PTX__BF16: yes = 0x3f80; break;
    case PTX__F16X2: yes = 0x3c003c00; break;
    case PTX__BF16X2: yes = 0x3f803f80; break;
    default: ptx__no_type(p, to);
    }
    bool two = t == PTX__F16X2 || t == PTX__BF16X2;
    if (two && ptx__type_bytes[to] != 4) ptx__no_type(p, to);
    ptx__done(p, 3, 3);
    int        one = t == PTX__F16X2 ? PTX__F16 : t == PTX__BF16X2 ? PTX__BF16 : t;
    uint32_t   d = ptx__dst(p), a = ptx__src(p, 1, t), b = ptx__src(p, 2, t);
    ptx__insn *i = ptx__emit(p, two ? PTX__OP_set2 : PTX__OP_set, d, a, b, 0);
    i->x = (uint32_t)(c | one << 4 | ftz << 9);
    i->y = (int32_t)yes;
}
static void ptx__do_testp(ptx__parser *p)
{
    static const char *const kind[6] = { "finite", "infinite", "number", "notanumber", "normal", "subnormal" };
    int                      k = ptx__take_one(p, kind, 6), t = ptx__take_type(p);
    if (k < 0 || (t != PTX__F32 && t != PTX__F64)) ptx__no_type(p, t);
    ptx__two(p, PTX__OP_testp, t);
    p->m->code[p->m->ncode - 1].x = (uint32_t)(k | (t == PTX__F64) << 4);
}
static void ptx__do_copysign(ptx__parser *p)
{
    int t = ptx__take_type(p);
    if (t != PTX__F32 && t != PTX__F64) ptx__no_type(p, t);
    ptx__float_op(p, PTX__COPYSIGN, t, 2, 0);
}
static void ptx__do_cvt(ptx__parser *p)
{
    int irnd = ptx__take_one(p, ptx__irounds, 4), rnd = ptx__take_one(p, ptx__rounds, 4), flags = rnd > 0 ? rnd : 0;
    if (ptx__take(p, "rna")) flags |= PTX__RNA, rnd = PTX__RNA;
    if (ptx__take(p, "ftz")) flags |= PTX__FTZ;
    if (ptx__take(p, "sat")) flags |= PTX__SAT;
    if (ptx__take(p, "relu")) flags |= PTX__RELU;
    if (ptx__take(p, "pack")) ptx__bad(p, "cvt.pack is not modelled");
    int to = ptx__take_type(p), from = ptx__take_type(p);
    if (to == PTX__F16X2 || to == PTX__BF16X2) {
        if (from != PTX__F32 || irnd >= 0) ptx__no_type(p, from);
        ptx__done(p, 3, 3);
        uint32_t d = ptx__dst(p), a = ptx__src(p, 1, from), b = ptx__src(p, 2, from);
        int      one = to == PTX__F16X2 ? PTX__F16 : PTX__BF16;
        ptx__emit(p, PTX__OP_cvt2, d, a, b, 0)->x = (uint32_t)(one | from << 5 | flags << 10 | 2u << 21);
        return;
    }
    if (to == PTX__PRED || from == PTX__PRED || from == PTX__F16X2 || from == PTX__BF16X2 || from == PTX__TF32)
        ptx__no_type(p, from);
    bool ff = ptx__is_float(from) && ptx__is_float(to);
    bool narrows = ff && (ptx__type_bytes[to] < ptx__type_bytes[from] || to == PTX__TF32 ||
                          (to != from && ptx__type_bytes[to] == ptx__type_bytes[from]));
    if (ptx__is_float(from) && ptx__is_int(to) && irnd < 0) ptx__bad(p, "cvt to an integer without rounding");
    if (((ptx__is_int(from) && ptx__is_float(to)) || narrows) && rnd < 0) ptx__bad(p, "cvt without rounding");
    ptx__done(p, 2, 2);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, from), width = 8;
    if (p->op[0].kind == PTX__O_REG) width = ptx__type_bytes[p->op[0].type];
    int op = PTX__OP_cvt;
    if (flags == 0 && irnd < 0) {
        int nf = ptx__type_bytes[from], nt = ptx__type_bytes[to];
        if (ptx__is_int(from) && ptx__is_int(to)) {
            /* cutting, or widening without a sign, is a mask */
            if (!ptx__is_signed(to) || nt == (int)width) {
                int n = nf < nt ? nf : nt;
                if (nf >= nt || !ptx__is_signed(from))
                    op = n == 8 ? PTX__OP_mov : n == 4 ? PTX__OP_mov32 : n == 2 ? PTX__OP_mov16 : op;
                else if (from == PTX__S32 && nt == 8) op = PTX__OP_cvt_s64_s32;
            }
        } else if (to == PTX__F32) {
            op = from == PTX__S32    ? PTX__OP_cvt_f32_s32
                 : from == PTX__U32  ? PTX__OP_cvt_f32_u32
                 : from == PTX__S64  ? PTX__OP_cvt_f32_s64
                 : from == PTX__F64  ? PTX__OP_cvt_f32_f64
                 : from == PTX__F16  ? PTX__OP_cvt_f32_f16
                 : from == PTX__BF16 ? PTX__OP_cvt_f32_bf16
                                     : op;
        } else if (to == PTX__F64 && from == PTX__F32) {
            op = PTX__OP_cvt_f64_f32;
        } else if (to == PTX__BF16 && from == PTX__F32) {
            op = PTX__OP_cvt_bf16_f32;
        }
    }
    ptx__insn *i = ptx__emit(p, (unsigned)op, d, a, 0, 0);
    if (op == PTX__OP_cvt)
        i->x = (uint32_t)to | (uint32_t)from << 5 | (uint32_t)flags << 10 | (uint32_t)(irnd + 1) << 18 | width << 21;
}
static void ptx__do_mov(ptx__parser *p)
{
    int t = ptx__take_type(p);
    ptx__done(p, 2, 2);
    const ptx__opnd *to = &p->op[0], *from = &p->op[1];
    int              n = ptx__type_bytes[t];
    if (to->kind == PTX__O_VEC) { /* unpack */
        uint32_t v = ptx__value(p, from, t);
        if (to->n < 2 || n % to->n || (n / to->n != 1 && n / to->n != 2 && n / to->n != 4))
            ptx__bad(p, "a bad mov of a vector");
        uint32_t keep = ptx__new_reg(p, t); /* a destination may be the source */
        ptx__emit(p, PTX__OP_mov, keep, v, 0, 0);
        for (int i = 0; i < to->n; i++) {
            if (to->part[i].kind == PTX__O_SINK) continue;
            ptx__insn *in = ptx__emit(p, PTX__OP_shr_imm, ptx__target(p, &to->part[i]), keep, 0, 0);
            in->x = (uint32_t)(n / to->n);
            in->y = 8 * n / to->n * i;
        }
        return;
    }
    uint32_t d = ptx__dst(p);
    if (from->kind == PTX__O_VEC) { /* pack */
        int k = from->n, each = n / (k ? k : 1);
        if (k < 2 || n % k) ptx__bad(p, "a bad mov of a vector");
        int part = each == 1 ? PTX__B8 : each == 2 ? PTX__B16 : each == 4 ? PTX__B32 : 0;
        if (!part || each == 1) ptx__bad(p, "mov of a vector of %d-byte parts is not modelled", each);
        uint32_t v[4];
        if (k > 4) ptx__bad(p, "a bad mov of a vector");
        for (int i = 0; i < k; i++) v[i] = ptx__value(p, &from->part[i], part);
        if (k == 2) {
            ptx__emit(p, each == 2 ? PTX__OP_pack2_16 : PTX__OP_pack2_32, d, v[0], v[1], 0);
            return;
        }
        uint32_t sum = ptx__new_reg(p, PTX__B64);
        ptx__emit(p, PTX__OP_mov16, sum, v[0], 0, 0);
        for (int i = 1; i < 4; i++) ptx__emit(p, PTX__OP_shl_or, i == 3 ? d : sum, sum, v[i], 0)->y = 16 * i;
        return;
    }
    if (from->kind == PTX__O_REG && from->space <= -2) {
        ptx__insn *i = ptx__emit(p, PTX__OP_clock, d, 0, 0, 0);
        i->x = (uint32_t)(from->space == -3);
        i->y = n;
        return;
    }
    if (from->kind == PTX__O_NAME && from->space < 0) {
        if (ptx__find_fn(p->m, from->name, from->nname)) ptx__bad(p, "addresses of functions are not modelled");
        ptx__bad(p, "unknown name %.*s", (int)from->nname, from->name);
    }
    uint32_t a = ptx__value(p, from, t);
    ptx__emit(p, PTX__OP_mov, d, a, 0, 0);
}
static const char *const ptx__spaces[] = { "global", "shared",      "local",        "param",
                                           "const",  "shared::cta", "param::entry", "param::func" };
static int               ptx__take_space(ptx__parser *p) /* PTX__SP_ */
{
    static const int sp[] = { PTX__SP_GLOBAL, PTX__SP_SHARED, PTX__SP_LOCAL, PTX__SP_PARAM,
                              PTX__SP_CONST,  PTX__SP_SHARED, PTX__SP_PARAM, PTX__SP_PARAM };
    int              k = ptx__take_one(p, ptx__spaces, 8);
    return k < 0 ? PTX__SP_GENERIC : sp[k];
}
static void ptx__do_cvta(ptx__parser *p)
{
    bool to = ptx__take(p, "to");
    int  sp = ptx__take_space(p), t = ptx__take_type(p);
    if (t != PTX__U64 && t != PTX__U32) ptx__no_type(p, t);
    uint64_t base = sp == PTX__SP_SHARED  ? PTX__SHARED
                    : sp == PTX__SP_LOCAL ? PTX__LOCAL
                    : sp == PTX__SP_PARAM ? PTX__PARAM
                                          : 0;
    if (sp == PTX__SP_GENERIC) ptx__bad(p, "cvta without a space");
    if (t == PTX__U32 && base) ptx__no_type(p, t);
    ptx__done(p, 2, 2);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, t);
    ptx__emit(p, PTX__OP_add_imm, d, a, 0, 0)->imm = to ? (int64_t)(0 - base) : (int64_t)base;
}
static void ptx__do_isspacep(ptx__parser *p)
{
    int sp = ptx__take_space(p);
    ptx__done(p, 2, 2);
    uint32_t d = ptx__dst(p), a = ptx__src(p, 1, PTX__U64);
    if (sp == PTX__SP_GLOBAL) {
        ptx__emit(p, PTX__OP_space_none, d, a, 0, 0);
        return;
    }
    if (sp != PTX__SP_SHARED && sp != PTX__SP_LOCAL && sp != PTX__SP_PARAM)
        ptx__bad(p, "isspacep of this space is not modelled");
    ptx__emit(p, PTX__OP_space, d, a, 0, 0)->imm = (int64_t)(sp == PTX__SP_SHARED  ? PTX__SHARED
                                                             : sp == PTX__SP_LOCAL ? PTX__LOCAL
                                                                                   : PTX__PARAM);
}

/* ---- memory */
static uint32_t ptx__add_access(ptx__parser *p, const ptx__access *a)
{
    PTX__ROOM(p->m->access, p->m->naccess, p->m->caccess);
    p->m->access[p->m->naccess] = *a;
    return (uint32_t)p->m->naccess++;
}
/* The register that holds the base of an address, and what is added. */
static uint32_t ptx__base(ptx__parser *p, const ptx__opnd *o, int *space, int32_t *off)
{
    if (o->kind != PTX__O_MEM) ptx__bad(p, "%s: an address in [] expected", p->opcode);
    *off = (int32_t)o->off;
    if (o->space < 0) return o->reg == PTX__NOREG ? ptx__const_reg(p, o->imm) : o->reg;
    bool param = *space == PTX__SP_PARAM && (o->space == PTX__SP_PARAM || o->space == PTX__SP_FRAME);
    bool plain = *space == PTX__SP_GENERIC && o->space == PTX__SP_GLOBAL;
    if (*space != o->space && !param && !plain) ptx__bad(p, "%s of a variable of another space", p->opcode);
    *space = o->space;
    if (o->reg == PTX__NOREG) return ptx__const_reg(p, o->imm);
    if ((int64_t)o->imm + o->off > INT32_MAX) ptx__bad(p, "the offset is too large");
    *off = (int32_t)((int64_t)o->imm + o->off);
    return o->reg;
}
static void ptx__cache_hints(ptx__parser *p)
{
    static const char *const hint[] = { "ca",
                                        "cg",
                                        "cs",
                                        "lu",
                                        "cv",
                                        "wb",
                                        "wt",
                                        "L1::evict_normal",
                                        "L1::evict_unchanged",
                                        "L1::evict_first",
                                        "L1::evict_last",
                                        "L1::no_allocate",
                                        "L2::64B",
                                        "L2::128B",
                                        "L2::256B",
                                        "L2::evict_first",
                                        "L2::evict_last",
                                        "L2::evict_normal" };
    while (ptx__take_one(p, hint, (int)(sizeof hint / sizeof *hint)) >= 0) continue;
}
static bool ptx__take_scope(ptx__parser *p, bool *cta)
{
    static const char *const scope[] = { "cta", "gpu", "sys", "cluster" };
    int                      k = ptx__take_one(p, scope, 4);
    if (k == 3) ptx__bad(p, "clusters are not modelled");
    *cta = k == 0;
    return k >= 0;
}
static void ptx__do_ldst(ptx__parser *p, bool store)
{
    ptx__access x;
    bool        cta;
    memset(&x, 0, sizeof x);
    bool strong = ptx__take(p, "volatile") || ptx__take(p, "relaxed") || ptx__take(p, "mmio");
    if (!store && ptx__take(p, "acquire")) strong = true, x.acquire = 1;
    if (store && ptx__take(p, "release")) strong = true, x.release = 1;
    ptx__take(p, "weak");
    ptx__take_scope(p, &cta);
    int  space = ptx__take_space(p);
    bool nc = !store && ptx__take(p, "nc");
    ptx__cache_hints(p);
    int n = ptx__take(p, "v2") ? 2 : ptx__take(p, "v4") ? 4 : ptx__take(p, "v8") ? 8 : 1;
    int t = ptx__take_type(p), size = ptx__type_bytes[t];
    if (t == PTX__PRED) ptx__no_type(p, t);
    if (nc && space != PTX__SP_GLOBAL) ptx__bad(p, "ld.nc of another space than global");
    ptx__done(p, 2, 2);
    const ptx__opnd *data = &p->op[store ? 1 : 0], *mem = &p->op[store ? 0 : 1];
    int32_t          off;
    uint32_t         a = ptx__base(p, mem, &space, &off), v[8];
    if (store && (space == PTX__SP_CONST || space == PTX__SP_PARAM))
        ptx__bad(p, "a store into constants or parameters");
    if (n > 1 && (data->kind != PTX__O_VEC || data->n != n)) ptx__bad(p, "%s: a vector of %d expected", p->opcode, n);
    if (n == 1 && data->kind == PTX__O_VEC) ptx__bad(p, "%s: a vector", p->opcode);
    const ptx__opnd *part = n > 1 ? data->part : data;
    for (int i = 0; i < n; i++) v[i] = store ? ptx__value(p, &part[i], t) : ptx__target(p, &part[i]);
    x.space = (uint8_t)space;
    x.nbytes = (uint8_t)size;
    x.n = (uint8_t)n;
    x.type = (uint8_t)t;
    x.kind = store ? (strong ? PTX__AWRITE : PTX__WRITE) : strong ? PTX__AREAD : nc ? PTX__NCREAD : PTX__READ;
    if (!store && part[0].kind == PTX__O_REG) {
        x.regbytes = ptx__type_bytes[part[0].type];
        if (x.regbytes < size) ptx__bad(p, "%s: the register is too narrow", p->opcode);
        x.sext = ptx__is_signed(t) && x.regbytes > size;
    }
    if (!store && part[0].kind == PTX__O_SINK) x.regbytes = 8;
    if (space == PTX__SP_PARAM && mem->space >= 0) {
        size_t at = (size_t)mem->imm + (size_t)mem->off;
        if (at + (size_t)(size * n) > p->f->param_bytes) ptx__bad(p, "%s beyond the parameters", p->opcode);
    }
    if (n > 1) x.list = ptx__list_of(p, v, n);
    bool easy = n == 1 && !x.sext && !strong && !nc;
    int  k = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3, op = store ? PTX__OP_st : PTX__OP_ld;
    if (easy && space == PTX__SP_GLOBAL) op = (store ? PTX__OP_st_global_1 : PTX__OP_ld_global_1) + k;
    if (easy && space == PTX__SP_SHARED) op = (store ? PTX__OP_st_shared_1 : PTX__OP_ld_shared_1) + k;
    if (easy && space == PTX__SP_PARAM && mem->space >= 0) op = PTX__OP_ld_param;
    uint32_t   id = ptx__add_access(p, &x);
    ptx__insn *i = ptx__emit(p, (unsigned)op, store ? 0 : v[0], a, store ? v[0] : 0, 0);
    i->x = id;
    i->y = off;
    if (op == PTX__OP_ld_param) i->y = (int32_t)((int64_t)mem->imm + mem->off), i->c = (uint32_t)size;
}
static void ptx__do_atom(ptx__parser *p, bool red)
{
    static const char *const ops[] = { "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec" };
    ptx__access              x;
    bool                     cta;
    memset(&x, 0, sizeof x);
    bool both = ptx__take(p, "acq_rel");
    x.acquire = both || ptx__take(p, "acquire");
    x.release = both || ptx__take(p, "release");
    ptx__take(p, "relaxed");
    ptx__take_scope(p, &cta);
    int space = ptx__take_space(p), op = ptx__take_one(p, ops, 10);
    ptx__take(p, "noftz");
    int t = ptx__take_type(p), n = ptx__type_bytes[t];
    if (op < 0) ptx__bad(p, "%s without an operation", p->opcode);
    if (space != PTX__SP_GENERIC && space != PTX__SP_GLOBAL && space != PTX__SP_SHARED)
        ptx__bad(p, "%s of this space", p->opcode);
    bool f = ptx__any_float(t), good;
    switch (op) {
    case PTX__AT_ADD: good = f || (n >= 4 && t >= PTX__U32); break;
    case PTX__AT_MIN:
    case PTX__AT_MAX: good = !f && n >= 4 && t >= PTX__U32 && t != PTX__PRED; break;
    case PTX__AT_AND:
    case PTX__AT_OR:
    case PTX__AT_XOR: good = t == PTX__B32 || t == PTX__B64; break;
    case PTX__AT_EXCH: good = (t == PTX__B32 || t == PTX__B64) && !red; break;
    case PTX__AT_CAS: good = (t == PTX__B16 || t == PTX__B32 || t == PTX__B64) && !red; break;
    default: good = t == PTX__U32; break;
    }
    if (!good) ptx__no_type(p, t);
    int nop = (red ? 2 : 3) + (op == PTX__AT_CAS), first = red ? 0 : 1;
    ptx__done(p, nop, nop);
    int32_t  off;
    uint32_t d = red ? ptx__new_reg(p, t) : ptx__dst(p), a = ptx__base(p, &p->op[first], &space, &off);
    uint32_t b = ptx__src(p, first + 1, t), c = op == PTX__AT_CAS ? ptx__src(p, first + 2, t) : 0;
    x.space = (uint8_t)space;
    x.nbytes = (uint8_t)n;
    x.n = 1;
    x.kind = PTX__RMW;
    x.type = (uint8_t)t;
    x.op = (uint8_t)op;
    uint32_t   id = ptx__add_access(p, &x);
    ptx__insn *i = ptx__emit(p, PTX__OP_atom, d, a, b, c);
    i->x = id;
    i->y = off;
}
static void ptx__do_cp(ptx__parser *p)
{
    if (!ptx__take(p, "async")) ptx__bad(p, "%s is not modelled", p->opcode);
    if (ptx__take(p, "commit_group")) {
        ptx__done(p, 0, 0);
        ptx__emit(p, PTX__OP_async_wait, 0, 0, 0, 0)->y = -1;
        return;
    }
    if (ptx__take(p, "wait_all")) {
        ptx__done(p, 0, 0);
        ptx__emit(p, PTX__OP_async_wait, 0, 0, 0, 0)->y = -2;
        return;
    }
    if (ptx__take(p, "wait_group")) {
        ptx__done(p, 1, 1);
        if (p->op[0].kind != PTX__O_IMM) ptx__bad(p, "cp.async.wait_group needs a constant");
        int32_t n = (int32_t)p->op[0].imm;
        ptx__emit(p, PTX__OP_async_wait, 0, 0, 0, 0)->y = n;
        return;
    }
    bool cg = ptx__take(p, "cg"), ca = ptx__take(p, "ca");
    if (cg == ca || !(ptx__take(p, "shared") || ptx__take(p, "shared::cta")) || !ptx__take(p, "global"))
        ptx__bad(p, "this form of cp.async is not modelled");
    ptx__cache_hints(p);
    ptx__done(p, 3, 4);
    if (p->op[2].kind != PTX__O_IMM) ptx__bad(p, "cp.async needs its size as a constant");
    uint64_t n = p->op[2].imm;
    if (!(n == 16 || (ca && (n == 4 || n == 8)))) ptx__bad(p, "cp.async of %u bytes", (unsigned)n);
    if (p->nop == 4 && p->op[3].kind == PTX__O_REG && p->op[3].type == PTX__PRED)
        ptx__bad(p, "cp.async with ignore-src is not modelled");
    int         to = PTX__SP_SHARED, from = PTX__SP_GLOBAL;
    int32_t     off_to, off_from;
    uint32_t    a = ptx__base(p, &p->op[0], &to, &off_to), b = ptx__base(p, &p->op[1], &from, &off_from);
    uint32_t    c = p->nop == 4 ? ptx__src(p, 3, PTX__U32) : ptx__const_reg(p, n);
    ptx__access x;
    memset(&x, 0, sizeof x);
    x.nbytes = (uint8_t)n;
    x.n = 1;
    x.space = PTX__SP_GLOBAL;
    x.list = (uint32_t)off_from;
    uint32_t   id = ptx__add_access(p, &x);
    ptx__insn *i = ptx__emit(p, PTX__OP_async, 0, a, b, c);
    i->x = id;
    i->y = off_to;
}

/* ---- rendezvous */
static void ptx__emit_meet(ptx__parser *p, unsigned op, const ptx__meet *w)
{
    PTX__ROOM(p->m->meet, p->m->nmeet, p->m->cmeet);
    p->m->meet[p->m->nmeet] = *w;
    ptx__emit(p, op, 0, 0, 0, 0)->x = (uint32_t)p->m->nmeet++;
}
static ptx__meet ptx__no_meet(int kind)
{
    ptx__meet w;
    memset(&w, 0, sizeof w);
    w.kind = (uint8_t)kind;
    w.dst = w.pred = w.a = w.b = w.c = w.mask = PTX__NOREG;
    return w;
}
static void ptx__do_bar(ptx__parser *p)
{
    if (ptx__take(p, "warp")) {
        if (!ptx__take(p, "sync")) ptx__bad(p, "bar.warp without .sync");
        ptx__done(p, 1, 1);
        ptx__meet w = ptx__no_meet(PTX__W_SYNC);
        w.mask = ptx__src(p, 0, PTX__B32);
        ptx__emit_meet(p, PTX__OP_warp, &w);
        return;
    }
    ptx__take(p, "cta");
    bool sync = ptx__take(p, "sync"), red = ptx__take(p, "red");
    ptx__take(p, "aligned");
    if (sync == red) ptx__bad(p, "this kind of barrier is not modelled");
    ptx__meet w = ptx__no_meet(0);
    int       at = 0;
    if (red) {
        static const char *const ops[] = { "popc", "and", "or" };
        int                      k = ptx__take_one(p, ops, 3), t = ptx__take_type(p);
        if (k < 0 || t != (k == 0 ? PTX__U32 : PTX__PRED)) ptx__no_type(p, t);
        w.kind = (uint8_t)(k + 1);
        ptx__done(p, 3, 4);
        w.dst = ptx__dst(p);
        w.pred = ptx__src(p, p->nop - 1, PTX__PRED);
        p->nop--;
        at = 1;
    } else {
        ptx__done(p, 1, 2);
    }
    w.a = ptx__src(p, at, PTX__U32);
    if (p->nop > at + 1) w.b = ptx__src(p, at + 1, PTX__U32);
    p->f->has_barrier = true;
    ptx__emit_meet(p, PTX__OP_bar, &w);
}
static void ptx__do_shfl(ptx__parser *p)
{
    static const char *const modes[] = { "up", "down", "bfly", "idx" };
    if (!ptx__take(p, "sync")) ptx__bad(p, "shfl without .sync");
    int mode = ptx__take_one(p, modes, 4), t = ptx__take_type(p);
    if (mode < 0 || t != PTX__B32) ptx__no_type(p, t);
    ptx__done(p, 5, 5);
    ptx__meet w = ptx__no_meet(PTX__W_SHFL);
    w.mode = (uint8_t)mode;
    w.dst = ptx__target(p, &p->op[0]);
    w.pred = p->op[0].second;
    w.a = ptx__src(p, 1, t);
    w.b = ptx__src(p, 2, t);
    w.c = ptx__src(p, 3, t);
    w.mask = ptx__src(p, 4, t);
    ptx__emit_meet(p, PTX__OP_warp, &w);
}
static void ptx__do_vote(ptx__parser *p)
{
    static const char *const modes[] = { "all", "any", "uni", "ballot" };
    if (!ptx__take(p, "sync")) ptx__bad(p, "vote without .sync");
    int mode = ptx__take_one(p, modes, 4), t = ptx__take_type(p);
    if (mode < 0 || t != (mode == 3 ? PTX__B32 : PTX__PRED)) ptx__no_type(p, t);
    ptx__done(p, 3, 3);
    ptx__meet w = ptx__no_meet(PTX__W_ALL + mode);
    w.dst = ptx__dst(p);
    w.a = ptx__src(p, 1, PTX__PRED);
    w.mask = ptx__src(p, 2, PTX__B32);
    ptx__emit_meet(p, PTX__OP_warp, &w);
}
static void ptx__do_match(ptx__parser *p)
{
    bool any = ptx__take(p, "any"), all = ptx__take(p, "all");
    if (!ptx__take(p, "sync") || any == all) ptx__bad(p, "this form of match is not modelled");
    int t = ptx__take_type(p);
    if (t != PTX__B32 && t != PTX__B64) ptx__no_type(p, t);
    ptx__done(p, 3, 3);
    ptx__meet w = ptx__no_meet(any ? PTX__W_MATCH_ANY : PTX__W_MATCH_ALL);
    w.dst = ptx__target(p, &p->op[0]);
    w.pred = p->op[0].second;
    w.a = ptx__src(p, 1, t);
    w.mask = ptx__src(p, 2, PTX__B32);
    ptx__emit_meet(p, PTX__OP_warp, &w);
}
static void ptx__do_redux(ptx__parser *p)
{
    static const char *const ops[] = { "add", "min", "max", "and", "or", "xor" };
    if (!ptx__take(p, "sync")) ptx__bad(p, "redux without .sync");
    int k = ptx__take_one(p, ops, 6), t = ptx__take_type(p);
    if (k < 0 || (k < 3 ? t != PTX__U32 && t != PTX__S32 : t != PTX__B32)) ptx__no_type(p, t);
    ptx__done(p, 3, 3);
    ptx__meet w = ptx__no_meet(PTX__W_REDUX);
    w.mode = (uint8_t)k;
    w.type = (uint8_t)t;
    w.dst = ptx__dst(p);
    w.a = ptx__src(p, 1, t);
    w.mask = ptx__src(p, 2, PTX__B32);
    ptx__emit_meet(p, PTX__OP_warp, &w);
}
static void ptx__do_activemask(ptx__parser *p)
{
    if (ptx__take_type(p) != PTX__B32) ptx__bad(p, "activemask needs .b32");
    ptx__done(p, 1, 1);
    ptx__meet w = ptx__no_meet(PTX__W_ACTIVE);
    w.dst = ptx__dst(p);
    ptx__emit_meet(p, PTX__OP_warp, &w);
}
static void ptx__do_elect(ptx__parser *p)
{
    if (!ptx__take(p, "sync")) ptx__bad(p, "elect without .sync");
    ptx__done(p, 2, 2);
    ptx__meet w = ptx__no_meet(PTX__W_ELECT);
    w.dst = ptx__target(p, &p->op[0]);
    w.pred = p->op[0].second;
    w.mask = ptx__src(p, 1, PTX__B32);
    ptx__emit_meet(p, PTX__OP_warp, &w);
}
static void ptx__do_fence(ptx__parser *p)
{
    bool cta;
    ptx__take(p, "sc");
    ptx__take(p, "acq_rel");
    bool wide = ptx__take(p, "gl");
    wide = (ptx__take_scope(p, &cta) && !cta) || wide;
    ptx__done(p, 0, 0);
    if (wide) p->f->has_fence = true;
    ptx__emit(p, wide ? PTX__OP_fence : PTX__OP_nop, 0, 0, 0, 0);
}

/* ---- control */
static void ptx__jump_to(ptx__parser *p, const ptx__opnd *o, bool list)
{
    if (o->kind != PTX__O_NAME) ptx__bad(p, "a label expected");
    PTX__ROOM(p->jump, p->njump, p->cjump);
    struct ptx__jump *j = &p->jump[p->njump++];
    j->insn = p->m->ncode - 1;
    j->line = p->insn_line;
    j->name = o->name;
    j->nname = o->nname;
    j->is_list = list;
}
static void ptx__do_bra(ptx__parser *p, uint32_t pred, bool negated)
{
    ptx__take(p, "uni");
    ptx__done(p, 1, 1);
    ptx__emit(p,
              pred == PTX__NOREG ? PTX__OP_bra
              : negated          ? PTX__OP_bra_not
                                 : PTX__OP_bra_if,
              0, pred == PTX__NOREG ? 0 : pred, 0, 0);
    ptx__jump_to(p, &p->op[0], false);
}
static void ptx__do_brx(ptx__parser *p)
{
    if (!ptx__take(p, "idx")) ptx__bad(p, "brx without .idx");
    ptx__take(p, "uni");
    ptx__done(p, 2, 2);
    uint32_t a = ptx__src(p, 0, PTX__U32);
    ptx__emit(p, PTX__OP_brx, 0, a, 0, 0);
    ptx__jump_to(p, &p->op[1], true);
}
/* call (r), f, (a, b); parsed here, its operands are no registers */
static int ptx__call_list(ptx__parser *p, const ptx__sym **out)
{
    int n = 0;
    ptx__expect(p, '(');
    if (ptx__accept(p, ')')) return 0;
    do {
        size_t      k;
        uint32_t    reg;
        const char *s = ptx__word(p, &k);
        ptx__sym   *y = ptx__lookup(p, s, k, &reg);
        if (!y || y->kind != PTX__SYM_FRAME)
            ptx__bad(p, "arguments of calls must be .param variables: %.*s", (int)k, s);
        if (n == 32) ptx__bad(p, "too many arguments");
        out[n++] = y;
    } while (ptx__accept(p, ','));
    ptx__expect(p, ')');
    return n;
}
static void ptx__do_call(ptx__parser *p)
{
    const ptx__sym *back[32], *arg[32];
    int             nback = 0, narg = 0;
    ptx__take(p, "uni");
    if (ptx__peek(p) == '(') {
        nback = ptx__call_list(p, back);
        ptx__expect(p, ',');
    }
    size_t      n;
    const char *s = ptx__word(p, &n);
    if (n == 0 || s[0] == '%') ptx__bad(p, "indirect calls are not modelled");
    ptx_kernel *f = ptx__find_fn(p->m, s, n);
    if (!f || f->is_entry) ptx__bad(p, "call of %.*s, which is no function of this module", (int)n, s);
    if (!f->has_body)
        ptx__bad(p, "call of %s, which has no body (printf, assert and malloc on the device are not modelled)",
                 f->name);
    if (ptx__accept(p, ',')) narg = ptx__call_list(p, arg);
    if (ptx__peek(p) == ',') ptx__bad(p, "indirect calls are not modelled");
    ptx__done(p, 0, 0);
    if ((size_t)nback != f->nresult || (size_t)(nback + narg) != f->nformal)
        ptx__bad(p, "call of %s with other arguments than it has", f->name);
    ptx_module  *m = p->m;
    ptx__calling c;
    c.f = f;
    c.nmove = (uint32_t)narg;
    c.nback = (uint32_t)nback;
    c.move = (uint32_t)m->nmove;
    c.back = (uint32_t)m->nmove + c.nmove;
    for (int i = 0; i < narg + nback; i++) {
        const ptx__sym    *y = i < narg ? arg[i] : back[i - narg];
        const ptx__formal *q = &f->formal[i < narg ? nback + i : i - narg];
        if (y->nbytes != q->nbytes) ptx__bad(p, "call of %s: an argument has another size", f->name);
        PTX__ROOM(m->move, m->nmove, m->cmove);
        m->move[m->nmove].from = (uint32_t)y->offset;
        m->move[m->nmove].to = (uint32_t)q->offset;
        m->move[m->nmove++].nbytes = (uint32_t)y->nbytes;
    }
    PTX__ROOM(m->calling, m->ncalling, m->ccalling);
    m->calling[m->ncalling] = c;
    ptx__emit(p, PTX__OP_call, 0, 0, 0, 0)->x = (uint32_t)m->ncalling++;
}

static void ptx__do(ptx__parser *p, const char *base)
{
#define PTX__BASE(name) (strcmp(base, name) == 0)
    if (PTX__BASE("mov")) ptx__do_mov(p);
    else if (PTX__BASE("add")) ptx__do_addsub(p, false);
    else if (PTX__BASE("sub")) ptx__do_addsub(p, true);
    else if (PTX__BASE("addc")) ptx__carried(p, true, false, false);
    else if (PTX__BASE("subc")) ptx__carried(p, true, true, false);
    else if (PTX__BASE("madc")) ptx__carried(p, true, false, true);
    else if (PTX__BASE("mul")) ptx__do_mul(p, false);
    else if (PTX__BASE("mad")) ptx__do_mul(p, true);
    else if (PTX__BASE("fma")) ptx__do_fma(p);
    else if (PTX__BASE("div")) ptx__do_div(p, false);
    else if (PTX__BASE("rem")) ptx__do_div(p, true);
    else if (PTX__BASE("min")) ptx__do_minmax(p, false);
    else if (PTX__BASE("max")) ptx__do_minmax(p, true);
    else if (PTX__BASE("abs")) ptx__do_absneg(p, false);
    else if (PTX__BASE("neg")) ptx__do_absneg(p, true);
    else if (PTX__BASE("rcp")) ptx__do_function(p, PTX__RCP);
    else if (PTX__BASE("sqrt")) ptx__do_function(p, PTX__SQRT);
    else if (PTX__BASE("rsqrt")) ptx__do_function(p, PTX__RSQRT);
    else if (PTX__BASE("ex2")) ptx__do_function(p, PTX__EX2);
    else if (PTX__BASE("lg2")) ptx__do_function(p, PTX__LG2);
    else if (PTX__BASE("sin")) ptx__do_function(p, PTX__SIN);
    else if (PTX__BASE("cos")) ptx__do_function(p, PTX__COS);
    else if (PTX__BASE("tanh")) ptx__do_function(p, PTX__TANH);
    else if (PTX__BASE("copysign")) ptx__do_copysign(p);
    else if (PTX__BASE("testp")) ptx__do_testp(p);
    else if (PTX__BASE("and")) ptx__do_logic(p, PTX__OP_and);
    else if (PTX__BASE("or")) ptx__do_logic(p, PTX__OP_or);
    else if (PTX__BASE("xor")) ptx__do_logic(p, PTX__OP_xor);
    else if (PTX__BASE("not")) ptx__do_not(p, false);
    else if (PTX__BASE("cnot")) ptx__do_not(p, true);
    else if (PTX__BASE("shl")) ptx__do_shift(p, true);
    else if (PTX__BASE("shr")) ptx__do_shift(p, false);
    else if (PTX__BASE("shf")) ptx__do_shf(p);
    else if (PTX__BASE("popc")) ptx__do_bits(p, PTX__OP_popc32, PTX__OP_popc64);
    else if (PTX__BASE("clz")) ptx__do_bits(p, PTX__OP_clz32, PTX__OP_clz64);
    else if (PTX__BASE("brev")) ptx__do_bits(p, PTX__OP_brev32, PTX__OP_brev64);
    else if (PTX__BASE("bfe")) ptx__do_bfe(p);
    else if (PTX__BASE("bfi")) ptx__do_bfi(p);
    else if (PTX__BASE("bfind")) ptx__do_bfind(p);
    else if (PTX__BASE("prmt")) ptx__do_prmt(p);
    else if (PTX__BASE("lop3")) ptx__do_lop3(p);
    else if (PTX__BASE("sad")) ptx__do_sad(p);
    else if (PTX__BASE("selp")) ptx__do_selp(p);
    else if (PTX__BASE("slct")) ptx__do_slct(p);
    else if (PTX__BASE("setp")) ptx__do_setp(p);
    else if (PTX__BASE("set")) ptx__do_set(p);
    else if (PTX__BASE("cvt")) ptx__do_cvt(p);
    else if (PTX__BASE("cvta")) ptx__do_cvta(p);
    else if (PTX__BASE("isspacep")) ptx__do_isspacep(p);
    else if (PTX__BASE("ld") || PTX__BASE("ldu")) ptx__do_ldst(p, false);
    else if (PTX__BASE("st")) ptx__do_ldst(p, true);
    else if (PTX__BASE("atom")) ptx__do_atom(p, false);
    else if (PTX__BASE("red")) ptx__do_atom(p, true);
    else if (PTX__BASE("cp")) ptx__do_cp(p);
    else if (PTX__BASE("bar") || PTX__BASE("barrier")) ptx__do_bar(p);
    else if (PTX__BASE("shfl")) ptx__do_shfl(p);
    else if (PTX__BASE("vote")) ptx__do_vote(p);
    else if (PTX__BASE("match")) ptx__do_match(p);
    else if (PTX__BASE("redux")) ptx__do_redux(p);
    else if (PTX__BASE("activemask")) ptx__do_activemask(p);
    else if (PTX__BASE("elect")) ptx__do_elect(p);
    else if (PTX__BASE("membar") || PTX__BASE("fence")) ptx__do_fence(p);
    else if (PTX__BASE("brx")) ptx__do_brx(p);
    else if (PTX__BASE("nanosleep")) {
        if (ptx__take_type(p) != PTX__U32) ptx__bad(p, "nanosleep needs .u32");
        ptx__done(p, 1, 1);
        ptx__src(p, 0, PTX__U32);
        ptx__emit(p, PTX__OP_pause, 0, 0, 0, 0);
    } else if (PTX__BASE("prefetch") || PTX__BASE("prefetchu")) {
        ptx__take_space(p);
        ptx__take(p, "L1");
        ptx__take(p, "L2");
        ptx__cache_hints(p);
        ptx__done(p, 1, 1);
        ptx__emit(p, PTX__OP_nop, 0, 0, 0, 0);
    } else if (PTX__BASE("ret")) {
        ptx__take(p, "uni");
        ptx__done(p, 0, 0);
        ptx__emit(p, p->f->is_entry ? PTX__OP_exit : PTX__OP_ret, 0, 0, 0, 0);
    } else if (PTX__BASE("exit")) {
        ptx__done(p, 0, 0);
        ptx__emit(p, PTX__OP_exit, 0, 0, 0, 0);
    } else if (PTX__BASE("trap") || PTX__BASE("brkpt")) {
        ptx__done(p, 0, 0);
        ptx__emit(p, PTX__OP_trap, 0, 0, 0, 0);
    } else {
        ptx__bad(p, "unknown opcode %s", p->opcode);
    }
#undef PTX__BASE
}

/* ---- statements */
static void ptx__instruction(ptx__parser *p, const char *word, size_t nword)
{
    uint32_t pred = PTX__NOREG;
    bool     negated = false;
    if (nword == 0) { /* @%p */
        ptx__expect(p, '@');
        negated = ptx__accept(p, '!');
        size_t      n;
        const char *s = ptx__word(p, &n);
        ptx__sym   *y = ptx__lookup(p, s, n, &pred);
        if (!y || (y->kind != PTX__SYM_REG && y->kind != PTX__SYM_RANGE) || y->type != PTX__PRED)
            ptx__fail(p, "a predicate expected after '@'");
        word = ptx__word(p, &nword);
        if (nword == 0) ptx__fail(p, "an opcode expected");
    }
    p->insn_line = ptx__line_of(p->m, (size_t)(word - p->s));
    size_t k = nword;
    while (p->at < p->end && (ptx__is_word(p->s[p->at]) || p->s[p->at] == '.' || p->s[p->at] == ':')) p->at++, k++;
    if (k >= sizeof p->opcode) ptx__bad(p, "the opcode is too long");
    memcpy(p->opcode, word, k);
    p->opcode[k] = 0;
    memcpy(p->modtext, p->opcode, k + 1);
    p->nmod = 0;
    for (char *q = strchr(p->modtext, '.'); q; q = strchr(q, '.')) {
        *q++ = 0;
        if (p->nmod == PTX__MAXMOD) ptx__bad(p, "too many modifiers");
        p->mod[p->nmod++] = q;
    }
    p->nop = p->npool = 0;
    p->opcode_id = ptx__opcode_id(p->opcode);
    size_t skip = 0;
    bool   branch = strcmp(p->modtext, "bra") == 0;
    p->counted = false;
    if (pred != PTX__NOREG && !branch) {
        skip = p->m->ncode + 1;
        ptx__emit(p, PTX__OP_skip, 0, pred, !negated, 0);
    }
    p->counted = true;
    if (strcmp(p->modtext, "call") == 0) {
        ptx__do_call(p);
    } else {
        while (ptx__peek(p) != ';') {
            if (p->nop == PTX__MAXOP) ptx__bad(p, "too many operands");
            p->op[p->nop++] = ptx__operand(p);
            if (ptx__peek(p) != ';') ptx__expect(p, ',');
        }
        if (branch) ptx__do_bra(p, pred, negated);
        else ptx__do(p, p->modtext);
    }
    ptx__expect(p, ';');
    if (skip) p->m->code[skip - 1].imm = (int64_t)p->m->ncode;
}

static uint64_t ptx__whole(ptx__parser *p)
{
    uint64_t v;
    if (ptx__number(p, &v) != PTX__O_IMM) ptx__fail(p, "a whole number expected");
    return v;
}
/* .align 8 .b8 name[4][2]: what stands between the space and the name, and the dimensions */
static int ptx__var_type(ptx__parser *p, size_t *align)
{
    int  t = PTX__NONE;
    bool ptr = false; /* an alignment after it is that of the memory it points to */
    *align = 0;
    while (ptx__peek(p) == '.') {
        size_t      n;
        const char *s = ptx__dotted(p, &n);
        if (ptx__is(s, n, "align")) {
            size_t to = (size_t)ptx__whole(p);
            if (!ptr) *align = to;
        } else if (ptx__is(s, n, "ptr")) ptr = true;
        else if (ptx__is(s, n, "global") || ptx__is(s, n, "shared") || ptx__is(s, n, "const") || ptx__is(s, n, "local"))
            continue; /* of a parameter: what it points to */
        else if (ptx__type_of(s, n)) t = ptx__type_of(s, n);
        else ptx__fail(p, ".%.*s is not modelled here", (int)n, s);
    }
    if (!t) ptx__fail(p, "a type expected");
    if (!*align) *align = ptx__type_bytes[t];
    if (*align & (*align - 1)) ptx__fail(p, "a bad alignment");
    return t;
}
static size_t ptx__dims(ptx__parser *p, bool *open) /* elements; open: one dimension is empty */
{
    size_t n = 1;
    *open = false;
    while (ptx__accept(p, '[')) {
        if (ptx__accept(p, ']')) {
            *open = true;
            n = 0;
            continue;
        }
        uint64_t d = ptx__whole(p);
        if (d > ((uint64_t)1 << 40) || (d && n > ((size_t)1 << 40) / d)) ptx__fail(p, "the array is too large");
        n *= (size_t)d;
        ptx__expect(p, ']');
    }
    return n;
}
static void ptx__declaration(ptx__parser *p, const char *space, size_t nspace) /* inside a body */
{
    if (ptx__is(space, nspace, "reg")) {
        size_t align;
        int    t = ptx__var_type(p, &align);
        do {
            size_t      n;
            const char *s = ptx__word(p, &n);
            if (n == 0) ptx__fail(p, "a name expected");
            if (ptx__accept(p, '<')) {
                uint64_t count = ptx__whole(p);
                ptx__expect(p, '>');
                if (count > 1000000) ptx__fail(p, "too many registers");
                ptx__sym *y = ptx__declare(p, s, n, PTX__SYM_RANGE);
                y->type = t;
                y->first = (uint32_t)p->nreg;
                y->count = (uint32_t)count;
                for (uint64_t i = 0; i < count; i++) ptx__new_reg(p, t);
            } else {
                ptx__sym *y = ptx__declare(p, s, n, PTX__SYM_REG);
                y->type = t;
                y->first = ptx__new_reg(p, t);
            }
        } while (ptx__accept(p, ','));
        ptx__expect(p, ';');
        return;
    }
    int kind = ptx__is(space, nspace, "shared")  ? PTX__SYM_SHARED
               : ptx__is(space, nspace, "local") ? PTX__SYM_LOCAL
               : ptx__is(space, nspace, "param") ? PTX__SYM_FRAME
                                                 : -1;
    if (kind < 0) ptx__fail(p, "the directive .%.*s is not modelled", (int)nspace, space);
    size_t align, n;
    bool   open;
    int    t = ptx__var_type(p, &align);
    do {
        const char *s = ptx__word(p, &n);
        if (n == 0) ptx__fail(p, "a name expected");
        size_t nbytes = ptx__dims(p, &open) * ptx__type_bytes[t];
        if (open) ptx__fail(p, "an array without a size");
        ptx__sym *y = ptx__declare(p, s, n, kind);
        y->type = t;
        y->nbytes = nbytes;
        if (kind == PTX__SYM_SHARED) {
            y->offset = ptx__place_shared(p->f, nbytes, align);
        } else {
            p->f->frame_bytes = ptx__up(p->f->frame_bytes, align < 16 ? 16 : align);
            y->offset = p->f->frame_bytes;
            p->f->frame_bytes += nbytes;
        }
    } while (ptx__accept(p, ','));
    ptx__expect(p, ';');
}
static void ptx__skip_directive(ptx__parser *p) /* .loc and .file: to the end of the line */
{
    while (p->at < p->end && p->s[p->at] != '\n') p->at++;
}
static void ptx__label(ptx__parser *p, const char *s, size_t n)
{
    for (size_t i = 0; i < p->nlabel; i++)
        if (p->label[i].nname == n && memcmp(p->label[i].name, s, n) == 0)
            ptx__fail(p, "the label %.*s stands twice", (int)n, s);
    PTX__ROOM(p->label, p->nlabel, p->clabel);
    struct ptx__label *l = &p->label[p->nlabel++];
    memset(l, 0, sizeof *l);
    l->name = s;
    l->nname = n;
    l->at = p->m->ncode;
    l->line = ptx__line_of(p->m, (size_t)(s - p->s));
    if (ptx__peek(p) != '.') return;
    size_t      save = p->at, k;
    const char *d = ptx__dotted(p, &k);
    if (!ptx__is(d, k, "branchtargets")) {
        if (ptx__is(d, k, "callprototype") || ptx__is(d, k, "calltargets"))
            ptx__fail(p, "indirect calls are not modelled");
        p->at = save;
        return;
    }
    /* the names are kept in the text: {begin, length} pairs */
    do {
        size_t      m;
        const char *name = ptx__word(p, &m);
        if (m == 0) ptx__fail(p, "a label expected");
        l->targets = (uint32_t *)ptx__more(l->targets, (l->ntargets + 1) * 2 * sizeof *l->targets);
        l->targets[2 * l->ntargets] = (uint32_t)(name - p->s);
        l->targets[2 * l->ntargets++ + 1] = (uint32_t)m;
    } while (ptx__accept(p, ','));
    ptx__expect(p, ';');
}
static struct ptx__label *ptx__find_label(ptx__parser *p, const char *s, size_t n)
{
    for (size_t i = 0; i < p->nlabel; i++)
        if (p->label[i].nname == n && memcmp(p->label[i].name, s, n) == 0) return &p->label[i];
    return NULL;
}
/* ---- registers: PTX has a new one for almost every result; here they share as few as will do, so that those of a
   thread stay in the cache */
typedef struct ptx__uses {
    uint32_t *use[16], *def[16];
    int       nuse, ndef;
} ptx__uses;
static void ptx__uses_of(ptx_module *m, ptx__insn *i, ptx__uses *u)
{
    u->nuse = u->ndef = 0;
    switch (i->op) {
    case PTX__OP_bra:
    case PTX__OP_call:
    case PTX__OP_ret:
    case PTX__OP_exit:
    case PTX__OP_trap:
    case PTX__OP_nop:
    case PTX__OP_pause:
    case PTX__OP_fence:
    case PTX__OP_async_wait: return;
    case PTX__OP_skip:
    case PTX__OP_bra_if:
    case PTX__OP_bra_not:
    case PTX__OP_brx: u->use[u->nuse++] = &i->a; return;
    case PTX__OP_clock:
    case PTX__OP_ld_param: u->def[u->ndef++] = &i->d; return;
    case PTX__OP_bar:
    case PTX__OP_warp: {
        ptx__meet *w = &m->meet[i->x];
        uint32_t  *use[] = { &w->a, &w->b, &w->c, &w->mask, &w->pred };
        for (int k = 0; k < (i->op == PTX__OP_bar ? 5 : 4); k++)
            if (*use[k] != PTX__NOREG) u->use[u->nuse++] = use[k];
        if (w->dst != PTX__NOREG) u->def[u->ndef++] = &w->dst;
        if (i->op == PTX__OP_warp && w->pred != PTX__NOREG) u->def[u->ndef++] = &w->pred;
        return;
    }
    case PTX__OP_ld:
    case PTX__OP_st: {
        const ptx__access *x = &m->access[i->x];
        bool               store = i->op == PTX__OP_st;
        u->use[u->nuse++] = &i->a;
        for (int k = 0; k < x->n; k++) {
            uint32_t *reg = x->n > 1 ? &m->list[x->list + (uint32_t)k] : store ? &i->b : &i->d;
            if (store) u->use[u->nuse++] = reg;
            else u->def[u->ndef++] = reg;
        }
        return;
    }
    default: break;
    }
    bool store = i->op >= PTX__OP_st_global_1 && i->op <= PTX__OP_st_shared_8;
    u->use[u->nuse++] = &i->a;
    u->use[u->nuse++] = &i->b;
    u->use[u->nuse++] = &i->c;
    if (i->op == PTX__OP_bfi) u->use[u->nuse++] = &i->x;
    if (!store && i->op != PTX__OP_async) u->def[u->ndef++] = &i->d;
}
/* The places an instruction may go on at besides the next one, and whether it goes on there. */
static bool ptx__falls_through(const ptx__insn *i)
{
    return i->op != PTX__OP_bra && i->op != PTX__OP_brx && i->op != PTX__OP_ret && i->op != PTX__OP_exit &&
           i->op != PTX__OP_trap;
}
static size_t ptx__ways(const ptx_module *m, const ptx__insn *i, const uint32_t **list, uint32_t *one)
{
    switch (i->op) {
    case PTX__OP_bra:
    case PTX__OP_bra_if:
    case PTX__OP_bra_not:
    case PTX__OP_skip:
        *one = (uint32_t)i->imm;
        *list = one;
        return 1;
    case PTX__OP_brx: *list = m->list + i->x; return (size_t)i->y;
    default: return 0;
    }
}
typedef struct ptx__span {
    uint32_t first, last, reg;
} ptx__span;
static int ptx__by_first(const void *a, const void *b)
{
    const ptx__span *x = (const ptx__span *)a, *y = (const ptx__span *)b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : x->reg < y->reg ? -1 : x->reg > y->reg;
}
static void ptx__reach(ptx__span *s, uint32_t at)
{
    if (at < s->first) s->first = at;
    if (s->last == PTX__NOREG || at > s->last) s->last = at;
}
/* From where to where each register holds something that is read: positions are 2i for what instruction i reads,
   2i + 1 for what it writes. */
static void ptx__spans(ptx__parser *p, ptx_kernel *f, ptx__span *span)
{
    ptx_module *m = p->m;
    size_t      n = f->ninsn, nblock = 0, words = p->nreg / 64 + 1;
    uint32_t   *block = (uint32_t *)ptx__zeroed((n + 1) * sizeof *block),
             one; /* first 1 where a block begins, then its number */
    const uint32_t *list = NULL;
    block[0] = 1;
    for (size_t i = 0; i < n; i++) {
        size_t k = ptx__ways(m, &m->code[f->first + i], &list, &one);
        for (size_t j = 0; j < k; j++) block[list[j] - f->first] = 1;
        if (k || !ptx__falls_through(&m->code[f->first + i])) block[i + 1] = 1;
    }
    for (size_t i = 0; i < n; i++) {
        if (block[i]) nblock++;
        block[i] = (uint32_t)(nblock - 1);
    }
    size_t   *begin = (size_t *)ptx__zeroed((nblock + 1) * sizeof *begin);
    uint64_t *use = (uint64_t *)ptx__zeroed(nblock * words * 8), *def = (uint64_t *)ptx__zeroed(nblock * words * 8);
    uint64_t *in = (uint64_t *)ptx__zeroed(nblock * words * 8), *out = (uint64_t *)ptx__zeroed(words * 8);
    for (size_t i = n; i-- > 0;) begin[block[i]] = i;
    begin[nblock] = n;
    ptx__uses u;
    for (size_t i = 0; i < n; i++) {
        uint64_t *bu = use + block[i] * words, *bd = def + block[i] * words;
        ptx__uses_of(m, &m->code[f->first + i], &u);
        for (int k = 0; k < u.nuse; k++) {
            uint32_t r = *u.use[k];
            if (r & PTX__CONST) continue;
            if (!(bd[r / 64] >> r % 64 & 1)) bu[r / 64] |= UINT64_C(1) << r % 64;
            ptx__reach(&span[r], (uint32_t)(2 * i));
        }
        for (int k = 0; k < u.ndef; k++) {
            uint32_t r = *u.def[k];
            bd[r / 64] |= UINT64_C(1) << r % 64;
            ptx__reach(&span[r], (uint32_t)(2 * i + 1));
        }
    }
    for (bool again = true; again;) {
        again = false;
        for (size_t b = nblock; b-- > 0;) {
            const ptx__insn *last = &m->code[f->first + begin[b + 1] - 1];
            size_t           k = ptx__ways(m, last, &list, &one);
            memset(out, 0, words * 8);
            for (size_t j = 0; j < k; j++)
                for (size_t w = 0; w < words; w++) out[w] |= in[block[list[j] - f->first] * words + w];
            if (ptx__falls_through(last) && b + 1 < nblock)
                for (size_t w = 0; w < words; w++) out[w] |= in[(b + 1) * words + w];
            for (size_t w = 0; w < words; w++) {
                uint64_t now = use[b * words + w] | (out[w] & ~def[b * words + w]);
                again |= now != in[b * words + w];
                in[b * words + w] = now;
            }
        }
    }
    for (size_t b = 0; b < nblock; b++) { /* what is alive at the ends of a block is so from there or to there */
        const ptx__insn *last = &m->code[f->first + begin[b + 1] - 1];
        size_t           k = ptx__ways(m, last, &list, &one);
        for (size_t w = 0; w < words; w++) {
            uint64_t o = ptx__falls_through(last) && b + 1 < nblock ? in[(b + 1) * words + w] : 0;
            for (size_t j = 0; j < k; j++) o |= in[block[list[j] - f->first] * words + w];
            for (uint64_t v = in [b * words + w]; v; v &= v - 1)
                ptx__reach(&span[w * 64 + (size_t)__builtin_ctzll(v)], (uint32_t)(2 * begin[b]));
            for (; o; o &= o - 1)
                ptx__reach(&span[w * 64 + (size_t)__builtin_ctzll(o)], (uint32_t)(2 * begin[b + 1] - 1));
        }
    }
    free(block);
    free(begin);
    free(use);
    free(def);
    free(in);
    free(out);
}
static void ptx__allocate(ptx__parser *p, ptx_kernel *f)
{
    ptx_module *m = p->m;
    size_t      n = p->nreg, nslot = 0, nfree = 0;
    ptx__span  *span = (ptx__span *)ptx__zeroed((n + 1) * sizeof *span);
    uint32_t   *slot = (uint32_t *)ptx__zeroed((n + 1) * sizeof *slot),
             *unused = (uint32_t *)ptx__zeroed((n + 1) * sizeof *unused);
    for (size_t i = 0; i < n; i++) span[i].reg = (uint32_t)i, span[i].first = span[i].last = PTX__NOREG;
    ptx__spans(p, f, span);
    for (size_t i = 0; i < f->nspecial; i++) ptx__reach(&span[f->special[i].reg], 0);
    qsort(span, n, sizeof *span, ptx__by_first);
    /* ends[x]: the registers whose span ends at x, as a chain */
    size_t    npos = 2 * f->ninsn + 2;
    uint32_t *ends = (uint32_t *)ptx__more(NULL, npos * sizeof *ends),
             *chain = (uint32_t *)ptx__zeroed((n + 1) * sizeof *chain);
    memset(ends, 0xff, npos * sizeof *ends);
    uint32_t done = 0; /* spans that end before it have given their slot back */
    for (size_t i = 0; i < n && span[i].first != PTX__NOREG; i++) {
        const ptx__span *s = &span[i];
        for (; done < s->first; done++)
            for (uint32_t r = ends[done]; r != PTX__NOREG; r = chain[r]) unused[nfree++] = slot[r];
        slot[s->reg] = nfree ? unused[--nfree] : (uint32_t)nslot++;
        chain[s->reg] = ends[s->last];
        ends[s->last] = s->reg;
    }
    f->nregs = nslot;
    f->nall = nslot + p->nconstant;
    f->nconstant = p->nconstant;
    f->constant = (uint64_t *)ptx__more(NULL, p->nconstant * sizeof *f->constant);
    if (p->nconstant) memcpy(f->constant, p->constant, p->nconstant * sizeof *f->constant);
    for (size_t i = f->first; i < m->ncode; i++) {
        ptx__uses u;
        ptx__uses_of(m, &m->code[i], &u);
        for (int k = 0; k < u.nuse + u.ndef; k++) {
            uint32_t *reg = k < u.nuse ? u.use[k] : u.def[k - u.nuse];
            *reg = *reg & PTX__CONST ? (uint32_t)nslot + (*reg & ~PTX__CONST) : slot[*reg];
        }
    }
    for (size_t i = 0; i < f->nspecial; i++) f->special[i].reg = slot[f->special[i].reg];
    free(span);
    free(slot);
    free(unused);
    free(ends);
    free(chain);
}

static void ptx__drop_function(ptx__parser *p)
{
    for (size_t i = 0; i < p->nlabel; i++) free(p->label[i].targets);
    p->nsym = p->nreg = p->nconstant = p->nlabel = p->njump = p->nplaced = p->cspecial = 0;
    p->nscope = 0;
    for (int i = 0; i < PTX__BUCKETS; i++) p->bucket[i] = PTX__NOREG;
}
static void ptx__body(ptx__parser *p, ptx_kernel *f)
{
    ptx_module *m = p->m;
    ptx__drop_function(p);
    p->f = f;
    p->at = f->body;
    p->end = f->body_end;
    f->first = m->ncode;
    if (f->is_entry) {
        f->shared_alloc = ptx__up(m->common_bytes, 16);
        f->shared_bytes = m->common_bytes;
    }
    for (size_t i = 0; i < f->nformal; i++) {
        ptx__sym *y = ptx__declare(p, f->formal[i].name, strlen(f->formal[i].name),
                                   f->is_entry ? PTX__SYM_PARAM : PTX__SYM_FRAME);
        y->offset = f->formal[i].offset;
        y->nbytes = f->formal[i].nbytes;
    }
    if (!f->is_entry) f->frame_bytes = f->param_bytes;
    for (;;) {
        char c = ptx__peek(p);
        if (!c) break;
        if (c == ';') {
            p->at++;
        } else if (c == '{') {
            p->at++;
            if (p->nscope == 64) ptx__fail(p, "too many nested scopes");
            p->scope[p->nscope++] = p->nsym;
        } else if (c == '}') {
            p->at++;
            if (p->nscope == 0) ptx__fail(p, "'}' without '{'");
            for (size_t to = p->scope[--p->nscope]; p->nsym > to; p->nsym--)
                p->bucket[p->sym[p->nsym - 1].bucket] = p->sym[p->nsym - 1].next;
        } else if (c == '.') {
            size_t      n;
            const char *s = ptx__dotted(p, &n);
            if (ptx__is(s, n, "loc") || ptx__is(s, n, "file")) ptx__skip_directive(p);
            else if (ptx__is(s, n, "pragma")) {
                while (ptx__peek(p) && ptx__peek(p) != ';') p->at++;
                ptx__expect(p, ';');
            } else ptx__declaration(p, s, n);
        } else if (c == '@') {
            ptx__instruction(p, NULL, 0);
        } else {
            size_t      n;
            const char *s = ptx__word(p, &n);
            if (n == 0) ptx__fail(p, "'%c' was not expected", c);
            if (ptx__peek(p) == ':' && p->s[p->at + 1] != ':') {
                p->at++;
                ptx__label(p, s, n);
            } else {
                p->at = (size_t)(s - p->s) + n;
                ptx__instruction(p, s, n);
            }
        }
    }
    if (p->nscope) ptx__fail(p, "'{' without '}'");
    p->insn_line = ptx__line_of(m, f->body_end);
    p->counted = false;
    ptx__emit(p, f->is_entry ? PTX__OP_exit : PTX__OP_ret, 0, 0, 0, 0);
    f->ninsn = m->ncode - f->first;
    for (size_t i = 0; i < p->njump; i++) {
        struct ptx__jump  *j = &p->jump[i];
        struct ptx__label *l = ptx__find_label(p, j->name, j->nname);
        if (!l) ptx__fail_at(p, j->line, "unknown label %.*s", (int)j->nname, j->name);
        if (!j->is_list) {
            m->code[j->insn].imm = (int64_t)l->at;
            continue;
        }
        if (!l->ntargets) ptx__fail_at(p, j->line, "%.*s has no .branchtargets", (int)j->nname, j->name);
        m->code[j->insn].x = (uint32_t)m->nlist;
        m->code[j->insn].y = (int32_t)l->ntargets;
        for (size_t k = 0; k < l->ntargets; k++) {
            const char        *s = p->s + l->targets[2 * k];
            struct ptx__label *to = ptx__find_label(p, s, l->targets[2 * k + 1]);
            if (!to) ptx__fail_at(p, l->line, "unknown label %.*s", (int)l->targets[2 * k + 1], s);
            PTX__ROOM(m->list, m->nlist, m->clist);
            m->list[m->nlist++] = (uint32_t)to->at;
        }
    }
    ptx__allocate(p, f);
}

/* ---------------------------------------------------------------------------------------------------- >>loading */
static ptx__formal *ptx__formals(ptx__parser *p, ptx_kernel *f)
{
    ptx__expect(p, '(');
    if (ptx__accept(p, ')')) return f->formal;
    do {
        size_t      n, align;
        const char *s = ptx__dotted(p, &n);
        bool        open;
        if (!ptx__is(s, n, "param")) ptx__fail(p, "parameters in registers are not modelled");
        int t = ptx__var_type(p, &align);
        s = ptx__word(p, &n);
        size_t nbytes = ptx__dims(p, &open) * ptx__type_bytes[t];
        if (open) ptx__fail(p, "functions with a varying number of arguments are not modelled");
        f->formal = (ptx__formal *)ptx__more(f->formal, (f->nformal + 1) * sizeof *f->formal);
        ptx__formal *q = &f->formal[f->nformal++];
        q->name = ptx__copy(s, n);
        q->nbytes = nbytes;
        q->align = align;
        q->offset = ptx__up(f->param_bytes, f->is_entry ? align : 16);
        f->param_bytes = q->offset + nbytes;
    } while (ptx__accept(p, ','));
    ptx__expect(p, ')');
    return f->formal;
}
static void ptx__formals_free(ptx_kernel *f)
{
    for (size_t i = 0; i < f->nformal; i++) free(f->formal[i].name);
    free(f->formal);
    f->formal = NULL;
    f->nformal = f->nresult = f->param_bytes = 0;
}
static void ptx__function(ptx__parser *p, bool is_entry)
{
    ptx_module *m = p->m;
    ptx_kernel *f = (ptx_kernel *)ptx__zeroed(sizeof *f);
    m->fn = (ptx_kernel **)ptx__more(m->fn, (m->nfn + 1) * sizeof *m->fn);
    m->fn[m->nfn++] = f;
    f->module = m;
    f->is_entry = is_entry;
    f->line = (int)ptx__line_of(m, p->at);
    f->dyn_align = 16;
    f->name = ptx__copy("", 0);
    if (!is_entry && ptx__peek(p) == '(') {
        ptx__formals(p, f);
        f->nresult = f->nformal;
    }
    size_t      n;
    const char *s = ptx__word(p, &n);
    if (n == 0) ptx__fail(p, "the name of a function expected");
    free(f->name);
    f->name = ptx__copy(s, n);
    if (ptx__peek(p) == '(') ptx__formals(p, f);
    while (ptx__peek(p) == '.') {
        s = ptx__dotted(p, &n);
        uint32_t *dims = ptx__is(s, n, "maxntid") ? f->maxntid : ptx__is(s, n, "reqntid") ? f->reqntid : NULL;
        if (dims) {
            dims[0] = dims[1] = dims[2] = 1;
            for (int i = 0; i < 3; i++) {
                dims[i] = (uint32_t)ptx__whole(p);
                if (!ptx__accept(p, ',')) break;
            }
        } else if (ptx__is(s, n, "minnctapersm") || ptx__is(s, n, "maxnreg") || ptx__is(s, n, "maxnctapersm")) {
            ptx__whole(p);
        } else if (ptx__is(s, n, "pragma")) {
            while (ptx__peek(p) && ptx__peek(p) != ';') p->at++;
            ptx__expect(p, ';');
        } else if (!ptx__is(s, n, "noreturn")) {
            ptx__fail(p, "the directive .%.*s is not modelled", (int)n, s);
        }
    }
    bool declared = !ptx__accept(p, '{');
    if (declared) {
        ptx__expect(p, ';');
    } else {
        f->has_body = true;
        f->body = p->at;
        int depth = 1;
        for (; p->at < p->end && depth; p->at++) depth += p->s[p->at] == '{' ? 1 : p->s[p->at] == '}' ? -1 : 0;
        if (depth) ptx__fail(p, "the body of %s does not end", f->name);
        f->body_end = p->at - 1;
    }
    for (size_t i = 0; i + 1 < m->nfn; i++) { /* a declaration before or after it */
        ptx_kernel *g = m->fn[i];
        if (strcmp(g->name, f->name) != 0) continue;
        if (g->has_body && f->has_body) ptx__fail(p, "%s is defined twice", f->name);
        if (f->has_body) m->fn[i] = f, m->fn[m->nfn - 1] = g;
        g = m->fn[--m->nfn];
        ptx__formals_free(g);
        free(g->name);
        free(g);
        return;
    }
}
static void ptx__initialise(ptx__parser *p, char *to, size_t nbytes, size_t *at, int t)
{
    if (ptx__accept(p, '{')) {
        if (ptx__accept(p, '}')) return;
        do ptx__initialise(p, to, nbytes, at, t);
        while (ptx__accept(p, ','));
        ptx__expect(p, '}');
        return;
    }
    char c = ptx__peek(p);
    if (!isdigit((unsigned char)c) && c != '-' && c != '+')
        ptx__fail(p, "addresses in the data of variables are not modelled");
    uint64_t v;
    int      kind = ptx__number(p, &v);
    size_t   n = ptx__type_bytes[t];
    if (kind == PTX__O_F64 && t == PTX__F32) v = ptx__fb((float)ptx__d(v));
    else if (kind == PTX__O_IMM && t == PTX__F32) v = ptx__fb((float)(int64_t)v);
    else if (kind == PTX__O_IMM && t == PTX__F64) v = ptx__db((double)(int64_t)v);
    else if ((kind == PTX__O_F32 && n != 4) || (kind == PTX__O_F64 && n != 8))
        ptx__fail(p, "a constant of another type");
    if (*at + n > nbytes) ptx__fail(p, "more data than the variable holds");
    memcpy(to + *at, &v, n);
    *at += n;
}
static void ptx__variable(ptx__parser *p, int space, bool is_extern)
{
    size_t      n, align;
    bool        open;
    int         t = ptx__var_type(p, &align);
    ptx_module *m = p->m;
    do {
        const char *s = ptx__word(p, &n);
        if (n == 0) ptx__fail(p, "the name of a variable expected");
        if (ptx__find_var(m, s, n)) ptx__fail(p, "the variable %.*s stands twice", (int)n, s);
        ptx__var *v = (ptx__var *)ptx__zeroed(sizeof *v);
        m->var = (ptx__var **)ptx__more(m->var, (m->nvar + 1) * sizeof *m->var);
        m->var[m->nvar++] = v;
        v->name = ptx__copy(s, n);
        v->nbytes = ptx__dims(p, &open) * ptx__type_bytes[t];
        v->align = align;
        v->space = space;
        v->common = -1;
        v->is_extern = is_extern;
        if (open && !(is_extern && space == PTX__SP_SHARED)) ptx__fail(p, "an array without a size");
        if (space == PTX__SP_SHARED) v->is_extern = is_extern && open;
        if (space != PTX__SP_SHARED && !is_extern) {
            /* with 256 bytes of nothing between two of them */
            m->nbytes = ptx__up(m->nbytes, align < 256 ? 256 : align);
            v->addr = m->nbytes;
            m->nbytes += v->nbytes + 256;
            v->data = (char *)ptx__zeroed(v->nbytes);
            if (space == PTX__SP_GLOBAL) {
                v->shadow = (uint64_t *)ptx__zeroed(v->nbytes * PTX_SHADOW_BYTES);
                ptx_shadow_written((uint8_t *)v->shadow, v->nbytes);
            }
        }
        if (ptx__accept(p, '=')) {
            size_t at = 0;
            if (!v->data) ptx__fail(p, "data for a variable of this space");
            ptx__initialise(p, v->data, v->nbytes, &at, t);
        }
    } while (ptx__accept(p, ','));
    ptx__expect(p, ';');
}
static void ptx__top(ptx__parser *p)
{
    bool is_extern = false;
    while (ptx__peek(p)) {
        size_t      n;
        const char *s = ptx__dotted(p, &n);
        if (ptx__is(s, n, "version") || ptx__is(s, n, "target") || ptx__is(s, n, "file") || ptx__is(s, n, "loc")) {
            ptx__skip_directive(p);
        } else if (ptx__is(s, n, "address_size")) {
            if (ptx__whole(p) != 64) ptx__fail(p, "addresses must have 64 bits");
        } else if (ptx__is(s, n, "visible") || ptx__is(s, n, "weak") || ptx__is(s, n, "common")) {
            continue;
        } else if (ptx__is(s, n, "extern")) {
            is_extern = true;
            continue;
        } else if (ptx__is(s, n, "entry") || ptx__is(s, n, "func")) {
            ptx__function(p, n == 5);
        } else if (ptx__is(s, n, "global") || ptx__is(s, n, "const") || ptx__is(s, n, "shared")) {
            ptx__variable(p, n == 6 ? (s[0] == 'g' ? PTX__SP_GLOBAL : PTX__SP_SHARED) : PTX__SP_CONST, is_extern);
        } else if (ptx__is(s, n, "pragma")) {
            while (ptx__peek(p) && ptx__peek(p) != ';') p->at++;
            ptx__expect(p, ';');
        } else if (ptx__is(s, n, "section")) { /* debugging */
            while (ptx__peek(p) && ptx__peek(p) != '}') p->at++;
            ptx__expect(p, '}');
        } else {
            ptx__fail(p, "the directive .%.*s is not modelled", (int)n, s);
        }
        is_extern = false;
    }
}
/* What the deepest calls from f need. */
static void ptx__depth(ptx__parser *p, ptx_kernel *f)
{
    if (f->visiting == 2) return;
    if (f->visiting == 1) ptx__fail_at(p, (size_t)f->line, "recursion is not modelled");
    f->visiting = 1;
    size_t regs = 0, bytes = 0, depth = 0;
    for (size_t i = f->first; i < f->first + f->ninsn; i++) {
        if (p->m->code[i].op != PTX__OP_call) continue;
        ptx_kernel *g = (ptx_kernel *)p->m->calling[p->m->code[i].x].f;
        ptx__depth(p, g);
        if (g->deep_regs > regs) regs = g->deep_regs;
        if (g->deep_bytes > bytes) bytes = g->deep_bytes;
        if (g->depth > depth) depth = g->depth;
        f->has_fence |= g->has_fence;
        f->has_barrier |= g->has_barrier;
        if (g->dyn_align > f->dyn_align) f->dyn_align = g->dyn_align;
    }
    f->deep_regs = f->nall + regs;
    f->frame_bytes = ptx__up(f->frame_bytes, 16);
    f->deep_bytes = f->frame_bytes + bytes;
    f->depth = depth + 1;
    f->visiting = 2;
}
static const void *const *ptx__labels(void);

static void ptx__finish(ptx__parser *p)
{
    ptx_module *m = p->m;
    for (size_t i = 0; i < m->nfn; i++)
        if (m->fn[i]->has_body) ptx__depth(p, m->fn[i]);
    m->runs = (int64_t *)ptx__zeroed((m->ncode + 1) * sizeof *m->runs);
    const void *const *label = ptx__labels();
    for (size_t i = 0; i < m->ncode; i++) {
        ptx__insn *in = &m->code[i];
        switch (in->op) {
        case PTX__OP_bra:
        case PTX__OP_bra_if:
        case PTX__OP_bra_not:
        case PTX__OP_skip: in->to = m->code + in->imm; break;
        default: break;
        }
        in->go = label[in->op];
        if (m->opcode[i] != PTX__NOREG) ptx__all.opcode[m->opcode[i]].loaded++;
    }
}
static char *ptx__without_comments(const char *text, size_t n)
{
    char *s = ptx__copy(text, n);
    for (size_t i = 0; i + 1 < n; i++) {
        if (s[i] == '"') { /* strings of directives: nothing in them is read */
            for (s[i++] = ' '; i < n && s[i] != '"'; i++)
                if (s[i] != '\n') s[i] = ' ';
            if (i < n) s[i] = ' ';
        } else if (s[i] == '/' && s[i + 1] == '/') {
            while (i < n && s[i] != '\n') s[i++] = ' ';
        } else if (s[i] == '/' && s[i + 1] == '*') {
            size_t end = i + 2;
            while (end + 1 < n && !(s[end] == '*' && s[end + 1] == '/')) end++;
            end = end + 2 < n ? end + 2 : n;
            for (; i < end; i++)
                if (s[i] != '\n') s[i] = ' ';
            i--;
        }
    }
    return s;
}
static __attribute__((noinline)) bool ptx__whole_text(ptx__parser *p)
{
    ptx_module *m = p->m;
    if (memchr(m->source, 0, m->ntext)) ptx__fail_at(p, 1, "the text holds a zero byte");
    ptx__top(p);
    m->base = ptx__all.next_base;
    ptx__all.next_base += ptx__up(m->nbytes, 4096) + 4096;
    for (size_t i = 0; i < m->nvar; i++)
        if (m->var[i]->data) m->var[i]->addr += m->base;
    for (int entries = 0; entries < 2; entries++)
        for (size_t i = 0; i < m->nfn; i++)
            if (m->fn[i]->has_body && m->fn[i]->is_entry == entries) ptx__body(p, m->fn[i]);
    p->f = NULL;
    ptx__finish(p);
    m->next = ptx__all.modules;
    ptx__all.modules = m;
    return true;
}
static __attribute__((noinline)) bool ptx__try(ptx__parser *p) { return setjmp(p->out) == 0 && ptx__whole_text(p); }
static ptx_module                    *ptx__load_text(const char *text, size_t n, char *err, size_t nerr)
{
    ptx_module  *m = (ptx_module *)ptx__zeroed(sizeof *m);
    ptx__parser *p = (ptx__parser *)ptx__zeroed(sizeof *p);
    if (err && nerr) err[0] = 0;
    m->source = ptx__copy(text, n);
    m->text = ptx__without_comments(text, n);
    m->ntext = n;
    for (size_t i = 0, cap = 0; i <= n; i++)
        if (i == 0 || m->source[i - 1] == '\n') {
            PTX__ROOM(m->line_at, m->nlines, cap);
            m->line_at[m->nlines++] = i;
        }
    p->m = m;
    p->s = m->text;
    p->end = n;
    p->err = err;
    p->nerr = nerr;
    pthread_mutex_lock(&ptx__all.lock);
    bool good = ptx__try(p);
    pthread_mutex_unlock(&ptx__all.lock);
    ptx__drop_function(p);
    free(p->sym);
    free(p->reg_type);
    free(p->constant);
    free(p->label);
    free(p->jump);
    free(p->placed);
    free(p);
    if (good) return m;
    ptx_free(m);
    return NULL;
}
ptx_module *ptx_load(const char *text, size_t n, char *err, size_t nerr)
{
    while (n > 0 && text[n - 1] == 0) n--; /* embedded PTX ends with zeros */
    if (n > 0 && n < UINT32_MAX) return ptx__load_text(text, n, err, nerr);
    if (err && nerr) snprintf(err, nerr, "PTX line 1: the text is %s", n ? "too long" : "empty");
    return NULL;
}
/* Adds what has run to the counters; with the lock held. */
static void ptx__tally(ptx_module *m)
{
    int64_t now = 0;
    for (size_t i = 0; m->runs && i < m->ncode; i++) {
        now += m->runs[i];
        if (m->opcode[i] == PTX__NOREG) continue;
        ptx__all.count.instructions += (uint64_t)now;
        ptx__all.opcode[m->opcode[i]].run += (uint64_t)now;
    }
    if (m->runs) memset(m->runs, 0, (m->ncode + 1) * sizeof *m->runs);
}
void ptx_count(ptx_counters *out)
{
    pthread_mutex_lock(&ptx__all.lock);
    for (ptx_module *m = ptx__all.modules; m; m = m->next) ptx__tally(m);
    *out = ptx__all.count;
    out->opcodes = out->opcodes_run = 0;
    for (size_t i = 0; i < ptx__all.nopcode; i++) {
        out->opcodes += ptx__all.opcode[i].loaded > 0;
        out->opcodes_run += ptx__all.opcode[i].run > 0;
    }
    pthread_mutex_unlock(&ptx__all.lock);
}
static int ptx__by_name(const void *a, const void *b)
{
    return strcmp(((const struct ptx__opcode *)a)->name, ((const struct ptx__opcode *)b)->name);
}
void ptx_coverage(void (*f)(void *user, const char *opcode, uint64_t loaded, uint64_t executed), void *user)
{
    pthread_mutex_lock(&ptx__all.lock);
    for (ptx_module *m = ptx__all.modules; m; m = m->next) ptx__tally(m);
    size_t              n = ptx__all.nopcode;
    struct ptx__opcode *o = (struct ptx__opcode *)ptx__more(NULL, n * sizeof *o);
    if (n) memcpy(o, ptx__all.opcode, n * sizeof *o);
    pthread_mutex_unlock(&ptx__all.lock);
    qsort(o, n, sizeof *o, ptx__by_name);
    for (size_t i = 0; i < n; i++)
        if (o[i].loaded) f(user, o[i].name, o[i].loaded, o[i].run);
    free(o);
}
void ptx_free(ptx_module *m)
{
    if (!m) return;
    pthread_mutex_lock(&ptx__all.lock);
    ptx__tally(m);
    for (ptx_module **q = &ptx__all.modules; *q; q = &(*q)->next)
        if (*q == m) {
            *q = m->next;
            break;
        }
    pthread_mutex_unlock(&ptx__all.lock);
    for (size_t i = 0; i < m->nfn; i++) {
        ptx__formals_free(m->fn[i]);
        free(m->fn[i]->name);
        free(m->fn[i]->constant);
        free(m->fn[i]->special);
        free(m->fn[i]->gap);
        free(m->fn[i]);
    }
    for (size_t i = 0; i < m->nvar; i++) {
        free(m->var[i]->name);
        free(m->var[i]->data);
        free(m->var[i]->shadow);
        free(m->var[i]);
    }
    free(m->fn);
    free(m->var);
    free(m->code);
    free(m->line);
    free(m->opcode);
    free(m->access);
    free(m->meet);
    free(m->list);
    free(m->calling);
    free(m->move);
    free(m->text);
    free(m->source);
    free(m->line_at);
    free(m->runs);
    free(m->plain_go);
    free(m->step_go);
    free(m->before);
    free(m);
}
const ptx_kernel *ptx_find(const ptx_module *m, const char *name)
{
    for (size_t i = 0; i < m->nfn; i++)
        if (m->fn[i]->is_entry && m->fn[i]->has_body && strcmp(m->fn[i]->name, name) == 0) return m->fn[i];
    return NULL;
}
const ptx_kernel *ptx_at(const ptx_module *m, size_t n)
{
    for (size_t i = 0; i < m->nfn; i++)
        if (m->fn[i]->is_entry && m->fn[i]->has_body && n-- == 0) return m->fn[i];
    return NULL;
}
const char *ptx_name(const ptx_kernel *k) { return k->name; }
size_t      ptx_params(const ptx_kernel *k, size_t *offset, size_t *nbytes, int most)
{
    for (size_t i = 0; i < k->nformal && (int64_t)i < most; i++) {
        if (offset) offset[i] = k->formal[i].offset;
        if (nbytes) nbytes[i] = k->formal[i].nbytes;
    }
    return k->nformal;
}
size_t ptx_shared(const ptx_kernel *k) { return k->shared_bytes; }
bool   ptx_symbol(ptx_module *m, const char *name, uint64_t *addr, size_t *nbytes)
{
    ptx__var *v = ptx__find_var(m, name, strlen(name));
    if (!v || !v->data) return false;
    if (addr) *addr = v->addr;
    if (nbytes) *nbytes = v->nbytes;
    return true;
}
/* with the lock held */
static bool ptx__module_block(uint64_t addr, ptx_block *out, bool *constant)
{
    for (const ptx_module *m = ptx__all.modules; m; m = m->next) {
        if (addr - m->base >= m->nbytes) continue;
        for (size_t i = 0; i < m->nvar; i++) {
            ptx__var *v = m->var[i];
            if (!v->data || addr - v->addr >= v->nbytes) continue;
            out->host = v->data + (addr - v->addr);
            out->shadow = v->shadow ? (uint8_t *)(v->shadow + (addr - v->addr)) : NULL;
            out->nbytes = v->nbytes - (size_t)(addr - v->addr);
            if (constant) *constant = v->space == PTX__SP_CONST;
            return true;
        }
    }
    return false;
}
bool ptx_symbol_block(uint64_t addr, ptx_block *out)
{
    pthread_mutex_lock(&ptx__all.lock);
    bool found = ptx__module_block(addr, out, NULL);
    pthread_mutex_unlock(&ptx__all.lock);
    return found;
}

/* ---------------------------------------------------------------------------------------------------- >>shadow
   A cell of 64 bits for a byte. Low half: who wrote it last (30 bits), and how; 0: nobody, 1: a gap between variables.
   High half: who read it last, and who else. "Who" is the number of a segment: what a thread does between two points at
   which it is ordered with others. Numbers only grow, so those of an older launch, block or barrier are recognised
   by their size. */
enum { PTX__HOST = 1, PTX__GAP = 1, PTX__IDS = 1 << 30 };
/* of a writer: plain, atomic by one warp, by several warps of a block, by several blocks;
   of a reader: one thread, several of a warp, several warps, several blocks */
enum { PTX__ONE, PTX__LANES, PTX__WARPS, PTX__BLOCKS };

void ptx_shadow_fresh(uint8_t *shadow, size_t nbytes) { memset(shadow, 0, nbytes * PTX_SHADOW_BYTES); }
void ptx_shadow_written(uint8_t *shadow, size_t nbytes)
{
    uint64_t *cell = (uint64_t *)(void *)shadow;
    for (size_t i = 0; i < nbytes; i++) cell[i] = PTX__HOST << 2;
}
void ptx_shadow_copy(uint8_t *dst, const uint8_t *src, size_t nbytes)
{
    uint64_t       *d = (uint64_t *)(void *)dst;
    const uint64_t *s = (const uint64_t *)(const void *)src;
    for (size_t i = 0; i < nbytes; i++) d[i] = (uint32_t)s[i] ? PTX__HOST << 2 : 0;
}
size_t ptx_shadow_unwritten(const uint8_t *shadow, size_t nbytes)
{
    const uint64_t *cell = (const uint64_t *)(const void *)shadow;
    size_t          i = 0;
    while (i < nbytes && (uint32_t)cell[i]) i++;
    return i;
}
static void ptx__forget(uint8_t *shadow, size_t nbytes) { ptx_shadow_copy(shadow, shadow, nbytes); }

/* ---------------------------------------------------------------------------------------------------- >>launch */
enum { PTX__FENCED = 1, PTX__TOLD = 2 }; /* of a segment that other blocks may see */
enum { PTX__READY, PTX__AT_BAR, PTX__AT_WARP, PTX__ENDED };
enum { PTX__X_YIELD, PTX__X_BAR, PTX__X_WARP, PTX__X_EXIT, PTX__X_ERROR };

typedef struct ptx__pending { /* cp.async */
    uint64_t         to, from;
    uint32_t         nbytes, nread, group;
    const ptx__insn *insn;
} ptx__pending;

typedef struct ptx__frame {
    const ptx__insn  *call;
    uint64_t         *regs;
    uint32_t          base;
    const ptx_kernel *f;
} ptx__frame;

typedef struct ptx__thread {
    const ptx__insn  *pc;
    uint64_t         *regs, *slab;
    char             *local;
    ptx__frame       *frame;
    const ptx_kernel *f;
    uint32_t          depth, base; /* base: of the frame in local */
    uint32_t          seg, last, clock, fence_last, fence_epoch;
    uint32_t          tid, xyz[3];
    uint8_t           state, lane;
    bool              updated, fenced, acquired, carry;
    ptx__pending     *pending;
    uint32_t          npending, cpending, group;
} ptx__thread;

typedef struct ptx__group {
    const ptx__insn *insn;
    uint32_t         mask, arrived;
} ptx__group;

typedef struct ptx__warp {
    uint32_t   present, ended;
    uint32_t   all, top; /* clocks: of the last sync of all lanes; the highest */
    int        nready, ngroup;
    ptx__group group[32];
    uint32_t (*seen)[32]; /* [lane][other]: the clock of the other that the lane knows to be past; partial masks only */
} ptx__warp;

typedef struct ptx__seen {
    uint64_t  lo, len;
    char     *host;
    uint64_t *shadow;
    bool      constant;
} ptx__seen;

typedef struct ptx__record {
    uint32_t tid, clock, before; /* before: the thread's segment before it */
} ptx__record;

typedef struct ptx__run {
    const ptx_kernel *k;
    const ptx_module *m;
    const ptx_launch *l;
    char             *err;
    size_t            nerr;
    uint64_t          rng, steps, max_steps;
    char             *params, *shared;
    uint64_t         *shared_shadow;
    size_t            nshared, dyn_at;
    ptx__seen        *seen;
    uint32_t          nthreads, nwarps, live, nbar;
    ptx__thread      *thread;
    ptx__warp        *warp;
    uint32_t         *ready, nready;
    const ptx__insn  *bar;
    uint32_t          ctaid[3];
    uint64_t          block; /* linear */
    uint32_t          launch_first, block_first, epoch_first, next;
    ptx__record      *record;
    size_t            crecord;
    uint8_t          *published; /* of each segment of the launch; kernels with fences only */
    size_t            cpublished;
    uint32_t          published_to;
    bool              fenced;
    struct {
        uint32_t first;
        uint64_t block;
    } * history;
    size_t     nhistory, chistory;
    uint64_t **slab;
    size_t     nslab, cslab;
    uint64_t   same_writes;
    const ptx__insn   *end;  /* the last instruction of the straight run that ended last */
    struct ptx__costs *cost; /* NULL: not counted */
} ptx__run;

/* ---- >>costs: what ptx_counts says, of one launch */
typedef struct ptx__request {
    const ptx__insn *insn;
    bool             second; /* the copy of cp.async into shared memory */
    uint32_t         lanes;
    uint64_t         addr[32];
} ptx__request;
typedef struct ptx__sector {
    uint64_t key; /* its number + 1; 0: empty */
    uint32_t read, written; /* a bit for each byte */
} ptx__sector;
typedef struct ptx__costs {
    ptx_counts    n;
    uint32_t      step; /* number of the group that is executed */
    uint32_t     *stamp, *slot; /* of instruction i at 2i, its second request at 2i + 1: the step, and where it is */
    ptx__request *request;
    size_t        nrequest, crequest;
    ptx__sector  *sector; /* hashed, a power of two */
    size_t        nsector, csector;
    uint64_t     *waste, *ways; /* of each instruction */
} ptx__costs;

static void ptx__note(ptx__run *R, const ptx__thread *T, const ptx__insn *I, uint64_t addr, bool second)
{
    ptx__costs *c = R->cost;
    size_t      i = (size_t)(I - R->m->code) * 2 + second;
    if (c->stamp[i] != c->step) {
        PTX__ROOM(c->request, c->nrequest, c->crequest);
        c->stamp[i] = c->step;
        c->slot[i] = (uint32_t)c->nrequest;
        c->request[c->nrequest].insn = I;
        c->request[c->nrequest].second = second;
        c->request[c->nrequest++].lanes = 0;
    }
    ptx__request *q = &c->request[c->slot[i]];
    q->lanes |= 1u << T->lane;
    q->addr[T->lane] = addr;
}
static ptx__sector *ptx__sector_of(ptx__costs *c, uint64_t number)
{
    if (2 * (c->nsector + 1) > c->csector) {
        ptx__sector *old = c->sector;
        size_t       n = c->csector;
        c->csector = n ? 2 * n : 4096;
        c->nsector = 0;
        c->sector = (ptx__sector *)ptx__zeroed(c->csector * sizeof *c->sector);
        for (size_t i = 0; i < n; i++)
            if (old[i].key) *ptx__sector_of(c, old[i].key - 1) = old[i];
        free(old);
    }
    size_t at = (size_t)(number * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (c->csector - 1);
    while (c->sector[at].key && c->sector[at].key != number + 1) at = (at + 1) & (c->csector - 1);
    if (!c->sector[at].key) {
        c->sector[at].key = number + 1;
        c->nsector++;
    }
    return &c->sector[at];
}
static void ptx__cost_global(ptx__costs *c, const ptx__request *q, uint32_t lanes, unsigned n, int kind, size_t insn)
{
    uint64_t sector[64], distinct = 0;
    uint32_t bytes[64];
    unsigned many = 0;
    for (uint32_t i = 0; i < 32; i++) {
        if (!(lanes >> i & 1)) continue;
        for (uint64_t at = q->addr[i], end = at + n; at < end; at = (at / 32 + 1) * 32) { /* one, of aligned accesses */
            uint64_t to = end < (at / 32 + 1) * 32 ? end : (at / 32 + 1) * 32;
            uint32_t mask = (uint32_t)(((UINT64_C(1) << (to - at)) - 1) << at % 32);
            unsigned j = many;
            while (j > 0 && sector[j - 1] != at / 32) j--;
            if (j > 0) bytes[j - 1] |= mask;
            else sector[many] = at / 32, bytes[many++] = mask;
        }
    }
    for (unsigned j = 0; j < many; j++) {
        ptx__sector *s = ptx__sector_of(c, sector[j]);
        if (kind != PTX_STORE) s->read |= bytes[j];
        if (kind != PTX_LOAD) s->written |= bytes[j];
        distinct += (unsigned)__builtin_popcount(bytes[j]);
    }
    c->n.requests[kind]++;
    c->n.sectors[kind] += many;
    c->n.least[kind] += (distinct + 31) / 32;
    c->waste[insn] += many - (distinct + 31) / 32;
}
static void ptx__cost_shared(ptx__costs *c, const ptx__request *q, uint32_t lanes, unsigned n, bool atomic, size_t insn)
{
    unsigned words = n > 4 ? n / 4 : 1, per = 32 / words; /* lanes of a phase */
    c->n.shared++;
    for (uint32_t first = 0; first < 32; first += per) {
        uint64_t word[32], worst = 0;
        uint32_t used[32] = { 0 };
        unsigned many = 0;
        for (uint32_t i = first; i < first + per; i++) {
            if (!(lanes >> i & 1)) continue;
            for (unsigned w = 0; w < words; w++) {
                uint64_t at = q->addr[i] / 4 + w;
                unsigned j = atomic ? 0 : many;
                while (j > 0 && word[j - 1] != at) j--;
                if (j > 0) continue;
                word[many++] = at;
                if (++used[at % 32] > worst) worst = used[at % 32];
            }
        }
        if (!worst) continue;
        c->n.phases++;
        c->n.ways += worst;
        c->ways[insn] += worst - 1;
        if (worst > c->n.worst) c->n.worst = (uint32_t)worst;
    }
}
/* The requests of the group that has been executed. */
static void ptx__cost_step(ptx__run *R)
{
    ptx__costs *c = R->cost;
    for (size_t k = 0; k < c->nrequest; k++) {
        const ptx__request *q = &c->request[k];
        const ptx__access  *x = &R->m->access[q->insn->x];
        unsigned            n = (unsigned)x->nbytes * (x->n ? x->n : 1);
        uint32_t            shared = 0, local = 0, none = 0;
        size_t              insn = (size_t)(q->insn - R->m->code);
        for (uint32_t i = 0; i < 32; i++) {
            if (!(q->lanes >> i & 1)) continue;
            uint64_t tag = PTX__TAG(q->addr[i]);
            bool     generic = x->space == PTX__SP_GENERIC;
            if (q->second || x->space == PTX__SP_SHARED || (generic && tag == PTX__SHARED)) shared |= 1u << i;
            else if (x->space == PTX__SP_LOCAL || (generic && tag == PTX__LOCAL)) local |= 1u << i;
            else if ((x->space != PTX__SP_GLOBAL && !generic) || (generic && tag == PTX__PARAM)) none |= 1u << i;
        }
        uint32_t global = q->lanes & ~(shared | local | none);
        int      kind = x->kind == PTX__RMW                                 ? PTX_ATOMIC
                        : x->kind == PTX__WRITE || x->kind == PTX__AWRITE ? PTX_STORE
                                                                              : PTX_LOAD;
        if (global) ptx__cost_global(c, q, global, n, kind, insn);
        if (shared) ptx__cost_shared(c, q, shared, n, kind == PTX_ATOMIC, insn);
        if (local) c->n.local++;
    }
    c->nrequest = 0;
    c->step++;
}
/* The code with or without short cuts; with the lock held. */
static void ptx__retarget(ptx_module *m, bool stepping)
{
    const void *const *label = ptx__labels();
    if (m->stepping == stepping) return;
    m->stepping = stepping;
    if (!m->plain_go) {
        m->plain_go = (const void **)ptx__zeroed(m->ncode * sizeof *m->plain_go);
        m->step_go = (const void **)ptx__zeroed(m->ncode * sizeof *m->step_go);
        m->before = (uint32_t *)ptx__zeroed((m->ncode + 1) * sizeof *m->before);
        for (size_t i = 0; i < m->ncode; i++) {
            const void *go = m->code[i].go;
            m->plain_go[i] = m->step_go[i] = go;
            m->before[i + 1] = m->before[i] + (m->opcode[i] != PTX__NOREG);
            for (int op = PTX__OP_ld_global_1; op <= PTX__OP_st_shared_8; op++)
                if (go == label[op] && op != PTX__OP_ld && op != PTX__OP_st)
                    m->step_go[i] = label[op < PTX__OP_st_global_1 ? PTX__OP_ld : PTX__OP_st];
            if (go == label[PTX__OP_bra_if]) m->step_go[i] = label[PTX__OP_bra_if_step];
            if (go == label[PTX__OP_bra_not]) m->step_go[i] = label[PTX__OP_bra_not_step];
        }
    }
    for (size_t i = 0; i < m->ncode; i++) m->code[i].go = stepping ? m->step_go[i] : m->plain_go[i];
    for (size_t i = 0; stepping && i < m->ncode; i++) {
        const void *go = m->plain_go[i];
        bool        jumps = go == label[PTX__OP_bra] || go == label[PTX__OP_bra_if] || go == label[PTX__OP_bra_not];
        if (jumps) m->code[m->code[i].to - m->code].go = label[PTX__OP_join];
        for (int32_t k = 0; go == label[PTX__OP_brx] && k < m->code[i].y; k++)
            m->code[m->list[m->code[i].x + (uint32_t)k]].go = label[PTX__OP_join];
    }
}
static void ptx__costs_open(ptx__run *R, ptx__costs *c)
{
    size_t n = R->m->ncode;
    memset(c, 0, sizeof *c);
    c->step = 1;
    c->stamp = (uint32_t *)ptx__zeroed(2 * n * sizeof *c->stamp);
    c->slot = (uint32_t *)ptx__zeroed(2 * n * sizeof *c->slot);
    c->waste = (uint64_t *)ptx__zeroed(n * sizeof *c->waste);
    c->ways = (uint64_t *)ptx__zeroed(n * sizeof *c->ways);
    R->cost = c;
}
static void ptx__costs_close(ptx__run *R, ptx_counts *out)
{
    ptx__costs *c = R->cost;
    uint64_t    waste = 0, ways = 0;
    for (size_t i = 0; i < c->csector; i++) {
        c->n.read += (unsigned)__builtin_popcount(c->sector[i].read);
        c->n.written += (unsigned)__builtin_popcount(c->sector[i].written);
    }
    for (size_t i = 0; i < R->m->ncode; i++) {
        if (c->waste[i] > waste) waste = c->waste[i], c->n.waste_line = R->m->line[i];
        if (c->ways[i] > ways) ways = c->ways[i], c->n.worst_line = R->m->line[i];
    }
    *out = c->n;
    free(c->stamp);
    free(c->slot);
    free(c->waste);
    free(c->ways);
    free(c->request);
    free(c->sector);
}

static inline uint64_t ptx__random(ptx__run *R)
{
    uint64_t x = R->rng;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return R->rng = x;
}
static inline uint32_t ptx__below(ptx__run *R, uint32_t n) { return (uint32_t)((ptx__random(R) >> 32) * n >> 32); }

static void ptx__whose(ptx__run *R, uint32_t id, char *out, size_t n)
{
    if (id >= R->epoch_first) {
        const ptx__thread *t = &R->thread[R->record[id - R->epoch_first].tid];
        snprintf(out, n, "thread (%u,%u,%u)", t->xyz[0], t->xyz[1], t->xyz[2]);
        return;
    }
    uint64_t b = R->block;
    for (size_t i = 0; i < R->nhistory; i++)
        if (R->history[i].first <= id) b = R->history[i].block;
    uint64_t gx = R->l->grid[0], gy = R->l->grid[1];
    snprintf(out, n, "block (%u,%u,%u)", (unsigned)(b % gx), (unsigned)(b / gx % gy), (unsigned)(b / gx / gy));
}
static __attribute__((format(printf, 4, 5), noinline, cold)) int ptx__report(ptx__run *R, const ptx__thread *T,
                                                                             const ptx__insn *I, const char *fmt, ...)
{
    char    what[600], text[200];
    va_list ap;
    if (!R->err || !R->nerr) return PTX__X_ERROR;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (!I) {
        snprintf(R->err, R->nerr, "kernel %s: %s", R->k->name, what);
        return PTX__X_ERROR;
    }
    uint32_t line = R->m->line[I - R->m->code];
    ptx__source_line(R->m, line, text, sizeof text);
    if (T)
        snprintf(R->err, R->nerr, "kernel %s, PTX line %u `%s`, thread (%u,%u,%u) of block (%u,%u,%u): %s", R->k->name,
                 line, text, T->xyz[0], T->xyz[1], T->xyz[2], R->ctaid[0], R->ctaid[1], R->ctaid[2], what);
    else
        snprintf(R->err, R->nerr, "kernel %s, PTX line %u `%s`, block (%u,%u,%u): %s", R->k->name, line, text,
                 R->ctaid[0], R->ctaid[1], R->ctaid[2], what);
    return PTX__X_ERROR;
}

/* ---- order */
static __attribute__((noinline)) uint32_t ptx__new_segment(ptx__run *R, ptx__thread *T)
{
    uint32_t id = R->next++;
    size_t   at = id - R->epoch_first;
    if (at >= R->crecord) {
        R->crecord = R->crecord ? 2 * R->crecord : 1024;
        R->record = (ptx__record *)ptx__more(R->record, R->crecord * sizeof *R->record);
    }
    R->record[at].tid = T->tid;
    R->record[at].clock = T->clock;
    R->record[at].before = T->last;
    if (R->k->has_fence) {
        size_t i = id - R->launch_first;
        if (i >= R->cpublished) {
            size_t n = R->cpublished ? 2 * R->cpublished : 4096;
            R->published = (uint8_t *)ptx__more(R->published, n);
            memset(R->published + R->cpublished, 0, n - R->cpublished);
            R->cpublished = n;
        }
    }
    T->last = id;
    return T->seg = id;
}
/* What the thread did before its fence is seen by whom it tells so. */
static void ptx__publish(ptx__run *R, uint32_t last, uint32_t epoch, uint8_t as)
{
    for (uint32_t id = last; id >= epoch && id >= R->epoch_first; id = R->record[id - R->epoch_first].before)
        if (R->published[id - R->launch_first] < as) R->published[id - R->launch_first] = as;
    if (as != PTX__TOLD) return;
    for (uint32_t id = R->block_first; R->fenced && id < R->epoch_first; id++)
        if (R->published[id - R->launch_first]) R->published[id - R->launch_first] = PTX__TOLD;
    R->fenced = false;
    if (epoch > R->published_to) {
        memset(R->published + (R->published_to - R->launch_first), PTX__TOLD, epoch - R->published_to);
        R->published_to = epoch;
    }
}
static void ptx__release(ptx__run *R, ptx__thread *T)
{
    T->fenced = true;
    T->fence_last = T->last;
    T->fence_epoch = R->epoch_first;
    T->seg = 0;
}
static bool ptx__is_ordered(const ptx__run *R, const ptx__thread *T, uint32_t id)
{
    if (id < R->launch_first) return true;
    if (id < R->block_first) return T->acquired && R->published && R->published[id - R->launch_first] == PTX__TOLD;
    if (id < R->epoch_first || id == T->seg) return true;
    const ptx__record *r = &R->record[id - R->epoch_first];
    if (r->tid == T->tid) return true;
    if (r->tid / 32 != T->tid / 32) return false;
    const ptx__warp *w = &R->warp[T->tid / 32];
    return w->all > r->clock || (w->seen && w->seen[T->lane][r->tid % 32] > r->clock);
}
static bool ptx__writer_ordered(const ptx__run *R, const ptx__thread *T, uint32_t w)
{
    uint32_t id = w >> 2, how = w & 3;
    if (id < R->launch_first) return true;
    if (how == PTX__BLOCKS) return T->acquired;
    if (how == PTX__WARPS && id >= R->epoch_first) return false;
    return ptx__is_ordered(R, T, id);
}
static bool ptx__reader_ordered(const ptx__run *R, const ptx__thread *T, uint32_t rd)
{
    uint32_t id = rd >> 2, how = rd & 3;
    if (id < R->launch_first) return true;
    if (how == PTX__BLOCKS) return T->acquired;
    if (how != PTX__ONE && id >= R->epoch_first) {
        const ptx__record *r = &R->record[id - R->epoch_first];
        return how == PTX__LANES && r->tid / 32 == T->tid / 32 && T->clock > r->clock;
    }
    return ptx__is_ordered(R, T, id);
}

/* One byte, all cases. NULL, or what is wrong; *who: the segment it clashes with. */
static __attribute__((noinline)) const char *ptx__cell(ptx__run *R, ptx__thread *T, uint64_t *cell, int kind,
                                                       bool shared, bool same, uint32_t *who)
{
    uint32_t w = (uint32_t)*cell, rd = (uint32_t)(*cell >> 32), me = T->seg ? T->seg : ptx__new_segment(R, T);
    uint32_t old = shared ? R->block_first : R->launch_first;
    *who = 0;
    if (w == PTX__GAP) return "beyond the end of a shared variable";
    if (shared && w >> 2 < old) w = 0;
    if (rd >> 2 < old) rd = 0;
    bool plain = (w & 3) == PTX__ONE, ordered = w >> 2 < old || ptx__writer_ordered(R, T, w);
    *who = w >> 2;
    switch (kind) {
    case PTX__READ:
    case PTX__NCREAD:
    case PTX__AREAD:
        if (!w) return "reads memory that was never written";
        if (!ordered && (plain || kind != PTX__AREAD))
            return plain ? "race: reads what was written without a barrier between, by"
                         : "race: reads plainly what is updated atomically by";
        if (kind == PTX__NCREAD && w >> 2 >= old)
            return "reads through the read-only cache (ld.nc) what this launch wrote, by";
        if (kind == PTX__AREAD) return NULL;
        if (rd == 0) {
            rd = me << 2;
        } else {
            uint32_t id = rd >> 2, how = rd & 3;
            if (how == PTX__BLOCKS || id < R->block_first) {
                how = ptx__reader_ordered(R, T, rd) ? PTX__ONE : PTX__BLOCKS;
            } else if (id < R->epoch_first) {
                how = PTX__ONE;
            } else if (how != PTX__WARPS) {
                uint32_t tid = R->record[id - R->epoch_first].tid;
                if (tid / 32 != T->tid / 32) how = PTX__WARPS;
                else if (tid != T->tid) how = ptx__reader_ordered(R, T, rd) ? PTX__ONE : PTX__LANES;
                else if (how == PTX__LANES && T->clock > R->record[id - R->epoch_first].clock) how = PTX__ONE;
            }
            rd = me << 2 | how;
        }
        *cell = (uint64_t)rd << 32 | w;
        return NULL;
    default: break;
    }
    bool atomic = kind != PTX__WRITE;
    if (kind == PTX__RMW && !w) return "updates memory that was never written";
    if (!ordered && (!atomic || plain)) {
        if (!(same && plain && kind == PTX__WRITE))
            return plain ? "race: writes what was written without a barrier between, by"
                         : "race: writes plainly what is updated atomically by";
        R->same_writes++;
    }
    if (rd && !ptx__reader_ordered(R, T, rd)) {
        *who = rd >> 2;
        return rd & 3 ? "race: writes what several threads read without a barrier between"
                      : "race: writes what was read without a barrier between, by";
    }
    uint32_t how = PTX__ONE;
    if (atomic) {
        how = PTX__LANES;
        if (!plain && w >> 2 >= old) {
            if ((w & 3) == PTX__BLOCKS || w >> 2 < R->block_first) how = T->acquired ? PTX__LANES : PTX__BLOCKS;
            else if (w >> 2 >= R->epoch_first &&
                     ((w & 3) == PTX__WARPS || R->record[(w >> 2) - R->epoch_first].tid / 32 != T->tid / 32))
                how = PTX__WARPS;
        }
    }
    *cell = me << 2 | how;
    return NULL;
}
static __attribute__((noinline, cold)) bool ptx__clash(ptx__run *R, ptx__thread *T, const ptx__insn *I, uint64_t addr,
                                                       unsigned i, unsigned n, bool shared, const char *what,
                                                       uint32_t who)
{
    char by[80] = "", where[64];
    if (who && (strstr(what, " by"))) ptx__whose(R, who, by, sizeof by);
    if (shared) snprintf(where, sizeof where, "shared 0x%llx", (unsigned long long)addr);
    else snprintf(where, sizeof where, "0x%llx", (unsigned long long)addr);
    ptx__report(R, T, I, "%u bytes at %s, byte %u: %s%s%s", n, where, i, what, by[0] ? " " : "", by);
    return false;
}
/* What a cell becomes, if that is one of the common cases: 0 it is not, 1 it stays, 2 it becomes *c. */
static inline __attribute__((always_inline)) int ptx__common(const ptx__run *R, const ptx__thread *T, uint32_t me,
                                                             uint64_t *c, int kind, bool shared)
{
    const uint32_t block = R->block_first, epoch = R->epoch_first, old = shared ? block : R->launch_first;
    const uint32_t w = (uint32_t)*c, rd = (uint32_t)(*c >> 32), wid = w >> 2, rid = rd >> 2;
    /* past: before the last barrier, of this block alone */
    bool wpast = wid - block < epoch - block && (w & 3) != PTX__BLOCKS;
    bool wmine = wid == me && (w & 3) < PTX__WARPS;
    bool rpast = rid < old || (rid - block < epoch - block && (rd & 3) != PTX__BLOCKS);
    if (kind == PTX__READ) {
        if (!(wpast || wmine || (!shared && wid < old && wid != 0))) return 0;
        if (rid == me) return 1;
        if (rpast) {
            *c = (uint64_t)me << 34 | w;
            return 2;
        }
        if (rid < epoch || (rd & 3) == PTX__ONE) return 0;
        if ((rd & 3) == PTX__WARPS) return 1;
        if ((rd & 3) == PTX__BLOCKS) return 0;
        const ptx__record *r = &R->record[rid - epoch];
        return r->tid / 32 == T->tid / 32 && r->clock == T->clock;
    }
    if (kind == PTX__WRITE) {
        if (!(wpast || wmine || (wid < old && w != PTX__GAP))) return 0;
        if (!(rpast || (rid == me && (rd & 3) == PTX__ONE))) return 0;
        *c = (uint64_t)me << 2;
        return 2;
    }
    return 0;
}
/* Checks and notes the access to n bytes. val: what a store is about to write over host. Four bytes whose cells are
   alike are dealt with at once. */
static inline __attribute__((always_inline)) bool ptx__touch(ptx__run *R, ptx__thread *T, const ptx__insn *I,
                                                             uint64_t *cell, const char *host, uint64_t addr,
                                                             unsigned n, int kind, bool shared, const void *val)
{
    const uint32_t me = T->seg ? T->seg : ptx__new_segment(R, T);
    for (unsigned i = 0; i < n;) {
        uint64_t c = cell[i];
        bool     alike = n >= 4 && i % 4 == 0 && ((c ^ cell[i + 1]) | (c ^ cell[i + 2]) | (c ^ cell[i + 3])) == 0;
        unsigned k = alike ? 4 : 1;
        int      how = ptx__common(R, T, me, &c, kind, shared);
        if (!PTX__LIKELY(how)) {
            uint32_t    who;
            bool        same = kind == PTX__WRITE && memcmp((const char *)val + i, host + i, k) == 0;
            const char *what = ptx__cell(R, T, &c, kind, shared, same, &who);
            if (what) return ptx__clash(R, T, I, addr, i, n, shared, what, who);
            how = 2;
        }
        for (unsigned j = 0; how == 2 && j < k; j++) cell[i + j] = c;
        i += k;
    }
    return true;
}

/* ---- places */
static __attribute__((noinline)) bool ptx__look(ptx__run *R, ptx__thread *T, const ptx__insn *I, uint64_t addr,
                                                unsigned n, int kind, ptx__seen *s)
{
    ptx_block   b = { NULL, NULL, 0 };
    bool        constant = false;
    const char *does = kind == PTX__WRITE || kind == PTX__AWRITE ? "writes" : kind == PTX__RMW ? "updates" : "reads";
    bool        found = PTX__TAG(addr) == PTX__MODULE
                            ? ptx__module_block(addr, &b, &constant)
                            : R->l->memory && R->l->memory->find && R->l->memory->find(R->l->memory->user, addr, &b);
    if (!found || b.nbytes == 0) {
        ptx__report(R, T, I, "%s %u bytes at 0x%llx, which no allocation holds", does, n, (unsigned long long)addr);
        return false;
    }
    if (b.nbytes < n) {
        ptx__report(R, T, I, "%s %u bytes at 0x%llx, %zu bytes before the end of the allocation", does, n,
                    (unsigned long long)addr, b.nbytes);
        return false;
    }
    s->lo = addr;
    s->len = b.nbytes;
    s->host = b.host;
    s->shadow = (uint64_t *)(void *)b.shadow;
    s->constant = constant;
    return true;
}
static __attribute__((noinline, cold)) char *ptx__misaligned(ptx__run *R, ptx__thread *T, const ptx__insn *I,
                                                             uint64_t addr, unsigned n)
{
    ptx__report(R, T, I, "misaligned: %u bytes at 0x%llx", n, (unsigned long long)addr);
    return NULL;
}
static inline __attribute__((always_inline)) char *ptx__global(ptx__run *R, ptx__thread *T, const ptx__insn *I,
                                                               uint64_t addr, unsigned n, int kind, const void *val)
{
    ptx__seen *s = &R->seen[I->x];
    uint64_t   off = addr - s->lo;
    if (!PTX__LIKELY(off < s->len && s->len - off >= n)) {
        if (!ptx__look(R, T, I, addr, n, kind, s)) return NULL;
        off = 0;
    }
    if (!PTX__LIKELY((addr & (n - 1)) == 0)) return ptx__misaligned(R, T, I, addr, n);
    char *h = s->host + off;
    if (s->constant && kind != PTX__READ && kind != PTX__NCREAD && kind != PTX__AREAD) {
        ptx__report(R, T, I, "writes to a constant at 0x%llx", (unsigned long long)addr);
        return NULL;
    }
    if (s->shadow && !ptx__touch(R, T, I, s->shadow + off, h, addr, n, kind, false, val)) return NULL;
    return h;
}
static inline __attribute__((always_inline)) char *ptx__in_shared(ptx__run *R, ptx__thread *T, const ptx__insn *I,
                                                                  uint64_t addr, unsigned n, int kind, const void *val)
{
    if (!PTX__LIKELY(addr < R->nshared && R->nshared - addr >= n)) {
        ptx__report(R, T, I, "%u bytes at shared 0x%llx of 0x%zx: outside of shared memory", n,
                    (unsigned long long)addr, R->nshared);
        return NULL;
    }
    if (!PTX__LIKELY((addr & (n - 1)) == 0)) return ptx__misaligned(R, T, I, addr, n);
    if (!ptx__touch(R, T, I, R->shared_shadow + addr, R->shared + addr, addr, n, kind, true, val)) return NULL;
    return R->shared + addr;
}
static char *ptx__place(ptx__run *R, ptx__thread *T, const ptx__insn *I, const ptx__access *x, uint64_t addr,
                        unsigned n, int kind, const void *val)
{
    int space = x->space;
    if (space == PTX__SP_SHARED || space == PTX__SP_LOCAL) addr = (uint32_t)addr; /* sums of 32-bit registers wrap */
    if (space == PTX__SP_GENERIC) {
        uint64_t tag = PTX__TAG(addr);
        space = tag == PTX__SHARED  ? PTX__SP_SHARED
                : tag == PTX__LOCAL ? PTX__SP_LOCAL
                : tag == PTX__PARAM ? PTX__SP_PARAM
                                    : PTX__SP_GLOBAL;
        if (space != PTX__SP_GLOBAL) addr -= tag;
        if (space == PTX__SP_PARAM && kind != PTX__READ && kind != PTX__AREAD) {
            ptx__report(R, T, I, "writes to a parameter");
            return NULL;
        }
    }
    switch (space) {
    case PTX__SP_SHARED: {
        /* cases apart, so that each call sees its kind as a constant */
        char *h = kind == PTX__READ    ? ptx__in_shared(R, T, I, addr, n, PTX__READ, val)
                  : kind == PTX__WRITE ? ptx__in_shared(R, T, I, addr, n, PTX__WRITE, val)
                                       : ptx__in_shared(R, T, I, addr, n, kind, val);
        return h;
    }
    case PTX__SP_LOCAL:
    case PTX__SP_FRAME:
    case PTX__SP_PARAM: {
        size_t most = space == PTX__SP_PARAM ? R->k->param_bytes : R->k->deep_bytes;
        if (space == PTX__SP_PARAM && PTX__TAG(addr) == PTX__PARAM) addr -= PTX__PARAM;
        if (addr >= most || most - addr < n) {
            ptx__report(R, T, I, "%u bytes at %s 0x%llx of 0x%zx: outside", n,
                        space == PTX__SP_PARAM ? "parameter" : "local", (unsigned long long)addr, most);
            return NULL;
        }
        if (addr & (n - 1)) return ptx__misaligned(R, T, I, addr, n);
        return (space == PTX__SP_PARAM ? R->params : T->local) + addr;
    }
    default:
        return kind == PTX__READ    ? ptx__global(R, T, I, addr, n, PTX__READ, val)
               : kind == PTX__WRITE ? ptx__global(R, T, I, addr, n, PTX__WRITE, val)
                                    : ptx__global(R, T, I, addr, n, kind, val);
    }
}

/* ---- instructions out of line; true: done */
static bool ptx__load(ptx__run *R, ptx__thread *T, const ptx__insn *I, uint64_t *r)
{
    const ptx__access *x = &R->m->access[I->x];
    uint64_t           addr = r[I->a] + (uint64_t)(int64_t)I->y;
    char              *h = ptx__place(R, T, I, x, addr, (unsigned)x->nbytes * x->n, x->kind, NULL);
    if (!h) return false;
    if (R->cost) ptx__note(R, T, I, addr, false);
    if (x->acquire) {
        T->acquired = true;
        T->seg = 0;
    }
    for (unsigned i = 0; i < x->n; i++) {
        uint64_t v = 0;
        memcpy(&v, h + i * x->nbytes, x->nbytes);
        if (x->sext) v = (uint64_t)ptx__sext(v, x->nbytes) & ptx__mask(x->regbytes);
        r[x->n > 1 ? R->m->list[x->list + i] : I->d] = v;
    }
    return true;
}
static void ptx__tell(ptx__run *R, ptx__thread *T) /* an atomic after a fence */
{
    T->updated = true;
    if (!R->published) return;
    if (T->fenced) ptx__publish(R, T->fence_last, T->fence_epoch, PTX__TOLD);
    else if (R->fenced) ptx__publish(R, 0, R->block_first, PTX__TOLD);
}
static bool ptx__store(ptx__run *R, ptx__thread *T, const ptx__insn *I, uint64_t *r)
{
    const ptx__access *x = &R->m->access[I->x];
    uint64_t           addr = r[I->a] + (uint64_t)(int64_t)I->y;
    char               buf[64];
    for (unsigned i = 0; i < x->n; i++)
        memcpy(buf + i * x->nbytes, &r[x->n > 1 ? R->m->list[x->list + i] : I->b], x->nbytes);
    if (x->release) ptx__release(R, T);
    char *h = ptx__place(R, T, I, x, addr, (unsigned)x->nbytes * x->n, x->kind, buf);
    if (!h) return false;
    if (R->cost) ptx__note(R, T, I, addr, false);
    if (x->kind == PTX__AWRITE) ptx__tell(R, T);
    memcpy(h, buf, (size_t)x->nbytes * x->n);
    return true;
}
static bool ptx__atomic(ptx__run *R, ptx__thread *T, const ptx__insn *I, uint64_t *r)
{
    const ptx__access *x = &R->m->access[I->x];
    uint64_t           addr = r[I->a] + (uint64_t)(int64_t)I->y, b = r[I->b], c = r[I->c], was = 0, now;
    if (x->release) ptx__release(R, T);
    char *h = ptx__place(R, T, I, x, addr, x->nbytes, PTX__RMW, NULL);
    if (!h) return false;
    if (R->cost) ptx__note(R, T, I, addr, false);
    memcpy(&was, h, x->nbytes);
    uint64_t mask = ptx__mask(x->nbytes);
    b &= mask;
    switch (x->op) {
    case PTX__AT_ADD: now = ptx__any_float(x->type) ? ptx__fop(PTX__ADD, x->type, 0, was, b, 0) : was + b; break;
    case PTX__AT_MIN: now = ptx__compare(PTX__LT, x->type, 0, b, was) ? b : was; break;
    case PTX__AT_MAX: now = ptx__compare(PTX__GT, x->type, 0, b, was) ? b : was; break;
    case PTX__AT_AND: now = was & b; break;
    case PTX__AT_OR: now = was | b; break;
    case PTX__AT_XOR: now = was ^ b; break;
    case PTX__AT_EXCH: now = b; break;
    case PTX__AT_CAS: now = was == b ? c : was; break;
    case PTX__AT_INC: now = was >= b ? 0 : was + 1; break;
    default: now = was == 0 || was > b ? b : was - 1; break;
    }
    memcpy(h, &now, x->nbytes);
    r[I->d] = was;
    ptx__tell(R, T);
    if (x->acquire) {
        T->acquired = true;
        T->seg = 0;
    }
    return true;
}
static bool ptx__divide(ptx__run *R, ptx__thread *T, const ptx__insn *I, uint64_t *r)
{
    int      n = (int)(I->x >> 2);
    bool     rem = I->x & 1;
    uint64_t a = r[I->a] & ptx__mask(n), b = r[I->b] & ptx__mask(n), d;
    if (b == 0) return ptx__report(R, T, I, "division of an integer by zero") != PTX__X_ERROR;
    if (I->x & 2) {
        int64_t p = ptx__sext(a, n), q = ptx__sext(b, n);
        if (q == -1) d = rem ? 0 : 0 - (uint64_t)p;
        else d = (uint64_t)(rem ? p % q : p / q);
    } else {
        d = rem ? a % b : a / b;
    }
    r[I->d] = d & ptx__mask(n);
    return true;
}
static void ptx__with_carry(ptx__thread *T, const ptx__insn *I, uint64_t *r)
{
    uint32_t  x = I->x;
    int       n = x & 32 ? 8 : 4;
    uint64_t  a = r[I->a] & ptx__mask(n), b = r[I->b] & ptx__mask(n), in = x & 1 ? T->carry : 0;
    ptx__u128 s;
    if (x & 8) {
        uint64_t c = r[I->c] & ptx__mask(n), low, high;
        if (x & 64) {
            ptx__s128 v = (ptx__s128)ptx__sext(a, n) * ptx__sext(b, n);
            low = (uint64_t)v & ptx__mask(n), high = (uint64_t)(v >> 8 * n) & ptx__mask(n);
        } else {
            ptx__u128 v = (ptx__u128)a * b;
            low = (uint64_t)v & ptx__mask(n), high = (uint64_t)(v >> 8 * n) & ptx__mask(n);
        }
        s = (ptx__u128)(x & 16 ? high : low) + c + in;
    } else if (x & 4) {
        s = (ptx__u128)a - b - in; /* a borrow shows above the result */
    } else {
        s = (ptx__u128)a + b + in;
    }
    r[I->d] = (uint64_t)s & ptx__mask(n);
    if (x & 2) T->carry = (s >> 8 * n & 1) != 0;
}
static bool ptx__copy_now(ptx__run *R, ptx__thread *T, const ptx__pending *q)
{
    char      buf[16] = { 0 };
    ptx__insn read = *q->insn;
    if (q->nread) {
        /* the source may be read in part; the checks want a power of two */
        for (uint32_t i = 0; i < q->nread; i++) {
            char *h = ptx__global(R, T, &read, q->from + i, 1, PTX__READ, NULL);
            if (!h) return false;
            buf[i] = *h;
        }
    }
    char *to = ptx__in_shared(R, T, q->insn, q->to, q->nbytes, PTX__WRITE, buf);
    if (!to) return false;
    memcpy(to, buf, q->nbytes);
    return true;
}
/* The copy is made when it is waited for: as late as the hardware may. */
static bool ptx__async(ptx__run *R, ptx__thread *T, const ptx__insn *I, uint64_t *r)
{
    const ptx__access *x = &R->m->access[I->x];
    if (T->npending == T->cpending) {
        T->cpending = T->cpending ? 2 * T->cpending : 16;
        T->pending = (ptx__pending *)ptx__more(T->pending, T->cpending * sizeof *T->pending);
    }
    ptx__pending *q = &T->pending[T->npending++];
    q->to = r[I->a] + (uint64_t)(int64_t)I->y;
    q->to = PTX__TAG(q->to) == PTX__SHARED ? q->to - PTX__SHARED : (uint32_t)q->to;
    q->from = r[I->b] + (uint64_t)(int64_t)(int32_t)x->list;
    q->nbytes = x->nbytes;
    q->nread = (uint32_t)r[I->c];
    q->group = T->group;
    q->insn = I;
    if (q->nread > q->nbytes) return ptx__report(R, T, I, "cp.async reads more than it copies") != PTX__X_ERROR;
    if ((q->to | q->from) & (q->nbytes - 1)) {
        ptx__misaligned(R, T, I, q->to & (q->nbytes - 1) ? q->to : q->from, q->nbytes);
        return false;
    }
    if (R->cost) {
        if (q->nread) ptx__note(R, T, I, q->from, false);
        ptx__note(R, T, I, q->to, true);
    }
    return true;
}
static bool ptx__async_wait(ptx__run *R, ptx__thread *T, const ptx__insn *I)
{
    if (I->y == -1) {
        T->group++;
        return true;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < T->npending; i++) {
        ptx__pending q = T->pending[i];
        if (I->y >= 0 && (int64_t)q.group >= (int64_t)T->group - I->y) T->pending[kept++] = q;
        else if (!ptx__copy_now(R, T, &q)) return false;
    }
    T->npending = kept;
    return true;
}

static void ptx__enter(ptx__run *R, ptx__thread *T, const ptx_kernel *f, uint64_t *r)
{
    memcpy(r + f->nregs, f->constant, f->nconstant * sizeof *r);
    for (size_t i = 0; i < f->nspecial; i++) {
        uint32_t          id = f->special[i].id;
        uint64_t          v = 0;
        const ptx_launch *l = R->l;
        uint32_t          lane = T->lane, eq = 1u << lane;
        switch (id) {
        case PTX__S_TID:
        case PTX__S_TID + 1:
        case PTX__S_TID + 2: v = T->xyz[id]; break;
        case PTX__S_NTID:
        case PTX__S_NTID + 1:
        case PTX__S_NTID + 2: v = l->block[id - PTX__S_NTID]; break;
        case PTX__S_CTAID:
        case PTX__S_CTAID + 1:
        case PTX__S_CTAID + 2: v = R->ctaid[id - PTX__S_CTAID]; break;
        case PTX__S_NCTAID:
        case PTX__S_NCTAID + 1:
        case PTX__S_NCTAID + 2: v = l->grid[id - PTX__S_NCTAID]; break;
        case PTX__S_LANE: v = lane; break;
        case PTX__S_WARP: v = T->tid / 32; break;
        case PTX__S_NWARP: v = R->nwarps; break;
        case PTX__S_SM: v = R->block & 1; break;
        case PTX__S_NSM: v = 2; break;
        case PTX__S_GRID: v = 1; break;
        case PTX__S_EQ: v = eq; break;
        case PTX__S_LE: v = eq | (eq - 1); break;
        case PTX__S_LT: v = eq - 1; break;
        case PTX__S_GE: v = ~(eq - 1); break;
        case PTX__S_GT: v = ~(eq - 1) & ~eq; break;
        case PTX__S_DYN_BYTES: v = l->shared; break;
        case PTX__S_ALL_BYTES: v = R->k->shared_bytes + l->shared; break;
        case PTX__S_FRAME: v = T->base; break;
        default: v = R->dyn_at; break;
        }
        if (id >= PTX__S_GE && id <= PTX__S_GT) v = (uint32_t)v;
        r[f->special[i].reg] = v;
    }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
/* Runs a thread until it has to wait, ends or has run for long. With R == NULL: *labels are the places of the
   instructions. */
static int ptx__exec(ptx__run *R, ptx__thread *T, const void *const **labels)
{
    static const void *const label[PTX__OPS] = {
#define PTX__LABEL(name, ...) &&L_##name,
#define PTX__LABEL1(name) &&L_##name,
        PTX__SIMPLE(PTX__LABEL) PTX__OTHER(PTX__LABEL1)
    };
    if (!R) {
        *labels = label;
        return 0;
    }
    const ptx__insn *I = T->pc, *S = I, *const code = R->m->code;
    uint64_t *r = T->regs;
    int64_t  *runs = R->m->runs;
    int64_t   budget = R->cost ? 0 : 1000 + (int64_t)(ptx__random(R) & 4095), had = budget; /* 0: one straight run */
#define D r[I->d]
#define A r[I->a]
#define B r[I->b]
#define C r[I->c]
#define PTX__NEXT     \
    do {              \
        I++;          \
        goto * I->go; \
    } while (0)
#define PTX__LEAVE            \
    do {                      \
        runs[S - code]++;     \
        runs[I + 1 - code]--; \
        budget -= I + 1 - S;  \
        R->end = I;           \
    } while (0)
#define PTX__STOP(at, why)                    \
    do {                                      \
        PTX__LEAVE;                           \
        T->pc = (at);                         \
        R->steps += (uint64_t)(had - budget); \
        return (why);                         \
    } while (0)
#define PTX__GO(target)                     \
    do {                                    \
        const ptx__insn *to_ = (target);    \
        PTX__LEAVE;                         \
        I = S = to_;                        \
        if (budget < 0) goto out_of_budget; \
        goto * I->go;                       \
    } while (0)
#define PTX__CHECK(ok)                     \
    do {                                   \
        if (!PTX__LIKELY(ok)) goto failed; \
    } while (0)
    goto * I->go;

#define PTX__CODE(name, ...) \
    L_##name:                \
    {                        \
        __VA_ARGS__;         \
        PTX__NEXT;           \
    }
    PTX__SIMPLE(PTX__CODE)
#define PTX__AT_global(x) (x)
#define PTX__AT_shared(x) ((uint32_t)(x))
#define PTX__LD(where, in, type, n)                                                                    \
    L_ld_##where##_##n:                                                                                \
    {                                                                                                  \
        const char *h = in(R, T, I, PTX__AT_##where(A + (uint64_t)(int64_t)I->y), n, PTX__READ, NULL); \
        type        v;                                                                                 \
        PTX__CHECK(h);                                                                                 \
        memcpy(&v, h, n);                                                                              \
        D = v;                                                                                         \
        PTX__NEXT;                                                                                     \
    }
#define PTX__ST(where, in, type, n)                                                             \
    L_st_##where##_##n:                                                                         \
    {                                                                                           \
        type  v = (type)B;                                                                      \
        char *h = in(R, T, I, PTX__AT_##where(A + (uint64_t)(int64_t)I->y), n, PTX__WRITE, &v); \
        PTX__CHECK(h);                                                                          \
        memcpy(h, &v, n);                                                                       \
        PTX__NEXT;                                                                              \
    }
    PTX__LD(global, ptx__global, uint8_t, 1)
    PTX__LD(global, ptx__global, uint16_t, 2)
    PTX__LD(global, ptx__global, uint32_t, 4)
    PTX__LD(global, ptx__global, uint64_t, 8)
    PTX__LD(shared, ptx__in_shared, uint8_t, 1)
    PTX__LD(shared, ptx__in_shared, uint16_t, 2)
    PTX__LD(shared, ptx__in_shared, uint32_t, 4)
    PTX__LD(shared, ptx__in_shared, uint64_t, 8)
    PTX__ST(global, ptx__global, uint8_t, 1)
    PTX__ST(global, ptx__global, uint16_t, 2)
    PTX__ST(global, ptx__global, uint32_t, 4)
    PTX__ST(global, ptx__global, uint64_t, 8)
    PTX__ST(shared, ptx__in_shared, uint8_t, 1)
    PTX__ST(shared, ptx__in_shared, uint16_t, 2)
    PTX__ST(shared, ptx__in_shared, uint32_t, 4)
    PTX__ST(shared, ptx__in_shared, uint64_t, 8)
L_ld_param : {
    uint64_t v = 0;
    memcpy(&v, R->params + I->y, I->c);
    D = v;
    PTX__NEXT;
}
L_ld:
    PTX__CHECK(ptx__load(R, T, I, r));
    PTX__NEXT;
L_st:
    PTX__CHECK(ptx__store(R, T, I, r));
    PTX__NEXT;
L_atom:
    PTX__CHECK(ptx__atomic(R, T, I, r));
    PTX__NEXT;
L_div:
    PTX__CHECK(ptx__divide(R, T, I, r));
    PTX__NEXT;
L_carry:
    ptx__with_carry(T, I, r);
    PTX__NEXT;
L_async:
    PTX__CHECK(ptx__async(R, T, I, r));
    PTX__NEXT;
L_async_wait:
    PTX__CHECK(ptx__async_wait(R, T, I));
    PTX__NEXT;
L_fence:
    if (T->updated) T->acquired = true;
    ptx__release(R, T);
    PTX__NEXT;
L_nop:
    PTX__NEXT;
L_clock : {
    uint64_t now = (R->steps + (uint64_t)(had - budget) + (uint64_t)(I - S)) * 4;
    D = (I->x ? now >> 32 : now) & ptx__mask(I->y);
    PTX__NEXT;
}
L_skip:
    if ((A != 0) == (I->b != 0)) PTX__NEXT;
    PTX__LEAVE;
    I = S = I->to;
    goto * I->go;
L_bra:
    PTX__GO(I->to);
L_bra_if:
    if (!A) PTX__NEXT;
    PTX__GO(I->to);
L_bra_not:
    if (A) PTX__NEXT;
    PTX__GO(I->to);
L_join: /* the target of a jump: other lanes may wait here */
    if (I != T->pc) {
        I--;
        PTX__STOP(I + 1, PTX__X_YIELD);
    }
    goto * R->m->step_go[I - code];
L_bra_if_step:
    PTX__GO(A ? I->to : I + 1);
L_bra_not_step:
    PTX__GO(A ? I + 1 : I->to);
L_brx : {
    uint32_t i = (uint32_t)A;
    if (i >= (uint32_t)I->y) {
        ptx__report(R, T, I, "branch %u of %d", i, I->y);
        goto failed;
    }
    PTX__GO(code + R->m->list[I->x + i]);
}
L_call : {
    const ptx__calling *c = &R->m->calling[I->x];
    ptx__frame         *fr = &T->frame[T->depth++];
    fr->call = I;
    fr->regs = r;
    fr->base = T->base;
    fr->f = T->f;
    uint32_t to = T->base + (uint32_t)T->f->frame_bytes;
    for (uint32_t i = 0; i < c->nmove; i++) {
        const ptx__move *q = &R->m->move[c->move + i];
        memcpy(T->local + to + q->to, T->local + T->base + q->from, q->nbytes);
    }
    r += T->f->nall;
    T->regs = r;
    T->base = to;
    T->f = c->f;
    ptx__enter(R, T, c->f, r);
    PTX__GO(code + c->f->first);
}
L_ret : {
    const ptx__frame   *fr = &T->frame[--T->depth];
    const ptx__calling *c = &R->m->calling[fr->call->x];
    for (uint32_t i = 0; i < c->nback; i++) {
        const ptx__move *q = &R->m->move[c->back + i];
        memcpy(T->local + fr->base + q->from, T->local + T->base + q->to, q->nbytes);
    }
    r = fr->regs;
    T->regs = r;
    T->base = fr->base;
    T->f = fr->f;
    PTX__GO(fr->call + 1);
}
L_exit:
    PTX__STOP(I, PTX__X_EXIT);
L_bar:
    PTX__STOP(I, PTX__X_BAR);
L_warp:
    PTX__STOP(I, PTX__X_WARP);
L_pause:
    PTX__STOP(I + 1, PTX__X_YIELD);
L_trap:
    ptx__report(R, T, I, "trap");
failed:
    PTX__STOP(I, PTX__X_ERROR);
out_of_budget:
    T->pc = I;
    R->steps += (uint64_t)(had - budget);
    return PTX__X_YIELD;
#undef D
#undef A
#undef B
#undef C
}
#pragma GCC diagnostic    pop
static const void *const *ptx__labels(void)
{
    const void *const *label = NULL;
    ptx__exec(NULL, NULL, &label);
    return label;
}

/* ---- scheduling */
static void ptx__push(ptx__run *R, ptx__thread *T, const ptx__insn *pc)
{
    T->pc = pc;
    T->state = PTX__READY;
    R->warp[T->tid / 32].nready++;
    R->ready[R->nready++] = T->tid;
}
static bool ptx__start(ptx__run *R, ptx__thread *T)
{
    const ptx_kernel *k = R->k;
    size_t            words = k->deep_regs, bytes = k->deep_bytes;
    if (R->nslab == 0) {
        size_t n = words * 8 + ptx__up(bytes, 16) + k->depth * sizeof(ptx__frame) + 64;
        T->slab = (uint64_t *)ptx__more(NULL, n);
        memset(T->slab, 0xa5, n); /* registers and local memory hold what the thread before left */
    } else {
        T->slab = R->slab[--R->nslab];
    }
    T->regs = T->slab;
    char *after = (char *)(T->slab + words);
    T->frame = (ptx__frame *)(void *)after;
    T->local = (char *)(((uintptr_t)(after + k->depth * sizeof(ptx__frame)) + 15) & ~(uintptr_t)15);
    T->f = k;
    ptx__enter(R, T, k, T->regs);
    T->pc = R->m->code + k->first;
    return true;
}

/* ---- rendezvous of a warp */
static void ptx__sync_lanes(ptx__run *R, uint32_t wi, uint32_t lanes)
{
    ptx__warp   *w = &R->warp[wi];
    ptx__thread *t = &R->thread[wi * 32];
    uint32_t     now = ++w->top;
    if ((lanes | w->ended) == w->present) {
        w->all = now;
    } else {
        if (!w->seen) w->seen = ptx__zeroed(32 * sizeof *w->seen);
        uint32_t joint[32];
        for (int u = 0; u < 32; u++) {
            joint[u] = lanes >> u & 1 ? now : 0;
            for (int i = 0; i < 32; i++)
                if (lanes >> i & 1 && w->seen[i][u] > joint[u]) joint[u] = w->seen[i][u];
        }
        for (int i = 0; i < 32; i++)
            if (lanes >> i & 1) memcpy(w->seen[i], joint, sizeof joint);
    }
    for (int i = 0; i < 32; i++)
        if (lanes >> i & 1) t[i].clock = now, t[i].seg = 0;
}
static int ptx__shuffle(ptx__run *R, ptx__thread *t, const ptx__meet *x, const ptx__insn *I, uint32_t lanes)
{
    uint64_t value[32], got[32];
    bool     in[32];
    for (int i = 0; i < 32; i++)
        if (lanes >> i & 1) value[i] = t[i].regs[x->a];
    for (int i = 0; i < 32; i++) {
        if (!(lanes >> i & 1)) continue;
        int b = (int)(t[i].regs[x->b] & 31), c = (int)(t[i].regs[x->c]), seg = c >> 8 & 31, j;
        int most = (i & seg) | (c & 31 & ~seg), least = i & seg;
        switch (x->mode) {
        case PTX__SH_UP: j = i - b, in[i] = j >= most; break;
        case PTX__SH_DOWN: j = i + b, in[i] = j <= most; break;
        case PTX__SH_BFLY: j = i ^ b, in[i] = j <= most; break;
        default: j = least | (b & ~seg), in[i] = j <= most; break;
        }
        if (!in[i]) j = i;
        if (!(lanes >> j & 1))
            return ptx__report(R, &t[i], I, "reads lane %d, which takes no part (those that do: 0x%08x)", j, lanes);
        got[i] = value[j];
    }
    for (int i = 0; i < 32; i++) {
        if (!(lanes >> i & 1)) continue;
        t[i].regs[x->dst] = (uint32_t)got[i];
        if (x->pred != PTX__NOREG) t[i].regs[x->pred] = in[i];
    }
    return 0;
}
static void ptx__match(ptx__thread *t, const ptx__meet *x, uint32_t lanes)
{
    uint32_t equal[32], all = lanes;
    for (int i = 0; i < 32; i++) {
        equal[i] = 0;
        for (int j = 0; j < 32 && lanes >> i & 1; j++)
            if (lanes >> j & 1 && t[i].regs[x->a] == t[j].regs[x->a]) equal[i] |= 1u << j;
        if (lanes >> i & 1 && equal[i] != lanes) all = 0;
    }
    for (int i = 0; i < 32; i++) {
        if (!(lanes >> i & 1)) continue;
        t[i].regs[x->dst] = x->kind == PTX__W_MATCH_ANY ? equal[i] : all;
        if (x->pred != PTX__NOREG) t[i].regs[x->pred] = all != 0;
    }
}
static int ptx__together(ptx__run *R, uint32_t wi, const ptx__insn *I, uint32_t lanes)
{
    const ptx__meet *x = &R->m->meet[I->x];
    ptx__thread     *t = &R->thread[wi * 32];
    uint32_t         votes = 0, sum = 0, first = (uint32_t)__builtin_ctz(lanes);
    switch (x->kind) {
    case PTX__W_SYNC: ptx__sync_lanes(R, wi, lanes); break;
    case PTX__W_SHFL: return ptx__shuffle(R, t, x, I, lanes);
    case PTX__W_ALL:
    case PTX__W_ANY:
    case PTX__W_UNI:
    case PTX__W_BALLOT:
        for (int i = 0; i < 32; i++)
            if (lanes >> i & 1 && t[i].regs[x->a]) votes |= 1u << i;
        sum = x->kind == PTX__W_ALL   ? votes == lanes
              : x->kind == PTX__W_ANY ? votes != 0
              : x->kind == PTX__W_UNI ? votes == lanes || votes == 0
                                      : votes;
        break;
    case PTX__W_MATCH_ANY:
    case PTX__W_MATCH_ALL: ptx__match(t, x, lanes); return 0;
    case PTX__W_REDUX:
        for (uint32_t i = first; i < 32; i++) {
            if (!(lanes >> i & 1)) continue;
            uint32_t v = (uint32_t)t[i].regs[x->a];
            if (i == first) {
                sum = v;
                continue;
            }
            switch (x->mode) {
            case 0: sum += v; break;
            case 1: sum = ptx__compare(PTX__LT, x->type, 0, v, sum) ? v : sum; break;
            case 2: sum = ptx__compare(PTX__GT, x->type, 0, v, sum) ? v : sum; break;
            case 3: sum &= v; break;
            case 4: sum |= v; break;
            default: sum ^= v; break;
            }
        }
        break;
    case PTX__W_ACTIVE: sum = lanes; break;
    default: sum = first; break; /* elect */
    }
    for (uint32_t i = 0; i < 32; i++) {
        if (!(lanes >> i & 1)) continue;
        if (x->dst != PTX__NOREG) t[i].regs[x->dst] = sum;
        if (x->pred != PTX__NOREG) t[i].regs[x->pred] = i == first;
    }
    return 0;
}
/* Lanes of a group go on, in random order. */
static void ptx__let_go(ptx__run *R, uint32_t wi, const ptx__insn *I, uint32_t lanes)
{
    uint32_t mix = ptx__below(R, 32);
    for (uint32_t i = 0; i < 32; i++)
        if (lanes >> (i ^ mix) & 1) ptx__push(R, &R->thread[wi * 32 + (i ^ mix)], I + 1);
}
static int ptx__groups(ptx__run *R, uint32_t wi) /* those that are complete go on */
{
    ptx__warp *w = &R->warp[wi];
    for (int i = 0; i < w->ngroup;) {
        ptx__group g = w->group[i];
        bool       active = R->m->meet[g.insn->x].kind == PTX__W_ACTIVE;
        if (active ? w->nready > 0 : (g.mask & w->present & ~(g.arrived | w->ended)) != 0) {
            i++;
            continue;
        }
        w->group[i] = w->group[--w->ngroup];
        uint32_t lanes = g.arrived;
        if (active && !R->cost && ptx__below(R, 4) == 0) { /* hardware may find any of them together */
            uint32_t some = lanes & (uint32_t)ptx__random(R);
            if (some && some != lanes) {
                if (ptx__together(R, wi, g.insn, some)) return -1;
                ptx__let_go(R, wi, g.insn, some);
                lanes &= ~some;
            }
        }
        if (ptx__together(R, wi, g.insn, lanes)) return -1;
        ptx__let_go(R, wi, g.insn, lanes);
    }
    return 0;
}
static int ptx__arrive(ptx__run *R, ptx__thread *T)
{
    const ptx__insn *I = T->pc;
    const ptx__meet *x = &R->m->meet[I->x];
    ptx__warp       *w = &R->warp[T->tid / 32];
    uint32_t         mask = x->mask == PTX__NOREG ? 0 : (uint32_t)T->regs[x->mask];
    T->state = PTX__AT_WARP;
    if (x->mask != PTX__NOREG && !(mask >> T->lane & 1)) {
        ptx__report(R, T, I, "the mask 0x%08x does not name lane %u, which executes this", mask, T->lane);
        return -1;
    }
    int i = 0;
    while (i < w->ngroup && (w->group[i].insn != I || w->group[i].mask != mask)) i++;
    if (i == w->ngroup) {
        w->ngroup++;
        w->group[i].insn = I;
        w->group[i].mask = mask;
        w->group[i].arrived = 0;
    }
    w->group[i].arrived |= 1u << T->lane;
    return 0;
}

/* ---- the barrier of a block */
static int ptx__barrier(ptx__run *R)
{
    const ptx__insn *I = R->bar;
    const ptx__meet *x = &R->m->meet[I->x];
    if (R->nbar < R->nthreads)
        return ptx__report(R, NULL, I, "the barrier is reached by %u of %u threads; the others have ended", R->nbar,
                           R->nthreads);
    uint32_t yes = 0;
    bool     acquired = false;
    for (uint32_t i = 0; i < R->nthreads; i++) {
        ptx__thread *t = &R->thread[i];
        if (x->kind && t->regs[x->pred]) yes++;
        acquired |= t->acquired;
        /* what a thread fenced before a barrier, another of its block may tell after it */
        if (t->fenced && t->fence_epoch == R->epoch_first && R->published) {
            ptx__publish(R, t->fence_last, t->fence_epoch, PTX__FENCED);
            R->fenced = true;
        }
    }
    uint32_t mix = ptx__below(R, R->nwarps);
    for (uint32_t k = 0; k < R->nwarps; k++) {
        uint32_t wi = (k + mix) % R->nwarps, low = ptx__below(R, 32);
        for (uint32_t j = 0; j < 32; j++) {
            uint32_t tid = wi * 32 + (j ^ low);
            if (tid >= R->nthreads) continue;
            ptx__thread *t = &R->thread[tid];
            t->seg = 0;
            t->last = 0;
            t->acquired = acquired;
            if (x->kind) t->regs[x->dst] = x->kind == 1 ? yes : x->kind == 2 ? yes == R->nthreads : yes > 0;
            ptx__push(R, t, I + 1);
        }
    }
    R->epoch_first = R->next;
    R->nbar = 0;
    R->bar = NULL;
    return 0;
}
static int ptx__at_barrier(ptx__run *R, ptx__thread *T)
{
    const ptx__insn *I = T->pc;
    const ptx__meet *x = &R->m->meet[I->x];
    T->state = PTX__AT_BAR;
    if (x->b != PTX__NOREG && T->regs[x->b] != R->nthreads)
        return ptx__report(R, T, I, "barriers of a part of the block (%u of %u threads) are not modelled",
                           (unsigned)T->regs[x->b], R->nthreads);
    if (T->regs[x->a] > 15) return ptx__report(R, T, I, "barrier %u of 16", (unsigned)T->regs[x->a]);
    if (R->bar && R->bar != I)
        return ptx__report(R, T, I, "divergent barrier: %u of %u threads wait at the one in line %u", R->nbar,
                           R->nthreads, R->m->line[R->bar - R->m->code]);
    R->bar = I;
    R->nbar++;
    return 0;
}
static int ptx__stuck(ptx__run *R)
{
    for (uint32_t wi = 0; wi < R->nwarps; wi++) {
        ptx__warp *w = &R->warp[wi];
        if (!w->ngroup) continue;
        ptx__group   g = w->group[0];
        uint32_t     missing = g.mask & w->present & ~(g.arrived | w->ended);
        uint32_t     lane = missing ? (uint32_t)__builtin_ctz(missing) : 0;
        ptx__thread *t = &R->thread[wi * 32 + lane], *first = &R->thread[wi * 32 + (uint32_t)__builtin_ctz(g.arrived)];
        return ptx__report(
            R, first, g.insn,
            "waits forever: of the lanes 0x%08x of the mask 0x%08x %d arrived, %d did not; lane %u waits in line %u",
            g.arrived | missing, g.mask, __builtin_popcount(g.arrived), __builtin_popcount(missing), lane,
            R->m->line[t->pc - R->m->code]);
    }
    return ptx__report(R, NULL, R->bar, "the barrier is reached by %u of %u threads", R->nbar, R->nthreads);
}

/* A thread has run until it had to wait or end. */
static int ptx__after(ptx__run *R, ptx__thread *T, int why)
{
    if (R->steps > R->max_steps)
        return ptx__report(R, T, T->pc, "the launch has not ended after %llu instructions",
                           (unsigned long long)R->max_steps);
    if (R->next >= PTX__IDS)
        return ptx__report(R, NULL, NULL, "too many threads and barriers in one launch to keep apart");
    switch (why) {
    case PTX__X_YIELD: ptx__push(R, T, T->pc); return 0;
    case PTX__X_BAR: return ptx__at_barrier(R, T);
    case PTX__X_WARP: return ptx__arrive(R, T);
    case PTX__X_EXIT:
        T->state = PTX__ENDED;
        R->warp[T->tid / 32].ended |= 1u << T->lane;
        R->live--;
        R->slab[R->nslab++] = T->slab;
        T->slab = NULL;
        if (T->npending)
            return ptx__report(R, T, T->pc, "ends with %u cp.async that it never waited for", T->npending);
        return 0;
    default: return -1;
    }
}
/* One straight run of the lanes of a warp that go on together (ptx_counts). */
static int ptx__counted_step(ptx__run *R, uint32_t wi)
{
    ptx__warp       *w = &R->warp[wi];
    const ptx__insn *pc = NULL, *end = NULL;
    uint32_t         lanes = 0, depth = 0;
    for (uint32_t i = 0; i < 32; i++) {
        ptx__thread *t = &R->thread[wi * 32 + i];
        if (!(w->present >> i & 1) || t->state != PTX__READY) continue;
        if (!t->slab) ptx__start(R, t);
        if (!pc || t->depth > depth || (t->depth == depth && t->pc < pc)) {
            pc = t->pc;
            depth = t->depth;
            lanes = 0;
        }
        if (t->pc == pc && t->depth == depth) lanes |= 1u << i;
    }
    for (uint32_t i = 0; i < 32; i++) {
        if (!(lanes >> i & 1)) continue;
        ptx__thread *t = &R->thread[wi * 32 + i];
        int          why = ptx__exec(R, t, NULL);
        R->nready--;
        w->nready--;
        if (!end || R->end > end) end = R->end;
        if (ptx__after(R, t, why)) return -1;
    }
    R->cost->n.issued += R->m->before[end - R->m->code + 1] - R->m->before[pc - R->m->code];
    ptx__cost_step(R);
    if (w->ngroup && ptx__groups(R, wi)) return -1;
    return R->nbar && R->nbar == R->live ? ptx__barrier(R) : 0;
}
static int ptx__counted_block(ptx__run *R)
{
    while (R->live) {
        if (R->nready == 0) return ptx__stuck(R);
        for (uint32_t wi = 0; wi < R->nwarps; wi++)
            for (int i = 0; i < 256 && R->warp[wi].nready; i++) /* others in between: a warp may wait for memory */
                if (ptx__counted_step(R, wi)) return -1;
    }
    return 0;
}
static int ptx__one_block(ptx__run *R)
{
    const ptx_launch *l = R->l;
    R->block_first = R->epoch_first = R->next;
    R->published_to = R->next;
    R->fenced = false;
    if (R->nhistory == R->chistory) {
        R->chistory = R->chistory ? 2 * R->chistory : 64;
        R->history = ptx__more(R->history, R->chistory * sizeof *R->history);
    }
    R->history[R->nhistory].first = R->next;
    R->history[R->nhistory++].block = R->block;
    R->live = R->nthreads;
    R->nready = R->nbar = 0;
    R->bar = NULL;
    for (uint32_t i = 0; i < R->nwarps; i++) {
        ptx__warp *w = &R->warp[i];
        uint32_t   n = R->nthreads - i * 32;
        w->present = n >= 32 ? 0xffffffffu : (1u << n) - 1;
        w->ended = 0;
        w->all = w->top = 0;
        w->nready = w->ngroup = 0;
        if (w->seen) memset(w->seen, 0, 32 * sizeof *w->seen);
    }
    uint32_t turn = ptx__below(R, R->nwarps);
    for (uint32_t k = 0; k < R->nwarps; k++) {
        uint32_t wi = (k + turn) % R->nwarps, mix = ptx__below(R, 32);
        for (uint32_t j = 0; j < 32; j++) {
            uint32_t tid = wi * 32 + (j ^ mix);
            if (tid >= R->nthreads) continue;
            ptx__thread  *t = &R->thread[tid];
            ptx__pending *pending = t->pending;
            uint32_t      cpending = t->cpending;
            memset(t, 0, sizeof *t);
            t->pending = pending;
            t->cpending = cpending;
            t->tid = tid;
            t->lane = (uint8_t)(tid % 32);
            t->xyz[0] = tid % l->block[0];
            t->xyz[1] = tid / l->block[0] % l->block[1];
            t->xyz[2] = tid / l->block[0] / l->block[1];
            ptx__push(R, t, NULL);
        }
    }
    if (R->cost) return ptx__counted_block(R);
    while (R->live) {
        if (R->nready == 0) return ptx__stuck(R);
        uint32_t at = R->nready - 1, pick = ptx__below(R, 16) ? at : ptx__below(R, R->nready), tid = R->ready[pick];
        R->ready[pick] = R->ready[at];
        R->nready--;
        ptx__thread *T = &R->thread[tid];
        ptx__warp   *w = &R->warp[tid / 32];
        if (!T->slab) ptx__start(R, T);
        int why = ptx__exec(R, T, NULL);
        w->nready--;
        if (ptx__after(R, T, why)) return -1;
        if (why == PTX__X_YIELD) {
            uint32_t swap = ptx__below(R, R->nready);
            R->ready[R->nready - 1] = R->ready[swap];
            R->ready[swap] = tid;
        }
        if (w->ngroup && ptx__groups(R, tid / 32)) return -1;
        if (R->nbar && R->nbar == R->live && ptx__barrier(R)) return -1;
    }
    return 0;
}

static uint64_t ptx__gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}
static int ptx__check_launch(ptx__run *R)
{
    const ptx_launch *l = R->l;
    const ptx_kernel *k = R->k;
    uint64_t          threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    for (int i = 0; i < 3; i++)
        if (l->grid[i] == 0 || l->block[i] == 0) return ptx__report(R, NULL, NULL, "an empty grid or block");
    if (threads > 1024 || l->block[0] > 1024 || l->block[1] > 1024 || l->block[2] > 64)
        return ptx__report(R, NULL, NULL, "a block of %ux%ux%u threads", l->block[0], l->block[1], l->block[2]);
    if (l->grid[0] > 0x7fffffffu || l->grid[1] > 65535 || l->grid[2] > 65535)
        return ptx__report(R, NULL, NULL, "a grid of %ux%ux%u blocks", l->grid[0], l->grid[1], l->grid[2]);
    uint64_t most = (uint64_t)k->maxntid[0] * k->maxntid[1] * k->maxntid[2];
    if (most && threads > most)
        return ptx__report(R, NULL, NULL, "%u threads in a block, its launch bounds say at most %u", (unsigned)threads,
                           (unsigned)most);
    for (int i = 0; i < 3; i++)
        if (k->reqntid[0] && k->reqntid[i] != l->block[i])
            return ptx__report(R, NULL, NULL, "another block than the kernel requires");
    if (k->shared_bytes + l->shared > 227 * 1024)
        return ptx__report(R, NULL, NULL, "%zu bytes of shared memory", k->shared_bytes + l->shared);
    if (k->nformal && !l->params) return ptx__report(R, NULL, NULL, "no parameters");
    return 0;
}

static int ptx__run_it(const ptx_kernel *k, const ptx_launch *l, ptx_counts *out, char *err, size_t nerr)
{
    static char     *shared;
    static uint64_t *shadow;
    static size_t    nshared;
    ptx__run         run, *R = &run;
    ptx__costs       costs;
    uint64_t         before = 0;
    memset(R, 0, sizeof run);
    R->k = k;
    R->m = k->module;
    R->l = l;
    R->err = err;
    R->nerr = nerr;
    if (err && nerr) err[0] = 0;
    if (ptx__check_launch(R)) return -1;
    pthread_mutex_lock(&ptx__all.lock);
    R->rng = l->seed * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0xd1b54a32d192ed03);
    if (!R->rng) R->rng = 1;
    for (int i = 0; i < 8; i++) ptx__random(R);
    R->max_steps = l->max_steps > 0 ? (uint64_t)l->max_steps : UINT64_C(20000000000);
    R->nthreads = l->block[0] * l->block[1] * l->block[2];
    R->nwarps = (R->nthreads + 31) / 32;
    R->params = (char *)ptx__zeroed(k->param_bytes + 16);
    for (size_t i = 0; i < k->nformal; i++) memcpy(R->params + k->formal[i].offset, l->params[i], k->formal[i].nbytes);
    R->dyn_at = ptx__up(k->shared_alloc, k->dyn_align);
    R->nshared = R->dyn_at + l->shared;
    if (ptx__all.next_id >
        PTX__IDS - (1 << 28)) { /* start again: what shadows hold becomes "written", or stays fresh */
        if (!l->memory || !l->memory->each) {
            ptx__report(R, NULL, NULL, "the numbers of segments are used up, and ptx_memory.each is not given");
            free(R->params);
            pthread_mutex_unlock(&ptx__all.lock);
            return -1;
        }
        l->memory->each(l->memory->user, ptx__forget);
        for (ptx_module *m = ptx__all.modules; m; m = m->next)
            for (size_t i = 0; i < m->nvar; i++)
                if (m->var[i]->shadow) ptx__forget((uint8_t *)m->var[i]->shadow, m->var[i]->nbytes);
        memset(shadow, 0, nshared * sizeof *shadow);
        ptx__all.next_id = 2;
    }
    if (R->nshared > nshared) {
        shared = (char *)ptx__more(shared, R->nshared + 16);
        shadow = (uint64_t *)ptx__more(shadow, R->nshared * sizeof *shadow);
        memset(shadow, 0, R->nshared * sizeof *shadow);
        nshared = R->nshared;
    }
    R->shared = shared;
    R->shared_shadow = shadow;
    for (size_t i = 0; i < k->ngap; i++)
        for (size_t j = k->gap[i][0]; j < k->gap[i][1]; j++) shadow[j] = PTX__GAP;
    for (size_t j = k->shared_alloc; j < R->dyn_at; j++) shadow[j] = PTX__GAP;
    R->seen = (ptx__seen *)ptx__zeroed(R->m->naccess * sizeof *R->seen);
    R->thread = (ptx__thread *)ptx__zeroed(R->nwarps * 32 * sizeof *R->thread);
    R->warp = (ptx__warp *)ptx__zeroed(R->nwarps * sizeof *R->warp);
    R->ready = (uint32_t *)ptx__more(NULL, R->nthreads * sizeof *R->ready);
    ptx_module *code = NULL;
    for (ptx_module *m = ptx__all.modules; m; m = m->next)
        if (m == k->module) code = m;
    if (code) ptx__retarget(code, out != NULL);
    if (out) {
        ptx__tally(code);
        ptx__costs_open(R, &costs);
        before = ptx__all.count.instructions;
    }
    R->slab = (uint64_t **)ptx__more(NULL, R->nthreads * sizeof *R->slab);
    R->launch_first = R->next = ptx__all.next_id;
    uint64_t nblocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    uint64_t step = ptx__random(R) % nblocks + 1, at = ptx__random(R) % nblocks;
    while (ptx__gcd(step, nblocks) != 1) step++;
    int bad = 0;
    for (uint64_t i = 0; i < nblocks && !bad; i++) {
        R->block = at;
        R->ctaid[0] = (uint32_t)(at % l->grid[0]);
        R->ctaid[1] = (uint32_t)(at / l->grid[0] % l->grid[1]);
        R->ctaid[2] = (uint32_t)(at / l->grid[0] / l->grid[1]);
        bad = ptx__one_block(R);
        at = (at + step) % nblocks;
        ptx__all.count.blocks++;
    }
    ptx__all.count.launches++;
    ptx__all.count.threads += nblocks * R->nthreads;
    ptx__all.count.same_writes += R->same_writes;
    ptx__all.next_id = R->next;
    if (out) {
        ptx__tally(code);
        costs.n.instructions = ptx__all.count.instructions - before;
        ptx__costs_close(R, out);
    }
    for (size_t i = 0; i < k->ngap; i++)
        memset(&shadow[k->gap[i][0]], 0, (k->gap[i][1] - k->gap[i][0]) * sizeof *shadow);
    if (R->dyn_at > k->shared_alloc)
        memset(&shadow[k->shared_alloc], 0, (R->dyn_at - k->shared_alloc) * sizeof *shadow);
    pthread_mutex_unlock(&ptx__all.lock);
    for (uint32_t i = 0; i < R->nthreads; i++) {
        free(R->thread[i].slab);
        free(R->thread[i].pending);
    }
    for (uint32_t i = 0; i < R->nwarps; i++) free(R->warp[i].seen);
    for (size_t i = 0; i < R->nslab; i++) free(R->slab[i]);
    free(R->slab);
    free(R->ready);
    free(R->warp);
    free(R->thread);
    free(R->seen);
    free(R->history);
    free(R->published);
    free(R->record);
    free(R->params);
    return bad ? -1 : 0;
}
int ptx_run(const ptx_kernel *k, const ptx_launch *l, char *err, size_t nerr) { return ptx__run_it(k, l, NULL, err, nerr); }
int ptx_run_counted(const ptx_kernel *k, const ptx_launch *l, ptx_counts *out, char *err, size_t nerr)
{
    memset(out, 0, sizeof *out);
    return ptx__run_it(k, l, out, err, nerr);
}

#endif /* PTX_IMPLEMENTATION */
