#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT that Lockstep, torch, DeepSpeed or nobody divides, for mesh.py."""
import argparse
import json
import os
import statistics
import time

import torch
from torch import nn

LAYERS, HEAD_SIZE, WORDS, LENGTH = 6, 64, 2048, 128


def attention(q, k, v):
    """q, k, v: (rows, heads, length, size)."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention = attention

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (layer(y).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Words(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.first = 0

    def forward(self, tokens):
        return self.words(tokens) + self.places(self.first + torch.arange(tokens.shape[1]))


def layers_of(width):
    blocks = [Block(width) for _ in range(LAYERS)]
    return [Words(width), *blocks, nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)]


def loss_of(scores, labels):
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class TimedSgd(torch.optim.SGD):
    """SGD that measures the time of its updates, which a pipeline's bubble is no part of."""

    seconds = 0.0

    def step(self, closure=None):
        start = time.perf_counter()
        super().step(closure)
        TimedSgd.seconds = time.perf_counter() - start


def optimizer_of(parameters, foreach=True, kind=torch.optim.SGD):
    return kind(parameters, lr=0.1, foreach=foreach)


# Each of these returns a function that trains one update on (tokens, labels) and returns the loss.


def alone(options):
    model = nn.Sequential(*layers_of(options.width))
    return loop(model, optimizer_of(model.parameters()), torch.Tensor.backward)


def loop(model, optimizer, backward, mean_of_parts=lambda loss, labels: loss):
    def update(tokens, labels):
        loss = mean_of_parts(loss_of(model(tokens), labels), labels)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return update


def lockstep_tp(options):
    from lockstep import Accelerator, ParallelismConfig
    from lockstep.utils import TorchTensorParallelConfig

    model = nn.Sequential(*layers_of(options.width))
    plan = {"0.words": "embedding", str(len(model) - 1): "colwise_gather"}
    plan |= {f"*.{name}": "colwise" for name in ("q", "k", "v", "up")}
    plan |= {f"*.{name}": "rowwise" for name in ("out", "down")}
    handler = TorchTensorParallelConfig(plan=plan, example=lambda: model(torch.arange(LENGTH).unsqueeze(0)))
    config = ParallelismConfig(tp_size=int(os.environ["WORLD_SIZE"]), tp_handler=handler)
    accelerator = Accelerator(parallelism_config=config, expect_prepared_loader=False)
    return loop(*accelerator.prepare(model, optimizer_of(model.parameters())), accelerator.backward)


def torch_tp(options):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*layers_of(options.width))
    plan = {"0.words": RowwiseParallel(input_layouts=Replicate())}
    plan[str(len(model) - 1)] = ColwiseParallel(output_layouts=Replicate())
    for i in range(1, LAYERS + 1):
        plan |= {f"{i}.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")}
        plan |= {f"{i}.{name}": RowwiseParallel() for name in ("out", "down")}
    model = parallelize_module(model, mesh, plan)
    # foreach refuses the mixture of DTensors and tensors.
    return loop(model, optimizer_of(model.parameters(), foreach=False), torch.Tensor.backward)


def lockstep_sp(options):
    from lockstep import Accelerator, ParallelismConfig

    size = int(os.environ["WORLD_SIZE"])
    config = ParallelismConfig(**{"cp_size" if options.ring else "sp_size": size})
    accelerator = Accelerator(parallelism_config=config, expect_prepared_loader=False)
    model = nn.Sequential(*layers_of(options.width))
    model, optimizer = accelerator.prepare(model, optimizer_of(model.parameters()))

    def divided(tokens, labels):
        with accelerator.maybe_context_parallel(buffers=[tokens, labels], buffer_seq_dims=[1, 1]) as block:
            mean = lambda loss, own: block.mean(loss * own.numel(), own.numel())  # noqa: E731
            return loop(model, optimizer, accelerator.backward, mean)(tokens, labels)

    return divided


def deepspeed_sp(options):
    import deepspeed
    import torch.distributed as dist
    from deepspeed.sequence.layer import DistributedAttention

    deepspeed.init_distributed("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(*layers_of(options.width))
    # DistributedAttention has (rows, length, heads, size).
    local = lambda q, k, v, *_, **__: attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)  # noqa: E731
    divided = DistributedAttention(local, dist.group.WORLD, scatter_idx=2, gather_idx=1)
    for block in model[1 : LAYERS + 1]:
        block.attention = lambda q, k, v: divided(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), 0).transpose(1, 2)
    part = LENGTH // size
    model[0].first = rank * part
    optimizer = optimizer_of(model.parameters())

    def backward(loss):
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = torch._utils._flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        flat /= size
        for gradient, mean in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
            gradient.copy_(mean)

    update = loop(model, optimizer, backward)

    def on_part(tokens, labels):
        own = slice(rank * part, (rank + 1) * part)
        loss = torch.tensor(update(tokens[:, own], labels[:, own]))
        if options.last:
            dist.all_reduce(loss)
        return loss.item() / size

    return on_part


def pipeline_by_deepspeed(options, deepspeed, pipeline_module):
    deepspeed.init_distributed("gloo")
    model = pipeline_module(
        layers=layers_of(options.width),
        num_stages=int(os.environ["WORLD_SIZE"]),
        loss_fn=loss_of,
        partition_method="parameters",
    )
    config = {
        "train_batch_size": options.rows,
        "train_micro_batch_size_per_gpu": options.rows // options.micro_batches,
        "gradient_accumulation_steps": options.micro_batches,
        "steps_per_print": 10**9,
    }
    optimizer = optimizer_of(model.parameters(), kind=TimedSgd)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def update(tokens, labels):
        micro_batches = zip(tokens.chunk(options.micro_batches), labels.chunk(options.micro_batches), strict=True)
        return engine.train_batch(iter(micro_batches)).item()

    return update


def lockstep_pp(options):
    from lockstep import deepspeed
    from lockstep.deepspeed.pipe import PipelineModule

    return pipeline_by_deepspeed(options, deepspeed, PipelineModule)


def deepspeed_pp(options):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    return pipeline_by_deepspeed(options, deepspeed, PipelineModule)


def torch_pp(options):
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = layers_of(options.width)
    # Blocks in equal parts; the first stage has the embedding, the last one the head.
    per_stage = LAYERS // size
    starts = [0, *(1 + per_stage * stage for stage in range(1, size)), len(layers)]
    module = nn.Sequential(*layers[starts[rank] : starts[rank + 1]])
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=options.micro_batches, loss_fn=loss_of)
    optimizer = optimizer_of(module.parameters())

    def update(tokens, labels):
        losses = []
        if rank == size - 1:
            schedule.step(target=labels, losses=losses)
        else:
            schedule.step(tokens)
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(loss, size - 1)
        return loss.item()

    return update


TRAINERS = {
    ("nobody", None): alone,
    ("lockstep", "tp"): lockstep_tp,
    ("torch", "tp"): torch_tp,
    ("lockstep", "sp"): lockstep_sp,
    ("deepspeed", "sp"): deepspeed_sp,
    ("lockstep", "pp"): lockstep_pp,
    ("deepspeed", "pp"): deepspeed_pp,
    ("torch", "pp"): torch_pp,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimension", choices=("tp", "sp", "pp"), required=True)
    parser.add_argument("--by", choices=("lockstep", "torch", "deepspeed", "nobody"), required=True)
    parser.add_argument("--ring", action="store_true", help="divide sequences by ring attention")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8, help="texts of an update")
    options = parser.parse_args()
    torch.manual_seed(0)
    update = TRAINERS[options.by, None if options.by == "nobody" else options.dimension](options)
    tokens = torch.randint(WORDS, (options.rows, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    times, without_optimizer = [], []
    options.last = False  # Only the last loss need be that of all ranks.
    for step in range(options.steps):
        options.last = step == options.steps - 1
        start = time.perf_counter()
        loss = update(inputs, labels)
        times.append(time.perf_counter() - start)
        without_optimizer.append(times[-1] - TimedSgd.seconds)
    if int(os.environ.get("RANK", "0")) == 0:
        figures = {"ms": times, "ms_without_optimizer": without_optimizer}
        medians = {name: statistics.median(values[3:]) * 1e3 for name, values in figures.items()}
        print(json.dumps({**medians, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
