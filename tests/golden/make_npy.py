#!/usr/bin/env python3
"""Writes tests/corpus/npy/numpy-*.npy: files as NumPy itself writes them, for test_data_files.c and fuzz_npy.c.

    python3 tests/golden/make_npy.py        (needs numpy)
"""
import os
import numpy as np
from numpy.lib import format as npy

out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "corpus", "npy")
os.makedirs(out, exist_ok=True)


def save(name, a, version=None, pickled=False):
    with open(os.path.join(out, "numpy-" + name + ".npy"), "wb") as f:
        npy.write_array(f, a, version=version, allow_pickle=pickled)


a = (np.arange(24) - 5).reshape(4, 2, 3)
for t in "|b1 |u1 |i1 <i2 <u2 <i4 <u4 <i8 <f2 <f4 <f8 >i2 >i4 >i8 >f2 >f4 >f8".split():
    save("order-" + t.replace("|", "").replace("<", "little-").replace(">", "big-"), a.astype(t))
save("one-dimension", np.arange(5, dtype="<f4"))
save("number", np.float32(3).reshape(()))
save("no-items", np.zeros((0, 3), "<f4"))
save("version-2", a.astype("<f4"), version=(2, 0))
save("version-3", np.zeros(2, [("gr\u00fc\u00dfe", "<f4")]), version=(3, 0))
save("fortran", np.asfortranarray(a.astype("<f4")))
save("structured", np.zeros(3, [("a", "<f4"), ("b", "<i2", (2,))]))
save("object", np.array([{"a": 1}, None], dtype=object), pickled=True)
save("complex", np.zeros(3, "<c8"))
save("u64", np.zeros(3, "<u8"))
save("string", np.array(["ab", "c"]))
save("bytes", np.array([b"ab", b"c"]))
save("void", np.zeros(3, "V2"))
save("date", np.array(["2024-01-01"], dtype="datetime64[D]"))
