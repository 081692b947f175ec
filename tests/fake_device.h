/* fake_device.h: a second backend that proves the backend table. It keeps every promise a GPU would make and no more:

   - memory: addresses come from a range mapped PROT_NONE, so the host faults when it touches one. The bytes live in a
     second mapping at a fixed distance, which only this file knows. Fresh and freed memory is filled with 0xff: NaN in
     every float dtype, -1 in the signed integers.
   - time: kernels, uploads and orderings are queued by value in their stream. Nothing runs until wait or download (of
     that stream, or of one ordered behind it). A free takes effect when everything queued before it, in any stream,
     has run.
   - errors: what a kernel returns while it runs late is kept, and given back by the next wait or download.

   When its turn comes a call runs on the CPU's kernel of the same name with the addresses translated, so results are
   equal to the CPU's bit for bit. Every view is checked against the live blocks, when queued and when run: reading a
   block that was freed, or past its end, is an error that names the kernel. So is reading the memory of another device.

   fake_devices_new makes several devices of one backend, with copies from device to device: such a copy is queued behind
   what is queued on the two streams then, and later work of both waits for it. The other devices know nothing of each
   other: dt.h copies between them through the host.

   One device, or group of devices, is used by one thread at a time. */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include "dt.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FAKE_RANGE ((size_t)1 << 34) /* bytes of address space, twice; only touched pages cost memory */
#define FAKE_MAX_STREAMS 16

enum fake_kind { FAKE_KERNEL, FAKE_UPLOAD, FAKE_ORDER, FAKE_COPY };

typedef struct fake_item {
    struct fake_item *next;
    enum fake_kind    kind;
    dt_call           call;   /* kernel */
    void             *dst;    /* upload, copy: where to */
    size_t            nbytes; /* upload: bytes that follow this struct; copy: bytes at src of the device 'of' */
    const void       *src;
    struct fake_device *of;   /* order, copy: the device to wait for or to read, or NULL: this one; its ... */
    int               before; /* ... order: stream to wait for ... */
    int64_t           count;  /* ... until it has run this many items */
} fake_item;

typedef struct fake_stream {
    int        used;
    fake_item *head, *tail;
    int64_t    queued, done;
} fake_stream;

typedef struct fake_block { /* sorted by offset; the range between blocks is free */
    struct fake_block *next;
    size_t             offset, nbytes;
    int                freed;                   /* free was called ... */
    int64_t            until[FAKE_MAX_STREAMS]; /* ... and takes effect when the streams have run this much */
} fake_block;

typedef struct fake_device {
    dt_backend  table;
    dt_device  *dev;
    char       *fake, *real;
    fake_block *blocks;
    fake_stream stream[FAKE_MAX_STREAMS]; /* [0] is the NULL stream */
    int         error;                    /* of a late kernel, not reported yet */
    int64_t     full;                     /* > 0: the n-th alloc from now fails, and all later ones (then it is -1) */
    int64_t     fail_alloc;               /* > 0: the n-th alloc from now fails */
    int64_t     fail_kernel;              /* > 0: the n-th kernel from now fails when it runs */
    int64_t     late;                     /* items that ran after the call that queued them had returned: all of them */
    int64_t     kernels[DT_K_COUNT];      /* calls seen, by kernel and by function */
    int64_t     unary[DT_U_COUNT], unary_bwd[DT_U_COUNT], binary[DT_B_COUNT], reduce[DT_R_COUNT];
    int64_t     uploads, downloads, allocs, frees;
    int64_t     copies;                   /* from another device to this one */
    int         unordered;                /* bits: a copy does not wait for its source (1), the source not for the copy (2) */
} fake_device;

static fake_device *fake_of(dt_device *dev) { return (fake_device *)dt_device_impl(dev); }

static size_t fake_round(size_t nbytes) { return (nbytes + 63) / 64 * 64 + (nbytes == 0 ? 64 : 0); }

/* ---------------------------------------------------------------------------------------------- memory */
static void *fake_real(fake_device *f, const void *p) { return f->real + ((const char *)p - f->fake); }

/* The live block that holds [p, p + nbytes), or NULL. */
static fake_block *fake_find(fake_device *f, const void *p, size_t nbytes)
{
    const char *c = (const char *)p;
    if (c < f->fake || c >= f->fake + FAKE_RANGE) return NULL;
    size_t at = (size_t)(c - f->fake);
    for (fake_block *b = f->blocks; b; b = b->next)
        if (at >= b->offset && at - b->offset <= b->nbytes && nbytes <= b->nbytes - (at - b->offset)) return b;
    return NULL;
}

static int fake_ripe(fake_device *f, const fake_block *b)
{
    if (!b->freed) return 0;
    for (int s = 0; s < FAKE_MAX_STREAMS; s++)
        if (f->stream[s].used && f->stream[s].done < b->until[s]) return 0;
    return 1;
}

/* Frees whose turn has come: poison, then hand the range back. */
static void fake_collect(fake_device *f)
{
    for (fake_block **at = &f->blocks; *at;) {
        fake_block *b = *at;
        if (!fake_ripe(f, b)) {
            at = &b->next;
            continue;
        }
        memset(f->real + b->offset, 0xff, b->nbytes);
        *at = b->next;
        free(b);
    }
}

static void *fake_alloc(dt_device *dev, size_t nbytes)
{
    fake_device *f = fake_of(dev);
    if (f->fail_alloc > 0 && --f->fail_alloc == 0) return NULL;
    if (f->full > 0 && --f->full == 0) f->full = -1;
    if (f->full < 0) return NULL;
    size_t       need = fake_round(nbytes), end = 0;
    fake_block **at = &f->blocks;
    for (; *at; at = &(*at)->next) {
        if ((*at)->offset - end >= need) break;
        end = (*at)->offset + (*at)->nbytes;
    }
    if (need > FAKE_RANGE || end > FAKE_RANGE - need) return NULL;
    fake_block *b = (fake_block *)calloc(1, sizeof *b);
    if (!b) return NULL;
    b->offset = end;
    b->nbytes = need;
    b->next = *at;
    *at = b;
    f->allocs++;
    memset(f->real + end, 0xff, need);
    return f->fake + end;
}

static void fake_free(dt_device *dev, void *ptr, size_t nbytes)
{
    fake_device *f = fake_of(dev);
    if (!ptr) return;
    for (fake_block *b = f->blocks; b; b = b->next)
        if (f->fake + b->offset == (char *)ptr && !b->freed && b->nbytes == fake_round(nbytes)) {
            b->freed = 1;
            f->frees++;
            for (int s = 0; s < FAKE_MAX_STREAMS; s++) b->until[s] = f->stream[s].queued;
            fake_collect(f);
            return;
        }
    fprintf(stderr, "fake device: free of %p (%zu bytes), which is no live block of that size\n", ptr, nbytes);
    abort(); /* heap corruption in the code under test: stop where it happens */
}

/* ---------------------------------------------------------------------------------------------- views */
/* The bytes from element 0 to the last one. Strides are never negative. */
static size_t fake_extent(const dt_view *v)
{
    int64_t last = 0;
    for (int i = 0; i < v->ndim; i++) {
        if (v->shape[i] == 0) return 0;
        last += (v->shape[i] - 1) * v->stride[i];
    }
    return (size_t)(last + 1) * dt_dtype_nbytes((dt_dtype)v->dtype);
}

static int fake_check_view(fake_device *f, const dt_call *c, const dt_view *v, int late, const char *what, int i)
{
    if (v->ndim < 0) return 0;
    size_t      nbytes = fake_extent(v);
    fake_block *b = nbytes ? fake_find(f, v->data, nbytes) : NULL;
    if (nbytes == 0 || (b && (late || !b->freed))) return 0;
    return dt_fail(DT_ERR_DEVICE, "fake: %s: %s %d (%zu bytes at %p) is not inside a live block%s",
                   dt_kernel_name(c->op), what, i, nbytes, v->data, late ? " when it runs" : "");
}

static int fake_check(fake_device *f, const dt_call *c, int late)
{
    int bad = 0;
    if (c->op < 0 || c->op >= DT_K_COUNT || c->nout < 1 || c->nout > DT_MAX_OUT || c->nin < 0 || c->nin > DT_MAX_IN)
        return dt_fail(DT_ERR_DEVICE, "fake: malformed call: op %d, %d outputs, %d inputs", c->op, c->nout, c->nin);
    for (int i = 0; i < c->nout && !bad; i++) bad = fake_check_view(f, c, &c->out[i], late, "output", i);
    for (int i = 0; i < c->nin && !bad; i++) bad = fake_check_view(f, c, &c->in[i], late, "input", i);
    return bad;
}

static void fake_translate(fake_device *f, dt_view *v)
{
    if (v->ndim >= 0 && fake_extent(v) > 0) v->data = fake_real(f, v->data);
}

/* ---------------------------------------------------------------------------------------------- queues */
static int fake_index(fake_device *f, void *stream) { return stream ? (int)((fake_stream *)stream - f->stream) : 0; }

static int fake_push(fake_device *f, int s, fake_item *it)
{
    fake_stream *q = &f->stream[s];
    it->next = NULL;
    if (q->tail) q->tail->next = it;
    else q->head = it;
    q->tail = it;
    q->queued++;
    return 0;
}

static int fake_run_kernel(fake_device *f, const dt_call *queued)
{
    dt_call c = *queued;
    int     bad = fake_check(f, &c, 1);
    if (bad) return bad;
    if (f->fail_kernel > 0 && --f->fail_kernel == 0)
        return dt_fail(DT_ERR_DEVICE, "fake: %s failed on request", dt_kernel_name(c.op));
    for (int i = 0; i < c.nout; i++) fake_translate(f, &c.out[i]);
    for (int i = 0; i < c.nin; i++) fake_translate(f, &c.in[i]);
    c.stream = NULL;
    return dt_device_backend(dt_cpu())->kernel[c.op](dt_cpu(), &c);
}

/* A copy from another device: both blocks are live. */
static int fake_run_copy(fake_device *f, const fake_item *it)
{
    if (!fake_find(f, it->dst, it->nbytes) || !fake_find(it->of, it->src, it->nbytes))
        return dt_fail(DT_ERR_DEVICE, "fake: copy of %zu bytes from no block, or to none", it->nbytes);
    memcpy(fake_real(f, it->dst), fake_real(it->of, it->src), it->nbytes);
    return 0;
}

/* Run stream s until it has done 'count' items. */
static void fake_run(fake_device *f, int s, int64_t count)
{
    fake_stream *q = &f->stream[s];
    while (q->done < count && q->head) {
        fake_item *it = q->head;
        int        bad = 0;
        if (it->kind == FAKE_ORDER) fake_run(it->of ? it->of : f, it->before, it->count);
        else if (it->kind == FAKE_COPY) bad = fake_run_copy(f, it);
        else if (it->kind == FAKE_KERNEL) bad = fake_run_kernel(f, &it->call);
        else memcpy(fake_real(f, it->dst), it + 1, it->nbytes);
        if (bad && !f->error) f->error = bad;
        q->head = it->next;
        if (!q->head) q->tail = NULL;
        q->done++;
        f->late++;
        free(it);
        fake_collect(f);
    }
}

static int fake_kernel(dt_device *dev, const dt_call *c)
{
    fake_device *f = fake_of(dev);
    int          bad = fake_check(f, c, 0);
    if (bad) return bad;
    fake_item *it = (fake_item *)malloc(sizeof *it);
    if (!it) return dt_fail(DT_ERR_MEMORY, "fake: out of memory for a queued call");
    memset(it, 0, sizeof *it);
    it->kind = FAKE_KERNEL;
    it->call = *c;
    f->kernels[c->op]++;
    if (c->op == DT_K_unary) f->unary[c->u.ew.fn]++;
    if (c->op == DT_K_unary_bwd) f->unary_bwd[c->u.ew.fn]++;
    if (c->op == DT_K_binary) f->binary[c->u.ew.fn]++;
    if (c->op == DT_K_reduce) f->reduce[c->u.reduce.fn]++;
    return fake_push(f, fake_index(f, c->stream), it);
}

static int fake_upload(dt_device *dev, void *stream, void *dst, const void *host, size_t nbytes)
{
    fake_device *f = fake_of(dev);
    if (nbytes == 0) return 0;
    if (!fake_find(f, dst, nbytes)) return dt_fail(DT_ERR_DEVICE, "fake: upload of %zu bytes to no block", nbytes);
    fake_item *it = (fake_item *)malloc(sizeof *it + nbytes);
    if (!it) return dt_fail(DT_ERR_MEMORY, "fake: out of memory for an upload of %zu bytes", nbytes);
    memset(it, 0, sizeof *it);
    it->kind = FAKE_UPLOAD;
    it->dst = dst;
    it->nbytes = nbytes;
    memcpy(it + 1, host, nbytes); /* the caller may reuse its buffer at once */
    f->uploads++;
    return fake_push(f, fake_index(f, stream), it);
}

static int fake_take_error(fake_device *f)
{
    int e = f->error;
    f->error = 0;
    return e;
}

static int fake_wait(dt_device *dev, void *stream)
{
    fake_device *f = fake_of(dev);
    for (int s = 0; s < FAKE_MAX_STREAMS; s++)
        if (f->stream[s].used && (!stream || s == fake_index(f, stream))) fake_run(f, s, f->stream[s].queued);
    fake_collect(f);
    return fake_take_error(f);
}

static int fake_download(dt_device *dev, void *stream, void *host, const void *src, size_t nbytes)
{
    fake_device *f = fake_of(dev);
    fake_run(f, fake_index(f, stream), f->stream[fake_index(f, stream)].queued);
    int e = fake_take_error(f);
    if (e || nbytes == 0) return e;
    if (!fake_find(f, src, nbytes)) return dt_fail(DT_ERR_DEVICE, "fake: download of %zu bytes from no block", nbytes);
    memcpy(host, fake_real(f, src), nbytes);
    f->downloads++;
    return 0;
}

/* Stream a of f waits for what is queued on stream b of g. */
static int fake_behind(fake_device *f, int a, fake_device *g, int b)
{
    if (f == g && a == b) return 0;
    fake_item *it = (fake_item *)calloc(1, sizeof *it);
    if (!it) return dt_fail(DT_ERR_MEMORY, "fake: out of memory for an ordering");
    it->kind = FAKE_ORDER;
    it->of = g;
    it->before = b;
    it->count = g->stream[b].queued;
    return fake_push(f, a, it);
}

static int fake_order(dt_device *dev, void *after, void *before)
{
    fake_device *f = fake_of(dev);
    return fake_behind(f, fake_index(f, after), f, fake_index(f, before));
}

static int fake_peer(dt_device *dev, void *stream, void *dst, dt_device *from, void *from_stream, const void *src,
                     size_t nbytes)
{
    fake_device *f = fake_of(dev), *g = fake_of(from);
    int          a = fake_index(f, stream), b = fake_index(g, from_stream), bad = 0;
    if (nbytes == 0) return 0;
    if (!fake_find(f, dst, nbytes) || !fake_find(g, src, nbytes))
        return dt_fail(DT_ERR_DEVICE, "fake: copy of %zu bytes from no block, or to none", nbytes);
    if (!(f->unordered & 1)) bad = fake_behind(f, a, g, b);
    fake_item *it = bad ? NULL : (fake_item *)calloc(1, sizeof *it);
    if (!it) return dt_fail(DT_ERR_MEMORY, "fake: out of memory for a copy");
    it->kind = FAKE_COPY;
    it->dst = dst;
    it->of = g;
    it->src = src;
    it->nbytes = nbytes;
    f->copies++;
    fake_push(f, a, it);
    return f->unordered & 2 ? 0 : fake_behind(g, b, f, a);
}

static void *fake_stream_new(dt_device *dev)
{
    fake_device *f = fake_of(dev);
    for (int s = 1; s < FAKE_MAX_STREAMS; s++)
        if (!f->stream[s].used) {
            f->stream[s].used = 1; /* counts go on from the stream that had the slot before */
            return &f->stream[s];
        }
    return NULL;
}

static void fake_stream_free(dt_device *dev, void *stream)
{
    fake_device *f = fake_of(dev);
    if (!stream) return;
    fake_run(f, fake_index(f, stream), ((fake_stream *)stream)->queued);
    ((fake_stream *)stream)->used = 0;
}

static int fake_image_layout(dt_device *dev, int kernel, int dtype)
{
    const dt_backend *cpu = dt_device_backend(dt_cpu());
    (void)dev;
    return cpu->image_layout ? cpu->image_layout(dt_cpu(), kernel, dtype) : DT_LAYOUT_PLAIN;
}

static int fake_extended(dt_device *dev, int kernel) /* the kernels are the CPU's */
{
    (void)dev;
    return dt_device_backend(dt_cpu())->extended(dt_cpu(), kernel);
}

/* ---------------------------------------------------------------------------------------------- life */
/* A device of the backend of another one, or of its own if 'like' is NULL. NULL when out of memory. */
static fake_device *fake_device_make(uint64_t missing, fake_device *like, int index)
{
    fake_device *f = (fake_device *)calloc(1, sizeof *f);
    if (!f) return NULL;
    f->fake = (char *)mmap(NULL, FAKE_RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f->real =
        (char *)mmap(NULL, FAKE_RANGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f->stream[0].used = 1;
    f->table.name = "fake";
    f->table.alloc = fake_alloc;
    f->table.free = fake_free;
    f->table.upload = fake_upload;
    f->table.download = fake_download;
    f->table.wait = fake_wait;
    f->table.order = fake_order;
    f->table.stream_new = fake_stream_new;
    f->table.stream_free = fake_stream_free;
    f->table.image_layout = fake_image_layout;
    f->table.extended = fake_extended;
    for (int k = 0; k < DT_K_COUNT; k++)
        if (!(missing >> k & 1)) f->table.kernel[k] = fake_kernel;
    if (f->fake != MAP_FAILED && f->real != MAP_FAILED) f->dev = dt_device_new(like ? &like->table : &f->table, index, f);
    if (f->dev) return f;
    if (f->fake != MAP_FAILED) munmap(f->fake, FAKE_RANGE);
    if (f->real != MAP_FAILED) munmap(f->real, FAKE_RANGE);
    free(f);
    return NULL;
}

/* missing: kernels (bit DT_K_...) the table lacks. NULL when out of memory. */
static fake_device *fake_device_new(uint64_t missing) { return fake_device_make(missing, NULL, 0); }

/* n devices, fake:0 and on, of one backend that copies from device to device. Wait for all of them before you free one;
   free the first one last. */
static int fake_devices_new(fake_device **f, int n)
{
    for (int i = 0; i < n; i++) {
        f[i] = fake_device_make(0, i ? f[0] : NULL, i);
        if (!f[i]) return -1;
        f[0]->table.peer = fake_peer;
    }
    return 0;
}

/* The status of dt_device_free: refused while a tensor lives on the device. */
static dt_status fake_device_free(fake_device *f)
{
    if (!f) return DT_OK;
    fake_wait(f->dev, NULL);
    dt_status s = dt_device_free(f->dev);
    if (s != DT_OK) return s;
    for (fake_block *b = f->blocks; b;) {
        fake_block *next = b->next;
        free(b);
        b = next;
    }
    munmap(f->fake, FAKE_RANGE);
    munmap(f->real, FAKE_RANGE);
    free(f);
    return DT_OK;
}

/* Blocks that were allocated and not freed. */
static int64_t fake_live_blocks(const fake_device *f)
{
    int64_t n = 0;
    for (const fake_block *b = f->blocks; b; b = b->next) n += !b->freed;
    return n;
}

/* Unused in some of the files that include this. */
static inline void fake_device_use_all(void)
{
    (void)fake_device_new;
    (void)fake_devices_new;
    (void)fake_device_free;
    (void)fake_live_blocks;
}

#endif /* FAKE_DEVICE_H */
