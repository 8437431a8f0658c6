# SPDX-License-Identifier: Apache-2.0
"""Values, gradients and optimizer state of one parameter of an engine, in every stage. All calls are collective."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..._core import ConfigError
from ...state import PartialState
from .._registry import engine_of

__all__ = [
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "safe_update_full_grad_vectorized",
]


# --- full values
def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor | None:
    """Returns a copy of a parameter's float32 values, of its shape; None for a frozen one. Collective."""
    core = engine_of("safe_get_full_fp32_param", param).core
    return core.safe_get_full_fp32_param(param) if param.requires_grad else None


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor | None:
    """Returns a copy of the averaged gradient without the loss scale; None if there is none. Collective."""
    core = engine_of("safe_get_full_grad", param).core
    return core.safe_get_full_grad(param) if param.requires_grad else None


def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor | None:
    """Returns a copy of a field of the optimizer's state, such as "exp_avg"; None for a frozen one. Collective."""
    core = engine_of("safe_get_full_optimizer_state", param).core
    return core.safe_get_full_optimizer_state(param, optim_state_key) if param.requires_grad else None


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets a parameter's values. `value` is in full, and the same on all ranks. Collective."""
    engine_of("safe_set_full_fp32_param", param).core.safe_set_full_fp32_param(param, value)


def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets the averaged gradient. Collective."""
    engine_of("safe_set_full_grad", param).core.safe_set_full_grad(param, value)


def safe_set_full_optimizer_state(param: torch.Tensor, value: torch.Tensor, optim_state_key: str) -> None:
    """Sets a field of the optimizer's state. Collective."""
    engine_of("safe_set_full_optimizer_state", param).core.safe_set_full_optimizer_state(param, value, optim_state_key)


def safe_update_full_grad_vectorized(
    param_list: list[torch.nn.Parameter], update_func: Callable[[torch.Tensor, torch.nn.Parameter], torch.Tensor]
) -> None:
    """Replaces the averaged gradient of each trained parameter by `update_func(gradient, parameter)`. Collective."""
    for param in param_list:
        gradient = safe_get_full_grad(param)
        if gradient is not None:
            safe_set_full_grad(param, update_func(gradient, param))


# --- this rank's part in stage 3, of ceil(elements / ranks) elements; the last part ends with zeros
def safe_get_local_fp32_param(param: torch.Tensor) -> torch.Tensor | None:
    """Returns this rank's part of safe_get_full_fp32_param's values. Stage 3. Collective, unlike DeepSpeed's."""
    _check_stage("safe_get_local_fp32_param", param)
    return _part_of(param, safe_get_full_fp32_param(param))


def safe_get_local_grad(param: torch.Tensor) -> torch.Tensor | None:
    """Returns this rank's part of safe_get_full_grad's values. Stage 3. Collective, unlike DeepSpeed's."""
    _check_stage("safe_get_local_grad", param)
    return _part_of(param, safe_get_full_grad(param))


def safe_get_local_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor | None:
    """Returns this rank's part of safe_get_full_optimizer_state's values. Stage 3. Collective, unlike DeepSpeed's."""
    _check_stage("safe_get_local_optimizer_state", param)
    return _part_of(param, safe_get_full_optimizer_state(param, optim_state_key))


def safe_set_local_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets a parameter's values, of which each rank passes its part. Stage 3. Collective, unlike DeepSpeed's."""
    safe_set_full_fp32_param(param, _full_of("safe_set_local_fp32_param", param, value))


def safe_set_local_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Sets the averaged gradient, of which each rank passes its part. Stage 3. Collective, unlike DeepSpeed's."""
    safe_set_full_grad(param, _full_of("safe_set_local_grad", param, value))


def safe_set_local_optimizer_state(param: torch.Tensor, value: torch.Tensor, optim_state_key: str) -> None:
    """Sets a field of the state, of which each rank passes its part. Stage 3. Collective, unlike DeepSpeed's."""
    full = _full_of("safe_set_local_optimizer_state", param, value)
    safe_set_full_optimizer_state(param, full, optim_state_key)


def _check_stage(where: str, param: torch.Tensor) -> None:
    stage = engine_of(where, param).zero_optimization_stage()
    if stage != 3:
        raise ConfigError(
            f"[{where}] parts of parameters exist in ZeRO stage 3 only; got stage {stage}; use "
            f"{where.replace('local', 'full')}"
        )


def _part_length(param: torch.Tensor) -> int:
    return -(-param.numel() // PartialState().num_processes)


def _part_of(param: torch.Tensor, full: torch.Tensor | None) -> torch.Tensor | None:
    """Returns this rank's part of full values."""
    if full is None or full.shape != param.shape:
        return full  # A number for the full parameter, such as Adam's step.
    length = _part_length(param)
    part = full.new_zeros(length)
    own = full.reshape(-1)[length * PartialState().process_index :][:length]
    part[: own.numel()] = own
    return part


def _full_of(where: str, param: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns the full values of all ranks' parts."""
    _check_stage(where, param)
    length = _part_length(param)
    if value.numel() != length:
        raise ConfigError(f"[{where}] the value has {value.numel()} elements; expected {length}, this rank's part")
    parts = PartialState().group.all_gather(value.detach().reshape(-1).contiguous())
    return parts.reshape(-1)[: param.numel()].reshape(param.shape)
