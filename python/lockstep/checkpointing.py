# SPDX-License-Identifier: Apache-2.0
"""The parts of a checkpoint that only Python has: random states of Python and numpy, schedulers, orders of samplers,
and files of the program's own hooks."""
from __future__ import annotations

import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from ._codec import flatten, unflatten
from ._full_state import divides_model
from ._random_states import check_loader_state, check_random_states, random_states, set_random_states
from ._saved_parts import Part, add_part, check_like, check_object, read_part
from ._weak import weak_method
from .logging import get_logger

if TYPE_CHECKING:
    from .accelerator.base import AcceleratorBase

logger = get_logger(__name__)

SHARED = "python_state"
_OF_RANK = "python_state_of_rank_{}"
_HOOK_FILES = "hook_files_of_rank_{}.safetensors"


def loading(loader: Any, saved: Part) -> Callable[[], None]:
    """Checks the state of a prepared loader. Returns the function that applies it."""
    check_loader_state(saved)
    return partial(loader._load_saved_state, saved.value)


def scheduling(scheduler: Any, saved: Part) -> Callable[[], None]:
    """Checks the state of a program's scheduler. Returns the function that applies it."""
    saved.expect(dict, "a dict, as the scheduler's state_dict() returns")
    check_like(saved, scheduler.state_dict())

    def apply() -> None:
        try:
            scheduler.load_state_dict(saved.value)
        except Exception as error:
            kind = type(getattr(scheduler, "scheduler", scheduler)).__name__
            raise saved.error(f"a state that {kind}.load_state_dict() takes ({type(error).__name__}: {error})") from error

    return apply


class PendingState:
    """State of a checkpoint that was read and checked, and is applied after the C++ library has loaded its part."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def add(self, *steps: Callable[[], None]) -> None:
        """Adds functions that apply() calls, in this order."""
        self._steps += steps

    def add_random_states(self, state: Any, rank: int, where: str) -> None:
        """Adds the random states of a rank, if the checkpoint has them. Others may draw numbers, so they come last."""
        own = read_part(state, _OF_RANK.format(rank), where)
        if own is not None:
            check_random_states(own.item("random"))
            self.add(partial(set_random_states, own.value["random"]))

    def apply(self) -> None:
        """Applies the state, once."""
        steps, self._steps = self._steps, []
        for step in steps:
            step()


def add_random_states(state: Any, rank: int) -> None:
    """Adds this process's random states to a checkpoint."""
    add_part(state, _OF_RANK.format(rank), {"random": random_states()})


class PythonState:
    """Adds Python's part to the checkpoints of an Accelerator, and loads it."""

    def __init__(self, accelerator: AcceleratorBase) -> None:
        self._accelerator = weakref.proxy(accelerator)  # Which owns this object.
        accelerator._core.register_save_state_pre_hook(weak_method(self.save))
        accelerator._core.register_load_state_pre_hook(weak_method(self.load))
        self._pending = PendingState()
        self.loads_loop = True  # Whether a load applies more than models and optimizers.
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
        add_random_states(state, accelerator.state.process_index)
        if accelerator.state.is_main_process:
            shared = {
                "schedulers": [scheduler.state_dict() for scheduler in accelerator._schedulers],
                "loaders": [loader._saved_state() for loader in accelerator._dataloaders],
            }
            add_part(state, SHARED, shared)
        if self.save_hooks:
            self._run_save_hooks(state)

    def _run_save_hooks(self, state: Any) -> None:
        accelerator = self._accelerator
        models = list(accelerator._models)
        # Those of a divided model are put together, so that a hook never saves a part of them.
        core = accelerator._core
        divides = divides_model(core)
        shards = core.shards_parameters
        weights: list[Any] = [
            None if shards else accelerator.get_state_dict(model) if divides else model.state_dict() for model in models
        ]
        kept = list(zip(range(len(models)), weights))
        with tempfile.TemporaryDirectory(prefix="lockstep-hooks-") as folder:
            for hook in list(self.save_hooks.values()):
                # A hook pops the weights of models that it saves itself.
                hook(models, weights, folder)
            remaining = {id(weight) for weight in weights}
            if len(weights) != len(kept):
                for index, weight in kept:
                    if accelerator._engine is None and (weight is None or id(weight) not in remaining):
                        state.exclude_model(index)
            files = {
                str(path.relative_to(folder)): torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).clone()
                for path in sorted(Path(folder).rglob("*"))
                if path.is_file() and path.stat().st_size > 0
            }
        if files:
            state.add_tensors(_HOOK_FILES.format(accelerator.state.process_index), files)

    def load(self, state: Any) -> None:
        """Runs within load_state, before anything is changed: reads and checks all of Python's files."""
        accelerator = self._accelerator
        self._pending = PendingState()
        if accelerator._engine is not None:
            accelerator._engine.check(state.folder)
        if not self.loads_loop:
            self._check_objects(state)
            return
        shared = read_part(state, SHARED, "load_state")
        if shared is not None:
            self._check_shared(shared)
        elif accelerator._schedulers:
            logger.warning("the checkpoint has no Python schedulers; the prepared ones keep their state")
        self._pending.add_random_states(state, accelerator.state.process_index, "load_state")
        self._check_objects(state)
        if self.load_hooks:
            self._run_load_hooks(state)

    def _check_shared(self, shared: Part) -> None:
        for name, objects, check in (
            ("loaders", self._accelerator._dataloaders, loading),
            ("schedulers", self._accelerator._schedulers, scheduling),
        ):
            saved = list(shared.item(name).items())
            if len(saved) != len(objects):
                raise _core.CheckpointError(
                    f"[load_state] the checkpoint has {len(saved)} {name}, and {len(objects)} are prepared; "
                    "prepare the same objects in the same order"
                )
            self._pending.add(*(check(obj, part) for obj, part in zip(objects, saved)))

    def _check_objects(self, state: Any) -> None:
        """Decodes the states that the C++ library passes to Python when the models are loaded already."""
        rank = self._accelerator.state.process_index
        for index in range(len(self._accelerator._custom_objects)):
            stem = f"custom_checkpoint_{index}"
            check_object(state, [stem, f"{stem}_of_rank_{rank}"], "load_state")
        for index, optimizer in enumerate(self._accelerator._optimizers):
            if optimizer._name is None:  # Its own step() updates.
                stem = "optimizer" if index == 0 else f"optimizer_{index}"
                saved = check_object(state, [stem, f"{stem}_of_rank_{rank}"], "load_state", "state")
                if saved is not None:
                    _check_optimizer(saved, optimizer.optimizer)

    def _run_load_hooks(self, state: Any) -> None:
        models = list(self._accelerator._models)
        known = list(models)
        with tempfile.TemporaryDirectory(prefix="lockstep-hooks-") as folder:
            for rank in range(self._accelerator.state.num_processes):
                name = _HOOK_FILES.format(rank)
                for path, data in (state.tensors(name) if state.has_file(name) else {}).items():
                    _write_hook_file(Path(folder), path, Part(data, name, "load_state", f"[{path!r}]"))
            for hook in list(self.load_hooks.values()):
                # A hook pops the models that it loads itself.
                hook(models, folder)
        for index, model in enumerate(known):
            if not any(model is remaining for remaining in models):
                state.exclude_model(index)

    def apply(self) -> None:
        """Applies the state that load() has read. The C++ library has loaded its part by then."""
        self._pending.apply()


def _write_hook_file(folder: Path, path: str, content: Part) -> None:
    """Writes a file of the program's save hook for its load hook."""
    data = content.value
    if data.dtype != torch.uint8 or data.dim() != 1:
        raise content.error("the bytes of a file")
    target = folder / path
    try:
        if not target.resolve().is_relative_to(folder.resolve()):
            raise content.error("a path within the hook's folder", f"a file outside of the hook's folder, {path}")
        os.makedirs(target.parent, exist_ok=True)
        target.write_bytes(data.numpy().tobytes())
    except (OSError, ValueError) as error:
        raise content.error(f"a file that can be written ({error})") from error


def _check_optimizer(saved: Part, optimizer: torch.optim.Optimizer) -> None:
    """Throws CheckpointError unless the saved state has the parameter groups of the optimizer."""
    saved.item("state").expect(dict, "a dict")
    groups = list(saved.item("param_groups").items())
    if len(groups) != len(optimizer.param_groups):
        raise saved.item("param_groups").error(f"{len(optimizer.param_groups)} parameter groups, as the optimizer has")
    for part, group in zip(groups, optimizer.param_groups):
        params = part.item("params")
        if len(params.expect(list, "a list")) != len(group["params"]):
            raise params.error(f"{len(group['params'])} parameters, as the optimizer's group has")
