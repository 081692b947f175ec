"""PyTorch's side of bench_pipe.c: torch.distributed.pipelining with Schedule1F1B and gloo, two ranks with a thread each.

    python3 bench/peer_pipe.py NET CUT MICRO

NET: resnet20 or gpt, as chains of units; unit CUT is the first of the second stage. Rank 0 says "begin", "loss X" for each of five
steps, "ready", then for each line it reads from stdin "rate X", samples a second in a window of about a second, and at the end
"memory 0"."""
import os
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
name, cut, micro = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ.get("PEER_RANK", "-1"))
if rank < 0:
    store = tempfile.mktemp()
    env = dict(os.environ, PEER_STORE=store, OMP_NUM_THREADS="1")
    ranks = [subprocess.Popen([sys.executable] + sys.argv, env=dict(env, PEER_RANK=str(r)),
                              stdin=None if r == 0 else subprocess.DEVNULL) for r in range(2)]
    status = [p.wait() for p in ranks]
    if os.path.exists(store):
        os.unlink(store)
    sys.exit(max(map(abs, status)))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + os.environ["PEER_STORE"], rank=rank, world_size=2)


class Unit(nn.Module):
    """A part of a net: a function of what the unit before returned, and the layers that it uses."""

    def __init__(self, fn, *layers):
        super().__init__()
        self.fn, self.layers = fn, nn.ModuleList(layers)

    def forward(self, *x):
        return self.fn(self.layers, *x)


def resnet20():
    units = [Unit(lambda l, x: F.relu(l[1](l[0](x))), nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))]
    cin = 16
    for i in range(9):
        out, stride = 16 << i // 3, 2 if i and i % 3 == 0 else 1
        conv1, bn1 = nn.Conv2d(cin, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        down = [nn.Conv2d(cin, out, 1, stride, bias=False), nn.BatchNorm2d(out)] if stride != 1 else []
        units.append(Unit(lambda l, x: (F.relu(l[1](l[0](x))), x), conv1, bn1))
        units.append(Unit(lambda l, y, x: (l[0](y), x), conv2))
        units.append(Unit(lambda l, y, x: F.relu(l[0](y) + (l[2](l[1](x)) if len(l) > 1 else x)), nn.BatchNorm2d(out), *down))
        cin = out
    units.append(Unit(lambda l, x: l[0](torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)), nn.Linear(cin, 10)))
    return units


def gpt(d=256, heads=4, length=128, vocab=256):
    def attention(l, x):
        b, t, _ = x.shape
        q, k, v = (p.view(b, t, heads, d // heads).transpose(1, 2) for p in l[1](l[0](x)).split(d, dim=2))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d), x

    units = [Unit(lambda l, x: l[0](x) + l[1](torch.arange(length)), nn.Embedding(vocab, d), nn.Embedding(length, d))]
    for _ in range(4):
        qkv, proj, fc, back = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        units.append(Unit(attention, nn.LayerNorm(d), qkv))
        units.append(Unit(lambda l, a, x: x + l[0](a), proj))
        units.append(Unit(lambda l, x: (F.gelu(l[1](l[0](x)), approximate="tanh"), x), nn.LayerNorm(d), fc))
        units.append(Unit(lambda l, a, x: x + l[0](a), back))
    units.append(Unit(lambda l, x: l[1](l[0](x)), nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)))
    return units


class Stage(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.units = nn.ModuleList(units)

    def forward(self, *x):
        for u in self.units:
            x = u(*x)
            x = x if isinstance(x, tuple) else (x,)
        return x if len(x) > 1 else x[0]


torch.manual_seed(1)
g = torch.Generator().manual_seed(2)
if name == "gpt":
    units = gpt()
    x = (torch.rand(16, 129, generator=g) * 256).to(torch.int64)
    x, y, items = x[:, :-1].contiguous(), x[:, 1:].contiguous(), 16 * 128
else:
    units = resnet20()
    x, y, items = torch.randn(64, 3, 32, 32, generator=g), torch.arange(64) % 10, 64
part = Stage(units[:cut] if rank == 0 else units[cut:])
opt = torch.optim.AdamW(part.parameters(), lr=3e-4) if name == "gpt" else torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.9)


def loss_fn(out, target):
    return F.cross_entropy(out.flatten(0, -2), target.flatten())


schedule = Schedule1F1B(PipelineStage(part, rank, 2, torch.device("cpu")), micro, loss_fn=loss_fn)
mean = torch.zeros(1)


def step():
    losses = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=losses)
        mean[0] = sum(l.detach() for l in losses) / micro
    opt.step()
    opt.zero_grad()


def say(text):
    if rank == 0:
        print(text, flush=True)


say("begin")
for _ in range(5):
    t = time.perf_counter()
    step()
    each = time.perf_counter() - t
    dist.broadcast(mean, 1)
    say("loss %.9g" % mean.item())
say("ready")
while True:
    n = torch.tensor([int(0.7 / each) + 2 if rank == 0 and sys.stdin.readline() else 0])
    dist.broadcast(n, 0)
    if n.item() == 0:
        break
    dist.barrier()
    t = time.perf_counter()
    for _ in range(n.item()):
        step()
    dist.barrier()
    say("rate %.9g" % (n.item() * items / (time.perf_counter() - t)))
say("memory 0")
dist.destroy_process_group()
