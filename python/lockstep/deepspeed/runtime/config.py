# SPDX-License-Identifier: Apache-2.0
"""A ds_config.json with its derived values."""

from __future__ import annotations

import os
from typing import Any

from ... import _core
from .._config import given_config

__all__ = ["DeepSpeedConfig", "DeepSpeedConfigError"]

DeepSpeedConfigError = _core.ConfigError


class DeepSpeedConfig:
    """Reads a ds_config: a dict, path, JSON or base64 text. Throws ConfigError, with all errors of the file.

    `values` has every value by its path, such as "zero_optimization.stage". Batch sizes are for the ranks of this job.
    """

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        if mpu is not None or mesh_device is not None:
            raise _core.ConfigError(
                "[DeepSpeedConfig] mpu and mesh_device are not supported: Lockstep has no model parallelism; shard the "
                "model with ZeRO stage 3"
            )
        self._given_config = given_config(config)
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.values: dict[str, Any] = _core.ds_config_values(
            self._given_config.path, self._given_config.text, self.world_size
        )

    @property
    def train_batch_size(self) -> int:
        return self.values["train_batch_size"]

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        return self.values["train_micro_batch_size_per_gpu"]

    @property
    def gradient_accumulation_steps(self) -> int:
        return self.values["gradient_accumulation_steps"]

    @property
    def zero_optimization_stage(self) -> int:
        return self.values["zero_optimization.stage"]

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
    def gradient_clipping(self) -> float:
        return self.values["gradient_clipping"]

    @property
    def optimizer_name(self) -> str | None:
        return self.values.get("optimizer.type")

    @property
    def scheduler_name(self) -> str | None:
        return self.values.get("scheduler.type")
