# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the package evaluate: the accuracy and the F1 of GLUE MRPC."""

from __future__ import annotations

import torch


class Metric:
    def __init__(self) -> None:
        self.batches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add_batch(self, *, predictions: torch.Tensor, references: torch.Tensor) -> None:
        assert len(predictions) == len(references)
        self.batches.append((predictions.cpu(), references.cpu()))

    def compute(self) -> dict[str, float]:
        predictions, references = (torch.cat(parts) for parts in zip(*self.batches))
        self.batches = []
        hits = (predictions * references).sum().item()
        total = predictions.sum().item() + references.sum().item()
        return {"accuracy": (predictions == references).double().mean().item(), "f1": 2 * hits / max(1, total)}


def load(path: str, name: str) -> Metric:
    assert (path, name) == ("glue", "mrpc")
    return Metric()
