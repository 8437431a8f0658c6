# SPDX-License-Identifier: Apache-2.0
"""The wrapper that `Accelerator.prepare` returns for a learning rate scheduler."""
from __future__ import annotations

from typing import Any

from .state import GradientState, PartialState


class AcceleratedScheduler:
    """A prepared scheduler, which advances as Accelerate's.

    `step` does nothing in micro-steps without an update and after a skipped update. Otherwise it advances by one for
    every process, unless batches are split: a schedule counts the batches of all processes.
    """

    _is_accelerate_prepared = True

    def __init__(
        self, scheduler: Any, optimizers: Any, step_with_optimizer: bool = True, split_batches: bool = False
    ) -> None:
        self.scheduler = scheduler
        self.optimizers = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
        self.split_batches = split_batches
        self.step_with_optimizer = step_with_optimizer
        self.gradient_state = GradientState()

    def step(self, *args: Any, **kwargs: Any) -> None:
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self.gradient_state.sync_gradients:
            return
        if any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        steps = 1 if self.split_batches else PartialState().data_group.size
        for _ in range(steps):
            # A schedule with an end keeps its last rate.
            if not hasattr(self.scheduler, "total_steps") or self.scheduler._step_count <= self.scheduler.total_steps:
                self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[float]:
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state_dict)

    def get_lr(self) -> list[float]:
        return self.scheduler.get_lr()

    def print_lr(self, *args: Any, **kwargs: Any) -> None:
        self.scheduler.print_lr(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # Not set yet, while the object is being copied.
            raise AttributeError(name)
        return getattr(self.scheduler, name)
