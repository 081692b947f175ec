"""Known networks of examples/models.h: parameter lists, outputs and gradients of torchvision's and transformers' models in f64, with
weights and inputs made by a formula that tests/nn/test_models.c has, too. Writes models.h beside itself.

    python3 tests/golden/make_models.py            (five minutes, 6 GiB)

Weights: element i of the tensor NAME is u = splitmix64(fnv1a(NAME) + (i + 1) * golden) in [-1, 1), scaled as scale() says. The
loss is the sum of all outputs, each times an element of the tensor "probe" or "probe2". own: how far PyTorch's own results in f32 are
from those in f64, by the measures of test_models.c; batch norms over few values lose digits."""
import hashlib
import os
import sys

import numpy as np
import torch
import torchvision
import transformers
from torch import nn

transformers.logging.set_verbosity_error()
M = (1 << 64) - 1


def unit(name, n):
    h = 0xcbf29ce484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001b3) & M
    with np.errstate(over="ignore"):
        z = np.uint64(h) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) * 2.0 ** -23 - 1


def scale(name, shape):
    """value = add + times * u"""
    if name.endswith("running_mean"):
        return 0.0, 0.125
    if name.endswith("running_var"):
        return 1.0, 0.5
    if len(shape) > 1:
        n = 1
        for d in shape[1:]:
            n *= d
        return 0.0, float(np.sqrt((6.0 if len(shape) == 4 else 3.0) / n))
    return (0.0, 0.125) if name.endswith("bias") else (0.75, 0.25)


def values(name, shape):
    add, times = scale(name, shape)
    n = 1
    for d in shape:
        n *= d
    return torch.from_numpy((add + times * unit(name, n)).astype(np.float32).reshape(shape))


def floats(name, shape):
    n = int(np.prod(shape))
    return torch.from_numpy((unit(name, n) * 1.75).astype(np.float32).reshape(shape)).double()


def tokens(name, shape, vocab):
    n = int(np.prod(shape))
    return torch.from_numpy((np.floor((unit(name, n) + 1) * 0.5 * vocab)).astype(np.int64).reshape(shape))


def shrink(module, k, classes):
    """Channels divided by k, except those of images and classes."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Conv2d):
            i = child.in_channels if child.in_channels == 3 else child.in_channels // k
            new = nn.Conv2d(i, child.out_channels // k, child.kernel_size, child.stride, child.padding, bias=child.bias is not None)
        elif isinstance(child, nn.BatchNorm2d):
            new = nn.BatchNorm2d(child.num_features // k, eps=child.eps)
        elif isinstance(child, nn.Linear):
            o = child.out_features
            new = nn.Linear(child.in_features // k, o if o == classes else o // k)
        else:
            shrink(child, k, classes)
            continue
        setattr(module, name, new)
    return module


class Twice(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.double_conv = nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), Twice(i, o))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.up = nn.ConvTranspose2d(i, o, 2, stride=2)
        self.conv = Twice(i, o)

    def forward(self, x, side):
        x = self.up(x)
        h, w = side.shape[2] - x.shape[2], side.shape[3] - x.shape[3]
        x = nn.functional.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))
        return self.conv(torch.cat((side, x), 1))


class Out(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 1)

    def forward(self, x):
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, c, classes):
        super().__init__()
        self.inc = Twice(3, c)
        for i in range(4):
            setattr(self, "down%d" % (i + 1), Down(c << i, c << (i + 1)))
        for i in range(4):
            setattr(self, "up%d" % (i + 1), Up(c << (4 - i), c << (3 - i)))
        self.outc = Out(c, classes)

    def forward(self, x):
        sides = [self.inc(x)]
        for i in range(4):
            sides.append(getattr(self, "down%d" % (i + 1))(sides[-1]))
        x = sides.pop()
        for i in range(4):
            x = getattr(self, "up%d" % (i + 1))(x, sides.pop())
        return self.outc(x)


tv = torchvision.models
CLASSES = {True: 1000, False: 10}


def vision(name, full, aux):
    n, c = CLASSES[full], dict(num_classes=CLASSES[full], weights=None)
    if name == "mobilenet_v2":
        return tv.mobilenet_v2(width_mult=1.0 if full else 0.25, **c)
    if name == "inception_v3":
        model = tv.inception_v3(init_weights=False, aux_logits=aux, **c)
    elif name == "unet":
        return UNet(64 if full else 8, 2)
    elif name == "vit":
        if full:
            return tv.vit_b_16(**c)
        return tv.VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=n)
    else:
        model = getattr(tv, name)(**c)
    return model if full else shrink(model, 16 if name == "inception_v3" else 8, n)


def language(name, full):
    eager = dict(attn_implementation="eager")
    if name == "gpt2":
        c = transformers.GPT2Config(**eager) if full else transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=99,
                                                                                   n_positions=24, **eager)
        return transformers.GPT2LMHeadModel(c)
    if name == "bert":
        c = transformers.BertConfig(**eager) if full else transformers.BertConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64, vocab_size=99, max_position_embeddings=24, **eager)
        return transformers.BertModel(c)
    c = dict(num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536, vocab_size=49152,
             rms_norm_eps=1e-5, tie_word_embeddings=True)  # SmolLM-135M
    if not full:
        c = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=99)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**c, **eager))


def entries(name, model):
    """state_dict as a safetensors file has it: shared tensors once; GPT-2 without its prefix."""
    rows, seen = [], set()
    for k, v in model.state_dict().items():
        if v.data_ptr() in seen:
            continue
        seen.add(v.data_ptr())
        if name == "gpt2":
            k = k[len("transformer."):]
        rows.append((k, tuple(v.shape), v))
    return rows


def digest(rows):
    text = "".join("%s %s\n" % (k, ",".join(map(str, s))) for k, s in sorted((k, s) for k, s, _ in rows))
    return hashlib.sha256(text.encode()).hexdigest()


def number(v):
    return "%.12g" % v


def case(out, table, name, full, shape, train, what, vocab=0):
    model = language(name, full) if vocab else vision(name, full, full or train)
    rows = entries(name, model)
    total = sum(int(np.prod(s)) for _, s, _ in rows)
    ident = "models_%s_%s" % (name, what)
    with torch.no_grad():
        for k, s, v in rows:
            v.copy_(torch.zeros(s) if k.endswith("num_batches_tracked") else values(k, s))
    model.train(train)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    state = {k: v.clone() for k, v in model.state_dict().items()}

    def results():
        kind = next(model.parameters()).dtype
        if vocab:
            x = tokens("tokens", shape, vocab)
            if name == "bert":
                mask = torch.ones(shape, dtype=torch.int64)
                mask[1, 7:] = 0
                types = (torch.arange(shape[1]) >= shape[1] // 2).to(torch.int64).expand(shape)
                r = model(x, attention_mask=mask, token_type_ids=types)
                ys = [r.last_hidden_state, r.pooler_output]
            else:
                ys = [model(x).logits]
        else:
            r = model(floats("x", shape).to(kind))
            ys = [r[0], r[1]] if isinstance(r, tuple) else [r]
        loss = sum((y * floats(p, y.shape).to(kind)).sum() for y, p in zip(ys, ("probe", "probe2")))
        loss.backward()
        grads = [(n[len("transformer."):] if name == "gpt2" else n, p.grad.double()) for n, p in model.named_parameters() if p.grad is not None]
        whole = float(torch.sqrt(sum((g * g).sum() for _, g in grads)))
        n = len(grads)
        picked = [(grads[i][0], grads[i][1]) for i in sorted({0, 1, n // 2, n // 2 + 1, n - 2, n - 1})]
        rows = [(k, float(g.norm()), float((g.flatten() * torch.from_numpy(unit(k, g.numel()))).sum())) for k, g in picked]
        y = ys[0].detach().double().flatten()
        model.zero_grad()
        return float(loss.detach()), y, whole, rows

    near = results()
    model.double().load_state_dict(state)
    loss, y, whole, grads = results()
    rms = float(y.norm()) / y.numel() ** 0.5
    at = y[:: max(1, y.numel() // 8)][:8]
    own = [max(float((near[1][:: max(1, y.numel() // 8)][:8] - at).abs().max()) / rms, abs(float(near[1].norm() - y.norm())) / float(y.norm())),
           abs(near[2] - whole) / whole]
    for (_, n0, a0), (_, n1, a1) in zip(near[3], grads):
        own[1] = max(own[1], max(abs(n0 - n1), abs(a0 - a1)) / max(n1, 1e-3 * whole))
    out.append("static const models_grad %s[] = {" % ident)
    for k, norm, along in grads:
        out.append('    { "%s", %s, %s },' % (k, number(norm), number(along)))
    out.append("    { NULL, 0, 0 }\n};")
    dims = ", ".join(map(str, shape))
    table.append('    { "%s", %d, %d, { %s }, %d, %dll, "%s", %s, %s, { %s }, %s, { %.1e, %.1e }, %s },' % (
        name, full, train, dims, len(rows), total, digest(rows), number(loss), number(float(y.norm())),
        ", ".join(number(float(v)) for v in at), number(whole), own[0], own[1], ident))
    print("%-14s %-6s loss %.6g, |y| %.4g, |grad| %.4g, own %.1e %.1e, %d parameters" % (name, what, loss, y.norm(), whole, *own, total), flush=True)


torch.manual_seed(1)
out, table = [], []
resnets = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
for name in ["alexnet", "vgg16"] + resnets + ["mobilenet_v2", "unet"]:
    case(out, table, name, False, (2, 3, 64, 64), False, "small")
case(out, table, "unet", False, (1, 3, 37, 50), False, "odd")
for name, n in [("resnet18", 4), ("resnet50", 8), ("mobilenet_v2", 4), ("unet", 4)]:
    case(out, table, name, False, (n, 3, 96, 96), True, "train")
case(out, table, "inception_v3", False, (2, 3, 299, 299), True, "train")
case(out, table, "inception_v3", False, (1, 3, 107, 91), False, "small")
case(out, table, "vit", False, (3, 3, 32, 32), False, "small")
for name in ["gpt2", "bert", "llama"]:
    case(out, table, name, False, (2, 12), False, "small", 99)
for name in ["alexnet", "vgg16"] + resnets + ["mobilenet_v2", "unet"]:
    case(out, table, name, True, (1, 3, 64, 64), False, "full")
case(out, table, "inception_v3", True, (1, 3, 299, 299), False, "full")
case(out, table, "vit", True, (1, 3, 224, 224), False, "full")
case(out, table, "gpt2", True, (1, 24), False, "full", 50257)
case(out, table, "bert", True, (2, 12), False, "full", 30522)
case(out, table, "llama", True, (1, 24), False, "full", 49152)

with open(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "models.h"), "w") as f:
    f.write("/* Made by make_models.py with PyTorch %s, torchvision %s, transformers %s. SHA-256 of the sorted lines \"name sizes\". */\n" % (
        torch.__version__.split("+")[0], torchvision.__version__.split("+")[0], transformers.__version__))
    f.write("typedef struct models_grad {\n    const char *name;\n    double      norm, along; /* along: times the formula's values of its name */\n} models_grad;\n")
    f.write("\n".join(out) + "\n")
    f.write("typedef struct models_case {\n    const char *net;\n    int         full, train;\n    int64_t     shape[4]; /* of the input; (b, t): tokens */\n"
            "    int         count;    /* tensors in the state_dict */\n    int64_t     numel;\n    const char *sha256;\n"
            "    double      loss, norm, y[8], grad_norm, own[2];\n    const models_grad *grads;\n} models_case;\n")
    f.write("static const models_case models_cases[] = {\n" + "\n".join(table) + "\n};\n")
