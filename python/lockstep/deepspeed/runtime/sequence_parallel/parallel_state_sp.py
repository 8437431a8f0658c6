# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.sequence_parallel.parallel_state_sp: the group of the ranks that divide a sequence."""

from __future__ import annotations

from typing import Any

from ...._core import ConfigError
from ... import comm

__all__ = [
    "get_model_parallel_group",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
    "get_sequence_data_parallel_group",
    "get_sequence_data_parallel_rank",
    "get_sequence_data_parallel_world_size",
    "get_sequence_parallel_group",
    "get_sequence_parallel_rank",
    "get_sequence_parallel_world_size",
    "initialize_sequence_parallel",
]

_group: Any = None


def initialize_sequence_parallel(sequence_parallel_size: int) -> None:
    """Makes the groups of ranks with consecutive numbers, which divide sequences. Collective, once."""
    global _group
    world = comm.get_world_size()
    if _group is not None:
        raise ConfigError("[parallel_state_sp] the group exists already; call initialize_sequence_parallel once")
    if sequence_parallel_size < 2 or world % sequence_parallel_size != 0:
        raise ConfigError(
            f"[parallel_state_sp] sequence_parallel_size is {sequence_parallel_size}; expected at least 2, and a divisor of "
            f"the number of ranks, {world}"
        )
    for first in range(0, world, sequence_parallel_size):
        ranks = range(first, first + sequence_parallel_size)
        group = comm.new_group(ranks)
        if comm.get_rank() in ranks:
            _group = group


def get_sequence_parallel_group() -> Any:
    if _group is None:
        raise ConfigError("[parallel_state_sp] there is no group; call initialize_sequence_parallel before")
    return _group


def get_sequence_parallel_world_size() -> int:
    return get_sequence_parallel_group().size()


def get_sequence_parallel_rank() -> int:
    return get_sequence_parallel_group().rank()


def get_sequence_data_parallel_group() -> Any:
    """Returns all ranks: those over which gradients are averaged."""
    return comm.get_world_group()


def get_sequence_data_parallel_world_size() -> int:
    return comm.get_world_size()


def get_sequence_data_parallel_rank() -> int:
    return comm.get_rank()


get_model_parallel_group = get_sequence_parallel_group
get_model_parallel_rank = get_sequence_parallel_rank
get_model_parallel_world_size = get_sequence_parallel_world_size
