# SPDX-License-Identifier: Apache-2.0
"""Loaders that a program constructs or pickles itself, samplers with epochs, and what prepared objects keep alive."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from launch import run_ranks
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from lockstep import Accelerator, ConfigError, DataLoaderConfiguration
from lockstep.data_loader import (
    DataLoaderDispatcher,
    DataLoaderShard,
    DataLoaderStateMixin,
    SkipDataLoader,
    prepare_data_loader,
    skip_first_batches,
)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class EpochBatches(BatchSampler):
    """Batches of one size after the other: epoch 0 has 1, 2, 3 ... rows."""

    epoch = 0

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        begin = 100 * self.epoch
        for size in self.sizes:
            yield list(range(begin, begin + size))
            begin += size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index


def values(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


CONSTRUCTED: dict[str, dict[str, Any]] = {
    "map": {"dataset": list(range(8)), "batch_size": 3},
    "stream": {"dataset": Stream(), "batch_size": 3},
    "batch_sampler": {"dataset": Numbers(), "batch_sampler": [[0, 1, 2], [3, 4, 5], [6, 7]]},
}


@pytest.mark.parametrize("kind", [DataLoaderShard, DataLoaderDispatcher, SkipDataLoader])
@pytest.mark.parametrize("data", CONSTRUCTED)
def test_a_constructed_loader_reads_everything_but_the_skipped_batches(kind: Any, data: str) -> None:
    loader = kind(skip_batches=1, **CONSTRUCTED[data])
    assert isinstance(loader, kind) and isinstance(loader, DataLoader) and type(loader.base_dataloader) is DataLoader
    assert isinstance(loader, DataLoaderStateMixin) == (kind is not SkipDataLoader)
    assert values(loader) == values(loader) == [[3, 4, 5], [6, 7]]
    if kind is not SkipDataLoader:
        ends = [loader.end_of_dataloader for _ in loader]
        assert ends == [False, True] and not loader.end_of_dataloader


def test_a_mesh_and_an_unprepared_skipping_loader_are_refused() -> None:
    for kind in (DataLoaderShard, DataLoaderDispatcher):
        with pytest.raises(ConfigError, match="torch_device_mesh is given"):
            kind([1], torch_device_mesh=object())
    with pytest.raises(ConfigError, match="call skip_first_batches on the result"):
        prepare_data_loader(skip_first_batches(DataLoader(Stream(), batch_size=2), 1))


@pytest.mark.parametrize("asks_for_the_end", [False, True])
def test_set_epoch_at_the_last_batch_selects_the_next_pass(asks_for_the_end: bool) -> None:
    """A loop may count the batches with next(), or select the epoch within its last batch."""

    def passes(select: bool) -> list[list[float]]:
        loader = Accelerator(cpu=True).prepare(DataLoader(torch.arange(6.0), batch_size=2, shuffle=True))
        seen = []
        for epoch in range(3):
            iterator = iter(loader)
            seen.append([value for _ in range(3) for value in next(iterator).tolist()])
            if select:
                loader.set_epoch(epoch + 1)
            if asks_for_the_end or not select:
                assert next(iterator, None) is None
        return seen

    torch.manual_seed(3)
    expected = passes(select=False)
    torch.manual_seed(3)
    assert passes(select=True) == expected


def test_set_epoch_reaches_the_batch_sampler_at_once_and_in_the_pass() -> None:
    sampler = EpochBatches([2, 2])
    loader = Accelerator().prepare(DataLoader(Numbers(), batch_sampler=sampler))
    loader.set_epoch(2)
    assert sampler.epoch == 2
    assert values(loader) == [[200, 201], [202, 203]]
    assert values(loader) == [[300, 301], [302, 303]]


def test_a_seedable_sampler_is_also_that_of_ones_own_batch_sampler() -> None:
    """sentence-transformers' batches are of a class of its own."""

    class OwnBatches(BatchSampler):
        pass

    batches = OwnBatches(RandomSampler(range(6), generator=torch.Generator()), 2, drop_last=False)
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7)
    loader = Accelerator(cpu=True, dataloader_config=config).prepare(DataLoader(range(6), batch_sampler=batches))
    orders = [torch.randperm(6, generator=torch.Generator().manual_seed(7 + epoch)).tolist() for epoch in range(3)]
    assert [torch.cat(list(loader)).tolist() for _ in range(2)] == orders[:2]
    loader.set_epoch(2)
    assert torch.cat(list(loader)).tolist() == orders[2]


@pytest.mark.parametrize("dispatches", [False, True])
def test_a_pickled_loader_continues_where_the_loop_was(dispatches: bool) -> None:
    given = DataLoader(list(range(10)), batch_size=2, shuffle=True)
    loader = prepare_data_loader(given, dispatch_batches=dispatches, put_on_device=True)
    batches = iter(loader)
    seen = [next(batches).tolist(), next(batches).tolist()]
    copied = pickle.loads(pickle.dumps(loader))
    rest = values(copied)
    assert len(rest) == 3 and sorted(sum(seen + rest, [])) == list(range(10))
    assert rest == [batch.tolist() for batch in batches]
    assert len(values(copied)) == 5


def trained() -> tuple[Any, ...]:
    torch.manual_seed(3)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loader = DataLoader(torch.arange(32.0).view(8, 4), batch_size=1)
    objects = accelerator.prepare(net, optimizer, scheduler, loader)
    train(accelerator, *objects)
    return accelerator, *objects


def train(accelerator: Any, net: Any, optimizer: Any, scheduler: Any, loader: Any) -> list[float]:
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(batch).square().sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return [*net.weight.flatten().tolist(), *scheduler.get_last_lr()]


def test_a_pickled_accelerator_trains_on_as_the_original() -> None:
    accelerator, *objects = trained()
    copied = pickle.loads(pickle.dumps(accelerator))
    assert copied.gradient_accumulation_steps == 2
    parts = [copied._models[0], copied._optimizers[0], copied._schedulers[0], copied._dataloaders[0]]
    assert parts[0].weight.data_ptr() != objects[0].weight.data_ptr()
    assert parts[2].optimizers == [parts[1]]
    continued = train(copied, *parts)
    assert continued == train(accelerator, *objects)


def test_a_pickled_optimizer_has_its_state_and_must_be_prepared() -> None:
    _, _, optimizer, _, _ = trained()
    copied = pickle.loads(pickle.dumps(optimizer))
    for mine, theirs in zip(copied.state.values(), optimizer.state.values()):
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"]) and mine["step"] == theirs["step"] == 4
    assert copied.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.1 / 16
    assert not copied._is_accelerate_prepared and optimizer._is_accelerate_prepared
    with pytest.raises(ConfigError, match="before accelerator.prepare"):
        copied.step()


def test_the_last_reference_frees_an_accelerator_and_what_it_prepared() -> None:
    gc.collect()
    gc.disable()
    try:
        objects = list(trained())
        batches = iter(objects[4])
        next(batches)
        watched = [weakref.ref(objects[0]), weakref.ref(objects[2]), weakref.ref(objects[4])]
        del batches
        objects.clear()
        assert [one() for one in watched] == [None, None, None]
    finally:
        gc.enable()


def test_a_new_number_of_accumulation_steps_holds_from_the_next_group() -> None:
    accelerator, net, *_ = trained()
    accelerator.gradient_accumulation_steps = 3
    assert accelerator.gradient_state.num_steps == 3
    updates = []
    for _ in range(3):
        with accelerator.accumulate(net):
            updates.append(accelerator.sync_gradients)
            accelerator.backward(net(torch.ones(1, 4)).sum())
            if len(updates) == 1:
                with pytest.raises(ConfigError, match="set within an accumulation group"):
                    accelerator.gradient_accumulation_steps = 2
    assert updates.count(True) == 1 and accelerator.gradient_accumulation_steps == 3
    with pytest.raises(ConfigError, match="expected at least 1"):
        accelerator.gradient_accumulation_steps = 0


OF_TWO = """
import torch
from torch.utils.data import DataLoader, IterableDataset
from lockstep import Accelerator
from lockstep.data_loader import prepare_data_loader
from lockstep.parallelism_config import ParallelismConfig
from lockstep.utils import DataLoaderConfiguration, FullyShardedDataParallelPlugin

accelerator = Accelerator()
rank = accelerator.process_index


class Batches:
    def __len__(self):
        return 3

    def __iter__(self):
        yield from ([0], [1, 2], [3, 4, 5])


numbers = torch.arange(10)
loader = accelerator.prepare(DataLoader(numbers, batch_sampler=Batches()))
got = [batch.tolist() for batch in loader]
assert got == ([[0], [3, 4, 5]] if rank == 0 else [[1, 2], [0]]), got
pairs = accelerator.prepare(DataLoader(numbers, batch_sampler=[[0, 1], [2, 3], [4, 5]]))
assert torch.cat([accelerator.gather_for_metrics(batch) for batch in pairs]).tolist() == [0, 1, 2, 3, 4, 5]


class Sharded(IterableDataset):
    num_shards = 2

    def __init__(self, parts):
        self.parts = parts

    def shard(self, num_shards, index):
        assert num_shards == 2
        return Sharded([self.parts[index]])

    def __iter__(self):
        return (value for part in self.parts for value in part)


Sharded.__module__ = "datasets.iterable_dataset"
parts = [[0, 1, 2, 3], [10, 11, 12, 13]]
read = []
for splits in (False, True):
    loader = prepare_data_loader(DataLoader(Sharded(parts), batch_size=2), split_batches=splits)
    read.append([batch.tolist() for batch in loader])
mine = [[10 * rank, 10 * rank + 1], [10 * rank + 2, 10 * rank + 3]]
assert read[0] == mine, read
assert read[1] == [[[0], [2], [10], [12]], [[1], [3], [11], [13]]][rank], read

# The shorter part's process repeats its first batch, which counts for no metric.
own = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
uneven = own.prepare(DataLoader(Sharded([[0, 1, 2, 3], [10, 11]]), batch_size=2))
batches = [(batch.tolist(), own.gather_for_metrics(batch).tolist()) for batch in uneven]
assert [batch for batch, _ in batches] == [[[0, 1], [2, 3]], [[10, 11], [10, 11]]][rank], batches
assert [gathered for _, gathered in batches] == [[0, 1, 10, 11], [2, 3]], batches

for config, plugin, text in (
    (ParallelismConfig(dp_replicate_size=2), None, ""),
    (ParallelismConfig(), None, ""),
    (ParallelismConfig(dp_shard_size=2), FullyShardedDataParallelPlugin(), ""),
    (ParallelismConfig(dp_replicate_size=4), None, "expected the number of processes, 2"),
    (ParallelismConfig(dp_shard_size=2), None, "the Accelerator shards no model"),
    (ParallelismConfig(dp_replicate_size=2), FullyShardedDataParallelPlugin(), "but the Accelerator shards models"),
):
    accelerator.state._reset_state()
    try:
        made = Accelerator(fsdp_plugin=plugin, parallelism_config=config)
    except ValueError as error:
        assert text and text in str(error), error
    else:
        assert not text, text
        assert config.total_size == 2 and made.parallelism_config is config
        assert made.torch_device_mesh.size() == 2 and made.torch_device_mesh["dp"].size() == 2
print("done")
"""


def test_two_processes_share_batches_of_any_size_and_shards_of_files() -> None:
    assert [output.split()[-1] for output in run_ranks(OF_TWO, 2)] == ["done", "done"]
