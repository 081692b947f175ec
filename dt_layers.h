/* dt_layers.h - v0.2.0 - recurrent, 1-d, transposed and transformer layers; attention with a cache; averages of weights */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_layers.h"
    In every other file that uses it:           #include "dt_layers.h"

    The headers that dt_nn.h needs must be in the same directory. Link with -lm -lpthread.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_layers.h"
    #include <stdio.h>

    int main(void) // the sum of a sequence, told at its end
    {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_adamw(m, .lr = 0.01);
        double        loss = 1;
        for (int step = 0; step < 300; step++) {
            dt_tensor *x = dt_uniform(-1, 1, DT_SHAPE(32, 6, 1)), *h;
            dt_tensor *y = dt_sum(x, .dims = DT_DIM(1));
            dt_lstm(m, "lstm", x, .hidden = 16, .batch_first = true, .h_out = &h);
            dt_tensor *l = dt_mse_loss(dt_linear(m, "out", dt_select(h, 0, 0), .out = 1), y);
            dt_backward(l);
            loss = dt_item(l);
            dt_step(opt);
        }
        printf("loss %.4f\n", loss);
        dt_optimizer_free(opt);
        dt_model_free(m);
        return dt_check("sums") || !(loss < 0.1);
    }

WHAT IT DOES NOT DO

    No projections of the LSTM's output (proj_size), no packed sequences as a type of their own (.lengths gives their results), no
    max_norm of embeddings.

CONTENTS

    >>sequences      conv1d, transposed convolutions, 1-d pooling, instance norm
    >>recurrent      RNN, LSTM, GRU
    >>generation     rotary positions, attention with a cache of keys and values
    >>transformers   encoder and decoder layers
    >>averages       moving and stochastic weight averages of a model
    >>one_d          implementation from here: layers over one dimension, instance norm
    >>unrolled       the op of the recurrent layers: all time steps, both directions
    >>stacked        several recurrent layers with dropout between them
    >>cached         rotary positions, the cache
    >>encoder        transformer layers
    >>averaging      averages

ERRORS, MEMORY, THREADS, DEVICES

    As in dt_nn.h.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_LAYERS_IMPLEMENTATION)
#define DT_LAYERS_IMPLEMENTATION
#endif
#include "dt_nn.h"

#ifndef DT_LAYERS_H_INCLUDED
#define DT_LAYERS_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_layers.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>sequences
   Parameter names, initial values and defaults are those of torch.nn.Conv1d, ConvTranspose1d, ConvTranspose2d, InstanceNorm1d and
   InstanceNorm2d. Options: dt_layer_opts of dt_nn.h. */
/* x (n, c, l); .out .kernel .stride .pad .dilation .groups .no_bias .act */
DT_API dt_tensor *dt_conv1d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o DT_OPT0(dt_layer_opts));
/* x (n, c, l) and (n, c, h, w); .out .kernel .stride .pad .dilation .output_pad .groups .no_bias */
DT_API dt_tensor *dt_conv_transpose1d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_conv_transpose2d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o DT_OPT0(dt_layer_opts));
/* x (n, c, l) and (n, c, h, w); .eps .momentum .affine .track. With .track, eval mode uses the running statistics. */
DT_API dt_tensor *dt_instancenorm1d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o DT_OPT0(dt_layer_opts));
DT_API dt_tensor *dt_instancenorm2d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o DT_OPT0(dt_layer_opts));
/* x (n, c, l); .kernel .stride .pad .ceil_mode .exclude_pad */
DT_API dt_tensor *dt_maxpool1d_with(dt_tensor *x, dt_pool_opts o DT_OPT0(dt_pool_opts));
DT_API dt_tensor *dt_avgpool1d_with(dt_tensor *x, dt_pool_opts o DT_OPT0(dt_pool_opts));
DT_API dt_tensor *dt_adaptive_avgpool1d(dt_tensor *x, int64_t out);

/* ---------------------------------------------------------------------------------------------------- >>recurrent
   torch.nn.RNN, LSTM and GRU: the same parameter names (weight_ih_l0, bias_hh_l1_reverse ...), initial values and results. x is
   (t, b, in), or (b, t, in) with .batch_first; the result is (t, b, hidden), twice as wide with .bidirectional.

   .lengths gives the results of packed sequences, in any order of lengths: the outputs behind the end of a sequence are 0, its
   last state is that at its end, and the reverse direction begins there.

   Truncated backpropagation through time: the state of a chunk begins the next one, without its tape:
       dt_tensor *h = NULL, *c = NULL, *h1, *c1;
       for each chunk {
           y = dt_lstm(m, "lstm", x, .hidden = 128, .h = h, .c = c, .h_out = &h1, .c_out = &c1);
           dt_backward(loss);
           dt_free(h), dt_free(c);
           h = dt_keep(dt_detach(h1)), c = dt_keep(dt_detach(c1));
           dt_step(opt);
       } */
typedef struct dt_rnn_opts {
    int            dt__first DT_D;
    int64_t        hidden DT_D;        /* required */
    int            layers DT_D;        /* default 1 */
    bool           bidirectional DT_D;
    bool           batch_first DT_D;
    bool           no_bias DT_D;
    bool           relu DT_D;          /* dt_rnn: nonlinearity='relu'; default tanh */
    double         dropout DT_D;       /* of the results of all layers but the last, in training mode; default 0 */
    const int64_t *lengths DT_D;       /* of the b sequences, on the host: 1 to t; default: all have length t */
    dt_tensor     *h DT_D, *c DT_D;    /* the first state, (layers, b, hidden), twice as many layers with .bidirectional; default 0 */
    dt_tensor    **h_out DT_D, **c_out DT_D; /* where to put the last state; default: nowhere. c: LSTM only */
    bool           shared DT_D;        /* the name may be used again in this forward */
} dt_rnn_opts;
/* h = tanh(W x + U h + b) */
DT_API dt_tensor *dt_rnn_with(dt_model *m, const char *name, dt_tensor *x, dt_rnn_opts o DT_OPT0(dt_rnn_opts));
/* long short-term memory */
DT_API dt_tensor *dt_lstm_with(dt_model *m, const char *name, dt_tensor *x, dt_rnn_opts o DT_OPT0(dt_rnn_opts));
/* gated recurrent unit */
DT_API dt_tensor *dt_gru_with(dt_model *m, const char *name, dt_tensor *x, dt_rnn_opts o DT_OPT0(dt_rnn_opts));

/* The op of one layer. x (t, b, in). w: for each direction w_ih (g n, in), w_hh (g n, n), and without .no_bias b_ih (g n), b_hh (g n);
   g is 1, 4 (LSTM: input, forget, cell, output) or 3 (GRU: reset, update, new). One product makes the input part of all time steps;
   a step is one product and one kernel. */
typedef struct dt_op_recurrent_opts {
    int         dt__first DT_D;
    bool        bidirectional DT_D, no_bias DT_D;
    dt_tensor  *h DT_D, *c DT_D; /* (directions, b, n); default 0 */
    dt_tensor  *lengths DT_D;    /* (b), i64 */
    dt_tensor **h_out DT_D, **c_out DT_D;
} dt_op_recurrent_opts;
DT_API dt_tensor *dt_op_recurrent_with(dt_cell cell, dt_tensor *x, dt_tensor *const *w,
                                       dt_op_recurrent_opts o DT_OPT0(dt_op_recurrent_opts));

/* ---------------------------------------------------------------------------------------------------- >>generation
   Rotary positions as Llama has them: columns i and i + d/2 of each head turn by position / base^(2i/d). dt_rope_table makes cosines and
   sines for positions 0 .. n-1, (n, d): dt_keep it. dt_rope: x (b, h, t, d), whose first position is .offset. */
typedef struct dt_rope_opts {
    int     dt__first DT_D;
    int64_t offset DT_D;
    bool    interleaved DT_D; /* columns 2i and 2i + 1 turn together (GPT-J) */
} dt_rope_opts;
DT_API dt_tensor *dt_rope_table_with(int64_t n, int64_t d, double base, dt_make_opts o DT_OPT0(dt_make_opts));
DT_API dt_tensor *dt_rope_with(dt_tensor *x, dt_tensor *table, dt_rope_opts o DT_OPT0(dt_rope_opts));

/* Keys and values of the tokens so far, of one attention layer. dt_attention_cached appends k and v (b, hk, t, d) and attends with
   q (b, h, t, d): each token sees those before it and itself. It has no gradient: call it between dt_no_grad_begin and dt_no_grad_end.
       dt_kv_cache *kv = dt_kv_cache_new(1, heads, 1024, 64);
       a = dt_attention_cached(q, k, v, kv);             first the prompt, then one token in each step  */
typedef struct dt_kv_cache dt_kv_cache;
DT_API dt_kv_cache *dt_kv_cache_new_with(int64_t b, int64_t heads, int64_t capacity, int64_t d,
                                         dt_make_opts o DT_OPT0(dt_make_opts));
DT_API void      dt_kv_cache_free(dt_kv_cache *c);
DT_API int64_t   dt_kv_cache_length(const dt_kv_cache *c);
DT_API dt_status dt_kv_cache_truncate(dt_kv_cache *c, int64_t length); /* forgets the tokens from there on; 0: all */
DT_API dt_tensor *dt_attention_cached_with(dt_tensor *q, dt_tensor *k, dt_tensor *v, dt_kv_cache *c,
                                           dt_attention_opts o DT_OPT0(dt_attention_opts)); /* .scale .window .mask */

/* ---------------------------------------------------------------------------------------------------- >>transformers
   torch.nn.TransformerEncoderLayer and TransformerDecoderLayer with batch_first=True: the same parameter names
   (self_attn.in_proj_weight, linear1.weight, norm1.bias ...), defaults and results. x is (b, t, e). .mask, .lengths and .memory_mask
   are as in dt_attention: in an u8 mask 0 hides a key, where PyTorch's mask of these layers has True. */
typedef struct dt_transformer_opts {
    int        dt__first DT_D;
    int        heads DT_D;           /* required */
    int64_t    ff DT_D;              /* dim_feedforward: 2048 */
    double     dropout DT_D;         /* 0.1; DT_ZERO: none */
    bool       gelu DT_D;            /* the activation; default relu */
    bool       norm_first DT_D;
    bool       no_bias DT_D;
    double     eps DT_D;             /* layer_norm_eps: 1e-5 */
    bool       causal DT_D;          /* self-attention sees no later positions */
    dt_tensor *mask DT_D;            /* of the self-attention */
    dt_tensor *lengths DT_D;         /* (b), i64: of the sequences of x */
    dt_tensor *memory_mask DT_D, *memory_lengths DT_D; /* decoder: of the attention to the memory */
    bool       shared DT_D;
} dt_transformer_opts;
DT_API dt_tensor *dt_transformer_encoder_layer_with(dt_model *m, const char *name, dt_tensor *x,
                                                    dt_transformer_opts o DT_OPT0(dt_transformer_opts));
DT_API dt_tensor *dt_transformer_decoder_layer_with(dt_model *m, const char *name, dt_tensor *x, dt_tensor *memory,
                                                    dt_transformer_opts o DT_OPT0(dt_transformer_opts));

/* ---------------------------------------------------------------------------------------------------- >>averages
   torch.optim.swa_utils.AveragedModel: an average of the values of a model's parameters over the steps, in f32 (of the f32 master
   weights, if mixed precision has them). The first update copies; .decay = 0.999: average = decay average + (1 - decay) value; without
   .decay: the mean of all updates (stochastic weight average).

       dt_average *a = dt_average_new(m, .decay = 0.999);
       dt_step(opt); dt_average_update(a);                              in the loop
       dt_average_swap(a); evaluate; dt_average_swap(a);                with the averages; then training goes on with the own values

   Buffers (running statistics) are those of the last update; with .buffers they are averaged, too. For a stochastic weight average run
   batches through the model between dt_update_bn_begin and dt_update_bn_end: running statistics begin anew and become the means
   over these batches. In a checkpoint: dt_average_checkpoint before dt_checkpoint_resume, after the model has its parameters. Of a
   model whose parameters are divided over ranks (.shard, a pipeline, .split) there is no average: an error says so. */
typedef struct dt_average dt_average; /* averages of the parameters of a model */
typedef struct dt_average_opts {
    int    dt__first DT_D;
    double decay DT_D;   /* above 0 and below 1; default: the mean */
    bool   buffers DT_D; /* average the f32 buffers, too */
} dt_average_opts;
/* exponential moving or stochastic weight average */
DT_API dt_average *dt_average_new_with(dt_model *m, dt_average_opts o DT_OPT0(dt_average_opts));
DT_API void        dt_average_free(dt_average *a); /* before the model */
DT_API dt_status   dt_average_update(dt_average *a); /* takes the present values into the average */
DT_API int64_t     dt_average_updates(const dt_average *a); /* how many */
DT_API dt_status   dt_average_swap(dt_average *a); /* exchanges the values of the model with the averages */
DT_API dt_tensor  *dt_average_find(dt_average *a, const char *name); /* f32, owned by the average; NULL: unknown */
DT_API dt_status   dt_average_checkpoint(dt_average *a, dt_checkpoint *c); /* the averages go into the checkpoint, too */
DT_API dt_status   dt_update_bn_begin(dt_model *m); /* sets training mode */
DT_API void        dt_update_bn_end(dt_model *m);   /* sets the mode that was set before */

#ifdef DT__LIT
#define dt_conv1d(m, name, ...) dt_conv1d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_conv_transpose1d(m, name, ...) \
    dt_conv_transpose1d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_conv_transpose2d(m, name, ...) \
    dt_conv_transpose2d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_instancenorm1d(m, name, ...) \
    dt_instancenorm1d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_instancenorm2d(m, name, ...) \
    dt_instancenorm2d_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_layer_opts, __VA_ARGS__, ))
#define dt_maxpool1d(...) dt_maxpool1d_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_pool_opts, __VA_ARGS__, ))
#define dt_avgpool1d(...) dt_avgpool1d_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_pool_opts, __VA_ARGS__, ))
#define dt_rnn(m, name, ...) dt_rnn_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_rnn_opts, __VA_ARGS__, ))
#define dt_lstm(m, name, ...) dt_lstm_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_rnn_opts, __VA_ARGS__, ))
#define dt_gru(m, name, ...) dt_gru_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_rnn_opts, __VA_ARGS__, ))
#define dt_op_recurrent(cell, x, ...) \
    dt_op_recurrent_with(cell, x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_op_recurrent_opts, __VA_ARGS__, ))
#define dt_rope_table(n, d, ...) dt_rope_table_with(n, d, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_rope(x, ...) dt_rope_with(x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_rope_opts, __VA_ARGS__, ))
#define dt_kv_cache_new(b, heads, capacity, ...) \
    dt_kv_cache_new_with(b, heads, capacity, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_make_opts, __VA_ARGS__, ))
#define dt_attention_cached(q, k, v, ...) \
    dt_attention_cached_with(q, k, v, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_attention_opts, __VA_ARGS__, ))
#define dt_transformer_encoder_layer(m, name, ...) \
    dt_transformer_encoder_layer_with(m, name, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_transformer_opts, __VA_ARGS__, ))
#define dt_transformer_decoder_layer(m, name, x, ...) \
    dt_transformer_decoder_layer_with(m, name, x, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_transformer_opts, __VA_ARGS__, ))
#define dt_average_new(...) dt_average_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_average_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_conv1d dt_conv1d_with
#define dt_conv_transpose1d dt_conv_transpose1d_with
#define dt_conv_transpose2d dt_conv_transpose2d_with
#define dt_instancenorm1d dt_instancenorm1d_with
#define dt_instancenorm2d dt_instancenorm2d_with
#define dt_maxpool1d dt_maxpool1d_with
#define dt_avgpool1d dt_avgpool1d_with
#define dt_rnn dt_rnn_with
#define dt_lstm dt_lstm_with
#define dt_gru dt_gru_with
#define dt_op_recurrent dt_op_recurrent_with
#define dt_rope_table dt_rope_table_with
#define dt_rope dt_rope_with
#define dt_kv_cache_new dt_kv_cache_new_with
#define dt_attention_cached dt_attention_cached_with
#define dt_transformer_encoder_layer dt_transformer_encoder_layer_with
#define dt_transformer_decoder_layer dt_transformer_decoder_layer_with
#define dt_average_new dt_average_new_with
#endif

#ifdef __cplusplus
}
#endif
#endif /* DT_LAYERS_H_INCLUDED */

#if defined(DT_LAYERS_IMPLEMENTATION) && !defined(DT__LAYERS_IMPLEMENTED)
#define DT__LAYERS_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__CORE_IMPLEMENTED)
#error "dt_layers.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_LAYERS_IMPLEMENTATION"
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(LAYERS);
DT__NEEDS(LAYERS, NN);

DT__SLOW_BEGIN
/* ==================================================================================================== >>one_d
   Layers over one dimension are those over two, with images of one row. */
static bool dt__one_d_ok(const char *call, const char *name, const dt_tensor *x)
{
    if (!dt__ok(call, "x", x)) return false;
    if (x->ndim == 3) return true;
    dt_fail(DT_ERR_SHAPE, "%s%s%s%s: x is %s; it must be (n, c, l)", call, name ? " '" : "", name ? name : "", name ? "'" : "", dt__text(x));
    return false;
}
static dt_tensor *dt__as_row(dt_tensor *x) { return x ? dt_unsqueeze(x, 2) : NULL; }  /* (n, c, l) -> (n, c, 1, l) */
static dt_tensor *dt__of_row(dt_tensor *y) { return y ? dt_squeeze(y, 2) : NULL; }
static int dt__zero_or(int x) { return x ? x : DT_ZERO; } /* an option of the width that must not take the height's default */

/* in: channels of x. The first two dimensions of the weight are (out, in/groups), transposed (in, out/groups). */
static bool dt__conv_ok(const dt__layer *l, const dt_tensor *x, const dt_layer_opts *o, int kw, int groups)
{
    int64_t in = x->shape[1];
    if (o->out >= 1 && o->kernel >= 1 && kw >= 1 && groups >= 1 && in % groups == 0 && o->out % groups == 0) return true;
    dt_fail(DT_ERR_ARG, "%s '%s': x %s, .out %" PRId64 ", .kernel %d x %d, .groups %d: .out and .kernel must be 1 or more, and channels in "
            "and out divisible by .groups", l->kind, l->name, dt__text(x), o->out, o->kernel, kw, groups);
    return false;
}
DT_API dt_tensor *dt_conv1d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    const char *kind = "dt_conv1d";
    dt__layer  *l = dt__layer_begin(m, kind, name, x, &o, DT__L(out) | DT__L(kernel) | DT__L(stride) | DT__L(pad) | DT__L(dilation) |
                                    DT__L(groups) | DT__L(no_bias) | DT__L(act));
    int         groups = o.groups ? o.groups : 1;
    if (!l || !dt__one_d_ok(kind, l->name, x) || !dt__conv_ok(l, x, &o, o.kernel, groups)) return NULL;
    int64_t  in = x->shape[1] / groups, fan = in * o.kernel;
    dt_shape s = dt__shape2(o.out, in), row = s;
    s.ndim = 3;
    row.ndim = 4;
    row.dim[2] = 1;
    s.dim[2] = row.dim[3] = o.kernel;
    dt_tensor *w = dt__layer_param(m, l, 0, "weight", s, dt__fill_kaiming(fan), 0);
    dt_tensor *b = o.no_bias || !w ? NULL : dt__layer_param(m, l, 1, "bias", dt__shape1(o.out), dt__fill_bias(fan), 0);
    if (!w || (!b && !o.no_bias)) return NULL;
    dt_op_conv2d_opts c;
    DT__CLEAR(c);
    c.stride_w = o.stride;
    c.pad_w = dt__zero_or(o.pad);
    c.dilation_w = o.dilation;
    c.groups = groups;
    c.act = o.act;
    dt_tensor *y = dt__of_row(dt_op_conv2d_with(dt__as_row(dt__layer_input(m, x)), dt_reshape(w, row), b, c));
    return dt__layer_end(l, y, y ? 2.0 * (double)y->numel * (double)fan : 0);
}
static dt_tensor *dt__conv_transpose(dt_model *m, const char *kind, const char *name, dt_tensor *x, dt_layer_opts o, int dims)
{
    uint64_t two = dims == 2 ? DT__L(kernel_w) | DT__L(stride_w) | DT__L(pad_w) | DT__L(dilation_w) | DT__L(output_pad_w) : 0;
    dt__layer *l = dt__layer_begin(m, kind, name, x, &o, two | DT__L(out) | DT__L(kernel) | DT__L(stride) | DT__L(pad) | DT__L(dilation) |
                                   DT__L(output_pad) | DT__L(groups) | DT__L(no_bias));
    int        groups = o.groups ? o.groups : 1, kw = o.kernel_w ? o.kernel_w : o.kernel;
    if (!l) return NULL;
    if (dims == 1 && !dt__one_d_ok(kind, l->name, x)) return NULL;
    if (dims == 2 && x->ndim != 4) {
        dt_fail(DT_ERR_SHAPE, "%s '%s': x is %s; it must be (n, c, h, w)", kind, l->name, dt__text(x));
        return NULL;
    }
    if (!dt__conv_ok(l, x, &o, kw, groups)) return NULL;
    dt_shape s = dt__shape2(x->shape[1], o.out / groups), four;
    int64_t  fan = o.out / groups * (dims == 2 ? (int64_t)o.kernel * kw : kw); /* PyTorch counts the second dimension of the weight */
    s.ndim = 2 + dims;
    if (dims == 2) s.dim[2] = o.kernel;
    s.dim[1 + dims] = kw;
    four = s;
    four.ndim = 4;
    four.dim[2] = dims == 2 ? o.kernel : 1;
    four.dim[3] = kw;
    dt_tensor *w = dt__layer_param(m, l, 0, "weight", s, dt__fill_kaiming(fan), 0);
    dt_tensor *b = o.no_bias || !w ? NULL : dt__layer_param(m, l, 1, "bias", dt__shape1(o.out), dt__fill_bias(fan), 0);
    if (!w || (!b && !o.no_bias)) return NULL;
    dt_op_conv_transpose2d_opts c;
    DT__CLEAR(c);
    c.groups = groups;
    c.stride_w = o.stride_w ? o.stride_w : o.stride;
    c.pad_w = o.pad_w ? o.pad_w : dt__zero_or(o.pad);
    c.dilation_w = o.dilation_w ? o.dilation_w : o.dilation;
    c.output_pad_w = o.output_pad_w ? o.output_pad_w : dt__zero_or(o.output_pad);
    if (dims == 2) {
        c.stride = o.stride;
        c.pad = o.pad;
        c.dilation = o.dilation;
        c.output_pad = o.output_pad;
    }
    x = dt__layer_input(m, x);
    dt_tensor *y = dt_op_conv_transpose2d_with(dims == 1 ? dt__as_row(x) : x, dims == 1 ? dt_reshape(w, four) : w, b, c);
    if (dims == 1) y = dt__of_row(y);
    return dt__layer_end(l, y, x ? 2.0 * (double)x->numel * (double)(w->numel / w->shape[0]) : 0);
}
DT_API dt_tensor *dt_conv_transpose1d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__conv_transpose(m, "dt_conv_transpose1d", name, x, o, 1);
}
DT_API dt_tensor *dt_conv_transpose2d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__conv_transpose(m, "dt_conv_transpose2d", name, x, o, 2);
}

static bool dt__pool1d_ok(const char *call, dt_tensor *x, dt_pool_opts *o)
{
    if (!dt__one_d_ok(call, NULL, x)) return false;
    if (o->kernel_w || o->stride_w || o->pad_w) {
        dt_fail(DT_ERR_ARG, "%s: .kernel_w, .stride_w and .pad_w are of 2-d pooling; use .kernel, .stride and .pad", call);
        return false;
    }
    if (o->kernel < 1) {
        dt_fail(DT_ERR_ARG, "%s: .kernel is %d; it must be 1 or more", call, o->kernel);
        return false;
    }
    o->kernel_w = o->kernel;
    o->stride_w = o->stride ? o->stride : o->kernel;
    o->pad_w = dt__zero_or(o->pad);
    o->kernel = o->stride = 1;
    o->pad = 0;
    return true;
}
DT_API dt_tensor *dt_maxpool1d_with(dt_tensor *x, dt_pool_opts o)
{
    return dt__pool1d_ok("dt_maxpool1d", x, &o) ? dt__of_row(dt_maxpool2d_with(dt__as_row(x), o)) : NULL;
}
DT_API dt_tensor *dt_avgpool1d_with(dt_tensor *x, dt_pool_opts o)
{
    return dt__pool1d_ok("dt_avgpool1d", x, &o) ? dt__of_row(dt_avgpool2d_with(dt__as_row(x), o)) : NULL;
}
DT_API dt_tensor *dt_adaptive_avgpool1d(dt_tensor *x, int64_t out)
{
    return dt__one_d_ok("dt_adaptive_avgpool1d", NULL, x) ? dt__of_row(dt_adaptive_avgpool2d(dt__as_row(x), 1, out)) : NULL;
}

/* The mean over the batch of the statistics of each image, as PyTorch tracks them. x (n, c, l) */
static void dt__instance_track(dt_tensor *x, dt_tensor *mean, dt_tensor *var, double momentum)
{
    dt_reduce_opts last, batch;
    DT__CLEAR(last);
    DT__CLEAR(batch);
    last.dims = DT_DIM(2);
    batch.dims = DT_DIM(0);
    dt_no_grad_begin();
    x = dt_cast(x, DT_F32);
    dt_tensor *now[2] = { dt_mean_with(dt_mean_with(x, last), batch), dt_mean_with(dt_var_with(x, last), batch) };
    dt_tensor *running[2] = { mean, var };
    for (int i = 0; i < 2; i++)
        if (now[0] && now[1]) dt_add_to(running[i], dt_sub(now[i], running[i]), momentum);
    dt_no_grad_end();
}
/* A layer norm of each channel of each image; in eval mode with running statistics a batch norm. */
static dt_tensor *dt__instancenorm(dt_model *m, const char *kind, const char *name, dt_tensor *x, dt_layer_opts o, int dims)
{
    dt__layer *l = dt__layer_begin(m, kind, name, x, &o, DT__L(eps) | DT__L(momentum) | DT__L(affine) | DT__L(track));
    if (!l) return NULL;
    if (x->ndim != dims + 2) {
        dt_fail(DT_ERR_SHAPE, "%s '%s': x is %s; it must be %s", kind, l->name, dt__text(x), dims == 1 ? "(n, c, l)" : "(n, c, h, w)");
        return NULL;
    }
    dt_shape     c = dt__shape1(x->shape[1]), whole = dt_shape_of(x), rows = whole, side = c, scalar = c;
    dt_tensor   *p[5] = { NULL, NULL, NULL, NULL, NULL };
    dt__fillspec one = dt__fill_with(DT_INIT_CONST, 1, 0), zero = dt__fill_with(DT_INIT_ZEROS, 0, 0);
    bool         running = o.track && !m->training;
    int64_t      pixels = x->shape[1] ? x->numel / (x->shape[0] ? x->shape[0] : 1) / x->shape[1] : 0;
    scalar.ndim = 0;
    if (o.affine) {
        p[0] = dt__layer_param(m, l, 0, "weight", c, one, 0);
        p[1] = p[0] ? dt__layer_param(m, l, 1, "bias", c, zero, 0) : NULL;
    }
    if (o.track && dt__err.code == DT_OK) {
        p[2] = dt__layer_param(m, l, 2, "running_mean", c, zero, DT__BUFFER | DT__KEEP_F32);
        p[3] = p[2] ? dt__layer_param(m, l, 3, "running_var", c, one, DT__BUFFER | DT__KEEP_F32) : NULL;
        p[4] = p[3] ? dt__layer_param(m, l, 4, "num_batches_tracked", scalar, zero, DT__BUFFER | DT__COUNTER) : NULL;
    }
    if (dt__err.code != DT_OK) return NULL;
    if (!running && pixels < 2) {
        dt_fail(DT_ERR_SHAPE, "%s '%s': x %s has %" PRId64 " value(s) in a channel of an image; its statistics need at least 2", kind, l->name,
                dt__text(x), pixels);
        return NULL;
    }
    x = dt__layer_input(m, x);
    dt_tensor *y;
    if (running) {
        dt_op_batch_norm_opts b;
        DT__CLEAR(b);
        b.eval = true;
        b.eps = o.eps;
        y = dt_op_batch_norm_with(x, p[0], p[1], p[2], p[3], b);
        return dt__layer_end(l, y, x ? 4.0 * (double)x->numel : 0);
    }
    rows.ndim = 3;
    rows.dim[2] = pixels;
    x = dt_reshape(x, rows);
    dt_op_norm_opts n;
    DT__CLEAR(n);
    n.eps = o.eps;
    y = dt_op_layer_norm_with(x, NULL, NULL, n);
    side.ndim = 2;
    side.dim[1] = 1;
    if (y && p[0]) y = dt_add(dt_mul(y, dt_reshape(p[0], side)), dt_reshape(p[1], side));
    if (y && p[2] && m->training && !m->again) dt__instance_track(x, p[2], p[3], o.momentum == DT_ZERO ? 0 : o.momentum != 0 ? o.momentum : 0.1);
    return dt__layer_end(l, y ? dt_reshape(y, whole) : NULL, x ? 8.0 * (double)x->numel : 0);
}
DT_API dt_tensor *dt_instancenorm1d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__instancenorm(m, "dt_instancenorm1d", name, x, o, 1);
}
DT_API dt_tensor *dt_instancenorm2d_with(dt_model *m, const char *name, dt_tensor *x, dt_layer_opts o)
{
    return dt__instancenorm(m, "dt_instancenorm2d", name, x, o, 2);
}

/* ==================================================================================================== >>unrolled
   One node of the tape for a layer with all its time steps. Its result is one vector: y (t, b, directions n), then the last h
   (directions, b, n), then the last c of an LSTM; the parts that the caller sees are views of it. States are kept in the order of time:
   state k of the forward direction is that before step k, of the reverse direction that after step k; there are t + 1.

   inputs  x, h, c, then w_ih, w_hh, b_ih, b_hh of each direction
   saved   x, gates (directions, t, b, g n), states (directions, t + 1, b, n), those of c in f32 (LSTM) or the recurrent sums of the new
           gate (directions, t, b, n) (GRU), lengths, then w_ih and w_hh of each direction */
typedef struct dt__unroll { /* sizes; in dt__node.i */
    int64_t kind, t, b, in, n, dirs, bias, g;
} dt__unroll;
enum { DT__R_X, DT__R_GATES, DT__R_STATES, DT__R_EXTRA, DT__R_LENGTHS, DT__R_WEIGHTS };
static int64_t dt__unroll_gates(dt_cell cell) { return cell == DT_CELL_LSTM ? 4 : cell == DT_CELL_GRU ? 3 : 1; }

static int64_t dt__float_size(int dtype) { return dtype == DT_F32 ? 4 : 2; }
/* A matrix (rows, cols) in t, from element `at` on. */
static dt_view dt__matrix_of(const dt_tensor *t, int64_t at, int64_t rows, int64_t cols, int64_t step)
{
    dt_view v;
    dt__view_of(&v, t);
    v.data = (char *)v.data + at * dt__float_size(t->dtype);
    v.ndim = 2;
    v.shape[0] = rows;
    v.shape[1] = cols;
    v.stride[0] = step;
    v.stride[1] = 1;
    return v;
}
static dt_view dt__absent_view(void)
{
    dt_view v;
    memset(&v, 0, sizeof v);
    v.ndim = -1;
    return v;
}
static dt_view dt__turned(dt_view v)
{
    int64_t n = v.shape[0], s = v.stride[0];
    v.shape[0] = v.shape[1];
    v.stride[0] = v.stride[1];
    v.shape[1] = n;
    v.stride[1] = s;
    return v;
}
/* y (+)= a b, or y = a b + bias; bias: NULL, or a vector as a matrix of one row */
static int dt__product(dt_device *dev, const dt_view *y, const dt_view *a, const dt_view *b, const dt_view *bias, uint32_t acc)
{
    dt_call c;
    dt__call_begin(&c, DT_K_gemm);
    c.u.gemm.alpha = 1;
    c.nout = 1;
    c.out[0] = *y;
    c.nin = bias ? 3 : 2;
    c.in[0] = *a;
    c.in[1] = *b;
    if (bias) {
        c.in[2] = *bias;
        c.in[2].ndim = 1;
        c.in[2].shape[0] = bias->shape[1];
        c.in[2].stride[0] = 1;
    }
    c.acc = acc;
    return dt__go(dev, &c);
}
static void dt__shift(dt_view *v, int64_t elements)
{
    if (v->ndim >= 0) v->data = (char *)v->data + elements * dt__float_size(v->dtype);
}
static dt_tensor *dt__unroll_new(const dt_tensor *like, int dtype, int64_t d, int64_t t, int64_t b, int64_t n)
{
    int64_t shape[4] = { d, t, b, n };
    return dt__new("dt_op_recurrent", like->st->dev, dtype, shape, 4, DT_LAYOUT_PLAIN);
}
static int dt__unroll_first(dt_tensor *states, int64_t at, dt_tensor *h, int64_t d, const dt__unroll *u) /* state := h[d], or 0 */
{
    dt_call c;
    dt__call_begin(&c, h ? DT_K_copy : DT_K_fill);
    c.nout = 1;
    c.out[0] = dt__matrix_of(states, at, u->b, u->n, u->n);
    if (h) {
        c.nin = 1;
        c.in[0] = dt__matrix_of(h, d * h->stride[0], u->b, u->n, h->stride[1]);
        c.in[0].stride[1] = h->stride[2];
    }
    return dt__go(states->st->dev, &c);
}
/* One direction. y: its part of the result; w: w_ih, w_hh, b_ih, b_hh; at: where the direction's part of the tensors begins */
static int dt__unroll_forward(const dt__unroll *u, int64_t d, dt_tensor *const *s, dt_tensor *h, dt_tensor *c, dt_tensor *const *w,
                              dt_tensor *y)
{
    dt_device *dev = y->st->dev;
    int64_t    b = u->b, n = u->n, gn = u->g * n, step = b * n, gates_at = d * u->t * b * gn, states_at = d * (u->t + 1) * step;
    bool       gru = u->kind == DT_CELL_GRU, lstm = u->kind == DT_CELL_LSTM;
    dt_view    x = dt__matrix_of(s[DT__R_X], 0, u->t * b, u->in, u->in), gates = dt__matrix_of(s[DT__R_GATES], gates_at, u->t * b, gn, gn);
    dt_view    w_ih = dt__turned(dt__matrix_of(w[0], 0, gn, u->in, u->in)), w_hh = dt__turned(dt__matrix_of(w[1], 0, gn, n, n));
    dt_view    bias[2], none = dt__absent_view(), sums = none;
    dt_tensor *sum = NULL;
    int64_t    one[2] = { gru ? b : 1, gn };
    int        rc = 0;
    if (u->bias || gru) sum = dt__new("dt_op_recurrent", dev, s[DT__R_X]->dtype, one, 2, DT_LAYOUT_PLAIN);
    if ((u->bias || gru) && !sum) return DT_ERR_MEMORY;
    for (int i = 0; i < 2 && u->bias; i++) bias[i] = dt__matrix_of(w[2 + i], 0, 1, gn, gn);
    if (u->bias && !gru) { /* both biases at once */
        dt_call add;
        dt__call_begin(&add, DT_K_binary);
        add.u.ew.fn = DT_B_ADD;
        add.u.ew.a = add.u.ew.b = 1;
        dt__out(&add, sum);
        add.nin = 2;
        add.in[0] = bias[0];
        add.in[1] = bias[1];
        rc = dt__go(dev, &add);
        bias[0] = dt__matrix_of(sum, 0, 1, gn, gn);
    }
    if (gru) sums = dt__matrix_of(sum, 0, b, gn, gn);
    if (!rc) rc = dt__product(dev, &gates, &x, &w_ih, u->bias ? &bias[0] : NULL, 0);
    if (!rc) rc = dt__unroll_first(s[DT__R_STATES], states_at + (d ? u->t * step : 0), h, d, u);
    if (!rc && lstm) rc = dt__unroll_first(s[DT__R_EXTRA], states_at + (d ? u->t * step : 0), c, d, u);
    dt_view hs = dt__matrix_of(s[DT__R_STATES], states_at, b, n, n), cs = lstm ? dt__matrix_of(s[DT__R_EXTRA], states_at, b, n, n) : none;
    dt_view hn = gru ? dt__matrix_of(s[DT__R_EXTRA], d * u->t * step, b, n, n) : none, to = dt__matrix_of(y, d * n, b, n, u->dirs * n);
    gates.shape[0] = b;
    for (int64_t i = 0; i < u->t && !rc; i++) {
        int64_t k = d ? u->t - 1 - i : i;
        dt_view g = gates, before = hs;
        dt_call cell;
        dt__shift(&g, k * b * gn);
        dt__shift(&before, (d ? k + 1 : k) * step);
        if (gru) rc = dt__product(dev, &sums, &before, &w_hh, u->bias ? &bias[1] : NULL, 0);
        else if (i > 0 || h) rc = dt__product(dev, &g, &before, &w_hh, NULL, 1); /* a state of 0 adds nothing */
        if (rc) break;
        dt__call_begin(&cell, DT_K_rnn_cell);
        cell.u.cell.kind = (int32_t)u->kind;
        cell.u.cell.t = k;
        cell.nout = 5;
        cell.out[0] = hs;
        cell.out[1] = cs;
        cell.out[2] = to;
        cell.out[3] = g;
        cell.out[4] = hn;
        dt__shift(&cell.out[0], (d ? k : k + 1) * step);
        dt__shift(&cell.out[1], (d ? k : k + 1) * step);
        dt__shift(&cell.out[2], k * b * u->dirs * n);
        dt__shift(&cell.out[4], k * step);
        cell.nin = 4;
        cell.in[0] = g;
        cell.in[1] = sums;
        cell.in[2] = before;
        cell.in[3] = cs;
        dt__shift(&cell.in[3], (d ? k + 1 : k) * step);
        dt__in(&cell, s[DT__R_LENGTHS]);
        rc = dt__go(dev, &cell);
    }
    for (int part = 0; part < (lstm ? 2 : 1) && !rc; part++) { /* the last states */
        dt_call copy;
        dt__call_begin(&copy, DT_K_copy);
        copy.nout = copy.nin = 1;
        copy.out[0] = dt__matrix_of(y, u->t * b * u->dirs * n + (part * u->dirs + d) * step, b, n, n);
        copy.in[0] = part ? cs : hs;
        dt__shift(&copy.in[0], d ? 0 : u->t * step);
        rc = dt__go(dev, &copy);
    }
    dt__unref(sum);
    return rc;
}
/* The gradient of input k, y (+)= a b */
static int dt__unroll_put(dt__node *n, int k, const dt_view *a, const dt_view *b)
{
    uint32_t   acc = 0;
    dt_tensor *x = n->in[k], *t = dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc);
    if (!t) return DT_ERR_MEMORY;
    dt_view y = dt__matrix_of(t, 0, a->shape[0], b->shape[1], b->shape[1]);
    int     rc = dt__product(x->st->dev, &y, a, b, NULL, acc);
    return dt__grad_end(x, t) || rc;
}
static int dt__unroll_put_sum(dt__node *n, int k, const dt_view *a) /* the sum of the rows of a */
{
    uint32_t   acc = 0;
    dt_tensor *x = n->in[k], *t = dt__grad_begin(x, DT_LAYOUT_PLAIN, &acc);
    dt_call    c;
    if (!t) return DT_ERR_MEMORY;
    dt__call_begin(&c, DT_K_reduce);
    c.nout = c.nin = 1;
    c.out[0] = dt__matrix_of(t, 0, 1, a->shape[1], 0);
    c.in[0] = *a;
    c.acc = acc;
    c.u.reduce.fn = DT_R_SUM;
    c.u.reduce.n = a->shape[0];
    int rc = dt__go(x->st->dev, &c);
    return dt__grad_end(x, t) || rc;
}
/* g: the gradient of the result; first: (2, directions, b, n), receives those of the first states, h and c */
static int dt__unroll_backward(dt__node *node, const dt__unroll *u, int64_t d, dt_tensor *g, dt_tensor *const *first)
{
    dt_device *dev = g->st->dev;
    int64_t    b = u->b, n = u->n, gn = u->g * n, step = b * n, states_at = d * (u->t + 1) * step;
    bool       gru = u->kind == DT_CELL_GRU, lstm = u->kind == DT_CELL_LSTM;
    dt_tensor *const *s = node->saved;
    int        type = s[DT__R_X]->dtype, in_w = 3 + 4 * (int)d;
    bool       apart = gru || s[DT__R_LENGTHS]; /* a part of dh does not go through the gates */
    dt_tensor *dg = dt__unroll_new(g, type, 1, u->t, b, gn), *dr = dg && gru ? dt__unroll_new(g, type, 1, u->t, b, gn) : NULL;
    dt_tensor *dh = dg ? dt__unroll_new(g, type, 1, 2, b, n) : NULL, *dc = dh && lstm ? dt__unroll_new(g, DT_F32, 1, 1, b, n) : NULL;
    dt_tensor *turned = dh ? dt__unroll_new(g, type, 1, 1, n, gn) : NULL; /* w_hh, so that its rows are read in order */
    int        rc = turned && (dr || !gru) && (dc || !lstm) ? 0 : DT_ERR_MEMORY;
    if (!rc) {
        dt_call copy;
        dt__call_begin(&copy, DT_K_copy);
        copy.nout = copy.nin = 1;
        copy.out[0] = dt__matrix_of(turned, 0, n, gn, gn);
        copy.in[0] = dt__turned(dt__matrix_of(s[DT__R_WEIGHTS + 2 * d + 1], 0, gn, n, n));
        rc = dt__go(dev, &copy);
        if (!rc && lstm) {
            copy.out[0] = dt__matrix_of(dc, 0, b, n, n);
            copy.in[0] = dt__matrix_of(g, u->t * b * u->dirs * n + (u->dirs + d) * step, b, n, n);
            rc = dt__go(dev, &copy);
        }
    }
    dt_view none = dt__absent_view(), w_hh = none, all = none, of_h = none, last = none;
    if (!rc) {
        w_hh = dt__turned(dt__matrix_of(turned, 0, n, gn, gn));
        all = dt__matrix_of(dg, 0, u->t * b, gn, gn);
        of_h = gru ? dt__matrix_of(dr, 0, u->t * b, gn, gn) : all;
        last = dt__matrix_of(g, u->t * b * u->dirs * n + d * step, b, n, n); /* the gradient of the last h */
    }
    for (int64_t i = u->t - 1; i >= 0 && !rc; i--) { /* the steps, from the last to the first */
        int64_t k = d ? u->t - 1 - i : i;
        dt_call cell;
        dt__call_begin(&cell, DT_K_rnn_cell_bwd);
        cell.u.cell.kind = (int32_t)u->kind;
        cell.u.cell.t = k;
        dt_view next = dt__matrix_of(dh, i % 2 * step, b, n, n), row = of_h;
        cell.nout = 4;
        cell.out[0] = all;
        cell.out[0].shape[0] = b;
        dt__shift(&cell.out[0], k * b * gn);
        cell.out[1] = gru ? of_h : none;
        cell.out[1].shape[0] = b;
        dt__shift(&cell.out[1], k * b * gn);
        cell.out[2] = apart ? next : none;
        cell.out[3] = lstm ? dt__matrix_of(dc, 0, b, n, n) : none;
        cell.nin = 6;
        cell.in[0] = dt__matrix_of(g, k * b * u->dirs * n + d * n, b, n, u->dirs * n);
        cell.in[1] = last;
        cell.in[2] = cell.out[3];
        cell.in[3] = dt__matrix_of(s[DT__R_GATES], (d * u->t + k) * b * gn, b, gn, gn);
        cell.in[4] = lstm ? dt__matrix_of(s[DT__R_EXTRA], states_at + (d ? k : k + 1) * step, b, n, n)
                     : gru ? dt__matrix_of(s[DT__R_EXTRA], (d * u->t + k) * step, b, n, n) : none;
        cell.in[5] = lstm ? dt__matrix_of(s[DT__R_EXTRA], states_at + (d ? k + 1 : k) * step, b, n, n)
                     : gru ? dt__matrix_of(s[DT__R_STATES], states_at + (d ? k + 1 : k) * step, b, n, n) : none;
        dt__in(&cell, s[DT__R_LENGTHS]);
        rc = dt__go(dev, &cell);
        row.shape[0] = b;
        dt__shift(&row, k * b * gn);
        if (!rc && (i > 0 || first[0])) rc = dt__product(dev, &next, &row, &w_hh, NULL, apart);
        last = next;
    }
    for (int part = 0; part < 2 && !rc; part++) {
        if (!first[part]) continue;
        dt_call copy;
        dt__call_begin(&copy, DT_K_copy);
        copy.nout = copy.nin = 1;
        copy.out[0] = dt__matrix_of(first[part], d * step, b, n, n);
        copy.in[0] = part ? dt__matrix_of(dc, 0, b, n, n) : last;
        rc = dt__go(dev, &copy);
    }
    if (!rc) {
        dt_view across = dt__turned(all), across_h = dt__turned(of_h), x = dt__matrix_of(s[DT__R_X], 0, u->t * b, u->in, u->in);
        dt_view before = dt__matrix_of(s[DT__R_STATES], states_at + (d ? step : 0), u->t * b, n, n);
        dt_view w_ih = dt__matrix_of(s[DT__R_WEIGHTS + 2 * d], 0, gn, u->in, u->in);
        if (dt__needs_grad(node, 0)) rc = dt__unroll_put(node, 0, &all, &w_ih);
        if (!rc && dt__needs_grad(node, in_w)) rc = dt__unroll_put(node, in_w, &across, &x);
        if (!rc && dt__needs_grad(node, in_w + 1)) rc = dt__unroll_put(node, in_w + 1, &across_h, &before);
        if (!rc && dt__needs_grad(node, in_w + 2)) rc = dt__unroll_put_sum(node, in_w + 2, &all);
        if (!rc && dt__needs_grad(node, in_w + 3)) rc = dt__unroll_put_sum(node, in_w + 3, &of_h);
    }
    dt__unref(dg);
    dt__unref(dr);
    dt__unref(dh);
    dt__unref(dc);
    dt__unref(turned);
    return rc;
}
static int dt__unroll_bwd(dt__node *node, dt_tensor *grad)
{
    dt__unroll u;
    memcpy(&u, node->i, sizeof u);
    dt_tensor *g = dt__dense("backward", grad), *first[2] = { NULL, NULL };
    int64_t    shape[3] = { u.dirs, u.b, u.n };
    int        rc = g ? 0 : DT_ERR_MEMORY;
    for (int i = 0; i < 2 && !rc; i++) {
        if (!dt__needs_grad(node, 1 + i)) continue;
        first[i] = dt__new("backward", g->st->dev, i ? DT_F32 : node->saved[DT__R_X]->dtype, shape, 3, DT_LAYOUT_PLAIN);
        if (!first[i]) rc = DT_ERR_MEMORY;
    }
    for (int64_t d = 0; d < u.dirs && !rc; d++) rc = dt__unroll_backward(node, &u, d, g, first);
    for (int i = 0; i < 2; i++) {
        if (first[i] && !rc) rc = dt__grad_put(node->in[1 + i], first[i]);
        dt__unref(first[i]);
    }
    dt__unref(g);
    return rc;
}
static bool dt__unroll_weight_ok(const char *call, const char *what, const dt_tensor *x, const dt_tensor *t, int64_t rows, int64_t cols)
{
    if (!dt__ok(call, what, t) || !dt__same_device(call, x, t)) return false;
    if (t->dtype == x->dtype && (cols ? t->ndim == 2 && t->shape[1] == cols : t->ndim == 1) && t->shape[0] == rows) return true;
    char want[64];
    snprintf(want, sizeof want, cols ? "(%" PRId64 ", %" PRId64 ")" : "(%" PRId64 ")", rows, cols);
    dt_fail(t->dtype == x->dtype ? DT_ERR_SHAPE : DT_ERR_DTYPE, "%s: %s is %s, %s; with x %s it must be %s, %s", call, what, dt__text(t),
            dt_dtype_name((dt_dtype)t->dtype), dt__text(x), want, dt_dtype_name((dt_dtype)x->dtype));
    return false;
}
static bool dt__unroll_state_ok(const char *call, const char *what, const dt_tensor *x, const dt_tensor *t, const dt__unroll *u)
{
    if (!t) return true;
    if (!dt__ok(call, what, t) || !dt__same_device(call, x, t) || !dt__want_float(call, t)) return false;
    if (t->ndim == 3 && t->shape[0] == u->dirs && t->shape[1] == u->b && t->shape[2] == u->n) return true;
    dt_fail(DT_ERR_SHAPE, "%s: %s is %s; it must be (%" PRId64 ", %" PRId64 ", %" PRId64 "): directions, sequences, units", call, what,
            dt__text(t), u->dirs, u->b, u->n);
    return false;
}
static dt_tensor *dt__unroll_part(dt_tensor *y, int64_t at, int64_t a, int64_t b, int64_t c)
{
    dt_shape s = dt__shape2(a, b);
    s.ndim = 3;
    s.dim[2] = c;
    dt_tensor *part = y ? dt_narrow(y, 0, at, a * b * c) : NULL;
    return part ? dt_reshape(part, s) : NULL;
}
static dt_tensor *dt__unroll_run(const dt__unroll *u, dt_tensor **in, int nin, dt_tensor *lengths)
{
    const char *call = "dt_op_recurrent";
    dt_tensor  *x = in[0], *s[DT__R_WEIGHTS + 4], *w[8];
    int64_t     len = u->dirs * u->b * u->n * (u->t + (u->kind == DT_CELL_LSTM ? 2 : 1)), gn = u->g * u->n;
    bool        ok = true;
    memset(s, 0, sizeof s);
    memset(w, 0, sizeof w);
    for (int i = 0; i < nin - 3; i++) {
        w[i] = in[3 + i] && ok ? dt__dense(call, in[3 + i]) : NULL;
        if (in[3 + i] && !w[i]) ok = false;
    }
    if (ok) s[DT__R_X] = dt__dense(call, x);
    if (s[DT__R_X]) s[DT__R_GATES] = dt__unroll_new(x, x->dtype, u->dirs, u->t, u->b, gn);
    if (s[DT__R_GATES]) s[DT__R_STATES] = dt__unroll_new(x, x->dtype, u->dirs, u->t + 1, u->b, u->n);
    if (u->kind == DT_CELL_LSTM && s[DT__R_STATES]) s[DT__R_EXTRA] = dt__unroll_new(x, DT_F32, u->dirs, u->t + 1, u->b, u->n);
    if (u->kind == DT_CELL_GRU && s[DT__R_STATES]) s[DT__R_EXTRA] = dt__unroll_new(x, x->dtype, u->dirs, u->t, u->b, u->n);
    s[DT__R_LENGTHS] = dt__ref(lengths);
    ok = s[DT__R_STATES] && (s[DT__R_EXTRA] || u->kind < DT_CELL_LSTM);
    dt_tensor *y = ok ? dt__new(call, x->st->dev, x->dtype, &len, 1, DT_LAYOUT_PLAIN) : NULL;
    int        rc = y ? 0 : DT_ERR_MEMORY;
    for (int64_t d = 0; d < u->dirs && !rc; d++) rc = dt__unroll_forward(u, d, s, in[1], in[2], w + 4 * d, y);
    dt__node *n = rc ? NULL : dt__record("recurrent", y, dt__unroll_bwd, nin, in);
    if (n) {
        for (int i = 0; i < DT__R_WEIGHTS; i++) dt__save(n, s[i]);
        for (int64_t d = 0; d < u->dirs; d++) {
            dt__save(n, w[4 * d]);
            dt__save(n, w[4 * d + 1]);
        }
        memcpy(n->i, u, sizeof *u);
    }
    for (int i = 0; i < DT__R_WEIGHTS; i++) dt__unref(s[i]);
    for (int i = 0; i < 8; i++) dt__unref(w[i]);
    return y ? dt__finish(y, rc ? rc : (int)dt__err.code) : NULL;
}
DT_API dt_tensor *dt_op_recurrent_with(dt_cell cell, dt_tensor *x, dt_tensor *const *w, dt_op_recurrent_opts o)
{
    const char *call = "dt_op_recurrent";
    static const char *const names[4] = { "w_ih", "w_hh", "b_ih", "b_hh" };
    dt__unroll u;
    dt_tensor *in[11];
    memset(in, 0, sizeof in);
    x = dt__in_half(x);
    if (!dt__ok(call, "x", x) || !dt__want_float(call, x)) return NULL;
    if ((unsigned)cell > DT_CELL_GRU || !w || x->ndim != 3 || x->numel == 0) {
        dt_fail(DT_ERR_ARG, "%s: cell %d, x %s, w %s: needs a dt_cell, x (t, b, in) with at least one element, and weights", call, (int)cell,
                dt__text(x), w ? "given" : "NULL");
        return NULL;
    }
    int per = o.no_bias ? 2 : 4;
    u.kind = (int64_t)cell;
    u.g = dt__unroll_gates(cell);
    u.t = x->shape[0];
    u.b = x->shape[1];
    u.in = x->shape[2];
    u.dirs = o.bidirectional ? 2 : 1;
    u.bias = !o.no_bias;
    in[0] = x;
    for (int64_t d = 0; d < u.dirs; d++)
        for (int i = 0; i < per; i++) in[3 + 4 * d + i] = dt__in_half(w[d * per + i]);
    if (!dt__ok(call, "w_hh", in[4])) return NULL;
    u.n = in[4]->ndim == 2 ? in[4]->shape[1] : 0;
    for (int64_t d = 0; d < u.dirs; d++)
        for (int i = 0; i < per; i++)
            if (!dt__unroll_weight_ok(call, names[i], x, in[3 + 4 * d + i], u.g * u.n, i == 0 ? u.in : i == 1 ? u.n : 0)) return NULL;
    if (u.n < 1 || (o.c && cell != DT_CELL_LSTM) || (o.c_out && cell != DT_CELL_LSTM)) {
        dt_fail(DT_ERR_ARG, "%s: w_hh is %s%s", call, dt__text(in[4]), u.n < 1 ? "; it must have at least one column"
                : "; .c and .c_out are of an LSTM, this is another cell");
        return NULL;
    }
    if (!dt__unroll_state_ok(call, ".h", x, o.h, &u) || !dt__unroll_state_ok(call, ".c", x, o.c, &u)) return NULL;
    if (o.lengths) {
        if (!dt__ok(call, ".lengths", o.lengths) || !dt__same_device(call, x, o.lengths)) return NULL;
        if (o.lengths->ndim != 1 || o.lengths->shape[0] != u.b || o.lengths->dtype != DT_I64) {
            dt_fail(DT_ERR_SHAPE, "%s: .lengths is %s; it must be i64 with one element for each of the %" PRId64 " sequences", call,
                    dt__text(o.lengths), u.b);
            return NULL;
        }
    }
    in[1] = o.h ? dt_cast(o.h, (dt_dtype)x->dtype) : NULL;
    in[2] = o.c ? dt_cast(o.c, DT_F32) : NULL;
    if (dt__err.code != DT_OK) return NULL;
    dt_tensor *all = dt__unroll_run(&u, in, 3 + 4 * (int)u.dirs, o.lengths), *y = dt__unroll_part(all, 0, u.t, u.b, u.dirs * u.n);
    int64_t    at = u.t * u.b * u.dirs * u.n;
    if (y && o.h_out) *o.h_out = dt__unroll_part(all, at, u.dirs, u.b, u.n);
    if (y && o.c_out) *o.c_out = dt__unroll_part(all, at + u.dirs * u.b * u.n, u.dirs, u.b, u.n);
    return dt__err.code == DT_OK ? y : NULL;
}

/* ==================================================================================================== >>stacked */
static bool dt__rnn_ok(const dt__layer *l, const dt_tensor *x, const dt_rnn_opts *o, dt_cell cell)
{
    int b = o->batch_first ? 0 : 1;
    if (x->ndim != 3 || x->numel == 0 || o->hidden < 1 || o->layers < 0 || o->layers > 1000 || !(o->dropout >= 0 && o->dropout <= 1) ||
        (o->relu && cell > DT_CELL_RELU) || ((o->c || o->c_out) && cell != DT_CELL_LSTM)) {
        dt_fail(DT_ERR_ARG, "%s '%s': x %s, .hidden %" PRId64 ", .layers %d, .dropout %g%s%s: needs x %s with at least one element, .hidden "
                "and .layers 1 or more, .dropout 0 to 1; .relu is of dt_rnn, .c and .c_out of dt_lstm", l->kind, l->name, dt__text(x),
                o->hidden, o->layers, o->dropout, o->relu ? ", .relu" : "", o->c || o->c_out ? ", .c or .c_out" : "",
                o->batch_first ? "(b, t, in)" : "(t, b, in)");
        return false;
    }
    for (int64_t i = 0; o->lengths && i < x->shape[b]; i++)
        if (o->lengths[i] < 1 || o->lengths[i] > x->shape[1 - b]) {
            dt_fail(DT_ERR_ARG, "%s '%s': .lengths[%" PRId64 "] is %" PRId64 "; it must be 1 to %" PRId64 ", the steps of x %s", l->kind,
                    l->name, i, o->lengths[i], x->shape[1 - b], dt__text(x));
            return false;
        }
    return true;
}
static bool dt__rnn_state_ok(const dt__layer *l, const char *what, const dt_tensor *t, int64_t layers, int64_t b, int64_t n)
{
    if (!t) return true;
    if (!dt__ok(l->kind, what, t)) return false;
    if (t->ndim == 3 && t->shape[0] == layers && t->shape[1] == b && t->shape[2] == n) return true;
    dt_fail(DT_ERR_SHAPE, "%s '%s': %s is %s; it must be (%" PRId64 ", %" PRId64 ", %" PRId64 "): layers times directions, sequences, .hidden",
            l->kind, l->name, what, dt__text(t), layers, b, n);
    return false;
}
static dt_tensor *dt__rnn(dt_model *m, const char *kind, const char *name, dt_tensor *x, dt_rnn_opts o, dt_cell cell)
{
    static const char *const names[4] = { "weight_ih", "weight_hh", "bias_ih", "bias_hh" };
    dt_layer_opts none;
    DT__CLEAR(none);
    none.shared = o.shared;
    dt__layer *l = dt__layer_begin(m, kind, name, x, &none, 0);
    if (!l || !dt__rnn_ok(l, x, &o, cell)) return NULL;
    int     layers = o.layers ? o.layers : 1, dirs = o.bidirectional ? 2 : 1, per = o.no_bias ? 2 : 4;
    int64_t n = o.hidden, gn = n * dt__unroll_gates(cell), in = x->shape[2], b = x->shape[o.batch_first ? 0 : 1];
    double  bound = 1 / sqrt((double)n), flops = 0;
    if (!dt__rnn_state_ok(l, ".h", o.h, (int64_t)layers * dirs, b, n) || !dt__rnn_state_ok(l, ".c", o.c, (int64_t)layers * dirs, b, n) ||
        dt__layer_room(l, layers * dirs * 4))
        return NULL;
    dt_op_recurrent_opts r;
    DT__CLEAR(r);
    r.bidirectional = o.bidirectional;
    r.no_bias = o.no_bias;
    if (o.lengths) {
        dt_make_opts mo;
        DT__CLEAR(mo);
        mo.dtype = DT_I64;
        mo.device = x->st->dev;
        r.lengths = dt_from_with(o.lengths, dt__shape1(b), mo);
        if (!r.lengths) return NULL;
    }
    x = dt__layer_input(m, x);
    if (o.batch_first) x = dt_transpose(x, 0, 1);
    dt_tensor **last = (dt_tensor **)dt__alloc_zero((size_t)layers * 2 * sizeof *last);
    if (!last) {
        dt_fail(DT_ERR_MEMORY, "%s '%s': out of memory", kind, l->name);
        return NULL;
    }
    for (int k = 0; k < layers && x; k++) {
        dt_tensor *w[8];
        for (int d = 0; d < dirs && x; d++)
            for (int i = 0; i < per && x; i++) {
                char     suffix[40];
                int64_t  cols = i == 0 ? (k ? n * dirs : in) : n;
                dt_shape s = i < 2 ? dt__shape2(gn, cols) : dt__shape1(gn);
                snprintf(suffix, sizeof suffix, "%s_l%d%s", names[i], k, d ? "_reverse" : "");
                w[d * per + i] = dt__layer_param(m, l, (k * dirs + d) * 4 + i, suffix, s, dt__fill_with(DT_INIT_UNIFORM, -bound, bound), 0);
                if (!w[d * per + i]) x = NULL;
            }
        if (!x) break;
        r.h = o.h ? dt_narrow(o.h, 0, (int64_t)k * dirs, dirs) : NULL;
        r.c = o.c ? dt_narrow(o.c, 0, (int64_t)k * dirs, dirs) : NULL;
        r.h_out = o.h_out ? &last[2 * k] : NULL;
        r.c_out = o.c_out ? &last[2 * k + 1] : NULL;
        flops += 2.0 * (double)(x->numel / x->shape[2]) * (double)gn * dirs * (double)(x->shape[2] + n);
        x = dt_op_recurrent_with(cell, x, w, r);
        if (x && k + 1 < layers && o.dropout > 0) x = dt_dropout(m, x, o.dropout);
    }
    for (int part = 0; part < 2 && x; part++) {
        dt_tensor **to = part ? o.c_out : o.h_out;
        if (!to) continue;
        if (layers == 1) *to = last[part];
        else {
            dt_tensor **each = (dt_tensor **)dt_mem_alloc((size_t)layers * sizeof *each);
            for (int k = 0; k < layers && each; k++) each[k] = last[2 * k + part];
            *to = each ? dt_cat(each, layers, 0) : NULL;
            dt_mem_free(each, (size_t)layers * sizeof *each);
        }
        if (!*to) x = NULL;
    }
    dt_mem_free(last, (size_t)layers * 2 * sizeof *last);
    if (x && o.batch_first) x = dt_transpose(x, 0, 1);
    return dt__layer_end(l, dt__err.code == DT_OK ? x : NULL, flops);
}
DT_API dt_tensor *dt_rnn_with(dt_model *m, const char *name, dt_tensor *x, dt_rnn_opts o)
{
    return dt__rnn(m, "dt_rnn", name, x, o, o.relu ? DT_CELL_RELU : DT_CELL_TANH);
}
DT_API dt_tensor *dt_lstm_with(dt_model *m, const char *name, dt_tensor *x, dt_rnn_opts o)
{
    return dt__rnn(m, "dt_lstm", name, x, o, DT_CELL_LSTM);
}
DT_API dt_tensor *dt_gru_with(dt_model *m, const char *name, dt_tensor *x, dt_rnn_opts o)
{
    return dt__rnn(m, "dt_gru", name, x, o, DT_CELL_GRU);
}

/* ==================================================================================================== >>cached */
DT_API dt_tensor *dt_rope_table_with(int64_t n, int64_t d, double base, dt_make_opts o)
{
    const char *call = "dt_rope_table";
    if (dt__err.code != DT_OK) return NULL;
    if (n < 1 || d < 2 || d % 2 || !(base > 0) || !isfinite(base) || n > INT32_MAX || d > 65536) {
        dt_fail(DT_ERR_ARG, "%s: %" PRId64 " positions, d %" PRId64 ", base %g: positions and base must be above 0, d even", call, n, d, base);
        return NULL;
    }
    size_t nbytes = (size_t)n * (size_t)d * sizeof(float);
    float *t = (float *)dt_mem_alloc(nbytes);
    if (!t) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " positions", call, n);
        return NULL;
    }
    for (int64_t i = 0; i < d / 2; i++) {
        float turn = 1.0f / (float)pow(base, (double)(2 * i) / (double)d);
        for (int64_t p = 0; p < n; p++) { /* the angle is rounded to f32, as in PyTorch programs */
            float a = (float)p * turn;
            t[p * d + i] = (float)cos((double)a);
            t[p * d + d / 2 + i] = (float)sin((double)a);
        }
    }
    dt_dtype     type = o.dtype;
    dt_tensor   *y;
    o.dtype = DT_F32;
    y = dt_from_with(t, dt__shape2(n, d), o);
    dt_mem_free(t, nbytes);
    return y ? dt_cast(y, type) : NULL;
}
DT_API dt_tensor *dt_rope_with(dt_tensor *x, dt_tensor *table, dt_rope_opts o)
{
    const char *call = "dt_rope";
    if (!dt__ok(call, "x", x) || !dt__ok(call, "table", table) || !dt__want_float(call, x) || !dt__same_device(call, x, table)) return NULL;
    int64_t d = x->ndim == 4 ? x->shape[3] : 0;
    if (x->ndim != 4 || d < 2 || table->ndim != 2 || table->shape[1] != d || o.offset < 0 || o.offset + x->shape[2] > table->shape[0]) {
        dt_fail(DT_ERR_SHAPE, "%s: x %s, table %s, .offset %" PRId64 ": needs x (b, h, t, d), a table (n, d) of dt_rope_table, and offset + t "
                "at most n", call, dt__text(x), dt__text(table), o.offset);
        return NULL;
    }
    dt_tensor *rows = dt_cast(dt_narrow(table, 0, o.offset, x->shape[2]), (dt_dtype)x->dtype);
    dt_tensor *cosine = dt_narrow(rows, 1, 0, d / 2), *sine = dt_narrow(rows, 1, d / 2, d / 2), *a, *b, *y[2];
    if (o.interleaved) {
        dt_shape pairs = dt_shape_of(x);
        pairs.ndim = 5;
        pairs.dim[3] = d / 2;
        pairs.dim[4] = 2;
        dt_tensor *p = dt_reshape(x, pairs);
        a = dt_select(p, 4, 0);
        b = dt_select(p, 4, 1);
    } else {
        a = dt_narrow(x, 3, 0, d / 2);
        b = dt_narrow(x, 3, d / 2, d / 2);
    }
    y[0] = dt_sub(dt_mul(a, cosine), dt_mul(b, sine));
    y[1] = dt_add(dt_mul(b, cosine), dt_mul(a, sine));
    if (dt__err.code != DT_OK) return NULL;
    return o.interleaved ? dt_reshape(dt_stack(y, 2, 4), dt_shape_of(x)) : dt_cat(y, 2, 3);
}

struct dt_kv_cache {
    dt_tensor *kv[2]; /* (b, heads, capacity, d) */
    int64_t    length, capacity;
};
DT_API dt_kv_cache *dt_kv_cache_new_with(int64_t b, int64_t heads, int64_t capacity, int64_t d, dt_make_opts o)
{
    const char *call = "dt_kv_cache_new";
    if (dt__err.code != DT_OK) return NULL;
    if (b < 1 || heads < 1 || capacity < 1 || d < 1) {
        dt_fail(DT_ERR_ARG, "%s: %" PRId64 " sequences, %" PRId64 " heads, capacity %" PRId64 ", d %" PRId64 ": all must be 1 or more", call, b,
                heads, capacity, d);
        return NULL;
    }
    dt_kv_cache *c = (dt_kv_cache *)dt__alloc_zero(sizeof *c);
    dt_shape     s = dt__shape2(b, heads);
    s.ndim = 4;
    s.dim[2] = capacity;
    s.dim[3] = d;
    for (int i = 0; i < 2 && c; i++) c->kv[i] = dt_keep(dt_zeros_with(s, o));
    if (c && c->kv[0] && c->kv[1]) {
        c->capacity = capacity;
        return c;
    }
    dt_kv_cache_free(c);
    dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    return NULL;
}
DT_API void dt_kv_cache_free(dt_kv_cache *c)
{
    if (!c) return;
    for (int i = 0; i < 2; i++) dt_free(c->kv[i]);
    dt_mem_free(c, sizeof *c);
}
DT_API int64_t   dt_kv_cache_length(const dt_kv_cache *c) { return c ? c->length : 0; }
DT_API dt_status dt_kv_cache_truncate(dt_kv_cache *c, int64_t length)
{
    if (dt__err.code != DT_OK) return (dt_status)dt__err.code;
    if (!c || length < 0 || length > c->length)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_kv_cache_truncate: to length %" PRId64 "; %s%" PRId64, length,
                                  c ? "the cache has length " : "the cache is NULL, length ", c ? c->length : (int64_t)0);
    c->length = length;
    return DT_OK;
}
DT_API dt_tensor *dt_attention_cached_with(dt_tensor *q, dt_tensor *k, dt_tensor *v, dt_kv_cache *c, dt_attention_opts o)
{
    const char *call = "dt_attention_cached";
    dt_tensor  *add[2] = { k, v }, *all[2] = { NULL, NULL };
    if (!dt__ok(call, "q", q) || !dt__ok(call, "k", k) || !dt__ok(call, "v", v)) return NULL;
    if (!c || o.lengths || o.offset) {
        dt_fail(DT_ERR_ARG, "%s: %s", call, !c ? "the cache is NULL" : "it takes .scale, .window and .mask; lengths and offset are the cache's");
        return NULL;
    }
    if (dt_is_grad_enabled() && (q->requires_grad || k->requires_grad || v->requires_grad)) {
        dt_fail(DT_ERR_GRAD, "%s: it has no gradient; call it between dt_no_grad_begin and dt_no_grad_end", call);
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        const dt_tensor *a = add[i], *have = c->kv[i];
        if (a->ndim != 4 || a->shape[0] != have->shape[0] || a->shape[1] != have->shape[1] || a->shape[3] != have->shape[3] ||
            a->shape[2] != k->shape[2] || q->ndim != 4 || q->shape[2] != k->shape[2]) {
            dt_fail(DT_ERR_SHAPE, "%s: %s is %s with q %s; this cache is for %" PRId64 " sequences, %" PRId64 " heads of %" PRId64
                    ", and q has as many tokens as k and v", call, i ? "v" : "k", dt__text(a), dt__text(q), have->shape[0], have->shape[1],
                    have->shape[3]);
            return NULL;
        }
    }
    if (c->length + k->shape[2] > c->capacity) {
        dt_fail(DT_ERR_ARG, "%s: %" PRId64 " tokens after %" PRId64 " exceed the capacity of the cache, %" PRId64 "; make a larger one, or "
                "dt_kv_cache_truncate it", call, k->shape[2], c->length, c->capacity);
        return NULL;
    }
    dt_no_grad_begin();
    for (int i = 0; i < 2; i++) {
        dt_tensor *to = dt_narrow(c->kv[i], 2, c->length, k->shape[2]);
        if (to && dt_copy(to, add[i]) == DT_OK) all[i] = dt_narrow(c->kv[i], 2, 0, c->length + k->shape[2]);
    }
    dt_no_grad_end();
    o.causal = true;
    o.offset = c->length;
    if (q->shape[2] == 1 && o.window == 0) o.causal = false, o.offset = 0; /* one token sees all */
    dt_tensor *y = all[0] && all[1] ? dt_attention_with(q, all[0], all[1], o) : NULL;
    if (y) c->length += k->shape[2];
    return y;
}

/* ==================================================================================================== >>encoder */
static dt_tensor *dt__sublayer_norm(dt_model *m, const char *name, dt_tensor *x, const dt_transformer_opts *o)
{
    dt_layer_opts n;
    DT__CLEAR(n);
    n.eps = o->eps;
    n.no_bias = o->no_bias;
    n.shared = o->shared;
    return x ? dt_layernorm_with(m, name, x, n) : NULL;
}
/* Attention of x to kv (NULL: to itself), with its dropout */
static dt_tensor *dt__sublayer_attention(dt_model *m, const char *name, dt_tensor *x, dt_tensor *kv, const dt_transformer_opts *o)
{
    dt_layer_opts a;
    DT__CLEAR(a);
    a.heads = o->heads;
    a.dropout = o->dropout;
    a.no_bias = o->no_bias;
    a.shared = o->shared;
    a.causal = o->causal && !kv;
    a.kv = kv;
    a.mask = kv ? o->memory_mask : o->mask;
    a.lengths = kv ? o->memory_lengths : o->lengths;
    x = x ? dt_multihead_attention_with(m, name, x, a) : NULL;
    return x && o->dropout > 0 ? dt_dropout(m, x, o->dropout) : x;
}
static dt_tensor *dt__sublayer_ff(dt_model *m, dt_tensor *x, const dt_transformer_opts *o)
{
    dt_layer_opts f;
    int64_t       e = x ? dt_size(x, -1) : 0;
    DT__CLEAR(f);
    f.no_bias = o->no_bias;
    f.shared = o->shared;
    f.out = o->ff;
    f.act = o->gelu ? DT_ACT_NONE : DT_ACT_RELU;
    x = x ? dt_linear_with(m, "linear1", x, f) : NULL;
    if (x && o->gelu) x = dt_gelu(x);
    if (x && o->dropout > 0) x = dt_dropout(m, x, o->dropout);
    f.out = e;
    f.act = DT_ACT_NONE;
    x = x ? dt_linear_with(m, "linear2", x, f) : NULL;
    return x && o->dropout > 0 ? dt_dropout(m, x, o->dropout) : x;
}
/* x + f(norm(x)), or norm(x + f(x)). kind: 0 self-attention, 1 attention to the memory, 2 feed-forward */
static dt_tensor *dt__sublayer(dt_model *m, const char *norm, dt_tensor *x, dt_tensor *memory, int kind, const dt_transformer_opts *o)
{
    dt_tensor *y = o->norm_first ? dt__sublayer_norm(m, norm, x, o) : x;
    if (kind == 2) y = dt__sublayer_ff(m, y, o);
    else y = dt__sublayer_attention(m, kind ? "multihead_attn" : "self_attn", y, memory, o);
    y = y ? dt_add(x, y) : NULL;
    return o->norm_first ? y : dt__sublayer_norm(m, norm, y, o);
}
static dt_tensor *dt__transformer_layer(dt_model *m, const char *kind, const char *name, dt_tensor *x, dt_tensor *memory, bool decoder,
                                        dt_transformer_opts o)
{
    if (!dt__model_ok(kind, m) || !dt__ok(kind, "x", x) || (decoder && !dt__ok(kind, "memory", memory))) return NULL;
    o.ff = o.ff ? o.ff : 2048;
    o.dropout = o.dropout == DT_ZERO ? 0 : o.dropout != 0 ? o.dropout : 0.1;
    if (!name || !*name || x->ndim != 3 || o.heads < 1 || x->shape[2] % (o.heads > 0 ? o.heads : 1) || o.ff < 1 ||
        !(o.dropout >= 0 && o.dropout <= 1) || (!decoder && (o.memory_mask || o.memory_lengths))) {
        dt_fail(DT_ERR_ARG, "%s '%s': x %s, .heads %d, .ff %" PRId64 ", .dropout %g: needs a name, x (b, t, e), .heads that divide e, .ff of 1 "
                "or more, .dropout 0 to 1 (DT_ZERO for 0)%s", kind, name ? name : "(null)", dt__text(x), o.heads, o.ff, o.dropout,
                !decoder && (o.memory_mask || o.memory_lengths) ? "; .memory_mask and .memory_lengths are of the decoder" : "");
        return NULL;
    }
    if (dt_scope_begin(m, "%s", name) != DT_OK) return NULL;
    x = dt__sublayer(m, "norm1", x, NULL, 0, &o);
    if (decoder && x) x = dt__sublayer(m, "norm2", x, memory, 1, &o);
    if (x) x = dt__sublayer(m, decoder ? "norm3" : "norm2", x, NULL, 2, &o);
    dt_scope_end(m);
    return x;
}
DT_API dt_tensor *dt_transformer_encoder_layer_with(dt_model *m, const char *name, dt_tensor *x, dt_transformer_opts o)
{
    return dt__transformer_layer(m, "dt_transformer_encoder_layer", name, x, NULL, false, o);
}
DT_API dt_tensor *dt_transformer_decoder_layer_with(dt_model *m, const char *name, dt_tensor *x, dt_tensor *memory, dt_transformer_opts o)
{
    return dt__transformer_layer(m, "dt_transformer_decoder_layer", name, x, memory, true, o);
}

/* ==================================================================================================== >>averaging
   An average has an f32 tensor for each parameter and each float buffer, in the model's order. While it is swapped in, these hold the
   model's own values, in f32: exact also for halves. */
struct dt_average {
    dt_model        *m;
    dt_average_opts  o;
    dt_tensor      **t; /* NULL: a counter, which stays the model's */
    int              n;
    int64_t          updates;
    bool             swapped;
};
static int dt__average_whole(const char *call, const dt_model *m)
{
    const char *how = m->shards ? "a sharded model (.shard of dt_ddp_new)" : m->parts ? "a model with a pipeline" : m->axis
            ? "a model whose layers are split over ranks" : NULL;
    return how ? dt_fail(DT_ERR_STATE, "%s: this is %s: a rank has only a part of the values; average on a model that each rank has whole", call, how) : 0;
}
static bool dt__average_ok(const char *call, const dt_average *a)
{
    if (dt__err.code != DT_OK) return false;
    if (a) return dt__average_whole(call, a->m) == 0;
    dt_fail(DT_ERR_ARG, "%s: the average is NULL", call);
    return false;
}
/* Makes the tensors of parameters that are new. */
static int dt__average_grow(const char *call, dt_average *a)
{
    dt_model *m = a->m;
    if (a->n && a->n == m->nparams) return 0;
    if (m->nparams == 0) return dt_fail(DT_ERR_STATE, "%s: the model has no parameters yet; call it after the first forward", call);
    dt_tensor **t = (dt_tensor **)dt__alloc_zero((size_t)m->nparams * sizeof *t);
    if (!t) return dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    if (a->t) memcpy(t, a->t, (size_t)a->n * sizeof *t);
    dt_mem_free(a->t, (size_t)a->n * sizeof *t);
    a->t = t;
    for (; a->n < m->nparams; a->n++) {
        const dt_tensor *p = m->param[a->n]->t;
        if (!dt__is_float(p->dtype)) continue;
        t[a->n] = dt__new_like(call, p, DT_F32);
        if (!t[a->n] || dt__fill(t[a->n], 0)) return dt__err.code;
    }
    return 0;
}
DT_API dt_average *dt_average_new_with(dt_model *m, dt_average_opts o)
{
    const char *call = "dt_average_new";
    if (!dt__model_ok(call, m)) return NULL;
    if (!(o.decay >= 0 && o.decay < 1)) {
        dt_fail(DT_ERR_ARG, "%s: .decay is %g; it must be above 0 and below 1, or left out for the mean", call, o.decay);
        return NULL;
    }
    if (dt__average_whole(call, m)) return NULL;
    dt_average *a = (dt_average *)dt__alloc_zero(sizeof *a);
    if (!a) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    a->m = m;
    a->o = o;
    return a;
}
DT_API void dt_average_free(dt_average *a)
{
    if (!a) return;
    for (int i = 0; i < a->n; i++) dt__unref(a->t[i]);
    dt_mem_free(a->t, (size_t)a->n * sizeof *a->t);
    dt_mem_free(a, sizeof *a);
}
DT_API int64_t   dt_average_updates(const dt_average *a) { return a ? a->updates : 0; }
DT_API dt_status dt_average_update(dt_average *a)
{
    const char *call = "dt_average_update";
    if (!dt__average_ok(call, a) || dt__average_grow(call, a)) return dt_error_code();
    if (a->swapped)
        return (dt_status)dt_fail(DT_ERR_STATE, "%s: the averages are in the model; call dt_average_swap first", call);
    double rate = a->o.decay > 0 ? 1 - a->o.decay : 1 / (double)(a->updates + 1);
    dt_no_grad_begin();
    for (int i = 0; i < a->n && dt__err.code == DT_OK; i++) {
        dt__param *p = a->m->param[i];
        if (!a->t[i]) continue;
        dt_tensor *x = dt__param_source(a->m, p);
        if (!x) break;
        if (a->updates == 0 || (p->buffer && !a->o.buffers)) {
            dt__copy_to(a->t[i], x, 0);
            continue;
        }
        dt_tensor *d = dt_sub(dt_cast(x, DT_F32), a->t[i]); /* average += rate (value - average) */
        if (d) dt_add_to(a->t[i], d, rate);
        dt_free(d);
    }
    dt_no_grad_end();
    if (dt__err.code == DT_OK) a->updates++;
    return dt_error_code();
}
DT_API dt_status dt_average_swap(dt_average *a)
{
    const char *call = "dt_average_swap";
    if (!dt__average_ok(call, a)) return dt_error_code();
    if (a->updates == 0)
        return (dt_status)dt_fail(DT_ERR_STATE, "%s: there was no dt_average_update yet", call);
    if (!dt__model_own(call, a->m)) return dt_error_code();
    dt_no_grad_begin();
    for (int i = 0; i < a->n && dt__err.code == DT_OK; i++) {
        if (!a->t[i]) continue;
        dt_tensor *p = a->m->param[i]->t, *own = dt__new_like(call, a->t[i], DT_F32);
        if (own && !dt__copy_to(own, p, 0) && dt__write_ok(call, p) && !dt__copy_to(p, a->t[i], 0)) {
            dt_tensor *t = a->t[i];
            a->t[i] = own;
            own = t;
        }
        dt__unref(own);
    }
    dt_no_grad_end();
    if (dt__err.code == DT_OK) a->swapped = !a->swapped;
    return dt_error_code();
}
DT_API dt_tensor *dt_average_find(dt_average *a, const char *name)
{
    for (int i = 0; a && name && i < a->n; i++)
        if (a->t[i] && !strcmp(a->m->param[i]->name, name)) return a->t[i];
    return NULL;
}
DT_API dt_status dt_average_checkpoint(dt_average *a, dt_checkpoint *c)
{
    const char *call = "dt_average_checkpoint";
    if (!dt__average_ok(call, a) || dt__average_grow(call, a)) return dt_error_code();
    for (int i = 0; i < a->n && dt__err.code == DT_OK; i++) {
        char *key = a->t[i] ? dt__joined("average.", 8, a->m->param[i]->name, NULL) : NULL;
        if (key) dt_checkpoint_add_tensor(c, key, a->t[i]);
        dt__free_text(key);
    }
    return dt__err.code == DT_OK ? dt_checkpoint_add_integer(c, "average.updates", &a->updates) : dt_error_code();
}
static bool dt__ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}
DT_API dt_status dt_update_bn_begin(dt_model *m)
{
    if (!dt__model_ok("dt_update_bn_begin", m)) return dt_error_code();
    if (m->bn_mean) return (dt_status)dt_fail(DT_ERR_STATE, "dt_update_bn_begin: it has begun already; call dt_update_bn_end first");
    for (int i = 0; i < m->nparams && dt__err.code == DT_OK; i++) {
        const dt__param *p = m->param[i];
        bool             var = dt__ends_in(p->name, "running_var");
        if (!p->buffer || !(var || dt__ends_in(p->name, "running_mean") || dt__ends_in(p->name, "num_batches_tracked"))) continue;
        if (dt__write_ok("dt_update_bn_begin", p->t)) dt__fill(p->t, var);
    }
    if (dt__err.code != DT_OK) return dt_error_code();
    m->bn_mean = m->training ? 1 : 2;
    dt_model_train(m);
    return DT_OK;
}
DT_API void dt_update_bn_end(dt_model *m)
{
    if (!m || !m->bn_mean) return;
    if (m->bn_mean == 2) dt_model_eval(m);
    m->bn_mean = 0;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_LAYERS_IMPLEMENTATION */
