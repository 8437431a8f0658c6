# SPDX-License-Identifier: Apache-2.0
"""Operations on nested lists, tuples and dicts of tensors, in one process or across all of them.

The functions that communicate are collective: every process must call them in the same order. In a job of one process
they return their input.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import update_wrapper, wraps
from typing import Any

import torch

from .. import _core
from .._codec import decode, encode
from .._core import ConfigError
from .._tree import map_leaves, mapping_like, sequence_like
from ..state import AcceleratorState, PartialState
from .dataclasses import TensorInformation

__all__ = [
    "CannotPadNestedTensorWarning",
    "ConvertOutputsToFp32",
    "DistributedOperationException",
    "GatheredParameters",
    "broadcast",
    "broadcast_object_list",
    "concatenate",
    "convert_outputs_to_fp32",
    "convert_to_fp32",
    "copy_tensor_to_devices",
    "find_batch_size",
    "find_device",
    "gather",
    "gather_object",
    "get_data_structure",
    "get_shape",
    "honor_type",
    "ignorant_find_batch_size",
    "initialize_tensors",
    "is_namedtuple",
    "is_tensor_information",
    "is_torch_tensor",
    "listify",
    "pad_across_processes",
    "pad_input_tensors",
    "recursively_apply",
    "reduce",
    "send_to_device",
    "slice_tensors",
]

_16_BIT = (torch.float16, torch.bfloat16)


class DistributedOperationException(Exception):
    """In debug mode: the tensors of an operation have different shapes on different processes, or the wrong device."""


class CannotPadNestedTensorWarning(UserWarning):
    """pad_across_processes was given a nested tensor, which it returned unchanged."""


def is_torch_tensor(tensor: Any) -> bool:
    """Returns whether the object is a tensor."""
    return isinstance(tensor, torch.Tensor)


def is_tensor_information(tensor_info: Any) -> bool:
    """Returns whether the object is a TensorInformation."""
    return isinstance(tensor_info, TensorInformation)


def is_namedtuple(data: Any) -> bool:
    """Returns whether the object is a namedtuple."""
    return isinstance(data, tuple) and hasattr(data, "_asdict") and hasattr(data, "_fields")


def honor_type(obj: Any, generator: Any) -> Any:
    """Returns the items of `generator` as the type of `obj`: list, tuple or a namedtuple."""
    return sequence_like(obj, generator)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """Returns `data` with `func(leaf, *args, **kwargs)` in place of each leaf that `test_type` accepts.

    Other leaves stay; with `error_on_other_type` they are a TypeError.
    """

    def apply(value: Any) -> Any:
        if test_type(value):
            return func(value, *args, **kwargs)
        if error_on_other_type:
            raise TypeError(
                f"{func.__name__} got a value of type {type(value).__name__}; expected nested lists, tuples and dicts "
                f"of values that {test_type.__name__} accepts"
            )
        return value

    return map_leaves(data, apply)


def send_to_device(
    tensor: Any, device: Any, non_blocking: bool = False, skip_keys: str | list[str] | None = None
) -> Any:
    """Returns nested data with its tensors, and other objects that have `to`, on `device`.

    The values of `skip_keys` in dicts stay where they are.
    """
    skipped = [skip_keys] if isinstance(skip_keys, str) else (skip_keys or ())

    def send(value: Any) -> Any:
        if hasattr(value, "to"):
            try:
                return value.to(device, non_blocking=non_blocking)
            except TypeError:  # An object whose `to` has no such argument.
                return value.to(device)
        if isinstance(value, (tuple, list)):
            return honor_type(value, (send(item) for item in value))
        if isinstance(value, Mapping):
            return mapping_like(value, {key: item if key in skipped else send(item) for key, item in value.items()})
        return value

    return send(tensor)


def get_data_structure(data: Any) -> Any:
    """Returns nested data with a TensorInformation in place of each tensor."""
    return recursively_apply(lambda tensor: TensorInformation(shape=tensor.shape, dtype=tensor.dtype), data)


def get_shape(data: Any) -> Any:
    """Returns nested data with the shape, a list, in place of each tensor."""
    return recursively_apply(lambda tensor: list(tensor.shape), data)


def initialize_tensors(data_structure: Any) -> Any:
    """Returns nested data with an uninitialized CPU tensor in place of each TensorInformation."""
    return recursively_apply(
        lambda info: torch.empty(*info.shape, dtype=info.dtype), data_structure, test_type=is_tensor_information
    )


def find_batch_size(data: Any) -> int:
    """Returns the first dimension of the first tensor. Throws ValueError for empty data, TypeError without a tensor."""
    if isinstance(data, (tuple, list, Mapping)):
        if len(data) == 0:
            raise ValueError(f"an empty {type(data).__name__} has no batch size")
        return find_batch_size(next(iter(data.values())) if isinstance(data, Mapping) else data[0])
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"a {type(data).__name__} has no batch size; expected a tensor")
    if data.dim() == 0:
        raise ValueError("a tensor without dimensions has no batch size")
    return data.shape[0]


def ignorant_find_batch_size(data: Any) -> int | None:
    """Returns find_batch_size(data), or None if the data has no batch size."""
    try:
        return find_batch_size(data)
    except (ValueError, TypeError):
        return None


def listify(data: Any) -> Any:
    """Returns nested data with numbers, or lists of them, in place of tensors."""
    return recursively_apply(lambda tensor: tensor.detach().cpu().tolist(), data)


def slice_tensors(
    data: Any, tensor_slice: slice, process_index: int | None = None, num_processes: int | None = None
) -> Any:
    """Returns nested data with tensor[tensor_slice] in place of each tensor. The other arguments have no meaning."""
    del process_index, num_processes
    return recursively_apply(lambda tensor: tensor[tensor_slice], data)


def concatenate(data: Any, dim: int = 0) -> Any:
    """Concatenates the tensors of several nested values of the same structure. A single value stays as it is."""
    first = data[0]
    if isinstance(first, (tuple, list)):
        return honor_type(first, (concatenate([item[i] for item in data], dim=dim) for i in range(len(first))))
    if isinstance(first, Mapping):
        return mapping_like(first, {key: concatenate([item[key] for item in data], dim=dim) for key in first})
    if isinstance(first, torch.Tensor):
        return torch.cat(data, dim=dim)
    if isinstance(data, (tuple, list)) and len(data) == 1:
        return first
    raise TypeError(f"concatenate got values of type {type(first).__name__}; expected tensors")


def find_device(data: Any) -> torch.device | None:
    """Returns the device of the first tensor; None without a tensor."""
    if isinstance(data, torch.Tensor):
        return data.device
    if isinstance(data, (tuple, list, Mapping)):
        for item in data.values() if isinstance(data, Mapping) else data:
            device = find_device(item)
            if device is not None:
                return device
    return None


def _tensors_of(data: Any, name: str) -> list[torch.Tensor]:
    """Returns all leaves of nested data. Throws TypeError for one that is not a tensor."""
    found: list[torch.Tensor] = []

    def add(tensor: torch.Tensor) -> None:
        found.append(tensor)

    add.__name__ = name
    recursively_apply(add, data, error_on_other_type=True)
    return found


def _all_gather_objects(value: Any, where: str, group: _core.Group | None = None) -> list[Any]:
    """Returns the values of all processes of a group, by default all, in rank order.

    An invalid value is a ConfigError on all of them.
    """
    gathered = _core.all_gather_bytes(group or PartialState().group, _message_of(value, where))
    return [_value_of(message, rank, where) for rank, message in enumerate(gathered)]


def _message_of(value: Any, where: str) -> bytes:
    """Returns b"\\0" and the value, or b"\\1" and an error, so that the other processes do not wait."""
    try:
        return b"\0" + encode(value, where)
    except ConfigError as error:
        return b"\1" + str(error).encode()


def _value_of(message: bytes, rank: int, where: str) -> Any:
    if message[:1] == b"\1":
        raise ConfigError(f"{message[1:].decode()} (process {rank})")
    return decode(message[1:], where)


def _checked(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a collective of tensors: in debug mode it compares shapes and devices first."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            state = PartialState()
            if state.num_processes > 1 and state.debug:
                _check_same(tensor, state, name)
            return function(tensor, *args, **kwargs)

        return wrapper

    return decorate


def _check_same(data: Any, state: Any, name: str) -> None:
    device = find_device(data)
    mine = [get_shape(data), None if device is None else device.type]
    everyone = _all_gather_objects(mine, name)
    shapes = [shape for shape, _ in everyone]
    if any(shape != shapes[0] for shape in shapes):
        raise DistributedOperationException(_difference(name, shapes, "equal ones; try pad_across_processes"))
    wrong = [rank for rank, (_, found) in enumerate(everyone) if found not in (None, state.device.type)]
    if wrong:
        raise DistributedOperationException(
            f"[{name}] process {wrong[0]} has tensors on {everyone[wrong[0]][1]}; expected {state.device.type}; call "
            "send_to_device first"
        )


def _difference(name: str, shapes: list[Any], expected: str) -> str:
    lines = "".join(f"\n  - Process {rank}: {shape}" for rank, shape in enumerate(shapes))
    return (
        f"[{name}] the shapes differ between processes; expected {expected}.\n\n"
        f"Operation: `lockstep.utils.operations.{name}`\nInput shapes:{lines}"
    )


@_checked("gather")
def gather(tensor: Any) -> Any:
    """Returns nested data with each tensor concatenated over all processes along dim 0. One number counts as a row."""
    state = PartialState()
    if state.num_processes == 1:
        return tensor
    _tensors_of(tensor, "gather")
    return recursively_apply(lambda one: state.data_group.all_gather(one.detach().contiguous()), tensor)


def gather_object(object: Any) -> Any:
    """Returns the items of all processes' lists in one list, in rank order. `lockstep._codec` lists the types."""
    if PartialState().num_processes == 1:
        return object
    everyone = _all_gather_objects(object, "gather_object", PartialState().data_group)
    return [item for one in everyone for item in (one if hasattr(one, "__iter__") else [one])]


@_checked("broadcast")
def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Overwrites all tensors of nested data with those of one process, and returns the data."""
    state = PartialState()
    if state.num_processes == 1:
        return tensor
    _check_rank(from_process, state, "broadcast")
    for one in _tensors_of(tensor, "broadcast"):
        target = one.detach()
        received = state.group.broadcast(target.contiguous(), from_process)
        if not target.is_contiguous():
            target.copy_(received)
    return tensor


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Overwrites the items of a list with those of one process, and returns it. The lists have the same length."""
    state = PartialState()
    if state.num_processes == 1:
        return object_list
    _check_rank(from_process, state, "broadcast_object_list")
    mine = b""
    if state.process_index == from_process:
        mine = _message_of(object_list, "broadcast_object_list")
    received = _core.broadcast_bytes(state.group, mine, from_process)
    items = _value_of(received, from_process, "broadcast_object_list")
    if len(items) != len(object_list):
        raise ConfigError(
            f"[broadcast_object_list] the list has {len(object_list)} items; expected {len(items)}, as on process "
            f"{from_process}"
        )
    if state.process_index != from_process:
        object_list[:] = items
    return object_list


def _check_rank(rank: int, state: Any, where: str) -> None:
    if not 0 <= rank < state.num_processes:
        raise ConfigError(f"[{where}] from_process is {rank}; expected 0 to {state.num_processes - 1}")


def copy_tensor_to_devices(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """Returns on every process the tensor of the one that has it. The others pass None."""
    state = PartialState()
    mine = None if tensor is None else [list(tensor.shape), tensor.dtype]
    everyone = _all_gather_objects(mine, "copy_tensor_to_devices")
    owners = [rank for rank, found in enumerate(everyone) if found is not None]
    if len(owners) != 1:
        raise ConfigError(f"[copy_tensor_to_devices] processes {owners} have a tensor; expected exactly one process")
    shape, dtype = everyone[owners[0]]
    if tensor is None:
        tensor = torch.empty(shape, dtype=dtype, device=state.device)
    return state.group.broadcast(tensor.detach().to(state.device, copy=True).contiguous(), owners[0])


@_checked("reduce")
def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Returns nested data with each tensor reduced over all processes: "mean", "sum" or "max".

    "none" returns copies. `scale` exists for TPUs and must be 1.
    """
    state = PartialState()
    ops = {"mean": _core.ReduceOp.SUM, "sum": _core.ReduceOp.SUM, "max": _core.ReduceOp.MAX, "none": None}
    if str(reduction) not in ops:
        raise ConfigError(f"[reduce] reduction is {reduction!r}; expected one of {', '.join(ops)}")
    if scale != 1.0:
        raise ConfigError(f"[reduce] scale is {scale}; expected 1.0; multiply the result instead")
    for one in _tensors_of(tensor, "reduce"):
        if reduction == "mean" and not (one.is_floating_point() or one.is_complex()):
            raise ConfigError(f"[reduce] the mean of {one.dtype} is not of that dtype; use 'sum', or tensor.float()")
    op = ops[str(reduction)]

    def reduce_one(one: torch.Tensor) -> torch.Tensor:
        copy = one.detach().clone(memory_format=torch.contiguous_format)
        if op is None or state.num_processes == 1:
            return copy
        reduced = state.data_group.all_reduce(copy, op)
        return reduced / state.data_group.size if reduction == "mean" else reduced

    return recursively_apply(reduce_one, tensor)


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """Returns nested data with each tensor padded along `dim` to its largest size on all processes.

    A tensor without that dimension stays as it is; so does a nested tensor, with a warning.
    """
    state = PartialState()
    tensors = _tensors_of(tensor, "pad_across_processes")
    if any(one.is_nested for one in tensors):
        warnings.warn("a nested tensor cannot be padded and stays as it is", CannotPadNestedTensorWarning, stacklevel=2)
    if state.num_processes == 1:
        return tensor
    shapes = [None if one.is_nested else list(one.shape) for one in tensors]
    everyone = _all_gather_objects(shapes, "pad_across_processes")
    counts = [len(found) for found in everyone]
    if any(count != counts[0] for count in counts):
        raise ConfigError(f"[pad_across_processes] the processes have {counts} tensors; expected equal numbers")
    largest = []
    for found in zip(*everyone):
        dims = {len(shape) for shape in found if shape is not None}
        if len(dims) > 1:
            raise DistributedOperationException(_difference("pad_across_processes", list(found), "equal dimensions"))
        has_dim = dims and -min(dims) <= dim < min(dims)
        largest.append(max(shape[dim] for shape in found if shape is not None) if has_dim else 0)
    sizes = iter(largest)
    return recursively_apply(lambda one: _pad(one, dim, next(sizes), pad_index, pad_first), tensor)


def _pad(tensor: torch.Tensor, dim: int, size: int, pad_index: float, pad_first: bool) -> torch.Tensor:
    if tensor.is_nested or not -tensor.dim() <= dim < tensor.dim() or tensor.shape[dim] == size:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = size
    padded = tensor.new_full(shape, pad_index)
    begin = size - tensor.shape[dim] if pad_first else 0
    padded.narrow(dim, begin, tensor.shape[dim]).copy_(tensor)
    return padded


def pad_input_tensors(tensor: Any, batch_size: int, num_processes: int, dim: int = 0) -> Any:
    """Returns nested data with zero rows added to each tensor, until `num_processes` divides its rows.

    `batch_size` is the number of rows.
    """
    missing = -batch_size % num_processes

    def pad(one: torch.Tensor) -> torch.Tensor:
        return one if missing == 0 else _pad(one, dim, batch_size + missing, 0, False)

    return recursively_apply(pad, tensor, error_on_other_type=True)


def convert_to_fp32(tensor: Any) -> Any:
    """Returns nested data with float16 and bfloat16 tensors converted to float32."""

    def is_16_bit(value: Any) -> bool:
        return hasattr(value, "dtype") and value.dtype in _16_BIT

    return recursively_apply(lambda one: one.float(), tensor, test_type=is_16_bit)


class ConvertOutputsToFp32:
    """Wraps a model's forward: its float16 and bfloat16 results are converted to float32. Cannot be pickled."""

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        self.model_forward = model_forward
        update_wrapper(self, model_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return convert_to_fp32(self.model_forward(*args, **kwargs))

    def __getstate__(self) -> dict[str, Any]:
        raise pickle.PicklingError(
            "a prepared model with mixed precision cannot be pickled; use accelerator.unwrap_model(model)"
        )


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls ConvertOutputsToFp32(model_forward), which is its `__wrapped__`."""
    converted = ConvertOutputsToFp32(model_forward)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return converted(*args, **kwargs)

    forward.__wrapped__ = converted  # type: ignore[attr-defined]  # A function's own attribute.
    return forward


@contextmanager
def GatheredParameters(  # noqa: N802
    params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True
) -> Iterator[None]:
    """Runs a block in which parameters are complete. Throws ConfigError under ZeRO stage 3, where they are sharded."""
    del params, modifier_rank, fwd_module
    plugin = AcceleratorState().deepspeed_plugin if AcceleratorState._shared_state else None
    if enabled and plugin is not None and plugin.zero_stage == 3 and PartialState().num_processes > 1:
        raise ConfigError(
            "[GatheredParameters] parameters of ZeRO stage 3 cannot be gathered by a context manager; use "
            "accelerator.get_state_dict(model) to read them"
        )
    yield
