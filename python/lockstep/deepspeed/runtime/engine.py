# SPDX-License-Identifier: Apache-2.0
"""DeepSpeedEngine, under the path that DeepSpeed gives it."""

from __future__ import annotations

from ..engine import DeepSpeedEngine

__all__ = ["DeepSpeedEngine"]
