# SPDX-License-Identifier: Apache-2.0
"""The default group of torch.distributed, and the job's connection: each is made from the other if that exists."""
from __future__ import annotations

import ipaddress
import os
import select
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _core
from .connection import find_world, own_address
from .process_group import ProcessGroupLockstep

_BACKENDS = {"cpu": "lockstep", "cuda": "cpu:lockstep,cuda:nccl"}
_given: Any = None  # The default group that provide() has made.
_store: JobStore | None = None  # Of the job's connection. c10d calls its methods as long as a group lives.


def provide(group: _core.Group, world: _core.WorldSpec, device: torch.device) -> None:
    """Makes torch.distributed use the job's connection, unless the program has initialised it itself.

    Nothing communicates before the program does. The store starts with its first use, by new_group for instance.
    """
    global _given
    if dist.is_initialized():
        return
    hook = sys.excepthook
    dist.init_process_group(
        _BACKENDS.get(device.type, "lockstep"),
        store=dist.HashStore() if world.size == 1 else _store_of(group, world),
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(milliseconds=group.timeout_ms),
        pg_options=group,
    )
    sys.excepthook = hook  # torch's would put the rank before each line; the launcher names it.
    _given = dist.group.WORLD


def _store_of(group: _core.Group, world: _core.WorldSpec) -> dist.Store:
    """Returns the part of the connection's store for one default group. All ranks make equally many."""
    global _store
    if _store is None or _store.group is not group:
        _store = JobStore(group, world)
    _store.default_groups += 1
    return dist.PrefixStore(f"default_group_{_store.default_groups}", _store)


def connect_program(timeout_ms: int | None) -> tuple[_core.WorldSpec, _core.Group] | None:
    """Returns the connection of the default group that the program has initialised itself; None without one.

    A group of the backend "lockstep" has one, unless `timeout_ms`, the time for one operation, is given. Else the ranks
    connect: collective. The ranks and their places are those of torch.distributed, whatever a scheduler sets.
    """
    if not dist.is_initialized():
        return None
    store = dist.distributed_c10d._get_default_store()
    if store is None:  # c10d keeps none for its backend MPI; mpirun sets variables.
        return None
    default: Any = dist.group.WORLD
    own = isinstance(default, ProcessGroupLockstep) and default.world is not None
    if own and timeout_ms is None:
        return default.world, default._group
    rank, size = dist.get_rank(), dist.get_world_size()
    world = _core.WorldSpec()
    world.source = "torch.distributed"
    if size == 1:
        return world, _core.connect(world, timeout_ms)
    world = find_world(
        dist.PrefixStore("lockstep", store),
        rank,
        size,
        timedelta(milliseconds=_core.join_timeout_ms()),
        "Accelerator",
        "the others",
        "every rank of torch.distributed must construct an Accelerator or an engine",
    )
    # The flight record has one group with the number 0.
    group = _core.connect(world, timeout_ms, None, 1 + world.restart_count if own else 0)
    world.restart_count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return world, group


def withdraw() -> None:
    """Undoes provide(), if the program has not done it, and closes the store."""
    global _given, _store
    if _given is not None and _given is dist.group.WORLD:
        dist.destroy_process_group()
    if _store is not None:
        _store.close()
    _given = _store = None


_Base: Any = dist.Store  # torch's types lack some of its methods.


class JobStore(_Base):
    """The store of the job: a TCPStore on rank 0, which starts when a rank uses it first. Thread-safe.

    A thread of rank 0 waits for the first connection, until close().
    """

    def __init__(self, group: _core.Group, world: _core.WorldSpec) -> None:
        super().__init__()
        self.group = group
        self.default_groups = 0  # How many used it.
        self._listener: socket.socket | None = None
        self._opened: Any = None
        self._mutex = threading.Lock()
        if world.rank == 0:
            self._listener = _listen("127.0.0.1" if world.local_size == world.size else own_address(world.master_addr))
            group.set_number(_NO_PLACE if self._listener is None else _place_of(self._listener))
        if self._listener is not None:
            arguments = (weakref.ref(self), self._listener)
            threading.Thread(target=_serve_others, args=arguments, name="JobStore", daemon=True).start()

    def close(self) -> None:
        """Ends the waiting of rank 0's thread. A store that has started serves its other users on."""
        with self._mutex:
            if self._listener is not None and self._opened is None:
                self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
                self._listener = None

    def _open(self) -> Any:
        with self._mutex:
            if self._opened is None:
                place, descriptor = self.group.number_of(0), None
                if place == _NO_PLACE:
                    raise _core.ConfigError(
                        "[torch.distributed] rank 0 has no IPv4 address at which the other hosts reach it; set "
                        "LOCKSTEP_HOST_ADDR to one on its host"
                    )
                if self._listener is not None:
                    descriptor = self._listener.detach()
                self._opened = dist.TCPStore(
                    str(ipaddress.IPv4Address(place >> 16)),
                    place & 0xFFFF,
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


def _serve_others(store: weakref.ref[JobStore], listener: socket.socket) -> None:
    """Waits until another rank connects, and starts the store."""
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.poll()
    own = store()
    if own is not None and own._listener is not None:
        own._open()


_NO_PLACE = 1  # The number of a rank 0 that cannot listen.


def _place_of(listener: socket.socket) -> int:
    """Returns the IPv4 address and the port as one number, which the core gives to the other ranks."""
    host, port = listener.getsockname()
    return int(ipaddress.IPv4Address(host)) << 16 | int(port)


def _listen(host: str) -> socket.socket | None:
    """Returns a socket that takes connections at this IPv4 address, and at no other; None if the host lacks it."""
    try:
        return socket.create_server((socket.gethostbyname(host), 0), backlog=socket.SOMAXCONN)
    except OSError:
        return None
