# SPDX-License-Identifier: Apache-2.0
"""lockstep.deepspeed.convert: checkpoints that the real DeepSpeed 0.19.8 wrote (make_deepspeed_checkpoint.py)."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch

from crafted import MakesFolder
from launch import run_ranks
from lockstep import alias, deepspeed  # noqa: F401  # make_deepspeed_checkpoint imports deepspeed.
from lockstep._core import CheckpointError, ConfigError
from lockstep.deepspeed.convert import convert, main

import make_deepspeed_checkpoint as made

GOLDEN = Path(__file__).parent / "golden" / "deepspeed"
KINDS = ("plain", "zero1", "zero2", "zero3", "bf16_plain", "bf16_zero1", "bf16_zero2", "bf16_zero3")

RESUME = """
import torch
import lockstep.alias, deepspeed
import make_deepspeed_checkpoint as made

expected = torch.load({golden!r} + "/expected.pt", weights_only=True)
for stage in {stages}:
    config = made.config({kind!r}) | {{"zero_optimization": {{"stage": stage}}}}
    if "bf16" in config:
        config["data_types"] = {{"param_dtype": "bf16"}}
    net = made.model()
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=net, model_parameters=trained, config=config)
    path, client_state = engine.load_checkpoint({folder!r}, load_optimizer_states={with_state})
    assert client_state == {{"epoch": 3, "note": "of the program"}}, client_state
    assert path.endswith("six")
    assert engine.global_steps == 6 // engine.gradient_accumulation_steps() and engine.global_samples == 48
    losses = torch.tensor(made.train(engine, 6, 4))
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        weights = {{name: value.detach().float().clone() for name, value in net.state_dict().items()}}
    assert weights.keys() == expected["weights"].keys()
    off = max((weights[name] - expected["weights"][name]).abs().max().item() for name in weights)
    difference = (losses - expected["losses"][engine.global_rank]).abs().max().item()
    {check}
    engine.destroy()
"""


def resume(folder: Path, kind: str, check: str, stages: str = "(0, 1, 2, 3)", with_state: bool = True) -> None:
    program = RESUME.format(
        golden=str(GOLDEN / kind),
        folder=str(folder),
        kind=kind,
        stages=stages,
        with_state=with_state,
        check=check,
    )
    run_ranks(program, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_run_continues_as_deepspeed_does(kind, tmp_path):
    """In every stage: DeepSpeed's own next losses, and its weights four micro-steps later."""
    result = convert(GOLDEN / kind, tmp_path)
    assert (result.tag, result.parameters, result.with_optimizer_state, result.left_out) == ("six", 6, 5, [])
    resume(tmp_path, kind, "assert difference < 2e-6 and off < 1e-6, (stage, difference, off)")


def test_the_comparison_notices_missing_optimizer_state(tmp_path):
    convert(GOLDEN / "zero2", tmp_path)
    resume(tmp_path, "zero2", "assert off > 1e-3, off", "(0,)", with_state=False)


def test_the_schedule_continues_at_its_step(tmp_path):
    convert(GOLDEN / "zero1", tmp_path)
    resume(
        tmp_path,
        "zero1",
        "assert engine.lr_scheduler.state_dict() == {'last_batch_iteration': 9} and engine.get_lr() == [0.01]",
        "(2,)",
    )


def test_options_of_the_saved_optimizer_are_kept(tmp_path):
    convert(GOLDEN / "zero3", tmp_path)
    config = made.config("zero3") | {"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}, "zero_optimization": {}}
    engine, optimizer, _, _ = deepspeed.initialize(model=made.model(), config=config)
    engine.load_checkpoint(tmp_path)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.01, (0.9, 0.99), 0.1)
    state = deepspeed.utils.safe_get_full_optimizer_state(engine.module.embed.weight, "step")
    assert float(state) == 6
    engine.destroy()


def test_a_loader_begins_with_its_first_batch(tmp_path, capfd):
    """DeepSpeed saves no positions of loaders."""
    convert(GOLDEN / "plain", tmp_path)
    data = list(range(48))
    engine, _, loader, _ = deepspeed.initialize(model=made.model(), config=made.config("plain"), training_data=data)
    next(iter(loader))
    engine.load_checkpoint(tmp_path)
    assert capfd.readouterr().err.count("so the loaders begin with their first batch") == 1
    assert loader.iteration == 0
    batches = iter(loader)
    seen = [next(batches) for _ in range(2)]
    engine.save_checkpoint(tmp_path / "later")
    rest = torch.cat([*seen, *batches])
    assert rest.sort().values.tolist() == data
    engine.load_checkpoint(tmp_path / "later")
    assert "begin with" not in capfd.readouterr().err
    assert torch.equal(torch.cat([*seen, *loader]), rest)
    engine.destroy()


def test_the_command_prints_what_a_checkpoint_lacks(tmp_path, capsys):
    assert main([str(GOLDEN / "plain"), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "6 parameters, 5 with optimizer state" in printed and "random states" in printed
    assert main([str(GOLDEN / "plain"), str(tmp_path / "other"), "--tag", "seven"]) == 1
    assert "expected a checkpoint of DeepSpeed; " in capsys.readouterr().err


def test_a_file_that_could_run_code_is_refused(tmp_path):
    folder = tmp_path / "in" / "six"
    folder.mkdir(parents=True)
    torch.save({"module": {}, "note": MakesFolder(tmp_path / "ran")}, folder / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match="could run code"):
        convert(tmp_path / "in", tmp_path / "out", "six")
    assert not (tmp_path / "ran").exists()


def test_missing_files_are_named(tmp_path):
    shutil.copytree(GOLDEN / "zero2", tmp_path / "in")
    with pytest.raises(CheckpointError, match=r"has \['six'\]"):
        convert(tmp_path / "in", tmp_path / "out", "seven")
    (tmp_path / "in/six/zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match="has 1 files .*; expected 2; copy the files of all ranks"):
        convert(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in/six/mp_rank_00_model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="no file \\*_model_states.pt"):
        convert(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in/latest").unlink()
    with pytest.raises(CheckpointError, match="has no file latest"):
        convert(tmp_path / "in", tmp_path / "out")


def test_a_checkpoint_without_the_optimizers_name_needs_an_option(tmp_path):
    shutil.copytree(GOLDEN / "zero2", tmp_path / "in")
    model_file = tmp_path / "in/six/mp_rank_00_model_states.pt"
    content = torch.load(model_file, weights_only=True)
    content["ds_config"]["optimizer"] = None
    torch.save(content, model_file)
    assert convert(tmp_path / "in", tmp_path / "guessed").with_optimizer_state == 5
    for file in (tmp_path / "in/six").glob("zero_pp*"):
        _edit_options(file, "decoupled_weight_decay")
    with pytest.raises(ConfigError, match="--optimizer AdamW"):
        convert(tmp_path / "in", tmp_path / "out")
    assert convert(tmp_path / "in", tmp_path / "out", optimizer="AdamW").with_optimizer_state == 5


def test_the_dynamic_loss_scale_is_converted(tmp_path, monkeypatch):
    """DeepSpeed has no fp16 on a CPU, so the state of its scaler is written here, under its class's name."""
    from lockstep.deepspeed._deepspeed_files import load_states as _load

    scaler_class = type("DynamicLossScaler", (), {"__module__": "deepspeed.runtime.fp16.loss_scaler"})
    for name in ("deepspeed", "deepspeed.runtime.fp16.loss_scaler"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["deepspeed.runtime.fp16.loss_scaler"], "DynamicLossScaler", scaler_class, False)
    shutil.copytree(GOLDEN / "zero2", tmp_path / "in")
    for file in (tmp_path / "in/six").glob("zero_pp*"):
        content = _load(file)
        state = content["optimizer_state_dict"]
        for key in ("zero_stage", "param_slice_mappings"):
            state.pop(key)
        scaler = scaler_class()
        scaler.__dict__ |= {"cur_scale": 1024.0, "cur_iter": 9, "last_overflow_iter": 4, "cur_hysteresis": 1}
        state |= {"dynamic_loss_scale": True, "loss_scaler": scaler}
        torch.save(content, file)
    monkeypatch.undo()
    convert(tmp_path / "in", tmp_path / "out")
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW"},
        "fp16": {"enabled": True},
    }
    engine, *_ = deepspeed.initialize(model=made.model(), config=config)
    engine.load_checkpoint(tmp_path / "out")
    assert engine.loss_scale() == 1024
    saved = json.loads((tmp_path / "out/six/engine.json").read_text())["loss_scale"]
    assert saved == {"scale": 1024.0, "overflows_left": 1, "updates": 9, "last_overflow": 4}
    engine.destroy()


def _edit_options(file: Path, removed: str) -> None:
    from lockstep.deepspeed._deepspeed_files import load_states as _load

    content = _load(file)
    for key in ("loss_scaler", "zero_stage", "param_slice_mappings"):
        content["optimizer_state_dict"].pop(key)
    del content["optimizer_state_dict"]["base_optimizer_state"]["param_groups"][0][removed]
    torch.save(content, file)
