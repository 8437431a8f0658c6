# SPDX-License-Identifier: Apache-2.0
"""The loop of tests/e2e/python/cross_loop.cpp in Python."""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from lockstep import Accelerator
from lockstep.utils import GradientAccumulationPlugin


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(8, 16)
        self.fc2 = torch.nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.nn.functional.relu(self.fc1(inputs)))


def train(folder: Path, first: int, last: int) -> None:
    accumulation = GradientAccumulationPlugin(2, rescale_short_group=True)  # As in C++.
    accelerator = Accelerator(gradient_accumulation_plugin=accumulation)
    inputs = torch.sin(torch.arange(96 * 8, dtype=torch.float)).reshape(96, 8)
    targets = torch.arange(96) % 4
    torch.manual_seed(3)
    net = Net()
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=1e-2), DataLoader(TensorDataset(inputs, targets), batch_size=4)
    )
    steps = 0
    if first > 0:
        accelerator.load_state(folder / str(first))
        steps = first
    while steps < last:
        for data, target in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(data), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    steps += 1
                optimizer.step()
                optimizer.zero_grad()
            print(accelerator.process_index, loss.item().hex(), flush=True)
            if steps == last:
                break
    accelerator.save_state(folder / str(last))


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
