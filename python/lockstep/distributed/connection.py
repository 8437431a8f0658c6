# SPDX-License-Identifier: Apache-2.0
"""Connects the ranks of a c10d group: they exchange their places through the group's store."""
from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from .. import _core


def milliseconds(time: timedelta) -> int:
    return max(1, int(time.total_seconds() * 1000))


def connect(
    store: dist.Store, rank: int, size: int, timeout: timedelta, name: str, global_ranks: Sequence[int]
) -> tuple[_core.WorldSpec, _core.Group]:
    """Connects this rank to the others of its group, and returns its place and the connection. Collective.

    `global_ranks`: the job's ranks that are in the group; empty for the group of all ranks. Throws CommError that names
    the missing ranks when `timeout` ends.
    """
    if size == 1:
        return _core.WorldSpec(), _core.Group()
    advice = f"the group '{name}'", "every rank of the group must call init_process_group or new_group"
    world = find_world(store, rank, size, timeout, "init_process_group", *advice)
    # The flight record has one rank for each process, that of the group of all ranks.
    flight_group = 1 + world.restart_count if global_ranks else 0
    limit = milliseconds(timeout)
    group = _core.connect(world, limit, limit, flight_group)
    world.restart_count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return world, group


def find_world(
    store: dist.Store, rank: int, size: int, timeout: timedelta, call: str, joined: str, advice: str
) -> _core.WorldSpec:
    """Returns where the ranks of a group meet, which they exchange through its store. Collective.

    Its restart_count is a random number. Throws CommError if a rank is missing when `timeout` ends; the message has
    `call`, `joined` and `advice`.
    """
    world = _core.WorldSpec()
    world.rank, world.size, world.source = rank, size, "torch.distributed"
    # A later join of the same store must not read the values of this one. All ranks join equally often.
    store = dist.PrefixStore(f"join_{store.add(f'joins_{rank}', 1)}", store)
    own = {"machine": _machine(), "address": _address(store), "port": _free_port(), "token": secrets.randbits(31)}
    store.set(f"rank_{rank}", json.dumps(own))
    keys = [f"rank_{other}" for other in range(size)]
    start = time.monotonic()
    try:
        store.wait(keys, timeout)
        places = [json.loads(store.get(key)) for key in keys]
    except RuntimeError as error:
        missing = ", ".join(str(other) for other in range(size) if not store.check([keys[other]]))
        if not missing:
            raise
        seconds = time.monotonic() - start
        raise _core.CommError(
            f"[{call}] rank {missing} of {size} did not join {joined} within {seconds:.1f} s; {advice}"
        ) from error
    neighbours = [other for other in range(size) if places[other]["machine"] == own["machine"]]
    world.local_rank, world.local_size = neighbours.index(rank), len(neighbours)
    world.master_addr = places[0]["address"] if world.local_size < size else "127.0.0.1"
    world.master_port = places[0]["port"]
    # No other group has the number, so an earlier use of the port does not matter.
    world.restart_count = places[0]["token"]
    return world


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return cast(int, listener.getsockname()[1])


def _machine() -> str:
    """Returns a text that is equal on two processes if they can share memory."""
    parts = [os.uname().nodename, str(os.getuid())]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(path) if "/ns/" in path else Path(path).read_text(encoding="ascii").strip())
        except OSError:
            parts.append("")
    return "/".join(parts)


def _address(store: dist.Store) -> str:
    """Returns the address at which other hosts reach this one."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return own_address(cast(str, getattr(store, "host", "")) or os.environ.get("MASTER_ADDR", ""))


def own_address(master: str) -> str:
    """Returns the address at which other hosts reach this one; the route to `master` begins there."""
    configured = os.environ.get("LOCKSTEP_HOST_ADDR")
    if configured:
        return configured
    try:
        family, kind, _, _, address = socket.getaddrinfo(master or socket.gethostname(), 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as route:
            route.connect(address)  # Sends nothing, but makes the kernel choose the outgoing address.
            return cast(str, route.getsockname()[0])
    except OSError:
        return socket.gethostname()
