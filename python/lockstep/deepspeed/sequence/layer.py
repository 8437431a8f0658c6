# SPDX-License-Identifier: Apache-2.0
"""deepspeed.sequence.layer: Ulysses' attention, of which each rank computes some heads over the full sequence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ... import _core
from ...distributed.process_group import ProcessGroupLockstep

__all__ = ["DistributedAttention", "apply_rotary_pos_emb"]

_WHERE = "DistributedAttention"


def apply_rotary_pos_emb(t: torch.Tensor, freqs_cos: torch.Tensor, freqs_sin: torch.Tensor) -> torch.Tensor:
    """Rotates the first freqs_cos.shape[-1] features of `t` [seq, ..., features] by the angles of its positions."""
    size = freqs_cos.shape[-1]
    turned, rest = t[..., :size], t[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * freqs_cos + torch.cat((-second, first), dim=-1) * freqs_sin
    return torch.cat((turned, rest), dim=-1)


class DistributedAttention(torch.nn.Module):
    """Computes `local_attention` over sequences that the ranks of a group divide, with DeepSpeed's arguments.

    Each rank has consecutive positions of query, key and value [batch, seq, heads, size], or [seq, batch, heads, size]
    with batch_dim_idx=1. `local_attention` gets all positions of some heads, those of a key together with its queries'.
    Its result has the shape of the query it got, or heads and sizes as one dimension. Gradients are those of the sum of
    all ranks' losses.

    `sequence_process_group` is one of torch.distributed, or Lockstep's own. `num_kv_heads` is the number of keys' heads;
    without it that of each forward's key. Heads may be fewer on some ranks. Four all_to_alls in forward, four in
    backward. Collective.
    """

    def __init__(
        self,
        local_attention: Any,
        sequence_process_group: Any,
        scatter_idx: int = 2,
        gather_idx: int = 0,
        sp_stream: Any = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        if sp_stream is not None:
            raise _core.ConfigError(f"[{_WHERE}] got an sp_stream; expected None: messages do not overlap with projections")
        if scatter_idx != 2 or gather_idx not in (0, 1):
            raise _core.ConfigError(
                f"[{_WHERE}] scatter_idx is {scatter_idx} and gather_idx {gather_idx}; expected 2, the dimension of heads, "
                "and 0 or 1"
            )
        if not isinstance(sequence_process_group, (dist.ProcessGroup, _core.Group)):
            raise _core.ConfigError(
                f"[{_WHERE}] sequence_process_group is a {type(sequence_process_group).__name__}; expected a group of "
                "this rank, such as the result of torch.distributed.new_group()"
            )
        self.local_attn = local_attention
        self.spg = sequence_process_group
        self._group: Any = sequence_process_group
        if isinstance(sequence_process_group, _core.Group):
            timeout = timedelta(milliseconds=sequence_process_group.timeout_ms)
            self._group = ProcessGroupLockstep(dist.HashStore(), sequence_process_group, timeout)
        self.scatter_idx, self.gather_idx = scatter_idx, gather_idx
        self.num_kv_heads = num_kv_heads

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        batch_dim_idx: int,
        rotary_pos_emb: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if batch_dim_idx not in (0, 1) or any(tensor.dim() != 4 for tensor in (query, key, value)):
            raise _core.ConfigError(
                f"[{_WHERE}] batch_dim_idx is {batch_dim_idx}, and the query has the shape {tuple(query.shape)}; expected 0 "
                "or 1, and four dimensions: batch and sequence, heads, size"
            )
        seq = 1 - batch_dim_idx
        group = self._group
        ranks, rank = group.size(), group.rank()
        groups = self.num_kv_heads or key.shape[2]
        parts = [tensor.shape[seq] for tensor in (query, key, value)]
        inputs = [
            exchange(tensor, group, 2, heads_of_ranks(tensor.shape[2], groups, ranks), seq, [part] * ranks)
            for tensor, part in zip((query, key, value), parts)
        ]
        if rotary_pos_emb is not None:
            cos, sin = (angles.permute(1, 0, 2, 3) for angles in rotary_pos_emb)
            inputs[:2] = [apply_rotary_pos_emb(tensor, cos, sin) for tensor in inputs[:2]]
        context = self.local_attn(*inputs, *args, **kwargs)
        heads = heads_of_ranks(query.shape[2], groups, ranks)
        if context.shape[seq] != parts[0] * ranks or context.shape[2] % heads[rank] != 0:
            raise _core.ConfigError(
                f"[{_WHERE}] the local attention returned {tuple(context.shape)} for a query {tuple(inputs[0].shape)}; "
                "expected the same, or heads and sizes as one dimension"
            )
        features = [context.shape[2] // heads[rank] * number for number in heads]
        return exchange(context, group, seq, [parts[0]] * ranks, 2, features)


def heads_of_ranks(number: int, groups: int, ranks: int) -> list[int]:
    """Returns how many of `number` heads each rank gets. Heads of a group of a key and its queries stay together."""
    if number % groups != 0 or groups < ranks:
        raise _core.ConfigError(
            f"[{_WHERE}] there are {number} heads, {groups} of keys, and {ranks} ranks; expected a multiple of the keys' "
            "heads, which are at least as many as ranks; use fewer ranks for the sequence"
        )
    return [number // groups * (groups // ranks + (rank < groups % ranks)) for rank in range(ranks)]


def exchange(
    input: torch.Tensor, group: dist.ProcessGroup, split: int, sizes: list[int], join: int, received: list[int]
) -> torch.Tensor:
    """Sends parts of dimension `split` to the ranks, and joins what they send along dimension `join`.

    `sizes` are those of the parts for each rank, `received` those from each rank. Differentiable. Collective.
    """
    return _Exchange.apply(input, group, split, sizes, join, received)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, group: Any, split: int, sizes: list[int], join: int, received: list[int]
    ) -> torch.Tensor:
        ctx.reverse = group, join, received, split, sizes
        rank = group.rank()
        sent = [part.reshape(-1) for part in input.split(sizes, split)]
        shapes = [list(input.shape) for _ in received]
        for shape, size in zip(shapes, received):
            shape[split], shape[join] = sizes[rank], size
        lengths = [torch.Size(shape).numel() for shape in shapes]
        output = input.new_empty(sum(lengths))
        _all_to_all(group, output, torch.cat(sent), lengths, [part.numel() for part in sent])
        return torch.cat([part.view(shape) for part, shape in zip(output.split(lengths), shapes)], dim=join)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _Exchange.apply(gradient, *ctx.reverse), None, None, None, None, None


def _all_to_all(
    group: dist.ProcessGroup, output: torch.Tensor, input: torch.Tensor, received: list[int], sent: list[int]
) -> None:
    equal = len({*received, *sent}) == 1
    sizes: tuple[list[int], list[int]] = ([], []) if equal else (received, sent)
    if isinstance(group, ProcessGroupLockstep):
        group.all_to_all_single(output, input, *sizes).wait()
    else:
        dist.all_to_all_single(output, input, *sizes, group=group)
