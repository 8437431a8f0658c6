# SPDX-License-Identifier: Apache-2.0
"""Environment variables that choose the device, the resume and the checks of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ._core import boolean_variable

_FALSE = ("0", "false", "no", "off", "n", "f", "")


def accelerate_variable_is_true(name: str) -> bool:
    """Returns whether a variable of Accelerate is true: all but 0, false, no, off, n, f and the empty text are."""
    return os.environ.get(name, "").lower() not in _FALSE


def variable_is_true(name: str) -> bool:
    """Returns whether LOCKSTEP_<name> is true, or if it is not set ACCELERATE_<name>.

    Throws ConfigError for a LOCKSTEP_<name> that is not a boolean, as C++ does.
    """
    own = boolean_variable(f"LOCKSTEP_{name}")
    return accelerate_variable_is_true(f"ACCELERATE_{name}") if own is None else own


def wants_cpu(cpu: bool | None) -> bool:
    """Returns whether training is limited to the CPU: by the argument, LOCKSTEP_USE_CPU, or else ACCELERATE_USE_CPU."""
    return bool(cpu) or variable_is_true("USE_CPU")


def resume_is_requested() -> bool:
    """Returns whether `lockstep launch --resume` has started this process."""
    return boolean_variable("LOCKSTEP_RESUME") or False


@contextmanager
def clear_environment() -> Iterator[None]:
    """Removes all variables for the duration of a block."""
    saved = os.environ.copy()
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """Sets variables for the duration of a block. Names are converted to upper case, values to text."""
    saved = {key.upper(): os.environ.get(key.upper()) for key in kwargs}
    os.environ.update({key.upper(): str(value) for key, value in kwargs.items()})
    try:
        yield
    finally:
        for key, value in saved.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def is_cuda_available() -> bool:
    """Returns whether there is a CUDA device. Does not initialize CUDA."""
    with patch_environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        return torch.cuda.is_available()
