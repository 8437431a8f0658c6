# SPDX-License-Identifier: Apache-2.0
"""The reader of values that `_codec.flatten` has written. Damaged values are a DamagedValue, which names their place."""

from __future__ import annotations

import base64
import datetime
import math
import pathlib
import sys
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy
import torch

TAG = "$"  # The key of the type's name. Every JSON object that `flatten` returns has it.
DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
NUMPY_KINDS = "biufcSUMm"

# The exceptions of constructors that get a damaged value.
_REFUSALS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
_SHOWN = 60  # The characters of a damaged value in a message.


class DamagedValue(Exception):
    """A value that `flatten` does not write. `path` is its place in the decoded value, such as "['lr'][0]"."""

    def __init__(self, path: str, got: str, expected: str) -> None:
        super().__init__(f"{got}; expected {expected}")
        self.path = path
        self.got = got
        self.expected = expected


def shown(value: Any) -> str:
    """Returns the type of a value and the beginning of its text, for messages."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if value is None:
        return "None"
    try:
        text = repr(value)
    except RecursionError:
        text = "..."
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    kind = {bool: "the flag", int: "the number", float: "the number", str: "the text"}.get(type(value))
    return f"{kind or f'a {type(value).__name__}'} {text}"


def read(json_value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Returns the value. Its tensors are those of `tensors`. Throws DamagedValue."""
    try:
        return _Reader(tensors).read(json_value, "")
    except RecursionError:
        raise DamagedValue("", "nested too deeply", f"at most {sys.getrecursionlimit()} levels") from None


class _Reader:
    """Reads one value."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def read(self, written: Any, path: str) -> Any:
        if isinstance(written, list):
            return self.items(written, path)
        if not isinstance(written, dict):
            return written
        tag = written.get(TAG)
        if not isinstance(tag, str) or tag not in _READERS:
            raise DamagedValue(
                path, f"of the unknown type {tag!r}", "a type of this version of Lockstep; it may come from a newer one"
            )
        build, expected = _READERS[tag]
        try:
            return build(self, written, path)
        except _REFUSALS as error:
            if isinstance(error, RecursionError):
                raise
            rest = {key: value for key, value in written.items() if key != TAG}
            content = rest["v"] if list(rest) == ["v"] else rest
            raise DamagedValue(path, f"{shown(content)} of the type {tag!r}", expected) from error

    def items(self, written: list[Any], path: str) -> list[Any]:
        return [self.read(item, f"{path}[{index}]") for index, item in enumerate(written)]

    def content(self, written: dict[str, Any], path: str) -> list[Any]:
        """Returns the items of a container."""
        items = written["v"]
        if not isinstance(items, list):
            raise TypeError
        return self.items(items, path)

    def pairs(self, written: dict[str, Any], path: str) -> dict[Any, Any]:
        """Returns the items of a dict."""
        result = {}
        if not isinstance(written["v"], list):
            raise TypeError
        for index, pair in enumerate(written["v"]):
            if not isinstance(pair, list) or len(pair) != 2:
                raise DamagedValue(f"{path}<item {index}>", shown(pair), "a list of a key and a value")
            key = self.read(pair[0], f"{path}<key {index}>")
            try:
                hash(key)
            except TypeError:
                raise DamagedValue(f"{path}<key {index}>", shown(key), "a key that a dict can have") from None
            result[key] = self.read(pair[1], f"{path}[{key!r}]")
        return result

    def tensor(self, written: dict[str, Any], path: str) -> torch.Tensor:
        name = written["v"]
        if not isinstance(name, str) or name not in self.tensors:
            raise DamagedValue(
                path, f"the tensor named {name!r}", f"one of the {len(self.tensors)} tensors that were saved with it"
            )
        return self.tensors[name]


def _text(written: dict[str, Any]) -> str:
    if not isinstance(written["v"], str):
        raise TypeError
    return written["v"]


def _from_text(build: Callable[[str], Any]) -> Callable[[_Reader, dict[str, Any], str], Any]:
    return lambda reader, written, path: build(_text(written))


def _non_finite(text: str) -> float:
    value = float(text)
    if math.isfinite(value):
        raise ValueError
    return value


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _range(reader: _Reader, written: dict[str, Any], path: str) -> range:
    begin, end, step = map(int, written["v"])
    return range(begin, end, step)


def _complex(reader: _Reader, written: dict[str, Any], path: str) -> complex:
    real, imaginary = map(float, written["v"])
    return complex(real, imaginary)


def _timedelta(reader: _Reader, written: dict[str, Any], path: str) -> datetime.timedelta:
    days, seconds, microseconds = written["v"]
    return datetime.timedelta(days, seconds, microseconds)


def _slice(reader: _Reader, written: dict[str, Any], path: str) -> slice:
    begin, end, step = reader.content(written, path)
    return slice(begin, end, step)


def _size(reader: _Reader, written: dict[str, Any], path: str) -> torch.Size:
    return torch.Size(_shape(written["v"]))


def _shape(sizes: Any) -> list[int]:
    if not isinstance(sizes, list) or any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError
    return sizes


def _class_at(place: Any) -> tuple[str, Any]:
    """Returns the name of a class, and the class of an imported module; None if there is none."""
    module, name = place
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}", found if isinstance(found, type) else None


def _userdict(reader: _Reader, written: dict[str, Any], path: str) -> Any:
    name, cls = _class_at(written["class"])
    if cls is None or not issubclass(cls, UserDict):
        raise DamagedValue(
            path,
            f"of the class {name}, which this program does not define as a UserDict",
            "a class that is imported; import its module first",
        )
    content = reader.pairs(written, path)
    try:
        value = cls(content)
    except TypeError:
        value = None
    if value is None or [(key, id(item)) for key, item in value.data.items()] != [
        (key, id(item)) for key, item in content.items()
    ]:
        raise DamagedValue(
            path,
            f"of the class {name}, whose constructor does not take a dict of its content, so it cannot be made again",
            "a dict",
        )
    return value


def _namedtuple(reader: _Reader, written: dict[str, Any], path: str) -> Any:
    name, cls = _class_at(written["class"])
    values = reader.content(written, path)
    fits: Any = cls if cls is not None and issubclass(cls, tuple) and hasattr(cls, "_make") else None
    if fits is None or len(fits._fields) != len(values):
        raise DamagedValue(
            path,
            f"of the class {name} with {len(values)} fields, which this program does not define",
            "a namedtuple that is imported; import its module first",
        )
    return fits._make(values)


def _numpy_dtype(written: dict[str, Any]) -> numpy.dtype:
    dtype = numpy.dtype(_text({"v": written["dtype"]}))
    if dtype.kind not in NUMPY_KINDS:
        raise ValueError
    return dtype


def _array(reader: _Reader, written: dict[str, Any], path: str) -> numpy.ndarray:
    content = reader.tensor(written, path).cpu().numpy().tobytes() if "v" in written else b""
    return numpy.frombuffer(bytearray(content), dtype=_numpy_dtype(written)).reshape(_shape(written["shape"]))


def _numpy_scalar(reader: _Reader, written: dict[str, Any], path: str) -> Any:
    values = numpy.frombuffer(bytes.fromhex(_text(written)), dtype=_numpy_dtype(written))
    if len(values) != 1:
        raise ValueError
    return values[0]


def _empty_tensor(reader: _Reader, written: dict[str, Any], path: str) -> torch.Tensor:
    shape = _shape(written["shape"])
    if 0 not in shape:
        raise ValueError
    return torch.empty(shape, dtype=DTYPES[written["dtype"]])


# For each type the function that reads it, and the expectation in messages.
_READERS: dict[str, tuple[Callable[[_Reader, dict[str, Any], str], Any], str]] = {
    "int": (_from_text(lambda text: int(text, 16)), "hexadecimal text"),
    "float": (_from_text(_non_finite), "'inf', '-inf' or 'nan'"),
    "complex": (_complex, "the texts of two numbers"),
    "str": (_from_text(lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass")), "hexadecimal bytes of text"),
    "bytes": (_from_text(_base64), "text in base64"),
    "bytearray": (_from_text(lambda text: bytearray(_base64(text))), "text in base64"),
    "range": (_range, "the texts of three integers"),
    "path": (_from_text(pathlib.Path), "text"),
    "dtype": (_from_text(lambda name: DTYPES[name]), "the name of a dtype of torch"),
    "device": (_from_text(torch.device), "a device of torch such as 'cpu' or 'cuda:0'"),
    "datetime": (_from_text(datetime.datetime.fromisoformat), "a date and time in ISO format"),
    "date": (_from_text(datetime.date.fromisoformat), "a date in ISO format"),
    "time": (_from_text(datetime.time.fromisoformat), "a time in ISO format"),
    "timedelta": (_timedelta, "the numbers of days, seconds and microseconds"),
    "tuple": (lambda reader, written, path: tuple(reader.content(written, path)), "a list"),
    "set": (lambda reader, written, path: set(reader.content(written, path)), "a list of hashable values"),
    "frozenset": (lambda reader, written, path: frozenset(reader.content(written, path)), "a list of hashable values"),
    "slice": (_slice, "a list of three values"),
    "Size": (_size, "a list of integers from 0 on"),
    "dict": (_Reader.pairs, "a list of pairs"),
    "namedtuple": (_namedtuple, "the module and the name of a class, and a list of values"),
    "userdict": (_userdict, "the module and the name of a class, and a list of pairs"),
    "ndarray": (_array, "the name of a tensor, and a dtype and shape of numpy that fit it"),
    "numpy_scalar": (_numpy_scalar, "hexadecimal bytes of one value, and its dtype"),
    "tensor": (_Reader.tensor, "the name of a tensor"),
    "complex_tensor": (
        lambda reader, written, path: torch.view_as_complex(reader.tensor(written, path)),
        "the name of a floating-point tensor whose last dimension is 2",
    ),
    "empty_tensor": (_empty_tensor, "a dtype of torch, and a shape with a 0"),
}
