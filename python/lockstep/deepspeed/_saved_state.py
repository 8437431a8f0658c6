# SPDX-License-Identifier: Apache-2.0
"""The parts of an engine's checkpoint that only Python has: its scheduler, loaders, random states, client state."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from .._codec import flatten, unflatten
from ..checkpointing import _OF_RANK, _SHARED, _add, _random_states, _read, _set_random_states
from .utils.logging import logger

if TYPE_CHECKING:
    from .engine import DeepSpeedEngine

_CLIENT_TENSORS = "client_state.safetensors"
TIED_NAMES = "tied_names.json"  # The names of each tensor of the model that has several; the file is absent without.
_CODED = "lockstep.python"  # The key of a client state that is more than plain JSON.


def _is_plain(value: Any) -> bool:
    """Returns whether JSON preserves a value exactly."""
    if value is None or type(value) in (bool, str, float):
        return True
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is list:
        return all(_is_plain(item) for item in value)
    return type(value) is dict and all(type(key) is str and _is_plain(item) for key, item in value.items())


def tied_names(model: torch.nn.Module) -> list[list[str]]:
    """Returns the names of each parameter or saved buffer that has several, as tied weights do."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return [several for several in names.values() if len(several) > 1]


class SavedState:
    """Adds Python's part to an engine's checkpoints, and loads it."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._reference = weakref.ref(engine)  # The C++ engine owns this object.
        self._client_tensors: dict[str, torch.Tensor] = {}
        self._read: dict[str, Any] = {}
        accelerator = engine.core.accelerator
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)

    @property
    def _engine(self) -> DeepSpeedEngine:
        engine = self._reference()
        assert engine is not None, "hooks run within calls of the engine"
        return engine

    # --- saving
    def client_json(self, client_state: dict[str, Any]) -> Any:
        """Returns the JSON part of a client state; the tensors become a file of the next save."""
        if _is_plain(client_state) and _CODED not in client_state:
            self._client_tensors = {}
            return client_state
        values, self._client_tensors = flatten(client_state, "save_checkpoint")
        return {_CODED: values}

    def end_save(self) -> None:
        self._client_tensors = {}

    def _save(self, state: Any) -> None:
        engine = self._engine
        _add(state, _OF_RANK.format(engine.global_rank), {"random": _random_states()})
        if engine.writes_shared_state():
            scheduler = engine.python_scheduler
            shared = {
                "scheduler": None if scheduler is None else scheduler.state_dict(),
                "loaders": [loader._saved_state() for loader in engine._loaders],
            }
            _add(state, _SHARED, shared)
            tied = tied_names(engine._own_module)
            if tied:
                state.add_json(TIED_NAMES, tied)
            if self._client_tensors:
                state.add_tensors(_CLIENT_TENSORS, self._client_tensors)

    # --- loading
    def _load(self, state: Any) -> None:
        """Runs before anything is changed: reads all of Python's files."""
        self._read = {
            "own": _read(state, _OF_RANK.format(self._engine.global_rank)),
            "shared": _read(state, _SHARED),
            "client_tensors": state.tensors(_CLIENT_TENSORS) if state.has_file(_CLIENT_TENSORS) else {},
        }
        shared = self._read["shared"]
        if not self._engine._loads_everything or shared is None:
            return
        loaders = self._engine._loaders
        if shared["loaders"] and len(shared["loaders"]) != len(loaders):
            raise _core.CheckpointError(
                f"[load_checkpoint] the checkpoint has {len(shared['loaders'])} loaders, and the engine has "
                f"{len(loaders)}; pass the same training_data to initialize"
            )
        if self._engine._loads_scheduler and self._engine.python_scheduler is not None and shared["scheduler"] is None:
            raise _core.CheckpointError(
                "[load_checkpoint] the checkpoint has no state of the program's scheduler; save with it, or pass "
                "load_lr_scheduler_states=False"
            )

    def apply(self, everything: bool, scheduler: bool) -> None:
        """Applies the state that _load() has read. The C++ library has loaded its part by then."""
        own, shared = self._read.get("own"), self._read.get("shared")
        if everything and own is not None:
            _set_random_states(own["random"])
        if shared is None:
            if scheduler and self._engine.python_scheduler is not None:
                logger.warning("the checkpoint has no state of Python's scheduler; the scheduler keeps its own")
            return
        if everything:
            for loader, saved in zip(self._engine._loaders, shared["loaders"]):
                loader._load_saved_state(saved)
        if scheduler and shared["scheduler"] is not None:
            if self._engine.python_scheduler is None:
                logger.warning("the checkpoint has the state of a program's scheduler, which this run lacks")
            else:
                self._engine.python_scheduler.load_state_dict(shared["scheduler"])

    def client_state(self, json_value: Any) -> dict[str, Any]:
        """Returns the client state as it was passed to save_checkpoint."""
        if json_value is None:
            return {}
        if isinstance(json_value, dict) and set(json_value) == {_CODED}:
            return unflatten(json_value[_CODED], self._read["client_tensors"], "load_checkpoint")
        return json_value
