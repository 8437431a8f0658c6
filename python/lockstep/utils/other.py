# SPDX-License-Identifier: Apache-2.0
"""Functions for models, files, names and ports."""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any, TypeGuard, cast

import numpy
import torch

from .._binary import find_binary
from .._core import ConfigError
from .._environment import clear_environment, patch_environment
from .._torch_files import load_torch_file
from ..state import PartialState

__all__ = [
    "check_os_kernel",
    "clean_state_dict_for_safetensors",
    "clear_environment",
    "compile_regions",
    "compile_regions_deepspeed",
    "compile_regions_fsdp2",
    "convert_bytes",
    "extract_model_from_parallel",
    "get_free_port",
    "get_model_tp_size",
    "get_module_children_bottom_up",
    "get_pretty_name",
    "has_compiled_regions",
    "is_compiled_module",
    "is_port_in_use",
    "load",
    "merge_dicts",
    "model_has_dtensor",
    "patch_environment",
    "recursive_getattr",
    "save",
    "wait_for_everyone",
    "write_basic_config",
]

logger = logging.getLogger(__name__)


def is_compiled_module(module: Any) -> bool:
    """Returns whether the module is the result of torch.compile."""
    return isinstance(module, torch._dynamo.eval_frame.OptimizedModule)


def has_compiled_regions(module: torch.nn.Module) -> bool:
    """Returns whether a module inside of this one is the result of torch.compile."""
    return bool(module._modules) and any(is_compiled_module(part) for part in module.modules())


def _is_repeated(module: torch.nn.Module) -> TypeGuard[torch.nn.ModuleList]:
    """Returns whether the module is a ModuleList of modules of one class."""
    return isinstance(module, torch.nn.ModuleList) and len({type(part) for part in module}) == 1


def _has_repeated(module: torch.nn.Module) -> bool:
    return any(_is_repeated(part) for part in module.modules() if part is not module)


def compile_regions(module: torch.nn.Module, **compile_kwargs: Any) -> torch.nn.Module:
    """Returns a module that shares all parameters with this one, and whose repeated layers are compiled one by one.

    Layers of one class in a ModuleList are compiled once. `compile_kwargs` are those of torch.compile.
    """
    compiled = _compile_regions(module, compile_kwargs)
    if "_orig_mod" not in compiled.__dict__:
        compiled.__dict__["_orig_mod"] = module  # For extract_model_from_parallel.
    return compiled


def _compile_regions(module: torch.nn.Module, compile_kwargs: dict[str, Any]) -> torch.nn.Module:
    if _is_repeated(module):
        return torch.nn.ModuleList(_compile(part, compile_kwargs) for part in module)
    if not _has_repeated(module):
        return _compile(module, compile_kwargs)
    copy = type(module).__new__(type(module))
    copy.__dict__.update(module.__dict__)
    for name, value in module.__dict__.items():
        if isinstance(value, MethodType) and value.__self__ is module:
            copy.__dict__[name] = MethodType(value.__func__, copy)
    copy._modules = {}
    for name, part in module.named_children():
        copy.add_module(name, _compile_regions(part, compile_kwargs))
    return copy


def _compile(module: torch.nn.Module, compile_kwargs: dict[str, Any]) -> torch.nn.Module:
    return cast(torch.nn.Module, torch.compile(module, **compile_kwargs))


def compile_regions_fsdp2(module: torch.nn.Module, **compile_kwargs: Any) -> torch.nn.Module:
    """Compiles the repeated layers of a module in place, and returns it."""
    if _is_repeated(module):
        for part in module:
            part.compile(**compile_kwargs)
    elif _has_repeated(module):
        for part in module.children():
            compile_regions_fsdp2(part, **compile_kwargs)
    else:
        module.compile(**compile_kwargs)
    return module


def compile_regions_deepspeed(module: torch.nn.Module, **compile_kwargs: Any) -> None:
    """Compiles the repeated layers of a module in place."""
    compile_regions_fsdp2(module, **compile_kwargs)


def model_has_dtensor(model: torch.nn.Module) -> bool:
    """Returns whether a parameter is a DTensor of torch."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def get_model_tp_size(model: torch.nn.Module) -> int | None:
    """Returns the degree of tensor parallelism that transformers gave a model; None without it."""
    size = getattr(model, "tp_size", None)
    if size is not None:
        return size
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    return config.get("tp_size") if isinstance(config, dict) else getattr(config, "tp_size", None)


def extract_model_from_parallel(
    model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True, recursive: bool = False
) -> Any:
    """Returns the model inside of torch's DistributedDataParallel, DataParallel and FSDP, and DeepSpeed's engine.

    `keep_torch_compile=False` also removes torch.compile; `keep_fp32_wrapper=False` restores the forward that
    `prepare` replaced; `recursive` also unwraps the modules inside.
    """
    compiled = None
    if is_compiled_module(model):
        compiled, model = model, model._orig_mod
    elif "_orig_mod" in getattr(model, "__dict__", {}):
        compiled, model = model, model.__dict__["_orig_mod"]
    while isinstance(model, _wrapper_classes()) or type(model).__name__ == "DeepSpeedEngine":
        model = model.module
    if recursive:
        model = _unwrap_recursively(model)
    if not keep_fp32_wrapper:
        _restore_forward(model)
    if not keep_torch_compile or compiled is None:
        return model
    if is_compiled_module(compiled):
        compiled._orig_mod = model
    else:
        compiled.__dict__["_orig_mod"] = model
    return compiled


def _wrapper_classes() -> tuple[type[Any], ...]:
    classes: tuple[type[Any], ...] = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        classes += (FullyShardedDataParallel,)
    return classes


def _unwrap_recursively(module: Any) -> Any:
    inner = _unwrap_recursively(module.module) if hasattr(module, "module") else module
    for name, part in inner.named_children():
        setattr(inner, name, _unwrap_recursively(part))
    return inner


def _restore_forward(model: Any) -> None:
    original = model.__dict__.pop("_original_forward", None)
    if original is not None:
        model.__dict__.pop("forward", None)
        if getattr(original, "__func__", original) is not getattr(type(model).forward, "__func__", type(model).forward):
            model.forward = original


def wait_for_everyone() -> None:
    """Blocks until every process has called it. Collective."""
    PartialState().wait_for_everyone()


def clean_state_dict_for_safetensors(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns a state dict of contiguous tensors, each under its first name only. Removes the others from the argument.

    Warns about the removed names. Two names have one tensor if its address and shape are equal. Parts of a larger
    memory, such as the parameters of a sharded model, are different tensors, and copied.
    """
    first_names: dict[Any, str] = {}
    removed = []
    for name, value in list(state_dict.items()):
        if not isinstance(value, torch.Tensor) or value.numel() == 0 or value.is_meta:
            continue
        identity = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if first_names.setdefault(identity, name) != name:
            removed.append(name)
            del state_dict[name]
    if removed:
        logger.warning(
            "the state dict has tensors with several names; %s are not saved; tie these weights again after loading",
            ", ".join(removed),
        )
    return {
        name: _own_memory(value) if isinstance(value, torch.Tensor) else value for name, value in state_dict.items()
    }


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor that is all of its memory; a copy if necessary."""
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def save(obj: Any, f: Any, save_on_each_node: bool = False, safe_serialization: bool = False) -> None:
    """Writes an object on the main process, or on that of each host.

    `safe_serialization` writes a dict of tensors as safetensors; otherwise torch.save is used. Not collective: other
    processes do not wait.
    """
    state = PartialState()
    if not (state.is_local_main_process if save_on_each_node else state.is_main_process):
        return
    if not safe_serialization:
        torch.save(obj, f)
        return
    if not isinstance(obj, Mapping) or not all(isinstance(value, torch.Tensor) for value in obj.values()):
        raise ConfigError(f"[save] safe_serialization needs a dict of tensors; got {type(obj).__name__}")
    from safetensors.torch import save_file

    save_file(clean_state_dict_for_safetensors(dict(obj)), f, metadata={"format": "pt"})


def load(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """Reads a file of `save`: tensors, numbers, texts, containers and numpy arrays.

    A name that ends in .safetensors is read as that format. Other files never run code: those that could are a
    CheckpointError. `kwargs` are those of torch.load.
    """
    if not kwargs.pop("weights_only", True):
        raise ConfigError("[load] weights_only=False runs code of the file; if you trust it, call torch.load yourself")
    if isinstance(f, (str, os.PathLike)) and os.fspath(f).endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(f, device="cpu" if map_location is None else str(map_location))
    multiarray: Any = import_module("numpy._core.multiarray")  # Private, hence without types.
    numbers = [numpy.ndarray, numpy.dtype, multiarray._reconstruct, multiarray.scalar]
    numbers += [getattr(numpy.dtypes, name) for name in numpy.dtypes.__all__ if name != "ObjectDType"]
    return load_torch_file(f, "load", map_location, numbers, **kwargs)


def get_pretty_name(obj: Any) -> str:
    """Returns the name of a function or class, or of an object's class."""
    for target in (obj, type(obj)):
        for attribute in ("__qualname__", "__name__"):
            if hasattr(target, attribute):
                return getattr(target, attribute)
    return str(obj)


def merge_dicts(source: dict[Any, Any], destination: dict[Any, Any]) -> dict[Any, Any]:
    """Adds the items of `source` to `destination`, dict by dict, and returns it."""
    for key, value in source.items():
        if isinstance(value, dict):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def is_port_in_use(port: int | None = None) -> bool:
    """Returns whether a program accepts connections on a port of this host; by default 29500."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(("localhost", 29500 if port is None else int(port))) == 0


def get_free_port() -> int:
    """Returns a free port of this host. Another program can take it before the caller does."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def convert_bytes(size: float) -> str:
    """Returns a number of bytes as text, in the largest unit: "1.5 KB" is 1536 bytes."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1024.0:
            return f"{round(size, 2)} {unit}"
        size /= 1024.0
    return f"{round(size, 2)} PB"


def check_os_kernel() -> None:
    """Warns if the Linux kernel is older than 5.5, where processes can hang."""
    info = platform.uname()
    found = re.match(r"(\d+)\.(\d+)", info.release)
    if info.system == "Linux" and found and (int(found[1]), int(found[2])) < (5, 5):
        logger.warning(f"the kernel is Linux {info.release}; processes can hang before 5.5.0; upgrade it")


def recursive_getattr(obj: Any, attr: str) -> Any:
    """Returns the attribute of an attribute: recursive_getattr(model, "encoder.layer")."""
    return functools.reduce(getattr, attr.split("."), obj)


def get_module_children_bottom_up(model: torch.nn.Module, return_fqns: bool = False) -> list[Any]:
    """Returns all modules, each after the modules inside of it; with `return_fqns` as (name, module)."""
    stack, ordered = [("", model)], []
    while stack:
        prefix, module = stack.pop()
        ordered.append((prefix, module) if return_fqns else module)
        stack.extend((f"{prefix}.{name}" if prefix else name, part) for name, part in module.named_children())
    return ordered[::-1]


def write_basic_config(mixed_precision: str = "no", save_location: Any = None) -> Path | bool:
    """Writes the launcher's configuration file: a process for each GPU, or core. Returns its path.

    `save_location` is the file, by default that of `lockstep config`. An existing file is not changed; the result is
    then False. Throws ConfigError for an unknown precision.
    """
    if mixed_precision not in ("no", "fp16", "bf16"):
        raise ConfigError(f"[write_basic_config] mixed_precision is {mixed_precision!r}; expected no, fp16 or bf16")
    if save_location is not None and Path(save_location).exists():
        print(f"The configuration {save_location} exists and is not changed.")
        return False
    command = [find_binary(), "config", "default", "--json", "--mixed-precision", mixed_precision]
    if save_location is not None:
        command += ["--config-file", os.fspath(save_location)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr.strip()}
    if done.returncode == 0:
        return Path(report["config_file"])
    if "exists" in report["error"]:
        print(report["error"])
        return False
    raise ConfigError(report["error"])
