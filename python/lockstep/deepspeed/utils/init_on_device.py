# SPDX-License-Identifier: Apache-2.0
"""OnDevice, which builds a model on a device in a dtype."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

__all__ = ["OnDevice"]


class OnDevice:
    """Builds modules on a device, with floating-point tensors of a dtype.

        with deepspeed.OnDevice(dtype=torch.float16, device="meta"):
            model = Model()

    Sets torch's default device and default dtype in the block, so a tensor for which the code names a device or a dtype
    keeps that one. Modelled on DeepSpeed's class.
    """

    def __init__(self, dtype: torch.dtype, device: Any = "meta", enabled: bool = True) -> None:
        self.dtype = dtype
        self.device = device
        self.enabled = enabled
        self._scope: Any = None
        self._former_dtype: torch.dtype | None = None

    def __enter__(self) -> None:
        if not self.enabled:
            return
        self._former_dtype = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        self._scope = torch.device(self.device)
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._former_dtype is not None:
            self._scope.__exit__(kind, error, traceback)
            torch.set_default_dtype(self._former_dtype)
            self._former_dtype = None
