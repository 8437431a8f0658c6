# SPDX-License-Identifier: Apache-2.0
"""Models without memory, and Accelerate's functions for models on several devices, which Lockstep refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .utils.environment import parse_flag_from_env
from .utils.modeling import _refuses, infer_auto_device_map, load_checkpoint_in_model

__all__ = [
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


cpu_offload = _refuses("cpu_offload", "move a model's layers to the device during inference")
cpu_offload_with_hook = _refuses("cpu_offload_with_hook", "move a model to the device during inference")
disk_offload = _refuses("disk_offload", "load a model's layers from disk during inference")
dispatch_model = _refuses("dispatch_model", "spread one model over devices")
