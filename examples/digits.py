#!/usr/bin/env python3
"""A conv net on the digits from Python, by ctypes. It needs nothing but the standard library.

    make build/libdt.so
    python3 examples/digits.py --data data/digits

The calls with options are macros in C; the functions behind them end with _with and take the structure of options by value.
Here the structures are read from the headers, so that dt_sgd(m, lr=0.05) is the call of C.
"""
import argparse
import ctypes as c
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TYPES = {"int": c.c_int, "bool": c.c_bool, "float": c.c_float, "double": c.c_double, "int64_t": c.c_int64,
         "uint64_t": c.c_uint64, "size_t": c.c_size_t, "char": c.c_char, "unsigned": c.c_uint}


class Library:
    """dt.linear(...) calls dt_linear_with, or dt_linear if it takes no options."""

    def __init__(self, path, headers):
        self.lib, self.structs, self.calls = c.CDLL(path), {}, {}
        for header in headers:
            with open(os.path.join(ROOT, header)) as f:
                text = re.sub(r"/\*.*?\*/", " ", f.read(), flags=re.S)
            text = re.sub(r"\bDT_D\b", "", text)
            for body, name in re.findall(r"typedef struct \w+ \{([^{}]*)\} (dt_\w+);", text):
                self.structs.setdefault(name, [line.strip() for line in body.split(";") if line.strip()])
            for result, name, arguments in re.findall(r"DT_API\s+([\w ]+?\*?)\s*(dt_\w+)\(([^;{]*)\)", text):
                arguments = re.sub(r"DT_OPT0\(\w+\)|DT__PRINTF\(.*", "", arguments)
                self.calls[name] = (result, [re.sub(r"\s+", " ", a).strip() for a in arguments.split(",")])

    def type_of(self, text):
        words = [w for w in text.replace("*", " * ").split() if w not in ("const", "struct", "enum")]
        if "*" in words:
            return c.c_char_p if words[0] == "char" else c.c_void_p
        if words[0] in self.structs:
            return self.struct(words[0])
        return TYPES.get(words[0], c.c_int)  # others are enums

    def struct(self, name):
        if isinstance(self.structs[name], list):
            fields = []
            for line in self.structs[name]:
                if "(*" in line:
                    fields.append((re.search(r"\(\*(\w+)", line).group(1), c.c_void_p))
                    continue
                kind, names = re.match(r"((?:const |struct )*\w+)(.*)", line).groups()
                for one in names.split(","):
                    star, field, size = re.match(r"\s*(\**)\s*(?:const )?(\w+)\s*(?:\[(\w+)\])?", one).groups()
                    made = self.type_of(kind + star)
                    count = {"DT_MAX_DIMS": 8}.get(size) or (int(size) if size else 0)
                    fields.append((field, made * count if count else made))
            self.structs[name] = type(name, (c.Structure,), {"_fields_": fields})
        return self.structs[name]

    def __getattr__(self, short):
        name = "dt_" + short
        full = name + "_with" if name + "_with" in self.calls else name
        result, parameters = self.calls[full]
        kinds = [] if parameters == ["void"] else [self.type_of(re.sub(r"\w+(\[\d*\])?$", "", p) or p) for p in parameters]
        call = getattr(self.lib, full)
        call.argtypes, call.restype = kinds, None if result == "void" else self.type_of(result)

        def run(*args, **options):
            args = list(args)
            if full != name:
                o = kinds[-1]()
                for key, value in options.items():
                    field = getattr(type(o), key)  # an unknown option is an AttributeError
                    del field
                    if isinstance(value, (list, tuple)):
                        for i, v in enumerate(value):
                            getattr(o, key)[i] = v
                    else:
                        setattr(o, key, value.encode() if isinstance(value, str) else value)
                args.append(o)
            return call(*[a.encode() if isinstance(a, str) else a for a in args])

        return run


ap = argparse.ArgumentParser(description="digits.py: a conv net on the digits, from Python by ctypes", allow_abbrev=False)
ap.add_argument("--lib", default=os.path.join(ROOT, "build", "libdt.so"), help="build/libdt.so")
ap.add_argument("--data", default="data/digits", help="data/digits")
ap.add_argument("--epochs", type=int, default=5, help="5")
args = ap.parse_args()
if not os.path.exists(args.lib):
    ap.error("%s does not exist: make build/libdt.so" % args.lib)
dt = Library(args.lib, ["dt_base.h", "dt.h", "dt_nn.h", "dt_data.h"])
Shape, Batch = dt.struct("dt_shape"), dt.struct("dt_batch")
ACT_RELU = 1


def net(m, x):
    x = dt.reshape(x, Shape(4, (c.c_int64 * 8)(-1, 1, 8, 8)))
    x = dt.conv2d(m, "conv1", x, out=16, kernel=3, pad=1, act=ACT_RELU)
    x = dt.maxpool2d(dt.batchnorm2d(m, "bn1", x), kernel=2)
    return dt.linear(m, "fc", dt.flatten(x), out=10)


data = dt.idx_open(os.path.join(args.data, "digits-images-idx3-ubyte"),
                   labels=os.path.join(args.data, "digits-labels-idx1-ubyte"), classes=10)
loader = dt.loader_new(data, batch=50, shuffle=True, seed=1, max_value=16)
m = dt.model_new(seed=1)
opt = dt.sgd(m, lr=0.05, momentum=0.9)
first = last = None
while dt.loader_epoch(loader) < args.epochs and not dt.error():
    b = Batch()
    while dt.loader_next(loader, c.byref(b)):
        loss = dt.cross_entropy(net(m, b.x), b.y)
        dt.backward(loss)
        last = dt.item(loss)
        first = last if first is None else first
        dt.step(opt)
dt.optimizer_free(opt)
dt.model_free(m)
dt.loader_free(loader)
dt.dataset_free(data)
if dt.check("digits.py"):
    raise SystemExit(1)
print("loss %.4f -> %.4f" % (first, last))
raise SystemExit(0 if last < first else 1)
