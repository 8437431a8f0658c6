# SPDX-License-Identifier: Apache-2.0
"""The prepared loader that the main process reads for all."""
from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from .. import _core
from ..state import PartialState
from .loop import _kept_arguments
from .samplers import get_sampler
from .stream import _one_ahead, _StreamLoader


class DataLoaderDispatcher(_StreamLoader):
    """A DataLoader that the main process reads for all processes, and sends each its share of every batch.

    The batches of a round are concatenated, then split evenly. A last round that does not divide is completed with the
    first samples, by at most one sample for each process.
    """

    def __init__(
        self,
        loader: DataLoader,
        *,
        split_batches: bool = False,
        drop_last: bool = False,
        device: torch.device | None = None,
        non_blocking: bool = False,
        slice_fn: Any = None,
    ) -> None:
        self.state = PartialState()
        self.split_batches = split_batches
        self._slice = slice_fn
        arguments = _kept_arguments(loader)
        if loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset):
            super().__init__(loader.dataset, batch_sampler=loader.batch_sampler, **arguments)
        else:
            super().__init__(loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, **arguments)
        self._own_batch_size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size or 1
        self._drop_last = drop_last or bool(getattr(loader.batch_sampler, "drop_last", False))
        if split_batches and self._own_batch_size % self.state.num_processes != 0:
            raise _core.ConfigError(
                f"[DataLoaderDispatcher] split_batches needs a batch_size that is divisible by "
                f"{self.state.num_processes} processes; got {self._own_batch_size}"
            )
        self._init_stream(None, self._own_batch_size, self._drop_last, device, non_blocking)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class.
        sampler = getattr(self.batch_sampler, "sampler", None)
        self._set_epoch_of(self.dataset, self.batch_sampler, sampler)
        return self._loop(self._begun_batches(self._received()))

    def _received(self) -> Iterator[tuple[Any, list[int], list[int], bool]]:
        if self.state.process_index != 0:
            yield from iter(self._receive, None)
            return
        failure: BaseException | None = None
        try:
            for (whole, rows, new), is_last in _one_ahead(self._global_batches(super().__iter__())):
                yield self._send(whole, rows, new, is_last)
        except GeneratorExit:
            raise
        except BaseException as error:  # Other processes wait for this one.
            failure = error
            raise
        finally:
            self._announce({"failed": repr(failure)} if failure is not None else {"end": True})

    def _global_batches(self, batches: Iterator[Any]) -> Iterator[tuple[Any, int, int]]:
        """Yields the samples of each round, completed, with the completed and the new number of rows."""
        from ..utils.operations import concatenate, find_batch_size, slice_tensors

        world = self.state.num_processes
        per_round = 1 if self.split_batches else world
        full = self._own_batch_size * per_round
        beginning = None
        while True:
            parts = [batch for _, batch in zip(range(per_round), batches)]
            if not parts:
                return
            try:
                whole = concatenate(parts, dim=0) if len(parts) > 1 else parts[0]
            except RuntimeError as error:
                raise _core.ConfigError(
                    "[DataLoaderDispatcher] the batches of a round have different shapes, so they cannot be "
                    "concatenated; pad them in collate_fn, or use DataLoaderConfiguration(dispatch_batches=False, "
                    "even_batches=False)"
                ) from error
            rows = find_batch_size(whole)
            if rows is None:
                raise _core.ConfigError(
                    f"[DataLoaderDispatcher] a batch of type {type(whole).__name__} has no tensor; expected tensors in "
                    "lists, tuples or dicts"
                )
            if beginning is None:
                beginning = slice_tensors(whole, slice(0, world))
            new = rows
            if rows < full and self._drop_last:
                return
            if rows % world != 0:
                whole = concatenate([whole, beginning], dim=0)
                rows = rows + world - rows % world
            yield whole, rows, new

    def _shares(self, whole: Any, rows: int) -> list[Any]:
        from ..utils.operations import slice_tensors

        each = rows // self.state.num_processes
        cut = self._slice or (lambda batch, part, process_index=None, num_processes=None: slice_tensors(batch, part))
        return [
            cut(
                whole,
                slice(rank * each, (rank + 1) * each),
                process_index=rank,
                num_processes=self.state.num_processes,
            )
            for rank in range(self.state.num_processes)
        ]

    def _send(self, whole: Any, rows: int, new: int, is_last: bool) -> tuple[Any, list[int], list[int], bool]:
        from .._codec import encode

        shares = self._shares(whole, rows)
        texts = [encode(share) for share in shares[1:]]
        world = self.state.num_processes
        each = rows // world
        fresh = [max(0, min(each, new - rank * each)) for rank in range(world)]
        self.remainder = new if is_last and new < self.total_batch_size else -1
        self._announce({"sizes": [len(text) for text in texts], "each": each, "new": fresh, "last": is_last})
        for rank, text in enumerate(texts, start=1):
            self.state.group.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), rank)
        return shares[0], [each] * world, fresh, is_last

    def _announce(self, header: dict[str, Any]) -> None:
        if self.state.num_processes > 1:
            _core.broadcast_bytes(self.state.group, json.dumps(header).encode(), 0)

    def _receive(self) -> tuple[Any, list[int], list[int], bool] | None:
        from .._codec import decode

        header = json.loads(_core.broadcast_bytes(self.state.group, b"", 0))
        if "failed" in header:
            raise _core.ConfigError(
                f"[DataLoaderDispatcher] the main process could not read a batch: {header['failed']}"
            )
        if "end" in header:
            return None
        rank, world = self.state.process_index, self.state.num_processes
        text = torch.empty(header["sizes"][rank - 1], dtype=torch.uint8)
        self.state.group.recv(text, 0)
        self.remainder = sum(header["new"]) if header["last"] else -1
        return decode(text.numpy().tobytes()), [header["each"]] * world, header["new"], header["last"]

    def __len__(self) -> int:
        length = super().__len__()
        if self.split_batches:
            return length
        world = self.state.num_processes
        return length // world if self._drop_last else -(-length // world)

    @property
    def total_batch_size(self) -> int:
        return self._own_batch_size if self.split_batches else self._own_batch_size * self.state.num_processes

    def get_sampler(self) -> Any:
        return get_sampler(self)
