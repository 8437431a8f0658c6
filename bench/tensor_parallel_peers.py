#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT whose layers are divided by Lockstep, by torch, or by nobody, for tensor_parallel.py."""
import argparse
import json
import os
import statistics
import time

import torch
from torch import nn

LAYERS, HEAD_SIZE, WORDS, LENGTH, ROWS = 6, 64, 2048, 128, 8


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (layer(y).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def divide_by_torch(model):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"words": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
    for i in range(LAYERS):
        for name, style in (("q", ColwiseParallel), ("k", ColwiseParallel), ("v", ColwiseParallel), ("out", RowwiseParallel)):
            plan[f"blocks.{i}.{name}"] = style()
        plan |= {f"blocks.{i}.up": ColwiseParallel(), f"blocks.{i}.down": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def prepare(by, model, optimizer_of):
    """Returns the divided model, its optimizer, and backward."""
    if by == "torch":
        model = divide_by_torch(model)
    if by != "lockstep":
        return model, optimizer_of(model), torch.Tensor.backward
    from lockstep import Accelerator, ParallelismConfig
    from lockstep.utils import TorchTensorParallelConfig

    plan = {"words": "embedding", "head": "colwise_gather"}
    plan |= {f"blocks.*.{name}": "colwise" for name in ("q", "k", "v", "up")}
    plan |= {f"blocks.*.{name}": "rowwise" for name in ("out", "down")}
    handler = TorchTensorParallelConfig(plan=plan, example=lambda: model(torch.arange(LENGTH).unsqueeze(0)))
    config = ParallelismConfig(tp_size=int(os.environ["WORLD_SIZE"]), tp_handler=handler)
    accelerator = Accelerator(parallelism_config=config, expect_prepared_loader=False)
    return (*accelerator.prepare(model, optimizer_of(model)), accelerator.backward)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=("lockstep", "torch", "nobody"), required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    options = parser.parse_args()
    torch.manual_seed(0)
    model, optimizer, backward = prepare(
        options.by,
        Gpt(options.width),
        # foreach refuses the mixture of DTensors and tensors that parallelize_module makes.
        lambda divided: torch.optim.SGD(divided.parameters(), lr=0.1, foreach=options.by != "torch"),
    )
    tokens = torch.randint(WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"ms": statistics.median(times[3:]) * 1e3, "loss": round(loss.item(), 3)}))


if __name__ == "__main__":
    main()
