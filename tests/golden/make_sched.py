#!/usr/bin/env python3
"""Prints sched.h: learning rates (and momenta) of PyTorch's schedulers over 1,000 steps, for the test of dt's.

    python3 tests/golden/make_sched.py > tests/golden/sched.h

A case is one scheduler with one set of options on an optimiser of two groups. Kept are the values at steps 0 to 30 and
at every 31st step after, and the sum of all values: most schedulers are recursive, a value carries the ones before it.
"""
import inspect
import math
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from torch.optim import lr_scheduler as L  # noqa: E402

STEPS = 1000
KEPT = list(range(31)) + list(range(31, STEPS + 1, 31))
BASE = (0.1, 0.037)  # of the two groups
COSINE = ("cosine", "cosine_restarts", "one_cycle")
CLASS = {"constant": L.ConstantLR, "linear": L.LinearLR, "step": L.StepLR, "multistep": L.MultiStepLR,
         "exponential": L.ExponentialLR, "polynomial": L.PolynomialLR, "cosine": L.CosineAnnealingLR,
         "cosine_restarts": L.CosineAnnealingWarmRestarts, "cyclic": L.CyclicLR, "one_cycle": L.OneCycleLR,
         "plateau": L.ReduceLROnPlateau}
# dt's name of an option, where it differs
DT = {"T_max": "t_max", "T_0": "t_0", "T_mult": "t_mult"}
WORD = {"triangular": "DT_MODE_TRIANGULAR", "triangular2": "DT_MODE_TRIANGULAR2", "exp_range": "DT_MODE_EXP_RANGE",
        "min": "DT_MODE_MIN", "max": "DT_MODE_MAX", "rel": "DT_THRESHOLD_REL", "abs": "DT_THRESHOLD_ABS",
        "cos": "DT_ANNEAL_COS", "linear": "DT_ANNEAL_LINEAR"}

CASES = [
    ("constant", {}), ("constant", dict(factor=0.5, total_iters=100)), ("constant", dict(factor=1.0, total_iters=3)),
    ("constant", dict(factor=0.7, total_iters=999)),
    ("linear", {}), ("linear", dict(start_factor=0.001, total_iters=300)),
    ("linear", dict(start_factor=1.0, end_factor=0.01, total_iters=800)),
    ("linear", dict(start_factor=1.0, end_factor=0.0, total_iters=40)),
    ("step", dict(step_size=30)), ("step", dict(step_size=7, gamma=0.97)), ("step", dict(step_size=1, gamma=1.001)),
    ("step", dict(step_size=400, gamma=0.0)),
    ("multistep", dict(milestones=[30, 80])), ("multistep", dict(milestones=[200, 3, 40, 40, 990], gamma=0.3)),
    ("multistep", dict(milestones=[0, 10], gamma=0.5)),
    ("exponential", dict(gamma=0.9)), ("exponential", dict(gamma=0.999)), ("exponential", dict(gamma=1.0)),
    ("polynomial", {}), ("polynomial", dict(total_iters=500, power=0.9)),
    ("polynomial", dict(total_iters=990, power=2.0)),
    ("cosine", dict(T_max=50)), ("cosine", dict(T_max=7, eta_min=0.003)), ("cosine", dict(T_max=1000)),
    ("cosine", dict(T_max=1)), ("cosine", dict(T_max=37, eta_min=0.05)),
    ("cosine_restarts", dict(T_0=10)), ("cosine_restarts", dict(T_0=10, T_mult=2)),
    ("cosine_restarts", dict(T_0=3, T_mult=3, eta_min=0.001)), ("cosine_restarts", dict(T_0=1)),
    ("cyclic", dict(base_lr=0.01, max_lr=0.1)), ("cyclic", dict(base_lr=0.01, max_lr=0.1, step_size_up=4)),
    ("cyclic", dict(base_lr=0.001, max_lr=0.3, step_size_up=30, step_size_down=11)),
    ("cyclic", dict(base_lr=0.01, max_lr=0.1, step_size_up=20, mode="triangular2")),
    ("cyclic", dict(base_lr=0.01, max_lr=0.1, step_size_up=17, step_size_down=40, mode="exp_range", gamma=0.995)),
    ("cyclic", dict(base_lr=0.0, max_lr=0.1, step_size_up=50, base_momentum=0.5, max_momentum=0.99)),
    ("cyclic", dict(base_lr=0.01, max_lr=0.1, step_size_up=50, cycle_momentum=False)),
    ("one_cycle", dict(max_lr=0.1, total_steps=1000)), ("one_cycle", dict(max_lr=0.1, epochs=10, steps_per_epoch=100)),
    ("one_cycle", dict(max_lr=0.02, total_steps=1000, pct_start=0.1, div_factor=10.0, final_div_factor=100.0)),
    ("one_cycle", dict(max_lr=0.1, total_steps=1001, anneal_strategy="linear")),
    ("one_cycle", dict(max_lr=0.1, total_steps=1000, three_phase=True)),
    ("one_cycle", dict(max_lr=0.1, total_steps=1001, three_phase=True, anneal_strategy="linear", pct_start=0.45)),
    ("one_cycle", dict(max_lr=0.1, total_steps=1000, base_momentum=0.5, max_momentum=0.6, pct_start=0.0)),
    ("one_cycle", dict(max_lr=0.1, total_steps=1000, cycle_momentum=False)),
    ("plateau", {}), ("plateau", dict(factor=0.5, patience=2, cooldown=3, min_lr=1e-4)),
    ("plateau", dict(mode="max", factor=0.7, patience=0, threshold=0.1, threshold_mode="abs")),
    ("plateau", dict(factor=0.9, patience=4, threshold=0.0, eps=1e-3)),
    ("plateau", dict(mode="max", patience=5, threshold=0.05, factor=0.8)),
    ("plateau", dict(threshold=0.05, threshold_mode="abs", factor=0.6, patience=3)),
]
WARM = [("constant", dict(factor=0.5, total_iters=100)),
        ("linear", dict(start_factor=1.0, end_factor=0.01, total_iters=800)),
        ("step", dict(step_size=30)), ("multistep", dict(milestones=[30, 80, 0])), ("exponential", dict(gamma=0.99)),
        ("polynomial", dict(total_iters=500, power=0.9)), ("cosine", dict(T_max=37, eta_min=0.003)),
        ("cosine_restarts", dict(T_0=10, T_mult=2, eta_min=0.0007)),
        ("cyclic", dict(base_lr=0.01, max_lr=0.1, step_size_up=40)),
        ("one_cycle", dict(max_lr=0.1, total_steps=1000)), ("plateau", dict(factor=0.5, patience=2, cooldown=3))]


def metric(i):
    """A sequence that falls in stretches and rises in others, from exact arithmetic; the test repeats it."""
    return 1.0 + ((i * 37) % 64) / 256.0 - (i // 50) / 32.0


def optimiser(adam, scale=1.0):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": b * scale} for b in BASE]
    return torch.optim.Adam(groups) if adam else torch.optim.SGD(groups, momentum=0.9)


def read(opt):
    g = opt.param_groups
    return [x["lr"] for x in g] + [x["betas"][0] if "betas" in x else x["momentum"] for x in g]


def run(kind, kw, adam, warm):
    """All values, steps 0 to STEPS: rows of (lr 0, lr 1, momentum 0, momentum 1)."""
    opt = optimiser(adam)
    if warm and "multiplier" in warm:
        return gradual(kind, kw, adam, warm)
    s = CLASS[kind](opt, **kw)
    plateau, rows = kind == "plateau", []
    n = warm["steps"] if warm else 0
    if warm:
        first = L.LinearLR(opt, warm["start"], 1.0, n)
        if not plateau:
            s = L.SequentialLR(opt, [first, s], [n])
    for i in range(STEPS + 1):
        rows.append(read(opt))
        if i == STEPS:
            break
        if not plateau:
            s.step()
        elif i < n - 1:
            first.step()
        elif i < n:  # ReduceLROnPlateau is refused by SequentialLR: it goes on from the base
            for g, b in zip(opt.param_groups, BASE):
                g["lr"] = b
        else:
            s.step(metric(i))
    return rows


def gradual(kind, kw, adam, warm):
    """lr to k*lr over n steps, then the scheduler on an optimiser with k*lr."""
    n, k = warm["steps"], warm["multiplier"]
    opt = optimiser(adam, k)
    kw = dict(kw)
    for name in ("base_lr", "max_lr"):
        if name in kw:
            kw[name] *= k
    s = CLASS[kind](opt, **kw)
    base = {"cyclic": [kw.get("base_lr", 0) / k] * 2, "one_cycle": [kw.get("max_lr", 0) / k / 25] * 2}.get(kind, BASE)
    rows = [[b * ((k - 1) * t / n + 1) for b in base] + read(opt)[2:] for t in range(n)]
    for i in range(n, STEPS + 1):
        rows.append(read(opt))
        if i < STEPS:
            s.step(metric(i)) if kind == "plateau" else s.step()
    return rows


def c_value(name, v):
    if isinstance(v, bool):
        return ("DT_YES" if v else "DT_NO") if name == "cycle_momentum" else str(v).lower()
    if isinstance(v, str):
        return WORD[v]
    if isinstance(v, list):
        return "{ " + ", ".join(map(str, v)) + " }"
    return "DT_ZERO" if v == 0 else repr(v)


def c_options(kind, kw):
    """As dt's initialisers. What equals PyTorch's default is left out there too, so dt's defaults are tested."""
    out = []
    sig = inspect.signature(CLASS[kind]).parameters
    for k, v in kw.items():
        assert k in sig, (kind, k)
        if sig[k].default is not inspect.Parameter.empty and sig[k].default == v and not isinstance(v, bool):
            continue
        if k == "milestones":
            out.append(f".milestones = (const int64_t[]){c_value(k, v)}, .nmilestones = {len(v)}")
        else:
            out.append(f".{DT.get(k, k)} = {c_value(k, v)}")
    return ", ".join(out)


def emit(index, kind, kw, adam, warm):
    rows = run(kind, kw, adam, warm)
    cols = [list(c) for c in zip(*rows)]
    assert all(math.isfinite(v) for c in cols for v in c)
    moves = cols[2] != [cols[2][0]] * len(rows) or kind in ("cyclic", "one_cycle")
    print(f"static const double golden_sched_{index}[][{len(KEPT)}] = {{")
    for c in cols[:3] if moves else cols[:2]:
        text = [repr(c[i]) for i in KEPT]
        print("    {")
        line = "       "
        for t in text:
            if len(line) + len(t) + 2 > 118:
                print(line)
                line = "       "
            line += " " + t + ","
        print(line + "\n    },")
    print("};")
    warm_c = "0" if not warm else ", ".join(f".{k} = {v!r}" for k, v in warm.items())
    sums = ", ".join(repr(math.fsum(c)) for c in cols)
    return (f'    {{ "{kind}", dt_{kind}_lr_with,\n      {{ {c_options(kind, kw) or "0"} }},\n'
            f'      {{ {warm_c} }}, {int(adam)}, {int(moves)}, {int(kind in COSINE)}, golden_sched_{index},\n'
            f'      {{ {sums} }} }},')


def main():
    print(f"/* Made by make_sched.py with PyTorch {torch.__version__}. */")
    print("#ifndef DT_GOLDEN_SCHED_H\n#define DT_GOLDEN_SCHED_H\n")
    print(f"enum {{ GOLDEN_SCHED_STEPS = {STEPS}, GOLDEN_SCHED_KEPT = {len(KEPT)} }};")
    print("/* the steps whose values are kept */")
    print("static int golden_sched_step(int i) { return i <= 30 ? i : 31 * (i - 30); }\n")
    table = []
    full = [(k, kw, False, None) for k, kw in CASES]
    full += [(k, kw, True, None) for k, kw in CASES if k in ("cyclic", "one_cycle")][::3]
    for i, (k, kw) in enumerate(WARM):
        full.append((k, kw, False, dict(steps=(5, 20, 1)[i % 3], start=(0.1, 1 / 3, 1e-4)[i % 3])))
        full.append((k, kw, True, dict(steps=20, start=0.01)))
        full.append((k, kw, False, dict(steps=(10, 20, 5)[i % 3], multiplier=(8.0, 2.5, 3.0)[i % 3])))
    for i, c in enumerate(full):
        table.append(emit(i, *c))
    print("\ntypedef struct golden_sched_case {")
    print("    const char      *name;")
    print("    dt_scheduler   *(*make)(dt_optimizer *opt, dt_scheduler_opts o);")
    print("    dt_scheduler_opts o;")
    print("    dt_warmup_opts   warm;")
    print("    int              adam;   /* the optimiser: Adam, or SGD with momentum 0.9 */")
    print("    int              moves;  /* a third row of values: the momentum (beta1) of group 0 */")
    print("    int              cosine; /* a cosine cancels near its minimum */")
    print("    const double   (*value)[GOLDEN_SCHED_KEPT]; /* lr of group 0, of group 1, momentum */")
    print("    double           sum[4]; /* of all values: lr of group 0 and 1, momentum of group 0 and 1 */")
    print("} golden_sched_case;")
    print("/* base lr of the two groups */")
    print(f"static const double golden_sched_base[2] = {{ {BASE[0]!r}, {BASE[1]!r} }};")
    print("static const golden_sched_case golden_sched[] = {")
    print("\n".join(table))
    print("};\n#endif")


if __name__ == "__main__":
    main()
