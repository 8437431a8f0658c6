# SPDX-License-Identifier: Apache-2.0
"""lockstep.utils.dataclasses: the options reach the C++ library, or are refused."""

from __future__ import annotations

import functools
import base64
import json
from datetime import timedelta

import pytest
import torch
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FullStateDictConfig, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from lockstep import _core
from lockstep._core import ConfigError
from lockstep.utils import dataclasses as dc
from lockstep.utils.deepspeed import HfDeepSpeedConfig


def accept(**options):
    """Constructs the C++ Accelerator: it throws for a name or value that it does not know."""
    return _core.Accelerator({"cpu": True, **options}, _core.WorldSpec(), _core.Group())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("data_parallel", dc.DistributedDataParallelKwargs()),
        (
            "data_parallel",
            dc.DistributedDataParallelKwargs(
                bucket_cap_mb=0.5,
                broadcast_buffers=False,
                find_unused_parameters=True,
                static_graph=True,
                comm_hook="power_sgd",
                comm_wrapper=dc.DDPCommunicationHookType.FP16,
                comm_state_option={
                    "matrix_approximation_rank": 2,
                    "start_powerSGD_iter": 5,
                    "use_error_feedback": False,
                },
            ),
        ),
        ("grad_scaler", dc.GradScalerKwargs(init_scale=1024.0, growth_interval=10)),
        ("gradient_accumulation_plugin", dc.GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False)),
        ("gradient_accumulation_plugin", dc.GradientAccumulationPlugin()),
        ("project_config", dc.ProjectConfiguration(total_limit=2, automatic_checkpoint_naming=True, iteration=3)),
        ("project_config", dc.ProjectConfiguration("folder")),
        ("fsdp_plugin", dc.FullyShardedDataParallelPlugin()),
        ("fsdp_plugin", dc.FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=False)),
        (
            "fsdp_plugin",
            dc.FullyShardedDataParallelPlugin(
                sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
                auto_wrap_policy="SIZE_BASED_WRAP",
                min_num_params=1000,
                cpu_offload=CPUOffload(offload_params=True),
                backward_prefetch="NO_PREFETCH",
                state_dict_type="sharded_state_dict",
                forward_prefetch=False,
            ),
        ),
        (
            "deepspeed_plugin",
            dc.DeepSpeedPlugin(zero_stage=3, offload_param_device="cpu", offload_optimizer_device="cpu"),
        ),
        ("deepspeed_plugin", dc.DeepSpeedPlugin(gradient_accumulation_steps=4)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_library_accepts_the_options(option, value, tmp_path):
    accept(**{option: value._core_options(), "project_dir": str(tmp_path)})


def test_the_library_accepts_autocast_and_loader_options():
    options = dc.AutocastKwargs(enabled=False, cache_enabled=False)._core_options()
    options |= dc.DataLoaderConfiguration(split_batches=True, even_batches=False)._core_options()
    assert len(options) == 4
    accept(**options)
    assert "autocast_cache_enabled" not in dc.AutocastKwargs()._core_options()


def test_options_have_the_librarys_names_and_units():
    assert dc.DistributedDataParallelKwargs(bucket_cap_mb=3)._core_options()["cap_bytes"] == 3 * 2**20
    wait = dc.InitProcessGroupKwargs(timeout=timedelta(seconds=1.5))
    assert wait._core_options() == {"timeout_ms": 1500}
    accelerator = accept(gradient_accumulation_plugin=dc.GradientAccumulationPlugin(num_steps=4)._core_options())
    assert accelerator.gradient_accumulation_steps == 4


def test_to_kwargs_has_only_changed_fields(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "eager")
    assert dc.GradScalerKwargs(init_scale=2.0).to_kwargs() == {"init_scale": 2.0}
    assert dc.InitProcessGroupKwargs().to_kwargs() == {}
    assert dc.TorchDynamoPlugin(use_regional_compilation=True).to_kwargs() == {"backend": "eager"}
    kwargs = dc.DistributedDataParallelKwargs(bucket_cap_mb=1, comm_hook="fp16").to_kwargs()
    assert kwargs == {"bucket_cap_mb": 1}


REFUSED = [
    (lambda: dc.DistributedDataParallelKwargs(dim=1), "dim is 1; expected 0"),
    (lambda: dc.DistributedDataParallelKwargs(comm_hook="zip"), "expected one of no, fp16, bf16"),
    (lambda: dc.DistributedDataParallelKwargs(comm_wrapper="fp16"), "needs a comm_hook"),
    (lambda: dc.DistributedDataParallelKwargs(comm_state_option={"warm_start": False}), "is for PowerSGD"),
    (
        lambda: dc.DistributedDataParallelKwargs(
            comm_hook="power_sgd", comm_state_option={"batch_tensors_with_same_shape": True}
        ),
        "batch_tensors_with_same_shape=True is not supported",
    ),
    (lambda: dc.InitProcessGroupKwargs(backend="ucc"), "no other transports"),
    (lambda: dc.InitProcessGroupKwargs(init_method="tcp://a:1"), "env://"),
    (lambda: dc.GradientAccumulationPlugin(num_steps=0), "at least 1"),
    (lambda: dc.ProjectConfiguration(total_limit=0), "at least 1"),
    (lambda: dc.TorchDynamoPlugin(backend="fast"), "expected one of NO, EAGER"),
    (lambda: dc.ProfileKwargs(activities=["tpu"]).build(), "expected one of cpu, cuda"),
    (lambda: dc.FullyShardedDataParallelPlugin(activation_checkpointing=True), "torch.utils.checkpoint"),
    (lambda: dc.FullyShardedDataParallelPlugin(mixed_precision_policy="bf16"), "mixed_precision='bf16'"),
    (lambda: dc.FullyShardedDataParallelPlugin(ignored_modules=[]), "ignored_modules is not supported"),
    (lambda: dc.FullyShardedDataParallelPlugin(param_init_fn=print), "param_init_fn is not supported"),
    (lambda: dc.FullyShardedDataParallelPlugin(cpu_ram_efficient_loading=True), "on every process"),
    (lambda: dc.FullyShardedDataParallelPlugin(limit_all_gathers=False), "always limited"),
    (lambda: dc.FullyShardedDataParallelPlugin(backward_prefetch="BACKWARD_POST"), "use BACKWARD_PRE"),
    (lambda: dc.FullyShardedDataParallelPlugin(forward_prefetch=True, backward_prefetch="NO_PREFETCH"), "NO_PREFETCH"),
    (lambda: dc.FullyShardedDataParallelPlugin(state_dict_type="LOCAL_STATE_DICT"), "SHARDED_STATE_DICT"),
    (
        lambda: dc.FullyShardedDataParallelPlugin(
            state_dict_config=FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
        ),
        "rank0_only=True",
    ),
    (lambda: dc.FullyShardedDataParallelPlugin(reshard_after_forward=True), "fsdp_version=2"),
    (
        lambda: dc.FullyShardedDataParallelPlugin(fsdp_version=2, sharding_strategy="FULL_SHARD"),
        "reshard_after_forward",
    ),
    (lambda: dc.FullyShardedDataParallelPlugin(min_num_params=5), "size_based_wrap"),
    (lambda: dc.FullyShardedDataParallelPlugin(auto_wrap_policy=print), "expected 'transformer_based_wrap'"),
    (
        lambda: dc.FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")._core_options(),
        "transformer_cls_names_to_wrap",
    ),
    (lambda: dc.DeepSpeedPlugin(gradient_clipping=1.0)._core_options(), "clip_grad_norm_"),
    (lambda: dc.DeepSpeedPlugin(zero3_init_flag=True), "prepare shards it"),
    (lambda: dc.DeepSpeedPlugin(enable_msamp=True), "fp8"),
    (lambda: dc.DeepSpeedPlugin(transformer_moe_cls_names="Block"), "experts"),
    (lambda: dc.DeepSpeedPlugin(is_train_batch_min=False), "its own batch size"),
    (lambda: dc.DeepSpeedPlugin(hf_ds_config={"fp16": {}}), "no section zero_optimization"),
    (lambda: dc.DeepSpeedPlugin(hf_ds_config="missing.json"), "expected a dict, or a file with JSON"),
    (lambda: dc.MegatronLMPlugin(num_micro_batches=4), "pass gradient_accumulation_steps to the Accelerator"),
    (lambda: dc.MegatronLMPlugin(eod_mask_loss=True), "concerns Megatron-LM's own models"),
    (lambda: dc.MegatronLMPlugin(sequence_parallelism=True), "needs tp_degree above 1"),
    (lambda: dc.ParallelismConfig(cp_size=2, sp_size=2), "which both divide the sequence"),
    (lambda: dc.TERecipeKwargs(), "does not train in fp8"),
    (lambda: dc.BnbQuantizationConfig(load_in_8bit=True), "does not quantize"),
]


@pytest.mark.parametrize(("construct", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_an_option_without_effect_is_refused(construct, text):
    with pytest.raises(ConfigError) as caught:
        construct()
    assert text in str(caught.value)


def test_fsdp_accepts_the_types_of_torch():
    layer = torch.nn.TransformerEncoderLayer
    plugin = dc.FullyShardedDataParallelPlugin(
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={layer}),
        fsdp_version=2,
        cpu_offload=CPUOffloadPolicy(),
    )
    options = plugin._core_options()
    assert options["transformer_cls_names_to_wrap"] == ["TransformerEncoderLayer"] and options["cpu_offload"] is True
    assert options["reshard_after_forward"] is True and options["state_dict_type"] == "SHARDED_STATE_DICT"
    accept(fsdp_plugin=options)
    by_size = functools.partial(size_based_auto_wrap_policy, min_num_params=7)
    assert dc.FullyShardedDataParallelPlugin(auto_wrap_policy=by_size)._core_options()["min_num_params"] == 7


def test_fsdp_takes_missing_fields_from_variables(monkeypatch):
    for name, value in {
        "FSDP_SHARDING_STRATEGY": "2",
        "FSDP_OFFLOAD_PARAMS": "true",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "A,B",
        "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
        "FSDP_BACKWARD_PREFETCH": "BACKWARD_POST",
    }.items():
        monkeypatch.setenv(name, value)
    assert dc.FullyShardedDataParallelPlugin()._core_options() == {
        "sharding_strategy": "SHARD_GRAD_OP",
        "cpu_offload": True,
        "auto_wrap_policy": "transformer_based_wrap",
        "transformer_cls_names_to_wrap": ["A", "B"],
        "state_dict_type": "SHARDED_STATE_DICT",
        "backward_prefetch": "BACKWARD_PRE",
    }
    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    with pytest.raises(ConfigError, match="activation_checkpointing is not supported"):
        dc.FullyShardedDataParallelPlugin()


def test_fsdp_can_take_the_layers_classes_from_the_model():
    plugin = dc.FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")
    model = torch.nn.Linear(1, 1)
    model._no_split_modules = ["Block"]
    plugin.set_auto_wrap_policy(model)
    assert plugin._core_options()["transformer_cls_names_to_wrap"] == ["Block"]


def test_deepspeed_reads_its_fields_from_the_ds_config(tmp_path):
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "auto"}},
        "bf16": {"enabled": "auto"},
    }
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    for given in (config, str(file), file, json.dumps(config), HfDeepSpeedConfig(config)):
        plugin = dc.DeepSpeedPlugin(hf_ds_config=given, gradient_clipping=0.5)
        assert plugin.uses_ds_config and plugin.zero_stage == 3 and plugin.gradient_accumulation_steps == 4
        assert plugin.offload_optimizer_device == "cpu" and plugin.hf_ds_config.is_zero3()
        assert plugin.deepspeed_config["gradient_clipping"] == 0.5
        assert plugin.deepspeed_config["zero_optimization"]["offload_param"]["device"] == "none"
    assert config["gradient_clipping"] == "auto", "the caller's dict is not changed"
    plugin.set_mixed_precision("bf16")
    assert plugin.deepspeed_config["bf16"]["enabled"] is True
    with pytest.raises(ConfigError, match="enables bf16"):
        plugin.set_mixed_precision("fp16")
    assert plugin.is_auto("train_micro_batch_size_per_gpu")
    plugin.deepspeed_config_process(must_match=False, train_micro_batch_size_per_gpu=8)
    assert plugin.get_value("train_micro_batch_size_per_gpu") == 8
    with pytest.raises(ConfigError, match="train_micro_batch_size_per_gpu is 8 in the ds_config and 16 elsewhere"):
        plugin.deepspeed_config_process(train_micro_batch_size_per_gpu=16)


def test_a_ds_config_has_the_forms_of_the_engines(tmp_path):
    text = '{"zero_optimization": {"stage": 2} /* gradients, too */, "steps_per_print": 1}'
    file = tmp_path / "ds_config.json"
    file.write_text(text, encoding="utf-8")
    for given in (text, file, base64.urlsafe_b64encode(text.encode()).decode()):
        assert HfDeepSpeedConfig(given).config == {"zero_optimization": {"stage": 2}, "steps_per_print": 1}
    for wrong in ("[1]", "{", "zero_optimization"):
        with pytest.raises(ConfigError, match="expected a dict, or a file with JSON"):
            HfDeepSpeedConfig(wrong)


def test_deepspeed_takes_missing_fields_from_variables(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "nvme")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "/fast")
    plugin = dc.DeepSpeedPlugin()
    assert not plugin.uses_ds_config
    assert plugin._core_options() == {
        "zero_stage": 3,
        "gradient_accumulation_steps": 2,
        "offload_optimizer_device": "none",
        "offload_param_device": "nvme",
        "offload_optimizer_nvme_path": "",
        "offload_param_nvme_path": "/fast",
    }
    with plugin.zero3_init_context_manager(enable=False):
        pass
    with pytest.raises(ConfigError, match="zero3_init"), plugin.zero3_init_context_manager(enable=True):
        pass


def test_enumerations_accept_values_and_members():
    assert "bf16" in dc.PrecisionType and dc.PrecisionType.BF16 in dc.PrecisionType and "bf8" not in dc.PrecisionType
    assert str(dc.RNGType.TORCH) == "torch" and dc.LoggerType.list()[0] == "all"
    assert json.dumps(dc.DistributedType.MULTI_CPU) == '"MULTI_CPU"' and dc.DistributedType.NO == "NO"


def test_the_profiler_records_operators():
    with dc.ProfileKwargs(activities=["cpu"], record_shapes=True).build() as profiler:
        torch.ones(3) + 1
    assert any(event.key == "aten::add" for event in profiler.key_averages())
