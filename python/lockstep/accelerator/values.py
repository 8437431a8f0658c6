# SPDX-License-Identifier: Apache-2.0
"""Values across processes."""
from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from .. import _core
from .._codec import decode, encode
from .._tree import first_rows, leaves_of, map_tensors
from ..state import GradientState
from .base import AcceleratorBase

# This function of transformers' Trainer gathers a count, and divides the sum by tp * cp * sp. Accelerate also gathers from
# processes with the same samples. With each count once the Trainer's gradients would be that many times too large.
_COUNTS_COPIES = ("transformers.trainer", "_get_num_items_in_batch")


class ValueCalls(AcceleratorBase):
    """The calls of an Accelerator that exchange values. All are collective, except set_trigger."""

    def gather(self, tensor: Any, *others: Any) -> Any:
        """Concatenates each tensor of a nested value along dimension 0, in the order of processes. Collective.

        Several values give a tuple with the result of each. Keeps gradients. On a mesh the processes are those with
        samples of their own, so a sum counts each sample once.
        """
        values = (tensor, *others) if others else tensor
        self._expect_tensors("gather", values)
        if not self.state.use_distributed:
            return values
        gathered = map_tensors(values, self._core.gather)
        sizes = self.state.parallelism_config
        if sizes and _calls_gather(sys._getframe(1)) == _COUNTS_COPIES:
            return gathered.repeat(sizes.tp_size * sizes.cp_size * sizes.sp_size)
        return gathered

    def gather_for_metrics(self, input_data: Any, *others: Any, use_gather_object: bool = False) -> Any:
        """Works as gather, and drops samples that were repeated to complete the last batch. Keeps no gradients.

        Values that are not tensors, or with `use_gather_object`, are gathered as objects: a list with one element per
        sample, or lists, tuples or dicts of such lists and of tensors. Several values give a tuple with the result of
        each. `gather_for_metrics(value, True)` is Accelerate's form of `use_gather_object=True`. Throws ConfigError for
        this process's part of sequences, [B, T/P] and the like, in a batch that its loader has divided.
        """
        if len(others) == 1 and isinstance(others[0], bool):
            use_gather_object = others[0]
        elif others:
            return tuple(self._gather_samples(value, use_gather_object) for value in (input_data, *others))
        return self._gather_samples(input_data, use_gather_object)

    def _gather_samples(self, value: Any, as_objects: bool) -> Any:
        self._expect_all_positions(value)
        if not as_objects and all(isinstance(leaf, torch.Tensor) for leaf in leaves_of(value)):
            return map_tensors(self._without_repeats(value), self._core.gather_for_metrics)
        batch = self._core.current_batch
        if batch is not None:
            rows, new = batch[1][self._core.data_group.rank], batch[2][self._core.data_group.rank]
            value = first_rows(value, rows, new)
        return self._gather_objects(value)

    def _without_repeats(self, value: Any) -> Any:
        """Returns tensors that have a row for each sample of a complete batch with only the rows of a smaller last one.

        transformers' evaluation repeats a loss so, and relies on Accelerate's trimming.
        """
        batch, loader = self._core.current_batch, GradientState().active_dataloader
        if batch is None or not batch[0] or not hasattr(loader, "total_batch_size"):
            return value
        group = self._core.data_group
        rows, complete = batch[1][group.rank], loader.total_batch_size // group.size
        if rows == complete:
            return value
        return map_tensors(
            value, lambda tensors: [one[:rows] if one.dim() > 0 and len(one) == complete else one for one in tensors]
        )

    def _expect_all_positions(self, value: Any) -> None:
        """Throws ConfigError for tensors [B, T/P, ...] in the scope of a batch that its loader has divided."""
        block = self._sequences.current
        part = None if block is None else block.given_positions
        for leaf in leaves_of(value):
            if part is not None and isinstance(leaf, torch.Tensor) and leaf.shape[1:2] == part.shape[1:]:
                raise _core.ConfigError(
                    f"[gather_for_metrics] a tensor has the shape {tuple(leaf.shape)}, with this process's part of each "
                    "sequence; expected all positions; gather them before: with accelerator.maybe_context_parallel() as "
                    "block: full = block.gather(tensor)"
                )

    def _gather_objects(self, value: Any) -> list[Any]:
        parts = [decode(text) for text in _core.all_gather_bytes(self._core.data_group, encode(value))]
        return [item for part in parts for item in (part if isinstance(part, (list, tuple)) else [part])]

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Returns each tensor of a nested value reduced over all processes: "sum", "mean", "max" or "none"."""
        self._expect_tensors("reduce", tensor)
        operations = {"sum": "SUM", "mean": "AVG", "max": "MAX", "min": "MIN"}
        if reduction == "none":
            return tensor
        if reduction not in operations:
            raise _core.ConfigError(
                f"[reduce] unknown reduction {reduction!r}; expected one of {', '.join(operations)}, none"
            )
        if scale != 1.0:
            raise _core.ConfigError("[reduce] scale is only for XLA devices; multiply the result")
        operation = getattr(_core.ReduceOp, operations[reduction])
        return map_tensors(tensor, lambda tensors: self._core.reduce(tensors, operation))

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """Pads each tensor to the largest size of dimension `dim` on any process. Collective."""
        self._expect_tensors("pad_across_processes", tensor)

        def pad(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            # A tensor without that dimension stays unchanged, as in Accelerate.
            chosen = [item for item in tensors if item.dim() > dim >= -item.dim()]
            padded = iter(self._core.pad_across_processes(chosen, dim, float(pad_index), pad_first))
            return [next(padded) if item.dim() > dim >= -item.dim() else item for item in tensors]

        return map_tensors(tensor, pad)

    @staticmethod
    def _expect_tensors(where: str, value: Any) -> None:
        for leaf in leaves_of(value):
            if not isinstance(leaf, torch.Tensor):
                raise TypeError(
                    f"[{where}] a value is of type {type(leaf).__name__}; expected tensors in lists, tuples or dicts"
                )

    def set_trigger(self) -> None:
        """Sets a flag that check_trigger() reads on all processes."""
        self._core.set_trigger()

    def check_trigger(self) -> bool:
        """Returns whether any process has set the flag, and clears it on all. Collective."""
        return self._core.check_trigger()


def _calls_gather(frame: FrameType | None) -> tuple[str, str]:
    """Returns the module and name of the function that calls gather, also by a subclass that overrides it."""
    while frame is not None and frame.f_code.co_name == "gather":
        frame = frame.f_back
    return ("", "") if frame is None else (frame.f_globals.get("__name__", ""), frame.f_code.co_name)
