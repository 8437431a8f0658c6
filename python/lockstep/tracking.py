# SPDX-License-Identifier: Apache-2.0
"""Trackers of a run's values.

The Accelerator's log_with takes names and objects. "csv", "jsonl" and "tensorboard" are Lockstep's; a class derived
from GeneralTracker is the program's own.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

from ._core import ConfigError
from .utils.dataclasses import LoggerType
from .utils.operations import listify

__all__ = [
    "GeneralTracker",
    "LOGGER_TYPE_TO_CLASS",
    "NATIVE_TRACKERS",
    "TensorBoardTracker",
    "filter_trackers",
    "get_available_trackers",
    "on_main_process",
    "register_tracker_class",
]

# The trackers of the C++ library.
NATIVE_TRACKERS = ("csv", "jsonl", "tensorboard")


def on_main_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method: other processes than 0 do not run it if the object's `main_process_only` is true."""

    @wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "main_process_only", False):
            from .state import PartialState

            if not PartialState().is_main_process:
                return None
        return function(self, *args, **kwargs)

    return wrapper


class GeneralTracker:
    """Base of a program's own tracker.

    A derived class has the attributes `name`, `requires_logging_directory` and `tracker`, the object of its package.
    With `main_process_only` its decorated methods run only on process 0.
    """

    name: str
    requires_logging_directory: bool
    main_process_only = True

    if TYPE_CHECKING:  # Not defined at run time: the constructor looks for it.

        @property
        def tracker(self) -> Any: ...

    def __init__(self, _blank: bool = False) -> None:
        missing = [name for name in ("name", "requires_logging_directory", "tracker") if name not in dir(self)]
        if missing and not _blank:
            raise NotImplementedError(
                f"the class {type(self).__name__} lacks {', '.join(missing)}; a GeneralTracker defines them"
            )

    def start(self) -> None:
        """Opens the run. `Accelerator.init_trackers` calls it after the processes are connected."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Stores the run's settings."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Stores the values of a step."""

    def finish(self) -> None:
        """Closes the run."""


class TensorBoardTracker(GeneralTracker):
    """Writes TensorBoard's files by torch's SummaryWriter, which can also write images and text.

    It needs the package tensorboard. log_with="tensorboard" without it writes numbers only.
    """

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = os.path.join(logging_dir, run_name)
        self.init_kwargs = kwargs
        self.writer: Any = None

    @on_main_process
    def start(self) -> None:
        """Opens the files in logging_dir/run_name."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoardTracker needs the package tensorboard; run `pip install tensorboard`"
            ) from error
        self.writer = SummaryWriter(self.logging_dir, **self.init_kwargs)

    @property
    def tracker(self) -> Any:
        """The SummaryWriter; None on processes that do not write."""
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Stores the settings as TensorBoard's hyperparameters, and in hparams.yml."""
        self.writer.add_hparams(values, metric_dict={})
        self.writer.flush()
        folder = os.path.join(self.logging_dir, str(time.time()))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "hparams.yml"), "w", encoding="utf-8") as file:
            # JSON's scalars are YAML's.
            file.writelines(f"{json.dumps(str(key))}: {json.dumps(value)}\n" for key, value in values.items())

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Stores numbers, texts and dicts of numbers. Throws ConfigError for a value of another type."""
        for key, value in listify(values).items():
            if isinstance(value, str):
                self.writer.add_text(key, value, global_step=step, **kwargs)
            elif isinstance(value, dict):
                self.writer.add_scalars(key, value, global_step=step, **kwargs)
            elif hasattr(value, "__float__"):
                self.writer.add_scalar(key, float(value), global_step=step, **kwargs)
            else:
                raise ConfigError(
                    f"[log] the value of {key!r} is of type {type(value).__name__}; expected a number, text or a dict "
                    "of numbers"
                )
        self.writer.flush()

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Stores batches of images. `kwargs` are those of SummaryWriter.add_images."""
        for key, images in values.items():
            self.writer.add_images(key, images, global_step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Closes the files."""
        if self.writer is not None:
            self.writer.close()


# The classes that names of log_with stand for.
LOGGER_TYPE_TO_CLASS: dict[str, type[GeneralTracker]] = {"tensorboard": TensorBoardTracker}


def get_available_trackers() -> list[str]:
    """Returns the names that log_with accepts."""
    return [*NATIVE_TRACKERS, *(name for name in LOGGER_TYPE_TO_CLASS if name not in NATIVE_TRACKERS)]


def register_tracker_class(tracker_class: type[GeneralTracker]) -> None:
    """Makes log_with accept a class's `name`. Warns if it takes the place of another class."""
    if not (isinstance(tracker_class, type) and issubclass(tracker_class, GeneralTracker)):
        raise ConfigError(
            f"[register_tracker_class] got {tracker_class!r}; expected a class derived from GeneralTracker"
        )
    for attribute in ("name", "requires_logging_directory"):
        if not hasattr(tracker_class, attribute) or getattr(tracker_class, attribute) in ("", None):
            raise ConfigError(f"[register_tracker_class] {tracker_class.__name__} lacks the attribute {attribute}")
    if tracker_class.name in LOGGER_TYPE_TO_CLASS or tracker_class.name in NATIVE_TRACKERS:
        warnings.warn(f"{tracker_class.__name__} takes the place of the tracker {tracker_class.name!r}", stacklevel=2)
    LOGGER_TYPE_TO_CLASS[tracker_class.name] = tracker_class


def filter_trackers(log_with: Any, logging_dir: Any = None) -> list[str | GeneralTracker]:
    """Returns the trackers of the Accelerator's log_with: names, each once, and GeneralTracker objects.

    "all" stands for all names that are available. Throws ConfigError for an unknown name, for a tracker that Lockstep
    lacks, and for one that needs a folder if `logging_dir` is None.
    """
    if log_with is None:
        return []
    trackers: list[str | GeneralTracker] = []
    for choice in log_with if isinstance(log_with, (list, tuple)) else [log_with]:
        if isinstance(choice, GeneralTracker):
            trackers.append(choice)
            continue
        name = str(choice).lower()
        for one in get_available_trackers() if name == "all" else [name]:
            _check_name(one, logging_dir)
            if one not in trackers:
                trackers.append(one)
    return trackers


def _check_name(name: str, logging_dir: Any) -> None:
    available = get_available_trackers()
    if name not in available:
        known = ", ".join(available)
        if name in LoggerType.list():
            raise ConfigError(
                f"[log_with] Lockstep has no tracker {name!r}; expected one of {known}; or derive a class from "
                f"lockstep.tracking.GeneralTracker that calls {name}, and pass an object of it"
            )
        raise ConfigError(f"[log_with] unknown tracker {name!r}; expected one of {known}, or a GeneralTracker")
    needs_folder = name in NATIVE_TRACKERS or LOGGER_TYPE_TO_CLASS[name].requires_logging_directory
    if needs_folder and logging_dir is None:
        raise ConfigError(f"[log_with] the tracker {name!r} needs a folder; pass project_dir to the Accelerator")


_ABSENT = (
    "AimTracker ClearMLTracker CometMLTracker DVCLiveTracker MLflowTracker SwanLabTracker TrackioTracker WandBTracker"
).split()


def __getattr__(name: str) -> NoReturn:
    if name in _ABSENT:
        raise ImportError(
            f"lockstep.tracking has no {name}; derive a class from GeneralTracker, and pass an object of it"
        )
    raise AttributeError(f"module 'lockstep.tracking' has no attribute {name!r}")
