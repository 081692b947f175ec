/* Compares the loader with PyTorch's DataLoader and with memcpy in one run: make bench-loader

       bench_loader [--rounds N] [--python PATH]

   Two datasets of random bytes, as large as MNIST and CIFAR-10, in memory for both sides; shuffled batches of 128. First
   the SHA-256 of the first unshuffled batch must be equal on both sides. Then they take turns of one epoch each. The
   result of a side is that of its best number of workers (0, 1, 2), the ratio is the median of the turns. The last part
   compares one thread that normalises (or only gathers) with one that copies the same bytes from an array by memcpy. */
#define DT_IMPLEMENTATION
#include "dt_data.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <stdio.h>

#include "bench.h"

enum { BATCH = 128, MAX_ROUNDS = 32 };

typedef struct images {
    const char *name, *title;
    int64_t     n, nbytes;
    dt_shape    shape;
    double      mean[4], std[4];
    uint8_t    *label, *pixel;
    dt_dataset *set, *file;
} images;

static int make_images(images *s, const char *dir)
{
    char     path[600];
    uint64_t x = 88172645463325252u;
    s->label = (uint8_t *)malloc((size_t)(s->n * (s->nbytes + 1)));
    if (!s->label) return -1;
    s->pixel = s->label + s->n;
    for (int64_t i = 0; i < s->n * (s->nbytes + 1); i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        s->label[i] = (uint8_t)(i < s->n ? x % 10 : x >> 32);
    }
    snprintf(path, sizeof path, "%s/%s.bin", dir, s->name);
    FILE *f = fopen(path, "wb");
    bool  ok = f && fwrite(s->label, (size_t)(s->nbytes + 1), (size_t)s->n, f) == (size_t)s->n;
    if (f && fclose(f)) ok = false;
    s->set = dt_arrays(s->pixel, s->n, .x_dtype = DT_U8, .x_shape = s->shape, .y = s->label, .y_dtype = DT_U8,
                       .classes = 10);
    s->file = dt_records_open(path, .skip = s->n, .x_dtype = DT_U8, .x_shape = s->shape);
    return ok && s->set && s->file ? 0 : -1;
}
static dt_loader *open_loader(const images *s, dt_dataset *set, bool augment, bool raw, bool shuffle, int workers)
{
    dt_loader_opts o;
    memset(&o, 0, sizeof o);
    o.batch = BATCH;
    o.shuffle = shuffle;
    o.workers = workers;
    o.drop_last = true;
    o.raw = raw;
    if (!raw) memcpy(o.mean, s->mean, sizeof o.mean);
    if (!raw) memcpy(o.std, s->std, sizeof o.std);
    if (augment) o.crop = 4, o.flip = true;
    return dt_loader_new_with(set, o);
}
static double rate(dt_loader *in, double seconds) /* images per second over whole epochs, without the first batch */
{
    double   t = 0;
    int64_t  n = -BATCH;
    dt_batch b;
    do {
        while (dt_loader_next(in, &b)) {
            if (n < 0) t = now();
            n += b.n;
            dt_end();
        }
    } while (now() - t < seconds && !dt_error());
    return (double)n / (now() - t);
}
static double copies(const float *from, int64_t n, int64_t items,
                     size_t each) /* items per second of memcpy into batches */
{
    char   *to[2] = { (char *)malloc(BATCH * each), (char *)malloc(BATCH * each) };
    double  t = now();
    int64_t done = 0;
    if (!to[0] || !to[1]) return 0;
    memset(to[0], 1, BATCH * each);
    memset(to[1], 1, BATCH * each);
    for (t = now(); now() - t < 0.3; )
        for (int64_t at = 0; at + BATCH <= items; at += BATCH, done += BATCH)
            memcpy(to[at / BATCH % 2], (const char *)from + (size_t)at * each, BATCH * each);
    double r = (double)done / (now() - t);
    (void)n;
    free(to[0]);
    free(to[1]);
    return r;
}

/* ---- the peer */
typedef struct peer {
    pid_t pid;
    FILE *in, *out;
} peer;
static int peer_start(peer *p, const char *python, const char *dir)
{
    int  to[2], from[2];
    char line[128];
    if (pipe(to) || pipe(from)) return -1;
    p->pid = fork();
    if (p->pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        for (int i = 3; i < 64; i++) close(i);
        execlp(python, python, "bench/peer_loader.py", dir, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    p->in = fdopen(to[1], "w");
    p->out = fdopen(from[0], "r");
    return p->in && p->out && fgets(line, sizeof line, p->out) && !strcmp(line, "ready\n") ? 0 : -1;
}
static const char *peer_ask(peer *p, const char *what, const char *answer) /* the text after 'answer', or NULL */
{
    static char line[256];
    fprintf(p->in, "%s\n", what);
    fflush(p->in);
    if (!fgets(line, sizeof line, p->out) || strncmp(line, answer, strlen(answer))) return NULL;
    line[strcspn(line, "\n")] = 0;
    return line + strlen(answer) + 1;
}
static double peer_rate(peer *p, const images *s, const char *work, int workers)
{
    char        what[64];
    const char *a;
    snprintf(what, sizeof what, "%s %s %d", s->name, work, workers);
    a = peer_ask(p, what, "rate");
    return a ? atof(a) : 0;
}
static int same_batch(peer *p, const images *s)
{
    char        what[32];
    const char *a;
    dt_batch    b;
    dt_loader_opts o;
    memset(&o, 0, sizeof o);
    o.batch = BATCH;
    o.digest = true;
    memcpy(o.mean, s->mean, sizeof o.mean);
    memcpy(o.std, s->std, sizeof o.std);
    dt_loader *in = dt_loader_new_with(s->set, o);
    snprintf(what, sizeof what, "sum %s", s->name);
    a = peer_ask(p, what, "sha256");
    int ok = a && dt_loader_next(in, &b) && !strcmp(a, b.sha256);
    if (!ok) fprintf(stderr, "bench_loader: %s: the first batches differ: %s and %s\n", s->name, b.sha256, a ? a : "?");
    dt_end();
    dt_loader_free(in);
    return ok ? 0 : -1;
}

static void beside(peer *p, const images *s, bool augment, const char *work, int rounds)
{
    double ratio[MAX_ROUNDS], ours[MAX_ROUNDS], theirs[MAX_ROUNDS], best[2] = { 0, 0 };
    int    most[2] = { 0, 0 };
    for (int k = 0; k < 3; k++) { /* find the best number of workers */
        dt_loader *in = open_loader(s, s->set, augment, false, true, k);
        double     r[2];
        r[0] = rate(in, 0.3);
        r[1] = peer_rate(p, s, work, k);
        dt_loader_free(in);
        for (int i = 0; i < 2; i++)
            if (r[i] > best[i]) best[i] = r[i], most[i] = k;
    }
    dt_loader *in = open_loader(s, s->set, augment, false, true, most[0]);
    for (int i = 0; i < rounds; i++) {
        ours[i] = rate(in, 0.3);
        theirs[i] = peer_rate(p, s, work, most[1]);
        ratio[i] = ours[i] / theirs[i];
    }
    dt_loader_free(in);
    printf("%s: dt %.0f images/s, PyTorch%s %.0f images/s, ratio %.1f (workers: %d and %d)\n", s->title,
           median(ours, rounds), !strcmp(work, "batches") ? " (batches indexed whole)" : "", median(theirs, rounds),
           median(ratio, rounds), most[0], most[1]);
    fflush(stdout);
}
static void ceiling(const images *s, bool raw, bool shuffle, bool file, int rounds)
{
    size_t     each = (size_t)s->nbytes * (raw ? 1 : 4);
    float     *flat = (float *)malloc((size_t)s->n * each);
    dt_loader *in = open_loader(s, file ? s->file : s->set, false, raw, shuffle, 0);
    double     ratio[MAX_ROUNDS], ours[MAX_ROUNDS], theirs[MAX_ROUNDS];
    if (!flat || !in) return;
    memset(flat, 1, (size_t)s->n * each);
    for (int i = 0; i < rounds; i++) {
        ours[i] = rate(in, 0.3) * (double)each / 1e9;
        theirs[i] = copies(flat, s->n, s->n, each) * (double)each / 1e9;
        ratio[i] = ours[i] / theirs[i];
    }
    printf("%s, %s, %s, from %s: dt %.2f GB/s, memcpy %.2f GB/s, ratio %.2f\n", s->name,
           raw ? "bytes unchanged" : "normalise", shuffle ? "shuffled" : "in order", file ? "a file" : "memory",
           median(ours, rounds), median(theirs, rounds), median(ratio, rounds));
    fflush(stdout);
    dt_loader_free(in);
    free(flat);
}

int main(int argc, char **argv)
{
    const char *python = "python3";
    int         rounds = 5, bad = 0;
    char        dir[] = "build/bench/loader";
    images      mnist = { "mnist",    "MNIST, normalise", 60000, 784,  DT_SHAPE(1, 28, 28),
                          { 0.1307 }, { 0.3081 },         NULL,  NULL, NULL,
                          NULL };
    images      cifar = { "cifar", "CIFAR-10, crop + flip + normalise", 50000, 3072, DT_SHAPE(3, 32, 32),
                          { 0.4914, 0.4822, 0.4465 }, { 0.247, 0.243, 0.261 }, NULL, NULL, NULL, NULL };
    peer        p;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--python")) python = argv[i + 1];
        if (!strcmp(argv[i], "--rounds")) rounds = atoi(argv[i + 1]);
    }
    if (rounds < 1 || rounds > MAX_ROUNDS) rounds = 5;
    mkdir("build", 0777), mkdir("build/bench", 0777), mkdir(dir, 0777);
    if (make_images(&mnist, dir) || make_images(&cifar, dir)) {
        fprintf(stderr, "bench_loader: cannot write its data to %s\n", dir);
        return dt_check("bench_loader") + 1;
    }
    dt_set_num_threads(1);
    memset(&p, 0, sizeof p);
    if (peer_start(&p, python, dir)) {
        fprintf(stderr, "bench_loader: PyTorch did not start (%s bench/peer_loader.py)\n", python);
        bad = 1;
    } else if (same_batch(&p, &mnist) || same_batch(&p, &cifar)) {
        bad = 1;
    } else {
        beside(&p, &cifar, true, "augment", rounds);
        beside(&p, &mnist, false, "plain", rounds);
        beside(&p, &mnist, false, "batches", rounds);
    }
    if (p.in) fclose(p.in);
    if (p.out) fclose(p.out);
    if (p.pid > 0) waitpid(p.pid, NULL, 0);
    for (int k = 0; k < 2; k++) {
        images *s = k ? &cifar : &mnist;
        ceiling(s, false, true, false, rounds);
        ceiling(s, false, false, false, rounds);
        ceiling(s, false, true, true, rounds);
        ceiling(s, true, true, false, rounds);
        ceiling(s, true, false, true, rounds);
    }
    dt_dataset_free(mnist.set);
    dt_dataset_free(mnist.file);
    dt_dataset_free(cifar.set);
    dt_dataset_free(cifar.file);
    free(mnist.label);
    free(cifar.label);
    return bad | dt_check("bench_loader");
}
