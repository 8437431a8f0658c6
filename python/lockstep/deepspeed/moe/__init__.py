# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe: layers of experts, which ranks may divide."""

from __future__ import annotations

from . import experts, layer, mappings, sharded_moe, utils

__all__ = ["experts", "layer", "mappings", "sharded_moe", "utils"]
