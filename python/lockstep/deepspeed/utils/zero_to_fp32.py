# SPDX-License-Identifier: Apache-2.0
"""Full float32 weights of a checkpoint of an engine, in one process, by the program `lockstep merge-weights`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ... import _core
from ..._binary import find_binary
from .._saved_state import TIED_NAMES

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "load_state_dict_from_zero_checkpoint",
]


def _folder_of(checkpoint_dir: str | os.PathLike[str], tag: str | None) -> Path:
    folder = Path(checkpoint_dir)
    if tag is None:
        latest = folder / "latest"
        if not latest.is_file():
            raise _core.CheckpointError(f"[zero_to_fp32] {folder} has no file latest; pass the tag of a checkpoint")
        tag = latest.read_text(encoding="utf-8").strip()
    return folder / tag


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    max_shard_size: str = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
) -> None:
    """Writes the weights of `<checkpoint_dir>/<tag>`, by default that in `latest`, to files in `output_dir`.

    `safe_serialization`: safetensors, with tied weights under the first of their names; else torch's files, with all
    names.
    """
    output = Path(output_dir)
    if safe_serialization:
        _merge_weights(_folder_of(checkpoint_dir, tag), output, max_shard_size)
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-weights-") as folder:
        merged = Path(folder) / "weights"
        _merge_weights(_folder_of(checkpoint_dir, tag), merged, max_shard_size)
        output.mkdir(parents=True, exist_ok=True)
        _write_torch_files(merged, output, _tied_names(_folder_of(checkpoint_dir, tag)))


def _merge_weights(checkpoint: Path, output: Path, max_shard_size: str) -> None:
    command = [
        find_binary(), "merge-weights", str(checkpoint), os.fspath(output), "--max-shard-size", max_shard_size,
    ]  # fmt: skip
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise _core.CheckpointError(finished.stderr.strip() or finished.stdout.strip())


def _write_torch_files(merged: Path, output: Path, tied: list[list[str]]) -> None:
    """Writes each safetensors file as one of torch.save, under the names that transformers expects."""
    from safetensors.torch import load_file

    weight_map: dict[str, str] = {}
    files = sorted(merged.glob("*.safetensors"))
    for file in files:
        state = load_file(file)
        _add_tied_names(state, tied)
        name = file.with_suffix(".bin").name.replace("model", "pytorch_model", 1)
        weight_map.update(dict.fromkeys(state, name))
        with tempfile.NamedTemporaryFile(dir=output, prefix=f".{name}", delete=False) as temporary:
            torch.save(state, temporary)
        os.replace(temporary.name, output / name)
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(file.stat().st_size for file in files)}, "weight_map": weight_map}
        (output / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _add_tied_names(state: dict[str, torch.Tensor], tied: list[list[str]]) -> None:
    for names in tied:
        saved = [name for name in names if name in state]
        if saved:
            state.update(dict.fromkeys(names, state[saved[0]]))


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | os.PathLike[str], tag: str | None = None
) -> dict[str, torch.Tensor]:
    """Returns the weights of a checkpoint on the CPU. Tied weights are one tensor under each of their names.

    A checkpoint of a C++ program has only the first of their names.
    """
    from safetensors.torch import load_file

    with _weight_files(checkpoint_dir, tag) as output:
        state: dict[str, torch.Tensor] = {}
        for file in sorted(output.glob("*.safetensors")):
            state.update(load_file(file))
    _add_tied_names(state, _tied_names(_folder_of(checkpoint_dir, tag)))
    return state


@contextmanager
def _weight_files(checkpoint_dir: str | os.PathLike[str], tag: str | None) -> Iterator[Path]:
    """Runs a block with a folder that has a checkpoint's weights as safetensors. The folder is temporary."""
    with tempfile.TemporaryDirectory(prefix="lockstep-weights-") as folder:
        output = Path(folder) / "weights"
        convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir, output, safe_serialization=True, tag=tag)
        yield output


def _tied_names(folder: Path) -> list[list[str]]:
    """Returns the names of each tensor that has several."""
    path = folder / TIED_NAMES
    if not path.is_file():
        return []
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _core.CheckpointError(f"[{path}] is not JSON: {error}; restore the file from a copy") from None
    if not isinstance(groups, list) or not all(_are_names(group) for group in groups):
        raise _core.CheckpointError(f"[{path}] has another form; expected lists of names; restore the file from a copy")
    return groups


def _are_names(group: Any) -> bool:
    return isinstance(group, list) and all(isinstance(name, str) for name in group)


def load_state_dict_from_zero_checkpoint(
    model: torch.nn.Module, checkpoint_dir: str | os.PathLike[str], tag: str | None = None
) -> torch.nn.Module:
    """Loads the weights of a checkpoint into a model that no engine trains, and returns the model."""
    with _weight_files(checkpoint_dir, tag) as output:
        _core.load_checkpoint_in_model(model, str(output), True)
    return model
