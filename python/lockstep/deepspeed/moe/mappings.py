# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe.mappings: each name throws ConfigError when it is used."""

from __future__ import annotations

from .._unsupported import refuse_mapping as __getattr__

__all__ = ["__getattr__"]
