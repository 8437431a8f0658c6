# SPDX-License-Identifier: Apache-2.0
"""Trains with Lightning Fabric and torch's DDP over Lockstep's connections: `python lightning_fabric.py`."""
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep  # Registers the backend "lockstep".

fabric = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="lockstep"))
fabric.launch()
torch.manual_seed(0)
inputs = torch.randn(512, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
loader = fabric.setup_dataloaders(loader)
for epoch in range(3):
    for features, targets in loader:
        loss = (model(features) - targets).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
fabric.print(f"loss {fabric.all_reduce(loss.detach(), reduce_op='mean'):.6f}")
