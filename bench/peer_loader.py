"""PyTorch's side of bench_loader.c: a DataLoader over the same arrays, with the same transforms.

    python3 bench/peer_loader.py DIR

DIR holds mnist.bin (60000 labels, then 60000 x 28 x 28 bytes) and cifar.bin (the same with 50000 x 3 x 32 x 32). Reads lines
"SET WORK WORKERS" (SET: mnist cifar; WORK: plain, augment, batches; WORKERS: 0, 1, 2) and answers "rate X", images a second over
one epoch, the start of its workers not counted; "sum SET" is answered by "sha256 X" of the first batch without shuffling.
plain: a transform for each image, normalise. augment: crop with a border of 4, flip, normalise. batches: __getitems__, which
indexes and normalises a whole batch at once."""
import hashlib
import random
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
SETS = {"mnist": (60000, (1, 28, 28), [0.1307], [0.3081]),
        "cifar": (50000, (3, 32, 32), [0.4914, 0.4822, 0.4465], [0.247, 0.243, 0.261])}


class Images(Dataset):
    def __init__(self, name, augment):
        n, shape, mean, std = SETS[name]
        data = np.fromfile(f"{sys.argv[1]}/{name}.bin", dtype=np.uint8)
        self.y = torch.from_numpy(data[:n].astype(np.int64))
        self.x = torch.from_numpy(data[n:].reshape(n, *shape))
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)
        self.augment = augment

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if self.augment:
            h, w = x.shape[1:]
            top, left = random.randrange(9), random.randrange(9)
            x = F.pad(x, (4, 4, 4, 4))[:, top:top + h, left:left + w]
            if random.random() < 0.5:
                x = x.flip(-1)
        return x.float().div_(255).sub_(self.mean).div_(self.std), self.y[i]


class Batches(Images):
    def __getitems__(self, index):
        index = torch.tensor(index)
        return self.x[index].float().div_(255).sub_(self.mean).div_(self.std), self.y[index]


def loader(name, work, workers, shuffle=True):
    data = (Batches if work == "batches" else Images)(name, work == "augment")
    return DataLoader(data, batch_size=128, shuffle=shuffle, num_workers=workers,
                      collate_fn=(lambda b: b) if work == "batches" else None, drop_last=True)


print("ready", flush=True)
for line in sys.stdin:
    what = line.split()
    if what[0] == "sum":
        x, y = next(iter(loader(what[1], "plain", 0, False)))
        print("sha256", hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest(), flush=True)
        continue
    it = iter(loader(what[0], what[1], int(what[2])))
    next(it)
    n, start = 0, time.perf_counter()
    for x, y in it:
        n += len(y)
    print("rate", n / (time.perf_counter() - start), flush=True)
