# SPDX-License-Identifier: Apache-2.0
"""Functions for the C++ library that do not keep their object alive.

Python's garbage collector does not see the library's references. An object that owns one of the library's, and to which
that one referred, would never be freed.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weak_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls a method of an object. The object must be alive at each call."""
    reference, name = weakref.WeakMethod(method), method.__qualname__

    def call(*args: Any) -> Any:
        alive = reference()
        if alive is None:
            raise ReferenceError(f"{name} was called after its object had been freed")
        return alive(*args)

    return call
