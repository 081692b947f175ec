/* emu_cudart.c: the CUDA runtime on the CPU, see emu.h. Becomes libcudart.so.13.

   CONTENTS
     >>state      devices, the lock, failed checks, settings
     >>memory     device ranges, pinned memory, what has been written
     >>streams    queues of work, and when it runs
     >>api        how a call begins and ends; errors
     >>devices    counts, properties, limits, peers
     >>allocation device and host memory
     >>copies     memcpy, memset
     >>events     streams and events
     >>launch     fat binaries, kernels, occupancy
     >>report     what is said at exit
     >>gemm       one matrix product for all */
#include "emu.h"

#include <ctype.h>
#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(hidden) /* a test may have an interpreter of its own; system headers are above */
#define PTX_IMPLEMENTATION
#include "ptx.h"
#pragma GCC visibility pop

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

/* ==================================================================================================== >>state */
enum { LAZY, RANDOM, EAGER };
enum { PENDING_MAX = 1024 }; /* launches that a stream holds before the next one waits, as on a GPU */

typedef struct stream stream;
typedef struct device {
    int         physical;
    uintptr_t   base, next; /* the reserved addresses; the first that was never given */
    size_t      span, used, peak;
    stream     *legacy;
    cudaError_t sticky;
    bool        peer[EMU_MAX_DEVICES]; /* may use that one's memory */
} device;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t  happened;
    bool            ready;
    pid_t           pid;
    int             mode, ndevices, capability;
    bool            no_driver, no_peers, strict, report, verbose, leaks, loading;
    size_t          memory;
    double          hang;
    uint64_t        seed, progress, moved, haste; /* haste: how readily random work runs at a call, 0 to 3 */
    device          device[EMU_MAX_DEVICES];
    /* counts for the report */
    uint64_t failures, kernels, instructions, copies, copied, memsets, allocations, works, other[EMU_COUNTS];
} emu = {.lock = PTHREAD_MUTEX_INITIALIZER, .happened = PTHREAD_COND_INITIALIZER};

static _Thread_local int         current;
static _Thread_local cudaError_t last_error;
static _Thread_local bool        in_host_function;

static void at_exit(void);

static double number(const char *name, double otherwise)
{
    const char *s = getenv(name);
    char       *end;
    if (!s || !*s) return otherwise;
    double v = strtod(s, &end);
    if (*end) {
        fprintf(stderr, "emu: %s=%s is no number\n", name, s);
        exit(97);
    }
    return v;
}

double emu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
double   emu_hang_seconds(void) { return emu.hang; }
uint64_t emu_harsh(uint64_t what)
{
    const char *seed = getenv("DT_EMU_HARSH");
    uint64_t    x = seed && *seed ? (strtoull(seed, NULL, 0) + 1) * 0x9e3779b97f4a7c15u ^ what * 0xc2b2ae3d27d4eb4fu : 0;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return seed && *seed ? (x ^ x >> 32) | 1u << 31 : 0;
}
uint64_t emu_progress(void) { return __atomic_load_n(&emu.moved, __ATOMIC_RELAXED); }

uint64_t emu_random(void)
{
    uint64_t z = emu.seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void emu_lock(void) { pthread_mutex_lock(&emu.lock); }
void emu_unlock(void) { pthread_mutex_unlock(&emu.lock); }
void emu_pause(long microseconds)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += microseconds * 1000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&emu.happened, &emu.lock, &t);
}
void emu_wake_for_others(void)
{
    emu.progress++;
    pthread_cond_broadcast(&emu.happened);
}
void emu_wake(void)
{
    __atomic_add_fetch(&emu.moved, 1, __ATOMIC_RELAXED);
    emu_wake_for_others();
}
void     emu_count(int what) { emu.other[what]++; }
uint64_t emu_counted(int what)
{
    emu_lock();
    uint64_t n = what >= 0 && what < EMU_COUNTS ? emu.other[what] : 0;
    emu_unlock();
    return n;
}
void emu_operand(const void *ptr, const char *who)
{
    emu_count(EMU_OPERANDS);
    if ((uintptr_t)ptr % 16 == 0) return;
    emu_count(EMU_UNALIGNED);
    emu_note("%s: an operand at %p, which is not a multiple of 16", who, ptr);
}
int  emu_device(void) { return current; }
int  emu_devices(void) { return emu.ndevices; }
int  emu_physical(int d) { return emu.device[d].physical; }
static int capability(void);
int        emu_capability(int d) { return (void)d, capability(); } /* all are alike */
cudaError_t emu_sticky(int d) { return d >= 0 && d < emu.ndevices ? emu.device[d].sticky : cudaSuccess; }
bool        emu_in_host_function(void) { return in_host_function; }

cudaError_t emu_fail(int d, cudaError_t sticky, const char *format, ...)
{
    char    line[1024];
    va_list a;
    va_start(a, format);
    vsnprintf(line, sizeof line, format, a);
    va_end(a);
    if (++emu.failures <= 50) fprintf(stderr, "emu: %s\n", line);
    else if (emu.failures == 51) fprintf(stderr, "emu: and more\n");
    if (d >= 0 && d < emu.ndevices && !emu.device[d].sticky) emu.device[d].sticky = sticky;
    return sticky;
}
void emu_note(const char *format, ...)
{
    va_list a;
    if (!emu.verbose) return;
    fputs("emu: note: ", stderr);
    va_start(a, format);
    vfprintf(stderr, format, a);
    va_end(a);
    fputc('\n', stderr);
}

/* Which devices: DT_EMU_DEVICES of them, in the order of CUDA_VISIBLE_DEVICES, which ends at the first bad number. */
static void choose_devices(void)
{
    int         n = (int)number("DT_EMU_DEVICES", 1);
    const char *s = getenv("CUDA_VISIBLE_DEVICES");
    emu.no_driver = n < 0;
    if (n > EMU_MAX_DEVICES) {
        fprintf(stderr, "emu: DT_EMU_DEVICES=%d: at most %d\n", n, EMU_MAX_DEVICES);
        exit(97);
    }
    if (!s) {
        for (int i = 0; i < n; i++) emu.device[emu.ndevices++].physical = i;
        return;
    }
    while (*s && emu.ndevices < EMU_MAX_DEVICES) {
        char *end;
        long  v = strtol(s, &end, 10);
        if (end == s || v < 0 || v >= n || (*end && *end != ',')) break;
        for (int i = 0; i < emu.ndevices; i++)
            if (emu.device[i].physical == v) return;
        emu.device[emu.ndevices++].physical = (int)v;
        s = *end ? end + 1 : end;
    }
}

static stream *stream_new(int d, unsigned flags, int priority);

/* The host has touched memory that is not its own. If it is a device's, say so; the program ends as it would have. */
static struct sigaction before_us;
static void             on_fault(int sig, siginfo_t *info, void *context)
{
    static const char text[] = "emu: the host touches device memory\n";
    uintptr_t         p = (uintptr_t)info->si_addr;
    (void)context;
    for (int i = 0; i < emu.ndevices; i++) {
        if (p < emu.device[i].base || p - emu.device[i].base >= emu.device[i].span) continue;
        if (write(2, text, sizeof text - 1) < 0 || emu.strict) _exit(97);
    }
    sigaction(sig, &before_us, NULL); /* and again, to whoever would have got it */
}

static void start(void)
{
    const char *mode = getenv("DT_EMU");
    emu.ready = true;
    emu.pid = getpid();
    emu.mode = LAZY;
    emu.seed = 1;
    if (mode && !strcmp(mode, "eager")) emu.mode = EAGER;
    else if (mode && !strncmp(mode, "random:", 7)) {
        emu.mode = RANDOM;
        emu.seed = strtoull(mode + 7, NULL, 0) * 0x2545f4914f6cdd1du + 1;
        emu.haste = emu_random() % 4;
    } else if (mode && *mode && strcmp(mode, "lazy")) {
        fprintf(stderr, "emu: DT_EMU=%s: lazy, eager or random:SEED\n", mode);
        exit(97);
    }
    emu.hang = number("DT_EMU_HANG", 20);
    emu.memory = (size_t)number("DT_EMU_MEMORY", 4.0 * (1 << 30));
    emu.capability = (int)number("DT_EMU_CC", 0);
    emu.no_peers = number("DT_EMU_PEER", 1) == 0;
    emu.strict = number("DT_EMU_STRICT", 0) != 0;
    emu.report = number("DT_EMU_REPORT", 0) != 0;
    emu.verbose = number("DT_EMU_VERBOSE", 0) != 0;
    emu.leaks = number("DT_EMU_LEAKS", 0) != 0;
    const char *eager = getenv("CUDA_MODULE_LOADING");
    emu.loading = number("DT_EMU_LOADING", 0) != 0 && !(eager && !strcmp(eager, "EAGER"));
    choose_devices();
    for (int i = 0; i < emu.ndevices; i++) {
        device *d = &emu.device[i];
        void   *p = MAP_FAILED;
        for (d->span = (size_t)1 << 40; p == MAP_FAILED && d->span >= (size_t)1 << 32; d->span /= 4)
            p = mmap(NULL, d->span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        d->span *= 4;
        if (p == MAP_FAILED) {
            fprintf(stderr, "emu: no addresses for device %d: %s\n", i, strerror(errno));
            exit(97);
        }
        d->base = (uintptr_t)p;
        d->next = (d->base + ((size_t)1 << 21)) & ~(((uintptr_t)1 << 21) - 1);
        d->legacy = stream_new(i, 0, 0);
    }
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    if (emu.ndevices) sigaction(SIGSEGV, &a, &before_us);
}
/* The program's constructors register kernels before main; the settings are read at the first call. */
__attribute__((constructor)) static void on_load(void) { atexit(at_exit); }

/* ==================================================================================================== >>memory */
typedef struct range {
    uintptr_t      base;
    size_t         nbytes;
    unsigned char *host;  /* NULL: freed */
    uint8_t       *shadow; /* of ptx.h: what has been written */
    int            device;
} range;
enum { SHADOW = PTX_SHADOW_BYTES };
typedef struct pinned {
    struct pinned *next;
    unsigned char *ptr;
    size_t         nbytes;
    bool           registered, mapped;
} pinned;

static range  *ranges; /* of all devices, by address; freed ones stay, so that their use is told */
static int     nranges, ranges_room;
static pinned *pins;

/* The last range that begins at or before p, or NULL. */
static range *range_near(uintptr_t p)
{
    int lo = 0, hi = nranges;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (ranges[mid].base <= p) lo = mid + 1;
        else hi = mid;
    }
    return lo ? &ranges[lo - 1] : NULL;
}
static int device_of_address(uintptr_t p)
{
    for (int i = 0; i < emu.ndevices; i++)
        if (p >= emu.device[i].base && p - emu.device[i].base < emu.device[i].span) return i;
    return -1;
}
static pinned *pinned_of(const void *p, size_t nbytes)
{
    for (pinned *q = pins; q; q = q->next)
        if ((const unsigned char *)p < q->ptr + q->nbytes && (const unsigned char *)p + nbytes > q->ptr) return q;
    return NULL;
}
static bool pinned_holds(const pinned *q, const void *p, size_t nbytes)
{
    return (const unsigned char *)p >= q->ptr && (size_t)((const unsigned char *)p - q->ptr) + nbytes <= q->nbytes;
}
bool emu_is_device_pointer(const void *p) { return device_of_address((uintptr_t)p) >= 0; }
int  emu_pointer_device(const void *p) { return device_of_address((uintptr_t)p); }

/* The range that holds all of it, if device d may use it. NULL after emu_fail. d < 0: whoever asks may. */
static range *range_of(int d, const void *ptr, size_t nbytes, const char *who)
{
    uintptr_t p = (uintptr_t)ptr;
    range    *r = range_near(p);
    int       owner = device_of_address(p);
    if (owner < 0) {
        emu_fail(d, cudaErrorIllegalAddress, "%s: %p is no device memory%s", who, ptr,
                 pinned_of(ptr, 1) ? " but pinned host memory" : "");
        return NULL;
    }
    if (!r || r->device != owner || p - r->base > r->nbytes + 256) {
        emu_fail(d, cudaErrorIllegalAddress, "%s: %zu bytes at %p of device %d were never allocated", who, nbytes, ptr,
                 owner);
        return NULL;
    }
    if (p - r->base + nbytes > r->nbytes) {
        emu_fail(d, cudaErrorIllegalAddress, "%s: %zu bytes at %p pass the end of the %zu bytes at %p by %zu", who,
                 nbytes, ptr, r->nbytes, (void *)r->base, (size_t)(p - r->base) + nbytes - r->nbytes);
        return NULL;
    }
    if (!r->host) {
        emu_fail(d, cudaErrorIllegalAddress, "%s: %zu bytes at %p: the %zu bytes at %p have been freed", who, nbytes,
                 ptr, r->nbytes, (void *)r->base);
        return NULL;
    }
    if (d >= 0 && owner != d && !emu.device[d].peer[owner]) {
        emu_fail(d, cudaErrorIllegalAddress, "%s: device %d uses memory of device %d (%p) without peer access", who, d,
                 owner, ptr);
        return NULL;
    }
    return r;
}

/* A host pointer for bytes of the device, pinned host memory included. *shadow: NULL for host memory. */
static unsigned char *translate(int d, const void *ptr, size_t nbytes, uint8_t **shadow, const char *who)
{
    pinned *q = device_of_address((uintptr_t)ptr) < 0 ? pinned_of(ptr, nbytes ? nbytes : 1) : NULL;
    *shadow = NULL;
    if (q && pinned_holds(q, ptr, nbytes)) return (unsigned char *)(uintptr_t)ptr;
    range *r = range_of(d, ptr, nbytes, who);
    if (!r) return NULL;
    *shadow = r->shadow + SHADOW * ((uintptr_t)ptr - r->base);
    return r->host + ((uintptr_t)ptr - r->base);
}

static void host_written(const void *ptr, size_t nbytes);

void *emu_rows(int d, const void *ptr, int64_t rows, size_t nbytes, size_t pitch, int access, const char *who)
{
    uint8_t       *shadow;
    unsigned char *host;
    size_t         all = rows > 0 && nbytes ? (size_t)(rows - 1) * pitch + nbytes : 0;
    static char    nothing;
    if (!all) return &nothing;
    host = translate(d, ptr, all, &shadow, who);
    if (!host) return NULL;
    if (pitch == nbytes) {
        nbytes = all;
        rows = 1;
    }
    for (int64_t i = 0; shadow && i < rows; i++) {
        uint8_t *row = shadow + SHADOW * (size_t)i * pitch;
        if (access & EMU_READ) {
            size_t hole = ptx_shadow_unwritten(row, nbytes);
            if (hole < nbytes) {
                hole += (size_t)i * pitch;
                emu_fail(d, cudaErrorIllegalAddress,
                         "%s: reads %p, byte %zu of its operand at %p, that nothing has written", who,
                         (void *)((uintptr_t)ptr + hole), hole, ptr);
                return NULL;
            }
        }
        if (access & EMU_WRITE) ptx_shadow_written(row, nbytes);
    }
    return host;
}
void *emu_bytes(int d, const void *ptr, size_t nbytes, int access, const char *who)
{
    return emu_rows(d, ptr, 1, nbytes, nbytes, access, who);
}
void *emu_bytes_known(int d, const void *ptr, size_t nbytes, unsigned char *known, const char *who)
{
    uint8_t       *shadow;
    unsigned char *host = translate(d, ptr, nbytes, &shadow, who);
    if (!host) return NULL;
    memset(known, 1, nbytes);
    for (size_t i = 0; shadow && i < nbytes; i++) {
        i += ptx_shadow_unwritten(shadow + SHADOW * i, nbytes - i);
        if (i < nbytes) known[i] = 0;
    }
    return host;
}
void emu_set_known(int d, void *ptr, size_t nbytes, const unsigned char *known)
{
    uint8_t *shadow;
    if (!translate(d, ptr, nbytes, &shadow, "write")) return;
    if (!shadow) host_written(ptr, nbytes);
    else ptx_shadow_written(shadow, nbytes);
    for (size_t i = 0; shadow && known && i < nbytes; i++) {
        const unsigned char *hole = memchr(known + i, 0, nbytes - i);
        if (!hole) break;
        i = (size_t)(hole - known);
        ptx_shadow_fresh(shadow + SHADOW * i, 1);
    }
}
void emu_forget(int d, void *ptr, size_t nbytes)
{
    uint8_t       *shadow;
    unsigned char *host = translate(d, ptr, nbytes, &shadow, "write");
    if (!host) return;
    memset(host, EMU_POISON, nbytes);
    if (shadow) ptx_shadow_fresh(shadow, nbytes);
    else host_written(ptr, nbytes);
}

/* ==================================================================================================== >>streams */
typedef struct dep {
    stream  *s;
    uint64_t at;
} dep;
typedef struct item {
    struct item *next;
    emu_work    *w;
    uint64_t     at;
    int          ndeps;
    dep          deps[];
} item;
struct stream {
    uint32_t magic;
    stream  *next; /* of all streams that live or have work */
    int      device, priority, id;
    unsigned flags;
    bool     destroyed, busy, is_legacy;
    item    *head, **tail;
    uint64_t queued, done; /* numbers of the last one queued and of the last one that ran */
    struct capture *capture; /* work is taken down instead of queued; NULL: none */
};
/* A capture (cudaGraph_t when it has ended): of one stream, in the global mode. While there is one, calls that wait or allocate fail and
   spoil it. Graphs are not launched here: what is shown is that work can be captured. */
typedef struct capture {
    bool       spoilt;
    int        n;
    emu_work **w;
} capture;
enum { STREAM_MAGIC = 0x57e4a3 };

static stream   *streams;
static int       nstreams;
static emu_work *blocked; /* the last work that could not go on */
static capture  *capturing;

static stream *stream_new(int d, unsigned flags, int priority)
{
    stream *s = calloc(1, sizeof *s);
    s->magic = STREAM_MAGIC;
    s->device = d;
    s->flags = flags;
    s->priority = priority;
    s->id = nstreams++;
    s->tail = &s->head;
    s->is_legacy = !emu.device[d].legacy;
    s->next = streams;
    streams = s;
    return s;
}

static void stream_forget(stream *s)
{
    for (stream **at = &streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next; /* its own next stays: someone may be on their way along the list */
            return;
        }
}
static void pop(stream *s)
{
    item *it = s->head;
    s->head = it->next;
    if (!s->head) s->tail = &s->head;
    s->done = it->at;
    it->w->drop(it->w);
    free(it);
    emu.works++;
    if (s->destroyed && !s->head) stream_forget(s);
    emu_wake();
}

/* Runs the first of the queue if nothing is in its way. */
static bool step(stream *s)
{
    item *it = s->head;
    if (!it || s->busy) return false;
    for (int i = 0; i < it->ndeps; i++)
        if (it->deps[i].s->done < it->deps[i].at) return false;
    if (!emu.device[s->device].sticky) { /* after a failure nothing runs any more */
        s->busy = true;
        int r = it->w->run(it->w);
        s->busy = false;
        if (r == EMU_BLOCKED) {
            blocked = it->w;
            return false;
        }
    }
    pop(s);
    return true;
}

static bool advance(stream *s, uint64_t at)
{
    while (s->done < at) {
        item *it = s->head;
        if (!it || s->busy) return false;
        for (int i = 0; i < it->ndeps; i++)
            if (it->deps[i].s->done < it->deps[i].at && !advance(it->deps[i].s, it->deps[i].at)) return false;
        if (s->head != it || s->busy) continue;
        if (!step(s)) return false;
    }
    return true;
}

/* Some of what may run does, in any order; at most n of them. */
static int shuffle(int n)
{
    int ran = 0;
    while (ran < n) {
        stream *ready[256];
        int     k = 0;
        for (stream *s = streams; s && k < LEN(ready); s = s->next)
            if (s->head) ready[k++] = s;
        bool any = false;
        while (k && !any) {
            int pick = (int)(emu_random() % (unsigned)k);
            any = step(ready[pick]);
            ready[pick] = ready[--k];
        }
        if (!any) break;
        ran++;
    }
    return ran;
}

static bool go_on(stream *s, uint64_t at)
{
    blocked = NULL;
    if (emu.mode == RANDOM)
        while (s->done < at && shuffle(1)) {}
    return advance(s, at);
}

/* Waits until it has run. A wait in which nothing happens anywhere for long is a hang and ends. */
static void wait_for(stream *s, uint64_t at)
{
    double   since = emu_seconds();
    uint64_t seen = emu.progress;
    while (!go_on(s, at)) {
        emu_work *w = blocked;
        if (w && w->kick) w->kick(w);
        if (s->done >= at) break;
        if (emu.progress != seen) {
            seen = emu.progress;
            since = emu_seconds();
            continue;
        }
        if (emu_seconds() - since > emu.hang) {
            go_on(s, at);
            if (blocked && blocked->hang) blocked->hang(blocked);
            since = emu_seconds();
        }
        emu_pause(200);
    }
}
static void wait_device(int d)
{
    for (stream *s = streams; s; s = s->next)
        if (s->device == d && s->done < s->queued) wait_for(s, s->queued);
}
void emu_loading(int d, const char *what)
{
    if (!emu.loading) return;
    emu_count(EMU_LOADS);
    emu_note("%s is loaded: waits for device %d", what, d);
    wait_device(d);
}

/* Waiting for the legacy stream is waiting for all that it would wait for. */
static void wait_stream(stream *s)
{
    for (stream *o = streams; s->is_legacy && o; o = o->next)
        if (o->device == s->device && !(o->flags & cudaStreamNonBlocking)) wait_for(o, o->queued);
    wait_for(s, s->queued);
}

static stream *stream_of(cudaStream_t h)
{
    if (!h || h == cudaStreamLegacy) return emu.device[current].legacy;
    if (h == cudaStreamPerThread) return NULL;
    stream *s = (stream *)h;
    return s->magic == STREAM_MAGIC && !s->destroyed ? s : NULL;
}
cudaError_t emu_stream_check(cudaStream_t *h, int *d)
{
    stream *s = stream_of(*h);
    if (!s) return cudaErrorInvalidResourceHandle;
    *d = s->device;
    *h = (cudaStream_t)s;
    return cudaSuccess;
}
bool emu_advance(void *s, uint64_t at) { return advance(s, at); }
void emu_wait(void *s, uint64_t at) { wait_for(s, at); }

static void put(stream *s, emu_work *w, dep wait)
{
    int   n = wait.s != NULL;
    item *it;
    for (stream *o = streams; o; o = o->next) n += o != s && o->device == s->device && o->done < o->queued;
    it = calloc(1, sizeof *it + (size_t)n * sizeof(dep));
    it->w = w;
    it->at = ++s->queued;
    w->device = s->device;
    w->stream = s;
    w->at = it->at;
    if (wait.s) it->deps[it->ndeps++] = wait;
    /* the legacy stream and those that do not say otherwise wait for each other */
    for (stream *o = streams; o; o = o->next) {
        if (o == s || o->device != s->device || o->done >= o->queued) continue;
        if ((s->is_legacy && !(o->flags & cudaStreamNonBlocking)) ||
            (o->is_legacy && !(s->flags & cudaStreamNonBlocking)))
            it->deps[it->ndeps++] = (dep){o, o->queued};
    }
    *s->tail = it;
    s->tail = &it->next;
}

static cudaError_t queue_after(stream *s, emu_work *w, uint64_t *at, dep wait)
{
    if (emu.device[s->device].sticky) {
        w->drop(w);
        return emu.device[s->device].sticky;
    }
    if (s->capture) {
        capture *c = s->capture;
        c->w = realloc(c->w, (size_t)(c->n + 1) * sizeof *c->w);
        c->w[c->n++] = w;
        return cudaSuccess;
    }
    put(s, w, wait);
    if (at) *at = s->queued;
    if (s->queued - s->done > PENDING_MAX) wait_for(s, s->queued - PENDING_MAX);
    if (emu.mode == EAGER) advance(s, s->queued);
    if (emu.mode == RANDOM && emu_random() % 6 < emu.haste) shuffle((int)(emu_random() % 4));
    pthread_cond_broadcast(&emu.happened);
    return cudaSuccess;
}
static cudaError_t queue(stream *s, emu_work *w, uint64_t *at) { return queue_after(s, w, at, (dep){NULL, 0}); }
cudaError_t emu_queue(cudaStream_t h, emu_work *w)
{
    stream *s = stream_of(h);
    if (!s) {
        w->drop(w);
        return cudaErrorInvalidResourceHandle;
    }
    return queue(s, w, NULL);
}

/* ==================================================================================================== >>api */
static cudaError_t enter_any(void) /* a call that needs no device */
{
    emu_lock();
    if (!emu.ready) start();
    if (getpid() != emu.pid) return cudaErrorInitializationError; /* a fork does not inherit devices */
    if (in_host_function) {
        emu_fail(current, cudaErrorNotPermitted, "a function of cudaLaunchHostFunc calls the CUDA library");
        return cudaErrorNotPermitted;
    }
    if (emu.no_driver) return cudaErrorInsufficientDriver;
    return emu.ndevices ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t emu_usable(void)
{
    if (!emu.ready) start();
    if (getpid() != emu.pid) return cudaErrorInitializationError;
    if (in_host_function) return emu_fail(current, cudaErrorNotPermitted, "a host function calls a CUDA library");
    if (emu.no_driver) return cudaErrorInsufficientDriver;
    if (!emu.ndevices) return cudaErrorNoDevice;
    if (emu.mode == RANDOM && emu_random() % 12 < emu.haste) shuffle(1);
    return emu.device[current].sticky;
}
static cudaError_t enter(void)
{
    cudaError_t e = enter_any();
    return e ? e : emu_usable();
}
/* Of a call that waits or allocates, which a capture does not allow */
static cudaError_t enter_outside(const char *who)
{
    cudaError_t e = enter();
    if (e || !capturing) return e;
    capturing->spoilt = true;
    emu_note("%s during a capture", who);
    return cudaErrorStreamCaptureUnsupported;
}
static cudaError_t leave(cudaError_t e)
{
    if (e) last_error = e;
    emu_unlock();
    return e;
}
/* After a wait: what came of the work. */
static cudaError_t after(int d) { return emu.device[d].sticky; }

cudaError_t cudaPeekAtLastError(void)
{
    cudaError_t e = emu_sticky(current);
    return e ? e : last_error;
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return e;
}

#define ERRORS(X)                                                                                                      \
    X(cudaSuccess, "no error") X(cudaErrorInvalidValue, "invalid argument")                                            \
    X(cudaErrorMemoryAllocation, "out of memory") X(cudaErrorInitializationError, "initialization error")             \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                                 \
    X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                                            \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")                    \
    X(cudaErrorMissingConfiguration, "__global__ function call is not configured")                                     \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                                                       \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected") X(cudaErrorInvalidDevice, "invalid device ordinal")    \
    X(cudaErrorInvalidKernelImage, "device kernel image is invalid")                                                   \
    X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")                    \
    X(cudaErrorInvalidPtx, "a PTX JIT compilation failed")                                                             \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle") X(cudaErrorSymbolNotFound, "named symbol not found") \
    X(cudaErrorNotReady, "device not ready") X(cudaErrorIllegalAddress, "an illegal memory access was encountered")   \
    X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                                        \
    X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                                               \
    X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                                             \
    X(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled")                                               \
    X(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices")                        \
    X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped")            \
    X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")                  \
    X(cudaErrorMisalignedAddress, "misaligned address") X(cudaErrorLaunchFailure, "unspecified launch failure")       \
    X(cudaErrorAssert, "device-side assert triggered") X(cudaErrorIllegalInstruction, "an illegal instruction was "   \
                                                                                      "encountered")                   \
    X(cudaErrorNotPermitted, "operation not permitted") X(cudaErrorNotSupported, "operation not supported")           \
    X(cudaErrorUnknown, "unknown error")
const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
#define NAME(n, t) \
    case n: return #n;
        ERRORS(NAME)
    default: return "unrecognized error code";
    }
}
const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
#define TEXT(n, t) \
    case n: return t;
        ERRORS(TEXT)
    default: return "unrecognized error code";
    }
}

/* ==================================================================================================== >>devices */
static int highest_ptx(void);

static int capability(void)
{
    if (!emu.capability) emu.capability = highest_ptx();
    if (!emu.capability) emu.capability = 80;
    return emu.capability;
}
static size_t shared_most(void) /* of a block, asked for by attribute */
{
    switch (capability()) {
    case 75: return 64 << 10;
    case 80: case 87: return 163 << 10;
    case 90: case 100: case 103: case 110: return 227 << 10;
    default: return 99 << 10;
    }
}
static size_t shared_processor(void) { return capability() == 75 ? 64 << 10 : shared_most() + 1024; }
static int    threads_processor(void)
{
    int c = capability();
    return c == 75 ? 1024 : c == 80 || c == 90 || c == 100 || c == 103 ? 2048 : 1536;
}
static int blocks_processor(void)
{
    switch (capability()) {
    case 75: case 86: case 87: return 16;
    case 89: case 110: case 120: case 121: return 24;
    default: return 32;
    }
}
enum { SHARED = 48 << 10, PROCESSORS = 8, REGISTERS = 65536 };

cudaError_t cudaGetDeviceCount(int *n)
{
    cudaError_t e = enter_any();
    if (!e && !n) e = cudaErrorInvalidValue;
    if (!e) *n = emu.ndevices;
    return leave(e);
}
cudaError_t cudaSetDevice(int d)
{
    cudaError_t e = enter_any();
    if (!e && (d < 0 || d >= emu.ndevices)) e = cudaErrorInvalidDevice;
    if (!e) current = d;
    return leave(e ? e : emu.device[d].sticky);
}
cudaError_t cudaGetDevice(int *d)
{
    cudaError_t e = enter_any();
    if (!e && !d) e = cudaErrorInvalidValue;
    if (!e) *d = current;
    return leave(e);
}
cudaError_t cudaDriverGetVersion(int *v)
{
    cudaError_t e = enter_any();
    if (!v) return leave(cudaErrorInvalidValue);
    *v = e == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION;
    emu_unlock();
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v)
{
    if (!v) return last_error = cudaErrorInvalidValue;
    *v = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d)
{
    cudaError_t e = enter_any();
    if (!e && !p) e = cudaErrorInvalidValue;
    if (!e && (d < 0 || d >= emu.ndevices)) e = cudaErrorInvalidDevice;
    if (e) return leave(e);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated GPU %d", emu.device[d].physical);
    memcpy(p->uuid.bytes, "dt emulated gpu", 15);
    p->uuid.bytes[15] = (char)emu.device[d].physical;
    p->totalGlobalMem = emu.memory;
    p->sharedMemPerBlock = SHARED;
    p->sharedMemPerBlockOptin = shared_most();
    p->sharedMemPerMultiprocessor = shared_processor();
    p->reservedSharedMemPerBlock = capability() == 75 ? 0 : 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
    p->warpSize = 32;
    p->memPitch = 0x7fffffff;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 64 << 10;
    p->major = capability() / 10;
    p->minor = capability() % 10;
    p->textureAlignment = 512;
    p->multiProcessorCount = PROCESSORS;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = 1;
    p->streamPrioritiesSupported = p->hostRegisterSupported = p->canUseHostPointerForRegisteredMem = 1;
    p->asyncEngineCount = 2;
    p->memoryBusWidth = 256;
    p->l2CacheSize = 4 << 20;
    p->maxThreadsPerMultiProcessor = threads_processor();
    p->maxBlocksPerMultiProcessor = blocks_processor();
    p->pciBusID = emu.device[d].physical + 1;
    p->isMultiGpuBoard = 0;
    p->hostNumaId = -1;
    return leave(cudaSuccess);
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d)
{
    cudaError_t e = enter_any();
    if (!e && !v) e = cudaErrorInvalidValue;
    if (!e && (d < 0 || d >= emu.ndevices)) e = cudaErrorInvalidDevice;
    if (e) return leave(e);
    switch ((int)a) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *v = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *v = 64; break;
    case cudaDevAttrMaxGridDimX: *v = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *v = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *v = SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = (int)shared_most(); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = (int)shared_processor(); break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *v = capability() == 75 ? 0 : 1024; break;
    case cudaDevAttrTotalConstantMemory: *v = 64 << 10; break;
    case cudaDevAttrWarpSize: *v = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *v = REGISTERS; break;
    case cudaDevAttrMultiProcessorCount: *v = PROCESSORS; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *v = threads_processor(); break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *v = blocks_processor(); break;
    case cudaDevAttrComputeCapabilityMajor: *v = capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *v = capability() % 10; break;
    case cudaDevAttrAsyncEngineCount: *v = 2; break;
    case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing: case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem: *v = 1; break;
    case cudaDevAttrIntegrated: case cudaDevAttrManagedMemory: case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrPageableMemoryAccess: case cudaDevAttrMemoryPoolsSupported: case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrComputeMode: case cudaDevAttrKernelExecTimeout: case cudaDevAttrEccEnabled:
    case cudaDevAttrPciDomainId: case cudaDevAttrPciDeviceId: case cudaDevAttrClusterLaunch: *v = 0; break;
    case cudaDevAttrPciBusId: *v = emu.device[d].physical + 1; break;
    case cudaDevAttrL2CacheSize: *v = 4 << 20; break;
    case cudaDevAttrGlobalMemoryBusWidth: *v = 256; break;
    default:
        emu_note("cudaDeviceGetAttribute: attribute %d is not modelled", (int)a);
        e = cudaErrorInvalidValue;
    }
    return leave(e);
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int n, int d)
{
    cudaError_t e = enter_any();
    if (!e && (!text || n < 13)) e = cudaErrorInvalidValue;
    if (!e && (d < 0 || d >= emu.ndevices)) e = cudaErrorInvalidDevice;
    if (!e) snprintf(text, (size_t)n, "0000:%02x:00.0", (unsigned)emu.device[d].physical + 1);
    return leave(e);
}
cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t e = enter_outside("cudaDeviceSynchronize");
    emu_count(EMU_WAITS);
    if (!e) {
        wait_device(current);
        e = after(current);
    }
    return leave(e);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    cudaError_t e = enter();
    if (!e && least) *least = 0;
    if (!e && greatest) *greatest = -5;
    return leave(e);
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int d, int peer)
{
    cudaError_t e = enter_any();
    if (!e && !can) e = cudaErrorInvalidValue;
    if (!e && (d < 0 || d >= emu.ndevices || peer < 0 || peer >= emu.ndevices)) e = cudaErrorInvalidDevice;
    if (!e) *can = d != peer && !emu.no_peers;
    return leave(e);
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    cudaError_t e = enter();
    if (!e && flags) e = cudaErrorInvalidValue;
    if (!e && (peer < 0 || peer >= emu.ndevices || peer == current)) e = cudaErrorInvalidDevice;
    if (!e && emu.no_peers) e = cudaErrorPeerAccessUnsupported;
    if (!e && emu.device[current].peer[peer]) e = cudaErrorPeerAccessAlreadyEnabled;
    if (!e) emu.device[current].peer[peer] = true;
    return leave(e);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    cudaError_t e = enter();
    if (!e && (peer < 0 || peer >= emu.ndevices)) e = cudaErrorInvalidDevice;
    if (!e && !emu.device[current].peer[peer]) e = cudaErrorPeerAccessNotEnabled;
    if (!e) emu.device[current].peer[peer] = false;
    return leave(e);
}

/* ==================================================================================================== >>allocation */
static range *range_add(int i, size_t nbytes)
{
    device *d = &emu.device[i];
    size_t  room = (nbytes + 511) / 512 * 512, at;
    range   r;
    if (nbytes > emu.memory - d->used || d->next - d->base + room + 512 > d->span) return NULL;
    r.base = d->next;
    r.nbytes = nbytes;
    r.device = i;
    r.host = malloc(nbytes);
    r.shadow = calloc(nbytes, SHADOW);
    if (!r.host || !r.shadow) {
        free(r.host);
        free(r.shadow);
        return NULL;
    }
    memset(r.host, EMU_POISON, nbytes);
    if (nranges == ranges_room) {
        ranges_room = 2 * ranges_room + 64;
        ranges = realloc(ranges, (size_t)ranges_room * sizeof *ranges);
    }
    for (at = (size_t)nranges++; at > 0 && ranges[at - 1].base > r.base; at--) ranges[at] = ranges[at - 1];
    ranges[at] = r;
    d->next += room + 512; /* what lies between belongs to nobody */
    d->used += nbytes;
    if (d->used > d->peak) d->peak = d->used;
    return &ranges[at];
}
cudaError_t cudaMalloc(void **p, size_t nbytes)
{
    cudaError_t e = enter_outside("cudaMalloc");
    if (!e && !p) e = cudaErrorInvalidValue;
    if (!e && !nbytes) *p = NULL;
    if (!e && nbytes) {
        range *r = range_add(current, nbytes);
        if (r) {
            *p = (void *)r->base;
            emu.allocations++;
        } else e = cudaErrorMemoryAllocation;
    }
    return leave(e);
}
cudaError_t cudaFree(void *p)
{
    cudaError_t e = enter_outside("cudaFree");
    if (e || !p) return leave(e);
    range *r = range_near((uintptr_t)p);
    if (!r || r->base != (uintptr_t)p) return leave(cudaErrorInvalidValue);
    if (!r->host) {
        emu_fail(r->device, cudaErrorInvalidValue, "cudaFree: %p is freed twice", p);
        return leave(cudaErrorInvalidValue);
    }
    int d = r->device;
    wait_device(d); /* freeing waits for the device */
    r = range_near((uintptr_t)p);
    emu.device[d].used -= r->nbytes;
    free(r->host);
    free(r->shadow);
    r->host = NULL;
    r->shadow = NULL;
    return leave(after(d));
}
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    cudaError_t e = enter();
    if (!e && (!unused || !total)) e = cudaErrorInvalidValue;
    if (!e) {
        *unused = emu.memory - emu.device[current].used;
        *total = emu.memory;
    }
    return leave(e);
}

static pinned *pin(void *p, size_t nbytes, bool registered, bool mapped)
{
    pinned *q = calloc(1, sizeof *q);
    *q = (pinned){pins, p, nbytes, registered, mapped};
    return pins = q;
}
cudaError_t cudaHostAlloc(void **p, size_t nbytes, unsigned flags)
{
    cudaError_t e = enter();
    if (!e && (!p || flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)))
        e = cudaErrorInvalidValue;
    if (!e && !nbytes) *p = NULL;
    if (!e && nbytes) {
        void *m = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m == MAP_FAILED) e = cudaErrorMemoryAllocation;
        else {
            memset(m, EMU_POISON, nbytes);
            pin(m, nbytes, false, true);
            *p = m;
        }
    }
    return leave(e);
}
cudaError_t cudaMallocHost(void **p, size_t nbytes) { return cudaHostAlloc(p, nbytes, cudaHostAllocDefault); }
static const char *copy_pending(const void *p, size_t nbytes);
static cudaError_t unpin(void *p, bool registered, const char *who)
{
    for (pinned **at = &pins; *at; at = &(*at)->next) {
        pinned *q = *at;
        if (q->ptr != (unsigned char *)p || q->registered != registered) continue;
        const char *name = copy_pending(p, q->nbytes);
        if (name)
            return emu_fail(current, cudaErrorInvalidValue, "%s: %p is still in use by a queued %s", who, p, name);
        *at = q->next;
        if (!registered) munmap(q->ptr, q->nbytes); /* whoever touches it from here on is caught */
        free(q);
        return cudaSuccess;
    }
    return registered ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue;
}
cudaError_t cudaFreeHost(void *p)
{
    cudaError_t e = enter();
    if (!e && p) e = unpin(p, false, "cudaFreeHost");
    return leave(e);
}
cudaError_t cudaHostRegister(void *p, size_t nbytes, unsigned flags)
{
    cudaError_t e = enter();
    unsigned    known = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    if (!e && (!p || !nbytes || flags & ~known || emu_is_device_pointer(p))) e = cudaErrorInvalidValue;
    if (!e && pinned_of(p, nbytes)) e = cudaErrorHostMemoryAlreadyRegistered;
    if (!e) pin(p, nbytes, true, true);
    return leave(e);
}
cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t e = enter();
    if (!e) e = unpin(p, true, "cudaHostUnregister");
    return leave(e);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    cudaError_t e = enter();
    if (!e && !a) e = cudaErrorInvalidValue;
    if (e) return leave(e);
    range *r = range_near((uintptr_t)p);
    memset(a, 0, sizeof *a);
    a->device = -2; /* as the runtime says of pageable memory */
    if (device_of_address((uintptr_t)p) >= 0) {
        if (!r || !r->host || (uintptr_t)p - r->base >= r->nbytes) return leave(cudaErrorInvalidValue);
        a->type = cudaMemoryTypeDevice;
        a->device = r->device;
        a->devicePointer = (void *)(uintptr_t)p;
    } else if (pinned_of(p, 1)) {
        a->type = cudaMemoryTypeHost;
        a->device = current;
        a->hostPointer = a->devicePointer = (void *)(uintptr_t)p;
    } else {
        a->type = cudaMemoryTypeUnregistered;
        a->hostPointer = (void *)(uintptr_t)p;
    }
    return leave(cudaSuccess);
}

/* ==================================================================================================== >>copies */
typedef struct copy_work {
    emu_work          w;
    void             *dst;
    const void       *src;
    size_t            nbytes;
    unsigned char    *staged;
    int               value;       /* of a memset */
    const void       *watched;     /* pinned memory that the host must leave alone until the copy has run */
    uint64_t          sum;         /* of it */
    struct copy_work *next, *prev; /* of those that watch */
} copy_work;
static copy_work watch = {.next = &watch, .prev = &watch};

static uint64_t sum_of(const void *p, size_t nbytes)
{
    const unsigned char *b = p;
    uint64_t             h = nbytes, v;
    for (; nbytes >= 8; b += 8, nbytes -= 8) {
        memcpy(&v, b, 8);
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; nbytes; b++, nbytes--) h = (h ^ *b) * 0x100000001b3u;
    return h;
}
static bool overlap(const void *a, size_t n, const void *b, size_t m)
{
    return (uintptr_t)a < (uintptr_t)b + m && (uintptr_t)b < (uintptr_t)a + n;
}
/* Work has written pinned memory: what watches it goes by what is there now. NULL: any of it. */
static void host_written(const void *p, size_t nbytes)
{
    for (copy_work *c = watch.next; c != &watch; c = c->next)
        if (!p || overlap(p, nbytes, c->watched, c->nbytes)) c->sum = sum_of(c->watched, c->nbytes);
}
static const char *copy_pending(const void *p, size_t nbytes)
{
    for (copy_work *c = watch.next; c != &watch; c = c->next)
        if (overlap(p, nbytes, c->watched, c->nbytes)) return c->w.name;
    return NULL;
}
static void copy_unwatch(copy_work *c)
{
    if (!c->watched) return;
    c->next->prev = c->prev;
    c->prev->next = c->next;
    c->watched = NULL;
}
static void copy_drop(emu_work *w)
{
    copy_work *c = (copy_work *)w;
    copy_unwatch(c);
    free(c->staged);
    free(c);
}
static int copy_run(emu_work *w)
{
    copy_work     *c = (copy_work *)w;
    unsigned char *dst = c->dst, *src = (unsigned char *)(uintptr_t)c->src;
    uint8_t       *to_shadow = NULL, *from_shadow = NULL;
    bool           to_host = !emu_is_device_pointer(dst);
    cudaError_t   *sticky = &emu.device[w->device].sticky;
    size_t         hole;
    if (c->watched && sum_of(c->watched, c->nbytes) != c->sum) {
        emu_fail(w->device, cudaErrorLaunchFailure,
                 to_host ? "%s: the host wrote to %p (%zu bytes) before the copy into it had run"
                         : "%s: the host changed %p (%zu bytes) before the copy from it had run",
                 w->name, c->watched, c->nbytes);
        return EMU_DONE;
    }
    copy_unwatch(c);
    if (c->staged) src = c->staged;
    else if (emu_is_device_pointer(src) && !(src = translate(-1, src, c->nbytes, &from_shadow, w->name)))
        return *sticky = cudaErrorIllegalAddress, EMU_DONE;
    if (!to_host && !(dst = translate(-1, dst, c->nbytes, &to_shadow, w->name)))
        return *sticky = cudaErrorIllegalAddress, EMU_DONE;
    if (to_host && from_shadow && (hole = ptx_shadow_unwritten(from_shadow, c->nbytes)) < c->nbytes) {
        emu_fail(w->device, cudaErrorIllegalAddress, "%s: byte %zu of the %zu at %p has never been written", w->name,
                 hole, c->nbytes, c->src);
        return EMU_DONE;
    }
    memmove(dst, src, c->nbytes);
    if (to_shadow && from_shadow) ptx_shadow_copy(to_shadow, from_shadow, c->nbytes);
    else if (to_shadow) ptx_shadow_written(to_shadow, c->nbytes);
    if (to_host) host_written(c->dst, c->nbytes);
    emu.copies++;
    emu.copied += c->nbytes;
    return EMU_DONE;
}
static int memset_run(emu_work *w)
{
    copy_work *c = (copy_work *)w;
    void      *dst = emu_bytes(w->device, c->dst, c->nbytes, EMU_WRITE, w->name);
    if (dst) {
        memset(dst, c->value, c->nbytes);
        if (!emu_is_device_pointer(c->dst)) host_written(c->dst, c->nbytes);
        emu.memsets++;
    }
    return EMU_DONE;
}
static copy_work *copy_new(const char *name, void *dst, const void *src, size_t nbytes)
{
    copy_work *c = calloc(1, sizeof *c);
    c->w.run = copy_run;
    c->w.drop = copy_drop;
    c->w.name = name;
    c->dst = dst;
    c->src = src;
    c->nbytes = nbytes;
    return c;
}
static void copy_watch(copy_work *c, const void *p)
{
    c->watched = p;
    c->sum = sum_of(p, c->nbytes);
    c->next = watch.next;
    c->prev = &watch;
    watch.next->prev = c;
    watch.next = c;
}
/* Are all of these bytes one allocation that lives? Asked at the call, as the driver does. */
static cudaError_t whole(const void *p, size_t nbytes, const char *who)
{
    return range_of(-1, p, nbytes, who) ? cudaSuccess : cudaErrorInvalidValue;
}

/* Does the driver know all of it (1), a part of it (-1), nothing of it (0)? */
static int is_pinned(const void *p, size_t nbytes)
{
    pinned *q = pinned_of(p, nbytes);
    return !q ? 0 : pinned_holds(q, p, nbytes) ? 1 : -1;
}

static cudaError_t copy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, stream *s, bool wait,
                        const char *who)
{
    bool        to = emu_is_device_pointer(dst), from = emu_is_device_pointer(src);
    cudaError_t e = cudaSuccess;
    if ((unsigned)kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (!nbytes) return cudaSuccess;
    if (!dst || !src) return cudaErrorInvalidValue;
    if (kind != cudaMemcpyDefault &&
        (to != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
         from != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)) &&
        !(kind == cudaMemcpyDeviceToDevice && (to || is_pinned(dst, nbytes) == 1) &&
          (from || is_pinned(src, nbytes) == 1))) {
        emu_note("%s: %s memory as destination, %s memory as source, and kind %d", who, to ? "device" : "host",
                 from ? "device" : "host", (int)kind);
        return cudaErrorInvalidValue;
    }
    if (to && (e = whole(dst, nbytes, who))) return e;
    if (from && (e = whole(src, nbytes, who))) return e;
    int dst_pinned = to ? 0 : is_pinned(dst, nbytes), src_pinned = from ? 0 : is_pinned(src, nbytes);
    if (dst_pinned < 0 || src_pinned < 0) {
        emu_note("%s: a part of the host memory is pinned, the rest is not", who);
        return cudaErrorInvalidValue;
    }
    copy_work *c = copy_new(who, dst, src, nbytes);
    bool       finish = false;
    if (to != from) emu_count((to ? src_pinned : dst_pinned) ? EMU_PINNED : EMU_PAGEABLE);
    if (!from && !src_pinned) { /* read now; what is in the stream before it may have to run first */
        if (wait && to) wait_stream(s);
        c->staged = malloc(nbytes);
        memcpy(c->staged, src, nbytes);
        finish = !to;
    } else if (!from) {
        copy_watch(c, src);
        finish = wait;
    }
    if (!to && !dst_pinned) finish = true; /* the call returns when the bytes are there */
    else if (!to) {
        if (!copy_pending(dst, nbytes)) memset(dst, EMU_POISON, nbytes);
        if (from) copy_watch(c, dst);
        finish |= wait;
    }
    uint64_t at = 0;
    e = queue(s, &c->w, &at);
    if (!e && finish) {
        wait_for(s, at);
        e = after(s->device);
    }
    return e;
}
cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind)
{
    cudaError_t e = enter_outside("cudaMemcpy");
    if (!e) e = copy(dst, src, nbytes, kind, emu.device[current].legacy, true, "cudaMemcpy");
    return leave(e);
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t h)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(h);
    if (!e && !s) e = cudaErrorInvalidResourceHandle;
    if (!e) e = copy(dst, src, nbytes, kind, s, false, "cudaMemcpyAsync");
    return leave(e);
}
static cudaError_t copy_peer(void *dst, int to, const void *src, int from, size_t nbytes, stream *s, const char *who)
{
    if (to < 0 || to >= emu.ndevices || from < 0 || from >= emu.ndevices) return cudaErrorInvalidDevice;
    if (!nbytes) return cudaSuccess;
    if (emu_pointer_device(dst) != to || emu_pointer_device(src) != from) {
        emu_note("%s: the pointers are of devices %d and %d, not of %d and %d", who, emu_pointer_device(dst),
                 emu_pointer_device(src), to, from);
        return cudaErrorInvalidValue;
    }
    return copy(dst, src, nbytes, cudaMemcpyDeviceToDevice, s, false, who);
}
cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t nbytes, cudaStream_t h)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(h);
    if (!e && !s) e = cudaErrorInvalidResourceHandle;
    if (!e) e = copy_peer(dst, to, src, from, nbytes, s, "cudaMemcpyPeerAsync");
    return leave(e);
}
/* In order with all work of the three devices, queued before or after. */
cudaError_t cudaMemcpyPeer(void *dst, int to, const void *src, int from, size_t nbytes)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : emu.device[current].legacy;
    if (!e && (to < 0 || to >= emu.ndevices || from < 0 || from >= emu.ndevices)) e = cudaErrorInvalidDevice;
    if (!e) {
        wait_device(current);
        wait_device(to);
        wait_device(from);
        e = copy_peer(dst, to, src, from, nbytes, s, "cudaMemcpyPeer");
        if (!e) {
            wait_for(s, s->queued);
            e = after(current);
        }
    }
    return leave(e);
}
static cudaError_t set(void *dst, int value, size_t nbytes, stream *s, const char *who)
{
    cudaError_t e;
    int         pinned_dst = emu_is_device_pointer(dst) ? 0 : is_pinned(dst, nbytes);
    if (!nbytes) return cudaSuccess;
    if (!emu_is_device_pointer(dst) && pinned_dst != 1) return cudaErrorInvalidValue;
    if (!pinned_dst && (e = whole(dst, nbytes, who))) return e;
    copy_work *c = copy_new(who, dst, NULL, nbytes);
    uint64_t   at = 0;
    c->w.run = memset_run;
    c->value = value;
    e = queue(s, &c->w, &at);
    if (!e && pinned_dst) wait_for(s, at);
    return e;
}
cudaError_t cudaMemset(void *dst, int value, size_t nbytes)
{
    cudaError_t e = enter();
    if (!e) e = set(dst, value, nbytes, emu.device[current].legacy, "cudaMemset");
    return leave(e);
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t nbytes, cudaStream_t h)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(h);
    if (!e && !s) e = cudaErrorInvalidResourceHandle;
    if (!e) e = set(dst, value, nbytes, s, "cudaMemsetAsync");
    return leave(e);
}

/* ==================================================================================================== >>events */
typedef struct event {
    uint32_t magic;
    int      device;
    unsigned flags;
    stream  *s; /* NULL: never recorded */
    uint64_t at;
    double   when;
    bool     destroyed;
} event;
typedef struct record_work {
    emu_work w;
    event   *ev;
    uint64_t at;
} record_work;
enum { EVENT_MAGIC = 0xe4e27 };
static int live_streams, live_events;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *h, unsigned flags, int priority)
{
    cudaError_t e = enter();
    if (!e && (!h || flags & ~(unsigned)cudaStreamNonBlocking)) e = cudaErrorInvalidValue;
    if (!e) {
        *h = (cudaStream_t)stream_new(current, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
        live_streams++;
    }
    return leave(e);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *h, unsigned flags)
{
    return cudaStreamCreateWithPriority(h, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *h) { return cudaStreamCreateWithPriority(h, cudaStreamDefault, 0); }
static bool own_stream(cudaStream_t h) { return h && h != cudaStreamLegacy && h != cudaStreamPerThread; }
/* Its work goes on and it is forgotten when that is done; other work may still wait for it, so it stays in memory. */
cudaError_t cudaStreamDestroy(cudaStream_t h)
{
    cudaError_t e = enter();
    stream     *s = e || !own_stream(h) ? NULL : stream_of(h);
    if (!e && !s) e = cudaErrorInvalidResourceHandle;
    if (!e) {
        s->destroyed = true;
        live_streams--;
        if (!s->head) stream_forget(s);
    }
    return leave(e);
}
cudaError_t cudaStreamSynchronize(cudaStream_t h)
{
    cudaError_t e = enter_outside("cudaStreamSynchronize");
    emu_count(EMU_WAITS);
    stream     *s = e ? NULL : stream_of(h);
    if (!e && !s) e = cudaErrorInvalidResourceHandle;
    if (!e) {
        wait_stream(s);
        e = after(s->device);
    }
    return leave(e);
}
static cudaError_t ready(stream *s, uint64_t at)
{
    if (s->done >= at) return after(s->device);
    go_on(s, emu.mode == RANDOM ? s->done : s->done + 1);
    if (blocked && blocked->kick) blocked->kick(blocked);
    if (s->device < emu.ndevices && emu.device[s->device].sticky) return emu.device[s->device].sticky;
    if (emu.mode == RANDOM) shuffle(1);
    return cudaErrorNotReady;
}
cudaError_t cudaStreamQuery(cudaStream_t h)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(h);
    if (!e && !s) e = cudaErrorInvalidResourceHandle;
    if (!e) e = ready(s, s->queued);
    return leave(e);
}
cudaError_t cudaStreamGetFlags(cudaStream_t h, unsigned *flags)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(h);
    if (!e && (!s || !flags)) e = s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    if (!e) *flags = s->flags;
    return leave(e);
}
cudaError_t cudaStreamGetPriority(cudaStream_t h, int *priority)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(h);
    if (!e && (!s || !priority)) e = s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    if (!e) *priority = s->priority;
    return leave(e);
}
cudaError_t cudaStreamGetDevice(cudaStream_t h, int *d)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(h);
    if (!e && (!s || !d)) e = s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    if (!e) *d = s->device;
    return leave(e);
}

static event *event_of(cudaEvent_t h)
{
    event *ev = (event *)h;
    return ev && ev->magic == EVENT_MAGIC && !ev->destroyed ? ev : NULL;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *h, unsigned flags)
{
    cudaError_t e = enter();
    if (!e && (!h || flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming))) e = cudaErrorInvalidValue;
    if (!e) {
        event *ev = calloc(1, sizeof *ev);
        *ev = (event){.magic = EVENT_MAGIC, .device = current, .flags = flags};
        *h = (cudaEvent_t)ev;
        live_events++;
    }
    return leave(e);
}
cudaError_t cudaEventCreate(cudaEvent_t *h) { return cudaEventCreateWithFlags(h, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t h)
{
    cudaError_t e = enter();
    event      *ev = e ? NULL : event_of(h);
    if (!e && !ev) e = cudaErrorInvalidResourceHandle;
    if (!e) {
        ev->destroyed = true;
        live_events--;
    }
    return leave(e);
}
static int record_run(emu_work *w)
{
    record_work *r = (record_work *)w;
    if (r->ev->at == r->at) r->ev->when = emu_seconds();
    return EMU_DONE;
}
static void drop_plain(emu_work *w) { free(w); }
cudaError_t cudaEventRecord(cudaEvent_t h, cudaStream_t hs)
{
    cudaError_t e = enter();
    event      *ev = e ? NULL : event_of(h);
    stream     *s = e ? NULL : stream_of(hs);
    if (!e && (!ev || !s)) e = cudaErrorInvalidResourceHandle;
    if (!e && ev->device != s->device) e = cudaErrorInvalidResourceHandle;
    if (!e && s->capture) { /* who waits for it outside would wait for nothing */
        ev->s = s;
        ev->at = UINT64_MAX;
        return leave(e);
    }
    if (!e) {
        record_work *r = calloc(1, sizeof *r);
        r->w = (emu_work){.run = record_run, .drop = drop_plain, .name = "cudaEventRecord"};
        r->ev = ev;
        ev->s = s;
        ev->at = r->at = s->queued + 1;
        e = queue(s, &r->w, NULL);
    }
    return leave(e);
}
cudaError_t cudaEventQuery(cudaEvent_t h)
{
    cudaError_t e = enter();
    event      *ev = e ? NULL : event_of(h);
    if (!e && !ev) e = cudaErrorInvalidResourceHandle;
    if (!e && ev->s) e = ready(ev->s, ev->at);
    return leave(e);
}
cudaError_t cudaEventSynchronize(cudaEvent_t h)
{
    cudaError_t e = enter_outside("cudaEventSynchronize");
    event      *ev = e ? NULL : event_of(h);
    if (!e && !ev) e = cudaErrorInvalidResourceHandle;
    if (!e && ev->s) {
        stream *s = ev->s;
        wait_for(s, ev->at);
        e = after(s->device);
    }
    return leave(e);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    cudaError_t e = enter();
    event      *ea = e ? NULL : event_of(a), *eb = e ? NULL : event_of(b);
    if (!e && !ms) e = cudaErrorInvalidValue;
    if (!e && (!ea || !eb || !ea->s || !eb->s || (ea->flags | eb->flags) & cudaEventDisableTiming ||
               ea->device != eb->device))
        e = cudaErrorInvalidResourceHandle;
    if (!e && (ea->s->done < ea->at || eb->s->done < eb->at)) e = cudaErrorNotReady;
    if (!e) *ms = (float)(1e3 * (eb->when - ea->when));
    return leave(e);
}
/* What comes in the stream waits for the event as it has been recorded last. */
static int  nothing_run(emu_work *w) { return (void)w, EMU_DONE; }
cudaError_t cudaStreamWaitEvent(cudaStream_t hs, cudaEvent_t h, unsigned flags)
{
    cudaError_t e = enter();
    event      *ev = e ? NULL : event_of(h);
    stream     *s = e ? NULL : stream_of(hs);
    if (!e && (!ev || !s)) e = cudaErrorInvalidResourceHandle;
    if (!e && flags) e = cudaErrorInvalidValue;
    if (!e && ev->s && ev->s != s && (s->capture != NULL) != (ev->at == UINT64_MAX)) { /* streams that join are not modelled */
        if (capturing) capturing->spoilt = true;
        e = cudaErrorStreamCaptureIsolation;
    }
    if (!e && ev->s && ev->s != s && ev->s->done < ev->at) {
        emu_work *w = calloc(1, sizeof *w);
        *w = (emu_work){.run = nothing_run, .drop = drop_plain, .name = "cudaStreamWaitEvent"};
        e = queue_after(s, w, NULL, (dep){ev->s, ev->at});
    }
    return leave(e);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t hs, enum cudaStreamCaptureMode mode)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(hs);
    if (!e && !s) e = cudaErrorInvalidResourceHandle;
    if (!e && (mode != cudaStreamCaptureModeGlobal || capturing)) e = cudaErrorInvalidValue; /* others are not modelled */
    if (!e && s->is_legacy) e = cudaErrorStreamCaptureUnsupported;
    if (!e) s->capture = capturing = calloc(1, sizeof *capturing);
    return leave(e);
}
static void capture_drop(capture *c)
{
    for (int i = 0; i < c->n; i++) c->w[i]->drop(c->w[i]);
    free(c->w);
    free(c);
}
cudaError_t cudaStreamEndCapture(cudaStream_t hs, cudaGraph_t *graph)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(hs);
    if (!e && !graph) e = cudaErrorInvalidValue;
    if (!e && (!s || !s->capture)) e = cudaErrorIllegalState;
    if (!e) {
        capture *c = s->capture;
        s->capture = capturing = NULL;
        *graph = c->spoilt ? NULL : (cudaGraph_t)c;
        if (c->spoilt) {
            capture_drop(c);
            e = cudaErrorStreamCaptureInvalidated;
        }
    }
    return leave(e);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t hs, enum cudaStreamCaptureStatus *status)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(hs);
    if (!e && (!s || !status)) e = cudaErrorInvalidValue;
    if (!e)
        *status = !s->capture         ? cudaStreamCaptureStatusNone
                  : s->capture->spoilt ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    return leave(e);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    cudaError_t e = enter();
    if (!e && !graph) e = cudaErrorInvalidValue;
    if (!e) capture_drop((capture *)graph);
    return leave(e);
}
typedef struct host_work {
    emu_work     w;
    cudaHostFn_t fn;
    void        *arg;
} host_work;
static int host_run(emu_work *w)
{
    host_work *h = (host_work *)w;
    emu_unlock();
    in_host_function = true;
    h->fn(h->arg);
    in_host_function = false;
    emu_lock();
    host_written(NULL, 0);
    return EMU_DONE;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t hs, cudaHostFn_t fn, void *arg)
{
    cudaError_t e = enter();
    stream     *s = e ? NULL : stream_of(hs);
    if (!e && !s) e = cudaErrorInvalidResourceHandle;
    if (!e && !fn) e = cudaErrorInvalidValue;
    if (!e) {
        host_work *h = calloc(1, sizeof *h);
        h->w = (emu_work){.run = host_run, .drop = drop_plain, .name = "cudaLaunchHostFunc"};
        h->fn = fn;
        h->arg = arg;
        e = queue(s, &h->w, NULL);
    }
    return leave(e);
}

/* ==================================================================================================== >>launch */
typedef struct image { /* PTX of one fat binary for one capability */
    const char *text;
    size_t      n;
    int         arch;
} image;
typedef struct module {
    struct module *next;
    image          images[16];
    int            nimages;
    bool           packed; /* there was PTX that is compressed */
    ptx_module    *loaded[EMU_MAX_DEVICES];
    bool           failed;
} module;
typedef struct kernel {
    uint32_t          magic;
    struct kernel    *next;
    module           *m;
    const void       *host;
    char             *name;
    const ptx_kernel *code[EMU_MAX_DEVICES];
    int               dynamic_most; /* by attribute; -1: not set */
    int               registers;    /* 0: not known */
    int               threads_most; /* by launch bounds */
} kernel;
enum { KERNEL_MAGIC = 0x4e27e1, PARAMS_MOST = 256 };

static module *modules;
static kernel *kernels;

typedef struct launch_config {
    dim3         grid, block;
    size_t       shared;
    cudaStream_t stream;
} launch_config;
static _Thread_local launch_config configs[16];
static _Thread_local int           nconfigs;

/* The ABI between nvcc's host code and the runtime; no C header declares it. */
void      **__cudaRegisterFatBinary(void *wrapper);
void        __cudaRegisterFatBinaryEnd(void **handle);
void        __cudaUnregisterFatBinary(void **handle);
char        __cudaInitModule(void **handle);
void        __cudaRegisterFunction(void **handle, const char *host, char *device_fun, const char *name, int limit,
                                   uint3 *tid, uint3 *bid, dim3 *bdim, dim3 *gdim, int *wsize);
void        __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext, size_t nbytes,
                              int constant, int global);
unsigned    __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream);

static uint64_t field(const unsigned char *p, int nbytes)
{
    uint64_t v = 0;
    memcpy(&v, p, (size_t)nbytes);
    return v;
}
/* A fat binary: magic (4), version (2), bytes of this header (2), bytes of the rest (8); then entries: kind (2; 1 is
   PTX), version (2), bytes of the entry's header (4), bytes of its contents (8), at 28 the capability (4), at 40 flags
   (8) of which 0xf000 are kinds of compression. */
static void read_fat_binary(module *m, const unsigned char *p)
{
    if (field(p, 4) != 0xba55ed50u) {
        emu_fail(-1, cudaErrorInvalidKernelImage, "a fat binary begins with %08x", (unsigned)field(p, 4));
        return;
    }
    const unsigned char *end = p + field(p + 6, 2) + field(p + 8, 8);
    for (p += field(p + 6, 2); p + 64 <= end; p += field(p + 4, 4) + field(p + 8, 8)) {
        if (field(p, 2) != 1) continue; /* machine code */
        if (field(p + 40, 8) & 0xf000) {
            m->packed = true;
            continue;
        }
        if (m->nimages == LEN(m->images)) {
            emu_fail(-1, cudaErrorInvalidKernelImage, "a fat binary with more than %d PTX entries", LEN(m->images));
            return;
        }
        const char *text = (const char *)p + field(p + 4, 4);
        m->images[m->nimages++] = (image){text, strnlen(text, (size_t)field(p + 8, 8)), (int)field(p + 28, 4)};
    }
}
static int highest_ptx(void)
{
    int most = 0;
    for (module *m = modules; m; m = m->next)
        for (int i = 0; i < m->nimages; i++)
            if (m->images[i].arch > most) most = m->images[i].arch;
    return most;
}

void **__cudaRegisterFatBinary(void *wrapper)
{
    struct { int magic, version; const unsigned char *data; void *more; } *w = wrapper;
    module *m = calloc(1, sizeof *m);
    emu_lock();
    if (w->magic != 0x466243b1 || w->version != 1)
        emu_fail(-1, cudaErrorInvalidKernelImage,
                 "a fat binary's wrapper with magic %08x, version %d: relocatable device code is not modelled",
                 (unsigned)w->magic, w->version);
    else read_fat_binary(m, w->data);
    m->next = modules;
    modules = m;
    emu_unlock();
    return (void **)m;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; } /* the report at exit still needs it */
char __cudaInitModule(void **handle) { return handle != NULL; }
void __cudaRegisterFunction(void **handle, const char *host, char *device_fun, const char *name, int limit, uint3 *tid,
                            uint3 *bid, dim3 *bdim, dim3 *gdim, int *wsize)
{
    kernel *k = calloc(1, sizeof *k);
    (void)device_fun, (void)limit, (void)tid, (void)bid, (void)bdim, (void)gdim, (void)wsize;
    emu_lock();
    k->magic = KERNEL_MAGIC;
    k->m = (module *)handle;
    k->host = host;
    k->name = strdup(name);
    k->dynamic_most = -1;
    k->next = kernels;
    kernels = k;
    emu_unlock();
}
/* Variables live in the interpreter's module, one for each device. Functions that name them from the host
   (cudaMemcpyToSymbol and the like) are not modelled, and not defined. */
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext, size_t nbytes, int constant,
                       int global)
{
    (void)handle, (void)host, (void)address, (void)name, (void)ext, (void)nbytes, (void)constant, (void)global;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream_)
{
    if (nconfigs == LEN(configs)) return 1;
    configs[nconfigs++] = (launch_config){grid, block, shared, stream_};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream_)
{
    if (!nconfigs) return last_error = cudaErrorMissingConfiguration;
    launch_config *c = &configs[--nconfigs];
    *grid = c->grid;
    *block = c->block;
    *shared = c->shared;
    *(cudaStream_t *)stream_ = c->stream;
    return cudaSuccess;
}

/* Registers of a kernel in the file DT_EMU_REGS, 0 if it is not there. */
static int registers_of(const char *name)
{
    const char *path = getenv("DT_EMU_REGS");
    char        line[4096], kernel_name[4000];
    int         n, found = 0;
    if (!path || !*path) return 0;
    FILE *f = fopen(path, "r");
    if (!f) {
        emu_fail(-1, cudaErrorUnknown, "DT_EMU_REGS=%s: %s", path, strerror(errno));
        return 0;
    }
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%3999s %d", kernel_name, &n) == 2 && !strcmp(kernel_name, name)) found = n;
    fclose(f);
    return found;
}
/* The product of .maxntid or .reqntid between an entry's parameters and its body; 1024 without. */
static int launch_bound(const image *im, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = im->text; (p = strstr(p, ".entry ")); p++) {
        const char *q = p + 7;
        while (*q == ' ' || *q == '\t') q++;
        if (strncmp(q, name, n) || (q[n] != '(' && q[n] != '\n' && q[n] != ' ')) continue;
        const char *body = strchr(q, '{');
        for (; body && q < body; q++) {
            unsigned x, y = 1, z = 1;
            if ((!strncmp(q, ".maxntid", 8) || !strncmp(q, ".reqntid", 8)) &&
                sscanf(q + 8, "%u , %u , %u", &x, &y, &z) >= 1)
                return (int)(x * y * z);
        }
        break;
    }
    return 1024;
}

static cudaError_t kernel_load(kernel *k, int d)
{
    char         text[512] = "";
    module      *m = k->m;
    const image *best = NULL;
    if (k->code[d]) return cudaSuccess;
    for (int i = 0; i < m->nimages; i++)
        if (m->images[i].arch <= capability() && (!best || m->images[i].arch > best->arch)) best = &m->images[i];
    if (!best) {
        if (m->packed) emu_fail(-1, cudaErrorUnknown, "the PTX of %s is compressed: build with --no-compress", k->name);
        return cudaErrorNoKernelImageForDevice;
    }
    if (!m->loaded[d] && !m->failed) {
        m->loaded[d] = ptx_load(best->text, best->n, text, sizeof text);
        if (!m->loaded[d]) {
            m->failed = true;
            emu_fail(-1, cudaErrorInvalidPtx, "the PTX with %s (compute_%d): %s", k->name, best->arch, text);
        }
    }
    if (m->failed) return cudaErrorInvalidPtx;
    emu_loading(d, k->name);
    k->code[d] = ptx_find(m->loaded[d], k->name);
    if (!k->code[d]) return cudaErrorInvalidDeviceFunction;
    k->registers = registers_of(k->name);
    k->threads_most = launch_bound(best, k->name);
    return cudaSuccess;
}
static kernel *kernel_of(const void *host)
{
    for (kernel *k = kernels; k; k = k->next)
        if (k->host == host || k == host) return k;
    return NULL;
}

typedef struct kernel_work {
    emu_work   w;
    kernel    *k;
    ptx_launch l;
    void      *params[PARAMS_MOST];
    uint64_t   values[]; /* of the parameters, each from an 8-byte boundary of its own */
} kernel_work;
typedef struct view { /* of memory, by the device that a kernel runs on */
    int  device;
    bool pinned;
} view;

static bool view_find(void *user, uint64_t addr, ptx_block *out)
{
    view     *v = user;
    range    *r = range_near((uintptr_t)addr);
    pinned   *q;
    int       owner = device_of_address((uintptr_t)addr);
    uintptr_t p = (uintptr_t)addr;
    if (owner >= 0) {
        if (!r || r->device != owner || p - r->base >= r->nbytes) return false;
        if (!r->host) {
            emu_fail(-1, cudaErrorIllegalAddress, "a kernel uses %p; the %zu bytes at %p have been freed", (void *)p,
                     r->nbytes, (void *)r->base);
            return false;
        }
        if (owner != v->device && !emu.device[v->device].peer[owner]) {
            emu_fail(-1, cudaErrorIllegalAddress, "a kernel of device %d uses %p of device %d without peer access",
                     v->device, (void *)p, owner);
            return false;
        }
        *out = (ptx_block){(char *)r->host + (p - r->base), r->shadow + SHADOW * (p - r->base),
                           r->nbytes - (p - r->base)};
        return true;
    }
    q = pinned_of((void *)p, 1);
    if (!q) return false;
    v->pinned = true;
    *out = (ptx_block){(char *)p, NULL, q->nbytes - (size_t)(p - (uintptr_t)q->ptr)};
    return true;
}
static void view_each(void *user, void (*f)(uint8_t *shadow, size_t nbytes))
{
    (void)user;
    for (int i = 0; i < nranges; i++)
        if (ranges[i].host) f(ranges[i].shadow, ranges[i].nbytes);
}
static emu_costs_fn *costs;
static void         *costs_user;
static int           kernel_run(emu_work *w)
{
    kernel_work *kw = (kernel_work *)w;
    view         v = {w->device, false};
    ptx_memory   memory = {&v, view_find, view_each};
    char         text[1024] = "";
    kw->l.memory = &memory;
    kw->l.seed = emu_random();
    ptx_counts   n;
    emu.kernels++;
    if (costs ? ptx_run_counted(kw->k->code[w->device], &kw->l, &n, text, sizeof text)
              : ptx_run(kw->k->code[w->device], &kw->l, text, sizeof text)) {
        bool misaligned = strstr(text, "align") != NULL, memory_error = strstr(text, "0x") != NULL;
        emu_fail(w->device,
                 misaligned     ? cudaErrorMisalignedAddress
                 : memory_error ? cudaErrorIllegalAddress
                                : cudaErrorLaunchFailure,
                 "%s", text);
    } else if (costs) {
        costs(costs_user, kw->k->name, kw->l.grid, kw->l.block, ptx_shared(kw->k->code[w->device]) + kw->l.shared, &n);
    }
    if (v.pinned) host_written(NULL, 0);
    return EMU_DONE;
}
void emu_costs(emu_costs_fn *f, void *user)
{
    emu_lock();
    costs = f;
    costs_user = user;
    emu_unlock();
}

static cudaError_t limits(const kernel *k, dim3 g, dim3 b, size_t dynamic)
{
    uint64_t threads = (uint64_t)b.x * b.y * b.z, warps = (threads + 31) / 32;
    size_t   shared = ptx_shared(k->code[current]) + dynamic;
    size_t   most = k->dynamic_most > 0 ? ptx_shared(k->code[current]) + (size_t)k->dynamic_most : 0;
    if (most < SHARED) most = SHARED;
    if (!g.x || !g.y || !g.z || !threads || b.x > 1024 || b.y > 1024 || b.z > 64 || threads > 1024 ||
        g.x > 0x7fffffff || g.y > 65535 || g.z > 65535) {
        emu_note("%s: a grid of %u x %u x %u blocks of %u x %u x %u threads", k->name, g.x, g.y, g.z, b.x, b.y, b.z);
        return cudaErrorInvalidConfiguration;
    }
    if (shared > most) {
        emu_note("%s: %zu bytes of shared memory, %zu are allowed", k->name, shared, most);
        return cudaErrorInvalidValue;
    }
    if (threads > (unsigned)k->threads_most) {
        emu_note("%s: %u threads, its launch bounds allow %d", k->name, (unsigned)threads, k->threads_most);
        return cudaErrorLaunchOutOfResources;
    }
    if (warps * (uint64_t)((k->registers * 32 + 255) / 256 * 256) > REGISTERS) {
        emu_note("%s: %u threads of %d registers", k->name, (unsigned)threads, k->registers);
        return cudaErrorLaunchOutOfResources;
    }
    return cudaSuccess;
}
static cudaError_t launch(kernel *k, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t h)
{
    size_t      offset[PARAMS_MOST], nbytes[PARAMS_MOST], n, words = 0;
    stream     *s = stream_of(h);
    cudaError_t e;
    if (!k) return cudaErrorInvalidDeviceFunction;
    if (!s) return cudaErrorInvalidResourceHandle;
    if (s->device != current) {
        emu_note("%s: launched to a stream of device %d, device %d is current", k->name, s->device, current);
        return cudaErrorInvalidResourceHandle;
    }
    if ((e = kernel_load(k, current))) return e;
    if ((e = limits(k, grid, block, shared))) return e;
    n = ptx_params(k->code[current], offset, nbytes, PARAMS_MOST);
    if (n > PARAMS_MOST) return emu_fail(current, cudaErrorInvalidValue, "%s: %zu parameters", k->name, n);
    for (size_t i = 0; i < n; i++) words += (nbytes[i] + 7) / 8;
    kernel_work *kw = calloc(1, sizeof *kw + words * 8);
    kw->w = (emu_work){.run = kernel_run, .drop = drop_plain, .name = k->name};
    kw->k = k;
    kw->l = (ptx_launch){.grid = {grid.x, grid.y, grid.z}, .block = {block.x, block.y, block.z}, .shared = shared};
    kw->l.params = kw->params;
    words = 0;
    for (size_t i = 0; i < n; i++) {
        kw->params[i] = &kw->values[words];
        memcpy(kw->params[i], args[i], nbytes[i]);
        words += (nbytes[i] + 7) / 8;
    }
    return queue(s, &kw->w, NULL);
}
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host)
{
    emu_lock();
    kernel *k = kernel_of(host);
    *out = (cudaKernel_t)k;
    return leave(k ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t h, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream_)
{
    cudaError_t e = enter();
    if (!e) e = launch(kernel_of((void *)h), grid, block, args, shared, stream_);
    return leave(e);
}
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream_)
{
    cudaError_t e = enter();
    if (!e) e = launch(kernel_of(host), grid, block, args, shared, stream_);
    return leave(e);
}
static cudaError_t find_kernel(const void *host, kernel **k)
{
    *k = kernel_of(host);
    return *k ? kernel_load(*k, current) : cudaErrorInvalidDeviceFunction;
}
cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute a, int value)
{
    cudaError_t e = enter();
    kernel     *k = NULL;
    if (!e) e = find_kernel(host, &k);
    if (e) return leave(e);
    size_t fixed = ptx_shared(k->code[current]);
    switch ((int)a) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
        if (value < 0 || fixed + (size_t)value > shared_most()) {
            emu_note("cudaFuncSetAttribute: %s: %d bytes of shared memory and %zu static ones, at most %zu", k->name,
                     value, fixed, shared_most());
            return leave(cudaErrorInvalidValue);
        }
        k->dynamic_most = value;
        break;
    case cudaFuncAttributePreferredSharedMemoryCarveout: /* a hint */
        if (value < -1 || value > 100) return leave(cudaErrorInvalidValue);
        break;
    default: return leave(cudaErrorInvalidValue);
    }
    return leave(cudaSuccess);
}
static int threads_by_registers(const kernel *k)
{
    int n = 1024;
    while (n > 32 && n / 32 * ((k->registers * 32 + 255) / 256 * 256) > REGISTERS) n -= 32;
    return n < k->threads_most ? n : k->threads_most;
}
/* numRegs and localSizeBytes are what ptxas decides; 0 here unless DT_EMU_REGS names the kernel. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host)
{
    cudaError_t e = enter();
    kernel     *k = NULL;
    if (!e && !a) e = cudaErrorInvalidValue;
    if (!e) e = find_kernel(host, &k);
    if (e) return leave(e);
    memset(a, 0, sizeof *a);
    a->sharedSizeBytes = ptx_shared(k->code[current]);
    a->maxThreadsPerBlock = threads_by_registers(k);
    a->numRegs = k->registers;
    a->ptxVersion = a->binaryVersion = capability();
    a->maxDynamicSharedSizeBytes = k->dynamic_most >= 0 ? k->dynamic_most : SHARED - (int)a->sharedSizeBytes;
    a->preferredShmemCarveout = -1;
    return leave(cudaSuccess);
}
static int resident(const kernel *k, int threads, size_t dynamic)
{
    int    warps = (threads + 31) / 32, n = blocks_processor();
    size_t shared = ptx_shared(k->code[current]) + dynamic + (capability() == 75 ? 0 : 1024);
    int    per_warp = (k->registers * 32 + 255) / 256 * 256;
    size_t most = k->dynamic_most > 0 ? ptx_shared(k->code[current]) + (size_t)k->dynamic_most : 0;
    if (threads < 1 || threads > k->threads_most ||
        ptx_shared(k->code[current]) + dynamic > (most < SHARED ? SHARED : most))
        return 0;
    if (threads_processor() / 32 / warps < n) n = threads_processor() / 32 / warps;
    if ((int)(shared_processor() / shared) < n) n = (int)(shared_processor() / shared);
    if (per_warp && REGISTERS / (per_warp * warps) < n) n = REGISTERS / (per_warp * warps);
    return n;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *host, int threads, size_t dynamic)
{
    cudaError_t e = enter();
    kernel     *k = NULL;
    if (!e && (!n || threads < 1)) e = cudaErrorInvalidValue;
    if (!e) e = find_kernel(host, &k);
    if (!e) *n = resident(k, threads, dynamic);
    return leave(e);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *host, int threads,
                                                                   size_t dynamic, unsigned flags)
{
    if (flags > cudaOccupancyDisableCachingOverride) return last_error = cudaErrorInvalidValue;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, host, threads, dynamic);
}

/* ==================================================================================================== >>report */
static void unused_opcode(void *user, const char *opcode, uint64_t loaded, uint64_t executed)
{
    (void)user, (void)loaded;
    if (!executed) fprintf(stderr, " %s", opcode);
}
static void at_exit(void)
{
    uint64_t pending = 0, bytes = 0;
    if (!emu.ready || getpid() != emu.pid) return;
    for (stream *s = streams; s; s = s->next) pending += s->queued - s->done;
    for (int i = 0; i < emu.ndevices; i++) bytes += emu.device[i].used;
    if (emu.leaks && (bytes || live_streams || live_events || pins))
        emu_fail(-1, cudaErrorUnknown, "left at exit: %llu bytes of device memory, %d streams, %d events, %s",
                 (unsigned long long)bytes, live_streams, live_events, pins ? "pinned memory" : "no pinned memory");
    if (emu.report) {
        ptx_counters c;
        ptx_count(&c);
        fprintf(stderr, "emu report: %llu kernels launched, %llu blocks, %llu instructions; %llu copies of %llu bytes, "
                        "%llu memsets, %llu allocations; %llu matrix products, %llu convolutions, %llu collectives\n",
                (unsigned long long)emu.kernels, (unsigned long long)c.blocks, (unsigned long long)c.instructions,
                (unsigned long long)emu.copies, (unsigned long long)emu.copied, (unsigned long long)emu.memsets,
                (unsigned long long)emu.allocations, (unsigned long long)emu.other[EMU_GEMMS],
                (unsigned long long)emu.other[EMU_CONVS], (unsigned long long)emu.other[EMU_COLLECTIVES]);
        for (int i = 0; i < emu.ndevices; i++)
            fprintf(stderr, "emu report: device %d: %zu bytes in use, %zu at most\n", i, emu.device[i].used,
                    emu.device[i].peak);
        fprintf(stderr, "emu report: %llu works queued at exit that nothing waited for; %llu failed checks\n",
                (unsigned long long)pending, (unsigned long long)emu.failures);
        fprintf(stderr,
                "emu report: coverage: %llu of %llu opcodes executed; not executed:", (unsigned long long)c.opcodes_run,
                (unsigned long long)c.opcodes);
        ptx_coverage(unused_opcode, NULL);
        fputc('\n', stderr);
    }
    if (emu.strict && emu.failures) {
        fflush(NULL);
        _exit(97);
    }
}

/* ==================================================================================================== >>gemm */
/* Blocks of 4 rows by 16 columns in registers; k in pieces that stay in cache. */
enum { GEMM_K = 256 };
typedef float vec __attribute__((vector_size(32), aligned(4)));

#if defined __x86_64__ && defined __GNUC__ && !defined __clang__
__attribute__((target_clones("avx2", "default")))
#endif
static void gemm_rows(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                      float *c, int64_t ldc)
{
    int64_t i = 0;
    for (; i + 4 <= m; i += 4) {
        const float *a0 = a + i * lda, *a1 = a0 + lda, *a2 = a1 + lda, *a3 = a2 + lda;
        float       *c0 = c + i * ldc, *c1 = c0 + ldc, *c2 = c1 + ldc, *c3 = c2 + ldc;
        int64_t      j = 0;
        for (; j + 16 <= n; j += 16) {
            vec s[4][2];
            for (int r = 0; r < 4; r++)
                for (int h = 0; h < 2; h++) s[r][h] = *(const vec *)(c + (i + r) * ldc + j + 8 * h);
            for (int64_t p = 0; p < k; p++) {
                vec v0 = *(const vec *)(b + p * ldb + j), v1 = *(const vec *)(b + p * ldb + j + 8);
                s[0][0] += a0[p] * v0, s[0][1] += a0[p] * v1;
                s[1][0] += a1[p] * v0, s[1][1] += a1[p] * v1;
                s[2][0] += a2[p] * v0, s[2][1] += a2[p] * v1;
                s[3][0] += a3[p] * v0, s[3][1] += a3[p] * v1;
            }
            for (int r = 0; r < 4; r++)
                for (int h = 0; h < 2; h++) *(vec *)(c + (i + r) * ldc + j + 8 * h) = s[r][h];
        }
        for (; j < n; j++) {
            float s0 = c0[j], s1 = c1[j], s2 = c2[j], s3 = c3[j];
            for (int64_t p = 0; p < k; p++) {
                float v = b[p * ldb + j];
                s0 += a0[p] * v, s1 += a1[p] * v, s2 += a2[p] * v, s3 += a3[p] * v;
            }
            c0[j] = s0, c1[j] = s1, c2[j] = s2, c3[j] = s3;
        }
    }
    for (; i < m; i++)
        for (int64_t p = 0; p < k; p++) {
            float v = a[i * lda + p];
            for (int64_t j = 0; j < n; j++) c[i * ldc + j] += v * b[p * ldb + j];
        }
}
void emu_sgemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
               int64_t ldc)
{
    for (int64_t p = 0; p < k; p += GEMM_K)
        gemm_rows(m, n, k - p < GEMM_K ? k - p : GEMM_K, a + p, lda, b + p * ldb, ldb, c, ldc);
}
