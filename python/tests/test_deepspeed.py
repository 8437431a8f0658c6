# SPDX-License-Identifier: Apache-2.0
"""lockstep.deepspeed: configuration, the three calls, and an engine's optimizer and scheduler."""
from __future__ import annotations

import argparse
import base64
import json
import math

import pytest
import torch
from lockstep import deepspeed
from lockstep._core import ConfigError
from lockstep.deepspeed.runtime import lr_schedules
from torch import nn

from deepspeed_engines import config, loss_of, net, start, update


# --- configuration
def test_a_configuration_is_a_dict_a_file_text_or_base64(tmp_path, monkeypatch):
    text = json.dumps(config()).replace("}", "/* comment */}")
    path = tmp_path / "ds_config.json"
    path.write_text(text)
    encoded = base64.urlsafe_b64encode(json.dumps(config()).encode()).decode()
    for given in (config(), str(path), path, text, encoded):
        engine, *_ = start(_config=given)
        assert engine.train_batch_size() == 4 and engine.get_lr() == [0.01]
        engine.destroy()
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", str(path)])
    assert args.deepspeed
    engine, *_ = deepspeed.initialize(args, net(), model_parameters=net().parameters())
    assert engine.train_batch_size() == 4
    with pytest.raises(ConfigError, match="only one"):
        deepspeed.initialize(args, net(), config=config())
    engine, *_ = deepspeed.initialize(model=net(), config_params=config())
    assert engine.gradient_accumulation_steps() == 1
    monkeypatch.setenv("LOCKSTEP_DEEPSPEED_CONFIG_FILE", str(path))
    engine, *_ = deepspeed.initialize(model=net(), lr_scheduler=lambda opt: lr_schedules.WarmupLR(opt))
    assert engine.train_batch_size() == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"config": {"train_batch_size": 4, "gradient_cliping": 1}}, "gradient_clipping"),
        ({"config": None}, "configuration is missing"),
        ({"config": 7}, "expected a dict"),
        ({"model": None}, "model is missing"),
        ({"mpu": object()}, "got an mpu"),
        ({"optimizer": "Adam"}, "expected a torch.optim.Optimizer"),
        ({"model_parameters": [3]}, "expected parameters"),
        ({"model_parameters": [nn.Parameter(torch.ones(1)), {"params": []}]}, "only one kind"),
        ({"config": config(activation_checkpointing={"profile": True})}, "torch.profiler"),
        ({"lr_scheduler": 5}, "an object with step"),
    ],
)
def test_unsupported_arguments_are_errors_with_a_remedy(arguments, text):
    given = {"model": net(), "config": config(), **arguments}
    with pytest.raises(ConfigError, match=text):
        deepspeed.initialize(**given)


def test_deepspeed_config_resolves_batch_sizes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    read = deepspeed.DeepSpeedConfig(
        {"train_batch_size": 32, "gradient_accumulation_steps": 2, "bf16": {"enabled": True}}
    )
    assert (read.train_micro_batch_size_per_gpu, read.bfloat16_enabled, read.zero_enabled) == (4, True, False)
    with pytest.raises(deepspeed.DeepSpeedConfigError, match="train_batch_size"):
        deepspeed.DeepSpeedConfig({"train_batch_size": 3})


def test_the_world_of_a_configuration_is_that_of_the_connected_process(monkeypatch):
    deepspeed.init_distributed(verbose=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert deepspeed.DeepSpeedConfig({"train_batch_size": 4}).world_size == 1


def test_the_engine_has_the_configuration_as_it_was_given(tmp_path):
    given = config(
        steps_per_print=2**40,
        communication_data_type=None,
        zero_optimization={"stage": 1, "reduce_bucket_size": 5e8},
        scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_type": "log"}},
    )
    path = tmp_path / "ds_config.json"
    path.write_text("// The whole file.\n" + json.dumps(given, indent=2).replace("\n}", ",\n}"))
    for form in (given, path, json.dumps(given)):
        engine, *_ = start(_config=form)
        assert engine.config == given and list(engine.config) == list(given)
        assert [type(value) for value in engine.config.values()] == [type(value) for value in given.values()]
        engine.destroy()


# --- the three calls
def test_an_update_is_that_of_torch():
    engine, *_ = start()
    expected = net()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.01, weight_decay=0.1)
    for step in range(3):
        loss = expected(torch.randn(4, 4, generator=torch.Generator().manual_seed(step))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert math.isclose(update(engine, step), loss.item(), rel_tol=1e-6)
    for own, other in zip(engine.module.parameters(), expected.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-7)


def test_accumulation_counts_micro_steps_and_returns_a_part_of_the_loss():
    engine, *_ = start(gradient_accumulation_steps=2)
    before = engine.module[0].weight.detach().clone()
    loss = loss_of(engine)
    assert not engine.is_gradient_accumulation_boundary()
    assert engine.backward(loss).item() == pytest.approx(loss.item() / 2)
    engine.step()
    assert torch.equal(engine.module[0].weight, before) and engine.module[0].weight.grad is not None
    loss = loss_of(engine, 1)
    assert engine.is_gradient_accumulation_boundary()
    assert engine.backward(loss, scale_wrt_gas=False).item() == pytest.approx(loss.item())
    engine.step()
    assert engine.was_step_applied() and engine.module[0].weight.grad is None
    assert (engine.global_steps, engine.micro_steps, engine.global_samples, engine.skipped_steps) == (1, 2, 8, 0)
    engine.set_gradient_accumulation_boundary(True)
    update(engine)
    assert engine.global_steps == 2
    engine.set_train_batch_size(16)
    assert engine.get_batch_info() == (16, 4, 4)
    with pytest.raises(ConfigError):
        engine.set_train_batch_size(15)


def test_a_backward_of_the_program_and_a_kept_graph():
    engine, *_ = start(gradient_accumulation_steps=2)
    engine.scale(loss_of(engine)).backward()
    engine.step()
    loss = loss_of(engine)
    engine.backward(loss, retain_graph=True)
    engine.backward(loss)
    engine.step()
    assert engine.global_steps == 1
    with pytest.raises(ConfigError, match="engine.backward"):  # Thrown by C++ in a hook of autograd.
        loss_of(engine).backward()
    with pytest.raises(ConfigError, match="expected a tensor"):
        engine.backward(1.0)


def test_results_of_16_bits_are_returned_as_float32_in_nested_values():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.seen = None

        def forward(self, x, scale=1):
            y = self.layer(x) * scale
            self.seen = y.dtype
            return {"y": y, "more": [y.sum(), 3, torch.ones(1, dtype=torch.int64)]}

    for section, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        engine, *_ = start(Two(), **{section: {"enabled": True}})
        out = engine(torch.ones(2, 4), scale=2)
        assert engine.module.seen == dtype and out["y"].dtype == torch.float32
        assert out["more"][0].dtype == torch.float32 and out["more"][1:] == [3, torch.ones(1, dtype=torch.int64)]
        assert engine.module(torch.ones(2, 4))["y"].dtype == torch.float32, "autocast ends with the engine's forward"
        engine.backward(out["y"].mean())
        engine.step()
        engine.destroy()


def test_a_failed_forward_leaves_no_autocast():
    engine, *_ = start(bf16={"enabled": True})
    with pytest.raises(RuntimeError, match="shape"):
        engine(torch.ones(2, 5))
    assert not torch.is_autocast_enabled("cpu")
    update(engine)


def test_an_overflow_skips_the_update_and_the_schedule():
    calls = []

    class Counting:
        def step(self):
            calls.append(1)

    engine, optimizer, _, scheduler = start(
        fp16={"enabled": True, "initial_scale_power": 4, "hysteresis": 1},
        _lr_scheduler=lambda optimizer: Counting(),
    )
    assert engine.loss_scale() == optimizer.cur_scale == 16
    engine.backward(loss_of(engine) * float("inf"))
    engine.step()
    assert (engine.skipped_steps, engine.global_steps, calls, engine.loss_scale()) == (1, 1, [], 8)
    assert optimizer.overflow and not engine.was_step_applied()
    update(engine)
    assert calls == [1] and scheduler is engine.lr_scheduler


def test_one_process_trains_a_model_of_zero_init():
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 2000), nn.Linear(2000, 2))

    expected, *_ = start(build())
    with deepspeed.zero.Init(config_dict_or_path=config(zero_optimization={"stage": 3})):
        model = build()
    engine, *_ = start(model, zero_optimization={"stage": 3})
    for step in range(3):
        assert update(engine, step) == pytest.approx(update(expected, step), rel=1e-5)
    torch.testing.assert_close(model[0].weight.detach(), expected.module[0].weight.detach())


def test_a_compiled_model_is_saved_under_its_own_names(tmp_path):
    model = torch.compile(net(), backend="eager")
    engine, *_ = start(model)
    first = update(engine)
    engine.save_checkpoint(tmp_path)
    plain, *_ = start()
    plain.load_checkpoint(tmp_path)
    assert engine.module is model and update(plain) == pytest.approx(update(engine)) != pytest.approx(first)


def test_the_engine_shows_the_model():
    engine, *_ = start(zero_optimization={"stage": 2})
    model = engine.module
    names = [f"module.{name}" for name, _ in model.named_parameters()]
    assert isinstance(engine, nn.Module) and [name for name, _ in engine.named_parameters()] == names
    assert list(engine.state_dict()) == names and engine.module_state_dict().keys() == model.state_dict().keys()
    assert engine.training is True and engine.forward != model.forward
    assert engine.eval().training is False and engine.train().training is True
    assert engine.zero_optimization() and engine.zero_optimization_stage() == 2
    assert not engine.fp16_enabled() and not engine.bfloat16_enabled()
    assert engine.device.type == "cpu" and (engine.local_rank, engine.global_rank, engine.world_size) == (0, 0, 1)
    with pytest.raises(AttributeError, match="'DeepSpeedEngine' .* 'no_such_name', nor has its model, a Sequential"):
        _ = engine.no_such_name
    update(engine)
    assert engine.get_global_grad_norm() > 0
    engine.destroy()
    with pytest.raises(ConfigError, match="destroyed"):
        engine(torch.ones(1, 4))


# --- optimizers
def test_rates_in_param_groups_count_from_the_next_update_on():
    for given in ({}, {"_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5)}):
        engine, optimizer, *_ = start(**given)
        optimizer.param_groups[0]["lr"] = 0.0
        before = engine.module[0].weight.detach().clone()
        if given:
            update(engine)
            assert torch.equal(engine.module[0].weight, before)
        assert engine.get_lr() == [0.0]
        optimizer.param_groups[0]["lr"] = 0.25
        update(engine)
        assert not torch.equal(engine.module[0].weight, before)
        engine.destroy()


def test_the_optimizers_step_is_the_engines_if_there_is_no_schedule():
    engine, optimizer, *_ = start()
    other, *_ = start()
    for step in range(2):  # As Lightning Fabric does.
        engine.backward(loss_of(engine, step))
        optimizer.step()
        update(other, step)
    assert engine.global_steps == 2
    for own, expected in zip(engine.module.parameters(), other.module.parameters()):
        assert torch.equal(own, expected)
    with pytest.raises(ConfigError, match="call engine.step"):
        optimizer.step(lambda: 1.0)
    accumulating, optimizer, *_ = start(train_batch_size=8, gradient_accumulation_steps=2)
    accumulating.backward(loss_of(accumulating))
    with pytest.raises(ConfigError, match="call engine.step"):
        optimizer.step()


def test_a_client_optimizer_replaces_that_of_the_file():
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    seen = []
    sgd.register_step_post_hook(lambda *args: seen.append(1))
    engine, optimizer, *_ = start(model, _optimizer=sgd)
    assert optimizer.optimizer is sgd and engine.get_mom() == [0.9]
    before = model[0].weight.detach().clone()
    loss = loss_of(engine)
    grad = torch.autograd.grad(loss, model[0].weight, retain_graph=True)[0]
    engine.backward(loss)
    engine.step()
    torch.testing.assert_close(model[0].weight.detach(), before - 0.5 * grad)
    assert seen == [1]
    state = optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 0.5 and "momentum_buffer" in state["state"][0]


def test_an_optimizer_class_of_the_program_trains_without_zero_and_is_saved(tmp_path):
    class Signum(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        state = self.state[parameter]
                        state["count"] = state.get("count", 0) + 1
                        parameter.sub_(parameter.grad.sign(), alpha=group["lr"])

    def make():
        model = net()
        return start(model, _optimizer=Signum(model.parameters(), 0.01))

    engine, *_ = make()
    before = engine.module[0].weight.detach().clone()
    update(engine)
    torch.testing.assert_close((engine.module[0].weight - before).abs().max(), torch.tensor(0.01))
    engine.save_checkpoint(tmp_path)
    other, optimizer, *_ = make()
    other.load_checkpoint(tmp_path)
    assert optimizer.optimizer.state[other.module[0].weight]["count"] == 1


def test_parameter_groups_for_the_optimizer_of_the_file():
    model = net()
    groups = [
        {"params": [model[0].weight, model[2].weight]},
        {"params": [model[0].bias, model[2].bias], "weight_decay": 0.0, "lr": 0.5},
    ]
    engine, optimizer, *_ = start(model, _model_parameters=groups, zero_optimization={"stage": 2})
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert engine.get_lr() == [0.01, 0.5]
    update(engine)
    with pytest.raises(ConfigError, match="option 'wd'"):
        model = net()
        start(model, _model_parameters=[{"params": model.parameters(), "wd": 1}])


def test_only_the_given_parameters_are_trained():
    model = net()
    engine, optimizer, *_ = start(model, _model_parameters=model[2].parameters())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    update(engine)
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters())]
    assert changed == [False, False, True, True] and len(optimizer.param_groups[0]["params"]) == 2


# --- schedules
def test_a_scheduler_of_the_program_replaces_that_of_the_file_and_is_resumed(tmp_path):
    def make():
        return start(
            scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
            _lr_scheduler=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, 0.5),
        )

    engine, *_ = make()
    rates = []
    for step in range(5):
        rates += engine.get_lr()
        update(engine, step)
    assert rates == [0.01, 0.01, 0.005, 0.005, 0.0025]
    engine.save_checkpoint(tmp_path)
    other, _, _, scheduler = make()
    other.load_checkpoint(tmp_path)
    assert scheduler.last_epoch == 5 and other.get_lr() == engine.get_lr()
    fresh, _, _, scheduler = make()
    fresh.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
    assert scheduler.last_epoch == 0


def test_a_scheduler_that_follows_a_metric_gets_it_from_step():
    engine, *_ = start(
        _lr_scheduler=lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    )
    for metric in (1.0, 2.0, 3.0):
        engine.backward(loss_of(engine))
        engine.step(lr_kwargs={"metrics": metric})
    assert engine.get_lr() == [0.0025]
    other, *_ = start()
    with pytest.raises(ConfigError, match="lr_kwargs needs a scheduler"):
        other.step(lr_kwargs={"metrics": 1.0})


def test_a_scheduler_of_another_optimizer_is_refused():
    model = net()
    other_schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(net().parameters(), lr=1), 1)
    with pytest.raises(ConfigError, match="another optimizer"):
        start(model, _lr_scheduler=other_schedule)
    with pytest.raises(ConfigError, match="without an optimizer"):
        start(_config={"train_batch_size": 4}, _lr_scheduler=lambda opt: None)
