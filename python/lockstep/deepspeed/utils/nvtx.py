# SPDX-License-Identifier: Apache-2.0
"""Ranges of NVIDIA's profiler around functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..accelerator import get_accelerator

__all__ = ["instrument_w_nvtx"]


def instrument_w_nvtx(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function in a range of its name, which the profiler shows. Without a GPU it only calls."""

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        get_accelerator().range_push(func.__qualname__)
        try:
            return func(*args, **kwargs)
        finally:
            get_accelerator().range_pop()

    return wrapped
