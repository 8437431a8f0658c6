# SPDX-License-Identifier: Apache-2.0
"""Trains with torch's DistributedDataParallel over Lockstep's connections: `lockstep launch -n 2 torch_ddp.py`."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lockstep  # Registers the backend "lockstep".

dist.init_process_group("lockstep")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for step in range(20):
    inputs = torch.randn(64, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
if dist.get_rank() == 0:
    print(f"loss {loss:.4f}")
dist.destroy_process_group()
