# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe.layer: a mixture of experts, which ranks may divide."""

from __future__ import annotations

from typing import Any

import torch

from ... import _core
from .experts import Experts
from .sharded_moe import MOELayer, TopKGate

__all__ = ["MoE"]


class MoE(torch.nn.Module):
    """Sends each token to k of `num_experts` copies of `expert`, with DeepSpeed's arguments.

    `ep_size` consecutive ranks divide the experts, and average them with the ranks that have the same ones. Returns
    (output, l_aux, exp_counts); add l_aux, the loss that balances experts, to the loss with a coefficient. Throws
    ConfigError for use_tutel and enable_expert_tensor_parallelism.
    """

    def __init__(
        self,
        hidden_size: int,
        expert: torch.nn.Module,
        num_experts: int = 1,
        ep_size: int = 1,
        k: int = 1,
        capacity_factor: float = 1.0,
        eval_capacity_factor: float = 1.0,
        min_capacity: int = 4,
        use_residual: bool = False,
        noisy_gate_policy: str | None = None,
        drop_tokens: bool = True,
        use_rts: bool = True,
        use_tutel: bool = False,
        enable_expert_tensor_parallelism: bool = False,
        top2_2nd_expert_sampling: bool = True,
    ) -> None:
        super().__init__()
        if enable_expert_tensor_parallelism:
            raise _core.ConfigError("[MoE] enable_expert_tensor_parallelism is on; expected False: experts are not divided")
        if ep_size < 1 or num_experts % ep_size != 0:
            raise _core.ConfigError(f"[MoE] ep_size is {ep_size}; expected a divisor of num_experts, {num_experts}")
        self.use_residual = use_residual
        self.ep_size = ep_size
        self.expert_group_name = f"ep_size_{ep_size}"
        self.num_experts = num_experts
        self.num_local_experts = num_experts // ep_size
        gate = TopKGate(
            hidden_size,
            num_experts,
            k,
            capacity_factor,
            eval_capacity_factor,
            min_capacity,
            noisy_gate_policy,
            drop_tokens,
            use_rts,
            None,
            top2_2nd_expert_sampling,
        )
        experts = Experts(expert, self.num_local_experts, self.expert_group_name)
        self.deepspeed_moe = MOELayer(
            gate, experts, self.expert_group_name, ep_size, self.num_local_experts, use_tutel=use_tutel
        )
        if use_residual:
            self.mlp = expert
            self.coefficient = torch.nn.Linear(hidden_size, 2)

    def set_deepspeed_parallelism(self, use_data_before_expert_parallel_: bool = False) -> None:
        """Does nothing: initialize() and prepare() connect the ranks. Throws ConfigError for another order of ranks."""
        if use_data_before_expert_parallel_:
            raise _core.ConfigError(
                "[MoE] use_data_before_expert_parallel_ is on; expected False: consecutive ranks divide the experts"
            )

    def forward(
        self, hidden_states: torch.Tensor, used_token: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Any, Any]:
        output = self.deepspeed_moe(hidden_states, used_token)
        if self.use_residual:
            shared = self.mlp(hidden_states)
            shared = shared[0] if isinstance(shared, tuple) else shared
            weights = torch.softmax(self.coefficient(hidden_states), dim=-1)
            output = output * weights[..., 0:1] + shared * weights[..., 1:]
        return output, self.deepspeed_moe.l_aux, self.deepspeed_moe.exp_counts
