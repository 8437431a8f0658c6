# SPDX-License-Identifier: Apache-2.0
"""Accumulation, backward, clipping, mixed precision."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import _core
from ..utils.dataclasses import AutocastKwargs


class _JoinedBlock:
    """Runs a with-block as the body of a C++ function, which waits for its end on another thread."""

    def __init__(self, run: Callable[[Callable[[], None]], None]) -> None:
        self._run = run
        self._entered = threading.Event()
        self._left = threading.Event()
        self._thrown: BaseException | None = None
        self._block_error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, daemon=True)

    def _call(self) -> None:
        try:
            self._run(self._body)
        except BaseException as error:
            self._thrown = error
        finally:
            self._entered.set()

    def _body(self) -> None:
        self._entered.set()
        self._left.wait()
        if self._block_error is not None:
            raise RuntimeError("the block of join_uneven_inputs has failed")

    def begin(self) -> None:
        self._thread.start()
        self._entered.wait()
        if self._thrown is not None:
            raise self._thrown

    def end(self, error: BaseException | None) -> None:
        self._block_error = error
        self._left.set()
        self._thread.join()
        if error is None and self._thrown is not None:
            raise self._thrown


class BackwardCalls:
    """The calls of an Accelerator from accumulation to the gradients of an update."""

    _core: Any
    _own_module: Callable[[Any], Any]
    autocast_handler: AutocastKwargs | None
    _no_sync_scopes = 0

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Runs one micro-step. Only the last of its accumulation group averages gradients and updates."""
        scope = self._core.accumulate([self._own_module(model) for model in models])
        try:
            yield
        finally:
            scope.end()

    @contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        """Runs a block in which backward averages no gradients; the next backward after it averages the sum."""
        scope = self._core.no_sync([self._own_module(model)])
        self._no_sync_scopes += 1
        try:
            yield
        finally:
            self._no_sync_scopes -= 1
            scope.end()

    @contextmanager
    def trigger_sync_in_backward(self, model: Any) -> Iterator[None]:
        """Makes the following backward average within no_sync. Outside it every backward averages anyway."""
        if self._no_sync_scopes > 0:
            self._core.trigger_sync_in_backward([self._own_module(model)])
        yield

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Computes gradients and averages them over the processes.

        The loss is first divided by the micro-steps of the accumulation group. With `count=n` the loss is a sum over n
        tokens or samples, and the gradient that of the mean over all counted ones.
        """
        retain_graph = bool(kwargs.pop("retain_graph", None))
        count = kwargs.pop("count", None)
        if kwargs:
            raise _core.ConfigError(
                f"[backward] {next(iter(kwargs))} is not supported; call loss.backward with it on "
                "accelerator.scale_loss(loss)"
            )
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

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scales gradients down to a total norm of `max_norm`, and returns the norm before."""
        return self._core.clip_grad_norm_(self._list_of(parameters), float(max_norm), float(norm_type))

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Limits gradient elements to +-clip_value."""
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
        joined = _JoinedBlock(lambda body: self._core.join_uneven_inputs(body, even_batches))
        joined.begin()
        try:
            yield
        except BaseException as error:
            joined.end(error)
            raise
        joined.end(None)

    @contextmanager
    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> Iterator[None]:
        """Computes a block in mixed precision. Does nothing without it."""
        handler = autocast_handler or self.autocast_handler or AutocastKwargs()
        scope = self._core.autocast(bool(handler.enabled), bool(handler.cache_enabled))
        try:
            yield
        finally:
            scope.end()
