"""Layers of dt_nn.h and dt_layers.h: PyTorch's initial parameters (as hashes of their bytes) and outputs. Writes nn.h and layers.h
beside itself.

    python3 tests/golden/make_nn.py

Each case seeds PyTorch with 1, builds one module, draws its input from a generator seeded with 2."""
import os
import torch

torch.set_num_threads(1)


def fnv(t):
    h = 0xcbf29ce484222325
    for b in t.detach().contiguous().numpy().tobytes():
        h = ((h ^ b) * 0x100000001b3) & 0xffffffffffffffff
    return h


def hashes(make):
    torch.manual_seed(1)
    return [(k, fnv(v)) for k, v in make().state_dict().items()]


def emit(out, name, make, shape, run=None, integers=0):
    rows = hashes(make)
    torch.manual_seed(1)
    module = make()
    g = torch.Generator().manual_seed(2)
    x = torch.randn(shape, generator=g)
    if integers:
        x = (x * 1000).abs().floor().to(torch.int64) % integers
    else:
        x.requires_grad_()
    y = run(module, x) if run else module(x)
    (y * y).sum().backward()
    out.append("static const nn_param nn_%s_params[] = {" % name)
    params = dict(module.named_parameters())
    for k, h in rows:
        gn = float(params[k].grad.double().norm()) if k in params else -1
        out.append('    { "%s", 0x%016xull, %.9g },' % (k, h, gn))
    out.append("    { 0, 0, 0 }")
    out.append("};")
    flat = y.detach().flatten().tolist()
    out.append("static const float nn_%s_y[] = {" % name)
    for i in range(0, len(flat), 8):
        out.append("    " + ", ".join("%.9gf" % v if ("." in "%.9g" % v or "e" in "%.9g" % v) else "%.9g.0f" % v
                                      for v in flat[i:i + 8]) + ",")
    out.append("};")
    out.append("static const double nn_%s_dx = %.9g;" % (name, -1 if integers else float(x.grad.double().norm())))
    # buffers after one training forward
    for k, v in module.state_dict().items():
        if "running" in k or "tracked" in k:
            out.append("static const double nn_%s_%s[] = { %s };" % (name, k, ", ".join("%.9g" % f for f in v.flatten().tolist())))


def mha(**kw):
    return lambda: torch.nn.MultiheadAttention(8, 2, batch_first=True, **kw)


def causal(m, x):
    t = x.shape[1]
    mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
    return m(x, x, x, attn_mask=mask, need_weights=False)[0]


def cross(m, x):
    return m(x[:, :3], x[:, 3:], x[:, 3:], need_weights=False)[0]


out = ["/* Made by make_nn.py with PyTorch %s: initial parameters (FNV-1a of the bytes), norms of gradients of sum(y*y), outputs. */"
       % torch.__version__.split("+")[0],
       "typedef struct nn_param {", "    const char        *name;", "    unsigned long long hash;",
       "    double             grad_norm; /* -1: a buffer */", "} nn_param;"]
nn = torch.nn
emit(out, "linear", lambda: nn.Linear(7, 5), (4, 7))
emit(out, "linear_no_bias", lambda: nn.Linear(25, 3, bias=False), (2, 25))
emit(out, "conv", lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 5, 5))
emit(out, "conv_groups", lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=1, groups=2, bias=False), (2, 4, 6, 5))
emit(out, "bn2d", lambda: nn.BatchNorm2d(3), (4, 3, 2, 2))
emit(out, "bn1d", lambda: nn.BatchNorm1d(5), (6, 5))
emit(out, "bn_cumulative", lambda: nn.BatchNorm1d(5, momentum=None), (6, 5), lambda m, x: (m(x), m(x * 2))[1])
emit(out, "ln", lambda: nn.LayerNorm(6), (3, 6))
emit(out, "ln2", lambda: nn.LayerNorm((2, 3), eps=1e-3), (4, 2, 3))
emit(out, "rms", lambda: nn.RMSNorm(6), (3, 6))
emit(out, "gn", lambda: nn.GroupNorm(2, 4), (3, 4, 2, 3))
emit(out, "embedding", lambda: nn.Embedding(11, 6), (3, 4), integers=11)
emit(out, "mha", mha(), (2, 5, 8), lambda m, x: m(x, x, x, need_weights=False)[0])
emit(out, "mha_causal", mha(bias=False), (2, 5, 8), causal)
emit(out, "mha_cross", mha(), (2, 7, 8), cross)
emit(out, "embedding_padding", lambda: nn.Embedding(11, 6, padding_idx=3), (3, 4), integers=11)
emit(out, "bn3d", lambda: nn.BatchNorm3d(3), (2, 3, 2, 3, 2))
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "nn.h"), "w") as f:
    f.write("\n".join(out) + "\n")


# ---- dt_layers.h
def flat(*parts):
    return torch.cat([p.flatten() for p in parts if p is not None])


def last(state):
    return state if isinstance(state, tuple) else (state,)


def whole(m, x):
    """all outputs, then the last states"""
    y, state = m(x)
    return flat(y, *last(state))


def packed(lengths):
    def run(m, x):
        p = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=m.batch_first, enforce_sorted=False)
        y, state = m(p)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=m.batch_first, total_length=x.shape[1 if m.batch_first else 0])
        return flat(y, *last(state))
    return run


def ramp(*shape):
    n = 1
    for s in shape:
        n *= s
    return (torch.arange(n, dtype=torch.float32) / n - 0.5).reshape(shape)


def from_state(m, x):
    """begins with a state"""
    dirs = m.num_layers * (2 if m.bidirectional else 1)
    h = ramp(dirs, x.shape[1], m.hidden_size)
    y, state = m(x, (h, h * 2) if isinstance(m, nn.LSTM) else h)
    return flat(y, *last(state))


def keys_of(lengths, s):
    """True where a key is hidden"""
    return torch.arange(s)[None, :] >= torch.tensor(lengths)[:, None]


class Seq(nn.Module):
    """x is cut into target and memory"""

    def __init__(self, **kw):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True, **kw)

    def state_dict(self):
        return self.layer.state_dict()

    def named_parameters(self, *a, **kw):
        return self.layer.named_parameters(*a, **kw)

    def forward(self, x, **kw):
        return self.layer(x[:, :3], x[:, 3:], **kw)


out = ["/* Made by make_nn.py with PyTorch %s, as nn.h. */" % torch.__version__.split("+")[0]]
emit(out, "conv1d", lambda: nn.Conv1d(3, 4, 3, padding=1), (2, 3, 7))
emit(out, "conv1d_groups", lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), (2, 4, 9))
emit(out, "deconv1d", lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1, output_padding=1), (2, 3, 5))
emit(out, "deconv2d", lambda: nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1), (2, 3, 3, 4))
emit(out, "deconv2d_groups", lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(2, 1),
                                                        groups=2, bias=False), (1, 4, 3, 2))
emit(out, "in1d", lambda: nn.InstanceNorm1d(3, affine=True), (2, 3, 5))
emit(out, "in2d", lambda: nn.InstanceNorm2d(3, eps=1e-3), (2, 3, 2, 3))
emit(out, "in2d_track", lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True, momentum=0.3), (2, 3, 2, 3),
     lambda m, x: flat(m(x), m.eval()(x * 2)))
emit(out, "maxpool1d", lambda: nn.MaxPool1d(3, stride=2, padding=1), (2, 3, 8))
emit(out, "avgpool1d", lambda: nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False), (2, 3, 8))
emit(out, "adaptive1d", lambda: nn.AdaptiveAvgPool1d(3), (2, 3, 8))
emit(out, "rnn", lambda: nn.RNN(3, 5), (4, 2, 3), whole)
emit(out, "rnn_relu", lambda: nn.RNN(3, 5, 2, nonlinearity="relu", bias=False, batch_first=True), (2, 4, 3), whole)
emit(out, "lstm", lambda: nn.LSTM(3, 5), (4, 2, 3), whole)
emit(out, "lstm_deep", lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), (3, 5, 3), whole)
emit(out, "lstm_state", lambda: nn.LSTM(3, 4, 2, bidirectional=True, bias=False), (5, 2, 3), from_state)
emit(out, "lstm_lengths", lambda: nn.LSTM(3, 4, 2, bidirectional=True), (5, 4, 3), packed([3, 5, 1, 2]))
emit(out, "lstm_one", lambda: nn.LSTM(2, 9), (1, 1, 2), whole)
emit(out, "gru", lambda: nn.GRU(3, 5), (4, 2, 3), whole)
emit(out, "gru_deep", lambda: nn.GRU(3, 4, 2, bidirectional=True, batch_first=True), (3, 5, 3), whole)
emit(out, "gru_state", lambda: nn.GRU(3, 4, 2, bidirectional=True, bias=False), (5, 2, 3), from_state)
emit(out, "gru_lengths", lambda: nn.GRU(3, 4, 2, bidirectional=True, batch_first=True), (4, 5, 3), packed([3, 5, 1, 2]))
emit(out, "rnn_lengths", lambda: nn.RNN(3, 4, bidirectional=True), (5, 4, 3), packed([5, 5, 5, 5]))
emit(out, "encoder", lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), (2, 5, 8))
emit(out, "encoder_first", lambda: nn.TransformerEncoderLayer(8, 4, 12, dropout=0.0, batch_first=True, norm_first=True, activation="gelu",
                                                              layer_norm_eps=1e-3, bias=False), (2, 5, 8),
     lambda m, x: m(x, src_mask=torch.triu(torch.ones(5, 5, dtype=torch.bool), 1), is_causal=True))
emit(out, "encoder_mask", lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), (2, 5, 8),
     lambda m, x: m(x, src_mask=ramp(5, 5) * 4, src_key_padding_mask=torch.zeros(2, 5).masked_fill(keys_of([3, 5], 5), float("-inf"))))
emit(out, "decoder", Seq, (2, 7, 8))
emit(out, "decoder_first", lambda: Seq(norm_first=True), (2, 7, 8), lambda m, x: m(
    x, tgt_mask=torch.triu(torch.ones(3, 3, dtype=torch.bool), 1), memory_key_padding_mask=keys_of([2, 4], 4)))
with open(os.path.join(here, "layers.h"), "w") as f:
    f.write("\n".join(out) + "\n")
