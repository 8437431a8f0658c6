# SPDX-License-Identifier: Apache-2.0
"""deepspeed.checkpointing: layers that are computed again in backward instead of storing their activations.

`checkpoint` is torch.utils.checkpoint's form without a nested backward. `initialize` applies the section
activation_checkpointing of the file, unless `configure` was called before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.utils.checkpoint as torch_checkpoint

from .. import _core
from ._config import given_config

__all__ = [
    "checkpoint",
    "configure",
    "get_cuda_rng_tracker",
    "is_configured",
    "model_parallel_cuda_manual_seed",
    "non_reentrant_checkpoint",
    "reset",
]

_OPTIONS = {"cpu_checkpointing": False, "synchronize_checkpoint_boundary": False}
_options: dict[str, bool] = dict(_OPTIONS)
_configured = False


def configure(
    mpu_: Any,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Sets the options of later checkpoints: those of a ds_config's section, then the arguments.

    `partition_activations` has no effect, as in DeepSpeed where ranks do not divide layers.
    """
    global _configured
    if mpu_ is not None:
        raise _core.ConfigError("[checkpointing] mpu_ is not supported: an engine does not divide layers; pass None")
    section: dict[str, Any] = {}
    if deepspeed_config is not None:
        section = given_config(deepspeed_config).as_dict().get("activation_checkpointing", {})
    given = {
        "contiguous_memory_optimization": contiguous_checkpointing,
        "number_checkpoints": num_checkpoints,
        "cpu_checkpointing": checkpoint_in_cpu,
        "synchronize_checkpoint_boundary": synchronize,
        "profile": profile,
    }
    section |= {name: value for name, value in given.items() if value is not None}
    apply_section(section)
    _configured = True


def apply_section(section: dict[str, Any]) -> None:
    """Sets the options of a file's section activation_checkpointing. Throws ConfigError for what torch lacks."""
    for name, instead in (
        ("contiguous_memory_optimization", "torch.utils.checkpoint allocates each input"),
        ("profile", "use torch.profiler"),
    ):
        if section.get(name):
            raise _core.ConfigError(f"[checkpointing] {name} is not supported for a Python model: {instead}; delete it")
    for name, default in _OPTIONS.items():
        _options[name] = bool(section.get(name, default))


def is_configured() -> bool:
    """Returns whether `configure` was called."""
    return _configured


def reset() -> None:
    """Frees what earlier checkpoints kept; here nothing, since each input is freed with its graph."""


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Returns `function(*args)`, which backward computes again. Random numbers are the same in both."""
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), torch.device("cpu"))
    on_gpu = device.type == "cuda"
    synchronized = _options["synchronize_checkpoint_boundary"] and on_gpu
    if synchronized:
        torch.cuda.synchronize(device)
    if _options["cpu_checkpointing"] and on_gpu:
        result = _checkpoint_on_host(function, args, device)
    else:
        result = torch_checkpoint.checkpoint(function, *args, use_reentrant=False)
    if synchronized:
        torch.cuda.synchronize(device)
    return result


non_reentrant_checkpoint = checkpoint


def _checkpoint_on_host(function: Callable[..., Any], args: tuple[Any, ...], device: torch.device) -> Any:
    """Does the same, and keeps floating-point inputs in host memory until backward."""
    moved = [isinstance(arg, torch.Tensor) and arg.device == device and arg.is_floating_point() for arg in args]
    stored = [arg.to("cpu") if is_moved else arg for arg, is_moved in zip(args, moved)]

    def run(*inputs: Any) -> Any:
        return function(*(value.to(device) if is_moved else value for value, is_moved in zip(inputs, moved)))

    return torch_checkpoint.checkpoint(run, *stored, use_reentrant=False)


def model_parallel_cuda_manual_seed(seed: int) -> NoReturn:
    raise _core.ConfigError(
        "[checkpointing] an engine does not divide layers; call torch.manual_seed(seed), or lockstep.utils.set_seed"
    )


def get_cuda_rng_tracker() -> NoReturn:
    raise _core.ConfigError(
        "[checkpointing] an engine does not divide layers; torch.random.fork_rng keeps random states apart"
    )
