# SPDX-License-Identifier: Apache-2.0
"""Seed 002: a trainer that accumulates with no_sync, and a scheduler for the number of batches of all processes."""

import logging
import math
from argparse import Namespace
from contextlib import nullcontext
from typing import Any, Dict

import torch
from common import make_net, numbers, report, weights_of

from lockstep import Accelerator


def get_lr_scheduler(optimizer, n_warmup_steps, n_training_steps, lr_scheduler_type):
    assert lr_scheduler_type == "linear"
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, step / max(1, n_warmup_steps)) * max(0.0, 1 - step / n_training_steps),
    )


def get_learing_rate_scheduler(optimizer, accelerator: Accelerator, train_set, cfg, inplace: bool = True):
    per_device_batch_size = cfg.train.batch_size
    real_batch_size = vars(cfg.train).get(
        "real_batch_size", cfg.train.batch_size * cfg.train.gradient_accumulation_steps * accelerator.num_processes
    )
    effective_batch_size = accelerator.num_processes * cfg.train.batch_size
    assert real_batch_size % effective_batch_size == 0, "real_batch_size must be divisible by effective_batch_size"
    gradient_accumulation_steps = real_batch_size // effective_batch_size

    if cfg.train.train_strategy in ["epochs"]:
        n_training_steps = math.ceil(1.0 * len(train_set) * cfg.train.n_epochs / per_device_batch_size)
    elif cfg.train.train_strategy in ["steps"]:
        n_training_steps = cfg.train.n_steps
    else:
        raise ValueError(f"Train Strategy {cfg.train.train_strategy} is not supported")
    if inplace:
        cfg.train.n_steps = n_training_steps
        cfg.train.real_batch_size = real_batch_size
        cfg.train.gradient_accumulation_steps = gradient_accumulation_steps

    lr_scheduler = get_lr_scheduler(
        optimizer=optimizer,
        n_warmup_steps=cfg.train.n_warmup_steps,
        n_training_steps=(
            n_training_steps * accelerator.num_processes if cfg.train.train_strategy == "steps" else n_training_steps
        ),
        lr_scheduler_type=cfg.train.lr_scheduler_type,
    )
    return lr_scheduler


class Observer:
    def __init__(self, model):
        self.model = model

    def get_gradient_norm(self):
        return torch.stack([p.grad.norm() for p in self.model.parameters()]).norm().item()

    def get_weight_norm(self):
        return torch.stack([p.detach().norm() for p in self.model.parameters()]).norm().item()


class Trainer:
    def __init__(self, accelerator, model, optimizer, scheduler, training_config):
        self.accelerator, self.model, self.optimizer, self.scheduler = accelerator, model, optimizer, scheduler
        self.training_config = training_config
        self.training_state = Namespace(current_global_step=0, current_epoch=0, current_step_in_epoch=0)
        self.observer = Observer(model)
        self.logger = logging.getLogger(__name__)

    def compute_loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def gradient_clip(self):
        self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)

    def train_a_step(self, batch: Dict[str, Any]):
        model: torch.nn.Module = self.model
        optimizer = self.optimizer
        scheduler = self.scheduler
        logger = self.logger
        model.train()

        result = {}

        should_sync = (
            self.training_state.current_global_step + 1
        ) % self.training_config.gradient_accumulation_steps == 0
        ctx = self.accelerator.no_sync(model=model) if not should_sync else nullcontext()
        with ctx:
            loss = self.compute_loss(model, batch)
            self.accelerator.backward(loss)
        if should_sync:
            result["grad_norm_pre_clip"] = self.observer.get_gradient_norm()
            self.gradient_clip()
            result["grad_norm_post_clip"] = self.observer.get_gradient_norm()
            optimizer.step()
            optimizer.zero_grad()

        if scheduler is not None:
            scheduler.step()

        result["loss"] = loss.item()
        result["weight_norm"] = self.observer.get_weight_norm()
        result["lr"] = scheduler.get_last_lr()[0]
        result["global_step"] = self.training_state.current_global_step

        # Only log on local main process
        if self.accelerator.is_local_main_process:
            logger.info(
                f"[Training] Epoch {self.training_state.current_epoch}, Step {self.training_state.current_step_in_epoch}, Loss {loss.item()}"
            )
        return result


accelerator = Accelerator()
cfg = Namespace(
    train=Namespace(
        batch_size=8, gradient_accumulation_steps=2, n_epochs=4, train_strategy="epochs", n_warmup_steps=4,
        lr_scheduler_type="linear",
    )
)
train_set = numbers()
model = make_net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = get_learing_rate_scheduler(optimizer, accelerator, train_set, cfg)
dataloader = torch.utils.data.DataLoader(train_set, batch_size=cfg.train.batch_size, shuffle=True)
model, optimizer, scheduler, dataloader = accelerator.prepare(model, optimizer, scheduler, dataloader)

trainer = Trainer(accelerator, model, optimizer, scheduler, cfg.train)
results = []
for epoch in range(cfg.train.n_epochs):
    for x, y in dataloader:
        results.append(trainer.train_a_step({"x": x, "y": y}))
        trainer.training_state.current_global_step += 1

report(
    accelerator.process_index,
    results=results,
    n_steps=cfg.train.n_steps,
    accumulation=cfg.train.gradient_accumulation_steps,
    weights=weights_of(model),
)
