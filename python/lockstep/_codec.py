# SPDX-License-Identifier: Apache-2.0
"""Conversion of Python values to JSON and tensors, for checkpoints and object collectives.

The conversion never runs code that a file or another rank names, as pickle would. It accepts these types:

- None, bool, int of any size, float with inf and nan, complex, str, bytes, bytearray;
- list, tuple, set, frozenset, range, slice, and dict with keys of these types, in order. OrderedDict, defaultdict and
  other dict classes become dict. A namedtuple, and a UserDict such as transformers' BatchEncoding, keep their class,
  which the reader must have imported, and which is made of the items;
- torch.Tensor of any dtype, without requires_grad. `decode` returns it on the CPU. torch.Size, dtype and device;
- numpy arrays and scalars, except arrays of objects;
- datetime, date, time and timedelta. A time zone becomes its offset from UTC. pathlib paths.

All other types are a ConfigError that names the place in the value and its type.
"""

from __future__ import annotations

import base64
import datetime
import enum
import json
import math
import pathlib
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from . import _decoder
from ._core import ConfigError
from ._decoder import DTYPES, TAG, DamagedValue

__all__ = ["decode", "encode", "flatten", "unflatten"]

_MAX_JSON_INT = 2**63 - 1


def encode(value: Any, where: str = "encode") -> bytes:
    """Returns `value` as bytes for `decode`. `where` names the caller in messages."""
    json_value, tensors = flatten(value, where)
    blobs = [_bytes_of(tensor) for tensor in tensors.values()]
    table = [[_name_of(tensor.dtype), list(tensor.shape), len(blob)] for tensor, blob in zip(tensors.values(), blobs)]
    header = json.dumps([json_value, table], separators=(",", ":")).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *blobs])


def decode(data: bytes, where: str = "decode") -> Any:
    """Returns the value that `encode` was given. Throws ConfigError for truncated, damaged or unknown data."""
    begin = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or len(data) < begin:
        raise ConfigError(f"[{where}] the data has {len(data)} bytes, expected at least {max(begin, 8)}")
    try:
        json_value, table = json.loads(data[8:begin])
        sizes = [int(size) for _, _, size in table]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"[{where}] the data is damaged; expected the result of encode()") from error
    if len(data) != begin + sum(sizes):
        raise ConfigError(f"[{where}] the data has {len(data)} bytes, expected {begin + sum(sizes)}")
    tensors = {}
    for index, (dtype, shape, size) in enumerate(table):
        bytes_of_tensor = torch.frombuffer(bytearray(data[begin : begin + size]), dtype=torch.uint8)
        tensors[str(index)] = bytes_of_tensor.view(DTYPES[dtype]).reshape(shape)
        begin += size
    return unflatten(json_value, tensors, where)


def flatten(value: Any, where: str = "flatten") -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns `value` as (JSON value, tensors by name).

    The JSON value consists of None, bool, int of 64 bits, finite float, str, list and dict with keys of type str. It
    does not depend on the order of a dict's keys. The tensors are detached and contiguous, have at least one element,
    are not complex, and share memory with those in `value` where possible. Their names are "0", "1", ...
    """
    writer = _Writer(where)
    return writer.write(value, ""), writer.tensors


def unflatten(json_value: Any, tensors: dict[str, torch.Tensor], where: str = "unflatten") -> Any:
    """Returns the value that `flatten` was given. The tensors are those of `tensors`, not copies.

    Throws ConfigError, with the place in the value, for one that `flatten` does not write.
    """
    try:
        return _decoder.read(json_value, tensors)
    except DamagedValue as error:
        raise ConfigError(f"[{where}] the value{error.path} is {error}") from error


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _is_namedtuple(value: tuple) -> bool:
    return hasattr(value, "_fields") and hasattr(value, "_asdict")


class _Writer:
    """Converts one value. Collects its tensors in `tensors`."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.tensors: dict[str, torch.Tensor] = {}
        self._open: set[int] = set()  # The containers around the current value, to find cycles.

    def write(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, str, int, float):
            return self._write_scalar(value)
        writer = _WRITERS.get(type(value))
        if writer is not None:
            return writer(value)
        if isinstance(value, torch.Tensor):
            return self._write_tensor(value, path)
        if isinstance(value, numpy.ndarray):
            return self._write_array(value, path)
        if isinstance(value, numpy.generic):
            return self._write_numpy_scalar(value, path)
        if isinstance(value, pathlib.PurePath):
            return {TAG: "path", "v": str(value)}
        if isinstance(value, (dict, UserDict, tuple)) or type(value) in (list, set, frozenset, slice, torch.Size):
            return self._write_container(value, path)
        raise self._refusal(value, path)

    def _write_scalar(self, value: Any) -> Any:
        if type(value) is int and not -_MAX_JSON_INT - 1 <= value <= _MAX_JSON_INT:
            return {TAG: "int", "v": hex(value)}
        if type(value) is float and not math.isfinite(value):
            return {TAG: "float", "v": str(value)}
        if type(value) is str:
            try:
                value.encode()
            except UnicodeEncodeError:  # Half of a surrogate pair, which JSON files cannot contain.
                return {TAG: "str", "v": value.encode("utf-8", "surrogatepass").hex()}
        return value

    def _write_container(self, value: Any, path: str) -> Any:
        if id(value) in self._open:
            raise ConfigError(f"[{self.where}] the value{path} contains itself; expected a value without cycles")
        self._open.add(id(value))
        try:
            return self._write_items(value, path)
        finally:
            self._open.remove(id(value))

    def _write_items(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {TAG: "dict", "v": self._write_pairs(value, path)}
        if isinstance(value, UserDict):
            return {TAG: "userdict", "class": _place_of(type(value)), "v": self._write_pairs(value, path)}
        if type(value) is slice:
            return {TAG: "slice", "v": [self.write(part, path) for part in (value.start, value.stop, value.step)]}
        items = [self.write(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if type(value) is list:
            return items
        if type(value) in (tuple, set, frozenset, torch.Size):
            return {TAG: type(value).__name__, "v": items}
        if _is_namedtuple(value):
            return {TAG: "namedtuple", "class": _place_of(type(value)), "v": items}
        raise self._refusal(value, path)

    def _write_pairs(self, value: Mapping[Any, Any], path: str) -> list[list[Any]]:
        return [
            [self.write(key, f"{path}<key {index}>"), self.write(item, f"{path}[{key!r}]")]
            for index, (key, item) in enumerate(value.items())
        ]

    def _add(self, tensor: torch.Tensor) -> str:
        name = str(len(self.tensors))
        self.tensors[name] = tensor
        return name

    def _write_tensor(self, value: torch.Tensor, path: str) -> Any:
        has_plain_values = value.layout == torch.strided and not value.is_quantized and not value.is_nested
        if (
            value.is_meta
            or not has_plain_values
            or type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        ):
            kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
            raise ConfigError(
                f"[{self.where}] the value{path} is a {type(value).__name__} of layout {kind}; expected a dense tensor "
                "with values; try .to_dense(), .dequantize() or .full_tensor()"
            )
        plain = value.detach().resolve_conj().resolve_neg()
        if plain.numel() == 0:
            return {TAG: "empty_tensor", "dtype": _name_of(plain.dtype), "shape": list(plain.shape)}
        if plain.is_complex():
            return {TAG: "complex_tensor", "v": self._add(torch.view_as_real(plain).contiguous())}
        return {TAG: "tensor", "v": self._add(plain.contiguous())}

    def _write_array(self, value: numpy.ndarray, path: str) -> Any:
        self._check_numpy(value.dtype, value, path)
        written = {TAG: "ndarray", "dtype": value.dtype.str, "shape": list(value.shape)}
        if value.nbytes != 0:
            written["v"] = self._add(torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8))
        return written

    def _write_numpy_scalar(self, value: numpy.generic, path: str) -> Any:
        self._check_numpy(value.dtype, value, path)
        return {TAG: "numpy_scalar", "dtype": value.dtype.str, "v": value.tobytes().hex()}

    def _check_numpy(self, dtype: numpy.dtype, value: Any, path: str) -> None:
        if dtype.kind not in _decoder.NUMPY_KINDS:
            raise ConfigError(
                f"[{self.where}] the value{path} is a numpy {type(value).__name__} of dtype {dtype}; expected numbers, "
                "text or times; try .tolist()"
            )

    def _refusal(self, value: Any, path: str) -> ConfigError:
        cls = type(value)
        hint = "convert it to a dict of the values that it needs"
        if isinstance(value, enum.Enum):
            hint = "use its .value"
        elif isinstance(value, (int, float, str, bytes)):
            hint = f"convert it to {next(base.__name__ for base in cls.__mro__ if base.__module__ == 'builtins')}"
        elif isinstance(value, (list, set, tuple)):
            hint = f"convert it with {'list' if isinstance(value, list) else 'tuple'}(value)"
        elif hasattr(value, "state_dict"):
            hint = "use its state_dict()"
        elif hasattr(value, "tolist"):
            hint = "use its .tolist()"
        return ConfigError(
            f"[{self.where}] the value{path} is of type {cls.__module__}.{cls.__qualname__}; expected None, a number, "
            f"text, bytes, a tensor, a numpy array, a time, or a list, tuple, set or dict of these; {hint}"
        )


_WRITERS: dict[type, Callable[[Any], Any]] = {
    complex: lambda value: {TAG: "complex", "v": [str(value.real), str(value.imag)]},
    bytes: lambda value: {TAG: "bytes", "v": base64.b64encode(value).decode()},
    bytearray: lambda value: {TAG: "bytearray", "v": base64.b64encode(value).decode()},
    range: lambda value: {TAG: "range", "v": [str(value.start), str(value.stop), str(value.step)]},
    torch.dtype: lambda value: {TAG: "dtype", "v": _name_of(value)},
    torch.device: lambda value: {TAG: "device", "v": str(value)},
    datetime.datetime: lambda value: {TAG: "datetime", "v": value.isoformat()},
    datetime.date: lambda value: {TAG: "date", "v": value.isoformat()},
    datetime.time: lambda value: {TAG: "time", "v": value.isoformat()},
    datetime.timedelta: lambda value: {TAG: "timedelta", "v": [value.days, value.seconds, value.microseconds]},
}


def _place_of(cls: type) -> list[str]:
    return [cls.__module__, cls.__qualname__]
