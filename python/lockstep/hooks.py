# SPDX-License-Identifier: Apache-2.0
"""Accelerate's hooks around the forward of a module. Those that move modules between devices are refused."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from ._core import ConfigError
from .utils.modeling import _refuses

__all__ = [
    "AlignDevicesHook",
    "CpuOffload",
    "LayerwiseCastingHook",
    "ModelHook",
    "SequentialHook",
    "UserCpuOffloadHook",
    "add_hook_to_module",
    "attach_align_device_hook",
    "attach_align_device_hook_on_blocks",
    "attach_execution_device_hook",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
]

_WHAT = "move modules between devices around their forward"


class ModelHook:
    """Code that runs around the forward of a module. This class does nothing; derived ones override functions.

    With `no_grad` the module's forward runs without autograd.
    """

    no_grad = False

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Runs when the hook is added. Returns the module."""
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Runs before the forward. Returns its arguments."""
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Runs after the forward. Returns its result."""
        return output

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Runs when the hook is removed. Returns the module."""
        return module


class SequentialHook(ModelHook):
    """Several hooks, each of which gets the results of the one before it."""

    def __init__(self, *hooks: ModelHook) -> None:
        self.hooks = hooks

    def init_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for hook in self.hooks:
            args, kwargs = hook.pre_forward(module, *args, **kwargs)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        for hook in self.hooks:
            output = hook.post_forward(module, output)
        return output

    def detach_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module


class LayerwiseCastingHook(ModelHook):
    """Stores a module's weights in `storage_dtype`, and casts them to `compute_dtype` during its forward."""

    def __init__(self, storage_dtype: torch.dtype, compute_dtype: torch.dtype, non_blocking: bool = False) -> None:
        self.storage_dtype = storage_dtype
        self.compute_dtype = compute_dtype
        self.non_blocking = non_blocking

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        module.to(dtype=self.compute_dtype, non_blocking=self.non_blocking)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)
        return output


class _RefusedHook(ModelHook):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise ConfigError(
            f"[{type(self).__name__}] Lockstep does not {_WHAT}; derive a hook from ModelHook, or use ZeRO's offload in "
            "training"
        )


class AlignDevicesHook(_RefusedHook):
    """Moves a module's weights and inputs to a device. The constructor throws ConfigError."""


class CpuOffload(_RefusedHook):
    """Moves a model to a device when it is used. The constructor throws ConfigError."""


class UserCpuOffloadHook(_RefusedHook):
    """Moves a model to the CPU when the program says so. The constructor throws ConfigError."""


class _HookedForward:
    """The forward of a module with a hook, with the name and signature of its own."""

    def __init__(self, module: nn.Module) -> None:
        functools.update_wrapper(self, module.forward)
        self._module: Any = module
        self.replaced = module.__dict__.get("forward")  # None: the class has the module's forward.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, hook = self._module, self._module._hf_hook
        args, kwargs = hook.pre_forward(module, *args, **kwargs)
        if hook.no_grad:
            with torch.no_grad():
                output = module._old_forward(*args, **kwargs)
        else:
            output = module._old_forward(*args, **kwargs)
        return hook.post_forward(module, output)


def add_hook_to_module(module: nn.Module, hook: ModelHook, append: bool = False) -> nn.Module:
    """Makes `hook` run around the module's forward, in place of an older one; with `append` after it."""
    hooked: Any = module
    old = getattr(module, "_hf_hook", None)
    if old is not None:
        remove_hook_from_module(module)
        hook = SequentialHook(old, hook) if append else hook
    forward = _HookedForward(module)
    hooked._old_forward = module.forward
    hooked = hook.init_hook(module)
    hooked._hf_hook = hook
    hooked.forward = forward
    return hooked


def remove_hook_from_module(module: nn.Module, recurse: bool = False) -> nn.Module:
    """Removes the module's hook; with `recurse` also those of all modules inside."""
    hooked: Any = module
    if hasattr(module, "_hf_hook"):
        hooked._hf_hook.detach_hook(module)
        del hooked._hf_hook
    forward = module.__dict__.get("forward")
    if isinstance(forward, _HookedForward):
        del hooked.forward, hooked._old_forward
        if forward.replaced is not None:
            hooked.forward = forward.replaced
    if recurse:
        for child in module.children():
            remove_hook_from_module(child, recurse=True)
    return module


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Removes the hooks of a module and of all modules inside."""
    remove_hook_from_module(module, recurse=True)


attach_align_device_hook = _refuses("attach_align_device_hook", _WHAT)
attach_align_device_hook_on_blocks = _refuses("attach_align_device_hook_on_blocks", _WHAT)
attach_execution_device_hook = _refuses("attach_execution_device_hook", _WHAT)
