# SPDX-License-Identifier: Apache-2.0
"""A regression of y on x: the smallest task that trains."""

from __future__ import annotations

import numpy
import torch

__all__ = ["RegressionDataset", "RegressionModel"]


class RegressionDataset:
    """Samples {"x": x, "y": a * x + b + noise}, float32 numbers; x is normal and the noise's deviation is 0.1."""

    def __init__(self, a: float = 2, b: float = 3, length: int = 64, seed: int | None = None) -> None:
        random = numpy.random.default_rng(seed)
        self.length = length
        self.x = random.normal(size=(length,)).astype(numpy.float32)
        self.y = a * self.x + b + random.normal(scale=0.1, size=(length,)).astype(numpy.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> dict[str, numpy.float32]:
        return {"x": self.x[i], "y": self.y[i]}


class RegressionModel(torch.nn.Module):
    """Computes a * x + b with two parameters without dimensions."""

    def __init__(self, a: float = 0, b: float = 0, double_output: bool = False) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(a).float())
        self.b = torch.nn.Parameter(torch.tensor(b).float())
        self.double_output = double_output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.a + self.b
        return y.double() if self.double_output else y
