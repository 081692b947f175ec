/* test_layers.c: the layers of dt_layers.h: values and gradients of PyTorch, states, lengths, caches, averages, bad input.
   Contents: >>golden >>recurrent >>attention >>averages */
#define _GNU_SOURCE
#include "dt_layers.h"
#include "dt_test.h"

#include "fake_device.h"
#include "golden/nn.h"
#include "golden/layers.h"
#include "golden_layers.h"

#include <unistd.h>

UTEST_MAIN()

static dt_tensor *flat(dt_tensor *x) { return dt_reshape(x, DT_SHAPE(-1)); }
static dt_tensor *join(dt_tensor *a, dt_tensor *b, dt_tensor *c)
{
    dt_tensor *part[3] = { flat(a), b ? flat(b) : NULL, c ? flat(c) : NULL };
    return dt_cat(part, 1 + (b != NULL) + (c != NULL), 0);
}
static dt_tensor *ramp(int64_t a, int64_t b, int64_t c, double scale)
{
    int64_t n = a * b * c;
    return dt_reshape(dt_mul_scalar(dt_sub_scalar(dt_div_scalar(dt_arange(0, (double)n, 1), (double)n), 0.5), scale), DT_SHAPE(a, b, c));
}
static bool same_values(dt_tensor *a, dt_tensor *b, double tolerance)
{
    return a && b && dt_item(dt_amax(dt_abs(dt_sub(a, b)))) <= tolerance;
}

static dt_model *anew(dt_model *m) /* in another forward, so that names may be used again */
{
    dt_forward_begin(m);
    return m;
}

/* ==================================================================================================== >>golden */
LAYER(conv1d, DT_SHAPE(2, 3, 7), 0, dt_conv1d(m, "l", x, .out = 4, .kernel = 3, .pad = 1))
LAYER(conv1d_groups, DT_SHAPE(2, 4, 9), 0,
      dt_conv1d(m, "l", x, .out = 6, .kernel = 3, .stride = 2, .pad = 2, .dilation = 2, .groups = 2, .no_bias = true))
LAYER(deconv1d, DT_SHAPE(2, 3, 5), 0, dt_conv_transpose1d(m, "l", x, .out = 4, .kernel = 3, .stride = 2, .pad = 1, .output_pad = 1))
LAYER(deconv2d, DT_SHAPE(2, 3, 3, 4), 0, dt_conv_transpose2d(m, "l", x, .out = 4, .kernel = 4, .stride = 2, .pad = 1))
LAYER(deconv2d_groups, DT_SHAPE(1, 4, 3, 2), 0,
      dt_conv_transpose2d(m, "l", x, .out = 6, .kernel = 3, .kernel_w = 2, .stride = 2, .stride_w = 3, .pad = 1, .pad_w = DT_ZERO,
                          .dilation = 2, .dilation_w = 1, .groups = 2, .no_bias = true, .output_pad = 1, .output_pad_w = 2))
LAYER(in1d, DT_SHAPE(2, 3, 5), 0, dt_instancenorm1d(m, "l", x, .affine = true))
LAYER(in2d, DT_SHAPE(2, 3, 2, 3), 0, dt_instancenorm2d(m, "l", x, .eps = 1e-3))
LAYER(maxpool1d, DT_SHAPE(2, 3, 8), 0, (dt_forward_begin(m), dt_maxpool1d(x, .kernel = 3, .stride = 2, .pad = 1)))
LAYER(avgpool1d, DT_SHAPE(2, 3, 8), 0, (dt_forward_begin(m), dt_avgpool1d(x, .kernel = 3, .stride = 2, .pad = 1, .ceil_mode = true,
                                                                         .exclude_pad = true)))
LAYER(adaptive1d, DT_SHAPE(2, 3, 8), 0, (dt_forward_begin(m), dt_adaptive_avgpool1d(x, 3)))
static dt_tensor *tracked(dt_model *m, dt_tensor *x)
{
    bool       training = dt_model_is_training(m);
    dt_tensor *y = dt_instancenorm2d(m, "l", x, .momentum = 0.3, .affine = true, .track = true), *z;
    dt_model_eval(m);
    z = dt_instancenorm2d(m, "l", dt_mul_scalar(x, 2), .momentum = 0.3, .affine = true, .track = true, .shared = true);
    if (training) dt_model_train(m);
    return join(y, z, NULL);
}
LAYER(in2d_track, DT_SHAPE(2, 3, 2, 3), 0, tracked(m, x))
static dt_tensor *recurrent(dt_model *m, dt_tensor *x, dt_cell cell, dt_rnn_opts o)
{
    dt_tensor *h = NULL, *c = NULL, *y;
    o.h_out = &h;
    if (cell == DT_CELL_LSTM) o.c_out = &c;
    y = cell == DT_CELL_LSTM ? dt_lstm_with(m, "l", x, o) : cell == DT_CELL_GRU ? dt_gru_with(m, "l", x, o) : dt_rnn_with(m, "l", x, o);
    return join(y, h, c);
}
#define R(cell, ...) recurrent(m, x, cell, (dt_rnn_opts){ .dt__first = 0, __VA_ARGS__ })
static const int64_t four_lengths[4] = { 3, 5, 1, 2 }, equal_lengths[4] = { 5, 5, 5, 5 };
LAYER(rnn, DT_SHAPE(4, 2, 3), 0, R(DT_CELL_TANH, .hidden = 5))
LAYER(rnn_relu, DT_SHAPE(2, 4, 3), 0, R(DT_CELL_RELU, .hidden = 5, .layers = 2, .relu = true, .no_bias = true, .batch_first = true))
LAYER(rnn_lengths, DT_SHAPE(5, 4, 3), 0, R(DT_CELL_TANH, .hidden = 4, .bidirectional = true, .lengths = equal_lengths))
LAYER(lstm, DT_SHAPE(4, 2, 3), 0, R(DT_CELL_LSTM, .hidden = 5))
LAYER(lstm_deep, DT_SHAPE(3, 5, 3), 0, R(DT_CELL_LSTM, .hidden = 4, .layers = 2, .bidirectional = true, .batch_first = true))
LAYER(lstm_state, DT_SHAPE(5, 2, 3), 0, R(DT_CELL_LSTM, .hidden = 4, .layers = 2, .bidirectional = true, .no_bias = true,
                                          .h = ramp(4, 2, 4, 1), .c = ramp(4, 2, 4, 2)))
LAYER(lstm_lengths, DT_SHAPE(5, 4, 3), 0, R(DT_CELL_LSTM, .hidden = 4, .layers = 2, .bidirectional = true, .lengths = four_lengths))
LAYER(lstm_one, DT_SHAPE(1, 1, 2), 0, R(DT_CELL_LSTM, .hidden = 9))
LAYER(gru, DT_SHAPE(4, 2, 3), 0, R(DT_CELL_GRU, .hidden = 5))
LAYER(gru_deep, DT_SHAPE(3, 5, 3), 0, R(DT_CELL_GRU, .hidden = 4, .layers = 2, .bidirectional = true, .batch_first = true))
LAYER(gru_state, DT_SHAPE(5, 2, 3), 0, R(DT_CELL_GRU, .hidden = 4, .layers = 2, .bidirectional = true, .no_bias = true,
                                         .h = ramp(4, 2, 4, 1)))
LAYER(gru_lengths, DT_SHAPE(4, 5, 3), 0,
      R(DT_CELL_GRU, .hidden = 4, .layers = 2, .bidirectional = true, .batch_first = true, .lengths = four_lengths))
static dt_tensor *lengths_of(int64_t a, int64_t b)
{
    int64_t n[2] = { a, b };
    return dt_from(n, DT_SHAPE(2), .dtype = DT_I64);
}
LAYER(encoder, DT_SHAPE(2, 5, 8), 0, dt_transformer_encoder_layer(m, "l", x, .heads = 2, .ff = 12, .dropout = DT_ZERO))
LAYER(encoder_first, DT_SHAPE(2, 5, 8), 0,
      dt_transformer_encoder_layer(m, "l", x, .heads = 4, .ff = 12, .dropout = DT_ZERO, .gelu = true, .norm_first = true, .no_bias = true,
                                   .eps = 1e-3, .causal = true))
LAYER(encoder_mask, DT_SHAPE(2, 5, 8), 0,
      dt_transformer_encoder_layer(m, "l", x, .heads = 2, .ff = 12, .dropout = DT_ZERO, .mask = dt_squeeze(ramp(1, 5, 5, 4), 0),
                                   .lengths = lengths_of(3, 5)))
static dt_tensor *decoder(dt_model *m, dt_tensor *x, bool first)
{
    dt_tensor *target = dt_narrow(x, 1, 0, 3), *memory = dt_narrow(x, 1, 3, 4);
    if (!first) return dt_transformer_decoder_layer(m, "l", target, memory, .heads = 2, .ff = 12, .dropout = DT_ZERO);
    return dt_transformer_decoder_layer(m, "l", target, memory, .heads = 2, .ff = 12, .dropout = DT_ZERO, .norm_first = true, .causal = true,
                                        .memory_lengths = lengths_of(2, 4));
}
LAYER(decoder, DT_SHAPE(2, 7, 8), 0, decoder(m, x, false))
LAYER(decoder_first, DT_SHAPE(2, 7, 8), 0, decoder(m, x, true))
UTEST(layers, running_statistics_of_an_instance_norm)
{
    dt_rng r;
    dt_rng_seed(&r, 2);
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_OK(tracked(m, dt_normal(0, 1, DT_SHAPE(2, 3, 2, 3), .rng = &r)));
    EXPECT_CLOSE_D(dt_model_find(m, "l.running_mean"), nn_in2d_track_running_mean, 3, 1e-6, 1e-5);
    EXPECT_CLOSE_D(dt_model_find(m, "l.running_var"), nn_in2d_track_running_var, 3, 1e-6, 1e-5);
    EXPECT_EQ(0.0, dt_item(dt_model_find(m, "l.num_batches_tracked"))); /* as PyTorch: not counted */
    dt_end();
    dt_model_free(m);
}
UTEST(layers, bad_input_of_one_dimension)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x = dt_ones(DT_SHAPE(2, 4, 6)), *i = dt_zeros(DT_SHAPE(2), .dtype = DT_I64);
    EXPECT_ERROR(dt_conv1d(anew(m), "a", dt_ones(DT_SHAPE(2, 4)), .out = 2, .kernel = 1), "dt_conv1d 'a': x is (2, 4)");
    EXPECT_ERROR(dt_conv1d(anew(m), "a", x, .out = 4, .kernel = 1, .groups = 3), ".groups 3");
    EXPECT_ERROR(dt_conv1d(anew(m), "a", x, .out = 4), ".kernel 0");
    EXPECT_ERROR(dt_conv1d(anew(m), "a", x, .out = 4, .kernel = 7), "larger than the padded image");
    EXPECT_ERROR(dt_conv1d(m, "c", x, .out = 4, .kernel = 3, .stride_w = 2), ".stride_w is not an option");
    EXPECT_ERROR(dt_conv_transpose1d(m, "d", x, .out = 4, .kernel = 3, .output_pad = 1), "output_pad smaller than stride");
    EXPECT_ERROR(dt_conv_transpose1d(m, "e", x, .out = 4, .kernel = 1, .pad = 9), "decrease pad");
    EXPECT_ERROR(dt_conv_transpose2d(m, "f", x, .out = 4, .kernel = 3), "it must be (n, c, h, w)");
    EXPECT_ERROR(dt_maxpool1d(x, .kernel = 2, .kernel_w = 2), "of 2-d pooling");
    EXPECT_ERROR(dt_maxpool1d(x), ".kernel is 0");
    EXPECT_ERROR(dt_instancenorm1d(m, "g", dt_ones(DT_SHAPE(2, 3, 1))), "need at least 2");
    EXPECT_ERROR(dt_embedding(m, "h", i, .num = 4, .dim = 2, .padding_idx = 4), ".padding_idx is 4");
    EXPECT_ERROR(dt_batchnorm3d(m, "i", x), "(n, c, d, h, w)");
    dt_end();
    dt_model_free(m);
}
UTEST(layers, the_padding_row_begins_as_zero_and_stays_in_every_dtype)
{
    for (int k = 0; k < 3; k++) {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_amp       *amp = k ? dt_amp_new(m, .level = k == 1 ? "O2" : "O1") : NULL;
        dt_optimizer *opt = dt_sgd(m, .lr = 0.5);
        int64_t       ix[4] = { 0, 3, 1, 0 };
        for (int step = 0; step < 3; step++) {
            dt_tensor *y = dt_embedding(m, "e", dt_from(ix, DT_SHAPE(4), .dtype = DT_I64), .num = 4, .dim = 3, .padding_idx = DT_ZERO);
            dt_tensor *l = dt_mse_loss(dt_cast(y, DT_F32), dt_ones(DT_SHAPE(4, 3)));
            EXPECT_EQ(DT_OK, amp ? dt_amp_backward(amp, l) : dt_backward(l));
            EXPECT_EQ(DT_OK, dt_step(opt));
        }
        dt_tensor *w = dt_model_find(m, "e.weight");
        EXPECT_EQ(0.0, dt_item(dt_sum(dt_abs(dt_select(w, 0, 0)))));
        EXPECT_TRUE(dt_item(dt_sum(dt_abs(dt_select(w, 0, 3)))) > 0);
        dt_end();
        dt_optimizer_free(opt);
        dt_amp_free(amp);
        dt_model_free(m);
    }
}

/* ==================================================================================================== >>recurrent */
/* A sequence in two chunks whose state is passed on gives what the whole gives. */
UTEST(recurrent, a_state_that_is_passed_on_continues_the_sequence)
{
    for (int cell = 0; cell < 2; cell++) {
        dt_model  *m = dt_model_new(.seed = 4);
        dt_tensor *x = dt_normal(0, 1, DT_SHAPE(7, 3, 2)), *h, *c = NULL, *h2, *c2 = NULL, *all, *part[2];
        if (cell) all = dt_lstm(m, "r", x, .hidden = 5, .layers = 2, .h_out = &h, .c_out = &c);
        else all = dt_gru(m, "r", x, .hidden = 5, .layers = 2, .h_out = &h);
        for (int k = 0; k < 2; k++) {
            dt_tensor *xk = dt_narrow(x, 0, k * 3, k ? 4 : 3);
            dt_forward_begin(m);
            if (cell) part[k] = dt_lstm(m, "r", xk, .hidden = 5, .layers = 2, .h = k ? h2 : NULL, .c = k ? c2 : NULL, .h_out = &h2,
                                        .c_out = &c2);
            else part[k] = dt_gru(m, "r", xk, .hidden = 5, .layers = 2, .h = k ? h2 : NULL, .h_out = &h2);
        }
        EXPECT_TRUE(same_values(all, dt_cat(part, 2, 0), 1e-6));
        EXPECT_TRUE(same_values(h, h2, 1e-6));
        EXPECT_TRUE(!cell || same_values(c, c2, 1e-6));
        dt_end();
        dt_model_free(m);
    }
}
/* Truncated backpropagation: the state outlives its step, and the loss falls. */
UTEST(recurrent, truncated_backpropagation_learns_across_chunks)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_adam(m, .lr = 0.02);
    dt_tensor    *h = NULL, *c = NULL;
    double        first = 0, last = 0;
    dt_manual_seed(3);
    float bit[2] = { 0, 0 }; /* tell the bit of the chunk before */
    for (int step = 0; step < 120; step++) {
        dt_tensor *h1, *c1, *x, *y;
        bit[0] = bit[1];
        bit[1] = (float)(dt_rng_u32(dt_rng_default()) & 1);
        x = dt_full(bit[1], DT_SHAPE(1, 1, 1));
        y = dt_lstm(m, "r", x, .hidden = 8, .h = h, .c = c, .h_out = &h1, .c_out = &c1);
        dt_tensor *l = dt_bce_with_logits(dt_linear(m, "o", dt_select(y, 0, 0), .out = 1), dt_full(bit[0], DT_SHAPE(1, 1)));
        ASSERT_EQ(DT_OK, dt_backward(l));
        if (step < 20) first += dt_item(l);
        if (step >= 100) last += dt_item(l);
        dt_free(h);
        dt_free(c);
        h = dt_keep(dt_detach(h1));
        c = dt_keep(dt_detach(c1));
        ASSERT_EQ(DT_OK, dt_step(opt));
    }
    EXPECT_TRUE(last < first);
    dt_free(h);
    dt_free(c);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
/* What stands behind the end of a sequence changes nothing, and gets no gradient. */
UTEST(recurrent, values_behind_the_end_of_a_sequence_do_not_matter)
{
    int64_t len[3] = { 2, 4, 1 };
    for (int cell = DT_CELL_TANH; cell <= DT_CELL_GRU; cell++) {
        dt_tensor *y[2];
        dt_model  *m = dt_model_new(.seed = 1);
        dt_tensor *x = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(4, 3, 2)));
        dt_tensor *inside = dt_reshape(dt_lt(dt_reshape(dt_arange(0, 4, 1), DT_SHAPE(4, 1)),
                                             dt_reshape(dt_cast(dt_from(len, DT_SHAPE(3), .dtype = DT_I64), DT_F32), DT_SHAPE(1, 3))),
                                       DT_SHAPE(4, 3, 1));
        for (int k = 0; k < 2; k++) {
            dt_tensor *z = k ? dt_where(inside, x, dt_full(1e3, DT_SHAPE(1))) : x;
            dt_forward_begin(m);
            y[k] = recurrent(m, z, (dt_cell)cell, (dt_rnn_opts){ .hidden = 3, .bidirectional = true, .lengths = len });
        }
        EXPECT_SAME_BITS(y[0], y[1]);
        EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_mul(y[0], y[0]))));
        dt_tensor *g = dt_grad(x);
        EXPECT_EQ(0.0, dt_item(dt_sum(dt_abs(dt_where(inside, dt_zeros(DT_SHAPE(1)), g)))));
        EXPECT_TRUE(dt_item(dt_sum(dt_abs(g))) > 0);
        dt_end();
        dt_free(x);
        dt_model_free(m);
    }
}
UTEST(recurrent, dropout_is_between_layers_in_training_only)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x = dt_normal(0, 1, DT_SHAPE(3, 2, 4)), *plain, *one, *y;
    dt_model_eval(m);
    plain = dt_lstm(m, "r", x, .hidden = 8, .layers = 2);
    dt_forward_begin(m);
    EXPECT_SAME_BITS(plain, dt_lstm(m, "r", x, .hidden = 8, .layers = 2, .dropout = 0.5));
    dt_model_train(m);
    dt_forward_begin(m);
    y = dt_lstm(m, "r", x, .hidden = 8, .layers = 2, .dropout = 0.5);
    EXPECT_FALSE(same_values(plain, y, 1e-6));
    EXPECT_TRUE(dt_item(dt_amin(dt_abs(y))) > 0); /* the last result is not dropped */
    one = dt_lstm(m, "one", x, .hidden = 8, .dropout = 0.5);
    dt_forward_begin(m);
    EXPECT_SAME_BITS(one, dt_lstm(m, "one", x, .hidden = 8)); /* one layer: there is no between */
    dt_end();
    dt_model_free(m);
}
UTEST(recurrent, bits_do_not_depend_on_threads)
{
    uint64_t bits[2];
    int      before = dt_get_num_threads();
    for (int k = 0; k < 2; k++) {
        dt_set_num_threads(1 + 2 * k);
        dt_model  *m = dt_model_new(.seed = 1);
        dt_rng     r;
        dt_rng_seed(&r, 5);
        dt_tensor *y = dt_lstm(m, "r", dt_normal(0, 1, DT_SHAPE(4, 40, 30), .rng = &r), .hidden = 70, .bidirectional = true);
        EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_mul(y, y))));
        bits[k] = fnv(dt_contiguous(y)) ^ fnv(dt_grad(dt_model_find(m, "r.weight_hh_l0"))) * 3 ^ fnv(dt_grad(dt_model_find(m, "r.bias_ih_l0_reverse"))) * 5;
        dt_end();
        dt_model_free(m);
    }
    dt_set_num_threads(before);
    EXPECT_EQ(bits[0], bits[1]);
}
/* Half precision at every level: near f32, and it trains. */
UTEST(recurrent, mixed_precision_levels)
{
    static const char *const level[] = { "O0", "O1", "O2", "O3" };
    for (int k = 0; k < 8; k++) {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_amp       *amp = dt_amp_new(m, .level = level[k % 4], .dtype = k < 4 ? DT_F16 : DT_BF16);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
        dt_rng        r;
        double        first = 0, loss = 0;
        dt_rng_seed(&r, 5);
        for (int step = 0; step < 6; step++) {
            dt_rng_seed(&r, 5);
            dt_tensor *x = dt_normal(0, 1, DT_SHAPE(5, 4, 3), .rng = &r), *h, *c;
            dt_lstm(m, "a", x, .hidden = 6, .layers = 2, .bidirectional = true, .lengths = (int64_t[]){ 5, 2, 3, 1 }, .h_out = &h, .c_out = &c);
            dt_tensor *y = dt_gru(m, "b", dt_add(h, c), .hidden = 5), *l = dt_mse_loss(dt_cast(y, DT_F32), dt_ones(DT_SHAPE(4, 4, 5)));
            EXPECT_EQ(DT_OK, dt_amp_backward(amp, l));
            loss = dt_item(l);
            if (!step) first = loss;
            EXPECT_EQ(DT_OK, dt_step(opt));
        }
        EXPECT_TRUE_MSG(loss < first && isfinite(loss), level[k % 4]);
        EXPECT_TRUE_MSG(dt_error() == NULL, level[k % 4]);
        dt_error_clear();
        dt_end();
        dt_optimizer_free(opt);
        dt_amp_free(amp);
        dt_model_free(m);
    }
}
UTEST(recurrent, bad_input)
{
    dt_model  *m = dt_model_new(.seed = 1), *n = dt_model_new(.seed = 2);
    dt_tensor *x = dt_ones(DT_SHAPE(3, 2, 4)), *h, *c;
    int64_t    zero[2] = { 3, 0 }, more[2] = { 3, 4 }, negative[2] = { -1, 1 };
    EXPECT_ERROR(dt_lstm(anew(m), "r", dt_ones(DT_SHAPE(3, 4)), .hidden = 5), "needs x (t, b, in)");
    EXPECT_ERROR(dt_lstm(anew(m), "r", dt_ones(DT_SHAPE(0, 2, 4)), .hidden = 5), "at least one element");
    EXPECT_ERROR(dt_lstm(anew(m), "r", x), ".hidden 0");
    EXPECT_ERROR(dt_lstm(anew(m), "r", x, .hidden = 5, .lengths = zero), ".lengths[1] is 0; it must be 1 to 3");
    EXPECT_ERROR(dt_lstm(anew(m), "r", x, .hidden = 5, .lengths = more), ".lengths[1] is 4");
    EXPECT_ERROR(dt_lstm(anew(m), "r", x, .hidden = 5, .lengths = negative), ".lengths[0] is -1");
    EXPECT_ERROR(dt_lstm(anew(m), "r", x, .hidden = 5, .h = dt_ones(DT_SHAPE(1, 2, 4))), ".h is (1, 2, 4); it must be (1, 2, 5)");
    EXPECT_ERROR(dt_lstm(anew(m), "r", x, .hidden = 5, .c = dt_ones(DT_SHAPE(1, 3, 5))), ".c is (1, 3, 5)");
    EXPECT_ERROR(dt_gru(m, "g", x, .hidden = 5, .c = dt_ones(DT_SHAPE(1, 2, 5))), ".c and .c_out of dt_lstm");
    EXPECT_ERROR(dt_lstm(m, "q", x, .hidden = 5, .relu = true), ".relu is of dt_rnn");
    EXPECT_ERROR(dt_rnn(m, "d", x, .hidden = 5, .dropout = 1.5), ".dropout 1.5");
    EXPECT_OK(dt_lstm(m, "s", x, .hidden = 5, .h_out = &h, .c_out = &c));
    EXPECT_ERROR(dt_lstm(m, "s", x, .hidden = 5), "used twice");
    EXPECT_ERROR(dt_gru(m, "s", x, .hidden = 5), "belongs to a dt_lstm");
    dt_forward_begin(m);
    EXPECT_ERROR(dt_lstm(m, "s", x, .hidden = 6), "weight_ih_l0");
    EXPECT_OK(dt_lstm(n, "s", x, .hidden = 5, .h = h, .c = c)); /* the state of another model of this shape */
    EXPECT_ERROR(dt_lstm(n, "s", x, .hidden = 5, .h = dt_ones(DT_SHAPE(1, 2, 5), .dtype = DT_I64), .shared = true), "takes f32");
    dt_end();
    dt_model_free(m);
    dt_model_free(n);
}

/* ==================================================================================================== >>attention */
static dt_tensor *rows_of(dt_tensor *x, int64_t from, int64_t n) { return dt_narrow(x, 2, from, n); }
UTEST(attention, a_cache_gives_what_causal_attention_gives)
{
    for (int window = 0; window <= 20; window += 4) { /* 20: larger than the sequence */
        dt_tensor   *q = dt_normal(0, 1, DT_SHAPE(2, 4, 9, 8)), *k = dt_normal(0, 1, DT_SHAPE(2, 2, 9, 8));
        dt_tensor   *v = dt_normal(0, 1, DT_SHAPE(2, 2, 9, 8)), *part[7];
        dt_tensor   *all = dt_attention(q, k, v, .causal = true, .window = window);
        dt_kv_cache *c = dt_kv_cache_new(2, 2, 9, 8);
        dt_no_grad_begin();
        part[0] = dt_attention_cached(rows_of(q, 0, 3), rows_of(k, 0, 3), rows_of(v, 0, 3), c, .window = window);
        for (int i = 1; i < 7; i++)
            part[i] = dt_attention_cached(rows_of(q, i + 2, 1), rows_of(k, i + 2, 1), rows_of(v, i + 2, 1), c, .window = window);
        dt_no_grad_end();
        EXPECT_EQ((int64_t)9, dt_kv_cache_length(c));
        EXPECT_TRUE(same_values(all, dt_cat(part, 7, 2), 1e-5));
        dt_end();
        dt_kv_cache_free(c);
    }
}
UTEST(attention, a_cache_that_overflows_or_is_of_another_model)
{
    dt_kv_cache *c = dt_kv_cache_new(1, 2, 4, 8);
    dt_tensor   *x = dt_ones(DT_SHAPE(1, 2, 3, 8)), *one = dt_ones(DT_SHAPE(1, 2, 1, 8)), *p = dt_set_requires_grad(dt_ones(DT_SHAPE(1, 2, 1, 8)));
    EXPECT_OK(dt_attention_cached(x, x, x, c));
    EXPECT_ERROR(dt_attention_cached(x, x, x, c), "3 tokens after 3 exceed the capacity of the cache, 4");
    EXPECT_EQ((int64_t)3, dt_kv_cache_length(c));
    EXPECT_OK(dt_attention_cached(one, one, one, c));
    EXPECT_ERROR(dt_kv_cache_truncate(c, 5) == DT_OK ? x : NULL, "has length 4");
    EXPECT_EQ(DT_OK, dt_kv_cache_truncate(c, 2));
    EXPECT_ERROR(dt_attention_cached(p, one, one, c), "it has no gradient");
    EXPECT_ERROR(dt_attention_cached(one, dt_ones(DT_SHAPE(1, 3, 1, 8)), one, c), "this cache is for 1 sequences, 2 heads of 8");
    EXPECT_ERROR(dt_attention_cached(dt_ones(DT_SHAPE(1, 2, 2, 8)), one, one, c), "as many tokens");
    EXPECT_ERROR(dt_attention_cached(one, one, one, NULL), "the cache is NULL");
    EXPECT_ERROR(dt_attention_cached(one, one, one, c, .offset = 2), "are the cache's");
    EXPECT_ERROR(dt_kv_cache_new(1, 0, 4, 8) ? x : NULL, "all must be 1 or more");
    EXPECT_EQ((int64_t)2, dt_kv_cache_length(c));
    dt_end();
    dt_free(p);
    dt_kv_cache_free(c);
}
UTEST(attention, a_mask_that_hides_a_whole_row_gives_zeros_and_finite_gradients)
{
    uint8_t    m[6] = { 1, 0, 0, 0, 1, 1 };
    dt_tensor *x = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(1, 2, 2, 4))), *k = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(1, 2, 3, 4)));
    dt_tensor *mask = dt_from(m, DT_SHAPE(2, 3), .dtype = DT_U8);
    uint8_t    none[6] = { 0, 0, 0, 1, 1, 1 };
    for (int i = 0; i < 2; i++) {
        dt_tensor *y = dt_attention(x, k, k, .mask = i ? dt_from(none, DT_SHAPE(2, 3), .dtype = DT_U8) : mask);
        EXPECT_TRUE(same_values(dt_select(y, 2, 0), i ? dt_zeros(DT_SHAPE(1, 2, 4)) : dt_select(k, 2, 0), 0));
        EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_mul(y, y))));
        EXPECT_TRUE(isfinite(dt_item(dt_sum(dt_grad(k)))) && isfinite(dt_item(dt_sum(dt_grad(x)))));
        dt_zero_grad(x);
        dt_zero_grad(k);
    }
    dt_end();
    dt_free(x);
    dt_free(k);
}
/* The composition with dropout sees what the fused op sees: at the limit of no dropout they are equal. */
UTEST(attention, masks_and_lengths_in_a_layer_with_dropout)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x = dt_normal(0, 1, DT_SHAPE(2, 5, 8)), *f = dt_normal(0, 1, DT_SHAPE(5, 5)), *y[2];
    uint8_t    bytes[5] = { 0, 1, 1, 0, 1 };
    for (int kind = 0; kind < 4; kind++) {
        for (int k = 0; k < 2; k++) {
            dt_forward_begin(m);
            y[k] = dt_multihead_attention(m, "a", x, .heads = 2, .causal = kind == 3, .dropout = k ? 1e-12 : 0,
                                          .mask = kind == 0 ? dt_from(bytes, DT_SHAPE(1, 1, 1, 5), .dtype = DT_U8) : kind == 1 ? f : NULL,
                                          .lengths = kind == 2 ? lengths_of(0, 4) : NULL);
        }
        EXPECT_TRUE(same_values(y[0], y[1], 1e-5));
    }
    dt_end();
    dt_model_free(m);
}
UTEST(attention, bad_input)
{
    dt_tensor *q = dt_ones(DT_SHAPE(1, 6, 2, 4)), *k = dt_ones(DT_SHAPE(1, 2, 2, 4)), *p = dt_set_requires_grad(dt_ones(DT_SHAPE(2, 2)));
    EXPECT_OK(dt_attention(q, k, k));
    EXPECT_ERROR(dt_attention(q, dt_ones(DT_SHAPE(1, 4, 2, 4)), dt_ones(DT_SHAPE(1, 4, 2, 4))), "hk must divide h");
    EXPECT_ERROR(dt_attention(q, k, dt_ones(DT_SHAPE(1, 2, 3, 4))), "do not match");
    EXPECT_ERROR(dt_attention(q, k, k, .window = 2), "need .causal");
    EXPECT_ERROR(dt_attention(q, k, k, .causal = true, .window = -1), ".window is -1");
    EXPECT_ERROR(dt_attention(q, k, k, .causal = true, .offset = -1), ".offset -1");
    EXPECT_ERROR(dt_attention(q, k, k, .mask = dt_ones(DT_SHAPE(3, 2))), ".mask is (3, 2)");
    EXPECT_ERROR(dt_attention(q, k, k, .mask = dt_ones(DT_SHAPE(2, 2), .dtype = DT_I64)), "must be u8 or a float");
    EXPECT_ERROR(dt_attention(q, k, k, .mask = p), "dt_detach() it");
    EXPECT_ERROR(dt_attention(q, k, k, .lengths = dt_ones(DT_SHAPE(2), .dtype = DT_I64)), ".lengths is (2)");
    EXPECT_ERROR(dt_attention(q, k, k, .lengths = dt_ones(DT_SHAPE(1))), "must be i64");
    dt_end();
    dt_free(p);
}
/* Llama's rotation: scores depend on the distance of positions only; the first position turns nothing. */
UTEST(attention, rotary_positions)
{
    dt_tensor *table = dt_keep(dt_rope_table(16, 8, 10000)), *x = dt_normal(0, 1, DT_SHAPE(1, 1, 1, 8)), *y = dt_normal(0, 1, DT_SHAPE(1, 1, 1, 8));
    for (int i = 0; i < 2; i++) {
        double score[2];
        for (int k = 0; k < 2; k++)
            score[k] = dt_item(dt_sum(dt_mul(dt_rope(x, table, .offset = 2 + 7 * k, .interleaved = i == 1),
                                             dt_rope(y, table, .offset = 5 + 7 * k, .interleaved = i == 1))));
        EXPECT_NEAR(score[0], score[1], 1e-4);
        EXPECT_TRUE(same_values(x, dt_rope(x, table, .interleaved = i == 1), 0));
        EXPECT_FALSE(same_values(x, dt_rope(x, table, .offset = 1, .interleaved = i == 1), 1e-3));
    }
    float v[8];
    dt_tensor *one = dt_rope(dt_ones(DT_SHAPE(1, 1, 2, 8)), table);
    ASSERT_EQ(DT_OK, dt_copy_out(dt_contiguous(dt_select(dt_reshape(one, DT_SHAPE(2, 8)), 0, 1)), v, sizeof v));
    for (int i = 0; i < 4; i++) {
        double a = pow(10000, -2 * i / 8.0);
        EXPECT_NEAR(cos(a) - sin(a), v[i], 1e-6);
        EXPECT_NEAR(cos(a) + sin(a), v[4 + i], 1e-6);
    }
    EXPECT_ERROR(dt_rope(x, table, .offset = 16), "offset + t at most n");
    EXPECT_ERROR(dt_rope(dt_ones(DT_SHAPE(1, 1, 1, 6)), table), "a table (n, d)");
    EXPECT_ERROR(dt_rope_table(4, 3, 10000), "d even");
    dt_free(table);
    dt_end();
}
UTEST(attention, bad_input_of_transformer_layers)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x = dt_ones(DT_SHAPE(2, 3, 8));
    EXPECT_ERROR(dt_transformer_encoder_layer(m, "e", x, .heads = 3), ".heads 3");
    EXPECT_ERROR(dt_transformer_encoder_layer(m, "e", x, .heads = 2, .memory_lengths = lengths_of(1, 1)), "of the decoder");
    EXPECT_ERROR(dt_transformer_decoder_layer(m, "e", x, NULL, .heads = 2), "memory is NULL");
    EXPECT_ERROR(dt_transformer_encoder_layer(m, "e", dt_ones(DT_SHAPE(3, 8)), .heads = 2), "needs a name, x (b, t, e)");
    EXPECT_EQ(0, dt_model_count(m));
    EXPECT_OK(dt_transformer_encoder_layer(m, "e", x, .heads = 2)); /* with dropout */
    EXPECT_EQ(12, dt_model_count(m));
    dt_end();
    dt_model_free(m);
}

/* ==================================================================================================== >>averages */
static double line(dt_model *m, dt_optimizer *opt)
{
    dt_rng r;
    dt_rng_seed(&r, 1);
    dt_tensor *x = dt_normal(0, 1, DT_SHAPE(8, 3), .rng = &r);
    x = dt_batchnorm1d(m, "bn", dt_linear(m, "fc", x, .out = 4));
    dt_tensor *l = dt_mse_loss(x, dt_ones(DT_SHAPE(8, 4)));
    double     loss = dt_item(l);
    dt_backward(l);
    if (opt) dt_step(opt);
    else dt_end();
    return loss;
}
UTEST(averages, moving_and_mean_averages_follow_the_values)
{
    for (int k = 0; k < 2; k++) {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.3);
        dt_average   *a = dt_average_new(m, .decay = k ? 0.75 : 0);
        double        want[12], v = 0;
        for (int step = 0; step < 5; step++) {
            float w[12];
            line(m, opt);
            ASSERT_EQ(DT_OK, dt_average_update(a));
            ASSERT_EQ(DT_OK, dt_copy_out(dt_model_find(m, "fc.weight"), w, sizeof w));
            for (int i = 0; i < 12; i++)
                want[i] = step == 0 ? w[i] : k ? 0.75 * want[i] + 0.25 * w[i] : want[i] + (w[i] - want[i]) / (step + 1);
        }
        EXPECT_CLOSE_D(dt_average_find(a, "fc.weight"), want, 12, 1e-6, 1e-6);
        EXPECT_EQ((int64_t)5, dt_average_updates(a));
        /* buffers are those of the last update */
        EXPECT_SAME_BITS(dt_average_find(a, "bn.running_mean"), dt_model_find(m, "bn.running_mean"));
        uint64_t before = fnv(dt_model_find(m, "fc.weight")), average = fnv(dt_average_find(a, "fc.weight"));
        ASSERT_EQ(DT_OK, dt_average_swap(a));
        EXPECT_EQ(average, fnv(dt_model_find(m, "fc.weight")));
        EXPECT_ERROR(dt_average_update(a) == DT_OK ? opt : NULL, "call dt_average_swap first");
        ASSERT_EQ(DT_OK, dt_average_swap(a));
        EXPECT_EQ(before, fnv(dt_model_find(m, "fc.weight")));
        v = line(m, opt);
        EXPECT_TRUE(isfinite(v));
        dt_average_free(a);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
}
UTEST(averages, of_half_models_are_of_the_master_weights_and_swap_back_exactly)
{
    static const char *const level[] = { "O1", "O2", "O3" };
    for (int k = 0; k < 3; k++) {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_amp       *amp = dt_amp_new(m, .level = level[k], .dtype = DT_BF16);
        dt_optimizer *opt = dt_sgd(m, .lr = 1e-4);
        dt_average   *a = dt_average_new(m, .decay = 0.5);
        for (int step = 0; step < 4; step++) {
            dt_tensor *l = dt_mse_loss(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4), dt_zeros(DT_SHAPE(2, 4)));
            ASSERT_EQ(DT_OK, dt_amp_backward(amp, l));
            ASSERT_EQ(DT_OK, dt_step(opt));
            ASSERT_EQ(DT_OK, dt_average_update(a));
        }
        uint64_t before = fnv(dt_model_find(m, "fc.weight"));
        /* O2: the steps are smaller than a rounding of bf16; the masters move, and so does their average */
        bool moved = !same_values(dt_average_find(a, "fc.weight"), dt_cast(dt_model_find(m, "fc.weight"), DT_F32), 0);
        EXPECT_EQ(k < 2, moved);
        ASSERT_EQ(DT_OK, dt_average_swap(a));
        ASSERT_EQ(DT_OK, dt_average_swap(a));
        EXPECT_EQ(before, fnv(dt_model_find(m, "fc.weight")));
        dt_end();
        dt_average_free(a);
        dt_optimizer_free(opt);
        dt_amp_free(amp);
        dt_model_free(m);
    }
}
UTEST(averages, resume_from_a_checkpoint)
{
    char dir[] = "/tmp/dt_average_XXXXXX", file[80];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    uint64_t bits[2] = { 0, 0 };
    for (int run = 0; run < 2; run++) {
        dt_model      *m = dt_model_new(.seed = (uint64_t)(1 + run));
        dt_optimizer  *opt = dt_sgd(m, .lr = 0.1);
        dt_average    *a = dt_average_new(m, .decay = 0.9);
        dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
        int64_t        epoch = 0, step = 0;
        line(m, run ? NULL : opt);
        ASSERT_EQ(DT_OK, dt_average_checkpoint(a, c));
        if (run) ASSERT_EQ(1, dt_checkpoint_resume(c, &epoch, &step));
        else ASSERT_EQ(DT_OK, dt_average_update(a));
        if (!run) ASSERT_EQ(DT_OK, dt_checkpoint_save(c, 0, 1));
        dt_optimizer_zero_grad(opt);
        line(m, opt);
        ASSERT_EQ(DT_OK, dt_average_update(a));
        EXPECT_EQ((int64_t)2, dt_average_updates(a));
        bits[run] = fnv(dt_average_find(a, "fc.weight"));
        dt_checkpoint_free(c);
        dt_average_free(a);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
    EXPECT_EQ(bits[0], bits[1]);
    snprintf(file, sizeof file, "%s/ckpt-00000001.safetensors", dir);
    unlink(file);
    rmdir(dir);
}
UTEST(averages, running_statistics_become_the_mean_over_the_batches)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x[2] = { dt_normal(0, 1, DT_SHAPE(8, 3)), dt_normal(2, 3, DT_SHAPE(8, 3)) };
    EXPECT_OK(dt_batchnorm1d(m, "bn", dt_full(9, DT_SHAPE(4, 3))));
    dt_model_eval(m);
    ASSERT_EQ(DT_OK, dt_update_bn_begin(m));
    EXPECT_ERROR(dt_update_bn_begin(m) == DT_OK ? m : NULL, "dt_update_bn_end first");
    for (int i = 0; i < 2; i++) {
        dt_forward_begin(m);
        EXPECT_OK(dt_batchnorm1d(m, "bn", x[i]));
    }
    dt_update_bn_end(m);
    EXPECT_FALSE(dt_model_is_training(m));
    dt_tensor *mean = dt_mul_scalar(dt_add(dt_mean(x[0], .dims = DT_DIM(0)), dt_mean(x[1], .dims = DT_DIM(0))), 0.5);
    EXPECT_TRUE(same_values(mean, dt_model_find(m, "bn.running_mean"), 1e-5));
    EXPECT_EQ(2.0, dt_item(dt_model_find(m, "bn.num_batches_tracked")));
    dt_end();
    dt_model_free(m);
}
UTEST(averages, bad_input)
{
    dt_model   *m = dt_model_new(.seed = 1);
    dt_average *a = dt_average_new(m);
    EXPECT_ERROR(dt_average_new(m, .decay = 1) ? m : NULL, ".decay is 1");
    EXPECT_ERROR(dt_average_new(NULL) ? m : NULL, "NULL");
    EXPECT_ERROR(dt_average_update(NULL) == DT_OK ? m : NULL, "the average is NULL");
    EXPECT_ERROR(dt_average_update(a) == DT_OK ? m : NULL, "no parameters yet");
    EXPECT_ERROR(dt_average_swap(a) == DT_OK ? m : NULL, "no dt_average_update yet");
    EXPECT_TRUE(dt_average_find(a, "none") == NULL);
    dt_average_free(a);
    dt_average_free(NULL);
    dt_model_free(m);
}
