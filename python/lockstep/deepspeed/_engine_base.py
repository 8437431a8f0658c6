# SPDX-License-Identifier: Apache-2.0
"""The objects that all groups of an engine's methods use."""

from __future__ import annotations

from typing import Any

import torch

from .._own_module import own_module
from ..state import PartialState
from ._config import GivenConfig
from ._optimizer import DeepSpeedOptimizer

__all__ = ["EngineBase"]


class EngineBase(torch.nn.Module):
    """The C++ engine, the model, its optimizer, the configuration, and the rank.

    Each group of methods derives from it.
    """

    def __init__(
        self, model: torch.nn.Module, initialized: Any, optimizer: DeepSpeedOptimizer | None, given: GivenConfig
    ) -> None:
        """`initialized` is what _core.initialize() returned; `optimizer` is None for that of the file."""
        super().__init__()
        self.module = model
        self.training = model.training
        self.core = initialized.engine
        self.given_config = given
        self._config: dict[str, Any] = self.core.config
        self.optimizer = optimizer
        if optimizer is None and initialized.optimizer is not None:
            self.optimizer = DeepSpeedOptimizer.of_file(initialized.inner, initialized.groups)
        state = PartialState()
        self.device = state.device
        self.world_size = state.num_processes
        self.global_rank = state.process_index
        self.local_rank = state.local_process_index
        data = self.core.accelerator.data_group
        self.dp_world_size: int = data.size
        self.dp_rank: int = data.rank

    @property
    def _own_module(self) -> torch.nn.Module:
        return own_module(self.module)

    def _value(self, path: str) -> Any:
        return self._config.get(path)
