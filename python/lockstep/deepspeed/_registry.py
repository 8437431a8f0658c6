# SPDX-License-Identifier: Apache-2.0
"""Finds the engine or Accelerator of a parameter, for functions that are given only the parameter."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from .._core import ConfigError
from ..state import GradientState

if TYPE_CHECKING:
    from .engine import DeepSpeedEngine

_engines: weakref.WeakSet[DeepSpeedEngine] = weakref.WeakSet()


def add_engine(engine: DeepSpeedEngine) -> None:
    _engines.add(engine)


def remove_engine(engine: DeepSpeedEngine) -> None:
    _engines.discard(engine)


def live_engines() -> list[DeepSpeedEngine]:
    """Returns the engines that are not destroyed."""
    return list(_engines)


def engine_of(where: str, parameter: torch.Tensor) -> DeepSpeedEngine:
    """Returns the engine that trains a parameter. Throws ConfigError if there is none."""
    for engine in _engines:
        if any(parameter is own for own in engine.module.parameters()):
            return engine
    raise ConfigError(
        f"[{where}] the parameter belongs to no engine; expected one of a model that was passed to initialize()"
    )


def core_accelerator_of(parameters: Iterable[torch.Tensor]) -> Any:
    """Returns the C++ Accelerator that has prepared the first of the parameters; None if there is none."""
    first = next(iter(parameters), None)
    if first is None:
        return None
    for engine in _engines:
        if any(first is own for own in engine.module.parameters()):
            return engine.core.accelerator
    accelerator = active_accelerator()
    if accelerator is not None:
        for model in accelerator._models:
            if any(first is own for own in model.parameters()):
                return accelerator._core
    return None


def active_accelerator() -> Any:
    """Returns the program's lockstep.Accelerator; None if there is none."""
    return GradientState()._accelerator() if GradientState._shared_state else None
