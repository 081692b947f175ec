#!/usr/bin/env python3
"""Writes the hand-made seeds of the fuzzing targets: tests/corpus/NAME/seed-*. What fuzzing found lies beside them.

    python3 tests/corpus/make_seeds.py

The leading bytes of an input are explained in tests/fuzz/fuzz_NAME.c.
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


# ---- dt_comm.h
job = b"\x6a" * 16


def hello_c(version=2, epoch=3, comm=7, rank=1, world=4, to=0, kind=2, stream=0):
    return (b"DTK1" + struct.pack("<I", version) + job
            + struct.pack("<qQ6i", epoch, comm, rank, world, to, kind, stream, 0) + bytes(64))


def hello_s(version=2, epoch=3):
    return b"DTK1" + struct.pack("<I", version) + job + struct.pack("<q", epoch) + bytes(32)


def hello_r(status=0, text=b""):
    return b"DTK1" + struct.pack("<i", status) + text.ljust(184, b"\0") + bytes(32)  # its last 4 bytes: a number


for kind in range(1, 7):
    for flags in (2, 10, 18, 26, 42, 58):
        seed("comm_shake", "server-%d-%d" % (kind, flags),
             bytes([flags, 0, 0, 0]) + hello_c(kind=kind, rank=3, to=2 if flags & 32 else 0, comm=0 if kind == 1 else 7))
roles = 2 << 32 | 1
for name, rank, comm, flags in (("worker", -2, roles, 2), ("server", -3, roles, 2), ("other", -4, roles, 2), ("numbered", 1, roles, 2),
                                ("differ", -2, 3 << 32 | 1, 2), ("none", -2, 0, 2), ("full", -2, roles, 10), ("inner", -3, roles, 34)):
    seed("comm_shake", "server-role-" + name,
         bytes([flags, 0, 128, 0]) + hello_c(kind=1, rank=rank, comm=comm, to=2 if flags & 32 else 0))
seed("comm_shake", "server-role-in-vain", b"\2\0\0\0" + hello_c(kind=1, rank=-2, comm=roles))
for name, c in (("version", hello_c(version=3)), ("epoch", hello_c(epoch=2)), ("world", hello_c(world=5)),
                ("rank", hello_c(rank=4)), ("self", hello_c(rank=0)), ("to", hello_c(to=1)), ("cut", hello_c()[:90])):
    seed("comm_shake", "server-bad-" + name, b"\x0a\3\0\0" + c)
seed("comm_shake", "server-unsigned", b"\x08\0\0\0" + hello_c())
seed("comm_shake", "server-gone", b"\x0a\0\0\x13" + hello_c(kind=2, rank=3))
seed("comm_shake", "server-leaving", b"\x4a\0\0\0" + hello_c(kind=2))
seed("comm_shake", "server-http", b"\0\4\0\0GET / HTTP/1.1\r\n\r\n")
for kind in range(5):
    seed("comm_shake", "client-%d" % kind, bytes([3, 2, kind, 0]) + hello_s() + hello_r())
seed("comm_shake", "client-refused", b"\3\1\1\0" + hello_s() + hello_r(-6, b"no" * 92))
seed("comm_shake", "client-unsigned", b"\1\0\1\0" + hello_s() + hello_r())
seed("comm_shake", "client-version", b"\3\0\1\0" + hello_s(version=3) + hello_r())
seed("comm_shake", "client-earlier", b"\3\0\1\0" + hello_s(epoch=2) + hello_r())
seed("comm_shake", "client-closed", b"\3\4\1\0" + hello_s())

loopback = struct.pack("<HBB4s", 2, 0x1F, 0x90, bytes([127, 0, 0, 1])).ljust(28, b"\0") + struct.pack("<I", 16)


def member(host, pid=1):
    return (struct.pack("<iiq", 0, 0, pid) + bytes([host]) * 16 + b"node".ljust(64, b"\0") + b"dt-name".ljust(32, b"\0")
            + loopback)


def table(total, first, n, hosts=2):
    return struct.pack("<4i", total, first, n, 0) + b"".join(member(1 + r % hosts) for r in range(first, first + n))


def head(kind, nbytes, rank=0, magic=b"DTCC"):
    return magic + struct.pack("<IIi", kind, nbytes & 0xFFFFFFFF, rank)


def framed(kind, body):
    return bytes([kind]) + struct.pack("<H", len(body)) + body


one = table(3, 0, 3)
seed("comm_join", "table", bytes([0, 2, 1, 4]) + head(2, len(one)) + one)
seed("comm_join", "table-parts", bytes([2, 5, 5, 5]) + framed(4, b"missing: rank 3") + framed(2, table(6, 0, 4)) +
     framed(2, table(6, 4, 2)))
seed("comm_join", "refused", bytes([2, 2, 1, 4]) + framed(3, b"the world is not complete after 3 s"))
seed("comm_join", "refused-silently", bytes([2, 2, 1, 4]) + framed(3, b""))
seed("comm_join", "other-world", bytes([2, 3, 1, 4]) + framed(2, one))
seed("comm_join", "gap", bytes([2, 5, 1, 4]) + framed(2, table(6, 0, 2)) + framed(2, table(6, 3, 2)))
seed("comm_join", "more", bytes([2, 2, 1, 4]) + framed(2, table(3, 0, 4)))
seed("comm_join", "unknown", bytes([2, 2, 1, 4]) + framed(99, b"?"))
relay = struct.pack("<iI", 2, 16) + loopback[:28]
for name, body in (("", relay), ("-self", struct.pack("<i", 1) + relay[4:]), ("-rank", struct.pack("<i", 3) + relay[4:]),
                   ("-short", relay[:-1])):
    seed("comm_join", "relay" + name, bytes([2, 2, 1, 4]) + framed(24, body))
seed("comm_join", "short", bytes([0, 2, 1, 4]) + head(2, len(one)) + one[:-1])
for name, n in (("0", 0), ("max", 65536), ("over", 65537), ("2g", 1 << 31), ("negative", -1)):
    seed("comm_join", "length-" + name, bytes([0, 2, 1, 4]) + head(2, n) + one)
    seed("comm_control", "length-" + name, bytes([0, 7, 0, 4, 0x40, 16 + 24]) + head(6, n) + bytes(24))
for name, n, first in (("2g", 1 << 31, 0), ("negative", -1, 0), ("first", 3, -1), ("zero", 0, 0)):
    body = struct.pack("<4I", 3, first & 0xFFFFFFFF, n & 0xFFFFFFFF, 0)
    seed("comm_join", "count-" + name, bytes([2, 2, 1, 4]) + framed(2, body))
ticket = b"DTK1" + struct.pack("<I", 2) + bytes(32) + loopback
seed("comm_join", "ticket", bytes([1, 1, 0, 0]) + ticket)
seed("comm_join", "ticket-version", bytes([1, 1, 0, 0]) + ticket[:4] + b"\3" + ticket[5:])
seed("comm_join", "ticket-address", bytes([1, 1, 0, 0]) + ticket[:-4] + struct.pack("<I", 28))


def step(conn, kind, body, rank=0):
    return bytes([conn, kind, rank & 255]) + struct.pack("<H", len(body)) + body


def meet(seq, value, rank, text=b""):
    return struct.pack("<Qqii", seq, value, rank, 0) + text


def ask(comm, seq, asker, peer, members, n=None):
    return struct.pack("<QQdiiiIii", comm, seq, 1.5, asker, peer, len(members) if n is None else n, 2, 5, 0) + b"".join(
        struct.pack("<i", m) for m in members)


def state(ident, comm, rank, has=1, seq=3, doing=2):
    return struct.pack("<QQQQqiiII", ident, comm, seq, 2, 5, rank, has, doing, 0)


def agree(comm=77, timeout=1.5, rank=17, root=0, accepted=-1, round=0, decided=0, order=0):
    return (struct.pack("<QQd5i4B", comm, 5, timeout, round, rank, root, accepted, 4, 1, decided, 0, order)
            + b"\x0b\0\2\0\0" * 2)


def frame(seq=0, count=16, nbytes=64, coll=4, algo=4, dtype=0, op=0, epoch=0, late_rank=-1):
    return b"dtcm" + struct.pack("<IQqQqQQqI4i4B", 1, 77, epoch, seq, count, nbytes, 0, 0, 0, 1, 0, late_rank, 0, coll,
                                 algo, dtype, op)


abort = struct.pack("<Qii", 77, -9, 2) + b"rank 2: enough"
death = struct.pack("<ii", 17, 1) + b"rank 17 died"
frames = {
    "member": (3, 1, member(1), 37), "member-other": (3, 1, member(1), 20), "member-rank": (3, 1, member(1), 40),
    "unregister": (3, 25, b"", 20), "unregister-self": (3, 25, b"", 37), "bye": (1, 19, b""), "bye-register": (3, 19, b""), "bye-closed": (0x23, 19, b""),
    "closed": (0x20, 14, b""), "child-closed": (0x21, 16, b""), "sync": (2, 5, b""),
    "abort": (0, 9, abort), "abort-status": (0, 9, struct.pack("<Qii", 77, 1, 2)), "news": (3, 9, abort),
    "death": (0, 10, death), "death-rank": (0, 10, struct.pack("<ii", 40, 1)),
    "death-self": (1, 10, struct.pack("<ii", 1, 2)),
    "up": (1, 6, meet(1, 4, 39)), "up-larger": (1, 6, meet(1, 1 << 40, 39)), "up-new": (1, 6, meet(2, 8, 17)),
    "up-negative": (1, 6, meet(2, -1, 17)), "up-rank": (1, 6, meet(1, 4, -1)), "up-long": (1, 6, meet(1, 4, 39, b"x")),
    "down": (0, 7, meet(1, 4, 0)), "down-other": (0, 7, meet(2, 4, 0)), "fail": (1, 8, meet(1, 0, 0, b"no memory")),
    "ask": (1, 11, ask(77, 3, 17, 0, (0, 1, 17, 3))), "ask-all": (1, 11, ask(77, 3, 17, -1, ())),
    "ask-count": (1, 11, ask(77, 3, 17, 0, (0, 1), 1 << 30)), "ask-short": (1, 11, ask(77, 3, 17, 0, (0, 1), 9)),
    "ask-member": (1, 11, ask(77, 3, 17, 0, (0, 40))),
    "ping": (0, 12, struct.pack("<QQ", 1, 77)), "pong": (1, 13, state(1, 77, 17)),
    "pong-rank": (1, 13, state(1, 77, 40)),
    "hop-ping": (1, 14, b""), "hop-pong": (0, 15, b""), "note": (1, 16, state(0, 77, 17, doing=1 << 31)),
    "leave-up": (1, 17, struct.pack("<i", 20)), "leave-up-0": (1, 17, struct.pack("<i", 0)), "leave-down": (0, 18, b""),
    "unknown": (0, 99, b"x"), "watch": (1, 21, frame(epoch=3)), "watch-short": (1, 21, b"x"),
    "agree": (1, 22, agree()), "agree-short": (1, 22, agree()[:-1]), "agree-rank": (1, 22, agree(rank=40)),
    "agree-root": (1, 22, agree(root=-1)), "agree-order": (1, 22, agree(order=99)),
    "agree-comm": (1, 22, agree(comm=0)),
    "agree-timeout": (1, 22, agree(timeout=float("nan"))), "order": (0, 23, agree(order=1)),
    "order-last": (0, 23, agree(order=3, decided=1)),
}
for name, what in frames.items():
    for rank in range(2):
        seed("comm_control", "%s-%d" % (name, rank), bytes([rank, 7 + 8 * rank, rank, 4]) + step(*what) + b"\x8a")
        if rank == 0:
            seed("comm_control", name + "-joining", bytes([0, 6, 3, 4]) + step(*what) + b"\xbf\xbf")
both = step(3, 1, member(1), 37) + step(3, 1, member(1), 21)  # a relay, and a rank that was sent to it
seed("comm_control", "relay-joining", bytes([0, 6, 3, 4]) + both)
seed("comm_control", "relay-left-joining", bytes([0, 6, 3, 4]) + both[:len(both) // 2] + step(3, 25, b"", 20))
seed("comm_control", "up-twice", bytes([0, 1, 0, 0]) + step(1, 6, meet(2, 4, 17)) + step(1, 6, meet(2, 4, 17)))
answers = b"".join(step(1, 13, state(1, 77, r)) for r in (1, 17, 3))
seed("comm_control", "inquiry", bytes([0, 5, 0, 0]) + step(1, 11, ask(77, 3, 17, 0, (0, 1, 17, 3))) + answers + b"\x81")
seed("comm_control", "inquiry-late",
     bytes([0, 5, 0, 0]) + step(1, 11, ask(77, 4, 17, 0, (0, 1, 17, 3))) + answers[:170] + b"\x8a")
seed("comm_control", "inquiry-own", bytes([1, 13, 0, 0, 0xc1]) + step(0, 15, b"") + b"\x8a" + step(0, 9, abort))
seed("comm_control", "orphan", bytes([2, 13, 0, 0]) + step(0, 19, b"") + b"\x81\xc1\x8a" + step(1, 9, abort))
seed("comm_control", "leaving",
     bytes([0, 0x15, 0, 0]) + step(1, 17, struct.pack("<i", 38)) + b"\x81" + step(0, 19, b"") + b"\xbf")


def post(bits, n, at=255, how=0, raw=b""):
    return bytes([bits]) + struct.pack("<H", n) + bytes([at, how]) + raw


for dtype in range(7):
    seed("comm_frame", "dtype-%d" % dtype,
         bytes([0, dtype & 3, dtype]) + post(0, 64) + post(1, 1000) + post(3, 4190) + post(0, 0))
seed("comm_frame", "large", bytes([2, 0, 0]) + post(8, 100, 255, 0x55) + post(0, 4))
seed("comm_frame", "large-reduced", bytes([2, 0, 2]) + post(9, 101, 255, 0x55) + post(1, 4))
seed("comm_frame", "closed", bytes([0, 4, 0]) + post(0, 64))
seed("comm_frame", "reset", bytes([0, 9, 0]) + post(1, 64))
for at in range(0, 88, 4):
    seed("comm_frame", "byte-%d" % at, bytes([0, 0, 0]) + post(0, 64) + post(1, 64, at, 1))
seed("comm_frame", "late", bytes([0, 0, 0]) + post(4, 64, 255, 0, frame(late_rank=1 << 30)))
for name, n in (("0", 0), ("max", (1 << 64) - 1), ("2g", 1 << 31), ("2e63", 1 << 63), ("same", 64)):
    seed("comm_frame", "length-" + name, bytes([0, 1, 0]) + post(4, 64, 255, 0, frame(nbytes=n)))


# messages: what this rank does, and what its peers send
EAGER, LARGE, GRANT, DATA, READ, CANCEL, CANCELLED, SKIP = range(1, 9)
BIG, INFO, VIEW, FOREVER, SOON, SERVE, CALL, REPLY = 1, 2, 4, 8, 16, 32, 64, 64 + 128


def recv(peer, tag, how=0, n=0):  # peer -1: any; tag 255: any
    return struct.pack("<BBBBH", 0, peer + 1, tag, how, n)


def send(peer, tag, how=0, n=0):
    return struct.pack("<BBBBH", 1, peer, tag, how, n)


def mail(kind, peer=1, tag=0, n=0, times=0, number=255, at=0, space=0, op=b"\2"):
    return op + struct.pack("<4BH3B", peer - 1, kind, space, tag, n, times, number, at)


def mhead(kind, tag=0, n=0, number=0, at=0, space=0, dtype=5, ref=0, mark=0xd7):
    return struct.pack("<4BiQQqq", mark, kind, space, dtype, tag, n & (1 << 64) - 1, number, at, ref)


def raw(data, peer=1):
    return bytes([3, peer - 1, len(data)]) + data


poll = b"\4"
first = 3 << 32  # the number of the first large message
for name, data in {
    "small": recv(1, 7, 0, 100) + mail(EAGER, 1, 7, 100) + poll + mail(EAGER, 1, 8, 50) + poll + recv(1, 8, 0, 50),
    "any": recv(-1, 255, INFO, 4000) + recv(2, 255, INFO, 9) + mail(EAGER, 2, 3, 8) + mail(EAGER, 1, 9, 70) + poll,
    "any-later": mail(EAGER, 2, 3, 8) + mail(EAGER, 1, 3, 70) + poll + recv(-1, 3, INFO, 400) + recv(1, 255, INFO, 400),
    "f32": b"\0\x82\5\0\x40\0" + b"\2\x80\1\0\5\x40\0\0\xff\0" + poll,
    "view": recv(1, 7, VIEW) + mail(EAGER, 1, 7, 100) + poll + b"\6\0" + mail(EAGER, 1, 8, 90) + poll + recv(1, 8, VIEW),
    "large": recv(1, 7, BIG | INFO, 0) + mail(LARGE, 1, 7, 1600, 128) + poll + mail(DATA, 1, 0, 1000, 128, 0, 1) + poll
    + mail(DATA, 1, 0, 600, 128, 0, 1) + poll,
    "large-later": mail(LARGE, 1, 7, 1638, 128 + 16, 9) + poll + recv(1, 7, BIG, 0) + poll
    + mail(DATA, 1, 0, 1638, 144, 0, 1) + poll,
    "large-view": recv(-1, 7, VIEW) + mail(LARGE, 2, 7, 2000, 128) + poll + mail(DATA, 2, 0, 2000, 128, 0, 1) + poll + b"\6\0",
    "large-view-gone": recv(-1, 7, VIEW) + mail(LARGE, 2, 7, 2000, 128) + poll + mail(DATA, 2, 0, 100, 0, 0, 1) + poll,
    "large-view-much": recv(-1, 7, VIEW) + mail(LARGE, 2, 7, 60000, 128) + poll,
    "serve": recv(-1, 7, VIEW | FOREVER | SERVE | CALL) + b"".join(mail(EAGER, 1, 7, k, space=1) for k in range(9)) + poll
    + mail(LARGE, 2, 7, 1700, 128, space=1) + poll + mail(DATA, 2, 0, 1700, 128, 0, 1) + poll + mail(EAGER, 2, 7, 9, space=1),
    "reply": recv(1, 7, REPLY, 50) + mail(EAGER, 1, 7, 20, space=2) + poll + mail(EAGER, 1, 7, 20, space=2) + poll,
    "refused": recv(1, 7, REPLY, 50) + mail(EAGER, 1, 7, 200, space=2 + 128) + poll + mail(LARGE, 1, 7, 200, space=2),
    "refused-cut": recv(1, 7, REPLY, 50) + raw(mhead(EAGER, 7, 200, space=2, ref=1) + b"no") + poll,
    "view-cut": recv(1, 7, VIEW) + raw(mhead(EAGER, 7, 200) + b"half") + poll,
    "view-cut-cancelled": recv(1, 7, VIEW) + raw(mhead(EAGER, 7, 200) + b"half") + poll + b"\5\0",
    "small-cut": recv(1, 7, 0, 200) + raw(mhead(EAGER, 7, 200) + b"half") + poll + b"\5\0" + b"\7\x24" * 9,
    "posted-meanwhile": raw(mhead(EAGER, 7, 20) + b"half") + poll + recv(1, 7, 0, 20) + raw(bytes(16)) + poll,
    "send": send(1, 7, 0, 100) + send(2, 8, BIG, 100) + send(1, 9, BIG, 0) + poll + mail(GRANT, 2, number=1, at=5) + poll
    + mail(READ, 1, number=2) + poll,
    "send-raw": send(1, 7, BIG, 8) + poll + raw(mhead(GRANT, number=first, at=-1)) + poll,
    "send-cancel": send(1, 7, BIG, 100) + poll + b"\5\0" + poll + mail(CANCELLED, 1, number=0) + poll,
    "send-cancel-late": send(1, 7, BIG, 100) + poll + b"\5\0" + mail(GRANT, 1, number=0) + poll,
    "cancelled-unasked": send(1, 7, BIG, 100) + poll + mail(CANCELLED, 1, number=0) + poll,
    "offer-taken-back": mail(LARGE, 1, 7, 9000, number=201) + mail(LARGE, 1, 7, 9000, number=202) + poll
    + mail(CANCEL, 1, number=201) + mail(CANCEL, 1, number=201) + poll + recv(1, 7, BIG, 0),
    "other-peer": send(1, 7, BIG, 100) + poll + mail(READ, 2, number=0) + poll,
    "other-data": recv(1, 7, BIG | INFO, 0) + mail(LARGE, 1, 7, 1600, 128) + poll + mail(DATA, 2, 0, 10, 0, 0, 1) + poll,
    "self": recv(0, 7, 0, 100) + send(0, 7, 0, 100) + poll + send(0, 8, BIG, 9) + recv(0, 8, VIEW) + poll + b"\6\3" + poll
    + send(0, 9, BIG, 9) + recv(0, 255, BIG, 9) + poll,
    "late": recv(1, 7, SOON, 100) + send(2, 7, BIG | SOON, 9) + b"\7\x27" + poll + b"\7\x27" * 2 + mail(CANCELLED, 2, number=1),
    "late-all": recv(1, 7, 0, 100) + b"\7\x27" * 5,
    "forever": recv(1, 7, FOREVER, 100) + send(2, 7, BIG | FOREVER, 9) + b"\7\x27" * 9,
    "wrong-size": recv(1, 7, 0, 100) + mail(EAGER, 1, 7, 101) + poll,
    "wrong-size-later": mail(EAGER, 1, 7, 101) + poll + recv(1, 7, INFO, 100),
    "wrong-dtype": recv(1, 7, 0, 100) + raw(mhead(EAGER, 7, 100, dtype=4) + bytes(100)) + poll,
    "device": recv(1, 7, 0, 100) + raw(mhead(EAGER, 7, 100, dtype=0x85, ref=-1) + bytes(100)) + poll,
    "many": mail(EAGER, 1, 0, 20, op=b"\x08\x96") + recv(1, 255, INFO, 99) + recv(-1, 9, INFO, 99) + poll,
    "many-offers": mail(LARGE, 1, 0, 60000, op=b"\x08\x96") + recv(1, 255, VIEW) + poll,
    "many-replies": mail(LARGE, 1, 0, 60000, space=2, op=b"\x08\x96") * 2,
    "skip": mail(SKIP) + poll, "no-kind": mail(0) + poll, "kind-9": mail(9) + poll,
    "mark": raw(mhead(EAGER, mark=0xd6)) + poll, "space": raw(mhead(EAGER, space=3)) + poll,
    "tag": raw(mhead(EAGER, tag=-1)) + poll, "dtype": raw(mhead(EAGER, dtype=7)) + poll,
    "odd": raw(mhead(EAGER, n=3, dtype=0)) + poll, "long": raw(mhead(EAGER, n=(64 << 10) + 1)) + poll,
    "length-max": raw(mhead(LARGE, n=-1)) + poll, "length-2e62": raw(mhead(LARGE, n=(1 << 62) - 1, at=-1)) + poll + recv(1, 0, VIEW),
    "data-unknown": raw(mhead(DATA, n=8, number=first) + bytes(8)) + poll,
    "data-none": recv(1, 7, BIG | INFO, 0) + mail(LARGE, 1, 7, 1600, 128) + poll + raw(mhead(DATA, n=0, number=first)) + poll,
    "data-long": recv(1, 7, BIG | INFO, 0) + mail(LARGE, 1, 7, 16) + poll + raw(mhead(DATA, n=17, number=first)) + poll,
    "data-apart": recv(1, 7, BIG | INFO, 0) + mail(LARGE, 1, 7, 16) + poll + raw(mhead(DATA, n=8, number=first, at=8)) + poll,
    "visible": recv(1, 7, BIG | INFO, 0) + mail(LARGE, 1, 7, 1600, 128, at=7) + poll,
}.items():
    seed("comm_mail", name, bytes([0, 3]) + data)
    if name in ("small", "any", "large", "large-view", "send", "view", "serve"):
        seed("comm_mail", name + "-pieces", bytes([3, 3]) + data)
        seed("comm_mail", name + "-latency", bytes([4, 7]) + data)
        seed("comm_mail", name + "-full", bytes([0x88, 1]) + data)
    if name.startswith("many"):
        seed("comm_mail", name + "-full", bytes([0x80, 0]) + data)

# ---- files and frames of dt_plan.h, dt_dist.h and dtrun
costs = b"dt costs 1\n# link, picoseconds a message, femtoseconds a byte\nthread 1 2\nshm 3 4\nloopback 5 6\nnetwork 7 8\nreducing 9\nend\n"
seed("costs", "good", costs)
seed("costs", "crlf", costs.replace(b"\n", b"\r\n"))
seed("costs", "cut", costs[:-5])
seed("costs", "twice", costs.replace(b"shm", b"thread"))
seed("costs", "huge", costs.replace(b"7 8", b"10000000000001 99999999999999999999"))
seed("costs", "after-end", costs + b"shm 1 2\n")
seed("costs", "empty", b"")
seed("costs", "other", b"dt costs 2\n")


def feed(x, y, kind=1, n=2, x_dtype=0, x_shape=(2, 3), y_dtype=4, y_shape=(2,), y_ndim=None, text=b"", data=b""):
    head = struct.pack("<9q", kind, n, 0, 1, 0, x_dtype, len(x_shape), y_dtype, len(y_shape) if y_ndim is None else y_ndim)
    for shape in (x_shape, y_shape):
        head += b"".join(struct.pack("<q", d) for d in (tuple(shape) + (0,) * 8)[:8])
    return bytes([x, y]) + head + bytes(CURSOR) + text.ljust(512, b"\0") + data


CURSOR = 16 * 8
seed("feed", "batch", feed(1, 16, data=b"x" * 80))
seed("feed", "no-y", feed(1, 0, y_ndim=-1))
seed("feed", "end", feed(1, 16, kind=2))
seed("feed", "error", feed(1, 16, kind=3, text=b"the disk is full"))
seed("feed", "error-unended", feed(1, 16, kind=3, text=b"e" * 512))
seed("feed", "kind", feed(1, 16, kind=9))
seed("feed", "n", feed(1, 16, n=3))
seed("feed", "scalar", feed(1, 16, x_shape=()))
seed("feed", "ndim", feed(1, 16, y_ndim=9))
seed("feed", "overflow", feed(1, 16, x_shape=(4194305, 4194305, 211106198978564)))
seed("feed", "zero-and-huge", feed(1, 16, n=0, x_shape=(0, 2**62, 2**62)))
seed("feed", "negative", feed(1, 16, x_shape=(-1, 3)))
seed("feed", "dtype", feed(1, 16, x_dtype=6))
seed("feed", "bytes", feed(1, 7, x_dtype=5, x_shape=(2, 32), y_dtype=5, y_shape=(2, 3)))


def run_frame(kind, rank, body):
    return bytes([kind, rank + 1, len(body) & 255, len(body) >> 8]) + body


def exited(how=b"x", value=3, stopped=0, lost=-1, tail=b"last\n"):
    return struct.pack("<4i2q", how[0], value, stopped, lost, 123, 10**9) + b"said".ljust(480, b"\0") + tail


hello = struct.pack("<2i", 2, 1) + b"0.2.0".ljust(16, b"\0") + b"host".ljust(64, b"\0")
for name, state, frames in (
    ("hello", 0, run_frame(1, 0, hello)),
    ("hello-unended", 0, run_frame(1, 0, struct.pack("<2i", 2, 1) + b"v" * 80)),
    ("hello-servers", 0, run_frame(1, 0, struct.pack("<2i", 2, 2) + hello[8:])),
    ("bound", 1, run_frame(4, 0, struct.pack("<i", 4711))),
    ("failed", 1, run_frame(5, 0, struct.pack("<i", 127) + b"t" * 1200)),
    ("output", 1, run_frame(7, 2, b"\0a line\nhalf") + run_frame(7, 3, b"\1error\n") + run_frame(7, 2, b"\2x")),
    ("output-of-others", 1, run_frame(7, 0, b"\0x\n")),
    ("exited", 1, run_frame(8, 2, exited()) + run_frame(8, 3, exited(lost=2))),
    ("exited-twice", 1, run_frame(8, 2, exited()) * 2),
    ("exited-signal", 2, run_frame(8, 3, exited(b"s", 9, lost=99))),
    ("ask", 1, run_frame(9, 0, struct.pack("<i", 2)) * 3),
    ("unknown", 1, run_frame(11, 0, b"")),
):
    seed("dtrun", "controller-" + name, bytes([4, state, 200]) + frames)
seed("dtrun", "controller-raw", bytes([0, 1, 3]) + struct.pack("<IIIi", 0x43435444, 9, 4, 0) + struct.pack("<i", 15))
seed("dtrun", "controller-http", bytes([0, 0, 3]) + b"GET / HTTP/1.1\r\n\r\n")
seed("dtrun", "controller-long", bytes([0, 0, 3]) + struct.pack("<IIIi", 0x43435444, 7, 0xFFFFFFFF, 0))
seed("dtrun", "agent-stop", bytes([5, 0, 9]) + run_frame(6, 0, struct.pack("<i", 15)))
seed("dtrun", "agent-finish", bytes([5, 0, 9]) + run_frame(10, 0, struct.pack("<i", 3)))
seed("dtrun", "agent-start", bytes([5, 0, 9]) + run_frame(3, 0, b"\0" * 368))
seed("dtrun", "agent-job", bytes([5, 0, 9]) + run_frame(2, 0, b"j" * 60))
job = b"t" * 32 + struct.pack("<5i", 2, 1, 1, 2, 0)
seed("dtrun", "job", bytes([2, 0, 0]) + job + b"\0/\0A=b\0prog\0arg\0")
seed("dtrun", "job-servers", bytes([2, 0, 0]) + b"t" * 32 + struct.pack("<5i", 2, 2, 1, 2, 0) + b"\0/\0A=b\0prog\0arg\0")
seed("dtrun", "job-few", bytes([2, 0, 0]) + job + b"\0/\0A=b\0prog\0")
seed("dtrun", "job-unended", bytes([2, 0, 0]) + job + b"\0/\0A=b\0prog\0arg")
seed("dtrun", "job-tail", bytes([2, 0, 0]) + job + b"\0/\0A=b\0prog\0arg\0tail")
seed("dtrun", "job-negative", bytes([2, 0, 0]) + b"t" * 32 + struct.pack("<5i", 2, 1, -1, 4, 0) + b"\0/\0A=b\0prog\0arg\0")
for name, text in (("two", b"a,b"), ("users", b"me@a,me@b.example.org"), ("empty", b""), ("commas", b",,,"), ("option", b"a,-oProxyCommand=x"),
                   ("shell", b"a;b"), ("long", b"a" * 80), ("six", b"fe80::1,10.0.0.1")):
    seed("dtrun", "hosts-" + name, bytes([3, 0, 0]) + text)


def codec(kind, n, payload, u=0, how=0, levels=5, bucket=4, ratio=77, step=3):
    head = b"DTC1" + struct.pack("<IqQQ", kind, n, step, u)
    return bytes([kind | how, n, levels, bucket, ratio]) + head + bytes(payload)


def floats(*values):
    return struct.pack("<%df" % len(values), *values)


def word(*values):
    return int.from_bytes(floats(*values), "little")


BIG = 3.4028234e38
seed("codec", "none", codec(0, 3, floats(1, -2, 3)))
seed("codec", "none-nan", codec(0, 3, floats(1, float("nan"), 3)))
seed("codec", "f16", codec(1, 5, struct.pack("<5e", 1, -2, 65504, 6e-8, 0)))
seed("codec", "f16-inf", codec(1, 5, struct.pack("<5H", 0, 0, 0, 0, 0x7C00)))
seed("codec", "bf16", codec(2, 3, struct.pack("<3H", 0x3F80, 0xC000, 0x7F7F), how=8))
seed("codec", "topk", codec(3, 10, struct.pack("<3I", 1, 4, 9) + floats(1, 2, BIG), u=3, how=8))
seed("codec", "topk-twice", codec(3, 10, struct.pack("<3I", 1, 1, 9) + floats(1, 2, 3), u=3))
seed("codec", "topk-beyond", codec(3, 10, struct.pack("<3I", 1, 4, 10) + floats(1, 2, 3), u=3))
seed("codec", "topk-many", codec(3, 10, b"", u=2**61 + 3))
seed("codec", "randomk", codec(4, 10, floats(1, 2, 3), u=0))
seed("codec", "randomk-seed", codec(4, 10, floats(1, 2, 3), u=9))
seed("codec", "sign", codec(5, 11, b"\x5a\x05", u=word(2, -2)))
seed("codec", "sign-rest", codec(5, 11, b"\x5a\x85", u=word(2, -2)))
seed("codec", "onebit", codec(6, 11, b"\x5a\x05", u=word(2, -0.5), how=8))
seed("codec", "onebit-sign", codec(6, 11, b"\x5a\x05", u=word(-2, 0.5)))
seed("codec", "qsgd", codec(7, 6, floats(2, 3) + b"\x12\xa3\x04", u=4 << 32 | 5))
seed("codec", "qsgd-level", codec(7, 6, floats(2, 3) + b"\x12\xc3\x04", u=4 << 32 | 5))
seed("codec", "qsgd-norm", codec(7, 6, floats(2, -3) + b"\x12\xa3\x04", u=4 << 32 | 5))
seed("codec", "cut", codec(0, 3, b"")[:20])
seed("codec", "right", bytes([32 | 1, 2, 0, 0, 0]) + bytes(32) + struct.pack("<2e", 1, 2))
for kind in range(8):
    seed("codec", "floats-%d" % kind, bytes([16 | kind, 0, 5, 3, 100]) + floats(1, -2, 2, 0, 1e-42, -3, 7, 0.1, 0.2, 0, 0, -5))
    seed("codec", "floats-big-%d" % kind, bytes([16 | kind, 0, 5, 3, 100]) + floats(1, BIG, BIG, BIG))
