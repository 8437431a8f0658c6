# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.fp16: the loss scale."""

from __future__ import annotations

from . import loss_scaler

__all__ = ["loss_scaler"]
