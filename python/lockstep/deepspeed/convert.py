# SPDX-License-Identifier: Apache-2.0
"""Converts a checkpoint of DeepSpeed to one of Lockstep: `python -m lockstep.deepspeed.convert FOLDER OUTPUT`.

FOLDER is what DeepSpeed's save_checkpoint was given. `engine.load_checkpoint(OUTPUT)` then resumes, on any number of
ranks and in any stage, with weights (float32 masters where there are any), optimizer state, schedule, loss scale,
counters and client state. The files are read with torch.load(weights_only=True), which runs no code of theirs.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _core
from ..state import PartialState
from . import initialize
from ._deepspeed_files import DeepSpeedReader, SavedRun, folders_of

__all__ = ["Conversion", "convert"]


@dataclass
class Conversion:
    """The result of `convert`."""

    path: str  # The folder of the new checkpoint.
    tag: str
    parameters: int
    with_optimizer_state: int  # Parameters whose optimizer state was taken.
    left_out: list[str]  # Parts that the new checkpoint lacks, with the reasons.


def convert(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    tag: str | None = None,
    optimizer: str | None = None,
) -> Conversion:
    """Writes `<output_dir>/<tag>` from `<checkpoint_dir>/<tag>`, by default the tag in `latest`. One process.

    `optimizer` is the type of the program's own optimizer, as in a ds_config.json, if the checkpoint does not name it.
    Throws CheckpointError for a folder that is not DeepSpeed's, lacks files, or has one that could run code.
    """
    folder = Path(checkpoint_dir)
    name = _tag_of(folder) if tag is None else str(tag)
    try:
        reader = DeepSpeedReader(folder / name)
        read = reader.read()
        path, taken = _write(read, reader, Path(output_dir), name, optimizer)
    except _core.Error:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise _core.CheckpointError(
            f"[convert] {folder / name} has another form than DeepSpeed writes ({type(error).__name__}: {error}); "
            "expected the files of save_checkpoint; copy them again, or convert another checkpoint"
        ) from error
    return Conversion(path, name, len(read.trained) + len(read.frozen), taken, reader.left_out)


def _tag_of(folder: Path) -> str:
    latest = folder / "latest"
    if not latest.is_file():
        raise _core.CheckpointError(f"[convert] {folder} has no file latest; pass the tag: one of {folders_of(folder)}")
    return latest.read_text(encoding="utf-8").strip()


# --- writing
def _write(read: SavedRun, reader: DeepSpeedReader, output: Path, tag: str, optimizer: str | None) -> tuple[str, int]:
    """Builds an engine with this state, and saves it."""
    state = PartialState(cpu=True)
    if state.num_processes != 1:
        raise _core.ConfigError("[convert] runs in one process; start it without a launcher")
    module, parameters = _module_of(read)
    config = _engine_config(read, reader, optimizer)
    groups = [{"params": [parameters[name] for name in group.names]} for group in read.groups]
    given = groups if len(groups) > 1 else (groups[0]["params"] if groups else [])
    engine, *_ = initialize(model=module, model_parameters=given, config=config)
    try:
        taken = 0
        progress = [int(reader.model.get(key) or 0) for key in ("global_steps", "global_samples", "skipped_steps")]
        if engine.optimizer is not None:
            taken = _set_optimizer_state(engine, read, reader, progress[0] - progress[2])
            engine.core.set_progress(*progress, read.loss_scale)
            engine.optimizer.pull_options()
        scheduler = reader.model.get("lr_scheduler")
        if scheduler is not None and engine.core.schedule_steps is None:
            engine.python_scheduler = _Saved(scheduler)
        engine.save_checkpoint(output, tag, client_state=reader.client_state())
    finally:
        engine.destroy()
    return str(output / tag), taken


class _Saved:
    """A scheduler of the program, of which only the state is known."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return self._state


def _module_of(read: SavedRun) -> tuple[torch.nn.Module, dict[str, torch.nn.Parameter]]:
    """Returns a module whose parameters and buffers have the saved names and values."""
    root = torch.nn.Module()

    def owner_of(name: str) -> tuple[torch.nn.Module, str]:
        *path, last = name.split(".")
        owner = root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner._modules[part]  # type: ignore[assignment]
        return owner, last

    parameters: dict[str, torch.nn.Parameter] = {}
    for values, trained in ((read.trained, True), (read.frozen, False)):
        for name, tensor in values.items():
            owner, last = owner_of(name)
            # Every run can load float32, also one with 16-bit parameters.
            value = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
            parameter = torch.nn.Parameter(value.clone(), requires_grad=trained and value.is_floating_point())
            owner.register_parameter(last, parameter)
            parameters[name] = parameter
    for name, tensor in read.buffers.items():
        owner, last = owner_of(name)
        owner.register_buffer(last, tensor.clone())
    return root, parameters


def _engine_config(read: SavedRun, reader: DeepSpeedReader, optimizer: str | None) -> dict[str, Any]:
    given = reader.config
    section = given.get("optimizer") or {}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": _number(given.get("gradient_accumulation_steps"), 1),
        "gradient_clipping": 0,
    }
    if read.groups:
        kind = optimizer or section.get("type") or _optimizer_of(read)
        if kind is None:
            raise _core.ConfigError(
                "[convert] the checkpoint does not name its optimizer, which the program created; pass its type: "
                "--optimizer AdamW"
            )
        config["optimizer"] = {"type": kind, "params": _optimizer_params(section.get("params") or {}, read)}
    if given.get("scheduler") and reader.model.get("lr_scheduler") is not None:
        config["scheduler"] = given["scheduler"]
    if read.loss_scale is not None:
        config["fp16"] = {**(given.get("fp16") or {}), "enabled": True}
    return config


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default


def _optimizer_params(params: dict[str, Any], read: SavedRun) -> dict[str, Any]:
    kept: dict[str, Any] = {
        name: params[name] for name in ("lr", "adam_w_mode", "momentum", "nesterov") if name in params
    }
    if not isinstance(kept.get("lr"), (int, float)):
        kept["lr"] = float(read.groups[0].options.get("lr", 1e-3))
    return kept


def _optimizer_of(read: SavedRun) -> str | None:
    """Guesses the optimizer by its options and state."""
    options = read.groups[0].options
    fields = set(next(iter(read.state.values()), {}))
    if {"exp_avg", "exp_avg_sq"} <= fields and "decoupled_weight_decay" in options:
        return "AdamW" if options["decoupled_weight_decay"] else None
    if "momentum_buffer" in fields and "nesterov" in options:
        return "SGD"
    return None


def _set_optimizer_state(engine: Any, read: SavedRun, reader: DeepSpeedReader, steps: int) -> int:
    """Gives the saved options and state to the engine's optimizer. Returns the number of parameters with state."""
    wrapper = engine.optimizer
    known = set(wrapper._known)
    for group, saved in zip(wrapper.param_groups, read.groups):
        for name, value in saved.options.items():
            if name in known and name in group and not isinstance(value, torch.Tensor):
                group[name] = tuple(value) if isinstance(value, (list, tuple)) else type(group[name])(value)
    wrapper.push_options()
    state: dict[int, dict[str, Any]] = {}
    names = [name for group in read.groups for name in group.names]
    for index, name in enumerate(names):
        fields = {key: value for key, value in read.state.get(name, {}).items() if value is not None}
        if fields:
            options = next(group.options for group in read.groups if name in group.names)
            fields.setdefault("step", options.get("step", steps))
            state[index] = {
                key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in fields.items()
            }
    saved_groups = [{**group, "params": []} for group in wrapper.param_groups]
    for without in ((), ("step",)):
        chosen = {i: {k: v for k, v in fields.items() if k not in without} for i, fields in state.items()}
        try:
            wrapper.load_state_dict({"state": chosen, "param_groups": saved_groups})
            return len(chosen)
        except _core.Error as error:
            failure = error
    reader.left_out.append(f"the optimizer's state: {failure}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.deepspeed.convert",
        description="Converts a checkpoint of DeepSpeed to one that engine.load_checkpoint() of Lockstep loads.",
    )
    parser.add_argument("checkpoint", help="the folder that DeepSpeed's save_checkpoint was given")
    parser.add_argument("output", help="the folder for load_checkpoint")
    parser.add_argument("--tag", help="the checkpoint in the folder; by default the one that the file latest names")
    parser.add_argument("--optimizer", help="type of the program's own optimizer, such as AdamW")
    given = parser.parse_args(arguments)
    try:
        result = convert(given.checkpoint, given.output, given.tag, given.optimizer)
    except _core.Error as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"{result.path}: {result.parameters} parameters, {result.with_optimizer_state} with optimizer state\n"
        "not in the checkpoint: random states and positions of loaders, which DeepSpeed does not save; loaders begin "
        "with their first batch"
    )
    for reason in result.left_out:
        print(f"not taken: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
