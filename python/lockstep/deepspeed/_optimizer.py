# SPDX-License-Identifier: Apache-2.0
"""The optimizer that `initialize` returns."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .. import _core
from ..optimizer import AcceleratedOptimizer
from ._loss_scaler import LossScalerBase, loss_scaler_of

if TYPE_CHECKING:
    from .engine import DeepSpeedEngine


class FileOptimizer(torch.optim.Optimizer):
    """The parameter groups of an optimizer that the file describes. The C++ library updates the parameters.

    `file_optimizer` creates it, with a class that has the rule's name.
    """

    def __init__(self, rule: str, groups: list[dict[str, Any]]) -> None:
        self.rule = rule
        super().__init__(groups, {name: value for name, value in groups[0].items() if name != "params"})

    def core_rule(self) -> str:
        return self.rule

    def step(self, closure: Callable[[], Any] | None = None) -> NoReturn:
        raise _core.ConfigError("[optimizer] step() was called on the file's optimizer; call engine.step()")


@functools.cache
def _class_of(rule: str) -> type[FileOptimizer]:
    return type(rule, (FileOptimizer,), {"__doc__": FileOptimizer.__doc__})


def file_optimizer(rule: str, groups: list[dict[str, Any]]) -> FileOptimizer:
    """Returns the optimizer of a rule of the C++ library."""
    return _class_of(rule)(rule, groups)


def grouped_file_optimizer(config: dict[str, Any], groups: list[dict[str, Any]]) -> FileOptimizer:
    """Returns the file's optimizer for parameter groups of the program, whose options replace the file's."""
    name = str(config["optimizer.type"])
    rule = _core.optimizer_of_type(name)
    if rule is None:
        raise _core.ConfigError(
            f"[initialize] model_parameters has parameter groups, which the file's optimizer {name!r} does not take; "
            "pass a list of parameters, or create the optimizer in the program"
        )
    known = _core.optimizer_options(rule) or []
    options = {
        option: config[f"optimizer.params.{option}"]
        for option in known
        if config.get(f"optimizer.params.{option}") is not None
    }
    unknown = {option for group in groups for option in group} - {"params", "name", "moe", *known}
    if unknown:
        raise _core.ConfigError(
            f"[initialize] a parameter group has the option '{min(unknown)}', which {rule} lacks; expected "
            f"{', '.join(known)}"
        )
    return file_optimizer(rule, [{**options, **group, "params": _trained(group["params"])} for group in groups])


def _trained(parameters: Any) -> list[torch.Tensor]:
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    return [parameter for parameter in parameters if parameter.requires_grad]


class DeepSpeedOptimizer(AcceleratedOptimizer):
    """The engine's optimizer: the program's or the file's.

    A program reads and changes options such as lr in `param_groups`; they count from the next `engine.step()` on.
    Gradients are averaged, clipped, unscaled and applied by `engine.step()`, so `step` is an error.
    """

    _engine: Any  # A proxy: the engine owns its optimizer.

    @classmethod
    def of_file(cls, inner: Any, groups: list[list[torch.Tensor]]) -> DeepSpeedOptimizer:
        """Wraps the optimizer that the C++ library made of the file, before `attach`."""
        settings = inner.settings()
        described = [
            {**{name: _of_json(value) for name, value in options.items()}, "params": parameters}
            for options, parameters in zip(settings["param_groups"], groups)
        ]
        self = cls.__new__(cls)
        self.optimizer = file_optimizer(settings["type"], described)
        self.device_placement = True
        self.scaler = None
        self._prepared = None
        self._no_sync = None
        self._name = settings["type"]
        self._known = list(settings["param_groups"][0])
        self._inner = inner
        return self

    def attach(self, engine: DeepSpeedEngine, prepared: Any) -> None:
        """Connects the optimizer with the engine that updates by it."""
        self._engine = weakref.proxy(engine)
        self._prepared = prepared

    def push_options(self) -> None:
        """Gives the options in `param_groups` to the C++ library."""
        self._push_options()

    def pull_options(self) -> None:
        """Copies the options that the C++ library has changed to `param_groups`."""
        self._pull_options()

    def call_hooks(self, before: bool) -> None:
        """Runs the program's hooks around an update."""
        wrapped = self.optimizer
        if self._name is not None:  # Other optimizers run them in their own step.
            self._call_hooks(wrapped._optimizer_step_pre_hooks if before else wrapped._optimizer_step_post_hooks)

    def mark_stepped(self) -> None:
        """Tells torch's schedulers that an update came before their step."""
        vars(self.optimizer)["_opt_called"] = True
        vars(self)["_opt_called"] = True

    def _syncs(self) -> bool:
        return self._engine.sync_gradients

    def _state_by_index(self) -> dict[int, dict[str, torch.Tensor]]:
        """Returns the states of the parameters that this process has in full: under ZeRO none."""
        return {} if self._is_sharded() else super()._state_by_index()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._is_sharded():
            raise _core.ConfigError(
                "[optimizer] load_state_dict was called under ZeRO, where state_dict() has no states, since each process "
                "has a shard of them; call engine.save_checkpoint and engine.load_checkpoint"
            )
        super().load_state_dict(state_dict)

    def _is_sharded(self) -> bool:
        return self._prepared is not None and self._prepared.is_sharded

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Does what engine.step() does, as for Lightning Fabric, which calls the optimizer's.

        Throws ConfigError if the engine accumulates or has a schedule, which only engine.step() counts and steps.
        """
        engine = self._engine
        if closure is not None or engine.lr_scheduler is not None or engine.gradient_accumulation_steps() > 1:
            raise _core.ConfigError(
                "[optimizer] optimizer.step() was called with a closure, an engine that accumulates gradients, or one "
                "with a schedule; expected none of these; call engine.step()"
            )
        engine.step()

    def zero_grad(self, set_to_none: bool | None = True) -> None:
        """Drops the gradients, also those of micro-steps before the boundary."""
        super().zero_grad(set_to_none)

    @property
    def loss_scaler(self) -> LossScalerBase:
        """The loss scale and its settings."""
        return loss_scaler_of(self._engine)

    loss_scale_config = loss_scaler

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether overflows change the loss scale."""
        return self._engine.dynamic_loss_scale()

    @property
    def loss_scale(self) -> float:
        """The factor of the loss with fp16, else 1."""
        return self._engine.loss_scale()

    @property
    def cur_scale(self) -> float:
        return self.loss_scale

    @property
    def overflow(self) -> bool:
        """Whether the last update was skipped because gradients had overflowed."""
        return self.step_was_skipped

    def __repr__(self) -> str:
        return f"DeepSpeedOptimizer({self.optimizer!r})"


def _of_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
