# SPDX-License-Identifier: Apache-2.0
"""The process group of the backend "lockstep"."""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from .. import _core
from . import reductions
from .buffers import joined, readable, split_rows, writable
from .connection import connect
from .work import AnySourceWork, Finish, Work

Tensors = list[torch.Tensor]
_Base: Any = dist.ProcessGroup  # Its type has overloads that c10d does not call on a class of Python.
_Method = TypeVar("_Method", bound=Callable[..., Any])

# A smaller message is copied, so that its sender need not wait for the receiver, as over sockets.
_COPIED_BYTES = 64 << 10
_UNEVEN_TAG = -1  # Of the messages of an all_to_all; programs have no negative tags.
# The time that a process which ends waits for the receivers of its copied messages.
_FLUSH_MS = 10_000
_UNSET = timedelta(0)


def _device_of(argument: Any) -> str:
    while isinstance(argument, list | tuple) and argument:
        argument = argument[0]
    return cast(str, argument.device.type) if isinstance(argument, torch.Tensor) else "cpu"


# The names of c10d's operations before torch 2.13.
_OLDER_NAMES = {
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


def _method_of(group: Any, name: str) -> Any:
    return getattr(group, name if hasattr(group, name) else _OLDER_NAMES.get(name, name))


def _dispatched(method: _Method) -> _Method:
    """Decorates an operation on CPU tensors: those of other devices go to their own backend."""

    @functools.wraps(method)
    def dispatch(self: ProcessGroupLockstep, first: Any, second: Any = None, *others: Any, **options: Any) -> Any:
        device = _device_of(first)
        if device == "cpu" and second is not None:
            device = _device_of(second)  # The outputs of gather exist on its root alone.
        if device != "cpu":
            return _method_of(self._device_group(device), method.__name__)(first, second, *others, **options)
        return method(self, first, second, *others, **options)

    return cast(_Method, dispatch)


class ProcessGroupLockstep(_Base):
    """A group of ranks that communicate over a Lockstep connection.

    Threads may take turns: an operation throws ConfigError while another thread is inside one of the same group.
    `world`: this rank's place, if the group has connected itself.
    """

    def __init__(
        self,
        store: dist.Store,
        connected: _core.Group,
        timeout: timedelta,
        name: str = "",
        world: _core.WorldSpec | None = None,
    ) -> None:
        super().__init__(connected.rank, connected.size)
        self.world = world
        self._store, self._timeout = store, timeout
        self._name, self._desc = name, ""
        self._core: _core.Group | None = connected
        self._threads = _core.FutureThreads()
        self._devices: dict[str, dist.ProcessGroup] = {}
        self._coalesced: list[Work] | None = None
        self._operations = 0
        # At its exit this process waits for messages that it has copied and the others have not received.
        self._sending: list[_core.Pending] = []
        self._flush = weakref.finalize(self, _wait_quietly, self._sending)

    # c10d keeps these values in its class for backends in C++, and asks a class of Python for them.

    def getBackendName(self) -> str:
        return "lockstep"

    name = _get_backend_name = getBackendName

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> dist.Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        if self not in c10d._world.pg_backend_config:
            # torch 2.15 asks before it registers the group, and attaches a hook for groups of C++ unless the list is empty.
            return []
        return [torch.device(device) for device in self._backends()]

    def _backends(self) -> dict[str, str]:
        """Returns the backend of each device, as the program has named them."""
        config = c10d._world.pg_backend_config.get(self, "cpu:lockstep")
        return dict(part.split(":") for part in config.split(",")) if ":" in config else {"cpu": "lockstep"}

    def _get_backend(self, device: Any) -> Any:
        kind = torch.device(device).type
        return self if kind == "cpu" else self._device_group(kind)._get_backend(torch.device(device))

    supports_splitting = supports_coalescing = supports_time_estimate = False
    options = None

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def _set_default_backend(self, backend: Any) -> None:
        pass

    def _has_hooks(self) -> bool:
        return False

    def _enable_collectives_timing(self) -> None:
        pass

    def _wait_for_pending_works(self) -> None:
        pass

    def _set_sequence_number_for_group(self) -> None:
        self._operations = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._operations

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def _device_group(self, device: str) -> dist.ProcessGroup:
        """Returns the group of tensors on another device. Connects it at the first use, so that is collective."""
        if device not in self._devices:
            if self._backends().get(device) != "nccl" or device != "cuda":
                raise _core.ConfigError(
                    f"[lockstep] the tensor is on {device}, but this group's backends are "
                    f"{','.join(f'{name}:{backend}' for name, backend in self._backends().items())}; pass a CPU tensor, "
                    'or initialise torch.distributed with "cpu:lockstep,cuda:nccl"'
                )
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = self._timeout
            store = dist.PrefixStore(f"{device}/", self._store)
            group = dist.ProcessGroup(store, self.rank(), self.size())
            group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
            backend = dist.ProcessGroupNCCL(store, self.rank(), self.size(), nccl)
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.NCCL, backend)
            self._devices[device] = group
        return self._devices[device]

    # The end of a group.

    def shutdown(self) -> None:
        """Waits for copied messages, and drops the connection."""
        self._flush()
        self._core = None
        for group in self._devices.values():
            group.shutdown()

    def abort(self) -> None:
        """Drops the connection at once: running operations fail."""
        self._flush.detach()
        self._core = None
        for group in self._devices.values():
            group.abort()

    # Helpers of the operations.

    @property
    def _group(self) -> _core.Group:
        if self._core is None:
            raise _core.ConfigError("[lockstep] the process group was destroyed; call init_process_group again")
        return self._core

    def _work(
        self,
        pendings: Sequence[_core.Pending],
        result: Tensors,
        finish: Sequence[Finish] = (),
        timeout: timedelta | None = None,
        **others: Any,
    ) -> Work:
        self._operations += 1
        limit = self._timeout if timeout is None or timeout <= _UNSET else timeout
        work = Work(pendings, result, finish, self._threads, timeout=limit, **others)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type != "cpu":
            self._device_group(device.type)._start_coalescing(device)
        else:
            self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Any:
        if device.type != "cpu":
            return self._device_group(device.type)._end_coalescing(device)
        parts, self._coalesced = self._coalesced or [], None
        return Work(
            [pending for part in parts for pending in part._pendings],
            [tensor for part in parts for tensor in part._result],
            [part._complete for part in parts],
            self._threads,
            timeout=self._timeout,
        )

    def _refuse(self, where: str, argument: torch.Tensor, why: str) -> NoReturn:
        """Informs the other ranks, which may have started the operation, and throws."""
        self._group.refuse("all_reduce" if where == "reduce" else where, argument)
        raise _core.ConfigError(f"[{where}] {why}")

    def _check_reducible(self, where: str, tensor: torch.Tensor, op: Any) -> None:
        why = reductions.fault_of(tensor.dtype, op)
        if why is not None:
            self._refuse(where, tensor, why)

    def _start_all_reduce(
        self, where: str, tensor: torch.Tensor, op: Any, finish: list[Finish], keep: bool = True
    ) -> _core.Pending:
        """Starts a reduction of `tensor`. If not `keep`, this rank's tensor keeps its values."""
        self._check_reducible(where, tensor, op)
        core = reductions.core_op(tensor.dtype, op)
        if core is None:
            mine = readable(tensor)
            rows = mine.new_empty((self.size(), mine.numel()))
            if keep:
                finish.append(functools.partial(_copy_reduced, tensor, rows, op))
            return self._group.start_all_gather(rows, mine)
        buffer = writable(tensor, finish) if keep else readable(tensor).clone()
        factor = reductions.factor_of(op)
        if factor is not None:
            buffer.mul_(factor)
        return self._group.start_all_reduce(reductions.core_view(buffer), core)

    def _start_reduce_scatter(
        self, output: torch.Tensor, source: torch.Tensor, op: Any, finish: list[Finish]
    ) -> _core.Pending:
        """Starts a reduction of `source`, of whose parts this rank gets its own."""
        self._check_reducible("reduce_scatter", source, op)
        core = reductions.core_op(source.dtype, op)
        source = readable(source)
        if core is None:
            rows = source.new_empty((self.size(), output.numel()))
            finish.append(functools.partial(_copy_reduced, output, rows, op))
            return self._group.start_all_to_all(rows, source)
        factor = reductions.factor_of(op)
        if factor is not None:
            source = source * factor
        buffer = writable(output, finish, filled=False)
        return self._group.start_reduce_scatter(
            reductions.core_view(buffer), reductions.core_view(source), core
        )

    # Reductions.

    @_dispatched
    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or c10d.AllreduceOptions()
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        finish: list[Finish] = []
        pendings = []
        for tensor in tensors:
            if tensor.layout == torch.sparse_coo:
                self._reduce_sparse(tensor, opts.reduceOp)
            else:
                pendings.append(self._start_all_reduce("all_reduce", tensor, opts.reduceOp, finish))
        return self._work(pendings, tensors, finish, opts.timeout)

    @_dispatched
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        return self.allreduce(tensors, opts or c10d.AllreduceCoalescedOptions())

    def _reduce_sparse(self, tensor: torch.Tensor, op: Any) -> None:
        """Sums sparse tensors with different indices. Blocks."""
        if reductions.kind_of(op) != dist.ReduceOp.SUM:
            why = f"a sparse tensor can only be summed; got {reductions.kind_of(op).name}, expected SUM"
            self._refuse("all_reduce", tensor, why)
        mine = tensor.coalesce()
        counts = torch.empty(self.size(), dtype=torch.int64)
        self._group.start_all_gather(counts, torch.tensor([mine._nnz()])).wait()
        most = int(counts.max())
        indices = mine.indices().new_zeros((most, mine.sparse_dim()))
        indices[: mine._nnz()] = mine.indices().t()
        values = mine.values().new_zeros((most, *mine.values().shape[1:]))
        values[: mine._nnz()] = mine.values()
        all_indices = indices.new_empty((self.size(), *indices.shape))
        all_values = values.new_empty((self.size(), *values.shape))
        self._group.start_all_gather(all_indices, indices).wait()
        self._group.start_all_gather(all_values, values).wait()
        kept = [slice(0, int(count)) for count in counts]
        total = torch.sparse_coo_tensor(
            torch.cat([rows[part] for rows, part in zip(all_indices, kept, strict=True)]).t(),
            torch.cat([rows[part] for rows, part in zip(all_values, kept, strict=True)]),
            tensor.shape,
        )
        tensor.copy_(total.coalesce())

    @_dispatched
    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.ReduceOptions()
        finish: list[Finish] = []
        is_root = self.rank() == opts.rootRank
        pending = self._start_all_reduce("reduce", tensors[0], opts.reduceOp, finish, keep=is_root)
        return self._work([pending], tensors, finish, opts.timeout)

    @_dispatched
    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        finish: list[Finish] = []
        pendings = []
        for output, parts in zip(outputs, inputs, strict=True):
            self._check_parts("reduce_scatter", parts, output)
            source = joined(parts)
            if source is None:
                source = torch.cat([readable(part).view(-1) for part in parts])
            pendings.append(self._start_reduce_scatter(output, source, opts.reduceOp, finish))
        return self._work(pendings, outputs, finish, opts.timeout)

    @_dispatched
    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    @_dispatched
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        finish: list[Finish] = []
        pendings = [
            self._start_reduce_scatter(output, source, opts.reduceOp, finish)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return self._work(pendings, outputs, finish, opts.timeout)

    # Collectives that move values.

    @_dispatched
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.BroadcastOptions()
        finish: list[Finish] = []
        pendings = [self._group.start_broadcast(writable(tensor, finish), opts.rootRank) for tensor in tensors]
        return self._work(pendings, tensors, finish, opts.timeout)

    @_dispatched
    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        finish: list[Finish] = []
        pendings = [
            self._start_gather_to_all(parts, source, finish) for parts, source in zip(outputs, inputs, strict=True)
        ]
        return self._work(pendings, [part for parts in outputs for part in parts], finish, opts.timeout)

    @_dispatched
    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        return self.allgather([list(parts) for parts in zip(*outputs, strict=True)], inputs, opts)

    def _start_gather_to_all(self, parts: Tensors, source: torch.Tensor, finish: list[Finish]) -> _core.Pending:
        self._check_parts("all_gather", parts, source)
        source = readable(source)
        rows = joined(parts)
        if rows is None:
            rows = source.new_empty((self.size(), source.numel()))
            finish.append(functools.partial(split_rows, rows, parts))
        return self._group.start_all_gather(rows, source)

    def _check_parts(self, where: str, parts: Tensors, like: torch.Tensor) -> None:
        if len(parts) != self.size():
            self._refuse(where, like, f"expected one tensor for each of {self.size()} ranks; got {len(parts)} tensors")
        for part in parts:
            if part.numel() != like.numel() or part.dtype != like.dtype:
                self._refuse(
                    where,
                    like,
                    f"the tensors of all ranks must be alike; got {part.dtype}{list(part.shape)} and "
                    f"{like.dtype}{list(like.shape)}",
                )

    @_dispatched
    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [source], opts)

    @_dispatched
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        finish: list[Finish] = []
        pendings = [
            self._group.start_all_gather(writable(output, finish, filled=False), readable(source))
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return self._work(pendings, outputs, finish, opts.timeout)

    @_dispatched
    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.GatherOptions()
        finish: list[Finish] = []
        parts: Tensors = outputs[0] if self.rank() == opts.rootRank else []
        if self.rank() == opts.rootRank:
            self._check_parts("gather", parts, inputs[0])
        pending = self._group.start_gather(readable(inputs[0]), opts.rootRank)
        if parts:
            finish.append(lambda: split_rows(pending.result().view(self.size(), -1), parts))
        return self._work([pending], parts, finish, opts.timeout)

    @_dispatched
    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Work:
        opts = opts or c10d.ScatterOptions()
        finish: list[Finish] = []
        source = buffer = writable(outputs[0], finish, filled=False)
        if self.rank() == opts.rootRank:
            self._check_parts("scatter", inputs[0], outputs[0])
            whole = joined(inputs[0])
            source = torch.cat([readable(part).view(-1) for part in inputs[0]]) if whole is None else whole
        pending = self._group.start_scatter(buffer, source, opts.rootRank)
        return self._work([pending], outputs, finish, opts.timeout)

    @_dispatched
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        opts = opts or c10d.AllToAllOptions()
        finish: list[Finish] = []
        source, buffer = readable(source), writable(output, finish, filled=False)
        if not output_sizes and not input_sizes:
            return self._work([self._group.start_all_to_all(buffer, source)], [output], finish, opts.timeout)
        outputs = self._split("output", buffer, output_sizes)
        inputs = self._split("input", source, input_sizes)
        pendings = self._start_messages(outputs, inputs)
        return self._work(pendings, [output], finish, opts.timeout)

    @_dispatched
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.AllToAllOptions()
        for what, parts in (("outputs", outputs), ("inputs", inputs)):
            if len(parts) != self.size():
                raise _core.ConfigError(
                    f"[all_to_all] expected {self.size()} {what}, one for each rank; got {len(parts)}"
                )
        finish: list[Finish] = []
        pendings = self._start_messages(
            [writable(output, finish, filled=False) for output in outputs], [readable(part) for part in inputs]
        )
        return self._work(pendings, outputs, finish, opts.timeout)

    def _split(self, what: str, rows: torch.Tensor, sizes: Sequence[int]) -> Tensors:
        """Returns a tensor's parts for each rank; equal ones without `sizes`."""
        if not sizes:
            sizes = [rows.size(0) // self.size()] * self.size()
        if len(sizes) != self.size() or sum(sizes) != rows.size(0):
            raise _core.ConfigError(
                f"[all_to_all] expected {self.size()} {what} sizes with the sum {rows.size(0)}; got {list(sizes)}"
            )
        return list(rows.split(list(sizes)))

    def _start_messages(self, outputs: Tensors, inputs: Tensors) -> list[_core.Pending]:
        """Starts to exchange parts whose sizes may differ, one for each rank."""
        pendings = []
        for distance in range(1, self.size()):
            to, source = (self.rank() + distance) % self.size(), (self.rank() - distance) % self.size()
            pendings.append(self._group.start_send(inputs[to], to, _UNEVEN_TAG))
            pendings.append(self._group.start_recv(outputs[source], source, _UNEVEN_TAG))
        outputs[self.rank()].detach().copy_(inputs[self.rank()])
        return pendings

    # Messages.

    @_dispatched
    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        source = readable(tensors[0])
        lane = 1 + 2 * peer
        if source.nbytes > _COPIED_BYTES:
            return self._work([self._group.start_send(source, peer, tag)], tensors, lane=lane)
        self._sending[:] = [pending for pending in self._sending if not pending.done()]
        self._sending.append(self._group.start_send(source.clone(), peer, tag))
        return self._work([], tensors, lane=lane)

    @_dispatched
    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        finish: list[Finish] = []
        pending = self._group.start_recv(writable(tensors[0], finish, filled=False), peer, tag)
        return self._work([pending], tensors, finish, lane=2 + 2 * peer, source=peer)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        if _device_of(tensors) != "cpu":
            raise _core.ConfigError("[recv] a message from any rank needs a CPU tensor; name the source")
        finish: list[Finish] = []
        self._operations += 1
        buffer = writable(tensors[0], finish, filled=False)
        return AnySourceWork(self, buffer, tag, tensors, finish, self._threads, timeout=self._timeout)

    def barrier(self, opts: Any = None) -> Work:
        return self._work([self._group.start_barrier()], [], timeout=opts.timeout if opts else None)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Blocks until all ranks have called it. Throws CommError that names all missing ranks."""
        self._work([self._group.start_barrier()], [], timeout=timeout).wait()

    # Subgroups.

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroupLockstep | None:
        """Connects the group of these ranks of this one, in that order. Other ranks get None."""
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self._name}:split:{'_'.join(map(str, ranks))}"
        store, limit = dist.PrefixStore(f"split/{name}/", self._store), timeout or self._timeout
        world, connected = connect(store, list(ranks).index(self.rank()), len(ranks), limit, name, ranks)
        part = ProcessGroupLockstep(store, connected, limit, name, world)
        part._set_group_desc(group_desc or f"{self._desc}:split")
        return part

    splitGroup = split_group
    # The names of the same operations in older versions of torch.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single


def _copy_reduced(output: torch.Tensor, rows: torch.Tensor, op: Any) -> None:
    output.detach().copy_(reductions.reduce_rows(rows, op).view(output.shape))


def _wait_quietly(pendings: list[_core.Pending]) -> None:
    """Waits for messages. Their failure has been thrown by a later operation, or nobody needs them."""
    for pending in pendings:
        try:
            pending.wait(_FLUSH_MS)
        except _core.CommError:
            return
