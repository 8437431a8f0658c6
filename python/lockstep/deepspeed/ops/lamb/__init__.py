# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's name of LAMB."""

from __future__ import annotations

from typing import Any

from .._rule_optimizer import RuleOptimizer, refuse

__all__ = ["FusedLamb"]


class FusedLamb(RuleOptimizer):
    """LAMB. It corrects the bias of the moments, as the paper does. Modelled on DeepSpeed's FusedLamb."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        refuse("FusedLamb", "set gradient_clipping in the file instead", max_grad_norm=max_grad_norm != 0)
        refuse("FusedLamb", "LAMB has no AMSGrad variant", amsgrad=amsgrad)
        super().__init__(
            params,
            {
                "lr": lr,
                "bias_correction": bool(bias_correction),
                "betas": betas,
                "eps": eps,
                "eps_inside_sqrt": bool(eps_inside_sqrt),
                "weight_decay": weight_decay,
                "max_coeff": max_coeff,
                "min_coeff": min_coeff,
            },
        )

    def core_rule(self) -> str:
        return "LAMB"
