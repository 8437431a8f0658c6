# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a training loop that would train another model: one process and several behave alike."""

from __future__ import annotations

import json

import pytest
import torch
from launch import finish_ranks, run_ranks

BEGIN = """
import json
import sys
import torch
from torch import nn
from lockstep import Accelerator
from lockstep._core import ConfigError

torch.manual_seed(3)


def says(call, *words):
    try:
        call()
    except ConfigError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no error; expected one with {words}")
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_without_gradient_and_layers_added_after_prepare_are_refused(ranks: int) -> None:
    run_ranks(
        BEGIN + """
accelerator = Accelerator()
net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
net, optimizer = accelerator.prepare(net, opt)
x = torch.ones(4, 2)
for lost in (net(x).mean().detach(), accelerator.gather_for_metrics(net(x)).mean(), torch.tensor(3)):
    says(lambda: accelerator.backward(lost), "nothing would be trained")
with torch.no_grad():
    lost = net(x).mean()
says(lambda: accelerator.backward(lost), "outside of torch.no_grad()")

accelerator.backward(accelerator.reduce(net(x).mean(), reduction="mean"))
optimizer.step()
optimizer.zero_grad()
accelerator.backward(accelerator.gather(net(x)).square().mean())
optimizer.step()
optimizer.zero_grad()

net[1] = nn.Linear(2, 1)
optimizer.add_param_group({"params": list(net[1].parameters())})
says(lambda: accelerator.prepare(net), "1.weight was added to the model after prepare()")
""",
        ranks,
    )


def test_a_call_of_one_rank_only_is_named_on_all_ranks() -> None:
    outputs = finish_ranks(
        BEGIN + """
accelerator = Accelerator()
mine = accelerator.process_index


def train(slip, rate=0.1):
    net = nn.Linear(2, 1)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=rate))
    for step in range(3):
        accelerator.backward(net(torch.ones(4, 2)).mean())
        if step == 0 and mine == 1:
            slip(net, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_model(net, sys.argv[0] + ".weights")


def set_rate(net, optimizer):
    optimizer.param_groups[0]["lr"] = 0.5


def write(net, optimizer):
    net.weight.data.add_(1)


says(lambda: train(lambda *_: None, rate=0.1 + mine), "the settings of optimizer", '"lr":0.1')
accelerator.free_memory()
says(lambda: train(set_rate), "the learning rates of optimizer 0", "rank 0 has [0.1], rank 1 has [0.5]")
accelerator.free_memory()
says(lambda: train(write), "[save_model] parameter weight must be equal on all ranks")
""",
        2,
    )
    assert [code for code, _ in outputs] == [0, 0], outputs


SPARSE = """
from lockstep.utils import set_seed

accelerator = Accelerator()
net = nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True, mode="sum"), nn.Linear(4, 1))
words, dense = torch.optim.{}(net[0].parameters(), lr=0.1), torch.optim.Adam(net[1].parameters(), lr=0.1)
net, words, dense = accelerator.prepare(net, words, dense)
for step in range(4):
    rows = (torch.arange(12).reshape(4, 3) * (step + 1)) % 20
    with accelerator.split_between_processes(list(range(4))) as own:
        loss = net(rows[list(own)]).square().mean()
    accelerator.backward(loss)
    assert net[0].weight.grad.is_sparse
    words.step()
    dense.step()
    words.zero_grad()
    dense.zero_grad()
accelerator.end_training()
print(json.dumps(net[0].weight.tolist()))
"""


@pytest.mark.parametrize("rule", ["SGD", "SparseAdam"])
def test_sparse_embeddings_train_as_in_one_process(rule: str) -> None:
    program = BEGIN + SPARSE.format(rule)
    one, *two = (
        torch.tensor(json.loads(output.splitlines()[-1])) for ranks in (1, 2) for output in run_ranks(program, ranks)
    )
    assert torch.equal(two[0], two[1])
    torch.testing.assert_close(two[0], one, rtol=1e-5, atol=1e-6)


DEEPSPEED = """
from lockstep import deepspeed

config = {{
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
    "zero_optimization": {{"stage": {stage}}},
}}
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
engine, optimizer, *_ = deepspeed.initialize(model=net, config=config)
x = torch.sin(torch.arange(24.0)).reshape(4, 6)
for step in range(3):
    engine.backward(engine(x).square().mean() * 1000)  # A bad batch, which the program skips.
    {drop}
    engine.backward(engine(x + step).square().mean())
    engine.step()
engine.backward(engine(x).square().mean())
if {stage} > 0:
    says(lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0), "each rank has a part under ZeRO")
engine.step()
with deepspeed.zero.GatheredParameters(list(net.parameters())):
    print(json.dumps([p.tolist() for p in net.parameters()]))
"""


def test_a_skipped_batch_leaves_no_gradient_at_any_stage() -> None:
    drops = ["net.zero_grad()", "net.zero_grad(set_to_none=False)", "[setattr(p, 'grad', None) for p in net.parameters()]"]
    expected = None
    for stage, drop in ((0, drops[0]), (1, drops[1]), (2, drops[0]), (2, drops[2]), (3, drops[1])):
        program = BEGIN + DEEPSPEED.format(stage=stage, drop=drop)
        values = [torch.tensor(value) for value in json.loads(run_ranks(program, 2)[0].splitlines()[-1])]
        expected = expected or values
        for mine, right in zip(values, expected, strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5, msg=lambda text: f"stage {stage}, {drop}: {text}")


LOADERS = """
from torch.utils.data import DataLoader, TensorDataset, random_split

accelerator = Accelerator()
mine = accelerator.process_index
every = TensorDataset(torch.arange(24.0).reshape(24, 1))


def train(loader, leaves=lambda batch: False, evaluates=lambda: True):
    net = nn.Linear(1, 1)
    test = DataLoader(every, batch_size=2)
    net, optimizer, loader, test = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 1e-4), loader, test)
    for _ in range(2):
        for index, (batch,) in enumerate(loader):
            if leaves(index):
                break
            accelerator.backward(net(batch).mean())
            optimizer.step()
            optimizer.zero_grad()
        if evaluates():
            for (batch,) in test:
                net(batch)
    accelerator.end_training()


def refused(loader, *words, **slips):
    says(lambda: train(loader, **slips), *words)
    accelerator.free_memory()


class Backwards(torch.utils.data.Sampler):
    def __len__(self):
        return 24

    def __iter__(self):
        return iter(range(24) if mine == 0 else range(23, -1, -1))


train(DataLoader(every, batch_size=2, shuffle=True), leaves=lambda batch: batch == 4)
accelerator.free_memory()
refused(DataLoader(every, batch_size=2 + mine), "[prepare] the batch_size of loader 0", "rank 0 has 2, rank 1 has 3")
refused(DataLoader(TensorDataset(torch.ones(24 - mine, 1)), batch_size=2), "the number of samples of loader 0")
refused(DataLoader(every, batch_size=2, sampler=Backwards()), "[backward] the order of samples of loader 0")
unseeded = random_split(every, [20, 4], generator=torch.Generator().manual_seed(mine))[0]
refused(DataLoader(unseeded, batch_size=2), "[backward] the order of samples of loader 0")
refused(
    DataLoader(every, batch_size=2),
    "the number of batches in the training loops over loader 0",
    "rank 1 has 2 in the last of 1 finished",
    leaves=lambda batch: mine == 1 and batch == 2,
)
refused(
    DataLoader(every, batch_size=2),
    "the number of finished passes over loader 1",
    evaluates=lambda: mine == 0,
)
"""


def test_loaders_that_ranks_read_differently_are_named_on_all() -> None:
    outputs = finish_ranks(BEGIN + LOADERS, 2)
    assert [code for code, _ in outputs] == [0, 0], outputs


@pytest.mark.parametrize("expect", [True, False])
def test_several_processes_without_a_prepared_loader_are_warned_once(expect: bool) -> None:
    outputs = run_ranks(
        BEGIN + f"""
accelerator = Accelerator(expect_prepared_loader={expect})
net = nn.Linear(1, 1)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
for _ in range(3):
    accelerator.backward(net(torch.ones(2, 1)).mean())
    optimizer.step()
    optimizer.zero_grad()
""",
        2,
    )
    assert outputs[0].count("no loader was prepared") == (1 if expect else 0), outputs
