# SPDX-License-Identifier: Apache-2.0
"""Conversion of a ds_config to options of the C++ Accelerator.

DeepSpeed's engine reads more of a ds_config than an Accelerator does. A key that has an effect there, but not here, is
a ConfigError. docs/ds_config.md says why other keys need no effect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from .._core import ConfigError

__all__ = ["accelerator_options_of", "precision_of"]

_WHERE = "DeepSpeedPlugin"
_ZERO = "zero_optimization."

# Keys without a meaning for an Accelerator: Lockstep always has their effect, or they tune DeepSpeed's implementation.
IGNORED_KEYS = frozenset(
    """
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer fp16.auto_cast bf16.immediate_grad_update
    prescale_gradients gradient_predivide_factor disable_allgather zero_optimization.allgather_bucket_size
    zero_optimization.contiguous_gradients zero_optimization.reduce_scatter
    zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.allgather_partitions
    zero_optimization.overlap_comm zero_optimization.round_robin_gradients zero_optimization.parameter_alignment
    zero_optimization.legacy_stage1 zero_optimization.sub_group_size zero_optimization.elastic_checkpoint
    zero_optimization.pipeline_loading_checkpoint zero_optimization.enable_sanity_checks
    zero_optimization.offload_optimizer.fast_init zero_optimization.offload_optimizer.cpuadam_cores_perc
    zero_optimization.offload_param.buffer_count zero_optimization.offload_param.buffer_size
    zero_optimization.cpu_offload_use_pin_memory zero_optimization.stage3_max_reuse_distance
    zero_optimization.stage3_module_granularity_threshold zero_optimization.stage3_use_all_reduce_for_fetch_params
    zero_optimization.stage3_allgather_sequential zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.memory_efficient_linear aio.block_size aio.queue_depth aio.intra_op_parallelism
    aio.thread_count aio.single_submit aio.overlap_events disable_python_gc steps_per_print
    """.split()
)

# Keys that are options of the Accelerator: the path of the option, and the conversion of the value.
_OPTIONS: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    _ZERO + "stage": (("stage",), int),
    _ZERO + "reduce_bucket_size": (("bucket_cap_bytes",), lambda elements: int(elements) * 4),
    _ZERO + "stage3_max_live_parameters": (("stage3_max_live_parameters",), int),
    _ZERO + "stage3_param_persistence_threshold": (("stage3_param_persistence_threshold",), int),
    _ZERO + "stage3_prefetch_bucket_size": (("stage3_prefetch",), lambda elements: int(elements) > 0),
    _ZERO + "zero_quantized_weights": (("zero_quantized_weights",), bool),
    _ZERO + "zero_quantized_gradients": (("zero_quantized_gradients",), bool),
    _ZERO + "zero_hpz_partition_size": (("zero_hpz_partition_size",), int),
    _ZERO + "offload_optimizer.device": (("offload_optimizer", "device"), str),
    _ZERO + "offload_optimizer.nvme_path": (("offload_optimizer", "nvme_path"), os.fspath),
    _ZERO + "offload_optimizer.ratio": (("offload_optimizer", "ratio"), float),
    _ZERO + "offload_optimizer.super_offload": (("offload_optimizer", "super_offload"), bool),
    _ZERO + "offload_param.device": (("offload_param", "device"), str),
    _ZERO + "offload_param.nvme_path": (("offload_param", "nvme_path"), os.fspath),
}

_HINTS = {
    "optimizer": "create the optimizer in the program",
    "scheduler": "create the scheduler in the program",
    "gradient_clipping": "call accelerator.clip_grad_norm_(model.parameters(), max_norm) before optimizer.step()",
    "train_batch_size": "the loaders have the batch size; write 'auto'",
    "train_micro_batch_size_per_gpu": "the loaders have the batch size; write 'auto'",
}


def precision_of(config: dict[str, Any]) -> str | None:
    """Returns "fp16" or "bf16" if the ds_config enables it; None if it enables neither."""
    enabled = [dtype for dtype in ("fp16", "bf16") if _is_enabled(config, dtype)]
    if len(enabled) > 1:
        raise ConfigError(f"[{_WHERE}] the ds_config enables fp16 and bf16; remove one")
    return enabled[0] if enabled else None


def accelerator_options_of(config: dict[str, Any]) -> dict[str, Any]:
    """Returns options of the C++ Accelerator: zero, gradient_accumulation_steps and grad_scaler, if they are set.

    Throws ConfigError for a key that the Accelerator does not honour. "auto" and null are the default.
    """
    options: dict[str, Any] = {}
    zero: dict[str, Any] = {}
    for key, value in _values_of(config):
        section = key.partition(".")[0]
        unused_precision = section in ("fp16", "bf16") and not _is_enabled(config, section)
        if key in IGNORED_KEYS or unused_precision or key in ("fp16.enabled", "bf16.enabled"):
            continue
        if key in _OPTIONS:
            path, convert = _OPTIONS[key]
            target = zero.setdefault(path[0], {}) if len(path) == 2 else zero
            target[path[-1]] = convert(value)
        elif key == "gradient_accumulation_steps":
            options[key] = int(value)
        elif not _read_scale(key, value, options) and not _has_no_effect(key, value):
            hint = _HINTS.get(key, _HINTS.get(section, "remove it"))
            raise ConfigError(
                f"[{_WHERE}] the Accelerator does not honour {key} of the ds_config; got {value!r}; {hint}"
            )
    if zero.get("stage", 0) > 0:
        options["zero"] = zero
    return options


def _is_enabled(config: dict[str, Any], dtype: str) -> bool:
    return str(config.get(dtype, {}).get("enabled", False)).lower() == "true"


def _values_of(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the keys with dots, and values, that are neither sections, "auto" nor null."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _values_of(value, f"{prefix}{key}.")
        elif value is not None and value != "auto":
            yield prefix + key, value


def _read_scale(key: str, value: Any, options: dict[str, Any]) -> bool:
    """Reads a key of the loss scale of fp16. Returns false for another key or an impossible value."""
    names = {"fp16.initial_scale_power": "init_scale", "fp16.loss_scale_window": "growth_interval"}
    if key not in names:
        return False
    scale = options.setdefault("grad_scaler", {})
    scale[names[key]] = 2.0 ** int(value) if key == "fp16.initial_scale_power" else int(value)
    return True


def _has_no_effect(key: str, value: Any) -> bool:
    """Returns whether a value asks for what the Accelerator does without it."""
    defaults = {
        "fp16.loss_scale": 0,
        "fp16.hysteresis": 1,
        "fp16.consecutive_hysteresis": False,
        "gradient_clipping": 0,
        "gradient_allreduce_op": "mean",
        "wall_clock_breakdown": False,
        "zero_optimization.ignore_unused_parameters": True,
        "zero_optimization.load_from_fp32_weights": True,
        "bf16.check_grad_overflow": False,
        "zero_optimization.offload_optimizer.pin_memory": True,
        "zero_optimization.offload_param.pin_memory": True,
    }
    return key in defaults and value == defaults[key]
