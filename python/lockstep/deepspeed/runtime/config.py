# SPDX-License-Identifier: Apache-2.0
"""A ds_config.json with its derived values."""

from __future__ import annotations

import os
from typing import Any

from ... import _core
from .. import comm
from .._config import given_config, sequence_ranks_of

__all__ = ["DeepSpeedConfig", "DeepSpeedConfigError"]

DeepSpeedConfigError = _core.ConfigError

# DeepSpeed's fields, and the keys of the file whose resolved values they are.
_FIELDS = {
    "buffer_dtype": "data_types.buffer_dtype",
    "communication_data_type": "communication_data_type",
    "dataloader_drop_last": "dataloader_drop_last",
    "dump_state": "dump_state",
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_allreduce_op": "gradient_allreduce_op",
    "gradient_clipping": "gradient_clipping",
    "log_level": "log_level",
    "managed_gradient_accumulation": "managed_gradient_accumulation",
    "memory_breakdown": "memory_breakdown",
    "optimizer_name": "optimizer.type",
    "param_dtype": "data_types.param_dtype",
    "scheduler_name": "scheduler.type",
    "steps_per_print": "steps_per_print",
    "torch_autocast_dtype": "torch_autocast.dtype",
    "torch_autocast_lower_precision_safe_modules": "torch_autocast.lower_precision_safe_modules",
    "train_batch_size": "train_batch_size",
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "use_node_local_storage": "checkpoint.use_node_local_storage",
    "wall_clock_breakdown": "wall_clock_breakdown",
    "zero_optimization_stage": "zero_optimization.stage",
}
# DeepSpeed's fields that are sections of the file.
_SECTIONS = {
    "activation_checkpointing_config": "activation_checkpointing",
    "bfloat16_config": "bf16",
    "checkpoint_config": "checkpoint",
    "comms_config": "comms_logger",
    "float16_config": "fp16",
    "flops_profiler_config": "flops_profiler",
    "timers_config": "timers",
    "zero_config": "zero_optimization",
}


def section_of(values: dict[str, Any], path: str) -> dict[str, Any] | None:
    """Returns the keys of a section without its path; None if it has none."""
    prefix = f"{path}."
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)} or None


class ConfigSection:
    """A section of a ds_config.json: attributes are its keys, or sections. Stage 3's may lack their "stage3_"."""

    def __init__(self, values: dict[str, Any], path: str) -> None:
        self._values, self._path = values, path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for path in (f"{self._path}.{name}", f"{self._path}.stage3_{name}"):
            if path in self._values:
                return self._values[path]
        if section_of(self._values, f"{self._path}.{name}") is not None:
            return ConfigSection(self._values, f"{self._path}.{name}")
        raise AttributeError(f"the section {self._path} of the configuration has no key {name!r}")

    def __repr__(self) -> str:
        return f"{self._path} {section_of(self._values, self._path)}"


class DeepSpeedConfig:
    """Reads a ds_config: a dict, path, JSON or base64 text. Throws ConfigError, with all errors of the file.

    `values` has every value by its path, such as "zero_optimization.stage". Fields have DeepSpeed's names, such as
    `zero_config.stage`. Batch sizes are for the ranks of this job; with an mpu, those of parallel_state_sp that divide a
    sequence count as one.
    """

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        if mesh_device is not None:
            raise _core.ConfigError(
                "[DeepSpeedConfig] got a mesh_device; expected none; use an Accelerator with a ParallelismConfig"
            )
        self._given_config = given_config(config).with_sequence_ranks(sequence_ranks_of(mpu, "DeepSpeedConfig"))
        ranks = comm.get_world_size() if comm.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
        self.world_size = ranks // self._given_config.sequence_ranks
        self.values: dict[str, Any] = self._given_config.values(ranks)

    def __getattr__(self, name: str) -> Any:
        """Returns a field of DeepSpeed's class, from `values`."""
        if name in _FIELDS and "values" in vars(self):
            return self.values.get(_FIELDS[name])
        if name in _SECTIONS and "values" in vars(self):
            return ConfigSection(self.values, _SECTIONS[name])
        raise AttributeError(f"'DeepSpeedConfig' object has no attribute {name!r}")

    @property
    def zero_enabled(self) -> bool:
        return self.zero_optimization_stage > 0

    @property
    def fp16_enabled(self) -> bool:
        return bool(self.values.get("fp16.enabled"))

    @property
    def bfloat16_enabled(self) -> bool:
        return bool(self.values.get("bf16.enabled"))

    @property
    def torch_autocast_enabled(self) -> bool:
        return bool(self.values.get("torch_autocast.enabled"))

    @property
    def optimizer_params(self) -> dict[str, Any] | None:
        return section_of(self.values, "optimizer.params")

    @property
    def scheduler_params(self) -> dict[str, Any] | None:
        return section_of(self.values, "scheduler.params")

    @property
    def checkpoint_tag_validation_enabled(self) -> bool:
        return str(self.values.get("checkpoint.tag_validation")).upper() != "IGNORE"

    @property
    def checkpoint_tag_validation_fail(self) -> bool:
        return str(self.values.get("checkpoint.tag_validation")).upper() == "FAIL"
