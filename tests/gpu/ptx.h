/* ptx.h - an interpreter of PTX that checks what kernels do: for tests

   Loads the PTX text that nvcc made, decodes it once and executes kernels on the CPU, thread by thread, in seeded random
   order. Reported with kernel, PTX line, thread and address: accesses outside of an allocation or misaligned, reads of
   what was never written, data races within a launch (shared and global memory), barriers that not all threads of the
   block reach, shuffles and votes whose mask is not met, launches that never end. What is not modelled is an error
   of ptx_load: unknown opcodes, modifiers and syntax never pass silently.

       #define PTX_IMPLEMENTATION
       #include "ptx.h"      // in one C file; link with -lm -lpthread

   The rules of order: two accesses of different threads to a byte, one of them a write, must have a barrier of the
   block between them, or a bar.warp.sync whose mask holds both; shuffles and votes do not order memory. Threads of
   different blocks are ordered by fence - atomic - atomic - fence only. Atomics (and volatile, relaxed, acquire and
   release accesses) may meet atomics. Several plain writes of the same value to a byte are let pass and counted.
   Blocks run one after another; launches of one process too (a lock).
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
void ptx_shadow_copy(uint8_t *dst, const uint8_t *src, size_t nbytes);
size_t ptx_shadow_unwritten(const uint8_t *shadow, size_t nbytes); /* the first byte never written; nbytes: none */

/* ---- modules */
ptx_module *ptx_load(const char *text, size_t n, char *err, size_t nerr); /* NULL and a message: line, what, where */
void        ptx_free(ptx_module *m);
const ptx_kernel *ptx_find(const ptx_module *m, const char *name); /* NULL: no such entry */
const char       *ptx_name(const ptx_kernel *k);
const ptx_kernel *ptx_at(const ptx_module *m, size_t i);           /* the i-th entry; NULL: there are fewer */
/* the number of parameters; offset and size of the first 'most' of them; both arrays may be NULL */
size_t ptx_params(const ptx_kernel *k, size_t *offset, size_t *nbytes, int most);
size_t ptx_shared(const ptx_kernel *k);      /* bytes of static shared memory */
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
