# SPDX-License-Identifier: Apache-2.0
"""Accelerate's module of hooks around the forward of a module, which Lockstep refuses.

A module never has such a hook, so the functions that remove hooks return it unchanged.
"""

from __future__ import annotations

from typing import Any

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
    "attach_layerwise_casting_hooks",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
]

_WHAT = "run hooks around a module's forward, which move it between devices"


class ModelHook:
    """Base of Accelerate's hooks. The constructor throws ConfigError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise ConfigError(
            f"[{type(self).__name__}] Lockstep does not {_WHAT}; use torch's register_forward_pre_hook, or ZeRO's "
            "offload in training"
        )


class AlignDevicesHook(ModelHook):
    """Moves a module's weights and inputs to a device. The constructor throws ConfigError."""


class CpuOffload(ModelHook):
    """Moves a model to a device when it is used. The constructor throws ConfigError."""


class LayerwiseCastingHook(ModelHook):
    """Casts a module's weights for its forward. The constructor throws ConfigError."""


class SequentialHook(ModelHook):
    """Several hooks. The constructor throws ConfigError."""


class UserCpuOffloadHook(ModelHook):
    """Moves a model to the CPU when the program says so. The constructor throws ConfigError."""


add_hook_to_module = _refuses("add_hook_to_module", _WHAT)
attach_align_device_hook = _refuses("attach_align_device_hook", _WHAT)
attach_align_device_hook_on_blocks = _refuses("attach_align_device_hook_on_blocks", _WHAT)
attach_execution_device_hook = _refuses("attach_execution_device_hook", _WHAT)
attach_layerwise_casting_hooks = _refuses("attach_layerwise_casting_hooks", _WHAT)


def remove_hook_from_module(module: nn.Module, recurse: bool = False) -> nn.Module:
    """Returns the module: it has no hook of Accelerate."""
    del recurse
    return module


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Does nothing: the module has no hook of Accelerate."""
    del module
