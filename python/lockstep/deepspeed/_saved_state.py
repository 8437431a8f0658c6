# SPDX-License-Identifier: Apache-2.0
"""The parts of an engine's checkpoint that only Python has: its scheduler, loaders, random states, client state."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from .._codec import flatten
from .._saved_parts import Part, add_part, decoded_part, read_part
from ..checkpointing import SHARED, PendingState, add_random_states, loading, scheduling
from .utils.logging import logger

if TYPE_CHECKING:
    from ._checkpoints import EngineCheckpoints

_ENGINE_FILE = "engine.json"  # The C++ library writes it.
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

    def __init__(self, engine: EngineCheckpoints) -> None:
        self._reference = weakref.ref(engine)  # The C++ engine owns this object.
        self._client_tensors: dict[str, torch.Tensor] = {}
        self._pending = PendingState()
        self.loads_everything = True  # Whether a load applies more than the model.
        self.loads_scheduler = True
        self._client: Any = None  # The decoded client state of a checkpoint.
        accelerator = engine.core.accelerator
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)

    @property
    def _engine(self) -> EngineCheckpoints:
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
        add_random_states(state, engine.global_rank)
        if engine.writes_shared_state():
            scheduler = engine.python_scheduler
            shared = {
                "scheduler": None if scheduler is None else scheduler.state_dict(),
                "loaders": [loader._saved_state() for loader in engine._loaders],
            }
            add_part(state, SHARED, shared)
            tied = tied_names(engine._own_module)
            if tied:
                state.add_json(TIED_NAMES, tied)
            if self._client_tensors:
                state.add_tensors(_CLIENT_TENSORS, self._client_tensors)

    # --- loading
    def _load(self, state: Any) -> None:
        """Runs before anything is changed: reads and checks all of Python's files that will be applied."""
        self._pending = PendingState()
        self._client = self._read_client_state(state)
        if not self.loads_everything:
            return
        shared = read_part(state, SHARED, "load_checkpoint")
        if shared is not None:
            self._check_shared(shared)
        elif self.loads_scheduler and self._engine.python_scheduler is not None:
            logger.warning("the checkpoint has no state of Python's scheduler; the scheduler keeps its own")
        self._pending.add_random_states(state, self._engine.global_rank, "load_checkpoint")

    def _check_shared(self, shared: Part) -> None:
        engine = self._engine
        saved = list(shared.item("loaders").items())
        if saved and len(saved) != len(engine._loaders):
            raise _core.CheckpointError(
                f"[load_checkpoint] the checkpoint has {len(saved)} loaders, and the engine has "
                f"{len(engine._loaders)}; pass the same training_data to initialize"
            )
        self._pending.add(*(loading(loader, part) for loader, part in zip(engine._loaders, saved)))
        scheduler = shared.item("scheduler")
        if not self.loads_scheduler:
            return
        if engine.python_scheduler is None:
            if scheduler.value is not None:
                logger.warning("the checkpoint has the state of a program's scheduler, which this run lacks")
        elif scheduler.value is None:
            raise _core.CheckpointError(
                "[load_checkpoint] the checkpoint has no state of the program's scheduler; save with it, or pass "
                "load_lr_scheduler_states=False"
            )
        else:
            self._pending.add(scheduling(engine.python_scheduler, scheduler))

    def apply(self) -> None:
        """Applies the state that _load() has read. The C++ library has loaded its part by then."""
        self._pending.apply()

    # --- client state
    def _read_client_state(self, state: Any) -> Any:
        """Returns the client state as it was passed to save_checkpoint; plain JSON is left to the C++ library."""
        tensors = state.tensors(_CLIENT_TENSORS) if state.has_file(_CLIENT_TENSORS) else {}
        engine = Part(state.json(_ENGINE_FILE), _ENGINE_FILE, "load_checkpoint")
        value = engine.item("client_state").value
        if isinstance(value, dict) and set(value) == {_CODED}:
            return decoded_part(value[_CODED], tensors, f"{_ENGINE_FILE}, client_state", "load_checkpoint").value
        return None

    def client_state(self, json_value: Any) -> dict[str, Any]:
        """Returns the client state of the last load. `json_value`: what the C++ library has read."""
        if json_value is None:
            return {}
        if isinstance(json_value, dict) and set(json_value) == {_CODED}:
            return self._client
        return json_value
