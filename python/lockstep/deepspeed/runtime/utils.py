# SPDX-License-Identifier: Apache-2.0
"""Helpers of deepspeed.runtime.utils that programs use."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import torch

from ... import _core
from ...utils import set_seed
from .._logging import current_rank
from ..accelerator import get_accelerator
from ..utils.logging import log_dist

__all__ = [
    "clip_grad_norm_",
    "empty_cache",
    "ensure_directory_exists",
    "get_ma_status",
    "memory_status",
    "move_to_device",
    "see_memory_usage",
    "set_random_seed",
]

_GIB = 1024**3


def see_memory_usage(message: str, force: bool = False) -> None:
    """Logs the memory of the device, the process and its host on rank 0, and restarts the peaks, if `force` is true."""
    if force:
        memory_status(message)
        get_accelerator().reset_peak_memory_stats()


def memory_status(msg: str, print_rank: int = -1, reset_max: bool = False) -> None:
    """Logs the same on one rank, by default rank 0. `reset_max` restarts the peaks before."""
    device = get_accelerator()
    if reset_max:
        device.reset_peak_memory_stats()
    gc.collect()
    used = device.total_memory() - device.available_memory()
    log_dist(
        f"{msg}: memory {device.memory_allocated() / _GIB:.2f} GiB, peak {device.max_memory_allocated() / _GIB:.2f} "
        f"GiB; {device.device_name()} {used / _GIB:.2f} of {device.total_memory() / _GIB:.2f} GiB in use",
        ranks=[max(print_rank, 0)],
    )


def get_ma_status() -> int:
    """Returns the bytes of tensors on the device, on rank 0; 0 on the others."""
    return get_accelerator().memory_allocated() if current_rank() == 0 else 0


def empty_cache() -> None:
    get_accelerator().empty_cache()
    get_accelerator().reset_peak_memory_stats()


def ensure_directory_exists(filename: str | os.PathLike[str]) -> None:
    """Creates the folder of a file."""
    os.makedirs(os.path.dirname(filename) or ".", exist_ok=True)


def set_random_seed(seed: int) -> None:
    """Seeds Python, numpy and torch."""
    set_seed(seed)


def move_to_device(item: Any, device: Any, criterion_func: Callable[[Any], bool] | None = None) -> Any:
    """Moves tensors within lists, tuples and dicts, or those for which `criterion_func` is true."""
    if isinstance(item, torch.Tensor) and (criterion_func is None or criterion_func(item)):
        return item.to(device)
    if isinstance(item, (list, tuple)):
        return type(item)([move_to_device(each, device, criterion_func) for each in item])
    if isinstance(item, dict):
        return {name: move_to_device(each, device, criterion_func) for name, each in item.items()}
    return item


def clip_grad_norm_(*args: Any, **kwargs: Any) -> None:
    """Throws ConfigError: the engine clips."""
    raise _core.ConfigError(
        "[clip_grad_norm_] the engine clips by gradient_clipping of the file, in every stage; set that key, and remove "
        "the call"
    )
