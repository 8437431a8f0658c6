# SPDX-License-Identifier: Apache-2.0
"""Accelerator, the main object of a training program, with the calls of Hugging Face Accelerate."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from .. import _core
from .._buffers import share_transient_buffers
from .._own_module import own_module
from ..data_loader import prepare_data_loader
from ..data_loader.loop import share_seed
from ..optimizer import AcceleratedOptimizer, sparse_weights
from ..scheduler import AcceleratedScheduler
from ..state import AcceleratorState, GradientState
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
    ProfileKwargs,
    ProjectConfiguration,
)
from ..utils.memory import release_memory
from .backward import BackwardCalls
from .checkpoints import CheckpointCalls
from .forward import AutocastForward, move_inputs
from .logs import Trackers, native_names
from .processes import ProcessCalls
from .values import ValueCalls

_HANDLERS: dict[type, str] = {
    DistributedDataParallelKwargs: "ddp_handler",
    GradScalerKwargs: "scaler_handler",
    InitProcessGroupKwargs: "init_handler",
    AutocastKwargs: "autocast_handler",
    ProfileKwargs: "profile_handler",
}


class Accelerator(ProcessCalls, BackwardCalls, ValueCalls, CheckpointCalls):
    """Runs a single-process training loop on many processes.

    The calls are Accelerate's; docs/python.md lists the differences. The work is done by the C++ library: sharding of
    batches, averaging of gradients, accumulation, clipping, mixed precision, updates, checkpoints. A prepared model is
    the same module, without a wrapper.
    """

    ddp_handler: DistributedDataParallelKwargs | None
    scaler_handler: GradScalerKwargs | None
    init_handler: InitProcessGroupKwargs | None
    autocast_handler: AutocastKwargs | None
    profile_handler: ProfileKwargs | None

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
        megatron_lm_plugin: Any = None,
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
        parallelism_config: Any = None,
        *,
        shared_parameters: bool = False,
        zero: dict[str, Any] | None = None,
        non_finite: str = "ignore",
        expect_prepared_loader: bool = True,
        expect_equal_passes: bool = True,
    ) -> None:
        has_no_backend = str(dynamo_backend).lower() in ("none", "no", "dynamobackend.no")
        self._refuse_unsupported(
            torch_tp_plugin=torch_tp_plugin,
            megatron_lm_plugin=megatron_lm_plugin,
            dynamo_backend=None if has_no_backend else dynamo_backend,
            dynamo_plugin=dynamo_plugin,
            parallelism_config=parallelism_config,
        )
        if deepspeed_plugin is not None and deepspeed_plugins is not None:
            raise _core.ConfigError("[Accelerator] deepspeed_plugin and deepspeed_plugins are both given; pass one")
        project = project_config or ProjectConfiguration(project_dir=project_dir)
        if project_dir is not None and project.project_dir is None:
            project.set_directories(str(project_dir))
        self.dataloader_config = self._loader_config(dataloader_config, split_batches, dispatch_batches, even_batches)
        self._take_handlers(kwargs_handlers or [])
        state = AcceleratorState(
            mixed_precision,
            cpu,
            deepspeed_plugin=deepspeed_plugin or deepspeed_plugins or self._plugin_of_environment(DeepSpeedPlugin),
            fsdp_plugin=fsdp_plugin or self._plugin_of_environment(FullyShardedDataParallelPlugin),
            _from_accelerator=True,
            **(self.init_handler.to_kwargs() if self.init_handler is not None else {}),
        )
        self.gradient_state = GradientState(
            self._accumulation(gradient_accumulation_steps, gradient_accumulation_plugin)
        )
        self.gradient_state._bind(self)
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.rng_types = ["generator"] if rng_types is None else rng_types
        self._sparse_weights: set[int] = set()
        self._deepspeed_plugin = state.deepspeed_plugin
        trackers = filter_trackers(log_with, project.logging_dir)
        options = {
            "shared_parameters": shared_parameters,
            "non_finite": non_finite,
            "expect_prepared_loader": expect_prepared_loader,
            "expect_equal_passes": expect_equal_passes,
            "log_with": native_names(trackers),
        }
        if zero is not None:
            options["zero"] = zero
        core = self._make_core(state, project, options)
        super().__init__(state, core, project)
        self._trackers = Trackers(state, core, project, trackers)

    # --- construction
    @staticmethod
    def _refuse_unsupported(**given: Any) -> None:
        instead = {
            "torch_tp_plugin": "Lockstep has no tensor parallelism; shard the model with fsdp_plugin",
            "megatron_lm_plugin": "Lockstep does not run Megatron-LM; shard the model with fsdp_plugin",
            "dynamo_backend": "call torch.compile on the model before prepare",
            "dynamo_plugin": "call torch.compile on the model before prepare",
            "parallelism_config": "Lockstep has data parallelism and ZeRO; shard the model with fsdp_plugin",
        }
        for name, value in given.items():
            if value is not None:
                raise _core.ConfigError(f"[Accelerator] {name} is not supported; {instead[name]}")

    @staticmethod
    def _plugin_of_environment(kind: type) -> Any:
        name = "ACCELERATE_USE_DEEPSPEED" if kind is DeepSpeedPlugin else "ACCELERATE_USE_FSDP"
        return kind() if os.environ.get(name, "false").lower() in ("true", "1") else None

    @staticmethod
    def _loader_config(
        config: DataLoaderConfiguration | None,
        split_batches: bool | None,
        dispatch_batches: bool | None,
        even_batches: bool | None,
    ) -> DataLoaderConfiguration:
        values = {"split_batches": split_batches, "dispatch_batches": dispatch_batches, "even_batches": even_batches}
        given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        if config is None:
            return DataLoaderConfiguration(**given)
        if given:
            raise _core.ConfigError(
                f"[Accelerator] {', '.join(given)} and dataloader_config are both given; set them in dataloader_config"
            )
        return config

    def _take_handlers(self, handlers: list[KwargsHandler]) -> None:
        for name in _HANDLERS.values():
            setattr(self, name, None)
        for handler in handlers:
            attribute = _HANDLERS.get(type(handler))
            if attribute is None:
                raise _core.ConfigError(
                    f"[Accelerator] kwargs_handlers has a {type(handler).__name__}; expected one of "
                    f"{', '.join(kind.__name__ for kind in _HANDLERS)}"
                )
            if getattr(self, attribute) is not None:
                raise _core.ConfigError(f"[Accelerator] kwargs_handlers has two {type(handler).__name__}; expected one")
            setattr(self, attribute, handler)

    @staticmethod
    def _accumulation(steps: int, plugin: GradientAccumulationPlugin | None) -> GradientAccumulationPlugin:
        if plugin is not None:
            if steps != 1:
                raise _core.ConfigError(
                    "[Accelerator] gradient_accumulation_steps and gradient_accumulation_plugin are both given; pass "
                    "the plugin only"
                )
            return plugin
        return GradientAccumulationPlugin(
            num_steps=int(os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps))
        )

    def _make_core(self, state: AcceleratorState, project: ProjectConfiguration, given: dict[str, Any]) -> Any:
        config = self.dataloader_config
        options: dict[str, Any] = {
            "cpu": state.device.type == "cpu",
            "device_placement": self.device_placement,
            "mixed_precision": state.mixed_precision,
            "gradient_accumulation_plugin": self.gradient_state.plugin._core_options(),
            "step_scheduler_with_optimizer": self.step_scheduler_with_optimizer,
            "debug": bool(state.debug),
            "split_batches": config.split_batches,
            "even_batches": config.even_batches,
            "project_config": project._core_options(),
            "save_when_preempted": False,
            **given,
        }
        if project.project_dir is not None:
            options["project_dir"] = str(project.project_dir)
        if self.scaler_handler is not None:
            options["grad_scaler"] = self.scaler_handler._core_options()
        if self.ddp_handler is not None:
            options["data_parallel"] = self.ddp_handler._core_options()
        if state.fsdp_plugin is not None:
            options["fsdp_plugin"] = state.fsdp_plugin._core_options()
        if state.deepspeed_plugin is not None:
            options |= state.deepspeed_plugin._accelerator_options()
        return _core.Accelerator(options, state.world, state.group)

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
        return self._core.loss_scale

    @property
    def deepspeed_plugin(self) -> DeepSpeedPlugin | None:
        return self.state.deepspeed_plugin

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
        return self.dataloader_config.even_batches

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
        return self._core.sync_gradients

    @property
    def gradient_accumulation_steps(self) -> int:
        return self._core.gradient_accumulation_steps

    @property
    def optimizer_step_was_skipped(self) -> bool:
        return self._core.optimizer_step_was_skipped

    # --- prepare
    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepares models, optimizers, data loaders and schedulers, and returns them in the given order. Collective.

        Objects of other types are returned unchanged. A model stays the same module.
        """
        places = device_placement or [True] * len(args)
        if len(places) != len(args):
            raise _core.ConfigError(
                f"[prepare] device_placement has {len(places)} values; expected one for each of {len(args)} objects"
            )
        self._sparse_weights |= sparse_weights(obj for obj in args if isinstance(obj, torch.nn.Module))
        results = [self._prepare_first(obj, place) for obj, place in zip(args, places)]
        models = [obj for obj in results if isinstance(obj, torch.nn.Module)]
        optimizers = [obj for obj in results if isinstance(obj, AcceleratedOptimizer)]
        loaders = [obj for obj in results if hasattr(obj, "_saved_state") and hasattr(obj, "_core")]
        self._register(models, loaders, optimizers)
        results = [
            self._make_scheduler(obj, optimizers) if self._is_scheduler(obj) else obj for obj in results
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _prepare_first(self, obj: Any, place: bool) -> Any:
        if isinstance(obj, torch.utils.data.DataLoader):
            return self._make_loader(obj)
        if isinstance(obj, torch.nn.Module):
            self._place_model(obj, place)
            return obj
        if isinstance(obj, torch.optim.Optimizer):
            return self._make_optimizer(obj)
        return obj

    def _register(self, models: list[Any], loaders: list[Any], optimizers: list[AcceleratedOptimizer]) -> None:
        if (models or optimizers) and self.state.deepspeed_plugin is not self._deepspeed_plugin:
            raise _core.ConfigError(
                "[prepare] another DeepSpeed plugin was selected after this Accelerator was created, which keeps its "
                "own; select a plugin before you create the Accelerator for it"
            )
        new_models = [model for model in models if not any(model is known for known in self._models)]
        handles = self._core.prepare(
            [own_module(model) for model in models],
            [loader._core for loader in loaders],
            [optimizer._inner for optimizer in optimizers],
        )
        share_transient_buffers([own_module(model) for model in new_models], self.state.group, "prepare")
        new_loaders = [loader for loader in loaders if not any(loader is known for known in self._dataloaders)]
        share_seed(new_loaders, len(self._dataloaders))
        for optimizer, handle in zip(optimizers, handles):
            optimizer._prepared = handle
            optimizer._accelerator = self
        for known, new in ((self._models, models), (self._optimizers, optimizers), (self._dataloaders, loaders)):
            known += [obj for obj in new if not any(obj is other for other in known)]
        for model in models:
            if self.native_amp:
                self._wrap_forward(model)
            if self.num_processes > 1 and self.device_placement and self.device.type != "cpu":
                move_inputs(model, self.device)

    def _place_model(self, model: torch.nn.Module, place: bool) -> None:
        device_map: Any = getattr(model, "hf_device_map", {})  # Of transformers' and Accelerate's models.
        if len(set(device_map.values())) > 1:
            raise _core.ConfigError(
                "[prepare] the model is spread over several devices (hf_device_map); load it without device_map"
            )
        # Buffers that are not saved are not the C++ library's.
        if place and self.device_placement and self.device.type != "cpu":
            model.to(self.device)

    def _wrap_forward(self, model: torch.nn.Module) -> None:
        if not isinstance(model.__dict__.get("forward"), AutocastForward):
            model.forward = AutocastForward(model, self)

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """Prepares a model. With `evaluation_mode` it is only moved, and computes in mixed precision."""
        self._place_model(model, device_placement is not False)
        if evaluation_mode:
            if self.native_amp:
                self._wrap_forward(model)
            return model
        self._sparse_weights |= sparse_weights([model])
        self._register([model], [], [])
        return model

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        loader = self._make_loader(data_loader, device_placement, slice_fn_for_dispatch)
        self._register([], [loader], [])
        return loader

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        prepared = self._make_optimizer(optimizer)
        self._register([], [], [prepared])
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        return self._make_scheduler(scheduler, [])

    def _make_loader(self, loader: Any, place: bool | None = None, slice_fn: Any = None) -> Any:
        if hasattr(loader, "_saved_state"):
            return loader
        config = self.dataloader_config
        on_device = self.device_placement if place is None else place
        return prepare_data_loader(
            loader,
            self.device,
            split_batches=config.split_batches,
            put_on_device=on_device,
            rng_types=list(self.rng_types),
            dispatch_batches=config.dispatch_batches,
            even_batches=config.even_batches,
            slice_fn_for_dispatch=slice_fn,
            use_seedable_sampler=config.use_seedable_sampler,
            data_seed=config.data_seed,
            non_blocking=config.non_blocking,
            use_stateful_dataloader=config.use_stateful_dataloader,
        )

    def _make_optimizer(self, optimizer: torch.optim.Optimizer) -> AcceleratedOptimizer:
        if isinstance(optimizer, AcceleratedOptimizer):
            return optimizer
        for known in self._optimizers:
            if known.optimizer is optimizer:
                return known
        return AcceleratedOptimizer(
            optimizer, self.device_placement, sparse=self._sparse_weights, sharded=self._core.shards_updates
        )

    @staticmethod
    def _is_scheduler(obj: Any) -> bool:
        return isinstance(obj, torch.optim.lr_scheduler.LRScheduler) or (
            not isinstance(obj, AcceleratedScheduler)
            and type(obj).__name__.endswith("Scheduler")
            and hasattr(obj, "step")
            and hasattr(obj, "get_last_lr")
        )

    def _make_scheduler(self, scheduler: Any, optimizers: list[AcceleratedOptimizer]) -> AcceleratedScheduler:
        if isinstance(scheduler, AcceleratedScheduler):
            return scheduler
        candidates = optimizers or self._optimizers
        own = [prepared for prepared in candidates if prepared.optimizer is getattr(scheduler, "optimizer", None)]
        prepared = AcceleratedScheduler(
            scheduler, own or self._optimizers, self.step_scheduler_with_optimizer, self.split_batches
        )
        self._schedulers.append(prepared)
        return prepared

    def unwrap_model(
        self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> torch.nn.Module:
        """Returns the model itself: prepare wraps nothing around it. Options remove autocast and torch.compile."""
        if not keep_torch_compile:
            model = own_module(model)
        if not keep_fp32_wrapper and isinstance(model.__dict__.get("forward"), AutocastForward):
            original = model.forward.original
            del model.forward
            if original is not None:
                model.forward = original
        return model

    @contextmanager
    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> Iterator[None]:
        """Computes a block in mixed precision. Does nothing without it."""
        handler = autocast_handler or self.autocast_handler or AutocastKwargs()
        scope = self._core.autocast(bool(handler.enabled), bool(handler.cache_enabled))
        try:
            yield
        finally:
            scope.end()

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

    def __reduce__(self) -> NoReturn:
        raise _core.ConfigError("[Accelerator] it cannot be pickled: it is connected to the other processes")
