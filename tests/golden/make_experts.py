#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes experts.json: DeepSpeed's gating functions, transformers' mixture-of-experts layers and losses, for
lockstep/expert_parallel/{router,moe}_test.cpp.

Run with torch, deepspeed and transformers installed (made with torch 2.13.0, deepspeed 0.19.8, transformers 5.24.0):

    build/clients/bin/python tests/golden/make_experts.py

Logits, inputs, weights and output gradients come from a formula, see made(). top1gating without random
selection leaves to torch.topk which of many equal numbers are largest, so its case has no drops.
"""

import json
import math
import pathlib
import sys

import deepspeed
import torch
import transformers
from deepspeed.moe import sharded_moe
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2_moe import modeling_qwen2_moe

# name: (tokens, experts, k, capacity_factor, min_capacity, drop_tokens, function)
GATING = {
    "top1_dropless": (24, 4, 1, 1.0, 4, False, "top1"),
    "top2_drops": (24, 4, 2, 0.5, 2, True, "top2"),
    "top2_min_capacity": (24, 4, 2, 0.25, 5, True, "top2"),
    "top2_dropless": (17, 5, 2, 1.0, 4, False, "top2"),
    "topk3_probs": (24, 6, 3, 0.7, 2, True, "probs"),
    "topk3_position": (24, 6, 3, 0.7, 2, True, "position"),
    "topk2_probs": (30, 4, 2, 0.6, 1, True, "probs"),
    "topk2_position": (30, 4, 2, 0.6, 1, True, "position"),
    "topk4_dropless": (13, 8, 4, 1.0, 4, False, "probs"),
    "topk2_float32_capacity": (20, 2, 2, 0.55, 1, True, "position"),
}


def rounded(tensor):
    return [float(f"{v:.7g}") for v in tensor.detach().double().flatten().tolist()]


def made(shape, first, scale=200):
    """Numbers between -500 and 500, divided by scale, without a pattern in rows or columns."""
    index = torch.arange(math.prod(shape), dtype=torch.int64)
    values = (31 * index**3 + 389 * index + 7919 * first) % 1000003 - 500001
    return (values.double() / (1000 * scale)).reshape(shape).float()


def refuse_ties(logits):
    """The order of equal probabilities is not defined: neither of a token's experts, nor of an expert's tokens."""
    probs = torch.softmax(logits.detach().double(), 1)
    for dim in (0, 1):
        gap = probs.sort(dim).values.diff(dim=dim).min()
        assert gap > 1e-6, f"two probabilities along dimension {dim} differ by {gap}"


def gating(tokens, experts, k, capacity_factor, min_capacity, drop_tokens, function):
    logits = made((tokens, experts), 11 * k + tokens).requires_grad_()
    refuse_ties(logits)
    if function == "top1":
        result = sharded_moe.top1gating(
            logits, capacity_factor, min_capacity, drop_tokens=drop_tokens, use_rts=False
        )
    elif function == "top2":
        result = sharded_moe.top2gating(
            logits, capacity_factor, min_capacity, drop_tokens=drop_tokens, top2_2nd_expert_sampling=False
        )
    else:
        result = sharded_moe.topkgating(
            logits, k, capacity_factor, min_capacity, drop_tokens=drop_tokens, drop_policy=function
        )
    l_aux, combine, _, exp_counts = result
    weights = combine.sum(2)  # [tokens, experts]: each token has one place in the buffer of an expert.
    (aux_gradient,) = torch.autograd.grad(l_aux, logits, retain_graph=True)
    (gradient,) = torch.autograd.grad((weights * made((tokens, experts), 5)).sum(), logits)
    return {
        "tokens": tokens,
        "experts": experts,
        "k": k,
        "capacity_factor": capacity_factor if drop_tokens else None,
        "min_capacity": min_capacity,
        "function": function,
        "first": 11 * k + tokens,
        "buffer": combine.size(2),
        "l_aux": l_aux.item(),
        "l_aux_gradient": rounded(aux_gradient),
        "exp_counts": exp_counts.tolist(),
        "weights": rounded(weights),
        "gradient": rounded(gradient),
    }


def fill(module):
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(made(p.shape, 17 * i, 1500))


def layer(block):
    """One forward and backward of a layer whose weights are filled in the order of its parameters."""
    fill(block)
    x = made((2, 6, 8), 3).requires_grad_()
    out = block(x)
    (out * made(out.shape, 7)).sum().backward()
    return {
        "parameters": {name: list(p.shape) for name, p in block.named_parameters()},
        "output": rounded(out),
        "input_gradient": rounded(x.grad),
        "gradients": {name: rounded(p.grad) for name, p in block.named_parameters()},
    }


def balancing(layers, tokens, experts, k):
    logits = [made((tokens, experts), 23 * i).requires_grad_() for i in range(layers)]
    loss = modeling_mixtral.load_balancing_loss_func(tuple(logits), experts, k)
    return {
        "layers": layers,
        "tokens": tokens,
        "experts": experts,
        "k": k,
        "loss": loss.item(),
        "gradients": [rounded(g) for g in torch.autograd.grad(loss, logits)],
    }


def main():
    torch.set_num_threads(1)
    sizes = {"hidden_size": 8, "num_experts_per_tok": 2}
    mixtral = transformers.MixtralConfig(intermediate_size=12, num_local_experts=4, **sizes)
    qwen = transformers.Qwen2MoeConfig(
        moe_intermediate_size=12, shared_expert_intermediate_size=10, num_experts=4, norm_topk_prob=False, **sizes
    )
    golden = {
        "made_by": "tests/golden/make_experts.py, "
        f"torch {torch.__version__}, deepspeed {deepspeed.__version__}, transformers {transformers.__version__}",
        "gating": {name: gating(*case) for name, case in GATING.items()},
        "mixtral": layer(modeling_mixtral.MixtralSparseMoeBlock(mixtral)),
        "qwen2_moe": layer(modeling_qwen2_moe.Qwen2MoeSparseMoeBlock(qwen)),
        "load_balancing": [balancing(1, 14, 4, 2), balancing(3, 9, 6, 3)],
    }
    lines = ",\n".join(f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in golden.items())
    pathlib.Path(__file__).with_name("experts.json").write_text(f"{{{lines}}}\n")


if __name__ == "__main__":
    sys.exit(main())
