# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's optimizers and schedules as objects of the program, alone and in an engine."""
from __future__ import annotations

import copy

import pytest
import torch
from lockstep._core import ConfigError
from lockstep.deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from lockstep.deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from lockstep.deepspeed.ops.lamb import FusedLamb
from lockstep.deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from lockstep.deepspeed.runtime import lr_schedules
from torch import nn

from deepspeed_engines import net, start, update

MAKERS = [
    lambda p: FusedAdam(p, lr=0.01, weight_decay=0.1),
    lambda p: FusedAdam(p, lr=0.01, weight_decay=0.1, adam_w_mode=False, betas=(0.8, 0.95)),
    lambda p: FusedAdam(p, lr=0.01, bias_correction=False),
    lambda p: DeepSpeedCPUAdam(p, lr=0.01, adamw_mode=False),
    lambda p: FusedLamb(p, lr=0.01, weight_decay=0.1),
    lambda p: FusedLamb(p, lr=0.01, eps_inside_sqrt=True, bias_correction=False, max_coeff=0.5),
    lambda p: FusedLion(p, lr=0.01, weight_decay=0.1),
    lambda p: DeepSpeedCPULion(p, lr=0.01, betas=(0.9, 0.99)),
    lambda p: DeepSpeedCPUAdagrad(p, lr=0.1, weight_decay=0.1),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_deepspeed_optimizer_without_an_engine_updates_as_the_engine(make):
    alone, model = net(), net()
    own = make(alone.parameters())
    engine, optimizer, *_ = start(model, _optimizer=make(model.parameters()), zero_optimization={"stage": 1})
    assert optimizer._name is not None, "the C++ rule updates"
    for step in range(4):
        own.zero_grad()
        alone(torch.randn(4, 4, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        own.step()
        update(engine, step)
    for ours, theirs in zip(alone.parameters(), model.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert own.state_dict()["state"][0].get("step", 4) == 4, "Lion counts none"


@pytest.mark.parametrize("make", MAKERS)
def test_a_deepspeed_optimizer_without_an_engine_continues_with_a_loaded_state(make):
    def train(optimizer, model, steps):
        for step in steps:
            optimizer.zero_grad()
            model(torch.randn(4, 4, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()

    model, other = net(), net()
    optimizer = make(model.parameters())
    train(optimizer, model, range(2))
    other.load_state_dict(model.state_dict())
    resumed = make(other.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = resumed.state[other[0].weight]
    assert before.keys() == optimizer.state[model[0].weight].keys() and before.get("step", 2) == 2
    train(optimizer, model, range(2, 4))
    train(resumed, other, range(2, 4))
    for ours, theirs in zip(other.parameters(), model.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    for name, tensor in optimizer.state[model[2].bias].items():
        torch.testing.assert_close(resumed.state[other[2].bias][name], tensor, rtol=0, atol=0)


def test_an_optimizer_of_deepspeeds_follows_param_groups_and_takes_more():
    model, late = net(), nn.Parameter(torch.ones(3))
    optimizer = FusedAdam(model.parameters(), lr=0.0)
    model(torch.ones(1, 4)).sum().backward()
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    optimizer.param_groups[0]["lr"] = 0.1
    assert optimizer.step(lambda: 5) == 5
    assert not torch.equal(model[0].weight, before)
    optimizer.add_param_group({"params": [late], "lr": 1.0})
    late.grad = torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(late.detach(), torch.zeros(3), atol=1e-6, rtol=0)
    late.grad = torch.ones(3).to_sparse()
    with pytest.raises(ConfigError, match="sparse"):
        optimizer.step()


def test_options_of_deepspeeds_optimizers_that_do_not_exist_are_refused():
    parameters = list(net().parameters())
    for make in (
        lambda: FusedAdam(parameters, amsgrad=True),
        lambda: FusedLamb(parameters, max_grad_norm=1.0),
        lambda: DeepSpeedCPUAdam(parameters, fp32_optimizer_states=False),
        lambda: DeepSpeedCPULion(parameters, fp32_optimizer_states=False),
    ):
        with pytest.raises(ConfigError, match="is not supported"):
            make()


# --- schedules
SCHEDULES = [
    ("WarmupLR", {"warmup_num_steps": 5, "warmup_min_lr": 0.001}),
    ("WarmupLR", {"warmup_num_steps": 4, "warmup_max_lr": 0.5, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 9, "warmup_num_steps": 3, "warmup_max_lr": 0.2}),
    ("WarmupCosineLR", {"total_num_steps": 10, "warmup_num_steps": 3, "warmup_min_ratio": 0.1}),
    ("WarmupCosineLR", {"total_num_steps": 8, "warmup_num_steps": 4, "warmup_type": "linear", "cos_min_ratio": 0.2}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 3, "lr_range_test_step_rate": 2}),
    ("LRRangeTest", {"lr_range_test_step_size": 2, "lr_range_test_staircase": True}),
    ("OneCycle", {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 3}),
    (
        "OneCycle",
        {
            "cycle_min_lr": 0.01,
            "cycle_max_lr": 0.1,
            "cycle_first_step_size": 3,
            "cycle_second_step_size": 2,
            "cycle_first_stair_count": 2,
            "decay_step_size": 2,
            "decay_lr_rate": 0.5,
            "decay_mom_rate": 0.1,
            "cycle_min_mom": 0.7,
        },
    ),
]


@pytest.mark.parametrize(("name", "params"), SCHEDULES)
def test_a_schedule_of_the_program_has_the_numbers_of_the_files(name, params):
    file, _, _, of_file = start(scheduler={"type": name, "params": params})
    own, _, _, scheduler = start(_lr_scheduler=lambda opt: getattr(lr_schedules, name)(opt, **params))
    assert isinstance(scheduler, getattr(lr_schedules, name))
    for step in range(12):
        assert own.get_lr() == pytest.approx(file.get_lr(), rel=1e-12), step
        assert own.get_mom()[0] == pytest.approx(file.get_mom()[0], rel=1e-12), step
        update(own, step)
        update(file, step)
        assert of_file.last_batch_iteration == scheduler.last_batch_iteration == step
    assert scheduler.get_last_lr() == own.get_lr()
    with pytest.raises(ConfigError, match="engine.step"):
        of_file.step()


def test_a_schedule_of_the_program_continues_and_refuses_wrong_numbers():
    optimizer = torch.optim.Adam([{"params": [nn.Parameter(torch.ones(1))]}, {"params": [nn.Parameter(torch.ones(1))]}])
    cycle = lr_schedules.OneCycle(optimizer, [0.1, 0.2], 0.4, cycle_first_step_size=4.0)
    assert cycle.get_lr() == [0.1, 0.2] and cycle.get_mom() == [(0.9, 0.99), (0.9, 0.99)]
    assert [group["betas"] for group in optimizer.param_groups] == [(0.8, 0.99), (0.8, 0.99)]
    for _ in range(3):
        cycle.step()
    assert cycle.get_last_lr() == pytest.approx([0.325, 0.35]) and optimizer.param_groups[1]["betas"][1] == 0.99
    again = lr_schedules.OneCycle(optimizer, [0.1, 0.2], 0.4, cycle_first_step_size=4, last_batch_iteration=0)
    with pytest.raises(ConfigError, match="call step"):
        again.get_last_lr()
    again.load_state_dict(cycle.state_dict())
    assert again.get_lr() == cycle.get_lr() == again.get_last_lr()
    again.step(7)
    assert again.get_lr() == pytest.approx([0.1, 0.2])
    assert isinstance(lr_schedules.WarmupDecayLR(optimizer, 10), lr_schedules.WarmupLR)
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1)
    assert lr_schedules.OneCycle(sgd, 0.1, 0.4).get_mom() is None
    for wrong, text in (
        (lambda: lr_schedules.WarmupLR(optimizer, warmup_num_steps=0), "warmup_num_steps"),
        (lambda: lr_schedules.WarmupLR(optimizer, warmup_num_steps=2.5), "whole number"),
        (lambda: lr_schedules.WarmupLR(optimizer, warmup_type="cubic"), "expected log or linear"),
        (lambda: lr_schedules.LRRangeTest(optimizer, [0.1, 0.2, 0.3]), "3 values; expected one for each of 2"),
    ):
        with pytest.raises(ConfigError, match=text):
            wrong()
    with pytest.raises(TypeError, match="torch.optim.Optimizer"):
        lr_schedules.WarmupLR(object())
