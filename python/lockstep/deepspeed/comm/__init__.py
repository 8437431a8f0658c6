# SPDX-License-Identifier: Apache-2.0
"""deepspeed.comm: torch.distributed's calls over the connection of the job.

If the program has initialised torch.distributed itself, the calls use its connection, as in DeepSpeed. Arguments `prof`,
`log_name` and `debug` of DeepSpeed do not exist: the C++ library logs collectives (comms_logger, log_summary).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ... import _core
from ...state import PartialState
from .._logging import logger
from .._registry import live_engines

__all__ = [
    "ProcessGroup",
    "ReduceOp",
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


ReduceOp = dist.ReduceOp
ProcessGroup = dist.ProcessGroup


def _check_connected() -> None:
    if not is_initialized():
        raise _core.ConfigError("[comm] the ranks are not connected; call deepspeed.init_distributed() first")


def _checked(function: Callable[..., Any], **renamed: str) -> Callable[..., Any]:
    """Returns a call of torch.distributed that first checks the connection and its `group`.

    `renamed`: DeepSpeed's names of arguments, and torch's.
    """
    names = list(inspect.signature(function).parameters)
    place = names.index("group")

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        _check_connected()
        for name, torchs in renamed.items():
            if name in options:
                options[torchs] = options.pop(name)
        group = arguments[place] if len(arguments) > place else options.get("group")
        if not isinstance(group, dist.ProcessGroup | type(None) | type(dist.GroupMember.NON_GROUP_MEMBER)):
            raise _core.ConfigError(
                f"[{function.__name__}] group is a {type(group).__name__}; expected the result of "
                "deepspeed.comm.new_group()"
            )
        return function(*arguments, **options)

    return call


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
    if dist_init_required is False and not dist.is_initialized() and not PartialState._shared_state:
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
    state.provide_torch_distributed()
    if verbose and state.is_main_process:
        logger.info("connected %s ranks", state.num_processes)


def _set_variable(name: str, value: str) -> None:
    if os.environ.get(name, value) != value:
        raise _core.ConfigError(
            f"[init_distributed] the launcher has set {name}={os.environ[name]}, and the program passes {value}; leave "
            "it to the launcher"
        )
    os.environ[name] = value


def is_initialized() -> bool:
    """Returns whether the ranks are connected."""
    return PartialState._shared_state != {} and dist.is_initialized()


def is_available() -> bool:
    return True


def destroy_process_group(group: Any = None) -> None:
    """Disconnects this rank, or drops a group of new_group()."""
    if dist.is_initialized():
        dist.destroy_process_group(group)
    if group is None and PartialState._shared_state:
        PartialState._reset_state()


def new_group(ranks: Sequence[int]) -> Any:
    """Returns a group of some ranks, in increasing order. Other ranks get GroupMember.NON_GROUP_MEMBER, as in torch.

    Collective: all ranks call it.
    """
    _check_connected()
    return dist.new_group(list(ranks))


def get_world_group() -> Any:
    _check_connected()
    return dist.group.WORLD


get_world_size = _checked(dist.get_world_size)
get_rank = _checked(dist.get_rank)


def get_local_rank() -> int:
    """Returns this rank's place among those of its host."""
    _check_connected()
    return PartialState().local_process_index


def get_global_rank(group: Any = None, group_rank: int = 0) -> int:
    """Returns the job's rank of a member of a group."""
    _check_connected()
    return group_rank if group is None else dist.get_global_rank(group, group_rank)


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    """Returns the ranks of a group, by default of all."""
    _check_connected()
    return list(dist.get_process_group_ranks(group))


barrier = _checked(dist.barrier)


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """Blocks until all ranks of the group have called it. The error names those that are missing after `timeout`."""
    _check_connected()
    dist.monitored_barrier(group, timeout, wait_all_ranks)  # Of the present: the backend "lockstep" extends it.



# --- tensors
all_reduce = _checked(dist.all_reduce)
inference_all_reduce = all_reduce  # DeepSpeed's is the same sum by a kernel for inference.
reduce = _checked(dist.reduce)
broadcast = _checked(dist.broadcast)
all_gather = _checked(dist.all_gather)
# The names of torch 2.13 and later; the older ones warn there.
all_gather_into_tensor = allgather_fn = _checked(
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor), tensor="input_tensor"
)
reduce_scatter = _checked(dist.reduce_scatter)
reduce_scatter_tensor = reduce_scatter_fn = _checked(
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor), output_tensor="output", tensor="input"
)
all_to_all_single = _checked(dist.all_to_all_single, tensor="input")
gather = _checked(dist.gather)
scatter = _checked(dist.scatter)
send = _checked(dist.send)
recv = _checked(dist.recv)
isend = _checked(dist.isend)
irecv = _checked(dist.irecv)


def all_reduce_coalesced(
    tensors: Sequence[torch.Tensor], op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> list[Any] | None:
    """Reduces several tensors, one after the other. Returns their handles if `async_op`."""
    handles = [all_reduce(tensor, op, group, async_op) for tensor in tensors]
    return handles if async_op else None


# --- objects
all_gather_object = _checked(dist.all_gather_object)
broadcast_object_list = _checked(dist.broadcast_object_list)


def log_summary(show_straggler: bool = False) -> None:
    """Logs a table of the collectives of the engine, whose file has comms_logger.enabled."""
    for engine in live_engines():
        engine.log_summary(show_straggler)
