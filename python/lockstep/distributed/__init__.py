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

BACKEND = "lockstep"


def _create(options: Any, backend_options: Any) -> Any:
    """Connects a group of c10d. `options`: its store, ranks and timeout. Collective."""
    from .process_group import ProcessGroupLockstep  # Most programs do not need it.

    _extend_monitored_barrier()
    return ProcessGroupLockstep(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        name=options.group_id,
        global_ranks=options.global_ranks_in_group,
    )


@functools.cache
def _extend_monitored_barrier() -> None:
    """Makes torch.distributed.monitored_barrier, which refuses all backends but Gloo, take groups of this one, too."""
    from .process_group import ProcessGroupLockstep

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
    if dist.is_available() and BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


register()
