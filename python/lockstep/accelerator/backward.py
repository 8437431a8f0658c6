# SPDX-License-Identifier: Apache-2.0
"""Accumulation, backward, clipping, mixed precision."""
from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from .. import _core
from ..state import AcceleratorState
from ..utils.dataclasses import AutocastKwargs, DistributedType


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


class _LocalForwards:
    """The forwards of one model within no_sync, whose backwards may follow after the block.

    As with torch's DistributedDataParallel, such a backward averages nothing, until a forward outside of no_sync, or
    trigger_sync_in_backward. An update with gradients of such backwards is refused.
    """

    _blocks = 0
    _pending = False  # Whether a forward within the block had no backward yet.
    _held: Any = None  # The scope that keeps averaging off after the block.
    _ran_local = False  # Whether a backward ran since.
    _hook: Any = None

    def __init__(self, model: torch.nn.Module, hold: Callable[[], Any], on_end: Callable[[], None]) -> None:
        self._hold = hold
        self._on_end = on_end
        self._hook = model.register_forward_pre_hook(self._on_forward)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies of the model have a hook that does nothing."""
        return object.__new__, (_LocalForwards,)

    def _on_forward(self, *_: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if self._blocks > 0:
            self._pending = True
        else:
            self.end()

    @property
    def averages_nothing(self) -> bool:
        """Whether a backward outside of the block would average nothing."""
        return self._held is not None

    def on_backward(self) -> None:
        if self._blocks > 0:
            self._pending = False
        else:
            self._ran_local = True

    def on_step(self) -> None:
        """Runs before an update: ends the wait, or refuses gradients that were not averaged."""
        if self._held is None:
            return
        ran_local = self._ran_local
        self.end()
        if ran_local:
            raise _core.ConfigError(
                "[step] a backward after a no_sync block averaged nothing, since the model had a forward within the "
                "block without a backward; call trigger_sync_in_backward before the last backward of an update, or run the "
                "model's forward for it outside of no_sync"
            )

    def enter_block(self) -> None:
        self._blocks += 1

    def leave_block(self) -> None:
        self._blocks -= 1
        if self._pending:
            self._held = self._held or self._hold()
        elif self._blocks == 0:
            self.end()

    def end(self) -> None:
        """Lets the next backward average."""
        if self._hook is None:  # Of a copied model.
            return
        self._hook.remove()
        if self._held is not None:
            self._held.end()
        self._on_end()


class BackwardCalls:
    """The calls of an Accelerator from accumulation to the gradients of an update."""

    _core: Any
    _own_module: Callable[[Any], Any]
    autocast_handler: AutocastKwargs | None
    state: AcceleratorState
    _dataloaders: list[Any]
    _no_sync_scopes = 0
    _local_forwards: dict[int, _LocalForwards]

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
        """Runs a block in which backward averages no gradients; the next backward after it averages the sum.

        The backward of a forward within the block averages nothing either, when it follows after the block.
        """
        scope = self._core.no_sync([self._own_module(model)])
        self._no_sync_scopes += 1
        forwards = self._watch_forwards(model)
        try:
            yield
        finally:
            self._no_sync_scopes -= 1
            if forwards is not None:
                forwards.leave_block()
            scope.end()

    def _watch_forwards(self, model: Any) -> _LocalForwards | None:
        if not self.state.use_distributed:
            return None
        known = self._local_forwards

        def forget() -> None:
            known.pop(id(model), None)

        if id(model) not in known:
            hold = partial(self._core.no_sync, [self._own_module(model)])
            known[id(model)] = _LocalForwards(model, hold, forget)
        known[id(model)].enter_block()
        return known[id(model)]

    @contextmanager
    def trigger_sync_in_backward(self, model: Any) -> Iterator[None]:
        """Makes the following backward average, of a forward within no_sync. Other backwards average anyway."""
        forwards = self._local_forwards.get(id(model))
        if self._no_sync_scopes > 0 or forwards is not None:
            self._core.trigger_sync_in_backward([self._own_module(model)])
        try:
            yield
        finally:
            if forwards is not None and self._no_sync_scopes == 0:
                forwards.end()

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
        if count is not None and any(forwards.averages_nothing for forwards in self._local_forwards.values()):
            raise _core.ConfigError(
                "[backward] a model had a forward within no_sync, and its backward is still to come; a backward with "
                "count cannot run before it, since both would be scaled; run that backward first, within no_sync"
            )
        for forwards in self._local_forwards.values():
            forwards.on_backward()
        if count is not None:
            self._core.backward_sum(loss, float(count))
        else:
            self._core.backward(loss, retain_graph)

    def _begin_step(self) -> None:
        """Runs before each update of a prepared optimizer."""
        for forwards in list(self._local_forwards.values()):
            forwards.on_step()

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
