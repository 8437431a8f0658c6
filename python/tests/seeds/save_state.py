# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.5: saving and loading the whole state, objects of the program, numbered checkpoints, and resuming."""

import os

import torch
import torch.nn.functional as F
from common import FOLDER, make_net, numbers, report, weights_of

from lockstep import Accelerator
from lockstep.utils import ProjectConfiguration

accelerator = Accelerator(
    project_dir=str(FOLDER),
    project_config=ProjectConfiguration(str(FOLDER), automatic_checkpoint_naming=True, total_limit=2),
)
torch.manual_seed(accelerator.process_index)
model = make_net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
train_dataloader = torch.utils.data.DataLoader(numbers(96), batch_size=4, shuffle=True)
model, optimizer, lr_scheduler, train_dataloader = accelerator.prepare(
    model, optimizer, lr_scheduler, train_dataloader
)


class CustomObject:
    def __init__(self):
        self.best = 0

    def state_dict(self):
        return {"best": self.best, "history": torch.arange(self.best)}

    def load_state_dict(self, state):
        self.best = state["best"]
        self.history = state["history"]


obj = CustomObject()
accelerator.register_for_checkpointing(obj)


def train(dataloader, count):
    """Trains for count batches. Returns the samples, losses and rates."""
    seen = []
    for index, (source, targets) in enumerate(dataloader):
        loss = F.cross_entropy(model(source), targets)
        accelerator.backward(loss)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        seen.append([source.double().sum().item(), loss.item(), lr_scheduler.get_last_lr()[0]])
        if index + 1 == count:
            break
    return seen


train(train_dataloader, len(train_dataloader))  # One epoch.
resumed_at = 5
rest = []
for step, (source, targets) in enumerate(train_dataloader):
    loss = F.cross_entropy(model(source), targets)
    accelerator.backward(loss)
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad()
    if step >= resumed_at:
        rest.append([source.double().sum().item(), loss.item(), lr_scheduler.get_last_lr()[0]])
    if step + 1 == resumed_at:
        obj.best = 3
        accelerator.save_state()
        obj.best = 4
        before = weights_of(model)
following = train(train_dataloader, 3)

accelerator.load_state()
after = weights_of(model)
# The seed's way to resume: batches that the checkpoint has counted are not skipped twice.
skipped_dataloader = accelerator.skip_first_batches(train_dataloader, resumed_at)
rest_again = train(skipped_dataloader, -1)
following_again = train(train_dataloader, 3)

for _ in range(3):
    accelerator.save_state()
accelerator.wait_for_everyone()
report(
    accelerator.process_index,
    before=before,
    after=after,
    rest=rest,
    rest_again=rest_again,
    following=following,
    following_again=following_again,
    best=obj.best,
    history=obj.history.tolist(),
    checkpoints=sorted(os.listdir(FOLDER / "checkpoints")),
)
