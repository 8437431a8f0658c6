# SPDX-License-Identifier: Apache-2.0
"""The random states from which a program's sampler draws the order of a pass."""
from __future__ import annotations

import random
from typing import Any

import numpy
import torch

from .samplers import restore_generator


class OrderStates:
    """Makes the sampler of a resumed pass draw the order that it had, from the states that were saved.

    It holds for samplers that draw their order when a pass begins. Python's, numpy's and torch's default generators and
    the sampler's own are covered.
    """

    def __init__(self) -> None:
        self._drawn: dict[str, Any] | None = None  # Those of the running pass.
        self._loaded: dict[str, Any] | None = None  # Those of a checkpoint.

    def begin(self, sampler: Any) -> None:
        """Runs before the sampler draws."""
        self._before = _states()
        if self._loaded is None:
            generator = getattr(sampler, "generator", None)
            self._drawn = self._before | {"generator": None if generator is None else generator.get_state()}
            return
        self._drawn, self._loaded = self._loaded, None
        self._resumes = True
        _set_states(self._drawn)
        restore_generator(sampler, self._drawn["generator"])

    _resumes = False

    def end(self) -> None:
        """Runs when the sampler has drawn. The program's generators of a resumed pass continue as they were."""
        if self._resumes:
            self._resumes = False
            _set_states(self._before)

    def saved(self) -> dict[str, Any]:
        states = self._loaded or self._drawn  # The first: loaded, and no pass has begun since.
        return {} if states is None else {"order": states}

    def load(self, state: dict[str, Any], within_pass: bool) -> None:
        self._loaded = state.get("order") if within_pass else None


def _states() -> dict[str, Any]:
    return {
        "default": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
    }


def _set_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["default"])
    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
