# SPDX-License-Identifier: Apache-2.0
"""Random numbers of datasets and collate functions that depend only on seed, epoch and sample.

A prepared loader reads through a second DataLoader, whose dataset and collate function are those of this module. They
seed torch, random and numpy before each call of the program's dataset and collate function. In the main process the
generators get their states back afterwards, so the training loop draws what it would draw without workers.
"""
from __future__ import annotations

import hashlib
import itertools
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)

from .._codec import encode
from .arguments import _kept_arguments
from .samplers import IterableDatasetShard

_SEED_BITS = (1 << 63) - 1
_DIGEST_BYTES = 16


class SampleRandom:
    """Seeds the generators of torch, random and numpy, and shares the pass's values with worker processes.

    Cost: about 12 us for a sample or batch, and in the main process 0.2 ms for each batch. Not thread-safe.
    """

    def __init__(self, has_workers: bool, process_index: int) -> None:
        self._values = torch.zeros(4, dtype=torch.int64)  # Seed, number of the loader, epoch, samples to drop.
        self._first = torch.zeros(_DIGEST_BYTES, dtype=torch.uint8)  # The digest of the stream's first sample.
        if has_workers:
            self._values.share_memory_()
            self._first.share_memory_()
        self._process_index = process_index
        self._states: Any = None  # The main process's states while others are set.
        self._batch: Any = ()  # Identifies the samples of the batch that is being read.
        self._pass = b""  # The pass's values that the seeds depend on.

    def set_pass(self, seed: int, number: int, epoch: int, samples_to_drop: int) -> None:
        self._values.copy_(torch.tensor([seed & _SEED_BITS, number, epoch, samples_to_drop]))

    @property
    def epoch(self) -> int:
        return int(self._values[2])

    @property
    def samples_to_drop(self) -> int:
        return int(self._values[3])

    @property
    def first_digest(self) -> bytes:
        """Identifies the first sample of the stream; empty if it is unknown."""
        digest = self._first.numpy().tobytes()
        return digest if any(digest) else b""

    def note_first_sample(self, sample: Any) -> None:
        self._first.copy_(torch.frombuffer(bytearray(digest_of_sample(sample)), dtype=torch.uint8))

    def read_pass(self) -> None:
        """Reads the pass's values, which the main process may have changed."""
        self._pass = repr(self._values[:3].tolist()).encode()

    def begin_sample(self, *key: Any) -> None:
        self._seed(b"sample", key)

    def set_batch(self, samples: Any) -> None:
        """Sets the samples of the batch, for begin_batch()."""
        self._batch = samples

    def set_stream_batch(self, worker: int, position: int) -> None:
        self._batch = (worker, position, self._process_index)

    def begin_batch(self) -> None:
        self._seed(b"batch", self._batch)

    def end(self) -> None:
        """Gives the main process's generators the states that they had before the batch."""
        if self._states is not None:
            states, self._states = self._states, None
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            numpy.random.set_state(states[2])

    def _seed(self, kind: bytes, key: Any) -> None:
        if self._states is None and get_worker_info() is None:
            self._states = (torch.get_rng_state(), random.getstate(), numpy.random.get_state(legacy=False))
        text = self._pass + kind + repr(key).encode()
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        torch.default_generator.manual_seed(seed & _SEED_BITS)  # torch.manual_seed would also seed the GPUs.
        random.seed(seed)
        numpy.random.seed(seed & 0xFFFFFFFF)


def digest_of_sample(sample: Any) -> bytes:
    """Returns bytes that equal samples share; zeros if the sample has values of an unknown type."""
    try:
        return hashlib.blake2b(encode(sample), digest_size=_DIGEST_BYTES).digest()
    except Exception:  # Not even an object that is hard to read ends the pass.
        return bytes(_DIGEST_BYTES)


def _has_no_random(dataset: Any) -> bool:
    """Returns whether a dataset's __getitem__ is known to draw no random numbers."""
    if type(dataset) is Subset:
        return _has_no_random(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(_has_no_random(part) for part in dataset.datasets)
    return type(dataset) in (TensorDataset, list, tuple, range, torch.Tensor)


def needs_reader(loader: DataLoader) -> bool:
    """Returns whether the samples or the collate function of a prepared loader may draw random numbers."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDatasetShard):
        dataset = dataset.dataset
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):  # torch seeds and shards them itself.
        return False
    is_plain = _has_no_random(dataset) and loader.collate_fn in (default_collate, default_convert)
    return isinstance(dataset, IterableDataset) or not is_plain


def reader_of(loader: DataLoader, values: SampleRandom, sampling: dict[str, Any]) -> DataLoader:
    """Returns the DataLoader through which a prepared loader reads. `sampling`: its samplers, for a map-style dataset.

    The samplers yield a pair for each sample: its index, and how often the index occurred before in the epoch.
    """
    arguments = _kept_arguments(loader)
    arguments["collate_fn"] = _SeededCollate(loader.collate_fn, values)
    arguments["worker_init_fn"] = _WorkerStart(arguments.get("worker_init_fn"))
    if isinstance(loader.dataset, IterableDataset):
        sampling = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        return DataLoader(_SeededStream(loader.dataset, values), **sampling, **arguments)
    return DataLoader(_SeededDataset(loader.dataset, values), **sampling, **arguments)


class _EpochOfWorker:
    """Gives the dataset of a worker process the epoch, which persistent workers would not see."""

    def __init__(self, dataset: Any, values: SampleRandom) -> None:
        self._dataset = dataset
        self._values = values
        self._epoch: int | None = None

    def update(self) -> None:
        if hasattr(self._dataset, "set_epoch") and get_worker_info() is not None and self._epoch != self._values.epoch:
            self._epoch = self._values.epoch
            self._dataset.set_epoch(self._epoch)


class _SeededDataset(Dataset):
    def __init__(self, dataset: Any, values: SampleRandom) -> None:
        self.dataset = dataset
        self._values = values
        self._epoch = _EpochOfWorker(dataset, values)
        self._reads_batches = _reads_batches(dataset)
        self._seeds_samples = not self._reads_batches and not _has_no_random(dataset)

    def __getitem__(self, item: tuple[Any, int] | list[tuple[Any, int]]) -> Any:
        """Returns one sample, or with batch_size=None what the dataset has for a list of indices."""
        if isinstance(item, list):
            return self._of_batch(self.dataset.__getitem__, item)
        return self.__getitems__([item])[0]

    def __getitems__(self, items: list[tuple[Any, int]]) -> list[Any]:
        if self._reads_batches:
            return self._of_batch(self.dataset.__getitems__, items)
        self._begin(items)
        try:
            return [self._sample(*item) for item in items]
        except BaseException:
            self._values.end()
            raise

    def _begin(self, items: list[tuple[Any, int]]) -> None:
        self._values.read_pass()
        self._epoch.update()
        self._values.set_batch([(_plain(index), visit) for index, visit in items])

    def _of_batch(self, get: Callable[[list[Any]], Any], items: list[tuple[Any, int]]) -> Any:
        self._begin(items)
        try:
            self._values.begin_batch()
            return get([index for index, _ in items])
        except BaseException:
            self._values.end()
            raise

    def _sample(self, index: Any, visit: int) -> Any:
        if self._seeds_samples:
            self._values.begin_sample(_plain(index), visit)
        return self.dataset[index]


def _reads_batches(dataset: Any) -> bool:
    if type(dataset) is Subset:
        return _reads_batches(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


class _SeededStream(IterableDataset):
    """Reads a stream, or one process's share of it, from the pass's first sample on."""

    def __init__(self, dataset: Any, values: SampleRandom) -> None:
        self._shard = dataset if isinstance(dataset, IterableDatasetShard) else None
        self.dataset = dataset.dataset if isinstance(dataset, IterableDatasetShard) else dataset
        self._values = values
        self._epoch = _EpochOfWorker(dataset, values)

    def __iter__(self) -> Iterator[Any]:
        self._values.read_pass()
        self._epoch.update()
        begin = self._values.samples_to_drop
        if self._shard is None:
            return itertools.islice(self._samples(), begin, None)
        return self._shard.share_of(self._samples(), begin)

    def _samples(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        source: Iterator[Any] | None = None
        for position in itertools.count():
            self._values.begin_sample(worker, position)
            try:
                source = iter(self.dataset) if source is None else source
                sample = next(source)
            except BaseException as error:
                self._values.end()
                if isinstance(error, StopIteration):
                    return
                raise
            if position == 0 and worker == 0:
                self._values.note_first_sample(sample)
            self._values.set_stream_batch(worker, position)
            yield sample


class _SeededCollate:
    def __init__(self, collate: Callable[[Any], Any], values: SampleRandom) -> None:
        self._collate = collate
        self._values = values
        self._draws = collate not in (default_collate, default_convert)

    def __call__(self, samples: Any) -> Any:
        try:
            if self._draws:
                self._values.begin_batch()
            return self._collate(samples)
        finally:
            self._values.end()


class _WorkerStart:
    """Begins a worker process: get_worker_info() there has the program's dataset."""

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._init is not None:
            self._init(worker)


class Visits:
    """Counts how often each index has occurred in an epoch."""

    def __init__(self) -> None:
        self._seen: dict[Any, int] = {}

    def keyed(self, index: Any) -> tuple[Any, int]:
        """Returns the index and how often it occurred before."""
        key = _plain(index)
        if not isinstance(key, (int, str)):
            key = repr(key)
        visit = self._seen.get(key, 0)
        self._seen[key] = visit + 1
        return index, visit


def keyed_batches(batch_sampler: Any) -> Iterator[list[tuple[Any, int]]]:
    """Yields the batches of a sampler, as pairs of index and earlier occurrences."""
    visits = Visits()
    return ([visits.keyed(index) for index in batch] for batch in batch_sampler)


def _plain(index: Any) -> Any:
    """Returns an index of numpy or torch as an int."""
    try:
        return operator.index(index)
    except TypeError:
        return index
