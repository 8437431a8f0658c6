# SPDX-License-Identifier: Apache-2.0
"""deepspeed.moe.experts: the experts of one rank."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ...parallelism_config import launched_size
from ...state import AcceleratorState, PartialState

__all__ = ["Experts"]


class Experts(torch.nn.Module):
    """Copies of a module: those of `num_local_experts * ep_size` experts that this rank has.

    Unlike in DeepSpeed, parameters are named by an expert's number among all, so that all ranks together have the names
    of one process: `deepspeed_experts.5.weight`. A state dict of all experts can be loaded: those of other ranks are left
    out.
    """

    def __init__(self, expert: torch.nn.Module, num_local_experts: int = 1, expert_group_name: str | None = None) -> None:
        super().__init__()
        self.num_local_experts = num_local_experts
        self.ep_size = int((expert_group_name or "ep_size_1").removeprefix("ep_size_"))
        config = AcceleratorState._shared_state.get("parallelism_config")
        tp_size = (launched_size("tp_size") or 1) if config is None else config.tp_size
        # Ranks of a tp line have consecutive numbers, and the same experts.
        first = PartialState().process_index // tp_size % self.ep_size * num_local_experts
        self.deepspeed_experts = torch.nn.ModuleDict(
            {str(first + i): copy.deepcopy(expert) for i in range(num_local_experts)}
        )
        for param in self.deepspeed_experts.parameters():
            param.allreduce = False  # type: ignore[attr-defined]
            param.group_name = expert_group_name  # type: ignore[attr-defined]
        self.register_load_state_dict_pre_hook(_without_other_ranks)

    def forward(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Computes rows [R, hidden], of which each expert in turn has a number. Every expert computes, also no rows."""
        outputs = []
        for part, expert in zip(rows.split(counts), self.deepspeed_experts.values(), strict=True):
            output = expert(part)
            outputs.append(output[0] if isinstance(output, tuple) else output)
        return torch.cat(outputs)


def _without_other_ranks(module: Experts, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    start = f"{prefix}deepspeed_experts."
    for name in [name for name in state_dict if name.startswith(start)]:
        number = name.removeprefix(start).partition(".")[0]
        if number not in module.deepspeed_experts and int(number) < module.num_local_experts * module.ep_size:
            del state_dict[name]
