# SPDX-License-Identifier: Apache-2.0
"""The forward of a model in mixed precision."""
from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch

from .. import _core
from ..utils.operations import convert_to_fp32, recursively_apply


class _MoveInputs:
    """Moves the tensors of a forward's arguments to a device. A forward pre-hook."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return recursively_apply(self._move, (args, kwargs))

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)


def move_inputs(model: torch.nn.Module, device: torch.device) -> None:
    """Makes the model accept tensors of other devices, as torch's DistributedDataParallel does. Once per model."""
    if not any(isinstance(hook, _MoveInputs) for hook in model._forward_pre_hooks.values()):
        model.register_forward_pre_hook(_MoveInputs(device), with_kwargs=True)


class AutocastForward:
    """The forward of a prepared model: within the Accelerator's autocast, with 16-bit results as float32."""

    def __init__(self, module: torch.nn.Module, autocast: Callable[[], AbstractContextManager[None]]) -> None:
        self.module = module
        self.autocast = autocast
        self.original = module.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.original or type(self.module).forward.__get__(self.module)
        with self.autocast():
            outputs = forward(*args, **kwargs)
        return convert_to_fp32(outputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> AutocastForward:
        result = AutocastForward.__new__(AutocastForward)
        memo[id(self)] = result
        result.autocast = self.autocast
        result.module = copy.deepcopy(self.module, memo)
        result.original = copy.deepcopy(self.original, memo)
        return result

    def __reduce__(self) -> NoReturn:
        raise _core.ConfigError(
            "[pickle] a model that is prepared with mixed precision cannot be pickled; pickle "
            "accelerator.unwrap_model(model, keep_fp32_wrapper=False), or save its state_dict()"
        )
