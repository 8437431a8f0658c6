# SPDX-License-Identifier: Apache-2.0
"""Memory: freeing it, and finding a batch size that fits."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import torch

from .._core import Error

__all__ = ["clear_device_cache", "find_executable_batch_size", "release_memory", "should_reduce_batch_size"]

# Parts of the messages of torch, cuDNN and Linux.
_OUT_OF_MEMORY = (
    "out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
    "can't allocate memory",
    "Cannot allocate memory",
)


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Returns the device's cached memory to its driver. `garbage_collection` collects Python's garbage first."""
    if garbage_collection:
        gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def release_memory(*objects: Any) -> list[None]:
    """Returns a None for each argument, to assign to the same variables, and frees cached memory.

    The objects are freed when the caller has assigned the result, unless it has other references.
    """
    count = len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return [None] * count


def should_reduce_batch_size(exception: Exception) -> bool:
    """Returns whether an exception says that memory was too small."""
    if isinstance(exception, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(exception, RuntimeError) and any(text in str(exception) for text in _OUT_OF_MEMORY)


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Callable[..., Any]:
    """Decorates a function whose first argument is a batch size: calls it with smaller ones while memory is too small.

    Each attempt has nine tenths of the batch size before, or the result of `reduce_batch_size_fn()`. The size that
    worked is the first of the next call. Throws RuntimeError at size 0, and TypeError if the caller passes a size.

    Every process decides for itself. In a job of several processes, all of them must run out of memory at the same
    batch size; otherwise the others wait for this one until the timeout.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    batch_size = starting_batch_size

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal batch_size
        _refuse_batch_size(function, args)
        clear_device_cache(garbage_collection=True)
        while batch_size > 0:
            try:
                return function(batch_size, *args, **kwargs)
            except Exception as error:
                if not should_reduce_batch_size(error):
                    raise
            # Outside of `except`, which keeps the failed attempt's tensors alive.
            clear_device_cache(garbage_collection=True)
            batch_size = int(batch_size * 0.9) if reduce_batch_size_fn is None else reduce_batch_size_fn()
        raise Error(f"[{function.__name__}] no executable batch size found, reached zero; the model needs more memory")

    return wrapper


def _refuse_batch_size(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in parameters) or len(parameters) >= len(args) + 1:
        return
    names = [one.name for one in parameters]
    rest = ", ".join(f"{name}={value!r}" for name, value in zip(names[1:], args[1:]))
    raise TypeError(
        f"{function.__name__} got {len(args)} arguments; find_executable_batch_size passes the first one, the batch "
        f"size; call {function.__name__}({rest})"
    )
