# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's learning rate schedules, for programs that create their own.

A schedule sets the rate of step 0 when it is created, and the next one at each `step()`. `last_batch_iteration` is -1
at first. The C++ library computes the rates, as it does for the schedule of a ds_config.json.
"""

from __future__ import annotations

from typing import Any

import torch

from ... import _core
from ..utils.logging import logger

__all__ = [
    "VALID_LR_SCHEDULES",
    "LRRangeTest",
    "OneCycle",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupLR",
]

WARMUP_LOG_RATE = "log"
WARMUP_LINEAR_RATE = "linear"
LR_RANGE_TEST = "LRRangeTest"
ONE_CYCLE = "OneCycle"
WARMUP_LR = "WarmupLR"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"
# Names of the parameters.
LR_RANGE_TEST_MIN_LR = "lr_range_test_min_lr"
LR_RANGE_TEST_STEP_RATE = "lr_range_test_step_rate"
LR_RANGE_TEST_STEP_SIZE = "lr_range_test_step_size"
LR_RANGE_TEST_STAIRCASE = "lr_range_test_staircase"
CYCLE_MIN_LR, CYCLE_MAX_LR, DECAY_LR_RATE = "cycle_min_lr", "cycle_max_lr", "decay_lr_rate"
CYCLE_MIN_MOM, CYCLE_MAX_MOM, DECAY_MOM_RATE = "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"
CYCLE_FIRST_STEP_SIZE, CYCLE_SECOND_STEP_SIZE = "cycle_first_step_size", "cycle_second_step_size"
CYCLE_FIRST_STAIR_COUNT, CYCLE_SECOND_STAIR_COUNT = "cycle_first_stair_count", "cycle_second_stair_count"
DECAY_STEP_SIZE = "decay_step_size"
WARMUP_MIN_LR, WARMUP_MAX_LR, WARMUP_NUM_STEPS = "warmup_min_lr", "warmup_max_lr", "warmup_num_steps"
WARMUP_TYPE, WARMUP_MIN_RATIO, COS_MIN_RATIO = "warmup_type", "warmup_min_ratio", "cos_min_ratio"
TOTAL_NUM_STEPS = "total_num_steps"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]


class _Schedule:
    """The steps of a schedule, whose rates are those of a C++ schedule. Subclasses create that one."""

    def __init__(self, optimizer: Any, schedule: _core.Schedule, last_batch_iteration: int) -> None:
        self.optimizer = _torch_optimizer(optimizer)
        self.last_batch_iteration = last_batch_iteration
        self._schedule = schedule
        self._base_lrs = self._initial_lrs()
        self._last_lr: list[float] | None = None
        if schedule.groups not in (None, len(self._base_lrs)):
            raise _core.ConfigError(
                f"[{type(self).__name__}] a list has {schedule.groups} values; expected one for each of "
                f"{len(self._base_lrs)} parameter groups"
            )
        if last_batch_iteration == -1:
            self._apply()

    def _initial_lrs(self) -> list[float]:
        """Returns the rates of the optimizer without a schedule."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _apply(self) -> None:
        self._last_lr = self.get_lr()
        for group, lr in zip(self.optimizer.param_groups, self._last_lr):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def get_lr(self) -> list[float]:
        """Returns the rate of each parameter group at `last_batch_iteration`."""
        step = self.last_batch_iteration + 1
        return [self._schedule.lr(step, base_lr, group) for group, base_lr in enumerate(self._base_lrs)]

    def get_last_lr(self) -> list[float]:
        """Returns the rates that the optimizer has now. Throws ConfigError before the first step."""
        if self._last_lr is None:
            raise _core.ConfigError(f"[{type(self).__name__}] no rate has been set; call step() first")
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Advances by one, or to `last_batch_iteration`, and sets the rates."""
        self.last_batch_iteration = (
            self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        )
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd: dict[str, Any]) -> None:
        """Sets the position. The rates are part of the optimizer's state."""
        self.last_batch_iteration = sd["last_batch_iteration"]
        self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]


def _for_groups(scheduler: _Schedule, value: Any) -> list[float]:
    """Returns a value for each parameter group."""
    numbers, groups = _numbers(value), len(scheduler.optimizer.param_groups)
    return numbers if len(numbers) == groups else numbers * groups


def _torch_optimizer(optimizer: Any) -> Any:
    """Returns the optimizer itself, or the one that a wrapper has."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not a subclass of torch.optim.Optimizer")
    return optimizer


def _numbers(value: Any) -> list[float]:
    """Returns a number or the numbers of all parameter groups as a list."""
    return [float(number) for number in (value if isinstance(value, (list, tuple)) else [value])]


def _count(name: str, value: Any) -> int:
    if not isinstance(value, (int, float)) or value != int(value):
        raise _core.ConfigError(f"[schedule] invalid value {value!r} for {name}; expected a whole number")
    return int(value)


def _optional_count(name: str, value: Any) -> int | None:
    return None if value is None else _count(name, value)


class WarmupLR(_Schedule):
    """Raises the rate from `warmup_min_lr` to `warmup_max_lr`, by default the optimizer's, and keeps it."""

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: Any = 0.0,
        warmup_max_lr: Any = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = WARMUP_LOG_RATE,
        last_batch_iteration: int = -1,
    ) -> None:
        highest = [] if warmup_max_lr is None else _numbers(warmup_max_lr)
        steps = _count("warmup_num_steps", warmup_num_steps)
        schedule = _core.warmup_lr(_numbers(warmup_min_lr), highest, steps, warmup_type)
        _Schedule.__init__(self, optimizer, schedule, last_batch_iteration)
        self._set_fields(warmup_min_lr, highest or self._base_lrs, steps, warmup_type)

    def _set_fields(self, lowest: Any, highest: Any, steps: int, warmup_type: str) -> None:
        self.min_lrs, self.max_lrs = _for_groups(self, lowest), _for_groups(self, highest)
        self.delta_lrs = [high - low for high, low in zip(self.max_lrs, self.min_lrs)]
        self.warmup_num_steps, self.warmup_type = max(2, steps), warmup_type


class WarmupDecayLR(WarmupLR):
    """Raises the rate as WarmupLR, then lowers it linearly, to `warmup_min_lr` at `total_num_steps`."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_lr: Any = 0.0,
        warmup_max_lr: Any = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = WARMUP_LOG_RATE,
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = _count("total_num_steps", total_num_steps)
        steps = _count("warmup_num_steps", warmup_num_steps)
        schedule = _core.warmup_decay_lr(
            self.total_num_steps, _numbers(warmup_min_lr), _numbers(warmup_max_lr), steps, warmup_type
        )
        _Schedule.__init__(self, optimizer, schedule, last_batch_iteration)
        self._set_fields(warmup_min_lr, warmup_max_lr, steps, warmup_type)


class WarmupCosineLR(_Schedule):
    """Raises the optimizer's rate from `warmup_min_ratio` of it, then lowers it by a cosine to `cos_min_ratio`."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = WARMUP_LOG_RATE,
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = _count("total_num_steps", total_num_steps)
        steps = _count("warmup_num_steps", warmup_num_steps)
        self.warmup_num_steps, self.warmup_type = max(2, steps), warmup_type
        self.warmup_min_ratio, self.cos_min_ratio = warmup_min_ratio, cos_min_ratio
        schedule = _core.warmup_cosine_lr(self.total_num_steps, warmup_min_ratio, steps, cos_min_ratio, warmup_type)
        _Schedule.__init__(self, optimizer, schedule, last_batch_iteration)
        self.org_lrs = list(self._base_lrs)

    def get_lr_ratio(self) -> float:
        """Returns the factor of the optimizer's original rates."""
        return self._schedule.lr(self.last_batch_iteration + 1, 1.0, 0)


class LRRangeTest(_Schedule):
    """Raises the rate linearly, or in stairs, to find the largest one that trains (Smith, 2018)."""

    def __init__(
        self,
        optimizer: Any,
        lr_range_test_min_lr: Any = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        self.step_size = _count("lr_range_test_step_size", lr_range_test_step_size)
        self.step_rate, self.staircase = lr_range_test_step_rate, lr_range_test_staircase
        schedule = _core.lr_range_test(
            _numbers(lr_range_test_min_lr), self.step_size, lr_range_test_step_rate, lr_range_test_staircase
        )
        _Schedule.__init__(self, optimizer, schedule, last_batch_iteration)
        self.min_lr = _for_groups(self, lr_range_test_min_lr)


class OneCycle(_Schedule):
    """Cycles the rate between two bounds once, and the first beta in the opposite direction, then decays."""

    def __init__(
        self,
        optimizer: Any,
        cycle_min_lr: Any,
        cycle_max_lr: Any,
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: Any = 0.8,
        cycle_max_mom: Any = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        wrapped = _torch_optimizer(optimizer)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum and any("betas" not in group for group in wrapped.param_groups):
            logger.warning(
                "OneCycle cycles betas, but the optimizer %s has none; set cycle_momentum=False",
                type(wrapped).__name__,
            )
            self.cycle_momentum = False
        self.first_step_size = _count("cycle_first_step_size", cycle_first_step_size)
        second = _optional_count("cycle_second_step_size", cycle_second_step_size)
        self.second_step_size = self.first_step_size if second is None else second
        self.total_size = self.first_step_size + self.second_step_size
        self.step_ratio = self.first_step_size / self.total_size if self.total_size else 0.0
        self.decay_step_size = _count("decay_step_size", decay_step_size)
        self.decay_lr_rate, self.decay_mom_rate = decay_lr_rate, decay_mom_rate
        schedule = _core.one_cycle(
            _numbers(cycle_min_lr),
            _numbers(cycle_max_lr),
            decay_lr_rate,
            self.first_step_size,
            second,
            cycle_first_stair_count,
            cycle_second_stair_count,
            self.decay_step_size,
            self.cycle_momentum,
            _numbers(cycle_min_mom),
            _numbers(cycle_max_mom),
            decay_mom_rate,
        )
        _Schedule.__init__(self, wrapped, schedule, last_batch_iteration)
        self.min_lrs, self.max_lrs = _for_groups(self, cycle_min_lr), _for_groups(self, cycle_max_lr)
        self.max_moms = _for_groups(self, cycle_max_mom)

    def _apply(self) -> None:
        super()._apply()
        for group, betas in zip(self.optimizer.param_groups, self._betas() or ()):
            group["betas"] = betas

    def get_mom(self) -> list[tuple[float, float]] | None:
        """Returns the betas of each parameter group, before the first step the highest.

        None unless momentum is cycled.
        """
        betas = self._betas()
        if betas is None or self.last_batch_iteration >= 0:
            return betas
        return [(momentum, beta2) for momentum, (_, beta2) in zip(self.max_moms, betas)]

    def _betas(self) -> list[tuple[float, float]] | None:
        step, beta2 = self.last_batch_iteration + 1, self._schedule.beta2
        if beta2 is None:
            return None
        momenta = [self._schedule.momentum(step, group) for group in range(len(self._base_lrs))]
        return [(momentum, beta2) for momentum in momenta if momentum is not None]

    def step(self, batch_iteration: int | None = None) -> None:
        super().step(batch_iteration)
