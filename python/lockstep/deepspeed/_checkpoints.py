# SPDX-License-Identifier: Apache-2.0
"""The checkpoints and weight files of an engine, as methods under DeepSpeed's names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import _core
from .._full_state import divides_model, full_state_dict
from ..state import PartialState
from ._config import DTYPES, GivenConfig
from ._engine_base import EngineBase
from ._optimizer import DeepSpeedOptimizer
from ._saved_state import SavedState
from .zero import GatheredParameters

__all__ = ["EngineCheckpoints"]


class EngineCheckpoints(EngineBase):
    """The methods of an engine that save and load its state."""

    def __init__(
        self, model: torch.nn.Module, initialized: Any, optimizer: DeepSpeedOptimizer | None, given: GivenConfig
    ) -> None:
        super().__init__(model, initialized, optimizer, given)
        self.python_scheduler: Any = None
        self._loaders: list[Any] = []
        self._saved_state = SavedState(self)

    def writes_shared_state(self) -> bool:
        """Returns whether this rank writes the files that are equal on all ranks."""
        if self._value("checkpoint.use_node_local_storage"):
            return self.local_rank == 0
        return self.global_rank == 0

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: Any = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
        *,
        client_sd: dict[str, Any] | None = None,
    ) -> bool:
        """Saves the complete state to `<save_dir>/<tag>`, `global_step<n>` by default, atomically. Collective.

        `client_state` is the program's own state, also named `client_sd`: numbers, text, tensors, and lists, tuples,
        sets and dicts of them. Rank 0's is saved.
        """
        if client_state and client_sd:
            raise _core.ConfigError("[save_checkpoint] client_sd is another name of client_state; pass only one")
        values = self._saved_state.client_json(client_state or client_sd or {})
        if self.optimizer is not None:
            self.optimizer.push_options()
        try:
            self.core.save_checkpoint(
                _folder("save_checkpoint", save_dir),
                None if tag is None else str(tag),
                values,
                save_latest,
                exclude_frozen_parameters,
            )
        finally:
            self._saved_state.end_save()
        return True

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Callable[..., Any] | None = None,
    ) -> tuple[str | None, dict[str, Any]]:
        """Resumes from `<load_dir>/<tag>`, by default the tag in `latest`, saved by any number of ranks in any stage.

        Returns its folder and the client state; without a file `latest` (None, {}) and a warning. Collective. Throws
        CheckpointError, before anything is changed, for a state that does not fit.
        """
        if custom_load_fn is not None:
            raise _core.ConfigError(
                "[load_checkpoint] custom_load_fn is not supported; load with load_module_strict=False, or change the "
                "parameters within zero.GatheredParameters(modifier_rank=0) afterwards"
            )
        self._saved_state.loads_everything = not load_module_only
        self._saved_state.loads_scheduler = load_lr_scheduler_states and not load_module_only
        path, client_state = self.core.load_checkpoint(
            _folder("load_checkpoint", load_dir),
            None if tag is None else str(tag),
            load_module_strict,
            load_optimizer_states,
            load_lr_scheduler_states,
            load_module_only,
        )
        if not path:
            return None, {}
        if self.optimizer is not None and load_optimizer_states and not load_module_only:
            self.optimizer.pull_options()
        self._saved_state.apply()
        return path, self._saved_state.client_state(client_state)

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes the full model in 16 bits as one file, safetensors or, with another ending, torch's. Collective."""
        if save_filename.endswith(".safetensors"):
            self.core.save_16bit_model(self._own_module, os.fspath(save_dir), save_filename, exclude_frozen_parameters)
            return True
        if self.core.mixed_precision == "no":
            raise _core.ConfigError(
                "[save_16bit_model] the model computes in float32; enable fp16 or bf16, or save engine.module's "
                "state_dict() with torch.save"
            )
        state = self._full_state_dict(DTYPES[self.core.mixed_precision], exclude_frozen_parameters)
        if self.global_rank == 0:
            folder = Path(save_dir)
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f"{save_filename}.tmp"
            torch.save(state, temporary)
            temporary.replace(folder / save_filename)
        PartialState().wait_for_everyone()
        return True

    save_fp16_model = save_16bit_model

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """Returns the model's state_dict(), without frozen parameters if requested. In stage 3 tensors stay sharded."""
        model: Any = self.module  # torch's annotations refuse None for `destination`.
        state: dict[str, Any] = model.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(prefix.removesuffix("."), remove_duplicate=False):
                if not parameter.requires_grad:
                    state.pop(name, None)
        return state

    def load_module_state_dict(
        self, checkpoint: dict[str, Any], strict: bool = True, custom_load_fn: Callable[..., Any] | None = None
    ) -> None:
        """Loads the model's tensors of `checkpoint["module"]`. `custom_load_fn(src=, dst=)` does it instead."""
        state = checkpoint["module"]
        if custom_load_fn is not None:
            custom_load_fn(src=state, dst=self.module)
        else:
            self.module.load_state_dict(state, strict=strict)

    def _zero3_consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, torch.Tensor] | None:
        """Returns the full model on rank 0's CPU, in its own dtypes; None on other ranks. Collective. Only in stage 3.

        transformers' Trainer saves the adapters of PEFT with it. Throws ConfigError in other stages.
        """
        if self.core.zero_optimization_stage != 3:
            raise _core.ConfigError(
                f"[_zero3_consolidated_16bit_state_dict] the model is trained in stage {self.core.zero_optimization_stage}; "
                "expected stage 3, which shards parameters; call module_state_dict()"
            )
        state = self._full_state_dict(None, exclude_frozen_parameters)
        return state if self.global_rank == 0 else None

    def _full_state_dict(self, dtype: torch.dtype | None, exclude_frozen: bool) -> dict[str, torch.Tensor]:
        """Returns the full model on rank 0, tensor by tensor; other ranks get nothing. Collective.

        `dtype` None keeps the dtype of each tensor.
        """
        frozen = {
            name
            for name, parameter in self._own_module.named_parameters(remove_duplicate=False)
            if not parameter.requires_grad
        }
        state: dict[str, torch.Tensor] = {}
        if divides_model(self.core.accelerator):
            if exclude_frozen:
                raise _core.ConfigError(
                    "[save_16bit_model] exclude_frozen_parameters is True, and other ranks have parameters of which this rank "
                    "cannot tell whether they are frozen; expected False"
                )
            full = full_state_dict(self.core.accelerator, self._own_module)
            for name, value in full.items() if self.global_rank == 0 else ():
                state[name] = value.detach().to("cpu", dtype if dtype and value.is_floating_point() else value.dtype, copy=True)
            return state
        for name, value in self._own_module.state_dict(keep_vars=True).items():
            if exclude_frozen and name in frozen:
                continue
            with GatheredParameters([value] if isinstance(value, torch.nn.Parameter) else []):
                if self.global_rank == 0:
                    target = dtype if dtype is not None and value.is_floating_point() else value.dtype
                    state[name] = value.detach().to("cpu", target, copy=True)
        return state


def _folder(where: str, folder: str | os.PathLike[str]) -> str:
    if not folder:
        raise _core.ConfigError(
            f"[{where}] the folder is missing; got {folder!r}, expected a path; pass '.' for the working folder"
        )
    return os.fspath(folder)
