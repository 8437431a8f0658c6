# SPDX-License-Identifier: Apache-2.0
"""Sizes, names and weights of models."""

from __future__ import annotations

import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .. import _core
from .._core import ConfigError
from .._enums import CustomDtype
from .._torch_files import load_torch_file
from .imports import is_peft_available
from .other import extract_model_from_parallel

__all__ = [
    "align_module_device",
    "calculate_maximum_sizes",
    "check_device_map",
    "check_tied_parameters_on_same_device",
    "clean_device_map",
    "compute_module_sizes",
    "compute_module_total_buffer_size",
    "convert_file_size_to_int",
    "dtype_byte_size",
    "find_tied_parameters",
    "get_max_layer_size",
    "get_max_memory",
    "get_module_size_with_ties",
    "get_non_persistent_buffers",
    "has_offloaded_params",
    "id_tensor_storage",
    "infer_auto_device_map",
    "is_peft_model",
    "load_checkpoint_in_model",
    "load_state_dict",
    "named_module_tensors",
    "retie_parameters",
    "set_module_tensor_to_device",
]

logger = logging.getLogger(__name__)

_UNITS = {"GIB": 2**30, "MIB": 2**20, "KIB": 2**10, "GB": 10**9, "MB": 10**6, "KB": 10**3}


def is_peft_model(model: nn.Module) -> bool:
    """Returns whether the model is one of the package peft."""
    if not is_peft_available():
        return False
    from peft import PeftModel

    return isinstance(extract_model_from_parallel(model), PeftModel)


def convert_file_size_to_int(size: int | str) -> int:
    """Returns a size in bytes: a number, or a text such as "5GB" (10^9 bytes each) or "5GiB" (2^30 bytes each).

    A small b means bits: "8Gb" is 10^9 bytes. Throws ValueError for another text.
    """
    if isinstance(size, int) and size >= 0:
        return size
    text = str(size).strip()
    for unit, factor in _UNITS.items():
        if text.upper().endswith(unit):
            try:
                number = int(float(text[: -len(unit)]) * factor)
            except ValueError:
                break
            is_bits = text.endswith("b") and not unit.endswith("IB")
            if number >= 0:
                return number // 8 if is_bits else number
    raise ValueError(f"the size is {size!r}; expected bytes, or a number with one of {', '.join(_UNITS)}")


def dtype_byte_size(dtype: Any) -> float:
    """Returns the bytes of an element. Types of 4 and 2 bits, and bool, have a fraction, as in Accelerate."""
    fractions = {torch.bool: 1 / 8, CustomDtype.INT2: 1 / 4, CustomDtype.INT4: 1 / 2, CustomDtype.FP8: 1}
    return fractions[dtype] if dtype in fractions else dtype.itemsize


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Returns the device, address and bytes of a tensor's memory: equal for tensors that share it."""
    if tensor.is_meta:
        return tensor.device, 0, tensor.untyped_storage().nbytes()
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr(), storage.nbytes()


def named_module_tensors(
    module: nn.Module, include_buffers: bool = True, recurse: bool = False, remove_non_persistent: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the names and tensors of a module's parameters and buffers; with `recurse` of all modules inside."""
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    transient = get_non_persistent_buffers(module, recurse, fqns=True) if remove_non_persistent else set()
    for name, buffer in module.named_buffers(recurse=recurse):
        if name not in transient:
            yield name, buffer


def get_non_persistent_buffers(module: nn.Module, recurse: bool = False, fqns: bool = False) -> set[str]:
    """Returns the names of buffers that a state dict lacks; with `recurse` also of the modules inside.

    `fqns`: the names have those of their modules in front.
    """
    parts = module.named_modules() if recurse else [("", module)]
    return {
        f"{prefix}.{name}" if prefix and fqns else name
        for prefix, part in parts
        for name in part._non_persistent_buffers_set
    }


def find_tied_parameters(model: nn.Module, **kwargs: Any) -> list[list[str]]:
    """Returns the names of each parameter that has several, sorted."""
    if kwargs:
        raise ConfigError(f"[find_tied_parameters] unknown argument {next(iter(kwargs))!r}; expected only a model")
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [sorted(group) for group in names.values() if len(group) > 1]


def retie_parameters(model: nn.Module, tied_params: list[list[str]]) -> None:
    """Makes all names of each group refer to one parameter: the first one that has values, not on the meta device."""
    for names in tied_params:
        owners = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
        values = [getattr(owner, name) for owner, name in owners]
        shared = next((value for value in values if not value.is_meta), None)
        if shared is not None:
            for owner, name in owners:
                setattr(owner, name, shared)


def check_tied_parameters_on_same_device(tied_params: list[list[str]], device_map: dict[str, Any]) -> None:
    """Warns about tied parameters that a device map puts on several devices."""

    def device_of(name: str) -> Any:
        while name not in device_map and name:
            name = name.rpartition(".")[0]
        if name not in device_map:
            raise ValueError(f"the device map has no device for {name!r}")
        return device_map[name]

    for names in tied_params:
        devices = {name: device_of(name) for name in names}
        if len(set(devices.values())) > 1:
            logger.warning("tied parameters are on different devices: %s; give them the same one", devices)


def check_device_map(model: nn.Module, device_map: dict[str, Any]) -> None:
    """Throws ConfigError if a tensor of the model has no device. Warns about names that the model lacks."""
    modules = {name for name, _ in model.named_modules()}
    tensors = {*model.state_dict(), *(name for name, _ in named_module_tensors(model, recurse=True))}
    unknown = [name for name in device_map if name not in modules | tensors]
    if unknown:
        warnings.warn(f"the device_map keys do not match any submodules in the model: {unknown}", stacklevel=2)
    missing = [
        name
        for name in sorted(tensors)
        if "" not in device_map and not any(name == key or name.startswith(f"{key}.") for key in device_map)
    ]
    if missing:
        raise ConfigError(f"[check_device_map] no device for {', '.join(missing)}; expected one for each tensor; add them")


def clean_device_map(device_map: dict[str, Any], module_name: str = "") -> dict[str, Any]:
    """Replaces the entries of each module whose parts are on one device by an entry of the module. In place."""
    prefix = f"{module_name}." if module_name else ""
    parts = [name for name in device_map if name.startswith(prefix)]
    if len(parts) > 1 and len({device_map[name] for name in parts}) == 1:
        device = device_map[parts[0]]
        for name in parts:
            del device_map[name]
        device_map[module_name] = device
        return device_map
    inner = {prefix + name[len(prefix) :].partition(".")[0] for name in parts if name != module_name}
    for name in sorted(inner):
        if any(part.startswith(f"{name}.") for part in parts):
            clean_device_map(device_map, name)
    return device_map


def _dtype_of(dtype: Any) -> Any:
    return getattr(torch, dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype


def compute_module_sizes(
    model: nn.Module,
    dtype: Any = None,
    special_dtypes: dict[str, Any] | None = None,
    buffers_only: bool = False,
) -> dict[str, float]:
    """Returns the bytes of each module and tensor by name; "" is the model.

    `dtype` converts floating-point tensors of more bytes; `special_dtypes` those of some names.
    """
    wanted = None if dtype is None else dtype_byte_size(_dtype_of(dtype))
    special = {name: dtype_byte_size(_dtype_of(value)) for name, value in (special_dtypes or {}).items()}
    sizes: dict[str, float] = defaultdict(int)
    tensors = model.named_buffers(recurse=True) if buffers_only else named_module_tensors(model, recurse=True)
    for name, tensor in tensors:
        each = dtype_byte_size(tensor.dtype)
        if name in special:
            each = special[name]
        elif wanted is not None and (tensor.is_floating_point() or tensor.is_complex()):
            each = min(wanted, each)
        parts = name.split(".")
        for count in range(len(parts) + 1):
            sizes[".".join(parts[:count])] += tensor.numel() * each
    return sizes


def get_max_layer_size(
    modules: list[tuple[str, Any]], module_sizes: dict[str, float], no_split_module_classes: list[str]
) -> tuple[float, list[str]]:
    """Returns the bytes of the largest layer, and the names of all layers of that size.

    A layer is a module without modules inside, a tensor, or a module of one of the given classes.
    """
    pending, layers = list(modules), {}
    while pending:
        name, module = pending.pop(0)
        children = list(module.named_children()) if isinstance(module, nn.Module) else []
        if not children or type(module).__name__ in no_split_module_classes:
            layers[name] = module_sizes[name]
        else:
            pending = [(f"{name}.{child_name}", child) for child_name, child in children] + pending
    largest = max(layers.values(), default=0)
    return largest, [name for name, size in layers.items() if size == largest and size > 0]


def compute_module_total_buffer_size(
    model: nn.Module, dtype: Any = None, special_dtypes: dict[str, Any] | None = None
) -> float:
    """Returns the bytes of all buffers; see compute_module_sizes."""
    return compute_module_sizes(model, dtype=dtype, special_dtypes=special_dtypes, buffers_only=True).get("", 0)


def get_module_size_with_ties(
    tied_params: list[str],
    module_size: float,
    module_sizes: dict[str, float],
    modules_to_treat: list[tuple[str, nn.Module]],
) -> tuple[float, list[str], list[nn.Module]]:
    """Returns the bytes of a module and of those that share its parameters `tied_params`, their names, and them."""
    owners = []
    for name in tied_params:
        owners.append(next(pair for pair in modules_to_treat if name.startswith(f"{pair[0]}.")))
        module_size += module_sizes[owners[-1][0]] - module_sizes[name]
    return module_size, [name for name, _ in owners], [module for _, module in owners]


def calculate_maximum_sizes(model: nn.Module) -> tuple[float, tuple[float, list[str]]]:
    """Returns the bytes of a model, and those of its largest layer with its names."""
    sizes = compute_module_sizes(model)
    layers = [(name, part) for name, part in model.named_children()] + list(model.named_parameters(recurse=False))
    return sizes[""], get_max_layer_size(layers, sizes, getattr(model, "_no_split_modules", None) or [])


def get_max_memory(max_memory: dict[Any, Any] | None = None) -> dict[Any, int]:
    """Returns the free bytes of each GPU by number, and of "cpu"; or the given sizes in bytes."""
    if max_memory is not None:
        return {key: convert_file_size_to_int(value) for key, value in max_memory.items()}
    memory: dict[Any, int] = {index: torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())}
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(line for line in file if line.startswith("MemAvailable:"))
    memory["cpu"] = int(available.split()[1]) * 1024
    return memory


def has_offloaded_params(module: nn.Module) -> bool:
    """Returns false: Lockstep has no hooks that offload a module's parameters for inference."""
    del module
    return False


@contextmanager
def align_module_device(module: nn.Module, execution_device: torch.device | None = None) -> Iterator[None]:
    """Moves a module's own parameters to a device for the duration of a block."""
    parameters = dict(module.named_parameters(recurse=False)) if execution_device is not None else {}
    devices = {name: parameter.device for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.data = parameter.data.to(execution_device)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = parameter.data.to(devices[name])


def set_module_tensor_to_device(
    module: nn.Module,
    tensor_name: str,
    device: Any,
    value: torch.Tensor | None = None,
    dtype: Any = None,
    fp16_statistics: Any = None,
    tied_params_map: Any = None,
    non_blocking: bool = False,
    clear_cache: bool = True,
) -> None:
    """Moves a parameter or buffer, "layer.weight", to a device, or replaces it with `value` there.

    Throws ConfigError for a tensor on the meta device without `value`, and for another shape. `clear_cache` returns
    the device's cached memory afterwards.
    """
    for name, given in {"fp16_statistics": fp16_statistics, "tied_params_map": tied_params_map}.items():
        if given is not None:
            raise ConfigError(f"[set_module_tensor_to_device] {name} is not supported; expected None")
    prefix, _, name = tensor_name.rpartition(".")
    owner = module.get_submodule(prefix)
    is_parameter = name in owner._parameters
    old = owner._parameters[name] if is_parameter else owner._buffers.get(name)
    if old is None:
        raise ConfigError(f"[set_module_tensor_to_device] the module has no tensor {tensor_name!r}")
    if value is None and old.is_meta and torch.device(device).type != "meta":
        raise ConfigError(f"[set_module_tensor_to_device] {tensor_name!r} is on the meta device; pass its value")
    if value is not None and value.shape != old.shape:
        raise ConfigError(
            f"[set_module_tensor_to_device] the value of {tensor_name!r} has shape {tuple(value.shape)}; expected "
            f"{tuple(old.shape)}"
        )
    source = old.detach() if value is None else value.detach()
    if dtype is None and value is not None and old.is_floating_point() and value.is_floating_point():
        dtype = old.dtype
    moved = source.to(device=device, dtype=_dtype_of(dtype), non_blocking=non_blocking)
    if is_parameter:
        parameter = nn.Parameter(moved, requires_grad=old.requires_grad)
        parameter.__dict__.update(old.__dict__)
        owner._parameters[name] = parameter
    else:
        owner._buffers[name] = moved
    if clear_cache and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _refuses(name: str, what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise ConfigError(
            f"[{name}] Lockstep does not {what}; to train a model that is larger than a device, use "
            "FullyShardedDataParallelPlugin, whose cpu_offload also uses the host's memory, or DeepSpeedPlugin"
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Throws ConfigError: Lockstep does not {what}."
    return refuse


infer_auto_device_map = _refuses("infer_auto_device_map", "spread one model over devices")


def _one_device(device_map: Any, where: str) -> Any:
    """Returns the only device of a device map; None for no map. Throws ConfigError for several devices."""
    if not isinstance(device_map, dict):
        if isinstance(device_map, str) and device_map in ("auto", "balanced", "balanced_low_0", "sequential"):
            raise ConfigError(
                f"[{where}] device_map {device_map!r} is not supported: Lockstep does not spread one model over "
                "devices; use a device, or shard the model by FullyShardedDataParallelPlugin"
            )
        return device_map
    devices = set(device_map.values())
    if len(devices) != 1 or "disk" in devices:
        raise ConfigError(
            f"[{where}] the device map has devices {sorted(map(str, devices))}; expected one: Lockstep does not spread "
            "one model over devices; shard it by FullyShardedDataParallelPlugin"
        )
    return devices.pop()


def load_state_dict(checkpoint_file: Any, device_map: Any = None) -> dict[str, torch.Tensor]:
    """Returns the tensors of a .safetensors file, or of a torch file that has only tensors and plain values.

    `device_map` is None for the CPU, or a device, or a dict with one device.
    """
    device = _one_device(device_map, "load_state_dict")
    path = os.fspath(checkpoint_file)
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path, device="cpu" if device is None else str(torch.device(device)))
    return load_torch_file(path, "load_state_dict", "cpu" if device is None else torch.device(device), [])


def _materialize(model: nn.Module) -> set[str]:
    """Gives memory to all tensors on the meta device. Returns their names."""
    tied = find_tied_parameters(model)
    names = set()
    for name, tensor in list(named_module_tensors(model, recurse=True)):
        if tensor.is_meta:
            set_module_tensor_to_device(model, name, "cpu", torch.empty_like(tensor, device="cpu"), clear_cache=False)
            names.add(name)
    retie_parameters(model, tied)
    return names


def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: Any,
    device_map: Any = None,
    offload_folder: Any = None,
    dtype: Any = None,
    offload_state_dict: bool = False,
    offload_buffers: bool = False,
    keep_in_fp32_modules: Any = None,
    offload_8bit_bnb: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
) -> None:
    """Loads weights into a model: a safetensors file, a folder with one, or with shards and their index.

    Everything is checked before anything is changed. A model of init_empty_weights gets memory on the CPU first; the
    file must then have all of its parameters. Names in only one of the model and the file are a warning, or with
    `strict` a CheckpointError. `device_map` may have one device, to which the model is moved. `dtype` converts the
    model's floating-point tensors after loading.
    """
    where = "load_checkpoint_in_model"
    refused = {
        "offload_folder": offload_folder,
        "offload_state_dict": offload_state_dict,
        "offload_buffers": offload_buffers,
        "keep_in_fp32_modules": keep_in_fp32_modules,
        "offload_8bit_bnb": offload_8bit_bnb,
        "broadcast_from_rank0": broadcast_from_rank0,
    }
    for name, value in refused.items():
        if value:
            raise ConfigError(f"[{where}] {name} is not supported; got {value!r}, expected it unset")
    if not full_state_dict:
        raise ConfigError(f"[{where}] full_state_dict=False is not supported; expected a file with whole tensors")
    device = _one_device(device_map, where)
    empty = _materialize(model)
    missing, unexpected = _core.load_checkpoint_in_model(model, os.fspath(checkpoint), strict)
    without_values = sorted((empty & set(missing)) | (empty - set(model.state_dict())))
    if without_values:
        raise ConfigError(
            f"[{where}] {checkpoint} has no {', '.join(without_values)}, which the model of init_empty_weights needs"
        )
    if missing or unexpected:
        logger.warning(
            "%s: not in the file: %s; not in the model: %s",
            checkpoint,
            ", ".join(missing) or "none",
            ", ".join(unexpected) or "none",
        )
    if device is not None or dtype is not None:
        model.to(device=device, dtype=_dtype_of(dtype))
