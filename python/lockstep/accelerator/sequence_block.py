# SPDX-License-Identifier: Apache-2.0
"""The running block of maybe_context_parallel."""
from __future__ import annotations

from typing import Any

import torch

from .. import _core


class SequenceBlock:
    """The running block of maybe_context_parallel, or the turn of a loop whose loader has divided the batch.

    `given_positions` are those of such a batch's part [B, T/P].
    """

    def __init__(self, scope: _core.SequenceScope, given_positions: torch.Tensor | None = None) -> None:
        self._scope = scope
        self.given_positions = given_positions

    def end(self) -> None:
        self._scope.end()

    def positions(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Returns the positions of this process's part in the sequence, int64 [T/P]."""
        return self._scope.positions(torch.device(device))

    def mean(self, sum: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
        """Returns the mean over the items of the full sequences, from this process's `sum` over `count` items.

        The loss to pass to backward(). Parts may have different numbers of items. Collective in the line, as its backward.
        """
        return self._scope.mean(sum, torch.as_tensor(count))

    def gather(self, part: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Returns all positions of a tensor with this process's along `dim`. Collective in the line."""
        return self._scope.gather(part, dim)


class SequenceBlocks:
    """The running block of an Accelerator, if any. The hooks of its models have it."""

    def __init__(self) -> None:
        self.current: SequenceBlock | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> SequenceBlocks:
        return self  # Of a copied model's hook.
