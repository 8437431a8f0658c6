# SPDX-License-Identifier: Apache-2.0
"""Small models, data sets and checks for tests of programs."""

from . import requirements
from .requirements import *  # noqa: F403
from .testing import are_the_same_tensors, assert_exception, device_count, memory_allocated_func, torch_device
from .training import RegressionDataset, RegressionModel

__all__ = [
    "RegressionDataset",
    "RegressionModel",
    "are_the_same_tensors",
    "assert_exception",
    "device_count",
    "memory_allocated_func",
    "torch_device",
    *requirements.__all__,
]
