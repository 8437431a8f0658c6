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
import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from ._core import ConfigError

__all__ = ["decode", "encode", "flatten", "unflatten"]

_TAG = "$"  # The key of the type's name. Every JSON object that `flatten` returns has it.
_MAX_JSON_INT = 2**63 - 1
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_NUMPY_KINDS = "biufcSUMm"


def encode(value: Any, where: str = "encode") -> bytes:
    """Returns `value` as bytes for `decode`. `where` names the caller in messages."""
    json_value, tensors = flatten(value, where)
    blobs = [_bytes_of(tensor) for tensor in tensors.values()]
    table = [[_name_of(tensor.dtype), list(tensor.shape), len(blob)] for tensor, blob in zip(tensors.values(), blobs)]
    header = json.dumps([json_value, table], separators=(",", ":")).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *blobs])


def decode(data: bytes, where: str = "decode") -> Any:
    """Returns the value that `encode` was given. Throws ConfigError for truncated or unknown data."""
    begin = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or len(data) < begin:
        raise ConfigError(f"[{where}] the data has {len(data)} bytes, expected at least {max(begin, 8)}")
    json_value, table = json.loads(data[8:begin])
    if len(data) != begin + sum(size for _, _, size in table):
        raise ConfigError(
            f"[{where}] the data has {len(data)} bytes, expected {begin + sum(size for _, _, size in table)}"
        )
    tensors = {}
    for index, (dtype, shape, size) in enumerate(table):
        bytes_of_tensor = torch.frombuffer(bytearray(data[begin : begin + size]), dtype=torch.uint8)
        tensors[str(index)] = bytes_of_tensor.view(_DTYPES[dtype]).reshape(shape)
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
    """Returns the value that `flatten` was given. The tensors are those of `tensors`, not copies."""
    if isinstance(json_value, list):
        return [unflatten(item, tensors, where) for item in json_value]
    if not isinstance(json_value, dict):
        return json_value
    tag = json_value.get(_TAG)
    if tag not in _READERS:
        raise ConfigError(f"[{where}] the value has the unknown type {tag!r}; it may come from a newer version")
    return _READERS[tag](json_value, tensors, where)


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
            return {_TAG: "path", "v": str(value)}
        if isinstance(value, (dict, UserDict, tuple)) or type(value) in (list, set, frozenset, slice, torch.Size):
            return self._write_container(value, path)
        raise self._refusal(value, path)

    def _write_scalar(self, value: Any) -> Any:
        if type(value) is int and not -_MAX_JSON_INT - 1 <= value <= _MAX_JSON_INT:
            return {_TAG: "int", "v": hex(value)}
        if type(value) is float and not math.isfinite(value):
            return {_TAG: "float", "v": str(value)}
        if type(value) is str:
            try:
                value.encode()
            except UnicodeEncodeError:  # Half of a surrogate pair, which JSON files cannot contain.
                return {_TAG: "str", "v": value.encode("utf-8", "surrogatepass").hex()}
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
            return {_TAG: "dict", "v": self._write_pairs(value, path)}
        if isinstance(value, UserDict):
            return {_TAG: "userdict", "class": _place_of(type(value)), "v": self._write_pairs(value, path)}
        if type(value) is slice:
            return {_TAG: "slice", "v": [self.write(part, path) for part in (value.start, value.stop, value.step)]}
        items = [self.write(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if type(value) is list:
            return items
        if type(value) in (tuple, set, frozenset, torch.Size):
            return {_TAG: type(value).__name__, "v": items}
        if _is_namedtuple(value):
            return {_TAG: "namedtuple", "class": _place_of(type(value)), "v": items}
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
            return {_TAG: "empty_tensor", "dtype": _name_of(plain.dtype), "shape": list(plain.shape)}
        if plain.is_complex():
            return {_TAG: "complex_tensor", "v": self._add(torch.view_as_real(plain).contiguous())}
        return {_TAG: "tensor", "v": self._add(plain.contiguous())}

    def _write_array(self, value: numpy.ndarray, path: str) -> Any:
        self._check_numpy(value.dtype, value, path)
        written = {_TAG: "ndarray", "dtype": value.dtype.str, "shape": list(value.shape)}
        if value.nbytes != 0:
            written["v"] = self._add(torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8))
        return written

    def _write_numpy_scalar(self, value: numpy.generic, path: str) -> Any:
        self._check_numpy(value.dtype, value, path)
        return {_TAG: "numpy_scalar", "dtype": value.dtype.str, "v": value.tobytes().hex()}

    def _check_numpy(self, dtype: numpy.dtype, value: Any, path: str) -> None:
        if dtype.kind not in _NUMPY_KINDS:
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
    complex: lambda value: {_TAG: "complex", "v": [str(value.real), str(value.imag)]},
    bytes: lambda value: {_TAG: "bytes", "v": base64.b64encode(value).decode()},
    bytearray: lambda value: {_TAG: "bytearray", "v": base64.b64encode(value).decode()},
    range: lambda value: {_TAG: "range", "v": [str(value.start), str(value.stop), str(value.step)]},
    torch.dtype: lambda value: {_TAG: "dtype", "v": _name_of(value)},
    torch.device: lambda value: {_TAG: "device", "v": str(value)},
    datetime.datetime: lambda value: {_TAG: "datetime", "v": value.isoformat()},
    datetime.date: lambda value: {_TAG: "date", "v": value.isoformat()},
    datetime.time: lambda value: {_TAG: "time", "v": value.isoformat()},
    datetime.timedelta: lambda value: {_TAG: "timedelta", "v": [value.days, value.seconds, value.microseconds]},
}


def _place_of(cls: type) -> list[str]:
    return [cls.__module__, cls.__qualname__]


def _class_at(place: list[str]) -> Any:
    """Returns the class of an imported module; None if there is none."""
    found: Any = sys.modules.get(place[0])
    for part in place[1].split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _read_userdict(written: dict, tensors: dict[str, torch.Tensor], where: str) -> Any:
    cls = _class_at(written["class"])
    if cls is None or not issubclass(cls, UserDict):
        raise ConfigError(
            f"[{where}] the value has a {'.'.join(written['class'])}, which this program does not define as a "
            "UserDict; import its module first"
        )
    content = dict(unflatten(written["v"], tensors, where))
    try:
        value = cls(content)
    except TypeError:
        value = None
    if value is None or [(key, id(item)) for key, item in value.data.items()] != [
        (key, id(item)) for key, item in content.items()
    ]:
        raise ConfigError(
            f"[{where}] the value has a {'.'.join(written['class'])}, whose constructor does not take a dict of its "
            "content, so it cannot be made again; send a dict"
        )
    return value


def _read_namedtuple(written: dict, tensors: dict[str, torch.Tensor], where: str) -> Any:
    module, name = written["class"]
    found = _class_at(written["class"])
    values = unflatten(written["v"], tensors, where)
    fits = found is not None and issubclass(found, tuple) and hasattr(found, "_make")
    if not fits or len(found._fields) != len(values):
        raise ConfigError(
            f"[{where}] the value has a {module}.{name} of {len(values)} fields, which this program does not define; "
            "import its module first"
        )
    return found._make(values)


def _read_array(written: dict, tensors: dict[str, torch.Tensor], where: str) -> numpy.ndarray:
    del where
    content = tensors[written["v"]].cpu().numpy().tobytes() if "v" in written else b""
    return numpy.frombuffer(bytearray(content), dtype=numpy.dtype(written["dtype"])).reshape(written["shape"])


def _items(build: Callable[[list], Any]) -> Callable[[dict, dict, str], Any]:
    return lambda written, tensors, where: build(unflatten(written["v"], tensors, where))


def _text(build: Callable[[Any], Any]) -> Callable[[dict, dict, str], Any]:
    return lambda written, tensors, where: build(written["v"])


_READERS: dict[str, Callable[[dict, dict, str], Any]] = {
    "int": _text(lambda text: int(text, 16)),
    "float": _text(float),
    "complex": _text(lambda parts: complex(float(parts[0]), float(parts[1]))),
    "str": _text(lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass")),
    "bytes": _text(base64.b64decode),
    "bytearray": _text(lambda text: bytearray(base64.b64decode(text))),
    "range": _text(lambda parts: range(*map(int, parts))),
    "path": _text(pathlib.Path),
    "dtype": _text(lambda name: _DTYPES[name]),
    "device": _text(torch.device),
    "datetime": _text(datetime.datetime.fromisoformat),
    "date": _text(datetime.date.fromisoformat),
    "time": _text(datetime.time.fromisoformat),
    "timedelta": _text(lambda parts: datetime.timedelta(*parts)),
    "tuple": _items(tuple),
    "set": _items(set),
    "frozenset": _items(frozenset),
    "slice": _items(lambda parts: slice(*parts)),
    "Size": _items(torch.Size),
    "dict": _items(lambda pairs: {key: value for key, value in pairs}),
    "namedtuple": _read_namedtuple,
    "userdict": _read_userdict,
    "ndarray": _read_array,
    "numpy_scalar": lambda written, tensors, where: numpy.frombuffer(
        bytes.fromhex(written["v"]), dtype=numpy.dtype(written["dtype"])
    )[0],
    "tensor": lambda written, tensors, where: tensors[written["v"]],
    "complex_tensor": lambda written, tensors, where: torch.view_as_complex(tensors[written["v"]]),
    "empty_tensor": lambda written, tensors, where: torch.empty(written["shape"], dtype=_DTYPES[written["dtype"]]),
}
