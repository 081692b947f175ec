"""gloo's side of bench_allreduce.c, through torch.distributed; see rank_side.h for what is said over the socket.

    python3 bench/peer_allreduce.py SOCKET NAME RANK WORLD STORE
"""
import socket
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist

path, name, rank, world, store = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
s = socket.socket(socket.AF_UNIX)
s.connect(path)
f = s.makefile("rw")
f.write(f"{name} {rank}\n")
f.flush()
whole = torch.zeros(0)
for line in f:
    word = line.split()
    if word[0] == "use":
        f.write("no\n")
        f.flush()
        continue
    n = int(word[1]) // 4
    if whole.numel() < n:
        whole = torch.zeros(n)
    x = whole[:n]
    if word[0] == "check":
        known = torch.arange(n, dtype=torch.int64).remainder_(7).add_(1).float()
        x.copy_(known * (rank + 1))
        dist.all_reduce(x)
        f.write("ok\n" if torch.equal(x, known * (world * (world + 1) // 2)) else "wrong\n")
        f.flush()
        continue
    warm, calls, batch, gap = int(word[2]), int(word[3]), int(word[4]), int(word[5])
    when = []
    for i in range(-warm, calls):
        x.fill_(i & 3)
        t = time.monotonic_ns()
        dist.all_reduce(x)
        for k in range(1, batch):
            x.fill_(k & 3)
            dist.all_reduce(x)
        if i >= 0:
            when += [t, time.monotonic_ns()]
            for k in range(gap):
                x.fill_(k & 3)
                dist.all_reduce(x)
    f.write(" ".join(map(str, when)) + "\n")
    f.flush()
dist.destroy_process_group()
