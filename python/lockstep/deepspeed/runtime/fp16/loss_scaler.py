# SPDX-License-Identifier: Apache-2.0
"""The loss scale, under the path that DeepSpeed gives it."""

from __future__ import annotations

from ..._loss_scaler import DynamicLossScaler, LossScaler, LossScalerBase

__all__ = ["DynamicLossScaler", "LossScaler", "LossScalerBase"]
