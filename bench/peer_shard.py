"""PyTorch's side of bench_shard.c: FSDP2 (fully_shard, ZeRO-3) with gloo on two ranks, one thread each.

    python3 bench/peer_shard.py WIDTH

Rank 0 says "begin", "loss X" for each of five steps, "ready", then for each line it reads from stdin "rate X", samples a second of
all ranks in a window of about half a second, and at the end "memory 0"."""
import os
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
width, world = int(sys.argv[1]), 2
rank = int(os.environ.get("PEER_RANK", "-1"))
if rank < 0:
    store = tempfile.mktemp()
    env = dict(os.environ, PEER_STORE=store, OMP_NUM_THREADS="1")
    ranks = [subprocess.Popen([sys.executable, __file__, str(width)], env=dict(env, PEER_RANK=str(r)),
                              stdin=None if r == 0 else subprocess.DEVNULL) for r in range(world)]
    status = [p.wait() for p in ranks]
    if os.path.exists(store):
        os.unlink(store)
    sys.exit(max(map(abs, status)))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + os.environ["PEER_STORE"], rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(1)
layers = []
for i in range(5):
    layers += [nn.Linear(784 if i == 0 else width, width), nn.ReLU()]
net = nn.Sequential(*layers, nn.Linear(width, 10))
for layer in net:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
x = torch.randn((64, 784), generator=torch.Generator().manual_seed(2 + rank))
y = torch.arange(64) % 10
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def step():
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss.item()


def say(text):
    if rank == 0:
        print(text, flush=True)


say("begin")
for _ in range(5):
    t = time.perf_counter()
    loss = step()
    each = time.perf_counter() - t
    say("loss %.9g" % loss)
say("ready")
while True:
    n = torch.tensor([int(0.5 / each) + 1 if rank == 0 and sys.stdin.readline() else 0])
    dist.broadcast(n, 0)
    if n.item() == 0:
        break
    t = time.perf_counter()
    for _ in range(n.item()):
        step()
    dist.barrier()
    say("rate %.9g" % (n.item() * 64 * world / (time.perf_counter() - t)))
say("memory 0")
dist.destroy_process_group()
