#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes all_dtypes.safetensors and no_tensors.safetensors: what the reference implementation writes,
for lockstep/checkpoint/weights/safetensors_test.cpp, which knows the same tensors.

Run with safetensors installed (made with safetensors 0.8.0):

    python tests/golden/make_safetensors.py
"""

import ctypes
import pathlib

from safetensors import TensorSpec, serialize_file

# Python's dtype name, bytes.
DTYPES = [
    ("bool", 1), ("uint8", 1), ("int8", 1), ("float8_e5m2", 1), ("float8_e4m3fn", 1),
    ("float8_e8m0fnu", 1), ("float8_e4m3fnuz", 1), ("float8_e5m2fnuz", 1), ("int16", 2), ("uint16", 2),
    ("float16", 2), ("bfloat16", 2), ("int32", 4), ("uint32", 4), ("float32", 4), ("complex64", 8),
    ("float64", 8), ("int64", 8), ("uint64", 8),
]  # fmt: skip
STRANGE_NAMES = ["", "a.b.weight", "../../x", "quote\" \\ tab\t line\n bell\x07 del\x7f", "größe ✓ 𝄞"]


def contents(dtype, count):
    """Byte i is 37 i + 11, of which a bool keeps the last bit."""
    return bytes((37 * i + 11) % (2 if dtype == "bool" else 256) for i in range(count))


def main():
    folder = pathlib.Path(__file__).parent
    alive, specs = [], {}

    def add(name, dtype, element_bytes, shape):
        count = element_bytes
        for size in shape:
            count *= size
        alive.append(ctypes.create_string_buffer(contents(dtype, count), max(count, 1)))
        specs[name] = TensorSpec(
            dtype=dtype, shape=shape, data_ptr=ctypes.addressof(alive[-1]), data_len=count
        )

    for dtype, element_bytes in DTYPES:
        add(f"{dtype}.matrix", dtype, element_bytes, [3, 5])
        add(f"{dtype}.scalar", dtype, element_bytes, [])
        add(f"{dtype}.empty", dtype, element_bytes, [2, 0, 3])
    for name in STRANGE_NAMES:
        add(name, "float32", 4, [2])
    # One key: the reference keeps several in random order.
    serialize_file(specs, folder / "all_dtypes.safetensors", {"format": "pt"})
    serialize_file({}, folder / "no_tensors.safetensors", None)


if __name__ == "__main__":
    main()
