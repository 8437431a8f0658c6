# SPDX-License-Identifier: Apache-2.0
"""lockstep.deepspeed: names, fields and arguments that scripts for DeepSpeed use beside the three calls."""
from __future__ import annotations

import json
import logging

import pytest
import torch
from lockstep import deepspeed
from lockstep._core import CheckpointError, ConfigError
from lockstep.deepspeed.runtime import lr_schedules
from torch import nn

from deepspeed_engines import config, loss_of, net, start, update
from launch import run_ranks


# --- the engine
def test_the_engine_is_a_module_whose_hooks_and_modes_work():
    engine, *_ = start(zero_optimization={"stage": 1})
    seen = []
    engine.register_forward_hook(lambda module, inputs, output: seen.append(module))
    update(engine)
    assert seen == [engine] and list(engine.children()) == [engine.module]
    assert sum(p.numel() for p in engine.parameters()) == sum(p.numel() for p in engine.module.parameters())
    engine.eval()
    assert not engine.training and not engine.module[1].training
    engine.module[0].bias.requires_grad_(False)
    names = [name for name in engine.module.state_dict() if name != "0.bias"]
    assert list(engine.module_state_dict(exclude_frozen_parameters=True)) == names
    assert list(engine.module_state_dict(prefix="m.", exclude_frozen_parameters=True)) == [f"m.{n}" for n in names]
    other, *_ = start()
    other.load_module_state_dict({"module": engine.module_state_dict()})
    assert torch.equal(other.module[0].weight, engine.module[0].weight)
    engine.empty_partition_cache()


def test_an_attribute_that_a_property_of_the_model_lacks_names_both():
    class Model(nn.Linear):
        @property
        def broken(self):
            return self.absent

    engine, *_ = start(Model(4, 2))
    with pytest.raises(AttributeError, match="'DeepSpeedEngine' .* 'broken', nor has its model, a Model"):
        _ = engine.broken


def test_values_of_the_file_are_methods_of_the_engine_and_fields_of_the_configuration():
    file = config(
        fp16={"enabled": True, "loss_scale_window": 7},
        zero_optimization={"stage": 3, "stage3_max_live_parameters": 5000, "offload_optimizer": {"device": "cpu"}},
        scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 9}},
    )
    engine, optimizer, *_ = start(_config=file)
    assert engine.zero_max_live_parameters() == 5000 and engine.zero_cpu_offload()
    assert engine.zero_offload_optimizer()["device"] == "cpu" and engine.zero_offload_param() is None
    assert engine.scheduler_params()["warmup_num_steps"] == 9 and engine.optimizer_params()["lr"] == 0.01
    assert engine.zero_reduce_bucket_size() == engine._config["zero_optimization.reduce_bucket_size"]
    scaler = optimizer.loss_scaler
    assert engine.dynamic_loss_scale() and optimizer.dynamic_loss_scale and scaler.dynamic
    assert (scaler.scale_window, scaler.loss_scale, scaler.cur_iter) == (7, engine.loss_scale(), 0)
    read = deepspeed.DeepSpeedConfig(file)
    assert read.zero_config.stage == 3 and read.zero_config.max_live_parameters == 5000
    assert read.zero_config.offload_optimizer.device == "cpu" and read.float16_config.loss_scale_window == 7
    assert read.scheduler_params["warmup_num_steps"] == 9 and read.gradient_clipping == 0
    assert read.checkpoint_tag_validation_enabled and not read.checkpoint_tag_validation_fail
    for wrong in (lambda: read.no_such_field, lambda: read.zero_config.no_such_key):
        with pytest.raises(AttributeError, match="no_such"):
            wrong()


def test_values_of_the_program_are_written_beside_the_engines_curves(tmp_path):
    section = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    engine, *_ = start(csv_monitor=section)
    update(engine)
    assert engine.monitor.enabled
    engine.monitor.write_events([("Mine/accuracy", torch.tensor(0.5), engine.global_samples)])
    engine.destroy()
    written = "".join(path.read_text() for path in tmp_path.rglob("*.csv"))
    assert "step,accuracy\n4,0.5\n" in written and "step,lr\n4,0.01\n" in written
    assert not start()[0].monitor.enabled


def test_samples_are_counted_by_backward_passes_without_managed_accumulation():
    engine, *_ = start(gradient_accumulation_steps=4, managed_gradient_accumulation=False)
    for passes in (1, 3):
        for step in range(passes):
            engine.backward(loss_of(engine, step))
        engine.step()
    assert (engine.global_steps, engine.global_samples) == (2, 4 * 4)
    with pytest.raises(ConfigError, match="managed_gradient_accumulation false, where every step"):
        engine.set_gradient_accumulation_boundary(False)


def test_a_checkpoint_needs_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine, *_ = start()
    for missing in ("", None):
        for call in (engine.save_checkpoint, engine.load_checkpoint):
            with pytest.raises(ConfigError, match="the folder is missing"):
                call(missing)
    engine.save_checkpoint(".")
    assert (tmp_path / "latest").is_file() and engine.load_checkpoint(".")[0] is not None


# --- configuration
def test_bf16_with_torch_autocast_and_offload_of_parameters_only():
    both, *_ = start(bf16={"enabled": True}, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    assert both.bfloat16_enabled() and both.torch_autocast_enabled()
    assert both.torch_autocast_dtype() == torch.bfloat16
    expected, *_ = start(bf16={"enabled": True})
    assert [update(both, step) for step in range(3)] == [update(expected, step) for step in range(3)]
    with pytest.raises(ConfigError, match="two precisions"):
        start(bf16={"enabled": True}, torch_autocast={"enabled": True, "dtype": "float16"})
    zero = {"stage": 3, "offload_param": {"device": "cpu"}}
    offloaded, *_ = start(zero_optimization=zero)
    plain, *_ = start(zero_optimization={"stage": 3})
    assert offloaded.zero_cpu_offload()
    for step in range(3):
        assert update(offloaded, step) == pytest.approx(update(plain, step), rel=1e-6)


@pytest.mark.parametrize("name", ["torch.nn.Linear", "torch.nn.modules.linear.Linear", "Linear"])
def test_classes_of_torch_for_16_bit_communication_have_pythons_names(name):
    class Linear(nn.Bilinear):
        """Another class of that name."""

    section = {"enabled": True, "dtype": "bf16", "lower_precision_safe_modules": [name]}
    engine, *_ = start(torch_autocast=section)
    update(engine)
    own = nn.Sequential()
    own.append(Linear(4, 4, 2))
    if name == "Linear":
        start(own, torch_autocast=section)
    else:
        with pytest.raises(ConfigError, match="names a class that the model does not have"):
            start(own, torch_autocast=section)


def test_log_level_of_the_file_sets_the_loggers_level():
    before = deepspeed.logger.level
    try:
        start(log_level="ERROR")
        assert deepspeed.logger.getEffectiveLevel() == logging.ERROR
    finally:
        deepspeed.logger.setLevel(before)


def test_16_bit_parameters_compute_in_16_bits_outside_of_the_engine():
    for param_dtype, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        engine, *_ = start(bf16={"enabled": True}, data_types={"param_dtype": param_dtype})
        update(engine)
        assert engine.module(torch.ones(1, 4, dtype=dtype)).dtype == dtype
        assert engine.get_data_types()[0] == engine.module[0].weight.dtype == dtype


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_parameter_that_forward_creates_is_reported_once(stage, capfd):
    class Model(nn.Linear):
        def forward(self, x):
            if not hasattr(self, "late"):
                self.late = nn.Parameter(torch.ones(2))
            return super().forward(x) * self.late

    engine, *_ = start(Model(4, 2), zero_optimization={"stage": stage})
    for step in range(3):
        update(engine, step)
    assert capfd.readouterr().err.count("parameter late was added to the model after prepare()") == 1
    assert torch.equal(engine.module.late.detach(), torch.ones(2))


# --- schedules
SCHEDULES = {
    "WarmupLR": ({"warmup_num_steps": 5, "warmup_min_lr": 0.001}, {"warmup_num_steps": 5, "min_lrs": [0.001]}),
    "WarmupDecayLR": ({"total_num_steps": 9, "warmup_num_steps": 3}, {"total_num_steps": 9, "max_lrs": [0.001]}),
    "WarmupCosineLR": ({"total_num_steps": 9, "warmup_min_ratio": 0.1}, {"warmup_min_ratio": 0.1, "org_lrs": [0.01]}),
    "LRRangeTest": ({"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 3}, {"step_size": 3, "min_lr": [0.01]}),
    "OneCycle": ({"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 3}, {"total_size": 6}),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_files_schedule_is_an_instance_of_deepspeeds_class(name):
    params, fields = SCHEDULES[name]
    engine, _, _, scheduler = start(scheduler={"type": name, "params": params})
    own = getattr(lr_schedules, name)(torch.optim.Adam(net().parameters(), lr=0.01), **params)
    assert isinstance(scheduler, type(own)) and {key: getattr(scheduler, key) for key in fields} == fields
    assert {key: getattr(own, key) for key in fields} == fields
    for step in range(3):
        assert scheduler.get_lr() == pytest.approx(own.get_lr(), rel=1e-12) and scheduler.get_lr() == engine.get_lr()
        if name == "OneCycle":
            first = 0.9 if step == 0 else engine.get_mom()[0][0]
            assert scheduler.get_mom() == own.get_mom() and scheduler.get_mom()[0][0] == first
        else:
            assert scheduler.get_mom() == engine.get_mom()
        assert scheduler.last_batch_iteration == own.last_batch_iteration
        update(engine, step)
        own.step()
    with pytest.raises(ConfigError, match="load_checkpoint"):
        scheduler.load_state_dict({"last_batch_iteration": 0})


def test_a_schedule_of_the_file_without_a_class_of_deepspeeds_is_read_alike():
    engine, _, _, scheduler = start(scheduler={"type": "StepLR", "params": {"step_size": 2}})
    assert scheduler.get_last_lr() == engine.get_lr() and scheduler.state_dict() == {"last_batch_iteration": -1}
    update(engine)
    assert scheduler.last_batch_iteration == 0


# --- optimizers
def test_an_optimizer_that_needs_full_parameters_is_permitted_under_zero_on_one_rank():
    class Normed(torch.optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad /= parameter.grad.norm()
            return super().step(closure)

    for stage in (1, 2, 3):
        model = net()
        with pytest.raises(ConfigError, match="which Normed cannot: its update of an element depends on other elements"):
            start(model, _optimizer=Normed(model.parameters(), lr=0.1), zero_optimization={"stage": stage})
        model, other = net(), net()
        allowed = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
        own, *_ = start(model, _optimizer=Normed(model.parameters(), lr=0.1), **allowed)
        plain, *_ = start(other, _optimizer=Normed(other.parameters(), lr=0.1))
        assert [update(own, step) for step in range(3)] == [update(plain, step) for step in range(3)]


# --- modules
class Expert(nn.Linear):
    pass


def test_leaf_modules_are_marked_by_class_name_and_suffix():
    utils = deepspeed.utils
    model = nn.ModuleDict({"a": Expert(2, 2), "b": nn.Linear(2, 2), "c": nn.ModuleList([Expert(2, 2)])})
    assert utils.set_z3_leaf_modules(model, [nn.Linear]) == [model["a"], model["b"], model["c"][0]], "with subclasses"
    assert utils.get_z3_leaf_modules(model) == [model["a"], model["b"], model["c"][0]]
    assert utils.unset_z3_leaf_modules(model, ["Expert"]) == [model["a"], model["c"][0]]
    assert not utils.z3_leaf_module(model["a"]) and utils.z3_leaf_module(model["b"])
    full = f"{Expert.__module__}.Expert"
    assert utils.set_z3_leaf_modules(model, [full]) == [model["a"], model["c"][0]]
    assert utils.set_z3_leaf_modules_by_name(model, ["b", "absent"], raise_if_not_found=False) == (
        [model["b"]],
        ["absent"],
    )
    assert utils.set_z3_leaf_modules_by_suffix(model, ["0"], flag=False) == ([model["c"][0]], [])
    for mark in (utils.set_z3_leaf_modules_by_name, utils.set_z3_leaf_modules_by_suffix, utils.set_z3_leaf_modules):
        with pytest.raises(ValueError, match="no modules"):
            mark(model, ["absent"])


def test_models_are_built_on_a_device_in_a_dtype():
    with deepspeed.OnDevice(dtype=torch.float16, device="meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert {p.device.type for p in model.parameters()} == {"meta"} and model[0].weight.dtype == torch.float16
    assert model[1].num_batches_tracked.dtype == torch.int64 and torch.get_default_dtype() == torch.float32
    with deepspeed.utils.OnDevice(dtype=torch.bfloat16, device="cpu", enabled=False):
        assert nn.Linear(1, 1).weight.dtype == torch.float32
    with pytest.raises(KeyError), deepspeed.OnDevice(dtype=torch.float16):
        raise KeyError
    assert torch.get_default_dtype() == torch.float32 and torch.ones(1).device.type == "cpu"


def test_a_model_without_experts_is_known_as_such():
    from lockstep.deepspeed.moe.layer import MoE
    from lockstep.deepspeed.moe.mappings import drop_tokens
    from lockstep.deepspeed.moe.utils import (
        has_moe_layers,
        is_moe_param,
        split_params_into_different_moe_groups_for_optimizer,
    )

    assert not isinstance(net(), MoE) and has_moe_layers(net()) == (False, 0) and not is_moe_param(torch.ones(1))
    group = {"params": list(net().parameters()), "name": "all"}
    assert split_params_into_different_moe_groups_for_optimizer(group) == [group]
    with pytest.raises(ConfigError, match="does not divide the layers around experts"):
        drop_tokens(torch.ones(1))
    with pytest.raises(AttributeError):
        _ = deepspeed.MOELayer


# --- values of parameters, groups, random states
def test_values_of_a_frozen_parameter_are_none():
    model = net()
    model[0].weight.requires_grad_(False)
    engine, *_ = start(model, zero_optimization={"stage": 2})
    engine.backward(loss_of(engine))
    utils = deepspeed.utils
    assert utils.safe_get_full_fp32_param(model[0].weight) is None and utils.safe_get_full_grad(model[0].weight) is None
    assert utils.safe_get_full_optimizer_state(model[0].weight, "exp_avg") is None
    assert utils.safe_get_full_fp32_param(model[2].weight) is not None
    with pytest.raises(ConfigError, match="stage 3 only; got stage 2; use safe_get_full_grad"):
        utils.safe_get_local_grad(model[2].weight)


def test_parts_of_parameters_belong_to_ranks_in_stage_3():
    run_ranks(
        """
        import torch
        import lockstep.deepspeed as deepspeed
        from lockstep.deepspeed import comm as dist
        from lockstep.deepspeed.utils import *
        from lockstep.deepspeed.utils import groups

        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)  # 15 elements: parts of 8 and 7.
        engine, *_ = deepspeed.initialize(model=model, config={
            "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
            "optimizer": {"type": "Adam", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 3}})
        rank = engine.global_rank
        assert groups.get_data_parallel_world_size() == 2 and groups._get_data_parallel_rank() == rank
        assert groups.get_model_parallel_world_size() == 1 and dist.get_all_ranks_from_group() == [0, 1]
        engine.backward(engine(torch.ones(2, 5)).sum())
        w = model.weight
        full = safe_get_full_fp32_param(w)
        part = safe_get_local_fp32_param(w)
        padded = torch.cat([full.flatten(), torch.zeros(1)])
        assert part.shape == (8,) and torch.equal(part, padded[8 * rank : 8 * rank + 8])
        safe_set_local_fp32_param(w, torch.full((8,), float(rank)))
        assert safe_get_full_fp32_param(w).flatten().tolist() == [0.0] * 8 + [1.0] * 7
        safe_set_local_grad(w, torch.full((8,), 3.0))
        assert safe_get_full_grad(w).eq(3).all() and safe_get_local_grad(w).tolist()[:7] == [3.0] * 7
        safe_update_full_grad_vectorized([w, model.bias], lambda grad, param: grad * 0 + (7 if param is w else 5))
        assert safe_get_full_grad(w).eq(7).all() and safe_get_full_grad(model.bias).eq(5).all()
        engine.step()
        safe_set_local_optimizer_state(w, torch.full((8,), 2.0 + rank), "exp_avg")
        assert safe_get_full_optimizer_state(w, "exp_avg").flatten().tolist() == [2.0] * 8 + [3.0] * 7
        assert safe_get_local_optimizer_state(w, "exp_avg").eq(2.0 + rank)[:7].all()
        try:
            safe_set_local_grad(w, torch.ones(3, 5)); raise SystemExit("expected an error")
        except deepspeed.DeepSpeedConfigError as error:
            assert "15 elements; expected 8" in str(error)
        t = torch.ones(2); dist.inference_all_reduce(t); assert t.eq(2).all()
        many = [torch.ones(1), torch.ones(2)]; dist.all_reduce_coalesced(many); assert all(m.eq(2).all() for m in many)
        engine.empty_partition_cache()
        assert torch.equal(engine(torch.ones(2, 5)), engine(torch.ones(2, 5)))
        """,
        2,
    )


def test_groups_of_model_parallelism_do_not_exist():
    groups = deepspeed.utils.groups
    groups.initialize(ep_size=1)
    for refused in (lambda: groups.initialize(mpu=object()), groups.get_model_parallel_group):
        with pytest.raises(ConfigError, match="(?i)parallelism"):
            refused()


def test_random_states_of_the_device_and_the_memory_report(caplog):
    device = deepspeed.get_accelerator()
    device.manual_seed(5)
    state = device.get_rng_state()
    first = torch.rand(3, device=device.current_device_name())
    device.set_rng_state(state)
    assert torch.equal(torch.rand(3, device=device.current_device_name()), first) and device.initial_seed() == 5
    assert device.default_generator(0).initial_seed() == 5
    assert 0 < device.available_memory() <= device.total_memory() and device.memory_reserved() > 0
    from lockstep.deepspeed.runtime.utils import see_memory_usage

    with caplog.at_level("INFO", logger=deepspeed.logger.name):
        see_memory_usage("not forced")
        see_memory_usage("after the model", force=True)
    assert len(caplog.records) == 1 and "after the model: memory" in caplog.text and "GiB in use" in caplog.text


def test_a_program_that_has_connected_torch_distributed_needs_no_second_call():
    run_ranks(
        """
        import torch
        import lockstep.deepspeed as deepspeed

        try:
            deepspeed.init_distributed(dist_init_required=False); raise SystemExit("expected an error")
        except deepspeed.DeepSpeedConfigError as error:
            assert "pass None or True" in str(error)
        torch.distributed.init_process_group("gloo")
        engine, *_ = deepspeed.initialize(model=torch.nn.Linear(2, 1), dist_init_required=False, config={
            "train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})
        assert engine.world_size == torch.distributed.get_world_size() == 2
        deepspeed.init_distributed(dist_init_required=False)
        engine.backward(engine(torch.ones(2, 2)).sum()); engine.step()
        """,
        2,
    )


# --- zero.Init
def test_blocks_of_zero_init_may_be_nested():
    def build(*, nested):
        torch.manual_seed(0)
        file = config(zero_optimization={"stage": 3})
        init = deepspeed.zero.Init if nested else lambda **kwargs: deepspeed.zero.Init(enabled=False)
        with deepspeed.zero.Init(config_dict_or_path=file, mem_efficient_linear=False):
            first = nn.Linear(4, 2000)
            with init(config_dict_or_path=file):
                second = nn.Linear(2000, 2000)
                with init(dtype=torch.float64):
                    assert torch.get_default_dtype() == (torch.float64 if nested else torch.float32)
            assert torch.get_default_dtype() == torch.float32
            init(module=second)
            return nn.Sequential(first, second, nn.Linear(2000, 2))

    expected, *_ = start(build(nested=False), zero_optimization={"stage": 3})
    engine, *_ = start(build(nested=True), zero_optimization={"stage": 3})
    for step in range(2):
        assert update(engine, step) == update(expected, step)
    with pytest.raises(KeyError):
        with deepspeed.zero.Init(), deepspeed.zero.Init():
            raise KeyError
    with deepspeed.zero.Init():
        nn.Linear(100, 100)
    deepspeed.zero.take_pending()


# --- checkpoints
class Tied(nn.Module):
    """A small language model whose head, embedding and shortcut are one weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(8, 4)
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.shortcut = self.layer
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, x):
        return self.head(self.shortcut(self.embed(x)) * self.scale)


@pytest.mark.parametrize("stage", [0, 3])
def test_full_weights_of_a_checkpoint_have_all_names_of_tied_weights(tmp_path, stage):
    from lockstep.deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    engine, *_ = start(Tied(), zero_optimization={"stage": stage})
    engine.backward(engine(torch.arange(8)).square().mean())
    engine.step()
    engine.save_checkpoint(tmp_path, "all")
    state = get_fp32_state_dict_from_zero_checkpoint(tmp_path, "all")
    fresh = Tied()
    fresh.load_state_dict(state, strict=True)
    assert state["head.weight"] is state["embed.weight"] and state["shortcut.bias"] is state["layer.bias"]
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        assert torch.equal(fresh.embed.weight, engine.module.embed.weight)
    engine.module.embed.weight.requires_grad_(False)
    engine.save_checkpoint(tmp_path, "trained", exclude_frozen_parameters=True)
    assert "head.weight" not in get_fp32_state_dict_from_zero_checkpoint(tmp_path, "trained")
    resumed, *_ = start(Tied(), zero_optimization={"stage": 2})
    assert resumed.load_checkpoint(tmp_path, "all")[0] is not None
    for damaged in ("{", '["embed.weight"]'):
        (tmp_path / "all" / "tied_names.json").write_text(damaged)
        with pytest.raises(CheckpointError, match="tied_names.json"):
            get_fp32_state_dict_from_zero_checkpoint(tmp_path, "all")


def test_a_model_without_tied_weights_has_no_file_of_them(tmp_path):
    engine, *_ = start()
    engine.save_checkpoint(tmp_path, "plain")
    assert not (tmp_path / "plain" / "tied_names.json").exists()


def test_full_weights_are_written_as_torchs_files_or_safetensors(tmp_path):
    from lockstep.deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    engine, *_ = start(Tied(), zero_optimization={"stage": 2})
    engine.save_checkpoint(tmp_path / "saved")
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "saved", tmp_path / "one")
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "saved", tmp_path / "one")  # Replaces the first one's.
    state = torch.load(tmp_path / "one" / "pytorch_model.bin")
    Tied().load_state_dict(state, strict=True)
    assert torch.equal(state["head.weight"], state["embed.weight"])
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "saved", tmp_path / "two", max_shard_size="130B")
    index = json.loads((tmp_path / "two" / "pytorch_model.bin.index.json").read_text())["weight_map"]
    assert index.keys() == state.keys() and len(set(index.values())) > 1
    for name, file in index.items():
        assert torch.equal(torch.load(tmp_path / "two" / file)[name], state[name])
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "saved", tmp_path / "three", safe_serialization=True)
    assert [path.name for path in (tmp_path / "three").iterdir()] == ["model.safetensors"]
