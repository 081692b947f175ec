/* dt_scale.h - v0.2.0 - will it scale? models, clusters, predicted steps */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_scale.h"
    In every other file that uses it:           #include "dt_scale.h"

    Link with -lm. dt_plan.h and dt_base.h must lie beside it. tools/dtplan.c is a program around this header.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_scale.h"
    #include <stdio.h>

    int main(void)
    {
        dt_scale_cluster     c;
        static dt_scale_opts o;
        dt_scale_prediction *p;
        dt_scale_model      *m = dt_scale_model_new("resnet50");
        dt_scale_cluster_default(&c);
        c.machines = 4;
        c.per_machine = 8;
        o.model = m;
        o.cluster = &c;
        o.batch = 32;
        p = dt_scale_predict(&o);
        if (p) printf("%d devices: %.0f images/s, %.0f %% of linear\n", p->devices, p->rate, 100 * p->efficiency);
        else printf("%s\n", dt_plan_error());
        int bad = !p || !(p->efficiency > 0);
        dt_scale_prediction_free(p);
        dt_scale_model_free(m);
        return bad;
    }

WHAT IT DOES NOT DO

    It measures nothing and trains nothing: no sockets, no threads, no tensors, no files. Every call is a pure function of its
    arguments. It knows nothing of accuracy: how many samples a model needs with a large batch is not predicted.

CONTENTS

    >>quantities     numbers with units
    >>models         models described by their layers, and profiles of measured ones
    >>clusters       devices, links, machines, switches
    >>steps          a step of training predicted
    >>layouts        memory of a device, and the best layout by search
    >>constants      implementation from here: devices, links, and what kernels and networks reach, with their sources
    >>units          reading and writing quantities
    >>shapes         the known models
    >>reading        profiles and descriptions of clusters
    >>timelines      computation and communication side by side
    >>predicting     implementation of steps
    >>searching      implementation of layouts

MACROS

    DT_SCALE_IMPLEMENTATION  this header's part of DT_IMPLEMENTATION
    DT_COMM_MALLOC, DT_COMM_REALLOC, DT_COMM_FREE  memory (define all three or none); default malloc

ERRORS

    A call returns 0 or a negative number, or an object or NULL, and leaves a message for dt_plan_error.

THREADS

    All calls are thread-safe.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_SCALE_IMPLEMENTATION)
#define DT_SCALE_IMPLEMENTATION
#endif
#include "dt_plan.h"

#ifndef DT_SCALE_H_INCLUDED
#define DT_SCALE_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_scale.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>quantities
   A quantity is a number and, directly behind it, its unit: 1.25GB/s, 10Gbit/s, 80GB, 16MiB, 30us, 15TFLOP/s. Digits, perhaps
   with a point and more digits; no sign, no exponent. k, M, G, T, P are powers of 1000; Ki, Mi, Gi, Ti, Pi (of bytes only)
   of 1024. A number without a unit is refused: a byte is eight bits, and guessing would be wrong by that. */
typedef enum dt_scale_unit {
    DT_SCALE_BYTES,   /* B: 80GB, 16MiB */
    DT_SCALE_RATE,    /* B/s or bit/s: 1.25GB/s, 10Gbit/s. GBps, Gbps, Gb/s are refused: people mean different things */
    DT_SCALE_SECONDS, /* s, ms, us, ns */
    DT_SCALE_FLOP,    /* FLOP: 4.1GFLOP */
    DT_SCALE_SPEED,   /* FLOP/s: 15TFLOP/s. 15T alone is accepted: it needs a prefix, and a speed has only this unit */
    DT_SCALE_UNIT_COUNT
} dt_scale_unit;
/* Reads the n bytes at text, all of them. Returns 0; or a negative number, and dt_plan_error says what was found and what was
   expected. */
DT_API int dt_scale_quantity(const char *text, size_t n, dt_scale_unit unit, double *out);
/* The name nearest to a mistyped word; NULL: none is near. name(i): the i-th name, NULL after the last one. */
DT_API const char *dt_scale_nearest(const char *word, const char *(*name)(int i));
/* Writes a quantity with its unit, which dt_scale_quantity reads again. Returns buf. */
DT_API char *dt_scale_show(char *buf, size_t nbytes, double x, dt_scale_unit unit);

/* ---------------------------------------------------------------------------------------------------- >>models
   A model is a list of layers in the order in which they run. dt_scale_model_new makes one of the known models: operations,
   parameters and activations are computed from the shapes of its layers. dt_scale_profile_parse reads a profile of
   a program that was measured: the same list, with seconds.

   A profile is a text. Times, operations and bytes of a layer are those of one step of one rank, with `batch` samples. The
   first line is "dt profile 1", the last one "end"; a # begins a remark. Between them, in any order, each at most once
   except layer:

       model NAME
       batch 100 image         samples of a step, and what a sample is called              needed
       sample 784B             bytes of a sample in storage
       tokens 128              tokens of a sample, if it is text
       parameter 4B            bytes of each element of a parameter; default 4B
       gradient 4B             of its gradient as it is sent; default 4B
       state 8B                of all other things that an optimiser keeps for it: states, masters; default 0B
       step 12.3ms             a whole step                                                needed
       forward 3.1ms           its parts: forward,
       backward 8ms            backward,
       update 0.4ms            the optimiser,
       input 0.1ms             and what the step waited for data
       load 2.5ms              what the loader needs for a batch, with its workers
       workspace 2MB           the most memory that kernels need beside what layers hold
       layer NAME forward 120us backward 310us flops 1.2GFLOP params 1.6kB held 12MB out 3MB ready 7.9ms

   At least one layer, in the order of the forward. NAME has no blanks. forward, backward, params are needed, and ready where
   params is not 0B: seconds from the begin of the backward until the last gradient of the layer is complete. flops: of the
   forward. held: bytes kept from the forward to the backward. out: bytes that the next layer gets. What a step takes beside its parts
   counts, too. */
enum { DT_SCALE_NAME = 64 };
typedef struct dt_scale_layer { /* what is per sample is of one sample */
    char    name[DT_SCALE_NAME];
    double  flops;       /* operations of the forward per sample; a multiplication and an addition are two */
    double  flops_back;  /* of the backward */
    int64_t params;      /* elements of its parameters */
    double  held;        /* elements kept per sample from the forward to the backward */
    double  out;         /* elements of its output per sample */
    double  flops_again; /* selective recomputation: operations of the forward done again, */
    double  held_again;  /* and elements kept then */
    double  sync;        /* elements per sample that a tensor-parallel group adds in the forward, and again in the backward */
    int     parts;       /* its tensor-parallel ranks must divide this (heads, columns); 0: every rank has the whole layer */
    int     block;       /* layers of a block are recomputed together, and are in one stage of a pipeline */
    double  forward, backward; /* measured seconds of a step of model.batch samples; 0: not measured */
    double  ready;       /* measured seconds from the begin of the backward until its gradients are complete */
} dt_scale_layer;
typedef struct dt_scale_model {
    char   name[DT_SCALE_NAME];
    char   unit[DT_SCALE_NAME];  /* what a sample is called: "image" */
    int    tokens;               /* of a sample; 0: it is no text */
    double sample_bytes;         /* of a sample in storage; 0: not known */
    double batch;                /* samples of the measured step; 0: not measured */
    double parameter_bytes, gradient_bytes, state_bytes; /* measured: bytes of each element */
    double step, forward, backward, update, input, load; /* measured seconds of a step */
    double workspace;            /* measured bytes */
    int             nlayers, cap;
    dt_scale_layer *layer;
} dt_scale_model;
DT_API const char     *dt_scale_model_name(int i);         /* the i-th known model, "alexnet" ...; NULL: there are no more */
DT_API dt_scale_model *dt_scale_model_new(const char *name); /* NULL: dt_plan_error names the nearest known model */
/* A GPT of any size, with heads that divide width, MLPs of 4 x width, and a head that has the weights of the embedding */
DT_API dt_scale_model *dt_scale_gpt_new(const char *name, int width, int layers, int heads, int positions, int vocabulary);
DT_API void            dt_scale_model_free(dt_scale_model *m); /* NULL is accepted */
typedef struct dt_scale_sums {
    int64_t params;
    double  flops, flops_back, held; /* of one sample */
    double  forward, backward;       /* measured */
} dt_scale_sums;
DT_API dt_scale_sums   dt_scale_model_sums(const dt_scale_model *m);
/* file: its name, for messages. NULL: dt_plan_error names file, line, column, what was found and what was expected. */
DT_API dt_scale_model *dt_scale_profile_parse(const char *file, const char *text, size_t n);
/* A model with measured seconds as the text of a profile. Returns the length as snprintf does. */
DT_API size_t          dt_scale_profile_text(const dt_scale_model *m, char *buf, size_t nbytes);

/* ---------------------------------------------------------------------------------------------------- >>clusters
   A cluster is a number of equal machines with equal devices. Inside a machine devices are joined by `intra`, machines by
   `inter`. A text describes it:

       dt cluster 1
       device v100                        a known device; or a name of your own and what it is:
       device mine speed 15TFLOP/s memory 16GB bandwidth 900GB/s
       machines 4
       devices 8                          of a machine
       intra nvlink-v100                  a known link; or:
       intra mine rate 63GB/s latency 3us
       inter mine rate 10Gbit/s latency 20us
       inter slow rate 400Mbit/s latency 20us burst 64kB    a shaper, which lets so many bytes pass at once after a pause
       shared                             the devices of a machine share its inter link; without it each has its own
       inside ring                        how the devices of a machine are joined: full (default), ring, switch
       switch rate 40Gbit/s               all traffic of a switch between machines together
       trunk rate 40Gbit/s machines 2     so many machines at each switch; from a switch to the others
       storage rate 2GB/s                 what a machine reads of its data set
       reduce rate 8GB/s                  what a device adds or copies; this and the next: measured, see below
       together 93%                       busy 80%                    spread 2%    (a line each)
       stream rate 50GB/s together 60%    what a device moves in memory, and its part of that when all do
       end

   device, machines and devices are needed, intra where a machine has several devices, inter with several machines. */
typedef struct dt_scale_device {
    char   name[DT_SCALE_NAME];
    double speed;      /* operations a second at the precision of the prediction, at best */
    double half_speed; /* with 16-bit products; 0: as speed */
    double bandwidth;  /* of its memory, bytes a second */
    double memory;     /* bytes */
    double part;       /* the part of `speed` that products reach; 0: see >>constants */
    double launch;     /* seconds to start a kernel */
    double factor;     /* measured seconds of computation for each second that is computed; 0: 1 */
} dt_scale_device;
typedef struct dt_scale_link {
    char   name[DT_SCALE_NAME];
    double rate;    /* bytes a second in each direction */
    double latency; /* seconds a message */
    double burst;   /* bytes that pass at once after a pause: the bucket of a traffic shaper. 0: none */
} dt_scale_link;
enum { DT_SCALE_FULL = 0, DT_SCALE_RING, DT_SCALE_SWITCH }; /* dt_scale_cluster.inside */
typedef struct dt_scale_cluster {
    char            name[DT_SCALE_NAME];
    int             machines, per_machine;
    dt_scale_device device;
    dt_scale_link   intra, inter; /* between devices of a machine, and between machines */
    bool            shared;   /* the devices of a machine share `inter`; else each has its own */
    int             inside;   /* DT_SCALE_FULL ... */
    double          fabric;   /* bytes a second of a switch between machines, for all its traffic together; 0: no limit */
    double          trunk;    /* bytes a second from a switch to the others; 0: one switch */
    int             per_switch; /* machines at each switch; 0: all */
    double          storage;  /* bytes a second that a machine reads of its data set; 0: no limit */
    /* a measured calibration of the machine, which knows no model; 0: not measured */
    double          reduce;   /* seconds a byte reduced or copied */
    double          together; /* speed of each of per_machine independent processes, in parts of that of one alone, 0 to 1 */
    double          stream, crowded; /* bytes a second that one process alone moves in memory that is no cache, and the speed of each of
                                 per_machine processes that do it, in parts of that. With these two `together` is of products alone */
    int             sharing;  /* devices that share cores and memory, if it is not per_machine; 0: per_machine */
    double          busy;     /* part of a transfer's time in which the device cannot compute, because it copies itself: 0 for
                                 GPUs with copy engines, about 1 for ranks on CPUs in shared memory. Above 1: the transfer takes
                                 so many times as long while the device computes, which makes no progress then */
    double          spread;   /* standard deviation of the time of a step of one device, in parts of it */
} dt_scale_cluster;
DT_API const char *dt_scale_device_name(int i); /* the i-th known device; NULL: there are no more */
DT_API const char *dt_scale_link_name(int i);
DT_API int  dt_scale_device_find(const char *name, dt_scale_device *out); /* negative: dt_plan_error names the nearest one */
DT_API int  dt_scale_link_find(const char *name, dt_scale_link *out);
DT_API void dt_scale_cluster_default(dt_scale_cluster *c); /* 1 machine with 8 V100, NVLink, 100 Gbit/s between machines */
DT_API int  dt_scale_cluster_parse(dt_scale_cluster *c, const char *file, const char *text, size_t n);

/* ---------------------------------------------------------------------------------------------------- >>steps
   dt_scale_predict says how long a step takes, and why. */
/* Precision, and bytes of a parameter, its gradient, and its masters and two states of Adam */
enum { DT_SCALE_F32 = 0, /* 4 + 4 + 8 */
       DT_SCALE_AMP,     /* 2 + 2 + 12: halves with f32 masters, as in the paper of ZeRO */
       DT_SCALE_O2 };    /* 2 + 2 + 16: dt's O2, which has f32 gradients, too */
enum { DT_SCALE_KEEP = 0, DT_SCALE_SELECTIVE, DT_SCALE_FULL_AGAIN }; /* recomputation: none, attention, each block */
/* Servers: on machines of their own; on machines of the workers; on all machines of the workers and `servers` of their own,
   with the load divided as BytePS does */
enum { DT_SCALE_APART = 0, DT_SCALE_BESIDE, DT_SCALE_BYTEPS };
typedef struct dt_scale_layout {
    int          data, pipe, tensor; /* devices = data x pipe x tensor; 0: pipe and tensor 1, data the rest */
    int          zero;               /* 0: DDP; 1, 2, 3: sharded optimiser, gradients, parameters */
    int          micro;              /* micro-batches of a step; 0: 1, with a pipeline 4 x pipe */
    dt_pipe_kind schedule;
    int          chunks;             /* of a rank with DT_PIPE_INTERLEAVED */
    int          recompute;
} dt_scale_layout;
typedef struct dt_scale_opts {
    const dt_scale_model   *model;
    const dt_scale_cluster *cluster;
    double                  batch;   /* samples of each data-parallel rank in a step; 0: 32, or the profile's */
    dt_scale_layout         layout;
    int                     precision;
    int                     states;  /* elements that the optimiser keeps for each parameter; 0: 2 (Adam); -1: 0 */
    dt_algo                 algo;    /* of the allreduce; DT_ALGO_AUTO: by cost, for each bucket */
    double                  bucket;  /* bytes; 0: 25 MiB, with a first bucket of 1 MiB */
    dt_switch               overlap; /* of communication and backward; default yes */
    int                     servers; /* machines of a parameter server; 0: allreduce, except with DT_SCALE_BYTEPS */
    int                     serving; /* where they are */
    double                  compress; /* bytes sent for each byte of gradient; 0: 1 */
    double                  encode;  /* seconds a byte of gradient, to compress and to decompress */
} dt_scale_opts;
typedef struct dt_scale_bucket {
    double  nbytes, ready, start, end; /* seconds from the begin of the step; ready: its last gradient is complete */
    int     first, last;               /* layers; first >= last: backwards */
    dt_algo algo;
} dt_scale_bucket;
typedef enum dt_scale_event_kind {
    DT_SCALE_EVENT_FORWARD = 1, DT_SCALE_EVENT_BACKWARD, DT_SCALE_EVENT_REDUCE, DT_SCALE_EVENT_GATHER, DT_SCALE_EVENT_UPDATE
} dt_scale_event_kind;
typedef struct dt_scale_event { /* of one predicted step: a task of the computation or communication of one rank */
    int    rank, kind, layer, micro; /* of a pipeline: its rank, the first layer of the stage, the micro-batch */
    double start, end;
} dt_scale_event;
typedef struct dt_scale_memory { /* bytes of the device that needs most */
    double parameters, gradients, states, activations, workspace, buckets, all;
} dt_scale_memory;
typedef struct dt_scale_prediction {
    int     devices;
    double  t1, t2;            /* computation and communication of a step, each by itself */
    double  step;              /* seconds */
    double  forward, backward, update; /* its parts */
    double  exposed, bubble, input;    /* and: communication that is not hidden, idle in the pipeline, waiting for data */
    double  rate;              /* samples a second of all devices */
    double  alone;             /* samples a second of one device without communication */
    double  efficiency;        /* rate / (devices x alone) */
    double  data_rate;         /* bytes a second that all machines read together */
    dt_scale_memory memory;
    bool             fits;      /* into the memory of the device, if that is known */
    double           batch;     /* samples of a data-parallel rank */
    dt_scale_layout  layout;    /* with the defaults filled in */
    int              nbuckets;  /* without a pipeline */
    dt_scale_bucket *bucket;
    int              nevents;
    dt_scale_event  *event;
} dt_scale_prediction;
DT_API dt_scale_prediction *dt_scale_predict(const dt_scale_opts *o); /* NULL: dt_plan_error says why */
DT_API void                 dt_scale_prediction_free(dt_scale_prediction *p); /* NULL is accepted */
/* The smallest batch of a rank from which on communication is hidden: exposed communication is at most 5 % of the step. 0:
   there is none up to 65536; a negative number: dt_plan_error says why. */
DT_API int                  dt_scale_linear_batch(const dt_scale_opts *o);
/* Seconds in which n machines of workers push nbytes of gradients to a parameter server on k machines, at rate bytes a second
   of each machine; to pull as many takes as long. beside: the servers are on k of the workers' machines. */
DT_API double dt_scale_server_seconds(int n, int k, bool beside, double nbytes, double rate);
/* Push and pull with BytePS's division, where n machines of workers are servers, too, and k machines are servers only:
   2 n (n - 1) nbytes / ((n^2 + k n - 2 k) rate). k = 0 is the ring, k = n is nbytes / rate. */
DT_API double dt_scale_byteps_seconds(int n, int k, double nbytes, double rate);

/* ---------------------------------------------------------------------------------------------------- >>layouts
   dt_scale_search tries every layout of the cluster's devices: data x pipe x tensor, zero, micro-batches (powers of two; with a
   pipeline at most 64 for each rank), schedule, recomputation. The batch of all devices together, .batch x devices, is the same
   for all, so that they train the same. Fields of .layout that are not 0 (data, pipe, tensor) are kept. best gets the n fastest
   that fit into the memory of a device, the fastest first. Returns how many there are, or a negative number. tried, fitting
   (NULL is accepted): how many layouts were predicted, and how many of them fit. */
typedef struct dt_scale_choice {
    dt_scale_layout layout;
    double          step, rate, efficiency, exposed, bubble; /* as in dt_scale_prediction */
    dt_scale_memory memory;
} dt_scale_choice;
DT_API int dt_scale_search(const dt_scale_opts *o, dt_scale_choice *best, int n, int64_t *tried, int64_t *fitting);

#ifdef __cplusplus
}
#endif
#endif /* DT_SCALE_H_INCLUDED */

#if defined(DT_SCALE_IMPLEMENTATION) && !defined(DT__SCALE_IMPLEMENTED)
#define DT__SCALE_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__BASE_IMPLEMENTED)
#error "dt_scale.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_SCALE_IMPLEMENTATION"
#endif
#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(SCALE);
DT__NEEDS(SCALE, PLAN);

DT__SLOW_BEGIN
/* ==================================================================================================== >>constants
   All constants of devices, links and software, each with its source. None is fitted to a row that it is judged by. */
typedef struct dt__scale_device_row {
    const char *name;
    double      speed, half, bandwidth, memory; /* TFLOP/s, TFLOP/s of 16-bit products, GB/s, GB */
} dt__scale_device_row;
static const dt__scale_device_row dt__scale_devices[] = {
    { "k80", 4.37, 4.37, 240, 12 },        /* half of a Tesla K80, whose data sheet has 8.73 TFLOP/s with boost, 480 GB/s */
    { "p40", 11.76, 11.76, 346, 24 },      /* data sheet of Tesla P40 */
    { "p100", 10.6, 21.2, 732, 16 },       /* data sheet of Tesla P100 for NVLink */
    { "v100", 15.7, 125, 900, 16 },        /* data sheet of Tesla V100 SXM2 */
    { "v100-32", 15.7, 125, 900, 32 },     /* the same, 32 GB */
    { "t4", 8.1, 65, 320, 16 },            /* data sheet of T4 */
    { "a100", 19.5, 312, 2039, 80 },       /* data sheet of A100 SXM 80 GB; f32 without TF32 */
    { "a100-40", 19.5, 312, 1555, 40 },    /* data sheet of A100 SXM 40 GB */
    { "a100-tf32", 156, 312, 1555, 40 },   /* the same with TF32 products */
    { "h100", 66.9, 989, 3350, 80 },       /* data sheet of H100 SXM, dense */
    { "xeon-core", 0.1, 0.1, 10, 16 },     /* one core with AVX2 and FMA at 3.1 GHz: 2 x 2 x 8 operations a cycle */
};
typedef struct dt__scale_link_row {
    const char *name;
    double      rate, latency; /* GB/s in each direction, microseconds a message */
} dt__scale_link_row;
/* Latencies of NVLink and PCIe are those of a hop of NCCL's rings (tuning.cc: 3.4 and 5.7 us), of a network those of its
   sockets and verbs (14 us). */
static const dt__scale_link_row dt__scale_links[] = {
    { "pcie3", 12, 5.7 },           /* 16 lanes: 15.75 GB/s less the headers of packets of 256 bytes */
    { "pcie4", 24, 5.7 },           /* twice that */
    { "nvlink1", 80, 3.4 },         /* P100: 4 links of 20 GB/s */
    { "nvlink2", 150, 3.4 },        /* V100: 6 links of 25 GB/s */
    { "nvlink3", 300, 3.4 },        /* A100: 12 links of 25 GB/s */
    { "nvlink4", 450, 3.4 },        /* H100: 18 links of 25 GB/s */
    { "ethernet-1g", 0.118, 30 },   /* 1 Gbit/s less the headers of Ethernet, IP and TCP: 94 % */
    { "ethernet-10g", 1.18, 30 },   /* 10 Gbit/s, the same */
    { "ethernet-25g", 2.94, 30 },   /* 25 Gbit/s, the same */
    { "roce-25g", 3.0, 14 },        /* 25 Gbit/s with RDMA: 96 % */
    { "ethernet-50g", 5.9, 30 },    /* 50 Gbit/s with sockets */
    { "infiniband-100g", 12, 14 },  /* EDR, 96 % */
    { "infiniband-200g", 24, 14 },  /* HDR */
    { "infiniband-400g", 48, 14 },  /* NDR */
};
/* The part of the peak that products reach in training: matrices of the sizes of these models in cuBLAS and cuDNN reach 60 to
   80 % of the peak in f32, where arithmetic is the limit, and about half of it with tensor cores, where feeding them is. Times
   of memory are added, at 80 % of the bandwidth (STREAM on GPUs). */
#define DT__SCALE_REACHED 0.7
#define DT__SCALE_REACHED_HALF 0.5
#define DT__SCALE_REACHED_MEMORY 0.8
/* Bytes that a forward moves for each byte that it keeps: a batch norm reads its input twice and writes it once, the next layer
   reads it, a convolution writes it. The backward moves twice as much. */
#define DT__SCALE_MOVED 2.5
#define DT__SCALE_LAUNCH 5e-6    /* seconds to start a kernel of a GPU; a layer has about 2, and 4 in the backward */
#define DT__SCALE_JPEG 110e3     /* bytes of an image of ImageNet: 140 GB for 1.28 million */
#define DT__SCALE_FIRST_BUCKET (1024.0 * 1024)  /* as dt_ddp_new and PyTorch */
#define DT__SCALE_BUCKET (25 * 1024.0 * 1024)
#define DT__SCALE_BIG 1e6       /* elements: larger arrays are cut over all servers: dt_ps_opts.big */
#define DT__SCALE_UNIT 65536.0  /* bytes: with ZeRO-3 smaller layers are gathered together: DT__UNIT_LEAST of dt_dist.h */
/* The standard deviation of the time of a step from device to device, where it was not measured. With n devices a step takes as
   long as the slowest of them. No data sheet has it: it is the value with the smallest median error over the published rows of
   data-parallel training. dtplan --judge takes another one for each row, which the row itself has no part in. */
#define DT__SCALE_SPREAD 0.025

/* ==================================================================================================== >>units */
#define dt__scale_bad(...) dt__comm_bad(DT_COMM_ERR_ARG, __VA_ARGS__)
static int dt__scale_no_memory(const char *call) { return dt__comm_bad(DT_COMM_ERR_MEMORY, "%s: out of memory", call); }
/* How many characters must be changed, added or removed, or neighbours swapped, to get from a to b; words of at most 31 */
static int dt__scale_distance(const char *a, const char *b)
{
    int    d[3][33];
    size_t n = strlen(a), m = strlen(b);
    if (n > 31 || m > 31) return 99;
    for (size_t j = 0; j <= m; j++) d[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *now = d[i % 3], *up = d[(i + 2) % 3], *far = d[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best) best = up[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && far[j - 2] + 1 < best) best = far[j - 2] + 1;
            now[j] = best;
        }
    }
    return d[n % 3][m];
}
DT_API const char *dt_scale_nearest(const char *word, const char *(*name)(int i))
{
    const char *best = NULL;
    int         least = 99;
    for (int i = 0; name(i); i++) {
        int d = dt__scale_distance(word, name(i));
        if (!strncmp(name(i), word, strlen(word)) && d > 1) d = 1; /* the begin of a name */
        if (d < least) least = d, best = name(i);
    }
    return best && (size_t)least <= strlen(word) / 3 + 1 ? best : NULL;
}
typedef struct dt__scale_suffix {
    const char *text;
    double      factor;
} dt__scale_suffix;
/* Written from the largest down; dt_scale_show uses those of a power of 1000. */
static const dt__scale_suffix dt__scale_bytes[] = { { "PB", 1e15 },
                                                    { "TB", 1e12 },
                                                    { "GB", 1e9 },
                                                    { "MB", 1e6 },
                                                    { "kB", 1e3 },
                                                    { "B", 1 },
                                                    { "KB", 1e3 },
                                                    { "PiB", 1125899906842624.0 },
                                                    { "TiB", 1099511627776.0 },
                                                    { "GiB", 1073741824.0 },
                                                    { "MiB", 1048576.0 },
                                                    { "KiB", 1024.0 },
                                                    { NULL, 0 } };
static const dt__scale_suffix dt__scale_rates[] = { { "PB/s", 1e15 },          { "TB/s", 1e12 },       { "GB/s", 1e9 },
                                                    { "MB/s", 1e6 },           { "kB/s", 1e3 },        { "B/s", 1 },
                                                    { "KB/s", 1e3 },           { "Tbit/s", 1e12 / 8 }, { "Gbit/s", 1e9 / 8 },
                                                    { "Mbit/s", 1e6 / 8 },     { "kbit/s", 1e3 / 8 },  { "bit/s", 1.0 / 8 },
                                                    { "GiB/s", 1073741824.0 }, { "MiB/s", 1048576.0 }, { NULL, 0 } };
static const dt__scale_suffix dt__scale_times[] = { { "s", 1 }, { "ms", 1e-3 }, { "us", 1e-6 }, { "ns", 1e-9 }, { NULL, 0 } };
static const dt__scale_suffix dt__scale_flops[] = { { "PFLOP", 1e15 }, { "TFLOP", 1e12 }, { "GFLOP", 1e9 }, { "MFLOP", 1e6 },
                                                    { "kFLOP", 1e3 },  { "FLOP", 1 },     { NULL, 0 } };
static const dt__scale_suffix dt__scale_speeds[] = { { "PFLOP/s", 1e15 }, { "TFLOP/s", 1e12 }, { "GFLOP/s", 1e9 },
                                                     { "MFLOP/s", 1e6 },  { "kFLOP/s", 1e3 },  { "FLOP/s", 1 },
                                                     { "P", 1e15 },       { "T", 1e12 },       { "G", 1e9 },
                                                     { NULL, 0 } };
static const struct {
    const dt__scale_suffix *suffix;
    const char             *expected;
} dt__scale_units[DT_SCALE_UNIT_COUNT] = {
    { dt__scale_bytes, "bytes with their unit, such as 80GB, 16MiB or 512B" },
    { dt__scale_rates, "bytes or bits a second with their unit, such as 1.25GB/s or 10Gbit/s" },
    { dt__scale_times, "a time with its unit, such as 2s, 12.5ms, 30us or 400ns" },
    { dt__scale_flops, "operations with their unit, such as 4.1GFLOP" },
    { dt__scale_speeds, "operations a second with their unit, such as 15TFLOP/s, or 15T" },
};
/* The number at text[*at]: digits, perhaps a point and digits. False: there is none, or it has more than 18 digits. */
static bool dt__scale_digits(const char *text, size_t n, size_t *at, double *out)
{
    size_t i = *at, first = i, digits = 0;
    double v = 0, unit = 1;
    for (; i < n && text[i] >= '0' && text[i] <= '9'; i++, digits++) v = v * 10 + (text[i] - '0');
    if (i == first) return false;
    if (i + 1 < n && text[i] == '.' && text[i + 1] >= '0' && text[i + 1] <= '9')
        for (i++; i < n && text[i] >= '0' && text[i] <= '9'; i++, digits++) v = v * 10 + (text[i] - '0'), unit *= 10;
    if (digits > 18) return false;
    *at = i;
    *out = v / unit;
    return true;
}
/* What is wrong with a quantity, for messages, or NULL */
static const char *dt__scale_read(const char *text, size_t n, dt_scale_unit unit, double *out)
{
    size_t at = 0;
    double v;
    if (!dt__scale_digits(text, n, &at, &v)) return "no number of at most 18 digits";
    if (at == n) return "a number without a unit";
    for (const dt__scale_suffix *s = dt__scale_units[unit].suffix; s->text; s++)
        if (strlen(s->text) == n - at && !memcmp(s->text, text + at, n - at)) {
            *out = v * s->factor;
            return v * s->factor > 1.001e18 ? "a quantity above 10^18" : NULL;
        }
    return "an unknown unit";
}
static const char *dt__scale_word(const char *text, size_t n, char shown[44]) /* a word of a file, for messages */
{
    if (n > 40) n = 40;
    for (size_t i = 0; i < n; i++) shown[i] = text[i] >= ' ' && text[i] < 127 ? text[i] : '?';
    shown[n] = 0;
    return shown;
}
DT_API int dt_scale_quantity(const char *text, size_t n, dt_scale_unit unit, double *out)
{
    char        shown[44];
    const char *why = (int)unit < 0 || unit >= DT_SCALE_UNIT_COUNT ? "no such unit" : dt__scale_read(text, n, unit, out);
    if (!why) return 0;
    return dt__scale_bad("'%s' is %s; expected %s", dt__scale_word(text, n, shown), why,
                         (int)unit < 0 || unit >= DT_SCALE_UNIT_COUNT ? "one of dt_scale_unit"
                                                                      : dt__scale_units[unit].expected);
}
DT_API char *dt_scale_show(char *buf, size_t nbytes, double x, dt_scale_unit unit)
{
    char                    number[40];
    const dt__scale_suffix *s = dt__scale_units[(int)unit < 0 || unit >= DT_SCALE_UNIT_COUNT ? 0 : unit].suffix;
    if (!(x > 0) || !(x < 1e21)) x = x >= 1e21 ? 1e21 : 0;
    while (s[1].text && s[1].factor < s->factor && x < s->factor * 0.9999995) s++;
    double v = x / s->factor;
    snprintf(number, sizeof number, "%.*f", v < 1e-6 ? 0 : v < 10 ? 3 : v < 100 ? 2 : v < 1000 ? 1 : 0, v);
    dt__fix_point(number);
    char *point = strchr(number, '.'), *last = number + strlen(number);
    while (point && last > point && (last[-1] == '0' || last[-1] == '.')) {
        bool was = last[-1] == '.';
        *--last = 0;
        if (was) break;
    }
    snprintf(buf, nbytes, "%s%s", number, s->text);
    return buf;
}

/* ==================================================================================================== >>shapes
   The shape that a layer gets is in the builder: channels, height and width of an image. */
typedef struct dt__scale_build {
    dt_scale_model *m;
    int             c, h, w, block;
    char            prefix[32];
    bool            failed;
} dt__scale_build;
static dt_scale_layer *dt__scale_add(dt_scale_model *m)
{
    if (m->nlayers == m->cap) {
        int   cap = m->cap ? 2 * m->cap : 64;
        void *q = cap > 1 << 20 ? NULL : DT_COMM_REALLOC(m->layer, (size_t)cap * sizeof *m->layer);
        if (!q) return NULL;
        m->layer = (dt_scale_layer *)q;
        m->cap = cap;
    }
    dt_scale_layer *l = &m->layer[m->nlayers++];
    memset(l, 0, sizeof *l);
    return l;
}
static dt_scale_layer *dt__scale_layer_new(dt__scale_build *b, const char *name)
{
    dt_scale_layer *l = b->failed ? NULL : dt__scale_add(b->m);
    if (!l) {
        b->failed = true;
        return NULL;
    }
    snprintf(l->name, sizeof l->name, "%s%s", b->prefix, name);
    l->block = b->block;
    return l;
}
static void dt__scale_block(dt__scale_build *b, const char *prefix) /* the next layers are a block of their own */
{
    b->block++;
    snprintf(b->prefix, sizeof b->prefix, "%s", prefix);
}
typedef struct dt__scale_conv_opts {
    int  kh, kw, stride, ph, pw, groups;
    bool bias, norm;
} dt__scale_conv_opts;
/* A convolution with its bias or batch norm, and a relu in place of its input */
static void dt__scale_conv_with(dt__scale_build *b, const char *name, int out, dt__scale_conv_opts o)
{
    dt_scale_layer *l = dt__scale_layer_new(b, name);
    int             h = (b->h + 2 * o.ph - o.kh) / o.stride + 1, w = (b->w + 2 * o.pw - o.kw) / o.stride + 1;
    double          weights = (double)o.kh * o.kw * b->c / o.groups * out, numel = (double)out * h * w;
    if (l) {
        l->params = (int64_t)weights + (o.bias ? out : 0) + (o.norm ? 2 * (int64_t)out : 0);
        l->flops = 2 * weights * h * w;
        l->flops_back = (b->m->nlayers > 1 ? 2 : 1) * l->flops; /* the gradient of images is not needed */
        l->held = numel * (o.norm ? 2 : 1);
        l->out = numel;
    }
    b->c = out, b->h = h, b->w = w;
}
static void dt__scale_conv(dt__scale_build *b, const char *name, int out, int kernel, int stride, int pad, int groups,
                           bool norm)
{
    dt__scale_conv_opts o;
    o.kh = o.kw = kernel;
    o.stride = stride;
    o.ph = o.pw = pad;
    o.groups = groups;
    o.norm = norm;
    o.bias = !norm;
    dt__scale_conv_with(b, name, out, o);
}
static void dt__scale_pool(dt__scale_build *b, const char *name, int kernel, int stride, int pad)
{
    dt_scale_layer *l = dt__scale_layer_new(b, name);
    b->h = (b->h + 2 * pad - kernel) / stride + 1;
    b->w = (b->w + 2 * pad - kernel) / stride + 1;
    if (l) l->held = l->out = (double)b->c * b->h * b->w;
}
static void dt__scale_linear(dt__scale_build *b, const char *name, int out)
{
    dt_scale_layer *l = dt__scale_layer_new(b, name);
    double          in = (double)b->c * b->h * b->w;
    if (l) {
        l->params = (int64_t)(in * out) + out;
        l->flops = 2 * in * out;
        l->flops_back = 2 * l->flops;
        l->held = l->out = l->sync = out;
        l->parts = out;
    }
    b->c = out, b->h = b->w = 1;
}
static void dt__scale_alexnet(dt__scale_build *b, bool two) /* two: as it was published, in two halves on two GPUs */
{
    int g = two ? 2 : 1;
    b->h = b->w = two ? 227 : 224;
    static const char *const name[5] = { "conv1", "conv2", "conv3", "conv4", "conv5" };
    static const int         out[2][5] = { { 64, 192, 384, 256, 256 }, { 96, 256, 384, 384, 256 } };
    static const int         groups[5] = { 1, 2, 1, 2, 2 };
    for (int i = 0; i < 5; i++) {
        dt__scale_block(b, "");
        if (i == 0) dt__scale_conv(b, name[i], out[two][i], 11, 4, two ? 0 : 2, 1, false);
        else dt__scale_conv(b, name[i], out[two][i], i == 1 ? 5 : 3, 1, i == 1 ? 2 : 1, g == 2 ? groups[i] : 1, false);
        if (i == 0 || i == 1 || i == 4) dt__scale_pool(b, i == 0 ? "pool1" : i == 1 ? "pool2" : "pool5", 3, 2, 0);
    }
    dt__scale_block(b, "");
    dt__scale_linear(b, "fc6", 4096);
    dt__scale_block(b, "");
    dt__scale_linear(b, "fc7", 4096);
    dt__scale_block(b, "");
    dt__scale_linear(b, "fc8", 1000);
}
static void dt__scale_vgg16(dt__scale_build *b)
{
    static const int width[5] = { 64, 128, 256, 512, 512 }, count[5] = { 2, 2, 3, 3, 3 };
    char             name[40];
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < count[i]; k++) {
            dt__scale_block(b, "");
            snprintf(name, sizeof name, "conv%d_%d", i + 1, k + 1);
            dt__scale_conv(b, name, width[i], 3, 1, 1, 1, false);
        }
        snprintf(name, sizeof name, "pool%d", i + 1);
        dt__scale_pool(b, name, 2, 2, 0);
    }
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "fc%d", k + 6);
        dt__scale_block(b, "");
        dt__scale_linear(b, name, k < 2 ? 4096 : 1000);
    }
}
/* bottleneck: 1x1, 3x3 with the stride, 1x1 with four times the channels; else two 3x3 */
static void dt__scale_resnet(dt__scale_build *b, const int count[4], bool bottleneck)
{
    char prefix[32];
    dt__scale_block(b, "");
    dt__scale_conv(b, "conv1", 64, 7, 2, 3, 1, true);
    dt__scale_pool(b, "maxpool", 3, 2, 1);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < count[i]; k++) {
            int width = 64 << i, out = bottleneck ? 4 * width : width, stride = i && !k ? 2 : 1, c = b->c, h = b->h, w = b->w;
            snprintf(prefix, sizeof prefix, "layer%d.%d.", i + 1, k);
            dt__scale_block(b, prefix);
            if (stride > 1 || c != out) {
                dt__scale_conv(b, "downsample", out, 1, stride, 0, 1, true);
                if (b->m->nlayers && !b->failed) b->m->layer[b->m->nlayers - 1].held /= 2; /* its relu is after the sum */
                b->c = c, b->h = h, b->w = w;
            }
            if (bottleneck) dt__scale_conv(b, "conv1", width, 1, 1, 0, 1, true);
            dt__scale_conv(b, bottleneck ? "conv2" : "conv1", width, 3, stride, 1, 1, true);
            if (bottleneck) dt__scale_conv(b, "conv3", out, 1, 1, 0, 1, true);
            else dt__scale_conv(b, "conv2", out, 3, 1, 1, 1, true);
        }
    dt__scale_block(b, "");
    dt__scale_pool(b, "avgpool", b->h, 1, 0);
    dt__scale_linear(b, "fc", 1000);
}
/* One branch of a block of Inception: convolutions, each as "height width channels". The branch begins with the shape of the
   block; the builder keeps the shape after it. */
static void dt__scale_branch(dt__scale_build *b, int c, int h, int w, const char *name, int stride, const char *text)
{
    char layer[48];
    int  k = 0;
    b->c = c, b->h = h, b->w = w;
    for (const char *p = text; *p; k++) {
        dt__scale_conv_opts o;
        char               *end;
        o.kh = (int)strtol(p, &end, 10);
        o.kw = (int)strtol(end, &end, 10);
        int out = (int)strtol(end, &end, 10);
        p = end;
        o.stride = *p ? 1 : stride; /* the last convolution has the stride, and no padding then */
        o.ph = o.stride > 1 ? 0 : o.kh / 2;
        o.pw = o.stride > 1 ? 0 : o.kw / 2;
        o.groups = 1;
        o.bias = false;
        o.norm = true;
        snprintf(layer, sizeof layer, "%s.%d", name, k + 1);
        dt__scale_conv_with(b, layer, out, o);
    }
}
static void dt__scale_inception(dt__scale_build *b)
{
    static const char *const name_a[3] = { "Mixed_5b.", "Mixed_5c.", "Mixed_5d." };
    static const char *const name_c[4] = { "Mixed_6b.", "Mixed_6c.", "Mixed_6d.", "Mixed_6e." };
    char                     text[80];
    int                      c, h, w;
    b->h = b->w = 299;
    dt__scale_block(b, "");
    dt__scale_conv(b, "Conv2d_1a_3x3", 32, 3, 2, 0, 1, true);
    dt__scale_conv(b, "Conv2d_2a_3x3", 32, 3, 1, 0, 1, true);
    dt__scale_conv(b, "Conv2d_2b_3x3", 64, 3, 1, 1, 1, true);
    dt__scale_pool(b, "maxpool1", 3, 2, 0);
    dt__scale_block(b, "");
    dt__scale_conv(b, "Conv2d_3b_1x1", 80, 1, 1, 0, 1, true);
    dt__scale_conv(b, "Conv2d_4a_3x3", 192, 3, 1, 0, 1, true);
    dt__scale_pool(b, "maxpool2", 3, 2, 0);
    for (int i = 0; i < 3; i++) { /* InceptionA */
        c = b->c, h = b->h, w = b->w;
        dt__scale_block(b, name_a[i]);
        dt__scale_branch(b, c, h, w, "branch1x1", 1, "1 1 64");
        dt__scale_branch(b, c, h, w, "branch5x5", 1, "1 1 48 5 5 64");
        dt__scale_branch(b, c, h, w, "branch3x3dbl", 1, "1 1 64 3 3 96 3 3 96");
        dt__scale_branch(b, c, h, w, "branch_pool", 1, i ? "1 1 64" : "1 1 32");
        b->c = 64 + 64 + 96 + (i ? 64 : 32);
    }
    c = b->c, h = b->h, w = b->w;
    dt__scale_block(b, "Mixed_6a."); /* InceptionB */
    dt__scale_branch(b, c, h, w, "branch3x3", 2, "3 3 384");
    dt__scale_branch(b, c, h, w, "branch3x3dbl", 2, "1 1 64 3 3 96 3 3 96");
    b->c = 384 + 96 + c;
    for (int i = 0; i < 4; i++) { /* InceptionC */
        int d = i == 0 ? 128 : i < 3 ? 160 : 192;
        c = b->c, h = b->h, w = b->w;
        dt__scale_block(b, name_c[i]);
        dt__scale_branch(b, c, h, w, "branch1x1", 1, "1 1 192");
        snprintf(text, sizeof text, "1 1 %d 1 7 %d 7 1 192", d, d);
        dt__scale_branch(b, c, h, w, "branch7x7", 1, text);
        snprintf(text, sizeof text, "1 1 %d 7 1 %d 1 7 %d 7 1 %d 1 7 192", d, d, d, d);
        dt__scale_branch(b, c, h, w, "branch7x7dbl", 1, text);
        dt__scale_branch(b, c, h, w, "branch_pool", 1, "1 1 192");
        b->c = 768;
    }
    c = b->c, h = b->h, w = b->w;
    dt__scale_block(b, "Mixed_7a."); /* InceptionD */
    dt__scale_branch(b, c, h, w, "branch3x3", 2, "1 1 192 3 3 320");
    dt__scale_branch(b, c, h, w, "branch7x7x3", 2, "1 1 192 1 7 192 7 1 192 3 3 192");
    b->c = 320 + 192 + c;
    for (int i = 0; i < 2; i++) { /* InceptionE */
        c = b->c, h = b->h, w = b->w;
        dt__scale_block(b, i ? "Mixed_7c." : "Mixed_7b.");
        dt__scale_branch(b, c, h, w, "branch1x1", 1, "1 1 320");
        dt__scale_branch(b, c, h, w, "branch3x3", 1, "1 1 384 1 3 384");
        dt__scale_branch(b, 384, h, w, "branch3x3_2b", 1, "3 1 384");
        dt__scale_branch(b, c, h, w, "branch3x3dbl", 1, "1 1 448 3 3 384 1 3 384");
        dt__scale_branch(b, 384, h, w, "branch3x3dbl_3b", 1, "3 1 384");
        dt__scale_branch(b, c, h, w, "branch_pool", 1, "1 1 192");
        b->c = 2048;
    }
    dt__scale_block(b, "");
    dt__scale_pool(b, "avgpool", b->h, 1, 0);
    dt__scale_linear(b, "fc", 1000);
}
/* ---- transformers. What a layer keeps follows Korthikanti et al., 2205.05198: 34 s h + 5 a s^2 bytes for halves, masks of
   dropout one byte each, so 17 s h + 2.5 a s^2 elements. */
typedef struct dt__scale_text {
    int  width, layers, heads, positions, vocabulary;
    int  kv, inner; /* heads of keys and values; features inside the MLP */
    int  types;     /* 2: BERT's kinds of segments, and its pooler */
    bool llama;     /* RMSNorm, no biases, rotary positions, gated MLP, flash attention, a head of its own */
} dt__scale_text;
static void dt__scale_transformer(dt__scale_build *b, dt__scale_text t)
{
    double  h = t.width, s = t.positions, a = t.heads, f = t.inner, v = t.vocabulary, kv = h / a * t.kv;
    int64_t norm = t.llama ? t.width : 2 * (int64_t)t.width, bias = t.llama ? 0 : 1;
    char    prefix[32];
    b->m->tokens = t.positions;
    dt__scale_block(b, "");
    dt_scale_layer *l = dt__scale_layer_new(b, "embed");
    if (l) {
        l->params = (int64_t)(v * h) + (t.llama ? 0 : (int64_t)(s * h)) + (t.types ? t.types * (int64_t)t.width + norm : 0);
        l->held = t.llama ? 0 : s * h * (t.types ? 1.5 : 0.5);
        l->out = l->sync = s * h;
        l->parts = t.vocabulary % 2 ? 1 << 20 : t.vocabulary; /* an odd vocabulary is padded */
    }
    for (int i = 0; i < t.layers; i++) {
        snprintf(prefix, sizeof prefix, "h.%d.", i);
        dt__scale_block(b, prefix);
        l = dt__scale_layer_new(b, "attention");
        if (l) {
            double linear = 2 * s * h * (2 * h + 2 * kv), scores = 4 * s * s * h;
            l->params = norm + (int64_t)(h * (2 * h + 2 * kv)) + bias * (int64_t)(2 * h + 2 * kv);
            l->flops = linear + scores;
            l->flops_back = 2 * l->flops;
            l->held = t.llama ? s * (4 * h + 2 * kv) : 6.5 * s * h + 2.5 * a * s * s;
            l->held_again = t.llama ? l->held : 6.5 * s * h;
            l->flops_again = t.llama ? 0 : scores; /* flash attention has done it already */
            l->out = l->sync = s * h;
            l->parts = t.kv;
        }
        l = dt__scale_layer_new(b, "mlp");
        if (l) {
            int n = t.llama ? 3 : 2; /* matrices */
            l->params = norm + (int64_t)(n * h * f) + bias * (int64_t)(h + f);
            l->flops = 2 * n * s * h * f;
            l->flops_back = 2 * l->flops;
            l->held = l->held_again = t.llama ? s * (2 * h + 4 * f) : s * (2.5 * h + 2 * f);
            l->out = l->sync = s * h;
            l->parts = t.inner;
        }
    }
    dt__scale_block(b, "");
    l = dt__scale_layer_new(b, t.types ? "pooler" : "head");
    if (l) { /* GPT-2's head has the weights of its embedding */
        l->params = t.types ? (int64_t)(h * h + h) : norm + (t.llama ? (int64_t)(v * h) : 0);
        l->flops = t.types ? 2 * s * h * v + 2 * s * h * h : 2 * s * h * v; /* BERT predicts words, too */
        l->flops_back = 2 * l->flops;
        l->held = s * (2 * h + 2 * v);
        l->held_again = l->held;
        l->out = 1;
        l->sync = s * h;
        l->parts = t.vocabulary % 2 ? 1 << 20 : t.vocabulary;
    }
    for (int i = 0; i < b->m->nlayers && !b->failed; i++)
        if (b->m->layer[i].held_again == 0) b->m->layer[i].held_again = b->m->layer[i].held;
}
static const char *const dt__scale_model_names[] = { "alexnet",   "alexnet-2gpu", "vgg16",     "inception-v3", "resnet18",
                                                     "resnet50",  "resnet101",    "resnet152", "gpt2",         "gpt2-xl",
                                                     "llama3-8b", "bert-large",   NULL };
DT_API const char       *dt_scale_model_name(int i)
{
    return i >= 0 && i < (int)DT__COUNT_OF(dt__scale_model_names) ? dt__scale_model_names[i] : NULL;
}
static void dt__scale_known(dt__scale_build *b, int which)
{
    static const int            count[4][4] = { { 2, 2, 2, 2 }, { 3, 4, 6, 3 }, { 3, 4, 23, 3 }, { 3, 8, 36, 3 } };
    static const dt__scale_text text[4] = { { 768, 12, 12, 1024, 50257, 12, 3072, 0, false },
                                            { 1600, 48, 25, 1024, 50257, 25, 6400, 0, false },
                                            { 4096, 32, 32, 8192, 128256, 8, 14336, 0, true },
                                            { 1024, 24, 16, 512, 30522, 16, 4096, 2, false } };
    b->c = 3, b->h = b->w = 224;
    if (which < 2) dt__scale_alexnet(b, which == 1);
    else if (which == 2) dt__scale_vgg16(b);
    else if (which == 3) dt__scale_inception(b);
    else if (which < 8) dt__scale_resnet(b, count[which - 4], which > 4);
    else dt__scale_transformer(b, text[which - 8]);
    snprintf(b->m->unit, sizeof b->m->unit, "%s", which < 8 ? "image" : "sequence");
    b->m->sample_bytes = which < 8 ? DT__SCALE_JPEG : 2.0 * (which == 10 ? 2 : 1) * b->m->tokens;
    for (int i = 0; i < b->m->nlayers && !b->failed; i++)
        if (which < 8) b->m->layer[i].held_again = b->m->layer[i].held;
}
DT_API dt_scale_model *dt_scale_model_new(const char *name)
{
    dt__scale_build b;
    int             which = 0;
    memset(&b, 0, sizeof b);
    while (name && dt__scale_model_names[which] && strcmp(name, dt__scale_model_names[which]) != 0) which++;
    if (!name || !dt__scale_model_names[which]) {
        const char *near = name ? dt_scale_nearest(name, dt_scale_model_name) : NULL;
        dt__scale_bad("dt_scale_model_new: unknown model %s; %s%s%s known are alexnet, alexnet-2gpu, vgg16, inception-v3, "
                      "resnet18, resnet50, resnet101, resnet152, gpt2, gpt2-xl, llama3-8b, bert-large",
                      dt__show(name ? name : "(NULL)"), near ? "did you mean " : "", near ? near : "", near ? "?" : "");
        return NULL;
    }
    b.m = (dt_scale_model *)dt__comm_zeroed(1, sizeof *b.m);
    if (b.m) {
        snprintf(b.m->name, sizeof b.m->name, "%s", name);
        dt__scale_known(&b, which);
    }
    if (b.m && !b.failed) return b.m;
    dt_scale_model_free(b.m);
    dt__scale_no_memory("dt_scale_model_new");
    return NULL;
}
DT_API dt_scale_model *dt_scale_gpt_new(const char *name, int width, int layers, int heads, int positions, int vocabulary)
{
    dt__scale_build b;
    dt__scale_text  t;
    memset(&b, 0, sizeof b);
    memset(&t, 0, sizeof t);
    if (width < 1 || width > 1 << 20 || layers < 1 || layers > 10000 || heads < 1 || width % heads || positions < 1 ||
        positions > 1 << 24 || vocabulary < 1 || vocabulary > 1 << 24) {
        dt__scale_bad("dt_scale_gpt_new: width %d, layers %d, heads %d, positions %d, vocabulary %d; expected positive "
                      "numbers, at most 10000 "
                      "layers, and heads that divide width",
                      width, layers, heads, positions, vocabulary);
        return NULL;
    }
    b.m = (dt_scale_model *)dt__comm_zeroed(1, sizeof *b.m);
    if (b.m) {
        t.width = width, t.layers = layers, t.heads = t.kv = heads, t.positions = positions, t.vocabulary = vocabulary,
        t.inner = 4 * width;
        snprintf(b.m->name, sizeof b.m->name, "%s", name ? name : "gpt");
        snprintf(b.m->unit, sizeof b.m->unit, "sequence");
        dt__scale_transformer(&b, t);
        b.m->sample_bytes = 2.0 * positions;
    }
    if (b.m && !b.failed) return b.m;
    dt_scale_model_free(b.m);
    dt__scale_no_memory("dt_scale_gpt_new");
    return NULL;
}
DT_API void dt_scale_model_free(dt_scale_model *m)
{
    if (!m) return;
    DT_COMM_FREE(m->layer);
    DT_COMM_FREE(m);
}
DT_API dt_scale_sums dt_scale_model_sums(const dt_scale_model *m)
{
    dt_scale_sums s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < m->nlayers; i++) {
        const dt_scale_layer *l = &m->layer[i];
        s.params += l->params;
        s.flops += l->flops;
        s.flops_back += l->flops_back;
        s.held += l->held;
        s.forward += l->forward;
        s.backward += l->backward;
    }
    return s;
}
/* ==================================================================================================== >>reading
   Texts of lines of words. A message names file, line, column, what was found and what was expected. */
typedef struct dt__scale_text_in {
    const char *what, *file; /* "profile" or "cluster"; its name */
    const char *at, *end;    /* in the present line */
    const char *next, *last; /* the next line; the end of the text */
    const char *begin;       /* of the present line */
    int         line;
    const char *word; /* the word that was read last */
    size_t      n;
} dt__scale_text_in;
enum { DT__SCALE_TEXT = 1 << 24, DT__SCALE_DEVICES = 1 << 20 }; /* bytes of a text; devices of a cluster */
static int dt__scale_expected(const dt__scale_text_in *t, const char *format, ...) DT__PRINTF(2, 3);
static int dt__scale_expected(const dt__scale_text_in *t, const char *format, ...)
{
    char    shown[44], text[400];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return dt__scale_bad("%s in '%.120s', line %d, column %d: found '%s', expected %s", t->what, t->file, t->line,
                         (int)(t->word - t->begin) + 1, t->n ? dt__scale_word(t->word, t->n, shown) : "the end of the line",
                         text);
}
static bool dt__scale_line(dt__scale_text_in *t) /* goes to the next line that has words; false: the text has ended */
{
    while (t->next < t->last) {
        const char *stop = (const char *)memchr(t->next, '\n', (size_t)(t->last - t->next)), *cut;
        t->begin = t->at = t->next;
        t->end = stop ? stop : t->last;
        t->next = stop ? stop + 1 : t->last;
        t->line++;
        cut = (const char *)memchr(t->at, '#', (size_t)(t->end - t->at));
        if (cut) t->end = cut;
        while (t->end > t->at && (t->end[-1] == ' ' || t->end[-1] == '\r' || t->end[-1] == '\t')) t->end--;
        while (t->at < t->end && (*t->at == ' ' || *t->at == '\t')) t->at++;
        if (t->at < t->end) return true;
    }
    t->begin = t->word = t->last;
    t->line++;
    t->n = 0;
    return false;
}
static bool dt__scale_next(dt__scale_text_in *t) /* the next word of the line; false: there is none */
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t')) t->at++;
    t->word = t->at;
    while (t->at < t->end && *t->at != ' ' && *t->at != '\t') t->at++;
    t->n = (size_t)(t->at - t->word);
    return t->n > 0;
}
static bool dt__scale_is(const dt__scale_text_in *t, const char *word)
{
    return strlen(word) == t->n && !memcmp(t->word, word, t->n);
}
static int dt__scale_line_end(dt__scale_text_in *t)
{
    return dt__scale_next(t) ? dt__scale_expected(t, "the end of the line") : 0;
}
static int dt__scale_want(dt__scale_text_in *t, dt_scale_unit unit, double *out)
{
    const char *why;
    dt__scale_next(t);
    why = t->n ? dt__scale_read(t->word, t->n, unit, out) : "";
    return why ? dt__scale_expected(t, "%s%s%s", dt__scale_units[unit].expected, *why ? "; it is " : "", why) : 0;
}
static int dt__scale_whole(dt__scale_text_in *t, int most, int *out)
{
    int64_t v = 0;
    size_t  i = 0;
    dt__scale_next(t);
    for (; i < t->n && t->word[i] >= '0' && t->word[i] <= '9' && v <= most; i++) v = v * 10 + (t->word[i] - '0');
    if (!i || i < t->n || v < 1 || v > most) return dt__scale_expected(t, "a whole number from 1 to %d", most);
    *out = (int)v;
    return 0;
}
static int dt__scale_percent(dt__scale_text_in *t, double *out)
{
    size_t at = 0;
    double v;
    dt__scale_next(t);
    if (!dt__scale_digits(t->word, t->n, &at, &v) || at + 1 != t->n || t->word[at] != '%' || v > 100)
        return dt__scale_expected(t, "a part in percent, such as 85%%");
    *out = v / 100;
    return 0;
}
static int dt__scale_named(dt__scale_text_in *t, char out[DT_SCALE_NAME]) /* a name: printable, and not too long */
{
    bool ok = dt__scale_next(t) && t->n < DT_SCALE_NAME;
    for (size_t i = 0; ok && i < t->n; i++) ok = (unsigned char)t->word[i] > ' ' && t->word[i] != 127;
    if (!ok) return dt__scale_expected(t, "a name of at most %d characters", DT_SCALE_NAME - 1);
    memcpy(out, t->word, t->n);
    out[t->n] = 0;
    return 0;
}
/* A key of a line, and what follows it. Lines and pairs inside lines are read by the same tables. */
typedef enum dt__scale_kind {
    DT__SCALE_BYTES = DT_SCALE_BYTES,
    DT__SCALE_RATE = DT_SCALE_RATE,
    DT__SCALE_TIME = DT_SCALE_SECONDS,
    DT__SCALE_FLOP = DT_SCALE_FLOP,
    DT__SCALE_SPEED = DT_SCALE_SPEED, /* quantities, to a double */
    DT__SCALE_PART,                   /* percent, to a double */
    DT__SCALE_INT,                    /* to an int */
    DT__SCALE_OWN                     /* the caller reads it */
} dt__scale_kind;
typedef struct dt__scale_key {
    const char    *name;
    dt__scale_kind kind;
    void          *to;
} dt__scale_key;
static int dt__scale_keys(dt__scale_text_in *t, const dt__scale_key *key, int n,
                          const char *else_what) /* the index of the word */
{
    char        list[300], word[32];
    size_t      len = 0;
    const char *near = NULL;
    int         least = 3;
    for (int i = 0; i < n; i++)
        if (dt__scale_is(t, key[i].name)) return i;
    snprintf(word, sizeof word, "%.*s", (int)(t->n < 31 ? t->n : 31), t->word);
    list[0] = 0;
    for (int i = 0; i < n; i++) {
        int d = dt__scale_distance(word, key[i].name);
        if (d < least) least = d, near = key[i].name;
        if (len < sizeof list - 24) len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", key[i].name);
    }
    return dt__scale_expected(t, "%s%s%s%s%s", list, else_what, near ? "; did you mean " : "", near ? near : "",
                              near ? "?" : "");
}
static int dt__scale_value(dt__scale_text_in *t, const dt__scale_key *k, int most)
{
    switch (k->kind) {
    case DT__SCALE_PART: return dt__scale_percent(t, (double *)k->to);
    case DT__SCALE_INT: return dt__scale_whole(t, most, (int *)k->to);
    case DT__SCALE_OWN: return 0;
    case DT__SCALE_BYTES:
    case DT__SCALE_RATE:
    case DT__SCALE_TIME:
    case DT__SCALE_FLOP:
    case DT__SCALE_SPEED: break;
    }
    return dt__scale_want(t, (dt_scale_unit)k->kind, (double *)k->to);
}
/* The rest of the line: pairs of key and value, each at most once. *seen gets a bit for each. */
static int dt__scale_pairs(dt__scale_text_in *t, const dt__scale_key *key, int n, unsigned *seen)
{
    while (dt__scale_next(t)) {
        int i = dt__scale_keys(t, key, n, " or the end of the line");
        if (i < 0) return i;
        if (*seen & 1u << i) return dt__scale_expected(t, "%s once", key[i].name);
        *seen |= 1u << i;
        int status = dt__scale_value(t, &key[i], 1 << 20);
        if (status) return status;
    }
    return 0;
}
static int dt__scale_begin(dt__scale_text_in *t, const char *what, const char *file, const char *text, size_t n)
{
    memset(t, 0, sizeof *t);
    t->what = what;
    t->file = file ? file : "(text)";
    t->begin = t->word = t->at = t->end = t->next = text;
    t->last = text + n;
    if (n > DT__SCALE_TEXT)
        return dt__scale_bad("%s in '%.120s': it has %zu bytes, expected at most %d", what, t->file, n, DT__SCALE_TEXT);
    bool ok = dt__scale_line(t) && dt__scale_next(t) && dt__scale_is(t, "dt");
    ok = ok && dt__scale_next(t) && dt__scale_is(t, what);
    ok = ok && dt__scale_next(t) && dt__scale_is(t, "1");
    if (!ok) return dt__scale_expected(t, "'dt %s 1' as the first line", what);
    return dt__scale_line_end(t);
}
/* ---- profiles */
#define DT__SCALE_PARAMS 1e13 /* bytes of a layer: the sum over all layers of the longest text fits into 64 bits */
static int dt__scale_read_layer(dt__scale_text_in *t, dt_scale_model *m)
{
    dt_scale_layer *l = dt__scale_add(m);
    double          flops = 0, params = 0, held = 0, out = 0;
    unsigned        seen = 0;
    if (!l) return dt__scale_no_memory("dt_scale_profile_parse");
    const dt__scale_key key[] = { { "forward", DT__SCALE_TIME, &l->forward }, { "backward", DT__SCALE_TIME, &l->backward },
                                  { "params", DT__SCALE_BYTES, &params },     { "flops", DT__SCALE_FLOP, &flops },
                                  { "held", DT__SCALE_BYTES, &held },         { "out", DT__SCALE_BYTES, &out },
                                  { "ready", DT__SCALE_TIME, &l->ready } };
    int                 status = dt__scale_named(t, l->name);
    if (!status) status = dt__scale_pairs(t, key, (int)DT__COUNT_OF(key), &seen);
    if (status) return status;
    for (int i = 0; i < 3; i++)
        if (!(seen & 1u << i)) return dt__scale_expected(t, "%s and its value: each layer needs it", key[i].name);
    if (params > 0 && !(seen & 1u << 6)) return dt__scale_expected(t, "ready and a time: each layer with parameters needs it");
    if (params > DT__SCALE_PARAMS) return dt__scale_expected(t, "params of at most 10TB");
    l->params = (int64_t)params; /* bytes, until all lines are read */
    l->flops = flops, l->held = held, l->out = out;
    return 0;
}
/* Per batch and in bytes, as in the file, to per sample and in elements */
static void dt__scale_per_sample(dt_scale_model *m)
{
    for (int i = 0; i < m->nlayers; i++) {
        dt_scale_layer *l = &m->layer[i];
        l->params = (int64_t)((double)l->params / m->parameter_bytes + 0.5);
        l->flops /= m->batch;
        l->flops_back = 2 * l->flops;
        l->held /= m->batch * m->parameter_bytes;
        l->held_again = l->held;
        l->out /= m->batch * m->parameter_bytes;
        l->block = i;
    }
}
DT_API dt_scale_model *dt_scale_profile_parse(const char *file, const char *text, size_t n)
{
    enum { BATCH = 1, STEP = 8, LAYER = 14, END = 15 };
    dt__scale_text_in t;
    dt_scale_model   *m = (dt_scale_model *)dt__comm_zeroed(1, sizeof *m);
    unsigned          seen = 0;
    int               status = 0, batch = 0;
    if (!m) {
        dt__scale_no_memory("dt_scale_profile_parse");
        return NULL;
    }
    m->parameter_bytes = m->gradient_bytes = 4;
    snprintf(m->name, sizeof m->name, "profile");
    const dt__scale_key key[] = { { "model", DT__SCALE_OWN, NULL },
                                  { "batch", DT__SCALE_INT, &batch },
                                  { "sample", DT__SCALE_BYTES, &m->sample_bytes },
                                  { "tokens", DT__SCALE_INT, &m->tokens },
                                  { "parameter", DT__SCALE_BYTES, &m->parameter_bytes },
                                  { "gradient", DT__SCALE_BYTES, &m->gradient_bytes },
                                  { "state", DT__SCALE_BYTES, &m->state_bytes },
                                  { "workspace", DT__SCALE_BYTES, &m->workspace },
                                  { "step", DT__SCALE_TIME, &m->step },
                                  { "forward", DT__SCALE_TIME, &m->forward },
                                  { "backward", DT__SCALE_TIME, &m->backward },
                                  { "update", DT__SCALE_TIME, &m->update },
                                  { "input", DT__SCALE_TIME, &m->input },
                                  { "load", DT__SCALE_TIME, &m->load },
                                  { "layer", DT__SCALE_OWN, NULL },
                                  { "end", DT__SCALE_OWN, NULL } };
    status = dt__scale_begin(&t, "profile", file, text, n);
    while (!status && dt__scale_line(&t)) {
        dt__scale_next(&t);
        int i = seen & 1u << END ? dt__scale_expected(&t, "no more lines after 'end'")
                                 : dt__scale_keys(&t, key, (int)DT__COUNT_OF(key), "");
        if (i < 0) {
            status = i;
            break;
        }
        if (i != LAYER && seen & 1u << i) status = dt__scale_expected(&t, "%s once", key[i].name);
        if (!status) status = dt__scale_value(&t, &key[i], 1 << 30);
        if (!status && i == 0) status = dt__scale_named(&t, m->name);
        if (!status && i == BATCH) status = dt__scale_named(&t, m->unit);
        if (!status && i == LAYER) status = dt__scale_read_layer(&t, m);
        else if (!status) status = dt__scale_line_end(&t);
        seen |= 1u << i;
    }
    if (!status && !(seen & 1u << END)) status = dt__scale_expected(&t, "a line 'end'");
    for (int i = 0; !status && i < (int)END; i++)
        if ((i == BATCH || i == STEP || i == LAYER) && !(seen & 1u << i))
            status = dt__scale_bad("profile in '%.120s': there is no line '%s', expected %s", t.file, key[i].name,
                                   i == LAYER ? "at least one" : "one");
    if (!status && (!(m->parameter_bytes >= 1) || !(m->gradient_bytes > 0)))
        status = dt__scale_bad(
            "profile in '%.120s': an element of a parameter or gradient has less than a byte; expected 4B or 2B", t.file);
    if (!status) {
        m->batch = batch;
        dt__scale_per_sample(m);
        return m;
    }
    dt_scale_model_free(m);
    return NULL;
}
static void dt__scale_put(dt__text_out *o, const char *name, double x, dt_scale_unit unit)
{
    char        text[64], number[48];
    const char *suffix = unit == DT_SCALE_SECONDS ? "ns" : unit == DT_SCALE_FLOP ? "FLOP" : "B";
    double      whole = unit == DT_SCALE_SECONDS ? x * 1e9 : x;
    if (!(whole >= 0)) whole = 0;
    if (whole > 99999999999999999.0) whole = 99999999999999999.0; /* 18 digits can be read */
    snprintf(number, sizeof number, "%.0f", whole);
    snprintf(text, sizeof text, " %s %s%s", name, number, suffix);
    dt__emit(o, text);
}
static void dt__scale_put_name(dt__text_out *o, const char *name, const char *otherwise) /* as a word */
{
    char   text[DT_SCALE_NAME];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof text; n++)
        text[n] = (unsigned char)name[n] > ' ' && name[n] != '#' && name[n] != 127 ? name[n] : '_';
    text[n] = 0;
    dt__emit(o, n ? text : otherwise);
}
DT_API size_t dt_scale_profile_text(const dt_scale_model *m, char *buf, size_t nbytes)
{
    dt__text_out o = { buf, nbytes, 0 };
    double       batch = m->batch >= 1 ? floor(m->batch + 0.5) : 1, each = m->parameter_bytes > 0 ? m->parameter_bytes : 4;
    if (nbytes) buf[0] = 0;
    dt__emit(&o, "dt profile 1\nmodel ");
    dt__scale_put_name(&o, m->name, "profile");
    dt__emitf(&o, "\nbatch %.0f ", batch);
    dt__scale_put_name(&o, m->unit, "sample");
    dt__emit(&o, "\n");
    if (m->tokens > 0) dt__emitf(&o, "tokens %d\n", m->tokens);
    const struct {
        const char   *name;
        double        x;
        dt_scale_unit unit;
    } line[] = { { "sample", m->sample_bytes, DT_SCALE_BYTES },
                 { "parameter", each, DT_SCALE_BYTES },
                 { "gradient", m->gradient_bytes > 0 ? m->gradient_bytes : 4, DT_SCALE_BYTES },
                 { "state", m->state_bytes, DT_SCALE_BYTES },
                 { "workspace", m->workspace, DT_SCALE_BYTES },
                 { "step", m->step, DT_SCALE_SECONDS },
                 { "forward", m->forward, DT_SCALE_SECONDS },
                 { "backward", m->backward, DT_SCALE_SECONDS },
                 { "update", m->update, DT_SCALE_SECONDS },
                 { "input", m->input, DT_SCALE_SECONDS },
                 { "load", m->load, DT_SCALE_SECONDS } };
    for (int i = 0; i < (int)DT__COUNT_OF(line); i++) {
        char         one[96];
        dt__text_out word = { one, sizeof one, 0 };
        one[0] = 0;
        dt__scale_put(&word, line[i].name, line[i].x, line[i].unit);
        dt__emitf(&o, "%s\n", one + 1); /* without the blank */
    }
    for (int i = 0; i < m->nlayers; i++) {
        const dt_scale_layer *l = &m->layer[i];
        dt__emit(&o, "layer ");
        dt__scale_put_name(&o, l->name, "layer");
        dt__scale_put(&o, "forward", l->forward, DT_SCALE_SECONDS);
        dt__scale_put(&o, "backward", l->backward, DT_SCALE_SECONDS);
        dt__scale_put(&o, "flops", l->flops * batch, DT_SCALE_FLOP);
        dt__scale_put(&o, "params", (double)l->params * each, DT_SCALE_BYTES);
        dt__scale_put(&o, "held", l->held * batch * each, DT_SCALE_BYTES);
        dt__scale_put(&o, "out", l->out * batch * each, DT_SCALE_BYTES);
        dt__scale_put(&o, "ready", l->ready, DT_SCALE_SECONDS);
        dt__emit(&o, "\n");
    }
    dt__emit(&o, "end\n");
    return o.len;
}

/* ---- devices, links, clusters */
DT_API const char *dt_scale_device_name(int i)
{
    return i >= 0 && i < (int)DT__COUNT_OF(dt__scale_devices) ? dt__scale_devices[i].name : NULL;
}
DT_API const char *dt_scale_link_name(int i)
{
    return i >= 0 && i < (int)DT__COUNT_OF(dt__scale_links) ? dt__scale_links[i].name : NULL;
}
static int dt__scale_unknown(const char *call, const char *what, const char *word, const char *(*name)(int))
{
    char        list[400];
    size_t      len = 0;
    const char *near = dt_scale_nearest(word, name);
    list[0] = 0;
    for (int i = 0; name(i) && len < sizeof list - 24; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", name(i));
    return dt__scale_bad("%s: unknown %s %s; %s%s%s known are %s", call, what, dt__show(word), near ? "did you mean " : "",
                         near ? near : "", near ? "?" : "", list);
}
DT_API int dt_scale_device_find(const char *name, dt_scale_device *out)
{
    for (int i = 0; i < (int)DT__COUNT_OF(dt__scale_devices); i++) {
        const dt__scale_device_row *d = &dt__scale_devices[i];
        if (!name || strcmp(name, d->name) != 0) continue;
        memset(out, 0, sizeof *out);
        snprintf(out->name, sizeof out->name, "%s", name);
        out->speed = d->speed * 1e12;
        out->half_speed = d->half * 1e12;
        out->bandwidth = d->bandwidth * 1e9;
        out->memory = d->memory * 1e9;
        out->launch = d->bandwidth > 100 ? DT__SCALE_LAUNCH : 0; /* GPUs */
        return 0;
    }
    return dt__scale_unknown("dt_scale_device_find", "device", name ? name : "(NULL)", dt_scale_device_name);
}
DT_API int dt_scale_link_find(const char *name, dt_scale_link *out)
{
    for (int i = 0; i < (int)DT__COUNT_OF(dt__scale_links); i++) {
        const dt__scale_link_row *d = &dt__scale_links[i];
        if (!name || strcmp(name, d->name) != 0) continue;
        memset(out, 0, sizeof *out);
        snprintf(out->name, sizeof out->name, "%s", name);
        out->rate = d->rate * 1e9;
        out->latency = d->latency * 1e-6;
        return 0;
    }
    return dt__scale_unknown("dt_scale_link_find", "link", name ? name : "(NULL)", dt_scale_link_name);
}
DT_API void dt_scale_cluster_default(dt_scale_cluster *c)
{
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "default");
    c->machines = 1;
    c->per_machine = 8;
    dt_scale_device_find("v100", &c->device);
    dt_scale_link_find("nvlink2", &c->intra);
    dt_scale_link_find("infiniband-100g", &c->inter);
    c->shared = true;
}
static int dt__scale_read_device(dt__scale_text_in *t, dt_scale_device *d)
{
    unsigned            seen = 0;
    const dt__scale_key key[] = { { "speed", DT__SCALE_SPEED, &d->speed },
                                  { "half", DT__SCALE_SPEED, &d->half_speed },
                                  { "bandwidth", DT__SCALE_RATE, &d->bandwidth },
                                  { "memory", DT__SCALE_BYTES, &d->memory },
                                  { "part", DT__SCALE_PART, &d->part } };
    dt_scale_device     known;
    char                name[DT_SCALE_NAME];
    dt__scale_text_in   was = *t;
    memset(d, 0, sizeof *d);
    int status = dt__scale_named(t, name);
    if (status) return status;
    was.word = t->word, was.n = t->n; /* where a message about the name points */
    bool is = dt_scale_device_find(name, &known) == 0;
    if (is) *d = known;
    snprintf(d->name, sizeof d->name, "%s", name);
    status = dt__scale_pairs(t, key, (int)DT__COUNT_OF(key), &seen);
    if (status) return status;
    if (!is && !(seen & 1)) {
        const char *near = dt_scale_nearest(name, dt_scale_device_name);
        return dt__scale_expected(&was, "a known device%s%s%s, or a name with 'speed 15TFLOP/s'", near ? " (did you mean " : "",
                                  near ? near : "", near ? "?)" : "");
    }
    if (!(d->speed > 0)) return dt__scale_expected(&was, "a speed above 0");
    return 0;
}
static int dt__scale_read_link(dt__scale_text_in *t, dt_scale_link *l)
{
    unsigned            seen = 0;
    const dt__scale_key key[] = { { "rate", DT__SCALE_RATE, &l->rate },
                                  { "latency", DT__SCALE_TIME, &l->latency },
                                  { "burst", DT__SCALE_BYTES, &l->burst } };
    dt_scale_link       known;
    char                name[DT_SCALE_NAME];
    dt__scale_text_in   was = *t;
    memset(l, 0, sizeof *l);
    int status = dt__scale_named(t, name);
    if (status) return status;
    was.word = t->word, was.n = t->n;
    bool is = dt_scale_link_find(name, &known) == 0;
    if (is) *l = known;
    snprintf(l->name, sizeof l->name, "%s", name);
    status = dt__scale_pairs(t, key, (int)DT__COUNT_OF(key), &seen);
    if (status) return status;
    if (!is && (seen & 3) != 3) {
        const char *near = dt_scale_nearest(name, dt_scale_link_name);
        return dt__scale_expected(&was, "a known link%s%s%s, or a name with 'rate 1.25GB/s latency 20us'",
                                  near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    }
    if (!(l->rate >= 1)) return dt__scale_expected(&was, "a rate of at least 1B/s");
    return 0;
}
static int dt__scale_read_inside(dt__scale_text_in *t, int *out)
{
    static const dt__scale_key key[] = { { "full", DT__SCALE_OWN, NULL },
                                         { "ring", DT__SCALE_OWN, NULL },
                                         { "switch", DT__SCALE_OWN, NULL } };
    dt__scale_next(t);
    *out = dt__scale_keys(t, key, 3, "");
    return *out < 0 ? *out : dt__scale_line_end(t);
}
DT_API int dt_scale_cluster_parse(dt_scale_cluster *out, const char *file, const char *text, size_t n)
{
    enum { DEVICE = 0, MACHINES, DEVICES, INTRA, INTER, SHARED, INSIDE, SWITCH, TRUNK, STORAGE, REDUCE, PARTS, STREAM = 14, END };
    dt__scale_text_in t;
    dt_scale_cluster  c;
    unsigned          seen = 0;
    double            reduce = 0;
    memset(&c, 0, sizeof c);
    const dt__scale_key key[] = { { "device", DT__SCALE_OWN, NULL },
                                  { "machines", DT__SCALE_INT, &c.machines },
                                  { "devices", DT__SCALE_INT, &c.per_machine },
                                  { "intra", DT__SCALE_OWN, NULL },
                                  { "inter", DT__SCALE_OWN, NULL },
                                  { "shared", DT__SCALE_OWN, NULL },
                                  { "inside", DT__SCALE_OWN, NULL },
                                  { "switch", DT__SCALE_OWN, NULL },
                                  { "trunk", DT__SCALE_OWN, NULL },
                                  { "storage", DT__SCALE_OWN, NULL },
                                  { "reduce", DT__SCALE_OWN, NULL },
                                  { "together", DT__SCALE_PART, &c.together },
                                  { "busy", DT__SCALE_PART, &c.busy },
                                  { "spread", DT__SCALE_PART, &c.spread },
                                  { "stream", DT__SCALE_OWN, NULL },
                                  { "end", DT__SCALE_OWN, NULL } };
    const dt__scale_key fabric[] = { { "rate", DT__SCALE_RATE, &c.fabric } },
                        storage[] = { { "rate", DT__SCALE_RATE, &c.storage } },
                        stream[] = { { "rate", DT__SCALE_RATE, &c.stream }, { "together", DT__SCALE_PART, &c.crowded } },
                        adding[] = { { "rate", DT__SCALE_RATE, &reduce } },
                        trunk[] = { { "rate", DT__SCALE_RATE, &c.trunk }, { "machines", DT__SCALE_INT, &c.per_switch } };
    int status = dt__scale_begin(&t, "cluster", file, text, n);
    while (!status && dt__scale_line(&t)) {
        unsigned pairs = 0;
        dt__scale_next(&t);
        int i = seen & 1u << END ? dt__scale_expected(&t, "no more lines after 'end'")
                                 : dt__scale_keys(&t, key, (int)DT__COUNT_OF(key), "");
        if (i < 0) return i;
        if (seen & 1u << i) return dt__scale_expected(&t, "%s once", key[i].name);
        seen |= 1u << i;
        status = i == DEVICE    ? dt__scale_read_device(&t, &c.device)
                 : i == INTRA   ? dt__scale_read_link(&t, &c.intra)
                 : i == INTER   ? dt__scale_read_link(&t, &c.inter)
                 : i == INSIDE  ? dt__scale_read_inside(&t, &c.inside)
                 : i == SWITCH  ? dt__scale_pairs(&t, fabric, 1, &pairs)
                 : i == TRUNK   ? dt__scale_pairs(&t, trunk, 2, &pairs)
                 : i == STORAGE ? dt__scale_pairs(&t, storage, 1, &pairs)
                 : i == REDUCE  ? dt__scale_pairs(&t, adding, 1, &pairs)
                 : i == STREAM  ? dt__scale_pairs(&t, stream, 2, &pairs)
                                : dt__scale_value(&t, &key[i], DT__SCALE_DEVICES);
        if (status) return status;
        if ((i >= SWITCH && i <= REDUCE) && pairs != (i == TRUNK ? 3u : 1u))
            return dt__scale_expected(&t, i == TRUNK ? "rate and machines" : "rate");
        if (i == STREAM && (pairs != 3 || !(c.stream >= 1) || !(c.crowded > 0)))
            return dt__scale_expected(&t, "rate and together, both above 0");
        status = dt__scale_line_end(&t);
    }
    if (status) return status;
    if (!(seen & 1u << END)) return dt__scale_expected(&t, "a line 'end'");
    for (int i = DEVICE; i <= DEVICES; i++)
        if (!(seen & 1u << i))
            return dt__scale_bad("cluster in '%.120s': there is no line '%s', expected one", t.file, key[i].name);
    if ((int64_t)c.machines * c.per_machine > DT__SCALE_DEVICES)
        return dt__scale_bad("cluster in '%.120s': %d machines with %d devices each; expected at most %d devices in all",
                             t.file, c.machines, c.per_machine, DT__SCALE_DEVICES);
    if ((c.per_machine > 1 && !(seen & 1u << INTRA)) || (c.machines > 1 && !(seen & 1u << INTER)))
        return dt__scale_bad("cluster in '%.120s': there is no line '%s', expected one: there are %d machines with %d devices",
                             t.file, c.per_machine > 1 && !(seen & 1u << INTRA) ? "intra" : "inter", c.machines, c.per_machine);
    for (int i = SWITCH; i <= REDUCE; i++)
        if (seen & 1u << i && !((i == SWITCH ? c.fabric : i == TRUNK ? c.trunk : i == STORAGE ? c.storage : reduce) >= 1))
            return dt__scale_bad("cluster in '%.120s': the rate of '%s' is below 1 byte a second; expected more", t.file,
                                 key[i].name);
    c.shared = (seen & 1u << SHARED) != 0;
    c.reduce = reduce > 0 ? 1 / reduce : 0;
    snprintf(c.name, sizeof c.name, "cluster");
    *out = c;
    return 0;
}
/* ==================================================================================================== >>timelines
   A device has two streams: computation, and communication. The tasks of a stream run in their order. A task begins when the
   task before it in its stream, and the one of the other stream that it needs, have ended. While both streams run, the
   computation proceeds with 1 - busy of its speed: on CPUs the rank itself copies and adds. With busy above 1 it stops, and the
   communication proceeds with 1 / busy of its speed. */
typedef struct dt__scale_task {
    double seconds, start, end;
    int    need;  /* a task of the other stream; -1: none */
    int    layer; /* for pictures */
    int    kind;
} dt__scale_task;
typedef struct dt__scale_stream {
    dt__scale_task *task;
    int             n, cap;
} dt__scale_stream;
static dt__scale_task *dt__scale_task_add(dt__scale_stream *s, double seconds, int need, int kind, int layer)
{
    if (s->n == s->cap) {
        int   cap = s->cap ? 2 * s->cap : 256;
        void *q = cap > 1 << 24 ? NULL : DT_COMM_REALLOC(s->task, (size_t)cap * sizeof *s->task);
        if (!q) return NULL;
        s->task = (dt__scale_task *)q;
        s->cap = cap;
    }
    dt__scale_task *t = &s->task[s->n++];
    t->seconds = seconds;
    t->start = t->end = 0;
    t->need = need;
    t->kind = kind;
    t->layer = layer;
    return t;
}
/* s[0]: computation, s[1]: communication. When the last task of both has ended; -1: two tasks wait for each other. */
static double dt__scale_run(dt__scale_stream s[2], double busy)
{
    int    at[2] = { 0, 0 };
    double left[2] = { 0, 0 }, now = 0;
    bool   on[2] = { false, false };
    while (at[0] < s[0].n || at[1] < s[1].n) {
        for (int k = 0; k < 2; k++) {
            if (on[k] || at[k] == s[k].n) continue;
            dt__scale_task *t = &s[k].task[at[k]];
            if (t->need >= at[!k]) continue;
            on[k] = true;
            left[k] = t->seconds;
            t->start = now;
        }
        if (!on[0] && !on[1]) return -1;
        double speed = on[1] ? fmax(0, 1 - busy) : 1, sent = on[0] && busy > 1 ? 1 / busy : 1;
        double a = !on[0] ? INFINITY : left[0] <= 0 ? 0 : speed > 0 ? left[0] / speed : INFINITY;
        double b = on[1] ? left[1] / sent : INFINITY, step = a < b ? a : b;
        now += step;
        if (on[0]) left[0] = a <= b ? 0 : left[0] - step * speed;
        if (on[1]) left[1] = b <= a ? 0 : left[1] - step * sent;
        for (int k = 0; k < 2; k++) {
            if (!on[k] || left[k] > 0) continue;
            s[k].task[at[k]++].end = now;
            on[k] = false;
        }
    }
    return now;
}

/* ==================================================================================================== >>predicting
   Placement, as dt_grid has it: tensor is the innermost axis, then pipe, then data; machines are filled one after the other. */
enum { DT__SCALE_MEMO = 512 };
typedef struct dt__scale_group { /* the devices that reduce or gather something together */
    int n, each;                 /* devices; devices on a machine */
} dt__scale_group;
typedef struct dt__scale_memo {
    int     n, each, coll;
    double  nbytes, seconds;
    dt_algo algo;
} dt__scale_memo;
typedef struct dt__scale_work {
    const dt_scale_opts    *o;
    const dt_scale_model   *m;
    const dt_scale_cluster *c;
    dt_scale_layout         l; /* with defaults filled in */
    int                     devices;
    double                  batch, micro; /* samples of a data-parallel rank in a step; in a micro-batch */
    double                  slow;         /* of computation: ranks together, and the slowest of them */
    double                  together;     /* the part of it that is of ranks together */
    double value, grad, state, wire, act; /* bytes of an element: parameter, gradient, states; sent; activation */
    double forward_scale, backward_scale; /* measured seconds of a micro-batch for each that layers were measured with */
    dt__scale_group data, tensor;
    double         *fwd, *bwd; /* seconds of each layer for a micro-batch, with recomputation and the sums of tensor parallel */
    double          moved;     /* of one layer, scratch */
    bool            measured;
    dt__scale_memo *memo; /* DT__SCALE_MEMO, shared by the predictions of a search */
    int            *nmemo;
    int            *host; /* scratch: the machine of each device of a group */
    dt__scale_stream s[2];
    bool             failed; /* out of memory */
} dt__scale_work;

/* ---- communication */
static void dt__scale_costs(const dt__scale_work *w, dt__scale_group g, bool ring, dt_costs *t)
{
    const dt_scale_cluster *c = w->c;
    int    on = w->devices < c->per_machine ? w->devices : c->per_machine; /* devices of a machine that are used */
    int    machines = (g.n + g.each - 1) / g.each;
    double part = (double)g.each / (on > 0 ? on : 1), near, far; /* of what a machine has for this group */
    double reduce = c->reduce > 0 ? c->reduce : c->device.bandwidth > 0 ? 3 / c->device.bandwidth : 0;
    near = c->intra.rate > 0 ? (c->inside == DT_SCALE_SWITCH ? on : 1) / c->intra.rate : 0;
    far = c->inter.rate > 0 ? 1 / (c->shared ? c->inter.rate * part : c->inter.rate * g.each) : 0;
    if (c->fabric > 0) far = fmax(far, machines / (c->fabric * part));
    if (c->trunk > 0 && c->per_switch > 0 && machines > c->per_switch)
        far = fmax(far, (ring ? 1 : c->per_switch) / (c->trunk * part));
    for (int i = 0; i < (int)DT_LINK_COUNT; i++) {
        bool between = i >= DT_LINK_LOOP;
        t->alpha[i] = between ? c->inter.latency : c->intra.latency;
        t->beta[i] = between ? far : near;
    }
    t->gamma = reduce;
}
static double dt__scale_try(dt__scale_work *w, dt__scale_group g, dt_coll coll, dt_algo algo, double nbytes, dt_algo *out)
{
    dt_costs   t;
    int64_t    n = nbytes < 4e18 ? (int64_t)(nbytes + 0.5) : INT64_C(4000000000000000000), segment = 0;
    const int *host = g.n > g.each ? w->host : NULL;
    int        link = host ? (int)DT_LINK_NET : (int)DT_LINK_SHM;
    dt__scale_costs(w, g, algo == DT_ALGO_RING, &t);
    if (algo == DT_ALGO_AUTO) algo = dt__cost_choose(&t, coll, g.n, host, link, w->measured, n, &segment);
    *out = algo;
    return algo == DT_ALGO_COUNT ? -1 : dt_plan_cost(&t, coll, algo, g.n, host, link, n, segment);
}
static double dt__scale_collective(dt__scale_work *w, dt__scale_group g, dt_coll coll, double nbytes, dt_algo *algo)
{
    dt_algo one, two = DT_ALGO_RING;
    double  s, r;
    if (algo) *algo = DT_ALGO_AUTO;
    if (g.n < 2 || !(nbytes > 0)) return 0;
    for (int i = 0; i < *w->nmemo && i < DT__SCALE_MEMO; i++) {
        const dt__scale_memo *k = &w->memo[i];
        if (k->n != g.n || k->each != g.each || k->coll != (int)coll || k->nbytes != nbytes) continue;
        if (algo) *algo = k->algo;
        return k->seconds;
    }
    for (int i = 0; i < g.n; i++) w->host[i] = i / g.each;
    s = dt__scale_try(w, g, coll, coll == DT_COLL_ALLREDUCE ? w->o->algo : DT_ALGO_AUTO, nbytes, &one);
    if (w->c->inside == DT_SCALE_RING && g.each > 2 && s >= 0 && one != DT_ALGO_TWO_LEVEL)
        s = -1; /* not every pair has a link */
    r = (w->c->trunk > 0 || s < 0) && w->o->algo == DT_ALGO_AUTO ? dt__scale_try(w, g, coll, DT_ALGO_RING, nbytes, &two) : -1;
    if (s < 0 || (r >= 0 && r < s)) s = r, one = two;
    if (s < 0) {
        w->failed = true;
        s = 0;
    }
    dt__scale_memo *k = &w->memo[(*w->nmemo)++ % DT__SCALE_MEMO];
    k->n = g.n;
    k->each = g.each;
    k->coll = (int)coll;
    k->nbytes = nbytes;
    k->seconds = s;
    k->algo = one;
    if (algo) *algo = one;
    return s;
}
/* A parameter server on k machines for the n machines of workers, whose devices add up inside first. beside: the servers are
   on k of the workers' machines, and a worker's own server costs nothing. Seconds of one direction: pushes, or pulls. */
DT_API double dt_scale_server_seconds(int n, int k, bool beside, double nbytes, double rate)
{
    if (n < 1 || k < 1 || !(rate > 0) || !(nbytes > 0) || (n == 1 && beside)) return 0;
    double server = (beside ? n - 1.0 : n) * nbytes / k, worker = beside && k >= n ? nbytes * (k - 1) / k : nbytes;
    return (server > worker ? server : worker) / rate;
}
/* BytePS: n machines of workers that are servers, too, and k that are servers only. No link is idle. */
DT_API double dt_scale_byteps_seconds(int n, int k, double nbytes, double rate)
{
    if (n < 2 || k < 0 || !(rate > 0) || !(nbytes > 0)) return 0;
    if (k >= n) return nbytes / rate;
    return 2.0 * n * (n - 1) * nbytes / (((double)n * n + (double)k * n - 2.0 * k) * rate);
}
/* How much more than its part the fullest of k servers has. Arrays above DT__SCALE_BIG elements are cut over all, the others go whole to
   the server that has least, as dt_ps.h places them. */
static double dt__scale_fullest(const dt_scale_model *m, int k)
{
    enum { SERVERS = 64 };
    double load[SERVERS] = { 0 }, whole = 0, most = 0;
    if (k < 2 || k > SERVERS) return 1;
    for (int i = 0; i < m->nlayers; i++) {
        double n = (double)m->layer[i].params;
        int    to = 0;
        whole += n;
        for (int s = 0; s < k; s++) {
            if (n > DT__SCALE_BIG) load[s] += n / k;
            if (load[s] < load[to]) to = s;
        }
        if (n <= DT__SCALE_BIG) load[to] += n;
    }
    for (int s = 0; s < k; s++) most = fmax(most, load[s]);
    return whole > 0 ? most / (whole / k) : 1;
}
static double dt__scale_machine_rate(const dt_scale_cluster *c) /* bytes a second of all links of a machine */
{
    return c->shared ? c->inter.rate : c->inter.rate * c->per_machine;
}
static bool   dt__scale_served(const dt_scale_opts *o) { return o->servers > 0 || o->serving == DT_SCALE_BYTEPS; }
static double dt__scale_reduce(dt__scale_work *w, double nbytes, dt_algo *algo) /* the gradients of a bucket, of all ranks */
{
    double sent = nbytes * (w->o->compress > 0 ? w->o->compress : 1), encode = nbytes * w->o->encode;
    *algo = DT_ALGO_NATIVE;
    if (!dt__scale_served(w->o))
        return encode + dt__scale_collective(w, w->data, w->l.zero ? DT_COLL_REDUCE_SCATTER : DT_COLL_ALLREDUCE, sent, algo);
    dt__scale_group in;
    int             machines = (w->data.n + w->data.each - 1) / w->data.each;
    in.n = in.each = w->data.n < w->data.each ? w->data.n : w->data.each;
    double between = w->o->serving == DT_SCALE_BYTEPS
                         ? dt_scale_byteps_seconds(machines, w->o->servers, sent, dt__scale_machine_rate(w->c))
                         : dt__scale_fullest(w->m, w->o->servers) *
                               dt_scale_server_seconds(machines, w->o->servers, w->o->serving == DT_SCALE_BESIDE, sent,
                                                       dt__scale_machine_rate(w->c));
    return encode + dt__scale_collective(w, in, DT_COLL_ALLREDUCE, sent, NULL) + between +
           (machines > 1 ? w->c->inter.latency : 0);
}

/* ---- computation */
/* The seconds of a layer for a micro-batch on one device, without communication */
static void dt__scale_layer_seconds(const dt__scale_work *w, const dt_scale_layer *l, double *fwd, double *bwd, double *again)
{
    const dt_scale_device *d = &w->c->device;
    double cut = w->l.tensor > 1 && l->parts > 0 ? w->l.tensor : 1, share = l->flops > 0 ? l->flops_again / l->flops : 0;
    if (w->measured) {
        *fwd = l->forward * w->forward_scale / cut;
        *bwd = l->backward * w->backward_scale / cut;
        *again = *fwd * share;
        return;
    }
    bool   half = w->o->precision != DT_SCALE_F32 && d->half_speed > 0;
    double speed = half ? d->half_speed : d->speed;
    double part = d->part > 0 ? d->part : half && d->half_speed > 4 * d->speed ? DT__SCALE_REACHED_HALF : DT__SCALE_REACHED;
    double moved =
        d->bandwidth > 0 ? DT__SCALE_MOVED * l->held * w->micro * w->act / (d->bandwidth * DT__SCALE_REACHED_MEMORY) : 0;
    double factor = d->factor > 0 ? d->factor : 1;
    *fwd = factor * (l->flops * w->micro / (speed * part) + moved) / cut;
    *bwd = factor * (l->flops_back * w->micro / (speed * part) + 2 * moved) / cut;
    *again = factor * l->flops_again * w->micro / (speed * part) / cut;
    *fwd = fmax(*fwd, 2 * d->launch);
    *bwd = fmax(*bwd, 4 * d->launch);
}
static void dt__scale_computation(dt__scale_work *w)
{
    for (int i = 0; i < w->m->nlayers; i++) {
        const dt_scale_layer *l = &w->m->layer[i];
        double                f, b, again, sync;
        dt__scale_layer_seconds(w, l, &f, &b, &again);
        if (w->l.recompute == DT_SCALE_FULL_AGAIN) b += f;
        else if (w->l.recompute == DT_SCALE_SELECTIVE) b += again;
        sync = w->l.tensor > 1 && l->parts > 0
                   ? dt__scale_collective(w, w->tensor, DT_COLL_ALLREDUCE, l->sync * w->micro * w->act, NULL)
                   : 0;
        w->fwd[i] = f * w->slow + sync;
        w->bwd[i] = b * w->slow + sync * (w->l.recompute == DT_SCALE_FULL_AGAIN ? 2 : 1);
    }
}
static double dt__scale_params(const dt__scale_work *w, int first, int last) /* elements of a device that has these layers */
{
    double n = 0;
    for (int i = first; i <= last; i++) n += (double)w->m->layer[i].params / (w->m->layer[i].parts > 0 ? w->l.tensor : 1);
    return n;
}
static double dt__scale_update(const dt__scale_work *w, double params)
{
    const dt_scale_device *d = &w->c->device;
    int                    servers = w->o->servers > 0 && w->o->serving != DT_SCALE_BYTEPS && w->data.n > 1 ? w->o->servers : 1;
    double                 n = params / (w->l.zero ? w->l.data : servers), all = (double)dt_scale_model_sums(w->m).params;
    if (w->measured) return all > 0 ? w->m->update * w->slow * n / all : 0;
    return d->bandwidth > 0 ? 2 * n * (w->value + w->grad + w->state) / (d->bandwidth * DT__SCALE_REACHED_MEMORY) : 0;
}

/* ---- one rank's step, or a part of it */
enum { DT__SCALE_DO_FORWARD = 1, DT__SCALE_DO_BACKWARD = 2, DT__SCALE_DO_REDUCE = 4, DT__SCALE_DO_GATHER = 8 }; /* parts */
typedef struct dt__scale_ready { /* gradients in the order in which they are complete */
    double ready, params;
    int    layer;
} dt__scale_ready;
static int dt__scale_ready_order(const void *a, const void *b)
{
    const dt__scale_ready *x = (const dt__scale_ready *)a, *y = (const dt__scale_ready *)b;
    return x->ready != y->ready ? (x->ready < y->ready ? -1 : 1) : y->layer - x->layer;
}
static void dt__scale_do(dt__scale_work *w, int stream, double seconds, int need, int kind, int layer)
{
    if (!dt__scale_task_add(&w->s[stream], seconds, need, kind, layer)) w->failed = true;
}
static double dt__scale_unit_bytes(const dt__scale_work *w, int i) /* of the values of a layer */
{
    return dt__scale_params(w, i, i) * w->value;
}
/* Gathers of the values of layers that are used next: with ZeRO 1 and 2 in buckets, with 3 layer by layer, one layer ahead.
   dt__scale_held: with 3 some layers need no gather in the backward. The last two units of the forward are still there (a unit: a layer, or
   several small ones, see DT__SCALE_UNIT); and the first layer needs its values only for the gradient of the samples, which nobody wants. */
static bool dt__scale_held(const dt__scale_work *w, int first, int last, int i)
{
    int before = first, units = 0;
    while (before < last && w->m->layer[before].params == 0) before++;
    if (i == before && first == 0) return true;
    double sum = 0;
    for (int k = last; k >= i; k--) {
        sum += dt__scale_unit_bytes(w, k);
        if (sum >= DT__SCALE_UNIT && k > i) units++, sum = 0;
    }
    return units < 2;
}
static void dt__scale_gathers(dt__scale_work *w, int first, int last, bool backward, int *need)
{
    int    from = backward ? last : first, to = backward ? first - 1 : last + 1, by = backward ? -1 : 1;
    int    before = w->s[0].n, count = 0;
    double sum = 0, limit = w->o->bucket > 0 ? w->o->bucket : DT__SCALE_BUCKET;
    for (int i = from; i != to; i += by, count++) {
        double nbytes = dt__scale_unit_bytes(w, i);
        need[i] = w->s[1].n - 1;
        if (nbytes <= 0 || w->data.n < 2 || (backward && dt__scale_held(w, first, last, i))) continue;
        sum += nbytes;
        need[i] = w->s[1].n; /* the task that is added next has it */
        if (w->l.zero < 3 && sum < limit && i + by != to) continue;
        int ahead = w->l.zero < 3 ? -1 : before + count - 2; /* may begin when the layer before the last one is done */
        dt__scale_do(w, 1, dt__scale_collective(w, w->data, DT_COLL_ALLGATHER, sum, NULL), ahead < 0 ? -1 : ahead,
                     DT_SCALE_EVENT_GATHER, i);
        sum = 0;
    }
    if (sum > 0)
        dt__scale_do(w, 1, dt__scale_collective(w, w->data, DT_COLL_ALLGATHER, sum, NULL), -1, DT_SCALE_EVENT_GATHER, to - by);
}
static void dt__scale_bucket_end(dt__scale_work *w, dt_scale_prediction *p, double *sum, int *from, double *limit, int last, int need,
                                 bool end) /* end: it is the last one */
{
    dt_algo algo;
    double  seconds = dt__scale_reduce(w, *sum, &algo);
    if (end && w->o->serving == DT_SCALE_BYTEPS) seconds *= 2; /* nothing hides the pull of the last bucket */
    dt__scale_do(w, 1, seconds, need, DT_SCALE_EVENT_REDUCE, last);
    if (p && p->bucket) {
        dt_scale_bucket *b = &p->bucket[p->nbuckets++];
        b->nbytes = *sum;
        b->first = *from;
        b->last = last;
        b->algo = algo;
        b->ready = (double)(w->s[1].n - 1); /* its task, until the streams have run */
    }
    *sum = 0;
    *from = -1;
    *limit = w->o->bucket > 0 ? w->o->bucket : DT__SCALE_BUCKET;
}
/* The link rested before the first communication of a step: so many bytes of it pass at once. */
static void dt__scale_burst(dt__scale_work *w, dt__scale_group g)
{
    const dt_scale_link *l = g.n > g.each ? &w->c->inter : &w->c->intra;
    double               free = l->rate > 0 ? l->burst / l->rate : 0;
    for (int i = 0; i < w->s[1].n && free > 0; i++) {
        double now = fmin(free, fmax(0, w->s[1].task[i].seconds - l->latency));
        w->s[1].task[i].seconds -= now;
        free -= now;
    }
}
static double dt__scale_part_of_step(dt__scale_work *w, int first, int last, int parts, dt_scale_prediction *p)
{
    const dt_scale_model *m = w->m;
    int                   n = last - first + 1, count = 0;
    int                  *need = (int *)dt__comm_zeroed((size_t)m->nlayers, sizeof *need);
    dt__scale_ready      *r = (dt__scale_ready *)dt__comm_zeroed((size_t)n, sizeof *r);
    double                end = 0, limit = w->o->bucket > 0 ? w->o->bucket : DT__SCALE_FIRST_BUCKET;
    bool                  timed = w->measured;
    w->s[0].n = w->s[1].n = 0;
    if (!need || !r) w->failed = true;
    for (int i = first; !w->failed && i <= last; i++) {
        need[i] = -1;
        timed = timed && (m->layer[i].params == 0 || m->layer[i].ready > 0);
    }
    if (!w->failed && parts & DT__SCALE_DO_FORWARD) {
        if (parts & DT__SCALE_DO_GATHER && w->l.zero) dt__scale_gathers(w, first, last, false, need);
        for (int i = first; i <= last; i++) dt__scale_do(w, 0, w->fwd[i], need[i], DT_SCALE_EVENT_FORWARD, i);
    }
    if (!w->failed && parts & DT__SCALE_DO_BACKWARD) {
        double all = 0, sum = 0, at = 0;
        int    from = -1, before = -1;
        for (int i = first; i <= last; i++) need[i] = -1, all += w->bwd[i];
        if (parts & DT__SCALE_DO_GATHER && w->l.zero == 3) dt__scale_gathers(w, first, last, true, need);
        timed =
            timed && n == m->nlayers && w->l.recompute == DT_SCALE_KEEP && w->l.zero < 3 && w->l.tensor == 1 && m->backward > 0;
        for (int i = last; i >= first; i--) {
            if (timed && m->layer[i].params == 0) continue;
            r[count].layer = i;
            r[count].ready = timed ? m->layer[i].ready : (double)(last - i);
            r[count].params = dt__scale_params(w, i, i);
            count++;
        }
        qsort(r, (size_t)count, sizeof *r, dt__scale_ready_order);
        for (int k = 0; k < count && !w->failed; k++) {
            int    i = r[k].layer, now = w->s[0].n;
            double work = w->bwd[i], nbytes = r[k].params * w->wire;
            if (timed) { /* the measured time from one layer's gradients to the next one's */
                double to = fmin(1, r[k].ready / m->backward) * all;
                work = to - at > 0 ? to - at : 0;
                at += work;
            }
            dt__scale_do(w, 0, work, need[i], DT_SCALE_EVENT_BACKWARD, i);
            if (!(parts & DT__SCALE_DO_REDUCE) || w->data.n < 2) continue;
            /* A bucket is closed before it would be too large; with ZeRO-3 when it is a unit */
            if (sum > 0 && (sum + nbytes > limit || (w->l.zero == 3 && sum >= DT__SCALE_UNIT)))
                dt__scale_bucket_end(w, p, &sum, &from, &limit, before, now - 1, false);
            if (from < 0) from = i;
            before = i;
            sum += nbytes;
            if (k + 1 == count && sum > 0) dt__scale_bucket_end(w, p, &sum, &from, &limit, i, now, true);
        }
        if (timed && all > at) dt__scale_do(w, 0, all - at, -1, DT_SCALE_EVENT_BACKWARD, first);
        if (parts & DT__SCALE_DO_REDUCE && w->o->servers > 0 && w->o->serving != DT_SCALE_BYTEPS && w->data.n > 1) {
            /* All workers pull when the last push has arrived, and the servers have added all pushes up. What adding costs a server
               is known where it was measured. */
            double nbytes = dt__scale_params(w, first, last) * w->wire;
            int    workers = (w->data.n + w->data.each - 1) / w->data.each;
            nbytes *= dt__scale_fullest(w->m, w->o->servers);
            dt__scale_do(w, 1,
                         workers * nbytes / w->o->servers * (w->c->reduce > 0 ? w->c->reduce : 0) +
                         dt_scale_server_seconds((w->data.n + w->data.each - 1) / w->data.each, w->o->servers,
                                                 w->o->serving == DT_SCALE_BESIDE, nbytes, dt__scale_machine_rate(w->c)) +
                             w->c->inter.latency,
                         w->s[0].n - 1, DT_SCALE_EVENT_GATHER, first);
        }
        if (w->o->overlap == DT_NO) /* all buckets after the backward */
            for (int k = 0; k < w->s[1].n; k++)
                if (w->s[1].task[k].kind == DT_SCALE_EVENT_REDUCE) w->s[1].task[k].need = w->s[0].n - 1;
    }
    dt__scale_burst(w, w->data);
    if (!w->failed) end = dt__scale_run(w->s, w->c->busy > 0 ? w->c->busy : 0);
    if (end < 0) w->failed = true; /* cannot be: needs point to earlier tasks */
    for (int k = 0; p && !w->failed && k < p->nbuckets; k++) {
        const dt__scale_task *t = &w->s[1].task[(int)p->bucket[k].ready];
        p->bucket[k].ready = t->need >= 0 ? w->s[0].task[t->need].end : 0;
        p->bucket[k].start = t->start;
        p->bucket[k].end = t->end;
    }
    DT_COMM_FREE(need);
    DT_COMM_FREE(r);
    return end;
}
static double dt__scale_sum(const dt__scale_stream *s, int kind)
{
    double sum = 0;
    for (int i = 0; i < s->n; i++)
        if (!kind || s->task[i].kind == kind) sum += s->task[i].seconds;
    return sum;
}
static int dt__scale_event_add(dt_scale_prediction *p, int *cap, dt_scale_event e)
{
    if (p->nevents == *cap) {
        int   more = *cap ? 2 * *cap : 256;
        void *q = more > 1 << 22 ? NULL : DT_COMM_REALLOC(p->event, (size_t)more * sizeof *p->event);
        if (!q) return -1;
        p->event = (dt_scale_event *)q;
        *cap = more;
    }
    p->event[p->nevents++] = e;
    return 0;
}
static void dt__scale_events(dt__scale_work *w, dt_scale_prediction *p, double from, int rank)
{
    int cap = p->nevents;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < w->s[k].n && !w->failed; i++) {
            const dt__scale_task *t = &w->s[k].task[i];
            dt_scale_event        e;
            e.rank = rank;
            e.kind = t->kind;
            e.layer = t->layer;
            e.micro = 0;
            e.start = from + t->start;
            e.end = from + t->end;
            if (t->end > t->start && dt__scale_event_add(p, &cap, e)) w->failed = true;
        }
}

/* ---- memory of a device that holds layers first .. last, and `flight` micro-batches */
static dt_scale_memory dt__scale_memory_of(const dt__scale_work *w, int first, int last, double flight)
{
    const dt_scale_model *m = w->m;
    dt_scale_memory       k;
    double                n = dt__scale_params(w, first, last), held = 0, most = 0, block = 0, inputs = 0, unit = 0, work = 0;
    double                shards = w->l.data;
    memset(&k, 0, sizeof k);
    k.parameters = n * w->value / (w->l.zero >= 3 ? shards : 1);
    k.gradients = n * w->grad / (w->l.zero >= 2 ? shards : 1);
    k.states = n * w->state / (w->l.zero >= 1 ? shards : 1);
    for (int i = first; i <= last; i++) {
        const dt_scale_layer *l = &m->layer[i];
        double                cut = w->l.tensor > 1 && l->parts > 0 ? w->l.tensor : 1;
        bool                  begins = i == first || m->layer[i - 1].block != l->block;
        if (begins) {
            most = block > most ? block : most;
            block = 0;
            inputs += i > 0 ? m->layer[i - 1].out / cut : 0;
        }
        block += l->held / cut;
        held += (w->l.recompute == DT_SCALE_SELECTIVE ? l->held_again : l->held) / cut;
        unit = fmax(unit, dt__scale_unit_bytes(w, i));
        work = fmax(work, 2 * l->out / cut);
    }
    most = block > most ? block : most;
    if (w->l.recompute == DT_SCALE_FULL_AGAIN) k.activations = (flight * inputs + most) * w->micro * w->act;
    else k.activations = flight * held * w->micro * w->act;
    k.workspace = m->workspace > 0 ? m->workspace : work * w->micro * w->act;
    double bucket = fmin(w->o->bucket > 0 ? w->o->bucket : fmax(DT__SCALE_BUCKET, unit / w->value * w->grad), n * w->grad);
    if (w->l.zero >= 2 && shards > 1) k.buckets = fmin(3 * bucket, n * w->grad);
    if (w->l.zero >= 3 && shards > 1) k.buckets += fmin(4 * unit, n * w->value);
    k.all = k.parameters + k.gradients + k.states + k.activations + k.workspace + k.buckets;
    return k;
}

/* ---- pipelines */
typedef struct dt__scale_stage {
    int    first, last; /* layers */
    double fwd, bwd, exposed,
        extra; /* of a micro-batch; communication that the last backward does not hide; gathers before the first forward */
} dt__scale_stage;
static int dt__scale_cut(dt__scale_work *w, dt__scale_stage *stage, int nstages)
{
    const dt_scale_model *m = w->m;
    int                   n = 0, status = 0, *begin = (int *)dt__comm_zeroed((size_t)m->nlayers + 1, sizeof *begin);
    dt_pipe_layer        *l = (dt_pipe_layer *)dt__comm_zeroed((size_t)m->nlayers, sizeof *l);
    dt_pipe_partition    *p = NULL;
    if (!begin || !l) status = dt__scale_no_memory("dt_scale_predict");
    for (int i = 0; !status && i < m->nlayers; i++) {
        if (i == 0 || m->layer[i].block != m->layer[i - 1].block) begin[n++] = i;
        l[n - 1].forward += w->fwd[i];
        l[n - 1].backward += w->bwd[i];
        l[n - 1].out = (int64_t)(m->layer[i].out * w->micro * w->act);
        l[n - 1].params += (int64_t)(dt__scale_params(w, i, i) * w->value);
        l[n - 1].held += (int64_t)(m->layer[i].held * w->micro * w->act / w->l.tensor);
        l[n - 1].state = (w->grad + w->state) / w->value;
    }
    if (!status && nstages > n)
        status =
            dt__scale_bad("dt_scale_predict: %d stages of a pipeline, but %s has only %d blocks; take fewer ranks or chunks",
                          nstages, dt__show(m->name), n);
    if (!status) {
        begin[n] = m->nlayers;
        dt_pipe_partition_opts o = DT__NO_OPTIONS;
        DT__CLEAR(o);
        o.layers = l;
        o.nlayers = n;
        o.ranks = nstages; /* as 1F1B: only the cuts are of interest, and messages pass while ranks compute */
        o.micro = w->l.micro;
        if (w->measured) { /* a profile is of a dt program, whose pipelines count messages when they look for cuts */
            const dt_scale_link *link = w->l.pipe * w->l.tensor > w->c->per_machine ? &w->c->inter : &w->c->intra;
            o.bandwidth = link->rate;
            o.latency = link->latency;
        }
        p = dt_pipe_partition_new_with(o);
        if (!p) status = DT_COMM_ERR_ARG;
    }
    for (int i = 0; !status && i < nstages; i++) {
        stage[i].first = begin[p->stage[i].first];
        stage[i].last = begin[p->stage[i].last + 1] - 1;
    }
    dt_pipe_partition_free(p);
    DT_COMM_FREE(begin);
    DT_COMM_FREE(l);
    return status;
}
/* Devices of a machine slow each other down only while they compute. w->slow has it for devices that compute all the time; a stage of
   a pipeline that is not cut evenly waits for the slowest one meanwhile. */
static void dt__scale_crowd(const dt__scale_work *w, dt__scale_stage *stage, double *times, int n)
{
    double together = 1 / w->together, all = 0, most = 0;
    if (!(together < 1)) return;
    for (int r = 0; r < w->l.pipe; r++) {
        double work = 0;
        for (int i = r; i < n; i += w->l.pipe) work += stage[i].fwd + stage[i].bwd;
        all += work;
        most = fmax(most, work);
    }
    if (!(most > 0)) return;
    for (int r = 0; r < w->l.pipe; r++) {
        double work = 0;
        for (int i = r; i < n; i += w->l.pipe) work += stage[i].fwd + stage[i].bwd;
        double others = w->l.pipe > 1 ? (all - work) / ((w->l.pipe - 1) * most) : 1; /* the part of the time in which they compute */
        double k = (1 + (1 / together - 1) * others) * together;
        for (int i = r; i < n; i += w->l.pipe) {
            stage[i].fwd *= k, stage[i].bwd *= k;
            for (int j = 0; j < 3; j++) times[j * n + i] *= k;
        }
    }
}
static int dt__scale_pipeline(dt__scale_work *w, dt_scale_prediction *p)
{
    int              status, chunks = w->l.schedule == DT_PIPE_INTERLEAVED ? w->l.chunks : 1, n = w->l.pipe * chunks, far;
    dt__scale_stage *stage = (dt__scale_stage *)dt__comm_zeroed((size_t)n, sizeof *stage);
    double          *times = (double *)dt__comm_zeroed(4 * (size_t)n, sizeof *times), worst = 0, most = 0;
    dt_pipe_opts     q = DT__NO_OPTIONS;
    dt_pipe_times    t = DT__NO_OPTIONS;
    DT__CLEAR(q);
    DT__CLEAR(t);
    q.kind = w->l.schedule;
    q.ranks = w->l.pipe;
    q.chunks = chunks;
    q.micro = w->l.micro;
    status = !stage || !times ? dt__scale_no_memory("dt_scale_predict") : dt__scale_cut(w, stage, n);
    for (int i = 0; !status && i < n; i++) {
        dt__scale_stage *s = &stage[i];
        int              gather = w->l.zero == 3 ? DT__SCALE_DO_GATHER : 0;
        s->fwd = dt__scale_part_of_step(w, s->first, s->last, DT__SCALE_DO_FORWARD | gather, NULL);
        s->extra = w->l.zero && !gather
                       ? dt__scale_part_of_step(w, s->first, s->last, DT__SCALE_DO_FORWARD | DT__SCALE_DO_GATHER, NULL) - s->fwd
                       : 0;
        s->bwd = dt__scale_part_of_step(w, s->first, s->last, DT__SCALE_DO_BACKWARD | gather, NULL);
        double last = dt__scale_part_of_step(w, s->first, s->last, DT__SCALE_DO_BACKWARD | DT__SCALE_DO_REDUCE | gather, NULL);
        s->exposed = last - s->bwd;
        p->t2 = fmax(p->t2, chunks * dt__scale_sum(&w->s[1], 0));
        times[i] = s->fwd;
        times[n + i] = s->bwd / 2; /* half for the inputs, half for the weights */
        times[2 * n + i] = s->bwd / 2;
        /* neighbours of a pipeline are w->l.tensor devices apart */
        far = (i % w->l.pipe + 1) % w->l.pipe == 0 ||
              ((i % w->l.pipe) * w->l.tensor) / w->c->per_machine != ((i % w->l.pipe + 1) * w->l.tensor) / w->c->per_machine;
        if (w->l.pipe * w->l.tensor <= w->c->per_machine) far = 0;
        const dt_scale_link *link = far ? &w->c->inter : &w->c->intra;
        double               rate = far && w->c->shared ? link->rate / fmin(w->l.tensor, w->c->per_machine) : link->rate;
        double               nbytes = w->m->layer[s->last].out * w->micro * w->act - link->burst;
        if (i + 1 < n) times[3 * n + i] = link->latency + (rate > 0 && nbytes > 0 ? nbytes / rate : 0);
    }
    if (!status) dt__scale_crowd(w, stage, times, n);
    dt_pipe_schedule *schedule = status ? NULL : dt_pipe_schedule_new_with(q);
    t.forwards = times;
    t.backward_inputs = times ? times + n : NULL;
    t.backward_weights = times ? times + 2 * n : NULL;
    t.transfers = times ? times + 3 * n : NULL;
    dt_pipe_timing *timing = schedule ? dt_pipe_simulate_with(schedule, t) : NULL;
    if (!status && !timing) status = DT_COMM_ERR_ARG;
    for (int r = 0; !status && r < w->l.pipe; r++) {
        double end = 0, fwd = 0, bwd = 0, exposed = 0, extra = 0, params = 0;
        for (int64_t i = schedule->first[r]; i < schedule->first[r + 1]; i++) end = fmax(end, timing->end[i]);
        dt_scale_memory k, all;
        memset(&all, 0, sizeof all);
        for (int i = r; i < n; i += w->l.pipe) {
            exposed += stage[i].exposed;
            extra += stage[i].extra;
            fwd += stage[i].fwd * w->l.micro;
            bwd += stage[i].bwd * w->l.micro;
            params += dt__scale_params(w, stage[i].first, stage[i].last);
            k = dt__scale_memory_of(w, stage[i].first, stage[i].last, (double)dt_pipe_held(q, r) / chunks);
            all.parameters += k.parameters, all.gradients += k.gradients, all.states += k.states,
                all.activations += k.activations;
            all.buckets += k.buckets, all.all += k.all, all.workspace += k.workspace;
        }
        double update = dt__scale_update(w, params);
        if (all.all > most) p->memory = all, most = all.all;
        p->t1 = fmax(p->t1, fwd + bwd + update);
        if (end + exposed + extra + update < worst) continue;
        worst = end + exposed + extra + update;
        p->forward = fwd, p->backward = bwd, p->update = update, p->exposed = exposed + extra;
        p->bubble = end - fwd - bwd;
    }
    p->step = worst;
    int cap = p->nevents;
    for (int r = 0; !status && r < w->l.pipe; r++)
        for (int64_t i = schedule->first[r]; i < schedule->first[r + 1] && schedule->nsteps < 1 << 18; i++) {
            dt_scale_event e;
            e.rank = r;
            e.kind = schedule->step[i].op == DT_PIPE_FORWARD ? DT_SCALE_EVENT_FORWARD : DT_SCALE_EVENT_BACKWARD;
            e.layer = stage[schedule->step[i].chunk * w->l.pipe + r].first;
            e.micro = schedule->step[i].micro;
            e.start = timing->start[i];
            e.end = timing->end[i];
            if (dt__scale_event_add(p, &cap, e)) status = dt__scale_no_memory("dt_scale_predict");
        }
    dt_pipe_timing_free(timing);
    dt_pipe_schedule_free(schedule);
    DT_COMM_FREE(stage);
    DT_COMM_FREE(times);
    return status;
}
/* One device has the whole model: data parallel, perhaps sharded, perhaps several micro-batches before an update. */
static void dt__scale_flat(dt__scale_work *w, dt_scale_prediction *p)
{
    int last = w->m->nlayers - 1, gather3 = w->l.zero == 3 ? DT__SCALE_DO_GATHER : 0,
        both = DT__SCALE_DO_FORWARD | DT__SCALE_DO_BACKWARD;
    double before = 0, comm = 0, params = dt__scale_params(w, 0, last), fwd = 0, bwd = 0;
    if (w->l.micro > 1) {
        before = (w->l.micro - 1) * dt__scale_part_of_step(w, 0, last, both | gather3, NULL);
        comm = (w->l.micro - 1) * dt__scale_sum(&w->s[1], 0);
        if (w->l.zero && !gather3) {
            double plain = dt__scale_part_of_step(w, 0, last, DT__SCALE_DO_FORWARD, NULL);
            before += dt__scale_part_of_step(w, 0, last, DT__SCALE_DO_FORWARD | DT__SCALE_DO_GATHER, NULL) - plain;
            comm += dt__scale_sum(&w->s[1], 0);
        }
    }
    int    parts = both | DT__SCALE_DO_REDUCE | (w->l.zero == 3 || w->l.micro == 1 ? DT__SCALE_DO_GATHER : 0);
    double end = dt__scale_part_of_step(w, 0, last, parts, p);
    p->t2 = comm + dt__scale_sum(&w->s[1], 0);
    for (int i = 0; i < p->nbuckets; i++)
        p->bucket[i].ready += before, p->bucket[i].start += before, p->bucket[i].end += before;
    if (p->bucket) dt__scale_events(w, p, before, 0);
    for (int i = 0; i <= last; i++) fwd += w->fwd[i], bwd += w->bwd[i];
    p->forward = fwd * w->l.micro;
    p->backward = bwd * w->l.micro;
    p->update = dt__scale_update(w, params);
    p->t1 = p->forward + p->backward + p->update;
    p->exposed = before + end - p->forward - p->backward;
    p->step = before + end + p->update;
    p->memory = dt__scale_memory_of(w, 0, last, 1);
    if (p->bucket && p->update > 0) {
        dt_scale_event e;
        int            cap = p->nevents;
        e.rank = 0, e.kind = DT_SCALE_EVENT_UPDATE, e.layer = -1, e.micro = 0, e.start = before + end, e.end = p->step;
        if (dt__scale_event_add(p, &cap, e)) w->failed = true;
    }
}
/* The mean of the largest of n values with normal distribution and standard deviation 1 (Blom): where the distribution is
   (n - 0.375) / (n + 0.25). */
static double dt__scale_slowest(double n)
{
    double p = (n - 0.375) / (n + 0.25), lo = 0, hi = 8;
    if (!(n > 1)) return 0;
    for (int i = 0; i < 60; i++) {
        double mid = (lo + hi) / 2;
        if (0.5 * erfc(-mid / 1.4142135623730951) < p) lo = mid;
        else hi = mid;
    }
    return lo;
}
/* ---- options */
static int dt__scale_whole_part(int a, int b) { return b > 0 ? a / b : 0; }
static int dt__scale_refused(const char *why, const dt__scale_work *w)
{
    return dt__scale_bad(
        "dt_scale_predict: %s; found data %d x pipe %d x tensor %d, zero %d, %d micro-batches of %g samples in all, on %d "
        "machines with %d devices",
        why, w->l.data, w->l.pipe, w->l.tensor, w->l.zero, w->l.micro, w->batch, w->c->machines, w->c->per_machine);
}
static int dt__scale_options(dt__scale_work *w)
{
    const dt_scale_opts    *o = w->o;
    const dt_scale_cluster *c = o->cluster;
    w->m = o->model;
    w->c = c;
    if (!w->m || !c || w->m->nlayers < 1 || !w->m->layer)
        return dt__scale_bad("dt_scale_predict: %s; expected a model with layers and a cluster",
                             !c ? "cluster is NULL" : "the model is NULL or has no layers");
    if (c->machines < 1 || c->per_machine < 1 || c->per_machine > DT__SCALE_DEVICES / c->machines)
        return dt__scale_bad("dt_scale_predict: %d machines with %d devices each; expected 1 to %d devices in all", c->machines,
                             c->per_machine, DT__SCALE_DEVICES);
    w->devices = c->machines * c->per_machine;
    w->measured = w->m->batch > 0;
    if (!w->measured && !(c->device.speed > 0))
        return dt__scale_bad(
            "dt_scale_predict: the device has a speed of %g; expected more than 0: name a known device, or give its speed",
            c->device.speed);
    if ((c->per_machine > 1 && !(c->intra.rate > 0)) || (c->machines > 1 && !(c->inter.rate > 0)))
        return dt__scale_bad("dt_scale_predict: the link %s machines has a rate of 0; expected more",
                             c->per_machine > 1 && !(c->intra.rate > 0) ? "inside" : "between");
    w->l = o->layout;
    if (w->l.pipe == 0) w->l.pipe = 1;
    if (w->l.tensor == 0) w->l.tensor = 1;
    w->batch = o->batch > 0 ? o->batch : w->measured ? w->m->batch : 32;
    if (w->l.micro == 0) w->l.micro = w->l.pipe > 1 ? 4 * w->l.pipe : 1;
    if (w->l.pipe < 1 || w->l.tensor < 1 || w->l.data < 0 || w->l.micro < 1 || w->l.micro > 65536 || w->l.pipe > 1024 ||
        w->l.tensor > w->devices || w->l.zero < 0 || w->l.zero > 3 || w->l.recompute < 0 ||
        w->l.recompute > DT_SCALE_FULL_AGAIN)
        return dt__scale_refused("expected positive parts, at most 1024 stages, 65536 micro-batches, zero 0 to 3", w);
    if (w->l.data == 0) w->l.data = dt__scale_whole_part(w->devices, w->l.pipe * w->l.tensor);
    if ((int64_t)w->l.data * w->l.pipe * w->l.tensor != w->devices)
        return dt__scale_refused("data x pipe x tensor is not the number of devices; expected a layout that divides it", w);
    if (w->l.chunks == 0) w->l.chunks = w->l.schedule == DT_PIPE_INTERLEAVED ? 2 : 1;
    if (w->l.schedule == DT_PIPE_INTERLEAVED && w->l.micro % w->l.pipe)
        return dt__scale_refused("an interleaved schedule needs micro-batches that are a multiple of its ranks", w);
    w->micro = w->batch / w->l.micro;
    if (w->micro < 1)
        return dt__scale_refused("a micro-batch has less than one sample; expected at most as many micro-batches as samples",
                                 w);
    if (w->l.tensor > 1 && c->per_machine % w->l.tensor && w->l.tensor % c->per_machine)
        return dt__scale_refused("tensor neither divides the devices of a machine nor is divided by them", w);
    int parts = 0;
    for (int i = 0; i < w->m->nlayers; i++) parts += w->m->layer[i].parts > 0;
    if (w->l.tensor > 1 && !parts) return dt__scale_refused("no layer of this model can be divided; expected tensor 1", w);
    for (int i = 0; w->l.tensor > 1 && i < w->m->nlayers; i++)
        if (w->m->layer[i].parts > 0 && w->m->layer[i].parts % w->l.tensor)
            return dt__scale_bad("dt_scale_predict: layer %s can be cut into %d parts, and tensor is %d; expected a divisor",
                                 dt__show(w->m->layer[i].name), w->m->layer[i].parts, w->l.tensor);
    if (o->servers < 0 || o->serving < 0 || o->serving > DT_SCALE_BYTEPS ||
        (dt__scale_served(o) && (w->l.zero || w->l.pipe > 1 || w->l.tensor > 1 || (o->serving && o->servers > c->machines))))
        return dt__scale_refused(
            "a parameter server goes with data parallel only, and has at most as many servers beside workers as machines", w);
    return 0;
}
/* How much longer a step takes because the devices of a machine share its cores and memory. A measured step has three parts: products, which
   need the time of their operations; moving bytes through memory; and the rest. Each is slowed as it was measured. What a step
   moves is what the planner says of every model: DT__SCALE_MOVED times what is kept for the forward, twice that for the
   backward; values twice, gradients once, and the update reads and writes all it has. */
static double dt__scale_together(const dt__scale_work *w)
{
    const dt_scale_cluster *c = w->c;
    const dt_scale_model   *m = w->m;
    int                     sharing = c->sharing > 0 ? c->sharing : c->per_machine;
    double                  products = c->together > 0 && c->together < 1 ? 1 / c->together - 1 : 0;
    if (w->devices < 2 || sharing < 2) return 1;
    if (!w->measured || !(c->stream > 0) || !(c->crowded > 0 && c->crowded <= 1)) return 1 + products;
    dt_scale_sums sums = dt_scale_model_sums(m);
    double        seconds = m->update + (m->forward > 0 && m->backward > 0 ? m->forward + m->backward : sums.forward + sums.backward);
    double        moved = 3 * DT__SCALE_MOVED * sums.held * m->batch * w->act +
                   (double)sums.params * (2 * w->value + w->grad + 2 * (w->value + w->grad + w->state));
    double part = seconds > 0 ? fmin(1, moved / c->stream / seconds) : 0;
    double work = c->device.speed > 0 ? (sums.flops + sums.flops_back) * m->batch / c->device.speed : seconds;
    double rest = seconds > 0 ? fmin(1 - part, work / seconds) : 1 - part;
    return 1 + rest * products + part * (1 / c->crowded - 1);
}
static void dt__scale_prepare(dt__scale_work *w)
{
    const dt_scale_opts    *o = w->o;
    const dt_scale_cluster *c = w->c;
    int                     states = o->states < 0 ? 0 : o->states > 0 ? o->states : 2, inner = w->l.tensor * w->l.pipe;
    bool                    half = o->precision != DT_SCALE_F32;
    w->value = half ? 2 : 4;
    w->grad = w->wire = half ? 2 : 4;
    w->state = 4 * states + (half ? 4 : 0) + (o->precision == DT_SCALE_O2 ? 4 : 0);
    w->act = half ? 2 : 4;
    if (w->measured) {
        w->value = w->act = w->m->parameter_bytes > 0 ? w->m->parameter_bytes : 4;
        w->grad = w->wire = w->m->gradient_bytes > 0 ? w->m->gradient_bytes : 4;
        if (o->states == 0) w->state = w->m->state_bytes;
    }
    /* devices of a data group on one machine: every inner-th device */
    w->data.n = w->l.data;
    w->data.each = inner < c->per_machine ? c->per_machine / inner : 1;
    if (w->data.each > w->data.n) w->data.each = w->data.n;
    w->tensor.n = w->l.tensor;
    w->tensor.each = w->l.tensor < c->per_machine ? w->l.tensor : c->per_machine;
    double spread = c->spread > 0 ? c->spread : c->spread < 0 || w->measured ? 0 : DT__SCALE_SPREAD;
    w->slow = 1 + spread * dt__scale_slowest(w->devices);
    w->together = dt__scale_together(w);
    w->slow *= w->together;
    if (w->measured) {
        dt_scale_sums s = dt_scale_model_sums(w->m);
        double        each = w->micro / w->m->batch;
        /* what is between layers counts, too */
        w->forward_scale = each * (w->m->forward > 0 && s.forward > 0 ? w->m->forward / s.forward : 1);
        w->backward_scale = each * (w->m->backward > 0 && s.backward > 0 ? w->m->backward / s.backward : 1);
    }
}
static double dt__scale_between(const dt_scale_model *m) /* what a measured step took beside its parts */
{
    double parts = m->forward + m->backward + m->update + m->input;
    return m->forward > 0 && m->backward > 0 && m->step > parts ? m->step - parts : 0;
}
static dt_scale_prediction *dt__scale_predict(const dt_scale_opts *o, dt__scale_memo *memo, int *nmemo, bool pictures)
{
    dt__scale_work       w;
    dt_scale_prediction *p = (dt_scale_prediction *)dt__comm_zeroed(1, sizeof *p);
    int                  status;
    memset(&w, 0, sizeof w);
    w.o = o;
    w.memo = memo;
    w.nmemo = nmemo;
    status = p ? dt__scale_options(&w) : dt__scale_no_memory("dt_scale_predict");
    if (!status) {
        dt__scale_prepare(&w);
        w.fwd = (double *)dt__comm_zeroed((size_t)w.m->nlayers, sizeof *w.fwd);
        w.bwd = (double *)dt__comm_zeroed((size_t)w.m->nlayers, sizeof *w.bwd);
        w.host = (int *)dt__comm_zeroed((size_t)w.devices + 1, sizeof *w.host);
        if (pictures) p->bucket = (dt_scale_bucket *)dt__comm_zeroed((size_t)w.m->nlayers, sizeof *p->bucket);
        if (!w.fwd || !w.bwd || !w.host || (pictures && !p->bucket)) status = dt__scale_no_memory("dt_scale_predict");
    }
    if (!status) {
        /* one device alone, without recomputation */
        dt__scale_work one = w;
        double         alone = 0;
        one.slow = 1;
        one.l.tensor = one.l.data = one.data.n = 1;
        one.l.zero = one.l.recompute = 0;
        for (int i = 0; i < w.m->nlayers; i++) {
            double f, b, again;
            dt__scale_layer_seconds(&one, &w.m->layer[i], &f, &b, &again);
            alone += (f + b) * w.l.micro;
        }
        alone += dt__scale_update(&one, (double)dt_scale_model_sums(w.m).params);
        if (w.measured)
            alone = fmax(alone + (dt__scale_between(w.m) + w.m->input) * w.batch / w.m->batch, w.m->load * w.batch / w.m->batch);
        p->alone = alone > 0 ? w.batch / alone : 0;
        p->devices = w.devices;
        p->layout = w.l;
        p->batch = w.batch;
        dt__scale_computation(&w);
        if (w.l.pipe > 1) status = dt__scale_pipeline(&w, p);
        else dt__scale_flat(&w, p);
        if (!status && w.failed) status = dt__scale_no_memory("dt_scale_predict");
    }
    if (!status) {
        double ranks = w.l.data, per = ranks / w.c->machines * w.batch * w.m->sample_bytes; /* bytes of a machine in a step */
        double input = w.c->storage > 0 ? per / w.c->storage : 0;
        if (w.measured) {
            input = fmax(input, w.m->load * w.batch / w.m->batch);
            p->step += (w.m->input + dt__scale_between(w.m)) * w.batch / w.m->batch;
            p->input = w.m->input * w.batch / w.m->batch;
        }
        if (input > p->step) p->input += input - p->step, p->step = input;
        p->rate = p->step > 0 ? ranks * w.batch / p->step : 0;
        p->efficiency = p->alone > 0 ? p->rate / (p->devices * p->alone) : 0;
        p->data_rate = p->rate * w.m->sample_bytes;
        p->fits = !(w.c->device.memory > 0) || p->memory.all <= w.c->device.memory;
    }
    DT_COMM_FREE(w.fwd);
    DT_COMM_FREE(w.bwd);
    DT_COMM_FREE(w.host);
    DT_COMM_FREE(w.s[0].task);
    DT_COMM_FREE(w.s[1].task);
    if (!status) return p;
    dt_scale_prediction_free(p);
    return NULL;
}
DT_API dt_scale_prediction *dt_scale_predict(const dt_scale_opts *o)
{
    int                  nmemo = 0;
    dt__scale_memo      *memo = (dt__scale_memo *)dt__comm_zeroed(DT__SCALE_MEMO, sizeof *memo);
    dt_scale_prediction *p = NULL;
    if (!o) dt__scale_bad("dt_scale_predict: the options are NULL; expected options");
    else if (!memo) dt__scale_no_memory("dt_scale_predict");
    else p = dt__scale_predict(o, memo, &nmemo, true);
    DT_COMM_FREE(memo);
    return p;
}
DT_API void dt_scale_prediction_free(dt_scale_prediction *p)
{
    if (!p) return;
    DT_COMM_FREE(p->bucket);
    DT_COMM_FREE(p->event);
    DT_COMM_FREE(p);
}
static int dt__scale_hidden(dt_scale_opts *o, int batch) /* 1: hidden, 0: not, or a negative number */
{
    o->batch = batch;
    dt_scale_prediction *p = dt_scale_predict(o);
    int                  yes = p ? p->exposed <= 0.05 * p->step : dt__said.why;
    dt_scale_prediction_free(p);
    return yes;
}
DT_API int dt_scale_linear_batch(const dt_scale_opts *o)
{
    if (!o) return dt__scale_bad("dt_scale_linear_batch: the options are NULL; expected options");
    dt_scale_opts q = *o;
    int           least = o->layout.micro > 1 ? o->layout.micro : 1, hi = least, lo = 0, got;
    while ((got = dt__scale_hidden(&q, hi)) == 0 && hi < 65536) lo = hi, hi *= 2;
    if (got <= 0) return got;
    while (hi - lo > least) { /* a micro-batch has a whole number of samples */
        int mid = lo + (hi - lo) / 2 / least * least;
        if (mid == lo) break;
        if ((got = dt__scale_hidden(&q, mid)) < 0) return got;
        if (got) hi = mid;
        else lo = mid;
    }
    return hi;
}

/* ==================================================================================================== >>searching
   Every layout is tried. Left out is only what cannot be among the best: recomputation where the same layout fits without it,
   and layouts whose parameters alone do not fit. */
static bool dt__scale_better(const dt_scale_choice *a, const dt_scale_choice *b)
{
    if (fabs(a->step - b->step) > 1e-9 * b->step) return a->step < b->step;
    if (a->memory.all != b->memory.all) return a->memory.all < b->memory.all;
    if (a->layout.pipe != b->layout.pipe) return a->layout.pipe < b->layout.pipe;
    if (a->layout.tensor != b->layout.tensor) return a->layout.tensor < b->layout.tensor;
    return a->layout.zero < b->layout.zero;
}
typedef struct dt__scale_search_state {
    dt_scale_opts    o;
    double           all; /* samples of a step of all devices */
    dt_scale_choice *best;
    int              n, found;
    int64_t          tried, fitting;
    dt__scale_memo  *memo;
    int             *nmemo;
    bool             again; /* the model has something that selective recomputation does again */
} dt__scale_search_state;
/* Tries one layout. 1: it fits, 0: it does not fit, negative: it is no layout of this model and cluster, or an error. */
static int dt__scale_attempt(dt__scale_search_state *s, const dt_scale_layout *l)
{
    s->o.layout = *l;
    s->o.batch = s->all / l->data;
    s->tried++;
    dt_scale_prediction *p = dt__scale_predict(&s->o, s->memo, s->nmemo, false);
    dt_scale_choice      c;
    if (!p) return dt__said.why;
    int fits = p->fits;
    memset(&c, 0, sizeof c);
    c.layout = p->layout;
    c.step = p->step;
    c.rate = p->rate;
    c.efficiency = p->efficiency;
    c.exposed = p->exposed;
    c.bubble = p->bubble;
    c.memory = p->memory;
    dt_scale_prediction_free(p);
    if (!fits) return 0;
    s->fitting++;
    int at = s->found < s->n ? s->found : s->n;
    if (at == s->n && !dt__scale_better(&c, &s->best[s->n - 1])) return 1;
    if (at == s->n) at--;
    else s->found++;
    for (; at > 0 && dt__scale_better(&c, &s->best[at - 1]); at--) s->best[at] = s->best[at - 1];
    s->best[at] = c;
    return 1;
}
static int dt__scale_variants(dt__scale_search_state *s, dt_scale_layout l) /* of one division of the devices */
{
    double rank_batch = s->all / l.data;
    for (l.zero = 0; l.zero <= (l.data > 1 ? 3 : 0); l.zero++)
        for (l.micro = 1; l.micro <= rank_batch && l.micro <= 65536; l.micro *= 2) {
            if (l.pipe > 1 && l.micro > 64 * l.pipe) break; /* the bubble is below 2 % */
            if (fabs(rank_batch / l.micro - floor(rank_batch / l.micro + 0.5)) > 1e-9) continue;
            for (int kind = 0; kind < (l.pipe > 1 ? (int)DT_PIPE_KIND_COUNT : 1); kind++) {
                l.schedule = (dt_pipe_kind)kind;
                l.chunks = l.schedule == DT_PIPE_INTERLEAVED ? 2 : 1;
                if (l.schedule == DT_PIPE_INTERLEAVED && l.micro % l.pipe) continue;
                for (l.recompute = 0; l.recompute <= DT_SCALE_FULL_AGAIN; l.recompute++) {
                    if (l.recompute == DT_SCALE_SELECTIVE && !s->again) continue;
                    int got = dt__scale_attempt(s, &l);
                    if (got == DT_COMM_ERR_MEMORY) return got;
                    if (got) break; /* it fits: what recomputes more is slower; or it is no layout */
                }
            }
        }
    return 0;
}
DT_API int dt_scale_search(const dt_scale_opts *o, dt_scale_choice *best, int n, int64_t *tried, int64_t *fitting)
{
    dt__scale_search_state s;
    dt_scale_layout        l;
    int                    nmemo = 0, status = 0;
    DT__CLEAR(s);
    memset(&l, 0, sizeof l);
    if (!o || !best || n < 1)
        return dt__scale_bad(
            "dt_scale_search: options or best is NULL, or n is below 1; expected options and room for n choices");
    dt_scale_prediction *p = NULL;
    s.memo = (dt__scale_memo *)dt__comm_zeroed(DT__SCALE_MEMO, sizeof *s.memo);
    s.nmemo = &nmemo;
    s.o = *o;
    s.o.servers = s.o.serving = 0;
    DT__CLEAR(s.o.layout);
    if (!s.memo) return dt__scale_no_memory("dt_scale_search");
    p = dt__scale_predict(&s.o, s.memo, s.nmemo, false); /* it checks the options */
    if (!p) {
        DT_COMM_FREE(s.memo);
        return dt__said.why;
    }
    int devices = p->devices;
    s.all = p->batch * devices;
    dt_scale_prediction_free(p);
    s.best = best;
    s.n = n;
    for (int i = 0; i < o->model->nlayers; i++) s.again = s.again || o->model->layer[i].flops_again > 0;
    for (l.tensor = 1; !status && l.tensor <= devices && l.tensor <= 8 * o->cluster->per_machine; l.tensor++)
        for (l.pipe = 1; !status && l.pipe <= devices / l.tensor && l.pipe <= 1024 && l.pipe <= o->model->nlayers; l.pipe++) {
            if (devices % (l.tensor * l.pipe)) continue;
            if ((o->layout.tensor > 0 && o->layout.tensor != l.tensor) || (o->layout.pipe > 0 && o->layout.pipe != l.pipe))
                continue;
            l.data = devices / (l.tensor * l.pipe);
            if (o->layout.data > 0 && o->layout.data != l.data) continue;
            status = dt__scale_variants(&s, l);
        }
    DT_COMM_FREE(s.memo);
    if (tried) *tried = s.tried;
    if (fitting) *fitting = s.fitting;
    return status ? status : s.found;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_SCALE_IMPLEMENTATION */
