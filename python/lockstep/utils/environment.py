# SPDX-License-Identifier: Apache-2.0
"""Environment variables, and the processes and devices that they describe."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import torch

from .._core import ConfigError
from .._environment import clear_environment, is_cuda_available, patch_environment

__all__ = [
    "CPUInformation",
    "are_libraries_initialized",
    "check_cuda_fp8_capability",
    "check_cuda_p2p_ib_support",
    "clear_environment",
    "convert_dict_to_env_variables",
    "get_cpu_distributed_information",
    "get_current_device_type",
    "get_gpu_info",
    "get_int_from_env",
    "parse_choice_from_env",
    "parse_flag_from_env",
    "patch_environment",
    "purge_accelerate_environment",
    "set_numa_affinity",
    "str_to_bool",
]

logger = logging.getLogger(__name__)

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """Returns 1 for y, yes, t, true, on and 1; 0 for n, no, f, false, off and 0; a bool if `to_bool`.

    Throws ValueError for another text.
    """
    text = value.lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"invalid truth value {value!r}; expected one of {', '.join(_TRUE + _FALSE)}")
    return text in _TRUE if to_bool else int(text in _TRUE)


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Returns the bool that a variable has, or `default`. Throws ValueError for a text that is not a bool."""
    value = os.environ.get(key)
    if value is None:
        return default
    try:
        return bool(str_to_bool(value))
    except ValueError as error:
        raise ValueError(f"variable {key}: {error}") from None


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """Returns the text of a variable, or `default`."""
    return os.environ.get(key, str(default))


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """Returns the first variable of `env_keys` that has an integer >= 0, or `default`."""
    for key in env_keys:
        value = int(os.environ.get(key, -1))
        if value >= 0:
            return value
    return default


def convert_dict_to_env_variables(current_env: dict[str, str]) -> list[str]:
    """Returns lines "NAME=value\\n". Omits items that are empty or have one of ; < > space newline, with a warning."""
    lines = []
    for key, value in current_env.items():
        if key and value and not any(char in key + value for char in ";\n<> "):
            lines.append(f"{key}={value}\n")
        else:
            logger.warning(
                "variable %s=%s is omitted; expected a name and a value without ; < > space newline", key, value
            )
    return lines


def purge_accelerate_environment(func_or_cls: Any) -> Any:
    """Decorates a function, or the test methods of a class: changes of ACCELERATE_ variables end with the call."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        if getattr(function, "_accelerate_is_purged_environment_wrapped", False):
            return function

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            saved = {key: value for key, value in os.environ.items() if key.startswith("ACCELERATE_")}
            try:
                return function(*args, **kwargs)
            finally:
                for key in [key for key in os.environ if key.startswith("ACCELERATE_")]:
                    del os.environ[key]
                os.environ.update(saved)

        # A function's own attribute.
        wrapper._accelerate_is_purged_environment_wrapped = True  # type: ignore[attr-defined]
        return wrapper

    def wrap_methods(cls: type) -> type:
        for name in dir(cls):
            if name.startswith("test") and callable(getattr(cls, name)):
                setattr(cls, name, wrap(getattr(cls, name)))
        return cls

    if not isinstance(func_or_cls, type):
        return wrap(func_or_cls)
    inherited = func_or_cls.__dict__.get("__init_subclass__")

    def init_subclass(cls: type, **kwargs: Any) -> None:
        if inherited is not None:
            inherited.__func__(cls, **kwargs)
        wrap_methods(cls)

    wrap_methods(func_or_cls)
    func_or_cls.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment, method-assign]
    return func_or_cls


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Returns those of `library_names` that the program has imported."""
    return [name for name in library_names if name in sys.modules]


def get_current_device_type() -> tuple[str, str]:
    """Returns ("cuda", "MULTI_GPU") if torch finds a GPU, else ("cpu", "MULTI_CPU"). Does not initialize CUDA."""
    return ("cuda", "MULTI_GPU") if is_cuda_available() else ("cpu", "MULTI_CPU")


def _query_gpus(field: str) -> list[str]:
    output = subprocess.check_output(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"], text=True)
    return [line.strip() for line in output.strip().splitlines()]


def get_gpu_info() -> tuple[list[str], int]:
    """Returns the names and number of the GPUs that nvidia-smi lists. Does not initialize CUDA."""
    names = _query_gpus("name")
    return names, len(names)


def check_cuda_p2p_ib_support() -> bool:
    """Returns false if the GPUs lack peer-to-peer access: several RTX 40 with a driver before 550.40.07."""
    try:
        names, count = get_gpu_info()
        driver = tuple(int(part) for part in _query_gpus("driver_version")[0].split("."))
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return True  # No GPU, or none of NVIDIA.
    return count < 2 or not any("RTX 40" in name for name in names) or driver >= (550, 40, 7)


@lru_cache
def check_cuda_fp8_capability() -> bool:
    """Returns whether the first GPU computes in fp8 (compute capability 8.9). Initializes CUDA. False without CUDA."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


@dataclass
class CPUInformation:
    """The place of this process in its job, as its launcher's variables describe it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """Returns the rank and world size of torchrun's, MPI's, MVAPICH's or PMI's variables."""
    launchers = ("OMPI_COMM_WORLD_", "MV2_COMM_WORLD_")
    return CPUInformation(
        rank=get_int_from_env(["RANK", "PMI_RANK", *(name + "RANK" for name in launchers)], 0),
        world_size=get_int_from_env(["WORLD_SIZE", "PMI_SIZE", *(name + "SIZE" for name in launchers)], 1),
        local_rank=get_int_from_env(["LOCAL_RANK", "MPI_LOCALRANKID", *(name + "LOCAL_RANK" for name in launchers)], 0),
        local_world_size=get_int_from_env(
            ["LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", *(name + "LOCAL_SIZE" for name in launchers)], 1
        ),
    )


def set_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Throws ConfigError: the launcher binds processes to cores before they start."""
    del local_process_index, verbose
    raise ConfigError(
        "[set_numa_affinity] a running process cannot change the cores of its existing threads; start the job with "
        "`lockstep launch --cpu-bind numa`, which binds each process to one memory node"
    )
