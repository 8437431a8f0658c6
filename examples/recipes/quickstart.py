# SPDX-License-Identifier: Apache-2.0
"""Learns which points of a square are inside a circle."""
import torch
from torch.utils.data import DataLoader, TensorDataset

from lockstep import Accelerator
from lockstep.utils import ProjectConfiguration, set_seed


def points(count, seed):
    where = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(where, (where.square().sum(1) < 0.64).long())


def main():
    accelerator = Accelerator(
        project_config=ProjectConfiguration("runs/quickstart_py", automatic_checkpoint_naming=True)
    )
    set_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    model, optimizer, train_set, test_set = accelerator.prepare(
        net,
        torch.optim.AdamW(net.parameters(), lr=3e-3),
        DataLoader(points(4096, 2), batch_size=32, shuffle=True),
        DataLoader(points(1000, 3), batch_size=256),
    )
    for epoch in range(5):
        for inputs, targets in train_set:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        right = 0
        for inputs, targets in test_set:
            with torch.no_grad():
                answer = model(inputs).argmax(1)
            answers, targets = accelerator.gather_for_metrics((answer, targets))
            right += (answers == targets).sum().item()
        accelerator.print(f"epoch {epoch + 1}: {right} of 1000 points")
        accelerator.save_state()
    accelerator.end_training()


if __name__ == "__main__":
    main()
