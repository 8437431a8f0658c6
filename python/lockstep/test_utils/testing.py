# SPDX-License-Identifier: Apache-2.0
"""Checks for tests of programs of several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..state import PartialState
from ..utils.environment import get_current_device_type
from ..utils.operations import gather

__all__ = ["are_the_same_tensors", "assert_exception", "device_count", "memory_allocated_func", "torch_device"]

torch_device = get_current_device_type()[0]  # Without initializing CUDA: notebook_launcher forks.
device_count = max(1, torch.cuda.device_count())
memory_allocated_func: Callable[[], int] = torch.cuda.memory_allocated if torch_device == "cuda" else lambda: 0


def are_the_same_tensors(tensor: torch.Tensor) -> bool:
    """Returns whether all processes have equal values in a tensor of one shape. Collective."""
    mine = tensor.detach()[None].to(PartialState().device)
    everyone = gather(mine)
    return all(torch.equal(one, mine[0]) for one in everyone)


@contextmanager
def assert_exception(exception_class: type[BaseException], msg: str | None = None) -> Iterator[None]:
    """Throws AssertionError unless the block throws an exception of the class, whose message contains `msg`."""
    try:
        yield
    except Exception as error:
        assert isinstance(error, exception_class), f"expected {exception_class.__name__}; got {error!r}"
        assert msg is None or msg in str(error), f"expected {msg!r} in the message; got {str(error)!r}"
        return
    raise AssertionError(f"expected {exception_class.__name__}; nothing was thrown")
