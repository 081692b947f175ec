"""PyTorch on the work of bench_resnet20.c: CIFAR ResNet-20, batch 128, forward + backward + SGD, images/s.
   python3 bench/peer_resnet20.py THREADS [steps]"""
import sys, time, warnings
warnings.filterwarnings("ignore")
import torch
from torch import nn
import torch.nn.functional as F

class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.c2, self.b2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)) if stride == 2 else nn.Identity()
    def forward(self, x):
        h = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(h)) + self.skip(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        chans = [(16, 16, 1)] * 3 + [(16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 64, 1)]
        self.blocks = nn.Sequential(*[Block(*c) for c in chans])
        self.fc = nn.Linear(64, 10)
    def forward(self, x):
        x = self.blocks(F.relu(self.b(self.c(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))

torch.set_num_threads(int(sys.argv[1]))
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 6
for name, fmt in (("default", torch.contiguous_format), ("channels_last", torch.channels_last)):
    torch.manual_seed(1)
    net = Net().to(memory_format=fmt)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(128, 3, 32, 32).to(memory_format=fmt), torch.arange(128) % 10
    best = 1e9
    for s in range(steps):
        t = time.time()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        loss.item()
        best = min(best, time.time() - t)
    print(f"resnet20-{sys.argv[1]}t: PyTorch {name} {128 / best:.0f} images/s (best step {1e3 * best:.0f} ms)")
