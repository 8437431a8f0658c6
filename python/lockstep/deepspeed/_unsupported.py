# SPDX-License-Identifier: Apache-2.0
"""Names of DeepSpeed that Lockstep lacks. They can be imported, and throw ConfigError when they are used."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from .._core import ConfigError

_PIPELINE = "Lockstep has no DualPipe schedule; use deepspeed.pipe.PipelineModule, with schedule='zero-bubble'"
_INFERENCE = (
    "Lockstep has no inference kernels; call model.generate(), or initialize() with stage 3 and without an optimizer"
)
_MAPPINGS = "Lockstep does not divide the layers around experts; use moe.layer.MoE"
REASONS = {
    "DualPipeVModule": _PIPELINE,
    "init_inference": _INFERENCE,
    "InferenceEngine": _INFERENCE,
    "DeepSpeedInferenceConfig": _INFERENCE,
    "replace_transformer_layer": "Lockstep has no fused transformer layers; use torch.nn.functional's attention",
    "DeepSpeedTransformerLayer": "Lockstep has no fused transformer layers; use torch.nn.TransformerEncoderLayer",
    "DeepSpeedTransformerConfig": "Lockstep has no fused transformer layers; use torch.nn.TransformerEncoderLayer",
    "DeepSpeedHybridEngine": "Lockstep has no hybrid engine; use zero.unwrap_model_for_generation(engine)",
}


def _refusing(name: str, reason: str) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(f"[{name}] is not supported: {reason}")

    return type(name, (), {"__init__": refuse, "__doc__": f"The constructor throws ConfigError. {reason}."})


CLASSES = {name: _refusing(name, reason) for name, reason in REASONS.items()}


@functools.cache
def refuse_mapping(name: str) -> type:
    """Returns a class of that name whose constructor throws ConfigError, for deepspeed.moe.mappings."""
    if name.startswith("__"):
        raise AttributeError(f"there is no attribute {name!r}")
    return _refusing(name, _MAPPINGS)
