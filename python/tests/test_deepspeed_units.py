# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own unit tests about public behaviour pass against lockstep.deepspeed, each rank as a fork.

Set LOCKSTEP_DEEPSPEED_SOURCES to a folder with DeepSpeed's repository, which has tests/unit; its packages lack them.
None of its code is part of Lockstep. The tables below were made with the commit edaa7221 (0.19.6). They name each test
that is not run, with a reason: a private name of DeepSpeed, an intended difference of docs/from_deepspeed.md, or
something that Lockstep lacks. deepspeed_unit_plugin.py has the few edits that are made to the tests.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from others_tests import run_files

SOURCES = os.environ.get("LOCKSTEP_DEEPSPEED_SOURCES", "")
DEADLINE_SECONDS = 7200

PRIVATE = "it uses attributes or modules of DeepSpeed that are private"
TEXT = "it expects DeepSpeed's text of the error; Lockstep's error is another"
REFUSED = "Lockstep refuses the key, as DeepSpeed 0.19.8 does"
ISINSTANCE = "it expects a class of DeepSpeed's optimizer; Lockstep's file optimizer is updated by the C++ library"
WRAPPER = "it expects the program's optimizer itself; initialize returns the engine's optimizer, which wraps it"
EXPERTS = "it trains experts with ZeRO, or reads the parts of DeepSpeed's layer and checkpoints of experts"
PIPELINE = "it uses topologies, grids or files of DeepSpeed's pipelines; test_pipeline.py has tests of its own"
TENSOR = "the tests read DeepSpeed's own divided layers, such as LinearLayer"
SEQUENCE = "it uses private functions of DeepSpeed, flash attention or a GPU; test_ulysses.py has tests of its own"
GPU = "it needs a GPU"
PACKAGES = "it imports a package that the tests lack: transformers, or mup"
BARE = "it calls loss.backward() where its gradients would be wrong, so Lockstep refuses it"
NOT_AVERAGED = "it reads gradients that are not averaged; Lockstep refuses that"
KEEPS_SHAPE = "it expects an empty tensor; a parameter that Lockstep shards keeps its shape"
FULL = "Muon needs full parameters, so its state is not offloaded"
BY_HAND = "it sets .grad without a backward"
OWN_OPTIMIZER = "an optimizer with an elementwise update trains without zero_allow_untested_optimizer"
ROUNDED_LOSS = "it expects a loss rounded to 16 bits; Lockstep computes losses in float32"
# In DeepSpeed 16-bit precision casts the parameters: docs/engine.md.
SIXTEEN_BITS = {"fp16": {"data_types": {"param_dtype": "fp16"}}, "bf16": {"data_types": {"param_dtype": "bf16"}}}
UNCLIPPED = {"gradient_clipping": 0.0}


@dataclass(frozen=True)
class Run:
    """What runs of a file: all but the tests whose names match an expression of `not_run`."""

    not_run: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)  # Keys that initialize() adds.
    float32: bool = False  # The numbers are compared with float32's: the device has no 16-bit dtype.


RUN = {
    "checkpoint/test_latest_checkpoint.py": Run({"test_existing_latest": PRIVATE}),
    "checkpoint/test_convert_checkpoint.py": Run(),
    "checkpoint/test_shared_weights.py": Run(),
    "checkpoint/test_tag_validation.py": Run(),
    "comm/test_dist.py": Run(),
    "launcher/test_ds_arguments.py": Run({"test_core_binding_arguments": PRIVATE}),
    "ops/adagrad/test_cpu_adagrad.py": Run(
        {"sparse_embedding": "Adagrad takes no sparse gradients", "gpu_error": GPU}
    ),
    "ops/adam/test_cpu_adam.py": Run(
        {
            "Bf16OptimizerStates": "state in bf16 exists for the file's optimizer only",
            "test_zenflow": "Lockstep has no delayed updates",
            "gpu_error": GPU,
            "TestCPUAdamSubgroup": PRIVATE,
        }
    ),
    "ops/adam/test_hybrid_adam.py": Run(),
    "ops/lion/test_cpu_lion.py": Run({"gpu_error": GPU}),
    "ops/muon/test_muon.py": Run(
        {
            r"TestMuonConfigs::test.muon-.*-True-(True|False)\]": FULL,
            "with_optimizer_offload_raises": TEXT,
            "test_update_matches_full_gradient_reference": PRIVATE,
        }
    ),
    "ops/muon/test_muon_partial_training.py": Run({"learning_rate_overrides": PRIVATE}),
    "runtime/half_precision/test_fp16.py": Run(
        {
            "ForMoE": EXPERTS,
            "TestFP16AdamTypes": "its key optimizer.torch_adam is in the wrong section",
            "TestZeroAllowUntestedOptimizer": OWN_OPTIMIZER,
        }
    ),
    "runtime/half_precision/test_zero_optim_overflow.py": Run(),  # Infinities of safe_set_full_grad skip the update.
    "runtime/test_data.py": Run(),
    "runtime/test_ds_config_dict.py": Run(
        {
            "TestBatchConfig|gather_16bit_params|get_bfloat16_enabled": PRIVATE,
            "gradient_allreduce": TEXT,
            "eigenvalue|compression": REFUSED,
            "DeepScale": "Lockstep has no argument --deepscale_config, which DeepSpeed calls deprecated",
        }
    ),
    "runtime/test_ds_initialize.py": Run(
        {
            r"TestNoOptim::test.0\]": "offload_param in stage 0 is an error",
            r"TestClientOptimizer::test.(None|Callable)|TestConfigOptimizer": ISINSTANCE,
            r"TestClientOptimizer::test.Optimizer": WRAPPER,
            "TestOptimizerImplementation": REFUSED,
            "TestBf16ZeRO0UnfusedOptimizer": PRIVATE,
            r"TestClientLrScheduler::test.(None|Callable)-_LRScheduler": "its schedule has no effect",
        }
    ),
    "runtime/test_lr_schedulers.py": Run({"unknown_warmup_type_falls_back": "an unknown warmup_type is an error"}),
    "runtime/test_multiple_models.py": Run({r"(-|\[)True-[123]\]": PRIVATE}, SIXTEEN_BITS),
    "runtime/test_no_sync_ctxt.py": Run(
        {
            r"test_zero_stage.[23]|test_engine_step|test_reentry": TEXT,
            "test_multiple_ctxts": NOT_AVERAGED,
        }
    ),
    "runtime/zero/test_ignore_unused_parameters.py": Run(),
    "runtime/zero/test_unwrap_model.py": Run({"TestUnwrapModel::test$": PRIVATE}),
    "runtime/zero/test_zero_context.py": Run(
        {
            "test_multiple_all_gather_handles|subclass_param|halftype|throughput": PRIVATE,
            "TestScatterGather|TestGatherUpdate": PRIVATE,
            "TestZeroGatheredParametersFree": KEEPS_SHAPE,
            "TestMiCS": "MiCS was removed in DeepSpeed 0.19.8",
            "ErrorOnModification": "Lockstep has no enable_sanity_checks; changes without modifier_rank are lost",
        }
    ),
    "runtime/zero/test_zero_context_ancestry.py": Run({"subclass_param_init": PRIVATE}),
    "runtime/zero/test_zero_context_return.py": Run({"TestReturnParam::test_ext_param_return$": PRIVATE}),
    "runtime/zero/test_zero_leaf_module.py": Run(
        {
            "default_config|custom_config|string_coercion": PRIVATE,
            "test_no_grad_input_error": "leaves need no treatment, so inputs may have no gradient",
            "enabled_via_config": "the section leaf_module has no effect: an operation unshards its parameters",
        }
    ),
    "runtime/zero/test_zero_linear_direct_init.py": Run({"TestZero3LinearDirectInit::|TestZero3LinearInit": PRIVATE}),
    "runtime/zero/test_zero_tensor_fragment.py": Run({"TestTensorFragmentSet.*local": PRIVATE}),
    "utils/test_init_on_device.py": Run(),
    "v1/half_precision/test_bf16.py": Run(
        {
            "TestZeroAllowUntestedOptimizer": OWN_OPTIMIZER,
            "TestBF16MasterWeightsGradients": ROUNDED_LOSS,
            "test_user_cpu_adam_must_enable_bf16_states": "bf16_optimizer_states applies to DeepSpeedCPUAdam, too",
        }
    ),
    "v1/test_engine_log_level.py": Run({"TestLogLevelConfig": PRIVATE}),
    "v1/zero/test_zero.py": Run(
        {
            "TestBF16OptimizerGradReduction|TestPartitionNcclAlignment": PRIVATE,
            "TestZeroAdamOptimizerStepCount|TestZeroPartitionCache": PRIVATE,
            "ParamPartitioning(LargeParam|ManyParams|SkipInit)|TestZero3InitForParent": PRIVATE,
            r"TestZero3ParamPartitioningBase::(?!test_offload_optimizer.True)": PRIVATE,
            r"TestZeroOffloadOptim::test.True": PRIVATE,
            "TestZero3RepeatForwardLoop": REFUSED,
            "TestZeroToFP32::test_2_param_groups": "its file has 1 for true",
            r"TestIncorectAllgatherBucketSize::test.1001": "Lockstep has no all-gather buckets",
        }
    ),
    "v1/zero/test_zero2_offload_multi_backward.py": Run({"allocates_no_cpu_accumulator": PRIVATE}),
    "v1/zero/test_zero_coalesce_grad_reduction.py": Run(
        {
            "TestCoalesceMoE": EXPERTS,
            "CollectiveCount|MicroStepInvariant|pipeline_parallelism|boundary_restored|uses_bf16_optimizer": PRIVATE,
            "inside_context_raises|blocked_for_zero2|inside_no_sync": TEXT,
            "returns_local_pre_reduce_value": NOT_AVERAGED,
        }
    ),
    "v1/zero/test_zero_hook_count_regression.py": Run({"test_non_reentrant_single_count_call": PRIVATE}),
    "v1/zero/test_zero_torch_func.py": Run({"TestZero0DirectBackwardStillRaises": "such a backward is right there"}),
    "v1/zero/test_zero_user_backward.py": Run(
        {
            r"TestZeroUserBackwardGradAccumulation::test_grad_accumulation\[": BARE,
            "needs_scaler|without_scale": PRIVATE,
            r"test_leaf_module.*\[3\]|FrozenParam.*(-|\[)3-|test_no_grad_input_accumulation": PRIVATE,
            "rejects_pipeline": PIPELINE,
            "scale_validates_scalar_loss": TEXT,
            "rejects_overlap_comm": "overlap_comm has no effect",
        },
        UNCLIPPED,
        float32=True,
    ),
}

# Tests that are not run at all. A folder is named without its files.
NOT_RUN = {
    "checkpoint/test_autotp_uc_checkpoint.py": TENSOR,
    "checkpoint/test_lr_scheduler.py": GPU,
    "checkpoint/test_mics_optimizer.py": "MiCS was removed in DeepSpeed 0.19.8",
    "checkpoint/test_moe_checkpoint.py": EXPERTS,
    "checkpoint/test_other_optimizer.py": PRIVATE,
    "checkpoint/test_pipeline.py": PIPELINE,
    "checkpoint/test_reshape_checkpoint.py": PRIVATE,
    "checkpoint/test_sparse.py": "sparse_gradients was removed in DeepSpeed 0.19.8",
    "checkpoint/test_universal_checkpoint.py": "Lockstep needs no universal checkpoints: any number of ranks loads one",
    "checkpoint/test_zero_optimizer.py": PRIVATE,
    "comm/test_comms_logger.py": PRIVATE,
    "linear/test_ctx.py": PRIVATE,
    "monitor/test_monitor.py": PRIVATE,
    "ops/adam/test_adamw.py": ISINSTANCE,
    "ops/adam/test_zf_torch_adam.py": "ZenFlow: Lockstep has no delayed updates",
    "ops/lion/test_lion.py": ISINSTANCE,
    "ops/test_op_builder.py": "Lockstep builds no kernels at run time",
    "profiling/flops_profiler/test_flops_profiler.py": PRIVATE,
    "runtime/activation_checkpointing/test_activation_checkpointing.py": GPU,
    "runtime/activation_checkpointing/test_activation_checkpointing_non_reentrant.py": GPU,
    "runtime/activation_checkpointing/test_offload_activations.py": GPU,
    "runtime/comm/test_coalesced_collectives.py": PRIVATE,
    "runtime/half_precision/onebit/test_onebit.py": "Lockstep has no 1-bit optimizers",
    "runtime/half_precision/test_dynamic_loss_scale.py": BY_HAND,
    "runtime/half_precision/test_fp8.py": "Lockstep has no fp8",
    "runtime/sparse_tensor/test_averaging_sparse_gradients.py": PRIVATE,
    "runtime/sparse_tensor/test_csr.py": PRIVATE,
    "runtime/sparse_tensor/test_sparse_grads.py": "sparse_gradients was removed in DeepSpeed 0.19.8",
    "runtime/test_autocast.py": PRIVATE,
    "runtime/test_data_efficiency.py": "Lockstep has no curriculum: the program's sampler orders the data",
    "runtime/test_ds_config_model.py": PRIVATE,
    "runtime/test_engine_eigenvalue.py": PRIVATE,
    "runtime/test_multi_output_model.py": ROUNDED_LOSS,
    "runtime/test_mup_optimizers.py": PACKAGES,
    "runtime/test_pld.py": "progressive_layer_drop was removed in DeepSpeed 0.19.8",
    "runtime/test_precision_config_dynamic_scale.py": PRIVATE,
    "runtime/test_precision_config_loss_scale.py": PRIVATE,
    "runtime/test_runtime_utils.py": PRIVATE,
    "runtime/test_tp_plan_extraction.py": TENSOR,
    "runtime/utils/test_partition.py": PRIVATE,
    "runtime/zero/test_nvme_checkpointing.py": PRIVATE,
    "runtime/zero/test_zero_allreduce_fetch_params.py": PRIVATE,
    "runtime/zero/test_zero_autocast_mixed_dtype.py": PACKAGES,
    "runtime/zero/test_zero_config.py": PRIVATE,
    "runtime/zero/test_zero_dynamic_class.py": PRIVATE,
    "runtime/zero/test_zero_grad_clip.py": PRIVATE,
    "runtime/zero/test_zero_hook_attribute_delegation.py": PRIVATE,
    "runtime/zero/test_zero_late_module_attach.py": PRIVATE,
    "runtime/zero/test_zero_nesting_init.py": PACKAGES,
    "runtime/zero/test_zero_offloadpp.py": PRIVATE,
    "runtime/zero/test_zero_tiled.py": PRIVATE,
    "runtime/zero/test_zeropp.py": PACKAGES,
    "utils/test_byte_cast.py": PRIVATE,
    "utils/test_get_optim_files.py": PRIVATE,
    "utils/test_groups.py": PRIVATE,
    "utils/test_nvtx.py": PRIVATE,
    "utils/test_partition_balanced.py": PRIVATE,
    "utils/test_pin_memory_tracker.py": PRIVATE,
    "v1/accelerator/test_accelerator.py": PRIVATE,
    "v1/half_precision/test_gradient_clipping_default.py": PRIVATE,
    "v1/half_precision/test_mixed_precision_dtype.py": PRIVATE,
    "v1/half_precision/test_with_autocast.py": PRIVATE,
    "v1/zero/test_offload_states.py": PRIVATE,
    "v1/zero/test_overlap_comm_record_stream.py": GPU,
    "v1/zero/test_stage2_flatten_on_gpu.py": PRIVATE,
    "v1/zero/test_zero_activation_checkpoint_lifecycle.py": PRIVATE,
    "v1/zero/test_zero_autocast.py": PRIVATE,
    "v1/zero/test_zero_cpu_offload_grad_accum.py": PRIVATE,
    "v1/zero/test_zero_functorch_linear.py": PRIVATE,
    "v1/zero/test_zero_init_pg_contradiction.py": PRIVATE,
}
NOT_RUN_FOLDERS = {
    "autotuning": "Lockstep has no autotuning",
    "compile": "Lockstep has no DeepCompile",
    "compression": "compression was removed in DeepSpeed 0.19.8",
    "elasticity": "elasticity was removed in DeepSpeed 0.19.8",
    "hybrid_engine": "Lockstep has no hybrid engine",
    "inference": "Lockstep has no inference engine",
    "launcher": "its subject is DeepSpeed's launcher; `lockstep launch` has tests of its own",
    "linear": "Lockstep has no quantized linear layers",
    "model_parallelism": TENSOR,
    "module_inject": TENSOR,
    "ops/accelerators": GPU,
    "ops/deepspeed4science": GPU,
    "ops/fp_quantizer": GPU,
    "ops/quantizer": GPU,
    "ops/sparse_attention": "sparse_attention was removed in DeepSpeed 0.19.8",
    "ops/spatial": GPU,
    "ops/transformer": "Lockstep has no fused transformer layers",
    "pipe": PIPELINE,
    "runtime/pipe": PIPELINE,
    "runtime/rollout": "Lockstep has no hybrid engine",
    "runtime/tensor_parallel": TENSOR,
    "runtime/zenflow": "Lockstep has no delayed updates",
    "sequence": SEQUENCE,
    "sequence_parallelism": SEQUENCE,
    "ulysses_alst": SEQUENCE,
    "v1/compile": "Lockstep has no DeepCompile",
    "v1/moe": EXPERTS,
    "v1/multimodal": TENSOR,
    "v1/nvme": PRIVATE,
    "v1/ops": GPU,
    "v1/pin_memory": PRIVATE,
}


def test_deepspeeds_sources_exist_or_a_reason_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    if not (Path(SOURCES) / "tests" / "unit").is_dir() or not SOURCES:
        reason = "DeepSpeed's unit tests are not run: LOCKSTEP_DEEPSPEED_SOURCES names no folder with tests/unit"
        with capsys.disabled():
            print(reason, file=sys.stderr)
        pytest.skip(reason)


@pytest.mark.skipif(not SOURCES, reason="LOCKSTEP_DEEPSPEED_SOURCES is not set")
@pytest.mark.parametrize("name", RUN)
def test_the_file_passes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = RUN[name]
    variables = {
        "LOCKSTEP_DEEPSPEED_SOURCES": SOURCES,
        "LOCKSTEP_DEEPSPEED_DEFAULTS": json.dumps(run.defaults),
        "LOCKSTEP_DEEPSPEED_FLOAT32": "1" if run.float32 else "",
    }
    files = {f"unit/{name}": run.not_run}
    at = Path(SOURCES) / "tests"
    outcomes = run_files(files, "deepspeed_unit_plugin", at, DEADLINE_SECONDS, "--noconftest", **variables)
    outcome = outcomes[f"unit/{name}"]
    with capsys.disabled():
        print(f"{name}: {outcome.passed} passed, {len(outcome.failed)} failed")
    assert outcome.passed and not outcome.failed, f"{outcome.failed}\n{outcome.output}"


@pytest.mark.skipif(not SOURCES, reason="LOCKSTEP_DEEPSPEED_SOURCES is not set")
def test_each_file_is_run_or_has_a_reason() -> None:
    unit = Path(SOURCES) / "tests" / "unit"
    found = {str(path.relative_to(unit)) for path in unit.rglob("test_*.py")}
    named = set(RUN) | set(NOT_RUN)
    in_folders = {name for name in found if any(name.startswith(f"{folder}/") for folder in NOT_RUN_FOLDERS)}
    assert sorted(found - named - in_folders) == [] and sorted(named - found) == []
    assert set(RUN) & set(NOT_RUN) == set() and all([*NOT_RUN.values(), *NOT_RUN_FOLDERS.values()])
