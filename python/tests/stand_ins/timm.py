# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the package timm: a backbone of random convolutions with a classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Classifier(nn.Module):
    default_cfg: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 8, stride=8), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(7))
        self.classifier = nn.Linear(16 * 4 * 4, num_classes)

    def get_classifier(self) -> nn.Module:
        return self.classifier

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.backbone(image).flatten(1))


def create_model(name: str, pretrained: bool, num_classes: int) -> Classifier:
    assert name == "resnet50d" and pretrained
    return Classifier(num_classes)
