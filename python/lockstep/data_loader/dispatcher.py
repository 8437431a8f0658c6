# SPDX-License-Identifier: Apache-2.0
"""The prepared loader that the main process reads for all."""
from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from .. import _core
from .._codec import decode, encode
from ..state import PartialState
from .arguments import _kept_arguments, given_batch_size, refuse_mesh
from .rounds import join, rows_of, share
from .sample_random import Visits, digest_of_sample, keyed_batches
from .samplers import get_sampler
from .stream import _StreamLoader, _with_is_last


class DataLoaderDispatcher(_StreamLoader):
    """A DataLoader that the main process reads for all processes, and sends each its share of every batch.

    The batches of a round are concatenated, then split evenly. A last round that does not divide is completed with the
    first samples, by at most one sample for each process. A value without rows, such as a flag, goes to the processes
    that get samples of its batch.

    The constructor has Accelerate's arguments. `kwargs` are those of DataLoader; every pass skips `skip_batches`.
    """

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        slice_fn: Any = None,
        torch_device_mesh: Any = None,
        **kwargs: Any,
    ) -> None:
        del use_stateful_dataloader  # Every prepared loader has state_dict().
        refuse_mesh("DataLoaderDispatcher", torch_device_mesh)
        state = PartialState()
        options = {
            "split_batches": split_batches,
            "drop_last": _drop_last,
            "device": state.device,
            "non_blocking": _non_blocking,
            "slice_fn": slice_fn,
        }
        division = (state.process_index, state.num_processes, True, split_batches)
        self._finish(DataLoader(dataset, **kwargs), division, options)
        self._skip_always = skip_batches

    def _set_up(  # type: ignore[override]  # Each kind has its own options.
        self,
        loader: DataLoader,
        *,
        split_batches: bool = False,
        drop_last: bool = False,
        device: torch.device | None = None,
        non_blocking: bool = False,
        slice_fn: Any = None,
        compares: bool = False,
    ) -> None:
        self.state = PartialState()
        self.split_batches = split_batches
        self._slice = slice_fn
        arguments = _kept_arguments(loader)
        if loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset):
            arguments["batch_sampler"] = loader.batch_sampler
        else:
            arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        self._own_batch_size = given_batch_size(loader)
        self._drop_last = drop_last or bool(getattr(loader.batch_sampler, "drop_last", False))
        if split_batches and self._own_batch_size % self.state.num_processes != 0:
            raise _core.ConfigError(
                f"[DataLoaderDispatcher] split_batches needs a batch_size that is divisible by "
                f"{self.state.num_processes} processes; got {self._own_batch_size}"
            )
        super().__init__(
            loader.dataset,
            arguments,
            batch_size=self._own_batch_size,
            drop_last=self._drop_last,
            device=device,
            non_blocking=non_blocking,
            process_index=self.state.process_index,
        )

        # A program that asks for the main process's reading may have data there only.
        self._compares = compares and isinstance(loader.dataset, IterableDataset) and self.state.num_processes > 1

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class.
        self._resume_if_requested()
        self._set_epochs()
        return self._loop(self._begun_batches(self._dispatched))

    def _dispatched(self, begin: int) -> Iterator[tuple[Any, list[int], list[int], bool]]:
        """Yields this process's batches from index `begin` on.

        All processes communicate once for each batch that they ask for, and never when a pass ends or is left. So a
        loop may be left in any way, if all processes leave it at the same batch.
        """
        rounds = None
        if self.state.process_index == 0:
            rounds = _with_is_last(itertools.islice(self._global_batches(self._read()), begin, None))
        for index in itertools.count(begin):
            arrived = self._receive(index) if rounds is None else self._send_next(rounds, index)
            if arrived is None:  # A pass without batches.
                return
            yield arrived
            if arrived[3]:
                return

    def _global_batches(self, batches: Iterator[Any]) -> Iterator[tuple[Any, int, int]]:
        """Yields the samples of each round, completed, with the completed and the new number of rows."""
        world = self.state.num_processes
        per_round = 1 if self.split_batches else world
        full = self._own_batch_size * per_round
        beginning: list[Any] = []  # Batches with the first samples, which complete the last round.

        def keep(batch: Any) -> None:
            if sum(map(rows_of, beginning)) < world:
                beginning.append(batch)

        for batch in itertools.islice(batches, self._used_batches()):
            keep(batch)
        while parts := list(itertools.islice(batches, per_round)):
            for part in parts:
                keep(part)
            new = sum(map(rows_of, parts))
            if new < full and self._drop_last:
                return
            missing = -new % world
            completed = parts + list(itertools.islice(itertools.cycle(beginning), missing))
            yield join(completed, list(map(rows_of, completed)), len(parts)), new + missing, new

    def _shares(self, joined: Any, rows: int) -> list[Any]:
        each = rows // self.state.num_processes
        slices = [slice(rank * each, (rank + 1) * each) for rank in range(self.state.num_processes)]
        if self._slice is None:
            return [share(joined, part.start, part.stop) for part in slices]
        batch = share(joined, 0, rows)
        return [
            self._slice(batch, part, process_index=rank, num_processes=self.state.num_processes)
            for rank, part in enumerate(slices)
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
            (joined, rows, new), is_last = following
            shares = self._shares(joined, rows)
            texts = [encode(batch) for batch in shares[1:]]
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
        return [self._number, cursor.epoch, cursor.first_sample, index, self.total_batch_size]

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
                f"{_text_of(self._position(index))}; all processes must read the same loader, leave a loop at "
                "the same batch, and load the same position"
            )
        if "end" in header:
            return None
        self.remainder = header["remainder"]
        return batch, [header["each"]] * self.state.num_processes, header["new"], header["last"]

    _hint_for_other_streams = (
        "; if only the main process has the data, pass DataLoaderConfiguration(dispatch_batches=True)"
    )

    def _digest_of_first_sample(self) -> bytes:
        """Reads a sample of this process's own stream, with the random numbers of the main process."""
        values = self._sample_random
        if self.state.process_index == 0 or values is None:
            return super()._digest_of_first_sample()
        values.read_pass()
        values.begin_sample(0, 0)
        try:
            return digest_of_sample(next(iter(self.dataset)))
        except Exception:  # This process need not be able to read.
            return b""
        finally:
            values.end()

    def _followers(self) -> list[Any]:
        return [self.dataset, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)]

    def _sampling(self) -> dict[str, Any]:
        if self.batch_sampler is None:
            return {"sampler": _KeyedSampler(self, self.sampler), "batch_size": None}
        return {"batch_sampler": _KeyedSampler(self, self.batch_sampler)}

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

    def _orders(self) -> Any:
        return self.dataset if isinstance(self.dataset, IterableDataset) else get_sampler(self)


class _KeyedSampler(BatchSampler):
    """Yields the batches of a sampler as (index, visit) pairs, or without batches its values."""

    def __init__(self, loader: DataLoaderDispatcher, source: Any) -> None:
        self._loader = weakref.proxy(loader)  # Which owns this sampler.
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        states = self._loader._states
        states.begin(getattr(self._source, "sampler", self._source))
        if self._loader.batch_sampler is None:
            values: Iterator[Any] = map(Visits().keyed, self._source)
        else:
            values = keyed_batches(self._source)
        for value in values:
            states.end()
            yield value
        states.end()


def _text_of(position: list[int]) -> str:
    number, epoch, first_sample, batch, round_rows = position
    return (
        f"batch {batch} of epoch {epoch} of loader {number} (pass from sample {first_sample}, {round_rows} samples per "
        "step)"
    )
