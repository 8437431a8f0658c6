# SPDX-License-Identifier: Apache-2.0
"""The handle of an operation that may still be running."""
from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _core
from .connection import milliseconds

_Base: Any = dist.Work  # The types of its methods differ from those of c10d.
_GROUP_TIMEOUT = timedelta(0)

# The lanes of futures: of collectives, and of messages from any rank. Those from and to each rank have others.
COLLECTIVES = 0
ANY_SOURCE = -1

# The time after which a recv from any rank sees that its group was aborted.
_POLL_MS = 100

# A Finish runs after its operation, and copies the result to a tensor that is not contiguous, for instance.
Finish = Callable[[], None]


def _is_backward_calling() -> bool:
    """Returns whether autograd's code in C++, such as DDP, has called the calling function.

    The Python caller is then the one that started the backward pass: torch, or Lockstep's own `backward`.
    """
    try:
        caller = sys._getframe(2).f_globals.get("__name__", "")
    except ValueError:  # A thread of autograd.
        return True
    return caller == "torch.autograd.graph" or caller.startswith("lockstep.")


class Work(_Base):
    """An operation of a ProcessGroupLockstep, as torch.distributed's Work.

    `wait` continues the operation in the calling thread. A future of DDP that is not done soon is completed by a
    thread, so that backward continues. A program's own future of a collective is done when it gets it: operations that
    its callbacks start have the same place in the order of operations on every rank.
    """

    def __init__(
        self,
        pendings: Sequence[_core.Pending],
        result: list[torch.Tensor],
        finish: Sequence[Finish],
        threads: _core.FutureThreads,
        *,
        lane: int = COLLECTIVES,
        timeout: timedelta = _GROUP_TIMEOUT,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._pendings = pendings
        self._result = result
        self._finish = list(finish)
        self._threads = threads
        self._lane = lane
        self._timeout = timeout
        self._source = source
        self._error: Exception | None = None
        self._future: Any = None
        self._mutex = threading.Lock()

    def wait(self, timeout: timedelta = _GROUP_TIMEOUT) -> bool:
        limit = timeout if timeout > _GROUP_TIMEOUT else self._timeout
        try:
            if limit > _GROUP_TIMEOUT:
                for pending in self._pendings:
                    pending.wait(milliseconds(limit))
            else:
                for pending in self._pendings:
                    pending.wait()
            if self._finish:
                self._complete()
        except Exception as error:
            self._error = error
            raise
        return True

    def _complete(self) -> None:
        with self._mutex:  # wait() and the future's callback may run on two threads.
            while self._finish:
                self._finish.pop(0)()

    def get_future(self) -> Any:
        if self._future is None:
            if self._lane == COLLECTIVES and not _is_backward_calling():
                self._wait_quietly()
            future = self._threads.future(self._pendings, self._result, self._lane)
            self._future = future.then(self._value_after) if self._finish else future
        return self._future

    def _wait_quietly(self) -> None:
        try:
            for pending in self._pendings:
                pending.wait()
        except _core.CommError:
            pass  # The future throws it.

    def _value_after(self, done: torch.futures.Future[Any]) -> list[torch.Tensor]:
        done.value()  # Throws the operation's error.
        self._complete()
        return self._result

    def is_completed(self) -> bool:
        return all(pending.done() for pending in self._pendings)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        if self._error is None and self.is_completed():
            try:
                self.wait()
            except Exception as error:
                self._error = error
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def source_rank(self) -> int:
        return self._source

    def _source_rank(self) -> int:
        return self._source


class AnySourceWork(Work):
    """Receives from whichever rank sends first. `wait` or `is_completed` begins it when such a message arrives.

    `owner`: the process group, whose connection an abort drops while this waits.
    """

    def __init__(self, owner: Any, buffer: torch.Tensor, tag: int, *args: Any, **options: Any) -> None:
        super().__init__([], *args, lane=ANY_SOURCE, **options)
        self._owner, self._buffer, self._tag = owner, buffer, tag

    def _receive(self, source: int) -> None:
        self._source = source
        self._pendings = [self._owner._group.start_recv(self._buffer, source, self._tag)]

    def _await(self, limit: timedelta) -> None:
        """Blocks until a message begins to arrive, and begins to receive it."""
        if self._error is not None:
            raise self._error
        began = time.monotonic()
        while not self._pendings:
            source = self._owner._group.await_sender(self._tag, _POLL_MS)
            seconds = time.monotonic() - began
            if source is not None:
                self._receive(source)
            elif seconds >= limit.total_seconds():
                raise _core.CommError(f"[recv] no rank has sent a message within {seconds:.1f} s")

    def wait(self, timeout: timedelta = _GROUP_TIMEOUT) -> bool:
        self._await(timeout if timeout > _GROUP_TIMEOUT else self._timeout)
        return super().wait(timeout)

    def is_completed(self) -> bool:
        if not self._pendings and self._error is None:
            try:
                source = self._owner._group.sender_of_next(self._tag)
            except _core.CommError as error:
                self._error = error
                return True
            if source is None:
                return False
            self._receive(source)
        return super().is_completed()

    def get_future(self) -> Any:
        """Blocks until a message begins to arrive."""
        self._await(self._timeout)
        return super().get_future()
