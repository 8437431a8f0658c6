# SPDX-License-Identifier: Apache-2.0
"""The parts of a checkpoint that only Python has: random states of Python and numpy, schedulers, orders of samplers,
and files of the program's own hooks."""
from __future__ import annotations

import os
import random
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from ._codec import flatten, unflatten
from ._weak import weak_method
from .logging import get_logger

if TYPE_CHECKING:
    from .accelerator import Accelerator

logger = get_logger(__name__)

_SHARED = "python_state"
_OF_RANK = "python_state_of_rank_{}"
_HOOK_FILES = "hook_files_of_rank_{}.safetensors"


def _add(state: Any, stem: str, value: Any) -> None:
    values, tensors = flatten(value)
    state.add_json(f"{stem}.json", values)
    if tensors:
        state.add_tensors(f"{stem}.safetensors", tensors)


def _read(state: Any, stem: str) -> Any:
    if not state.has_file(f"{stem}.json"):
        return None
    tensors = state.tensors(f"{stem}.safetensors") if state.has_file(f"{stem}.safetensors") else {}
    return unflatten(state.json(f"{stem}.json"), tensors)


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(states["numpy"]))


class PythonState:
    """Adds Python's part to the checkpoints of an Accelerator, and loads it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        accelerator._core.register_save_state_pre_hook(weak_method(self.save))
        accelerator._core.register_load_state_pre_hook(weak_method(self.load))
        self._pending: list[Callable[[], None]] = []
        # OrderedDicts, to which a RemovableHandle can refer weakly.
        self.save_hooks: OrderedDict[int, Callable[..., None]] = OrderedDict()
        self.load_hooks: OrderedDict[int, Callable[..., None]] = OrderedDict()

    def register(self, obj: Any) -> None:
        """Adds an object with state_dict() and load_state_dict()."""
        objects = self._accelerator._custom_objects
        index = len(objects)
        objects.append(obj)
        self._accelerator._core.register_for_checkpointing(
            obj, partial(weak_method(self._custom_state), index), partial(weak_method(self._load_custom_state), index)
        )

    def _custom_state(self, index: int) -> Any:
        return flatten(self._accelerator._custom_objects[index].state_dict())

    def _load_custom_state(self, index: int, values: Any, tensors: dict[str, torch.Tensor]) -> None:
        self._accelerator._custom_objects[index].load_state_dict(unflatten(values, tensors))

    def save(self, state: Any) -> None:
        """Runs within save_state, before anything is written."""
        accelerator = self._accelerator
        _add(state, _OF_RANK.format(accelerator.process_index), {"random": _random_states()})
        if accelerator.is_main_process:
            shared = {
                "schedulers": [scheduler.state_dict() for scheduler in accelerator._schedulers],
                "loaders": [loader._saved_state() for loader in accelerator._dataloaders],
            }
            _add(state, _SHARED, shared)
        if self.save_hooks:
            self._run_save_hooks(state)

    def _run_save_hooks(self, state: Any) -> None:
        accelerator = self._accelerator
        models = list(accelerator._models)
        weights = [model.state_dict() for model in models] if not accelerator._core.shards_parameters else [
            None for _ in models
        ]
        kept = list(zip(range(len(models)), weights))
        with tempfile.TemporaryDirectory(prefix="lockstep-hooks-") as folder:
            for hook in list(self.save_hooks.values()):
                # A hook pops the weights of models that it saves itself.
                hook(models, weights, folder)
            remaining = {id(weight) for weight in weights}
            if len(weights) != len(kept):
                for index, weight in kept:
                    if weight is None or id(weight) not in remaining:
                        state.take_over(index)
            files = {
                str(path.relative_to(folder)): torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).clone()
                for path in sorted(Path(folder).rglob("*"))
                if path.is_file() and path.stat().st_size > 0
            }
        if files:
            state.add_tensors(_HOOK_FILES.format(accelerator.process_index), files)

    def load(self, state: Any) -> None:
        """Runs within load_state, before anything is changed: reads, and checks the numbers of objects."""
        accelerator = self._accelerator
        self._pending = []
        own = _read(state, _OF_RANK.format(accelerator.process_index))
        if own is not None:
            self._pending.append(lambda: _set_random_states(own["random"]))
        shared = _read(state, _SHARED)
        if shared is not None:
            for name, objects in (("schedulers", accelerator._schedulers), ("loaders", accelerator._dataloaders)):
                if len(shared[name]) != len(objects):
                    raise _core.CheckpointError(
                        f"[load_state] the checkpoint has {len(shared[name])} {name}, and {len(objects)} are prepared; "
                        "prepare the same objects in the same order"
                    )
            for loader, saved in zip(accelerator._dataloaders, shared["loaders"]):
                self._pending.append(partial(loader._load_saved_state, saved))
            for scheduler, saved in zip(accelerator._schedulers, shared["schedulers"]):
                self._pending.append(partial(scheduler.load_state_dict, saved))
        elif accelerator._schedulers:
            logger.warning("the checkpoint has no Python schedulers; the prepared ones keep their state")
        if self.load_hooks:
            self._run_load_hooks(state)

    def _run_load_hooks(self, state: Any) -> None:
        models = list(self._accelerator._models)
        known = list(models)
        with tempfile.TemporaryDirectory(prefix="lockstep-hooks-") as folder:
            for rank in range(self._accelerator.num_processes):
                name = _HOOK_FILES.format(rank)
                for path, data in (state.tensors(name) if state.has_file(name) else {}).items():
                    target = Path(folder, path)
                    if not target.resolve().is_relative_to(Path(folder).resolve()):
                        raise _core.CheckpointError(f"[load_state] {name} has a file outside its folder: {path}")
                    os.makedirs(target.parent, exist_ok=True)
                    target.write_bytes(data.numpy().tobytes())
            for hook in list(self.load_hooks.values()):
                # A hook pops the models that it loads itself.
                hook(models, folder)
        for index, model in enumerate(known):
            if not any(model is remaining for remaining in models):
                state.take_over(index)

    def apply(self) -> None:
        """Applies the state that load() has read. The C++ library has loaded its part by then."""
        pending, self._pending = self._pending, []
        for step in pending:
            step()
