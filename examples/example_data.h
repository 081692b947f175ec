/* example_data.h - shared by the examples: ranks, devices, and the digits of data/digits, enlarged to the network's input size

       dt_dataset *train, *test;
       example_digits("data/digits", 1, 28, 3, &train, &test);     x (1, 28, 28) in 0..1: each pixel 3x3, border of 2

   Include it after dt_data.h and, for example_start and example_device, after dt_comm.h and dt_cuda.h (dt_nccl.h is both). */
#ifndef EXAMPLE_DATA_H_INCLUDED
#define EXAMPLE_DATA_H_INCLUDED

#include "options.h"

#ifdef DT_COMM_H_INCLUDED
/* Runs fn on the ranks that the command line requests: --nproc N processes on this machine (--gpus N means the same).
   With --nodes N, as many on each of N machines; --nr is the number of this one. Without --nproc: in this process, as the
   one rank that a launcher started (dtrun, mpirun, torchrun --no-python, srun) or as a world of one. */
typedef struct example_args {
    int    argc;
    char **argv;
    void  *user;
} example_args;
static inline int example_start(int argc, char **argv, int (*fn)(void *args))
{
    example_args a;
    a.argc = argc;
    a.argv = argv;
    a.user = NULL;
    int nproc = atoi(example_option(argc, argv, "--nproc", example_option(argc, argv, "--gpus", "0")));
    int nodes = atoi(example_option(argc, argv, "--nodes", "1")), nr = atoi(example_option(argc, argv, "--nr", "0"));
    int rc = nproc > 0 ? dt_spawn_nodes(nodes, nr, nproc, fn, &a) : fn(&a);
    if (rc < 0) fprintf(stderr, "%s: %s\n", argv[0], dt_comm_error(NULL));
    return rc != 0;
}
/* The communicator of an example, with NCCL if the models are on GPUs. After an error: prints it and returns NULL. */
static inline dt_comm *example_comm(int argc, char **argv)
{
    int backend = 0;
#ifdef DT_USE_NCCL
    if (strncmp(example_option(argc, argv, "--device", "cpu"), "cuda", 4) == 0 && dt_cuda_count() > 0) backend = DT_NCCL;
#endif
    (void)argc;
    dt_comm *comm = dt_comm_init(.backend = backend);
    if (!comm) fprintf(stderr, "%s: %s\n", argv[0], dt_comm_error(NULL));
    return comm;
}
#endif

#ifdef DT_ELASTIC_H_INCLUDED
/* One training loop for both: a fixed number of ranks (loader, ddp), and with --elastic members that come and go (docs/elastic.md).
   Before example_team_begin: elastic, opt, in (elastic: without .rank and .world), and the options of one of them; then e or ddp is there. */
typedef struct example_team {
    bool          elastic;
    dt_optimizer *opt;
    dt_loader    *in;
    dt_comm      *comm; /* NULL with --elastic */
    dt_ddp       *ddp;  /* the same; dt_elastic_ddp changes with the members */
    dt_elastic   *e;    /* NULL without */
} example_team;
static inline void example_team_begin(example_team *t, dt_model *m, dt_elastic_opts o)
{
    if (t->elastic) t->e = dt_elastic_new_with(m, t->opt, t->in, o);
    else t->ddp = dt_ddp_new_with(m, t->comm, o.ddp);
}
static inline void example_team_end(example_team *t) /* before the model and the loader are freed */
{
    dt_elastic_free(t->e);
    dt_ddp_free(t->ddp);
}
static inline int example_rank(const example_team *t) { return t->elastic ? dt_elastic_rank(t->e) : dt_comm_rank(t->comm); }
static inline int example_size(const example_team *t) { return t->elastic ? dt_elastic_size(t->e) : dt_comm_size(t->comm); }
static inline int64_t example_epoch(const example_team *t) { return t->elastic ? t->e ? dt_elastic_epoch(t->e) : INT64_MAX : dt_loader_epoch(t->in); }
static inline bool    example_next(example_team *t, dt_batch *b) { return t->elastic ? dt_elastic_next(t->e, b) : dt_loader_next(t->in, b); }
/* false: the step does not count. It is made again without a member that died; or more batches belong to it. */
static inline bool example_step(example_team *t)
{
    if (t->elastic) return dt_elastic_step(t->e);
    dt_step(t->opt);
    return dt_error() == NULL;
}
#endif

#ifdef DT_CUDA_H
/* The device that --device names: cpu, cuda:N, or cuda, which is GPU (local rank modulo number of GPUs). If the machine
   has no GPU, it is the CPU, and rank 0 prints the reason. NULL with an error pending if the device does not exist. */
static inline dt_device *example_device(int argc, char **argv, int rank, int local_rank)
{
    const char *name = example_option(argc, argv, "--device", "cpu");
    int         n = dt_cuda_count(), index = n > 0 ? local_rank % n : 0;
    char        end = 0;
    if (!strcmp(name, "cpu")) return dt_cpu();
    if (strcmp(name, "cuda") != 0 && sscanf(name, "cuda:%d%c", &index, &end) != 1) {
        dt_fail(DT_ERR_ARG, "--device %s, expected cpu, cuda or cuda:N", name);
        return NULL;
    }
    dt_device *dev = dt_cuda(index);
    if (dev || n > 0) return dev;
    if (rank == 0) fprintf(stderr, "%s; training on the CPU\n", dt_error());
    dt_error_clear();
    return dt_cpu();
}
#endif

/* Does dir/file or dir/file.gz exist? */
static inline bool example_has(const char *dir, const char *file)
{
    char  path[1024];
    FILE *f = NULL;
    for (int gz = 0; gz < 2 && !f; gz++) {
        snprintf(path, sizeof path, "%s/%s%s", dir, file, gz ? ".gz" : "");
        f = fopen(path, "rb");
    }
    if (f) fclose(f);
    return f != NULL;
}

/* ---- the digits: 8x8 pixels of 0..16, enlarged by the callback of a dataset that reads another dataset */
typedef struct example_zoom {
    dt_dataset *from;
    int         channels, side, zoom;
} example_zoom;
static inline int example_zoom_get(void *user, int64_t i, void *x, void *y)
{
    const example_zoom *z = (const example_zoom *)user;
    int                 all = z->channels * z->side * z->side, inner = 8 * z->zoom, border = (z->side - inner) / 2;
    unsigned char       pixel[64];
    if (dt_dataset_get(z->from, i, pixel, y)) return dt_error_code();
    for (int k = 0; k < all; k++) {
        int r = k / z->side % z->side - border, c = k % z->side - border;
        ((float *)x)[k] = r < 0 || c < 0 || r >= inner || c >= inner ? 0 : pixel[r / z->zoom * 8 + c / z->zoom] / 16.0f;
    }
    return 0;
}
static inline void example_zoom_free(void *user)
{
    dt_dataset_free(((example_zoom *)user)->from);
    free(user);
}
static inline bool example_has_digits(const char *dir) { return example_has(dir, "digits-images-idx3-ubyte"); }
/* x is f32 (channels, side, side); each pixel is enlarged to zoom x zoom, and the image is centred. Every fifth image is
   for testing: the file is sorted by writer, so a contiguous split would test on other writers than it trains on. */
static inline dt_status example_digits(const char *dir, int channels, int side, int zoom, dt_dataset **train,
                                       dt_dataset **test)
{
    char          images[1024], labels[1024];
    example_zoom *z = (example_zoom *)malloc(sizeof *z);
    *train = *test = NULL;
    snprintf(images, sizeof images, "%s/digits-images-idx3-ubyte", dir);
    snprintf(labels, sizeof labels, "%s/digits-labels-idx1-ubyte", dir);
    dt_dataset  *from = dt_idx_open(images, .labels = labels, .classes = 10);
    dt_item_info item = dt_dataset_item_info(from);
    int64_t      n = dt_dataset_len(from), *index = (int64_t *)malloc((size_t)(n + 1) * sizeof *index);
    int64_t     *dim = item.x_shape.dim;
    if (from && (item.x_dtype != DT_U8 || item.x_shape.ndim != 2 || dim[0] != 8 || dim[1] != 8))
        dt_fail(DT_ERR_SHAPE, "example_digits: the images of %s are not u8 of shape (8, 8)", dir);
    else if (from && (!z || !index))
        dt_fail(DT_ERR_MEMORY, "example_digits: out of memory");
    if (dt_error()) {
        dt_dataset_free(from);
        free(z);
        free(index);
        return dt_error_code();
    }
    z->from = from, z->channels = channels, z->side = side, z->zoom = zoom;
    dt_dataset *all = dt_source(.n = n, .x_shape = DT_SHAPE(channels, side, side), .has_y = true, .y_dtype = DT_I64,
                                .classes = 10, .get = example_zoom_get, .free = example_zoom_free, .user = z);
    int64_t     ntest = 0, ntrain = 0;
    for (int64_t i = 0; i < n; i += 5) index[ntest++] = i;
    *test = dt_dataset_subset(all, index, ntest);
    for (int64_t i = 0; i < n; i++)
        if (i % 5) index[ntrain++] = i;
    *train = dt_dataset_subset(all, index, ntrain);
    if (!all) example_zoom_free(z);
    dt_dataset_free(all); /* the subsets hold references */
    free(index);
    return dt_error_code();
}

#endif /* EXAMPLE_DATA_H_INCLUDED */
