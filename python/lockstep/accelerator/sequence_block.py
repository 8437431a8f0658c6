# SPDX-License-Identifier: Apache-2.0
"""The running block of maybe_context_parallel, or scope of a batch."""
from __future__ import annotations

from typing import Any

import torch

from .. import _core


class SequenceBlock:
    """The running block of maybe_context_parallel, or the scope of a batch that its loader has divided.

    `given_positions` are those of such a batch's part, int64 [B, T/P].
    """

    def __init__(self, scope: _core.SequenceScope, given_positions: torch.Tensor | None = None) -> None:
        self._scope = scope
        self.given_positions = given_positions

    @property
    def attention_calls(self) -> int:
        """The number of attentions that were computed over the full sequence."""
        return self._scope.attention_calls

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
    """The running blocks of an Accelerator, the innermost last. The hooks of its models have them."""

    def __init__(self) -> None:
        self._running: list[SequenceBlock] = []

    @property
    def current(self) -> SequenceBlock | None:
        return self._running[-1] if self._running else None

    def begin(self, block: SequenceBlock) -> None:
        self._running.append(block)

    def end(self, block: SequenceBlock) -> None:
        """Ends a block. Throws ConfigError if others have begun within it and not ended, and ends them, too."""
        if block not in self._running:
            return  # It was ended so.
        inner = self._running[-1] is not block
        while block in self._running:
            self._running.pop().end()
        if inner:
            raise _core.ConfigError(
                "[DataLoader] a loop over another loader, whose batch is divided too, has begun since this batch and not "
                "ended; loop over one loader within the other, without zip"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> SequenceBlocks:
        return self  # Of a copied model's hook.

    def __reduce__(self) -> tuple[type[SequenceBlocks], tuple[()]]:
        return SequenceBlocks, ()  # A pickled model's hook has no blocks that run.
