# SPDX-License-Identifier: Apache-2.0
"""Python's files of a checkpoint: a JSON file, and a safetensors file with the tensors that it refers to.

A file whose checksum is right may still have other values than Lockstep writes. `Part` checks them before anything of
the checkpoint is applied: its errors name the file, the place in it, the value and the expectation.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from . import _core, _decoder
from ._codec import flatten
from ._decoder import DamagedValue, shown

_REMEDY = "load another checkpoint"


def add_part(state: Any, stem: str, value: Any) -> None:
    """Adds the files `stem`.json and, for tensors, `stem`.safetensors to a checkpoint."""
    values, tensors = flatten(value)
    state.add_json(f"{stem}.json", values)
    if tensors:
        state.add_tensors(f"{stem}.safetensors", tensors)


def read_part(state: Any, stem: str, where: str) -> Part | None:
    """Returns the value of such files, None if the checkpoint has none. `where` names the caller in messages."""
    if not state.has_file(f"{stem}.json"):
        return None
    return decoded_part(state.json(f"{stem}.json"), _tensors_of(state, stem), f"{stem}.json", where)


def _tensors_of(state: Any, stem: str) -> dict[str, torch.Tensor]:
    return state.tensors(f"{stem}.safetensors") if state.has_file(f"{stem}.safetensors") else {}


def decoded_part(json_value: Any, tensors: dict[str, torch.Tensor], file: str, where: str) -> Part:
    """Returns the value that `flatten` was given. Throws CheckpointError for one that it does not write."""
    try:
        return Part(_decoder.read(json_value, tensors), file, where)
    except DamagedValue as error:
        raise Part(None, file, where, error.path).error(error.expected, error.got) from error


def check_object(state: Any, stems: list[str], where: str, key: str | None = None) -> Part | None:
    """Decodes the state of an object that a program registered, which the C++ library reads again and applies.

    The first of `stems` that the checkpoint has is read. `key`: the item of the JSON file that has the state.
    """
    for stem in stems:
        if not state.has_file(f"{stem}.json"):
            continue
        values = state.json(f"{stem}.json")
        if key is not None:
            if not isinstance(values, dict) or key not in values:
                return None  # The C++ library names what the file has instead.
            values = values[key]
        return decoded_part(values, _tensors_of(state, stem), f"{stem}.json", where)
    return None


class Part:
    """A value of a checkpoint's file, with its place for messages."""

    def __init__(self, value: Any, file: str, where: str, path: str = "") -> None:
        self.value = value
        self._file = file
        self._where = where
        self._path = path

    def error(self, expected: str, got: str | None = None, remedy: str = _REMEDY) -> _core.CheckpointError:
        """Returns the error of a value that is not as expected."""
        got = shown(self.value) if got is None else got
        return _core.CheckpointError(
            f"[{self._where}] {self._file}: the value{self._path} is {got}; expected {expected}; {remedy}"
        )

    def expect(self, kinds: type | tuple[type, ...], expected: str) -> Any:
        """Returns the value. Throws CheckpointError for one of another type; bool is no int here."""
        is_flag = isinstance(self.value, bool) and bool not in (kinds if isinstance(kinds, tuple) else (kinds,))
        if is_flag or not isinstance(self.value, kinds):
            raise self.error(expected)
        return self.value

    def has(self, key: str) -> bool:
        return key in self.expect(dict, "a dict")

    def item(self, key: str) -> Part:
        """Returns the item of a dict. Throws CheckpointError if there is none."""
        value = self.expect(dict, f"a dict with the key {key!r}")
        if key not in value:
            raise self.error(f"the key {key!r}", f"a dict with the keys {shown(list(value)).removeprefix('a list ')}")
        return Part(value[key], self._file, self._where, f"{self._path}[{key!r}]")

    def items(self) -> Iterator[Part]:
        """Returns the items of a list."""
        for index, value in enumerate(self.expect((list, tuple), "a list")):
            yield Part(value, self._file, self._where, f"{self._path}[{index}]")


def check_like(saved: Part, own: Any) -> None:
    """Throws CheckpointError for the state of a scheduler whose values have other types than those of `own`.

    `own` is the state that the scheduler has now. Keys that only one of both has are not compared, since another
    version of a scheduler may have others. None fits everything.
    """
    if own is None or saved.value is None:
        return
    if isinstance(own, dict):
        for key in saved.expect(dict, "a dict"):
            if isinstance(key, str) and key in own:
                check_like(saved.item(key), own[key])
        for name in ("base_lrs", "_last_lr"):  # torch's schedulers have them.
            rates = saved.value.get(name)
            if isinstance(own.get(name), list) and isinstance(rates, list) and len(rates) != len(own[name]):
                raise saved.item(name).error(f"{len(own[name])} values, one for each parameter group")
    elif isinstance(own, (list, tuple)):
        numbers = bool(own) and all(_is_number(item) for item in own)
        for item in saved.items():
            if numbers:
                _expect_number(item)
    elif _is_number(own):
        _expect_number(saved)
    elif isinstance(own, str):
        saved.expect(str, "text")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _expect_number(part: Part) -> None:
    if not _is_number(part.value):
        raise part.error("a number")
