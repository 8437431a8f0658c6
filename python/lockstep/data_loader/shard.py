# SPDX-License-Identifier: Apache-2.0
"""Accelerate's constructors of loaders whose batches are not divided between processes."""
from __future__ import annotations

import itertools
from abc import ABC
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from .arguments import refuse_mesh
from .map_shard import DataLoaderMapShard
from .stream import DataLoaderStreamShard


class DataLoaderShard(ABC):
    """The class of prepared loaders of which every process reads its own share: isinstance() is true for them.

    A call makes such a loader of a dataset that each process has divided itself. `kwargs` are the arguments of DataLoader.
    `rng_types` are the random states that every pass makes equal on all processes; "generator" means
    `synchronized_generator`. Every pass skips `skip_batches`. With `_drop_last` the remainder is unknown.
    """

    def __new__(  # type: ignore[misc]  # It returns a DataLoader.
        cls,
        dataset: Any,
        device: torch.device | None = None,
        rng_types: list[Any] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        torch_device_mesh: Any = None,
        **kwargs: Any,
    ) -> DataLoaderMapShard | DataLoaderStreamShard:
        del use_stateful_dataloader  # Every prepared loader has state_dict().
        refuse_mesh("DataLoaderShard", torch_device_mesh)
        loader = DataLoader(dataset, **kwargs)
        kind = kind_of_shard(loader)
        shard = kind.of(loader, (0, 1, True, False), device=device, non_blocking=_non_blocking, rng_types=rng_types)
        shard._synchronizes = rng_types is not None
        shard._synchronized_generator = synchronized_generator
        shard._skip_always = skip_batches
        shard._hides_remainder = _drop_last
        return shard


DataLoaderShard.register(DataLoaderMapShard)
DataLoaderShard.register(DataLoaderStreamShard)


def kind_of_shard(loader: DataLoader) -> type[DataLoaderMapShard] | type[DataLoaderStreamShard]:
    """Returns the class for a loader. The C++ library computes the batches of a BatchSampler over a sized sampler."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    is_plain = type(loader.batch_sampler) is BatchSampler and isinstance(sampler, Sampler) and hasattr(sampler, "__len__")
    is_stream = isinstance(loader.dataset, IterableDataset)
    return DataLoaderMapShard if is_plain and not is_stream else DataLoaderStreamShard


class SkipDataLoader(DataLoader):
    """A DataLoader that skips the first batches of every pass. It is not prepared. `kwargs` are those of DataLoader."""

    def __init__(
        self, dataset: Any, skip_batches: int = 0, use_stateful_dataloader: bool = False, **kwargs: Any
    ) -> None:
        del use_stateful_dataloader  # A prepared loader has state_dict().
        super().__init__(dataset, **kwargs)
        self.base_dataloader = DataLoader(dataset, **kwargs)
        self.skip_batches = skip_batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class.
        return itertools.islice(super().__iter__(), self.skip_batches, None)

    def __len__(self) -> int:
        return max(0, super().__len__() - self.skip_batches)
