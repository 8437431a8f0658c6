# SPDX-License-Identifier: Apache-2.0
"""The module inside of torch.compile's wrapper."""
from __future__ import annotations

from typing import Any


def own_module(model: Any) -> Any:
    """Returns the module that has the parameters: torch.compile's wrapper shares those of its own."""
    return getattr(model, "_orig_mod", model)
