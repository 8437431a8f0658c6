# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe can be imported, so that programs for several kinds of models start. Its classes throw ConfigError."""

from __future__ import annotations

from . import experts, layer, mappings, sharded_moe, utils

__all__ = ["experts", "layer", "mappings", "sharded_moe", "utils"]
