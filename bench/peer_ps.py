"""MXNet's side of bench_ps.c: the kvstore dist_sync, which is ps-lite; see rank_side.h for what is said over the socket.

    python3 bench/peer_ps.py there                                           exit status 0: MXNet can be imported
    python3 bench/peer_ps.py SOCKET NAME ROLE WORKERS SERVERS PORT           a scheduler, a server or a worker

NAME ends with ipc (Unix sockets) or tcp. Only workers connect to SOCKET.
"""
import os
import socket
import sys
import time
import warnings

warnings.filterwarnings("ignore")
if sys.argv[1] == "there":
    import mxnet

    sys.exit(0 if mxnet.runtime.Features().is_enabled("DIST_KVSTORE") else 1)
path, name, role, workers, servers, port = sys.argv[1:7]
os.environ.update(
    DMLC_ROLE=role, DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=port, DMLC_NUM_WORKER=workers, DMLC_NUM_SERVER=servers,
    DMLC_INTERFACE="lo", DMLC_LOCAL="1" if name.endswith("ipc") else "0",
)
import mxnet as mx  # a scheduler or a server ends in here
import numpy as np

KEYS, WINDOW, PASSES = 1000, 64, 5  # as in bench_ps.c
kv = mx.kv.create("dist_sync")
rank, world = kv.rank, kv.num_workers
s = socket.socket(socket.AF_UNIX)
s.connect(path)
f = s.makefile("rw")
f.write(f"{name} {rank}\n")
f.flush()
use, nkeys, first, n, push, pull = "model", 1, 0, 0, [], []


def resize(size):
    """Arrays of another size are new keys."""
    global first, n, push, pull
    if size == n:
        return
    first, n = first + len(push), size
    push = [mx.nd.zeros((n,)) for _ in range(nkeys)]
    pull = [mx.nd.zeros((n,)) for _ in range(nkeys)]
    kv.init(list(range(first, first + nkeys)), pull)
    mx.nd.waitall()


def write(value):
    for x in push:
        x[:] = value
    mx.nd.waitall()


def call():
    if use == "model":
        kv.pushpull(first, push[0], out=pull[0])
    elif use == "list":
        for _ in range(PASSES):
            kv.pushpull(list(range(first, first + KEYS)), push, out=pull)
    else:
        for i in range(PASSES * KEYS):
            if i >= WINDOW:
                pull[(i - WINDOW) % KEYS].wait_to_read()
            kv.pushpull(first + i % KEYS, push[i % KEYS], out=pull[i % KEYS])
    mx.nd.waitall()


def check():
    """The pushed arrays are rewritten each time: MXNet uses their memory for what it pulls."""
    known = [(np.arange(n) + k) % 7 + 1.0 for k in range(len(push))]
    for k, x in enumerate(push):
        x[:] = known[k] * (rank + 1)
        pull[k][:] = -1
    mx.nd.waitall()
    call()
    sums = world * (world + 1) // 2  # with one worker, the array stays what it was in every pass
    return all(np.array_equal(x.asnumpy(), known[k] * sums) for k, x in enumerate(pull))


for line in f:
    word = line.split()
    if word[0] == "use":
        use = word[1]
        nkeys = 1 if use == "model" else KEYS
        f.write("ok\n")
        f.flush()
        continue
    resize(int(word[1]) // 4)
    if word[0] == "check":
        f.write("ok\n" if check() else "wrong\n")
        f.flush()
        continue
    warm, calls, batch = int(word[2]), int(word[3]), int(word[4])
    when = []
    for i in range(-warm, calls):
        if use == "model":
            write(i & 3)
        t = time.monotonic_ns()
        for _ in range(batch):
            call()
        if i >= 0:
            when += [t, time.monotonic_ns()]
    f.write(" ".join(map(str, when)) + "\n")
    f.flush()
