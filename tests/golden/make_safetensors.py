#!/usr/bin/env python3
"""Makes the small safetensors files that test_archive.c reads, with the safetensors package itself.

    python3 tests/golden/make_safetensors.py            # writes tests/golden/*.safetensors
"""
import os
import warnings

warnings.filterwarnings("ignore")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.numpy import save_file as save_numpy  # noqa: E402
from safetensors.torch import save_file as save_torch  # noqa: E402

here = os.path.dirname(os.path.abspath(__file__))


def path(name):
    return os.path.join(here, name + ".safetensors")


def main():
    # every dtype dt has, and BOOL
    save_torch({
        "f32": torch.tensor([[1.5, -2.25, 3e38], [float("inf"), -0.0, 1e-45]]),
        "f16": torch.tensor([1.0, -65504.0, 6e-8], dtype=torch.float16),
        "bf16": torch.tensor([1.0, -3.0, 1e38], dtype=torch.bfloat16),
        "i64": torch.tensor([-9223372036854775808, 9223372036854775807]),
        "i32": torch.tensor([[-2147483648], [2147483647]], dtype=torch.int32),
        "u8": torch.tensor([0, 1, 255], dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(42.0),
        "empty": torch.zeros(3, 0, 2),
        "gr\u00fc\u00dfe.\u4f60\u597d.\U0001f600 \"q\" \\ /": torch.tensor([7.0]),
    }, path("dtypes"), metadata={"format": "pt", "note": "caf\u00e9 \"quoted\"\n\ttab \U0001f680", "empty": ""})
    # no metadata, and dtypes dt only lists
    save_numpy({
        "f64": np.array([1.0, 2.0]),
        "i8": np.array([-1, 2, 3], dtype=np.int8),
        "i16": np.array([-300], dtype=np.int16),
        "u16": np.array([65535], dtype=np.uint16),
        "u32": np.array([4294967295], dtype=np.uint32),
        "u64": np.array([18446744073709551615], dtype=np.uint64),
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    }, path("foreign"))
    # nothing at all
    save_numpy({}, path("nothing"))


main()
