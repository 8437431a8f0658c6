# SPDX-License-Identifier: Apache-2.0
"""The state that all objects of a process share: its rank, its connection, and the accumulation of gradients.

The classes have Accelerate's names. Every instance of one class shares the state of the first.
"""
from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch

from . import _core, distributed
from ._enums import BACKENDS, DistributedType
from ._environment import accelerate_variable_is_true, is_cuda_available, variable_is_true, wants_cpu

if TYPE_CHECKING:
    from .utils.dataclasses import GradientAccumulationPlugin


def is_initialized() -> bool:
    """Returns whether an AcceleratorState exists."""
    return AcceleratorState._shared_state != {}


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Takes the place of a function on processes that do not run it."""


def _connect_job(timeout_ms: int | None) -> tuple[_core.WorldSpec, _core.Group]:
    """Connects the processes that a launcher has started. Collective."""
    world = _core.world_from_environment()
    return world, _core.connect(world, timeout_ms)


class PartialState:
    """The place of this process in its job, and the connection to the others.

    The first instance connects: it waits for all processes. `cpu` keeps tensors off GPUs. `timeout` is that of an
    operation, a timedelta.
    """

    _shared_state: dict[str, Any] = {}
    _known_attributes = ["_cpu", "device", "distributed_type", "local_process_index", "num_processes", "process_index"]

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        self.__dict__ = self._shared_state
        if self.initialized:
            return
        timeout = kwargs.pop("timeout", None)
        backend = kwargs.pop("backend", None)
        init_method = kwargs.pop("init_method", None)
        kwargs.pop("_from_accelerator", None)
        if kwargs:
            raise _core.ConfigError(f"[PartialState] unknown argument '{next(iter(kwargs))}'")
        if init_method not in (None, "env://"):
            raise _core.ConfigError(
                f"[PartialState] init_method {init_method!r} is not supported; expected 'env://'; start the processes "
                "with `lockstep launch`, torchrun, mpirun or srun"
            )
        if backend not in BACKENDS:
            raise _core.ConfigError(
                f"[PartialState] unknown backend {backend!r}; expected None, 'nccl', 'gloo' or 'lockstep'"
            )
        timeout_ms = None if timeout is None else max(1, int(timeout.total_seconds() * 1000))
        # The attributes are set after the connection, so that a failed one can be tried again.
        world, group = distributed.connect_program(timeout_ms) or _connect_job(timeout_ms)
        self._cpu = wants_cpu(cpu)
        self.world = world
        self.group = group
        self.process_index = world.rank
        self.num_processes = world.size
        self.local_process_index = world.local_rank
        self.device = self._find_device()
        self.distributed_type = self._find_type()
        self.backend = None if world.size == 1 else ("gloo" if self.device.type == "cpu" else "nccl")
        self.fork_launched = accelerate_variable_is_true("FORK_LAUNCHED")
        self.debug = variable_is_true("DEBUG_MODE")
        if world.source != "alone":
            self.provide_torch_distributed()

    def provide_torch_distributed(self) -> None:
        """Makes torch.distributed use this connection, unless the program has initialised it itself."""
        distributed.provide(self.group, self.world, self.device)

    def _find_device(self) -> torch.device:
        chosen = os.environ.get("ACCELERATE_TORCH_DEVICE")
        if chosen:
            return torch.device(chosen)
        if self._cpu or not torch.cuda.is_available():
            return torch.device("cpu")
        device = torch.device("cuda", self.local_process_index % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device

    def _find_type(self) -> DistributedType:
        if self.num_processes == 1:
            return DistributedType.NO
        return DistributedType.MULTI_CPU if self.device.type == "cpu" else DistributedType.MULTI_GPU

    def __repr__(self) -> str:
        backend = f"  Backend: {self.backend}" if self.backend else ""
        return (
            f"Distributed environment: {self.distributed_type}{backend}\n"
            f"Num processes: {self.num_processes}\n"
            f"Process index: {self.process_index}\n"
            f"Local process index: {self.local_process_index}\n"
            f"Device: {self.device}\n"
        )

    @staticmethod
    def _reset_state() -> None:
        """Forgets the shared state. The group is freed with its last user."""
        distributed.withdraw()
        PartialState._shared_state.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the values without the connection: transformers pickles a PartialState with its arguments.

        The unpickled object describes the process that wrote it, and cannot communicate.
        """
        return {name: value for name, value in self.__dict__.items() if name not in ("group", "world", "_data_group", "_engine_mesh")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__ = dict(values)

    @property
    def data_group(self) -> _core.Group:
        """The processes with samples of their own: all, but one of each tp line of the last Accelerator's mesh."""
        group: _core.Group = self.__dict__.get("_data_group", self.group)
        return group

    @property
    def shares_batches(self) -> bool:
        """Whether several processes read the same batches."""
        return self.data_group.size < self.num_processes

    @property
    def initialized(self) -> bool:
        return PartialState._shared_state != {}

    @property
    def use_distributed(self) -> bool:
        return self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        return self.process_index == self.num_processes - 1

    @property
    def default_device(self) -> torch.device:
        return torch.device("cuda" if is_cuda_available() and not wants_cpu(None) else "cpu")

    def wait_for_everyone(self) -> None:
        """Blocks until every process has called it. Collective."""
        if self.num_processes > 1:
            self.group.barrier()

    def set_device(self) -> None:
        """Does nothing: the constructor selects the device."""

    def destroy_process_group(self, group: Any = None) -> None:
        """Drops this state's connection. Other objects that use it keep it."""
        if group is not None:
            raise _core.ConfigError("[PartialState] destroy_process_group takes no group; Lockstep has its own groups")
        PartialState._reset_state()

    @contextmanager
    def _goes_first(self, is_first: bool) -> Iterator[None]:
        if not is_first:
            self.wait_for_everyone()
        yield
        if is_first:
            self.wait_for_everyone()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Runs the block on the main process first, then on the others. Collective."""
        with self._goes_first(self.is_main_process):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Runs the block on the first process of each host first, then on the others. Collective."""
        with self._goes_first(self.is_local_main_process):
            yield

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Gives each process its contiguous share of a list, tuple, tensor, datasets.Dataset, or dict of them.

        If the length is not divisible, the first processes get one more. `apply_padding` repeats the last element in
        shorter shares, so that all are equally long.
        """
        if self.data_group.size == 1:
            yield inputs
            return
        if isinstance(inputs, dict):
            lengths = {key: len(value) for key, value in inputs.items()}
            if len(set(lengths.values())) > 1:
                raise _core.ConfigError(
                    f"[split_between_processes] the values of the dict have different lengths: {lengths}; expected "
                    "equal ones"
                )
            yield {key: self._share_of(value, apply_padding) for key, value in inputs.items()}
            return
        yield self._share_of(inputs, apply_padding)

    def _share_of(self, inputs: Any, apply_padding: bool) -> Any:
        size, world = len(inputs), self.data_group.size
        begin, end = _core.share_of(size, self.data_group.rank, world)
        pads = apply_padding and end - begin < -(-size // world)
        if hasattr(inputs, "select") and hasattr(inputs, "column_names"):  # A datasets.Dataset, whose slice is a dict.
            return inputs.select([*range(begin, end), *([size - 1] if pads else [])])
        share = inputs[begin:end]
        if not pads:
            return share
        last = inputs[size - 1 : size]
        if isinstance(inputs, torch.Tensor):
            return torch.cat([share, last], dim=0)
        return share + last

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorates a function that only the main process runs."""
        return self._only_where(self.is_main_process, function)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorates a function that only the first process of each host runs."""
        return self._only_where(self.is_local_main_process, function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a function that only the last process runs."""
        return self._only_where(self.is_last_process, function)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Callable[..., Any]:
        """Decorates a function that only one process runs; the only process of a job always does, as in Accelerate."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return self._only_where(not self.use_distributed or self.process_index == process_index, function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Callable[..., Any]:
        """Decorates a function that only one process of each host runs."""
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        runs = not self.use_distributed or self.local_process_index == local_process_index
        return self._only_where(runs, function)

    @staticmethod
    def _only_where(runs: bool, function: Callable[..., Any] | None) -> Callable[..., Any]:
        if function is None:
            return functools.partial(PartialState._only_where, runs)
        return function if runs else do_nothing

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints once on each host."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in self._known_attributes:
            raise AttributeError(
                f"`PartialState` object has no attribute {name!r}. This happens if `PartialState._reset_state()` was called; "
                "create a new PartialState()"
            )
        raise AttributeError(f"'PartialState' object has no attribute {name!r}")


class AcceleratorState:
    """PartialState, and the precision and plugins of the first Accelerator."""

    _shared_state: dict[str, Any] = {}

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: Any = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        parallelism_config: Any = None,
        _from_accelerator: bool = False,
        **kwargs: Any,
    ) -> None:
        self.__dict__ = self._shared_state
        partial = PartialState(cpu, **kwargs)  # Connects again after a reset of that state only.
        if self.initialized:
            self._partial = partial
            self._check_initialized(mixed_precision, cpu)
            return
        if mixed_precision is None:
            mixed_precision = os.environ.get(
                "ACCELERATE_MIXED_PRECISION", os.environ.get("LOCKSTEP_MIXED_PRECISION", "no")
            )
        self._partial = partial
        self._mixed_precision = str(mixed_precision).lower()
        self.dynamo_plugin = dynamo_plugin
        self.fsdp_plugin = fsdp_plugin
        self.parallelism_config = parallelism_config
        plugins = deepspeed_plugin
        self.deepspeed_plugins: dict[str, Any] | None = (
            plugins if isinstance(plugins, dict) or plugins is None else {"default": plugins}
        )
        self._selected_plugin = next(iter(self.deepspeed_plugins)) if self.deepspeed_plugins else None
        self.distributed_type = self._find_type(partial)
        self.use_ipex = False

    def _find_type(self, partial: PartialState) -> DistributedType:
        if self.deepspeed_plugins:
            return DistributedType.DEEPSPEED
        if self.fsdp_plugin is not None and partial.use_distributed:
            return DistributedType.FSDP
        return partial.distributed_type

    @property
    def initialized(self) -> bool:
        return self._shared_state != {}

    def _check_initialized(self, mixed_precision: str | None, cpu: bool) -> None:
        if mixed_precision is not None and str(mixed_precision).lower() != self._mixed_precision:
            raise _core.ConfigError(
                f"[Accelerator] an Accelerator with mixed_precision='{self._mixed_precision}' exists; got "
                f"mixed_precision='{mixed_precision}'; use one precision, or call AcceleratorState._reset_state(True)"
            )
        if cpu and self.device.type != "cpu":
            raise _core.ConfigError(f"[Accelerator] an Accelerator on {self.device} exists; got cpu=True")

    @property
    def mixed_precision(self) -> str:
        """The precision of the ds_config, or else that of the Accelerator."""
        plugin = self.deepspeed_plugin
        return (plugin.mixed_precision if plugin is not None else None) or self._mixed_precision

    @property
    def deepspeed_plugin(self) -> Any:
        name = self._selected_plugin
        return None if name is None or not self.deepspeed_plugins else self.deepspeed_plugins[name]

    def get_deepspeed_plugin(self, name: str) -> Any:
        return cast(dict[str, Any], self.deepspeed_plugins)[name]

    def select_deepspeed_plugin(self, name: str | None = None) -> None:
        if not self.deepspeed_plugins or name not in self.deepspeed_plugins:
            raise _core.ConfigError(
                f"[AcceleratorState] there is no DeepSpeed plugin {name!r}; expected one of "
                f"{list(self.deepspeed_plugins or ())}"
            )
        self._selected_plugin = name

    @property
    def is_fsdp2(self) -> bool:
        return self.fsdp_plugin is not None and getattr(self.fsdp_plugin, "fsdp_version", 1) == 2

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        AcceleratorState._shared_state.clear()
        if reset_partial_state:
            PartialState._reset_state()

    def __repr__(self) -> str:
        return repr(self._partial) + f"Mixed precision type: {self.mixed_precision}\n"

    def __getattr__(self, name: str) -> Any:
        if hasattr(PartialState, name):  # Its methods and properties need no Accelerator.
            return getattr(PartialState(), name)
        if "_partial" in self.__dict__:
            if name not in self._partial.__dict__ and self._partial.initialized:
                raise AttributeError(f"'AcceleratorState' object has no attribute {name!r}")
            return getattr(self._partial, name)
        raise AttributeError(
            f"`AcceleratorState` object has no attribute `{name}`. This happens if `AcceleratorState._reset_state()` "
            "was called after the Accelerator was created; create the Accelerator again"
        )


class GradientState:
    """The accumulation of gradients, and the running loops over prepared loaders. The C++ library has the values.

    The active loader is the one with the newest batch.
    """

    _shared_state: dict[str, Any] = {}

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        self.__dict__ = self._shared_state
        if not self.initialized:
            self._accelerator = lambda: None
            self._loaders: list[Any] = [None]
            self._given_sync: bool | None = None
            self.plugin: Any = None
        if gradient_accumulation_plugin is not None:
            self.plugin = gradient_accumulation_plugin

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies share the state of this process."""
        return GradientState, ()

    def _bind(self, accelerator: Any) -> None:
        """Reads the values of this C++ Accelerator from now on."""
        self._accelerator = weakref.ref(accelerator)
        self._set_sync_gradients(None)

    @property
    def initialized(self) -> bool:
        return GradientState._shared_state != {}

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        return {} if self.plugin is None else self.plugin.to_kwargs()

    @property
    def num_steps(self) -> int:
        return self.plugin_kwargs.get("num_steps", 1)

    @property
    def adjust_scheduler(self) -> bool:
        return self.plugin_kwargs.get("adjust_scheduler", True)

    @property
    def sync_with_dataloader(self) -> bool:
        return self.plugin_kwargs.get("sync_with_dataloader", True)

    def _set_sync_gradients(self, sync_gradients: bool | None) -> None:
        """Sets sync_gradients, for a program that counts micro-steps itself. None: the C++ library sets it.

        accumulate() ends the program's setting. While it is false, prepared optimizers and schedulers do nothing.
        """
        self._given_sync = sync_gradients

    @property
    def holds_updates(self) -> bool:
        """Whether the program has said that the current micro-step only accumulates."""
        return self._given_sync is False

    @property
    def sync_gradients(self) -> bool:
        accelerator = self._accelerator()
        return self.sync_gradients_of(None if accelerator is None else accelerator._core)

    def sync_gradients_of(self, core: Any) -> bool:
        """Returns what the program has set, else the value of this C++ Accelerator; True without one."""
        if self._given_sync is not None:
            return self._given_sync
        return True if core is None else core.sync_gradients

    @property
    def end_of_dataloader(self) -> bool:
        if self._accelerator() is None:
            return self.in_dataloader and self.active_dataloader.end_of_dataloader
        batch = self._current_batch() if self.in_dataloader else None
        return batch is not None and batch[0]

    @property
    def remainder(self) -> int:
        """Returns the number of samples in an incomplete last global batch; 0 if it is complete, -1 if unknown."""
        return -1 if not self.in_dataloader else self.active_dataloader.remainder

    @property
    def in_dataloader(self) -> bool:
        return self.active_dataloader is not None

    @property
    def active_dataloader(self) -> Any:
        return self._loaders[-1]

    @property
    def dataloader_references(self) -> list[Any]:
        return list(self._loaders)

    def _add_dataloader(self, loader: Any) -> None:
        self._loaders.append(loader)

    def _use_dataloader(self, loader: Any) -> None:
        """Makes a running loader the active one: a batch of it begins."""
        self._loaders.remove(loader)
        self._loaders.append(loader)

    def _remove_dataloader(self, loader: Any) -> None:
        self._loaders.remove(loader)

    def _current_batch(self) -> tuple[bool, list[int], list[int]] | None:
        accelerator = self._accelerator()
        return None if accelerator is None else accelerator._core.current_batch

    def __repr__(self) -> str:
        return (
            f"Sync Gradients: {self.sync_gradients}\n"
            f"At end of current dataloader: {self.end_of_dataloader}\n"
            f"Extra samples added: {self.remainder}\n"
            f"Gradient accumulation plugin: {self.plugin_kwargs}\n"
        )

    @staticmethod
    def _reset_state() -> None:
        GradientState._shared_state.clear()
