# SPDX-License-Identifier: Apache-2.0
"""deepspeed.sequence: attention over sequences that ranks divide."""

from __future__ import annotations

from . import layer

__all__ = ["layer"]
