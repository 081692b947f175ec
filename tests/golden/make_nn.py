"""Layers of dt_nn.h: PyTorch's initial parameters (as hashes of their bytes) and outputs. Writes nn.h beside itself.

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
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "nn.h"), "w") as f:
    f.write("\n".join(out) + "\n")
