# SPDX-License-Identifier: Apache-2.0
"""Random numbers: seeds, and the same state on all processes."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy
import torch

from .. import _core
from .._core import ConfigError
from .._seeds import remember_seed
from ..state import AcceleratorState, PartialState
from .dataclasses import RNGType

__all__ = ["set_seed", "synchronize_rng_state", "synchronize_rng_states"]


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seeds Python's, numpy's and torch's default generators, the latter on all devices.

    `device_specific` adds the rank to the seed. `deterministic` makes torch select deterministic algorithms, which can
    be slower.
    """
    of_all = seed
    if device_specific:
        seed += AcceleratorState().process_index
    random.seed(seed)
    numpy.random.seed(seed)
    remember_seed(of_all, seed)
    torch.manual_seed(seed)  # Also seeds CUDA, when it is initialized.
    if deterministic:
        torch.use_deterministic_algorithms(True)


def synchronize_rng_state(rng_type: RNGType | str | None = None, generator: torch.Generator | None = None) -> None:
    """Copies process 0's state of one random generator to all processes. Collective.

    `rng_type` is "torch", "cuda" or "generator"; for the latter pass the generator. Throws ConfigError for another
    type.
    """
    name = str(rng_type)
    if name not in ("torch", "cuda", "generator"):
        raise ConfigError(f"[synchronize_rng_state] rng_type is {name!r}; expected torch, cuda or generator")
    if name == "generator" and generator is None:
        raise ConfigError("[synchronize_rng_state] rng_type 'generator' needs a generator; pass generator=")
    state = PartialState()
    if state.num_processes == 1:
        return
    if name == "generator" and generator is not None:
        received = state.group.broadcast(generator.get_state().clone(), 0)
        generator.set_state(received)
    else:
        _core.synchronize_rng_states(state.group, [name])


def synchronize_rng_states(rng_types: Iterable[RNGType | str], generator: torch.Generator | None = None) -> None:
    """Copies process 0's state of several random generators to all processes. Collective."""
    for rng_type in rng_types:
        synchronize_rng_state(rng_type, generator=generator)
