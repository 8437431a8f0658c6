# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on any mesh of processes. The losses are those of one process.

Examples:
  python gpt.py
  lockstep launch -n 2 gpt.py
  lockstep launch -n 2 --mesh tp=2 gpt.py
  lockstep launch -n 4 --mesh tp=2 gpt.py --zero 3
  lockstep launch -n 2 --mesh cp=2 gpt.py
  lockstep launch -n 2 --mesh pp=2 gpt.py

It is examples/gpt in Python. The text is made up: word t+1 is 3 times word t plus 1 (modulo the number of words), but
for one word in eight. After 60 updates the loss is near the entropy of that, 0.89.
"""

from __future__ import annotations

import argparse

import torch
from common import positive, whole
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lockstep import Accelerator, ParallelismConfig
from lockstep.deepspeed.pipe import PipelineModule
from lockstep.utils import TorchTensorParallelConfig, set_seed

WORDS = 64
TEXTS = 512


class Input(nn.Module):
    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(context, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.words(words) + self.positions(torch.arange(words.size(1), device=words.device))


class Block(nn.Module):
    """A transformer block, which knows nothing of processes: it computes as many heads as `qkv` returns."""

    def __init__(self, width: int, head_size: int, dropout: float) -> None:
        super().__init__()
        self.head_size, self.dropout = head_size, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self._drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self._drop(self.down(functional.gelu(self.up(self.norm2(x)))))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.dropout, self.training)


def layers_of(options: argparse.Namespace) -> list[nn.Module]:
    width = options.heads * options.head_size
    blocks = [Block(width, options.head_size, options.dropout) for _ in range(options.layers)]
    return [Input(options.context, width), *blocks, nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)]


def plan(layers: int) -> dict[str, str | tuple[str, list[int]]]:
    """The layers that the processes of a tp line divide, by their numbers."""
    rules: dict[str, str | tuple[str, list[int]]] = {"0.words": "embedding", str(layers + 2): "colwise_gather"}
    return rules | {"*.qkv": ("colwise", [1, 1, 1]), "*.out": "rowwise", "*.up": "colwise", "*.down": "rowwise"}


def made_up_texts(length: int) -> torch.Tensor:
    drawing = torch.Generator().manual_seed(7)
    texts = torch.randint(WORDS, (TEXTS, length), generator=drawing)
    follows = torch.rand(TEXTS, length, generator=drawing) > 0.125
    for i in range(1, length):
        texts[:, i] = torch.where(follows[:, i], (texts[:, i - 1] * 3 + 1) % WORDS, texts[:, i])
    return texts


def loss_of(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def train(options: argparse.Namespace) -> None:
    set_seed(options.seed)
    texts = made_up_texts(options.context + 1)
    layers = layers_of(options)
    model: nn.Module = nn.Sequential(*layers)
    handler = TorchTensorParallelConfig(plan=plan(options.layers), example=lambda: model(texts[:2, 1:]))
    mesh = ParallelismConfig(tp_handler=handler)  # Of the sizes that `lockstep launch --mesh` gives.
    accelerator = Accelerator(parallelism_config=mesh, zero={"stage": options.zero} if options.zero else None)
    if mesh.pp_size > 1:
        model = PipelineModule(layers, loss_fn=loss_of, micro_batches=options.micro_batches)
    replicas = accelerator.num_processes // (mesh.tp_size * mesh.pp_size * mesh.cp_size * mesh.sp_size)
    loader = DataLoader(
        TensorDataset(texts[:, :-1].contiguous(), texts[:, 1:].contiguous()),
        batch_size=options.batch_size // replicas,
        shuffle=True,
        generator=torch.Generator().manual_seed(options.seed),
    )
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=options.lr), loader)
    step = 0
    while step < options.steps:
        for words, following in loader:
            # With cp or sp a process has a part of each text within this block.
            with accelerator.maybe_context_parallel([words, following], [1, 1]) as block:
                loss = model(words, following) if mesh.pp_size > 1 else loss_of(model(words), following)
                loss = block.mean(loss * following.numel(), following.numel())
                accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 20 == 0:
                accelerator.print(f"step {step:3}: loss {accelerator.reduce(loss.detach(), 'mean').item():.4f}")
            if step == options.steps:
                break
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--steps", type=whole(1), default=60, help="updates (default 60)")
    add("--batch-size", type=whole(1), default=16, help="texts in an update, of all processes together (default 16)")
    add("--seed", type=whole(0), default=42, help="seed of weights and order (default 42)")
    add("--micro-batches", type=whole(1), default=4, help="parts of a batch that a pipeline computes at a time (default 4)")
    add("--zero", type=int, choices=range(4), default=0, help="stage of ZeRO; 0: data parallel")
    add("--lr", type=positive, default=2e-3, help="learning rate of AdamW (default 2e-3)")
    add("--layers", type=whole(1), default=4, help="blocks of the transformer (default 4)")
    add("--heads", type=whole(1), default=4, help="attention heads of a block (default 4)")
    add("--head-size", type=whole(1), default=32, help="size of a head (default 32)")
    add("--context", type=whole(2), default=64, help="words of a text (default 64)")
    add("--dropout", type=float, default=0.0, help="part of the values that a block drops (default 0)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
