# SPDX-License-Identifier: Apache-2.0
"""deepspeed.monitor: curves of an engine, by the monitors of its file."""

from __future__ import annotations

from .monitor import MonitorMaster

__all__ = ["MonitorMaster"]
