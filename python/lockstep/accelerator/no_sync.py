# SPDX-License-Identifier: Apache-2.0
"""Blocks in which backward averages no gradients."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from .. import _core
from .._own_module import own_module
from ..state import AcceleratorState


class _LocalForwards:
    """The forwards of one model within no_sync, whose backwards may follow after the block.

    As with torch's DistributedDataParallel, such a backward averages nothing, until a forward outside of no_sync, or
    trigger_sync_in_backward. An update with gradients of such backwards is refused.
    """

    _blocks = 0
    _pending = False  # Whether a forward within the block had no backward yet.
    _averaging_off: Any = None  # The scope that keeps averaging off after the block.
    _ran_local = False  # Whether a backward ran since.
    _hook: Any = None

    def __init__(
        self, model: torch.nn.Module, turn_off_averaging: Callable[[], Any], on_end: Callable[[], None]
    ) -> None:
        self._turn_off_averaging = turn_off_averaging
        self._on_end = on_end
        self._hook = model.register_forward_pre_hook(self._on_forward)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies of the model have a hook that does nothing."""
        return object.__new__, (_LocalForwards,)

    def _on_forward(self, *_: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if self._blocks > 0:
            self._pending = True
        else:
            self.end()

    @property
    def averages_nothing(self) -> bool:
        """Whether a backward outside of the block would average nothing."""
        return self._averaging_off is not None

    def on_backward(self) -> None:
        if self._blocks > 0:
            self._pending = False
        else:
            self._ran_local = True

    def on_step(self) -> None:
        """Runs before an update: ends the wait, or refuses gradients that were not averaged."""
        if self._averaging_off is None:
            return
        ran_local = self._ran_local
        self.end()
        if ran_local:
            raise _core.ConfigError(
                "[step] a backward after a no_sync block averaged nothing, since the model had a forward within the "
                "block without a backward; call trigger_sync_in_backward before the last backward of an update, or run the "
                "model's forward for it outside of no_sync"
            )

    def enter_block(self) -> None:
        self._blocks += 1

    def leave_block(self) -> None:
        self._blocks -= 1
        if self._pending:
            self._averaging_off = self._averaging_off or self._turn_off_averaging()
        elif self._blocks == 0:
            self.end()

    def end(self) -> None:
        """Makes the next backward average."""
        if self._hook is None:  # The model is a copy.
            return
        self._hook.remove()
        if self._averaging_off is not None:
            self._averaging_off.end()
        self._on_end()

class NoSyncBlocks:
    """The no_sync blocks of an Accelerator, and the models with forwards in them."""

    def __init__(self, core: _core.Accelerator, state: AcceleratorState) -> None:
        self.core = core
        self._state = state
        self._open_blocks = 0
        self._forwards: dict[int, _LocalForwards] = {}  # By the id of the model.

    @contextmanager
    def block(self, model: Any) -> Iterator[None]:
        """Runs a block in which backward averages no gradients; see Accelerator.no_sync."""
        scope = self.core.no_sync([own_module(model)])
        self._open_blocks += 1
        forwards = self._watch_forwards(model)
        try:
            yield
        finally:
            self._open_blocks -= 1
            if forwards is not None:
                forwards.leave_block()
            scope.end()

    def _watch_forwards(self, model: Any) -> _LocalForwards | None:
        if not self._state.use_distributed:
            return None
        known = self._forwards

        def forget() -> None:
            known.pop(id(model), None)

        if id(model) not in known:
            turn_off_averaging = partial(self.core.no_sync, [own_module(model)])
            known[id(model)] = _LocalForwards(model, turn_off_averaging, forget)
        known[id(model)].enter_block()
        return known[id(model)]

    @contextmanager
    def trigger_sync(self, model: Any) -> Iterator[None]:
        """Runs a block whose backwards average also after forwards within no_sync."""
        forwards = self._forwards.get(id(model))
        if self._open_blocks > 0 or forwards is not None:
            self.core.trigger_sync_in_backward([own_module(model)])
        try:
            yield
        finally:
            if forwards is not None and self._open_blocks == 0:
                forwards.end()

    @property
    def next_backward_averages_nothing(self) -> bool:
        """Whether a model has a forward within an ended block, and no backward of it yet."""
        return any(forwards.averages_nothing for forwards in self._forwards.values())

    def on_backward(self) -> None:
        """Runs before each backward."""
        for forwards in self._forwards.values():
            forwards.on_backward()

    def on_step(self) -> None:
        """Runs before each update. Throws ConfigError for gradients that were not averaged."""
        for forwards in list(self._forwards.values()):
            forwards.on_step()

    def end(self) -> None:
        """Makes the next backward of each model average."""
        for forwards in list(self._forwards.values()):
            forwards.end()
