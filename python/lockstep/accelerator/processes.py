# SPDX-License-Identifier: Apache-2.0
"""The rank of this process, and code for one process at a time."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..state import PartialState
from ..utils.dataclasses import DistributedType
from .base import AcceleratorBase


class ProcessCalls(AcceleratorBase):
    """The calls of an Accelerator about its process."""

    @property
    def use_distributed(self) -> bool:
        return self.state.use_distributed

    @property
    def multi_device(self) -> bool:
        return self.use_distributed

    @property
    def distributed_type(self) -> DistributedType:
        return self.state.distributed_type

    @property
    def num_processes(self) -> int:
        return self.state.num_processes

    @property
    def process_index(self) -> int:
        return self.state.process_index

    @property
    def local_process_index(self) -> int:
        return self.state.local_process_index

    @property
    def device(self) -> torch.device:
        return self.state.device

    @property
    def is_main_process(self) -> bool:
        return self.state.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        return self.state.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        return self.state.is_last_process

    @property
    def should_save_model(self) -> bool:
        return self.is_main_process

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        with PartialState().split_between_processes(inputs, apply_padding) as share:
            yield share

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        with PartialState().main_process_first():
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        with PartialState().local_main_process_first():
            yield

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        return PartialState().on_main_process(function)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        return PartialState().on_local_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return PartialState().on_last_process(function)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Callable[..., Any]:
        return PartialState().on_process(function, process_index)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Callable[..., Any]:
        return PartialState().on_local_process(function, local_process_index)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints once on each host."""
        self.state.print(*args, **kwargs)

    def wait_for_everyone(self) -> None:
        """Blocks until every process has called it. Collective."""
        self._core.wait_for_everyone()
