"""PyTorch's side of bench_train.c: the same nets, data and optimisers.

    python3 bench/peer_train.py MODEL THREADS MODE WORK

MODEL: mlp convnet resnet20 resnet18 gpt; MODE: default, best (channels_last, fused optimiser) or bf16 (autocast); WORK: train or
infer. Says "begin", "loss X" for each of the first steps, "ready", then for each line it reads from stdin "rate X", samples a second
in a window of half a second, and at the end "memory X", its peak in MiB."""
import resource
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.nn.functional as F
from torch import nn

model, threads, mode, work = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(threads)


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


class ResNet(nn.Module):
    def __init__(self, stages, blocks, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        layers, cin = [], width
        for s in range(stages):
            for b in range(blocks):
                layers.append(Block(cin, width << s, 2 if s and not b else 1))
                cin = width << s
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(cin, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, d // self.heads).transpose(1, 2) for p in self.qkv(x).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(d), Attention(d, heads)
        self.ln_2, self.fc, self.proj = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, d, heads, t, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(t, d)
        self.h = nn.Sequential(*[Layer(d, heads) for _ in range(layers)])
        self.ln_f, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, x):
        x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        return self.head(self.ln_f(self.h(x))).flatten(0, 1)


def convnet():
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(1568, 10))


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


torch.manual_seed(1)
g = torch.Generator().manual_seed(2)
if model == "gpt":
    net = GPT(4, 256, 4, 128, 512)
    x = (torch.rand(8, 129, generator=g) * 512).to(torch.int64)
    x, y, items = x[:, :-1].contiguous(), x[:, 1:].flatten(), 8 * 128
else:
    net, shape = {"mlp": (mlp, (128, 784)), "convnet": (convnet, (100, 1, 28, 28)),
                  "resnet20": (lambda: ResNet(3, 3, 16), (128, 3, 32, 32)),
                  "resnet18": (lambda: ResNet(4, 2, 64), (32, 3, 32, 32))}[model]
    net = net()
    x = torch.randn(shape, generator=g)
    y, items = torch.arange(shape[0]) % 10, shape[0]
if mode == "best" and x.dim() == 4:
    net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
fused = {"fused": True} if mode == "best" else {}
opt = torch.optim.AdamW(net.parameters(), lr=3e-4, **fused) if model == "gpt" else \
    torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, **fused)


def step():
    if work == "infer":
        with torch.inference_mode():
            return net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "bf16"):
        loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss


if work == "infer":
    net.eval()
print("begin", flush=True)
for _ in range(5):
    r = step()
    print("loss %.9g" % (r.item() if work == "train" else r.double().norm().item()), flush=True)
print("ready", flush=True)
for line in sys.stdin:
    t, n = time.perf_counter(), 0
    while time.perf_counter() - t < 0.5:
        r = step()
        r.flatten()[0].item()
        n += 1
    print("rate %.9g" % (n * items / (time.perf_counter() - t)), flush=True)
print("memory %.3f" % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), flush=True)
