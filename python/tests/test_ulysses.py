# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's Ulysses: ranks that divide a sequence compute the attention of one process."""

from __future__ import annotations

import pytest
import torch
from launch import run_ranks

from lockstep import ConfigError
from lockstep.deepspeed.sequence.layer import DistributedAttention
from lockstep.state import PartialState

ATTENTION = """
import torch
import torch.distributed as dist
from torch.nn import functional as F

from lockstep import PartialState
from lockstep.deepspeed import comm
from lockstep.deepspeed.sequence import layer
from lockstep.deepspeed.sequence.layer import DistributedAttention, apply_rotary_pos_emb

comm.init_distributed(verbose=False)
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
angles = torch.rand(12, 1, 1, 4, dtype=torch.float64)


def attend(q, k, v, merges=False):
    \"\"\"Causal attention of [seq, batch, heads, size].\"\"\"
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).permute(2, 0, 1, 3)
    return out.flatten(2) if merges else out


def difference(group, heads, kv_heads, batch_first, merges=False, rotary=False, **options):
    shapes = [(12, 2, heads, 4)] + [(12, 2, kv_heads, 4)] * 2
    full = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    turned = [apply_rotary_pos_emb(x, angles.cos(), angles.sin()) if rotary else x for x in full[:2]]
    expected = attend(*turned, full[2], merges)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weight).sum().backward()
    parts = [x.detach().chunk(ranks)[rank] for x in full]
    parts = [x.transpose(0, 1) if batch_first else x for x in parts]
    parts = [x.clone().requires_grad_() for x in parts]
    local = lambda q, k, v: attend(q, k, v, merges)
    if batch_first:
        local = lambda q, k, v: attend(*(x.transpose(0, 1) for x in (q, k, v)), merges).transpose(0, 1)
    attention = DistributedAttention(local, group, **options)
    embedding = (angles.cos().permute(1, 0, 2, 3), angles.sin().permute(1, 0, 2, 3)) if rotary else None
    got = attention(*parts, 0 if batch_first else 1, embedding)
    own = weight.chunk(ranks)[rank]
    (got * (own.transpose(0, 1) if batch_first else own)).sum().backward()
    pairs = [(got, expected)] + [(x.grad, y.grad) for x, y in zip(parts, full)]
    back = lambda x: x.transpose(0, 1) if batch_first else x
    return max((back(x) - y.chunk(ranks)[rank]).abs().max().item() for x, y in pairs)


groups = {"torch": dist.group.WORLD, "own": PartialState().group}
for name, group in groups.items():
    for heads, kv_heads in ((4, 4), (8, 4), (3, 3), (6, 3)):
        for batch_first in (False, True):
            found = difference(group, heads, kv_heads, batch_first, merges=heads == 8, gather_idx=int(batch_first))
            assert found < 1e-12, (name, heads, kv_heads, batch_first, found)
assert difference(dist.group.WORLD, 4, 2, False, rotary=True) < 1e-12
assert difference(dist.group.WORLD, 6, 3, False, num_kv_heads=3) < 1e-12

# A control: without the messages each rank has its own parts.
layer._all_to_all = lambda group, output, input, *sizes: output.copy_(input)
assert difference(dist.group.WORLD, 4, 4, False) > 1e-3
"""


def test_ranks_that_divide_a_sequence_have_the_attention_and_gradients_of_one_process() -> None:
    run_ranks(ATTENTION, 2)


def test_what_the_attention_lacks_is_refused_by_name() -> None:
    group = PartialState(cpu=True).group
    for options, message in (
        ({"sp_stream": object()}, "got an sp_stream"),
        ({"scatter_idx": 1}, "scatter_idx is 1"),
        ({"gather_idx": 2}, "gather_idx 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            DistributedAttention(torch.nn.Identity(), group, **options)
    with pytest.raises(ConfigError, match="sequence_process_group is a NoneType"):
        DistributedAttention(torch.nn.Identity(), None)
    attention = DistributedAttention(lambda q, k, v: q, group)
    with pytest.raises(ConfigError, match="batch_dim_idx is 2"):
        attention(*[torch.ones(4, 2, 2, 4)] * 3, 2)
    with pytest.raises(ConfigError, match="3 heads, 2 of keys"):
        attention(torch.ones(4, 2, 3, 4), *[torch.ones(4, 2, 2, 4)] * 2, 1)
