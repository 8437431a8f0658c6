# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe.utils: which parameters and groups of parameters belong to experts."""

from __future__ import annotations

from typing import Any

import torch

from ... import _core
from .layer import MoE

__all__ = [
    "configure_moe_param_groups",
    "has_moe_layers",
    "is_moe_param",
    "is_moe_param_group",
    "split_params_into_different_moe_groups_for_optimizer",
    "split_params_into_shared_and_expert_params",
]

Groups = dict[str, Any] | tuple[dict[str, Any], ...] | list[dict[str, Any]]


def has_moe_layers(m: torch.nn.Module) -> tuple[bool, int]:
    """Returns whether a model has layers of experts, and the number of experts of the first one."""
    for module in m.modules():
        if isinstance(module, MoE):
            return True, module.num_experts
    return False, 0


def is_moe_param(param: torch.Tensor) -> bool:
    return not getattr(param, "allreduce", True)


def is_moe_param_group(param_group: dict[str, Any]) -> bool:
    return bool(param_group.get("moe", False))


def split_params_into_shared_and_expert_params(
    params: list[torch.nn.Parameter],
) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    return [p for p in params if not is_moe_param(p)], [p for p in params if is_moe_param(p)]


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: Groups, max_group_size: float | None = 178956971
) -> list[dict[str, Any]]:
    """Moves experts' parameters to groups of their own, of at most `max_group_size` numbers each.

    Lockstep needs no such groups: it knows experts by their parameters. Programs give them other options.
    """
    given = [param_groups] if isinstance(param_groups, dict) else list(param_groups)
    of_experts = []
    for group in given:
        shared, experts = split_params_into_shared_and_expert_params(group["params"])
        if not experts:
            continue
        group["params"] = shared
        for name in sorted({param.group_name for param in experts}):  # type: ignore[attr-defined]
            named = [param for param in experts if param.group_name == name]  # type: ignore[attr-defined]
            of_experts += [
                {**group, "name": name, "moe": True, "params": part} for part in _parts_of(named, max_group_size)
            ]
    return given + of_experts


def _parts_of(params: list[torch.nn.Parameter], most: float | None) -> list[list[torch.nn.Parameter]]:
    parts: list[list[torch.nn.Parameter]] = [[]]
    size = 0
    for param in params:
        if most is not None and parts[-1] and size + param.numel() > most:
            parts.append([])
            size = 0
        parts[-1].append(param)
        size += param.numel()
    return parts


def configure_moe_param_groups(model_parameters: list[Any]) -> list[Any]:
    """Returns parameters, or groups of them, with groups for experts."""
    if not isinstance(model_parameters, list) or not model_parameters:
        raise _core.ConfigError("[configure_moe_param_groups] expected a list of parameters, or of parameter groups")
    if isinstance(model_parameters[0], dict):
        if any("moe" in group for group in model_parameters):
            return model_parameters
        return split_params_into_different_moe_groups_for_optimizer(model_parameters)
    return split_params_into_different_moe_groups_for_optimizer({"params": model_parameters, "name": "dense-params"})
