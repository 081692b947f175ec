#!/usr/bin/env python3
"""Prints sampler.h: which items PyTorch's samplers take, for the test of dt's.

    python3 tests/golden/make_sampler.py > tests/golden/sampler.h

Small cases are kept in full, the others as one number for each rank: FNV-1a over the 64-bit indices.
"""
import random
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from torch.utils.data import DistributedSampler, WeightedRandomSampler, random_split  # noqa: E402

SEEDS = [0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**32 + 7, 2**63 - 1, 2**63, 2**64 - 20]


def digest(xs):
    h = 0xCBF29CE484222325
    for x in xs:
        h = ((h ^ x) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def deal(n, world, seed, epoch, shuffle, drop):
    out = []
    for rank in range(world):
        s = DistributedSampler(range(n), world, rank, shuffle=shuffle, seed=seed, drop_last=drop)
        s.set_epoch(epoch)
        out.append(list(s))
        assert len(out[-1]) == len(out[0])
    return out


def rows(xs, form, per):
    for i in range(0, len(xs), per):
        print("    " + ", ".join(form.format(x) for x in xs[i:i + per]) + ",")


def cases(name, kind, wanted, form, per, value):
    flat, table = [], []
    for c in wanted:
        ranks = deal(*c)
        n, world, seed, epoch, shuffle, drop = c
        table.append(f"{{ {n}, {world}, {seed}u, {epoch}, {int(shuffle)}, {int(drop)}, {len(ranks[0])}, {len(flat)} }}")
        flat += value(ranks)
    print(f"static const {kind} {name}_value[] = {{")
    rows(flat, form, per)
    print(f"}};\nstatic const golden_deal {name}[] = {{")
    rows(table, "{}", 2)
    print("};\n")


def weights(kind, n):
    """The same formulas as in the test; each is exact or rounded once."""
    if kind == 0:
        return [1.0] * n
    if kind == 1:
        return [1.0 / (i + 1) for i in range(n)]
    if kind == 2:
        return [0.1 * ((i * 7 + 1) % 13) for i in range(n)]
    if kind == 3:
        return [1e-300 * (i % 3) if i % 5 else 1e300 / (i + 1) for i in range(n)]
    return [0.0 if i != n // 2 else 3.0 for i in range(n)]


def main():
    rnd = random.Random(7)
    print(f"/* Made by make_sampler.py with PyTorch {torch.__version__}. digest: FNV-1a over 64-bit indices. */")
    print("#ifndef DT_GOLDEN_SAMPLER_H\n#define DT_GOLDEN_SAMPLER_H\n#include <stdint.h>\n")
    print("/* DistributedSampler: count items for each rank, the values of all ranks one after the other */")
    print("typedef struct golden_deal {\n    int64_t  n, world;\n    uint64_t seed;\n"
          "    int64_t  epoch, shuffle, drop, count, at;\n} golden_deal;\n")
    small = [(10, 3, 0, e, True, d) for e in (0, 1) for d in (False, True)]
    small += [(n, w, 5, 2, s, d) for n, w in ((0, 2), (1, 1), (1, 3), (2, 5), (3, 8), (5, 4), (7, 7), (9, 2))
              for s in (True, False) for d in (False, True)]
    cases("golden_small", "int8_t", small, "{}", 30, lambda ranks: [i for r in ranks for i in r])
    large = [(n, w, SEEDS[(n + w) % len(SEEDS)], (n * w) % 5, True, d)
             for n in (1, 2, 3, 17, 64, 100, 999) for w in (1, 2, 3, 4, 7, 16) for d in (False, True)]
    large += [(101, 3, s, e, True, False) for s in SEEDS for e in (0, 1, 19)]
    large += [(n, w, 3, 1, False, d) for n in (2, 50, 333) for w in (1, 3, 8) for d in (False, True)]
    for _ in range(100):
        large.append((rnd.randrange(1, 3000), rnd.randrange(1, 12), rnd.choice(SEEDS + [rnd.randrange(2**63)]),
                      rnd.randrange(0, 19), rnd.random() < 0.9, rnd.random() < 0.5))
    large += [(200003, 4, 11, 3, True, False), (65536, 5, 2**40 + 1, 0, True, True)]
    cases("golden_large", "uint64_t", large, "0x{:016x}u", 5, lambda ranks: [digest(r) for r in ranks])

    print("/* WeightedRandomSampler(weights(kind, n), draws, generator of seed) */")
    print("typedef struct golden_draw {\n    int64_t  kind, n, draws;\n    uint64_t seed, digest;\n} golden_draw;")
    table = []
    for kind in range(5):
        for n, draws in ((1, 1), (1, 3), (2, 1), (7, 1), (7, 2), (10, 10), (100, 1), (1000, 1), (1000, 1000),
                         (37, 500)):
            seed = SEEDS[(kind + n + draws) % len(SEEDS)] + draws % 3
            g = torch.Generator()
            g.manual_seed(seed)
            xs = list(WeightedRandomSampler(weights(kind, n), draws, generator=g))
            table.append(f"{{ {kind}, {n}, {draws}, {seed}u, 0x{digest(xs):016x}u }}")
    print("static const golden_draw golden_draws[] = {")
    rows(table, "{}", 2)
    print("};\n")

    print("/* random_split(range(n), part, generator of seed) */")
    print("typedef struct golden_part {\n    int64_t  n, parts;\n    uint64_t seed;\n    double   part[5];\n"
          "    int64_t  count[5];\n    uint64_t digest[5];\n} golden_part;")
    print("static const golden_part golden_parts[] = {")
    wanted = [(10, [3, 7]), (10, [10]), (10, [0, 4, 6, 0]), (1, [1, 0]), (0, [0, 0]), (1000, [800, 100, 100]),
              (30, [0.3, 0.3, 0.4]), (10, [0.5, 0.5]), (11, [0.5, 0.5]), (7, [0.25, 0.25, 0.25, 0.25]), (3, [0.1, 0.9]),
              (1003, [0.7, 0.2, 0.1]), (99, [1.0]), (5, [0.01, 0.01, 0.01, 0.96, 0.01]), (60000, [0.9, 0.1]),
              (2, [1.0, 0.0])]
    for k, (n, part) in enumerate(wanted):
        seed = SEEDS[k % len(SEEDS)]
        g = torch.Generator()
        g.manual_seed(seed)
        got = [list(s.indices) for s in random_split(range(n), part, generator=g)]
        lists = [", ".join(map(str, xs)) for xs in (map(float, part), [len(x) for x in got],
                                                    [f"0x{digest(x):016x}u" for x in got])]
        print(f"    {{ {n}, {len(part)}, {seed}u, {{ {lists[0]} }}, {{ {lists[1]} }},\n      {{ {lists[2]} }} }},")
    print("};\n\n#endif /* DT_GOLDEN_SAMPLER_H */")


if __name__ == "__main__":
    main()
