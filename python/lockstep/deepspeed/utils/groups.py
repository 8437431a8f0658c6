# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils.groups: sizes and ranks of parallel groups. Lockstep has one group: all ranks share the data."""

from __future__ import annotations

from typing import Any, NoReturn

from ..._core import ConfigError
from ...state import PartialState
from .. import comm

__all__ = [
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_group",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
    "get_sequence_parallel_group",
    "get_sequence_parallel_rank",
    "get_sequence_parallel_world_size",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_src_rank",
    "get_tensor_model_parallel_world_size",
    "initialize",
]


def initialize(ep_size: int = 1, mpu: Any = None) -> None:
    """Does nothing: layers of experts have their ep_size. Throws ConfigError for an mpu."""
    if mpu is not None:
        raise ConfigError(
            "[groups] Lockstep has no model parallelism of DeepSpeed's kind; got an mpu, expected None; shard the model with "
            "ZeRO stage 3"
        )


# --- all ranks
def get_data_parallel_group() -> comm.ProcessGroup:
    """Returns the group of all ranks. Throws ConfigError before the ranks are connected."""
    return comm.get_world_group()


def get_data_parallel_world_size() -> int:
    return get_data_parallel_group().size()


def get_data_parallel_rank() -> int:
    return get_data_parallel_group().rank()


# --- this rank alone
def get_model_parallel_world_size() -> int:
    return 1


def get_model_parallel_rank() -> int:
    return 0


def get_model_parallel_group() -> NoReturn:
    """Throws ConfigError: Lockstep has no model, tensor or sequence parallelism."""
    raise ConfigError(
        "[groups] Lockstep has no model, tensor or sequence parallelism; use get_data_parallel_group(), all ranks"
    )


def get_tensor_model_parallel_src_rank() -> int:
    return PartialState().process_index


get_tensor_model_parallel_world_size = get_sequence_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_rank = get_sequence_parallel_rank = get_model_parallel_rank
get_tensor_model_parallel_group = get_sequence_parallel_group = get_model_parallel_group
# DeepSpeed's own names, which programs use as well.
_get_data_parallel_group = get_data_parallel_group
_get_data_parallel_world_size = get_data_parallel_world_size
_get_data_parallel_rank = get_data_parallel_rank
_get_model_parallel_world_size = _get_sequence_parallel_world_size = get_model_parallel_world_size
_get_sequence_parallel_rank = get_model_parallel_rank
_get_sequence_parallel_group = get_model_parallel_group
