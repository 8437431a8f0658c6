# SPDX-License-Identifier: Apache-2.0
"""Preparation of models, optimizers, data loaders and schedulers."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import IterableDataset

from .. import _core
from .._buffers import share_transient_buffers
from .._own_module import own_module
from .._torch_parallel import AdoptedModels, expect_undivided, has_dtensors
from .._weak import weak_method
from ..data_loader import prepare_data_loader
from ..data_loader.loop import PreparedLoader, share_seed
from ..optimizer import AcceleratedOptimizer, sparse_weights
from ..scheduler import AcceleratedScheduler
from ..state import AcceleratorState
from ..utils._deepspeed_wrappers import DummyOptim, DummyScheduler
from ..utils.dataclasses import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DynamoBackend,
    ProjectConfiguration,
    TorchTensorParallelConfig,
)
from ..utils.imports import is_bitsandbytes_multi_backend_available
from ..utils.other import (
    compile_regions,
    compile_regions_deepspeed,
    extract_model_from_parallel,
    has_compiled_regions,
    is_compiled_module,
)
from .engine import GivenTraining, make_engine
from .experts import divide_experts, has_stacked_experts
from .forward import AutocastForward, move_inputs
from .sequence import SequenceCalls, check_forwards


class PrepareCalls(SequenceCalls):
    """The calls of an Accelerator that prepare objects.

    A program may change the attributes between two calls.
    """

    def __init__(
        self,
        state: AcceleratorState,
        core: _core.Accelerator,
        project_configuration: ProjectConfiguration,
        *,
        device_placement: bool,
        step_scheduler_with_optimizer: bool,
        rng_types: list[Any],
        dataloader_config: DataLoaderConfiguration,
        autocast_handler: AutocastKwargs | None,
    ) -> None:
        super().__init__(state, core, project_configuration)
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.rng_types = rng_types
        self.dataloader_config = dataloader_config
        self.autocast_handler = autocast_handler
        self._sparse_weights: set[int] = set()
        self._deepspeed_plugin = state.deepspeed_plugin
        ranks = 1 if state.parallelism_config is None else state.parallelism_config.tp_size
        first = state.process_index // ranks * ranks
        self._adopted = AdoptedModels(list(range(first, first + ranks)))

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepares models, optimizers, data loaders and schedulers, and returns them in the given order. Collective.

        Objects of other types are returned unchanged. A model stays the same module.
        """
        places = device_placement or [True] * len(args)
        if len(places) != len(args):
            raise _core.ConfigError(
                f"[prepare] device_placement has {len(places)} values; expected one for each of {len(args)} objects"
            )
        if self._trains_with_engine(args):
            expect_undivided(args, "prepare")
            return self._prepare_engine(args, places)
        self._adopt(args, "prepare")
        self._sparse_weights |= sparse_weights(obj for obj in args if isinstance(obj, torch.nn.Module))
        results = [self._prepare_first(obj, place) for obj, place in zip(args, places)]
        models = [obj for obj in results if isinstance(obj, torch.nn.Module)]
        optimizers = [obj for obj in results if isinstance(obj, AcceleratedOptimizer)]
        loaders = [obj for obj in results if isinstance(obj, PreparedLoader)]
        self._register(models, loaders, optimizers)
        results = [
            self._make_scheduler(obj, optimizers) if self._is_scheduler(obj) else self._compile(obj) for obj in results
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

    def _trains_with_engine(self, objects: tuple[Any, ...]) -> bool:
        """Returns whether DeepSpeed's engine trains a model of this call: there is a ds_config."""
        plugin = self.state.deepspeed_plugin
        kinds = (torch.nn.Module, torch.optim.Optimizer, DummyOptim, DummyScheduler)
        return plugin is not None and plugin.has_engine and any(isinstance(obj, kinds) for obj in objects)

    def _prepare_engine(self, objects: tuple[Any, ...], places: list[bool]) -> Any:
        """Returns the objects with DeepSpeed's engine in place of the model. Collective."""
        self._expect_own_plugin()
        config = self.state.parallelism_config
        if self._core.divides_layers:
            self._refuse_compiler()
            if config.tp_handler is not None:  # Else the file or the model says which layers.
                self._give_plans([own_module(obj) for obj in objects if isinstance(obj, torch.nn.Module)])
        for model in [own_module(obj) for obj in objects if isinstance(obj, torch.nn.Module)]:
            if self._core.divides_sequences:
                check_forwards(model, self._sequences)
            if config is not None and config.ep_size > 1 and has_stacked_experts(model):
                raise _core.ConfigError(
                    f"[prepare] ep_size is {config.ep_size}, and the engine of a ds_config divides the experts of "
                    "deepspeed.moe.layer.MoE only; omit hf_ds_config, or ep_size"
                )
        if self.project_configuration.checkpointing_steps != 0:
            raise _core.ConfigError(
                f"[prepare] checkpointing_steps is {self.project_configuration.checkpointing_steps}, and an engine of a "
                "ds_config counts the updates; remove it, and call save_state"
            )
        loaders = [
            self._make_loader(obj, place) if isinstance(obj, torch.utils.data.DataLoader) else None
            for obj, place in zip(objects, places)
        ]
        self._register([], [loader for loader in loaders if loader is not None], [])
        given = GivenTraining(objects, self._is_scheduler)
        self._engine, optimizer, scheduler = make_engine(
            self.state.deepspeed_plugin,
            given,
            [loader for loader in loaders if loader is not None],
            self.state.mixed_precision,
            self._core.gradient_accumulation_steps,
            self._core.data_group.size,
            1 if config is None else config.cp_size * config.sp_size,
            1 if self.dataloader_config.split_batches else self.state.num_processes,
        )
        engine = self._engine.engine
        self._core.set_own_files(weak_method(self._engine.save))
        self._compile_engine(engine)
        self._models.append(engine)
        if optimizer is not None:
            self._optimizers.append(optimizer)
        if given.scheduler is not None and scheduler is None:  # The engine saves its own one.
            scheduler = self._make_scheduler(given.scheduler, [optimizer])
        replaced = [(given.model, engine), (given.optimizer, optimizer), (given.scheduler, scheduler)]
        results = [
            loader if loader is not None else next((new for old, new in replaced if obj is old), obj)
            for obj, loader in zip(objects, loaders)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _compile_engine(self, engine: Any) -> None:
        plugin = self.state.dynamo_plugin
        if plugin is None or plugin.backend is DynamoBackend.NO:
            return
        if plugin.use_regional_compilation:
            compile_regions_deepspeed(engine.module, **plugin.to_kwargs())
        else:
            engine.module.compile(**plugin.to_kwargs())

    def _expect_own_plugin(self) -> None:
        if self.state.deepspeed_plugin is not self._deepspeed_plugin:
            raise _core.ConfigError(
                "[prepare] another DeepSpeed plugin was selected after this Accelerator was created, which keeps its "
                "own; select a plugin before you create the Accelerator for it"
            )

    def _register(self, models: list[Any], loaders: list[Any], optimizers: list[AcceleratedOptimizer]) -> None:
        if models or optimizers:
            self._expect_own_plugin()
        new_models = [model for model in models if not any(model is known for known in self._models)]
        if self._core.divides_layers:
            self._give_plans([own_module(model) for model in new_models])
        if self._core.divides_sequences:
            for model in new_models:
                check_forwards(own_module(model), self._sequences)
        handles = self._core.prepare(
            [own_module(model) for model in models],
            [loader._core for loader in loaders],
            [optimizer._inner for optimizer in optimizers],
        )
        group = self._core.data_group if self._core.pipeline_group.size > 1 else self.state.group
        share_transient_buffers([own_module(model) for model in new_models], group, "prepare")
        new_loaders = [loader for loader in loaders if not any(loader is known for known in self._dataloaders)]
        share_seed(new_loaders, len(self._dataloaders))
        for optimizer, handle in zip(optimizers, handles):
            optimizer._prepared = handle
            optimizer._no_sync = self._no_sync
            optimizer._max_norm = self._max_grad_norm
        for known, new in ((self._models, models), (self._optimizers, optimizers), (self._dataloaders, loaders)):
            known += [obj for obj in new if not any(obj is other for other in known)]
        for model in models:
            model._is_accelerate_prepared = True
            if self.state.mixed_precision != "no":
                self._wrap_forward(model)
            if self.state.num_processes > 1 and self.device_placement and self.state.device.type != "cpu":
                move_inputs(model, self.state.device)

    def _adopt(self, objects: Iterable[Any], where: str) -> None:
        """Replaces parameters that models have in another form, before optimizers are prepared, which know sizes.

        Throws ConfigError for models that torch or transformers has divided otherwise than the mesh.
        """
        config, given = self.state.parallelism_config, list(objects)
        if config is not None and config.tp_enabled and not self._core.shards_updates:
            for model in filter(has_dtensors, map(own_module, given)):
                self._adopted.adopt(model)
            for optimizer in given:
                if isinstance(optimizer, torch.optim.Optimizer):
                    self._adopted.replace_in(optimizer)
        expect_undivided(map(own_module, given), where)
        if config is not None and config.ep_size > 1:
            rank = self.state.process_index // config.tp_size % config.ep_size
            for model in map(own_module, given):
                if isinstance(model, torch.nn.Module):
                    divide_experts(model, config.ep_size, self.state.group, rank)

    def _give_plans(self, models: list[torch.nn.Module]) -> None:
        """Gives models the plan by which prepare() divides them."""
        config = self.state.parallelism_config
        handler = config.tp_handler or TorchTensorParallelConfig()
        if not isinstance(handler, TorchTensorParallelConfig):
            raise _core.ConfigError(
                f"[prepare] tp_handler is a {type(handler).__name__}; expected a TorchTensorParallelConfig"
            )
        self._refuse_compiler()
        for model in models:
            if self._adopted.has(model):
                continue
            model._lockstep_tensor_parallel = handler._options_for(model)  # type: ignore[assignment]

    def _refuse_compiler(self) -> None:
        dynamo = self.state.dynamo_plugin
        if dynamo is not None and dynamo.backend is not DynamoBackend.NO:
            raise _core.ConfigError(
                f"[prepare] dynamo_backend is {dynamo.backend.value}, and tp_size is above 1: torch's compiler does not see "
                "the operations on divided weights; use one of the two"
            )

    def _place_model(self, model: torch.nn.Module, place: bool) -> None:
        device_map: Any = getattr(model, "hf_device_map", {})  # transformers' and Accelerate's models have it.
        if len(set(device_map.values())) > 1:
            raise _core.ConfigError(
                "[prepare] the model is spread over several devices (hf_device_map); load it without device_map"
            )
        if getattr(model, "is_loaded_in_8bit", False) or getattr(model, "is_loaded_in_4bit", False):
            offloaded = {"cpu", "disk"} & {str(device) for device in device_map.values()}
            if offloaded - ({"cpu"} if is_bitsandbytes_multi_backend_available() else set()):
                raise _core.ConfigError(
                    "[prepare] the model is quantized with CPU or disk offload (hf_device_map), which cannot be trained; "
                    "load it on the device of this process"
                )
        # Buffers that are not saved are not the C++ library's.
        if place and self.device_placement and self.state.device.type != "cpu":
            model.to(self.state.device)

    def _wrap_forward(self, model: torch.nn.Module) -> None:
        set_precision: Any = getattr(model, "_set_precision", None)
        if set_precision is not None:  # A PipelineModule's chunks compute in it, one after another.
            set_precision(self.autocast)
        elif not isinstance(model.__dict__.get("forward"), AutocastForward):
            model.forward = AutocastForward(model, self.autocast)

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """Prepares a model. With `evaluation_mode` it is only moved, and computes in mixed precision."""
        if not evaluation_mode:
            self._adopt([model], "prepare_model")
        self._place_model(model, device_placement is not False)
        if evaluation_mode:
            if self.state.mixed_precision != "no":
                self._wrap_forward(model)
            return self._compile(model)
        self._sparse_weights |= sparse_weights([model])
        self._register([model], [], [])
        return self._compile(model)

    def _compile(self, obj: Any) -> Any:
        """Returns a model as torch.compile's module, if a backend is set. Returns other objects unchanged."""
        plugin = self.state.dynamo_plugin
        if plugin is None or plugin.backend is DynamoBackend.NO or not isinstance(obj, torch.nn.Module):
            return obj
        if is_compiled_module(obj) or has_compiled_regions(obj):
            return obj
        compiled = compile_regions if plugin.use_regional_compilation else torch.compile
        return compiled(obj, **plugin.to_kwargs())

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        loader = self._make_loader(data_loader, device_placement, slice_fn_for_dispatch)
        self._register([], [loader], [])
        return loader

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        self._adopt([optimizer], "prepare_optimizer")
        prepared = self._make_optimizer(optimizer)
        self._register([], [], [prepared])
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        return self._make_scheduler(scheduler, [])

    def _make_loader(self, loader: Any, place: bool | None = None, slice_fn: Any = None) -> Any:
        if isinstance(loader, PreparedLoader):
            return loader
        config = self.dataloader_config
        on_device = self.device_placement if place is None else place
        dispatch = config.dispatch_batches
        if self._core.data_group.size < self.state.num_processes and (dispatch or isinstance(loader.dataset, IterableDataset)):
            if dispatch is not False:
                raise _core.ConfigError(
                    "[prepare] the main process would read the batches of all, and ParallelismConfig has tp_size, cp_size, "
                    "sp_size or pp_size above 1, whose processes read the same batches; pass DataLoaderConfiguration(dispatch_batches=False)"
                )
        prepared: Any = prepare_data_loader(
            loader,
            self.state.device,
            self._core.data_group.size,
            self._core.data_group.rank,
            split_batches=config.split_batches,
            put_on_device=on_device,
            rng_types=list(self.rng_types),
            dispatch_batches=dispatch,
            even_batches=config.even_batches,
            slice_fn_for_dispatch=slice_fn,
            use_seedable_sampler=config.use_seedable_sampler,
            data_seed=config.data_seed,
            non_blocking=config.non_blocking,
            use_stateful_dataloader=config.use_stateful_dataloader,
        )
        parallelism = self.state.parallelism_config
        if parallelism is not None and parallelism.sp_enabled:
            prepared._scope_of_batch = weak_method(self._divided)
        return prepared

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
            scheduler, own or self._optimizers, self.step_scheduler_with_optimizer, self.dataloader_config.split_batches
        )
        self._schedulers.append(prepared)
        return prepared

    def unwrap_model(
        self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> torch.nn.Module:
        """Returns the model itself: prepare wraps nothing around it, except an engine with a ds_config.

        It also removes torch's DistributedDataParallel and DataParallel. Options remove autocast and torch.compile.
        """
        if self._engine is not None and model is self._engine.engine:
            model = model.module
        model = extract_model_from_parallel(model, keep_torch_compile=keep_torch_compile)
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
