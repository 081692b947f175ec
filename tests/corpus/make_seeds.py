#!/usr/bin/env python3
"""Writes the hand-made seeds of the fuzzing targets: tests/corpus/NAME/seed-*. What fuzzing found lies beside them.

    python3 tests/corpus/make_seeds.py

The leading bytes of an input are explained in tests/fuzz_NAME.c.
"""
import glob, gzip, os, struct

here = os.path.dirname(os.path.abspath(__file__))


def seed(target, name, data):
    os.makedirs(os.path.join(here, target), exist_ok=True)
    with open(os.path.join(here, target, "seed-" + name), "wb") as f:
        f.write(bytes(data))


def idx(kind, dims, data):
    return bytes([0, 0, kind, len(dims)]) + b"".join(struct.pack(">I", d) for d in dims) + bytes(data)


images = idx(8, (3, 2, 2), range(12))
labels = idx(8, (3,), [0, 1, 2])
seed("idx", "u8", b"\0\0\0" + images)
for kind, size in ((9, 1), (11, 2), (12, 4), (13, 4), (14, 8)):
    seed("idx", "type-%x" % kind, b"\0\0\0" + idx(kind, (2, 3), range(6 * size)))
seed("idx", "labels", b"\1\2\3" + idx(8, (3, 4, 1, 1), range(12)) + labels)
seed("idx", "labels-out-of-range", b"\1\2\2" + idx(8, (3, 4, 1, 1), range(12)) + labels)
seed("idx", "labels-too-few", b"\1\2\3" + idx(8, (3, 4, 1, 1), range(12)) + idx(8, (2,), [0, 1]))
wide = idx(12, (3,), [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0])
seed("idx", "labels-i32", b"\1\2\3" + idx(8, (3, 4, 1, 1), range(12)) + wide)
seed("idx", "eight-dims", b"\0\0\0" + idx(8, (2,) * 8, [7] * 256))
seed("idx", "nine-dims", b"\0\0\0" + idx(8, (1,) * 9, [7]))
seed("idx", "fit", b"\2\0\0" + idx(13, (5, 3), []))
seed("idx", "huge", b"\0\0\0" + idx(14, (0xFFFFFFFF,) * 8, []))
seed("idx", "zero", b"\0\0\0" + idx(8, (0, 4), []))
seed("idx", "truncated", b"\0\0\0" + images[:-1])
seed("idx", "long", b"\0\0\0" + images + b"x")
seed("idx", "gzip", b"\0\0\0" + gzip.compress(images, mtime=0))
seed("idx", "empty", b"\0\0\0")

text = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }"
headers = [
    ("<f4", "False", "(2, 3)"), (">i8", "False", "(4,)"), ("|u1", "True", "(4,)"), ("=f2", "False", "(1, 1, 1, 1)"),
    ("<f8", "True", "(2, 2)"), ("|O", "False", "(2,)"), ("<u8", "False", "(2,)"), ("<f4", "False", "()"),
    ("<f4", "False", "(4294967296, 4294967296, 4)"), ("<f4", "False", "(99999999999999999999,)"),
    ("<i2", "False", "(3L, 2L)"), ("<f4", "False", "(3)"), ("|i2", "False", "(3,)"),
]
for k, (d, f, s) in enumerate(headers):
    for mode in (3, 7):
        seed("npy", "text-%d-%d" % (k, mode), bytes([mode]) + (text % (d, f, s)).encode() + b" " * 5 + b"\n")
seed("npy", "order", b'\3{"shape":(2,),"fortran_order":False,"descr":"<f4"}')
seed("npy", "twice", b"\3{'shape': (2,), 'shape': (2,), 'descr': '<f4'}")
seed("npy", "list", b"\3{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}")
seed("npy", "behind", b"\3{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x")
ask = (text % ("<f8", "False", "(4294967296,)")).encode().ljust(69) + b"\n"
seed("npy", "80-bytes-ask-32-gib", b"\x93NUMPY\1\0" + struct.pack("<H", 70) + ask)

seed("records", "cifar10", b"\1" + bytes(13) + bytes([3]) + bytes(3072))
seed("records", "cifar10-label", b"\1" + bytes(13) + bytes([10]) + bytes(3072))
seed("records", "cifar10-short", b"\1" + bytes(13) + bytes(3072))
seed("records", "cifar100-fine", b"\2" + bytes(13) + bytes([3, 99]) + bytes(3072))
seed("records", "cifar100-coarse", b"\2\1" + bytes(12) + bytes([19, 100]) + bytes(3072))
seed("records", "f32", bytes([0, 0, 0, 0, 0, 0x00, 4, 0, 3, 0, 0, 0, 0, 0]) + bytes(range(48)))
seed("records", "u8-y", bytes([0, 0, 2, 1, 0, 0x55, 5, 5, 3, 0, 0, 0, 0, 0]) + b"hh" + bytes([1, 9, 8, 7, 2, 9, 8, 7]))
seed("records", "big-endian", bytes([0, 12, 0, 0, 8, 0x34, 7, 0, 1, 0, 0, 0, 0, 0]) + bytes(range(24)))
seed("records", "overlap", bytes([0, 0, 0, 0, 2, 0x55, 21, 0, 4, 0, 0, 4, 0, 0]) + bytes(range(30)))
seed("records", "far", bytes([64, 0, 0, 0, 0, 0x55, 5, 0, 1, 0, 0, 0, 0, 0]) + bytes(range(30)))
seed("records", "wide", bytes([32, 0, 0, 0, 0, 0x55, 12, 0, 40, 40, 40, 0, 0, 0]) + bytes(range(30)))

for size in (0, 1, 2, 4):
    seed("tokens", "size-%d" % size, bytes([size, 4, 0, 0, 0, 0]) + bytes(range(60)))
seed("tokens", "stride", bytes([1, 4, 1, 3, 0, 0]) + bytes(range(60)))
seed("tokens", "vocab", bytes([33, 4, 2, 0, 0, 50]) + bytes(range(60)))
seed("tokens", "short", bytes([2, 4, 0, 0, 0, 0]) + bytes(9))
seed("tokens", "odd", bytes([2, 4, 0, 0, 0, 0]) + bytes(21))
seed("tokens", "long", bytes([129, 62, 0, 0, 0, 0]) + bytes(21))
seed("tokens", "far", bytes([65, 2, 62, 0, 0, 0]) + bytes(21))

p5, p6 = b"P5\n3 2\n255\n" + bytes(6), b"P6 2 1 255\n" + bytes(6)
seed("pnm", "p5", b"\0\0" + p5)
seed("pnm", "p6", b"\0\0" + p6)
seed("pnm", "two", bytes([1, len(p5)]) + p5 + b"P5#x\n3#y\n2 255\r" + bytes(6))
seed("pnm", "differ", bytes([1, len(p5)]) + p5 + p6)
seed("pnm", "fit", b"\2\0P5 #comment\n 40\t#\n50\r255 ")
seed("pnm", "comment-before-data", b"\0\0P5 2 1 255#c\nab")
for k in b"123478":
    seed("pnm", "p%c" % k, b"\0\0P%c 1 1 255 a" % k)
for k in (0, 1, 254, 256, 65535, 65536, 99999999999):
    seed("pnm", "maxval-%d" % k, b"\0\0P5 1 1 %d a" % k)
seed("pnm", "wide", b"\2\0P6 65535 65535 255 a")
seed("pnm", "too-wide", b"\2\0P6 65536 1 255 a")
seed("pnm", "several", b"\0\0" + p5 + p5)
seed("pnm", "truncated", b"\0\0" + p5[:-1])
seed("pnm", "no-end", b"\0\0P5 1 1 255")
seed("pnm", "long-comment", b"\0\0P5 #" + b"c" * 4100)

packed = gzip.compress(images, mtime=0)
seed("gzip", "plain", b"\0\0\0\0" + packed)
seed("gzip", "members", b"\0\0\0\0" + gzip.compress(images[:10], mtime=0) + gzip.compress(images[10:], mtime=0))
seed("gzip", "padded", b"\0\0\0\0" + packed + bytes(20))
seed("gzip", "garbage", b"\0\0\0\0" + packed + b"x")
seed("gzip", "truncated", b"\0\0\0\0" + packed[:-9])
seed("gzip", "no-sum", b"\0\0\0\0" + packed[:-1])
seed("gzip", "bad-sum", b"\0\0\0\0" + packed[:-5] + b"\xff" + packed[-4:])
seed("gzip", "short-inside", b"\0\0\0\0" + gzip.compress(images[:-1], mtime=0))
seed("gzip", "long-inside", b"\0\0\0\0" + gzip.compress(images + b"x", mtime=0))
seed("gzip", "not-idx", b"\0\0\0\0" + gzip.compress(b"hello", mtime=0))
seed("gzip", "header-only", b"\0\0\0\0" + gzip.compress(images[:7], mtime=0))
seed("gzip", "announces-much", b"\0\0\0\0" + gzip.compress(idx(8, (0x7FFFFFFF,), []), mtime=0))
seed("gzip", "bomb", b"\0\0\0\0" + gzip.compress(idx(8, (300000,), bytes(400000)), mtime=0))
seed("gzip", "large", b"\0\0\0\0" + gzip.compress(idx(8, (300000,), bytes(300000)), mtime=0))
seed("gzip", "pack", b"\x61\0\0\0" + images)
seed("gzip", "pack-two", b"\x63\3\0\0" + images)
seed("gzip", "stored", b"\x01\0\0\0" + idx(14, (2, 2), range(32)))
seed("gzip", "flip", b"\x91\0\x14\x20" + idx(8, (64,), [1] * 64))

# safetensors: whole files of tests/golden, and headers by themselves
for f in sorted(glob.glob(os.path.join(here, "..", "golden", "[a-z]*.safetensors"))):
    with open(f, "rb") as g:
        seed("archive", os.path.basename(f).split(".")[0], b"1" + g.read())
def entry(name, dtype, shape, begin, end):
    return b'"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}' % (name, dtype, shape, begin, end)


seed("archive", "header", b"0\3{" + entry(b"a", b"U8", b"[1]", 0, 1) + b"," + entry(b"b", b"F16", b"[]", 1, 3) + b"}")
seed("archive", "overlap", b"0\2{" + entry(b"a", b"U8", b"[2]", 0, 2) + b"," + entry(b"b", b"U8", b"[1]", 1, 2) + b"}")
seed("archive", "metadata", b'0\0{"__metadata__":{"format":"pt","\\u00e9":"\\ud83d\\ude00"}}')
