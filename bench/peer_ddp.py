"""PyTorch's side of bench_ddp.c: DistributedDataParallel with gloo, one thread a rank.

    python3 bench/peer_ddp.py MODEL WORLD

MODEL: convnet, resnet20 (of peer_train.py). Rank 0 says "begin", "loss X" for each of five steps, "ready", then for each line it reads
from stdin "rate X", samples a second of all ranks in a window of about half a second, and at the end "memory 0"."""
import os
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
model, world = sys.argv[1], int(sys.argv[2])
rank = int(os.environ.get("PEER_RANK", "-1"))
if rank < 0:
    store = tempfile.mktemp()
    env = dict(os.environ, PEER_STORE=store, OMP_NUM_THREADS="1")
    ranks = [subprocess.Popen([sys.executable, __file__, model, str(world)], env=dict(env, PEER_RANK=str(r)),
                              stdin=None if r == 0 else subprocess.DEVNULL) for r in range(world)]
    status = [p.wait() for p in ranks]
    if os.path.exists(store):
        os.unlink(store)
    sys.exit(max(map(abs, status)))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + os.environ["PEER_STORE"], rank=rank, world_size=world)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
        self.bn2 = nn.BatchNorm2d(cout)

    def forward(self, x):
        h = self.conv2(F.relu(self.bn1(self.conv1(x))))
        return F.relu(self.bn2(h) + (self.downsample(x) if self.downsample else x))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        layers, cin = [], 16
        for s in range(3):
            for b in range(3):
                layers.append(Block(cin, 16 << s, 2 if s and not b else 1))
                cin = 16 << s
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(cin, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def convnet():
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(1568, 10))


torch.manual_seed(1)
net, shape = {"convnet": (convnet, (100, 1, 28, 28)), "resnet20": (ResNet20, (128, 3, 32, 32))}[model]
net = DistributedDataParallel(net())
x = torch.randn(shape, generator=torch.Generator().manual_seed(2 + rank))
y, items = torch.arange(shape[0]) % 10, shape[0]
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


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
    say("rate %.9g" % (n.item() * items * world / (time.perf_counter() - t)))
say("memory 0")
dist.destroy_process_group()
