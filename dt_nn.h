/* dt_nn.h - v0.2.0 - training: models by name, layers, optimisers, schedules, mixed precision, checkpoints */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_nn.h"
    In every other file that uses dt:           #include "dt_nn.h"

    Put dt_base.h, dt.h, dt_cpu.h, dt_io.h and dt_plot.h into the same directory. Link with -lm -lpthread.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_nn.h"
    #include <stdio.h>

    static dt_tensor *net(dt_model *m, dt_tensor *x)
    {
        x = dt_linear(m, "fc1", x, .out = 32, .act = DT_ACT_TANH);
        return dt_linear(m, "fc2", x, .out = 1);
    }

    int main(void)
    {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_adamw(m, .lr = 0.01);
        double        loss = 1;
        for (int step = 0; step < 400; step++) {
            dt_tensor *x = dt_uniform(-1, 1, DT_SHAPE(64, 2));
            dt_tensor *y = dt_mul(dt_narrow(x, 1, 0, 1), dt_narrow(x, 1, 1, 1));
            dt_tensor *l = dt_mse_loss(net(m, x), y);
            dt_backward(l);
            loss = dt_item(l);
            dt_step(opt);
        }
        printf("loss %.5f\n", loss);
        dt_optimizer_free(opt);
        dt_model_free(m);
        return dt_check("product") || !(loss < 0.01);
    }

WHAT IT DOES NOT DO

    It has no layer objects and no module tree: the forward function is the model. It has no L-BFGS and no sparse gradients.
    Recurrent, 1-d and transformer layers are in dt_layers.h.

OPTIONS

    Options are designated initialisers after the arguments: dt_linear(m, "fc", x, .out = 10, .no_bias = true). A field that
    is left out, or 0, has its default (where the default is not 0, DT_ZERO means 0). The order:
      C        any order
      C++20    the order in which the struct (dt_layer_opts) declares the fields; all examples of dt use this order
      C++17    has no designated initialisers: declare the struct, set fields, and pass it as the last argument
               (dt_layer_opts o; o.out = 10; dt_linear(m, "fc", x, o)). Calls without options are the same in all languages.

CONTENTS

    >>models         models by name: scopes, modes, parameters, groups, summary
    >>layers         layers with parameters
    >>optimizers     SGD, Adam, AdamW, RMSProp, Adagrad, LARS, LAMB, Lion, Muon, Adafactor, your own; clipping; the step
    >>schedules      learning rates over time
    >>amp            mixed precision O0..O3 and loss scaling
    >>archives       tensors in the safetensors files of dt_io.h
    >>checkpoints    saving and resuming a training
    >>inside         private types and functions that dt_dist.h uses
    >>nn_core        implementation from here: the visitor that saves and loads state
    >>model          parameters, names, the seal
    >>layer          layers
    >>optim          optimisers
    >>sched          schedulers
    >>mixed          mixed precision
    >>profile        the times of a training as a file: DT_PROFILE
    >>packing        tensors out of archives and into them
    >>checkpoint     checkpoints

LIFECYCLE

    The first call of a layer creates its parameters; later calls find them by name. The first dt_backward (or
    dt_model_seal) seals the model: parameters and gradients move into contiguous blocks, and from then on a new name
    is an error. Optimisers, schedulers, mixed precision and checkpoints may be created before the first forward; they
    are bound to the parameters at the seal. Values that are loaded before the first forward are kept by name; a
    parameter that is created later takes its value from them instead of its initialisation.

    dt_step(opt) updates the parameters, clears the gradients and ends the step (dt_end). To evaluate: dt_model_eval(m),
    forward between dt_no_grad_begin and dt_no_grad_end, dt_end(), dt_model_train(m).

PROFILE

    DT_PROFILE=FILE in the environment: each model writes what its training steps cost, as a text that tools/dtplan reads to
    predict them on other machines: layers (forward, backward, operations, bytes), gradients in the order in which they become
    ready, the optimiser, the loader; ">>models" of dt_scale.h has the format. `step` and its parts are means over the middle half
    of the steps, ordered by their time, so that the parts add up. Five steps warm up, DT_PROFILE_STEPS (default 50)
    are measured; then, or when the model is freed or the program ends, also by an error, the file is written, and nothing is
    measured any more. Names of files are as with DT_TRACE: %p is the process id, %r the rank; ranks write FILE.rank0,
    FILE.rank1 ...; further models of a process FILE.2, FILE.3 ... A step runs from the end of one dt_step to that of the next.
    Steps with an evaluation in them are not counted. On an asynchronous device every second step waits for the device at each
    layer: these steps have the times of layers, the others the time of a step. Not profiled: models of a pipeline, and the
    replicas of dt_parallel.

PROGRESS

    The progress line, the CSV table and the loss curve are in dt_plot.h. This header includes it because most training
    programs show their progress; nothing in this header uses it.

THREADS

    A model, its optimisers, schedulers, mixed precision and checkpoints are used by one thread at a time. Two threads do not
    train one model: if their calls meet, the second one is an error. dt_dist.h trains on several.
    Several threads compute with one trained model through readers, one for each thread. A reader is a second model with the
    same parameters in the same memory, in evaluation mode for ever:

        dt_model_eval(m);                                     once, after the first forward and dt_model_seal (or a training)
        dt_model *r = dt_model_reader(m);                     for each thread
        y = net(r, x); ... dt_end();                          in the thread, with its own tensors
        dt_model_free(r);

    Each thread has its own step and its own memory, nothing is locked, and the results have the bits of one thread. Kernels that
    run at the same time share the CPU's threads: one has the pool, the others run on their thread alone; with as many threads as
    cores, dt_set_num_threads(1) is best. A reader's parameters have no gradients. While a model has readers, what would change
    its values (dt_step, loads, dt_model_train, dt_model_to) is an error. A reader may outlive its model. Autocast (mixed
    precision "O1") is a setting of each thread: dt_autocast_set.

ERRORS, MEMORY, DEVICES

    As in dt.h. A model is on one device, or its parts are on several (dt_device_begin).

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_NN_IMPLEMENTATION)
#define DT_NN_IMPLEMENTATION
#endif
#include "dt.h"
#include "dt_io.h"
#include "dt_plot.h"

#ifndef DT_NN_H_INCLUDED
#define DT_NN_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_nn.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>models */
typedef struct dt_model      dt_model; /* parameters by name */
typedef struct dt_optimizer  dt_optimizer; /* updates the parameters of a model */
typedef struct dt_scheduler  dt_scheduler; /* changes the learning rate of an optimiser */
typedef struct dt_amp        dt_amp; /* mixed precision */
typedef struct dt_checkpoint dt_checkpoint; /* saves and resumes a training */

typedef struct dt_model_opts {
    int        dt__first DT_D;
    uint64_t   seed DT_D;   /* of the model's random generator: initialisation and dropout */
    dt_device *device DT_D; /* default dt_default_device() */
    dt_dtype   dtype DT_D;  /* of the parameters; default f32 */
} dt_model_opts;
DT_API dt_model *dt_model_new_with(dt_model_opts o DT_OPT0(dt_model_opts)); /* an empty model; layers add their parameters */
DT_API void      dt_model_free(dt_model *m); /* after its optimisers; NULL is accepted */
#ifdef DT__LIT
#define dt_model_new(...) dt_model_new_with(DT__ONLY(dt_model_opts, __VA_ARGS__))
#else /* C++17: options as a struct, or none */
#define dt_model_new dt_model_new_with
#endif

/* Name scopes can be nested. Between dt_scope_begin(m, "layer1.%d", 0) and dt_scope_end(m) the full name of a layer
   "conv1" is "layer1.0.conv1". */
DT_API dt_status dt_scope_begin(dt_model *m, const char *format, ...) DT__PRINTF(2, 3);
DT_API void      dt_scope_end(dt_model *m);
/* Begins another forward. Using a name twice in one forward is an error unless .shared is set. dt_backward, dt_end and
   dt_step end a forward; call this between several forwards before one backward (two inputs to one network). */
DT_API void      dt_forward_begin(dt_model *m);
/* A device scope: the layers between dt_device_begin(m, dev) and dt_device_end(m) have their parameters on dev, and take
   inputs that are there; dt_to moves tensors between the parts of the model. Scopes nest; each ends in the forward that
   began it, and each forward has the same ones. First values are the same on every device, and so are the bits of a
   training on devices of one kind, except for the norm of .clip_norm, which is summed in another order. An optimiser, mixed
   precision, clipping and checkpoints treat the model as one. */
DT_API dt_status dt_device_begin(dt_model *m, dt_device *dev);
DT_API void      dt_device_end(dt_model *m);
/* A place where the model may be cut into stages that different ranks compute (dt_pipe.h): the calls from here on belong to the
   stage of this name. Returns x. Without a pipeline it does nothing. */
DT_API dt_tensor *dt_stage(dt_model *m, const char *name, dt_tensor *x);

/* A model for another thread, with the parameters of m and nothing of its own: THREADS above. m is sealed and in evaluation mode, and
   this rank has it whole (no .shard, pipeline or .split). Free it with dt_model_free. */
DT_API dt_model *dt_model_reader(dt_model *m);
DT_API void dt_model_train(dt_model *m); /* training mode: the mode of a new model */
DT_API void dt_model_eval(dt_model *m);  /* batch norms use their running statistics and do not change them; no dropout */
DT_API bool dt_model_is_training(const dt_model *m); /* as dt_model_train and dt_model_eval have set it */

DT_API dt_status dt_model_seal(dt_model *m); /* no more parameters; the first dt_backward calls it */
DT_API bool      dt_model_is_sealed(const dt_model *m); /* has it all its parameters? */
/* Both are allowed until an optimiser has made a step. dt_model_to moves all parameters, also those of device scopes. */
DT_API dt_status dt_model_to(dt_model *m, dt_device *dev);
DT_API dt_status dt_model_cast(dt_model *m, dt_dtype dtype);

/* A pattern matches a whole name: * is any number of characters, ? is one character, | separates alternatives:
   "*.bias|bn*". Freezing applies to existing parameters and to those created later. Returns how many existing ones match,
   or a negative status. */
DT_API int        dt_model_freeze(dt_model *m, const char *pattern);
DT_API int        dt_model_unfreeze(dt_model *m, const char *pattern);
DT_API bool       dt_name_matches(const char *pattern, const char *name);

typedef struct dt_parameter_info {
    const char *name;
    dt_tensor  *value;  /* owned by the model: read it, or write it with dt_copy */
    bool        buffer; /* saved but not trained: running statistics, for example */
    bool        frozen;
} dt_parameter_info;
DT_API int        dt_model_count(const dt_model *m); /* number of parameters and buffers */
DT_API bool       dt_model_get(dt_model *m, int i, dt_parameter_info *out); /* in order of creation; false: out of range */
DT_API dt_tensor *dt_model_find(dt_model *m, const char *name); /* parameter or buffer; NULL if unknown, without an error */
DT_API int64_t    dt_model_numel(const dt_model *m, bool trainable_only); /* elements of all parameters */
/* One line for each layer: output shape, parameters, FLOPs of the last forward, bytes of gradient; if the model is on several
   devices, the device too, and the sum for each device. Returns the length of the text, as snprintf does. */
DT_API size_t     dt_model_summary(dt_model *m, char *buf, size_t nbytes);
DT_API dt_rng    *dt_model_rng(dt_model *m);
DT_API dt_device *dt_model_device(const dt_model *m); /* that of the open device scope, otherwise the model's */

/* Parameters and buffers of your own layers. The first call creates them; later calls find them by name. */
typedef enum dt_init { DT_INIT_ZEROS = 0, DT_INIT_CONST, DT_INIT_UNIFORM, DT_INIT_NORMAL } dt_init;
typedef struct dt_parameter_opts {
    int      dt__first DT_D;
    dt_init  init DT_D;
    double   a DT_D, b DT_D; /* CONST: value a; UNIFORM: from a to b; NORMAL: mean a, std b (both 0: mean 0, std 1) */
    bool     shared DT_D;    /* the name may be used again in this forward */
} dt_parameter_opts;
DT_API dt_tensor *dt_parameter_with(dt_model *m, const char *name, dt_shape shape,
                                    dt_parameter_opts o DT_OPT0(dt_parameter_opts));
DT_API dt_tensor *dt_buffer_with(dt_model *m, const char *name, dt_shape shape,
                                 dt_parameter_opts o DT_OPT0(dt_parameter_opts));
#ifdef DT__LIT
#define dt_parameter(m, name, ...) \
    dt_parameter_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_parameter_opts, __VA_ARGS__, ))
#define dt_buffer(m, name, ...) \
    dt_buffer_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_parameter_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_parameter dt_parameter_with
#define dt_buffer dt_buffer_with
#endif

/* ---------------------------------------------------------------------------------------------------- >>layers
   dt_LAYER(m, "name", x, options). Parameter names and initial values are those of PyTorch's modules. Layers without
   parameters (pooling, activations) are in dt.h: dt_maxpool2d, dt_relu ... */

/* .split: how the ranks of the tensor axis divide a layer (dt_tensor_parallel_new in dt_pipe.h). Each rank then has an equal part
   of the parameters, which keep their names; options like .out and .heads are those of the whole layer. In a model without a
   tensor axis .split has no effect.
     DT_SPLIT_OUT    linear, conv2d, embedding: a part of the output features or channels. x is whole, the result is a part
     DT_SPLIT_IN     linear, conv2d: a part of the input features or channels; embedding: of the rows (vocabulary). The results of
                     the ranks are added. x is a part (of an embedding: whole), the result is whole
     DT_SPLIT_BOTH   conv2d with groups, batchnorm, groupnorm: x is a part of the channels, the result is the same part
     DT_SPLIT_HEADS  multihead attention: a part of the heads. x is whole, the result is whole
   An MLP is a linear with DT_SPLIT_OUT, an activation, and a linear with DT_SPLIT_IN: one sum over the ranks in the forward,
   one in the backward. */
typedef enum dt_layer_split { DT_SPLIT_NONE = 0, DT_SPLIT_OUT, DT_SPLIT_IN, DT_SPLIT_BOTH, DT_SPLIT_HEADS } dt_layer_split;
typedef struct dt_layer_opts { /* one struct for all layers; an option that a layer does not take is an error */
    int        dt__first DT_D;
    int64_t    out DT_D;                                     /* linear, conv2d: features or channels; required */
    int        kernel DT_D, kernel_w DT_D;                   /* conv2d: required; default width: the height */
    int        stride DT_D, stride_w DT_D;                   /* conv2d: default 1 */
    int        pad DT_D, pad_w DT_D;                         /* conv2d: default 0; pad_w DT_ZERO: no padding */
    int        dilation DT_D, dilation_w DT_D;               /* conv2d: default 1 */
    int        groups DT_D;                                  /* conv2d: default 1; groupnorm: required */
    bool       no_bias DT_D;
    bool       no_affine DT_D;                               /* norms: without weight and bias */
    bool       no_track DT_D;                                /* batchnorm: without running statistics */
    bool       cumulative DT_D;                              /* batchnorm: mean over all batches (momentum=None) */
    double     eps DT_D;                                     /* norms: default 1e-5; rmsnorm 1.1920929e-7 */
    double     momentum DT_D;                                /* batchnorm: default 0.1 */
    int        normalized_dims DT_D;                         /* layernorm, rmsnorm: how many last dimensions; 1 */
    int64_t    num DT_D, dim DT_D;                           /* embedding: rows, columns; required */
    int        heads DT_D;                                   /* multihead attention: required */
    bool       causal DT_D;                                  /* multihead attention */
    double     dropout DT_D;                                 /* multihead attention: on the weights */
    dt_tensor *kv DT_D;                                      /* multihead attention: keys and values; default x */
    dt_tensor *mask DT_D;                                    /* multihead attention: as in dt_attention: u8 0 hides a key */
    dt_tensor *lengths DT_D;                                 /* multihead attention: as in dt_attention */
    int64_t    padding_idx DT_D;                             /* embedding: a row that begins as 0 and gets no gradient; row 0:
                                                                DT_ZERO, -1: the last */
    int        output_pad DT_D, output_pad_w DT_D;           /* transposed convolutions (dt_layers.h): default 0 */
    bool       affine DT_D;                                  /* instance norm (dt_layers.h): with weight and bias */
    bool       track DT_D;                                   /* instance norm (dt_layers.h): with running statistics */
    dt_act     act DT_D;                                     /* linear, conv2d, batchnorm (relu only): fused */
    dt_tensor *add DT_D;                                     /* batchnorm: fused residual, act(norm(x) + add) */
    dt_layer_split split DT_D;                               /* see above */
    bool       shared DT_D;                                  /* the name may be used again in this forward */
} dt_layer_opts;
DT_API dt_tensor *dt_linear_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_conv2d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_batchnorm1d_with(dt_model *m, const char *name, dt_tensor *x,
                                      dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_batchnorm2d_with(dt_model *m, const char *name, dt_tensor *x,
                                      dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_batchnorm3d_with(dt_model *m, const char *name, dt_tensor *x,
                                      dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_layernorm_with(dt_model *m, const char *name, dt_tensor *x,
                                    dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_rmsnorm_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_groupnorm_with(dt_model *m, const char *name, dt_tensor *x,
                                    dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_embedding_with(dt_model *m, const char *name, dt_tensor *x,
                                    dt_layer_opts o DT_OPT0(dt_layer_opts));
/* torch.nn.MultiheadAttention with batch_first=True: x (b, t, e) */
DT_API dt_tensor *dt_multihead_attention_with(dt_model *m, const char *name, dt_tensor *x,
                                              dt_layer_opts o DT_OPT0(dt_layer_opts));
/* Uses the model's random generator. In eval mode it changes nothing. */
DT_API dt_tensor *dt_dropout(dt_model *m, dt_tensor *x, double p);
/* For tensors of which each rank of the tensor axis has a part along dim. Without a tensor axis: x itself, dt_dropout,
   dt_cross_entropy. dt_dropout_parts drops the elements that dt_dropout of the whole would drop.
   dt_cross_entropy_parts: logits (n, classes), a part of the classes; targets (n) are classes of the whole; no .weight. */
DT_API dt_tensor *dt_gather_parts(dt_model *m, dt_tensor *x, int dim); /* the whole, on all ranks */
DT_API dt_tensor *dt_take_part(dt_model *m, dt_tensor *x, int dim);    /* this rank's part of a whole */
DT_API dt_tensor *dt_dropout_parts(dt_model *m, dt_tensor *x, double p, int dim);
DT_API dt_tensor *dt_cross_entropy_parts_with(dt_model *m, dt_tensor *logits, dt_tensor *target,
                                              dt_loss_opts o DT_OPT0(dt_loss_opts));
#ifdef DT__LIT
#define dt_linear(m, name, ...) dt_linear_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_conv2d(m, name, ...) dt_conv2d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_batchnorm1d(m, name, ...) \
    dt_batchnorm1d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_batchnorm2d(m, name, ...) \
    dt_batchnorm2d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_batchnorm3d(m, name, ...) \
    dt_batchnorm3d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_layernorm(m, name, ...) \
    dt_layernorm_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_rmsnorm(m, name, ...) \
    dt_rmsnorm_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_groupnorm(m, name, ...) \
    dt_groupnorm_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_embedding(m, name, ...) \
    dt_embedding_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_multihead_attention(m, name, ...) \
    dt_multihead_attention_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_cross_entropy_parts(m, logits, ...) \
    dt_cross_entropy_parts_with(m, logits, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loss_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_linear dt_linear_with
#define dt_conv2d dt_conv2d_with
#define dt_batchnorm1d dt_batchnorm1d_with
#define dt_batchnorm2d dt_batchnorm2d_with
#define dt_batchnorm3d dt_batchnorm3d_with
#define dt_layernorm dt_layernorm_with
#define dt_rmsnorm dt_rmsnorm_with
#define dt_groupnorm dt_groupnorm_with
#define dt_embedding dt_embedding_with
#define dt_multihead_attention dt_multihead_attention_with
#define dt_cross_entropy_parts dt_cross_entropy_parts_with
#endif

/* ---------------------------------------------------------------------------------------------------- >>optimizers
   Names, defaults and formulas are PyTorch's where PyTorch has the optimiser. One struct of options serves all; an option
   that an optimiser does not take is an error. 0 means the default; if the default is not 0, DT_ZERO means 0:
   .lr = DT_ZERO, .weight_decay = DT_ZERO (AdamW, LAMB), .beta1 = DT_ZERO. A 0 that is written there (.weight_decay = 0) is
   refused, because it would be taken for the default. */
typedef struct dt_optimizer_opts {
    const char *dt__first DT_D;         /* the options as written, if a macro set them */
    const char *params DT_D;            /* pattern of names; default: all that no earlier optimiser of the model has */
    double      lr DT_D;                /* 1e-3; RMSProp, Adagrad, Adafactor: 1e-2; LARS: 0.1; Lion: 1e-4 */
    double      weight_decay DT_D;      /* 0; AdamW, LAMB: 1e-2; Muon: 0.1 */
    double      momentum DT_D;          /* SGD, RMSProp: 0; LARS: 0.9; Muon: 0.95 */
    double      dampening DT_D;         /* SGD: 0 */
    bool        nesterov DT_D;          /* SGD, LARS */
    double      beta1 DT_D, beta2 DT_D; /* Adam, AdamW, LAMB: 0.9, 0.999; Lion: 0.9, 0.99 */
    double      eps DT_D;               /* Adam, AdamW, RMSProp, LARS: 1e-8; Adagrad: 1e-10; LAMB: 1e-6; Muon: 1e-7; Adafactor
                                           (eps[0]): the machine epsilon of the values' dtype */
    bool        amsgrad DT_D;           /* Adam, AdamW */
    double      alpha DT_D;             /* RMSProp: 0.99 */
    bool        centered DT_D;          /* RMSProp */
    double      lr_decay DT_D;          /* Adagrad: 0 */
    double      initial_accumulator_value DT_D; /* Adagrad: 0 */
    double      beta2_decay DT_D;       /* Adafactor: -0.8 */
    double      eps2 DT_D;              /* Adafactor (eps[1]): 1e-3 */
    double      d DT_D;                 /* Adafactor: 1; at least 1: the largest root mean square of an update */
    double      trust_coefficient DT_D; /* LARS: 0.001 */
    bool        no_trust_ratio DT_D;    /* LARS, LAMB: no layer-wise ratio; for groups of biases and norms */
    bool        maximize DT_D;
    double      clip_norm DT_D;         /* norm of all the optimiser's gradients, at each step; LAMB: 1; default: no limit */
    double      clip_value DT_D;        /* of each element, applied before clip_norm; default: no limit */
} dt_optimizer_opts;
DT_API dt_optimizer *dt_sgd_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
DT_API dt_optimizer *dt_adam_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
DT_API dt_optimizer *dt_adamw_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
DT_API dt_optimizer *dt_rmsprop_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
DT_API dt_optimizer *dt_adagrad_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
DT_API dt_optimizer *dt_lars_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
DT_API dt_optimizer *dt_lamb_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
/* Chen et al. 2023: the sign of a mean of gradients, and weight decay as in AdamW. */
DT_API dt_optimizer *dt_lion_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
/* torch.optim.Muon with its defaults (nesterov, adjust_lr_fn "original"), in f32 where PyTorch uses bf16; with momentum 0 it keeps no
   mean. It updates matrices and refuses other parameters. Which ones it gets is the program's choice:
       dt_muon(m, .params = "blocks.*.weight", .lr = 0.02);  dt_adamw(m);                       AdamW has the rest
   It needs whole matrices: not with .shard, .split or a parameter server. */
DT_API dt_optimizer *dt_muon_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
/* torch.optim.Adafactor with its defaults. Of a parameter with two or more dimensions it keeps means of squares for rows and columns
   of the last two dimensions instead of one number for each element; of a vector it keeps them all. It needs whole parameters: not
   with .shard, a pipeline, .split or a parameter server. */
DT_API dt_optimizer *dt_adafactor_with(dt_model *m, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
/* An optimiser of your own. dt_step calls update for each vector of consecutive parameters of one group (.each: for each
   parameter, in its shape) that have gradients. The function reads and writes tensors with any public op; what it makes is freed
   when it returns, and nothing is recorded. It changes values and states in place, by dt_copy, dt_add_to or through dt_data_ptr on the
   CPU. A status other than DT_OK makes dt_step fail. Groups, schedules, clipping, mixed precision, DDP and checkpoints work as
   with the other optimisers. With .shard update gets this rank's ranges, and a rule with .each is refused; a parameter
   server refuses all rules. The texts, user and what they point to must stay until dt_optimizer_free.

       static dt_status signum(dt_rule_call *u, void *user)
       {
           double m = u->o->momentum;
           dt_copy(u->state[0], dt_add(dt_mul_scalar(u->state[0], m), dt_mul_scalar(u->grad, 1 - m)));
           dt_add_to(u->value, dt_sign(u->state[0]), -u->o->lr);
           return dt_error_code();
       }
       static const dt_rule rule = { "signum", { "momentum_buffer" }, false, signum, NULL };
       dt_optimizer *opt = dt_optimizer_new(m, &rule, .lr = 0.01, .momentum = 0.9);

   docs/extending.md has a complete one. */
#define DT_RULE_STATES 4 /* states of a rule at most */
typedef struct dt_rule_call {
    dt_tensor  *value;                   /* f32; of half parameters the master weights, or an f32 copy that is rounded back */
    dt_tensor  *grad;                    /* f32, clipped, negated with .maximize; read it only */
    dt_tensor  *state[DT_RULE_STATES];   /* f32, as many elements as value, 0 before the first update */
    int64_t     t;                       /* the number of this update of these parameters: 1, 2 ... */
    const dt_optimizer_opts *o;          /* of the group, with defaults filled in */
    const char *name;                    /* of the parameter, or of the first one */
} dt_rule_call;
typedef struct dt_rule {
    const char       *name DT_D;                  /* for messages; a checkpoint is resumed only by a rule of the same name */
    const char       *state[DT_RULE_STATES] DT_D; /* names in checkpoints, the used ones first */
    bool              each DT_D;                  /* one call for each parameter, in its shape */
    dt_status       (*update)(dt_rule_call *u, void *user) DT_D;
    void             *user DT_D;
    dt_optimizer_opts defaults DT_D;              /* the numbers of options that a program leaves out; .lr 0: 1e-3 */
} dt_rule;
/* An optimiser whose update is the rule; NULL on error. */
DT_API dt_optimizer *dt_optimizer_new_with(dt_model *m, const dt_rule *rule, dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
/* Adds a parameter group: parameters of the optimiser whose names match the pattern get these options. Options that are
   0 are inherited from the optimiser. If several groups match, the latest one applies. Call it before the seal or between
   steps. Returns the group's index (the optimiser itself is group 0) or a negative status:
       dt_optimizer_add_group(opt, "*.bias|*bn*", .weight_decay = DT_ZERO);  */
DT_API int dt_optimizer_add_group_with(dt_optimizer *opt, const char *pattern,
                                       dt_optimizer_opts o DT_OPT0(dt_optimizer_opts));
#ifdef DT__LIT
#define dt_sgd(...) dt_sgd_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_adam(...) dt_adam_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_adamw(...) dt_adamw_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_rmsprop(...) dt_rmsprop_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_adagrad(...) dt_adagrad_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_lars(...) dt_lars_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_lamb(...) dt_lamb_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_lion(...) dt_lion_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_muon(...) dt_muon_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_adafactor(...) dt_adafactor_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_optimizer_new(m, ...) \
    dt_optimizer_new_with(m, DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#define dt_optimizer_add_group(opt, ...) \
    dt_optimizer_add_group_with(opt, DT__HEAD(__VA_ARGS__, ), DT__OPTS_TEXT(dt_optimizer_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_sgd dt_sgd_with
#define dt_adam dt_adam_with
#define dt_adamw dt_adamw_with
#define dt_rmsprop dt_rmsprop_with
#define dt_adagrad dt_adagrad_with
#define dt_lars dt_lars_with
#define dt_lamb dt_lamb_with
#define dt_lion dt_lion_with
#define dt_muon dt_muon_with
#define dt_adafactor dt_adafactor_with
#define dt_optimizer_new dt_optimizer_new_with
#define dt_optimizer_add_group dt_optimizer_add_group_with
#endif
DT_API void      dt_optimizer_free(dt_optimizer *opt);
/* Updates the parameters from their gradients, clears the gradients and ends the step (dt_end). A parameter that got no
   gradient since the last step does not change, as in PyTorch. If the loss was not finite, it is an error and nothing
   changes. Gradients of several backwards before one step are added (accumulation): divide the loss by their number. */
DT_API dt_status dt_step(dt_optimizer *opt);
/* The same without dt_end: tensors and tape of the step stay. For several optimisers that share a forward, as in a GAN:
       dt_tensor *fake = generator(g, z);
       dt_backward(dt_bce_with_logits(discriminator(d, real), ones));
       dt_backward(dt_bce_with_logits(discriminator(d, dt_detach(fake)), zeros)); // gradients of the two add up
       dt_update(opt_d);                                                          // fake and its tape are still there
       dt_backward(dt_bce_with_logits(discriminator(d, fake), ones));
       dt_optimizer_zero_grad(opt_d);                                // what this backward left in the discriminator
       dt_step(opt_g);                                               // update and end the step */
DT_API dt_status dt_update(dt_optimizer *opt);
DT_API void      dt_optimizer_zero_grad(dt_optimizer *opt); /* clears gradients without a step */
/* Scales all gradients so that their norm is at most max_norm. Returns the norm before, or NaN after an error. */
DT_API double    dt_clip_grad_norm(dt_optimizer *opt, double max_norm);
DT_API dt_status dt_clip_grad_value(dt_optimizer *opt, double max_value);
DT_API int       dt_optimizer_groups(const dt_optimizer *opt);
DT_API double    dt_optimizer_lr(const dt_optimizer *opt, int group);
DT_API dt_status dt_optimizer_set_lr(dt_optimizer *opt, int group, double lr); /* group -1: all groups */
DT_API double    dt_optimizer_momentum(const dt_optimizer *opt, int group);    /* Adam: beta1 */
DT_API dt_status dt_optimizer_set_momentum(dt_optimizer *opt, int group, double momentum);
DT_API int64_t   dt_optimizer_steps(const dt_optimizer *opt);        /* number of updates */

/* ---------------------------------------------------------------------------------------------------- >>schedules
   torch.optim.lr_scheduler: the same names, defaults and values; values are equal to the bit if libm's cos and pow are.
   A scheduler sets the learning rate of every group of an optimiser; cyclic and one-cycle schedulers also set the momentum
   (or beta1). It does so when it is created and at each dt_scheduler_step, which follows dt_step. Call it once per step or
   once per epoch, whichever its options count. The lr that a group has when the scheduler is created is its base lr: add
   the groups first.
       dt_scheduler *s = dt_cosine_annealing_lr(opt, .t_max = 90);
       dt_warmup(s, .steps = 5);
   A scheduler must not step after its optimiser is freed; it may be freed before or after it.
   One struct of options serves all; an option that a scheduler does not take is an error. 0 means the default, DT_ZERO
   means 0. */
typedef enum dt_scheduler_mode {
    DT_MODE_DEFAULT = 0, /* cyclic: triangular; plateau: min */
    DT_MODE_TRIANGULAR,  /* cyclic: all cycles have the same amplitude */
    DT_MODE_TRIANGULAR2, /* cyclic: each cycle has half the amplitude of the one before */
    DT_MODE_EXP_RANGE,   /* cyclic: amplitude * gamma^step */
    DT_MODE_MIN,         /* plateau: the metric should fall */
    DT_MODE_MAX          /* plateau: the metric should rise */
} dt_scheduler_mode;
typedef enum dt_anneal { DT_ANNEAL_COS = 0, DT_ANNEAL_LINEAR } dt_anneal;
typedef enum dt_threshold_mode { DT_THRESHOLD_REL = 0, DT_THRESHOLD_ABS } dt_threshold_mode;
typedef struct dt_scheduler_opts {
    int               dt__first DT_D;
    double            factor DT_D;          /* constant: 1/3, at most 1; plateau: 0.1, below 1 */
    double            start_factor DT_D;    /* linear: 1/3 */
    double            end_factor DT_D;      /* linear: 1 */
    int64_t           total_iters DT_D;     /* constant, linear, polynomial: 5 */
    double            power DT_D;           /* polynomial: 1 */
    int64_t           step_size DT_D;       /* step: required */
    double            gamma DT_D;           /* step, multistep: 0.1; exponential: required; cyclic (exp_range): 1 */
    const int64_t    *milestones DT_D;      /* multistep: required, in any order; copied */
    int               nmilestones DT_D;
    int64_t           t_max DT_D;           /* cosine: required */
    double            eta_min DT_D;         /* cosine, cosine restarts: 0 */
    int64_t           t_0 DT_D;             /* cosine restarts: required */
    int64_t           t_mult DT_D;          /* cosine restarts: 1 */
    double            base_lr DT_D;         /* cyclic: required */
    double            max_lr DT_D;          /* cyclic, one-cycle: required */
    int64_t           step_size_up DT_D;    /* cyclic: 2000 */
    int64_t           step_size_down DT_D;  /* cyclic: step_size_up */
    dt_scheduler_mode mode DT_D;            /* cyclic, plateau */
    dt_switch         cycle_momentum DT_D;  /* cyclic, one-cycle: DT_YES */
    double            base_momentum DT_D;   /* cyclic: 0.8; one-cycle: 0.85 */
    double            max_momentum DT_D;    /* cyclic: 0.9; one-cycle: 0.95 */
    int64_t           total_steps DT_D;     /* one-cycle: give this, or .epochs and .steps_per_epoch */
    int64_t           epochs DT_D, steps_per_epoch DT_D;
    double            pct_start DT_D;       /* one-cycle: 0.3, the fraction of the steps in which the lr rises */
    dt_anneal         anneal_strategy DT_D; /* one-cycle: DT_ANNEAL_COS */
    double            div_factor DT_D;      /* one-cycle: 25; the first lr is max_lr/div_factor */
    double            final_div_factor DT_D; /* one-cycle: 1e4; the last lr is the first/final_div_factor */
    bool              three_phase DT_D;     /* one-cycle: down to the first lr, then to the last lr */
    int64_t           patience DT_D;        /* plateau: 10 metrics without improvement */
    double            threshold DT_D;       /* plateau: 1e-4, the least improvement that counts */
    dt_threshold_mode threshold_mode DT_D;  /* plateau: relative to the best metric, or absolute */
    int64_t           cooldown DT_D;        /* plateau: 0, how many metrics after a reduction are not judged */
    double            min_lr DT_D;          /* plateau: 0 */
    double            eps DT_D;             /* plateau: 1e-8; a smaller change of the lr is not made */
} dt_scheduler_opts;
DT_API dt_scheduler *dt_constant_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_linear_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_step_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_multistep_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_exponential_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_polynomial_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_cosine_annealing_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_cosine_annealing_warm_restarts_with(dt_optimizer *opt,
                                                            dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_cyclic_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_one_cycle_lr_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API dt_scheduler *dt_reduce_lr_on_plateau_with(dt_optimizer *opt, dt_scheduler_opts o DT_OPT0(dt_scheduler_opts));
DT_API void          dt_scheduler_free(dt_scheduler *s);

/* Sets the next value. A one-cycle scheduler allows total_steps calls; one more is an error. */
DT_API dt_status dt_scheduler_step(dt_scheduler *s);
DT_API dt_status dt_scheduler_metric(dt_scheduler *s, double value); /* the step of a plateau scheduler */
DT_API int64_t   dt_scheduler_steps(const dt_scheduler *s);          /* number of steps, warm-up included */

/* Adds a warm-up to any scheduler, before its first step. The lr rises linearly over n steps; then the scheduler begins
   with its step 0:
       dt_warmup(s, .steps = n, .start = f)        from f*lr to lr: SequentialLR([LinearLR(f, 1, n), s], [n])
       dt_warmup(s, .steps = n, .multiplier = k)   from lr to k*lr, and k*lr is the scheduler's base lr; the whole range
                                                   of a cyclic or one-cycle scheduler is multiplied by k
   A plateau scheduler does not judge the metrics of its warm-up. */
typedef struct dt_warmup_opts {
    int     dt__first DT_D;
    int64_t steps DT_D;      /* required */
    double  start DT_D;      /* a factor: above 0, at most 1; default 1/3 */
    double  multiplier DT_D; /* above 1; instead of .start */
} dt_warmup_opts;
DT_API dt_status dt_warmup_with(dt_scheduler *s, dt_warmup_opts o DT_OPT0(dt_warmup_opts));
#ifdef DT__LIT
#define dt_constant_lr(...) dt_constant_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_linear_lr(...) dt_linear_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_step_lr(...) dt_step_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_multistep_lr(...) dt_multistep_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_exponential_lr(...) \
    dt_exponential_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_polynomial_lr(...) dt_polynomial_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_cosine_annealing_lr(...) \
    dt_cosine_annealing_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_cosine_annealing_warm_restarts(...) \
    dt_cosine_annealing_warm_restarts_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_cyclic_lr(...) dt_cyclic_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_one_cycle_lr(...) dt_one_cycle_lr_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_reduce_lr_on_plateau(...) \
    dt_reduce_lr_on_plateau_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_scheduler_opts, __VA_ARGS__, ))
#define dt_warmup(...) dt_warmup_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_warmup_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_constant_lr dt_constant_lr_with
#define dt_linear_lr dt_linear_lr_with
#define dt_step_lr dt_step_lr_with
#define dt_multistep_lr dt_multistep_lr_with
#define dt_exponential_lr dt_exponential_lr_with
#define dt_polynomial_lr dt_polynomial_lr_with
#define dt_cosine_annealing_lr dt_cosine_annealing_lr_with
#define dt_cosine_annealing_warm_restarts dt_cosine_annealing_warm_restarts_with
#define dt_cyclic_lr dt_cyclic_lr_with
#define dt_one_cycle_lr dt_one_cycle_lr_with
#define dt_reduce_lr_on_plateau dt_reduce_lr_on_plateau_with
#define dt_warmup dt_warmup_with
#endif

/* The linear scaling rule (Goyal et al. 2017): for a batch that is k times larger, for example because of more ranks,
   use an lr that is k times larger, and warm up from the small lr. If 0.1 is the lr for a batch of 256, write either:
       opt = dt_sgd(m, .lr = dt_scale_lr(0.1, batch, 256));  ..  dt_warmup(s, .steps = n, .start = 256.0 / batch);
       opt = dt_sgd(m, .lr = 0.1);                           ..  dt_warmup(s, .steps = n, .multiplier = batch / 256.0);
   */
DT_API double    dt_scale_lr(double lr, double batch, double base_batch); /* lr*batch/base_batch; NaN on error */
DT_API dt_status dt_optimizer_scale_lr(dt_optimizer *opt, double k); /* every group; before a scheduler is created */

/* ---------------------------------------------------------------------------------------------------- >>amp
   Mixed precision as Apex defined it. A level sets these options; each can also be set by itself:

                             O0       O1         O2         O3
       cast_model            f32      no         half       half     parameters, and the inputs of layers
       cast_ops              no       yes        no         no       inputs of ops (which: dt_autocast of dt.h)
       keep_batchnorm_f32    -        -          yes        no
       master_weights        no       -          yes        no       optimisers update f32 copies of half weights
       loss_scale            1        dynamic    dynamic    1

   'half' is f16, or bf16 with .dtype = DT_BF16. At every level the losses of dt.h convert the model's output to f32.
   Two lines of a program change:

       dt_amp *amp = dt_amp_new(m, .level = "O2");
       dt_amp_backward(amp, loss);        in place of dt_backward(loss)

   dt_amp_backward scales the loss, computes the gradients, divides them by the scale and checks that they are finite.
   Then dt_step clips and updates; after an overflow it changes neither weights nor optimiser state and halves the scale.
   An amp is used by the thread that created it. Free it before its models. */
#define DT_DYNAMIC (-1.0) /* a value of .loss_scale */
typedef struct dt_amp_opts {
    int         dt__first DT_D;
    const char *level DT_D;              /* "O0" .. "O3", default "O1"; "o1" and "01" are accepted too */
    dt_dtype    dtype DT_D;              /* DT_F16 (default) or DT_BF16 */
    dt_switch   cast_model DT_D;
    dt_switch   cast_ops DT_D;
    dt_switch   keep_batchnorm_f32 DT_D;
    dt_switch   master_weights DT_D;
    double      loss_scale DT_D;         /* a number, or DT_DYNAMIC */
    double      init_scale DT_D;         /* of a dynamic scale: 65536 */
    double      growth_factor DT_D;      /* 2 */
    double      backoff_factor DT_D;     /* 0.5 */
    int64_t     growth_interval DT_D;    /* steps without overflow before the scale grows: 2000 */
    double      min_loss_scale DT_D;     /* an overflow at this scale is an error; 2^-100 */
    double      max_loss_scale DT_D;     /* 2^24 */
    int         num_losses DT_D;         /* each loss has its own scale: 1 */
} dt_amp_opts;
DT_API dt_amp   *dt_amp_new_with(dt_model *m, dt_amp_opts o DT_OPT0(dt_amp_opts)); /* before the first step; NULL on error */
DT_API dt_status dt_amp_add(dt_amp *amp, dt_model *m); /* another model trained by the same losses */
DT_API void      dt_amp_free(dt_amp *amp); /* NULL is accepted */

typedef struct dt_amp_backward_opts {
    int  dt__first DT_D;
    int  loss DT_D; /* which loss: 0 .. num_losses - 1 */
    bool retain_graph DT_D;
} dt_amp_backward_opts;
/* in the place of dt_backward: scales the loss, unscales the gradients */
DT_API dt_status dt_amp_backward_with(dt_amp *amp, dt_tensor *loss,
                                      dt_amp_backward_opts o DT_OPT0(dt_amp_backward_opts));
#ifdef DT__LIT
#define dt_amp_new(...) dt_amp_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_amp_opts, __VA_ARGS__, ))
#define dt_amp_backward(amp, ...) \
    dt_amp_backward_with(amp, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_amp_backward_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_amp_new dt_amp_new_with
#define dt_amp_backward dt_amp_backward_with
#endif
DT_API double    dt_amp_scale(const dt_amp *amp, int loss); /* the loss scale that is used now */
DT_API int64_t   dt_amp_overflows(const dt_amp *amp); /* number of steps skipped because of an overflow */
DT_API size_t    dt_amp_describe(const dt_amp *amp, char *buf, size_t nbytes); /* the options in use, as text; like snprintf */

/* ---------------------------------------------------------------------------------------------------- >>archives
   Tensors in the archives of dt_io.h. dt_archive_get returns a CPU tensor of the current step. It is a view of the
   file's memory, or a copy if the data is not aligned, and stays valid after the archive is freed. Writing to it does not
   change the file. Of files of other programs F64 becomes f32, I8, I16 and U16 become i32, U32 becomes i64. */
DT_API dt_tensor *dt_archive_get(dt_archive *a, const char *name);
/* Copies into a tensor of equal shape, of any dtype (it converts) and on any device. */
DT_API dt_status  dt_archive_read(dt_archive *a, const char *name, dt_tensor *into);
/* The archive keeps a reference to the tensor until it is freed. The values are read when the archive is written; dtype
   and shape must not change until then. */
DT_API dt_status  dt_archive_add(dt_archive *a, const char *name, dt_tensor *t);

/* ---------------------------------------------------------------------------------------------------- >>checkpoints
   The parameters and buffers of a model, as in PyTorch's state_dict: one safetensors file. */
DT_API dt_status dt_model_save(dt_model *m, const char *path); /* with mixed precision: the f32 master weights */

typedef struct dt_load_opts {
    int         dt__first DT_D;
    bool        no_strict DT_D; /* strict=False: load the tensors that fit and log the others; default: all must fit */
    const char *strip DT_D;     /* a prefix that names in the file may have: "module." */
} dt_load_opts;
/* Fills existing parameters at once, or leaves all of them unchanged if the file does not fit. Parameters that are
   created later take their values from the file; names that are missing or left over are an error at the seal. dtypes
   are converted. Of a checkpoint, only the model is loaded. Returns how many parameters were filled now, or a negative
   status. */
DT_API int dt_model_load_with(dt_model *m, const char *path, dt_load_opts o DT_OPT0(dt_load_opts));
#ifdef DT__LIT
#define dt_model_load(m, ...) dt_model_load_with(m, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_load_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_model_load dt_model_load_with
#endif

/* Checkpoints of a training. After a resume the training continues bit for bit as if the program had not stopped.

       dt_checkpoint *c = dt_checkpoint_new("run1", .model = m, .every_steps = 500, .signals = true);
       int64_t epoch = 0, step = 0;
       dt_checkpoint_resume(c, &epoch, &step);
       for (...) { ...; dt_step(opt); if (dt_checkpoint_tick(c, epoch, ++step)) break; }
       dt_checkpoint_finish(c, epoch, step);
       dt_checkpoint_free(c);

   A checkpoint is one file, DIR/ckpt-00000500.safetensors. It is written under a temporary name, synced and renamed. With
   a dt_ddp (dt_dist.h) all ranks make these calls: rank 0 writes, all ranks load and must see the same file, and a signal
   to one rank takes effect on all ranks. */
typedef struct dt_checkpoint_opts {
    int            dt__first DT_D;
    dt_model      *model DT_D;            /* required */
    dt_optimizer  *optimizer DT_D;        /* default: all optimisers of the model */
    dt_optimizer **optimizers DT_D;       /* instead of .optimizer: several */
    int            noptimizers DT_D;
    dt_scheduler  *scheduler DT_D;
    dt_scheduler **schedulers DT_D;       /* instead of .scheduler: several */
    int            nschedulers DT_D;
    dt_amp        *amp DT_D;              /* default: the model's */
    int            keep DT_D;             /* how many files to keep; default 3, -1: all */
    int64_t        every_steps DT_D;      /* dt_checkpoint_tick saves at multiples of this; 0: not by steps */
    int64_t        every_epochs DT_D;
    double         every_minutes DT_D;
    bool           signals DT_D;          /* SIGUSR1: save and continue; SIGTERM, SIGINT: save and stop */
    const char    *name DT_D;             /* first part of file names; default "ckpt" */
    bool           allow_nonfinite DT_D;  /* allow NaN and infinity in the model; default: they are an error */
} dt_checkpoint_opts;
/* Creates the directory and checks that it can be written to. */
DT_API dt_checkpoint *dt_checkpoint_new_with(const char *dir, dt_checkpoint_opts o DT_OPT0(dt_checkpoint_opts));
#ifdef DT__LIT
#define dt_checkpoint_new(...) \
    dt_checkpoint_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_checkpoint_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_checkpoint_new dt_checkpoint_new_with
#endif
DT_API void        dt_checkpoint_free(dt_checkpoint *c); /* does not save */
/* More values to save and to restore. Call these before dt_checkpoint_resume. The pointers must stay valid. */
DT_API dt_status   dt_checkpoint_add_tensor(dt_checkpoint *c, const char *key, dt_tensor *t);
DT_API dt_status   dt_checkpoint_add_integer(dt_checkpoint *c, const char *key, int64_t *x);
DT_API dt_status   dt_checkpoint_add_number(dt_checkpoint *c, const char *key, double *x);
DT_API dt_status   dt_checkpoint_set_string(dt_checkpoint *c, const char *key, const char *value); /* copied */
DT_API const char *dt_checkpoint_get_string(const dt_checkpoint *c, const char *key); /* set or resumed; NULL if unknown */

/* Saves now. A resume returns this epoch and step. While an error is pending, nothing is saved. */
DT_API dt_status dt_checkpoint_save(dt_checkpoint *c, int64_t epoch, int64_t step);
/* Call it after each step. It saves if one of the .every_ options or a signal asks for it. Returns 1 if the program should
   stop, 0 to continue, or a negative status. At the end of an epoch pass the next epoch: a resume begins there. */
DT_API int       dt_checkpoint_tick(dt_checkpoint *c, int64_t epoch, int64_t step);
/* Saves the last checkpoint of a run. */
DT_API dt_status dt_checkpoint_finish(dt_checkpoint *c, int64_t epoch, int64_t step);
/* Loads the newest intact checkpoint. Returns 1 and sets epoch and step; 0 if there is no checkpoint; or a negative
   status. Damaged files are skipped with a warning in the log; it is an error if all are damaged. Create optimisers and
   schedulers before the call. Parameters that are created after it take their values from the file. */
DT_API int       dt_checkpoint_resume(dt_checkpoint *c, int64_t *epoch, int64_t *step);
/* Copies the path of the newest intact checkpoint to buf; NULL if there is none, without an error. name NULL: "ckpt". */
DT_API const char *dt_checkpoint_latest(const char *dir, const char *name, char *buf, size_t nbytes);

#ifdef __cplusplus
}
#endif
#endif /* DT_NN_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__NN_INSIDE)
#define DT__NN_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   Private types and functions that dt_dist.h uses: models, optimisers and mixed precision. */
#ifdef __cplusplus
extern "C" {
#endif
#define DT__MAX_SCOPE 512 /* characters */
#define DT__MAX_SCOPES 32 /* nesting depth */
#define DT__MAX_PLACES 64 /* devices of a model */
#define DT__MAX_OPTIMIZERS 16
#define DT__MAX_GROUPS 32
#define DT__MAX_STATES 4

/* Of a parameter whose values are divided between the ranks of a tensor axis (dt_pipe.h): along dimension dim the whole has
   `parts` times as many elements. It consists of `groups` equal groups (3: queries, keys and values together), each of which is cut
   into `parts` equal pieces; this rank has piece `part` of each. parts 0: not cut. */
typedef struct dt__portion {
    int dim, groups, parts, part;
} dt__portion;
typedef struct dt__param { /* a parameter or buffer of a model */
    char      *name;       /* full name: layer1.0.conv1.weight */
    uint32_t   hash;       /* of the name */
    dt_tensor *t;          /* the value; the model owns a reference */
    dt_tensor *init;       /* before the seal, if it will have a master weight: the f32 value before rounding; or NULL */
    uint8_t    buffer, frozen;
    uint8_t    keep_f32;   /* of a batch norm: stays f32 when mixed precision casts the model */
    int        block;      /* index of its block after the seal; -1: in no block (buffers, frozen at the seal) */
    int64_t    offset;     /* in its block, in elements */
    int        old_block;  /* while blocks are rebuilt: its block and offset before */
    int64_t    old_offset;
    int        opt, group; /* the optimiser (index in the model's list) and its group; -1: no optimiser */
    int64_t    steps;      /* number of updates; SGD, LARS: only those with momentum */
    int64_t    part;       /* the first of its norm's parts in the vector of its optimiser: see dt__runs_make */
    uint8_t    reached;    /* its block's mgrad has a gradient for it: see dt__note_reached */
    uint8_t    in_run;     /* it had a gradient when its optimiser last built its runs */
    int        first, first_dtype; /* how its first values are made: dt_init, with the numbers a and b */
    double     first_a, first_b;
    int64_t    first_zero; /* row + 1 that begins as 0; 0: none */
    dt_rng    *first_rng;  /* of a model with a pipeline, before the seal: the generator before its values were drawn */
    dt__portion    cut;
    dt_tensor *own[DT__MAX_STATES]; /* DT__OWN_STATES: f32 states of other shapes than its own; else NULL */
    uint8_t    elsewhere;  /* another rank has the same values, and counts its gradient in the norm of all */
} dt__param;

/* A sharded model (>>shards in dt_dist.h): a rank has some arrays of a block whole, of the others its ranges, one behind the
   other. Ranges begin where a norm's part does: at a multiple of DT__NORM_PART elements in a parameter. */
#ifndef DT__NORM_PART /* norms are those of the norms of parts of so many elements; a test makes them small */
#define DT__NORM_PART 16384
#endif
typedef struct dt__range {
    int64_t lo, hi, at; /* elements lo .. hi - 1 of the block are at .. of the array */
} dt__range;
enum { DT__CUT_STATE = 1, DT__CUT_GRAD = 2, DT__CUT_VALUE = 4 }; /* dt__mblock.cut; STATE: master, mgrad and states, too */

/* The parameters of one dtype, optimiser and group, in reverse order of creation. All arrays have the length of the block,
   use the same offsets, and hold zeros in the gaps between parameters (see dt_pack). */
typedef struct dt__mblock {
    dt_block   b;
    int64_t    numel;     /* of the block */
    unsigned   cut;       /* which arrays hold only this rank's ranges; 0: the model is not sharded */
    dt__range *range;
    int        nranges;
    int64_t    own;       /* elements of all ranges */
    dt_tensor *mwhole;    /* sharded: as mgrad, but of the whole block, of backwards that are not summed over the ranks yet */
    uint8_t    use_mwhole;
    dt_tensor *master;    /* f32 master weights of half parameters, or NULL */
    dt_tensor *mgrad;     /* f32 gradients without loss scale; valid if use_mgrad */
    uint8_t    use_mgrad;
    dt_tensor *state[DT__MAX_STATES]; /* f32; created by the optimiser's first step or by a load */
    int        first, n;  /* its parameters: m->order[first .. first + n) */
    int        opt, group;
} dt__mblock;

typedef struct dt__on_seal {
    int (*fn)(dt_model *m, void *user);
    void *user;
} dt__on_seal;

typedef struct dt__frozen {
    char   *pattern;
    uint8_t on;
} dt__frozen;

typedef struct dt__slot { /* of a hash table of names; name NULL: empty */
    const char *name;
    uint32_t    hash;
    int         index;
} dt__slot;

typedef struct dt__layer dt__layer;

typedef struct dt__places { /* the devices of parameters, runs or blocks, each once, in the order in which they appear */
    dt_device *dev[DT__MAX_PLACES];
    int        n;
} dt__places;

/* A visitor saves and loads state: each kind of object has one function that passes all its state to the callbacks, which
   either save the value or overwrite it. A tensor to be loaded must have its shape and dtype. The callbacks return 0, or a
   negative status after dt_fail. */
typedef struct dt__visit {
    int  loading;
    int (*tensor)(struct dt__visit *v, const char *name, dt_tensor *t);
    int (*number)(struct dt__visit *v, const char *name, double *x);  /* saved as text without loss */
    int (*integer)(struct dt__visit *v, const char *name, int64_t *x);
    void *user;
    bool    bounded; /* the next number or integer must be low to high; a check without a load sees it, too */
    int64_t low, high;
    bool (*has)(struct dt__visit *v, const char *name); /* loading: is there such a number or integer? */
    /* Sharded: a tensor with the shape of p, of which this rank has its ranges in the array of its block (cut), or has it all there
       and saves its ranges. */
    int (*part)(struct dt__visit *v, const char *name, const struct dt__mblock *b, dt_tensor *array, bool cut, const dt__param *p);
    const dt__portion *cut; /* loading: the next tensor is this part of what was saved; or NULL */
} dt__visit;

/* Callbacks of dt_dist.h and dt_pipe.h for a model that several ranks train. They run on the thread that uses the model. Any of
   them may be NULL. A model has a list of them: one for each way in which ranks share it (data, pipeline, tensor), in the same
   order on all ranks. The dt__watch_... functions below call all of the list. */
typedef enum dt__watch_kind { DT__WATCH_DDP = 1, DT__WATCH_STORE, DT__WATCH_PIPE, DT__WATCH_SPLIT } dt__watch_kind;
struct dt__run;
typedef struct dt__watch {
    struct dt__watch *next;
    dt__watch_kind    kind;
    void *user;
    int (*made)(void *user, dt__param *p);       /* after a parameter or buffer is created and initialised */
    /* Memory for the gradients of a block on dev: a 1-d tensor that the caller owns. NULL without an error: use the default. */
    dt_tensor *(*grads)(void *user, dt_device *dev, int dtype, int64_t n);
    dt__norm_sync *norm;                         /* batch norm in training mode uses the statistics of all ranks */
    void (*step)(void *user, dt_optimizer *opt); /* first action of dt_step, also while an error is pending */
    int (*agree)(void *user, const char *call, int64_t *x, int n); /* collective: x[i] := maximum over all ranks */
    int (*same)(void *user, const char *call, const char *what, int64_t x); /* collective: an error if x differs */
    int (*lead)(void *user);                     /* collective: nonzero on the rank that writes files */
    int (*outcome)(void *user, const char *call); /* collective, after rank 0 has written: its error is all ranks' error */
    int (*visit)(void *user, struct dt__visit *v); /* more state for checkpoints */
    int (*collect)(void *user, const char *call);  /* collective, before a checkpoint is filled */
    int (*arrays)(void             *user,
                  struct dt__visit *v); /* as visit, of a sealed model: a resume before the seal calls it at the seal */
    /* Collective, for every tensor that is saved: on the rank that writes files, if t is a ghost there, its values from the rank
       that has them, on the CPU; the caller owns it. Otherwise NULL, also without an error. */
    dt_tensor *(*fetch)(void *user, const char *call, dt_tensor *t);
    int (*whole_norm)(void *user, float *norm);  /* collective: the norm of the gradients of this rank becomes that of all */
    /* Collective: norms[2 i] of the i-th parameter of a run becomes that of the whole parameter, of which other ranks have parts. */
    int (*part_norms)(void *user, const struct dt__run *run, dt_tensor *norms);
    void (*tell)(void *user);                    /* an error is pending on this rank: it becomes everyone's */
    void (*gone)(void *user);                    /* the model is being freed */
} dt__watch;

/* Callbacks of dt_dist.h for a model of which each rank has a part of the states, and perhaps of the gradients and values. They
   are collective, run on the thread that uses the model, and return 0 or a negative status after dt_fail. */
typedef struct dt__sharding {
    void   *user;
    int     rank;
    bool    unsummed; /* the gradients in the blocks, if any, are those of this rank: no backward has summed them yet */
    int (*cut)(void *user);                 /* the blocks have their parameters and offsets: sets cut and the ranges of each */
    int (*bind)(void *user, dt__mblock *b); /* the arrays of the block are made: its values and gradients move to their places */
    dt_tensor *(*array)(void *user, const char *call, int64_t n, bool state); /* not collective: n f32, zero; NULL after dt_fail */
    int (*sum)(void *user, const char *call, float *x, int64_t n);
    int (*most)(void *user, const char *call, int64_t *x, int n); /* x[i] := the maximum over all ranks */
    int (*merge)(void *user, const char *call, void *x, size_t nbytes); /* each byte is 0 on all ranks but one */
    int (*tell)(void *user, const char *call, void *x, size_t nbytes, int root); /* all get root's bytes */
    int (*outcome)(void *user, const char *call); /* the error of any rank becomes the error of all */
    int (*settle)(void *user);             /* not collective: values that the program changed are in the arrays of the blocks */
    int (*stepped)(void *user, dt_optimizer *opt); /* opt has updated this rank's ranges; NULL: a load has */
    int (*owner)(void *user, const dt__mblock *b, int64_t at, int64_t *end); /* not collective: who has this element, and those up to *end */
} dt__sharding;

/* Callbacks of dt_pipe.h for a forward that computes only a part of the model. */
typedef struct dt__staging {
    void *user;
    dt_tensor *(*stage)(void *user, const char *name, dt_tensor *x); /* dt_stage */
    void (*layer)(void *user, const char *scope, const char *name);  /* a layer begins */
} dt__staging;

/* Callbacks of dt_pipe.h for layers of which each rank has a part. Collective over the ranks of the axis; t is dense and not a
   ghost; what: the layer, for messages. */
typedef struct dt__split_axis {
    void *user;
    int   rank, size;
    int (*reduce)(void *user, const char *what, dt_tensor *t, bool max); /* in place: the sum, or the maximum */
    int (*gather)(void *user, const char *what, dt_tensor *all, const dt_tensor *t); /* all: the t of each rank, in their order */
} dt__split_axis;

struct dt_model {
    dt_device   *device;
    dt_dtype     dtype;
    uint8_t      norms_f32;   /* mixed precision: batch norms stay f32 */
    uint8_t      masters;     /* mixed precision: half parameters have f32 master weights */
    dt_rng       rng;
    int          training, sealed;
    int          version;     /* incremented when blocks or frozen parameters change: optimisers rebuild their runs */
    uint64_t     forwards;    /* number of dt_forward_begin calls */
    dt__param  **param;       /* in order of creation */
    int          nparams;
    int64_t      param_cap;
    dt__param  **order;       /* in the order of the blocks */
    int          norder, block_cap;
    dt__mblock  *block;
    int          nblocks;
    dt_optimizer *opt[DT__MAX_OPTIMIZERS];
    int          nopts;
    dt_amp      *amp;
    dt__layer  **layer;
    int          nlayers;
    int64_t      layer_cap;
    dt__slot    *param_table, *layer_table;
    int          param_slots, layer_slots;
    char         scope[DT__MAX_SCOPE];
    int          scope_len, scope_depth;
    int          scope_at[DT__MAX_SCOPES]; /* length of 'scope' before each dt_scope_begin */
    dt_device   *place[DT__MAX_SCOPES];    /* the open device scopes */
    int          nplaces;
    uint64_t     place_stamp;  /* the thread's generation when the outermost of them began */
    dt__frozen  *frozen;       /* patterns; the latest one that matches applies */
    int          nfrozen;
    int64_t      frozen_cap;
    int          hook;         /* 0: the thread with number hook_thread has it in its list of models to seal; -1: no thread */
    uint64_t     hook_thread;
    uint64_t     serial;       /* the hook's name for the model */
    dt_model    *next_unsealed;
    dt__list     on_seal;      /* dt__on_seal * */
    dt__watch   *watch;        /* a list; NULL if one rank trains the model */
    const dt__staging *parts;  /* NULL if this rank has the whole model */
    dt__sharding  *shards;       /* NULL: not sharded */
    uint8_t      lost;         /* it was sharded, and its ddp ended with an error */
    const dt__split_axis *axis;      /* NULL: no layer is split over ranks */
    uint8_t      bn_mean;      /* batch norms track the mean over all batches: dt_update_bn_begin in training (1) or eval mode (2) */
    uint8_t      reader;       /* made by dt_model_reader */
    int          inside;       /* a layer begins or an optimiser steps: atomic */
    struct dt__sharers *sharers; /* of a model that has or had readers, and of these; else NULL */
    uint8_t      again;        /* this forward repeats another one: buffers do not change */
    uint8_t      timed;        /* DT__TIMED_... */
    struct dt__profile *profile; /* if timed is DT__TIMED */
    /* Fills a new parameter from the files that were loaded before it existed (see dt__load_want); NULL: no such file.
       Returns 1 if it filled p->t, 0 if no file has the name, or a negative status. */
    int        (*want)(dt_model *m, void *user, dt__param *p);
    void        *want_user;    /* list of dt__load, the newest first */
};

typedef struct dt__run { /* consecutive parameters of a block that one kernel call updates. Sharded: what one range has of them */
    int        block, group;
    int        place;     /* its device, in opt->places */
    int64_t    offset, n;
    int64_t    at;             /* where it begins in arrays that hold only this rank's ranges */
    int64_t    temp;           /* where it begins in dt__step_temp.update */
    int        first, nparams; /* m->order[first .. first + nparams) */
    int64_t    part, nparts;   /* its parts of the norm in the vector of the optimiser; each gap is a part, too */
    dt_tensor *parts;          /* i64: where each part begins, and the end; NULL: not needed yet */
    dt_tensor *segments;       /* DT__TRUST_RATIO: i64, where each parameter and each gap begins, and the end; or NULL */
    dt_tensor *slots;          /* of each segment: i64, its first part, from those of parameter `first` on, and the end */
    int64_t    part0, nslots;  /* that first part; parts of its whole parameters */
    dt_tensor *wnorm, *unorm;  /* of each segment: norm of the weights, and of the gradient (LARS) or update (LAMB) */
} dt__run;

struct dt_optimizer {
    dt_model     *m;
    int           index; /* in m->opt */
    int           kind;  /* DT__KIND_sgd ...: a row of dt__optim_kinds; of a rule: a number made from its name */
    struct dt__custom *custom; /* the rule, or NULL */
    bool          busy;  /* the update of a rule runs */
    dt__list      aside[2]; /* step and tape of what it computes with ops */
    int           ngroups;
    dt_optimizer_opts group[DT__MAX_GROUPS]; /* with defaults filled in: 0 means 0 */
    char         *pattern[DT__MAX_GROUPS];
    dt__run      *run;
    int           nruns, run_version;
    int64_t       run_cap;
    bool          lost;    /* its states were sharded, and the ddp that had them was freed */
    int           reached; /* parameters with a gradient, when the runs were made; nruns may be 0 even so: others have them */
    int64_t       nparts;  /* of the norms of all parameters with a gradient */
    dt__places    places; /* of the runs */
    int64_t       steps;
    int           skip;  /* mixed precision found an overflow: the next step changes nothing */
    bool          idle_logged; /* a step found no gradient at all, and said so */
};

struct dt__layer { /* what the model keeps for each layer name */
    char      *name;
    const char *kind;
    dt__param **p;       /* its np parameters and buffers; each layer function defines the order; NULL: not made yet */
    int        np;
    dt__param *few[5];   /* p points to these, or to an allocated array */
    uint64_t   stamp;    /* number of the last forward that used it */
    double     flops;    /* of the last forward, all uses */
    int        index;    /* in m->layer */
    uint64_t   began;    /* if a trace runs: timestamp of this call's begin */
    dt_shape   out;      /* shape of the last output */
    uint8_t    own;      /* always 0; dt_dist.h copies it */
};
/* dt_model.timed: does DT_PROFILE measure it? */
enum { DT__TIMED_UNKNOWN = 0, DT__TIMED, DT__TIMED_NEVER };
#define DT__MAX_LOSSES 16
#define DT__AMP_MODELS 8
typedef struct dt__scaler {
    double  scale;       /* always exactly a float, as in torch's GradScaler */
    int64_t good;        /* steps without overflow since the scale last changed */
    int     used, found; /* since the last step: a backward used it; a backward found an overflow */
    int64_t row;         /* consecutive overflows */
} dt__scaler;

struct dt_amp {
    dt_model   *model[DT__AMP_MODELS];
    int         nmodels;
    int         level;
    dt_dtype    dtype;
    int         cast_model, cast_ops, keep_norms, masters, dynamic;
    double      growth, backoff, min, max;
    int64_t     interval;
    int         nlosses;
    dt__scaler  scaler[DT__MAX_LOSSES];
    int64_t     overflows;
    double      scale_now; /* of the backward that runs; else 0 */
    dt_autocast before; /* the thread's autocast when it was created */
};

DT__INSIDE void dt__watch_add(dt_model *m, dt__watch *w); /* at the end of the list */
DT__INSIDE void dt__watch_remove(dt_model *m, dt__watch *w);
DT__INSIDE dt__watch *dt__watch_find(const dt_model *m, const void *user); /* NULL: no watch has this user */
/* Why another kind of training cannot begin; NULL: none has begun. */
DT__INSIDE const char *dt__watch_taken(const dt_model *m);
DT__INSIDE void dt__watch_tell(dt_model *m);
DT__INSIDE int dt__watch_agree(dt_model *m, const char *call, int64_t *x, int n);
DT__INSIDE int dt__watch_made(dt_model *m, dt__param *p);
DT__INSIDE uint32_t dt__name_hash(const char *a, size_t na, const char *b); /* FNV-1a of a (na bytes) followed by b */
DT__INSIDE char *dt__joined(const char *a, size_t na, const char *b, const char *c); /* a, b, and ".c" if c is not NULL */
DT__INSIDE int dt__table_add(dt__slot **table, int *slots, const char *name, uint32_t hash, int index);
DT__INSIDE bool dt__model_ok(const char *call, const dt_model *m);
/* For calls that change a model or its values: false after dt_fail if it is a reader, or if it has readers. */
DT__INSIDE bool dt__model_own(const char *call, const dt_model *m);
/* The device of a layer that is called now: that of the open device scope, otherwise the model's. */
static inline __attribute__((unused)) dt_device *dt__model_here(const dt_model *m)
{
    return m->nplaces ? m->place[m->nplaces - 1] : m->device;
}
/* The index of dev in the list, which it joins if it is new; negative after dt_fail. */
DT__INSIDE int dt__place_of(const char *call, dt__places *l, dt_device *dev);
/* 0 if all parameters and buffers are on one device; otherwise dt_fail, with what the call needs. */
DT__INSIDE int dt__model_one_device(const char *call, const dt_model *m, const char *needs);
DT__INSIDE int dt__model_pack(dt_model *m);
DT__INSIDE int dt__model_on_seal(dt_model *m, int (*fn)(dt_model *, void *), void *user);
DT__INSIDE dt__layer *dt__layer_new(dt_model *m, const char *kind, const char *name, uint32_t hash);
/* What the layers of dt_layers.h are made of. dt__layer_find: the layer of this name and kind, created if it is new;
   dt__layer_begin: the same after it has checked x and the options; dt__layer_param: parameter k, created by the first call;
   dt__layer_end: sets what the summary shows, and returns y. */
#define DT__LAYER_OPTIONS(X)                                                                                     \
    X(out) X(kernel) X(kernel_w) X(stride) X(stride_w) X(pad) X(pad_w) X(dilation) X(dilation_w) X(groups)        \
    X(no_bias) X(no_affine) X(no_track) X(cumulative) X(eps) X(momentum) X(normalized_dims) X(num) X(dim) X(heads) \
    X(causal) X(dropout) X(kv) X(mask) X(lengths) X(padding_idx) X(output_pad) X(output_pad_w) X(affine) X(track)         \
    X(act) X(add) X(split)
#define DT__LAYER_BIT(n) DT__L_##n,
enum { DT__LAYER_OPTIONS(DT__LAYER_BIT) DT__L_COUNT };
#define DT__L(n) ((uint64_t)1 << DT__L_##n)

typedef struct dt__fillspec { /* how the first values of a parameter are made */
    dt_init init;
    double  a, b;
    dt__portion cut;
    int64_t zero_row; /* this row + 1 is 0; 0: none */
} dt__fillspec;
enum { DT__BUFFER = 1, DT__KEEP_F32 = 2, DT__COUNTER = 4 };
DT__INSIDE dt__fillspec dt__fill_with(dt_init init, double a, double b);
DT__INSIDE dt__fillspec dt__fill_kaiming(int64_t fan_in);
DT__INSIDE dt__fillspec dt__fill_bias(int64_t fan_in);
DT__INSIDE int dt__layer_room(dt__layer *l, int n); /* for n parameters; 5 need no call */
DT__INSIDE dt__layer *dt__layer_find(dt_model *m, const char *kind, const char *name, bool shared);
DT__INSIDE dt__layer *dt__layer_begin(dt_model *m, const char *kind, const char *name, dt_tensor *x, const dt_layer_opts *o,
                                      uint64_t takes);
DT__INSIDE dt_tensor *dt__layer_param(dt_model *m, dt__layer *l, int k, const char *suffix, dt_shape shape, dt__fillspec f,
                                      int flags);
DT__INSIDE dt_tensor *dt__layer_input(dt_model *m, dt_tensor *x);
DT__INSIDE dt_tensor *dt__layer_end(dt__layer *l, dt_tensor *y, double flops);
DT__INSIDE dt_shape dt__shape2(int64_t a, int64_t b);
DT__INSIDE dt_shape dt__shape1(int64_t a);
DT__INSIDE bool dt__has_grad(const dt__mblock *b, const dt__param *p);
DT__INSIDE void dt__view_part(dt_view *v, int64_t offset, int64_t n);
static inline __attribute__((unused)) int64_t dt__norm_parts(int64_t numel) { return (numel + DT__NORM_PART - 1) / DT__NORM_PART; }
DT__INSIDE int dt__norm_of(dt_device *dev, const dt_view *y, const dt_view *x); /* y := the norm of x */
DT__INSIDE int dt__raw_parts(float *part, const float *x, int64_t n); /* the norms of the parts of one parameter */
DT__INSIDE int dt__amp_stash(dt_model *m);
/* flags: NULL, or an f32 vector on the device with an element for each block: it is written, and somebody must read it and
   call dt__amp_judge. */
DT__INSIDE int dt__amp_take_back(dt_model *m, dt__scaler *s, dt_tensor *flags);
DT__INSIDE void dt__amp_judge(dt_model *m, dt__scaler *s, const float *flags);

/* Updates of arrays on the host that are in no model, with the kernels of dt_step and so with its bits: one parameter, or a
   range of it. */
typedef struct dt__raw_update {
    int          group;  /* of the optimiser */
    int64_t      n, t;   /* elements; the number of this update: 1, 2 ... */
    float       *value, *state[DT__MAX_STATES];
    const float *grad, *gscale; /* gscale: the clip coefficient, or NULL */
    float       *temp;   /* n floats if .temp of dt__optim_about is true, or NULL */
} dt__raw_update;
typedef struct dt__optim_about {
    const char *call;    /* "dt_sgd" ... */
    int         nstates;
    unsigned    slots;   /* bit i: the group needs state i */
    bool        whole;   /* the update needs norms of whole parameters */
    bool        temp;
    bool        counts;  /* t counts the updates of the group */
} dt__optim_about;
DT__INSIDE dt__optim_about dt__optim_about_of(const dt_optimizer *opt, int group);
DT__INSIDE int dt__optim_raw(const dt_optimizer *opt, const dt__raw_update *r);
DT__INSIDE int dt__raw_clamp(float *x, int64_t n, double limit);
DT__INSIDE int dt__raw_norm(float *norm, const float *x, int64_t n);
DT__INSIDE int dt__raw_clip(float *x, double clip_norm); /* *x: a norm; becomes the clip coefficient */
DT__INSIDE int dt__raw_finite(const float *x, int64_t n, bool *finite);
DT__INSIDE int dt__optimizer_claims(const dt_optimizer *opt, const char *name); /* the group of a parameter; -1: not its own */
/* Copies that belong to no model: options, groups and the schedule. Free them with dt_optimizer_free and dt_scheduler_free. */
DT__INSIDE dt_optimizer *dt__optimizer_copy(const dt_optimizer *opt); /* NULL: out of memory */
DT__INSIDE dt_scheduler *dt__scheduler_copy(const dt_scheduler *s, dt_optimizer *opt); /* NULL: out of memory */
/* Can a server step it? false: *why says why not. */
DT__INSIDE bool dt__scheduler_serves(const dt_scheduler *s, const dt_optimizer *opt, const char **why);
DT__INSIDE uint64_t dt__scheduler_hash(const dt_scheduler *s, uint64_t (*hash)(uint64_t, const void *, size_t), uint64_t h);
DT__INSIDE uint64_t dt__optimizer_hash(const dt_optimizer *opt, uint64_t (*hash)(uint64_t, const void *, size_t), uint64_t h);
DT__INSIDE int dt__block_states(const dt_model *m, dt__mblock *b, unsigned slots); /* makes the states that are missing, zero */
/* The value of a parameter as its optimiser sees it: its f32 master if it has one. It belongs to the step or to the model. */
DT__INSIDE dt_tensor *dt__param_source(dt_model *m, dt__param *p);
DT__INSIDE int dt__param_refill(dt_model *m, dt__param *p, dt_device *dev);
DT__INSIDE dt_shape dt__param_shape(const dt__param *p); /* of the whole parameter */
/* Collective over the axis: the whole of a tensor of which each rank has the part `cut`. Rank 0 gets its values on the CPU, the
   others a ghost. The caller owns it. */
DT__INSIDE dt_tensor *dt__cut_whole(dt_model *m, const char *call, dt_tensor *t, const dt__portion *cut);
DT__INSIDE void dt__optim_clear(dt_optimizer *opt);
/* Hand-over of a training between processes (dt_elastic.h): what a checkpoint holds, in a file without a name. Not collective.
   dt__state_new: a checkpoint that has no directory. They return 0, or a negative status after dt_fail. */
DT__INSIDE dt_checkpoint *dt__state_new(const char *call, dt_checkpoint_opts o);
DT__INSIDE int dt__state_write(const char *call, dt_checkpoint *c, int fd, int64_t epoch, int64_t step);
DT__INSIDE int dt__state_read(const char *call, dt_checkpoint *c, int fd); /* of a sealed model; closes fd */
/* Of a sharded model: what this rank has. fd: an empty file to write in. NULL after dt_fail. */
struct dt__parcel;
DT__INSIDE struct dt__parcel *dt__state_parcel(const char *call, dt_checkpoint *c, int fd, int64_t epoch, int64_t step);

#ifdef __cplusplus
}
#endif
#endif /* DT__NN_INSIDE */

#if defined(DT_NN_IMPLEMENTATION) && !defined(DT__NN_IMPLEMENTED)
#define DT__NN_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__CORE_IMPLEMENTED)
#error "dt_nn.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_NN_IMPLEMENTATION"
#endif

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(NN);
DT__NEEDS(NN, CORE);
DT__NEEDS(NN, IO);

struct dt__profile;
static void     dt__profile_layer(dt_model *m, dt__layer *l);
static void     dt__profile_input(struct dt__profile *p, const dt_tensor *x);
static void     dt__profile_end(struct dt__profile *p);
static uint64_t dt__profile_now(const struct dt__profile *p);
static void     dt__profile_step(struct dt__profile *p, const dt_optimizer *opt, uint64_t t0);

DT__SLOW_BEGIN
/* ==================================================================================================== >>nn_core
   The visitor that saves and loads state: dt__visit in >>inside. */

/* ==================================================================================================== >>model
   Parameters and layers are found by a hash of their full name. The seal moves parameters into blocks. When frozen
   parameters, the dtype or the device change later, the blocks are rebuilt, with their master weights and optimiser
   states. */

DT_API bool dt_name_matches(const char *pattern, const char *name)
{
    if (!pattern || !name) return false;
    for (;;) { /* for each alternative; after a mismatch the last * takes one more character */
        const char *p = pattern, *n = name, *star = NULL, *mark = NULL;
        for (;;) {
            if (*p == '*') {
                star = ++p;
                mark = n;
            } else if (*n && *p && *p != '|' && (*p == '?' || *p == *n)) {
                p++;
                n++;
            } else if (!*n && (!*p || *p == '|')) {
                return true;
            } else if (star && *mark) {
                p = star;
                n = ++mark;
            } else {
                break;
            }
        }
        while (*pattern && *pattern != '|') pattern++;
        if (!*pattern++) return false;
    }
}
DT__INSIDE uint32_t dt__name_hash(const char *a, size_t na, const char *b)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < na; i++) h = (h ^ (unsigned char)a[i]) * 16777619u;
    for (; *b; b++) h = (h ^ (unsigned char)*b) * 16777619u;
    return h;
}
DT__INSIDE char *dt__joined(const char *a, size_t na, const char *b, const char *c)
{
    size_t nb = strlen(b), nc = c ? strlen(c) + 1 : 0;
    char  *s = (char *)dt_mem_alloc(na + nb + nc + 1);
    if (!s) {
        dt_fail(DT_ERR_MEMORY, "dt: out of memory for a name");
        return NULL;
    }
    memcpy(s, a, na);
    memcpy(s + na, b, nb);
    if (c) {
        s[na + nb] = '.';
        memcpy(s + na + nb + 1, c, nc - 1);
    }
    s[na + nb + nc] = 0;
    return s;
}
/* A hash table of names with open addressing, at most half full. */
static int dt__table_find(const dt__slot *table, int slots, uint32_t hash, const char *a, size_t na, const char *b)
{
    for (uint32_t i = hash; slots; i++) {
        const dt__slot *t = &table[i & (uint32_t)(slots - 1)];
        if (!t->name) return -1;
        if (t->hash == hash && !strncmp(t->name, a, na) && !strcmp(t->name + na, b)) return t->index;
    }
    return -1;
}
static void dt__table_put(dt__slot *table, int slots, const char *name, uint32_t hash, int index)
{
    uint32_t i = hash;
    while (table[i & (uint32_t)(slots - 1)].name) i++;
    dt__slot *t = &table[i & (uint32_t)(slots - 1)];
    t->name = name;
    t->hash = hash;
    t->index = index;
}
DT__INSIDE int dt__table_add(dt__slot **table, int *slots, const char *name, uint32_t hash, int index)
{
    if ((index + 1) * 2 > *slots) {
        int       more = *slots ? *slots * 2 : 64;
        dt__slot *t = (dt__slot *)dt__alloc_zero((size_t)more * sizeof *t);
        if (!t) return dt_fail(DT_ERR_MEMORY, "dt: out of memory for a table of names");
        for (int i = 0; i < *slots; i++) {
            const dt__slot *o = &(*table)[i];
            if (o->name) dt__table_put(t, more, o->name, o->hash, o->index);
        }
        dt_mem_free(*table, (size_t)*slots * sizeof *t);
        *table = t;
        *slots = more;
    }
    dt__table_put(*table, *slots, name, hash, index);
    return 0;
}

/* ---- the other ranks */
DT__INSIDE void dt__watch_add(dt_model *m, dt__watch *w)
{
    dt__watch **at = &m->watch;
    while (*at) at = &(*at)->next;
    w->next = NULL;
    *at = w;
}
DT__INSIDE void dt__watch_remove(dt_model *m, dt__watch *w)
{
    for (dt__watch **at = &m->watch; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
}
DT__INSIDE dt__watch *dt__watch_find(const dt_model *m, const void *user)
{
    dt__watch *w = m->watch;
    while (w && w->user != user) w = w->next;
    return w;
}
DT__INSIDE const char *dt__watch_taken(const dt_model *m)
{
    if (m->reader) return "is a reader, which only computes";
    if (!m->watch) return NULL;
    switch (m->watch->kind) {
    case DT__WATCH_DDP: return "has a ddp already";
    case DT__WATCH_STORE: return "is on a parameter server already";
    case DT__WATCH_PIPE: return "has a pipeline already";
    case DT__WATCH_SPLIT: return "is split over ranks already";
    }
    return "is used by other ranks already";
}
DT__INSIDE void dt__watch_tell(dt_model *m)
{
    for (dt__watch *w = m->watch; w; w = w->next)
        if (w->tell) w->tell(w->user);
}
DT__INSIDE int dt__watch_made(dt_model *m, dt__param *p)
{
    int rc = 0;
    for (dt__watch *w = m->watch; w && !rc; w = w->next)
        if (w->made) rc = w->made(w->user, p);
    return rc;
}
static dt_tensor *dt__watch_grads(dt_model *m, dt_device *dev, int dtype, int64_t n)
{
    dt_tensor *t = NULL;
    for (dt__watch *w = m->watch; w && !t && dt__err.code == DT_OK; w = w->next)
        if (w->grads) t = w->grads(w->user, dev, dtype, n);
    return t;
}
static dt__norm_sync *dt__watch_norm(const dt_model *m)
{
    dt__watch *w = m->watch;
    while (w && !w->norm) w = w->next;
    return w ? w->norm : NULL;
}
DT__INSIDE int dt__watch_agree(dt_model *m, const char *call, int64_t *x, int n)
{
    int rc = 0;
    for (dt__watch *w = m->watch; w && !rc; w = w->next)
        if (w->agree) rc = w->agree(w->user, call, x, n);
    return rc;
}
static int dt__watch_same(dt_model *m, const char *call, const char *what, int64_t x)
{
    int rc = 0;
    for (dt__watch *w = m->watch; w && !rc; w = w->next)
        if (w->same) rc = w->same(w->user, call, what, x);
    return rc;
}
static bool dt__watch_lead(dt_model *m)
{
    bool lead = true;
    for (dt__watch *w = m->watch; w; w = w->next)
        if (w->lead && !w->lead(w->user)) lead = false;
    return lead;
}
static void dt__watch_outcome(dt_model *m, const char *call)
{
    for (dt__watch *w = m->watch; w; w = w->next)
        if (w->outcome) w->outcome(w->user, call);
}
static bool dt__watch_fetches(const dt_model *m) /* do other ranks have values of this model that this rank does not have? */
{
    const dt__watch *w = m->watch;
    while (w && !w->fetch) w = w->next;
    return w != NULL;
}
static dt_tensor *dt__watch_fetch(dt_model *m, const char *call, dt_tensor *t)
{
    dt_tensor *y = NULL;
    for (dt__watch *w = m->watch; w && !y && dt__err.code == DT_OK; w = w->next)
        if (w->fetch) y = w->fetch(w->user, call, t);
    return y;
}
static bool dt__watch_norms(const dt_model *m) /* do other ranks have gradients that belong to the norm? */
{
    const dt__watch *w = m->watch;
    while (w && !w->whole_norm) w = w->next;
    return w != NULL;
}
static int dt__watch_whole_norm(dt_model *m, float *norm)
{
    int rc = 0;
    for (dt__watch *w = m->watch; w && !rc; w = w->next)
        if (w->whole_norm) rc = w->whole_norm(w->user, norm);
    return rc;
}

/* ---- the model itself */
DT_API dt_model *dt_model_new_with(dt_model_opts o)
{
    if (dt__err.code != DT_OK) return NULL;
    if (!dt__is_float(o.dtype)) {
        dt_fail(DT_ERR_DTYPE, "dt_model_new: .dtype is %s; it must be f32, f16 or bf16", dt_dtype_name(o.dtype));
        return NULL;
    }
    dt_model *m = (dt_model *)dt__alloc_zero(sizeof *m);
    if (!m) {
        dt_fail(DT_ERR_MEMORY, "dt_model_new: out of memory");
        return NULL;
    }
    m->device = o.device ? o.device : dt_default_device();
    m->dtype = o.dtype;
    m->training = 1;
    m->hook = -1;
    dt_rng_seed(&m->rng, o.seed);
    return m;
}
/* Models that a backward will seal, of all threads. A thread that has one has a hook, which looks for its models here: any
   number of models share it, and a model may be freed, or used, on another thread. */
static struct {
    pthread_mutex_t lock; /* protects the rest */
    dt_model       *first;
    uint64_t        models;
} dt__unsealed = { PTHREAD_MUTEX_INITIALIZER, NULL, 0 };

static uint64_t dt__thread_number(void) /* the same for no other thread */
{
    static uint64_t threads;
    if (!(dt__tls.generation >> DT__GENERATION_BITS))
        dt__tls.generation |= __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED) << DT__GENERATION_BITS;
    return dt__tls.generation >> DT__GENERATION_BITS;
}
/* The model of this thread with the lowest serial above this one; NULL: it has no other. The list has the newest first. */
static dt_model *dt__hooked_model(uint64_t above)
{
    uint64_t  me = dt__thread_number();
    dt_model *found = NULL;
    pthread_mutex_lock(&dt__unsealed.lock);
    for (dt_model *m = dt__unsealed.first; m && m->serial > above; m = m->next_unsealed)
        if (m->hook_thread == me) found = m;
    pthread_mutex_unlock(&dt__unsealed.lock);
    return found;
}
static void dt__model_unhook(dt_model *m)
{
    if (m->hook < 0) return;
    pthread_mutex_lock(&dt__unsealed.lock);
    for (dt_model **at = &dt__unsealed.first; *at; at = &(*at)->next_unsealed)
        if (*at == m) {
            *at = m->next_unsealed;
            break;
        }
    pthread_mutex_unlock(&dt__unsealed.lock);
    m->hook = -1;
}
static void dt__mblock_free(dt__mblock *b)
{
    dt_block_free(&b->b);
    dt__unref(b->master);
    dt__unref(b->mgrad);
    dt__unref(b->mwhole);
    for (int k = 0; k < DT__MAX_STATES; k++) dt__unref(b->state[k]);
    dt_mem_free(b->range, (size_t)b->nranges * sizeof *b->range);
}
typedef struct dt__sharers { /* a model and its readers */
    int refs, readers;       /* atomic */
} dt__sharers;
static void dt__sharers_leave(dt__sharers *s, bool reader)
{
    if (s && reader) __atomic_sub_fetch(&s->readers, 1, __ATOMIC_RELEASE);
    if (s && __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) == 0) dt_mem_free(s, sizeof *s);
}
static void dt__own_free(dt__param *p)
{
    for (int k = 0; k < DT__MAX_STATES; k++) {
        dt__unref(p->own[k]);
        p->own[k] = NULL;
    }
}
static bool dt__own_any(const dt__param *p)
{
    for (int k = 0; k < DT__MAX_STATES; k++)
        if (p->own[k]) return true;
    return false;
}
static void dt__optimizer_orphan(dt_optimizer *opt);
static void dt__model_drop_loads(dt_model *m);
DT_API void dt_model_free(dt_model *m)
{
    dt__log_unread();
    if (!m) return;
    if (m->timed == DT__TIMED) dt__profile_end(m->profile);
    for (dt__watch *w = m->watch; w; w = w->next)
        if (w->gone) w->gone(w->user);
    dt__model_unhook(m);
    dt__model_drop_loads(m);
    dt__sharers_leave(m->sharers, m->reader);
    for (int i = 0; i < m->nopts; i++) dt__optimizer_orphan(m->opt[i]);
    for (int i = 0; i < m->nparams; i++) {
        dt__unref(m->param[i]->t);
        dt__unref(m->param[i]->init);
        dt__own_free(m->param[i]);
        dt_mem_free(m->param[i]->first_rng, sizeof m->rng);
        dt__free_text(m->param[i]->name);
        dt_mem_free(m->param[i], sizeof *m->param[i]);
    }
    for (int i = 0; i < m->nblocks; i++) dt__mblock_free(&m->block[i]);
    dt_mem_free(m->block, (size_t)m->block_cap * sizeof *m->block);
    dt_mem_free(m->order, (size_t)m->norder * sizeof *m->order);
    dt_mem_free(m->param, (size_t)m->param_cap * sizeof *m->param);
    for (int i = 0; i < m->nlayers; i++) {
        dt__free_text(m->layer[i]->name);
        if (m->layer[i]->p != m->layer[i]->few) dt_mem_free(m->layer[i]->p, (size_t)m->layer[i]->np * sizeof *m->layer[i]->p);
        dt_mem_free(m->layer[i], sizeof *m->layer[i]);
    }
    dt_mem_free(m->layer, (size_t)m->layer_cap * sizeof *m->layer);
    dt_mem_free(m->param_table, (size_t)m->param_slots * sizeof *m->param_table);
    dt_mem_free(m->layer_table, (size_t)m->layer_slots * sizeof *m->layer_table);
    for (int i = 0; i < m->nfrozen; i++) dt__free_text(m->frozen[i].pattern);
    dt_mem_free(m->frozen, (size_t)m->frozen_cap * sizeof *m->frozen);
    for (int64_t i = 0; i < m->on_seal.n; i++) dt_mem_free(m->on_seal.at[i], sizeof(dt__on_seal));
    dt__list_free(&m->on_seal);
    dt_mem_free(m, sizeof *m);
}
DT__INSIDE bool dt__model_own(const char *call, const dt_model *m)
{
    if (!dt__model_ok(call, m)) return false;
    int readers = m->sharers ? __atomic_load_n(&m->sharers->readers, __ATOMIC_ACQUIRE) : 0;
    if (m->reader)
        dt_fail(DT_ERR_STATE, "%s: the model is a reader, which has the parameters of another model and only computes; call it for "
                "that model", call);
    else if (readers)
        dt_fail(DT_ERR_STATE, "%s: other threads may be computing with the model through %d reader%s; free them first "
                "(dt_model_free)", call, readers, readers > 1 ? "s" : "");
    return dt__err.code == DT_OK;
}
static bool dt__model_enter(const char *call, dt_model *m) /* true: until dt__model_leave no other thread enters */
{
    if (!__atomic_exchange_n(&m->inside, 1, __ATOMIC_ACQUIRE)) return true;
    dt_fail(DT_ERR_STATE, "%s: another call uses the model at this moment; it is used by one thread at a time, and each thread that "
            "only computes has a reader (dt_model_reader)", call);
    return false;
}
static void dt__model_leave(dt_model *m) { __atomic_store_n(&m->inside, 0, __ATOMIC_RELEASE); }
DT__INSIDE bool dt__model_ok(const char *call, const dt_model *m)
{
    if (dt__err.code != DT_OK) return false;
    if (m) return true;
    dt_fail(DT_ERR_ARG, "%s: the model is NULL", call);
    return false;
}
DT_API dt_status dt_scope_begin(dt_model *m, const char *format, ...)
{
    if (!dt__model_ok("dt_scope_begin", m)) return dt_error_code();
    if (!format || m->scope_depth >= DT__MAX_SCOPES)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_scope_begin: '%s': %d scopes are open, at most %d can be; call "
                                  "dt_scope_end() for each", format ? format : "(null)", m->scope_depth, DT__MAX_SCOPES);
    va_list ap;
    va_start(ap, format);
    int room = DT__MAX_SCOPE - m->scope_len, n = vsnprintf(m->scope + m->scope_len, (size_t)room, format, ap);
    va_end(ap);
    if (n <= 0 || n + 2 > room) {
        m->scope[m->scope_len] = 0;
        return (dt_status)dt_fail(DT_ERR_ARG, n <= 0 ? "dt_scope_begin: a scope needs a name; this one is empty (inside '%s')"
                                  : "dt_scope_begin: the names of nested scopes are too long (inside '%s')", m->scope);
    }
    m->scope_at[m->scope_depth++] = m->scope_len;
    m->scope_len += n;
    m->scope[m->scope_len++] = '.';
    m->scope[m->scope_len] = 0;
    return DT_OK;
}
DT_API void dt_scope_end(dt_model *m)
{
    if (!m) return;
    if (!m->scope_depth) {
        if (dt__err.code == DT_OK) dt_fail(DT_ERR_STATE, "dt_scope_end: without a dt_scope_begin: no scope is open");
        return;
    }
    m->scope_len = m->scope_at[--m->scope_depth];
    m->scope[m->scope_len] = 0;
}
/* A scope that an earlier forward left open is an error, and closed. A forward ends with its backward or dt_end. */
static bool dt__places_ok(const char *call, dt_model *m)
{
    dt__thread_number(); /* before the first stamp, because it changes the generation */
    if (!m->nplaces || m->place_stamp == dt__tls.generation) return true;
    dt_fail(DT_ERR_STATE, "%s: an earlier forward has begun a device scope of %s and not ended it; each dt_device_begin() "
            "needs a dt_device_end() before the backward or dt_end()", call, m->place[m->nplaces - 1]->name);
    m->nplaces = 0;
    return false;
}
DT_API dt_status dt_device_begin(dt_model *m, dt_device *dev)
{
    if (!dt__model_ok("dt_device_begin", m) || !dt__places_ok("dt_device_begin", m)) return dt_error_code();
    if (!dev)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_device_begin: the device is NULL; pass dt_cpu(), dt_cuda(i) or another one");
    if (m->nplaces >= DT__MAX_SCOPES)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_device_begin: %d device scopes are open, which is the maximum; call "
                                  "dt_device_end() for each", m->nplaces);
    if (m->parts)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_device_begin: %s: the model has a pipeline, in which a rank uses one "
                                  "device; leave out the device scopes, and make the model of each rank on its own device",
                                  dev->name);
    if (!m->nplaces) m->place_stamp = dt__tls.generation;
    m->place[m->nplaces++] = dev;
    return DT_OK;
}
DT_API void dt_device_end(dt_model *m)
{
    if (!m) return;
    if (dt__err.code == DT_OK && !dt__places_ok("dt_device_end", m)) return;
    if (m->nplaces) m->nplaces--;
    else if (dt__err.code == DT_OK) dt_fail(DT_ERR_STATE, "dt_device_end: without a dt_device_begin: no device scope is open");
}
DT__INSIDE int dt__place_of(const char *call, dt__places *l, dt_device *dev)
{
    for (int i = 0; i < l->n; i++)
        if (l->dev[i] == dev) return i;
    if (l->n == DT__MAX_PLACES)
        return dt_fail(DT_ERR_STATE, "%s: the model is on more than %d devices, which is the maximum", call, DT__MAX_PLACES);
    l->dev[l->n] = dev;
    return l->n++;
}
DT__INSIDE int dt__model_one_device(const char *call, const dt_model *m, const char *needs)
{
    for (int i = 1; i < m->nparams; i++) {
        const dt__param *a = m->param[0], *b = m->param[i];
        if (a->t->st->dev != b->t->st->dev)
            return dt_fail(DT_ERR_STATE, "%s: the model is on several devices ('%s' on %s, '%s' on %s); %s", call, a->name,
                           a->t->st->dev->name, b->name, b->t->st->dev->name, needs);
    }
    return 0;
}
DT_API void dt_forward_begin(dt_model *m)
{
    if (m) m->forwards++;
}
DT_API dt_tensor *dt_stage(dt_model *m, const char *name, dt_tensor *x)
{
    if (!dt__model_ok("dt_stage", m)) return NULL;
    if (!name || !*name) {
        dt_fail(DT_ERR_ARG, "dt_stage: the name is %s; a stage needs a name", name ? "empty" : "NULL");
        return NULL;
    }
    return m->parts ? m->parts->stage(m->parts->user, name, x) : x;
}
/* A second handle on a parameter of another model: the same memory, no gradient. Its name, flags and place in the list are equal. */
static int dt__reader_param(dt_model *r, const dt__param *of)
{
    dt__param  *p = (dt__param *)dt__alloc_zero(sizeof *p);
    dt__param **list = p ? (dt__param **)dt__enlarge(r->param, r->nparams, &r->param_cap, sizeof *list) : NULL;
    if (list) {
        r->param = list;
        p->name = dt__joined("", 0, of->name, NULL);
        p->t = dt__alias(of->t);
    }
    if (!list || !p->name || !p->t || dt__table_add(&r->param_table, &r->param_slots, p->name, of->hash, r->nparams)) {
        if (p) dt__unref(p->t);
        if (p) dt__free_text(p->name);
        dt_mem_free(p, sizeof *p);
        return dt_fail(DT_ERR_MEMORY, "dt_model_reader: out of memory");
    }
    p->hash = of->hash;
    p->buffer = of->buffer;
    p->frozen = of->frozen;
    p->keep_f32 = of->keep_f32;
    p->block = p->opt = p->group = -1;
    r->param[r->nparams++] = p;
    return 0;
}
static int dt__reader_layer(dt_model *r, const dt_model *m, const dt__layer *of)
{
    dt__layer *l = dt__layer_new(r, of->kind, of->name, dt__name_hash("", 0, of->name));
    if (!l || dt__layer_room(l, of->np)) return DT_ERR_MEMORY;
    for (int k = 0; k < of->np; k++) {
        int at = of->p[k] ? dt__table_find(m->param_table, m->param_slots, of->p[k]->hash, "", 0, of->p[k]->name) : -1;
        l->p[k] = at >= 0 ? r->param[at] : NULL;
    }
    return 0;
}
DT_API dt_model *dt_model_reader(dt_model *m)
{
    const char *call = "dt_model_reader", *bad = NULL;
    if (!dt__model_ok(call, m)) return NULL;
    if (m->reader) bad = "it is a reader itself; make all readers of the model that has the parameters";
    else if (!m->sealed) bad = "it is not sealed; run its forward once and call dt_model_seal";
    else if (m->training) bad = "it is in training mode, in which a forward changes it; call dt_model_eval";
    else if (m->shards || m->parts || m->axis || m->lost) bad = "this rank does not have it whole (.shard, a pipeline or .split)";
    if (bad) {
        dt_fail(DT_ERR_STATE, "%s: the model cannot have a reader: %s", call, bad);
        return NULL;
    }
    if (!m->sharers) {
        m->sharers = (dt__sharers *)dt__alloc_zero(sizeof *m->sharers);
        if (m->sharers) m->sharers->refs = 1;
    }
    dt_model *r = m->sharers ? (dt_model *)dt__alloc_zero(sizeof *r) : NULL;
    if (!r) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    r->device = m->device;
    r->dtype = m->dtype;
    r->norms_f32 = m->norms_f32;
    r->rng = m->rng;
    r->hook = -1;
    r->timed = DT__TIMED_NEVER;
    r->amp = m->amp;
    r->reader = 1;
    r->sharers = m->sharers;
    __atomic_add_fetch(&m->sharers->refs, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&m->sharers->readers, 1, __ATOMIC_RELAXED);
    int rc = 0;
    for (int i = 0; i < m->nparams && !rc; i++) rc = dt__reader_param(r, m->param[i]);
    for (int i = 0; i < m->nlayers && !rc; i++) rc = dt__reader_layer(r, m, m->layer[i]);
    r->sealed = 1;
    if (!rc) return r;
    dt_model_free(r);
    return NULL;
}
DT_API void dt_model_train(dt_model *m)
{
    if (m && (m->training || (!m->reader && !m->sharers) || dt__model_own("dt_model_train", m))) m->training = 1;
}
DT_API void dt_model_eval(dt_model *m)
{
    if (m) m->training = 0;
}
DT_API bool       dt_model_is_training(const dt_model *m) { return m && m->training; }
DT_API bool       dt_model_is_sealed(const dt_model *m) { return m && m->sealed; }
DT_API dt_rng    *dt_model_rng(dt_model *m) { return m ? &m->rng : NULL; }
DT_API dt_device *dt_model_device(const dt_model *m) { return m ? dt__model_here(m) : NULL; }
DT_API int        dt_model_count(const dt_model *m) { return m ? m->nparams : 0; }
DT_API bool       dt_model_get(dt_model *m, int i, dt_parameter_info *out)
{
    if (!m || !out || i < 0 || i >= m->nparams) return false;
    out->name = m->param[i]->name;
    out->value = m->param[i]->t;
    out->buffer = m->param[i]->buffer;
    out->frozen = m->param[i]->frozen;
    return true;
}
static dt__param *dt__model_param(dt_model *m, const char *name)
{
    int k = dt__table_find(m->param_table, m->param_slots, dt__name_hash("", 0, name), "", 0, name);
    return k < 0 ? NULL : m->param[k];
}
DT_API dt_tensor *dt_model_find(dt_model *m, const char *name)
{
    dt__param *p = m && name ? dt__model_param(m, name) : NULL;
    return p ? p->t : NULL;
}
static int64_t dt__param_numel(const dt__param *p) { return p->t->numel * (p->cut.parts ? p->cut.parts : 1); }
DT_API int64_t dt_model_numel(const dt_model *m, bool trainable_only)
{
    int64_t n = 0;
    for (int i = 0; m && i < m->nparams; i++)
        if (!m->param[i]->buffer && !(trainable_only && m->param[i]->frozen)) n += dt__param_numel(m->param[i]);
    return n;
}

/* ---- one parameter */
static bool dt__is_frozen(const dt_model *m, const char *name)
{
    for (int i = m->nfrozen - 1; i >= 0; i--)
        if (dt_name_matches(m->frozen[i].pattern, name)) return m->frozen[i].on;
    return false;
}
static int dt__param_dtype(const dt_model *m, const dt__param *p)
{
    return p->keep_f32 && m->norms_f32 ? DT_F32 : m->dtype;
}
/* Gives the tensor p->t new memory of another dtype or device. The handle stays: all holders see the change. */
static int dt__param_convert(dt__param *p, int dtype, dt_device *dev)
{
    dt_tensor *t = p->t;
    if (t->st->dev == dev && (t->dtype == dtype || !dt__is_float(t->dtype))) return 0;
    dt_tensor *here = t->st->dev == dev ? dt__ref(t) : dt__cross("dt_model_to", t, dev);
    dt_tensor *y = here ? dt__new("dt_model", dev, dt__is_float(t->dtype) ? dtype : t->dtype, t->shape, t->ndim,
                                  DT_LAYOUT_PLAIN) : NULL;
    int rc = y ? dt__copy_to(y, here, 0) : DT_ERR_MEMORY;
    dt__unref(here);
    if (!rc) {
        dt__storage *st = t->st;
        t->st = y->st;
        y->st = st;
        t->dtype = y->dtype;
        t->offset = 0;
        memcpy(t->stride, y->stride, sizeof t->stride);
        dt__unref(t->grad);
        t->grad = NULL;
        t->grad_state = DT__GRAD_SET;
    }
    dt__unref(y);
    return rc;
}
/* Converts a parameter to the model's dtype, on the device dev. If it will have a master weight, the f32 value before
   rounding is kept in p->init until the seal. */
static int dt__param_to_model(dt_model *m, dt__param *p, dt_device *dev)
{
    int dtype = dt__param_dtype(m, p), rc = 0;
    if (p->buffer && !p->keep_f32) return 0;
    if (m->masters && !p->buffer && p->t->dtype == DT_F32 && dtype != DT_F32 && !p->init) {
        p->init = dt__new_like("dt_model", p->t, DT_F32);
        rc = p->init ? dt__copy_to(p->init, p->t, 0) : DT_ERR_MEMORY;
    }
    if (!rc && p->init && p->init->st->dev != dev) {
        dt_tensor *here = dt__cross("dt_model_to", p->init, dev);
        rc = here ? 0 : dt_error_code();
        dt__unref(here ? p->init : NULL);
        if (here) p->init = here;
    }
    return rc ? rc : dt__param_convert(p, dtype, dev);
}
DT__INSIDE dt__fillspec dt__fill_with(dt_init init, double a, double b)
{
    dt__fillspec f;
    memset(&f, 0, sizeof f);
    f.init = init;
    f.a = a;
    f.b = b;
    return f;
}
/* ---- parts of tensors */
static dt_shape dt__cut_shape(dt_shape whole, const dt__portion *cut)
{
    if (cut->parts) whole.dim[cut->dim] /= cut->parts;
    return whole;
}
DT__INSIDE dt_shape dt__param_shape(const dt__param *p)
{
    dt_shape s = dt_shape_of(p->t);
    if (p->cut.parts) s.dim[p->cut.dim] *= p->cut.parts;
    return s;
}
/* Copies between a whole tensor and the piece `part` of it. */
static int dt__cut_copy(dt_tensor *whole, dt_tensor *piece, const dt__portion *cut, int part, bool take)
{
    int64_t n = piece->shape[cut->dim] / cut->groups;
    int     rc = 0;
    for (int g = 0; g < cut->groups && !rc; g++) {
        dt_tensor *a = dt__slice(whole, cut->dim, (g * cut->parts + part) * n, n), *b = a ? dt__slice(piece, cut->dim, g * n, n) : NULL;
        rc = !b ? DT_ERR_MEMORY : take ? dt__copy_to(b, a, 0) : dt__copy_to(a, b, 0);
        dt__unref(a);
        dt__unref(b);
    }
    return rc;
}
static dt_tensor *dt__cut_take(const char *call, dt_tensor *whole, const dt__portion *cut) /* this rank's part; the caller owns it */
{
    dt_shape   s = dt__cut_shape(dt_shape_of(whole), cut);
    dt_tensor *y = dt__new(call, whole->st->dev, whole->dtype, s.dim, s.ndim, DT_LAYOUT_PLAIN);
    if (!y || dt__is_ghost(y) || !dt__cut_copy(whole, y, cut, cut->part, true)) return y;
    dt__unref(y);
    return NULL;
}
DT__INSIDE dt_tensor *dt__cut_whole(dt_model *m, const char *call, dt_tensor *t, const dt__portion *cut)
{
    dt_shape    s = dt_shape_of(t);
    dt_shape    all = dt_shape_of(t);
    const bool  ghost = dt__is_ghost(t), lead = !ghost && m->axis && m->axis->rank == 0;
    s.dim[cut->dim] *= cut->parts;
    dt_tensor *y = dt__new(call, lead ? dt_cpu() : dt__ghost_device(), t->dtype, s.dim, s.ndim, DT_LAYOUT_PLAIN);
    if (!y || ghost) return y;
    if (!m->axis) {
        dt_fail(DT_ERR_STATE, "%s: the model was split over ranks, which are gone; save before dt_tensor_parallel_free", call);
        dt__unref(y);
        return NULL;
    }
    memmove(all.dim + 1, all.dim, (DT_MAX_DIMS - 1) * sizeof *all.dim);
    all.dim[0] = cut->parts;
    all.ndim++;
    dt_tensor *d = dt__dense(call, t), *each = NULL, *here = NULL;
    if (all.ndim > DT_MAX_DIMS) { /* as rows */
        all.ndim = 2;
        all.dim[1] = t->numel;
    }
    if (d) each = dt__new(call, t->st->dev, t->dtype, all.dim, all.ndim, DT_LAYOUT_PLAIN);
    int rc = !each ? DT_ERR_MEMORY : t->numel ? m->axis->gather(m->axis->user, call, each, d) : 0;
    if (!rc && lead) {
        here = each->st->dev == dt_cpu() ? dt__ref(each) : dt__cross(call, each, dt_cpu());
        for (int r = 0; r < cut->parts && !rc; r++) {
            dt_tensor *piece = here ? dt__slice(here, 0, r, 1) : NULL;
            if (piece) {
                piece->ndim = t->ndim;
                memcpy(piece->shape, t->shape, sizeof piece->shape);
                dt__dense_strides(piece->stride, piece->shape, piece->ndim);
            }
            rc = piece ? dt__cut_copy(y, piece, cut, r, false) : DT_ERR_MEMORY;
            dt__unref(piece);
        }
    }
    dt__unref(here);
    dt__unref(each);
    dt__unref(d);
    if (!rc) return y;
    dt__unref(y);
    return NULL;
}
static dt_tensor *dt__param_init(dt_model *m, dt_shape shape, int dtype, dt__fillspec f) /* the caller owns it */
{
    dt_make_opts o;
    o.dt__first = 0;
    o.dtype = (dt_dtype)dtype;
    o.device = dt__model_here(m);
    o.rng = &m->rng;
    dt_tensor *t = f.init == DT_INIT_UNIFORM  ? dt_uniform_with(f.a, f.b, shape, o)
                   : f.init == DT_INIT_NORMAL ? dt_normal_with(f.a, f.b, shape, o)
                                              : dt_full_with(f.init == DT_INIT_CONST ? f.a : 0, shape, o);
    if (t && f.zero_row) {
        dt_tensor *row = dt__slice(t, 0, f.zero_row - 1, 1);
        int        rc = row ? dt__fill(row, 0) : DT_ERR_MEMORY;
        dt__unref(row);
        if (rc) return NULL;
    }
    return t ? dt_keep(t) : NULL;
}
/* Makes p->t with its first values. If a loaded file has them, no random numbers are drawn. shape: of the whole parameter. */
static int dt__param_fill(dt_model *m, dt__param *p, dt_shape shape)
{
    int          known = 0;
    dt__portion      cut = p->cut;
    dt__fillspec zero = dt__fill_with(DT_INIT_ZEROS, 0, 0), f = dt__fill_with((dt_init)p->first, p->first_a, p->first_b);
    f.zero_row = p->first_zero;
    p->cut.parts = 0; /* what is drawn or loaded is the whole */
    if (m->want) {
        p->t = dt__param_init(m, shape, p->first_dtype, zero);
        known = p->t ? m->want(m, m->want_user, p) : DT_ERR_MEMORY;
        if (known < 0) return known;
    }
    if (known <= 0) {
        dt__unref(p->t);
        p->t = dt__param_init(m, shape, p->first_dtype, f);
        if (!p->t) return DT_ERR_MEMORY;
    }
    p->cut = cut;
    if (cut.parts) {
        dt_tensor *whole = p->t;
        p->t = dt__cut_take("dt_model", whole, &cut);
        dt__unref(whole);
        if (!p->t) return DT_ERR_MEMORY;
    }
    return dt__param_to_model(m, p, dt__model_here(m));
}
/* The same again on another device, with the same random numbers. The handle stays: all holders see the change. */
DT__INSIDE int dt__param_refill(dt_model *m, dt__param *p, dt_device *dev)
{
    dt_tensor *t = p->t;
    dt_device *before = m->device;
    dt_rng     rng = m->rng;
    dt_shape   shape = dt__param_shape(p);
    dt__unref(p->init);
    p->init = p->t = NULL;
    m->device = dev;
    if (p->first_rng) m->rng = *p->first_rng;
    int rc = dt__param_fill(m, p, shape);
    m->device = before;
    m->rng = rng;
    if (!rc) {
        dt__storage *st = t->st;
        t->st = p->t->st;
        p->t->st = st;
        t->dtype = p->t->dtype;
        t->offset = 0;
        t->st->version = 0;
        memcpy(t->stride, p->t->stride, sizeof t->stride);
    }
    dt__unref(p->t);
    p->t = t;
    return rc ? rc : dt__watch_made(m, p);
}
/* Creates the parameter 'name.suffix'. */
static dt__param *dt__param_new(dt_model *m, const char *name, const char *suffix, dt_shape shape, dt__fillspec f,
                                int flags)
{
    dt__param  *p = (dt__param *)dt__alloc_zero(sizeof *p);
    dt__param **list = p ? (dt__param **)dt__enlarge(m->param, m->nparams, &m->param_cap, sizeof *list) : NULL;
    if (!list) {
        dt_mem_free(p, sizeof *p);
        dt_fail(DT_ERR_MEMORY, "dt: out of memory for a parameter");
        return NULL;
    }
    m->param = list;
    p->name = dt__joined("", 0, name, suffix);
    p->hash = p->name ? dt__name_hash("", 0, p->name) : 0;
    p->buffer = (flags & DT__BUFFER) != 0;
    p->keep_f32 = (flags & DT__KEEP_F32) != 0;
    p->block = p->opt = p->group = -1;
    p->cut = f.cut;
    p->first = (int)f.init;
    p->first_a = f.a;
    p->first_b = f.b;
    p->first_zero = f.zero_row;
    p->first_dtype = flags & DT__COUNTER ? DT_I64 : DT_F32;
    int rc = p->name ? 0 : DT_ERR_MEMORY;
    if (!rc && m->parts) {
        p->first_rng = (dt_rng *)dt_mem_alloc(sizeof m->rng);
        if (p->first_rng) *p->first_rng = m->rng;
        else rc = dt_fail(DT_ERR_MEMORY, "dt: out of memory for a parameter");
    }
    if (!rc && dt__model_param(m, p->name))
        rc = dt_fail(DT_ERR_STATE, "dt: the name '%s' belongs to another layer; choose another name for one of them", p->name);
    if (!rc) rc = dt__param_fill(m, p, shape);
    if (!rc) {
        p->t->st->version = 0; /* no op has used it yet */
        p->frozen = !p->buffer && dt__is_frozen(m, p->name);
        p->t->leaf = !p->buffer;
        p->t->requires_grad = !p->buffer && !p->frozen;
        m->param[m->nparams] = p;
        rc = dt__table_add(&m->param_table, &m->param_slots, p->name, p->hash, m->nparams);
        if (!rc) m->nparams++;
    }
    if (!rc && dt__watch_made(m, p)) return NULL;
    if (!rc) return p;
    dt__unref(p->t);
    dt__unref(p->init);
    dt_mem_free(p->first_rng, sizeof m->rng);
    dt__free_text(p->name);
    dt_mem_free(p, sizeof *p);
    return NULL;
}

/* ---- the seal */
static void dt__seal_hook(void *user)
{
    uint64_t serial = 0;
    (void)user;
    for (dt_model *m; (m = dt__hooked_model(serial)) != NULL;) {
        serial = m->serial;
        for (int i = 0; i < m->nparams; i++)
            if (dt_grad_pending(m->param[i]->t)) {
                dt_model_seal(m);
                break;
            }
    }
}
static int dt__model_hook(dt_model *m) /* so that the first backward of this thread seals the model */
{
    dt__ctx *t = &dt__tls;
    if (m->hook >= 0 && m->hook_thread == dt__thread_number()) return 0;
    dt__model_unhook(m);
    int hook = 0;
    while (hook < DT__MAX_HOOKS && !(t->hook_used[hook] && t->hook[hook].begin == dt__seal_hook)) hook++;
    if (hook == DT__MAX_HOOKS) {
        dt_grad_hooks h;
        memset(&h, 0, sizeof h);
        h.begin = dt__seal_hook;
        hook = dt_grad_hooks_add(&h);
        if (hook < 0) return hook;
    }
    pthread_mutex_lock(&dt__unsealed.lock);
    m->serial = ++dt__unsealed.models;
    m->hook_thread = dt__thread_number();
    m->next_unsealed = dt__unsealed.first;
    dt__unsealed.first = m;
    pthread_mutex_unlock(&dt__unsealed.lock);
    m->hook = 0;
    return 0;
}
static void dt__model_claim(dt_model *m) /* each parameter belongs to the first optimiser whose pattern matches */
{
    for (int i = 0; i < m->nparams; i++) {
        dt__param *p = m->param[i];
        p->opt = p->group = -1;
        for (int k = 0; k < m->nopts && p->opt < 0 && !p->buffer; k++) {
            p->group = dt__optimizer_claims(m->opt[k], p->name);
            if (p->group >= 0) p->opt = k;
        }
    }
}
static bool dt__same_block(const dt__param *a, const dt__param *b)
{
    return a->t->dtype == b->t->dtype && a->opt == b->opt && a->group == b->group && a->t->st->dev == b->t->st->dev;
}
/* An f32 array for a block, whole or of this rank's ranges; not zero. */
static dt_tensor *dt__block_array(const dt_model *m, const char *call, const dt__mblock *b, bool state)
{
    if (b->cut && m->shards) return m->shards->array(m->shards->user, call, b->own, state);
    return dt__new(call, b->b.value->st->dev, DT_F32, b->cut ? &b->own : &b->numel, 1, DT_LAYOUT_PLAIN);
}
/* ---- arrays of which a rank has its ranges. What this rank has of elements lo .. hi - 1 of a block: the next piece, from *k on. */
typedef struct dt__piece {
    int64_t lo, n, at; /* elements lo .. lo + n - 1 of the block are at .. of the array */
} dt__piece;
static bool dt__piece_next(const dt__mblock *b, bool cut, int64_t lo, int64_t hi, int *k, dt__piece *p)
{
    if (!cut) {
        p->lo = p->at = lo;
        p->n = hi - lo;
        return (*k)++ == 0 && lo < hi;
    }
    for (; *k < b->nranges; ++*k) {
        const dt__range *g = &b->range[*k];
        p->lo = g->lo > lo ? g->lo : lo;
        p->n = (g->hi < hi ? g->hi : hi) - p->lo;
        p->at = g->at + (p->lo - g->lo);
        if (p->n > 0) return ++*k, true;
    }
    return false;
}
/* dst[dst_at ..] := src[src_at ..], n elements, both 1-d; also between devices */
static int dt__copy_range(dt_tensor *dst, int64_t dst_at, dt_tensor *src, int64_t src_at, int64_t n)
{
    dt_tensor *x = dt__slice(src, 0, src_at, n), *y = x ? dt__slice(dst, 0, dst_at, n) : NULL;
    dt_tensor *here = y && x->st->dev != y->st->dev ? dt__cross("dt_model", x, y->st->dev) : dt__ref(x);
    int        rc = y && here ? dt__copy_to(y, here, 0) : (int)DT_ERR_MEMORY;
    dt__unref(here);
    dt__unref(x);
    dt__unref(y);
    return rc;
}
static dt_tensor *dt__flat(dt_tensor *t) /* a dense tensor as 1-d; the caller owns it */
{
    dt_tensor *w = dt__alias(t);
    if (!w) return NULL;
    w->ndim = 1;
    w->shape[0] = t->numel;
    w->stride[0] = 1;
    return w;
}
/* What this rank has of elements from .. from + n - 1 of the block := src[0 .. n) (1-d) */
static int dt__pieces_set(const dt__mblock *b, dt_tensor *array, bool cut, int64_t from, int64_t n, dt_tensor *src)
{
    dt__piece p;
    int       rc = 0;
    for (int k = 0; !rc && dt__piece_next(b, cut, from, from + n, &k, &p);)
        rc = dt__copy_range(array, p.at, src, p.lo - from, p.n);
    return rc;
}
/* Elements from .. from + n - 1 of the array, also those that other ranks have: on the CPU, 1-d; the caller owns it. Collective if
   the array is cut. */
static dt_tensor *dt__pieces_whole(dt_model *m, const char *call, const dt__mblock *b, dt_tensor *array, bool cut, int64_t from,
                                   int64_t n)
{
    dt_tensor *t = dt__new(call, dt_cpu(), array->dtype, &n, 1, DT_LAYOUT_PLAIN);
    dt__piece  p;
    size_t     size = dt__dtype_size[array->dtype];
    if (!t) return NULL;
    memset(t->st->ptr, 0, (size_t)n * size);
    int rc = 0;
    for (int k = 0; !rc && dt__piece_next(b, cut, from, from + n, &k, &p);)
        rc = dt__copy_range(t, p.lo - from, array, p.at, p.n);
    if (cut && !m->shards) rc = dt_fail(DT_ERR_STATE, "%s: the ranks that have the rest of the model have gone", call);
    if (!rc && cut) rc = m->shards->merge(m->shards->user, call, t->st->ptr, (size_t)n * size);
    if (!rc) return t;
    dt__unref(t);
    return NULL;
}
/* Copies one f32 array of the old blocks into the new block nb. */
enum { DT__CARRY_MASTER = -1, DT__CARRY_MGRAD = -2, DT__CARRY_MWHOLE = -3 }; /* 'which'; 0 and above: that optimiser state */
static int dt__carry(dt_tensor **to, const dt__mblock *nb, dt_model *m, const dt__mblock *old, int which)
{
    int  rc = 0;
    bool whole = which == DT__CARRY_MWHOLE;
    for (int i = 0; i < nb->n && !rc; i++) {
        dt__param *p = m->order[nb->first + i];
        if (p->old_block < 0) continue;
        const dt__mblock *ob = &old[p->old_block];
        dt_tensor        *from = which == DT__CARRY_MASTER   ? ob->master
                                 : which == DT__CARRY_MGRAD  ? (ob->use_mgrad ? ob->mgrad : NULL)
                                 : which == DT__CARRY_MWHOLE ? (ob->use_mwhole ? ob->mwhole : NULL)
                                                             : ob->state[which];
        if (!from) continue;
        if (!*to) {
            *to = whole ? dt__new("dt_model", nb->b.value->st->dev, DT_F32, &nb->numel, 1, DT_LAYOUT_PLAIN)
                        : dt__block_array(m, "dt_model", nb, which >= 0);
            if (!*to || dt__fill(*to, 0)) return DT_ERR_MEMORY;
        }
        bool cut = ob->cut && !whole;
        dt_tensor *src = cut ? dt__pieces_whole(m, "dt_model", ob, from, true, p->old_offset, p->t->numel)
                             : dt__slice(from, 0, p->old_offset, p->t->numel);
        rc = src ? dt__pieces_set(nb, *to, nb->cut && !whole, p->offset, p->t->numel, src) : (int)DT_ERR_MEMORY;
        dt__unref(src);
    }
    return rc;
}
static int dt__block_master(dt_model *m, dt__mblock *nb, const dt__mblock *old)
{
    if (!m->masters || nb->b.value->dtype == DT_F32) return 0;
    nb->master = dt__block_array(m, "dt_model", nb, false);
    int rc = nb->master ? dt__pieces_set(nb, nb->master, nb->cut != 0, 0, nb->numel, nb->b.value) : (int)DT_ERR_MEMORY;
    if (!rc) rc = dt__carry(&nb->master, nb, m, old, DT__CARRY_MASTER);
    for (int i = 0; i < nb->n && !rc; i++) {
        dt__param *p = m->order[nb->first + i];
        if (!p->init) continue;
        dt_tensor *flat = dt__flat(p->init);
        rc = flat ? dt__pieces_set(nb, nb->master, nb->cut != 0, p->offset, p->t->numel, flat) : (int)DT_ERR_MEMORY;
        dt__unref(flat);
    }
    return rc;
}
static void dt__block_offsets(dt_model *m, dt__mblock *nb)
{
    nb->numel = 0;
    for (int i = 0; i < nb->n; i++) {
        dt__param *p = m->order[nb->first + i];
        p->block = (int)(nb - m->block);
        p->offset = dt__pack_next(nb->numel, p->t->dtype);
        nb->numel = p->offset + p->t->numel;
    }
}
static int dt__block_make(dt_model *m, dt__mblock *nb, const dt__mblock *old, dt_tensor **list)
{
    for (int i = 0; i < nb->n; i++) list[i] = m->order[nb->first + i]->t;
    dt_tensor *grads = dt__is_ghost(list[0]) ? NULL : dt__watch_grads(m, list[0]->st->dev, list[0]->dtype, nb->numel);
    int        rc = dt__pack(&nb->b, list, nb->n, grads);
    if (!rc) rc = dt__block_master(m, nb, old);
    for (int k = 0; k < DT__MAX_STATES && !rc; k++) rc = dt__carry(&nb->state[k], nb, m, old, k);
    if (!rc) {
        rc = dt__carry(&nb->mgrad, nb, m, old, DT__CARRY_MGRAD);
        nb->use_mgrad = nb->mgrad != NULL;
    }
    if (!rc) {
        rc = dt__carry(&nb->mwhole, nb, m, old, DT__CARRY_MWHOLE);
        nb->use_mwhole = nb->mwhole != NULL;
    }
    return !rc && m->shards ? m->shards->bind(m->shards->user, nb) : rc;
}
static void dt__model_order(dt_model *m) /* assigns parameters to blocks, the latest parameters first */
{
    m->nblocks = 0;
    int n = 0;
    for (int i = m->nparams - 1; i >= 0; i--) {
        dt__param *lead = m->param[i];
        lead->old_block = lead->block;
        lead->old_offset = lead->offset;
        lead->block = -1;
    }
    for (int i = m->nparams - 1; i >= 0; i--) {
        dt__param *lead = m->param[i];
        if (lead->buffer || lead->frozen || lead->block >= 0 || !lead->t->numel) continue;
        dt__mblock *b = &m->block[m->nblocks];
        memset(b, 0, sizeof *b);
        b->first = n;
        b->opt = lead->opt;
        b->group = lead->group;
        for (int k = i; k >= 0; k--) {
            dt__param *p = m->param[k];
            if (p->buffer || p->frozen || p->block >= 0 || !p->t->numel || !dt__same_block(lead, p)) continue;
            p->block = m->nblocks;
            m->order[n++] = p;
        }
        b->n = n - b->first;
        m->nblocks++;
    }
}
/* Moves all parameters into new blocks, from memory of their own or from the old blocks. */
DT__INSIDE int dt__model_pack(dt_model *m)
{
    int          nold = m->nblocks, rc = 0;
    size_t       np = (size_t)(m->nparams ? m->nparams : 1);
    dt__mblock  *old = m->block;
    dt_tensor  **list = (dt_tensor **)dt_mem_alloc(np * sizeof *list);
    dt__param  **order = (dt__param **)dt_mem_alloc(np * sizeof *order);
    dt__mblock  *blocks = (dt__mblock *)dt__alloc_zero(np * sizeof *blocks);
    if (!list || !order || !blocks) {
        dt_mem_free(list, np * sizeof *list);
        dt_mem_free(order, np * sizeof *order);
        dt_mem_free(blocks, np * sizeof *blocks);
        return dt_fail(DT_ERR_MEMORY, "dt_model_seal: out of memory");
    }
    for (int i = 0; i < nold; i++) dt_block_free(&old[i].b); /* the parameters keep the memory alive */
    dt_mem_free(m->order, (size_t)m->norder * sizeof *m->order);
    m->order = order;
    m->norder = (int)np;
    m->block = blocks;
    dt__model_claim(m);
    dt__model_order(m);
    for (int i = 0; i < m->nblocks; i++) dt__block_offsets(m, &m->block[i]);
    if (m->shards) rc = m->shards->cut(m->shards->user);
    for (int i = 0; i < m->nblocks && !rc; i++) rc = dt__block_make(m, &m->block[i], old, list);
    for (int i = 0; i < m->nparams; i++) {
        dt__unref(m->param[i]->init);
        m->param[i]->init = NULL;
        dt_mem_free(m->param[i]->first_rng, sizeof m->rng);
        m->param[i]->first_rng = NULL;
    }
    for (int i = 0; i < nold; i++) dt__mblock_free(&old[i]);
    dt_mem_free(old, (size_t)m->block_cap * sizeof *old);
    dt_mem_free(list, np * sizeof *list);
    m->block_cap = (int)np;
    m->version++;
    return rc;
}
DT_API dt_status dt_model_seal(dt_model *m)
{
    if (!dt__model_ok("dt_model_seal", m)) return dt_error_code();
    if (m->sealed) return DT_OK;
    if (!m->nparams)
        return (dt_status)dt_fail(DT_ERR_STATE,
                                  "dt_model_seal: the model has no parameters; run its forward once first");
    if (dt__model_pack(m)) return dt_error_code();
    m->sealed = 1;
    dt__model_unhook(m);
    for (int64_t i = 0; i < m->on_seal.n; i++) {
        dt__on_seal *s = (dt__on_seal *)m->on_seal.at[i];
        if (dt__err.code == DT_OK) s->fn(m, s->user);
        dt_mem_free(s, sizeof *s);
    }
    dt__list_free(&m->on_seal);
    return dt_error_code();
}
DT__INSIDE int dt__model_on_seal(dt_model *m, int (*fn)(dt_model *, void *), void *user)
{
    if (m->sealed) return fn(m, user);
    dt__on_seal *s = (dt__on_seal *)dt__alloc_zero(sizeof *s);
    if (s) {
        s->fn = fn;
        s->user = user;
    }
    if (s && !dt__push(&m->on_seal, s)) return 0;
    dt_mem_free(s, sizeof *s);
    return dt_fail(DT_ERR_MEMORY, "dt_model: out of memory");
}
/* After a new optimiser or group: a sealed model rebuilds its blocks for the new owners. */
static int dt__model_assign(dt_model *m) { return m->sealed ? dt__model_pack(m) : 0; }

/* The value to save: the f32 master weight if there is one. The tensor belongs to the step or to the model. */
DT__INSIDE dt_tensor *dt__param_source(dt_model *m, dt__param *p)
{
    if (p->init) return p->init;
    if (p->block < 0 || !m->block[p->block].master) return p->t;
    dt_tensor *t = dt__slice(m->block[p->block].master, 0, p->offset, p->t->numel);
    if (!t) return NULL;
    t->ndim = p->t->ndim;
    memcpy(t->shape, p->t->shape, sizeof t->shape);
    dt__dense_strides(t->stride, t->shape, t->ndim);
    return dt__give(t);
}
/* Copies src (same shape, any float dtype) into the parameter and its master weight. */
static int dt__param_assign(dt_model *m, dt__param *p, dt_tensor *src)
{
    dt__mblock *b = p->block >= 0 ? &m->block[p->block] : NULL;
    if (b && b->cut) {
        dt_tensor *dense = dt__dense("dt_model", src), *flat = dense ? dt__flat(dense) : NULL;
        int        rc = flat ? m->shards->settle(m->shards->user) : (int)DT_ERR_MEMORY;
        if (!rc && b->master) rc = dt__pieces_set(b, b->master, true, p->offset, p->t->numel, flat);
        if (!rc && b->cut & DT__CUT_VALUE) rc = dt__pieces_set(b, b->b.value, true, p->offset, p->t->numel, flat);
        else if (!rc) rc = dt_copy(p->t, src);
        if (!rc) rc = m->shards->stepped(m->shards->user, NULL);
        dt__unref(flat);
        dt__unref(dense);
        return rc;
    }
    dt_tensor *to = dt__param_source(m, p);
    if (!to || dt_copy(to, src)) return dt__err.code;
    return to == p->t ? 0 : (int)dt_copy(p->t, to);
}

static int dt__model_convert(dt_model *m, const char *call, dt_dtype dtype, dt_device *dev) /* NULL: each stays on its device */
{
    if (!dt__model_own(call, m)) return dt_error_code();
    if (dt__tls.tape.n)
        return dt_fail(DT_ERR_STATE, "%s: the tape of the current step uses the parameters; call it after dt_end()", call);
    bool stepped = false;
    for (int i = 0; i < m->nblocks; i++)
        for (int k = 0; k < DT__MAX_STATES; k++) stepped |= m->block[i].state[k] != NULL;
    for (int i = 0; i < m->nparams; i++) stepped |= dt__own_any(m->param[i]);
    if (stepped)
        return dt_fail(DT_ERR_STATE, "%s: an optimiser has stepped already; convert the model before the first step, or save a "
                       "checkpoint and load it into a model of that dtype and device", call);
    m->dtype = dtype;
    if (dev) m->device = dev;
    for (int i = 0; i < m->nblocks; i++) dt_block_free(&m->block[i].b);
    int rc = 0;
    for (int i = 0; i < m->nparams && !rc; i++) {
        dt__param *p = m->param[i];
        dt_device *to = dev ? dev : p->t->st->dev;
        rc = dt__param_to_model(m, p, to);
        if (!rc && p->t->st->dev != to) rc = dt__param_convert(p, p->t->dtype, to);
    }
    return rc || !m->sealed ? rc : dt__model_pack(m);
}
DT_API dt_status dt_model_to(dt_model *m, dt_device *dev)
{
    if (!dt__model_ok("dt_model_to", m)) return dt_error_code();
    return (dt_status)dt__model_convert(m, "dt_model_to", m->dtype, dev ? dev : dt_default_device());
}
DT_API dt_status dt_model_cast(dt_model *m, dt_dtype dtype)
{
    if (!dt__model_ok("dt_model_cast", m)) return dt_error_code();
    if (m->amp)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_model_cast: mixed precision decides the dtype of this model; see .level "
                                  "and .dtype of dt_amp_new");
    if (!dt__is_float(dtype))
        return (dt_status)dt_fail(DT_ERR_DTYPE, "dt_model_cast: parameters are f32, f16 or bf16, not %s",
                                  dt_dtype_name(dtype));
    return (dt_status)dt__model_convert(m, "dt_model_cast", dtype, NULL);
}
static int dt__set_frozen(dt_model *m, const char *call, const char *pattern, bool on)
{
    if (!dt__model_own(call, m)) return dt_error_code();
    if (!pattern || !*pattern)
        return dt_fail(DT_ERR_ARG, "%s: the pattern is %s; it needs a pattern of names", call, pattern ? "empty" : "NULL");
    dt__frozen *list = (dt__frozen *)dt__enlarge(m->frozen, m->nfrozen, &m->frozen_cap, sizeof *list);
    if (!list) return dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    m->frozen = list;
    int matched = 0, unpacked = 0;
    for (int i = 0; i < m->nparams; i++) {
        dt__param *p = m->param[i];
        if (p->buffer || !dt_name_matches(pattern, p->name)) continue;
        matched++;
        p->frozen = on;
        p->t->requires_grad = !on;
        if (on && p->t->grad) p->t->grad_state = DT__GRAD_EMPTY;
        if (!on && p->block < 0) unpacked = 1;
    }
    if (!matched && m->sealed)
        return dt_fail(DT_ERR_ARG, "%s: no parameter's name matches '%s'; dt_model_get lists them", call, pattern);
    m->frozen[m->nfrozen].pattern = dt__joined("", 0, pattern, NULL);
    if (!m->frozen[m->nfrozen].pattern) return dt_error_code();
    m->frozen[m->nfrozen++].on = on;
    m->version++;
    if (m->sealed && unpacked && dt__model_pack(m)) return dt_error_code();
    return matched;
}
DT_API int dt_model_freeze(dt_model *m, const char *pattern)
{
    return dt__set_frozen(m, "dt_model_freeze", pattern, true);
}
DT_API int dt_model_unfreeze(dt_model *m, const char *pattern)
{
    return dt__set_frozen(m, "dt_model_unfreeze", pattern, false);
}

/* ---- the summary */
static const char *dt__count_text(char *buf, size_t n, double v) /* 1234567 -> 1,234,567 */
{
    char   digits[40];
    size_t len = (size_t)snprintf(digits, sizeof digits, "%.0f", v), at = 0;
    for (size_t i = 0; i < len && at + 2 < n; i++) {
        if (i && (len - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
    return buf;
}
typedef struct dt__summary {
    dt__text_out o;
    int          width;
    bool         devices; /* the model is on several: the last column names the device */
} dt__summary;
static void dt__summary_line(dt__summary *s, const char *name, const char *kind, const char *shape, const double sum[3],
                             const char *device)
{
    char line[400], a[48], b[48], c[48];
    snprintf(line, sizeof line, "%-*s  %-20s  %-20s  %13s  %15s  %13s%s%s\n", s->width, name, kind, shape,
             dt__count_text(a, sizeof a, sum[0]), dt__count_text(b, sizeof b, sum[1]),
             dt__count_text(c, sizeof c, sum[2]), s->devices ? "  " : "", s->devices ? device : "");
    dt__emit(&s->o, line);
}
static dt_device *dt__layer_device(const dt__layer *l)
{
    for (int k = 0; k < l->np; k++)
        if (l->p[k]) return l->p[k]->t->st->dev;
    return NULL; /* it has no parameters */
}
DT_API size_t dt_model_summary(dt_model *m, char *buf, size_t nbytes)
{
    dt__summary s;
    dt__places  places;
    double      total[3] = { 0, 0, 0 }, frozen = 0, on[DT__MAX_PLACES][3];
    char        line[400];
    memset(&s, 0, sizeof s);
    memset(&on, 0, sizeof on);
    places.n = 0;
    s.o.buf = buf;
    s.o.nbytes = buf ? nbytes : 0;
    s.width = 5;
    if (buf && nbytes) buf[0] = 0;
    if (!m) return 0;
    for (int i = 0; i < m->nlayers; i++) {
        dt_device *dev = dt__layer_device(m->layer[i]);
        if (dev && places.n < DT__MAX_PLACES) dt__place_of("dt_model_summary", &places, dev);
        if ((int)strlen(m->layer[i]->name) > s.width) s.width = (int)strlen(m->layer[i]->name);
    }
    s.devices = places.n > 1;
    if (s.width > 60) s.width = 60;
    snprintf(line, sizeof line, "%-*s  %-20s  %-20s  %13s  %15s  %13s%s\n", s.width, "name", "layer", "output",
             "parameters", "FLOPs", "gradient B", s.devices ? "  device" : "");
    dt__emit(&s.o, line);
    for (int i = 0; i < m->nlayers; i++) {
        dt__layer *l = m->layer[i];
        dt_device *dev = dt__layer_device(l);
        double     sum[3] = { 0, l->flops, 0 };
        for (int k = 0; k < l->np; k++) {
            if (!l->p[k] || l->p[k]->buffer) continue;
            sum[0] += (double)dt__param_numel(l->p[k]);
            if (l->p[k]->frozen)
                frozen += (double)dt__param_numel(l->p[k]);
            else
                sum[2] += (double)dt_nbytes(l->p[k]->t);
        }
        dt__summary_line(&s, l->name, l->kind, dt__shape_text(l->out.dim, l->out.ndim), sum, dev ? dev->name : "");
        for (int k = 0; k < 3; k++) total[k] += sum[k];
        for (int p = 0; p < places.n; p++)
            for (int k = 0; k < 3 && places.dev[p] == dev; k++) on[p][k] += sum[k];
    }
    dt__summary_line(&s, "total", "", "", total, "");
    for (int p = 0; p < places.n && s.devices; p++) dt__summary_line(&s, "", "", "", on[p], places.dev[p]->name);
    if (frozen > 0) {
        char a[48];
        snprintf(line, sizeof line, "frozen: %s parameters\n", dt__count_text(a, sizeof a, frozen));
        dt__emit(&s.o, line);
    }
    if (buf && nbytes) buf[s.o.len < nbytes ? s.o.len : nbytes - 1] = 0;
    return s.o.len;
}

/* ==================================================================================================== >>layer
   A layer function finds its dt__layer by name, creates its parameters in the first call, and calls the op. */
/* For an error message: lists the options in 'takes' and returns the first that is in 'given' but not in 'takes'. */
static int dt__option_list(char *list, size_t nbytes, const char *const *names, int n, uint64_t takes, uint64_t given)
{
    int bad = 0;
    list[0] = 0;
    for (int i = 0; i < n; i++)
        if (takes >> i & 1u)
            snprintf(list + strlen(list), nbytes - strlen(list), "%s.%s", *list ? ", " : "", names[i]);
    while (!((given & ~takes) >> bad & 1u)) bad++;
    return bad;
}
static bool dt__layer_takes(const char *call, const char *name, const dt_layer_opts *o, uint64_t takes)
{
    uint64_t given = 0;
#define DT__LAYER_GIVEN(n) if (o->n) given |= DT__L(n);
    DT__LAYER_OPTIONS(DT__LAYER_GIVEN)
#undef DT__LAYER_GIVEN
    if (!(given & ~takes)) return true;
#define DT__LAYER_NAME(n) #n,
    static const char *const names[] = { DT__LAYER_OPTIONS(DT__LAYER_NAME) };
#undef DT__LAYER_NAME
    char list[320];
    int  bad = dt__option_list(list, sizeof list, names, DT__L_COUNT, takes, given);
    dt_fail(DT_ERR_ARG, "%s '%s': .%s is not an option of this layer; it takes %s, .shared", call, name, names[bad],
            list);
    return false;
}
DT__INSIDE dt__layer *dt__layer_new(dt_model *m, const char *kind, const char *name, uint32_t hash)
{
    if (m->sealed) {
        dt_fail(DT_ERR_STATE, "%s '%s%s': a new name after the seal (the first backward); the first forward must call "
                "all layers, and their names must not change", kind, m->scope, name);
        return NULL;
    }
    dt__layer  *l = (dt__layer *)dt__alloc_zero(sizeof *l);
    dt__layer **list = l ? (dt__layer **)dt__enlarge(m->layer, m->nlayers, &m->layer_cap, sizeof *list) : NULL;
    if (list) {
        m->layer = list;
        l->name = dt__joined(m->scope, (size_t)m->scope_len, name, NULL);
        l->kind = kind;
        l->index = m->nlayers;
        l->p = l->few;
        l->np = 5;
    }
    if (list && l->name && !dt__table_add(&m->layer_table, &m->layer_slots, l->name, hash, m->nlayers)) {
        m->layer[m->nlayers++] = l;
        return l;
    }
    if (l) dt__free_text(l->name);
    dt_mem_free(l, sizeof *l);
    dt_fail(DT_ERR_MEMORY, "%s '%s': out of memory", kind, name);
    return NULL;
}
/* The layer of this name and kind, created if it is new; NULL after an error. */
static dt__layer *dt__layer_seek(dt_model *m, const char *kind, const char *name, bool shared)
{
    if (!name || !*name) {
        dt_fail(DT_ERR_ARG, "%s: the name is %s; a layer needs a name", kind, name ? "empty" : "NULL");
        return NULL;
    }
    if (!dt__places_ok(kind, m) || (!m->sealed && dt__model_hook(m))) return NULL;
    uint32_t   hash = dt__name_hash(m->scope, (size_t)m->scope_len, name);
    int        k = dt__table_find(m->layer_table, m->layer_slots, hash, m->scope, (size_t)m->scope_len, name);
    dt__layer *l = k >= 0 ? m->layer[k] : dt__layer_new(m, kind, name, hash);
    dt__thread_number(); /* no other thread has the same generations */
    uint64_t   stamp = m->forwards + dt__tls.generation + 1;
    if (!l) return NULL;
    if (strcmp(l->kind, kind)) {
        dt_fail(DT_ERR_ARG, "%s '%s': the name belongs to a %s; choose another name", kind, l->name, l->kind);
        return NULL;
    }
    for (int i = 0; i < l->np && !m->parts; i++)
        if (l->p[i] && l->p[i]->t->st->dev != dt__model_here(m)) {
            dt_fail(DT_ERR_DEVICE, "%s '%s': its parameters are on %s, this call is %s %s; call it with dt_device_begin() as "
                    "in the first forward, or move the whole model with dt_model_to()", kind, l->name,
                    l->p[i]->t->st->dev->name, m->nplaces ? "in a device scope of" : "outside device scopes, on",
                    dt__model_here(m)->name);
            return NULL;
        }
    if (l->stamp == stamp && !shared) {
        dt_fail(DT_ERR_STATE, "%s '%s': the name is used twice in one forward. If this is the next forward: end the one "
                "before with dt_end() (evaluation), dt_step() or dt_backward(), or begin it with dt_forward_begin(). If it is "
                "another layer: give it another name, or use dt_scope_begin(). To share the parameters: .shared = true",
                kind, l->name);
        return NULL;
    }
    if (l->stamp != stamp) l->flops = 0;
    l->stamp = stamp;
    if (dt__trace_on()) {
        dt__tbuf *b = dt__trace_buf();
        l->began = b ? dt__trace_touch(b) : 0;
    }
    if (__builtin_expect(m->timed != DT__TIMED_NEVER, 0)) dt__profile_layer(m, l);
    return l;
}
DT__INSIDE dt__layer *dt__layer_find(dt_model *m, const char *kind, const char *name, bool shared)
{
    if (!dt__model_ok(kind, m) || !dt__model_enter(kind, m)) return NULL;
    dt__layer *l = dt__layer_seek(m, kind, name, shared);
    dt__model_leave(m);
    return l;
}
DT__INSIDE dt__layer *dt__layer_begin(dt_model *m, const char *kind, const char *name, dt_tensor *x, const dt_layer_opts *o,
                                  uint64_t takes)
{
    if (!dt__model_ok(kind, m)) return NULL;
    if (m->parts) m->parts->layer(m->parts->user, m->scope, name ? name : "");
    if (!dt__ok(kind, "x", x)) return NULL;
    if (!dt__places_ok(kind, m)) return NULL;
    if (x->st->dev != dt__model_here(m)) {
        dt_fail(DT_ERR_DEVICE, m->nplaces ? "%s '%s': x is on %s, the device scope on %s; copy x with dt_to()"
                : "%s '%s': x is on %s, the model on %s; move one with dt_to() or dt_model_to(), or call the layer in a scope "
                "of its device (dt_device_begin)", kind, name ? name : "(null)", x->st->dev->name, dt__model_here(m)->name);
        return NULL;
    }
    if (!dt__layer_takes(kind, name ? name : "(null)", o, takes)) return NULL;
    dt__layer *l = dt__layer_find(m, kind, name, o->shared);
    if (__builtin_expect(m->timed == DT__TIMED, 0)) dt__profile_input(m->profile, x);
    return l;
}
DT__INSIDE int dt__layer_room(dt__layer *l, int n)
{
    if (n <= l->np) return 0;
    dt__param **p = (dt__param **)dt__alloc_zero((size_t)n * sizeof *p);
    if (!p) return dt_fail(DT_ERR_MEMORY, "%s '%s': out of memory", l->kind, l->name);
    memcpy(p, l->p, (size_t)l->np * sizeof *p);
    if (l->p != l->few) dt_mem_free(l->p, (size_t)l->np * sizeof *p);
    l->p = p;
    l->np = n;
    return 0;
}
/* Parameter k of the layer: created by the first call; every call checks its shape. */
DT__INSIDE dt_tensor *dt__layer_param(dt_model *m, dt__layer *l, int k, const char *suffix, dt_shape shape, dt__fillspec f,
                                  int flags)
{
    if (!l->p[k]) {
        if (dt__err.code != DT_OK) return NULL;
        if (m->sealed) {
            dt_fail(DT_ERR_STATE, "%s '%s': has no parameter '%s' and the model is sealed; a layer's options must not change "
                    "after the first forward", l->kind, l->name, suffix);
            return NULL;
        }
        l->p[k] = dt__param_new(m, l->name, suffix, shape, f, flags);
        return l->p[k] ? l->p[k]->t : NULL;
    }
    dt_shape have = dt__param_shape(l->p[k]), part = dt__cut_shape(shape, &f.cut);
    if (dt__same_shape(l->p[k]->t, &part) && l->p[k]->cut.parts == f.cut.parts) return l->p[k]->t;
    char text[200];
    snprintf(text, sizeof text, "%s", dt__shape_text(have.dim, have.ndim));
    dt_fail(DT_ERR_SHAPE,
            "%s '%s': '%s' is %s%s, but this call needs %s%s; give layers of different shapes different names", l->kind,
            l->name, l->p[k]->name, text, l->p[k]->cut.parts ? ", split over ranks" : "", dt__shape_text(shape.dim, shape.ndim),
            f.cut.parts ? ", split over ranks" : "");
    return NULL;
}
DT__INSIDE dt_shape dt__shape1(int64_t a)
{
    dt_shape s;
    memset(&s, 0, sizeof s);
    s.ndim = 1;
    s.dim[0] = a;
    return s;
}
DT__INSIDE dt_shape dt__shape2(int64_t a, int64_t b)
{
    dt_shape s = dt__shape1(a);
    s.ndim = 2;
    s.dim[1] = b;
    return s;
}
/* kaiming_uniform_(a=sqrt(5)); the bound is computed in the same order of operations as in PyTorch */
DT__INSIDE dt__fillspec dt__fill_kaiming(int64_t fan_in)
{
    double a = sqrt(5.0), gain = sqrt(2.0 / (1 + a * a)), std = gain / sqrt((double)(fan_in > 0 ? fan_in : 1));
    double bound = sqrt(3.0) * std;
    return dt__fill_with(DT_INIT_UNIFORM, -bound, bound);
}
DT__INSIDE dt__fillspec dt__fill_bias(int64_t fan_in)
{
    double bound = 1 / sqrt((double)(fan_in > 0 ? fan_in : 1));
    return dt__fill_with(DT_INIT_UNIFORM, -bound, bound);
}
/* Mixed precision converts the inputs of layers to the model's dtype; without it the caller chooses the dtype. */
DT__INSIDE dt_tensor *dt__layer_input(dt_model *m, dt_tensor *x)
{
    if (!m->amp || dt__tls.autocast.mode == DT_AUTOCAST_OPS || !x || !dt__is_float(x->dtype)) return x;
    return dt_cast(x, m->dtype);
}
DT__INSIDE dt_tensor *dt__layer_end(dt__layer *l, dt_tensor *y, double flops)
{
    if (!y) return NULL;
    l->out = dt_shape_of(y);
    l->flops += flops;
    dt__tbuf *b = dt__trace_on() ? dt__trace_mine() : NULL;
    if (b && l->began) dt__trace_simple(b, DT__TRACK_LAYERS, l->name, "", l->began, dt__trace_time(b));
    return y;
}

/* ---- layers of which each rank of the tensor axis has a part. The ops between the parts: `enter` passes a whole tensor on to
   parts of layers, and adds up the gradients that come back; `sum` adds up what the parts have computed. */
typedef struct dt__part_of { /* in dt__node.u */
    dt_model   *m;
    const char *kind, *name;
} dt__part_of;
static int dt__split_ranks(const dt_model *m) { return m->axis ? m->axis->size : 1; }
static bool dt__split_is(const char *kind, const char *name, dt_layer_split split, uint32_t takes)
{
    if ((unsigned)split <= DT_SPLIT_HEADS && (split == DT_SPLIT_NONE || (takes >> split & 1u))) return true;
    static const char *const names[] = { "DT_SPLIT_NONE", "DT_SPLIT_OUT", "DT_SPLIT_IN", "DT_SPLIT_BOTH", "DT_SPLIT_HEADS" };
    char list[80];
    dt__option_list(list, sizeof list, names, 5, takes, ~(uint64_t)takes);
    for (char *c = list; *c; c++) /* ".DT_SPLIT_OUT" */
        if (*c == '.') memmove(c, c + 1, strlen(c));
    dt_fail(DT_ERR_ARG, "%s '%s': .split is %d; this layer can be split by %s", kind, name, (int)split, list);
    return false;
}
static bool dt__split_divides(const dt_model *m, const dt__layer *l, const char *what, int64_t n)
{
    int parts = dt__split_ranks(m);
    if (n % parts == 0) return true;
    dt_fail(DT_ERR_ARG, "%s '%s': the layer has %" PRId64 " %s, which the %d ranks of the tensor axis cannot divide equally; use a "
            "multiple of %d, or leave out .split", l->kind, l->name, n, what, parts, parts);
    return false;
}
static dt__fillspec dt__fill_cut(const dt_model *m, dt__fillspec f, int dim, int groups)
{
    if (!m->axis) return f;
    f.cut.dim = dim;
    f.cut.groups = groups;
    f.cut.parts = m->axis->size;
    f.cut.part = m->axis->rank;
    return f;
}
static int dt__part_reduce(const dt__part_of *of, dt_tensor *t, bool max)
{
    char what[200];
    if (!of->m->axis || dt__is_ghost(t) || !t->numel) return 0;
    snprintf(what, sizeof what, of->name ? "%s '%.150s'" : "%s", of->kind, of->name);
    return of->m->axis->reduce(of->m->axis->user, what, t, max);
}
static dt__part_of dt__part_of_layer(dt_model *m, const char *kind, const char *name)
{
    dt__part_of of;
    of.m = m;
    of.kind = kind;
    of.name = name;
    return of;
}
static dt_tensor *dt__part_op(dt_tensor *y, dt_tensor *x, const char *name, dt__backward_fn fn, const dt__part_of *of)
{
    dt__node *n = y ? dt__record(name, y, fn, 1, &x) : NULL;
    if (n) memcpy(n->u, of, sizeof *of);
    if (dt__err.code == DT_OK) return dt__give(y);
    dt__unref(y);
    return NULL;
}
static int dt__part_enter_bwd(dt__node *n, dt_tensor *g)
{
    dt__part_of of;
    dt_tensor  *d = g;
    int         rc = 0;
    memcpy(&of, n->u, sizeof of);
    if (dt__is_exclusive(g) && dt_is_contiguous(g) && g->layout == DT_LAYOUT_PLAIN) d = dt__ref(g);
    else {
        d = dt__new("backward", g->st->dev, g->dtype, g->shape, g->ndim, DT_LAYOUT_PLAIN);
        rc = d ? dt__copy_to(d, g, 0) : DT_ERR_MEMORY;
    }
    if (!rc) rc = dt__part_reduce(&of, d, false);
    if (!rc) rc = dt__grad_put(n->in[0], d);
    dt__unref(d);
    return rc;
}
static dt_tensor *dt__part_enter(dt_model *m, dt__layer *l, dt_tensor *x)
{
    if (!m->axis || !x || !dt__is_float(x->dtype)) return x;
    dt__part_of of = dt__part_of_layer(m, l->kind, l->name);
    return dt__part_op(dt__alias(x), x, "part_enter", dt__part_enter_bwd, &of);
}
static int dt__part_same_bwd(dt__node *n, dt_tensor *g) { return dt__grad_put(n->in[0], g); }
/* y was made by the layer and is used by no one else: the sum takes its place in memory. */
static dt_tensor *dt__part_sum(const dt__part_of *of, dt_tensor *y)
{
    if (!of->m->axis || !y) return y;
    if (dt__make_plain(y)) return NULL;
    dt_tensor *d = dt_is_contiguous(y) ? y : dt_contiguous(y);
    if (!d || dt__part_reduce(of, d, false)) return NULL;
    return dt__part_op(dt__alias(d), d, "part_sum", dt__part_same_bwd, of);
}
static dt_tensor *dt__layer_sum(dt_model *m, dt__layer *l, dt_tensor *y, dt_tensor *bias, int dim)
{
    dt__part_of of = dt__part_of_layer(m, l->kind, l->name);
    if (m->axis) y = dt__part_sum(&of, y);
    if (!m->axis || !bias || !y) return y;
    dt_shape s = dt__shape1(bias->shape[0]);
    s.ndim = dim;
    for (int i = 1; i < dim; i++) s.dim[i] = 1;
    bias = dt_cast(bias, (dt_dtype)y->dtype);
    return dt_add(y, dim > 1 ? dt_reshape(bias, s) : bias);
}
static bool dt__split_in_ok(const dt__layer *l, const dt_layer_opts *o)
{
    if (o->split != DT_SPLIT_IN || o->act == DT_ACT_NONE) return true;
    dt_fail(DT_ERR_ARG, "%s '%s': .act cannot be used with DT_SPLIT_IN, because the results of the ranks are added first; apply the "
            "activation to the result", l->kind, l->name);
    return false;
}
/* Copies part r of `each` (ranks, elements of a part) into y along dim. */
static int dt__part_place(dt_tensor *y, dt_tensor *each, int r, const dt_tensor *like, int dim)
{
    dt_tensor *from = dt__slice(each, 0, r, 1), *to = from ? dt__slice(y, dim, r * like->shape[dim], like->shape[dim]) : NULL;
    int        rc = DT_ERR_MEMORY;
    if (to) {
        from->ndim = like->ndim;
        memcpy(from->shape, like->shape, sizeof from->shape);
        dt__dense_strides(from->stride, from->shape, from->ndim);
        rc = dt__copy_to(to, from, 0);
    }
    dt__unref(from);
    dt__unref(to);
    return rc;
}
static dt_tensor *dt__part_gathered(const dt__part_of *of, dt_tensor *x, int dim) /* the caller owns it */
{
    const dt__split_axis *a = of->m->axis;
    int64_t         shape[DT_MAX_DIMS], two[2];
    memcpy(shape, x->shape, sizeof shape);
    shape[dim] *= a->size;
    two[0] = a->size;
    two[1] = x->numel;
    dt_tensor *y = dt__new(of->kind, x->st->dev, x->dtype, shape, x->ndim, DT_LAYOUT_PLAIN);
    if (!y || dt__is_ghost(y) || !x->numel) return y;
    dt_tensor *d = dt__dense(of->kind, x), *each = d ? dt__new(of->kind, x->st->dev, x->dtype, two, 2, DT_LAYOUT_PLAIN) : NULL;
    int        rc = each ? a->gather(a->user, of->kind, each, d) : DT_ERR_MEMORY;
    for (int r = 0; r < a->size && !rc; r++) rc = dt__part_place(y, each, r, d, dim);
    dt__unref(each);
    dt__unref(d);
    if (!rc) return y;
    dt__unref(y);
    return NULL;
}
static int dt__part_gather_bwd(dt__node *n, dt_tensor *g) /* what follows is the same on all ranks, and so is g */
{
    dt__part_of of;
    memcpy(&of, n->u, sizeof of);
    int        dim = (int)n->i[0];
    int64_t    k = n->in[0]->shape[dim];
    dt_tensor *part = dt__slice(g, dim, n->i[1] * k, k);
    int        rc = part ? dt__grad_put(n->in[0], part) : DT_ERR_MEMORY;
    dt__unref(part);
    return rc;
}
static int dt__part_take_bwd(dt__node *n, dt_tensor *g)
{
    dt__part_of of;
    memcpy(&of, n->u, sizeof of);
    dt_tensor *whole = dt__part_gathered(&of, g, (int)n->i[0]);
    int        rc = whole ? dt__grad_put(n->in[0], whole) : DT_ERR_MEMORY;
    dt__unref(whole);
    return rc;
}
static bool dt__part_ok(const char *call, dt_model *m, dt_tensor *x, int *dim)
{
    if (!dt__model_ok(call, m) || !dt__ok(call, "x", x)) return false;
    if (*dim < -x->ndim || *dim >= x->ndim) {
        dt_fail(DT_ERR_ARG, "%s: dim is %d and x is %s; it must be %d to %d", call, *dim, dt__text(x), -x->ndim, x->ndim - 1);
        return false;
    }
    if (*dim < 0) *dim += x->ndim;
    return true;
}
DT_API dt_tensor *dt_gather_parts(dt_model *m, dt_tensor *x, int dim)
{
    if (!dt__part_ok("dt_gather_parts", m, x, &dim)) return NULL;
    if (!m->axis) return x;
    if (dt__make_plain(x)) return NULL;
    dt__part_of of = dt__part_of_layer(m, "dt_gather_parts", NULL);
    dt_tensor  *y = dt__part_op(dt__part_gathered(&of, x, dim), x, "gather_parts", dt__part_gather_bwd, &of);
    if (!y || !y->node) return y;
    y->node->i[0] = dim;
    y->node->i[1] = m->axis->rank;
    return y;
}
DT_API dt_tensor *dt_take_part(dt_model *m, dt_tensor *x, int dim)
{
    if (!dt__part_ok("dt_take_part", m, x, &dim)) return NULL;
    if (!m->axis) return x;
    int64_t n = x->shape[dim] / m->axis->size;
    if (x->shape[dim] % m->axis->size) {
        dt_fail(DT_ERR_SHAPE, "dt_take_part: dimension %d of x %s cannot be divided equally between the %d ranks of the tensor axis",
                dim, dt__text(x), m->axis->size);
        return NULL;
    }
    if (dt__make_plain(x)) return NULL;
    dt__part_of of = dt__part_of_layer(m, "dt_take_part", NULL);
    dt_tensor  *y = dt__part_op(dt__slice(x, dim, m->axis->rank * n, n), x, "take_part", dt__part_take_bwd, &of);
    if (y && y->node) y->node->i[0] = dim;
    return y;
}
DT_API dt_tensor *dt_dropout_parts(dt_model *m, dt_tensor *x, double p, int dim)
{
    if (!dt__part_ok("dt_dropout_parts", m, x, &dim)) return NULL;
    if (!m->axis || !m->training || p == 0) return dt_dropout(m, x, p);
    dt_make_opts mo;
    dt_shape     s = dt_shape_of(x);
    DT__CLEAR(mo);
    mo.device = x->st->dev;
    mo.dtype = (dt_dtype)x->dtype;
    s.dim[dim] *= m->axis->size;
    dt_no_grad_begin();
    dt_tensor *mask = dt_dropout(m, dt_full_with(1, s, mo), p);
    mask = mask ? dt_narrow(mask, dim, m->axis->rank * x->shape[dim], x->shape[dim]) : NULL;
    dt_no_grad_end();
    return mask ? dt_mul(x, mask) : NULL;
}
static dt_tensor *dt__scalar_of(dt_device *dev, double value, dt_dtype dtype)
{
    dt_make_opts mo;
    dt_shape     scalar = dt__shape1(0);
    scalar.ndim = 0;
    DT__CLEAR(mo);
    mo.device = dev;
    mo.dtype = dtype;
    return dt_full_with(value, scalar, mo);
}
/* index counts from 0 to whole - 1, this rank has from .. from + n - 1. The result counts from 0 to n - 1; what other ranks have
   becomes 0, and *mine says which are this rank's. What no rank has stays outside, so that the op that uses it finds it. */
static dt_tensor *dt__part_index(dt_model *m, dt_tensor *index, int64_t n, int64_t whole, dt_tensor **mine)
{
    int64_t    from = m->axis->rank * n;
    dt_tensor *low = dt__scalar_of(index->st->dev, (double)from, DT_I64), *high = dt__scalar_of(index->st->dev, (double)(from + n), DT_I64);
    dt_tensor *zero = dt__scalar_of(index->st->dev, 0, DT_I64), *end = dt__scalar_of(index->st->dev, (double)whole, DT_I64);
    dt_tensor *i = dt_cast(index, DT_I64);
    dt_tensor *below = dt_lt(i, low), *above = dt_ge(i, high);
    dt_tensor *j = dt_where(above, dt_where(dt_lt(i, end), zero, i), dt_sub_scalar(i, (double)from));
    j = dt_where(below, dt_where(dt_ge(i, zero), zero, i), j);
    dt_tensor *none = dt__scalar_of(index->st->dev, 0, DT_F32), *one = dt__scalar_of(index->st->dev, 1, DT_F32);
    *mine = dt_where(below, none, dt_where(above, none, one));
    return *mine ? j : NULL;
}
DT_API dt_tensor *dt_cross_entropy_parts_with(dt_model *m, dt_tensor *logits, dt_tensor *target, dt_loss_opts o)
{
    static const char call[] = "dt_cross_entropy_parts";
    if (!dt__model_ok(call, m) || !dt__ok(call, "logits", logits) || !dt__ok(call, "target", target)) return NULL;
    if (!m->axis) return dt_cross_entropy_with(logits, target, o);
    if (logits->ndim != 2 || target->ndim != 1 || target->shape[0] != logits->shape[0] || logits->shape[1] < 1 || o.weight ||
        (unsigned)o.reduction > DT_NONE || !(o.label_smoothing >= 0 && o.label_smoothing <= 1)) {
        dt_fail(DT_ERR_ARG, "%s: logits %s, target %s, .reduction %d, .label_smoothing %g%s: needs logits (n, a part of the classes), "
                "target (n), a dt_reduction, a smoothing from 0 to 1, and no .weight", call, dt__text(logits), dt__text(target),
                (int)o.reduction, o.label_smoothing, o.weight ? ", .weight" : "");
        return NULL;
    }
    dt__part_of    of = dt__part_of_layer(m, call, NULL);
    int64_t        rows = logits->shape[0], n = logits->shape[1], ignore = o.ignore_index == DT_ZERO ? 0 : o.ignore_index ? o.ignore_index : -100;
    dt_shape       column = dt__shape2(rows, 1), row = dt__shape1(rows);
    dt_reduce_opts last;
    DT__CLEAR(last);
    last.dims = DT_DIM(1);
    dt_tensor *mine, *x = dt_cast(logits, DT_F32);
    dt_no_grad_begin();
    dt_tensor *most = dt_amax_with(x, last);
    if (most && dt__part_reduce(&of, most, true)) most = NULL;
    dt_tensor *t = dt_cast(target, DT_I64), *skip = dt__scalar_of(logits->st->dev, (double)ignore, DT_I64), *none = dt__scalar_of(logits->st->dev, 0, DT_F32);
    dt_tensor *ignored = dt_eq(t, skip), *valid = dt_where(ignored, none, dt__scalar_of(logits->st->dev, 1, DT_F32));
    t = dt_where(ignored, dt__scalar_of(logits->st->dev, 0, DT_I64), t);
    t = t ? dt__part_index(m, t, n, n * m->axis->size, &mine) : NULL;
    dt_no_grad_end();
    if (!t || !most) return NULL;
    x = dt_sub(x, dt_reshape(most, column));
    dt_tensor *sums[3];
    sums[0] = dt_sum_with(dt_exp(x), last);
    sums[1] = dt_mul(dt_reshape(dt_gather(x, 1, dt_reshape(t, column)), row), mine);
    sums[2] = o.label_smoothing > 0 ? dt_sum_with(x, last) : sums[1];
    dt_tensor *all = sums[0] && sums[1] && sums[2] ? dt__part_sum(&of, dt_stack(sums, o.label_smoothing > 0 ? 3 : 2, 0)) : NULL;
    if (!all) return NULL;
    dt_tensor *lse = dt_log(dt_select(all, 0, 0)), *loss = dt_sub(lse, dt_select(all, 0, 1));
    if (o.label_smoothing > 0) {
        dt_tensor *flat = dt_sub(lse, dt_mul_scalar(dt_select(all, 0, 2), 1 / ((double)n * m->axis->size)));
        loss = dt_add(dt_mul_scalar(loss, 1 - o.label_smoothing), dt_mul_scalar(flat, o.label_smoothing));
    }
    loss = dt_mul(loss, valid);
    if (o.reduction == DT_NONE || !loss) return loss;
    dt_reduce_opts whole;
    DT__CLEAR(whole);
    loss = dt_sum_with(loss, whole);
    return o.reduction == DT_SUM ? loss : dt_div(loss, dt_sum_with(valid, whole));
}

DT_API dt_tensor *dt_linear_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    dt__layer *l = dt__layer_begin(m, "dt_linear", name, x, &o, DT__L(out) | DT__L(no_bias) | DT__L(act) | DT__L(split));
    if (!l || !dt__split_is("dt_linear", l->name, o.split, 1u << DT_SPLIT_OUT | 1u << DT_SPLIT_IN)) return NULL;
    int64_t in = dt_size(x, -1) * (o.split == DT_SPLIT_IN ? dt__split_ranks(m) : 1);
    if (o.out < 1 || x->ndim < 1) {
        dt_fail(DT_ERR_ARG, "dt_linear '%s': x is %s and .out is %" PRId64 "; x needs a dimension, .out must be 1 or more",
                l->name, dt__text(x), o.out);
        return NULL;
    }
    if (!dt__split_in_ok(l, &o) || (o.split == DT_SPLIT_OUT && !dt__split_divides(m, l, "features (.out)", o.out))) return NULL;
    dt__fillspec fw = dt__fill_kaiming(in), fb = dt__fill_bias(in);
    if (o.split) fw = dt__fill_cut(m, fw, o.split == DT_SPLIT_IN, 1);
    if (o.split == DT_SPLIT_OUT) fb = dt__fill_cut(m, fb, 0, 1);
    dt_tensor *w = dt__layer_param(m, l, 0, "weight", dt__shape2(o.out, in), fw, 0);
    dt_tensor *b = o.no_bias || !w ? NULL : dt__layer_param(m, l, 1, "bias", dt__shape1(o.out), fb, 0);
    if (!w || (!b && !o.no_bias)) return NULL;
    dt_op_linear_opts lo;
    lo.dt__first = 0;
    lo.act = o.act;
    bool sums = o.split == DT_SPLIT_IN && m->axis;
    if (o.split == DT_SPLIT_OUT) x = dt__part_enter(m, l, x);
    dt_tensor *y = dt_op_linear_with(dt__layer_input(m, x), w, sums ? NULL : b, lo);
    if (sums) y = dt__layer_sum(m, l, y, b, 1);
    return dt__layer_end(l, y, x ? 2.0 * (double)x->numel * (double)w->shape[0] : 0);
}

DT_API dt_tensor *dt_conv2d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    dt__layer *l = dt__layer_begin(m, "dt_conv2d", name, x, &o,
        DT__L(out) | DT__L(kernel) | DT__L(kernel_w) | DT__L(stride) | DT__L(stride_w) | DT__L(pad) | DT__L(pad_w) |
        DT__L(dilation) | DT__L(dilation_w) | DT__L(groups) | DT__L(no_bias) | DT__L(act) | DT__L(split));
    if (!l || !dt__split_is("dt_conv2d", l->name, o.split, 1u << DT_SPLIT_OUT | 1u << DT_SPLIT_IN | 1u << DT_SPLIT_BOTH)) return NULL;
    bool    out_part = o.split == DT_SPLIT_OUT || o.split == DT_SPLIT_BOTH, in_part = o.split == DT_SPLIT_IN || o.split == DT_SPLIT_BOTH;
    int     kh = o.kernel, kw = o.kernel_w ? o.kernel_w : o.kernel, groups = o.groups ? o.groups : 1;
    int64_t in = dt_size(x, 1) * (in_part ? dt__split_ranks(m) : 1);
    if (x->ndim != 4 || o.out < 1 || kh < 1 || kw < 1 || groups < 1 || in % groups || o.out % groups) {
        dt_fail(DT_ERR_ARG,
                "dt_conv2d '%s': x %s, .out %" PRId64 ", .kernel %d x %d, .groups %d: needs x (n, c, h, w), "
                ".out and .kernel >= 1, channels in and out divisible by .groups",
                l->name, dt__text(x), o.out, kh, kw, groups);
        return NULL;
    }
    if (m->axis && o.split && o.split != DT_SPLIT_BOTH && groups > 1) {
        dt_fail(DT_ERR_ARG, "dt_conv2d '%s': .groups is %d; with groups the ranks divide the groups: use DT_SPLIT_BOTH", l->name, groups);
        return NULL;
    }
    if (!dt__split_in_ok(l, &o) || (out_part && !dt__split_divides(m, l, "channels (.out)", o.out)) ||
        (o.split == DT_SPLIT_BOTH && !dt__split_divides(m, l, "groups (.groups)", groups)))
        return NULL;
    dt_shape s = dt__shape2(o.out, in / groups);
    s.ndim = 4;
    s.dim[2] = kh;
    s.dim[3] = kw;
    int64_t      fan = in / groups * kh * kw;
    dt__fillspec fw = dt__fill_kaiming(fan), fb = dt__fill_bias(fan);
    if (o.split) fw = dt__fill_cut(m, fw, o.split == DT_SPLIT_IN, 1);
    if (out_part) fb = dt__fill_cut(m, fb, 0, 1);
    if (o.split == DT_SPLIT_BOTH) groups /= dt__split_ranks(m);
    dt_tensor *w = dt__layer_param(m, l, 0, "weight", s, fw, 0);
    dt_tensor *b = o.no_bias || !w ? NULL : dt__layer_param(m, l, 1, "bias", dt__shape1(o.out), fb, 0);
    if (!w || (!b && !o.no_bias)) return NULL;
    bool sums = o.split == DT_SPLIT_IN && m->axis;
    if (o.split == DT_SPLIT_OUT) x = dt__part_enter(m, l, x);
    dt_op_conv2d_opts c;
    DT__CLEAR(c);
    c.stride = o.stride;
    c.stride_w = o.stride_w;
    c.pad = o.pad;
    c.pad_w = o.pad_w;
    c.dilation = o.dilation;
    c.dilation_w = o.dilation_w;
    c.groups = groups;
    c.act = o.act;
    dt_tensor *y = dt_op_conv2d_with(dt__layer_input(m, x), w, sums ? NULL : b, c);
    if (sums) y = dt__layer_sum(m, l, y, b, 3);
    return dt__layer_end(l, y, y ? 2.0 * (double)y->numel * (double)(w->numel / w->shape[0]) : 0);
}

/* Running statistics and num_batches_tracked change in training mode only. */
static dt_tensor *dt__batchnorm(dt_model *m, const char *kind, const char *name, dt_tensor *x, dt_layer_opts o,
                                int dims)
{
    dt__layer *l = dt__layer_begin(m, kind, name, x, &o, DT__L(eps) | DT__L(momentum) | DT__L(no_affine) |
                                   DT__L(no_track) | DT__L(cumulative) | DT__L(act) | DT__L(add) | DT__L(split));
    if (!l || !dt__split_is(kind, l->name, o.split, 1u << DT_SPLIT_BOTH)) return NULL;
    if (dims > 1 ? x->ndim != dims + 2 : x->ndim != 2 && x->ndim != 3) {
        dt_fail(DT_ERR_SHAPE, "%s '%s': x is %s; it must be %s", kind, l->name, dt__text(x),
                dims == 3 ? "(n, c, d, h, w)" : dims == 2 ? "(n, c, h, w)" : "(n, c) or (n, c, l)");
        return NULL;
    }
    dt_tensor    *p[5] = { NULL, NULL, NULL, NULL, NULL };
    dt_shape      c = dt__shape1(x->shape[1] * (o.split ? dt__split_ranks(m) : 1)), scalar = c;
    scalar.ndim = 0;
    dt__fillspec one = dt__fill_with(DT_INIT_CONST, 1, 0), zero = dt__fill_with(DT_INIT_ZEROS, 0, 0), count = zero;
    if (o.split) {
        one = dt__fill_cut(m, one, 0, 1);
        zero = dt__fill_cut(m, zero, 0, 1);
    }
    if (!o.no_affine) {
        p[0] = dt__layer_param(m, l, 0, "weight", c, one, DT__KEEP_F32);
        p[1] = p[0] ? dt__layer_param(m, l, 1, "bias", c, zero, DT__KEEP_F32) : NULL;
    }
    if (!o.no_track && dt__err.code == DT_OK) {
        p[2] = dt__layer_param(m, l, 2, "running_mean", c, zero, DT__BUFFER | DT__KEEP_F32);
        p[3] = p[2] ? dt__layer_param(m, l, 3, "running_var", c, one, DT__BUFFER | DT__KEEP_F32) : NULL;
        p[4] = p[3] ? dt__layer_param(m, l, 4, "num_batches_tracked", scalar, count, DT__BUFFER | DT__COUNTER) : NULL;
    }
    if (dt__err.code != DT_OK) return NULL;
    dt_op_batch_norm_opts b;
    DT__CLEAR(b);
    b.eval = !m->training && !o.no_track;
    b.eps = o.eps;
    b.momentum = o.momentum;
    b.act = o.act;
    b.add = o.add;
    if (m->training && m->again) p[2] = p[3] = p[4] = NULL; /* its statistics have been counted */
    if (m->training && p[4]) {
        dt_call call;
        dt__call_begin(&call, DT_K_unary);
        call.u.ew.fn = DT_U_AFFINE;
        call.u.ew.a = call.u.ew.b = 1;
        dt__out(&call, p[4]);
        dt__in(&call, p[4]);
        if (dt__go(dt__model_here(m), &call)) return NULL;
        int64_t batches = 1;
        bool    mean = o.cumulative || m->bn_mean;
        if (mean && dt__download(p[4], &batches)) return NULL;
        if (mean) b.momentum = 1 / (double)batches;
    }
    dt_tensor *y = dt__batch_norm(x, p[0], p[1], p[2], p[3], b, m->training ? dt__watch_norm(m) : NULL);
    return dt__layer_end(l, y, 4.0 * (double)x->numel);
}
DT_API dt_tensor *dt_batchnorm1d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__batchnorm(m, "dt_batchnorm1d", name, x, o, 1);
}
DT_API dt_tensor *dt_batchnorm2d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__batchnorm(m, "dt_batchnorm2d", name, x, o, 2);
}
DT_API dt_tensor *dt_batchnorm3d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__batchnorm(m, "dt_batchnorm3d", name, x, o, 3);
}

static dt_tensor *dt__layernorm(dt_model *m, const char *kind, const char *name, dt_tensor *x, dt_layer_opts o, int rms)
{
    dt__layer *l = dt__layer_begin(m, kind, name, x, &o, DT__L(eps) | DT__L(normalized_dims) | DT__L(no_affine) |
                                   (rms ? 0 : DT__L(no_bias)));
    if (!l) return NULL;
    dt_op_norm_opts n;
    n.dt__first = 0;
    n.normalized_dims = o.normalized_dims ? o.normalized_dims : 1;
    n.eps = o.eps;
    if (n.normalized_dims < 1 || n.normalized_dims > x->ndim) {
        dt_fail(DT_ERR_ARG, "%s '%s': .normalized_dims is %d and x is %s; it must be 1 to the dimensions of x", kind, l->name,
                n.normalized_dims, dt__text(x));
        return NULL;
    }
    dt_shape s;
    memset(&s, 0, sizeof s);
    s.ndim = n.normalized_dims;
    for (int i = 0; i < n.normalized_dims; i++) s.dim[i] = x->shape[x->ndim - n.normalized_dims + i];
    dt_tensor *w = NULL, *b = NULL;
    if (!o.no_affine) w = dt__layer_param(m, l, 0, "weight", s, dt__fill_with(DT_INIT_CONST, 1, 0), 0);
    if (w && !rms && !o.no_bias) b = dt__layer_param(m, l, 1, "bias", s, dt__fill_with(DT_INIT_ZEROS, 0, 0), 0);
    if (dt__err.code != DT_OK) return NULL;
    x = dt__layer_input(m, x);
    return dt__layer_end(l, rms ? dt_op_rms_norm_with(x, w, n) : dt_op_layer_norm_with(x, w, b, n),
                         x ? 8.0 * (double)x->numel : 0);
}
DT_API dt_tensor *dt_layernorm_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__layernorm(m, "dt_layernorm", name, x, o, 0);
}
DT_API dt_tensor *dt_rmsnorm_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__layernorm(m, "dt_rmsnorm", name, x, o, 1);
}
/* Where no kernel does it: a layer norm without weights over each group of channels, followed by a weight and a bias for each
   channel, which are a batch norm with mean 0 and variance 1. */
DT_API dt_tensor *dt_groupnorm_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    dt__layer *l = dt__layer_begin(m, "dt_groupnorm", name, x, &o, DT__L(groups) | DT__L(eps) | DT__L(no_affine) | DT__L(split));
    if (!l || !dt__split_is("dt_groupnorm", l->name, o.split, 1u << DT_SPLIT_BOTH)) return NULL;
    if (o.split && !dt__split_divides(m, l, "groups (.groups)", o.groups)) return NULL;
    if (o.split) o.groups /= dt__split_ranks(m);
    if (x->ndim < 2 || o.groups < 1 || x->shape[1] % o.groups) {
        dt_fail(DT_ERR_ARG,
                "dt_groupnorm '%s': x is %s and .groups is %d; x is (n, c, ...) with c divisible by .groups", l->name,
                dt__text(x), o.groups);
        return NULL;
    }
    dt_shape     side = dt__shape1(x->shape[1]), c = dt__shape1(x->shape[1] * (o.split ? dt__split_ranks(m) : 1)), whole = dt_shape_of(x);
    dt_shape     rows = whole;
    dt_tensor   *w = NULL, *b = NULL;
    dt__fillspec one = dt__fill_with(DT_INIT_CONST, 1, 0), zero = dt__fill_with(DT_INIT_ZEROS, 0, 0);
    if (o.split) {
        one = dt__fill_cut(m, one, 0, 1);
        zero = dt__fill_cut(m, zero, 0, 1);
    }
    if (!o.no_affine) {
        w = dt__layer_param(m, l, 0, "weight", c, one, 0);
        b = w ? dt__layer_param(m, l, 1, "bias", c, zero, 0) : NULL;
    }
    if (dt__err.code != DT_OK) return NULL;
    if (w && dt__extended(x->st->dev, DT_K_layer_norm))
        return dt__layer_end(l, dt__group_norm(dt__layer_input(m, x), w, b, o.groups, o.eps), 8.0 * (double)x->numel);
    rows.ndim = 3;
    rows.dim[1] = o.groups;
    rows.dim[2] = x->shape[0] ? x->numel / x->shape[0] / o.groups : 0;
    dt_op_norm_opts n;
    n.dt__first = 0;
    n.normalized_dims = 1;
    n.eps = o.eps;
    dt_tensor *y = dt_op_layer_norm_with(dt_reshape(dt__layer_input(m, x), rows), NULL, NULL, n);
    if (!w) return dt__layer_end(l, dt_reshape(y, whole), 8.0 * (double)x->numel);
    dt_make_opts          on;
    dt_op_batch_norm_opts affine;
    DT__CLEAR(on);
    DT__CLEAR(affine);
    on.device = x->st->dev;
    affine.eval = true;
    affine.eps = DT_ZERO;
    rows.dim[1] = x->shape[1];
    rows.dim[2] = x->shape[0] && x->shape[1] ? x->numel / x->shape[0] / x->shape[1] : 0;
    y = dt_op_batch_norm_with(dt_reshape(y, rows), w, b, dt_zeros_with(side, on), dt_ones_with(side, on), affine);
    return dt__layer_end(l, dt_reshape(y, whole), 8.0 * (double)x->numel);
}

/* The rows of index `pad` pass no gradient on. The op has x's values; its backward multiplies by keep (..., 1). */
static int dt__padding_bwd(dt__node *n, dt_tensor *g)
{
    dt_tensor *d = dt__new_like("backward", g, g->dtype);
    dt_call    c;
    dt__call_begin(&c, DT_K_binary);
    c.u.ew.fn = DT_B_MUL;
    c.u.ew.a = 1;
    int rc = d ? 0 : DT_ERR_MEMORY;
    if (!rc && g->numel) {
        dt__out(&c, d);
        dt__in(&c, g);
        dt_view *keep = dt__in(&c, n->saved[0]);
        keep->stride[keep->ndim - 1] = 0;
        keep->shape[keep->ndim - 1] = g->shape[g->ndim - 1];
        rc = dt__go(g->st->dev, &c);
    }
    if (!rc) rc = dt__grad_put(n->in[0], d);
    dt__unref(d);
    return rc;
}
static dt_tensor *dt__embedding_padded(dt_tensor *y, dt_tensor *index, int64_t pad)
{
    if (!y || !y->requires_grad) return y;
    dt_shape s = dt_shape_of(index);
    s.dim[s.ndim++] = 1;
    dt_no_grad_begin();
    dt_tensor *is = dt_ne(dt_cast(index, DT_I64), dt__scalar_of(index->st->dev, (double)pad, DT_I64));
    dt_tensor *keep = is ? dt_reshape(dt_cast(is, (dt_dtype)y->dtype), s) : NULL;
    dt_no_grad_end();
    dt_tensor *z = keep ? dt__alias(y) : NULL;
    dt__node  *n = z ? dt__record("embedding", z, dt__padding_bwd, 1, &y) : NULL;
    if (n) dt__save(n, keep);
    return z ? dt__finish(z, (int)dt__err.code) : NULL;
}
DT_API dt_tensor *dt_embedding_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    dt__layer *l = dt__layer_begin(m, "dt_embedding", name, x, &o, DT__L(num) | DT__L(dim) | DT__L(padding_idx) | DT__L(split));
    if (!l || !dt__split_is("dt_embedding", l->name, o.split, 1u << DT_SPLIT_OUT | 1u << DT_SPLIT_IN)) return NULL;
    if (o.num < 1 || o.dim < 1) {
        dt_fail(DT_ERR_ARG, "dt_embedding '%s': .num is %" PRId64 " and .dim %" PRId64 "; both must be 1 or more",
                l->name, o.num, o.dim);
        return NULL;
    }
    int64_t pad = o.padding_idx == DT_ZERO ? 0 : o.padding_idx < 0 ? o.num + o.padding_idx : o.padding_idx;
    if (o.padding_idx && (pad < 0 || pad >= o.num)) {
        dt_fail(DT_ERR_ARG, "dt_embedding '%s': .padding_idx is %" PRId64 " and .num %" PRId64 "; it must be a row, or -1 .. -.num from "
                "the end; DT_ZERO for row 0", l->name, o.padding_idx, o.num);
        return NULL;
    }
    if ((o.split == DT_SPLIT_IN && !dt__split_divides(m, l, "rows (.num)", o.num)) ||
        (o.split == DT_SPLIT_OUT && !dt__split_divides(m, l, "columns (.dim)", o.dim)))
        return NULL;
    dt__fillspec f = dt__fill_with(DT_INIT_NORMAL, 0, 1);
    f.zero_row = o.padding_idx ? pad + 1 : 0;
    if (o.split) f = dt__fill_cut(m, f, o.split == DT_SPLIT_OUT, 1);
    dt_tensor *w = dt__layer_param(m, l, 0, "weight", dt__shape2(o.num, o.dim), f, 0);
    if (!w) return NULL;
    dt_tensor *y;
    if (o.split != DT_SPLIT_IN || !m->axis) {
        y = dt_op_embedding(x, w);
    } else {
        dt_tensor *mine = NULL, *i = dt__part_index(m, x, w->shape[0], o.num, &mine);
        y = i ? dt_op_embedding(i, w) : NULL;
        if (!y) return NULL;
        dt_shape s = dt_shape_of(x);
        s.dim[s.ndim++] = 1;
        y = dt__layer_sum(m, l, dt_mul(y, dt_cast(dt_reshape(mine, s), (dt_dtype)y->dtype)), NULL, 0);
    }
    return dt__layer_end(l, o.padding_idx ? dt__embedding_padded(y, x, pad) : y, 0);
}

/* (b, t, heads*d) -> (b, heads, t, d), a view */
static dt_tensor *dt__heads(dt_tensor *x, int heads)
{
    if (!x) return NULL;
    dt_shape s = dt_shape_of(x);
    s.ndim = 4;
    s.dim[2] = heads;
    s.dim[3] = x->shape[2] / heads;
    return dt_transpose(dt_reshape(x, s), 1, 2);
}
/* The keys that each query sees, as u8 that broadcasts to (b, h, t, s); NULL: all, or an error */
static dt_tensor *dt__attention_seen(dt_tensor *q, dt_tensor *k, dt_layer_opts o)
{
    int64_t      t = q->shape[2], s = k->shape[2];
    dt_tensor   *seen = NULL, *part[3] = { NULL, NULL, NULL };
    dt_make_opts mo;
    DT__CLEAR(mo);
    mo.device = q->st->dev;
    dt_tensor *col = o.causal || o.lengths ? dt_reshape(dt_arange_with(0, (double)s, 1, mo), dt__shape2(1, s)) : NULL;
    if (o.causal) part[0] = dt_le(col, dt_reshape(dt_arange_with(0, (double)t, 1, mo), dt__shape2(t, 1)));
    if (o.lengths) {
        dt_shape each = dt__shape2(q->shape[0], 1);
        each.ndim = 4;
        each.dim[2] = each.dim[3] = 1;
        part[1] = dt_lt(col, dt_reshape(dt_cast(o.lengths, DT_F32), each));
    }
    if (o.mask && o.mask->dtype == DT_U8) part[2] = dt_ne(o.mask, dt__scalar_of(mo.device, 0, DT_U8));
    else if (o.mask) part[2] = dt_gt(o.mask, dt__scalar_of(mo.device, -INFINITY, DT_F32));
    for (int i = 0; i < 3; i++)
        if (part[i]) seen = seen ? dt_mul(seen, part[i]) : part[i];
    return seen;
}
/* Attention with dropout of the weights: it needs the whole weight matrix, which dt_attention never stores. */
static dt_tensor *dt__attention_dropped(dt_model *m, dt_tensor *q, dt_tensor *k, dt_tensor *v, dt_layer_opts o)
{
    if (!q || !k || !v) return NULL;
    dt_tensor *a = dt_mul_scalar(dt_matmul(q, dt_transpose(k, 2, 3)), 1 / sqrt((double)q->shape[3]));
    if (a && o.mask && o.mask->dtype != DT_U8) a = dt_add(a, o.mask);
    dt_no_grad_begin();
    dt_tensor *seen = a ? dt__attention_seen(q, k, o) : NULL;
    dt_no_grad_end();
    /* a large number in place of infinity: a query that sees no key has no NaN, and its weights become 0 below */
    if (seen) a = dt_where(seen, a, dt__scalar_of(q->st->dev, a->dtype == DT_F16 ? -60000.0 : -1e30, (dt_dtype)a->dtype));
    a = dt_softmax(a, -1);
    if (seen && a) a = dt_where(seen, a, dt__scalar_of(q->st->dev, 0, (dt_dtype)a->dtype));
    return dt_matmul(o.split ? dt_dropout_parts(m, a, o.dropout, 1) : dt_dropout(m, a, o.dropout), v);
}
DT_API dt_tensor *dt_multihead_attention_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    dt__layer *l = dt__layer_begin(m, "dt_multihead_attention", name, x, &o, DT__L(heads) | DT__L(causal) |
                                   DT__L(dropout) | DT__L(no_bias) | DT__L(kv) | DT__L(mask) | DT__L(lengths) | DT__L(split));
    if (!l || !dt__split_is("dt_multihead_attention", l->name, o.split, 1u << DT_SPLIT_HEADS)) return NULL;
    dt_tensor *kv = o.kv ? o.kv : x;
    if (!dt__ok("dt_multihead_attention", ".kv", kv)) return NULL;
    if (o.dropout == DT_ZERO) o.dropout = 0;
    if (!(o.dropout >= 0 && o.dropout <= 1)) {
        dt_fail(DT_ERR_ARG, "dt_multihead_attention '%s': .dropout is %g; it must be between 0 and 1", l->name, o.dropout);
        return NULL;
    }
    int64_t e = dt_size(x, -1);
    if (x->ndim != 3 || kv->ndim != 3 || kv->shape[0] != x->shape[0] || kv->shape[2] != e || o.heads < 1 ||
        e % o.heads) {
        dt_fail(DT_ERR_ARG, "dt_multihead_attention '%s': x %s, kv %s, .heads %d: needs x (b, t, e), kv (b, s, e), e "
                "divisible by .heads", l->name, dt__text(x), dt__text(kv), o.heads);
        return NULL;
    }
    /* The order of random numbers is PyTorch's: it draws out_proj (weight, then a bias that it sets to 0) before in_proj,
       although in_proj comes first in the state_dict. in_proj is Xavier-uniform. */
    if (o.split && !dt__split_divides(m, l, "heads (.heads)", o.heads)) return NULL;
    double       bound = sqrt(3.0) * sqrt(2.0 / (double)(4 * e));
    dt__fillspec zero = dt__fill_with(DT_INIT_ZEROS, 0, 0), xavier = dt__fill_with(DT_INIT_UNIFORM, -bound, bound);
    dt__fillspec into = zero, back = dt__fill_kaiming(e);
    if (o.split) {
        xavier = dt__fill_cut(m, xavier, 0, 3);
        into = dt__fill_cut(m, into, 0, 3);
        back = dt__fill_cut(m, back, 1, 1);
    }
    dt_shape   in = dt__shape2(3 * e, e), out = dt__shape2(e, e);
    dt_tensor *wi, *bi = NULL, *wo, *bo = NULL;
    int        drawn = !l->p[0] && !m->sealed && !m->want;
    dt_rng     before = m->rng, after;
    if (drawn) {
        dt_free(dt__param_init(m, out, DT_F32, dt__fill_kaiming(e)));
        if (!o.no_bias) dt_free(dt__param_init(m, dt__shape1(e), DT_F32, dt__fill_bias(e)));
    }
    wi = dt__layer_param(m, l, 0, "in_proj_weight", in, xavier, 0);
    after = m->rng;
    if (wi && !o.no_bias) bi = dt__layer_param(m, l, 1, "in_proj_bias", dt__shape1(3 * e), into, 0);
    if (drawn) m->rng = before;
    wo = wi ? dt__layer_param(m, l, 2, "out_proj.weight", out, back, 0) : NULL;
    if (drawn) m->rng = after;
    if (wo && !o.no_bias) bo = dt__layer_param(m, l, 3, "out_proj.bias", dt__shape1(e), zero, 0);
    if (dt__err.code != DT_OK) return NULL;
    dt_op_linear_opts lo;
    lo.dt__first = 0;
    lo.act = DT_ACT_NONE;
    bool     sums = o.split && m->axis;
    dt_shape local = dt_shape_of(x);
    if (sums) { /* from here on e and heads are those of this rank */
        x = dt__part_enter(m, l, x);
        kv = o.kv ? dt__part_enter(m, l, kv) : x;
        e /= m->axis->size;
        o.heads /= m->axis->size;
        local.dim[2] = e;
    }
    x = dt__layer_input(m, x);
    dt_tensor *part[3];
    if (!o.kv) {
        dt_tensor *all = dt_op_linear_with(x, wi, bi, lo);
        for (int i = 0; i < 3; i++) part[i] = dt_narrow(all, 2, i * e, e);
    } else {
        kv = dt__layer_input(m, kv);
        dt_tensor *bq = bi ? dt_narrow(bi, 0, 0, e) : NULL, *bkv = bi ? dt_narrow(bi, 0, e, 2 * e) : NULL;
        part[0] = dt_op_linear_with(x, dt_narrow(wi, 0, 0, e), bq, lo);
        dt_tensor *two = dt_op_linear_with(kv, dt_narrow(wi, 0, e, 2 * e), bkv, lo);
        for (int i = 0; i < 2; i++) part[1 + i] = dt_narrow(two, 2, i * e, e);
    }
    for (int i = 0; i < 3; i++) part[i] = dt__heads(part[i], o.heads);
    dt_attention_opts ao;
    DT__CLEAR(ao);
    ao.causal = o.causal;
    ao.mask = o.mask;
    ao.lengths = o.lengths;
    dt_tensor *a = o.dropout > 0 && m->training ? dt__attention_dropped(m, part[0], part[1], part[2], o)
                                                : dt_attention_with(part[0], part[1], part[2], ao);
    dt_tensor *y = a ? dt_op_linear_with(dt_reshape(dt_transpose(a, 1, 2), local), wo, sums ? NULL : bo, lo) : NULL;
    if (sums) y = dt__layer_sum(m, l, y, bo, 1);
    if (!y) return NULL;
    double     t = (double)x->numel, s = (double)kv->numel, de = (double)e;
    return dt__layer_end(l, y, 4.0 * t * de + 4.0 * s * de + 4.0 * t * (double)kv->shape[1]);
}
DT_API dt_tensor *dt_dropout(dt_model *m, dt_tensor *x, double p)
{
    if (!dt__model_ok("dt_dropout", m)) return NULL;
    dt_op_dropout_opts o;
    o.dt__first = 0;
    o.eval = !m->training;
    o.rng = &m->rng;
    return dt_op_dropout_with(x, p, o);
}

/* ---- dt_parameter and dt_buffer */
static dt_tensor *dt__user_parameter(dt_model *m, const char *kind, const char *name, dt_shape shape, dt_parameter_opts o,
                          int flags)
{
    dt__layer *l = dt__layer_find(m, kind, name, o.shared);
    if (!l) return NULL;
    if ((unsigned)o.init > DT_INIT_NORMAL) {
        dt_fail(DT_ERR_ARG, "%s '%s': .init is %d; it must be DT_INIT_ZEROS, _CONST, _UNIFORM or _NORMAL", kind, l->name,
                (int)o.init);
        return NULL;
    }
    if (o.init == DT_INIT_NORMAL && o.a == 0 && o.b == 0) o.b = 1;
    if (!l->p[0]) {
        l->p[0] = dt__param_new(m, l->name, NULL, shape, dt__fill_with(o.init, o.a, o.b), flags);
        if (!l->p[0]) return NULL;
        l->out = dt_shape_of(l->p[0]->t);
    }
    return dt__layer_param(m, l, 0, "value", shape, dt__fill_with(o.init, o.a, o.b), flags);
}
DT_API dt_tensor *dt_parameter_with(dt_model *m, const char *name, dt_shape shape, dt_parameter_opts o)
{
    return dt__user_parameter(m, "dt_parameter", name, shape, o, 0);
}
DT_API dt_tensor *dt_buffer_with(dt_model *m, const char *name, dt_shape shape, dt_parameter_opts o)
{
    return dt__user_parameter(m, "dt_buffer", name, shape, o, DT__BUFFER);
}

/* ==================================================================================================== >>optim
   An optimiser owns the blocks whose 'opt' is its index. A step makes one update for each run: consecutive parameters of
   a block that have a gradient and an equal number of updates. Runs are kept from step to step until one of these
   changes. A step allocates all memory before the first kernel that changes a weight or a state: if an allocation fails,
   nothing has changed. */
static int dt__amp_before_step(dt_amp *amp, dt_optimizer *opt);

/* ---- options: numbers X(name, key in a checkpoint, at least, below, words), then flags. A key never changes. */
#define DT__OPTIM_NUMBERS(X)                                                                      \
    X(lr, "lr", 0, INFINITY, "0 (DT_ZERO) or more")                                               \
    X(weight_decay, "weight_decay", 0, INFINITY, "0 or more")                                     \
    X(momentum, "momentum", 0, INFINITY, "0 or more")                                             \
    X(dampening, "dampening", -INFINITY, INFINITY, "finite")                                      \
    X(beta1, "beta1", 0, 1, "0 (DT_ZERO) or more and below 1")                                    \
    X(beta2, "beta2", 0, 1, "0 (DT_ZERO) or more and below 1")                                    \
    X(eps, "eps", 0, INFINITY, "0 (DT_ZERO) or more")                                             \
    X(alpha, "alpha", 0, INFINITY, "0 (DT_ZERO) or more")                                         \
    X(lr_decay, "lr_decay", 0, INFINITY, "0 or more")                                             \
    X(initial_accumulator_value, "initial_accumulator", 0, INFINITY, "0 or more")                 \
    X(beta2_decay, "beta2_decay", -INFINITY, 2.3e-308, "0 (DT_ZERO) or less")                      \
    X(eps2, "eps2", 0, INFINITY, "0 (DT_ZERO) or more")                                           \
    X(d, "d", 0, INFINITY, "1 or more")                                                           \
    X(trust_coefficient, "trust", 0, INFINITY, "0 (DT_ZERO) or more")                             \
    X(clip_norm, "clip_norm", 0, INFINITY, "above 0, or DT_ZERO for no clipping")                 \
    X(clip_value, "clip_value", 0, INFINITY, "above 0")
#define DT__OPTIM_FLAGS(X) X(nesterov) X(amsgrad) X(centered) X(no_trust_ratio) X(maximize)

#define DT__OPTIM_BIT(n, key, lo, below, must) DT__O_##n,
#define DT__OPTIM_FLAG_BIT(n) DT__O_##n,
enum { DT__OPTIM_NUMBERS(DT__OPTIM_BIT) DT__OPTIM_FLAGS(DT__OPTIM_FLAG_BIT) DT__O_params, DT__O_COUNT };
#undef DT__OPTIM_BIT
#undef DT__OPTIM_FLAG_BIT
enum { DT__O_NUMBERS = DT__O_nesterov, DT__O_FLAGS = DT__O_params - DT__O_nesterov };
#define DT__O(n) (1u << DT__O_##n)
#define DT__O_CLIP (DT__O(clip_norm) | DT__O(clip_value)) /* of the optimiser, not of a group */

typedef struct dt__optim_number { /* must be finite, at least lo, below 'below' */
    const char *name, *key;
    size_t      at;
    double      lo, below;
    const char *must;
} dt__optim_number;
#define DT__NUMBER(n, key, lo, below, must) { #n, key, offsetof(dt_optimizer_opts, n), lo, below, must },
static const dt__optim_number dt__optim_numbers[DT__O_NUMBERS] = { DT__OPTIM_NUMBERS(DT__NUMBER) };
#undef DT__NUMBER
#define DT__FLAG(n) offsetof(dt_optimizer_opts, n),
static const size_t dt__optim_flags[DT__O_FLAGS] = { DT__OPTIM_FLAGS(DT__FLAG) };
#undef DT__FLAG

/* ---- the table of optimisers. To add one: declare it and its macro in >>optimizers, add a row at the end of
   DT__OPTIMIZERS (checkpoints store the row number, so rows keep their order), and write the function that sets the
   arguments of its kernel. The enumeration, the table and the public functions are generated from the rows; a missing
   column, function or declaration does not compile. Columns:

       name        dt_NAME and dt_NAME_with
       kernel      DT_K_...
       options     the options it takes, each with its default; all other options are refused
       states      PyTorch's names, and for each the option that must not be 0 for the state to exist, or DT__ALWAYS
       traits      DT__... below
       arguments   sets c->u.opt for the t-th update of a parameter, t = 1, 2 ...; the caller has already set lr, wd, eps,
                   maximize and decoupled
       before      called for every run before the first weight changes; NULL: nothing to do
       update      makes the update; dt__update_fused makes one kernel call: p, states, [copy] <- g, [gscale] */
enum {
    DT__DECOUPLED = 1,       /* weight decay multiplies the weight and is not added to the gradient */
    DT__TRUST_RATIO = 2,     /* each parameter's lr is scaled by a ratio of norms, unless .no_trust_ratio */
    DT__NORM_INPUTS = 4,     /* the kernel has the optional inputs wnorm, gnorm, segments */
    DT__DIVIDES = 8,         /* the update divides by a state plus eps */
    DT__COUNT_MOMENTUM = 16, /* a parameter's updates are counted only while .momentum is not 0 */
    DT__UPDATE_TENSOR = 32,  /* dt__step_temp.update is needed */
    DT__OWN_STATES = 64      /* states are tensors of each parameter, with shapes of dt__own_shape */
};
#define DT__ALWAYS 0xffffffffu
#define DT__OPTION(n, value) { DT__O(n), value }
#define DT__OPTIONS(...) { __VA_ARGS__ }
#define DT__STATE(n, option) { n, option }
#define DT__STATES(...) { __VA_ARGS__ }
#define DT__COMMON(rate, decay, clip) /* .lr, .weight_decay, .clip_norm, and options whose default is 0 */            \
    DT__OPTION(params, 0), DT__OPTION(lr, rate), DT__OPTION(weight_decay, decay), DT__OPTION(maximize, 0),            \
        DT__OPTION(clip_norm, clip), DT__OPTION(clip_value, 0)
#define DT__BETAS(epsilon) DT__OPTION(beta1, 0.9), DT__OPTION(beta2, 0.999), DT__OPTION(eps, epsilon)
#define DT__ADAM_STATES                                                                                               \
    DT__STATES(DT__STATE("exp_avg", DT__ALWAYS), DT__STATE("exp_avg_sq", DT__ALWAYS),                                 \
               DT__STATE("max_exp_avg_sq", DT__O(amsgrad)))
#define DT__OPTIMIZERS(X)                                                                                             \
    X(sgd, DT_K_sgd,                                                                                                  \
      DT__OPTIONS(DT__COMMON(1e-3, 0, 0), DT__OPTION(momentum, 0), DT__OPTION(dampening, 0), DT__OPTION(nesterov, 0)),\
      DT__STATES(DT__STATE("momentum_buffer", DT__O(momentum))), DT__NORM_INPUTS | DT__COUNT_MOMENTUM,                \
      dt__arguments_sgd, NULL, dt__update_fused)                                                                      \
    X(adam, DT_K_adam, DT__OPTIONS(DT__COMMON(1e-3, 0, 0), DT__BETAS(1e-8), DT__OPTION(amsgrad, 0)),                  \
      DT__ADAM_STATES, DT__DIVIDES, dt__arguments_adam, NULL, dt__update_fused)                                       \
    X(adamw, DT_K_adam, DT__OPTIONS(DT__COMMON(1e-3, 1e-2, 0), DT__BETAS(1e-8), DT__OPTION(amsgrad, 0)),              \
      DT__ADAM_STATES, DT__DIVIDES | DT__DECOUPLED, dt__arguments_adam, NULL, dt__update_fused)                       \
    X(rmsprop, DT_K_rmsprop,                                                                                          \
      DT__OPTIONS(DT__COMMON(1e-2, 0, 0), DT__OPTION(momentum, 0), DT__OPTION(alpha, 0.99), DT__OPTION(eps, 1e-8),    \
                  DT__OPTION(centered, 0)),                                                                           \
      DT__STATES(DT__STATE("square_avg", DT__ALWAYS), DT__STATE("grad_avg", DT__O(centered)),                         \
                 DT__STATE("momentum_buffer", DT__O(momentum))),                                                      \
      DT__DIVIDES, dt__arguments_rmsprop, NULL, dt__update_fused)                                                     \
    X(adagrad, DT_K_adagrad,                                                                                          \
      DT__OPTIONS(DT__COMMON(1e-2, 0, 0), DT__OPTION(eps, 1e-10), DT__OPTION(lr_decay, 0),                            \
                  DT__OPTION(initial_accumulator_value, 0)),                                                          \
      DT__STATES(DT__STATE("sum", DT__ALWAYS)), DT__DIVIDES, dt__arguments_adagrad, dt__before_adagrad,               \
      dt__update_fused)                                                                                               \
    X(lars, DT_K_sgd,                                                                                                 \
      DT__OPTIONS(DT__COMMON(0.1, 0, 0), DT__OPTION(momentum, 0.9), DT__OPTION(nesterov, 0), DT__OPTION(eps, 1e-8),   \
                  DT__OPTION(trust_coefficient, 0.001), DT__OPTION(no_trust_ratio, 0)),                               \
      DT__STATES(DT__STATE("momentum_buffer", DT__O(momentum))),                                                      \
      DT__TRUST_RATIO | DT__NORM_INPUTS | DT__COUNT_MOMENTUM, dt__arguments_sgd, dt__before_lars, dt__update_fused)   \
    X(lamb, DT_K_lamb, DT__OPTIONS(DT__COMMON(1e-3, 1e-2, 1.0), DT__BETAS(1e-6), DT__OPTION(no_trust_ratio, 0)),      \
      DT__STATES(DT__STATE("exp_avg", DT__ALWAYS), DT__STATE("exp_avg_sq", DT__ALWAYS)),                              \
      DT__TRUST_RATIO | DT__DIVIDES | DT__UPDATE_TENSOR, dt__arguments_adam, dt__before_lamb, dt__update_lamb)                      \
    X(lion, DT_K_lion, DT__OPTIONS(DT__COMMON(1e-4, 0, 0), DT__OPTION(beta1, 0.9), DT__OPTION(beta2, 0.99)),          \
      DT__STATES(DT__STATE("exp_avg", DT__ALWAYS)), DT__DECOUPLED, dt__arguments_lion, NULL, dt__update_fused)        \
    X(muon, DT_K_sgd, DT__OPTIONS(DT__COMMON(1e-3, 0.1, 0), DT__OPTION(momentum, 0.95), DT__OPTION(eps, 1e-7)),       \
      DT__STATES(DT__STATE("momentum_buffer", DT__ALWAYS)), DT__DECOUPLED | DT__UPDATE_TENSOR, dt__arguments_lion,    \
      dt__before_muon, dt__update_muon)                                                                               \
    X(adafactor, DT_K_sgd,                                                                                            \
      DT__OPTIONS(DT__COMMON(1e-2, 0, 0), DT__OPTION(beta2_decay, -0.8), DT__OPTION(eps, 0), DT__OPTION(eps2, 1e-3),  \
                  DT__OPTION(d, 1)),                                                                                  \
      DT__STATES(DT__STATE("row_var", DT__ALWAYS), DT__STATE("col_var", DT__ALWAYS), DT__STATE("variance", DT__ALWAYS)), \
      DT__DECOUPLED | DT__UPDATE_TENSOR | DT__OWN_STATES, dt__arguments_lion, dt__before_adafactor, dt__update_adafactor)

typedef struct dt__step_temp { /* for each of opt->places */
    dt_tensor *gscale[DT__MAX_PLACES]; /* the clip coefficient, or NULL */
    dt_tensor *update[DT__MAX_PLACES]; /* DT__UPDATE_TENSOR: f32, as long as all runs there; else NULL */
    dt_tensor *wparts[DT__MAX_PLACES], *uparts[DT__MAX_PLACES]; /* DT__TRUST_RATIO: norms of parts (see dt__norms_new); else NULL */
} dt__step_temp;
typedef struct dt__optim_option {
    uint32_t option; /* DT__O(...); 0 ends the list */
    double   value;  /* the default */
} dt__optim_option;
typedef struct dt__optim_state {
    const char *name;   /* NULL ends the list */
    uint32_t    option; /* the state exists while this option is not 0; DT__ALWAYS */
} dt__optim_state;
typedef struct dt__optim_operands { /* of one update, 1-d; an absent one has ndim -1 */
    dt_device *dev;
    dt_view    value, state[DT__MAX_STATES], half, grad; /* half: the half parameters, if value is their f32 masters */
    dt_view    gscale, update; /* see dt__step_temp */
    dt_view    wnorm, unorm, segments, slots; /* see dt__run */
    dt_view    parts, wparts, uparts;  /* of the run */
    dt_view    wall, uall;             /* of its whole parameters, on all ranks */
    dt_tensor *clip;                   /* gscale as a tensor, or NULL */
    dt_model  *m;        /* with run: what is updated; NULL for arrays that are in no model */
    const dt__run *run;
} dt__optim_operands;
typedef struct dt__optim_kind {
    const char      *call;
    int              kernel;
    dt__optim_option option[DT__O_COUNT + 1];
    dt__optim_state  state[DT__MAX_STATES];
    unsigned         traits;
    void (*arguments)(dt_call *c, const dt_optimizer_opts *o, double t);
    int (*before)(const dt__optim_operands *v, const dt_optimizer_opts *g, double t);
    int (*update)(const dt__optim_operands *v, const struct dt__optim_kind *k, const dt_optimizer_opts *g, double t);
} dt__optim_kind;
static void dt__arguments_sgd(dt_call *c, const dt_optimizer_opts *o, double t);
static void dt__arguments_adam(dt_call *c, const dt_optimizer_opts *o, double t);
static void dt__arguments_rmsprop(dt_call *c, const dt_optimizer_opts *o, double t);
static void dt__arguments_adagrad(dt_call *c, const dt_optimizer_opts *o, double t);
static int  dt__before_adagrad(const dt__optim_operands *v, const dt_optimizer_opts *g, double t);
static int  dt__before_lars(const dt__optim_operands *v, const dt_optimizer_opts *g, double t);
static int  dt__before_lamb(const dt__optim_operands *v, const dt_optimizer_opts *g, double t);
static int  dt__update_fused(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t);
static int  dt__update_lamb(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t);
static void dt__arguments_lion(dt_call *c, const dt_optimizer_opts *o, double t);
static int  dt__before_muon(const dt__optim_operands *v, const dt_optimizer_opts *g, double t);
static int  dt__update_muon(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t);
static int  dt__before_adafactor(const dt__optim_operands *v, const dt_optimizer_opts *g, double t);
static int  dt__update_adafactor(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t);
static int  dt__before_rule(const dt__optim_operands *v, const dt_optimizer_opts *g, double t);
static int  dt__update_rule(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t);
#define DT__OPTIM_KIND(name, kernel, options, states, traits, arguments, before, update) DT__KIND_##name,
enum { DT__OPTIMIZERS(DT__OPTIM_KIND) DT__OPTIM_KINDS };
#undef DT__OPTIM_KIND
#define DT__OPTIM_ROW(name, kernel, options, states, traits, arguments, before, update) \
    { "dt_" #name, kernel, options, states, traits, arguments, before, update },
static const dt__optim_kind dt__optim_kinds[DT__OPTIM_KINDS] = { DT__OPTIMIZERS(DT__OPTIM_ROW) };
#undef DT__OPTIM_ROW
typedef struct dt__custom { /* the kind of a dt_rule; several optimisers may share it */
    dt__optim_kind kind;
    dt_rule        rule;
    int            refs;
} dt__custom;
static const dt__optim_kind *dt__optim_kind_of(const dt_optimizer *opt)
{
    return opt->custom ? &opt->custom->kind : &dt__optim_kinds[opt->kind];
}
static void dt__custom_unref(dt__custom *c)
{
    if (c && __atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL) == 0) dt_mem_free(c, sizeof *c);
}
static uint32_t dt__optim_takes(const dt__optim_kind *k)
{
    uint32_t takes = 0;
    for (int i = 0; k->option[i].option; i++) takes |= k->option[i].option;
    return takes;
}
static int dt__optim_nstates(const dt__optim_kind *k)
{
    int n = 0;
    while (n < DT__MAX_STATES && k->state[n].name) n++;
    return n;
}

static double *dt__optim_at(dt_optimizer_opts *o, int i) { return (double *)((char *)o + dt__optim_numbers[i].at); }
static bool   *dt__optim_flag(dt_optimizer_opts *o, int i) { return (bool *)((char *)o + dt__optim_flags[i]); }

static uint32_t dt__optim_given(const dt_optimizer_opts *options) /* the options that are not 0, as bits */
{
    dt_optimizer_opts o = *options;
    uint32_t          given = o.params ? DT__O(params) : 0u;
    for (int i = 0; i < DT__O_NUMBERS; i++) given |= (uint32_t)(*dt__optim_at(&o, i) != 0) << i;
    for (int i = 0; i < DT__O_FLAGS; i++) given |= (uint32_t)*dt__optim_flag(&o, i) << (DT__O_NUMBERS + i);
    return given;
}
static bool dt__optim_options_ok(const char *call, const dt_optimizer_opts *o, uint32_t takes)
{
    uint32_t given = dt__optim_given(o);
    if (!(given & ~takes)) return true;
#define DT__OPTIM_NAME(n, key, lo, below, must) #n,
#define DT__OPTIM_FLAG_NAME(n) #n,
    static const char *const names[] = { DT__OPTIM_NUMBERS(DT__OPTIM_NAME) DT__OPTIM_FLAGS(DT__OPTIM_FLAG_NAME)
                                         "params" };
#undef DT__OPTIM_NAME
#undef DT__OPTIM_FLAG_NAME
    char list[320];
    int  bad = dt__option_list(list, sizeof list, names, DT__O_COUNT, takes, given);
    dt_fail(DT_ERR_ARG, "%s: .%s is not an option here; it takes %s", call, names[bad], list);
    return false;
}
/* Was .name = ... written? text: the options as the macro saw them. */
static bool dt__option_written(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = text; p && (p = strchr(p, '.')) != NULL; p++) {
        const char *q = p + 1 + n;
        if (strncmp(p + 1, name, n)) continue;
        while (*q == ' ') q++;
        if (*q == '=' && q[1] != '=') return true;
    }
    return false;
}
/* A zero that the program wrote where zero means a default that is not zero. */
static int dt__optim_zeros(const char *call, dt_optimizer_opts *o, dt_optimizer_opts *base, const char *means)
{
    for (int i = 0; i < DT__O_NUMBERS; i++) {
        double      x = *dt__optim_at(base, i);
        const char *name = dt__optim_numbers[i].name;
        if (*dt__optim_at(o, i) == 0 && x != 0 && dt__option_written(o->dt__first, name))
            return dt_fail(DT_ERR_ARG, "%s: .%s = 0 means %s, %g; write .%s = DT_ZERO for zero, or leave it out", call, name,
                           means, x, name);
    }
    return 0;
}
/* Options that are 0 are taken from base. */
static void dt__optim_resolve(dt_optimizer_opts *o, dt_optimizer_opts *base)
{
    for (int i = 0; i < DT__O_NUMBERS; i++) {
        double *x = dt__optim_at(o, i);
        *x = *x == 0 ? *dt__optim_at(base, i) : *x == DT_ZERO ? 0 : *x;
    }
    for (int i = 0; i < DT__O_FLAGS; i++) *dt__optim_flag(o, i) |= *dt__optim_flag(base, i);
    o->params = NULL;
}
static int dt__optim_check(const char *call, dt_optimizer_opts *o)
{
    for (int i = 0; i < DT__O_NUMBERS; i++) {
        const dt__optim_number *f = &dt__optim_numbers[i];
        double                  x = *dt__optim_at(o, i);
        if (!(isfinite(x) && x >= f->lo && x < f->below))
            return dt_fail(DT_ERR_ARG, "%s: .%s is %g; it must be %s", call, f->name, x, f->must);
    }
    if (o->d != 0 && o->d < 1) return dt_fail(DT_ERR_ARG, "%s: .d is %g; it must be 1 or more", call, o->d);
    if (o->nesterov && (o->momentum <= 0 || o->dampening != 0))
        return dt_fail(DT_ERR_ARG, "%s: .nesterov needs .momentum above 0 and no .dampening; they are %g and %g", call,
                       o->momentum, o->dampening);
    return 0;
}
static bool dt__optim_ok(const char *call, const dt_optimizer *opt)
{
    if (dt__err.code != DT_OK) return false;
    if (opt && opt->m) return true;
    dt_fail(opt ? DT_ERR_STATE : DT_ERR_ARG, opt ? "%s: the model of the optimiser was freed"
            : "%s: the optimiser is NULL", call);
    return false;
}
static bool dt__optim_may_pack(const char *call, const dt_model *m) /* blocks cannot be rebuilt while a tape uses them */
{
    if (!m->sealed || !dt__tls.tape.n) return true;
    dt_fail(DT_ERR_STATE, "%s: the tape of the current step uses the parameters; call it after dt_end()", call);
    return false;
}

/* ---- creating and freeing */
static void dt__runs_free(dt_optimizer *opt)
{
    for (int i = 0; i < opt->nruns; i++) {
        dt__unref(opt->run[i].parts);
        dt__unref(opt->run[i].segments);
        dt__unref(opt->run[i].slots);
        dt__unref(opt->run[i].wnorm);
        dt__unref(opt->run[i].unorm);
    }
    opt->nruns = opt->reached = opt->places.n = 0;
    opt->nparts = 0;
    opt->run_version = -1;
}
static void dt__optimizer_orphan(dt_optimizer *opt) /* its model is being freed */
{
    dt__runs_free(opt);
    opt->m = NULL;
}
/* Removes the optimiser from its model. Its parameters have no optimiser then, and its states are freed. */
static void dt__optimizer_leave(dt_optimizer *opt)
{
    dt_model *m = opt->m;
    dt__runs_free(opt);
    if (!m) return;
    for (int i = opt->index; i + 1 < m->nopts; i++) {
        m->opt[i] = m->opt[i + 1];
        m->opt[i]->index = i;
    }
    m->nopts--;
    for (int i = 0; i < m->nblocks; i++) {
        dt__mblock *b = &m->block[i];
        for (int k = 0; k < DT__MAX_STATES && b->opt == opt->index; k++) {
            dt__unref(b->state[k]);
            b->state[k] = NULL;
        }
        b->opt = b->opt == opt->index ? -1 : b->opt > opt->index ? b->opt - 1 : b->opt;
    }
    for (int i = 0; i < m->nparams; i++) {
        dt__param *p = m->param[i];
        if (p->opt == opt->index) p->steps = 0;
        if (p->opt == opt->index) dt__own_free(p);
        p->opt = p->opt == opt->index ? -1 : p->opt > opt->index ? p->opt - 1 : p->opt;
    }
    opt->m = NULL;
}
DT_API void dt_optimizer_free(dt_optimizer *opt)
{
    if (!opt) return;
    dt__optimizer_leave(opt);
    for (int g = 0; g < opt->ngroups; g++) dt__free_text(opt->pattern[g]);
    dt_mem_free(opt->run, (size_t)opt->run_cap * sizeof *opt->run);
    dt__custom_unref(opt->custom);
    for (int i = 0; i < 2; i++) dt_mem_free(opt->aside[i].at, (size_t)opt->aside[i].cap * sizeof *opt->aside[i].at);
    dt_mem_free(opt, sizeof *opt);
}
DT__INSIDE int dt__optimizer_claims(const dt_optimizer *opt, const char *name)
{
    if (opt->pattern[0] && !dt_name_matches(opt->pattern[0], name)) return -1;
    for (int g = opt->ngroups - 1; g > 0; g--)
        if (dt_name_matches(opt->pattern[g], name)) return g;
    return 0;
}
static dt_optimizer_opts dt__optim_defaults(const dt__optim_kind *k)
{
    dt_optimizer_opts o;
    memset((void *)&o, 0, sizeof o);
    for (int i = 0; i < DT__O_NUMBERS; i++)
        for (const dt__optim_option *d = k->option; d->option; d++)
            if (d->option == 1u << i) *dt__optim_at(&o, i) = d->value;
    return o;
}
static dt_optimizer *dt__optim_new(dt_model *m, int kind, dt__custom *custom, dt_optimizer_opts *o) /* takes a reference to custom */
{
    const dt__optim_kind *k = custom ? &custom->kind : &dt__optim_kinds[kind];
    dt_optimizer_opts     base = dt__optim_defaults(k);
    const char           *pattern = o->params;
    if (!dt__model_ok(k->call, m) || !dt__optim_options_ok(k->call, o, dt__optim_takes(k))) return NULL;
    if (m->reader && !dt__model_own(k->call, m)) return NULL;
    if (m->nopts == DT__MAX_OPTIMIZERS)
        dt_fail(DT_ERR_STATE, "%s: the model has %d optimisers at most, and has them already; free one", k->call,
                DT__MAX_OPTIMIZERS);
    if (pattern && !*pattern) dt_fail(DT_ERR_ARG, "%s: .params is an empty pattern; omit it for all parameters", k->call);
    dt__optim_zeros(k->call, o, &base, "the default");
    dt__optim_resolve(o, &base);
    if (dt__optim_check(k->call, o) || dt__err.code != DT_OK || !dt__optim_may_pack(k->call, m)) return NULL;
    dt_optimizer *opt = (dt_optimizer *)dt__alloc_zero(sizeof *opt);
    if (!opt) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", k->call);
        return NULL;
    }
    opt->kind = kind;
    opt->custom = custom;
    if (custom) custom->refs++;
    opt->ngroups = 1;
    opt->group[0] = *o;
    opt->run_version = -1;
    if (pattern) opt->pattern[0] = dt__joined("", 0, pattern, NULL);
    if (!pattern || opt->pattern[0]) {
        opt->m = m;
        opt->index = m->nopts;
        m->opt[m->nopts++] = opt;
        if (!dt__model_assign(m)) return opt;
    }
    dt_optimizer_free(opt);
    return NULL;
}
#define DT__OPTIM_NEW(name, kernel, options, states, traits, arguments, before, update)                \
    enum { dt__declared_##name = sizeof(&dt_##name##_with) }; /* an error if >>optimizers lacks it */ \
    DT_API dt_optimizer *dt_##name##_with(dt_model *m, dt_optimizer_opts o)                            \
    {                                                                                                  \
        return dt__optim_new(m, DT__KIND_##name, NULL, &o);                                            \
    }
DT__OPTIMIZERS(DT__OPTIM_NEW)
#undef DT__OPTIM_NEW
DT_API dt_optimizer *dt_optimizer_new_with(dt_model *m, const dt_rule *rule, dt_optimizer_opts o)
{
    const char *call = "dt_optimizer_new";
    if (dt__err.code != DT_OK) return NULL;
    if (!rule || !rule->name || !*rule->name || !rule->update) {
        dt_fail(DT_ERR_ARG, "%s: %s; it needs .name and .update", call, !rule ? "the rule is NULL" : !rule->update ? "the rule has no "
                "function" : "the rule has no name");
        return NULL;
    }
    for (int i = 1; i < DT_RULE_STATES; i++)
        if (rule->state[i] && !rule->state[i - 1]) {
            dt_fail(DT_ERR_ARG, "%s: rule '%s': .state[%d] has a name and .state[%d] has none; name the used ones first", call, rule->name,
                    i, i - 1);
            return NULL;
        }
    dt__custom *c = (dt__custom *)dt__alloc_zero(sizeof *c);
    if (!c) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    c->refs = 1;
    c->rule = *rule;
    c->kind.call = rule->name;
    c->kind.kernel = DT_K_sgd;
    for (int i = 0; i < DT__O_COUNT; i++) {
        c->kind.option[i].option = 1u << i;
        if (i < DT__O_NUMBERS) c->kind.option[i].value = *dt__optim_at(&c->rule.defaults, i);
    }
    if (c->rule.defaults.lr == 0) c->kind.option[DT__O_lr].value = 1e-3;
    for (int i = 0; i < DT_RULE_STATES; i++) {
        c->kind.state[i].name = rule->state[i];
        c->kind.state[i].option = DT__ALWAYS;
    }
    c->kind.arguments = dt__arguments_lion;
    c->kind.before = dt__before_rule;
    c->kind.update = dt__update_rule;
    int           number = (int)(dt__name_hash(rule->name, strlen(rule->name), "") & 0x3fffffff) | 0x40000000;
    dt_optimizer *opt = dt__optim_new(m, number, c, &o);
    dt__custom_unref(c);
    return opt;
}

DT_API int dt_optimizer_add_group_with(dt_optimizer *opt, const char *pattern, dt_optimizer_opts o)
{
    const char *call = "dt_optimizer_add_group";
    if (!dt__optim_ok(call, opt)) return dt_error_code();
    dt_model *m = opt->m;
    uint32_t  takes = dt__optim_takes(dt__optim_kind_of(opt)) & ~(DT__O_CLIP | DT__O(params));
    int       matched = 0, g = opt->ngroups;
    if (!pattern || !*pattern)
        return dt_fail(DT_ERR_ARG, "%s: the pattern is %s; it needs a pattern of names", call, pattern ? "empty" : "NULL");
    if (g == DT__MAX_GROUPS)
        return dt_fail(DT_ERR_STATE, "%s: an optimiser has %d groups at most; it has them already", call, g);
    if (!dt__optim_options_ok(call, &o, takes) || !dt__optim_may_pack(call, m)) return dt_error_code();
    if (dt__optim_zeros(call, &o, &opt->group[0], "as in the optimiser")) return dt_error_code();
    dt__optim_resolve(&o, &opt->group[0]);
    if (dt__optim_check(call, &o)) return dt_error_code();
    for (int i = 0; i < m->nparams; i++) matched += !m->param[i]->buffer && dt_name_matches(pattern, m->param[i]->name);
    if (m->sealed && !matched)
        return dt_fail(DT_ERR_ARG, "%s: no parameter's name matches '%s'; dt_model_get lists them", call, pattern);
    opt->pattern[g] = dt__joined("", 0, pattern, NULL);
    if (!opt->pattern[g]) return dt_error_code();
    opt->group[g] = o;
    opt->ngroups++;
    if (!dt__model_assign(m)) return g;
    dt__free_text(opt->pattern[g]);
    opt->pattern[g] = NULL;
    opt->ngroups--;
    return dt_error_code();
}

/* ---- learning rate and momentum */
DT_API int     dt_optimizer_groups(const dt_optimizer *opt) { return opt ? opt->ngroups : 0; }
DT_API int64_t dt_optimizer_steps(const dt_optimizer *opt) { return opt ? opt->steps : 0; }
static double *dt__momentum_of(dt_optimizer *opt, int g) /* NULL if it has neither momentum nor beta1 */
{
    uint32_t takes = dt__optim_takes(dt__optim_kind_of(opt));
    return takes & DT__O(momentum) ? &opt->group[g].momentum : takes & DT__O(beta1) ? &opt->group[g].beta1 : NULL;
}
DT_API double dt_optimizer_lr(const dt_optimizer *opt, int group)
{
    return opt && group >= 0 && group < opt->ngroups ? opt->group[group].lr : NAN;
}
DT_API double dt_optimizer_momentum(const dt_optimizer *opt, int group)
{
    if (!opt || group < 0 || group >= opt->ngroups) return NAN;
    uint32_t takes = dt__optim_takes(dt__optim_kind_of(opt));
    return takes & DT__O(momentum) ? opt->group[group].momentum : takes & DT__O(beta1) ? opt->group[group].beta1 : NAN;
}
static bool dt__group_ok(const char *call, const dt_optimizer *opt, int group)
{
    if (dt__err.code != DT_OK) return false;
    if (!opt) dt_fail(DT_ERR_ARG, "%s: the optimiser is NULL", call);
    else if (group < -1 || group >= opt->ngroups)
        dt_fail(DT_ERR_ARG, "%s: group %d of %d groups does not exist; -1 means all groups", call, group, opt->ngroups);
    return dt__err.code == DT_OK;
}
DT_API dt_status dt_optimizer_set_lr(dt_optimizer *opt, int group, double lr)
{
    if (!dt__group_ok("dt_optimizer_set_lr", opt, group)) return dt_error_code();
    if (!(lr >= 0 && isfinite(lr)))
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_optimizer_set_lr: the learning rate is %g; it must be 0 or more", lr);
    for (int g = 0; g < opt->ngroups; g++)
        if (group < 0 || g == group) opt->group[g].lr = lr;
    return DT_OK;
}
DT_API dt_status dt_optimizer_set_momentum(dt_optimizer *opt, int group, double momentum)
{
    if (!dt__group_ok("dt_optimizer_set_momentum", opt, group)) return dt_error_code();
    const dt__optim_kind *k = dt__optim_kind_of(opt);
    bool                  beta = (dt__optim_takes(k) & DT__O(beta1)) != 0;
    if (!dt__momentum_of(opt, 0))
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_optimizer_set_momentum: %s has neither momentum nor beta1; do not call it "
                                  "for this optimiser", k->call);
    if (!(momentum >= 0 && isfinite(momentum)) || (beta && !(momentum < 1)))
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_optimizer_set_momentum: the momentum is %g; it must be 0 or more%s", momentum,
                                  beta ? " and below 1" : "");
    for (int g = 0; g < opt->ngroups; g++)
        if (group < 0 || g == group) *dt__momentum_of(opt, g) = momentum;
    return DT_OK;
}

/* ---- gradients and runs */
DT__INSIDE bool dt__has_grad(const dt__mblock *b, const dt__param *p)
{
    const dt_tensor *t = p->t;
    if (p->frozen || !t->grad) return false;
    return t->grad_state == DT__GRAD_SET || ((b->use_mgrad || b->use_mwhole) && p->reached);
}
/* Call it after moving a block's gradients into its mgrad and before clearing them. */
static void dt__note_reached(dt_model *m, const dt__mblock *b)
{
    for (int i = 0; i < b->n; i++) {
        dt__param *p = m->order[b->first + i];
        if (dt__has_grad(b, p)) p->reached = 1;
    }
}
DT__INSIDE void dt__optim_clear(dt_optimizer *opt)
{
    dt_model *m = opt->m;
    for (int i = 0; i < m->nblocks; i++) {
        dt__mblock *b = &m->block[i];
        if (b->opt != opt->index) continue;
        b->use_mgrad = b->use_mwhole = 0;
        for (int k = 0; k < b->n; k++) {
            dt__param *p = m->order[b->first + k];
            p->reached = 0;
            if (p->t->grad) p->t->grad_state = DT__GRAD_EMPTY;
        }
    }
}
DT_API void dt_optimizer_zero_grad(dt_optimizer *opt)
{
    if (opt && opt->m) dt__optim_clear(opt);
}
static bool dt__runs_valid(const dt_optimizer *opt)
{
    const dt_model *m = opt->m;
    if (opt->run_version != m->version) return false;
    for (int i = 0; i < m->nblocks; i++)
        for (int k = 0; k < m->block[i].n && m->block[i].opt == opt->index; k++) {
            const dt__param *p = m->order[m->block[i].first + k];
            if (p->in_run != (uint8_t)dt__has_grad(&m->block[i], p)) return false;
        }
    return true;
}
static dt__run *dt__run_add(dt_optimizer *opt, int block)
{
    dt__run *list = (dt__run *)dt__enlarge(opt->run, opt->nruns, &opt->run_cap, sizeof *list);
    if (!list) {
        dt_fail(DT_ERR_MEMORY, "dt_step: out of memory");
        return NULL;
    }
    opt->run = list;
    list += opt->nruns++;
    memset(list, 0, sizeof *list);
    list->block = block;
    list->group = opt->m->block[block].group;
    return list;
}
/* The part of a run that is its parameter i, without the gap after it. */
static dt__run dt__run_param(const dt_optimizer *opt, const dt__run *r, int i)
{
    const dt__param *p = opt->m->order[r->first + i];
    dt__run          one = *r;
    int64_t          end = p->offset + p->t->numel < r->offset + r->n ? p->offset + p->t->numel : r->offset + r->n;
    one.offset = p->offset > r->offset ? p->offset : r->offset;
    one.n = end - one.offset;
    one.at = r->at + (one.offset - r->offset);
    one.first = r->first + i;
    one.nparams = 1;
    return one;
}
/* Replaces the runs from `from` on, of one block, by what the ranges of this rank have of them. */
static int dt__runs_cut(dt_optimizer *opt, int from)
{
    dt_model         *m = opt->m;
    int               whole = opt->nruns - from;
    const dt__mblock *b = whole ? &m->block[opt->run[from].block] : NULL;
    for (int i = 0; i < whole; i++)
        for (int k = 0; k < b->nranges; k++) {
            const dt__range *g = &b->range[k];
            dt__run          r = opt->run[from + i];
            int64_t          end = r.offset + r.n < g->hi ? r.offset + r.n : g->hi, at = r.offset > g->lo ? r.offset : g->lo;
            int              last = r.first + r.nparams - 1;
            while (r.first <= last && m->order[r.first]->offset + m->order[r.first]->t->numel <= at) r.first++;
            while (last >= r.first && m->order[last]->offset >= end) last--;
            if (r.first > last) continue;
            const dt__param *p = m->order[r.first], *q = m->order[last];
            dt__run         *piece = dt__run_add(opt, r.block);
            if (!piece) return DT_ERR_MEMORY;
            piece->place = r.place;
            piece->first = r.first;
            piece->nparams = last - r.first + 1;
            piece->offset = p->offset > at ? p->offset : at;
            piece->n = (q->offset + q->t->numel < end ? q->offset + q->t->numel : end) - piece->offset;
            piece->at = g->at + (piece->offset - g->lo);
        }
    opt->nruns -= whole;
    memmove((void *)(opt->run + from), opt->run + from + whole, (size_t)(opt->nruns - from) * sizeof *opt->run);
    return 0;
}
/* Where parts begin in a run, or (whole) the parts of its whole parameters; at NULL: only how many there are. */
static int64_t dt__run_parts(const dt_optimizer *opt, const dt__run *r, int64_t *at)
{
    int64_t n = 0;
    for (int i = 0; i < r->nparams; i++) {
        const dt__param *p = opt->m->order[r->first + i];
        dt__run          one = dt__run_param(opt, r, i);
        for (int64_t k = one.offset; k < one.offset + one.n; k += DT__NORM_PART, n++)
            if (at) at[n] = k - r->offset;
        if (i + 1 < r->nparams && at) at[n] = p->offset + p->t->numel - r->offset; /* the gap */
        if (i + 1 < r->nparams) n++;
    }
    if (at) at[n] = r->n;
    return n;
}
static dt_tensor *dt__run_list(dt_device *dev, const int64_t *x, int64_t n) /* of i64; the caller owns it */
{
    dt_tensor *t = dt__new("dt_step", dev, DT_I64, &n, 1, DT_LAYOUT_PLAIN);
    if (!t || !dt__upload(t, x)) return t;
    dt__unref(t);
    return NULL;
}
/* What a norm of the run needs. */
static int dt__run_measure(dt_optimizer *opt, dt__run *r)
{
    if (r->parts) return 0;
    dt_device       *dev = opt->m->block[r->block].b.value->st->dev;
    const dt__param *p = opt->m->order[r->first];
    int64_t          n = dt__run_parts(opt, r, NULL);
    int64_t         *at = (int64_t *)dt_scratch((size_t)(n + 1) * sizeof *at);
    if (!at) return DT_ERR_MEMORY;
    dt__run_parts(opt, r, at);
    r->nparts = n;
    r->part = p->part + (r->offset - p->offset) / DT__NORM_PART;
    r->parts = dt__run_list(dev, at, n + 1);
    return r->parts ? 0 : DT_ERR_MEMORY;
}
/* DT__TRUST_RATIO: the segments of a run and memory for their norms. Each gap between parameters is a segment of its own:
   the norm of a parameter has the same bits as if there were no gaps. */
static int dt__run_segments(dt_optimizer *opt, dt__run *r)
{
    dt_model *m = opt->m;
    if (!(dt__optim_kind_of(opt)->traits & DT__TRUST_RATIO) || opt->group[r->group].no_trust_ratio) return 0;
    dt_device *dev = m->block[r->block].b.value->st->dev;
    int64_t    n = 2 * r->nparams - 1, *at = (int64_t *)dt_scratch((size_t)(2 * n + 2) * sizeof *at), *slot = at + n + 1;
    if (!at) return DT_ERR_MEMORY;
    r->part0 = m->order[r->first]->part;
    for (int i = 0; i < r->nparams; i++) {
        const dt__param *p = m->order[r->first + i];
        dt__run          one = dt__run_param(opt, r, i);
        at[2 * i] = one.offset - r->offset;
        at[2 * i + 1] = at[2 * i] + one.n;
        slot[2 * i] = p->part - r->part0;
        slot[2 * i + 1] = slot[2 * i] + dt__norm_parts(p->t->numel);
    }
    r->nslots = slot[n];
    r->segments = dt__run_list(dev, at, n + 1);
    r->slots = dt__run_list(dev, slot, n + 1);
    r->wnorm = dt__new("dt_step", dev, DT_F32, &n, 1, DT_LAYOUT_PLAIN);
    r->unorm = dt__new("dt_step", dev, DT_F32, &n, 1, DT_LAYOUT_PLAIN);
    return r->segments && r->slots && r->wnorm && r->unorm ? dt__run_measure(opt, r) : DT_ERR_MEMORY;
}
static int dt__runs_of_block(dt_optimizer *opt, int block)
{
    dt_model   *m = opt->m;
    dt__mblock *b = &m->block[block];
    dt__run    *r = NULL;
    int         from = opt->nruns, place = -1;
    for (int k = b->first; k < b->first + b->n; k++) {
        dt__param *p = m->order[k];
        p->in_run = dt__has_grad(b, p);
        if (!p->in_run || (r && m->order[r->first]->steps != p->steps)) r = NULL;
        if (!p->in_run) continue;
        if (place < 0 && (place = dt__place_of("dt_step", &opt->places, b->b.value->st->dev)) < 0) return place;
        opt->reached++;
        if (r) opt->nparts++; /* the gap */
        p->part = opt->nparts;
        opt->nparts += dt__norm_parts(p->t->numel);
        if (!r) {
            if (!(r = dt__run_add(opt, block))) return DT_ERR_MEMORY;
            r->place = place;
            r->offset = p->offset;
            r->first = k;
        }
        r->n = p->offset + p->t->numel - r->offset;
        r->nparams++;
    }
    return b->cut ? dt__runs_cut(opt, from) : 0;
}
static void dt__warn_groups(const dt_optimizer *opt) /* a pattern that matches nothing is probably misspelled */
{
    for (int g = 1; g < opt->ngroups; g++) {
        int  n = 0;
        char text[240];
        for (int i = 0; i < opt->m->nparams; i++)
            n += opt->m->param[i]->opt == opt->index && opt->m->param[i]->group == g;
        snprintf(text, sizeof text, "%s: group %d, '%.120s', has no parameters; check its pattern",
                 dt__optim_kind_of(opt)->call, g, opt->pattern[g]);
        if (!n) dt__log(DT_LOG_WARN, text);
    }
}
static int dt__runs_make(dt_optimizer *opt)
{
    dt_model *m = opt->m;
    int       rc = 0, blocks = 0;
    if (dt__runs_valid(opt)) return 0;
    dt__runs_free(opt);
    for (int i = 0; i < m->nblocks && !rc; i++) {
        if (m->block[i].opt != opt->index) continue;
        blocks++;
        rc = dt__runs_of_block(opt, i);
    }
    for (int i = 0; i < opt->nruns && !rc; i++) rc = dt__run_segments(opt, &opt->run[i]);
    if (!rc && !blocks)
        rc = dt_fail(DT_ERR_STATE, "%s: it has no parameters to update: those that match '%s' are frozen or belong to "
                     "an earlier optimiser of the model; check .params", dt__optim_kind_of(opt)->call,
                     opt->pattern[0] ? opt->pattern[0] : "*");
    if (rc) dt__runs_free(opt);
    else opt->run_version = m->version;
    if (!rc && !opt->steps) dt__warn_groups(opt);
    return rc;
}
/* An array of a block, and where a run begins in it */
typedef struct dt__place {
    dt_tensor *t; /* NULL: the block has no such array */
    int64_t    at;
} dt__place;
static dt__place dt__run_place(const dt_optimizer *opt, const dt__run *r, dt_tensor *t, unsigned array) /* DT__CUT_... */
{
    dt__place p;
    p.t = t;
    p.at = opt->m->block[r->block].cut & array ? r->at : r->offset;
    return p;
}
static dt__place dt__run_grad(const dt_optimizer *opt, const dt__run *r)
{
    const dt__mblock *b = &opt->m->block[r->block];
    return dt__run_place(opt, r, b->use_mgrad ? b->mgrad : b->b.grad, b->use_mgrad ? DT__CUT_STATE : DT__CUT_GRAD);
}
static dt__place dt__run_half(const dt_optimizer *opt, const dt__run *r) /* or the values, if there are no masters */
{
    return dt__run_place(opt, r, opt->m->block[r->block].b.value, DT__CUT_VALUE);
}
static dt__place dt__run_value(const dt_optimizer *opt, const dt__run *r)
{
    const dt__mblock *b = &opt->m->block[r->block];
    return b->master ? dt__run_place(opt, r, b->master, DT__CUT_STATE) : dt__run_half(opt, r);
}
DT__INSIDE void dt__view_part(dt_view *v, int64_t offset, int64_t n)
{
    if (v->ndim < 0) return;
    v->data = (char *)v->data + offset * dt__dtype_size[v->dtype];
    v->shape[0] = n;
}
/* Sets the gaps between the parameters of a run to 0. */
static int dt__run_clear_gaps(dt_optimizer *opt, const dt__run *r, dt__place p)
{
    int rc = 0;
    for (int i = 1; p.t && i < r->nparams && !rc; i++) {
        dt__run a = dt__run_param(opt, r, i - 1), b = dt__run_param(opt, r, i);
        int64_t from = a.offset + a.n;
        dt_call c;
        if (b.offset == from) continue;
        dt__call_begin(&c, DT_K_fill);
        dt__view_part(dt__out(&c, p.t), p.at + (from - r->offset), b.offset - from);
        rc = dt__go(p.t->st->dev, &c);
    }
    return rc;
}
/* Applies a unary function with f(0) = 0 to the gradients of a run, in place. */
static int dt__run_map(dt_optimizer *opt, const dt__run *r, int fn, double a, double b)
{
    dt__place g = dt__run_grad(opt, r);
    dt_call   c;
    dt__call_begin(&c, DT_K_unary);
    dt__view_part(dt__out(&c, g.t), g.at, r->n);
    dt__view_part(dt__in(&c, g.t), g.at, r->n);
    c.u.ew.fn = fn;
    c.u.ew.a = a;
    c.u.ew.b = b;
    __atomic_add_fetch(&g.t->st->version, 1, __ATOMIC_RELAXED);
    return dt__go(g.t->st->dev, &c);
}
static int dt__map1(dt_tensor *y, dt_tensor *x, int fn, double a, double b)
{
    dt_call c;
    dt__call_begin(&c, DT_K_unary);
    dt__out(&c, y);
    dt__in(&c, x);
    c.u.ew.fn = fn;
    c.u.ew.a = a;
    c.u.ew.b = b;
    return dt__go(y->st->dev, &c);
}
/* ---- norms. A vector has the norm of each part of each parameter with a gradient, in the order of the blocks; a sharded model
   has it whole on every rank. The norm of a parameter, and that of all, is the norm of its parts: its bits do not depend on which
   rank computed which part. */
static dt_tensor *dt__norms_new(const dt_optimizer *opt, int place) /* on one of the devices: zeros, where others have parameters */
{
    dt_tensor *t = dt__new("dt_step", opt->places.dev[place], DT_F32, &opt->nparts, 1, DT_LAYOUT_PLAIN);
    if (!t || !dt__fill(t, 0)) return t;
    dt__unref(t);
    return NULL;
}
static int dt__view_norms(dt_device *dev, const dt_view *y, const dt_view *x, const dt_view *segments)
{
    dt_call c;
    dt__call_begin(&c, DT_K_norms);
    c.out[c.nout++] = *y;
    c.in[c.nin++] = *x;
    if (segments) c.in[c.nin++] = *segments;
    else dt__in(&c, NULL);
    return dt__go(dev, &c);
}
DT__INSIDE int dt__norm_of(dt_device *dev, const dt_view *y, const dt_view *x) { return dt__view_norms(dev, y, x, NULL); }
static int dt__norms_share(const dt_optimizer *opt, dt_tensor *t) /* the other ranks' parts, too */
{
    const dt__sharding *s = opt->m->shards;
    size_t            nbytes = (size_t)opt->nparts * sizeof(float);
    if (!s) return 0;
    float *x = (float *)dt_scratch(nbytes);
    int    rc = x ? dt__download(t, x) : (int)DT_ERR_MEMORY;
    if (!rc) rc = s->sum(s->user, "dt_step", x, opt->nparts);
    return rc ? rc : dt__upload(t, x);
}
/* The norms of the parts of the gradients on one device; 0 for those that other ranks count. The caller owns it. */
static dt_tensor *dt__place_norms(dt_optimizer *opt, int place)
{
    dt_device *dev = opt->places.dev[place];
    dt_tensor *each = dt__norms_new(opt, place);
    int        rc = each ? 0 : DT_ERR_MEMORY;
    dt_view    y, x, parts;
    for (int i = 0; i < opt->nruns && !rc; i++) {
        dt__run  *r = &opt->run[i];
        dt__place g = dt__run_grad(opt, r);
        if (r->place != place) continue;
        if ((rc = dt__run_measure(opt, r)) != 0) break;
        dt__view_of(&y, each);
        dt__view_of(&x, g.t);
        dt__view_of(&parts, r->parts);
        dt__view_part(&y, r->part, r->nparts);
        dt__view_part(&x, g.at, r->n);
        rc = dt__view_norms(dev, &y, &x, &parts);
        for (int k = r->first; k < r->first + r->nparams && !rc; k++) {
            const dt__param *p = opt->m->order[k];
            dt_tensor       *zero = p->elsewhere ? dt__slice(each, 0, p->part, dt__norm_parts(p->t->numel)) : NULL;
            if (p->elsewhere) rc = zero ? dt__fill(zero, 0) : (int)DT_ERR_MEMORY;
            dt__unref(zero);
        }
    }
    if (!rc) return each;
    dt__unref(each);
    return NULL;
}
/* The norm of all gradients of the runs, on the first of their devices: a tensor of one element that the caller owns. */
static dt_tensor *dt__total_norm(dt_optimizer *opt)
{
    int64_t    one = 1;
    int        first = opt->places.n ? 0 : dt__place_of("dt_step", &opt->places, opt->m->device); /* all ranges are on other ranks */
    dt_device *dev = first < 0 ? NULL : opt->places.dev[0];
    dt_tensor *each = dev ? dt__place_norms(opt, 0) : NULL, *all = each ? dt__new("dt_step", dev, DT_F32, &one, 1, DT_LAYOUT_PLAIN) : NULL;
    int        rc = all ? 0 : DT_ERR_MEMORY;
    dt_view    y, x;
    for (int p = 1; p < opt->places.n && !rc; p++) { /* each part is on one device: the others add 0 */
        dt_tensor *there = dt__place_norms(opt, p), *here = there ? dt__cross("dt_step", there, dev) : NULL;
        rc = here ? dt__copy_to(each, here, 1) : (int)DT_ERR_MEMORY;
        dt__unref(here);
        dt__unref(there);
    }
    if (!rc) rc = dt__norms_share(opt, each);
    if (!rc) {
        dt__view_of(&y, all);
        dt__view_of(&x, each);
        rc = dt__view_norms(dev, &y, &x, NULL);
    }
    dt__unref(each);
    if (!rc && dt__watch_norms(opt->m)) { /* other ranks have the rest of the model */
        float norm = 0;
        rc = dt__download(all, &norm);
        if (!rc) rc = dt__watch_whole_norm(opt->m, &norm);
        if (!rc) rc = dt__upload(all, &norm);
    }
    if (!rc) return all;
    dt__unref(all);
    return NULL;
}
/* min(1, clip_norm/(norm + 1e-6)), computed on the first device so that the host does not wait for it, and copied to the
   others. The caller owns all of gscale. */
static int dt__clip_coefficient(dt_optimizer *opt, dt_tensor **gscale)
{
    dt_tensor *t = gscale[0] = dt__total_norm(opt);
    if (!t) return dt_error_code();
    int rc = dt__map1(t, t, DT_U_AFFINE, 1, 1e-6);
    if (!rc) rc = dt__map1(t, t, DT_U_RECIP, opt->group[0].clip_norm, 0);
    if (!rc) rc = dt__map1(t, t, DT_U_CLAMP, 0, 1);
    for (int p = 1; p < opt->places.n && !rc; p++) {
        gscale[p] = dt__cross("dt_step", t, opt->places.dev[p]);
        if (!gscale[p]) rc = dt_error_code();
    }
    return rc;
}
static bool dt__clip_ready(const char *call, dt_optimizer *opt, double limit)
{
    if (!dt__optim_ok(call, opt)) return false;
    if (!(limit >= 0)) dt_fail(DT_ERR_ARG, "%s: the limit is %g; it must be 0 or more", call, limit);
    else if (!opt->m->sealed)
        dt_fail(DT_ERR_STATE, "%s: no backward yet: there are no gradients; call it after dt_backward()", call);
    return dt__err.code == DT_OK && !dt__runs_make(opt);
}
DT_API double dt_clip_grad_norm(dt_optimizer *opt, double max_norm)
{
    if (!dt__clip_ready("dt_clip_grad_norm", opt, max_norm)) return NAN;
    if (!opt->reached) {
        float whole = 0;
        if (opt->m->parts) dt__watch_whole_norm(opt->m, &whole);
        return (double)whole;
    }
    dt_tensor *t = dt__total_norm(opt);
    float      norm = NAN;
    int        rc = t ? dt__download(t, &norm) : DT_ERR_MEMORY;
    double     k = max_norm / ((double)norm + 1e-6);
    dt__unref(t);
    for (int i = 0; i < opt->nruns && !rc && !(k >= 1); i++) {
        rc = dt__run_map(opt, &opt->run[i], DT_U_AFFINE, k, 0);
        if (!rc && !isfinite(k)) rc = dt__run_clear_gaps(opt, &opt->run[i], dt__run_grad(opt, &opt->run[i]));
    }
    return rc ? (double)NAN : (double)norm;
}
DT_API dt_status dt_clip_grad_value(dt_optimizer *opt, double max_value)
{
    if (!dt__clip_ready("dt_clip_grad_value", opt, max_value)) return dt_error_code();
    for (int i = 0; i < opt->nruns && dt__err.code == DT_OK; i++)
        dt__run_map(opt, &opt->run[i], DT_U_CLAMP, -max_value, max_value);
    return dt_error_code();
}

/* ---- states */
static unsigned dt__optim_slots(const dt__optim_kind *k, const dt_optimizer_opts *o) /* bit i: needs state i */
{
    uint32_t given = dt__optim_given(o);
    unsigned slots = 0;
    for (int i = 0; i < dt__optim_nstates(k); i++)
        if (k->state[i].option == DT__ALWAYS || k->state[i].option & given) slots |= 1u << i;
    return slots;
}
/* p->own of an optimiser with DT__OWN_STATES: of a vector [2] is its state and [3] has the next one while a step prepares it; of
   other parameters [0] and [1] are rows and columns, [2] and [3] the next ones. shape: that of [k]; false: it is not used. */
static bool dt__own_shape(const dt_tensor *t, int k, int64_t *shape)
{
    bool vector = t->ndim < 2;
    memcpy(shape, t->shape, sizeof t->shape);
    if (!vector) shape[t->ndim - 1 - (k & 1)] = 1;
    return !vector || k >= 2;
}
static bool dt__own_saved(const dt_tensor *t, int k) { return t->ndim < 2 ? k == 2 : k < 2; }
static void dt__own_commit(dt__param *p) /* the next states become the states */
{
    for (int k = p->t->ndim < 2 ? 2 : 0, to = p->t->ndim < 2 ? 3 : 2; to < DT__MAX_STATES; k++, to++) {
        dt_tensor *t = p->own[k];
        p->own[k] = p->own[to];
        p->own[to] = t;
    }
}
static int dt__own_make(dt__param *p)
{
    int64_t shape[DT_MAX_DIMS];
    for (int k = 0; k < DT__MAX_STATES; k++) {
        if (!dt__own_shape(p->t, k, shape) || p->own[k]) continue;
        dt_tensor *t = dt__new("dt_step", p->t->st->dev, DT_F32, shape, p->t->ndim, DT_LAYOUT_PLAIN);
        if (!t || dt__fill(t, 0)) {
            dt__unref(t);
            return DT_ERR_MEMORY;
        }
        p->own[k] = t;
    }
    return 0;
}
static int dt__states_make(const dt_model *m, dt__mblock *b, unsigned slots)
{
    int rc = 0;
    if (b->opt >= 0 && dt__optim_kind_of(m->opt[b->opt])->traits & DT__OWN_STATES) {
        for (int i = b->first; i < b->first + b->n && slots && !rc; i++) rc = dt__own_make(m->order[i]);
        return rc;
    }
    for (int k = 0; k < DT__MAX_STATES && !rc; k++) {
        if (!(slots >> k & 1u) || b->state[k]) continue;
        if (b->opt >= 0 && m->opt[b->opt]->lost)
            return dt_fail(DT_ERR_STATE, "dt_step: the states of the optimiser were sharded and went with dt_ddp_free; resume a "
                           "checkpoint, or make a new optimiser");
        dt_tensor *t = dt__block_array(m, "dt_step", b, true);
        rc = !t ? (int)DT_ERR_MEMORY : b->cut ? 0 : dt__fill(t, 0);
        if (rc) dt__unref(t);
        else b->state[k] = t;
    }
    return rc;
}

/* ---- the update */
static void dt__out_view(dt_call *c, const dt_view *v) { c->out[c->nout++] = *v; }
static void dt__in_view(dt_call *c, const dt_view *v) { c->in[c->nin++] = *v; }
static int  dt__before_lars(const dt__optim_operands *v, const dt_optimizer_opts *g, double t) /* norms before clipping */
{
    (void)g;
    (void)t;
    return v->segments.ndim < 0 ? 0 : dt__view_norms(v->dev, &v->uparts, &v->grad, &v->parts);
}
/* Before the first update of a parameter its sum is set. */
static int dt__before_adagrad(const dt__optim_operands *v, const dt_optimizer_opts *g, double t)
{
    dt_call c;
    if (g->initial_accumulator_value == 0 || t != 1) return 0;
    dt__call_begin(&c, DT_K_fill);
    dt__out_view(&c, &v->state[0]);
    c.u.ew.a = g->initial_accumulator_value;
    return dt__go(v->dev, &c);
}
static int dt__optim_begin(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t)
{
    int rc = v->segments.ndim < 0 ? 0 : dt__view_norms(v->dev, &v->wparts, &v->value, &v->parts);
    return !rc && k->before ? k->before(v, g, t) : rc;
}
/* After dt__optim_begin of all runs: norms of whole parameters. Ranks of a tensor axis may have parts of them. */
static int dt__optim_ratios(const dt__optim_operands *v)
{
    int rc = v->segments.ndim < 0 ? 0 : dt__view_norms(v->dev, &v->wnorm, &v->wall, &v->slots);
    if (rc || v->segments.ndim < 0) return rc;
    rc = dt__view_norms(v->dev, &v->unorm, &v->uall, &v->slots);
    for (int k = 0; k < 2; k++)
        for (dt__watch *w = v->m ? v->m->watch : NULL; w && !rc; w = w->next)
            if (w->part_norms) rc = w->part_norms(w->user, v->run, k ? v->run->unorm : v->run->wnorm);
    return rc;
}
static void dt__arguments_sgd(dt_call *c, const dt_optimizer_opts *o, double t)
{
    c->u.opt.b1 = o->momentum;
    c->u.opt.b2 = o->dampening;
    c->u.opt.nesterov = o->nesterov;
    c->u.opt.first = t == 1;
    c->u.opt.trust = o->trust_coefficient;
}
static void dt__arguments_adam(dt_call *c, const dt_optimizer_opts *o, double t)
{
    c->u.opt.b1 = o->beta1;
    c->u.opt.b2 = o->beta2;
    c->u.opt.c1 = 1 - pow(o->beta1, t);
    c->u.opt.c2 = 1 - pow(o->beta2, t);
}
static void dt__arguments_rmsprop(dt_call *c, const dt_optimizer_opts *o, double t)
{
    (void)t;
    c->u.opt.b1 = o->momentum;
    c->u.opt.b2 = o->alpha;
}
static void dt__arguments_adagrad(dt_call *c, const dt_optimizer_opts *o, double t)
{
    c->u.opt.lr = o->lr / (1 + (t - 1) * o->lr_decay);
}
static void dt__optim_arguments(dt_call *c, const dt__optim_kind *k, const dt_optimizer_opts *g, double t)
{
    c->u.opt.lr = g->lr;
    c->u.opt.wd = g->weight_decay;
    c->u.opt.eps = g->eps;
    c->u.opt.maximize = g->maximize;
    c->u.opt.decoupled = (k->traits & DT__DECOUPLED) != 0;
    k->arguments(c, g, t);
}
static int dt__update_fused(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t)
{
    dt_call c;
    dt__call_begin(&c, k->kernel);
    dt__out_view(&c, &v->value);
    for (int i = 0; i < dt__optim_nstates(k); i++) dt__out_view(&c, &v->state[i]);
    dt__out_view(&c, &v->half);
    dt__in_view(&c, &v->grad);
    dt__in_view(&c, &v->gscale);
    if (k->traits & DT__NORM_INPUTS) {
        dt__in_view(&c, &v->wnorm);
        dt__in_view(&c, &v->unorm);
        dt__in_view(&c, &v->segments);
    }
    dt__optim_arguments(&c, k, g, t);
    return dt__go(v->dev, &c);
}
static int dt__before_lamb(const dt__optim_operands *v, const dt_optimizer_opts *g, double t) /* the update, without its ratio */
{
    dt_call c;
    dt__call_begin(&c, DT_K_lamb);
    dt__out_view(&c, &v->update);
    dt__out_view(&c, &v->state[0]);
    dt__out_view(&c, &v->state[1]);
    dt__in_view(&c, &v->value);
    dt__in_view(&c, &v->grad);
    dt__in_view(&c, &v->gscale);
    dt__optim_arguments(&c, &dt__optim_kinds[DT__KIND_lamb], g, t);
    int rc = dt__go(v->dev, &c);
    return rc || v->segments.ndim < 0 ? rc : dt__view_norms(v->dev, &v->uparts, &v->update, &v->parts);
}
static int dt__update_lamb(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t)
{
    bool    ratio = v->segments.ndim >= 0 && g->weight_decay != 0; /* as Apex: only where weights decay */
    dt_view none;
    dt_call c;
    (void)k;
    (void)t;
    none.ndim = -1;
    dt__call_begin(&c, DT_K_lamb_apply);
    dt__out_view(&c, &v->value);
    dt__out_view(&c, &v->half);
    dt__in_view(&c, &v->update);
    dt__in_view(&c, ratio ? &v->wnorm : &none);
    dt__in_view(&c, ratio ? &v->unorm : &none);
    dt__in_view(&c, ratio ? &v->segments : &none);
    c.u.opt.lr = g->lr;
    return dt__go(v->dev, &c);
}
static void dt__arguments_lion(dt_call *c, const dt_optimizer_opts *o, double t)
{
    (void)t;
    c->u.opt.b1 = o->beta1;
    c->u.opt.b2 = o->beta2;
}

/* ---- Muon: the momentum of each matrix, made nearly orthogonal by five Newton-Schulz steps. With n = min(rows, columns), a step is
   a = x x^T (or x^T x), b = -4.775 a + 2.0315 a a, x = 3.4445 x + b x (or x b). Computed in f32. */
static int dt__muon_binary(dt_device *dev, int fn, const dt_view *z, const dt_view *x, const dt_view *y, double a, double b)
{
    dt_call c;
    dt__call_begin(&c, DT_K_binary);
    c.u.ew.fn = fn;
    c.u.ew.a = a;
    c.u.ew.b = b;
    dt__out_view(&c, z);
    dt__in_view(&c, x);
    dt__in_view(&c, y);
    return dt__go(dev, &c);
}
static int dt__muon_product(dt_device *dev, const dt_view *y, const dt_view *a, const dt_view *b, double alpha)
{
    dt_call c;
    dt__call_begin(&c, DT_K_gemm);
    c.u.gemm.alpha = alpha;
    dt__out_view(&c, y);
    dt__in_view(&c, a);
    dt__in_view(&c, b);
    return dt__go(dev, &c);
}
static dt_view dt__muon_view(const dt_view *v, int64_t rows, int64_t cols, bool turned)
{
    dt_view m = *v;
    m.ndim = 2;
    m.shape[0] = turned ? cols : rows;
    m.shape[1] = turned ? rows : cols;
    m.stride[0] = turned ? 1 : cols;
    m.stride[1] = turned ? cols : 1;
    return m;
}
static int dt__muon_orthogonal(dt_device *dev, const dt_view *u, int64_t rows, int64_t cols, double eps)
{
    bool       tall = rows > cols;
    int64_t    n = tall ? cols : rows, square[2] = { n, n }, whole[2] = { rows, cols }, one = 1;
    dt_tensor *t[4] = { dt__new("dt_muon", dev, DT_F32, square, 2, DT_LAYOUT_PLAIN), NULL, NULL, NULL };
    if (t[0]) t[1] = dt__new("dt_muon", dev, DT_F32, square, 2, DT_LAYOUT_PLAIN);
    if (t[1]) t[2] = dt__new("dt_muon", dev, DT_F32, whole, 2, DT_LAYOUT_PLAIN);
    if (t[2]) t[3] = dt__new("dt_muon", dev, DT_F32, &one, 1, DT_LAYOUT_PLAIN);
    int     rc = t[3] ? 0 : DT_ERR_MEMORY;
    dt_view x = dt__muon_view(u, rows, cols, false), xt = dt__muon_view(u, rows, cols, true), a, aa, next, norm;
    if (!rc) {
        dt_call c;
        dt__view_of(&a, t[0]);
        dt__view_of(&aa, t[1]);
        dt__view_of(&next, t[2]);
        dt__view_of(&norm, t[3]);
        rc = dt__norm_of(dev, &norm, u);
        for (int i = 0; i < 2 && !rc; i++) { /* 1/max(norm, eps) */
            dt__call_begin(&c, DT_K_unary);
            c.u.ew.fn = i ? DT_U_RECIP : DT_U_CLAMP;
            c.u.ew.a = i ? 1 : eps;
            c.u.ew.b = INFINITY;
            dt__out_view(&c, &norm);
            dt__in_view(&c, &norm);
            rc = dt__go(dev, &c);
        }
        norm.shape[0] = u->shape[0];
        norm.stride[0] = 0;
        if (!rc) rc = dt__muon_binary(dev, DT_B_MUL, u, u, &norm, 1, 0);
    }
    for (int i = 0; i < 5 && !rc; i++) {
        rc = dt__muon_product(dev, &a, tall ? &xt : &x, tall ? &x : &xt, 1);
        if (!rc) rc = dt__muon_product(dev, &aa, &a, &a, 2.0315);
        if (!rc) rc = dt__muon_binary(dev, DT_B_ADD, &aa, &aa, &a, 1, -4.7750);
        if (!rc) rc = dt__muon_product(dev, &next, tall ? &x : &aa, tall ? &aa : &x, 1);
        if (!rc) rc = dt__muon_binary(dev, DT_B_ADD, &x, &next, &x, 1, 3.4445);
    }
    for (int i = 0; i < 4; i++) dt__unref(t[i]);
    return rc;
}
/* The part of a run's operand that belongs to parameter i of the run */
static dt_view dt__muon_part(const dt__optim_operands *v, const dt_view *x, int i)
{
    const dt__param *p = v->m->order[v->run->first + i];
    dt_view          y = *x;
    if (y.ndim >= 0) dt__view_part(&y, p->offset - v->run->offset, p->t->numel);
    return y;
}
static int dt__before_muon(const dt__optim_operands *v, const dt_optimizer_opts *g, double t)
{
    double m = g->momentum;
    int    rc = 0;
    (void)t;
    if (!v->m || !v->run || v->m->shards)
        return dt_fail(DT_ERR_STATE, "dt_muon: it needs whole matrices, and %s; use another optimiser", v->m && v->m->shards
                       ? "the model is sharded (.shard)" : "a parameter server has parts of them");
    if (!(m < 1)) return dt_fail(DT_ERR_ARG, "dt_muon: .momentum is %g; it must be below 1", m);
    for (int i = 0; i < v->run->nparams; i++) {
        const dt__param *p = v->m->order[v->run->first + i];
        if (p->t->ndim != 2 || p->cut.parts)
            return dt_fail(DT_ERR_SHAPE, "dt_muon: parameter '%s' is %s%s; Muon updates whole matrices: give it those by .params, and the "
                           "others to another optimiser", p->name, dt__text(p->t), p->cut.parts ? ", split over ranks" : "");
    }
    for (int i = 0; i < v->run->nparams && !rc; i++) {
        const dt_tensor *p = v->m->order[v->run->first + i]->t;
        dt_view          u = dt__muon_part(v, &v->update, i), grad = dt__muon_part(v, &v->grad, i), buf = dt__muon_part(v, &v->state[0], i);
        dt_view          scale = v->gscale;
        double           sign = g->maximize ? -1 : 1;
        if (!p->numel) continue;
        if (scale.ndim >= 0) {
            scale.ndim = 1;
            scale.shape[0] = u.shape[0];
            scale.stride[0] = 0;
            rc = dt__muon_binary(v->dev, DT_B_MUL, &u, &grad, &scale, sign, 0);
        } else {
            rc = dt__muon_binary(v->dev, DT_B_ADD, &u, &grad, &grad, sign, 0);
        }
        if (!rc && m > 0) rc = dt__muon_binary(v->dev, DT_B_ADD, &buf, &buf, &u, m, (1 - m) / m); /* lerp(buf, g, 1 - m) */
        if (!rc && m > 0) rc = dt__muon_binary(v->dev, DT_B_ADD, &u, &u, &buf, 1 - m, m / (1 - m)); /* Nesterov */
        if (!rc) rc = dt__muon_orthogonal(v->dev, &u, p->shape[0], p->shape[1], g->eps);
    }
    return rc;
}
static int dt__update_muon(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t)
{
    int rc = 0;
    (void)k;
    (void)t;
    for (int i = 0; i < v->run->nparams && !rc; i++) {
        const dt_tensor *p = v->m->order[v->run->first + i]->t;
        dt_view          value = dt__muon_part(v, &v->value, i), half = dt__muon_part(v, &v->half, i), u = dt__muon_part(v, &v->update, i), none;
        double           ratio = (double)p->shape[0] / (double)(p->shape[1] > 0 ? p->shape[1] : 1), lr = g->lr * sqrt(ratio > 1 ? ratio : 1);
        dt_call          c;
        if (!p->numel) continue;
        none.ndim = -1;
        dt__call_begin(&c, DT_K_sgd);
        dt__out_view(&c, &value);
        dt__out_view(&c, &none);
        dt__out_view(&c, &half);
        dt__in_view(&c, &u);
        c.u.opt.lr = lr; /* p = (1 - g.lr wd) p - lr u */
        c.u.opt.wd = lr > 0 ? g->lr * g->weight_decay / lr : 0;
        rc = dt__go(v->dev, &c);
    }
    return rc;
}
static void dt__view_or_none(dt_view *v, const dt_tensor *t, int64_t offset, int64_t n)
{
    if (t) dt__view_of(v, t);
    else v->ndim = -1;
    if (t && n >= 0) dt__view_part(v, offset, n);
}
static void dt__view_place(dt_view *v, dt__place p, int64_t n) { dt__view_or_none(v, p.t, p.at, n); }
static dt__optim_operands dt__run_operands(const dt_optimizer *opt, const dt__run *r, const dt__step_temp *w)
{
    const dt__mblock  *b = &opt->m->block[r->block];
    dt__place          value = dt__run_value(opt, r);
    unsigned           slots = dt__optim_slots(dt__optim_kind_of(opt), &opt->group[r->group]);
    dt__optim_operands v;
    bool               ratio = r->segments != NULL;
    v.dev = value.t->st->dev;
    dt__view_place(&v.value, value, r->n);
    for (int i = 0; i < DT__MAX_STATES; i++)
        dt__view_place(&v.state[i], dt__run_place(opt, r, slots >> i & 1u ? b->state[i] : NULL, DT__CUT_STATE), r->n);
    if (b->master) dt__view_place(&v.half, dt__run_half(opt, r), r->n);
    else dt__view_or_none(&v.half, NULL, 0, 0);
    dt__view_place(&v.grad, dt__run_grad(opt, r), r->n);
    dt__view_or_none(&v.gscale, w->gscale[r->place], 0, -1);
    dt__view_or_none(&v.update, w->update[r->place], r->temp, r->n);
    dt__view_or_none(&v.wnorm, r->wnorm, 0, -1);
    dt__view_or_none(&v.unorm, r->unorm, 0, -1);
    dt__view_or_none(&v.segments, r->segments, 0, -1);
    dt__view_or_none(&v.slots, r->slots, 0, -1);
    dt__view_or_none(&v.parts, ratio ? r->parts : NULL, 0, -1);
    dt__view_or_none(&v.wparts, ratio ? w->wparts[r->place] : NULL, r->part, r->nparts);
    dt__view_or_none(&v.uparts, ratio ? w->uparts[r->place] : NULL, r->part, r->nparts);
    dt__view_or_none(&v.wall, ratio ? w->wparts[r->place] : NULL, r->part0, r->nslots);
    dt__view_or_none(&v.uall, ratio ? w->uparts[r->place] : NULL, r->part0, r->nslots);
    v.clip = w->gscale[r->place];
    v.m = opt->m;
    v.run = r;
    return v;
}
/* ---- computing with public ops inside a step: what they make is freed at the end, and nothing is recorded */
static dt_autocast dt__aside_begin(dt_optimizer *opt)
{
    dt_autocast before = dt__tls.autocast;
    dt__step_swap(&opt->aside[0], &opt->aside[1]);
    dt__tls.autocast.mode = DT_AUTOCAST_OFF;
    dt_no_grad_begin();
    return before;
}
static void dt__aside_end(dt_optimizer *opt, dt_autocast before)
{
    dt_no_grad_end();
    dt__step_end();
    dt__step_swap(&opt->aside[0], &opt->aside[1]);
    dt__tls.autocast = before;
}
/* n elements of an array from `at` on, as a vector, or in the shape of like. It belongs to the step. */
static dt_tensor *dt__aside_part(dt_tensor *array, int64_t at, int64_t n, const dt_tensor *like)
{
    dt_tensor *t = array ? dt__slice(array, 0, at, n) : NULL;
    if (!t) return NULL;
    if (like) {
        t->ndim = like->ndim;
        memcpy(t->shape, like->shape, sizeof t->shape);
        dt__dense_strides(t->stride, t->shape, t->ndim);
    }
    return dt__give(t);
}
/* The gradient of elements of a run in f32, clipped, and negated with .maximize */
static dt_tensor *dt__aside_grad(const dt__optim_operands *v, const dt_optimizer_opts *g, int64_t from, int64_t n, const dt_tensor *like)
{
    const dt_optimizer *opt = v->m->opt[v->m->block[v->run->block].opt];
    dt__place           p = dt__run_grad(opt, v->run);
    dt_tensor          *x = dt_cast(dt__aside_part(p.t, p.at + from, n, like), DT_F32);
    if (v->clip) x = dt_mul(x, v->clip);
    return g->maximize ? dt_neg(x) : x;
}

/* ---- rules of the program */
static int dt__before_rule(const dt__optim_operands *v, const dt_optimizer_opts *g, double t)
{
    (void)g;
    (void)t;
    const dt_optimizer *opt = v->m && v->run ? v->m->opt[v->m->block[v->run->block].opt] : NULL;
    if (!opt) return dt_fail(DT_ERR_STATE, "dt_step: a parameter server cannot run a rule of the program; use one of dt's optimisers");
    if (!opt->custom->rule.each) return 0;
    for (int i = 0; i < v->run->nparams; i++)
        if (v->m->shards || v->m->order[v->run->first + i]->cut.parts)
            return dt_fail(DT_ERR_STATE, "%s: it takes each parameter whole (.each), and '%s' is divided over ranks; use a rule of vectors",
                           opt->custom->rule.name, v->m->order[v->run->first + i]->name);
    return 0;
}
/* One call of the rule: elements from .. from + n of the run; like: the parameter whose shape they get, or NULL. */
static int dt__rule_call(const dt__optim_operands *v, dt_optimizer *opt, const dt_optimizer_opts *g, int64_t from, int64_t n,
                         const dt__param *p, bool each)
{
    const dt_rule    *rule = &opt->custom->rule;
    const dt__mblock *b = &v->m->block[v->run->block];
    dt__place         value = dt__run_value(opt, v->run), half = dt__run_half(opt, v->run);
    const dt_tensor  *like = each ? p->t : NULL;
    dt_rule_call      u;
    memset((void *)&u, 0, sizeof u);
    dt_autocast before = dt__aside_begin(opt);
    dt_tensor *x = dt__aside_part(value.t, value.at + from, n, like);
    u.value = dt_cast(x, DT_F32);
    u.grad = dt__aside_grad(v, g, from, n, like);
    for (int k = 0; k < DT_RULE_STATES && rule->state[k]; k++) {
        dt__place s = dt__run_place(opt, v->run, b->state[k], DT__CUT_STATE);
        u.state[k] = dt__aside_part(s.t, s.at + from, n, like);
    }
    u.t = p->steps + 1;
    u.o = g;
    u.name = p->name;
    if (dt__err.code == DT_OK) {
        opt->busy = true;
        dt_status status = rule->update(&u, rule->user);
        opt->busy = false;
        if (status && dt__err.code == DT_OK)
            dt_fail(status, "%s: its update of '%s' returned %d without a message; end it with dt_fail", rule->name, p->name, (int)status);
    }
    if (dt__err.code == DT_OK && x != u.value) dt_copy(x, u.value);
    if (dt__err.code == DT_OK && b->master) dt_copy(dt__aside_part(half.t, half.at + from, n, like), u.value);
    dt__aside_end(opt, before);
    return dt_error_code();
}
static int dt__update_rule(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t)
{
    dt_model     *m = v->m;
    dt_optimizer *opt = m->opt[m->block[v->run->block].opt];
    int           rc = 0;
    (void)k;
    (void)t;
    if (!opt->custom->rule.each) {
        rc = dt__rule_call(v, opt, g, 0, v->run->n, m->order[v->run->first], false);
        dt__place half = dt__run_half(opt, v->run), value = dt__run_value(opt, v->run);
        if (!rc) rc = dt__run_clear_gaps(opt, v->run, half); /* a rule may have made anything of their zeros */
        if (!rc && value.t != half.t) rc = dt__run_clear_gaps(opt, v->run, value);
        for (int s = 0; s < DT_RULE_STATES && !rc; s++)
            rc = dt__run_clear_gaps(opt, v->run, dt__run_place(opt, v->run, m->block[v->run->block].state[s], DT__CUT_STATE));
        return rc;
    }
    for (int i = 0; i < v->run->nparams && !rc; i++) {
        const dt__param *p = m->order[v->run->first + i];
        rc = dt__rule_call(v, opt, g, p->offset - v->run->offset, p->t->numel, p, true);
    }
    return rc;
}

/* ---- Adafactor (Shazeer and Stern 2018) as torch.optim.Adafactor has it. The update of each parameter, times its own learning
   rate, is made in v->update by ops; the weights change in one kernel. */
static dt_tensor *dt__adafactor_lerp(dt_tensor *next, dt_tensor *state, dt_tensor *x, double w) /* next = state + w (x - state) */
{
    dt_tensor *d = dt_sub(x, state);
    dt_copy(next, w < 0.5 ? dt_add(state, dt_mul_scalar(d, w)) : dt_sub(x, dt_mul_scalar(d, 1 - w)));
    return next;
}
static dt_tensor *dt__adafactor_mean(dt_tensor *x, int dim) /* of the squares along a dimension, which stays with size 1 */
{
    dt_reduce_opts o;
    memset((void *)&o, 0, sizeof o);
    o.dims = DT_DIM(x->ndim + dim);
    o.keepdim = true;
    return dt_mean_with(dt_mul(x, x), o);
}
static dt_tensor *dt__adafactor_rms(dt_tensor *x) /* root of the mean of the squares of all elements */
{
    dt_reduce_opts o;
    memset((void *)&o, 0, sizeof o);
    return dt_sqrt(dt_mean_with(dt_mul(x, x), o));
}
static dt_tensor *dt__at_least(dt_tensor *x, double low) { return dt_clamp(x, low, INFINITY); }
static int dt__adafactor_one(const dt__optim_operands *v, const dt_optimizer_opts *g, dt__param *p, double t)
{
    dt_optimizer       *opt = v->m->opt[v->m->block[v->run->block].opt];
    dt__place           at = dt__run_value(opt, v->run);
    int64_t             from = p->offset - v->run->offset, n = p->t->numel;
    int                 dtype = at.t->dtype;
    double              rest = pow(t, g->beta2_decay), rho = g->lr < 1 / sqrt(t) ? g->lr : 1 / sqrt(t);
    double              eps = g->eps > 0 ? g->eps : dtype == DT_F16 ? 9.765625e-4 : dtype == DT_BF16 ? 7.8125e-3 : 1.1920928955078125e-7;
    dt_tensor          *var;
    dt_autocast         before = dt__aside_begin(opt);
    dt_tensor *x = dt_cast(dt__aside_part(at.t, at.at + from, n, p->t), DT_F32), *grad = dt__aside_grad(v, g, from, n, p->t);
    dt_tensor *alpha = dt_mul_scalar(dt__at_least(dt__adafactor_rms(x), g->eps2), rho);
    if (!grad) {
        var = NULL;
    } else if (grad->ndim > 1) {
        dt_reduce_opts rows;
        memset((void *)&rows, 0, sizeof rows);
        rows.dims = DT_DIM(grad->ndim - 2);
        rows.keepdim = true;
        dt_tensor *row = dt__adafactor_lerp(p->own[2], p->own[0], dt__adafactor_mean(grad, -1), rest);
        dt_tensor *col = dt__adafactor_lerp(p->own[3], p->own[1], dt__adafactor_mean(grad, -2), rest);
        var = dt_div(dt_mul(row, col), dt__at_least(dt_mean_with(row, rows), eps));
    } else {
        var = dt__adafactor_lerp(p->own[3], p->own[2], dt_mul(grad, grad), rest);
    }
    dt_tensor *u = dt_mul(dt_rsqrt(dt__at_least(var, eps * eps)), grad);
    dt_tensor *k = dt_div(alpha, dt__at_least(dt_mul_scalar(dt__adafactor_rms(u), 1 / g->d), 1));
    dt_tensor *y = dt_mul(u, k);
    if (y && y->numel) {
        dt_view z = v->update, w;
        dt__view_part(&z, from, n);
        dt_tensor *flat = dt__flat(dt_contiguous(y));
        dt_call    c;
        if (flat) {
            dt__view_of(&w, flat);
            dt__call_begin(&c, DT_K_copy);
            dt__out_view(&c, &z);
            dt__in_view(&c, &w);
            dt__go(v->dev, &c);
        }
        dt__unref(flat);
    }
    dt__aside_end(opt, before);
    return dt_error_code();
}
static int dt__before_adafactor(const dt__optim_operands *v, const dt_optimizer_opts *g, double t)
{
    int rc = 0;
    if (!v->m || !v->run || v->m->shards || v->m->parts || v->m->axis)
        return dt_fail(DT_ERR_STATE, "dt_adafactor: it needs whole parameters, and %s; use another optimiser", !v->m || !v->run ?
                       "a parameter server has parts of them" : v->m->shards ? "the model is sharded (.shard)" : "the model is divided over ranks");
    if (!(g->d >= 1)) return dt_fail(DT_ERR_ARG, "dt_adafactor: .d is %g; it must be 1 or more", g->d);
    for (int i = 0; i < v->run->nparams && !rc; i++)
        if (v->m->order[v->run->first + i]->t->numel) rc = dt__adafactor_one(v, g, v->m->order[v->run->first + i], t);
    return rc;
}
static int dt__update_adafactor(const dt__optim_operands *v, const dt__optim_kind *k, const dt_optimizer_opts *g, double t)
{
    int rc = 0;
    (void)k;
    (void)t;
    for (int i = 0; i < v->run->nparams && !rc; i++) {
        dt__param *p = v->m->order[v->run->first + i];
        dt_view    value = dt__muon_part(v, &v->value, i), half = dt__muon_part(v, &v->half, i), u = dt__muon_part(v, &v->update, i), none;
        dt_call    c;
        if (!p->t->numel) continue;
        dt__own_commit(p);
        none.ndim = -1;
        dt__call_begin(&c, DT_K_sgd);
        dt__out_view(&c, &value);
        dt__out_view(&c, &none);
        dt__out_view(&c, &half);
        dt__in_view(&c, &u);
        c.u.opt.lr = 1; /* p = (1 - lr wd) p - u */
        c.u.opt.wd = g->lr * g->weight_decay;
        rc = dt__go(v->dev, &c);
    }
    return rc;
}
static int dt__run_begin(dt_optimizer *opt, const dt__run *r, const dt__step_temp *w)
{
    const dt__optim_kind *k = dt__optim_kind_of(opt);
    dt__optim_operands    v = dt__run_operands(opt, r, w);
    double                t = (double)opt->m->order[r->first]->steps + 1;
    int                   rc = dt__optim_begin(&v, k, &opt->group[r->group], t);
    if (rc || k->before != dt__before_adagrad || t != 1) return rc;
    return dt__run_clear_gaps(opt, r, dt__run_place(opt, r, opt->m->block[r->block].state[0], DT__CUT_STATE));
}
static int dt__run_update(dt_optimizer *opt, const dt__run *r, const dt__step_temp *w)
{
    const dt__optim_kind *k = dt__optim_kind_of(opt);
    dt__mblock           *b = &opt->m->block[r->block];
    if (!dt__write_ok("dt_step", dt__run_value(opt, r).t) || (b->master && !dt__write_ok("dt_step", b->b.value)))
        return dt_error_code();
    dt__optim_operands v = dt__run_operands(opt, r, w);
    int                rc = dt__optim_ratios(&v);
    return rc ? rc : k->update(&v, k, &opt->group[r->group], (double)opt->m->order[r->first]->steps + 1);
}
/* Gaps are 0 in values, gradients and states, and stay 0 because every update formula maps zeros to +-0. The exception is
   0/0 if eps is 0 in f32: then the gaps are cleared here. (A clip coefficient that is not finite makes all parameters of
   the optimiser NaN, and the gaps too; nothing reads the gaps as data.) */
static int dt__run_end(dt_optimizer *opt, const dt__run *r)
{
    dt__mblock *b = &opt->m->block[r->block];
    int         rc = 0;
    if (!(dt__optim_kind_of(opt)->traits & DT__DIVIDES) || (float)opt->group[r->group].eps > 0) return 0;
    rc = dt__run_clear_gaps(opt, r, dt__run_half(opt, r));
    if (!rc) rc = dt__run_clear_gaps(opt, r, dt__run_place(opt, r, b->master, DT__CUT_STATE));
    for (int k = 0; k < DT__MAX_STATES && !rc; k++)
        rc = dt__run_clear_gaps(opt, r, dt__run_place(opt, r, b->state[k], DT__CUT_STATE));
    return rc;
}
/* ---- updates of arrays that are in no model: dt_dist.h's parameter servers */
static void dt__raw_view(dt_view *v, const void *data, int dtype, int64_t n) /* data NULL: absent */
{
    memset(v, 0, sizeof *v);
    v->data = (void *)(uintptr_t)data;
    v->dtype = dtype;
    v->layout = DT_LAYOUT_PLAIN;
    v->ndim = data ? 1 : -1;
    v->shape[0] = n;
    v->stride[0] = 1;
}
DT__INSIDE int dt__optim_raw(const dt_optimizer *opt, const dt__raw_update *r)
{
    const dt__optim_kind    *k = dt__optim_kind_of(opt);
    const dt_optimizer_opts *g = &opt->group[r->group];
    unsigned                 slots = dt__optim_slots(k, g);
    bool                     ratio = k->traits & DT__TRUST_RATIO && !g->no_trust_ratio;
    float                    wnorm = 0, unorm = 0;
    int64_t                  ends[2], whole[2], n = dt__norm_parts(r->n), few[65];
    size_t                   nbytes = ratio ? (size_t)(2 * n + 1) * sizeof(int64_t) : 0;
    dt__optim_operands       v;
    if (!r->n) return 0;
    int64_t *at = !nbytes ? NULL : nbytes <= sizeof few ? few : (int64_t *)dt_mem_alloc(nbytes); /* where the parts begin, then their two norms */
    float   *part = at ? (float *)(void *)(at + n + 1) : NULL;
    if (nbytes && !at) return dt_fail(DT_ERR_MEMORY, "%s: out of memory", k->call);
    for (int64_t i = 0; at && i <= n; i++) at[i] = i < n ? i * DT__NORM_PART : r->n;
    if (part) memset(part, 0, (size_t)(2 * n) * sizeof *part);
    ends[0] = whole[0] = 0;
    ends[1] = r->n;
    whole[1] = n;
    v.dev = dt_cpu();
    dt__raw_view(&v.value, r->value, DT_F32, r->n);
    for (int i = 0; i < DT__MAX_STATES; i++) dt__raw_view(&v.state[i], slots >> i & 1u ? r->state[i] : NULL, DT_F32, r->n);
    dt__raw_view(&v.half, NULL, DT_F32, 0);
    dt__raw_view(&v.grad, r->grad, DT_F32, r->n);
    dt__raw_view(&v.gscale, r->gscale, DT_F32, 1);
    dt__raw_view(&v.update, k->traits & DT__UPDATE_TENSOR ? r->temp : NULL, DT_F32, r->n);
    dt__raw_view(&v.wnorm, ratio ? &wnorm : NULL, DT_F32, 1);
    dt__raw_view(&v.unorm, ratio ? &unorm : NULL, DT_F32, 1);
    v.m = NULL;
    v.clip = NULL;
    v.run = NULL;
    dt__raw_view(&v.segments, ratio ? ends : NULL, DT_I64, 2);
    dt__raw_view(&v.slots, ratio ? whole : NULL, DT_I64, 2);
    dt__raw_view(&v.parts, at, DT_I64, n + 1);
    dt__raw_view(&v.wparts, part, DT_F32, n);
    dt__raw_view(&v.uparts, part ? part + n : NULL, DT_F32, n);
    v.wall = v.wparts;
    v.uall = v.uparts;
    int rc = dt__optim_begin(&v, k, g, (double)r->t);
    if (!rc) rc = dt__optim_ratios(&v);
    if (!rc) rc = k->update(&v, k, g, (double)r->t);
    if (at != few) dt_mem_free(at, nbytes);
    return rc;
}
DT__INSIDE int dt__raw_parts(float *part, const float *x, int64_t n)
{
    int rc = 0;
    for (int64_t at = 0; at < n && !rc; at += DT__NORM_PART)
        rc = dt__raw_norm(part++, x + at, n - at < DT__NORM_PART ? n - at : DT__NORM_PART);
    return rc;
}
DT__INSIDE int dt__raw_clamp(float *x, int64_t n, double limit)
{
    dt_call c;
    if (!n) return 0;
    dt__call_begin(&c, DT_K_unary);
    dt__raw_view(&c.out[c.nout++], x, DT_F32, n);
    dt__raw_view(&c.in[c.nin++], x, DT_F32, n);
    c.u.ew.fn = DT_U_CLAMP;
    c.u.ew.a = -limit;
    c.u.ew.b = limit;
    return dt__go(dt_cpu(), &c);
}
DT__INSIDE int dt__raw_norm(float *norm, const float *x, int64_t n)
{
    dt_view y, v, none;
    dt__raw_view(&y, norm, DT_F32, 1);
    dt__raw_view(&v, x, DT_F32, n);
    dt__raw_view(&none, NULL, DT_I64, 0);
    *norm = 0;
    return n ? dt__view_norms(dt_cpu(), &y, &v, &none) : 0;
}
DT__INSIDE int dt__raw_clip(float *x, double clip_norm) /* x: the norm; becomes the coefficient, as in dt__clip_coefficient */
{
    static const int    fn[3] = { DT_U_AFFINE, DT_U_RECIP, DT_U_CLAMP };
    const double        a[3] = { 1, clip_norm, 0 }, b[3] = { 1e-6, 0, 1 };
    int                 rc = 0;
    for (int i = 0; i < 3 && !rc; i++) {
        dt_call c;
        dt__call_begin(&c, DT_K_unary);
        dt__raw_view(&c.out[c.nout++], x, DT_F32, 1);
        dt__raw_view(&c.in[c.nin++], x, DT_F32, 1);
        c.u.ew.fn = fn[i];
        c.u.ew.a = a[i];
        c.u.ew.b = b[i];
        rc = dt__go(dt_cpu(), &c);
    }
    return rc;
}
DT__INSIDE int dt__raw_finite(const float *x, int64_t n, bool *finite)
{
    float   flag = 0;
    dt_call c;
    dt__call_begin(&c, DT_K_unscale);
    dt__raw_view(&c.out[c.nout++], NULL, DT_F32, 0);
    dt__raw_view(&c.out[c.nout++], &flag, DT_F32, 1);
    dt__raw_view(&c.in[c.nin++], x, DT_F32, n);
    c.u.ew.a = 1;
    int rc = n ? dt__go(dt_cpu(), &c) : 0;
    *finite = flag == 0;
    return rc;
}
DT__INSIDE dt__optim_about dt__optim_about_of(const dt_optimizer *opt, int group)
{
    const dt__optim_kind *k = dt__optim_kind_of(opt);
    dt__optim_about       a;
    a.call = k->call;
    a.nstates = dt__optim_nstates(k);
    a.slots = dt__optim_slots(k, &opt->group[group]);
    a.whole = (k->traits & DT__TRUST_RATIO) != 0;
    a.temp = (k->traits & DT__UPDATE_TENSOR) != 0;
    a.counts = !(k->traits & DT__COUNT_MOMENTUM) || opt->group[group].momentum != 0;
    return a;
}
DT__INSIDE dt_optimizer *dt__optimizer_copy(const dt_optimizer *opt)
{
    dt_optimizer *copy = (dt_optimizer *)dt__alloc_zero(sizeof *copy);
    if (!copy) return NULL;
    copy->kind = opt->kind;
    copy->custom = opt->custom;
    if (copy->custom) __atomic_add_fetch(&copy->custom->refs, 1, __ATOMIC_RELAXED);
    copy->ngroups = opt->ngroups;
    memcpy((void *)copy->group, opt->group, sizeof copy->group);
    copy->run_version = -1;
    return copy;
}
DT__INSIDE uint64_t dt__optimizer_hash(const dt_optimizer *opt, uint64_t (*hash)(uint64_t, const void *, size_t), uint64_t h)
{
    h = hash(h, &opt->kind, sizeof opt->kind);
    for (int g = 0; g < opt->ngroups; g++) {
        dt_optimizer_opts o = opt->group[g];
        for (int i = 0; i < DT__O_NUMBERS; i++) h = hash(h, dt__optim_at(&o, i), sizeof(double));
        for (int i = 0; i < DT__O_FLAGS; i++) h = hash(h, dt__optim_flag(&o, i), sizeof(bool));
        if (opt->pattern[g]) h = hash(h, opt->pattern[g], strlen(opt->pattern[g]) + 1);
    }
    return h;
}
DT__INSIDE int dt__block_states(const dt_model *m, dt__mblock *b, unsigned slots) { return dt__states_make(m, b, slots); }

static int dt__step_temps(dt_optimizer *opt, dt__step_temp *w, int place) /* on one device */
{
    const dt__optim_kind *kind = dt__optim_kind_of(opt);
    int64_t               all = 0;
    for (int i = 0; i < opt->nruns; i++) {
        if (opt->run[i].place != place) continue;
        opt->run[i].temp = all;
        all += opt->run[i].n;
    }
    if (kind->traits & DT__UPDATE_TENSOR) w->update[place] = dt__new("dt_step", opt->places.dev[place], DT_F32, &all, 1, DT_LAYOUT_PLAIN);
    if (kind->traits & DT__TRUST_RATIO) w->wparts[place] = dt__norms_new(opt, place);
    if (kind->traits & DT__TRUST_RATIO) w->uparts[place] = dt__norms_new(opt, place);
    return dt_error_code();
}
static int dt__step_update(dt_optimizer *opt)
{
    const dt__optim_kind    *kind = dt__optim_kind_of(opt);
    dt_model                *m = opt->m;
    const dt_optimizer_opts *o = &opt->group[0];
    dt__step_temp            w;
    int                      rc = m->shards ? m->shards->settle(m->shards->user) : 0;
    memset(&w, 0, sizeof w);
    for (int i = 0; i < m->nblocks && !rc; i++)
        if (m->block[i].opt == opt->index)
            rc = dt__states_make(m, &m->block[i], dt__optim_slots(kind, &opt->group[m->block[i].group]));
    for (int p = 0; p < opt->places.n && !rc; p++) rc = dt__step_temps(opt, &w, p);
    for (int i = 0; i < opt->nruns && !rc && o->clip_value > 0; i++)
        rc = dt__run_map(opt, &opt->run[i], DT_U_CLAMP, -o->clip_value, o->clip_value);
    if (!rc && o->clip_norm > 0) rc = dt__clip_coefficient(opt, w.gscale);
    for (int i = 0; i < opt->nruns && !rc; i++) rc = dt__run_begin(opt, &opt->run[i], &w);
    for (int p = 0; p < opt->places.n && !rc && w.wparts[p]; p++) {
        rc = dt__norms_share(opt, w.wparts[p]);
        if (!rc) rc = dt__norms_share(opt, w.uparts[p]);
    }
    for (int i = 0; i < opt->nruns && !rc; i++) {
        rc = dt__run_update(opt, &opt->run[i], &w);
        if (!rc) rc = dt__run_end(opt, &opt->run[i]);
    }
    if (!rc && m->shards) rc = m->shards->stepped(m->shards->user, opt);
    if (rc && m->shards) dt__watch_tell(m); /* the other ranks are waiting */
    for (int p = 0; p < opt->places.n; p++) {
        dt__unref(w.gscale[p]);
        dt__unref(w.update[p]);
        dt__unref(w.wparts[p]);
        dt__unref(w.uparts[p]);
    }
    return rc;
}
/* The name of the first parameter, in the order of backward, whose gradient is not finite. NULL if all are finite or the
   check failed. all: every rank calls it, and looks at its ranges. */
static const char *dt__first_bad_grad(dt_optimizer *opt, bool all)
{
    dt_model   *m = opt->m;
    int64_t     one = 1, found = -1;
    dt_tensor  *flag = NULL; /* on the device of the parameter */
    float       bad = 0;
    for (int i = m->nparams - 1; i >= 0 && found < 0; i--) {
        dt__param *p = m->param[i];
        if (p->opt != opt->index || p->block < 0 || !dt__has_grad(&m->block[p->block], p)) continue;
        const dt__mblock *b = &m->block[p->block];
        bool              cut = b->cut && (b->use_mgrad || b->cut & DT__CUT_GRAD);
        dt__piece         piece;
        int               rc = 0;
        if (!flag || flag->st->dev != p->t->st->dev) {
            dt__unref(flag);
            flag = dt__new("dt_step", p->t->st->dev, DT_F32, &one, 1, DT_LAYOUT_PLAIN);
            if (!flag || dt__fill(flag, 0)) break;
        }
        for (int k = 0; !rc && dt__piece_next(b, b->cut != 0, p->offset, p->offset + p->t->numel, &k, &piece);) {
            dt_call c;
            dt__call_begin(&c, DT_K_unscale);
            dt__out(&c, NULL);
            dt__out(&c, flag);
            dt__view_part(dt__in(&c, b->use_mgrad ? b->mgrad : b->b.grad), cut ? piece.at : piece.lo, piece.n);
            rc = dt__go(p->t->st->dev, &c);
        }
        if (rc || dt__download(flag, &bad)) break;
        if (bad != 0) found = i;
    }
    dt__unref(flag);
    if (all && m->shards && m->shards->most(m->shards->user, "dt_step", &found, 1)) found = -1;
    return found >= 0 ? m->param[found]->name : NULL;
}
static int dt__step_refuse(dt_optimizer *opt) /* the loss was not finite */
{
    const char *name = dt__first_bad_grad(opt, false);
    return dt_fail(DT_ERR_NUMERIC,
                   "dt_step: the loss (of '%s') was %g in step %" PRId64
                   "; %s%s%s; weights and optimiser are unchanged: "
                   "check the batch, use a smaller .lr, or set .clip_norm",
                   dt__err.bad_loss, dt__err.bad_loss_value, opt->steps + 1,
                   name ? "the first gradient that is not finite is of '" : "no gradient is infinite or NaN",
                   name ? name : "", name ? "'" : "");
}
static int dt__step(dt_optimizer *opt)
{
    if (!dt__optim_ok("dt_step", opt)) return dt_error_code();
    dt_model *m = opt->m;
    int       rc = 0;
    if (!m->sealed)
        return dt_fail(DT_ERR_STATE, "dt_step: no backward yet; the order is: forward, dt_backward(loss), dt_step");
    if (m->sharers && !dt__model_own("dt_step", m)) return dt_error_code();
    if (m->lost)
        return dt_fail(DT_ERR_STATE, "dt_step: the model was sharded, and its ddp ended with an error; load a checkpoint into a new model");
    if (m->amp && (rc = dt__amp_before_step(m->amp, opt))) return rc;
    if (opt->skip) {
        opt->skip = 0;
        dt__optim_clear(opt);
        return 0;
    }
    if (dt__err.bad_loss) {
        rc = dt__step_refuse(opt);
        dt__optim_clear(opt);
        return rc;
    }
    rc = dt__runs_make(opt);
    if (!rc && !opt->reached && m->parts) { /* all its parameters are on other ranks */
        float none = 0;
        if (opt->group[0].clip_norm > 0) rc = dt__watch_whole_norm(m, &none);
    } else if (!rc && !opt->reached && !opt->idle_logged) {
        opt->idle_logged = true;
        dt__logf(DT_LOG_WARN, "dt_step: nothing changed: no gradient reached a parameter of the optimiser (%s) since its last "
                 "step. Was dt_backward called on a loss that depends on them, and no dt_end, dt_step of another optimiser or "
                 "dt_detach between? dt_update keeps the tape for a second optimiser", dt__optim_kind_of(opt)->call);
    }
    if (rc || !opt->reached) return rc;
    rc = dt__step_update(opt);
    if (rc) return rc;
    for (int i = 0; i < m->nblocks; i++) {
        const dt__mblock *b = &m->block[i];
        if (b->opt != opt->index || !dt__optim_about_of(opt, b->group).counts) continue;
        for (int k = b->first; k < b->first + b->n; k++) m->order[k]->steps += m->order[k]->in_run;
    }
    opt->steps++;
    dt__optim_clear(opt);
    return 0;
}
static dt_status dt__update(dt_optimizer *opt)
{
    for (dt__watch *w = opt && opt->m ? opt->m->watch : NULL; w; w = w->next)
        if (w->step) w->step(w->user, opt);
    if (dt__err.code == DT_OK) dt__step(opt);
    /* on a grid an error of one axis must reach the others now: the program may clear it and leave */
    if (dt__err.code != DT_OK && opt && opt->m && opt->m->watch && opt->m->watch->next) dt__watch_tell(opt->m);
    return dt_error_code();
}
static dt_status dt__update_step(dt_optimizer *opt, bool ends)
{
    if (dt__tls.in_backward)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_step: called inside a backward; call it after dt_backward() returns");
    if (opt && opt->busy) return (dt_status)dt_fail(DT_ERR_STATE, "dt_step: called inside the update of a rule; return from it first");
    bool     timed = opt && opt->m && opt->m->timed == DT__TIMED;
    uint64_t t0 = timed ? dt__profile_now(opt->m->profile) : 0;
    bool     inside = opt && opt->m && dt__model_enter("dt_step", opt->m);
    dt__measured.update = dt__nanoseconds();
    if (!opt || !opt->m || inside) dt__update(opt);
    if (inside) dt__model_leave(opt->m);
    if (ends) dt_end();
    dt__measured.updated = dt__nanoseconds();
    if (timed) dt__profile_step(opt->m->profile, opt, t0);
    return dt_error_code();
}
DT_API dt_status dt_update(dt_optimizer *opt) { return dt__update_step(opt, false); }
DT_API dt_status dt_step(dt_optimizer *opt) { return dt__update_step(opt, true); }

/* ---- saving and loading */
static int dt__visit_integer(dt__visit *v, const char *prefix, const char *a, const char *b, int64_t *x)
{
    char *name = dt__joined(prefix, strlen(prefix), a, b);
    int   rc = name ? v->integer(v, name, x) : DT_ERR_MEMORY;
    dt__free_text(name);
    return rc;
}
/* One state of a parameter: a view of the block's state in the parameter's shape. */
static int dt__visit_state(dt__visit *v, dt_model *m, const char *prefix, const char *what, const dt__mblock *b, dt_tensor *state,
                           const dt__param *p)
{
    char      *name = dt__joined(prefix, strlen(prefix), what, p->name);
    dt_tensor *t = name && !b->cut ? dt__slice(state, 0, p->offset, p->t->numel) : NULL;
    int        rc = name && b->cut ? v->part(v, name, b, state, true, p) : (int)DT_ERR_MEMORY;
    if (t) {
        t->ndim = p->t->ndim;
        memcpy(t->shape, p->t->shape, sizeof t->shape);
        dt__dense_strides(t->stride, t->shape, t->ndim);
        if (p->cut.parts && !v->loading) {
            dt_tensor *whole = dt__cut_whole(m, "dt_checkpoint", t, &p->cut);
            dt__unref(t);
            t = whole;
        }
        v->cut = p->cut.parts ? &p->cut : NULL;
        rc = t ? v->tensor(v, name, t) : DT_ERR_MEMORY;
        v->cut = NULL;
    }
    dt__unref(t);
    dt__free_text(name);
    return rc;
}
/* PREFIX.group.0.lr ...: the numbers that the optimiser takes, without those of clipping */
static int dt__visit_group(dt_optimizer *opt, dt__visit *v, const char *prefix, int g, dt_optimizer_opts *o)
{
    uint32_t takes = dt__optim_takes(dt__optim_kind_of(opt)) & ~DT__O_CLIP;
    char     group[32];
    int      rc = 0;
    snprintf(group, sizeof group, ".group.%d", g);
    for (int i = 0; i < DT__O_NUMBERS && !rc; i++) {
        if (!(takes >> i & 1u)) continue;
        char *name = dt__joined(prefix, strlen(prefix), group, dt__optim_numbers[i].key);
        rc = name ? v->number(v, name, dt__optim_at(o, i)) : DT_ERR_MEMORY;
        dt__free_text(name);
    }
    return rc;
}
/* The groups' options and which states exist. A load changes the optimiser only after all values are checked. */
static int dt__visit_groups(dt_optimizer *opt, dt__visit *v, const char *prefix, int64_t *slots)
{
    dt_optimizer_opts o[DT__MAX_GROUPS];
    int64_t           kind = opt->kind, groups = opt->ngroups, steps = opt->steps;
    int               rc = dt__visit_integer(v, prefix, ".kind", NULL, &kind);
    if (!rc) rc = dt__visit_integer(v, prefix, ".groups", NULL, &groups);
    if (!rc && kind != opt->kind)
        return dt_fail(DT_ERR_STATE, "dt_optimizer: what was saved is of %s, this is %s; create the optimiser that was saved",
                       kind >= 0 && kind < DT__OPTIM_KINDS ? dt__optim_kinds[kind].call : "an unknown kind",
                       dt__optim_kind_of(opt)->call);
    if (!rc && groups != opt->ngroups)
        return dt_fail(DT_ERR_STATE, "dt_optimizer: %" PRId64 " groups were saved, this has %d; add the same groups",
                       groups, opt->ngroups);
    if (!rc) rc = dt__visit_integer(v, prefix, ".steps", NULL, &steps);
    for (int g = 0; g < opt->ngroups && !rc; g++) {
        char name[48];
        snprintf(name, sizeof name, ".group.%d", g);
        o[g] = opt->group[g];
        rc = dt__visit_group(opt, v, prefix, g, &o[g]);
        if (!rc) rc = dt__visit_integer(v, prefix, name, "states", &slots[g]);
        if (!rc && v->loading) {
            rc = dt__optim_check("dt_optimizer: what was saved", &o[g]);
            if (slots[g] < 0 || slots[g] >= 1 << dt__optim_nstates(dt__optim_kind_of(opt)))
                rc = dt_fail(DT_ERR_STATE, "dt_optimizer: group %d was saved with the set of states %" PRId64
                             ", which is impossible: the file is damaged", g, slots[g]);
        }
    }
    if (rc || !v->loading) return rc;
    if (steps < 0)
        return dt_fail(DT_ERR_STATE, "dt_optimizer: it was saved after %" PRId64 " steps, which is impossible: the file is "
                       "damaged", steps);
    for (int g = 0; g < opt->ngroups; g++) opt->group[g] = o[g];
    opt->steps = steps;
    return 0;
}
static int dt__visit_param(dt_optimizer *opt, dt__visit *v, const char *prefix, dt__param *p, int64_t slots)
{
    const dt__optim_kind *k = dt__optim_kind_of(opt);
    dt__mblock           *b = &opt->m->block[p->block];
    int64_t               steps = p->steps;
    int                   rc = dt__states_make(opt->m, b, (unsigned)slots);
    if (!rc) rc = dt__visit_integer(v, prefix, ".step", p->name, &steps);
    if (!rc && steps < 0)
        rc = dt_fail(DT_ERR_STATE, "dt_optimizer: '%s' was saved with %" PRId64 " steps, which is impossible: the file is "
                     "damaged", p->name, steps);
    if (!rc) p->steps = steps;
    for (int s = 0; s < DT__MAX_STATES && !rc; s++)
        if (slots >> s & 1 && k->state[s].name) {
            char *what = dt__joined(".", 1, k->state[s].name, NULL);
            if (!what) return DT_ERR_MEMORY;
            if (!(k->traits & DT__OWN_STATES)) {
                rc = dt__visit_state(v, opt->m, prefix, what, b, b->state[s], p);
            } else if (dt__own_saved(p->t, s)) {
                char *name = dt__joined(prefix, strlen(prefix), what, p->name);
                rc = name ? v->tensor(v, name, p->own[s]) : DT_ERR_MEMORY;
                dt__free_text(name);
            }
            dt__free_text(what);
        }
    return rc;
}
static __attribute__((unused)) int dt__optimizer_visit(dt_optimizer *opt, dt__visit *v, const char *prefix)
{
    int64_t slots[DT__MAX_GROUPS] = { 0 }, any = 0;
    if (!dt__optim_ok("dt_optimizer", opt)) return dt_error_code();
    dt_model *m = opt->m;
    for (int i = 0; i < m->nblocks; i++)
        for (int k = 0; k < DT__MAX_STATES && m->block[i].opt == opt->index; k++)
            if (m->block[i].state[k]) slots[m->block[i].group] |= (int64_t)1 << k;
    for (int i = 0; i < m->nparams; i++) /* of a group all, whatever the shapes */
        if (m->param[i]->opt == opt->index && m->param[i]->block >= 0 && dt__own_any(m->param[i]))
            slots[m->param[i]->group] = ((int64_t)1 << dt__optim_nstates(dt__optim_kind_of(opt))) - 1;
    for (int g = 0; g < opt->ngroups; g++) any |= slots[g];
    any = any != 0;
    int rc = dt__visit_integer(v, prefix, ".has_state", NULL, &any);
    if (!rc && any && !m->sealed)
        rc = dt_fail(DT_ERR_STATE, "dt_optimizer: its states can only be loaded after the seal (the first backward)");
    if (!rc) rc = dt__visit_groups(opt, v, prefix, slots);
    if (v->loading) dt__runs_free(opt);
    if (!rc && v->loading) opt->lost = false;
    for (int i = 0; i < m->nblocks && !rc && v->loading; i++) /* states that were not saved start at 0 */
        for (int k = 0; k < DT__MAX_STATES && m->block[i].opt == opt->index; k++) {
            dt__unref(m->block[i].state[k]);
            m->block[i].state[k] = NULL;
        }
    for (int i = 0; i < m->nparams && !rc; i++) {
        dt__param *p = m->param[i];
        if (p->opt != opt->index || p->block < 0) continue;
        if (v->loading) dt__own_free(p);
        if (any) rc = dt__visit_param(opt, v, prefix, p, slots[p->group]);
        else if (v->loading) p->steps = 0;
    }
    return rc;
}

/* ==================================================================================================== >>sched
   The recursive formulas of PyTorch, in double: the next lr is computed from the group's current lr. So an lr that the
   program sets in between has a lasting effect, and the factors of two schedulers of one optimiser multiply. */
enum {
    DT__CONSTANT_LR, DT__LINEAR_LR, DT__STEP_LR, DT__MULTISTEP_LR, DT__EXPONENTIAL_LR, DT__POLYNOMIAL_LR,
    DT__COSINE_LR, DT__RESTARTS_LR, DT__CYCLIC_LR, DT__ONE_CYCLE_LR, DT__PLATEAU_LR, DT__SCHEDULES
};
static const char *const dt__sched_call[DT__SCHEDULES] = {
    "dt_constant_lr", "dt_linear_lr", "dt_step_lr", "dt_multistep_lr", "dt_exponential_lr", "dt_polynomial_lr",
    "dt_cosine_annealing_lr", "dt_cosine_annealing_warm_restarts", "dt_cyclic_lr", "dt_one_cycle_lr", "dt_reduce_lr_on_plateau"
};

#define DT__SCHED_HUGE 1e300
#define DT__SCHED_MOST ((int64_t)1 << 40) /* largest count: exact as a double, and sums do not overflow */
static const double dt__sched_pi = 3.14159265358979323846;

/* The options. Each kind of scheduler has a letter: C constant, L linear, S step, M multistep, E exponential, P polynomial,
   A cosine annealing, R restarts, Y cyclic, O one-cycle, T plateau. An option whose default or range differs between kinds
   has several lines. */
#define DT__SCHED_LETTERS "CLSMEPARYOT" /* in the order of the enumeration */
typedef struct dt__sched_field {
    const char *name;
    size_t      at;
    char        type;          /* d: double, n: int64_t, i: int or an enumeration, b: bool, p: a pointer */
    const char *takes, *needs; /* letters of the kinds that take it, and that require it */
    double      otherwise;     /* the default; NAN: there is no default */
    const char *ends;          /* of the valid interval, "(]": above lo, up to hi; "": any value */
    double      lo, hi;
    const char *valid;
} dt__sched_field;
#define DT__FIELD(f) #f, offsetof(dt_scheduler_opts, f)
#define DT__ANY "", 0, 0, ""
#define DT__COUNTS "[]", 1, (double)DT__SCHED_MOST, "1 to 2^40"
#define DT__COUNTS_0 "[]", 0, (double)DT__SCHED_MOST, "0 to 2^40"
#define DT__PLUS "[]", 0, DT__SCHED_HUGE, "finite and at least 0"
#define DT__ABOVE_0 "(]", 0, DT__SCHED_HUGE, "finite and above 0"
#define DT__PART "[)", 0, 1, "at least 0 and below 1"
static const dt__sched_field dt__sched_fields[] = {
    { DT__FIELD(factor), 'd', "C", "", 1.0 / 3, "(]", 0, 1, "above 0 and at most 1" },
    { DT__FIELD(factor), 'd', "T", "", 0.1, DT__PART },
    { DT__FIELD(start_factor), 'd', "L", "", 1.0 / 3, "(]", 0, 1, "above 0 and at most 1" },
    { DT__FIELD(end_factor), 'd', "L", "", 1, "[]", 0, 1, "0 to 1" },
    { DT__FIELD(total_iters), 'n', "CLP", "", 5, DT__COUNTS },
    { DT__FIELD(power), 'd', "P", "", 1, DT__PLUS },
    { DT__FIELD(step_size), 'n', "S", "S", NAN, DT__COUNTS },
    { DT__FIELD(gamma), 'd', "SM", "", 0.1, DT__PLUS },
    { DT__FIELD(gamma), 'd', "EY", "E", 1, DT__PLUS },
    { DT__FIELD(milestones), 'p', "M", "M", NAN, DT__ANY },
    { DT__FIELD(nmilestones), 'i', "M", "M", NAN, "[]", 1, 1 << 20, "1 to 2^20" },
    { DT__FIELD(t_max), 'n', "A", "A", NAN, DT__COUNTS },
    { DT__FIELD(eta_min), 'd', "AR", "", 0, DT__PLUS },
    { DT__FIELD(t_0), 'n', "R", "R", NAN, DT__COUNTS },
    { DT__FIELD(t_mult), 'n', "R", "", 1, "[]", 1, 1 << 20, "1 to 2^20" },
    { DT__FIELD(base_lr), 'd', "Y", "Y", 0, DT__PLUS },
    { DT__FIELD(max_lr), 'd', "YO", "YO", 0, DT__PLUS },
    { DT__FIELD(step_size_up), 'n', "Y", "", 2000, DT__COUNTS },
    { DT__FIELD(step_size_down), 'n', "Y", "", 2000, DT__COUNTS },
    { DT__FIELD(mode), 'i', "Y", "", DT_MODE_TRIANGULAR, "[]", DT_MODE_TRIANGULAR, DT_MODE_EXP_RANGE,
      "DT_MODE_TRIANGULAR, DT_MODE_TRIANGULAR2 or DT_MODE_EXP_RANGE" },
    { DT__FIELD(mode), 'i', "T", "", DT_MODE_MIN, "[]", DT_MODE_MIN, DT_MODE_MAX, "DT_MODE_MIN or DT_MODE_MAX" },
    { DT__FIELD(cycle_momentum), 'i', "YO", "", DT_YES, "[]", DT_NO, DT_YES, "DT_YES or DT_NO" },
    { DT__FIELD(base_momentum), 'd', "Y", "", 0.8, DT__PART },
    { DT__FIELD(base_momentum), 'd', "O", "", 0.85, DT__PART },
    { DT__FIELD(max_momentum), 'd', "Y", "", 0.9, DT__PART },
    { DT__FIELD(max_momentum), 'd', "O", "", 0.95, DT__PART },
    { DT__FIELD(total_steps), 'n', "O", "", NAN, DT__COUNTS },
    { DT__FIELD(epochs), 'n', "O", "", NAN, DT__ANY },
    { DT__FIELD(steps_per_epoch), 'n', "O", "", NAN, DT__ANY },
    { DT__FIELD(pct_start), 'd', "O", "", 0.3, "[]", 0, 1, "0 to 1" },
    { DT__FIELD(anneal_strategy), 'i', "O", "", NAN, "[]", DT_ANNEAL_COS, DT_ANNEAL_LINEAR,
      "DT_ANNEAL_COS or DT_ANNEAL_LINEAR" },
    { DT__FIELD(div_factor), 'd', "O", "", 25, DT__ABOVE_0 },
    { DT__FIELD(final_div_factor), 'd', "O", "", 1e4, DT__ABOVE_0 },
    { DT__FIELD(three_phase), 'b', "O", "", NAN, DT__ANY },
    { DT__FIELD(patience), 'n', "T", "", 10, DT__COUNTS_0 },
    { DT__FIELD(threshold), 'd', "T", "", 1e-4, DT__PLUS },
    { DT__FIELD(threshold_mode), 'i', "T", "", NAN, "[]", DT_THRESHOLD_REL, DT_THRESHOLD_ABS,
      "DT_THRESHOLD_REL or DT_THRESHOLD_ABS" },
    { DT__FIELD(cooldown), 'n', "T", "", 0, DT__COUNTS_0 },
    { DT__FIELD(min_lr), 'd', "T", "", 0, DT__PLUS },
    { DT__FIELD(eps), 'd', "T", "", 1e-8, DT__PLUS },
};
#undef DT__FIELD
#undef DT__ANY
#undef DT__COUNTS
#undef DT__COUNTS_0
#undef DT__PLUS
#undef DT__ABOVE_0
#undef DT__PART
enum { DT__SCHED_FIELDS = (int)DT__COUNT_OF(dt__sched_fields) };

struct dt_scheduler {
    dt_optimizer    *opt;
    int              kind;
    dt_scheduler_opts o; /* with defaults filled in: 0 means 0 */
    int64_t         *milestone;
    int              ngroups;
    double           base[DT__MAX_GROUPS]; /* base lr of each group, without a warm-up's multiplier */
    int64_t          steps;                /* number of steps */
    int64_t          warm;                 /* steps of the warm-up; 0: no warm-up */
    double           warm_start, warm_k;   /* start factor; multiplier, 0: no multiplier */
    int64_t          t_cur, t_i;           /* restarts: steps since the last restart, length of this period */
    double           best;                 /* plateau: best metric so far */
    int64_t          bad, cooldown;        /* plateau: metrics without improvement, metrics left of the cool-down */
};

/* ---- options */
static double dt__sched_get(const dt_scheduler_opts *o, const dt__sched_field *f)
{
    const char *at = (const char *)o + f->at;
    const void *p;
    int64_t     n;
    int         i; /* copied: C++ does not let an enumeration be read as an int */
    switch (f->type) {
    case 'd': return *(const double *)at;
    case 'n': return (double)(memcpy(&n, at, sizeof n), n);
    case 'i': return memcpy(&i, at, sizeof i), i;
    case 'b': return *(const bool *)at;
    case 'p': return memcpy(&p, at, sizeof p), p != NULL;
    }
    return NAN; /* not a type of the table: fails every range check */
}
static void dt__sched_put(dt_scheduler_opts *o, const dt__sched_field *f, double x)
{
    char *at = (char *)o + f->at;
    int64_t n = (int64_t)x;
    int     i = (int)x;
    if (f->type == 'd') *(double *)at = x;
    if (f->type == 'n') memcpy(at, &n, sizeof n);
    if (f->type == 'i') memcpy(at, &i, sizeof i);
}
static bool dt__sched_takes(char letter, size_t at)
{
    for (int i = 0; i < DT__SCHED_FIELDS; i++)
        if (dt__sched_fields[i].at == at && strchr(dt__sched_fields[i].takes, letter)) return true;
    return false;
}
static int dt__sched_given(int kind, const dt_scheduler_opts *o) /* all required options, and only those it takes */
{
    const char *strange = NULL, *missing = NULL, *call = dt__sched_call[kind];
    char        taken[512] = "", letter = DT__SCHED_LETTERS[kind];
    size_t      used = 0;
    for (int i = 0; i < DT__SCHED_FIELDS; i++) {
        const dt__sched_field *f = &dt__sched_fields[i];
        bool                   given = dt__sched_get(o, f) != 0;
        if (strchr(f->takes, letter) && used < sizeof taken)
            used += (size_t)snprintf(taken + used, sizeof taken - used, "%s.%s", used ? ", " : "", f->name);
        if (!given && strchr(f->needs, letter) && !missing) missing = f->name;
        if (given && !strange && !dt__sched_takes(letter, f->at)) strange = f->name;
    }
    if (strange) return dt_fail(DT_ERR_ARG, "%s: it does not take .%s; it takes %s", call, strange, taken);
    if (missing) return dt_fail(DT_ERR_ARG, "%s: .%s is missing; it takes %s", call, missing, taken);
    return 0;
}
static double dt__sched_or(double x, double otherwise) { return x == 0 ? otherwise : x == DT_ZERO ? 0 : x; }

/* Comparisons with NaN are false: write 'good' as what must hold, not as the negation of an error. */
static int dt__sched_must(int kind, bool good, const char *field, double value, const char *valid)
{
    if (good) return 0;
    return dt_fail(DT_ERR_ARG, "%s: .%s is %g; it must be %s", dt__sched_call[kind], field, value, valid);
}
static int dt__sched_total(int kind, dt_scheduler_opts *o) /* one-cycle: sets o->total_steps */
{
    const char *call = dt__sched_call[kind];
    if (o->total_steps != 0 && (o->epochs != 0 || o->steps_per_epoch != 0))
        return dt_fail(DT_ERR_ARG, "%s: give .total_steps, or .epochs and .steps_per_epoch, not both", call);
    if (o->total_steps == 0 && o->epochs == 0 && o->steps_per_epoch == 0)
        return dt_fail(DT_ERR_ARG, "%s: .total_steps is missing (or .epochs and .steps_per_epoch)", call);
    if (o->total_steps != 0) return 0;
    if (dt__sched_must(kind, o->epochs >= 1 && o->epochs <= 1 << 30, "epochs", (double)o->epochs, "1 to 2^30") ||
        dt__sched_must(kind, o->steps_per_epoch >= 1 && o->steps_per_epoch <= 1 << 30, "steps_per_epoch",
                       (double)o->steps_per_epoch, "1 to 2^30"))
        return DT_ERR_ARG;
    o->total_steps = o->epochs * o->steps_per_epoch;
    return 0;
}
/* Fills in defaults, then checks ranges. */
static int dt__sched_resolve(int kind, dt_scheduler_opts *o)
{
    char letter = DT__SCHED_LETTERS[kind];
    if (kind == DT__CYCLIC_LR && o->step_size_down == 0) o->step_size_down = o->step_size_up;
    if (kind == DT__ONE_CYCLE_LR && dt__sched_total(kind, o)) return DT_ERR_ARG;
    for (int i = 0; i < DT__SCHED_FIELDS; i++) {
        const dt__sched_field *f = &dt__sched_fields[i];
        if (!strchr(f->takes, letter)) continue;
        double x = dt__sched_get(o, f);
        if (!isnan(f->otherwise) && (x == 0 || (x == DT_ZERO && f->type != 'i')))
            dt__sched_put(o, f, x = dt__sched_or(x, f->otherwise));
        bool good = !f->ends[0] || ((f->ends[0] == '(' ? x > f->lo : x >= f->lo) &&
                                    (f->ends[1] == ')' ? x < f->hi : x <= f->hi));
        if (dt__sched_must(kind, good, f->name, x, f->valid)) return DT_ERR_ARG;
    }
    for (int i = 0; kind == DT__MULTISTEP_LR && i < o->nmilestones; i++)
        if (o->milestones[i] < 0)
            return dt_fail(DT_ERR_ARG, "%s: .milestones[%d] is %lld; it must be at least 0", dt__sched_call[kind], i,
                           (long long)o->milestones[i]);
    return 0;
}

/* ---- values */
static double dt__sched_cosine(double low, double high, int64_t t, int64_t period)
{
    return low + (high - low) * (1 + cos(dt__sched_pi * (double)t / (double)period)) / 2;
}

static double dt__sched_milestones(const dt_scheduler *s, int64_t t, double lr)
{
    int n = 0;
    for (int i = 0; i < s->o.nmilestones; i++) n += s->milestone[i] == t;
    return n ? lr * pow(s->o.gamma, n) : lr;
}

/* From 'low' at the ends of a cycle to 'high' within it. For the momentum, 'low' is its maximum and 'high' its base. */
static double dt__sched_cyclic(const dt_scheduler *s, int64_t t, double low, double high)
{
    const dt_scheduler_opts *o = &s->o;
    double                  size = (double)o->step_size_up + (double)o->step_size_down, ratio = (double)o->step_size_up / size;
    double                  cycle = floor(1 + (double)t / size), x = 1.0 + (double)t / size - cycle, scale = 1;
    double                  height = (high - low) * (x <= ratio ? x / ratio : (x - 1) / (ratio - 1));
    if (o->mode == DT_MODE_TRIANGULAR2) scale = 1 / pow(2.0, cycle - 1);
    if (o->mode == DT_MODE_EXP_RANGE) scale = pow(o->gamma, (double)t);
    return low + height * scale;
}

/* first -> top -> last, or in three phases first -> top -> first -> last */
static double dt__sched_one_cycle(const dt_scheduler *s, int64_t t, double first, double top, double last)
{
    const dt_scheduler_opts *o = &s->o;
    double                  n = (double)o->total_steps, end[3], value[4];
    int                     phases = o->three_phase ? 3 : 2, i = 0;
    end[0] = o->pct_start * n - 1;
    end[1] = o->three_phase ? 2 * o->pct_start * n - 2 : n - 1;
    end[2] = n - 1;
    value[0] = first;
    value[1] = top;
    value[2] = o->three_phase ? first : last;
    value[3] = last;
    while (i < phases - 1 && (double)t > end[i]) i++;
    double begin = i ? end[i - 1] : 0, length = end[i] - begin;
    double pct = length != 0 ? ((double)t - begin) / length : 1; /* PyTorch divides by zero here */
    double from = value[i], to = value[i + 1];
    if (o->anneal_strategy == DT_ANNEAL_COS) return to + (from - to) / 2.0 * (cos(dt__sched_pi * pct) + 1);
    /* pct is limited to 1: in PyTorch the line goes below zero one step after the last */
    return (to - from) * (pct > 1 ? 1 : pct) + from;
}

/* The lr of step t after the warm-up, from the base lr or from the lr of step t - 1. 'warmed': there was a warm-up; then
   PyTorch uses the closed form for step 0. */
static double dt__sched_value(const dt_scheduler *s, int g, int64_t t, int warmed, double lr)
{
    const dt_scheduler_opts *o = &s->o;
    double                  k = s->warm_k > 0 ? s->warm_k : 1, base = s->base[g] * k;
    double                  rise = o->end_factor - o->start_factor;
    if (t == 0) lr = base;
    switch (s->kind) {
    case DT__CONSTANT_LR: return t == 0 ? lr * o->factor : t == o->total_iters ? lr * (1.0 / o->factor) : lr;
    case DT__LINEAR_LR:
        if (t == 0) return lr * o->start_factor;
        if (t > o->total_iters) return lr;
        return lr * (1.0 + rise / ((double)o->total_iters * o->start_factor + (double)(t - 1) * rise));
    case DT__STEP_LR: return t == 0 || t % o->step_size != 0 ? lr : lr * o->gamma;
    case DT__MULTISTEP_LR: return dt__sched_milestones(s, t, lr);
    case DT__EXPONENTIAL_LR: return t == 0 ? lr : lr * o->gamma;
    case DT__POLYNOMIAL_LR: {
        double n = (double)o->total_iters;
        if (t == 0 || t > o->total_iters) return lr;
        return lr * pow((1.0 - (double)t / n) / (1.0 - (double)(t - 1) / n), o->power);
    }
    case DT__COSINE_LR: {
        double n = (double)o->t_max;
        if (t == 0) return warmed ? dt__sched_cosine(o->eta_min, base, 0, o->t_max) : lr;
        if ((t - 1 - o->t_max) % (2 * o->t_max) == 0)
            return lr + (base - o->eta_min) * (1 - cos(dt__sched_pi / n)) / 2;
        return (1 + cos(dt__sched_pi * (double)t / n)) / (1 + cos(dt__sched_pi * (double)(t - 1) / n)) *
                   (lr - o->eta_min) + o->eta_min;
    }
    case DT__RESTARTS_LR: return dt__sched_cosine(o->eta_min, base, s->t_cur, s->t_i);
    case DT__CYCLIC_LR: return dt__sched_cyclic(s, t, base, o->max_lr * k);
    case DT__ONE_CYCLE_LR: return dt__sched_one_cycle(s, t, base, o->max_lr * k, base / o->final_div_factor);
    case DT__PLATEAU_LR: return lr; /* dt_scheduler_metric changes it */
    }
    return NAN; /* unknown kind: dt_optimizer_set_lr fails */
}

/* The lr of step t of the warm-up, t < s->warm. */
static double dt__sched_warm(const dt_scheduler *s, int g, int64_t t, double lr)
{
    double n = (double)s->warm, f = s->warm_start;
    if (s->warm_k > 0) return s->base[g] * ((s->warm_k - 1.0) * (double)t / n + 1.0);
    if (t == 0) return s->base[g] * f;
    return lr * (1.0 + (1 - f) / (n * f + (double)(t - 1) * (1 - f)));
}

static int dt__sched_cycles(int kind, const dt_scheduler_opts *o) /* it sets the momentum too */
{
    return (kind == DT__CYCLIC_LR || kind == DT__ONE_CYCLE_LR) && o->cycle_momentum == DT_YES;
}
/* Sets lr and momentum of all groups for step s->steps. */
static int dt__sched_apply(dt_scheduler *s)
{
    int64_t t = s->steps - s->warm;
    for (int g = 0; g < s->ngroups; g++) {
        double lr = dt_optimizer_lr(s->opt, g);
        lr = t < 0 ? dt__sched_warm(s, g, s->steps, lr) : dt__sched_value(s, g, t, s->warm > 0, lr);
        if (dt_optimizer_set_lr(s->opt, g, lr)) return dt__err.code;
        if (t < 0 || !dt__sched_cycles(s->kind, &s->o)) continue;
        double high = s->o.max_momentum, low = s->o.base_momentum;
        double m = s->kind == DT__CYCLIC_LR ? dt__sched_cyclic(s, t, high, low)
                                            : dt__sched_one_cycle(s, t, high, low, high);
        if (dt_optimizer_set_momentum(s->opt, g, m)) return dt__err.code;
    }
    return DT_OK;
}

/* ---- creating and stepping */
static dt_scheduler *dt__sched_new(dt_optimizer *opt, int kind, dt_scheduler_opts *o)
{
    const char  *call = dt__sched_call[kind];
    dt_scheduler *s;
    if (dt__err.code != DT_OK) return NULL;
    if (!opt) {
        dt_fail(DT_ERR_ARG, "%s: the optimiser is NULL", call);
        return NULL;
    }
    if (dt__sched_given(kind, o) || dt__sched_resolve(kind, o)) return NULL;
    if (dt__sched_cycles(kind, o) && isnan(dt_optimizer_momentum(opt, 0))) {
        dt_fail(DT_ERR_ARG, "%s: the optimiser has neither momentum nor beta1; give .cycle_momentum = DT_NO", call);
        return NULL;
    }
    s = (dt_scheduler *)dt_mem_alloc(sizeof *s);
    if (s) {
        memset((void *)s, 0, sizeof *s);
        s->kind = kind;
        if (kind == DT__MULTISTEP_LR) s->milestone = (int64_t *)dt_mem_alloc((size_t)o->nmilestones * sizeof(int64_t));
    }
    if (!s || (kind == DT__MULTISTEP_LR && !s->milestone)) {
        dt_mem_free(s, sizeof *s);
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    if (s->milestone) memcpy(s->milestone, o->milestones, (size_t)o->nmilestones * sizeof(int64_t));
    s->o = *o;
    s->o.milestones = s->milestone;
    s->opt = opt;
    s->ngroups = dt_optimizer_groups(opt);
    s->t_i = o->t_0;
    s->best = o->mode == DT_MODE_MAX ? -HUGE_VAL : HUGE_VAL;
    for (int g = 0; g < s->ngroups; g++)
        s->base[g] = kind == DT__CYCLIC_LR      ? o->base_lr
                     : kind == DT__ONE_CYCLE_LR ? o->max_lr / o->div_factor
                                                : dt_optimizer_lr(opt, g);
    if (dt__sched_apply(s) == DT_OK) return s;
    dt_scheduler_free(s);
    return NULL;
}
DT_API dt_scheduler *dt_constant_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__CONSTANT_LR, &o);
}
DT_API dt_scheduler *dt_linear_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__LINEAR_LR, &o);
}
DT_API dt_scheduler *dt_step_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__STEP_LR, &o);
}
DT_API dt_scheduler *dt_multistep_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__MULTISTEP_LR, &o);
}
DT_API dt_scheduler *dt_exponential_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__EXPONENTIAL_LR, &o);
}
DT_API dt_scheduler *dt_polynomial_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__POLYNOMIAL_LR, &o);
}
DT_API dt_scheduler *dt_cosine_annealing_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__COSINE_LR, &o);
}
DT_API dt_scheduler *dt_cosine_annealing_warm_restarts_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__RESTARTS_LR, &o);
}
DT_API dt_scheduler *dt_cyclic_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__CYCLIC_LR, &o);
}
DT_API dt_scheduler *dt_one_cycle_lr_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__ONE_CYCLE_LR, &o);
}
DT_API dt_scheduler *dt_reduce_lr_on_plateau_with(dt_optimizer *opt, dt_scheduler_opts o)
{
    return dt__sched_new(opt, DT__PLATEAU_LR, &o);
}
DT_API void dt_scheduler_free(dt_scheduler *s)
{
    if (!s) return;
    if (s->milestone) dt_mem_free(s->milestone, (size_t)s->o.nmilestones * sizeof(int64_t));
    dt_mem_free(s, sizeof *s);
}
DT_API int64_t dt_scheduler_steps(const dt_scheduler *s) { return s ? s->steps : 0; }
DT__INSIDE dt_scheduler *dt__scheduler_copy(const dt_scheduler *s, dt_optimizer *opt)
{
    size_t        nbytes = s->milestone ? (size_t)s->o.nmilestones * sizeof(int64_t) : 0;
    dt_scheduler *copy = (dt_scheduler *)dt_mem_alloc(sizeof *copy);
    int64_t      *milestone = nbytes ? (int64_t *)dt_mem_alloc(nbytes) : NULL;
    if (!copy || (nbytes && !milestone)) {
        dt_mem_free(copy, sizeof *copy);
        return NULL;
    }
    *copy = *s;
    copy->opt = opt;
    copy->milestone = milestone;
    copy->o.milestones = milestone;
    if (milestone) memcpy(milestone, s->milestone, nbytes);
    return copy;
}
DT__INSIDE bool dt__scheduler_serves(const dt_scheduler *s, const dt_optimizer *opt, const char **why)
{
    *why = s->opt != opt                ? "it is of another optimiser"
           : s->kind == DT__PLATEAU_LR  ? "a plateau scheduler needs a metric, and servers step it by the number of the update"
           : s->steps                   ? "it has stepped already; attach it before its first step, and before a resume"
           : s->ngroups != opt->ngroups ? "groups were added to the optimiser after it was created; add them first"
                                        : NULL;
    return !*why;
}
DT__INSIDE uint64_t dt__scheduler_hash(const dt_scheduler *s, uint64_t (*hash)(uint64_t, const void *, size_t), uint64_t h)
{
    h = hash(h, &s->kind, sizeof s->kind);
    h = hash(h, s->base, (size_t)s->ngroups * sizeof *s->base);
    h = hash(h, &s->warm, sizeof s->warm);
    h = hash(h, &s->warm_start, sizeof s->warm_start);
    h = hash(h, &s->warm_k, sizeof s->warm_k);
    for (int i = 0; i < DT__SCHED_FIELDS; i++) {
        double x = dt__sched_get(&s->o, &dt__sched_fields[i]);
        h = hash(h, &x, sizeof x);
    }
    return s->milestone ? hash(h, s->milestone, (size_t)s->o.nmilestones * sizeof *s->milestone) : h;
}

DT_API dt_status dt_warmup_with(dt_scheduler *s, dt_warmup_opts o)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!s) return (dt_status)dt_fail(DT_ERR_ARG, "dt_warmup: the scheduler is NULL");
    if (s->steps > 0 || s->warm > 0)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_warmup: %s; call it once, before the first step",
                                  s->warm > 0 ? "the scheduler has a warm-up already" : "the scheduler has stepped already");
    if (o.steps < 1 || o.steps > DT__SCHED_MOST)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_warmup: .steps is %lld; it is required and must be 1 to 2^40",
                                  (long long)o.steps);
    if (o.start != 0 && o.multiplier != 0)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_warmup: give .start (warms up to the lr) or .multiplier (warms up from "
                                              "the lr), not both");
    if (o.multiplier != 0 && !(o.multiplier > 1 && o.multiplier <= 1e30))
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_warmup: .multiplier is %g; it must be above 1 (.start warms up to "
                                              "the lr itself)", o.multiplier);
    if (o.start != 0 && !(o.start > 0 && o.start <= 1))
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_warmup: .start is %g; it must be above 0 and at most 1", o.start);
    s->warm = o.steps;
    s->warm_k = o.multiplier;
    s->warm_start = dt__sched_or(o.start, 1.0 / 3);
    return (dt_status)dt__sched_apply(s);
}

static int dt__sched_ready(const dt_scheduler *s, const char *call)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!s) return dt_fail(DT_ERR_ARG, "%s: the scheduler is NULL", call);
    if (dt_optimizer_groups(s->opt) != s->ngroups)
        return dt_fail(DT_ERR_STATE, "%s: the optimiser has %d groups, it had %d when the scheduler was created; add "
                                     "the groups first", call, dt_optimizer_groups(s->opt), s->ngroups);
    return DT_OK;
}

DT_API dt_status dt_scheduler_step(dt_scheduler *s)
{
    if (dt__sched_ready(s, "dt_scheduler_step")) return dt__err.code;
    if (s->kind == DT__PLATEAU_LR)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_scheduler_step: a plateau scheduler needs a metric; call "
                                                "dt_scheduler_metric(s, value)");
    if (s->kind == DT__ONE_CYCLE_LR && s->steps - s->warm >= s->o.total_steps)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_scheduler_step: the one-cycle scheduler has done all its %lld "
                                                "steps; set .total_steps to the steps of the training",
                                  (long long)s->o.total_steps);
    s->steps++;
    if (s->kind == DT__RESTARTS_LR && s->steps > s->warm && ++s->t_cur >= s->t_i) {
        s->t_cur = 0;
        if (s->t_i <= DT__SCHED_MOST) s->t_i *= s->o.t_mult;
    }
    return (dt_status)dt__sched_apply(s);
}

static int dt__sched_better(const dt_scheduler *s, double x)
{
    double e = s->o.threshold;
    if (s->o.threshold_mode == DT_THRESHOLD_REL)
        return s->o.mode == DT_MODE_MIN ? x < s->best * (1.0 - e) : x > s->best * (e + 1.0);
    return s->o.mode == DT_MODE_MIN ? x < s->best - e : x > s->best + e;
}

DT_API dt_status dt_scheduler_metric(dt_scheduler *s, double value)
{
    if (dt__sched_ready(s, "dt_scheduler_metric")) return dt__err.code;
    if (s->kind != DT__PLATEAU_LR)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_scheduler_metric: the scheduler of %s takes no metric; call "
                                                "dt_scheduler_step", dt__sched_call[s->kind]);
    if (s->steps++ < s->warm) return (dt_status)dt__sched_apply(s);
    s->bad++;
    if (dt__sched_better(s, value)) {
        s->best = value;
        s->bad = 0;
    }
    if (s->cooldown > 0) {
        s->cooldown--;
        s->bad = 0;
    }
    if (s->bad <= s->o.patience) return DT_OK;
    for (int g = 0; g < s->ngroups; g++) {
        double lr = dt_optimizer_lr(s->opt, g), less = lr * s->o.factor;
        if (less < s->o.min_lr) less = s->o.min_lr;
        if (lr - less > s->o.eps && dt_optimizer_set_lr(s->opt, g, less)) return dt__err.code;
    }
    s->cooldown = s->o.cooldown;
    s->bad = 0;
    return DT_OK;
}

/* ---- the linear scaling rule */
DT_API double dt_scale_lr(double lr, double batch, double base_batch)
{
    if (dt__err.code != DT_OK) return NAN;
    if (lr >= 0 && lr <= DT__SCHED_HUGE && batch > 0 && batch <= 1e30 && base_batch > 0 && base_batch <= 1e30)
        return lr * batch / base_batch;
    dt_fail(DT_ERR_ARG, "dt_scale_lr: lr %g, batch %g, base_batch %g; lr must be at least 0, both batches above 0", lr,
            batch, base_batch);
    return NAN;
}
DT_API dt_status dt_optimizer_scale_lr(dt_optimizer *opt, double k)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!opt || !(k > 0 && k <= 1e30))
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_optimizer_scale_lr: %s; it takes an optimiser and a factor above 0",
                                  opt ? "the factor is not above 0" : "the optimiser is NULL");
    for (int g = 0; g < dt_optimizer_groups(opt); g++)
        if (dt_optimizer_set_lr(opt, g, dt_optimizer_lr(opt, g) * k)) return dt__err.code;
    return DT_OK;
}

/* ---- saving and loading */
static int dt__sched_visit_number(dt__visit *v, const char *prefix, const char *name, int group, double *x)
{
    char full[256];
    snprintf(full, sizeof full, "%s.%s.%d", prefix, name, group);
    return v->number(v, full, x);
}
static int dt__sched_visit_integer(dt__visit *v, const char *prefix, const char *name, int64_t *x)
{
    char full[256];
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    return v->integer(v, full, x);
}

static int dt__sched_same(const dt_scheduler *s, int64_t kind, int64_t groups)
{
    if (kind != s->kind)
        return dt_fail(DT_ERR_STATE, "dt_scheduler: what was saved is of %s, this scheduler of %s; create the one that "
                                     "was saved, or load without it",
                       kind >= 0 && kind < DT__SCHEDULES ? dt__sched_call[kind] : "an unknown kind",
                       dt__sched_call[s->kind]);
    if (groups != s->ngroups)
        return dt_fail(DT_ERR_STATE, "dt_scheduler: %lld groups were saved, the optimiser has %d; add the groups that "
                                     "were saved", (long long)groups, s->ngroups);
    return 0;
}
static int dt__sched_sane(const dt_scheduler *l, const double *lr)
{
    int good = l->steps >= 0 && l->steps <= DT__SCHED_MOST && l->bad >= 0 && l->bad <= DT__SCHED_MOST;
    good = good && l->cooldown >= 0 && l->cooldown <= DT__SCHED_MOST;
    if (l->kind == DT__RESTARTS_LR)
        good = good && l->t_i >= 1 && l->t_i <= DT__SCHED_MOST << 20 && l->t_cur >= 0 && l->t_cur < l->t_i;
    for (int g = 0; g < l->ngroups; g++)
        good = good && l->base[g] >= 0 && l->base[g] <= DT__SCHED_HUGE && lr[g] >= 0 && lr[g] <= DT__SCHED_HUGE;
    if (good) return 0;
    return dt_fail(DT_ERR_STATE, "dt_scheduler: the saved state is damaged: steps %lld, bad %lld, cooldown %lld, step "
                                 "%lld of %lld, lr %g", (long long)l->steps, (long long)l->bad,
                   (long long)l->cooldown, (long long)l->t_cur, (long long)l->t_i, lr[0]);
}

/* The groups' current lr and momentum are saved too, since the next values are computed from them. Options are not saved:
   after a resume the scheduler uses the options it was created with. */
static int dt__scheduler_visit(dt_scheduler *s, dt__visit *v, const char *prefix)
{
    dt_scheduler l;
    int64_t     kind, groups, best; /* the best metric as bits: it may be infinite */
    double      lr[DT__MAX_GROUPS], momentum[DT__MAX_GROUPS];
    int         bad = dt__sched_ready(s, "dt_scheduler"), cycles;
    if (bad) return bad;
    l = *s;
    kind = s->kind;
    groups = s->ngroups;
    cycles = dt__sched_cycles(s->kind, &s->o);
    memcpy(&best, &l.best, sizeof best);
    if ((bad = dt__sched_visit_integer(v, prefix, "kind", &kind))) return bad;
    if ((bad = dt__sched_visit_integer(v, prefix, "groups", &groups))) return bad;
    if (v->loading && (bad = dt__sched_same(s, kind, groups))) return bad;
    if ((bad = dt__sched_visit_integer(v, prefix, "steps", &l.steps))) return bad;
    if (s->kind == DT__RESTARTS_LR && ((bad = dt__sched_visit_integer(v, prefix, "t_cur", &l.t_cur)) ||
                                       (bad = dt__sched_visit_integer(v, prefix, "t_i", &l.t_i))))
        return bad;
    if (s->kind == DT__PLATEAU_LR && ((bad = dt__sched_visit_integer(v, prefix, "best", &best)) ||
                                      (bad = dt__sched_visit_integer(v, prefix, "bad", &l.bad)) ||
                                      (bad = dt__sched_visit_integer(v, prefix, "cooldown", &l.cooldown))))
        return bad;
    memcpy(&l.best, &best, sizeof best);
    for (int g = 0; g < s->ngroups; g++) {
        lr[g] = dt_optimizer_lr(s->opt, g);
        momentum[g] = cycles ? dt_optimizer_momentum(s->opt, g) : 0;
        if ((bad = dt__sched_visit_number(v, prefix, "base_lr", g, &l.base[g])) ||
            (bad = dt__sched_visit_number(v, prefix, "lr", g, &lr[g])) ||
            (cycles && (bad = dt__sched_visit_number(v, prefix, "momentum", g, &momentum[g]))))
            return bad;
    }
    if (!v->loading) return DT_OK;
    if ((bad = dt__sched_sane(&l, lr))) return bad; /* before anything is changed */
    *s = l;
    for (int g = 0; g < s->ngroups; g++)
        if (dt_optimizer_set_lr(s->opt, g, lr[g]) || (cycles && dt_optimizer_set_momentum(s->opt, g, momentum[g])))
            return dt__err.code;
    return DT_OK;
}

/* ==================================================================================================== >>mixed
   Gradients are multiplied by the loss scale only inside dt_amp_backward. Before it returns it divides them by the scale:
   in place if they are f32, otherwise into the block's f32 'mgrad'. If mgrad holds gradients of an earlier backward, the
   new ones are added to them. */
#define DT__SCALE_FLOOR 0x1p-100
#define DT__STATIC_SKIPS 20 /* so many consecutive overflows of a constant scale are an error */

typedef struct dt__level {
    int cast_model, cast_ops, keep_norms, masters, dynamic; /* -1: the level does not set it */
} dt__level;
static const dt__level dt__levels[4] = {
    { 0, 0, -1, 0, 0 }, { -1, 1, -1, -1, 1 }, { 1, 0, 1, 1, 1 }, { 1, 0, 0, 0, 0 }
};

static int dt__amp_level(const char *s) /* 0 to 3, or a negative status after dt_fail */
{
    if (!s) return 1;
    if ((s[0] == 'O' || s[0] == 'o' || s[0] == '0') && s[1] >= '0' && s[1] <= '3' && !s[2]) return s[1] - '0';
    return dt_fail(
        DT_ERR_ARG,
        "dt_amp_new: .level is \"%s\"; it must be one of \"O0\", \"O1\", \"O2\", \"O3\" (the letter O and a digit)", s);
}
static int dt__chosen(dt_switch s, int level) { return s == DT_DEFAULT ? level : s == DT_YES; }

/* Refuses the combinations that Apex refuses. */
static int dt__amp_check(const dt_amp_opts *o, int level)
{
    const char *name[4] = { "O0", "O1", "O2", "O3" };
    if (o->dtype != DT_F32 && o->dtype != DT_F16 && o->dtype != DT_BF16)
        return dt_fail(DT_ERR_ARG, "dt_amp_new: .dtype is %s; it must be DT_F16 or DT_BF16", dt_dtype_name(o->dtype));
    if (level == 1 && o->cast_model == DT_YES)
        return dt_fail(DT_ERR_ARG,
                       "dt_amp_new: .cast_model with O1: O1 casts around ops and leaves weights f32; use O2 or O3");
    if (level == 1 && o->keep_batchnorm_f32 != DT_DEFAULT)
        return dt_fail(DT_ERR_ARG,
                       "dt_amp_new: .keep_batchnorm_f32 with O1: its weights are f32 already; omit it, or use "
                       "O2 or O3");
    if (level == 1 && o->master_weights != DT_DEFAULT)
        return dt_fail(
            DT_ERR_ARG,
            "dt_amp_new: .master_weights with O1: its weights are f32 already; omit it, or use O2 or O3");
    if (level != 1 && o->cast_ops == DT_YES)
        return dt_fail(DT_ERR_ARG, "dt_amp_new: .cast_ops with %s: only O1 casts ops; omit it, or use O1", name[level]);
    if (o->master_weights == DT_YES && !dt__chosen(o->cast_model, dt__levels[level].cast_model == 1))
        return dt_fail(DT_ERR_ARG,
                       "dt_amp_new: .master_weights with %s without .cast_model: there are no half weights that "
                       "need f32 copies; use O2 or O3",
                       name[level]);
    if (!(o->loss_scale >= 0 || o->loss_scale == DT_DYNAMIC) || isinf(o->loss_scale))
        return dt_fail(DT_ERR_ARG, "dt_amp_new: .loss_scale is %g; it must be a number above 0, or DT_DYNAMIC",
                       o->loss_scale);
    if (o->num_losses < 0 || o->num_losses > DT__MAX_LOSSES)
        return dt_fail(DT_ERR_ARG, "dt_amp_new: .num_losses is %d; it must be 1 to %d", o->num_losses, DT__MAX_LOSSES);
    return 0;
}
static int dt__amp_numbers(dt_amp *a, const dt_amp_opts *o)
{
    double init = o->init_scale != 0 ? o->init_scale : 65536;
    a->growth = o->growth_factor != 0 ? o->growth_factor : 2;
    a->backoff = o->backoff_factor != 0 ? o->backoff_factor : 0.5;
    a->interval = o->growth_interval ? o->growth_interval : 2000;
    a->min = o->min_loss_scale != 0 ? o->min_loss_scale : DT__SCALE_FLOOR;
    a->max = o->max_loss_scale != 0 ? o->max_loss_scale : 16777216;
    a->nlosses = o->num_losses ? o->num_losses : 1;
    if (!(a->growth > 1) || !(a->backoff > 0 && a->backoff < 1) || a->interval < 1 ||
        !(a->min > 0 && a->min <= a->max) || !(init > 0) || isinf(init) || isinf(a->max))
        return dt_fail(
            DT_ERR_ARG,
            "dt_amp_new: .growth_factor %g (above 1), .backoff_factor %g (between 0 and 1), .growth_interval "
            "%" PRId64 " (1 or more), .min_loss_scale %g, .max_loss_scale %g, .init_scale %g (0 < min <= max, finite)",
            a->growth, a->backoff, a->interval, a->min, a->max, init);
    if (!a->dynamic) init = o->loss_scale > 0 ? o->loss_scale : 1;
    else if (init > a->max) init = a->max;
    for (int i = 0; i < a->nlosses; i++) a->scaler[i].scale = init;
    return 0;
}
DT_API dt_amp *dt_amp_new_with(dt_model *m, dt_amp_opts o)
{
    int level = dt__model_own("dt_amp_new", m) ? dt__amp_level(o.level) : DT_ERR_ARG;
    if (level < 0 || dt__amp_check(&o, level)) return NULL;
    dt_amp *a = (dt_amp *)dt__alloc_zero(sizeof *a);
    if (!a) {
        dt_fail(DT_ERR_MEMORY, "dt_amp_new: out of memory");
        return NULL;
    }
    const dt__level *l = &dt__levels[level];
    a->level = level;
    a->dtype = o.dtype == DT_BF16 ? DT_BF16 : DT_F16;
    a->cast_model = dt__chosen(o.cast_model, l->cast_model) == 1;
    a->cast_ops = dt__chosen(o.cast_ops, l->cast_ops);
    a->keep_norms = dt__chosen(o.keep_batchnorm_f32, l->keep_norms) == 1;
    a->masters = dt__chosen(o.master_weights, l->masters) == 1;
    a->dynamic = o.loss_scale == 0 ? l->dynamic : o.loss_scale == DT_DYNAMIC;
    if (dt__amp_numbers(a, &o) || dt_amp_add(a, m)) {
        dt_mem_free(a, sizeof *a);
        return NULL;
    }
    dt_autocast ac;
    ac.mode = a->cast_ops ? DT_AUTOCAST_OPS : a->cast_model ? DT_AUTOCAST_LOSS : DT_AUTOCAST_OFF;
    ac.dtype = a->dtype;
    a->before = dt_autocast_set(ac);
    return a;
}
DT_API dt_status dt_amp_add(dt_amp *amp, dt_model *m)
{
    if (!dt__model_ok("dt_amp_add", m)) return dt_error_code();
    if (!amp || amp->nmodels == DT__AMP_MODELS)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_amp_add: %s; an amp has %d models at most",
                                  amp ? "it is full" : "the amp is NULL", DT__AMP_MODELS);
    if (m->amp)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_amp_add: the model has mixed precision already; free that amp first");
    dt_dtype want = amp->cast_model ? amp->dtype : amp->level == 0 ? DT_F32 : m->dtype;
    uint8_t  norms = m->norms_f32, masters = m->masters;
    m->norms_f32 = (uint8_t)amp->keep_norms;
    m->masters = (uint8_t)amp->masters;
    if ((amp->cast_model || want != m->dtype) && dt__model_convert(m, "dt_amp_new", want, NULL)) {
        m->norms_f32 = norms;
        m->masters = masters;
        return dt_error_code();
    }
    m->amp = amp;
    amp->model[amp->nmodels++] = m;
    return DT_OK;
}
DT_API void dt_amp_free(dt_amp *amp)
{
    if (!amp) return;
    for (int i = 0; i < amp->nmodels; i++) amp->model[i]->amp = NULL;
    dt__tls.autocast = amp->before;
    dt_mem_free(amp, sizeof *amp);
}
DT_API double dt_amp_scale(const dt_amp *amp, int loss)
{
    return amp && loss >= 0 && loss < amp->nlosses ? amp->scaler[loss].scale : 1;
}
DT_API int64_t dt_amp_overflows(const dt_amp *amp) { return amp ? amp->overflows : 0; }
DT_API size_t  dt_amp_describe(const dt_amp *a, char *buf, size_t nbytes)
{
    if (!a) return (size_t)snprintf(buf, nbytes, "no mixed precision");
    return (size_t)snprintf(buf, nbytes,
                            "O%d %s: cast_model %s, cast_ops %s, keep_batchnorm_f32 %s, master_weights %s, "
                            "loss_scale %s%g",
                            a->level, dt_dtype_name(a->dtype), a->cast_model ? "yes" : "no", a->cast_ops ? "yes" : "no",
                            a->keep_norms ? "yes" : "no", a->masters ? "yes" : "no", a->dynamic ? "dynamic from " : "",
                            a->scaler[0].scale);
}

/* ---- the backward */
static bool dt__has_grads(const dt_model *m, const dt__mblock *b) /* in the block itself, not in mgrad */
{
    for (int i = 0; i < b->n; i++)
        if (m->order[b->first + i]->t->grad_state != DT__GRAD_EMPTY) return true;
    return false;
}
static int dt__block_mgrad(const dt_model *m, dt__mblock *b)
{
    if (b->mgrad) return 0;
    b->mgrad = dt__block_array(m, "dt_amp_backward", b, false);
    return b->mgrad ? 0 : DT_ERR_MEMORY;
}
static int dt__block_mwhole(dt__mblock *b)
{
    if (b->mwhole) return 0;
    b->mwhole = dt__new("dt_amp_backward", b->b.value->st->dev, DT_F32, &b->numel, 1, DT_LAYOUT_PLAIN);
    return b->mwhole ? dt__fill(b->mwhole, 0) : (int)DT_ERR_MEMORY;
}
/* Are the gradients in the block those of this rank alone, in a sharded model? Then they are whole; else only its ranges count. */
static bool dt__grads_whole(const dt_model *m, const dt__mblock *b) { return b->cut && m->shards->unsummed; }
static int dt__stash_whole(dt_model *m, dt__mblock *b)
{
    int rc = dt__block_mwhole(b);
    for (int i = 0; i < b->n && !rc; i++) {
        dt__param *p = m->order[b->first + i];
        dt_tensor *g = dt__flat(p->t->grad);
        rc = g ? dt__copy_range(b->mwhole, p->offset, g, 0, p->t->numel) : (int)DT_ERR_MEMORY;
        dt__unref(g);
    }
    return rc;
}
/* Moves the gradients of earlier backwards into mgrad, before scaled gradients are computed. */
DT__INSIDE int dt__amp_stash(dt_model *m)
{
    int rc = 0;
    for (int i = 0; i < m->nblocks && !rc; i++) {
        dt__mblock *b = &m->block[i];
        if (!dt__has_grads(m, b)) continue;
        bool whole = dt__grads_whole(m, b), cut = (b->cut & DT__CUT_GRAD) != 0;
        if (whole && !b->use_mwhole) rc = dt__stash_whole(m, b);
        else if (!whole && !b->use_mgrad && !(rc = dt__block_mgrad(m, b)) && (!b->cut || cut)) rc = dt__copy_to(b->mgrad, b->b.grad, 0);
        else if (!whole && !b->use_mgrad && !rc)
            for (int k = 0; k < b->nranges && !rc; k++)
                rc = dt__copy_range(b->mgrad, b->range[k].at, b->b.grad, b->range[k].lo, b->range[k].hi - b->range[k].lo);
        dt__note_reached(m, b);
        if (whole) b->use_mwhole = 1;
        else b->use_mgrad = 1;
        dt_block_zero_grad(&b->b);
    }
    return rc;
}
/* y[y_at ..] := x[x_at ..] * inverse, n elements; add: += ; flag := 1 if one is not finite */
static int dt__unscale_range(dt_tensor *y, int64_t y_at, const dt_tensor *x, int64_t x_at, int64_t n, double inverse, bool add,
                             const dt_tensor *flag)
{
    dt_call c;
    dt__call_begin(&c, DT_K_unscale);
    c.u.ew.a = inverse;
    dt__view_part(dt__out(&c, y), y_at, n);
    dt__out(&c, flag);
    dt__view_part(dt__in(&c, x), x_at, n);
    c.acc = add ? 1u : 0u;
    return n ? dt__go(x->st->dev, &c) : 0;
}
static int dt__unscale_whole(dt_model *m, dt__mblock *b, double inverse, dt_tensor *to, bool add, const dt_tensor *flag)
{
    int rc = 0;
    for (int i = 0; i < b->n && !rc; i++) {
        dt__param *p = m->order[b->first + i];
        dt_tensor *g = dt__flat(p->t->grad);
        rc = g ? dt__unscale_range(to ? to : g, to ? p->offset : 0, g, 0, p->t->numel, inverse, add, flag) : (int)DT_ERR_MEMORY;
        dt__unref(g);
    }
    return rc;
}
/* Divides the gradients by the scale. flags[p], made when the first block on device p of the list needs it: element i := 1
   if block i has a gradient that is not finite. */
static int dt__amp_unscale(dt_model *m, double inverse, dt__places *places, dt_tensor **flags)
{
    int64_t n = m->nblocks;
    int     rc = 0;
    for (int i = 0; i < m->nblocks && !rc; i++) {
        dt__mblock *b = &m->block[i];
        dt_device  *dev = b->b.value->st->dev;
        if (!dt__has_grads(m, b)) continue;
        int p = dt__place_of("dt_amp_backward", places, dev);
        if (p < 0) return p;
        if (!flags[p]) {
            flags[p] = dt__new("dt_amp_backward", dev, DT_F32, &n, 1, DT_LAYOUT_PLAIN);
            if (!flags[p] || dt__fill(flags[p], 0)) return dt_error_code();
        }
        bool whole = dt__grads_whole(m, b), used = whole ? b->use_mwhole : b->use_mgrad;
        bool in_place = m->order[b->first]->t->dtype == DT_F32 && !used;
        if (!in_place) rc = whole ? dt__block_mwhole(b) : dt__block_mgrad(m, b);
        dt_tensor *flag = rc ? NULL : dt__slice(flags[p], 0, i, 1);
        if (!flag) return DT_ERR_MEMORY;
        if (whole) rc = dt__unscale_whole(m, b, inverse, in_place ? NULL : b->mwhole, used, flag);
        else if (!b->cut) rc = dt__unscale_range(in_place ? b->b.grad : b->mgrad, 0, b->b.grad, 0, b->numel, inverse, used, flag);
        for (int k = 0; k < b->nranges && !whole && !rc; k++) {
            const dt__range *g = &b->range[k];
            int64_t          from = b->cut & DT__CUT_GRAD ? g->at : g->lo;
            rc = dt__unscale_range(in_place ? b->b.grad : b->mgrad, in_place ? from : g->at, b->b.grad, from, g->hi - g->lo,
                                   inverse, used, flag);
        }
        dt__unref(flag);
        if (whole) b->use_mwhole = !in_place;
        else b->use_mgrad = !in_place;
    }
    return rc;
}
/* Of the n blocks from `first` on that are on dev (NULL: of all). */
static void dt__amp_judge_some(dt_model *m, dt__scaler *s, const dt_device *dev, const float *flags, int first, int n)
{
    for (int i = 0; i < n; i++) {
        const dt__mblock *b = &m->block[first + i];
        if ((dev && b->b.grad->st->dev != dev) || flags[i] == 0) continue;
        s->found = 1;
        if (b->opt >= 0) m->opt[b->opt]->skip = 1;
    }
}
DT__INSIDE void dt__amp_judge(dt_model *m, dt__scaler *s, const float *flags)
{
    dt__amp_judge_some(m, s, NULL, flags, 0, m->nblocks);
}
static int dt__amp_read(dt_model *m, dt__scaler *s, dt_tensor *flags) /* one download for up to 64 blocks */
{
    enum { MANY = 64 };
    float bad[MANY];
    int   rc = 0;
    for (int at = 0; at < m->nblocks && !rc; at += MANY) {
        int        n = m->nblocks - at < MANY ? m->nblocks - at : (int)MANY;
        dt_tensor *some = dt__slice(flags, 0, at, n);
        rc = some ? dt__download(some, bad) : DT_ERR_MEMORY;
        dt__unref(some);
        /* sharded: each rank has looked at its ranges */
        if (!rc && m->shards && !m->shards->unsummed) rc = m->shards->sum(m->shards->user, "dt_amp_backward", bad, n);
        if (!rc) dt__amp_judge_some(m, s, flags->st->dev, bad, at, n);
    }
    return rc;
}
DT__INSIDE int dt__amp_take_back(dt_model *m, dt__scaler *s, dt_tensor *later)
{
    dt__places places;
    dt_tensor *flags[DT__MAX_PLACES];
    places.n = 0;
    memset(flags, 0, sizeof flags);
    if (later) {
        if (dt__fill(later, 0)) return dt_error_code();
        places.dev[places.n++] = later->st->dev;
        flags[0] = dt__ref(later);
    }
    int rc = dt__amp_unscale(m, 1 / s->scale, &places, flags);
    for (int p = 0; p < places.n; p++) {
        if (flags[p] && !rc && !later) rc = dt__amp_read(m, s, flags[p]);
        dt__unref(flags[p]);
    }
    return rc;
}
DT_API dt_status dt_amp_backward_with(dt_amp *amp, dt_tensor *loss, dt_amp_backward_opts o)
{
    if (!dt__ok("dt_amp_backward", "loss", loss)) return dt_error_code();
    if (!amp || o.loss < 0 || o.loss >= amp->nlosses)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_amp_backward: %s %d; .num_losses of dt_amp_new is %d",
                                  amp ? "loss" : "the amp is NULL, loss", o.loss, amp ? amp->nlosses : 0);
    if (loss->numel != 1)
        return (dt_status)dt_fail(
            DT_ERR_GRAD, "dt_amp_backward: the loss %s must have one element; reduce it (dt_mean)", dt__text(loss));
    dt__scaler *s = &amp->scaler[o.loss];
    for (int i = 0; i < amp->nmodels; i++)
        if (dt__amp_stash(amp->model[i])) return dt_error_code();
    dt_make_opts mo;
    DT__CLEAR(mo);
    mo.device = loss->st->dev;
    dt_backward_opts bo;
    bo.dt__first = 0;
    bo.retain_graph = o.retain_graph;
    loss = dt_cast(loss, DT_F32);
    bo.grad = dt_full_with(s->scale, dt_shape_of(loss), mo);
    amp->scale_now = s->scale;
    dt_backward_with(loss, bo);
    amp->scale_now = 0;
    if (dt__err.code != DT_OK) return dt_error_code();
    if (amp->dynamic) dt__err.bad_loss = NULL; /* after an overflow the scaler decides */
    for (int i = 0; i < amp->nmodels; i++)
        if (amp->model[i]->sealed && dt__amp_take_back(amp->model[i], s, NULL)) return dt_error_code();
    s->used = 1;
    return DT_OK;
}

/* ---- before the optimiser's update: each step changes the scales at most once */
static int dt__scaler_update(dt_amp *a, dt__scaler *s, dt_optimizer *opt)
{
    if (!s->found) {
        s->row = 0;
        if (a->dynamic && ++s->good >= a->interval) {
            s->good = 0;
            s->scale = (double)(float)(s->scale * a->growth < a->max ? s->scale * a->growth : a->max);
        }
        return 0;
    }
    s->good = 0;
    s->row++;
    a->overflows++;
    if (a->dynamic ? s->scale > a->min : s->row < DT__STATIC_SKIPS) {
        if (a->dynamic) s->scale = (double)(float)(s->scale * a->backoff > a->min ? s->scale * a->backoff : a->min);
        return 0;
    }
    const char *name = dt__first_bad_grad(opt, true);
    return dt_fail(
        DT_ERR_NUMERIC,
        "dt_step: step %" PRId64 ": the gradient of '%s' is not finite at loss scale %g, which %s; "
        "weights are unchanged. Lower the learning rate, clip gradients, or look for the op that overflows (O0, "
        "DT_TRACE)",
        opt->steps + 1, name ? name : "(unknown)", s->scale,
        a->dynamic ? "is the minimum (.min_loss_scale)" : "is static and overflowed 20 steps in a row");
}
static int dt__amp_before_step(dt_amp *amp, dt_optimizer *opt)
{
    int rc = 0;
    for (int i = 0; i < amp->nlosses; i++) {
        dt__scaler *s = &amp->scaler[i];
        if (!s->used) continue;
        int bad = dt__scaler_update(amp, s, opt);
        s->used = s->found = 0;
        if (!rc) rc = bad;
    }
    return rc;
}
static int dt__amp_visit(dt_amp *amp, dt__visit *v, const char *prefix)
{
    char name[96];
    int  rc = 0;
    for (int i = 0; i < amp->nlosses && !rc; i++) {
        snprintf(name, sizeof name, "%s.loss.%d.scale", prefix, i);
        rc = v->number(v, name, &amp->scaler[i].scale);
        snprintf(name, sizeof name, "%s.loss.%d.good", prefix, i);
        if (!rc) rc = v->integer(v, name, &amp->scaler[i].good);
        snprintf(name, sizeof name, "%s.loss.%d.row", prefix, i);
        if (!rc) rc = v->integer(v, name, &amp->scaler[i].row);
    }
    snprintf(name, sizeof name, "%s.overflows", prefix);
    return rc ? rc : v->integer(v, name, &amp->overflows);
}

/* ==================================================================================================== >>profile
   Callers: the thread that uses the model, through dt__layer_find, dt__timing, dt_update and dt_model_free; and at the end of
   the process the exit handler, on any thread. Each thread has a dt__profiler: what it computes now, and for which layer each
   part of its tape was made. Each model has a dt__profile: the sums of the step that runs, and a row for each step that is
   complete. A thread writes the sums without a lock; the exit handler reads rows below n (atomic), and of the rest only what no
   step changes. dt__profiles.lock protects the list, and it is held while a file is written; the state moves from MEASURES to
   WRITTEN then. A dt__profile may outlive its model, without arrays, if a tape of another thread names it (refs). */
enum { DT__PROFILE_WARM = 5, DT__PROFILE_STEPS = 50, DT__PROFILE_MOST = 100000, DT__PROFILE_WORD = 64 };
enum { DT__PROFILE_MEASURES = 0, DT__PROFILE_WRITTEN };
enum { DT__PROFILE_STEP = 0, DT__PROFILE_INPUT, DT__PROFILE_FORWARD, DT__PROFILE_BACKWARD, DT__PROFILE_UPDATE, DT__PROFILE_FINE,
       DT__PROFILE_HEAD };
typedef struct dt__profile {
    struct dt__profile *next;   /* dt__profiles.first */
    dt_model *m;                /* NULL: it is freed, or not measured any more */
    int       refs;             /* atomic: the model, and parts of tapes */
    pid_t     pid;              /* a forked child does not write it */
    int       state;            /* DT__PROFILE_MEASURES ... */
    char      path[1024];
    int64_t   room, n;          /* steps: wanted, complete */
    double   *row;              /* room rows of `stride` numbers: DT__PROFILE_STEP ..., and of each layer forward and backward, of
                                   each parameter `ready`, in ns; ready: negative if no backward reached it */
    int64_t   stride;
    int       nlayers, nparams; /* of the rows; the model is sealed then */
    /* the step that runs: */
    double   *forward, *backward, *ready; /* ns */
    int64_t  *held, *sent;      /* bytes: kept for the backward; what the next layer gets, 0: not known */
    int       layer, before;    /* the layer that began last, and the one before it; -1: none in this forward */
    int64_t   at_layer, at_before; /* nodes on the tape when they began */
    int       layer_cap, param_cap, at; /* at: the parameter that was ready last */
    uint64_t  left, first;      /* the end of the last step, 0: none; the first layer of this one, 0: not yet */
    double    input, update;    /* ns */
    int64_t   samples;
    int       forwards, backwards;
    uint32_t  mark;             /* dt__ctx.backward_id of the last backward that reached it */
    bool      begins;           /* the next layer that has an input tells the number of samples */
    bool      skip;             /* the step has something else in it, and is not counted */
    bool      fine;             /* asynchronous device: wait for it at each layer */
    /* of the last step that was counted: */
    int64_t   batch, *kept;
    int       nforwards, nbackwards, opt_kind;
    int64_t   sample_bytes;
    double    able, states;     /* states: bytes of the optimiser's states and of masters; they may be freed before the model */
} dt__profile;
typedef struct dt__profile_part { /* nodes of the tape from `tape` on are of this layer */
    dt__profile *p;             /* NULL: it is not measured any more */
    int          layer;
    int64_t      tape;
} dt__profile_part;
enum { DT__PROFILER_IDLE = 0, DT__PROFILER_FORWARD, DT__PROFILER_BACKWARD };
typedef struct dt__profiler {
    dt__timing        timing;
    dt__profile_part *part;
    int               nparts, at; /* at: the part whose backward runs, or -1 */
    int64_t           cap, tape;  /* tape: nodes at the last layer */
    int               phase;      /* DT__PROFILER_... */
    dt__profile      *p;          /* FORWARD: whose layer runs */
    int               layer;
    size_t            live;
    uint64_t          since, idle, began; /* the part that runs began; the last phase ended; the backward began */
    int64_t           fed_bytes;
    double            fed_able;
    bool              fed;
} dt__profiler;
static struct {
    pthread_mutex_t lock;
    dt__profile    *first;
    pid_t           pid;    /* the first process that profiles */
    bool            hooked; /* the exit handlers are installed */
    bool            wrote;
    int             number; /* models whose file has this path, with a number behind it from the second on */
    char            path[1000];
} dt__profiles = { PTHREAD_MUTEX_INITIALIZER, NULL, 0, false, false, 0, { 0 } };

static uint64_t dt__profile_now(const dt__profile *p)
{
    if (p->fine && !dt__is_host(p->m->device)) dt_synchronize(p->m->device);
    return dt_trace_now();
}
static void dt__profile_drop(dt__profile *p)
{
    size_t l = (size_t)p->layer_cap, g = (size_t)p->param_cap;
    dt_mem_free(p->row, p->row ? (size_t)p->room * (size_t)p->stride * sizeof *p->row : 0);
    dt_mem_free(p->forward, l * sizeof *p->forward);
    dt_mem_free(p->backward, l * sizeof *p->backward);
    dt_mem_free(p->held, l * sizeof *p->held);
    dt_mem_free(p->kept, l * sizeof *p->kept);
    dt_mem_free(p->sent, l * sizeof *p->sent);
    dt_mem_free(p->ready, g * sizeof *p->ready);
    p->row = p->forward = p->backward = p->ready = NULL;
    p->held = p->kept = p->sent = NULL;
    p->layer_cap = p->param_cap = 0;
}

/* ---- the text: what dt_scale.h reads, and remarks with more (#) */
/* A name without blanks, as the format needs it: at most its last 63 bytes. */
static void dt__profile_word(dt__text_buf *b, const char *name)
{
    char   word[DT__PROFILE_WORD];
    size_t n = strlen(name), k = 0;
    for (name += n < sizeof word ? 0 : n - sizeof word + 1; *name; name++) word[k++] = *name > ' ' && *name != 0x7f && *name != '#' ? *name : '_';
    word[k] = 0;
    dt__text_put(b, k ? word : "_");
}
static void dt__profile_number(dt__text_buf *b, const char *word, double x, const char *unit)
{
    char    buf[64];
    int64_t whole = x > 0 && x < 9e18 ? (int64_t)(x + 0.5) : 0;
    snprintf(buf, sizeof buf, "%s%" PRId64 "%s", word, whole, unit);
    dt__text_put(b, buf);
}
static void dt__profile_line(dt__text_buf *b, const char *word, double x, const char *unit)
{
    dt__profile_number(b, word, x, unit);
    dt__text_put(b, "\n");
}
static int dt__profile_order(const void *a, const void *b) /* of pointers to rows, by the time of the step */
{
    double x = **(const double *const *)a, y = **(const double *const *)b;
    return (x > y) - (x < y);
}
/* The mean of column k in n rows; negative values are left out. -1: there are no others. */
static double dt__profile_mean(const double *const *row, int64_t n, int64_t k)
{
    double  sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (row[i][k] >= 0) sum += row[i][k], count++;
    return count ? sum / (double)count : -1;
}
typedef struct dt__profile_rows { /* the rows that count, by time; the middle half of them */
    const double **all, **middle, **fine; /* fine: those with the times of layers */
    int64_t        n, nmiddle, nfine;
} dt__profile_rows;
static int dt__profile_pick(const dt__profile *p, int64_t n, dt__profile_rows *r)
{
    int64_t warm = n / 2 < DT__PROFILE_WARM ? n / 2 : (int64_t)DT__PROFILE_WARM;
    bool    host = dt__is_host(p->m->device);
    memset(r, 0, sizeof *r);
    r->all = (const double **)dt_mem_alloc((size_t)n * 2 * sizeof *r->all);
    if (!r->all) return DT_ERR_MEMORY;
    const double **fine = r->all + n;
    for (int64_t i = warm; i < n; i++) {
        const double *row = p->row + i * p->stride;
        if (host || row[DT__PROFILE_FINE] == 0) r->all[r->n++] = row;
        if (host || row[DT__PROFILE_FINE] > 0) fine[r->nfine++] = row;
    }
    if (!r->nfine && r->n) memcpy(fine, r->all, (size_t)(r->nfine = r->n) * sizeof *fine);
    if (!r->n && r->nfine) memcpy(r->all, fine, (size_t)(r->n = r->nfine) * sizeof *fine);
    qsort((void *)r->all, (size_t)r->n, sizeof *r->all, dt__profile_order);
    qsort((void *)fine, (size_t)r->nfine, sizeof *fine, dt__profile_order);
    r->middle = r->all + r->n / 4;
    r->nmiddle = r->n - 2 * (r->n / 4);
    r->fine = fine + r->nfine / 4;
    r->nfine -= 2 * (r->nfine / 4);
    return 0;
}
static bool dt__profile_has(const dt__layer *l, const dt__param *q)
{
    for (int k = 0; k < l->np; k++)
        if (l->p[k] == q) return true;
    return false;
}
static void dt__profile_layers(dt__text_buf *b, const dt__profile *p, const dt__profile_rows *r)
{
    const int64_t at = DT__PROFILE_HEAD, ready = at + 2 * p->nlayers;
    for (int i = 0; i < p->nlayers; i++) {
        const dt__layer *l = p->m->layer[i];
        double           params = 0, late = -1, out = 1, back = dt__profile_mean(r->fine, r->nfine, at + p->nlayers + i);
        for (int k = 0; k < p->nparams; k++) {
            const dt__param *q = p->m->param[k];
            if (q->buffer || q->frozen || !dt__profile_has(l, q)) continue;
            double t = dt__profile_mean(r->fine, r->nfine, ready + k);
            params += (double)dt__param_numel(q) * (double)dt__dtype_size[q->t->dtype];
            if (t < 0) t = dt__profile_mean(r->fine, r->nfine, DT__PROFILE_BACKWARD); /* not reached: DDP sends its zeros at the end */
            if (t > late) late = t;
        }
        for (int k = 0; k < l->out.ndim; k++) out *= (double)l->out.dim[k];
        out *= (double)dt__dtype_size[p->m->dtype];
        if (p->sent[i] > 0) out = (double)p->sent[i]; /* after what is between the layers, such as pooling */
        dt__text_put(b, "layer ");
        dt__profile_word(b, l->name);
        dt__profile_number(b, " forward ", dt__profile_mean(r->fine, r->nfine, at + i), "ns");
        dt__profile_number(b, " backward ", back, "ns");
        dt__profile_number(b, " flops ", l->flops * p->nforwards, "FLOP");
        dt__profile_number(b, " params ", params, "B");
        dt__profile_number(b, " held ", (double)p->kept[i], "B");
        dt__profile_number(b, " out ", out * p->nforwards, "B");
        if (params > 0) dt__profile_number(b, " ready ", late, "ns");
        dt__text_put(b, " # ");
        dt__text_put(b, !strncmp(l->kind, "dt_", 3) ? l->kind + 3 : l->kind);
        dt__text_put(b, "\n");
    }
}
typedef struct dt__profile_grad {
    double at;
    int    param;
} dt__profile_grad;
static int dt__profile_grad_order(const void *a, const void *b)
{
    const dt__profile_grad *x = (const dt__profile_grad *)a, *y = (const dt__profile_grad *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->param < y->param ? 1 : -1; /* parameters that came together: the later layer first */
}
static int dt__profile_grads(dt__text_buf *b, const dt__profile *p, const dt__profile_rows *r)
{
    int               n = 0;
    size_t            nbytes = (size_t)(p->nparams + 1) * sizeof(dt__profile_grad);
    dt__profile_grad *g = (dt__profile_grad *)dt_mem_alloc(nbytes);
    if (!g) return DT_ERR_MEMORY;
    for (int k = 0; k < p->nparams; k++) {
        g[n].at = dt__profile_mean(r->fine, r->nfine, DT__PROFILE_HEAD + 2 * p->nlayers + k);
        g[n].param = k;
        if (g[n].at >= 0) n++;
    }
    qsort(g, (size_t)n, sizeof *g, dt__profile_grad_order);
    for (int i = 0; i < n; i++) {
        const dt__param *q = p->m->param[g[i].param];
        int              k = 0;
        while (k + 1 < p->nlayers && !dt__profile_has(p->m->layer[k], q)) k++;
        dt__text_put(b, "# gradient ");
        dt__profile_word(b, q->name);
        dt__text_put(b, " layer ");
        dt__profile_word(b, p->m->layer[k]->name);
        dt__profile_number(b, " bytes ", (double)dt__param_numel(q) * (double)dt__dtype_size[q->t->dtype], "B");
        dt__profile_line(b, " ready ", g[i].at, "ns");
    }
    dt_mem_free(g, nbytes);
    return 0;
}
static double dt__profile_state(const dt_model *m)
{
    double state = 0;
    for (int i = 0; i < m->nblocks; i++) {
        const dt__mblock *k = &m->block[i];
        for (int s = 0; s < DT__MAX_STATES; s++)
            if (k->state[s]) state += (double)dt_nbytes(k->state[s]);
        if (k->master) state += (double)dt_nbytes(k->master);
    }
    return state;
}
static void dt__profile_params(const dt_model *m, double *numel, double *bytes) /* elements that are trained; bytes of all */
{
    *numel = *bytes = 0;
    for (int i = 0; i < m->nparams; i++) {
        if (m->param[i]->buffer) continue;
        *bytes += (double)dt_nbytes(m->param[i]->t);
        if (!m->param[i]->frozen) *numel += (double)dt__param_numel(m->param[i]);
    }
}
static int dt__profile_text(dt__text_buf *b, const dt__profile *p, int64_t n)
{
    static const char *const names[] = { "step ", "input ", "forward ", "backward ", "update " };
    const dt_model  *m = p->m;
    dt__profile_rows r;
    char             buf[128];
    double           numel, bytes, held = 0, state, sum = 0, step = 0;
    int              size = (int)dt__dtype_size[m->dtype], ranks = dt__launcher_number(DT__LAUNCHER_SIZE);
    if (dt__profile_pick(p, n, &r)) return DT_ERR_MEMORY;
    dt__profile_params(m, &numel, &bytes);
    state = numel > 0 ? p->states / numel : 0;
    for (int i = 0; i < p->nlayers; i++) held += (double)p->kept[i];
    dt__trace_program(buf, sizeof buf);
    dt__text_put(b, "dt profile 1\nmodel ");
    dt__profile_word(b, buf);
    dt__text_put(b, "\n# program ");
    dt__profile_word(b, buf);
    dt__text_put(b, "\n# device ");
    dt__profile_word(b, dt_device_name(m->device));
    dt__text_put(b, "\n# dtype ");
    dt__text_put(b, dt_dtype_name(m->dtype));
    dt__text_put(b, "\n# optimizer ");
    dt__text_put(b, p->opt_kind < DT__OPTIM_KINDS ? dt__optim_kinds[p->opt_kind].call + 3 : "own");
    dt__profile_number(b, "\n# threads ", dt_get_num_threads(), "");
    dt__profile_number(b, "\n# ranks ", ranks > 1 ? ranks : 1, "");
    dt__profile_number(b, "\nbatch ", p->batch > 0 ? (double)p->batch : 1, " sample");
    dt__profile_number(b, "\n# steps ", (double)r.n, "");
    dt__profile_line(b, "\n# backwards ", p->nbackwards, "");
    if (p->sample_bytes > 0) dt__profile_line(b, "sample ", (double)p->sample_bytes, "B");
    snprintf(buf, sizeof buf, "parameter %dB\ngradient %dB\nstate ", size, size);
    dt__text_put(b, buf);
    dt__text_put(b, dt__number(buf, sizeof buf, floor(state * 1e4 + 0.5) / 1e4, 15));
    dt__text_put(b, "B\n");
    for (int k = 0; k < DT__PROFILE_FINE; k++) {
        double x = k ? dt__profile_mean(r.fine, r.nfine, k) : dt__profile_mean(r.middle, r.nmiddle, k);
        dt__profile_line(b, names[k], x, "ns");
        if (k) sum += x;
        else step = x;
    }
    dt__profile_line(b, "# other ", step - sum, "ns");
    dt__profile_line(b, "# median ", r.all[r.n / 2][0], "ns");
    dt__profile_line(b, "# fast ", r.all[r.n / 10][0], "ns");
    dt__profile_line(b, "# slow ", r.all[r.n - 1 - r.n / 10][0], "ns");
    if (p->able > 0) dt__profile_line(b, "load ", 1e9 * (double)p->batch / p->able, "ns");
    double peak = (double)dt_device_stats(m->device).peak_bytes;
    dt__profile_line(b, "# peak ", peak, "B");
    dt__profile_line(b, "workspace ", peak - bytes - numel * (size + state) - held, "B");
    dt__profile_layers(b, p, &r);
    int rc = dt__profile_grads(b, p, &r);
    dt__text_put(b, "end\n");
    dt_mem_free((void *)r.all, (size_t)n * 2 * sizeof *r.all);
    return rc;
}
static void dt__profile_gone(void *user);
static void dt__profile_unref(dt__profile_part *k)
{
    dt__profile *p = k->p;
    k->p = NULL;
    if (p && !__atomic_sub_fetch(&p->refs, 1, __ATOMIC_ACQ_REL)) dt_mem_free(p, sizeof *p);
}
/* Writes it unless that is done; then frees its arrays if this is its thread. */
static void dt__profile_finish(dt__profile *p, bool mine)
{
    dt__text_buf b = { NULL, 0, 0, false };
    const char  *why = NULL;
    int          e = 0;
    pthread_mutex_lock(&dt__profiles.lock);
    int64_t n = p->state == DT__PROFILE_MEASURES && p->pid == getpid() ? __atomic_load_n(&p->n, __ATOMIC_ACQUIRE) : 0;
    p->state = DT__PROFILE_WRITTEN;
    if (n > 0) {
        if (dt__profile_text(&b, p, n)) b.failed = true;
        e = dt__text_save(&b, p->path, &why);
        dt__text_free(&b);
        dt__profiles.wrote = true;
    }
    if (mine) {
        dt__profile **at = &dt__profiles.first;
        while (*at && *at != p) at = &(*at)->next;
        if (*at) *at = p->next;
        dt__profile_drop(p);
    }
    pthread_mutex_unlock(&dt__profiles.lock);
    if (e) dt__logf(DT_LOG_ERROR, "DT_PROFILE: cannot write %.900s: %s", p->path, why);
    else if (n > 0) dt__logf(DT_LOG_INFO, "DT_PROFILE: %.900s has %" PRId64 " steps", p->path, n);
}
/* The model is freed, or its profile has all steps. On the model's thread. */
static void dt__profile_end(dt__profile *p)
{
    dt__profiler *r = dt__tls.timing && dt__tls.timing->gone == dt__profile_gone ? (dt__profiler *)dt__tls.timing->user : NULL;
    int           others = 0;
    dt__profile_finish(p, true);
    p->m->timed = DT__TIMED_NEVER;
    p->m->profile = NULL;
    p->m = NULL;
    if (r && r->p == p) {
        r->p = NULL;
        r->phase = DT__PROFILER_IDLE;
    }
    for (int k = 0; r && k < r->nparts; k++) {
        if (r->part[k].p == p) dt__profile_unref(&r->part[k]);
        others += r->part[k].p != NULL;
    }
    if (r && !others && r->phase == DT__PROFILER_IDLE) dt__profile_gone(r);
    dt__profile_part own;
    own.p = p;
    dt__profile_unref(&own);
}
static void dt__profile_at_exit(void)
{
    if (dt__profiles.pid != getpid()) return; /* a forked child that has no profile of its own */
    for (dt__profile *p = dt__profiles.first; p; p = p->next) dt__profile_finish(p, false);
    if (!dt__profiles.wrote)
        dt__log(DT_LOG_WARN, "DT_PROFILE: nothing was written: no model made a training step (forward, backward, dt_step)");
}

/* ---- the beginning */
static int64_t dt__profile_steps(void)
{
    const char *s = getenv("DT_PROFILE_STEPS");
    char       *end = NULL;
    if (!s || !*s) return DT__PROFILE_STEPS;
    long n = *s >= '0' && *s <= '9' ? strtol(s, &end, 10) : 0;
    if (end && !*end && n >= 1 && n <= DT__PROFILE_MOST) return n;
    dt__logf(DT_LOG_ERROR, "DT_PROFILE_STEPS: found \"%.40s\", expected a number of steps from 1 to %d; %d are measured", s,
             (int)DT__PROFILE_MOST, (int)DT__PROFILE_STEPS);
    return DT__PROFILE_STEPS;
}
/* Can the file be written later? NULL, or why not. */
static const char *dt__profile_probe(const char *path)
{
    char        temp[1100];
    const char *why = NULL;
    struct stat st;
    if (!lstat(path, &st) && !S_ISREG(st.st_mode)) return "it is not a regular file";
    snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid());
    int fd = dt__file_create(AT_FDCWD, temp, O_WRONLY, &why);
    if (fd < 0) return why;
    close(fd);
    unlink(temp);
    return NULL;
}
static void dt__profile_new(dt_model *m, const char *env)
{
    char         path[1000];
    const char  *why = NULL;
    int64_t      wanted = dt__profile_steps();
    pid_t        pid = getpid();
    dt__profile *p = (dt__profile *)dt__alloc_zero(sizeof *p);
    if (!p) {
        dt__log(DT_LOG_WARN, "DT_PROFILE: out of memory; the program continues without a profile");
        return;
    }
    pthread_mutex_lock(&dt__profiles.lock);
    dt__trace_env_path(path, sizeof path, env, dt__profiles.pid && dt__profiles.pid != pid);
    if (!dt__profiles.hooked) {
        atexit(dt__profile_at_exit);
        at_quick_exit(dt__profile_at_exit); /* ranks started by dt_spawn end with quick_exit */
        dt__profiles.hooked = true;
    }
    dt__profiles.pid = pid;
    if (strcmp(path, dt__profiles.path)) dt__profiles.number = 0;
    snprintf(dt__profiles.path, sizeof dt__profiles.path, "%s", path);
    if (++dt__profiles.number == 1) snprintf(p->path, sizeof p->path, "%s", path);
    else snprintf(p->path, sizeof p->path, "%s.%d", path, dt__profiles.number);
    why = strlen(env) < sizeof path - 64 ? dt__profile_probe(p->path) : "the path is too long";
    if (!why) {
        p->m = m;
        p->refs = 1;
        p->pid = pid;
        p->room = DT__PROFILE_WARM + wanted;
        p->fine = true;
        p->next = dt__profiles.first;
        dt__profiles.first = p;
        m->profile = p;
        m->timed = DT__TIMED;
    }
    pthread_mutex_unlock(&dt__profiles.lock);
    if (!why) return;
    dt__logf(DT_LOG_ERROR, "DT_PROFILE: cannot write %.900s: %s; the program continues without a profile", p->path, why);
    dt_mem_free(p, sizeof *p);
}
static bool dt__profile_grow(dt__profile *p, int layers, int params)
{
    int l = p->layer_cap, g = p->param_cap;
    while (l < layers) l = l ? 2 * l : 64;
    while (g < params) g = g ? 2 * g : 64;
    if (l == p->layer_cap && g == p->param_cap) return true;
    dt__profile q = *p;
    q.row = NULL;
    q.forward = (double *)dt__alloc_zero((size_t)l * sizeof *q.forward);
    q.backward = (double *)dt__alloc_zero((size_t)l * sizeof *q.backward);
    q.held = (int64_t *)dt__alloc_zero((size_t)l * sizeof *q.held);
    q.kept = (int64_t *)dt__alloc_zero((size_t)l * sizeof *q.kept);
    q.sent = (int64_t *)dt__alloc_zero((size_t)l * sizeof *q.sent);
    q.ready = (double *)dt__alloc_zero((size_t)g * sizeof *q.ready);
    q.layer_cap = l;
    q.param_cap = g;
    bool ok = q.forward && q.backward && q.held && q.kept && q.sent && q.ready;
    if (ok) {
        dt__profile old = *p;
        for (int i = 0; i < p->layer_cap; i++) {
            q.forward[i] = p->forward[i];
            q.backward[i] = p->backward[i];
            q.held[i] = p->held[i];
            q.sent[i] = p->sent[i];
        }
        for (int i = 0; i < g; i++) q.ready[i] = i < p->param_cap ? p->ready[i] : -1;
        q.row = p->row;
        *p = q;
        old.row = NULL;
        dt__profile_drop(&old);
    } else {
        dt__profile_drop(&q);
    }
    return ok;
}

/* ---- a step, as it runs */
static uint64_t dt__profile_clock(const dt__profile *p) { return p && p->m ? dt__profile_now(p) : dt_trace_now(); }
static void dt__profile_node(void *user, int64_t i)
{
    dt__profiler *r = (dt__profiler *)user;
    if (r->phase != DT__PROFILER_BACKWARD) {
        if (i < 0 || !r->nparts) return;
        uint64_t now = dt__profile_clock(r->part[r->nparts - 1].p);
        if (r->phase == DT__PROFILER_FORWARD && r->p->m) {
            size_t live = dt_device_stats(r->p->m->device).live_bytes;
            r->p->forward[r->layer] += (double)(now - r->since);
            if (live > r->live) r->p->held[r->layer] += (int64_t)(live - r->live);
        }
        r->phase = DT__PROFILER_BACKWARD;
        r->at = r->nparts - 1;
        r->since = r->began = now;
    }
    if (i < 0 || (r->at >= 0 && i < r->part[r->at].tape)) {
        dt__profile *q = r->at >= 0 ? r->part[r->at].p : NULL;
        uint64_t     now = dt__profile_clock(q);
        if (q && q->m) q->backward[r->part[r->at].layer] += (double)(now - r->since);
        r->since = now;
        while (r->at >= 0 && i < r->part[r->at].tape) r->at--;
    }
    dt__profile *p = r->at >= 0 ? r->part[r->at].p : NULL;
    if (i >= 0 && p && p->mark != dt__tls.backward_id && ((const dt__node *)dt__tls.tape.at[i])->mark == dt__tls.backward_id) {
        p->mark = dt__tls.backward_id;
        p->backwards++;
    }
    if (i < 0) {
        r->phase = DT__PROFILER_IDLE;
        r->idle = r->since;
    }
}
static void dt__profile_ready(void *user, dt_tensor *t)
{
    dt__profiler *r = (dt__profiler *)user;
    dt__profile  *p = r->phase == DT__PROFILER_BACKWARD && r->at >= 0 ? r->part[r->at].p : NULL;
    if (!p || !p->m) return;
    int n = p->m->nparams < p->param_cap ? p->m->nparams : p->param_cap;
    for (int i = 0, k = p->at; i < n; i++, k--) { /* they come in the reverse order of creation, more or less */
        if (k < 0 || k >= n) k = n - 1;
        if (p->m->param[k]->t != t) continue;
        p->ready[k] = (double)(dt__profile_now(p) - r->began);
        p->at = k - 1;
        return;
    }
}
static void dt__profile_fed(void *user, int64_t nbytes, double able)
{
    dt__profiler *r = (dt__profiler *)user;
    r->fed_bytes = nbytes;
    r->fed_able = able;
    r->fed = true;
}
static void dt__profile_gone(void *user)
{
    dt__profiler *r = (dt__profiler *)user;
    dt__tls.timing = NULL;
    for (int k = 0; k < r->nparts; k++) dt__profile_unref(&r->part[k]);
    dt_mem_free(r->part, (size_t)r->cap * sizeof *r->part);
    dt_mem_free(r, sizeof *r);
}
static dt__profiler *dt__profiler_mine(void) /* of this thread; NULL: out of memory, or somebody else measures */
{
    if (dt__tls.timing) return dt__tls.timing->node == dt__profile_node ? (dt__profiler *)dt__tls.timing->user : NULL;
    dt__profiler *r = (dt__profiler *)dt__alloc_zero(sizeof *r);
    if (!r) return NULL;
    r->timing.user = r;
    r->timing.node = dt__profile_node;
    r->timing.ready = dt__profile_ready;
    r->timing.fed = dt__profile_fed;
    r->timing.gone = dt__profile_gone;
    dt__tls.timing = &r->timing;
    return r;
}
static bool dt__profile_part_add(dt__profiler *r, dt__profile *p, int layer)
{
    int64_t tape = dt__tls.tape.n;
    while (r->nparts && r->part[r->nparts - 1].tape >= tape) dt__profile_unref(&r->part[--r->nparts]); /* of an earlier tape, or without a node */
    dt__profile_part *list = (dt__profile_part *)dt__enlarge(r->part, r->nparts, &r->cap, sizeof *list);
    if (!list) return false;
    r->part = list;
    r->part[r->nparts].p = p;
    __atomic_add_fetch(&p->refs, 1, __ATOMIC_RELAXED);
    r->part[r->nparts].layer = layer;
    r->part[r->nparts++].tape = tape;
    return true;
}
static void dt__profile_layer(dt_model *m, dt__layer *l)
{
    if (m->parts || dt__tls.split || dt__tls.in_backward || dt__err.code != DT_OK) return;
    if (m->timed == DT__TIMED_UNKNOWN) {
        const char *env = getenv("DT_PROFILE");
        m->timed = DT__TIMED_NEVER;
        if (env && *env) dt__profile_new(m, env);
        if (m->timed != DT__TIMED) return;
    }
    dt__profile  *p = m->profile;
    dt__profiler *r = dt__profiler_mine();
    if (!r || !dt__profile_grow(p, m->nlayers, m->nparams)) {
        dt__log(DT_LOG_WARN, "DT_PROFILE: out of memory; the program continues without a profile");
        dt__profile_end(p);
        return;
    }
    if (!m->training || dt__tls.no_grad) {
        p->skip = true;
        return;
    }
    uint64_t now = dt__profile_now(p);
    size_t   live = dt_device_stats(m->device).live_bytes;
    if (r->phase == DT__PROFILER_FORWARD && r->tape > dt__tls.tape.n) { /* that forward had no backward */
        r->p->skip = true;
        r->phase = DT__PROFILER_IDLE;
    }
    if (r->phase == DT__PROFILER_FORWARD && r->p->m) {
        r->p->forward[r->layer] += (double)(now - r->since);
        if (live > r->live) r->p->held[r->layer] += (int64_t)(live - r->live);
    } else {
        uint64_t from = p->left > r->idle ? p->left : r->idle;
        if (p->left && now > from) p->input += (double)(now - from);
        p->begins = true;
        p->layer = -1;
        p->forwards++;
    }
    if (!p->first) p->first = now;
    bool ok = dt__profile_part_add(r, p, l->index);
    if (!ok) p->skip = true;
    r->phase = ok ? DT__PROFILER_FORWARD : DT__PROFILER_IDLE;
    r->p = ok ? p : NULL;
    r->layer = l->index;
    p->before = p->layer;
    p->at_before = p->at_layer;
    p->layer = l->index;
    p->at_layer = dt__tls.tape.n;
    r->live = live;
    r->tape = dt__tls.tape.n;
    r->since = now;
}
static void dt__profile_input(dt__profile *p, const dt_tensor *x)
{
    bool made = x->node && x->node->seq >= p->at_before; /* by the layer before: it is not a skip connection */
    if (p->before >= 0 && made) p->sent[p->before] = (int64_t)dt_nbytes(x);
    p->before = -1;
    if (!p->begins || x->ndim < 1) return;
    p->samples += x->shape[0];
    p->begins = false;
}
static void dt__profile_row(dt__profile *p, uint64_t now)
{
    if (!p->row) {
        p->nlayers = p->m->nlayers;
        p->nparams = p->m->nparams;
        p->stride = DT__PROFILE_HEAD + 2 * p->nlayers + p->nparams;
        p->row = (double *)dt_mem_alloc((size_t)p->room * (size_t)p->stride * sizeof *p->row);
        if (!p->row) return;
    }
    double *row = p->row + p->n * p->stride, *layer = row + DT__PROFILE_HEAD, *ready = layer + 2 * p->nlayers;
    row[DT__PROFILE_STEP] = (double)(now - (p->left ? p->left : p->first));
    row[DT__PROFILE_INPUT] = p->input;
    row[DT__PROFILE_FORWARD] = row[DT__PROFILE_BACKWARD] = 0;
    row[DT__PROFILE_UPDATE] = p->update;
    row[DT__PROFILE_FINE] = p->fine ? 1 : 0;
    for (int i = 0; i < p->nlayers; i++) {
        row[DT__PROFILE_FORWARD] += layer[i] = p->forward[i];
        row[DT__PROFILE_BACKWARD] += layer[p->nlayers + i] = p->backward[i];
        p->kept[i] = p->held[i] / (p->forwards > 0 ? p->forwards : 1);
    }
    for (int i = 0; i < p->nparams; i++) ready[i] = p->ready[i];
    __atomic_store_n(&p->n, p->n + 1, __ATOMIC_RELEASE);
}
/* dt_step has updated the model; it began at t0. */
static void dt__profile_step(dt__profile *p, const dt_optimizer *opt, uint64_t t0)
{
    const dt__profiler *r = dt__tls.timing ? (const dt__profiler *)dt__tls.timing->user : NULL;
    if (!r || dt__tls.timing->node != dt__profile_node) return; /* no layer of it ran on this thread */
    bool     host = dt__is_host(p->m->device);
    if (!host && !p->fine) dt_synchronize(p->m->device);
    uint64_t now = dt__profile_now(p);
    p->update += (double)(now - t0);
    if (!p->backwards) return; /* another optimiser of the model has ended the step: this one's time belongs to the next */
    if (!p->skip && dt__err.code == DT_OK && p->m->sealed && (!p->row || p->nlayers == p->m->nlayers) &&
        dt__profile_grow(p, p->m->nlayers, p->m->nparams)) {
        p->states = dt__profile_state(p->m);
        p->batch = p->samples;
        p->nforwards = p->forwards;
        p->nbackwards = p->backwards;
        p->opt_kind = opt->kind;
        p->sample_bytes = r->fed ? r->fed_bytes : 0;
        p->able = r->fed ? r->fed_able : 0;
        dt__profile_row(p, now);
    }
    for (int i = 0; i < p->layer_cap; i++) p->forward[i] = p->backward[i] = 0;
    for (int i = 0; i < p->layer_cap; i++) p->held[i] = 0;
    for (int i = 0; i < p->param_cap; i++) p->ready[i] = -1;
    p->input = p->update = 0;
    p->samples = p->forwards = p->backwards = 0;
    p->first = 0;
    p->skip = false;
    p->left = now;
    if (!host) p->fine = !p->fine;
    if (p->n == p->room || p->pid != getpid()) dt__profile_end(p);
}

/* ==================================================================================================== >>packing
   Tensors as entries of archives: the source of an entry's bytes is a tensor on any device. */
static int dt__tensor_send(dt__out_file *o, const char *call, const dt_archive_entry *e, void *object)
{
    dt_tensor *t = (dt_tensor *)object;
    if (t->dtype != (int)e->dtype || !dt__same_shape(t, &e->shape)) /* for example by dt_model_cast */
        return dt_fail(DT_ERR_STATE, "%s: %s was %s %s when it was added and is %s %s now; add it after the change",
                       call, dt__show(e->name), dt_dtype_name(e->dtype), dt__shape_text(e->shape.dim, e->shape.ndim),
                       dt_dtype_name((dt_dtype)t->dtype), dt__text(t));
    dt_tensor *d = dt__dense(call, t);
    if (!d) return dt_error_code();
    int rc = 0;
    if (d->st->dev == dt_cpu()) {
        rc = dt__out_bytes(o, (char *)d->st->ptr + d->offset * dt__dtype_size[d->dtype], e->nbytes);
    } else {
        char *host = (char *)dt_mem_alloc(e->nbytes);
        if (!host)
            rc = dt_fail(DT_ERR_MEMORY, "%s: out of memory for %zu bytes of %s", call, e->nbytes, dt__show(e->name));
        else if (!(rc = dt__download(d, host))) rc = dt__out_bytes(o, host, e->nbytes);
        dt_mem_free(host, e->nbytes);
    }
    dt__unref(d);
    return rc;
}
static void dt__tensor_release(void *object, size_t nbytes)
{
    (void)nbytes;
    dt__unref((dt_tensor *)object);
}
static const dt__source dt__tensor_source = { dt__tensor_send, dt__tensor_release, NULL };

static int dt__archive_add(const char *call, dt_archive *a, const char *name, dt_tensor *t, bool finite)
{
    if (!dt__ok(call, "the tensor", t)) return dt_error_code();
    int rc = dt__archive_put(call, a, name, (dt_dtype)t->dtype, dt_shape_of(t), finite, t, &dt__tensor_source);
    if (!rc) dt__ref(t);
    return rc;
}
/* Dtypes that dt lacks and converts to the nearest one that it has, as its datasets do; -1: it does not */
static const struct {
    char stored[4];
    int  nbytes, becomes;
} dt__nearest[] = { { "F64", 8, DT_F32 }, { "I8", 1, DT_I32 }, { "I16", 2, DT_I32 }, { "U16", 2, DT_I32 }, { "U32", 4, DT_I64 } };
static int dt__archive_nearest(const dt_archive_entry *e) /* its row; -1: there is none */
{
    for (int i = 0; i < (int)(sizeof dt__nearest / sizeof *dt__nearest); i++)
        if (!strcmp(dt__nearest[i].stored, e->stored)) return i;
    return -1;
}
static dt_tensor *dt__archive_converted(const char *call, dt_archive *a, int64_t i, const dt_archive_entry *e, int row)
{
    const char *at = (const char *)dt_archive_data(a, i);
    int         nbytes = dt__nearest[row].nbytes, becomes = dt__nearest[row].becomes;
    dt_tensor  *t = dt__new(call, dt_cpu(), becomes, e->shape.dim, e->shape.ndim, DT_LAYOUT_PLAIN);
    char       *to = t ? (char *)t->st->ptr : NULL;
    for (int64_t k = 0; to && k < t->numel; k++, at += nbytes) {
        int64_t v = 0;
        if (becomes == DT_F32) {
            double x;
            memcpy(&x, at, sizeof x);
            ((float *)(void *)to)[k] = (float)x;
            continue;
        }
        memcpy(&v, at, (size_t)nbytes); /* little-endian, as the file */
        if (e->stored[0] == 'I') v = nbytes == 1 ? (int64_t)(int8_t)v : (int64_t)(int16_t)v;
        if (becomes == DT_I32) ((int32_t *)(void *)to)[k] = (int32_t)v;
        else ((int64_t *)(void *)to)[k] = v;
    }
    return t;
}
/* Entry i on the CPU; the caller owns it. */
static dt_tensor *dt__archive_view(const char *call, dt_archive *a, int64_t i)
{
    dt_archive_entry e;
    dt_archive_info(a, i, &e);
    int row = e.known ? -1 : dt__archive_nearest(&e);
    if (row >= 0) return dt__archive_converted(call, a, i, &e, row);
    if (!e.known) {
        dt_fail(DT_ERR_DTYPE, "%s: %s holds %s, which dt does not have; convert the file to F32, F16, BF16, I32, I64 or U8",
                call, dt__show(e.name), e.stored);
        return NULL;
    }
    dt_tensor *t = (dt_tensor *)dt__archive_object(a, i, &dt__tensor_source);
    if (t) return dt__ref(t);
    void *at = (void *)(uintptr_t)dt_archive_data(a, i);
    void *hold = (uintptr_t)at % dt__dtype_size[e.dtype] ? NULL : dt__archive_hold(a);
    if (!hold) {
        t = dt__new(call, dt_cpu(), e.dtype, e.shape.dim, e.shape.ndim, DT_LAYOUT_PLAIN);
        if (!t || !dt__upload(t, at)) return t;
        dt__unref(t);
        return NULL;
    }
    t = dt__adopt(call, dt_cpu(), at, e.dtype, e.shape.dim, e.shape.ndim);
    if (!t) {
        dt__archive_release(hold);
        return NULL;
    }
    t->st->release = dt__archive_release;
    t->st->user = hold;
    return t;
}
DT_API dt_tensor *dt_archive_get(dt_archive *a, const char *name)
{
    int64_t i = dt__archive_need("dt_archive_get", a, name);
    return i < 0 ? NULL : dt__give(dt__archive_view("dt_archive_get", a, i));
}
DT_API dt_status dt_archive_read(dt_archive *a, const char *name, dt_tensor *into)
{
    dt_archive_entry e;
    int64_t          i = dt__archive_need("dt_archive_read", a, name);
    if (i < 0 || !dt__ok("dt_archive_read", "into", into)) return dt_error_code();
    dt_archive_info(a, i, &e);
    if (!dt__same_shape(into, &e.shape))
        return (dt_status)dt_fail(DT_ERR_SHAPE, "dt_archive_read: %s has shape %s, the tensor has %s; they must be equal",
                                  dt__show(name), dt__shape_text(e.shape.dim, e.shape.ndim), dt__text(into));
    dt_tensor *t = dt__archive_view("dt_archive_read", a, i);
    if (t) dt_copy(into, t);
    dt__unref(t);
    return dt_error_code();
}
DT_API dt_status dt_archive_add(dt_archive *a, const char *name, dt_tensor *t)
{
    return (dt_status)dt__archive_add("dt_archive_add", a, name, t, false);
}

/* ==================================================================================================== >>checkpoint
   A checkpoint is an archive: parameters under their names, the state that the visitors of optimisers, schedulers and mixed
   precision save, the random generators, and the user's values. Loading checks everything before it changes anything.
   What can be checked only at the seal is kept in a dt__load in the model's list.

   All functions run on the thread that uses the model. Only the signal handler runs elsewhere: it sets a flag, and
   dt_checkpoint_tick reads it. */
enum { DT__USER_TENSOR, DT__USER_INTEGER, DT__USER_NUMBER, DT__USER_STRING };
typedef struct dt__user {
    char      *key; /* with "user." before it, as in the file */
    int        kind;
    dt_tensor *t;
    int64_t   *integer;
    double    *number;
    char      *text;
} dt__user;
typedef struct dt__load { /* a file that fills parameters, also those that are created later */
    struct dt__load *next; /* an older one of the same model; NULL: the last */
    const char      *call;
    dt_model        *m;
    dt_archive      *a;
    dt_checkpoint   *c; /* of a resume: its optimisers are filled at the seal; NULL: dt_model_load */
    char            *path, *strip;
    int              no_strict;
} dt__load;
struct dt_checkpoint {
    dt_checkpoint_opts o;
    char              *dir, *name;
    dt_optimizer     **opt;
    dt_scheduler     **scheduler;
    int                nopts, nschedulers;
    dt__user          *user;
    int64_t            nusers, user_cap;
    dt__load          *load; /* of a resume, until the seal; or NULL */
    int64_t            seen_epoch, seen_step; /* of the last save, tick or resume */
    double             saved; /* time of the last save, in seconds of the monotonic clock */
    int                stop;  /* a signal asked for it */
};

/* ---- numbers as text: exact, and independent of the locale */
static void dt__number_text(char *buf, size_t cap, double x)
{
    uint64_t    u;
    char        digits[16];
    const char *sign;
    int         e, n = 13;
    memcpy(&u, &x, 8);
    sign = u >> 63 ? "-" : "";
    e = (int)(u >> 52 & 0x7ff);
    u &= ((uint64_t)1 << 52) - 1;
    if (e == 0x7ff) {
        snprintf(buf, cap, "%s%s", sign, u ? "nan" : "inf");
        return;
    }
    snprintf(digits, sizeof digits, "%013" PRIx64, u);
    while (n > 1 && digits[n - 1] == '0') n--;
    snprintf(buf, cap, "%s0x%d.%.*sp%+d", sign, e != 0, n, digits, e ? e - 1023 : -1022);
}
static int dt__number_parse(const char *s, double *x) /* accepts only what dt__number_text writes; 0 or -1 */
{
    char     again[40];
    uint64_t u = 0, sign = 0;
    int      n = 0, lead = 0, e = 0, neg = 0, more = 0;
    const char *p = s;
    if (*p == '-') sign = 1, p++;
    if (!strcmp(p, "inf")) u = (uint64_t)0x7ff << 52;
    else if (!strcmp(p, "nan")) u = (uint64_t)0x7ff8 << 48;
    else {
        if (p[0] != '0' || p[1] != 'x' || (p[2] != '0' && p[2] != '1') || p[3] != '.') return -1;
        lead = p[2] - '0';
        for (p += 4; n < 13; n++, p++) {
            int c = *p, v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
            if (v < 0) break;
            u = u << 4 | (uint64_t)v;
        }
        u <<= 4 * (13 - n);
        if (*p++ != 'p') return -1;
        neg = *p == '-';
        if (*p != '-' && *p != '+') return -1;
        for (p++; *p >= '0' && *p <= '9' && more < 4; p++, more++) e = e * 10 + (*p - '0');
        if (neg) e = -e;
        if (lead && e >= -1022 && e <= 1023) u |= (uint64_t)(e + 1023) << 52;
    }
    u |= sign << 63;
    memcpy(x, &u, 8);
    dt__number_text(again, sizeof again, *x); /* rejects every other spelling */
    return strcmp(again, s) ? -1 : 0;
}
static int dt__integer_parse(const char *s, int64_t *x)
{
    char again[24];
    errno = 0;
    long long v = strtoll(s, NULL, 10);
    snprintf(again, sizeof again, "%lld", v);
    if (errno || strcmp(again, s)) return -1;
    *x = v;
    return 0;
}

/* ---- visitors that save into an archive or load from it */
typedef enum dt__phase {
    DT__PHASE_ALL = 0, /* save or load everything */
    DT__PHASE_CHECK,   /* load: check that everything is there and change nothing */
    DT__PHASE_EARLY,   /* load before the seal: optimisers have no states yet */
    DT__PHASE_LATE     /* load at the seal: numbers were loaded before and may have changed since */
} dt__phase;
typedef struct dt__port {
    const char *call, *path;
    dt_archive *a;
    dt__phase   phase;
} dt__port;
static bool dt__shapes_equal(const dt_shape *a, const dt_shape *b)
{
    return a->ndim == b->ndim && !memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim);
}
/* Entry i on the CPU, or the part of it that cut says; the caller owns it. */
static dt_tensor *dt__archive_part(const char *call, dt_archive *a, int64_t i, const dt__portion *cut)
{
    dt_tensor *whole = dt__archive_view(call, a, i), *part = whole;
    if (whole && cut && cut->parts) {
        part = dt__cut_take(call, whole, cut);
        dt__unref(whole);
    }
    return part;
}
static int dt__save_tensor(dt__visit *v, const char *name, dt_tensor *t)
{
    dt__port *p = (dt__port *)v->user;
    return dt__archive_add(p->call, p->a, name, t, false);
}
typedef struct dt__part_entry { /* a tensor in the array of a block of a sharded model */
    const dt__mblock *b;
    dt_tensor        *array;
    int64_t           offset, numel; /* in the block */
    bool              cut;
} dt__part_entry;
static void dt__part_release(void *object, size_t nbytes)
{
    (void)nbytes;
    dt__unref(((dt__part_entry *)object)->array);
    dt_mem_free(object, sizeof(dt__part_entry));
}
static int dt__part_send(dt__out_file *o, const char *call, const dt_archive_entry *e, void *object)
{
    (void)o;
    (void)object;
    return dt_fail(DT_ERR_STATE, "%s: %s is sharded, and this rank alone writes the file; this is a bug in dt", call, dt__show(e->name));
}
/* Elements from .. from + n - 1 of the tensor, which this rank has */
static int dt__part_range(dt__out_file *o, const char *call, void *object, int64_t from, int64_t n)
{
    dt__part_entry *e = (dt__part_entry *)object;
    dt__piece       p;
    int             rc = 0;
    for (int k = 0; !rc && dt__piece_next(e->b, e->cut, e->offset + from, e->offset + from + n, &k, &p);) {
        dt_tensor *t = dt__slice(e->array, 0, p.at, p.n), *host = t && t->st->dev != dt_cpu() ? dt__cross(call, t, dt_cpu()) : dt__ref(t);
        rc = host ? dt__out_bytes(o, (char *)host->st->ptr + host->offset * dt__dtype_size[host->dtype],
                                  (size_t)p.n * dt__dtype_size[host->dtype]) : (int)DT_ERR_MEMORY;
        dt__unref(host);
        dt__unref(t);
    }
    return rc;
}
static const dt__source dt__part_source = { dt__part_send, dt__part_release, dt__part_range };
static int dt__archive_add_part(const char *call, dt_archive *a, const char *name, const dt__mblock *b, dt_tensor *array, bool cut,
                                const dt__param *p, bool finite)
{
    dt__part_entry *e = (dt__part_entry *)dt__alloc_zero(sizeof *e);
    if (!e) return dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    e->b = b;
    e->offset = p->offset;
    e->numel = p->t->numel;
    e->cut = cut;
    int rc = dt__archive_put(call, a, name, (dt_dtype)array->dtype, dt_shape_of(p->t), finite, e, &dt__part_source);
    if (rc) dt_mem_free(e, sizeof *e);
    else e->array = dt__ref(array);
    return rc;
}
static int dt__save_part(dt__visit *v, const char *name, const dt__mblock *b, dt_tensor *array, bool cut, const dt__param *p)
{
    dt__port *port = (dt__port *)v->user;
    return dt__archive_add_part(port->call, port->a, name, b, array, cut, p, false);
}
static int dt__save_number(dt__visit *v, const char *name, double *x)
{
    dt__port *p = (dt__port *)v->user;
    char      text[40];
    dt__number_text(text, sizeof text, *x);
    return dt__archive_set_string(p->call, p->a, name, text);
}
static int dt__save_integer(dt__visit *v, const char *name, int64_t *x)
{
    dt__port *p = (dt__port *)v->user;
    char      text[24];
    snprintf(text, sizeof text, "%" PRId64, *x);
    return dt__archive_set_string(p->call, p->a, name, text);
}
static int dt__load_lacks(const dt__port *p, const char *name)
{
    return dt_fail(DT_ERR_STATE, "%s: %.300s has no %s: the program that saved it had other optimisers, schedulers or "
                   "values; create the same ones", p->call, p->path,
                   dt__show(name));
}
static int dt__load_outside(const dt__visit *v, const char *name, const char *s)
{
    const dt__port *p = (const dt__port *)v->user;
    return dt_fail(DT_ERR_FILE, "%s: %.300s: %s is %s, expected %" PRId64 " to %" PRId64 ": the file is damaged", p->call, p->path,
                   dt__show(name), dt__show(s), v->low, v->high);
}
static int dt__load_tensor(dt__visit *v, const char *name, dt_tensor *t)
{
    dt__port *p = (dt__port *)v->user;
    int64_t   i = dt_archive_find(p->a, name);
    dt_archive_entry e;
    if (!dt_archive_info(p->a, i, &e)) return dt__load_lacks(p, name);
    dt_shape want = dt_shape_of(t);
    if (v->cut) want.dim[v->cut->dim] *= v->cut->parts;
    if (!dt__shapes_equal(&want, &e.shape))
        return dt_fail(DT_ERR_SHAPE, "%s: %.300s: %s has shape %s there, %s here; they must be equal", p->call, p->path,
                       dt__show(name),
                       dt__shape_text(e.shape.dim, e.shape.ndim), dt__shape_text(want.dim, want.ndim));
    if (p->phase == DT__PHASE_CHECK && e.known) return 0;
    dt_tensor *from = dt__archive_part(p->call, p->a, i, v->cut);
    if (from && p->phase != DT__PHASE_CHECK) dt_copy(t, from);
    dt__unref(from);
    dt__archive_forget(p->a, i);
    return dt_error_code();
}
static int dt__load_part(dt__visit *v, const char *name, const dt__mblock *b, dt_tensor *array, bool cut, const dt__param *p)
{
    dt__port        *port = (dt__port *)v->user;
    int64_t          i = dt_archive_find(port->a, name);
    dt_archive_entry e;
    int              rc = 0;
    if (!dt_archive_info(port->a, i, &e)) return dt__load_lacks(port, name);
    if (!dt__same_shape(p->t, &e.shape))
        return dt_fail(DT_ERR_SHAPE, "%s: %.300s: %s has shape %s there, %s here; they must be equal", port->call, port->path,
                       dt__show(name), dt__shape_text(e.shape.dim, e.shape.ndim), dt__text(p->t));
    if (port->phase == DT__PHASE_CHECK && e.known) return 0;
    dt__part_entry *saved = (dt__part_entry *)dt__archive_object(port->a, i, &dt__part_source);
    dt__piece       piece;
    for (int k = 0; saved && !rc && dt__piece_next(b, cut, p->offset, p->offset + p->t->numel, &k, &piece);)
        rc = dt__copy_range(array, piece.at, saved->array, piece.at, piece.n);
    if (saved) return rc;
    dt_tensor *from = dt__archive_view(port->call, port->a, i), *flat = from ? dt__flat(from) : NULL;
    if (flat && port->phase != DT__PHASE_CHECK) dt__pieces_set(b, array, cut, p->offset, p->t->numel, flat);
    dt__unref(flat);
    dt__unref(from);
    dt__archive_forget(port->a, i);
    return dt_error_code();
}
static int dt__load_number(dt__visit *v, const char *name, double *x)
{
    dt__port *p = (dt__port *)v->user;
    double    y;
    if (p->phase == DT__PHASE_LATE) return 0;
    const char *s = dt_archive_get_string(p->a, name);
    if (!s) return dt__load_lacks(p, name);
    if (dt__number_parse(s, &y))
        return dt_fail(DT_ERR_FILE, "%s: %.300s: %s is %s, not a number: the file is damaged", p->call, p->path, dt__show(name),
                       dt__show(s));
    if (v->bounded && !(y >= (double)v->low && y <= (double)v->high)) return dt__load_outside(v, name, s);
    if (p->phase != DT__PHASE_CHECK) *x = y;
    return 0;
}
static int dt__load_integer(dt__visit *v, const char *name, int64_t *x)
{
    dt__port *p = (dt__port *)v->user;
    int64_t   y;
    size_t    n = strlen(name);
    if (p->phase == DT__PHASE_EARLY && n > 10 && !strcmp(name + n - 10, ".has_state")) return *x = 0, 0;
    const char *s = dt_archive_get_string(p->a, name);
    if (!s) return dt__load_lacks(p, name);
    if (dt__integer_parse(s, &y))
        return dt_fail(DT_ERR_FILE, "%s: %.300s: %s is %s, not a whole number: the file is damaged", p->call, p->path,
                       dt__show(name), dt__show(s));
    if (v->bounded && (y < v->low || y > v->high)) return dt__load_outside(v, name, s);
    if (p->phase != DT__PHASE_CHECK) *x = y;
    return 0;
}
static bool dt__load_has(dt__visit *v, const char *name)
{
    return dt_archive_get_string(((dt__port *)v->user)->a, name) != NULL;
}
static dt__visit dt__port_visit(dt__port *p, int loading)
{
    dt__visit v;
    memset(&v, 0, sizeof v);
    v.loading = loading;
    v.tensor = loading ? dt__load_tensor : dt__save_tensor;
    v.number = loading ? dt__load_number : dt__save_number;
    v.integer = loading ? dt__load_integer : dt__save_integer;
    v.part = loading ? dt__load_part : dt__save_part;
    v.has = dt__load_has;
    v.user = p;
    return v;
}
static void dt__visit_bound(dt__visit *v, bool bounded, int64_t low, int64_t high)
{
    v->bounded = bounded;
    v->low = low;
    v->high = high;
}
static int dt__rng_visit(dt_rng *r, dt__visit *v, const char *prefix)
{
    static const char *const names[] = { "state", "next", "has_normal", "seed", "philox_offset", "normal" };
    char                     name[6][48];
    int64_t                  words = 624, next = r->next, has = r->has_normal, seed, offset;
    double                   normal = r->normal;
    for (int i = 0; i < 6; i++) snprintf(name[i], sizeof name[i], "%s.%s", prefix, names[i]);
    memcpy(&seed, &r->seed, 8);
    memcpy(&offset, &r->philox_offset, 8);
    dt_tensor *t = dt__adopt("dt_rng", dt_cpu(), r->state, DT_I32, &words, 1);
    if (!t) return dt_error_code();
    dt__visit_bound(v, true, 0, 624);
    int rc = v->integer(v, name[1], &next);
    dt__visit_bound(v, true, 0, 1);
    if (!rc) rc = v->integer(v, name[2], &has);
    dt__visit_bound(v, true, -64, 64); /* a normal value from 53 random bits is less than 9 */
    if (!rc) rc = v->number(v, name[5], &normal);
    dt__visit_bound(v, false, 0, 0);
    if (!rc) rc = v->integer(v, name[3], &seed);
    if (!rc) rc = v->integer(v, name[4], &offset);
    if (!rc && (next < 0 || next > 624 || has < 0 || has > 1)) /* saving: the program has changed the struct */
        rc = dt_fail(DT_ERR_STATE, "dt_rng: %s has .next %" PRId64 " (expected 0 to 624), .has_normal %" PRId64
                     " (expected 0 or 1)", prefix, next, has);
    if (!rc) rc = v->tensor(v, name[0], t);
    if (!rc && v->loading) {
        r->next = (int32_t)next;
        r->has_normal = (int32_t)has;
        r->normal = normal;
        memcpy(&r->seed, &seed, 8);
        memcpy(&r->philox_offset, &offset, 8);
    }
    dt__unref(t);
    return rc;
}

/* ---- a file against a model */
static int64_t dt__load_find(const dt__load *l, const char *name) /* index of the parameter in the file, or -1 */
{
    int64_t i = -1;
    if (l->strip) {
        char *full = dt__joined(l->strip, strlen(l->strip), name, NULL);
        i = full ? dt_archive_find(l->a, full) : -1;
        dt__free_text(full);
    }
    return i < 0 ? dt_archive_find(l->a, name) : i;
}
static int dt__load_fits(const dt__load *l, int64_t i, const dt__param *p)
{
    dt_archive_entry e;
    dt_shape         whole = dt__param_shape(p);
    return dt_archive_info(l->a, i, &e) && (e.known || dt__archive_nearest(&e) >= 0) && dt__shapes_equal(&whole, &e.shape);
}
static int dt__load_fill(const dt__load *l, int64_t i, dt__param *p, int made)
{
    dt_tensor *from = dt__archive_part(l->call, l->a, i, &p->cut);
    if (from) {
        if (made) dt__param_assign(l->m, p, from);
        else dt_copy(p->t, from);
    }
    dt__unref(from);
    dt__archive_forget(l->a, i);
    return dt_error_code();
}
static const char *dt__load_name(const dt__load *l, int64_t i) /* of entry i, without the prefix */
{
    const char *name = dt_archive_name(l->a, i);
    size_t      n = l->strip ? strlen(l->strip) : 0;
    return n && !strncmp(name, l->strip, n) ? name + n : name;
}
static int dt__load_foreign(const dt__load *l, const char *name) /* part of a checkpoint, but not of its model */
{
    static const char *const parts[] = { "optimizer.", "schedule.", "amp.", "rng.", "user.", "ddp." };
    for (int i = 0; i < 6; i++)
        if (!strncmp(name, parts[i], strlen(parts[i]))) return dt_archive_get_string(l->a, "dt.version") != NULL;
    return 0;
}
static int dt__load_may_lack(const char *name) /* a batch norm's counter: old files lack it */
{
    static const char tail[] = "num_batches_tracked";
    size_t            n = strlen(name), k = sizeof tail - 1;
    return n >= k && !strcmp(name + n - k, tail);
}
/* A prefix that names in the file have before name, with its point: "module."; "" if there is no such name. */
static void dt__load_prefix(const dt__load *l, const char *name, char *prefix, size_t nbytes)
{
    size_t n = strlen(name);
    prefix[0] = 0;
    for (int64_t i = 0; i < dt_archive_count(l->a) && !prefix[0]; i++) {
        const char *full = dt_archive_name(l->a, i);
        size_t      k = strlen(full);
        if (k > n + 1 && k - n < nbytes && full[k - n - 1] == '.' && !strcmp(full + k - n, name))
            snprintf(prefix, nbytes, "%.*s", (int)(k - n), full);
    }
}
/* What the file has instead of a parameter of the model, for a message. */
static void dt__load_other(const dt__load *l, int64_t i, const dt__param *p, char *text, size_t nbytes)
{
    dt_archive_entry e;
    dt_shape         whole = dt__param_shape(p);
    dt_archive_info(l->a, i, &e);
    snprintf(text, nbytes, " is %s %.56s in the file, %.56s in the model%s", e.stored,
             dt__shape_text(e.shape.dim, e.shape.ndim), dt__shape_text(whole.dim, whole.ndim),
             e.known || dt__archive_nearest(&e) >= 0 ? "" : " (dt reads F64, F32, F16, BF16, I8 to I64 and U8 to U32: convert it)");
}
/* Names that do not fit: three lists of at most 8 names. */
typedef struct dt__misfits {
    int64_t missing, extra, wrong;
    char    text[3][264];
    int     full[3];
} dt__misfits;
static void dt__misfit(dt__misfits *f, int kind, int64_t nth, const char *what, const char *more)
{
    char   item[264];
    size_t n = strlen(f->text[kind]), room = sizeof f->text[kind] - n;
    if (f->full[kind]) return;
    int k = snprintf(item, sizeof item, "%s%s%s", n ? ", " : "", what, more);
    f->full[kind] = nth > 8 || k < 0 || (size_t)k + 6 > room; /* room for ", ..." */
    snprintf(f->text[kind] + n, room, "%s", f->full[kind] ? ", ..." : item);
}
/* Compares the parameters that exist (after the seal: all of them) with the file. */
static void dt__load_compare(const dt__load *l, dt__misfits *f)
{
    char more[200];
    memset(f, 0, sizeof *f);
    for (int i = 0; i < l->m->nparams; i++) {
        dt__param *p = l->m->param[i];
        int64_t    at = dt__load_find(l, p->name);
        if (at < 0 && !dt__load_may_lack(p->name)) dt__misfit(f, 0, ++f->missing, dt__show(p->name), "");
        if (at < 0 || dt__load_fits(l, at, p)) continue;
        dt__load_other(l, at, p, more, sizeof more);
        dt__misfit(f, 2, ++f->wrong, dt__show(p->name), more);
    }
    for (int64_t i = 0; l->m->sealed && i < dt_archive_count(l->a); i++) {
        const char *name = dt__load_name(l, i);
        if (!dt__model_param(l->m, name) && !dt__load_foreign(l, name))
            dt__misfit(f, 1, ++f->extra, dt__show(name), "");
    }
}
static int dt__load_judge(const dt__load *l) /* 0, or an error that lists what does not fit */
{
    dt__misfits f;
    char        text[900] = "";
    dt__load_compare(l, &f);
    if (!f.missing && !f.extra && !f.wrong) return 0;
    const int64_t            count[3] = { f.missing, f.extra, f.wrong };
    static const char *const kind[3] = { "missing in the file", "only in the file", "of another shape or dtype" };
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(text);
        if (count[i])
            snprintf(text + n, sizeof text - n, "%s%" PRId64 " %s: %s", n ? "; " : "", count[i], kind[i], f.text[i]);
    }
    char prefix[64] = "";
    for (int i = 0; i < l->m->nparams && f.missing && !prefix[0]; i++)
        if (dt__load_find(l, l->m->param[i]->name) < 0) dt__load_prefix(l, l->m->param[i]->name, prefix, sizeof prefix);
    size_t used = strlen(text);
    if (prefix[0])
        snprintf(text + used, sizeof text - used, "; names in the file begin with '%s': pass .strip = \"%s\"", prefix, prefix);
    if (l->no_strict) {
        dt__logf(DT_LOG_WARN, "%s: %.200s: %s", l->call, l->path, text);
        return 0;
    }
    return dt_fail(DT_ERR_STATE, "%s: %.200s does not fit the model: %s", l->call, l->path, text);
}
static int dt__load_now(const dt__load *l) /* fills existing parameters; how many, or a negative status */
{
    int n = 0;
    for (int i = 0; i < l->m->nparams; i++) {
        int64_t at = dt__load_find(l, l->m->param[i]->name);
        if (at < 0 || !dt__load_fits(l, at, l->m->param[i])) continue;
        if (dt__load_fill(l, at, l->m->param[i], 1)) return dt_error_code();
        n++;
    }
    return n;
}

/* ---- loads that wait for the seal: a list in m->want_user, the newest first */
static void dt__load_free(dt__load *l)
{
    if (!l) return;
    if (l->c && l->c->load == l) l->c->load = NULL;
    dt__load *head = (dt__load *)l->m->want_user;
    for (dt__load **at = &head; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    l->m->want_user = head;
    if (!head) l->m->want = NULL;
    dt_archive_free(l->a);
    dt__free_text(l->path);
    dt__free_text(l->strip);
    dt_mem_free(l, sizeof *l);
}
static void dt__model_drop_loads(dt_model *m)
{
    while (m->want_user) dt__load_free((dt__load *)m->want_user);
}
/* Takes ownership of the archive, also if it fails. */
static dt__load *dt__load_new(const char *call, dt_model *m, dt_archive *a, const char *path, const char *strip)
{
    dt__load *l = (dt__load *)dt__alloc_zero(sizeof *l);
    if (!l) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        dt_archive_free(a);
        return NULL;
    }
    l->call = call;
    l->m = m;
    l->a = a;
    l->path = dt__strdup(path);
    l->strip = strip && *strip ? dt__strdup(strip) : NULL;
    if (l->path && (l->strip || !strip || !*strip)) return l;
    dt_fail(DT_ERR_MEMORY, "%s: out of memory for a path", call);
    dt__load_free(l);
    return NULL;
}
static int dt__load_want(dt_model *m, void *user, dt__param *p) /* dt_model.want */
{
    (void)m;
    for (dt__load *l = (dt__load *)user; l; l = l->next) {
        int64_t i = dt__load_find(l, p->name);
        char    text[200] = "", prefix[64];
        if (i >= 0 && dt__load_fits(l, i, p)) return dt__load_fill(l, i, p, 0) ? (int)dt_error_code() : 1;
        if (l->no_strict || (i < 0 && dt__load_may_lack(p->name))) continue;
        if (i >= 0) {
            dt__load_other(l, i, p, text, sizeof text);
            return dt_fail(DT_ERR_STATE, "%s: %s%s; %.200s does not fit the model", l->call, dt__show(p->name), text, l->path);
        }
        dt__load_prefix(l, p->name, prefix, sizeof prefix);
        if (prefix[0]) snprintf(text, sizeof text, "names there begin with '%s': pass .strip = \"%s\"", prefix, prefix);
        return dt_fail(DT_ERR_STATE, "%s: %s is missing in the file %.200s; %s", l->call, dt__show(p->name), l->path,
                       prefix[0] ? text : ".no_strict = true initialises what a file lacks");
    }
    return 0;
}
static int dt__checkpoint_optimizers(dt_checkpoint *c, dt__port *p, int loading);
static int dt__load_sealed(dt_model *m, void *user)
{
    dt__load *l = (dt__load *)user;
    int       rc = dt__load_judge(l);
    if (!rc && l->c) {
        dt__port port = { NULL, NULL, NULL, DT__PHASE_LATE };
        port.call = l->call;
        port.path = l->path;
        port.a = l->a;
        rc = dt__checkpoint_optimizers(l->c, &port, 1);
        dt__visit v = dt__port_visit(&port, 1);
        for (const dt__watch *w = m->watch; w && !rc; w = w->next)
            if (w->arrays) rc = w->arrays(w->user, &v);
    }
    dt__load_free(l);
    return rc;
}
/* Takes ownership of l and adds it to the model's list. */
static int dt__load_wait(dt__load *l)
{
    l->next = (dt__load *)l->m->want_user;
    l->m->want_user = l;
    l->m->want = dt__load_want;
    if (!dt__model_on_seal(l->m, dt__load_sealed, l)) return 0;
    dt__load_free(l);
    return dt_error_code();
}

/* ---- a model alone */
static int dt__save_model(const char *call, dt_archive *a, dt_model *m, bool finite)
{
    if (m->shards && m->shards->settle(m->shards->user)) return dt_error_code();
    for (int i = 0; i < m->nparams; i++) {
        dt__param  *p = m->param[i];
        dt__mblock *b = p->block >= 0 && m->block[p->block].cut ? &m->block[p->block] : NULL;
        if (b) {
            dt_tensor *array = b->master ? b->master : b->b.value;
            if (dt__archive_add_part(call, a, p->name, b, array, b->master || b->cut & DT__CUT_VALUE, p, finite)) return dt_error_code();
            continue;
        }
        dt_tensor *t = dt__param_source(m, p), *whole = t && p->cut.parts ? dt__cut_whole(m, call, t, &p->cut) : NULL;
        if (!t || (p->cut.parts && !whole)) return dt_error_code();
        int rc = dt__archive_add(call, a, p->name, whole ? whole : t, finite);
        dt__unref(whole);
        if (rc) return dt_error_code();
        if (t->step) dt_free(t); /* a view of the master weights: the archive holds a reference */
    }
    return 0;
}
/* Fetches what other ranks have, to the rank that writes the archive. All ranks have the same entries in the same order. */
static int dt__archive_fetch(const char *call, dt_archive *a, dt_model *m)
{
    for (int64_t i = 0; i < dt_archive_count(a) && dt__err.code == DT_OK; i++) {
        dt_tensor *t = (dt_tensor *)dt__archive_object(a, i, &dt__tensor_source);
        dt_tensor *y = t ? dt__watch_fetch(m, call, t) : NULL;
        if (!y) continue;
        dt__archive_set_object(a, i, y);
        dt__unref(t);
    }
    return dt__err.code;
}
/* ---- sharded: all ranks write one file */
static int64_t dt__part_owner(void *user, void *object, int64_t at, int *owner) /* dt__writers.segment */
{
    const dt__sharding     *s = (const dt__sharding *)user;
    const dt__part_entry *e = (const dt__part_entry *)object;
    int64_t               end = 0;
    *owner = s->owner(s->user, e->b, e->offset + at, &end);
    return end - e->offset < e->numel ? end - e->offset : e->numel;
}
static int dt__archive_write_parts(const char *call, dt_archive *a, const char *path, dt_model *m)
{
    const dt__sharding *s = m->shards;
    dt__writers       w;
    w.rank = s->rank;
    w.comm = s->user;
    w.tell = s->tell;
    w.merge = s->merge;
    w.outcome = s->outcome;
    w.user = (void *)(uintptr_t)s;
    w.source = &dt__part_source;
    w.segment = dt__part_owner;
    return dt__archive_write_shared(call, a, path, &w);
}
DT_API dt_status dt_model_save(dt_model *m, const char *path)
{
    static const char call[] = "dt_model_save";
    if (!dt__model_ok(call, m)) return dt_error_code();
    if (!path) return (dt_status)dt_fail(DT_ERR_ARG, "dt_model_save: path is NULL");
    if (!m->nparams)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_model_save: the model has no parameters; run its forward first");
    bool        split = dt__watch_fetches(m), lead = !split || dt__watch_lead(m);
    dt_archive *a = dt_archive_new();
    if (a && !dt__save_model(call, a, m, false) && (!split || !dt__archive_fetch(call, a, m)) && lead && !m->shards)
        dt__archive_write(call, a, path);
    if (m->shards) dt__archive_write_parts(call, a, path, m);
    dt_archive_free(a);
    if (split) dt__watch_outcome(m, call);
    return dt_error_code();
}
DT_API int dt_model_load_with(dt_model *m, const char *path, dt_load_opts o)
{
    static const char call[] = "dt_model_load";
    if (!dt__model_own(call, m)) return dt_error_code();
    if (!path) return dt_fail(DT_ERR_ARG, "%s: path is NULL", call);
    dt__why     why;
    dt_archive *a = dt__archive_load(path, &why);
    if (!a) return dt_fail(why.code, "%s: %.400s: %s", call, path, why.text);
    dt__load *l = dt__load_new(call, m, a, path, o.strip);
    if (!l) return dt_error_code();
    l->no_strict = o.no_strict;
    int n = !o.no_strict && m->nparams && dt__load_judge(l) ? (int)dt_error_code() : dt__load_now(l);
    if (n >= 0 && !m->sealed) return dt__load_wait(l) ? dt_error_code() : n;
    if (n >= 0 && o.no_strict) dt__load_judge(l);
    dt__load_free(l);
    return n;
}

/* ---- signals. The handler may run on any thread and only sets a flag; dt_checkpoint_tick reads the flags. One checkpoint
   at a time owns the handlers: dt__signal_owner, changed by compare-and-swap. */
static volatile sig_atomic_t dt__signal_save, dt__signal_stop;
static dt_checkpoint        *dt__signal_owner;
static const int             dt__signals[3] = { SIGUSR1, SIGTERM, SIGINT };
static struct sigaction      dt__signal_before[3];
static void                  dt__on_signal(int number)
{
    if (number == SIGUSR1) dt__signal_save = 1;
    else dt__signal_stop = 1;
}
static int dt__signals_take(dt_checkpoint *c)
{
    dt_checkpoint   *nobody = NULL;
    struct sigaction act;
    if (!__atomic_compare_exchange_n(&dt__signal_owner, &nobody, c, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return dt_fail(DT_ERR_STATE, "dt_checkpoint_new: another checkpoint has .signals already; only one can have it");
    dt__signal_save = 0;
    dt__signal_stop = 0;
    memset(&act, 0, sizeof act);
    act.sa_handler = dt__on_signal;
    act.sa_flags = SA_RESTART;
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < 3; i++) {
        sigaction(dt__signals[i], &act, &dt__signal_before[i]);
        if (dt__signals[i] == SIGINT && dt__signal_before[i].sa_handler == SIG_IGN) /* of a background job: keep it */
            sigaction(SIGINT, &dt__signal_before[i], NULL);
    }
    return 0;
}
static void dt__signals_give_back(dt_checkpoint *c)
{
    if (__atomic_load_n(&dt__signal_owner, __ATOMIC_ACQUIRE) != c) return;
    for (int i = 0; i < 3; i++) {
        struct sigaction now;
        if (!sigaction(dt__signals[i], NULL, &now) && now.sa_handler == dt__on_signal)
            sigaction(dt__signals[i], &dt__signal_before[i], NULL);
    }
    __atomic_store_n(&dt__signal_owner, (dt_checkpoint *)NULL, __ATOMIC_RELEASE);
}

/* ---- files of a directory */
static char *dt__checkpoint_path(const char *call, const char *dir, const char *name, int64_t step)
{
    size_t n = strlen(dir) + strlen(name) + 48;
    char  *path = (char *)dt_mem_alloc(n);
    if (!path) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for a path", call);
        return NULL;
    }
    snprintf(path, n, "%s/%s-%08" PRId64 ".safetensors", dir, name, step);
    char *exact = dt__strdup(path); /* dt__free_text frees strlen + 1 bytes */
    dt_mem_free(path, n);
    if (!exact) dt_fail(DT_ERR_MEMORY, "%s: out of memory for a path", call);
    return exact;
}
/* The step of a checkpoint file NAME-00000012.safetensors (*temp_pid := 0) or of its temporary file (*temp_pid := id of
   the process that wrote it); -1 for other names. */
static int64_t dt__checkpoint_step(const char *file, const char *name, long *temp_pid)
{
    size_t  n = strlen(name);
    int64_t step = 0;
    char    again[64];
    int     digits = 0, len;
    *temp_pid = 0;
    if (strncmp(file, name, n) || file[n] != '-') return -1;
    for (const char *p = file + n + 1; *p >= '0' && *p <= '9'; p++) {
        if (++digits > 18) return -1;
        step = step * 10 + (*p - '0');
    }
    len = snprintf(again, sizeof again, "-%08" PRId64 ".safetensors", step);
    if (strncmp(file + n, again, (size_t)len)) return -1;
    const char *tail = file + n + len;
    if (*tail) *temp_pid = dt__temp_owner(tail);
    return !*tail || *temp_pid ? step : -1;
}
typedef struct dt__steps { /* the steps of all checkpoints in a directory */
    int64_t    *at; /* in descending order */
    int64_t     n, cap;
    const char *call, *dir, *name;
    int         clean; /* remove temporary files of processes that have ended */
} dt__steps;
static void dt__remove_stale(const char *dir, const char *file, long pid)
{
    size_t n = strlen(dir) + strlen(file) + 2;
    char  *path = (char *)dt_mem_alloc(n);
    if (!path) return;
    snprintf(path, n, "%s/%s", dir, file);
    if (dt__temp_remove(path, pid))
        dt__logf(DT_LOG_INFO, "dt_checkpoint: %.400s, left by a process that ended, was removed", path);
    dt_mem_free(path, n);
}
static int dt__steps_add(void *user, const char *file)
{
    dt__steps *s = (dt__steps *)user;
    long       pid;
    int64_t    step = dt__checkpoint_step(file, s->name, &pid);
    if (step >= 0 && pid && s->clean) dt__remove_stale(s->dir, file, pid);
    if (step < 0 || pid) return 0;
    int64_t *at = (int64_t *)dt__enlarge(s->at, s->n, &s->cap, sizeof *at);
    if (!at) return dt_fail(DT_ERR_MEMORY, "%s: out of memory for a list of files", s->call);
    s->at = at;
    int64_t i = s->n++;
    for (; i > 0 && at[i - 1] < step; i--) at[i] = at[i - 1];
    at[i] = step;
    return 0;
}
static int dt__checkpoint_list(const char *call, const char *dir, const char *name, int clean, dt__steps *s)
{
    memset(s, 0, sizeof *s);
    s->call = call;
    s->dir = dir;
    s->name = name;
    s->clean = clean;
    return dt__dir_each(call, dir, dt__steps_add, s);
}
static void dt__steps_free(dt__steps *s) { dt_mem_free(s->at, (size_t)s->cap * sizeof *s->at); }
/* Opens a checkpoint. If the file cannot be used: NULL and the reason in 'why'. Out of memory: NULL and a pending error. */
static dt_archive *dt__checkpoint_open(const char *call, const char *path, char *why, size_t cap)
{
    int64_t     x;
    dt__why     bad;
    dt_archive *a = dt__archive_load(path, &bad);
    if (a && dt_archive_get_string(a, "dt.version") && dt_archive_get_string(a, "dt.epoch") &&
        dt_archive_get_string(a, "dt.step") && !dt__integer_parse(dt_archive_get_string(a, "dt.epoch"), &x) &&
        !dt__integer_parse(dt_archive_get_string(a, "dt.step"), &x))
        return a;
    if (!a && bad.code == DT_ERR_MEMORY) dt_fail(DT_ERR_MEMORY, "%s: %.300s: out of memory", call, path);
    else snprintf(why, cap, "%s", a ? "not a checkpoint of dt: no dt.epoch and dt.step" : bad.text);
    dt_archive_free(a);
    return NULL;
}
/* The newest intact checkpoint and its path, which the caller frees. NULL: there is no checkpoint, or an error is pending. */
static dt_archive *dt__checkpoint_newest(const char *call, const char *dir, const char *name, char **path)
{
    dt__steps   s;
    dt_archive *a = NULL;
    int64_t     i = 0;
    char        why[480], list[700] = "";
    *path = NULL;
    dt__checkpoint_list(call, dir, name, 0, &s);
    for (; i < s.n && !a && dt__err.code == DT_OK; i++) {
        *path = dt__checkpoint_path(call, dir, name, s.at[i]);
        a = *path ? dt__checkpoint_open(call, *path, why, sizeof why) : NULL;
        if (a || dt__err.code != DT_OK) break;
        dt__logf(DT_LOG_WARN, "%s: %.300s is skipped: %s", call, *path, why);
        size_t n = strlen(list);
        if (i < 8) snprintf(list + n, sizeof list - n, "%s step %" PRId64 " (%.80s)", i ? "," : "", s.at[i], why);
        dt__free_text(*path);
        *path = NULL;
    }
    if (!a && s.n && dt__err.code == DT_OK)
        dt_fail(DT_ERR_FILE, "%s: %.200s: none of %" PRId64 " checkpoints is intact:%s%s", call, dir, s.n, list,
                s.n > 8 ? " ..." : "");
    if (!a) {
        dt__free_text(*path);
        *path = NULL;
    }
    dt__steps_free(&s);
    return a;
}
DT_API const char *dt_checkpoint_latest(const char *dir, const char *name, char *buf, size_t nbytes)
{
    static const char call[] = "dt_checkpoint_latest";
    char             *path = NULL;
    if (dt__err.code != DT_OK) return NULL;
    if (!dir || !buf) {
        dt_fail(DT_ERR_ARG, "%s: %s is NULL", call, dir ? "buf" : "dir");
        return NULL;
    }
    dt_archive *a = dt__checkpoint_newest(call, dir, name ? name : "ckpt", &path);
    dt_archive_free(a);
    if (path && strlen(path) >= nbytes)
        dt_fail(DT_ERR_ARG, "%s: the path needs %zu bytes, buf has %zu", call, strlen(path) + 1, nbytes);
    else if (path) memcpy(buf, path, strlen(path) + 1);
    bool found = path && dt__err.code == DT_OK;
    dt__free_text(path);
    return found ? buf : NULL;
}

/* ---- creating a dt_checkpoint */
static int dt__check_dir(const char *call, dt_checkpoint *c) /* creates the directory and a temporary file in it */
{
    struct stat st;
    char       *path = dt__checkpoint_path(call, c->dir, c->name, 0);
    if (!path) return dt_error_code();
    if (stat(c->dir, &st) && errno == ENOENT) dt__dir_make(call, c->dir);
    if (!stat(c->dir, &st) && !S_ISDIR(st.st_mode))
        dt_fail(DT_ERR_FILE, "%s: %.400s is not a directory; choose another name", call, c->dir);
    if (dt__err.code == DT_OK) dt__file_probe(call, path);
    dt__free_text(path);
    return dt_error_code();
}
static void *dt__copy_pointers(const void *from, int n) /* NULL: n is 0, or out of memory */
{
    void *p = n > 0 ? dt_mem_alloc((size_t)n * sizeof(void *)) : NULL;
    if (p) memcpy(p, from, (size_t)n * sizeof(void *));
    return p;
}
static const char *dt__checkpoint_bad(const char *dir, const dt_checkpoint_opts *o)
{
    if (!dir || !*dir) return "the directory has no name (it is NULL or empty)";
    if (!o->model) return ".model is NULL";
    if (o->name && (!*o->name || strchr(o->name, '/')))
        return ".name is empty or has a '/'; it must be the first part of a file name";
    if (o->keep < -1) return ".keep is below -1; it must be -1 (all), 0 (default) or the number of files to keep";
    if (o->every_steps < 0 || o->every_epochs < 0 || !(o->every_minutes >= 0))
        return ".every_steps, .every_epochs and .every_minutes must be 0 or more";
    if ((o->optimizer && o->optimizers) || (o->scheduler && o->schedulers))
        return "give .optimizer or .optimizers, and .scheduler or .schedulers, not both";
    if (o->optimizers ? o->noptimizers < 1 : o->noptimizers != 0) return ".noptimizers must be the length of .optimizers";
    if (o->schedulers ? o->nschedulers < 1 : o->nschedulers != 0) return ".nschedulers must be the length of .schedulers";
    return NULL;
}
static dt_checkpoint *dt__checkpoint_make(const char *call, const char *dir, const dt_checkpoint_opts *o)
{
    dt_checkpoint *c = (dt_checkpoint *)dt__alloc_zero(sizeof *c);
    if (c) {
        c->o = *o;
        if (!o->keep) c->o.keep = 3;
        c->saved = dt__seconds();
        c->dir = dt__strdup(dir);
        c->name = dt__strdup(o->name ? o->name : "ckpt");
        c->nopts = o->optimizers ? o->noptimizers : o->optimizer != NULL;
        c->nschedulers = o->schedulers ? o->nschedulers : o->scheduler != NULL;
        c->opt = (dt_optimizer **)dt__copy_pointers(o->optimizers ? o->optimizers : &o->optimizer, c->nopts);
        c->scheduler = (dt_scheduler **)dt__copy_pointers(o->schedulers ? o->schedulers : &o->scheduler, c->nschedulers);
        if (c->dir && c->name && (!c->nopts || c->opt) && (!c->nschedulers || c->scheduler)) return c;
    }
    dt_checkpoint_free(c);
    dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    return NULL;
}
DT_API dt_checkpoint *dt_checkpoint_new_with(const char *dir, dt_checkpoint_opts o)
{
    static const char call[] = "dt_checkpoint_new";
    if (dt__err.code != DT_OK) return NULL;
    const char *bad = dt__checkpoint_bad(dir, &o);
    if (bad) {
        dt_fail(DT_ERR_ARG, "%s: %s", call, bad);
        return NULL;
    }
    dt_checkpoint *c = dt__checkpoint_make(call, dir, &o);
    if (!c) return NULL;
    if (dt__err.code == DT_OK && !dt__check_dir(call, c)) {
        dt__steps s;
        dt__checkpoint_list(call, c->dir, c->name, 1, &s);
        dt__steps_free(&s);
    }
    if (dt__err.code == DT_OK && o.signals) dt__signals_take(c);
    if (dt__err.code == DT_OK) return c;
    dt_checkpoint_free(c);
    return NULL;
}
DT_API void dt_checkpoint_free(dt_checkpoint *c)
{
    if (!c) return;
    dt__signals_give_back(c);
    if (c->load) c->load->c = NULL; /* it still fills parameters */
    for (int64_t i = 0; i < c->nusers; i++) {
        dt__unref(c->user[i].t);
        dt__free_text(c->user[i].key);
        dt__free_text(c->user[i].text);
    }
    dt_mem_free(c->user, (size_t)c->user_cap * sizeof *c->user);
    dt_mem_free(c->opt, (size_t)c->nopts * sizeof *c->opt);
    dt_mem_free(c->scheduler, (size_t)c->nschedulers * sizeof *c->scheduler);
    dt__free_text(c->dir);
    dt__free_text(c->name);
    dt_mem_free(c, sizeof *c);
}

/* ---- the user's values */
static dt__user *dt__user_find(const dt_checkpoint *c, const char *key) /* without "user." */
{
    for (int64_t i = 0; i < c->nusers; i++)
        if (!strcmp(c->user[i].key + 5, key)) return &c->user[i];
    return NULL;
}
static dt__user *dt__user_add(const char *call, dt_checkpoint *c, const char *key, int kind, const void *value)
{
    if (dt__err.code != DT_OK) return NULL;
    if (!c || !key || !value) {
        dt_fail(DT_ERR_ARG, "%s: the %s is NULL", call, !c ? "checkpoint" : !key ? "key" : "value");
        return NULL;
    }
    dt__user *u = dt__user_find(c, key);
    if (u && (u->kind != kind || kind != DT__USER_STRING)) {
        dt_fail(DT_ERR_ARG, "%s: the key %s is taken; choose another key", call, dt__show(key));
        return NULL;
    }
    if (u) return u;
    char *full = dt__joined("user.", 5, key, NULL);
    u = full ? (dt__user *)dt__enlarge(c->user, c->nusers, &c->user_cap, sizeof *u) : NULL;
    if (!u) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        dt__free_text(full);
        return NULL;
    }
    c->user = u;
    u += c->nusers++;
    memset(u, 0, sizeof *u);
    u->key = full;
    u->kind = kind;
    return u;
}
DT_API dt_status dt_checkpoint_add_tensor(dt_checkpoint *c, const char *key, dt_tensor *t)
{
    if (!dt__ok("dt_checkpoint_add_tensor", "t", t)) return dt_error_code();
    dt__user *u = dt__user_add("dt_checkpoint_add_tensor", c, key, DT__USER_TENSOR, t);
    if (u) u->t = dt__ref(t);
    return dt_error_code();
}
DT_API dt_status dt_checkpoint_add_integer(dt_checkpoint *c, const char *key, int64_t *x)
{
    dt__user *u = dt__user_add("dt_checkpoint_add_integer", c, key, DT__USER_INTEGER, x);
    if (u) u->integer = x;
    return dt_error_code();
}
DT_API dt_status dt_checkpoint_add_number(dt_checkpoint *c, const char *key, double *x)
{
    dt__user *u = dt__user_add("dt_checkpoint_add_number", c, key, DT__USER_NUMBER, x);
    if (u) u->number = x;
    return dt_error_code();
}
DT_API dt_status dt_checkpoint_set_string(dt_checkpoint *c, const char *key, const char *value)
{
    dt__user *u = dt__user_add("dt_checkpoint_set_string", c, key, DT__USER_STRING, value);
    if (!u) return dt_error_code();
    char *copy = dt__strdup(value);
    if (!copy) return (dt_status)dt_fail(DT_ERR_MEMORY, "dt_checkpoint_set_string: out of memory");
    dt__free_text(u->text);
    u->text = copy;
    return DT_OK;
}
DT_API const char *dt_checkpoint_get_string(const dt_checkpoint *c, const char *key)
{
    const dt__user *u = c && key ? dt__user_find(c, key) : NULL;
    return u && u->kind == DT__USER_STRING ? u->text : NULL;
}
static int dt__users_visit(dt_checkpoint *c, dt__visit *v)
{
    dt__port *p = (dt__port *)v->user;
    int       rc = 0;
    for (int64_t i = 0; i < c->nusers && !rc; i++) {
        dt__user *u = &c->user[i];
        if (u->kind == DT__USER_TENSOR) rc = v->tensor(v, u->key, u->t);
        if (u->kind == DT__USER_INTEGER) rc = v->integer(v, u->key, u->integer);
        if (u->kind == DT__USER_NUMBER) rc = v->number(v, u->key, u->number);
        if (u->kind == DT__USER_STRING && u->text && !v->loading) rc = dt__archive_set_string(p->call, p->a, u->key, u->text);
    }
    const char *key;
    for (int64_t i = 0; v->loading && p->phase != DT__PHASE_CHECK && !rc && (key = dt_archive_key(p->a, i)); i++) {
        if (strncmp(key, "user.", 5)) continue;
        dt__user *u = dt__user_find(c, key + 5); /* strings need not be added before a resume */
        if (!u || u->kind == DT__USER_STRING) rc = dt_checkpoint_set_string(c, key + 5, dt_archive_get_string(p->a, key));
    }
    return rc;
}

/* ---- optimisers, schedulers, mixed precision */
static int dt__checkpoint_optimizers(dt_checkpoint *c, dt__port *p, int loading)
{
    dt_model      *m = c->o.model;
    dt_optimizer **opt = c->opt ? c->opt : m->opt;
    int64_t        n = c->opt ? c->nopts : m->nopts, saved = n;
    dt__visit      v = dt__port_visit(p, loading);
    char           prefix[40];
    if (v.integer(&v, "dt.optimizers", &saved)) return dt_error_code();
    if (saved != n)
        return dt_fail(DT_ERR_STATE, "%s: %.300s was saved with %" PRId64 " optimisers, the program has %" PRId64
                       "; create the same ones",
                       p->call, p->path, saved, n);
    for (int i = 0; i < n; i++) {
        snprintf(prefix, sizeof prefix, "optimizer.%d", i);
        if (dt__optimizer_visit(opt[i], &v, prefix)) return dt_error_code();
    }
    return 0;
}
static int dt__checkpoint_parts(dt_checkpoint *c, dt__port *p, int loading) /* their visitors check what they load */
{
    dt__visit v = dt__port_visit(p, loading);
    dt_amp   *amp = c->o.amp ? c->o.amp : c->o.model->amp;
    int       rc = dt__checkpoint_optimizers(c, p, loading);
    for (int i = 0; i < c->nschedulers && !rc; i++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "schedule.%d", i);
        rc = dt__scheduler_visit(c->scheduler[i], &v, prefix);
    }
    if (!rc && amp) rc = dt__amp_visit(amp, &v, "amp");
    for (const dt__watch *w = c->o.model->watch; w && !rc; w = w->next) {
        if (w->visit) rc = w->visit(w->user, &v);
        if (!rc && w->arrays && p->phase != DT__PHASE_EARLY) rc = w->arrays(w->user, &v);
    }
    return rc;
}
static int dt__checkpoint_rest(dt_checkpoint *c, dt__port *p, int loading)
{
    dt__visit v = dt__port_visit(p, loading);
    int       rc = dt__rng_visit(&c->o.model->rng, &v, "rng.model");
    if (!rc) rc = dt__rng_visit(dt_rng_default(), &v, "rng.default");
    return rc ? rc : dt__users_visit(c, &v);
}

/* ---- saving */
static void dt__checkpoint_rotate(dt_checkpoint *c, int64_t step)
{
    dt__steps s;
    int64_t   kept = 0;
    if (dt__checkpoint_list("dt_checkpoint_save", c->dir, c->name, 1, &s)) { /* the checkpoint is saved: only warn */
        dt__logf(DT_LOG_WARN, "%s", dt_error() ? dt_error() : "");
        dt_error_clear();
    }
    if (s.n && s.at[0] > step)
        dt__logf(DT_LOG_WARN, "dt_checkpoint_save: %.300s holds a later step, %" PRId64 ", which a resume would take; "
                 "remove it, or use another directory", c->dir, s.at[0]);
    for (int64_t i = 0; i < s.n && c->o.keep > 0; i++) {
        if (s.at[i] > step || kept++ < c->o.keep) continue;
        char *path = dt__checkpoint_path("dt_checkpoint_save", c->dir, c->name, s.at[i]);
        if (path && dt__file_remove(path) && errno != ENOENT)
            dt__logf(DT_LOG_WARN, "dt_checkpoint_save: %.300s cannot be removed: %s", path, strerror(errno));
        dt__free_text(path);
    }
    dt__steps_free(&s);
}
static int dt__checkpoint_fill(const char *call, dt_checkpoint *c, dt_archive *a, const char *path, int64_t epoch,
                               int64_t step)
{
    dt__port p = { NULL, NULL, NULL, DT__PHASE_ALL };
    p.call = call;
    p.path = path;
    p.a = a;
    dt__visit v = dt__port_visit(&p, 0);
    if (dt__save_model(call, a, c->o.model, !c->o.allow_nonfinite) || v.integer(&v, "dt.epoch", &epoch) ||
        v.integer(&v, "dt.step", &step) || dt__checkpoint_parts(c, &p, 0))
        return dt_error_code();
    return dt__checkpoint_rest(c, &p, 0);
}
static int dt__checkpoint_ok(const char *call, const dt_checkpoint *c, int64_t epoch, int64_t step)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!c) return dt_fail(DT_ERR_ARG, "%s: the checkpoint is NULL", call);
    if (epoch < 0 || step < 0 || step > INT64_C(999999999999999999))
        return dt_fail(DT_ERR_ARG, "%s: epoch %" PRId64 ", step %" PRId64 ": they count from 0 and must not be negative, "
                       "step at most 10^18 - 1", call, epoch, step);
    return 0;
}
static int dt__checkpoint_save(const char *call, dt_checkpoint *c, int64_t epoch, int64_t step)
{
    dt_model *m = c->o.model;
    if (!m->sealed && c->load && !m->nparams) { /* the file that was resumed is still up to date */
        dt__logf(DT_LOG_INFO, "%s: nothing was computed since the resume: nothing is saved", call);
        return 0;
    }
    if (dt_model_seal(m)) return dt_error_code(); /* binds optimisers and completes a resume */
    bool lead = dt__watch_lead(m), split = dt__watch_fetches(m);
    for (const dt__watch *w = m->watch; w; w = w->next)
        if (w->collect && w->collect(w->user, call)) lead = split = false;
    if (lead || split || m->shards) {
        char       *path = dt__checkpoint_path(call, c->dir, c->name, step);
        dt_archive *a = path ? dt_archive_new() : NULL;
        if (a && !dt__checkpoint_fill(call, c, a, path, epoch, step) && (!split || !dt__archive_fetch(call, a, m)) && lead && !m->shards)
            dt__archive_write(call, a, path);
        if (m->shards) dt__archive_write_parts(call, a, path, m);
        dt_archive_free(a);
        dt__free_text(path);
    }
    dt__watch_outcome(m, call);
    if (dt__err.code != DT_OK) return dt__err.code;
    c->seen_epoch = epoch;
    c->seen_step = step;
    c->saved = dt__seconds();
    if (lead) dt__checkpoint_rotate(c, step);
    return 0;
}
DT_API dt_status dt_checkpoint_save(dt_checkpoint *c, int64_t epoch, int64_t step)
{
    if (dt__checkpoint_ok("dt_checkpoint_save", c, epoch, step)) return dt_error_code();
    return (dt_status)dt__checkpoint_save("dt_checkpoint_save", c, epoch, step);
}
DT_API dt_status dt_checkpoint_finish(dt_checkpoint *c, int64_t epoch, int64_t step)
{
    if (dt__checkpoint_ok("dt_checkpoint_finish", c, epoch, step)) return dt_error_code();
    return (dt_status)dt__checkpoint_save("dt_checkpoint_finish", c, epoch, step);
}
DT_API int dt_checkpoint_tick(dt_checkpoint *c, int64_t epoch, int64_t step)
{
    static const char call[] = "dt_checkpoint_tick";
    if (dt__checkpoint_ok(call, c, epoch, step)) return dt_error_code();
    int mine = __atomic_load_n(&dt__signal_owner, __ATOMIC_ACQUIRE) == c, due = mine && dt__signal_save;
    int stop = mine && dt__signal_stop && !c->stop;
    if (due) dt__signal_save = 0;
    if (c->o.every_steps && step / c->o.every_steps != c->seen_step / c->o.every_steps) due = 1;
    if (c->o.every_epochs && epoch / c->o.every_epochs != c->seen_epoch / c->o.every_epochs) due = 1;
    if (c->o.every_minutes > 0 && dt__seconds() - c->saved >= c->o.every_minutes * 60) due = 1;
    if (c->o.model->watch && (c->o.signals || c->o.every_minutes > 0)) { /* all ranks save and stop at the same step */
        int64_t both[2];
        both[0] = due;
        both[1] = stop;
        if (dt__watch_agree(c->o.model, call, both, 2)) return dt_error_code();
        due = both[0] != 0;
        stop = both[1] && !c->stop;
    }
    c->seen_step = step;
    c->seen_epoch = epoch;
    if (stop) c->stop = 1;
    if (stop && !c->o.model->nparams) return 1; /* there is nothing to save yet */
    if ((due || stop) && dt__checkpoint_save(call, c, epoch, step)) return dt_error_code();
    return c->stop;
}

/* ---- resuming, in this order, so that a failure leaves everything unchanged: (1) check all that can be checked without a
   change; (2) load optimisers, schedulers and mixed precision, whose visitors check while they load, and restore all of
   them if one fails; (3) load the rest, which cannot fail any more. */
static void dt__resume_undo(dt_checkpoint *c, const dt__port *p, dt_archive *before)
{
    dt_status code = dt__err.code;
    char      message[sizeof dt__err.message];
    dt__port  back = *p;
    memcpy(message, dt__err.message, sizeof message);
    dt_error_clear();
    back.a = before;
    dt__checkpoint_parts(c, &back, 1);
    memcpy(dt__err.message, message, sizeof message);
    dt__err.code = code;
}
static int dt__resume_parts(dt_checkpoint *c, const dt__port *p)
{
    dt__port    now = *p;
    dt_archive *before = dt_archive_new(); /* references the present states; a load allocates new ones */
    now.a = before;
    if (before && !dt__checkpoint_parts(c, &now, 0)) {
        now.a = p->a;
        if (dt__checkpoint_parts(c, &now, 1)) dt__resume_undo(c, p, before);
    }
    dt_archive_free(before);
    return dt_error_code();
}
static int dt__resume_load(dt_checkpoint *c, dt__load *l)
{
    dt_model *m = c->o.model;
    dt__port  p = { NULL, NULL, NULL, DT__PHASE_CHECK };
    p.call = l->call;
    p.path = l->path;
    p.a = l->a;
    if ((m->nparams && dt__load_judge(l)) || dt__checkpoint_rest(c, &p, 1)) return dt_error_code();
    p.phase = m->sealed ? DT__PHASE_ALL : DT__PHASE_EARLY;
    if (dt__resume_parts(c, &p) || dt__checkpoint_rest(c, &p, 1)) return dt_error_code();
    int n = dt__load_now(l);
    return n < 0 ? n : 0;
}
DT_API int dt_checkpoint_resume(dt_checkpoint *c, int64_t *epoch, int64_t *step)
{
    static const char call[] = "dt_checkpoint_resume";
    char             *path = NULL;
    int64_t           e = 0, s = 0;
    if (dt__checkpoint_ok(call, c, 0, 0)) return dt_error_code();
    if (!dt__model_own(call, c->o.model)) return dt_error_code();
    dt_archive *a = dt__checkpoint_newest(call, c->dir, c->name, &path);
    if (a) {
        dt__integer_parse(dt_archive_get_string(a, "dt.epoch"), &e);
        dt__integer_parse(dt_archive_get_string(a, "dt.step"), &s);
    }
    if (dt__err.code == DT_OK &&
        dt__watch_same(c->o.model, call, "the step of the newest intact checkpoint (-1: no checkpoint)", a ? s : -1)) {
        dt_archive_free(a);
        dt__free_text(path);
        return dt_error_code();
    }
    if (!a) return dt_error_code();
    dt__load *l = dt__load_new(call, c->o.model, a, path, NULL);
    dt__free_text(path);
    if (!l) return dt_error_code();
    if (dt__resume_load(c, l)) {
        dt__load_free(l);
        return dt_error_code();
    }
    if (c->o.model->sealed) {
        dt__load_free(l);
    } else {
        l->c = c;
        c->load = l;
        if (dt__load_wait(l)) return dt_error_code();
    }
    c->seen_epoch = e;
    c->seen_step = s;
    if (epoch) *epoch = e;
    if (step) *step = s;
    return 1;
}
/* ---- hand-over between processes */
DT__INSIDE dt_checkpoint *dt__state_new(const char *call, dt_checkpoint_opts o)
{
    o.allow_nonfinite = true;
    return dt__checkpoint_make(call, "", &o);
}
DT__INSIDE int dt__state_write(const char *call, dt_checkpoint *c, int fd, int64_t epoch, int64_t step)
{
    dt_archive *a = dt_archive_new();
    int         rc = a ? dt__checkpoint_fill(call, c, a, "memory", epoch, step) : (int)DT_ERR_MEMORY;
    if (!rc) rc = dt__archive_write_fd(call, a, fd);
    dt_archive_free(a);
    return rc;
}
DT__INSIDE struct dt__parcel *dt__state_parcel(const char *call, dt_checkpoint *c, int fd, int64_t epoch, int64_t step)
{
    dt_archive  *a = dt_archive_new();
    dt__parcel  *p = NULL;
    dt__writers  w;
    memset((void *)&w, 0, sizeof w);
    w.rank = c->o.model->shards->rank;
    w.user = c->o.model->shards;
    w.source = &dt__part_source;
    w.segment = dt__part_owner;
    if (a && !dt__checkpoint_fill(call, c, a, "memory", epoch, step)) p = dt__parcel_new(call, a, &w, fd);
    if (p) p->step = step;
    dt_archive_free(a);
    return p;
}
DT__INSIDE int dt__state_read(const char *call, dt_checkpoint *c, int fd)
{
    dt__why     why;
    dt_archive *a = dt__archive_load_fd(fd, &why);
    if (!a) return dt_fail(why.code, "%s: the state of another rank: %s", call, why.text);
    dt__load *l = dt__load_new(call, c->o.model, a, "the state of another rank", NULL);
    if (!l) return dt_error_code();
    int rc = dt__resume_load(c, l);
    dt__load_free(l);
    return rc;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_NN_IMPLEMENTATION */
