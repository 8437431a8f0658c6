# SPDX-License-Identifier: Apache-2.0
"""Contiguous memory of tensors, without a copy where they have it."""
from __future__ import annotations

from collections.abc import Callable

import torch


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values in contiguous memory."""
    if _is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def writable(tensor: torch.Tensor, finish: list[Callable[[], None]], filled: bool = True) -> torch.Tensor:
    """Returns contiguous memory for the tensor's new values, with its present ones if `filled`.

    If it is not the tensor's own, appends the copy to it to `finish`.
    """
    if _is_plain(tensor):
        return tensor
    target = tensor.detach()
    buffer = torch.empty(target.shape, dtype=target.dtype)
    if filled:
        buffer.copy_(target)
    finish.append(lambda: _copy(target, buffer))
    return buffer


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def joined(parts: list[torch.Tensor]) -> torch.Tensor | None:
    """Returns the memory of tensors of one size that follow each other in one storage; None if they do not."""
    first = parts[0]
    step = first.numel()
    for index, part in enumerate(parts):
        if not (
            _is_plain(part)
            and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and part.storage_offset() == first.storage_offset() + index * step
            and part.numel() == step
        ):
            return None
    return first.detach().as_strided((len(parts) * step,), (1,), first.storage_offset())


def split_rows(rows: torch.Tensor, parts: list[torch.Tensor]) -> None:
    """Copies each row to its part."""
    for row, part in zip(rows, parts, strict=True):
        part.detach().copy_(row.view(part.shape))
