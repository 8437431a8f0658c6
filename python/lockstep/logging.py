# SPDX-License-Identifier: Apache-2.0
"""Logging in a job of several processes."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import MutableMapping
from typing import Any

from .state import PartialState

__all__ = ["MultiProcessAdapter", "get_logger"]


class MultiProcessAdapter(logging.LoggerAdapter):
    """A logger whose calls take two more arguments.

    `main_process_only`, by default true: only process 0 logs. `in_order`: the processes log one after the other, and
    all of them must make the call. Each message begins with the rank. Throws RuntimeError before an Accelerator or a
    PartialState exists.
    """

    @staticmethod
    def _should_log(main_process_only: bool) -> bool:
        return not main_process_only or PartialState().is_main_process

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        msg, kwargs = super().process(msg, kwargs)
        kwargs.setdefault("stacklevel", 2)  # The caller of log().
        return f"[RANK {PartialState().process_index}] {msg}", kwargs

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Logs a message on process 0, on all processes, or on all in order."""
        if not PartialState._shared_state:
            raise RuntimeError(
                f"logger {self.logger.name!r} is used before an Accelerator or a PartialState exists; create one first"
            )
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        if not self.isEnabledFor(level):
            return
        msg, options = self.process(msg, kwargs)
        if not in_order:
            if self._should_log(main_process_only):
                self.logger.log(level, msg, *args, **options)
            return
        state = PartialState()
        for rank in range(state.num_processes):
            if rank == state.process_index:
                self.logger.log(level, msg, *args, **options)
            state.wait_for_everyone()

    @functools.lru_cache(None)  # noqa: B019
    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Logs a warning, but each text only once in the life of this process."""
        self.warning(*args, **kwargs)


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """Returns the logger of a name.

    `log_level`, else the variable ACCELERATE_LOG_LEVEL, is the level of this logger and of the root logger.
    """
    logger = logging.getLogger(name)
    level = os.environ.get("ACCELERATE_LOG_LEVEL") if log_level is None else log_level
    if level is not None:
        logger.setLevel(level.upper())
        logger.root.setLevel(level.upper())
    return MultiProcessAdapter(logger, {})
