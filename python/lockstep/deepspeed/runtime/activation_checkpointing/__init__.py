# SPDX-License-Identifier: Apache-2.0
"""lockstep.deepspeed.checkpointing, under the path that DeepSpeed gives it."""

from __future__ import annotations

from ... import checkpointing

__all__ = ["checkpointing"]
