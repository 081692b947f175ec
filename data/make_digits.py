#!/usr/bin/env python3
"""Makes data/digits/*: the digits that scikit-learn ships, as IDX files, in their order, values as they are (0..16).

    python3 data/make_digits.py digits.csv.gz       (sklearn/datasets/data/digits.csv.gz; see data/README.md)
"""
import gzip
import os
import struct
import sys

with gzip.open(sys.argv[1], "rt") as f:
    rows = [[int(float(v)) for v in line.split(",")] for line in f]
assert len(rows) == 1797 and all(len(r) == 65 for r in rows)
assert all(0 <= v <= 16 for r in rows for v in r[:64]) and all(0 <= r[64] <= 9 for r in rows)

to = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits")
os.makedirs(to, exist_ok=True)
with open(os.path.join(to, "digits-images-idx3-ubyte"), "wb") as f:
    f.write(struct.pack(">4B3I", 0, 0, 8, 3, len(rows), 8, 8))
    f.write(bytes(v for r in rows for v in r[:64]))
with open(os.path.join(to, "digits-labels-idx1-ubyte"), "wb") as f:
    f.write(struct.pack(">4BI", 0, 0, 8, 1, len(rows)))
    f.write(bytes(r[64] for r in rows))
