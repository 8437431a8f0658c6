# SPDX-License-Identifier: Apache-2.0
"""Lockstep: distributed training with the calls of Hugging Face Accelerate, on a C++ core.

A script for Accelerate runs when `accelerate` becomes `lockstep` in its imports; docs/python.md lists differences.
`cmake_prefix_path` is the value of CMAKE_PREFIX_PATH with which CMake's find_package(lockstep) finds the C++ library.
"""
from importlib import metadata as _metadata
from pathlib import Path as _Path

import torch as _torch  # noqa: F401  # Loads libtorch_python before _core.

from . import _torch_check  # noqa: F401  # Refuses another torch.
from ._core import CheckpointError, CommError, ConfigError, Error
from .accelerator import Accelerator
from .big_modeling import init_empty_weights, init_on_device
from .data_loader import skip_first_batches
from .launchers import debug_launcher, notebook_launcher
from .local_sgd import LocalSGD
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
    "PartialState",
    "ProfileKwargs",
    "cmake_prefix_path",
    "debug_launcher",
    "find_executable_batch_size",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint_in_model",
    "notebook_launcher",
    "skip_first_batches",
    "synchronize_rng_states",
]

try:
    _installed = _metadata.distribution("lockstep-train")
    __version__ = _installed.version
    # The folder of lib/cmake/lockstep; pip may install it elsewhere than in sys.prefix, with --user for example.
    cmake_prefix_path = next(
        (
            str(_Path(file.locate()).resolve().parents[3])
            for file in _installed.files or ()
            if file.name == "lockstepConfig.cmake"
        ),
        None,
    )
except _metadata.PackageNotFoundError:  # In a build folder of the source tree.
    from ._core import __version__ as __version__

    cmake_prefix_path = None
