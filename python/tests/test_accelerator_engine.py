# SPDX-License-Identifier: Apache-2.0
"""An Accelerator with a ds_config: DeepSpeed's engine trains the model."""

from __future__ import annotations

import pytest
import torch

from lockstep import Accelerator, CheckpointError, ConfigError, DeepSpeedPlugin
from lockstep.state import AcceleratorState
from lockstep.utils import DummyOptim, DummyScheduler, ProjectConfiguration


def test_prepare_returns_an_engine_for_a_ds_config(tmp_path):
    """The loop has Accelerate's calls: backward() updates, clips and steps the schedule of the file."""
    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.1,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": 4}},
        "zero_optimization": {"stage": 2},
    }
    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    model = torch.nn.Linear(4, 1)
    optimizer = DummyOptim(model.parameters(), lr=0.5)
    loader = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2)
    engine, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, DummyScheduler(optimizer), loader)
    assert engine.module is model and accelerator.unwrap_model(engine) is model
    assert engine.train_micro_batch_size_per_gpu() == 2 and accelerator.gradient_accumulation_steps == 2
    before = model.weight.detach().clone()
    changed, rates = [], []
    for batch in loader:
        with accelerator.accumulate(engine):
            accelerator.backward(engine(batch).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        changed.append(not torch.equal(before, model.weight))
        rates.append(optimizer.param_groups[0]["lr"])
        assert accelerator.clip_grad_norm_(engine.parameters(), 1.0) == engine.get_global_grad_norm()
    assert rates[1] == rates[2] and rates[3] > rates[1] and engine.global_steps == 3
    assert changed == [False] * 5 + [True]  # The schedule begins with the rate 0, twice.
    accelerator.save_state(tmp_path / "state")
    saved = accelerator.get_state_dict(engine)["weight"].clone()
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state(tmp_path / "state")
    assert torch.equal(accelerator.get_state_dict(engine)["weight"], saved)
    with pytest.raises(ConfigError, match="turn async_save off"):
        accelerator.save_state(tmp_path / "state", async_save=True)
    with pytest.raises(ConfigError, match="set gradient_clipping in the ds_config"):
        accelerator.clip_grad_value_(engine.parameters(), 1.0)


def test_a_job_that_the_launcher_resumes_gets_the_engines_weights(tmp_path, monkeypatch):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 1},
    }
    project = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)

    def start():
        accelerator = Accelerator(
            cpu=True, deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), project_config=project
        )
        model = torch.nn.Linear(2, 1)
        loader = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
        return accelerator, *accelerator.prepare(model, DummyOptim(model.parameters()), loader)

    accelerator, engine, optimizer, loader = start()
    for batch in loader:
        accelerator.backward(engine(batch).sum())
    accelerator.save_state()
    saved = engine.module.weight.detach().clone()
    AcceleratorState._reset_state(True)
    monkeypatch.setenv("LOCKSTEP_RESUME", "1")
    resumed, engine, _, loader = start()
    assert not torch.equal(engine.module.weight, saved)
    next(iter(loader))
    assert torch.equal(engine.module.weight, saved) and engine.global_steps == 2 and resumed.sync_gradients


def test_a_checkpoint_with_an_engine_is_whole_or_absent(tmp_path, monkeypatch):
    """The engine's part belongs to the checkpoint: a save that fails there leaves the former one."""
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 0},
    }
    plugin = DeepSpeedPlugin(hf_ds_config=config)
    accelerator = Accelerator(cpu=True, deepspeed_plugin=plugin)
    model = torch.nn.Linear(2, 1)
    engine, _ = accelerator.prepare(model, DummyOptim(model.parameters()))
    folder = tmp_path / "state"
    accelerator.save_state(folder)
    saved = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    save_checkpoint = engine.save_checkpoint

    def fail_after_save(*args, **kwargs):
        save_checkpoint(*args, **kwargs)
        raise OSError("the disk is full")

    monkeypatch.setattr(engine, "save_checkpoint", fail_after_save)
    with pytest.raises(CheckpointError, match="is not saved; rank 0 failed.*the disk is full"):
        accelerator.save_state(folder)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["state"]
    accelerator.load_state(folder)
    assert torch.equal(model.weight, saved)
    (folder / "pytorch_model").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="has no part of an engine"):
        accelerator.load_state(folder)
    project = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, checkpointing_steps=5)
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, deepspeed_plugin=plugin, project_config=project)
    with pytest.raises(ConfigError, match="checkpointing_steps is 5.* call save_state"):
        accelerator.prepare(model, DummyOptim(model.parameters()))


def test_after_free_memory_checkpoints_have_no_engine(tmp_path):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 0},
    }
    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    model = torch.nn.Linear(2, 1)
    engine, optimizer = accelerator.prepare(model, DummyOptim(model.parameters()))
    accelerator.free_memory()
    del engine, optimizer
    accelerator.save_state(tmp_path / "state", async_save=True)
    accelerator.wait_for_save()
    assert (tmp_path / "state").is_dir() and not (tmp_path / "state" / "pytorch_model").exists()


def test_an_engine_needs_a_model_and_the_optimizer_of_one_place():
    plugin = DeepSpeedPlugin(
        hf_ds_config={
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": 1},
        }
    )
    accelerator = Accelerator(cpu=True, deepspeed_plugin=plugin)
    model = torch.nn.Linear(2, 2)
    own = torch.optim.AdamW(model.parameters())
    with pytest.raises(ConfigError, match="pass the model in the same call"):
        accelerator.prepare(own)
    with pytest.raises(ConfigError, match="the program passes its own; remove the section"):
        accelerator.prepare(model, own)
    with pytest.raises(ConfigError, match="DummyScheduler needs a section scheduler"):
        accelerator.prepare(model, DummyOptim(model.parameters()), DummyScheduler(own))
