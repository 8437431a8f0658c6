# SPDX-License-Identifier: Apache-2.0
"""Buffers with persistent=False have rank 0's values after prepare and initialize."""

from __future__ import annotations

import json

import pytest
from launch import finish_ranks, run_ranks

NET = """
import json, os, torch
from torch import nn
from lockstep import Accelerator, ConfigError, deepspeed

RANK = int(os.environ["RANK"])

class Net(nn.Module):
    '''A layer with buffers that state_dict() lacks. Their values depend on the rank.'''

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)
        self.register_buffer("saved", torch.full((2,), float(RANK)))
        self.layer.register_buffer("noise", torch.full((3, 5), RANK + 0.5).t(), persistent=False)
        self.layer.register_buffer("positions", (torch.arange(4) + RANK).expand(3, 4), persistent=False)
        self.register_buffer("mask", torch.tensor(RANK == 0), persistent=False)
        self.register_buffer("phase", torch.full((2,), complex(RANK, 1)), persistent=False)
        self.register_buffer("short", torch.full((3,), RANK + 1.0, dtype=torch.bfloat16), persistent=False)
        self.register_buffer("invalid", torch.tensor([float("nan"), RANK]), persistent=False)
        self.register_buffer("none", None, persistent=False)
        self.register_buffer("empty", torch.empty(0), persistent=False)

    def forward(self, x):
        return self.layer(x) * self.saved.sum()

def values(net):
    return {name: str(buffer.tolist()) for name, buffer in net.named_buffers()}

net = Net()
"""


def equal_values(outputs: list[str]) -> dict[str, str]:
    first, *others = (json.loads(output.splitlines()[-1]) for output in outputs)
    assert all(other == first for other in others)
    return first


def check(outputs: list[str]) -> None:
    found = equal_values(outputs)
    assert found["saved"] == "[0.0, 0.0]" and found["mask"] == "True" and found["invalid"] == "[nan, 0.0]"
    assert found["layer.noise"] == str([[0.5] * 3] * 5) and found["layer.positions"] == str([[0, 1, 2, 3]] * 3)
    assert found["phase"] == "[1j, 1j]" and found["short"] == "[1.0, 1.0, 1.0]" and found["empty"] == "[]"


@pytest.mark.parametrize("options", ["", "zero={'stage': 2}", "zero={'stage': 3}"])
def test_prepare_copies_the_buffers_of_rank_0(options: str) -> None:
    program = f"""
    accelerator = Accelerator({options})
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    print(json.dumps(values(net)))
    """
    check(run_ranks(NET + program.replace("\n    ", "\n"), 2))


def test_prepare_model_copies_the_buffers_once() -> None:
    """A second call changes no buffers: ranks may have changed theirs on purpose."""
    program = """
accelerator = Accelerator()
net = accelerator.prepare_model(torch.compile(net, backend="eager"))
before = values(net)
net.layer.noise.fill_(RANK)
accelerator.prepare(net)
assert net.layer.noise.unique().tolist() == [RANK]
print(json.dumps({name.removeprefix("_orig_mod."): value for name, value in before.items()}))
"""
    check(run_ranks(NET + program, 2))


@pytest.mark.parametrize("stage", [0, 3])
def test_initialize_copies_the_buffers_of_rank_0(stage: int) -> None:
    program = f"""
config = {{"train_micro_batch_size_per_gpu": 4, "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
          "zero_optimization": {{"stage": {stage}}}}}
engine, *_ = deepspeed.initialize(model=net, config=config)
print(json.dumps(values(engine.module)))
"""
    check(run_ranks(NET + program, 2))


def test_buffers_that_a_sharded_model_has_created_are_equal() -> None:
    program = """
class Large(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.full((64, 128), RANK + 1.0), persistent=False)

config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
          "zero_optimization": {"stage": 3}}
with deepspeed.zero.Init(config_dict_or_path=config):
    net = Large()
engine, *_ = deepspeed.initialize(model=net, config=config)
print(json.dumps({name: str((buffer * 1).flatten().tolist()) for name, buffer in net.named_buffers()}))
"""
    assert equal_values(run_ranks(NET + program, 2))["table"] == str([1.0] * 64 * 128)


def test_buffers_of_other_shapes_or_names_are_an_error_on_all_ranks() -> None:
    program = """
net.layer.register_buffer("noise", torch.zeros(3, 5 + RANK), persistent=False)
if RANK == 1:
    net.register_buffer("more", torch.zeros(1), persistent=False)
Accelerator().prepare(net)
"""
    for code, output in finish_ranks(NET + program, 2):
        assert code != 0
        assert (
            "ConfigError: [prepare] the buffers with persistent=False differ between ranks: layer.noise is "
            "float32[3, 5] on rank 0, and float32[3, 6] on rank 1; construct the same model on all ranks" in output
        )
