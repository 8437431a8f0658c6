# SPDX-License-Identifier: Apache-2.0
"""DeepSpeedEngine, DeepSpeed's three-call training loop on the C++ engine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from .. import _core
from .._collective_block import collective_block
from ..data_loader import prepare_data_loader
from ..data_loader.loop import share_seed
from ..utils.operations import convert_to_fp32
from ._checkpoints import EngineCheckpoints
from ._config import GivenConfig
from ._optimizer import DeepSpeedOptimizer
from ._registry import add_engine, remove_engine
from ._settings import EngineSettings
from .accelerator import get_accelerator
from .monitor import MonitorMaster
from .runtime.file_schedule import FileScheduler, file_scheduler
from .utils.logging import set_log_level_from_string

__all__ = ["DeepSpeedEngine", "FileScheduler"]

_UNSUPPORTED_CHECKPOINTING = {
    "contiguous_memory_optimization": "torch.utils.checkpoint allocates each input; delete it",
    "profile": "use torch.profiler; delete it",
}


class DeepSpeedEngine(EngineSettings, EngineCheckpoints):
    """Trains a torch module as a ds_config.json says. `initialize` creates it.

        for batch in loader:
            loss = engine(batch)
            engine.backward(loss)
            engine.step()

    A module whose only child is `module`, the program's model, so names of its parameters begin with "module.".
    Attributes and methods that the engine lacks are those of the model. Parameters keep their dtype unless
    data_types.param_dtype is set. With fp16 and bf16 operations compute in that dtype, and results of 16 bits are
    returned as float32. Not thread-safe. Modelled on DeepSpeed 0.19's class.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        initialized: Any,
        optimizer: DeepSpeedOptimizer | None,
        given: GivenConfig,
    ) -> None:
        super().__init__(model, initialized, optimizer, given)
        self.lr_scheduler: Any = None
        self.training_dataloader: Any = None
        self.collate_fn: Callable[..., Any] | None = None
        self._refuse_unsupported_checkpointing()
        if self._value("log_level"):
            set_log_level_from_string(self._value("log_level"))
        initial_lrs: list[float] = []  # Without the schedule.
        if optimizer is not None:
            initial_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        elif self.optimizer is not None:
            initial_lrs = [float(self._value("optimizer.params.lr") or 0)] * len(initialized.groups)
        if self.optimizer is not None:
            self.optimizer.attach(self, initialized.optimizer)
            self.optimizer.pull_options()
        if self.core.schedule_steps is not None:
            self.lr_scheduler = file_scheduler(self, initial_lrs)
        self.monitor = MonitorMaster(self)
        add_engine(self)

    def _refuse_unsupported_checkpointing(self) -> None:
        for key, instead in _UNSUPPORTED_CHECKPOINTING.items():
            if self._config.get(f"activation_checkpointing.{key}"):
                raise _core.ConfigError(
                    f"[initialize] activation_checkpointing.{key} is not supported for a Python model: {instead}"
                )

    # --- training
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the model's forward in the configured precision."""
        self.core.begin_forward()
        try:
            outputs = self.module(*inputs, **kwargs)
        finally:
            self.core.end_forward()
        return convert_to_fp32(outputs)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Computes gradients, and averages them at the boundary (stages 0 and 1) or always (2 and 3).

        Returns the loss divided by the micro-steps of an update, unless `scale_wrt_gas` is false.
        """
        if not isinstance(loss, torch.Tensor):
            raise _core.ConfigError(f"[backward] the loss is a {type(loss).__name__}; expected a tensor of one number")
        return self.core.backward(loss, bool(retain_graph), bool(scale_wrt_gas))

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss on which the program calls .backward() in place of backward(loss)."""
        return self.core.scale(loss)

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Ends a micro-step. At the boundary it clips, updates, steps the scheduler and drops gradients.

        `lr_kwargs`: arguments of the program's scheduler, such as `{"metrics": loss}`. The scheduler is not stepped
        after an update that was skipped for an overflow.
        """
        scheduler, optimizer = self.python_scheduler, self.optimizer
        if lr_kwargs and scheduler is None:
            raise _core.ConfigError(
                "[step] lr_kwargs needs a scheduler that the program passed to initialize(); call step() without it"
            )
        if optimizer is None:
            self.core.step()  # Throws ConfigError, which says what to do.
            return
        due = self.core.is_gradient_accumulation_boundary()
        if due:
            optimizer.call_hooks(before=True)
        optimizer.push_options()
        self.core.step()
        if not due:
            return
        optimizer.call_hooks(before=False)
        optimizer.mark_stepped()
        if self.core.schedule_steps is not None:
            optimizer.pull_options()
        elif scheduler is not None and self.core.was_step_applied():
            scheduler.step(**(lr_kwargs or {}))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Runs a block in which backward averages nothing. Stages 0 and 1."""
        scope = self.core.begin_no_sync()
        try:
            yield
        finally:
            del scope

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """Runs a block whose backward passes send nothing; their sum is averaged at its end. Stages 1 to 3."""
        with collective_block(self.core.begin_coalescing()):
            yield

    # --- accumulation and counters
    def is_gradient_accumulation_boundary(self) -> bool:
        """Returns whether the current micro-step is the last of its update."""
        return self.core.is_gradient_accumulation_boundary()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.core.set_gradient_accumulation_boundary(bool(is_boundary))

    @property
    def sync_gradients(self) -> bool:
        return self.core.is_gradient_accumulation_boundary()

    def train_batch_size(self) -> int:
        """Returns the samples of an update. A sample that several ranks compute together counts once."""
        return self.core.train_batch_size // self.given_config.sequence_ranks

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.core.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        return self.core.gradient_accumulation_steps

    def get_batch_info(self) -> tuple[int, int, int]:
        """Returns samples of an update, samples of a micro-step, and micro-steps of an update."""
        return self.train_batch_size(), self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes the micro-steps of an update."""
        self.core.set_train_batch_size(train_batch_size * self.given_config.sequence_ranks)

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Changes the micro-batch of later micro-steps. Loaders are not changed."""
        self.core.set_train_micro_batch_size(micro_batch_size)

    @property
    def global_steps(self) -> int:
        """Updates, including those skipped for an overflow."""
        return self.core.global_steps

    @property
    def global_samples(self) -> int:
        return self.core.global_samples // self.given_config.sequence_ranks

    @property
    def micro_steps(self) -> int:
        return self.core.micro_steps

    @property
    def skipped_steps(self) -> int:
        return self.core.skipped_steps

    def was_step_applied(self) -> bool:
        """Returns whether the last step() changed the parameters."""
        return self.core.was_step_applied()

    def get_global_grad_norm(self) -> float | None:
        """Returns the gradient norm of the last update, before clipping; None if it was not measured."""
        return self.core.get_global_grad_norm()

    def get_lr(self) -> list[float]:
        """Returns the learning rate of each parameter group."""
        return [] if self.optimizer is None else [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Returns the momentum, or the betas, of each parameter group."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        named = [group.get("momentum", group.get("betas")) for group in groups]
        return [value for value in named if value is not None]

    def loss_scale(self) -> float:
        """Returns the factor of the loss with fp16, else 1."""
        return self.core.loss_scale()

    def set_scheduler(self, scheduler: Any) -> None:
        """Makes every applied update step a scheduler of the program. `initialize` calls it."""
        self.python_scheduler = self.lr_scheduler = scheduler

    # --- data
    def _set_training_data(self, dataset: Any) -> None:
        """Makes the loader of initialize(training_data=...). Collective."""
        self.training_dataloader = self.deepspeed_io(dataset)

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        data_sampler: Any = None,
        collate_fn: Callable[..., Any] | None = None,
        num_local_io_workers: int | None = None,
        pin_memory: bool = False,
    ) -> Any:
        """Returns a loader of this rank's micro-batches, reshuffled each epoch. Its position is part of checkpoints.

        `data_sampler`: an order of all samples, of which each rank takes its batches. An IterableDataset is read in
        its own order.
        """
        streamed = isinstance(dataset, torch.utils.data.IterableDataset)
        loader = torch.utils.data.DataLoader(
            dataset,
            batch_size=batch_size or self.train_micro_batch_size_per_gpu(),
            shuffle=None if streamed or data_sampler is not None else True,
            sampler=data_sampler,
            collate_fn=collate_fn or self.collate_fn,
            num_workers=num_local_io_workers or 0,
            drop_last=self.dataloader_drop_last(),
            pin_memory=pin_memory,
        )
        prepared: Any = prepare_data_loader(
            loader, self.device, self.dp_world_size, self.dp_rank, put_on_device=True, rng_types=["generator"]
        )
        self.core.accelerator.prepare([], [prepared._core], [])
        share_seed([prepared], len(self._loaders))
        self._loaders.append(prepared)
        return prepared

    # --- memory, costs, end
    def offload_states(
        self,
        include: Any = None,
        device: Any = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Moves training states from the GPU to host memory, until reload_states(). On a CPU it moves nothing."""
        names = None if include is None else [_text_of(state) for state in include]
        self.core.offload_states(names, _text_of(device), pin_memory, non_blocking)

    def reload_states(self, non_blocking: bool = False) -> None:
        self.core.reload_states(non_blocking)

    def empty_partition_cache(self) -> None:
        """Frees the parameters that stage 3 has unsharded, and unused memory. Collective."""
        self.core.empty_partition_cache()
        gc.collect()
        get_accelerator().empty_cache()

    def log_summary(self, show_straggler: bool = False) -> str:
        """Returns a table of the collectives; needs comms_logger.enabled."""
        return self.core.log_summary(show_straggler)

    def destroy(self) -> None:
        """Ends the engine and frees its memory. In stage 3 the model's values are lost."""
        self.core.destroy()
        remove_engine(self)

    def compile(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _core.ConfigError("[compile] is not supported; call torch.compile on the model before initialize()")

    def __getattr__(self, name: str) -> Any:
        """Returns a child of the engine, or an attribute of the model."""
        modules = vars(self).get("_modules", {})
        if name in modules:
            return modules[name]
        if "module" not in modules or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"'DeepSpeedEngine' object has no attribute {name!r}")
        try:
            return getattr(modules["module"], name)
        except AttributeError as error:
            raise AttributeError(
                f"'DeepSpeedEngine' object has no attribute {name!r}, nor has its model, a "
                f"{type(modules['module']).__name__}"
            ) from error

    def _refuse_copy(self, *args: Any) -> NoReturn:
        raise _core.ConfigError(
            "[engine] it cannot be copied or pickled: it is connected to the other ranks; use save_checkpoint()"
        )

    __deepcopy__ = _refuse_copy
    __reduce_ex__ = _refuse_copy


def _text_of(value: Any) -> str:
    return str(getattr(value, "value", value))
