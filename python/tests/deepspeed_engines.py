# SPDX-License-Identifier: Apache-2.0
"""Small engines for the tests of lockstep.deepspeed."""

from __future__ import annotations

import torch
from lockstep import deepspeed
from torch import nn

ADAM = {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def config(**more) -> dict:
    return {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0, "optimizer": ADAM, **more}


def start(model=None, **more):
    """Returns (engine, optimizer, loader, scheduler). Arguments of initialize begin with an underscore."""
    given = {name.removeprefix("_"): more.pop(name) for name in list(more) if name.startswith("_")}
    given.setdefault("config", config(**more))
    return deepspeed.initialize(model=net() if model is None else model, **given)


def loss_of(engine, step=0):
    generator = torch.Generator().manual_seed(step)
    return engine(torch.randn(4, 4, generator=generator)).square().mean()


def update(engine, step=0):
    loss = loss_of(engine, step)
    engine.backward(loss)
    engine.step()
    return loss.item()
