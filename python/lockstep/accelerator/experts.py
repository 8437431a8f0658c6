# SPDX-License-Identifier: Apache-2.0
"""Experts of transformers' models, such as Mixtral's, which the processes of an ep line divide."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _core


class DividedExperts:
    """Replaces the forward of a layer of experts: it sends tokens to the processes of their experts, and back.

    The layer's own forward computes the rows of this process's experts. Their gradients are divided by the number of
    processes, so that the average over the processes that have the same experts is the gradient of the mean loss of all.
    """

    def __init__(self, layer: Any, ranks: int, forward: Callable[..., torch.Tensor]) -> None:
        self.ranks = ranks
        self.num_experts = layer.num_experts
        self.forward = forward
        self.group: _core.Group | None = None

    def set_group(self, group: _core.Group) -> None:
        if group.size == self.ranks:  # Another one is an error of prepare.
            self.group = group

    def __call__(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        routing = _core.given_routing(top_k_index.long(), top_k_weights, self.num_experts)
        assert self.group is not None, "given by prepare"
        exchange = _core.ExpertDispatch(self.group, routing)
        rows = _core.scale_gradient(exchange.dispatch(hidden_states), self.ranks)
        counts = torch.tensor(exchange.rows_of_experts, device=rows.device)
        experts = torch.arange(len(counts), device=rows.device).repeat_interleave(counts).unsqueeze(1)
        outputs = self.forward(rows, experts, torch.ones_like(experts, dtype=rows.dtype))
        return exchange.combine(_core.scale_gradient(outputs, 1 / self.ranks))


def _is_stacked(layer: torch.nn.Module) -> bool:
    """Returns whether a layer has transformers' form of experts: the rows of its parameters."""
    return hasattr(layer, "_is_expert_parallel") and isinstance(getattr(layer, "num_experts", None), int)


def has_stacked_experts(model: torch.nn.Module) -> bool:
    return any(map(_is_stacked, model.modules()))


def divide_experts(model: torch.nn.Module, ranks: int, group: _core.Group, rank: int) -> None:
    """Leaves this process its part of the experts of transformers' layers, of rank 0's values. Collective in `group`.

    Throws ConfigError for numbers of experts that `ranks` does not divide.
    """
    for name, layer in model.named_modules():
        if not _is_stacked(layer) or hasattr(layer, "_lockstep_expert_ranks"):
            continue
        given: Any = layer
        parameters: dict[str, Any] = dict(given.named_parameters(recurse=False))
        wrong = [key for key, parameter in parameters.items() if parameter.dim() == 0 or len(parameter) != given.num_experts]
        if given.num_experts % ranks != 0 or wrong or given._is_expert_parallel:
            raise _core.ConfigError(
                f"[prepare] {name} has {given.num_experts} experts, and ep_size is {ranks}; expected a multiple of it, "
                "parameters with a row for each expert, and a model that transformers has not divided"
                + (f"; got {wrong[0]} of the shape {tuple(parameters[wrong[0]].shape)}" if wrong else "")
            )
        own = given.num_experts // ranks
        for parameter in parameters.values():
            full = group.broadcast(parameter.data, 0)
            parameter.data = full[rank * own : (rank + 1) * own].clone()
            parameter.allreduce = False  # DeepSpeed's mark of experts.
            parameter._lockstep_stacked_experts = True
        divided = DividedExperts(given, ranks, given.forward)
        given.num_experts = own
        given._lockstep_expert_ranks, given._set_expert_group = ranks, divided.set_group
        given.forward = divided
