# SPDX-License-Identifier: Apache-2.0
"""Trackers of a run's values.

The Accelerator's log_with takes names and objects. "csv", "jsonl", "tensorboard", "exec:COMMAND", "mlflow" and
"wandb" are Lockstep's; a class derived from GeneralTracker is the program's own.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import numpy
import torch

from . import _core
from ._core import ConfigError
from .state import PartialState
from .utils.dataclasses import LoggerType
from .utils.operations import listify

__all__ = [
    "GeneralTracker",
    "LOGGER_TYPE_TO_CLASS",
    "MLflowTracker",
    "NATIVE_TRACKERS",
    "TensorBoardTracker",
    "WandBTracker",
    "filter_trackers",
    "get_available_trackers",
    "on_main_process",
    "register_tracker_class",
]

# The trackers of the C++ library that the Accelerator itself opens; "exec:COMMAND" is another one.
NATIVE_TRACKERS = ("csv", "jsonl", "tensorboard")


def is_native(name: str) -> bool:
    """Returns whether the Accelerator itself opens the tracker of this name."""
    return name in NATIVE_TRACKERS or name.startswith("exec:")


def on_main_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method: other processes than 0 do not run it if the object's `main_process_only` is true."""

    @wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "main_process_only", False) and not PartialState().is_main_process:
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


def _batch(name: str, images: Any, dataformats: str | None) -> torch.Tensor:
    """Returns images as a tensor of shape [N, C, H, W]: a batch, or a list of tensors (CHW), arrays or pictures (HWC)."""
    if dataformats is not None and dataformats not in ("NCHW", "NHWC"):
        raise ConfigError(f"[log_images] invalid value {dataformats!r} for dataformats; expected NCHW or NHWC")
    if isinstance(images, torch.Tensor):
        return images.permute(0, 3, 1, 2) if dataformats == "NHWC" else images
    tensors = []
    for image in images:
        tensor = image if isinstance(image, torch.Tensor) else torch.as_tensor(numpy.array(image))
        if tensor.dim() == 2:
            tensor = tensor[None]
        elif dataformats == "NHWC" or (dataformats is None and not isinstance(image, torch.Tensor)):
            tensor = tensor.permute(2, 0, 1)
        tensors.append(tensor)
    if not tensors or any(tensor.shape != tensors[0].shape for tensor in tensors):
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise ConfigError(
            f"[log_images] the images {name!r} have the shapes {shapes}; expected one or more, of one shape"
        )
    return torch.stack(tensors)


def _cell(name: str, value: Any) -> Any:
    """Returns a table's cell as None, bool, int, float or str."""
    is_time = isinstance(value, (numpy.datetime64, numpy.timedelta64))  # item() may be its number of nanoseconds.
    if isinstance(value, (numpy.generic, torch.Tensor)) and value.ndim == 0 and not is_time:
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(
        f"[log_table] a cell of the table {name!r} is of type {type(value).__name__}; expected None, a bool, number or "
        "text; log pictures by log_images"
    )


def _table(name: str, columns: Any, data: Any, dataframe: Any) -> tuple[list[str], list[list[Any]]]:
    """Returns names of columns, and rows, of a list of rows, an array or a pandas.DataFrame."""
    if dataframe is None and hasattr(data, "columns"):
        data, dataframe = None, data
    if (data is None) == (dataframe is None):
        raise ConfigError(f"[log_table] the table {name!r} needs data or dataframe; expected one of them")
    if dataframe is not None:
        columns = list(dataframe.columns if columns is None else columns)
        data = dataframe[columns].astype(object).values
    if columns is None:
        raise ConfigError(f"[log_table] the columns of the table {name!r} are missing; expected a list of names")
    return [str(column) for column in columns], [[_cell(name, value) for value in row] for row in data]


class NativeTracker(GeneralTracker):
    """Base of the classes over a tracker of the C++ library; `tracker` is that object.

    Values that such a tracker does not store are a ConfigError.
    """

    name = "native"
    requires_logging_directory = False

    def __init__(self, native: _core.Tracker | None = None) -> None:
        super().__init__()
        self.native: Any = native
        self._next_step = 0
        if native is not None:
            self.name = native.name

    @property
    def tracker(self) -> Any:
        """The tracker of the C++ library; None before start, and on processes that do not log."""
        return self.native

    def _opened(self) -> Any:
        if self.native is None:
            raise ConfigError(
                f"[{self.name}] the tracker is not open; call start() or Accelerator.init_trackers() first"
            )
        return self.native

    def _step(self, step: int | None) -> int:
        number = self._next_step if step is None else int(step)
        self._next_step = number + 1
        return number

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Stores the run's settings."""
        self._opened().store_config(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Stores numbers, texts, and dicts of numbers as `name/key`. Without a step, the last one plus 1."""
        if kwargs:
            raise ConfigError(f"[log] the tracker {self.name!r} takes no options; got {sorted(kwargs)}")
        numbers: dict[str, float] = {}
        texts: dict[str, str] = {}
        for key, value in listify(values).items():
            if isinstance(value, str):
                texts[key] = value
                continue
            items = (
                {f"{key}/{inner}": item for inner, item in value.items()} if isinstance(value, dict) else {key: value}
            )
            for name, item in items.items():
                if not hasattr(item, "__float__"):
                    raise ConfigError(
                        f"[log] the value of {name!r} is of type {type(item).__name__}; expected a number, text or a "
                        "dict of numbers"
                    )
                numbers[name] = float(item)
        number = self._step(step)
        self._opened().log(numbers, number)
        if texts:
            self._opened().log_text(texts, number)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, dataformats: str | None = None) -> None:
        """Stores images: a tensor [N, C, H, W], or a list of arrays [H, W, C], pictures of PIL or tensors [C, H, W].

        They are bytes, or numbers from 0 to 1. `dataformats`: NCHW or NHWC.
        """
        images = {name: _batch(name, batch, dataformats) for name, batch in values.items()}
        self._opened().log_images(images, self._step(step))

    @on_main_process
    def log_histograms(self, values: dict[str, Any], step: int | None = None) -> None:
        """Stores the distributions of the elements of tensors or arrays."""
        tensors = {name: torch.as_tensor(value) for name, value in values.items()}
        self._opened().log_histograms(tensors, self._step(step))

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Stores a table: `columns` and `data`, a list of rows or an array, or a pandas.DataFrame.

        A cell is None, a bool, a number or text.
        """
        names, rows = _table(table_name, columns, data, dataframe)
        self._opened().log_table(table_name, names, rows, self._step(step))

    @on_main_process
    def finish(self) -> None:
        """Closes the run."""
        if self.native is not None:
            self.native.finish()


class WandBTracker(NativeTracker):
    """Writes an offline run of Weights & Biases; `wandb sync` uploads it. It does not need the package wandb.

    `kwargs` are those of wandb.init: name, entity, group, job_type, notes, tags, id, dir, config, and mode="offline".
    Without `dir` and WANDB_DIR the run is in `folder`/wandb, where the Accelerator sets `folder` to the project's.
    """

    name = "wandb"
    folder: str | os.PathLike[str] = "."

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        if kwargs.pop("mode", None) not in (None, "offline"):
            raise ConfigError(
                "[wandb] Lockstep writes offline runs; expected mode='offline'; upload them by `wandb sync`"
            )
        known = {"project", "entity", "name", "group", "job_type", "notes", "tags", "id", "dir", "config"}
        if set(kwargs) - known:
            raise ConfigError(
                f"[wandb] unknown options {sorted(set(kwargs) - known)}; expected some of {sorted(known)}"
            )
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        """Creates the run's folder, in the folder wandb of `dir`, of WANDB_DIR, or of `folder`."""
        options = {"project": self.run_name, **self.init_kwargs}
        config = options.pop("config", None)
        values = {
            key: list(value) if key == "tags" else str(value) for key, value in options.items() if value is not None
        }
        self.native = _core.WandbTracker(os.fspath(self.folder), values)
        if config:
            self.native.store_config(config)

    @property
    def run(self) -> Any:
        """The tracker of the C++ library, with `id` and `dir`."""
        return self.native


class MLflowTracker(NativeTracker):
    """Sends a run to the server of MLflow in MLFLOW_TRACKING_URI. It does not need the package mlflow.

    `logging_dir` is for the spool, ./mlflow-spool if None. MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID and MLFLOW_TAGS
    override the arguments.
    """

    name = "mlflow"

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        nested_run: bool | None = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        if nested_run:
            raise ConfigError("[mlflow] nested_run is not supported; expected False; set the tag mlflow.parentRunId")
        self.experiment_name = experiment_name
        self.folder = os.fspath(logging_dir) if logging_dir is not None else "mlflow-spool"
        self.options = {
            "experiment_name": experiment_name or "",
            "run_id": run_id or "",
            "run_name": run_name or "",
            "description": description or "",
        }
        parsed = json.loads(tags) if isinstance(tags, str) else tags or {}
        self.tags = {str(key): str(value) for key, value in parsed.items()}

    @on_main_process
    def start(self) -> None:
        """Opens the spool. The run is created as soon as the server answers."""
        self.native = _core.MlflowTracker(self.folder, tags=self.tags, **self.options)

    @on_main_process
    def log_artifact(self, local_path: str | os.PathLike[str], artifact_path: str | None = None) -> None:
        """Stores a file as artifact of the run, in the folder `artifact_path`."""
        name = os.path.basename(local_path)
        self._opened().log_artifact(os.fspath(local_path), f"{artifact_path}/{name}" if artifact_path else name)

    @on_main_process
    def log_artifacts(self, local_dir: str | os.PathLike[str], artifact_path: str | None = None) -> None:
        """Stores all files of a folder."""
        for folder, _, names in os.walk(local_dir):
            inner = os.path.relpath(folder, local_dir)
            path = "/".join(part for part in (artifact_path or "", "" if inner == "." else inner) if part)
            for name in sorted(names):
                self.log_artifact(os.path.join(folder, name), path or None)

    @on_main_process
    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:
        """Stores a figure of matplotlib as artifact `artifact_file`."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, os.path.basename(artifact_file))
            figure.savefig(path, **save_kwargs)
            self._opened().log_artifact(path, artifact_file)


# The classes that names of log_with stand for.
LOGGER_TYPE_TO_CLASS: dict[str, type[GeneralTracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
    "wandb": WandBTracker,
}


def get_available_trackers() -> list[str]:
    """Returns the names that "all" stands for: those that need nothing that is missing here."""
    classes = [name for name in LOGGER_TYPE_TO_CLASS if name not in NATIVE_TRACKERS]
    return [*NATIVE_TRACKERS, *(name for name in classes if name != "mlflow" or _core.mlflow_is_usable())]


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
        name = str(choice) if str(choice).startswith("exec:") else str(choice).lower()
        for one in get_available_trackers() if name == "all" else [name]:
            _check_name(one, logging_dir)
            if one not in trackers:
                trackers.append(one)
    return trackers


def _check_name(name: str, logging_dir: Any) -> None:
    available = [*NATIVE_TRACKERS, *(name for name in LOGGER_TYPE_TO_CLASS if name not in NATIVE_TRACKERS)]
    if name not in available and not is_native(name):
        known = ", ".join([*available, "exec:COMMAND"])
        if name in LoggerType.list():
            raise ConfigError(
                f"[log_with] Lockstep has no tracker {name!r}; expected one of {known}; or derive a class from "
                f"lockstep.tracking.GeneralTracker that calls {name}, and pass an object of it"
            )
        raise ConfigError(f"[log_with] unknown tracker {name!r}; expected one of {known}, or a GeneralTracker")
    needs_folder = is_native(name) or LOGGER_TYPE_TO_CLASS[name].requires_logging_directory
    if needs_folder and logging_dir is None:
        raise ConfigError(f"[log_with] the tracker {name!r} needs a folder; pass project_dir to the Accelerator")


_ABSENT = "AimTracker ClearMLTracker CometMLTracker DVCLiveTracker SwanLabTracker TrackioTracker".split()


def __getattr__(name: str) -> NoReturn:
    if name in _ABSENT:
        raise ImportError(
            f"lockstep.tracking has no {name}; derive a class from GeneralTracker, and pass an object of it"
        )
    raise AttributeError(f"module 'lockstep.tracking' has no attribute {name!r}")
