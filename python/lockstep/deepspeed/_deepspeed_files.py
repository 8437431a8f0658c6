# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a checkpoint of DeepSpeed, without running code of theirs. For convert.py."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import _core
from .._torch_files import load_torch_file

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
class SavedGroup:
    """A parameter group of the saved optimizer."""

    names: list[str]
    options: dict[str, Any]


@dataclass
class SavedRun:
    """The content of a DeepSpeed checkpoint, by parameter name."""

    trained: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict)
    frozen: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict)
    buffers: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict)
    groups: list[SavedGroup] = field(default_factory=list)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    loss_scale: dict[str, Any] | None = None


def folders_of(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


class DeepSpeedReader:
    """Reads one folder of DeepSpeed's files, of any stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left_out: list[str] = []
        if not folder.is_dir():
            raise _core.CheckpointError(
                f"[convert] {folder} does not exist; expected a checkpoint of DeepSpeed; {folder.parent} has "
                f"{folders_of(folder.parent)}"
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
        self.models = [load_states(path) for path in self.model_files]
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

    def read(self) -> SavedRun:
        if self.optimizer_files:
            states = [load_states(path)["optimizer_state_dict"] for path in self.optimizer_files]
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
    def _read_stage_1_2(self, states: list[dict[str, Any]]) -> SavedRun:
        read = SavedRun()
        base = states[0]["base_optimizer_state"]
        if not (isinstance(base, dict) and "state" in base):
            self.left_out.append("the optimizer's state: it is in DeepSpeed's elastic format; save without it")
            base = None
        for index, shapes in enumerate(self.model["param_shapes"]):
            options = {} if base is None else _options(base["param_groups"][index])
            read.groups.append(SavedGroup(list(shapes), options))
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
    def _read_stage_3(self, states: list[dict[str, Any]]) -> SavedRun:
        read = SavedRun()
        all_shapes = OrderedDict(
            (name, shape) for shapes in self.model["param_shapes"] for name, shape in shapes.items()
        )
        flat = [torch.cat([part.reshape(-1) for part in state["fp32_flat_groups"]]) for state in states]
        read.trained.update(self._joined(all_shapes, flat))
        base = [state["optimizer_state_dict"] for state in states]
        saved_groups = base[0]["param_groups"]
        for index, shapes in enumerate(self.model["param_shapes"]):
            read.groups.append(SavedGroup(list(shapes), _options(saved_groups[min(index, len(saved_groups) - 1)])))
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
    def _read_stage_0(self) -> SavedRun:
        read = SavedRun()
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
            read.groups.append(SavedGroup(list(named), _options(groups[0])))
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
            read.groups.append(SavedGroup(names[begin : begin + count], _options(group)))
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
    def _add_rest(self, read: SavedRun) -> None:
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


def load_states(path: Path) -> dict[str, Any]:
    try:
        content = load_torch_file(path, "convert", "cpu", [(_Attributes, name) for name in _CLASSES])
    except OSError as error:
        raise _core.CheckpointError(
            f"[convert] {path} cannot be read: {error.strerror or error}; expected a file of DeepSpeed; check its path "
            "and permissions"
        ) from None
    if not isinstance(content, dict):
        raise _core.CheckpointError(
            f"[convert] {path} holds a {type(content).__name__}; expected a dict, as DeepSpeed writes; copy the file "
            "again, or use another checkpoint"
        )
    return content


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
