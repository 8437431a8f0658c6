# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's learning rate schedules, for programs that create their own.

A schedule sets the rate of step 0 when it is created, and the next one at each `step()`. `last_batch_iteration` is -1
at first. The C++ library computes the same numbers for the schedule of a ds_config.json.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..._core import ConfigError
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
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]


class _Schedule:
    """What the schedules share: a count of steps, and the rates of the optimizer's parameter groups."""

    def __init__(self, optimizer: Any, last_batch_iteration: int) -> None:
        self.optimizer = self._optimizer_of(optimizer)
        self.last_batch_iteration = last_batch_iteration
        self._last_lr: list[float] | None = None

    @staticmethod
    def _optimizer_of(optimizer: Any) -> Any:
        if not isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, "optimizer"):
            return optimizer.optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not a subclass of torch.optim.Optimizer")
        return optimizer

    def _for_each_group(self, value: Any, name: str) -> list[float]:
        groups = len(self.optimizer.param_groups)
        if not isinstance(value, (list, tuple)):
            return [value] * groups
        if len(value) != groups:
            raise ConfigError(
                f"[{type(self).__name__}] {name} has {len(value)} values; expected one for each of {groups} parameter "
                "groups"
            )
        return list(value)

    def _apply(self) -> None:
        self._last_lr = self.get_lr()
        for group, lr in zip(self.optimizer.param_groups, self._last_lr):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def get_lr(self) -> list[float]:
        """Returns the rate of each parameter group at `last_batch_iteration`."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """Returns the rates that the optimizer has now. Throws ConfigError before the first step."""
        if self._last_lr is None:
            raise ConfigError(f"[{type(self).__name__}] no rate has been set; call step() first")
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


class _Warmup(_Schedule):
    """A ramp from 0 to 1, linear or logarithmic."""

    def _set_ramp(self, steps: int, kind: str) -> None:
        if not isinstance(steps, int) or steps <= 0:
            raise ConfigError(f"[{type(self).__name__}] warmup_num_steps must be a positive integer; got {steps}")
        if kind not in (WARMUP_LOG_RATE, WARMUP_LINEAR_RATE):
            raise ConfigError(f"[{type(self).__name__}] unknown warmup_type {kind!r}; expected 'log' or 'linear'")
        self.warmup_num_steps = max(2, steps)
        self.warmup_type = kind

    def _ramp(self) -> float:
        if self.warmup_type == WARMUP_LOG_RATE:
            return math.log(self.last_batch_iteration + 1) / math.log(self.warmup_num_steps)
        return self.last_batch_iteration / self.warmup_num_steps

    def _warn_of_short_run(self, total_num_steps: int) -> None:
        if total_num_steps < self.warmup_num_steps:
            logger.warning(
                "total_num_steps %s is less than warmup_num_steps %s", total_num_steps, self.warmup_num_steps
            )


class WarmupLR(_Warmup):
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
        super().__init__(optimizer, last_batch_iteration)
        if warmup_max_lr is None:
            warmup_max_lr = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.min_lrs = self._for_each_group(warmup_min_lr, "warmup_min_lr")
        self.max_lrs = self._for_each_group(warmup_max_lr, "warmup_max_lr")
        self._set_ramp(warmup_num_steps, warmup_type)
        if last_batch_iteration == -1:
            self._apply()

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0:
            return list(self.min_lrs)
        gamma = self._gamma()
        return [low + (high - low) * gamma for low, high in zip(self.min_lrs, self.max_lrs)]

    def _gamma(self) -> float:
        return self._ramp() if self.last_batch_iteration < self.warmup_num_steps else 1.0


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
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration)
        self._warn_of_short_run(total_num_steps)

    def _gamma(self) -> float:
        if self.last_batch_iteration < self.warmup_num_steps:
            return self._ramp()
        left = self.total_num_steps - self.last_batch_iteration
        return max(0.0, left / max(1, self.total_num_steps - self.warmup_num_steps))


class WarmupCosineLR(_Warmup):
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
        super().__init__(optimizer, last_batch_iteration)
        self.total_num_steps = total_num_steps
        self.warmup_min_ratio = warmup_min_ratio
        self.cos_min_ratio = cos_min_ratio
        self._set_ramp(warmup_num_steps, warmup_type)
        self._warn_of_short_run(total_num_steps)
        self.org_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        if last_batch_iteration == -1:
            self._apply()

    def get_lr_ratio(self) -> float:
        """Returns the factor of the optimizer's original rates."""
        i = self.last_batch_iteration
        if i < 0:
            return 0.0
        if i < self.warmup_num_steps:
            return self.warmup_min_ratio + (1.0 - self.warmup_min_ratio) * self._ramp()
        steps = max(1, self.total_num_steps - self.warmup_num_steps)
        progress = min(1.0, (i - self.warmup_num_steps + 1) / steps)
        wave = (1 + math.cos(math.pi * progress)) / 2
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * wave)

    def get_lr(self) -> list[float]:
        ratio = self.get_lr_ratio()
        return [lr * ratio for lr in self.org_lrs]


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
        super().__init__(optimizer, last_batch_iteration)
        if not isinstance(lr_range_test_step_size, int) or lr_range_test_step_size <= 0:
            raise ConfigError(
                f"[LRRangeTest] lr_range_test_step_size must be a positive integer; got {lr_range_test_step_size}"
            )
        self.min_lr = self._for_each_group(lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size = lr_range_test_step_size
        self.step_rate = lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        if last_batch_iteration == -1:
            self._apply()

    def get_lr(self) -> list[float]:
        interval = (self.last_batch_iteration + 1) / self.step_size
        interval = math.floor(interval) if self.staircase else interval
        return [lr * (1 + self.step_rate * interval) for lr in self.min_lr]


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
        super().__init__(optimizer, last_batch_iteration)
        self.first_step_size = float(cycle_first_step_size)
        second = cycle_first_step_size if cycle_second_step_size is None else cycle_second_step_size
        self.second_step_size = float(second)
        if self.first_step_size <= 0 or self.second_step_size < 0:
            raise ConfigError(
                f"[OneCycle] cycle_first_step_size must be positive, and cycle_second_step_size at least 0; got "
                f"{cycle_first_step_size} and {second}"
            )
        self.total_size = self.first_step_size + self.second_step_size
        self.first_stair_count = cycle_first_stair_count
        self.second_stair_count = (
            cycle_first_stair_count if cycle_second_stair_count is None else cycle_second_stair_count
        )
        self.decay_step_size = decay_step_size
        self.decay_lr_rate = decay_lr_rate
        self.decay_mom_rate = decay_mom_rate
        self.min_lrs = self._for_each_group(cycle_min_lr, "cycle_min_lr")
        self.max_lrs = self._for_each_group(cycle_max_lr, "cycle_max_lr")
        self.cycle_momentum = cycle_momentum
        if cycle_momentum and any("betas" not in group for group in self.optimizer.param_groups):
            logger.warning(
                "OneCycle cycles betas, but the optimizer %s has none; set cycle_momentum=False",
                type(self.optimizer).__name__,
            )
            self.cycle_momentum = False
        if self.cycle_momentum:
            self.min_moms = self._for_each_group(cycle_min_mom, "cycle_min_mom")
            self.max_moms = self._for_each_group(cycle_max_mom, "cycle_max_mom")
        if last_batch_iteration == -1:
            self._last_lr = list(self.min_lrs)
            for group, lr in zip(self.optimizer.param_groups, self.min_lrs):
                group["lr"] = lr
            if self.cycle_momentum:
                self._set_betas([(mom, 0.99) for mom in self.min_moms])

    def _set_betas(self, betas: list[tuple[float, float]]) -> None:
        for group, pair in zip(self.optimizer.param_groups, betas):
            group["betas"] = pair

    def _height(self) -> float:
        """Returns the place between the lower bound (0) and the upper one (1)."""
        batch = self.last_batch_iteration + 1
        x = batch / self.total_size - math.floor(batch / self.total_size)
        top = self.first_step_size / self.total_size
        rises = x <= top
        stairs = self.first_stair_count if rises else self.second_stair_count
        if stairs <= 0:
            return x / top if rises else (x - 1) / (top - 1)
        place = batch % self.total_size
        if place <= self.first_step_size:
            stair = place * stairs / self.first_step_size
        else:
            stair = (self.total_size - place) * stairs / self.second_step_size
        return math.floor(stair) / stairs

    def _decay_interval(self) -> float:
        if self.decay_step_size == 0:
            return 0.0
        return (self.last_batch_iteration - self.total_size + 1) / self.decay_step_size

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < self.total_size:
            height = self._height()
            return [low + (high - low) * height for low, high in zip(self.min_lrs, self.max_lrs)]
        factor = 1 + self.decay_lr_rate * self._decay_interval()
        return [low / factor for low in self.min_lrs]

    def get_mom(self) -> list[tuple[float, float]] | None:
        """Returns the betas of each parameter group; None unless momentum is cycled."""
        if not self.cycle_momentum:
            return None
        if self.last_batch_iteration < self.total_size:
            height = self._height()
            return [(high - (high - low) * height, 0.99) for low, high in zip(self.min_moms, self.max_moms)]
        factor = 1 + self.decay_mom_rate * self._decay_interval()
        return [(high * factor, 0.99) for high in self.max_moms]

    def step(self, batch_iteration: int | None = None) -> None:
        super().step(batch_iteration)
        betas = self.get_mom()
        if betas is not None:
            self._set_betas(betas)
