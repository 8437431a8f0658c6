# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests: no state is shared between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from states import forget_accelerators

from lockstep.utils.environment import clear_environment

_KEPT = (
    *("PATH", "HOME", "PYTHONPATH", "TMPDIR", "LOCKSTEP_BINARY", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("CUDA_VISIBLE_DEVICES", "LOCKSTEP_NCCL_LIBRARY", "LOCKSTEP_DEVICE_COMM", "NCCL_MULTI_RANK_GPU_ENABLE"),
)


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """Removes launchers' and Accelerate's variables, and the shared state, before and after each test."""
    import os

    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with clear_environment():
        os.environ.update(kept, ACCELERATE_USE_CPU="true")
        forget_accelerators(and_connection=True)
        yield
        forget_accelerators(and_connection=True)
