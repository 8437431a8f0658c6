# SPDX-License-Identifier: Apache-2.0
"""The monitors of an engine's file: tensorboard, csv_monitor and wandb."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine import DeepSpeedEngine

__all__ = ["MonitorMaster"]

_SECTIONS = ("tensorboard", "csv_monitor", "wandb")


class MonitorMaster:
    """Writes values of the program beside the engine's own. `engine.monitor` is one."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = weakref.proxy(engine)
        self.enabled = any(engine._config.get(f"{section}.enabled") for section in _SECTIONS)

    def write_events(self, event_list: Iterable[tuple[str, Any, int]]) -> None:
        """Writes (name, value, samples) on the main process; nothing if the file has no monitor."""
        for name, value, samples in event_list:
            self._engine.core.log_values({name: float(value)}, int(samples))
