# SPDX-License-Identifier: Apache-2.0
"""What the cases of accelerate_cases.py have in common: datasets, samplers and the list of cases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset


class _Library:
    """The library that the cases run with; its module's attributes."""

    module: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


lib = _Library()
CASES: dict[str, Callable[[], Any]] = {}
NEED_TWO = {"batch_sampler_as_sampler"}  # Accelerate 1.15 throws with one process.


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


class Numbers(Dataset):
    """The samples 0, 1, ... n-1, int64 scalars."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Stream(IterableDataset):
    """The same samples as a stream, with 1000 * epoch added."""

    def __init__(self, size: int, sized: bool = False) -> None:
        self.size = size
        self.epoch = 0
        if sized:
            self.__class__ = SizedStream

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(index + 1000 * self.epoch) for index in range(self.size))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.size


class EvenOdd(BatchSampler):
    """A program's own batch sampler: batches of even numbers, then of odd ones."""

    def __init__(self, size: int, batch_size: int, drop_last: bool = False) -> None:
        self.order = [*range(0, size, 2), *range(1, size, 2)]
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[list[int]]:
        for begin in range(0, len(self.order), self.batch_size):
            batch = self.order[begin : begin + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


class Buckets:
    """Batches of different sizes; it has neither batch_size nor drop_last."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2], [3], [4, 5], [6, 7, 8, 9])


def make(**options: Any) -> Any:
    """Returns an Accelerator; options of DataLoaderConfiguration may be among its own."""
    names = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "data_seed")
    config = {name: options.pop(name) for name in names if name in options}
    if config:
        options["dataloader_config"] = lib.DataLoaderConfiguration(**config)
    return lib.Accelerator(**options)


def passes(loader: Any, epochs: int = 1, draws: bool = False) -> list[Any]:
    """Returns the batches of each epoch. `draws`: the loop uses random numbers, as dropout does."""
    result = []
    for _ in range(epochs):
        batches = []
        for batch in loader:
            batches.append(batch.tolist())
            if draws:
                torch.rand(3)
        result.append(batches)
    return result


def own_seed(seed: int) -> None:
    """Seeds torch differently on each process."""
    torch.manual_seed(seed + int(os.environ.get("RANK", "0")))


def numbers(accelerator: Any, size: int, batch_size: int | None = 4, **options: Any) -> Any:
    return accelerator.prepare(DataLoader(Numbers(size), batch_size=batch_size, **options))


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
