# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils: logging, and full values of single parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from ... import _core
from .._registry import engine_of
from .logging import log_dist, log_dist_once, logger, set_log_level_from_string

__all__ = [
    "OnDevice",
    "RepeatingLoader",
    "get_z3_leaf_modules",
    "log_dist",
    "log_dist_once",
    "logger",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "set_log_level_from_string",
    "set_z3_leaf_modules",
    "unset_z3_leaf_modules",
]


# --- full values of one trained parameter, in every stage; collective
def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a parameter's float32 values, of its shape. Collective."""
    return engine_of("safe_get_full_fp32_param", param).core.safe_get_full_fp32_param(param)


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor | None:
    """Returns a copy of the averaged gradient without the loss scale; None if there is none. Collective."""
    return engine_of("safe_get_full_grad", param).core.safe_get_full_grad(param)


def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor | None:
    """Returns a copy of a field of the optimizer's state, such as "exp_avg". Collective."""
    return engine_of("safe_get_full_optimizer_state", param).core.safe_get_full_optimizer_state(param, optim_state_key)


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets a parameter's values. `value` is in full, and the same on all ranks. Collective."""
    engine_of("safe_set_full_fp32_param", param).core.safe_set_full_fp32_param(param, value)


def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets the averaged gradient. Collective."""
    engine_of("safe_set_full_grad", param).core.safe_set_full_grad(param, value)


def safe_set_full_optimizer_state(param: torch.Tensor, value: torch.Tensor, optim_state_key: str) -> None:
    """Sets a field of the optimizer's state. Collective."""
    engine_of("safe_set_full_optimizer_state", param).core.safe_set_full_optimizer_state(param, value, optim_state_key)


# --- modules
def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: list[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    """Returns the modules of these classes. An operation unshards its parameters, so leaves need no treatment."""
    found = [
        module
        for module in model.modules()
        if type(module) in leaf_module_classes or type(module).__name__ in leaf_module_classes
    ]
    if not found and raise_if_not_found:
        raise ValueError(f"no module of the model is of a class in {leaf_module_classes}")
    for module in found:
        vars(module)["_z3_leaf"] = True
    return found


def unset_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: list[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    """Removes the mark of set_z3_leaf_modules, and returns the modules."""
    found = set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found)
    for module in found:
        vars(module)["_z3_leaf"] = False
    return found


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the modules that set_z3_leaf_modules has marked."""
    return [module for module in model.modules() if getattr(module, "_z3_leaf", False)]


class RepeatingLoader:
    """Iterates over a loader again and again."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


class OnDevice:
    """DeepSpeed's context that builds a model on a device. The constructor throws ConfigError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise _core.ConfigError(
            "[OnDevice] is not supported; use `with torch.device(...)`, or lockstep.init_empty_weights() for the meta "
            "device"
        )


def _refuse_local(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise _core.ConfigError(
            f"[{name}] is not supported: shards are parts of flat buckets, not of one parameter; use "
            f"{name.replace('local', 'full')}"
        )

    refuse.__name__ = name
    return refuse


safe_get_local_fp32_param = _refuse_local("safe_get_local_fp32_param")
safe_get_local_grad = _refuse_local("safe_get_local_grad")
safe_get_local_optimizer_state = _refuse_local("safe_get_local_optimizer_state")
safe_set_local_fp32_param = _refuse_local("safe_set_local_fp32_param")
safe_set_local_grad = _refuse_local("safe_set_local_grad")
safe_set_local_optimizer_state = _refuse_local("safe_set_local_optimizer_state")
