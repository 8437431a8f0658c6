# SPDX-License-Identifier: Apache-2.0
"""Prepared data loaders: torch.utils.data.DataLoaders that deliver the batches of one process.

The C++ library assigns samples to processes, and knows the position within an epoch, which is part of a checkpoint.
"""
from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from .. import _core
from ..state import PartialState
from .arguments import _kept_arguments
from .dispatcher import DataLoaderDispatcher
from .samplers import BatchSamplerShard, IterableDatasetShard, SeedableRandomSampler, SkipBatchSampler, get_sampler
from .shard import DataLoaderShard
from .stream import DataLoaderStreamShard

__all__ = [
    "BatchSamplerShard",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "DataLoaderStreamShard",
    "IterableDatasetShard",
    "SeedableRandomSampler",
    "SkipBatchSampler",
    "get_sampler",
    "prepare_data_loader",
    "skip_first_batches",
]


def _is_plain(loader: DataLoader) -> bool:
    """Returns whether the C++ library can compute the loader's batches: a BatchSampler over a sized sampler."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    return type(loader.batch_sampler) is BatchSampler and isinstance(sampler, Sampler) and hasattr(sampler, "__len__")


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
    if dispatch_batches:
        dispatcher = DataLoaderDispatcher(
            dataloader,
            split_batches=split_batches,
            drop_last=dataloader.drop_last,
            device=target,
            non_blocking=non_blocking,
            slice_fn=slice_fn_for_dispatch,
            compares=not is_asked_to_dispatch,
        )
        dispatcher._core.shard(rank, world, even_batches, split_batches)
        return dispatcher
    if is_stream or not _is_plain(dataloader):
        prepared: Any = DataLoaderStreamShard(
            dataloader,
            num_processes=world,
            process_index=rank,
            split_batches=split_batches,
            even_batches=even_batches,
            device=target,
            non_blocking=non_blocking,
            rng_types=rng_types,
        )
    else:
        prepared = DataLoaderShard(
            dataloader,
            num_processes=world,
            process_index=rank,
            split_batches=split_batches,
            device=target,
            non_blocking=non_blocking,
            rng_types=rng_types,
            use_seedable_sampler=use_seedable_sampler,
            data_seed=data_seed,
        )
    prepared._core.shard(rank, world, even_batches, split_batches)
    return prepared


def skip_first_batches(dataloader: DataLoader, num_batches: int = 0) -> DataLoader:
    """Makes the next pass over a prepared loader skip this process's first batches; later passes are full.

    A loader that load_state() has put at or past that batch stays where it is, so a program that skips after resuming
    does not skip twice. Another DataLoader becomes one that skips in every pass.
    """
    if hasattr(dataloader, "skipping"):
        return dataloader.skipping(num_batches)
    if num_batches < 0:
        raise _core.ConfigError(f"[skip_first_batches] num_batches is {num_batches}; expected at least 0")
    if isinstance(dataloader.dataset, IterableDataset):
        raise _core.ConfigError("[skip_first_batches] prepare a loader of an IterableDataset first")
    sampler = SkipBatchSampler(dataloader.batch_sampler, num_batches)
    return DataLoader(dataloader.dataset, batch_sampler=sampler, **_kept_arguments(dataloader))
