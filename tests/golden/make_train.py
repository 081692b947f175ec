#!/usr/bin/env python3
"""Prints train.h (losses of 50 training steps by PyTorch) or scaler.h (scales of its GradScaler).

    python3 tests/golden/make_train.py train  > tests/golden/train.h
    python3 tests/golden/make_train.py scaler > tests/golden/scaler.h

Same seed, same data, PyTorch's own initialisation: torch.manual_seed(1), modules made in the order the forward uses
them; inputs drawn from a second generator; labels are stored. train.h holds for
each training: FNV-1a of every entry of the initial state_dict and of the inputs, the loss of each step, and how far
PyTorch is from itself. The latter is the relative difference of the loss between one thread, contiguous images and the
single-tensor optimiser on one hand, and on the other hand 1 and 2 threads, channels_last images, the foreach and the
fused optimiser, and all of it in f64: the largest of these up to that step (differences grow, and are zero by chance),
and at least 2^-22.
"""
import sys
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

STEPS = 50
FLOOR = 2.0 ** -22


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def digest(t):
    return fnv(t.detach().contiguous().numpy().tobytes())


# ---------------------------------------------------------------------------------------------------- models
class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2)
        self.bn2 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(1568, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(torch.flatten(x, 1))


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        cin = 16
        for i, c in enumerate((16, 32, 64)):
            blocks = []
            for k in range(3):
                blocks.append(Block(cin, c, 2 if i and k == 0 else 1))
                cin = c
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 128)
        self.fc2 = nn.Linear(128, 128)
        self.fc3 = nn.Linear(128, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ln2 = nn.LayerNorm(d)
        self.fc = nn.Linear(d, 4 * d)
        self.proj = nn.Linear(4 * d, d)

    def forward(self, x, mask):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.proj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary=65, d=64, heads=4, length=32, layers=2):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, d)
        self.pos = nn.Embedding(length, d)
        self.layers = nn.ModuleList([Layer(d, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)

    def forward(self, x):
        t = x.shape[1]
        h = self.tok(x) + self.pos(torch.arange(t))
        mask = torch.triu(torch.full((t, t), float("-inf"), dtype=h.dtype), 1)
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(self.ln(h)).flatten(0, 1)


# ---------------------------------------------------------------------------------------------------- optimisers
class Lars(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0, trust=0.001, eps=1e-8, no_trust=False, wide=False):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust, eps=eps,
                                      no_trust=no_trust, wide=wide))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                g, wd = w.grad, group["weight_decay"]
                wn, gn = norm(w, group["wide"]), norm(g, group["wide"])
                ratio = 1.0
                if wn > 0 and gn > 0 and not group["no_trust"]:
                    ratio = group["trust"] * wn / (gn + wd * wn + group["eps"])
                d = (g + wd * w) * ratio
                s = self.state[w]
                s["buf"] = d if "buf" not in s else group["momentum"] * s["buf"] + d
                w -= group["lr"] * s["buf"]


class Lamb(torch.optim.Optimizer):
    """As Apex's FusedLAMB: the gradients' global norm is clipped, the ratio is for parameters with weight decay."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, max_norm=1.0, wide=False):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_norm=max_norm,
                                      wide=wide))

    @torch.no_grad()
    def step(self):
        wide = self.defaults["wide"]
        whole = sum(norm(w.grad, wide) ** 2 for group in self.param_groups for w in group["params"]) ** 0.5
        clip = min(1.0, self.defaults["max_norm"] / (whole + 1e-6))
        for group in self.param_groups:
            (b1, b2), wd = group["betas"], group["weight_decay"]
            for w in group["params"]:
                g, s = w.grad * clip, self.state[w]
                if not s:
                    s.update(t=0, m=torch.zeros_like(w), v=torch.zeros_like(w))
                s["t"] += 1
                s["m"] = b1 * s["m"] + (1 - b1) * g
                s["v"] = b2 * s["v"] + (1 - b2) * g * g
                u = (s["m"] / (1 - b1 ** s["t"])) / ((s["v"] / (1 - b2 ** s["t"])).sqrt() + group["eps"]) + wd * w
                wn, un = norm(w, wide), norm(u, wide)
                ratio = wn / un if wd != 0 and wn > 0 and un > 0 else 1.0
                w -= group["lr"] * ratio * u


def norm(t, wide):
    return (t.double() if wide else t).norm().item()


O = torch.optim
OPTIMISERS = {  # name: (class, options, other options of the biases)
    "sgd": (O.SGD, dict(lr=0.1), {}),
    "sgd_nesterov": (O.SGD, dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4), {}),
    "sgd_dampening": (O.SGD, dict(lr=0.1, momentum=0.9, dampening=0.5), {}),
    "adam": (O.Adam, dict(lr=1e-3), {}),
    "adam_amsgrad": (O.Adam, dict(lr=2e-3, amsgrad=True, weight_decay=1e-2), {}),
    "adamw": (O.AdamW, dict(lr=2e-3), {}),
    "rmsprop": (O.RMSprop, dict(lr=1e-3), {}),
    "rmsprop_centered": (O.RMSprop, dict(lr=2e-4, centered=True, momentum=0.9, weight_decay=1e-3), {}),
    "adagrad": (O.Adagrad, dict(lr=1e-2, lr_decay=1e-3), {}),
    "lars": (Lars, dict(lr=5.0, momentum=0.9, weight_decay=1e-3), {}),
    "lars_groups": (Lars, dict(lr=5.0, weight_decay=1e-3), dict(lr=0.05, weight_decay=0.0, no_trust=True)),
    "lamb": (Lamb, dict(lr=0.01, weight_decay=0.01), {}),
    "lamb_groups": (Lamb, dict(lr=0.01, max_norm=0.2), dict(lr=0.005, weight_decay=0.0)),
    "adamw_groups": (O.AdamW, dict(lr=2e-3, weight_decay=0.1), dict(lr=1e-3, weight_decay=0.0)),
}
FUSED = (O.SGD, O.Adam, O.AdamW, O.Adagrad)


def optimiser(cls, model, options, biases, variant):
    params = model.parameters()
    if biases:
        named = list(model.named_parameters())
        params = [{"params": [p for n, p in named if not n.endswith(".bias")]},
                  {"params": [p for n, p in named if n.endswith(".bias")], **biases}]
    if cls in (Lars, Lamb):
        return cls(params, wide=variant == "wide", **options)
    how = {"foreach": dict(foreach=True), "fused": dict(fused=True)}.get(variant, dict(foreach=False))
    return cls(params, **how, **options)


# ---------------------------------------------------------------------------------------------------- data
def images(seed, batches, shape, classes=10):
    """Normal draws plus a quarter of a pattern per class: one rounding for each element, the same everywhere."""
    g, labels = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 100)
    pattern = torch.randn((classes,) + shape[1:], generator=g)
    y = [torch.randint(classes, shape[:1], generator=labels) for _ in range(batches)]
    return [torch.randn(shape, generator=g) + 0.25 * pattern[b] for b in y], y


def tokens(batches, rows, length, vocabulary=65):
    """Integer arithmetic that the test repeats: mostly the token before times 3 plus 7, sometimes a fresh one."""
    state, out = 12345, []

    def draw():
        nonlocal state
        state = (state * 1103515245 + 12345) % 2 ** 31
        return state >> 16

    for _ in range(batches):
        t = []
        for _ in range(rows):
            row = [draw() % vocabulary]
            while len(row) < length + 1:
                row.append(draw() % vocabulary if draw() % 8 == 0 else (row[-1] * 3 + 7) % vocabulary)
            t.append(row)
        out.append(torch.tensor(t))
    return [t[:, :-1].contiguous() for t in out], [t[:, 1:].flatten() for t in out]


# ---------------------------------------------------------------------------------------------------- training
def train(make, cls, options, biases, data, variant):
    """Losses of STEPS steps in training mode, then the loss of the first batch in evaluation mode."""
    torch.set_num_threads(2 if variant == "threads" else 1)
    torch.manual_seed(1)
    model = make()
    if variant == "f64":
        model = model.double()
    if variant == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    opt = optimiser(cls, model, options, biases, variant)
    losses = []

    def loss_of(i):
        x, y = data[0][i % len(data[0])], data[1][i % len(data[1])]
        if variant == "f64" and x.is_floating_point():
            x = x.double()
        if variant == "channels_last":
            x = x.to(memory_format=torch.channels_last)
        return F.cross_entropy(model(x), y)

    for i in range(STEPS):
        opt.zero_grad()
        loss = loss_of(i)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(loss_of(0).item())
    return losses


def report(name, make, cls, options, biases, data, log):
    variants = ["threads", "f64"]
    variants += ["wide"] if cls in (Lars, Lamb) else ["foreach"]
    variants += ["fused"] if cls in FUSED else []
    variants += ["channels_last"] if data[0][0].dim() == 4 else []
    base = train(make, cls, options, biases, data, "base")
    spread, seen = [FLOOR] * len(base), {}
    for v in variants:
        other = train(make, cls, options, biases, data, v)
        diff = [abs(a - b) / abs(a) for a, b in zip(base, other)]
        seen[v] = max(diff)
        spread = [max(s, d) for s, d in zip(spread, diff)]
    for i in range(1, len(spread)):
        spread[i] = max(spread[i], spread[i - 1])
    log.append(f"   {name}: loss {base[0]:.3f} to {base[STEPS - 1]:.3f}; " +
               ", ".join(f"{v} {d:.1e}" for v, d in seen.items()))
    numbers(f"golden_{name}_loss", [f"{x:.9g}" for x in base])
    numbers(f"golden_{name}_self", [f"{x:.3g}" for x in spread])


def numbers(name, text, kind="double"):
    print(f"static const {kind} {name}[{len(text)}] = {{")
    line = "   "
    for t in text:
        if len(line) + len(t) + 2 > 118:
            print(line)
            line = "   "
        line += " " + t + ","
    print(line + "\n};")


def begin(name, make, data):
    """The entries of the initial state_dict, the inputs and the labels of a model."""
    torch.manual_seed(1)
    state = make().state_dict()
    print(f"static const golden_entry golden_{name}_state[] = {{")
    for k, v in state.items():
        print(f'    {{ "{k}", 0x{digest(v):016x}ull }},')
    print("};")
    print(f"static const uint64_t golden_{name}_input[{len(data[0])}] = {{")
    for x in data[0]:
        print(f"    0x{digest(x):016x}ull,")
    print("};")
    if data[0][0].is_floating_point():
        print(f"static const char *const golden_{name}_label[{len(data[1])}] = {{")
        for y in data[1]:
            text = "".join(map(str, y.tolist()))
            print('    "' + '"\n    "'.join(text[i:i + 110] for i in range(0, len(text), 110)) + '",')
        print("};")


def main_train():
    cpu = torch.backends.cpu.get_cpu_capability()
    print(f"/* Made by make_train.py with PyTorch {torch.__version__} (CPU, {cpu}).")
    print("   X_state: FNV-1a of the bytes of each entry of the initial state_dict; X_input: of each batch;")
    print("   X_label: the classes of each batch, one digit each; X_loss: 50 training losses and one in evaluation")
    print("   mode on the first batch; X_self: by how much PyTorch differs from itself up to there, relative. */")
    print("#ifndef DT_GOLDEN_TRAIN_H\n#define DT_GOLDEN_TRAIN_H\n#include <stdint.h>\n")
    print(f"enum {{ GOLDEN_TRAIN_STEPS = {STEPS} }};")
    print("typedef struct golden_entry {\n    const char *name;\n    uint64_t    fnv;\n} golden_entry;\n")
    log = []
    data = images(11, 5, (100, 1, 28, 28))
    begin("mnist", ConvNet, data)
    report("mnist", ConvNet, O.SGD, dict(lr=0.004, momentum=0.9), {}, data, log)
    data = images(12, 4, (32, 3, 32, 32))
    begin("resnet", ResNet20, data)
    report("resnet", ResNet20, O.SGD, dict(lr=0.002, momentum=0.9, weight_decay=1e-4), {}, data, log)
    data = images(13, 5, (64, 64))
    begin("mlp", MLP, data)
    for name, (cls, options, biases) in OPTIMISERS.items():
        report("mlp_" + name, MLP, cls, options, biases, data, log)
    data = tokens(4, 8, 32)
    begin("gpt", GPT, data)
    report("gpt", GPT, O.AdamW, dict(lr=1e-3, weight_decay=0.01), {}, data, log)
    print("/* PyTorch against itself, the largest relative difference of a loss:\n" + "\n".join(log) + " */")
    print("#endif")


# ---------------------------------------------------------------------------------------------------- loss scaling
SCALER = [  # options, where gradients overflow
    (dict(), "0" * 3 + "1" * 3 + "0" * 14),
    (dict(growth_interval=5), "0000000110000010000000000111100000000000"),
    (dict(init_scale=2.0 ** 10, growth_interval=1), "0001000011000111"),
    (dict(init_scale=1000.0, growth_factor=1.5, backoff_factor=0.7, growth_interval=3),
     "000000100001000000001100000000"),
    (dict(init_scale=2.0 ** 125, growth_interval=1), "000000010000"),  # never grows to infinity
    (dict(init_scale=4.0, growth_interval=2), "1" * 12 + "0" * 8),
    (dict(init_scale=8.0, growth_interval=4), "0001" * 3 + "0000" * 3 + "00010000"),
]


def trace(options, overflows):
    p = torch.zeros(1, requires_grad=True)
    opt = torch.optim.SGD([p], lr=1.0)
    s = torch.amp.GradScaler("cpu", **options)
    scales, trackers, stepped = [], [], []
    for c in overflows:
        s.scale(torch.ones(1))  # makes the scale's tensor
        p.grad = torch.full((1,), float("inf")) if c == "1" else torch.zeros(1)
        calls = []
        opt.step = lambda *a, calls=calls, **k: calls.append(1)
        s.step(opt)
        s.update()
        scales.append(s.get_scale())
        trackers.append(s._get_growth_tracker())
        stepped.append(len(calls))
    assert stepped == [int(c == "0") for c in overflows]
    return scales, trackers


def main_scaler():
    print(f"/* Made by make_train.py with PyTorch {torch.__version__}: torch.amp.GradScaler('cpu').")
    print("   overflow: '1' where a gradient was infinite: the optimiser's step was skipped there, and only there.")
    print("   scale, tracker: after scaler.update() of each step. */")
    print("#ifndef DT_GOLDEN_SCALER_H\n#define DT_GOLDEN_SCALER_H\n")
    rows = []
    for i, (options, overflows) in enumerate(SCALER):
        scales, trackers = trace(options, overflows)
        full = dict(init_scale=2.0 ** 16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000) | options
        numbers(f"golden_scaler_{i}", [f"{x:.9g}" for x in scales])
        numbers(f"golden_scaler_tracker_{i}", [str(t) for t in trackers], "int")
        rows.append(f"    {{ {full['init_scale']:.9g}, {full['growth_factor']!r}, {full['backoff_factor']!r}, "
                    f"{full['growth_interval']},\n      \"{overflows}\",\n      golden_scaler_{i}, "
                    f"golden_scaler_tracker_{i} }},")
    print("\ntypedef struct golden_scaler_case {")
    print("    double        init_scale, growth_factor, backoff_factor;")
    print("    int           growth_interval;")
    print("    const char   *overflow;\n    const double *scale;")
    print("    const int    *tracker; /* steps since it changed */")
    print("} golden_scaler_case;")
    print("static const golden_scaler_case golden_scaler[] = {\n" + "\n".join(rows) + "\n};\n#endif")


if __name__ == "__main__":
    assert sys.argv[1:] in (["train"], ["scaler"]), __doc__
    main_train() if sys.argv[1] == "train" else main_scaler()
