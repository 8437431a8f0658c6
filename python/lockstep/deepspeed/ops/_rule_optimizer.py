# SPDX-License-Identifier: Apache-2.0
"""The base of optimizers whose rule the C++ library has under another name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..._core import ConfigError


class RuleOptimizer(torch.optim.Optimizer):
    """An optimizer with two implementations of one rule.

    `initialize` and `prepare` update its parameters by the C++ library's fused kernel of that rule. Alone, `step`
    computes the same values with torch operations. The state is torch's: `state[parameter]` is a dict of tensors.
    """

    set_grad_none = True

    def core_rule(self) -> str:
        """Returns the name of the C++ optimizer with this rule."""
        raise NotImplementedError

    def _update(self, parameter: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Performs one update. Returns the loss that `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if parameter.grad.is_sparse:
                        raise ConfigError(
                            f"[{type(self).__name__}] a gradient is sparse; expected a dense one; build the embedding "
                            "with sparse=False"
                        )
                    self._update(parameter, parameter.grad, group)
        return loss

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    def _moments(self, parameter: torch.Tensor, names: Iterable[str]) -> list[torch.Tensor]:
        """Returns tensors of the parameter's state, zero at first, and counts a step."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            for name in names:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] += 1
        return [state[name] for name in names]


def refuse(name: str, reason: str, **given: bool) -> None:
    """Throws ConfigError for the first argument that is true."""
    for argument, is_given in given.items():
        if is_given:
            raise ConfigError(f"[{name}] {argument} is not supported: {reason}")
