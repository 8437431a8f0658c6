# SPDX-License-Identifier: Apache-2.0
"""What the seeds' snippets leave out: data, models, and the report that test_seeds.py reads.

    lockstep launch -n 2 python SEED.py FOLDER

The data is small, and a model learns it within a few steps.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, TensorDataset

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
PICTURES = Path(os.environ.get("LOCKSTEP_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


def numbers(size: int = 128, seed: int = 0) -> TensorDataset:
    """`size` samples of 16 features and a class of 4: float32 (size, 16), int64 (size)."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    targets = torch.randint(4, (size,), generator=generator)
    centers = torch.eye(4).repeat(1, 4) * 2
    return TensorDataset(centers[targets] + torch.randn(size, 16, generator=generator) * 0.5, targets)


class Net(torch.nn.Module):
    """A classifier of numbers()."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(16, 32)
        self.scores = torch.nn.Linear(32, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.scores(torch.nn.functional.relu(self.hidden(inputs)))


def make_net(seed: int = 1) -> Net:
    torch.manual_seed(seed)
    return Net()


class Pictures(Dataset):
    """The first `size` pictures of Fashion-MNIST: {"image": float32 (3, 28, 28), "label": int64}.

    Without the Debian package dataset-fashion-mnist they are noise around a pattern for each class.
    """

    def __init__(self, size: int, train: bool) -> None:
        images, labels = self._read(size, "train" if train else "t10k")
        self.images = torch.from_numpy(images).float().div(255)[:, None].expand(-1, 3, -1, -1)
        self.labels = torch.from_numpy(labels).long()

    @staticmethod
    def _read(size: int, part: str) -> tuple[Any, Any]:
        if not (PICTURES / f"{part}-images-idx3-ubyte.gz").is_file():
            random = numpy.random.default_rng(0)
            patterns = random.integers(0, 255, (10, 28, 28))
            labels = numpy.random.default_rng(len(part)).integers(0, 10, size)
            return numpy.clip(patterns[labels] + random.integers(-60, 60, (size, 28, 28)), 0, 255), labels
        with gzip.open(PICTURES / f"{part}-images-idx3-ubyte.gz") as file:
            images = numpy.frombuffer(file.read(16 + size * 784), numpy.uint8, offset=16).reshape(size, 28, 28)
        with gzip.open(PICTURES / f"{part}-labels-idx1-ubyte.gz") as file:
            labels = numpy.frombuffer(file.read(8 + size), numpy.uint8, offset=8)
        return images.copy(), labels.astype(numpy.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": self.images[index], "label": self.labels[index]}


def weights_of(model: torch.nn.Module) -> list[str]:
    """Returns the exact sums of all parameters."""
    return [parameter.detach().double().sum().item().hex() for parameter in model.parameters()]


def report(rank: int, **values: Any) -> None:
    """Writes this process's results to FOLDER/result.<rank>.json."""
    (FOLDER / f"result.{rank}.json").write_text(json.dumps(values), encoding="utf-8")
