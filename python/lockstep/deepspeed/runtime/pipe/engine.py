# SPDX-License-Identifier: Apache-2.0
"""PipelineEngine, which trains a PipelineModule batch by batch."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from .... import _core
from ...._own_module import own_module
from ....utils.operations import recursively_apply, send_to_device
from ...engine import DeepSpeedEngine
from ...utils import RepeatingLoader, logger
from .layers import PipelineError
from .module import PipelineModule

__all__ = ["PipelineEngine"]

_UPDATES_BETWEEN_CHECKS = 100


def _digest(value: Any) -> bytes:
    """Returns a few bytes that differ for different tensors."""
    found = hashlib.sha256()

    def add(tensor: torch.Tensor) -> torch.Tensor:
        found.update(str((tensor.shape, tensor.dtype)).encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return tensor

    recursively_apply(add, value)
    return found.digest()


class PipelineEngine(DeepSpeedEngine):
    """Trains a PipelineModule as a ds_config.json says. `initialize` creates it.

        for _ in range(steps):
            loss = engine.train_batch(data_iter)

    An update computes gradient_accumulation_steps() micro-batches, which go through the stages by a schedule. All ranks of
    a pipeline must read the same batches of (inputs, labels), ranks with dp_rank r those of data parallel rank r; loaders
    of deepspeed_io() and `training_data` do. Not thread-safe. Modelled on DeepSpeed 0.19's class.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_stages = self._pipeline.num_stages
        self.stage_id = self._pipeline.stage_id
        self.prev_stage, self.next_stage = self.stage_id - 1, self.stage_id + 1
        self.micro_batch_size = self.train_micro_batch_size_per_gpu()
        self.data_iterator: Iterator[Any] | None = None
        self.batch_fn: Callable[[Any], Any] | None = None
        self._pipeline._set_precision(self._computing)

    @property
    def _pipeline(self) -> PipelineModule:
        pipeline: PipelineModule = own_module(self.module)
        return pipeline

    @property
    def micro_batches(self) -> int:
        """The micro-batches of an update."""
        return self.gradient_accumulation_steps()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Computes the forward of a chunk in the configured precision."""
        self.core.begin_forward()
        try:
            yield
        finally:
            self.core.end_forward()

    # --- batches
    def train_batch(self, data_iter: Iterator[Any] | None = None) -> torch.Tensor:
        """Trains one update on the next micro-batches, and returns the mean loss of all ranks. Collective.

        Without `data_iter`, of the last call, of set_dataiterator() or of `training_data`. Throws StopIteration, before
        anything is computed, if it ends. Prints the loss every `steps_per_print` updates, as DeepSpeed does.
        """
        if not torch.is_grad_enabled():
            raise PipelineError("[train_batch] gradients are disabled; call eval_batch(), or leave torch.no_grad()")
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        began = time.perf_counter()
        self.module.train()
        batches = self._next_batches(self.data_iterator, self.micro_batches)
        if self.num_stages > 1 and self.global_steps % _UPDATES_BETWEEN_CHECKS == 0:
            self._compare_batches(batches)
        loss = self._pipeline._compute_batch(*batches)
        self.core.backward(loss, False, True)
        super().step()
        mean = self._mean_of_ranks(loss)
        every = self.steps_per_print()
        if every and self.global_steps % every == 0 and self.global_rank == 0:
            seconds = time.perf_counter() - began
            print(
                f"steps: {self.global_steps} loss: {mean:0.4f} iter time (s): {seconds:0.3f} "
                f"samples/sec: {self.train_batch_size() / seconds:0.3f}"
            )
        return mean

    def eval_batch(
        self,
        data_iter: Iterator[Any],
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Computes micro-batches in evaluation mode, without gradients; returns the mean loss of all ranks. Collective.

        The model stays in that mode until train_batch(). Without `compute_loss`, the last stage returns the mean of the
        outputs, other stages None. With `reduce_output` None the last stage returns the list of losses, or outputs.
        `return_logits` adds the last micro-batch's output, None on other stages. `bcast_loss` False returns the loss on
        the last stage only.
        """
        if reduce_output not in ("avg", None):
            raise PipelineError(f"[eval_batch] reduce_output is {reduce_output!r}; expected 'avg' or None")
        self.module.eval()
        batch = self._next_batches(data_iter, num_micro_batches or self.micro_batches)
        with torch.no_grad(), self._pipeline._collecting(compute_loss, return_logits) as collected:
            loss = self._pipeline._compute_batch(*batch)
        result: Any = None
        if compute_loss and reduce_output is not None:
            mean = self._mean_of_ranks(loss)
            result = mean if bcast_loss or self.is_last_stage() else None
        elif self.is_last_stage():
            values = collected.losses if compute_loss else collected.outputs
            result = values if reduce_output is None else self._mean_of_ranks(torch.stack(values).mean(0))
        return (result, collected.outputs[-1] if collected.outputs else None) if return_logits else result

    def _next_batches(self, data_iter: Iterator[Any] | None, count: int) -> tuple[list[Any], list[Any]]:
        """Returns the inputs and the labels of the next micro-batches."""
        if data_iter is None:
            if self.is_first_stage() or self.is_last_stage():
                raise PipelineError(
                    "[train_batch] there is no data; pass an iterator of (inputs, labels), or training_data to initialize()"
                )
            return [None] * count, [None] * count
        batches = [next(data_iter) for _ in range(count)]
        if self.batch_fn is not None:
            batches = [self.batch_fn(batch) for batch in batches]
        if not (self.is_first_stage() or self.is_last_stage()):
            return [None] * count, [None] * count
        for batch in batches:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise PipelineError(
                    f"[train_batch] a batch is a {type(batch).__name__}; expected (inputs, labels); set_batch_fn() can make it"
                )
        sent = [send_to_device(batch, self.device) for batch in batches]
        return [inputs for inputs, _ in sent], [labels for _, labels in sent]

    def _compare_batches(self, batches: tuple[list[Any], list[Any]]) -> None:
        """Warns if the first and the last stage have read different batches. Collective in the pipeline."""
        texts = _core.all_gather_bytes(self._pipeline._line, _digest(batches))
        if texts[0] != texts[-1] and self.is_first_stage():
            logger.warning(
                "[train_batch] the first stage of the pipeline, which reads the inputs, and the last one, which reads the "
                "labels, got different batches; expected the same: seed the loader's order, and divide samples by dp_rank and "
                "dp_world_size of the engine"
            )

    def _mean_of_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the mean over the data parallel ranks, on the device."""
        mean: torch.Tensor = self.core.accelerator.reduce([value.detach()], _core.ReduceOp.AVG)[0]
        return mean.to(self.device)

    # --- data
    def _set_training_data(self, dataset: Any) -> None:
        order = None if isinstance(dataset, torch.utils.data.IterableDataset) else range(len(dataset))
        self.set_dataloader(RepeatingLoader(self.deepspeed_io(dataset, data_sampler=order)))

    def set_dataloader(self, loader: Any) -> None:
        """Makes train_batch() read a loader."""
        self.training_dataloader = loader
        self.data_iterator = iter(loader)

    def set_dataiterator(self, iterator: Iterator[Any]) -> None:
        """Makes train_batch() read an iterator."""
        self.training_dataloader = None
        self.data_iterator = iterator

    def set_batch_fn(self, fn: Callable[[Any], Any]) -> None:
        """Makes each batch `fn(batch)`."""
        self.batch_fn = fn

    # --- stages
    def is_first_stage(self) -> bool:
        return self._pipeline.is_first_stage()

    def is_last_stage(self) -> bool:
        return self._pipeline.is_last_stage()

    def get_pipeline_parallel_rank(self) -> int:
        return self.stage_id

    def reset_activation_shape(self) -> None:
        """Does nothing: shapes may change from one micro-batch to the next."""

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "model.safetensors",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes all stages in 16 bits as one file of safetensors. Collective."""
        if not save_filename.endswith(".safetensors"):
            raise PipelineError(
                f"[save_16bit_model] the file of a pipeline is named {save_filename!r}; expected a name with the ending "
                ".safetensors"
            )
        return super().save_16bit_model(save_dir, save_filename, exclude_frozen_parameters)

    save_fp16_model = save_16bit_model

    # --- the calls of other engines
    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PipelineError("[forward] the stages compute together; call train_batch() or eval_batch()")

    def backward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PipelineError("[backward] train_batch() has done it; remove the call")

    def step(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PipelineError("[step] train_batch() has done it; remove the call")
