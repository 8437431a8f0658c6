# SPDX-License-Identifier: Apache-2.0
"""ParallelismConfig with tp_size: unmodified modules train on several processes as in one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import binary, package_folder, run_ranks

from lockstep import ConfigError, ParallelismConfig
from lockstep.utils import TorchTensorParallelConfig, TorchTensorParallelPlugin

TRAIN = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset

from lockstep import Accelerator, ParallelismConfig
from lockstep.utils import FullyShardedDataParallelPlugin, MegatronLMPlugin, TorchTensorParallelConfig
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


def train(accelerator, folder=None, load=None, clips=False):
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
            if not clips:
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
state, own = train(Accelerator(parallelism_config=ParallelismConfig(tp_size=2), zero={"stage": 3}))
check(state, "tp under ZeRO 3")
saved = os.path.join(folder, "saved")
train(Accelerator(parallelism_config=ParallelismConfig(tp_size=2)), folder=saved)
check(train(Accelerator(parallelism_config=ParallelismConfig(tp_size=2)), load=saved)[0], "resumed on tp")
check(train(Accelerator(), load=saved)[0], "resumed without tp")
plugin = MegatronLMPlugin(tp_degree=2, use_distributed_optimizer=True, gradient_clipping=0.3)
state, own = train(Accelerator(megatron_lm_plugin=plugin), clips=True)
assert own == (16, 8), own
check(state, "MegatronLMPlugin")
"""


MISTAKES = TRAIN + """
from lockstep import ConfigError


def fails(body, text):
    try:
        body()
    except (ConfigError, RuntimeError) as error:
        assert text in str(error), error
    else:
        raise AssertionError("expected: " + text)


def divided(**options):
    AcceleratorState._reset_state()
    accelerator = Accelerator(parallelism_config=ParallelismConfig(tp_size=2), **options)
    torch.manual_seed(1)
    net = Net()
    accelerator.parallelism_config.tp_handler = TorchTensorParallelConfig(plan=PLAN, example=lambda: net(tokens[:2]))
    return accelerator, net


rank = int(os.environ["RANK"])
accelerator, net = divided()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
net, optimizer, schedule = accelerator.prepare(net, optimizer, schedule)
with accelerator.split_between_processes([1, 2]) as share:
    assert share == [1, 2], share
accelerator.backward(net(tokens[:2]).square().mean())
optimizer.step()
schedule.step()
assert schedule.get_last_lr() == [0.05], schedule.get_last_lr()
seen = []
accelerator.register_save_state_pre_hook(lambda models, weights, folder: seen.append(weights[0]["up.weight"].shape))
accelerator.save_state(os.path.join(folder, "hooked"))
assert seen == [(32, 8)], seen
fails(lambda: torch.cat([net.up.weight, net.up.weight]), "has a part only")
fails(lambda: torch.nn.functional.linear(tokens[:2, :1].float(), net.down.weight.t()), "has a part only")
x = torch.ones(2, 8)
net.up(x)
x.requires_grad_()
net.up(x).sum().backward()
assert x.grad is not None
net.zero_grad()
accelerator.free_memory()
fails(lambda: net(tokens[:2]), "whose Accelerator has ended")

# The processes of a line read different batches.
accelerator, net = divided()
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
own = tokens[2 * rank : 2 * rank + 2]
accelerator.backward(torch.nn.functional.cross_entropy(net(own).flatten(0, 1), own.flatten()))
fails(optimizer.step, "the loss differs between the processes of a tp line")

accelerator, net = divided()
fails(lambda: accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1 + rank)), "the settings of optimizer 0")

accelerator, net = divided(dynamo_backend="eager")
fails(lambda: accelerator.prepare(net), "does not see the operations")

# Models that torch or transformers has divided.
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from lockstep import deepspeed

AcceleratorState._reset_state()
accelerator = Accelerator()  # Without a mesh. On one it takes such models: test_dtensors.py.
net = parallelize_module(Net(), init_device_mesh("cpu", (2,)), {"up": ColwiseParallel()})
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
fails(lambda: accelerator.prepare(net, optimizer), "up.weight is a DTensor, (Shard(dim=0),) on a mesh of 2 processes")
fails(lambda: accelerator.prepare(optimizer), "a parameter of SGD is a DTensor")
fails(lambda: accelerator.prepare_optimizer(optimizer), "a parameter of SGD is a DTensor")
fails(lambda: accelerator.prepare_model(net), "up.weight is a DTensor")
fails(lambda: deepspeed.initialize(model=net, config={"train_batch_size": 2}), "up.weight is a DTensor")
loaded = Net()
loaded._tp_plan, loaded.tp_size = {}, 2
fails(lambda: accelerator.prepare(loaded), "transformers has divided it at loading")
"""


def test_mistakes_on_a_mesh_are_errors(tmp_path: Any) -> None:
    run_ranks(MISTAKES, 2, FOLDER=str(tmp_path))


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
    with pytest.raises(ConfigError, match="expected a TorchContextParallelConfig"):
        ParallelismConfig(cp_size=2, cp_handler=object())


def test_a_models_own_plan_is_read() -> None:
    class Model(torch.nn.Linear):
        tp_plan = {"layers.*.up": "colwise", "layers.*.qkv": ("colwise", (1, 1, 1))}

    assert TorchTensorParallelConfig()._options_for(Model(2, 2)) == {
        "plan": [("layers.*.up", "colwise", []), ("layers.*.qkv", "colwise", [1, 1, 1])],
        "example": None,
        "sequence_parallel": False,
    }


def losses_of_example(ranks: int, mesh: str) -> str:
    program = Path(__file__).resolve().parents[2] / "examples" / "python" / "gpt.py"
    options = ["--steps", "20", "--layers", "2", "--head-size", "8", "--context", "24"]
    command = [str(binary()), "launch", "-n", str(ranks), "--quiet", "--mesh", mesh, sys.executable, str(program), *options]
    environment = os.environ | {"PYTHONPATH": str(package_folder()), "LOCKSTEP_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_gpt_example_has_the_same_losses_on_every_mesh() -> None:
    expected = losses_of_example(1, "dp_replicate=1")
    assert "step  20: loss " in expected
    for ranks, mesh in ((2, "tp=2"), (2, "cp=2"), (2, "pp=2")):
        assert losses_of_example(ranks, mesh) == expected, mesh
