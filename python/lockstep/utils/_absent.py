# SPDX-License-Identifier: Apache-2.0
"""Names of accelerate.utils that Lockstep lacks, with the reasons."""

from __future__ import annotations

__all__ = ["ABSENT"]

_FP8 = "Lockstep does not train in fp8; use mixed_precision='bf16'"
_MEGATRON = "Lockstep trains ordinary models with MegatronLMPlugin's degrees, without Megatron-LM's steps and datasets"
_FSDP = "Lockstep does not use torch's FSDP; accelerator.prepare shards the model"
_SEVERAL_DEVICES = (
    "Lockstep does not spread one model over devices; shard it by FullyShardedDataParallelPlugin or DeepSpeedPlugin"
)
_LAUNCHER = "it is a part of Accelerate's launcher; Lockstep's is the program `lockstep launch`"
_BNB = "Lockstep does not quantize models; load one that bitsandbytes or transformers has quantized"
_CLOUD = "Lockstep does not run on TPUs or in SageMaker"

# Maps each name to its reason.
ABSENT: dict[str, str] = {
    name: reason
    for reason, names in {
        _FP8: (
            "apply_fp8_autowrap contextual_fp8_autocast convert_model convert_model_to_fp8_ao "
            "filter_first_and_last_linear_layers has_ao_layers has_transformer_engine_layers"
        ),
        _MEGATRON: (
            "AbstractTrainStep BertTrainStep GPTTrainStep MegatronEngine MegatronLMDummyDataLoader "
            "MegatronLMDummyScheduler MegatronLMOptimizerWrapper MegatronLMSchedulerWrapper T5TrainStep "
            "add_model_config_to_megatron_parser avg_losses_across_data_parallel_group "
            "gather_across_data_parallel_groups megatron_lm_initialize megatron_lm_prepare_data_loader "
            "megatron_lm_prepare_model_optimizer_scheduler megatron_lm_prepare_optimizer megatron_lm_prepare_scheduler"
        ),
        "Lockstep offloads the state of every optimizer that it updates": "map_pytorch_optim_to_deepspeed",
        _FSDP: (
            "disable_fsdp_ram_efficient_loading enable_fsdp_ram_efficient_loading ensure_weights_retied fsdp2_apply_ac "
            "fsdp2_canonicalize_names fsdp2_load_full_state_dict fsdp2_prepare_model fsdp2_switch_optimizer_parameters "
            "get_fsdp2_grad_scaler"
        ),
        "run `lockstep merge-weights CHECKPOINT OUTPUT`": "merge_fsdp_weights",
        _SEVERAL_DEVICES: "OffloadedWeightsLoader PrefixedDataset",
        "it is a part of transformers' loading; use find_tied_parameters": "check_tied_parameters_in_config",
        "the Accelerator owns its loss scale; pass GradScalerKwargs": "get_grad_scaler",
        "use accelerator.autocast()": "get_mixed_precision_context_manager",
        _LAUNCHER: (
            "PrepareForLaunch _filter_args prepare_deepspeed_cmd_env prepare_multi_gpu_env "
            "prepare_simple_launcher_cmd_env"
        ),
        _BNB: "has_4bit_bnb_layers load_and_quantize_model",
        _CLOUD: "install_xla prepare_sagemager_args_inputs prepare_tpu",
    }.items()
    for name in names.split()
}
