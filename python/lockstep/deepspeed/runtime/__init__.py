# SPDX-License-Identifier: Apache-2.0
"""Modules under the paths that DeepSpeed gives them."""

from __future__ import annotations

from . import activation_checkpointing, config, fp16, lr_schedules, pipe, sequence_parallel, utils, zero

__all__ = ["activation_checkpointing", "config", "fp16", "lr_schedules", "pipe", "sequence_parallel", "utils", "zero"]
