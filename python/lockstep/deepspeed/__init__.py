# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's calls on the C++ engine: `import lockstep.deepspeed as deepspeed`.

Names and behaviour are those of DeepSpeed 0.19; docs/python.md lists differences. What Lockstep lacks is a ConfigError
that says what to do instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _core
from .._buffers import share_transient_buffers
from .._own_module import own_module
from .._torch_parallel import expect_undivided
from ..state import PartialState
from . import accelerator, checkpointing, comm, moe, monitor, ops, pipe, runtime, sequence, utils, zero
from ._config import GivenConfig, given_config, is_sequence_mpu, sequence_ranks_of
from ._optimizer import DeepSpeedOptimizer, grouped_file_optimizer
from ._tensor_parallel import (
    give_plan,
    set_autotp_mode,
    share_mesh,
    tensor_ranks_of,
    tp_model_init,
    with_tensor_ranks,
)
from ._unsupported import CLASSES as _UNSUPPORTED
from .accelerator import get_accelerator
from .comm import init_distributed
from .runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from .runtime.engine import DeepSpeedEngine
from .runtime.pipe.engine import PipelineEngine
from .runtime.pipe.module import PipelineModule
from .utils import OnDevice, log_dist, logger

__all__ = [
    "DeepSpeedConfig",
    "DeepSpeedConfigError",
    "DeepSpeedEngine",
    "DeepSpeedOptimizer",
    "OnDevice",
    "PipelineEngine",
    "PipelineModule",
    "accelerator",
    "add_config_arguments",
    "checkpointing",
    "comm",
    "default_inference_config",
    "get_accelerator",
    "init_distributed",
    "initialize",
    "log_dist",
    "logger",
    "moe",
    "monitor",
    "ops",
    "pipe",
    "runtime",
    "sequence",
    "set_autotp_mode",
    "tp_model_init",
    "utils",
    "zero",
]

__version__ = "0.19.8"  # The version of DeepSpeed whose behaviour this package has.
__git_hash__ = __git_branch__ = None  # Lockstep's own version is lockstep.__version__.
__version_major__, __version_minor__, __version_patch__ = 0, 19, 8


def initialize(
    args: Any = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[[list[torch.Tensor]], torch.optim.Optimizer] | None = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[..., Any] | None = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[DeepSpeedEngine, DeepSpeedOptimizer | None, Any, Any]:
    """Returns (engine, optimizer, loader of training_data, scheduler); None for those that do not exist. Collective.

    `config` is a dict, the path of a ds_config.json, or its base64 text; else `args.deepspeed_config` is taken.
    `optimizer`, an object or a function of the parameters, and `lr_scheduler`, an object or a function of the
    optimizer, replace those of the file. `model_parameters` are the parameters, or parameter groups, of the file's
    optimizer; by default all that require gradients. Throws ConfigError for an invalid configuration.
    """
    if mesh_param is not None:
        raise _core.ConfigError(
            "[initialize] got a mesh_param; expected none; use an Accelerator with a ParallelismConfig"
        )
    if model is None:
        raise _core.ConfigError("[initialize] the model is missing; pass model=")
    if not isinstance(model, torch.nn.Module):
        raise _core.ConfigError(f"[initialize] model is a {type(model).__name__}; expected a torch.nn.Module")
    expect_undivided([model, optimizer], "initialize")
    if mpu is not None and isinstance(own_module(model), PipelineModule):
        raise _core.ConfigError("[initialize] got an mpu with a PipelineModule, whose stages have all positions; pass mpu=None")
    of_mpu = None if is_sequence_mpu(mpu) else tensor_ranks_of(mpu)
    sequence_ranks = sequence_ranks_of(None if of_mpu is not None else mpu, "initialize")
    given = given_config(config, args, config_params).with_sequence_ranks(sequence_ranks)
    given.expect_no_other_mesh()
    given.expect_sequence_ranks()
    given = with_tensor_ranks(given, of_mpu, sequence_ranks > 1, own_module(model))
    init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required, verbose=False)
    if lr_scheduler is not None:
        given = given.without("scheduler")
    parameters = None if model_parameters is None else list(model_parameters)
    try:
        engine = _make_engine(model, optimizer, parameters, given)
    finally:
        vars(own_module(model)).pop("_lockstep_tensor_parallel", None)  # Another engine of it may have another plan.
    if lr_scheduler is not None:
        engine.set_scheduler(_scheduler_of(lr_scheduler, engine))
    engine.collate_fn = collate_fn
    if training_data is not None:
        engine._set_training_data(training_data)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _make_engine(
    model: torch.nn.Module, optimizer: Any, parameters: list[Any] | None, given: GivenConfig
) -> DeepSpeedEngine:
    state = PartialState()
    prepared = None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        if not callable(optimizer):
            raise _core.ConfigError(
                f"[initialize] optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer, or a "
                "function of the parameters"
            )
        optimizer = optimizer(trained if parameters is None else parameters)
    groups = [item for item in parameters or () if isinstance(item, dict)]
    if groups and len(groups) != len(parameters or ()):
        raise _core.ConfigError(
            "[initialize] model_parameters has parameters and dicts of parameter groups; expected only one kind"
        )
    if optimizer is not None:
        prepared = _prepared_optimizer(optimizer, given, _data_ranks(model, state))
    elif groups:
        values = given.values(_data_ranks(model, state))
        if values.get("optimizer.type") is not None:
            prepared = DeepSpeedOptimizer(grouped_file_optimizer(values, groups))
    tensor_ranks = give_plan(model, given)
    zero_inits = zero.take_pending()
    if zero_inits and (tensor_ranks > 1 or given.values(_data_ranks(model, state))["zero_optimization.stage"] != 3):
        for shards in zero_inits:
            shards.unshard([*model.parameters(), *model.buffers()])
        zero_inits = [] if tensor_ranks > 1 else zero_inits
    if state.device.type != "cpu":
        model.to(state.device)
    flat = [_tensor_of(item) for item in parameters or ()] if not groups else []
    inner: Any = None if prepared is None else prepared._inner
    of_core = given.for_each_rank(_data_ranks(model, state))
    initialized = _core.initialize(
        own_module(model),
        of_core.path,
        of_core.text,
        inner,
        flat,
        state.world,
        state.group,
        zero_inits,
    )
    is_pipeline = isinstance(own_module(model), pipe.PipelineModule)
    share_mesh(initialized.engine.accelerator.data_group, is_pipeline, tensor_ranks)
    share_transient_buffers([own_module(model)], state.data_group if is_pipeline else state.group, "initialize")
    engine = (PipelineEngine if is_pipeline else DeepSpeedEngine)(model, initialized, prepared, given)
    if not checkpointing.is_configured():
        prefix = "activation_checkpointing."
        checkpointing.apply_section(
            {path.removeprefix(prefix): value for path, value in engine._config.items() if path.startswith(prefix)}
        )
    return engine


def _prepared_optimizer(
    optimizer: torch.optim.Optimizer, given: GivenConfig, ranks: int
) -> DeepSpeedOptimizer:
    """Returns the program's optimizer for the engine. Throws ConfigError for one that ZeRO cannot shard.

    One rank has all parameters in full, so there zero_allow_untested_optimizer permits any class, as DeepSpeed does.
    """
    stage = given.values(ranks)["zero_optimization.stage"]
    try:
        return DeepSpeedOptimizer(optimizer, sharded=stage > 0)
    except _core.ConfigError:
        if ranks > 1 or not given.as_dict().get("zero_allow_untested_optimizer"):
            raise
        return DeepSpeedOptimizer(optimizer)


def _data_ranks(model: torch.nn.Module, state: PartialState) -> int:
    """Returns how many ranks compute samples of their own, or divide layers or sequences as the file says."""
    return int(state.num_processes // getattr(own_module(model), "_lockstep_pipeline_stages", 1))


def _tensor_of(item: Any) -> torch.Tensor:
    """Returns the parameter of an element of model_parameters, which may be a (name, parameter) pair."""
    item = item[1] if isinstance(item, tuple) and len(item) == 2 else item
    if not isinstance(item, torch.Tensor):
        raise _core.ConfigError(
            f"[initialize] model_parameters has a {type(item).__name__}; expected parameters, or dicts of parameter "
            "groups"
        )
    return item


def _scheduler_of(lr_scheduler: Any, engine: DeepSpeedEngine) -> Any:
    if engine.optimizer is None:
        raise _core.ConfigError(
            "[initialize] got a scheduler without an optimizer; add an optimizer to the file, or pass one"
        )
    own = engine.optimizer.optimizer
    if callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
        return lr_scheduler(own)
    if not hasattr(lr_scheduler, "step"):
        raise _core.ConfigError(
            f"[initialize] lr_scheduler is a {type(lr_scheduler).__name__}; expected an object with step(), or a "
            "function of the optimizer"
        )
    its = getattr(lr_scheduler, "optimizer", own)
    if its is not own and its is not engine.optimizer:
        raise _core.ConfigError(
            "[initialize] lr_scheduler belongs to another optimizer than the engine's; pass its optimizer, too, or "
            "pass a function of the optimizer as lr_scheduler"
        )
    return lr_scheduler


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config FILE to a parser, and returns it."""
    group = parser.add_argument_group("DeepSpeed", "configuration of the engine")
    group.add_argument("--deepspeed", default=False, action="store_true", help="train with the engine")
    group.add_argument("--deepspeed_config", default=None, type=str, metavar="FILE", help="the ds_config.json")
    return parser


def default_inference_config() -> dict[str, Any]:
    """Throws ConfigError: Lockstep has no inference engine."""
    return _UNSUPPORTED["init_inference"]()


def __getattr__(name: str) -> Any:
    if name in _UNSUPPORTED:
        return _UNSUPPORTED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
