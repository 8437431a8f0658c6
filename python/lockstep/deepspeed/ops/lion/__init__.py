# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's names of Lion."""

from __future__ import annotations

from typing import Any

from .._rule_optimizer import RuleOptimizer, refuse

__all__ = ["DeepSpeedCPULion", "FusedLion"]


class FusedLion(RuleOptimizer):
    """Lion, which moves each element by the sign of a momentum. Modelled on DeepSpeed's FusedLion."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def core_rule(self) -> str:
        return "Lion"


class DeepSpeedCPULion(FusedLion):
    """The same, with the name and arguments of DeepSpeed's Lion for offloaded state."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        refuse(
            "DeepSpeedCPULion",
            "create the optimizer by the file, with bf16.bf16_optimizer_states",
            fp32_optimizer_states=not fp32_optimizer_states,
        )
        super().__init__(model_params, lr, betas, weight_decay)
