# SPDX-License-Identifier: Apache-2.0
"""Lockstep: distributed training with the calls of Hugging Face Accelerate, on a C++ core.

A script for Accelerate runs when `accelerate` becomes `lockstep` in its imports; docs/python.md lists differences.
`cmake_prefix_path` is the value of CMAKE_PREFIX_PATH with which CMake's find_package(lockstep) finds the C++ library.
"""
from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

import torch as _torch  # noqa: F401  # Loads libtorch_python before _core.

# _torch_check refuses another torch; distributed registers torch.distributed's backend "lockstep".
from . import _spelling, _torch_check, _torch_optimizers, distributed  # noqa: F401
from ._core import CheckpointError, CommError, ConfigError, Error
from .accelerator import Accelerator
from .data_loader import skip_first_batches
from .state import PartialState
from .utils import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DDPCommunicationHookType,
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    DistributedType,
    FullyShardedDataParallelPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
    find_executable_batch_size,
    load_checkpoint_in_model,
    synchronize_rng_states,
)

_spelling.install()
_torch_optimizers.install()

if TYPE_CHECKING:
    from .big_modeling import (
        cpu_offload,
        cpu_offload_with_hook,
        disk_offload,
        dispatch_model,
        infer_auto_device_map,
        init_empty_weights,
        init_on_device,
        load_checkpoint_and_dispatch,
    )
    from .launchers import debug_launcher, notebook_launcher
    from .local_sgd import LocalSGD
    from .parallelism_config import ParallelismConfig

    __version__: str
    cmake_prefix_path: str | None

__all__ = [
    "Accelerator",
    "AutocastKwargs",
    "CheckpointError",
    "CommError",
    "ConfigError",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DeepSpeedPlugin",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "Error",
    "FullyShardedDataParallelPlugin",
    "GradScalerKwargs",
    "InitProcessGroupKwargs",
    "LocalSGD",
    "ParallelismConfig",
    "PartialState",
    "ProfileKwargs",
    "cmake_prefix_path",
    "cpu_offload",
    "cpu_offload_with_hook",
    "debug_launcher",
    "disk_offload",
    "dispatch_model",
    "find_executable_batch_size",
    "infer_auto_device_map",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint_and_dispatch",
    "load_checkpoint_in_model",
    "notebook_launcher",
    "skip_first_batches",
    "synchronize_rng_states",
]

# Names that most programs do not use, by their modules, which are imported at the first use: `import lockstep` is fast.
_IMPORTED_ON_USE = {
    "LocalSGD": "local_sgd",
    "ParallelismConfig": "parallelism_config",
    "cpu_offload": "big_modeling",
    "cpu_offload_with_hook": "big_modeling",
    "debug_launcher": "launchers",
    "disk_offload": "big_modeling",
    "dispatch_model": "big_modeling",
    "infer_auto_device_map": "big_modeling",
    "init_empty_weights": "big_modeling",
    "init_on_device": "big_modeling",
    "load_checkpoint_and_dispatch": "big_modeling",
    "notebook_launcher": "launchers",
}


def __getattr__(name: str) -> Any:
    if name in _IMPORTED_ON_USE:
        value: Any = getattr(_import_module(f".{_IMPORTED_ON_USE[name]}", __name__), name)
    elif name in _IMPORTED_ON_USE.values():
        return _import_module(f".{name}", __name__)
    elif name in ("__version__", "cmake_prefix_path"):
        value = getattr(_import_module("._installed", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_IMPORTED_ON_USE, "__version__", "cmake_prefix_path"})
