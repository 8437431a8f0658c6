# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the training state, and files of weights."""
from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from .. import _core
from .._environment import resume_is_requested
from .._full_state import divides_model, full_state_dict
from .._own_module import own_module
from ..checkpointing import PythonState
from ..data_loader import skip_first_batches
from ..logging import get_logger
from ..state import AcceleratorState
from ..utils.dataclasses import ProjectConfiguration
from ..utils.other import save
from .base import AcceleratorBase

logger = get_logger(__name__)


class CheckpointCalls(AcceleratorBase):
    """The calls of an Accelerator for checkpoints."""

    def __init__(
        self, state: AcceleratorState, core: _core.Accelerator, project_configuration: ProjectConfiguration
    ) -> None:
        super().__init__(state, core, project_configuration)
        self._python_state = PythonState(self)
        # Whether the launcher requested a resume, and nothing was loaded yet.
        self._resumes = resume_is_requested() and project_configuration.project_dir is not None

    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True, **kwargs: Any
    ) -> str:
        """Saves the whole training state, atomically, and returns the folder. Collective.

        On CPUs with plain data parallelism the main process may call it alone, between updates and with a folder. The
        random numbers of the others are then derived from its own when the checkpoint is loaded.

        With automatic_checkpoint_naming the folder is the next `<project_dir>/checkpoints/checkpoint_<n>`. Otherwise
        `output_dir` is replaced if it is a checkpoint.
        """
        if not safe_serialization:
            raise _core.ConfigError("[save_state] Lockstep writes safetensors only; remove safe_serialization=False")
        async_save = bool(kwargs.pop("async_save", False))
        exclude_frozen = bool(kwargs.pop("exclude_frozen_parameters", False))
        if kwargs:
            raise _core.ConfigError(f"[save_state] unknown argument '{next(iter(kwargs))}'")
        automatic = self.project_configuration.automatic_checkpoint_naming
        if not automatic and output_dir is None:
            raise _core.ConfigError(
                "[save_state] output_dir is missing; pass a folder, or set "
                "ProjectConfiguration(automatic_checkpoint_naming=True)"
            )
        folder = None if automatic else os.fspath(output_dir)  # type: ignore[arg-type]
        saved = self._save_state_in(folder, async_save, exclude_frozen)
        if automatic:
            self.project_configuration.iteration = int(Path(saved).name.rsplit("_", 1)[1]) + 1
        return saved

    def _save_state_in(self, folder: str | None, async_save: bool = False, exclude_frozen: bool = False) -> str:
        """Saves the training state in a folder, by default the project's next one. Returns the folder. Collective."""
        with ExitStack() as pushed:
            for optimizer in self._optimizers:
                pushed.enter_context(optimizer._pushed_options())
            return self._core.save_state(folder, async_save, folder is not None, exclude_frozen)

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Loads a checkpoint, by default the newest complete one of the project. Collective."""
        strict = bool(load_model_func_kwargs.pop("strict", True))
        if load_kwargs or load_model_func_kwargs:
            unknown = next(iter({**(load_kwargs or {}), **load_model_func_kwargs}))
            raise _core.ConfigError(f"[load_state] unknown argument '{unknown}'")
        if input_dir is None and not self.project_configuration.automatic_checkpoint_naming:
            raise _core.ConfigError("[load_state] input_dir is missing; pass a folder")
        loaded = self._core.load_state(None if input_dir is None else os.fspath(input_dir), strict)
        self._resumes = False
        self._load_engine(loaded, strict)
        self._apply_loaded()

    def _load_engine(self, folder: str, strict: bool = True) -> None:
        """Loads the part of a checkpoint that belongs to the engine of a ds_config, if there is one. Collective."""
        if self._engine is not None:
            self._engine.load(folder, strict)

    def _load_models_and_optimizers(self, folder: str) -> None:
        """Loads only these of a checkpoint, for a program that restores its training loop itself. Collective."""
        self._python_state.loads_loop = False
        try:
            self._core.load_state(folder, True, False)
        finally:
            self._python_state.loads_loop = True
        self._apply_loaded()

    def _apply_loaded(self) -> None:
        """Applies Python's part of the checkpoint whose other parts the C++ library has loaded."""
        for optimizer in self._optimizers:
            optimizer._pull_options()
        self._python_state.apply()

    def _resume_if_requested(self) -> None:
        """Loads the newest checkpoint before the first pass over a loader, if the launcher requested it. Collective.

        The C++ library would do it when the pass begins, when Python has drawn the order of its samples already.
        """
        if not self._resumes:
            return
        self._resumes = False
        folder = self._core.resume_latest()
        if folder is None:
            logger.info("no checkpoint exists to resume from: training starts from the beginning")
            return
        self._load_engine(folder)
        self._apply_loaded()
        logger.info("resumed from %s", folder)
        if self._dataloaders and self._dataloaders[0].iteration > 0:
            logger.warning(
                "the job resumed within a loop that counts epochs from its beginning; call load_state() before the loop, "
                "and begin the loop at loader.iteration"
            )

    def wait_for_save(self) -> None:
        """Blocks until no asynchronous save is running; throws if it failed."""
        self._core.wait_for_save()

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Adds objects with state_dict() and load_state_dict() to all later checkpoints."""
        invalid = [
            f"Item at index {index}, a {type(obj).__name__},"
            for index, obj in enumerate(objects)
            if not (hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict"))
        ]
        if invalid:
            raise _core.ConfigError(
                f"[register_for_checkpointing] {' '.join(invalid)} has no state_dict() and load_state_dict(); pass objects "
                "that have both"
            )
        for obj in objects:
            self._python_state.register(obj)

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Runs `hook(models, weights, folder)` in each save_state. Files in `folder` become part of the checkpoint."""
        handle = RemovableHandle(self._python_state.save_hooks)
        self._python_state.save_hooks[handle.id] = hook
        return handle

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Runs `hook(models, folder)` in each load_state, with the files of the other hook in `folder`."""
        handle = RemovableHandle(self._python_state.load_hooks)
        self._python_state.load_hooks[handle.id] = hook
        return handle

    def save_model(
        self,
        model: torch.nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Writes the weights in transformers' format, on the main process. Collective."""
        if not safe_serialization:
            raise _core.ConfigError("[save_model] Lockstep writes safetensors only; remove safe_serialization=False")
        size = f"{max_shard_size}B" if isinstance(max_shard_size, int) else max_shard_size
        core, module = self._core_and_module(model)
        core.save_model(module, os.fspath(save_directory), size)

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Saves an object on the main process (of each host with save_on_each_node)."""
        save(
            obj,
            f,
            save_on_each_node=self.project_configuration.save_on_each_node,
            safe_serialization=safe_serialization,
        )

    def get_state_dict(self, model: torch.nn.Module, unwrap: bool = True) -> dict[str, torch.Tensor]:
        """Returns the model's full state dict, on every process. Collective under ZeRO stage 3, with tp, ep and pp."""
        core, module = self._core_and_module(model)
        if divides_model(core):
            return full_state_dict(core, module)
        if not core.shards_parameters:
            state: dict[str, torch.Tensor] = module.state_dict()
            return state
        result: dict[str, torch.Tensor] = {}

        def copy() -> None:
            result.update({name: tensor.detach().clone() for name, tensor in module.state_dict().items()})

        core.with_gathered_parameters(list(module.parameters()), copy, None)
        return result

    def _core_and_module(self, model: torch.nn.Module) -> tuple[Any, torch.nn.Module]:
        """Returns a prepared model without its engine and torch.compile, and the C++ Accelerator that trains it."""
        if self._engine is None or own_module(model) not in (self._engine.engine, self._engine.engine.module):
            return self._core, own_module(model)
        return self._engine.engine.core.accelerator, own_module(self._engine.engine.module)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Makes the next pass over a loader skip this process's first batches."""
        return skip_first_batches(dataloader, num_batches)
