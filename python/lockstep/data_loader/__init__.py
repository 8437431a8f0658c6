# SPDX-License-Identifier: Apache-2.0
"""Prepared data loaders: torch.utils.data.DataLoaders that deliver the batches of one process.

The C++ library assigns samples to processes, and knows the position within an epoch, which is part of a checkpoint.
"""
from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from .. import _core
from ..state import PartialState
from .arguments import _kept_arguments
from .dispatcher import DataLoaderDispatcher
from .loop import PreparedLoader as DataLoaderStateMixin
from .map_shard import DataLoaderMapShard
from .samplers import BatchSamplerShard, IterableDatasetShard, SeedableRandomSampler, SkipBatchSampler, get_sampler
from .shard import DataLoaderShard, SkipDataLoader, kind_of_shard
from .stream import DataLoaderStreamShard

__all__ = [
    "BatchSamplerShard",
    "DataLoaderDispatcher",
    "DataLoaderMapShard",
    "DataLoaderShard",
    "DataLoaderStateMixin",
    "DataLoaderStreamShard",
    "IterableDatasetShard",
    "SeedableRandomSampler",
    "SkipBatchSampler",
    "SkipDataLoader",
    "get_sampler",
    "prepare_data_loader",
    "skip_first_batches",
]


def prepare_data_loader(
    dataloader: DataLoader,
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: list[Any] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Any = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
) -> DataLoader:
    """Returns a loader of one process's batches.

    By default the main process reads an IterableDataset for all if `put_on_device`. Then the other processes read one
    sample, to find streams that each process has sharded itself; with `dispatch_batches=True` they read nothing. Use
    Accelerator.prepare in a training loop, which also makes the loader's position part of checkpoints.
    """
    if isinstance(dataloader, SkipDataLoader) and dataloader.skip_batches > 0:
        raise _core.ConfigError(
            "[prepare] a SkipDataLoader was given; expected a DataLoader, whose batches are divided between processes; "
            "prepare it, and call skip_first_batches on the result"
        )
    state = PartialState()
    world = state.num_processes if num_processes is None else num_processes
    rank = state.process_index if process_index is None else process_index
    is_stream = isinstance(dataloader.dataset, IterableDataset)
    is_asked_to_dispatch = dispatch_batches is True
    if dispatch_batches is None:
        dispatch_batches = is_stream and put_on_device
    if dispatch_batches and not put_on_device:
        raise _core.ConfigError("[prepare_data_loader] dispatch_batches needs put_on_device=True")
    target = device if put_on_device else None
    division = (rank, world, even_batches, split_batches)
    options: dict[str, Any] = {"split_batches": split_batches, "device": target, "non_blocking": non_blocking}
    if dispatch_batches:
        options |= {"drop_last": dataloader.drop_last, "slice_fn": slice_fn_for_dispatch}
        return DataLoaderDispatcher.of(dataloader, division, compares=not is_asked_to_dispatch, **options)
    kind = kind_of_shard(dataloader)
    options |= {"num_processes": world, "process_index": rank, "rng_types": rng_types}
    options |= {"use_seedable_sampler": use_seedable_sampler, "data_seed": data_seed}
    if kind is not DataLoaderMapShard:
        options["even_batches"] = even_batches
    return kind.of(dataloader, division, **options)


def skip_first_batches(dataloader: DataLoader, num_batches: int = 0) -> DataLoader:
    """Makes the next pass over a prepared loader skip this process's first batches; later passes are full.

    A loader that load_state() has put at or past that batch stays where it is, so a program that skips after resuming
    does not skip twice. Another DataLoader becomes one that skips in every pass; prepare it
    before skipping, if it reads an IterableDataset.
    """
    if hasattr(dataloader, "skipping"):
        return dataloader.skipping(num_batches)
    if num_batches < 0:
        raise _core.ConfigError(f"[skip_first_batches] num_batches is {num_batches}; expected at least 0")
    kept = _kept_arguments(dataloader)
    if isinstance(dataloader.dataset, IterableDataset):
        kept |= {"batch_size": dataloader.batch_size, "drop_last": dataloader.drop_last}
        return SkipDataLoader(dataloader.dataset, num_batches, **kept)
    sampler = SkipBatchSampler(dataloader.batch_sampler, num_batches)
    return DataLoader(dataloader.dataset, batch_sampler=sampler, **kept)
