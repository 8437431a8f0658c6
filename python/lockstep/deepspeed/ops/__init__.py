# SPDX-License-Identifier: Apache-2.0
"""Optimizers under DeepSpeed's names. Lockstep's kernels are part of its C++ library; none is built at run time."""

from __future__ import annotations

from . import adagrad, adam, lamb, lion, op_builder
from .adam import DeepSpeedCPUAdam, FusedAdam
from .lamb import FusedLamb
from .lion import DeepSpeedCPULion, FusedLion
from .op_builder import compatible_ops as __compatible_ops__

__all__ = [
    "DeepSpeedCPUAdam",
    "DeepSpeedCPULion",
    "FusedAdam",
    "FusedLamb",
    "FusedLion",
    "adagrad",
    "adam",
    "lamb",
    "lion",
    "op_builder",
]
