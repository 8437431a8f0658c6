# SPDX-License-Identifier: Apache-2.0
"""Seed 004: Local SGD, with accumulation."""

import torch
import torch.nn.functional as F
from common import make_net, numbers, report, weights_of

from lockstep import Accelerator
from lockstep.local_sgd import LocalSGD

accelerator = Accelerator(gradient_accumulation_steps=2)
model = make_net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
training_dataloader = torch.utils.data.DataLoader(numbers(320), batch_size=8, shuffle=True)
model, optimizer, training_dataloader, scheduler = accelerator.prepare(
    model, optimizer, training_dataloader, scheduler
)
loss_function = F.cross_entropy

losses, weights = [], []
local_sgd_steps = 8
with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8, enabled=True) as local_sgd:
    for epoch in range(2):
        for batch in training_dataloader:
            with accelerator.accumulate(model):
                inputs, targets = batch
                outputs = model(inputs)
                loss = loss_function(outputs, targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                local_sgd.step()
            losses.append(loss.item())
            weights.append(weights_of(model))

report(accelerator.process_index, losses=losses, weights=weights, last=weights_of(model))
