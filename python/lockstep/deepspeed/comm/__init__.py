# SPDX-License-Identifier: Apache-2.0
"""deepspeed.comm: torch.distributed's calls over the connection of the job.

Operations have finished when they return. With `async_op=True` they return a handle whose `wait()` does nothing.
Every rank of a group must make the same calls in the same order. Arguments `prof`, `log_name` and `debug` of DeepSpeed
do not exist: the C++ library logs collectives (comms_logger, log_summary).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Any

import torch

from ... import _core
from ..._codec import decode, encode
from ...state import PartialState
from .._logging import logger
from .._registry import live_engines

__all__ = [
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "get_all_ranks_from_group",
    "get_global_rank",
    "get_local_rank",
    "get_rank",
    "get_world_group",
    "get_world_size",
    "inference_all_reduce",
    "init_distributed",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "log_summary",
    "monitored_barrier",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]


class ReduceOp(Enum):
    """Operations of reductions."""

    SUM = "SUM"
    PRODUCT = "PRODUCT"
    MIN = "MIN"
    MAX = "MAX"
    AVG = "AVG"


class Work:
    """The handle of a finished operation."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class ProcessGroup:
    """Some ranks of the job, in order. `new_group` creates it."""

    def __init__(self, core: Any, ranks: list[int]) -> None:
        self.core = core
        self.ranks = ranks

    def rank(self) -> int:
        return self.core.rank

    def size(self) -> int:
        return self.core.size


def _group(group: Any) -> Any:
    if group is None:
        if not is_initialized():
            raise _core.ConfigError("[comm] the ranks are not connected; call deepspeed.init_distributed() first")
        return PartialState().group
    if not isinstance(group, ProcessGroup):
        raise _core.ConfigError(
            f"[comm] group is a {type(group).__name__}; expected the result of deepspeed.comm.new_group()"
        )
    return group.core


def _operation(op: Any) -> Any:
    name = getattr(op, "name", None) or str(op).rsplit(".", 1)[-1]
    if name not in ReduceOp.__members__:
        raise _core.ConfigError(f"[comm] unknown operation {op}; expected one of {', '.join(ReduceOp.__members__)}")
    return getattr(_core.ReduceOp, name)


def _own_rank(rank: int, group: Any) -> int:
    """Returns a rank's place in a group; ranks in calls are those of the job."""
    if group is None:
        return rank
    if rank not in group.ranks:
        raise _core.ConfigError(f"[comm] rank {rank} is not in the group; expected one of {group.ranks}")
    return group.ranks.index(rank)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _store(tensor: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(values.reshape(tensor.shape))


def _values_of_ranks(core: _core.Group, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements of each rank's tensor, [ranks, elements]. Collective."""
    return core.all_gather(_plain(tensor).reshape(-1)).reshape(core.size, -1)


def _finished(async_op: bool) -> Work | None:
    return Work() if async_op else None


# --- the connection
def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Connects the ranks, once. Ranks come from the variables of the launcher: lockstep, torchrun, MPI or SLURM.

    `timeout` is that of an operation. `distributed_port` is used if the launcher names no port. `init_method` is
    "env://" or "tcp://host:port". `rank` and `world_size` must be the launcher's, if it sets them.
    `dist_init_required=False` says that the program has connected the ranks, by torch.distributed or an earlier call.
    """
    if config is not None:
        raise _core.ConfigError(
            "[init_distributed] config is not supported; pass it to initialize(), whose comms_logger section counts"
        )
    if is_initialized():
        return
    if dist_init_required is False and not _program_has_connected():
        raise _core.ConfigError(
            "[init_distributed] dist_init_required is False, but neither torch.distributed nor Lockstep has connected "
            "the ranks; pass None or True"
        )
    if init_method not in (None, "env://"):
        if not init_method.startswith("tcp://") or ":" not in init_method[6:]:
            raise _core.ConfigError(
                f"[init_distributed] init_method is {init_method!r}; expected 'env://' or 'tcp://host:port'"
            )
        host, port = init_method[6:].rsplit(":", 1)
        _set_variable("MASTER_ADDR", host)
        _set_variable("MASTER_PORT", port)
    if rank >= 0:
        _set_variable("RANK", str(rank))
    if world_size >= 0:
        _set_variable("WORLD_SIZE", str(world_size))
    if not auto_mpi_discovery and "RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" in os.environ:
        raise _core.ConfigError(
            "[init_distributed] auto_mpi_discovery is False, and only MPI's variables are set; expected RANK and "
            "WORLD_SIZE; remove auto_mpi_discovery=False"
        )
    if os.environ.get("WORLD_SIZE", "1") != "1" or "OMPI_COMM_WORLD_SIZE" in os.environ:
        os.environ.setdefault("MASTER_PORT", str(distributed_port))
    backend = {"ccl": "gloo", "mpi": None, "shm": None}.get(str(dist_backend), dist_backend)
    options: dict[str, Any] = {"backend": backend} | ({} if timeout is None else {"timeout": timeout})
    state = PartialState(**options)
    if verbose and state.is_main_process:
        logger.info("connected %s ranks", state.num_processes)


def _program_has_connected() -> bool:
    """Returns whether the program has connected the ranks by torch.distributed. Lockstep's connections are its own."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _set_variable(name: str, value: str) -> None:
    if os.environ.get(name, value) != value:
        raise _core.ConfigError(
            f"[init_distributed] the launcher has set {name}={os.environ[name]}, and the program passes {value}; leave "
            "it to the launcher"
        )
    os.environ[name] = value


def is_initialized() -> bool:
    """Returns whether the ranks are connected."""
    return PartialState._shared_state != {}


def is_available() -> bool:
    return True


def destroy_process_group(group: Any = None) -> None:
    """Disconnects this rank. A group of new_group() is freed with its last user."""
    if group is None and is_initialized():
        PartialState().destroy_process_group()
        PartialState._reset_state()


def new_group(ranks: Sequence[int]) -> ProcessGroup | None:
    """Returns a group of some ranks, in the given order; None on the others. Collective: all ranks call it."""
    state = PartialState()
    chosen = list(ranks)
    inside = state.process_index in chosen
    place = chosen.index(state.process_index) if inside else state.process_index
    core = state.group.split(0 if inside else 1, place)
    return ProcessGroup(core, chosen) if inside else None


def get_world_group() -> ProcessGroup:
    return ProcessGroup(_group(None), list(range(get_world_size())))


def get_world_size(group: ProcessGroup | None = None) -> int:
    return _group(group).size


def get_rank(group: ProcessGroup | None = None) -> int:
    return _group(group).rank


def get_local_rank() -> int:
    return PartialState().local_process_index


def get_global_rank(group: ProcessGroup | None = None, group_rank: int = 0) -> int:
    return group_rank if group is None else group.ranks[group_rank]


def get_all_ranks_from_group(group: ProcessGroup | None = None) -> list[int]:
    """Returns the ranks of a group, by default of all."""
    return list(range(get_world_size())) if group is None else list(group.ranks)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Blocks until all ranks of the group have called it."""
    _group(group).barrier()
    return _finished(async_op)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """Does the same. A rank that is missing after the connection's timeout is named in the error."""
    if timeout is not None:
        raise _core.ConfigError("[monitored_barrier] timeout is not supported; pass it to init_distributed()")
    _group(group).barrier()


# --- tensors
def all_reduce(tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Replaces a tensor by the reduction of all ranks' tensors."""
    _store(tensor, _group(group).all_reduce(_plain(tensor), _operation(op)))
    return _finished(async_op)


inference_all_reduce = all_reduce  # DeepSpeed's is the same sum by a kernel for inference.


def all_reduce_coalesced(
    tensors: Sequence[torch.Tensor], op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Does the same with several tensors, one after the other."""
    for tensor in tensors:
        all_reduce(tensor, op, group)
    return _finished(async_op)


def reduce(
    tensor: torch.Tensor, dst: int, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Does the same on rank `dst` only."""
    own = _group(group)
    values = own.all_reduce(_plain(tensor), _operation(op))
    if own.rank == _own_rank(dst, group):
        _store(tensor, values)
    return _finished(async_op)


def broadcast(tensor: torch.Tensor, src: int = 0, group: Any = None, async_op: bool = False) -> Work | None:
    """Replaces a tensor by that of rank `src`."""
    _store(tensor, _group(group).broadcast(_plain(tensor), _own_rank(src, group)))
    return _finished(async_op)


def all_gather_into_tensor(
    output_tensor: torch.Tensor, tensor: torch.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Writes all ranks' tensors one after the other to `output_tensor`."""
    _store(output_tensor, _group(group).all_gather(_plain(tensor).reshape(-1)))
    return _finished(async_op)


allgather_fn = all_gather_into_tensor


def all_gather(
    tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Writes all ranks' tensors, which have one shape, to `tensor_list`."""
    for target, value in zip(tensor_list, _values_of_ranks(_group(group), tensor), strict=True):
        _store(target, value)
    return _finished(async_op)


def reduce_scatter_tensor(
    output_tensor: torch.Tensor,
    tensor: torch.Tensor,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Writes this rank's equal part of the reduction of all ranks' `tensor` to `output_tensor`."""
    _store(output_tensor, _group(group).reduce_scatter(_plain(tensor).reshape(-1), _operation(op)))
    return _finished(async_op)


reduce_scatter_fn = reduce_scatter_tensor


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Does the same for parts that are tensors of one shape."""
    return reduce_scatter_tensor(output, torch.stack([part.detach() for part in input_list]), op, group, async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Sends the i-th equal part of `input` to rank i, and writes what the ranks send to `output`."""
    if output_split_sizes is not None or input_split_sizes is not None:
        raise _core.ConfigError("[all_to_all_single] parts of different sizes are not supported; pad them to one size")
    _store(output, _group(group).all_to_all(_plain(input).reshape(-1)))
    return _finished(async_op)


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int = 0,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Writes all ranks' tensors to `gather_list` on rank `dst`."""
    own = _group(group)
    values = _values_of_ranks(own, tensor)
    if own.rank == _own_rank(dst, group):
        for target, value in zip(gather_list or [], values, strict=True):
            _store(target, value)
    return _finished(async_op)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int = 0,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Writes the i-th tensor of rank `src`'s list to `tensor` on rank i."""
    own, root = _group(group), _own_rank(src, group)
    if own.rank == root:
        parts = torch.stack([part.detach() for part in scatter_list or []])
    else:
        parts = torch.empty((own.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    _store(tensor, own.broadcast(parts, root)[own.rank])
    return _finished(async_op)


def send(tensor: torch.Tensor, dst: int, group: Any = None, tag: int = 0) -> None:
    """Sends a tensor to one rank, which calls recv."""
    _refuse_tag(tag)
    _group(group).send(_plain(tensor), _own_rank(dst, group))


def recv(tensor: torch.Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> int:
    """Replaces a tensor by the one that rank `src` sends. Returns `src`."""
    _refuse_tag(tag)
    if src is None:
        raise _core.ConfigError("[recv] src is missing; Lockstep receives from a named rank only")
    _store(tensor, _group(group).recv(_plain(tensor), _own_rank(src, group)))
    return src


def isend(tensor: torch.Tensor, dst: int, group: Any = None, tag: int = 0) -> Work:
    send(tensor, dst, group, tag)
    return Work()


def irecv(tensor: torch.Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> Work:
    recv(tensor, src, group, tag)
    return Work()


def _refuse_tag(tag: int) -> None:
    if tag != 0:
        raise _core.ConfigError("[comm] tags are not supported: messages between two ranks arrive in order; pass tag=0")


# --- objects
def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Writes all ranks' objects to `object_list`. Types are those that a checkpoint can hold."""
    texts = _core.all_gather_bytes(_group(group), encode(obj, "all_gather_object"))
    object_list[:] = [decode(text, "all_gather_object") for text in texts]


def broadcast_object_list(object_list: list[Any], src: int = 0, group: Any = None, device: Any = None) -> None:
    """Replaces a list of objects by that of rank `src`."""
    own, root = _group(group), _own_rank(src, group)
    mine = encode(object_list, "broadcast_object_list") if own.rank == root else b""
    received = decode(_core.broadcast_bytes(own, mine, root), "broadcast_object_list")
    object_list[:] = [_moved(item, device) for item in received]


def _moved(item: Any, device: Any) -> Any:
    return item.to(device) if device is not None and isinstance(item, torch.Tensor) else item


def log_summary(show_straggler: bool = False) -> None:
    """Logs a table of the collectives of the engine, whose file has comms_logger.enabled."""
    for engine in live_engines():
        engine.log_summary(show_straggler)
