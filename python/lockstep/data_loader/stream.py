# SPDX-License-Identifier: Apache-2.0
"""Prepared loaders of streams, and of batch samplers of the program's own class."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from .. import _core
from ..state import GradientState
from .loop import _kept_arguments, _LoopMixin, _synchronize
from .samplers import BatchSamplerShard, IterableDatasetShard, _give_generator, get_sampler


class _StreamLoader(_LoopMixin, DataLoader):
    """The parts of loaders of streams, and of batch samplers that only Python can read."""

    def _init_stream(self, samples: int | None, batch_size: int, drop_last: bool, device: Any, blocking: bool) -> None:
        self._core = _core.LoaderCore(samples, max(1, batch_size), drop_last, None)
        self.gradient_state = GradientState()
        self.device = device
        self._non_blocking = blocking
        self.remainder = -1

    def _begun_batches(
        self, batches_from: Callable[[int], Iterator[tuple[Any, list[int], list[int], bool]]]
    ) -> Iterator[Any]:
        """Yields the batches of `batches_from(begin)`, which skips `begin` of them.

        Each comes with the rows and new rows of all processes, and whether it is the last.
        """
        self._begin_pass()
        for batch, rows, new, is_last in batches_from(self._core.cursor.batches):
            self._core.begin_stream_batch(rows, new, is_last)
            yield batch

    @property
    def total_dataset_length(self) -> int:
        return len(cast(Sized, self.dataset))

    def skipping(self, batches: int) -> Any:
        if batches < 0:
            raise _core.ConfigError(f"[skip_first_batches] num_batches is {batches}; expected at least 0")
        self._skip = batches
        return self


def _one_ahead(items: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Yields each item with whether it is the last."""
    missing = object()
    current = next(items, missing)
    while current is not missing:
        following = next(items, missing)
        yield current, following is missing
        current = following


class DataLoaderStreamShard(_StreamLoader):
    """A DataLoader of which every process reads everything and keeps its share: of an IterableDataset, or with a batch
    sampler of the program's own class."""

    def __init__(
        self,
        loader: DataLoader,
        *,
        num_processes: int,
        process_index: int,
        split_batches: bool,
        even_batches: bool,
        device: torch.device | None,
        non_blocking: bool,
        rng_types: list[Any] | None = None,
    ) -> None:
        self.rng_types = rng_types
        self._spec = {"num_processes": num_processes, "process_index": process_index, "split_batches": split_batches}
        self._rounds: Any = None
        # The stream or sampler that may draw from a generator of its own.
        self._random = loader.dataset if isinstance(loader.dataset, IterableDataset) else get_sampler(loader)
        batch_size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size or 1
        drop_last = bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last))
        if isinstance(loader.dataset, IterableDataset):
            self._each = batch_size // num_processes if split_batches else batch_size
            dataset = loader.dataset
            if num_processes > 1:
                dataset = IterableDatasetShard(
                    dataset, batch_size, drop_last, num_processes, process_index, split_batches
                )
            super().__init__(
                dataset,
                batch_size=self._each if loader.batch_size is not None else None,
                drop_last=drop_last,
                **_kept_arguments(loader),
            )
        else:
            if num_processes > 1:
                _give_generator(self._random)
            source = loader.batch_sampler
            if source is None:  # batch_size=None: each value of the sampler is the index of one batch.
                source = loader.sampler if isinstance(loader.sampler, BatchSampler) else _Singles(loader.sampler)
            self._rounds = BatchSamplerShard(source, num_processes, process_index, split_batches, even_batches)
            own: dict[str, Any] = {"batch_sampler": _Recorded(self)}
            if loader.batch_sampler is None:
                own = {"sampler": _Recorded(self), "batch_size": None}
            super().__init__(loader.dataset, **own, **_kept_arguments(loader))
        self._init_stream(None, batch_size, drop_last, device, non_blocking)
        self._batch_rows = batch_size

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class.
        if self._spec["num_processes"] > 1:
            _synchronize(self.rng_types, self._random)
        if self._rounds is not None:
            source = self._rounds.batch_sampler
            if self._rounds.batch_size is not None:
                self._rounds.even_batches = self._core.even_batches  # join_uneven_inputs changes it.
            self._set_epoch_of(self.dataset, source, getattr(source, "sampler", None))
            self._queue: list[tuple[list[int], list[int]]] = []
            return self._loop(self._begun_batches(self._recorded_batches))
        self._set_epoch_of(self.dataset)
        return self._loop(self._begun_batches(self._stream_batches))

    def _recorded_batches(self, begin: int) -> Iterator[tuple[Any, list[int], list[int], bool]]:
        for index, (batch, is_last) in enumerate(_one_ahead(super().__iter__())):
            rows, new = self._queue.pop(0)
            if index >= begin:
                yield batch, rows, new, is_last

    def _stream_batches(self, begin: int) -> Iterator[tuple[Any, list[int], list[int], bool]]:
        from ..utils.operations import ignorant_find_batch_size

        world = self._spec["num_processes"]
        for batch, is_last in _one_ahead(itertools.islice(super().__iter__(), begin, None)):
            rows = ignorant_find_batch_size(batch) or 0
            new = [rows] * world
            yield batch, [rows] * world, new, is_last

    @property
    def total_batch_size(self) -> int:
        world = self._spec["num_processes"]
        return self._batch_rows if self._spec["split_batches"] else self._batch_rows * world


class _Recorded(BatchSampler):
    """Remembers the rows of each batch that it yields."""

    def __init__(self, loader: DataLoaderStreamShard) -> None:
        self._loader = loader
        rounds = loader._rounds
        self.batch_sampler = rounds.batch_sampler
        self.sampler = getattr(rounds.batch_sampler, "sampler", rounds.batch_sampler)
        self.batch_size = rounds.batch_size
        self.drop_last = rounds.drop_last

    @property
    def even_batches(self) -> bool:
        return self._loader._core.even_batches

    def __len__(self) -> int:
        return len(self._loader._rounds)

    def __iter__(self) -> Iterator[Any]:
        single = isinstance(self.batch_sampler, _Singles)
        for own, rows, new in self._loader._rounds.rounds():
            self._loader._queue.append((rows, new))
            yield own[0] if single else own


class _Singles:
    """The values of a sampler, each in a batch of its own."""

    batch_size = 1
    drop_last = False

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        return ([value] for value in self.sampler)
