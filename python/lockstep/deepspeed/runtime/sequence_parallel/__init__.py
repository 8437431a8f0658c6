# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.sequence_parallel: sequences that the ranks of an engine divide."""

from __future__ import annotations

from . import parallel_state_sp, ulysses_sp

__all__ = ["parallel_state_sp", "ulysses_sp"]
