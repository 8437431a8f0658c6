# SPDX-License-Identifier: Apache-2.0
"""Random numbers of datasets, streams and collate functions depend on seed, epoch and sample only."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from launch import run_ranks

DATASETS = """
import json
import random
import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info, random_split
from lockstep import Accelerator, DataLoaderConfiguration
from lockstep.utils import set_seed


def draw():
    return [random.random(), numpy.random.rand(), torch.rand(1).item()]


class Noise(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([float(index), *draw()], dtype=torch.float64)


class NoiseOfBatches(Noise):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class NoiseStream(IterableDataset):
    def __iter__(self):
        for index in range(12):
            yield torch.tensor([float(index), *draw()], dtype=torch.float64)


class MaskingCollate:
    def __call__(self, samples):
        batch = torch.stack(samples)
        return torch.cat([batch, torch.rand(len(samples), 1, dtype=torch.float64)], dim=1)


def accelerator_of(**options):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def numbers_of(accelerator, loader, columns=4):
    # Returns {sample: its numbers}.
    rows = torch.cat([accelerator.gather(batch) for batch in loader])
    return {str(int(row[0])): row[1:columns].tolist() for row in rows}
"""


def results(text: str, ranks: int) -> list[object]:
    """Returns what each of the processes printed, as JSON."""
    outputs = run_ranks(DATASETS + textwrap.dedent(text), ranks)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize("source", ["Noise", "NoiseStream", "NoiseStream dispatched"])
def test_numbers_of_samples_do_not_depend_on_workers_or_processes(source: str) -> None:
    program = f"""
        set_seed(5, device_specific=True)
        dataset = {source.split()[0]}()
        accelerator = accelerator_of(dispatch_batches={"dispatched" in source})
        found = []
        for options in ({{}}, {{"num_workers": 1}}, {{"num_workers": 2, "persistent_workers": True}}):
            if options.get("num_workers") == 2 and isinstance(dataset, IterableDataset):
                continue  # Each worker reads the complete stream.
            accelerator._dataloaders.clear()
            loader = accelerator.prepare(DataLoader(dataset, batch_size=2, **options))
            found.append([numbers_of(accelerator, loader) for _ in range(2)])
        own = draw()
        print(json.dumps([found, own]))
    """
    alone, pair = results(program, 1)[0][0], results(program, 2)
    assert pair[0][0] == pair[1][0] and pair[0][1] != pair[1][1], "the loop's own numbers are those of the process"
    first, second = alone[0]
    assert all(found == [first, second] for found in alone + pair[0][0])
    values = [value for epoch in (first, second) for numbers in epoch.values() for value in numbers]
    assert len(set(values)) == 2 * 12 * 3, "every number differs from the others"


@pytest.mark.parametrize("ranks", [1, 2])
def test_random_numbers_depend_on_seed_loader_and_earlier_visits(ranks: int) -> None:
    program = """
        accelerator = accelerator_of()

        def numbers(seed, dataset=None, at=0, after=None, **options):
            set_seed(seed)
            accelerator._dataloaders[:] = [None] * at
            loader = accelerator.prepare(DataLoader(dataset or Noise(), batch_size=2, **options))
            if after is not None:
                set_seed(after)
            return numbers_of(accelerator, loader)

        plain = numbers(1)
        assert plain == numbers(1) == numbers(2, after=1) != numbers(2)
        assert plain != numbers(1, at=1), "two loaders draw different numbers"
        assert plain == numbers(1, shuffle=True), "the order does not matter"
        indices = [numpy.int64(5), torch.tensor(7), 3, 0]
        assert {key: plain[key] for key in "0357"} == numbers(1, sampler=indices), "nor does an index's type"

        loader = accelerator.prepare(DataLoader(Noise(), batch_size=2, sampler=[3] * 8))
        rows = torch.cat([accelerator.gather(batch) for batch in loader])
        assert len({tuple(row) for row in rows.tolist()}) == 8, "a sample that is repeated gets other numbers"

        # Datasets of torch around one, batches at once, single samples.
        subset = torch.utils.data.Subset(Noise(), [4, 9, 1, 0])
        assert len(numbers(1, subset)) == 4
        assert numbers(1, NoiseOfBatches()) == numbers(1, NoiseOfBatches(), num_workers=1)
        single = accelerator.prepare(DataLoader(Noise(), batch_size=None))
        assert len({float(row[1]) for row in single}) == len(single)
    """
    run_ranks(DATASETS + textwrap.dedent(program), ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loop_draws_the_same_numbers_with_and_without_workers(ranks: int) -> None:
    program = """
        accelerator = accelerator_of(dispatch_batches=False)
        kinds = {
            "plain": TensorDataset(torch.arange(12)), "noise": Noise(), "stream": NoiseStream(),
        }
        found = {}
        for name, dataset in kinds.items():
            for workers in (0, 1):
                set_seed(2)
                torch.randn(1), numpy.random.randn(1)  # numpy keeps a second number of its pair.
                loader = accelerator.prepare(DataLoader(dataset, batch_size=2, num_workers=workers))
                drawn = [[*draw(), numpy.random.randn()] for _ in loader]
                found.setdefault(name, []).append(drawn)
        count = len(found["plain"][0])
        assert all(drawn[:count] == found["plain"][0] for pair in found.values() for drawn in pair), found

        class Broken(Noise):
            def __getitem__(self, index):
                draw()
                raise KeyError("broken")

        set_seed(2)
        loader = accelerator.prepare(DataLoader(Broken(), batch_size=2))
        state = torch.get_rng_state(), random.getstate()
        try:
            iterator = iter(loader)
            torch.manual_seed(2)
            torch.empty((), dtype=torch.int64).random_()  # The workers' seed.
            expected = torch.rand(1).item()
            torch.manual_seed(2)
            next(iterator)
        except KeyError:
            pass
        assert torch.rand(1).item() == expected and random.getstate() == state[1]
    """
    run_ranks(DATASETS + textwrap.dedent(program), ranks)


def test_a_collate_function_draws_from_the_samples_of_its_batch() -> None:
    program = """
        set_seed(4)
        accelerator = accelerator_of()
        found = []
        for dataset in (Noise(), NoiseStream(), [torch.zeros(1)] * 12):
            masks = []
            for workers in (0, 1):
                accelerator._dataloaders.clear()
                loader = accelerator.prepare(
                    DataLoader(dataset, batch_size=2, collate_fn=MaskingCollate(), num_workers=workers)
                )
                masks.append([[batch[:, -1].tolist() for batch in loader] for _ in range(2)])
            assert masks[0] == masks[1]
            found.append(masks[0])
        print(json.dumps(found))
    """
    found = results(program, 2)
    for mine, other in zip(*found, strict=True):
        values = [value for epoch in mine + other for batch in epoch for value in batch]
        assert len(set(values)) == len(values), "the processes' batches have different masks"


@pytest.mark.parametrize("saving, resuming", [(1, 1), (1, 2), (2, 1)])
def test_a_resumed_epoch_draws_the_numbers_of_the_unbroken_one(tmp_path: Path, saving: int, resuming: int) -> None:
    """The resumed programs have another seed: that of the checkpoint holds."""
    begin = """
        accelerator = accelerator_of()
        sources = (Noise(), NoiseStream())
        loaders = [accelerator.prepare(DataLoader(one, batch_size=2, shuffle=one is sources[0])) for one in sources]
    """
    save = f"""
        passes = [iter(loader) for loader in loaders]
        for one in passes:
            accelerator.gather(next(one))
        accelerator.save_state("{tmp_path}/state")
        print(json.dumps([[numbers_of(accelerator, one) for one in them] for them in (passes, loaders)]))
    """
    load = f"""
        accelerator.load_state("{tmp_path}/state")
        print(json.dumps([[numbers_of(accelerator, one) for one in loaders] for _ in range(2)]))
    """
    expected = results("        set_seed(8)" + begin + save, saving)[0]
    got = results("        set_seed(9)" + begin + load, resuming)[0]
    for before, after in zip(expected[0] + expected[1], got[0] + got[1], strict=True):
        common = before.keys() & after.keys()
        assert len(common) >= 8 and {key: before[key] for key in common} == {key: after[key] for key in common}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_dataset_of_persistent_workers_sees_the_epoch(ranks: int) -> None:
    program = """
        accelerator = accelerator_of(dispatch_batches=False)

        class Epochs(Dataset):
            epoch = -1

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __len__(self):
                return 8

            def __getitem__(self, index):
                return self.epoch

        class EpochStream(Epochs, IterableDataset):
            def __iter__(self):
                return (self.epoch for _ in range(8))

        for dataset in (Epochs(), EpochStream()):
            for options in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
                loader = accelerator.prepare(DataLoader(dataset, batch_size=2, **options))
                seen = [sorted(set(torch.cat(list(loader)).tolist())) for _ in range(3)]
                loader.set_epoch(7)
                seen += [sorted(set(torch.cat(list(loader)).tolist())) for _ in range(2)]
                assert seen == [[0], [1], [2], [7], [8]], (dataset, options, seen)

        given = Noise()

        def start(worker):
            assert type(get_worker_info().dataset) is Noise, get_worker_info()

        list(accelerator.prepare(DataLoader(given, batch_size=2, num_workers=1, worker_init_fn=start)))
        loader = accelerator.prepare(DataLoader(given, batch_size=2))
        assert loader.dataset is given
    """
    run_ranks(DATASETS + textwrap.dedent(program), ranks)
