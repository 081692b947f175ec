"""PyTorch's side of bench_compress.c: one rank of DistributedDataParallel with gloo, one thread, without a hook, with fp16_compress_hook and with
powerSGD_hook.

    python3 bench/peer_compress.py RANK WORLD BATCH STORE

STORE: a file that does not exist yet, the same for all ranks. It says "ready", then for each line "HOOK STEPS" that it reads (HOOK 0 none,
1 fp16, 2 PowerSGD of rank 4) it trains STEPS steps and says "SECONDS LOSS", the loss of the last step on this rank.

PowerSGD has one bucket: with two, PyTorch 2.15 starts the collectives of their callbacks in another order on each rank, and gloo ends the
process ("Received data size doesn't match expected size")."""
import sys
import time
import warnings

warnings.filterwarnings("ignore")
rank, world, batch, store = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
x = torch.randn((batch, 784), generator=torch.Generator().manual_seed(2 + rank))
y = torch.arange(batch) % 10


def make(hook):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(784, 784), nn.ReLU(), nn.Linear(784, 544), nn.ReLU(), nn.Linear(544, 10))
    net = DistributedDataParallel(net, bucket_cap_mb=100 if hook == 2 else None)
    if hook == 1:
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == 2:  # PowerSGD may not start before step 2
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


sides = [make(hook) for hook in range(3)]
print("ready", flush=True)
for line in sys.stdin:
    hook, steps = map(int, line.split())
    net, opt = sides[hook]
    t = time.perf_counter()
    for _ in range(steps):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
    value = loss.item()
    print("%.9g %.9g" % (time.perf_counter() - t, value), flush=True)
dist.destroy_process_group()
