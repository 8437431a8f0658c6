# SPDX-License-Identifier: Apache-2.0
"""The optimizer and scheduler that prepare returns for a DeepSpeed engine, under Accelerate's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .._core import CheckpointError, ConfigError
from ..optimizer import AcceleratedOptimizer
from ..scheduler import AcceleratedScheduler
from .constants import MODEL_NAME

__all__ = [
    "DeepSpeedEngineWrapper",
    "DeepSpeedOptimizerWrapper",
    "DeepSpeedSchedulerWrapper",
    "DummyOptim",
    "DummyScheduler",
]


class DummyOptim:
    """Takes the place of an optimizer that the ds_config describes. `lr` and `weight_decay` replace its "auto"."""

    def __init__(self, params: Iterable[Any], lr: float = 0.001, weight_decay: float = 0, **kwargs: Any) -> None:
        if kwargs:
            raise ConfigError(f"[DummyOptim] unknown argument {next(iter(kwargs))!r}; write it in the ds_config")
        self.params = params
        self.lr = lr
        self.weight_decay = weight_decay


class DummyScheduler:
    """Takes the place of a schedule that the ds_config describes, whose "auto" it replaces.

    `lr_scheduler_callable(optimizer)` instead creates the schedule.
    """

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise ConfigError(f"[DummyScheduler] unknown argument {next(iter(kwargs))!r}; write it in the ds_config")
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.lr_scheduler_callable = lr_scheduler_callable


class DeepSpeedEngineWrapper:
    """Runs an engine's step() within backward(), so that a loop with Accelerate's calls drives it."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def backward(self, loss: Any, sync_gradients: bool = True, **kwargs: Any) -> None:
        """Computes gradients; the last micro-step of an update also updates, and steps the engine's schedule."""
        self.engine.set_gradient_accumulation_boundary(sync_gradients)
        self.engine.backward(loss, **kwargs)
        self.engine.step()

    def get_global_grad_norm(self) -> float | None:
        """Returns the gradient norm of the last update, before clipping; None if it was not measured."""
        return self.engine.get_global_grad_norm()

    def save(self, folder: str, exclude_frozen_parameters: bool) -> None:
        """Adds the engine's part to a checkpoint of the Accelerator, before it is complete. Collective."""
        self.engine.save_checkpoint(folder, MODEL_NAME, exclude_frozen_parameters=exclude_frozen_parameters)

    def check(self, folder: str) -> None:
        """Throws CheckpointError if a checkpoint of an Accelerator has no part of an engine."""
        if not (Path(folder) / MODEL_NAME).is_dir():
            raise CheckpointError(
                f"[load_state] {folder} has no part of an engine, and one trains the model, with a ds_config; load a "
                "checkpoint that was saved with a ds_config"
            )

    def load(self, folder: str, strict: bool) -> None:
        """Loads the engine's part of a checkpoint of an Accelerator. Collective."""
        self.engine.load_checkpoint(folder, MODEL_NAME, load_module_strict=strict)


class DeepSpeedOptimizerWrapper(AcceleratedOptimizer):
    """The optimizer of an engine. `step` and `zero_grad` do nothing: accelerator.backward() has updated already."""

    def __init__(self, optimizer: AcceleratedOptimizer) -> None:
        self.__dict__ = dict(optimizer.__dict__)  # Its options, state and hooks are the engine's.

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            raise ConfigError("[optimizer] step() takes no closure with a ds_config; call accelerator.backward(loss)")
        return None

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        del set_to_none


class DeepSpeedSchedulerWrapper(AcceleratedScheduler):
    """The schedule of an engine. `step` does nothing: accelerator.backward() has stepped it after the update."""

    def __init__(self, scheduler: Any, optimizers: Any) -> None:
        super().__init__(scheduler, optimizers)

    def step(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
