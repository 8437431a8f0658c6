# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.7, and seed 004: accumulation by hand and with accumulate; both give the same weights."""

import torch
import torch.nn.functional as F
from common import make_net, numbers, report, weights_of

from lockstep import Accelerator

loss_function = F.cross_entropy


def prepared(accelerator):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.9)
    training_dataloader = torch.utils.data.DataLoader(numbers(), batch_size=8)
    return accelerator.prepare(model, optimizer, training_dataloader, scheduler)


# 1. By hand.
accelerator = Accelerator()
model, optimizer, training_dataloader, scheduler = prepared(accelerator)
gradient_accumulation_steps = 2
by_hand = []
for index, batch in enumerate(training_dataloader):
    inputs, targets = batch
    outputs = model(inputs)
    loss = loss_function(outputs, targets)
    by_hand.append(loss.item())
    loss = loss / gradient_accumulation_steps
    accelerator.backward(loss)
    if (index + 1) % gradient_accumulation_steps == 0:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
by_hand_weights, by_hand_rate = weights_of(model), scheduler.get_last_lr()[0]

# 2. With accumulate().
accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, training_dataloader, scheduler = prepared(accelerator)
losses, synced, rates = [], [], []
for epoch in range(3):
    for input, label in training_dataloader:
        with accelerator.accumulate(model):
            predictions = model(input)
            loss = loss_function(predictions, label)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        synced.append(accelerator.sync_gradients)
        rates.append(scheduler.get_last_lr()[0])
    if epoch == 0:
        weights = weights_of(model)

report(
    accelerator.process_index,
    by_hand=by_hand,
    by_hand_weights=by_hand_weights,
    by_hand_rate=by_hand_rate,
    losses=losses,
    synced=synced,
    rates=rates,
    weights=weights,
)
