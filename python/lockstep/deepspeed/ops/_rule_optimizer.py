# SPDX-License-Identifier: Apache-2.0
"""The base of optimizers whose rule the C++ library has under another name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from ... import _core
from ...optimizer import _state_by_index, _state_by_parameter, make_core_optimizer


class RuleOptimizer(torch.optim.Optimizer):
    """An optimizer that the C++ library updates, alone or after `initialize` and `prepare`.

    Alone, the first `step` creates the C++ optimizer, which then owns the state; `state[parameter]` is a dict of its
    tensors. Move the model to its device before. Sparse gradients are an error.
    """

    set_grad_none = True
    _inner: _core.InnerOptimizer | None = None

    def core_rule(self) -> str:
        """Returns the name of the C++ optimizer with this rule."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Performs one update. Returns the loss that `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._inner is None:
            self._inner = make_core_optimizer(self.core_rule(), self)
            self.state = {}
        self._inner.set_options(self.param_groups)
        self._inner.step()
        return loss

    @property
    def state(self) -> Any:
        if self._inner is None:
            return self.__dict__["state"]
        return _state_by_parameter(_state_by_index(self._inner), self.param_groups)

    @state.setter
    def state(self, state: Any) -> None:
        """Sets the state that the C++ optimizer begins with, before it exists."""
        self.__dict__["state"] = defaultdict(dict, state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a loaded or copied state. The next step creates another C++ optimizer, which begins with it."""
        self._inner = None
        super().__setstate__(state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self._inner is not None:
            self._inner.add_group(self.param_groups[-1]["params"], self.param_groups)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)


def refuse(name: str, reason: str, **given: bool) -> None:
    """Throws ConfigError for the first argument that is true."""
    for argument, is_given in given.items():
        if is_given:
            raise _core.ConfigError(f"[{name}] {argument} is not supported: {reason}")
