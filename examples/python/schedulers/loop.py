# SPDX-License-Identifier: Apache-2.0
"""A training loop for every scheduler: it takes its rank and the address of rank 0 from what the scheduler sets."""
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep import Accelerator


def train(
    epochs: int = 3, resume_from: str | None = None, after_epoch: Callable[[Accelerator, int, float], None] | None = None
) -> float:
    """Trains, from a checkpoint if there is one. Returns the loss of the last epoch, which is equal on all ranks."""
    accelerator = Accelerator()
    torch.manual_seed(0)
    inputs = torch.randn(512, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if resume_from is not None:
        accelerator.load_state(resume_from)
    mean = float("nan")
    for epoch in range(loader.iteration, epochs):
        total = torch.zeros((), device=accelerator.device)
        for features, targets in loader:
            loss = (model(features) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean = float(accelerator.reduce(total / len(loader), reduction="mean"))
        accelerator.print(f"epoch {epoch}: loss {mean:.6f} on {accelerator.num_processes} processes")
        if after_epoch is not None:
            after_epoch(accelerator, epoch, mean)
    accelerator.end_training()
    return mean


if __name__ == "__main__":
    train()
