# SPDX-License-Identifier: Apache-2.0
"""Accelerate's pipeline inference, which Lockstep refuses."""

from __future__ import annotations

from typing import Any, NoReturn

from ._core import ConfigError

__all__ = ["prepare_pippy"]


def prepare_pippy(*args: Any, **kwargs: Any) -> NoReturn:
    """Throws ConfigError: Lockstep cuts models that are lists of layers only."""
    del args, kwargs
    raise ConfigError(
        "[prepare_pippy] Lockstep does not cut a model that is no list of layers; use lockstep.deepspeed.pipe.PipelineModule, "
        "torch.distributed.pipelining, or split_between_processes, which gives each process a share of the inputs"
    )
