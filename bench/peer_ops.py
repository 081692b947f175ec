"""PyTorch's side of bench_ops.c: the same ops on the same numbers.

    python3 bench/peer_ops.py

Reads lines. "threads N" sets the number of threads. "case OP NUMBER ..." makes the inputs; it answers "case COUNT", the number of
results: the output, then the gradients of the inputs. "show K PATH" writes result K to a file as f32; "time MS both|fwd" runs the case for about MS milliseconds and answers "time SECONDS", a call.
A new op: a function with the name of the op that returns the inputs (a list of tensors) and the call."""
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import numpy as np
import torch
import torch.nn.functional as F


def numbers(seed, *shape):
    """Numbers in [-1, 1), the same as fill() of bench_ops.c."""
    n = int(np.prod(shape)) if shape else 1
    z = (np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return torch.from_numpy(((z >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)).reshape(shape))


def integers(seed, high, *shape):
    return ((numbers(seed, *shape) + 1) * 0.5 * high).to(torch.int64).clamp(0, high - 1)


def leaf(t):
    return t.requires_grad_()


def conv(n, c, h, w, out, k, stride, pad, groups):
    x, f, b = leaf(numbers(1, n, c, h, w)), leaf(numbers(2, out, c // groups, k, k)), leaf(numbers(3, out))
    return [x, f, b], lambda: F.conv2d(x, f, b, stride, pad, 1, groups)


def linear(n, i, o):
    x, w, b = leaf(numbers(1, n, i)), leaf(numbers(2, o, i)), leaf(numbers(3, o))
    return [x, w, b], lambda: F.linear(x, w, b)


def matmul(b, m, k, n):
    x, y = leaf(numbers(1, *([b] if b else []), m, k)), leaf(numbers(2, *([b] if b else []), k, n))
    return [x, y], lambda: x @ y


def gemv(m, k):  # matrix times vector
    x, y = leaf(numbers(1, m, k)), leaf(numbers(2, k))
    return [x, y], lambda: x @ y


def gevm(k, n):  # vector times matrix
    x, y = leaf(numbers(1, k)), leaf(numbers(2, k, n))
    return [x, y], lambda: x @ y


def dot(n):
    x, y = leaf(numbers(1, n)), leaf(numbers(2, n))
    return [x, y], lambda: x @ y


def unary(name):
    def make(*shape):
        x = leaf(numbers(1, *shape))
        return [x], lambda: name(x)
    return make


relu, gelu, exp, tanh = unary(F.relu), unary(F.gelu), unary(torch.exp), unary(torch.tanh)


def softmax(dim, *shape):
    x = leaf(numbers(1, *shape))
    return [x], lambda: F.softmax(x, dim)


def log_softmax(dim, *shape):
    x = leaf(numbers(1, *shape))
    return [x], lambda: F.log_softmax(x, dim)


def reduction(f):
    def make(dim, *shape):  # dim 9: all
        x = leaf(numbers(1, *shape))
        return [x], lambda: f(x) if dim == 9 else f(x, dim)
    return make


sum, mean, var, amax = reduction(torch.sum), reduction(torch.mean), reduction(torch.var), reduction(torch.amax)


def argmax(dim, *shape):
    x = numbers(1, *shape)
    return [], lambda: torch.argmax(x, dim)


def layernorm(n, d):
    x, w, b = leaf(numbers(1, n, d)), leaf(numbers(2, d)), leaf(numbers(3, d))
    return [x, w, b], lambda: F.layer_norm(x, (d,), w, b)


def rmsnorm(n, d):
    x, w = leaf(numbers(1, n, d)), leaf(numbers(2, d))
    return [x, w], lambda: F.rms_norm(x, (d,), w)


def groupnorm(g, n, c, h, w):
    x, f, b = leaf(numbers(1, n, c, h, w)), leaf(numbers(2, c)), leaf(numbers(3, c))
    return [x, f, b], lambda: F.group_norm(x, g, f, b)


def batchnorm(train, n, c, h, w):
    x, f, b = leaf(numbers(1, n, c, h, w)), leaf(numbers(2, c)), leaf(numbers(3, c))
    mean, var = torch.zeros(c), torch.ones(c)
    return [x, f, b], lambda: F.batch_norm(x, mean, var, f, b, bool(train))


def maxpool(k, s, n, c, h, w):
    x = leaf(numbers(1, n, c, h, w))
    return [x], lambda: F.max_pool2d(x, k, s)


def avgpool(k, s, n, c, h, w):
    x = leaf(numbers(1, n, c, h, w))
    return [x], lambda: F.avg_pool2d(x, k, s)


def adaptive(o, n, c, h, w):
    x = leaf(numbers(1, n, c, h, w))
    return [x], lambda: F.adaptive_avg_pool2d(x, o)


def embedding(v, d, n):
    w, i = leaf(numbers(1, v, d)), integers(2, v, n)
    return [w], lambda: F.embedding(i, w)


def gather(dim, r, c, n):  # n indices along dim
    x, i = leaf(numbers(1, r, c)), integers(2, c if dim else r, r if dim else n, n if dim else c)
    return [x], lambda: torch.gather(x, dim, i)


def cat(dim, k, *shape):
    x = [leaf(numbers(1 + i, *shape)) for i in range(k)]
    return x, lambda: torch.cat(x, dim)


def permute(order, *shape):  # order as decimal digits, each plus one: 132 is (0, 2, 1)
    x, o = leaf(numbers(1, *shape)), [int(d) - 1 for d in str(order)]
    return [x], lambda: x.permute(o).contiguous()


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]


def cast(a, b, n):
    x = (numbers(1, n) * 100).abs().to(DTYPES[a])
    return [], lambda: x.to(DTYPES[b])


def binary(f):
    def make(kind, n, c):  # kind 0: equal shapes, 1: a row, 2: a column
        x, y = leaf(numbers(1, n, c)), leaf(numbers(2, *((n, c), (c,), (n, 1))[kind]))
        return [x, y], lambda: f(x, y)
    return make


add, mul = binary(torch.add), binary(torch.mul)


def addi(n):
    x, y = integers(1, 1000, n), integers(2, 1000, n)
    return [], lambda: x + y


def where(n, c):
    m, x, y = numbers(3, n, c) > 0, leaf(numbers(1, n, c)), leaf(numbers(2, n, c))
    return [x, y], lambda: torch.where(m, x, y)


def normal(n):
    return [], lambda: torch.randn(n)


def uniform(n):
    return [], lambda: torch.rand(n)


def crossentropy(n, c):
    x, y = leaf(numbers(1, n, c)), integers(2, c, n)
    return [x], lambda: F.cross_entropy(x, y)


def mse(n, c):
    x, y = leaf(numbers(1, n, c)), numbers(2, n, c)
    return [x], lambda: F.mse_loss(x, y)


def attention(causal, b, h, t, d):
    q, k, v = (leaf(numbers(1 + i, b, h, t, d)) for i in range(3))
    return [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal))


def maskattention(added, b, h, t, d):
    q, k, v = (leaf(numbers(1 + i, b, h, t, d)) for i in range(3))
    mask = numbers(4, t, t) if added else numbers(4, t, t) > -0.3
    return [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def cached(b, h, n, d):  # one token behind n others
    q, k, v = (numbers(1 + i, b, h, 1, d) for i in range(3))
    keys, values = torch.zeros(b, h, n + 1, d), torch.zeros(b, h, n + 1, d)
    keys[:, :, :n] = values[:, :, :n] = numbers(4, b, h, n, d)

    def call():
        keys[:, :, n:n + 1] = k
        values[:, :, n:n + 1] = v
        return F.scaled_dot_product_attention(q, keys[:, :, :n + 1], values[:, :, :n + 1])
    return [], call


def recurrent(f, gates, states):
    def make(t, b, i, h):
        x, w = leaf(numbers(1, t, b, i)), [leaf(numbers(2, gates * h, i) * 0.0625), leaf(numbers(3, gates * h, h) * 0.0625)]
        w += [leaf(numbers(4, gates * h)), leaf(numbers(5, gates * h))]
        zero = torch.zeros(1, b, h)
        return [x] + w, lambda: f(x, (zero, zero) if states == 2 else zero, w, True, 1, 0.0, True, False, False)[0]
    return make


lstm, gru = recurrent(torch.lstm, 4, 2), recurrent(torch.gru, 3, 1)


def dropout(n):
    x = leaf(numbers(1, n))
    return [x], lambda: F.dropout(x, 0.1)


def both():  # gradients arrive in the leaves, as in a training step
    y = call()
    y.backward(grad)
    grads = [t.grad for t in inputs]
    for t in inputs:
        t.grad = None
    return [y] + grads


inputs, call, grad, results = [], None, None, []
for line in sys.stdin:
    w = line.split()
    if w[0] == "threads":
        torch.set_num_threads(int(w[1]))
        print("threads", flush=True)
    elif w[0] == "case":
        torch.manual_seed(1)
        inputs, call = globals()[w[1]](*[int(v) for v in w[2:]])
        y = call()
        if inputs:
            grad = numbers(9, *y.shape)
            torch.manual_seed(1)
            results = both()
        else:
            results = [y]
        print("case %d" % len(results), flush=True)
    elif w[0] == "show":
        results[int(w[1])].detach().float().contiguous().numpy().tofile(w[2])
        print("show", flush=True)
    elif w[0] == "time":
        limit, n, t = float(w[1]) * 1e-3, 0, time.perf_counter()
        if w[2] == "both":
            while True:
                both()
                n += 1
                e = time.perf_counter() - t
                if e >= limit:
                    break
        else:
            with torch.inference_mode():
                while True:
                    call()
                    n += 1
                    e = time.perf_counter() - t
                    if e >= limit:
                        break
        print("time %.9g" % (e / n), flush=True)
