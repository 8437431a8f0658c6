# SPDX-License-Identifier: Apache-2.0
"""The schedule of a ds_config.json as an object of the program."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from ... import _core
from . import lr_schedules
from .config import section_of

if TYPE_CHECKING:
    from ..engine import DeepSpeedEngine

__all__ = ["FileScheduler", "file_scheduler"]

class FileScheduler:
    """The schedule of the file. The C++ library steps it with every update that is applied."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = weakref.proxy(engine)

    def get_lr(self) -> list[float]:
        return self._engine.get_lr()

    def get_last_lr(self) -> list[float]:
        return self._engine.get_lr()

    def get_mom(self) -> list[Any]:
        """Returns the momentum, or the betas, of each parameter group."""
        return self._engine.get_mom()

    @property
    def last_batch_iteration(self) -> int:
        """The number of steps minus one, as DeepSpeed counts."""
        return self._engine.core.schedule_steps - 1

    @last_batch_iteration.setter
    def last_batch_iteration(self, value: int) -> None:
        if value != self.last_batch_iteration:
            self._refuse_position()

    def state_dict(self) -> dict[str, int]:
        """Returns the position. Checkpoints contain it; the program need not save it."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> NoReturn:
        self._refuse_position()

    def step(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _core.ConfigError(
            "[lr_scheduler] engine.step() steps the file's schedule; remove lr_scheduler.step(), or pass your own "
            "scheduler to initialize()"
        )

    def _refuse_position(self) -> NoReturn:
        raise _core.ConfigError("[lr_scheduler] the file's schedule is restored by engine.load_checkpoint(); call that")


class _EngineSchedule(FileScheduler):
    """Overrides the methods of a class in lr_schedules whose steps the engine makes, not the program."""

    def __init__(self, engine: DeepSpeedEngine, initial_lrs: list[float]) -> None:
        FileScheduler.__init__(self, engine)
        self._given_lrs = initial_lrs
        values = {
            **(section_of(engine._config, "scheduler.params") or {}),
            "last_batch_iteration": self.last_batch_iteration,
        }
        super(FileScheduler, self).__init__(engine.optimizer, **values)  # type: ignore[call-arg]

    def _initial_lrs(self) -> list[float]:
        return self._given_lrs

    def get_mom(self) -> Any:
        """Returns the momentum, or the betas, of each parameter group."""
        own = getattr(super(FileScheduler, self), "get_mom", None)  # OneCycle has it.
        return self._engine.get_mom() if own is None else own()

    def _apply(self) -> None:
        """Sets nothing: the C++ library has set the rates."""


_CLASSES = {
    name: type(name, (_EngineSchedule, getattr(lr_schedules, name)), {"__doc__": getattr(lr_schedules, name).__doc__})
    for name in lr_schedules.VALID_LR_SCHEDULES
}


def file_scheduler(engine: DeepSpeedEngine, initial_lrs: list[float]) -> FileScheduler:
    """Returns the schedule of an engine's file, an instance of DeepSpeed's class of that name if there is one.

    `initial_lrs`: the rates of the optimizer without the schedule.
    """
    named = _CLASSES.get(engine._config["scheduler.type"])
    return FileScheduler(engine) if named is None else named(engine, initial_lrs)
