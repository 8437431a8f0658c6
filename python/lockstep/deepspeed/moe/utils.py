# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe.utils: answers about models without experts; other names throw ConfigError when they are used."""

from __future__ import annotations

import torch

from .._unsupported import refuse_mixture_of_experts as __getattr__

__all__ = [
    "__getattr__",
    "has_moe_layers",
    "is_moe_param",
    "is_moe_param_group",
    "split_params_into_different_moe_groups_for_optimizer",
]


def has_moe_layers(m: torch.nn.Module) -> tuple[bool, int]:
    """Returns whether a model has layers of experts, and their number: none, since they cannot be created."""
    return False, 0


def is_moe_param(param: torch.Tensor) -> bool:
    return False


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: dict[str, object] | tuple[dict[str, object], ...] | list[dict[str, object]],
    max_group_size: float | None = None,
) -> list[dict[str, object]]:
    """Returns the parameter groups as they are: no parameter is one of a parallel expert."""
    return [param_groups] if isinstance(param_groups, dict) else list(param_groups)


def is_moe_param_group(param_group: dict[str, object]) -> bool:
    return False
