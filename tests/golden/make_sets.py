"""Makes the files that dt_data.h opens from NumPy arrays: for tests, and for data of one's own. Needs numpy alone.

   python3 make_sets.py FORMAT OUT X.npy [Y.npy] [--test N] [--gz]        --test N: the last N items are the test part

       mnist     X (n, h, w) u8, Y (n)                dt_mnist_open(OUT, DT_TRAIN): OUT/train-images-idx3-ubyte ...
       idx       X and Y of any shape                 dt_idx_open("OUT/x.idx", .labels = "OUT/y.idx")
       cifar10   X (n, 3, 32, 32) u8, Y (n)           dt_cifar10_open(OUT, DT_TRAIN): OUT/data_batch_1.bin ...
       cifar100  the same, or Y (n, 2): coarse, fine  dt_cifar100_open(OUT, DT_TRAIN, false): OUT/train.bin ...
       npy       X and Y of any shape                 dt_npy_open("OUT/x.npy", .labels = "OUT/y.npy")
       folder    X (n, h, w) or (n, 3, h, w) u8, Y    dt_folder_open("OUT/train"): OUT/train/CLASS/00000.pgm or .ppm
       tokens    X whole numbers, all in a row        dt_tokens_open("OUT/train.bin", .length = ...): little-endian, as
                                                      many bytes each as in X: 1, 2 (dt's default) or 4

   python3 make_sets.py demo OUT: a tiny set of each kind in OUT/mnist, OUT/cifar10 ..., from random numbers of a fixed
   seed. Images with channels last (n, h, w, 3) are turned. --gz: IDX files are gzipped, NAME.gz."""
import argparse, gzip, os
import numpy as np

IDX_TYPE = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def put(path, data, gz=False):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if gz:
        data, path = gzip.compress(data, mtime=0), path + ".gz"
    with open(path, "wb") as f:
        f.write(data)


def bytes_of(y, top, what):
    """whole numbers 0..top as bytes"""
    y = np.asarray(y)
    if y.dtype.kind not in "uib" or (y.size and (y.min() < 0 or y.max() > top)):
        raise SystemExit(f"make_sets: {what} must be whole numbers from 0 to {top}")
    return y.astype(np.uint8)


def planes(x):
    """images as (n, c, h, w) of u8"""
    x = np.asarray(x)
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise SystemExit(f"make_sets: images must be u8 of 3 or 4 dimensions, not {x.dtype} of {x.shape}")
    if x.ndim == 3:
        return x[:, None]
    return x.transpose(0, 3, 1, 2) if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3) else x


def idx_bytes(x):
    """an IDX file: 0, 0, type, dimensions, then each dimension and the numbers, big-endian"""
    x = np.ascontiguousarray(x)
    if x.dtype.kind in "ui" and x.dtype.str[1:] not in IDX_TYPE and abs(x.astype("f8")).max(initial=0) < 2**31:
        x = x.astype("i4")
    kind = x.dtype.str[1:].replace("b1", "u1")
    if kind not in IDX_TYPE or not 1 <= x.ndim <= 8:
        raise SystemExit(f"make_sets: IDX takes u8, i8, i16, i32, f32, f64 in 1..8 dimensions, not {x.dtype} {x.ndim}d")
    head = bytes([0, 0, IDX_TYPE[kind], x.ndim]) + np.array(x.shape, ">u4").tobytes()
    return head + x.astype(">" + kind).tobytes()


def write_mnist(out, train, test, gz=False):
    for name, (x, y) in (("train", train), ("t10k", test)):
        x = planes(x)
        if x.shape[1] != 1:
            raise SystemExit("make_sets: MNIST has one channel")
        put(f"{out}/{name}-images-idx3-ubyte", idx_bytes(x[:, 0]), gz)
        put(f"{out}/{name}-labels-idx1-ubyte", idx_bytes(bytes_of(y, 255, "labels")), gz)


def write_idx(out, train, test, gz=False):
    for name, part in (("", train), ("test-", test)):
        for what, a in zip("xy", part):
            if a is not None and len(a):
                put(f"{out}/{name}{what}.idx", idx_bytes(a), gz)


def cifar_records(x, labels):
    x = planes(x)
    if x.shape[1:] != (3, 32, 32):
        raise SystemExit(f"make_sets: CIFAR's images are (3, 32, 32), not {x.shape[1:]}")
    return np.concatenate([labels.reshape(len(x), -1), x.reshape(len(x), -1)], 1)


def write_cifar10(out, train, test, gz=False):
    rows = cifar_records(train[0], bytes_of(train[1], 9, "labels"))
    for i, part in enumerate(np.array_split(rows, 5)):
        put(f"{out}/data_batch_{i + 1}.bin", part.tobytes())
    put(f"{out}/test_batch.bin", cifar_records(test[0], bytes_of(test[1], 9, "labels")).tobytes())


def write_cifar100(out, train, test, gz=False):
    for name, (x, y) in (("train", train), ("test", test)):
        y = bytes_of(y, 99, "labels")
        if y.ndim == 1:
            y = np.stack([y // 5, y], 1)  # coarse classes are not known: a made-up group of five
        if y.shape[1:] != (2,) or (len(y) and y[:, 0].max() > 19):
            raise SystemExit("make_sets: CIFAR-100's labels are (n, 2): coarse 0..19, fine 0..99")
        put(f"{out}/{name}.bin", cifar_records(x, y).tobytes())


def write_npy(out, train, test, gz=False):
    os.makedirs(out, exist_ok=True)
    for name, part in (("", train), ("test-", test)):
        for what, a in zip("xy", part):
            if a is not None and len(a):
                np.save(f"{out}/{name}{what}.npy", np.ascontiguousarray(a), allow_pickle=False)


def write_folder(out, train, test, gz=False):
    top = int(np.max(train[1]))
    if len(test[1]) and set(train[1]) != set(test[1]):
        raise SystemExit("make_sets: a class has images in one part only: its folder would be missing from the other")
    for name, (x, y) in (("train", train), ("test", test)):
        for i, (image, k) in enumerate(zip(planes(x), bytes_of(y, 255, "labels"))):
            c, h, w = image.shape
            if c not in (1, 3):
                raise SystemExit(f"make_sets: {c} channels; PGM has one, PPM three")
            kind, end = ("P5", "pgm") if c == 1 else ("P6", "ppm")
            put(f"{out}/{name}/{k:0{len(str(top))}d}/{i:05d}.{end}",
                f"{kind}\n{w} {h}\n255\n".encode() + image.transpose(1, 2, 0).tobytes())


def write_tokens(out, train, test, gz=False):
    for name, (x, _) in (("train", train), ("test", test)):
        x = np.asarray(x).reshape(-1)
        if x.dtype.kind not in "ui" or x.dtype.itemsize > 4 or (len(x) and x.min() < 0):
            raise SystemExit(f"make_sets: tokens are whole numbers from 0 on, of 1, 2 or 4 bytes, not {x.dtype}")
        if len(x):
            put(f"{out}/{name}.bin", x.astype(f"<u{x.dtype.itemsize}").tobytes())


def demo(out):
    r = np.random.default_rng(1)

    def images(n, shape, classes):  # a bright stroke at a place of each class, so that there is something to learn
        y = np.arange(n) % classes
        x = r.integers(0, 80, (n, *shape), np.uint8)
        for i, k in enumerate(y):
            x[i, ..., k % 10 * shape[-2] // 10:, :][..., :2, :] += np.uint8(100 + k // 10 * 8)
        return x, y

    def parts(shape, classes, n=300):
        return images(n, shape, classes), images(n // 5, shape, classes)

    write_mnist(f"{out}/mnist", *parts((28, 28), 10))
    write_mnist(f"{out}/mnist-gz", *parts((28, 28), 10), gz=True)
    x, y = r.normal(size=(55, 7)).astype("f4"), r.normal(size=(55, 2))
    write_idx(f"{out}/idx", (x[:50], y[:50]), (x[50:], None))
    write_cifar10(f"{out}/cifar10", *parts((3, 32, 32), 10))
    write_cifar100(f"{out}/cifar100", *parts((3, 32, 32), 100, 1000))
    write_npy(f"{out}/npy", *parts((3, 8, 8), 4, 50))
    write_folder(f"{out}/folder-grey", *parts((20, 20), 10, 50))
    write_folder(f"{out}/folder-colour", *parts((3, 20, 20), 12, 60))
    for kind in ("u1", "u2", "u4"):
        x = np.cumsum(r.integers(0, 3, 6000)) % 100
        write_tokens(f"{out}/tokens-{kind}", (x[:5000].astype(kind), None), (x[5000:].astype(kind), None))


def main():
    formats = [name[6:] for name in globals() if name.startswith("write_")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("format", choices=formats + ["demo"])
    p.add_argument("out")
    p.add_argument("x", nargs="?")
    p.add_argument("y", nargs="?")
    p.add_argument("--test", type=int, default=0, metavar="N")
    p.add_argument("--gz", action="store_true")
    o = p.parse_args()
    if o.format == "demo":
        return demo(o.out)
    if not o.x or (not o.y and o.format not in ("idx", "npy", "tokens")):
        p.error(f"{o.format} needs X.npy" + ("" if o.format in ("idx", "npy", "tokens") else " and Y.npy"))
    x, y = np.load(o.x), np.load(o.y) if o.y else None
    if o.format == "tokens":
        x = x.reshape(-1)
    if y is not None and len(x) != len(y):
        p.error(f"{o.x} has {len(x)} items, {o.y} has {len(y)}")
    if not 0 <= o.test < len(x):
        p.error(f"--test {o.test}: there are {len(x)} items")
    if not o.test and o.format in ("mnist", "cifar10", "cifar100"):
        p.error(f"{o.format} has a test part: --test N")
    if o.gz and o.format not in ("mnist", "idx"):
        p.error("--gz is for IDX files")
    cut = len(x) - o.test
    globals()["write_" + o.format](o.out, (x[:cut], None if y is None else y[:cut]),
                                   (x[cut:], None if y is None else y[cut:]), o.gz)


if __name__ == "__main__":
    main()
