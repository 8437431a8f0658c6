#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes iterable.json: batches of Accelerate's loaders of iterable data, for
lockstep/data/loader/{stream_loader,dispatcher}_test.cpp.

Run with torch and accelerate installed (made with torch 2.13.0 and accelerate 1.15.0):

    python tests/golden/make_iterable.py

"shard" is a DataLoader over IterableDatasetShard, as prepare_data_loader() makes it; a case is compact JSON
[batches of rank 0, batches of rank 1, ...], or zlib.crc32 of that text in the large grid. "dispatch" is
DataLoaderDispatcher, each rank's run in turn with rank 0's broadcasts replayed to the others; null where it
raises.
"""

import json
import pathlib
import zlib

import accelerate
import torch
from accelerate import data_loader
from torch.utils.data import DataLoader, IterableDataset


class Count(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def shard(n, batch_size, world, split, drop_last):
    def batches(rank):
        if world == 1:  # prepare_data_loader() does not shard a lone process.
            return DataLoader(Count(n), batch_size=batch_size, drop_last=drop_last)
        part = data_loader.IterableDatasetShard(Count(n), batch_size, drop_last, world, rank, split)
        each = batch_size // world if split else batch_size
        return DataLoader(part, batch_size=each, drop_last=drop_last)

    return [[batch.tolist() for batch in batches(rank)] for rank in range(world)]


class Rank:
    """Stands in for PartialState."""

    def __init__(self, rank, world):
        self.process_index, self.num_processes, self.device = rank, world, torch.device("cpu")


def dispatch(n, batch_size, world, split, drop_last):
    sent = []

    def run(rank):
        replay = iter(list(sent))

        def broadcast(batch, from_process=0):
            if rank == 0:
                sent.append(batch)
                return batch
            return next(replay)

        def broadcast_object_list(objects):
            if rank == 0:
                sent.append(list(objects))
            else:
                objects[:] = next(replay)

        data_loader.broadcast, data_loader.broadcast_object_list = broadcast, broadcast_object_list
        loader = data_loader.DataLoaderDispatcher(
            Count(n), split_batches=split, _drop_last=drop_last, batch_size=batch_size, drop_last=drop_last
        )
        loader.state = Rank(rank, world)
        return [batch.tolist() for batch in loader]

    try:
        return [run(rank) for rank in range(world)]
    except ValueError:  # Accelerate fails if the data end before the first full step.
        return None


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def crc(value):
    return zlib.crc32(compact(value).encode())


def grid(make, batch_sizes, worlds, sizes, store):
    for batch_size in batch_sizes:
        for world in worlds:
            for split in (False, True):
                if split and batch_size % world != 0:
                    continue
                for drop_last in (False, True):
                    arguments = (batch_size, world, split, drop_last)
                    yield {
                        "batch_size": batch_size,
                        "world": world,
                        "split_batches": split,
                        "drop_last": drop_last,
                        "first": sizes[0],
                        "cases": [store(make(n, *arguments)) for n in sizes],
                    }


def main():
    golden = {
        "shard_small": list(grid(shard, (1, 2, 3, 4), (2, 3), range(12), lambda case: case)),
        "shard_large": list(grid(shard, (1, 2, 3, 4), (1, 2, 3, 4), range(41), crc)),
        "dispatch": list(grid(dispatch, (1, 2, 4), (2, 3, 4), range(1, 20), lambda case: case)),
    }
    made_by = f"tests/golden/make_iterable.py, torch {torch.__version__}, accelerate {accelerate.__version__}"
    lines = [f'"made_by":{compact(made_by)}']
    for key, entries in golden.items():
        lines.append(f'"{key}":[\n' + ",\n".join(compact(entry) for entry in entries) + "\n]")
    path = pathlib.Path(__file__).with_name("iterable.json")
    path.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
