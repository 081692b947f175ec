"""PyTorch's accuracy on the work of the examples: the conv net on Fashion-MNIST (or the digits), 5 epochs, seeds 1..3.
   make data; python3 bench/peer_fashion.py [directory of IDX files: data/fashion]

   Conv 5x5 1-16 pad 2, batch norm, ReLU, max pool 2, conv 5x5 16-32 pad 2, batch norm, ReLU, max pool 2, linear 1568-10.
   SGD, lr 0.01, momentum 0.9, batch 100, in the order examples/mnist.c takes the images. Pixels /255 (digits: /16, each pixel 3x3, a border of 2), then normalised by
   mean and standard deviation of the training set. Threads: PyTorch's default, or OMP_NUM_THREADS."""
import os, sys, time, warnings
warnings.filterwarnings("ignore")
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


def idx(path):
    raw = np.fromfile(path, np.uint8)
    ndim = int(raw[3])
    shape = raw[4:4 + 4 * ndim].view(">u4").astype(int)
    return torch.from_numpy(raw[4 + 4 * ndim:].reshape(shape).copy())


def load(dir):
    """train images (n, 1, 28, 28), train labels, test images, test labels"""
    part = lambda what: idx(os.path.join(dir, what))
    if os.path.exists(os.path.join(dir, "train-images-idx3-ubyte")):
        x, u = (part(f"{s}-images-idx3-ubyte").float()[:, None] / 255 for s in ("train", "t10k"))
        y, v = (part(f"{s}-labels-idx1-ubyte").long() for s in ("train", "t10k"))
    else:
        x, y = part("digits-images-idx3-ubyte").float()[:, None] / 16, part("digits-labels-idx1-ubyte").long()
        x = F.pad(x.repeat_interleave(3, 2).repeat_interleave(3, 3), (2, 2, 2, 2))
        test = torch.arange(len(x)) % 5 == 0
        x, u, y, v = x[~test], x[test], y[~test], y[test]
    mean, std = x.double().mean().item(), x.double().std(unbiased=False).item()
    return (x - mean) / std, y, (u - mean) / std, v


def net():
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(1568, 10))


def accuracy(m, x, y):
    m.eval()
    with torch.no_grad():
        right = sum((m(x[i:i + 1000]).argmax(1) == y[i:i + 1000]).sum().item() for i in range(0, len(x), 1000))
    m.train()
    return right / len(x)


dir = sys.argv[1] if len(sys.argv) > 1 else "data/fashion"
x, y, u, v = load(dir)
name = os.path.basename(os.path.normpath(dir))
print(f"{name}: {len(x)} training, {len(u)} test images, {torch.get_num_threads()} threads", flush=True)
for seed in (1, 2, 3):
    torch.manual_seed(seed)
    m = net()
    opt = torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9)
    start = time.time()
    for epoch in range(1, 6):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed + epoch - 1))
        total, steps = 0.0, 0
        for i in range(0, len(x), 100):
            at = order[i:i + 100]
            loss = F.cross_entropy(m(x[at]), y[at])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            steps += 1
        print(f"{name}-seed{seed}: PyTorch epoch {epoch} loss {total / steps:.4f} test accuracy "
              f"{100 * accuracy(m, u, v):.2f} % {time.time() - start:.0f} s", flush=True)
