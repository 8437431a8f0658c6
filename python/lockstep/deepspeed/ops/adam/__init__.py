# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's names of Adam."""

from __future__ import annotations

from typing import Any

from .._rule_optimizer import RuleOptimizer, refuse

__all__ = ["DeepSpeedCPUAdam", "FusedAdam"]


class FusedAdam(RuleOptimizer):
    """AdamW, or with `adam_w_mode=False` Adam, which adds the weight decay to the gradient. Modelled on DeepSpeed's."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        refuse("FusedAdam", "use torch.optim.AdamW(amsgrad=True)", amsgrad=amsgrad)
        self.adam_w_mode = bool(adam_w_mode)
        self.set_grad_none = set_grad_none
        super().__init__(
            params,
            {
                "lr": lr,
                "bias_correction": bool(bias_correction),
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
            },
        )

    def core_rule(self) -> str:
        return "AdamW" if self.adam_w_mode else "Adam"


class DeepSpeedCPUAdam(FusedAdam):
    """The same, with the name and arguments of DeepSpeed's Adam for offloaded state."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        refuse(
            "DeepSpeedCPUAdam",
            "create the optimizer by the file, with bf16.bf16_optimizer_states",
            fp32_optimizer_states=not fp32_optimizer_states,
        )
        refuse("DeepSpeedCPUAdam", "use torch.optim.AdamW(amsgrad=True)", amsgrad=amsgrad)
        super().__init__(model_params, lr, bias_correction, betas, eps, adamw_mode, weight_decay)
