# SPDX-License-Identifier: Apache-2.0
"""Small models, data sets and checks for tests of programs."""

from .testing import are_the_same_tensors, assert_exception, device_count, torch_device
from .training import RegressionDataset, RegressionModel

__all__ = [
    "RegressionDataset",
    "RegressionModel",
    "are_the_same_tensors",
    "assert_exception",
    "device_count",
    "torch_device",
]
