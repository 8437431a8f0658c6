# SPDX-License-Identifier: Apache-2.0
"""The prepared loader of a map-style dataset, whose batches the C++ library computes."""
from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from .. import _core
from .._weak import weak_method
from ..state import PartialState
from .arguments import _kept_arguments
from .loop import PreparedLoader, _synchronize
from .sample_random import Visits
from .samplers import (
    _give_generator,
    _seedable,
    drawn_seed,
    order_of_samples,
    restore_generator,
    yields_each_once,
)


class _ShardBatchSampler(BatchSampler):
    """The batch sampler of a prepared loader: the batches that the C++ library gives this process.

    If `keyed`, it yields (index, visit) pairs for the reader.
    """

    def __init__(self, loader: DataLoaderMapShard, batch_sampler: Any, keyed: bool = False) -> None:
        self._loader = weakref.proxy(loader)  # Which owns this sampler.
        self._keyed = keyed
        self.batch_sampler = batch_sampler
        self.sampler = batch_sampler.sampler
        self.batch_size = batch_sampler.batch_size
        self.drop_last = batch_sampler.drop_last

    @property
    def num_processes(self) -> int:
        return self._loader._spec["num_processes"]

    @property
    def split_batches(self) -> bool:
        return self._loader._spec["split_batches"]

    @property
    def even_batches(self) -> bool:
        return self._loader._core.even_batches

    def __len__(self) -> int:
        return len(self._loader._core)

    def __iter__(self) -> Iterator[list[Any]]:
        core = self._loader._core
        plan = self._loader._begin_pass()
        self._loader._note_order()
        first, last = core.cursor.batches, len(plan) - 1
        self._loader._unread = last + 1 - first
        if first > last:
            self._loader._end_of_order()
        for index in range(first, last + 1):
            if index == last:
                self._loader._end_of_order()
            yield self._loader._samples_at(plan.indices(index), self._keyed)


class DataLoaderMapShard(PreparedLoader):
    """A DataLoader of a map-style dataset that delivers this process's batches.

    It behaves as the DataLoader that it was made of. Each pass is the next epoch. A pass after load_state() continues
    with the batches that followed the saved ones, in the same order.
    """

    def _set_up(  # type: ignore[override]  # Each kind has its own options.
        self,
        loader: DataLoader,
        *,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        device: torch.device | None = None,
        non_blocking: bool = False,
        rng_types: list[Any] | None = None,
        use_seedable_sampler: bool = False,
        data_seed: int | None = None,
    ) -> None:
        self.rng_types = rng_types
        self._spec: dict[str, Any] = {"num_processes": num_processes, "split_batches": split_batches}
        self._unread = 0  # The batches that follow in the running pass.
        self._drawn: dict[str, Any] | None = None  # The random states from which the running order was drawn.
        self._redraw: dict[str, Any] | None = None  # Those of a loaded checkpoint.
        batch_sampler: Any = copy.copy(loader.batch_sampler)
        if use_seedable_sampler and type(batch_sampler.sampler) is RandomSampler:
            batch_sampler.sampler = _seedable(batch_sampler.sampler, data_seed)
        self._sampler = batch_sampler.sampler
        if (num_processes > 1 or PartialState().shares_batches) and not use_seedable_sampler:
            _give_generator(self._sampler)
        super().__init__(
            _core.LoaderCore(
                len(self._sampler), batch_sampler.batch_size, batch_sampler.drop_last, weak_method(self._order)
            ),
            loader.dataset,
            {"batch_sampler": _ShardBatchSampler(self, batch_sampler), **_kept_arguments(loader)},
            device=device,
            non_blocking=non_blocking,
            process_index=process_index,
        )

    # --- order
    _order_of_pass: list[Any] = []  # The sampler's values for the running pass; any type that the dataset takes.
    _rest_of_order: Iterator[Any] = iter(())
    _visits: list[int] = []  # Earlier occurrences of each value; empty if all are different.

    def _order(self, epoch: int) -> list[int]:
        """Draws the order of a pass. The C++ library assigns positions in it to processes."""
        self._draw(epoch)
        self._visits = []
        if self._sample_random is not None and not yields_each_once(self._sampler):
            counts = Visits()
            self._visits = [counts.keyed(index)[1] for index in self._order_of_pass]
        return list(range(len(self._order_of_pass)))

    def _read_order(self) -> None:
        """Reads the sampler up to its last value. _end_of_order reads its end, which may draw random numbers."""
        self._rest_of_order = iter(self._sampler)
        self._order_of_pass = list(itertools.islice(self._rest_of_order, len(self._sampler)))

    def _end_of_order(self) -> None:
        """Runs before the last batch, so a loop that breaks earlier leaves the generator as with torch's loader."""
        next(self._rest_of_order, None)

    def _samples_at(self, positions: list[int], keyed: bool) -> list[Any]:
        if not keyed:
            return [self._order_of_pass[position] for position in positions]
        visits = self._visits
        return [(self._order_of_pass[position], visits[position] if visits else 0) for position in positions]

    def _sampling(self) -> dict[str, Any]:
        source = cast(_ShardBatchSampler, self.batch_sampler).batch_sampler
        return {"batch_sampler": _ShardBatchSampler(self, source, keyed=True)}

    def _draw(self, epoch: int) -> None:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
            self._order_of_pass, self._rest_of_order = list(self._sampler), iter(())
            self._sampler.set_epoch(epoch)
            return
        if self._redraw is not None:
            drawn, self._redraw = self._redraw, None
            self._draw_again(drawn)
            return
        generator = getattr(self._sampler, "generator", None)
        self._drawn = {"default": self._default_state, "generator": None}
        if generator is not None:
            self._drawn["generator"] = generator.get_state()
        self._read_order()

    def _draw_again(self, drawn: dict[str, Any]) -> None:
        """Draws the order of a resumed pass. The default generator continues as the checkpoint has it."""
        self._drawn = drawn
        if drawn["generator"] is None:
            torch.set_rng_state(drawn["default"])
            drawn_seed()  # That of workers, which DataLoader draws first.
        restore_generator(self._sampler, drawn["generator"])
        self._read_order()
        if self.generator is None:  # DataLoader has drawn that seed for this pass, too.
            torch.set_rng_state(self._default_state)

    def _note_order(self) -> None:
        """Lets the C++ library compare the order of the pass over the processes."""
        if self._spec["num_processes"] > 1 or PartialState().shares_batches:
            self._core.set_order(order_of_samples(self._order_of_pass, self.dataset))

    # --- the loop
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class.
        self._resume_if_requested()
        if self._spec["num_processes"] > 1 or self._synchronizes or PartialState().shares_batches:
            generator = getattr(self._sampler, "generator", None) if self._redraw is None else None
            _synchronize(self.rng_types, self._synchronized_generator or generator)
        self._set_epochs()
        self._default_state = torch.get_rng_state()
        yield from self._loop(self._begun_batches())

    def _begun_batches(self) -> Iterator[Any]:
        for batch in self._read():  # Its batch sampler begins the pass.
            self._core.begin_batch()
            self._unread -= 1
            self._at_last = self._unread == 0
            yield batch

    def _followers(self) -> list[Any]:
        return [self.dataset, self._sampler]

    def __len__(self) -> int:
        return len(self._core)

    @property
    def total_batch_size(self) -> int:
        return self._core.total_batch_size

    @property
    def total_dataset_length(self) -> int:
        return getattr(self.dataset, "total_length", None) or len(cast(Sized, self.dataset))

    @property
    def remainder(self) -> int:
        if self._hides_remainder or cast(_ShardBatchSampler, self.batch_sampler).drop_last:
            return -1
        return len(self._sampler) % self.total_batch_size

    def get_sampler(self) -> Any:
        return self._sampler

    def _orders(self) -> Any:
        return self._sampler

    def set_sampler(self, sampler: Any) -> None:
        if len(sampler) != len(self._sampler):
            raise _core.ConfigError(
                f"[set_sampler] the sampler has {len(sampler)} samples; expected the {len(self._sampler)} of the "
                "prepared one; prepare a new DataLoader"
            )
        self._sampler = sampler
        cast(_ShardBatchSampler, self.batch_sampler).sampler = sampler

    # --- checkpoints
    def _saved_state(self) -> dict[str, Any]:
        drawn = self._redraw or self._drawn  # The first: loaded, and no pass has begun since.
        states = {} if drawn is None else {name: state for name, state in drawn.items() if state is not None}
        return super()._saved_state() | states

    def _load_saved_state(self, state: dict[str, Any]) -> None:
        super()._load_saved_state(state)
        self._redraw = None
        cursor = self._core.cursor
        if "default" in state and (cursor.batches > 0 or cursor.first_sample > 0):
            self._redraw = {"default": state.get("default"), "generator": state.get("generator")}

    def skipping(self, batches: int) -> DataLoaderMapShard:
        self._core.check_skip(batches)
        self._skip = batches
        return self
