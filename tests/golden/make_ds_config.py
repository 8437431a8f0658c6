#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes ds_config.json: DeepSpeed's batch sizes and defaults, for lockstep/ds_config's tests.

Run with deepspeed 0.19.8 installed:

    DS_BUILD_OPS=0 pip install torch deepspeed
    python tests/golden/make_ds_config.py

`batch_sizes`: [train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps] as given, null
where a file does not say it, and as resolved, null where DeepSpeed refuses. `defaults`: by the path of a key,
those of a file with a batch size and nothing else. `zero_bool`: the stage of "zero_optimization": true, false.
`optimizers`, `schedules`: the parameters that a type takes, with their defaults, null for one that must be given.
"""

import dataclasses
import enum
import inspect
import itertools
import json
import logging
import pathlib

import deepspeed
import torch
from deepspeed.module_inject.autotp_config import AutoTPConfig
from deepspeed.ops.adam import FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import FusedLion
from deepspeed.runtime import config as ds
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig

WORDS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


class World:
    """Stands in for the object that tells DeepSpeedConfig the number of ranks that share a batch."""

    def __init__(self, size):
        self.size = size

    def get_data_parallel_world_size(self):
        return self.size


def resolve(values, world_size):
    """DeepSpeedConfig of a dict, as if `world_size` ranks ran."""
    # The number of ranks counts only if there is a process group, which one process can pretend.
    ds.dist.get_rank = lambda: 0
    return ds.DeepSpeedConfig(values, mpu=World(world_size))


def batch_sizes():
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    for world_size, *given in itertools.product((1, 2, 3), (None, 1, 8, 12), (None, 1, 4), (None, 1, 2)):
        values = {name: value for name, value in zip(names, given) if value is not None}
        try:
            config = resolve(values, world_size)
            resolved = [getattr(config, name) for name in names]
        except AssertionError:
            resolved = None
        yield {"world_size": world_size, "given": given, "resolved": resolved}


def plain(value):
    if isinstance(value, enum.Enum):
        value = value.value
    return WORDS[value] if isinstance(value, torch.dtype) else value


def defaults():
    config = resolve({"train_batch_size": 8}, 1)
    values = {}

    def model(path, section):
        for name, field in type(section).model_fields.items():
            values[f"{path}.{field.alias or name}"] = plain(getattr(section, name))

    for name in (
        "managed_gradient_accumulation", "gradient_clipping", "prescale_gradients", "gradient_predivide_factor",
        "gradient_allreduce_op", "communication_data_type", "steps_per_print", "wall_clock_breakdown", "dump_state",
        "memory_breakdown", "log_level", "dataloader_drop_last",
    ):
        values[name] = plain(getattr(config, name))
    for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules"):
        values[f"data_types.{name}"] = plain(getattr(config, name))
    model("fp16", config.float16_config)
    model("bf16", config.bfloat16_config)
    model("zero_optimization", config.zero_config)
    for name in ("offload_optimizer", "offload_param"):
        section = type(config.zero_config)(**{name: {}, "stage": 3})
        model(f"zero_optimization.{name}", getattr(section, name))
    model("tensorboard", config.monitor_config.tensorboard)
    model("csv_monitor", config.monitor_config.csv_monitor)
    model("wandb", config.monitor_config.wandb)
    model("timers.throughput", config.timers_config)
    model("comms_logger", deepspeed.comm.config.CommsLoggerConfig())
    for name in ("enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed",
                 "output_file"):
        values[f"flops_profiler.{name}"] = getattr(config.flops_profiler_config, name)
    for name in ("partition_activations", "contiguous_memory_optimization", "cpu_checkpointing", "number_checkpoints",
                 "synchronize_checkpoint_boundary", "profile"):
        values[f"activation_checkpointing.{name}"] = getattr(config.activation_checkpointing_config, name)
    values["torch_autocast.enabled"] = config.torch_autocast_enabled
    values["torch_autocast.dtype"] = config.torch_autocast_dtype
    values["torch_autocast.lower_precision_safe_modules"] = config.torch_autocast_lower_precision_safe_modules
    values["checkpoint.tag_validation"] = config.checkpoint_config["tag_validation"]
    values["checkpoint.use_node_local_storage"] = config.use_node_local_storage
    model("tensor_parallel", TPTrainingConfig())
    model("tensor_parallel.tp", TPConfig())
    for field in dataclasses.fields(AutoTPConfig):
        values[f"tensor_parallel.partition_config.{field.name}"] = getattr(AutoTPConfig(), field.name)
    values |= {"sequence_parallel_size": 1, "data_parallel_size": None}  # Read by their names only.
    scalars = (bool, int, float, str, list, type(None))
    return {key: value for key, value in sorted(values.items()) if isinstance(value, scalars)}


def parameters(of):
    """Returns the arguments of a class other than its parameters or optimizer."""
    found = list(inspect.signature(of.__init__).parameters.values())[2:]
    return {p.name: None if p.default is inspect.Parameter.empty else p.default for p in found}


def main():
    logging.disable(logging.CRITICAL)
    whole = {
        "made_by": f"deepspeed {deepspeed.__version__}",
        "batch_sizes": list(batch_sizes()),
        "zero_bool": {
            str(on).lower(): int(resolve({"train_batch_size": 8, "zero_optimization": on}, 1).zero_config.stage)
            for on in (True, False)
        },
        "defaults": defaults(),
        "optimizers": {
            name: parameters(of)
            for name, of in {
                "AdamW": FusedAdam, "Lamb": FusedLamb, "Lion": FusedLion, "Adagrad": torch.optim.Adagrad,
                "SGD": torch.optim.SGD, "RMSprop": torch.optim.RMSprop, "Adafactor": torch.optim.Adafactor,
                "Adadelta": torch.optim.Adadelta, "Adamax": torch.optim.Adamax, "NAdam": torch.optim.NAdam,
                "RAdam": torch.optim.RAdam, "ASGD": torch.optim.ASGD, "Rprop": torch.optim.Rprop,
            }.items()
        },  # fmt: skip
        "schedules": {
            name: parameters(getattr(module, name))
            for module, names in {
                lr_schedules: ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"),
                torch.optim.lr_scheduler: (
                    "StepLR", "MultiStepLR", "ExponentialLR", "PolynomialLR", "CosineAnnealingLR",
                    "CosineAnnealingWarmRestarts", "OneCycleLR", "ConstantLR", "LinearLR", "CyclicLR",
                ),
            }.items()
            for name in names
        },  # fmt: skip
    }
    lines = json.dumps(whole, indent=1)
    path = pathlib.Path(__file__).parent / "ds_config.json"
    path.write_text(lines + "\n")


if __name__ == "__main__":
    main()
