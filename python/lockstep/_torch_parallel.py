# SPDX-License-Identifier: Apache-2.0
"""Models that torch has divided: their parameters are DTensors."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import _core

_INSTEAD = (
    "give the full model, which prepare divides: ParallelismConfig(tp_size=...) with the model's tp_plan or a "
    "TorchTensorParallelConfig, and from_pretrained without tp_plan; or train it with torch alone, on the backend 'lockstep' "
    "of torch.distributed"
)


def is_dtensor(tensor: Any) -> bool:
    """Returns whether a tensor is a torch.distributed.tensor.DTensor. Importing that class takes a second."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def expect_undivided(objects: Iterable[Any], where: str) -> None:
    """Throws ConfigError for models that torch or transformers has divided, and for optimizers of such."""
    for obj in objects:
        if isinstance(obj, torch.nn.Module):
            named: Iterable[tuple[str, Any]] = obj.named_parameters()
            parts = getattr(obj, "tp_size", None)
            if hasattr(obj, "_tp_plan") and isinstance(parts, int) and parts > 1:
                raise _core.ConfigError(
                    f"[{where}] {type(obj).__name__} has tp_size {parts}: transformers has divided it at loading; expected full "
                    f"parameters; {_INSTEAD}"
                )
        elif isinstance(obj, torch.optim.Optimizer):
            named = [(f"a parameter of {type(obj).__name__}", p) for group in obj.param_groups for p in group["params"]]
        else:
            continue
        for name, tensor in named:
            if is_dtensor(tensor):
                raise _core.ConfigError(
                    f"[{where}] {name} is a DTensor, {tuple(tensor.placements)} on a mesh of {tensor.device_mesh.size()} "
                    f"processes; expected full parameters; {_INSTEAD}"
                )
