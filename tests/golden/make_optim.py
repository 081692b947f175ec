#!/usr/bin/env python3
"""Prints optim.h: parameters after 1, 2 and 20 steps of PyTorch's optimisers (LARS and LAMB: of their formulas), and
what clip_grad_norm_ and clip_grad_value_ make of gradients.

    python3 tests/golden/make_optim.py > tests/golden/optim.h

Values and gradients are drawn by one generator, seed 7: the three parameters, then three gradients a step. dt draws the
same bits.
"""
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402

SHAPES = [(4, 5), (3,), (2, 2, 2, 2)]
KEPT = [1, 2, 20]


class Lars:
    """d = (g + wd w) trust |w|/(|g| + wd |w| + eps); buf = momentum buf + d; w -= lr (buf, or d + momentum buf)"""

    def __init__(self, params, lr=0.1, momentum=0.9, weight_decay=0.0, nesterov=False, eps=1e-8, trust_coefficient=0.001,
                 no_trust_ratio=False, maximize=False):
        self.p, self.o = params, (lr, momentum, weight_decay, nesterov, eps, trust_coefficient, no_trust_ratio, maximize)
        self.buf = [None] * len(params)

    @torch.no_grad()
    def step(self):
        lr, momentum, wd, nesterov, eps, trust, no_trust_ratio, maximize = self.o
        for i, p in enumerate(self.p):
            g = -p.grad if maximize else p.grad
            w, n = p.norm().item(), g.norm().item()
            k = 1.0 if no_trust_ratio or w == 0 or n == 0 else trust * w / (n + wd * w + eps)
            d = (g + wd * p) * k
            self.buf[i] = d.clone() if self.buf[i] is None else momentum * self.buf[i] + d
            p -= lr * (d + momentum * self.buf[i] if nesterov else self.buf[i])


class Lion:
    """Chen et al. 2023, algorithm 2: w -= lr (sign(b1 m + (1 - b1) g) + wd w); m = b2 m + (1 - b2) g"""

    def __init__(self, params, lr=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.0, maximize=False):
        self.p, self.o = params, (lr, beta1, beta2, weight_decay, maximize)
        self.m = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self):
        lr, b1, b2, wd, maximize = self.o
        for p, m in zip(self.p, self.m):
            g = -p.grad if maximize else p.grad
            p.mul_(1 - lr * wd)
            p.sub_(lr * torch.sign(b1 * m + (1 - b1) * g))
            m.mul_(b2).add_(g, alpha=1 - b2)


class Lamb:
    """u = m/c1/(sqrt(v/c2) + eps) + wd w; w -= lr |w|/|u| u, the ratio only where wd is not 0"""

    def __init__(self, params, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01, no_trust_ratio=False,
                 maximize=False):
        self.p, self.o = params, (lr, beta1, beta2, eps, weight_decay, no_trust_ratio, maximize)
        self.m = [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]
        self.t = 0

    @torch.no_grad()
    def step(self):
        lr, b1, b2, eps, wd, no_trust_ratio, maximize = self.o
        self.t += 1
        c1, c2 = 1 - b1 ** self.t, 1 - b2 ** self.t
        for p, m, v in zip(self.p, self.m, self.v):
            g = -p.grad if maximize else p.grad
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            u = (m / c1) / ((v / c2).sqrt() + eps) + wd * p
            w, n = p.norm().item(), u.norm().item()
            k = 1.0 if no_trust_ratio or wd == 0 or w == 0 or n == 0 else w / n
            p -= lr * k * u


CASES = [
    ("sgd", {}),
    ("sgd", dict(lr=0.1, weight_decay=0.05)),
    ("sgd", dict(lr=0.1, momentum=0.9)),
    ("sgd", dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05)),
    ("sgd", dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ("sgd", dict(lr=0.1, momentum=0.8, maximize=True)),
    ("sgd", dict(lr=0.1, momentum=0.9, clip_norm=0.5)),
    ("sgd", dict(lr=0.1, clip_norm=100.0)),
    ("sgd", dict(lr=0.1, clip_value=0.25)),
    ("sgd", dict(lr=0.1, clip_value=0.5, clip_norm=1.5)),
    ("adam", {}),
    ("adam", dict(lr=0.02, beta1=0.8, beta2=0.95, eps=1e-4, weight_decay=0.1)),
    ("adam", dict(lr=0.02, beta1=0.3, amsgrad=True)),
    ("adam", dict(lr=0.02, maximize=True, amsgrad=True, weight_decay=0.02)),
    ("adam", dict(lr=0.02, clip_norm=0.7)),
    ("adamw", {}),
    ("adamw", dict(lr=0.03, weight_decay=0.3, amsgrad=True)),
    ("adamw", dict(lr=0.03, weight_decay=0.0, beta2=0.9)),
    ("rmsprop", {}),
    ("rmsprop", dict(centered=True)),
    ("rmsprop", dict(momentum=0.9, alpha=0.9, lr=0.005)),
    ("rmsprop", dict(momentum=0.5, centered=True, weight_decay=0.1, eps=1e-3, maximize=True)),
    ("adagrad", {}),
    ("adagrad", dict(lr=0.1, lr_decay=0.1, weight_decay=0.05)),
    ("adagrad", dict(lr=0.1, initial_accumulator_value=0.5, eps=1e-3, maximize=True)),
    ("lars", {}),
    ("lars", dict(lr=0.5, weight_decay=0.1, trust_coefficient=0.02)),
    ("lars", dict(lr=0.5, momentum=0.7, nesterov=True, trust_coefficient=0.05, eps=0.01, clip_norm=1.0, maximize=True)),
    ("lars", dict(lr=0.01, no_trust_ratio=True)),
    ("lion", {}),
    ("lion", dict(lr=0.02, weight_decay=0.1, beta1=0.8, beta2=0.9, maximize=True)),
    ("adafactor", {}),
    ("adafactor", dict(lr=0.03125, weight_decay=0.25, beta2_decay=-0.6, eps=1e-5, eps2=0.05, d=1.5)),
    ("adafactor", dict(lr=0.05, maximize=True, clip_norm=0.5)),
    ("lamb", {}),
    ("lamb", dict(lr=0.02, weight_decay=0.1, clip_norm=0.0)),
    ("lamb", dict(lr=0.02, weight_decay=0.0, clip_norm=0.0, beta1=0.8, beta2=0.9, eps=1e-3)),
    ("lamb", dict(lr=0.02, weight_decay=0.1, no_trust_ratio=True, maximize=True)),
]


def make(kind, o, params):
    o = dict(o)
    if kind in ("lars", "lamb", "lion"):
        return {"lars": Lars, "lamb": Lamb, "lion": Lion}[kind](params, **o)
    if kind == "adafactor" and "eps" in o:
        o["eps"] = (o.pop("eps"), o.pop("eps2", 1e-3))
    if "beta1" in o or "beta2" in o:
        o["betas"] = (o.pop("beta1", 0.9), o.pop("beta2", 0.999))
    cls = dict(sgd=torch.optim.SGD, adam=torch.optim.Adam, adamw=torch.optim.AdamW, rmsprop=torch.optim.RMSprop,
               adagrad=torch.optim.Adagrad, adafactor=torch.optim.Adafactor)[kind]
    return cls(params, foreach=False, **o)


def draw(generator):
    return [torch.empty(s).normal_(generator=generator) for s in SHAPES]


def run(kind, o):
    o = dict(o)
    clip_norm = o.pop("clip_norm", 1.0 if kind == "lamb" else 0.0)
    clip_value = o.pop("clip_value", 0.0)
    g = torch.Generator().manual_seed(7)
    params = [torch.nn.Parameter(t) for t in draw(g)]
    opt = make(kind, o, params)
    out = []
    for step in range(1, max(KEPT) + 1):
        for p, grad in zip(params, draw(g)):
            p.grad = grad
        if clip_value > 0:
            torch.nn.utils.clip_grad_value_(params, clip_value)
        if clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(params, clip_norm)
        opt.step()
        if step in KEPT:
            out.append(torch.cat([p.detach().flatten() for p in params]).tolist())
    return out


def number(x):
    """As few digits as give the same f32."""
    text = next(t for t in (f"{x:.{d}g}" for d in range(1, 10)) if torch.tensor(float(t)).item() == x)
    return text if any(c in text for c in ".en") else text + ".0"


def array(xs, indent):
    lines = [", ".join(number(x) + "f" for x in xs[i:i + 7]) for i in range(0, len(xs), 7)]
    return "{ " + (",\n" + " " * (indent + 2)).join(lines) + " }"


def option(k, v):
    if isinstance(v, bool):
        return f".{k} = true"
    return f".{k} = DT_ZERO" if v == 0 else f".{k} = {v!r}"


def clipping():
    g = torch.Generator().manual_seed(7)
    params = [torch.nn.Parameter(t) for t in draw(g)]
    grads = draw(g)
    print("/* The first step's gradients: their norm, and what clipping to the norm 2 and to the value 0.5 leaves. */")
    for name, f in (("norm", lambda: torch.nn.utils.clip_grad_norm_(params, 2.0)),
                    ("value", lambda: torch.nn.utils.clip_grad_value_(params, 0.5))):
        for p, grad in zip(params, grads):
            p.grad = grad.clone()
        r = f()
        if name == "norm":
            print(f"static const float golden_clip_total = {number(r.item())}f;")
        flat = torch.cat([p.grad.flatten() for p in params]).tolist()
        print(f"static const float golden_clip_{name}[GOLDEN_OPTIM_N] =\n    {array(flat, 4)};")


def main():
    n = sum(torch.Size(s).numel() for s in SHAPES)
    print(f"/* Made by make_optim.py with PyTorch {torch.__version__}: parameters after 1, 2 and 20 steps. */")
    print("#ifndef DT_GOLDEN_OPTIM_H\n#define DT_GOLDEN_OPTIM_H\n")
    print(f"enum {{ GOLDEN_OPTIM_N = {n}, GOLDEN_OPTIM_KEPT = {len(KEPT)}, GOLDEN_OPTIM_STEPS = {max(KEPT)} }};")
    print("typedef struct golden_optim_case {\n    const char *name;\n"
          "    dt_optimizer *(*make)(dt_model *m, dt_optimizer_opts o);\n    dt_optimizer_opts o;\n"
          "    float value[GOLDEN_OPTIM_KEPT][GOLDEN_OPTIM_N];\n} golden_optim_case;")
    print(f"static const int golden_optim_kept[GOLDEN_OPTIM_KEPT] = {{ {', '.join(map(str, KEPT))} }};\n")
    print("static const golden_optim_case golden_optim[] = {")
    for kind, o in CASES:
        text = ", ".join(option(k, v) for k, v in o.items())
        print(f'    {{ "{kind}", dt_{kind}_with,\n      {{ {text or ".dt__first = 0"} }},')
        print("      { " + ",\n        ".join(array(v, 8) for v in run(kind, o)) + " } },")
    print("};\n")
    clipping()
    print("\n#endif")


main()
