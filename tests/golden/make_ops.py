"""Writes ops.h: what PyTorch computes for small cases of every op, and for NaN, infinities and other special values.

    python3 tests/golden/make_ops.py > tests/golden/ops.h

Inputs are not stored: both sides make them from one integer formula (value() here, golden_value() in ops.h).
Outputs and gradients are stored as the bits of f32. Needs torch only.
"""
import struct
import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
DTYPES = {"f": torch.float32, "h": torch.float16, "b": torch.bfloat16,
          "i": torch.int64, "j": torch.int32, "u": torch.uint8}
DT_NAMES = {"f": "DT_F32", "h": "DT_F16", "b": "DT_BF16"}


NAN, INF = float("nan"), float("inf")


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def hexes(values):
    out, line = [], "    "
    for v in values:
        word = "0x%x," % bits(v)
        if len(line) + len(word) > 118:
            out.append(line)
            line = "    "
        line += word
    out.append(line)
    return "\n".join(out)


def value(e, k, lo, hi):
    """Element e of input k. Distinct for e < 1021."""
    return lo + (hi - lo) * ((e * 7919 + k * 104729 + 17) % 1021) / 1024.0


def weight(e):
    """Gradient of output element e: exact in every dtype."""
    return ((e * 31 + 7) % 127 - 63) / 64.0


def make_input(token, k, run, rng):
    """(leaf, operand) of one token of a spec: sizes, colon, dtype and view letters (see conformance.h)."""
    if token == "-":
        return None, None
    sizes, _, letters = token.partition(":")
    shape = [] if sizes == "s" else [int(s) for s in sizes.split("x")]
    dtype, view = DTYPES[run], ""
    for c in letters:
        if c in DTYPES:
            dtype = DTYPES[c]
        else:
            view = c
    base = list(shape)
    if view == "t":
        base[-1], base[-2] = base[-2], base[-1]
    if view == "n":
        base[-1] += 3
    n = 1
    for s in base:
        n *= s
    v = [value(e, k, *rng) for e in range(n)]
    if dtype in (torch.int64, torch.int32, torch.uint8):
        leaf = torch.tensor([int(x // 1) for x in v], dtype=dtype).reshape(base)
    else:
        leaf = torch.tensor(v, dtype=torch.float64).to(torch.float32).to(dtype).reshape(base)
    x = leaf
    if dtype.is_floating_point:
        leaf.requires_grad_(True)
    if view == "t":
        x = leaf.transpose(-1, -2)
    if view == "n":
        x = leaf.narrow(-1, 1, shape[-1])
    return leaf, x


def act(y, a):
    return [y, F.relu(y), torch.sigmoid(y), torch.tanh(y)][a] if a else y


def dims(x, i):
    mask = i[0] if i[0] else (1 << x.dim()) - 1
    return [d for d in range(x.dim()) if mask >> d & 1]


def i0(i, n):
    return (list(i) + [0] * 10)[:n]


def conv(x, w, b, i, d):
    sh, sw, ph, pw, dh, dw, g, a = i0(i, 8)
    return act(F.conv2d(x, w, b, (sh, sw), (ph, pw), (dh, dw), g), a)


def pool(f):
    def run(x, i, d):
        kh, kw, sh, sw, ph, pw, ceil, exclude = i0(i, 8)
        if f is F.max_pool2d:
            return f(x, (kh, kw), (sh, sw), (ph, pw), ceil_mode=bool(ceil))
        return f(x, (kh, kw), (sh, sw), (ph, pw), ceil_mode=bool(ceil), count_include_pad=not exclude)
    return run


def batch_norm(x, w, b, m, v, *rest):
    add, i, d = (rest[0] if len(rest) == 3 else None), rest[-2], rest[-1]
    y = F.batch_norm(x, m.detach().clone(), v.detach().clone(), w, b, bool(i[0]), d[1] or 0.1, d[0] or 1e-5)
    return act(y + add if add is not None else y, i[1])


def loss(f):
    def run(*a):
        x, t, w, i, d = (a[0], a[1], a[2] if len(a) == 5 else None, a[-2], a[-1])
        kw = dict(reduction=("mean", "sum", "none")[i[0]], ignore_index=i[2] if i[1] else -100)
        if f is F.cross_entropy:
            kw["label_smoothing"] = d[0]
        return f(x, t.long(), weight=None if w is None else w.detach(), **kw)
    return run


def pair_loss(f):
    def run(x, y, i, d):
        kw = dict(reduction=("mean", "sum", "none", "batchmean")[i[0]])
        if f is F.kl_div:
            kw["log_target"] = d[0] > 0
        if f is F.smooth_l1_loss:
            kw["beta"] = d[0] or 1.0
        return f(x, y, **kw)
    return run


def split(x, i, d):
    parts = [p * (k + 1) for k, p in enumerate(torch.split(x, i[0], i[1]))]
    return torch.cat(parts[::-1], i[1])


def pad(x, i, d):
    return F.pad(x, i[1:1 + i[0]], value=d[0])


UNARY = {
    "neg": lambda x, i, d: -x, "abs": lambda x, i, d: x.abs(), "sqrt": lambda x, i, d: x.sqrt(),
    "exp": lambda x, i, d: x.exp(), "log": lambda x, i, d: x.log(), "clamp": lambda x, i, d: x.clamp(d[0], d[1]),
    "relu": lambda x, i, d: F.relu(x), "leaky_relu": lambda x, i, d: F.leaky_relu(x, d[0]),
    "gelu": lambda x, i, d: F.gelu(x), "gelu_tanh": lambda x, i, d: F.gelu(x, approximate="tanh"),
    "silu": lambda x, i, d: F.silu(x), "sigmoid": lambda x, i, d: torch.sigmoid(x),
    "rsqrt": lambda x, i, d: torch.rsqrt(x), "reciprocal": lambda x, i, d: torch.reciprocal(x),
    "log1p": lambda x, i, d: torch.log1p(x), "expm1": lambda x, i, d: torch.expm1(x),
    "sin": lambda x, i, d: torch.sin(x), "cos": lambda x, i, d: torch.cos(x), "tan": lambda x, i, d: torch.tan(x),
    "erf": lambda x, i, d: torch.erf(x), "sign": lambda x, i, d: torch.sign(x), "floor": lambda x, i, d: torch.floor(x),
    "ceil": lambda x, i, d: torch.ceil(x), "round": lambda x, i, d: torch.round(x),
    "elu": lambda x, i, d: F.elu(x, d[0]), "selu": lambda x, i, d: F.selu(x), "mish": lambda x, i, d: F.mish(x),
    "hardswish": lambda x, i, d: F.hardswish(x), "logsigmoid": lambda x, i, d: F.logsigmoid(x),
    "tanh": lambda x, i, d: torch.tanh(x), "softplus": lambda x, i, d: F.softplus(x, d[0]),
    "add_scalar": lambda x, i, d: x + d[0], "sub_scalar": lambda x, i, d: x - d[0],
    "mul_scalar": lambda x, i, d: x * d[0], "div_scalar": lambda x, i, d: x / d[0],
    "rsub_scalar": lambda x, i, d: d[0] - x, "rdiv_scalar": lambda x, i, d: d[0] / x,
    "pow_scalar": lambda x, i, d: x ** d[0],
    "maximum_scalar": lambda x, i, d: torch.maximum(x, torch.tensor(d[0], dtype=x.dtype)),
    "minimum_scalar": lambda x, i, d: torch.minimum(x, torch.tensor(d[0], dtype=x.dtype)),
}
BINARY = {
    "add": lambda x, y, i, d: x + y, "sub": lambda x, y, i, d: x - y, "mul": lambda x, y, i, d: x * y,
    "div": lambda x, y, i, d: x / y, "pow": lambda x, y, i, d: x ** y,
    "atan2": lambda x, y, i, d: torch.atan2(x, y),
    "maximum": lambda x, y, i, d: torch.maximum(x, y), "minimum": lambda x, y, i, d: torch.minimum(x, y),
}
COMPARE = {
    "eq": lambda x, y, i, d: x == y, "ne": lambda x, y, i, d: x != y, "lt": lambda x, y, i, d: x < y,
    "le": lambda x, y, i, d: x <= y, "gt": lambda x, y, i, d: x > y, "ge": lambda x, y, i, d: x >= y,
}


def attention(q, k, v, *rest):
    """also with a mask (u8: 0 hides) and heads of q that share those of k and v"""
    mask, (i, d) = rest[0] if len(rest) > 2 else None, rest[-2:]
    if mask is not None and not mask.is_floating_point():
        mask = mask != 0
    elif mask is not None:
        mask = mask.detach()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=bool(i[0]), scale=d[0] if d[0] else None,
                                          enable_gqa=q.shape[1] != k.shape[1])


def recurrent(x, w_ih, w_hh, b_ih, b_hh, *rest):
    """y, the last h, and the last c of an LSTM"""
    given, kind = list(rest[:-2]) + [None, None], rest[-2][0]
    weights = [w_ih, w_hh] + ([b_ih, b_hh] if b_ih is not None else [])
    zero = torch.zeros(1, x.shape[1], w_hh.shape[1], dtype=x.dtype)
    h, c = [zero if g is None else g for g in given[:2]]
    run = (torch.rnn_tanh, torch.rnn_relu, torch.lstm, torch.gru)[kind]
    out = run(x, (h, c) if kind == 2 else h, weights, b_ih is not None, 1, 0.0, False, False, False)
    return torch.cat([t.flatten() for t in out])


OPS = {
    **UNARY, **BINARY, **COMPARE,
    "prelu": lambda x, w, i, d: F.prelu(x, w),
    "where": lambda c, x, y, i, d: torch.where(c != 0, x, y),
    "sum": lambda x, i, d: x.sum(dims(x, i), keepdim=bool(i[1])),
    "mean": lambda x, i, d: x.mean(dims(x, i), keepdim=bool(i[1])),
    "max": lambda x, i, d: x.amax(dims(x, i), keepdim=bool(i[1])),
    "min": lambda x, i, d: x.amin(dims(x, i), keepdim=bool(i[1])),
    "var": lambda x, i, d: x.var(dims(x, i), correction=0 if i[2] else 1, keepdim=bool(i[1])),
    "argmax": lambda x, i, d: x.argmax(dims(x, i)[0] if i[0] else None),
    "matmul": lambda a, b, i, d: torch.matmul(a, b),
    "linear": lambda x, w, b, i, d: act(F.linear(x, w, b), i[0]),
    "softmax": lambda x, i, d: F.softmax(x, i[0]), "log_softmax": lambda x, i, d: F.log_softmax(x, i[0]),
    "conv2d": conv, "maxpool2d": pool(F.max_pool2d), "avgpool2d": pool(F.avg_pool2d),
    "adaptive_avgpool2d": lambda x, i, d: F.adaptive_avg_pool2d(x, (i[0], i[1])),
    "batch_norm": batch_norm,
    "layer_norm": lambda x, w, b, i, d: F.layer_norm(x, x.shape[x.dim() - (i[0] or 1):], w, b, d[0] or 1e-5),
    "rms_norm": lambda x, w, i, d: F.rms_norm(x, x.shape[x.dim() - (i[0] or 1):], w, d[0] or 1.1920929e-7),
    "embedding": lambda ix, w, i, d: F.embedding(ix, w),
    "gather": lambda x, ix, i, d: torch.gather(x, i[0], ix.long()),
    "cat": lambda *a: torch.cat(a[:-2], a[-2][0]), "stack": lambda *a: torch.stack(a[:-2], a[-2][0]),
    "split": split, "pad": pad,
    "cross_entropy": loss(F.cross_entropy), "nll_loss": loss(F.nll_loss),
    "mse_loss": pair_loss(F.mse_loss), "l1_loss": pair_loss(F.l1_loss), "kl_div": pair_loss(F.kl_div), "smooth_l1_loss": pair_loss(F.smooth_l1_loss),
    "bce_with_logits": lambda x, y, i, d: F.binary_cross_entropy_with_logits(
        x, y.detach(), reduction=("mean", "sum", "none")[i[0]]),
    "attention": attention, "recurrent": recurrent,
    "conv_transpose2d": lambda x, w, b, i, d: F.conv_transpose2d(x, w, b, stride=i[0] or 1, padding=i[1], output_padding=i[2],
                                                                 dilation=i[3] or 1, groups=i[4] or 1),
}



# ---- dt_ops.h, and the later reductions
EQUATIONS = ["ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij->", "i,j->ij", "bhqd,bhkd->bhqk", "ij,ij->i", "ij,jk,kl->il",
             "ijk,jk->i", "ab,cb", "ijk->k"]


def signs(t):
    return torch.where(t > 0, 1, -1).to(torch.int32)


def topk(x, i, d):
    return torch.topk(x, i[1], i[0], largest=bool(i[2]))


def interpolate(x, i, d):
    kw = dict(scale_factor=(d[0], d[1])) if d[0] else dict(size=(i[0], i[1]))
    return F.interpolate(x, mode="bilinear", align_corners=bool(i[3]), **kw) if i[2] else F.interpolate(x, mode="nearest", **kw)


def focal(x, y, i, d):  # torchvision.ops.sigmoid_focal_loss
    alpha, gamma = d[0] or 0.25, d[1] or 2.0
    p = torch.sigmoid(x)
    ce = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    pt = p * y + (1 - p) * (1 - y)
    loss = ce * ((1 - pt) ** gamma)
    if alpha >= 0:
        loss = (alpha * y + (1 - alpha) * (1 - y)) * loss
    return (loss.mean(), loss.sum(), loss)[i[0]]


def reduction_of(i):
    return ("mean", "sum", "none")[i[0]]


def linear_norm(x, i, d):
    p = 2.0 if d[0] == 0 else d[0]
    return torch.linalg.vector_norm(x, p, dims(x, i), keepdim=bool(i[1]))


def cross_entropy_soft(*a):
    x, t, w, i, d = (a[0], a[1], a[2] if len(a) == 5 else None, a[-2], a[-1])
    return F.cross_entropy(x, t, weight=None if w is None else w.detach(), reduction=reduction_of(i), label_smoothing=d[0])


OPS.update({
    "std": lambda x, i, d: x.std(dims(x, i), correction=0 if i[2] else 1, keepdim=bool(i[1])),
    "prod": lambda x, i, d: x.prod(dims(x, i)[0], keepdim=bool(i[1])) if i[0] else x.prod(),
    "logsumexp": lambda x, i, d: x.logsumexp(dims(x, i), keepdim=bool(i[1])),
    "argmin": lambda x, i, d: x.argmin(dims(x, i)[0] if i[0] else None),
    "norm": linear_norm,
    "any": lambda x, i, d: x.bool().any(dims(x, i)[0]), "all": lambda x, i, d: x.bool().all(dims(x, i)[0]),
    "cumsum": lambda x, i, d: x.cumsum(i[0]),
    "sort": lambda x, i, d: torch.sort(x, dim=i[0], descending=bool(i[2]), stable=True)[0],
    "argsort": lambda x, i, d: torch.argsort(x, dim=i[0], descending=bool(i[2]), stable=True),
    "topk": lambda x, i, d: topk(x, i, d)[0], "topk_index": lambda x, i, d: topk(x, i, d)[1],
    "one_hot": lambda x, i, d: F.one_hot(x.long(), i[0]),
    "bincount": lambda x, w, i, d: torch.bincount(x.long(), w.detach(), i[0]),
    "index_select": lambda x, ix, i, d: x.index_select(i[0], ix.long()),
    "scatter": lambda x, s, k, i, d: x.scatter(i[0], torch.argsort(k.detach(), dim=i[0], stable=True), s),
    "scatter_add": lambda x, ix, s, i, d: x.scatter_add(i[0], ix.long(), s),
    "masked_fill": lambda x, m, i, d: x.masked_fill(m != 0, d[0]),
    "tril": lambda x, i, d: x.tril(i[0]), "triu": lambda x, i, d: x.triu(i[0]),
    "roll": lambda x, i, d: x.roll(i[0], i[1]), "flip": lambda x, i, d: x.flip(dims(x, i)),
    "repeat": lambda x, i, d: x.repeat(i[1:1 + i[0]]),
    "einsum": lambda *a: torch.einsum(EQUATIONS[a[-2][0]], *a[:-2]),
    "interpolate": interpolate,
    "pixel_shuffle": lambda x, i, d: F.pixel_unshuffle(x, i[0]) if i[1] else F.pixel_shuffle(x, i[0]),
    "hinge_embedding": lambda x, y, i, d: F.hinge_embedding_loss(x, signs(y.detach()), d[0], reduction=reduction_of(i)),
    "margin_ranking": lambda x, y, t, i, d: F.margin_ranking_loss(x, y, signs(t.detach()), d[0], reduction=reduction_of(i)),
    "cosine_embedding": lambda x, y, t, i, d: F.cosine_embedding_loss(x, y, signs(t.detach()), d[0], reduction=reduction_of(i)),
    "cosine_similarity": lambda x, y, i, d: F.cosine_similarity(x, y, 1),
    "multi_margin": lambda x, y, i, d: F.multi_margin_loss(x, y.long(), int(d[1]), d[0], reduction=reduction_of(i)),
    "triplet": lambda a, p, n, i, d: F.triplet_margin_loss(a, p, n, d[0], d[1], swap=bool(i[1]), reduction=reduction_of(i)),
    "focal": lambda x, y, i, d: focal(x, y.detach(), i, d),
    "cross_entropy_soft": cross_entropy_soft,
})
R2, RP = (-2.0, 2.0), (0.25, 3.0)
CASES = []


def case(op, spec, i=(), d=(), ranges=None, dtypes="f"):
    for dt in dtypes:
        CASES.append((op, spec, list(i0(i, 10)), [float(x) for x in (list(d) + [0] * 4)[:4]], ranges or {}, dt))


POSITIVE = {"sqrt", "log", "rsqrt", "log1p", "pow_scalar", "rdiv_scalar"}
PARAM = {"elu": (1.5,), "clamp": (-1.5, 1.25), "leaky_relu": (0.01,), "softplus": (2.0,), "pow_scalar": (2.5,), "add_scalar": (1.5,),
         "sub_scalar": (0.75,), "mul_scalar": (-2.5,), "div_scalar": (3.0,), "rsub_scalar": (0.3,),
         "rdiv_scalar": (0.7,), "maximum_scalar": (0.3,), "minimum_scalar": (0.3,)}
for name in UNARY:
    case(name, "13", d=PARAM.get(name, ()), ranges={0: RP if name in POSITIVE else (-4.0, 4.0)})
case("softplus", "13", d=(3,), ranges={0: (-9.0, 9.0)})
for p in (2, -1, 0.5, 0):
    case("pow_scalar", "9", d=(p,), ranges={0: RP})
for name in BINARY:
    r = {0: RP, 1: RP if name == "div" else R2} if name in ("div", "pow") else {}
    case(name, "2x1x5 3x1", ranges=r)
    case(name, "3x5:t 3x5", ranges=r, dtypes="fb" if name in ("add", "div") else "f")
for name in COMPARE:
    case(name, "4x5 5", ranges={0: (-2.0, 3.0), 1: (-2.0, 3.0)})
case("prelu", "2x3x4 3", ranges={1: (0.1, 0.5)})
case("prelu", "5 1", ranges={1: (0.1, 0.5)})
case("where", "2x5:u 5 2x1", ranges={0: (0.0, 2.0)})
for name in ("sum", "mean", "max", "min", "var"):
    for spec, i in (("4x3", (0,)), ("4x3", (1,)), ("2x3x4", (5, 1)), ("2x3x4", (2, 0, 1)), ("3x5:t", (2,))):
        case(name, spec, i)
case("argmax", "4x5")
case("argmax", "4x5", (2,))
for spec in ("5 5", "3x4 4x5", "4 2x4x3", "2x3x4 4", "2x1x3x4 3x4x2", "3x4:t 4x5:t"):
    case("matmul", spec, dtypes="fbh" if spec == "3x4 4x5" else "f")
case("linear", "2x3x4 5x4 5")
for a in (0, 1, 2, 3):
    case("linear", "3x4 5x4 5" if a != 2 else "3x4 5x4 -", (a,), dtypes="fb" if a == 0 else "f")
for name in ("softmax", "log_softmax"):
    case(name, "4x5", (1,), ranges={0: (-4.0, 4.0)}, dtypes="fb")
    case(name, "2x3x5", (1,), ranges={0: (-4.0, 4.0)})
case("conv2d", "2x3x5x4 4x3x3x3 4", (1, 1, 1, 1, 1, 1, 1, 0), dtypes="fb")
case("conv2d", "1x2x7x6 3x2x3x2 -", (2, 1, 0, 2, 1, 1, 1, 0))
case("conv2d", "1x2x7x7 3x2x3x3 3", (1, 1, 2, 2, 2, 2, 1, 1))
case("conv2d", "1x4x4x4 6x2x3x3 6", (1, 1, 1, 1, 1, 1, 2, 0))
case("conv2d", "1x4x5x5 4x1x3x3 4", (2, 2, 1, 1, 1, 1, 4, 0))
case("conv2d", "2x5x3x3 6x5x1x1 6", (1, 1, 0, 0, 1, 1, 1, 0))
for name in ("maxpool2d", "avgpool2d"):
    case(name, "2x2x6x4", (2, 2, 2, 2, 0, 0, 0, 0))
    case(name, "1x2x7x6", (3, 2, 2, 1, 1, 0, 0, 0))
    case(name, "1x2x6x7", (3, 3, 2, 2, 1, 1, 1, 0))
    case(name, "1x2x6x8", (3, 3, 2, 2, 0, 0, 1, 1))
case("adaptive_avgpool2d", "2x3x4x4", (1, 1))
case("adaptive_avgpool2d", "1x2x7x5", (3, 2))
BN = {1: (0.5, 1.5), 3: (-0.5, 0.5), 4: (0.5, 2.0)}
case("batch_norm", "3x2x3x2 2 2 2 2", (1, 0), ranges=BN)
case("batch_norm", "3x2x3x2 2 2 2 2", (0, 0), ranges=BN)
case("batch_norm", "3x2x3x2 2 2 2 2 3x2x3x2", (1, 1), ranges=BN)
case("batch_norm", "7x3 3 3 3 3", (1, 1), (0.1,), ranges=BN)
case("batch_norm", "2x3x4 3 3 3 3", (0, 1), ranges=BN)
case("layer_norm", "4x6 6 6", ranges={1: (0.5, 1.5)}, dtypes="fb")
case("layer_norm", "2x3x4 3x4 3x4", (2,), (0.01,), ranges={1: (0.5, 1.5)})
case("rms_norm", "4x6 6", ranges={1: (0.5, 1.5)})
case("rms_norm", "2x3x4 -", (2,), (0.01,))
case("embedding", "2x4:i 5x3", ranges={0: (0.0, 5.0)})
case("gather", "3x5 3x4:i", (1,), ranges={1: (0.0, 5.0)})
case("cat", "2x3 2x1 2x2", (1,))
case("stack", "2x3 2x3", (1,))
case("split", "2x7", (3, 1))
case("pad", "3x4", (4, 1, 0, 2, 1), (2.0,))
CE = {0: (-4.0, 4.0), 1: (0.0, 5.0), 2: (0.25, 2.0)}
for red in (0, 1, 2):
    case("cross_entropy", "7x5 7:i -", (red,), ranges=CE)
    case("cross_entropy", "7x5 7:i 5", (red, 1, 2), (0.1,), ranges=CE)
    case("nll_loss", "7x5 7:i 5", (red, 1, 2), ranges=CE)
case("cross_entropy", "2x5x3 2x3:i -", (0, 1, 0), (0.2,), ranges=CE)
for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "bce_with_logits"):
    for red in (0, 2):
        case(name, "3x4 3x4", (red,), (0.5,), ranges={1: (0.0, 1.0)})
for red in (0, 1, 2, 3):
    for d in (0, 1):
        case("kl_div", "3x4 3x4", (red,), (d,), ranges={0: (-3.0, 0.0), 1: (0.125, 1.0)})
case("attention", "1x2x4x3 1x2x4x3 1x2x4x3", (0,))
case("attention", "2x1x4x3 2x1x4x3 2x1x4x3", (1,), (0.4,))
case("attention", "1x2x3x4 1x2x5x4 1x2x5x4", (0,), dtypes="fb")
case("attention", "1x4x3x4 1x2x5x4 1x2x5x6", (0,), dtypes="f")
case("attention", "2x2x3x4 2x2x5x4 2x2x5x4 3x5:u", (0,), dtypes="f")
case("attention", "2x2x3x4 2x2x5x4 2x2x5x4 2x1x3x5", (0,), dtypes="f")
for kind, g in ((0, 1), (1, 1), (2, 4), (3, 3)):
    case("recurrent", "3x2x4 %dx4 %dx5 %d %d" % (5 * g, 5 * g, 5 * g, 5 * g), (kind,), dtypes="f")
    case("recurrent", "4x3x2 %dx2 %dx3 - - 1x3x3%s" % (3 * g, 3 * g, " 1x3x3" if g == 4 else ""), (kind,), dtypes="f")
case("conv_transpose2d", "2x3x4x5 3x2x3x3 2", (2, 1, 1))
case("conv_transpose2d", "1x4x3x3 4x3x2x3 6", (1, 0, 0, 2, 2), dtypes="f")


for name in ("std", "prod", "logsumexp"):
    for spec, i in (("4x3", (0,)), ("4x3", (1,)), ("2x3x4", (2, 1)), ("3x5:t", (2,))):
        case(name, spec, i)
case("prod", "5", ranges={0: (-2.0, 2.0)})
case("argmin", "4x5")
case("argmin", "4x5", (2,))
for p in (0, 1, 3, 2.5, float("inf")):
    case("norm", "4x5", (2,), (p,))
    case("norm", "4x5", (0, 1), (p,))
case("any", "4x3", (1,))
case("all", "4x3", (2,))
case("cumsum", "4x5", (1,), dtypes="fb")
case("cumsum", "4x5", (0,))
for name in ("sort", "argsort"):
    case(name, "4x5", (1,))
    case(name, "4x5", (0, 0, 1), dtypes="fb")
for name in ("topk", "topk_index"):
    case(name, "4x9", (1, 3, 1))
    case(name, "4x9", (0, 2, 0))
case("one_hot", "2x3:i", (5,), ranges={0: (0.0, 5.0)})
case("bincount", "9:i 9", (4,), ranges={0: (0.0, 6.0)})
case("index_select", "4x5 3:i", (1,), ranges={1: (0.0, 5.0)})
case("index_select", "4x5 6:i", (0,), ranges={1: (0.0, 4.0)})
case("scatter", "4x5 4x3 4x3", (1,))
case("scatter_add", "4x5 3x5:i 3x5", (0,), ranges={1: (0.0, 4.0)})
case("masked_fill", "3x4 4:u", (), (1.5,), ranges={1: (0.0, 2.0)})
for name in ("tril", "triu"):
    for k in (0, 1, -2):
        case(name, "2x4x3", (k,))
case("roll", "3x4", (3, 1))
case("roll", "3x4", (-1, 0))
case("flip", "3x4", (3,))
case("repeat", "2x3", (3, 2, 1, 2))
for k, spec in enumerate(("3x4 4x5", "2x3x4 2x4x5", "3x4", "3x4", "3 4", "2x2x3x4 2x2x5x4", "3x4 3x4", "3x4 4x2 2x5",
                          "3x4x2 4x2", "3x4 5x4", "2x3x4")):
    case("einsum", spec, (k,))
for i, d in (((6, 8), ()), ((2, 3), ()), ((0, 0), (1.5, 2.5)), ((6, 8, 1), ()), ((2, 3, 1), ()), ((7, 5, 1, 1), ()),
             ((1, 1, 1, 1), ()), ((0, 0, 1), (1.5, 2.5))):
    case("interpolate", "1x2x4x5", i, d)
case("pixel_shuffle", "1x8x2x3", (2,))
case("pixel_shuffle", "1x2x4x6", (2, 1))
for r in (0, 1, 2):
    case("hinge_embedding", "3x4 3x4", (r,), (1.0,))
    case("margin_ranking", "3x4 3x4 3x4", (r,), (0.5,))
    case("cosine_embedding", "5x4 5x4 5", (r,), (0.25,))
    case("multi_margin", "4x5 4:i", (r,), (1.0, 2 if r == 2 else 1), ranges={1: (0.0, 5.0)})
    case("triplet", "4x5 4x5 4x5", (r, r == 1), (1.0, 2.0))
    case("focal", "3x4 3x4", (r,), (0.5, 3.0) if r == 2 else (), ranges={1: (0.0, 1.0)})
    case("cross_entropy_soft", "4x5 4x5 5", (r,), (0.1,), ranges={1: (0.0, 1.0), 2: (0.25, 2.0)})
case("cross_entropy_soft", "2x5x3 2x5x3 -", (0,), ranges={1: (0.0, 1.0)})
case("cosine_similarity", "4x5 4x5")
case("pad", "3x6", (4, -1, 2, 1, -1), (2.0,))


def short(v):
    """The numbers of an initialiser without the zeros at its end."""
    v = list(v)
    while len(v) > 1 and v[-1] == 0:
        v.pop()
    return ", ".join("INFINITY" if x == INF else "%.17g" % x for x in v)


def write_cases():
    rows, at = [], 0
    print("static const uint32_t golden_data[] = {")
    for op, spec, i, d, ranges, dt in CASES:
        pairs = [make_input(t, k, dt, ranges.get(k, R2)) for k, t in enumerate(spec.split())]
        y = OPS[op](*[p[1] for p in pairs], i, d)
        n = y.numel()
        data = y.detach().float().flatten().tolist()
        offsets, mask = [], 0
        if y.requires_grad:
            w = torch.tensor([weight(e) for e in range(n)], dtype=torch.float32).to(y.dtype).reshape(y.shape)
            y.backward(w)
            for k, (leaf, _) in enumerate(pairs):
                if leaf is not None and leaf.requires_grad and leaf.grad is not None:
                    mask |= 1 << k
                    data += leaf.grad.float().flatten().tolist()
        print(hexes(data))
        span = ", ".join("{ %g, %g }" % ranges.get(k, R2) for k in range(len(pairs)))
        rows.append('    { "%s", "%s", { %s }, { %s }, { %s }, %s, %d, %d, 0x%x },' % (
            op, spec, short(i), short(d), span, DT_NAMES[dt], at, n, mask))
        at += len(data)
    print("};\nstatic const golden_case golden_cases[] = {")
    print("\n".join(r if len(r) <= 120 else r.replace(" }, DT_", " },\n      DT_") for r in rows))
    print("};\n")


SPECIAL1 = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 1e-40, -1e-40, 3e38, -3e38,
            100.0, -100.0, 25.0, -25.0, 88.5]
SPECIAL2 = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 3e38]


def write_special():
    print("static const uint32_t golden_special1[] = {\n%s\n};" % hexes(SPECIAL1))
    print("static const uint32_t golden_special2[] = {\n%s\n};" % hexes(SPECIAL2))
    rows = []
    n = len(SPECIAL2)
    for op in list(UNARY) + list(BINARY) + list(COMPARE):
        for d in ((2.0,), (3.0,), (0.5,), (-1.0,), (0.0,)) if op == "pow_scalar" else (PARAM.get(op, (0.0,)),):
            d = (list(d) + [0.0, 0.0])[:2]
            if op in UNARY:
                leaves = [torch.tensor(SPECIAL1, dtype=torch.float32)]
            else:
                leaves = [torch.tensor([a for a in SPECIAL2 for _ in range(n)], dtype=torch.float32),
                          torch.tensor(SPECIAL2 * n, dtype=torch.float32)]
            for x in leaves:
                x.requires_grad_(True)
            y = OPS[op](*leaves, [0] * 10, d)
            if op == "gelu":  # one by one: PyTorch's vectors overflow at the ends of the range, its scalars do not
                y = torch.cat([OPS[op](x[k:k + 1], [0] * 10, d) for k in range(len(SPECIAL1))])
            name = "golden_s%d" % len(rows)
            print("static const uint32_t %s[] = { /* %s %g */\n%s\n};" % (name, op, d[0], hexes(y.float().tolist())))
            grads = ["NULL", "NULL"]
            if y.requires_grad:
                y.sum().backward()
                for k, x in enumerate(leaves):
                    grads[k] = "%s_d%d" % (name, k)
                    print("static const uint32_t %s[] = {\n%s\n};" % (grads[k], hexes(x.grad.tolist())))
            rows.append('    { "%s", { %.17g, %.17g }, %d, %s, { %s, %s } },' % (
                op, d[0], d[1], len(leaves), name, grads[0], grads[1]))
    print("static const golden_special golden_specials[] = {\n%s\n};\n" % "\n".join(rows))


REDUCE = [[1.0, NAN, 3.0], [NAN, NAN], [INF, 1.0, 2.0], [-INF, 1.0, 2.0], [INF, -INF, 1.0], [INF, INF], [-INF, -INF],
          [3e38, 3e38, 1.0], [0.0, -0.0], [5.0], [1e-40, 1e-40], [2.0, 2.0, NAN, INF],
          [-3e38, 3e38], [100.0, -100.0, 0.0]]


def write_reductions():
    print("static const golden_reduction golden_reductions[] = {")
    row = lambda v: "{ %s }" % ", ".join("0x%x" % bits(x) for x in v)
    for v in REDUCE:
        x = torch.tensor(v)
        out = [x.sum(), x.mean(), x.amax(), x.amin(), x.argmax().float(), x.var()]
        print("    { %d, %s,\n      %s,\n      %s,\n      %s }," % (len(v), row(v), row([float(o) for o in out]),
                                                      row(F.softmax(x, 0).tolist()), row(F.log_softmax(x, 0).tolist())))
    print("};\n")


HEAD = """/* ops.h: golden values of dt's ops. Made with PyTorch %s (CPU) by
       python3 tests/golden/make_ops.py > tests/golden/ops.h
   golden_cases: outputs and gradients of small cases; golden_specials and golden_reductions: NaN, infinities, zeros,
   subnormals and the ends of the range. All values are the bits of f32. */
#ifndef GOLDEN_OPS_H
#define GOLDEN_OPS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* Inputs: element e of input k of a case, and the gradient of output element e. */
static inline double golden_value(int64_t e, int k, double lo, double hi)
{
    return lo + (hi - lo) * (double)((e * 7919 + k * 104729 + 17) %% 1021) / 1024.0;
}
static inline double golden_weight(int64_t e) { return (double)((e * 31 + 7) %% 127 - 63) / 64.0; }

typedef struct golden_case {
    const char *op, *spec;   /* as in conformance.h */
    int64_t     i[10];
    double      d[4];
    double      range[8][2]; /* lo, hi of each input */
    int         dtype;
    int         at, nout;    /* outputs in golden_data from 'at' ... */
    unsigned    grads;       /* ... then the gradients of the inputs of this mask, in order */
} golden_case;
enum { GOLDEN_NSPECIAL1 = %d, GOLDEN_NSPECIAL2 = %d };
typedef struct golden_special { /* one input: each of golden_special1; two: each pair of golden_special2 */
    const char     *op;
    double          d[2];
    int             nin;
    const uint32_t *out, *grad[2]; /* grad: of sum(out); NULL: none */
} golden_special;
typedef struct golden_reduction {
    int      n;
    uint32_t in[8], out[6]; /* sum mean max min argmax var */
    uint32_t softmax[8], log_softmax[8];
} golden_reduction;
"""
print(HEAD % (torch.__version__.split("+")[0], len(SPECIAL1), len(SPECIAL2)))
write_cases()
write_special()
write_reductions()
print("#endif /* GOLDEN_OPS_H */")
sys.stderr.write("%d cases\n" % len(CASES))
