# SPDX-License-Identifier: Apache-2.0
"""torch's optimizers import torch's compiler at their first use, which takes 1.1 s of CPU time.

They do so to exclude themselves from compilation. No code can be compiled before something imports the compiler.
Until then, the functions that `install` sets call the optimizer's code directly; later they call torch's own.
"""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

_COMPILER = "torch._dynamo"


def install() -> None:
    """Changes torch.optim's classes, unless the compiler has been imported. Takes less than a millisecond."""
    if _COMPILER in sys.modules:
        return
    for method in vars(torch.optim.Optimizer).values():
        _call_until_compiled(method)
    for optimizer in vars(torch.optim).values():
        if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer):
            step = vars(optimizer).get("step")
            if _is_made_by(step, "torch.optim.optimizer", "_use_grad"):
                optimizer.step = _step_until_compiled(step)  # type: ignore[method-assign]


def _is_made_by(function: Any, module: str, name: str) -> bool:
    """Returns whether `function` is the inner function `name` of a decorator of `module`."""
    return (
        isinstance(function, FunctionType)
        and hasattr(function, "__wrapped__")
        and function.__code__.co_name == name
        and function.__globals__["__name__"] == module
    )


def _call_until_compiled(method: Any) -> None:
    """Sets the function that torch's decorator of `method` otherwise makes, with the compiler, at the first call."""
    if not _is_made_by(method, "torch._compile", "inner"):
        return
    function = method.__wrapped__

    def call(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER not in sys.modules:
            return function(*args, **kwargs)
        vars(function).pop("__dynamo_disable", None)
        return method(*args, **kwargs)

    function.__dynamo_disable = call


def _step_until_compiled(step: Any) -> Callable[..., Any]:
    """Returns `step` of an optimizer without its graph breaks, which have no effect before the compiler is imported."""

    @functools.wraps(step)
    def call(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if _COMPILER in sys.modules:
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step.__wrapped__(self, *args, **kwargs)

    return call
