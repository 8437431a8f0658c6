# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torchvision.transforms: four transforms of pictures of PIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import PIL.Image  # noqa: F401  # As the real package does; cv_example.py relies on it.
import torch


class Compose:
    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Resize:
    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, image: Any) -> Any:
        return image.resize(self.size[::-1])


class RandomResizedCrop(Resize):
    """A square crop, whose area and place torch's generator draws."""

    def __init__(self, size: tuple[int, int], scale: tuple[float, float]) -> None:
        super().__init__(size)
        self.scale = scale

    def __call__(self, image: Any) -> Any:
        area, left, top = torch.rand(3).tolist()
        part = (self.scale[0] + area * (self.scale[1] - self.scale[0])) ** 0.5
        width, height = part * image.width, part * image.height
        x, y = left * (image.width - width), top * (image.height - height)
        return image.resize(self.size[::-1], box=(x, y, x + width, y + height))


class ToTensor:
    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float() / 255
