# SPDX-License-Identifier: Apache-2.0
"""Cases about the order of samples; see accelerate_cases.py."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, SubsetRandomSampler

from accelerate_case_tools import (
    Buckets,
    EvenOdd,
    Numbers,
    Stream,
    case,
    lib,
    make,
    numbers,
    own_seed,
    passes,
    plain,
)

# --- the order of samples


@case
def sequential_tails() -> Any:
    accelerator = make()
    return {size: passes(numbers(accelerator, size)) for size in range(1, 26)}


@case
def sequential_lengths() -> Any:
    result = {}
    for even in (True, False):
        accelerator = make(even_batches=even)
        for drop_last in (True, False):
            for size in range(1, 26):
                loader = numbers(accelerator, size, drop_last=drop_last)
                result[f"{even} {drop_last} {size}"] = [len(loader), loader.total_batch_size, len(loader.dataset)]
    return result


@case
def uneven_tails() -> Any:
    accelerator = make(even_batches=False)
    return {size: passes(numbers(accelerator, size)) for size in range(1, 26)}


@case
def dropped_tails() -> Any:
    accelerator = make()
    return {size: passes(numbers(accelerator, size, drop_last=True)) for size in range(1, 26)}


@case
def split_tails() -> Any:
    accelerator = make(split_batches=True)
    return {size: passes(numbers(accelerator, size)) for size in range(1, 26)}


@case
def split_uneven_tails() -> Any:
    accelerator = make(split_batches=True, even_batches=False)
    return {size: passes(numbers(accelerator, size)) for size in range(1, 26)}


@case
def split_dropped_tails() -> Any:
    accelerator = make(split_batches=True)
    return {size: passes(numbers(accelerator, size, drop_last=True)) for size in range(1, 26)}


@case
def shuffle() -> Any:
    own_seed(5)
    return passes(numbers(make(), 22, shuffle=True), epochs=3)


@case
def shuffle_with_draws_in_the_loop() -> Any:
    own_seed(5)
    return passes(numbers(make(), 22, shuffle=True), epochs=3, draws=True)


@case
def shuffle_of_two_loaders() -> Any:
    own_seed(11)
    accelerator = make()
    first, second = accelerator.prepare(
        DataLoader(Numbers(22), batch_size=4, shuffle=True), DataLoader(Numbers(13), batch_size=2, shuffle=True)
    )
    return [passes(first), passes(second), passes(first), passes(second)]


@case
def shuffle_with_generator() -> Any:
    own_seed(5)
    generator = torch.Generator()
    generator.manual_seed(100 + int(os.environ.get("RANK", "0")))
    return passes(numbers(make(), 22, shuffle=True, generator=generator), epochs=3, draws=True)


@case
def shuffle_with_replacement() -> Any:
    own_seed(6)
    sampler = torch.utils.data.RandomSampler(Numbers(22), replacement=True, num_samples=30)
    return passes(numbers(make(), 22, sampler=sampler), epochs=2)


@case
def shuffle_split() -> Any:
    own_seed(5)
    return passes(numbers(make(split_batches=True), 22, shuffle=True), epochs=3)


@case
def shuffle_dropped() -> Any:
    own_seed(5)
    return passes(numbers(make(), 22, shuffle=True, drop_last=True), epochs=3)


@case
def shuffle_with_workers() -> Any:
    own_seed(5)
    return passes(numbers(make(), 22, shuffle=True, num_workers=1), epochs=2)


@case
def shuffle_torch_rng() -> Any:
    own_seed(5)
    accelerator = make(rng_types=["torch", "generator"])
    batches = passes(numbers(accelerator, 22, shuffle=True), epochs=2, draws=True)
    return [batches, torch.rand(2).tolist()]


@case
def random_numbers_after_a_pass() -> Any:
    own_seed(5)
    loader = numbers(make(), 22, shuffle=True)
    result = []
    for _ in range(2):
        passes(loader)
        result.append(torch.rand(2).tolist())
    return result


@case
def seedable_sampler() -> Any:
    own_seed(5)
    return passes(numbers(make(use_seedable_sampler=True), 22, shuffle=True), epochs=3, draws=True)


@case
def seedable_sampler_with_set_seed() -> Any:
    module = importlib.import_module(lib.__name__ + ".utils")
    module.set_seed(7)
    return passes(numbers(make(use_seedable_sampler=True), 22, shuffle=True), epochs=3)


@case
def seedable_sampler_with_data_seed() -> Any:
    own_seed(5)
    return passes(numbers(make(use_seedable_sampler=True, data_seed=42), 22, shuffle=True), epochs=3)


@case
def seedable_sampler_set_epoch() -> Any:
    own_seed(5)
    loader = numbers(make(use_seedable_sampler=True, data_seed=42), 22, shuffle=True)
    result = []
    for epoch in (3, 0, 3):
        loader.set_epoch(epoch)
        result.append(passes(loader))
    return result


@case
def subset_sampler() -> Any:
    generator = torch.Generator()
    generator.manual_seed(3)
    sampler = SubsetRandomSampler(range(3, 20), generator=generator)
    return passes(numbers(make(), 22, sampler=sampler), epochs=2)


@case
def subset_sampler_without_generator() -> Any:
    own_seed(3)
    return passes(numbers(make(), 22, sampler=SubsetRandomSampler(range(3, 20))), epochs=2)


@case
def weighted_sampler() -> Any:
    own_seed(3)
    sampler = torch.utils.data.WeightedRandomSampler([index + 1.0 for index in range(22)], 18)
    return passes(numbers(make(), 22, sampler=sampler), epochs=2)


@case
def list_as_sampler() -> Any:
    return passes(numbers(make(), 22, sampler=[5, 3, 8, 1, 0, 21, 7]), epochs=2)


class SetEpochSampler(torch.utils.data.Sampler):
    """A program's own sampler, which is rotated by the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 14

    def __iter__(self) -> Iterator[int]:
        return ((index + self.epoch) % 14 for index in range(14))


@case
def sampler_with_set_epoch() -> Any:
    return passes(numbers(make(), 22, sampler=SetEpochSampler()), epochs=3)


@case
def loader_set_epoch() -> Any:
    loader = numbers(make(), 22, sampler=SetEpochSampler())
    result = []
    for epoch in (4, 5, 2):
        loader.set_epoch(epoch)
        result.append(passes(loader))
    return result


class ShuffledBatches(BatchSampler):
    """A program's own class of batch sampler over a random sampler."""


@case
def own_batch_sampler_shuffled() -> Any:
    own_seed(9)
    batches = ShuffledBatches(torch.utils.data.RandomSampler(Numbers(22)), 4, False)
    return passes(make().prepare(DataLoader(Numbers(22), batch_sampler=batches)), epochs=3)


class RandomStream(IterableDataset):
    """A stream in the order of its generator."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator()
        self.generator.manual_seed(seed)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.randperm(19, generator=self.generator))


@case
def stream_shards_with_generator() -> Any:
    seed = 3 + int(os.environ.get("RANK", "0"))
    return passes(make(dispatch_batches=False).prepare(DataLoader(RandomStream(seed), batch_size=4)), epochs=3)


@case
def metrics_of_stream_shards() -> Any:
    accelerator = make(dispatch_batches=False)
    result = {}
    for sized in (True, False):
        for size in (8, 9, 15, 16, 17, 22):
            loader = accelerator.prepare(DataLoader(Stream(size, sized), batch_size=4))
            gathered = [accelerator.gather_for_metrics(batch) for batch in loader]
            result[f"{sized} {size}"] = torch.cat(gathered).tolist()
    return result


@case
def own_batch_sampler() -> Any:
    accelerator = make()
    result = {}
    for size in (7, 16, 17, 22):
        for drop_last in (True, False):
            loader = DataLoader(Numbers(size), batch_sampler=EvenOdd(size, 4, drop_last))
            loader = accelerator.prepare(loader)
            result[f"{size} {drop_last}"] = [len(loader), passes(loader, epochs=2)]
    return result


@case
def own_batch_sampler_split() -> Any:
    accelerator = make(split_batches=True)
    return {
        size: passes(accelerator.prepare(DataLoader(Numbers(size), batch_sampler=EvenOdd(size, 4))))
        for size in (7, 16, 17, 22)
    }


@case
def own_batch_sampler_uneven() -> Any:
    accelerator = make(even_batches=False)
    return {
        size: passes(accelerator.prepare(DataLoader(Numbers(size), batch_sampler=EvenOdd(size, 4))))
        for size in (7, 16, 17, 22)
    }


@case
def batches_of_different_sizes() -> Any:
    accelerator = make(even_batches=False)
    return passes(accelerator.prepare(DataLoader(Numbers(10), batch_sampler=Buckets())), epochs=2)


@case
def batch_sampler_as_sampler() -> Any:
    accelerator = make()
    sampler = BatchSampler(SequentialSampler(Numbers(22)), 4, False)
    rows = DataLoader(_Rows(22), sampler=sampler, batch_size=None)
    return passes(accelerator.prepare(rows), epochs=2)


class _Rows(Numbers):
    def __getitem__(self, indices: Any) -> torch.Tensor:
        return torch.tensor(indices)


@case
def stream_dispatched() -> Any:
    accelerator = make()
    return {
        size: passes(accelerator.prepare(DataLoader(Stream(size), batch_size=4)), epochs=2)
        for size in (1, 4, 7, 8, 9, 15, 16, 17, 22)
    }


@case
def stream_dispatched_dropped() -> Any:
    accelerator = make()
    return {
        size: passes(accelerator.prepare(DataLoader(Stream(size), batch_size=4, drop_last=True)))
        for size in (8, 15, 16, 22, 24)
    }


@case
def stream_dispatched_split() -> Any:
    accelerator = make(split_batches=True, dispatch_batches=True)
    return {
        size: passes(accelerator.prepare(DataLoader(Stream(size), batch_size=4))) for size in (4, 7, 8, 9, 15, 22)
    }


@case
def stream_shards() -> Any:
    accelerator = make(dispatch_batches=False)
    return {
        size: passes(accelerator.prepare(DataLoader(Stream(size), batch_size=4)), epochs=2)
        for size in (1, 4, 7, 8, 9, 15, 16, 17, 22)
    }


@case
def stream_shards_split() -> Any:
    accelerator = make(dispatch_batches=False, split_batches=True)
    return {
        size: passes(accelerator.prepare(DataLoader(Stream(size), batch_size=4))) for size in (4, 7, 8, 9, 15, 22)
    }


@case
def stream_shards_dropped() -> Any:
    accelerator = make(dispatch_batches=False)
    return {
        size: passes(accelerator.prepare(DataLoader(Stream(size), batch_size=4, drop_last=True)))
        for size in (8, 15, 16, 22, 24)
    }


@case
def stream_lengths() -> Any:
    accelerator, shards = make(), make(dispatch_batches=False)
    result = {}
    for size in (7, 8, 15, 16, 17, 22):
        for drop_last in (True, False):
            loaders = [
                each.prepare(DataLoader(Stream(size, sized=True), batch_size=4, drop_last=drop_last))
                for each in (accelerator, shards)
            ]
            result[f"{size} {drop_last}"] = [len(loader) for loader in loaders]
    return result


@case
def dispatched_numbers() -> Any:
    accelerator = make(dispatch_batches=True)
    return {size: passes(numbers(accelerator, size), epochs=2) for size in (7, 8, 15, 16, 17, 22)}


@case
def dispatched_shuffle() -> Any:
    own_seed(5)
    return passes(numbers(make(dispatch_batches=True), 22, shuffle=True), epochs=2)


@case
def skipped_batches() -> Any:
    own_seed(5)
    accelerator = make()
    loader = numbers(accelerator, 22, shuffle=True)
    return [passes(accelerator.skip_first_batches(loader, 2)), passes(loader), passes(loader)]


@case
def skipped_batches_of_numbers() -> Any:
    accelerator = make()
    loader = numbers(accelerator, 22)
    return {count: passes(accelerator.skip_first_batches(loader, count)) for count in range(4)}


@case
def skipped_batches_of_a_stream() -> Any:
    accelerator = make(dispatch_batches=False)
    loader = accelerator.prepare(DataLoader(Stream(22), batch_size=4))
    return passes(accelerator.skip_first_batches(loader, 2))


@case
def skipped_batches_of_an_unprepared_loader() -> Any:
    loader = lib.skip_first_batches(DataLoader(Numbers(22), batch_size=4), 2)
    return [len(loader), passes(loader, epochs=2)]


@case
def broken_loop() -> Any:
    own_seed(5)
    loader = numbers(make(), 22, shuffle=True)
    result = []
    for _ in range(3):
        for batch in loader:
            result.append(batch.tolist())
            break
    return [result, passes(loader)]


@case
def loop_broken_at_its_last_batch() -> Any:
    own_seed(5)
    loader = numbers(make(), 22, shuffle=True)
    for index, _ in enumerate(loader):
        if index == len(loader) - 1:
            break
    return passes(loader)


@case
def last_batch_flags() -> Any:
    accelerator = make()
    loader = numbers(accelerator, 22)
    return [
        (accelerator.gradient_state.end_of_dataloader, accelerator.gradient_state.in_dataloader) for _ in loader
    ] + [accelerator.gradient_state.in_dataloader]


@case
def remainders() -> Any:
    accelerator = make()
    return {
        f"{size} {drop_last}": [
            accelerator.gradient_state.remainder for _ in numbers(accelerator, size, drop_last=drop_last)
        ][-1:]
        for size in range(1, 26)
        for drop_last in (True, False)
    }


@case
def nested_loops() -> Any:
    accelerator = make(gradient_accumulation_steps=3)
    outer, inner = numbers(accelerator, 22), numbers(accelerator, 10)
    result = []
    for batch in outer:
        result.append((batch.tolist(), accelerator.gradient_state.end_of_dataloader))
        for other in inner:
            result.append((other.tolist(), accelerator.gradient_state.end_of_dataloader))
    return result


@case
def split_between_processes() -> Any:
    accelerator = make()
    result = []
    for padding in (False, True):
        for value in (list(range(7)), tuple(range(8)), torch.arange(5), {"a": [1, 2, 3], "b": torch.arange(3)}, [1]):
            if padding and isinstance(value, tuple):
                continue  # Accelerate pads no tuples.
            with accelerator.split_between_processes(value, apply_padding=padding) as share:
                result.append(plain(share))
    return result
