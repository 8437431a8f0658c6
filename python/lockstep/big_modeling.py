# SPDX-License-Identifier: Apache-2.0
"""Models without memory or with small weights, and Accelerate's functions for several devices, which are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .hooks import LayerwiseCastingHook, add_hook_to_module
from .utils.constants import SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING
from .utils.environment import parse_flag_from_env
from .utils.modeling import _refuses, infer_auto_device_map, load_checkpoint_in_model

__all__ = [
    "attach_layerwise_casting_hooks",
    "cpu_offload",
    "cpu_offload_with_hook",
    "disk_offload",
    "dispatch_model",
    "infer_auto_device_map",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint_and_dispatch",
    "load_checkpoint_in_model",
]


@contextmanager
def init_empty_weights(include_buffers: bool | None = None) -> Iterator[None]:
    """Creates the modules of a block without memory for parameters, on the meta device.

    `include_buffers` also creates buffers there; None is the variable ACCELERATE_INIT_INCLUDE_BUFFERS, else false.
    """
    with init_on_device(torch.device("meta"), include_buffers=include_buffers):
        yield


@contextmanager
def init_on_device(device: Any, include_buffers: bool | None = None) -> Iterator[None]:
    """Creates the parameters of modules of a block on `device`; with `include_buffers` all of its new tensors.

    It replaces torch.nn.Module.register_parameter during the block. Not thread-safe.
    """
    if include_buffers is None:
        include_buffers = parse_flag_from_env("ACCELERATE_INIT_INCLUDE_BUFFERS", False)
    device = torch.device(device)
    if include_buffers:
        with device:
            yield
        return
    register = nn.Module.register_parameter

    def register_on_device(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        old = module._parameters[name]
        if old is None:
            return
        moved = type(old)(old.detach().to(device), requires_grad=old.requires_grad)
        moved.__dict__.update(old.__dict__)
        module._parameters[name] = moved

    nn.Module.register_parameter = register_on_device  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def load_checkpoint_and_dispatch(model: nn.Module, checkpoint: Any, device_map: Any = None, **kwargs: Any) -> nn.Module:
    """Loads weights into a model and returns it; see load_checkpoint_in_model. `device_map` has at most one device."""
    load_checkpoint_in_model(model, checkpoint, device_map=device_map, **kwargs)
    return model


def attach_layerwise_casting_hooks(
    module: nn.Module,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    skip_modules_pattern: Any = None,
    skip_modules_classes: tuple[type[nn.Module], ...] | None = None,
    non_blocking: bool = False,
) -> None:
    """Stores the weights of linear layers and convolutions in `storage_dtype`, and casts them for their forwards.

    Modules whose names match a regular expression of `skip_modules_pattern` (a text, or several) are left out, with all
    inside of them; so are those of `skip_modules_classes`. For inference.
    """
    patterns = [skip_modules_pattern] if isinstance(skip_modules_pattern, str) else list(skip_modules_pattern or ())
    _cast_layers(module, "", patterns, skip_modules_classes or (), storage_dtype, compute_dtype, non_blocking)


def _cast_layers(
    module: nn.Module, name: str, patterns: list[str], classes: tuple[type[nn.Module], ...], *hook_arguments: Any
) -> None:
    if isinstance(module, classes) or any(re.search(pattern, name) for pattern in patterns):
        return
    if isinstance(module, SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING):
        add_hook_to_module(module, LayerwiseCastingHook(*hook_arguments), append=True)
        return
    for child_name, child in module.named_children():
        _cast_layers(child, f"{name}.{child_name}" if name else child_name, patterns, classes, *hook_arguments)


cpu_offload = _refuses("cpu_offload", "move a model's layers to the device during inference")
cpu_offload_with_hook = _refuses("cpu_offload_with_hook", "move a model to the device during inference")
disk_offload = _refuses("disk_offload", "load a model's layers from disk during inference")
dispatch_model = _refuses("dispatch_model", "spread one model over devices")
