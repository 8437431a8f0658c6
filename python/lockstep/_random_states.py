# SPDX-License-Identifier: Apache-2.0
"""The states of the program's random generators: read, checked, and set."""
from __future__ import annotations

import random
import sys
from typing import Any

import numpy
import torch

from ._saved_parts import Part

_NUMPY_WORDS = 624  # The words of MT19937's state.
_SEED_BYTES = 16  # The state of a generator on a GPU: seed and offset.


def random_states() -> dict[str, Any]:
    """Returns the states of Python's and numpy's generators. The C++ library saves torch's."""
    states: dict[str, Any] = {"python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(states["numpy"]))


def check_random_states(states: Part) -> None:
    """Throws CheckpointError unless random_states() may have returned the states."""
    _check_python_state(states.item("python"))
    if states.has("numpy"):
        _check_numpy_state(states.item("numpy"))


def check_loader_state(state: Part) -> None:
    """Throws CheckpointError unless a prepared loader may have saved the state."""
    if state.has("seed"):
        seed = state.item("seed")
        if not -(2**63) <= seed.expect(int, "a number of 64 bits") < 2**64:
            raise seed.error("a number of 64 bits")
    _check_generators(state)
    if state.has("order"):
        order = state.item("order")
        if order.value is None:
            return
        _check_torch_state(order.item("default"))
        _check_python_state(order.item("python"))
        _check_numpy_state(order.item("numpy"))
        order.item("generator")
        _check_generators(order)


def _check_generators(state: Part) -> None:
    for name in ("default", "generator", "next_generator"):
        if state.has(name) and state.item(name).value is not None:
            _check_torch_state(state.item(name))


def _check_python_state(state: Part) -> None:
    expected = "the result of random.getstate()"
    state.expect((tuple, list), expected)
    parts = list(state.items())
    if len(parts) != 3:
        raise state.error(expected)
    for number in parts[1].items():
        if not 0 <= number.expect(int, "a number of 32 bits") < 2**32:
            raise number.error("a number of 32 bits")
    if not isinstance(parts[2].value, (float, type(None))):
        raise parts[2].error("None or a number")
    try:
        random.Random().setstate((parts[0].value, tuple(parts[1].value), parts[2].value))
    except (TypeError, ValueError, OverflowError) as error:
        raise state.error(f"{expected} ({error})") from error


def _check_numpy_state(state: Part) -> None:
    expected = "the result of numpy.random.get_state()"
    state.expect((tuple, list), expected)
    parts = list(state.items())
    if len(parts) != 5:
        raise state.error(expected)
    words = parts[1].expect(numpy.ndarray, "an array")
    if words.shape != (_NUMPY_WORDS,) or words.dtype != numpy.uint32:
        raise parts[1].error(f"an array of {_NUMPY_WORDS} numbers of 32 bits", f"one of {words.shape} {words.dtype}")
    # numpy does not check the position, at which it then reads memory.
    if not 0 <= parts[2].expect(int, "a position") <= _NUMPY_WORDS:
        raise parts[2].error(f"a position from 0 to {_NUMPY_WORDS}")
    if parts[3].expect(int, "0 or 1") not in (0, 1):
        raise parts[3].error("0 or 1")
    parts[4].expect((float, int), "a number")
    try:
        numpy.random.RandomState().set_state(tuple(state.value))
    except (TypeError, ValueError, OverflowError) as error:
        raise state.error(f"{expected} ({error})") from error


def _check_torch_state(state: Part) -> None:
    expected = "the result of torch.Generator.get_state()"
    value = state.expect(torch.Tensor, expected)
    if value.dtype != torch.uint8 or value.dim() != 1:
        raise state.error(expected)
    if value.numel() == _SEED_BYTES:
        return
    try:
        torch.Generator().set_state(value)
    except (TypeError, RuntimeError) as error:
        raise state.error(f"{expected} on a CPU") from error
