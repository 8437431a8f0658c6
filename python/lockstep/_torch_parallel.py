# SPDX-License-Identifier: Apache-2.0
"""Models that torch has divided, such as by parallelize_module: their parameters are DTensors.

prepare() lets the C++ library have this process's parts, under the parameters' own names, so that averages, norms and
checkpoints know them. The modules compute with DTensors as before.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import _core

_INSTEAD = (
    "give the full model, which prepare divides: ParallelismConfig(tp_size=...) with the model's tp_plan or a "
    "TorchTensorParallelConfig, and from_pretrained without tp_plan; without ZeRO it also takes DTensors of a tp line; or train it with torch alone, on the backend 'lockstep' "
    "of torch.distributed"
)


def is_dtensor(tensor: Any) -> bool:
    """Returns whether a tensor is a torch.distributed.tensor.DTensor. Importing that class takes a second."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def has_dtensors(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and any(map(is_dtensor, model.parameters()))


def expect_undivided(objects: Iterable[Any], where: str) -> None:
    """Throws ConfigError for models that torch or transformers has divided, and for optimizers of such."""
    for obj in objects:
        if isinstance(obj, torch.nn.Module):
            named: Iterable[tuple[str, Any]] = obj.named_parameters()
            parts = getattr(obj, "tp_size", None)
            if hasattr(obj, "_tp_plan") and isinstance(parts, int) and parts > 1 and not AdoptedModels.has(obj):
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


class _ComputesWithDTensors:
    """The mark of a module whose parameters are parts, and whose attributes are their DTensors."""


class AdoptedModels:
    """The models with DTensors that an Accelerator has prepared, and the parameters that replace theirs."""

    def __init__(self, line: list[int]) -> None:
        """`line`: the processes that divide layers with this one."""
        self._line = line
        self._replaced: dict[int, tuple[Any, torch.nn.Parameter]] = {}  # By the DTensor's id, which lives as long.

    def adopt(self, model: torch.nn.Module) -> None:
        """Replaces the DTensors of a model by full parameters, which the C++ library divides as its plan says.

        Collective among the processes of a mesh. Throws ConfigError for placements other than rows or columns.
        """
        plan: list[tuple[str, str, list[int]]] = []
        for name, module in model.named_modules():
            given = {key: value for key, value in module.named_parameters(recurse=False) if is_dtensor(value)}
            if not given:
                continue
            style = self._style_of(name, given)
            if style is not None:
                plan.append((name, style, []))
            for key, value in given.items():
                module._parameters[key] = self._full(value)
            _return_dtensors(module, given)
        model._lockstep_tensor_parallel = {  # type: ignore[assignment]
            "plan": plan,
            "example": None,
            "sequence_parallel": False,
        }

    @staticmethod
    def has(model: torch.nn.Module) -> bool:
        """Returns whether a model is adopted."""
        return any(isinstance(module, _ComputesWithDTensors) for module in model.modules())

    def replace_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Replaces the DTensors of an optimizer by the parameters of their models. Throws ConfigError if it has state."""
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                if id(parameter) in self._replaced:
                    if parameter in optimizer.state:
                        raise _core.ConfigError(
                            f"[prepare] {type(optimizer).__name__} has the state of updates with DTensors; expected a new "
                            "optimizer; prepare it before its first step"
                        )
                    group["params"][index] = self._replaced[id(parameter)][1]

    def _style_of(self, name: str, given: dict[str, Any]) -> str | None:
        """Returns the style of a module's parameters: own_rows, own_columns, or None if all processes have them."""
        for key, value in given.items():
            mesh = value.device_mesh
            if mesh.ndim != 1 or mesh.mesh.flatten().tolist() != self._line:
                raise _core.ConfigError(
                    f"[prepare] {name}.{key} is on the mesh {mesh.mesh.tolist()}; expected the processes of a tp line, "
                    f"{self._line}; pass ParallelismConfig(tp_size=...) of the mesh's size, whose processes have consecutive "
                    "numbers, and do not shard over other dimensions"
                )
        dims = {key: _dim_of(f"{name}.{key}", value) for key, value in given.items()}
        divided = {key: dim for key, dim in dims.items() if dim is not None}
        if not divided:
            return None
        if set(dims.values()) == {0}:
            return "own_rows"
        matrices = {key for key, value in given.items() if value.dim() == 2 and key.endswith("weight")}
        if set(divided.values()) == {1} and set(divided) == matrices:
            return "own_columns"
        raise _core.ConfigError(
            f"[prepare] {name} has parts of {', '.join(f'{key} by dimension {dim}' for key, dim in divided.items())}; expected "
            "rows of all parameters, or columns of the weight alone, as ColwiseParallel and RowwiseParallel give"
        )

    def _full(self, value: Any) -> torch.nn.Parameter:
        if id(value) not in self._replaced:
            full = value.detach().full_tensor().clone()
            self._replaced[id(value)] = (value, torch.nn.Parameter(full, requires_grad=value.requires_grad))
        return self._replaced[id(value)][1]


def _dim_of(name: str, value: Any) -> int | None:
    """Returns the dimension of which processes have parts; None if all have the full tensor."""
    placement = value.placements[0]
    if placement.is_replicate():
        return None
    if not placement.is_shard() or type(placement).__name__ != "Shard":
        raise _core.ConfigError(f"[prepare] {name} has the placement {placement}; expected Shard or Replicate")
    return int(placement.dim)


def _return_dtensors(module: torch.nn.Module, given: dict[str, Any]) -> None:
    """Makes a module's attributes DTensors of its parameters' parts, under the same names."""

    def attribute(key: str, value: Any) -> property:
        kind, mesh, placements = type(value), value.device_mesh, value.placements

        def read(self: torch.nn.Module) -> Any:
            try:
                return kind.from_local(self._parameters[key], mesh, placements, run_check=False)
            except AttributeError as error:  # It would make Python read the part from torch's __getattr__.
                raise RuntimeError(f"{type(self).__name__}.{key}: {error}") from error

        return property(read)

    attributes: dict[str, Any] = {key: attribute(key, value) for key, value in given.items()}
    attributes["__module__"] = type(module).__module__
    module.__class__ = type(type(module).__name__, (_ComputesWithDTensors, type(module)), attributes)
