# SPDX-License-Identifier: Apache-2.0
"""Names of DeepSpeed that Lockstep lacks. They can be imported, and throw ConfigError when they are used."""

from __future__ import annotations

from typing import Any, NoReturn

from .._core import ConfigError

_PIPELINE = "Lockstep has no pipeline stages; shard the model with ZeRO stage 3"
_TENSOR = "Lockstep has no tensor parallelism; shard the model with ZeRO stage 3"
_INFERENCE = (
    "Lockstep has no inference kernels; call model.generate(), or initialize() with stage 3 and without an optimizer"
)
REASONS = {
    "PipelineModule": _PIPELINE,
    "PipelineEngine": _PIPELINE,
    "LayerSpec": _PIPELINE,
    "TiedLayerSpec": _PIPELINE,
    "DualPipeVModule": _PIPELINE,
    "init_inference": _INFERENCE,
    "InferenceEngine": _INFERENCE,
    "DeepSpeedInferenceConfig": _INFERENCE,
    "tp_model_init": _TENSOR,
    "set_autotp_mode": _TENSOR,
    "replace_transformer_layer": "Lockstep has no fused transformer layers; use torch.nn.functional's attention",
    "DeepSpeedTransformerLayer": "Lockstep has no fused transformer layers; use torch.nn.TransformerEncoderLayer",
    "DeepSpeedTransformerConfig": "Lockstep has no fused transformer layers; use torch.nn.TransformerEncoderLayer",
    "DeepSpeedHybridEngine": "Lockstep has no hybrid engine; use zero.unwrap_model_for_generation(engine)",
}


def _refusing(name: str) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(f"[{name}] is not supported: {REASONS[name]}")

    return type(name, (), {"__init__": refuse, "__doc__": f"The constructor throws ConfigError. {REASONS[name]}."})


CLASSES = {name: _refusing(name) for name in REASONS}
