# SPDX-License-Identifier: Apache-2.0
"""The backend "lockstep" of torch.distributed: c10d's operations on CPU tensors over Lockstep's connections.

`import lockstep` registers it. A program then calls `torch.distributed.init_process_group("lockstep")`, or
"cpu:lockstep,cuda:nccl", and uses torch.distributed, DDP, FSDP2 and DTensor as it does with Gloo.
"""
from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import _core
from .connection import connect
from .job import connect_program, provide, withdraw
from .process_group import ProcessGroupLockstep

__all__ = ["connect_program", "provide", "register", "withdraw"]

BACKEND = "lockstep"


def _create(options: Any, connected: _core.Group | None) -> Any:
    """Makes a group of c10d. `options`: its store, ranks and timeout.

    `connected`, the pg_options of init_process_group, is its connection. If it is None, the ranks connect: collective.
    """
    _extend_monitored_barrier()
    world = None
    if connected is None:
        world, connected = connect(
            options.store,
            options.group_rank,
            options.group_size,
            options.timeout,
            options.group_id,
            options.global_ranks_in_group,
        )
    return ProcessGroupLockstep(options.store, connected, options.timeout, options.group_id, world)


@functools.cache
def _extend_monitored_barrier() -> None:
    """Makes torch.distributed.monitored_barrier, which refuses all backends but Gloo, take groups of this one, too."""
    gloo_barrier = dist.monitored_barrier

    @functools.wraps(gloo_barrier)
    def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        chosen = dist.group.WORLD if group is None else group
        if isinstance(chosen, ProcessGroupLockstep):
            chosen.monitored_barrier(timeout, wait_all_ranks)
        else:
            gloo_barrier(group, timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


def register() -> None:
    """Registers the backend, once in a process."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


register()
