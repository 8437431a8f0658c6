# SPDX-License-Identifier: Apache-2.0
"""The prepared loader that the main process reads for all."""
from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from .. import _core
from .._codec import decode, encode
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
        return self._loop(self._begun_batches(self._dispatched))

    def _dispatched(self, begin: int) -> Iterator[tuple[Any, list[int], list[int], bool]]:
        """Yields this process's batches from index `begin` on.

        All processes communicate once for each batch that they ask for, and never when a pass ends or is left. So a
        loop may be left in any way, if all processes leave it at the same batch.
        """
        rounds = None
        if self.state.process_index == 0:
            rounds = _one_ahead(itertools.islice(self._global_batches(super().__iter__()), begin, None))
        for index in itertools.count(begin):
            arrived = self._receive(index) if rounds is None else self._send_next(rounds, index)
            if arrived is None:  # A pass without batches.
                return
            yield arrived
            if arrived[3]:
                return

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

    def _send_next(
        self, rounds: Iterator[tuple[Any, bool]], index: int
    ) -> tuple[Any, list[int], list[int], bool] | None:
        """Reads a round, and sends every other process its batch or the reason why there is none."""
        try:
            following = next(rounds, None)
            if following is None:
                self._announce(index, {"end": True})
                return None
            (whole, rows, new), is_last = following
            shares = self._shares(whole, rows)
            texts = [encode(share) for share in shares[1:]]
        except BaseException as error:  # Other processes wait for this one.
            self._announce(index, {"failed": repr(error)})
            raise
        world = self.state.num_processes
        each = rows // world
        fresh = [max(0, min(each, new - rank * each)) for rank in range(world)]
        self.remainder = new if is_last and new < self.total_batch_size else -1
        header = {"each": each, "new": fresh, "last": is_last, "remainder": self.remainder}
        self._announce(index, header | {"sizes": [len(text) for text in texts]})
        for rank, text in enumerate(texts, start=1):
            self.state.group.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), rank)
        return shares[0], [each] * world, fresh, is_last

    def _position(self, index: int) -> list[int]:
        cursor = self._core.cursor
        return [cursor.epoch, cursor.first_sample, index, self.total_batch_size]

    def _announce(self, index: int, header: dict[str, Any]) -> None:
        if self.state.num_processes > 1:
            text = json.dumps(header | {"position": self._position(index)})
            _core.broadcast_bytes(self.state.group, text.encode(), 0)

    def _receive(self, index: int) -> tuple[Any, list[int], list[int], bool] | None:
        header = json.loads(_core.broadcast_bytes(self.state.group, b"", 0))
        if "failed" in header:
            raise _core.ConfigError(
                f"[DataLoaderDispatcher] the main process could not read a batch: {header['failed']}"
            )
        batch = None
        if "sizes" in header:  # Received also if it is of another position, since the main process waits for that.
            text = torch.empty(header["sizes"][self.state.process_index - 1], dtype=torch.uint8)
            self.state.group.recv(text, 0)
            batch = decode(text.numpy().tobytes())
        if header["position"] != self._position(index):
            raise _core.ConfigError(
                f"[DataLoaderDispatcher] the processes are at different positions: the main process at "
                f"{_text_of(header['position'])}; process {self.state.process_index} at "
                f"{_text_of(self._position(index))}; all processes must leave a loop at the same batch, and load the "
                "same position"
            )
        if "end" in header:
            return None
        self.remainder = header["remainder"]
        return batch, [header["each"]] * self.state.num_processes, header["new"], header["last"]

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


def _text_of(position: list[int]) -> str:
    epoch, first_sample, batch, round_rows = position
    return f"batch {batch} of epoch {epoch} (pass from sample {first_sample}, {round_rows} samples per step)"
