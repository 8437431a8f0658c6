# SPDX-License-Identifier: Apache-2.0
"""Local SGD: processes update their own weights and average them every few updates."""
from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import torch

from . import _core
from ._own_module import own_module

if TYPE_CHECKING:
    from .accelerator import Accelerator


class LocalSGD:
    """A scope in which gradients are not averaged; instead the model's weights are, every `local_sgd_steps` updates.

    Use it around the training loop and call `step()` after the optimizer's. `warmup_steps`: updates of plain data
    parallel at the start. `average_optimizer_state`: averages the momenta, too.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        local_sgd_steps: int,
        enabled: bool = True,
        *,
        warmup_steps: int = 0,
        average_optimizer_state: bool = False,
    ) -> None:
        self.enabled = enabled and accelerator.use_distributed
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        self.warmup_steps = warmup_steps
        self.average_optimizer_state = average_optimizer_state
        self._scope: _core.LocalSgd | None = None

    @property
    def num_steps(self) -> int:
        return 0 if self._scope is None else self._scope.steps

    def __enter__(self) -> LocalSGD:
        state = _core.LocalOptimizerState
        if self.enabled:
            self._scope = _core.LocalSgd(
                self.accelerator._core,
                own_module(self.model),
                self.local_sgd_steps,
                True,
                self.warmup_steps,
                True,
                state.AVERAGE if self.average_optimizer_state else state.KEEP,
            )
        return self

    def step(self) -> None:
        """Counts an update, and averages if it is due. Collective then."""
        if self._scope is not None:
            self._scope.step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception the other processes may be elsewhere: nothing is averaged.
        if self._scope is not None and kind is None:
            self._scope.finish()
        self._scope = None
