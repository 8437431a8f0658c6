# SPDX-License-Identifier: Apache-2.0
"""lockstep.deepspeed.zero, under the path that DeepSpeed gives it."""

from __future__ import annotations

from ...zero import GatheredParameters, Init, register_external_parameter, unwrap_model_for_generation

__all__ = ["GatheredParameters", "Init", "register_external_parameter", "unwrap_model_for_generation"]
