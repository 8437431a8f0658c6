# SPDX-License-Identifier: Apache-2.0
"""Rank 0's values for buffers that a model does not save (`persistent=False`)."""
from __future__ import annotations

from typing import Any

import torch

from . import _core
from ._codec import decode, encode


def share_transient_buffers(models: list[torch.nn.Module], group: Any, where: str) -> None:
    """Copies rank 0's values of the buffers that state_dict() lacks to all ranks. Collective.

    The C++ library does it for parameters and saved buffers. Buffers on the meta device and sparse ones keep their
    values. Throws ConfigError on all ranks if names, dtypes or shapes differ. `where` names the caller in messages.
    """
    if group.size == 1 or not models:
        return
    buffers = sorted(
        (pair for index, model in enumerate(models) for pair in _transient_buffers(model, index)), key=lambda pair: pair[0]
    )
    if not buffers:  # Nothing is sent, so that C++ programs may take part in such a job.
        return
    _expect_same(buffers, group, where)
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for _, buffer in buffers:
        by_device.setdefault(buffer.device, []).append(_without_repetitions(buffer.detach()))
    for tensors in by_device.values():
        _broadcast(tensors, group)


def _transient_buffers(model: torch.nn.Module, index: int) -> list[tuple[str, torch.Tensor]]:
    first = "" if index == 0 else f"model_{index}."
    return [
        (f"{first}{prefix}.{name}" if prefix else f"{first}{name}", buffer)
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
        and name in module._non_persistent_buffers_set
        and buffer.layout == torch.strided
        and not buffer.is_meta
    ]


def _expect_same(buffers: list[tuple[str, torch.Tensor]], group: Any, where: str) -> None:
    mine = {name: f"{str(buffer.dtype).removeprefix('torch.')}{list(buffer.shape)}" for name, buffer in buffers}
    all_ranks = [decode(text) for text in _core.all_gather_bytes(group, encode(mine))]
    first = all_ranks[0]
    for rank, other in enumerate(all_ranks):
        name = next((name for name in [*first, *other] if first.get(name) != other.get(name)), None)
        if name is not None:
            raise _core.ConfigError(
                f"[{where}] the buffers with persistent=False differ between ranks: {name} is "
                f"{first.get(name, 'absent')} on rank 0, and {other.get(name, 'absent')} on rank {rank}; construct the "
                "same model on all ranks"
            )


def _without_repetitions(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view with each element of memory once: expand() repeats elements by a stride of 0."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _broadcast(tensors: list[torch.Tensor], group: Any) -> None:
    """Copies rank 0's values of tensors on one device to all ranks, in one operation."""
    packed = torch.cat([tensor.clone().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])
    if packed.numel() == 0:
        return
    received = group.broadcast(packed.clone(), 0)
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel() * tensor.element_size()
        # Equal values are not written: all ranks must write to a tensor that zero.Init has sharded, or none.
        if not torch.equal(received[begin:end], packed[begin:end]):
            # The copy has the alignment that view() needs.
            tensor.copy_(received[begin:end].clone().view(tensor.dtype).reshape(tensor.shape))
        begin = end
