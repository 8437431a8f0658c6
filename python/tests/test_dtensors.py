# SPDX-License-Identifier: Apache-2.0
"""Models that torch.distributed.tensor has divided train as in one process, and as those that prepare divides."""

from __future__ import annotations

from typing import Any

import pytest
from launch import run_ranks

TRAIN = """
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from lockstep import Accelerator, ConfigError, ParallelismConfig
from lockstep.state import AcceleratorState
from lockstep.utils import TorchTensorParallelConfig


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(16, 8)
        self.up = torch.nn.Linear(8, 32)
        self.down = torch.nn.Linear(32, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 4, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.head(self.norm(x + self.down(torch.tanh(self.up(x)))))


STYLES = {"up": ColwiseParallel, "down": RowwiseParallel}
torch.manual_seed(0)
tokens, targets = torch.randint(16, (48, 3)), torch.randn(48, 3, 4, dtype=torch.float64)
folder, world = os.environ["FOLDER"], int(os.environ["WORLD_SIZE"])


def built(accelerator, divided):
    torch.manual_seed(1)
    net = Net().double()
    if divided == "torch":
        line = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))["tp"]
        net = parallelize_module(net, line, {name: style() for name, style in STYLES.items()})
        embedding = {"words": RowwiseParallel(input_layouts=torch.distributed.tensor.Replicate())}
        net = parallelize_module(net, line, embedding)
    return net


def train(divided=None, save=None, load=None, **options):
    AcceleratorState._reset_state()
    config = ParallelismConfig(tp_size=2) if divided else None
    accelerator = Accelerator(parallelism_config=config, gradient_accumulation_steps=2, **options)
    net = built(accelerator, divided)
    if divided == "own":
        plan = {"up": "colwise", "down": "rowwise", "words": "embedding"}
        config.tp_handler = TorchTensorParallelConfig(plan=plan, example=lambda: net(tokens[:2]))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    data = world // 2 if divided else 1
    loader = DataLoader(TensorDataset(tokens, targets), batch_size=4 // data)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if load:
        accelerator.load_state(load)
    norms = []
    for x, y in loader:
        with accelerator.accumulate(net):
            accelerator.backward((net(x) - y).square().mean())
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(net.parameters(), 0.3).item())
            optimizer.step()
            optimizer.zero_grad()
    if save:
        accelerator.save_state(save)
    state = {name: value.clone() for name, value in accelerator.get_state_dict(net).items()}
    if divided == "torch":
        assert net.up.weight.shape == (32, 8) and isinstance(net.up.weight, DTensor)
        assert dict(net.named_parameters())["up.weight"].shape == (16, 8)
    accelerator.free_memory()
    return state, norms
"""

ONE = TRAIN + """
state, norms = train()
assert len(norms) == 6
torch.save((state, norms), f"{folder}/one.pt")
train(save=f"{folder}/saved")
torch.save(train(load=f"{folder}/saved"), f"{folder}/resumed.pt")
"""

SEVERAL = TRAIN + """
def check(got, name):
    expected = torch.load(f"{folder}/{name}.pt")
    assert max(abs(a - b) for a, b in zip(got[1], expected[1], strict=True)) < 1e-12, (got[1], expected[1])
    assert list(got[0]) == list(expected[0])
    for key, value in expected[0].items():
        assert (got[0][key] - value).abs().max() < 1e-12, (name, key, (got[0][key] - value).abs().max())


check(train("torch", save=f"{folder}/parts"), "one")
check(train("own"), "one")
check(train("torch", load=f"{folder}/saved"), "resumed")
check(train("torch", load=f"{folder}/parts"), "resumed")


def fails(message, body):
    try:
        body()
    except ConfigError as error:
        assert message in str(error), error
    else:
        raise AssertionError("expected: " + message)


fails("words.weight is a DTensor", lambda: train("torch", zero={"stage": 2}))
AcceleratorState._reset_state()
accelerator = Accelerator(parallelism_config=ParallelismConfig(tp_size=2))
if world > 2:
    net = parallelize_module(Net(), init_device_mesh("cpu", (world,)), {"up": ColwiseParallel()})
    fails("expected the processes of a tp line, [", lambda: accelerator.prepare(net))
net = built(accelerator, "torch")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
net(tokens[:2]).sum().backward()
optimizer.step()
fails("has the state of updates with DTensors", lambda: accelerator.prepare(net, optimizer))
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_models_that_torch_has_divided_train_as_in_one_process(tmp_path: Any, ranks: int) -> None:
    run_ranks(ONE, 1, FOLDER=str(tmp_path))
    run_ranks(SEVERAL, ranks, FOLDER=str(tmp_path))
