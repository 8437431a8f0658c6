# SPDX-License-Identifier: Apache-2.0
"""Samplers, and the shares of processes in the batches of any batch sampler or stream."""
from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from .. import _core


class SeedableRandomSampler(RandomSampler):
    """A random sampler whose order depends only on a seed and the epoch: seed + epoch seeds the generator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        data_seed = kwargs.pop("data_seed", None)
        super().__init__(*args, **kwargs)
        self.initial_seed = torch.random.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator(device="cpu")
        self.generator.manual_seed(self.epoch + self.initial_seed)
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class BatchSamplerShard(BatchSampler):
    """The batches of one process from a batch sampler of any kind.

    Without `split_batches` the processes get full batches in turn; with it each gets its slice of every batch. With
    `even_batches` the last round is completed with samples from the beginning; with the first batches, if the batch
    sampler has no `batch_size`.
    """

    def __init__(
        self,
        batch_sampler: Any,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size: Any = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        if split_batches and (self.batch_size is None or self.batch_size % num_processes != 0):
            raise _core.ConfigError(
                f"[BatchSamplerShard] split_batches needs a batch_size that is a round multiple of {num_processes} "
                f"processes; got {self.batch_size}"
            )

    @property
    def total_length(self) -> int:
        return len(self.batch_sampler)

    def __len__(self) -> int:
        length = len(self.batch_sampler)
        if self.split_batches:
            return length
        batches = _core.ShardLayout(length, 1, self.drop_last, self.num_processes, self.even_batches, False)
        return batches.size(self.process_index)

    def __iter__(self) -> Iterator[list[int]]:
        yield from (own for own, _, _ in self.rounds(map(list, self.batch_sampler)))

    def rounds(
        self, batches: Iterator[list[Any]], begin: int = 0
    ) -> Iterator[tuple[list[Any], list[int], list[int]]]:
        """Yields this process's batch, and the rows and the new rows of every process's, for each round.

        The first `begin` batches are used already; they can only complete the last round.
        """
        world = self.num_processes
        beginning: list[Any] = []
        first_batches: list[list[Any]] = []
        for batch in itertools.islice(batches, begin):
            if len(beginning) < self._round_rows():
                beginning += batch
        if world == 1:
            yield from ((batch, [len(batch)], [len(batch)]) for batch in batches)
            return
        per_round = 1 if self.split_batches else world
        while group := list(itertools.islice(batches, per_round)):
            samples = list(itertools.chain.from_iterable(group))
            if len(beginning) < self._round_rows():
                beginning += samples
            first_batches = first_batches or group
            is_full = len(group) == per_round and len(samples) >= self._round_rows()
            if self.drop_last and not is_full:
                continue
            if self.batch_size is None or (is_full and not self.split_batches):
                missing = world - len(group)
                added = list(itertools.islice(itertools.cycle(first_batches), missing))
                shares = group + (added if self.even_batches else [[]] * missing)
                new = [len(share) for share in group] + [0] * missing
            else:
                shares, new = self._shares(samples, beginning)
            if shares[self.process_index]:
                yield shares[self.process_index], [len(share) for share in shares], new

    def _round_rows(self) -> int:
        if self.batch_size is None:
            return 0
        return self.batch_size if self.split_batches else self.batch_size * self.num_processes

    def _shares(self, samples: list[Any], beginning: list[Any]) -> tuple[list[list[Any]], list[int]]:
        """Returns the batches of all processes in a round of `samples`, and the number of new rows in each."""
        # The C++ layout assigns the second round of two, and completes it from the first.
        order = list(itertools.islice(itertools.cycle(beginning), self._round_rows())) + samples
        layout = _core.ShardLayout(
            len(order), self.batch_size, False, self.num_processes, self.even_batches, self.split_batches
        )
        ranks = range(self.num_processes)
        shares = [[order[position] for position in layout.positions(1, rank)] for rank in ranks]
        return shares, [layout.valid_rows(1, rank) for rank in ranks]


class IterableDatasetShard(IterableDataset):
    """The samples of one process from a stream that every process reads.

    Of each `batch_size * num_processes` samples (`batch_size` with `split_batches`) a process keeps its share. The last
    round is completed with the first samples, unless `drop_last`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self._layout()  # Throws ConfigError for batches that cannot be split.

    def _layout(self) -> _core.StreamShard:
        return _core.StreamShard(
            self.batch_size, self.drop_last, self.num_processes, self.process_index, self.split_batches
        )

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return self._layout().size(len(self.dataset))

    def __iter__(self) -> Iterator[Any]:
        return self.share_of(self.dataset)

    def share_of(self, samples: Iterable[Any], begin: int = 0) -> Iterator[Any]:
        """Yields this process's share of the samples from position `begin` on."""
        has_set_epoch = hasattr(self.dataset, "set_epoch")
        if not has_set_epoch and isinstance(getattr(self.dataset, "generator", None), torch.Generator):
            self.dataset.generator.manual_seed(getattr(self, "epoch", 0))
        layout = self._layout()
        rows = layout.round_rows
        first: list[Any] = []  # The samples that complete the last round.
        current: list[Any] = []
        position = rows if begin > 0 else 0  # Not 0 after other rounds: the first samples then complete the last round.
        for index, sample in enumerate(samples):
            if len(first) < rows:
                first.append(sample)
            if index < begin:
                continue
            current.append(sample)
            if len(current) == rows:
                yield from self._share(layout, first, current, position)
                current, position = [], position + rows
        first = list(itertools.islice(itertools.cycle(first), rows))
        yield from self._share(layout, first, current, position)

    @staticmethod
    def _share(layout: _core.StreamShard, first: list[Any], current: list[Any], begin: int) -> Iterator[Any]:
        """Yields this process's samples of the round `current`, which begins at position `begin` of the stream."""
        for position in layout.positions(begin // layout.round_rows, begin + len(current)):
            yield current[position - begin] if position >= begin else first[position]


class SkipBatchSampler(BatchSampler):
    """A batch sampler without the first batches of another."""

    def __init__(self, batch_sampler: Any, skip_batches: int = 0) -> None:
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches
        self.sampler: Any = getattr(batch_sampler, "sampler", None)

    def __iter__(self) -> Iterator[list[int]]:
        for index, samples in enumerate(self.batch_sampler):
            if index >= self.skip_batches:
                yield samples

    @property
    def total_length(self) -> int:
        return len(self.batch_sampler)

    def __len__(self) -> int:
        return max(0, len(self.batch_sampler) - self.skip_batches)


def drawn_seed() -> int:
    """Draws a seed from torch's default generator, as torch's samplers and loaders do."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _give_generator(sampler: Any) -> None:
    """Gives a random sampler of torch's default generator its own, which processes can synchronize."""
    if hasattr(sampler, "generator") and sampler.generator is None:
        sampler.generator = torch.Generator(device="cpu")
        sampler.generator.manual_seed(drawn_seed())


def restore_generator(sampler: Any, saved: torch.Tensor | None) -> None:
    """Sets the state of a sampler's own generator. `saved` is None for a sampler that had none."""
    generator = getattr(sampler, "generator", None)
    if saved is not None:
        if generator is None:  # Saved by several processes, resumed by one.
            generator = sampler.generator = torch.Generator(device="cpu")
        generator.set_state(saved)
    elif generator is not None:  # Saved by one process, resumed by several: as the sampler seeds its own.
        generator.manual_seed(drawn_seed())


def order_of_samples(order: list[Any], dataset: Any) -> list[bytes]:
    """Returns the samples of a pass in their order, as bytes.

    They are the sampler's values, and the indices of each Subset that the dataset consists of.
    """
    parts = [_bytes_of(order)]
    while isinstance(dataset, Subset):
        parts.append(_bytes_of(dataset.indices))
        dataset = dataset.dataset
    return parts


def _bytes_of(values: Sequence[Any]) -> bytes:
    try:
        return array("q", values).tobytes()  # As the C++ library has them.
    except TypeError:  # Other objects' texts may have addresses, which differ between processes.
        plain = [value for value in values if isinstance(value, (str, bytes, int, float))]
        return repr((len(values), plain)).encode()


def yields_each_once(sampler: Any) -> bool:
    """Returns whether a sampler is known to yield no index twice in a pass."""
    if type(sampler) in (RandomSampler, SeedableRandomSampler):
        return not sampler.replacement and len(sampler) <= len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _seedable(sampler: RandomSampler, data_seed: int | None) -> SeedableRandomSampler:
    return SeedableRandomSampler(
        data_source=sampler.data_source,
        replacement=sampler.replacement,
        num_samples=sampler._num_samples,
        generator=sampler.generator if sampler.generator is not None else torch.Generator(device="cpu"),
        data_seed=data_seed,
    )


def get_sampler(dataloader: DataLoader) -> Any:
    """Returns the sampler of a loader."""
    if isinstance(dataloader.sampler, BatchSampler):
        return getattr(dataloader.sampler, "sampler", None)
    return getattr(dataloader.batch_sampler, "sampler", None)
