# SPDX-License-Identifier: Apache-2.0
"""Accelerate's functions for the files of a model that FullyShardedDataParallelPlugin shards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .._core import CheckpointError
from .constants import FSDP_MODEL_NAME, OPTIMIZER_NAME, SAFE_WEIGHTS_NAME
from .modeling import is_peft_model
from .other import extract_model_from_parallel, load, save

__all__ = [
    "get_parameters_from_modules",
    "load_fsdp_model",
    "load_fsdp_optimizer",
    "save_fsdp_model",
    "save_fsdp_optimizer",
]


def get_parameters_from_modules(
    modules: Iterable[torch.nn.Module] | str | None, model: torch.nn.Module, device: torch.device
) -> set[torch.nn.Parameter]:
    """Returns the parameters of modules: a list, or a regular expression of full names, moved to `device`."""
    if isinstance(modules, str):
        pattern = re.compile(modules)
        modules = [module.to(device) for name, module in model.named_modules() if pattern.fullmatch(name)]
    return {parameter for module in modules or () for parameter in module.parameters()}


# --- weights
def save_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: torch.nn.Module,
    output_dir: str | os.PathLike[str],
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Writes a prepared model in full, on the main process. Collective.

    With the plugin's FULL_STATE_DICT the file is torch's pytorch_model_fsdp.bin, as Accelerate's; else the folder
    pytorch_model_fsdp_<index> has a file of safetensors, which any number of processes loads, so `use_dcp` changes
    nothing. `adapter_only` leaves out the frozen weights of a model of peft.
    """
    del use_dcp
    state = _state_of(accelerator.get_state_dict(model), model, adapter_only)
    if accelerator.is_main_process:
        file = _weights_file(fsdp_plugin, output_dir, model_index)
        file.parent.mkdir(parents=True, exist_ok=True)
        save(state, file, safe_serialization=file.suffix == ".safetensors")
    accelerator.wait_for_everyone()


def load_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: torch.nn.Module,
    input_dir: str | os.PathLike[str],
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> Any:
    """Loads the files of save_fsdp_model into a prepared model. Collective. Returns torch's missing and other keys.

    Throws CheckpointError for a file that lacks a weight of the model.
    """
    del use_dcp
    file = _weights_file(fsdp_plugin, input_dir, model_index)
    if not file.exists():
        raise CheckpointError(
            f"[load_fsdp_model] {file} does not exist; expected the file that save_fsdp_model writes with the same "
            "state_dict_type; Lockstep does not read torch's distributed checkpoints"
        )
    accelerator.wait_for_everyone()
    state = load(file)
    module = extract_model_from_parallel(model)
    expected = _state_of(module.state_dict(), module, adapter_only)
    missing = sorted(set(expected) - set(state))
    if missing:
        raise CheckpointError(f"[load_fsdp_model] {file} has no tensor {missing[0]!r}; {len(missing)} are missing")
    result: Any = None

    def copy() -> None:
        nonlocal result
        result = module.load_state_dict(state, strict=False)

    accelerator._core.with_gathered_parameters(list(module.parameters()), copy, 0)
    return result


def _state_of(state: dict[str, Any], model: torch.nn.Module, adapter_only: bool) -> dict[str, Any]:
    if not adapter_only or not is_peft_model(model):
        return state
    trained = {name for name, value in model.named_parameters(remove_duplicate=False) if value.requires_grad}
    return {name: value for name, value in state.items() if name in trained}


def _weights_file(fsdp_plugin: Any, folder: str | os.PathLike[str], index: int) -> Path:
    if _is_full(fsdp_plugin):
        return Path(folder) / f"{FSDP_MODEL_NAME}{_number(index)}.bin"
    name = f"{FSDP_MODEL_NAME}_{index}"
    own = Path(folder) if Path(folder).name == name else Path(folder) / name
    return own / SAFE_WEIGHTS_NAME


def _is_full(fsdp_plugin: Any) -> bool:
    return fsdp_plugin.state_dict_type.name == "FULL_STATE_DICT"


def _number(index: int) -> str:
    return f"_{index}" if index else ""


# --- optimizers
def save_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: Any,
    model: torch.nn.Module,
    output_dir: str | os.PathLike[str],
    optimizer_index: int = 0,
    use_dcp: bool = True,
) -> None:
    """Writes the folder optimizer_<index>, a checkpoint of all prepared models and optimizers. Collective."""
    del fsdp_plugin, optimizer, model, use_dcp
    accelerator._save_state_in(str(_optimizer_folder(output_dir, optimizer_index)))


def load_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: Any,
    model: torch.nn.Module,
    input_dir: str | os.PathLike[str],
    optimizer_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Loads all models and optimizers of the folder of save_fsdp_optimizer, saved by any number of processes.

    Collective. Throws CheckpointError, before anything is changed, for a state that does not fit.
    """
    del fsdp_plugin, optimizer, model, adapter_only, use_dcp
    accelerator._load_models_and_optimizers(str(_optimizer_folder(input_dir, optimizer_index)))


def _optimizer_folder(folder: str | os.PathLike[str], index: int) -> Path:
    name = f"{OPTIMIZER_NAME}_{index}"
    return Path(folder) if Path(folder).name == name else Path(folder) / name
