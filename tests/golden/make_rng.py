#!/usr/bin/env python3
"""Prints rng.h: what PyTorch's CPU generator draws, as bits, for the test of dt's generator.

    python3 tests/golden/make_rng.py > tests/golden/rng.h

Needs PyTorch on an x86-64 CPU with AVX2 (its normal draws differ in the last bits elsewhere).
"""
import struct
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402


def floats(t):
    return [struct.unpack("<I", struct.pack("<f", x))[0] for x in t.tolist()]


def words(xs):
    return [x & 0xFFFFFFFF for x in xs]


def digest(xs):
    """FNV-1a over 32-bit words: pins a long draw in one number."""
    h = 0x811C9DC5
    for x in xs:
        h = ((h ^ (x & 0xFFFFFFFF)) * 0x01000193) & 0xFFFFFFFF
    return h


def array(name, xs, note):
    print(f"/* {note} */")
    print(f"static const uint32_t {name}[{len(xs)}] = {{")
    for i in range(0, len(xs), 8):
        print("    " + ", ".join(f"0x{x:08x}" for x in xs[i:i + 8]) + ",")
    print("};\n")


def uniform(n, lo=0.0, hi=1.0):
    return floats(torch.empty(n).uniform_(lo, hi))


def normal(n, mean=0.0, std=1.0):
    return floats(torch.empty(n).normal_(mean, std))


def mixed():
    """Draws of all kinds in turn: a waiting second normal must survive the others."""
    out = []
    for _ in range(3):
        out += normal(3) + uniform(2, -0.7, 0.3) + normal(17, 0.5, 0.25)
        out += torch.randperm(5).tolist() + normal(2, 1.0, 3.0)
    return words(out)


def main():
    assert torch.backends.cpu.get_cpu_capability() == "AVX2", "the recorded bits are those of the AVX2 build"
    print(f"/* Made by make_rng.py with PyTorch {torch.__version__} (CPU, AVX2): bits of f32 values, or integers. */")
    print("#ifndef DT_GOLDEN_RNG_H\n#define DT_GOLDEN_RNG_H\n#include <stdint.h>\n")
    torch.manual_seed(0)
    array("golden_rand_0", floats(torch.rand(20)), "seed 0: uniform(20, 0, 1)")
    torch.manual_seed(42)
    array("golden_uniform_42", uniform(20, -0.1234567, 0.7654321), "seed 42: uniform(20, -0.1234567, 0.7654321)")
    for n in (1, 15, 16, 17, 40):
        torch.manual_seed(n)
        array(f"golden_randn_{n}", floats(torch.randn(n)), f"seed {n}: normal({n}, 0, 1)")
    torch.manual_seed(1)
    array("golden_normal_7", normal(7, 0.3, 1.7) + normal(4, 0.3, 1.7),
          "seed 1: normal(7, 0.3, 1.7), normal(4, 0.3, 1.7)")
    torch.manual_seed(2)
    array("golden_normal_33", normal(33, -0.3, 0.02), "seed 2: normal(33, -0.3, 0.02)")
    torch.manual_seed(0)
    array("golden_randperm_0", torch.randperm(10).tolist(), "seed 0: randperm(10)")
    torch.manual_seed(2**63 + 12345)
    array("golden_randperm_big", torch.randperm(37).tolist(), "seed 2^63 + 12345: randperm(37)")
    torch.manual_seed(5)
    array("golden_mixed_5", mixed(),
          "seed 5, three times: normal(3, 0, 1), uniform(2, -0.7, 0.3), normal(17, 0.5, 0.25),\n"
          "   randperm(5), normal(2, 1, 3)")
    torch.manual_seed(3)
    array("golden_multinomial_3", torch.multinomial(torch.tensor([[0.1, 0.0, 2.5, 0.4], [1.0, 1.0, 0.5, 0.0]]), 12, True)
          .flatten().tolist(), "seed 3: multinomial({{0.1, 0, 2.5, 0.4}, {1, 1, 0.5, 0}}, 12, replacement)")
    torch.manual_seed(4)
    array("golden_bernoulli_4", torch.bernoulli(torch.linspace(0.0, 1.0, 25)).int().tolist(),
          "seed 4: bernoulli(linspace(0, 1, 25))")
    torch.manual_seed(9)
    sums = [digest(uniform(100003, -2.5, 1.1)), digest(normal(100003)), digest(normal(5000, 3.0, 0.7)),
            digest(torch.randperm(20000).tolist())]
    array("golden_digest_9", sums,
          "seed 9, in turn: uniform(100003, -2.5, 1.1), normal(100003, 0, 1), normal(5000, 3, 0.7), randperm(20000);\n"
          "   FNV-1a over the 32-bit words of each: h = 0x811c9dc5, then h = (h ^ word) * 0x01000193")
    print("#endif")


if __name__ == "__main__":
    main()
