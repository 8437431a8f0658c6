# SPDX-License-Identifier: Apache-2.0
"""The values of an engine's ds_config.json, as methods under DeepSpeed's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._config import DTYPES
from ._engine_base import EngineBase
from .runtime.config import section_of

__all__ = ["EngineSettings"]

# DeepSpeed's method, and the key of the file whose resolved value it returns.
_KEYS = {
    "autotp_size": "tensor_parallel.autotp_size",
    "bf16_master_weights_and_gradients": "bf16.bf16_master_weights_and_grads",
    "bf16_optimizer_states": "bf16.bf16_optimizer_states",
    "communication_data_type": "communication_data_type",
    "dataloader_drop_last": "dataloader_drop_last",
    "dump_state": "dump_state",
    "flops_profiler_detailed": "flops_profiler.detailed",
    "flops_profiler_enabled": "flops_profiler.enabled",
    "flops_profiler_module_depth": "flops_profiler.module_depth",
    "flops_profiler_output_file": "flops_profiler.output_file",
    "flops_profiler_profile_step": "flops_profiler.profile_step",
    "flops_profiler_recompute_fwd_factor": "flops_profiler.recompute_fwd_factor",
    "flops_profiler_top_modules": "flops_profiler.top_modules",
    "fp16_master_weights_and_gradients": "fp16.fp16_master_weights_and_grads",
    "gradient_clipping": "gradient_clipping",
    "log_level": "log_level",
    "managed_gradient_accumulation": "managed_gradient_accumulation",
    "memory_breakdown": "memory_breakdown",
    "optimizer_name": "optimizer.type",
    "scheduler_name": "scheduler.type",
    "steps_per_print": "steps_per_print",
    "torch_autocast_lower_precision_safe_modules": "torch_autocast.lower_precision_safe_modules",
    "use_node_local_storage": "checkpoint.use_node_local_storage",
    "wall_clock_breakdown": "wall_clock_breakdown",
    "zero_hpz_partition_size": "zero_optimization.zero_hpz_partition_size",
    "zero_ignore_unused_parameters": "zero_optimization.ignore_unused_parameters",
    "zero_load_from_fp32_weights": "zero_optimization.load_from_fp32_weights",
    "zero_max_live_parameters": "zero_optimization.stage3_max_live_parameters",
    "zero_model_persistence_threshold": "zero_optimization.stage3_model_persistence_threshold",
    "zero_param_persistence_threshold": "zero_optimization.stage3_param_persistence_threshold",
    "zero_prefetch_bucket_size": "zero_optimization.stage3_prefetch_bucket_size",
    "zero_quantized_gradients": "zero_optimization.zero_quantized_gradients",
    "zero_quantized_nontrainable_weights": "zero_optimization.zero_quantized_nontrainable_weights",
    "zero_quantized_weights": "zero_optimization.zero_quantized_weights",
    "zero_reduce_bucket_size": "zero_optimization.reduce_bucket_size",
}


class EngineSettings(EngineBase):
    """The methods of an engine that read its file."""

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as the program gave it."""
        return self.given_config.as_dict()

    def zero_optimization(self) -> bool:
        return self.core.zero_optimization_stage > 0

    def zero_optimization_stage(self) -> int:
        return self.core.zero_optimization_stage

    def zero_optimization_partition_gradients(self) -> bool:
        return self.core.zero_optimization_stage >= 2

    def zero_optimization_partition_weights(self) -> bool:
        return self.core.zero_optimization_stage >= 3

    def fp16_enabled(self) -> bool:
        return bool(self._value("fp16.enabled"))

    def bfloat16_enabled(self) -> bool:
        return bool(self._value("bf16.enabled"))

    def torch_autocast_enabled(self) -> bool:
        return bool(self._value("torch_autocast.enabled"))

    def dynamic_loss_scale(self) -> bool:
        return self.fp16_enabled() and not self._value("fp16.loss_scale")

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """Returns the dtype of the parameters, and that of the gradients that are accumulated."""
        dtype = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        accumulated = self._value("data_types.grad_accum_dtype")
        if accumulated is not None:
            return dtype, DTYPES[accumulated]
        return dtype, torch.float32 if self.core.zero_optimization_stage >= 2 else dtype

    def torch_autocast_dtype(self) -> torch.dtype | None:
        return DTYPES.get(str(self._value("torch_autocast.dtype")))

    def optimizer_params(self) -> dict[str, Any] | None:
        return section_of(self._config, "optimizer.params")

    def scheduler_params(self) -> dict[str, Any] | None:
        return section_of(self._config, "scheduler.params")

    def zero_offload_optimizer(self) -> dict[str, Any] | None:
        return self._offload("offload_optimizer")

    def zero_offload_param(self) -> dict[str, Any] | None:
        return self._offload("offload_param")

    def zero_cpu_offload(self) -> bool:
        return self._value("zero_optimization.offload_optimizer.device") == "cpu"

    def initial_dynamic_scale(self) -> float:
        return 2.0 ** self._value("fp16.initial_scale_power")

    def _offload(self, name: str) -> dict[str, Any] | None:
        section = section_of(self._config, f"zero_optimization.{name}") or {}
        return None if section.get("device") in (None, "none") else section


def _reader(name: str, path: str) -> Callable[[EngineSettings], Any]:
    def read(self: EngineSettings) -> Any:
        return self._value(path)

    read.__name__, read.__doc__ = name, f"Returns {path} of the file, or its default."
    return read


for _name, _path in _KEYS.items():
    setattr(EngineSettings, _name, _reader(_name, _path))
