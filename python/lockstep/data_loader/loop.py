# SPDX-License-Identifier: Apache-2.0
"""The loop over a prepared loader, and the arguments that it keeps of the given one."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from .. import _core
from ..state import GradientState, PartialState

# The arguments of a DataLoader that a prepared one keeps.
_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def _kept_arguments(loader: DataLoader) -> dict[str, Any]:
    arguments = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if arguments.get("num_workers") == 0:
        arguments.pop("prefetch_factor", None)
        arguments.pop("multiprocessing_context", None)
    if not arguments.get("pin_memory_device"):
        arguments.pop("pin_memory_device", None)
    return arguments


def _synchronize(rng_types: list[Any] | None, owner: Any) -> None:
    """Gives every process the main process's random states, as `rng_types` says. Collective.

    `owner`: the sampler or stream whose `generator` is of the type "generator"; it may have none.
    """
    types = [str(getattr(kind, "value", kind)) for kind in rng_types or ()]
    generator = getattr(owner, "generator", None)
    group = PartialState().group
    if "generator" in types and isinstance(generator, torch.Generator):
        generator.set_state(group.broadcast(generator.get_state().clone(), 0))
    rest = [kind for kind in types if kind != "generator"]
    if rest:
        _core.synchronize_rng_states(group, rest)


class _LoopMixin:
    """The loop over a prepared loader, and the attributes that Accelerate's loaders have."""

    _core: Any
    gradient_state: GradientState
    device: torch.device | None
    _non_blocking: bool
    _skip = 0  # The batches that the next pass skips.
    _running = False  # Whether a pass has begun and not ended.

    def _begin_pass(self) -> Any:
        skip, self._skip = self._skip, 0
        plan = self._core.begin_pass(skip)
        self._running = True
        return plan

    def _loop(self, begun_batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches on the device.

        `begun_batches` calls _begin_pass() before the first batch, and begins each batch in the C++ loader before it
        yields it.
        """
        self.gradient_state._add_dataloader(self)
        finished = False
        try:
            for batch in begun_batches:
                self.gradient_state._use_dataloader(self)
                yield self._place(batch)
                self._core.end_batch()
            finished = True
        finally:
            self.gradient_state._remove_dataloader(self)
            if self._running:
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
        return self.gradient_state.active_dataloader is self and self.gradient_state.end_of_dataloader

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch of the next pass. Without a call each pass is the next epoch."""
        if epoch != self._core.epoch:
            self._core.set_epoch(epoch)
            self._load_saved_state({})

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
        """Returns the random states from which the running order was drawn; none if nothing is drawn."""
        return {}

    def _load_saved_state(self, state: dict[str, Any]) -> None:
        """Makes the next pass draw its order from these states."""

    def _place(self, batch: Any) -> Any:
        if self.device is None:
            return batch
        from ..utils.operations import send_to_device

        return send_to_device(batch, self.device, non_blocking=self._non_blocking)

    def _set_epoch_of(self, *objects: Any) -> None:
        for target in objects:
            if hasattr(target, "set_epoch"):
                target.set_epoch(self._core.epoch)
