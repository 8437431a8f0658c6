# SPDX-License-Identifier: Apache-2.0
"""The loss scale of an engine, under the names of DeepSpeed's classes. The C++ library changes the scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import DeepSpeedEngine

__all__ = ["DynamicLossScaler", "LossScaler", "LossScalerBase", "loss_scaler_of"]


class LossScalerBase:
    """A loss scale that the program reads. `optimizer.loss_scaler` is one."""

    dynamic = False

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = engine  # The optimizer's proxy.

    @property
    def cur_scale(self) -> float:
        """The factor of the next loss."""
        return self._engine.loss_scale()

    loss_scale = cur_scale

    @property
    def dynamic_loss_scale(self) -> bool:
        return self.dynamic

    @property
    def cur_iter(self) -> int:
        """The number of updates, including those skipped for an overflow."""
        return self._engine.global_steps


class LossScaler(LossScalerBase):
    """A fixed scale; 1 without fp16."""


class DynamicLossScaler(LossScalerBase):
    """A scale that falls at an overflow, and rises after `scale_window` updates without one."""

    dynamic = True
    scale_factor = 2.0

    def __init__(self, engine: DeepSpeedEngine) -> None:
        super().__init__(engine)
        self.scale_window: int = engine._value("fp16.loss_scale_window")
        self.min_scale = self.min_loss_scale = float(engine._value("fp16.min_loss_scale"))
        self.delayed_shift: int = engine._value("fp16.hysteresis")
        self.consecutive_hysteresis: bool = engine._value("fp16.consecutive_hysteresis")


def loss_scaler_of(engine: DeepSpeedEngine) -> LossScalerBase:
    """Returns the loss scale of an engine's file."""
    return (DynamicLossScaler if engine.dynamic_loss_scale() else LossScaler)(engine)
