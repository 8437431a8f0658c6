# SPDX-License-Identifier: Apache-2.0
"""The seed of the program, which set_seed() or torch.manual_seed() sets."""
from __future__ import annotations

import torch

_given: tuple[int, int] | None = None  # The seed of the last set_seed() without the rank, and with it.


def remember_seed(of_all: int, own: int) -> None:
    """Notes that set_seed() has set the seed `own`, of which `of_all` is equal on all processes."""
    global _given
    _given = (of_all, own)


def program_seed() -> int:
    """Returns the seed of torch's default generator, without the rank that set_seed(device_specific=True) adds."""
    seed = torch.initial_seed()
    return _given[0] if _given is not None and _given[1] == seed else seed
