# SPDX-License-Identifier: Apache-2.0
"""Accelerator, the main object of a training program, with the calls of Hugging Face Accelerate."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from .. import _core
from ..state import AcceleratorState, GradientState, PartialState
from ..tracking import GeneralTracker, filter_trackers
from ..utils.dataclasses import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    MegatronLMPlugin,
    ParallelismConfig,
    ProfileKwargs,
    ProjectConfiguration,
)
from ..utils.memory import release_memory
from .arguments import (
    accumulation_plugin,
    check_parallelism,
    compile_plugin,
    handlers_by_type,
    loader_config,
    make_core,
    plugin_of_environment,
    take_file_sizes,
    with_megatron_plugin,
    with_tensor_plugin,
)
from .backward import BackwardCalls
from .checkpoints import CheckpointCalls
from .logs import Trackers, native_names
from .prepare import PrepareCalls
from .processes import ProcessCalls
from .values import ValueCalls


class Accelerator(PrepareCalls, ProcessCalls, BackwardCalls, ValueCalls, CheckpointCalls):
    """Runs a single-process training loop on many processes.

    The calls are Accelerate's; docs/python.md lists the differences. The work is done by the C++ library: sharding of
    batches, averaging of gradients, accumulation, clipping, mixed precision, updates, checkpoints. A prepared model is
    the same module, without a wrapper.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Accelerator:
        accelerator = super().__new__(cls)
        accelerator._arguments = (args, kwargs)  # For pickles.
        return accelerator

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool | None = None,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None = None,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: MegatronLMPlugin | None = None,
        rng_types: list[Any] | None = None,
        log_with: Any = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        dispatch_batches: bool | None = None,
        even_batches: bool | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: list[KwargsHandler] | None = None,
        dynamo_backend: Any = None,
        dynamo_plugin: Any = None,
        deepspeed_plugins: Any = None,
        parallelism_config: ParallelismConfig | None = None,
        *,
        shared_parameters: bool = False,
        zero: dict[str, Any] | None = None,
        non_finite: str = "ignore",
        expect_prepared_loader: bool = True,
        expect_equal_passes: bool = True,
    ) -> None:
        parallelism_config = with_tensor_plugin(parallelism_config, torch_tp_plugin)
        megatron_lm_plugin = megatron_lm_plugin or plugin_of_environment(MegatronLMPlugin)
        parallelism_config, zero = with_megatron_plugin(parallelism_config, zero, megatron_lm_plugin)
        if deepspeed_plugin is not None and deepspeed_plugins is not None:
            raise _core.ConfigError("[Accelerator] deepspeed_plugin and deepspeed_plugins are both given; pass one")
        project = project_config or ProjectConfiguration(project_dir=project_dir)
        if project_dir is not None and project.project_dir is None:
            project.set_directories(str(project_dir))
        loaders = loader_config(dataloader_config, split_batches, dispatch_batches, even_batches)
        handlers = handlers_by_type(kwargs_handlers or [])
        self.ddp_handler: DistributedDataParallelKwargs | None = handlers[DistributedDataParallelKwargs]
        self.scaler_handler: GradScalerKwargs | None = handlers[GradScalerKwargs]
        self.init_handler: InitProcessGroupKwargs | None = handlers[InitProcessGroupKwargs]
        self.profile_handler: ProfileKwargs | None = handlers[ProfileKwargs]
        state = AcceleratorState(
            mixed_precision,
            cpu,
            deepspeed_plugin=deepspeed_plugin or deepspeed_plugins or plugin_of_environment(DeepSpeedPlugin),
            dynamo_plugin=compile_plugin(dynamo_backend, dynamo_plugin),
            fsdp_plugin=fsdp_plugin or plugin_of_environment(FullyShardedDataParallelPlugin),
            parallelism_config=parallelism_config or plugin_of_environment(ParallelismConfig),
            _from_accelerator=True,
            **(self.init_handler.to_kwargs() if self.init_handler is not None else {}),
        )
        take_file_sizes(state)
        check_parallelism(state, zero)
        accumulation = accumulation_plugin(
            gradient_accumulation_steps, gradient_accumulation_plugin, state.deepspeed_plugin
        )
        self.gradient_state = GradientState(accumulation)
        self.gradient_state._bind(self)
        trackers = filter_trackers(log_with, project.logging_dir)
        options = {
            "device_placement": device_placement,
            "step_scheduler_with_optimizer": step_scheduler_with_optimizer,
            "shared_parameters": shared_parameters,
            "non_finite": non_finite,
            "expect_prepared_loader": expect_prepared_loader,
            "expect_equal_passes": expect_equal_passes,
            "log_with": native_names(trackers),
        }
        if zero is not None:
            options["zero"] = zero
        core = make_core(state, project, loaders, accumulation, handlers, options)
        PartialState._shared_state["_data_group"] = core.data_group
        super().__init__(
            state,
            core,
            project,
            device_placement=device_placement,
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            rng_types=["generator"] if rng_types is None else rng_types,
            dataloader_config=loaders,
            autocast_handler=handlers[AutocastKwargs],
        )
        self._max_grad_norm = 0.0 if megatron_lm_plugin is None else megatron_lm_plugin.gradient_clipping
        self._trackers = Trackers(state, core, project, trackers)

    # --- attributes
    @property
    def mixed_precision(self) -> str:
        return self.state.mixed_precision

    @property
    def native_amp(self) -> bool:
        return self.mixed_precision != "no"

    @property
    def scaler(self) -> None:
        """None: the loss scaler belongs to the C++ library; see `loss_scale`."""

    @property
    def loss_scale(self) -> float | None:
        """The loss scale with fp16, else None."""
        if self._engine is not None:
            return self._engine.engine.loss_scale() if self.mixed_precision == "fp16" else None
        return self._core.loss_scale

    @property
    def deepspeed_plugin(self) -> DeepSpeedPlugin | None:
        return self.state.deepspeed_plugin

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self) -> Any:
        """The torch.distributed mesh of parallelism_config; None without one, or without a dimension. Collective."""
        config = self.state.parallelism_config
        return None if config is None else config.get_device_mesh(self.device.type)

    @property
    def is_fsdp2(self) -> bool:
        return self.state.is_fsdp2

    @property
    def split_batches(self) -> bool:
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether loaders that are prepared later even out the processes' numbers of batches."""
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, even_batches: bool) -> None:
        self.dataloader_config.even_batches = even_batches

    @property
    def use_seedable_sampler(self) -> bool:
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        return self.dataloader_config.non_blocking

    @property
    def project_dir(self) -> str | os.PathLike[str] | None:
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | os.PathLike[str] | None:
        return self.project_configuration.logging_dir

    @property
    def log_with(self) -> list[str | GeneralTracker]:
        return self._trackers.log_with

    @log_with.setter
    def log_with(self, log_with: list[str | GeneralTracker]) -> None:
        self._trackers.log_with = log_with

    @property
    def trackers(self) -> list[GeneralTracker]:
        return self._trackers.opened

    @trackers.setter
    def trackers(self, trackers: list[GeneralTracker]) -> None:
        self._trackers.opened = trackers

    @property
    def save_iteration(self) -> int:
        return self.project_configuration.iteration

    @property
    def sync_gradients(self) -> bool:
        return self.gradient_state.sync_gradients_of(self._core)

    @sync_gradients.setter
    def sync_gradients(self, sync_gradients: bool) -> None:
        self.gradient_state._set_sync_gradients(sync_gradients)

    @property
    def gradient_accumulation_steps(self) -> int:
        return self._core.gradient_accumulation_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        """Holds from the next accumulation group on. Throws ConfigError within one, and for less than 1."""
        plugin = replace(self.gradient_state.plugin, num_steps=steps)
        self._core.gradient_accumulation_steps = steps
        self.gradient_state.plugin = plugin

    @property
    def optimizer_step_was_skipped(self) -> bool:
        if self._engine is not None:
            return any(optimizer.step_was_skipped for optimizer in self._optimizers)
        return self._core.optimizer_step_was_skipped

    # --- trackers
    def init_trackers(
        self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: dict[str, Any] | None = None
    ) -> None:
        """Opens the trackers of `log_with`, and stores the run's configuration.

        Files are in `<logging_dir>/<project_name>`, by default `<project_dir>/<project_name>`.
        """
        self._trackers.init(project_name, config, init_kwargs or {})

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Returns the tracker of this name; on processes that do not log, one that does nothing.

        For "tensorboard" the tracker has a SummaryWriter of its own; its files are in the folder `media` beside those
        with the values of log(). "csv", "jsonl" and "exec" are a NativeTracker.
        """
        return self._trackers.get(name, unwrap)

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: dict[str, Any] | None = None) -> None:
        """Logs values to all trackers, on the main process. Texts go to the trackers that store text."""
        self._trackers.log(values, step, log_kwargs or {})

    def end_training(self) -> None:
        """Closes the trackers, after every process has called it. Collective."""
        self._trackers.end()

    # --- memory and profiles
    def free_memory(self, *objects: Any) -> list[Any]:
        """Forgets all prepared objects. Returns None for each of `objects`, to reassign them."""
        self._no_sync.end()
        self._core.free_memory()
        self._engine = None
        for known in (self._models, self._optimizers, self._schedulers, self._dataloaders):
            known.clear()
        return release_memory(*objects)

    def clear(self, *objects: Any) -> list[Any]:
        return self.free_memory(*objects)

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None = None) -> Iterator[Any]:
        """Records this process with torch.profiler; writes `profile_<process>.json` if a folder is set."""
        handler = profile_handler or self.profile_handler or ProfileKwargs()
        with handler.build() as profiler:
            yield profiler
        if handler.output_trace_dir is not None:
            os.makedirs(handler.output_trace_dir, exist_ok=True)
            profiler.export_chrome_trace(os.path.join(handler.output_trace_dir, f"profile_{self.process_index}.json"))
            self.wait_for_everyone()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise _core.ConfigError("[Accelerator] it cannot be copied: it is connected to the other processes")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments of the constructor and the prepared objects.

        The copy has prepared them again, so that all processes must unpickle it together.
        """
        objects = (self._models, self._optimizers, self._dataloaders, self._schedulers, self._custom_objects)
        return _unpickled, (type(self), *self._arguments, *objects)


def _unpickled(
    kind: type[Accelerator],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    models: list[Any],
    optimizers: list[Any],
    loaders: list[Any],
    schedulers: list[Any],
    custom_objects: list[Any],
) -> Accelerator:
    copy = kind(*args, **kwargs)
    copy.prepare(*models, *optimizers, *loaders)
    copy._schedulers += schedulers
    copy.register_for_checkpointing(*custom_objects)
    return copy
