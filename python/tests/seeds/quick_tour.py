# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 1.2: the four lines that make a loop distributed."""

import torch
import torch.nn.functional as F
from common import make_net, numbers, report, weights_of

from lockstep import Accelerator

accelerator = Accelerator()

model = make_net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

dataset = numbers()
data = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)

model, optimizer, data = accelerator.prepare(model, optimizer, data)

losses, batches = [], 0
model.train()
for epoch in range(10):
    for source, targets in data:
        optimizer.zero_grad()

        output = model(source)
        loss = F.cross_entropy(output, targets)

        accelerator.backward(loss)

        optimizer.step()
        losses.append(loss.item())
        batches += 1

report(accelerator.process_index, losses=losses, batches=batches, length=len(data), weights=weights_of(model))
