# SPDX-License-Identifier: Apache-2.0
"""Files with contents that Lockstep does not write, whose checksums are right, and a pickle that runs code."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

_READER = Path(__file__).resolve().parents[2] / "scripts" / "read_checkpoint.py"


def _reader() -> Any:
    loader = importlib.machinery.SourceFileLoader("read_checkpoint", str(_READER))
    spec = importlib.util.spec_from_loader("read_checkpoint", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


crc32c = _reader().crc32c


class MakesFolder:
    """An object whose pickle calls `make(folder)` when it is read."""

    def __init__(self, folder: Path, make: Callable[[Path], None] = Path.mkdir) -> None:
        self._folder = folder
        self._make = make

    def __reduce__(self) -> Any:
        return self._make, (self._folder,)


def change_json(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Replaces the value of a JSON file by what `change` returns, or by the changed value if that is None."""
    value = json.loads((folder / name).read_text(encoding="utf-8"))
    changed = change(value)
    replace(folder, name, json.dumps(value if changed is None else changed).encode())


def change_tensors(folder: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Changes the tensors of a safetensors file."""
    tensors = load((folder / name).read_bytes())
    change(tensors)
    replace(folder, name, save(tensors))


def replace(folder: Path, name: str, data: bytes) -> None:
    """Replaces a file, and its sizes and checksums in the manifest."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    record = next(record for record in manifest["files"] if record["name"] == name)
    record |= {"bytes": len(data), "crc32c": f"{crc32c(data):08x}"}
    if name.endswith(".safetensors"):
        record["tensors"] = _checksums_of_tensors(data)
    del manifest["crc32c"]
    rest = '",\n' + json.dumps(manifest, indent=2, sort_keys=True).removeprefix("{\n")
    begin = f'{{\n  "crc32c": "{crc32c(rest.encode()):08x}'
    (folder / "manifest.json").write_text(begin + rest, encoding="utf-8")


def _checksums_of_tensors(data: bytes) -> dict[str, str]:
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    values = data[8 + length :]
    return {name: f"{crc32c(values[begin:end]):08x}" for name, (begin, end) in places.items()}


def item(written: Any, *keys: Any) -> Any:
    """Returns the JSON value at a place of the decoded value. Numbers are indices of lists and tuples."""
    for key in keys:
        if isinstance(key, str):
            written = next(pair[1] for pair in written["v"] if pair[0] == key)
        else:
            written = (written if isinstance(written, list) else written["v"])[key]
    return written


def put(*keys: Any, value: Any) -> Callable[[Any], None]:
    """Returns a change of the JSON value at a place of the decoded value."""

    def change(written: Any) -> None:
        owner = item(written, *keys[:-1])
        if isinstance(keys[-1], str):
            next(pair for pair in owner["v"] if pair[0] == keys[-1])[1] = value
        else:
            (owner if isinstance(owner, list) else owner["v"])[keys[-1]] = value

    return change


def drop(*keys: Any) -> Callable[[Any], None]:
    """Returns a change that removes an item of a dict."""

    def change(written: Any) -> None:
        owner = item(written, *keys[:-1])
        owner["v"] = [pair for pair in owner["v"] if pair[0] != keys[-1]]

    return change
