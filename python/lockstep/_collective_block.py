# SPDX-License-Identifier: Apache-2.0
"""A with-block whose end communicates."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import _core


@contextmanager
def collective_block(scope: _core.CollectiveScope) -> Iterator[None]:
    """Runs a block, and finishes its `scope` together with the other ranks. An exception of the block abandons it."""
    try:
        yield
    except BaseException:
        scope.abandon()
        raise
    scope.finish()
