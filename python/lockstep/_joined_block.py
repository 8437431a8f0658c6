# SPDX-License-Identifier: Apache-2.0
"""A with-block as the body of a C++ function."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _JoinedBlock:
    """Runs a with-block as the body of a C++ function, which waits for its end on another thread."""

    def __init__(self, run: Callable[[Callable[[], None]], None]) -> None:
        self._run = run
        self._entered = threading.Event()
        self._left = threading.Event()
        self._thrown: BaseException | None = None
        self._block_error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, daemon=True)

    def _call(self) -> None:
        try:
            self._run(self._body)
        except BaseException as error:
            self._thrown = error
        finally:
            self._entered.set()

    def _body(self) -> None:
        self._entered.set()
        self._left.wait()
        if self._block_error is not None:
            raise RuntimeError("the block of join_uneven_inputs has failed")

    def begin(self) -> None:
        self._thread.start()
        self._entered.wait()
        if self._thrown is not None:
            raise self._thrown

    def end(self, error: BaseException | None) -> None:
        self._block_error = error
        self._left.set()
        self._thread.join()
        if error is None and self._thrown is not None:
            raise self._thrown


@contextmanager
def joined_block(run: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Runs a block while `run(body)`, a C++ function, runs on another thread: its `body` ends with the block.

    Throws what `run` throws. An exception of the block becomes an exception of `body`.
    """
    joined = _JoinedBlock(run)
    joined.begin()
    try:
        yield
    except BaseException as error:
        joined.end(error)
        raise
    joined.end(None)
