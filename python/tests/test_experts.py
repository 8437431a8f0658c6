# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe.layer.MoE: experts of one rank, and of several ranks as in one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from launch import run_ranks
from lockstep import ConfigError
from lockstep.deepspeed.moe.layer import MoE
from lockstep.deepspeed.moe.utils import (
    configure_moe_param_groups,
    has_moe_layers,
    is_moe_param,
    is_moe_param_group,
    split_params_into_different_moe_groups_for_optimizer,
)

TRAIN = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset
from lockstep import Accelerator, ParallelismConfig, deepspeed
from lockstep.deepspeed.moe.layer import MoE
from lockstep.state import AcceleratorState
from lockstep.utils import TorchTensorParallelConfig
from safetensors.torch import load_file

folder, world = os.environ["FOLDER"], int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
inputs, targets = torch.randn(48, 6).double(), torch.randn(48, 3).double()


class Net(torch.nn.Module):
    def __init__(self, ep_size):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        expert = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.GELU(), torch.nn.Linear(12, 8))
        self.moe = MoE(8, expert, num_experts=4, ep_size=ep_size, k=2, drop_tokens=False, use_residual=True,
                       top2_2nd_expert_sampling=False)
        self.last = torch.nn.Linear(8, 3)
        self.double()
        with torch.no_grad():
            for name, parameter in self.named_parameters():  # By names, which are the same on any mesh.
                start = sum((i + 1) * ord(letter) for i, letter in enumerate(name)) % 97
                values = torch.sin(torch.arange(parameter.numel()).double() * 12.9898 + start)
                parameter.copy_(values.view_as(parameter) * (2 if "wg" in name else 0.4))

    def forward(self, x):
        hidden = self.first(x)
        output, self.l_aux, counts = self.moe(hidden)
        assert counts.sum() == 2 * len(x)
        return self.last(hidden + output)


def with_accelerator(ep_size, save=None, load=None, tp_size=1, stage=0):
    AcceleratorState._reset_state()
    handler = TorchTensorParallelConfig(plan={"first": "colwise_gather"}, example=lambda: net(inputs[:2]))
    config = ParallelismConfig(ep_size=ep_size, tp_size=tp_size, tp_handler=handler)
    accelerator = Accelerator(
        parallelism_config=config, gradient_accumulation_steps=2, zero={"stage": stage} if stage else None)
    net = Net(ep_size)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8 * tp_size // world)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if load is not None:
        accelerator.load_state(load)
    for _ in range(1 if save is not None or load is not None else 2):
        for x, y in loader:
            with accelerator.accumulate(net):
                loss = torch.nn.functional.mse_loss(net(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(net.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()
    if save is not None:
        accelerator.save_state(save)
    state = {name: value.clone() for name, value in accelerator.get_state_dict(net).items()}
    Net(ep_size).load_state_dict(state)  # All experts' values: others' are left out.
    accelerator.free_memory()
    return state


def with_engine(ep_size, save=None, load=None, stage=0):
    net = Net(ep_size)
    engine, *_ = deepspeed.initialize(model=net, config={
        "zero_optimization": {"stage": stage},
        "train_micro_batch_size_per_gpu": 8 // world, "gradient_accumulation_steps": 2, "gradient_clipping": 0.3,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "eps": 1e-4}}})
    if load is not None:
        engine.load_checkpoint(load)
    for epoch in range(1 if save is not None or load is not None else 2):
        for i in range(6):
            rows = slice(8 * i + int(os.environ["RANK"]) * 8 // world, 8 * i + (int(os.environ["RANK"]) + 1) * 8 // world)
            loss = torch.nn.functional.mse_loss(engine(inputs[rows]), targets[rows])
            engine.backward(loss)
            engine.step()
    if save is not None:
        engine.save_checkpoint(save)
    return {name: value.detach().clone() for name, value in net.named_parameters()}
"""

ONE = TRAIN + """
torch.save(with_accelerator(1), f"{folder}/accelerator.pt")
torch.save(with_engine(1), f"{folder}/engine.pt")
"""

SEVERAL = TRAIN + """
def check(got, name, complete=True):
    expected = torch.load(f"{folder}/{name}.pt")
    assert set(got) == set(expected) if complete else set(got) < set(expected), sorted(got)
    for key, value in got.items():
        assert (value - expected[key]).abs().max() < 1e-12, (name, key, (value - expected[key]).abs().max())


check(with_accelerator(2), "accelerator")
check(with_accelerator(2, stage=3), "accelerator")
if world == 4:
    check(with_accelerator(2, tp_size=2), "accelerator")
    check(with_accelerator(2, tp_size=2, stage=3), "accelerator")
saved = f"{folder}/saved{world}"
with_accelerator(2, save=saved)
check(with_accelerator(2, load=saved), "accelerator")
check(with_accelerator(1, load=saved), "accelerator")
check(with_engine(2), "engine", complete=False)
with_engine(2, save=saved + "_engine")
check(with_engine(2, load=saved + "_engine"), "engine", complete=False)
check(with_engine(1, load=saved + "_engine"), "engine")
check(with_engine(2, load=saved + "_engine", stage=2), "engine", complete=False)
check(with_engine(2, stage=1), "engine", complete=False)
"""


SAVED = TRAIN + """
net = Net(2)
engine, *_ = deepspeed.initialize(model=net.float(), config={
    "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": int(os.environ["STAGE"])},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})
for name in ("pytorch_model.bin", "model.safetensors"):
    engine.save_16bit_model(folder, name)
    if os.environ["RANK"] == "0":
        path = f"{folder}/{name}"
        saved = load_file(path) if path.endswith("safetensors") else torch.load(path)
        expected = {key: value.bfloat16() for key, value in Net(1).state_dict().items()}
        assert set(saved) == set(expected), (name, set(expected) ^ set(saved))
        for key, value in saved.items():
            assert torch.equal(value, expected[key]), (name, key)
"""


@pytest.mark.parametrize("stage", [0, 3])
def test_a_file_of_weights_has_the_experts_of_all_ranks(tmp_path: Any, stage: int) -> None:
    run_ranks(SAVED, 2, FOLDER=str(tmp_path), STAGE=str(stage))


# A layer in transformers' form: the rows of its parameters are experts.
STACKED = """
import os
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from lockstep import Accelerator, ConfigError, ParallelismConfig
from lockstep.state import AcceleratorState
from lockstep.utils import DeepSpeedPlugin

folder, world = os.environ["FOLDER"], int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
inputs, targets = torch.randn(48, 6).double(), torch.randn(48, 6).double()


class Experts(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.num_experts = number
        self.up = torch.nn.Parameter(torch.randn(number, 10, 6) / 4)
        self.up_bias = torch.nn.Parameter(torch.randn(number, 10) / 4)
        self.down = torch.nn.Parameter(torch.randn(number, 6, 10) / 4)
        self._is_expert_parallel = False

    def forward(self, hidden_states, top_k_index, top_k_weights):
        output = torch.zeros_like(hidden_states)
        for expert in range(self.num_experts):
            token, place = torch.where(top_k_index == expert)
            rows = F.gelu(F.linear(hidden_states[token], self.up[expert], self.up_bias[expert]))
            rows = F.linear(rows, self.down[expert]) * top_k_weights[token, place, None]
            output = output.index_add(0, token, rows)
        return output


class Net(torch.nn.Module):
    def __init__(self, number=4):
        super().__init__()
        self.gate = torch.nn.Linear(6, number, bias=False)
        self.experts = Experts(number)

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        return x + self.experts(x, chosen, weights)


def train(ep_size, save=None, load=None, stage=0):
    AcceleratorState._reset_state()
    accelerator = Accelerator(parallelism_config=ParallelismConfig(ep_size=ep_size), gradient_accumulation_steps=2,
                              zero={"stage": stage} if stage else None)
    torch.manual_seed(1 + accelerator.process_index)  # Values are those of the first process.
    net = Net().double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8 // world)
    optimizer, net, loader = accelerator.prepare(optimizer, net, loader)
    if load is not None:
        accelerator.load_state(load)
    assert net.experts.num_experts == 4 // ep_size
    norms = []
    for x, y in loader:
        with accelerator.accumulate(net):
            accelerator.backward((net(x) - y).square().mean())
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(net.parameters(), 0.3).item())
            optimizer.step()
            optimizer.zero_grad()
    if save is not None:
        accelerator.save_state(save)
    state = {name: value.clone() for name, value in accelerator.get_state_dict(net).items()}
    accelerator.free_memory()
    return state, norms
"""

ONE_STACKED = STACKED + """
torch.save(train(1, save=f"{folder}/saved"), f"{folder}/one.pt")
torch.save(train(1, load=f"{folder}/saved"), f"{folder}/resumed.pt")
"""

SEVERAL_STACKED = STACKED + """
def check(got, name):
    expected = torch.load(f"{folder}/{name}.pt")
    assert max(abs(a - b) for a, b in zip(got[1], expected[1], strict=True)) < 1e-12, (got[1], expected[1])
    for key, value in expected[0].items():
        assert got[0][key].shape == value.shape and (got[0][key] - value).abs().max() < 1e-12, (name, key)


check(train(2, save=f"{folder}/divided"), "one")
for stage in (1, 2, 3):
    check(train(2, save=f"{folder}/stage{stage}", stage=stage), "one")
    check(train(1, load=f"{folder}/stage{stage}"), "resumed")
check(train(2, load=f"{folder}/saved"), "resumed")
check(train(1, load=f"{folder}/divided"), "resumed")
check(train(world, load=f"{folder}/divided"), "resumed")
file = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 0}}
for plugin, number, message in ((None, 3, "experts has 3 experts, and ep_size is 2"), (file, 4, "engine of a ds_config divides")):
    AcceleratorState._reset_state()
    plugin = None if plugin is None else DeepSpeedPlugin(hf_ds_config=plugin)
    try:
        Accelerator(parallelism_config=ParallelismConfig(ep_size=2), deepspeed_plugin=plugin).prepare(Net(number))
    except ConfigError as error:
        assert message in str(error), error
    else:
        raise AssertionError("expected an error")
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_in_rows_of_a_tensor_train_on_several_ranks_as_in_one(tmp_path: Any, ranks: int) -> None:
    run_ranks(ONE_STACKED, 1, FOLDER=str(tmp_path))
    run_ranks(SEVERAL_STACKED, ranks, FOLDER=str(tmp_path))


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_of_several_ranks_train_as_in_one(tmp_path: Any, ranks: int) -> None:
    run_ranks(ONE, 1, FOLDER=str(tmp_path))
    run_ranks(SEVERAL, ranks, FOLDER=str(tmp_path))


def test_a_layer_computes_the_weighted_sum_of_its_experts() -> None:
    torch.manual_seed(0)
    layer = MoE(4, torch.nn.Linear(4, 4), num_experts=3, k=2, drop_tokens=False, top2_2nd_expert_sampling=False)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 5, 4)
    output, l_aux, counts = layer(x)
    gates = (x.reshape(-1, 4) @ layer.deepspeed_moe.gate.wg.weight.t()).softmax(-1)
    best = gates.topk(2).indices
    mask = torch.zeros_like(gates).scatter(1, best, 1)
    weights = gates * mask / (gates * mask).sum(-1, keepdim=True)
    experts = layer.deepspeed_moe.experts.deepspeed_experts.values()
    expected = sum(weights[:, i : i + 1] * expert(x.reshape(-1, 4)) for i, expert in enumerate(experts))
    assert torch.allclose(output, expected.view_as(x), atol=1e-6) and output.shape == x.shape
    assert counts.tolist() == mask.sum(0).tolist()
    first = torch.nn.functional.one_hot(best[:, 0], 3).float()
    assert torch.allclose(l_aux, 3 * (gates.mean(0) * first.mean(0)).sum(), atol=1e-6)
    (output.sum() + l_aux).backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert torch.equal(copy.deepcopy(layer)(x)[0], output)


def test_full_experts_drop_tokens() -> None:
    layer = MoE(4, torch.nn.Identity(), num_experts=2, k=1, capacity_factor=0.5, eval_capacity_factor=2.0, min_capacity=1)
    with torch.no_grad():
        layer.deepspeed_moe.gate.wg.weight.copy_(torch.tensor([[1.0] * 4, [-1.0] * 4]))
    x = torch.ones(8, 4)
    output, _, counts = layer(x)
    assert counts.tolist() == [8, 0] and (output.abs().sum(1) > 0).sum() == 2  # ceil(8 / 2 * 0.5)
    assert (layer.eval()(x)[0].abs().sum(1) > 0).all()


def test_parameters_of_experts_have_groups_of_their_own() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), MoE(4, torch.nn.Linear(4, 4), num_experts=2))
    assert has_moe_layers(net) == (True, 2) and has_moe_layers(net[0]) == (False, 0)
    shared, experts = split_params_into_different_moe_groups_for_optimizer(
        {"params": list(net.parameters()), "name": "all", "lr": 0.1}
    )
    assert not is_moe_param_group(shared) and is_moe_param_group(experts) and experts["lr"] == 0.1
    assert len(shared["params"]) == 3 and len(experts["params"]) == 4 and all(map(is_moe_param, experts["params"]))
    groups = configure_moe_param_groups(list(net.parameters()))
    assert [group["name"] for group in groups] == ["dense-params", "ep_size_1"]
    parts = split_params_into_different_moe_groups_for_optimizer({"params": experts["params"], "name": "a"}, 20)
    assert [len(part["params"]) for part in parts] == [0, 2, 2]


def test_what_is_not_supported_is_an_error() -> None:
    expert = torch.nn.Linear(4, 4)
    for options, message in (
        ({"use_tutel": True}, "use_tutel"),
        ({"enable_expert_tensor_parallelism": True}, "enable_expert_tensor_parallelism"),
        ({"num_experts": 3, "ep_size": 2}, "expected a divisor of num_experts, 3"),
        ({"noisy_gate_policy": "Other"}, "noisy_gate_policy is 'Other'"),
        ({"k": 2}, "k is 2; expected from 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            MoE(4, expert, **options)
    with pytest.raises(ConfigError, match="got used_token"):
        MoE(4, expert)(torch.ones(4, 4), torch.ones(4))
    with pytest.raises(ConfigError, match="the experts are on 2 ranks, which are not connected"):
        MoE(4, expert, num_experts=2, ep_size=2)(torch.ones(4, 4))
