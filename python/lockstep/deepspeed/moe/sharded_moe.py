# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe.sharded_moe: the choice of experts, and the exchange of tokens between ranks."""

from __future__ import annotations

from typing import Any

import torch

from ... import _core
from .experts import Experts

__all__ = ["MOELayer", "TopKGate"]

_POLICIES = (None, "None", "Jitter", "RSample")
_JITTER = 1e-2  # DeepSpeed's.


class TopKGate(torch.nn.Module):
    """Chooses k of `num_experts` experts for each token, with DeepSpeed's names and rules.

    Computes in float32, and in float64 for inputs of float64. With k of 1 and use_rts a full expert drops tokens at random,
    without it the last ones; with k of 2 second choices first; with more those of the smallest probabilities.
    """

    def __init__(
        self,
        model_dim: int,
        num_experts: int,
        k: int = 1,
        capacity_factor: float = 1.0,
        eval_capacity_factor: float = 1.0,
        min_capacity: int = 8,
        noisy_gate_policy: str | None = None,
        drop_tokens: bool = True,
        use_rts: bool = True,
        ep_group: Any = None,
        top2_2nd_expert_sampling: bool = True,
    ) -> None:
        super().__init__()
        if noisy_gate_policy not in _POLICIES:
            raise _core.ConfigError(
                f"[MoE] noisy_gate_policy is {noisy_gate_policy!r}; expected None, 'None', 'Jitter' or 'RSample'"
            )
        if not 1 <= k <= num_experts:
            raise _core.ConfigError(f"[MoE] k is {k}; expected from 1 to the number of experts, {num_experts}")
        if ep_group is not None:
            raise _core.ConfigError("[MoE] got an ep_group; expected None: initialize() and prepare() give layers theirs")
        self.wg = torch.nn.Linear(model_dim, num_experts, bias=False)
        self.k = k
        self.capacity_factor = capacity_factor
        self.eval_capacity_factor = eval_capacity_factor
        self.min_capacity = min_capacity
        self.noisy_gate_policy = noisy_gate_policy
        self.drop_tokens = drop_tokens
        self.use_rts = use_rts
        self.top2_2nd_expert_sampling = top2_2nd_expert_sampling

    def forward(self, tokens: torch.Tensor) -> Any:
        """Returns the experts of tokens [T, hidden], a Routing."""
        dtype = torch.float64 if tokens.dtype == torch.float64 else torch.float32
        with torch.autocast(tokens.device.type, enabled=False):
            wide = tokens.to(dtype)
            if self.training and self.noisy_gate_policy == "Jitter":
                wide = wide * torch.empty_like(wide).uniform_(1 - _JITTER, 1 + _JITTER)
            logits = torch.nn.functional.linear(wide, self.wg.weight.to(dtype))
        factor = self.capacity_factor if self.training else self.eval_capacity_factor
        return _core.route(
            logits,
            k=self.k,
            norm_topk_prob=self.k > 1,
            capacity_factor=float(factor) if self.drop_tokens else None,
            min_capacity=self.min_capacity,
            drop_policy=("random" if self.use_rts else "position") if self.k == 1 else "choice" if self.k == 2 else "probs",
            noisy=self.training and self.noisy_gate_policy == "RSample" and self.k == 1,
            top2_2nd_expert_sampling=self.k == 2 and self.top2_2nd_expert_sampling,
        )


class MOELayer(torch.nn.Module):
    """Sends tokens to the ranks of their experts and back. `l_aux` and `exp_counts` are those of the last forward.

    The group is given by initialize() or prepare(). An expert's gradient is divided by the number of ranks, so that the
    average over the ranks that have it is the gradient of the mean loss of all. Collective in forward and backward.
    """

    def __init__(
        self,
        gate: TopKGate,
        experts: Experts,
        ep_group_name: str,
        ep_size: int,
        num_local_experts: int,
        use_tutel: bool = False,
    ) -> None:
        super().__init__()
        if use_tutel:
            raise _core.ConfigError("[MoE] use_tutel is on; expected False: Lockstep sends tokens by itself")
        self.gate = gate
        self.experts = experts
        self.ep_group_name = ep_group_name
        self.ep_size = self._lockstep_expert_ranks = ep_size
        self.num_local_experts = num_local_experts
        self.l_aux: Any = 0.0
        self.exp_counts: Any = None
        self._group: Any = _core.Group() if ep_size == 1 else None

    def _set_expert_group(self, group: Any) -> None:
        if group.size == self.ep_size:  # Another one is an error of prepare.
            self._group = group

    def forward(self, hidden: torch.Tensor, used_token: torch.Tensor | None = None) -> torch.Tensor:
        if used_token is not None:
            raise _core.ConfigError("[MoE] got used_token, which Lockstep lacks; expected None")
        if self._group is None:
            raise _core.ConfigError(
                f"[MoE] the experts are on {self.ep_size} ranks, which are not connected; pass the model to "
                "lockstep.deepspeed.initialize(), or to Accelerator.prepare() with `lockstep launch --mesh "
                f"ep={self.ep_size}`, before its first forward"
            )
        tokens = hidden.reshape(-1, hidden.shape[-1])
        routing = self.gate(tokens)
        self.l_aux, self.exp_counts = _core.l_aux(routing), routing.exp_counts
        exchange = _core.ExpertDispatch(self._group, routing)
        rows = exchange.dispatch(tokens)
        if self.ep_size > 1:
            rows = _core.scale_gradient(rows, self.ep_size)
        outputs = self.experts(rows, exchange.rows_of_experts)
        if self.ep_size > 1:
            outputs = _core.scale_gradient(outputs, 1 / self.ep_size)
        return exchange.combine(outputs).reshape(hidden.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_group": None, "l_aux": 0.0, "exp_counts": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._group = _core.Group() if self.ep_size == 1 else None
