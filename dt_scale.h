/* dt_scale.h - v0.2.0 - will it scale? models, devices, links and clusters described, and steps of training predicted */
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
    #include <string.h>

    int main(void)
    {
        dt_scale_cluster     c;
        dt_scale_opts        o;
        dt_scale_prediction *p;
        dt_scale_model      *m = dt_scale_model_new("resnet50");
        memset(&o, 0, sizeof o);
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
   forward. held: bytes kept from the forward to the backward. out: bytes of the output. */
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
    double  sync;        /* elements per sample that a tensor-parallel group adds in the forward, and again in the backward; 0: it
                            cannot be split */
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
       shared                             the devices of a machine share its inter link; without it each has its own
       inside ring                        how the devices of a machine are joined: full (default), ring, switch
       switch rate 40Gbit/s               all traffic of a switch between machines together
       trunk rate 40Gbit/s machines 2     so many machines at each switch; from a switch to the others
       storage rate 2GB/s                 what a machine reads of its data set
       end
*/
typedef struct dt_scale_device {
    char   name[DT_SCALE_NAME];
    double speed;      /* operations a second at the precision of the prediction, at best */
    double half_speed; /* with 16-bit products; 0: as speed */
    double bandwidth;  /* of its memory, bytes a second */
    double memory;     /* bytes */
    double part;       /* the part of `speed` that training reaches; 0: by its kind of model, see >>constants */
} dt_scale_device;
typedef struct dt_scale_link {
    char   name[DT_SCALE_NAME];
    double rate;    /* bytes a second in each direction */
    double latency; /* seconds a message */
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
    double          busy;     /* part of a transfer's time in which the device cannot compute, because it copies itself: 0 for
                                 GPUs with copy engines, about 1 for ranks on CPUs in shared memory */
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
enum { DT_SCALE_F32 = 0, DT_SCALE_AMP, DT_SCALE_BF16 }; /* precision: bytes of parameter, gradient, state with Adam 4+4+8;
                                                            2+2+12; 2+2+12 */
enum { DT_SCALE_KEEP = 0, DT_SCALE_SELECTIVE, DT_SCALE_FULL_AGAIN }; /* recomputation: none, attention, each block */
typedef struct dt_scale_layout {
    int          data, pipe, tensor; /* devices = data x pipe x tensor; 0: pipe and tensor 1, data the rest */
    int          zero;               /* 0: DDP; 1, 2, 3: sharded optimiser, gradients, parameters */
    int          micro;              /* micro-batches of a step; 0: 1, with a pipeline 4 x pipe */
    dt_pipe_kind schedule;
    int          chunks;             /* of a rank with DT_PIPE_INTERLEAVED */
    int          recompute;
} dt_scale_layout;
typedef struct dt_scale_opts {
    int                     dt__first DT_D;
    const dt_scale_model   *model DT_D;
    const dt_scale_cluster *cluster DT_D;
    double                  batch DT_D;   /* samples of each data-parallel rank in a step; 0: 32, or the profile's */
    dt_scale_layout         layout DT_D;
    int                     precision DT_D;
    int                     states DT_D;  /* elements that the optimiser keeps for each parameter; 0: 2 (Adam); -1: 0 */
    dt_algo                 algo DT_D;    /* of the allreduce; DT_ALGO_AUTO: by cost, for each bucket */
    double                  bucket DT_D;  /* bytes; 0: 25 MiB, with a first bucket of 1 MiB */
    dt_switch               overlap DT_D; /* of communication and backward; default yes */
    int                     servers DT_D; /* machines of a parameter server; 0: allreduce */
    bool                    beside DT_D;  /* servers run on the machines of the workers, else on machines of their own */
    double                  compress DT_D;/* bytes sent for each byte of gradient; 0: 1 */
    double                  encode DT_D;  /* seconds a byte of gradient, to compress and to decompress */
} dt_scale_opts;
typedef struct dt_scale_bucket {
    double  nbytes, ready, start, end; /* seconds from the begin of the step; ready: its last gradient is complete */
    int     first, last;               /* layers; first >= last: backwards */
    dt_algo algo;
} dt_scale_bucket;
typedef struct dt_scale_memory { /* bytes of the device that needs most */
    double parameters, gradients, states, activations, workspace, buckets, all;
} dt_scale_memory;
typedef struct dt_scale_prediction {
    int     devices;
    double  t1, t2;            /* computation and communication of a step, each by itself */
    double  step;              /* seconds */
    double  forward, backward, update, exposed, bubble, input; /* its parts: exposed communication, idle in the pipeline, waiting for data */
    double  rate;              /* samples a second of all devices */
    double  alone;             /* samples a second of one device without communication */
    double  efficiency;        /* rate / (devices x alone) */
    double  data_rate;         /* bytes a second that all machines read together */
    dt_scale_memory memory;
    int              nbuckets;
    dt_scale_bucket *bucket;
} dt_scale_prediction;
DT_API dt_scale_prediction *dt_scale_predict(const dt_scale_opts *o); /* NULL: dt_plan_error says why */
DT_API void                 dt_scale_prediction_free(dt_scale_prediction *p); /* NULL is accepted */

#ifdef __cplusplus
}
#endif
#endif /* DT_SCALE_H_INCLUDED */
