# SPDX-License-Identifier: Apache-2.0
"""Accelerate's module that merges the files of torch's FSDP, which Lockstep does not write."""

from __future__ import annotations

from typing import NoReturn

from ..utils._absent import ABSENT


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(f"module 'lockstep.commands.merge' has no attribute {name!r}")
    raise ImportError(f"lockstep.commands.merge has no {name}: {ABSENT['merge_fsdp_weights']}")
