# SPDX-License-Identifier: Apache-2.0
"""ParallelismConfig with tp_size: unmodified modules train on several processes as in one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launch import run_ranks

from lockstep import ConfigError, ParallelismConfig
from lockstep.utils import TorchTensorParallelConfig, TorchTensorParallelPlugin

TRAIN = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset

from lockstep import Accelerator, ParallelismConfig
from lockstep.utils import TorchTensorParallelConfig, FullyShardedDataParallelPlugin
from lockstep.state import AcceleratorState


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(16, 8)
        self.up = torch.nn.Linear(8, 32)
        self.down = torch.nn.Linear(32, 8)
        self.drop = torch.nn.Dropout(0.0)
        self.head = torch.nn.Linear(8, 16, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.head(x + self.drop(self.down(torch.tanh(self.up(x)))))


PLAN = {"words": "embedding", "up": "colwise", "down": "rowwise", "head": "colwise_gather"}
torch.manual_seed(0)
tokens = torch.randint(16, (32, 4))


def train(accelerator, folder=None, load=None):
    torch.manual_seed(1)
    net = Net().double()
    config = accelerator.parallelism_config
    if config is not None and config.tp_enabled:
        config.tp_handler = TorchTensorParallelConfig(plan=PLAN, example=lambda: net(tokens[:2]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = config.data_parallel_size if config is not None else accelerator.num_processes
    loader = DataLoader(TensorDataset(tokens), batch_size=8 // data)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if load is not None:
        accelerator.load_state(load)
    seen = []
    for epoch in range(1 if folder is not None or load is not None else 2):
        for (batch,) in loader:
            seen.append(accelerator.gather_for_metrics(batch).shape[0])
            scores = net(batch)
            loss = torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
    if folder is not None:
        accelerator.save_state(folder)
    assert set(seen) == {8}, seen
    state = {name: value.clone() for name, value in accelerator.get_state_dict(net).items()}
    own = net.up.weight.shape
    accelerator.free_memory()
    AcceleratorState._reset_state()
    return state, own


folder = os.environ["FOLDER"]
"""

ONE = TRAIN + """
state, own = train(Accelerator())
torch.save(state, os.path.join(folder, "one.pt"))
"""

SEVERAL = TRAIN + """
expected = torch.load(os.path.join(folder, "one.pt"))


def check(got, what):
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name].shape == value.shape, (what, name, got[name].shape)
        assert (got[name] - value).abs().max() < 1e-12, (what, name, (got[name] - value).abs().max())


state, own = train(Accelerator(parallelism_config=ParallelismConfig(tp_size=2)))
assert own == (16, 8), own
check(state, "tp")
saved = os.path.join(folder, "saved")
train(Accelerator(parallelism_config=ParallelismConfig(tp_size=2)), folder=saved)
check(train(Accelerator(parallelism_config=ParallelismConfig(tp_size=2)), load=saved)[0], "resumed on tp")
check(train(Accelerator(), load=saved)[0], "resumed without tp")
"""


def test_a_divided_model_trains_as_in_one_process(tmp_path: Any) -> None:
    run_ranks(ONE, 1, FOLDER=str(tmp_path))
    run_ranks(SEVERAL, 2, FOLDER=str(tmp_path))


def test_tp_and_data_parallelism_of_four_processes(tmp_path: Any) -> None:
    run_ranks(ONE, 1, FOLDER=str(tmp_path))
    run_ranks(SEVERAL, 4, FOLDER=str(tmp_path))


def test_wrong_configurations_are_errors() -> None:
    with pytest.raises(ConfigError, match="a plan is given and no example"):
        TorchTensorParallelConfig(plan={"up": "colwise"})
    with pytest.raises(ConfigError, match="enable_async_tp"):
        TorchTensorParallelConfig(enable_async_tp=True)
    with pytest.raises(ConfigError, match="torch_device_mesh is given"):
        TorchTensorParallelPlugin(tp_size=2, torch_device_mesh=object())
    with pytest.raises(ConfigError, match="has no tp_plan"):
        TorchTensorParallelConfig()._options_for(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="cp_size is 2"):
        ParallelismConfig(cp_size=2)


def test_a_models_own_plan_is_read() -> None:
    class Model(torch.nn.Linear):
        tp_plan = {"layers.*.up": "colwise", "layers.*.qkv": ("colwise", (1, 1, 1))}

    assert TorchTensorParallelConfig()._options_for(Model(2, 2)) == {
        "plan": [("layers.*.up", "colwise", []), ("layers.*.qkv", "colwise", [1, 1, 1])],
        "example": None,
        "sequence_parallel": False,
    }
