# SPDX-License-Identifier: Apache-2.0
"""A program that `lockstep launch --resume` starts continues as the unbroken run, without a call of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import run_ranks

PROGRAM = """
import json, random, torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset
from lockstep import Accelerator
from lockstep.utils import ProjectConfiguration, set_seed

class Own(BatchSampler):
    def __init__(self):
        self.batch_size, self.drop_last = 2, False
    def __len__(self):
        return 8
    def __iter__(self):
        order = random.sample(range(16), 16)
        return (order[begin : begin + 2] for begin in range(0, 16, 2))

set_seed({seed})
config = ProjectConfiguration(project_dir={folder!r}, automatic_checkpoint_naming=True)
accelerator = Accelerator(project_config=config)
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
data = TensorDataset(torch.arange(16.0).reshape(16, 1))
loader = DataLoader(data, batch_sampler=Own()) if {own} else DataLoader(data, batch_size=2, shuffle=True)
net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
{begin}
seen = []
for index, (batch,) in enumerate(loader):
    seen.append(batch.flatten().tolist())
    accelerator.backward(net(batch / 16).square().mean())
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if {saves} and index == 1:
        accelerator.save_state()
        seen = []
rates = [optimizer.param_groups[0]["lr"], schedule.get_last_lr(), schedule.last_epoch]
print(json.dumps([seen, net.weight.tolist(), rates, random.random(), torch.rand(1).item()]))
"""


def run(folder: Path, ranks: int, own: bool, begin: str = "", **variables: str) -> list[object]:
    saves = not variables and not begin
    program = PROGRAM.format(folder=str(folder), seed=1 if saves else 2, own=own, saves=saves, begin=begin)
    return [json.loads(output.splitlines()[-1]) for output in run_ranks(program, ranks, **variables)]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_requested_resume_equals_the_unbroken_run(tmp_path: Path, ranks: int, own: bool) -> None:
    unbroken = run(tmp_path, ranks, own)
    assert all(len(result[0]) == 8 // ranks - 2 for result in unbroken)
    assert run(tmp_path, ranks, own, LOCKSTEP_RESUME="1") == unbroken
    assert run(tmp_path, ranks, own, "accelerator.load_state()", LOCKSTEP_RESUME="1") == unbroken


def test_a_requested_resume_without_a_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    (result,) = run(tmp_path, 1, False, LOCKSTEP_RESUME="1")
    assert len(result[0]) == 8


LONE_SAVE = """
import json, sys, torch
from torch.utils.data import DataLoader, TensorDataset
from lockstep import Accelerator

accelerator = Accelerator()
torch.manual_seed(3)
net = torch.nn.Linear(1, 1)
optimizer = {optimizer}
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
loader = DataLoader(TensorDataset(torch.arange(16.0).reshape(16, 1)), batch_size=2, shuffle=True)
net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)

def train(saves):
    for index, (batch,) in enumerate(loader):
        accelerator.backward(net(batch / 16).square().mean())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if saves and index == 1 and accelerator.is_main_process:
            accelerator.save_state({folder!r})
    return [net.weight.item(), net.bias.item(), schedule.get_last_lr()]

unbroken = train(True)
accelerator.wait_for_everyone()
accelerator.load_state({folder!r})
print(json.dumps([unbroken, train(False)]))
"""


@pytest.mark.parametrize(
    "optimizer", ["torch.optim.AdamW(net.parameters(), 0.1)", "torch.optim.Adagrad(net.parameters())"]
)
def test_a_save_of_the_main_process_alone_continues_on_all(tmp_path: Path, optimizer: str) -> None:
    program = LONE_SAVE.format(folder=str(tmp_path / "state"), optimizer=optimizer)
    for output in run_ranks(program, 2):
        unbroken, resumed = json.loads(output.splitlines()[-1])
        assert resumed == unbroken


AT_THE_END_OF_A_PASS = """
import json, torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from lockstep import Accelerator
from lockstep.utils import DataLoaderConfiguration, set_seed

def prepared():
    set_seed(4)
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration({configuration}))
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    data = TensorDataset(torch.arange(16.0).reshape(16, 1))
    generator = {generator}
    return accelerator, *accelerator.prepare(net, optimizer, {loader})

accelerator, net, optimizer, loader = prepared()
for epoch in range(3):
    seen = []
    for index, (batch,) in enumerate(loader):
        seen.append(batch.flatten().tolist())
        accelerator.backward(net(batch / 16).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if epoch == 1 and index == len(loader) - 1:
            accelerator.save_state({folder!r} + "/at_last_batch")
    if epoch == 1:
        accelerator.save_state({folder!r} + "/behind_the_loop")
for state in ("at_last_batch", "behind_the_loop"):
    accelerator, net, optimizer, loader = prepared()
    accelerator.load_state({folder!r} + "/" + state)
    print(json.dumps([state, seen, [batch.flatten().tolist() for (batch,) in loader]]))
"""
SHUFFLED = "DataLoader(data, batch_size=2, shuffle=True, generator=generator)"


@pytest.mark.parametrize(
    ("generator", "loader", "configuration"),
    [
        ("None", SHUFFLED, ""),
        ("torch.Generator().manual_seed(9)", SHUFFLED, ""),
        ("torch.Generator().manual_seed(9)", SHUFFLED, "dispatch_batches=True"),
        ("None", SHUFFLED, "use_seedable_sampler=True"),
        (
            "torch.Generator().manual_seed(9)",
            "DataLoader(data, batch_sampler=type('Own', (BatchSampler,), {})"
            "(RandomSampler(data, generator=generator), 2, False))",
            "",
        ),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_save_at_the_end_of_a_pass_continues_with_the_next_one(
    tmp_path: Path, ranks: int, generator: str, loader: str, configuration: str
) -> None:
    program = AT_THE_END_OF_A_PASS.format(
        folder=str(tmp_path), generator=generator, loader=loader, configuration=configuration
    )
    for output in run_ranks(program, ranks):
        for line in output.splitlines()[-2:]:
            state, unbroken, resumed = json.loads(line)
            assert resumed == unbroken, state
