# SPDX-License-Identifier: Apache-2.0
"""Loaders that only Python can read continue with any number of processes: streams, dispatched ones, own samplers."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from launch import finish_ranks, run_ranks

LOADERS = """
import itertools
import json
import random
import sys
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler
from lockstep import Accelerator, DataLoaderConfiguration
from lockstep.utils import set_seed

N = 28


class Numbers(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return torch.tensor(index)


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        step, first = (1, 0) if info is None else (info.num_workers, info.id)
        return iter(range(first, N, step))


class Pairs(IterableDataset):
    def __iter__(self):
        return (torch.tensor([first, first + 1]) for first in range(0, N, 2))


class Shuffled(IterableDataset):
    def __iter__(self):
        order = list(range(N))
        random.shuffle(order)
        return iter(order)


class Buckets(BatchSampler):
    def __init__(self):
        self.batch_size = 2
        self.drop_last = False

    def __len__(self):
        return N // 2

    def __iter__(self):
        firsts = list(range(0, N, 2))
        random.shuffle(firsts)
        return ([first, first + 1] for first in firsts)


class OwnBatches(BatchSampler):
    pass


def random_batches(batch_size=2):
    return OwnBatches(RandomSampler(Numbers()), batch_size, False)


def accelerator_of(**options):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def prepared():
    shards, dispatched = accelerator_of(dispatch_batches=False), accelerator_of(dispatch_batches=True)
    split = accelerator_of(dispatch_batches=False, split_batches=True)
    loaders = {
        "shards": shards.prepare(DataLoader(Stream(), batch_size=2)),
        "shards of single samples": shards.prepare(DataLoader(Stream(), batch_size=None)),
        "shards, shuffled": shards.prepare(DataLoader(Shuffled(), batch_size=2)),
        "shards of a worker": shards.prepare(
            DataLoader(Stream(), batch_size=2, num_workers=1, persistent_workers=True)
        ),
        "shards, split": split.prepare(DataLoader(Stream(), batch_size=6)),
        "buckets": shards.prepare(DataLoader(Numbers(), batch_sampler=Buckets())),
        "own batches": shards.prepare(DataLoader(Numbers(), batch_sampler=random_batches())),
        "own batches, split": split.prepare(DataLoader(Numbers(), batch_sampler=random_batches(6))),
        "single indices": shards.prepare(DataLoader(Numbers(), batch_size=None, sampler=RandomSampler(Numbers()))),
        "dispatched": dispatched.prepare(DataLoader(Stream(), batch_size=2)),
        "dispatched of workers": dispatched.prepare(DataLoader(Stream(), batch_size=2, num_workers=2)),
        "dispatched batches of the stream": dispatched.prepare(DataLoader(Pairs(), batch_size=None)),
        "dispatched numbers": dispatched.prepare(DataLoader(Numbers(), batch_size=2, shuffle=True)),
        "dispatched buckets": dispatched.prepare(DataLoader(Numbers(), batch_sampler=Buckets())),
    }
    return (shards, dispatched, split), loaders


def samples_of(accelerator, batches):
    return [value for batch in batches for value in accelerator.gather(torch.as_tensor(batch).reshape(-1)).tolist()]
"""


@pytest.mark.parametrize("saving, resuming", [(1, 1), (2, 2), (1, 2), (2, 1), (2, 3)])
def test_a_pass_continues_with_the_samples_that_no_process_has_had(tmp_path: Path, saving: int, resuming: int) -> None:
    save = f"""
        set_seed(3)
        accelerators, loaders = prepared()
        passes = {{name: iter(loader) for name, loader in loaders.items()}}
        used = {{name: samples_of(accelerators[0], itertools.islice(one, 2)) for name, one in passes.items()}}
        for number, accelerator in enumerate(accelerators):
            accelerator.save_state(f"{tmp_path}/{{number}}")
        rest = {{name: samples_of(accelerators[0], one) for name, one in passes.items()}}
        second = {{name: samples_of(accelerators[0], one) for name, one in loaders.items() if "uffled" in name}}
        print(json.dumps([used, rest, second, torch.rand(1).item()]))
    """
    load = f"""
        set_seed(3)
        accelerators, loaders = prepared()
        for number, accelerator in enumerate(accelerators):
            accelerator.load_state(f"{tmp_path}/{{number}}")
        rest = {{name: samples_of(accelerators[0], one) for name, one in loaders.items()}}
        second = {{name: samples_of(accelerators[0], one) for name, one in loaders.items() if "uffled" in name}}
        print(json.dumps([rest, second, torch.rand(1).item()]))
    """
    saved = [output.splitlines()[-1] for output in run_ranks(LOADERS + textwrap.dedent(save), saving)]
    used, rest, second, number = json.loads(saved[0])
    resumed = [output.splitlines()[-1] for output in run_ranks(LOADERS + textwrap.dedent(load), resuming)]
    continued, following, after = json.loads(resumed[0])
    for name, begun in used.items():
        left = 28 - len(begun)
        assert sorted(begun + rest[name][:left]) == list(range(28)), name
        assert continued[name][:left] == rest[name][:left], name
    assert {name: order[:28] for name, order in following.items()} == {
        name: order[:28] for name, order in second.items()
    }
    if saving == resuming:
        assert continued == rest and after == number, "the loop's own random numbers"


@pytest.mark.parametrize(
    "loader, other, message",
    [
        ("Stream(), batch_size=2, num_workers=2", "", "several workers stood is unknown"),
        ("Numbers(), batch_sampler=random_batches(2)", "Numbers(), batch_sampler=random_batches(3)", "sample 4 by"),
    ],
)
def test_a_position_that_cannot_be_translated_is_refused(tmp_path: Path, loader: str, other: str, message: str) -> None:
    program = """
        accelerator = accelerator_of(dispatch_batches=False)
        loader = accelerator.prepare(DataLoader({loader}))
        {act}
    """
    save = f"""
        batches = iter(loader)
        next(batches), next(batches)
        accelerator.save_state("{tmp_path}/state")
    """
    load = f"""
        accelerator.load_state("{tmp_path}/state")
        next(iter(loader))
    """

    def text(loader: str, act: str) -> str:
        return LOADERS + textwrap.dedent(program).format(loader=loader, act=textwrap.dedent(act))

    run_ranks(text(loader, save), 1)
    outputs = finish_ranks(text(other or loader, load), 2)
    assert all(code != 0 and "[load_state]" in output and message in output for code, output in outputs), outputs
