# SPDX-License-Identifier: Apache-2.0
"""Names of lockstep.deepspeed.zero, under the path that DeepSpeed gives them."""

from __future__ import annotations

from ...zero import GatheredParameters, Init, register_external_parameter

__all__ = ["GatheredParameters", "Init", "register_external_parameter"]
