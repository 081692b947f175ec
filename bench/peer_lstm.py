"""PyTorch's side of bench_lstm.c: one recurrent layer, forward, backward and SGD.

    python3 bench/peer_lstm.py CELL HIDDEN BATCH STEPS THREADS

Says "begin", "loss X" for each of the first steps, "ready", then for each line it reads from stdin "rate X", sequences a second in a
window of half a second, and at the end "memory X", its peak in MiB."""
import resource
import sys
import time

import torch

cell, hidden, batch, steps, threads = sys.argv[1], *map(int, sys.argv[2:6])
torch.set_num_threads(threads)
torch.manual_seed(1)
layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](hidden, hidden)
x = torch.randn(steps, batch, hidden, generator=torch.Generator().manual_seed(2))
opt = torch.optim.SGD(layer.parameters(), lr=0.1)


def step():
    y, _ = layer(x)
    loss = (y * y).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


print("begin", flush=True)
for _ in range(5):
    print("loss %.9g" % step().item(), flush=True)
print("ready", flush=True)
for _ in sys.stdin:
    t, n = time.perf_counter(), 0
    while time.perf_counter() - t < 0.5:
        step()
        n += 1
    print("rate %.9g" % (n * batch / (time.perf_counter() - t)), flush=True)
print("memory %.3f" % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
