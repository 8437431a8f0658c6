# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.pipe: pipelines under the paths that DeepSpeed gives them."""

from __future__ import annotations

from .module import LayerSpec, PipelineModule, TiedLayerSpec
from .topology import PipeDataParallelTopology

__all__ = ["LayerSpec", "PipeDataParallelTopology", "PipelineModule", "TiedLayerSpec"]
