# SPDX-License-Identifier: Apache-2.0
"""The logger of programs that use DeepSpeed's, under the path that DeepSpeed gives it."""

from __future__ import annotations

from .._logging import log_dist, log_dist_once, logger, set_log_level_from_string

__all__ = ["log_dist", "log_dist_once", "logger", "set_log_level_from_string"]
