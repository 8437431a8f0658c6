# SPDX-License-Identifier: Apache-2.0
"""The logger of programs that use DeepSpeed's, and messages of chosen ranks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from ..state import PartialState

__all__ = ["log_dist", "log_dist_once", "logger", "set_log_level_from_string"]

logger = logging.getLogger("lockstep.deepspeed")
_seen: set[str] = set()


def current_rank() -> int:
    """Returns the rank of this process; before it is connected, that of its launcher's RANK."""
    if PartialState._shared_state:
        return PartialState().process_index
    return int(os.environ.get("RANK", "0"))


def log_dist(message: Any, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs a message on the given ranks; None or -1: on all."""
    chosen = None if ranks is None else set(ranks)
    if not chosen or -1 in chosen or current_rank() in chosen:
        logger.log(level, "[Rank %s] %s", current_rank(), message)


def log_dist_once(message: Any, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Does the same, but each message only once in the life of this process."""
    if str(message) not in _seen:
        _seen.add(str(message))
        log_dist(message, ranks, level)


def set_log_level_from_string(log_level_str: str, custom_logger: logging.Logger | None = None) -> None:
    """Sets the level of the logger: debug, info, warning, error or critical."""
    (custom_logger or logger).setLevel(log_level_str.upper())
