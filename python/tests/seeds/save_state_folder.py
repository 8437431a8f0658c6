# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.5: save_state and load_state with a folder."""

import os

import torch
from common import FOLDER, make_net, report, weights_of

from lockstep import Accelerator

os.chdir(FOLDER)
accelerator = Accelerator()
model = make_net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
model, optimizer, lr_scheduler = accelerator.prepare(model, optimizer, lr_scheduler)


def step():
    accelerator.backward(model(torch.ones(2, 16, device=accelerator.device)).square().mean())
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad()


step()
saved = weights_of(model)
rate = lr_scheduler.get_last_lr()
accelerator.save_state(output_dir="my_checkpoint")
step()
changed = weights_of(model)
accelerator.load_state("my_checkpoint")  # 只能与 Accelerator.save_state() 结合使用
loaded, loaded_rate = weights_of(model), lr_scheduler.get_last_lr()
step()
report(
    accelerator.process_index,
    saved=saved,
    loaded=loaded,
    changed=changed,
    changed_again=weights_of(model),
    rate=rate,
    loaded_rate=loaded_rate,
    files=sorted(os.listdir("my_checkpoint")),
)
