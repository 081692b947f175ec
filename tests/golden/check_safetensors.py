#!/usr/bin/env python3
"""Opens files that dt wrote with the safetensors package and PyTorch, and compares every value.

    python3 tests/golden/check_safetensors.py           # for developers: needs gcc, torch and safetensors

Compiles a small program with dt_nn.h, which writes an archive and a training's checkpoint, and reads both.
"""
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = r"""
#define DT_IMPLEMENTATION
#include "dt_nn.h"
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_relu(dt_batchnorm1d(m, "bn", dt_linear(m, "fc1", x, .out = 6)));
    return dt_linear(m, "fc2", x, .out = 2);
}
int main(int argc, char **argv)
{
    static const dt_dtype all[] = { DT_U8, DT_F16, DT_I64, DT_F32, DT_BF16, DT_I32 };
    char        path[4096];
    dt_archive *a = dt_archive_new();
    (void)argc;
    for (int i = 0; i < 6; i++)
        dt_archive_add(a, dt_dtype_name(all[i]), dt_cast(dt_arange(1, 8 + i, 1), all[i]));
    dt_archive_add(a, "scalar", dt_full(0.5, DT_SCALAR));
    dt_archive_add(a, "empty", dt_zeros(DT_SHAPE(2, 0, 3)));
    dt_archive_add(a, "transposed", dt_transpose(dt_reshape(dt_arange(0, 6, 1), DT_SHAPE(2, 3)), 0, 1));
    dt_archive_add(a, "gr\303\274\303\237e \"q\" \\ / \n\t\001 \360\237\230\200", dt_ones(DT_SHAPE(1)));
    dt_archive_set_string(a, "note", "caf\303\251 \"quoted\"\n\ttab \360\237\232\200");
    snprintf(path, sizeof path, "%s/archive.safetensors", argv[1]);
    dt_archive_write(a, path);
    dt_archive_free(a);
    dt_model      *m = dt_model_new(.seed = 1);
    dt_optimizer  *opt = dt_adam(m, .lr = 0.01);
    dt_checkpoint *c = dt_checkpoint_new(argv[1], .model = m);
    dt_backward(dt_mean(net(m, dt_ones(DT_SHAPE(4, 3)))));
    dt_step(opt);
    dt_checkpoint_save(c, 2, 1);
    snprintf(path, sizeof path, "%s/model.safetensors", argv[1]);
    dt_model_save(m, path);
    return dt_check("writer");
}
"""


def check(ok, what):
    print(("ok   " if ok else "FAIL ") + what)
    if not ok:
        sys.exit(1)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        source, exe = os.path.join(tmp, "w.c"), os.path.join(tmp, "w")
        with open(source, "w") as f:
            f.write(PROGRAM)
        subprocess.run(["gcc", "-O1", "-std=c11", "-I", root, source, "-o", exe, "-lm", "-lpthread"], check=True)
        subprocess.run([exe, tmp], check=True)
        t = load_file(os.path.join(tmp, "archive.safetensors"))
        kinds = {"u8": (torch.uint8, 8), "f16": (torch.float16, 9), "i64": (torch.int64, 10), "f32": (torch.float32, 11),
                 "bf16": (torch.bfloat16, 12), "i32": (torch.int32, 13)}
        for name, (dtype, end) in kinds.items():
            check(t[name].dtype == dtype and torch.equal(t[name], torch.arange(1, end).to(dtype)), name)
        check(t["scalar"].shape == () and t["scalar"].item() == 0.5, "scalar")
        check(t["empty"].shape == (2, 0, 3), "empty")
        check(torch.equal(t["transposed"], torch.arange(6.0).reshape(2, 3).t()), "transposed")
        check("gr\u00fc\u00dfe \"q\" \\ / \n\t\x01 \U0001f600" in t, "a name of all kinds of characters")
        with safe_open(os.path.join(tmp, "archive.safetensors"), "pt") as f:
            m = f.metadata()
        check(m["format"] == "pt" and m["note"] == "caf\u00e9 \"quoted\"\n\ttab \U0001f680", "metadata")
        names = {"fc1.weight", "fc1.bias", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var",
                 "bn.num_batches_tracked", "fc2.weight", "fc2.bias"}
        model = load_file(os.path.join(tmp, "model.safetensors"))
        check(set(model) == names, "a model's names are those of a state_dict")
        ckpt = load_file(os.path.join(tmp, "ckpt-00000001.safetensors"))
        check(names < set(ckpt) and all(torch.equal(ckpt[n], model[n]) for n in names), "a checkpoint holds them too")
        net = torch.nn.ModuleDict({"fc1": torch.nn.Linear(3, 6), "bn": torch.nn.BatchNorm1d(6),
                                   "fc2": torch.nn.Linear(6, 2)})
        net.load_state_dict(model)
        check(model["bn.num_batches_tracked"].item() == 1, "PyTorch's modules load the model")
        with safe_open(os.path.join(tmp, "ckpt-00000001.safetensors"), "pt") as f:
            m = f.metadata()
        check(m["dt.epoch"] == "2" and m["dt.step"] == "1" and
              float.fromhex(m["optimizer.0.group.0.lr"]) == 0.01, "numbers are read by float.fromhex")
        check(torch.allclose(ckpt["optimizer.0.exp_avg.fc2.bias"], torch.full((2,), 0.05)), "Adam's state")


main()
