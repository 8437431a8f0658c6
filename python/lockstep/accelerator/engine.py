# SPDX-License-Identifier: Apache-2.0
"""Preparation of a model with a ds_config: DeepSpeed's engine trains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from .._core import ConfigError
from .._environment import patch_environment
from ..state import PartialState
from ..utils._deepspeed_wrappers import (
    DeepSpeedEngineWrapper,
    DeepSpeedOptimizerWrapper,
    DeepSpeedSchedulerWrapper,
    DummyOptim,
    DummyScheduler,
)
from ..utils.dataclasses import DeepSpeedPlugin

_BY_HIDDEN_SIZE = {
    "zero_optimization.reduce_bucket_size": lambda size: size * size,
    "zero_optimization.stage3_prefetch_bucket_size": lambda size: int(0.9 * size * size),
    "zero_optimization.stage3_param_persistence_threshold": lambda size: 10 * size,
}


class GivenTraining:
    """The objects of one call of prepare that belong to an engine: a model, an optimizer, a schedule."""

    def __init__(self, objects: Sequence[Any], is_scheduler: Any) -> None:
        self.model = self._one(objects, lambda obj: isinstance(obj, torch.nn.Module), "model")
        self.optimizer = self._one(
            objects, lambda obj: isinstance(obj, (torch.optim.Optimizer, DummyOptim)), "optimizer"
        )
        self.scheduler = self._one(
            objects, lambda obj: isinstance(obj, DummyScheduler) or is_scheduler(obj), "schedule"
        )

    @staticmethod
    def _one(objects: Sequence[Any], belongs: Any, what: str) -> Any:
        found = [obj for obj in objects if belongs(obj)]
        if len(found) > 1:
            raise ConfigError(
                f"[prepare] with a ds_config a call prepares one {what}, for one engine; got {len(found)}; create an "
                "Accelerator for each engine"
            )
        return found[0] if found else None


def make_engine(
    plugin: DeepSpeedPlugin,
    given: GivenTraining,
    loaders: list[Any],
    mixed_precision: str,
    accumulation_steps: int,
    lines: int,
    processes_per_sequence: int,
    schedule_steps_per_update: int,
) -> tuple[DeepSpeedEngineWrapper, Any, Any]:
    """Returns the engine of a model, and the optimizer and schedule for the program; None for those not given.

    Replaces "auto" in the plugin's ds_config by the values of the program. A schedule that the program steps itself is
    left to it. `lines`: the number of processes, or groups of them, with batches of their own; their batches are in
    train_batch_size. `processes_per_sequence` processes divide each sequence. `schedule_steps_per_update`: how often one
    update steps the program's schedules. Collective.
    """
    if given.model is None:
        raise ConfigError(
            "[prepare] with a ds_config the optimizer and the schedule belong to an engine; pass the model in the same call"
        )
    _check_sections(plugin, given)
    plugin.set_mixed_precision(mixed_precision)
    _fill_batch_sizes(plugin, loaders, accumulation_steps, lines)
    plugin.deepspeed_config_process(must_match=False, **_values_of(plugin, given, schedule_steps_per_update))
    config = plugin.given_config()
    arguments: dict[str, Any] = {"model": given.model}
    if isinstance(given.optimizer, DummyOptim):
        arguments["model_parameters"] = list(given.optimizer.params)
    elif given.optimizer is not None:
        config["zero_allow_untested_optimizer"] = True
        arguments["optimizer"] = given.optimizer
    if isinstance(given.scheduler, DummyScheduler) and given.scheduler.lr_scheduler_callable is not None:
        arguments["lr_scheduler"] = given.scheduler.lr_scheduler_callable
    deepspeed = import_module("lockstep.deepspeed")
    arguments["config"] = deepspeed.given_config(config).with_sequence_ranks(processes_per_sequence)
    with patch_environment(LOCKSTEP_RESUME="0"):  # The Accelerator resumes; the engine has no folder of its own.
        engine, engine_optimizer, _, engine_scheduler = deepspeed.initialize(**arguments)
    optimizer = None if engine_optimizer is None else DeepSpeedOptimizerWrapper(engine_optimizer)
    scheduler: Any = None
    if isinstance(given.scheduler, DummyScheduler):
        scheduler = DeepSpeedSchedulerWrapper(engine_scheduler, optimizer)
    return DeepSpeedEngineWrapper(engine), optimizer, scheduler


def _check_sections(plugin: DeepSpeedPlugin, given: GivenTraining) -> None:
    for section, obj, dummy in (
        ("optimizer", given.optimizer, DummyOptim),
        ("scheduler", given.scheduler, DummyScheduler),
    ):
        name = dummy.__name__
        if obj is None:
            continue
        if section in plugin.deepspeed_config and not isinstance(obj, dummy):
            raise ConfigError(
                f"[prepare] the ds_config has a section {section}, and the program passes its own; remove the section, "
                f"or pass accelerate.utils.{name}"
            )
        creates = getattr(obj, "lr_scheduler_callable", None) is not None
        if section not in plugin.deepspeed_config and isinstance(obj, dummy) and not creates:
            raise ConfigError(f"[prepare] {name} needs a section {section} in the ds_config; add it")


def _fill_batch_sizes(
    plugin: DeepSpeedPlugin, loaders: list[Any], accumulation_steps: int, lines: int
) -> None:
    key = "train_micro_batch_size_per_gpu"
    config = plugin.deepspeed_config
    if config.get(key, "auto") == "auto":
        sizes = [loader.total_batch_size // lines for loader in loaders]
        if not sizes:
            raise ConfigError(
                f"[prepare] {key} of the ds_config is 'auto'; expected a number, or a DataLoader in the same call of "
                "prepare"
            )
        config[key] = min(sizes)
    plugin.fill_match(
        "gradient_accumulation_steps", must_match=False, gradient_accumulation_steps=accumulation_steps
    )
    config.setdefault("gradient_accumulation_steps", accumulation_steps)
    micro, steps = config[key], config["gradient_accumulation_steps"]
    if not isinstance(micro, (int, float)) or not isinstance(steps, (int, float)):
        return  # The C++ library refuses them, with their places.
    each = micro * steps
    # transformers' Trainer replaces "auto" by a size that counts a sample once for each process of its line.
    if config.get("train_batch_size", "auto") in ("auto", each * PartialState().num_processes):
        config["train_batch_size"] = each * lines


def _values_of(plugin: DeepSpeedPlugin, given: GivenTraining, steps_per_update: int) -> dict[str, Any]:
    """Returns the values that replace "auto" in the ds_config."""
    values: dict[str, Any] = {
        "gradient_clipping": 1.0,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
    }
    automatic = [key for key in _BY_HIDDEN_SIZE if plugin.is_auto(key)]
    if automatic:
        size = _hidden_size(given.model, automatic)
        values |= {key: _BY_HIDDEN_SIZE[key](size) for key in automatic}
    optimizer, scheduler = given.optimizer, given.scheduler
    if isinstance(optimizer, DummyOptim):
        values |= {"optimizer.params.lr": optimizer.lr, "optimizer.params.weight_decay": optimizer.weight_decay}
    if isinstance(scheduler, DummyScheduler) and scheduler.lr_scheduler_callable is None:
        its = scheduler.optimizer
        values |= {
            "scheduler.params.warmup_min_lr": 0,
            "scheduler.params.warmup_max_lr": its.lr if isinstance(its, DummyOptim) else its.defaults["lr"],
            "scheduler.params.warmup_num_steps": max(1, scheduler.warmup_num_steps),
        }
        if scheduler.total_num_steps is not None:
            values["scheduler.params.total_num_steps"] = math.ceil(scheduler.total_num_steps / steps_per_update)
    return values


def _hidden_size(model: torch.nn.Module, keys: list[str]) -> int:
    config: Any = getattr(model, "config", None)
    sizes = [getattr(config, "hidden_size", None) or max(getattr(config, "hidden_sizes", None) or [0])]
    if not sizes[0]:
        raise ConfigError(
            f"[prepare] {', '.join(keys)} of the ds_config is 'auto', and the model has no config.hidden_size; write "
            "a number"
        )
    return int(sizes[0])
