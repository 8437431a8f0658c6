# SPDX-License-Identifier: Apache-2.0
"""The loop over a prepared loader."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from .. import _core
from .._seeds import program_seed
from ..state import GradientState, PartialState
from ..utils.operations import send_to_device
from .sample_random import SampleRandom, needs_reader, reader_of


_KEPT_BY_PICKLES = ("_synchronizes", "_synchronized_generator", "_skip_always", "_hides_remainder")
_Kind = TypeVar("_Kind", bound="PreparedLoader")


def _synchronize(rng_types: list[Any] | None, generator: Any) -> None:
    """Gives every process the main process's random states, as `rng_types` says. Collective.

    `generator` is that of the type "generator"; None if there is none.
    """
    types = [str(getattr(kind, "value", kind)) for kind in rng_types or ()]
    group = PartialState().group
    if "generator" in types and isinstance(generator, torch.Generator):
        generator.set_state(group.broadcast(generator.get_state().clone(), 0))
    rest = [kind for kind in types if kind != "generator"]
    if rest:
        _core.synchronize_rng_states(group, rest)


def share_seed(loaders: list[Any], first_number: int) -> None:
    """Makes the samples of prepared loaders draw the same random numbers in any number of processes. Collective.

    The loaders are numbered from `first_number` on. Without a dataset that may draw numbers nothing is sent, so that C++
    programs, whose loaders have their seeds, may take part in such a job.
    """
    state, seed = PartialState(), program_seed()
    if state.num_processes > 1 and any(loader._sample_random is not None for loader in loaders):
        seed = int(_core.broadcast_bytes(state.group, str(seed).encode(), 0))
    for number, loader in enumerate(loaders, start=first_number):
        loader._number = number
        loader._set_seed(seed)


class PreparedLoader(DataLoader):
    """A DataLoader of one process's batches, with the attributes that Accelerate's loaders have.

    Accelerate's name of this class is DataLoaderStateMixin. `base_dataloader` is the loader of which it was made. A pickle
    has that loader, the options and the position; the copy is divided between processes in the same way. Not thread-safe.
    """

    base_dataloader: DataLoader
    _making: tuple[Any, ...] = ()  # The arguments of of(), after the loader.
    _synchronizes = False  # Whether it makes random states equal although each process reads the same batches.
    _synchronized_generator: torch.Generator | None = None  # That of the random type "generator"; None: the sampler's.
    _is_accelerate_prepared = True

    _sample_random: SampleRandom | None = None  # None if no sample draws random numbers.
    _reader: DataLoader | None = None
    _seed = 0  # Seeds the samples' random numbers.
    _program_seed: int | None = None  # The program's seed when `_seed` was set.
    _number = 0  # Counts the loaders in the order of prepare(): they draw different numbers.
    _hides_remainder = False  # Whether the program drops the last samples itself.
    _scope_of_batch: Any = staticmethod(nullcontext)  # Returns a context of the loop's body, and its batch.
    _skip = 0  # The batches that the next pass skips.
    _skip_always = 0  # The batches that every other pass skips.
    _passes = 0  # Counts the passes that have begun.
    _running = False  # Whether the last of them has not ended.
    _at_last = False  # Whether the loop has got the last batch of the running pass.

    def __init__(
        self,
        core: _core.LoaderCore,
        dataset: Any,
        arguments: dict[str, Any],
        *,
        device: torch.device | None,
        non_blocking: bool,
        process_index: int,
        seeds_always: bool = False,
    ) -> None:
        """`arguments` are those of DataLoader. `seeds_always` also seeds datasets that draw no random numbers."""
        self._core: Any = core  # The stub has str where a std::string also takes bytes.
        self.gradient_state = GradientState()
        self.device = device
        self._non_blocking = non_blocking
        super().__init__(dataset, **arguments)
        if seeds_always or needs_reader(self):
            self._sample_random = SampleRandom(self.num_workers > 0, process_index)

    @classmethod
    def of(cls: type[_Kind], loader: DataLoader, division: tuple[int, int, bool, bool], **options: Any) -> _Kind:
        """Makes a prepared loader of `loader`.

        `division`: this process, the number of processes, even_batches, split_batches. `options` are those of _set_up().
        """
        made = cls.__new__(cls)
        made._finish(loader, division, options)
        return made

    def _finish(self, loader: DataLoader, division: tuple[int, int, bool, bool], options: dict[str, Any]) -> None:
        self._set_up(loader, **options)
        self._core.shard(*division)
        self.base_dataloader = loader
        self._making = (division, options)

    def _set_up(self, loader: DataLoader, **options: Any) -> None:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        kept = {name: getattr(self, name) for name in _KEPT_BY_PICKLES}
        return _restored, (type(self), self.base_dataloader, *self._making, kept, self.state_dict())

    def _resume_if_requested(self) -> None:
        """Loads the newest checkpoint before the first pass, if the launcher requested it. Collective."""
        accelerator = self.gradient_state._accelerator()
        if accelerator is not None:
            accelerator._resume_if_requested()

    def _begin_pass(self) -> Any:
        self._leave_pass()  # The program still has the iterator of a loop that it left, for example in a traceback.
        skip, self._skip = self._skip or self._skip_always, 0
        plan = self._core.begin_pass(skip)
        self._running = True
        self._passes += 1
        if self._sample_random is not None:
            cursor = self._core.cursor
            if self._program_seed != program_seed():
                self._set_seed(program_seed())
            self._sample_random.set_pass(self._seed, self._number, cursor.epoch, self._samples_to_drop())
        return plan

    def _leave_pass(self) -> None:
        if self._running:
            self._running = False
            self._core.leave_pass()

    # --- random numbers of samples
    def _read(self) -> Iterator[Any]:
        """Begins to read the batches of a pass."""
        if self._sample_random is None:
            return super().__iter__()
        if self._reader is None:
            self._reader = reader_of(self, self._sample_random, self._sampling())
        return iter(self._reader)

    def _sampling(self) -> dict[str, Any]:
        """Returns the samplers of the reader, as arguments of a DataLoader."""
        return {}

    def _samples_to_drop(self) -> int:
        """Returns the number of samples that the reader of a stream drops."""
        return 0

    def _set_seed(self, seed: int) -> None:
        self._seed, self._program_seed = seed, program_seed()

    def _loop(self, begun_batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches on the device.

        `begun_batches` calls _begin_pass() before the first batch, and begins each batch in the C++ loader before it
        yields it.
        """
        self.gradient_state._add_dataloader(self)
        finished, number = False, self._passes + 1
        try:
            for batch in begun_batches:
                self.gradient_state._use_dataloader(self)
                with self._scope_of_batch(self._place(batch)) as placed:
                    yield placed
                if self._passes != number:
                    raise _core.ConfigError(
                        "[DataLoader] a second loop over this loader began, which has ended the first; the two would "
                        "share one position; prepare another loader for a loop within the first"
                    )
                if not self._running:  # set_epoch() has ended the pass at its last batch.
                    return
                self._core.end_batch()
            finished = True
        finally:
            self.gradient_state._remove_dataloader(self)
            self._at_last = False
            if self._running and self._passes == number:
                self._running = False
                if finished:
                    self._core.finish_pass()
                else:
                    self._core.leave_pass()

    @property
    def iteration(self) -> int:
        return self._core.epoch

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the loop has the last batch."""
        return self._at_last

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch of the next pass, also for samplers and datasets. Without a call it is the next epoch."""
        if epoch != self._core.epoch:
            if self._at_last:  # The program counts the batches, and does not ask its iterator for the end.
                self._leave_pass()
            self._core.set_epoch(epoch)
            self._load_saved_state({})
            self._set_epochs()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position within the epoch, after the last batch that the loop has received."""
        return {"position": self._core.position(), "random": self._saved_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next pass continue after the batch at which the state was taken."""
        if "position" not in state_dict:
            raise _core.ConfigError(
                f"[load_state_dict] the state has the keys {sorted(state_dict)}; expected 'position', as in the result "
                "of state_dict() of a prepared loader"
            )
        self._core.load_position(state_dict["position"])
        self._load_saved_state(state_dict.get("random", {}))

    def _saved_state(self) -> dict[str, Any]:
        """Returns the seed of samples, and the random states for the orders of the running and of the next pass."""
        generator = self._order_generator()
        following = {} if generator is None else {"next_generator": generator.get_state()}
        return following if self._program_seed is None else {**following, "seed": self._seed}

    def _load_saved_state(self, state: dict[str, Any]) -> None:
        """Makes the next pass draw its samples and order from these states."""
        if "seed" in state:
            self._set_seed(state["seed"])
        generator, cursor = self._order_generator(), self._core.cursor
        if generator is not None and "next_generator" in state and cursor.batches == 0 and cursor.first_sample == 0:
            generator.set_state(state["next_generator"])

    def _order_generator(self) -> torch.Generator | None:
        """Returns the generator that what orders the samples has for itself, if any."""
        generator = getattr(self._orders(), "generator", None)
        return generator if isinstance(generator, torch.Generator) else None

    def _orders(self) -> Any:
        """Returns the sampler or stream that decides the order of the samples."""
        raise NotImplementedError

    def _place(self, batch: Any) -> Any:
        if self.device is None:
            return batch
        return send_to_device(batch, self.device, non_blocking=self._non_blocking)

    def _followers(self) -> list[Any]:
        """Returns the objects that may have a set_epoch()."""
        return [self.dataset]

    def _set_epochs(self) -> None:
        for target in self._followers():
            if hasattr(target, "set_epoch"):
                target.set_epoch(self._core.epoch)


def _restored(
    kind: type[PreparedLoader],
    loader: DataLoader,
    division: tuple[int, int, bool, bool],
    options: dict[str, Any],
    kept: dict[str, Any],
    state: dict[str, Any],
) -> PreparedLoader:
    """Returns the copy of a loader that was pickled."""
    copy = kind.of(loader, division, **options)
    vars(copy).update(kept)
    copy.load_state_dict(state)
    return copy
