# SPDX-License-Identifier: Apache-2.0
"""Trackers of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import _core
from ..state import AcceleratorState
from ..tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, NativeTracker, WandBTracker, is_native
from ..utils.dataclasses import ProjectConfiguration


def native_names(log_with: list[Any]) -> list[str]:
    """Returns the names among the trackers of log_with that the C++ library serves."""
    return [choice for choice in log_with if isinstance(choice, str) and is_native(choice)]


class Trackers:
    """The trackers of an Accelerator: those of the C++ library, and the objects of Python's."""

    def __init__(
        self,
        state: AcceleratorState,
        core: _core.Accelerator,
        project_configuration: ProjectConfiguration,
        log_with: list[str | GeneralTracker],
    ) -> None:
        self._state = state
        self._core = core
        self._project = project_configuration
        self.log_with = log_with
        self.opened: list[GeneralTracker] = []
        self._media: GeneralTracker | None = None
        self._project_name = "logs"  # That of a program which does not call init_trackers().

    def init(self, project_name: str, config: dict[str, Any] | None, init_kwargs: dict[str, Any]) -> None:
        """Opens the trackers; see Accelerator.init_trackers."""
        self._project_name = project_name
        self.opened = [choice for choice in self.log_with if isinstance(choice, GeneralTracker)]
        for name in self.log_with:
            if isinstance(name, str) and not is_native(name):
                self.opened.append(self._make_tracker(name, project_name, init_kwargs.get(name, {})))
        unknown = set(init_kwargs) - {tracker.name for tracker in self.opened}
        if unknown:
            raise _core.ConfigError(
                f"[init_trackers] init_kwargs has options for {sorted(unknown)}, which take none here"
            )
        if native_names(self.log_with):
            self._core.init_trackers(project_name, {} if config is None else config)
        for tracker in self.opened:
            if not getattr(tracker, "main_process_only", True) or self._state.is_main_process:
                tracker.start()
                if config is not None:
                    tracker.store_init_configuration(config)

    def _make_tracker(self, name: str, run: str, options: dict[str, Any]) -> GeneralTracker:
        kind = LOGGER_TYPE_TO_CLASS[name]
        build: Callable[..., GeneralTracker] = kind  # The constructors of derived classes have other arguments.
        folder = self._folder_of(run) if name in ("mlflow", "wandb") else None
        if name == "mlflow":
            options = {"logging_dir": folder, **options}
        if kind.requires_logging_directory:
            return build(run, self._project.logging_dir, **options)
        tracker = build(run, **options)
        if isinstance(tracker, WandBTracker) and folder is not None:
            tracker.folder = folder
        return tracker

    def _folder_of(self, run: str) -> str | None:
        """Returns the folder of a run's files; None without a logging_dir."""
        parent = self._project.logging_dir
        if parent is None:
            return None
        if not run or os.path.isabs(run) or ".." in Path(run).parts:
            raise _core.ConfigError(
                f"[init_trackers] project_name must name a folder in {os.fspath(parent)}; got {run!r}, expected "
                "a relative path without '..'"
            )
        return os.path.join(parent, run)

    def get(self, name: str, unwrap: bool) -> Any:
        """Returns the tracker of this name; see Accelerator.get_tracker."""
        for tracker in self.opened:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        if not self._state.is_main_process:
            return GeneralTracker(_blank=True)
        if name == "tensorboard" and name in native_names(self.log_with):
            tracker = self._make_tracker(name, os.path.join(self._project_name, "media"), {})
            tracker.start()
            self._media = tracker
            return tracker.tracker if unwrap else tracker
        if any(choice.split(":")[0] == name for choice in native_names(self.log_with)):
            native = NativeTracker(self._core.get_tracker(name))
            return native.tracker if unwrap else native
        raise _core.ConfigError(
            f"[get_tracker] there is no tracker object named '{name}'; expected one of "
            f"{[tracker.name for tracker in self.opened] + native_names(self.log_with)}"
        )

    def log(self, values: dict[str, Any], step: int | None, log_kwargs: dict[str, Any]) -> None:
        """Logs values to all trackers; see Accelerator.log."""
        if native_names(self.log_with):
            texts = {name: value for name, value in values.items() if isinstance(value, str)}
            numbers = {
                name: float(value)
                for name, value in values.items()
                if isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
            }
            absent = {name for name, value in values.items() if value is None}  # Programs have no value yet.
            others = sorted(set(values) - set(numbers) - set(texts) - absent)
            if others:
                raise _core.ConfigError(
                    f"[log] the values of {others} are not numbers; expected int, float, str or a tensor of one element"
                )
            self._core.log(numbers, step)
            if texts:
                self._core.log_text(texts, step)
        for tracker in self.opened:
            if not getattr(tracker, "main_process_only", True) or self._state.is_main_process:
                tracker.log(values, step=step, **log_kwargs.get(tracker.name, {}))

    def end(self) -> None:
        """Closes the trackers, after every process has called it. Collective."""
        for tracker in [*self.opened, *([self._media] if self._media is not None else [])]:
            if not getattr(tracker, "main_process_only", True) or self._state.is_main_process:
                tracker.finish()
        self._media = None
        self._core.end_training()
