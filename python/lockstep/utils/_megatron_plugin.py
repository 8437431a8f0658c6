# SPDX-License-Identifier: Apache-2.0
"""Accelerate's MegatronLMPlugin: its degrees of parallelism, for models that are not Megatron-LM's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from .._core import ConfigError
from .environment import str_to_bool

_WHERE = "MegatronLMPlugin"
_VARIABLE = "MEGATRON_LM_"
_OWN_MODELS = "it concerns Megatron-LM's own models, data or schedules, which Lockstep does not have; remove it"
_SCHEDULE = "pass a scheduler of torch to prepare()"
_CHECKPOINTS = "load_state() and save_state() have the whole state; save_model() has the weights alone"
# Reasons and what to do instead; all other fields have _OWN_MODELS.
_INSTEAD = {
    "num_layers_per_virtual_pipeline_stage": "it needs pp_degree above 1",
    "num_micro_batches": "without pp_degree above 1, pass gradient_accumulation_steps to the Accelerator, and loop over accelerator.accumulate(model)",
    "context_parallel_size": "see docs/context_parallel.md",
    "expert_model_parallel_size": "see docs/experts.md",
    "recompute_activations": "call model.gradient_checkpointing_enable(), or torch.utils.checkpoint.checkpoint in the model",
    "use_custom_fsdp": "pass fsdp_plugin=FullyShardedDataParallelPlugin() instead of the plugin",
    "optimizer_cpu_offload": "pass zero={'offload_optimizer': ...} to the Accelerator, without use_distributed_optimizer",
    "no_load_optim": _CHECKPOINTS,
    "no_save_optim": _CHECKPOINTS,
    "calculate_per_token_loss": "pass accelerator.backward(sum_of_losses, count=tokens)",
    "lr_warmup_iters": _SCHEDULE,
    "lr_decay_iters": _SCHEDULE,
    "train_iters": _SCHEDULE,
    "tensorboard_dir": "pass log_with='tensorboard' and project_dir to the Accelerator",
}
_OFF = ("1", "false", "0", "0.0", "no", "none", "off")
_OF_PIPELINE = ("num_micro_batches", "num_layers_per_virtual_pipeline_stage")
_READ = ("tp_degree", "pp_degree", "sequence_parallelism", "use_distributed_optimizer", "gradient_clipping")


@dataclass
class MegatronLMPlugin:
    """Divides the layers of a model, and clips its gradients, as Megatron-LM would; the model is an ordinary one.

    `tp_degree` is ParallelismConfig's tp_size, and `sequence_parallelism` its handler's sequence_parallel, by the model's
    own tp_plan. `pp_degree` is its pp_size: the number of stages of a lockstep.deepspeed.pipe.PipelineModule that is made
    after the Accelerator, which computes each batch in `num_micro_batches`. With `num_layers_per_virtual_pipeline_stage` a
    stage has several chunks, by the interleaved schedule. `use_distributed_optimizer` is ZeRO stage 1. Each update first scales gradients down to a total norm of
    `gradient_clipping`; 0 does not clip. Fields that are None come from variables MEGATRON_LM_*, then from Accelerate's
    defaults: 1, no, no and 1.0. Another value than Accelerate's default of any other field is a ConfigError.
    """

    tp_degree: int = None  # type: ignore[assignment]  # Set by __post_init__.
    pp_degree: int = None  # type: ignore[assignment]
    use_custom_fsdp: bool | None = None
    overlap_cpu_optimizer_d2h_h2d: bool | None = None
    no_load_optim: bool | None = None
    eod_mask_loss: bool | None = None
    no_save_optim: bool | None = None
    optimizer_cpu_offload: bool | None = None
    use_precision_aware_optimizer: bool | None = None
    decoder_last_pipeline_num_layers: int | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    attention_backend: bool | None = None
    expert_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    attention_dropout: float | None = None
    hidden_dropout: float | None = None
    attention_softmax_in_fp32: bool | None = None
    expert_tensor_parallel_size: int | None = None
    calculate_per_token_loss: bool | None = None
    use_rotary_position_embeddings: bool | None = None
    num_micro_batches: int | None = None
    gradient_clipping: float = None  # type: ignore[assignment]
    sequence_parallelism: bool = None  # type: ignore[assignment]
    recompute_activations: bool | None = None
    use_distributed_optimizer: bool = None  # type: ignore[assignment]
    pipeline_model_parallel_split_rank: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    is_train_batch_min: bool = True
    train_iters: int | None = None
    train_samples: int | None = None
    weight_decay_incr_style: str = "constant"
    start_weight_decay: float | None = None
    end_weight_decay: float | None = None
    lr_decay_style: str = "linear"
    lr_decay_iters: int | None = None
    lr_decay_samples: int | None = None
    lr_warmup_iters: int | None = None
    lr_warmup_samples: int | None = None
    lr_warmup_fraction: float | None = None
    min_lr: float = 0
    consumed_samples: list[int] | None = None
    no_wd_decay_cond: Callable[..., Any] | None = None
    scale_lr_cond: Callable[..., Any] | None = None
    lr_mult: float = 1.0
    megatron_dataset_flag: bool = False
    seq_length: int | None = None
    encoder_seq_length: int | None = None
    decoder_seq_length: int | None = None
    tensorboard_dir: str | None = None
    set_all_logging_options: bool = False
    eval_iters: int = 100
    eval_interval: int = 1000
    return_logits: bool = False
    custom_train_step_class: Any = None
    custom_train_step_kwargs: dict[str, Any] | None = None
    custom_model_provider_function: Callable[..., Any] | None = None
    custom_prepare_model_function: Callable[..., Any] | None = None
    custom_megatron_datasets_provider_function: Callable[..., Any] | None = None
    custom_get_batch_function: Callable[..., Any] | None = None
    custom_loss_function: Callable[..., Any] | None = None
    other_megatron_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, default, convert in (
            ("tp_degree", "1", int),
            ("pp_degree", "1", int),
            ("sequence_parallelism", "false", str_to_bool),
            ("use_distributed_optimizer", "false", str_to_bool),
            ("gradient_clipping", "1.0", float),
        ):
            if getattr(self, name) is None:
                value = os.environ.get(_VARIABLE + name.upper(), default)
                try:
                    setattr(self, name, convert(value))
                except ValueError:
                    raise ConfigError(f"[{_VARIABLE}{name.upper()}] got '{value}'; expected a value like {default}") from None
        self.sequence_parallelism = bool(self.sequence_parallelism)
        self.use_distributed_optimizer = bool(self.use_distributed_optimizer)
        self._refuse_unsupported()
        if min(self.tp_degree, self.pp_degree) < 1 or self.gradient_clipping < 0:
            raise ConfigError(
                f"[{_WHERE}] tp_degree is {self.tp_degree}, pp_degree {self.pp_degree} and gradient_clipping "
                f"{self.gradient_clipping}; expected at least 1, 1 and 0"
            )
        if self.pp_degree > 1:
            self._read_pipeline()
        if self.sequence_parallelism and self.tp_degree == 1:
            raise ConfigError(f"[{_WHERE}] sequence_parallelism needs tp_degree above 1, which is 1; remove it")

    def _read_pipeline(self) -> None:
        for name in _OF_PIPELINE:
            value = getattr(self, name) or os.environ.get(_VARIABLE + name.upper())
            if value is not None and not str(value).isdigit():
                raise ConfigError(f"[{_WHERE}] {name} is {value!r}; expected a number")
            setattr(self, name, None if value is None else int(value))
        self.num_micro_batches = self.num_micro_batches or 1

    def _refuse_unsupported(self) -> None:
        for known in fields(self):
            if known.name in _READ or (self.pp_degree > 1 and known.name in _OF_PIPELINE):
                continue
            value = getattr(self, known.name)
            if value is None:
                value = os.environ.get(_VARIABLE + known.name.upper())
            # A degree of 1 and a flag that is off ask for nothing.
            unset = value is None or value == known.default or (known.default is None and str(value).lower() in _OFF)
            if not unset:
                raise ConfigError(
                    f"[{_WHERE}] {known.name} is {value!r}; expected {known.default!r}; "
                    f"{_INSTEAD.get(known.name, _OWN_MODELS)}"
                )
