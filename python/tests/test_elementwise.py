# SPDX-License-Identifier: Apache-2.0
"""Optimizer classes of the program under ZeRO: the weights of data parallel, or an error that says why not."""

from __future__ import annotations

import pytest
import torch
from launch import run_ranks
from lockstep._elementwise import ElementwiseUpdate
from lockstep._core import ConfigError

# Classes as programs write them: a step that is an int or a tensor, state that is replaced, and state with a start.
PROGRAM = """
import json, os, sys
import torch
from torch import nn
import lockstep.deepspeed as deepspeed

class IntAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, warm=3))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].lerp_(p.grad, 1 - first)
                state["v"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                rate = group["lr"] * min(1, state["step"] / group["warm"])
                p.mul_(1 - rate * group["weight_decay"])
                p.addcdiv_(state["m"], state["v"].sqrt().add_(1e-6), value=-rate)

class Signum(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                # Replaced in each update, and begun with the parameter's value.
                state["slow"] = state["slow"].lerp(p, 0.5) if "slow" in state else p.clone()
                state["sum"] = state["sum"] * group["momentum"] + p.grad if "sum" in state else p.grad.clone()
                p.sub_(state["sum"].sign() * group["lr"] + 0.001 * (p - state["slow"]))

class TensorStep(torch.optim.AdamW):
    pass

def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 19), nn.Tanh(), nn.Linear(19, 5))

def groups_of(model):
    return [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.003}]

def start(kind, stage, model, **more):
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1, "zero_optimization": {"stage": stage}, **more}
    config["zero_optimization"].update(more.pop("zero", {}))
    config.pop("zero", None)
    if stage == 3:
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return deepspeed.initialize(model=model, optimizer=kind(groups_of(model)), config=config)[0]

def train(engine, first, last):
    for step in range(first, last):
        torch.manual_seed(100 * step + engine.global_rank)
        engine.backward(engine(torch.randn(4, 7)).square().mean())
        if step == 2:
            for group in engine.optimizer.param_groups:
                group["lr"] *= 0.5
        engine.step()

def weights(model):
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return torch.cat([value.detach().float().flatten() for value in model.parameters()])

def run(kind, stage, **more):
    model = build()
    engine = start(kind, stage, model, **more)
    train(engine, 0, 5)
    result = weights(model)
    engine.destroy()
    return result
"""


def test_a_class_of_the_program_trains_as_in_data_parallel():
    run_ranks(
        PROGRAM
        + """
before = torch.cat([value.detach().flatten() for value in build().parameters()])
for kind in (IntAdam, Signum, TensorStep):
    expected = run(kind, 0)
    assert (expected - before).abs().max() > 0.01
    for stage in (1, 2, 3):
        difference = (run(kind, stage) - expected).abs().max().item()
        assert difference < 1e-6, (kind, stage, difference)
    for offload in ({"device": "cpu"}, {"device": "cpu", "super_offload": True}):
        offloaded = run(kind, 2, zero={"offload_optimizer": offload})
        assert (offloaded - expected).abs().max() < 1e-6, kind
    half = run(kind, 1, bf16={"enabled": True}) - run(kind, 3, bf16={"enabled": True})
    assert half.abs().max() < 1e-6, kind
""",
        2,
    )


def test_the_state_of_a_programs_class_is_loaded_in_another_stage_and_number_of_ranks(tmp_path):
    run_ranks(
        PROGRAM
        + f"""
folder = {str(tmp_path)!r}
for kind in (IntAdam, Signum, TensorStep):
    model = build()
    engine = start(kind, 2, model)
    train(engine, 0, 3)
    engine.save_checkpoint(folder + "/" + kind.__name__)
    train(engine, 3, 6)
    torch.save(weights(model), f"{{folder}}/{{kind.__name__}}.pt")
    engine.destroy()
""",
        2,
    )
    run_ranks(
        PROGRAM
        + f"""
folder = {str(tmp_path)!r}
for kind in (IntAdam, Signum, TensorStep):
    for stage in (1, 3):
        model = build(seed=1)
        engine = start(kind, stage, model)
        engine.load_checkpoint(folder + "/" + kind.__name__)
        rates = [group["lr"] for group in engine.optimizer.param_groups]
        assert rates == ([0.0005, 0.0015] if kind is TensorStep else [0.005, 0.0015]), rates
        train(engine, 3, 6)
        expected = torch.load(f"{{folder}}/{{kind.__name__}}.pt")
        assert (weights(model) - expected).abs().max() < 1e-6, (kind, stage)
        engine.destroy()
""",
        2,
    )


def test_a_class_of_the_program_trains_through_the_accelerator():
    run_ranks(
        PROGRAM
        + """
from lockstep import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
from states import forget_accelerators

def accelerate(**plugin):
    forget_accelerators()
    accelerator = Accelerator(cpu=True, **plugin)
    model = build()
    optimizer = Signum(groups_of(model))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for step in range(4):
        torch.manual_seed(100 * step + accelerator.process_index)
        accelerator.backward(model(torch.randn(4, 7)).square().mean())
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return weights(model)

expected = accelerate()
for plugin in (
    {"deepspeed_plugin": DeepSpeedPlugin(zero_stage=2)},
    {"fsdp_plugin": FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD")},
):
    assert (accelerate(**plugin) - expected).abs().max() < 1e-6, plugin
""",
        2,
    )


class _Sgd(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "count": 0})

    def change(self, parameter):
        return self.param_groups[0]["lr"] * parameter.grad

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.change(parameter))


class _Normed(_Sgd):
    def change(self, parameter):
        return self.param_groups[0]["lr"] * parameter.grad / parameter.grad.norm()


class _Clipped(_Sgd):
    """Depends on other elements only for large gradients."""

    def change(self, parameter):
        return 0.1 * parameter.grad * min(1, 100 / parameter.grad.norm().item())


class _Noisy(_Sgd):
    def change(self, parameter):
        return 0.1 * parameter.grad + 0.01 * torch.randn_like(parameter)


class _Counting(_Sgd):
    def change(self, parameter):
        self.param_groups[0]["count"] += 1
        return super().change(parameter)


class _Remembering(_Sgd):
    calls = 0

    def change(self, parameter):
        self.calls += 1
        return super().change(parameter)


class _Scalar(_Sgd):
    def change(self, parameter):
        self.state[parameter]["norm"] = parameter.grad.norm()
        return super().change(parameter)


class _Rows(_Sgd):
    def change(self, parameter):
        return 0.1 * parameter.grad * parameter.size(1)


class _OwnDict(_Sgd):
    """Has momentum in an attribute, by the parameter."""

    def __init__(self, params):
        super().__init__(params)
        self.sums = {}

    def change(self, parameter):
        self.sums[id(parameter)] = 0.9 * self.sums.get(id(parameter), 0) + parameter.grad
        return 0.1 * self.sums[id(parameter)]


class _OwnKey(_Sgd):
    def change(self, parameter):
        self.state["calls"] = {"count": self.state["calls"].get("count", 0) + 1}
        return super().change(parameter)


class _TensorOption(_Sgd):
    def __init__(self, params):
        super().__init__(params)
        self.param_groups[0]["seen"] = torch.zeros(())

    def change(self, parameter):
        self.param_groups[0]["seen"] += 1
        return super().change(parameter)


class _Nothing(_Sgd):
    def change(self, parameter):
        return super().change(parameter) if parameter.requires_grad else torch.zeros_like(parameter)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (_Normed, "depends on other elements"),
        (_Clipped, "depends on other elements"),
        (_Noisy, "random numbers"),
        (_Counting, "changes the option 'count'"),
        (_Remembering, "changes its attribute 'calls'"),
        (_Scalar, r"'norm' is torch.float32 of \[\] for a parameter of \[4, 6\]"),
        (_Rows, "failed for a slice of a parameter: Dimension out of range"),
        (_OwnDict, "depends on other elements"),
        (_OwnKey, "has the key 'calls'"),
        (_TensorOption, "changes the option 'seen'"),
        (_Nothing, "changed nothing"),
        (torch.optim.LBFGS, "failed for a slice.*closure"),
        (torch.optim.Adafactor, "state"),
    ],
)
def test_a_class_that_cannot_update_slices_is_refused_by_name(kind, reason):
    numbers = torch.get_rng_state()
    with pytest.raises(ConfigError, match=f"which {kind.__name__} cannot: .*{reason}.*; use an optimizer"):
        ElementwiseUpdate(kind([torch.nn.Parameter(torch.ones(3))]))
    assert torch.equal(torch.get_rng_state(), numbers), "the trial draws none of the program's random numbers"


def test_the_trial_leaves_the_optimizer_as_it_was():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter], lr=torch.tensor(0.1))
    ElementwiseUpdate(optimizer)
    assert torch.equal(parameter, torch.ones(3)) and parameter.grad is None and not optimizer.state


@pytest.mark.parametrize("rate", [0.0, 1e-6, 10.0])
def test_the_trial_does_not_depend_on_the_rate_at_prepare(rate):
    optimizer = _Normed([torch.nn.Parameter(torch.ones(3))])
    optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(ConfigError, match="depends on other elements"):
        ElementwiseUpdate(optimizer)


def test_the_trial_changes_no_option_nor_attribute_of_the_program():
    for kind in (_TensorOption, _OwnDict):
        optimizer = kind([torch.nn.Parameter(torch.ones(3))])
        with pytest.raises(ConfigError):
            ElementwiseUpdate(optimizer)
        assert optimizer.param_groups[0].get("seen", 0) == 0 and not getattr(optimizer, "sums", None)
