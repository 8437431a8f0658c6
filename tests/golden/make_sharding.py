#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes sharding.json: indices of Accelerate's samplers, for lockstep/data/order/{shard,sampler}_test.cpp.

Run with torch and accelerate installed (made with torch 2.13.0 and accelerate 1.15.0):

    python tests/golden/make_sharding.py

A case is compact JSON [[batches of rank 0, batches of rank 1, ...], [len() of rank 0, ...]]; the small
grid keeps it as it is, the large one keeps zlib.crc32 of its text.
"""

import json
import pathlib
import zlib

import accelerate
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.utils.data import BatchSampler


def shard(n, batch_size, world, split, even, drop_last):
    def batches(rank):
        sampler = BatchSampler(range(n), batch_size=batch_size, drop_last=drop_last)
        # prepare_data_loader() does not shard a lone process.
        if world == 1:
            return sampler
        return BatchSamplerShard(sampler, world, rank, split_batches=split, even_batches=even)

    yielded = [[list(batch) for batch in batches(rank)] for rank in range(world)]
    return [yielded, [len(batches(rank)) for rank in range(world)]]


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def crc(value):
    return zlib.crc32(compact(value).encode())


def grid(batch_sizes, worlds, sizes, store):
    for batch_size in batch_sizes:
        for world in worlds:
            for split in (False, True):
                if split and batch_size % world != 0:
                    continue
                for even in (True, False):
                    for drop_last in (False, True):
                        arguments = (batch_size, world, split, even, drop_last)
                        yield {
                            "batch_size": batch_size,
                            "world": world,
                            "split_batches": split,
                            "even_batches": even,
                            "drop_last": drop_last,
                            "cases": [store(shard(n, *arguments)) for n in sizes],  # of n = 0, 1, 2, ...
                        }


def orders():
    for n in (1, 2, 3, 10, 1000, 70000):
        for seed in (0, 1, 42, 2**32 + 5, 2**63 + 11):
            sampler = SeedableRandomSampler(range(n), generator=torch.Generator(), data_seed=seed)
            for epoch in range(3):  # It counts its epochs itself.
                order = list(sampler)
                entry = {"size": n, "seed": seed, "epoch": epoch, "crc32": crc(order)}
                if n <= 10:
                    entry["order"] = order
                yield entry


def main():
    golden = {
        "made_by": f"tests/golden/make_sharding.py, torch {torch.__version__}, accelerate {accelerate.__version__}",
        "small_grid": list(grid((1, 2, 3, 4), (2, 3), range(14), lambda case: case)),
        "large_grid": list(grid((1, 2, 3, 4, 5, 6), (1, 2, 3, 4), range(41), crc)),
        "orders": list(orders()),
    }
    lines = [f'"made_by":{compact(golden["made_by"])}']
    for key in ("small_grid", "large_grid", "orders"):
        lines.append(f'"{key}":[\n' + ",\n".join(compact(entry) for entry in golden[key]) + "\n]")
    path = pathlib.Path(__file__).with_name("sharding.json")
    path.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
