# SPDX-License-Identifier: Apache-2.0
"""The objects that all groups of an Accelerator's calls use."""
from __future__ import annotations

from typing import Any

import torch

from .. import _core
from ..optimizer import AcceleratedOptimizer
from ..scheduler import AcceleratedScheduler
from ..state import AcceleratorState
from ..utils._deepspeed_wrappers import DeepSpeedEngineWrapper
from ..utils.dataclasses import ProjectConfiguration
from .no_sync import NoSyncBlocks
from .sequence_block import SequenceBlocks


class AcceleratorBase:
    """The process's state, the C++ Accelerator, the project's folders, and the prepared objects.

    Each group of calls derives from it. Names of the lists are Accelerate's.
    """

    def __init__(
        self, state: AcceleratorState, core: _core.Accelerator, project_configuration: ProjectConfiguration
    ) -> None:
        self.state = state
        self.project_configuration = project_configuration
        self._core = core
        self._engine: DeepSpeedEngineWrapper | None = None  # Trains the model, with a ds_config.
        self._max_grad_norm = 0.0  # Of the gradients of each update; 0: any. MegatronLMPlugin's gradient_clipping.
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[AcceleratedOptimizer] = []
        self._schedulers: list[AcceleratedScheduler] = []
        self._dataloaders: list[Any] = []
        self._custom_objects: list[Any] = []
        self._sequences = SequenceBlocks()
        self._no_sync = NoSyncBlocks(core, state)
