# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's name of Adagrad."""

from __future__ import annotations

from typing import Any

from .._rule_optimizer import RuleOptimizer, refuse

__all__ = ["DeepSpeedCPUAdagrad"]


class DeepSpeedCPUAdagrad(RuleOptimizer):
    """Adagrad. Modelled on DeepSpeed's class of that name."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        refuse("DeepSpeedCPUAdagrad", "Adagrad has no AMSGrad variant", amsgrad=amsgrad)
        refuse(
            "DeepSpeedCPUAdagrad",
            "create the optimizer by the file, with bf16.bf16_optimizer_states",
            fp32_optimizer_states=not fp32_optimizer_states,
        )
        super().__init__(model_params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    def core_rule(self) -> str:
        return "Adagrad"
