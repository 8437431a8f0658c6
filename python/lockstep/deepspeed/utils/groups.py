# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils.groups: sizes, ranks and groups of the mesh of an Accelerator's ParallelismConfig.

Without one, and without a pipeline, all ranks have samples of their own. parallel_state_sp has the ranks that divide an
engine's sequences.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..._core import ConfigError
from ...state import AcceleratorState, PartialState
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
            "[groups] got an mpu, expected None: groups are those of a ParallelismConfig, or of parallel_state_sp; pass the "
            "mpu to initialize()"
        )


# --- ranks with samples of their own
def get_data_parallel_group() -> comm.ProcessGroup:
    """Returns the ranks with other samples and the same part of the model. Collective in the first call.

    Throws ConfigError before the ranks are connected.
    """
    world = comm.get_world_group()
    config = _config()
    if config is None and PartialState().shares_batches:
        raise ConfigError(
            "[groups] the ranks are stages of a pipeline, whose data parallel ranks have no group of torch.distributed; "
            "get_data_parallel_rank() and get_data_parallel_world_size() have their numbers"
        )
    if config is None or config.non_data_parallel_size == 1:
        return world
    if config.data_parallel_size == 1:
        config._alone = getattr(config, "_alone", None) or dist.new_subgroups(1)[0]
        return config._alone
    names = config.dp_dim_names
    return _mesh(config)[names[0] if len(names) == 1 else "dp"].get_group()


def get_data_parallel_world_size() -> int:
    comm.get_world_group()  # Throws ConfigError before the ranks are connected.
    return PartialState().data_group.size


def get_data_parallel_rank() -> int:
    comm.get_world_group()
    return PartialState().data_group.rank


# --- ranks that divide layers
def get_tensor_model_parallel_world_size() -> int:
    return _size("tp")


def get_tensor_model_parallel_rank() -> int:
    return _rank("tp")


def get_tensor_model_parallel_group() -> Any:
    """Returns the ranks that divide layers. Collective in the first call. Throws ConfigError without such."""
    return _group("tp")


def get_tensor_model_parallel_src_rank() -> int:
    """Returns the first rank of this rank's group."""
    return PartialState().process_index - _rank("tp")


get_model_parallel_world_size = get_tensor_model_parallel_world_size
get_model_parallel_rank = get_tensor_model_parallel_rank
get_model_parallel_group = get_tensor_model_parallel_group


# --- ranks that divide sequences
def get_sequence_parallel_world_size() -> int:
    return _size("sp")


def get_sequence_parallel_rank() -> int:
    return _rank("sp")


def get_sequence_parallel_group() -> Any:
    """Returns the ranks that divide a sequence. Collective in the first call. Throws ConfigError without such."""
    return _group("sp")


def _config() -> Any:
    """Returns the ParallelismConfig of the program's Accelerator, or of an engine that divides layers; else None."""
    config = AcceleratorState._shared_state.get("parallelism_config")
    return PartialState._shared_state.get("_engine_mesh") if config is None else config


def _mesh(config: Any) -> Any:
    comm.get_world_group()  # An error before the ranks are connected.
    return config.get_device_mesh(PartialState().device.type)


def _size(name: str) -> int:
    config = _config()
    return 1 if config is None else getattr(config, f"{name}_size")


def _rank(name: str) -> int:
    size = _size(name)
    if size == 1:
        return 0
    inner = _size("tp") if name != "tp" else 1  # Ranks of a tp line have consecutive numbers.
    return PartialState().process_index // inner % size


def _group(name: str) -> Any:
    if _size(name) == 1:
        raise ConfigError(
            f"[groups] {name}_size is 1, so no ranks divide {_DIVIDED[name]}; pass ParallelismConfig({name}_size=...) to an "
            "Accelerator, or use get_data_parallel_group()"
        )
    return _mesh(_config())[name].get_group()


_DIVIDED = {"tp": "layers", "sp": "sequences"}
# DeepSpeed's own names, which programs use as well.
_get_data_parallel_group = get_data_parallel_group
_get_data_parallel_world_size = get_data_parallel_world_size
_get_data_parallel_rank = get_data_parallel_rank
_get_model_parallel_world_size = get_model_parallel_world_size
_get_sequence_parallel_world_size = get_sequence_parallel_world_size
_get_sequence_parallel_rank = get_sequence_parallel_rank
_get_sequence_parallel_group = get_sequence_parallel_group
