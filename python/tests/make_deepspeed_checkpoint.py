# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints with the real DeepSpeed, for test_convert.py.

Run it with a Python that has DeepSpeed 0.19, on two ranks, once for each kind of checkpoint:

    DS_ACCELERATOR=cpu lockstep launch -n 2 PYTHON make_deepspeed_checkpoint.py golden/deepspeed zero1

Each checkpoint is `FOLDER/KIND/<tag>`. Beside it `FOLDER/KIND/expected.pt` has the losses of three further steps
and the final weights of the unbroken run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import deepspeed
import torch
from torch import nn

_ADAMW = {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1, "torch_adam": True}}
_WARMUP = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 8, "warmup_type": "linear"}}
KINDS = {
    "plain": {"zero_optimization": {"stage": 0}},
    "zero1": {"zero_optimization": {"stage": 1}, "scheduler": _WARMUP},
    "zero2": {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2},
    "zero3": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
    "bf16_zero1": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "bf16_zero2": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
    "bf16_plain": {"zero_optimization": {"stage": 0}, "bf16": {"enabled": True}},
    "bf16_zero3": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}},
}


class Net(nn.Module):
    """A tied weight, a frozen parameter, a buffer, and sizes that two ranks do not divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.body = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.norm = nn.LayerNorm(5)
        self.register_buffer("seen", torch.zeros(2))
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        hidden = self.norm(torch.tanh(self.body(self.embed(tokens)))) * self.scale.sum()
        return self.head(hidden)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, 7, (4,), generator=generator)
    return tokens, (tokens + 1) % 7


def model() -> Net:
    torch.manual_seed(0)
    return Net()


def config(kind: str) -> dict:
    return {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "optimizer": _ADAMW, **KINDS[kind]}


def train(engine, first: int, steps: int) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        tokens, targets = batch(step, int(os.environ["RANK"]))
        loss = nn.functional.cross_entropy(engine(tokens).float(), targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def main(folder: str, kind: str) -> None:
    deepspeed.init_distributed("gloo")
    net = model()
    engine, _, _, _ = deepspeed.initialize(
        model=net, model_parameters=[p for p in net.parameters() if p.requires_grad], config=config(kind)
    )
    train(engine, 0, 6)
    target = os.path.join(folder, kind)
    engine.save_checkpoint(target, "six", client_state={"epoch": 3, "note": "of the program"})
    losses = train(engine, 6, 4)
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        weights = {name: value.detach().float().clone() for name, value in net.state_dict().items()}
    mine = torch.tensor(losses)
    every = [torch.zeros_like(mine) for _ in range(2)]
    deepspeed.comm.all_gather(every, mine)
    if int(os.environ["RANK"]) == 0:
        for script in Path(target).glob("zero_to_*.py"):
            script.unlink()
        torch.save({"losses": torch.stack(every), "weights": weights}, os.path.join(target, "expected.pt"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
