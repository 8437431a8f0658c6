# SPDX-License-Identifier: Apache-2.0
"""Options of the Accelerator: Accelerate's dataclasses and plugins.

A class that Lockstep honours has `_core_options()`, which returns the options under the names that the C++ library
reads. The constructor throws ConfigError for a value that Lockstep does not honour.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, cast

import torch

from .._core import ConfigError
from .._enums import (
    BACKENDS,
    BaseEnum,
    ComputeEnvironment,
    CustomDtype,
    DDPCommunicationHookType,
    DistributedType,
    DynamoBackend,
    FP8BackendType,
    KwargsHandler,
    LoggerType,
    PrecisionType,
    RNGType,
    SageMakerDistributedType,
)
from ..parallelism_config import DeepSpeedSequenceParallelConfig, ParallelismConfig, TorchContextParallelConfig
from ._deepspeed_plugin import DeepSpeedPlugin
from ._fsdp_plugin import FullyShardedDataParallelPlugin
from ._megatron_plugin import MegatronLMPlugin
from .environment import str_to_bool

__all__ = [
    "AORecipeKwargs",
    "AutocastKwargs",
    "BaseEnum",
    "BnbQuantizationConfig",
    "ComputeEnvironment",
    "CustomDtype",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DeepSpeedPlugin",
    "DeepSpeedSequenceParallelConfig",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "DynamoBackend",
    "FP8BackendType",
    "FP8RecipeKwargs",
    "FullyShardedDataParallelPlugin",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "LoggerType",
    "MSAMPRecipeKwargs",
    "MegatronLMPlugin",
    "ParallelismConfig",
    "PrecisionType",
    "ProfileKwargs",
    "ProjectConfiguration",
    "RNGType",
    "SageMakerDistributedType",
    "TERecipeKwargs",
    "TensorInformation",
    "TorchContextParallelConfig",
    "TorchDynamoPlugin",
    "TorchTensorParallelConfig",
    "TorchTensorParallelPlugin",
    "get_module_class_from_name",
]


@dataclass
class AutocastKwargs(KwargsHandler):
    """Options of autocast. `cache_enabled` keeps casts of weights until autocast ends; None is the default, true."""

    enabled: bool = True
    cache_enabled: bool | None = None

    def _core_options(self) -> dict[str, Any]:
        """Returns options of the Accelerator itself."""
        options = {"autocast_enabled": self.enabled}
        if self.cache_enabled is not None:
            options["autocast_cache_enabled"] = self.cache_enabled
        return options


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Options of data parallel training, under the names of torch's DistributedDataParallel.

    Lockstep always finds unused parameters, always compares the processes' operations, always stores gradients in
    buckets, and needs no promise of a static graph. So `find_unused_parameters`, `check_reduction`,
    `gradient_as_bucket_view` and `static_graph` may have either value. `bucket_cap_mb` is in MiB.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType | str = DDPCommunicationHookType.NO
    comm_wrapper: DDPCommunicationHookType | str = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.comm_hook = _member(DDPCommunicationHookType, self.comm_hook, "comm_hook")
        self.comm_wrapper = _member(DDPCommunicationHookType, self.comm_wrapper, "comm_wrapper")
        self._core_options()

    def to_dict(
        self, ignore_keys: tuple[str, ...] = ("comm_hook", "comm_wrapper", "comm_state_option")
    ) -> dict[str, Any]:
        """Returns a copy of the fields that torch's DistributedDataParallel has."""
        return {key: value for key, value in super().to_dict().items() if key not in ignore_keys}

    def _core_options(self) -> dict[str, Any]:
        where = "DistributedDataParallelKwargs"
        if self.dim != 0:
            raise ConfigError(f"[{where}] dim is {self.dim}; expected 0: every process has its own batch")
        if self.bucket_cap_mb is not None and self.bucket_cap_mb <= 0:
            raise ConfigError(f"[{where}] bucket_cap_mb is {self.bucket_cap_mb}; expected more than 0")
        compressed = self.comm_hook is not DDPCommunicationHookType.NO
        if not compressed and self.comm_wrapper is not DDPCommunicationHookType.NO:
            raise ConfigError(f"[{where}] comm_wrapper needs a comm_hook; pass comm_hook='{self.comm_wrapper}' instead")
        options = {
            "broadcast_buffers": self.broadcast_buffers,
            "comm_hook": str(self.comm_hook),
            "comm_wrapper": str(self.comm_wrapper),
            **self._power_sgd_options(where),
        }
        if self.bucket_cap_mb is not None:
            options["cap_bytes"] = int(self.bucket_cap_mb * 2**20)
        return options

    def _power_sgd_options(self, where: str) -> dict[str, Any]:
        has_state = self.comm_hook in (DDPCommunicationHookType.POWER_SGD, DDPCommunicationHookType.BATCHED_POWER_SGD)
        if self.comm_state_option and not has_state:
            raise ConfigError(
                f"[{where}] comm_state_option is for PowerSGD, but comm_hook is '{self.comm_hook}'; pass "
                "comm_hook='power_sgd', or remove it"
            )
        honoured = (
            "matrix_approximation_rank",
            "start_powerSGD_iter",
            "min_compression_rate",
            "use_error_feedback",
            "warm_start",
            "orthogonalization_epsilon",
            "random_seed",
        )
        # Torch's defaults of options that Lockstep lacks.
        fixed = {
            "process_group": None,
            "batch_tensors_with_same_shape": False,
            "compression_stats_logging_frequency": 10000,
        }
        options = {}
        for name, value in self.comm_state_option.items():
            if name in honoured:
                options[name] = value
            elif name not in fixed or fixed[name] != value:
                raise ConfigError(
                    f"[{where}] comm_state_option {name}={value!r} is not supported; expected one of "
                    f"{', '.join(honoured)}"
                )
        return options


@dataclass
class GradScalerKwargs(KwargsHandler):
    """Options of the loss scale of fp16, under the names of torch's GradScaler."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True

    def _core_options(self) -> dict[str, Any]:
        """Returns the value of the Accelerator's option grad_scaler."""
        return self.to_dict()


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Options of the connection between processes.

    Lockstep selects shared memory, Gloo or NCCL for each tensor itself, so `backend` may be None, "nccl", "gloo",
    "lockstep", or a pair of them such as "cpu:lockstep,cuda:nccl". `timeout` is that of one operation.
    """

    backend: str | None = "nccl"
    init_method: str | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigError(
                f"[InitProcessGroupKwargs] backend is {self.backend!r}; expected None, 'nccl', 'gloo' or "
                "'lockstep'; Lockstep has no other transports"
            )
        if self.init_method not in (None, "env://"):
            raise ConfigError(
                f"[InitProcessGroupKwargs] init_method is {self.init_method!r}; expected None or 'env://'; start the "
                "processes with `lockstep launch`, torchrun, mpirun or srun"
            )
        if self.timeout is None:
            self.timeout = timedelta(seconds=600 if self.backend == "nccl" else 1800)

    def _core_options(self) -> dict[str, Any]:
        """Returns the keyword arguments of `_core.connect`."""
        timeout = cast(timedelta, self.timeout)  # Set by __post_init__.
        return {"timeout_ms": max(1, int(timeout.total_seconds() * 1000))}


@dataclass
class ProfileKwargs(KwargsHandler):
    """Options of torch.profiler.profile for `Accelerator.profile`.

    `activities` has "cpu" and "cuda". `schedule_option` has the arguments of torch.profiler.schedule. With
    `output_trace_dir`, each process writes profile_{rank}.json there.
    """

    activities: list[str] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None

    def _get_profiler_activity(self, activity: str) -> torch.profiler.ProfilerActivity:
        known = {"cpu": torch.profiler.ProfilerActivity.CPU, "cuda": torch.profiler.ProfilerActivity.CUDA}
        if activity not in known:
            raise ConfigError(f"[ProfileKwargs] unknown activity {activity!r}; expected one of {', '.join(known)}")
        return known[activity]

    def build(self) -> torch.profiler.profile:
        """Returns the profiler, which is not started."""
        activities = None if self.activities is None else [self._get_profiler_activity(one) for one in self.activities]
        schedule = None if self.schedule_option is None else torch.profiler.schedule(**self.schedule_option)
        return torch.profiler.profile(
            activities=activities,
            schedule=schedule,
            on_trace_ready=self.on_trace_ready,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
            with_modules=self.with_modules,
        )


@dataclass
class TensorInformation:
    """The shape and dtype of a tensor."""

    shape: torch.Size
    dtype: torch.dtype


@dataclass
class DataLoaderConfiguration:
    """How loaders are divided between processes. `prepare` documents the fields."""

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False

    def _core_options(self) -> dict[str, Any]:
        """Returns the options of the C++ Accelerator. `lockstep.data_loader` reads the other fields."""
        return {"split_batches": self.split_batches, "even_batches": self.even_batches}


@dataclass
class ProjectConfiguration:
    """The folders of a project's logs and checkpoints, and how many checkpoints to keep.

    The last two fields are Lockstep's: `checkpointing_steps` is the number of updates between two automatic
    save_state calls, 0 for none; `async_checkpointing` makes these asynchronous.
    """

    project_dir: str | os.PathLike[str] | None = None
    logging_dir: str | os.PathLike[str] | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False
    checkpointing_steps: int = 0
    async_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.total_limit is not None and self.total_limit < 1:
            raise ConfigError(f"[ProjectConfiguration] total_limit is {self.total_limit}; expected at least 1, or None")
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Sets project_dir, and logging_dir if it is None."""
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir

    def _core_options(self) -> dict[str, Any]:
        """Returns the value of the Accelerator's option project_config. `project_dir` is another option."""
        return {
            "logging_dir": None if self.logging_dir is None else os.fspath(self.logging_dir),
            "automatic_checkpoint_naming": self.automatic_checkpoint_naming,
            "total_limit": self.total_limit,
            "iteration": self.iteration,
            "save_on_each_node": self.save_on_each_node,
            "checkpointing_steps": self.checkpointing_steps,
            "async_checkpointing": self.async_checkpointing,
        }


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """Options of gradient accumulation. `num_steps` None is 1.

    The end of a loader may end a group of micro-steps early. Its losses are divided by `num_steps`, as in Accelerate, or
    with `rescale_short_group` by its own number of micro-steps, so that its update counts as much as the others.
    """

    num_steps: int | None = None
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False
    rescale_short_group: bool = False

    def __post_init__(self) -> None:
        if self.num_steps is not None and self.num_steps < 1:
            raise ConfigError(f"[GradientAccumulationPlugin] num_steps is {self.num_steps}; expected at least 1")

    def _core_options(self) -> dict[str, Any]:
        """Returns the value of the Accelerator's option gradient_accumulation_plugin."""
        return {**self.to_dict(), "num_steps": 1 if self.num_steps is None else self.num_steps}


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """Options of torch.compile. Fields that are None come from variables ACCELERATE_DYNAMO_*."""

    backend: DynamoBackend | str | None = None
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: Any = None
    disable: bool = False
    use_regional_compilation: bool | None = None

    def __post_init__(self) -> None:
        prefix = "ACCELERATE_DYNAMO_"
        backend = os.environ.get(prefix + "BACKEND", "no") if self.backend is None else self.backend
        self.backend = _member(DynamoBackend, str(backend).upper(), "backend of TorchDynamoPlugin")
        if self.mode is None:
            self.mode = os.environ.get(prefix + "MODE", "default")
        if self.fullgraph is None:
            self.fullgraph = _flag(prefix + "USE_FULLGRAPH")
        if self.use_regional_compilation is None:
            self.use_regional_compilation = _flag(prefix + "USE_REGIONAL_COMPILATION")
        if self.dynamic is None and prefix + "USE_DYNAMIC" in os.environ:
            self.dynamic = _flag(prefix + "USE_DYNAMIC")

    def to_dict(self) -> dict[str, Any]:
        """Returns a copy of the fields, the backend in lower case as torch.compile expects it."""
        backend = cast(DynamoBackend, self.backend)  # Set by __post_init__.
        return {**copy.deepcopy(self.__dict__), "backend": backend.value.lower()}

    def to_kwargs(self) -> dict[str, Any]:
        """Returns the arguments of torch.compile that differ from the defaults."""
        kwargs = super().to_kwargs()
        kwargs.pop("use_regional_compilation", None)
        return kwargs


def get_module_class_from_name(module: torch.nn.Module, name: str) -> type[torch.nn.Module] | None:
    """Returns the class with this name of the module or of one inside of it; None if there is none."""
    return next((type(part) for part in module.modules() if type(part).__name__ == name), None)


def _flag(name: str) -> bool:
    return bool(str_to_bool(os.environ.get(name, "false")))


def _member(cls: type[Enum], value: Any, name: str) -> Any:
    """Returns the member of an enumeration with this value. Throws ConfigError for another value."""
    try:
        return cls(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in cls)
        raise ConfigError(f"[Accelerator] {name} is {value!r}; expected one of {known}") from None


class _Unsupported:
    """Base of Accelerate's classes for features that Lockstep lacks. The constructor throws ConfigError."""

    _reason = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise ConfigError(f"[{type(self).__name__}] {self._reason}")


class _UnsupportedFp8(_Unsupported):
    _reason = "Lockstep does not train in fp8; use mixed_precision='bf16'"


class AORecipeKwargs(_UnsupportedFp8):
    """Options of fp8 with torchao. The constructor throws ConfigError."""


class TERecipeKwargs(_UnsupportedFp8):
    """Options of fp8 with TransformerEngine. The constructor throws ConfigError."""


class MSAMPRecipeKwargs(_UnsupportedFp8):
    """Options of fp8 with MS-AMP. The constructor throws ConfigError."""


class FP8RecipeKwargs(_UnsupportedFp8):
    """Options of fp8. The constructor throws ConfigError."""


@dataclass
class TorchTensorParallelConfig:
    """Which layers the processes of ParallelismConfig's tp_size divide, and how. `enable_async_tp` is a ConfigError.

    `plan` maps the names of modules, with `*` for any one part, to styles: "colwise", "colwise_gather", "rowwise",
    "embedding", "sequence", "whole", "whole_sum_gradient", or transformers' names for them; a layer that fuses several
    has a tuple of the style and their relative sizes: ("colwise", (1, 1, 1)). None: the model's `tp_plan`.
    `example`, a function without arguments, returns the model's result on a small batch: prepare() compares it before and
    after the division. A `plan` needs an example, since a model with a fixed number of heads would become another
    function; a model's own `tp_plan` needs none, and the stages of a pipeline are not compared. `sequence_parallel` divides the activations between divided layers along
    the sequence.
    """

    enable_async_tp: bool = False
    plan: dict[str, Any] | None = None
    example: Callable[[], torch.Tensor] | None = None
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        if self.enable_async_tp:
            raise ConfigError(
                "[TorchTensorParallelConfig] enable_async_tp is torch.compile's; Lockstep sends one message for each "
                "pair of divided layers; remove it"
            )
        if self.plan is not None and self.example is None:
            raise ConfigError(
                "[TorchTensorParallelConfig] a plan is given and no example; expected a function that returns the "
                "model's result on a small batch, like lambda: model(tokens)"
            )

    def _options_for(self, model: torch.nn.Module) -> dict[str, Any]:
        """Returns the options of the C++ library for a model, whose own plan counts if none is given."""
        plan = getattr(model, "tp_plan", None) if self.plan is None else self.plan
        if not plan:
            raise ConfigError(
                f"[prepare] ParallelismConfig has tp_size above 1, and {type(model).__name__} has no tp_plan; pass "
                "tp_handler=TorchTensorParallelConfig(plan={...}, example=...)"
            )
        rules = [(name, *((style, ()) if isinstance(style, str) else style)) for name, style in plan.items()]
        return {
            "plan": [(name, style, list(fused)) for name, style, fused in rules],
            # No process has a full pipeline, whose result could be compared.
            "example": None if getattr(model, "_lockstep_pipeline_stages", 1) > 1 else self.example,
            "sequence_parallel": self.sequence_parallel,
        }


@dataclass
class TorchTensorParallelPlugin:
    """Accelerate's older form of ParallelismConfig(tp_size=...), for Accelerator's `torch_tp_plugin`."""

    tp_size: int = 1
    torch_device_mesh: Any = None

    def __post_init__(self) -> None:
        if self.torch_device_mesh is not None:
            raise ConfigError(
                "[TorchTensorParallelPlugin] a torch_device_mesh is given, and Lockstep makes its own; expected None"
            )


class BnbQuantizationConfig(_Unsupported):
    """Options of quantized models. The constructor throws ConfigError."""

    _reason = "Lockstep does not quantize models; load one that bitsandbytes or transformers has quantized"
