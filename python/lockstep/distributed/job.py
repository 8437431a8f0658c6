# SPDX-License-Identifier: Apache-2.0
"""The default group of torch.distributed and the job's connection: the one that exists first serves the other."""
from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _core
from .connection import find_world

_BACKENDS = {"cpu": "lockstep", "cuda": "cpu:lockstep,cuda:nccl"}
# The default group that provide() has made, and its store, whose methods c10d calls as long as the group lives.
_given: tuple[Any, dist.Store] | None = None


def provide(group: _core.Group, world: _core.WorldSpec, device: torch.device) -> None:
    """Makes torch.distributed use the job's connection, unless the program has initialised it itself.

    Nothing communicates before the program does. The store starts with its first use, by new_group for instance.
    """
    global _given
    if not dist.is_available() or dist.is_initialized():
        return
    store = dist.HashStore() if world.size == 1 else JobStore(group, world)
    dist.init_process_group(
        _BACKENDS.get(device.type, "lockstep"),
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(milliseconds=group.timeout_ms),
        pg_options=group,
    )
    _given = dist.group.WORLD, store


def connect_program(timeout_ms: int | None) -> tuple[_core.WorldSpec, _core.Group] | None:
    """Connects the ranks of the default group that the program has initialised itself; returns None without one.

    Collective. The ranks and their places are those of torch.distributed, whatever variables the scheduler sets.
    `timeout_ms`: the time for one operation.
    """
    if not dist.is_available() or not dist.is_initialized():
        return None
    store = dist.distributed_c10d._get_default_store()
    if store is None:  # The backend of MPI has none, and mpirun sets variables.
        return None
    rank, size = dist.get_rank(), dist.get_world_size()
    world = _core.WorldSpec()
    world.source = "torch.distributed"
    if size == 1:
        return world, _core.connect(world, timeout_ms)
    joins = store.add(f"lockstep/{rank}", 1)  # Every rank connects equally often.
    world = find_world(
        dist.PrefixStore(f"lockstep/{joins}", store),
        rank,
        size,
        timedelta(milliseconds=_core.join_timeout_ms()),
        "Accelerator",
        "the others",
        "every rank of torch.distributed must construct an Accelerator or an engine",
    )
    group = _core.connect(world, timeout_ms)
    world.restart_count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return world, group


def withdraw() -> None:
    """Undoes provide(), if the program has not done it."""
    global _given
    if _given is not None and _given[0] is dist.group.WORLD:
        dist.destroy_process_group()
    _given = None


_Store: Any = dist.Store  # torch's types lack some of its methods.


class JobStore(_Store):
    """The store of the job: a TCPStore on rank 0, which starts when a rank uses it first. Thread-safe."""

    def __init__(self, group: _core.Group, world: _core.WorldSpec) -> None:
        super().__init__()
        self._group = group
        self.host = "127.0.0.1" if world.local_size == world.size else world.master_addr
        self._listener = _listen(self.host) if world.rank == 0 else None
        self._opened: Any = None
        self._mutex = threading.Lock()
        if self._listener is not None:
            group.publish(self._listener.getsockname()[1])
            threading.Thread(target=self._serve_others, args=[self._listener], name="JobStore", daemon=True).start()

    def _serve_others(self, listener: socket.socket) -> None:
        """Waits until another rank connects, and starts the store."""
        select.select([listener], [], [])
        self._open()

    def _open(self) -> Any:
        with self._mutex:
            if self._opened is None:
                port, descriptor = self._group.published_by(0), None
                if self._listener is not None:
                    descriptor = self._listener.detach()
                self._opened = dist.TCPStore(
                    self.host,
                    port,
                    is_master=descriptor is not None,
                    timeout=self.timeout,
                    wait_for_workers=False,
                    master_listen_fd=descriptor,
                )
            return self._opened

    def set(self, key: str, value: Any) -> None:
        self._open().set(key, value)

    def get(self, key: str) -> bytes:
        return self._open().get(key)

    def add(self, key: str, value: int) -> int:
        return self._open().add(key, value)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return self._open().compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        return self._open().delete_key(key)

    def num_keys(self) -> int:
        return self._open().num_keys()

    deleteKey, getNumKeys = delete_key, num_keys  # c10d's names.

    def clone(self) -> dist.Store:
        return self._open().clone()

    def check(self, keys: Sequence[str]) -> bool:
        return self._open().check(list(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._open().wait(list(keys), self.timeout if timeout is None else timeout)

    def append(self, key: str, value: Any) -> None:
        self._open().append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._open().multi_get(list(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        self._open().multi_set(list(keys), list(values))

    def has_extended_api(self) -> bool:
        return True


def _listen(host: str) -> socket.socket:
    """Returns a socket that takes connections from this host, or, if ranks are on others, from all."""
    if host == "127.0.0.1":
        return socket.create_server((host, 0), backlog=socket.SOMAXCONN)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=socket.SOMAXCONN, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=socket.SOMAXCONN)
