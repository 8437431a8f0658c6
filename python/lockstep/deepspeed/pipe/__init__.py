# SPDX-License-Identifier: Apache-2.0
"""deepspeed.pipe: its classes throw ConfigError."""

from __future__ import annotations

from .._unsupported import CLASSES

PipelineModule = CLASSES["PipelineModule"]
LayerSpec = CLASSES["LayerSpec"]
TiedLayerSpec = CLASSES["TiedLayerSpec"]

__all__ = ["LayerSpec", "PipelineModule", "TiedLayerSpec"]
