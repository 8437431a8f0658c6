#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes model_shards.json and the folders model_whole/ and model_shards/, for
lockstep/storage/model_{files,shards}_test.cpp: weights split by huggingface_hub, and output of Accelerate's
save_model.

Run with torch, accelerate, huggingface_hub and safetensors installed (made with torch 2.13.0, accelerate
1.15.0, huggingface_hub 2.4.0 and safetensors 0.8.0):

    python tests/golden/make_model_shards.py
"""

import json
import pathlib
import random
import shutil

import accelerate
import huggingface_hub
import torch
from huggingface_hub.serialization import split_state_dict_into_shards_factory
from huggingface_hub.serialization._base import parse_size_to_int

FOLDER = pathlib.Path(__file__).parent
SIZES = ("5GB", "300MB", "10GB", "1KB", "0.5GB", "1.5TB", "2.25 MB", "7kb", " 8MB", "1e3KB", "10gb")


def values(dtype, shape):
    """Bytes (37 i + 11) % 256, as golden_model() in the C++ test has them."""
    count = torch.Size(shape).numel() * dtype.itemsize
    data = torch.tensor([(37 * i + 11) % 256 for i in range(count)], dtype=torch.uint8)
    return data.view(dtype).reshape(shape)


class Model(torch.nn.Module):
    """Names out of order, several dtypes, a tensor of no dimension, one too large for a shard."""

    def __init__(self):
        super().__init__()
        self.register_buffer("wte", values(torch.float32, (16, 4)))
        self.register_buffer("h0_bias", values(torch.bfloat16, (5,)))
        self.register_buffer("h0_weight", values(torch.bfloat16, (8, 9)))
        self.register_buffer("größe", values(torch.float32, (3, 2)))
        self.register_buffer("count", values(torch.int64, ()))
        self.register_buffer("ln", values(torch.float16, (6,)))


def split(sizes, limit):
    """Returns the indices of the tensors of each file, in the order of the files."""
    files = split_state_dict_into_shards_factory(
        {str(place): size for place, size in enumerate(sizes)},
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=limit,
    ).filename_to_tensors
    return [[int(place) for place in places] for places in files.values()]


def splits():
    yield [6, 6, 2, 6, 2, 2], 10
    rng = random.Random(7)
    for _ in range(150):
        yield [rng.choice((0, 1, rng.randint(0, 30))) for _ in range(rng.randint(1, 9))], rng.randint(1, 40)


def main():
    golden = {
        "made_by": f"tests/golden/make_model_shards.py, huggingface_hub {huggingface_hub.__version__}",
        "sizes": {size: parse_size_to_int(size) for size in SIZES},
        "splits": [[sizes, limit, split(sizes, limit)] for sizes, limit in splits()],
    }
    lines = [f"{json.dumps(key)}: {json.dumps(golden[key], ensure_ascii=False)}" for key in ("made_by", "sizes")]
    lines.append('"splits": [\n' + ",\n".join(json.dumps(case) for case in golden["splits"]) + "\n]")
    (FOLDER / "model_shards.json").write_text("{" + ",\n".join(lines) + "}\n")
    for folder, limit in (("model_whole", "10GB"), ("model_shards", "0.15KB")):
        shutil.rmtree(FOLDER / folder, ignore_errors=True)
        accelerate.Accelerator(cpu=True).save_model(Model(), FOLDER / folder, max_shard_size=limit)


if __name__ == "__main__":
    main()
