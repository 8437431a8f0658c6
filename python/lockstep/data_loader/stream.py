# SPDX-License-Identifier: Apache-2.0
"""Prepared loaders of streams, and of batch samplers of the program's own class."""
from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from .. import _core
from ..logging import get_logger
from ..state import PartialState
from ..utils.operations import ignorant_find_batch_size
from .arguments import _kept_arguments, given_batch_size
from .loop import PreparedLoader, _synchronize
from .order_states import OrderStates
from .sample_random import keyed_batches
from .samplers import BatchSamplerShard, IterableDatasetShard, _give_generator, _seedable, get_sampler

logger = get_logger(__name__)


class _StreamLoader(PreparedLoader):
    """The parts of loaders of streams, and of batch samplers that only Python can read."""

    _compares = False  # Whether the processes compare their first samples in the next pass.
    _resumes = False  # Whether the next pass continues a saved one.

    def __init__(
        self,
        dataset: Any,
        arguments: dict[str, Any],
        *,
        batch_size: int,
        drop_last: bool,
        device: torch.device | None,
        non_blocking: bool,
        process_index: int,
    ) -> None:
        """`batch_size` and `drop_last` are those of the given loader; `arguments` are DataLoader's."""
        self._batch_rows = max(1, batch_size)
        self.remainder = -1
        self._states = OrderStates()
        super().__init__(
            _core.LoaderCore(None, self._batch_rows, drop_last, None),
            dataset,
            arguments,
            device=device,
            non_blocking=non_blocking,
            process_index=process_index,
            seeds_always=not isinstance(dataset, IterableDataset),
        )

    def _begun_batches(
        self, batches_from: Callable[[int], Iterator[tuple[Any, list[int], list[int], bool]]]
    ) -> Iterator[Any]:
        """Yields the batches of `batches_from(begin)`, which skips `begin` of them.

        Each comes with the rows and new rows of all processes, and whether it is the last.
        """
        self._begin_pass()
        cursor = self._core.cursor
        if cursor.first_sample > 0:
            self._check_position(cursor.first_sample)
        resumed, self._resumes = self._resumes, False
        state = torch.get_rng_state()
        for batch, rows, new, is_last in batches_from(cursor.batches):
            if resumed and self.generator is None:  # torch's loader has drawn the workers' seed a second time.
                torch.set_rng_state(state)
            resumed = False
            if self._compares:
                self._compares = False
                if cursor.batches == 0 and cursor.first_sample == 0:
                    self._compare_first_samples()
            self._core.begin_stream_batch(rows, new, is_last)
            self._at_last = is_last
            yield batch

    def _check_position(self, first_sample: int) -> None:
        """Throws ConfigError if a pass that another number of processes began cannot continue."""
        if first_sample % self._batch_rows != 0:
            raise _core.ConfigError(
                f"[load_state] a pass was saved at sample {first_sample} by another number of processes, which is no "
                f"multiple of this loader's batch size {self._batch_rows}; resume with the batch size or the number "
                "of processes of the checkpoint"
            )

    def _used_batches(self) -> int:
        """Returns the number of the sampler's batches that another number of processes has used."""
        return self._core.cursor.first_sample // self._batch_rows

    def _compare_first_samples(self) -> None:
        """Warns if the processes read different streams. Collective."""
        group = PartialState().group
        digests = _core.all_gather_bytes(group, self._digest_of_first_sample())
        others = [rank for rank, digest in enumerate(digests) if digest and digests[0] and digest != digests[0]]
        if others:
            logger.warning(
                "[prepare] the stream of process %d begins with another sample than that of the main process, so a part "
                "of the samples is not used; each process must read all samples, of which it gets its share; remove "
                "the sharding from the dataset, or use its DataLoader without prepare()%s",
                others[0],
                self._hint_for_other_streams,
            )

    _hint_for_other_streams = ""

    def _digest_of_first_sample(self) -> bytes:
        return b"" if self._sample_random is None else self._sample_random.first_digest

    @property
    def total_dataset_length(self) -> int:
        return len(cast(Sized, self.dataset))

    def skipping(self, batches: int) -> Any:
        if batches < 0:
            raise _core.ConfigError(f"[skip_first_batches] num_batches is {batches}; expected at least 0")
        self._skip = batches
        return self

    # --- checkpoints
    def _saved_state(self) -> dict[str, Any]:
        return super()._saved_state() | self._states.saved()

    def _load_saved_state(self, state: dict[str, Any]) -> None:
        super()._load_saved_state(state)
        cursor = self._core.cursor
        self._resumes = cursor.batches > 0 or cursor.first_sample > 0
        self._states.load(state, self._resumes)


def _with_is_last(items: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Yields each item with whether it is the last."""
    missing = object()
    current = next(items, missing)
    while current is not missing:
        following = next(items, missing)
        yield current, following is missing
        current = following


class DataLoaderStreamShard(_StreamLoader):
    """A DataLoader of which every process reads everything and keeps its share: of an IterableDataset, or with a batch
    sampler of the program's own class."""

    def _set_up(  # type: ignore[override]  # Each kind has its own options.
        self,
        loader: DataLoader,
        *,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
        device: torch.device | None = None,
        non_blocking: bool = False,
        rng_types: list[Any] | None = None,
        use_seedable_sampler: bool = False,
        data_seed: int | None = None,
    ) -> None:
        self.rng_types = rng_types
        self._spec = {"num_processes": num_processes, "process_index": process_index, "split_batches": split_batches}
        self._rounds: Any = None
        self._has_own_files = False  # Whether each process reads a shard of the stream's files.
        state = PartialState()
        in_this_job = 1 < state.num_processes and num_processes == state.data_group.size  # Or a program's own number.
        # The stream or sampler that may draw from a generator of its own.
        self._random = loader.dataset if isinstance(loader.dataset, IterableDataset) else get_sampler(loader)
        batch_size = given_batch_size(loader)
        drop_last = bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last))
        if isinstance(loader.dataset, IterableDataset):
            self._each = batch_size // num_processes if split_batches else batch_size
            dataset: Any = loader.dataset
            self._has_own_files = num_processes > 1 and not split_batches and _shards_of(dataset) == num_processes
            if self._has_own_files:
                dataset = dataset.shard(num_shards=num_processes, index=process_index)
            elif num_processes > 1:
                dataset = IterableDatasetShard(
                    dataset, batch_size, drop_last, num_processes, process_index, split_batches
                )
            own: dict[str, Any] = {
                "batch_size": self._each if loader.batch_size is not None else None,
                "drop_last": drop_last,
            }
        else:
            dataset = loader.dataset
            source: Any = loader.batch_sampler
            if source is None:  # batch_size=None: each value of the sampler is the index of one batch.
                own_batches = isinstance(loader.sampler, BatchSampler)
                source = loader.sampler if own_batches else _SingleSampleBatches(loader.sampler)
            if use_seedable_sampler and type(self._random) is RandomSampler:
                # The program's own batch sampler gets it, as in Accelerate, since it cannot be copied safely.
                self._random = source.sampler = _seedable(self._random, data_seed)
            elif num_processes > 1 or state.shares_batches:
                _give_generator(self._random)
            self._rounds = BatchSamplerShard(source, num_processes, process_index, split_batches, even_batches)
            own = {"batch_sampler": _RankBatchSampler(self)}
            if loader.batch_sampler is None:
                own = {"sampler": _RankBatchSampler(self), "batch_size": None}
        super().__init__(
            dataset,
            {**own, **_kept_arguments(loader)},
            batch_size=batch_size,
            drop_last=drop_last,
            device=device,
            non_blocking=non_blocking,
            process_index=process_index,
        )
        self._evens_files = self._has_own_files and in_this_job
        self._compares = self._rounds is None and not self._has_own_files and in_this_job

    def _orders(self) -> Any:
        return self._random

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class.
        self._resume_if_requested()
        if self._spec["num_processes"] > 1 or self._synchronizes or PartialState().shares_batches:
            _synchronize(self.rng_types, self._synchronized_generator or getattr(self._random, "generator", None))
        self._set_epochs()
        if self._rounds is not None:
            self._rounds.even_batches = self._core.even_batches  # join_uneven_inputs changes it.
            self._queue: list[tuple[list[int], list[int]]] = []
            return self._loop(self._begun_batches(self._sampled_batches))
        return self._loop(self._begun_batches(self._stream_batches))

    def _sampled_batches(self, begin: int) -> Iterator[tuple[Any, list[int], list[int], bool]]:
        del begin  # The sampler skips them.
        for batch, is_last in _with_is_last(self._read()):
            rows, new = self._queue.pop(0)
            yield batch, rows, new, is_last

    def _stream_batches(self, begin: int) -> Iterator[tuple[Any, list[int], list[int], bool]]:
        world = self._spec["num_processes"]
        if self._evens_files:
            yield from self._batches_of_own_files(begin)
            return
        for batch, is_last in _with_is_last(itertools.islice(self._read(), begin, None)):
            rows = ignorant_find_batch_size(batch) or 0
            new = [rows] * world
            yield batch, [rows] * world, new, is_last

    def _batches_of_own_files(self, begin: int) -> Iterator[tuple[Any, list[int], list[int], bool]]:
        """Yields equally many batches on all processes. Collective, for each batch.

        A process whose files end earlier repeats its first batch, without new rows.
        """
        group = PartialState().group
        items = itertools.islice(self._read(), begin, None)
        batch, is_new = next(items, None), True
        first = batch if begin == 0 else None
        while True:
            if batch is None:
                is_new = False
                first = next(self._read(), None) if first is None else first
                batch = first
            rows = 0 if batch is None else ignorant_find_batch_size(batch) or 0
            following = next(items, None) if is_new else None
            mine = torch.tensor([[rows, rows if is_new else 0, int(following is not None)]])
            by_rank = group.all_gather(mine).reshape(-1, 3).tolist()
            if any(of_rank[0] == 0 for of_rank in by_rank):
                raise _core.ConfigError(
                    f"[prepare] the files of a stream have no batch on a process: {[of_rank[0] for of_rank in by_rank]} "
                    "rows; expected some on each; pass a stream with samples in each shard, or dispatch_batches=True"
                )
            is_last = not any(of_rank[2] for of_rank in by_rank)
            yield batch, [of_rank[0] for of_rank in by_rank], [of_rank[1] for of_rank in by_rank], is_last
            if is_last:
                return
            batch = following

    def _followers(self) -> list[Any]:
        if self._rounds is None:
            return [self.dataset]
        source = self._rounds.batch_sampler
        return [self.dataset, source, getattr(source, "sampler", None)]

    def _sampling(self) -> dict[str, Any]:
        if self.batch_sampler is None:
            return {"sampler": self.sampler, "batch_size": None}
        return {"batch_sampler": self.batch_sampler}

    def _samples_to_drop(self) -> int:
        return self._core.cursor.first_sample

    def _check_position(self, first_sample: int) -> None:
        unknown = ""
        if self._rounds is not None and self._rounds.batch_size is not None:
            super()._check_position(first_sample)
        elif self._rounds is not None:
            unknown = "the sizes of the batches that its batch sampler gave are unknown"
        elif self._has_own_files:
            unknown = "each process reads a shard of its own, and where each shard's reader stood is unknown"
        elif self.num_workers > 1 or self._sample_random is None:
            unknown = "where its several workers stood is unknown"
        if unknown:
            raise _core.ConfigError(
                f"[load_state] a pass was saved at sample {first_sample} by another number of processes; {unknown}; "
                "resume with the number of processes of the checkpoint, or use a batch sampler with a batch_size, "
                "num_workers=1 or DataLoaderConfiguration(dispatch_batches=True)"
            )

    @property
    def total_batch_size(self) -> int:
        world = self._spec["num_processes"]
        return self._batch_rows if self._spec["split_batches"] else self._batch_rows * world


def _shards_of(dataset: Any) -> int | None:
    """Returns the number of shards of an IterableDataset of the package datasets; None for another dataset."""
    module = type(dataset).__module__.partition(".")[0]
    return getattr(dataset, "num_shards", None) if module == "datasets" else None


class _RankBatchSampler(BatchSampler):
    """Yields this process's batches of (index, visit) pairs, and remembers the rows of each."""

    def __init__(self, loader: DataLoaderStreamShard) -> None:
        self._loader = weakref.proxy(loader)  # Which owns this sampler.
        rounds = loader._rounds
        self.batch_sampler = rounds.batch_sampler
        self.sampler = getattr(rounds.batch_sampler, "sampler", rounds.batch_sampler)
        self.batch_size = rounds.batch_size
        self.drop_last = rounds.drop_last

    @property
    def even_batches(self) -> bool:
        return self._loader._core.even_batches

    def __len__(self) -> int:
        return len(self._loader._rounds)

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader
        single = isinstance(self.batch_sampler, _SingleSampleBatches)
        loader._states.begin(loader._random)
        rounds = loader._rounds.rounds(keyed_batches(self.batch_sampler), loader._used_batches())
        for own, rows, new in itertools.islice(rounds, loader._core.cursor.batches, None):
            loader._states.end()
            loader._queue.append((rows, new))
            yield own[0] if single else own
        loader._states.end()


class _SingleSampleBatches:
    """The values of a sampler, each in a batch of its own."""

    batch_size = 1
    drop_last = False

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        return ([value] for value in self.sampler)
