# SPDX-License-Identifier: Apache-2.0
"""Converts a checkpoint of DeepSpeed to one of Lockstep: `python -m lockstep.deepspeed.convert FOLDER OUTPUT`.

FOLDER is what DeepSpeed's save_checkpoint was given. `engine.load_checkpoint(OUTPUT)` then resumes, on any number of
ranks and in any stage, with weights (float32 masters where there are any), optimizer state, schedule, loss scale,
counters and client state. The files are read with torch.load(weights_only=True), which runs no code of theirs.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import re
import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import _core

__all__ = ["Conversion", "convert"]

_MODEL_FILES = (r"mp_rank_(\d+)_model_states\.pt", r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER_FILE = r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt"
# Keys of DeepSpeed's own in the file that also has the client state.
_OWN_KEYS = {
    "autoep_layers",
    "buffer_names",
    "checkpoint_parallel_dimensions",
    "data_sampler",
    "dp_world_size",
    "ds_config",
    "ds_version",
    "expert_parallel_size",
    "frozen_param_fragments",
    "frozen_param_shapes",
    "global_samples",
    "global_steps",
    "lr_scheduler",
    "module",
    "mp_world_size",
    "optimizer",
    "param_shapes",
    "random_ltd",
    "shared_params",
    "skipped_steps",
    "sparse_tensor_module_names",
    "universal_checkpoint_info",
}


class _Attributes:
    """Stands for a class of DeepSpeed: an object with the attributes that the file has."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


_CLASSES = (
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)


@dataclass
class _Group:
    """A parameter group of the saved optimizer."""

    names: list[str]
    options: dict[str, Any]


@dataclass
class _Read:
    """The content of a DeepSpeed checkpoint, by parameter name."""

    trained: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict)
    frozen: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict)
    buffers: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict)
    groups: list[_Group] = field(default_factory=list)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    loss_scale: dict[str, Any] | None = None


@dataclass
class Conversion:
    """The result of `convert`."""

    path: str  # The folder of the new checkpoint.
    tag: str
    parameters: int
    with_optimizer_state: int  # Parameters whose optimizer state was taken.
    left_out: list[str]  # What the new checkpoint lacks, with the reasons.


def convert(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    tag: str | None = None,
    optimizer: str | None = None,
) -> Conversion:
    """Writes `<output_dir>/<tag>` from `<checkpoint_dir>/<tag>`, by default the tag in `latest`. One process.

    `optimizer` is the type of the program's own optimizer, as in a ds_config.json, if the checkpoint does not name it.
    Throws CheckpointError for a folder that is not DeepSpeed's or lacks files.
    """
    folder = Path(checkpoint_dir)
    name = _tag_of(folder) if tag is None else str(tag)
    reader = _Reader(folder / name)
    read = reader.read()
    path, taken = _write(read, reader, Path(output_dir), name, optimizer)
    return Conversion(path, name, len(read.trained) + len(read.frozen), taken, reader.left_out)


def _tag_of(folder: Path) -> str:
    latest = folder / "latest"
    if not latest.is_file():
        raise _core.CheckpointError(f"[convert] {folder} has no file latest; pass the tag: one of {_folders(folder)}")
    return latest.read_text(encoding="utf-8").strip()


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


# --- reading
class _Reader:
    """Reads one folder of DeepSpeed's files, of any stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left_out: list[str] = []
        if not folder.is_dir():
            raise _core.CheckpointError(
                f"[convert] {folder} does not exist; expected a checkpoint of DeepSpeed; {folder.parent} has "
                f"{_folders(folder.parent)}"
            )
        self.model_files = self._matching(_MODEL_FILES)
        self.optimizer_files = self._matching((_OPTIMIZER_FILE,))
        if not self.model_files:
            raise _core.CheckpointError(
                f"[convert] {folder} has no file *_model_states.pt; expected a checkpoint of DeepSpeed"
            )
        others = [path.name for path in folder.glob("*mp_rank_*") if "mp_rank_00" not in path.name]
        if others:
            raise _core.CheckpointError(
                f"[convert] {folder} is of a run with model parallelism ({others[0]}), which Lockstep lacks; merge it "
                "to one model-parallel rank first"
            )
        self.models = [_load(path) for path in self.model_files]
        self.model = self.models[0]
        self.config: dict[str, Any] = self.model.get("ds_config") or {}
        self.ranks = max(1, len(self.optimizer_files))

    def _matching(self, patterns: Iterable[str]) -> list[Path]:
        found = []
        for path in self.folder.iterdir():
            for pattern in patterns:
                match = re.fullmatch(pattern, path.name)
                if match:
                    found.append((int(match[1]), path))
        return [path for _, path in sorted(found)]

    def read(self) -> _Read:
        if self.optimizer_files:
            states = [_load(path)["optimizer_state_dict"] for path in self.optimizer_files]
            self._check_ranks(states)
            read = self._read_stage_3(states) if "fp32_flat_groups" in states[0] else self._read_stage_1_2(states)
            scaler = states[0].get("loss_scaler")
            if states[0].get("dynamic_loss_scale") and scaler is not None:
                read.loss_scale = _scaler_state(scaler)
        else:
            read = self._read_stage_0()
        self._add_rest(read)
        for key in ("data_sampler", "random_ltd"):
            if self.model.get(key) is not None:
                self.left_out.append(f"{key}: Lockstep has no data efficiency library")
        return read

    def _check_ranks(self, states: list[dict[str, Any]]) -> None:
        count = states[0].get("partition_count", len(states))
        expected = max(count) if isinstance(count, (list, tuple)) else int(count)
        if expected != len(states):
            raise _core.CheckpointError(
                f"[convert] {self.folder} has {len(states)} files *_optim_states.pt; expected {expected}; copy the "
                "files of all ranks"
            )

    # --- stages 1 and 2: each parameter group is one flat tensor, of which a rank has a part
    def _read_stage_1_2(self, states: list[dict[str, Any]]) -> _Read:
        read = _Read()
        base = states[0]["base_optimizer_state"]
        if not (isinstance(base, dict) and "state" in base):
            self.left_out.append("the optimizer's state: it is in DeepSpeed's elastic format; save without it")
            base = None
        for index, shapes in enumerate(self.model["param_shapes"]):
            options = {} if base is None else _options(base["param_groups"][index])
            read.groups.append(_Group(list(shapes), options))
            parts = [state["single_partition_of_fp32_groups"][index] for state in states]
            read.trained.update(self._assembled(states, index, shapes, parts))
            if base is None:
                continue
            of_ranks = [state["base_optimizer_state"]["state"].get(index, {}) for state in states]
            for key, value in of_ranks[0].items():
                if isinstance(value, torch.Tensor) and value.dim() > 0:
                    full = self._assembled(states, index, shapes, [one[key] for one in of_ranks])
                    for name, tensor in full.items():
                        read.state.setdefault(name, {})[key] = tensor
                else:
                    for name in shapes:
                        read.state.setdefault(name, {})[key] = value
        return read

    @staticmethod
    def _assembled(
        states: list[dict[str, Any]], index: int, shapes: dict[str, torch.Size], parts: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Returns full tensors by name, of the ranks' parts of a flat group."""
        full = {name: torch.zeros(math.prod(shape), dtype=parts[0].dtype) for name, shape in shapes.items()}
        filled = dict.fromkeys(shapes, 0)
        if all(state.get("param_slice_mappings") for state in states):
            for state, part in zip(states, parts):
                for name, place in state["param_slice_mappings"][index].items():
                    begin = filled[name]
                    full[name][begin : begin + place.numel] = part[place.start : place.start + place.numel]
                    filled[name] += place.numel
        else:
            flat, begin = torch.cat(parts), 0
            for name in shapes:
                size = full[name].numel()
                full[name][:] = flat[begin : begin + size]
                filled[name] = size
                begin += size
        for name, count in filled.items():
            if count != full[name].numel():
                raise _core.CheckpointError(
                    f"[convert] the ranks' files have {count} of {full[name].numel()} elements of {name}; expected all"
                )
        return {name: tensor.reshape(shapes[name]) for name, tensor in full.items()}

    # --- stage 3: each rank has an equal part of every parameter
    def _read_stage_3(self, states: list[dict[str, Any]]) -> _Read:
        read = _Read()
        all_shapes = OrderedDict(
            (name, shape) for shapes in self.model["param_shapes"] for name, shape in shapes.items()
        )
        flat = [torch.cat([part.reshape(-1) for part in state["fp32_flat_groups"]]) for state in states]
        read.trained.update(self._joined(all_shapes, flat))
        base = [state["optimizer_state_dict"] for state in states]
        saved_groups = base[0]["param_groups"]
        for index, shapes in enumerate(self.model["param_shapes"]):
            read.groups.append(_Group(list(shapes), _options(saved_groups[min(index, len(saved_groups) - 1)])))
        if len(saved_groups) != len(read.groups):
            self.left_out.append("options of parameter groups but the first: the file has them for sub-groups only")
        sub_groups = sorted(base[0]["state"])
        for key, value in (base[0]["state"][sub_groups[0]] if sub_groups else {}).items():
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                flat = [torch.cat([one["state"][i][key].reshape(-1) for i in sub_groups]) for one in base]
                for name, tensor in self._joined(all_shapes, flat).items():
                    read.state.setdefault(name, {})[key] = tensor
            else:
                for name in all_shapes:
                    read.state.setdefault(name, {})[key] = value
        return read

    def _joined(self, shapes: dict[str, torch.Size], flat: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        result, begin = {}, 0
        for name, shape in shapes.items():
            size = math.prod(shape)
            each = -(-size // len(flat))
            parts = [tensor[begin : begin + each] for tensor in flat]
            if any(part.numel() != each for part in parts):
                raise _core.CheckpointError(
                    f"[convert] the ranks' files end within {name}; expected {each} elements of it on each rank"
                )
            result[name] = torch.cat(parts)[:size].reshape(shape)
            begin += each
        return result

    # --- stage 0: full tensors, and an optimizer that names parameters by number
    def _read_stage_0(self) -> _Read:
        read = _Read()
        saved = self.model.get("optimizer")
        named = self._distinct_parameters()
        if saved is None:
            read.frozen.update(named)
            self.left_out.append("the optimizer's state: the checkpoint has none")
            return read
        inner = saved.get("optimizer_state_dict", saved)
        masters = [tensor for group in saved.get("fp32_groups", []) for tensor in group]
        state, groups = inner["state"], inner["param_groups"]
        order = [index for group in groups for index in group["params"]]
        shapes = [self._shape_of(state.get(index, {}), masters, position) for position, index in enumerate(order)]
        names = _names_of(named, shapes)
        if names is None:
            read.trained.update(named)
            read.groups.append(_Group(list(named), _options(groups[0])))
            self.left_out.append(
                "the optimizer's state: without ZeRO the file does not name parameters, and their shapes fit several "
                "(frozen ones, or several parameter groups); save with ZeRO stage 1"
            )
            return read
        for position, (name, index) in enumerate(zip(names, order)):
            read.trained[name] = masters[position] if masters else named[name]
            read.state[name] = dict(state.get(index, {}))
        read.frozen.update((name, tensor) for name, tensor in named.items() if name not in read.trained)
        begin = 0
        for group in groups:
            count = len(group["params"])
            read.groups.append(_Group(names[begin : begin + count], _options(group)))
            begin += count
        if saved.get("dynamic_loss_scale"):
            read.loss_scale = {"scale": float(saved["cur_scale"])}
        return read

    @staticmethod
    def _shape_of(state: dict[str, Any], masters: list[torch.Tensor], position: int) -> torch.Size | None:
        if masters:
            return masters[position].shape
        tensors = [value for value in state.values() if isinstance(value, torch.Tensor) and value.dim() > 0]
        return tensors[0].shape if tensors else None

    def _distinct_parameters(self) -> OrderedDict[str, torch.Tensor]:
        """Returns the model's parameters, tied ones once."""
        buffers = set(self.model.get("buffer_names") or ())
        shared = set(self.model.get("shared_params") or ())
        seen: set[tuple[int, torch.Size]] = set()
        result: OrderedDict[str, torch.Tensor] = OrderedDict()
        for name, tensor in self.model["module"].items():
            place = (tensor.data_ptr(), tensor.shape)
            if name in buffers or name in shared or (tensor.numel() > 0 and place in seen):
                continue
            seen.add(place)
            result[name] = tensor
        return result

    # --- all stages
    def _add_rest(self, read: _Read) -> None:
        """Adds frozen parameters and buffers."""
        module = self.model["module"]
        for name in self.model.get("buffer_names") or ():
            if name in module:
                read.buffers[name] = module[name]
        if not self.optimizer_files:
            return
        fragments = [model.get("frozen_param_fragments") or {} for model in self.models]
        for name, shape in (self.model.get("frozen_param_shapes") or {}).items():
            parts = torch.cat([one[name].reshape(-1) for one in fragments if name in one])
            read.frozen[name] = parts[: math.prod(shape)].reshape(shape)
        for name, tensor in self._distinct_parameters().items():
            if name not in read.trained and name not in read.frozen and tensor.numel() > 0:
                read.frozen[name] = tensor

    def client_state(self) -> dict[str, Any]:
        return {key: value for key, value in self.model.items() if key not in _OWN_KEYS}


def _load(path: Path) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals([(_Attributes, name) for name in _CLASSES]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, LookupError) as error:
        reason = str(error)
        unknown = re.search(r"GLOBAL (\S+) was not an allowed global", reason)
        if unknown:
            raise _core.CheckpointError(
                f"[convert] {path} has an object of class {unknown[1]}, which could run code and is not loaded; save "
                "without it (it may be in the client state)"
            ) from None
        raise _core.CheckpointError(f"[convert] {path} cannot be read: {reason.splitlines()[0]}") from None


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _scaler_state(scaler: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for theirs, ours, kind in (
        ("cur_scale", "scale", float),
        ("cur_hysteresis", "overflows_left", int),
        ("cur_iter", "updates", int),
        ("last_overflow_iter", "last_overflow", int),
    ):
        if hasattr(scaler, theirs):
            state[ours] = kind(getattr(scaler, theirs))
    return state


def _names_of(named: dict[str, torch.Tensor], shapes: list[torch.Size | None]) -> list[str] | None:
    """Returns the names of parameters of these shapes, in order; None if several choices of names fit."""
    names = list(named)
    if len(names) == len(shapes):
        fits = all(shape is None or named[name].shape == shape for name, shape in zip(names, shapes))
        return names if fits else None

    def first_fit(candidates: list[str], wanted: list[torch.Size | None]) -> list[str] | None:
        chosen, rest = [], iter(candidates)
        for shape in wanted:
            name = next((name for name in rest if shape is None or named[name].shape == shape), None)
            if name is None:
                return None
            chosen.append(name)
        return chosen

    forward = first_fit(names, shapes)
    backward = first_fit(names[::-1], shapes[::-1])
    return forward if forward is not None and backward is not None and forward == backward[::-1] else None


# --- writing
def _write(read: _Read, reader: _Reader, output: Path, tag: str, optimizer: str | None) -> tuple[str, int]:
    """Builds an engine with this state, and saves it."""
    from . import initialize
    from ..state import PartialState

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


def _module_of(read: _Read) -> tuple[torch.nn.Module, dict[str, torch.nn.Parameter]]:
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


def _engine_config(read: _Read, reader: _Reader, optimizer: str | None) -> dict[str, Any]:
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


def _optimizer_params(params: dict[str, Any], read: _Read) -> dict[str, Any]:
    kept: dict[str, Any] = {
        name: params[name] for name in ("lr", "adam_w_mode", "momentum", "nesterov") if name in params
    }
    if not isinstance(kept.get("lr"), (int, float)):
        kept["lr"] = float(read.groups[0].options.get("lr", 1e-3))
    return kept


def _optimizer_of(read: _Read) -> str | None:
    """Guesses the optimizer by its options and state."""
    options = read.groups[0].options
    fields = set(next(iter(read.state.values()), {}))
    if {"exp_avg", "exp_avg_sq"} <= fields and "decoupled_weight_decay" in options:
        return "AdamW" if options["decoupled_weight_decay"] else None
    if "momentum_buffer" in fields and "nesterov" in options:
        return "SGD"
    return None


def _set_optimizer_state(engine: Any, read: _Read, reader: _Reader, steps: int) -> int:
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
