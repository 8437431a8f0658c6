# SPDX-License-Identifier: Apache-2.0
"""deepspeed.pipe: models whose layers are on several ranks."""

from __future__ import annotations

from ..runtime.pipe import LayerSpec, PipelineModule, TiedLayerSpec

__all__ = ["LayerSpec", "PipelineModule", "TiedLayerSpec"]
