# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.6, and seed 002, 3: autocast, skipped steps and clipping. The arguments: a folder and a precision."""

import sys

import torch
import torch.nn.functional as F
from common import make_net, numbers, report, weights_of

from lockstep import Accelerator

max_grad_norm, clip_value = 0.5, 0.01
accelerator = Accelerator(mixed_precision=sys.argv[2], gradient_accumulation_steps=2)
model = make_net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.999**step)
dataloader = torch.utils.data.DataLoader(numbers(), batch_size=8, shuffle=True)
dataloader, model, optimizer, scheduler = accelerator.prepare(dataloader, model, optimizer, scheduler)
loss_func = F.cross_entropy

losses, norms, clipped, values, skipped, dtypes = [], [], [], [], 0, []


def train(clip):
    global skipped
    for input, target in dataloader:
        with accelerator.accumulate(model):
            with accelerator.autocast():
                output = model(input)
                product = model.hidden(input)
            dtypes.append([str(output.dtype), str(product.dtype)])
            loss = loss_func(output, target)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                clip()
            optimizer.step()
            if not accelerator.optimizer_step_was_skipped:
                scheduler.step()
            else:
                skipped += 1
            optimizer.zero_grad()
        losses.append(loss.item())


def clip_norm():
    norms.append(accelerator.clip_grad_norm_(model.parameters(), max_grad_norm).item())
    clipped.append(torch.stack([p.grad.float().norm() for p in model.parameters()]).norm().item())


def clip_values():
    accelerator.clip_grad_value_(model.parameters(), clip_value)
    values.append(max(p.grad.abs().max().item() for p in model.parameters()))


def unscale_and_clip():
    accelerator.unscale_gradients()
    accelerator.unscale_gradients()  # A second call changes nothing.
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    clipped.append(torch.stack([p.grad.float().norm() for p in model.parameters()]).norm().item())


for _ in range(4):
    train(clip_norm)
train(clip_values)
train(unscale_and_clip)
report(
    accelerator.process_index,
    losses=losses,
    norms=norms,
    clipped=clipped,
    values=values,
    skipped=skipped,
    dtypes=dtypes[:1],
    weight_dtype=str(model.hidden.weight.dtype),
    weights=weights_of(model),
)
