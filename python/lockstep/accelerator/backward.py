# SPDX-License-Identifier: Apache-2.0
"""Accumulation, backward, clipping."""
from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import _core
from .._collective_block import collective_block
from .._own_module import own_module
from ..state import GradientState
from ..utils.dataclasses import DistributedType
from .base import AcceleratorBase


class BackwardCalls(AcceleratorBase):
    """The calls of an Accelerator from accumulation to the gradients of an update."""

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Runs one micro-step. Only the last of its accumulation group averages gradients and updates."""
        GradientState()._bind(self)  # A program may have several Accelerators.
        scope = self._core.accumulate([own_module(model) for model in models if not self._is_engine(model)])
        try:
            yield
        finally:
            scope.end()

    @contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        """Runs a block in which backward averages no gradients; the next backward after it averages the sum.

        The backward of a forward within the block averages nothing either, when it follows after the block.
        """
        if self._is_engine(model):  # It averages at the end of its update.
            yield
            return
        with self._no_sync.block(model):
            yield

    def _is_engine(self, model: Any) -> bool:
        return self._engine is not None and model is self._engine.engine

    @contextmanager
    def trigger_sync_in_backward(self, model: Any) -> Iterator[None]:
        """Makes the following backward average, of a forward within no_sync. Other backwards average anyway."""
        with self._no_sync.trigger_sync(model):
            yield

    def _expect_divided_attention(self) -> None:
        """Throws ConfigError unless a block of divided sequences runs, and has divided attention. For an engine."""
        if not self._core.divides_sequences:
            return
        block = self._sequences.current
        if block is None or block.attention_calls == 0:
            raise _core.ConfigError(
                "[backward] cp_size or sp_size is above 1, and "
                + ("backward was called outside of a block" if block is None else "the forward has divided no attention")
                + "; open maybe_context_parallel() around forward and backward, or load batches with input_ids, "
                "position_ids and labels; compute attention by torch's scaled_dot_product_attention"
            )

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Computes gradients and averages them over the processes.

        The loss is first divided by gradient_accumulation_steps. With `count=n` the loss is a sum over n
        tokens or samples, and the gradient that of the mean over all counted ones.
        """
        if self._engine is not None:
            self._expect_divided_attention()
            self._engine.backward(loss, GradientState().sync_gradients, **kwargs)
            return
        retain_graph = bool(kwargs.pop("retain_graph", None))
        count = kwargs.pop("count", None)
        if kwargs:
            raise _core.ConfigError(
                f"[backward] {next(iter(kwargs))} is not supported; call loss.backward with it on "
                "accelerator.scale_loss(loss)"
            )
        if count is not None and self._no_sync.next_backward_averages_nothing:
            raise _core.ConfigError(
                "[backward] a model had a forward within no_sync, and its backward is still to come; a backward with "
                "count cannot run before it, since both would be scaled; run that backward first, within no_sync"
            )
        self._no_sync.on_backward()
        if count is not None:
            self._core.backward_sum(loss, float(count))
        else:
            self._core.backward(loss, retain_graph)

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss that backward(loss) differentiates, for a program that calls .backward() on it."""
        return self._core.scale_loss(loss)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divides gradients by the loss scale of fp16. A second call before the update does nothing."""
        if optimizer is None:
            self._core.unscale_gradients()
            return
        for one in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
            self._core.unscale_gradients(one._prepared)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Scales gradients down to a total norm of `max_norm`, and returns the norm before.

        With a ds_config backward() has clipped already, by its gradient_clipping; this returns the norm then.
        """
        if self._engine is not None:
            return self._engine.get_global_grad_norm()
        return self._core.clip_grad_norm_(self._list_of(parameters), float(max_norm), float(norm_type))

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Limits gradient elements to +-clip_value."""
        if self._engine is not None:
            raise _core.ConfigError(
                "[clip_grad_value_] with a ds_config backward() has updated the parameters already; set gradient_clipping "
                "in the ds_config, which limits the norm"
            )
        self._core.clip_grad_value_(self._list_of(parameters), float(clip_value))

    @staticmethod
    def _list_of(parameters: Any) -> list[torch.Tensor]:
        return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)

    def parameters_without_gradient(self) -> list[str]:
        """Returns the names of trained parameters that have had a gradient on no process since zero_grad()."""
        return self._core.parameters_without_gradient()

    @contextmanager
    def join_uneven_inputs(self, joinables: Iterable[Any], even_batches: bool | None = None) -> Iterator[None]:
        """Runs a loop in which processes may have different numbers of batches. Collective.

        A process without further batches contributes zero gradients until all have finished. It holds for all prepared
        models, also those that are not in `joinables`. An exception in the block is not sent to other processes.
        """
        if self.state.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
            warnings.warn(
                "join_uneven_inputs is only supported for multi-GPU and multi-CPU training without FSDP and "
                "DeepSpeed; it has no effect here",
                stacklevel=3,
            )
            yield
            return
        streams = [one for one in self._dataloaders if isinstance(one.dataset, torch.utils.data.IterableDataset)]
        if even_batches is not None and streams and self.state.use_distributed:
            warnings.warn(
                f"join_uneven_inputs: overriding even_batches is only supported for map-style datasets; {len(streams)} "
                "prepared loaders of iterable datasets keep theirs",
                stacklevel=3,
            )
        with collective_block(self._core.begin_join(even_batches)):
            yield
