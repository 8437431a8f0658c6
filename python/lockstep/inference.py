# SPDX-License-Identifier: Apache-2.0
"""Accelerate's pipeline inference, which Lockstep refuses."""

from __future__ import annotations

from typing import Any, NoReturn

from ._core import ConfigError

__all__ = ["prepare_pippy"]


def prepare_pippy(*args: Any, **kwargs: Any) -> NoReturn:
    """Throws ConfigError: Lockstep has no pipeline parallelism."""
    del args, kwargs
    raise ConfigError(
        "[prepare_pippy] Lockstep has no pipeline parallelism; use torch.distributed.pipelining, or "
        "split_between_processes, which gives each process a share of the inputs"
    )
